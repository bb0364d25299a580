// The ways of dpctl calibrate.
#pragma once

#include "dp/limits.h"
#include "dpctl.h"

struct calibrate_request {
    // Nodes of a cluster, or this machine.
    const char *nodes[DP_CALIBRATE_NODES_MAX];
    int nodes_count;
    bool all, wait, local;
    const char *show;
    // A trace.
    const char *trace, *base, *model, *precision, *recompute;
    int32_t sequence, samples, expert, tensor, domain;
    const char *out;
};

// Of a profiler's trace: the fit, and with --model the profile that follows from it.
dp_status calibrate_trace(struct dpctl *ctl, const struct calibrate_request *request,
                          struct dp_error *err);
// Of this machine, without a controller: the user's own profile, which plan uses.
dp_status calibrate_local(struct dpctl *ctl, const struct calibrate_request *request,
                          struct dp_error *err);
// Of nodes, by their agents.
dp_status calibrate_nodes(struct dpctl *ctl, const struct calibrate_request *request,
                          struct dp_error *err);
dp_status calibrate_show(struct dpctl *ctl, const struct calibrate_request *request,
                         struct dp_error *err);

// What changed between two profiles, figure by figure, as text and as JSON; and whether two
// measurements differ by as much for no reason.
struct dp_profile;
void calibrate_render_changes(const struct dp_profile *before, const struct dp_profile *after,
                              struct dp_buf *out);
json_t *calibrate_changes_json(const struct dp_profile *before, const struct dp_profile *after);
