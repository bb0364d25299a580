// What people decide about nodes: drained, down, quarantined, forgotten. It is stored with the node
// and stays whatever the node says; only silence ends by itself.
#include "core_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/clock.h"

#define QUARANTINE_SHARE 20 // at most one node of so many is quarantined without being asked

static const char *const admin_words[DP_ADMIN_COUNT] = {
    [DP_ADMIN_DRAIN] = "drained", [DP_ADMIN_DOWN] = "down", [DP_ADMIN_QUARANTINE] = "quarantined"};

// "operator: fan", of what is known of it.
static void give_reason(const struct core_node *node, char *text, size_t size)
{
    const struct dp_node_record *row = &node->row;
    const char *reason = row->admin_reason[0] == '\0' ? admin_words[row->admin] : row->admin_reason;
    snprintf(text, size, "%s%s%.*s", row->admin_by, row->admin_by[0] == '\0' ? "" : ": ",
             DP_TEXT_MAX / 2, reason);
}

// Its deadline was when it was drained, whatever the wall clock says now.
static bool is_forced(const struct dp_node_record *row)
{
    return row->drain_deadline_ns == row->admin_since_ns;
}

bool dp_core_node_admin_state(const struct dp_core *core, const struct core_node *node,
                              dp_node_state *ret_state, char ret_reason[DP_TEXT_MAX])
{
    static const dp_node_state states[DP_ADMIN_COUNT] = {
        [DP_ADMIN_DOWN] = DP_NODE_DOWN, [DP_ADMIN_QUARANTINE] = DP_NODE_QUARANTINED};
    if (node->row.admin == DP_ADMIN_NONE || node->row.admin >= DP_ADMIN_COUNT) {
        return false;
    }
    *ret_state = states[node->row.admin];
    if (node->row.admin == DP_ADMIN_DRAIN) {
        bool empty = dp_core_node_slots_used(core, node) == 0;
        *ret_state = empty ? DP_NODE_DRAINED : DP_NODE_DRAINING;
    }
    char until[32];
    give_reason(node, ret_reason, DP_TEXT_MAX);
    size_t length = strlen(ret_reason);
    if (*ret_state == DP_NODE_DRAINING && node->row.drain_deadline_ns != 0 &&
        !is_forced(&node->row)) {
        snprintf(ret_reason + length, DP_TEXT_MAX - length, "; empty by %s",
                 dp_clock_format_utc(until, node->row.drain_deadline_ns));
    }
    return true;
}

void dp_core_node_explain(const struct core_node *node, char *ret_text, size_t size)
{
    char state[32], reason[DP_TEXT_MAX];
    DP_COPY_TEXT(state, dp_node_state_text(node->state));
    for (char *c = state; *c != '\0'; c++) {
        *c = *c >= 'A' && *c <= 'Z' ? (char)(*c - 'A' + 'a') : *c;
    }
    DP_COPY_TEXT(reason, node->reason);
    if (node->row.admin != DP_ADMIN_NONE) {
        give_reason(node, reason, sizeof(reason));
    }
    if (reason[0] == '\0' || node->state == DP_NODE_LOST || node->state == DP_NODE_LATE) {
        snprintf(ret_text, size, "%s %s", node->row.name, state);
    } else {
        snprintf(ret_text, size, "%s %s (%.*s)", node->row.name, state, (int)(size / 2), reason);
    }
}

static void store(struct dp_core *core, struct core_node *node)
{
    dp_core_store(core, DP_RECORD_NODE, &node->row);
    node->admin_token = core->rows_token = dp_core_token(core);
}

void dp_core_admins_stored(struct dp_core *core, const struct dp_stored *stored)
{
    FOR_EACH_NODE(core, node)
    {
        if (node->admin_token == stored->token) {
            node->admin_token = 0;
            node->admin_unstored = stored->error.status != DP_OK;
        }
    }
    struct core_node **link = &core->gone_nodes;
    while (*link != NULL) {
        struct core_node *gone = *link;
        bool answered = gone->admin_token == stored->token;
        gone->admin_unstored = gone->admin_unstored || (answered && stored->error.status != DP_OK);
        if (answered && stored->error.status == DP_OK) {
            *link = gone->next;
            dp_core_node_free(gone);
        } else {
            link = &gone->next;
        }
    }
}

void dp_core_admins_store(struct dp_core *core)
{
    FOR_EACH_NODE(core, node)
    {
        if (node->admin_unstored) {
            node->admin_unstored = false;
            store(core, node);
        }
    }
    for (struct core_node *gone = core->gone_nodes; gone != NULL; gone = gone->next) {
        if (gone->admin_unstored) {
            gone->admin_unstored = false;
            store(core, gone);
        }
    }
}

void dp_core_admin_returns(struct dp_core *core, struct core_node *node)
{
    struct core_node **link = &core->gone_nodes;
    while (*link != NULL && strcmp((*link)->row.name, node->row.name) != 0) {
        link = &(*link)->next;
    }
    struct core_node *gone = *link;
    if (gone != NULL) {
        // What its deletion was to wipe out is written over, however often that takes.
        *link = gone->next;
        dp_core_node_free(gone);
        store(core, node);
    }
}

static void set_admin(struct dp_core *core, struct core_node *node, dp_node_admin admin,
                      const char *by, const char *reason)
{
    struct dp_node_record *row = &node->row;
    // Whoever decides the same again, and gives no reason, does not take back the one that was
    // given.
    bool same = row->admin == admin && reason[0] == '\0';
    row->admin = admin;
    if (!same) {
        DP_COPY_TEXT(row->admin_by, by);
        DP_COPY_TEXT(row->admin_reason, reason);
    }
    row->admin_since_ns = admin == DP_ADMIN_NONE ? 0 : core->wall_ns;
    row->drain_deadline_ns = 0;
    node->leave_ns = 0;
    store(core, node);
    dp_core_reschedule(core);
}

static const char *leave_reason(const struct core_node *node)
{
    return node->row.admin == DP_ADMIN_DRAIN ? "Drained" : "NodeDown";
}

// Its jobs begin again elsewhere, from checkpoints that they write now.
static void clear(struct dp_core *core, struct core_job *job, const struct core_node *node)
{
    bool has_ranks = job->row.state == DP_STATE_ASSIGNING || job->row.state == DP_STATE_RUNNING ||
                     job->row.state == DP_STATE_REASSIGNING;
    char why[DP_TEXT_MAX], reason[DP_TEXT_MAX];
    if (!has_ranks || dp_core_job_over(job, node->row.name)) {
        return;
    }
    give_reason(node, reason, sizeof(reason));
    snprintf(why, sizeof(why), "node %s is %s (%.*s)", node->row.name,
             node->row.admin == DP_ADMIN_DRAIN ? "drained" : "down", DP_TEXT_MAX / 2, reason);
    dp_core_job_make_way(core, job, leave_reason(node), why);
}

// Ranks move while the job trains, if they can.
static void move_away(struct dp_core *core, struct core_job *job, const struct core_node *node)
{
    if (job->row.state == DP_STATE_RUNNING && !dp_core_job_over(job, node->row.name)) {
        dp_core_reassign_away(core, job, node->row.name);
    }
}

void dp_core_node_leave(struct dp_core *core, struct core_node *node)
{
    // Again and again: what is LOST now, or loaded a moment later, has to go, too.
    if (node->leave_ns != 0 && core->now_ns >= node->leave_ns) {
        dp_core_node_each_job(core, node, clear);
    }
}

static void drain(struct dp_core *core, struct core_node *node, const struct dp_node_ask *ask)
{
    set_admin(core, node, DP_ADMIN_DRAIN, ask->by, ask->reason);
    if (ask->force) {
        node->leave_ns = core->now_ns;
        node->row.drain_deadline_ns = node->row.admin_since_ns;
    } else if (ask->deadline_ms > 0) {
        node->leave_ns = core->now_ns + ask->deadline_ms * DP_NS_PER_MS;
        node->row.drain_deadline_ns = core->wall_ns + ask->deadline_ms * DP_NS_PER_MS;
    }
    if (!ask->force) {
        dp_core_node_each_job(core, node, move_away);
    }
}

// Its ranks were told to end, to begin again elsewhere.
static void describe_way(const struct core_job *job, char *text, size_t size)
{
    unsigned long long step = job->row.step, kept = job->row.checkpoint_step;
    if (job->stop_checkpoint) {
        snprintf(text, size, "writes a checkpoint now and begins again elsewhere from it");
    } else if (job->row.checkpoint[0] != '\0') {
        snprintf(text, size,
                 "begins again elsewhere from its newest checkpoint, of step %llu: %llu steps are "
                 "taken again",
                 kept, step > kept ? step - kept : 0);
    } else {
        snprintf(text, size, "has no checkpoint and begins anew elsewhere: its %llu steps are lost",
                 step);
    }
}

void dp_core_node_job_fate(const struct dp_core *core, const char *node, const char *job,
                           char *ret_text, size_t size)
{
    const struct core_job *found = dp_core_job_number(core, dp_core_number_of(job));
    const struct core_node *at = dp_core_node_find(core, node);
    ret_text[0] = '\0';
    if (found == NULL || at == NULL) {
        return;
    }
    bool trains = found->row.state == DP_STATE_RUNNING || found->row.state == DP_STATE_REASSIGNING;
    if (found->row.state == DP_STATE_STOPPING && found->row.outcome == DP_STATE_QUEUED) {
        describe_way(found, ret_text, size);
    } else if (found->row.state == DP_STATE_STOPPING) {
        snprintf(ret_text, size, "is ending");
    } else if (trains && at->row.admin == DP_ADMIN_DRAIN) {
        snprintf(ret_text, size,
                 "moves to other nodes while it trains, if there is room; else it %s",
                 at->leave_ns == 0 ? "ends there" : "begins again elsewhere at the deadline");
    } else {
        snprintf(ret_text, size, "goes on there");
    }
}

// NULL when it may go: nothing of it can be heard or left.
static const char *why_kept(const struct dp_core *core, const struct core_node *node)
{
    if (node->session != 0) {
        return "it is connected: stop its agent first";
    }
    // What was there before this controller was started, only the node can say.
    bool unheard = !node->listed && !node->fenced;
    if (unheard || dp_core_node_slots_used(core, node) > 0) {
        return "ranks may still run there: wait until they have surely ended (`dpctl nodes` says "
               "when)";
    }
    return NULL;
}

static void note_gone(struct dp_core *core, struct core_job *job, const struct core_node *node)
{
    struct core_member *member = dp_core_job_member(job, node->row.name);
    (void)core;
    if (member != NULL) {
        member->at = NULL;
        member->used = 0;
    }
}

static void forget(struct dp_core *core, struct core_node *node)
{
    dp_core_node_each_job(core, node, note_gone);
    dp_core_note(core, NULL, node, false, "node.forgotten", "%s", node->row.name);
    node->row.deleted = true;
    core->index++;
    store(core, node);
    dp_core_node_remove(core, node);
    dp_core_reschedule(core);
}

static void apply(struct dp_core *core, struct core_node *node, const struct dp_node_ask *ask)
{
    switch (ask->action) {
    case DP_NODE_DRAIN:
        drain(core, node, ask);
        break;
    case DP_NODE_UNDRAIN:
        node->suspicions = 0;
        set_admin(core, node, DP_ADMIN_NONE, "", "");
        dp_core_avoid_lift(core, node, "an operator says that it may be used");
        break;
    case DP_NODE_SET_DOWN:
        set_admin(core, node, DP_ADMIN_DOWN, ask->by, ask->reason);
        node->leave_ns = core->now_ns;
        break;
    case DP_NODE_QUARANTINE:
        set_admin(core, node, DP_ADMIN_QUARANTINE, ask->by, ask->reason);
        break;
    case DP_NODE_FORGET:
        break;
    }
    dp_core_note(core, NULL, node, false, "node.admin", "%s%s%s%s%s", ask->word,
                 ask->by[0] == '\0' ? "" : " by ", ask->by, ask->reason[0] == '\0' ? "" : ": ",
                 ask->reason);
    dp_core_node_refresh(core, node);
}

void dp_core_node_ask(struct dp_core *core, const struct dp_node_ask *ask)
{
    struct core_node *node = dp_core_node_find(core, ask->node);
    if (node == NULL) {
        dp_core_reply_error(core, ask->reply, DP_NOT_FOUND,
                            "no node \"%s\" (`dpctl nodes` lists them)", ask->node);
        return;
    }
    if (ask->action == DP_NODE_FORGET) {
        const char *kept = why_kept(core, node);
        if (kept != NULL) {
            dp_core_reply_error(core, ask->reply, DP_CONFLICT, "%s cannot be forgotten: %s",
                                ask->node, kept);
            return;
        }
        forget(core, node);
    } else {
        apply(core, node, ask);
    }
    dp_core_reply_row(core, ask->reply, ask->node);
}

void dp_core_node_load_admin(struct dp_core *core, struct core_node *node)
{
    // Ranks may have ended while no controller ran: nodes have a moment to say so.
    int64_t settle_ns = core->config.settle_ms * DP_NS_PER_MS;
    int64_t left_ns = is_forced(&node->row) ? 0 : node->row.drain_deadline_ns - core->wall_ns;
    if (node->row.admin == DP_ADMIN_DRAIN && node->row.drain_deadline_ns != 0) {
        node->leave_ns = core->now_ns + (left_ns > settle_ns ? left_ns : settle_ns);
    } else if (node->row.admin == DP_ADMIN_DOWN) {
        node->leave_ns = core->now_ns + settle_ns;
    }
}

// Whether one node less is none too few: of what is there for new work, so much is left that what
// runs would find a place.
static bool can_spare(const struct dp_core *core, const struct core_node *suspect)
{
    uint32_t quarantined = 0, slots = 0, used = 0;
    FOR_EACH_NODE(core, node)
    {
        quarantined += node->row.admin == DP_ADMIN_QUARANTINE;
        bool works = node->state == DP_NODE_READY || node->state == DP_NODE_REGISTERING;
        slots += works && node != suspect ? node->row.slots : 0;
        used += dp_core_node_slots_used(core, node);
    }
    size_t most = core->nodes_count / QUARANTINE_SHARE;
    return quarantined < (most > 0 ? most : 1) && slots >= used;
}

static void quarantine(struct dp_core *core, struct core_node *node, const char *why)
{
    if (node->row.admin != DP_ADMIN_NONE) {
        return;
    }
    if (!can_spare(core, node)) {
        dp_core_note(core, NULL, node, true, "node.suspect",
                     "it would be quarantined (%s), but the cluster cannot spare it", why);
        return;
    }
    set_admin(core, node, DP_ADMIN_QUARANTINE, "controller", why);
    dp_core_node_refresh(core, node);
}

void dp_core_node_suspect(struct dp_core *core, struct core_node *node, const char *why)
{
    int64_t since_ns = core->now_ns - core->config.suspect_ms * DP_NS_PER_MS;
    // Those that are too old by now, and the oldest when there is no room, make way.
    uint32_t gone = node->suspicions == CORE_SUSPICIONS_MAX ? 1 : 0;
    while (gone < node->suspicions && node->suspected_ns[gone] < since_ns) {
        gone++;
    }
    node->suspicions -= gone;
    memmove(node->suspected_ns, node->suspected_ns + gone,
            node->suspicions * sizeof(*node->suspected_ns));
    node->suspected_ns[node->suspicions++] = core->now_ns;
    dp_core_note(core, NULL, node, true, "node.suspect", "%u of %d: %s", node->suspicions,
                 CORE_SUSPICIONS_MAX, why);
    if (node->suspicions == CORE_SUSPICIONS_MAX) {
        char text[DP_TEXT_MAX];
        snprintf(text, sizeof(text), "suspected %u times within %u s, the last time: %.*s",
                 node->suspicions, core->config.suspect_ms / 1000, DP_TEXT_MAX / 2, why);
        quarantine(core, node, text);
    }
}

int64_t dp_core_node_suspected_ns(const struct core_node *node)
{
    return node->suspicions == 0 ? 0 : node->suspected_ns[node->suspicions - 1];
}

void dp_core_node_unfit(struct dp_core *core, struct core_node *node, const char *why)
{
    quarantine(core, node, why);
}
