// What keepers, and the disk after a restart, say about assignments.
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "internal.h"

void dp_agent_on_found(struct dp_agent_core *core, struct dp_agent_assignment *assignment,
                       const struct dp_agent_event *event, struct dp_agent_effects *effects)
{
    if (assignment != NULL) {
        return;
    }
    assignment = dp_agent_core_add(core, &event->fence);
    if (assignment == NULL) {
        dp_agent_effects_log(effects, &event->fence,
                             "not adopted: the node holds %d assignments already",
                             DP_AGENT_ASSIGNMENTS_MAX);
        return;
    }
    for (size_t i = 0; i < event->numbers_count; i++) {
        (void)dp_agent_assignment_add_rank(assignment, event->numbers[i]);
    }
    assignment->adopted = true;
    assignment->keeper = DP_AGENT_KEEPER_AWAY;
}

void dp_agent_on_was_released(struct dp_agent_core *core, struct dp_agent_assignment *assignment,
                              const struct dp_agent_event *event, struct dp_agent_effects *effects)
{
    (void)assignment;
    (void)effects;
    dp_agent_core_see(core, &event->fence);
}

static void spawn_missing(struct dp_agent_assignment *assignment, struct dp_agent_effects *effects)
{
    for (size_t i = 0; i < assignment->ranks_count; i++) {
        struct dp_agent_rank *rank = &assignment->ranks[i];
        if (rank->phase == DP_AGENT_UNKNOWN && !rank->ended) {
            rank->phase = DP_AGENT_STARTING;
            dp_agent_effects_add(effects, DP_AGENT_DO_SPAWN, &assignment->fence)->rank = rank->rank;
        }
    }
}

// What the replay did not name never reached the keeper, whatever was ordered.
static void forget_unnamed(struct dp_agent_assignment *assignment)
{
    for (size_t i = 0; i < assignment->ranks_count; i++) {
        struct dp_agent_rank *rank = &assignment->ranks[i];
        if (!rank->named && !rank->ended) {
            rank->phase = DP_AGENT_UNKNOWN;
            rank->started = false;
            rank->stopping = false;
            rank->pid = 0;
        }
    }
}

static bool all_told_to_end(const struct dp_agent_assignment *assignment)
{
    for (size_t i = 0; i < assignment->ranks_count; i++) {
        if (!assignment->ranks[i].ended && !assignment->ranks[i].stopping) {
            return false;
        }
    }
    return true;
}

void dp_agent_on_keeper_synced(struct dp_agent_core *core, struct dp_agent_assignment *assignment,
                               const struct dp_agent_event *event, struct dp_agent_effects *effects)
{
    (void)event;
    assignment->keeper = DP_AGENT_KEEPER_CONNECTED;
    assignment->trouble[0] = '\0';
    forget_unnamed(assignment);
    if (!assignment->stopping && !assignment->releasing) {
        spawn_missing(assignment, effects);
        dp_agent_start_ready(assignment, effects);
        dp_agent_order_again(assignment, effects);
    } else if (!all_told_to_end(assignment)) {
        dp_agent_core_stop(core, assignment, 0, effects);
    } else {
        // In the life before, maybe: how much of their grace is left is not known.
        dp_agent_core_expect_end(core, assignment, DP_AGENT_STOP_GRACE_MS);
    }
    dp_agent_core_level(core, assignment, effects);
    dp_agent_core_settle(core, effects);
}

void dp_agent_on_keeper_left(struct dp_agent_core *core, struct dp_agent_assignment *assignment,
                             const struct dp_agent_event *event, struct dp_agent_effects *effects)
{
    (void)core;
    (void)event;
    (void)effects;
    if (assignment->keeper != DP_AGENT_KEEPER_CONNECTED &&
        assignment->keeper != DP_AGENT_KEEPER_AWAY) {
        return;
    }
    assignment->keeper = DP_AGENT_KEEPER_AWAY;
    for (size_t i = 0; i < assignment->ranks_count; i++) {
        assignment->ranks[i].named = false;
    }
}

void dp_agent_on_keeper_unreachable(struct dp_agent_core *core,
                                    struct dp_agent_assignment *assignment,
                                    const struct dp_agent_event *event,
                                    struct dp_agent_effects *effects)
{
    (void)dp_copy_text(assignment->trouble, sizeof assignment->trouble, event->text);
    dp_agent_effects_log(effects, &assignment->fence, "%s", assignment->trouble);
    if (assignment->stopping || assignment->releasing) {
        (void)dp_agent_effects_add(effects, DP_AGENT_DO_KILL_KEEPER, &assignment->fence);
    }
    dp_agent_core_level(core, assignment, effects);
}

// Nobody holds the ranks any more, so whatever ran was killed with the keeper.
static bool end_all_ranks(struct dp_agent_assignment *assignment)
{
    bool any_ran = false;
    for (size_t i = 0; i < assignment->ranks_count; i++) {
        struct dp_agent_rank *rank = &assignment->ranks[i];
        if (!rank->ended) {
            bool ran = rank->phase != DP_AGENT_UNKNOWN;
            any_ran = any_ran || ran;
            dp_agent_rank_end(rank, 0, ran ? SIGKILL : 0);
            rank->stopped = ran && (assignment->stopping || assignment->releasing);
        }
    }
    return any_ran;
}

void dp_agent_on_keeper_failed(struct dp_agent_core *core, struct dp_agent_assignment *assignment,
                               const struct dp_agent_event *event, struct dp_agent_effects *effects)
{
    assignment->keeper = DP_AGENT_KEEPER_GONE;
    (void)dp_copy_text(assignment->error, sizeof assignment->error,
                       event->text == NULL ? "the keeper could not be started" : event->text);
    (void)end_all_ranks(assignment);
    dp_agent_effects_log(effects, &assignment->fence, "%s", assignment->error);
    dp_agent_core_level(core, assignment, effects);
    dp_agent_core_settle(core, effects);
}

void dp_agent_on_keeper_ended(struct dp_agent_core *core, struct dp_agent_assignment *assignment,
                              const struct dp_agent_event *event, struct dp_agent_effects *effects)
{
    bool was_stopping = assignment->stopping || assignment->releasing;
    bool had_ended = dp_agent_assignment_ended(assignment);
    assignment->keeper = DP_AGENT_KEEPER_GONE;
    assignment->trouble[0] = '\0';
    (void)end_all_ranks(assignment);
    if (!had_ended && !was_stopping) {
        assignment->keeper_lost = true;
        assignment->keeper_signal = event->signal;
        dp_agent_effects_log(effects, &assignment->fence,
                             "the keeper is gone (signal %d) and with it the "
                             "ranks",
                             event->signal);
    }
    dp_agent_core_level(core, assignment, effects);
    dp_agent_core_settle(core, effects);
}

void dp_agent_on_spawned(struct dp_agent_core *core, struct dp_agent_assignment *assignment,
                         const struct dp_agent_event *event, struct dp_agent_effects *effects)
{
    struct dp_agent_rank *rank = dp_agent_assignment_add_rank(assignment, event->rank);
    rank->named = true;
    if (rank->ended) {
        return;
    }
    rank->pid = event->pid;
    // A frame from before the start that is on its way right now does not undo it; a replay does.
    bool replay = assignment->keeper == DP_AGENT_KEEPER_AWAY;
    rank->started = event->started || (rank->started && !replay);
    rank->stopping = event->stopped;
    if (event->stopped && !event->by_keeper && replay) {
        // Ordered, in this life or an earlier one.
        assignment->stopping = true;
    }
    rank->phase = rank->started               ? DP_AGENT_RUNNING
                  : rank->ready.bytes != NULL ? DP_AGENT_READY
                                              : DP_AGENT_STARTING;
    dp_agent_core_level(core, assignment, effects);
}

static size_t count_unkillable(const struct dp_agent_assignment *assignment)
{
    size_t count = 0;
    for (size_t i = 0; i < assignment->ranks_count; i++) {
        count += assignment->ranks[i].unkillable;
    }
    return count;
}

static void note_end(struct dp_agent_assignment *assignment, const struct dp_agent_event *event)
{
    const char *text = event->text == NULL ? "" : event->text;
    if (event->by_keeper && !assignment->stopping && !assignment->releasing) {
        text = "the keeper ended the ranks: no agent renewed its lease, or it was told to by a "
               "signal";
    }
    if (text[0] != '\0') {
        (void)dp_copy_text(assignment->error, sizeof assignment->error, text);
    }
    if (event->stopped && !event->by_keeper) {
        assignment->stopping = true;
    }
}

void dp_agent_on_exited(struct dp_agent_core *core, struct dp_agent_assignment *assignment,
                        const struct dp_agent_event *event, struct dp_agent_effects *effects)
{
    struct dp_agent_rank *rank = dp_agent_assignment_add_rank(assignment, event->rank);
    rank->named = true;
    if (rank->ended && rank->pid == event->pid) {
        return;
    }
    if (rank->unkillable && count_unkillable(assignment) == 1) {
        assignment->trouble[0] = '\0';
    }
    rank->pid = event->pid;
    rank->stopped = event->stopped;
    dp_agent_rank_end(rank, event->status, event->signal);
    note_end(assignment, event);
    dp_agent_effects_log(effects, &assignment->fence,
                         "rank %u has ended: status %d, signal %d%s%s%s", event->rank,
                         event->status, event->signal, event->stopped ? ", as it was told" : "",
                         event->text == NULL ? "" : " ", event->text == NULL ? "" : event->text);
    dp_agent_core_level(core, assignment, effects);
    dp_agent_core_settle(core, effects);
}

static void note_report(struct dp_agent_rank *rank, const struct dp_agent_event *event)
{
    switch (event->kind) {
    case DP_AGENT_REPORT_READY:
        dp_agent_blob_set(&rank->ready, event->inner, event->inner_length);
        if (rank->phase < DP_AGENT_READY) {
            rank->phase = DP_AGENT_READY;
        }
        break;
    case DP_AGENT_REPORT_STEP:
        dp_agent_steps_put(&rank->steps, event->kept, event->kept_length);
        break;
    case DP_AGENT_REPORT_FINISHED:
        dp_agent_blob_set(&rank->finished, event->inner, event->inner_length);
        break;
    case DP_AGENT_REPORT_EVALUATION:
        dp_agent_steps_put_lasting(&rank->steps, DP_AGENT_LASTING_EVALUATION, event->kept,
                                   event->kept_length);
        break;
    case DP_AGENT_REPORT_CHECKPOINT:
        dp_agent_steps_put_lasting(&rank->steps, DP_AGENT_LASTING_CHECKPOINT, event->kept,
                                   event->kept_length);
        break;
    case DP_AGENT_REPORT_HELD:
        dp_agent_blob_set(&rank->held, event->inner, event->inner_length);
        break;
    case DP_AGENT_REPORT_SAMPLE:
    case DP_AGENT_REPORT_ONCE:
        break;
    }
    rank->step = event->step > rank->step ? event->step : rank->step;
}

void dp_agent_on_report(struct dp_agent_core *core, struct dp_agent_assignment *assignment,
                        const struct dp_agent_event *event, struct dp_agent_effects *effects)
{
    struct dp_agent_rank *rank = dp_agent_assignment_add_rank(assignment, event->rank);
    note_report(rank, event);
    if (!core->stream_up) {
        return;
    }
    // What belongs to a level is told as one; a report may also be of interest by itself.
    if (event->kind == DP_AGENT_REPORT_READY || event->kind == DP_AGENT_REPORT_HELD ||
        event->kind == DP_AGENT_REPORT_FINISHED) {
        dp_agent_core_level(core, assignment, effects);
    }
    struct dp_agent_effect *effect =
        dp_agent_effects_add(effects, DP_AGENT_DO_REPORT, &assignment->fence);
    effect->rank = event->rank;
    effect->sample = event->kind == DP_AGENT_REPORT_SAMPLE;
    effect->bytes = event->bytes;
    effect->length = event->length;
}
