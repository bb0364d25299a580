// Rotary angles of a config.json: "rope_theta", "rope_scaling" or the newer "rope_parameters".
#include <stdio.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
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

// Keys of "rope_scaling" and "rope_parameters" that are read, and those that concern pictures.
static dp_status check_scaling(const struct dp_hf *hf, const char *name, json_t *json)
{
    static const char *const known[] = {
        "type",
        "rope_type",
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "attention_factor",
        "truncate",
        "original_max_position_embeddings",
        "rope_theta",
        "partial_rotary_factor",
        "mrope_section",
        "mrope_interleaved",
    };
    const char *key;
    json_t *value;
    json_object_foreach(json, key, value)
    {
        bool is_known = dp_hf_is_neutral(value);
        for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
            is_known = is_known || strcmp(known[i], key) == 0;
        }
        if (!is_known) {
            DP_AUTO_FREE char *path = dp_asprintf("%s.%s", name, key);
            return dp_hf_unsupported(hf, path, value, "none");
        }
    }
    return DP_OK;
}

// What a job may not have either.
static dp_status check_numbers(const struct dp_hf *hf, const char *name,
                               const struct dp_rope_scaling *rope)
{
    const double low = rope->low_factor > 0 ? rope->low_factor : 1;
    const double high = rope->high_factor > 0 ? rope->high_factor : 4;
    const char *wrong = NULL;
    if (!(rope->factor >= 1)) {
        wrong = "needs a \"factor\" of 1 or more";
    } else if (rope->kind != DP_ROPE_LINEAR && rope->original < 1) {
        wrong = "needs \"original_max_position_embeddings\"";
    } else if (rope->kind == DP_ROPE_LLAMA3 && low >= high) {
        wrong = "needs a \"low_freq_factor\" below \"high_freq_factor\"";
    }
    return wrong == NULL ? DP_OK
                         : dp_fail(hf->err, DP_INVALID, "%s: \"%s\" %s", hf->name, name, wrong);
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

// How much of each head turns.
static dp_status read_share(const struct dp_hf *hf, const json_t *rope, struct dp_model_spec *model)
{
    const char *key = "partial_rotary_factor";
    const json_t *value =
        dp_hf_get(rope, key) != NULL ? dp_hf_get(rope, key) : dp_hf_get(hf->root, key);
    double share = dp_hf_has(hf, DP_HF_HALF_TURNS) ? 0.5 : 1;
    dp_status status = dp_hf_real(hf, hf->root, key, 0, 1, &share);
    status = status == DP_OK ? dp_hf_real(hf, rope, key, 0, 1, &share) : status;
    if (status != DP_OK || share >= 1) {
        return status;
    }
    if (dp_hf_has(hf, DP_HF_MLA | DP_HF_PLAIN)) {
        return dp_hf_unsupported(hf, key, value, "1");
    }
    int32_t width = (int32_t)(model->head_dim * share);
    if (width < 2 || width % 2 != 0) {
        return dp_fail(hf->err, DP_UNSUPPORTED,
                       "%s: \"%s\" is %g, which turns %d of %d; it must be an even number of them",
                       hf->name, key, share, width, model->head_dim);
    }
    model->rotary_dim = width;
    return DP_OK;
}

dp_status dp_hf_angles(const struct dp_hf *hf, struct dp_model_spec *model)
{
    model->rope_theta = 10000;
    dp_status status = dp_hf_real(hf, hf->root, "rope_theta", 1, 1e12, &model->rope_theta);
    json_t *parameters = json_object_get(hf->root, "rope_parameters");
    const char *name = json_is_object(parameters) ? "rope_parameters" : "rope_scaling";
    json_t *rope = json_object_get(hf->root, name);
    if (status == DP_OK && rope != NULL && !json_is_null(rope) && !json_is_object(rope)) {
        return dp_hf_refuse(hf, name, rope, "an object");
    }
    status = status == DP_OK ? dp_hf_real(hf, parameters, "rope_theta", 1, 1e12, &model->rope_theta)
                             : status;
    status = status == DP_OK ? read_share(hf, rope, model) : status;
    if (status != DP_OK || !json_is_object(rope)) {
        return status;
    }
    status = check_scaling(hf, name, rope);
    status = status == DP_OK ? read_scaling(hf, rope, model) : status;
    return status == DP_OK && model->rope.kind != DP_ROPE_PLAIN
               ? check_numbers(hf, name, &model->rope)
               : status;
}
