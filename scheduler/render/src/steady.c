#include "dp/check.h"
#include "dp/render.h"

static bool is_forward(const struct dp_action *action)
{
    return action->kind == DP_ACTION_F || action->kind == DP_ACTION_FB;
}

// When the first rank has made its last forward.
static double cooldown_begin(const struct dp_schedule *schedule, const struct dp_sim_span *spans)
{
    double begin = -1;
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        size_t i = schedule->rank_begin[rank + 1];
        while (i > schedule->rank_begin[rank] && !is_forward(&schedule->actions[i - 1])) {
            i--;
        }
        bool found = i > schedule->rank_begin[rank];
        if (found && (begin < 0 || spans[i - 1].end < begin)) {
            begin = spans[i - 1].end;
        }
    }
    return begin < 0 ? 0 : begin;
}

// When the rank idles for the last time before `until`; 0 when it never does.
static double last_idle_end(const struct dp_schedule *schedule, const struct dp_sim_span *spans,
                            int32_t rank, double until, double tolerance)
{
    double last = 0;
    double free_from = 0;
    for (size_t i = schedule->rank_begin[rank]; i < schedule->rank_begin[rank + 1]; i++) {
        if (free_from >= until - tolerance) {
            return last;
        }
        if (spans[i].start - free_from > tolerance) {
            last = spans[i].start < until ? spans[i].start : until;
        }
        free_from = spans[i].end;
    }
    return free_from < until - tolerance ? until : last;
}

bool dp_render_steady(const struct dp_schedule *schedule, const struct dp_sim_result *result,
                      double *ret_from, double *ret_until)
{
    DP_CHECK(result->spans != NULL);
    double until = cooldown_begin(schedule, result->spans);
    double tolerance = 1e-9 * result->makespan;
    double from = 0;
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        double end = last_idle_end(schedule, result->spans, rank, until, tolerance);
        from = end > from ? end : from;
    }
    *ret_until = until;
    if (from >= until - tolerance) {
        return false;
    }
    *ret_from = from;
    return true;
}
