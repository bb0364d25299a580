// Which expert lies in which slot, and which copy of an expert a token goes to.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "stage.h"

bool dp_stage_routes(const struct dp_stage *stage, int32_t layer)
{
    const int32_t i = layer - stage->config.layer_begin;
    return i >= 0 && i < stage->layer_count && !stage->layers[i].dense;
}

// Of a layer of the stage.
static int32_t *experts_of(const struct dp_stage *stage, int32_t layer)
{
    return stage->slot_expert + (size_t)layer * (size_t)stage->slots;
}

// Sorts the layer's slots by expert: what copies_of finds.
static void list_copies(struct dp_stage *stage, int32_t layer)
{
    const int32_t experts = stage->config.model.experts;
    const int32_t *expert = experts_of(stage, layer);
    int32_t *begin = stage->copy_begin + (size_t)layer * ((size_t)experts + 1);
    int32_t *slot = stage->copy_slot + (size_t)layer * (size_t)stage->slots;
    memset(begin, 0, ((size_t)experts + 1) * sizeof(*begin));
    for (int32_t s = 0; s < stage->slots; s++) {
        begin[expert[s] + 1]++;
    }
    for (int32_t e = 0; e < experts; e++) {
        begin[e + 1] += begin[e];
    }
    for (int32_t s = stage->slots - 1; s >= 0; s--) {
        slot[--begin[expert[s] + 1]] = s;
    }
    // Each begin has moved to its expert's first: shift them back into place.
    memmove(begin, begin + 1, (size_t)experts * sizeof(*begin));
    begin[experts] = stage->slots;
}

void dp_stage_make_placement(struct dp_stage *stage)
{
    const struct dp_stage_config *config = &stage->config;
    const size_t layers = (size_t)stage->layer_count, experts = (size_t)config->model.experts;
    stage->slots = config->expert_slots > 0 ? config->expert_slots : config->model.experts;
    stage->local_experts = stage->slots / config->ep_size;
    const size_t slots = (size_t)stage->slots;
    stage->slot_expert = dp_new_array(int32_t, layers * slots);
    stage->slot_counts = dp_new_array(int64_t, layers * slots);
    stage->copy_begin = dp_new_array(int32_t, layers * (experts + 1));
    stage->copy_slot = dp_new_array(int32_t, layers * slots);
    stage->turn = dp_new_array(int32_t, experts);
    for (int32_t i = 0; i < stage->layer_count && experts > 0; i++) {
        for (int32_t s = 0; s < stage->slots; s++) {
            experts_of(stage, i)[s] = s % config->model.experts;
        }
        list_copies(stage, i);
    }
}

void dp_stage_free_placement(struct dp_stage *stage)
{
    free(stage->slot_expert);
    free(stage->slot_counts);
    free(stage->copy_begin);
    free(stage->copy_slot);
    free(stage->turn);
}

int32_t dp_stage_own_expert(const struct dp_stage *stage, int32_t layer, int32_t e, bool *ret_copy)
{
    const int32_t slot = stage->config.ep_rank * stage->local_experts + e;
    const int32_t *expert = experts_of(stage, layer);
    *ret_copy = false;
    for (int32_t s = 0; s < slot && !*ret_copy; s++) {
        *ret_copy = expert[s] == expert[slot];
    }
    return expert[slot];
}

int32_t dp_stage_slots(const struct dp_stage *stage)
{
    return stage->slots;
}

int64_t dp_stage_slot_elements(const struct dp_stage *stage)
{
    return 3 * (int64_t)stage->config.model.expert_ffn * stage->config.model.hidden;
}

int64_t dp_stage_slot_offset(const struct dp_stage *stage, int32_t layer, int32_t i)
{
    DP_CHECK(dp_stage_routes(stage, layer) && i >= 0 && i < stage->local_experts);
    return stage->layers[layer - stage->config.layer_begin].experts +
           i * dp_stage_slot_elements(stage);
}

const int32_t *dp_stage_placement(const struct dp_stage *stage, int32_t layer)
{
    return dp_stage_routes(stage, layer) ? experts_of(stage, layer - stage->config.layer_begin)
                                         : NULL;
}

int64_t *dp_stage_slot_counts(struct dp_stage *stage, int32_t layer)
{
    return dp_stage_routes(stage, layer)
               ? stage->slot_counts +
                     (size_t)(layer - stage->config.layer_begin) * (size_t)stage->slots
               : NULL;
}

static void name_tensors(struct dp_stage *stage, int32_t layer)
{
    static const char *const parts[] = {"gate", "up", "down"};
    struct dp_tensor *tensor = &stage->tensors[stage->layers[layer].expert_tensor];
    for (int32_t e = 0; e < stage->local_experts; e++) {
        bool is_copy;
        const int32_t expert = dp_stage_own_expert(stage, layer, e, &is_copy);
        for (size_t i = 0; i < DP_ARRAY_LENGTH(parts); i++, tensor++) {
            DP_CHECK(tensor->is_expert);
            tensor->is_copy = is_copy;
            const int length =
                snprintf(tensor->name, sizeof(tensor->name), "layers.%d.experts.%d.%s",
                         stage->config.layer_begin + layer, expert, parts[i]);
            DP_CHECK(length < (int)sizeof(tensor->name));
        }
    }
}

void dp_stage_set_placement(struct dp_stage *stage, int32_t layer, const int32_t *expert)
{
    DP_CHECK(dp_stage_routes(stage, layer) && stage->config.ep_size > 1);
    const int32_t i = layer - stage->config.layer_begin;
    memcpy(experts_of(stage, i), expert, (size_t)stage->slots * sizeof(*expert));
    list_copies(stage, i);
    name_tensors(stage, i);
}

void dp_chunk_place(const struct dp_chunk *chunk, int32_t layer, int32_t *index)
{
    struct dp_stage *stage = chunk->stage;
    const size_t experts = (size_t)stage->config.model.experts;
    const int64_t choices = chunk->tokens * stage->config.model.top_k;
    const int32_t *begin = stage->copy_begin + (size_t)layer * (experts + 1);
    const int32_t *slot = stage->copy_slot + (size_t)layer * (size_t)stage->slots;
    int64_t *counts = stage->slot_counts + (size_t)layer * (size_t)stage->slots;
    // Sources begin with different copies, so that few tokens do not all meet the first one.
    for (size_t e = 0; e < experts; e++) {
        stage->turn[e] = stage->config.ep_rank % (begin[e + 1] - begin[e]);
    }
    for (int64_t i = 0; i < choices; i++) {
        const int32_t e = index[i];
        if (e < 0) {
            continue;
        }
        const int32_t copies = begin[e + 1] - begin[e];
        index[i] = slot[begin[e] + stage->turn[e]];
        stage->turn[e] = stage->turn[e] + 1 == copies ? 0 : stage->turn[e] + 1;
        counts[index[i]] += chunk->loss_scale != 0;
    }
}
