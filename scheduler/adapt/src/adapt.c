#include "dp/adapt.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "internal.h"

const char *dp_adapt_kind_text(dp_adapt_kind kind)
{
    static const char *const names[DP_ADAPT_KIND_COUNT] = {
        "ignore",  "shift-microbatches", "move-layers", "change-order", "swap-ranks", "spare",
        "experts", "combined",           "restart",     "grow"};
    return names[kind];
}

bool dp_adapt_kind_of(const char *text, dp_adapt_kind *ret_kind)
{
    for (int kind = 0; kind < DP_ADAPT_KIND_COUNT; kind++) {
        if (strcmp(dp_adapt_kind_text((dp_adapt_kind)kind), text) == 0) {
            *ret_kind = (dp_adapt_kind)kind;
            return true;
        }
    }
    return false;
}

void dp_adapt_limits_init(struct dp_adapt_limits *ret_limits)
{
    *ret_limits = (struct dp_adapt_limits){
        .least_gain_share = 0.03, .cool_down_steps = 50, .since_action_steps = -1};
}

void dp_adapt_answers_deinit(struct dp_adapt_answers *answers)
{
    for (int32_t i = 0; i < answers->count; i++) {
        struct dp_adapt_answer *answer = &answers->answers[i];
        free(answer->action);
        free(answer->reason);
        free(answer->without);
        if (answer->plan != NULL) {
            dp_plan_deinit(answer->plan);
            free(answer->plan);
        }
    }
    *answers = (struct dp_adapt_answers){0};
}

double dp_adapt_trust_after(double trust, double before_s, double predicted_s, double measured_s)
{
    double promised = before_s - predicted_s;
    double kept = promised > 0 ? fmin(1, fmax(0, (before_s - measured_s) / promised)) : 1;
    return fmin(1, fmax(0.1, 0.5 * trust + 0.5 * kept));
}

// Searches in the order of their answers; what restarts or grows is planned, not searched.
typedef bool (*search_fn)(struct adapt *adapt, struct layout *layout, char *ret_why);
static const search_fn searches[DP_ADAPT_KIND_COUNT] = {
    [DP_ADAPT_SHIFT] = dp_adapt_shift,      [DP_ADAPT_LAYERS] = dp_adapt_layers,
    [DP_ADAPT_ORDER] = dp_adapt_order,      [DP_ADAPT_SWAP] = dp_adapt_swap,
    [DP_ADAPT_SPARE] = dp_adapt_spares,     [DP_ADAPT_EXPERTS] = dp_adapt_experts_part,
    [DP_ADAPT_COMBINED] = dp_adapt_combine,
};

static dp_status stopped(struct dp_error *err)
{
    return dp_fail(err, DP_INTERRUPTED, "the weighing of answers was stopped");
}

// Figures of a layout that some search found.
static dp_status fill(struct adapt *adapt, const struct layout *layout, double scale,
                      struct dp_adapt_answer *answer, struct dp_error *err)
{
    double step = dp_adapt_layout_step(adapt, layout);
    answer->possible = true;
    answer->parts = dp_adapt_layout_parts(adapt, layout);
    answer->after_s = step * scale;
    answer->cost_s = dp_adapt_cost_of(adapt, layout, answer->parts);
    answer->action = dp_adapt_words_of(adapt, layout, answer->parts);
    if ((answer->parts & ~(1u << DP_ADAPT_EXPERTS)) == 0) {
        return DP_OK;
    }
    answer->plan = dp_new(struct dp_plan);
    dp_status status = dp_adapt_plan_of(adapt, layout, answer->after_s, answer->plan, err);
    if (status != DP_OK) {
        free(answer->plan);
        answer->plan = NULL;
    }
    return status;
}

static dp_status answer_with(struct adapt *adapt, dp_adapt_kind kind, double scale,
                             struct dp_adapt_answer *answer, struct dp_error *err)
{
    char why[DP_ADAPT_WHY_MAX] = "";
    dp_status status = DP_OK;
    struct layout layout;
    dp_adapt_layout_copy(adapt, &adapt->base, &layout);
    adapt->actions_end = adapt->actions + DP_ADAPT_ACTIONS_MAX;
    if (kind == DP_ADAPT_RESTART) {
        status = dp_adapt_restart(adapt, scale, answer, why, err);
    } else if (kind == DP_ADAPT_GROW) {
        status = dp_adapt_grow(adapt, scale, answer, why, err);
    } else if (searches[kind](adapt, &layout, why)) {
        status = fill(adapt, &layout, scale, answer, err);
    }
    dp_adapt_layout_deinit(&layout);
    if (status == DP_OK && !answer->possible) {
        answer->reason = dp_strdup(why);
        answer->action = dp_strdup("");
    }
    return status == DP_OK && adapt->is_stopped ? stopped(err) : status;
}

// A combination of one part is that part's answer.
static bool is_new(const struct dp_adapt_answers *answers, const struct dp_adapt_answer *answer)
{
    if (answer->kind != DP_ADAPT_COMBINED || !answer->possible) {
        return true;
    }
    for (int32_t i = 0; i < answers->count; i++) {
        if (answers->answers[i].possible && answers->answers[i].after_s <= answer->after_s) {
            return false;
        }
    }
    return (answer->parts & (answer->parts - 1)) != 0;
}

static dp_status ask_all(struct adapt *adapt, double before, double scale,
                         struct dp_adapt_answers *answers, struct dp_error *err)
{
    dp_status status = DP_OK;
    for (int kind = 0; kind < DP_ADAPT_KIND_COUNT && status == DP_OK; kind++) {
        struct dp_adapt_answer answer = {
            .kind = (dp_adapt_kind)kind, .before_s = before * scale, .after_s = before * scale};
        if (kind == DP_ADAPT_IGNORE) {
            answer.possible = true;
            answer.action = dp_strdup("go on as it is");
        } else {
            status = answer_with(adapt, (dp_adapt_kind)kind, scale, &answer, err);
        }
        bool keeps = is_new(answers, &answer);
        answers->answers[answers->count++] = answer;
        if (!keeps) {
            struct dp_adapt_answers last = {.count = 1, .answers = {answer}};
            dp_adapt_answers_deinit(&last);
            answers->answers[answers->count - 1] = (struct dp_adapt_answer){
                .kind = DP_ADAPT_COMBINED,
                .before_s = before * scale,
                .after_s = before * scale,
                .action = dp_strdup(""),
                .reason = dp_strdup("together they do no better than one of them")};
        }
    }
    return status;
}

static dp_status check_input(const struct dp_adapt_input *input, struct dp_error *err)
{
    if (!(input->trust >= 0 && input->trust <= 1) || isnan(input->excess_s) ||
        !(input->measured_step_s >= 0)) {
        return dp_fail(
            err, DP_INVALID,
            "trust %g, %g s lost, steps of %g s: trust is 0 to 1, the others are numbers, "
            "steps not negative",
            input->trust, input->excess_s, input->measured_step_s);
    }
    return DP_OK;
}

dp_status dp_adapt_choose(const struct dp_adapt_input *input, struct dp_adapt_answers *ret_answers,
                          struct dp_error *err)
{
    dp_status status = check_input(input, err);
    if (status != DP_OK) {
        return status;
    }
    DP_CLEANUP(dp_adapt_ground_deinit) struct adapt adapt;
    status = dp_adapt_ground(&adapt, input, err);
    if (status != DP_OK) {
        return status;
    }
    DP_CLEANUP(dp_adapt_answers_deinit) struct dp_adapt_answers answers = {0};
    double before = dp_adapt_layout_step(&adapt, &adapt.base);
    double scale = input->measured_step_s > 0 && before > 0 ? input->measured_step_s / before : 1;
    adapt.ignores_slowness = true;
    answers.healthy_s = dp_adapt_layout_step(&adapt, &adapt.base) * scale;
    adapt.ignores_slowness = false;
    status = ask_all(&adapt, before, scale, &answers, err);
    if (status != DP_OK) {
        return status;
    }
    answers.moves = adapt.moves;
    dp_adapt_weigh(&adapt, &answers);
    *ret_answers = answers;
    answers = (struct dp_adapt_answers){0};
    return DP_OK;
}

// Which place each of the plan's ranks names.
static dp_status find_places(struct adapt *adapt, const struct dp_plan *plan, struct layout *layout,
                             struct dp_error *err)
{
    for (int32_t r = 0; r < adapt->world; r++) {
        int32_t at = 0;
        while (at < adapt->places_count &&
               (strcmp(adapt->places[at].name, plan->ranks[r].node) != 0 ||
                adapt->places[at].slot != plan->ranks[r].slot)) {
            at++;
        }
        if (at == adapt->places_count) {
            return dp_fail(
                err, DP_NOT_FOUND,
                "rank %d stands on slot %d of node %s, which is none of the job's and no "
                "free one",
                r, plan->ranks[r].slot, plan->ranks[r].node);
        }
        layout->place[r] = at;
    }
    return DP_OK;
}

static dp_status take_orders(struct adapt *adapt, const struct dp_plan *plan, struct layout *layout,
                             struct dp_error *err)
{
    dp_status status = DP_OK;
    for (int32_t b = 0; b < adapt->blocks && status == DP_OK; b++) {
        DP_CLEANUP(dp_schedule_deinit) struct dp_schedule schedule = {0};
        status = dp_plan_replica_schedule(plan, b * adapt->coupled, &schedule, err);
        layout->count[b] = dp_plan_replica_microbatches(plan, b * adapt->coupled);
        layout->own[b] = status == DP_OK ? dp_adapt_order_add(adapt, &schedule) : NULL;
    }
    return status;
}

dp_status dp_adapt_step(const struct dp_adapt_input *input, const struct dp_plan *plan,
                        double *ret_step_s, struct dp_error *err)
{
    DP_CLEANUP(dp_adapt_ground_deinit) struct adapt adapt;
    dp_status status = dp_adapt_ground(&adapt, input, err);
    if (status != DP_OK) {
        return status;
    }
    if (plan->pipeline != adapt.pipeline || plan->stages != adapt.stages ||
        dp_plan_world(plan) != adapt.world || dp_plan_coupled_replicas(plan) != adapt.coupled ||
        plan->layer_begin[plan->stages] != input->costs->layers) {
        return dp_fail(err, DP_INVALID, "the plan has other sizes than the one in force");
    }
    struct layout layout;
    dp_adapt_layout_copy(&adapt, &adapt.base, &layout);
    memcpy(layout.layer_begin, plan->layer_begin,
           ((size_t)plan->stages + 1) * sizeof(*layout.layer_begin));
    status = find_places(&adapt, plan, &layout, err);
    status = status == DP_OK ? take_orders(&adapt, plan, &layout, err) : status;
    if (status == DP_OK) {
        *ret_step_s = dp_adapt_layout_step(&adapt, &layout);
    }
    dp_adapt_layout_deinit(&layout);
    return status;
}
