// What runs after ranks are lost.

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "anew.h"
#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/plan_survival.h"

const char *dp_adapt_recovery_text(dp_adapt_recovery_kind kind)
{
    static const char *const names[] = {"spares", "fewer", "checkpoint"};
    return names[kind];
}

void dp_adapt_recovery_deinit(struct dp_adapt_recovery *recovery)
{
    dp_plan_deinit(&recovery->plan);
    free(recovery->action);
    free(recovery->reason);
    *recovery = (struct dp_adapt_recovery){0};
}

static int32_t count_lost(const struct dp_adapt_loss *loss)
{
    int32_t count = 0;
    for (int32_t r = 0; r < dp_plan_world(loss->plan); r++) {
        count += loss->lost[r];
    }
    return count;
}

// Whether the memory of a place takes what a rank holds; the sim device's hold nothing.
static bool takes(const struct dp_adapt_loss *loss, const struct dp_adapt_spare *spare,
                  int32_t rank)
{
    bool is_sim = loss->spec != NULL && loss->spec->resources.device == DP_DEVICE_SIM;
    return is_sim || spare->memory_bytes <= 0 ||
           loss->plan->ranks[rank].memory_bytes <= spare->memory_bytes;
}

// The fastest free place that takes the rank; -1 = none.
static int64_t find_spare(const struct dp_adapt_loss *loss, const bool *taken, int32_t rank)
{
    int64_t best = -1;
    for (size_t i = 0; i < loss->spares_count; i++) {
        const struct dp_adapt_spare *spare = &loss->spares[i];
        double slow = spare->slow > 0 ? spare->slow : 1;
        double least = best < 0 ? INFINITY : fmax(loss->spares[best].slow, 1);
        if (!taken[i] && takes(loss, spare, rank) && slow < least) {
            best = (int64_t)i;
        }
    }
    return best;
}

static bool on_spares(const struct dp_adapt_loss *loss, struct dp_plan *plan, struct dp_buf *words)
{
    DP_AUTO_FREE bool *taken = dp_new_array(bool, loss->spares_count);
    for (int32_t r = 0; r < dp_plan_world(loss->plan); r++) {
        if (!loss->lost[r]) {
            continue;
        }
        int64_t spare = find_spare(loss, taken, r);
        if (spare < 0) {
            return false;
        }
        taken[spare] = true;
        DP_COPY_TEXT(plan->ranks[r].node, loss->spares[spare].node);
        plan->ranks[r].slot = loss->spares[spare].slot;
        dp_buf_printf(words, "%srank %d to %s slot %d", words->length > 0 ? ", " : "", r,
                      plan->ranks[r].node, plan->ranks[r].slot);
    }
    return true;
}

// Shares of a step for fewer replicas: as even as whole units allow, units being what any legal
// number of the family differs by.
static dp_status share_out(struct dp_plan *plan, int64_t total, struct dp_error *err)
{
    DP_AUTO_FREE int32_t *counts = dp_new_array(int32_t, (size_t)plan->data);
    int32_t coupled = dp_plan_coupled_replicas(plan);
    dp_status status = DP_INVALID;
    for (int32_t unit = 1; unit <= total && unit <= 4 * plan->pipeline && status != DP_OK; unit++) {
        int64_t units = total / unit / coupled, blocks = plan->data / coupled;
        if (total % ((int64_t)unit * coupled) != 0 || units / blocks < 1) {
            continue;
        }
        for (int32_t d = 0; d < plan->data; d++) {
            int64_t share = units / blocks + (d / coupled < units % blocks);
            counts[d] = share * unit <= DP_MICROBATCHES_MAX ? (int32_t)(share * unit) : 0;
        }
        status = dp_plan_share_microbatches(plan, counts, err);
    }
    return status;
}

// Places of the ranks that are left, then free ones: where the ranks of fewer replicas go. Whole
// replicas stay where they are.
static void place_fewer(const struct dp_adapt_loss *loss, struct dp_plan *plan)
{
    const struct dp_plan *old = loss->plan;
    int32_t of_replica = old->pipeline * dp_plan_shards(old), next = 0;
    DP_AUTO_FREE bool *used = dp_new_array(bool, (size_t)dp_plan_world(old));
    DP_AUTO_FREE bool *placed = dp_new_array(bool, (size_t)plan->data);
    for (int32_t d = 0; d < old->data && next < plan->data; d++) {
        bool is_whole = true;
        for (int32_t i = 0; i < of_replica; i++) {
            is_whole = is_whole && !loss->lost[d * of_replica + i];
        }
        for (int32_t i = 0; is_whole && i < of_replica; i++) {
            plan->ranks[next * of_replica + i] = old->ranks[d * of_replica + i];
            used[d * of_replica + i] = true;
        }
        next += is_whole;
    }
    int32_t left = 0;
    size_t spare = 0;
    for (int32_t i = next * of_replica; i < plan->data * of_replica; i++) {
        while (left < dp_plan_world(old) && (used[left] || loss->lost[left])) {
            left++;
        }
        if (left < dp_plan_world(old)) {
            DP_COPY_TEXT(plan->ranks[i].node, old->ranks[left].node);
            plan->ranks[i].slot = old->ranks[left++].slot;
        } else {
            DP_COPY_TEXT(plan->ranks[i].node, loss->spares[spare].node);
            plan->ranks[i].slot = loss->spares[spare++].slot;
        }
    }
}

static void scale_times(const struct dp_plan *old, struct dp_plan *plan)
{
    double factor = (double)plan->microbatches / old->microbatches;
    double work = plan->compute_s + plan->comm_s;
    plan->compute_s *= factor;
    plan->comm_s *= factor;
    double before = plan->step_s;
    plan->step_s += (factor - 1) * work;
    plan->tokens_per_s *= plan->step_s > 0 ? before / plan->step_s : 1;
    for (int32_t r = 0; r < dp_plan_world(plan); r++) {
        plan->ranks[r].busy_s *= factor;
    }
}

// The same pipeline, fewer replicas, which share the step's micro-batches.
static dp_status fewer_replicas(const struct dp_adapt_loss *loss, struct dp_plan *ret_plan,
                                struct dp_error *err)
{
    const struct dp_plan *old = loss->plan;
    int32_t of_replica = old->pipeline * dp_plan_shards(old);
    int32_t coupled = dp_plan_coupled_replicas(old);
    int64_t places = dp_plan_world(old) - count_lost(loss) + (int64_t)loss->spares_count;
    int64_t data = places / of_replica / coupled * coupled;
    if (data < 1) {
        return dp_fail(err, DP_UNSCHEDULABLE, "%lld places are left, a pipeline takes %d",
                       (long long)places, of_replica * coupled);
    }
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = {0};
    dp_plan_copy(&plan, old);
    int64_t total = dp_plan_step_microbatches(old);
    for (int32_t d = 0; plan.replicas != NULL && d < plan.data; d++) {
        free(plan.replicas[d].schedule_json);
    }
    free(plan.replicas);
    plan.replicas = NULL;
    plan.data = data < old->data ? (int32_t)data : old->data;
    dp_status status = share_out(&plan, total, err);
    if (status == DP_OK) {
        place_fewer(loss, &plan);
        scale_times(old, &plan);
        *ret_plan = plan;
        plan = (struct dp_plan){0};
    }
    return status;
}

// Whether the job leaves the number of replicas to the planner.
static bool replicas_are_free(const struct dp_adapt_loss *loss)
{
    const struct dp_job_spec *spec = loss->spec;
    return spec == NULL || (spec->parallel.data == 0 && spec->parallel.microbatches == 0 &&
                            spec->resources.ranks == 0);
}

// The faster of fewer replicas and what the planner makes of what is left: as the job sets it, or,
// if it `loosens`, giving up what it sets.
static dp_status on_fewer(const struct dp_adapt_loss *loss, bool loosens, struct dp_plan *ret_plan,
                          bool *ret_is_anew, struct dp_buf *words, struct dp_error *err)
{
    DP_CLEANUP(dp_plan_deinit) struct dp_plan fewer = {0}, anew = {0};
    bool free_replicas = replicas_are_free(loss);
    const char *gave = "", *gave_fewer = free_replicas ? "" : "the number of replicas";
    dp_status status = dp_fail(err, DP_UNSCHEDULABLE, "the job sets its sizes");
    dp_status planned = status;
    if (free_replicas != loosens) {
        status = fewer_replicas(loss, &fewer, err);
    }
    if (loss->spec != NULL && loss->resources != NULL && loss->resources->nodes_count > 0) {
        planned = dp_adapt_plan_anew(loss->spec, loss->resources, loss->options, loosens, &anew,
                                     &gave, err);
    }
    if (planned == DP_INTERRUPTED) {
        return planned;
    }
    bool takes_anew = planned == DP_OK && (status != DP_OK || anew.step_s < fewer.step_s);
    struct dp_plan *taken = takes_anew ? &anew : &fewer;
    if (!takes_anew && status != DP_OK) {
        return status;
    }
    gave = takes_anew ? gave : gave_fewer;
    dp_buf_printf(words, "%d ranks instead of %d: pipeline %d x data %d", dp_plan_world(taken),
                  dp_plan_world(loss->plan), taken->pipeline, taken->data);
    if (taken->replicas != NULL) {
        dp_buf_puts(words, ", micro-batches of the replicas ");
        for (int32_t d = 0; d < taken->data && d < 16; d++) {
            dp_buf_printf(words, "%s%d", d > 0 ? "," : "", taken->replicas[d].microbatches);
        }
    }
    dp_buf_printf(words, "%s%s", gave[0] != '\0' ? ", giving up " : "", gave);
    *ret_is_anew = takes_anew;
    *ret_plan = *taken;
    *taken = (struct dp_plan){0};
    return DP_OK;
}

// What is gone for good, in words; empty when everything survives.
static dp_status find_gone(const struct dp_adapt_loss *loss, struct dp_buf *ret_gone,
                           struct dp_error *err)
{
    bool survives = loss->covered > 0;
    struct dp_plan_copies gone;
    if (loss->covered < 0) {
        dp_buf_puts(ret_gone, "not every tensor is on a rank that is left");
        return DP_OK;
    }
    dp_status status =
        loss->covered > 0 ? DP_OK : dp_plan_survives(loss->plan, loss->lost, &survives, &gone, err);
    if (status != DP_OK || survives) {
        return status;
    }
    dp_buf_printf(ret_gone, "the %s of stage %d had no other copy than on lost ranks (rank %d)",
                  dp_plan_tensors_text(gone.tensors), gone.stage, gone.rank);
    if (loss->plan->shard == DP_SHARD_ZERO1 && gone.tensors == DP_PLAN_MOMENTS) {
        dp_buf_puts(ret_gone, ": zero1 shares the moments out");
    }
    return DP_OK;
}

static dp_status check_loss(const struct dp_adapt_loss *loss, struct dp_error *err)
{
    return count_lost(loss) == 0 ? dp_fail(err, DP_INVALID, "no rank of the plan is lost") : DP_OK;
}

dp_status dp_adapt_recover(const struct dp_adapt_loss *loss, struct dp_adapt_recovery *ret_recovery,
                           struct dp_error *err)
{
    DP_CLEANUP(dp_adapt_recovery_deinit) struct dp_adapt_recovery recovery = {0};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf words = {0}, gone = {0}, why = {0};
    dp_status status = check_loss(loss, err);
    status = status == DP_OK ? find_gone(loss, &gone, err) : status;
    if (status != DP_OK) {
        return status;
    }
    int32_t lost = count_lost(loss);
    dp_buf_printf(&why, "%d of %d ranks are lost", lost, dp_plan_world(loss->plan));
    struct dp_error refusal = {0};
    struct dp_plan plan = {0};
    dp_plan_copy(&plan, loss->plan);
    if (on_spares(loss, &plan, &words)) {
        recovery.kind = DP_ADAPT_ON_SPARES;
        recovery.has_plan = true;
        recovery.plan = plan;
    } else {
        dp_plan_deinit(&plan);
        words.length = 0;
        dp_buf_printf(&why, "; %zu free slots do not take them all", loss->spares_count);
        recovery.kind = DP_ADAPT_ON_FEWER;
        status = on_fewer(loss, false, &recovery.plan, &recovery.is_anew, &words, &refusal);
        if (status != DP_OK && status != DP_INTERRUPTED && !loss->obeys && loss->spec != NULL) {
            status = on_fewer(loss, true, &recovery.plan, &recovery.is_anew, &words, &refusal);
        }
        recovery.has_plan = status == DP_OK;
    }
    if (status == DP_INTERRUPTED) {
        return dp_fail(err, DP_INTERRUPTED, "the search for a plan was stopped");
    }
    if (!recovery.has_plan) {
        dp_buf_printf(&why, "; on what is left: %s", refusal.message);
    }
    if (gone.length > 0) {
        dp_buf_printf(&why, "; %s", gone.bytes);
    }
    if (gone.length > 0 || !recovery.has_plan) {
        recovery.kind = DP_ADAPT_FROM_CHECKPOINT;
    }
    recovery.action = dp_strdup(words.length > 0 ? words.bytes : "wait for nodes");
    recovery.reason = dp_buf_take(&why);
    *ret_recovery = recovery;
    recovery = (struct dp_adapt_recovery){0};
    return DP_OK;
}
