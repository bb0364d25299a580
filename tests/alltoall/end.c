#include "end.h"

#include "dp/alloc.h"
#include "dp/cleanup.h"

void *end_move_rows(void *alltoall)
{
    dp_alltoall_progress(alltoall);
    return NULL;
}

struct dp_alltoall_config end_config(struct dp_transport *transport)
{
    static const int32_t ranks[4] = {0, 1, 2, 3};
    return (struct dp_alltoall_config){
        .transport = transport,
        .window = 1,
        .ranks = ranks,
        .count = dp_transport_world(transport),
        .element = DP_F32,
        .experts = 4 * dp_transport_world(transport),
        .top_k = TOP_K,
        .hidden = HIDDEN,
        .tokens_max = TOKENS,
        .blocked_ms = 60000,
    };
}

dp_status end_open(struct end *end, const struct dp_alltoall_config *config, struct dp_error *err)
{
    for (int32_t t = 0; t < TOKENS; t++) {
        end->index[t * TOP_K] = 0;
        end->index[t * TOP_K + 1] = config->experts - 1;
    }
    for (int32_t i = 0; i < TOKENS * HIDDEN; i++) {
        end->rows[i] = (float)i;
    }
    end->is_alone = config->count == 1;
    EXPECT_OK(dp_alltoall_open(config, 0, &end->alltoall, err));
    end->exchanger = dp_alltoall_exchanger(end->alltoall);
    pthread_create(&end->mover, NULL, end_move_rows, end->alltoall);
    return DP_OK;
}

dp_status end_close(struct end *end, struct dp_error *err)
{
    dp_status status =
        dp_alltoall_close(end->alltoall, dp_clock_monotonic_ns() + 120 * DP_NS_PER_S, err);
    pthread_join(end->mover, NULL);
    dp_alltoall_free(end->alltoall);
    return status;
}

dp_status end_begin_dispatch(struct end *end, uint64_t tag, struct dp_routing **ret_routing,
                             struct dp_error *err)
{
    struct dp_load load = {.rows = end->rows, .weights = end->weights};
    EXPECT_OK(
        end->exchanger->route(end->exchanger->context, tag, TOKENS, end->index, ret_routing, err));
    return end->exchanger->begin(*ret_routing, DP_MOVE_DISPATCH, &load, err);
}

dp_status end_go_forward(struct end *end, struct dp_routing *routing, struct dp_error *err)
{
    struct dp_arrivals arrivals;
    EXPECT_OK(end->exchanger->arrive(routing, DP_MOVE_DISPATCH, &arrivals, err));
    DP_AUTO_FREE float *rows = dp_new_array(float, (size_t)arrivals.tokens *HIDDEN + 1);
    memcpy(rows, arrivals.rows, (size_t)arrivals.tokens * HIDDEN * sizeof rows[0]);
    end->exchanger->finish(routing, DP_MOVE_DISPATCH);
    struct dp_load load = {.rows = rows};
    EXPECT_OK(end->exchanger->begin(routing, DP_MOVE_COMBINE, &load, err));
    float sums[TOKENS * HIDDEN];
    EXPECT_OK(end->exchanger->collect(routing, DP_MOVE_COMBINE, sums, NULL, err));
    // Each rank that a token goes to gives it back as it is; with one rank both experts are there.
    float ranks = end->is_alone ? 1 : 2;
    EXPECT(sums[HIDDEN] == ranks * end->rows[HIDDEN]);
    return DP_OK;
}
