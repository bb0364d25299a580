#include <math.h>
#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/simulate.h"

static int32_t most_stages(const struct dp_schedule *schedule)
{
    int32_t most = 1;
    int32_t stages[DP_RANK_STAGES_MAX];
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        int32_t count = dp_schedule_rank_stages(schedule, rank, stages);
        most = count > most ? count : most;
    }
    return most;
}

void dp_sim_costs_init(struct dp_sim_costs *ret_costs, const struct dp_schedule *schedule)
{
    size_t ranks = (size_t)schedule->pipeline;
    size_t slots = (size_t)most_stages(schedule);
    *ret_costs = (struct dp_sim_costs){
        .pipeline = schedule->pipeline,
        .slots = (int32_t)slots,
        .chunks = dp_new_array(struct dp_sim_chunk, ranks * slots),
        .fb = dp_new_array(double, ranks * slots * slots),
        .fi = dp_new_array(double, ranks * slots * slots),
        .hops = dp_new_array(struct dp_sim_hop, ranks * ranks),
        .hosts = 1,
        .host = dp_new_array(int32_t, ranks),
        .cores = dp_new_array(double, 1),
        .gradient_sync = dp_new_array(double, ranks),
        .optimizer = dp_new_array(double, ranks),
        .barrier = true,
    };
}

void dp_sim_costs_deinit(struct dp_sim_costs *costs)
{
    free(costs->chunks);
    free(costs->fb);
    free(costs->fi);
    free(costs->hops);
    free(costs->host);
    free(costs->cores);
    free(costs->gradient_sync);
    free(costs->optimizer);
    *costs = (struct dp_sim_costs){0};
}

void dp_sim_costs_copy(struct dp_sim_costs *ret_costs, const struct dp_sim_costs *costs)
{
    size_t ranks = (size_t)costs->pipeline;
    size_t slots = (size_t)costs->slots;
    size_t pairs = ranks * slots * slots;
    struct dp_sim_costs copy = *costs;
    copy.chunks = dp_memdup(costs->chunks, ranks * slots * sizeof(*costs->chunks));
    copy.fb = dp_memdup(costs->fb, pairs * sizeof(double));
    copy.fi = dp_memdup(costs->fi, pairs * sizeof(double));
    copy.hops = dp_memdup(costs->hops, ranks * ranks * sizeof(*costs->hops));
    copy.host = dp_memdup(costs->host, ranks * sizeof(int32_t));
    copy.cores = dp_memdup(costs->cores, (size_t)costs->hosts * sizeof(double));
    copy.gradient_sync = dp_memdup(costs->gradient_sync, ranks * sizeof(double));
    copy.optimizer = dp_memdup(costs->optimizer, ranks * sizeof(double));
    *ret_costs = copy;
}

void dp_sim_costs_init_uniform(struct dp_sim_costs *ret_costs, const struct dp_schedule *schedule,
                               const struct dp_sim_uniform *uniform)
{
    dp_sim_costs_init(ret_costs, schedule);
    int32_t ranks = ret_costs->pipeline;
    int32_t slots = ret_costs->slots;
    for (int32_t i = 0; i < ranks * slots; i++) {
        ret_costs->chunks[i] = (struct dp_sim_chunk){
            .seconds = {[DP_ACTION_F] = uniform->f,
                        [DP_ACTION_B] = uniform->b,
                        [DP_ACTION_I] = uniform->i,
                        [DP_ACTION_W] = uniform->w},
            .activation_bytes = 1,
            .released_at_i_bytes = 1};
    }
    for (int32_t i = 0; i < ranks * slots * slots; i++) {
        ret_costs->fb[i] = uniform->fb > 0 ? uniform->fb : uniform->f + uniform->b;
        ret_costs->fi[i] = uniform->fi > 0 ? uniform->fi : uniform->f + uniform->i;
    }
    for (int32_t from = 0; from < ranks; from++) {
        for (int32_t to = 0; to < ranks; to++) {
            if (from != to) {
                *dp_sim_hop_at(ret_costs, from, to) = uniform->hop;
            }
        }
    }
}

bool dp_sim_costs_share_cores(const struct dp_sim_costs *costs)
{
    for (int32_t host = 0; host < costs->hosts; host++) {
        int32_t ranks = 0;
        for (int32_t rank = 0; rank < costs->pipeline; rank++) {
            ranks += costs->host[rank] == host;
        }
        if (costs->cores[host] > 0 && ranks > costs->cores[host]) {
            return true;
        }
    }
    return false;
}

static bool is_amount(double value)
{
    return isfinite(value) && value >= 0;
}

// Sums of such times over the longest schedule stay finite, and exact enough.
static bool is_seconds(double value)
{
    return value >= 0 && value <= DP_COST_SECONDS_MAX;
}

static dp_status check_chunk(const struct dp_sim_costs *costs, int32_t rank, int32_t slot,
                             struct dp_error *err)
{
    const struct dp_sim_chunk *chunk = dp_sim_chunk_at(costs, rank, slot);
    for (int kind = 0; kind < DP_ACTION_FB; kind++) {
        if (!is_seconds(chunk->seconds[kind])) {
            return dp_fail(err, DP_INVALID,
                           "rank %d, slot %d: %s takes %g seconds; give 0 to %g", rank, slot,
                           dp_action_kind_text((dp_action_kind)kind), chunk->seconds[kind],
                           DP_COST_SECONDS_MAX);
        }
    }
    if (chunk->released_at_i_bytes > chunk->activation_bytes) {
        return dp_fail(err, DP_INVALID,
                       "rank %d, slot %d: I frees %llu bytes of a chunk that has %llu", rank, slot,
                       (unsigned long long)chunk->released_at_i_bytes,
                       (unsigned long long)chunk->activation_bytes);
    }
    for (int32_t b = 0; b < costs->slots; b++) {
        size_t pair = dp_sim_pair_index(costs, rank, slot, b);
        if (!is_seconds(costs->fb[pair]) || !is_seconds(costs->fi[pair])) {
            return dp_fail(err, DP_INVALID,
                           "rank %d: the pair of slots %d and %d takes %g seconds; give 0 to %g",
                           rank, slot, b,
                           is_seconds(costs->fb[pair]) ? costs->fi[pair] : costs->fb[pair],
                           DP_COST_SECONDS_MAX);
        }
    }
    return DP_OK;
}

// A bandwidth may be absent (0), but not so small that a message takes for ever.
static dp_status check_hop(const struct dp_sim_costs *costs, int32_t from, int32_t to,
                           struct dp_error *err)
{
    const struct dp_sim_hop *hop = dp_sim_hop_at(costs, from, to);
    double bytes = fmax(costs->message_bytes_f, costs->message_bytes_b);
    if (!is_seconds(hop->latency) || !is_amount(hop->bytes_per_second)) {
        return dp_fail(err, DP_INVALID,
                       "hop from rank %d to %d: latency %g seconds, %g bytes/s; give at most %g "
                       "seconds",
                       from, to, hop->latency, hop->bytes_per_second, DP_COST_SECONDS_MAX);
    }
    if (!is_seconds(dp_sim_wire_seconds(hop, bytes))) {
        return dp_fail(err, DP_INVALID,
                       "hop from rank %d to %d: %g bytes at %g bytes/s take over %g seconds", from,
                       to, bytes, hop->bytes_per_second, DP_COST_SECONDS_MAX);
    }
    return DP_OK;
}

static dp_status check_rank(const struct dp_sim_costs *costs, int32_t rank, struct dp_error *err)
{
    if (costs->host[rank] < 0 || costs->host[rank] >= costs->hosts) {
        return dp_fail(err, DP_INVALID, "rank %d is on host %d; hosts are 0 to %d", rank,
                       costs->host[rank], costs->hosts - 1);
    }
    if (!is_seconds(costs->gradient_sync[rank]) || !is_seconds(costs->optimizer[rank])) {
        return dp_fail(err, DP_INVALID,
                       "rank %d: gradient sync %g, optimizer %g seconds; give 0 to %g", rank,
                       costs->gradient_sync[rank], costs->optimizer[rank], DP_COST_SECONDS_MAX);
    }
    dp_status status = DP_OK;
    for (int32_t to = 0; to < costs->pipeline && status == DP_OK; to++) {
        status = check_hop(costs, rank, to, err);
    }
    for (int32_t slot = 0; slot < costs->slots && status == DP_OK; slot++) {
        status = check_chunk(costs, rank, slot, err);
    }
    return status;
}

// All that a rank could ever hold must add up.
static dp_status check_bytes(const struct dp_sim_costs *costs, const struct dp_schedule *schedule,
                             int32_t rank, struct dp_error *err)
{
    uint64_t chunks = (uint64_t)costs->slots * (uint64_t)schedule->microbatches;
    unsigned long long most = DP_COST_RANK_BYTES_MAX / chunks;
    for (int32_t slot = 0; slot < costs->slots; slot++) {
        unsigned long long bytes = dp_sim_chunk_at(costs, rank, slot)->activation_bytes;
        if (bytes > most) {
            return dp_fail(err, DP_INVALID,
                           "rank %d, slot %d: each chunk keeps %llu bytes of activations; %llu is "
                           "the most with %d micro-batches",
                           rank, slot, bytes, most, schedule->microbatches);
        }
    }
    return DP_OK;
}

dp_status dp_sim_costs_check(const struct dp_sim_costs *costs, const struct dp_schedule *schedule,
                             struct dp_error *err)
{
    int32_t slots = most_stages(schedule);
    if (costs->pipeline != schedule->pipeline || costs->slots < slots) {
        return dp_fail(err, DP_INVALID,
                       "costs are for %d ranks of %d stages; the schedule has %d ranks of %d",
                       costs->pipeline, costs->slots, schedule->pipeline, slots);
    }
    if (!is_amount(costs->message_bytes_f) || !is_amount(costs->message_bytes_b)) {
        return dp_fail(err, DP_INVALID, "messages of %g and %g bytes", costs->message_bytes_f,
                       costs->message_bytes_b);
    }
    for (int32_t host = 0; host < costs->hosts; host++) {
        if (!is_amount(costs->cores[host])) {
            return dp_fail(err, DP_INVALID, "host %d has %g cores", host, costs->cores[host]);
        }
    }
    dp_status status = DP_OK;
    for (int32_t rank = 0; rank < costs->pipeline && status == DP_OK; rank++) {
        status = check_rank(costs, rank, err);
        if (status == DP_OK) {
            status = check_bytes(costs, schedule, rank, err);
        }
    }
    return status;
}
