// Families of models as config.json has them.
#pragma once

#include "dp/hf_names.h"

#define DP_HF_OWN "dp"             // stands for what nobody else has
#define DP_HF_OWN_MODEL "dp_model" // the key with its shapes, in our own words

typedef enum family_trait {
    EXPERTS_ROUTED = 1 << 0, // DeepSeek's keys: n_routed_experts, ...
    EXPERTS_LOCAL = 1 << 1,  // Mixtral's
    EXPERTS_QWEN = 1 << 2,   // Qwen's: num_experts, ...
    LATENT = 1 << 3,
    SIGMOID = 1 << 4, // scores, with a bias that balances
    SHARED = 1 << 5,  // experts that all tokens visit may be there
    GATED = 1 << 6,   // they are, with a gate
    DENSE = 1 << 7,   // the first layers may be
    RAW = 1 << 8,     // weights may be left as they are
    GROUPS = 1 << 9,  // of experts; a scale of weights as well
    QK_NORM = 1 << 10,
    QK_NORM_KEY = 1 << 11, // there may be some
    WINDOW = 1 << 12,      // in all layers alike
    WINDOWS = 1 << 13,     // in any
    PARTLY_TURNED = 1 << 14,
    AHEAD = 1 << 15,     // may predict further tokens
    BIAS_QKV = 1 << 16,  // they are there
    BIAS_ALL = 1 << 17,  // of all four products, or none
    BIAS_SOME = 1 << 18, // of queries, keys and values, or none
} family_trait;

struct dp_hf_kind {
    const char *type, *architecture;
    uint32_t traits;
};
const struct dp_hf_kind *dp_hf_kind_of(const struct dp_model_spec *model);
