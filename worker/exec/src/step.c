#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "exec_internal.h"

dp_status dp_exec_fail_not_finite(struct dp_exec *exec, const char *what, struct dp_error *err)
{
    exec->failure.not_finite = true;
    return dp_fail(err, DP_JOB_FAILED,
                   "%s is NaN or infinite; lower the learning rate, or look at the data", what);
}

static void publish(struct dp_exec *exec)
{
    if (exec->config.meter != NULL) {
        dp_exec_meter_set_levels(exec->config.meter, &exec->levels);
    }
}

void dp_exec_account_start(struct dp_exec *exec, const struct task *task)
{
    if (task->forward.cell == NULL) {
        return;
    }
    struct dp_exec_levels *levels = &exec->levels;
    levels->live_chunks++;
    if (levels->live_chunks > levels->peak_chunks) {
        levels->peak_chunks = levels->live_chunks;
    }
    if (levels->live_chunks > exec->result.peak_chunks) {
        exec->result.peak_chunks = levels->live_chunks;
    }
    publish(exec);
}

void dp_exec_account_bytes(struct dp_exec *exec, struct cell *cell, uint64_t bytes)
{
    exec->levels.live_bytes = exec->levels.live_bytes - cell->bytes + bytes;
    cell->bytes = bytes;
}

void dp_exec_account_peak(struct dp_exec *exec, uint64_t bytes)
{
    if (bytes > exec->levels.peak_bytes) {
        exec->levels.peak_bytes = bytes;
    }
    if (bytes > exec->result.peak_bytes) {
        exec->result.peak_bytes = bytes;
    }
}

void dp_exec_account_end(struct dp_exec *exec, const struct task *task)
{
    if ((task->backward_passes & PROGRAM_INPUT) != 0) {
        exec->levels.live_chunks--;
    }
    publish(exec);
}

static void record_action(struct dp_exec *exec, const struct dp_action *action,
                          struct dp_exec_record *record, struct action_time *time)
{
    struct dp_action_span *span = &record->span;
    span->rank = exec->config.position;
    span->replica = exec->config.replica;
    span->step = exec->step;
    span->kind = action->kind;
    span->stage = action->stage;
    span->microbatch = action->microbatch;
    span->b_kind = action->b_kind;
    span->b_stage = action->b_stage;
    span->b_microbatch = action->b_microbatch;
    span->own_ns =
        span->end_ns - span->start_ns + record->early_ns - record->filled_ns - record->exchange_ns;
    exec->last_end_ns = span->end_ns;
    exec->result.busy_ns += span->end_ns - span->start_ns - record->exchange_ns;
    exec->result.exchange_ns += record->exchange_ns;
    time->tokens = record->worked_rows;
    if (exec->config.device != NULL) {
        time->own_ns = span->own_ns;
        time->waited_ns = record->idle_ns + record->comm_ns + record->exchange_ns;
    }
    dp_exec_times_action(exec->times, action, time);
    if (exec->config.meter != NULL) {
        dp_exec_meter_push(exec->config.meter, record);
    }
}

int64_t dp_exec_off_core_ns(const struct dp_device *device, int64_t wall_ns, int64_t cpu_ns)
{
    int64_t off_ns = device->on_host ? wall_ns - cpu_ns : 0;
    return off_ns > 0 ? off_ns : 0;
}

static dp_status compute_action(struct dp_exec *exec, size_t at, struct dp_exec_record *record,
                                struct action_time *ret_time, struct dp_error *err)
{
    int64_t cpu_ns = dp_clock_thread_cpu_ns();
    dp_status status = dp_exec_compute_action(exec, at, record, err);
    if (status == DP_OK) {
        int64_t wall_ns = record->span.end_ns - record->span.start_ns - record->exchange_ns;
        ret_time->off_core_ns =
            dp_exec_off_core_ns(exec->config.device, wall_ns, dp_clock_thread_cpu_ns() - cpu_ns);
    }
    return status;
}

static dp_status run_action(struct dp_exec *exec, size_t at, struct dp_error *err)
{
    const struct task *task = &exec->runs[at].task;
    struct dp_exec_record record = {0};
    exec->culprit = at;
    dp_exec_account_start(exec, task);
    struct action_time time = {0};
    dp_status status = exec->config.device != NULL
                           ? compute_action(exec, at, &record, &time, err)
                           : dp_exec_sim_action(exec, task, &record, &time, err);
    if (status != DP_OK) {
        return status;
    }
    dp_exec_account_end(exec, task);
    record_action(exec, task->action, &record, &time);
    return DP_OK;
}

static dp_status fail_action(struct dp_exec *exec, const struct dp_action *action, dp_status status,
                             struct dp_error *err)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf name = {0};
    dp_action_format(action, &name);
    DP_COPY_TEXT(exec->failure.action, name.bytes);
    exec->failure.peer_lost = status == DP_UNAVAILABLE || status == DP_TIMEOUT;
    dp_fail_in(err, "rank %d, step %lld, %s", dp_exec_world_rank(exec), (long long)exec->step,
               name.bytes);
    return status;
}

// An interrupted step may have left chunks behind.
static void drop_chunks(struct dp_exec *exec)
{
    size_t count = (size_t)exec->slot_count * (size_t)exec->config.schedule->microbatches;
    for (size_t i = 0; i < count; i++) {
        if (exec->cells[i].chunk != NULL) {
            dp_chunk_free(exec->cells[i].chunk);
            exec->cells[i].chunk = NULL;
        }
        exec->cells[i].bytes = 0;
    }
    exec->levels.live_chunks = 0;
    exec->levels.live_bytes = 0;
}

dp_status dp_exec_run_step(struct dp_exec *exec, int64_t step, struct dp_exec_step *ret_step,
                           struct dp_error *err)
{
    drop_chunks(exec);
    dp_exec_list_reset(exec);
    exec->step = step;
    if (exec->moves != NULL) {
        dp_exec_moves_take(exec->moves, exec->result.comm); // of an evaluation
    }
    exec->result = (struct dp_exec_step){0};
    exec->failure = (struct dp_exec_failure){0};
    exec->free_ns = dp_exec_now_ns(exec);
    exec->last_end_ns = exec->free_ns;
    dp_exec_times_begin(exec->times, exec->free_ns);
    for (size_t i = 0; i < exec->run_count; i++) {
        dp_status status = run_action(exec, i, err);
        if (status != DP_OK) {
            return fail_action(exec, exec->runs[exec->culprit].task.action, status, err);
        }
    }
    exec->levels.step = step;
    publish(exec);
    dp_exec_times_end(exec->times, exec->config.device == NULL, exec->last_end_ns,
                      &exec->result.times);
    *ret_step = exec->result;
    return DP_OK;
}
