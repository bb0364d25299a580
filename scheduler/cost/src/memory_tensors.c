// The tensors that a unit keeps for one micro-batch, one by one.
//
// Widths follow arXiv 2205.05198 (section 4) for attention and dense FFNs, and the public list of
// DeepSeek-V3's tensors (NVIDIA's Megatron MoE model zoo) for latent attention and experts. What W
// needs of a product y = x w is x and the gradient of y.

#include "memory_parts.h"

static bool recomputes(const struct dp_memory_shape *s, uint32_t choice)
{
    return (s->recompute & (choice | DP_RECOMPUTE_FULL)) != 0;
}

static void keep(struct dp_memory_list *list, const char *name, double elements, double bytes,
                 double deferred, bool recomputed)
{
    if (elements > 0 && (bytes > 0 || deferred > 0)) {
        list->tensors[list->count++] =
            (struct dp_memory_tensor){name, elements, bytes, deferred, recomputed};
    }
}

static void norm(const struct dp_memory_shape *s, const char *input, const char *output,
                 double output_bytes, struct dp_memory_list *list)
{
    double elements = s->split * s->model->hidden;
    // The first input is what a layer that recomputes everything keeps.
    keep(list, input, elements, s->element, 0, list->count > 0 && recomputes(s, 0));
    keep(list, output, elements, output_bytes, output_bytes, recomputes(s, DP_RECOMPUTE_NORM));
}

static void queries_of_gqa(const struct dp_memory_shape *s, struct dp_memory_list *list)
{
    const struct dp_model_spec *m = s->model;
    double width = ((double)m->heads + 2.0 * m->kv_heads) * m->head_dim / s->tensor;
    keep(list, "queries, keys, values", s->tokens * width, s->element, s->operand,
         recomputes(s, 0));
    if (m->qk_norm > 0) {
        double normed = ((double)m->heads + m->kv_heads) * m->head_dim / s->tensor;
        keep(list, "queries, keys before their norm", s->tokens * normed, s->element, 0,
             recomputes(s, DP_RECOMPUTE_NORM));
    }
}

static void queries_of_mla(const struct dp_memory_shape *s, struct dp_memory_list *list)
{
    const struct dp_model_spec *m = s->model;
    double heads = m->heads / s->tensor;
    double key = (double)m->mla_nope_dim + m->mla_rope_dim;
    double latent = (double)m->mla_kv_rank + m->mla_rope_dim;
    uint32_t both = DP_RECOMPUTE_NORM | DP_RECOMPUTE_UP;
    bool norms = recomputes(s, 0) || (s->recompute & both) == both;
    keep(list, "query latent", s->split * m->mla_q_rank, s->element, s->operand, recomputes(s, 0));
    keep(list, "normed query latent", s->split * m->mla_q_rank, s->operand, s->operand, norms);
    keep(list, "key-value latent", s->split * latent, s->element, s->operand, recomputes(s, 0));
    keep(list, "normed key-value latent", s->split * m->mla_kv_rank, s->operand, s->operand, norms);
    bool up = recomputes(s, DP_RECOMPUTE_UP);
    // Their gradients come in the shape of the products: one rotary key for all heads is gone.
    keep(list, "queries", s->tokens * heads * key, s->element, s->operand, up);
    keep(list, "keys", s->tokens * heads * key, s->element, 0, up);
    keep(list, "values", s->tokens * heads * m->mla_v_dim, s->element, 0, up);
    keep(list, "key and value gradients",
         s->tokens * heads * ((double)m->mla_nope_dim + m->mla_v_dim), 0, s->operand, false);
}

// softmax(QK'), its mask and what dropout leaves of it: 5 a s^2 b of arXiv 2205.05198.
static void scores(const struct dp_memory_shape *s, struct dp_memory_list *list)
{
    double heads = s->model->heads / s->tensor;
    bool again = recomputes(s, DP_RECOMPUTE_ATTENTION);
    if (!s->traits->scores_kept) {
        keep(list, "log-sum-exp of scores", s->tokens * heads, 4, 0, again);
        return;
    }
    double elements = s->tokens * s->sequence * heads;
    keep(list, "scores", elements, s->element, 0, again);
    if (s->traits->dropout) {
        keep(list, "scores after dropout", elements, s->element, 0, again);
        keep(list, "mask of scores", elements, 1, 0, again);
    }
}

static void attention(const struct dp_memory_shape *s, struct dp_memory_list *list)
{
    const struct dp_model_spec *m = s->model;
    norm(s, "input", "normed input", s->operand, list);
    double value = m->head_dim;
    if (m->mla_kv_rank > 0) {
        value = m->mla_v_dim;
        queries_of_mla(s, list);
    } else {
        queries_of_gqa(s, list);
    }
    scores(s, list);
    double width = m->heads / s->tensor * value;
    bool again = recomputes(s, 0);
    if (s->eight_bit) {
        // The core's gradient takes it as it is, the projection's weight gradient as an operand.
        bool once = s->traits->operands_stored;
        keep(list, "attention output", s->tokens * width, once ? 1.5 : s->element, 0, again);
        keep(list, "attention output as operand", s->tokens * width, once ? 0 : s->operand,
             s->operand, again);
    } else {
        keep(list, "attention output", s->tokens * width, s->element, s->element, again);
    }
    keep(list, "attention output before its exchange", s->context > 1 ? s->tokens * width : 0,
         s->element, 0, recomputes(s, DP_RECOMPUTE_ATTENTION));
    double hidden = s->split * m->hidden;
    keep(list, "output projection gradient", hidden, 0, s->operand, false);
    if (s->traits->dropout) {
        keep(list, "mask of attention", hidden, 1, 0, recomputes(s, 0));
    }
}

// fc1 and what the activation function makes of it.
static void products(const struct dp_memory_shape *s, double rows, double width, const char *first,
                     const char *second, uint32_t choice, struct dp_memory_list *list)
{
    double gates = s->model->ffn_matrices == 2 ? 1 : 2;
    double kept = s->traits->operands_stored ? s->operand : s->element;
    keep(list, first, rows * gates * width, kept, s->operand, recomputes(s, choice));
    keep(list, second, rows * width, s->operand, s->operand,
         recomputes(s, choice | DP_RECOMPUTE_ACTIVATION));
}

static void dense_ffn(const struct dp_memory_shape *s, struct dp_memory_list *list)
{
    norm(s, "residual", "normed residual", s->operand, list);
    products(s, s->tokens, s->model->ffn / s->tensor, "fc1", "activation", 0, list);
    double hidden = s->split * s->model->hidden;
    keep(list, "fc2 gradient", hidden, 0, s->operand, false);
    if (s->traits->dropout) {
        keep(list, "mask of the FFN", hidden, 1, 0, recomputes(s, 0));
    }
}

static void experts(const struct dp_memory_shape *s, struct dp_memory_list *list)
{
    const struct dp_model_spec *m = s->model;
    // The router multiplies in full precision.
    norm(s, "residual", "normed residual", s->element, list);
    keep(list, "router logits", s->split * m->experts, 2, 2, recomputes(s, 0));
    keep(list, "routing weights", s->split * m->experts, 8, 0, recomputes(s, 0));
    double shared = (double)m->shared_experts * m->expert_ffn / s->tensor;
    products(s, s->tokens, shared, "shared fc1", "shared activation", 0, list);
    if (m->shared_experts > 0) {
        keep(list, "normed residual as operand", s->eight_bit ? s->split * m->hidden : 0,
             s->operand, s->operand, recomputes(s, DP_RECOMPUTE_NORM));
        keep(list, "shared fc2 gradient", s->split * m->hidden, 0, s->operand, false);
    }
    double width = s->rows * m->hidden;
    keep(list, "dispatched rows", width, s->operand, s->operand, recomputes(s, 0));
    products(s, s->rows, m->expert_ffn / s->expert_tensor, "expert fc1", "expert activation",
             DP_RECOMPUTE_EXPERTS, list);
    keep(list, "expert output", width, s->traits->weights_after_fc2 ? s->element : 0, s->operand,
         recomputes(s, DP_RECOMPUTE_EXPERTS));
}

static void head(const struct dp_memory_shape *s, struct dp_memory_list *list)
{
    const struct dp_model_spec *m = s->model;
    double hidden = s->split * m->hidden;
    keep(list, "last output", hidden, s->element, 0, false);
    keep(list, "normed last output", hidden, s->element, s->element, false);
    keep(list, "logits", s->tokens * m->vocabulary / s->tensor, s->traits->loss_fused ? 2 : 4, 2,
         false);
}

static void embedding(const struct dp_memory_shape *s, struct dp_memory_list *list)
{
    keep(list, "tokens", s->tokens, 8, 8, false);
    double hidden = s->split * s->model->hidden;
    keep(list, "embedding gradient", hidden, 0, s->operand, false);
    if (s->traits->dropout) {
        keep(list, "mask of the embedding", hidden, 1, 0, false);
    }
}

static void layer(const struct dp_memory_shape *s, bool is_moe, struct dp_memory_list *list)
{
    attention(s, list);
    list->ffn_begin = list->count;
    if (is_moe) {
        experts(s, list);
    } else {
        dense_ffn(s, list);
    }
}

// Two normed states side by side are projected to one (arXiv 2412.19437, 2.2).
static void prediction(const struct dp_memory_shape *s, struct dp_memory_list *list)
{
    double hidden = s->split * s->model->hidden;
    layer(s, dp_model_layer_is_moe(s->model, s->model->layers - 1), list);
    keep(list, "states to join", 2 * hidden, s->element, 0, false);
    keep(list, "joined states", 2 * hidden, s->operand, s->operand,
         recomputes(s, DP_RECOMPUTE_NORM));
    keep(list, "projection gradient", hidden, 0, s->operand, false);
    head(s, list);
}

void dp_memory_list_unit(const struct dp_memory_shape *shape, int unit,
                         struct dp_memory_list *ret_list)
{
    struct dp_memory_list list = {.count = 0};
    switch (unit) {
    case DP_UNIT_DENSE:
    case DP_UNIT_MOE:
        layer(shape, unit == DP_UNIT_MOE, &list);
        break;
    case DP_UNIT_EMBEDDING:
        embedding(shape, &list);
        break;
    case DP_UNIT_HEAD:
        head(shape, &list);
        break;
    default:
        prediction(shape, &list);
        break;
    }
    *ret_list = list;
}
