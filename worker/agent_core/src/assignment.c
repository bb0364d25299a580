#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "internal.h"

bool dp_agent_fence_equal(const struct dp_agent_fence *a, const struct dp_agent_fence *b)
{
    return strcmp(a->job, b->job) == 0 && a->attempt == b->attempt && a->epoch == b->epoch;
}

void dp_agent_blob_set(struct dp_agent_blob *blob, const void *bytes, size_t length)
{
    void *copy = dp_memdup(bytes, length);
    free(blob->bytes);
    *blob = (struct dp_agent_blob){.bytes = copy, .length = length};
}

struct dp_agent_assignment *dp_agent_assignment_new(const struct dp_agent_fence *fence)
{
    struct dp_agent_assignment *assignment = dp_new(struct dp_agent_assignment);
    assignment->fence = *fence;
    assignment->force_at_ns = INT64_MAX;
    assignment->gone_by_ns = INT64_MAX;
    return assignment;
}

void dp_agent_assignment_free(struct dp_agent_assignment *assignment)
{
    for (size_t i = 0; i < assignment->ranks_count; i++) {
        free(assignment->ranks[i].ready.bytes);
        free(assignment->ranks[i].finished.bytes);
        free(assignment->ranks[i].held.bytes);
        dp_agent_steps_free(assignment->ranks[i].steps);
    }
    free(assignment->ranks);
    free(assignment->prepare.bytes);
    free(assignment->start_order.bytes);
    free(assignment->pause_order.bytes);
    free(assignment->settle_order.bytes);
    free(assignment);
}

struct dp_agent_rank *dp_agent_assignment_rank(struct dp_agent_assignment *assignment,
                                               uint32_t rank)
{
    for (size_t i = 0; i < assignment->ranks_count; i++) {
        if (assignment->ranks[i].rank == rank) {
            return &assignment->ranks[i];
        }
    }
    return NULL;
}

struct dp_agent_rank *dp_agent_assignment_add_rank(struct dp_agent_assignment *assignment,
                                                   uint32_t rank)
{
    struct dp_agent_rank *known = dp_agent_assignment_rank(assignment, rank);
    if (known != NULL) {
        return known;
    }
    assignment->ranks =
        dp_realloc(assignment->ranks, assignment->ranks_count + 1, sizeof *assignment->ranks);
    struct dp_agent_rank *added = &assignment->ranks[assignment->ranks_count++];
    *added = (struct dp_agent_rank){.rank = rank};
    return added;
}

void dp_agent_rank_end(struct dp_agent_rank *rank, int32_t status, int32_t signal)
{
    rank->ended = true;
    rank->unkillable = false;
    rank->exit_status = status;
    rank->signal = signal;
    rank->phase = rank->finished.bytes != NULL ? DP_AGENT_FINISHED : DP_AGENT_DIED;
}

bool dp_agent_assignment_ended(const struct dp_agent_assignment *assignment)
{
    for (size_t i = 0; i < assignment->ranks_count; i++) {
        if (!assignment->ranks[i].ended) {
            return false;
        }
    }
    return assignment->ranks_count > 0 || assignment->keeper == DP_AGENT_KEEPER_GONE;
}

void dp_agent_effects_deinit(struct dp_agent_effects *effects)
{
    free(effects->items);
    *effects = (struct dp_agent_effects){0};
}

struct dp_agent_effect *dp_agent_effects_add(struct dp_agent_effects *effects,
                                             dp_agent_effect_type type,
                                             const struct dp_agent_fence *fence)
{
    if (effects->count == effects->capacity) {
        effects->capacity = effects->capacity == 0 ? 16 : 2 * effects->capacity;
        effects->items = dp_realloc(effects->items, effects->capacity, sizeof *effects->items);
    }
    struct dp_agent_effect *effect = &effects->items[effects->count++];
    *effect = (struct dp_agent_effect){.type = type, .rank = DP_AGENT_ALL_RANKS};
    if (fence != NULL) {
        effect->fence = *fence;
    }
    return effect;
}

void dp_agent_effects_log(struct dp_agent_effects *effects, const struct dp_agent_fence *fence,
                          const char *format, ...)
{
    struct dp_agent_effect *effect = dp_agent_effects_add(effects, DP_AGENT_DO_LOG, fence);
    va_list args;
    va_start(args, format);
    (void)vsnprintf(effect->text, sizeof effect->text, format, args);
    va_end(args);
}
