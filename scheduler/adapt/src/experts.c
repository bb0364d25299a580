// Loads of experts: what they make of ranks, and what a new placement would.

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "internal.h"

// A placement must take so much off the fullest rank (worth of dp_experts_propose).
static const double worth = 0.97;

// Rows of each of the group's ranks over their mean, in one layer.
static void add_loads(const struct dp_experts_shape *shape, const double *load,
                      const int32_t *expert, double *ret_sums)
{
    DP_AUTO_FREE double *copies = dp_new_array(double, (size_t)shape->experts);
    double total = 0;
    for (int32_t i = 0; i < shape->slots; i++) {
        copies[expert[i]]++;
    }
    for (int32_t e = 0; e < shape->experts; e++) {
        total += load[e];
    }
    int32_t of_rank = shape->slots / shape->ranks;
    for (int32_t i = 0; total > 0 && i < shape->slots; i++) {
        ret_sums[i / of_rank] += load[expert[i]] / copies[expert[i]] / total * shape->ranks;
    }
}

static dp_status check(const struct adapt *adapt, const struct dp_adapt_experts *experts,
                       struct dp_error *err)
{
    dp_status status = dp_experts_shape_check(&experts->shape, err);
    if (status == DP_OK && (experts->shape.ranks != adapt->plan->expert || experts->layers < 1 ||
                            !(experts->share >= 0 && experts->share <= 1))) {
        status =
            dp_fail(err, DP_INVALID,
                    "loads are of %d ranks in %d layers and %g of the time; the plan's expert "
                    "groups have %d ranks",
                    experts->shape.ranks, experts->layers, experts->share, adapt->plan->expert);
    }
    for (int32_t i = 0; status == DP_OK && i < experts->layers * experts->shape.slots; i++) {
        if (experts->held[i] < 0 || experts->held[i] >= experts->shape.experts) {
            status = dp_fail(err, DP_INVALID, "slot %d holds expert %d of %d", i, experts->held[i],
                             experts->shape.experts);
        }
    }
    return status;
}

void dp_adapt_experts_of_ranks(const struct dp_plan *plan, const struct dp_model_spec *model,
                               const double *rank_load, double skew, int32_t copies,
                               struct dp_adapt_experts *ret_experts)
{
    struct dp_layer_parts parts;
    dp_model_layer_parts(model, model->layers - 1, &parts);
    double active = (double)dp_layer_parts_active(&parts);
    double common = (double)dp_layer_parts_common(&parts);
    double of_rank = fmax(1, (double)model->experts / plan->expert);
    *ret_experts = (struct dp_adapt_experts){
        .rank_load = rank_load,
        .reachable = fmax(1, skew / of_rank / (1 + copies)),
        .share = active > 0 ? 1 - common / active : 0,
    };
}

static dp_status fill_from_ranks(struct adapt *adapt, const struct dp_adapt_experts *experts,
                                 struct dp_error *err)
{
    adapt->load_now = dp_new_array(double, (size_t)adapt->world);
    adapt->load_after = dp_new_array(double, (size_t)adapt->world);
    for (int32_t r = 0; r < adapt->world; r++) {
        double load = experts->rank_load[r];
        if (!(load >= 0) || !isfinite(load) || !(experts->share >= 0 && experts->share <= 1) ||
            !(experts->reachable >= 1)) {
            return dp_fail(err, DP_INVALID,
                           "rank %d has %g times the mean's rows, %g at best, in %g of its time", r,
                           load, experts->reachable, experts->share);
        }
        adapt->load_now[r] = 1 + experts->share * (load - 1);
        adapt->load_after[r] = 1 + experts->share * (fmin(load, experts->reachable) - 1);
    }
    return DP_OK;
}

static double factor_of(const struct dp_adapt_experts *experts, double sum)
{
    return 1 + experts->share * (sum / experts->layers - 1);
}

dp_status dp_adapt_experts_fill(struct adapt *adapt, struct dp_error *err)
{
    const struct dp_adapt_experts *experts = adapt->input->experts;
    if (experts == NULL) {
        return DP_OK;
    }
    if (experts->load == NULL) {
        return fill_from_ranks(adapt, experts, err);
    }
    dp_status status = check(adapt, experts, err);
    if (status != DP_OK) {
        return status;
    }
    const struct dp_experts_shape *shape = &experts->shape;
    DP_AUTO_FREE double *now = dp_new_array(double, (size_t)shape->ranks);
    DP_AUTO_FREE double *after = dp_new_array(double, (size_t)shape->ranks);
    DP_AUTO_FREE int32_t *placed = dp_new_array(int32_t, (size_t)shape->slots);
    for (int32_t l = 0; l < experts->layers; l++) {
        const double *load = experts->load + (size_t)l * (size_t)shape->experts;
        const int32_t *held = experts->held + (size_t)l * (size_t)shape->slots;
        dp_experts_propose(shape, load, held, worth, placed);
        add_loads(shape, load, held, now);
        add_loads(shape, load, placed, after);
    }
    adapt->load_now = dp_new_array(double, (size_t)adapt->world);
    adapt->load_after = dp_new_array(double, (size_t)adapt->world);
    for (int32_t r = 0; r < adapt->world; r++) {
        int32_t in_group = dp_plan_rank_coordinates(adapt->plan, r).expert;
        adapt->load_now[r] = factor_of(experts, now[in_group]);
        adapt->load_after[r] = factor_of(experts, after[in_group]);
    }
    return DP_OK;
}

bool dp_adapt_experts_part(struct adapt *adapt, struct layout *layout, char *ret_why)
{
    if (adapt->input->experts == NULL) {
        snprintf(ret_why, DP_ADAPT_WHY_MAX, "loads of experts are even, or not known");
        return false;
    }
    snprintf(ret_why, DP_ADAPT_WHY_MAX, "no other placement is more even");
    double now = dp_adapt_layout_step(adapt, layout);
    bool before = layout->moves_experts;
    layout->moves_experts = true;
    // Loads of one step may show nothing; ranks that are asked to look go by more of them.
    layout->moves_experts = dp_adapt_layout_step(adapt, layout) < now * (1 - 1e-9) || before ||
                            adapt->input->wanted == DP_ADAPT_EXPERTS;
    return layout->moves_experts && !before;
}
