#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/utf8.h"
#include "schedule_json.h"

// An integer from min to max under `key`.
static dp_status read_number(const json_t *object, const char *key, int64_t min, int64_t max,
                             int64_t *ret_number, struct dp_error *err)
{
    const json_t *json = json_object_get(object, key);
    if (!json_is_integer(json)) {
        return dp_fail(err, DP_INVALID, "\"%s\" must be an integer", key);
    }
    int64_t number = json_integer_value(json);
    if (number < min || number > max) {
        return dp_fail(err, DP_INVALID, "\"%s\" must be %lld to %lld; it is %lld", key,
                       (long long)min, (long long)max, (long long)number);
    }
    *ret_number = number;
    return DP_OK;
}

// Stage and micro-batch of one chunk of work.
static dp_status read_chunk(const json_t *json, uint16_t *ret_stage, uint32_t *ret_microbatch,
                            struct dp_error *err)
{
    int64_t stage = 0;
    int64_t microbatch = 0;
    dp_status status = read_number(json, "stage", 0, DP_STAGES_MAX - 1, &stage, err);
    if (status == DP_OK) {
        status = read_number(json, "microbatch", 0, DP_MICROBATCHES_MAX - 1, &microbatch, err);
    }
    *ret_stage = (uint16_t)stage;
    *ret_microbatch = (uint32_t)microbatch;
    return status;
}

static dp_status read_kind(const json_t *json, uint8_t *ret_kind, struct dp_error *err)
{
    const char *text = json_string_value(json_object_get(json, "kind"));
    for (int kind = 0; text != NULL && kind < DP_ACTION_KIND_COUNT; kind++) {
        if (strcmp(text, dp_action_kind_text((dp_action_kind)kind)) == 0) {
            *ret_kind = (uint8_t)kind;
            return DP_OK;
        }
    }
    return dp_fail(err, DP_INVALID, "\"kind\" must be F, B, I, W or FB");
}

static dp_status read_pair(const json_t *json, struct dp_action *action, struct dp_error *err)
{
    const json_t *forward = json_object_get(json, "forward");
    const json_t *backward = json_object_get(json, "backward");
    uint8_t forward_kind;
    dp_status status = read_kind(forward, &forward_kind, err);
    if (status == DP_OK && forward_kind != DP_ACTION_F) {
        status = dp_fail(err, DP_INVALID, "the forward part of a pair is F");
    }
    if (status == DP_OK) {
        status = read_chunk(forward, &action->stage, &action->microbatch, err);
    }
    if (status == DP_OK) {
        status = read_kind(backward, &action->b_kind, err);
    }
    if (status == DP_OK) {
        status = read_chunk(backward, &action->b_stage, &action->b_microbatch, err);
    }
    return status;
}

dp_status dp_action_from_json(const json_t *json, struct dp_action *ret_action,
                              struct dp_error *err)
{
    struct dp_action action = {0};
    dp_status status = read_kind(json, &action.kind, err);
    if (status == DP_OK) {
        status = action.kind == DP_ACTION_FB
                     ? read_pair(json, &action, err)
                     : read_chunk(json, &action.stage, &action.microbatch, err);
    }
    *ret_action = action;
    return status;
}

// One list per rank under `key`.
static dp_status check_rank_lists(const json_t *json, const char *key, int32_t pipeline,
                                  size_t *ret_items, struct dp_json_subject *subject,
                                  struct dp_error *err)
{
    const json_t *lists = json_object_get(json, key);
    *subject = (struct dp_json_subject){.key = key, .entry = -1};
    if (!json_is_array(lists) || json_array_size(lists) != (size_t)pipeline) {
        return dp_fail(err, DP_INVALID, "\"%s\" must be a list of %d lists, one per rank", key,
                       pipeline);
    }
    size_t rank;
    json_t *list;
    *ret_items = 0;
    json_array_foreach(lists, rank, list)
    {
        if (!json_is_array(list)) {
            subject->entry = (int32_t)rank;
            return dp_fail(err, DP_INVALID, "\"%s\": the entry of rank %zu is not a list", key,
                           rank);
        }
        *ret_items += json_array_size(list);
    }
    return DP_OK;
}

static dp_status place_stage(struct dp_schedule *schedule, const json_t *json, int32_t rank,
                             int32_t direction, struct dp_error *err)
{
    int64_t stage = json_is_integer(json) ? json_integer_value(json) : -1;
    if (stage < 0 || stage >= schedule->stages) {
        return dp_fail(err, DP_INVALID, "\"placement\": rank %d holds a stage that is not 0 to %d",
                       rank, schedule->stages - 1);
    }
    int32_t *placed = &schedule->placement[2 * stage + direction];
    if (*placed >= 0) {
        return dp_fail(err, DP_INVALID, "\"placement\": ranks %d and %d both hold stage %lld",
                       *placed, rank, (long long)stage);
    }
    *placed = rank;
    return DP_OK;
}

// Each rank lists its stages; in a bidirectional schedule, where each stage is listed twice, the
// first half is for the stream from rank 0. A stage that nobody lists stays at -1 for validate.
static dp_status read_placement(const json_t *json, struct dp_schedule *schedule,
                                struct dp_json_subject *subject, struct dp_error *err)
{
    size_t items;
    dp_status status =
        check_rank_lists(json, "placement", schedule->pipeline, &items, subject, err);
    if (status != DP_OK) {
        return status;
    }
    schedule->directions = items == 2 * (size_t)schedule->stages ? 2 : 1;
    schedule->placement = dp_new_array(int32_t, 2 * (size_t)schedule->stages);
    for (int32_t i = 0; i < 2 * schedule->stages; i++) {
        schedule->placement[i] = -1;
    }
    const json_t *lists = json_object_get(json, "placement");
    for (int32_t rank = 0; rank < schedule->pipeline && status == DP_OK; rank++) {
        const json_t *list = json_array_get(lists, (size_t)rank);
        size_t count = json_array_size(list);
        subject->entry = rank;
        for (size_t i = 0; i < count && status == DP_OK; i++) {
            int32_t direction = schedule->directions == 2 && i >= count / 2;
            status = place_stage(schedule, json_array_get(list, i), rank, direction, err);
        }
    }
    for (int32_t stage = 0; schedule->directions == 1 && stage < schedule->stages; stage++) {
        schedule->placement[2 * stage + 1] = schedule->placement[2 * stage];
    }
    return status;
}

static dp_status read_ranks(const json_t *json, struct dp_schedule *schedule,
                            struct dp_json_subject *subject, struct dp_error *err)
{
    size_t items;
    dp_status status = check_rank_lists(json, "ranks", schedule->pipeline, &items, subject, err);
    if (status != DP_OK) {
        return status;
    }
    if (items > DP_ACTIONS_MAX) {
        return dp_fail(err, DP_TOO_LARGE, "\"ranks\" has %zu actions; the limit is %u", items,
                       DP_ACTIONS_MAX);
    }
    schedule->actions = dp_new_array(struct dp_action, items);
    schedule->rank_begin = dp_new_array(size_t, (size_t)schedule->pipeline + 1);
    const json_t *lists = json_object_get(json, "ranks");
    size_t at = 0;
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        size_t index;
        json_t *action;
        json_array_foreach(json_array_get(lists, (size_t)rank), index, action)
        {
            status = dp_action_from_json(action, &schedule->actions[at++], err);
            if (status != DP_OK) {
                subject->actions = true;
                return dp_fail_in(err, "rank %d, position %zu", rank, index);
            }
        }
        schedule->rank_begin[rank + 1] = at;
    }
    return DP_OK;
}

static dp_status read_head(const json_t *json, struct dp_schedule *schedule,
                           struct dp_json_subject *subject, struct dp_error *err)
{
    *subject = (struct dp_json_subject){.key = "schema", .entry = -1};
    const char *schema = json_string_value(json_object_get(json, "schema"));
    if (schema == NULL || strcmp(schema, "dp.schedule/1") != 0) {
        return dp_fail(err, DP_INVALID, "\"schema\" must be \"dp.schedule/1\"");
    }
    subject->key = "name";
    const char *name = json_string_value(json_object_get(json, "name"));
    if (name == NULL || name[0] == '\0' || !DP_COPY_TEXT(schedule->name, name)) {
        return dp_fail(err, DP_INVALID, "\"name\" must be a text of 1 to %d bytes",
                       DP_NAME_MAX - 1);
    }
    if (!dp_utf8_is_clean(name, strlen(name), "")) {
        return dp_fail(err, DP_INVALID, "\"name\" must hold no control characters");
    }
    const struct {
        const char *key;
        int32_t max, *size;
    } sizes[] = {{"pipeline", DP_PIPELINE_MAX, &schedule->pipeline},
                 {"microbatches", DP_MICROBATCHES_MAX, &schedule->microbatches},
                 {"stages", DP_STAGES_MAX, &schedule->stages}};
    dp_status status = DP_OK;
    for (size_t i = 0; i < DP_ARRAY_LENGTH(sizes) && status == DP_OK; i++) {
        int64_t number = 0;
        subject->key = sizes[i].key;
        status = read_number(json, sizes[i].key, 1, sizes[i].max, &number, err);
        *sizes[i].size = (int32_t)number;
    }
    return status;
}

dp_status dp_schedule_build_from_json(const json_t *json, struct dp_schedule *ret_schedule,
                                      struct dp_json_subject *ret_subject, struct dp_error *err)
{
    struct dp_schedule schedule = {0};
    dp_status status = read_head(json, &schedule, ret_subject, err);
    if (status == DP_OK) {
        status = read_placement(json, &schedule, ret_subject, err);
    }
    if (status == DP_OK) {
        status = read_ranks(json, &schedule, ret_subject, err);
    }
    if (status != DP_OK) {
        dp_schedule_deinit(&schedule);
        return status;
    }
    *ret_schedule = schedule;
    return DP_OK;
}

dp_status dp_schedule_from_json(const json_t *json, struct dp_schedule *ret_schedule,
                                struct dp_error *err)
{
    struct dp_schedule schedule = {0};
    struct dp_json_subject subject;
    dp_status status = dp_schedule_build_from_json(json, &schedule, &subject, err);
    if (status == DP_OK) {
        status = dp_schedule_validate(&schedule, err);
    }
    if (status != DP_OK) {
        dp_schedule_deinit(&schedule);
        return dp_fail_in(err, "schedule");
    }
    *ret_schedule = schedule;
    return DP_OK;
}
