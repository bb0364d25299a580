// Decisions as JSON and as a table.

#include <stdio.h>
#include <string.h>

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
