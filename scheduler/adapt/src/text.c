// Decisions as JSON and as a table.

#include <stdio.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/plan_text.h"
#include "internal.h"

static json_t *answer_json(const struct dp_adapt_answer *answer)
{
    json_t *json =
        json_pack("{s:s, s:b, s:b, s:f, s:s, s:s}", "answer", dp_adapt_kind_text(answer->kind),
                  "possible", answer->possible, "chosen", answer->chosen, "step_before_s",
                  answer->before_s, "action", answer->action, "reason", answer->reason);
    json_t *parts = json_array();
    for (int kind = 0; kind < DP_ADAPT_KIND_COUNT; kind++) {
        if ((answer->parts & (1u << kind)) != 0) {
            json_array_append_new(parts, json_string(dp_adapt_kind_text((dp_adapt_kind)kind)));
        }
    }
    json_object_set_new(json, "parts", parts);
    const struct {
        const char *key;
        double value;
    } figures[] = {{"step_after_s", answer->after_s},
                   {"gain_s", answer->before_s - answer->after_s},
                   {"cost_s", answer->cost_s},
                   {"net_gain_s", answer->net_s}};
    for (size_t i = 0; i < sizeof(figures) / sizeof(figures[0]); i++) {
        json_object_set_new(json, figures[i].key,
                            answer->possible ? json_real(figures[i].value) : json_null());
    }
    json_object_set_new(json, "wait_steps",
                        answer->possible ? json_integer(answer->wait_steps) : json_null());
    return json;
}

json_t *dp_adapt_to_json(const struct dp_adapt_answers *answers)
{
    json_t *list = json_array();
    for (int32_t i = 0; i < answers->count; i++) {
        json_array_append_new(list, answer_json(&answers->answers[i]));
    }
    const struct dp_adapt_answer *best = &answers->answers[answers->best];
    double lost = answers->healthy_s > 0 ? best->before_s / answers->healthy_s - 1 : 0;
    return json_pack("{s:s, s:f, s:f, s:f, s:I, s:I, s:s, s:o}", "schema", "dp.decision/1",
                     "step_healthy_s", answers->healthy_s, "step_now_s", best->before_s,
                     "slower_share", lost, "steps", (json_int_t)answers->steps, "simulations",
                     (json_int_t)answers->moves, "best", dp_adapt_kind_text(best->kind), "answers",
                     list);
}

static dp_status read_answer(const json_t *json, struct dp_adapt_answer *answer,
                             struct dp_error *err)
{
    const char *kind = "", *action = "", *reason = "";
    int possible = 0, chosen = 0;
    json_int_t wait_steps = 0;
    json_error_t where;
    if (json_unpack_ex((json_t *)json, &where, 0, "{s:s, s:b, s:b, s:F, s:s, s:s}", "answer", &kind,
                       "possible", &possible, "chosen", &chosen, "step_before_s", &answer->before_s,
                       "action", &action, "reason", &reason) != 0 ||
        (possible &&
         json_unpack_ex((json_t *)json, &where, 0, "{s:F, s:F, s:F, s:I}", "step_after_s",
                        &answer->after_s, "cost_s", &answer->cost_s, "net_gain_s", &answer->net_s,
                        "wait_steps", &wait_steps) != 0)) {
        return dp_fail(err, DP_INVALID, "an answer of a decision: %s", where.text);
    }
    if (!dp_adapt_kind_of(kind, &answer->kind)) {
        return dp_fail(err, DP_INVALID, "a decision has the answer \"%s\", which is none", kind);
    }
    size_t index = 0;
    const json_t *part = NULL;
    json_array_foreach(json_object_get(json, "parts"), index, part)
    {
        dp_adapt_kind of = DP_ADAPT_IGNORE;
        if (json_is_string(part) && dp_adapt_kind_of(json_string_value(part), &of)) {
            answer->parts |= 1u << of;
        }
    }
    answer->wait_steps = wait_steps;
    answer->possible = possible != 0;
    answer->chosen = chosen != 0;
    answer->action = dp_strdup(action);
    answer->reason = dp_strdup(reason);
    return DP_OK;
}

static dp_status read_answers(const json_t *json, struct dp_adapt_answers *answers,
                              struct dp_error *err)
{
    const char *schema = "", *best = "";
    json_int_t steps = 0, moves = 0;
    json_t *list = NULL;
    json_error_t where;
    if (json_unpack_ex((json_t *)json, &where, 0, "{s:s, s:F, s:I, s:I, s:s, s:o}", "schema",
                       &schema, "step_healthy_s", &answers->healthy_s, "steps", &steps,
                       "simulations", &moves, "best", &best, "answers", &list) != 0) {
        return dp_fail(err, DP_INVALID, "a decision: %s", where.text);
    }
    answers->steps = steps;
    answers->moves = moves;
    size_t count = json_array_size(list);
    if (strcmp(schema, "dp.decision/1") != 0 || count == 0 || count > DP_ADAPT_KIND_COUNT) {
        return dp_fail(err, DP_INVALID, "a decision has schema \"%.40s\" and %zu answers", schema,
                       count);
    }
    for (size_t i = 0; i < count; i++) {
        struct dp_adapt_answer *answer = &answers->answers[answers->count++];
        dp_status status = read_answer(json_array_get(list, i), answer, err);
        if (status != DP_OK) {
            return status;
        }
        if (strcmp(dp_adapt_kind_text(answer->kind), best) == 0) {
            answers->best = (int32_t)i;
        }
    }
    return DP_OK;
}

dp_status dp_adapt_from_json(const json_t *json, struct dp_adapt_answers *ret_answers,
                             struct dp_error *err)
{
    struct dp_adapt_answers answers = {0};
    dp_status status = read_answers(json, &answers, err);
    if (status != DP_OK) {
        dp_adapt_answers_deinit(&answers);
        return status;
    }
    *ret_answers = answers;
    return DP_OK;
}

static void put_answer(const struct dp_adapt_answer *answer, struct dp_buf *out)
{
    char step[DP_PLAN_WORD_MAX], cost[DP_PLAN_WORD_MAX], net[DP_PLAN_WORD_MAX];
    char more[DP_PLAN_WORD_MAX], first[160];
    snprintf(first, sizeof(first), "%s%-18s %8s %8s %8s %8s  ", answer->chosen ? "* " : "  ",
             dp_adapt_kind_text(answer->kind),
             answer->possible ? dp_plan_text_seconds(step, answer->after_s) : "-",
             answer->possible ? dp_plan_text_more(more, answer->after_s, answer->before_s) : "-",
             answer->possible ? dp_plan_text_seconds(cost, answer->cost_s) : "-",
             answer->possible ? dp_plan_text_seconds(net, answer->net_s) : "-");
    DP_CLEANUP(dp_buf_deinit) struct dp_buf words = {0};
    dp_buf_printf(&words, "%s%s%s", answer->action,
                  answer->action[0] != '\0' && answer->reason[0] != '\0' ? ": " : "",
                  answer->reason);
    dp_plan_text_wrap(first, words.bytes, 100, out);
}

void dp_adapt_render(const struct dp_adapt_answers *answers, struct dp_buf *out)
{
    const struct dp_adapt_answer *best = &answers->answers[answers->best];
    char now[DP_PLAN_WORD_MAX], healthy[DP_PLAN_WORD_MAX], more[DP_PLAN_WORD_MAX];
    dp_buf_printf(out, "step %s, %s against the %s without what is slow\n",
                  dp_plan_text_seconds(now, best->before_s),
                  dp_plan_text_more(more, best->before_s, answers->healthy_s),
                  dp_plan_text_seconds(healthy, answers->healthy_s));
    dp_buf_puts(out, "\n  answer                 step  against     once      net  what, and "
                     "why\n");
    for (int32_t i = 0; i < answers->count; i++) {
        put_answer(&answers->answers[i], out);
    }
    dp_buf_printf(out, "\nnet: what is saved over %lld steps, less what it costs once\n",
                  (long long)answers->steps);
}
