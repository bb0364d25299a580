#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/sim_analysis.h"
#include "meter.h"

struct points {
    struct dp_sim_memory_point *items;
    size_t count;
};

// Adds a point when the meter differs from the last one.
static void add_point(struct points *points, double time, const struct dp_sim_meter *meter)
{
    const struct dp_sim_memory_point *last = &points->items[points->count - 1];
    if (meter->bytes != last->bytes || meter->held != last->chunks) {
        points->items[points->count++] =
            (struct dp_sim_memory_point){time, meter->bytes, meter->held};
    }
}

void dp_sim_memory_over_time(const struct dp_schedule *schedule, const struct dp_sim_costs *costs,
                             const struct dp_sim_span *spans, int32_t rank,
                             struct dp_sim_memory_point **ret_points, size_t *ret_count)
{
    DP_CHECK(rank >= 0 && rank < schedule->pipeline);
    int32_t stages[DP_RANK_STAGES_MAX];
    int32_t count = dp_schedule_rank_stages(schedule, rank, stages);
    DP_AUTO_FREE uint8_t *slots = dp_new_array(uint8_t, (size_t)schedule->stages);
    for (int32_t slot = 0; slot < count; slot++) {
        slots[stages[slot]] = (uint8_t)slot;
    }
    const struct dp_sim_chunk *chunks = dp_sim_chunk_at(costs, rank, 0);
    size_t begin = schedule->rank_begin[rank];
    size_t end = schedule->rank_begin[rank + 1];
    struct dp_sim_meter meter = {0};
    struct points points = {dp_new_array(struct dp_sim_memory_point, 2 * (end - begin) + 1), 1};
    for (size_t i = begin; i < end; i++) {
        const struct dp_action *action = &schedule->actions[i];
        meter_memory_begin(&meter, chunks, slots, action, spans[i].start);
        add_point(&points, spans[i].start, &meter);
        meter_memory_end(&meter, chunks, slots, action);
        add_point(&points, spans[i].end, &meter);
    }
    *ret_points = points.items;
    *ret_count = points.count;
}
