#include "lesson_steps.h"

#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"

enum { PART_STEP = DP_PART_COUNT, PARTS };

struct rank_steps {
    uint64_t newest; // step; 0 = none yet
    size_t count;    // ever kept
    float parts_s[DP_LEARN_STEPS_KEPT][PARTS];
};

struct lesson_steps {
    struct dp_fence fence;
    struct rank_steps **ranks; // [ranks_count], NULL until they report
    size_t ranks_count;
    struct lesson_steps *next;
};

static void free_one(struct lesson_steps *job)
{
    for (size_t i = 0; i < job->ranks_count; i++) {
        free(job->ranks[i]);
    }
    free(job->ranks);
    free(job);
}

void lesson_steps_free(struct lesson_steps *steps)
{
    while (steps != NULL) {
        struct lesson_steps *next = steps->next;
        free_one(steps);
        steps = next;
    }
}

static struct lesson_steps **find(struct lesson_steps **steps, const char *job)
{
    while (*steps != NULL && strcmp((*steps)->fence.job, job) != 0) {
        steps = &(*steps)->next;
    }
    return steps;
}

void lesson_steps_forget(struct lesson_steps **steps, const char *job)
{
    struct lesson_steps **link = find(steps, job);
    if (*link != NULL) {
        struct lesson_steps *gone = *link;
        *link = gone->next;
        free_one(gone);
    }
}

static struct rank_steps *rank_of(struct lesson_steps *job, uint32_t rank)
{
    if (rank >= job->ranks_count) {
        job->ranks = dp_realloc(job->ranks, (size_t)rank + 1, sizeof(*job->ranks));
        for (size_t i = job->ranks_count; i <= rank; i++) {
            job->ranks[i] = NULL;
        }
        job->ranks_count = (size_t)rank + 1;
    }
    if (job->ranks[rank] == NULL) {
        job->ranks[rank] = dp_new(struct rank_steps);
    }
    return job->ranks[rank];
}

void lesson_steps_add(struct lesson_steps **steps, const struct dp_report *report)
{
    const struct dp_step_report *step = &report->step;
    struct lesson_steps **link = find(steps, report->fence.job);
    if (*link != NULL && ((*link)->fence.attempt != report->fence.attempt ||
                          (*link)->fence.epoch != report->fence.epoch)) {
        lesson_steps_forget(steps, report->fence.job);
        link = find(steps, report->fence.job);
    }
    if (*link == NULL) {
        *link = dp_new(struct lesson_steps);
        (*link)->fence = report->fence;
    }
    struct rank_steps *rank = rank_of(*link, report->rank);
    if (step->row.step <= rank->newest) {
        return;
    }
    bool first = rank->newest == 0;
    rank->newest = step->row.step;
    if (first) {
        return;
    }
    float *parts = rank->parts_s[rank->count++ % DP_LEARN_STEPS_KEPT];
    parts[DP_PART_COMPUTE] = (float)step->busy_ns * 1e-9f;
    parts[DP_PART_EXCHANGE] = (float)step->exchange_ns * 1e-9f;
    parts[DP_PART_HOP] = (float)step->bubble_ns * 1e-9f; // all waits: see lesson_steps.h
    parts[DP_PART_GRADIENT] = (float)step->grad_sync_ns * 1e-9f;
    parts[DP_PART_OPTIMIZER] = (float)step->optimizer_ns * 1e-9f;
    parts[PART_STEP] = (float)step->row.step_ns * 1e-9f;
}

static int by_value(const void *a, const void *b)
{
    return (*(const float *)a > *(const float *)b) - (*(const float *)a < *(const float *)b);
}

// The kept values of one part, sorted; returns how many.
static size_t sorted(const struct rank_steps *rank, int part, float *ret_values)
{
    size_t count = rank->count < DP_LEARN_STEPS_KEPT ? rank->count : DP_LEARN_STEPS_KEPT;
    for (size_t i = 0; i < count; i++) {
        ret_values[i] = rank->parts_s[i][part];
    }
    qsort(ret_values, count, sizeof(*ret_values), by_value);
    return count;
}

int64_t lesson_steps_medians(const struct lesson_steps *steps, const char *job, size_t ranks,
                             struct dp_part_times *ret_times, double *ret_step_s,
                             double *ret_spread)
{
    const struct lesson_steps *found = *find((struct lesson_steps **)&steps, job);
    float values[DP_LEARN_STEPS_KEPT];
    *ret_step_s = *ret_spread = 0;
    memset(ret_times, 0, ranks * sizeof(*ret_times));
    if (found == NULL || found->ranks_count < ranks) {
        return 0;
    }
    size_t fewest = SIZE_MAX;
    for (size_t r = 0; r < ranks; r++) {
        const struct rank_steps *rank = found->ranks[r];
        if (rank == NULL || rank->count == 0) {
            return 0;
        }
        for (int part = 0; part < DP_PART_COUNT; part++) {
            size_t count = sorted(rank, part, values);
            ret_times[r].s[part] = (double)values[count / 2];
        }
        size_t count = sorted(rank, PART_STEP, values);
        fewest = rank->count < fewest ? rank->count : fewest;
        double median_s = (double)values[count / 2];
        if (median_s > *ret_step_s) {
            *ret_step_s = median_s;
            *ret_spread = (double)(values[count - 1 - count / 4] - values[count / 4]) / median_s;
        }
    }
    return (int64_t)fewest;
}
