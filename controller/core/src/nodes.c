// Nodes: sessions, silence, leases.
#include "core_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/clock.h"

static const char *const node_states[DP_NODE_STATE_COUNT] = {
    [DP_NODE_REGISTERING] = "REGISTERING",
    [DP_NODE_READY] = "READY",
    [DP_NODE_LATE] = "LATE",
    [DP_NODE_LOST] = "LOST",
};

const char *dp_node_state_text(dp_node_state state)
{
    return state < DP_NODE_STATE_COUNT ? node_states[state] : "UNKNOWN";
}

struct core_node *dp_core_node_find(struct dp_core *core, const char *name)
{
    FOR_EACH_NODE(core, node)
    {
        if (strcmp(node->row.name, name) == 0) {
            return node;
        }
    }
    return NULL;
}

struct core_node *dp_core_node_session(struct dp_core *core, uint64_t session)
{
    FOR_EACH_NODE(core, node)
    {
        if (session != 0 && node->session == session) {
            return node;
        }
    }
    return NULL;
}

uint32_t dp_core_node_slots_used(const struct dp_core *core, const struct core_node *node)
{
    uint32_t used = 0;
    FOR_EACH_JOB(core, job)
    {
        if (dp_job_state_ended(job->row.state)) {
            continue;
        }
        for (size_t i = 0; i < job->ranks_count; i++) {
            used += strcmp(job->ranks[i].node, node->row.name) == 0;
        }
    }
    for (size_t i = 0; i < node->foreign_count; i++) {
        used += node->foreign[i].live;
    }
    return used;
}

static int64_t lease_ns(const struct dp_core *core, const struct core_node *node)
{
    uint32_t lease_ms = node->row.lease_ms;
    return (lease_ms != 0 ? lease_ms : core->config.lease_default_ms) * DP_NS_PER_MS;
}

int64_t dp_core_node_calibrated_ns(const struct dp_core *core, const struct core_node *node)
{
    return node->connected_ns + core->config.calibrate_ms * DP_NS_PER_MS;
}

int64_t dp_core_node_late_ns(const struct dp_core *core, const struct core_node *node)
{
    return node->seen_ns + core->config.late_ms * DP_NS_PER_MS;
}

int64_t dp_core_node_lost_ns(const struct dp_core *core, const struct core_node *node)
{
    return node->seen_ns + lease_ns(core, node) + core->config.lease_margin_ms * DP_NS_PER_MS;
}

static void set_state(struct dp_core *core, struct core_node *node, dp_node_state state,
                      const char *reason)
{
    DP_COPY_TEXT(node->reason, reason);
    if (node->state == state) {
        return;
    }
    node->state = state;
    bool bad = state == DP_NODE_LATE || state == DP_NODE_LOST;
    dp_core_note(core, NULL, node, bad, "node.state", "%s%s%s", dp_node_state_text(state),
                 reason[0] == '\0' ? "" : ": ", reason);
}

static void list_ranks(const struct core_job *job, const char *node, char *text, size_t size)
{
    size_t length = 0, count = 0;
    text[0] = '\0';
    for (size_t i = 0; i < job->ranks_count && length + 1 < size; i++) {
        if (strcmp(job->ranks[i].node, node) == 0) {
            int written = snprintf(text + length, size - length, "%s%u", count++ == 0 ? "" : ", ",
                                   job->ranks[i].rank);
            length += written > 0 ? (size_t)written : 0;
        }
    }
}

static void lose_jobs(struct dp_core *core, const struct core_node *node)
{
    char ranks[DP_TEXT_MAX / 2];
    FOR_EACH_JOB(core, job)
    {
        if (dp_core_job_member(job, node->row.name) == NULL || dp_job_state_ended(job->row.state)) {
            continue;
        }
        list_ranks(job, node->row.name, ranks, sizeof(ranks));
        dp_core_job_blame(
            core, job, DP_CAUSE_NODE_LOST, "NodeLost",
            "node %s was not heard of for longer than its lease of %lld ms: its ranks "
            "%s are lost",
            node->row.name, (long long)(lease_ns(core, node) / DP_NS_PER_MS), ranks);
        dp_core_job_end_ranks(job, node->row.name);
        dp_core_job_advance(core, job);
    }
}

static void lose(struct dp_core *core, struct core_node *node)
{
    if (node->session != 0) {
        dp_core_send(core, node, DP_ORDER_REFUSE, NULL,
                     "not heard of for longer than the lease: connect again");
        core->effects->items[core->effects->count - 1].status = DP_UNAVAILABLE;
        node->session = 0;
    }
    set_state(core, node, DP_NODE_LOST, "not heard of for longer than its lease");
    lose_jobs(core, node);
}

static void update_state(struct dp_core *core, struct core_node *node)
{
    if (core->now_ns >= dp_core_node_lost_ns(core, node)) {
        if (node->state != DP_NODE_LOST) {
            lose(core, node);
        }
    } else if (node->session == 0) {
        set_state(core, node, DP_NODE_LATE, "not connected");
    } else if (core->now_ns >= dp_core_node_late_ns(core, node)) {
        set_state(core, node, DP_NODE_LATE, "no heartbeat");
    } else if (node->row.profile.length == 0) {
        set_state(core, node, DP_NODE_REGISTERING, "being calibrated");
    } else {
        set_state(core, node, DP_NODE_READY, "");
    }
}

void dp_core_node_seen(struct dp_core *core, struct core_node *node)
{
    node->seen_ns = core->now_ns;
    node->row.last_seen_ns = core->wall_ns;
    update_state(core, node);
}

void dp_core_nodes_deadline(struct dp_core *core)
{
    FOR_EACH_NODE(core, node)
    {
        update_state(core, node);
    }
}

void dp_core_session_closed(struct dp_core *core, uint64_t session)
{
    struct core_node *node = dp_core_node_session(core, session);
    if (node != NULL) {
        node->session = 0;
        update_state(core, node);
    }
}

static void take_inventory(struct core_node *node, const struct dp_node_record *row)
{
    node->row.slots = row->slots;
    node->row.cores = row->cores;
    node->row.memory_bytes = row->memory_bytes;
    DP_COPY_TEXT(node->row.accelerator, row->accelerator);
    DP_COPY_TEXT(node->row.data_host, row->data_host);
    dp_buf_clear(&node->row.profile);
    dp_buf_append(&node->row.profile, row->profile.bytes, row->profile.length);
}

void dp_core_inventory(struct dp_core *core, const struct dp_inventory_event *inventory)
{
    struct core_node *node = dp_core_node_session(core, inventory->session);
    if (node == NULL) {
        return;
    }
    take_inventory(node, inventory->node);
    dp_core_node_seen(core, node);
    dp_core_store(core, DP_RECORD_NODE, &node->row);
}

static void refuse(struct dp_core *core, uint64_t session, const char *name, dp_status status,
                   const char *text)
{
    struct dp_effect *effect = dp_core_effect(core, DP_EFFECT_SEND);
    effect->order = DP_ORDER_REFUSE;
    effect->session = session;
    effect->status = status;
    effect->node = dp_core_keep_text(core, name);
    effect->text = dp_core_keep_text(core, text);
}

// Two agents under one name would take each other's orders.
static bool is_taken(const struct dp_core *core, const struct core_node *node,
                     const struct dp_node_record *row)
{
    return node->session != 0 && strcmp(node->row.instance, row->instance) != 0 &&
           core->now_ns < dp_core_node_late_ns(core, node);
}

static struct core_node *add_node(struct dp_core *core, const char *name)
{
    size_t count = 0;
    struct core_node **end = &core->nodes;
    while (*end != NULL) {
        end = &(*end)->next;
        count++;
    }
    if (count >= DP_NODES_MAX) {
        return NULL;
    }
    *end = dp_new(struct core_node);
    DP_COPY_TEXT((*end)->row.name, name);
    (*end)->state = DP_NODE_LATE;
    return *end;
}

void dp_core_load_node(struct dp_core *core, const struct dp_node_record *row)
{
    struct core_node *node = add_node(core, row->name);
    if (node != NULL) {
        dp_node_record_copy(&node->row, row);
        // Its lease may have begun when this controller's predecessor ended: it gets all of it.
        node->seen_ns = core->now_ns;
        DP_COPY_TEXT(node->reason, "not heard of since this controller started");
    }
}

void dp_core_hello(struct dp_core *core, const struct dp_hello *hello)
{
    const struct dp_node_record *row = hello->node;
    struct core_node *node = dp_core_node_find(core, row->name);
    uint64_t session = hello->levels.session;
    if (node != NULL && is_taken(core, node, row)) {
        refuse(core, session, row->name, DP_CONFLICT,
               "another agent is connected under this name: give this one another --name");
        return;
    }
    if (node == NULL && (node = add_node(core, row->name)) == NULL) {
        refuse(core, session, row->name, DP_UNAVAILABLE, "this controller knows too many nodes");
        return;
    }
    if (node->session != 0 && node->session != session) {
        dp_core_send(core, node, DP_ORDER_REFUSE, NULL, "a newer session of this agent took over");
        core->effects->items[core->effects->count - 1].status = DP_CONFLICT;
    }
    node->session = session;
    node->connected_ns = core->now_ns;
    DP_COPY_TEXT(node->row.boot_id, row->boot_id);
    DP_COPY_TEXT(node->row.instance, row->instance);
    DP_COPY_TEXT(node->row.version, row->version);
    DP_COPY_TEXT(node->row.address, row->address);
    node->row.lease_ms = row->lease_ms;
    take_inventory(node, row);
    dp_core_send(core, node, DP_ORDER_WELCOME, NULL, NULL);
    dp_core_node_seen(core, node);
    dp_core_store(core, DP_RECORD_NODE, &node->row);
    dp_core_hello_levels(core, node, &hello->levels);
}
