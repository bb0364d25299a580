// What Hugging Face calls the tensors of a model, and what dp/model.h calls them.
//
// Shapes and the order of values are the same on both sides, so a name is all that differs; norms
// and biases have one dimension there.
#pragma once

#include <stdbool.h>

#include "dp/buf.h"
#include "dp/limits.h"
#include "dp/safetensors.h"
#include "dp/spec.h"

// Families differ in what experts are called.
typedef enum dp_hf_style {
    DP_HF_STYLE_PLAIN,   // mlp.experts.N.gate_proj, mlp.shared_experts: DeepSeek, Qwen3, GLM
    DP_HF_STYLE_MIXTRAL, // block_sparse_moe.experts.N.w1
    DP_HF_STYLE_QWEN2,   // mlp.shared_expert
    DP_HF_STYLE_LATENT,  // plain; attention's q_norm is that of the latent query
    DP_HF_STYLE_COUNT
} dp_hf_style;

// The family whose config.json describes the model, its "model_type".
const char *dp_hf_family(const struct dp_model_spec *model);
dp_hf_style dp_hf_style_of(const struct dp_model_spec *model);
// "layers.3.experts.5.gate" becomes "model.layers.3.mlp.experts.5.gate_proj.weight"; a name without
// a counterpart gets "dp." in front.
void dp_hf_name(const char *own, const struct dp_model_spec *model,
                char ret_name[DP_TENSOR_NAME_MAX]);
// The other way round, from any style.
bool dp_hf_own_name(const char *name, char ret_own[DP_NAME_MAX]);
// The layer of an own name "layers.3.router", or -1.
int32_t dp_hf_layer(const char *own);

// The config.json of a model whose weights are saved in `dtype` (BF16, F32 or F64), which
// dp_archive_open reads back. It is of the first family that has all that the model has. What none
// has is of the family "dp", with our own names of shapes under "dp_model".
void dp_hf_config_write(const struct dp_model_spec *model, dp_dtype dtype, struct dp_buf *out);
