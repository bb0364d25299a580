#include "dp/clock.h"
#include "exec_internal.h"

// Waking up late by less than this does not move the plan; a rank that was held up longer is late.
#define LATE_NS (5 * DP_NS_PER_MS)

static double planned_seconds(const struct dp_exec *exec, const struct task *task)
{
    const struct dp_sim_costs *costs = exec->config.costs;
    int32_t rank = exec->config.position;
    if (task->action->kind == DP_ACTION_FB) {
        size_t pair = dp_sim_pair_index(costs, rank, task->forward.slot, task->backward.slot);
        return task->action->b_kind == DP_ACTION_B ? costs->fb[pair] : costs->fi[pair];
    }
    int32_t slot = task->forward.cell != NULL ? task->forward.slot : task->backward.slot;
    return dp_sim_chunk_at(costs, rank, slot)->seconds[task->action->kind];
}

// Bytes by plan, for the levels.
static void account_plan(struct dp_exec *exec, const struct task *task)
{
    const struct dp_sim_costs *costs = exec->config.costs;
    int32_t rank = exec->config.position;
    if (task->forward.cell != NULL) {
        dp_exec_account_bytes(exec, task->forward.cell,
                              dp_sim_chunk_at(costs, rank, task->forward.slot)->activation_bytes);
        dp_exec_account_peak(exec, exec->levels.live_bytes);
    }
    if (task->backward.cell != NULL) {
        bool whole = (task->backward_passes & PROGRAM_WEIGHT) != 0;
        const struct dp_sim_chunk *chunk = dp_sim_chunk_at(costs, rank, task->backward.slot);
        dp_exec_account_bytes(exec, task->backward.cell,
                              whole ? 0 : chunk->activation_bytes - chunk->released_at_i_bytes);
    }
}

dp_status dp_exec_sim_action(struct dp_exec *exec, const struct task *task,
                             struct dp_exec_record *ret_record, struct action_time *ret_time,
                             struct dp_error *err)
{
    // A host that is late keeps nothing from arriving meanwhile.
    ret_time->gap_ns = dp_sim_pace_gap_ns(exec->config.pace, exec->step);
    exec->free_ns += ret_time->gap_ns;
    dp_clock_sleep_until_ns(exec->free_ns - exec->wall_offset_ns);
    struct wait wait = {.arrival_ns = exec->free_ns};
    dp_status status = DP_OK;
    if (task->forward.cell != NULL) {
        status = dp_exec_message_receive(exec, &task->forward, true, NULL, 0, &wait, err);
    }
    if (status == DP_OK && (task->backward_passes & PROGRAM_INPUT) != 0) {
        status = dp_exec_message_receive(exec, &task->backward, false, NULL, 0, &wait, err);
    }
    if (status != DP_OK) {
        return status;
    }
    int64_t received_ns = dp_exec_now_ns(exec);
    int64_t start_ns = wait.arrival_ns;
    dp_clock_sleep_until_ns(start_ns - exec->wall_offset_ns);
    int64_t now_ns = dp_exec_now_ns(exec);
    start_ns = now_ns - start_ns > LATE_NS ? now_ns : start_ns;
    double planned_ns = planned_seconds(exec, task) * (double)DP_NS_PER_S;
    double pace = dp_sim_pace_action(exec->config.pace, exec->step, exec->culprit);
    ret_time->planned_ns = (int64_t)planned_ns;
    ret_time->own_ns = (int64_t)(planned_ns * pace);
    int64_t end_ns = start_ns + ret_time->own_ns;
    dp_clock_sleep_until_ns(end_ns - exec->wall_offset_ns);
    ret_record->span.start_ns = now_ns;
    ret_record->span.end_ns = dp_exec_now_ns(exec);
    ret_record->idle_ns = wait.idle_ns;
    ret_record->comm_ns = wait.comm_ns + now_ns - received_ns;
    exec->free_ns = end_ns;
    account_plan(exec, task);
    if (task->forward.cell != NULL) {
        status = dp_exec_message_send(exec, &task->forward, true, end_ns, NULL, 0, err);
    }
    if (status == DP_OK && (task->backward_passes & PROGRAM_INPUT) != 0) {
        status = dp_exec_message_send(exec, &task->backward, false, end_ns, NULL, 0, err);
    }
    return status;
}
