// The text form of torch.distributed.pipelining's actions: <stage><kind><micro-batch>, an
// overlapped pair as (<forward>;<backward>)OVERLAP_F_B. See schedules.py of PyTorch, _Action.
#include "torch.h"

#include "dp/render.h"

void dp_render_torch_action(const struct dp_action *action, struct dp_buf *out)
{
    if (action->kind == DP_ACTION_FB) {
        dp_buf_printf(out, "(%uF%u;%u%s%u)OVERLAP_F_B", action->stage, action->microbatch,
                      action->b_stage, dp_action_kind_text(action->b_kind), action->b_microbatch);
    } else {
        dp_buf_printf(out, "%u%s%u", action->stage, dp_action_kind_text(action->kind),
                      action->microbatch);
    }
}

dp_status dp_render_torch_check(const struct dp_schedule *schedule, struct dp_error *err)
{
    if (schedule->directions == 2) {
        return dp_fail(err, DP_UNSUPPORTED,
                       "%s is bidirectional: every stage lives on two ranks, and PyTorch's "
                       "pipelining keeps each stage on one; export dualpipev instead, which runs "
                       "the same steps on half of the ranks with two stages each",
                       schedule->name);
    }
    return DP_OK;
}

dp_status dp_render_torch_csv(const struct dp_schedule *schedule, struct dp_buf *out,
                              struct dp_error *err)
{
    dp_status status = dp_render_torch_check(schedule, err);
    if (status != DP_OK) {
        return status;
    }
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        size_t begin = schedule->rank_begin[rank];
        for (size_t i = begin; i < schedule->rank_begin[rank + 1]; i++) {
            if (i > begin) {
                dp_buf_puts(out, ",");
            }
            dp_render_torch_action(&schedule->actions[i], out);
        }
        dp_buf_puts(out, "\n");
    }
    return DP_OK;
}
