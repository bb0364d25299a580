#include "top_history.h"

#include <stdlib.h>
#include <string.h>

#include "decisions.h"
#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/limits.h"

static const struct {
    const char *text;
    bool is_good;
} metrics[TOP_METRIC_COUNT] = {
    [TOP_BUSY] = {"busy", true},
    [TOP_COMM] = {"waiting for peers", false},
    [TOP_IDLE] = {"idle", false},
    [TOP_SPEED] = {"speed beside its peers", true},
};

const char *top_metric_text(top_metric metric)
{
    return metrics[metric].text;
}

bool top_metric_is_good(top_metric metric)
{
    return metrics[metric].is_good;
}

void top_history_deinit(struct top_history *history)
{
    free(history->cells);
    *history = (struct top_history){0};
}

static float *cell(const struct top_history *history, top_metric metric, size_t rank, size_t column)
{
    return &history->cells[((size_t)metric * history->ranks + rank) * history->columns + column];
}

static float share(int64_t part, int64_t whole)
{
    if (whole <= 0 || part < 0) {
        return TOP_UNKNOWN;
    }
    return part >= whole ? 1.0F : (float)((double)part / (double)whole);
}

static float value_of(const Dp__V1__JobRank *rank, top_metric metric)
{
    const Dp__V1__Utilisation *u = rank->utilisation;
    if (metric == TOP_SPEED) {
        double score = rank->score == NULL || rank->score->blind ? 0 : rank->score->relative;
        return score <= 0 ? TOP_UNKNOWN : score > 1 ? 1.0F : (float)score;
    }
    if (u == NULL) {
        return TOP_UNKNOWN;
    }
    switch (metric) {
    case TOP_BUSY:
        return share(u->forward_ns + u->backward_ns + u->weight_ns + u->pair_ns + u->optimizer_ns +
                         u->evaluation_ns,
                     u->period_ns);
    case TOP_COMM:
        return share(u->comm_exposed_ns, u->period_ns);
    default:
        return share(u->idle_ns, u->period_ns);
    }
}

static void begin(struct top_history *history, size_t ranks)
{
    top_history_deinit(history);
    history->ranks = ranks;
    history->columns = DPCTL_TOP_COLUMNS_MAX;
    history->cells = dp_new_array(float, TOP_METRIC_COUNT *ranks * history->columns);
}

void top_history_add(struct top_history *history, const Dp__V1__Job *job)
{
    if (history->cells == NULL || history->ranks != job->n_ranks) {
        begin(history, job->n_ranks);
    }
    for (int metric = 0; metric < TOP_METRIC_COUNT; metric++) {
        for (size_t rank = 0; rank < job->n_ranks; rank++) {
            *cell(history, (top_metric)metric, rank, history->next) =
                value_of(job->ranks[rank], (top_metric)metric);
        }
    }
    history->next = (history->next + 1) % history->columns;
    history->filled += history->filled < history->columns;
}

float top_history_at(const struct top_history *history, top_metric metric, size_t rank, size_t age)
{
    if (age >= history->filled || rank >= history->ranks) {
        return TOP_UNKNOWN;
    }
    size_t column = (history->next + history->columns - 1 - age) % history->columns;
    return *cell(history, metric, rank, column);
}

const Dp__V1__StragglerVerdict *top_verdict_of(const Dp__V1__Job *job, uint32_t rank)
{
    for (size_t i = 0; i < job->n_stragglers; i++) {
        const Dp__V1__StragglerVerdict *verdict = job->stragglers[i];
        bool here = (verdict->has_rank && verdict->rank == rank) ||
                    (verdict->has_peer && verdict->peer == rank);
        if (here && dpctl_verdict_stands(job, verdict)) {
            return verdict;
        }
    }
    return NULL;
}
