// Whether figures that ranks take while nothing else runs agree with a suspicion.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "internal.h"

// Of what products take, that there is no core for them: their node is used by others, too.
static const double taken_share = 0.1;
// Chance makes no rank and no link as slow as that in a probe.
static const double clear_ratio = 1.4;

// Little disturbs a probe, so half of what makes a suspicion agrees with it. Greyhound takes 1.1 of
// the median for links, too. It has to explain a good part of what was seen, though: where others
// use the machine, one rank or another is a little slower in every probe.
static const double agreeing_share = 1.0 / 3;

// Clocks tell no more of what was computed meanwhile.
static const double off_core_max = 0.999;

static double least_agreeing(const struct dp_straggler *self)
{
    return 1 + (self->config.enter - 1) / 2;
}

static double agreeing(const struct dp_straggler *self, const struct subject *subject)
{
    return fmax(least_agreeing(self), 1 + agreeing_share * (subject->verdict->slowdown - 1));
}

static bool is_suspected(const struct subject *subject)
{
    return subject->verdict != NULL && subject->verdict->state == DP_STRAGGLER_SUSPECTED;
}

// When it may be probed again; one that agreed is followed by another at any rate.
static bool is_due(const struct dp_straggler *self, const struct subject *subject, uint32_t tries)
{
    if (subject->probes == 0) {
        return true;
    }
    int64_t steps = subject->agreed > 0 ? PROBE_AGAIN : PROBE_EVERY;
    return (subject->probes < tries || subject->agreed > 0) &&
           self->step >= subject->probed_step + steps &&
           self->elapsed_ns >= subject->probed_ns + PROBE_APART_NS;
}

static bool wants(const struct dp_straggler *self, const struct subject *subject)
{
    return is_suspected(subject) && is_due(self, subject, PROBE_TRIES);
}

// A stage that one rank alone has, slow as long as it is known: the stage, or the rank.
static bool wants_stage(const struct dp_straggler *self, const struct stage *stage)
{
    return stage->subject.verdict != NULL && stage->ranks == 1 && is_due(self, &stage->subject, 1);
}

static bool mark(const struct dp_straggler *self, struct subject *subject, bool wanted)
{
    if (wanted) {
        subject->request = self->request + 1;
        subject->probed_step = self->step;
        subject->probed_ns = self->elapsed_ns;
        subject->probes++;
    }
    return wanted;
}

bool dp_straggler_wants_probe(struct dp_straggler *straggler, uint64_t *ret_request)
{
    if (straggler->probing) {
        return false;
    }
    bool wanted = false;
    for (uint32_t r = 0; r < straggler->config.ranks; r++) {
        struct subject *work = &straggler->ranks[r].work;
        wanted = mark(straggler, work, wants(straggler, work)) || wanted;
        for (int way = 0; way < HOST_WAYS; way++) {
            struct subject *host = &straggler->ranks[r].hosts[way].subject;
            wanted = mark(straggler, host, wants(straggler, host)) || wanted;
        }
    }
    for (size_t i = 0; i < straggler->edges_count; i++) {
        struct subject *edge = &straggler->edges[i].subject;
        wanted = mark(straggler, edge, wants(straggler, edge)) || wanted;
    }
    for (size_t i = 0; i < straggler->stages_count; i++) {
        struct stage *stage = &straggler->stages[i];
        wanted = mark(straggler, &stage->subject, wants_stage(straggler, stage)) || wanted;
    }
    if (!wanted) {
        return false;
    }
    straggler->probing = true;
    straggler->asked_step = straggler->step;
    straggler->answers = 0;
    for (uint32_t r = 0; r < straggler->config.ranks; r++) {
        straggler->figures[r].answered = false;
    }
    *ret_request = ++straggler->request;
    return true;
}

static double gemm_of(const struct probe_figures *figures, bool on_core)
{
    return !figures->answered ? 0 : on_core ? figures->gemm_on_core : figures->gemm;
}

// Own / lower median of the other ranks'; NaN when there is nothing to compare.
static double gemm_ratio(struct dp_straggler *self, uint32_t r, bool on_core)
{
    size_t count = 0;
    for (uint32_t other = 0; other < self->config.ranks; other++) {
        double gemm = gemm_of(&self->figures[other], on_core);
        if (other != r && gemm > 0) {
            self->scratch[count++] = gemm;
        }
    }
    double own = gemm_of(&self->figures[r], on_core);
    if (count == 0 || own <= 0) {
        return NAN;
    }
    return own / dp_straggler_median(self->scratch, count);
}

// Whether the probe was taken for this suspicion, which still stands.
static bool is_probed(const struct dp_straggler *self, const struct subject *subject)
{
    return is_suspected(subject) && subject->request == self->request;
}

static bool lacked_cores(const struct dp_straggler *self, uint32_t r)
{
    return self->figures[r].answered && self->figures[r].off_core >= taken_share;
}

// Whether any rank of its node had no core for its products.
static bool is_crowded(const struct dp_straggler *self, uint32_t r)
{
    const uint32_t *nodes = self->config.nodes;
    for (uint32_t other = 0; nodes != NULL && other < self->config.ranks; other++) {
        if (nodes[other] == nodes[r] && lacked_cores(self, other)) {
            return true;
        }
    }
    return lacked_cores(self, r);
}

// What the ranks' figures are worth: of accelerators, of cores that others may use, too (by the
// other thread of a core, a cache, a hypervisor), of cores that others do use.
enum machine { OWN, SHARED, CROWDED };

static enum machine machine_of(const struct dp_straggler *self, uint32_t r)
{
    return is_crowded(self, r) ? CROWDED : self->ranks[r].is_on_host ? SHARED : OWN;
}

// Whether so much, in this probe, says that the subject is slow. What is little may be chance, and
// where others use the machine that is all it may be. What is clear there, too, may be them.
static bool is_found(struct dp_straggler *self, struct subject *subject, double ratio,
                     enum machine machine)
{
    bool clear = ratio >= clear_ratio;
    bool found = ratio >= agreeing(self, subject) && (clear || machine != CROWDED);
    subject->agreed = found ? subject->agreed + 1 : 0;
    return subject->agreed >= (clear && machine == OWN ? 1 : 2);
}

static const struct dp_straggler_probe_link *link_of(const struct dp_straggler *self, uint32_t rank,
                                                     uint32_t peer)
{
    const struct probe_figures *figures = &self->figures[rank];
    for (size_t i = 0; figures->answered && i < figures->links_count; i++) {
        if (figures->links[i].peer == peer) {
            return &figures->links[i];
        }
    }
    return NULL;
}

// Seconds of one of the link's usual messages, by the slower of both ends' figures.
static double link_seconds(const struct dp_straggler *self, const struct edge *edge, double bytes)
{
    const struct dp_straggler_probe_link *ends[] = {link_of(self, edge->low, edge->high),
                                                    link_of(self, edge->high, edge->low)};
    double slower = NAN;
    for (size_t i = 0; i < 2; i++) {
        if (ends[i] != NULL && ends[i]->bytes_per_s > 0) {
            double seconds = (double)ends[i]->latency_ns / 1e9 + bytes / ends[i]->bytes_per_s;
            slower = fmax(seconds, slower);
        }
    }
    return slower;
}

static double link_ratio(const struct dp_straggler *self, const struct edge *edge)
{
    double *others = dp_new_array(double, self->edges_count);
    size_t count = 0;
    for (size_t i = 0; i < self->edges_count; i++) {
        const struct edge *other = &self->edges[i];
        double seconds = other != edge && other->same_node == edge->same_node
                             ? link_seconds(self, other, edge->bytes)
                             : NAN;
        if (!isnan(seconds)) {
            others[count++] = seconds;
        }
    }
    double own = link_seconds(self, edge, edge->bytes);
    double ratio = count == 0 ? NAN : own / dp_straggler_median(others, count);
    free(others);
    return ratio;
}

static void confirm(struct dp_straggler *self, struct subject *subject, const char *what)
{
    struct dp_straggler_verdict *verdict = subject->verdict;
    verdict->state = DP_STRAGGLER_CONFIRMED;
    verdict->step = self->step;
    size_t length = strlen(verdict->text);
    snprintf(verdict->text + length, sizeof(verdict->text) - length, "; probe: %s", what);
    dp_straggler_tell(self, verdict);
}

// Whoever took its cores may be gone: they have to be missing for its products, too, and twice.
static void judge_cores(struct dp_straggler *self, uint32_t r, struct subject *subject)
{
    double ratio = gemm_ratio(self, r, false);
    bool found = ratio >= least_agreeing(self) && lacked_cores(self, r);
    subject->agreed = found ? subject->agreed + 1 : 0;
    if (subject->agreed >= 2) {
        char what[160];
        snprintf(what, sizeof(what),
                 "a product alone takes %.2f times as long as on others, and for %.0f %% of that "
                 "it has no core, twice",
                 ratio, 100 * self->figures[r].off_core);
        confirm(self, subject, what);
    }
}

static void judge_host(struct dp_straggler *self, uint32_t r, int way)
{
    struct subject *host = &self->ranks[r].hosts[way].subject;
    if (way == HOST_GAPS && gemm_ratio(self, r, false) < least_agreeing(self)) {
        confirm(self, host, "its products alone are as fast as on others");
    } else {
        judge_cores(self, r, host);
    }
}

static void judge_device(struct dp_straggler *self, uint32_t r)
{
    struct subject *work = &self->ranks[r].work;
    double ratio = gemm_ratio(self, r, true);
    if (is_found(self, work, ratio, machine_of(self, r))) {
        char what[160];
        snprintf(what, sizeof(what), "a product alone takes %.2f times as long as on others%s",
                 ratio, work->agreed > 1 ? ", twice" : "");
        confirm(self, work, what);
    }
}

static void judge_rank(struct dp_straggler *self, uint32_t r)
{
    struct rank *rank = &self->ranks[r];
    struct subject *work = &rank->work;
    if (is_probed(self, work) && work->verdict->cause == DP_STRAGGLER_HOST) {
        judge_cores(self, r, work);
    } else if (is_probed(self, work)) {
        judge_device(self, r);
    }
    for (int way = 0; way < HOST_WAYS; way++) {
        if (is_probed(self, &rank->hosts[way].subject)) {
            judge_host(self, r, way);
        }
    }
}

// What was taken for the rank's best was slow already.
static void correct_best(struct rank *rank, double ratio)
{
    for (size_t i = 0; i < rank->works_count; i++) {
        rank->works[i].best_ns /= ratio;
    }
}

static void judge_stage(struct dp_straggler *self, struct stage *stage)
{
    const struct subject *subject = &stage->subject;
    if (subject->verdict == NULL || subject->request != self->request || stage->ranks != 1) {
        return;
    }
    double ratio = gemm_ratio(self, stage->only_rank, true);
    if (is_found(self, &stage->subject, ratio, machine_of(self, stage->only_rank))) {
        char why[DP_STRAGGLER_TEXT_MAX];
        correct_best(&self->ranks[stage->only_rank], ratio);
        stage->ratio.count = 0;
        snprintf(why, sizeof(why),
                 "not the stage: rank %u, which alone has it, takes %.2f times as long as others "
                 "for a product alone",
                 stage->only_rank, ratio);
        dp_straggler_clear(self, &stage->subject, why);
    }
}

static void judge_link(struct dp_straggler *self, struct edge *edge)
{
    if (!is_probed(self, &edge->subject)) {
        return;
    }
    double ratio = link_ratio(self, edge);
    enum machine low = machine_of(self, edge->low), high = machine_of(self, edge->high);
    if (is_found(self, &edge->subject, ratio, low > high ? low : high)) {
        char what[160];
        snprintf(what, sizeof(what), "a message alone takes %.2f times as long as on other links%s",
                 ratio, edge->subject.agreed > 1 ? ", twice" : "");
        confirm(self, &edge->subject, what);
    }
}

void dp_straggler_judge_probes(struct dp_straggler *self)
{
    bool late = self->step > self->asked_step + PROBE_EVERY / 2;
    if (!self->probing || (self->answers < self->awaited && !late)) {
        return;
    }
    self->probing = false;
    for (uint32_t r = 0; r < self->config.ranks; r++) {
        judge_rank(self, r);
    }
    for (size_t i = 0; i < self->edges_count; i++) {
        judge_link(self, &self->edges[i]);
    }
    for (size_t i = 0; i < self->stages_count; i++) {
        judge_stage(self, &self->stages[i]);
    }
}

void dp_straggler_take_probe(struct dp_straggler *straggler, const struct dp_straggler_probe *probe)
{
    if (!straggler->probing || probe->request != straggler->request ||
        probe->rank >= straggler->config.ranks || straggler->figures[probe->rank].answered) {
        return;
    }
    struct probe_figures *figures = &straggler->figures[probe->rank];
    size_t count =
        probe->links_count < DP_STRAGGLER_LINKS_MAX ? probe->links_count : DP_STRAGGLER_LINKS_MAX;
    free(figures->links);
    figures->links = count == 0 ? NULL : dp_memdup(probe->links, count * sizeof(*probe->links));
    figures->links_count = count;
    bool measured = probe->gemm_ns > 0 && probe->gemm_flops > 0;
    double off_core = measured ? (double)probe->gemm_off_core_ns / (double)probe->gemm_ns : 0;
    figures->off_core = fmin(fmax(off_core, 0), off_core_max);
    figures->gemm = measured ? (double)probe->gemm_ns / probe->gemm_flops : 0;
    figures->gemm_on_core = figures->gemm * (1 - figures->off_core);
    figures->answered = true;
    struct rank *rank = &straggler->ranks[probe->rank];
    rank->is_on_host = rank->is_on_host || figures->off_core > 0;
    straggler->answers++;
    dp_straggler_judge_probes(straggler);
}
