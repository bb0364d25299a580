// V-Half: half the activations of 1F1B and, for F = I = W, half its bubble: 3P-7 chunks for even P
// from 4 on, 3P-4 for odd P from 3 on, against 6(P-1). (Pipeline Parallelism with Controllable
// Memory, arXiv 2405.15362.)
//
// In the plan a micro-batch takes one slot per rank on its way down and two on its way up, in both
// directions.
#include "families.h"
#include "v_shape.h"

dp_status dp_schedule_v_half_check(const struct dp_schedule_params *params, struct dp_error *err)
{
    (void)params;
    (void)err;
    return DP_OK;
}

dp_status dp_schedule_v_half_generate(const struct dp_schedule_params *params,
                                      struct dp_schedule *schedule, struct dp_error *err)
{
    (void)err;
    int32_t ranks = params->pipeline;
    struct v_shape shape = {.forward_down = 1,
                            .forward_up = 2,
                            .backward_down = 1,
                            .backward_up = 2,
                            .forward_turn = 1,
                            .backward_slot = 2,
                            .backward_turn = 2,
                            .chunks_max = (ranks + 2) / 2 * 2};
    dp_schedule_v_build(params, &shape, schedule);
    return DP_OK;
}
