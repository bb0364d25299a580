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

// What leaves the rank must be finite: the first rank that finds it is the cause.
dp_status dp_exec_hand_on(struct dp_exec *exec, const struct part *part, bool forward,
                          struct dp_error *err)
{
    struct dp_chunk *chunk = part->cell->chunk;
    if (part->cell->peer[forward ? DP_SEND_F : DP_SEND_B] == NO_PEER ||
        part->cell->is_handed_on[!forward]) {
        return DP_OK;
    }
    part->cell->is_handed_on[!forward] = true;
    const void *made = forward ? dp_chunk_output(chunk) : dp_chunk_input_grad(chunk);
    dp_status status =
        check_tensor(exec, chunk, made, forward ? "the activation" : "the input gradient", err);
    if (status != DP_OK) {
        return status;
    }
    return dp_exec_message_send(exec, part, forward, dp_exec_now_ns(exec), made,
                                dp_chunk_hidden_bytes(chunk), err);
}

static dp_status take_loss(struct dp_exec *exec, const struct part *part, struct dp_error *err)
{
    if (part->cell == NULL || !dp_stage_config(slot_of(exec, part)->stage)->has_head) {
        return DP_OK;
    }
    double loss = dp_chunk_loss_sum(part->cell->chunk);
    exec->result.loss_sum += loss;
    return isfinite(loss) ? DP_OK : dp_exec_fail_not_finite(exec, "the loss", err);
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
    const struct cell *cell = part->cell;
    return cell->chunk == NULL ? 0 : (uint64_t)dp_chunk_live_bytes(cell->chunk) - cell->bytes;
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
    if ((task->backward_passes & PROGRAM_INPUT) != 0) {
        // It may have begun early, and hold its gradient since then.
        const struct cell *cell = task->backward.cell;
        before += (uint64_t)cell->open_bytes - cell->bytes;
    }
    return now > before ? now : before;
}

static void finish_forward(struct dp_exec *exec, const struct part *part)
{
    struct dp_chunk *chunk = part->cell->chunk;
    part->cell->is_forward_closed = true;
    if (part->cell->peer[DP_SEND_F] != NO_PEER) {
        dp_chunk_drop_output(chunk);
    }
    dp_exec_account_bytes(exec, part->cell, (uint64_t)dp_chunk_live_bytes(chunk));
}

static void finish_backward(struct dp_exec *exec, const struct task *task)
{
    const struct part *part = &task->backward;
    struct dp_chunk *chunk = part->cell->chunk;
    if ((task->backward_passes & PROGRAM_INPUT) != 0 && part->cell->peer[DP_SEND_B] != NO_PEER) {
        dp_chunk_drop_input_grad(chunk);
    }
    if ((task->backward_passes & PROGRAM_WEIGHT) != 0) {
        dp_chunk_free(chunk);
        part->cell->chunk = NULL;
        dp_exec_account_bytes(exec, part->cell, 0);
    } else {
        dp_exec_account_bytes(exec, part->cell, (uint64_t)dp_chunk_live_bytes(chunk));
    }
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

static dp_status hand_on_all(struct dp_exec *exec, const struct task *task, struct dp_error *err)
{
    dp_status status = DP_OK;
    if (task->forward.cell != NULL) {
        status = dp_exec_hand_on(exec, &task->forward, true, err);
    }
    if (status == DP_OK && (task->backward_passes & PROGRAM_INPUT) != 0) {
        status = dp_exec_hand_on(exec, &task->backward, false, err);
    }
    return status;
}

static void finish(struct dp_exec *exec, const struct task *task, struct dp_exec_record *record)
{
    dp_exec_account_peak(exec, bytes_at_end(exec, task));
    if (task->forward.cell != NULL) {
        int64_t *full = &slot_of(exec, &task->forward)->full_bytes;
        int64_t bytes = dp_chunk_live_bytes(task->forward.cell->chunk);
        *full = bytes > *full ? bytes : *full;
        const struct dp_routed routed = routed_sum(exec, &task->forward);
        record->routed_rows = routed.rows;
        record->routed_tokens = routed.tokens;
        record->worked_rows = routed.rows;
        finish_forward(exec, &task->forward);
    }
    if (task->backward.cell != NULL) {
        const struct cell *cell = task->backward.cell;
        int64_t *added = &slot_of(exec, &task->backward)->input_bytes;
        int64_t bytes = dp_chunk_live_bytes(cell->chunk) - cell->open_bytes;
        if (task->backward_passes == PROGRAM_INPUT) {
            *added = bytes > *added ? bytes : *added;
        }
        record->worked_rows += routed_sum(exec, &task->backward).rows;
        finish_backward(exec, task);
    }
}

dp_status dp_exec_compute_action(struct dp_exec *exec, size_t at, struct dp_exec_record *ret_record,
                                 struct dp_error *err)
{
    const struct task *task = &exec->runs[at].task;
    struct wait wait = {0};
    exec->turn = at;
    exec->early_bytes = 0;
    dp_exec_begin_memory(exec);
    // What must be there before the action starts, unless it came early and was taken in.
    int64_t filled_ns;
    dp_status status = dp_exec_open_all(exec, at, &wait, &filled_ns, err);
    exec->result.busy_ns += filled_ns;
    if (status != DP_OK) {
        return status;
    }
    ret_record->span.start_ns = dp_exec_now_ns(exec);
    status = run_components(exec, at, ret_record, err);
    if (status == DP_OK) {
        status = take_loss(exec, &task->forward, err);
    }
    if (status == DP_OK) {
        status = hand_on_all(exec, task, err);
    }
    if (status != DP_OK) {
        return status;
    }
    ret_record->span.end_ns = dp_exec_now_ns(exec);
    ret_record->idle_ns = wait.idle_ns;
    ret_record->comm_ns = wait.comm_ns;
    finish(exec, task, ret_record);
    return DP_OK;
}
