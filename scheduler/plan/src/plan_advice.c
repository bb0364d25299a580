// The field's own debate about DualPipe (deepseek-ai/DualPipe issues 8 and 15, Megatron-LM issue
// 1524, the report of Kimi K2), put to the figures of a plan.

#include "plan_advice.h"

#include <math.h>
#include <string.h>

#include "dp/plan_text.h"

// Traffic below this share of a step is little to hide; room below this share of a rank's memory
// is little room; a bubble above this share of a step is large; memory that differs by less is
// alike.
static const double LITTLE_TRAFFIC = 0.1, LITTLE_ROOM = 0.1, LARGE_BUBBLE = 0.15,
                    LIKE_MEMORY = 0.01;

struct advice {
    const struct dp_plan *plan;
    const struct dp_model_spec *model;
    const struct dp_plan_position *critical;
    bool two_directions; // every stage is on two ranks
    struct dp_buf *out;
};

// Weights and gradients of the second copy on a rank.
static double copy_bytes(const struct dp_plan_position *position)
{
    return (position->memory.weights + position->memory.gradients) / 2;
}

static double percent(double part, double whole)
{
    return whole > 0 ? 100 * part / whole : 0;
}

static void say_few(const struct advice *advice)
{
    const struct dp_plan *plan = advice->plan;
    if (plan->microbatches > 2 * plan->pipeline) {
        return;
    }
    double bubble = percent(advice->critical->bubble_s, plan->step_s);
    if (advice->two_directions) {
        dp_buf_printf(advice->out,
                      "few micro-batches: %d for %d pipeline ranks leave pairs %.0f %% of the step "
                      "and bubbles %.0f %%; some %d of them (global batch %lld) would fill it\n",
                      plan->microbatches, plan->pipeline,
                      percent(advice->critical->overlapped_s, plan->step_s), bubble,
                      4 * plan->pipeline,
                      4LL * plan->pipeline * plan->micro_batch_size * plan->data);
    } else if (bubble > 100 * LARGE_BUBBLE) {
        dp_buf_printf(advice->out,
                      "few micro-batches: %d for %d pipeline ranks; bubbles are %.0f %% of the "
                      "step\n",
                      plan->microbatches, plan->pipeline, bubble);
    }
}

static bool groups_stay_on_nodes(const struct dp_plan *plan)
{
    int32_t shards = dp_plan_shards(plan);
    int32_t block = plan->expert * (plan->expert_tensor > 1 ? plan->expert_tensor : 1);
    for (int32_t p = 0; p < plan->pipeline; p++) {
        for (int32_t i = 0; i < plan->data * shards; i++) {
            int32_t first = i - i % block;
            int32_t here = (i / shards * plan->pipeline + p) * shards + i % shards;
            int32_t there = (first / shards * plan->pipeline + p) * shards + first % shards;
            if (strcmp(plan->ranks[here].node, plan->ranks[there].node) != 0) {
                return false;
            }
        }
    }
    return true;
}

// DualPipe hides all-to-all behind compute: is there any?
static void say_little_to_hide(const struct advice *advice)
{
    const struct dp_plan *plan = advice->plan;
    char copy[DP_PLAN_WORD_MAX], traffic[DP_PLAN_WORD_MAX];
    dp_plan_text_bytes(copy, copy_bytes(&plan->positions[dp_plan_fullest_position(plan)]));
    double seconds = advice->critical->hidden_s + advice->critical->exchange_s;
    dp_plan_text_seconds(traffic, seconds);
    if (advice->model->experts == 0) {
        dp_buf_printf(advice->out,
                      "a dense model has no all-to-all to hide (%s of it in a step of %.3g s), and "
                      "the second copy of every stage takes %s a rank\n",
                      traffic, plan->step_s, copy);
    } else if (plan->expert <= 1) {
        dp_buf_printf(advice->out,
                      "experts are not split (expert = 1), so there is no all-to-all to hide, and "
                      "the second copy of every stage takes %s a rank\n",
                      copy);
    } else if (seconds < LITTLE_TRAFFIC * plan->step_s && groups_stay_on_nodes(plan)) {
        dp_buf_printf(advice->out,
                      "expert groups of %d stay inside their nodes: all-to-all is %s, %.1f %% of "
                      "the step, so there is little to hide for %s of second copies a rank\n",
                      plan->expert, traffic, percent(seconds, plan->step_s), copy);
    }
}

static void say_memory_bound(const struct advice *advice)
{
    const struct dp_plan *plan = advice->plan;
    int32_t fullest = dp_plan_fullest_position(plan);
    const struct dp_plan_position *position = &plan->positions[fullest];
    double limit = position->memory_limit_bytes;
    double room = limit - dp_plan_position_bytes(plan, fullest);
    if (limit <= 0 || room >= LITTLE_ROOM * limit) {
        return;
    }
    char left[DP_PLAN_WORD_MAX], there[DP_PLAN_WORD_MAX], copy[DP_PLAN_WORD_MAX];
    if (room < 0) {
        dp_plan_text_bytes(left, -room);
    } else {
        dp_plan_text_bytes(left, room);
    }
    dp_buf_printf(advice->out,
                  "memory binds: rank %d %s %s %s %s, and the second copy of its stages takes %s; "
                  "dualpipev holds every stage once\n",
                  fullest, room < 0 ? "lacks" : "has", left, room < 0 ? "beyond its" : "left of",
                  dp_plan_text_bytes(there, limit), dp_plan_text_bytes(copy, copy_bytes(position)));
}

// The fastest that fits of what holds every stage once: of one family, or of all others.
static const struct dp_plan_candidate *fastest_single(const struct dp_plan *plan, bool is_v)
{
    const struct dp_plan_candidate *best = NULL;
    for (size_t i = 0; i < plan->candidates_count; i++) {
        const struct dp_plan_candidate *c = &plan->candidates[i];
        const struct dp_schedule_family *family = dp_schedule_family_find(c->schedule);
        bool fits = c->memory_limit_bytes <= 0 || c->memory_max_bytes <= c->memory_limit_bytes;
        if (c->legal && fits && family != NULL && family->directions == 1 &&
            (strcmp(c->schedule, "dualpipev") == 0) == is_v &&
            (best == NULL || c->step_s < best->step_s)) {
            best = c;
        }
    }
    return best;
}

static void say_close(const struct advice *advice, bool is_v)
{
    const struct dp_plan *plan = advice->plan;
    const struct dp_plan_candidate *other = fastest_single(plan, is_v);
    if (other == NULL || other->step_s > plan->step_s * (1 + dp_plan_tie_share(plan))) {
        return;
    }
    char name[DP_NAME_MAX + 16], more[DP_PLAN_WORD_MAX], less[DP_PLAN_WORD_MAX];
    double here = dp_plan_position_bytes(plan, dp_plan_fullest_position(plan));
    double saved = here - other->memory_max_bytes;
    dp_buf_printf(advice->out,
                  "%s (pipeline %d) takes %s, inside the error of %.0f %%, holds every "
                  "stage once and needs ",
                  dp_plan_text_schedule(name, other->schedule, other->virtual_stages),
                  other->pipeline, dp_plan_text_more(more, other->step_s, plan->step_s),
                  100 * dp_plan_tie_share(plan));
    if (fabs(saved) < LIKE_MEMORY * here) {
        dp_buf_puts(advice->out, "as much memory\n");
    } else {
        dp_buf_printf(advice->out, "%s %s on its fullest rank\n",
                      dp_plan_text_bytes(less, fabs(saved)), saved > 0 ? "less" : "more");
    }
}

static void say_baseline(const struct advice *advice)
{
    const struct dp_plan *plan = advice->plan;
    if (plan->baseline_step_s > 0 && dp_plan_baseline_fits(plan) &&
        plan->step_s >= plan->baseline_step_s * (1 - 0.01)) {
        char more[DP_PLAN_WORD_MAX];
        dp_buf_printf(advice->out,
                      "%s against 1f1b on the same sizes: two directions gain nothing here\n",
                      dp_plan_text_more(more, plan->step_s, plan->baseline_step_s));
    }
}

void dp_plan_advise(const struct dp_plan *plan, const struct dp_model_spec *model,
                    struct dp_buf *out)
{
    const struct dp_schedule_family *family = dp_schedule_family_find(plan->schedule);
    if (plan->positions == NULL || plan->pipeline < 2 || plan->step_s <= 0) {
        return;
    }
    const struct advice advice = {
        .plan = plan,
        .model = model,
        .critical = &plan->positions[dp_plan_critical_position(plan)],
        .two_directions = family != NULL && family->directions == 2,
        .out = out,
    };
    say_few(&advice);
    if (advice.two_directions) {
        say_little_to_hide(&advice);
        say_memory_bound(&advice);
        say_baseline(&advice);
        say_close(&advice, false);
        say_close(&advice, true);
    }
}
