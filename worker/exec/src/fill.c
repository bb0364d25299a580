// What runs while an exchange or an input is on its way: ops that need neither a peer nor anything
// that is still missing. They are taken from the rest of the waiting action, from weight gradients
// that the schedule puts right behind it, and from the beginning of the action after those.
//
// Only the moment at which they run changes. A chunk's passes keep their order, and so do the
// weight gradients of a stage, which are sums: results are the same bit for bit. An exchange is
// begun early only when all before it have been, so peers, which need not fill alike, begin them in
// the same order.
#include "exec_internal.h"

// What a look through ops to come has found that must come before others.
struct ahead {
    uint64_t weights; // a bit for each slot with a weight gradient
    bool exchange;    // one that is not begun
};

static const struct part *part_of(const struct run *run, const struct program_op *op)
{
    return op->backward ? &run->task.backward : &run->task.forward;
}

// How far the op's pass has come is up to its chunk.
static bool is_next(const struct cell *cell, const struct program_op *op)
{
    if (cell->chunk == NULL || cell->next[op->pass] != op->component) {
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

static bool may_open(struct dp_exec *exec, const struct part *part, bool backward)
{
    const struct cell *cell = part->cell;
    if (backward ? !cell->is_forward_closed || cell->has_gradient : cell->chunk != NULL) {
        return false;
    }
    return dp_exec_message_is_here(exec, part, !backward);
}

// Components of several layers exchange inside themselves: they begin and they wait.
static bool exchanges_inside(const struct dp_exec *exec, const struct run *run,
                             const struct program_op *op)
{
    const struct slot *slot = &exec->slots[part_of(run, op)->slot];
    return op->half == PROGRAM_RUN && op->pass != DP_PASS_WEIGHT &&
           slot->components[op->component].kind == DP_COMPONENT_MTP;
}

static bool may_run(struct dp_exec *exec, const struct run *run, const struct program_op *op,
                    const struct ahead *ahead)
{
    const struct part *part = part_of(run, op);
    switch (op->half) {
    case PROGRAM_OPEN:
        return may_open(exec, part, op->backward);
    case PROGRAM_POST:
        return !ahead->exchange && is_next(part->cell, op);
    case PROGRAM_RUN:
        return (op->pass != DP_PASS_WEIGHT ||
                (ahead->weights & (UINT64_C(1) << part->slot)) == 0) &&
               !exchanges_inside(exec, run, op) && is_next(part->cell, op);
    default:
        return false;
    }
}

// What the chunk will take from here on to where it first has to wait; -1 = not known yet.
static int64_t needed_bytes(const struct dp_exec *exec, const struct part *part, bool backward)
{
    int64_t needed = exec->slots[part->slot].early_bytes[backward];
    bool has_opened = part->cell->chunk != NULL && (!backward || part->cell->has_gradient);
    if (needed >= 0 && has_opened) {
        needed -= dp_chunk_live_bytes(part->cell->chunk) - part->cell->open_bytes;
        needed = needed > 0 ? needed : 0;
    }
    return needed;
}

// What the waiting action will still add by its end, by what others like it have; -1 = not known.
static int64_t awaited_bytes(const struct dp_exec *exec, const struct task *waiting)
{
    const struct cell *forward = waiting->forward.cell, *backward = waiting->backward.cell;
    int64_t bytes = 0;
    if (forward != NULL) {
        int64_t full = exec->slots[waiting->forward.slot].full_bytes;
        if (full < 0) {
            return -1;
        }
        full -= forward->chunk != NULL ? dp_chunk_live_bytes(forward->chunk) : 0;
        bytes += full > 0 ? full : 0;
    }
    if (backward != NULL && waiting->backward_passes == PROGRAM_INPUT) {
        int64_t added = exec->slots[waiting->backward.slot].input_bytes;
        if (added < 0) {
            return -1;
        }
        added -= backward->has_gradient
                     ? dp_chunk_live_bytes(backward->chunk) - backward->open_bytes
                     : 0;
        bytes += added > 0 ? added : 0;
    }
    return bytes;
}

// The most that ops of the run will have in use, beyond what was before it: those that are not
// done, or (to_wait) those among them that come before the next WAIT; -1 = not known yet.
static int64_t most_of(const struct run *run, bool to_wait)
{
    const struct program *program = run->program;
    int64_t most = 0;
    for (size_t i = run->first; i < program->count; i++) {
        if (run->done[i]) {
            continue;
        }
        if (to_wait && program->ops[i].half == PROGRAM_WAIT) {
            break;
        }
        if (program->most[i] < 0) {
            return -1;
        }
        most = program->most[i] > most ? program->most[i] : most;
    }
    return most;
}

// Whether the device holds no more than before when the run goes on to its next WAIT and keeps what
// it has then until the action whose turn it is has come through its fullest moment.
static bool fits(const struct dp_exec *exec, const struct run *run)
{
    const struct run *waiting = &exec->runs[exec->turn];
    int64_t rest = most_of(waiting, false), more = most_of(run, true);
    int64_t bytes = exec->base_bytes - waiting->taken_bytes + exec->others_bytes + rest + more -
                    run->taken_bytes;
    return rest >= 0 && more >= 0 && bytes <= exec->most_bytes;
}

// Work of another action must not take more memory than the rank has come to need anyway, at ends
// of actions and while passes run.
static bool has_room(const struct dp_exec *exec, const struct task *waiting, const struct run *run,
                     const struct program_op *op)
{
    if (&run->task == waiting || op->pass == DP_PASS_WEIGHT) {
        return true;
    }
    int64_t needed = needed_bytes(exec, part_of(run, op), op->backward);
    int64_t awaited = awaited_bytes(exec, waiting);
    int64_t bytes = (int64_t)dp_exec_bytes_now(exec, waiting) + needed + awaited;
    return needed >= 0 && awaited >= 0 && bytes <= (int64_t)exec->levels.peak_bytes &&
           fits(exec, run);
}

static void leave(const struct dp_exec *exec, const struct run *run, const struct program_op *op,
                  struct ahead *ahead)
{
    if (op->pass == DP_PASS_WEIGHT) {
        ahead->weights |= UINT64_C(1) << part_of(run, op)->slot;
    }
    ahead->exchange |= op->half == PROGRAM_POST || exchanges_inside(exec, run, op);
}

static bool find_in(struct dp_exec *exec, const struct task *waiting, const struct run *run,
                    struct ahead *ahead, size_t *ret_op)
{
    for (size_t i = run->first; i < run->program->count; i++) {
        const struct program_op *op = &run->program->ops[i];
        if (run->done[i]) {
            continue;
        }
        if (may_run(exec, run, op, ahead) && has_room(exec, waiting, run, op)) {
            *ret_op = i;
            return true;
        }
        leave(exec, run, op, ahead);
    }
    return false;
}

// An action that has not begun keeps its ops, which come before all of later actions.
static void leave_all(const struct dp_exec *exec, const struct run *run, struct ahead *ahead)
{
    for (size_t i = run->first; i < run->program->count; i++) {
        if (!run->done[i]) {
            leave(exec, run, &run->program->ops[i], ahead);
        }
    }
}

bool dp_exec_find_filler(struct dp_exec *exec, size_t at, bool has_begun, size_t *ret_run,
                         size_t *ret_op)
{
    struct ahead ahead = {0};
    if (!has_begun) {
        leave_all(exec, &exec->runs[at], &ahead);
    }
    for (size_t i = has_begun ? at : at + 1; i < exec->run_count; i++) {
        if (find_in(exec, &exec->runs[at].task, &exec->runs[i], &ahead, ret_op)) {
            *ret_run = i;
            return true;
        }
        if (i > at && exec->runs[i].task.action->kind != DP_ACTION_W) {
            return false;
        }
    }
    return false;
}
