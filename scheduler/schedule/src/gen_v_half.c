// V-Half: half the activations of 1F1B and, for F = I = W, half its bubble: 3P-7 chunks for even P
// from 4 on, 3P-4 for odd P from 3 on, against 6(P-1). (Pipeline Parallelism with Controllable
// Memory, arXiv 2405.15362.)
//
// In the plan a micro-batch takes one slot per rank on its way down and two on its way up, in both
// directions. For even P there is a choice. As it is planned, a W runs between I of the upper stage
// and I of the lower one, and hops have a slot to spare there. Behind both of them it delays no
// backward, and the ranks stand a longer I; but then I follows I across ranks, and each micro-batch
// pays for hops. For odd P, of which ranks have one chunk less to keep, the latter is better in
// both respects.
#include "families.h"
#include "v_shape.h"

dp_status dp_schedule_v_half_check(const struct dp_schedule_params *params, struct dp_error *err)
{
    (void)params;
    (void)err;
    return DP_OK;
}

dp_status dp_schedule_v_half_late_w_check(const struct dp_schedule_params *params,
                                          struct dp_error *err)
{
    (void)params;
    (void)err;
    return DP_OK;
}

static void generate(const struct dp_schedule_params *params, int32_t weight_delay,
                     struct dp_schedule *schedule)
{
    int32_t ranks = params->pipeline;
    struct v_shape shape = {.forward_down = 1,
                            .forward_up = 2,
                            .backward_down = 1,
                            .backward_up = 2,
                            .forward_turn = 1,
                            .backward_slot = 2,
                            .backward_turn = 2,
                            .chunks_max = (ranks + 2) / 2 * 2,
                            .weight_delay = weight_delay};
    dp_schedule_v_build(params, &shape, schedule);
}

dp_status dp_schedule_v_half_generate(const struct dp_schedule_params *params,
                                      struct dp_schedule *schedule, struct dp_error *err)
{
    (void)err;
    generate(params, params->pipeline % 2, schedule);
    return DP_OK;
}

dp_status dp_schedule_v_half_late_w_generate(const struct dp_schedule_params *params,
                                             struct dp_schedule *schedule, struct dp_error *err)
{
    (void)err;
    generate(params, 1, schedule);
    return DP_OK;
}
