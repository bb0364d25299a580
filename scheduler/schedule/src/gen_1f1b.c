// 1F1B: P-1-r forwards to fill the pipeline, then one forward and one backward in turn, so that
// rank r never keeps more than P-r micro-batches alive.
#include "build.h"
#include "families.h"

dp_status dp_schedule_one_f_one_b_check(const struct dp_schedule_params *params,
                                        struct dp_error *err)
{
    (void)params;
    (void)err;
    return DP_OK;
}

dp_status dp_schedule_one_f_one_b_generate(const struct dp_schedule_params *params,
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
        int32_t ahead = ranks - 1 - rank;
        for (int32_t m = 0; m < microbatches + ahead; m++) {
            if (m < microbatches) {
                dp_schedule_build_add(&build, build_single(DP_ACTION_F, rank, m));
            }
            if (m >= ahead) {
                dp_schedule_build_add(&build, build_single(DP_ACTION_B, rank, m - ahead));
            }
        }
        dp_schedule_build_end_rank(&build);
    }
    return DP_OK;
}
