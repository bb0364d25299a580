#include <math.h>

#include "dp/alloc.h"
#include "dp/correction.h"

static const char *const keys[DP_PART_COUNT] = {
    [DP_PART_COMPUTE] = "compute",   [DP_PART_EXCHANGE] = "exchange",   [DP_PART_HOP] = "hop",
    [DP_PART_GRADIENT] = "gradient", [DP_PART_OPTIMIZER] = "optimizer",
};

json_t *dp_correction_to_json(const struct dp_correction *correction)
{
    json_t *json = json_pack("{s:s, s:s, s:i, s:I}", "schema", "dp.correction/1", "source",
                             correction->source, "runs", correction->runs, "base_measured_at_s",
                             (json_int_t)correction->base_measured_at_s);
    for (int part = 0; part < DP_PART_COUNT; part++) {
        json_object_set_new(json, keys[part], json_real(correction->factor[part]));
    }
    return json;
}

dp_status dp_correction_from_json(const json_t *json, struct dp_correction *ret_correction,
                                  struct dp_error *err)
{
    struct dp_correction correction;
    dp_correction_init(&correction);
    const json_t *source = json_object_get(json, "source");
    const json_t *runs = json_object_get(json, "runs");
    const json_t *base = json_object_get(json, "base_measured_at_s");
    if (!json_is_string(source) || !json_is_integer(runs) || !json_is_integer(base) ||
        json_integer_value(runs) < 0 || json_integer_value(runs) > INT32_MAX ||
        !DP_COPY_TEXT(correction.source, json_string_value(source))) {
        return dp_fail(err, DP_INVALID,
                       "a correction has a \"source\", a count of \"runs\" and "
                       "\"base_measured_at_s\"");
    }
    correction.runs = (int32_t)json_integer_value(runs);
    correction.base_measured_at_s = json_integer_value(base);
    for (int part = 0; part < DP_PART_COUNT; part++) {
        const json_t *factor = json_object_get(json, keys[part]);
        double value = json_number_value(factor);
        if (!json_is_number(factor) || !(value >= 1 / DP_LEARN_FACTOR_MAX) ||
            value > DP_LEARN_FACTOR_MAX) {
            return dp_fail(err, DP_INVALID, "the correction's \"%s\" is no factor from 1/%g to %g",
                           keys[part], DP_LEARN_FACTOR_MAX, DP_LEARN_FACTOR_MAX);
        }
        correction.factor[part] = value;
    }
    *ret_correction = correction;
    return DP_OK;
}
