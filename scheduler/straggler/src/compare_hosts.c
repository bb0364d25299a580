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
            rank->host_own_ns += rank->own_ns + gap_ns;
            rank->hosts[HOST_GAPS].sum_ns += gap_ns;
            rank->hosts[HOST_CORES].sum_ns += gap_ns + (double)rank->sample->off_core_ns;
        }
    }
}

static double taken_ns(const struct rank *rank, int way)
{
    return rank->hosts[way].sum_ns / rank->host_steps;
}

// As if what is taken away made the work longer.
static void compare(struct dp_straggler *self, int way)
{
    size_t count = 0;
    for (uint32_t r = 0; r < self->config.ranks; r++) {
        if (self->ranks[r].host_steps > 0) {
            self->scratch[count++] = taken_ns(&self->ranks[r], way);
        }
    }
    dp_straggler_sort(self->scratch, count);
    for (uint32_t r = 0; r < self->config.ranks; r++) {
        struct rank *rank = &self->ranks[r];
        struct host *host = &rank->hosts[way];
        if (rank->host_steps == 0 || (count < 2 && !host->best_known)) {
            continue;
        }
        double taken = taken_ns(rank, way), others = host->best_ns;
        if (count > 1) {
            others = dp_straggler_median_of_others(self->scratch, count, taken);
        }
        double reference = host->best_known ? fmax(host->best_ns, others) : others;
        double all = rank->host_own_ns / rank->host_steps;
        host->lost_ns = taken - reference;
        host->log = log(all / fmax(all - host->lost_ns, all / 100));
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
    }
}

void dp_straggler_learn_hosts(struct dp_straggler *self)
{
    if (!self->period_ends) {
        return;
    }
    for (uint32_t r = 0; r < self->config.ranks; r++) {
        if (self->ranks[r].host_steps > 0) {
            learn(&self->ranks[r], HOST_GAPS);
            learn(&self->ranks[r], HOST_CORES);
        }
    }
    dp_straggler_begin_period(self);
}
