// Reads "dp.plan/1": the form that dp_plan_to_json writes, and the flat one of older versions.

#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "plan_members.h"

static dp_status check_stages(const struct dp_plan *plan, const json_t *list, size_t more,
                              const char *key, struct dp_error *err)
{
    if (plan->stages < 1 || plan->stages > DP_STAGES_MAX ||
        json_array_size(list) != (size_t)plan->stages + more) {
        return dp_fail(err, DP_INVALID, "plan: \"%s\" needs one entry %s", key,
                       more == 0 ? "for each stage" : "more than stages");
    }
    return DP_OK;
}

static dp_status check_layer(const json_t *value, const char *key, int32_t stage,
                             struct dp_error *err)
{
    json_int_t layer = json_integer_value(value);
    if (!json_is_integer(value) || layer < 0 || layer > DP_LAYERS_MAX) {
        return dp_fail(err, DP_INVALID, "plan: \"%s\"[%d] is no layer", key, stage);
    }
    return DP_OK;
}

// The first layer of each stage, one entry more than stages.
static dp_status read_layer_begin(const json_t *json, struct dp_plan *plan, struct dp_error *err)
{
    const json_t *layers = json_object_get(json, "layer_begin");
    dp_status status = check_stages(plan, layers, 1, "layer_begin", err);
    if (status != DP_OK) {
        return status;
    }
    plan->layer_begin = dp_new_array(int32_t, (size_t)plan->stages + 1);
    for (int32_t s = 0; status == DP_OK && s <= plan->stages; s++) {
        const json_t *value = json_array_get(layers, (size_t)s);
        status = check_layer(value, "layer_begin", s, err);
        plan->layer_begin[s] = status == DP_OK ? (int32_t)json_integer_value(value) : 0;
    }
    return status;
}

static dp_status read_layers_per_stage(const json_t *json, struct dp_plan *plan,
                                       struct dp_error *err)
{
    const json_t *layers = json_object_get(json, "layers_per_stage");
    dp_status status = check_stages(plan, layers, 0, "layers_per_stage", err);
    if (status != DP_OK) {
        return status;
    }
    plan->layer_begin = dp_new_array(int32_t, (size_t)plan->stages + 1);
    for (int32_t s = 0; status == DP_OK && s < plan->stages; s++) {
        const json_t *value = json_array_get(layers, (size_t)s);
        status = check_layer(value, "layers_per_stage", s, err);
        plan->layer_begin[s + 1] =
            plan->layer_begin[s] + (status == DP_OK ? (int32_t)json_integer_value(value) : 0);
    }
    return status;
}

static dp_status read_ranks(const json_t *json, struct dp_plan *plan, struct dp_error *err)
{
    const json_t *ranks = json_object_get(json, "ranks");
    int64_t replicas = (int64_t)plan->pipeline * plan->data;
    int64_t shards =
        (int64_t)(plan->tensor > 1 ? plan->tensor : 1) * (plan->context > 1 ? plan->context : 1);
    int64_t world = replicas > 0 && shards <= DP_RANKS_MAX ? replicas * shards : 0;
    if (plan->pipeline < 1 || replicas > DP_RANKS_MAX || world < 1 || world > DP_RANKS_MAX ||
        json_array_size(ranks) != (size_t)world) {
        return dp_fail(err, DP_INVALID,
                       "plan: \"ranks\" needs pipeline x data x tensor x context entries");
    }
    plan->ranks = dp_new_array(struct dp_plan_rank, (size_t)world);
    dp_status status = DP_OK;
    for (size_t i = 0; status == DP_OK && i < (size_t)world; i++) {
        status =
            dp_members_read(&dp_plan_rank_members, json_array_get(ranks, i), &plan->ranks[i], err);
    }
    return status;
}

static dp_status read_order(const json_t *json, uint64_t *ret_hash, char **ret_document,
                            struct dp_error *err)
{
    const char *text = json_string_value(json_object_get(json, "schedule_hash"));
    char *end = NULL;
    uint64_t hash = text == NULL ? 0 : strtoull(text, &end, 16);
    if (text == NULL || strncmp(text, "0x", 2) != 0 || strlen(text) != 18 || *end != '\0') {
        return dp_fail(err, DP_INVALID,
                       "plan: \"schedule_hash\" needs 0x and 16 hexadecimal digits");
    }
    const json_t *document = json_object_get(json, "schedule_json");
    if (document != NULL && !json_is_string(document)) {
        return dp_fail(err, DP_INVALID, "plan: \"schedule_json\" must be a string");
    }
    *ret_hash = hash;
    *ret_document = document == NULL ? NULL : dp_strdup(json_string_value(document));
    return DP_OK;
}

// Only plans whose replicas differ have them.
static dp_status read_replicas(const json_t *json, struct dp_plan *plan, struct dp_error *err)
{
    const json_t *list = json_object_get(json, "replicas");
    if (list == NULL) {
        return DP_OK;
    }
    if (plan->data < 1 || plan->data > DP_RANKS_MAX ||
        json_array_size(list) != (size_t)plan->data) {
        return dp_fail(err, DP_INVALID, "plan: \"replicas\" needs an entry for each replica");
    }
    plan->replicas = dp_new_array(struct dp_plan_replica, (size_t)plan->data);
    dp_status status = DP_OK;
    for (int32_t d = 0; status == DP_OK && d < plan->data; d++) {
        const json_t *row = json_array_get(list, (size_t)d);
        const json_t *count = json_object_get(row, "microbatches");
        json_int_t value = json_integer_value(count);
        if (!json_is_integer(count) || value < 1 || value > DP_MICROBATCHES_MAX) {
            return dp_fail(err, DP_INVALID,
                           "plan: \"replicas\"[%d].\"microbatches\" must be 1 to %d", d,
                           DP_MICROBATCHES_MAX);
        }
        plan->replicas[d].microbatches = (int32_t)value;
        status = read_order(row, &plan->replicas[d].schedule_hash, &plan->replicas[d].schedule_json,
                            err);
    }
    return status;
}

static dp_status new_candidates(const json_t *list, size_t more, struct dp_plan *plan,
                                struct dp_error *err)
{
    if (!json_is_array(list) || json_array_size(list) + more > DP_CANDIDATES_MAX) {
        return dp_fail(err, DP_INVALID, "plan: candidates must be a list of at most %d",
                       DP_CANDIDATES_MAX);
    }
    plan->candidates_count = json_array_size(list) + more;
    plan->candidates = dp_new_array(struct dp_plan_candidate, plan->candidates_count);
    return DP_OK;
}

// The chosen one is written once, as "chosen".
static struct dp_plan_candidate chosen_candidate(const struct dp_plan *plan)
{
    struct dp_plan_candidate candidate = {
        .pipeline = plan->pipeline,
        .expert = plan->expert,
        .data = plan->data,
        .microbatches = plan->microbatches,
        .micro_batch_size = plan->micro_batch_size,
        .virtual_stages = plan->virtual_stages,
        .tensor = plan->tensor,
        .context = plan->context,
        .expert_tensor = plan->expert_tensor,
        .recompute = plan->recompute,
        .legal = true,
        .chosen = true,
        .step_s = plan->step_s,
        .reason = dp_strdup("chosen"),
    };
    DP_COPY_TEXT(candidate.schedule, plan->schedule);
    int32_t fullest = dp_plan_fullest_position(plan);
    candidate.memory_position = fullest;
    candidate.memory_max_bytes = dp_plan_position_bytes(plan, fullest);
    if (plan->positions != NULL) {
        const struct dp_plan_position *critical = &plan->positions[dp_plan_critical_position(plan)];
        candidate.compute_s = critical->compute_s;
        candidate.bubble_s = critical->bubble_s;
        candidate.hop_s = critical->hop_s;
        candidate.wait_s = critical->wait_s;
        candidate.exchange_s = critical->exchange_s;
        candidate.gradient_s = critical->gradient_s;
        candidate.optimizer_s = critical->optimizer_s;
        candidate.memory_limit_bytes = plan->positions[fullest].memory_limit_bytes;
    }
    return candidate;
}

// As newer plans have it: first, with the figures that the plan itself has of it.
static dp_status put_chosen_first(struct dp_plan *plan, struct dp_error *err)
{
    size_t count = 0, at = 0;
    for (size_t i = 0; i < plan->candidates_count; i++) {
        count += plan->candidates[i].chosen;
        at = plan->candidates[i].chosen ? i : at;
    }
    if (count != 1) {
        return dp_fail(err, DP_INVALID, "plan: %zu candidates are the chosen one instead of one",
                       count);
    }
    free(plan->candidates[at].reason);
    memmove(plan->candidates + 1, plan->candidates, at * sizeof plan->candidates[0]);
    plan->candidates[0] = chosen_candidate(plan);
    return DP_OK;
}

static dp_status read_flat(const json_t *json, struct dp_plan *plan, struct dp_error *err)
{
    dp_status status = dp_members_read(&dp_plan_flat_members, json, plan, err);
    status = status == DP_OK ? read_order(json, &plan->schedule_hash, &plan->schedule_json, err)
                             : status;
    status = status == DP_OK ? read_layer_begin(json, plan, err) : status;
    status = status == DP_OK ? read_ranks(json, plan, err) : status;
    const json_t *list = json_object_get(json, "candidates");
    status = status == DP_OK ? new_candidates(list, 0, plan, err) : status;
    for (size_t i = 0; status == DP_OK && i < plan->candidates_count; i++) {
        status = dp_members_read(&dp_plan_flat_candidate_members, json_array_get(list, i),
                                 &plan->candidates[i], err);
    }
    return status == DP_OK ? put_chosen_first(plan, err) : status;
}

static dp_status read_positions(const json_t *chosen, struct dp_plan *plan, struct dp_error *err)
{
    const json_t *list = json_object_get(chosen, "per_rank");
    if (list == NULL) {
        return DP_OK;
    }
    if (json_array_size(list) != (size_t)plan->pipeline) {
        return dp_fail(err, DP_INVALID, "plan: \"per_rank\" needs an entry for each pipeline rank");
    }
    plan->positions = dp_new_array(struct dp_plan_position, (size_t)plan->pipeline);
    dp_status status = DP_OK;
    for (size_t i = 0; status == DP_OK && i < (size_t)plan->pipeline; i++) {
        const json_t *row = json_array_get(list, i);
        struct dp_plan_position *position = &plan->positions[i];
        const json_t *memory = json_object_get(row, "memory");
        status = dp_members_read(&dp_plan_position_members, row, position, err);
        status =
            status == DP_OK ? dp_members_read(&dp_plan_held_members, row, position, err) : status;
        status = status == DP_OK
                     ? dp_members_read(&dp_plan_memory_members, memory, &position->memory, err)
                     : status;
    }
    return status;
}

// Plans of older versions do not know it.
static dp_status read_baseline(const json_t *chosen, struct dp_plan *plan, struct dp_error *err)
{
    const json_t *bytes = json_object_get(json_object_get(chosen, "recovered"), "memory_bytes");
    if (bytes != NULL && !json_is_number(bytes)) {
        return dp_fail(err, DP_INVALID, "plan: \"recovered\".\"memory_bytes\" must be a number");
    }
    plan->baseline_memory_bytes = json_number_value(bytes);
    return DP_OK;
}

static dp_status read_runners_up(const json_t *json, struct dp_plan *plan, struct dp_error *err)
{
    const json_t *list = json_object_get(json, "runners_up");
    dp_status status = new_candidates(list, 1, plan, err);
    if (status != DP_OK) {
        return status;
    }
    plan->candidates[0] = chosen_candidate(plan);
    for (size_t i = 1; status == DP_OK && i < plan->candidates_count; i++) {
        const json_t *row = json_array_get(list, i - 1);
        status = dp_members_read(&dp_plan_candidate_members, row, &plan->candidates[i], err);
        if (status == DP_OK && plan->candidates[i].legal) {
            status =
                dp_members_read(&dp_plan_candidate_figure_members, row, &plan->candidates[i], err);
        }
    }
    return status;
}

static dp_status read_gains(const json_t *json, struct dp_plan *plan, struct dp_error *err)
{
    const json_t *list = json_object_get(json, "gains");
    if (!json_is_array(list) || json_array_size(list) > DP_PLAN_GAINS_MAX) {
        return dp_fail(err, DP_INVALID, "plan: \"gains\" must be a list of at most %d",
                       DP_PLAN_GAINS_MAX);
    }
    dp_status status = DP_OK;
    for (size_t i = 0; status == DP_OK && i < json_array_size(list); i++) {
        status =
            dp_members_read(&dp_plan_gain_members, json_array_get(list, i), &plan->gains[i], err);
        plan->gains_count++;
    }
    return status;
}

// Texts of several lines, each a string or {"figure", "source"}.
static dp_status read_lines(const json_t *json, const char *key, char **ret_text,
                            struct dp_error *err)
{
    const json_t *list = json_object_get(json, key);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_buf_puts(&text, "");
    bool legal = json_is_array(list);
    for (size_t i = 0; legal && i < json_array_size(list); i++) {
        const json_t *row = json_array_get(list, i);
        const char *line = json_string_value(row), *figure = "";
        if (json_is_object(row)) {
            figure = json_string_value(json_object_get(row, "figure"));
            line = json_string_value(json_object_get(row, "source"));
        }
        legal = line != NULL && figure != NULL;
        if (legal) {
            dp_buf_printf(&text, "%s%s%s\n", figure, figure[0] != '\0' ? ": " : "", line);
        }
    }
    if (!legal) {
        return dp_fail(err, DP_INVALID, "plan: \"%s\" must be a list of lines", key);
    }
    *ret_text = dp_buf_take(&text);
    return DP_OK;
}

static dp_status read_head(const json_t *json, struct dp_plan *plan, struct dp_error *err)
{
    const struct dp_member members[] = {
        {"model", DP_MEMBER_NAME, offsetof(struct dp_plan, model)},
        {"device", DP_MEMBER_NAME, offsetof(struct dp_plan, device)},
        {"error_bar", DP_MEMBER_REAL, offsetof(struct dp_plan, error_share)},
        {"search_s", DP_MEMBER_REAL, offsetof(struct dp_plan, search_s)},
    };
    const struct dp_members head = {members, sizeof(members) / sizeof(members[0])};
    const json_t *searched = json_object_get(json, "searched");
    if (!json_is_integer(searched) || json_integer_value(searched) < 0) {
        return dp_fail(err, DP_INVALID, "plan: \"searched\" must be a count");
    }
    plan->searched = json_integer_value(searched);
    // Plans of older versions do not know it.
    const json_t *ranking = json_object_get(json, "ranking_error_bar");
    if (ranking != NULL && !json_is_number(ranking)) {
        return dp_fail(err, DP_INVALID, "plan: \"ranking_error_bar\" must be a number");
    }
    plan->ranking_share = json_number_value(ranking);
    return dp_members_read(&head, json, plan, err);
}

static dp_status read_nested(const json_t *json, const json_t *chosen, struct dp_plan *plan,
                             struct dp_error *err)
{
    dp_status status = read_head(json, plan, err);
    status = status == DP_OK ? dp_members_read(&dp_plan_size_members, chosen, plan, err) : status;
    status = status == DP_OK ? dp_members_read(&dp_plan_figure_members, chosen, plan, err) : status;
    status = status == DP_OK ? read_baseline(chosen, plan, err) : status;
    const json_t *parts = json_object_get(chosen, "step_parts");
    status = status == DP_OK ? dp_members_read(&dp_plan_part_members, parts, plan, err) : status;
    status = status == DP_OK ? read_order(chosen, &plan->schedule_hash, &plan->schedule_json, err)
                             : status;
    status = status == DP_OK ? read_replicas(chosen, plan, err) : status;
    status = status == DP_OK ? read_layers_per_stage(chosen, plan, err) : status;
    status = status == DP_OK ? read_ranks(json, plan, err) : status;
    status = status == DP_OK ? read_positions(chosen, plan, err) : status;
    status = status == DP_OK ? read_runners_up(json, plan, err) : status;
    status = status == DP_OK ? read_gains(json, plan, err) : status;
    status = status == DP_OK ? read_lines(json, "warnings", &plan->warnings, err) : status;
    status = status == DP_OK ? read_lines(json, "provenance", &plan->provenance, err) : status;
    return status == DP_OK ? read_lines(json, "explanation", &plan->explanation, err) : status;
}

dp_status dp_plan_from_json(const json_t *json, struct dp_plan *ret_plan, struct dp_error *err)
{
    const char *schema = json_string_value(json_object_get(json, "schema"));
    if (schema == NULL || strcmp(schema, "dp.plan/1") != 0) {
        return dp_fail(err, DP_INVALID, "plan: the schema is \"%s\", not \"dp.plan/1\"",
                       schema == NULL ? "" : schema);
    }
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = {0};
    const json_t *chosen = json_object_get(json, "chosen");
    dp_status status =
        chosen == NULL ? read_flat(json, &plan, err) : read_nested(json, chosen, &plan, err);
    status = status == DP_OK ? dp_plan_check(&plan, err) : status;
    if (status != DP_OK) {
        return status;
    }
    *ret_plan = plan;
    plan = (struct dp_plan){0};
    return DP_OK;
}
