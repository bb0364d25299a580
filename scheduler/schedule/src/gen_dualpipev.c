// DualPipeV: one stream runs down stages 0..P-1 and, turning on the last rank, up P..2P-1; rank r
// holds stages r and 2P-1-r.
// dualpipev-full-b keeps the backward whole in the cool-down.
#include "dual.h"
#include "families.h"

static dp_status check(const char *family, const struct dp_schedule_params *params,
                       struct dp_error *err)
{
    int32_t least = 2 * params->pipeline - 1;
    if (params->microbatches < least) {
        return dp_fail(err, DP_INVALID,
                       "%s needs at least 2P-1 = %d microbatches for pipeline %d; there %s %d. "
                       "Nearest legal: %d; 2P = %d or more is advised; \"auto\" has a "
                       "bidirectional order for any size",
                       family, least, params->pipeline, params->microbatches == 1 ? "is" : "are",
                       params->microbatches, least, 2 * params->pipeline);
    }
    return DP_OK;
}

dp_status dp_schedule_dualpipev_check(const struct dp_schedule_params *params, struct dp_error *err)
{
    return check("dualpipev", params, err);
}

dp_status dp_schedule_dualpipev_full_b_check(const struct dp_schedule_params *params,
                                             struct dp_error *err)
{
    return check("dualpipev-full-b", params, err);
}

static void generate(const struct dp_schedule_params *params, bool full_cool_down,
                     struct dp_schedule *schedule)
{
    int32_t ranks = params->pipeline;
    struct build build;
    dp_schedule_build_begin(&build, schedule, params, 2 * ranks, 1,
                            (size_t)ranks *
                                dp_schedule_dual_actions_max(ranks, params->microbatches));
    for (int32_t rank = 0; rank < ranks; rank++) {
        struct dual dual = {.half = ranks,
                            .microbatches = params->microbatches,
                            .depth = rank,
                            .stage = {rank, 2 * ranks - 1 - rank},
                            .full_cool_down = full_cool_down};
        dp_schedule_build_place(&build, dual.stage[DUAL_A], 0, rank);
        dp_schedule_build_place(&build, dual.stage[DUAL_Z], 0, rank);
        dp_schedule_dual_add_rank(&build, &dual);
    }
}

dp_status dp_schedule_dualpipev_generate(const struct dp_schedule_params *params,
                                         struct dp_schedule *schedule, struct dp_error *err)
{
    (void)err;
    generate(params, false, schedule);
    return DP_OK;
}

dp_status dp_schedule_dualpipev_full_b_generate(const struct dp_schedule_params *params,
                                                struct dp_schedule *schedule, struct dp_error *err)
{
    (void)err;
    generate(params, true, schedule);
    return DP_OK;
}
