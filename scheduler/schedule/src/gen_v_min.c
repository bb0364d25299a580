// V-Min: a third of the activations of 1F1B and, for F = I = W, two thirds of its bubble: 4P-7
// chunks, 4P-5 or 4P-9 when P modulo 3 is 0, 1 or 2, from P = 3 on, against 6(P-1). (Pipeline
// Parallelism with Controllable Memory, arXiv 2405.15362.)
//
// In the plan a micro-batch never waits between ranks, so it is alive as short as can be. But then
// every action waits for one that has just ended: when F, I and W differ, each slot takes as long
// as the longest of them, step after step. (A W between the two I instead of behind them saves up
// to half a percent of the step unless W is the longest, but "auto" gets less far from there.)
#include "families.h"
#include "v_shape.h"

dp_status dp_schedule_v_min_check(const struct dp_schedule_params *params, struct dp_error *err)
{
    (void)params;
    (void)err;
    return DP_OK;
}

dp_status dp_schedule_v_min_generate(const struct dp_schedule_params *params,
                                     struct dp_schedule *schedule, struct dp_error *err)
{
    (void)err;
    int32_t ranks = params->pipeline;
    struct v_shape shape = {.forward_down = 1,
                            .forward_up = 1,
                            .backward_down = 1,
                            .backward_up = 1,
                            .forward_turn = 1,
                            .backward_slot = 2,
                            .backward_turn = 1,
                            .chunks_max = (ranks + 4) / 3 * 2,
                            .weight_delay = 1};
    dp_schedule_v_build(params, &shape, schedule);
    return DP_OK;
}
