// Ranks that share too few cores slow each other down, so the times must be found in the order in
// which things happen. Each host has a clock of work that runs at min(1, cores / active) seconds
// per second; an action ends when that clock has advanced by the action's seconds.
#include <math.h>
#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "sim.h"

struct host {
    double cores;
    double clock; // seconds of work that each active rank has had
    int32_t active;
};

struct sharing {
    struct dp_sim_scratch *sim;
    struct dp_sim_span *spans;
    struct host *hosts;
    double *until;   // [pipeline]: the host's clock at the end of the rank's action; < 0 = idle
    double *started; // [pipeline]
    double now;
};

static double host_speed(const struct host *host)
{
    return host->cores > 0 && host->active > host->cores ? host->cores / host->active : 1;
}

static struct host *host_of(const struct sharing *sharing, int32_t rank)
{
    return &sharing->hosts[sharing->sim->costs->host[rank]];
}

static const struct dp_action *next_action(const struct sharing *sharing, int32_t rank)
{
    const struct dp_sim_scratch *sim = sharing->sim;
    size_t at = sim->at[rank];
    return at < sim->schedule->rank_begin[rank + 1] ? &sim->schedule->actions[at] : NULL;
}

static double later(double time, double arrival)
{
    return arrival < 0 ? INFINITY : arrival > time ? arrival : time;
}

// When the rank's next action has all its inputs, or its batch is complete; infinite when that is
// not known yet.
static double inputs_at(const struct sharing *sharing, int32_t rank, const struct dp_action *action)
{
    const struct dp_sim_scratch *sim = sharing->sim;
    if (sim->costs->p2p == DP_SIM_P2P_BLOCKING) {
        return sim->batches.pending[rank] > 0 ? INFINITY : sim->batches.done[rank];
    }
    double ready = 0;
    struct dp_half halves[2];
    int parts = dp_action_halves(action, halves);
    for (int k = 0; k < parts; k++) {
        const struct dp_half *half = &halves[k];
        if (half->kind != DP_ACTION_W) {
            const double *arrival =
                sim_arrival_at(sim, sim_way(half), half->stage, half->microbatch);
            ready = later(ready, *arrival);
        }
    }
    return ready;
}

// Starts what can start now; returns when the next input of an idle rank arrives.
static double start_ranks(struct sharing *sharing)
{
    double next = INFINITY;
    for (int32_t rank = 0; rank < sharing->sim->schedule->pipeline; rank++) {
        const struct dp_action *action = next_action(sharing, rank);
        if (sharing->until[rank] >= 0 || action == NULL) {
            continue;
        }
        double ready = inputs_at(sharing, rank, action);
        if (ready <= sharing->now) {
            struct host *host = host_of(sharing, rank);
            sharing->started[rank] = sharing->now;
            sharing->until[rank] = host->clock + sim_seconds(sharing->sim, rank, action);
            host->active++;
        } else if (ready < next) {
            next = ready;
        }
    }
    return next;
}

// The active rank that ends first if nothing starts before, or -1; *ret_time says when.
static int32_t first_to_end(const struct sharing *sharing, double *ret_time)
{
    int32_t first = -1;
    *ret_time = INFINITY;
    for (int32_t rank = 0; rank < sharing->sim->schedule->pipeline; rank++) {
        if (sharing->until[rank] < 0) {
            continue;
        }
        const struct host *host = host_of(sharing, rank);
        double end = sharing->now + (sharing->until[rank] - host->clock) / host_speed(host);
        if (end < *ret_time) {
            *ret_time = end;
            first = rank;
        }
    }
    return first;
}

// Free-running messages leave as soon as the action that makes them ends.
static void give_outputs(struct dp_sim_scratch *sim, int32_t rank, const struct dp_action *action,
                         double end)
{
    struct dp_half halves[2];
    int parts = dp_action_halves(action, halves);
    for (int k = 0; k < parts; k++) {
        int32_t target = dp_half_target(sim->schedule, &halves[k]);
        if (target >= 0) {
            double *arrival;
            sim_send(sim, rank, sim_way(&halves[k]), target, halves[k].microbatch, end, &arrival);
        }
    }
}

// Which ranks have complete batches is asked of the batches themselves.
static void post_batch(struct dp_sim_scratch *sim, int32_t rank, size_t at, double time)
{
    sim->ready_count = 0;
    dp_sim_post_batch(sim, rank, at, time);
}

static void end_rank(struct sharing *sharing, int32_t rank)
{
    struct dp_sim_scratch *sim = sharing->sim;
    const struct dp_action *action = next_action(sharing, rank);
    double end = sharing->now;
    if (sharing->spans != NULL) {
        sharing->spans[sim->at[rank]] = (struct dp_sim_span){sharing->started[rank], end};
    }
    sim->time[rank] = end;
    sim->at[rank]++;
    if (sim->costs->p2p == DP_SIM_P2P_BLOCKING) {
        post_batch(sim, rank, sim->at[rank] - sim->schedule->rank_begin[rank], end);
    } else {
        give_outputs(sim, rank, action, end);
    }
    sharing->until[rank] = -1;
    host_of(sharing, rank)->active--;
}

// Moves every clock to `time`. The host of `first` lands exactly on that rank's end, so that
// rounding cannot leave it unfinished for ever.
static void advance(struct sharing *sharing, double time, int32_t first)
{
    double seconds = time - sharing->now;
    for (int32_t i = 0; i < sharing->sim->costs->hosts; i++) {
        sharing->hosts[i].clock += seconds * host_speed(&sharing->hosts[i]);
    }
    if (first >= 0) {
        host_of(sharing, first)->clock = sharing->until[first];
    }
    sharing->now = time;
}

static void run(struct sharing *sharing)
{
    int32_t ranks = sharing->sim->schedule->pipeline;
    for (;;) {
        double next_start = start_ranks(sharing);
        double next_end;
        int32_t first = first_to_end(sharing, &next_end);
        if (next_end > next_start) {
            advance(sharing, next_start, -1);
        } else if (first >= 0) {
            advance(sharing, next_end, first);
            for (int32_t rank = 0; rank < ranks; rank++) {
                double until = sharing->until[rank];
                if (until >= 0 && until <= host_of(sharing, rank)->clock) {
                    end_rank(sharing, rank);
                }
            }
        } else {
            return;
        }
    }
}

// Whether every rank came to its end; its time is then when its last batch is complete.
static bool finish(struct dp_sim_scratch *sim)
{
    bool blocking = sim->costs->p2p == DP_SIM_P2P_BLOCKING;
    for (int32_t rank = 0; rank < sim->schedule->pipeline; rank++) {
        if (sim->at[rank] < sim->schedule->rank_begin[rank + 1] ||
            (blocking && sim->batches.pending[rank] > 0)) {
            return false;
        }
        sim->time[rank] = blocking ? sim->batches.done[rank] : sim->time[rank];
    }
    return true;
}

bool dp_sim_run_sharing(struct dp_sim_scratch *sim, struct dp_sim_span *spans)
{
    size_t ranks = (size_t)sim->schedule->pipeline;
    DP_AUTO_FREE struct host *hosts = dp_new_array(struct host, (size_t)sim->costs->hosts);
    DP_AUTO_FREE double *until = dp_new_array(double, ranks);
    DP_AUTO_FREE double *started = dp_new_array(double, ranks);
    for (int32_t i = 0; i < sim->costs->hosts; i++) {
        hosts[i].cores = sim->costs->cores[i];
    }
    for (size_t i = 0; i < ranks; i++) {
        until[i] = -1;
    }
    struct sharing sharing = {
        .sim = sim, .spans = spans, .hosts = hosts, .until = until, .started = started};
    for (int32_t rank = 0; rank < sim->schedule->pipeline; rank++) {
        if (sim->costs->p2p == DP_SIM_P2P_BLOCKING) {
            post_batch(sim, rank, 0, 0);
        }
    }
    run(&sharing);
    return finish(sim);
}
