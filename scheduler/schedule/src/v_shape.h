// What ZB-V, V-Half and V-Min share: 2P stages laid down the ranks and up again, so that rank r
// holds stages r and 2P-1-r, and a backward split into I and W.
#pragma once

#include "dp/schedule.h"

// The plan: each rank repeats six actions (F, I and W of its two stages) in six slots, one
// micro-batch after the other, and a micro-batch travels down, up, down and up the ranks in even
// steps. Steps and turns are in slots, from start to start. The slower it travels the more chunks
// are alive and the less one late action delays the others. (Pipeline Parallelism with Controllable
// Memory, arXiv 2405.15362, builds its schedules from such blocks.)
struct v_shape {
    int32_t forward_down, forward_up, backward_down, backward_up;  // from rank to rank
    int32_t forward_turn;   // on the last rank, F of stage P-1 to F of stage P
    int32_t backward_slot;  // modulo 6, of the first backward on rank 0: soon after its F
    int32_t backward_turn;  // on the last rank, I of stage P to I of stage P-1
    int32_t chunks_max;     // that a rank may hold from F to W; the plan itself must fit
    int32_t weight_delay;   // a W stands back for what is due less than so many slots later
};

// Fills the schedule with the plan's order, compacted: where a rank would idle it runs something
// ahead of the plan, as long as it then still stays within chunks_max when it goes on as planned.
// So it needs no more memory, and can always go on: whatever comes next in the plan has its inputs
// in the end, and room. About linear in the number of actions.
void dp_schedule_v_build(const struct dp_schedule_params *params, const struct v_shape *shape,
                         struct dp_schedule *schedule);
