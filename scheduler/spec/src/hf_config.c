// Hugging Face config.json as it is published: null where a key does not apply, whole numbers
// written as 4096.0, a model inside a multimodal wrapper, and many keys that shapes do not need.

#include "hf_config.h"

#include <string.h>

#include "dp/alloc.h"
#include "dp/json.h"
#include "spec_internal.h"

#define AT(member) offsetof(struct dp_model_spec, member)

static const struct dp_hf_key integer_keys[] = {
    {AT(layers), 1, DP_LAYERS_MAX, true, {"num_hidden_layers", "n_layer"}},
    {AT(hidden), 1, DP_HIDDEN_MAX, true, {"hidden_size", "n_embd"}},
    {AT(heads), 1, DP_HEADS_MAX, true, {"num_attention_heads", "n_head"}},
    {AT(kv_heads), 1, DP_HEADS_MAX, false, {"num_key_value_heads"}},
    {AT(head_dim), 1, DP_HEADS_MAX, false, {"head_dim"}},
    {AT(ffn), 1, DP_HIDDEN_MAX, false, {"intermediate_size", "n_inner"}},
    {AT(vocabulary), 1, DP_VOCABULARY_MAX, true, {"vocab_size"}},
};
static const struct dp_hf_key expert_keys[] = {
    {AT(experts),
     1,
     DP_EXPERTS_MAX,
     true,
     {"n_routed_experts", "num_local_experts", "num_experts"}},
    {AT(top_k), 1, DP_EXPERTS_MAX, true, {"num_experts_per_tok", "experts_per_token"}},
    {AT(shared_experts), 0, DP_EXPERTS_MAX, false, {"n_shared_experts"}},
    {AT(expert_ffn), 1, DP_HIDDEN_MAX, false, {"moe_intermediate_size"}},
    {AT(dense_layers), 0, DP_LAYERS_MAX, false, {"first_k_dense_replace"}},
    {AT(expert_groups), 0, DP_EXPERTS_MAX, false, {"n_group"}},
    {AT(top_groups), 0, DP_EXPERTS_MAX, false, {"topk_group"}},
    {AT(mtp_layers), 0, DP_LAYERS_MAX, false, {"num_nextn_predict_layers"}},
};
static const struct dp_hf_key mla_keys[] = {
    {AT(mla_q_rank), 1, DP_HIDDEN_MAX, false, {"q_lora_rank"}},
    {AT(mla_kv_rank), 1, DP_HIDDEN_MAX, true, {"kv_lora_rank"}},
    {AT(mla_nope_dim), 1, DP_HEADS_MAX, true, {"qk_nope_head_dim"}},
    {AT(mla_rope_dim), 1, DP_HEADS_MAX, true, {"qk_rope_head_dim"}},
    {AT(mla_v_dim), 1, DP_HEADS_MAX, true, {"v_head_dim"}},
};
static const struct dp_hf_key window_keys[] = {
    {AT(window), 1, DP_SEQUENCE_MAX, false, {"sliding_window"}},
};
static const struct dp_hf_key plain_keys[] = {
    {AT(positions), 1, DP_SEQUENCE_MAX, true, {"n_positions", "n_ctx"}},
};

#define READ_INTEGERS(hf, keys, model)                                                             \
    dp_hf_integers(hf, keys, sizeof(keys) / sizeof((keys)[0]), model)

static dp_status read_angles_and_norms(const struct dp_hf *hf, struct dp_model_spec *model)
{
    model->norm_eps = dp_hf_has(hf, DP_HF_PLAIN) ? 1e-5 : 1e-6;
    dp_status status = dp_hf_angles(hf, model);
    const char *eps = dp_hf_has(hf, DP_HF_PLAIN) ? "layer_norm_epsilon" : "rms_norm_eps";
    return status == DP_OK ? dp_hf_real(hf, hf->root, eps, 0, 1, &model->norm_eps) : status;
}

static dp_status read_switches(const struct dp_hf *hf, struct dp_model_spec *model)
{
    bool biases = dp_hf_has(hf, DP_HF_SINKS), ffn_biases = false;
    bool tied = dp_hf_has(hf, DP_HF_PLAIN), qk_norm = dp_hf_has(hf, DP_HF_QK_NORM);
    dp_status status = dp_hf_switch(hf, "attention_bias", &biases);
    status = status == DP_OK ? dp_hf_switch(hf, "mlp_bias", &ffn_biases) : status;
    status = status == DP_OK ? dp_hf_switch(hf, "tie_word_embeddings", &tied) : status;
    if (status == DP_OK && dp_hf_has(hf, DP_HF_QK_NORM_KEY)) {
        status = dp_hf_switch(hf, "use_qk_norm", &qk_norm);
    }
    model->biases = hf->family->biases | (biases ? hf->family->optional_biases : 0) |
                    (ffn_biases ? DP_BIAS_FFN : 0);
    model->tied_embedding = tied;
    model->qk_norm = qk_norm;
    model->sinks = dp_hf_has(hf, DP_HF_SINKS);
    return status;
}

// The format that its matrix products were trained in, as far as the stored weights tell: those
// that were quantized afterwards (mxfp4, int4) were not.
static dp_status read_format(const struct dp_hf *hf, struct dp_model_spec *model)
{
    const json_t *quantization = dp_hf_get(hf->root, "quantization_config");
    quantization =
        quantization != NULL ? quantization : dp_hf_get(hf->outer, "quantization_config");
    if (quantization == NULL) {
        return DP_OK;
    }
    if (!json_is_object(quantization)) {
        return dp_hf_refuse(hf, "quantization_config", quantization, "an object");
    }
    const char *method = json_string_value(json_object_get(quantization, "quant_method"));
    if (method != NULL && strcmp(method, "fp8") == 0) {
        bool in_blocks = dp_hf_get(quantization, "weight_block_size") != NULL;
        model->format = in_blocks ? DP_FORMAT_FP8_BLOCK : DP_FORMAT_FP8;
    }
    return DP_OK;
}

// Counts the layers of "layer_types" that have a window.
static dp_status count_windows(const struct dp_hf *hf, const json_t *types,
                               struct dp_model_spec *model)
{
    if (!json_is_array(types) || json_array_size(types) != (size_t)model->layers) {
        DP_AUTO_FREE char *wanted =
            dp_asprintf("a list with one name for each of the %d layers", model->layers);
        return dp_hf_refuse(hf, "layer_types", types, wanted);
    }
    int32_t count = 0;
    for (size_t i = 0; i < json_array_size(types); i++) {
        const char *type = json_string_value(json_array_get(types, i));
        bool slides = type != NULL && strcmp(type, "sliding_attention") == 0;
        if (!slides && (type == NULL || strcmp(type, "full_attention") != 0)) {
            char shown[40];
            dp_hf_show(json_array_get(types, i), shown);
            return dp_fail(hf->err, DP_UNSUPPORTED,
                           "%s: \"layer_types\" has %s; full_attention and sliding_attention are "
                           "known",
                           hf->name, shown);
        }
        count += slides;
    }
    model->window_layers = count;
    return DP_OK;
}

// Where the windows of "layer_types" begin, if from there on they are spread evenly.
static dp_status place_windows(const struct dp_hf *hf, const json_t *types,
                               struct dp_model_spec *model)
{
    for (int32_t from = 0; from < model->layers; from++) {
        model->window_from = from;
        int32_t layer = 0;
        for (; layer < model->layers; layer++) {
            const char *type = json_string_value(json_array_get(types, (size_t)layer));
            bool slides = strcmp(type, "sliding_attention") == 0;
            if (slides != (dp_model_layer_window(model, layer) > 0)) {
                break;
            }
        }
        if (layer == model->layers) {
            return DP_OK;
        }
    }
    return dp_fail(hf->err, DP_UNSUPPORTED,
                   "%s: \"layer_types\" has windows in %d of %d layers in an order that is not "
                   "known; supported are windows that are spread evenly from some layer on",
                   hf->name, model->window_layers, model->layers);
}

// Windows of the last layers, from "max_window_layers" on.
static dp_status read_windows_from(const struct dp_hf *hf, struct dp_model_spec *model)
{
    if (dp_hf_has(hf, DP_HF_WINDOW_UNCLEAR)) {
        return dp_hf_unsupported(hf, "use_sliding_window",
                                 json_object_get(hf->root, "use_sliding_window"),
                                 "false, or a list of all layers in \"layer_types\"");
    }
    double from = 28; // what the classes of Qwen2 and Qwen3 take without the key
    dp_status status = dp_hf_real(hf, hf->root, "max_window_layers", 0, DP_LAYERS_MAX, &from);
    model->window_from = from < model->layers ? (int32_t)from : 0;
    model->window_layers = from < model->layers ? model->layers - (int32_t)from : 0;
    return status;
}

static dp_status read_window(const struct dp_hf *hf, struct dp_model_spec *model)
{
    bool used = dp_hf_has(hf, DP_HF_WINDOW);
    dp_status status = DP_OK;
    if (dp_hf_has(hf, DP_HF_WINDOW_IF_USED)) {
        status = dp_hf_switch(hf, "use_sliding_window", &used);
    }
    const json_t *types = dp_hf_get(hf->root, "layer_types");
    model->window_layers = model->layers;
    if (status == DP_OK && types != NULL) {
        status = count_windows(hf, types, model);
    } else if (dp_hf_has(hf, DP_HF_WINDOW_ALTERNATES)) {
        model->window_layers = (model->layers + 1) / 2;
    } else if (status == DP_OK && used && dp_hf_has(hf, DP_HF_WINDOW_IF_USED)) {
        status = read_windows_from(hf, model);
    }
    if (status == DP_OK && used && model->window_layers > 0) {
        status = READ_INTEGERS(hf, window_keys, model);
    }
    if (status == DP_OK && model->window == 0) {
        model->window_layers = model->window_from = 0;
    } else if (status == DP_OK && types != NULL) {
        status = place_windows(hf, types, model);
    }
    return status;
}

// 0 or 1, and newer files "dense" or "sparse", for a layer without or with experts; else -1.
static int is_sparse(const json_t *item)
{
    const char *text = json_string_value(item);
    if (text != NULL) {
        return strcmp(text, "sparse") == 0 ? 1 : strcmp(text, "dense") == 0 ? 0 : -1;
    }
    bool is_bit = json_is_integer(item) && json_integer_value(item) / 2 == 0;
    return is_bit && json_integer_value(item) >= 0 ? (int)json_integer_value(item) : -1;
}

// A list over all layers: dense ones may only come first.
static dp_status read_layer_pattern(const struct dp_hf *hf, const char *key, const json_t *list,
                                    struct dp_model_spec *model)
{
    int32_t first = 0;
    bool simple = json_array_size(list) == (size_t)model->layers;
    for (size_t i = 0; simple && i < json_array_size(list); i++) {
        int sparse = is_sparse(json_array_get(list, i));
        simple = sparse == 0 ? first == (int32_t)i : sparse == 1;
        first += sparse == 0;
    }
    if (!simple) {
        return dp_fail(hf->err, DP_UNSUPPORTED,
                       "%s: \"%s\" mixes layers; only models with experts in every layer after the "
                       "first dense ones are supported",
                       hf->name, key);
    }
    model->dense_layers = first;
    return DP_OK;
}

// Numbers of the dense layers, which must be the first ones.
static dp_status read_dense_layers(const struct dp_hf *hf, struct dp_model_spec *model)
{
    const json_t *dense = dp_hf_get(hf->root, "mlp_only_layers");
    if (dense != NULL && !json_is_array(dense)) {
        return dp_hf_refuse(hf, "mlp_only_layers", dense, "a list of layers");
    }
    for (size_t i = 0; i < json_array_size(dense); i++) {
        const json_t *item = json_array_get(dense, i);
        if (!json_is_integer(item) || json_integer_value(item) != (json_int_t)i) {
            return dp_fail(hf->err, DP_UNSUPPORTED,
                           "%s: \"mlp_only_layers\" is not 0, 1, ...: dense layers may only come "
                           "first",
                           hf->name);
        }
        model->dense_layers = (int32_t)i + 1;
    }
    return DP_OK;
}

// Layouts of layers: a period, a list, or the dense layers by number.
static dp_status read_layout(const struct dp_hf *hf, struct dp_model_spec *model)
{
    static const char *const keys[] = {"moe_layer_freq", "decoder_sparse_step", "mlp_layer_types"};
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        const json_t *value = dp_hf_get(hf->root, keys[i]);
        if (json_is_array(value)) {
            dp_status status = read_layer_pattern(hf, keys[i], value, model);
            if (status != DP_OK) {
                return status;
            }
        } else if (value != NULL && !(json_is_number(value) && json_number_value(value) == 1.0)) {
            char shown[40];
            dp_hf_show(value, shown);
            return dp_fail(hf->err, DP_UNSUPPORTED,
                           "%s: \"%s\" is %s; only models with experts in every layer after the "
                           "first dense ones (1) are supported",
                           hf->name, keys[i], shown);
        }
    }
    dp_status status = read_dense_layers(hf, model);
    if (status == DP_OK && model->dense_layers > model->layers) {
        return dp_fail(hf->err, DP_INVALID,
                       "%s: %d dense layers come first, but \"num_hidden_layers\" is %d", hf->name,
                       model->dense_layers, model->layers);
    }
    return status;
}

static dp_status read_shared_experts(const struct dp_hf *hf, struct dp_model_spec *model)
{
    if (!dp_hf_has(hf, DP_HF_SHARED_GATE)) {
        return DP_OK;
    }
    struct dp_model_spec shared = {0};
    static const struct dp_hf_key key[] = {
        {AT(expert_ffn), 0, DP_HIDDEN_MAX, true, {"shared_expert_intermediate_size"}}};
    dp_status status = READ_INTEGERS(hf, key, &shared);
    if (status != DP_OK) {
        return status;
    }
    int32_t width = shared.expert_ffn;
    if (width % model->expert_ffn != 0) {
        return dp_fail(hf->err, DP_UNSUPPORTED,
                       "%s: \"shared_expert_intermediate_size\" is %d, not a multiple of "
                       "\"moe_intermediate_size\" (%d); the nearest is %d",
                       hf->name, width, model->expert_ffn,
                       (width / model->expert_ffn + 1) * model->expert_ffn);
    }
    model->shared_experts = width / model->expert_ffn;
    model->shared_gate = model->shared_experts > 0;
    return DP_OK;
}

static dp_status read_experts(const struct dp_hf *hf, struct dp_model_spec *model)
{
    if (!dp_hf_has(hf, DP_HF_EXPERTS)) {
        return DP_OK;
    }
    dp_status status = READ_INTEGERS(hf, expert_keys, model);
    status = status == DP_OK ? read_layout(hf, model) : status;
    if (status != DP_OK) {
        return status;
    }
    if (dp_hf_has(hf, DP_HF_FFN_IS_EXPERT)) {
        model->expert_ffn = model->ffn;
    }
    if (model->expert_ffn == 0) {
        return dp_fail(
            hf->err, DP_INVALID, "%s: \"%s\", the width of an expert, is missing", hf->name,
            dp_hf_has(hf, DP_HF_FFN_IS_EXPERT) ? "intermediate_size" : "moe_intermediate_size");
    }
    if (model->top_k > model->experts) {
        return dp_fail(hf->err, DP_INVALID,
                       "%s: \"num_experts_per_tok\" is %d, but there are only %d experts; at most "
                       "%d can be visited",
                       hf->name, model->top_k, model->experts, model->experts);
    }
    if (model->expert_groups <= 1) {
        model->expert_groups = model->top_groups = 0;
    } else if (model->experts % model->expert_groups != 0 || model->top_groups < 1 ||
               model->top_groups > model->expert_groups) {
        return dp_fail(hf->err, DP_INVALID,
                       "%s: \"n_group\" is %d and \"topk_group\" %d for %d experts; n_group must "
                       "divide them, and topk_group be from 1 to n_group",
                       hf->name, model->expert_groups, model->top_groups, model->experts);
    }
    if (model->dense_layers == 0) {
        model->ffn = 0;
    }
    status = dp_hf_router(hf, model);
    return status == DP_OK ? read_shared_experts(hf, model) : status;
}

static dp_status read_latent_attention(const struct dp_hf *hf, struct dp_model_spec *model)
{
    dp_status status = READ_INTEGERS(hf, mla_keys, model);
    if (status == DP_OK && dp_hf_get(hf->root, "index_topk") != NULL) {
        return dp_fail(hf->err, DP_UNSUPPORTED,
                       "%s: \"index_topk\": the indexer of sparse attention is not known; without "
                       "the key the model is taken as %s",
                       hf->name, hf->family->type);
    }
    if (status == DP_OK && model->mla_rope_dim % 2 != 0) {
        const char *key = "qk_rope_head_dim";
        return dp_hf_refuse(hf, key, dp_hf_get(hf->root, key), "an even number, for rotary pairs");
    }
    model->kv_heads = model->heads;
    model->head_dim = model->mla_nope_dim + model->mla_rope_dim;
    if (status == DP_OK && model->head_dim > DP_HEADS_MAX) {
        return dp_fail(hf->err, DP_INVALID,
                       "%s: \"qk_nope_head_dim\" and \"qk_rope_head_dim\" are %d together; the "
                       "limit is %d",
                       hf->name, model->head_dim, DP_HEADS_MAX);
    }
    return status;
}

static dp_status read_attention(const struct dp_hf *hf, struct dp_model_spec *model)
{
    if (dp_hf_has(hf, DP_HF_MLA)) {
        return read_latent_attention(hf, model);
    }
    model->kv_heads = model->kv_heads > 0 ? model->kv_heads : model->heads;
    if (model->heads % model->kv_heads != 0) {
        int32_t fewer = model->kv_heads < model->heads ? model->kv_heads : model->heads;
        while (model->heads % fewer != 0) {
            fewer--;
        }
        return dp_fail(hf->err, DP_INVALID,
                       "%s: \"num_key_value_heads\" is %d, which does not divide "
                       "\"num_attention_heads\" (%d); the next smaller that does is %d",
                       hf->name, model->kv_heads, model->heads, fewer);
    }
    if (model->head_dim == 0 && model->hidden % model->heads != 0) {
        return dp_fail(hf->err, DP_INVALID,
                       "%s: \"head_dim\" is missing, and \"num_attention_heads\" (%d) does not "
                       "divide \"hidden_size\" (%d)",
                       hf->name, model->heads, model->hidden);
    }
    model->head_dim = model->head_dim > 0 ? model->head_dim : model->hidden / model->heads;
    if (model->head_dim % 2 != 0 || model->head_dim > DP_HEADS_MAX) {
        return dp_fail(hf->err, DP_INVALID,
                       "%s: heads are %d wide (\"head_dim\"); rotary positions need an even width, "
                       "and the limit is %d",
                       hf->name, model->head_dim, DP_HEADS_MAX);
    }
    return DP_OK;
}

static dp_status read_ffn(const struct dp_hf *hf, struct dp_model_spec *model)
{
    if (dp_hf_has(hf, DP_HF_PLAIN)) {
        model->ffn_matrices = 2;
        model->ffn = model->ffn > 0 ? model->ffn : 4 * model->hidden;
        if (model->ffn > DP_HIDDEN_MAX) {
            return dp_fail(hf->err, DP_INVALID,
                           "%s: \"n_embd\" is %d, which makes an FFN of %d; the limit is %d",
                           hf->name, model->hidden, model->ffn, DP_HIDDEN_MAX);
        }
        return READ_INTEGERS(hf, plain_keys, model);
    }
    bool is_dense = model->experts == 0 || model->dense_layers > 0;
    if (is_dense && model->ffn == 0) {
        return dp_fail(hf->err, DP_INVALID,
                       "%s: \"intermediate_size\", the width of a dense layer's FFN, is missing",
                       hf->name);
    }
    return DP_OK;
}

// A multimodal model has its language model inside.
static const json_t *find_language_model(const json_t *root)
{
    static const char *const wrappers[] = {"text_config", "language_config", "llm_config"};
    if (dp_hf_get(root, "num_hidden_layers") != NULL || dp_hf_get(root, "n_layer") != NULL) {
        return root;
    }
    for (size_t i = 0; i < sizeof(wrappers) / sizeof(wrappers[0]); i++) {
        const json_t *inner = json_object_get(root, wrappers[i]);
        if (json_is_object(inner)) {
            return inner;
        }
    }
    return root;
}

static dp_status read_model(const struct dp_hf *hf, struct dp_model_spec *model)
{
    dp_status status = READ_INTEGERS(hf, integer_keys, model);
    status = status == DP_OK ? read_attention(hf, model) : status;
    status = status == DP_OK ? read_experts(hf, model) : status;
    status = status == DP_OK ? read_ffn(hf, model) : status;
    status = status == DP_OK ? read_window(hf, model) : status;
    status = status == DP_OK ? read_switches(hf, model) : status;
    status = status == DP_OK ? read_format(hf, model) : status;
    status = status == DP_OK ? read_angles_and_norms(hf, model) : status;
    status = status == DP_OK ? dp_hf_check_unread(hf) : status;
    if (status != DP_OK) {
        return status;
    }
    double size = dp_model_estimate(model);
    if (size > DP_PARAMETERS_MAX) {
        return dp_fail(hf->err, DP_INVALID,
                       "%s: these sizes make %.2g parameters; the limit is %.0e", hf->name, size,
                       DP_PARAMETERS_MAX);
    }
    return DP_OK;
}

dp_status dp_model_from_hf_config(const char *json, size_t length, const char *name,
                                  struct dp_model_spec *ret_model, struct dp_error *err)
{
    DP_AUTO_JSON json_t *root = NULL;
    dp_status status = dp_json_parse(json, length, DP_SPEC_BYTES_MAX, name, &root, err);
    if (status != DP_OK) {
        return status;
    }
    if (!json_is_object(root)) {
        return dp_fail(err, DP_INVALID, "%s: not a JSON object", name);
    }
    struct dp_hf hf = {.root = find_language_model(root), .outer = root, .name = name, .err = err};
    const json_t *named = dp_hf_get(hf.root, "model_type") != NULL ? hf.root : root;
    status = dp_hf_family_find(named, name, &hf.family, err);
    struct dp_model_spec model = {0};
    status = status == DP_OK ? read_model(&hf, &model) : status;
    if (status != DP_OK) {
        return status;
    }
    DP_COPY_TEXT(model.name, hf.family->type);
    dp_model_complete(&model, NULL);
    *ret_model = model;
    return DP_OK;
}
