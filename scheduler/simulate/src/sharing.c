// Ranks that share too few cores slow each other down, so the times must be found in the order in
// which things happen. Each host has a clock of work that runs at min(1, cores / active) seconds
// per second; an action ends when that clock has advanced by the action's seconds. The clock is set
// only when ranks of the host start or end: until then its first one to end stays the same.
#include <math.h>
#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "heap.h"
#include "sim.h"

struct host {
    double cores;
    double clock;           // seconds of work that each active rank has had
    double set_at;          // when that was so
    struct sim_heap active; // ranks by `until`
};

struct sharing {
    struct dp_sim_scratch *sim;
    struct dp_sim_span *spans;
    struct host *hosts;
    double *until;   // [pipeline]: the host's clock at the end of the rank's action; < 0 = idle
    double *started; // [pipeline]
    double *wake;    // [pipeline]: when an idle rank's inputs are all there; < 0 = not known
    double *end;     // [hosts]: when the first of its active ranks ends; infinite without any
    struct sim_heap waking, ends; // ranks by `wake`, where that is to come; hosts by `end`
    int32_t *starting;            // ranks whose `wake` has come
    int32_t starting_count;
    double now;
};

static double host_speed(const struct host *host)
{
    return host->cores > 0 && host->active.count > host->cores ? host->cores / host->active.count
                                                               : 1;
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

// Looks again at a rank that may have got its last input.
static void note_inputs(struct sharing *sharing, int32_t rank)
{
    const struct dp_action *action = next_action(sharing, rank);
    if (action == NULL || sharing->until[rank] >= 0 || sharing->wake[rank] >= 0) {
        return;
    }
    double ready = inputs_at(sharing, rank, action);
    if (ready < INFINITY) {
        sharing->wake[rank] = ready;
        if (ready <= sharing->now) {
            sharing->starting[sharing->starting_count++] = rank;
        } else {
            dp_sim_heap_add(&sharing->waking, rank);
        }
    }
}

static void set_clock(struct host *host, double now)
{
    host->clock += (now - host->set_at) * host_speed(host);
    host->set_at = now;
}

// After ranks of the host started or ended.
static void note_end(struct sharing *sharing, int32_t index)
{
    const struct host *host = &sharing->hosts[index];
    double left = host->active.count == 0
                      ? INFINITY
                      : sharing->until[host->active.ids[0]] - host->clock;
    sharing->end[index] = host->set_at + fmax(left, 0) / host_speed(host);
    dp_sim_heap_move(&sharing->ends, index);
}

// Starts what can start now.
static void start_ranks(struct sharing *sharing)
{
    struct sim_heap *waking = &sharing->waking;
    while (waking->count > 0 && sharing->wake[waking->ids[0]] <= sharing->now) {
        sharing->starting[sharing->starting_count++] = waking->ids[0];
        dp_sim_heap_remove_first(waking);
    }
    while (sharing->starting_count > 0) {
        int32_t rank = sharing->starting[--sharing->starting_count];
        struct host *host = host_of(sharing, rank);
        sharing->wake[rank] = -1;
        set_clock(host, sharing->now);
        sharing->started[rank] = sharing->now;
        sharing->until[rank] =
            host->clock + sim_seconds(sharing->sim, rank, next_action(sharing, rank));
        dp_sim_heap_add(&host->active, rank);
        note_end(sharing, sharing->sim->costs->host[rank]);
    }
}

// Free-running messages leave as soon as the action that makes them ends.
static void give_outputs(struct sharing *sharing, int32_t rank, const struct dp_action *action)
{
    struct dp_sim_scratch *sim = sharing->sim;
    struct dp_half halves[2];
    int parts = dp_action_halves(action, halves);
    for (int k = 0; k < parts; k++) {
        int32_t target = dp_half_target(sim->schedule, &halves[k]);
        if (target >= 0) {
            double *arrival;
            int32_t peer = sim_send(sim, rank, sim_way(&halves[k]), target, halves[k].microbatch,
                                    sharing->now, &arrival);
            note_inputs(sharing, peer);
        }
    }
}

static void post_batch(struct sharing *sharing, int32_t rank, size_t at)
{
    struct dp_sim_scratch *sim = sharing->sim;
    sim->ready_count = 0;
    dp_sim_post_batch(sim, rank, at, sharing->now);
    for (int32_t i = 0; i < sim->ready_count; i++) {
        note_inputs(sharing, sim->ready[i]);
    }
}

static void end_rank(struct sharing *sharing, int32_t rank)
{
    struct dp_sim_scratch *sim = sharing->sim;
    const struct dp_action *action = next_action(sharing, rank);
    if (sharing->spans != NULL) {
        sharing->spans[sim->at[rank]] =
            (struct dp_sim_span){sharing->started[rank], sharing->now};
    }
    sim->time[rank] = sharing->now;
    sim->at[rank]++;
    sharing->until[rank] = -1;
    if (sim->costs->p2p == DP_SIM_P2P_BLOCKING) {
        post_batch(sharing, rank, sim->at[rank] - sim->schedule->rank_begin[rank]);
    } else {
        give_outputs(sharing, rank, action);
        note_inputs(sharing, rank);
    }
}

// The host's clock lands exactly on the end of its first rank, so that rounding cannot leave that
// one unfinished for ever.
static void end_first(struct sharing *sharing, int32_t index)
{
    struct host *host = &sharing->hosts[index];
    host->clock = sharing->until[host->active.ids[0]];
    host->set_at = sharing->now;
    while (host->active.count > 0 && sharing->until[host->active.ids[0]] <= host->clock) {
        int32_t rank = host->active.ids[0];
        dp_sim_heap_remove_first(&host->active);
        end_rank(sharing, rank);
    }
    note_end(sharing, index);
}

static void run(struct sharing *sharing)
{
    for (;;) {
        start_ranks(sharing);
        double next_start =
            sharing->waking.count > 0 ? sharing->wake[sharing->waking.ids[0]] : INFINITY;
        int32_t host = sharing->ends.ids[0];
        double next_end = sharing->end[host];
        if (next_end > next_start) {
            sharing->now = next_start;
        } else if (next_end < INFINITY) {
            sharing->now = fmax(next_end, sharing->now);
            end_first(sharing, host);
        } else {
            return;
        }
    }
}

// An empty heap for each host and one of hosts.
static void init_hosts(struct sharing *sharing, int32_t *place, int32_t *ids)
{
    const struct dp_sim_costs *costs = sharing->sim->costs;
    for (int32_t rank = 0; rank < costs->pipeline; rank++) {
        host_of(sharing, rank)->active.count++;
    }
    for (int32_t i = 0; i < costs->hosts; i++) {
        struct host *host = &sharing->hosts[i];
        int32_t ranks = host->active.count;
        host->cores = costs->cores[i];
        host->active = (struct sim_heap){.keys = sharing->until, .place = place, .ids = ids};
        ids += ranks;
        sharing->end[i] = INFINITY;
        dp_sim_heap_add(&sharing->ends, i);
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
    size_t hosts_count = (size_t)sim->costs->hosts;
    DP_AUTO_FREE struct host *hosts = dp_new_array(struct host, hosts_count);
    DP_AUTO_FREE double *times = dp_new_array(double, 3 * ranks + hosts_count);
    DP_AUTO_FREE int32_t *places = dp_new_array(int32_t, 2 * (2 * ranks + hosts_count));
    DP_AUTO_FREE int32_t *starting = dp_new_array(int32_t, ranks);
    int32_t *ids = places + 2 * ranks + hosts_count;
    struct sharing sharing = {.sim = sim,
                              .spans = spans,
                              .hosts = hosts,
                              .starting = starting,
                              .until = times,
                              .started = times + ranks,
                              .wake = times + 2 * ranks,
                              .end = times + 3 * ranks};
    sharing.waking = (struct sim_heap){.keys = sharing.wake, .place = places, .ids = ids};
    sharing.ends = (struct sim_heap){
        .keys = sharing.end, .place = places + ranks, .ids = ids + ranks};
    init_hosts(&sharing, places + ranks + hosts_count, ids + ranks + hosts_count);
    for (size_t i = 0; i < ranks; i++) {
        sharing.until[i] = -1;
        sharing.wake[i] = -1;
    }
    for (int32_t rank = 0; rank < sim->schedule->pipeline; rank++) {
        if (sim->costs->p2p == DP_SIM_P2P_BLOCKING) {
            post_batch(&sharing, rank, 0);
        } else {
            note_inputs(&sharing, rank);
        }
    }
    run(&sharing);
    return finish(sim);
}
