#include "compose.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alternatives.h"
#include "appraise.h"
#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "explain_fabric.h"
#include "frontier.h"
#include "gains.h"
#include "impossible.h"
#include "search.h"
#include "searched.h"

static void fill_sizes(const struct explorer *explorer, const struct appraisal *best,
                       struct dp_plan *plan)
{
    const struct dp_strategy *strategy = &best->pricing.strategy;
    *plan = (struct dp_plan){
        .pipeline = strategy->pipeline,
        .expert = strategy->expert,
        .data = strategy->data,
        .tensor = strategy->tensor,
        .context = strategy->context,
        .expert_tensor = strategy->expert_tensor,
        .microbatches = strategy->microbatches,
        .micro_batch_size = strategy->micro_batch_size,
        .virtual_stages = strategy->virtual_stages,
        .schedule_hash = dp_schedule_hash(&best->schedule),
        .stages = best->schedule.stages,
        .sequence_parallel = strategy->sequence_parallel,
        .format = strategy->format,
        .shard = strategy->shard,
        .recompute = strategy->recompute,
        .comm_units = best->pricing.price.comm_units,
        .imbalance = dp_price_imbalance(&best->pricing.input),
    };
    DP_COPY_TEXT(plan->schedule, strategy->schedule);
    DP_COPY_TEXT(plan->model, explorer->problem->spec->model.name);
    DP_COPY_TEXT(plan->device, explorer->problem->profile->name);
    size_t begins = (size_t)plan->stages + 1;
    plan->layer_begin = dp_memdup(best->layer_begin, begins * sizeof(*plan->layer_begin));
    plan->positions = dp_memdup(best->positions, (size_t)plan->pipeline * sizeof(*plan->positions));
}

static void fill_ranks(const struct explorer *explorer, const struct appraisal *best,
                       struct dp_plan *plan)
{
    const struct mesh *mesh = &explorer->meshes[best->choice.mesh];
    int32_t world = dp_plan_world(plan);
    DP_AUTO_FREE struct dp_place *places = dp_new_array(struct dp_place, (size_t)world);
    dp_place_ranks(&explorer->fabric, &mesh->sizes, &mesh->order, places);
    plan->ranks = dp_new_array(struct dp_plan_rank, (size_t)world);
    for (int32_t i = 0; i < world; i++) {
        int32_t p = dp_plan_rank_position(plan, i);
        const struct dp_plan_position *position = &best->positions[p];
        const struct dp_sim_rank *sim = &best->result.ranks[p];
        struct dp_plan_rank *rank = &plan->ranks[i];
        DP_COPY_TEXT(rank->node, explorer->problem->nodes[places[i].node].name);
        rank->slot = places[i].slot;
        rank->busy_s = dp_sim_rank_busy(sim);
        rank->bubble_s = fmax(0, sim->bubble); // rounding may leave -1e-17
        rank->peak_chunks = (int32_t)sim->peak_chunks;
        rank->peak_activation_bytes =
            position->memory.activations + position->memory.deferred + position->memory.transient;
        rank->memory_bytes = dp_memory_total(&position->memory);
    }
}

static void fill_parts(const struct explorer *explorer, const struct appraisal *best,
                       struct dp_plan *plan)
{
    const struct dp_plan_position *critical = &best->positions[best->critical];
    const struct dp_job_spec *spec = explorer->problem->spec;
    const struct dp_profile *profile = explorer->problem->profile;
    plan->step_s = best->result.step;
    plan->compute_s = critical->compute_s;
    plan->comm_s = critical->wait_s + critical->exchange_s + critical->hop_s;
    plan->bubble_s = fmax(0, critical->bubble_s - critical->hop_s);
    plan->grad_sync_s = critical->gradient_s;
    plan->optimizer_s = critical->optimizer_s;
    double tokens = (double)spec->train.global_batch * spec->train.sequence;
    plan->tokens_per_s = plan->step_s > 0 ? tokens / plan->step_s : 0;
    plan->error_share = dp_price_error_share(&best->pricing.input);
    plan->ranking_share = profile->ranking_error_share;
    const struct dp_cost_flops_options causal = {0}, full = {.full_attention = true};
    plan->flops_causal = dp_cost_flops_per_token(&spec->model, spec->train.sequence, &causal);
    plan->flops_noncausal = dp_cost_flops_per_token(&spec->model, spec->train.sequence, &full);
    double peak = profile->device.bf16_flops_peak * dp_plan_world(plan);
    if (peak > 0) {
        plan->mfu_causal = plan->tokens_per_s * plan->flops_causal / peak;
        plan->mfu_noncausal = plan->tokens_per_s * plan->flops_noncausal / peak;
    }
}

// 1F1B with the same sizes and rule for the layers: what is recovered against it.
static dp_status fill_baseline(struct explorer *explorer, const struct appraisal *best,
                               struct dp_plan *plan, struct dp_error *err)
{
    struct choice choice = best->choice;
    choice.family = dp_schedule_family_find("1f1b");
    choice.virtual_stages = 0;
    choice.stages = choice.pipeline;
    const struct cut *cut = NULL;
    for (int rule = choice.split; rule >= 0 && cut == NULL; rule--) {
        cut = dp_planner_cuts_get(explorer->cuts, choice.stages, rule);
        choice.split = rule;
    }
    if (cut == NULL || choice.family == NULL) {
        return DP_OK; // stages that are set fit no other schedule
    }
    DP_CLEANUP(dp_planner_appraisal_deinit) struct appraisal baseline = {0};
    dp_status status = dp_planner_appraise(explorer, &choice, &baseline, err);
    plan->baseline_step_s = status == DP_OK ? baseline.result.step : 0;
    plan->baseline_memory_bytes = status == DP_OK ? baseline.fullest_bytes : 0;
    return status;
}

// Accelerators that the plan leaves idle though the job may use all.
static void warn_of_idle(const struct explorer *explorer, const struct search *search,
                         const struct dp_plan *plan, struct dp_buf *out)
{
    int64_t slots = explorer->problem->slots;
    int32_t world = dp_plan_world(plan);
    if (world == slots || explorer->problem->spec->resources.ranks > 0) {
        return;
    }
    dp_buf_printf(out, "%d of %lld accelerators are used, %lld are idle: ", world, (long long)slots,
                  (long long)(slots - world));
    if (explorer->world < slots) {
        dp_buf_printf(out, "no division that the job allows uses more than %lld%s",
                      (long long)explorer->world, world < explorer->world ? ", and " : "\n");
    }
    if (world < explorer->world && isfinite(search->largest_s)) {
        dp_buf_printf(out, "the best that uses %lld takes %.4g s (%+.1f %%)\n",
                      (long long)explorer->world, search->largest_s,
                      100 * (search->largest_s / plan->step_s - 1));
    } else if (world < explorer->world) {
        dp_buf_printf(out, "nothing that uses %lld fits into memory\n", (long long)explorer->world);
    }
}

static char *explain(const struct search *search, const char *note, const struct dp_plan *plan)
{
    struct dp_buf text = {0};
    dp_buf_printf(&text,
                  "%s with pipeline %d, expert %d, data %d is the fastest that fits of %lld "
                  "candidates\n",
                  plan->schedule, plan->pipeline, plan->expert, plan->data,
                  (long long)search->scored);
    dp_buf_puts(&text, note != NULL ? note : "");
    dp_buf_printf(&text, "%lld of at most %lld simulations%s\n", (long long)search->moves,
                  (long long)search->moves_max,
                  search->moves >= search->moves_max ? "; there may be better ones" : "");
    return dp_buf_take(&text);
}

// The chosen one in front of the families.
static void put_searched_first(const struct searched *searched, const struct appraisal *best,
                               struct dp_plan *plan)
{
    plan->candidates =
        dp_realloc(plan->candidates, plan->candidates_count + 1, sizeof(*plan->candidates));
    memmove(plan->candidates + 1, plan->candidates,
            plan->candidates_count * sizeof(*plan->candidates));
    plan->candidates_count++;
    for (size_t i = 1; i < plan->candidates_count; i++) {
        plan->candidates[i].chosen = false;
    }
    dp_planner_runner_fill(best, &plan->candidates[0]);
    plan->candidates[0].chosen = true;
    if (searched->step_s >= plan->candidates[1].step_s) {
        plan->candidates[1].reason = dp_strdup("as fast; auto was asked for");
    }
}

// The best of all, or the order that was searched for.
static dp_status appraise_best(struct explorer *explorer, const struct search *search,
                               const struct searched *searched, struct appraisal *best,
                               struct dp_error *err)
{
    if (searched->layer_begin == NULL) {
        return dp_planner_appraise(explorer, &search->outcomes[search->best].choice, best, err);
    }
    return dp_planner_appraise_with(explorer, &searched->choice, searched->layer_begin,
                                    explorer->problem->profile, &searched->schedule, best, err);
}

static dp_status make_plan(struct explorer *explorer, const struct search *search,
                           const struct searched *searched, bool pareto, struct dp_plan *plan,
                           struct dp_error *err)
{
    DP_CLEANUP(dp_planner_appraisal_deinit) struct appraisal best = {0};
    dp_status status = appraise_best(explorer, search, searched, &best, err);
    if (status != DP_OK) {
        return status;
    }
    fill_sizes(explorer, &best, plan);
    fill_ranks(explorer, &best, plan);
    fill_parts(explorer, &best, plan);
    plan->searched = search->scored;
    status = fill_baseline(explorer, &best, plan, err);
    if (status == DP_OK) {
        status = dp_planner_gains_fill(explorer, &best, search, plan, err);
    }
    if (status == DP_OK) {
        status = pareto ? dp_planner_pareto_fill(explorer, search, plan, err)
                        : dp_planner_runners_fill(explorer, search, plan, err);
    }
    if (status == DP_OK && searched->layer_begin != NULL) {
        status = dp_planner_order_write(&best.schedule, &plan->schedule_json, err);
        put_searched_first(searched, &best, plan);
    }
    struct dp_buf provenance = {0}, warnings = {0};
    dp_price_provenance(&best.pricing.input, &provenance);
    dp_buf_puts(&provenance, "bytes: tensors of the model's layers (docs/memory.md)\n");
    dp_buf_puts(&warnings, "");
    warn_of_idle(explorer, search, plan, &warnings);
    dp_price_warnings(&best.pricing.input, &warnings);
    plan->provenance = dp_buf_take(&provenance);
    plan->warnings = dp_buf_take(&warnings);
    plan->explanation = explain(search, searched->note, plan);
    return status == DP_OK ? dp_planner_explain_fabric(explorer, &best, plan, err) : status;
}

dp_status dp_planner_compose(const struct problem *problem,
                             const struct dp_planner_options *options, bool pareto,
                             struct dp_plan *ret_plan, struct dp_error *err)
{
    DP_CLEANUP(dp_planner_explorer_deinit) struct explorer explorer = {0};
    dp_status status = dp_planner_explorer_init(&explorer, problem, err);
    if (status == DP_OK) {
        status = dp_planner_space_init(&explorer, err);
        status = status == DP_INVALID ? dp_planner_impossible_sizes(&explorer, err) : status;
    }
    DP_CLEANUP(dp_planner_search_deinit) struct search search = {0};
    if (status == DP_OK) {
        status = pareto ? dp_planner_frontier_pareto(&explorer, options, &search, err)
                        : dp_planner_frontier_run(&explorer, options, &search, err);
    }
    if (status == DP_OK && search.count == 0) {
        status = dp_planner_impossible_memory(&explorer, err);
    }
    DP_CLEANUP(dp_planner_searched_deinit) struct searched searched = {0};
    if (status == DP_OK && strcmp(problem->spec->parallel.schedule, "auto") == 0 && !pareto) {
        status = dp_planner_searched_find(&explorer, &search, &searched, err);
    }
    if (status != DP_OK) {
        return status;
    }
    struct dp_plan plan = {0};
    status = make_plan(&explorer, &search, &searched, pareto, &plan, err);
    if (status == DP_OK && !pareto) {
        status = dp_planner_alternatives_fill(problem, options, &plan, err);
    }
    if (status != DP_OK) {
        dp_plan_deinit(&plan);
        return status;
    }
    dp_plan_explain(&plan, &problem->spec->model);
    *ret_plan = plan;
    return DP_OK;
}
