// Orders from the controller.
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/clock.h"
#include "internal.h"

static struct dp_agent_effect *refuse(const struct dp_agent_event *event,
                                      struct dp_agent_effects *effects, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

// The controller gets the reason as the level of an assignment that is not held here.
static struct dp_agent_effect *refuse(const struct dp_agent_event *event,
                                      struct dp_agent_effects *effects, const char *format, ...)
{
    char text[DP_AGENT_TEXT_MAX];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    dp_agent_effects_log(effects, &event->fence, "refused: %.*s", DP_AGENT_TEXT_MAX / 2, text);
    struct dp_agent_effect *effect =
        dp_agent_effects_add(effects, DP_AGENT_DO_REFUSE, &event->fence);
    (void)dp_copy_text(effect->text, sizeof effect->text, text);
    return effect;
}

static bool is_refused(const struct dp_agent_core *core, const struct dp_agent_event *event,
                       struct dp_agent_effects *effects)
{
    const struct dp_agent_fence *seen = dp_agent_core_seen(core, event->fence.job);
    int order = seen == NULL ? 1 : dp_agent_fence_compare(&event->fence, seen);
    if (order == 0) {
        refuse(event, effects, "attempt %u epoch %u of %s was here already and was released",
               event->fence.attempt, event->fence.epoch, event->fence.job)
            ->leftover = true;
    } else if (order < 0) {
        refuse(event, effects,
               "attempt %u epoch %u of %s is older than attempt %u epoch %u, which "
               "this node has seen",
               event->fence.attempt, event->fence.epoch, event->fence.job, seen->attempt,
               seen->epoch);
    }
    return order <= 0;
}

void dp_agent_on_bad_prepare(struct dp_agent_core *core, struct dp_agent_assignment *assignment,
                             const struct dp_agent_event *event, struct dp_agent_effects *effects)
{
    if (assignment != NULL) {
        // It would not be the one that is held.
        dp_agent_core_level(core, assignment, effects);
        return;
    }
    (void)refuse(event, effects, "%s", event->text);
}

void dp_agent_on_prepare(struct dp_agent_core *core, struct dp_agent_assignment *assignment,
                         const struct dp_agent_event *event, struct dp_agent_effects *effects)
{
    if (assignment != NULL) {
        // Asked again after a lost answer.
        dp_agent_core_level(core, assignment, effects);
        return;
    }
    if (is_refused(core, event, effects)) {
        return;
    }
    assignment = dp_agent_core_add(core, &event->fence);
    if (assignment == NULL) {
        (void)refuse(event, effects, "the node holds %d assignments already, which is all it can",
                     DP_AGENT_ASSIGNMENTS_MAX);
        return;
    }
    assignment->beside = event->beside;
    dp_agent_blob_set(&assignment->prepare, event->bytes, event->length);
    for (size_t i = 0; i < event->numbers_count; i++) {
        (void)dp_agent_assignment_add_rank(assignment, event->numbers[i]);
    }
    for (size_t i = 0; i < core->count; i++) {
        struct dp_agent_assignment *older = core->assignments[i];
        if (dp_agent_must_end_before(older, assignment)) {
            dp_agent_effects_log(effects, &older->fence, "ended by a newer assignment of the job");
            dp_agent_core_stop(core, older, 0, effects);
        }
    }
    dp_agent_core_settle(core, effects);
}

void dp_agent_start_ready(struct dp_agent_assignment *assignment, struct dp_agent_effects *effects)
{
    for (size_t i = 0; i < assignment->ranks_count; i++) {
        struct dp_agent_rank *rank = &assignment->ranks[i];
        if (assignment->start_order.bytes == NULL || rank->started || rank->ended ||
            rank->phase == DP_AGENT_UNKNOWN) {
            continue;
        }
        rank->started = true;
        rank->phase = DP_AGENT_RUNNING;
        struct dp_agent_effect *effect =
            dp_agent_effects_add(effects, DP_AGENT_DO_ORDER, &assignment->fence);
        effect->rank = rank->rank;
        effect->start = true;
        effect->bytes = assignment->start_order.bytes;
        effect->length = assignment->start_order.length;
    }
}

void dp_agent_on_start(struct dp_agent_core *core, struct dp_agent_assignment *assignment,
                       const struct dp_agent_event *event, struct dp_agent_effects *effects)
{
    if (assignment->stopping) {
        return;
    }
    dp_agent_blob_set(&assignment->start_order, event->bytes, event->length);
    if (assignment->keeper == DP_AGENT_KEEPER_CONNECTED) {
        dp_agent_start_ready(assignment, effects);
    }
    dp_agent_core_level(core, assignment, effects);
}

static void order_running(struct dp_agent_assignment *assignment, const void *bytes, size_t length,
                          struct dp_agent_effects *effects)
{
    for (size_t i = 0; i < assignment->ranks_count; i++) {
        const struct dp_agent_rank *rank = &assignment->ranks[i];
        if (rank->ended || !rank->started) {
            continue;
        }
        struct dp_agent_effect *effect =
            dp_agent_effects_add(effects, DP_AGENT_DO_ORDER, &assignment->fence);
        effect->rank = rank->rank;
        effect->bytes = bytes;
        effect->length = length;
    }
}

static bool any_started(const struct dp_agent_assignment *assignment)
{
    for (size_t i = 0; i < assignment->ranks_count; i++) {
        if (assignment->ranks[i].started && !assignment->ranks[i].ended) {
            return true;
        }
    }
    return false;
}

void dp_agent_on_stop(struct dp_agent_core *core, struct dp_agent_assignment *assignment,
                      const struct dp_agent_event *event, struct dp_agent_effects *effects)
{
    if (dp_agent_assignment_ended(assignment)) {
        dp_agent_core_level(core, assignment, effects);
        return;
    }
    bool polite = event->length > 0 && any_started(assignment) &&
                  assignment->keeper == DP_AGENT_KEEPER_CONNECTED;
    if (polite) {
        assignment->stopping = true;
        assignment->force_at_ns = event->now_ns + event->grace_ms * DP_NS_PER_MS;
        order_running(assignment, event->bytes, event->length, effects);
    } else {
        dp_agent_core_stop(core, assignment, event->grace_ms, effects);
    }
    dp_agent_core_settle(core, effects);
}

void dp_agent_on_release(struct dp_agent_core *core, struct dp_agent_assignment *assignment,
                         const struct dp_agent_event *event, struct dp_agent_effects *effects)
{
    (void)event;
    assignment->releasing = true;
    if (!dp_agent_assignment_ended(assignment)) {
        dp_agent_core_stop(core, assignment, 0, effects);
    }
    dp_agent_core_settle(core, effects);
}

void dp_agent_on_running(struct dp_agent_core *core, struct dp_agent_assignment *assignment,
                         const struct dp_agent_event *event, struct dp_agent_effects *effects)
{
    (void)core;
    if (assignment->keeper == DP_AGENT_KEEPER_CONNECTED && !assignment->stopping) {
        order_running(assignment, event->bytes, event->length, effects);
    }
}

void dp_agent_on_pause(struct dp_agent_core *core, struct dp_agent_assignment *assignment,
                       const struct dp_agent_event *event, struct dp_agent_effects *effects)
{
    dp_agent_blob_set(&assignment->pause_order, event->bytes, event->length);
    dp_agent_on_running(core, assignment, event, effects);
    // Ranks that hold already are heard of, though an answer was lost.
    dp_agent_core_level(core, assignment, effects);
}

void dp_agent_on_settle(struct dp_agent_core *core, struct dp_agent_assignment *assignment,
                        const struct dp_agent_event *event, struct dp_agent_effects *effects)
{
    dp_agent_blob_set(&assignment->settle_order, event->bytes, event->length);
    dp_agent_on_running(core, assignment, event, effects);
    dp_agent_core_level(core, assignment, effects);
}

void dp_agent_order_again(struct dp_agent_assignment *assignment, struct dp_agent_effects *effects)
{
    const struct dp_agent_blob *orders[] = {&assignment->pause_order, &assignment->settle_order};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(orders); i++) {
        if (orders[i]->bytes != NULL) {
            order_running(assignment, orders[i]->bytes, orders[i]->length, effects);
        }
    }
}
