#include "dp/hf_names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"

#define OWN_PREFIX "layers."
#define PREFIX "model.layers."
#define OTHER_PREFIX "dp." // before a name that has no counterpart
#define NUMBER '#'         // an expert's number
#define DIGITS_MAX 9

// Names by style; NULL is as in the first.
struct row {
    const char *own;
    const char *names[DP_HF_STYLE_COUNT];
};

static const struct row outside[] = {
    {"embedding", {"model.embed_tokens.weight"}},
    {"head.norm", {"model.norm.weight"}},
    {"head.output", {"lm_head.weight"}},
};

#define GATED(own, plain, mixtral, qwen2)                                                          \
    {own ".gate", {plain ".gate_proj.weight", mixtral ".w1.weight", qwen2 ".gate_proj.weight"}},   \
        {own ".up", {plain ".up_proj.weight", mixtral ".w3.weight", qwen2 ".up_proj.weight"}},     \
    {                                                                                              \
        own ".down",                                                                               \
        {                                                                                          \
            plain ".down_proj.weight", mixtral ".w2.weight", qwen2 ".down_proj.weight"             \
        }                                                                                          \
    }

// Of one layer, behind its prefix.
static const struct row inside[] = {
    {"attention.norm", {"input_layernorm.weight"}},
    {"attention.q", {"self_attn.q_proj.weight"}},
    {"attention.k", {"self_attn.k_proj.weight"}},
    {"attention.v", {"self_attn.v_proj.weight"}},
    {"attention.q.bias", {"self_attn.q_proj.bias"}},
    {"attention.k.bias", {"self_attn.k_proj.bias"}},
    {"attention.v.bias", {"self_attn.v_proj.bias"}},
    {"attention.q_norm",
     {[DP_HF_STYLE_PLAIN] = "self_attn.q_norm.weight",
      [DP_HF_STYLE_LATENT] = "self_attn.q_a_layernorm.weight"}},
    {"attention.k_norm", {"self_attn.k_norm.weight"}},
    {"attention.sinks", {"self_attn.sinks"}},
    {"attention.q_down", {"self_attn.q_a_proj.weight"}},
    {"attention.q_down.bias", {"self_attn.q_a_proj.bias"}},
    {"attention.q_up", {"self_attn.q_b_proj.weight"}},
    {"attention.kv_down", {"self_attn.kv_a_proj_with_mqa.weight"}},
    {"attention.kv_down.bias", {"self_attn.kv_a_proj_with_mqa.bias"}},
    {"attention.kv_norm", {"self_attn.kv_a_layernorm.weight"}},
    {"attention.kv_up", {"self_attn.kv_b_proj.weight"}},
    {"attention.output", {"self_attn.o_proj.weight"}},
    {"attention.output.bias", {"self_attn.o_proj.bias"}},
    {"ffn.norm", {"post_attention_layernorm.weight"}},
    GATED("ffn", "mlp", "mlp", "mlp"),
    {"router", {"mlp.gate.weight", "block_sparse_moe.gate.weight"}},
    {"router.bias", {"mlp.gate.e_score_correction_bias"}},
    GATED("shared", "mlp.shared_experts", "mlp.shared_experts", "mlp.shared_expert"),
    {"shared.gating", {"mlp.shared_expert_gate.weight"}},
    GATED("experts.#", "mlp.experts.#", "block_sparse_moe.experts.#", "mlp.experts.#"),
};

// Multi-token prediction: in the layer behind the last, as DeepSeek-V3 has it, with copies of the
// embedding and the head that nobody asks for.
static const struct row predicting[] = {
    {"mtp.embedding.norm", {"enorm.weight"}},   {"mtp.hidden.norm", {"hnorm.weight"}},
    {"mtp.projection", {"eh_proj.weight"}},     {"mtp.head.norm", {"shared_head.norm.weight"}},
    {"mtp.embedding", {"embed_tokens.weight"}}, {"mtp.head.output", {"shared_head.head.weight"}},
};

// A number without sign or leading zeros, and what follows it; false where there is none.
static bool take_number(const char **text, long *ret_number)
{
    const char *at = *text;
    size_t digits = strspn(at, "0123456789");
    if (digits == 0 || digits > DIGITS_MAX || (at[0] == '0' && digits > 1)) {
        return false;
    }
    *ret_number = strtol(at, NULL, 10);
    *text = at + digits;
    return true;
}

// Whether text is the pattern, with a number where the pattern has one (else *ret_number is left).
static bool matches(const char *text, const char *pattern, long *ret_number)
{
    const char *hole = strchr(pattern, NUMBER);
    if (hole == NULL) {
        return strcmp(text, pattern) == 0;
    }
    size_t before = (size_t)(hole - pattern);
    if (strncmp(text, pattern, before) != 0) {
        return false;
    }
    text += before;
    return take_number(&text, ret_number) && strcmp(text, hole + 1) == 0;
}

static bool fill(const char *prefix, long layer, const char *pattern, long number, char *ret_name,
                 size_t size)
{
    const char *hole = strchr(pattern, NUMBER);
    int length = hole == NULL ? snprintf(ret_name, size, "%s%ld.%s", prefix, layer, pattern)
                              : snprintf(ret_name, size, "%s%ld.%.*s%ld%s", prefix, layer,
                                         (int)(hole - pattern), pattern, number, hole + 1);
    return length > 0 && (size_t)length < size;
}

static const char *name_of(const struct row *row, dp_hf_style style)
{
    return row->names[style] != NULL ? row->names[style] : row->names[DP_HF_STYLE_PLAIN];
}

// Behind the prefix and the layer's number; NULL where text is no such name.
static const char *split(const char *text, const char *prefix, long *ret_layer)
{
    size_t length = strlen(prefix);
    if (strncmp(text, prefix, length) != 0) {
        return NULL;
    }
    text += length;
    return take_number(&text, ret_layer) && text[0] == '.' ? text + 1 : NULL;
}

int32_t dp_hf_layer(const char *own)
{
    long layer;
    return split(own, OWN_PREFIX, &layer) != NULL ? (int32_t)layer : -1;
}

static bool counterpart(const char *own, const struct dp_model_spec *model,
                        char ret_name[DP_TENSOR_NAME_MAX])
{
    dp_hf_style style = dp_hf_style_of(model);
    for (size_t i = 0; i < DP_ARRAY_LENGTH(outside); i++) {
        if (strcmp(outside[i].own, own) == 0) {
            return dp_copy_text(ret_name, DP_TENSOR_NAME_MAX, name_of(&outside[i], style));
        }
    }
    for (size_t i = 0; i < DP_ARRAY_LENGTH(predicting); i++) {
        if (strcmp(predicting[i].own, own) == 0) {
            return fill(PREFIX, model->layers, name_of(&predicting[i], style), 0, ret_name,
                        DP_TENSOR_NAME_MAX);
        }
    }
    long layer, number = 0;
    const char *rest = split(own, OWN_PREFIX, &layer);
    for (size_t i = 0; rest != NULL && i < DP_ARRAY_LENGTH(inside); i++) {
        if (matches(rest, inside[i].own, &number)) {
            return fill(PREFIX, layer, name_of(&inside[i], style), number, ret_name,
                        DP_TENSOR_NAME_MAX);
        }
    }
    return false;
}

void dp_hf_name(const char *own, const struct dp_model_spec *model,
                char ret_name[DP_TENSOR_NAME_MAX])
{
    if (!counterpart(own, model, ret_name)) {
        snprintf(ret_name, DP_TENSOR_NAME_MAX, OTHER_PREFIX "%s", own);
    }
}

// The row that has the name in any style, or NULL.
static const struct row *find_row(const struct row *rows, size_t count, const char *name,
                                  long *ret_number)
{
    for (size_t i = 0; i < count; i++) {
        for (int style = 0; style < DP_HF_STYLE_COUNT; style++) {
            const char *pattern = rows[i].names[style];
            if (pattern != NULL && matches(name, pattern, ret_number)) {
                return &rows[i];
            }
        }
    }
    return NULL;
}

bool dp_hf_own_name(const char *name, char ret_own[DP_NAME_MAX])
{
    long layer, number = 0;
    if (strncmp(name, OTHER_PREFIX, strlen(OTHER_PREFIX)) == 0) {
        return dp_copy_text(ret_own, DP_NAME_MAX, name + strlen(OTHER_PREFIX));
    }
    const char *rest = split(name, PREFIX, &layer);
    const struct row *row = NULL;
    if (rest == NULL) {
        row = find_row(outside, DP_ARRAY_LENGTH(outside), name, &number);
        return row != NULL && dp_copy_text(ret_own, DP_NAME_MAX, row->own);
    }
    row = find_row(inside, DP_ARRAY_LENGTH(inside), rest, &number);
    if (row != NULL) {
        return fill(OWN_PREFIX, layer, row->own, number, ret_own, DP_NAME_MAX);
    }
    row = find_row(predicting, DP_ARRAY_LENGTH(predicting), rest, &number);
    return row != NULL && dp_copy_text(ret_own, DP_NAME_MAX, row->own);
}
