// Rotary angles of a config.json: "rope_theta", "rope_scaling" or the newer "rope_parameters".
#include <stdio.h>
#include <string.h>

#include "hf_config.h"

static dp_status read_length(const struct dp_hf *hf, const json_t *rope, int32_t *ret_length)
{
    double length = 0;
    dp_status status =
        dp_hf_real(hf, hf->root, "max_position_embeddings", 1, DP_SEQUENCE_MAX, &length);
    status = status == DP_OK ? dp_hf_real(hf, rope, "original_max_position_embeddings", 1,
                                          DP_SEQUENCE_MAX, &length)
                             : status;
    *ret_length = (int32_t)length;
    return status;
}

static dp_status read_numbers(const struct dp_hf *hf, const json_t *json,
                              struct dp_rope_scaling *rope)
{
    const struct {
        const char *key;
        double *value;
    } reals[] = {
        {"factor", &rope->factor},
        {"low_freq_factor", &rope->low_factor},
        {"high_freq_factor", &rope->high_factor},
        {"beta_fast", &rope->beta_fast},
        {"beta_slow", &rope->beta_slow},
        {"mscale", &rope->mscale},
        {"mscale_all_dim", &rope->mscale_all},
        {"attention_factor", &rope->attention_factor},
    };
    dp_status status = read_length(hf, json, &rope->original);
    for (size_t i = 0; i < sizeof(reals) / sizeof(reals[0]) && status == DP_OK; i++) {
        status = dp_hf_real(hf, json, reals[i].key, 0, 1e6, reals[i].value);
    }
    rope->untruncated = json_is_false(dp_hf_get(json, "truncate"));
    return status;
}

static dp_status read_scaling(const struct dp_hf *hf, const json_t *json,
                              struct dp_model_spec *model)
{
    const json_t *named = dp_hf_get(json, "rope_type");
    named = named != NULL ? named : dp_hf_get(json, "type");
    const char *type = named == NULL ? "default" : json_string_value(named);
    if (type != NULL && (strcmp(type, "default") == 0 || strcmp(type, "mrope") == 0)) {
        return DP_OK; // positions in pictures do not count here
    }
    struct dp_error ignored;
    if (type == NULL || dp_rope_kind_parse(type, &model->rope.kind, &ignored) != DP_OK) {
        char shown[40];
        dp_hf_show(named, shown);
        return dp_fail(hf->err, DP_UNSUPPORTED,
                       "%s: \"rope_scaling\" is of type %s; linear, llama3 and yarn are known",
                       hf->name, shown);
    }
    return read_numbers(hf, json, &model->rope);
}

dp_status dp_hf_angles(const struct dp_hf *hf, struct dp_model_spec *model)
{
    model->rope_theta = 10000;
    dp_status status = dp_hf_real(hf, hf->root, "rope_theta", 1, 1e12, &model->rope_theta);
    const json_t *rope = dp_hf_get(hf->root, "rope_parameters");
    if (status == DP_OK && json_is_object(rope)) {
        status = dp_hf_real(hf, rope, "rope_theta", 1, 1e12, &model->rope_theta);
    }
    rope = rope != NULL ? rope : dp_hf_get(hf->root, "rope_scaling");
    return status == DP_OK && json_is_object(rope) ? read_scaling(hf, rope, model) : status;
}
