// What breaks: a list that is drawn before the world begins, so that each can be left out alone.
#include <stdlib.h>
#include <string.h>

#include "sim.h"

static const char *const texts[SIM_FAULT_KIND_COUNT] = {
    [SIM_FAULT_CONTROLLER_CRASH] = "the controller is killed",
    [SIM_FAULT_CONTROLLER_POWER] = "the controller's machine loses power",
    [SIM_FAULT_CONTROLLER_STALL] = "the controller stands still",
    [SIM_FAULT_DISK_SLOW] = "the controller's disk is slow",
    [SIM_FAULT_DISK_FAILS] = "the controller's disk fails",
    [SIM_FAULT_WALL_JUMP] = "the controller's wall clock jumps",
    [SIM_FAULT_AGENT_CRASH] = "an agent is killed",
    [SIM_FAULT_AGENT_STALL] = "an agent stands still",
    [SIM_FAULT_NODE_POWER] = "a node loses power",
    [SIM_FAULT_CONNECTION] = "a connection breaks",
    [SIM_FAULT_PARTITION] = "a node is cut off",
    [SIM_FAULT_SLOW_NETWORK] = "a node's network is slow",
    [SIM_FAULT_LOSSY_NETWORK] = "a node's network loses, doubles and reorders",
    [SIM_FAULT_KEEPER_KILL] = "a keeper is killed",
    [SIM_FAULT_KEEPER_STALL] = "a keeper stands still",
    [SIM_FAULT_LINK] = "an agent loses a keeper",
    [SIM_FAULT_RANK_KILL] = "a rank is killed",
    [SIM_FAULT_RANK_FAILS] = "a rank fails",
    [SIM_FAULT_DATA_LINK] = "ranks lose each other",
    [SIM_FAULT_PLAN_FAILS] = "a plan fails",
    [SIM_FAULT_SUBMITS] = "a burst of submissions",
    [SIM_FAULT_CANCELS] = "a burst of cancellations",
    [SIM_FAULT_REASSIGNS] = "other layouts are wanted",
    [SIM_FAULT_DRAINS] = "something is decided about a node",
    [SIM_FAULT_QUOTAS] = "a quota is changed",
    [SIM_FAULT_FORGET] = "a node is away and forgotten",
};

const char *sim_fault_text(sim_fault_kind kind)
{
    return texts[kind];
}

void sim_fault_describe(const struct sim *sim, uint32_t number, char *ret_text, size_t size)
{
    static const char *const triggers[] = {"", "order", "transaction", "move", "note"};
    const struct sim_fault *fault = &sim->faults[number];
    if (fault->trigger == SIM_AT_TIME) {
        snprintf(ret_text, size, "%u: %s (n%u) at %.2f s for %.2f s", number, texts[fault->kind],
                 fault->node, (double)fault->at_ns / 1e9, (double)fault->for_ns / 1e9);
    } else {
        snprintf(ret_text, size, "%u: %s (n%u) at %s %s for %.2f s", number, texts[fault->kind],
                 fault->node, triggers[fault->trigger],
                 fault->trigger == SIM_AT_ORDER  ? dp_order_kind_text(fault->which)
                 : fault->trigger == SIM_AT_MOVE ? dp_job_state_text(fault->which)
                 : fault->trigger == SIM_AT_NOTE ? sim_note_text(fault->which)
                                                 : "",
                 (double)fault->for_ns / 1e9);
    }
}

static void draw(struct sim *sim, struct sim_fault *fault, int64_t until_ns)
{
    static const dp_job_state moves[] = {DP_STATE_QUEUED,  DP_STATE_PLANNED,   DP_STATE_ASSIGNING,
                                         DP_STATE_RUNNING, DP_STATE_STOPPING,  DP_STATE_LOST,
                                         DP_STATE_FAILED,  DP_STATE_COMPLETED, DP_STATE_CANCELLED};
    *fault = (struct sim_fault){
        .kind = (sim_fault_kind)sim_between(sim, 0, SIM_FAULT_FIRST_COUNT - 1),
        .at_ns = sim_between(sim, SIM_MS(500), until_ns),
        .node = (uint32_t)sim_between(sim, 0, sim->nodes_count - 1),
        .detail = (uint32_t)sim_between(sim, 0, 1 << 20),
    };
    // Short ones more often than those that outlast leases.
    int64_t most_ms = sim_chance(sim, 650) ? 3000 : 40000;
    fault->for_ns = sim_between(sim, SIM_MS(20), SIM_MS(most_ms));
    if (fault->kind == SIM_FAULT_PARTITION && sim_chance(sim, 300)) {
        fault->for_ns = sim_between(sim, SIM_MS(30000), SIM_MS(80000)); // beyond the fence
    }
    uint32_t how = (uint32_t)sim_between(sim, 0, 99);
    if (how < 15) {
        fault->trigger = SIM_AT_ORDER;
        fault->which = (uint32_t)sim_between(sim, DP_ORDER_WELCOME, DP_ORDER_RELEASE);
        fault->count = (uint32_t)sim_between(sim, 0, 5);
    } else if (how < 30) {
        fault->trigger = SIM_AT_STORE;
        fault->count = (uint32_t)sim_between(sim, 3, 120);
    } else if (how < 50) {
        fault->trigger = SIM_AT_MOVE;
        fault->which = moves[sim_between(sim, 0, 8)];
        fault->count = (uint32_t)sim_between(sim, 0, 5);
    }
}

void sim_faults_init(struct sim *sim)
{
    sim_push(sim, sim->calm_ns - 1, SIM_EV_FAULT, SIM_FAULTS_MAX, 0, NULL);
    sim->faults_count = (uint32_t)sim_between(sim, 5, 18);
    for (uint32_t i = 0; i < sim->faults_count; i++) {
        draw(sim, &sim->faults[i], sim->calm_ns);
        bool masked = (sim->faults_masked >> i & 1) != 0;
        sim->faults[i].fired = masked;
        if (sim->faults[i].trigger == SIM_AT_TIME && !masked) {
            sim_push(sim, sim->faults[i].at_ns, SIM_EV_FAULT, i, 0, NULL);
        }
    }
}

// They happen right after the event that they wait for.
void sim_faults_trigger(struct sim *sim, sim_trigger trigger, uint32_t which, uint64_t job,
                        uint32_t node)
{
    for (uint32_t i = 0; i < sim->faults_count && !sim_is_calm(sim); i++) {
        struct sim_fault *fault = &sim->faults[i];
        bool meant = !fault->same_job || fault->job == 0 || fault->job == job;
        if (!fault->fired && fault->trigger == trigger && fault->which == which && meant &&
            fault->count-- == 0) {
            fault->job = fault->aimed ? job : 0;
            fault->node = fault->aimed && node < sim->nodes_count ? node : fault->node;
            sim_push(sim, sim->now_ns + fault->after_ns, SIM_EV_FAULT, i, 0, NULL);
        }
    }
}

// A process of the job (0 = any) that lives, somewhere; NULL when there is none.
static struct sim_process *some_process(struct sim *sim, uint32_t detail, uint64_t job)
{
    struct sim_process *found[64];
    uint32_t count = 0;
    for (uint32_t n = 0; n < sim->nodes_count; n++) {
        for (struct sim_keeper *k = sim->nodes[n].keepers; k != NULL; k = k->next) {
            for (struct sim_process *p = k->ranks; k->alive && p != NULL; p = p->next) {
                bool meant = job == 0 || k->key.job == job;
                if (meant && sim_rank_alive(p) && count < 64) {
                    found[count++] = p;
                }
            }
        }
    }
    return count == 0 ? NULL : found[detail % count];
}

static struct sim_keeper *some_keeper(struct sim *sim, uint32_t detail, uint64_t job)
{
    struct sim_keeper *found[64];
    uint32_t count = 0;
    for (uint32_t n = 0; n < sim->nodes_count; n++) {
        for (struct sim_keeper *k = sim->nodes[n].keepers; k != NULL; k = k->next) {
            if (k->alive && (job == 0 || k->key.job == job) && count < 64) {
                found[count++] = k;
            }
        }
    }
    return count == 0 ? NULL : found[detail % count];
}

static bool break_controller(struct sim *sim, const struct sim_fault *fault)
{
    struct sim_controller *controller = &sim->controller;
    if (controller->core == NULL) {
        return false;
    }
    if (fault->kind == SIM_FAULT_CONTROLLER_STALL) {
        if (sim->now_ns < controller->stall_ns) {
            return false;
        }
        controller->stall_ns = sim->now_ns + fault->for_ns;
        controller->stood_ns = fault->for_ns > SIM_MS(1000) ? fault->for_ns : 0;
        return true;
    }
    sim_controller_crash(sim, fault->kind == SIM_FAULT_CONTROLLER_CRASH, fault->for_ns / 2);
    return true;
}

static bool break_disk(struct sim *sim, const struct sim_fault *fault)
{
    struct sim_disk *disk = &sim->disk;
    if (fault->kind == SIM_FAULT_DISK_SLOW) {
        disk->slow_ns = sim->now_ns + fault->for_ns;
    } else if (fault->kind == SIM_FAULT_DISK_FAILS) {
        disk->fails_ns = sim->now_ns + fault->for_ns;
    } else {
        sim->more.jumped = true;
        sim->controller.wall_ns += SIM_MS((int64_t)fault->detail * 10 - (5 << 20));
    }
    return true;
}

// One end notices, and the other may not.
static bool break_connection(struct sim *sim, struct sim_node *node, uint32_t detail)
{
    const struct sim_connection *connection = sim_connection_of(sim, node->session);
    bool ours = connection->controller_open && sim->controller.core != NULL &&
                connection->controller_life == sim->controller.life &&
                sim->now_ns >= sim->controller.stall_ns;
    if (detail % 2 == 0 && ours) {
        uint64_t session = node->session;
        sim_close_controller_end(sim, session, detail / 2 % 2 == 0);
        struct dp_core_event event = {.kind = DP_EVENT_SESSION_CLOSED, .session = session};
        sim_controller_event(sim, &event);
    } else {
        sim_session_leave(sim, node, detail / 2 % 2 == 0);
    }
    return true;
}

static bool break_node(struct sim *sim, const struct sim_fault *fault)
{
    struct sim_node *node = &sim->nodes[fault->node];
    bool up = node->core != NULL;
    switch (fault->kind) {
    case SIM_FAULT_AGENT_CRASH:
        sim_agent_crash(sim, node, true, fault->for_ns);
        return up;
    case SIM_FAULT_NODE_POWER:
        up = node->up;
        sim_node_power(sim, node, fault->for_ns);
        return up;
    case SIM_FAULT_AGENT_STALL:
        if (!up || sim->now_ns < node->stall_ns) {
            return false;
        }
        node->quiet_ns = sim->now_ns;
        node->stall_ns = sim->now_ns + fault->for_ns;
        return true;
    case SIM_FAULT_CONNECTION:
        return up && node->session != 0 && break_connection(sim, node, fault->detail);
    default:
        return false;
    }
}

static void break_data(struct sim *sim, const struct sim_node *node)
{
    for (struct sim_keeper *k = node->keepers; k != NULL; k = k->next) {
        for (struct sim_process *p = k->ranks; p != NULL; p = p->next) {
            if (p->state == SIM_RANK_TRAINING && k->prepare.count < k->prepare.world) {
                sim_run_break(sim, p->run);
            }
        }
    }
}

static bool break_network(struct sim *sim, const struct sim_fault *fault)
{
    struct sim_node *node = &sim->nodes[fault->node];
    int64_t until_ns = sim->now_ns + fault->for_ns;
    if (fault->kind == SIM_FAULT_PARTITION) {
        uint32_t which = fault->detail % 4; // both ways, or one of them
        if (which != 1) {
            node->blocked_ns[0] = until_ns;
        }
        if (which != 2) {
            node->blocked_ns[1] = until_ns;
        }
        if (fault->detail / 4 % 2 == 0) {
            break_data(sim, node);
        }
    } else if (fault->kind == SIM_FAULT_SLOW_NETWORK) {
        node->slow_ns = until_ns;
    } else {
        node->lossy_ns = until_ns;
    }
    return true;
}

static bool break_ranks(struct sim *sim, const struct sim_fault *fault)
{
    struct sim_process *process = some_process(sim, fault->detail, fault->job);
    struct sim_keeper *keeper = some_keeper(sim, fault->detail, fault->job);
    if (process == NULL || keeper == NULL) {
        return false;
    }
    switch (fault->kind) {
    case SIM_FAULT_KEEPER_KILL:
        sim_keeper_kill(sim, keeper);
        break;
    case SIM_FAULT_KEEPER_STALL:
        // Longer than an agent waits for it; shorter than what a dead agent leaves of the fence.
        sim_keeper_stall(sim, keeper, fault->for_ns % SIM_MS(14000));
        break;
    case SIM_FAULT_LINK:
        if (keeper->node->core == NULL) {
            return false;
        }
        sim_keeper_lose(sim, keeper);
        break;
    case SIM_FAULT_RANK_KILL:
        sim_rank_end(sim, process, 0, 9);
        break;
    case SIM_FAULT_DATA_LINK:
        sim_run_break(sim, process->run);
        break;
    default:
        if (process->state >= SIM_RANK_ENDING || process->stop != SIM_STOP_NONE) {
            return false;
        }
        sim_rank_fail(sim, process, false);
        break;
    }
    return true;
}

// Its machine is off, or its agent is, until nothing can run there any more, or shorter; people
// take it off the list, and then it is back.
static bool forget(struct sim *sim, const struct sim_fault *fault)
{
    struct sim_node *node = &sim->nodes[fault->node];
    if (node->core == NULL) {
        return false;
    }
    if (fault->detail % 2 == 0) {
        sim_node_power(sim, node, fault->for_ns);
    } else {
        sim_agent_crash(sim, node, fault->detail / 2 % 2 == 0, fault->for_ns);
    }
    sim_users_forget(sim, fault->node, sim->now_ns + fault->for_ns);
    return true;
}

static bool press(struct sim *sim, const struct sim_fault *fault)
{
    if (fault->kind == SIM_FAULT_PLAN_FAILS) {
        sim->controller.plan_fails = true;
    } else if (fault->kind == SIM_FAULT_SUBMITS) {
        sim_users_burst(sim, 2 + fault->detail % 12);
    } else if (fault->kind == SIM_FAULT_DRAINS) {
        sim_users_node(sim, fault->node, fault->detail);
    } else if (fault->kind == SIM_FAULT_QUOTAS) {
        sim_users_quota(sim, fault->detail);
    } else if (fault->kind == SIM_FAULT_FORGET) {
        return forget(sim, fault);
    } else if (fault->kind == SIM_FAULT_REASSIGNS) {
        for (uint64_t job = 1; job <= sim->disk.highest; job++) {
            if (sim->jobs[job].state == DP_STATE_RUNNING) {
                sim_users_reassign(sim, job, fault->detail);
            }
        }
    } else {
        for (uint32_t i = 0; i < 1 + fault->detail % 8 && sim->disk.highest > 0; i++) {
            sim_users_cancel(sim, 1 + (fault->detail / 8 + i) % sim->disk.highest);
        }
    }
    return true;
}

static void count(struct sim *sim, const struct sim_fault *fault, bool did)
{
    sim->faults_fired += did;
    sim->broken += did && fault->kind <= SIM_FAULT_DATA_LINK;
    sim->tally->fired[fault->kind] += did;
    sim->tally->aimed += did && fault->aimed;
}

// Some waited for what did not come.
static void make_up(struct sim *sim)
{
    while (sim->faults_masked == 0 && sim->faults_fired < SIM_FAULTS_MIN) {
        struct sim_fault fault = {.node = (uint32_t)sim_between(sim, 0, sim->nodes_count - 1),
                                  .for_ns = sim_between(sim, SIM_MS(1000), SIM_MS(20000))};
        fault.kind = sim_chance(sim, 500) ? SIM_FAULT_PARTITION : SIM_FAULT_CONTROLLER_CRASH;
        bool did = fault.kind == SIM_FAULT_PARTITION ? break_network(sim, &fault)
                                                     : break_controller(sim, &fault);
        count(sim, &fault, did);
    }
}

bool sim_fault_hit(struct sim *sim, const struct sim_fault *fault)
{
    SIM_TRACE(sim, "FAULT: %s (n%u, for %.2f s)", texts[fault->kind], fault->node,
              (double)fault->for_ns / 1e9);
    bool did = false;
    if (fault->kind <= SIM_FAULT_CONTROLLER_STALL) {
        did = break_controller(sim, fault);
    } else if (fault->kind <= SIM_FAULT_WALL_JUMP) {
        did = break_disk(sim, fault);
    } else if (fault->kind <= SIM_FAULT_CONNECTION) {
        did = break_node(sim, fault);
    } else if (fault->kind <= SIM_FAULT_LOSSY_NETWORK) {
        did = break_network(sim, fault);
    } else if (fault->kind <= SIM_FAULT_DATA_LINK) {
        did = break_ranks(sim, fault);
    } else {
        did = press(sim, fault);
    }
    count(sim, fault, did);
    return did;
}

void sim_fault_fire(struct sim *sim, uint32_t number)
{
    if (number == SIM_FAULTS_MAX) {
        make_up(sim);
        return;
    }
    if (number > SIM_FAULTS_MAX) {
        sim_late_make_up(sim);
        return;
    }
    struct sim_fault *fault = &sim->faults[number];
    if (fault->fired || sim_is_calm(sim)) {
        return;
    }
    fault->fired = fault->repeats == 0;
    fault->repeats -= !fault->fired;
    fault->count = 0;
    SIM_TRACE(sim, "fault %u", number);
    (void)sim_fault_hit(sim, fault);
}
