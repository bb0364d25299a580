// The candidates that a plan lists.

#include <math.h>
#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "gains.h"

enum { CANDIDATES_MAX = 48 };

static void fill_sizes(const struct choice *choice, struct dp_plan_candidate *candidate)
{
    *candidate = (struct dp_plan_candidate){
        .pipeline = choice->pipeline,
        .expert = choice->expert,
        .data = choice->data,
        .microbatches = choice->microbatches,
        .micro_batch_size = choice->micro_batch_size,
        .virtual_stages = choice->virtual_stages,
        .tensor = choice->tensor,
        .context = choice->context,
        .expert_tensor = choice->expert_tensor,
        .recompute = choice->recompute,
    };
    DP_COPY_TEXT(candidate->schedule, choice->family->name);
}

void dp_planner_runner_fill(const struct appraisal *appraisal, struct dp_plan_candidate *candidate)
{
    const struct dp_plan_position *critical = &appraisal->positions[appraisal->critical];
    fill_sizes(&appraisal->choice, candidate);
    candidate->legal = true;
    candidate->step_s = appraisal->result.step;
    candidate->compute_s = critical->compute_s;
    candidate->bubble_s = critical->bubble_s;
    candidate->hop_s = critical->hop_s;
    candidate->wait_s = critical->wait_s;
    candidate->exchange_s = critical->exchange_s;
    candidate->gradient_s = critical->gradient_s;
    candidate->optimizer_s = critical->optimizer_s;
    candidate->memory_max_bytes = appraisal->fullest_bytes;
    candidate->memory_limit_bytes = appraisal->positions[appraisal->fullest].memory_limit_bytes;
    candidate->memory_position = appraisal->fullest;
}

static dp_status fill_candidate(struct explorer *explorer, const struct outcome *outcome,
                                struct dp_plan_candidate *candidate, struct dp_error *err)
{
    if (dp_planner_is_stopped(explorer->problem)) {
        return dp_fail(err, DP_INTERRUPTED, "planning was stopped while its answer was written");
    }
    DP_CLEANUP(dp_planner_appraisal_deinit) struct appraisal appraisal = {0};
    dp_status status = dp_planner_appraise(explorer, &outcome->choice, &appraisal, err);
    if (status == DP_OK) {
        dp_planner_runner_fill(&appraisal, candidate);
    }
    return status;
}

static int compare_outcomes(const void *a, const void *b)
{
    const struct outcome *const *one = a, *const *two = b;
    int order = ((*one)->step_s > (*two)->step_s) - ((*one)->step_s < (*two)->step_s);
    if (order == 0) {
        order = ((*one)->memory_bytes > (*two)->memory_bytes) -
                ((*one)->memory_bytes < (*two)->memory_bytes);
    }
    return order != 0 ? order : dp_planner_choice_compare(&(*one)->choice, &(*two)->choice);
}

// Whether no faster one has the same schedule, depth, tensor or expert size.
static bool leads(const struct outcome *const *sorted, size_t index)
{
    const struct choice *own = &sorted[index]->choice;
    bool schedule = true, depth = true, tensor = true, expert = true;
    for (size_t i = 0; i < index; i++) {
        const struct choice *other = &sorted[i]->choice;
        schedule = schedule && other->family != own->family;
        depth = depth && other->pipeline != own->pipeline;
        tensor = tensor && other->tensor != own->tensor;
        expert = expert && other->expert != own->expert;
    }
    return schedule || depth || tensor || expert;
}

// Schedules of which nothing came near.
static void add_absent(const struct search *search, struct dp_plan *plan)
{
    size_t count;
    const struct dp_schedule_family *families = dp_schedule_families(&count);
    double factor = search->reached_s / search->outcomes[search->best].step_s;
    for (size_t f = 0; f < count; f++) {
        bool found = false;
        for (size_t i = 0; i < search->count; i++) {
            found = found || search->outcomes[i].choice.family == &families[f];
        }
        if (!found) {
            struct choice choice = search->outcomes[search->best].choice;
            choice.family = &families[f];
            choice.virtual_stages = 0;
            struct dp_plan_candidate *candidate = &plan->candidates[plan->candidates_count++];
            fill_sizes(&choice, candidate);
            candidate->reason = dp_asprintf(
                "of all sizes, none that fits was within %.2f times the step", fmax(1, factor));
        }
    }
}

dp_status dp_planner_runners_fill(struct explorer *explorer, const struct search *search,
                                  struct dp_plan *plan, struct dp_error *err)
{
    size_t families_count;
    dp_schedule_families(&families_count);
    DP_AUTO_FREE const struct outcome **sorted =
        dp_new_array(const struct outcome *, search->count);
    for (size_t i = 0; i < search->count; i++) {
        sorted[i] = &search->outcomes[i];
    }
    qsort(sorted, search->count, sizeof(*sorted), compare_outcomes);
    size_t leaders = 0;
    for (size_t i = 0; i < search->count; i++) {
        leaders += leads(sorted, i);
    }
    size_t others = leaders < CANDIDATES_MAX ? CANDIDATES_MAX - leaders : 0;
    plan->candidates = dp_new_array(struct dp_plan_candidate, leaders + others + families_count);
    dp_status status = DP_OK;
    for (size_t i = 0; i < search->count && status == DP_OK; i++) {
        bool leading = leads(sorted, i);
        if (!leading && others == 0) {
            continue;
        }
        others -= !leading;
        struct dp_plan_candidate *candidate = &plan->candidates[plan->candidates_count];
        status = fill_candidate(explorer, sorted[i], candidate, err);
        candidate->chosen = plan->candidates_count == 0;
        plan->candidates_count += status == DP_OK;
    }
    if (explorer->problem->spec->parallel.schedule[0] == '\0') {
        add_absent(search, plan);
    }
    return status;
}

dp_status dp_planner_pareto_fill(struct explorer *explorer, const struct search *search,
                                 struct dp_plan *plan, struct dp_error *err)
{
    DP_AUTO_FREE const struct outcome **sorted =
        dp_new_array(const struct outcome *, search->count);
    for (size_t i = 0; i < search->count; i++) {
        sorted[i] = &search->outcomes[i];
    }
    qsort(sorted, search->count, sizeof(*sorted), compare_outcomes);
    plan->candidates = dp_new_array(struct dp_plan_candidate, DP_CANDIDATES_MAX);
    dp_status status = DP_OK;
    double least = INFINITY;
    for (size_t i = 0; i < search->count && status == DP_OK; i++) {
        size_t count = plan->candidates_count;
        if (sorted[i]->memory_bytes < least && count < DP_CANDIDATES_MAX) {
            least = sorted[i]->memory_bytes;
            status = fill_candidate(explorer, sorted[i], &plan->candidates[count], err);
            plan->candidates[count].chosen = count == 0;
            plan->candidates_count += status == DP_OK;
        }
    }
    return status;
}
