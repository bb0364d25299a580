// Without contention the times follow from the lists alone: every rank runs as far as its inputs
// are known, and whoever makes the input that a rank stopped for lets it go on. Each action is
// looked at once, plus once for each time a rank stops.
#include "meter.h"
#include "sim.h"

struct cursor {
    struct dp_sim_scratch *sim;
    int32_t rank;
};

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
    if (sim->made != NULL) {
        sim->made[arrival - sim->arrival] = end;
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

static inline void run_rank(struct dp_sim_scratch *sim, int32_t rank, struct dp_sim_span *spans,
                            struct dp_sim_meter *meter)
{
    const struct dp_schedule *schedule = sim->schedule;
    struct cursor cursor = {sim, rank};
    size_t begin = schedule->rank_begin[rank];
    size_t end_at = schedule->rank_begin[rank + 1];
    size_t at = sim->at[rank];
    double time = sim->time[rank];
    for (; at < end_at; at++) {
        const struct dp_action *action = &schedule->actions[at];
        double start = time;
        if (!take_inputs(&cursor, action, &start)) {
            break;
        }
        if (meter != NULL) {
            if (at == begin) {
                meter->begin = start;
            } else if (start > time) {
                meter_gap(meter, start - time, start, inputs_made(&cursor, action));
            }
            meter_memory(meter, sim, rank, action, start);
        }
        time = start + sim_seconds(sim, rank, action);
        give_outputs(&cursor, action, time);
        if (meter != NULL) {
            meter_time(meter, action, start, time);
        }
        if (spans != NULL) {
            spans[at] = (struct dp_sim_span){start, time};
        }
    }
    sim->at[rank] = at;
    sim->time[rank] = time;
    if (meter != NULL) {
        meter->end = time;
    }
}

static void run_bare(struct dp_sim_scratch *sim, struct dp_sim_span *spans)
{
    while (sim->ready_count > 0) {
        run_rank(sim, sim->ready[--sim->ready_count], spans, NULL);
    }
}

static void run_metered(struct dp_sim_scratch *sim, struct dp_sim_span *spans)
{
    while (sim->ready_count > 0) {
        int32_t rank = sim->ready[--sim->ready_count];
        run_rank(sim, rank, spans, &sim->meters[rank]);
    }
}

bool dp_sim_run_pass(struct dp_sim_scratch *sim, struct dp_sim_span *spans)
{
    if (sim->meters == NULL) {
        run_bare(sim, spans);
    } else {
        run_metered(sim, spans);
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
