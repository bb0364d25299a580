// The agent's stream to the controller: hello, heartbeats, what they are answered, and what it does
// when nobody answers.
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "sim.h"

#define WELCOME_MS 3000
#define RETRY_FIRST_MS 200
#define RETRY_MAX_MS 3000
#define LEVELS_MAX 64

void sim_session_init(struct sim *sim, struct sim_node *node)
{
    node->session = 0;
    node->welcomed = false;
    node->retry_ms = RETRY_FIRST_MS;
    node->retry_ns = sim->now_ns;
}

static int64_t silence_ns(const struct sim *sim, const struct sim_node *node)
{
    uint32_t beats_ms = 3 * node->heartbeat_ms;
    return SIM_MS(sim->lease_ms > beats_ms ? sim->lease_ms : beats_ms);
}

void sim_session_arm(struct sim *sim, struct sim_node *node)
{
    int64_t due_ns = node->heartbeat_ns;
    if (node->session == 0) {
        due_ns = node->retry_ns;
        if (!sim_keepers_settled(node) && due_ns < node->adopt_ns) {
            due_ns = node->adopt_ns;
        }
    } else if (!node->welcomed) {
        due_ns = node->give_up_ns;
    } else if (node->heard_ns + silence_ns(sim, node) < due_ns) {
        due_ns = node->heard_ns + silence_ns(sim, node);
    }
    sim_push(sim, due_ns, SIM_EV_SESSION, node->index, ++node->timer_number, NULL);
}

void sim_session_leave(struct sim *sim, struct sim_node *node, bool told)
{
    bool was_welcomed = node->welcomed;
    sim_close_agent_end(sim, node->session, told);
    node->session = 0;
    node->welcomed = false;
    node->retry_ns = sim->now_ns + SIM_MS(node->retry_ms) * sim_between(sim, 500, 1500) / 1000;
    node->retry_ms = node->retry_ms * 3 / 2 > RETRY_MAX_MS ? RETRY_MAX_MS : node->retry_ms * 3 / 2;
    if (was_welcomed) {
        struct dp_agent_event event = {.type = DP_AGENT_STREAM_DOWN};
        sim_agent_event(sim, node, &event);
    }
    sim_session_arm(sim, node);
}

// The bytes that ranks said of themselves are reports of ours.
static void fill_rank(const struct dp_agent_rank *rank, struct sim_rank_level *level)
{
    level->rank = rank->rank;
    level->phase = rank->phase;
    level->stopped = rank->stopped;
    level->step = rank->step;
    level->pid = rank->pid;
    level->exit_status = rank->exit_status;
    level->signal = rank->signal;
    level->ready = rank->ready.bytes != NULL;
    if (level->ready) {
        struct sim_report ready;
        memcpy(&ready, rank->ready.bytes, sizeof(ready));
        level->resumed_step = ready.step;
    }
    level->holds = rank->held.bytes != NULL;
    if (level->holds) {
        memcpy(&level->held, rank->held.bytes, sizeof(level->held));
    }
    level->finished = rank->finished.bytes != NULL;
    if (level->finished) {
        memcpy(&level->last, rank->finished.bytes, sizeof(level->last));
    }
}

static void fill_level(const struct dp_agent_assignment *assignment, struct sim_level *level)
{
    level->fence = assignment->fence;
    level->keeper_lost = assignment->keeper_lost;
    level->keeper_signal = assignment->keeper_signal;
    level->stopping = assignment->stopping || assignment->releasing;
    (void)dp_copy_text(level->error, sizeof(level->error),
                       assignment->error[0] != '\0' ? assignment->error : assignment->trouble);
    for (size_t i = 0; i < assignment->ranks_count && i < SIM_SLOTS_MAX; i++) {
        fill_rank(&assignment->ranks[i], &level->ranks[level->ranks_count++]);
    }
}

static struct sim_message *all_levels(const struct sim_node *node, sim_message_kind kind)
{
    size_t count = dp_agent_core_count(node->core);
    count = count < LEVELS_MAX ? count : LEVELS_MAX;
    struct sim_message *message = sim_message_new(kind, node->session, (uint32_t)count);
    for (size_t i = 0; i < count; i++) {
        fill_level(dp_agent_core_at(node->core, i), &message->levels[i]);
    }
    return message;
}

static void open_session(struct sim *sim, struct sim_node *node)
{
    node->session = sim_connect(sim, node->index);
    node->hello_ns = sim_node_clock(sim, node);
    node->acked = 0;
    node->give_up_ns = sim->now_ns + SIM_MS(WELCOME_MS);
    node->heard_ns = sim->now_ns;
    memset(node->sent_ns, 0, sizeof(node->sent_ns));
    struct sim_message *message = all_levels(node, SIM_HELLO);
    snprintf(message->instance, sizeof(message->instance), "%u-%llu", node->index,
             (unsigned long long)node->life);
    message->sent_ns = node->hello_ns;
    message->boot = node->boot;
    message->lease_ms = sim->lease_ms;
    message->fence_ms = sim->orphan_ms + DP_AGENT_STOP_MS + sim->lease_ms;
    sim_send(sim, message, true);
}

static void send_heartbeat(struct sim *sim, struct sim_node *node)
{
    struct sim_message *message = all_levels(node, SIM_HEARTBEAT);
    message->number = ++node->sequence;
    message->acked = node->acked;
    node->sent_ns[node->sequence % SIM_HEARTBEATS] = sim_node_clock(sim, node);
    sim_send(sim, message, true);
    node->heartbeat_ns = sim->now_ns + SIM_MS(node->heartbeat_ms);
}

void sim_session_timer(struct sim *sim, struct sim_node *node, uint64_t number)
{
    if (number != node->timer_number || node->core == NULL) {
        return;
    }
    if (node->session == 0) {
        bool settled = sim_keepers_settled(node) || sim->now_ns >= node->adopt_ns;
        if (settled) {
            node->adopt_ns = 0;
            open_session(sim, node);
        }
    } else if (!node->welcomed) {
        sim_session_leave(sim, node, true);
        return;
    } else if (sim->now_ns - node->heard_ns >= silence_ns(sim, node)) {
        SIM_TRACE(sim, "%s does not hear the controller", node->name);
        sim_session_leave(sim, node, true);
        return;
    } else {
        send_heartbeat(sim, node);
    }
    sim_session_arm(sim, node);
}

static void note_contact(struct sim *sim, struct sim_node *node, int64_t sent_ns)
{
    if (sent_ns > node->contact_ns || node->contact_boot != node->boot + 1) {
        node->contact_ns = sent_ns;
    }
    node->contact_boot = node->boot + 1;
    struct dp_agent_event event = {.type = DP_AGENT_ACKNOWLEDGED, .sent_ns = sent_ns};
    sim_agent_event(sim, node, &event);
}

static void set_period(const struct sim *sim, struct sim_node *node, uint32_t wanted_ms)
{
    uint32_t max_ms = sim->orphan_ms / 4;
    uint32_t given_ms = wanted_ms > 0 ? wanted_ms : sim->controller.config.heartbeat_ms;
    node->heartbeat_ms = given_ms < max_ms ? given_ms : max_ms;
}

static void on_welcome(struct sim *sim, struct sim_node *node, uint32_t heartbeat_ms)
{
    node->welcomed = true;
    node->retry_ms = RETRY_FIRST_MS;
    set_period(sim, node, heartbeat_ms);
    node->heartbeat_ns = sim->now_ns + SIM_MS(node->heartbeat_ms);
    note_contact(sim, node, node->hello_ns);
    struct dp_agent_event event = {.type = DP_AGENT_STREAM_UP};
    sim_agent_event(sim, node, &event);
    sim_session_arm(sim, node);
}

static void on_order(struct sim *sim, struct sim_node *node, const struct sim_message *message)
{
    static const dp_agent_event_type types[] = {
        [DP_ORDER_PREPARE] = DP_AGENT_PREPARE,
        [DP_ORDER_START] = DP_AGENT_START,
        [DP_ORDER_STOP] = DP_AGENT_STOP,
        [DP_ORDER_RELEASE] = DP_AGENT_RELEASE,
        [DP_ORDER_CHECKPOINT] = DP_AGENT_CHECKPOINT,
        [DP_ORDER_PROBE] = DP_AGENT_PROBE,
        [DP_ORDER_REBALANCE] = DP_AGENT_REBALANCE,
        [DP_ORDER_PAUSE] = DP_AGENT_PAUSE,
        [DP_ORDER_SETTLE] = DP_AGENT_SETTLE,
    };
    struct dp_agent_event event = {.type = types[message->order], .grace_ms = message->grace_ms};
    (void)DP_COPY_TEXT(event.fence.job, message->fence.job);
    event.fence.attempt = message->fence.attempt;
    event.fence.epoch = message->fence.epoch;
    if (message->order == DP_ORDER_PREPARE) {
        event.numbers = message->prepare.numbers;
        event.numbers_count = message->prepare.count;
        event.bytes = &message->prepare;
        event.length = sizeof(message->prepare);
        event.beside = message->prepare.beside;
    } else if (message->order != DP_ORDER_RELEASE &&
               (message->order != DP_ORDER_STOP || message->checkpoint)) {
        event.bytes = &message->rank_order;
        event.length = sizeof(message->rank_order);
    }
    SIM_TRACE(sim, "%s takes %s of %s.%u.%u", node->name, dp_order_kind_text(message->order),
              event.fence.job, event.fence.attempt, event.fence.epoch);
    sim_agent_event(sim, node, &event);
}

// The message stays the caller's.
void sim_session_take(struct sim *sim, struct sim_node *node, struct sim_message *message)
{
    if (node->core == NULL || message->session != node->session) {
        return;
    }
    const struct sim_connection *connection = sim_connection_of(sim, message->session);
    if (connection->dropped[1] && message->kind != SIM_CLOSED) {
        return;
    }
    if (message->kind == SIM_CLOSED) {
        sim_session_leave(sim, node, true);
        return;
    }
    node->heard_ns = sim->now_ns;
    if (message->order == DP_ORDER_WELCOME) {
        on_welcome(sim, node, message->heartbeat_ms);
    } else if (node->welcomed && message->order == DP_ORDER_ACK) {
        set_period(sim, node, message->heartbeat_ms);
        int64_t sent_ns = node->sent_ns[message->number % SIM_HEARTBEATS];
        if (sent_ns != 0 && node->sequence - message->number < SIM_HEARTBEATS) {
            node->acked = message->number;
            note_contact(sim, node, sent_ns);
        }
    } else if (node->welcomed) {
        on_order(sim, node, message);
    }
}

void sim_session_level(struct sim *sim, struct sim_node *node, const struct dp_agent_fence *fence)
{
    const struct dp_agent_assignment *assignment = dp_agent_core_find(node->core, fence);
    if (node->welcomed && assignment != NULL) {
        struct sim_message *message = sim_message_new(SIM_LEVEL, node->session, 1);
        fill_level(assignment, &message->levels[0]);
        sim_send(sim, message, true);
    }
}

void sim_session_refuse(struct sim *sim, struct sim_node *node, const struct dp_agent_fence *fence,
                        const char *text)
{
    if (node->welcomed) {
        struct sim_message *message = sim_message_new(SIM_LEVEL, node->session, 1);
        message->levels[0].fence = *fence;
        (void)dp_copy_text(message->levels[0].error, sizeof(message->levels[0].error), text);
        sim_send(sim, message, true);
    }
}

void sim_session_report(struct sim *sim, struct sim_node *node, const struct sim_report *report)
{
    if (node->welcomed) {
        struct sim_message *message = sim_message_new(SIM_REPORT, node->session, 0);
        message->report = *report;
        sim_send(sim, message, true);
    }
}
