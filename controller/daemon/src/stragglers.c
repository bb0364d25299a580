// Stragglers on the wire: times that ranks report, probes, scores and verdicts.
#include <math.h>
#include <string.h>

#include "daemon.h"
#include "dp/clock.h"
#include "dp/straggler.h"

// Of one kind or link in one step; sums of them fit.
#define TIME_NS_MAX (86400 * DP_NS_PER_S)
#define KIND_SCORES_MAX 64 // of one rank, that are shown

static bool is_time(int64_t ns)
{
    return ns >= 0 && ns <= TIME_NS_MAX;
}

// What makes no sense, or what this program does not know, is left out.
static bool take_kind(const Dp__V1__KindTime *from, struct dp_straggler_kind *ret_kind)
{
    bool is_update = from->kind == DP_WIRE_KIND_OPTIMIZER;
    if ((!is_update && from->kind >= DP_ACTION_KIND_COUNT) || from->stage >= DP_STAGES_MAX ||
        from->b_stage >= DP_STAGES_MAX || from->b_kind >= DP_ACTION_KIND_COUNT ||
        from->count == 0 || !is_time(from->total_ns) || !is_time(from->median_ns) ||
        !is_time(from->planned_ns) || from->tokens > DP_EXPERT_LOAD_MAX) {
        return false;
    }
    *ret_kind = (struct dp_straggler_kind){
        .kind = (uint8_t)(is_update ? DP_STRAGGLER_OPTIMIZER : from->kind),
        .b_kind = (uint8_t)from->b_kind,
        .stage = (uint16_t)from->stage,
        .b_stage = (uint16_t)from->b_stage,
        .count = from->count,
        .total_ns = from->total_ns,
        .median_ns = from->median_ns,
        .planned_ns = from->planned_ns,
        .tokens = from->tokens,
    };
    return true;
}

const struct dp_straggler_sample *straggler_times(const Dp__V1__StepDone *from,
                                                  struct dp_arena *arena)
{
    if (from->n_kinds == 0 || from->n_kinds > DP_STRAGGLER_KINDS_MAX ||
        from->n_links > DP_STRAGGLER_LINKS_MAX) {
        return NULL;
    }
    struct dp_straggler_sample *sample = arena_take(arena, sizeof(*sample));
    struct dp_straggler_kind *kinds = arena_take(arena, from->n_kinds * sizeof(*kinds));
    struct dp_straggler_link *links = arena_take(arena, from->n_links * sizeof(*links));
    *sample = (struct dp_straggler_sample){.kinds = kinds, .links = links};
    for (size_t i = 0; i < from->n_kinds; i++) {
        sample->kinds_count += take_kind(from->kinds[i], &kinds[sample->kinds_count]);
    }
    for (size_t i = 0; i < from->n_links; i++) {
        const Dp__V1__LinkTime *link = from->links[i];
        // Clocks of nodes are apart: a message may seem to arrive before it left.
        if (link->count > 0 && is_time(link->transfer_ns < 0 ? 0 : link->transfer_ns) &&
            is_time(link->waiting_ns)) {
            links[sample->links_count++] = (struct dp_straggler_link){
                link->peer, link->count, link->bytes, link->transfer_ns, link->waiting_ns};
        }
    }
    sample->launch_gap_ns = is_time(from->launch_gap_ns) ? from->launch_gap_ns : 0;
    sample->off_core_ns = is_time(from->off_core_ns) ? from->off_core_ns : 0;
    return sample;
}

const struct dp_straggler_probe *straggler_probe(const Dp__V1__ProbeDone *from,
                                                 struct dp_arena *arena)
{
    struct dp_straggler_probe *probe = arena_take(arena, sizeof(*probe));
    size_t count = from->n_links < DP_STRAGGLER_LINKS_MAX ? from->n_links : DP_STRAGGLER_LINKS_MAX;
    struct dp_straggler_probe_link *links = arena_take(arena, count * sizeof(*links));
    *probe = (struct dp_straggler_probe){.request = from->request, .links = links};
    if (is_time(from->gemm_ns) && isfinite(from->gemm_flops) && from->gemm_flops > 0) {
        probe->gemm_ns = from->gemm_ns;
        probe->gemm_off_core_ns = is_time(from->gemm_off_core_ns) ? from->gemm_off_core_ns : 0;
        probe->gemm_flops = from->gemm_flops;
    }
    for (size_t i = 0; i < count; i++) {
        const Dp__V1__ProbeLink *link = from->links[i];
        if (is_time(link->latency_ns) && isfinite(link->bytes_per_s) && link->bytes_per_s > 0) {
            links[probe->links_count++] =
                (struct dp_straggler_probe_link){link->peer, link->latency_ns, link->bytes_per_s};
        }
    }
    return probe;
}

static double known_or_zero(double value)
{
    return isfinite(value) ? value : 0;
}

static void add_kinds(const struct dp_straggler *scores, uint32_t rank, struct dp_arena *arena,
                      Dp__V1__RankScore *message)
{
    struct dp_straggler_kind_score kinds[KIND_SCORES_MAX];
    size_t count = dp_straggler_kind_scores(scores, rank, kinds, KIND_SCORES_MAX);
    count = count < KIND_SCORES_MAX ? count : KIND_SCORES_MAX;
    message->kinds = arena_take(arena, count * sizeof(void *));
    for (size_t i = 0; i < count; i++) {
        const struct dp_straggler_kind *kind = &kinds[i].kind;
        Dp__V1__KindScore *score = arena_take(arena, sizeof(*score));
        dp__v1__kind_score__init(score);
        score->kind = (char *)(kind->kind == DP_STRAGGLER_OPTIMIZER
                                   ? "optimizer"
                                   : dp_action_kind_text((dp_action_kind)kind->kind));
        score->stage = kind->stage;
        score->b_stage = kind->b_stage;
        score->relative = known_or_zero(kinds[i].relative);
        score->individual = known_or_zero(kinds[i].individual);
        score->median_ns = kind->median_ns;
        score->peers = kinds[i].peers;
        message->kinds[message->n_kinds++] = score;
    }
}

Dp__V1__RankScore *message_score(const struct dp_straggler *scores, uint32_t rank, bool with_kinds,
                                 struct dp_arena *arena)
{
    if (scores == NULL || dp_straggler_step(scores) == 0) {
        return NULL;
    }
    struct dp_straggler_score score;
    dp_straggler_score(scores, rank, &score);
    Dp__V1__RankScore *message = arena_take(arena, sizeof(*message));
    dp__v1__rank_score__init(message);
    message->relative = known_or_zero(score.relative);
    message->individual = known_or_zero(score.individual);
    message->link = known_or_zero(score.link);
    message->busy = known_or_zero(score.busy);
    message->gap = known_or_zero(score.gap);
    message->step = (uint64_t)score.step;
    message->blind = score.blind;
    if (with_kinds) {
        add_kinds(scores, rank, arena, message);
    }
    return message;
}

Dp__V1__StragglerVerdict *message_verdict(const struct dp_verdict_record *from,
                                          struct dp_arena *arena)
{
    Dp__V1__StragglerVerdict *message = arena_take(arena, sizeof(*message));
    dp__v1__straggler_verdict__init(message);
    message->state = (char *)from->state;
    message->cause = (char *)from->cause;
    message->has_rank = from->rank != DP_STRAGGLER_NONE;
    message->rank = message->has_rank ? from->rank : 0;
    message->node = (char *)from->node;
    message->has_peer = from->peer != DP_STRAGGLER_NONE;
    message->peer = message->has_peer ? from->peer : 0;
    message->has_stage = from->stage != DP_STRAGGLER_NONE;
    message->stage = message->has_stage ? from->stage : 0;
    message->slowdown = from->slowdown;
    message->lost_s = from->lost_s;
    message->onset_step = (uint64_t)from->onset_step;
    message->step = (uint64_t)from->step;
    message->message = (char *)from->text;
    message->time_ns = from->time_ns;
    message->attempt = from->attempt;
    message->epoch = from->epoch;
    return message;
}

// Both speak of the same thing.
static bool is_same_subject(const struct dp_verdict_record *a, const struct dp_verdict_record *b)
{
    return a->rank == b->rank && a->peer == b->peer && a->stage == b->stage &&
           strcmp(a->cause, b->cause) == 0;
}

// Of each subject the newest word: those that stand come first.
void add_stragglers(const struct job_view *view, struct dp_arena *arena, Dp__V1__Job *message)
{
    size_t count = view->verdicts_count;
    message->stragglers = arena_take(arena, count * sizeof(void *));
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < count; i++) {
            const struct dp_verdict_record *verdict = view->verdicts[i];
            bool stands = strcmp(verdict->state, "healthy") != 0 &&
                          verdict->attempt == view->job->attempt &&
                          verdict->epoch == view->job->epoch;
            bool is_newest = true;
            for (size_t k = 0; k < i; k++) {
                is_newest = is_newest && !is_same_subject(view->verdicts[k], verdict);
            }
            if (is_newest && stands == (pass == 0)) {
                message->stragglers[message->n_stragglers++] = message_verdict(verdict, arena);
            }
        }
    }
}
