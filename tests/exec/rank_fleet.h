// dp-rank processes with the test as their keeper, agent and controller.
#pragma once

#include <sys/types.h>

#include "dp/arena.h"
#include "dp/link.h"
#include "dp/plan.h"
#include "dp/spec.h"
#include "dp/v1/rank.pb-c.h"
#include "temporary.h"

#define FLEET_RANKS_MAX 8
#define FLEET_REPORTS_MAX 4096

struct fleet_rank {
    pid_t pid;
    struct dp_link link;
    struct dp_arena arena; // of its reports
    Dp__V1__RankReport *reports[FLEET_REPORTS_MAX];
    size_t reports_count;
    bool ended;
    int status; // of waitpid
};

struct fleet {
    char directory[TEMPORARY_MAX]; // temporary: text and checkpoints
    struct dp_job_spec spec;
    struct dp_plan plan;
    Dp__V1__Fence fence;
    int32_t count;
    struct fleet_rank ranks[FLEET_RANKS_MAX];
    const char *preload; // a library that every rank loads first; NULL = none
    bool has_stale_rank; // the last rank is of the attempt before
    int32_t nodes;       // ranks are as if on so many nodes, in equal shares; 0 = on one
    // Its ranks take what this one's hold, those that are left, of that step; NULL = of none.
    const struct fleet *from;
    uint64_t state_step;
    bool has_detour; // peers reach the last rank by tcp through the process `detour`
    pid_t detour;
};

// Path of dp-rank, beside the test; the caller frees it.
char *fleet_program(void);
// A directory with a text, and the job: the tiny model of the tests. Change the spec before
// fleet_plan.
void fleet_init(struct fleet *fleet);
// Kills what still runs and removes the directory.
void fleet_deinit(struct fleet *fleet);
// Plans the job; starts as many ranks as it needs, which wait for orders.
void fleet_spawn(struct fleet *fleet);
void fleet_prepare(struct fleet *fleet);
// When all are ready; starts the detour.
void fleet_start(struct fleet *fleet);
void fleet_order(struct fleet *fleet, int32_t rank, Dp__V1__RankOrder *order);
void fleet_stop(struct fleet *fleet, bool checkpoint);
void fleet_pause(struct fleet *fleet);
void fleet_settle(struct fleet *fleet, int32_t rank, uint64_t step, double grad_norm);
// Takes reports until the rank has sent one of the kind that is the `number`-th (from 1), which is
// returned; fails the test when the rank ends without it or after a minute.
const Dp__V1__RankReport *fleet_await(struct fleet *fleet, int32_t rank,
                                      Dp__V1__RankReport__ReportCase kind, size_t number);
// The number-th report of the kind among those taken, or NULL.
const Dp__V1__RankReport *fleet_report(const struct fleet *fleet, int32_t rank,
                                       Dp__V1__RankReport__ReportCase kind, size_t number);
// Takes reports until the process has ended; returns waitpid's status.
int fleet_await_end(struct fleet *fleet, int32_t rank);
// From the beginning to the end, all ok: every rank's exit status is 0.
void fleet_run(struct fleet *fleet);
