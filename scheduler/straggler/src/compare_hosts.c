// What its host takes away from each rank, beside what is taken from others, period by period.
#include <math.h>

#include "internal.h"

void dp_straggler_begin_period(struct dp_straggler *self)
{
    self->period = (struct stretch){0};
    self->period_ends = false;
    for (uint32_t r = 0; r < self->config.ranks; r++) {
        struct rank *rank = &self->ranks[r];
        rank->host_own_ns = 0;
        rank->host_steps = 0;
        rank->hosts[HOST_GAPS].sum_ns = rank->hosts[HOST_CORES].sum_ns = 0;
        rank->hosts[HOST_GAPS].log = rank->hosts[HOST_CORES].log = NAN;
    }
}

// As it was, not as it would be with the usual tokens.
static double worked_ns(const struct dp_straggler_sample *sample)
{
    double sum = 0;
    for (size_t i = 0; i < sample->kinds_count; i++) {
        sum += fmax((double)sample->kinds[i].total_ns, 0);
    }
    return sum;
}

static void sum_step(struct dp_straggler *self)
{
    if (self->period.steps == 0) {
        self->period_first = self->step;
    }
    self->period.steps++;
    self->period.ns += self->step_ns;
    self->period_ends = self->period.ns >= HOST_PERIOD_NS;
    for (uint32_t r = 0; r < self->config.ranks; r++) {
        struct rank *rank = &self->ranks[r];
        if (rank->sample != NULL && rank->own_ns > 0) {
            double gap_ns = (double)rank->sample->launch_gap_ns;
            rank->host_steps++;
            rank->host_own_ns += worked_ns(rank->sample) + gap_ns;
            rank->hosts[HOST_GAPS].sum_ns += gap_ns;
            rank->hosts[HOST_CORES].sum_ns += gap_ns + (double)rank->sample->off_core_ns;
        }
    }
}

static double taken_ns(const struct rank *rank, int way)
{
    return rank->hosts[way].sum_ns / rank->host_steps;
}

static double work_ns(const struct rank *rank)
{
    return rank->host_own_ns / rank->host_steps;
}

// What is taken from one that works more than others, as a share of its work or as it is.
static double taken(const struct rank *rank, int way, bool share)
{
    return taken_ns(rank, way) / (share ? work_ns(rank) : 1);
}

static size_t sort_taken(struct dp_straggler *self, int way, bool share)
{
    size_t count = 0;
    for (uint32_t r = 0; r < self->config.ranks; r++) {
        if (self->ranks[r].host_steps > 0) {
            self->scratch[count++] = taken(&self->ranks[r], way, share);
        }
    }
    dp_straggler_sort(self->scratch, count);
    return count;
}

// The most that is usual: of others, in time or for as much work, and of the rank itself.
static void find_usual(struct dp_straggler *self, int way, bool share)
{
    size_t count = sort_taken(self, way, share);
    for (uint32_t r = 0; r < self->config.ranks && count > 1; r++) {
        struct rank *rank = &self->ranks[r];
        if (rank->host_steps > 0) {
            double own = taken(rank, way, share);
            double others = dp_straggler_median_of_others(self->scratch, count, own);
            others *= share ? work_ns(rank) : 1;
            rank->hosts[way].usual_ns = fmax(rank->hosts[way].usual_ns, others);
        }
    }
}

// As if what is taken away made the work longer.
static void compare(struct dp_straggler *self, int way)
{
    for (uint32_t r = 0; r < self->config.ranks; r++) {
        struct host *host = &self->ranks[r].hosts[way];
        host->usual_ns = host->best_known ? host->best_ns : -1;
    }
    find_usual(self, way, false);
    find_usual(self, way, true);
    for (uint32_t r = 0; r < self->config.ranks; r++) {
        struct rank *rank = &self->ranks[r];
        struct host *host = &rank->hosts[way];
        if (rank->host_steps > 0 && host->usual_ns >= 0 && !host->is_settling) {
            double all = work_ns(rank);
            host->lost_ns = taken_ns(rank, way) - host->usual_ns;
            host->log = log(all / fmax(all - host->lost_ns, all / 100));
        }
    }
}

void dp_straggler_compare_hosts(struct dp_straggler *self)
{
    if (self->looked <= self->config.warm_up_steps || self->frozen > 0) {
        dp_straggler_begin_period(self);
        return;
    }
    sum_step(self);
    if (self->period_ends) {
        compare(self, HOST_GAPS);
        compare(self, HOST_CORES);
    }
}

static void learn(struct rank *rank, int way)
{
    struct host *host = &rank->hosts[way];
    dp_straggler_window_add(&host->taken, taken_ns(rank, way));
    if (host->taken.count % BEST_STEPS == 0 && !dp_straggler_host_is_suspect(rank)) {
        double median = dp_straggler_window_median(&host->taken, BEST_STEPS);
        host->best_ns = host->best_known ? fmin(host->best_ns, median) : median;
        host->best_known = true;
        host->is_settling = false;
    }
}

void dp_straggler_learn_hosts(struct dp_straggler *self)
{
    if (!self->period_ends) {
        return;
    }
    dp_straggler_window_add(&self->period_times, self->period.ns / self->period.steps);
    for (uint32_t r = 0; r < self->config.ranks; r++) {
        if (self->ranks[r].host_steps > 0) {
            learn(&self->ranks[r], HOST_GAPS);
            learn(&self->ranks[r], HOST_CORES);
        }
    }
    dp_straggler_begin_period(self);
}
