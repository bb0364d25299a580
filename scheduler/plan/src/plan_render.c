// A plan as text for people.

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "dp/plan.h"

// "1.23 s", "45.6 ms", "789 us".
static const char *format_seconds(char buffer[32], double seconds)
{
    if (seconds < 1e-9) {
        return "0 s";
    }
    if (seconds >= 1) {
        snprintf(buffer, 32, "%.3g s", seconds);
    } else if (seconds >= 1e-3) {
        snprintf(buffer, 32, "%.3g ms", seconds * 1e3);
    } else {
        snprintf(buffer, 32, "%.3g us", seconds * 1e6);
    }
    return buffer;
}

// "1.23 GiB", three digits.
static const char *format_bytes(char buffer[32], double bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    size_t unit = 0;
    while (bytes >= 999.5 && unit + 1 < sizeof(units) / sizeof(units[0])) {
        bytes /= 1024;
        unit++;
    }
    snprintf(buffer, 32,
             bytes < 9.995 && unit > 0   ? "%.2f %s"
             : bytes < 99.95 && unit > 0 ? "%.1f %s"
                                         : "%.0f %s",
             bytes, units[unit]);
    return buffer;
}

static void render_lines(const char *title, const char *text, struct dp_buf *out)
{
    if (text[0] == '\0') {
        return;
    }
    dp_buf_printf(out, "\n%s\n", title);
    while (*text != '\0') {
        size_t length = strcspn(text, "\n");
        dp_buf_printf(out, "  %.*s\n", (int)length, text);
        text += length + (text[length] == '\n');
    }
}

// "interleaved v4"
static const char *format_schedule(char buffer[DP_NAME_MAX + 16], const char *name, int32_t chunks)
{
    if (chunks > 0) {
        snprintf(buffer, DP_NAME_MAX + 16, "%s v%d", name, chunks);
    } else {
        snprintf(buffer, DP_NAME_MAX + 16, "%s", name);
    }
    return buffer;
}

static void render_choice(const struct dp_plan *plan, struct dp_buf *out)
{
    int32_t world = dp_plan_world(plan);
    char name[DP_NAME_MAX + 16];
    dp_buf_printf(
        out,
        "schedule %s: pipeline %d, expert %d, data %d (%d rank%s), %d micro-batch%s of %d "
        "sample%s\n",
        format_schedule(name, plan->schedule, plan->virtual_stages), plan->pipeline, plan->expert,
        plan->data, world, world == 1 ? "" : "s", plan->microbatches,
        plan->microbatches == 1 ? "" : "es", plan->micro_batch_size,
        plan->micro_batch_size == 1 ? "" : "s");
    dp_buf_puts(out, "layers per stage");
    for (int32_t s = 0; s < plan->stages; s++) {
        dp_buf_printf(out, " %d", plan->layer_begin[s + 1] - plan->layer_begin[s]);
    }
    dp_buf_puts(out, "\n");
}

static void render_step(const struct dp_plan *plan, struct dp_buf *out)
{
    const struct {
        const char *name;
        double seconds;
    } parts[] = {
        {"compute", plan->compute_s},     {"bubble", plan->bubble_s},
        {"communication", plan->comm_s},  {"gradient sums", plan->grad_sync_s},
        {"optimizer", plan->optimizer_s},
    };
    char text[32];
    dp_buf_printf(out, "\nstep %s", format_seconds(text, plan->step_s));
    if (plan->error_share > 0) {
        dp_buf_printf(out, " (+-%.0f %%)", plan->error_share * 100);
    }
    dp_buf_printf(out, ", %.0f tokens/s\n", plan->tokens_per_s);
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        dp_buf_printf(out, "  %-14s %9s  %5.1f %%\n", parts[i].name,
                      format_seconds(text, parts[i].seconds),
                      plan->step_s > 0 ? 100 * parts[i].seconds / plan->step_s : 0.0);
    }
    if (plan->cores_exceeded) {
        dp_buf_puts(out, "  some node has more ranks than cores: they take turns\n");
    }
}

// Of a large world only the first replica: the others repeat it on other nodes.
#define RANKS_SHOWN_MAX 64

static void render_ranks(const struct dp_plan *plan, struct dp_buf *out)
{
    int32_t world = dp_plan_world(plan);
    int32_t shown = world > RANKS_SHOWN_MAX ? plan->pipeline : world;
    size_t width = strlen("node");
    for (int32_t i = 0; i < shown; i++) {
        size_t length = strlen(plan->ranks[i].node);
        width = length > width ? length : width;
    }
    dp_buf_printf(out, "\nrank  %-*s  slot       busy     bubble  chunks  activations     memory\n",
                  (int)width, "node");
    for (int32_t i = 0; i < shown; i++) {
        const struct dp_plan_rank *rank = &plan->ranks[i];
        char busy[32], bubble[32], activations[32], memory[32];
        dp_buf_printf(out, "%4d  %-*s  %4d  %9s  %9s  %6d  %11s  %9s\n", i, (int)width, rank->node,
                      rank->slot, format_seconds(busy, rank->busy_s),
                      format_seconds(bubble, rank->bubble_s), rank->peak_chunks,
                      format_bytes(activations, rank->peak_activation_bytes),
                      format_bytes(memory, rank->memory_bytes));
    }
    if (shown < world) {
        dp_buf_printf(out, "and %d more replica%s of these %d ranks, up to slot %d of %s\n",
                      plan->data - 1, plan->data == 2 ? "" : "s", shown,
                      plan->ranks[world - 1].slot, plan->ranks[world - 1].node);
    }
}

static void render_candidates(const struct dp_plan *plan, size_t max, struct dp_buf *out)
{
    size_t count = max == 0 || plan->candidates_count < max ? plan->candidates_count : max;
    dp_buf_puts(out, "\nschedule            P   EP    D    M  size       step     memory  why\n");
    for (size_t i = 0; i < count; i++) {
        const struct dp_plan_candidate *c = &plan->candidates[i];
        char name[DP_NAME_MAX + 16], step[32], memory[32];
        dp_buf_printf(out, "%-16s %4d %4d %4d %4d  %4d  %9s  %9s  %s\n",
                      format_schedule(name, c->schedule, c->virtual_stages), c->pipeline, c->expert,
                      c->data, c->microbatches, c->micro_batch_size,
                      c->legal ? format_seconds(step, c->step_s) : "-",
                      c->legal ? format_bytes(memory, c->memory_max_bytes) : "-", c->reason);
    }
    if (count < plan->candidates_count) {
        dp_buf_printf(out, "and %zu more\n", plan->candidates_count - count);
    }
}

void dp_plan_render(const struct dp_plan *plan, size_t candidates_max, struct dp_buf *out)
{
    render_choice(plan, out);
    render_step(plan, out);
    render_ranks(plan, out);
    if (plan->candidates_count > 0) {
        render_candidates(plan, candidates_max, out);
    }
    render_lines("why", plan->explanation, out);
    render_lines("figures", plan->provenance, out);
}
