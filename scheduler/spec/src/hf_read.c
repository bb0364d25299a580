// Keys of a config.json, one by one.

#include <math.h>
#include <stdio.h>

#include "dp/alloc.h"
#include "hf_config.h"

bool dp_hf_has(const struct dp_hf *hf, uint32_t trait)
{
    return (hf->family->traits & trait) != 0;
}

const json_t *dp_hf_get(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return value == NULL || json_is_null(value) ? NULL : value;
}

void dp_hf_show(const json_t *value, char ret_shown[40])
{
    if (json_is_object(value) || json_is_array(value)) {
        snprintf(ret_shown, 40, json_is_object(value) ? "an object" : "a list");
        return;
    }
    DP_AUTO_FREE char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_ENSURE_ASCII);
    snprintf(ret_shown, 40, "%s", text == NULL ? "?" : text);
}

dp_status dp_hf_refuse(const struct dp_hf *hf, const char *key, const json_t *value,
                       const char *wanted)
{
    char shown[40];
    dp_hf_show(value, shown);
    return dp_fail(hf->err, DP_INVALID, "%s: \"%s\" is %s; it must be %s", hf->name, key, shown,
                   wanted);
}

dp_status dp_hf_unsupported(const struct dp_hf *hf, const char *key, const json_t *value,
                            const char *takes)
{
    char shown[40];
    dp_hf_show(value, shown);
    return dp_fail(hf->err, DP_UNSUPPORTED,
                   "%s: \"%s\" is %s, which would be another model; supported is %s", hf->name, key,
                   shown, takes);
}

bool dp_hf_is_neutral(const json_t *value)
{
    if (json_is_number(value)) {
        return fpclassify(json_number_value(value)) == FP_ZERO;
    }
    if (json_is_string(value)) {
        return json_string_length(value) == 0;
    }
    return json_is_null(value) || json_is_false(value) ||
           (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0);
}

static dp_status read_integer(const struct dp_hf *hf, const struct dp_hf_key *key,
                              struct dp_model_spec *model)
{
    const char *used = key->names[0];
    const json_t *value = NULL;
    for (size_t i = 0; i < 4 && key->names[i] != NULL && value == NULL; i++) {
        value = dp_hf_get(hf->root, key->names[i]);
        used = value != NULL ? key->names[i] : used;
    }
    if (value == NULL && !key->required) {
        return DP_OK;
    }
    if (value == NULL) {
        return dp_fail(hf->err, DP_INVALID,
                       "%s: \"%s\" is missing, which %s models have; is it a model's config.json?",
                       hf->name, key->names[0], hf->family->type);
    }
    double number = json_number_value(value);
    if (!json_is_number(value) || !(number >= key->min && number <= key->max) ||
        number != floor(number)) {
        DP_AUTO_FREE char *wanted =
            dp_asprintf("a whole number from %.0f to %.0f", key->min, key->max);
        return dp_hf_refuse(hf, used, value, wanted);
    }
    *(int32_t *)(void *)((char *)model + key->offset) = (int32_t)number;
    return DP_OK;
}

dp_status dp_hf_integers(const struct dp_hf *hf, const struct dp_hf_key *keys, size_t count,
                         struct dp_model_spec *model)
{
    dp_status status = DP_OK;
    for (size_t i = 0; i < count && status == DP_OK; i++) {
        status = read_integer(hf, &keys[i], model);
    }
    return status;
}

dp_status dp_hf_real(const struct dp_hf *hf, const json_t *object, const char *key, double min,
                     double max, double *ret_value)
{
    const json_t *value = dp_hf_get(object, key);
    if (value == NULL) {
        return DP_OK;
    }
    double number = json_number_value(value);
    if (!json_is_number(value) || !(number >= min && number <= max)) {
        DP_AUTO_FREE char *wanted = dp_asprintf("a number from %g to %g", min, max);
        return dp_hf_refuse(hf, key, value, wanted);
    }
    *ret_value = number;
    return DP_OK;
}

dp_status dp_hf_switch(const struct dp_hf *hf, const char *key, bool *ret_on)
{
    const json_t *value = dp_hf_get(hf->root, key);
    value = value != NULL ? value : dp_hf_get(hf->outer, key);
    if (value == NULL) {
        return DP_OK;
    }
    if (!json_is_boolean(value)) {
        return dp_hf_refuse(hf, key, value, "true or false");
    }
    *ret_on = json_is_true(value);
    return DP_OK;
}
