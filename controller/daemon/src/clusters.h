// Clusters by name: what files described, and what the connected nodes make together.
#pragma once

#include "daemon.h"
#include "dp/cluster.h"

extern const struct dp_rpc_handler cluster_handlers[];
extern const size_t cluster_handlers_count;

// Tokens of the store that belong to changes of clusters.
static inline bool clusters_is_token(uint64_t token)
{
    return (token >> 62) == 1;
}
void clusters_on_stored(struct daemon *daemon, uint64_t token, const struct dp_error *err);
// At the daemon's end: callers that still wait hear nothing more.
void clusters_stop(struct daemon *daemon);

// A stored cluster by name, or "this". DP_NOT_FOUND names those there are.
dp_status clusters_find(struct daemon *daemon, const char *name, struct dp_cluster_spec *ret_spec,
                        struct dp_error *err);

// live_cluster.c: one cluster of nodes as they report themselves; hardware[i] may be NULL.
// Accelerators that the nodes name give the figures, what was discovered completes them. Nodes that
// differ from most are left out, and said so in *warnings. DP_NOT_FOUND: there is none.
// DP_UNSUPPORTED: no built-in accelerator is meant.
dp_status live_cluster(const struct dp_node_record *const *nodes,
                       const Dp__V1__Hardware *const *hardware, size_t count,
                       struct dp_cluster_spec *ret_spec, struct dp_buf *warnings,
                       struct dp_error *err);
