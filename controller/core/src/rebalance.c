// Experts are placed by their loads because these slow the job down: its ranks do it after a step
// that they agree on, while they train, and say so with that step.
#include "core_internal.h"

#include <stdio.h>

#include "dp/clock.h"

static void send_orders(struct dp_core *core, struct core_job *job)
{
    struct dp_fence fence = dp_core_job_fence(job);
    job->reassign.rebalance = core->next_request++;
    for (size_t i = 0; i < job->members_count; i++) {
        const struct core_node *node = job->members[i].at;
        if (node != NULL && node->session != 0) {
            dp_core_send(core, node, DP_ORDER_REBALANCE, &fence, NULL);
            core->effects->items[core->effects->count - 1].request = job->reassign.rebalance;
        }
    }
}

bool dp_core_rebalance_begin(struct dp_core *core, struct core_job *job,
                             const struct dp_adapt_done *done)
{
    if (!dp_core_reassign_may(job)) {
        return false;
    }
    dp_core_decision_make(core, job, done, DP_DECISION_SWITCHING);
    job->reassign.decision.epoch = job->row.epoch;
    send_orders(core, job);
    job->reassign.rebalance_ns = core->now_ns + dp_core_hold_timeout_ns(core, job);
    dp_core_job_touch(job);
    return true;
}

void dp_core_rebalance_follow(struct dp_core *core, struct core_job *job)
{
    send_orders(core, job);
    job->reassign.rebalance = 0; // nothing waits for it
}

void dp_core_rebalance_told(struct core_job *job, uint64_t step,
                            const struct dp_placement_report *report)
{
    struct core_reassign *reassign = &job->reassign;
    if (reassign->rebalance == 0 || !report->looked || !report->applied) {
        return;
    }
    reassign->rebalance = 0;
    reassign->rebalance_ns = 0;
    if (report->moved == 0) {
        dp_core_decision_set(job, DP_DECISION_ABANDONED,
                             "the ranks found no places that are clearly more even");
        return;
    }
    reassign->measured_from = step + 2; // the first one warms up
    dp_core_decision_set(job, DP_DECISION_RUNNING, "%s", "");
}

void dp_core_rebalance_drop(struct core_job *job, const char *why)
{
    struct core_reassign *reassign = &job->reassign;
    reassign->rebalances = false;
    if (reassign->rebalance != 0) {
        reassign->rebalance = 0;
        reassign->rebalance_ns = 0;
        dp_core_decision_set(job, DP_DECISION_ABANDONED, "%s", why);
    }
}

void dp_core_rebalance_deadline(struct dp_core *core, struct core_job *job)
{
    if (job->reassign.rebalance_ns != 0 && core->now_ns >= job->reassign.rebalance_ns) {
        dp_core_rebalance_drop(job, "the ranks did not say that they had placed their experts");
    }
}
