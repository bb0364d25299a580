// Meters: where a rank's time went and what it keeps, action by action in the rank's order.
#pragma once

#include "dp/check.h"
#include "sim.h"

static inline int sim_kind(const struct dp_action *action)
{
    return action->kind == DP_ACTION_FB && action->b_kind == DP_ACTION_I ? SIM_KIND_FI
                                                                         : action->kind;
}

static inline void meter_allocate(struct dp_sim_meter *meter, const struct dp_sim_chunk *chunk,
                                  int32_t slot, double start)
{
    meter->bytes += chunk->activation_bytes;
    if (meter->bytes > meter->peak_bytes) {
        meter->peak_bytes = meter->bytes;
        meter->peak_at = start;
    }
    uint32_t chunks = ++meter->chunks;
    uint32_t held = ++meter->held;
    uint32_t of_slot = ++meter->slot_chunks[slot];
    meter->peak_chunks = chunks > meter->peak_chunks ? chunks : meter->peak_chunks;
    meter->peak_held = held > meter->peak_held ? held : meter->peak_held;
    if (of_slot > meter->peak_slot_chunks[slot]) {
        meter->peak_slot_chunks[slot] = of_slot;
    }
}

// The end of a B, I or W.
static inline void meter_release(struct dp_sim_meter *meter, const struct dp_sim_chunk *chunk,
                                 int32_t slot, uint8_t kind)
{
    if (kind == DP_ACTION_W) {
        meter->bytes -= chunk->activation_bytes - chunk->released_at_i_bytes;
        meter->held--;
        return;
    }
    meter->chunks--;
    meter->slot_chunks[slot]--;
    if (kind == DP_ACTION_B) {
        meter->bytes -= chunk->activation_bytes;
        meter->held--;
    } else {
        meter->bytes -= chunk->released_at_i_bytes;
    }
}

// What the start of the action changes in memory. Chunks and slots are those of the rank.
static inline void meter_memory_begin(struct dp_sim_meter *meter, const struct dp_sim_chunk *chunks,
                                      const uint8_t *slots, const struct dp_action *action,
                                      double start)
{
    if (action->kind == DP_ACTION_F || action->kind == DP_ACTION_FB) {
        int32_t slot = slots[action->stage];
        meter_allocate(meter, &chunks[slot], slot, start);
    }
}

// And what its end does.
static inline void meter_memory_end(struct dp_sim_meter *meter, const struct dp_sim_chunk *chunks,
                                    const uint8_t *slots, const struct dp_action *action)
{
    if (action->kind == DP_ACTION_FB) {
        int32_t slot = slots[action->b_stage];
        meter_release(meter, &chunks[slot], slot, action->b_kind);
    } else if (action->kind != DP_ACTION_F) {
        int32_t slot = slots[action->stage];
        meter_release(meter, &chunks[slot], slot, action->kind);
    }
}

static inline void meter_memory(struct dp_sim_meter *meter, const struct dp_sim_scratch *sim,
                                int32_t rank, const struct dp_action *action, double start)
{
    const struct dp_sim_chunk *chunks = dp_sim_chunk_at(sim->costs, rank, 0);
    const uint8_t *slots = &sim->slot[(size_t)rank * (size_t)sim->schedule->stages];
    meter_memory_begin(meter, chunks, slots, action, start);
    meter_memory_end(meter, chunks, slots, action);
}

static inline void meter_time(struct dp_sim_meter *meter, const struct dp_action *action,
                              double start, double end)
{
    int kind = sim_kind(action);
    meter->seconds[kind] += end - start;
    meter->count[kind]++;
}

// The rank was idle for `gap` seconds until `start`; its last input was computed at `known`.
static inline void meter_gap(struct dp_sim_meter *meter, double gap, double start, double known)
{
    double travelled = start - known;
    double comm = travelled <= 0 ? 0 : travelled < gap ? travelled : gap;
    meter->comm += comm;
    meter->dependency += gap - comm;
}
