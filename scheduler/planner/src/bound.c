// A bound on the step from the shape of a schedule: every rank runs its whole list, begins no
// earlier and ends no later than data lets it, and has no more chunks in flight than its list says.

#include <math.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "shape.h"

// As fmax, without a call and without NaN.
static inline double larger(double a, double b)
{
    return a > b ? a : b;
}

// The shortest way of data along the stages, for each direction.
struct ways {
    double forward[2][DP_STAGES_MAX];   // from time 0 until F of a stage can start
    double backward[2][DP_STAGES_MAX];  // until its B or I can
    double remaining[2][DP_STAGES_MAX]; // from the end of that until the end of the first stage's
    double least_f[DP_STAGES_MAX], least_b[DP_STAGES_MAX];
};

static void find_least(const struct shape *shape, const struct shape_costs *costs,
                       struct ways *ways)
{
    for (int32_t stage = 0; stage < shape->stages; stage++) {
        ways->least_f[stage] = ways->least_b[stage] = INFINITY;
    }
    for (int32_t r = 0; r < shape->pipeline; r++) {
        const struct shape_rank *rank = &shape->ranks[r];
        const double *seconds = costs->seconds + (size_t)r * (size_t)shape->terms_max;
        for (int32_t t = 0; t < rank->terms_count; t++) {
            const struct shape_term *term = &rank->terms[t];
            bool pair = term->kind == DP_ACTION_FB;
            if (term->kind == DP_ACTION_F || pair) {
                double *least = &ways->least_f[rank->stages[term->slot]];
                *least = seconds[t] < *least ? seconds[t] : *least;
            }
            if (pair || term->kind == DP_ACTION_B || term->kind == DP_ACTION_I) {
                double *least = &ways->least_b[rank->stages[pair ? term->b_slot : term->slot]];
                *least = seconds[t] < *least ? seconds[t] : *least;
            }
        }
    }
}

static double hop_s(const struct shape *shape, const struct shape_costs *costs, int32_t stage,
                    int direction)
{
    return shape->placement[2 * stage + direction] == shape->placement[2 * stage + 2 + direction]
               ? 0
               : costs->hop_s;
}

static void find_ways(const struct shape *shape, const struct shape_costs *costs, struct ways *ways)
{
    int32_t last = shape->stages - 1;
    find_least(shape, costs, ways);
    for (int d = 0; d < shape->directions; d++) {
        double *forward = ways->forward[d], *backward = ways->backward[d];
        double *remaining = ways->remaining[d];
        forward[0] = remaining[0] = 0;
        for (int32_t s = 0; s < last; s++) {
            double hop = hop_s(shape, costs, s, d);
            forward[s + 1] = forward[s] + ways->least_f[s] + hop;
            remaining[s + 1] = remaining[s] + ways->least_b[s] + hop;
        }
        backward[last] = forward[last] + ways->least_f[last];
        for (int32_t s = last; s > 0; s--) {
            backward[s - 1] = backward[s] + ways->least_b[s] + hop_s(shape, costs, s - 1, d);
        }
    }
}

static double sum(const int32_t *counts, const double *seconds, int32_t terms)
{
    double total = 0;
    for (int32_t t = 0; t < terms; t++) {
        total += counts[t] * seconds[t];
    }
    return total;
}

// With k chunks in flight every k-th forward waits for the way to the last stage and back.
static double flight_bound_s(const struct ways *ways, const struct shape_flight *flight)
{
    int32_t s = flight->stage, d = flight->direction;
    int32_t rounds = (flight->microbatches - 1) / flight->flight;
    int32_t before = (flight->microbatches - 1) % flight->flight;
    double round = ways->backward[d][s] - ways->forward[d][s] + ways->least_b[s];
    return ways->forward[d][s] + before * ways->least_f[s] + (rounds + 1) * round +
           ways->remaining[d][s];
}

struct rank_bound {
    double end_s;  // of its own last action
    double done_s; // of the first stage's last backward
    int32_t done_rank;
};

static struct rank_bound rank_bound(const struct shape *shape, const struct shape_rank *rank,
                                    const double *seconds, const struct ways *ways)
{
    int32_t terms = rank->terms_count;
    double work = sum(rank->counts, seconds, terms);
    double late[SHAPE_ENDS_MAX];
    struct rank_bound bound = {.end_s = work, .done_rank = -1};
    for (int32_t e = 0; e < rank->firsts_count; e++) {
        const struct shape_end *first = &rank->firsts[e];
        double earliest = first->is_forward ? ways->forward[first->direction][first->stage]
                                            : ways->backward[first->direction][first->stage];
        late[e] = larger(0, earliest - sum(first->counts, seconds, terms));
        bound.end_s = larger(bound.end_s, work + late[e]);
    }
    for (int32_t l = 0; l < rank->lasts_count; l++) {
        const struct shape_end *last = &rank->lasts[l];
        double after =
            ways->remaining[last->direction][last->stage] - sum(last->counts, seconds, terms);
        double begin = 0;
        for (int32_t e = 0; e < rank->firsts_count; e++) {
            begin = rank->firsts[e].position <= last->position ? larger(begin, late[e]) : begin;
        }
        if (work + begin + after > bound.done_s) {
            bound.done_s = work + begin + after;
            bound.done_rank = shape->placement[last->direction];
        }
    }
    for (int32_t f = 0; f < rank->flights_count; f++) {
        double flight = flight_bound_s(ways, &rank->flights[f]);
        if (flight > bound.done_s) {
            bound.done_s = flight;
            bound.done_rank = shape->placement[rank->flights[f].direction];
        }
    }
    return bound;
}

double dp_planner_shape_bound_s(const struct shape *shape, const struct shape_costs *costs,
                                double *ret_makespan)
{
    struct ways ways;
    find_ways(shape, costs, &ways);
    double makespan = 0, sums = 0, optimizer = 0;
    for (int32_t r = 0; r < shape->pipeline; r++) {
        const double *seconds = costs->seconds + (size_t)r * (size_t)shape->terms_max;
        struct rank_bound bound = rank_bound(shape, &shape->ranks[r], seconds, &ways);
        makespan = larger(makespan, larger(bound.end_s, bound.done_s));
        sums = larger(sums, bound.end_s + costs->gradient_s[r]);
        if (bound.done_rank >= 0) {
            sums = larger(sums, bound.done_s + costs->gradient_s[bound.done_rank]);
        }
        optimizer = larger(optimizer, costs->optimizer_s[r]);
    }
    if (ret_makespan != NULL) {
        *ret_makespan = makespan;
    }
    return sums + optimizer;
}
