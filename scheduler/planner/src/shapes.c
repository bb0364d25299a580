// Shapes of schedules, each found once.

#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "explorer.h"

struct shape_slot {
    const struct dp_schedule_family *family;
    int32_t pipeline, virtual_stages, microbatches;
    struct shape *shape; // owned; NULL = free
};

struct shape_memo {
    struct shape_slot *slots; // a power of two
    size_t room, count;
};

struct shape_memo *dp_planner_shapes_new(void)
{
    struct shape_memo *memo = dp_new(struct shape_memo);
    memo->room = 256;
    memo->slots = dp_new_array(struct shape_slot, memo->room);
    return memo;
}

void dp_planner_shapes_free(struct shape_memo *memo)
{
    for (size_t i = 0; i < memo->room; i++) {
        if (memo->slots[i].shape != NULL) {
            dp_planner_shape_deinit(memo->slots[i].shape);
            free(memo->slots[i].shape);
        }
    }
    free(memo->slots);
    free(memo);
}

static struct shape_slot *find(const struct shape_memo *memo, const struct shape_slot *wanted)
{
    size_t hash = (size_t)wanted->family / sizeof(*wanted->family);
    const int32_t numbers[] = {wanted->pipeline, wanted->virtual_stages, wanted->microbatches};
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        hash = (hash ^ (size_t)numbers[i]) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 29;
    }
    size_t at = hash & (memo->room - 1);
    for (;; at = (at + 1) & (memo->room - 1)) {
        struct shape_slot *slot = &memo->slots[at];
        if (slot->shape == NULL ||
            (slot->family == wanted->family && slot->pipeline == wanted->pipeline &&
             slot->virtual_stages == wanted->virtual_stages &&
             slot->microbatches == wanted->microbatches)) {
            return slot;
        }
    }
}

static void grow(struct shape_memo *memo)
{
    struct shape_memo larger = {.room = 2 * memo->room, .count = memo->count};
    larger.slots = dp_new_array(struct shape_slot, larger.room);
    for (size_t i = 0; i < memo->room; i++) {
        if (memo->slots[i].shape != NULL) {
            *find(&larger, &memo->slots[i]) = memo->slots[i];
        }
    }
    free(memo->slots);
    *memo = larger;
}

const struct shape *dp_planner_shapes_get(struct explorer *explorer, const struct choice *choice)
{
    struct shape_memo *memo = explorer->shapes;
    struct shape_slot wanted = {choice->family, choice->pipeline, choice->virtual_stages,
                                choice->microbatches, NULL};
    struct shape_slot *slot = find(memo, &wanted);
    if (slot->shape != NULL) {
        return slot->shape;
    }
    if (2 * memo->count >= memo->room) {
        grow(memo);
        slot = find(memo, &wanted);
    }
    const struct dp_schedule_params params = {.pipeline = choice->pipeline,
                                              .microbatches = choice->microbatches,
                                              .virtual_stages = choice->virtual_stages};
    DP_CLEANUP(dp_schedule_deinit) struct dp_schedule schedule = {0};
    struct dp_error err = {0};
    // The family was checked for these sizes.
    DP_CHECK(dp_schedule_generate(choice->family->name, &params, &schedule, &err) == DP_OK);
    *slot = wanted;
    slot->shape = dp_new(struct shape);
    dp_planner_shape_of(&schedule, slot->shape);
    dp_planner_explorer_works(explorer, 4 * explorer_work_of(dp_schedule_action_count(&schedule)));
    memo->count++;
    return slot->shape;
}
