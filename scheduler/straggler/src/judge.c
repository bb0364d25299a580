// Verdicts about ranks, their hosts and links.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "internal.h"

// Time off the cores that explains so much of what a rank lost makes it the host's; or as much as
// this, when what is left would not be suspected.
static const double explained_share = 0.5;
static const double partly_share = 0.25;
// Of its work: a rank that is kept from its cores for so much of it.
static const double lacking_share = 0.25;
static const double far_greater = M_LN2; // of the logarithm: twice as slow

bool dp_straggler_is_suspect(const struct subject *subject)
{
    return subject->verdict != NULL && subject->verdict->state >= DP_STRAGGLER_SUSPECTED;
}

bool dp_straggler_host_is_suspect(const struct rank *rank)
{
    return dp_straggler_is_suspect(&rank->hosts[HOST_GAPS].subject) ||
           dp_straggler_is_suspect(&rank->hosts[HOST_CORES].subject);
}

struct dp_straggler_verdict *dp_straggler_verdict_of(struct subject *subject)
{
    if (subject->verdict == NULL) {
        subject->verdict = dp_new(struct dp_straggler_verdict);
        subject->verdict->rank = subject->verdict->peer = DP_STRAGGLER_NONE;
        subject->verdict->stage = DP_STRAGGLER_NONE;
        subject->verdict->slowdown = 1;
        subject->request = 0;
        subject->probes = subject->agreed = 0;
    }
    return subject->verdict;
}

void dp_straggler_know(struct dp_straggler *straggler, uint32_t rank,
                       const struct dp_straggler_verdict *verdict)
{
    bool lasts = verdict->state >= DP_STRAGGLER_SUSPECTED && verdict->slowdown > 1 &&
                 (verdict->cause == DP_STRAGGLER_DEVICE || verdict->cause == DP_STRAGGLER_HOST);
    if (rank >= straggler->config.ranks || straggler->looked > 0 || !lasts) {
        return;
    }
    struct rank *known = &straggler->ranks[rank];
    if (verdict->is_besides && straggler->config.ranks < 2) {
        return; // there is nobody to tell by that it is over
    }
    struct subject *subject =
        verdict->is_besides ? &known->hosts[HOST_CORES].subject : &known->work;
    *dp_straggler_verdict_of(subject) = *verdict;
    subject->verdict->rank = rank;
    known->known = verdict->is_besides ? known->known : verdict->slowdown;
}

void dp_straggler_tell(struct dp_straggler *self, const struct dp_straggler_verdict *verdict)
{
    if (self->news_count == DP_STRAGGLER_NEWS_MAX) {
        self->news_first++; // nobody listens: the oldest is least of use
        self->news_count--;
    }
    if (self->news_first > 0 && self->news_first + self->news_count == self->news_capacity) {
        memmove(self->news, self->news + self->news_first, self->news_count * sizeof(*self->news));
        self->news_first = 0;
    }
    if (self->news_first + self->news_count == self->news_capacity) {
        self->news_capacity = self->news_capacity == 0 ? 4 : 2 * self->news_capacity;
        self->news = dp_realloc(self->news, self->news_capacity, sizeof(*self->news));
    }
    self->news[self->news_first + self->news_count++] = *verdict;
}

bool dp_straggler_next(struct dp_straggler *straggler, struct dp_straggler_verdict *ret_verdict)
{
    if (straggler->news_count == 0) {
        return false;
    }
    *ret_verdict = straggler->news[straggler->news_first++];
    straggler->news_count--;
    straggler->news_first = straggler->news_count == 0 ? 0 : straggler->news_first;
    return true;
}

void dp_straggler_clear(struct dp_straggler *self, struct subject *subject, const char *why)
{
    struct dp_straggler_verdict *verdict = subject->verdict;
    verdict->state = DP_STRAGGLER_HEALTHY;
    verdict->step = self->step;
    snprintf(verdict->text, sizeof(verdict->text), "%s", why);
    dp_straggler_tell(self, verdict);
    free(verdict);
    subject->verdict = NULL;
    dp_straggler_series_reset(&subject->series);
}

static bool lapses_are_forgotten(const struct dp_straggler *self, const struct subject *subject)
{
    return self->elapsed_ns - subject->lapsed_ns > QUIET_NS;
}

// What others do to a machine comes and goes. What ended by itself and was never confirmed says
// that the next one of the same subject should last longer: twice as long each time, in seconds, so
// that it matters where steps are short.
void dp_straggler_count_lapse(const struct dp_straggler *self, struct subject *subject)
{
    if (subject->verdict->state == DP_STRAGGLER_CONFIRMED) {
        return;
    }
    if (lapses_are_forgotten(self, subject)) {
        subject->lapses = 0;
        subject->lapsed_log = 0;
    }
    subject->lapses += subject->lapses < LAPSES_MAX;
    subject->lapsed_ns = self->elapsed_ns;
    subject->lapsed_log = fmax(subject->lapsed_log, subject->suspected_log);
}

static void clear_recovered(struct dp_straggler *self, struct subject *subject)
{
    dp_straggler_count_lapse(self, subject);
    char why[DP_STRAGGLER_TEXT_MAX];
    snprintf(why, sizeof(why),
             "it was slow from step %lld on; the last %u steps are as fast as others'",
             (long long)subject->verdict->onset_step, self->config.persist_steps);
    dp_straggler_clear(self, subject, why);
}

// The newest value of a series joins it; what is frozen is only shown.
static void feed(struct dp_straggler *self, struct subject *subject, int64_t step, double value)
{
    if (isnan(value)) {
        return;
    }
    if (self->frozen > 0) {
        dp_straggler_series_show(&subject->series, value);
        return;
    }
    bool suspect = dp_straggler_is_suspect(subject);
    dp_straggler_series_add(&subject->series, &self->config, step, value, !suspect);
    if (suspect) {
        double lately = dp_straggler_window_mean(&subject->series.window, BEST_STEPS);
        subject->suspected_log = fmax(subject->suspected_log, lately);
    }
}

// A single long step is no time that a change has lasted.
static double typical_step_ns(const struct dp_straggler *self)
{
    double median = dp_straggler_window_median(&self->step_times, BEST_STEPS);
    return isnan(median) ? self->step_ns : median;
}

bool dp_straggler_lacks_cores(const struct rank *rank)
{
    double off_core = dp_straggler_window_median(&rank->off_core, BEST_STEPS);
    return off_core >= lacking_share * dp_straggler_window_median(&rank->busy, BEST_STEPS);
}

// A change that is far greater than all that came and went is none of these.
double dp_straggler_patience_s(const struct dp_straggler *self, const struct subject *subject)
{
    bool greater = dp_straggler_series_mean(&subject->series) > subject->lapsed_log + far_greater;
    uint32_t lapses = greater || lapses_are_forgotten(self, subject) ? 0 : subject->lapses;
    return self->config.persist_s * (double)(1u << lapses);
}

static bool has_changed(const struct dp_straggler *self, const struct subject *subject)
{
    return dp_straggler_series_changed(&subject->series, &self->config,
                                       (struct stretch){.steps = 1, .ns = typical_step_ns(self)},
                                       dp_straggler_patience_s(self, subject));
}

static double typical_period_ns(const struct dp_straggler *self)
{
    return fmax(HOST_PERIOD_NS, typical_step_ns(self));
}

static bool host_has_changed(const struct dp_straggler *self, const struct subject *host)
{
    const struct stretch each = {.steps = self->period.steps, .ns = typical_period_ns(self)};
    return self->period_ends && host->series.run >= PERIODS_MIN &&
           dp_straggler_series_changed(&host->series, &self->config, each,
                                       dp_straggler_patience_s(self, host));
}

static bool is_noticeable(const struct dp_straggler *self, double lost_ns, double step_ns)
{
    return lost_ns >= self->config.noticeable * step_ns;
}

static void suspect(struct dp_straggler *self, struct subject *subject, dp_straggler_cause cause,
                    uint32_t rank, double lost_ns)
{
    struct dp_straggler_verdict *verdict = dp_straggler_verdict_of(subject);
    verdict->state = DP_STRAGGLER_SUSPECTED;
    verdict->cause = cause;
    verdict->rank = rank;
    verdict->slowdown = exp(dp_straggler_series_mean(&subject->series));
    subject->suspected_log = log(verdict->slowdown);
    verdict->lost_s = fmax(lost_ns, 0) / 1e9;
    verdict->onset_step = subject->series.onset_step;
    verdict->step = self->step;
}

static double others_off_core(struct dp_straggler *self, uint32_t except)
{
    size_t count = 0;
    for (uint32_t r = 0; r < self->config.ranks; r++) {
        if (r != except && self->ranks[r].off_core.count > 0) {
            self->scratch[count++] =
                dp_straggler_window_plain_mean(&self->ranks[r].off_core, BEST_STEPS / 2);
        }
    }
    return count == 0 ? 0 : dp_straggler_median(self->scratch, count);
}

double dp_straggler_off_core_ns(struct dp_straggler *self, uint32_t r)
{
    double own = dp_straggler_window_plain_mean(&self->ranks[r].off_core, BEST_STEPS / 2);
    return isnan(own) ? 0 : own - others_off_core(self, r);
}

// All figures are of the same few steps: one may lose much to missing cores and the next one
// nothing.
static bool host_explains(struct dp_straggler *self, uint32_t r)
{
    const struct rank *rank = &self->ranks[r];
    double off_core = dp_straggler_off_core_ns(self, r);
    double lost = dp_straggler_window_plain_mean(&rank->lost, BEST_STEPS / 2);
    double work = dp_straggler_window_plain_mean(&rank->busy, BEST_STEPS / 2) - lost;
    if (!(off_core > 0)) {
        return false;
    }
    return off_core >= explained_share * lost ||
           (off_core >= partly_share * lost && lost - off_core < (self->config.enter - 1) * work);
}

// Others of its node that are slow, too.
static uint32_t slow_neighbours(const struct dp_straggler *self, uint32_t r)
{
    uint32_t count = 0;
    for (uint32_t other = 0; self->config.nodes != NULL && other < self->config.ranks; other++) {
        count += other != r && self->config.nodes[other] == self->config.nodes[r] &&
                 dp_straggler_is_suspect(&self->ranks[other].work);
    }
    return count;
}

static void describe_work(struct dp_straggler *self, uint32_t r, double off_core)
{
    const struct rank *rank = &self->ranks[r];
    struct dp_straggler_verdict *verdict = rank->work.verdict;
    double individual = dp_straggler_window_mean(&rank->individual, rank->work.series.run);
    char own[128] = "";
    if (!isnan(individual)) {
        snprintf(own, sizeof(own), ", %.2f times its own best", exp(individual));
    }
    char neighbours[96] = "";
    uint32_t slow = slow_neighbours(self, r);
    if (slow > 0) {
        snprintf(neighbours, sizeof(neighbours), "; %u more of its node are slow", slow);
    }
    char host[160] = "";
    if (verdict->cause == DP_STRAGGLER_HOST) {
        snprintf(host, sizeof(host),
                 "; %.1f ms of each step it is ready to compute but has no core, so something "
                 "takes its cores away",
                 off_core / 1e6);
    }
    snprintf(verdict->text, sizeof(verdict->text),
             "rank %u takes %.2f times as long as %s since step %lld%s%s%s; waits are not counted",
             r, verdict->slowdown,
             rank->alone ? "before, beside how others have changed," : "others for the same work",
             (long long)verdict->onset_step, own, host, neighbours);
}

// At the first suspicion most steps that are looked at may lie before the change; what the later
// ones lack of cores shows afterwards, until a probe has confirmed what is known.
static void blame_host(struct dp_straggler *self, uint32_t r)
{
    struct dp_straggler_verdict *verdict = self->ranks[r].work.verdict;
    if (verdict->state != DP_STRAGGLER_SUSPECTED || verdict->cause != DP_STRAGGLER_DEVICE) {
        return;
    }
    if (host_explains(self, r)) {
        verdict->cause = DP_STRAGGLER_HOST;
        // Probes that were asked about a device have found, or not found, something else.
        self->ranks[r].work.probes = self->ranks[r].work.agreed = 0;
        describe_work(self, r, dp_straggler_off_core_ns(self, r));
        dp_straggler_tell(self, verdict);
    }
}

static void judge_work(struct dp_straggler *self, uint32_t r)
{
    struct rank *rank = &self->ranks[r];
    double value = rank->relative_log;
    if (rank->alone && rank->individual_log < value) {
        value = rank->individual_log;
    }
    feed(self, &rank->work, self->step, value);
    if (rank->work.verdict != NULL) {
        if (dp_straggler_series_recovered(&rank->work.series, &self->config)) {
            clear_recovered(self, &rank->work);
            rank->known = 0; // what is learned from here on is of a healthy one
        } else if (rank->work.series.window.count > 0) {
            rank->work.verdict->slowdown =
                exp(dp_straggler_window_mean(&rank->work.series.window, BEST_STEPS));
            blame_host(self, r);
        }
        return;
    }
    double lost_ns = rank->own_ns * (1 - exp(-dp_straggler_series_mean(&rank->work.series)));
    if (!has_changed(self, &rank->work) || !is_noticeable(self, lost_ns, self->step_ns)) {
        return;
    }
    bool is_host = host_explains(self, r);
    suspect(self, &rank->work, is_host ? DP_STRAGGLER_HOST : DP_STRAGGLER_DEVICE, r, lost_ns);
    describe_work(self, r, dp_straggler_off_core_ns(self, r));
    dp_straggler_tell(self, rank->work.verdict);
}

static void describe_host(struct dp_straggler *self, uint32_t r, int way)
{
    const struct host *host = &self->ranks[r].hosts[way];
    struct dp_straggler_verdict *verdict = host->subject.verdict;
    if (way == HOST_GAPS) {
        snprintf(verdict->text, sizeof(verdict->text),
                 "rank %u loses %.1f ms of each step between actions since step %lld, neither "
                 "computing nor waiting for a message, while its actions take what they did: its "
                 "host starts them late (other processes, data, collection of garbage)",
                 r, host->lost_ns / 1e6, (long long)verdict->onset_step);
        return;
    }
    snprintf(verdict->text, sizeof(verdict->text),
             "rank %u loses %.1f ms of each step since step %lld, within actions and between them, "
             "ready to compute but without a core: something takes its cores away",
             r, host->lost_ns / 1e6, (long long)verdict->onset_step);
}

static void clear_recovered_host(struct dp_straggler *self, struct subject *subject)
{
    dp_straggler_count_lapse(self, subject);
    char why[DP_STRAGGLER_TEXT_MAX];
    snprintf(why, sizeof(why),
             "its host took time away from step %lld on; for %.1f s it has taken no more than "
             "from others",
             (long long)subject->verdict->onset_step,
             self->config.persist_steps * typical_period_ns(self) / 1e9);
    dp_straggler_clear(self, subject, why);
}

// Of the two ways to lose time to the host the first one that is found tells.
static void judge_host(struct dp_straggler *self, uint32_t r, int way)
{
    struct rank *rank = &self->ranks[r];
    struct host *host = &rank->hosts[way];
    feed(self, &host->subject, self->period_first, host->log);
    bool explained = dp_straggler_is_suspect(&rank->work);
    if (host->subject.verdict != NULL) {
        if (explained) {
            dp_straggler_clear(self, &host->subject, "its work is slow, too: see there");
        } else if (dp_straggler_series_recovered(&host->subject.series, &self->config)) {
            clear_recovered_host(self, &host->subject);
        }
        return;
    }
    if (explained || dp_straggler_host_is_suspect(rank) ||
        !host_has_changed(self, &host->subject) ||
        !is_noticeable(self, host->lost_ns, self->period.ns / self->period.steps)) {
        return;
    }
    suspect(self, &host->subject, DP_STRAGGLER_HOST, r, host->lost_ns);
    host->subject.verdict->is_besides = true;
    describe_host(self, r, way);
    dp_straggler_tell(self, host->subject.verdict);
}

// Messages are handled by cores, too: where its ends lack these, late ones are no wonder.
static bool lack_of_cores_explains(const struct dp_straggler *self, const struct edge *edge)
{
    double off_core = dp_straggler_window_median(&self->ranks[edge->low].off_core, BEST_STEPS) +
                      dp_straggler_window_median(&self->ranks[edge->high].off_core, BEST_STEPS);
    double lost_ns = edge->lost_ns; // one message that is in time ends no verdict
    if (edge->subject.verdict != NULL) {
        lost_ns = fmax(lost_ns, 1e9 * edge->subject.verdict->lost_s);
    }
    return off_core > 0 && off_core >= explained_share * lost_ns;
}

static bool is_explained(const struct dp_straggler *self, const struct edge *edge)
{
    const struct rank *low = &self->ranks[edge->low], *high = &self->ranks[edge->high];
    return lack_of_cores_explains(self, edge) || dp_straggler_is_suspect(&low->work) ||
           dp_straggler_host_is_suspect(low) || dp_straggler_is_suspect(&high->work) ||
           dp_straggler_host_is_suspect(high) || dp_straggler_lacks_cores(low) ||
           dp_straggler_lacks_cores(high);
}

static uint32_t suspect_edges(const struct dp_straggler *self, uint32_t r)
{
    uint32_t count = 0;
    for (size_t i = 0; i < self->ranks[r].links_count; i++) {
        const struct edge *edge = &self->edges[self->ranks[r].links[i].edge];
        count += dp_straggler_is_suspect(&edge->subject) || has_changed(self, &edge->subject);
    }
    return count;
}

static void judge_edge(struct dp_straggler *self, struct edge *edge)
{
    bool explained = is_explained(self, edge);
    if (edge->subject.verdict != NULL) {
        if (explained) {
            dp_straggler_count_lapse(self, &edge->subject);
            dp_straggler_clear(self, &edge->subject,
                               "one of its ends is slow itself, or lacks cores");
        } else if (dp_straggler_series_recovered(&edge->subject.series, &self->config)) {
            clear_recovered(self, &edge->subject);
        }
        return;
    }
    if (explained || !has_changed(self, &edge->subject) ||
        !is_noticeable(self, edge->lost_ns, self->step_ns)) {
        return;
    }
    // What several slow links have in common is at fault.
    uint32_t low = suspect_edges(self, edge->low), high = suspect_edges(self, edge->high);
    uint32_t rank = high > low ? edge->high : edge->low;
    uint32_t peer = rank == edge->low ? edge->high : edge->low;
    suspect(self, &edge->subject, DP_STRAGGLER_LINK, rank, edge->lost_ns);
    struct dp_straggler_verdict *verdict = edge->subject.verdict;
    verdict->peer = peer;
    char common[96] = "";
    uint32_t most = low > high ? low : high;
    if (most > 1) {
        snprintf(common, sizeof(common), "; rank %u is on all %u links that are slow", rank, most);
    }
    snprintf(verdict->text, sizeof(verdict->text),
             "a message between rank %u and rank %u takes %.2f times as long as before since step "
             "%lld (%.3f ms there and back, waits not counted), other links have not changed, "
             "and both ranks compute as fast as others%s",
             rank, peer, verdict->slowdown, (long long)verdict->onset_step, edge->value_ns / 1e6,
             common);
    dp_straggler_tell(self, verdict);
}

void dp_straggler_judge(struct dp_straggler *self)
{
    for (uint32_t r = 0; r < self->config.ranks; r++) {
        bool is_there = self->ranks[r].sample != NULL;
        if (is_there) {
            judge_work(self, r);
        }
        if (is_there || self->period_ends) {
            judge_host(self, r, HOST_GAPS);
            judge_host(self, r, HOST_CORES);
        }
    }
    for (size_t i = 0; i < self->edges_count; i++) {
        if (self->edges[i].value_ns > 0) {
            feed(self, &self->edges[i].subject, self->step, self->edges[i].log);
        }
    }
    for (size_t i = 0; i < self->edges_count; i++) {
        if (self->edges[i].value_ns > 0) {
            judge_edge(self, &self->edges[i]);
        }
    }
    dp_straggler_judge_stages(self);
    dp_straggler_judge_data(self);
    dp_straggler_judge_doing(self);
}

static size_t keep(const struct subject *subject, struct dp_straggler_verdict *ret_verdicts,
                   size_t count, size_t max)
{
    if (subject->verdict == NULL) {
        return count;
    }
    if (count < max) {
        ret_verdicts[count] = *subject->verdict;
    }
    return count + 1;
}

size_t dp_straggler_standing(const struct dp_straggler *straggler,
                             struct dp_straggler_verdict *ret_verdicts, size_t max)
{
    size_t count = 0;
    for (uint32_t r = 0; r < straggler->config.ranks; r++) {
        const struct rank *rank = &straggler->ranks[r];
        count = keep(&rank->work, ret_verdicts, count, max);
        count = keep(&rank->hosts[HOST_GAPS].subject, ret_verdicts, count, max);
        count = keep(&rank->hosts[HOST_CORES].subject, ret_verdicts, count, max);
        count = keep(&rank->silence, ret_verdicts, count, max);
    }
    for (size_t i = 0; i < straggler->edges_count; i++) {
        count = keep(&straggler->edges[i].subject, ret_verdicts, count, max);
    }
    for (size_t i = 0; i < straggler->stages_count; i++) {
        count = keep(&straggler->stages[i].subject, ret_verdicts, count, max);
    }
    count = keep(&straggler->data, ret_verdicts, count, max);
    return keep(&straggler->doing, ret_verdicts, count, max);
}
