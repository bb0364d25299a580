// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): keys and values come
// from a normed latent and one turned key for all heads, queries from a latent of their own or from
// the input. Assembled keys live in scratch, inside passes alone.
#include "attention.h"
#include "dp/check.h"

// Of a head and of rows, in elements.
struct widths {
    int64_t nope, rope, key, value, heads;
    int64_t q_latent, kv_latent; // 0 = queries come from the input; with the turned key
    int64_t q, kv;
};

static struct widths widths_of(const struct dp_chunk *chunk)
{
    const struct dp_model_spec *m = &chunk->stage->config.model;
    const int64_t key = (int64_t)m->mla_nope_dim + m->mla_rope_dim;
    return (struct widths){.nope = m->mla_nope_dim,
                           .rope = m->mla_rope_dim,
                           .key = key,
                           .value = m->mla_v_dim,
                           .heads = m->heads,
                           .q_latent = m->mla_q_rank,
                           .kv_latent = (int64_t)m->mla_kv_rank + m->mla_rope_dim,
                           .q = m->heads * key,
                           .kv = m->heads * ((int64_t)m->mla_nope_dim + m->mla_v_dim)};
}

static struct dp_linear linear_of(const struct dp_chunk *chunk, int64_t offset, int64_t in,
                                  int64_t out)
{
    return (struct dp_linear){.offset = offset, .rows = chunk->tokens, .in = in, .out = out};
}

// A latent: what goes down into it, its norm, and what comes up from that.
struct latent {
    struct dp_linear down, up;
    struct dp_rmsnorm norm;
    struct dp_slot *raw, *normed, *raised;
    int64_t norm_at, bias_at, gain_at; // gain_at: in dlatent
};

static struct latent query_latent(struct dp_chunk *chunk, int32_t layer)
{
    struct dp_stage *stage = chunk->stage;
    const struct dp_model_spec *m = &stage->config.model;
    const struct dp_layer_tensors *at = &stage->layers[layer];
    struct dp_layer_state *state = &chunk->layers[layer];
    const struct widths w = widths_of(chunk);
    return (struct latent){
        .down = linear_of(chunk, at->q_down, m->hidden, w.q_latent),
        .up = linear_of(chunk, at->qkv, w.q_latent, w.q),
        .norm = {.rows = chunk->tokens,
                 .cols = w.q_latent,
                 .eps = m->norm_eps,
                 .x = state->q_latent.memory,
                 .gain = dp_stage_master_at(stage, at->q_norm),
                 .rstd = dp_real_at(stage, state->latent_rstd.memory, chunk->tokens)},
        .raw = &state->q_latent,
        .normed = &state->q_normed,
        .raised = &state->qkv,
        .norm_at = at->q_norm,
        .bias_at = at->qkv_bias,
        .gain_at = m->mla_kv_rank};
}

static struct latent key_latent(struct dp_chunk *chunk, int32_t layer)
{
    struct dp_stage *stage = chunk->stage;
    const struct dp_model_spec *m = &stage->config.model;
    const struct dp_layer_tensors *at = &stage->layers[layer];
    struct dp_layer_state *state = &chunk->layers[layer];
    const struct widths w = widths_of(chunk);
    return (struct latent){.down = linear_of(chunk, at->kv_down, m->hidden, w.kv_latent),
                           .up = linear_of(chunk, at->kv_up, m->mla_kv_rank, w.kv),
                           .norm = {.rows = chunk->tokens,
                                    .cols = m->mla_kv_rank,
                                    .eps = m->norm_eps,
                                    .x = state->kv_latent.memory,
                                    .gain = dp_stage_master_at(stage, at->kv_norm),
                                    .rstd = state->latent_rstd.memory,
                                    .x_stride = w.kv_latent},
                           .raw = &state->kv_latent,
                           .normed = &state->kv_normed,
                           .raised = &state->kv,
                           .norm_at = at->kv_norm,
                           .bias_at = at->kv_bias};
}

static bool has_bias(const struct dp_chunk *chunk)
{
    return (chunk->stage->config.model.biases & DP_BIAS_QKV) != 0;
}

static int64_t latent_bytes(const struct dp_chunk *chunk, const struct latent *latent)
{
    return dp_chunk_element_bytes(chunk, chunk->tokens * latent->norm.cols);
}

static dp_status go_down(struct dp_chunk *chunk, const struct latent *latent, const void *normed,
                         struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    dp_linear_forward(stage, &latent->down, normed, latent->raw->memory, false);
    dp_status status = has_bias(chunk) ? dp_chunk_add_bias(chunk, latent->bias_at, latent->down.out,
                                                           latent->raw->memory, err)
                                       : DP_OK;
    const struct dp_take take = {latent->normed, latent_bytes(chunk, latent)};
    if (status == DP_OK && dp_stage_keeps(stage, DP_RECOMPUTE_NORM)) {
        status = dp_chunk_take(chunk, &take, 1, err);
    }
    return status;
}

// The normed latent, from its slot or computed into scratch, and what comes up from it into an
// empty slot.
static dp_status raise(struct dp_chunk *chunk, const struct latent *latent, bool is_first,
                       struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    const struct dp_device_ops *ops = stage->device->ops;
    const struct dp_take take = {latent->raised,
                                 dp_chunk_element_bytes(chunk, chunk->tokens * latent->up.out)};
    dp_status status = dp_chunk_take(chunk, &take, 1, err);
    void *normed = latent->normed->memory;
    const bool is_kept = normed != NULL;
    if (status == DP_OK && !is_kept) {
        status = dp_stage_elements(stage, DP_SCRATCH_LATENT, chunk->tokens * latent->norm.cols,
                                   &normed, err);
    }
    if (status != DP_OK) {
        return status;
    }
    if (is_first) {
        ops->rmsnorm_forward(stage->device->stream, &latent->norm, normed);
    } else if (!is_kept) {
        ops->rmsnorm_again(stage->device->stream, &latent->norm, normed);
    }
    dp_linear_forward(stage, &latent->up, normed, latent->raised->memory, false);
    return DP_OK;
}

static void turn_queries(const struct dp_chunk *chunk, int32_t layer, bool inverse)
{
    const struct widths w = widths_of(chunk);
    void *first = dp_element_at(chunk->stage, chunk->layers[layer].qkv.memory, w.nope);
    dp_chunk_turn(chunk, first, (int32_t)w.heads, w.q, w.key, inverse);
}

static void *shared_key(const struct dp_chunk *chunk, int32_t layer)
{
    const struct widths w = widths_of(chunk);
    return dp_element_at(chunk->stage, chunk->layers[layer].kv_latent.memory, w.kv_latent - w.rope);
}

static void turn_shared_key(const struct dp_chunk *chunk, int32_t layer, bool inverse)
{
    const struct widths w = widths_of(chunk);
    dp_chunk_turn(chunk, shared_key(chunk, layer), 1, w.kv_latent, w.rope, inverse);
}

static dp_status latent_forward(struct dp_chunk *chunk, int32_t layer, const void *normed,
                                struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    struct dp_layer_state *state = &chunk->layers[layer];
    const struct widths w = widths_of(chunk);
    const bool is_low = w.q_latent > 0;
    const struct dp_take takes[] = {
        {&state->kv_latent, dp_chunk_element_bytes(chunk, chunk->tokens * w.kv_latent)},
        {&state->latent_rstd, dp_chunk_real_bytes(chunk, chunk->tokens * (is_low ? 2 : 1))},
        {is_low ? &state->q_latent : &state->qkv,
         dp_chunk_element_bytes(chunk, chunk->tokens * (is_low ? w.q_latent : w.q))},
    };
    dp_status status = dp_chunk_take(chunk, takes, DP_ARRAY_LENGTH(takes), err);
    if (status != DP_OK) {
        return status;
    }
    const struct latent keys = key_latent(chunk, layer), queries = query_latent(chunk, layer);
    status = go_down(chunk, &keys, normed, err);
    if (status == DP_OK && is_low) {
        status = go_down(chunk, &queries, normed, err);
    } else if (status == DP_OK) {
        const struct dp_linear direct =
            linear_of(chunk, stage->layers[layer].qkv, stage->config.model.hidden, w.q);
        dp_linear_forward(stage, &direct, normed, state->qkv.memory, false);
    }
    if (status == DP_OK) {
        status = raise(chunk, &keys, true, err);
    }
    if (status == DP_OK && is_low) {
        status = raise(chunk, &queries, true, err);
    }
    if (status == DP_OK) {
        turn_queries(chunk, layer, false);
        turn_shared_key(chunk, layer, false);
    }
    return status;
}

static dp_status latent_again(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    struct dp_layer_state *state = &chunk->layers[layer];
    const struct latent keys = key_latent(chunk, layer), queries = query_latent(chunk, layer);
    dp_status status = state->kv.memory == NULL ? raise(chunk, &keys, false, err) : DP_OK;
    if (status == DP_OK && state->qkv.memory == NULL) {
        status = raise(chunk, &queries, false, err);
        if (status == DP_OK) {
            turn_queries(chunk, layer, false);
        }
    }
    return status;
}

static dp_status latent_view(struct dp_chunk *chunk, int32_t layer, struct dp_attention *attention,
                             struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    const struct dp_device_ops *ops = stage->device->ops;
    const struct dp_layer_state *state = &chunk->layers[layer];
    const struct widths w = widths_of(chunk);
    void *keys;
    dp_status status = dp_stage_elements(stage, DP_SCRATCH_KEYS, chunk->tokens * w.q, &keys, err);
    if (status != DP_OK) {
        return status;
    }
    const struct dp_heads own = {.rows = chunk->tokens,
                                 .width = w.nope,
                                 .heads = (int32_t)w.heads,
                                 .from_stride = w.kv,
                                 .from_head_stride = w.nope + w.value,
                                 .to_stride = w.q,
                                 .to_head_stride = w.key};
    const struct dp_heads shared = {.rows = chunk->tokens,
                                    .width = w.rope,
                                    .heads = (int32_t)w.heads,
                                    .from_stride = w.kv_latent,
                                    .to_stride = w.q,
                                    .to_head_stride = w.key};
    ops->copy_heads(stage->device->stream, &own, state->kv.memory, keys);
    ops->copy_heads(stage->device->stream, &shared, shared_key(chunk, layer),
                    dp_element_at(stage, keys, w.nope));
    attention->q = state->qkv.memory;
    attention->k = keys;
    attention->v = dp_element_at(stage, state->kv.memory, w.nope);
    attention->q_stride = attention->k_stride = w.q;
    attention->v_stride = w.kv;
    attention->v_head_stride = w.nope + w.value;
    return DP_OK;
}

// The keys' gradient goes to where they came from: each head's part, and the shared part's sum.
static void take_keys_apart(struct dp_chunk *chunk, int32_t layer, void *dkeys)
{
    struct dp_stage *stage = chunk->stage;
    const struct dp_device_ops *ops = stage->device->ops;
    const struct widths w = widths_of(chunk);
    const struct dp_heads own = {.rows = chunk->tokens,
                                 .width = w.nope,
                                 .heads = (int32_t)w.heads,
                                 .from_stride = w.q,
                                 .from_head_stride = w.key,
                                 .to_stride = w.kv,
                                 .to_head_stride = w.nope + w.value};
    const struct dp_heads shared = {.rows = chunk->tokens,
                                    .width = w.rope,
                                    .heads = (int32_t)w.heads,
                                    .from_stride = w.q,
                                    .from_head_stride = w.key,
                                    .to_stride = w.kv_latent};
    ops->copy_heads(stage->device->stream, &own, dkeys, chunk->layers[layer].kv.memory);
    ops->sum_heads(stage->device->stream, &shared, dp_element_at(stage, dkeys, w.nope),
                   shared_key(chunk, layer));
}

// From what came up to the latent: its gradient takes its place, its norm's output stays for
// WEIGHT, and the gain's gradient goes into dlatent.
static dp_status latent_grad(struct dp_chunk *chunk, int32_t layer, const struct latent *latent,
                             struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    const struct dp_device_ops *ops = stage->device->ops;
    struct dp_stream *stream = stage->device->stream;
    const struct dp_take take = {latent->normed, latent_bytes(chunk, latent)};
    void *dnormed;
    dp_status status = dp_stage_elements(stage, DP_SCRATCH_LATENT,
                                         chunk->tokens * latent->norm.cols, &dnormed, err);
    const bool is_kept = latent->normed->memory != NULL;
    if (status == DP_OK && !is_kept) {
        status = dp_chunk_take(chunk, &take, 1, err);
    }
    if (status != DP_OK) {
        return status;
    }
    if (!is_kept) {
        ops->rmsnorm_again(stream, &latent->norm, latent->normed->memory);
    }
    dp_linear_input_grad(stage, &latent->up, latent->raised->memory, dnormed, false);
    ops->rmsnorm_weight_grad(
        stream, &latent->norm, dnormed,
        dp_real_at(stage, chunk->layers[layer].dlatent.memory, latent->gain_at));
    struct dp_rmsnorm norm = latent->norm;
    norm.replace = true;
    ops->rmsnorm_input_grad(stream, &norm, dnormed, latent->raw->memory);
    return DP_OK;
}

static dp_status latent_input(struct dp_chunk *chunk, int32_t layer,
                              const struct dp_attention *attention, void *dnormed,
                              struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    struct dp_layer_state *state = &chunk->layers[layer];
    const struct widths w = widths_of(chunk);
    const bool is_low = w.q_latent > 0;
    const struct latent keys = key_latent(chunk, layer), queries = query_latent(chunk, layer);
    const struct dp_take take = {&state->dlatent,
                                 dp_chunk_real_bytes(chunk, keys.norm.cols + queries.norm.cols)};
    dp_status status = dp_chunk_take(chunk, &take, 1, err);
    if (status != DP_OK) {
        return status;
    }
    stage->device->ops->fill(stage->device->stream, state->dlatent.memory, 0,
                             (size_t)state->dlatent.bytes);
    turn_queries(chunk, layer, true);
    take_keys_apart(chunk, layer, (void *)attention->k);
    turn_shared_key(chunk, layer, true);
    status = latent_grad(chunk, layer, &keys, err);
    if (status == DP_OK && is_low) {
        status = latent_grad(chunk, layer, &queries, err);
    }
    if (status != DP_OK) {
        return status;
    }
    const struct dp_linear direct =
        linear_of(chunk, stage->layers[layer].qkv, stage->config.model.hidden, w.q);
    dp_linear_input_grad(stage, &keys.down, state->kv_latent.memory, dnormed, false);
    dp_linear_input_grad(stage, is_low ? &queries.down : &direct,
                         is_low ? state->q_latent.memory : state->qkv.memory, dnormed, true);
    return DP_OK;
}

static dp_status latent_weight_of(struct dp_chunk *chunk, int32_t layer,
                                  const struct latent *latent, const void *normed,
                                  struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    struct dp_layer_state *state = &chunk->layers[layer];
    dp_linear_weight_grad(stage, &latent->up, latent->raised->memory, latent->normed->memory);
    dp_linear_weight_grad(stage, &latent->down, latent->raw->memory, normed);
    dp_chunk_vector_grad(chunk, &state->dlatent, latent->gain_at, latent->norm.cols,
                         latent->norm_at);
    return has_bias(chunk) ? dp_chunk_bias_grad(chunk, latent->bias_at, latent->down.out,
                                                latent->raw->memory, err)
                           : DP_OK;
}

static dp_status latent_weight(struct dp_chunk *chunk, int32_t layer, const void *normed,
                               struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    const struct latent keys = key_latent(chunk, layer), queries = query_latent(chunk, layer);
    const struct widths w = widths_of(chunk);
    dp_status status = latent_weight_of(chunk, layer, &keys, normed, err);
    if (status == DP_OK && w.q_latent > 0) {
        return latent_weight_of(chunk, layer, &queries, normed, err);
    }
    if (status == DP_OK) {
        const struct dp_linear direct =
            linear_of(chunk, stage->layers[layer].qkv, stage->config.model.hidden, w.q);
        dp_linear_weight_grad(stage, &direct, chunk->layers[layer].qkv.memory, normed);
    }
    return status;
}

const struct dp_projections dp_projections_latent = {
    latent_forward, latent_again, latent_view, latent_input, latent_weight,
};
