// The verdict of a replay of measured operations, in the detector's words.
#include <math.h>
#include <stdio.h>

#include "dp/replay.h"
#include "dp/straggler.h"

// What the replay does not explain, of the measured step.
static const double gaps_noticed = 1.1;

static bool is_compute(dp_replay_part part)
{
    return part == DP_REPLAY_PART_FORWARD || part == DP_REPLAY_PART_BACKWARD;
}

static dp_replay_part largest_part(const struct dp_replay_result *result)
{
    dp_replay_part largest = DP_REPLAY_PART_FORWARD;
    for (int part = 0; part < DP_REPLAY_PART_COUNT; part++) {
        double slowdown = result->slowdown_part[part];
        if (!isnan(slowdown) && !(slowdown <= result->slowdown_part[largest])) {
            largest = (dp_replay_part)part;
        }
    }
    return largest;
}

static const struct dp_replay_worker *slowest_worker(const struct dp_replay_result *result)
{
    const struct dp_replay_worker *slowest = &result->workers[0];
    for (int32_t i = 1; i < result->replicas * result->stages; i++) {
        slowest = result->workers[i].slowdown > slowest->slowdown ? &result->workers[i] : slowest;
    }
    return slowest;
}

static void blame_worker(const struct dp_replay_result *result,
                         struct dp_straggler_verdict *verdict)
{
    const struct dp_replay_worker *worker = slowest_worker(result);
    dp_replay_part part = largest_part(result);
    verdict->state = DP_STRAGGLER_SUSPECTED;
    verdict->cause = is_compute(part) ? DP_STRAGGLER_DEVICE : DP_STRAGGLER_LINK;
    verdict->rank = (uint32_t)worker->rank;
    snprintf(verdict->text, sizeof(verdict->text),
             "with rank %d (replica %d, stage %d) alone as measured and all else ideal the step "
             "takes %.3f times as long; making the slowest few ideal removes %.0f %% of the "
             "slowdown, most of which is %s",
             worker->rank, worker->dp_rank, worker->stage, worker->slowdown,
             100 * result->m_workers, dp_replay_part_text(part));
}

static void blame_stage(const struct dp_replay_result *result, struct dp_straggler_verdict *verdict)
{
    int32_t last = result->stages - 1;
    verdict->state = DP_STRAGGLER_NOTED;
    verdict->cause = DP_STRAGGLER_UNEVEN_STAGE;
    verdict->stage = (uint32_t)last;
    verdict->slowdown = result->slowdown_stage[last];
    snprintf(verdict->text, sizeof(verdict->text),
             "stage %d alone as measured makes the step %.3f times as long, on every replica; "
             "making it ideal removes %.0f %% of the slowdown, and the slowest few ranks %.0f %%",
             last, result->slowdown_stage[last], 100 * result->m_stage, 100 * result->m_workers);
}

static void blame_rest(const struct dp_replay_result *result, struct dp_straggler_verdict *verdict)
{
    dp_replay_part part = largest_part(result);
    verdict->state = DP_STRAGGLER_NOTED;
    verdict->cause = is_compute(part) ? DP_STRAGGLER_UNEVEN_DATA : DP_STRAGGLER_LINK;
    snprintf(
        verdict->text, sizeof(verdict->text),
        "neither few ranks (%.0f %%) nor the last stage (%.0f %%) explain the slowdown of "
        "%.3f; most of it is %s%s",
        100 * result->m_workers, 100 * result->m_stage, result->slowdown, dp_replay_part_text(part),
        is_compute(part) ? ", now here, now there: sequences of uneven length, or garbage" : "");
}

void dp_straggler_from_replay(const struct dp_replay_result *result,
                              struct dp_straggler_verdict *ret_verdict)
{
    struct dp_straggler_verdict verdict = {.rank = DP_STRAGGLER_NONE,
                                           .peer = DP_STRAGGLER_NONE,
                                           .stage = DP_STRAGGLER_NONE,
                                           .slowdown = result->slowdown,
                                           .lost_s = result->replayed_s - result->ideal_s};
    if (result->step_count > 0) {
        verdict.onset_step = result->steps[0].step;
        verdict.step = result->steps[result->step_count - 1].step;
    }
    switch (result->verdict) {
    case DP_REPLAY_EVEN:
        break;
    case DP_REPLAY_BAD_WORKER:
        blame_worker(result, &verdict);
        break;
    case DP_REPLAY_UNEVEN_STAGE:
        blame_stage(result, &verdict);
        break;
    case DP_REPLAY_ELSEWHERE:
        blame_rest(result, &verdict);
        break;
    }
    if (verdict.state == DP_STRAGGLER_HEALTHY && result->gaps >= gaps_noticed) {
        verdict.state = DP_STRAGGLER_NOTED;
        verdict.cause = DP_STRAGGLER_HOST;
        verdict.slowdown = result->gaps;
        verdict.lost_s = result->measured_s - result->replayed_s;
        snprintf(verdict.text, sizeof(verdict.text),
                 "the step takes %.2f times as long as its operations: the time is lost between "
                 "them, by the host or the loader of data",
                 result->gaps);
    }
    *ret_verdict = verdict;
}
