// The local cluster: one dp-controller and some dp-worker agents on loopback, state and logs under
// $XDG_STATE_HOME/dp/local. Everything is found again through pid files, so that any dpctl can
// look after what another one started.
#pragma once

#include "dpctl.h"

struct local_options {
    int nodes; // agents; 0 = as many as there were, else 2
    int slots; // ranks per agent; likewise
    // For `dpctl run`: slots for so many ranks in all. What runs may be larger, is never made
    // smaller and grows only while no job is on it. 0 = exactly nodes and slots.
    int ranks;
    bool recalibrate; // measure the device again
    bool temporary;   // what is started now ends with the last `dpctl run`
};

// Starts what does not run, waits until the controller answers and every agent is calibrated. With
// ret_lock_fd the caller keeps the lock until it closes it: nobody stops the cluster meanwhile.
// Ctrl-C is DP_INTERRUPTED.
dp_status local_up(struct dpctl *ctl, const struct local_options *options, int *ret_lock_fd,
                   struct dp_error *err);
// Cancels what runs, then ends agents and controller, and waits until they are gone.
dp_status local_down(struct dpctl *ctl, struct dp_error *err);
// What a `dpctl run` does at its end: stops a temporary cluster unless jobs are on it, which
// *ret_busy names then ("job-3 is").
dp_status local_down_if_idle(struct dpctl *ctl, struct dp_buf *ret_busy, bool *ret_down,
                             struct dp_error *err);
// Points ctl->controller at the local controller, unless one was named. DP_UNAVAILABLE says how to
// start it. `buffer` keeps the address.
dp_status local_find_controller(struct dpctl *ctl, char buffer[DP_ADDRESS_MAX],
                                struct dp_error *err);

// One part of the cluster, for `dpctl local status`.
struct local_part {
    char name[DP_NAME_MAX];
    int pid; // 0 = not running
};
// At most parts_max rows; returns how many.
int local_parts(const struct dpctl *ctl, struct local_part *parts, int parts_max);

// A program that lies beside dpctl; *ret_path is the caller's.
dp_status local_program(const char *name, char **ret_path, struct dp_error *err);
