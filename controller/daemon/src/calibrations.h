// Nodes that are measured because somebody asked: one after the other for each caller.
#pragma once

#include "daemon.h"

extern const struct dp_rpc_handler calibrate_handler;
void calibrations_list(struct daemon *daemon, uint64_t call,
                       const Dp__V1__ListProfilesRequest *request, struct dp_arena *arena);
// What an agent says of one that was ordered.
void calibrations_level(struct daemon *daemon, uint64_t session,
                        const Dp__V1__CalibrateLevel *level);
// After anything that may let one go on: the ticker, stored rows, a session that closed.
void calibrations_pump(struct daemon *daemon);
