#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/clock.h"
#include "internal.h"

struct dp_agent_core *dp_agent_core_new(uint32_t orphan_ms, int64_t heard_ns)
{
    struct dp_agent_core *core = dp_new(struct dp_agent_core);
    core->orphan_ns = orphan_ms * DP_NS_PER_MS;
    core->heard_ns = heard_ns;
    core->unkillable_ns = DP_AGENT_UNKILLABLE_MS * DP_NS_PER_MS;
    return core;
}

void dp_agent_core_set_unkillable(struct dp_agent_core *core, uint32_t unkillable_ms)
{
    core->unkillable_ns = unkillable_ms * DP_NS_PER_MS;
}

void dp_agent_core_free(struct dp_agent_core *core)
{
    for (size_t i = 0; i < core->count; i++) {
        dp_agent_assignment_free(core->assignments[i]);
    }
    free(core);
}

size_t dp_agent_core_count(const struct dp_agent_core *core)
{
    return core->count;
}

const struct dp_agent_assignment *dp_agent_core_at(const struct dp_agent_core *core, size_t index)
{
    return core->assignments[index];
}

struct dp_agent_assignment *dp_agent_core_held(struct dp_agent_core *core,
                                               const struct dp_agent_fence *fence)
{
    for (size_t i = 0; i < core->count; i++) {
        if (dp_agent_fence_equal(&core->assignments[i]->fence, fence)) {
            return core->assignments[i];
        }
    }
    return NULL;
}

const struct dp_agent_assignment *dp_agent_core_find(const struct dp_agent_core *core,
                                                     const struct dp_agent_fence *fence)
{
    return dp_agent_core_held((struct dp_agent_core *)core, fence);
}

int dp_agent_fence_compare(const struct dp_agent_fence *a, const struct dp_agent_fence *b)
{
    if (a->attempt != b->attempt) {
        return a->attempt < b->attempt ? -1 : 1;
    }
    return a->epoch < b->epoch ? -1 : a->epoch > b->epoch;
}

const struct dp_agent_fence *dp_agent_core_seen(const struct dp_agent_core *core, const char *job)
{
    for (size_t i = 0; i < core->seen_count; i++) {
        if (strcmp(core->seen[i].job, job) == 0) {
            return &core->seen[i];
        }
    }
    return NULL;
}

void dp_agent_core_see(struct dp_agent_core *core, const struct dp_agent_fence *fence)
{
    struct dp_agent_fence *known = (struct dp_agent_fence *)dp_agent_core_seen(core, fence->job);
    if (known != NULL) {
        if (dp_agent_fence_compare(fence, known) > 0) {
            *known = *fence;
        }
        return;
    }
    core->seen[core->seen_next] = *fence;
    core->seen_next = (core->seen_next + 1) % FENCES_KEPT;
    core->seen_count += core->seen_count < FENCES_KEPT ? 1 : 0;
}

struct dp_agent_assignment *dp_agent_core_add(struct dp_agent_core *core,
                                              const struct dp_agent_fence *fence)
{
    if (core->count == DP_AGENT_ASSIGNMENTS_MAX) {
        return NULL;
    }
    dp_agent_core_see(core, fence);
    core->assignments[core->count] = dp_agent_assignment_new(fence);
    return core->assignments[core->count++];
}

void dp_agent_core_remove(struct dp_agent_core *core, struct dp_agent_assignment *assignment)
{
    for (size_t i = 0; i < core->count; i++) {
        if (core->assignments[i] == assignment) {
            memmove(&core->assignments[i], &core->assignments[i + 1],
                    (core->count - i - 1) * sizeof core->assignments[0]);
            core->count--;
            dp_agent_assignment_free(assignment);
            return;
        }
    }
}

void dp_agent_core_level(struct dp_agent_core *core, const struct dp_agent_assignment *assignment,
                         struct dp_agent_effects *effects)
{
    if (core->stream_up) {
        (void)dp_agent_effects_add(effects, DP_AGENT_DO_LEVEL, &assignment->fence);
    }
}

// Ranks that no keeper holds, and now never will.
static void end_unstarted(struct dp_agent_assignment *assignment)
{
    for (size_t i = 0; i < assignment->ranks_count; i++) {
        if (!assignment->ranks[i].ended && assignment->ranks[i].phase == DP_AGENT_UNKNOWN) {
            dp_agent_rank_end(&assignment->ranks[i], 0, 0);
        }
    }
}

void dp_agent_core_expect_end(struct dp_agent_core *core, struct dp_agent_assignment *assignment,
                              uint32_t grace_ms)
{
    int64_t by_ns = core->now_ns + grace_ms * DP_NS_PER_MS + core->unkillable_ns;
    assignment->gone_by_ns = by_ns < assignment->gone_by_ns ? by_ns : assignment->gone_by_ns;
}

void dp_agent_core_stop(struct dp_agent_core *core, struct dp_agent_assignment *assignment,
                        uint32_t grace_ms, struct dp_agent_effects *effects)
{
    assignment->stopping = true;
    if (assignment->keeper == DP_AGENT_KEEPER_NONE) {
        assignment->keeper = DP_AGENT_KEEPER_GONE;
        end_unstarted(assignment);
        dp_agent_core_level(core, assignment, effects);
    } else if (assignment->keeper == DP_AGENT_KEEPER_CONNECTED) {
        end_unstarted(assignment);
        // A keeper without ranks goes at once: a later agent that found it would start them.
        dp_agent_effect_type type =
            dp_agent_assignment_ended(assignment) ? DP_AGENT_DO_SHUTDOWN : DP_AGENT_DO_STOP;
        dp_agent_effects_add(effects, type, &assignment->fence)->grace_ms = grace_ms;
        dp_agent_core_expect_end(core, assignment, grace_ms);
    }
}

bool dp_agent_must_end_before(const struct dp_agent_assignment *older,
                              const struct dp_agent_assignment *newer)
{
    bool spared = newer->beside && older->fence.attempt == newer->fence.attempt;
    return strcmp(older->fence.job, newer->fence.job) == 0 && !spared &&
           dp_agent_fence_compare(&older->fence, &newer->fence) < 0 &&
           !dp_agent_assignment_ended(older);
}

static bool older_runs(const struct dp_agent_core *core, const struct dp_agent_assignment *newer)
{
    for (size_t i = 0; i < core->count; i++) {
        if (dp_agent_must_end_before(core->assignments[i], newer)) {
            return true;
        }
    }
    return false;
}

static bool let_go_one(struct dp_agent_core *core, struct dp_agent_effects *effects)
{
    for (size_t i = 0; i < core->count; i++) {
        struct dp_agent_assignment *assignment = core->assignments[i];
        if (!assignment->releasing || !dp_agent_assignment_ended(assignment)) {
            continue;
        }
        if (assignment->keeper == DP_AGENT_KEEPER_AWAY) {
            continue;
        }
        if (assignment->keeper == DP_AGENT_KEEPER_CONNECTED) {
            (void)dp_agent_effects_add(effects, DP_AGENT_DO_SHUTDOWN, &assignment->fence);
        }
        (void)dp_agent_effects_add(effects, DP_AGENT_DO_FORGET, &assignment->fence);
        dp_agent_core_remove(core, assignment);
        return true;
    }
    return false;
}

void dp_agent_core_settle(struct dp_agent_core *core, struct dp_agent_effects *effects)
{
    while (let_go_one(core, effects)) {
    }
    for (size_t i = 0; i < core->count; i++) {
        struct dp_agent_assignment *assignment = core->assignments[i];
        if (assignment->keeper == DP_AGENT_KEEPER_NONE && !older_runs(core, assignment)) {
            assignment->keeper = DP_AGENT_KEEPER_AWAY;
            struct dp_agent_effect *effect =
                dp_agent_effects_add(effects, DP_AGENT_DO_START_KEEPER, &assignment->fence);
            effect->bytes = assignment->prepare.bytes;
            effect->length = assignment->prepare.length;
        }
    }
}

static void on_stream_up(struct dp_agent_core *core, struct dp_agent_assignment *assignment,
                         const struct dp_agent_event *event, struct dp_agent_effects *effects)
{
    (void)assignment;
    (void)event;
    core->stream_up = true;
    for (size_t i = 0; i < core->count; i++) {
        dp_agent_core_level(core, core->assignments[i], effects);
        for (size_t r = 0; r < core->assignments[i]->ranks_count; r++) {
            dp_agent_steps_send(core->assignments[i]->ranks[r].steps, effects);
        }
    }
}

static void on_stream_down(struct dp_agent_core *core, struct dp_agent_assignment *assignment,
                           const struct dp_agent_event *event, struct dp_agent_effects *effects)
{
    (void)assignment;
    (void)event;
    (void)effects;
    core->stream_up = false;
}

static void on_acknowledged(struct dp_agent_core *core, struct dp_agent_assignment *assignment,
                            const struct dp_agent_event *event, struct dp_agent_effects *effects)
{
    (void)assignment;
    (void)effects;
    core->heard_ns = event->sent_ns > core->heard_ns ? event->sent_ns : core->heard_ns;
}

static bool is_orphaned(const struct dp_agent_core *core)
{
    return core->now_ns - core->heard_ns > core->orphan_ns;
}

static void fence_self(struct dp_agent_core *core, struct dp_agent_assignment *assignment,
                       struct dp_agent_effects *effects)
{
    assignment->fenced = true;
    (void)dp_copy_text(assignment->error, sizeof assignment->error,
                       "the node ended the ranks itself: the controller was out of reach for "
                       "longer than --orphan-ms");
    dp_agent_effects_log(effects, &assignment->fence, "%s", assignment->error);
    dp_agent_core_stop(core, assignment, DP_AGENT_STOP_GRACE_MS, effects);
}

// A process in an uninterruptible wait (a device, a file system that hangs) outlives every signal.
static void find_unkillable(struct dp_agent_core *core, struct dp_agent_assignment *assignment,
                            struct dp_agent_effects *effects)
{
    bool found = false;
    for (size_t i = 0; i < assignment->ranks_count; i++) {
        struct dp_agent_rank *rank = &assignment->ranks[i];
        if (rank->ended || rank->pid == 0) {
            continue;
        }
        found = rank->unkillable = true;
        snprintf(
            assignment->trouble, sizeof assignment->trouble,
            "UNKILLABLE: rank %u (process %lld) was killed and does not end; what it waits for "
            "stands in /proc/%lld/stack",
            rank->rank, (long long)rank->pid, (long long)rank->pid);
        dp_agent_effects_log(effects, &assignment->fence, "%s", assignment->trouble);
    }
    if (found) {
        dp_agent_core_level(core, assignment, effects);
    }
}

static void on_tick(struct dp_agent_core *core, struct dp_agent_assignment *unused,
                    const struct dp_agent_event *event, struct dp_agent_effects *effects)
{
    (void)unused;
    bool orphaned = is_orphaned(core);
    for (size_t i = 0; i < core->count; i++) {
        struct dp_agent_assignment *assignment = core->assignments[i];
        if (orphaned && !assignment->fenced && !dp_agent_assignment_ended(assignment)) {
            fence_self(core, assignment, effects);
        }
        if (event->now_ns >= assignment->force_at_ns) {
            assignment->force_at_ns = INT64_MAX;
            dp_agent_core_stop(core, assignment, DP_AGENT_STOP_GRACE_MS, effects);
        }
        if (event->now_ns >= assignment->gone_by_ns) {
            assignment->gone_by_ns = INT64_MAX;
            find_unkillable(core, assignment, effects);
        }
    }
    dp_agent_core_settle(core, effects);
}

static void on_end_all(struct dp_agent_core *core, struct dp_agent_assignment *unused,
                       const struct dp_agent_event *event, struct dp_agent_effects *effects)
{
    (void)unused;
    for (size_t i = 0; i < core->count; i++) {
        core->assignments[i]->releasing = true;
        if (!dp_agent_assignment_ended(core->assignments[i])) {
            dp_agent_core_stop(core, core->assignments[i], event->grace_ms, effects);
        }
    }
    dp_agent_core_settle(core, effects);
}

static const struct {
    event_handler handle;
    bool needs_assignment;
} handlers[DP_AGENT_EVENT_COUNT] = {
    [DP_AGENT_PREPARE] = {dp_agent_on_prepare, false},
    [DP_AGENT_BAD_PREPARE] = {dp_agent_on_bad_prepare, false},
    [DP_AGENT_START] = {dp_agent_on_start, true},
    [DP_AGENT_STOP] = {dp_agent_on_stop, true},
    [DP_AGENT_RELEASE] = {dp_agent_on_release, true},
    [DP_AGENT_CHECKPOINT] = {dp_agent_on_running, true},
    [DP_AGENT_PAUSE] = {dp_agent_on_pause, true},
    [DP_AGENT_SETTLE] = {dp_agent_on_settle, true},
    [DP_AGENT_PROBE] = {dp_agent_on_running, true},
    [DP_AGENT_REBALANCE] = {dp_agent_on_running, true},
    [DP_AGENT_STREAM_UP] = {on_stream_up, false},
    [DP_AGENT_ACKNOWLEDGED] = {on_acknowledged, false},
    [DP_AGENT_STREAM_DOWN] = {on_stream_down, false},
    [DP_AGENT_FOUND] = {dp_agent_on_found, false},
    [DP_AGENT_WAS_RELEASED] = {dp_agent_on_was_released, false},
    [DP_AGENT_KEEPER_SYNCED] = {dp_agent_on_keeper_synced, true},
    [DP_AGENT_KEEPER_LEFT] = {dp_agent_on_keeper_left, true},
    [DP_AGENT_KEEPER_UNREACHABLE] = {dp_agent_on_keeper_unreachable, true},
    [DP_AGENT_KEEPER_FAILED] = {dp_agent_on_keeper_failed, true},
    [DP_AGENT_KEEPER_ENDED] = {dp_agent_on_keeper_ended, true},
    [DP_AGENT_SPAWNED] = {dp_agent_on_spawned, true},
    [DP_AGENT_EXITED] = {dp_agent_on_exited, true},
    [DP_AGENT_REPORT] = {dp_agent_on_report, true},
    [DP_AGENT_TICK] = {on_tick, false},
    [DP_AGENT_END_ALL] = {on_end_all, false},
};

// Bytes that the effects of the step before pointed at.
static void drop_used(struct dp_agent_core *core)
{
    for (size_t i = 0; i < core->count; i++) {
        struct dp_agent_assignment *assignment = core->assignments[i];
        if (assignment->keeper != DP_AGENT_KEEPER_NONE) {
            free(assignment->prepare.bytes);
            assignment->prepare = (struct dp_agent_blob){0};
        }
    }
}

void dp_agent_core_step(struct dp_agent_core *core, const struct dp_agent_event *event,
                        struct dp_agent_effects *effects)
{
    drop_used(core);
    core->now_ns = event->now_ns;
    bool starts = event->type == DP_AGENT_PREPARE || event->type == DP_AGENT_START;
    if (starts && is_orphaned(core)) {
        // A node that stood still finds orders from before: nothing starts past its fence. What is
        // still wanted is told again once the controller has heard of it.
        dp_agent_effects_log(effects, &event->fence,
                             "not obeyed: the controller has acknowledged nothing for longer than "
                             "--orphan-ms, so what it ordered may be long over");
        return;
    }
    struct dp_agent_assignment *assignment = dp_agent_core_held(core, &event->fence);
    if (handlers[event->type].needs_assignment && assignment == NULL) {
        dp_agent_effects_log(
            effects, &event->fence,
            "event %d is about an assignment that is not held here; newest seen of the "
            "job: %s",
            (int)event->type,
            dp_agent_core_seen(core, event->fence.job) != NULL ? "other" : "none");
        return;
    }
    handlers[event->type].handle(core, assignment, event, effects);
}
