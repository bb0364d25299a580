#include "gains.h"

#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"

static const double MORE = DP_PLANNER_MORE_MEMORY;

static void more_compute(struct dp_profile *profile)
{
    struct dp_device_figures *d = &profile->device;
    d->fp32_flops_peak *= 1 + MORE;
    d->bf16_flops_peak *= 1 + MORE;
    d->fp8_flops_peak *= 1 + MORE;
    d->fp4_flops_peak *= 1 + MORE;
}

static void more_memory_bandwidth(struct dp_profile *profile)
{
    profile->device.memory_bytes_per_s *= 1 + MORE;
}

static void more_scale_up(struct dp_profile *profile)
{
    profile->device.up_bytes_per_s *= 1 + MORE;
}

static void more_scale_out(struct dp_profile *profile)
{
    profile->device.out_bytes_per_s *= 1 + MORE;
    for (int32_t i = 0; i < profile->levels_count; i++) {
        profile->levels[i].bytes_per_s *= 1 + MORE;
    }
}

static const struct {
    const char *resource;
    void (*change)(struct dp_profile *profile);
} resources[] = {
    {"compute", more_compute},
    {"memory bandwidth", more_memory_bandwidth},
    {"scale-up bandwidth", more_scale_up},
    {"scale-out bandwidth", more_scale_out},
};

static void add_gain(struct dp_plan *plan, const char *resource, double more_share, double step_s)
{
    struct dp_plan_gain *gain = &plan->gains[plan->gains_count++];
    *gain = (struct dp_plan_gain){.more_share = more_share, .step_s = step_s};
    DP_COPY_TEXT(gain->resource, resource);
}

static const struct dp_schedule *order_of(const struct appraisal *best)
{
    return dp_planner_is_auto(best->choice.family) ? &best->schedule : NULL;
}

// Twice the samples in twice the micro-batches; the step is that of as many samples as before.
static dp_status gain_of_batch(struct explorer *explorer, const struct appraisal *best,
                               struct dp_plan *plan, struct dp_error *err)
{
    struct choice choice = best->choice;
    const struct dp_schedule_params params = {.pipeline = choice.pipeline,
                                              .microbatches = 2 * choice.microbatches,
                                              .virtual_stages = choice.virtual_stages};
    if (dp_schedule_check(choice.family->name, &params, NULL) != DP_OK) {
        return DP_OK; // or an order that was searched for
    }
    choice.microbatches = params.microbatches;
    DP_CLEANUP(dp_planner_appraisal_deinit) struct appraisal with = {0};
    dp_status status = dp_planner_appraise_with(explorer, &choice, best->layer_begin,
                                                explorer->problem->profile, NULL, &with, err);
    if (status == DP_OK) {
        add_gain(plan, "global batch", 1, with.result.step / 2);
    }
    return status;
}

static int compare_gains(const void *a, const void *b)
{
    const struct dp_plan_gain *one = a, *two = b;
    return (one->step_s > two->step_s) - (one->step_s < two->step_s);
}

dp_status dp_planner_gains_fill(struct explorer *explorer, const struct appraisal *best,
                                const struct search *search, struct dp_plan *plan,
                                struct dp_error *err)
{
    DP_AUTO_FREE struct dp_profile *profile = dp_new(struct dp_profile);
    for (size_t i = 0; i < sizeof(resources) / sizeof(resources[0]); i++) {
        DP_CLEANUP(dp_planner_appraisal_deinit) struct appraisal with = {0};
        *profile = *explorer->problem->profile;
        resources[i].change(profile);
        dp_status status = dp_planner_appraise_with(explorer, &best->choice, best->layer_begin,
                                                    profile, order_of(best), &with, err);
        if (status != DP_OK) {
            return status;
        }
        add_gain(plan, resources[i].resource, MORE, with.result.step);
    }
    dp_status status = gain_of_batch(explorer, best, plan, err);
    if (search->more_memory_s > 0 && explorer->memory_limit > 0) {
        add_gain(plan, "memory", MORE, search->more_memory_s);
    }
    qsort(plan->gains, (size_t)plan->gains_count, sizeof(plan->gains[0]), compare_gains);
    return status;
}
