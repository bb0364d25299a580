// Nodes: sessions, silence, leases.
#include "core_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/clock.h"

#define NOTES_MAX 16 // of one hello, as events

static const char *const node_states[DP_NODE_STATE_COUNT] = {
    [DP_NODE_REGISTERING] = "REGISTERING",
    [DP_NODE_READY] = "READY",
    [DP_NODE_LATE] = "LATE",
    [DP_NODE_LOST] = "LOST",
    [DP_NODE_DRAINING] = "DRAINING",
    [DP_NODE_DRAINED] = "DRAINED",
    [DP_NODE_DOWN] = "DOWN",
    [DP_NODE_QUARANTINED] = "QUARANTINED",
};

const char *dp_node_state_text(dp_node_state state)
{
    return state < DP_NODE_STATE_COUNT ? node_states[state] : "UNKNOWN";
}

uint32_t dp_core_node_slots_used(const struct dp_core *core, const struct core_node *node)
{
    uint32_t used = node->used;
    for (size_t i = 0; node->sides > 0 && i < core->sided_count; i++) {
        used += dp_core_sides_slots(core->sided[i], node->row.name, NULL, 0);
    }
    for (size_t i = 0; i < node->foreign_count; i++) {
        used += node->foreign[i].live;
    }
    return used;
}

bool dp_core_node_has_leftover(const struct core_node *node, const char *but)
{
    for (size_t i = 0; i < node->foreign_count; i++) {
        const struct core_foreign *foreign = &node->foreign[i];
        if (foreign->ours && foreign->live > 0 && strcmp(foreign->fence.job, but) != 0) {
            return true;
        }
    }
    return false;
}

// Many nodes say less often that they are there, so that they do not say it to a controller that
// has no time for anything else.
uint32_t dp_core_node_heartbeat_ms(const struct dp_core *core)
{
    uint64_t asked_ms = core->config.heartbeat_ms;
    uint64_t share_ms = core->nodes_count * UINT64_C(1000) / core->config.heartbeats_per_s;
    return (uint32_t)(share_ms > asked_ms ? share_ms : asked_ms);
}

// A period that grew makes what follows from it grow.
static int64_t stretch_ms(const struct dp_core *core, const struct core_node *node, int64_t ms)
{
    uint32_t asked_ms = core->config.heartbeat_ms;
    uint32_t told_ms = node->heartbeat_ms > asked_ms ? node->heartbeat_ms : asked_ms;
    return asked_ms == 0 ? ms : ms * told_ms / asked_ms;
}

int64_t dp_core_node_lease_ms(const struct dp_core *core, const struct core_node *node)
{
    int64_t lease_ms = node->row.lease_ms != 0 ? node->row.lease_ms : core->config.lease_default_ms;
    int64_t least_ms = stretch_ms(core, node, core->config.late_ms);
    return lease_ms > least_ms ? lease_ms : least_ms;
}

int64_t dp_core_node_calibrated_ns(const struct dp_core *core, const struct core_node *node)
{
    return node->connected_ns + core->config.calibrate_ms * DP_NS_PER_MS;
}

int64_t dp_core_node_late_ns(const struct dp_core *core, const struct core_node *node)
{
    return node->seen_ns + stretch_ms(core, node, core->config.late_ms) * DP_NS_PER_MS;
}

int64_t dp_core_node_lost_ns(const struct dp_core *core, const struct core_node *node)
{
    // After a start it may take its time to find the controller again.
    int64_t grace_ms = node->heard ? 0 : core->config.start_grace_ms;
    return node->seen_ns +
           (dp_core_node_lease_ms(core, node) + core->config.lease_margin_ms + grace_ms) *
               DP_NS_PER_MS;
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
    core->index++;
    dp_core_reschedule(core);
    bool bad = state == DP_NODE_LATE || state == DP_NODE_LOST;
    dp_core_note(core, NULL, node, bad, "node.state", "%s%s%s", dp_node_state_text(state),
                 reason[0] == '\0' ? "" : ": ", reason);
}

void dp_core_node_each_job(struct dp_core *core, struct core_node *node,
                           void (*act)(struct dp_core *core, struct core_job *job,
                                       const struct core_node *node))
{
    size_t count = node->jobs_count;
    struct core_job **jobs = dp_core_keep(core, node->jobs, count * sizeof(struct core_job *));
    for (size_t i = 0; i < count; i++) {
        dp_core_job_touch(jobs[i]);
        act(core, jobs[i], node);
    }
}

static void lose(struct dp_core *core, struct core_node *node)
{
    if (node->session != 0) {
        dp_core_send(core, node, DP_ORDER_REFUSE, NULL,
                     "not heard of for longer than the lease: connect again");
        core->effects->items[core->effects->count - 1].status = DP_UNAVAILABLE;
        dp_core_node_set_session(core, node, 0);
    }
    char reason[DP_TEXT_MAX], until[32];
    int64_t left_ns = dp_core_node_fence_ns(core, node) - core->now_ns;
    snprintf(reason, sizeof(reason),
             "not heard of for longer than its lease of %lld ms; what runs there ends by itself by "
             "%s",
             (long long)dp_core_node_lease_ms(core, node),
             dp_clock_format_utc(until, core->wall_ns + left_ns));
    set_state(core, node, DP_NODE_LOST, reason);
    dp_core_sides_lose_node(core, node);
    dp_core_node_each_job(core, node, dp_core_job_lose_node);
    dp_core_remains_look(core);
}

static void fence(struct dp_core *core, struct core_node *node)
{
    node->fenced = true;
    node->foreign_count = 0;
    set_state(core, node, DP_NODE_LOST, "not heard of for so long that its ranks have ended");
    dp_core_reschedule(core);
    dp_core_node_each_job(core, node, dp_core_job_fence_node);
    dp_core_sides_fence_node(core, node);
    dp_core_remains_look(core);
}

static void set_registering(struct dp_core *core, struct core_node *node)
{
    char reason[DP_TEXT_MAX];
    snprintf(reason, sizeof(reason), "calibration failed, it is tried again: %.*s",
             DP_TEXT_MAX - 64, node->calibration_error);
    set_state(core, node, DP_NODE_REGISTERING,
              node->calibration_error[0] == '\0' ? "being calibrated" : reason);
}

// When the node's state, or what is made of it, changes without a word from it.
static int64_t node_due(const struct dp_core *core, const struct core_node *node)
{
    int64_t due_ns = 0;
    if (node->state == DP_NODE_REGISTERING &&
        core->now_ns < dp_core_node_calibrated_ns(core, node)) {
        dp_core_sooner(&due_ns, dp_core_node_calibrated_ns(core, node));
    }
    if (node->state != DP_NODE_LOST && core->now_ns < dp_core_node_late_ns(core, node)) {
        dp_core_sooner(&due_ns, dp_core_node_late_ns(core, node));
    }
    if (core->now_ns < node->leave_ns) {
        dp_core_sooner(&due_ns, node->leave_ns);
    }
    if (node->state != DP_NODE_LOST) {
        dp_core_sooner(&due_ns, dp_core_node_lost_ns(core, node));
    } else if (!node->fenced) {
        dp_core_sooner(&due_ns, dp_core_node_fence_ns(core, node));
    }
    return due_ns;
}

static void judge_state(struct dp_core *core, struct core_node *node)
{
    dp_node_state admin;
    char reason[DP_TEXT_MAX];
    if (core->now_ns >= dp_core_node_lost_ns(core, node)) {
        if (node->state != DP_NODE_LOST) {
            lose(core, node);
        }
        if (!node->fenced && core->now_ns >= dp_core_node_fence_ns(core, node)) {
            fence(core, node);
        }
    } else if (dp_core_node_admin_state(core, node, &admin, reason)) {
        set_state(core, node, admin, reason);
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

void dp_core_node_refresh(struct dp_core *core, struct core_node *node)
{
    judge_state(core, node);
    dp_core_node_leave(core, node);
    dp_core_timer_set(core, &node->timer, node_due(core, node));
}

void dp_core_nodes_refresh(struct dp_core *core)
{
    FOR_EACH_NODE(core, node)
    {
        if (node->row.admin == DP_ADMIN_DRAIN) {
            dp_core_node_refresh(core, node);
        }
    }
}

void dp_core_node_seen(struct dp_core *core, struct core_node *node)
{
    node->seen_ns = core->now_ns;
    node->heard = true;
    node->row.last_seen_ns = core->wall_ns;
    node->fenced = false;
    dp_core_node_refresh(core, node);
}

void dp_core_node_deadline(struct dp_core *core, struct core_node *node)
{
    dp_core_node_refresh(core, node);
    dp_core_reschedule(core);
}

void dp_core_hold(struct dp_core *core, const struct dp_hold *hold)
{
    struct core_node *node = dp_core_node_find(core, hold->node);
    if (node != NULL && node->held != hold->on) {
        node->held = hold->on;
        // Jobs wait for it as for one that comes up.
        node->connected_ns = hold->on ? core->now_ns : node->connected_ns;
        dp_core_node_refresh(core, node);
        dp_core_reschedule(core);
    }
}

void dp_core_session_closed(struct dp_core *core, uint64_t session)
{
    struct core_node *node = dp_core_node_session(core, session);
    if (node != NULL) {
        dp_core_node_set_session(core, node, 0);
        dp_core_node_refresh(core, node);
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
    if (before->length > 0) {
        dp_core_avoid_lift(core, node, "it has been measured anew");
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
    dp_core_reschedule(core);
    DP_COPY_TEXT(node->calibration_error, calibration_error == NULL ? "" : calibration_error);
    node->row.slots = row->slots;
    node->row.cores = row->cores;
    node->row.memory_bytes = row->memory_bytes;
    DP_COPY_TEXT(node->row.accelerator, row->accelerator);
    DP_COPY_TEXT(node->row.data_host, row->data_host);
    DP_COPY_TEXT(node->row.place, row->place);
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

// A hello that was on its way while a later one of the same agent arrived says what was.
static bool is_overtaken(const struct core_node *node, const struct dp_hello *hello)
{
    return hello->sent_ns != 0 && hello->sent_ns < node->hello_ns &&
           strcmp(node->row.boot_id, hello->node->boot_id) == 0;
}

void dp_core_load_node(struct dp_core *core, const struct dp_node_record *row)
{
    struct core_node *node = dp_core_node_add(core, row->name);
    if (node != NULL) {
        dp_node_record_copy(&node->row, row);
        // Its lease may have begun when this controller's predecessor ended: it gets all of it.
        node->seen_ns = core->now_ns;
        DP_COPY_TEXT(node->reason, "not heard of since this controller started");
        dp_core_node_load_admin(core, node);
        dp_core_timer_set(core, &node->timer, node_due(core, node));
        dp_core_reschedule(core);
    }
}

// Once for each start of the agent: a session that breaks changes nothing of it.
static void note_amiss(struct dp_core *core, const struct core_node *node,
                       const struct dp_hello *hello)
{
    bool started = strcmp(node->row.instance, hello->node->instance) != 0;
    for (size_t i = 0; started && i < hello->notes_count && i < NOTES_MAX; i++) {
        dp_core_note(core, NULL, node, true, "node.amiss", "%s", hello->notes[i]);
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
    if (node != NULL && is_overtaken(node, hello)) {
        refuse(core, session, row->name, DP_CONFLICT, "a newer session of this agent took over");
        return;
    }
    if (node != NULL && is_taken(core, node, row)) {
        refuse(core, session, row->name, DP_CONFLICT,
               "another agent is connected under this name: give this one another --name");
        return;
    }
    if (node == NULL && (node = dp_core_node_add(core, row->name)) == NULL) {
        refuse(core, session, row->name, DP_UNAVAILABLE, "this controller knows too many nodes");
        return;
    }
    if (node->session != 0 && node->session != session) {
        dp_core_send(core, node, DP_ORDER_REFUSE, NULL, "a newer session of this agent took over");
        core->effects->items[core->effects->count - 1].status = DP_CONFLICT;
    }
    dp_core_node_set_session(core, node, session);
    node->connected_ns = core->now_ns;
    node->protocol = hello->protocol;
    node->hello_ns = hello->sent_ns;
    if (node->row.boot_id[0] != '\0' && strcmp(node->row.boot_id, row->boot_id) != 0) {
        dp_core_avoid_lift(core, node, "it has booted anew");
    }
    note_amiss(core, node, hello);
    DP_COPY_TEXT(node->row.boot_id, row->boot_id);
    DP_COPY_TEXT(node->row.instance, row->instance);
    DP_COPY_TEXT(node->row.version, row->version);
    DP_COPY_TEXT(node->row.address, row->address);
    node->row.lease_ms = row->lease_ms;
    node->row.fence_ms = row->fence_ms;
    take_inventory(core, node, row, hello->calibration_error);
    dp_core_send(core, node, DP_ORDER_WELCOME, NULL, NULL);
    node->heartbeat_ms = dp_core_node_heartbeat_ms(core);
    core->effects->items[core->effects->count - 1].heartbeat_ms = node->heartbeat_ms;
    dp_core_node_seen(core, node);
    dp_core_store(core, DP_RECORD_NODE, &node->row);
    dp_core_hello_levels(core, node, &hello->levels);
}
