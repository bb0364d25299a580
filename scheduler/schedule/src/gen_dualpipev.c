// DualPipeV: one stream runs down stages 0..P-1 and, turning on the last rank, up P..2P-1; rank r
// holds stages r and 2P-1-r.
#include "dual.h"
#include "families.h"

dp_status dp_schedule_dualpipev_check(const struct dp_schedule_params *params, struct dp_error *err)
{
    int32_t least = 2 * params->pipeline - 1;
    if (params->microbatches < least) {
        return dp_fail(err, DP_INVALID,
                       "dualpipev needs at least 2P-1 = %d microbatches for pipeline %d; there are "
                       "%d. Nearest legal: %d; 2P = %d or more is advised",
                       least, params->pipeline, params->microbatches, least, 2 * params->pipeline);
    }
    return DP_OK;
}

dp_status dp_schedule_dualpipev_generate(const struct dp_schedule_params *params,
                                         struct dp_schedule *schedule, struct dp_error *err)
{
    (void)err;
    int32_t ranks = params->pipeline;
    struct build build;
    dp_schedule_build_begin(&build, schedule, params, 2 * ranks, 1,
                            (size_t)ranks *
                                dp_schedule_dual_actions_max(ranks, params->microbatches));
    for (int32_t rank = 0; rank < ranks; rank++) {
        struct dual dual = {.half = ranks,
                            .microbatches = params->microbatches,
                            .depth = rank,
                            .stage = {rank, 2 * ranks - 1 - rank}};
        dp_schedule_build_place(&build, dual.stage[DUAL_A], 0, rank);
        dp_schedule_build_place(&build, dual.stage[DUAL_Z], 0, rank);
        dp_schedule_dual_add_rank(&build, &dual);
    }
    return DP_OK;
}
