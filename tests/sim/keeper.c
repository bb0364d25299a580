// Keepers, which hold a node's ranks of one assignment, and the sockets between them and agents.
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "sim.h"

#define END_GRACE_MS 2000
#define HURRY_MS 30
#define SIGKILL_NUMBER 9

struct sim_keeper *sim_keeper_find(struct sim_node *node, const struct dp_agent_fence *fence)
{
    struct sim_key key = sim_key_of(fence);
    for (struct sim_keeper *keeper = node->keepers; keeper != NULL; keeper = keeper->next) {
        if (keeper->key.job == key.job && keeper->key.attempt == key.attempt &&
            keeper->key.epoch == key.epoch) {
            return keeper;
        }
    }
    return NULL;
}

static void push_frame(struct sim *sim, struct sim_keeper *keeper, const struct sim_frame *frame,
                       uint64_t link, bool to_keeper)
{
    struct sim_frame *sent = dp_memdup(frame, sizeof(*frame));
    sent->link = link;
    sent->keeper = keeper;
    int64_t from_ns = !to_keeper && keeper->stall_ns > sim->now_ns ? keeper->stall_ns : sim->now_ns;
    int64_t at_ns = from_ns + sim_between(sim, 20, 2000) * 1000;
    int64_t *last_ns = &keeper->last_ns[to_keeper ? 0 : 1];
    *last_ns = at_ns = at_ns > *last_ns ? at_ns : *last_ns + 1;
    sim_push(sim, at_ns, to_keeper ? SIM_EV_TO_KEEPER : SIM_EV_FROM_KEEPER, keeper->node->index, 0,
             sent);
}

void sim_keeper_send(struct sim *sim, struct sim_keeper *keeper, const struct sim_frame *frame)
{
    if (keeper->agent_link != 0) {
        push_frame(sim, keeper, frame, keeper->agent_link, true);
    }
}

void sim_keeper_tell(struct sim *sim, struct sim_keeper *keeper, const struct sim_frame *frame)
{
    if (keeper->alive && keeper->link != 0) {
        push_frame(sim, keeper, frame, keeper->link, false);
    }
}

// The agent looks at it again soon.
static void look_soon(struct sim *sim, struct sim_keeper *keeper)
{
    sim_push(sim, sim->now_ns + sim_between(sim, SIM_MS(1), SIM_MS(HURRY_MS)), SIM_EV_KEEPER_TRY,
             keeper->node->index, keeper->node->life, keeper);
}

static void hold(struct sim *sim, struct sim_keeper *keeper)
{
    keeper->held = true;
    keeper->over = keeper->synced = keeper->was_synced = keeper->agent_released = false;
    keeper->agent_link = 0;
    look_soon(sim, keeper);
}

void sim_keeper_start(struct sim *sim, struct sim_node *node, const struct dp_agent_effect *effect)
{
    struct sim_keeper *keeper = sim_keeper_find(node, &effect->fence);
    if (keeper != NULL) {
        sim_push(sim, sim->now_ns, SIM_EV_KEEPER_FAILED, node->index, node->life, keeper);
        return;
    }
    keeper = dp_new(struct sim_keeper);
    keeper->node = node;
    keeper->fence = effect->fence;
    keeper->key = sim_key_of(&effect->fence);
    memcpy(&keeper->prepare, effect->bytes, sizeof(keeper->prepare));
    keeper->next = node->keepers;
    node->keepers = keeper;
    keeper->alive = keeper->is_child = true;
    keeper->quiet_ns = sim->now_ns;
    keeper->lease_ns = sim->now_ns + SIM_MS(sim->lease_ms);
    sim_push(sim, keeper->lease_ns, SIM_EV_KEEPER_LEASE, node->index, 0, keeper);
    hold(sim, keeper);
}

void sim_keeper_adopt(struct sim *sim, struct sim_keeper *keeper)
{
    hold(sim, keeper);
}

bool sim_keepers_settled(const struct sim_node *node)
{
    for (const struct sim_keeper *keeper = node->keepers; keeper != NULL; keeper = keeper->next) {
        if (keeper->held && !keeper->over && !keeper->synced) {
            return false;
        }
    }
    return true;
}

static void settle_session(struct sim *sim, struct sim_node *node)
{
    if (node->session == 0 && node->adopt_ns != 0) {
        sim_session_arm(sim, node);
    }
}

static void tell_agent(struct sim *sim, const struct sim_keeper *keeper, dp_agent_event_type type,
                       const char *text)
{
    struct dp_agent_event event = {
        .type = type,
        .fence = keeper->fence,
        .text = text,
        .signal = keeper->is_child && !keeper->levels_written ? SIGKILL_NUMBER : 0,
    };
    sim_agent_event(sim, keeper->node, &event);
}

static void give_frame(struct sim *sim, const struct sim_frame *frame)
{
    static const dp_agent_report kinds[SIM_REPORT_HELD + 1] = {
        [DP_REPORT_USAGE] = DP_AGENT_REPORT_SAMPLE,
        [DP_REPORT_PROBE] = DP_AGENT_REPORT_ONCE,
        [SIM_REPORT_HELD] = DP_AGENT_REPORT_HELD,
        [DP_REPORT_READY] = DP_AGENT_REPORT_READY,
        [DP_REPORT_STEP] = DP_AGENT_REPORT_STEP,
        [DP_REPORT_CHECKPOINT] = DP_AGENT_REPORT_CHECKPOINT,
        [DP_REPORT_FINISHED] = DP_AGENT_REPORT_FINISHED,
    };
    struct dp_agent_event event = {.fence = frame->keeper->fence, .rank = frame->rank};
    event.pid = frame->pid;
    event.stopped = frame->stop != SIM_STOP_NONE;
    event.by_keeper = frame->stop == SIM_STOP_KEEPER;
    if (frame->kind == SIM_FRAME_SPAWNED) {
        event.type = DP_AGENT_SPAWNED;
        event.started = frame->started;
    } else if (frame->kind == SIM_FRAME_EXITED) {
        event.type = DP_AGENT_EXITED;
        event.status = frame->status;
        event.signal = frame->signal;
        event.text = "";
    } else {
        event.type = DP_AGENT_REPORT;
        event.kind = kinds[frame->report.kind];
        event.step = frame->report.kind == DP_REPORT_READY ? 0 : frame->report.step;
        event.bytes = event.inner = event.kept = &frame->report;
        event.length = event.inner_length = event.kept_length = sizeof(frame->report);
    }
    sim_agent_event(sim, frame->keeper->node, &event);
}

// What a keeper knows of a rank, as its replay or the file that it left says it.
static size_t rank_frames(struct sim_keeper *keeper, const struct sim_process *process,
                          struct sim_frame frames[static 5])
{
    size_t count = 0;
    frames[count++] = sim_rank_spawned(process);
    if (process->ready) {
        frames[count] = (struct sim_frame){.kind = SIM_FRAME_REPORT, .rank = process->rank};
        frames[count++].report = (struct sim_report){.kind = DP_REPORT_READY,
                                                     .key = keeper->key,
                                                     .rank = process->rank,
                                                     .step = keeper->prepare.resume_step};
    }
    if (process->holds) {
        frames[count] = (struct sim_frame){.kind = SIM_FRAME_REPORT, .rank = process->rank};
        frames[count++].report = process->held;
    }
    if (process->finished) {
        frames[count] = (struct sim_frame){.kind = SIM_FRAME_REPORT, .rank = process->rank};
        frames[count++].report = process->last;
    }
    if (process->state == SIM_RANK_ENDED) {
        frames[count++] = sim_rank_exited(process);
    }
    return count;
}

static void replay_file(struct sim *sim, struct sim_keeper *keeper)
{
    struct sim_frame frames[5];
    for (struct sim_process *process = keeper->ranks; process != NULL; process = process->next) {
        size_t count = rank_frames(keeper, process, frames);
        for (size_t i = 0; i < count; i++) {
            frames[i].keeper = keeper;
            give_frame(sim, &frames[i]);
        }
    }
}

static void on_ended(struct sim *sim, struct sim_keeper *keeper)
{
    keeper->over = true;
    if (!keeper->agent_released) {
        if (keeper->levels_written) {
            replay_file(sim, keeper);
        }
        tell_agent(sim, keeper, DP_AGENT_KEEPER_ENDED, "");
    }
    settle_session(sim, keeper->node);
}

void sim_keeper_try(struct sim *sim, struct sim_keeper *keeper, uint64_t life)
{
    struct sim_node *node = keeper->node;
    if (node->core == NULL || node->life != life || !keeper->held || keeper->over ||
        keeper->agent_link != 0) {
        return;
    }
    if (!keeper->alive) {
        on_ended(sim, keeper);
        return;
    }
    keeper->agent_link = ++sim->links;
    keeper->synced = false;
    sim_keeper_send(sim, keeper, &(struct sim_frame){.kind = SIM_FRAME_HELLO});
    if (sim->now_ns < keeper->stall_ns) {
        sim_push(sim, sim->now_ns + SIM_MS(DP_AGENT_KEEPER_ANSWER_MS), SIM_EV_KEEPER_MISSED,
                 node->index, 0, keeper);
    }
}

// Whatever the agent had not read is lost.
void sim_keeper_lose(struct sim *sim, struct sim_keeper *keeper)
{
    if (keeper->agent_link == 0) {
        return;
    }
    sim_keeper_send(sim, keeper, &(struct sim_frame){.kind = SIM_FRAME_EOF});
    keeper->agent_link = 0;
    keeper->synced = false;
    if (!keeper->agent_released) {
        tell_agent(sim, keeper, DP_AGENT_KEEPER_LEFT, NULL);
    }
    look_soon(sim, keeper);
}

void sim_keeper_agent_gone(struct sim *sim, struct sim_keeper *keeper)
{
    if (keeper->agent_link != 0) {
        sim_keeper_send(sim, keeper, &(struct sim_frame){.kind = SIM_FRAME_EOF});
    }
    keeper->agent_link = 0;
    keeper->held = keeper->is_child = false;
}

void sim_keeper_missed(struct sim *sim, struct sim_keeper *keeper)
{
    struct sim_node *node = keeper->node;
    if (!keeper->alive || sim->now_ns >= keeper->stall_ns || node->core == NULL || !keeper->held ||
        keeper->over) {
        return;
    }
    sim_keeper_lose(sim, keeper);
    sim_push(sim, sim->now_ns + SIM_MS(DP_AGENT_KEEPER_ANSWER_MS), SIM_EV_KEEPER_MISSED,
             node->index, 0, keeper);
    if (keeper->agent_released) {
        sim_keeper_kill(sim, keeper);
    } else {
        tell_agent(sim, keeper, DP_AGENT_KEEPER_UNREACHABLE, "the keeper does not answer");
    }
}

void sim_keeper_stall(struct sim *sim, struct sim_keeper *keeper, int64_t for_ns)
{
    if (sim->now_ns < keeper->stall_ns) {
        return;
    }
    keeper->stall_ns = sim->now_ns + for_ns;
    sim_push(sim, sim->now_ns + SIM_MS(DP_AGENT_KEEPER_ANSWER_MS), SIM_EV_KEEPER_MISSED,
             keeper->node->index, 0, keeper);
}

// The agent sees the end of its socket, also of one that was not accepted yet.
static void vanish(struct sim *sim, struct sim_keeper *keeper)
{
    keeper->alive = false;
    keeper->stall_ns = 0;
    if (keeper->agent_link != 0) {
        push_frame(sim, keeper, &(struct sim_frame){.kind = SIM_FRAME_EOF}, keeper->agent_link,
                   false);
    }
}

// Its ranks go with it, by whatever it ended.
void sim_keeper_kill(struct sim *sim, struct sim_keeper *keeper)
{
    if (!keeper->alive) {
        return;
    }
    SIM_TRACE(sim, "the keeper of %s on %s is killed", keeper->fence.job, keeper->node->name);
    vanish(sim, keeper);
    for (struct sim_process *process = keeper->ranks; process != NULL; process = process->next) {
        sim_rank_end(sim, process, 0, SIGKILL_NUMBER);
    }
}

static bool any_alive(const struct sim_keeper *keeper)
{
    for (const struct sim_process *p = keeper->ranks; p != NULL; p = p->next) {
        if (sim_rank_alive(p)) {
            return true;
        }
    }
    return false;
}

void sim_keeper_check_end(struct sim *sim, struct sim_keeper *keeper)
{
    if (!keeper->alive || any_alive(keeper)) {
        return;
    }
    keeper->levels_written = keeper->ranks != NULL;
    if (keeper->ending) {
        vanish(sim, keeper);
    }
}

static void end(struct sim *sim, struct sim_keeper *keeper, uint32_t grace_ms, sim_stop who)
{
    keeper->ending = true;
    for (struct sim_process *process = keeper->ranks; process != NULL; process = process->next) {
        sim_rank_stop(sim, process, grace_ms, who);
    }
    sim_keeper_check_end(sim, keeper);
}

// Since when nobody renews the lease; 0 = somebody does.
static int64_t quiet_since(const struct sim *sim, const struct sim_keeper *keeper)
{
    const struct sim_node *node = keeper->node;
    if (keeper->link == 0) {
        return keeper->quiet_ns;
    }
    return node->core == NULL || sim->now_ns < node->stall_ns ? node->quiet_ns : 0;
}

void sim_keeper_lease(struct sim *sim, struct sim_keeper *keeper)
{
    if (!keeper->alive || keeper->ending) {
        return;
    }
    int64_t since_ns = quiet_since(sim, keeper);
    int64_t lease_ns = SIM_MS(sim->lease_ms);
    keeper->lease_ns = since_ns == 0 ? sim->now_ns + lease_ns : since_ns + lease_ns;
    if (sim->now_ns >= keeper->lease_ns) {
        SIM_TRACE(sim, "the lease of %s on %s lapses", keeper->fence.job, keeper->node->name);
        end(sim, keeper, END_GRACE_MS, SIM_STOP_KEEPER);
        return;
    }
    sim_push(sim, keeper->lease_ns, SIM_EV_KEEPER_LEASE, keeper->node->index, 0, keeper);
}

static void take_hello(struct sim *sim, struct sim_keeper *keeper, uint64_t link)
{
    struct sim_frame frames[5];
    keeper->link = link;
    keeper->quiet_ns = 0;
    for (struct sim_process *process = keeper->ranks; process != NULL; process = process->next) {
        size_t count = rank_frames(keeper, process, frames);
        for (size_t i = 0; i < count; i++) {
            sim_keeper_tell(sim, keeper, &frames[i]);
        }
    }
    sim_keeper_tell(sim, keeper, &(struct sim_frame){.kind = SIM_FRAME_SYNCED});
}

static void take_stop(struct sim *sim, struct sim_keeper *keeper, const struct sim_frame *frame)
{
    for (struct sim_process *process = keeper->ranks; process != NULL; process = process->next) {
        if (frame->rank == DP_AGENT_ALL_RANKS || frame->rank == process->rank) {
            sim_rank_stop(sim, process, frame->grace_ms, SIM_STOP_ORDERED);
        }
    }
}

void sim_keeper_take(struct sim *sim, const struct sim_frame *frame)
{
    struct sim_keeper *keeper = frame->keeper;
    struct sim_process *process = sim_rank_find(keeper, frame->rank);
    if (!keeper->alive || (frame->kind != SIM_FRAME_HELLO && frame->link != keeper->link)) {
        return;
    }
    switch (frame->kind) {
    case SIM_FRAME_HELLO:
        take_hello(sim, keeper, frame->link);
        break;
    case SIM_FRAME_EOF:
        keeper->link = 0;
        keeper->quiet_ns = sim->now_ns;
        break;
    case SIM_FRAME_SPAWN:
        if (process == NULL && !keeper->ending) {
            sim_rank_spawn(sim, keeper, frame->rank);
        }
        break;
    case SIM_FRAME_ORDER:
        if (process != NULL) {
            sim_rank_order(sim, process, &frame->order);
        }
        break;
    case SIM_FRAME_STOP:
        take_stop(sim, keeper, frame);
        break;
    default: // SHUTDOWN
        end(sim, keeper, 0, SIM_STOP_ORDERED);
        break;
    }
}

void sim_agent_take_frame(struct sim *sim, const struct sim_frame *frame)
{
    struct sim_keeper *keeper = frame->keeper;
    if (keeper->node->core == NULL || keeper->agent_link == 0 ||
        frame->link != keeper->agent_link) {
        return;
    }
    if (frame->kind == SIM_FRAME_EOF) {
        sim_keeper_lose(sim, keeper);
    } else if (frame->kind == SIM_FRAME_SYNCED) {
        keeper->synced = keeper->was_synced = true;
        if (keeper->agent_released) {
            sim_keeper_send(sim, keeper, &(struct sim_frame){.kind = SIM_FRAME_SHUTDOWN});
        } else {
            tell_agent(sim, keeper, DP_AGENT_KEEPER_SYNCED, NULL);
        }
        settle_session(sim, keeper->node);
    } else if (!keeper->agent_released) {
        give_frame(sim, frame);
    }
}
