// The form "dp.plan/1". Tables name each member once; reading and writing follow them.

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/plan.h"

typedef enum member_type { INT32, REAL, BOOL, NAME, OWNED_TEXT } member_type;

struct member {
    const char *key;
    member_type type;
    size_t offset;
};

#define PLAN(type, name)                                                                           \
    {                                                                                              \
#name, type, offsetof(struct dp_plan, name)                                                \
    }
#define RANK(type, name)                                                                           \
    {                                                                                              \
#name, type, offsetof(struct dp_plan_rank, name)                                           \
    }
#define CANDIDATE(type, name)                                                                      \
    {                                                                                              \
#name, type, offsetof(struct dp_plan_candidate, name)                                      \
    }

static const struct member plan_members[] = {
    PLAN(INT32, pipeline),         PLAN(INT32, expert),           PLAN(INT32, data),
    PLAN(INT32, microbatches),     PLAN(INT32, micro_batch_size), PLAN(NAME, schedule),
    PLAN(INT32, virtual_stages),   PLAN(INT32, stages),           PLAN(REAL, step_s),
    PLAN(REAL, compute_s),         PLAN(REAL, bubble_s),          PLAN(REAL, comm_s),
    PLAN(REAL, grad_sync_s),       PLAN(REAL, optimizer_s),       PLAN(REAL, tokens_per_s),
    PLAN(REAL, error_share),       PLAN(BOOL, cores_exceeded),    PLAN(OWNED_TEXT, provenance),
    PLAN(OWNED_TEXT, explanation),
};

static const struct member rank_members[] = {
    RANK(NAME, node),         RANK(INT32, slot),        RANK(REAL, busy_s),
    RANK(REAL, bubble_s),     RANK(INT32, peak_chunks), RANK(REAL, peak_activation_bytes),
    RANK(REAL, memory_bytes),
};

static const struct member candidate_members[] = {
    CANDIDATE(INT32, pipeline),
    CANDIDATE(INT32, expert),
    CANDIDATE(INT32, data),
    CANDIDATE(INT32, microbatches),
    CANDIDATE(INT32, micro_batch_size),
    CANDIDATE(NAME, schedule),
    CANDIDATE(INT32, virtual_stages),
    CANDIDATE(BOOL, legal),
    CANDIDATE(BOOL, chosen),
    CANDIDATE(REAL, step_s),
    CANDIDATE(REAL, memory_max_bytes),
    CANDIDATE(OWNED_TEXT, reason),
};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static json_t *member_to_json(const struct member *member, const void *object)
{
    const void *at = (const char *)object + member->offset;
    switch (member->type) {
    case INT32:
        return json_integer(*(const int32_t *)at);
    case REAL:
        return json_real(*(const double *)at);
    case BOOL:
        return json_boolean(*(const bool *)at);
    case NAME:
        return json_string(at);
    case OWNED_TEXT:
        break;
    }
    const char *text = *(char *const *)at;
    return json_string(text == NULL ? "" : text);
}

static void members_to_json(const struct member *members, size_t count, const void *object,
                            json_t *json)
{
    for (size_t i = 0; i < count; i++) {
        json_object_set_new(json, members[i].key, member_to_json(&members[i], object));
    }
}

json_t *dp_plan_to_json(const struct dp_plan *plan)
{
    json_t *json = json_object();
    json_object_set_new(json, "schema", json_string("dp.plan/1"));
    members_to_json(plan_members, COUNT(plan_members), plan, json);
    json_object_set_new(json, "schedule_hash", json_sprintf("0x%016" PRIx64, plan->schedule_hash));
    if (plan->schedule_json != NULL) {
        json_object_set_new(json, "schedule_json", json_string(plan->schedule_json));
    }
    json_t *layers = json_array();
    for (int32_t s = 0; s <= plan->stages; s++) {
        json_array_append_new(layers, json_integer(plan->layer_begin[s]));
    }
    json_object_set_new(json, "layer_begin", layers);
    json_t *ranks = json_array();
    for (int32_t i = 0; i < dp_plan_world(plan); i++) {
        json_t *rank = json_object();
        json_object_set_new(rank, "rank", json_integer(i));
        members_to_json(rank_members, COUNT(rank_members), &plan->ranks[i], rank);
        json_array_append_new(ranks, rank);
    }
    json_object_set_new(json, "ranks", ranks);
    json_t *candidates = json_array();
    for (size_t i = 0; i < plan->candidates_count; i++) {
        json_t *candidate = json_object();
        members_to_json(candidate_members, COUNT(candidate_members), &plan->candidates[i],
                        candidate);
        json_array_append_new(candidates, candidate);
    }
    json_object_set_new(json, "candidates", candidates);
    return json;
}

static bool member_from_json(const struct member *member, const json_t *value, void *object)
{
    void *at = (char *)object + member->offset;
    switch (member->type) {
    case INT32:
        if (!json_is_integer(value) || json_integer_value(value) < INT32_MIN ||
            json_integer_value(value) > INT32_MAX) {
            return false;
        }
        *(int32_t *)at = (int32_t)json_integer_value(value);
        return true;
    case REAL:
        *(double *)at = json_number_value(value);
        return json_is_number(value);
    case BOOL:
        *(bool *)at = json_is_true(value);
        return json_is_boolean(value);
    case NAME:
        return json_is_string(value) && dp_copy_text(at, DP_NAME_MAX, json_string_value(value));
    case OWNED_TEXT:
        break;
    }
    if (!json_is_string(value)) {
        return false;
    }
    *(char **)at = dp_strdup(json_string_value(value));
    return true;
}

static dp_status members_from_json(const struct member *members, size_t count, const json_t *json,
                                   void *object, struct dp_error *err)
{
    for (size_t i = 0; i < count; i++) {
        if (!member_from_json(&members[i], json_object_get(json, members[i].key), object)) {
            return dp_fail(err, DP_INVALID, "plan: \"%s\" is missing or not what it must be",
                           members[i].key);
        }
    }
    return DP_OK;
}

static dp_status layers_from_json(const json_t *json, struct dp_plan *plan, struct dp_error *err)
{
    const json_t *layers = json_object_get(json, "layer_begin");
    if (plan->stages < 1 || plan->stages > DP_STAGES_MAX ||
        json_array_size(layers) != (size_t)plan->stages + 1) {
        return dp_fail(err, DP_INVALID, "plan: \"layer_begin\" needs one entry more than stages");
    }
    plan->layer_begin = dp_new_array(int32_t, (size_t)plan->stages + 1);
    for (int32_t s = 0; s <= plan->stages; s++) {
        const json_t *value = json_array_get(layers, (size_t)s);
        json_int_t layer = json_integer_value(value);
        if (!json_is_integer(value) || layer < 0 || layer > DP_LAYERS_MAX) {
            return dp_fail(err, DP_INVALID, "plan: \"layer_begin\"[%d] is no layer", s);
        }
        plan->layer_begin[s] = (int32_t)layer;
    }
    return DP_OK;
}

static dp_status ranks_from_json(const json_t *json, struct dp_plan *plan, struct dp_error *err)
{
    const json_t *ranks = json_object_get(json, "ranks");
    int64_t world = (int64_t)plan->pipeline * plan->data;
    if (world < 1 || world > DP_RANKS_MAX || json_array_size(ranks) != (size_t)world) {
        return dp_fail(err, DP_INVALID, "plan: \"ranks\" needs pipeline x data entries");
    }
    plan->ranks = dp_new_array(struct dp_plan_rank, (size_t)world);
    dp_status status = DP_OK;
    for (size_t i = 0; status == DP_OK && i < (size_t)world; i++) {
        status = members_from_json(rank_members, COUNT(rank_members), json_array_get(ranks, i),
                                   &plan->ranks[i], err);
    }
    return status;
}

static dp_status candidates_from_json(const json_t *json, struct dp_plan *plan,
                                      struct dp_error *err)
{
    const json_t *candidates = json_object_get(json, "candidates");
    size_t count = json_array_size(candidates);
    plan->candidates = dp_new_array(struct dp_plan_candidate, count);
    plan->candidates_count = count;
    dp_status status = DP_OK;
    for (size_t i = 0; status == DP_OK && i < count; i++) {
        status = members_from_json(candidate_members, COUNT(candidate_members),
                                   json_array_get(candidates, i), &plan->candidates[i], err);
    }
    return status;
}

static dp_status hash_from_json(const json_t *json, struct dp_plan *plan, struct dp_error *err)
{
    const char *text = json_string_value(json_object_get(json, "schedule_hash"));
    char *end = NULL;
    plan->schedule_hash = text == NULL ? 0 : strtoull(text, &end, 16);
    if (text == NULL || strncmp(text, "0x", 2) != 0 || strlen(text) != 18 || *end != '\0') {
        return dp_fail(err, DP_INVALID,
                       "plan: \"schedule_hash\" needs 0x and 16 hexadecimal digits");
    }
    const json_t *document = json_object_get(json, "schedule_json");
    if (document != NULL && !json_is_string(document)) {
        return dp_fail(err, DP_INVALID, "plan: \"schedule_json\" must be a string");
    }
    plan->schedule_json = document == NULL ? NULL : dp_strdup(json_string_value(document));
    return DP_OK;
}

dp_status dp_plan_from_json(const json_t *json, struct dp_plan *ret_plan, struct dp_error *err)
{
    const char *schema = json_string_value(json_object_get(json, "schema"));
    if (schema == NULL || strcmp(schema, "dp.plan/1") != 0) {
        return dp_fail(err, DP_INVALID, "plan: the schema is \"%s\", not \"dp.plan/1\"",
                       schema == NULL ? "" : schema);
    }
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = {0};
    dp_status status = members_from_json(plan_members, COUNT(plan_members), json, &plan, err);
    status = status == DP_OK ? hash_from_json(json, &plan, err) : status;
    status = status == DP_OK ? layers_from_json(json, &plan, err) : status;
    status = status == DP_OK ? ranks_from_json(json, &plan, err) : status;
    status = status == DP_OK ? candidates_from_json(json, &plan, err) : status;
    status = status == DP_OK ? dp_plan_check(&plan, err) : status;
    if (status != DP_OK) {
        return status;
    }
    *ret_plan = plan;
    plan = (struct dp_plan){0};
    return DP_OK;
}
