// Who asked for what: rows of the audit.
#pragma once

#include "daemon.h"

extern const struct dp_rpc_handler audit_handlers[];
extern const size_t audit_handlers_count;

// Who calls, what for and about what. user "" = not said; object "" = the core knows.
void audit_fill(struct daemon *daemon, uint64_t call, dp_method_id method, const char *user,
                const char *object, struct dp_audit_record *ret_row);
// Keeps one that the core does not hear of; `why` has the status DP_OK, or why it was refused.
void audit_keep(struct daemon *daemon, struct dp_audit_record *row, const struct dp_error *why);
// Keeps it and tells the caller why.
void audit_refuse(struct daemon *daemon, uint64_t call, struct dp_audit_record *row,
                  const struct dp_error *why);
