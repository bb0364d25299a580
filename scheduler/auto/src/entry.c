#include <math.h>
#include <stdlib.h>

#include "dp/alloc.h"
#include "search.h"

struct entry *dp_auto_entry_new(struct dp_schedule *shape, struct dp_sim_costs *costs,
                                uint64_t *static_bytes, const struct dp_auto_problem *problem)
{
    struct entry *entry = dp_new(struct entry);
    dp_auto_field_init(&entry->field, shape, costs, static_bytes, problem->memory_cap);
    entry->family_score = (struct score){INFINITY, INFINITY};
    entry->bound = dp_auto_bound(&entry->field, problem->objective == DP_AUTO_LONGEST_SPAN);
    return entry;
}

void dp_auto_entry_free(struct entry *entry)
{
    dp_auto_trace_deinit(&entry->trace);
    dp_auto_rules_deinit(&entry->trial_rules);
    dp_auto_rules_deinit(&entry->rules);
    dp_auto_order_deinit(&entry->trial);
    dp_auto_order_deinit(&entry->walk);
    dp_auto_order_deinit(&entry->order);
    dp_auto_clock_deinit(&entry->trial_clock);
    dp_auto_clock_deinit(&entry->clock);
    dp_auto_outlook_deinit(&entry->outlook);
    dp_schedule_deinit(&entry->family);
    dp_auto_field_deinit(&entry->field);
    free(entry);
}

double dp_auto_entry_size(const struct entry *entry)
{
    return 3 * (double)entry->field.chunks;
}

// One micro-batch after the other: fits wherever anything does.
static void one_by_one(struct order *order, const struct field *field)
{
    for (int32_t rank = 0; rank < field->pipeline; rank++) {
        uint16_t *list = order->symbols + field->list_begin[rank];
        uint32_t length = 0;
        for (int direction = 0; direction < field->shape.directions; direction++) {
            int32_t begin = field->lane_begin[rank], end = field->lane_begin[rank + 1];
            // Lanes of one direction stand in the order of their stages.
            int32_t count = 0;
            for (int32_t i = begin; i < end; i++) {
                count = field->lanes[i].direction == direction ? field->lanes[i].count : count;
            }
            for (int32_t m = 0; m < count; m++) {
                for (int32_t i = begin; i < end; i++) {
                    if (field->lanes[i].direction == direction) {
                        list[length++] = (uint16_t)symbol_of(field, DP_ACTION_F, i - begin);
                    }
                }
                for (int32_t i = end - 1; i >= begin; i--) {
                    if (field->lanes[i].direction == direction) {
                        list[length++] = (uint16_t)symbol_of(field, DP_ACTION_B, i - begin);
                    }
                }
            }
        }
        order->length[rank] = length;
    }
}

void dp_auto_entry_open(struct entry *entry, bool longest_span)
{
    const struct field *field = &entry->field;
    dp_auto_outlook_init(&entry->outlook, field);
    dp_auto_clock_init(&entry->clock, field);
    dp_auto_clock_init(&entry->trial_clock, field);
    dp_auto_order_init(&entry->order, field);
    dp_auto_order_init(&entry->walk, field);
    dp_auto_order_init(&entry->trial, field);
    dp_auto_rules_init(&entry->rules, field);
    dp_auto_rules_init(&entry->trial_rules, field);
    dp_auto_trace_init(&entry->trace, field);
    entry->rules_score = (struct score){INFINITY, INFINITY};
    entry->is_open = true;
    entry->found_at = 1;
    bool has_family = entry->family.actions != NULL;
    if (!has_family || !dp_auto_order_read(&entry->order, field, &entry->family)) {
        one_by_one(&entry->order, field);
    }
    entry->score = dp_auto_clock_run(&entry->clock, &entry->order, longest_span, false);
}

bool dp_auto_entry_offer(struct entry *entry, struct score score, int64_t move)
{
    if (!score_is_less(score, entry->score)) {
        return false;
    }
    entry->found_at = score.value < entry->score.value ? move : entry->found_at;
    entry->score = score;
    struct order order = entry->order;
    entry->order = entry->trial;
    entry->trial = order;
    return true;
}

uint64_t dp_auto_entry_least_bytes(const struct entry *entry, int32_t rank)
{
    const struct field *field = &entry->field;
    uint64_t bytes[2] = {0, 0};
    for (int32_t i = field->lane_begin[rank]; i < field->lane_begin[rank + 1]; i++) {
        const struct lane *lane = &field->lanes[i];
        bytes[lane->direction] += lane->count > 0 ? lane->bytes : 0;
    }
    return bytes[0] > bytes[1] ? bytes[0] : bytes[1];
}
