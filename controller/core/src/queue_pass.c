// Who of those that wait is planned next, and what the others are told.
//
// Order: priority, then submission. With `strict` nobody goes before a job that fits into the
// cluster as it is. With `best-effort` smaller ones may pass it for pass_ms, counted from the first
// that did; then room is kept for it until it has enough. Jobs that wait for something of their own
// (a quota, a moment, more nodes than there are) are passed by everybody, always.
#include "core_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/clock.h"

#define TOLD_MAX 16 // jobs that are told in numbers what they lack; the others wait behind them

static void wait_for(struct core_job *job, const char *reason, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void wait_for(struct core_job *job, const char *reason, const char *format, ...)
{
    char message[DP_TEXT_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof(message), format, args);
    va_end(args);
    if (strcmp(job->row.reason, reason) != 0 || strcmp(job->row.message, message) != 0) {
        DP_COPY_TEXT(job->row.reason, reason);
        DP_COPY_TEXT(job->row.message, message);
        dp_core_job_changed(job);
    }
}

static void wait_held(struct core_job *job)
{
    const struct dp_job_record *row = &job->row;
    wait_for(job, "Held", "held by %s%s%s%s", row->held_by[0] == '\0' ? "somebody" : row->held_by,
             row->held_reason[0] == '\0' ? "" : " (", row->held_reason,
             row->held_reason[0] == '\0' ? "" : ")");
}

// The text of those behind does not change with what happens ahead of them.
static void wait_behind(struct core_job *job)
{
    if (job->row.held_ns != 0) {
        wait_held(job);
        return;
    }
    static const char reason[] = "WaitingForEarlierJobs";
    if (strcmp(job->row.reason, reason) != 0) {
        wait_for(job, reason, "earlier jobs go first");
    }
}

bool dp_core_node_open(bool needs_profile, const struct core_node *node)
{
    return node->state == DP_NODE_READY ||
           (node->state == DP_NODE_REGISTERING && !needs_profile && !node->held);
}

bool dp_core_node_usable(const struct core_job *job, const struct core_node *node)
{
    return dp_core_node_open(job->row.needs_profile, node) &&
           !dp_core_job_avoids(job, node->row.name);
}

uint32_t dp_core_node_slots_free(const struct dp_core *core, const struct core_node *node)
{
    uint32_t used = dp_core_node_slots_used(core, node);
    bool unknown = dp_core_node_has_leftover(node, "");
    return node->row.slots > used && !unknown ? node->row.slots - used : 0;
}

struct pass {
    struct dp_core *core;
    struct core_supply supplies[2]; // by needs_profile
    struct core_job *planned; // is being planned: one at a time, two could want the same slots
    struct core_job *first;   // the first that fits into the cluster and lacks room
    bool closed;              // none behind it may start
    uint32_t told, depth;
};

static void count_uncalibrated(const struct dp_core *core, const struct core_node *node,
                               struct core_supply *supply)
{
    if (node->calibration_error[0] == '\0' &&
        core->now_ns < dp_core_node_calibrated_ns(core, node)) {
        supply->waits = node;
        supply->waits_slots += node->row.slots;
        supply->nodes_here++;
        supply->slots_here += node->row.slots;
    } else {
        supply->failed = node;
    }
}

void dp_core_supply_measure(const struct dp_core *core, bool needs_profile,
                            const struct core_job *job, struct core_supply *supply)
{
    *supply = (struct core_supply){0};
    FOR_EACH_NODE(core, node)
    {
        supply->nodes_known++;
        if (job != NULL && dp_core_job_avoids(job, node->row.name)) {
            continue;
        }
        if (dp_core_node_open(needs_profile, node)) {
            supply->nodes++;
            supply->free += dp_core_node_slots_free(core, node);
            supply->total += node->row.slots;
        } else if (node->state == DP_NODE_REGISTERING) {
            count_uncalibrated(core, node, supply);
        } else if (node->state == DP_NODE_LATE) {
            supply->nodes_here++;
            supply->slots_here += node->row.slots;
        }
    }
    supply->nodes_here += supply->nodes;
    supply->slots_here += supply->total;
}

// What there is for the job: few have nodes that they stay off, and count for themselves.
static const struct core_supply *supply_of(const struct pass *pass, const struct core_job *job)
{
    const struct core_supply *all = &pass->supplies[job->row.needs_profile];
    if (job->row.avoid[0] == '\0') {
        return all;
    }
    struct core_supply *own = dp_arena_alloc(&pass->core->effects->arena, sizeof(*own));
    dp_core_supply_measure(pass->core, job->row.needs_profile, job, own);
    own->free = own->free < all->free ? own->free : all->free; // some are spoken for
    return own;
}

// Of the slots that are free, these are spoken for.
static void reserve(struct pass *pass, uint32_t ranks)
{
    for (int i = 0; i < 2; i++) {
        struct core_supply *supply = &pass->supplies[i];
        supply->free -= ranks < supply->free ? ranks : supply->free;
    }
}

static void wait_for_calibration(struct core_job *job, const struct core_supply *supply)
{
    uint32_t wanted = (uint32_t)job->row.ranks_wanted;
    if (supply->waits != NULL) {
        wait_for(job, "WaitingForCalibration",
                 "needs %u ranks, %u free of %u; %s with %u slots is being calibrated", wanted,
                 supply->free, supply->total, supply->waits->row.name, supply->waits_slots);
        return;
    }
    const struct core_node *node = supply->failed;
    bool known = node->calibration_error[0] != '\0';
    wait_for(job, "WaitingForCalibration",
             "needs %u ranks, %u free of %u; %s with %u slots is not calibrated: %.*s", wanted,
             supply->free, supply->total, node->row.name, node->row.slots, DP_TEXT_MAX / 2,
             known ? node->calibration_error : "it takes longer than usual");
}

// "1 node", or "3 of 8 nodes: n7 draining (operator: fan)" with why the others get no work.
static const char *list_nodes(const struct pass *pass, const struct core_job *job,
                              const struct core_supply *supply, char text[DP_TEXT_MAX / 2])
{
    const size_t size = DP_TEXT_MAX / 2;
    const char *plural = supply->nodes_known == 1 ? "" : "s";
    if (supply->nodes == supply->nodes_known) {
        snprintf(text, size, "%u node%s", supply->nodes, plural);
        return text;
    }
    size_t length = (size_t)snprintf(text, size, "%u of %u node%s: ", supply->nodes,
                                     supply->nodes_known, plural);
    uint32_t named = 0, most = 3;
    FOR_EACH_NODE(pass->core, node)
    {
        if (!dp_core_node_usable(job, node) && named < most && length + 1 < size) {
            char why[DP_TEXT_MAX / 4];
            if (dp_core_job_avoids(job, node->row.name)) {
                snprintf(why, sizeof(why), "%s left out (%.*s; `dpctl undrain %s` lets it in)",
                         node->row.name, (int)sizeof(why) / 3, job->row.avoid_why, node->row.name);
            } else {
                dp_core_node_explain(node, why, sizeof(why) / 2);
            }
            length += (size_t)snprintf(text + length, size - length, "%s%s",
                                       named++ == 0 ? "" : ", ", why);
        }
    }
    uint32_t more = supply->nodes_known - supply->nodes - named;
    if (more > 0 && length + 1 < size) {
        snprintf(text + length, size - length, " and %u more", more);
    }
    return text;
}

static void wait_for_room(struct pass *pass, struct core_job *job, const struct core_supply *supply)
{
    char nodes[DP_TEXT_MAX / 2];
    uint32_t wanted = (uint32_t)job->row.ranks_wanted;
    list_nodes(pass, job, supply, nodes);
    if (supply->nodes == 0) {
        wait_for(job, "WaitingForNodes", "needs %u ranks, no node is connected%s%s", wanted,
                 supply->nodes_known == 0 ? "" : "; ", supply->nodes_known == 0 ? "" : nodes);
    } else if (supply->slots_here < wanted) {
        wait_for(job, "WaitingForNodes",
                 "needs %u ranks, the cluster has %u in all on %s: it waits for more nodes, and "
                 "others go first",
                 wanted, supply->slots_here, nodes);
    } else {
        wait_for(job, "WaitingForRanks", "needs %u ranks, %u free of %u on %s", wanted,
                 supply->free, supply->total, nodes);
    }
}

core_verdict dp_core_supply_judge(const struct core_supply *supply, uint32_t free,
                                  const struct core_job *job, bool *ret_calibrates)
{
    uint32_t wanted = (uint32_t)job->row.ranks_wanted;
    bool enough = free >= wanted, fits = supply->slots_here >= wanted;
    // More ranks may be used than are wanted at least, so nodes that come up are waited for.
    *ret_calibrates = (supply->waits != NULL && (!enough || !job->row.ranks_fixed)) ||
                      (supply->failed != NULL && !fits);
    if (enough && !*ret_calibrates) {
        return CORE_CAN_PLAN;
    }
    return fits ? CORE_LACKS_ROOM : CORE_NEVER_FITS;
}

static core_verdict judge(struct pass *pass, struct core_job *job)
{
    const struct core_supply *supply = supply_of(pass, job);
    bool calibrates = false;
    core_verdict found = dp_core_supply_judge(supply, supply->free, job, &calibrates);
    if (found == CORE_CAN_PLAN) {
        return found;
    }
    if (pass->told >= TOLD_MAX) {
        wait_behind(job);
    } else if (calibrates) {
        wait_for_calibration(job, supply);
    } else {
        wait_for_room(pass, job, supply);
    }
    pass->told++;
    pass->depth += found == CORE_LACKS_ROOM;
    return found;
}

// The lowest numbers that no rank of the core's jobs has. What a node runs of jobs that are not the
// core's takes slots, too, and has no numbers: the highest are left to it.
static const uint32_t *free_numbers(struct dp_core *core, const struct core_node *node,
                                    uint32_t count)
{
    uint32_t *numbers = dp_arena_alloc(&core->effects->arena, (count + 1) * sizeof(*numbers));
    bool *taken = dp_arena_alloc(&core->effects->arena, node->row.slots + 1);
    dp_core_node_mark_slots(core, node, taken);
    uint32_t found = 0;
    for (uint32_t slot = 0; slot < node->row.slots && found < count; slot++) {
        if (!taken[slot]) {
            numbers[found++] = slot;
        }
    }
    return numbers;
}

static void ask_for_plan(struct pass *pass, struct core_job *job)
{
    struct dp_core *core = pass->core;
    const struct core_node **chosen = NULL;
    size_t count = dp_core_queue_choose(core, job, &chosen);
    struct dp_free_slots *slots = dp_arena_alloc(&core->effects->arena, count * sizeof(*slots));
    uint32_t left = dp_core_quota_left(core, job);
    size_t filled = 0;
    for (size_t i = 0; i < count && left > 0; i++) {
        uint32_t free_count = dp_core_node_slots_free(core, chosen[i]);
        free_count = free_count < left ? free_count : left;
        left -= free_count;
        slots[filled++] = (struct dp_free_slots){&chosen[i]->row, free_count,
                                                 free_numbers(core, chosen[i], free_count)};
    }
    job->planning = true;
    core->planned = job;
    dp_core_quota_take(core, job);
    struct dp_effect *effect = dp_core_effect(core, DP_EFFECT_PLAN);
    effect->job = job->row.number;
    effect->nodes = slots;
    effect->nodes_count = filled;
}

// It waits for something of its own. Says so.
static bool waits_alone(struct pass *pass, struct core_job *job)
{
    char when[32];
    if (job->row.held_ns != 0) {
        wait_held(job);
        return true;
    }
    if (job->backoff_ns > pass->core->now_ns) {
        // The message says why the attempt before ended.
        if (strcmp(job->row.reason, "Backoff") != 0) {
            char before[DP_TEXT_MAX];
            DP_COPY_TEXT(before, job->row.message);
            wait_for(job, "Backoff", "attempt %u begins at %s%s%.*s", job->row.attempt,
                     dp_clock_format_utc(when, job->row.retry_at_ns), before[0] == '\0' ? "" : "; ",
                     DP_TEXT_MAX - 64, before);
        }
        return true;
    }
    char text[DP_TEXT_MAX];
    if (!dp_core_quota_allows(pass->core, job, text, sizeof(text))) {
        wait_for(job, "OverQuota", "%s", text);
        return true;
    }
    return false;
}

static void start(struct pass *pass, struct core_job *job)
{
    if (pass->first != NULL && pass->first->passed_ns == 0) {
        pass->first->passed_ns = pass->core->now_ns;
    }
    if (pass->planned != NULL) {
        wait_for(job, "WaitingForPlanning", "another job is being planned");
    } else {
        pass->planned = job;
        wait_for(job, "Planning", "choosing a layout");
        ask_for_plan(pass, job);
    }
    reserve(pass, (uint32_t)job->row.ranks_wanted);
}

bool dp_core_queue_closes(const struct dp_core *core, int64_t passed_ns, int64_t now_ns)
{
    return core->config.queue == DP_QUEUE_STRICT ||
           (passed_ns != 0 && now_ns >= passed_ns + core->config.pass_ms * DP_NS_PER_MS);
}

// The first that lacks room: others may make way for it, and there is an end to being passed.
static void lead(struct pass *pass, struct core_job *job)
{
    const struct dp_core *core = pass->core;
    bool freed = dp_core_preempt(pass->core, job, supply_of(pass, job)->free);
    pass->first = job;
    pass->closed = freed || dp_core_queue_closes(core, job->passed_ns, core->now_ns);
    if (freed) {
        wait_for(job, "WaitingForPreemption", "jobs of lower priority make way for it");
    }
}

// Another one is the first now. Who has made way would begin again at once, and make way once more.
static void keep_room(struct pass *pass, struct core_job *job)
{
    if (dp_core_preempt_coming(pass->core, job) > 0) {
        wait_for(job, "WaitingForPreemption", "jobs of lower priority make way for it");
        reserve(pass, (uint32_t)job->row.ranks_wanted);
    }
}

static void look_at(struct pass *pass, struct core_job *job)
{
    if ((job->planning && job->row.held_ns == 0) || waits_alone(pass, job)) {
        return;
    }
    if (pass->closed) {
        wait_behind(job);
        pass->told++;
        return;
    }
    core_verdict found = judge(pass, job);
    if (found == CORE_CAN_PLAN) {
        start(pass, job);
    } else if (found == CORE_LACKS_ROOM && pass->first == NULL) {
        lead(pass, job);
    } else if (found == CORE_LACKS_ROOM) {
        keep_room(pass, job);
    }
}

// Nobody behind can start any more, and nobody has to be told why.
static bool is_over(const struct pass *pass)
{
    bool none = pass->supplies[0].free == 0 && pass->supplies[1].free == 0;
    return pass->told >= TOLD_MAX && (pass->closed || none || pass->depth >= CORE_DEPTH_MAX);
}

// The rest of the queue: those who have come in since.
static void wait_rest(struct dp_core *core)
{
    for (struct core_job *job = core->queue_last; core->fresh > 0; job = job->ahead) {
        if (job->fresh) {
            wait_behind(job);
            job->fresh = false;
            core->fresh--;
        }
    }
}

void dp_core_schedule(struct dp_core *core)
{
    dp_core_nodes_refresh(core);
    core->lacks_room = false;
    if (core->queue == NULL) {
        return;
    }
    struct pass pass = {.core = core, .planned = core->planned};
    dp_core_quotas_count(core);
    dp_core_supply_measure(core, false, NULL, &pass.supplies[0]);
    dp_core_supply_measure(core, true, NULL, &pass.supplies[1]);
    if (pass.planned != NULL) {
        reserve(&pass, (uint32_t)pass.planned->row.ranks_wanted);
    }
    for (struct core_job *job = core->queue; job != NULL && !is_over(&pass); job = job->behind) {
        core->fresh -= job->fresh;
        job->fresh = false;
        look_at(&pass, job);
    }
    wait_rest(core);
    core->last_closed = pass.closed || pass.depth >= CORE_DEPTH_MAX;
    core->last_told = pass.told;
    core->lacks_room = pass.first != NULL;
    core->lacks_priority = pass.first != NULL ? pass.first->row.priority : 0;
    core->last_free[0] = pass.supplies[0].free;
    core->last_free[1] = pass.supplies[1].free;
}

bool dp_core_schedule_fresh(struct dp_core *core)
{
    size_t left = core->fresh;
    const struct core_job *job = core->queue_last;
    while (left > 0 && job != NULL && job->fresh && core->last_told >= TOLD_MAX &&
           (core->last_closed ||
            core->last_free[job->row.needs_profile] < (uint32_t)job->row.ranks_wanted)) {
        job = job->ahead;
        left--;
    }
    if (left > 0) {
        return false;
    }
    wait_rest(core);
    return true;
}
