// A prediction as a trace: what the simulation knows beside the times of actions.
#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/render.h"
#include "dp/sim_analysis.h"
#include "messages.h"
#include "scale.h"

// Memory of all ranks, one level for each change; the caller frees *ret_levels.
static void find_levels(const struct dp_schedule *schedule, const struct dp_sim_result *result,
                        const struct dp_sim_costs *costs, struct dp_trace_level **ret_levels,
                        size_t *ret_count)
{
    struct dp_trace_level *levels = NULL;
    size_t count = 0;
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        DP_AUTO_FREE struct dp_sim_memory_point *points = NULL;
        size_t points_count = 0;
        dp_sim_memory_over_time(schedule, costs, result->spans, rank, &points, &points_count);
        levels = dp_realloc(levels, count + points_count, sizeof(*levels));
        for (size_t i = 0; i < points_count; i++) {
            // Of several changes at one time only the last one holds.
            if (i + 1 == points_count || points[i + 1].time > points[i].time) {
                levels[count++] =
                    (struct dp_trace_level){rank, dp_render_ns(points[i].time), points[i].bytes};
            }
        }
    }
    *ret_levels = levels;
    *ret_count = count;
}

static void find_flows(const struct dp_schedule *schedule, struct dp_trace_flow **ret_flows,
                       size_t *ret_count)
{
    struct render_where where;
    DP_AUTO_FREE struct render_message *messages = NULL;
    size_t count = 0;
    dp_render_where_init(&where, schedule);
    dp_render_messages(schedule, &where, &messages, &count);
    dp_render_where_deinit(&where);
    count = count > DP_RENDER_FLOWS_MAX ? 0 : count;
    struct dp_trace_flow *flows = dp_new_array(struct dp_trace_flow, count);
    for (size_t i = 0; i < count; i++) {
        flows[i] = (struct dp_trace_flow){messages[i].what.from, messages[i].what.to};
    }
    *ret_flows = flows;
    *ret_count = count;
}

void dp_render_prediction(const struct dp_schedule *schedule, const struct dp_sim_result *result,
                          const struct dp_sim_costs *costs, struct dp_buf *out)
{
    DP_AUTO_FREE struct dp_action_span *spans = NULL;
    DP_AUTO_FREE struct dp_trace_level *levels = NULL;
    DP_AUTO_FREE struct dp_trace_flow *flows = NULL;
    struct dp_trace_track track = {.name = "predicted", .pipeline = schedule->pipeline};
    dp_render_spans(schedule, result, 0, &spans, &track.count);
    find_levels(schedule, result, costs, &levels, &track.level_count);
    find_flows(schedule, &flows, &track.flow_count);
    track.spans = spans;
    track.levels = levels;
    track.flows = flows;
    dp_render_trace(&track, 1, out);
}
