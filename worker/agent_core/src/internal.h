// Shared by the files of this module.
#pragma once

#include "dp/agent_core.h"

#define FENCES_KEPT 512

struct dp_agent_core {
    int64_t orphan_ns;
    int64_t unkillable_ns;
    int64_t now_ns; // of the event at hand
    bool stream_up;
    int64_t heard_ns; // when the newest word that was acknowledged was sent
    struct dp_agent_assignment *assignments[DP_AGENT_ASSIGNMENTS_MAX];
    size_t count;
    // The newest fence seen of each job; the oldest entry gives way.
    struct dp_agent_fence seen[FENCES_KEPT];
    size_t seen_count;
    size_t seen_next;
};

// Of each of these the newest report is sent again.
typedef enum dp_agent_lasting {
    DP_AGENT_LASTING_EVALUATION,
    DP_AGENT_LASTING_CHECKPOINT,
    DP_AGENT_LASTING_COUNT
} dp_agent_lasting;

// steps.c: the newest reports of one rank, sent again after the controller was away.
void dp_agent_steps_free(struct dp_agent_steps *steps);
void dp_agent_steps_put(struct dp_agent_steps **steps, const void *bytes, size_t length);
void dp_agent_steps_put_lasting(struct dp_agent_steps **steps, dp_agent_lasting kind,
                                const void *bytes, size_t length);
void dp_agent_steps_send(const struct dp_agent_steps *steps, struct dp_agent_effects *effects);

// assignment.c
struct dp_agent_assignment *dp_agent_assignment_new(const struct dp_agent_fence *fence);
void dp_agent_assignment_free(struct dp_agent_assignment *assignment);
struct dp_agent_rank *dp_agent_assignment_rank(struct dp_agent_assignment *assignment,
                                               uint32_t rank);
struct dp_agent_rank *dp_agent_assignment_add_rank(struct dp_agent_assignment *assignment,
                                                   uint32_t rank);
void dp_agent_blob_set(struct dp_agent_blob *blob, const void *bytes, size_t length);
void dp_agent_rank_end(struct dp_agent_rank *rank, int32_t status, int32_t signal);

struct dp_agent_effect *dp_agent_effects_add(struct dp_agent_effects *effects,
                                             dp_agent_effect_type type,
                                             const struct dp_agent_fence *fence);
void dp_agent_effects_log(struct dp_agent_effects *effects, const struct dp_agent_fence *fence,
                          const char *format, ...) __attribute__((format(printf, 3, 4)));

// core.c
// -1, 0, 1: a is older than, the same as, newer than b. Of one job.
int dp_agent_fence_compare(const struct dp_agent_fence *a, const struct dp_agent_fence *b);
struct dp_agent_assignment *dp_agent_core_held(struct dp_agent_core *core,
                                               const struct dp_agent_fence *fence);
struct dp_agent_assignment *dp_agent_core_add(struct dp_agent_core *core,
                                              const struct dp_agent_fence *fence);
void dp_agent_core_remove(struct dp_agent_core *core, struct dp_agent_assignment *assignment);
const struct dp_agent_fence *dp_agent_core_seen(const struct dp_agent_core *core, const char *job);
void dp_agent_core_see(struct dp_agent_core *core, const struct dp_agent_fence *fence);
// Whether `newer`, of the same job, may not start while `older` has ranks.
bool dp_agent_must_end_before(const struct dp_agent_assignment *older,
                              const struct dp_agent_assignment *newer);
// Tells the controller, when there is one.
void dp_agent_core_level(struct dp_agent_core *core, const struct dp_agent_assignment *assignment,
                         struct dp_agent_effects *effects);
void dp_agent_core_stop(struct dp_agent_core *core, struct dp_agent_assignment *assignment,
                        uint32_t grace_ms, struct dp_agent_effects *effects);
// After ranks or a keeper ended: lets go what was released and starts what waited for it.
void dp_agent_core_settle(struct dp_agent_core *core, struct dp_agent_effects *effects);

// core.c: from now on ranks that were told to end have so long.
void dp_agent_core_expect_end(struct dp_agent_core *core, struct dp_agent_assignment *assignment,
                              uint32_t grace_ms);

typedef void (*event_handler)(struct dp_agent_core *core, struct dp_agent_assignment *assignment,
                              const struct dp_agent_event *event, struct dp_agent_effects *effects);

// orders.c
// Passes the controller's Start on to the ranks that have not had it; the keeper is connected.
void dp_agent_start_ready(struct dp_agent_assignment *assignment, struct dp_agent_effects *effects);
// Gives ranks that run what they may have missed while the keeper was out of touch.
void dp_agent_order_again(struct dp_agent_assignment *assignment, struct dp_agent_effects *effects);
void dp_agent_on_prepare(struct dp_agent_core *core, struct dp_agent_assignment *assignment,
                         const struct dp_agent_event *event, struct dp_agent_effects *effects);
void dp_agent_on_bad_prepare(struct dp_agent_core *core, struct dp_agent_assignment *assignment,
                             const struct dp_agent_event *event, struct dp_agent_effects *effects);
void dp_agent_on_start(struct dp_agent_core *core, struct dp_agent_assignment *assignment,
                       const struct dp_agent_event *event, struct dp_agent_effects *effects);
void dp_agent_on_stop(struct dp_agent_core *core, struct dp_agent_assignment *assignment,
                      const struct dp_agent_event *event, struct dp_agent_effects *effects);
void dp_agent_on_release(struct dp_agent_core *core, struct dp_agent_assignment *assignment,
                         const struct dp_agent_event *event, struct dp_agent_effects *effects);
// Checkpoint, probe: nobody asks twice for one that is lost but who wanted it.
void dp_agent_on_running(struct dp_agent_core *core, struct dp_agent_assignment *assignment,
                         const struct dp_agent_event *event, struct dp_agent_effects *effects);
void dp_agent_on_pause(struct dp_agent_core *core, struct dp_agent_assignment *assignment,
                       const struct dp_agent_event *event, struct dp_agent_effects *effects);
void dp_agent_on_settle(struct dp_agent_core *core, struct dp_agent_assignment *assignment,
                        const struct dp_agent_event *event, struct dp_agent_effects *effects);

// keeper_events.c
void dp_agent_on_found(struct dp_agent_core *core, struct dp_agent_assignment *assignment,
                       const struct dp_agent_event *event, struct dp_agent_effects *effects);
void dp_agent_on_was_released(struct dp_agent_core *core, struct dp_agent_assignment *assignment,
                              const struct dp_agent_event *event, struct dp_agent_effects *effects);
void dp_agent_on_keeper_synced(struct dp_agent_core *core, struct dp_agent_assignment *assignment,
                               const struct dp_agent_event *event,
                               struct dp_agent_effects *effects);
void dp_agent_on_keeper_left(struct dp_agent_core *core, struct dp_agent_assignment *assignment,
                             const struct dp_agent_event *event, struct dp_agent_effects *effects);
void dp_agent_on_keeper_unreachable(struct dp_agent_core *core,
                                    struct dp_agent_assignment *assignment,
                                    const struct dp_agent_event *event,
                                    struct dp_agent_effects *effects);
void dp_agent_on_keeper_failed(struct dp_agent_core *core, struct dp_agent_assignment *assignment,
                               const struct dp_agent_event *event,
                               struct dp_agent_effects *effects);
void dp_agent_on_keeper_ended(struct dp_agent_core *core, struct dp_agent_assignment *assignment,
                              const struct dp_agent_event *event, struct dp_agent_effects *effects);
void dp_agent_on_spawned(struct dp_agent_core *core, struct dp_agent_assignment *assignment,
                         const struct dp_agent_event *event, struct dp_agent_effects *effects);
void dp_agent_on_exited(struct dp_agent_core *core, struct dp_agent_assignment *assignment,
                        const struct dp_agent_event *event, struct dp_agent_effects *effects);
void dp_agent_on_report(struct dp_agent_core *core, struct dp_agent_assignment *assignment,
                        const struct dp_agent_event *event, struct dp_agent_effects *effects);
