// One rank's end of a small all-to-all, for tests of what goes wrong with it.
#pragma once

#include <pthread.h>

#include "../comm/cluster.h"
#include "dp/alltoall.h"

#define TOKENS 6
#define HIDDEN 8
#define TOP_K 2

struct end {
    struct dp_alltoall *alltoall;
    const struct dp_exchanger *exchanger;
    pthread_t mover;
    bool is_alone;
    int32_t index[TOKENS * TOP_K];
    float rows[TOKENS * HIDDEN], weights[TOKENS * TOP_K];
};

// A thread's: dp_alltoall_progress.
void *end_move_rows(void *alltoall);
// Window 1 of up to four ranks, 4 experts each.
struct dp_alltoall_config end_config(struct dp_transport *transport);
// Opens it and starts its thread. Every token goes to the first and the last rank.
dp_status end_open(struct end *end, const struct dp_alltoall_config *config, struct dp_error *err);
dp_status end_close(struct end *end, struct dp_error *err);
dp_status end_begin_dispatch(struct end *end, uint64_t tag, struct dp_routing **ret_routing,
                             struct dp_error *err);
// From a DISPATCH that was begun to the sums of its rows, given back as they came.
dp_status end_go_forward(struct end *end, struct dp_routing *routing, struct dp_error *err);
