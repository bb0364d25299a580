// What is no rank's fault: uneven stages, uneven data, what we did ourselves.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "internal.h"

// Data are uneven as long as a job runs; what others do to ranks looks like it for seconds, too.
static const double unexplained_times = 10;

// Nobody waits for these, so they may take twice as long to be sure of.
static uint32_t sure_steps(const struct dp_straggler *self)
{
    return 2 * self->config.persist_steps;
}

// As long as a suspicion has to, or so many times; after what came and went, longer.
static bool has_lasted(const struct dp_straggler *self, struct subject *subject, bool is_so,
                       double times)
{
    if (!is_so) {
        subject->even_ns = self->elapsed_ns;
    }
    double patience_s = times * dp_straggler_patience_s(self, subject);
    return self->elapsed_ns - subject->even_ns >= 1e9 * patience_s;
}

static void clear_lapsed(struct dp_straggler *self, struct subject *subject, const char *why)
{
    dp_straggler_count_lapse(self, subject);
    dp_straggler_clear(self, subject, why);
    subject->even_ns = self->elapsed_ns;
}

static struct stage *stage_of(struct dp_straggler *self, uint32_t index)
{
    if (index >= self->stages_count) {
        self->stages = dp_realloc(self->stages, index + 1, sizeof(*self->stages));
        memset(&self->stages[self->stages_count], 0,
               (index + 1 - self->stages_count) * sizeof(*self->stages));
        self->stages_count = index + 1;
    }
    return &self->stages[index];
}

// A pair is work of two stages.
static uint32_t second_stage(const struct dp_straggler_kind *kind)
{
    return kind->kind == DP_ACTION_FB ? kind->b_stage : kind->stage;
}

static void add_work(struct dp_straggler *self, uint32_t index, const struct group *group,
                     double share)
{
    struct stage *stage = stage_of(self, index);
    double ranks = group->present;
    stage->work_ns += share * ranks * group->count * group->median_ns;
    stage->planned_ns +=
        group->planned_ns > 0 ? share * ranks * group->count * group->planned_ns : NAN;
    stage->ranks = group->present > stage->ranks ? group->present : stage->ranks;
    stage->only_rank = group->newest_rank;
}

// What a stage takes on all ranks that have it, by the lower median of them: one slow rank does not
// move it. Half of a pair is either stage's.
static void sum_stages(struct dp_straggler *self)
{
    for (size_t i = 0; i < self->stages_count; i++) {
        self->stages[i].work_ns = self->stages[i].planned_ns = 0;
        self->stages[i].ranks = 0;
    }
    for (size_t i = 0; i < self->groups_count; i++) {
        const struct group *group = &self->groups[i];
        if (group->present == 0 || group->kind.kind == DP_STRAGGLER_OPTIMIZER) {
            continue;
        }
        add_work(self, group->kind.stage, group, 0.5);
        add_work(self, second_stage(&group->kind), group, 0.5);
    }
}

static double stage_figure(const struct stage *stage, bool planned)
{
    return planned ? stage->work_ns / stage->planned_ns : stage->work_ns;
}

static double others_figure(const struct dp_straggler *self, size_t except, bool planned,
                            double *values)
{
    size_t count = 0;
    for (size_t i = 0; i < self->stages_count; i++) {
        if (i != except && self->stages[i].ranks > 0) {
            values[count++] = stage_figure(&self->stages[i], planned);
        }
    }
    return count == 0 ? 0 : dp_straggler_median(values, count);
}

// A stage is told from a slow rank by time: it was always like that. So steps count in which its
// ranks are as they always were.
static bool is_changed(const struct dp_straggler *self, const struct rank *rank)
{
    return dp_straggler_is_suspect(&rank->work) || dp_straggler_host_is_suspect(rank) ||
           dp_straggler_lacks_cores(rank) ||
           (rank->alone && rank->relative_log > log(self->config.enter - self->config.gap));
}

static void find_changed(struct dp_straggler *self)
{
    for (size_t i = 0; i < self->stages_count; i++) {
        self->stages[i].is_changed = false;
    }
    for (uint32_t r = 0; r < self->config.ranks; r++) {
        const struct rank *rank = &self->ranks[r];
        for (size_t i = 0; i < rank->works_count && is_changed(self, rank); i++) {
            const struct work *work = &rank->works[i];
            if (work->value_ns > 0 && work->newest.kind != DP_STRAGGLER_OPTIMIZER) {
                stage_of(self, work->newest.stage)->is_changed = true;
                stage_of(self, second_stage(&work->newest))->is_changed = true;
            }
        }
    }
}

static void judge_stage(struct dp_straggler *self, size_t index, bool planned, double *values)
{
    struct stage *stage = &self->stages[index];
    double others = others_figure(self, index, planned, values);
    if (stage->ranks == 0 || others <= 0 || stage->is_changed) {
        return;
    }
    dp_straggler_window_add(&stage->ratio, log(stage_figure(stage, planned) / others));
    if (stage->ratio.count < DP_STRAGGLER_WINDOW) {
        return;
    }
    double ratio = exp(dp_straggler_window_median(&stage->ratio, sure_steps(self)));
    if (stage->subject.verdict != NULL) {
        if (ratio < self->config.enter - self->config.gap) {
            clear_lapsed(self, &stage->subject, "its stage takes no longer than others now");
        }
        return;
    }
    double lost_ns = stage->work_ns / stage->ranks * (1 - 1 / ratio);
    if (!has_lasted(
            self, &stage->subject,
            ratio >= self->config.enter && lost_ns >= self->config.noticeable * self->step_ns, 1)) {
        return;
    }
    struct dp_straggler_verdict *verdict = dp_straggler_verdict_of(&stage->subject);
    verdict->state = DP_STRAGGLER_NOTED;
    verdict->cause = DP_STRAGGLER_UNEVEN_STAGE;
    verdict->stage = (uint32_t)index;
    verdict->slowdown = ratio;
    verdict->lost_s = fmax(lost_ns, 0) / 1e9;
    verdict->onset_step = verdict->step = self->step;
    snprintf(verdict->text, sizeof(verdict->text),
             "stage %zu takes %.2f times as long as %s on all %u ranks that have it, and it was "
             "like that before: it has too much to do, and no rank is slow",
             index, ratio, planned ? "planned, beside other stages," : "other stages",
             stage->ranks);
    dp_straggler_tell(self, verdict);
}

void dp_straggler_judge_stages(struct dp_straggler *self)
{
    sum_stages(self);
    find_changed(self);
    bool planned = true;
    for (size_t i = 0; i < self->stages_count; i++) {
        planned = planned && (self->stages[i].ranks == 0 || self->stages[i].planned_ns > 0);
    }
    double *values = dp_new_array(double, self->stages_count);
    for (size_t i = 0; i < self->stages_count; i++) {
        judge_stage(self, i, planned, values);
    }
    free(values);
}

// The worst rank of the step, before and after tokens are taken out; how forward and backward of
// the ranks go together.
static void sum_data(struct dp_straggler *self, double *ret_worst, double *ret_left,
                     const struct rank **ret_slowest)
{
    *ret_worst = *ret_left = NAN;
    *ret_slowest = NULL;
    for (size_t i = 0; i < 3; i++) {
        self->agreement[i] *= 0.95;
    }
    for (uint32_t r = 0; r < self->config.ranks; r++) {
        const struct rank *rank = &self->ranks[r];
        if (rank->sample == NULL || isnan(rank->raw_log)) {
            continue;
        }
        *ret_slowest = rank->raw_log > *ret_worst || *ret_slowest == NULL ? rank : *ret_slowest;
        *ret_worst = fmax(rank->raw_log, *ret_worst);
        *ret_left = fmax(rank->relative_log, *ret_left);
        double x = rank->forward_log, y = rank->backward_log;
        if (!isnan(x) && !isnan(y)) {
            self->agreement[0] += x * y;
            self->agreement[1] += x * x;
            self->agreement[2] += y * y;
        }
    }
}

static bool some_rank_is_suspect(const struct dp_straggler *self)
{
    for (uint32_t r = 0; r < self->config.ranks; r++) {
        if (dp_straggler_is_suspect(&self->ranks[r].work)) {
            return true;
        }
    }
    return false;
}

static bool some_rank_is_slow(const struct dp_straggler *self)
{
    for (uint32_t r = 0; r < self->config.ranks; r++) {
        if (dp_straggler_window_median(&self->ranks[r].work.series.window, BEST_STEPS) >=
            log(self->config.enter)) {
            return true;
        }
    }
    return false;
}

static void note_data(struct dp_straggler *self, double worst, double left, double agreement)
{
    struct dp_straggler_verdict *verdict = dp_straggler_verdict_of(&self->data);
    verdict->state = DP_STRAGGLER_NOTED;
    verdict->cause = DP_STRAGGLER_UNEVEN_DATA;
    verdict->slowdown = worst;
    verdict->lost_s = self->step_ns * (1 - 1 / worst) / 1e9;
    verdict->onset_step = verdict->step = self->step;
    if (log(left) <= 0.5 * log(worst)) {
        snprintf(verdict->text, sizeof(verdict->text),
                 "the slowest rank of a step takes %.2f times as long as others that do the same, "
                 "and %.2f times when the tokens of its experts are taken into account: experts "
                 "are loaded unevenly, and no rank is slow",
                 worst, left);
    } else {
        snprintf(verdict->text, sizeof(verdict->text),
                 "the slowest rank of a step takes %.2f times as long as others that do the same, "
                 "now one and now another, forward and backward alike (correlation %.2f): its data "
                 "takes longer (sequences of uneven length), and no rank is slow",
                 worst, agreement);
    }
    dp_straggler_tell(self, verdict);
}

// A step whose slowest rank had no core for what it took longer tells nothing of data.
static bool lacked_cores(const struct rank *rank)
{
    double lost_ns = rank->own_ns - rank->reference_ns;
    return lost_ns > 0 && (double)rank->sample->off_core_ns >= lost_ns / 2;
}

void dp_straggler_judge_data(struct dp_straggler *self)
{
    double worst, left;
    const struct rank *slowest;
    sum_data(self, &worst, &left, &slowest);
    if (isnan(worst) || lacked_cores(slowest) || dp_straggler_lacks_cores(slowest)) {
        return;
    }
    if (self->frozen > 0 || some_rank_is_suspect(self)) {
        // What one rank, or we, made of these steps says nothing of the data.
        self->unevenness.count = self->explained.count = 0;
        self->data.even_ns = self->elapsed_ns;
        self->agreement[0] = self->agreement[1] = self->agreement[2] = 0;
        return;
    }
    dp_straggler_window_add(&self->unevenness, worst);
    dp_straggler_window_add(&self->explained, left);
    if (self->unevenness.count < DP_STRAGGLER_WINDOW) {
        return;
    }
    worst = exp(dp_straggler_window_median(&self->unevenness, sure_steps(self)));
    left = exp(dp_straggler_window_median(&self->explained, sure_steps(self)));
    if (self->data.verdict != NULL) {
        if (worst < self->config.enter - self->config.gap) {
            clear_lapsed(self, &self->data, "ranks that do the same take the same time now");
        }
        return;
    }
    double agreement =
        self->agreement[0] / fmax(sqrt(self->agreement[1] * self->agreement[2]), 1e-12);
    bool by_tokens = log(left) <= 0.5 * log(worst);
    if (has_lasted(self, &self->data,
                   worst >= self->config.enter && (by_tokens || agreement >= 0.5) &&
                       !some_rank_is_slow(self),
                   by_tokens ? 1 : unexplained_times)) {
        note_data(self, worst, left, agreement);
    }
}

static void forget_best(struct dp_straggler *self)
{
    for (uint32_t r = 0; r < self->config.ranks; r++) {
        struct rank *rank = &self->ranks[r];
        for (size_t i = 0; i < rank->works_count; i++) {
            rank->works[i].best_ns = 0;
        }
        bool suspect = dp_straggler_host_is_suspect(rank);
        for (int way = 0; way < HOST_WAYS; way++) {
            rank->hosts[way].best_known = false;
            rank->hosts[way].is_settling = !suspect;
            rank->hosts[way].taken.count = suspect ? rank->hosts[way].taken.count : 0;
        }
    }
    for (size_t i = 0; i < self->edges_count; i++) {
        self->edges[i].usual_ns = 0;
        self->edges[i].history_count = 0;
    }
}

// When the freeze is over: what has changed since then is our own doing, and the new normal.
void dp_straggler_judge_doing(struct dp_straggler *self)
{
    if (self->frozen != 1 || isnan(self->before_ns) || self->before_ns <= 0) {
        return;
    }
    double after = dp_straggler_window_median(&self->step_times, self->config.freeze_steps / 2);
    double ratio = after / self->before_ns;
    forget_best(self);
    if (ratio < self->config.enter) {
        if (self->doing.verdict != NULL) {
            dp_straggler_clear(self, &self->doing, "steps are as fast as before again");
        }
        return;
    }
    struct dp_straggler_verdict *verdict = dp_straggler_verdict_of(&self->doing);
    verdict->state = DP_STRAGGLER_NOTED;
    verdict->cause = DP_STRAGGLER_OWN_DOING;
    verdict->slowdown = ratio;
    verdict->lost_s = (after - self->before_ns) / 1e9;
    verdict->onset_step = self->freeze_step + 1;
    verdict->step = self->step;
    snprintf(verdict->text, sizeof(verdict->text),
             "steps take %.2f times as long as before step %lld, when this was done: %s; nobody "
             "else is blamed for it",
             ratio, (long long)self->freeze_step + 1, self->why);
    dp_straggler_tell(self, verdict);
}
