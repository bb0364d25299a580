#include <stdio.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "sim_world.h"

#define FOR_EACH_ASSIGNMENT(agent, a)                                                              \
    for (struct sim_assignment *a = (agent)->assignments; a < (agent)->assignments + SIM_JOBS_MAX; \
         a++)                                                                                      \
        if (a->used)

bool sim_rank_alive(const struct sim_rank *rank)
{
    return rank->phase >= DP_RANK_STARTING && rank->phase <= DP_RANK_RUNNING;
}

static void send_levels(struct sim *sim, struct sim_agent *agent, sim_message_kind kind)
{
    if (agent->session == 0 || (kind != SIM_HELLO && !agent->welcomed)) {
        return;
    }
    struct sim_message message = {.kind = kind,
                                  .session = agent->session,
                                  .agent = (int)(agent - sim->agents),
                                  .instance = agent->instance};
    message.sequence = kind == SIM_HEARTBEAT ? (uint64_t)sim->now_ns : 0;
    memcpy(message.levels, agent->assignments, sizeof(message.levels));
    sim_send(sim, &message);
}

void sim_agent_disconnect(struct sim *sim, struct sim_agent *agent)
{
    if (agent->session == 0) {
        return;
    }
    // What is on its way is lost, in both directions; the other end notices later.
    size_t kept = 0;
    for (size_t i = 0; i < sim->messages_count; i++) {
        if (sim->messages[i].session != agent->session) {
            sim->messages[kept++] = sim->messages[i];
        }
    }
    sim->messages_count = kept;
    struct sim_message closed = {
        .kind = SIM_CLOSED, .session = agent->session, .agent = (int)(agent - sim->agents)};
    sim_send(sim, &closed);
    agent->session = 0;
    agent->welcomed = false;
    agent->connect_ns = sim->now_ns + sim_between(sim, SIM_MS(100), SIM_MS(1500));
}

static void end_ranks(struct sim_agent *agent, int signal_number)
{
    FOR_EACH_ASSIGNMENT(agent, a)
    {
        for (uint32_t i = 0; i < a->ranks_count; i++) {
            if (!dp_rank_phase_ended(a->ranks[i].phase)) {
                a->ranks[i].phase = DP_RANK_DIED;
                a->ranks[i].signal = signal_number;
            }
        }
    }
}

void sim_agent_kill(struct sim *sim, struct sim_agent *agent, bool with_ranks)
{
    sim_agent_disconnect(sim, agent);
    agent->up = false;
    agent->up_ns = sim->now_ns + sim_between(sim, SIM_MS(200), SIM_MS(25000));
    agent->keeper_ns = sim->now_ns + SIM_MS(SIM_LEASE_MS);
    if (with_ranks) {
        end_ranks(agent, 9);
    }
}

static struct sim_assignment *find(struct sim_agent *agent, const struct dp_fence *fence)
{
    FOR_EACH_ASSIGNMENT(agent, a)
    {
        if (strcmp(a->fence.job, fence->job) == 0 && a->fence.epoch == fence->epoch) {
            return a;
        }
    }
    return NULL;
}

static void prepare(struct sim *sim, struct sim_agent *agent, const struct sim_message *message)
{
    struct sim_assignment *free_one = agent->assignments;
    while (free_one->used) {
        free_one++;
        DP_CHECK(free_one < agent->assignments + SIM_JOBS_MAX);
    }
    *free_one = (struct sim_assignment){
        .used = true, .fence = message->fence, .ranks_count = message->ranks_count};
    bool fails = sim->now_ns < sim->calm_ns && sim_chance(sim, 0.05);
    for (uint32_t i = 0; i < message->ranks_count; i++) {
        free_one->ranks[i] = (struct sim_rank){
            .rank = message->ranks[i],
            .phase = fails ? DP_RANK_UNKNOWN : DP_RANK_STARTING,
            .ready_ns = sim->now_ns + sim_between(sim, SIM_MS(20), SIM_MS(800)),
        };
    }
    if (fails) {
        snprintf(free_one->error, sizeof(free_one->error), "the corpus is not there");
    }
}

static void start(struct sim *sim, struct sim_assignment *a)
{
    // A job takes the same time on all its ranks.
    int64_t run_ns = SIM_MS(500 + (int64_t)(dp_hash64(a->fence.job, 6, sim->seed) % 25000));
    for (uint32_t i = 0; i < a->ranks_count; i++) {
        if (a->ranks[i].phase == DP_RANK_READY) {
            a->ranks[i].phase = DP_RANK_RUNNING;
            a->ranks[i].finish_ns = sim->now_ns + run_ns;
        }
    }
}

// Only an ended job is released, and only stored intent is told.
static void check_order(struct sim *sim, const struct sim_message *message)
{
    unsigned number = 0;
    if (message->fence.job[0] == '\0') {
        return;
    }
    DP_CHECK(sscanf(message->fence.job, "job-%u", &number) == 1 && number <= SIM_JOBS_MAX);
    const struct sim_row *row = &sim->rows[number];
    bool ended = row->used && dp_job_state_ended(row->job.state);
    if (message->order == DP_ORDER_RELEASE && !ended) {
        sim_fail(sim, "%s was released before its end was stored: it is %s", message->fence.job,
                 row->used ? dp_job_state_text(row->job.state) : "not there");
    }
    if (!row->used || row->job.epoch < message->fence.epoch) {
        sim_fail(sim, "%s was ordered before its assignment was stored", message->fence.job);
    }
}

static void release(const struct sim *sim, const struct sim_agent *agent, struct sim_assignment *a)
{
    for (uint32_t i = 0; a != NULL && i < a->ranks_count; i++) {
        if (sim_rank_alive(&a->ranks[i])) {
            sim_fail(sim, "%s was released on %s while rank %u ran", a->fence.job, agent->name,
                     a->ranks[i].rank);
        }
    }
    if (a != NULL) {
        a->used = false;
    }
}

void sim_agent_take(struct sim *sim, struct sim_agent *agent, const struct sim_message *message)
{
    check_order(sim, message);
    agent->heard_ns = sim->now_ns;
    struct sim_assignment *a = find(agent, &message->fence);
    switch (message->order) {
    case DP_ORDER_WELCOME:
        agent->welcomed = true;
        agent->acked_ns = agent->hello_ns;
        break;
    case DP_ORDER_REFUSE:
        agent->session = 0;
        agent->welcomed = false;
        agent->connect_ns = sim->now_ns + SIM_MS(500);
        break;
    case DP_ORDER_PREPARE:
        if (a == NULL) {
            prepare(sim, agent, message);
        }
        break;
    case DP_ORDER_START:
        if (a != NULL) {
            start(sim, a);
        }
        break;
    case DP_ORDER_STOP:
        if (a != NULL && a->stop_ns == 0) {
            a->stop_ns = sim->now_ns + sim_between(sim, 0, SIM_MS(SIM_GRACE_MS));
        }
        break;
    case DP_ORDER_RELEASE:
        release(sim, agent, a);
        break;
    case DP_ORDER_ACK:
        if (message->sequence != 0) {
            agent->acked_ns = (int64_t)message->sequence;
        }
        return;
    default:
        return;
    }
    send_levels(sim, agent, SIM_LEVEL);
}

// Whether some rank of this job has ended badly, anywhere.
static bool is_broken(struct sim *sim, const struct dp_fence *fence)
{
    for (int n = 0; n < sim->agents_count; n++) {
        FOR_EACH_ASSIGNMENT(&sim->agents[n], a)
        {
            for (uint32_t i = 0; strcmp(a->fence.job, fence->job) == 0 && i < a->ranks_count; i++) {
                const struct sim_rank *rank = &a->ranks[i];
                if (rank->phase == DP_RANK_DIED || (rank->phase == DP_RANK_FINISHED && !rank->ok)) {
                    return true;
                }
            }
        }
    }
    return false;
}

static bool step_rank(struct sim *sim, struct sim_assignment *a, struct sim_rank *rank)
{
    dp_rank_phase before = rank->phase;
    if (dp_rank_phase_ended(rank->phase)) {
        return false;
    }
    if (a->stop_ns != 0 && sim->now_ns >= a->stop_ns) {
        rank->phase = DP_RANK_DIED;
        rank->signal = 15;
        rank->stopped = true;
    } else if (rank->phase == DP_RANK_STARTING && sim->now_ns >= rank->ready_ns) {
        rank->phase = DP_RANK_READY;
    } else if (rank->phase == DP_RANK_RUNNING && is_broken(sim, &a->fence)) {
        // A peer is missed after a while.
        if (sim_chance(sim, 0.02)) {
            rank->phase = DP_RANK_FINISHED;
            rank->peer_lost = true;
        }
    } else if (rank->phase == DP_RANK_RUNNING && sim->now_ns >= rank->finish_ns) {
        rank->phase = DP_RANK_FINISHED;
        rank->ok = true;
    }
    return rank->phase != before;
}

static void step_ranks(struct sim *sim, struct sim_agent *agent)
{
    bool changed = false;
    FOR_EACH_ASSIGNMENT(agent, a)
    {
        for (uint32_t i = 0; i < a->ranks_count; i++) {
            changed = step_rank(sim, a, &a->ranks[i]) || changed;
        }
    }
    if (changed && agent->up) {
        send_levels(sim, agent, SIM_LEVEL);
    }
}

// Nobody acknowledges anything: the node ends its ranks itself.
static void step_orphan(struct sim *sim, struct sim_agent *agent)
{
    if (sim->now_ns - agent->acked_ns <= SIM_MS(SIM_ORPHAN_MS)) {
        return;
    }
    FOR_EACH_ASSIGNMENT(agent, a)
    {
        for (uint32_t i = 0; i < a->ranks_count && a->stop_ns == 0; i++) {
            if (sim_rank_alive(&a->ranks[i])) {
                a->stop_ns = sim->now_ns + sim_between(sim, 0, SIM_MS(SIM_GRACE_MS));
                snprintf(a->error, sizeof(a->error), "no controller for a long time");
            }
        }
    }
}

static void step_session(struct sim *sim, struct sim_agent *agent)
{
    bool reachable = sim->core != NULL && sim->now_ns >= agent->partition_ns;
    if (agent->session == 0 && reachable && sim->now_ns >= agent->connect_ns) {
        agent->session = ++sim->next_session;
        agent->heard_ns = agent->hello_ns = sim->now_ns;
        agent->heartbeat_ns = sim->now_ns + SIM_MS(1000);
        send_levels(sim, agent, SIM_HELLO);
    } else if (agent->session != 0 && sim->now_ns - agent->heard_ns > SIM_MS(SIM_LEASE_MS)) {
        sim_agent_disconnect(sim, agent);
    } else if (agent->session != 0 && sim->now_ns >= agent->heartbeat_ns) {
        agent->heartbeat_ns = sim->now_ns + SIM_MS(1000);
        send_levels(sim, agent, SIM_HEARTBEAT);
    }
}

static void step_agent(struct sim *sim, struct sim_agent *agent)
{
    if (agent->up) {
        step_session(sim, agent);
        step_orphan(sim, agent);
    } else if (sim->now_ns >= agent->up_ns) {
        agent->up = true;
        agent->instance++;
    } else if (sim->now_ns >= agent->keeper_ns) {
        end_ranks(agent, 9);
    }
    step_ranks(sim, agent);
}

void sim_step_agents(struct sim *sim)
{
    for (int n = 0; n < sim->agents_count; n++) {
        step_agent(sim, &sim->agents[n]);
    }
}
