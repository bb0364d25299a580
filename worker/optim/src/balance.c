// Loads of experts, and the router's bias that evens them out.
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "optim_internal.h"

enum { CALL_LOADS = 9 };

// The layers of a stage whose loads are counted; all have the same number of slots.
struct stage_loads {
    int32_t layers[DP_LAYERS_MAX + 1];
    int32_t count, slots;
};

static void find_layers(struct dp_stage *stage, struct stage_loads *ret_loads)
{
    const struct dp_stage_config *config = dp_stage_config(stage);
    ret_loads->count = 0;
    ret_loads->slots = dp_stage_slots(stage);
    // That of multi-token prediction follows the others.
    for (int32_t layer = config->layer_begin; layer <= config->layer_end; layer++) {
        if (dp_stage_expert_counts(stage, layer) != NULL) {
            ret_loads->layers[ret_loads->count++] = layer;
        }
    }
}

static struct dp_expert_load *add_load(struct dp_optim *optim, const struct held_stage *held,
                                       int32_t layer)
{
    const struct dp_stage_config *config = dp_stage_config(held->stage);
    int32_t experts = config->model.experts, slots = dp_stage_slots(held->stage);
    int32_t own = slots / config->ep_size;
    const int32_t *placed = dp_stage_placement(held->stage, layer);
    optim->loads = dp_realloc(optim->loads, (size_t)optim->load_count + 1, sizeof optim->loads[0]);
    struct dp_expert_load *load = &optim->loads[optim->load_count++];
    *load = (struct dp_expert_load){.layer = layer,
                                    .experts = experts,
                                    .tokens = dp_new_array(int64_t, (size_t)experts),
                                    .slots = slots,
                                    .placed = dp_memdup(placed, (size_t)slots * sizeof *placed),
                                    .first = config->ep_rank * own,
                                    .count = own,
                                    .own = dp_new_array(int64_t, (size_t)own),
                                    .group_ranks = config->ep_size,
                                    .reports = held->shared.self == 0};
    return load;
}

void dp_optim_free_loads(struct dp_optim *optim)
{
    for (int32_t i = 0; i < optim->load_count; i++) {
        free((void *)optim->loads[i].tokens);
        free((void *)optim->loads[i].placed);
        free((void *)optim->loads[i].own);
    }
    free(optim->loads);
    optim->loads = NULL;
    optim->load_count = 0;
}

// Whether the tokens of a global rank come to the same copies of experts as this rank's.
static bool is_peer(const struct dp_optim *optim, const struct dp_group *group, int32_t member)
{
    int32_t mine = group->ranks[group->self], other = group->ranks[member];
    return mine % optim->pipeline == other % optim->pipeline &&
           mine / optim->pipeline / optim->expert == other / optim->pipeline / optim->expert;
}

// counts: [members][slots] of one layer, `stride` apart.
static void add_up(const struct dp_optim *optim, const struct dp_group *group,
                   const int64_t *counts, size_t stride, struct dp_expert_load *load)
{
    int64_t *tokens = (int64_t *)load->tokens, *own = (int64_t *)load->own;
    for (int32_t member = 0; member < group->count; member++) {
        const int64_t *from = counts + (size_t)member * stride;
        bool is_own = is_peer(optim, group, member);
        for (int32_t s = 0; s < load->slots; s++) {
            tokens[load->placed[s]] += from[s];
            load->group += is_own ? from[s] : 0;
        }
        for (int32_t e = 0; e < load->count && is_own; e++) {
            own[e] += from[load->first + e];
        }
    }
}

static void move_bias(const struct held_stage *held, const struct dp_expert_load *load)
{
    double speed = dp_stage_config(held->stage)->model.bias_update;
    void *bias = dp_stage_router_bias(held->stage, load->layer);
    if (bias == NULL || speed <= 0) {
        return;
    }
    int64_t sum = 0;
    for (int32_t e = 0; e < load->experts; e++) {
        sum += load->tokens[e];
    }
    bool is_wide = dp_element_real(held->device->element) == DP_F64;
    for (int32_t e = 0; e < load->experts; e++) {
        // mean - count, times the number of experts: whole numbers have no rounding.
        int64_t short_of = sum - load->tokens[e] * load->experts;
        double change = short_of > 0 ? speed : short_of < 0 ? -speed : 0;
        if (is_wide) {
            ((double *)bias)[e] += change;
        } else {
            ((float *)bias)[e] = (float)((double)((float *)bias)[e] + change);
        }
    }
}

static dp_status sum_stage(struct dp_optim *optim, struct held_stage *held, struct dp_error *err)
{
    struct stage_loads stage;
    find_layers(held->stage, &stage);
    if (stage.count == 0) {
        return DP_OK;
    }
    struct dp_group *group = &held->shared;
    size_t slots = (size_t)stage.slots, length = (size_t)stage.count * slots;
    DP_AUTO_FREE int64_t *all = dp_new_array(int64_t, length * (size_t)group->count);
    int64_t *mine = all + (size_t)group->self * length;
    for (int32_t i = 0; i < stage.count; i++) {
        int64_t *counts = dp_stage_slot_counts(held->stage, stage.layers[i]);
        memcpy(mine + (size_t)i * slots, counts, slots * sizeof counts[0]);
        memset(counts, 0, slots * sizeof counts[0]);
        memset(dp_stage_expert_counts(held->stage, stage.layers[i]), 0,
               (size_t)dp_stage_config(held->stage)->model.experts * sizeof counts[0]);
    }
    uint64_t tag = dp_transport_tag(0, (uint32_t)held->index, 0, 0, CALL_LOADS);
    dp_status status =
        dp_group_all_gather(group, tag, sizeof all[0], all, (int64_t)length * group->count, err);
    if (status != DP_OK) {
        dp_fail_in(err, "loads of the experts of stage %d", held->index);
        return status;
    }
    for (int32_t i = 0; i < stage.count; i++) {
        struct dp_expert_load *load = add_load(optim, held, stage.layers[i]);
        add_up(optim, group, all + (size_t)i * slots, length, load);
    }
    return DP_OK;
}

// Adds the step's loads to those since the experts were last placed. All layers of a model have
// the same number of experts, and the layers of every step are the same.
static void keep_loads(struct dp_optim *optim)
{
    for (int32_t i = 0; i < optim->load_count; i++) {
        const struct dp_expert_load *load = &optim->loads[i];
        const size_t experts = (size_t)load->experts;
        if (optim->since == NULL) {
            optim->since = dp_new_array(double, (size_t)optim->load_count *experts);
        }
        for (size_t e = 0; e < experts; e++) {
            optim->since[(size_t)i * experts + e] += (double)load->tokens[e];
        }
    }
}

dp_status dp_optim_sum_loads(struct dp_optim *optim, struct dp_error *err)
{
    dp_optim_free_loads(optim);
    for (int32_t i = 0; i < optim->count; i++) {
        dp_status status = sum_stage(optim, optim->in_order[i], err);
        if (status != DP_OK) {
            return status;
        }
    }
    return DP_OK;
}

void dp_optim_move_biases(struct dp_optim *optim)
{
    for (int32_t i = 0; i < optim->load_count; i++) {
        const struct dp_expert_load *load = &optim->loads[i];
        move_bias(dp_optim_holder_of(optim, load->layer), load);
    }
    keep_loads(optim);
}

dp_status dp_optim_balance(struct dp_optim *optim, struct dp_error *err)
{
    dp_status status = dp_optim_sum_loads(optim, err);
    if (status == DP_OK) {
        dp_optim_move_biases(optim);
    }
    return status;
}

int32_t dp_optim_load_count(const struct dp_optim *optim)
{
    return optim->load_count;
}

void dp_optim_load_at(const struct dp_optim *optim, int32_t index, struct dp_expert_load *ret_load)
{
    DP_CHECK(index >= 0 && index < optim->load_count);
    *ret_load = optim->loads[index];
}
