// What config.json files of each architecture say, and what they leave unsaid.
#pragma once

#include "dp/error.h"
#include "dp/json.h"
#include "dp/spec.h"

enum {
    DP_HF_EXPERTS = 1 << 0,
    DP_HF_FFN_IS_EXPERT = 1 << 1, // "intermediate_size" is the width of an expert
    DP_HF_MLA = 1 << 2,
    DP_HF_QK_NORM = 1 << 3,     // always
    DP_HF_QK_NORM_KEY = 1 << 4, // when "use_qk_norm" says so
    DP_HF_SINKS = 1 << 5,
    DP_HF_WINDOW = 1 << 6,            // "sliding_window" holds when it is given
    DP_HF_WINDOW_IF_USED = 1 << 7,    // only together with "use_sliding_window"
    DP_HF_WINDOW_ALTERNATES = 1 << 8, // in every other layer unless "layer_types" is given
    DP_HF_SHARED_GATE = 1 << 9,
    DP_HF_SIGMOID = 1 << 11,     // experts are scored by sigmoids unless "scoring_func" says else
    DP_HF_RAW_WEIGHTS = 1 << 12, // weights are not normalised unless "norm_topk_prob" says so
    DP_HF_PLAIN = 1 << 10,       // GPT-2: LayerNorm, plain FFN, learned positions, tied embedding
    DP_HF_HALF_TURNS = 1 << 13,  // of each head, unless "partial_rotary_factor" says else
    DP_HF_GREEDY = 1 << 14,      // groups of experts count only where "topk_method" says so
    DP_HF_WINDOW_UNCLEAR = 1 << 15, // versions of the class differ in which layers have one
};

struct dp_hf_family {
    const char *type;         // its "model_type"
    const char *architecture; // the class in "architectures"; NULL: a part of a larger model
    uint32_t traits;          // DP_HF_*
    int32_t biases;           // DP_BIAS_* that are always there
    int32_t optional_biases;  // those that "attention_bias" switches on
};

// Tells the architecture of `root`, an object. DP_UNSUPPORTED names one that is not known, why, and
// the nearest that is; `name` is what errors call the file.
dp_status dp_hf_family_find(const json_t *root, const char *name,
                            const struct dp_hf_family **ret_family, struct dp_error *err);

// A config.json that is being read; all of it is borrowed.
struct dp_hf {
    const json_t *root;  // what describes the language model
    const json_t *outer; // the file's object; another one when a wrapper holds the model
    const char *name;
    const struct dp_hf_family *family;
    struct dp_error *err;
};

struct dp_hf_key {
    size_t offset; // of an int32_t in struct dp_model_spec
    double min, max;
    bool required;
    const char *names[4]; // alternatives, the first found counts
};

bool dp_hf_has(const struct dp_hf *hf, uint32_t trait);
// The value of a key; null is no value.
const json_t *dp_hf_get(const json_t *object, const char *key);
// A value as the file has it, cut short.
void dp_hf_show(const json_t *value, char ret_shown[40]);
dp_status dp_hf_refuse(const struct dp_hf *hf, const char *key, const json_t *value,
                       const char *wanted);
// What is absent and not required keeps its value.
dp_status dp_hf_integers(const struct dp_hf *hf, const struct dp_hf_key *keys, size_t count,
                         struct dp_model_spec *model);
dp_status dp_hf_real(const struct dp_hf *hf, const json_t *object, const char *key, double min,
                     double max, double *ret_value);
// A switch of the model, else of the wrapper around it; *ret_on keeps what it was without one.
dp_status dp_hf_switch(const struct dp_hf *hf, const char *key, bool *ret_on);

// DP_UNSUPPORTED for a value that is not among what `takes` says, NULL at its end.
dp_status dp_hf_unsupported(const struct dp_hf *hf, const char *key, const json_t *value,
                            const char *takes);
// Whether a value says nothing: false, 0, empty.
bool dp_hf_is_neutral(const json_t *value);
// hf_unread.c: refuses what would change the model and is not read.
dp_status dp_hf_check_unread(const struct dp_hf *hf);
// hf_angles.c: "rope_theta" and what stretches it. hf_router.c: how experts are scored and chosen.
dp_status dp_hf_angles(const struct dp_hf *hf, struct dp_model_spec *model);
dp_status dp_hf_router(const struct dp_hf *hf, struct dp_model_spec *model);
