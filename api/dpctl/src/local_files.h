// What the local cluster keeps under $XDG_STATE_HOME/dp/local: its lock, its shape, its parts' pid
// files and logs, and what calibration measured.
#pragma once

#include "dp/limits.h"
#include "dpctl.h"

struct local_shape {
    int nodes;
    int slots; // ranks of one node
};

// The path of a file there, "" for the directory itself; the caller frees it.
char *local_path(const struct dpctl *ctl, const char *name);
// Two dpctl that start or stop the cluster at the same time take turns. The lock goes with the
// descriptor. DP_INTERRUPTED on Ctrl-C.
dp_status local_lock(const struct dpctl *ctl, int *ret_fd, struct dp_error *err);

// The shape of the last "up"; zeroes when there was none.
void local_read_shape(const struct dpctl *ctl, struct local_shape *ret_shape);
dp_status local_write_shape(const struct dpctl *ctl, const struct local_shape *shape,
                            struct dp_error *err);

// A cluster that `dpctl run` started ends with the last run; one from `dpctl local up` stays.
bool local_is_temporary(const struct dpctl *ctl);
dp_status local_set_temporary(const struct dpctl *ctl, bool temporary, struct dp_error *err);

// "controller" or "node-0": its pid, 0 when it does not run.
int local_part_pid(const struct dpctl *ctl, const char *name);
int local_node_pid(const struct dpctl *ctl, int node);
bool local_any_node_runs(const struct dpctl *ctl);
// Ends the keepers of a node whose agent has ended, with their ranks.
dp_status local_end_keepers(const struct dpctl *ctl, int node, struct dp_error *err);
// Where the controller serves HTTP, "127.0.0.1:41234"; empty when it does not.
void local_http_address(const struct dpctl *ctl, char ret_address[DP_ADDRESS_MAX]);
// Adds the last lines of a part's log to the message: why it ended.
void local_append_log(const struct dpctl *ctl, const char *name, struct dp_error *err);

bool local_is_calibrated(const struct dpctl *ctl, int node);
// The nodes are one machine: what node-0 measured holds for all, and measuring once is enough.
dp_status local_share_profile(const struct dpctl *ctl, int node, struct dp_error *err);
void local_forget_profiles(const struct dpctl *ctl);
