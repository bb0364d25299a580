// Why: where figures come from, where time and memory go, why the winner won and each other choice
// lost. Of plans for CPU and sim ranks.

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "search.h"

enum { CANDIDATES_MAX = 64 };

char *dp_planner_explain_provenance(const struct problem *problem)
{
    struct dp_buf text = {0};
    if (problem->is_sim) {
        dp_buf_puts(&text, "seconds: the job's own [sim] times\n");
        dp_buf_printf(&text, "bytes: shapes of the model, %d bytes an element\n",
                      problem->profile->element_bytes);
        return dp_buf_take(&text);
    }
    const struct dp_profile *profile = problem->profile;
    dp_buf_printf(&text, "seconds: profile \"%s\", %s", profile->name, profile->provenance);
    dp_buf_printf(&text, "; expect errors of %.0f %%\n", profile->error_share * 100);
    dp_buf_puts(&text, "bytes: shapes of the model; routing taken as balanced\n");
    if (profile->routing_spread > 0) {
        dp_buf_printf(&text, "waits for expert peers: rows of an expert taken to vary by %.0f %%\n",
                      profile->routing_spread * 100);
    }
    return dp_buf_take(&text);
}

static void list_settings(const struct dp_parallel_spec *p, struct dp_buf *out)
{
    const struct {
        const char *name;
        int32_t value;
    } settings[] = {
        {"pipeline", p->pipeline},
        {"expert", p->expert},
        {"data", p->data},
        {"virtual", p->virtual_stages},
        {"microbatches", p->microbatches},
        {"micro_batch_size", p->micro_batch_size},
    };
    const char *separator = "set by the job: ";
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
        if (settings[i].value > 0) {
            dp_buf_printf(out, "%s%s = %d", separator, settings[i].name, settings[i].value);
            separator = ", ";
        }
    }
    if (p->schedule[0] != '\0') {
        dp_buf_printf(out, "%sschedule = %s", separator, p->schedule);
        separator = ", ";
    }
    dp_buf_puts(out, separator[0] == ',' ? "\n" : "");
}

static void largest_part(const struct dp_plan *plan, struct dp_buf *out)
{
    const struct {
        const char *name;
        double seconds;
    } parts[] = {
        {"compute", plan->compute_s},         {"waiting in the pipeline", plan->bubble_s},
        {"communication", plan->comm_s},      {"summing gradients", plan->grad_sync_s},
        {"the optimizer", plan->optimizer_s},
    };
    size_t largest = 0;
    for (size_t i = 1; i < sizeof(parts) / sizeof(parts[0]); i++) {
        largest = parts[i].seconds > parts[largest].seconds ? i : largest;
    }
    if (plan->step_s > 0) {
        dp_buf_printf(out, "most of the step is %s: %.0f %%\n", parts[largest].name,
                      100 * parts[largest].seconds / plan->step_s);
    }
}

char *dp_planner_explain_choice(const struct problem *problem, const struct search *search,
                                const struct choices *choices, const struct dp_plan *plan,
                                const char *note)
{
    struct dp_buf text = {0};
    if (search->count == 1) {
        dp_buf_printf(&text, "%s with pipeline %d, expert %d, data %d is the only legal choice\n",
                      plan->schedule, plan->pipeline, plan->expert, plan->data);
    } else {
        dp_buf_printf(&text,
                      "%s with pipeline %d, expert %d, data %d is the fastest that fits of %zu "
                      "legal choices\n",
                      plan->schedule, plan->pipeline, plan->expert, plan->data, search->count);
    }
    list_settings(&problem->spec->parallel, &text);
    if (note != NULL) {
        dp_buf_puts(&text, note);
    } else if (search->refusal != NULL) {
        dp_buf_puts(&text, search->refusal);
    }
    largest_part(plan, &text);
    if (plan->cores_exceeded) {
        dp_buf_puts(&text,
                    "ranks exceed cores on some machine: more ranks do not make it faster\n");
    }
    dp_buf_printf(&text, "%lld of at most %lld simulations; %zu choices break a rule\n",
                  (long long)search->moves, (long long)search->moves_max, choices->refused_total);
    return dp_buf_take(&text);
}

static int compare_outcomes(const void *a, const void *b)
{
    const struct outcome *one = a, *two = b;
    if (one->simulated != two->simulated) {
        return one->simulated ? -1 : 1;
    }
    if (one->fits != two->fits) {
        return one->fits ? -1 : 1;
    }
    int order = (one->step_s > two->step_s) - (one->step_s < two->step_s);
    return order != 0 ? order : dp_planner_choice_compare(&one->choice, &two->choice);
}

// What the figures alone would not say; NULL = they say it all.
static char *reason_of(const struct outcome *outcome, const struct outcome *best)
{
    if (!outcome->simulated) {
        return dp_asprintf("not simulated: at least %.3g times as long",
                           outcome->step_s / best->step_s);
    }
    double factor = outcome->step_s / best->step_s;
    if (outcome->fits && outcome != best && dp_planner_is_auto(outcome->choice.family)) {
        return dp_asprintf("%.3f times as long with the stages placed %s", factor,
                           outcome->choice.family->summary);
    }
    if (outcome->fits && factor < 1.0005 && dp_planner_is_auto(best->choice.family) &&
        !dp_planner_is_auto(outcome->choice.family)) {
        return dp_strdup("as fast; auto was asked for");
    }
    return NULL;
}

static void fill_sizes(const struct choice *choice, struct dp_plan_candidate *candidate)
{
    candidate->pipeline = choice->pipeline;
    candidate->expert = choice->expert;
    candidate->data = choice->data;
    candidate->microbatches = choice->microbatches;
    candidate->micro_batch_size = choice->micro_batch_size;
    DP_COPY_TEXT(candidate->schedule, choice->family->name);
    candidate->virtual_stages = choice->virtual_stages;
}

static void fill_parts(const struct outcome *outcome, struct dp_plan_candidate *candidate)
{
    candidate->compute_s = outcome->compute_s;
    candidate->bubble_s = outcome->bubble_s;
    candidate->hop_s = outcome->hop_s;
    candidate->exchange_s = outcome->exchange_s;
    candidate->gradient_s = outcome->gradient_s;
    candidate->optimizer_s = outcome->optimizer_s;
}

void dp_planner_explain_candidates(const struct search *search, const struct choices *choices,
                                   struct dp_plan *plan)
{
    const struct outcome *best = &search->outcomes[search->best];
    // The winner stays in front; the others are sorted behind it.
    struct outcome *sorted = dp_memdup(search->outcomes, search->count * sizeof(*sorted));
    struct outcome first = sorted[search->best];
    sorted[search->best] = sorted[0];
    sorted[0] = first;
    qsort(sorted + 1, search->count - 1, sizeof(*sorted), compare_outcomes);
    size_t legal = search->count < CANDIDATES_MAX ? search->count : CANDIDATES_MAX;
    plan->candidates_count = legal + choices->refused_count;
    plan->candidates = dp_new_array(struct dp_plan_candidate, plan->candidates_count);
    for (size_t i = 0; i < legal; i++) {
        struct dp_plan_candidate *candidate = &plan->candidates[i];
        fill_sizes(&sorted[i].choice, candidate);
        candidate->legal = sorted[i].simulated;
        candidate->chosen = i == 0;
        candidate->step_s = sorted[i].step_s;
        fill_parts(&sorted[i], candidate);
        candidate->memory_max_bytes = sorted[i].memory_bytes;
        candidate->memory_position = sorted[i].memory_position;
        // Ranks that keep nothing fit whatever their node has.
        bool is_limited = !sorted[i].fits || sorted[i].memory_bytes <= sorted[i].memory_limit_bytes;
        candidate->memory_limit_bytes = is_limited ? sorted[i].memory_limit_bytes : 0;
        candidate->reason = i == 0 ? dp_strdup("chosen") : reason_of(&sorted[i], best);
    }
    for (size_t i = 0; i < choices->refused_count; i++) {
        struct dp_plan_candidate *candidate = &plan->candidates[legal + i];
        fill_sizes(&choices->refused[i].choice, candidate);
        candidate->reason = dp_strdup(choices->refused[i].reason);
    }
    free(sorted);
}

// Times of the slowest replica, which bound the step.
static void fill_times(const struct problem *problem, const struct evaluation *evaluation,
                       int32_t position, struct dp_plan_position *ret)
{
    const struct replica *slowest = &evaluation->replicas[evaluation->slowest];
    const struct dp_sim_result *result = &slowest->result;
    const struct dp_sim_rank *rank = &result->ranks[position];
    double exchange = dp_planner_exposed_exchange_s(
        problem, &evaluation->layout, &evaluation->schedule, &slowest->costs, position);
    ret->forward_s = rank->busy[DP_ACTION_F];
    ret->backward_s = rank->busy[DP_ACTION_B];
    ret->backward_weight_s = dp_planner_backward_weight_s(&evaluation->schedule, &slowest->costs,
                                                          position, ret->backward_s);
    ret->input_s = rank->busy[DP_ACTION_I];
    ret->weight_s = rank->busy[DP_ACTION_W];
    ret->overlapped_s = rank->busy[DP_ACTION_FB];
    ret->bubble_s = fmax(0, rank->bubble); // rounding may leave -1e-17
    ret->hop_s = fmin(ret->bubble_s, fmax(0, rank->comm));
    ret->exchange_s = exchange;
    ret->compute_s = fmax(0, dp_sim_rank_busy(rank) - exchange);
    // Ranks end the step together.
    ret->optimizer_s = slowest->costs.optimizer[position];
    ret->gradient_s = fmax(0, result->step - result->makespan - ret->optimizer_s);
}

// Of all replicas alike; the sim device keeps nothing.
static void fill_memory(const struct problem *problem, const struct evaluation *evaluation,
                        int32_t position, struct dp_plan_position *ret)
{
    const struct layout *layout = &evaluation->layout;
    int32_t stages[DP_RANK_STAGES_MAX];
    int32_t count = dp_schedule_rank_stages(&evaluation->schedule, position, stages);
    for (int32_t i = 0; i < count; i++) {
        struct dp_cost_stage stage = dp_planner_stage_of(problem, layout, stages[i]);
        struct dp_cost_parameters parameters;
        dp_cost_stage_parameters(&problem->spec->model, &stage, layout->choice.expert, &parameters);
        ret->held.dense += parameters.shared;
        ret->held.experts += parameters.experts;
    }
    dp_planner_rank_memory(problem, layout, &evaluation->schedule, position, &ret->memory);
    const struct replica *slowest = &evaluation->replicas[evaluation->slowest];
    ret->memory_at_s = slowest->result.ranks[position].peak_at;
    for (int32_t d = 0; d < layout->choice.data && !problem->is_sim; d++) {
        const struct place *place = &layout->places[d * layout->choice.pipeline + position];
        double limit = problem->nodes[place->node].memory_bytes;
        if (limit > 0 && (ret->memory_limit_bytes <= 0 || limit < ret->memory_limit_bytes)) {
            ret->memory_limit_bytes = limit;
        }
    }
}

void dp_planner_explain_parts(const struct problem *problem, const struct evaluation *evaluation,
                              struct outcome *outcome)
{
    const struct dp_sim_rank *ranks = evaluation->replicas[evaluation->slowest].result.ranks;
    int32_t critical = 0;
    for (int32_t p = 1; p < evaluation->layout.choice.pipeline; p++) {
        critical = ranks[p].bubble < ranks[critical].bubble ? p : critical;
    }
    struct dp_plan_position parts = {0};
    fill_times(problem, evaluation, critical, &parts);
    outcome->compute_s = parts.compute_s;
    outcome->bubble_s = parts.bubble_s;
    outcome->hop_s = parts.hop_s;
    outcome->exchange_s = parts.exchange_s;
    outcome->gradient_s = parts.gradient_s;
    outcome->optimizer_s = parts.optimizer_s;
}

struct dp_plan_position *dp_planner_explain_positions(const struct problem *problem,
                                                      const struct evaluation *evaluation)
{
    int32_t pipeline = evaluation->layout.choice.pipeline;
    struct dp_plan_position *positions = dp_new_array(struct dp_plan_position, (size_t)pipeline);
    for (int32_t p = 0; p < pipeline; p++) {
        fill_times(problem, evaluation, p, &positions[p]);
        fill_memory(problem, evaluation, p, &positions[p]);
    }
    return positions;
}
