// What follows from the figures of a plan alone: why each candidate lost.

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/plan_text.h"
#include "plan_advice.h"

// A part of a step, and how much more of it a candidate has than the chosen one.
struct loss {
    const char *name;
    double more_s;
};
enum { LOSSES = 7 };

static int compare_losses(const void *a, const void *b)
{
    const struct loss *one = a, *two = b;
    return (one->more_s < two->more_s) - (one->more_s > two->more_s);
}

static const struct dp_plan_candidate *chosen_of(const struct dp_plan *plan)
{
    for (size_t i = 0; i < plan->candidates_count; i++) {
        if (plan->candidates[i].chosen) {
            return &plan->candidates[i];
        }
    }
    return NULL;
}

static bool fits(const struct dp_plan_candidate *candidate)
{
    return candidate->memory_limit_bytes <= 0 ||
           candidate->memory_max_bytes <= candidate->memory_limit_bytes;
}

// Rows that one expert computes on for one micro-batch: of all ranks that it serves.
static double expert_rows(const struct dp_plan *plan, const struct dp_model_spec *model,
                          const struct dp_plan_candidate *candidate)
{
    double samples = (double)plan->data * plan->microbatches * plan->micro_batch_size;
    double sequence = plan->tokens_per_s * plan->step_s / samples;
    double of_rank = candidate->micro_batch_size * sequence / fmax(1, candidate->context);
    return model != NULL && model->experts > 0
               ? of_rank * candidate->expert * model->top_k / model->experts
               : 0;
}

// Why work itself takes longer, as far as the choice tells.
static const char *compute_cause(const struct dp_plan *plan, const struct dp_model_spec *model,
                                 const struct dp_plan_candidate *best,
                                 const struct dp_plan_candidate *other, char buffer[96])
{
    double rows = expert_rows(plan, model, other), of_best = expert_rows(plan, model, best);
    if (rows > 0 && rows < 0.99 * of_best) {
        snprintf(buffer, 96, " (%.0f tokens an expert, not %.0f)", rows, of_best);
        return buffer;
    }
    if ((other->recompute & ~best->recompute) != 0) {
        char text[DP_NAME_MAX];
        dp_recompute_text(other->recompute & ~best->recompute, text);
        snprintf(buffer, 96, " (recomputes %s)", text);
        return buffer;
    }
    return "";
}

static void put_losses(const struct dp_plan *plan, const struct dp_model_spec *model,
                       const struct dp_plan_candidate *best, const struct dp_plan_candidate *other,
                       struct dp_buf *out)
{
    struct loss losses[LOSSES] = {
        {"bubble", (other->bubble_s - other->hop_s) - (best->bubble_s - best->hop_s)},
        {"exposed all-to-all", other->exchange_s - best->exchange_s},
        {"hops", other->hop_s - best->hop_s},
        {"collectives", other->wait_s - best->wait_s},
        {"gradient sums", other->gradient_s - best->gradient_s},
        {"optimizer", other->optimizer_s - best->optimizer_s},
        {"compute", other->compute_s - best->compute_s},
    };
    qsort(losses, LOSSES, sizeof(losses[0]), compare_losses);
    double all = other->step_s - best->step_s;
    char text[DP_PLAN_WORD_MAX], cause[96];
    const char *separator = ": ";
    for (int i = 0; i < 2 && losses[i].more_s > 0.2 * fabs(all) && losses[i].more_s > 0; i++) {
        bool is_compute = strcmp(losses[i].name, "compute") == 0;
        dp_buf_printf(out, "%s%s +%s%s", separator, losses[i].name,
                      dp_plan_text_seconds(text, losses[i].more_s),
                      is_compute ? compute_cause(plan, model, best, other, cause) : "");
        separator = ", ";
    }
}

static char *reason_of(const struct dp_plan *plan, const struct dp_model_spec *model,
                       const struct dp_plan_candidate *best, const struct dp_plan_candidate *other)
{
    char needed[DP_PLAN_WORD_MAX], there[DP_PLAN_WORD_MAX], more[DP_PLAN_WORD_MAX];
    if (other->chosen) {
        return dp_strdup("chosen");
    }
    if (!other->legal) {
        return dp_strdup("not possible");
    }
    if (!fits(other)) {
        dp_plan_text_bytes(more, other->memory_max_bytes - other->memory_limit_bytes);
        return dp_asprintf("does not fit: rank %d needs %s, %s more than its %s",
                           other->memory_position,
                           dp_plan_text_bytes(needed, other->memory_max_bytes), more,
                           dp_plan_text_bytes(there, other->memory_limit_bytes));
    }
    struct dp_buf text = {0};
    double factor = best->step_s > 0 ? other->step_s / best->step_s : 1;
    if (fabs(factor - 1) < 5e-4) {
        dp_buf_puts(&text, "as fast; the simpler one was taken");
        return dp_buf_take(&text);
    }
    dp_buf_printf(&text, "%s%s", other->tied ? "tie, " : "",
                  dp_plan_text_more(more, other->step_s, best->step_s));
    if (factor < 1) {
        dp_buf_puts(&text, ", but not what the job sets");
        return dp_buf_take(&text);
    }
    put_losses(plan, model, best, other, &text);
    return dp_buf_take(&text);
}

void dp_plan_explain(struct dp_plan *plan, const struct dp_model_spec *model)
{
    const struct dp_plan_candidate *best = chosen_of(plan);
    for (size_t i = 0; best != NULL && i < plan->candidates_count; i++) {
        struct dp_plan_candidate *other = &plan->candidates[i];
        other->tied = other->legal && !other->chosen && fits(other) &&
                      other->step_s <= best->step_s * (1 + dp_plan_tie_share(plan));
        if (other->reason == NULL) {
            other->reason = reason_of(plan, model, best, other);
        }
    }
    struct dp_buf text = {0};
    dp_buf_puts(&text, plan->warnings == NULL ? "" : plan->warnings);
    if (model != NULL) {
        dp_plan_advise(plan, model, &text);
    }
    free(plan->warnings);
    plan->warnings = dp_buf_take(&text);
}
