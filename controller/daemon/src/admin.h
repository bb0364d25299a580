// What operators decide: nodes that are drained, down, quarantined or forgotten; quotas of users.
#pragma once

#include "daemon.h"

extern const struct dp_rpc_handler admin_handlers[];
extern const size_t admin_handlers_count;

// The core's answer to one of these methods; `name` is the node's, or the user's.
bool admin_is_method(dp_method_id method);
void admin_reply(struct daemon *daemon, dp_method_id method, uint64_t call, const char *name);
// Quotas of the store, for the core.
dp_status admin_load(struct daemon *daemon, struct dp_error *err);
