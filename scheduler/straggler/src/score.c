// Scores, whether anybody is suspected or not.
#include <math.h>

#include "internal.h"

static double score_of(double log_ratio)
{
    return exp(-log_ratio); // NaN stays NaN
}

static double link_score(const struct dp_straggler *self, const struct rank *rank)
{
    double slowest = NAN;
    for (size_t i = 0; i < rank->links_count; i++) {
        const struct edge *edge = &self->edges[rank->links[i].edge];
        slowest = fmax(
            dp_straggler_window_median(&edge->subject.series.window, DP_STRAGGLER_WINDOW), slowest);
    }
    return score_of(slowest);
}

void dp_straggler_score(const struct dp_straggler *straggler, uint32_t rank,
                        struct dp_straggler_score *ret_score)
{
    const struct rank *from = &straggler->ranks[rank];
    double step_ns = dp_straggler_window_median(&straggler->step_times, DP_STRAGGLER_WINDOW);
    double period_ns = dp_straggler_window_median(&straggler->period_times, DP_STRAGGLER_WINDOW);
    double relative = dp_straggler_window_median(&from->work.series.window, DP_STRAGGLER_WINDOW);
    double individual = dp_straggler_window_median(&from->individual, DP_STRAGGLER_WINDOW);
    *ret_score = (struct dp_straggler_score){
        .relative = score_of(relative),
        .individual = score_of(individual),
        .link = link_score(straggler, from),
        .busy = dp_straggler_window_median(&from->busy, DP_STRAGGLER_WINDOW) / step_ns,
        .gap = dp_straggler_window_median(&from->hosts[HOST_GAPS].taken, DP_STRAGGLER_WINDOW) /
               period_ns,
        .step = straggler->step,
        .blind = from->silence.verdict != NULL,
    };
}

size_t dp_straggler_kind_scores(const struct dp_straggler *straggler, uint32_t rank,
                                struct dp_straggler_kind_score *ret_scores, size_t max)
{
    const struct rank *from = &straggler->ranks[rank];
    for (size_t i = 0; i < from->works_count && i < max; i++) {
        const struct work *work = &from->works[i];
        double own = dp_straggler_window_median(&work->own, DP_STRAGGLER_WINDOW);
        double relative = dp_straggler_window_median(&work->relative, DP_STRAGGLER_WINDOW);
        ret_scores[i] = (struct dp_straggler_kind_score){
            .kind = work->newest,
            .relative = score_of(relative),
            .individual = work->best_ns > 0 ? work->best_ns / own : NAN,
            .peers = straggler->groups[work->group].members - 1,
        };
    }
    return from->works_count;
}
