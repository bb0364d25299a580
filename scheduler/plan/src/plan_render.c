// A plan as text for people: one screen of 100 columns.

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/plan_survival.h"
#include "dp/plan_text.h"

enum { COLUMNS = 100, SCREEN = 40 };

// "4 x 15, 1": of stages in order, fifteen with 4 layers and one with 1.
static void put_layers(const struct dp_plan *plan, struct dp_buf *out)
{
    const char *separator = "";
    for (int32_t s = 0; s < plan->stages;) {
        int32_t layers = plan->layer_begin[s + 1] - plan->layer_begin[s], run = 1;
        while (s + run < plan->stages &&
               plan->layer_begin[s + run + 1] - plan->layer_begin[s + run] == layers) {
            run++;
        }
        dp_buf_printf(out, "%s%d", separator, layers);
        if (run > 1) {
            dp_buf_printf(out, " x %d", run);
        }
        separator = ", ";
        s += run;
    }
}

static void put_strategy(const struct dp_plan *plan, struct dp_buf *out)
{
    struct dp_buf text = {0};
    dp_buf_printf(&text, "%d micro-batch%s of %d sample%s; layers ", plan->microbatches,
                  plan->microbatches == 1 ? "" : "es", plan->micro_batch_size,
                  plan->micro_batch_size == 1 ? "" : "s");
    put_layers(plan, &text);
    if (plan->format != DP_FORMAT_AUTO) {
        dp_buf_printf(&text, "; %s", dp_format_text(plan->format));
    }
    if (plan->shard != DP_SHARD_AUTO) {
        dp_buf_printf(&text, "; shard %s", dp_shard_text(plan->shard));
    }
    if (plan->recompute != 0) {
        char names[DP_NAME_MAX];
        dp_recompute_text(plan->recompute, names);
        dp_buf_printf(&text, "; recompute %s", names);
    }
    if (plan->sequence_parallel) {
        dp_buf_puts(&text, "; sequence parallel");
    }
    if (plan->comm_units > 0) {
        dp_buf_printf(&text, "; %d units communicate in pairs", plan->comm_units);
    }
    if (plan->imbalance > 1) {
        dp_buf_printf(&text, "; expert imbalance %.3g", plan->imbalance);
    }
    dp_plan_text_wrap("           ", text.bytes, COLUMNS, out);
    dp_buf_deinit(&text);
}

static void put_choice(const struct dp_plan *plan, struct dp_buf *out)
{
    char name[DP_NAME_MAX + 16];
    struct dp_buf text = {0};
    if (plan->model[0] != '\0') {
        dp_buf_printf(&text, "%s: ", plan->model);
    }
    dp_buf_printf(&text, "%s, pipeline %d, data %d, expert %d",
                  dp_plan_text_schedule(name, plan->schedule, plan->virtual_stages), plan->pipeline,
                  plan->data, plan->expert);
    const struct {
        const char *name;
        int32_t value;
    } sizes[] = {{"tensor", plan->tensor},
                 {"context", plan->context},
                 {"expert tensor", plan->expert_tensor}};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        if (sizes[i].value > 1) {
            dp_buf_printf(&text, ", %s %d", sizes[i].name, sizes[i].value);
        }
    }
    int32_t world = dp_plan_world(plan);
    if (plan->device[0] != '\0') {
        // Its software is named by what the plan rests on.
        int accelerator = (int)strcspn(plan->device, "@");
        dp_buf_printf(&text, " on %d x %.*s", world, accelerator, plan->device);
    } else {
        dp_buf_printf(&text, " on %d rank%s", world, world == 1 ? "" : "s");
    }
    dp_plan_text_wrap("schedule   ", text.bytes, COLUMNS, out);
    dp_buf_deinit(&text);
    put_strategy(plan, out);
}

struct part {
    const char *name;
    double seconds;
};

// "name 1.2 s (7 %)" of those that are something.
static void put_parts(const char *first, const struct part *parts, size_t count, double step_s,
                      struct dp_buf *out)
{
    struct dp_buf text = {0};
    char seconds[DP_PLAN_WORD_MAX];
    for (size_t i = 0; i < count; i++) {
        if (parts[i].seconds >= 1e-9) {
            double share = step_s > 0 ? 100 * parts[i].seconds / step_s : 0;
            dp_buf_printf(&text, "%s%s %s", text.length > 0 ? ", " : "", parts[i].name,
                          dp_plan_text_seconds(seconds, parts[i].seconds));
            if (share >= 1) {
                dp_buf_printf(&text, " (%.0f %%)", share);
            }
        }
    }
    if (text.length > 0) {
        dp_plan_text_wrap(first, text.bytes, COLUMNS, out);
    }
    dp_buf_deinit(&text);
}

static void put_step(const struct dp_plan *plan, struct dp_buf *out)
{
    char text[DP_PLAN_WORD_MAX];
    double rate = plan->tokens_per_s / dp_plan_world(plan);
    dp_buf_printf(out, "step       %s", dp_plan_text_seconds(text, plan->step_s));
    if (plan->error_share > 0) {
        dp_buf_printf(out, " +-%.0f %%", plan->error_share * 100);
    }
    dp_buf_printf(out, "; %s tokens/s", dp_plan_text_count(text, plan->tokens_per_s));
    dp_buf_printf(out, ", %s a day\n", dp_plan_text_count(text, plan->tokens_per_s * 86400));
    if (plan->mfu_causal > 0) {
        dp_buf_printf(out,
                      "MFU        %.1f %% with the causal half of attention, %.1f %% with the full "
                      "square",
                      100 * plan->mfu_causal, 100 * plan->mfu_noncausal);
        dp_buf_printf(out, plan->flops_causal > 0 ? " (%.0f, %.0f TFLOP/s)\n" : "\n",
                      plan->flops_causal * rate / 1e12, plan->flops_noncausal * rate / 1e12);
    }
    if (plan->positions == NULL) {
        const struct part sums[] = {{"compute", plan->compute_s},
                                    {"bubble", plan->bubble_s},
                                    {"communication", plan->comm_s},
                                    {"gradient sums", plan->grad_sync_s},
                                    {"optimizer", plan->optimizer_s}};
        put_parts("           ", sums, sizeof(sums) / sizeof(sums[0]), plan->step_s, out);
        return;
    }
    int32_t critical = dp_plan_critical_position(plan);
    const struct dp_plan_position *p = &plan->positions[critical];
    const struct part actions[] = {{"forward", p->forward_s},       {"backward", p->backward_s},
                                   {"input", p->input_s},           {"weight", p->weight_s},
                                   {"overlapped", p->overlapped_s}, {"bubble", p->bubble_s},
                                   {"gradients", p->gradient_s},    {"optimizer", p->optimizer_s}};
    const struct part inside[] = {{"compute", p->compute_s},
                                  {"exposed all-to-all", p->exchange_s},
                                  {"collectives", p->wait_s},
                                  {"hops", p->hop_s}};
    char first[32];
    snprintf(first, sizeof(first), "  rank %-4d", critical);
    put_parts(first, actions, sizeof(actions) / sizeof(actions[0]), plan->step_s, out);
    put_parts("    inside ", inside, sizeof(inside) / sizeof(inside[0]), plan->step_s, out);
    if (p->hidden_s > 1e-9) {
        dp_buf_printf(out, "           %s of all-to-all (%.0f %%) hide behind compute\n",
                      dp_plan_text_seconds(text, p->hidden_s),
                      100 * p->hidden_s / (p->hidden_s + p->exchange_s));
    }
    if (plan->cores_exceeded) {
        dp_buf_puts(out, "           some node has more ranks than cores: they take turns\n");
    }
}

// "16x128 e64", and what is not 1 of the rest.
static void put_sizes(const struct dp_plan_candidate *c, char *text, size_t size)
{
    int length = snprintf(text, size, "%dx%d e%d", c->pipeline, c->data, c->expert);
    const struct {
        const char *name;
        int32_t value;
    } more[] = {{"t", c->tensor}, {"c", c->context}, {"x", c->expert_tensor}};
    for (size_t i = 0; i < sizeof(more) / sizeof(more[0]); i++) {
        if (more[i].value > 1 && length > 0 && (size_t)length < size) {
            length += snprintf(text + length, size - (size_t)length, " %s%d", more[i].name,
                               more[i].value);
        }
    }
}

static void put_saved(const struct dp_plan *plan, double step_s, struct dp_buf *out)
{
    char text[DP_PLAN_WORD_MAX];
    double tokens = 1e12;
    double saved =
        dp_plan_gpu_hours(plan, step_s, tokens) - dp_plan_gpu_hours(plan, plan->step_s, tokens);
    dp_buf_printf(out, "%s (%.1f %%) %s", dp_plan_text_count(text, fabs(saved)),
                  100 * fabs(1 - plan->step_s / step_s), saved >= 0 ? "recovered" : "lost");
}

static bool has_same_sizes(const struct dp_plan *plan, const struct dp_plan_candidate *c)
{
    return c->pipeline == plan->pipeline && c->data == plan->data && c->expert == plan->expert &&
           c->microbatches == plan->microbatches && c->micro_batch_size == plan->micro_batch_size &&
           c->tensor == plan->tensor && c->context == plan->context &&
           c->expert_tensor == plan->expert_tensor && c->recompute == plan->recompute;
}

// Against 1F1B as it would be run instead, and with nothing but the schedule changed.
static void put_recovered(const struct dp_plan *plan, struct dp_buf *out)
{
    const struct dp_plan_candidate *best = dp_plan_best_of(plan, "1f1b");
    bool same = best != NULL && has_same_sizes(plan, best);
    char sizes[64], text[DP_PLAN_WORD_MAX];
    if (best != NULL) {
        put_sizes(best, sizes, sizeof(sizes));
        dp_buf_puts(out, "; ");
        put_saved(plan, best->step_s, out);
        dp_buf_printf(out, " against the best 1f1b (%s)", same ? "the same sizes" : sizes);
    }
    if (plan->baseline_step_s <= 0 || same) {
        return;
    }
    dp_buf_puts(out, best != NULL ? ", " : "; ");
    put_saved(plan, plan->baseline_step_s, out);
    dp_buf_puts(out,
                best != NULL ? " against it on the same sizes" : " against 1f1b on the same sizes");
    if (!dp_plan_baseline_fits(plan)) {
        dp_buf_printf(out, ", which does not fit (%s)",
                      dp_plan_text_bytes(text, plan->baseline_memory_bytes));
    }
}

static void put_cost(const struct dp_plan *plan, struct dp_buf *out)
{
    double hours = dp_plan_gpu_hours(plan, plan->step_s, 1e12);
    char text[DP_PLAN_WORD_MAX];
    if (hours <= 0) {
        return;
    }
    DP_CLEANUP(dp_buf_deinit) struct dp_buf line = {0};
    dp_buf_printf(&line, "%s GPU-hours per trillion tokens", dp_plan_text_count(text, hours));
    if (strcmp(plan->schedule, "1f1b") != 0) {
        put_recovered(plan, &line);
    }
    dp_plan_text_wrap("cost       ", line.bytes, COLUMNS, out);
}

static void put_memory(const struct dp_plan *plan, struct dp_buf *out)
{
    int32_t fullest = dp_plan_fullest_position(plan);
    char text[DP_PLAN_WORD_MAX];
    double least = INFINITY, most = 0;
    for (int32_t p = 0; p < plan->pipeline; p++) {
        double bytes = dp_plan_position_bytes(plan, p);
        least = fmin(least, bytes);
        most = fmax(most, bytes);
    }
    struct dp_buf line = {0};
    dp_plan_text_bytes(text, dp_plan_position_bytes(plan, fullest));
    if (plan->pipeline > 1) {
        dp_buf_printf(&line, "rank %d (of 0 to %d) is fullest: %s", fullest, plan->pipeline - 1,
                      text);
    } else {
        dp_buf_puts(&line, text);
    }
    if (plan->positions != NULL && plan->positions[fullest].memory_limit_bytes > 0) {
        dp_buf_printf(&line, " of %s",
                      dp_plan_text_bytes(text, plan->positions[fullest].memory_limit_bytes));
    }
    if (plan->pipeline > 1) {
        dp_buf_printf(&line, "; the others from %s", dp_plan_text_bytes(text, least));
        dp_buf_printf(&line, " to %s", dp_plan_text_bytes(text, most));
    }
    dp_plan_text_wrap("memory     ", line.bytes, COLUMNS, out);
    line.length = 0;
    if (plan->positions != NULL) {
        const struct dp_memory_parts *m = &plan->positions[fullest].memory;
        const struct {
            const char *name;
            double bytes;
        } parts[] = {{"weights", m->weights},        {"gradients", m->gradients},
                     {"optimizer", m->optimizer},    {"activations", m->activations},
                     {"until W", m->deferred},       {"running action", m->transient},
                     {"communication", m->exchange}, {"runtime", m->runtime}};
        for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
            if (parts[i].bytes >= 1) {
                dp_buf_printf(&line, "%s%s %s", line.length > 0 ? ", " : "", parts[i].name,
                              dp_plan_text_bytes(text, parts[i].bytes));
            }
        }
        dp_plan_text_wrap("    inside ", line.length > 0 ? line.bytes : "", COLUMNS, out);
    }
    dp_buf_deinit(&line);
}

// Nothing where this build does not know the plan's order.
static void put_survival(const struct dp_plan *plan, struct dp_buf *out)
{
    struct dp_plan_survival survival;
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    if (dp_plan_survival_of(plan, &survival, NULL) == DP_OK) {
        dp_plan_survival_text(plan, &survival, &text);
        const char *rest = text.bytes + strlen("tolerates ");
        dp_plan_text_wrap("tolerates  ", rest, COLUMNS, out);
    }
}

static void put_gains(const struct dp_plan *plan, struct dp_buf *out)
{
    struct dp_buf line = {0};
    char seconds[DP_PLAN_WORD_MAX], less[DP_PLAN_WORD_MAX];
    for (int32_t i = 0; i < plan->gains_count; i++) {
        const struct dp_plan_gain *gain = &plan->gains[i];
        if (gain->step_s > plan->step_s * (1 - 5e-4)) {
            continue; // buys nothing
        }
        dp_buf_printf(&line, "%s%s: +%.3g %% gives %s (%s)", line.length > 0 ? "; " : "",
                      gain->resource, 100 * gain->more_share,
                      dp_plan_text_seconds(seconds, gain->step_s),
                      dp_plan_text_more(less, gain->step_s, plan->step_s));
    }
    if (line.length > 0) {
        dp_plan_text_wrap("binds      ", line.bytes, COLUMNS, out);
    }
    dp_buf_deinit(&line);
}

static void put_candidate(const struct dp_plan_candidate *c, struct dp_buf *out)
{
    char name[DP_NAME_MAX + 16], step[DP_PLAN_WORD_MAX], memory[DP_PLAN_WORD_MAX], sizes[64];
    char batches[32], first[160];
    put_sizes(c, sizes, sizeof(sizes));
    snprintf(batches, sizeof(batches), "%dx%d", c->microbatches, c->micro_batch_size);
    snprintf(first, sizeof(first), "%-16.31s %-15s %8s %7s %8s  ",
             dp_plan_text_schedule(name, c->schedule, c->virtual_stages), sizes, batches,
             c->legal ? dp_plan_text_seconds(step, c->step_s) : "-",
             c->legal ? dp_plan_text_bytes(memory, c->memory_max_bytes) : "-");
    dp_plan_text_wrap(first, c->reason == NULL || c->reason[0] == '\0' ? "-" : c->reason, COLUMNS,
                      out);
}

static int lines_of(const struct dp_buf *text)
{
    int lines = 0;
    for (size_t i = 0; i < text->length; i++) {
        lines += text->bytes[i] == '\n';
    }
    return lines;
}

// Whether an earlier one differs in its batches or in what it recomputes alone.
static bool is_variant(const struct dp_plan *plan, size_t index)
{
    const struct dp_plan_candidate *c = &plan->candidates[index];
    for (size_t i = 0; i < index; i++) {
        const struct dp_plan_candidate *before = &plan->candidates[i];
        if (before->legal && strcmp(before->schedule, c->schedule) == 0 &&
            before->virtual_stages == c->virtual_stages && before->pipeline == c->pipeline &&
            before->data == c->data && before->expert == c->expert && before->tensor == c->tensor &&
            before->context == c->context) {
            return true;
        }
    }
    return false;
}

static bool leads_schedule(const struct dp_plan *plan, size_t index)
{
    for (size_t i = 0; i < index; i++) {
        if (strcmp(plan->candidates[i].schedule, plan->candidates[index].schedule) == 0) {
            return false;
        }
    }
    return true;
}

// Marks rows that fit on `lines` lines: the best of each schedule, then the fastest that differ in
// more than their batches. Returns how many.
static size_t pick_candidates(const struct dp_plan *plan, int lines, bool *ret_picked)
{
    size_t count = 0;
    int used = 0;
    DP_CLEANUP(dp_buf_deinit) struct dp_buf row = {0};
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < plan->candidates_count; i++) {
            const struct dp_plan_candidate *c = &plan->candidates[i];
            bool is_wanted = c->legal && (pass == 0 ? leads_schedule(plan, i)
                                                    : !ret_picked[i] && !is_variant(plan, i));
            if (c->chosen || !is_wanted) {
                continue;
            }
            row.length = 0;
            put_candidate(c, &row);
            if (count == 0 || used + lines_of(&row) <= lines) {
                ret_picked[i] = true;
                used += lines_of(&row);
                count++;
            }
        }
    }
    return count;
}

// At most `lines` of them and what they need besides; 0 = all.
static void put_candidates(const struct dp_plan *plan, int lines, struct dp_buf *out)
{
    size_t others = 0, ties = 0;
    for (size_t i = 0; i < plan->candidates_count; i++) {
        others += !plan->candidates[i].chosen;
        ties += plan->candidates[i].tied;
    }
    if (others == 0) {
        return;
    }
    DP_AUTO_FREE bool *picked = dp_new_array(bool, plan->candidates_count);
    size_t shown = lines == 0 ? others : pick_candidates(plan, lines, picked);
    dp_buf_puts(out, "\nrunner-up        PxD, expert     batches    step   memory  why it lost\n");
    for (size_t i = 0; i < plan->candidates_count; i++) {
        const struct dp_plan_candidate *c = &plan->candidates[i];
        if (!c->chosen && (lines == 0 || picked[i])) {
            put_candidate(c, out);
        }
    }
    if (shown < others) {
        dp_buf_printf(out, "and %zu more (--all)\n", others - shown);
    }
    if (ties > 0) {
        dp_buf_printf(out,
                      "%zu of all %s inside the error of %.0f %% of a ratio: a measurement may "
                      "turn the order\n",
                      ties, ties == 1 ? "is" : "are", 100 * dp_plan_tie_share(plan));
    }
}

// Lines of a text behind a label, each wrapped, on at most `lines` (0 = all) and one that says how
// many are left.
static void put_lines(const char *label, const char *text, int lines, struct dp_buf *out)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf row = {0}, line = {0};
    char first[16];
    int used = 0, left = 0;
    while (text != NULL && *text != '\0') {
        size_t length = strcspn(text, "\n");
        line.length = row.length = 0;
        dp_buf_printf(&line, "%.*s", (int)length, text);
        snprintf(first, sizeof(first), "%-11s", used == 0 ? label : "");
        dp_plan_text_wrap(first, line.bytes, COLUMNS, &row);
        if (lines == 0 || used == 0 || (left == 0 && used + lines_of(&row) <= lines)) {
            dp_buf_append(out, row.bytes, row.length);
            used += lines_of(&row);
        } else {
            left++;
        }
        text += length + (text[length] == '\n');
    }
    if (left > 0) {
        dp_buf_printf(out, "           and %d more (--all)\n", left);
    }
}

void dp_plan_render(const struct dp_plan *plan, bool all, struct dp_buf *out)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    put_lines("why", plan->explanation, all ? 0 : 5, &text);
    put_lines("warnings", plan->warnings, all ? 0 : 7, &text);
    put_lines("rests on", plan->provenance, all ? 0 : 2, &text);
    put_choice(plan, out);
    put_step(plan, out);
    put_cost(plan, out);
    put_memory(plan, out);
    put_survival(plan, out);
    put_gains(plan, out);
    // Five lines stand around the runners-up themselves.
    int left = SCREEN - lines_of(out) - lines_of(&text) - 5;
    put_candidates(plan, all ? 0 : left > 1 ? left : 1, out);
    dp_buf_puts(out, text.length == 0 ? "" : "\n");
    dp_buf_append(out, text.length == 0 ? "" : text.bytes, text.length);
}
