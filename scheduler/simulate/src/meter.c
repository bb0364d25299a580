// Meters of given times: what dp_simulate's engines see as they go, from a list of spans.
#include "meter.h"

#include "dp/alloc.h"
#include "dp/cleanup.h"

// When each result was computed, by the stage that made it: [FORWARD, BACKWARD][stages][mb].
static double *results_made(const struct dp_schedule *schedule, const struct dp_sim_span *spans)
{
    double *made =
        dp_new_array(double, 2 * (size_t)schedule->stages * (size_t)schedule->microbatches);
    size_t count = dp_schedule_action_count(schedule);
    for (size_t i = 0; i < count; i++) {
        struct dp_half halves[2];
        int parts = dp_action_halves(&schedule->actions[i], halves);
        for (int k = 0; k < parts; k++) {
            const struct dp_half *half = &halves[k];
            if (half->kind != DP_ACTION_W) {
                made[sim_cell(schedule, sim_way(half), half->stage, half->microbatch)] =
                    spans[i].end;
            }
        }
    }
    return made;
}

// When the last input of the action was computed, on whatever rank.
static double inputs_made(const struct dp_schedule *schedule, const double *made,
                          const struct dp_action *action)
{
    struct dp_half halves[2];
    int parts = dp_action_halves(action, halves);
    double latest = 0;
    for (int k = 0; k < parts; k++) {
        int32_t source = dp_half_source(schedule, &halves[k]);
        if (source >= 0) {
            double end =
                made[sim_cell(schedule, sim_way(&halves[k]), source, halves[k].microbatch)];
            latest = end > latest ? end : latest;
        }
    }
    return latest;
}

// Of blocking batches, the same: when both ends of each message were posted.
static double *messages_met(const struct dp_sim_scratch *sim, const struct dp_sim_span *spans)
{
    const struct dp_lowered *lowered = &sim->batches.lowered;
    double *met = dp_new_array(double, lowered->rank_begin[lowered->pipeline] / 2);
    for (int32_t rank = 0; rank < lowered->pipeline; rank++) {
        const struct dp_sim_span *own = &spans[sim->schedule->rank_begin[rank]];
        for (size_t i = lowered->rank_begin[rank]; i < lowered->rank_begin[rank + 1]; i++) {
            size_t batch = sim_batch_of(&lowered->ops[i]);
            double posted = batch == 0 ? 0 : own[batch - 1].end;
            double *message = &met[lowered->ops[i].message];
            *message = posted > *message ? posted : *message;
        }
    }
    return met;
}

// When the last message of the batch before action number `at` was posted by both ends; *next is
// the rank's first op not looked at.
static double batch_met(const struct dp_lowered *lowered, const double *met, int32_t rank,
                        size_t at, size_t *next)
{
    double latest = 0;
    for (; *next < lowered->rank_begin[rank + 1] && sim_batch_of(&lowered->ops[*next]) == at;
         ++*next) {
        double time = met[lowered->ops[*next].message];
        latest = time > latest ? time : latest;
    }
    return latest;
}

// When the rank's last batch, which only sends, is complete.
static double last_batch_done(struct dp_sim_scratch *sim, int32_t rank, const double *met,
                              double end)
{
    const struct dp_lowered *lowered = &sim->batches.lowered;
    size_t last = sim->schedule->rank_begin[rank + 1] - sim->schedule->rank_begin[rank];
    double done = end;
    for (size_t i = lowered->rank_begin[rank]; i < lowered->rank_begin[rank + 1]; i++) {
        const struct dp_p2p *op = &lowered->ops[i];
        if (op->kind == DP_SEND_F || op->kind == DP_SEND_B) {
            struct link *link = &sim->links[rank * sim->schedule->pipeline + op->peer];
            int way = op->kind == DP_SEND_F ? FORWARD : BACKWARD;
            double arrival = sim_carry(link, way, met[op->message]);
            done = sim_batch_of(op) == last && arrival > done ? arrival : done;
        }
    }
    return done;
}

void dp_sim_meter_spans(struct dp_sim_scratch *sim, const struct dp_sim_span *spans)
{
    const struct dp_schedule *schedule = sim->schedule;
    bool blocking = sim->costs->p2p == DP_SIM_P2P_BLOCKING;
    DP_AUTO_FREE double *made =
        blocking ? messages_met(sim, spans) : results_made(schedule, spans);
    dp_sim_restart(sim, sim->costs);
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        struct dp_sim_meter *meter = &sim->meters[rank];
        size_t begin = schedule->rank_begin[rank];
        size_t next = blocking ? sim->batches.lowered.rank_begin[rank] : 0;
        for (size_t i = begin; i < schedule->rank_begin[rank + 1]; i++) {
            const struct dp_action *action = &schedule->actions[i];
            double start = spans[i].start;
            double known = blocking ? batch_met(&sim->batches.lowered, made, rank, i - begin, &next)
                                    : inputs_made(schedule, made, action);
            if (i == begin) {
                meter->begin = start;
            } else if (start > meter->end) {
                meter_gap(meter, start - meter->end, start, known);
            }
            meter_memory(meter, sim, rank, action, start);
            meter_time(meter, action, start, spans[i].end);
            meter->contention += spans[i].end - start - sim_seconds(sim, rank, action);
            meter->end = spans[i].end;
        }
        sim->time[rank] =
            blocking ? last_batch_done(sim, rank, made, meter->end) : meter->end;
    }
}
