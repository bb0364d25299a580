// The rank's list of actions, with what each of them runs.
#include <stdlib.h>

#include "dp/alloc.h"
#include "exec_internal.h"

static struct part part_of(struct dp_exec *exec, uint16_t stage, uint32_t microbatch)
{
    struct part part = {.stage = stage, .microbatch = microbatch};
    while (exec->slots[part.slot].index != stage) {
        part.slot++;
    }
    part.cell =
        &exec->cells[(size_t)part.slot * (size_t)exec->config.schedule->microbatches + microbatch];
    return part;
}

static int passes_of(uint8_t kind)
{
    switch (kind) {
    case DP_ACTION_B:
        return PROGRAM_INPUT | PROGRAM_WEIGHT;
    case DP_ACTION_I:
        return PROGRAM_INPUT;
    case DP_ACTION_W:
        return PROGRAM_WEIGHT;
    default:
        return 0;
    }
}

static struct task task_of(struct dp_exec *exec, const struct dp_action *action)
{
    struct task task = {.action = action};
    if (action->kind == DP_ACTION_F || action->kind == DP_ACTION_FB) {
        task.forward = part_of(exec, action->stage, action->microbatch);
    }
    if (action->kind == DP_ACTION_FB) {
        task.backward = part_of(exec, action->b_stage, action->b_microbatch);
        task.backward_passes = passes_of(action->b_kind);
    } else if (action->kind != DP_ACTION_F) {
        task.backward = part_of(exec, action->stage, action->microbatch);
        task.backward_passes = passes_of(action->kind);
    }
    return task;
}

static void build(struct dp_exec *exec, const struct task *task, struct program *program)
{
    const struct program_stage *forward =
        task->forward.cell == NULL ? NULL : &exec->slots[task->forward.slot].program;
    const struct program_stage *backward =
        task->backward.cell == NULL ? NULL : &exec->slots[task->backward.slot].program;
    if (exec->config.no_overlap) {
        dp_exec_program_build_sequential(program, forward, backward, task->backward_passes);
    } else {
        dp_exec_program_build(program, forward, backward, task->backward_passes);
    }
}

// Actions of the same passes on the same slots share a program.
static size_t program_index(const struct dp_exec *exec, const struct task *task)
{
    size_t slots = (size_t)exec->slot_count + 1;
    size_t forward = task->forward.cell == NULL ? 0 : (size_t)task->forward.slot + 1;
    size_t backward = task->backward.cell == NULL ? 0 : (size_t)task->backward.slot + 1;
    return (forward * slots + backward) * 4 + (size_t)task->backward_passes;
}

static void give_program(struct dp_exec *exec, struct run *run)
{
    struct program *program = &exec->programs[program_index(exec, &run->task)];
    if (program->count == 0) {
        build(exec, &run->task, program);
        program->most = dp_new_array(int64_t, program->count);
        for (size_t i = 0; i < program->count; i++) {
            program->most[i] = -1;
        }
    }
    run->program = program;
}

void dp_exec_list_make(struct dp_exec *exec)
{
    const struct dp_schedule *schedule = exec->config.schedule;
    size_t begin = schedule->rank_begin[exec->config.position];
    size_t slots = (size_t)exec->slot_count + 1;
    exec->run_count = schedule->rank_begin[exec->config.position + 1] - begin;
    exec->runs = dp_new_array(struct run, exec->run_count);
    exec->program_count = slots * slots * 4;
    exec->programs = dp_new_array(struct program, exec->program_count);
    size_t ops = 0;
    for (size_t i = 0; i < exec->run_count; i++) {
        exec->runs[i].task = task_of(exec, &schedule->actions[begin + i]);
        if (exec->config.device != NULL) {
            give_program(exec, &exec->runs[i]);
            ops += exec->runs[i].program->count;
        }
    }
    exec->done_count = ops;
    exec->done = dp_new_array(bool, ops);
    bool *done = exec->done;
    for (size_t i = 0; i < exec->run_count && ops > 0; i++) {
        exec->runs[i].done = done;
        done += exec->runs[i].program->count;
    }
}

void dp_exec_list_free(struct dp_exec *exec)
{
    for (size_t i = 0; i < exec->program_count; i++) {
        dp_exec_program_deinit(&exec->programs[i]);
    }
    free(exec->programs);
    free(exec->runs);
    free(exec->done);
}

void dp_exec_list_reset(struct dp_exec *exec)
{
    for (size_t i = 0; i < exec->done_count; i++) {
        exec->done[i] = false;
    }
    for (size_t i = 0; i < exec->run_count; i++) {
        exec->runs[i].first = 0;
        exec->runs[i].early_ns = 0;
        exec->runs[i].taken_bytes = 0;
    }
}
