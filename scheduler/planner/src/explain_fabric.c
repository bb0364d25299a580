#include "explain_fabric.h"

#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/plan_text.h"
#include "search.h"

// What half the micro-batch would lose to starting kernels is told above this share of the step.
static const double STARTS_BIND = 0.02;

// With one rank a family is what its pairs do.
static void say_no_pipeline(const struct dp_plan *plan, struct dp_buf *out)
{
    const struct dp_plan_position *rank = &plan->positions[0];
    if (plan->pipeline > 1 || rank->overlapped_s <= 0) {
        return;
    }
    char hidden[DP_PLAN_WORD_MAX];
    dp_buf_printf(out,
                  "with pipeline 1 there is no pipeline: %s here means that the exchange of one "
                  "micro-batch overlaps the computation of another (which hides %s), for which "
                  "the layers are in %d stages\n",
                  plan->schedule, dp_plan_text_seconds(hidden, rank->hidden_s), plan->stages);
}

static void say_bare_ends(const struct dp_plan *plan, struct dp_buf *out)
{
    int32_t last = plan->stages - 1;
    bool first_bare = last > 0 && plan->layer_begin[1] == 0;
    bool last_bare = last > 0 && plan->layer_begin[last] == plan->layer_begin[last + 1];
    if (first_bare && last_bare) {
        dp_buf_printf(
            out,
            "stages 0 and %d have no layers: the embedding and the head with the loss are "
            "stages of their own\n",
            last);
    } else if (first_bare || last_bare) {
        dp_buf_printf(out, "stage %d has no layers: %s is a stage of its own\n",
                      first_bare ? 0 : last,
                      first_bare ? "the embedding" : "the head with the loss");
    }
}

// Seconds of the step that starting kernels takes, on the host or the device.
static dp_status starts_of(struct explorer *explorer, const struct appraisal *best,
                           const struct choice *choice, double *ret_seconds, struct dp_error *err)
{
    DP_AUTO_FREE struct dp_profile *profile = dp_new(struct dp_profile);
    DP_CLEANUP(dp_planner_appraisal_deinit) struct appraisal with = {0}, without = {0};
    *profile = *explorer->problem->profile;
    dp_status status =
        dp_planner_appraise_with(explorer, choice, best->layer_begin, profile, NULL, &with, err);
    profile->device.kernel_s = 0;
    profile->device.host_dense_s = profile->device.host_moe_s = profile->device.host_expert_s = 0;
    if (status == DP_OK) {
        status = dp_planner_appraise_with(explorer, choice, best->layer_begin, profile, NULL,
                                          &without, err);
    }
    *ret_seconds = status == DP_OK ? with.result.step - without.result.step : 0;
    return status;
}

static dp_status say_starts(struct explorer *explorer, const struct appraisal *best,
                            const struct dp_plan *plan, struct dp_buf *out, struct dp_error *err)
{
    struct choice half = best->choice;
    half.micro_batch_size /= 2;
    half.microbatches *= 2;
    const struct dp_schedule_params params = {.pipeline = half.pipeline,
                                              .microbatches = half.microbatches,
                                              .virtual_stages = half.virtual_stages};
    if (best->choice.micro_batch_size % 2 != 0 ||
        dp_schedule_check(half.family->name, &params, NULL) != DP_OK) {
        return DP_OK;
    }
    double here = 0, of_half = 0;
    dp_status status = starts_of(explorer, best, &best->choice, &here, err);
    if (status == DP_OK) {
        status = starts_of(explorer, best, &half, &of_half, err);
    }
    if (status == DP_OK && of_half - here > STARTS_BIND * plan->step_s) {
        char now[DP_PLAN_WORD_MAX], then[DP_PLAN_WORD_MAX];
        dp_buf_printf(out,
                      "micro-batches of %d samples: starting kernels takes %s of the step, with %d "
                      "it would take %s\n",
                      plan->micro_batch_size, dp_plan_text_seconds(now, here),
                      half.micro_batch_size, dp_plan_text_seconds(then, of_half));
    }
    return status;
}

static void warn_of_tensor(const struct explorer *explorer, const struct appraisal *best,
                           struct dp_plan *plan)
{
    const struct dp_span *span = &explorer->meshes[best->choice.mesh].spans.tensor;
    if (span->ranks < 2 || span->inside >= span->ranks) {
        return;
    }
    double wait_s = best->positions[best->critical].wait_s;
    char seconds[DP_PLAN_WORD_MAX];
    DP_AUTO_FREE char *line = dp_asprintf(
        "tensor groups of %d cross scale-up domains (%d ranks in one): every layer waits for the "
        "slower network; collectives that compute waits for take %s, %.0f %% of the step\n",
        span->ranks, span->inside, dp_plan_text_seconds(seconds, wait_s),
        plan->step_s > 0 ? 100 * wait_s / plan->step_s : 0);
    dp_plan_add_warnings(plan, line);
}

dp_status dp_planner_explain_fabric(struct explorer *explorer, const struct appraisal *best,
                                    struct dp_plan *plan, struct dp_error *err)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf lines = {0};
    dp_buf_puts(&lines, "");
    say_no_pipeline(plan, &lines);
    say_bare_ends(plan, &lines);
    dp_status status = DP_OK;
    if (plan->schedule_json == NULL) { // the order of a family
        status = say_starts(explorer, best, plan, &lines, err);
    }
    warn_of_tensor(explorer, best, plan);
    char *before = plan->explanation;
    int first = (int)strcspn(before, "\n") + (strchr(before, '\n') != NULL);
    plan->explanation = dp_asprintf("%.*s%s%s", first, before, lines.bytes, before + first);
    free(before);
    return status;
}
