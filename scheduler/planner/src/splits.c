#include "splits.h"

#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"

static dp_status read_layers(struct cuts *cuts, struct dp_error *err)
{
    const char *text = cuts->spec->parallel.layers_per_stage;
    if (text[0] == '\0') {
        return DP_OK;
    }
    cuts->as_set = dp_new_array(int32_t, DP_STAGES_MAX);
    return dp_layers_per_stage_parse(text, cuts->spec->model.layers, cuts->as_set,
                                     &cuts->as_set_count, err);
}

dp_status dp_planner_cuts_init(struct cuts *ret_cuts, const struct dp_job_spec *spec,
                               const struct dp_price *price, struct dp_error *err)
{
    *ret_cuts = (struct cuts){.spec = spec};
    for (int unit = 0; unit < DP_UNIT_COUNT; unit++) {
        double flops = price->units[unit].flops;
        const struct dp_unit_bytes *bytes = &price->bytes[unit];
        bool is_layer = unit == DP_UNIT_DENSE || unit == DP_UNIT_MOE;
        ret_cuts->weights[CUT_LAYERS][unit] = is_layer ? flops : 0;
        ret_cuts->weights[CUT_ENDS][unit] = flops;
        ret_cuts->weights[CUT_SPARSE][unit] = unit == DP_UNIT_MOE ? 1.5 * flops : flops;
        // Weights and gradients of a parameter in two or four bytes each.
        ret_cuts->weights[CUT_MEMORY][unit] =
            6 * (bytes->parameters.dense + bytes->parameters.experts) + bytes->after_forward;
    }
    dp_status status = read_layers(ret_cuts, err);
    if (status != DP_OK) {
        dp_planner_cuts_deinit(ret_cuts);
    }
    return status;
}

static void free_cut(struct cut *cut)
{
    free(cut->layer_begin);
    free(cut->class_of);
    free(cut->classes);
    free(cut);
}

void dp_planner_cuts_deinit(struct cuts *cuts)
{
    for (int32_t stages = 0; stages <= DP_STAGES_MAX; stages++) {
        for (int rule = 0; rule < CUT_ALL_COUNT; rule++) {
            if (cuts->known[stages][rule] != NULL) {
                free_cut(cuts->known[stages][rule]);
            }
        }
    }
    free(cuts->as_set);
    *cuts = (struct cuts){0};
}

bool dp_planner_cuts_allow(const struct cuts *cuts, int32_t stages)
{
    return cuts->as_set_count > 0 ? stages == cuts->as_set_count
                                  : stages <= cuts->spec->model.layers + 2;
}

// One layer each where there are no more: then the ends hold none.
static void make_begins(const struct cuts *cuts, int32_t stages, cut_rule rule, int32_t *ret_begin)
{
    const struct dp_model_spec *model = &cuts->spec->model;
    if (rule == CUT_AS_SET) {
        for (int32_t s = 0; s < stages; s++) {
            ret_begin[s + 1] = ret_begin[s] + cuts->as_set[s];
        }
        return;
    }
    if (stages > model->layers) {
        for (int32_t s = 0; s < stages; s++) {
            bool is_empty = s == stages - 1 || (s == 0 && stages == model->layers + 2);
            ret_begin[s + 1] = ret_begin[s] + !is_empty;
        }
        return;
    }
    const double *weights = cuts->weights[rule];
    DP_AUTO_FREE double *cost = dp_new_array(double, (size_t)model->layers);
    for (int32_t layer = 0; layer < model->layers; layer++) {
        cost[layer] = weights[dp_model_layer_is_moe(model, layer) ? DP_UNIT_MOE : DP_UNIT_DENSE];
    }
    double last = weights[DP_UNIT_HEAD] + model->mtp_layers * weights[DP_UNIT_MTP];
    dp_planner_split_layers(cost, model->layers, stages, weights[DP_UNIT_EMBEDDING], last,
                            ret_begin);
}

static void find_classes(const struct cuts *cuts, struct cut *cut)
{
    cut->class_of = dp_new_array(int32_t, (size_t)cut->stages);
    cut->classes = dp_new_array(struct dp_stage_units, (size_t)cut->stages);
    for (int32_t s = 0; s < cut->stages; s++) {
        struct dp_stage_units units =
            dp_stage_units_of(&cuts->spec->model, cut->layer_begin[s], cut->layer_begin[s + 1],
                              s == 0, s == cut->stages - 1);
        int32_t class = 0;
        while (class < cut->classes_count &&
               memcmp(&cut->classes[class], &units, sizeof(units)) != 0) {
            class ++;
        }
        if (class == cut->classes_count) {
            cut->classes[cut->classes_count++] = units;
        }
        cut->class_of[s] = class;
    }
}

const struct cut *dp_planner_cuts_get(struct cuts *cuts, int32_t stages, cut_rule rule)
{
    if (cuts->known[stages][rule] != NULL || cuts->is_same[stages][rule]) {
        return cuts->known[stages][rule];
    }
    size_t size = (size_t)stages + 1;
    DP_AUTO_FREE int32_t *begin = dp_new_array(int32_t, size);
    bool is_same =
        (rule == CUT_AS_SET) != (cuts->as_set_count > 0) || !dp_planner_cuts_allow(cuts, stages);
    if (!is_same) {
        make_begins(cuts, stages, rule, begin);
    }
    for (int before = 0; before < (int)rule && !is_same && rule != CUT_AS_SET; before++) {
        const struct cut *other = dp_planner_cuts_get(cuts, stages, before);
        is_same = other != NULL && memcmp(other->layer_begin, begin, size * sizeof(*begin)) == 0;
    }
    cuts->is_same[stages][rule] = is_same;
    if (is_same) {
        return NULL;
    }
    struct cut *cut = dp_new(struct cut);
    cut->stages = stages;
    cut->layer_begin = dp_steal(begin);
    find_classes(cuts, cut);
    cuts->known[stages][rule] = cut;
    return cut;
}
