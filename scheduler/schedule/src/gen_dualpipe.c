// DualPipe: two streams of M/2 micro-batches enter at both ends; rank r holds stages r and P-1-r.
//
// dualpipe-full-b does the same but for the cool-down, where it keeps the backward whole: without
// the split nothing fills the gaps, but no weight gradients wait either.
#include "dual.h"
#include "families.h"
#include "refusal.h"

static dp_status check(const char *family, const struct dp_schedule_params *params,
                       struct dp_error *err)
{
    int32_t ranks = params->pipeline;
    int32_t microbatches = params->microbatches;
    if (ranks % 2 != 0) {
        return dp_schedule_refuse_odd_pipeline(family, ranks, err);
    }
    int32_t least = 2 * ranks - 2;
    if (microbatches < least) {
        return dp_fail(err, DP_INVALID,
                       "%s needs at least 2P-2 = %d microbatches for pipeline %d; there %s %d. "
                       "Nearest legal: %d; 2P = %d or more is advised; \"auto\" has a "
                       "bidirectional order for any size",
                       family, least, ranks, microbatches == 1 ? "is" : "are", microbatches, least,
                       2 * ranks);
    }
    if (microbatches % 2 != 0) {
        return dp_fail(err, DP_INVALID,
                       "%s needs an even number of microbatches, half for each direction; there "
                       "are %d. Nearest legal: %d, %d; \"auto\" has a bidirectional order for any "
                       "size",
                       family, microbatches, microbatches - 1, microbatches + 1);
    }
    return DP_OK;
}

dp_status dp_schedule_dualpipe_check(const struct dp_schedule_params *params, struct dp_error *err)
{
    return check("dualpipe", params, err);
}

dp_status dp_schedule_dualpipe_full_b_check(const struct dp_schedule_params *params,
                                            struct dp_error *err)
{
    return check("dualpipe-full-b", params, err);
}

static void generate(const struct dp_schedule_params *params, bool full_cool_down,
                     struct dp_schedule *schedule)
{
    int32_t ranks = params->pipeline;
    int32_t half = ranks / 2;
    int32_t per_slot = params->microbatches / 2;
    struct build build;
    dp_schedule_build_begin(&build, schedule, params, ranks, 2,
                            (size_t)ranks * dp_schedule_dual_actions_max(half, per_slot));
    for (int32_t rank = 0; rank < ranks; rank++) {
        int32_t mirror = ranks - 1 - rank;
        dp_schedule_build_place(&build, rank, 0, rank);
        dp_schedule_build_place(&build, rank, 1, mirror);
        struct dual dual = {.half = half,
                            .microbatches = per_slot,
                            .depth = rank < half ? rank : mirror,
                            .full_cool_down = full_cool_down};
        // The near stream of the second half of the ranks is direction 1.
        int near = rank < half ? DUAL_A : DUAL_Z;
        dual.stage[near] = rank;
        dual.stage[1 - near] = mirror;
        dual.first[1 - near] = per_slot;
        dp_schedule_dual_add_rank(&build, &dual);
    }
}

dp_status dp_schedule_dualpipe_generate(const struct dp_schedule_params *params,
                                        struct dp_schedule *schedule, struct dp_error *err)
{
    (void)err;
    generate(params, false, schedule);
    return DP_OK;
}

dp_status dp_schedule_dualpipe_full_b_generate(const struct dp_schedule_params *params,
                                               struct dp_schedule *schedule, struct dp_error *err)
{
    (void)err;
    generate(params, true, schedule);
    return DP_OK;
}
