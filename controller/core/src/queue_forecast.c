// When jobs that wait will start: the queue is played forward. Jobs that run give their slots back
// when the steps that are left have taken as long as steps take now, and at each such moment the
// queue is gone through by the rules of a pass. What is not known is taken not to happen: a job
// whose end is not known keeps its slots, so whoever needs them has no forecast.
#include "core_internal.h"

#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/clock.h"

// Jobs that are looked at, over all moments: some 10 ms. Who starts later has no forecast.
#define LOOKS_MAX (4u << 20)

// A job that has ranks, or will.
struct runner {
    const struct core_job *job;
    int64_t end_ns;    // INT64_MAX = not known
    uint32_t slots[2]; // that come free at its end, by needs_profile
    uint32_t ranks;
    bool over;
};

struct waiter {
    struct core_job *job;
    struct dp_queue_place *place;
    int64_t passed_ns; // since when others start before it
    // With nodes to stay off: what there is on the others. NULL = as for everybody.
    struct core_supply *own;
    bool started;
};

struct forecast {
    struct dp_core *core;
    int64_t began_ns, now_ns;
    struct core_supply supplies[2]; // by needs_profile; `free` as of now_ns
    struct runner *runners;
    size_t runners_count;
    struct waiter *waiters; // in the order of the queue, without those that are held
    size_t waiters_count;
    struct waiter *first; // of the newest pass: the first that lacks room
    bool over;            // what follows hangs on who makes way
};

// One time through the queue.
struct round {
    uint32_t free[2]; // less what is kept for those that others make way for
    uint32_t depth;
    bool closed;
};

// How long the job's steps that are left take; INT64_MAX = not known.
static int64_t rest_of(const struct core_job *job)
{
    int64_t recent_ns = dp_core_recent_step_ns(job, CORE_NOW_STEPS);
    int64_t step_ns = recent_ns > 0 ? recent_ns : job->row.step_ns;
    uint64_t steps =
        job->row.steps_total > job->row.step ? job->row.steps_total - job->row.step : 0;
    bool known = step_ns > 0 && job->row.state != DP_STATE_LOST &&
                 job->row.state != DP_STATE_STOPPING && !dp_job_state_ended(job->row.state);
    int64_t rest_ns = INT64_MAX;
    return known && !__builtin_mul_overflow(step_ns, (int64_t)steps, &rest_ns) ? rest_ns
                                                                               : INT64_MAX;
}

static int64_t end_of(const struct forecast *forecast, const struct core_job *job)
{
    int64_t end_ns = INT64_MAX;
    return __builtin_add_overflow(forecast->now_ns, rest_of(job), &end_ns) ? INT64_MAX : end_ns;
}

static void add_runner(struct forecast *forecast, const struct core_job *job)
{
    struct runner *runner = &forecast->runners[forecast->runners_count++];
    *runner = (struct runner){
        .job = job, .end_ns = end_of(forecast, job), .ranks = (uint32_t)job->ranks_count};
    for (size_t i = 0; i < job->members_count; i++) {
        const struct core_member *member = &job->members[i];
        for (int kind = 0; kind < 2 && member->at != NULL; kind++) {
            runner->slots[kind] += dp_core_node_open(kind, member->at) ? member->used : 0;
        }
    }
}

// Slots that come free at its end on nodes which the job can use.
static uint32_t slots_for(const struct core_job *ending, const struct core_job *wanting)
{
    uint32_t slots = 0;
    for (size_t i = 0; i < ending->members_count; i++) {
        const struct core_member *member = &ending->members[i];
        slots += member->at != NULL && dp_core_node_usable(wanting, member->at) ? member->used : 0;
    }
    return slots;
}

static void end_runner(struct forecast *forecast, struct runner *runner)
{
    runner->over = true;
    for (int kind = 0; kind < 2; kind++) {
        forecast->supplies[kind].free += runner->slots[kind];
    }
    dp_core_quota_suppose(forecast->core, runner->job, -(int64_t)runner->ranks);
    for (size_t i = 0; i < forecast->waiters_count; i++) {
        struct waiter *waiter = &forecast->waiters[i];
        if (waiter->own != NULL) {
            waiter->own->free += slots_for(runner->job, waiter->job);
        }
    }
}

static uint32_t less(uint32_t from, uint32_t what)
{
    return from > what ? from - what : 0;
}

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static uint32_t free_for(const struct round *round, const struct waiter *waiter)
{
    uint32_t all = round->free[waiter->job->row.needs_profile];
    return waiter->own == NULL ? all : smaller(all, waiter->own->free);
}

static void reserve(struct round *round, uint32_t ranks)
{
    for (int kind = 0; kind < 2; kind++) {
        round->free[kind] = less(round->free[kind], ranks);
    }
}

// A job that may have more ranks than it wants takes what there is, as planners do.
static void start(struct forecast *forecast, struct round *round, struct waiter *waiter)
{
    const struct core_job *job = waiter->job;
    uint32_t ranks = (uint32_t)job->row.ranks_wanted;
    if (!job->row.ranks_fixed) {
        uint32_t most = smaller(free_for(round, waiter), dp_core_quota_left(forecast->core, job));
        ranks = most > ranks ? most : ranks;
    }
    waiter->started = true;
    waiter->place->start_in_ns = forecast->now_ns - forecast->began_ns;
    if (forecast->first != NULL && forecast->first->passed_ns == 0) {
        forecast->first->passed_ns = forecast->now_ns;
    }
    dp_core_quota_suppose(forecast->core, job, ranks);
    reserve(round, ranks);
    struct runner *runner = &forecast->runners[forecast->runners_count++];
    *runner = (struct runner){.job = job, .end_ns = end_of(forecast, job), .ranks = ranks};
    for (int kind = 0; kind < 2; kind++) {
        struct core_supply *supply = &forecast->supplies[kind];
        runner->slots[kind] = smaller(ranks, supply->free);
        supply->free -= runner->slots[kind];
    }
}

// Slots of jobs that would make way for it.
static uint32_t slots_below(const struct forecast *forecast, const struct core_job *wanting)
{
    uint32_t slots = 0;
    for (size_t i = 0; i < forecast->runners_count; i++) {
        const struct runner *runner = &forecast->runners[i];
        bool stops = runner->job->row.state == DP_STATE_STOPPING;
        slots += !runner->over && !stops && dp_core_job_yields(runner->job, wanting)
                     ? runner->slots[wanting->row.needs_profile]
                     : 0;
    }
    return slots;
}

static void lead(struct forecast *forecast, struct round *round, struct waiter *waiter)
{
    uint32_t wanted = (uint32_t)waiter->job->row.ranks_wanted;
    uint32_t coming = dp_core_preempt_coming(forecast->core, waiter->job);
    uint32_t there = free_for(round, waiter) + coming;
    forecast->first = waiter;
    round->closed =
        coming > 0 || dp_core_queue_closes(forecast->core, waiter->passed_ns, forecast->now_ns);
    if (there < wanted && there + slots_below(forecast, waiter->job) >= wanted) {
        waiter->started = forecast->over = true;
        waiter->place->start_in_ns = forecast->now_ns - forecast->began_ns;
    }
}

static bool waits_alone(const struct forecast *forecast, const struct core_job *job)
{
    return job->backoff_ns > forecast->now_ns ||
           dp_core_quota_left(forecast->core, job) < (uint32_t)job->row.ranks_wanted;
}

static void look_at(struct forecast *forecast, struct round *round, struct waiter *waiter)
{
    if (waiter->started || waits_alone(forecast, waiter->job)) {
        return;
    }
    const struct core_supply *supply =
        waiter->own != NULL ? waiter->own : &forecast->supplies[waiter->job->row.needs_profile];
    bool calibrates = false;
    core_verdict found =
        dp_core_supply_judge(supply, free_for(round, waiter), waiter->job, &calibrates);
    if (found == CORE_CAN_PLAN) {
        start(forecast, round, waiter);
    } else if (found == CORE_LACKS_ROOM && forecast->first == NULL) {
        lead(forecast, round, waiter);
    } else if (found == CORE_LACKS_ROOM &&
               dp_core_preempt_coming(forecast->core, waiter->job) > 0) {
        reserve(round, (uint32_t)waiter->job->row.ranks_wanted);
    }
    round->depth += found == CORE_LACKS_ROOM;
}

static void go_through(struct forecast *forecast)
{
    struct round round = {.free = {forecast->supplies[0].free, forecast->supplies[1].free}};
    forecast->first = NULL;
    for (size_t i = 0; i < forecast->waiters_count && !round.closed && !forecast->over; i++) {
        bool none = round.free[0] == 0 && round.free[1] == 0;
        if ((none && forecast->first != NULL) || round.depth >= CORE_DEPTH_MAX) {
            return;
        }
        look_at(forecast, &round, &forecast->waiters[i]);
    }
}

// The next moment at which somebody may start; 0 = none.
static int64_t next_moment(const struct forecast *forecast)
{
    int64_t next_ns = 0;
    for (size_t i = 0; i < forecast->runners_count; i++) {
        const struct runner *runner = &forecast->runners[i];
        if (!runner->over && runner->end_ns != INT64_MAX) {
            dp_core_sooner(&next_ns, runner->end_ns);
        }
    }
    for (size_t i = 0; i < forecast->waiters_count; i++) {
        const struct waiter *waiter = &forecast->waiters[i];
        if (!waiter->started && waiter->job->backoff_ns > forecast->now_ns) {
            dp_core_sooner(&next_ns, waiter->job->backoff_ns);
        }
    }
    return next_ns;
}

static void play(struct forecast *forecast)
{
    // Its plan is being made.
    for (size_t i = 0; i < forecast->waiters_count; i++) {
        if (forecast->waiters[i].job->planning) {
            struct round round = {.free = {forecast->supplies[0].free, forecast->supplies[1].free}};
            dp_core_quota_suppose(forecast->core, forecast->waiters[i].job,
                                  -(int64_t)forecast->waiters[i].job->row.ranks_wanted);
            start(forecast, &round, &forecast->waiters[i]);
        }
    }
    size_t looks = 0;
    while (looks < LOOKS_MAX && !forecast->over) {
        looks += forecast->runners_count + forecast->waiters_count;
        go_through(forecast);
        int64_t next_ns = next_moment(forecast);
        if (next_ns == 0) {
            return;
        }
        forecast->now_ns = next_ns > forecast->now_ns ? next_ns : forecast->now_ns;
        for (size_t i = 0; i < forecast->runners_count; i++) {
            struct runner *runner = &forecast->runners[i];
            if (!runner->over && runner->end_ns <= forecast->now_ns) {
                end_runner(forecast, runner);
            }
        }
    }
}

static void add_waiter(struct forecast *forecast, struct core_job *job,
                       struct dp_queue_place *place)
{
    struct waiter *waiter = &forecast->waiters[forecast->waiters_count++];
    *waiter = (struct waiter){.job = job, .place = place, .passed_ns = job->passed_ns};
    if (job->row.avoid[0] != '\0') {
        waiter->own = dp_new(struct core_supply);
        dp_core_supply_measure(forecast->core, job->row.needs_profile, job, waiter->own);
    }
}

static void deinit(struct forecast *forecast)
{
    for (size_t i = 0; i < forecast->waiters_count; i++) {
        free(forecast->waiters[i].own);
    }
    free(forecast->waiters);
    free(forecast->runners);
}

size_t dp_core_queue_length(const struct dp_core *core)
{
    size_t count = 0;
    for (const struct core_job *job = core->queue; job != NULL; job = job->behind) {
        count++;
    }
    return count;
}

size_t dp_core_queue_places(struct dp_core *core, int64_t now_ns, struct dp_queue_place *ret_places)
{
    size_t waiting = dp_core_queue_length(core), running = 0, count = 0;
    FOR_EACH_PLACED_JOB(core, job)
    {
        running++;
    }
    DP_CLEANUP(deinit)
    struct forecast forecast = {
        .core = core,
        .began_ns = now_ns,
        .now_ns = now_ns,
        .runners = dp_new_array(struct runner, running + waiting),
        .waiters = dp_new_array(struct waiter, waiting),
    };
    dp_core_quotas_count(core);
    dp_core_supply_measure(core, false, NULL, &forecast.supplies[0]);
    dp_core_supply_measure(core, true, NULL, &forecast.supplies[1]);
    FOR_EACH_PLACED_JOB(core, job)
    {
        add_runner(&forecast, job);
    }
    uint32_t jobs = 0;
    uint64_t ranks = 0;
    for (struct core_job *job = core->queue; job != NULL; job = job->behind) {
        struct dp_queue_place *place = &ret_places[count++];
        *place = (struct dp_queue_place){
            .job = job->row.number, .jobs_ahead = jobs, .ranks_ahead = ranks, .start_in_ns = -1};
        if (job->row.held_ns == 0) {
            place->position = ++jobs;
            ranks += (uint32_t)job->row.ranks_wanted;
            add_waiter(&forecast, job, place);
        }
    }
    play(&forecast);
    dp_core_quotas_count(core);
    return count;
}
