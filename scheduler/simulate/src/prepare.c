#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "sim.h"

struct dp_sim_scratch *dp_sim_scratch_new(void)
{
    return dp_new(struct dp_sim_scratch);
}

void dp_sim_release(struct dp_sim_scratch *sim)
{
    free(sim->arrival);
    free(sim->made);
    free(sim->maker);
    free(sim->meters);
    dp_sim_batches_close(&sim->batches);
    free(sim->slot);
    free(sim->links);
    free(sim->time);
    free(sim->at);
    free(sim->missing);
    free(sim->ready);
}

void dp_sim_scratch_free(struct dp_sim_scratch *scratch)
{
    if (scratch != NULL) {
        dp_sim_release(scratch);
        free(scratch);
    }
}

// Room for `bytes`; the old content is worthless.
static void *grow(void *memory, size_t *bytes_held, size_t bytes)
{
    if (*bytes_held >= bytes) {
        return memory;
    }
    free(memory);
    *bytes_held = bytes;
    return dp_alloc_aligned(1, bytes);
}

static void grow_ranks(struct dp_sim_scratch *sim, size_t ranks)
{
    if (sim->rank_bytes >= ranks) {
        return;
    }
    sim->rank_bytes = ranks;
    sim->time = dp_realloc(sim->time, ranks, sizeof(*sim->time));
    sim->at = dp_realloc(sim->at, ranks, sizeof(*sim->at));
    sim->missing = dp_realloc(sim->missing, ranks, sizeof(*sim->missing));
    sim->ready = dp_realloc(sim->ready, ranks, sizeof(*sim->ready));
}

static struct link link_of(const struct dp_sim_costs *costs, int32_t from, int32_t to)
{
    struct link link = {0};
    const struct dp_sim_hop *hop = dp_sim_hop_at(costs, from, to);
    if (from != to) {
        link.latency = hop->latency;
        link.seconds[FORWARD] = dp_sim_wire_seconds(hop, costs->message_bytes_f);
        link.seconds[BACKWARD] = dp_sim_wire_seconds(hop, costs->message_bytes_b);
    }
    return link;
}

void dp_sim_set_links(const struct dp_schedule *schedule, const struct dp_sim_costs *costs,
                      struct link *links)
{
    for (int direction = 0; direction < schedule->directions; direction++) {
        for (int32_t stage = 1; stage < schedule->stages; stage++) {
            int32_t rank = schedule->placement[2 * stage + direction];
            int32_t before = schedule->placement[2 * (stage - 1) + direction];
            links[before * schedule->pipeline + rank] = link_of(costs, before, rank);
            links[rank * schedule->pipeline + before] = link_of(costs, rank, before);
        }
    }
}

// Slots in the order of dp_schedule_rank_stages.
static void set_slots(struct dp_sim_scratch *sim)
{
    const struct dp_schedule *schedule = sim->schedule;
    uint8_t held[DP_PIPELINE_MAX] = {0};
    for (int direction = 0; direction < schedule->directions; direction++) {
        for (int32_t stage = 0; stage < schedule->stages; stage++) {
            int32_t rank = schedule->placement[2 * stage + direction];
            bool listed = direction == 1 && schedule->placement[2 * stage] == rank;
            if (!listed) {
                sim->slot[rank * schedule->stages + stage] = held[rank]++;
            }
        }
    }
}

static void forget_arrivals(struct dp_sim_scratch *sim)
{
    const struct dp_schedule *schedule = sim->schedule;
    size_t microbatches = (size_t)schedule->microbatches;
    size_t arrivals = 2 * (size_t)schedule->stages * microbatches;
    for (size_t i = 0; i < arrivals; i++) {
        sim->arrival[i] = -1;
    }
    // Nothing has to arrive where a stream enters or turns back.
    for (size_t m = 0; m < microbatches; m++) {
        *sim_arrival_at(sim, FORWARD, 0, (uint32_t)m) = 0;
        *sim_arrival_at(sim, BACKWARD, schedule->stages - 1, (uint32_t)m) = 0;
    }
}

void dp_sim_restart(struct dp_sim_scratch *sim, const struct dp_sim_costs *costs)
{
    const struct dp_schedule *schedule = sim->schedule;
    size_t ranks = (size_t)schedule->pipeline;
    sim->costs = costs;
    set_slots(sim);
    dp_sim_set_links(schedule, costs, sim->links);
    if (costs->p2p == DP_SIM_P2P_BLOCKING) {
        dp_sim_batches_restart(&sim->batches);
    } else {
        forget_arrivals(sim);
    }
    sim->ready_count = 0;
    for (size_t rank = 0; rank < ranks; rank++) {
        sim->time[rank] = 0;
        sim->at[rank] = schedule->rank_begin[rank];
        sim->missing[rank] = NULL;
        sim->ready[sim->ready_count++] = (int32_t)(ranks - 1 - rank);
    }
    if (sim->meters != NULL) {
        memset(sim->meters, 0, ranks * sizeof(*sim->meters));
    }
}

dp_status dp_sim_prepare(struct dp_sim_scratch *sim, const struct dp_schedule *schedule,
                         const struct dp_sim_costs *costs, struct dp_error *err)
{
    size_t ranks = (size_t)schedule->pipeline;
    size_t stages = (size_t)schedule->stages;
    size_t arrivals = 2 * stages * (size_t)schedule->microbatches;
    if (costs->p2p == DP_SIM_P2P_BLOCKING) {
        dp_status status = dp_sim_batches_open(&sim->batches, schedule, err);
        if (status != DP_OK) {
            return status;
        }
    } else {
        sim->arrival = grow(sim->arrival, &sim->arrival_bytes, arrivals * sizeof(double));
    }
    sim->schedule = schedule;
    sim->slot = grow(sim->slot, &sim->slot_bytes, ranks * stages);
    sim->links = grow(sim->links, &sim->links_bytes, ranks * ranks * sizeof(struct link));
    grow_ranks(sim, ranks);
    dp_sim_restart(sim, costs);
    return DP_OK;
}

static bool wires_take_time(const struct dp_sim_costs *costs)
{
    bool speeds = false;
    for (int32_t i = 0; i < costs->pipeline * costs->pipeline && !speeds; i++) {
        speeds = costs->hops[i].bytes_per_second > 0;
    }
    return speeds && (costs->message_bytes_f > 0 || costs->message_bytes_b > 0);
}

void dp_sim_add_meters(struct dp_sim_scratch *sim, enum sim_metering metering)
{
    free(sim->meters);
    sim->meters = metering == METER_NOTHING
                      ? NULL
                      : dp_new_array(struct dp_sim_meter, (size_t)sim->schedule->pipeline);
    sim->metering = metering;
}

void dp_sim_note_makers(struct dp_sim_scratch *sim, bool with_spans)
{
    const struct dp_schedule *schedule = sim->schedule;
    size_t results = 2 * (size_t)schedule->stages * (size_t)schedule->microbatches;
    free(sim->made);
    free(sim->maker);
    sim->made = NULL;
    sim->maker = NULL;
    if (sim->metering == METER_NOTHING || !wires_take_time(sim->costs)) {
        return;
    }
    if (with_spans) {
        sim->maker = dp_new_array(uint32_t, results);
    } else {
        sim->made = dp_new_array(double, results);
    }
}
