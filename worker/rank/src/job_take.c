// The state of ranks that hold theirs becomes this rank's.
#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/log.h"
#include "dp/state.h"
#include "job.h"

#define MEET_NS (60 * DP_NS_PER_S) // as for peers: the controller knows that they are there
#define ONE_SILENT_MS 5000         // where others tell the same

DP_DEFINE_CLEANUP(cleanup_reader, struct dp_state_reader, dp_state_reader_free)

// A rank without tensors needs to know where the training stands, which any source tells: each asks
// another one first.
static dp_status open_any(const struct dp_state_reader_config *config,
                          struct dp_state_reader **ret_reader, struct dp_error *err)
{
    dp_status status = DP_UNAVAILABLE;
    int64_t now_ns = dp_clock_monotonic_ns();
    for (int32_t i = 0; status != DP_OK && i < config->count && now_ns < config->deadline_ns; i++) {
        struct dp_state_reader_config one = *config;
        one.sources = &config->sources[(config->rank + i) % config->count];
        one.count = 1;
        one.silent_ms = ONE_SILENT_MS;
        one.deadline_ns = now_ns + ONE_SILENT_MS * DP_NS_PER_MS;
        status = dp_state_reader_open(&one, ret_reader, err);
        now_ns = dp_clock_monotonic_ns();
    }
    return status;
}

static dp_status take(struct job *job, struct dp_state_reader *reader, struct dp_error *err)
{
    const int64_t began_ns = dp_clock_monotonic_ns();
    const struct dp_tensor_source source = dp_state_reader_source(reader);
    dp_status status = dp_trainer_take(job->trainer, &source, dp_state_reader_meta(reader), err);
    struct dp_state_reader_stats stats;
    char lost[DP_ERROR_MESSAGE_MAX];
    dp_state_reader_stats(reader, &stats);
    if (status == DP_OK) {
        dp_log_info("rank.state_taken", "step=%lld bytes=%llu sources=%d ms=%.1f lost=%s",
                    (long long)dp_trainer_step_done(job->trainer), (unsigned long long)stats.bytes,
                    stats.sources, (double)(dp_clock_monotonic_ns() - began_ns) / DP_NS_PER_MS,
                    dp_log_quote(lost, sizeof lost, dp_state_reader_lost(reader)));
    }
    return status;
}

dp_status job_take(struct job *job, const Dp__V1__RankStart *start, struct dp_error *err)
{
    if (!job->takes_state) {
        return DP_OK;
    }
    const size_t count = start->n_sources;
    if (count == 0 || count > DP_TRANSPORT_WORLD_MAX) {
        return dp_fail(err, DP_INVALID, "the order to start names %zu ranks that hold the state",
                       count);
    }
    DP_AUTO_FREE struct dp_state_address *sources = dp_new_array(struct dp_state_address, count);
    for (size_t i = 0; i < count; i++) {
        sources[i] =
            (struct dp_state_address){(int32_t)start->sources[i]->rank, start->sources[i]->address};
    }
    const struct dp_state_reader_config config = {.sources = sources,
                                                  .count = (int32_t)count,
                                                  .rank = (int32_t)job->rank,
                                                  .token = start->state_token,
                                                  .step = (int64_t)start->state_step,
                                                  .deadline_ns = dp_clock_monotonic_ns() + MEET_NS};
    DP_CLEANUP(cleanup_reader) struct dp_state_reader *reader = NULL;
    dp_status status = job->device == NULL ? open_any(&config, &reader, err)
                                           : dp_state_reader_open(&config, &reader, err);
    return status == DP_OK ? take(job, reader, err) : status;
}
