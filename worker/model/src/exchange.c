#include <string.h>

#include "dp/check.h"
#include "stage.h"

// Rows go to other ranks' experts as codes when their first product takes them so anyway.
static dp_wire_format format_of(const struct dp_stage *stage)
{
    const bool is_local = stage->config.exchanger == &stage->local;
    return stage->config.fp8 && !is_local ? DP_WIRE_FP8 : DP_WIRE_ELEMENT;
}

// Slots of the tokens that arrived.
static int64_t arrived_slots(const struct dp_chunk *chunk, int32_t layer)
{
    return chunk->routed[layer].tokens * chunk->stage->config.model.top_k;
}

// One real a row.
static struct dp_rows weights_of(int64_t rows)
{
    return (struct dp_rows){
        .rows = rows, .cols = 1, .from_kind = DP_OPERAND_REAL, .to_kind = DP_OPERAND_REAL};
}

dp_status dp_exchange_dispatch_begin(struct dp_chunk *chunk, int32_t layer, const int32_t *index,
                                     struct dp_error *err)
{
    const struct dp_stage_config *config = &chunk->stage->config;
    struct dp_exchanger *exchanger = config->exchanger;
    struct dp_layer_state *state = &chunk->layers[layer];
    if (exchanger == NULL) {
        return dp_fail(err, DP_INVALID,
                       "rank %d of %d expert ranks has no exchanger to reach the others with",
                       config->ep_rank, config->ep_size);
    }
    const uint64_t number = (uint64_t)(config->layer_begin + layer);
    dp_status status = exchanger->route(exchanger->context, chunk->tag + number * chunk->layer_step,
                                        chunk->tokens, index, &state->routing, err);
    if (status != DP_OK) {
        return status;
    }
    const struct dp_load load = {.format = format_of(chunk->stage),
                                 .rows = state->sent_rows.memory,
                                 .weights = state->sent_weight.memory};
    return exchanger->begin(state->routing, DP_MOVE_DISPATCH, &load, err);
}

// Fixes each arrived slot's place among the rows, and tells the host how many rows there are.
static dp_status place_rows(struct dp_chunk *chunk, int32_t layer,
                            const struct dp_arrivals *arrivals, struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    const struct dp_device_ops *ops = stage->device->ops;
    struct dp_layer_state *state = &chunk->layers[layer];
    const int32_t experts = stage->local_experts;
    chunk->routed[layer].tokens = arrivals->tokens;
    const int64_t slots = arrived_slots(chunk, layer);
    const struct dp_take take = {&state->row_of, slots * (int64_t)sizeof(int32_t)};
    void *counts;
    dp_status status = dp_chunk_take(chunk, &take, 1, err);
    if (status == DP_OK) {
        status = dp_stage_scratch(stage, DP_SCRATCH_SMALL, (size_t)experts * sizeof(int32_t),
                                  &counts, err);
    }
    if (status != DP_OK) {
        return status;
    }
    ops->sort_slots(stage->device->stream, slots, experts, arrivals->expert, counts,
                    state->row_of.memory);
    ops->copy(stage->device->stream, state->counts, counts, (size_t)experts * sizeof(int32_t));
    status = ops->stream_sync(stage->device->stream, err);
    chunk->routed[layer].rows = 0;
    for (int32_t e = 0; e < experts && status == DP_OK; e++) {
        chunk->routed[layer].rows += state->counts[e];
    }
    return status;
}

// Every arrived token's row, once for each of its experts here.
static dp_status unfold(struct dp_chunk *chunk, int32_t layer, const struct dp_arrivals *arrivals,
                        void *rows, struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    const struct dp_device_ops *ops = stage->device->ops;
    const struct dp_model_spec *model = &stage->config.model;
    const struct dp_rows moved = {.rows = arrived_slots(chunk, layer), .cols = model->hidden};
    const void *arrived = arrivals->rows;
    if (arrivals->scales != NULL) {
        void *decoded;
        dp_status status = dp_stage_elements(stage, DP_SCRATCH_NORMED,
                                             arrivals->tokens * model->hidden, &decoded, err);
        if (status != DP_OK) {
            return status;
        }
        const struct dp_fp8 fp8 = {
            .rows = arrivals->tokens, .cols = model->hidden, .tile_rows = 1, .tile_cols = 128};
        ops->dequantize_fp8(stage->device->stream, &fp8, arrivals->rows, arrivals->scales,
                            DP_OPERAND_ELEMENT, decoded);
        arrived = decoded;
    }
    ops->spread_rows(stage->device->stream, &moved, model->top_k,
                     chunk->layers[layer].row_of.memory, arrived, rows);
    return DP_OK;
}

static dp_status pack_rows(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    struct dp_layer_state *state = &chunk->layers[layer];
    if (!chunk->stage->config.save_fp8) {
        return DP_OK;
    }
    return dp_fp8_pack(chunk, chunk->routed[layer].rows, chunk->stage->config.model.hidden,
                       &state->rows_x, &state->rows_codes, err);
}

bool dp_exchange_has_rows(const struct dp_chunk *chunk, int32_t layer)
{
    const struct dp_layer_state *state = &chunk->layers[layer];
    return state->rows_x.memory != NULL || state->rows_codes.memory != NULL;
}

static dp_status unfold_tokens(struct dp_chunk *chunk, int32_t layer,
                               const struct dp_arrivals *arrivals, struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    struct dp_layer_state *state = &chunk->layers[layer];
    const int64_t rows = chunk->routed[layer].rows;
    const struct dp_take takes[] = {
        {&state->rows_x, dp_chunk_element_bytes(chunk, rows * stage->config.model.hidden)},
        {&state->rows_weight, dp_chunk_real_bytes(chunk, rows)},
    };
    dp_status status = dp_chunk_take(chunk, takes, DP_ARRAY_LENGTH(takes), err);
    if (status != DP_OK) {
        return status;
    }
    status = unfold(chunk, layer, arrivals, state->rows_x.memory, err);
    const struct dp_rows weights = weights_of(arrived_slots(chunk, layer));
    stage->device->ops->spread_rows(stage->device->stream, &weights, 1, state->row_of.memory,
                                    arrivals->weights, state->rows_weight.memory);
    return status == DP_OK ? pack_rows(chunk, layer, err) : status;
}

dp_status dp_exchange_dispatch_end(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    const struct dp_exchanger *exchanger = chunk->stage->config.exchanger;
    struct dp_layer_state *state = &chunk->layers[layer];
    struct dp_arrivals arrivals;
    dp_status status = exchanger->arrive(state->routing, DP_MOVE_DISPATCH, &arrivals, err);
    if (status == DP_OK) {
        status = place_rows(chunk, layer, &arrivals, err);
    }
    if (status == DP_OK) {
        status = unfold_tokens(chunk, layer, &arrivals, err);
    }
    if (status == DP_OK) {
        exchanger->finish(state->routing, DP_MOVE_DISPATCH);
        if (dp_stage_keeps(chunk->stage, DP_RECOMPUTE_NORM)) {
            dp_slot_move(&state->sent_rows, &state->ffn_normed);
        }
        dp_chunk_drop(chunk, &state->sent_rows);
        dp_chunk_drop(chunk, &state->sent_weight);
    }
    return status;
}

dp_status dp_exchange_fold(struct dp_chunk *chunk, int32_t layer, const void *rows,
                           const void *weight, struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    const struct dp_device_ops *ops = stage->device->ops;
    const struct dp_model_spec *model = &stage->config.model;
    struct dp_layer_state *state = &chunk->layers[layer];
    const int64_t tokens = chunk->routed[layer].tokens, slots = arrived_slots(chunk, layer);
    const struct dp_take takes[] = {
        {&state->sent_rows, dp_chunk_element_bytes(chunk, tokens * model->hidden)},
        {&state->sent_weight, dp_chunk_real_bytes(chunk, slots)},
    };
    dp_status status = dp_chunk_take(chunk, takes, weight != NULL ? 2 : 1, err);
    if (status != DP_OK) {
        return status;
    }
    const struct dp_rows folded = {.rows = tokens, .cols = model->hidden};
    ops->collect_rows(stage->device->stream, &folded, model->top_k, false, state->row_of.memory,
                      rows, state->sent_rows.memory);
    if (weight != NULL) {
        const struct dp_rows weights = weights_of(slots);
        ops->collect_rows(stage->device->stream, &weights, 1, false, state->row_of.memory, weight,
                          state->sent_weight.memory);
    }
    return DP_OK;
}

dp_status dp_exchange_back_begin(struct dp_chunk *chunk, int32_t layer, dp_move move,
                                 struct dp_error *err)
{
    const struct dp_layer_state *state = &chunk->layers[layer];
    const struct dp_load load = {.rows = state->sent_rows.memory,
                                 .weights = state->sent_weight.memory};
    return chunk->stage->config.exchanger->begin(state->routing, move, &load, err);
}

dp_status dp_exchange_back_end(struct dp_chunk *chunk, int32_t layer, dp_move move,
                               struct dp_slot *ret_rows, struct dp_slot *ret_weight,
                               struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    struct dp_layer_state *state = &chunk->layers[layer];
    const struct dp_exchanger *exchanger = stage->config.exchanger;
    if (exchanger == &stage->local) {
        dp_slot_move(&state->sent_rows, ret_rows);
        if (ret_weight != NULL) {
            dp_slot_move(&state->sent_weight, ret_weight);
        }
        return DP_OK;
    }
    const struct dp_model_spec *model = &stage->config.model;
    const struct dp_take takes[] = {
        {ret_rows, (int64_t)dp_chunk_hidden_bytes(chunk)},
        {ret_weight, dp_chunk_real_bytes(chunk, chunk->tokens * model->top_k)},
    };
    dp_status status = dp_chunk_take(chunk, takes, ret_weight != NULL ? 2 : 1, err);
    if (status == DP_OK) {
        status = exchanger->collect(state->routing, move, ret_rows->memory,
                                    ret_weight != NULL ? ret_weight->memory : NULL, err);
    }
    if (status == DP_OK) {
        dp_chunk_drop(chunk, &state->sent_rows);
        dp_chunk_drop(chunk, &state->sent_weight);
    }
    return status;
}

dp_status dp_exchange_gradient_begin(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    const struct dp_layer_state *state = &chunk->layers[layer];
    const struct dp_load load = {.format = format_of(chunk->stage), .rows = state->ffn_dy.memory};
    return chunk->stage->config.exchanger->begin(state->routing, DP_MOVE_COMBINE_INPUT, &load, err);
}

// Rows that followed a known routing arrive in the empty slot, one for each expert.
static dp_status follow_end(struct dp_chunk *chunk, int32_t layer, struct dp_slot *rows,
                            struct dp_error *err)
{
    const struct dp_exchanger *exchanger = chunk->stage->config.exchanger;
    struct dp_routing *routing = chunk->layers[layer].routing;
    const int64_t elements = chunk->routed[layer].rows * chunk->stage->config.model.hidden;
    const struct dp_take take = {rows, dp_chunk_element_bytes(chunk, elements)};
    struct dp_arrivals arrivals;
    dp_status status = exchanger->arrive(routing, DP_MOVE_COMBINE_INPUT, &arrivals, err);
    if (status == DP_OK) {
        status = dp_chunk_take(chunk, &take, 1, err);
    }
    if (status != DP_OK) {
        return status;
    }
    DP_CHECK(arrivals.tokens == chunk->routed[layer].tokens);
    status = unfold(chunk, layer, &arrivals, rows->memory, err);
    exchanger->finish(routing, DP_MOVE_COMBINE_INPUT);
    return status;
}

dp_status dp_exchange_gradient_end(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    return follow_end(chunk, layer, &chunk->layers[layer].rows_dy, err);
}

dp_status dp_exchange_restore_begin(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    const struct dp_layer_state *state = &chunk->layers[layer];
    // To an exchanger, rows that follow a routing that is known are those of this move.
    const struct dp_load load = {.format = format_of(chunk->stage),
                                 .rows = state->sent_rows.memory};
    return chunk->stage->config.exchanger->begin(state->routing, DP_MOVE_COMBINE_INPUT, &load, err);
}

dp_status dp_exchange_restore_end(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    struct dp_layer_state *state = &chunk->layers[layer];
    dp_status status = follow_end(chunk, layer, &state->rows_x, err);
    dp_chunk_drop(chunk, &state->sent_rows);
    return status == DP_OK ? pack_rows(chunk, layer, err) : status;
}

void dp_exchange_release(struct dp_chunk *chunk, int32_t layer)
{
    struct dp_layer_state *state = &chunk->layers[layer];
    if (state->routing != NULL) {
        chunk->stage->config.exchanger->release(state->routing);
        state->routing = NULL;
    }
}
