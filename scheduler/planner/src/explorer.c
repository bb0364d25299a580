#include "explorer.h"

#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"

void dp_planner_strategy_of(const struct explorer *explorer, const struct choice *choice,
                            struct dp_strategy *ret_strategy)
{
    const struct dp_parallel_spec *p = &explorer->problem->spec->parallel;
    *ret_strategy = (struct dp_strategy){
        .pipeline = choice->pipeline,
        .data = choice->data,
        .tensor = choice->tensor,
        .context = choice->context,
        .expert = choice->expert,
        .expert_tensor = choice->expert_tensor,
        .virtual_stages = choice->virtual_stages,
        .microbatches = choice->microbatches,
        .micro_batch_size = choice->micro_batch_size,
        .sequence_parallel = choice->tensor > 1 && p->sequence_parallel >= 0,
        .format = explorer->format,
        .shard = choice->shard,
        .recompute = choice->recompute,
        .comm_units = p->comm_units,
        .imbalance = p->imbalance >= 1 ? p->imbalance : 1,
    };
    if (choice->family != NULL) {
        DP_COPY_TEXT(ret_strategy->schedule, choice->family->name);
    }
}

struct dp_price_input dp_planner_price_input(const struct explorer *explorer,
                                             const struct choice *choice,
                                             const struct dp_strategy *strategy)
{
    return (struct dp_price_input){
        .model = &explorer->problem->spec->model,
        .profile = explorer->problem->profile,
        .strategy = strategy,
        .spans = explorer->meshes[choice->mesh].spans,
        .sequence = explorer->problem->spec->train.sequence,
    };
}

// The format that is set, else the model's own; bf16 where the device has none of it.
static dp_status find_format(struct explorer *explorer, struct dp_error *err)
{
    const struct dp_job_spec *spec = explorer->problem->spec;
    const struct dp_device_figures *device = &explorer->problem->profile->device;
    dp_format format = DP_FORMAT_AUTO;
    if (spec->parallel.precision[0] != '\0') {
        dp_status status = dp_format_parse(spec->parallel.precision, &format, err);
        if (status != DP_OK) {
            return status;
        }
    }
    if (format != DP_FORMAT_AUTO && dp_device_flops_peak(device, format) <= 0) {
        return dp_fail(err, DP_INVALID,
                       "precision = %s, but profile \"%s\" knows no peak of it; bf16 is known",
                       dp_format_text(format), explorer->problem->profile->name);
    }
    format = format == DP_FORMAT_AUTO ? spec->model.format : format;
    bool known = format != DP_FORMAT_AUTO && dp_device_flops_peak(device, format) > 0;
    explorer->format = known ? format : DP_FORMAT_BF16;
    return DP_OK;
}

static void find_pairs(struct explorer *explorer)
{
    size_t count;
    const struct dp_schedule_family *families = dp_schedule_families(&count);
    DP_CHECK(count <= DP_ARRAY_LENGTH(explorer->has_pairs));
    const struct dp_schedule_params params = {.pipeline = 2, .microbatches = 8};
    for (size_t i = 0; i < count; i++) {
        struct dp_schedule schedule = {0};
        struct dp_error err = {0};
        DP_CHECK(dp_schedule_generate(families[i].name, &params, &schedule, &err) == DP_OK);
        for (size_t a = 0; a < dp_schedule_action_count(&schedule); a++) {
            explorer->has_pairs[i] |= schedule.actions[a].kind == DP_ACTION_FB;
        }
        dp_schedule_deinit(&schedule);
    }
}

// Operations and bytes of units on one device, for the weights of cuts.
static dp_status init_cuts(struct explorer *explorer, struct dp_error *err)
{
    struct dp_strategy one = {.pipeline = 1,
                              .data = 1,
                              .tensor = 1,
                              .context = 1,
                              .expert = 1,
                              .expert_tensor = 1,
                              .microbatches = 1,
                              .micro_batch_size = 1,
                              .format = DP_FORMAT_BF16,
                              .shard = DP_SHARD_ZERO1,
                              .imbalance = 1};
    const struct dp_span alone = {1, 1, 0};
    const struct dp_price_input input = {
        .model = &explorer->problem->spec->model,
        .profile = explorer->problem->profile,
        .strategy = &one,
        .spans = {alone, alone, alone, alone, alone, alone},
        .sequence = explorer->problem->spec->train.sequence,
    };
    struct dp_price *price = dp_new(struct dp_price);
    dp_price_units(&input, price);
    struct cuts *cuts = dp_new(struct cuts);
    dp_status status = dp_planner_cuts_init(cuts, explorer->problem->spec, price, err);
    free(price);
    if (status != DP_OK) {
        free(cuts);
        return status;
    }
    explorer->cuts = cuts;
    return DP_OK;
}

static int32_t largest_domain(const struct problem *problem)
{
    int32_t largest = 1, known = (int32_t)problem->nodes_count;
    int32_t *slots = dp_new_array(int32_t, (size_t)known + 1);
    for (int32_t i = 0; i < known; i++) {
        const struct dp_planner_node *node = &problem->nodes[i];
        bool joins = node->domain > 0 && node->domain <= known;
        int32_t together = joins ? slots[node->domain] += node->slots : node->slots;
        largest = together > largest ? together : largest;
    }
    free(slots);
    return largest;
}

dp_status dp_planner_explorer_init(struct explorer *ret_explorer, const struct problem *problem,
                                   struct dp_error *err)
{
    struct explorer explorer = {.problem = problem, .domain = largest_domain(problem)};
    for (size_t i = 0; i < problem->nodes_count; i++) {
        double bytes = problem->nodes[i].slots > 0 ? problem->nodes[i].memory_bytes : 0;
        bool is_less = bytes > 0 && (explorer.memory_limit <= 0 || bytes < explorer.memory_limit);
        explorer.memory_limit = is_less ? bytes : explorer.memory_limit;
    }
    find_pairs(&explorer);
    dp_status status = find_format(&explorer, err);
    if (status == DP_OK) {
        status = init_cuts(&explorer, err);
    }
    if (status != DP_OK) {
        return status;
    }
    dp_fabric_init(&explorer.fabric, problem->nodes, problem->nodes_count);
    explorer.prices = dp_planner_prices_new();
    explorer.shapes = dp_planner_shapes_new();
    explorer.scorer = dp_planner_scorer_new();
    *ret_explorer = explorer;
    return DP_OK;
}

// Candidates whose work takes a few milliseconds.
enum { WORK_PER_QUESTION = 1000 };

bool dp_planner_explorer_works(struct explorer *explorer, int64_t work)
{
    explorer->work += work;
    if (!explorer->is_stopped && explorer->work - explorer->asked_at >= WORK_PER_QUESTION) {
        explorer->asked_at = explorer->work;
        explorer->is_stopped = dp_planner_is_stopped(explorer->problem);
    }
    return !explorer->is_stopped;
}

dp_status dp_planner_explorer_fail_stopped(const struct explorer *explorer, struct dp_error *err)
{
    return dp_fail(err, DP_INTERRUPTED, "planning was stopped after %lld candidates",
                   (long long)explorer->scored);
}

void dp_planner_explorer_deinit(struct explorer *explorer)
{
    if (explorer->cuts == NULL) {
        return;
    }
    dp_fabric_deinit(&explorer->fabric);
    dp_planner_cuts_deinit(explorer->cuts);
    free(explorer->cuts);
    dp_planner_prices_free(explorer->prices);
    dp_planner_shapes_free(explorer->shapes);
    dp_planner_scorer_free(explorer->scorer);
    free(explorer->meshes);
    free(explorer->divisions);
    *explorer = (struct explorer){0};
}
