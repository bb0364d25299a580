#include <math.h>

#include "exec_internal.h"

static struct slot *slot_of(struct dp_exec *exec, const struct part *part)
{
    return &exec->slots[part->slot];
}

dp_status dp_exec_fill_tokens(struct dp_exec *exec, const struct slot *slot, struct dp_chunk *chunk,
                              const struct samples *samples, struct dp_error *err)
{
    const struct dp_exec_source *source = &exec->config.source;
    const struct dp_stage_config *stage = dp_stage_config(slot->stage);
    dp_status status = DP_OK;
    if (stage->has_embedding || stage->has_head) {
        status = source->fill(source->context, samples->holdout, samples->first, samples->count,
                              exec->tokens, exec->targets, err);
    }
    if (status == DP_OK && stage->has_head) {
        status = dp_chunk_set_targets(chunk, exec->targets, err);
    }
    if (status == DP_OK && stage->has_embedding) {
        status = dp_chunk_set_tokens(chunk, exec->tokens, err);
    }
    return status;
}

static dp_status check_tensor(struct dp_exec *exec, const struct dp_chunk *chunk,
                              const void *tensor, const char *what, struct dp_error *err)
{
    struct dp_device *device = exec->config.device;
    double sum = 0;
    int64_t count = (int64_t)(dp_chunk_hidden_bytes(chunk) / dp_element_bytes(device->element));
    device->ops->sum_squares(device->stream, count, DP_OPERAND_ELEMENT, tensor, &sum);
    dp_status status = device->ops->stream_sync(device->stream, err);
    if (status == DP_OK && !isfinite(sum)) {
        return dp_exec_fail_not_finite(exec, what, err);
    }
    return status;
}

// What leaves the action must be finite: the first rank that finds it is the cause.
static dp_status check_results(struct dp_exec *exec, const struct task *task, struct dp_error *err)
{
    dp_status status = DP_OK;
    const struct part *part = &task->forward;
    if (part->cell != NULL) {
        struct dp_chunk *chunk = part->cell->chunk;
        if (dp_stage_config(slot_of(exec, part)->stage)->has_head) {
            double loss = dp_chunk_loss_sum(chunk);
            exec->result.loss_sum += loss;
            status = isfinite(loss) ? DP_OK : dp_exec_fail_not_finite(exec, "the loss", err);
        } else {
            status = check_tensor(exec, chunk, dp_chunk_output(chunk), "the activation", err);
        }
    }
    part = &task->backward;
    if (status == DP_OK && part->cell != NULL && (task->backward_passes & PROGRAM_INPUT) != 0 &&
        part->cell->peer[DP_SEND_B] != NO_PEER) {
        struct dp_chunk *chunk = part->cell->chunk;
        status = check_tensor(exec, chunk, dp_chunk_input_grad(chunk), "the input gradient", err);
    }
    return status;
}

static struct dp_routed routed_sum(struct dp_exec *exec, const struct part *part)
{
    const struct program_stage *stage = &slot_of(exec, part)->program;
    const struct dp_routed *routed = dp_chunk_routed(part->cell->chunk);
    struct dp_routed sum = {0, 0};
    for (int32_t i = 0; i < stage->layer_end - stage->layer_begin; i++) {
        sum.tokens += routed[i].tokens;
        sum.rows += routed[i].rows;
    }
    return sum;
}

static uint64_t grown(const struct part *part)
{
    return (uint64_t)dp_chunk_live_bytes(part->cell->chunk) - part->cell->bytes;
}

uint64_t dp_exec_bytes_now(const struct dp_exec *exec, const struct task *task)
{
    uint64_t bytes = exec->levels.live_bytes;
    bytes += task->forward.cell != NULL ? grown(&task->forward) : 0;
    bytes += task->backward.cell != NULL ? grown(&task->backward) : 0;
    return bytes;
}

// Bytes at the end of the action, with results that are not sent yet. A chunk whose B has run
// counts as before it: its layers went one by one, and what other actions took meanwhile took
// their place.
static uint64_t bytes_at_end(const struct dp_exec *exec, const struct task *task)
{
    uint64_t now = dp_exec_bytes_now(exec, task);
    if ((task->backward_passes & PROGRAM_WEIGHT) == 0) {
        return now;
    }
    uint64_t before = exec->levels.live_bytes - exec->early_bytes;
    before += task->forward.cell != NULL ? grown(&task->forward) : 0;
    return now > before ? now : before;
}

static dp_status finish_forward(struct dp_exec *exec, const struct part *part, int64_t end_ns,
                                struct dp_error *err)
{
    struct dp_chunk *chunk = part->cell->chunk;
    part->cell->is_forward_closed = true;
    dp_status status = DP_OK;
    if (part->cell->peer[DP_SEND_F] != NO_PEER) {
        status = dp_exec_message_send(exec, part, true, end_ns, dp_chunk_output(chunk),
                                      dp_chunk_hidden_bytes(chunk), err);
        dp_chunk_drop_output(chunk);
    }
    dp_exec_account_bytes(exec, part->cell, (uint64_t)dp_chunk_live_bytes(chunk));
    return status;
}

static dp_status finish_backward(struct dp_exec *exec, const struct task *task, int64_t end_ns,
                                 struct dp_error *err)
{
    const struct part *part = &task->backward;
    struct dp_chunk *chunk = part->cell->chunk;
    dp_status status = DP_OK;
    if ((task->backward_passes & PROGRAM_INPUT) != 0 && part->cell->peer[DP_SEND_B] != NO_PEER) {
        status = dp_exec_message_send(exec, part, false, end_ns, dp_chunk_input_grad(chunk),
                                      dp_chunk_hidden_bytes(chunk), err);
        dp_chunk_drop_input_grad(chunk);
    }
    if ((task->backward_passes & PROGRAM_WEIGHT) != 0) {
        dp_chunk_free(chunk);
        part->cell->chunk = NULL;
        dp_exec_account_bytes(exec, part->cell, 0);
    } else {
        dp_exec_account_bytes(exec, part->cell, (uint64_t)dp_chunk_live_bytes(chunk));
    }
    return status;
}

// What must be there before the action starts, unless it came early and was taken in.
static dp_status open_parts(struct dp_exec *exec, struct run *run, struct wait *wait,
                            struct dp_error *err)
{
    for (size_t i = 0; i < run->program->count && run->program->ops[i].half == PROGRAM_OPEN; i++) {
        dp_status status = run->done[i] ? DP_OK : dp_exec_perform(exec, run, i, wait, err);
        if (status != DP_OK) {
            return status;
        }
    }
    return DP_OK;
}

static dp_status run_components(struct dp_exec *exec, size_t at, struct dp_exec_record *record,
                                struct dp_error *err)
{
    struct dp_device *device = exec->config.device;
    dp_status status = dp_exec_perform_all(exec, at, &record->filled_ns, err);
    record->early_ns = exec->runs[at].early_ns;
    if (exec->moves != NULL) {
        record->exchange_ns = dp_exec_moves_take(exec->moves, exec->result.comm);
    }
    return status == DP_OK ? device->ops->stream_sync(device->stream, err) : status;
}

dp_status dp_exec_compute_action(struct dp_exec *exec, size_t at, struct dp_exec_record *ret_record,
                                 struct dp_error *err)
{
    const struct task *task = &exec->runs[at].task;
    struct wait wait = {0};
    exec->early_bytes = 0;
    dp_status status = open_parts(exec, &exec->runs[at], &wait, err);
    if (status != DP_OK) {
        return status;
    }
    ret_record->span.start_ns = dp_exec_now_ns(exec);
    status = run_components(exec, at, ret_record, err);
    if (status == DP_OK) {
        status = check_results(exec, task, err);
    }
    if (status != DP_OK) {
        return status;
    }
    int64_t end_ns = dp_exec_now_ns(exec);
    ret_record->span.end_ns = end_ns;
    ret_record->idle_ns = wait.idle_ns;
    ret_record->comm_ns = wait.comm_ns;
    dp_exec_account_peak(exec, bytes_at_end(exec, task));
    if (task->forward.cell != NULL) {
        int64_t *full = &slot_of(exec, &task->forward)->full_bytes;
        int64_t bytes = dp_chunk_live_bytes(task->forward.cell->chunk);
        *full = bytes > *full ? bytes : *full;
        const struct dp_routed routed = routed_sum(exec, &task->forward);
        ret_record->routed_rows = routed.rows;
        ret_record->routed_tokens = routed.tokens;
        status = finish_forward(exec, &task->forward, end_ns, err);
    }
    if (status == DP_OK && task->backward.cell != NULL) {
        status = finish_backward(exec, task, end_ns, err);
    }
    return status;
}
