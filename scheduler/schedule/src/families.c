#include "families.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/diag.h"

static const struct dp_schedule_family families[] = {
    {"gpipe", "all forwards, then all backwards; activations of every micro-batch stay alive",
     "any P and M", 1, 1, 0, 1, dp_schedule_gpipe_check, dp_schedule_gpipe_generate, true},
    {"1f1b", "one forward, one backward in turn; at most P chunks alive", "any P and M", 1, 1, 0, 1,
     dp_schedule_one_f_one_b_check, dp_schedule_one_f_one_b_generate, true},
    {"interleaved",
     "1F1B over v chunks per rank: a v-th of its bubble, v times its messages, more activations",
     "any P and M (M a multiple of P advised); v = 1 to 32, 2 by default", 1, 2, DP_RANK_STAGES_MAX,
     1, dp_schedule_interleaved_check, dp_schedule_interleaved_generate, true},
    {"interleaved-zb",
     "interleaved with split backward: weight gradients fill the drain; P micro-batches alive",
     "any P and M (M a multiple of P advised); v = 1 to 32, 2 by default", 1, 2, DP_RANK_STAGES_MAX,
     1, dp_schedule_interleaved_zb_check, dp_schedule_interleaved_zb_generate, false},
    {"zb-h1", "1F1B with split backward: weight gradients fill the drain; memory of 1F1B's rank 0",
     "any P and M (M at least P advised)", 1, 1, 0, 1, dp_schedule_zb_h1_check,
     dp_schedule_zb_h1_generate, false},
    {"zb-h2", "ZB-H1 with twice the forwards ahead: no rank idles while it is at work; 2P-1 alive",
     "any P and M (M at least 2P-1 advised)", 1, 1, 0, 1, dp_schedule_zb_h2_check,
     dp_schedule_zb_h2_generate, false},
    {"zb-v", "2P stages in a V, split backward: no bubble but the ramp when F = I = W; P alive",
     "any P and M (M at least P advised)", 1, 2, 0, 1, dp_schedule_zb_v_check,
     dp_schedule_zb_v_generate, false},
    {"v-half", "ZB-V with half of the activations, for half of 1F1B's bubble",
     "any P and M (M at least P advised)", 1, 2, 0, 1, dp_schedule_v_half_check,
     dp_schedule_v_half_generate, false},
    {"v-half-late-w",
     "V-Half for I longer than F + W/2; each micro-batch pays for hops; odd P: V-Half itself",
     "any P and M (M at least P advised)", 1, 2, 0, 1, dp_schedule_v_half_late_w_check,
     dp_schedule_v_half_late_w_generate, false},
    {"v-min",
     "ZB-V with a third of the activations, for two thirds of 1F1B's bubble; wants F = I = W",
     "any P and M (M at least P advised)", 1, 2, 0, 1, dp_schedule_v_min_check,
     dp_schedule_v_min_generate, false},
    {"chimera", "two streams from both ends, full backward; every stage held twice",
     "P even; M at least 2 (a multiple of P advised)", 2, 2, 0, 1, dp_schedule_chimera_check,
     dp_schedule_chimera_generate, false},
    {"hanayo", "v/2 waves to and fro over the ranks, full backward; no message at the turns",
     "any P and M (M = P advised); v = 2 to 32, even, 2 by default", 1, 2, DP_RANK_STAGES_MAX, 2,
     dp_schedule_hanayo_check, dp_schedule_hanayo_generate, false},
    {"dualpipe",
     "two streams from both ends, overlapped pairs, split backward; every stage held twice",
     "P even; M even, at least 2P-2 (2P and more advised)", 2, 2, 0, 1, dp_schedule_dualpipe_check,
     dp_schedule_dualpipe_generate, true},
    {"dualpipe-full-b", "DualPipe without split backward in the cool-down",
     "P even; M even, at least 2P-2 (2P and more advised)", 2, 2, 0, 1,
     dp_schedule_dualpipe_full_b_check, dp_schedule_dualpipe_full_b_generate, true},
    {"dualpipev", "DualPipe folded into a V: 2P stages, each held once, overlapped pairs",
     "any P; M at least 2P-1 (2P and more advised)", 1, 2, 0, 1, dp_schedule_dualpipev_check,
     dp_schedule_dualpipev_generate, true},
    {"dualpipev-full-b", "DualPipeV without split backward in the cool-down",
     "any P; M at least 2P-1 (2P and more advised)", 1, 2, 0, 1, dp_schedule_dualpipev_full_b_check,
     dp_schedule_dualpipev_full_b_generate, true},
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

static dp_status check_stages(const struct dp_schedule_family *family,
                              const struct dp_schedule_params *params, struct dp_error *err)
{
    int32_t chunks = params->virtual_stages;
    int64_t stages = (int64_t)params->pipeline * chunks;
    if (family->virtual_max == 0 || stages <= DP_STAGES_MAX) {
        return DP_OK;
    }
    return dp_fail(err, DP_INVALID,
                   "%s of %d virtual stages on %d ranks has %lld stages; the limit is %d. Nearest "
                   "legal: %d",
                   family->name, chunks, params->pipeline, (long long)stages, DP_STAGES_MAX,
                   DP_STAGES_MAX / params->pipeline / family->virtual_step * family->virtual_step);
}

// The value nearest to what was asked for that the family takes beside the other sizes; 0 = none.
// *size is a member of *params.
static int32_t nearest_size(const struct dp_schedule_family *family,
                            struct dp_schedule_params *params, int32_t *size, int32_t max)
{
    int32_t step = *size < 1 ? 1 : -1;
    for (*size = *size < 1 ? 1 : max; *size >= 1 && *size <= max; *size += step) {
        if (check_stages(family, params, NULL) == DP_OK && family->check(params, NULL) == DP_OK) {
            return *size;
        }
    }
    return 0;
}

static dp_status refuse_size(const struct dp_schedule_family *family, const char *name,
                             int32_t asked, int32_t max, int32_t nearest, struct dp_error *err)
{
    char legal[48] = "";
    if (nearest > 0) {
        snprintf(legal, sizeof(legal), ". Nearest legal: %d", nearest);
    }
    return dp_fail(err, DP_INVALID, "%s: %s must be 1 to %d; it is %d%s", family->name, name, max,
                   asked, legal);
}

// Both multiples of the step beside what was asked for, as far as they are legal.
static dp_status refuse_virtual(const struct dp_schedule_family *family, int32_t chunks,
                                struct dp_error *err)
{
    int32_t step = family->virtual_step;
    int32_t below = chunks < 0 ? 0 : chunks / step * step;
    below = below > family->virtual_max ? family->virtual_max : below;
    int32_t above = below + step;
    char nearest[32];
    if (below == 0) {
        snprintf(nearest, sizeof(nearest), "%d", step);
    } else if (above > family->virtual_max) {
        snprintf(nearest, sizeof(nearest), "%d", below);
    } else {
        snprintf(nearest, sizeof(nearest), "%d, %d", below, above);
    }
    return dp_fail(err, DP_INVALID,
                   "%s takes %d to %d virtual stages per rank, in steps of %d; %d were asked for. "
                   "Nearest legal: %s",
                   family->name, step, family->virtual_max, step, chunks, nearest);
}

static dp_status check_virtual(const struct dp_schedule_family *family,
                               const struct dp_schedule_params *params, struct dp_error *err)
{
    int32_t chunks = params->virtual_stages;
    if (chunks == 0) {
        return DP_OK;
    }
    if (family->virtual_max == 0) {
        return chunks == family->stages_per_rank
                   ? DP_OK
                   : dp_fail(err, DP_INVALID,
                             "%s holds %d stage%s per rank; %d virtual stages were asked for. "
                             "Nearest legal: %d; or leave virtual out",
                             family->name, family->stages_per_rank,
                             family->stages_per_rank == 1 ? "" : "s", chunks,
                             family->stages_per_rank);
    }
    int32_t step = family->virtual_step;
    if (chunks < step || chunks > family->virtual_max || chunks % step != 0) {
        return refuse_virtual(family, chunks, err);
    }
    return DP_OK;
}

static dp_status check_sizes(const struct dp_schedule_family *family,
                             const struct dp_schedule_params *params, struct dp_error *err)
{
    struct dp_schedule_params tried = *params;
    dp_status status = check_virtual(family, params, err);
    if (status != DP_OK) {
        return status;
    }
    if (params->pipeline < 1 || params->pipeline > DP_PIPELINE_MAX) {
        tried.microbatches = tried.microbatches < 1 ? 1 : tried.microbatches;
        int32_t nearest = nearest_size(family, &tried, &tried.pipeline, DP_PIPELINE_MAX);
        return refuse_size(family, "pipeline", params->pipeline, DP_PIPELINE_MAX, nearest, err);
    }
    if (params->microbatches < 1 || params->microbatches > DP_MICROBATCHES_MAX) {
        int32_t nearest = nearest_size(family, &tried, &tried.microbatches, DP_MICROBATCHES_MAX);
        return refuse_size(family, "microbatches", params->microbatches, DP_MICROBATCHES_MAX,
                           nearest, err);
    }
    return check_stages(family, params, err);
}

int32_t dp_schedule_family_stages(const struct dp_schedule_family *family,
                                  const struct dp_schedule_params *params)
{
    bool chosen = family->virtual_max > 0 && params->virtual_stages > 0;
    int32_t chunks = chosen ? params->virtual_stages : family->stages_per_rank;
    return chunks * params->pipeline / family->directions;
}

// Names are in lower case; a near one is named, whatever its case.
static dp_status fail_unknown(const char *name, struct dp_error *err)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf names = {0};
    const char *candidates[DP_ARRAY_LENGTH(families) + 2] = {NULL};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(families); i++) {
        candidates[i] = families[i].name;
        dp_buf_printf(&names, "%s, ", families[i].name);
    }
    candidates[DP_ARRAY_LENGTH(families)] = "auto";
    char lower[DP_NAME_MAX];
    snprintf(lower, sizeof(lower), "%s", name);
    for (char *c = lower; *c != '\0'; c++) {
        *c = (char)tolower((unsigned char)*c);
    }
    const char *meant = dp_suggest(lower, candidates);
    return dp_fail(err, DP_NOT_FOUND, "there is no schedule \"%.40s\"; %s%s%sthere are %sauto",
                   name, meant != NULL ? "did you mean " : "", meant != NULL ? meant : "",
                   meant != NULL ? "? " : "", names.bytes);
}

static dp_status find_and_check(const char *name, const struct dp_schedule_params *params,
                                const struct dp_schedule_family **ret_family, struct dp_error *err)
{
    const struct dp_schedule_family *family = dp_schedule_family_find(name);
    if (family == NULL) {
        return fail_unknown(name, err);
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
    // A generator asks for as many actions as it can need at most.
    schedule.actions = dp_realloc(schedule.actions, dp_schedule_action_count(&schedule),
                                  sizeof(*schedule.actions));
    *ret_schedule = schedule;
    return DP_OK;
}
