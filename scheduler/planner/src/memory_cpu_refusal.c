// Why a job fits into no cpu rank's memory, and the change that comes nearest to making it fit.

#include <stdio.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "search.h"

// A choice that takes less, with what of the problem it changes.
struct variant {
    char what[DP_NAME_MAX];
    struct choice choice;
    dp_format format;
    dp_moments moments;
    uint32_t offload;
};

enum { VARIANTS_MAX = 6 };

static size_t list_variants(const struct problem *problem, const struct choice *choice,
                            struct variant ret_variants[VARIANTS_MAX])
{
    const struct variant same = {.choice = *choice,
                                 .format = problem->fp8 ? DP_FORMAT_FP8_BLOCK : DP_FORMAT_AUTO,
                                 .offload = problem->offload};
    size_t count = 0;
    for (int i = 0; i < VARIANTS_MAX; i++) {
        ret_variants[i] = same;
    }
    if (choice->data > 1 && choice->shard == DP_SHARD_NONE) {
        DP_COPY_TEXT(ret_variants[count].what, "shard = zero1");
        ret_variants[count++].choice.shard = DP_SHARD_ZERO1;
    }
    if (choice->micro_batch_size % 2 == 0) {
        struct choice *half = &ret_variants[count].choice;
        half->micro_batch_size /= 2;
        half->microbatches *= 2;
        snprintf(ret_variants[count++].what, DP_NAME_MAX, "micro_batch_size = %d",
                 (int)half->micro_batch_size);
    }
    if (choice->recompute != DP_RECOMPUTE_FULL) {
        DP_COPY_TEXT(ret_variants[count].what, "recompute = full");
        ret_variants[count++].choice.recompute = DP_RECOMPUTE_FULL;
    }
    DP_COPY_TEXT(ret_variants[count].what, "optimizer moments = bf16");
    ret_variants[count++].moments = DP_MOMENTS_BF16;
    if (problem->profile->element_bytes == 4) {
        DP_COPY_TEXT(ret_variants[count].what, "precision = bf16");
        ret_variants[count++].format = DP_FORMAT_BF16;
    }
    if (problem->offload == 0) {
        DP_COPY_TEXT(ret_variants[count].what, "offload = inputs+attention+ffn+experts");
        ret_variants[count++].offload =
            DP_OFFLOAD_INPUTS | DP_OFFLOAD_ATTENTION | DP_OFFLOAD_FFN | DP_OFFLOAD_EXPERTS;
    }
    return count;
}

// Bytes of the fullest rank and its limit; false for what cannot be priced.
static bool price(const struct problem *problem, const struct variant *variant, double *ret_bytes,
                  double *ret_limit)
{
    DP_AUTO_FREE struct dp_profile *profile = dp_memdup(problem->profile, sizeof(*profile));
    struct problem changed = *problem;
    changed.profile = profile;
    changed.offload = variant->offload;
    if (variant->format == DP_FORMAT_BF16 || variant->moments == DP_MOMENTS_BF16) {
        dp_profile_set_cpu_format(
            profile, variant->format == DP_FORMAT_BF16 ? DP_FORMAT_BF16 : DP_FORMAT_AUTO,
            variant->moments);
    }
    DP_CLEANUP(dp_planner_evaluation_deinit) struct evaluation evaluation = {0};
    struct dp_error err;
    int32_t position;
    if (dp_planner_evaluate(&changed, &variant->choice, &evaluation, &err) != DP_OK) {
        return false;
    }
    *ret_bytes = dp_planner_fullest_rank(&changed, &evaluation, ret_limit, &position);
    return true;
}

static void write_parts(const struct dp_memory_parts *parts, struct dp_buf *out)
{
    dp_buf_printf(out,
                  ": weights %.3g, gradients %.3g, optimizer %.3g, activations %.3g, running "
                  "action %.3g, buffers %.3g GB",
                  parts->weights / 1e9, parts->gradients / 1e9, parts->optimizer / 1e9,
                  (parts->activations + parts->deferred) / 1e9, parts->transient / 1e9,
                  parts->exchange / 1e9);
}

void dp_planner_cpu_refusal_write(const struct problem *problem, const struct outcome *least,
                                  struct dp_buf *out)
{
    DP_CLEANUP(dp_planner_evaluation_deinit) struct evaluation evaluation = {0};
    struct dp_error err;
    if (dp_planner_evaluate(problem, &least->choice, &evaluation, &err) != DP_OK) {
        return; // it was evaluated before
    }
    struct dp_memory_parts parts;
    dp_planner_rank_memory(problem, &evaluation.layout, &evaluation.schedule,
                           least->memory_position, &parts);
    write_parts(&parts, out);
    struct variant variants[VARIANTS_MAX];
    const size_t count = list_variants(problem, &least->choice, variants);
    const struct variant *nearest = NULL;
    double nearest_bytes = 0, nearest_limit = 0;
    for (size_t i = 0; i < count; i++) {
        double bytes, limit;
        if (!price(problem, &variants[i], &bytes, &limit)) {
            continue;
        }
        if (nearest == NULL || bytes < nearest_bytes || bytes <= limit) {
            nearest = &variants[i];
            nearest_bytes = bytes;
            nearest_limit = limit;
        }
        if (bytes <= limit) {
            break;
        }
    }
    if (nearest != NULL && nearest_bytes < least->memory_bytes) {
        bool fits = nearest_bytes <= nearest_limit;
        dp_buf_printf(out, "; %s %s, with %.3g GB", nearest->what,
                      fits ? "would fit" : "comes nearest", nearest_bytes / 1e9);
    }
}
