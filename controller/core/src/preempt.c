// Jobs of lower priority make way for one that finds no room.
#include "core_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/clock.h"

#define AGAIN_NS (60 * DP_NS_PER_S) // what a job loses by beginning again, whatever was saved

struct victim {
    struct core_job *job;
    uint32_t slots; // that come free on nodes which the other job can use
    double cost;    // rank seconds that are lost
};

// Slots that `job` has on nodes that `wanting` can use.
static uint32_t slots_for(const struct core_job *job, const struct core_job *wanting)
{
    uint32_t slots = 0;
    for (size_t i = 0; i < job->members_count; i++) {
        const struct core_member *member = &job->members[i];
        slots += member->at != NULL && dp_core_node_usable(wanting, member->at) ? member->used : 0;
    }
    return slots;
}

static double cost_of(const struct dp_core *core, const struct core_job *job)
{
    int64_t lost_ns = AGAIN_NS;
    bool saves = strcmp(job->row.device, "sim") != 0;
    if (!saves && job->row.started_ns != 0 && core->wall_ns > job->row.started_ns) {
        lost_ns += core->wall_ns - job->row.started_ns;
    }
    // And something for every job that begins again, however small.
    return (double)lost_ns / 1e9 * (double)job->ranks_count + (double)AGAIN_NS / 1e9;
}

bool dp_core_job_yields(const struct core_job *job, const struct core_job *wanting)
{
    return job->row.preemptible && job->row.priority < wanting->row.priority;
}

static bool may_make_way(const struct core_job *job, const struct core_job *wanting)
{
    bool has_ranks = job->row.state == DP_STATE_ASSIGNING || job->row.state == DP_STATE_RUNNING ||
                     job->row.state == DP_STATE_REASSIGNING;
    return has_ranks && dp_core_job_yields(job, wanting);
}

// Lower priorities first; within one, what costs less.
static int compare_victims(const void *left, const void *right)
{
    const struct victim *a = left, *b = right;
    int32_t x = a->job->row.priority, y = b->job->row.priority;
    if (x != y) {
        return x < y ? -1 : 1;
    }
    if (a->cost != b->cost) {
        return a->cost < b->cost ? -1 : 1;
    }
    return a->job->row.number > b->job->row.number ? -1 : 1;
}

static size_t find_victims(struct dp_core *core, const struct core_job *wanting,
                           struct victim **ret_victims)
{
    size_t count = 0, most = 0;
    FOR_EACH_PLACED_JOB(core, job)
    {
        most++;
    }
    struct victim *victims = dp_arena_alloc(&core->effects->arena, (most + 1) * sizeof(*victims));
    FOR_EACH_PLACED_JOB(core, job)
    {
        if (may_make_way(job, wanting)) {
            uint32_t slots = slots_for(job, wanting);
            victims[count] = (struct victim){job, slots, cost_of(core, job)};
            count += slots > 0;
        }
    }
    qsort(victims, count, sizeof(*victims), compare_victims);
    *ret_victims = victims;
    return count;
}

// The cheapest of the first `count` that free `missing` slots, marked in `taken`: best[s] is the
// least that freeing s costs, and with[s * count + i] whether the i-th is among them.
static void choose(struct dp_core *core, const struct victim *victims, size_t count,
                   uint32_t missing, bool *taken)
{
    double *best = dp_arena_alloc(&core->effects->arena, (missing + 1) * sizeof(*best));
    bool *with = dp_arena_alloc(&core->effects->arena, (missing + 1) * count);
    for (uint32_t s = 1; s <= missing; s++) {
        best[s] = -1; // not to be had
    }
    for (size_t i = 0; i < count; i++) {
        for (uint32_t s = missing; s > 0; s--) {
            uint32_t rest = s > victims[i].slots ? s - victims[i].slots : 0;
            if (best[rest] < 0) {
                continue;
            }
            double cost = best[rest] + victims[i].cost;
            if (best[s] < 0 || cost < best[s]) {
                best[s] = cost;
                with[s * count + i] = true;
            }
        }
    }
    for (size_t i = count; i-- > 0;) {
        taken[i] = with[missing * count + i];
        uint32_t slots = victims[i].slots < missing ? victims[i].slots : missing;
        missing -= taken[i] ? slots : 0;
    }
}

uint32_t dp_core_preempt_coming(const struct dp_core *core, struct core_job *wanting)
{
    uint32_t slots = 0;
    if (!wanting->made_way) {
        return 0;
    }
    FOR_EACH_PLACED_JOB(core, job)
    {
        if (job->row.state == DP_STATE_STOPPING && job->way_for == wanting->row.number) {
            slots += slots_for(job, wanting);
        }
    }
    wanting->made_way = slots > 0;
    return slots;
}

bool dp_core_preempt(struct dp_core *core, struct core_job *wanting, uint32_t slots_free)
{
    uint32_t coming = dp_core_preempt_coming(core, wanting);
    uint32_t wanted = (uint32_t)wanting->row.ranks_wanted;
    if (slots_free + coming >= wanted) {
        return coming > 0;
    }
    uint32_t missing = wanted - slots_free - coming;
    struct victim *victims = NULL;
    size_t count = find_victims(core, wanting, &victims);
    // As few of the priorities above the lowest as will do.
    size_t first = 0;
    uint32_t slots = 0;
    while (first < count && slots < missing) {
        slots += victims[first++].slots;
    }
    if (slots < missing) {
        return coming > 0;
    }
    while (first < count &&
           victims[first].job->row.priority == victims[first - 1].job->row.priority) {
        first++;
    }
    bool *taken = dp_arena_alloc(&core->effects->arena, first);
    choose(core, victims, first, missing, taken);
    for (size_t i = 0; i < first; i++) {
        if (taken[i]) {
            char why[DP_TEXT_MAX];
            snprintf(why, sizeof(why), "made way for %s of priority %d", wanting->row.id,
                     wanting->row.priority);
            victims[i].job->way_for = wanting->row.number;
            wanting->made_way = true;
            dp_core_job_touch(victims[i].job);
            dp_core_job_make_way(core, victims[i].job, "Preempted", why);
        }
    }
    return true;
}
