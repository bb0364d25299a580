// What answers are worth, and which one is taken.

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/plan_text.h"
#include "internal.h"

// Of one layer on one rank: given, or what the plan's own figures come to.
static double layer_bytes(const struct adapt *adapt)
{
    double bytes = adapt->input->acting.state_bytes;
    if (bytes > 0 || adapt->plan->positions == NULL) {
        return bytes;
    }
    double most = 0;
    for (int32_t p = 0; p < adapt->pipeline; p++) {
        const struct dp_memory_parts *m = &adapt->plan->positions[p].memory;
        most = fmax(most, m->weights + m->optimizer);
    }
    int32_t layers = adapt->plan->layer_begin[adapt->stages];
    return most * adapt->pipeline / (layers > 0 ? layers : 1);
}

struct holders {
    const struct adapt *adapt;
    const int32_t *placement; // [stages][2]
};

// Whether a rank of the place's node held the layer of this stage of what runs.
static bool is_near(const struct holders *holders, int32_t stage, int32_t node)
{
    const struct adapt *adapt = holders->adapt;
    for (int direction = 0; direction < 2; direction++) {
        int32_t position = holders->placement[2 * stage + direction];
        for (int32_t d = 0; d < adapt->plan->data; d++) {
            for (int32_t i = 0; i < adapt->shards; i++) {
                int32_t rank = (d * adapt->pipeline + position) * adapt->shards + i;
                if (adapt->places[adapt->base.place[rank]].node == node) {
                    return true;
                }
            }
        }
    }
    return false;
}

static int32_t stage_of_layer(const struct layout *layout, int32_t stages, int32_t layer)
{
    int32_t stage = 0;
    while (stage < stages - 1 && layout->layer_begin[stage + 1] <= layer) {
        stage++;
    }
    return stage;
}

static double per_byte(double bytes_per_s)
{
    return bytes_per_s > 0 ? 1 / bytes_per_s : 0;
}

// Every rank of the new epoch takes its layers over from whoever has them, on its own node if
// someone does; all at the same time, so the one that takes longest counts. The sim device's have
// nothing to hand over.
static double transfer_s(const struct adapt *adapt, const struct layout *layout)
{
    const struct dp_adapt_acting *acting = &adapt->input->acting;
    const struct order *order = dp_adapt_block_order((struct adapt *)adapt, &adapt->base, 0);
    struct holders holders = {adapt, order->schedule.placement};
    double bytes = dp_adapt_has_state(adapt) ? layer_bytes(adapt) : 0, longest = 0;
    for (int32_t r = 0; r < adapt->world; r++) {
        int32_t position = dp_plan_rank_position(adapt->plan, r);
        int32_t stages[DP_RANK_STAGES_MAX];
        int32_t count = dp_schedule_rank_stages(&order->schedule, position, stages);
        double seconds = 0;
        for (int32_t i = 0; i < count; i++) {
            for (int32_t l = layout->layer_begin[stages[i]]; l < layout->layer_begin[stages[i] + 1];
                 l++) {
                int32_t before = stage_of_layer(&adapt->base, adapt->stages, l);
                bool near = is_near(&holders, before, adapt->places[layout->place[r]].node);
                seconds += bytes *
                           per_byte(near ? acting->local_bytes_per_s : acting->network_bytes_per_s);
            }
        }
        longest = fmax(longest, seconds);
    }
    return longest;
}

double dp_adapt_cost_of(const struct adapt *adapt, const struct layout *layout, unsigned parts)
{
    double seconds = 0;
    if ((parts & (1u << DP_ADAPT_EXPERTS)) != 0) {
        seconds += adapt->input->experts->move_s;
    }
    if ((parts & ~(1u << DP_ADAPT_EXPERTS)) != 0) {
        seconds += adapt->input->acting.switch_s + transfer_s(adapt, layout);
    }
    return seconds;
}

static int64_t steps_to_gain(const struct dp_adapt_input *input)
{
    int64_t steps = input->remaining_steps > 0 ? input->remaining_steps : 0;
    return input->expected_steps > 0 && input->expected_steps < steps ? input->expected_steps
                                                                      : steps;
}

static void say(struct dp_adapt_answer *answer, char *reason)
{
    free(answer->reason);
    answer->reason = reason;
}

// Steps until the time lost so far reaches the cost: what the slowness costs each of them. Ranks
// that are missing do not get well by themselves.
static int64_t wait_steps(const struct dp_adapt_input *input, const struct dp_adapt_answer *answer,
                          double healthy_s)
{
    double left = answer->cost_s - fmax(0, input->excess_s), each = answer->before_s - healthy_s;
    if (answer->kind == DP_ADAPT_GROW || input->expected_steps > 0 || left <= 0) {
        return 0;
    }
    return each > 0 ? (int64_t)fmin(ceil(left / each), DP_STEPS_MAX) : DP_STEPS_MAX;
}

// Why an answer that is possible is not taken now; NULL = it could be.
static char *objection(const struct adapt *adapt, const struct dp_adapt_answer *answer,
                       int64_t steps)
{
    const struct dp_adapt_limits *limits = &adapt->input->limits;
    double gain = answer->before_s - answer->after_s;
    char a[DP_PLAN_WORD_MAX], b[DP_PLAN_WORD_MAX];
    if (!(gain > 0)) {
        return dp_strdup("it is no faster");
    }
    if (gain < limits->least_gain_share * answer->before_s) {
        return dp_asprintf(
            "it gains %.1f %% of a step, less than the %.3g %% that are worth acting on",
            100 * gain / answer->before_s, 100 * limits->least_gain_share);
    }
    if (!(answer->net_s > 0)) {
        return dp_asprintf("%s saved over %lld steps do not pay for its %s",
                           dp_plan_text_seconds(a, adapt->input->trust * gain * (double)steps),
                           (long long)steps, dp_plan_text_seconds(b, answer->cost_s));
    }
    if (limits->since_action_steps >= 0 && limits->since_action_steps < limits->cool_down_steps) {
        return dp_asprintf("cooling down: %lld of %lld steps since the last change",
                           (long long)limits->since_action_steps,
                           (long long)limits->cool_down_steps);
    }
    if (answer->wait_steps >= DP_STEPS_MAX) {
        return dp_asprintf("nobody is slow: nothing is lost that would pay for its %s",
                           dp_plan_text_seconds(b, answer->cost_s));
    }
    if (answer->wait_steps > 0) {
        return dp_asprintf(
            "too early: %s lost so far, less than the %s that it costs; in %lld steps "
            "if it stays like this",
            dp_plan_text_seconds(a, fmax(0, adapt->input->excess_s)),
            dp_plan_text_seconds(b, answer->cost_s), (long long)answer->wait_steps);
    }
    return NULL;
}

static char *lost_to(const struct dp_adapt_answer *answer, const struct dp_adapt_answer *best)
{
    char a[DP_PLAN_WORD_MAX], b[DP_PLAN_WORD_MAX];
    return dp_asprintf("nets %s, %s nets %s", dp_plan_text_seconds(a, answer->net_s),
                       dp_adapt_kind_text(best->kind), dp_plan_text_seconds(b, best->net_s));
}

// The one that was asked for cannot be done.
static char *denied(const struct dp_adapt_answers *answers, dp_adapt_kind wanted)
{
    const char *why = "nobody has looked for it";
    for (int32_t i = 0; i < answers->count; i++) {
        const struct dp_adapt_answer *answer = &answers->answers[i];
        why = answer->kind == wanted && answer->reason != NULL ? answer->reason : why;
    }
    return dp_asprintf("%s was asked for: %s", dp_adapt_kind_text(wanted), why);
}

static char *won(const struct dp_adapt_input *input, const struct dp_adapt_answers *answers)
{
    const struct dp_adapt_answer *best = &answers->answers[answers->best];
    int64_t steps = answers->steps;
    char a[DP_PLAN_WORD_MAX], b[DP_PLAN_WORD_MAX], c[DP_PLAN_WORD_MAX];
    if (best->kind == DP_ADAPT_IGNORE) {
        return input->wanted == DP_ADAPT_IGNORE ? dp_strdup("nothing else is worth it now")
                                                : denied(answers, input->wanted);
    }
    if (best->after_s >= best->before_s) {
        return dp_strdup("asked for; no gain is expected");
    }
    return dp_asprintf("saves %s a step for %s once: %s over %lld steps",
                       dp_plan_text_seconds(a, best->before_s - best->after_s),
                       dp_plan_text_seconds(b, best->cost_s), dp_plan_text_seconds(c, best->net_s),
                       (long long)steps);
}

void dp_adapt_weigh(const struct adapt *adapt, struct dp_adapt_answers *answers)
{
    const struct dp_adapt_input *input = adapt->input;
    int64_t steps = answers->steps = steps_to_gain(input);
    DP_AUTO_FREE char **against = dp_new_array(char *, DP_ADAPT_KIND_COUNT);
    answers->best = 0;
    for (int32_t i = 1; i < answers->count; i++) {
        struct dp_adapt_answer *answer = &answers->answers[i];
        if (!answer->possible) {
            continue;
        }
        answer->net_s =
            input->trust * (answer->before_s - answer->after_s) * (double)steps - answer->cost_s;
        answer->wait_steps = wait_steps(input, answer, answers->healthy_s);
        against[i] = objection(adapt, answer, steps);
        const struct dp_adapt_answer *best = &answers->answers[answers->best];
        if (input->wanted != DP_ADAPT_IGNORE) {
            answers->best = answer->kind == input->wanted ? i : answers->best;
            continue;
        }
        // Of answers that net the same the one that comes first is the simpler.
        if (against[i] == NULL && answer->net_s > best->net_s * (1 + 1e-9)) {
            answers->best = i;
        }
    }
    struct dp_adapt_answer *best = &answers->answers[answers->best];
    best->chosen = true;
    for (int32_t i = 0; i < answers->count; i++) {
        struct dp_adapt_answer *answer = &answers->answers[i];
        if (i == answers->best) {
            say(answer, won(input, answers));
        } else if (answer->possible) {
            say(answer, against[i] != NULL ? dp_steal(against[i]) : lost_to(answer, best));
        }
        free(against[i]);
    }
}

int64_t dp_adapt_again_steps(const struct dp_adapt_answers *answers, int64_t remaining_steps)
{
    dp_adapt_kind best = answers->answers[answers->best].kind;
    int64_t least = 0;
    if (best != DP_ADAPT_IGNORE && best != DP_ADAPT_EXPERTS) {
        return 0;
    }
    for (int32_t i = 0; i < answers->count; i++) {
        const struct dp_adapt_answer *answer = &answers->answers[i];
        bool pays = best == DP_ADAPT_EXPERTS && answer->kind != best && answer->net_s > 0;
        int64_t wait = answer->wait_steps == 0 && pays ? 1 : answer->wait_steps;
        if (wait > 0 && wait < remaining_steps && (least == 0 || wait < least)) {
            least = wait;
        }
    }
    return least;
}
