// What runs while an exchange is on its way: ops that need neither a peer nor anything that is
// still missing. They are taken from the rest of the waiting action, from weight gradients that the
// schedule puts right behind it, and from the beginning of the action after those.
//
// Only the moment at which they run changes. A chunk's passes keep their order, and so do the
// weight gradients of a stage, which are sums: results are the same bit for bit. No exchange is
// begun out of order, so peers need not fill alike.
#include "exec_internal.h"

static const struct part *part_of(const struct run *run, const struct program_op *op)
{
    return op->backward ? &run->task.backward : &run->task.forward;
}

static bool may_open(struct dp_exec *exec, const struct part *part, bool backward)
{
    const struct cell *cell = part->cell;
    if (backward ? !cell->is_forward_closed || cell->has_gradient : cell->chunk != NULL) {
        return false;
    }
    return dp_exec_message_is_here(exec, part, !backward);
}

static bool may_run(struct dp_exec *exec, const struct run *run, const struct program_op *op)
{
    const struct part *part = part_of(run, op);
    const struct cell *cell = part->cell;
    if (op->half == PROGRAM_OPEN) {
        return may_open(exec, part, op->backward);
    }
    if (op->half != PROGRAM_RUN || cell->chunk == NULL || cell->next[op->pass] != op->component) {
        return false;
    }
    switch (op->pass) {
    case DP_PASS_FORWARD:
        return cell->has_input;
    case DP_PASS_INPUT:
        return cell->has_gradient;
    default:
        return cell->next[DP_PASS_INPUT] < op->component;
    }
}

// Work of another action must not take more memory than the rank has come to need anyway, counting
// the waiting action's forward chunk as it will be.
static bool has_room(const struct dp_exec *exec, const struct task *waiting, const struct run *run,
                     const struct program_op *op)
{
    const struct part *part = part_of(run, op);
    if (&run->task == waiting || op->pass == DP_PASS_WEIGHT) {
        return true;
    }
    int64_t needed = exec->slots[part->slot].early_bytes[op->backward];
    int64_t bytes = (int64_t)dp_exec_bytes_now(exec, waiting) + needed;
    if (waiting->forward.cell != NULL) {
        int64_t left = exec->slots[waiting->forward.slot].full_bytes -
                       dp_chunk_live_bytes(waiting->forward.cell->chunk);
        bytes += left > 0 ? left : 0;
    }
    return needed >= 0 && bytes <= (int64_t)exec->levels.peak_bytes;
}

// `held` has a bit for each slot with a weight gradient that must come first.
static bool find_in(struct dp_exec *exec, const struct task *waiting, const struct run *run,
                    uint64_t *held, size_t *ret_op)
{
    for (size_t i = run->first; i < run->program->count; i++) {
        const struct program_op *op = &run->program->ops[i];
        if (run->done[i]) {
            continue;
        }
        uint64_t slot = UINT64_C(1) << part_of(run, op)->slot;
        bool is_weight = op->pass == DP_PASS_WEIGHT;
        if ((!is_weight || (*held & slot) == 0) && may_run(exec, run, op) &&
            has_room(exec, waiting, run, op)) {
            *ret_op = i;
            return true;
        }
        *held |= is_weight ? slot : 0;
    }
    return false;
}

bool dp_exec_find_filler(struct dp_exec *exec, size_t at, size_t *ret_run, size_t *ret_op)
{
    uint64_t held = 0;
    for (size_t i = at; i < exec->run_count; i++) {
        if (find_in(exec, &exec->runs[at].task, &exec->runs[i], &held, ret_op)) {
            *ret_run = i;
            return true;
        }
        if (i > at && exec->runs[i].task.action->kind != DP_ACTION_W) {
            return false;
        }
    }
    return false;
}
