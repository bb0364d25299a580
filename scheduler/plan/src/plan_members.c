#include "plan_members.h"

#include "dp/alloc.h"

#define AT(of, type, key, member)                                                                  \
    {                                                                                              \
        key, DP_MEMBER_##type, offsetof(struct of, member)                                         \
    }
#define TABLE(name, items) const struct dp_members name = {items, sizeof(items) / sizeof(items[0])}

static const struct dp_member sizes[] = {
    AT(dp_plan, INT32, "pipeline", pipeline),
    AT(dp_plan, INT32, "expert", expert),
    AT(dp_plan, INT32, "data", data),
    AT(dp_plan, INT32, "tensor", tensor),
    AT(dp_plan, INT32, "context", context),
    AT(dp_plan, INT32, "expert_tensor", expert_tensor),
    AT(dp_plan, NAME, "schedule", schedule),
    AT(dp_plan, INT32, "virtual", virtual_stages),
    AT(dp_plan, INT32, "microbatches", microbatches),
    AT(dp_plan, INT32, "micro_batch_size", micro_batch_size),
    AT(dp_plan, INT32, "stages", stages),
    AT(dp_plan, BOOL, "sequence_parallel", sequence_parallel),
    AT(dp_plan, FORMAT, "precision", format),
    AT(dp_plan, SHARD, "shard", shard),
    AT(dp_plan, RECOMPUTE, "recompute", recompute),
    AT(dp_plan, INT32, "comm_units", comm_units),
    AT(dp_plan, REAL, "imbalance", imbalance),
};
TABLE(dp_plan_size_members, sizes);

static const struct dp_member figures[] = {
    AT(dp_plan, REAL, "step_time_s", step_s),
    AT(dp_plan, REAL, "tokens_per_s", tokens_per_s),
    AT(dp_plan, REAL, "mfu_causal", mfu_causal),
    AT(dp_plan, REAL, "mfu_noncausal", mfu_noncausal),
    AT(dp_plan, REAL, "flops_per_token_causal", flops_causal),
    AT(dp_plan, REAL, "flops_per_token_noncausal", flops_noncausal),
    AT(dp_plan, REAL, "baseline_step_time_s", baseline_step_s),
    AT(dp_plan, BOOL, "cores_exceeded", cores_exceeded),
};
TABLE(dp_plan_figure_members, figures);

static const struct dp_member parts[] = {
    AT(dp_plan, REAL, "compute_s", compute_s),     AT(dp_plan, REAL, "bubble_s", bubble_s),
    AT(dp_plan, REAL, "comm_s", comm_s),           AT(dp_plan, REAL, "grad_sync_s", grad_sync_s),
    AT(dp_plan, REAL, "optimizer_s", optimizer_s),
};
TABLE(dp_plan_part_members, parts);

static const struct dp_member position[] = {
    AT(dp_plan_position, REAL, "forward_s", forward_s),
    AT(dp_plan_position, REAL, "backward_full_s", backward_s),
    AT(dp_plan_position, REAL, "input_s", input_s),
    AT(dp_plan_position, REAL, "weight_alone_s", weight_s),
    AT(dp_plan_position, REAL, "backward_weight_s", backward_weight_s),
    AT(dp_plan_position, REAL, "overlapped_s", overlapped_s),
    AT(dp_plan_position, REAL, "bubble_s", bubble_s),
    AT(dp_plan_position, REAL, "gradient_s", gradient_s),
    AT(dp_plan_position, REAL, "update_s", optimizer_s),
    AT(dp_plan_position, REAL, "hop_s", hop_s),
    AT(dp_plan_position, REAL, "wait_s", wait_s),
    AT(dp_plan_position, REAL, "exchange_s", exchange_s),
    AT(dp_plan_position, REAL, "compute_s", compute_s),
    AT(dp_plan_position, REAL, "hidden_s", hidden_s),
};
TABLE(dp_plan_position_members, position);

static const struct dp_member held[] = {
    AT(dp_plan_position, REAL, "memory_at_s", memory_at_s),
    AT(dp_plan_position, REAL, "memory_limit_bytes", memory_limit_bytes),
    AT(dp_plan_position, REAL, "dense_parameters", held.dense),
    AT(dp_plan_position, REAL, "expert_parameters", held.experts),
};
TABLE(dp_plan_held_members, held);

static const struct dp_member memory[] = {
    AT(dp_memory_parts, REAL, "weights_bytes", weights),
    AT(dp_memory_parts, REAL, "gradients_bytes", gradients),
    AT(dp_memory_parts, REAL, "optimizer_bytes", optimizer),
    AT(dp_memory_parts, REAL, "activations_bytes", activations),
    AT(dp_memory_parts, REAL, "deferred_bytes", deferred),
    AT(dp_memory_parts, REAL, "transient_bytes", transient),
    AT(dp_memory_parts, REAL, "exchange_bytes", exchange),
    AT(dp_memory_parts, REAL, "runtime_bytes", runtime),
};
TABLE(dp_plan_memory_members, memory);

static const struct dp_member rank[] = {
    AT(dp_plan_rank, NAME, "node", node),
    AT(dp_plan_rank, INT32, "slot", slot),
    AT(dp_plan_rank, REAL, "busy_s", busy_s),
    AT(dp_plan_rank, REAL, "bubble_s", bubble_s),
    AT(dp_plan_rank, INT32, "peak_chunks", peak_chunks),
    AT(dp_plan_rank, REAL, "peak_activation_bytes", peak_activation_bytes),
    AT(dp_plan_rank, REAL, "memory_bytes", memory_bytes),
};
TABLE(dp_plan_rank_members, rank);

static const struct dp_member gain[] = {
    AT(dp_plan_gain, NAME, "resource", resource),
    AT(dp_plan_gain, REAL, "more_share", more_share),
    AT(dp_plan_gain, REAL, "step_time_s", step_s),
};
TABLE(dp_plan_gain_members, gain);

static const struct dp_member candidate[] = {
    AT(dp_plan_candidate, NAME, "schedule", schedule),
    AT(dp_plan_candidate, INT32, "virtual", virtual_stages),
    AT(dp_plan_candidate, INT32, "pipeline", pipeline),
    AT(dp_plan_candidate, INT32, "expert", expert),
    AT(dp_plan_candidate, INT32, "data", data),
    AT(dp_plan_candidate, INT32, "tensor", tensor),
    AT(dp_plan_candidate, INT32, "context", context),
    AT(dp_plan_candidate, INT32, "expert_tensor", expert_tensor),
    AT(dp_plan_candidate, INT32, "microbatches", microbatches),
    AT(dp_plan_candidate, INT32, "micro_batch_size", micro_batch_size),
    AT(dp_plan_candidate, RECOMPUTE, "recompute", recompute),
    AT(dp_plan_candidate, BOOL, "legal", legal),
    AT(dp_plan_candidate, BOOL, "tied", tied),
    AT(dp_plan_candidate, OWNED_TEXT, "reason", reason),
};
TABLE(dp_plan_candidate_members, candidate);

static const struct dp_member candidate_figures[] = {
    AT(dp_plan_candidate, REAL, "step_time_s", step_s),
    AT(dp_plan_candidate, REAL, "compute_s", compute_s),
    AT(dp_plan_candidate, REAL, "bubble_s", bubble_s),
    AT(dp_plan_candidate, REAL, "hop_s", hop_s),
    AT(dp_plan_candidate, REAL, "wait_s", wait_s),
    AT(dp_plan_candidate, REAL, "exchange_s", exchange_s),
    AT(dp_plan_candidate, REAL, "gradient_s", gradient_s),
    AT(dp_plan_candidate, REAL, "optimizer_s", optimizer_s),
    AT(dp_plan_candidate, REAL, "memory_bytes", memory_max_bytes),
    AT(dp_plan_candidate, REAL, "memory_limit_bytes", memory_limit_bytes),
    AT(dp_plan_candidate, INT32, "memory_rank", memory_position),
};
TABLE(dp_plan_candidate_figure_members, candidate_figures);

static const struct dp_member flat[] = {
    AT(dp_plan, INT32, "pipeline", pipeline),
    AT(dp_plan, INT32, "expert", expert),
    AT(dp_plan, INT32, "data", data),
    AT(dp_plan, INT32, "microbatches", microbatches),
    AT(dp_plan, INT32, "micro_batch_size", micro_batch_size),
    AT(dp_plan, NAME, "schedule", schedule),
    AT(dp_plan, INT32, "virtual_stages", virtual_stages),
    AT(dp_plan, INT32, "stages", stages),
    AT(dp_plan, REAL, "step_s", step_s),
    AT(dp_plan, REAL, "compute_s", compute_s),
    AT(dp_plan, REAL, "bubble_s", bubble_s),
    AT(dp_plan, REAL, "comm_s", comm_s),
    AT(dp_plan, REAL, "grad_sync_s", grad_sync_s),
    AT(dp_plan, REAL, "optimizer_s", optimizer_s),
    AT(dp_plan, REAL, "tokens_per_s", tokens_per_s),
    AT(dp_plan, REAL, "error_share", error_share),
    AT(dp_plan, BOOL, "cores_exceeded", cores_exceeded),
    AT(dp_plan, OWNED_TEXT, "provenance", provenance),
    AT(dp_plan, OWNED_TEXT, "explanation", explanation),
};
TABLE(dp_plan_flat_members, flat);

static const struct dp_member flat_candidate[] = {
    AT(dp_plan_candidate, INT32, "pipeline", pipeline),
    AT(dp_plan_candidate, INT32, "expert", expert),
    AT(dp_plan_candidate, INT32, "data", data),
    AT(dp_plan_candidate, INT32, "microbatches", microbatches),
    AT(dp_plan_candidate, INT32, "micro_batch_size", micro_batch_size),
    AT(dp_plan_candidate, NAME, "schedule", schedule),
    AT(dp_plan_candidate, INT32, "virtual_stages", virtual_stages),
    AT(dp_plan_candidate, BOOL, "legal", legal),
    AT(dp_plan_candidate, BOOL, "chosen", chosen),
    AT(dp_plan_candidate, REAL, "step_s", step_s),
    AT(dp_plan_candidate, REAL, "memory_max_bytes", memory_max_bytes),
    AT(dp_plan_candidate, OWNED_TEXT, "reason", reason),
};
TABLE(dp_plan_flat_candidate_members, flat_candidate);

static json_t *member_to_json(const struct dp_member *member, const void *object)
{
    const void *at = (const char *)object + member->offset;
    char text[DP_NAME_MAX];
    switch (member->type) {
    case DP_MEMBER_INT32:
        return json_integer(*(const int32_t *)at);
    case DP_MEMBER_REAL:
        return json_real(*(const double *)at);
    case DP_MEMBER_BOOL:
        return json_boolean(*(const bool *)at);
    case DP_MEMBER_NAME:
        return json_string(at);
    case DP_MEMBER_FORMAT:
        return json_string(dp_format_text(*(const dp_format *)at));
    case DP_MEMBER_SHARD:
        return json_string(dp_shard_text(*(const dp_shard *)at));
    case DP_MEMBER_RECOMPUTE:
        dp_recompute_text(*(const uint32_t *)at, text);
        return json_string(text);
    case DP_MEMBER_OWNED_TEXT:
        break;
    }
    const char *owned = *(char *const *)at;
    return json_string(owned == NULL ? "" : owned);
}

void dp_members_write(const struct dp_members *members, const void *object, json_t *json)
{
    for (size_t i = 0; i < members->count; i++) {
        json_object_set_new(json, members->items[i].key,
                            member_to_json(&members->items[i], object));
    }
}

static bool int32_from_json(const json_t *value, int32_t *ret_value)
{
    if (!json_is_integer(value) || json_integer_value(value) < INT32_MIN ||
        json_integer_value(value) > INT32_MAX) {
        return false;
    }
    *ret_value = (int32_t)json_integer_value(value);
    return true;
}

static bool member_from_json(const struct dp_member *member, const json_t *value, void *object)
{
    void *at = (char *)object + member->offset;
    const char *text = json_string_value(value);
    switch (member->type) {
    case DP_MEMBER_INT32:
        return int32_from_json(value, at);
    case DP_MEMBER_REAL:
        *(double *)at = json_number_value(value);
        return json_is_number(value);
    case DP_MEMBER_BOOL:
        *(bool *)at = json_is_true(value);
        return json_is_boolean(value);
    case DP_MEMBER_NAME:
        return text != NULL && dp_copy_text(at, DP_NAME_MAX, text);
    case DP_MEMBER_FORMAT:
        return text != NULL && dp_format_parse(text, at, NULL) == DP_OK;
    case DP_MEMBER_SHARD:
        return text != NULL && dp_shard_parse(text, at, NULL) == DP_OK;
    case DP_MEMBER_RECOMPUTE:
        return text != NULL && dp_recompute_parse(text, at, NULL) == DP_OK;
    case DP_MEMBER_OWNED_TEXT:
        break;
    }
    if (text == NULL) {
        return false;
    }
    *(char **)at = dp_strdup(text);
    return true;
}

dp_status dp_members_read(const struct dp_members *members, const json_t *json, void *object,
                          struct dp_error *err)
{
    for (size_t i = 0; i < members->count; i++) {
        const char *key = members->items[i].key;
        if (!member_from_json(&members->items[i], json_object_get(json, key), object)) {
            return dp_fail(err, DP_INVALID, "plan: \"%s\" is missing or not what it must be", key);
        }
    }
    return DP_OK;
}
