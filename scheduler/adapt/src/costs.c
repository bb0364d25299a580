// Costs by layer, corrected by what ranks measured.

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "internal.h"

void dp_adapt_costs_init(struct dp_adapt_costs *ret_costs, int32_t layers, int32_t pipeline)
{
    *ret_costs = (struct dp_adapt_costs){
        .layers = layers,
        .pipeline = pipeline,
        .layer = dp_alloc((size_t)layers, sizeof(*ret_costs->layer)),
        .gradient_s = dp_new_array(double, (size_t)pipeline),
        .optimizer_s = dp_new_array(double, (size_t)pipeline),
    };
}

void dp_adapt_acting_init(struct dp_adapt_acting *ret_acting, const struct dp_adapt_costs *costs)
{
    double network = costs->network.bytes_per_second;
    *ret_acting = (struct dp_adapt_acting){
        .switch_s = 2,
        .local_bytes_per_s = 1e9,
        .network_bytes_per_s = network > 0 ? network : 1e9,
        .checkpoint_s = 10,
        .restart_s = 30,
    };
}

void dp_adapt_costs_deinit(struct dp_adapt_costs *costs)
{
    free(costs->layer);
    free(costs->gradient_s);
    free(costs->optimizer_s);
    *costs = (struct dp_adapt_costs){0};
}

static double stage_predicted(const struct dp_adapt_costs *costs, const struct dp_plan *plan,
                              int32_t stage, int kind)
{
    double seconds = costs->action[kind] + (stage == 0 ? costs->first[kind] : 0) +
                     (stage == plan->stages - 1 ? costs->last[kind] : 0);
    for (int32_t l = plan->layer_begin[stage]; l < plan->layer_begin[stage + 1]; l++) {
        seconds += costs->layer[l][kind];
    }
    return seconds;
}

static int compare_doubles(const void *a, const void *b)
{
    double one = *(const double *)a, other = *(const double *)b;
    return (one > other) - (one < other);
}

static double median(double *values, size_t count)
{
    qsort(values, count, sizeof(*values), compare_doubles);
    return count % 2 == 1 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

static bool is_usable(const struct dp_plan *plan, const struct dp_adapt_measured *row)
{
    return row->rank >= 0 && row->rank < dp_plan_world(plan) && row->stage >= 0 &&
           row->stage < plan->stages && row->kind >= 0 && row->kind <= DP_ACTION_FB &&
           (row->kind != DP_ACTION_FB || (row->b_stage >= 0 && row->b_stage < plan->stages)) &&
           isfinite(row->seconds) && row->seconds > 0;
}

// 0 = nothing was measured. `values` has room for all rows.
static double stage_measured(const struct dp_plan *plan, const double *slow,
                             const struct dp_adapt_measured *rows, size_t count, int32_t stage,
                             int kind, double *values)
{
    size_t found = 0;
    for (size_t i = 0; i < count; i++) {
        if (is_usable(plan, &rows[i]) && rows[i].stage == stage && (int)rows[i].kind == kind) {
            values[found++] = rows[i].seconds / (slow != NULL ? slow[rows[i].rank] : 1);
        }
    }
    return found > 0 ? median(values, found) : 0;
}

// Measured over predicted: of a kind over all stages where it was measured, of a stage over all
// kinds, of everything.
struct sums {
    double measured, predicted;
};
static double ratio(const struct sums *sums, double otherwise)
{
    return sums->predicted > 0 && sums->measured > 0 ? sums->measured / sums->predicted : otherwise;
}

struct table {
    double (*measured)[DP_ADAPT_KINDS]; // [stages]
    struct sums of_kind[DP_ADAPT_KINDS], all;
};

static void add_sums(struct sums *sums, double measured, double predicted)
{
    sums->measured += measured;
    sums->predicted += predicted;
}

static void fill_table(const struct dp_adapt_costs *costs, const struct dp_plan *plan,
                       const double *slow, const struct dp_adapt_measured *rows, size_t count,
                       struct table *table)
{
    DP_AUTO_FREE double *values = dp_new_array(double, count);
    for (int32_t s = 0; s < plan->stages; s++) {
        for (int kind = 0; kind < DP_ADAPT_KINDS; kind++) {
            double measured = stage_measured(plan, slow, rows, count, s, kind, values);
            table->measured[s][kind] = measured;
            if (measured > 0) {
                double predicted = stage_predicted(costs, plan, s, kind);
                add_sums(&table->of_kind[kind], measured, predicted);
                add_sums(&table->all, measured, predicted);
            }
        }
    }
}

// What a stage's own time is scaled with. `action` is what an action takes by itself, scaled.
static double factor_of(const struct dp_adapt_costs *costs, const struct dp_plan *plan,
                        const struct table *table, int32_t stage, int kind, double action)
{
    struct sums of_stage = {0}, backward = {0};
    for (int k = 0; k < DP_ADAPT_KINDS; k++) {
        if (table->measured[stage][k] > 0) {
            double predicted = stage_predicted(costs, plan, stage, k);
            add_sums(&of_stage, table->measured[stage][k], predicted);
            if (k != DP_ACTION_F && kind != DP_ACTION_F) {
                add_sums(&backward, table->measured[stage][k], predicted);
            }
        }
    }
    double measured = table->measured[stage][kind];
    double work = stage_predicted(costs, plan, stage, kind) - costs->action[kind];
    if (measured > 0 && work > 0) {
        return fmax(0, measured - action) / work;
    }
    // I and W are the parts of B: an order that splits what was whole takes no less for it.
    return ratio(&backward, ratio(&of_stage, ratio(&table->of_kind[kind], ratio(&table->all, 1))));
}

static void scale_stage(struct dp_adapt_costs *costs, const struct dp_plan *plan, int32_t stage,
                        int kind, double factor)
{
    for (int32_t l = plan->layer_begin[stage]; l < plan->layer_begin[stage + 1]; l++) {
        costs->layer[l][kind] *= factor;
    }
    if (stage == 0) {
        costs->first[kind] *= factor;
    }
    if (stage == plan->stages - 1) {
        costs->last[kind] *= factor;
    }
}

// What overlap hides, from pairs beside their parts as scaled by now.
static void measure_pairs(struct dp_adapt_costs *costs, const struct dp_plan *plan,
                          const double *slow, const struct dp_adapt_measured *rows, size_t count)
{
    DP_AUTO_FREE double *shares = dp_new_array(double, count);
    for (int with_input = 0; with_input < 2; with_input++) {
        size_t found = 0;
        for (size_t i = 0; i < count; i++) {
            if (!is_usable(plan, &rows[i]) || rows[i].kind != DP_ACTION_FB ||
                rows[i].with_input != (with_input == 1)) {
                continue;
            }
            int backward = with_input == 1 ? DP_ACTION_I : DP_ACTION_B;
            double parts = stage_predicted(costs, plan, rows[i].stage, DP_ACTION_F) +
                           stage_predicted(costs, plan, rows[i].b_stage, backward);
            double seconds = rows[i].seconds / (slow != NULL ? slow[rows[i].rank] : 1);
            if (parts > 0) {
                shares[found++] = seconds / parts;
            }
        }
        if (found > 0) {
            *(with_input == 1 ? &costs->pair_input_share : &costs->pair_share) =
                median(shares, found);
        }
    }
}

dp_status dp_adapt_costs_measure(struct dp_adapt_costs *costs, const struct dp_plan *plan,
                                 const double *slow, const struct dp_adapt_measured *rows,
                                 size_t count, struct dp_error *err)
{
    if (costs->layers != plan->layer_begin[plan->stages] || costs->pipeline != plan->pipeline) {
        return dp_fail(err, DP_INVALID, "costs are of %d layers on %d ranks, the plan has %d on %d",
                       costs->layers, costs->pipeline, plan->layer_begin[plan->stages],
                       plan->pipeline);
    }
    for (int32_t r = 0; slow != NULL && r < dp_plan_world(plan); r++) {
        if (!(slow[r] > 0)) {
            return dp_fail(err, DP_INVALID, "rank %d is slow by %g; it must be over 0", r, slow[r]);
        }
    }
    struct table table = {0};
    DP_AUTO_FREE double(*measured)[DP_ADAPT_KINDS] =
        dp_alloc((size_t)plan->stages, sizeof(*measured));
    DP_AUTO_FREE double(*factors)[DP_ADAPT_KINDS] =
        dp_alloc((size_t)plan->stages, sizeof(*factors));
    table.measured = measured;
    fill_table(costs, plan, slow, rows, count, &table);
    double action[DP_ADAPT_KINDS];
    for (int kind = 0; kind < DP_ADAPT_KINDS; kind++) {
        action[kind] = costs->action[kind] * ratio(&table.of_kind[kind], ratio(&table.all, 1));
        for (int32_t s = 0; s < plan->stages; s++) {
            factors[s][kind] = factor_of(costs, plan, &table, s, kind, action[kind]);
        }
    }
    for (int kind = 0; kind < DP_ADAPT_KINDS; kind++) {
        for (int32_t s = 0; s < plan->stages; s++) {
            scale_stage(costs, plan, s, kind, factors[s][kind]);
        }
        costs->action[kind] = action[kind];
    }
    measure_pairs(costs, plan, slow, rows, count);
    return DP_OK;
}
