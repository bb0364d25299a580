// Streams between agents and the controller: each direction keeps its order, unless the network
// loses it, and either end may go without the other knowing.
#include <stdlib.h>

#include "dp/alloc.h"
#include "sim.h"

struct sim_connection *sim_connection_of(struct sim *sim, uint64_t session)
{
    return session == 0 || session > sim->connections_count ? NULL : &sim->connections[session - 1];
}

struct sim_message *sim_message_new(sim_message_kind kind, uint64_t session, uint32_t levels)
{
    struct sim_message *message = dp_alloc(1, sizeof(*message) + levels * sizeof(struct sim_level));
    message->kind = kind;
    message->session = session;
    message->levels_count = levels;
    return message;
}

uint64_t sim_connect(struct sim *sim, uint32_t node)
{
    if (sim->connections_count == sim->connections_room) {
        sim->connections_room = sim->connections_room == 0 ? 64 : 2 * sim->connections_room;
        sim->connections =
            dp_realloc(sim->connections, sim->connections_room, sizeof(*sim->connections));
    }
    sim->connections[sim->connections_count++] =
        (struct sim_connection){.node = node, .agent_open = true};
    return sim->connections_count;
}

static int64_t delay(struct sim *sim, const struct sim_node *node)
{
    int64_t delay_ns = sim_between(sim, 50, sim->delay_us) * 1000;
    if (sim->now_ns < node->slow_ns) {
        delay_ns += sim_between(sim, 0, SIM_MS(2000));
    }
    return delay_ns;
}

static void push(struct sim *sim, struct sim_connection *connection, struct sim_message *message,
                 bool to_controller, bool in_order)
{
    struct sim_node *node = &sim->nodes[connection->node];
    int64_t at_ns = sim->now_ns + delay(sim, node);
    if (at_ns < node->blocked_ns[to_controller ? 1 : 0]) {
        at_ns = node->blocked_ns[to_controller ? 1 : 0] + delay(sim, node);
    }
    int64_t *last_ns = &connection->last_ns[to_controller ? 0 : 1];
    if (in_order && at_ns <= *last_ns) {
        at_ns = *last_ns + 1;
    }
    *last_ns = at_ns > *last_ns ? at_ns : *last_ns;
    sim_push(sim, at_ns, to_controller ? SIM_EV_TO_CONTROLLER : SIM_EV_TO_AGENT, connection->node,
             0, message);
}

static struct sim_message *copy(const struct sim_message *message)
{
    return dp_memdup(message, sizeof(*message) + message->levels_count * sizeof(struct sim_level));
}

void sim_send(struct sim *sim, struct sim_message *message, bool to_controller)
{
    struct sim_connection *connection = sim_connection_of(sim, message->session);
    const struct sim_node *node = &sim->nodes[connection->node];
    bool lossy =
        sim->now_ns < node->lossy_ns && message->kind != SIM_CLOSED && message->kind != SIM_HELLO;
    if (lossy && sim_chance(sim, 150)) {
        SIM_TRACE(sim, "a message between %s and the controller is lost", node->name);
        free(message);
        return;
    }
    if (lossy && sim_chance(sim, 150)) {
        push(sim, connection, copy(message), to_controller, false);
    }
    push(sim, connection, message, to_controller, !(lossy && sim_chance(sim, 300)));
}

void sim_close_agent_end(struct sim *sim, uint64_t session, bool told)
{
    struct sim_connection *connection = sim_connection_of(sim, session);
    if (connection == NULL || !connection->agent_open) {
        return;
    }
    connection->agent_open = false;
    connection->dropped[0] = !told || sim_chance(sim, 500);
    if (told) {
        sim_send(sim, sim_message_new(SIM_CLOSED, session, 0), true);
    }
}

void sim_close_controller_end(struct sim *sim, uint64_t session, bool told)
{
    struct sim_connection *connection = sim_connection_of(sim, session);
    if (connection == NULL || !connection->controller_open) {
        return;
    }
    connection->controller_open = false;
    connection->dropped[1] = sim_chance(sim, 500);
    if (told) {
        sim_send(sim, sim_message_new(SIM_CLOSED, session, 0), false);
    }
}
