// ZB-H1 and ZB-H2: 1F1B whose backward is split, so that weight gradients, which nobody waits for,
// fill the drain. ZB-H2 starts twice as many forwards and so fills the warm-up, too. (Zero Bubble
// Pipeline Parallelism, arXiv 2401.10241, section 2.)
//
// Rank r starts with `ahead` forwards, then runs forward and input gradient in turn; weight
// gradients follow `delay` micro-batches behind. ahead + delay is the same on every rank: as many
// chunks, less one, as each of them keeps.
#include "build.h"
#include "families.h"

dp_status dp_schedule_zb_h1_check(const struct dp_schedule_params *params, struct dp_error *err)
{
    (void)params;
    (void)err;
    return DP_OK;
}

dp_status dp_schedule_zb_h2_check(const struct dp_schedule_params *params, struct dp_error *err)
{
    (void)params;
    (void)err;
    return DP_OK;
}

static void add_rank(struct build *build, int32_t rank, int32_t microbatches, int32_t ahead,
                     int32_t delay)
{
    dp_schedule_build_place(build, rank, 0, rank);
    for (int32_t m = 0; m < microbatches + ahead + delay; m++) {
        if (m < microbatches) {
            dp_schedule_build_add(build, build_single(DP_ACTION_F, rank, m));
        }
        int32_t input = m - ahead;
        if (input >= 0 && input < microbatches) {
            dp_schedule_build_add(build, build_single(DP_ACTION_I, rank, input));
        }
        int32_t weight = input - delay;
        if (weight >= 0) {
            dp_schedule_build_add(build, build_single(DP_ACTION_W, rank, weight));
        }
    }
    dp_schedule_build_end_rank(build);
}

// `turns`: how often the warm-up fills the way to the last rank and back.
static void generate(const struct dp_schedule_params *params, int32_t turns,
                     struct dp_schedule *schedule)
{
    int32_t ranks = params->pipeline;
    struct build build;
    dp_schedule_build_begin(&build, schedule, params, ranks, 1,
                            3 * (size_t)ranks * (size_t)params->microbatches);
    for (int32_t rank = 0; rank < ranks; rank++) {
        add_rank(&build, rank, params->microbatches, turns * (ranks - 1 - rank), turns * rank);
    }
}

dp_status dp_schedule_zb_h1_generate(const struct dp_schedule_params *params,
                                     struct dp_schedule *schedule, struct dp_error *err)
{
    (void)err;
    generate(params, 1, schedule);
    return DP_OK;
}

dp_status dp_schedule_zb_h2_generate(const struct dp_schedule_params *params,
                                     struct dp_schedule *schedule, struct dp_error *err)
{
    (void)err;
    generate(params, 2, schedule);
    return DP_OK;
}
