// How a config.json says that experts are scored, chosen and weighted.
#include <string.h>

#include "hf_config.h"

// The speed of the bias, which configurations do not tell: that of DeepSeek-V3 (arXiv 2412.19437,
// section 4.2).
#define BIAS_UPDATE 0.001

static dp_status read_scores(const struct dp_hf *hf, struct dp_model_spec *model)
{
    const json_t *value = dp_hf_get(hf->root, "scoring_func");
    model->router = dp_hf_has(hf, DP_HF_SIGMOID) ? DP_MODEL_SIGMOID : DP_MODEL_SOFTMAX;
    if (value == NULL) {
        return DP_OK;
    }
    const char *text = json_string_value(value);
    if (text != NULL && strcmp(text, "sigmoid") == 0) {
        model->router = DP_MODEL_SIGMOID;
    } else if (text != NULL && strcmp(text, "softmax") == 0) {
        model->router = DP_MODEL_SOFTMAX;
    } else {
        return dp_hf_refuse(hf, "scoring_func", value, "\"softmax\" or \"sigmoid\"");
    }
    return DP_OK;
}

// DeepSeek's "topk_method": "greedy" takes no groups, "noaux_tc" adds a bias that is learned aside.
static dp_status read_method(const struct dp_hf *hf, struct dp_model_spec *model)
{
    const json_t *value = dp_hf_get(hf->root, "topk_method");
    const char *method = json_string_value(value);
    if (value == NULL) {
        method = dp_hf_has(hf, DP_HF_GREEDY) ? "greedy" : "";
    }
    bool is_greedy = method != NULL && strcmp(method, "greedy") == 0;
    bool is_biased = method != NULL && strcmp(method, "noaux_tc") == 0;
    if (value != NULL && !is_greedy && !is_biased &&
        (method == NULL || strcmp(method, "group_limited_greedy") != 0)) {
        return dp_hf_unsupported(hf, "topk_method", value,
                                 "greedy, group_limited_greedy or noaux_tc");
    }
    if (is_greedy) {
        model->expert_groups = model->top_groups = 0;
    }
    if (dp_hf_has(hf, DP_HF_SIGMOID) || is_biased) {
        model->bias_update = BIAS_UPDATE;
    }
    return DP_OK;
}

dp_status dp_hf_router(const struct dp_hf *hf, struct dp_model_spec *model)
{
    bool normalizes = !dp_hf_has(hf, DP_HF_RAW_WEIGHTS);
    dp_status status = read_scores(hf, model);
    status = status == DP_OK ? dp_hf_switch(hf, "norm_topk_prob", &normalizes) : status;
    status = status == DP_OK
                 ? dp_hf_real(hf, hf->root, "routed_scaling_factor", 0, 1e6, &model->route_scale)
                 : status;
    model->raw_weights = !normalizes;
    return status == DP_OK ? read_method(hf, model) : status;
}
