// Writes the form "dp.plan/1". What follows from other figures is written for readers and ignored
// by dp_plan_from_json.

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/plan_survival.h"
#include "plan_members.h"

static json_t *lines_json(const char *text)
{
    json_t *lines = json_array();
    while (text != NULL && *text != '\0') {
        size_t length = strcspn(text, "\n");
        json_array_append_new(lines, json_stringn(text, length));
        text += length + (text[length] == '\n');
    }
    return lines;
}

// Lines of the form "figure: what it rests on".
static json_t *provenance_json(const char *text)
{
    json_t *rows = json_array();
    while (text != NULL && *text != '\0') {
        size_t length = strcspn(text, "\n");
        const char *colon = memmem(text, length, ": ", 2);
        size_t name = colon == NULL ? 0 : (size_t)(colon - text);
        size_t skipped = colon == NULL ? 0 : name + 2;
        json_array_append_new(rows,
                              json_pack("{s:o, s:o}", "figure", json_stringn(text, name), "source",
                                        json_stringn(text + skipped, length - skipped)));
        text += length + (text[length] == '\n');
    }
    return rows;
}

static void set(json_t *json, const char *key, double value)
{
    json_object_set_new(json, key, json_real(value));
}

static json_t *layers_json(const struct dp_plan *plan)
{
    json_t *layers = json_array();
    for (int32_t s = 0; s < plan->stages; s++) {
        json_array_append_new(layers,
                              json_integer(plan->layer_begin[s + 1] - plan->layer_begin[s]));
    }
    return layers;
}

// Gradients of inputs and of weights, wherever they are computed outside of pairs, and all that
// follows the last action.
static void add_sums(const struct dp_plan_position *position, json_t *json)
{
    set(json, "backward_input_s",
        position->backward_s - position->backward_weight_s + position->input_s);
    set(json, "weight_s", position->backward_weight_s + position->weight_s);
    set(json, "optimizer_s", position->gradient_s + position->optimizer_s);
}

static json_t *memory_json(const struct dp_plan_position *position)
{
    json_t *memory = json_object();
    dp_members_write(&dp_plan_memory_members, &position->memory, memory);
    return memory;
}

static json_t *position_json(const struct dp_plan *plan, int32_t number)
{
    const struct dp_plan_position *position = &plan->positions[number];
    json_t *json = json_object();
    json_object_set_new(json, "rank", json_integer(number));
    dp_members_write(&dp_plan_position_members, position, json);
    add_sums(position, json);
    dp_members_write(&dp_plan_held_members, position, json);
    set(json, "memory_bytes", dp_plan_position_bytes(plan, number));
    json_object_set_new(json, "memory", memory_json(position));
    return json;
}

// The figures of every pipeline rank; in front the times of the one that bounds the step, and what
// the fullest holds.
static void add_positions(const struct dp_plan *plan, json_t *chosen)
{
    json_t *bytes = json_array();
    for (int32_t p = 0; p < plan->pipeline; p++) {
        json_array_append_new(bytes, json_integer(llround(dp_plan_position_bytes(plan, p))));
    }
    json_object_set_new(chosen, "memory_bytes_per_rank", bytes);
    json_object_set_new(chosen, "fullest_rank", json_integer(dp_plan_fullest_position(plan)));
    int32_t critical = dp_plan_critical_position(plan);
    json_object_set_new(chosen, "critical_rank", json_integer(critical));
    if (plan->positions == NULL) {
        return;
    }
    dp_members_write(&dp_plan_position_members, &plan->positions[critical], chosen);
    add_sums(&plan->positions[critical], chosen);
    const struct dp_plan_position *fullest = &plan->positions[dp_plan_fullest_position(plan)];
    dp_members_write(&dp_plan_held_members, fullest, chosen);
    json_object_set_new(chosen, "memory", memory_json(fullest));
    json_t *positions = json_array();
    for (int32_t p = 0; p < plan->pipeline; p++) {
        json_array_append_new(positions, position_json(plan, p));
    }
    json_object_set_new(chosen, "per_rank", positions);
}

// What another step would have taken more.
static json_t *recovered_json(const struct dp_plan *plan, double step_s)
{
    double million =
        dp_plan_gpu_hours(plan, step_s, 1e6) - dp_plan_gpu_hours(plan, plan->step_s, 1e6);
    return json_pack("{s:s, s:f, s:f, s:f, s:f}", "against", "1f1b", "step_time_s", step_s, "share",
                     1 - plan->step_s / step_s, "gpu_hours_per_million_tokens", million,
                     "gpu_hours_per_trillion_tokens", million * 1e6);
}

static void add_baseline(const struct dp_plan *plan, json_t *chosen)
{
    json_t *same = json_null(), *best = json_null();
    if (plan->baseline_step_s > 0) {
        same = recovered_json(plan, plan->baseline_step_s);
        set(same, "memory_bytes", plan->baseline_memory_bytes);
        json_object_set_new(same, "fits", json_boolean(dp_plan_baseline_fits(plan)));
    }
    const struct dp_plan_candidate *other = dp_plan_best_of(plan, "1f1b");
    if (other != NULL && other->step_s > 0) {
        best = recovered_json(plan, other->step_s);
        dp_members_write(&dp_plan_candidate_members, other, best);
        set(best, "memory_bytes", other->memory_max_bytes);
    }
    json_object_set_new(chosen, "recovered", same);
    json_object_set_new(chosen, "recovered_best", best);
}

static json_t *hash_json(uint64_t hash)
{
    return json_sprintf("0x%016" PRIx64, hash);
}

static json_t *replicas_json(const struct dp_plan *plan)
{
    json_t *replicas = json_array();
    for (int32_t d = 0; d < plan->data; d++) {
        const struct dp_plan_replica *replica = &plan->replicas[d];
        json_t *json = json_pack("{s:i, s:o}", "microbatches", (int)replica->microbatches,
                                 "schedule_hash", hash_json(replica->schedule_hash));
        if (replica->schedule_json != NULL) {
            json_object_set_new(json, "schedule_json", json_string(replica->schedule_json));
        }
        json_array_append_new(replicas, json);
    }
    return replicas;
}

static json_t *chosen_json(const struct dp_plan *plan)
{
    json_t *chosen = json_object();
    dp_members_write(&dp_plan_size_members, plan, chosen);
    json_object_set_new(chosen, "world", json_integer(dp_plan_world(plan)));
    json_object_set_new(chosen, "layers_per_stage", layers_json(plan));
    json_object_set_new(chosen, "schedule_hash", hash_json(plan->schedule_hash));
    if (plan->schedule_json != NULL) {
        json_object_set_new(chosen, "schedule_json", json_string(plan->schedule_json));
    }
    if (plan->replicas != NULL) {
        json_object_set_new(chosen, "replicas", replicas_json(plan));
    }
    dp_members_write(&dp_plan_figure_members, plan, chosen);
    json_t *parts = json_object();
    dp_members_write(&dp_plan_part_members, plan, parts);
    json_object_set_new(chosen, "step_parts", parts);
    double rate = plan->tokens_per_s / dp_plan_world(plan);
    set(chosen, "tokens_per_day", plan->tokens_per_s * 86400);
    set(chosen, "tokens_per_s_per_gpu", rate);
    set(chosen, "tflops_per_gpu_causal", plan->flops_causal * rate / 1e12);
    set(chosen, "tflops_per_gpu_noncausal", plan->flops_noncausal * rate / 1e12);
    set(chosen, "gpu_hours_per_trillion_tokens", dp_plan_gpu_hours(plan, plan->step_s, 1e12));
    add_baseline(plan, chosen);
    add_positions(plan, chosen);
    return chosen;
}

static json_t *ranks_json(const struct dp_plan *plan)
{
    json_t *ranks = json_array();
    for (int32_t i = 0; i < dp_plan_world(plan); i++) {
        json_t *rank = json_object();
        json_object_set_new(rank, "rank", json_integer(i));
        dp_members_write(&dp_plan_rank_members, &plan->ranks[i], rank);
        json_array_append_new(ranks, rank);
    }
    return ranks;
}

static json_t *candidate_json(const struct dp_plan_candidate *candidate)
{
    json_t *json = json_object();
    dp_members_write(&dp_plan_candidate_members, candidate, json);
    if (candidate->legal) {
        dp_members_write(&dp_plan_candidate_figure_members, candidate, json);
    }
    return json;
}

static json_t *runners_up_json(const struct dp_plan *plan)
{
    json_t *list = json_array();
    for (size_t i = 0; i < plan->candidates_count; i++) {
        if (!plan->candidates[i].chosen) {
            json_array_append_new(list, candidate_json(&plan->candidates[i]));
        }
    }
    return list;
}

static json_t *gains_json(const struct dp_plan *plan)
{
    json_t *gains = json_array();
    for (int32_t i = 0; i < plan->gains_count; i++) {
        json_t *gain = json_object();
        dp_members_write(&dp_plan_gain_members, &plan->gains[i], gain);
        set(gain, "saved_share", plan->step_s > 0 ? 1 - plan->gains[i].step_s / plan->step_s : 0);
        json_array_append_new(gains, gain);
    }
    return gains;
}

// What may be lost, and of every stage how many ranks and nodes hold each kind of its tensors; null
// where this build does not know the plan's order.
static json_t *survival_json(const struct dp_plan *plan)
{
    struct dp_plan_survival survival;
    DP_AUTO_FREE struct dp_plan_copies *copies = NULL;
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    if (dp_plan_survival_of(plan, &survival, NULL) != DP_OK ||
        dp_plan_copies_of(plan, &copies, NULL) != DP_OK) {
        return json_null();
    }
    json_t *list = json_array();
    for (int32_t i = 0; i < plan->stages * DP_PLAN_TENSORS_COUNT; i++) {
        if (copies[i].ranks > 0) {
            json_array_append_new(
                list, json_pack("{s:i, s:s, s:i, s:i}", "stage", (int)copies[i].stage, "tensors",
                                dp_plan_tensors_text(copies[i].tensors), "ranks",
                                (int)copies[i].ranks, "nodes", (int)copies[i].nodes));
        }
    }
    dp_plan_survival_text(plan, &survival, &text);
    return json_pack("{s:i, s:i, s:s, s:o}", "any_ranks", (int)survival.ranks, "any_nodes",
                     (int)survival.nodes, "text", text.bytes, "copies", list);
}

json_t *dp_plan_to_json(const struct dp_plan *plan)
{
    json_t *json = json_object();
    json_object_set_new(json, "schema", json_string("dp.plan/1"));
    json_object_set_new(json, "model", json_string(plan->model));
    json_object_set_new(json, "device", json_string(plan->device));
    json_object_set_new(json, "chosen", chosen_json(plan));
    json_object_set_new(json, "error_bar", json_real(plan->error_share));
    set(json, "ranking_error_bar", dp_plan_tie_share(plan));
    json_object_set_new(json, "runners_up", runners_up_json(plan));
    json_object_set_new(json, "survival", survival_json(plan));
    json_object_set_new(json, "gains", gains_json(plan));
    json_object_set_new(json, "warnings", lines_json(plan->warnings));
    json_object_set_new(json, "provenance", provenance_json(plan->provenance));
    json_object_set_new(json, "explanation", lines_json(plan->explanation));
    json_object_set_new(json, "searched", json_integer(plan->searched));
    json_object_set_new(json, "search_s", json_real(plan->search_s));
    json_object_set_new(json, "ranks", ranks_json(plan));
    return json;
}
