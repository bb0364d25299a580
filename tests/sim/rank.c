// Ranks: processes that get ready, train in step with the others of their assignment, and end.
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "sim.h"

#define CONNECT_MS 5000 // a rank waits so long for its peers to begin

struct sim_process *sim_rank_find(const struct sim_keeper *keeper, uint32_t rank)
{
    for (struct sim_process *process = keeper->ranks; process != NULL; process = process->next) {
        if (process->rank == rank) {
            return process;
        }
    }
    return NULL;
}

bool sim_rank_alive(const struct sim_process *process)
{
    return process->state != SIM_RANK_ENDED;
}

struct sim_frame sim_rank_spawned(const struct sim_process *process)
{
    return (struct sim_frame){.kind = SIM_FRAME_SPAWNED,
                              .rank = process->rank,
                              .pid = process->pid,
                              .started = process->started,
                              .stop = process->stop};
}

struct sim_frame sim_rank_exited(const struct sim_process *process)
{
    return (struct sim_frame){.kind = SIM_FRAME_EXITED,
                              .rank = process->rank,
                              .pid = process->pid,
                              .stop = process->stop,
                              .status = process->status,
                              .signal = process->signal};
}

static void move_later(struct sim *sim, struct sim_process *process, int64_t low_ms,
                       int64_t high_ms)
{
    process->next_ns = sim->now_ns + sim_between(sim, SIM_MS(low_ms), SIM_MS(high_ms));
    sim_push(sim, process->next_ns, SIM_EV_RANK, process->node, ++process->number, process);
}

static void report(struct sim *sim, struct sim_process *process, struct sim_report *report)
{
    report->key = process->keeper->key;
    report->rank = process->rank;
    report->world = process->run->world;
    report->slow = sim_more_is_slow(sim, process);
    struct sim_frame frame = {.kind = SIM_FRAME_REPORT, .rank = process->rank, .report = *report};
    sim_keeper_tell(sim, process->keeper, &frame);
}

static struct sim_run *run_of(struct sim *sim, const struct sim_keeper *keeper)
{
    struct sim_job *job = &sim->jobs[keeper->key.job];
    for (struct sim_run *run = job->runs; run != NULL; run = run->next) {
        if (run->key.attempt == keeper->key.attempt && run->key.epoch == keeper->key.epoch) {
            return run;
        }
    }
    struct sim_run *run = dp_new(struct sim_run);
    run->key = keeper->key;
    run->world = keeper->prepare.world;
    run->step = run->first_step = keeper->prepare.resume_step;
    run->next = job->runs;
    job->runs = run;
    return run;
}

void sim_rank_spawn(struct sim *sim, struct sim_keeper *keeper, uint32_t rank)
{
    struct sim_process *process = dp_new(struct sim_process);
    process->pid = (int64_t)++sim->pids;
    process->keeper = keeper;
    process->node = keeper->node->index;
    process->rank = rank;
    for (uint32_t i = 0; i < keeper->prepare.count; i++) {
        if (keeper->prepare.numbers[i] == rank) {
            process->slot = keeper->prepare.slots[i];
        }
    }
    process->run = run_of(sim, keeper);
    process->step = keeper->prepare.resume_step;
    process->next = keeper->ranks;
    keeper->ranks = process;
    sim_check_slot(sim, process);
    keeper->node->users[process->slot]++;
    keeper->node->owner[process->slot] = keeper->key.job;
    process->run->ranks[rank] = process;
    SIM_TRACE(sim, "rank %u of %s.%u.%u starts on %s", rank, keeper->fence.job,
              keeper->fence.attempt, keeper->fence.epoch, keeper->node->name);
    struct sim_frame frame = sim_rank_spawned(process);
    sim_keeper_tell(sim, keeper, &frame);
    move_later(sim, process, 20, 800);
}

static void push_step(struct sim *sim, struct sim_run *run)
{
    int64_t step_ns = sim->jobs[run->key.job].step_ns;
    run->stepping = true;
    sim_push(sim, sim->now_ns + step_ns + sim_between(sim, 0, step_ns / 8), SIM_EV_STEP, 0, 0, run);
}

// It does not train any more, whatever else it does.
static void leave_run(struct sim *sim, struct sim_process *process)
{
    struct sim_run *run = process->run;
    if (process->state == SIM_RANK_TRAINING) {
        run->training--;
        sim->jobs[run->key.job].trains[process->rank] = NULL;
    }
}

static void train(struct sim *sim, struct sim_process *process)
{
    struct sim_run *run = process->run;
    process->state = SIM_RANK_TRAINING;
    sim_check_training(sim, process);
    sim->jobs[run->key.job].trains[process->rank] = process;
    run->training++;
    if (run->broken) {
        move_later(sim, process, 50, 1500);
    } else if (run->training < run->world) {
        move_later(sim, process, CONNECT_MS, 2 * CONNECT_MS);
    } else if (!run->stepping) {
        push_step(sim, run);
    }
}

static void begin(struct sim *sim, struct sim_process *process)
{
    if (process->keeper->prepare.beside) {
        process->state = SIM_RANK_TAKING;
        move_later(sim, process, 20, 900);
    } else {
        train(sim, process);
    }
}

static void say_last(struct sim *sim, struct sim_process *process, bool ok, bool peer_lost)
{
    leave_run(sim, process);
    process->state = SIM_RANK_ENDING;
    process->finished = true;
    process->last = (struct sim_report){
        .kind = DP_REPORT_FINISHED, .step = process->step, .ok = ok, .peer_lost = peer_lost};
    report(sim, process, &process->last);
    move_later(sim, process, 1, 60);
}

static void hold(struct sim *sim, struct sim_process *process, bool peer_lost)
{
    SIM_TRACE(sim, "rank %u of job-%u holds step %llu%s", process->rank, process->keeper->key.job,
              (unsigned long long)process->step, peer_lost ? ": a peer is gone" : "");
    leave_run(sim, process);
    process->state = SIM_RANK_HELD;
    process->holds = true;
    process->held_ns = sim->now_ns;
    bool ahead = process->step > process->run->step;
    process->held = (struct sim_report){.kind = SIM_REPORT_HELD,
                                        .step = process->step,
                                        .peer_lost = peer_lost,
                                        .norm_known = ahead || !process->run->ahead,
                                        .gradients_whole = !ahead};
    report(sim, process, &process->held);
    if (process->run->stops) {
        say_last(sim, process, true, false); // it was told before it held
    }
}

static void settle(struct sim *sim, struct sim_process *process, uint64_t step)
{
    if (process->state == SIM_RANK_HELD) {
        if (process->held.step + 1 == step && process->held.gradients_whole) {
            process->step = process->held.step = step;
            process->held.gradients_whole = false;
            process->held.norm_known = true;
        }
        report(sim, process, &process->held);
    }
}

// Its state, from whoever holds it: each part of the model must be there at the right step.
static bool take(const struct sim *sim, const struct sim_process *process)
{
    const struct sim_run *old = sim->jobs[process->keeper->key.job].runs;
    while (old != NULL && (old->key.attempt != process->keeper->key.attempt ||
                           old->key.epoch != process->start.source_epoch)) {
        old = old->next;
    }
    uint32_t parts = old == NULL ? 1 : sim_parts(old->world);
    for (uint32_t part = 0; part < parts; part++) {
        bool found = false;
        for (uint32_t rank = part; old != NULL && rank < old->world; rank += parts) {
            const struct sim_process *source = old->ranks[rank];
            found = found ||
                    ((process->start.sources >> rank & 1) != 0 && source != NULL &&
                     source->state == SIM_RANK_HELD && source->held.step == process->start.step);
        }
        if (!found) {
            return false;
        }
    }
    return true;
}

static void take_state(struct sim *sim, struct sim_process *process)
{
    if (!take(sim, process)) {
        sim_rank_fail(sim, process, true);
        return;
    }
    process->step = process->start.step;
    process->run->step = process->run->first_step = process->start.step;
    struct sim_report usage = {.kind = DP_REPORT_USAGE, .step = process->step};
    report(sim, process, &usage);
    train(sim, process);
}

static void take_order(struct sim *sim, struct sim_process *process,
                       const struct sim_rank_order *order)
{
    struct sim_run *run = process->run;
    switch (order->kind) {
    case DP_ORDER_CHECKPOINT:
        run->checkpoint = order->request > run->checkpoint ? order->request : run->checkpoint;
        break;
    case DP_ORDER_PAUSE:
        run->pauses = true;
        break;
    case DP_ORDER_STOP:
        run->stops = true;
        if (process->state == SIM_RANK_HELD) {
            say_last(sim, process, true, false);
        }
        break;
    case DP_ORDER_SETTLE:
        settle(sim, process, order->step);
        break;
    case DP_ORDER_PROBE:
        if (process->state == SIM_RANK_TRAINING) {
            struct sim_report probed = {.kind = DP_REPORT_PROBE, .request = order->request};
            report(sim, process, &probed);
        }
        break;
    case DP_ORDER_REBALANCE:
        run->rebalance = process->rank == 0 ? order->request : run->rebalance;
        break;
    default:
        break;
    }
}

void sim_rank_order(struct sim *sim, struct sim_process *process,
                    const struct sim_rank_order *order)
{
    if (process->state == SIM_RANK_ENDED) {
        return;
    }
    if (order->kind != DP_ORDER_START) {
        take_order(sim, process, order);
        return;
    }
    if (process->started) {
        return;
    }
    process->started = true;
    process->start = *order;
    struct sim_frame frame = sim_rank_spawned(process);
    sim_keeper_tell(sim, process->keeper, &frame);
    if (process->state == SIM_RANK_READY) {
        begin(sim, process);
    }
}

void sim_rank_stop(struct sim *sim, struct sim_process *process, uint32_t grace_ms, sim_stop who)
{
    if (!sim_rank_alive(process)) {
        return;
    }
    process->stop = process->stop == SIM_STOP_NONE ? who : process->stop;
    int64_t kill_ns = sim->now_ns + SIM_MS(grace_ms);
    if (process->kill_ns == 0 || kill_ns < process->kill_ns) {
        process->kill_ns = kill_ns;
        // Most hear the polite word, some must be killed.
        bool deaf = sim_chance(sim, 100);
        move_later(sim, process, deaf ? grace_ms : 0, grace_ms);
    }
}

void sim_run_break(struct sim *sim, struct sim_run *run)
{
    if (run->broken) {
        return;
    }
    run->broken = true;
    // Some may have completed the step at which the others miss a peer.
    bool whole = run->stepping && run->training == run->world;
    run->ahead = whole && run->step + 1 < sim->jobs[run->key.job].steps && sim_chance(sim, 400);
    for (uint32_t i = 0; i < run->world; i++) {
        struct sim_process *process = run->ranks[i];
        if (process == NULL || process->state != SIM_RANK_TRAINING) {
            continue;
        }
        if (run->ahead && sim_chance(sim, 500)) {
            process->step = run->step + 1;
            struct sim_report step = {.kind = DP_REPORT_STEP, .step = process->step};
            report(sim, process, &step);
        }
        if (process->stop == SIM_STOP_NONE) {
            move_later(sim, process, 50, 1500);
        }
    }
}

void sim_rank_end(struct sim *sim, struct sim_process *process, int32_t status, int32_t signal)
{
    if (!sim_rank_alive(process)) {
        return;
    }
    bool early = process->state <= SIM_RANK_TRAINING;
    if (early) {
        sim_run_break(sim, process->run);
    }
    leave_run(sim, process);
    process->state = SIM_RANK_ENDED;
    process->number++;
    process->status = status;
    process->signal = signal;
    process->keeper->node->users[process->slot]--;
    SIM_TRACE(sim, "rank %u of job-%u ends on n%u: status %d, signal %d", process->rank,
              process->keeper->key.job, process->node, status, signal);
    struct sim_frame frame = sim_rank_exited(process);
    sim_keeper_tell(sim, process->keeper, &frame);
    sim_keeper_check_end(sim, process->keeper);
}

void sim_rank_fail(struct sim *sim, struct sim_process *process, bool peer_lost)
{
    SIM_TRACE(sim, "rank %u of job-%u fails%s", process->rank, process->keeper->key.job,
              peer_lost ? ": it misses a peer" : "");
    sim_run_break(sim, process->run);
    say_last(sim, process, false, peer_lost);
}

static void get_ready(struct sim *sim, struct sim_process *process)
{
    process->state = SIM_RANK_READY;
    process->ready = true;
    struct sim_report ready = {.kind = DP_REPORT_READY,
                               .step = process->keeper->prepare.resume_step};
    report(sim, process, &ready);
    if (process->started) {
        begin(sim, process);
    }
}

static void miss_peers(struct sim *sim, struct sim_process *process)
{
    struct sim_run *run = process->run;
    if (!run->broken && run->training == run->world) {
        return;
    }
    bool began = run->step > run->first_step || process->keeper->prepare.beside;
    if (began && sim->jobs[run->key.job].recovery == DP_JOB_RECOVERY_AUTO) {
        sim_run_break(sim, run);
        hold(sim, process, true);
    } else {
        sim_rank_fail(sim, process, true);
    }
}

void sim_rank_moves(struct sim *sim, struct sim_process *process, uint64_t number)
{
    if (number != process->number || !sim_rank_alive(process)) {
        return;
    }
    if (process->stop != SIM_STOP_NONE) {
        sim_rank_end(sim, process, 0, sim->now_ns >= process->kill_ns ? 9 : 15);
    } else if (process->state == SIM_RANK_STARTING) {
        get_ready(sim, process);
    } else if (process->state == SIM_RANK_TAKING) {
        take_state(sim, process);
    } else if (process->state == SIM_RANK_TRAINING) {
        miss_peers(sim, process);
    } else if (process->state == SIM_RANK_ENDING) {
        sim_rank_end(sim, process, process->last.ok ? 0 : 1, 0);
    }
}

static void write_checkpoint(struct sim *sim, struct sim_run *run)
{
    const struct sim_job *job = &sim->jobs[run->key.job];
    bool due = job->checkpoint_every > 0 && run->step % job->checkpoint_every == 0;
    if (!due && run->checkpoint == 0) {
        return;
    }
    struct sim_report checkpoint = {
        .kind = DP_REPORT_CHECKPOINT, .step = run->step, .request = run->checkpoint};
    run->checkpoint = 0;
    report(sim, run->ranks[0], &checkpoint);
}

void sim_run_step(struct sim *sim, struct sim_run *run)
{
    run->stepping = false;
    if (run->broken || run->training < run->world) {
        return;
    }
    run->step++;
    for (uint32_t i = 0; i < run->world; i++) {
        struct sim_process *process = run->ranks[i];
        process->step = run->step;
        struct sim_report step = {.kind = DP_REPORT_STEP,
                                  .step = run->step,
                                  .request = run->rebalance,
                                  .rebalanced = i == 0 && run->rebalance != 0};
        report(sim, process, &step);
    }
    run->rebalance = 0;
    bool last = run->step >= sim->jobs[run->key.job].steps || run->stops;
    run->checkpoint = run->stops && run->checkpoint == 0 ? 1 : run->checkpoint;
    write_checkpoint(sim, run);
    if (!last && !run->pauses) {
        push_step(sim, run);
        return;
    }
    for (uint32_t i = 0; i < run->world; i++) {
        if (run->ranks[i]->state == SIM_RANK_TRAINING && last) {
            say_last(sim, run->ranks[i], true, false);
        } else if (run->ranks[i]->state == SIM_RANK_TRAINING) {
            hold(sim, run->ranks[i], false);
        }
    }
}
