#include <math.h>

#include "dp/check.h"
#include "dp/optim.h"

// Of the steps after warm-up, the last ones of "wsd" in which the rate falls.
static int64_t decay_steps(const struct dp_optimizer_spec *spec, int64_t steps)
{
    int64_t left = steps - spec->warmup_steps;
    int64_t wanted = spec->decay_steps > 0 ? spec->decay_steps : steps / 10;
    wanted = wanted > 0 ? wanted : 1;
    return wanted < left ? wanted : left;
}

double dp_optim_lr(const struct dp_optimizer_spec *spec, int64_t steps, int64_t step)
{
    dp_lr_schedule schedule = DP_LR_COSINE;
    DP_CHECK(dp_lr_schedule_parse(spec->schedule, &schedule, NULL) == DP_OK); // was checked
    if (step < spec->warmup_steps) {
        return spec->lr * (double)step / (double)spec->warmup_steps;
    }
    int64_t falling = schedule == DP_LR_WSD ? decay_steps(spec, steps) : steps - spec->warmup_steps;
    int64_t fallen = step - (steps - falling);
    if (schedule == DP_LR_CONSTANT || falling <= 0 || fallen <= 0) {
        return spec->lr;
    }
    double share = fallen < falling ? (double)fallen / (double)falling : 1;
    double left = schedule == DP_LR_WSD ? 1 - share : 0.5 * (1 + cos(M_PI * share));
    return spec->lr_min + (spec->lr - spec->lr_min) * left;
}
