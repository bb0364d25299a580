#include "families.h"

#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"

static const struct dp_schedule_family families[] = {
    {"gpipe", "all forwards, then all backwards; activations of every micro-batch stay alive",
     "any P and M", 1, 1, 0, 1, dp_schedule_gpipe_check, dp_schedule_gpipe_generate},
    {"1f1b", "one forward, one backward in turn; at most P chunks alive", "any P and M", 1, 1, 0, 1,
     dp_schedule_one_f_one_b_check, dp_schedule_one_f_one_b_generate},
    {"dualpipe",
     "two streams from both ends, overlapped pairs, split backward; every stage held twice",
     "P even; M even, at least 2P-2 (2P and more advised)", 2, 2, 0, 1, dp_schedule_dualpipe_check,
     dp_schedule_dualpipe_generate},
    {"dualpipev", "DualPipe folded into a V: 2P stages, each held once, overlapped pairs",
     "any P; M at least 2P-1 (2P and more advised)", 1, 2, 0, 1, dp_schedule_dualpipev_check,
     dp_schedule_dualpipev_generate},
};

const struct dp_schedule_family *dp_schedule_families(size_t *ret_count)
{
    *ret_count = DP_ARRAY_LENGTH(families);
    return families;
}

const struct dp_schedule_family *dp_schedule_family_find(const char *name)
{
    for (size_t i = 0; i < DP_ARRAY_LENGTH(families); i++) {
        if (strcmp(families[i].name, name) == 0) {
            return &families[i];
        }
    }
    return NULL;
}

static dp_status check_sizes(const struct dp_schedule_family *family,
                             const struct dp_schedule_params *params, struct dp_error *err)
{
    if (params->pipeline < 1 || params->pipeline > DP_PIPELINE_MAX) {
        return dp_fail(err, DP_INVALID, "%s: pipeline must be 1 to %d; it is %d", family->name,
                       DP_PIPELINE_MAX, params->pipeline);
    }
    if (params->microbatches < 1 || params->microbatches > DP_MICROBATCHES_MAX) {
        return dp_fail(err, DP_INVALID, "%s: microbatches must be 1 to %d; it is %d", family->name,
                       DP_MICROBATCHES_MAX, params->microbatches);
    }
    int32_t chunks = params->virtual_stages;
    bool is_free = family->virtual_max > 0;
    if (chunks != 0 && !is_free && chunks != family->stages_per_rank) {
        return dp_fail(err, DP_INVALID,
                       "%s holds %d stage%s per rank; %d virtual stages were asked for: leave "
                       "virtual out",
                       family->name, family->stages_per_rank,
                       family->stages_per_rank == 1 ? "" : "s", chunks);
    }
    int32_t step = family->virtual_step;
    if (chunks != 0 && is_free &&
        (chunks < step || chunks > family->virtual_max || chunks % step != 0)) {
        int32_t nearest = chunks < step ? step : chunks / step * step;
        nearest = nearest > family->virtual_max ? family->virtual_max : nearest;
        return dp_fail(err, DP_INVALID,
                       "%s takes %d to %d virtual stages per rank, in steps of %d; %d were asked "
                       "for. Nearest legal: %d",
                       family->name, step, family->virtual_max, step, chunks, nearest);
    }
    int64_t stages = (int64_t)params->pipeline * (chunks > 0 ? chunks : 1);
    if (stages > DP_STAGES_MAX) {
        return dp_fail(err, DP_INVALID,
                       "%s of %d virtual stages on %d ranks has %lld stages; the limit is %d: at "
                       "most %d virtual stages fit",
                       family->name, chunks, params->pipeline, (long long)stages, DP_STAGES_MAX,
                       DP_STAGES_MAX / params->pipeline);
    }
    return DP_OK;
}

int32_t dp_schedule_family_stages(const struct dp_schedule_family *family,
                                  const struct dp_schedule_params *params)
{
    bool chosen = family->virtual_max > 0 && params->virtual_stages > 0;
    int32_t chunks = chosen ? params->virtual_stages : family->stages_per_rank;
    return chunks * params->pipeline / family->directions;
}

static dp_status find_and_check(const char *name, const struct dp_schedule_params *params,
                                const struct dp_schedule_family **ret_family, struct dp_error *err)
{
    const struct dp_schedule_family *family = dp_schedule_family_find(name);
    if (family == NULL) {
        DP_CLEANUP(dp_buf_deinit) struct dp_buf names = {0};
        for (size_t i = 0; i < DP_ARRAY_LENGTH(families); i++) {
            dp_buf_printf(&names, "%s%s", i > 0 ? ", " : "", families[i].name);
        }
        return dp_fail(err, DP_NOT_FOUND, "there is no schedule \"%.40s\"; there are %s", name,
                       names.bytes);
    }
    dp_status status = check_sizes(family, params, err);
    if (status == DP_OK) {
        status = family->check(params, err);
    }
    *ret_family = family;
    return status;
}

dp_status dp_schedule_check(const char *name, const struct dp_schedule_params *params,
                            struct dp_error *err)
{
    const struct dp_schedule_family *family;
    return find_and_check(name, params, &family, err);
}

dp_status dp_schedule_generate(const char *name, const struct dp_schedule_params *params,
                               struct dp_schedule *ret_schedule, struct dp_error *err)
{
    const struct dp_schedule_family *family;
    dp_status status = find_and_check(name, params, &family, err);
    if (status != DP_OK) {
        return status;
    }
    struct dp_schedule schedule = {0};
    DP_COPY_TEXT(schedule.name, family->name);
    status = family->generate(params, &schedule, err);
    if (status != DP_OK) {
        dp_schedule_deinit(&schedule);
        return status;
    }
    *ret_schedule = schedule;
    return DP_OK;
}
