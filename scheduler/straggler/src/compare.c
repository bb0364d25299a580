// What each rank's work and each pair of ranks is compared with, in one step.
#include <math.h>

#include "dp/alloc.h"
#include "internal.h"

// Sums of the fit fade by this from step to step.
static const double fade = 0.99;
static const double fit_weight_min = 24;
static const uint32_t tokens_steps_max = 64;
static const double usual_share_min = 0.125; // of the mean
// No action is work of experts alone.
static const double untouched_min = 0.05;
// A single time says no more than that of a change, as a share of the rank's mean.
static const double more_max = 0.5;
// A rank's work is compared with others' when so much of it has others.
static const double compared_share = 0.5;

static bool is_same(const struct dp_straggler_kind *a, const struct dp_straggler_kind *b)
{
    return a->kind == b->kind && a->b_kind == b->b_kind && a->stage == b->stage &&
           a->b_stage == b->b_stage;
}

static uint32_t group_of(struct dp_straggler *self, const struct dp_straggler_kind *kind)
{
    for (size_t i = 0; i < self->groups_count; i++) {
        if (is_same(&self->groups[i].kind, kind)) {
            return (uint32_t)i;
        }
    }
    self->groups = dp_realloc(self->groups, self->groups_count + 1, sizeof(*self->groups));
    self->groups[self->groups_count] = (struct group){.kind = *kind, .share = 0.5, .share_high = 1};
    return (uint32_t)self->groups_count++;
}

// Ranks report their kinds in much the same order each time.
static struct work *work_of(struct dp_straggler *self, struct rank *rank,
                            const struct dp_straggler_kind *kind, size_t hint)
{
    for (size_t i = 0; i < rank->works_count; i++) {
        struct work *work = &rank->works[(hint + i) % rank->works_count];
        if (is_same(&work->newest, kind)) {
            return work;
        }
    }
    if (rank->works_count >= DP_STRAGGLER_KINDS_MAX) {
        return NULL;
    }
    rank->works = dp_realloc(rank->works, rank->works_count + 1, sizeof(*rank->works));
    struct work *work = &rank->works[rank->works_count++];
    *work = (struct work){.newest = *kind, .group = group_of(self, kind)};
    self->groups[work->group].members++;
    return work;
}

static double fading_mean(double mean, double value)
{
    return mean == 0 ? value : mean + (value - mean) / 16;
}

static double tokens_of(const struct work *work)
{
    return (double)work->newest.tokens / work->newest.count;
}

// What an action takes with so many tokens, over what it takes with the group's usual number, where
// this share of the latter is work of experts.
static double beside_usual(const struct group *group, double tokens, double share)
{
    return fmax(1 + share * (tokens / group->tokens - 1), untouched_min);
}

// How one rank's time moves with its tokens, beside the others in the same step, says how much of
// it is work of experts: constant differences between ranks, a slow one among them, do not count,
// and neither does what slows everybody down. Time is a + b tokens, so what a rank's time and
// tokens change by is divided by what they are at the group's usual tokens, which ranks with busy
// experts and with idle ones have in common; shares of their own means they have not.
static void see_change(struct group *group, struct work *work)
{
    double tokens = tokens_of(work);
    work->more_ns = work->more_tokens = NAN;
    if (work->mean_ns > 0) {
        double usual = beside_usual(group, work->mean_tokens, group->share);
        work->more_tokens = (tokens - work->mean_tokens) / group->tokens;
        work->more_ns = (work->raw_ns / work->mean_ns - 1) * usual;
        work->more_max = more_max * usual;
        group->step_x += work->more_tokens;
        group->step_y += work->more_ns;
        group->step_count += 1;
    }
    work->mean_ns = fading_mean(work->mean_ns, work->raw_ns);
    work->mean_tokens = fading_mean(work->mean_tokens, tokens);
}

static void fit(struct group *group, const struct work *work, double common_x, double common_y,
                double weight)
{
    if (!isnan(work->more_ns)) {
        double x = work->more_tokens - common_x;
        double y = fmin(fmax(work->more_ns - common_y, -work->more_max), work->more_max);
        group->sum_xx += x * x;
        group->sum_xy += x * y;
        group->sum_yy += y * y;
        group->weight += weight;
    }
}

// The interval of three standard errors; all there is while nothing is known.
static void settle_fit(struct group *group)
{
    group->share_low = 0;
    group->share_high = 1;
    if (group->weight >= fit_weight_min && group->sum_xx > 0) {
        double share = group->sum_xy / group->sum_xx;
        double rest = fmax(group->sum_yy - share * group->sum_xy, 0) / group->weight;
        double error = 3 * sqrt(rest / group->sum_xx);
        group->share_low = fmin(fmax(share - error, 0), 1);
        group->share_high = fmin(fmax(share + error, group->share_low), 1);
    }
    group->share = (group->share_low + group->share_high) / 2;
    group->sum_xx *= fade;
    group->sum_xy *= fade;
    group->sum_yy *= fade;
    group->weight *= fade;
    group->step_x = group->step_y = group->step_count = 0;
}

// What the time would be with the group's usual tokens. In doubt for the rank: its own time is the
// least that its tokens can explain, that of those it is compared with the most.
static void take_out_tokens(const struct group *group, struct work *work)
{
    work->value_ns = work->low_ns = work->high_ns = work->raw_ns;
    if (group->tokens > 0) {
        double tokens = tokens_of(work);
        double a = work->raw_ns / beside_usual(group, tokens, group->share_low);
        double b = work->raw_ns / beside_usual(group, tokens, group->share_high);
        work->value_ns = work->raw_ns / beside_usual(group, tokens, group->share);
        work->low_ns = fmin(a, b);
        work->high_ns = fmax(a, b);
    }
}

static double of_one(const struct dp_straggler_kind *kind)
{
    return (double)kind->total_ns / (double)kind->count;
}

static bool is_usable(const struct dp_straggler_kind *kind)
{
    return kind->count > 0 && kind->total_ns > 0;
}

static void take_kinds(struct dp_straggler *self)
{
    for (uint32_t r = 0; r < self->config.ranks; r++) {
        struct rank *rank = &self->ranks[r];
        for (size_t i = 0; i < rank->works_count; i++) {
            rank->works[i].value_ns = rank->works[i].reference_ns = 0;
        }
        for (size_t i = 0; rank->sample != NULL && i < rank->sample->kinds_count; i++) {
            const struct dp_straggler_kind *kind = &rank->sample->kinds[i];
            struct work *work = is_usable(kind) ? work_of(self, rank, kind, i) : NULL;
            if (work == NULL) {
                continue;
            }
            struct group *group = &self->groups[work->group];
            work->newest = *kind;
            work->raw_ns = work->value_ns = of_one(kind);
            group->present++;
            group->newest_rank = r;
            group->count += kind->count;
        }
    }
}

void dp_straggler_make_room(struct dp_straggler *self, size_t values)
{
    if (values > self->scratch_size) {
        self->scratch = dp_realloc(self->scratch, values, sizeof(double));
        self->scratch_size = values;
    }
}

// The values of each group, one group after the other.
static void lay_out(struct dp_straggler *self)
{
    uint32_t first = 0;
    for (size_t i = 0; i < self->groups_count; i++) {
        struct group *group = &self->groups[i];
        group->first = first;
        first += group->present;
        group->count = group->present > 0 ? group->count / group->present : 0;
        group->present = 0;
    }
    dp_straggler_make_room(self, first > self->config.ranks ? first : self->config.ranks);
}

typedef double work_value(const struct work *work);

static double planned_of(const struct work *work)
{
    return (double)work->newest.planned_ns;
}

static double value_of(const struct work *work)
{
    return work->value_ns;
}

static double high_of(const struct work *work)
{
    return work->high_ns;
}

#define FOR_EACH_WORK(self, rank, work)                                                            \
    for (struct rank *rank = (self)->ranks; rank < (self)->ranks + (self)->config.ranks; rank++)   \
        for (struct work *work = rank->works; work < rank->works + rank->works_count; work++)      \
            if (work->value_ns > 0)

// Sorts one figure of all works, group by group, in the scratch.
static void sort_by_group(struct dp_straggler *self, work_value *value)
{
    for (size_t i = 0; i < self->groups_count; i++) {
        self->groups[i].present = 0;
    }
    FOR_EACH_WORK(self, rank, work)
    {
        struct group *group = &self->groups[work->group];
        self->scratch[group->first + group->present++] = value(work);
    }
    for (size_t i = 0; i < self->groups_count; i++) {
        struct group *group = &self->groups[i];
        dp_straggler_sort(&self->scratch[group->first], group->present);
    }
}

static double group_median(const struct dp_straggler *self, const struct group *group)
{
    return group->present == 0 ? 0 : self->scratch[group->first + (group->present - 1) / 2];
}

// The lower median is usual, since what busy ranks take beyond it is known best; but something is,
// also where all tokens go to a few.
static void take_usual_tokens(struct dp_straggler *self)
{
    FOR_EACH_WORK(self, rank, work)
    {
        self->groups[work->group].sum_tokens += tokens_of(work);
    }
    sort_by_group(self, tokens_of);
    for (size_t i = 0; i < self->groups_count; i++) {
        struct group *group = &self->groups[i];
        if (group->sum_tokens > 0) {
            double mean = group->sum_tokens / group->present;
            double usual = fmax(group_median(self, group), usual_share_min * mean);
            group->tokens_steps += group->tokens_steps < tokens_steps_max;
            group->tokens += (usual - group->tokens) / group->tokens_steps;
        }
        group->sum_tokens = 0;
    }
}

static void take_tokens(struct dp_straggler *self)
{
    take_usual_tokens(self);
    double all_x = 0, all_y = 0, all = 0;
    bool learns = self->frozen == 0 && self->looked > self->config.warm_up_steps;
    FOR_EACH_WORK(self, rank, work)
    {
        work->more_ns = NAN;
        bool is_healthy = rank->work.verdict == NULL && rank->work.series.sum == 0;
        struct group *group = &self->groups[work->group];
        if (learns && group->tokens > 0 && is_healthy) {
            see_change(group, work);
            all_x += isnan(work->more_ns) ? 0 : work->more_tokens;
            all_y += isnan(work->more_ns) ? 0 : work->more_ns;
            all += !isnan(work->more_ns);
        }
    }
    FOR_EACH_WORK(self, rank, work)
    {
        struct group *group = &self->groups[work->group];
        if (group->step_count == 1 && all > 0) { // then all ranks tell what is common
            fit(group, work, all_x / all, all_y / all, 1 - 1 / all);
        } else if (group->step_count > 1) {
            double count = group->step_count;
            fit(group, work, group->step_x / count, group->step_y / count, 1 - 1 / count);
        }
    }
    for (size_t i = 0; i < self->groups_count; i++) {
        settle_fit(&self->groups[i]);
    }
}

// A rank that was planned to be slower than others is.
static void take_plans(struct dp_straggler *self)
{
    sort_by_group(self, planned_of);
    for (size_t i = 0; i < self->groups_count; i++) {
        struct group *group = &self->groups[i];
        bool all = group->present > 0 && self->scratch[group->first] > 0;
        group->planned_ns = all ? group_median(self, group) : 0;
    }
    FOR_EACH_WORK(self, rank, work)
    {
        const struct group *group = &self->groups[work->group];
        work->raw_ns *= group->planned_ns > 0 ? group->planned_ns / planned_of(work) : 1;
        take_out_tokens(group, work);
        work->value_ns /= rank->known > 0 ? rank->known : 1; // what the stage takes elsewhere
    }
}

static void take_references(struct dp_straggler *self)
{
    sort_by_group(self, value_of);
    for (size_t i = 0; i < self->groups_count; i++) {
        self->groups[i].median_ns = group_median(self, &self->groups[i]);
    }
    sort_by_group(self, high_of);
    FOR_EACH_WORK(self, rank, work)
    {
        const struct group *group = &self->groups[work->group];
        const double *sorted = &self->scratch[group->first];
        if (group->present > 1) {
            work->reference_ns =
                dp_straggler_median_of_others(sorted, group->present, work->high_ns);
        }
    }
}

// Works that go forward alone, and those that go backward alone.
static double log_of_kind(const struct rank *rank, bool forward)
{
    double own = 0, reference = 0;
    for (size_t i = 0; i < rank->works_count; i++) {
        const struct work *work = &rank->works[i];
        bool counts = forward
                          ? work->newest.kind == DP_ACTION_F
                          : work->newest.kind == DP_ACTION_B || work->newest.kind == DP_ACTION_I;
        if (counts && work->reference_ns > 0) {
            own += work->newest.count * work->raw_ns;
            reference += work->newest.count * work->reference_ns;
        }
    }
    return reference > 0 ? log(own / reference) : NAN;
}

static void sum_rank(struct rank *rank)
{
    double all = 0, own = 0, raw = 0, reference = 0, best = 0;
    bool best_known = true;
    for (size_t i = 0; i < rank->works_count; i++) {
        const struct work *work = &rank->works[i];
        double count = work->newest.count;
        if (work->value_ns <= 0) {
            continue;
        }
        all += count * work->low_ns;
        best += count * work->best_ns;
        best_known = best_known && work->best_ns > 0;
        if (work->reference_ns > 0) {
            own += count * work->low_ns;
            raw += count * work->raw_ns;
            reference += count * work->reference_ns;
        }
    }
    rank->alone = own < compared_share * all;
    rank->own_ns = rank->alone ? all : own;
    rank->reference_ns = rank->alone ? 0 : reference;
    rank->best_ns = best_known ? best : 0;
    rank->individual_log = best_known && all > 0 ? log(all / best) : NAN;
    rank->relative_log = rank->alone || own <= 0 ? NAN : log(own / reference);
    rank->raw_log = rank->alone || raw <= 0 ? NAN : log(raw / reference);
    rank->forward_log = log_of_kind(rank, true);
    rank->backward_log = log_of_kind(rank, false);
}

// Where nobody does the same: how much a rank has changed, beside how much the others have.
static void compare_changes(struct dp_straggler *self)
{
    size_t count = 0;
    for (uint32_t r = 0; r < self->config.ranks; r++) {
        const struct rank *rank = &self->ranks[r];
        if (rank->sample != NULL && !isnan(rank->individual_log)) {
            self->scratch[count++] = rank->individual_log;
        }
    }
    dp_straggler_sort(self->scratch, count);
    for (uint32_t r = 0; r < self->config.ranks; r++) {
        struct rank *rank = &self->ranks[r];
        if (rank->sample == NULL || !rank->alone || isnan(rank->individual_log)) {
            continue;
        }
        double others = 0;
        if (count > 1) {
            others = dp_straggler_median_of_others(self->scratch, count, rank->individual_log);
        }
        rank->relative_log = rank->individual_log - fmax(others, 0);
        rank->reference_ns = rank->own_ns / exp(rank->relative_log);
    }
}

void dp_straggler_compare_works(struct dp_straggler *self)
{
    for (size_t i = 0; i < self->groups_count; i++) {
        self->groups[i].present = 0;
        self->groups[i].count = 0;
    }
    take_kinds(self);
    lay_out(self);
    take_tokens(self);
    take_plans(self);
    take_references(self);
    for (uint32_t r = 0; r < self->config.ranks; r++) {
        if (self->ranks[r].sample != NULL) {
            sum_rank(&self->ranks[r]);
        }
    }
    compare_changes(self);
}
