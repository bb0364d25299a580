// Whether figures that ranks take while nothing else runs agree with a suspicion.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "internal.h"

// Of a rank's work, that it has no core for it.
static const double taken_share = 0.1;

// Little disturbs a probe, so half of what makes a suspicion agrees with it. Greyhound takes 1.1 of
// the median for links, too. It has to explain a good part of what was seen, though: where others
// use the machine, one rank or another is a little slower in every probe.
static const double agreeing_share = 1.0 / 3;

static double least_agreeing(const struct dp_straggler *self)
{
    return 1 + (self->config.enter - 1) / 2;
}

static double agrees(const struct dp_straggler *self, const struct subject *subject)
{
    // That its cores are missing was measured as such.
    bool is_host = subject->verdict->cause == DP_STRAGGLER_HOST;
    double share = is_host ? 0 : agreeing_share;
    return fmax(least_agreeing(self), 1 + share * (subject->verdict->slowdown - 1));
}

static bool is_suspected(const struct subject *subject)
{
    return subject->verdict != NULL && subject->verdict->state == DP_STRAGGLER_SUSPECTED;
}

static bool wants(const struct dp_straggler *self, const struct subject *subject)
{
    return is_suspected(subject) && subject->probes < PROBE_TRIES &&
           (subject->probes == 0 || self->step >= subject->probed_step + PROBE_EVERY);
}

// A stage that one rank alone has, slow as long as it is known: the stage, or the rank.
static bool wants_stage(const struct stage *stage)
{
    return stage->subject.verdict != NULL && stage->ranks == 1 && stage->subject.probes == 0;
}

static bool mark(const struct dp_straggler *self, struct subject *subject, bool wanted)
{
    if (wanted) {
        subject->probes++;
        subject->probed_step = self->step;
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
        wanted = mark(straggler, &stage->subject, wants_stage(stage)) || wanted;
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

static int compare_doubles(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

// Own / lower median of the other ranks'; NaN when there is nothing to compare.
static double gemm_ratio(struct dp_straggler *self, uint32_t r)
{
    size_t count = 0;
    for (uint32_t other = 0; other < self->config.ranks; other++) {
        const struct probe_figures *figures = &self->figures[other];
        if (other != r && figures->answered && figures->gemm > 0) {
            self->scratch[count++] = figures->gemm;
        }
    }
    const struct probe_figures *own = &self->figures[r];
    if (count == 0 || !own->answered || own->gemm <= 0) {
        return NAN;
    }
    qsort(self->scratch, count, sizeof(double), compare_doubles);
    return own->gemm / self->scratch[(count - 1) / 2];
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
    qsort(others, count, sizeof(double), compare_doubles);
    double ratio =
        count == 0 ? NAN : link_seconds(self, edge, edge->bytes) / others[(count - 1) / 2];
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

static void confirm_host(struct dp_straggler *self, uint32_t r, int way, double ratio)
{
    struct subject *host = &self->ranks[r].hosts[way].subject;
    double busy = dp_straggler_window_median(&self->ranks[r].busy, BEST_STEPS);
    if (ratio < least_agreeing(self)) {
        if (way == HOST_CORES) {
            return; // it had its cores: whoever took them was gone
        }
        confirm(self, host, "its products alone are as fast as on others");
    } else if (dp_straggler_off_core_ns(self, r) >= taken_share * busy) {
        // Without cores the host's work is slow wherever it is.
        char what[160];
        snprintf(what, sizeof(what),
                 "a product alone takes %.2f times as long as on others, and it is kept from its "
                 "cores while it computes, too",
                 ratio);
        confirm(self, host, what);
    }
}

static void judge_rank(struct dp_straggler *self, uint32_t r)
{
    struct rank *rank = &self->ranks[r];
    struct subject *work = &rank->work;
    if (!is_suspected(work) && !dp_straggler_host_is_suspect(rank)) {
        return; // comparing everybody with all others takes too long where there are many
    }
    double ratio = gemm_ratio(self, r);
    if (isnan(ratio)) {
        return;
    }
    if (is_suspected(work) && ratio >= agrees(self, work)) {
        char what[160];
        snprintf(what, sizeof(what), "a product alone takes %.2f times as long as on others",
                 ratio);
        confirm(self, work, what);
    }
    for (int way = 0; way < HOST_WAYS; way++) {
        if (is_suspected(&rank->hosts[way].subject)) {
            confirm_host(self, r, way, ratio);
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
    if (stage->subject.verdict == NULL || stage->ranks != 1) {
        return;
    }
    double ratio = gemm_ratio(self, stage->only_rank);
    if (ratio >= agrees(self, &stage->subject)) {
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
    if (!is_suspected(&edge->subject)) {
        return;
    }
    double ratio = link_ratio(self, edge);
    if (ratio >= agrees(self, &edge->subject)) {
        char what[160];
        snprintf(what, sizeof(what), "a message alone takes %.2f times as long as on other links",
                 ratio);
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
    figures->gemm = measured ? (double)probe->gemm_ns / probe->gemm_flops : 0;
    figures->answered = true;
    straggler->answers++;
    dp_straggler_judge_probes(straggler);
}
