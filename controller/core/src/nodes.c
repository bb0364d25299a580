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

struct core_node *dp_core_node_find(const struct dp_core *core, const char *name)
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
        used += dp_core_job_slots(job, node->row.name);
    }
    for (size_t i = 0; i < node->foreign_count; i++) {
        used += node->foreign[i].live;
    }
    return used;
}

int64_t dp_core_node_lease_ms(const struct dp_core *core, const struct core_node *node)
{
    return node->row.lease_ms != 0 ? node->row.lease_ms : core->config.lease_default_ms;
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
    return node->seen_ns +
           (dp_core_node_lease_ms(core, node) + core->config.lease_margin_ms) * DP_NS_PER_MS;
}

// The node counts from a heartbeat that it sent and this end acknowledged, so from before it was
// seen here for the last time.
int64_t dp_core_node_fence_ns(const struct dp_core *core, const struct core_node *node)
{
    int64_t fence_ms = node->row.fence_ms != 0 ? node->row.fence_ms : core->config.fence_default_ms;
    int64_t lease_ms = dp_core_node_lease_ms(core, node);
    fence_ms = fence_ms > lease_ms ? fence_ms : lease_ms;
    return node->seen_ns + (fence_ms + core->config.lease_margin_ms) * DP_NS_PER_MS;
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

static void lose(struct dp_core *core, struct core_node *node)
{
    if (node->session != 0) {
        dp_core_send(core, node, DP_ORDER_REFUSE, NULL,
                     "not heard of for longer than the lease: connect again");
        core->effects->items[core->effects->count - 1].status = DP_UNAVAILABLE;
        node->session = 0;
    }
    char reason[DP_TEXT_MAX], until[32];
    int64_t left_ns = dp_core_node_fence_ns(core, node) - core->now_ns;
    snprintf(reason, sizeof(reason),
             "not heard of for longer than its lease of %lld ms; what runs there ends by itself by "
             "%s",
             (long long)dp_core_node_lease_ms(core, node),
             dp_clock_format_utc(until, core->wall_ns + left_ns));
    set_state(core, node, DP_NODE_LOST, reason);
    FOR_EACH_JOB(core, job)
    {
        dp_core_job_lose_node(core, job, node);
    }
}

static void fence(struct dp_core *core, struct core_node *node)
{
    node->fenced = true;
    node->foreign_count = 0;
    set_state(core, node, DP_NODE_LOST, "not heard of for so long that its ranks have ended");
    FOR_EACH_JOB(core, job)
    {
        dp_core_job_fence_node(core, job, node);
    }
}

static void set_registering(struct dp_core *core, struct core_node *node)
{
    char reason[DP_TEXT_MAX];
    snprintf(reason, sizeof(reason), "calibration failed, it is tried again: %.*s",
             DP_TEXT_MAX - 64, node->calibration_error);
    set_state(core, node, DP_NODE_REGISTERING,
              node->calibration_error[0] == '\0' ? "being calibrated" : reason);
}

static void update_state(struct dp_core *core, struct core_node *node)
{
    if (core->now_ns >= dp_core_node_lost_ns(core, node)) {
        if (node->state != DP_NODE_LOST) {
            lose(core, node);
        }
        if (!node->fenced && core->now_ns >= dp_core_node_fence_ns(core, node)) {
            fence(core, node);
        }
    } else if (node->session == 0) {
        set_state(core, node, DP_NODE_LATE, "not connected");
    } else if (core->now_ns >= dp_core_node_late_ns(core, node)) {
        set_state(core, node, DP_NODE_LATE, "no heartbeat");
    } else if (node->row.profile.length == 0) {
        set_registering(core, node);
    } else if (node->held) {
        set_state(core, node, DP_NODE_REGISTERING, "being calibrated, as asked for");
    } else {
        set_state(core, node, DP_NODE_READY, "");
    }
}

void dp_core_node_seen(struct dp_core *core, struct core_node *node)
{
    node->seen_ns = core->now_ns;
    node->row.last_seen_ns = core->wall_ns;
    node->fenced = false;
    update_state(core, node);
}

void dp_core_nodes_deadline(struct dp_core *core)
{
    FOR_EACH_NODE(core, node)
    {
        update_state(core, node);
    }
}

void dp_core_hold(struct dp_core *core, const struct dp_hold *hold)
{
    struct core_node *node = dp_core_node_find(core, hold->node);
    if (node != NULL && node->held != hold->on) {
        node->held = hold->on;
        // Jobs wait for it as for one that comes up.
        node->connected_ns = hold->on ? core->now_ns : node->connected_ns;
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

// A history has each measurement once; agents repeat what they know.
static void keep_profile(struct dp_core *core, const struct core_node *node,
                         const struct dp_node_record *row)
{
    const struct dp_buf *before = &node->row.profile, *now = &row->profile;
    if (now->length == 0 ||
        (now->length == before->length && memcmp(now->bytes, before->bytes, now->length) == 0)) {
        return;
    }
    struct dp_profile_record *kept =
        dp_core_keep(core, &(struct dp_profile_record){0}, sizeof(*kept));
    DP_COPY_TEXT(kept->node, node->row.name);
    DP_COPY_TEXT(kept->source, DP_PROFILE_CALIBRATION);
    kept->time_ns = core->wall_ns;
    kept->document.bytes = dp_core_keep(core, now->bytes, now->length);
    kept->document.length = now->length;
    dp_core_store(core, DP_RECORD_PROFILE, kept);
}

static void take_inventory(struct dp_core *core, struct core_node *node,
                           const struct dp_node_record *row, const char *calibration_error)
{
    DP_COPY_TEXT(node->calibration_error, calibration_error == NULL ? "" : calibration_error);
    node->row.slots = row->slots;
    node->row.cores = row->cores;
    node->row.memory_bytes = row->memory_bytes;
    DP_COPY_TEXT(node->row.accelerator, row->accelerator);
    DP_COPY_TEXT(node->row.data_host, row->data_host);
    keep_profile(core, node, row);
    dp_buf_clear(&node->row.profile);
    dp_buf_append(&node->row.profile, row->profile.bytes, row->profile.length);
    dp_buf_clear(&node->row.hardware);
    dp_buf_append(&node->row.hardware, row->hardware.bytes, row->hardware.length);
}

void dp_core_inventory(struct dp_core *core, const struct dp_inventory_event *inventory)
{
    struct core_node *node = dp_core_node_session(core, inventory->session);
    if (node == NULL) {
        return;
    }
    take_inventory(core, node, inventory->node, inventory->calibration_error);
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
    const struct core_node *before = dp_core_node_session(core, session);
    if (before != NULL && before != node) {
        refuse(core, session, row->name, DP_CONFLICT,
               "this session has said hello under another name: open one for each node");
        return;
    }
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
    node->row.fence_ms = row->fence_ms;
    take_inventory(core, node, row, hello->calibration_error);
    dp_core_send(core, node, DP_ORDER_WELCOME, NULL, NULL);
    dp_core_node_seen(core, node);
    dp_core_store(core, DP_RECORD_NODE, &node->row);
    dp_core_hello_levels(core, node, &hello->levels);
}
