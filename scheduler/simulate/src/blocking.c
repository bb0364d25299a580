// Blocking batches: between two actions a rank posts what it sends and receives there and waits for
// all of it. A message starts when its second end is posted, which is when its arrival is known; so
// here, too, the times follow from the lists alone.
#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "meter.h"
#include "sim.h"

dp_status dp_sim_batches_open(struct dp_sim_batches *batches, const struct dp_schedule *schedule,
                              struct dp_error *err)
{
    dp_sim_batches_close(batches);
    dp_status status = dp_schedule_lower_all(schedule, &batches->lowered, err);
    if (status != DP_OK) {
        return status;
    }
    size_t ranks = (size_t)schedule->pipeline;
    size_t messages = batches->lowered.rank_begin[ranks] / 2;
    batches->posted = dp_new_array(double, messages);
    batches->next = dp_new_array(size_t, ranks);
    batches->pending = dp_new_array(uint32_t, ranks);
    batches->done = dp_new_array(double, ranks);
    batches->met = dp_new_array(double, ranks);
    return DP_OK;
}

void dp_sim_batches_close(struct dp_sim_batches *batches)
{
    dp_lowered_deinit(&batches->lowered);
    free(batches->posted);
    free(batches->next);
    free(batches->pending);
    free(batches->done);
    free(batches->met);
    *batches = (struct dp_sim_batches){0};
}

void dp_sim_batches_restart(struct dp_sim_batches *batches)
{
    size_t ranks = (size_t)batches->lowered.pipeline;
    size_t messages = batches->lowered.rank_begin[ranks] / 2;
    for (size_t i = 0; i < messages; i++) {
        batches->posted[i] = -1;
    }
    for (size_t rank = 0; rank < ranks; rank++) {
        batches->next[rank] = batches->lowered.rank_begin[rank];
        batches->pending[rank] = 0;
    }
}

static void settle(struct dp_sim_scratch *sim, int32_t rank)
{
    if (--sim->batches.pending[rank] == 0) {
        sim->ready[sim->ready_count++] = rank;
    }
}

static void raise_to(double *value, double to)
{
    *value = to > *value ? to : *value;
}

// One end of a message is posted at `time`; with the other one it leaves.
static void post(struct dp_sim_scratch *sim, int32_t rank, const struct dp_p2p *op, double time)
{
    struct dp_sim_batches *batches = &sim->batches;
    double *posted = &batches->posted[op->message];
    batches->pending[rank]++;
    if (*posted < 0) {
        *posted = time;
        return;
    }
    double start = time > *posted ? time : *posted;
    bool sends = op->kind == DP_SEND_F || op->kind == DP_SEND_B;
    int32_t from = sends ? rank : op->peer;
    int32_t to = sends ? op->peer : rank;
    int way = op->kind == DP_SEND_F || op->kind == DP_RECV_F ? FORWARD : BACKWARD;
    double arrival = sim_carry(&sim->links[from * sim->schedule->pipeline + to], way, start);
    raise_to(&batches->met[rank], start);
    raise_to(&batches->met[op->peer], start);
    raise_to(&batches->done[rank], arrival);
    raise_to(&batches->done[op->peer], arrival);
    settle(sim, rank);
    settle(sim, op->peer);
}

void dp_sim_post_batch(struct dp_sim_scratch *sim, int32_t rank, size_t at, double time)
{
    struct dp_sim_batches *batches = &sim->batches;
    const struct dp_lowered *lowered = &batches->lowered;
    batches->pending[rank] = 1; // the batch itself, until all of it is posted
    batches->done[rank] = time;
    batches->met[rank] = time;
    size_t end = lowered->rank_begin[rank + 1];
    size_t next = batches->next[rank];
    for (; next < end && sim_batch_of(&lowered->ops[next]) == at; next++) {
        post(sim, rank, &lowered->ops[next], time);
    }
    batches->next[rank] = next;
    settle(sim, rank);
}

// The rank's batch is complete: runs the action after it and posts the next batch.
static void go_on(struct dp_sim_scratch *sim, int32_t rank, struct dp_sim_span *spans)
{
    const struct dp_schedule *schedule = sim->schedule;
    struct dp_sim_meter *meter = sim->meters == NULL ? NULL : &sim->meters[rank];
    size_t begin = schedule->rank_begin[rank];
    size_t at = sim->at[rank];
    double start = sim->batches.done[rank];
    double free_at = sim->time[rank];
    if (at == schedule->rank_begin[rank + 1]) {
        sim->time[rank] = start;
        sim->batches.pending[rank] = UINT32_MAX; // there is no further batch to complete
        return;
    }
    const struct dp_action *action = &schedule->actions[at];
    double end = start + sim_seconds(sim, rank, action);
    if (meter != NULL) {
        if (at == begin) {
            meter->begin = start;
        } else if (start > free_at) {
            meter_gap(meter, start - free_at, start, sim->batches.met[rank]);
        }
        meter_memory(meter, sim, rank, action, start);
        meter_time(meter, action, start, end);
        meter->end = end;
    }
    if (spans != NULL) {
        spans[at] = (struct dp_sim_span){start, end};
    }
    sim->time[rank] = end;
    sim->at[rank] = at + 1;
    dp_sim_post_batch(sim, rank, at + 1 - begin, end);
}

bool dp_sim_run_blocking(struct dp_sim_scratch *sim, struct dp_sim_span *spans)
{
    int32_t ranks = sim->schedule->pipeline;
    sim->ready_count = 0;
    for (int32_t rank = 0; rank < ranks; rank++) {
        dp_sim_post_batch(sim, rank, 0, 0);
    }
    while (sim->ready_count > 0) {
        go_on(sim, sim->ready[--sim->ready_count], spans);
    }
    for (int32_t rank = 0; rank < ranks; rank++) {
        if (sim->batches.pending[rank] != UINT32_MAX) {
            return false;
        }
    }
    return true;
}
