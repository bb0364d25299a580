#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "internal.h"

void dp_adapt_layout_copy(const struct adapt *adapt, const struct layout *from,
                          struct layout *ret_layout)
{
    size_t blocks = (size_t)adapt->blocks;
    *ret_layout = (struct layout){
        .place = dp_memdup(from->place, (size_t)adapt->world * sizeof(*from->place)),
        .layer_begin =
            dp_memdup(from->layer_begin, ((size_t)adapt->stages + 1) * sizeof(*from->layer_begin)),
        .count = dp_memdup(from->count, blocks * sizeof(*from->count)),
        .own = dp_memdup(from->own, blocks * sizeof(struct order *)),
        .moves_experts = from->moves_experts,
    };
}

void dp_adapt_layout_deinit(struct layout *layout)
{
    free(layout->place);
    free(layout->layer_begin);
    free(layout->count);
    free(layout->own);
    *layout = (struct layout){0};
}

struct order *dp_adapt_block_order(struct adapt *adapt, const struct layout *layout, int32_t block)
{
    return layout->own[block] != NULL ? layout->own[block]
                                      : dp_adapt_order_of(adapt, layout->count[block]);
}

unsigned dp_adapt_layout_parts(const struct adapt *adapt, const struct layout *layout)
{
    const struct layout *base = &adapt->base;
    unsigned parts = layout->moves_experts ? 1u << DP_ADAPT_EXPERTS : 0;
    for (int32_t r = 0; r < adapt->world; r++) {
        if (layout->place[r] != base->place[r]) {
            parts |= 1u << (layout->place[r] >= adapt->world ? DP_ADAPT_SPARE : DP_ADAPT_SWAP);
        }
    }
    for (int32_t s = 0; s <= adapt->stages; s++) {
        parts |= layout->layer_begin[s] != base->layer_begin[s] ? 1u << DP_ADAPT_LAYERS : 0;
    }
    for (int32_t b = 0; b < adapt->blocks; b++) {
        parts |= layout->count[b] != base->count[b] ? 1u << DP_ADAPT_SHIFT : 0;
        // A share of another size brings the family's order for it.
        parts |=
            layout->own[b] != base->own[b] && layout->own[b] != NULL ? 1u << DP_ADAPT_ORDER : 0;
    }
    return parts;
}

int32_t dp_adapt_layers_at(const struct adapt *adapt, const struct layout *layout,
                           const struct dp_schedule *schedule, int32_t position)
{
    int32_t stages[DP_RANK_STAGES_MAX], layers = 0;
    int32_t count = dp_schedule_rank_stages(schedule, position, stages);
    (void)adapt;
    for (int32_t i = 0; i < count; i++) {
        layers += layout->layer_begin[stages[i] + 1] - layout->layer_begin[stages[i]];
    }
    return layers;
}

// Of a position's ranks in one block: weights and what chunks keep grow with the layers, and what
// chunks keep with their number.
static double bytes_at(struct adapt *adapt, const struct layout *layout, int32_t block,
                       int32_t position)
{
    struct order *order = dp_adapt_block_order(adapt, layout, block);
    struct order *before = dp_adapt_block_order(adapt, &adapt->base, block);
    const struct dp_memory_parts *m = &adapt->plan->positions[position].memory;
    int32_t old = dp_adapt_layers_at(adapt, &adapt->base, &before->schedule, position);
    int32_t new = dp_adapt_layers_at(adapt, layout, &order->schedule, position);
    // Its ends alone tell nothing of a layer: as much as it had, for each.
    double by_layers = old > 0 ? (double)new / old : 1 + new;
    double by_chunks =
        before->peak[position] > 0 ? (double)order->peak[position] / before->peak[position] : 1;
    return (m->weights + m->gradients + m->optimizer) * by_layers +
           (m->activations + m->deferred) * by_layers * by_chunks + m->transient + m->exchange +
           m->runtime;
}

bool dp_adapt_has_state(const struct adapt *adapt)
{
    const struct dp_job_spec *spec = adapt->input->spec;
    return spec == NULL || spec->resources.device != DP_DEVICE_SIM;
}

bool dp_adapt_layout_fits(struct adapt *adapt, const struct layout *layout)
{
    const struct dp_plan *plan = adapt->plan;
    if (plan->positions == NULL || !dp_adapt_has_state(adapt)) {
        return true;
    }
    for (int32_t r = 0; r < adapt->world; r++) {
        int32_t position = dp_plan_rank_position(plan, r);
        int32_t block = r / adapt->shards / adapt->pipeline / adapt->coupled;
        double own = adapt->places[layout->place[r]].memory_bytes;
        double limit = own > 0 ? own : plan->positions[position].memory_limit_bytes;
        // What is there now was planned; only more than it can be too much.
        double bytes = limit > 0 ? bytes_at(adapt, layout, block, position) : 0;
        double now = limit > 0 ? bytes_at(adapt, &adapt->base, block, position) : 0;
        if (bytes > limit && (bytes > now || own > 0)) {
            return false;
        }
    }
    return true;
}
