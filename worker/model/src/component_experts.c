// EXPERTS: the SwiGLU of every routed row at its expert, and the shared expert of every token.
// Rows lie sorted by expert, so each expert is one run of rows and a few gemms.
#include "dp/check.h"
#include "stage.h"

// The rows and weights of one local expert.
struct expert {
    int64_t first_row;
    struct dp_gated gated;
};

static struct expert first_expert(const struct dp_chunk *chunk, int32_t layer)
{
    const struct dp_stage *stage = chunk->stage;
    struct expert expert = {.gated = {.width = stage->config.model.expert_ffn}};
    expert.gated.gate_up = stage->layers[layer].experts;
    return expert;
}

// Moves `expert` on to local expert e: its rows from all sources, its weights behind the last
// one's.
static void go_to_expert(const struct dp_chunk *chunk, int32_t layer, int32_t e,
                         struct expert *expert)
{
    const struct dp_stage *stage = chunk->stage;
    const int64_t matrix = expert->gated.width * stage->config.model.hidden;
    expert->first_row += expert->gated.rows;
    expert->gated.rows = chunk->layers[layer].counts[e];
    expert->gated.gate_up = stage->layers[layer].experts + 3 * matrix * e;
    expert->gated.down = expert->gated.gate_up + 2 * matrix;
}

// Where the expert's rows of `cols` elements start; NULL in an empty slot.
static void *rows_at(const struct dp_chunk *chunk, const struct expert *expert,
                     const struct dp_slot *slot, int64_t cols)
{
    return slot->memory == NULL
               ? NULL
               : dp_element_at(chunk->stage, slot->memory, expert->first_row * cols);
}

static void *weights_at(const struct dp_chunk *chunk, const struct expert *expert,
                        const struct dp_slot *slot)
{
    return dp_real_at(chunk->stage, slot->memory, expert->first_row);
}

static struct dp_gated shared_of(const struct dp_chunk *chunk, int32_t layer)
{
    const struct dp_layer_tensors *at = &chunk->stage->layers[layer];
    return (struct dp_gated){at->gate_up, at->down, chunk->tokens, chunk->stage->shared_width};
}

static dp_status normed_again(struct dp_chunk *chunk, int32_t layer, void **ret_normed,
                              struct dp_error *err)
{
    const struct dp_layer_state *state = &chunk->layers[layer];
    const struct dp_rmsnorm norm =
        dp_chunk_norm(chunk, chunk->stage->layers[layer].ffn_norm, &state->ffn_x, &state->ffn_rstd);
    return dp_chunk_norm_again(chunk, &norm, &state->ffn_normed, ret_normed, err);
}

// Without the products themselves, keeping what comes out of them serves nobody.
static bool keeps_active(const struct dp_stage *stage)
{
    return dp_stage_keeps(stage, DP_RECOMPUTE_ACTIVATION | DP_RECOMPUTE_EXPERTS);
}

// A gate on the shared expert: a sigmoid of one logit a token, its output's weight. As a router of
// one expert.
static bool has_gate(const struct dp_chunk *chunk)
{
    return chunk->stage->config.model.shared_gate > 0;
}

static struct dp_linear gate_linear(const struct dp_chunk *chunk, int32_t layer)
{
    return (struct dp_linear){.offset = chunk->stage->layers[layer].shared_gate,
                              .rows = chunk->tokens,
                              .in = chunk->stage->config.model.hidden,
                              .out = 1,
                              .weight_kind = DP_OPERAND_REAL,
                              .y_kind = DP_OPERAND_REAL};
}

static struct dp_router gate_router(const struct dp_chunk *chunk)
{
    return (struct dp_router){.tokens = chunk->tokens,
                              .sequence = chunk->stage->config.sequence,
                              .experts = 1,
                              .top_k = 1,
                              .score = DP_ROUTER_SIGMOID,
                              .raw_weights = true};
}

static dp_status gate_forward(struct dp_chunk *chunk, int32_t layer, const void *normed,
                              struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    struct dp_layer_state *state = &chunk->layers[layer];
    const struct dp_linear linear = gate_linear(chunk, layer);
    const struct dp_router router = gate_router(chunk);
    const struct dp_take takes[] = {
        {&state->gate_logit, dp_chunk_real_bytes(chunk, chunk->tokens)},
        {&state->gate_weight, dp_chunk_real_bytes(chunk, chunk->tokens)},
    };
    void *index;
    dp_status status = dp_chunk_take(chunk, takes, DP_ARRAY_LENGTH(takes), err);
    if (status == DP_OK) {
        status = dp_stage_scratch(stage, DP_SCRATCH_ZEROS, (size_t)chunk->tokens * sizeof(int32_t),
                                  &index, err);
    }
    if (status == DP_OK) {
        dp_linear_forward(stage, &linear, normed, state->gate_logit.memory, false);
        stage->device->ops->router_forward(stage->device->stream, &router, state->gate_logit.memory,
                                           index, state->gate_weight.memory);
    }
    return status;
}

// The logits' gradient takes their place and adds to dnormed.
static dp_status gate_input(struct dp_chunk *chunk, int32_t layer, const void *dweight,
                            struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    struct dp_layer_state *state = &chunk->layers[layer];
    const struct dp_linear linear = gate_linear(chunk, layer);
    const struct dp_router router = gate_router(chunk);
    const size_t bytes = (size_t)chunk->tokens * sizeof(int32_t);
    void *index;
    dp_status status = dp_stage_scratch(stage, DP_SCRATCH_ZEROS, bytes, &index, err);
    if (status == DP_OK) {
        stage->device->ops->fill(stage->device->stream, index, 0, bytes);
        stage->device->ops->router_input_grad(stage->device->stream, &router, 0, index, dweight,
                                              state->gate_logit.memory);
        dp_linear_input_grad(stage, &linear, state->gate_logit.memory, state->dnormed.memory, true);
        dp_chunk_drop(chunk, &state->gate_weight);
    }
    return status;
}

// x becomes ffn_x plus the shared expert's output.
static dp_status shared_forward(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    struct dp_layer_state *state = &chunk->layers[layer];
    const struct dp_gated gated = shared_of(chunk, layer);
    stage->device->ops->copy(stage->device->stream, chunk->x.memory, state->ffn_x.memory,
                             (size_t)state->ffn_x.bytes);
    if (gated.width == 0) {
        return DP_OK;
    }
    const struct dp_take takes[] = {
        {&state->gate_up, dp_chunk_element_bytes(chunk, gated.rows * 2 * gated.width)},
        {&state->active, dp_chunk_element_bytes(chunk, gated.rows * gated.width)},
    };
    void *normed;
    dp_status status = dp_chunk_take(chunk, takes, keeps_active(stage) ? 2 : 1, err);
    if (status == DP_OK) {
        status = normed_again(chunk, layer, &normed, err);
    }
    if (status != DP_OK) {
        return status;
    }
    status = has_gate(chunk) ? gate_forward(chunk, layer, normed, err) : DP_OK;
    if (status != DP_OK) {
        return status;
    }
    return dp_gated_forward(stage, &gated, normed, state->gate_weight.memory, state->gate_up.memory,
                            state->active.memory, chunk->x.memory, true, err);
}

// The rows as the experts read them: from their codes, when these are what is kept.
static dp_status open_rows(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    struct dp_layer_state *state = &chunk->layers[layer];
    if (state->rows_codes.memory == NULL) {
        return DP_OK;
    }
    return dp_fp8_unpack(chunk, chunk->routed[layer].rows, chunk->stage->config.model.hidden,
                         &state->rows_codes, &state->rows_x, err);
}

static void close_rows(struct dp_chunk *chunk, struct dp_layer_state *state)
{
    if (state->rows_codes.memory != NULL) {
        dp_chunk_drop(chunk, &state->rows_x);
    }
}

static dp_status experts_forward(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    struct dp_layer_state *state = &chunk->layers[layer];
    const int64_t hidden = stage->config.model.hidden, rows = chunk->routed[layer].rows;
    struct expert expert = first_expert(chunk, layer);
    const int64_t width = expert.gated.width;
    const struct dp_take takes[] = {
        {&chunk->x, (int64_t)dp_chunk_hidden_bytes(chunk)},
        {&state->rows_gate_up, dp_chunk_element_bytes(chunk, rows * 2 * width)},
        {&state->back_rows, dp_chunk_element_bytes(chunk, rows * hidden)},
        {&state->rows_active, dp_chunk_element_bytes(chunk, rows * width)},
    };
    dp_status status = dp_chunk_take(chunk, takes, keeps_active(stage) ? 4 : 3, err);
    if (status == DP_OK) {
        status = open_rows(chunk, layer, err);
    }
    if (status == DP_OK) {
        status = shared_forward(chunk, layer, err);
    }
    for (int32_t e = 0; e < stage->local_experts && status == DP_OK; e++) {
        go_to_expert(chunk, layer, e, &expert);
        status =
            dp_gated_forward(stage, &expert.gated, rows_at(chunk, &expert, &state->rows_x, hidden),
                             weights_at(chunk, &expert, &state->rows_weight),
                             rows_at(chunk, &expert, &state->rows_gate_up, 2 * width),
                             rows_at(chunk, &expert, &state->rows_active, width),
                             rows_at(chunk, &expert, &state->back_rows, hidden), false, err);
    }
    if (status == DP_OK) {
        status = dp_exchange_fold(chunk, layer, state->back_rows.memory, NULL, err);
    }
    dp_chunk_drop(chunk, &state->back_rows);
    close_rows(chunk, state);
    if (!dp_stage_keeps(stage, DP_RECOMPUTE_EXPERTS)) {
        dp_chunk_drop(chunk, &state->rows_gate_up);
        dp_chunk_drop(chunk, &state->gate_up);
    }
    return status;
}

// dnormed becomes the shared expert's part of the gradient of the norm's output; it stays empty
// without one.
static dp_status shared_input(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    struct dp_layer_state *state = &chunk->layers[layer];
    const struct dp_gated gated = shared_of(chunk, layer);
    if (gated.width == 0) {
        return DP_OK;
    }
    const struct dp_take takes[] = {
        {&state->dnormed, (int64_t)dp_chunk_hidden_bytes(chunk)},
        {&state->active, dp_chunk_element_bytes(chunk, gated.rows * gated.width)},
    };
    dp_status status = dp_chunk_take(chunk, takes, state->active.memory == NULL ? 2 : 1, err);
    if (status != DP_OK) {
        return status;
    }
    void *dweight = NULL;
    if (has_gate(chunk)) {
        const size_t bytes = (size_t)dp_chunk_real_bytes(chunk, chunk->tokens);
        status = dp_stage_scratch(stage, DP_SCRATCH_SMALL, bytes, &dweight, err);
    }
    if (status == DP_OK) {
        status = dp_gated_input_grad(stage, &gated, state->ffn_dy.memory, state->gate_weight.memory,
                                     state->gate_up.memory, dweight, state->active.memory,
                                     state->dnormed.memory, err);
    }
    return status == DP_OK && dweight != NULL ? gate_input(chunk, layer, dweight, err) : status;
}

// With DP_RECOMPUTE_EXPERTS: the products before the activations, as FORWARD had them.
static dp_status restore(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    struct dp_layer_state *state = &chunk->layers[layer];
    const struct dp_gated shared = shared_of(chunk, layer);
    struct expert expert = first_expert(chunk, layer);
    const int64_t wide = 2 * expert.gated.width, hidden = stage->config.model.hidden;
    const struct dp_take takes[] = {
        {&state->rows_gate_up, dp_chunk_element_bytes(chunk, chunk->routed[layer].rows * wide)},
        {&state->gate_up, dp_chunk_element_bytes(chunk, shared.rows * 2 * shared.width)},
    };
    dp_status status =
        dp_exchange_has_rows(chunk, layer) ? DP_OK : dp_exchange_restore_end(chunk, layer, err);
    if (status == DP_OK) {
        status = open_rows(chunk, layer, err);
    }
    if (status == DP_OK) {
        status = dp_chunk_take(chunk, takes, shared.width > 0 ? 2 : 1, err);
    }
    void *normed = NULL;
    if (status == DP_OK && shared.width > 0) {
        status = normed_again(chunk, layer, &normed, err);
    }
    if (status != DP_OK) {
        return status;
    }
    for (int32_t e = 0; e < stage->local_experts; e++) {
        go_to_expert(chunk, layer, e, &expert);
        dp_gated_again(stage, &expert.gated, rows_at(chunk, &expert, &state->rows_x, hidden),
                       rows_at(chunk, &expert, &state->rows_gate_up, wide));
    }
    close_rows(chunk, state);
    if (shared.width > 0) {
        dp_gated_again(stage, &shared, normed, state->gate_up.memory);
    }
    return DP_OK;
}

static dp_status take_gradients(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    struct dp_layer_state *state = &chunk->layers[layer];
    const struct dp_model_spec *model = &chunk->stage->config.model;
    const int64_t rows = chunk->routed[layer].rows;
    const struct dp_take takes[] = {
        {&state->back_rows, dp_chunk_element_bytes(chunk, rows * model->hidden)},
        {&state->back_weight, dp_chunk_real_bytes(chunk, rows)},
        {&state->rows_active, dp_chunk_element_bytes(chunk, rows * model->expert_ffn)},
    };
    return dp_chunk_take(chunk, takes, state->rows_active.memory == NULL ? 3 : 2, err);
}

static dp_status experts_input(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    struct dp_layer_state *state = &chunk->layers[layer];
    const int64_t hidden = stage->config.model.hidden;
    struct expert expert = first_expert(chunk, layer);
    const int64_t width = expert.gated.width;
    dp_status status = state->rows_gate_up.memory == NULL ? restore(chunk, layer, err) : DP_OK;
    if (status == DP_OK) {
        status = take_gradients(chunk, layer, err);
    }
    if (status == DP_OK) {
        status = shared_input(chunk, layer, err);
    }
    for (int32_t e = 0; e < stage->local_experts && status == DP_OK; e++) {
        go_to_expert(chunk, layer, e, &expert);
        status = dp_gated_input_grad(stage, &expert.gated,
                                     rows_at(chunk, &expert, &state->rows_dy, hidden),
                                     weights_at(chunk, &expert, &state->rows_weight),
                                     rows_at(chunk, &expert, &state->rows_gate_up, 2 * width),
                                     weights_at(chunk, &expert, &state->back_weight),
                                     rows_at(chunk, &expert, &state->rows_active, width),
                                     rows_at(chunk, &expert, &state->back_rows, hidden), err);
    }
    if (status == DP_OK) {
        status =
            dp_exchange_fold(chunk, layer, state->back_rows.memory, state->back_weight.memory, err);
    }
    dp_chunk_drop(chunk, &state->back_rows);
    dp_chunk_drop(chunk, &state->back_weight);
    dp_chunk_drop(chunk, &state->rows_weight);
    dp_chunk_drop(chunk, &state->row_of);
    return status;
}

static dp_status shared_weight(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    struct dp_layer_state *state = &chunk->layers[layer];
    const struct dp_gated gated = shared_of(chunk, layer);
    if (gated.width == 0) {
        return DP_OK;
    }
    void *normed;
    dp_status status = normed_again(chunk, layer, &normed, err);
    if (status == DP_OK) {
        dp_gated_weight_grad(chunk->stage, &gated, state->ffn_dy.memory, normed,
                             state->gate_up.memory, state->active.memory);
    }
    if (status == DP_OK && has_gate(chunk)) {
        const struct dp_linear linear = gate_linear(chunk, layer);
        dp_linear_weight_grad(chunk->stage, &linear, state->gate_logit.memory, normed);
    }
    dp_chunk_drop(chunk, &state->gate_logit);
    dp_chunk_drop(chunk, &state->gate_up);
    dp_chunk_drop(chunk, &state->active);
    return status;
}

static dp_status experts_weight(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    struct dp_layer_state *state = &chunk->layers[layer];
    const int64_t hidden = stage->config.model.hidden;
    struct expert expert = first_expert(chunk, layer);
    const int64_t width = expert.gated.width;
    dp_status status = open_rows(chunk, layer, err);
    for (int32_t e = 0; e < stage->local_experts && status == DP_OK; e++) {
        go_to_expert(chunk, layer, e, &expert);
        dp_gated_weight_grad(stage, &expert.gated, rows_at(chunk, &expert, &state->rows_dy, hidden),
                             rows_at(chunk, &expert, &state->rows_x, hidden),
                             rows_at(chunk, &expert, &state->rows_gate_up, 2 * width),
                             rows_at(chunk, &expert, &state->rows_active, width));
    }
    dp_chunk_drop(chunk, &state->rows_x);
    dp_chunk_drop(chunk, &state->rows_codes);
    dp_chunk_drop(chunk, &state->rows_dy);
    dp_chunk_drop(chunk, &state->rows_gate_up);
    dp_chunk_drop(chunk, &state->rows_active);
    return status == DP_OK ? shared_weight(chunk, layer, err) : status;
}

const struct dp_component_ops dp_component_experts = {
    .name = "experts",
    .begin = {experts_forward, experts_input, experts_weight},
};
