// A machine and its agent: the agent's core is the real one, this is its shell.
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "sim.h"

#define TICK_LAG_MS 100 // an agent looks at its clock so often
#define ADOPT_MS 5000   // keepers found on disk are waited for before the node says hello

int64_t sim_node_clock(const struct sim *sim, const struct sim_node *node)
{
    return node->clock_ns + sim->now_ns + (int64_t)((double)sim->now_ns * node->drift);
}

// When the node's clock will read so.
static int64_t world_time(const struct sim_node *node, int64_t clock_ns)
{
    return (int64_t)((double)(clock_ns - node->clock_ns) / (1 + node->drift));
}

void sim_node_init(struct sim *sim, uint32_t index)
{
    struct sim_node *node = &sim->nodes[index];
    node->index = index;
    node->slots = (uint32_t)sim_between(sim, 1, SIM_SLOTS_MAX);
    snprintf(node->name, sizeof(node->name), "n%u", index);
    node->clock_ns = sim_between(sim, SIM_MS(1000), SIM_MS(1000000000));
    node->drift = (double)sim_between(sim, -300, 300) / 1e6;
    node->up = true;
    sim_push(sim, sim_between(sim, 0, SIM_MS(3000)), SIM_EV_AGENT_UP, index, 0, NULL);
}

static void free_keeper(struct sim_keeper *keeper)
{
    while (keeper->ranks != NULL) {
        struct sim_process *next = keeper->ranks->next;
        free(keeper->ranks);
        keeper->ranks = next;
    }
    free(keeper);
}

void sim_node_deinit(struct sim_node *node)
{
    if (node->core != NULL) {
        dp_agent_core_free(node->core);
    }
    dp_agent_effects_deinit(&node->effects);
    while (node->keepers != NULL) {
        struct sim_keeper *next = node->keepers->next;
        free_keeper(node->keepers);
        node->keepers = next;
    }
}

static void do_order(struct sim *sim, struct sim_keeper *keeper,
                     const struct dp_agent_effect *effect)
{
    struct sim_frame frame = {
        .kind = SIM_FRAME_ORDER, .rank = effect->rank, .started = effect->start};
    DP_CHECK(effect->length == sizeof(frame.order));
    memcpy(&frame.order, effect->bytes, sizeof(frame.order));
    sim_keeper_send(sim, keeper, &frame);
}

static void do_report(struct sim *sim, struct sim_node *node, const struct dp_agent_effect *effect)
{
    struct sim_report report;
    DP_CHECK(effect->length == sizeof(report));
    memcpy(&report, effect->bytes, sizeof(report));
    sim_session_report(sim, node, &report);
}

static void perform_on_keeper(struct sim *sim, struct sim_node *node,
                              const struct dp_agent_effect *effect)
{
    struct sim_keeper *keeper = sim_keeper_find(node, &effect->fence);
    if (keeper == NULL || (!keeper->held && effect->type != DP_AGENT_DO_FORGET)) {
        return;
    }
    switch (effect->type) {
    case DP_AGENT_DO_SPAWN:
        sim_keeper_send(sim, keeper,
                        &(struct sim_frame){.kind = SIM_FRAME_SPAWN, .rank = effect->rank});
        break;
    case DP_AGENT_DO_ORDER:
        do_order(sim, keeper, effect);
        break;
    case DP_AGENT_DO_STOP:
        sim_keeper_send(sim, keeper,
                        &(struct sim_frame){.kind = SIM_FRAME_STOP,
                                            .rank = effect->rank,
                                            .grace_ms = effect->grace_ms});
        break;
    case DP_AGENT_DO_SHUTDOWN:
        sim_keeper_send(sim, keeper, &(struct sim_frame){.kind = SIM_FRAME_SHUTDOWN});
        break;
    case DP_AGENT_DO_KILL_KEEPER:
        sim_keeper_kill(sim, keeper);
        break;
    default: // FORGET
        keeper->released = keeper->agent_released = true;
        break;
    }
}

static void perform(struct sim *sim, struct sim_node *node)
{
    for (size_t i = 0; i < node->effects.count; i++) {
        const struct dp_agent_effect *effect = &node->effects.items[i];
        switch (effect->type) {
        case DP_AGENT_DO_START_KEEPER:
            sim_keeper_start(sim, node, effect);
            break;
        case DP_AGENT_DO_LEVEL:
            sim_session_level(sim, node, &effect->fence);
            break;
        case DP_AGENT_DO_REPORT:
            do_report(sim, node, effect);
            break;
        case DP_AGENT_DO_REFUSE:
            sim_session_refuse(sim, node, &effect->fence, effect->text);
            break;
        case DP_AGENT_DO_LOG:
            SIM_TRACE(sim, "%s: %s.%u.%u: %s", node->name, effect->fence.job, effect->fence.attempt,
                      effect->fence.epoch, effect->text);
            break;
        default:
            perform_on_keeper(sim, node, effect);
            break;
        }
    }
}

// The agent's own deadlines: its shell ticks, here only when something may be due.
static void arm_tick(struct sim *sim, struct sim_node *node)
{
    int64_t due_ns = INT64_MAX;
    for (size_t i = 0; i < dp_agent_core_count(node->core); i++) {
        const struct dp_agent_assignment *assignment = dp_agent_core_at(node->core, i);
        if (dp_agent_assignment_ended(assignment)) {
            continue;
        }
        due_ns = assignment->force_at_ns < due_ns ? assignment->force_at_ns : due_ns;
        due_ns = assignment->gone_by_ns < due_ns ? assignment->gone_by_ns : due_ns;
        int64_t orphan_ns = node->contact_ns + SIM_MS(sim->orphan_ms);
        due_ns = !assignment->fenced && orphan_ns < due_ns ? orphan_ns : due_ns;
    }
    if (due_ns == INT64_MAX || due_ns == node->tick_ns) {
        return;
    }
    node->tick_ns = due_ns;
    int64_t lag_ns = sim_between(sim, 1, SIM_MS(TICK_LAG_MS));
    int64_t at_ns = world_time(node, due_ns) + lag_ns;
    // What the core does not do at its time it need not be asked for at every moment.
    at_ns = at_ns > sim->now_ns ? at_ns : sim->now_ns + SIM_MS(1000);
    sim_push(sim, at_ns, SIM_EV_AGENT_TICK, node->index, ++node->tick_number, NULL);
}

void sim_agent_tick(struct sim *sim, struct sim_node *node, uint64_t number)
{
    if (number != node->tick_number || node->core == NULL) {
        return;
    }
    node->tick_ns = 0;
    struct dp_agent_event event = {.type = DP_AGENT_TICK};
    sim_agent_event(sim, node, &event);
}

void sim_agent_event(struct sim *sim, struct sim_node *node, struct dp_agent_event *event)
{
    event->now_ns = sim_node_clock(sim, node);
    node->effects.count = 0;
    dp_agent_core_step(node->core, event, &node->effects);
    perform(sim, node);
    arm_tick(sim, node);
}

// The state directory names what was here; what is left to do with each follows from its keeper.
static void scan(struct sim *sim, struct sim_node *node)
{
    for (struct sim_keeper *keeper = node->keepers; keeper != NULL; keeper = keeper->next) {
        struct dp_agent_event event = {.type = DP_AGENT_WAS_RELEASED, .fence = keeper->fence};
        if (!keeper->released) {
            event.type = DP_AGENT_FOUND;
            event.numbers = keeper->prepare.numbers;
            event.numbers_count = keeper->prepare.count;
        }
        sim_agent_event(sim, node, &event);
        if (!keeper->released) {
            sim_keeper_adopt(sim, keeper);
        }
    }
}

void sim_agent_start(struct sim *sim, struct sim_node *node)
{
    if (!node->up || node->core != NULL) {
        return;
    }
    int64_t clock_ns = sim_node_clock(sim, node);
    if (node->contact_boot != node->boot + 1) {
        // Nobody can know how long it was alone: it gets one lease to find the controller.
        node->contact_ns = clock_ns - SIM_MS(sim->orphan_ms - sim->lease_ms);
    }
    node->life++;
    node->settled_ns = sim->now_ns;
    node->quiet_ns = node->stall_ns = 0;
    node->core = dp_agent_core_new(sim->orphan_ms, node->contact_ns);
    node->adopt_ns = sim->now_ns + SIM_MS(ADOPT_MS);
    SIM_TRACE(sim, "the agent of %s starts for the %lluth time", node->name,
              (unsigned long long)node->life);
    sim_session_init(sim, node);
    scan(sim, node);
    sim_session_arm(sim, node);
}

void sim_agent_crash(struct sim *sim, struct sim_node *node, bool told, int64_t down_ns)
{
    if (node->core == NULL) {
        return;
    }
    sim_session_leave(sim, node, told);
    dp_agent_core_free(node->core);
    node->core = NULL;
    node->tick_number++;
    node->timer_number++;
    node->tick_ns = 0;
    node->quiet_ns = sim->now_ns;
    for (struct sim_keeper *keeper = node->keepers; keeper != NULL; keeper = keeper->next) {
        sim_keeper_agent_gone(sim, keeper);
    }
    if (down_ns > 0) {
        sim_push(sim, sim->now_ns + down_ns, SIM_EV_AGENT_UP, node->index, 0, NULL);
    }
}

void sim_node_power(struct sim *sim, struct sim_node *node, int64_t down_ns)
{
    if (!node->up) {
        return;
    }
    sim_agent_crash(sim, node, false, 0);
    node->up = false;
    for (struct sim_keeper *keeper = node->keepers; keeper != NULL; keeper = keeper->next) {
        keeper->is_child = false;
        sim_keeper_kill(sim, keeper);
    }
    sim_push(sim, sim->now_ns + down_ns, SIM_EV_NODE_UP, node->index, 0, NULL);
}

void sim_node_start(struct sim *sim, struct sim_node *node)
{
    node->up = true;
    node->boot++;
    node->clock_ns = sim_between(sim, SIM_MS(1000), SIM_MS(60000)) - sim->now_ns;
    sim_agent_start(sim, node);
}
