// Without contention the times follow from the lists alone: every rank runs as far as its inputs
// are known, and whoever makes the input that a rank stopped for lets it go on. Each action is
// looked at once, plus once for each time a rank stops.
#include "meter.h"
#include "sim.h"

struct cursor {
    struct dp_sim_scratch *sim;
    const struct dp_sim_span *spans;
    size_t at;
    int32_t rank;
    enum sim_metering metering; // known when compiled, so that each has its own loop
};

// Ranks take turns after an action or two, too many for a processor to see their streams by itself:
// what they need at their next turns is asked for ahead.
enum { AHEAD_ACTIONS = 8, AHEAD_ARRIVALS = 12 };

// Raises *ready to the arrival; false (and the rank's note) when it is not known yet.
static inline bool take(const struct cursor *cursor, int way, int32_t stage, uint32_t microbatch,
                        double *ready)
{
    const double *arrival = sim_arrival_at(cursor->sim, way, stage, microbatch);
    if (*arrival < 0) {
        cursor->sim->missing[cursor->rank] = arrival;
        return false;
    }
    *ready = *arrival > *ready ? *arrival : *ready;
    return true;
}

static inline void give(const struct cursor *cursor, int way, int32_t stage, uint32_t microbatch,
                        double end)
{
    struct dp_sim_scratch *sim = cursor->sim;
    int32_t target = way == FORWARD ? stage + 1 : stage - 1;
    if (target < 0 || target >= sim->schedule->stages) {
        return;
    }
    double *arrival;
    int32_t peer = sim_send(sim, cursor->rank, way, target, microbatch, end, &arrival);
    __builtin_prefetch(arrival + AHEAD_ARRIVALS, 1);
    if (cursor->metering == METER_NOTHING) {
        // nobody asks when it was made
    } else if (sim->made != NULL) {
        sim->made[arrival - sim->arrival] = end;
        __builtin_prefetch(&sim->made[arrival - sim->arrival] + AHEAD_ARRIVALS, 1);
    } else if (sim->maker != NULL) {
        sim->maker[arrival - sim->arrival] = (uint32_t)cursor->at;
        __builtin_prefetch(&sim->maker[arrival - sim->arrival] + AHEAD_ARRIVALS, 1);
    }
    if (sim->missing[peer] == arrival) {
        sim->missing[peer] = NULL;
        sim->ready[sim->ready_count++] = peer;
    }
}

// Whether the inputs of the action are known; *ready is then no earlier than the last of them.
static inline bool take_inputs(const struct cursor *cursor, const struct dp_action *action,
                               double *ready)
{
    switch (action->kind) {
    case DP_ACTION_F:
        return take(cursor, FORWARD, action->stage, action->microbatch, ready);
    case DP_ACTION_FB:
        return take(cursor, FORWARD, action->stage, action->microbatch, ready) &&
               take(cursor, BACKWARD, action->b_stage, action->b_microbatch, ready);
    case DP_ACTION_W:
        return true;
    default:
        return take(cursor, BACKWARD, action->stage, action->microbatch, ready);
    }
}

static inline void give_outputs(const struct cursor *cursor, const struct dp_action *action,
                                double end)
{
    if (action->kind == DP_ACTION_F || action->kind == DP_ACTION_FB) {
        give(cursor, FORWARD, action->stage, action->microbatch, end);
    }
    if (action->kind == DP_ACTION_B || action->kind == DP_ACTION_I) {
        give(cursor, BACKWARD, action->stage, action->microbatch, end);
    } else if (action->kind == DP_ACTION_FB) {
        give(cursor, BACKWARD, action->b_stage, action->b_microbatch, end);
    }
}

// When an input that has arrived was computed; 0 where a stream enters or turns back.
static double made_at(const struct cursor *cursor, int way, int32_t stage, uint32_t microbatch)
{
    const struct dp_sim_scratch *sim = cursor->sim;
    const struct dp_schedule *schedule = sim->schedule;
    int32_t source = way == FORWARD ? stage - 1 : stage + 1;
    if (source < 0 || source >= schedule->stages) {
        return 0;
    }
    size_t cell = sim_cell(schedule, way, stage, microbatch);
    if (sim->made != NULL) {
        return sim->made[cell];
    }
    if (sim->maker != NULL) {
        return cursor->spans[sim->maker[cell]].end;
    }
    int32_t peer = dp_schedule_rank_of(schedule, source, microbatch);
    return sim->arrival[cell] - sim->links[peer * schedule->pipeline + cursor->rank].latency;
}

static double inputs_made(const struct cursor *cursor, const struct dp_action *action)
{
    bool pair = action->kind == DP_ACTION_FB;
    int way = action->kind == DP_ACTION_F || pair ? FORWARD : BACKWARD;
    double made = made_at(cursor, way, action->stage, action->microbatch);
    if (pair) {
        double other = made_at(cursor, BACKWARD, action->b_stage, action->b_microbatch);
        made = other > made ? other : made;
    }
    return made;
}

static inline __attribute__((always_inline)) void run_rank(struct dp_sim_scratch *sim, int32_t rank,
                                                           struct dp_sim_span *spans,
                                                           const enum sim_metering metering)
{
    const struct dp_schedule *schedule = sim->schedule;
    struct dp_sim_meter *meter = metering == METER_NOTHING ? NULL : &sim->meters[rank];
    struct cursor cursor = {.sim = sim, .spans = spans, .at = sim->at[rank], .rank = rank,
                            .metering = metering};
    size_t begin = schedule->rank_begin[rank];
    size_t end_at = schedule->rank_begin[rank + 1];
    double time = sim->time[rank];
    for (; cursor.at < end_at; cursor.at++) {
        const struct dp_action *action = &schedule->actions[cursor.at];
        __builtin_prefetch(action + AHEAD_ACTIONS);
        double start = time;
        if (!take_inputs(&cursor, action, &start)) {
            break;
        }
        if (metering != METER_NOTHING && cursor.at == begin) {
            meter->begin = start;
        } else if (metering != METER_NOTHING && start > time) {
            meter_gap(meter, start - time, start, inputs_made(&cursor, action));
        }
        time = start + sim_seconds(sim, rank, action);
        give_outputs(&cursor, action, time);
        if (metering == METER_ALL) {
            meter_memory(meter, sim, rank, action, start);
            meter_time(meter, action, start, time);
        }
        if (spans != NULL) {
            __builtin_prefetch(&spans[cursor.at] + AHEAD_ACTIONS, 1);
            spans[cursor.at] = (struct dp_sim_span){start, time};
        }
    }
    sim->at[rank] = cursor.at;
    sim->time[rank] = time;
    if (metering != METER_NOTHING) {
        meter->end = time;
    }
}

bool dp_sim_run_pass(struct dp_sim_scratch *sim, struct dp_sim_span *spans)
{
    while (sim->ready_count > 0) {
        int32_t rank = sim->ready[--sim->ready_count];
        if (sim->metering == METER_NOTHING) {
            run_rank(sim, rank, spans, METER_NOTHING);
        } else if (sim->metering == METER_WAITS) {
            run_rank(sim, rank, NULL, METER_WAITS);
        } else {
            run_rank(sim, rank, spans, METER_ALL);
        }
    }
    for (int32_t rank = 0; rank < sim->schedule->pipeline; rank++) {
        if (sim->at[rank] < sim->schedule->rank_begin[rank + 1]) {
            return false;
        }
    }
    return true;
}

bool dp_sim_run_alone(struct dp_sim_scratch *sim, struct dp_sim_span *spans)
{
    return sim->costs->p2p == DP_SIM_P2P_BLOCKING ? dp_sim_run_blocking(sim, spans)
                                                  : dp_sim_run_pass(sim, spans);
}
