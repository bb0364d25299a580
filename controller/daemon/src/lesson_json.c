#include "lesson_json.h"

#include <math.h>

#include "dp/alloc.h"
#include "dp/json.h"

dp_status lesson_read_profile(const struct dp_buf *document, struct dp_profile *ret_profile,
                              struct dp_error *err)
{
    DP_AUTO_JSON json_t *json = NULL;
    dp_status status = dp_json_parse(document->length == 0 ? "" : document->bytes, document->length,
                                     DP_PROFILE_BYTES_MAX, "profile", &json, err);
    return status == DP_OK ? dp_profile_from_json(json, ret_profile, err) : status;
}

void lesson_write_correction(const struct dp_correction *correction, struct dp_buf *out)
{
    DP_AUTO_JSON json_t *json = dp_correction_to_json(correction);
    dp_json_write(json, 0, out);
}

dp_status lesson_read_correction(const struct dp_buf *document,
                                 struct dp_correction *ret_correction, struct dp_error *err)
{
    DP_AUTO_JSON json_t *json = NULL;
    dp_status status = dp_json_parse(document->length == 0 ? "" : document->bytes, document->length,
                                     DP_PROFILE_BYTES_MAX, "correction", &json, err);
    return status == DP_OK ? dp_correction_from_json(json, ret_correction, err) : status;
}

void lesson_write(const struct dp_lesson *lesson, bool ended, struct dp_buf *out)
{
    DP_AUTO_JSON json_t *json = json_pack(
        "{s:s, s:b, s:b, s:s, s:o, s:o}", "schema", "dp.lesson/1", "ended", ended, "learned",
        lesson->learned, "reason", lesson->reason, "used", dp_correction_to_json(&lesson->used),
        "correction", dp_correction_to_json(&lesson->correction));
    json_t *parts = json_array();
    for (int part = 0; part < DP_PART_COUNT; part++) {
        const struct dp_part_result *result = &lesson->parts[part];
        json_array_append_new(parts,
                              json_pack("{s:f, s:f, s:f, s:b}", "predicted_s", result->predicted_s,
                                        "measured_s", result->measured_s, "ratio", result->ratio,
                                        "learned", result->learned));
    }
    json_object_set_new(json, "hops_s", json_real(lesson->hops_s));
    json_object_set_new(json, "parts", parts);
    dp_json_write(json, 0, out);
}

static double number_of(const json_t *json, const char *key)
{
    double value = json_number_value(json_object_get(json, key));
    return isfinite(value) && value >= 0 ? value : 0;
}

dp_status lesson_read(const struct dp_buf *document, struct dp_lesson *ret_lesson, bool *ret_ended,
                      struct dp_error *err)
{
    DP_AUTO_JSON json_t *json = NULL;
    struct dp_lesson lesson = {0};
    dp_status status = dp_json_parse(document->length == 0 ? "" : document->bytes, document->length,
                                     DP_PROFILE_BYTES_MAX, "lesson", &json, err);
    if (status == DP_OK) {
        status = dp_correction_from_json(json_object_get(json, "used"), &lesson.used, err);
    }
    if (status == DP_OK) {
        status =
            dp_correction_from_json(json_object_get(json, "correction"), &lesson.correction, err);
    }
    if (status != DP_OK) {
        return status;
    }
    const char *reason = json_string_value(json_object_get(json, "reason"));
    (void)DP_COPY_TEXT(lesson.reason, reason == NULL ? "" : reason);
    lesson.hops_s = number_of(json, "hops_s");
    lesson.learned = json_is_true(json_object_get(json, "learned"));
    const json_t *parts = json_object_get(json, "parts");
    for (size_t part = 0; part < DP_PART_COUNT; part++) {
        const json_t *from = json_array_get(parts, part);
        lesson.parts[part] = (struct dp_part_result){
            .predicted_s = number_of(from, "predicted_s"),
            .measured_s = number_of(from, "measured_s"),
            .ratio = number_of(from, "ratio"),
            .learned = json_is_true(json_object_get(from, "learned")),
        };
    }
    *ret_ended = json_is_true(json_object_get(json, "ended"));
    *ret_lesson = lesson;
    return DP_OK;
}
