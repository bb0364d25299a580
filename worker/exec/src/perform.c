// Runs single ops of programs, and while one has to wait, others in its place.
#include "dp/check.h"
#include "dp/clock.h"
#include "exec_internal.h"

static struct slot *slot_of(struct dp_exec *exec, const struct part *part)
{
    return &exec->slots[part->slot];
}

// A part that goes forward gets its chunk, its tokens and the activation of the stage before.
static dp_status open_forward(struct dp_exec *exec, const struct part *part, struct wait *wait,
                              struct dp_error *err)
{
    const struct dp_exec_config *config = &exec->config;
    struct slot *slot = slot_of(exec, part);
    int64_t batch = dp_exec_global_batch(exec);
    int64_t row = exec_first_microbatch(exec) + part->microbatch;
    struct samples samples = {.first = exec->sample_origin + exec->step * batch +
                                       row * config->micro_batch_size,
                              .count = config->micro_batch_size};
    struct dp_chunk *chunk =
        dp_chunk_new(slot->stage, samples.count, 1.0 / (double)(batch * config->sequence));
    dp_exec_tag_chunk(chunk, MESSAGE_EXCHANGE, slot->index, part->microbatch);
    struct cell *cell = part->cell;
    int32_t last = slot->program.count - 1;
    cell->chunk = chunk;
    cell->next[DP_PASS_FORWARD] = 0;
    cell->next[DP_PASS_INPUT] = cell->next[DP_PASS_WEIGHT] = last;
    cell->is_forward_closed = cell->has_gradient = false;
    cell->has_input = true;
    cell->open_bytes = 0;
    cell->has_met[0] = cell->has_met[1] = false;
    cell->is_handed_on[0] = cell->is_handed_on[1] = false;
    dp_status status = dp_exec_fill_tokens(exec, slot, chunk, &samples, err);
    void *input = NULL;
    if (status == DP_OK && slot->index > 0) {
        status = dp_chunk_make_input(chunk, &input, err);
    }
    if (status != DP_OK || input == NULL) {
        return status;
    }
    return dp_exec_message_receive(exec, part, true, input, dp_chunk_hidden_bytes(chunk), wait,
                                   err);
}

static dp_status open_backward(struct dp_exec *exec, const struct part *part, struct wait *wait,
                               struct dp_error *err)
{
    struct dp_chunk *chunk = part->cell->chunk;
    part->cell->has_gradient = true;
    part->cell->open_bytes = dp_chunk_live_bytes(chunk);
    if (dp_stage_config(slot_of(exec, part)->stage)->has_head) {
        return DP_OK;
    }
    void *grad = NULL;
    dp_status status = dp_chunk_make_output_grad(chunk, &grad, err);
    if (status != DP_OK) {
        return status;
    }
    return dp_exec_message_receive(exec, part, false, grad, dp_chunk_hidden_bytes(chunk), wait,
                                   err);
}

static void note_bytes(struct slot *slot, struct cell *cell, bool backward)
{
    int64_t bytes = dp_chunk_live_bytes(cell->chunk) - cell->open_bytes;
    int64_t *most = &slot->early_bytes[backward];
    if (!cell->has_met[backward]) {
        *most = bytes > *most ? bytes : *most;
        cell->has_met[backward] = true;
    }
}

static dp_status end_component(struct dp_exec *exec, const struct part *part,
                               const struct program_op *op, struct dp_error *err)
{
    struct cell *cell = part->cell;
    dp_pass pass = (dp_pass)op->pass;
    dp_status status = dp_chunk_end(cell->chunk, pass, op->component, err);
    cell->next[pass] += pass == DP_PASS_FORWARD ? 1 : -1;
    bool is_last = cell->next[pass] < 0 || cell->next[pass] == slot_of(exec, part)->program.count;
    if (status != DP_OK || !is_last || pass == DP_PASS_WEIGHT) {
        return status;
    }
    note_bytes(slot_of(exec, part), cell, op->backward);
    // Results of actions that are run early wait for their turn: nothing is seen to arrive before
    // what has made it began.
    return exec->culprit == exec->turn ? dp_exec_hand_on(exec, part, !op->backward, err) : DP_OK;
}

static dp_status perform_component(struct dp_exec *exec, const struct part *part,
                                   const struct program_op *op, struct dp_error *err)
{
    struct cell *cell = part->cell;
    dp_status status = DP_OK;
    if (op->half != PROGRAM_WAIT) {
        status = dp_chunk_begin(cell->chunk, (dp_pass)op->pass, op->component, err);
    }
    if (op->half == PROGRAM_POST) {
        note_bytes(slot_of(exec, part), cell, op->backward);
        return status;
    }
    return status == DP_OK ? end_component(exec, part, op, err) : status;
}

void dp_exec_begin_memory(struct dp_exec *exec)
{
    int64_t most;
    dp_workspace_bytes(exec->workspace, &exec->base_bytes, &most);
    exec->used_bytes = exec->base_bytes;
    exec->others_bytes = 0;
}

// An op in its turn tells what its like will take; one of another action is told apart.
static void note_memory(struct dp_exec *exec, struct run *run, size_t index)
{
    int64_t now, most;
    dp_workspace_bytes(exec->workspace, &now, &most);
    exec->most_bytes = most > exec->most_bytes ? most : exec->most_bytes;
    if (exec->culprit != exec->turn) {
        run->taken_bytes += now - exec->used_bytes;
        exec->others_bytes += now - exec->used_bytes;
    } else {
        int64_t beyond = most - exec->base_bytes - exec->others_bytes + run->taken_bytes;
        int64_t *known = &run->program->most[index];
        *known = beyond > *known ? beyond : *known;
    }
    exec->used_bytes = now;
}

static dp_status perform(struct dp_exec *exec, struct run *run, size_t index, struct wait *wait,
                         struct dp_error *err)
{
    const struct program_op *op = &run->program->ops[index];
    const struct part *part = op->backward ? &run->task.backward : &run->task.forward;
    DP_CHECK(!run->done[index]);
    run->done[index] = true;
    while (run->first < run->program->count && run->done[run->first]) {
        run->first++;
    }
    if (op->half != PROGRAM_OPEN) {
        dp_status status = perform_component(exec, part, op, err);
        if (exec->moves != NULL) {
            dp_exec_moves_poll(exec->moves);
        }
        return status;
    }
    return op->backward ? open_backward(exec, part, wait, err)
                        : open_forward(exec, part, wait, err);
}

static bool is_of(const struct run *run, const struct part *part)
{
    return run->task.forward.cell == part->cell || run->task.backward.cell == part->cell;
}

dp_status dp_exec_perform(struct dp_exec *exec, struct run *run, size_t index, struct wait *wait,
                          struct dp_error *err)
{
    dp_status status = perform(exec, run, index, wait, err);
    note_memory(exec, run, index);
    return status;
}

// One op of any action, while the one at `at` waits.
static dp_status fill(struct dp_exec *exec, size_t at, struct run *run, size_t index,
                      int64_t *filled_ns, struct dp_error *err)
{
    const struct program_op *op = &run->program->ops[index];
    const struct part *part = op->backward ? &run->task.backward : &run->task.forward;
    struct wait none = {0};
    int64_t start_ns = dp_clock_monotonic_ns();
    exec->culprit = (size_t)(run - exec->runs);
    dp_status status = dp_exec_perform(exec, run, index, &none, err);
    if (status != DP_OK || exec->culprit == at) {
        return status;
    }
    exec->culprit = at;
    int64_t took_ns = dp_clock_monotonic_ns() - start_ns;
    run->early_ns += took_ns;
    *filled_ns += took_ns;
    if (!is_of(&exec->runs[at], part)) {
        exec->early_bytes -= part->cell->bytes;
        dp_exec_account_bytes(exec, part->cell, (uint64_t)dp_chunk_live_bytes(part->cell->chunk));
        exec->early_bytes += part->cell->bytes;
    }
    return DP_OK;
}

// Does other work instead of waiting, as long as there is some.
static dp_status fill_open(struct dp_exec *exec, size_t at, const struct program_op *op,
                           int64_t *filled_ns, struct dp_error *err)
{
    const struct run *run = &exec->runs[at];
    const struct part *part = op->backward ? &run->task.backward : &run->task.forward;
    size_t from, filler;
    dp_status status = DP_OK;
    while (status == DP_OK && !exec->config.no_overlap &&
           !dp_exec_message_is_here(exec, part, !op->backward) &&
           dp_exec_find_filler(exec, at, false, &from, &filler)) {
        status = fill(exec, at, &exec->runs[from], filler, filled_ns, err);
    }
    return status;
}

dp_status dp_exec_open_all(struct dp_exec *exec, size_t at, struct wait *wait,
                           int64_t *ret_filled_ns, struct dp_error *err)
{
    struct run *run = &exec->runs[at];
    *ret_filled_ns = 0;
    for (size_t i = 0; i < run->program->count && run->program->ops[i].half == PROGRAM_OPEN; i++) {
        if (run->done[i]) {
            continue;
        }
        dp_status status = fill_open(exec, at, &run->program->ops[i], ret_filled_ns, err);
        if (status == DP_OK) {
            status = dp_exec_perform(exec, run, i, wait, err);
        }
        if (status != DP_OK) {
            return status;
        }
    }
    return DP_OK;
}

dp_status dp_exec_perform_all(struct dp_exec *exec, size_t at, int64_t *ret_filled_ns,
                              struct dp_error *err)
{
    struct run *run = &exec->runs[at];
    struct wait none = {0};
    *ret_filled_ns = 0;
    dp_status status = DP_OK;
    while (status == DP_OK && run->first < run->program->count) {
        const struct program_op *op = &run->program->ops[run->first];
        const struct part *part = op->backward ? &run->task.backward : &run->task.forward;
        size_t filler;
        size_t from;
        if (op->half == PROGRAM_WAIT && !exec->config.no_overlap &&
            !dp_chunk_ready(part->cell->chunk, (dp_pass)op->pass, op->component) &&
            dp_exec_find_filler(exec, at, true, &from, &filler)) {
            status = fill(exec, at, &exec->runs[from], filler, ret_filled_ns, err);
        } else {
            status = dp_exec_perform(exec, run, run->first, &none, err);
        }
    }
    return status;
}
