#include "alternatives.h"

#include <string.h>

#include "compose.h"
#include "dp/alloc.h"
#include "dp/cleanup.h"

// The job with its schedule left open and the sizes that a schedule does not touch as planned. A V
// has as many stages on half the pipeline ranks, so the depth is open, too.
static void open_schedule(const struct dp_plan *plan, struct dp_job_spec *spec)
{
    struct dp_parallel_spec *parallel = &spec->parallel;
    parallel->schedule[0] = '\0';
    parallel->virtual_stages = 0;
    parallel->layers_per_stage[0] = '\0';
    parallel->pipeline = parallel->data = parallel->microbatches = 0;
    parallel->tensor = plan->tensor;
    parallel->context = plan->context;
    parallel->expert = plan->expert;
    parallel->expert_tensor = plan->expert_tensor;
    spec->resources.ranks = dp_plan_world(plan);
}

static bool holds_once(const struct dp_plan_candidate *candidate)
{
    const struct dp_schedule_family *family = dp_schedule_family_find(candidate->schedule);
    return candidate->legal && family != NULL && family->directions == 1;
}

// The fastest that fits and is one of DualPipeV's, or not.
static const struct dp_plan_candidate *fastest(const struct dp_plan *plan, bool is_v)
{
    const struct dp_plan_candidate *best = NULL;
    for (size_t i = 0; i < plan->candidates_count; i++) {
        const struct dp_plan_candidate *c = &plan->candidates[i];
        if (holds_once(c) && (strncmp(c->schedule, "dualpipev", 9) == 0) == is_v &&
            (best == NULL || c->step_s < best->step_s)) {
            best = c;
        }
    }
    return best;
}

static void add(const struct dp_plan_candidate *candidate, struct dp_plan *plan)
{
    if (candidate == NULL) {
        return;
    }
    plan->candidates =
        dp_realloc(plan->candidates, plan->candidates_count + 1, sizeof(*plan->candidates));
    struct dp_plan_candidate *added = &plan->candidates[plan->candidates_count++];
    *added = *candidate;
    added->chosen = false;
    added->reason = NULL; // told against this plan
}

dp_status dp_planner_alternatives_fill(const struct problem *problem,
                                       const struct dp_planner_options *options,
                                       struct dp_plan *plan, struct dp_error *err)
{
    const struct dp_schedule_family *family =
        dp_schedule_family_find(problem->spec->parallel.schedule);
    if (family == NULL || family->directions != 2) {
        return DP_OK;
    }
    DP_AUTO_FREE struct dp_job_spec *spec = dp_memdup(problem->spec, sizeof(*spec));
    open_schedule(plan, spec);
    struct problem open = *problem;
    open.spec = spec;
    DP_CLEANUP(dp_plan_deinit) struct dp_plan other = {0};
    struct dp_error ignored = {0};
    dp_status status = dp_planner_compose(&open, options, false, &other, &ignored);
    if (status == DP_INTERRUPTED) {
        return dp_fail(err, status, "%s", ignored.message);
    }
    if (status == DP_OK) {
        const struct dp_plan_candidate *once = fastest(&other, false);
        const struct dp_plan_candidate *plain = dp_plan_best_of(&other, "1f1b");
        add(once, plan);
        add(fastest(&other, true), plan);
        add(plain == once ? NULL : plain, plan);
    }
    return DP_OK;
}
