// Who slows a job down: its steps go to a detector (dp/straggler.h), whose verdicts become events
// and rows, and are handed on to whoever answers them.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core_internal.h"
#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/straggler.h"

#define SUSPECT_AGAIN_NS (60 * DP_NS_PER_S)

// Of a job: so many events at once, then one in so long. What stands is told by the job itself.
enum { WORDS_MAX = 30 };
#define WORD_NS (10 * DP_NS_PER_S)
// Of ranks that are known to be slow when a new assignment begins.
enum { KNOWN_MAX = 64 };

static void forget(struct core_straggler *straggler)
{
    dp_straggler_free(straggler->detector);
    free(straggler->places);
    straggler->detector = NULL;
    straggler->places = NULL;
    straggler->places_count = 0;
}

void dp_core_straggler_deinit(struct core_job *job)
{
    forget(&job->straggler);
    free(job->straggler.news);
    job->straggler = (struct core_straggler){0};
}

static struct dp_straggler *new_detector(const struct core_job *job)
{
    uint32_t *nodes = dp_new_array(uint32_t, job->ranks_count);
    for (size_t i = 0; i < job->members_count; i++) {
        const struct core_member *member = &job->members[i];
        for (uint32_t k = 0; k < member->ranks; k++) {
            nodes[job->by_member[member->first + k]] = (uint32_t)i;
        }
    }
    struct dp_straggler_config config;
    dp_straggler_config_init(&config);
    config.ranks = (uint32_t)job->ranks_count;
    config.nodes = nodes;
    if (job->row.straggler_enter > 1 + config.gap) {
        config.enter = job->row.straggler_enter;
    }
    struct dp_straggler *detector = dp_straggler_new(&config);
    free(nodes);
    return detector;
}

static void keep_places(struct core_job *job)
{
    struct core_straggler *straggler = &job->straggler;
    straggler->places = dp_new_array(struct core_place, job->ranks_count);
    straggler->places_count = job->ranks_count;
    for (size_t i = 0; i < job->ranks_count; i++) {
        DP_COPY_TEXT(straggler->places[i].node, job->ranks[i].node);
        straggler->places[i].slot = job->ranks[i].slot;
    }
}

// What stands about ranks, and where they ran.
static size_t known_slow(const struct core_straggler *straggler,
                         struct dp_straggler_verdict *ret_known, struct core_place *ret_places)
{
    if (straggler->detector == NULL) {
        return 0;
    }
    size_t standing = dp_straggler_standing(straggler->detector, ret_known, KNOWN_MAX);
    size_t count = 0;
    for (size_t i = 0; i < standing && i < KNOWN_MAX; i++) {
        if (ret_known[i].rank < straggler->places_count) {
            ret_places[count] = straggler->places[ret_known[i].rank];
            ret_known[count++] = ret_known[i];
        }
    }
    return count;
}

static const char *node_of(const struct core_job *job, uint32_t rank)
{
    return rank < job->ranks_count ? job->ranks[rank].node : "";
}

static struct dp_verdict_record *next_news(struct core_straggler *straggler)
{
    if (straggler->news == NULL) {
        straggler->news = dp_new_array(struct dp_verdict_record, CORE_VERDICTS_SHOWN);
    }
    return &straggler->news[straggler->told++ % CORE_VERDICTS_SHOWN];
}

static void fill_record(const struct dp_core *core, const struct core_job *job,
                        const struct dp_straggler_verdict *verdict,
                        struct dp_verdict_record *ret_record)
{
    *ret_record = (struct dp_verdict_record){
        .job = job->row.number,
        .time_ns = core->wall_ns,
        .attempt = job->row.attempt,
        .epoch = job->row.epoch,
        .rank = verdict->rank,
        .peer = verdict->peer,
        .stage = verdict->stage,
        .slowdown = verdict->slowdown,
        .lost_s = verdict->lost_s,
        .onset_step = verdict->onset_step,
        .step = verdict->step,
    };
    DP_COPY_TEXT(ret_record->state, dp_straggler_state_text(verdict->state));
    DP_COPY_TEXT(ret_record->cause, dp_straggler_cause_text(verdict->cause));
    DP_COPY_TEXT(ret_record->node, node_of(job, verdict->rank));
    DP_COPY_TEXT(ret_record->text, verdict->text);
}

// Who runs where a rank of the assignment before was slow begins with that.
static void take_over(const struct dp_core *core, struct core_job *job,
                      const struct dp_straggler_verdict *known, const struct core_place *places,
                      size_t count)
{
    for (size_t k = 0; k < count; k++) {
        for (uint32_t i = 0; i < job->ranks_count; i++) {
            if (job->ranks[i].slot == places[k].slot &&
                strcmp(job->ranks[i].node, places[k].node) == 0) {
                dp_straggler_know(job->straggler.detector, i, &known[k]);
            }
        }
    }
    struct dp_straggler_verdict standing[KNOWN_MAX];
    size_t now = dp_straggler_standing(job->straggler.detector, standing, KNOWN_MAX);
    for (size_t i = 0; i < now && i < KNOWN_MAX; i++) {
        fill_record(core, job, &standing[i], next_news(&job->straggler));
    }
}

// Ranks of another epoch are others; what was found about the places where they run holds.
static struct dp_straggler *detector_of(const struct dp_core *core, struct core_job *job)
{
    struct core_straggler *straggler = &job->straggler;
    if (straggler->detector != NULL && straggler->attempt == job->row.attempt &&
        straggler->epoch == job->row.epoch) {
        return straggler->detector;
    }
    DP_AUTO_FREE struct dp_straggler_verdict *known =
        dp_new_array(struct dp_straggler_verdict, KNOWN_MAX);
    struct core_place places[KNOWN_MAX];
    size_t count = known_slow(straggler, known, places);
    forget(straggler);
    straggler->attempt = job->row.attempt;
    straggler->epoch = job->row.epoch;
    straggler->detector = new_detector(job);
    keep_places(job);
    take_over(core, job, known, places, count);
    return straggler->detector;
}

static const char *event_of(dp_straggler_state state)
{
    static const char *const events[] = {
        [DP_STRAGGLER_HEALTHY] = "straggler.recovered",
        [DP_STRAGGLER_BLIND] = "straggler.blind",
        [DP_STRAGGLER_NOTED] = "straggler.noted",
        [DP_STRAGGLER_SUSPECTED] = "straggler.suspected",
        [DP_STRAGGLER_CONFIRMED] = "straggler.confirmed",
    };
    return events[state];
}

// Several ranks of a node that are slow at the same time are one suspicion of it. Others that take
// its cores are no fault of its hardware.
static void suspect_node(struct dp_core *core, struct core_node *node,
                         const struct dp_straggler_verdict *verdict)
{
    int64_t last_ns = dp_core_node_suspected_ns(node);
    bool again = last_ns != 0 && core->now_ns - last_ns < SUSPECT_AGAIN_NS;
    if (verdict->state == DP_STRAGGLER_CONFIRMED && verdict->cause == DP_STRAGGLER_DEVICE &&
        !again) {
        dp_core_node_suspect(core, node, verdict->text);
    }
}

// Steps of milliseconds on a crowded machine would fill the table of events.
static bool may_speak(const struct dp_core *core, struct core_straggler *straggler)
{
    double earned = straggler->words_ns == 0
                        ? WORDS_MAX
                        : (double)(core->now_ns - straggler->words_ns) / (double)WORD_NS;
    straggler->words_ns = core->now_ns;
    straggler->words = fmin(straggler->words + earned, WORDS_MAX);
    if (straggler->words < 1) {
        return false;
    }
    straggler->words -= 1;
    return true;
}

// Whether what has ended says so: that a rank reports again does not, nor that another verdict
// about a rank of the node has taken its place.
static bool is_well(const struct core_job *job, const char *node,
                    const struct dp_straggler_verdict *ended)
{
    struct dp_straggler_verdict standing[KNOWN_MAX];
    size_t count = dp_straggler_standing(job->straggler.detector, standing, KNOWN_MAX);
    bool well = ended->cause != DP_STRAGGLER_UNKNOWN;
    for (size_t i = 0; i < count && i < KNOWN_MAX; i++) {
        well = well && (standing[i].state < DP_STRAGGLER_SUSPECTED ||
                        strcmp(node_of(job, standing[i].rank), node) != 0);
    }
    return well;
}

static void tell(struct dp_core *core, struct core_job *job,
                 const struct dp_straggler_verdict *verdict)
{
    struct dp_verdict_record *record = next_news(&job->straggler);
    fill_record(core, job, verdict, record);
    struct core_node *node = record->node[0] != '\0' ? dp_core_node_find(core, record->node) : NULL;
    if (may_speak(core, &job->straggler)) {
        dp_core_store(core, DP_RECORD_VERDICT, dp_core_keep(core, record, sizeof(*record)));
        dp_core_note(core, job, node, verdict->state >= DP_STRAGGLER_SUSPECTED,
                     event_of(verdict->state), "%s: %s", record->cause, record->text);
    }
    if (node != NULL) {
        suspect_node(core, node, verdict);
    }
    if (node != NULL && verdict->state == DP_STRAGGLER_HEALTHY &&
        is_well(job, node->row.name, verdict)) {
        dp_core_avoid_lift(core, node, verdict->text);
    }
    job->show = true;
    dp_core_job_touch(job);
    dp_core_straggler_found(job, verdict);
}

// Every rank takes part: its figures are compared with the others'.
static void probe(struct dp_core *core, struct core_job *job, uint64_t request)
{
    struct dp_fence fence = dp_core_job_fence(job);
    for (size_t i = 0; i < job->members_count; i++) {
        const struct core_node *node = job->members[i].at;
        if (node != NULL && node->session != 0) {
            dp_core_send(core, node, DP_ORDER_PROBE, &fence, NULL);
            core->effects->items[core->effects->count - 1].request = request;
        }
    }
}

static void take_news(struct dp_core *core, struct core_job *job)
{
    struct dp_straggler *detector = job->straggler.detector;
    struct dp_straggler_verdict verdict;
    while (dp_straggler_next(detector, &verdict)) {
        tell(core, job, &verdict);
    }
    uint64_t request;
    if (job->row.adapt != DP_JOB_ADAPT_OFF && job->row.state == DP_STATE_RUNNING &&
        dp_core_reassign_may(job) && dp_straggler_wants_probe(detector, &request)) {
        probe(core, job, request);
    }
}

void dp_core_straggler_step(struct dp_core *core, struct core_job *job, uint32_t rank,
                            const struct dp_step_report *report)
{
    // The first step warms up, also after a checkpoint was loaded.
    bool counts = report->row.step > job->row.resumed_step + 1;
    if (report->times == NULL || job->row.state != DP_STATE_RUNNING || !counts) {
        return;
    }
    struct dp_straggler *detector = detector_of(core, job);
    struct dp_straggler_sample sample = *report->times;
    sample.rank = rank;
    sample.step = (int64_t)report->row.step;
    sample.step_ns = report->row.step_ns;
    dp_straggler_take(detector, &sample);
    if (report->rebalance.applied && report->rebalance.moved > 0) {
        dp_straggler_freeze(detector, sample.step, "experts changed places");
    }
    take_news(core, job);
}

void dp_core_straggler_probed(struct dp_core *core, struct core_job *job, uint32_t rank,
                              const struct dp_straggler_probe *figures)
{
    if (job->straggler.detector != NULL) {
        struct dp_straggler_probe own = *figures;
        own.rank = rank;
        dp_straggler_take_probe(detector_of(core, job), &own);
        take_news(core, job);
    }
}

size_t dp_core_verdicts(const struct dp_core *core, uint64_t number,
                        const struct dp_verdict_record **ret_verdicts, size_t max)
{
    const struct core_job *job = dp_core_job_number(core, number);
    if (job == NULL || job->straggler.news == NULL) {
        return 0;
    }
    uint64_t told = job->straggler.told;
    size_t count = told < CORE_VERDICTS_SHOWN ? (size_t)told : CORE_VERDICTS_SHOWN;
    for (size_t i = 0; i < count && i < max; i++) {
        ret_verdicts[i] = &job->straggler.news[(told - 1 - i) % CORE_VERDICTS_SHOWN];
    }
    return count < max ? count : max;
}

const struct dp_straggler *dp_core_straggler(const struct dp_core *core, uint64_t number)
{
    const struct core_job *job = dp_core_job_number(core, number);
    // That of the epoch before knows other ranks; the one in force has its own with the first step.
    bool knows = job != NULL && job->straggler.attempt == job->row.attempt &&
                 job->straggler.epoch == job->row.epoch;
    return knows ? job->straggler.detector : NULL;
}
