#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "stage.h"

// What was posted last. The stage keeps the index and the loads alive for as long as they are used,
// so that pointers do.
struct dp_routing {
    int64_t tokens;
    const int32_t *index;
    struct dp_load load;
};

static dp_status route(void *context, uint64_t tag, int64_t tokens, const int32_t *index,
                       struct dp_routing **ret_routing, struct dp_error *err)
{
    (void)context;
    (void)tag;
    (void)err;
    struct dp_routing *routing = dp_new(struct dp_routing);
    routing->tokens = tokens;
    routing->index = index;
    *ret_routing = routing;
    return DP_OK;
}

static void release(struct dp_routing *routing)
{
    free(routing);
}

static dp_status begin(struct dp_routing *routing, dp_move move, const struct dp_load *load,
                       struct dp_error *err)
{
    (void)move;
    (void)err;
    routing->load = *load;
    return DP_OK;
}

static bool ready(struct dp_routing *routing, dp_move move)
{
    (void)routing;
    (void)move;
    return true;
}

static int64_t landed_ns(struct dp_routing *routing, dp_move move)
{
    (void)routing;
    (void)move;
    return 0;
}

static dp_status arrive(struct dp_routing *routing, dp_move move, struct dp_arrivals *ret_arrivals,
                        struct dp_error *err)
{
    (void)move;
    (void)err;
    *ret_arrivals = (struct dp_arrivals){.tokens = routing->tokens,
                                         .rows = routing->load.rows,
                                         .weights = routing->load.weights,
                                         .expert = routing->index};
    return DP_OK;
}

static void finish(struct dp_routing *routing, dp_move move)
{
    (void)move;
    routing->load = (struct dp_load){0};
}

// The stage takes what it posted itself (dp_exchange_back_end).
static dp_status collect(struct dp_routing *routing, dp_move move, void *rows, void *weights,
                         struct dp_error *err)
{
    (void)err;
    (void)weights;
    (void)move;
    DP_CHECK(rows == routing->load.rows);
    return DP_OK;
}

struct dp_exchanger dp_local_exchanger(struct dp_stage *stage)
{
    return (struct dp_exchanger){.context = stage,
                                 .route = route,
                                 .release = release,
                                 .begin = begin,
                                 .ready = ready,
                                 .landed_ns = landed_ns,
                                 .arrive = arrive,
                                 .finish = finish,
                                 .collect = collect};
}
