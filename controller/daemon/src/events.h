// Events as they come.
#pragma once

#include "daemon.h"

extern const struct dp_rpc_handler events_handler;
// Something was stored, or time has passed.
void events_pump(struct daemon *daemon);
// Strings are borrowed from the row.
Dp__V1__Event *event_message(const struct dp_event_record *from, struct dp_arena *arena);
