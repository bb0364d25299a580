// The local cluster: one dp-controller and some dp-worker agents on loopback, state and logs under
// $XDG_STATE_HOME/dp/local. Everything is found again through pid files, so that any dpctl can
// look after what another one started.
#pragma once

#include "dpctl.h"

struct local_options {
    int nodes; // agents; 0 = 2, or as many as there were
    int slots; // ranks per agent; 0 = 2, or as many as there were
};

// Starts what does not run, waits until the controller answers and every agent is calibrated.
// *ret_started says whether the controller had to be started by a first "up" (not a restart).
dp_status local_up(struct dpctl *ctl, const struct local_options *options, bool *ret_started,
                   struct dp_error *err);
// Cancels what runs, then ends agents and controller, and waits until they are gone.
dp_status local_down(struct dpctl *ctl, struct dp_error *err);
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
