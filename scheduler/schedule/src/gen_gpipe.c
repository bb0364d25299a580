// GPipe: every rank runs all its forwards, then all its backwards, in the order of micro-batches.
#include "build.h"
#include "families.h"

dp_status dp_schedule_gpipe_check(const struct dp_schedule_params *params, struct dp_error *err)
{
    (void)params;
    (void)err;
    return DP_OK;
}

dp_status dp_schedule_gpipe_generate(const struct dp_schedule_params *params,
                                     struct dp_schedule *schedule, struct dp_error *err)
{
    (void)err;
    int32_t ranks = params->pipeline;
    int32_t microbatches = params->microbatches;
    struct build build;
    dp_schedule_build_begin(&build, schedule, params, ranks, 1,
                            2 * (size_t)ranks * (size_t)microbatches);
    for (int32_t rank = 0; rank < ranks; rank++) {
        dp_schedule_build_place(&build, rank, 0, rank);
        for (int32_t m = 0; m < microbatches; m++) {
            dp_schedule_build_add(&build, build_single(DP_ACTION_F, rank, m));
        }
        for (int32_t m = 0; m < microbatches; m++) {
            dp_schedule_build_add(&build, build_single(DP_ACTION_B, rank, m));
        }
        dp_schedule_build_end_rank(&build);
    }
    return DP_OK;
}
