// Samples come in, one rank after the other; steps that are complete are looked at.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "internal.h"

struct dp_straggler *dp_straggler_new(const struct dp_straggler_config *config)
{
    struct dp_straggler *self = dp_new(struct dp_straggler);
    self->config = *config;
    if (config->nodes != NULL) {
        self->config.nodes = dp_memdup(config->nodes, config->ranks * sizeof(*config->nodes));
    }
    self->ranks = dp_new_array(struct rank, config->ranks);
    self->figures = dp_new_array(struct probe_figures, config->ranks);
    self->awaited = config->ranks;
    // What is known when it begins can be probed before a step has come.
    dp_straggler_make_room(self, config->ranks);
    return self;
}

static void free_rank(struct rank *rank)
{
    for (size_t i = 0; i < DP_STRAGGLER_PENDING_MAX; i++) {
        free(rank->slots[i].kinds);
        free(rank->slots[i].links);
    }
    free(rank->works);
    free(rank->links);
    free(rank->work.verdict);
    for (int way = 0; way < HOST_WAYS; way++) {
        free(rank->hosts[way].subject.verdict);
    }
    free(rank->silence.verdict);
}

void dp_straggler_free(struct dp_straggler *straggler)
{
    if (straggler == NULL) {
        return;
    }
    for (uint32_t r = 0; r < straggler->config.ranks; r++) {
        free_rank(&straggler->ranks[r]);
        free(straggler->figures[r].links);
    }
    for (size_t i = 0; i < straggler->edges_count; i++) {
        free(straggler->edges[i].subject.verdict);
    }
    for (size_t i = 0; i < straggler->stages_count; i++) {
        free(straggler->stages[i].subject.verdict);
    }
    free(straggler->data.verdict);
    free(straggler->doing.verdict);
    free(straggler->ranks);
    free(straggler->groups);
    free(straggler->edges);
    free(straggler->stages);
    free(straggler->figures);
    free(straggler->news);
    free(straggler->scratch);
    free((void *)straggler->config.nodes);
    free(straggler);
}

// What is known of each rank and pair once a step has been compared; nothing is learned from those
// that are suspected.
static void learn_best(struct window *window, double value, bool healthy, double *best)
{
    dp_straggler_window_add(window, value);
    if (healthy && window->count % BEST_STEPS == 0) {
        double median = dp_straggler_window_median(window, BEST_STEPS);
        *best = *best == 0 || median < *best ? median : *best;
    }
}

// What is usual of a link, not what was best: short messages are late by chance, some of them much.
static void learn_edge(struct edge *edge)
{
    edge->history[edge->history_count++ % DP_STRAGGLER_HISTORY] = (float)edge->value_ns;
    if (edge->history_count % BEST_STEPS == 0) {
        double values[DP_STRAGGLER_HISTORY];
        size_t count =
            edge->history_count < DP_STRAGGLER_HISTORY ? edge->history_count : DP_STRAGGLER_HISTORY;
        for (size_t i = 0; i < count; i++) {
            values[i] = edge->history[i];
        }
        edge->usual_ns = dp_straggler_median(values, count);
    }
}

static void learn_rank(struct rank *rank)
{
    bool healthy = rank->work.series.sum == 0 || rank->work.series.run < BEST_STEPS / 2;
    healthy = healthy && !dp_straggler_is_suspect(&rank->work);
    for (size_t i = 0; i < rank->works_count; i++) {
        struct work *work = &rank->works[i];
        if (work->value_ns > 0) {
            bool first = rank->known > 0 && work->best_ns == 0;
            learn_best(&work->own, work->high_ns, healthy || first, &work->best_ns);
            work->best_ns /= first ? rank->known : 1; // it was slow when this was learned
            if (work->reference_ns > 0) {
                dp_straggler_window_add(&work->relative, log(work->low_ns / work->reference_ns));
            }
        }
    }
    const struct dp_straggler_sample *sample = rank->sample;
    dp_straggler_window_add(&rank->off_core, (double)sample->off_core_ns);
    double lost = rank->reference_ns > 0 ? fmax(rank->own_ns - rank->reference_ns, 0) : 0;
    dp_straggler_window_add(&rank->lost, lost);
    dp_straggler_window_add(&rank->busy, rank->own_ns);
    if (!isnan(rank->individual_log)) {
        dp_straggler_window_add(&rank->individual, rank->individual_log);
    }
}

static void learn(struct dp_straggler *self)
{
    for (uint32_t r = 0; r < self->config.ranks; r++) {
        if (self->ranks[r].sample != NULL) {
            learn_rank(&self->ranks[r]);
        }
    }
    for (size_t i = 0; i < self->edges_count; i++) {
        struct edge *edge = &self->edges[i];
        bool healthy =
            edge->subject.series.run < BEST_STEPS / 2 && !dp_straggler_is_suspect(&edge->subject);
        if (edge->value_ns > 0 && healthy) {
            learn_edge(edge);
        }
    }
    dp_straggler_learn_hosts(self);
    dp_straggler_window_add(&self->step_times, self->step_ns);
}

static void take_slots(struct dp_straggler *self, uint8_t at)
{
    self->step_ns = 0;
    for (uint32_t r = 0; r < self->config.ranks; r++) {
        struct rank *rank = &self->ranks[r];
        struct slot *slot = &rank->slots[at];
        bool filled = slot->filled && slot->sample.kinds_count > 0;
        rank->sample = filled ? &slot->sample : NULL;
        slot->filled = false;
        if (filled && (double)slot->sample.step_ns > self->step_ns) {
            self->step_ns = (double)slot->sample.step_ns;
        }
    }
}

static void judge_silence(struct dp_straggler *self, uint32_t r)
{
    struct rank *rank = &self->ranks[r];
    if (rank->sample != NULL) {
        rank->missed = 0;
        return;
    }
    rank->missed++;
    if (rank->missed < self->config.blind_steps || rank->silence.verdict != NULL) {
        return;
    }
    self->awaited--;
    struct dp_straggler_verdict *verdict = dp_straggler_verdict_of(&rank->silence);
    verdict->state = DP_STRAGGLER_BLIND;
    verdict->rank = r;
    verdict->step = self->step;
    verdict->onset_step = self->step - rank->missed + 1;
    snprintf(verdict->text, sizeof(verdict->text),
             "no times of rank %u for %u steps, while others go on: it may be slow or not", r,
             rank->missed);
    dp_straggler_tell(self, verdict);
}

static void look(struct dp_straggler *self)
{
    uint8_t at = self->order[0];
    self->step = self->pending[at].step;
    self->pending_count--;
    memmove(self->order, self->order + 1, self->pending_count);
    self->pending[at].reported = 0;
    take_slots(self, at);
    self->looked++;
    self->elapsed_ns += self->step_ns;
    dp_straggler_compare_works(self);
    dp_straggler_compare_edges(self);
    dp_straggler_compare_hosts(self);
    for (uint32_t r = 0; r < self->config.ranks; r++) {
        judge_silence(self, r);
    }
    if (self->looked > self->config.warm_up_steps) {
        dp_straggler_judge(self);
        learn(self);
    }
    self->frozen -= self->frozen > 0;
    dp_straggler_judge_probes(self);
    for (uint32_t r = 0; r < self->config.ranks; r++) {
        self->ranks[r].sample = NULL;
    }
}

static uint8_t free_pending(const struct dp_straggler *self)
{
    uint8_t at = 0;
    for (size_t i = 0; i < self->pending_count; i++) {
        if (self->order[i] == at) {
            at++;
            i = SIZE_MAX; // from the beginning
        }
    }
    return at;
}

// The pending step with this number; looks at the oldest ones to make room. -1: it is too old.
static int pending_of(struct dp_straggler *self, int64_t step)
{
    for (size_t i = 0; i < self->pending_count; i++) {
        if (self->pending[self->order[i]].step == step) {
            return self->order[i];
        }
    }
    if (self->pending_count == DP_STRAGGLER_PENDING_MAX) {
        look(self);
    }
    if (step <= self->step) {
        return -1;
    }
    uint8_t at = free_pending(self);
    size_t place = self->pending_count;
    while (place > 0 && self->pending[self->order[place - 1]].step > step) {
        self->order[place] = self->order[place - 1];
        place--;
    }
    self->order[place] = at;
    self->pending_count++;
    self->pending[at].step = step;
    self->pending[at].reported = 0;
    return at;
}

static void fill_slot(struct slot *slot, const struct dp_straggler_sample *sample)
{
    size_t kinds = sample->kinds_count, links = sample->links_count;
    kinds = kinds < DP_STRAGGLER_KINDS_MAX ? kinds : DP_STRAGGLER_KINDS_MAX;
    links = links < DP_STRAGGLER_LINKS_MAX ? links : DP_STRAGGLER_LINKS_MAX;
    if (kinds > slot->kinds_capacity) {
        slot->kinds = dp_realloc(slot->kinds, kinds, sizeof(*slot->kinds));
        slot->kinds_capacity = kinds;
    }
    if (links > slot->links_capacity) {
        slot->links = dp_realloc(slot->links, links, sizeof(*slot->links));
        slot->links_capacity = links;
    }
    if (kinds > 0) {
        memcpy(slot->kinds, sample->kinds, kinds * sizeof(*slot->kinds));
    }
    if (links > 0) {
        memcpy(slot->links, sample->links, links * sizeof(*slot->links));
    }
    slot->sample = *sample;
    slot->sample.kinds = slot->kinds;
    slot->sample.kinds_count = kinds;
    slot->sample.links = slot->links;
    slot->sample.links_count = links;
    slot->sample.launch_gap_ns = sample->launch_gap_ns > 0 ? sample->launch_gap_ns : 0;
    slot->sample.off_core_ns = sample->off_core_ns > 0 ? sample->off_core_ns : 0;
    slot->filled = true;
}

void dp_straggler_take(struct dp_straggler *straggler, const struct dp_straggler_sample *sample)
{
    if (sample->rank >= straggler->config.ranks) {
        return;
    }
    struct rank *rank = &straggler->ranks[sample->rank];
    if (rank->silence.verdict != NULL && sample->kinds_count > 0) {
        // It is waited for again, though this step may have been looked at without it.
        rank->missed = 0;
        straggler->awaited++;
        dp_straggler_clear(straggler, &rank->silence, "it reports again");
    }
    if (sample->step <= straggler->step) {
        return;
    }
    int at = pending_of(straggler, sample->step);
    if (at < 0 || rank->slots[at].filled) {
        return;
    }
    fill_slot(&rank->slots[at], sample);
    rank->is_on_host = rank->is_on_host || sample->off_core_ns > 0;
    bool counts = rank->silence.verdict == NULL;
    straggler->pending[at].reported += counts;
    // A step is complete when those that are not blind have reported it; older ones are, too.
    while (straggler->pending[at].reported >= straggler->awaited && straggler->pending_count > 0 &&
           straggler->pending[straggler->order[0]].step <= sample->step) {
        look(straggler);
    }
}

void dp_straggler_freeze(struct dp_straggler *straggler, int64_t step, const char *why)
{
    straggler->freeze_step = step;
    straggler->frozen = straggler->config.freeze_steps;
    straggler->before_ns = dp_straggler_window_median(&straggler->step_times, BEST_STEPS);
    snprintf(straggler->why, sizeof(straggler->why), "%s", why);
}

int64_t dp_straggler_step(const struct dp_straggler *straggler)
{
    return straggler->step;
}
