// ZB-V: the activations of 1F1B's first rank on every rank, and a bubble of P-1 times the longest
// of I, W, 2F-I, 2(F-W) and 2(I-W), durations of a chunk, when M is at least 2P-1. For F = I = W no
// rank is then idle between its first action and its last. (Pipeline Parallelism with Controllable
// Memory, arXiv 2405.15362.)
//
// In the plan each rank runs F I W of its lower stage and then F I W of its upper one; stages
// follow each other after five slots on the way down and after one on the way up.
#include "families.h"
#include "v_shape.h"

dp_status dp_schedule_zb_v_check(const struct dp_schedule_params *params, struct dp_error *err)
{
    (void)params;
    (void)err;
    return DP_OK;
}

dp_status dp_schedule_zb_v_generate(const struct dp_schedule_params *params,
                                    struct dp_schedule *schedule, struct dp_error *err)
{
    (void)err;
    int32_t ranks = params->pipeline;
    struct v_shape shape = {.forward_down = 5,
                            .forward_up = 1,
                            .backward_down = 5,
                            .backward_up = 1,
                            .forward_turn = 3,
                            .backward_slot = 4,
                            .backward_turn = 3,
                            .chunks_max = 2 * ranks,
                            .weight_delay = 1};
    dp_schedule_v_build(params, &shape, schedule);
    return DP_OK;
}
