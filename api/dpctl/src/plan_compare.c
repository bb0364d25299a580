// dpctl plan --compare: schedules side by side on the same sizes.

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/plan_text.h"
#include "dp/utf8.h"
#include "plan_compare_rows.h"

enum { COLUMNS = 100 };

static const struct row *first_legal(const struct table *table)
{
    return plan_rows_first_legal(table->rows, table->count);
}

static const struct row *find_row(const struct table *table, const char *name)
{
    for (int i = 0; i < table->count; i++) {
        if (strcmp(table->rows[i].name, name) == 0) {
            return &table->rows[i];
        }
    }
    return NULL;
}

static bool holds_twice(const struct dp_plan *plan)
{
    const struct dp_schedule_family *family = dp_schedule_family_find(plan->schedule);
    return family != NULL && family->directions == 2 && plan->pipeline > 1;
}

// What one rank holds, on average over the pipeline, and at most.
struct held {
    double dense, experts; // parameters
    double bytes, most;    // of their weights and gradients
};

static struct held held_of(const struct dp_plan *plan)
{
    struct held held = {0};
    for (int32_t p = 0; plan->positions != NULL && p < plan->pipeline; p++) {
        const struct dp_plan_position *position = &plan->positions[p];
        double bytes = position->memory.weights + position->memory.gradients;
        held.dense += position->held.dense / plan->pipeline;
        held.experts += position->held.experts / plan->pipeline;
        held.bytes += bytes / plan->pipeline;
        held.most = fmax(held.most, bytes);
    }
    return held;
}

// Of the second copy, on average; and what it would be if every rank held all experts of its
// stages.
static double copy_bytes(const struct dp_plan *plan)
{
    return holds_twice(plan) ? held_of(plan).bytes / 2 : 0;
}

static double unsplit_copy_bytes(const struct dp_plan *plan)
{
    struct held held = held_of(plan);
    double there = held.dense + held.experts, all = held.dense + held.experts * plan->expert;
    return there > 0 ? copy_bytes(plan) * all / there : 0;
}

static double bubble_s(const struct dp_plan *plan)
{
    return plan->positions == NULL ? plan->bubble_s
                                   : plan->positions[dp_plan_critical_position(plan)].bubble_s;
}

// Of 1F1B on the same sizes, 0 = unknown.
static double base_step_s(const struct table *table)
{
    const struct row *base = find_row(table, "1f1b");
    if (base != NULL && base->legal) {
        return base->plan.step_s;
    }
    const struct row *legal = first_legal(table);
    return legal->plan.baseline_step_s;
}

static json_t *row_json(const struct table *table, const struct row *row)
{
    const struct dp_plan *plan = &row->plan;
    double base = base_step_s(table), hours = dp_plan_gpu_hours(plan, plan->step_s, 1e6);
    double saved = base > 0 ? dp_plan_gpu_hours(plan, base, 1e6) - hours : 0;
    json_t *json =
        json_pack("{s:s, s:b, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "name", row->name,
                  "legal", 1, "step_time_s", plan->step_s, "bubble_s", bubble_s(plan),
                  "tokens_per_day", plan->tokens_per_s * 86400, "gpu_hours_per_million_tokens",
                  hours, "recovered_gpu_hours_per_million_tokens", saved,
                  "weights_and_gradients_bytes", held_of(plan).bytes, "second_copy_bytes",
                  copy_bytes(plan), "unsplit_second_copy_bytes", unsplit_copy_bytes(plan),
                  "memory_bytes", dp_plan_position_bytes(plan, dp_plan_fullest_position(plan)));
    DP_AUTO_JSON json_t *whole = dp_plan_to_json(plan);
    json_object_set(json, "chosen", json_object_get(whole, "chosen"));
    return json;
}

static json_t *listed_json(const struct table *table, int index)
{
    const struct row *row = &table->rows[index], *own = &table->own[index];
    json_t *json = row->legal ? row_json(table, row)
                              : json_pack("{s:s, s:b, s:s}", "name", row->name, "legal", 0,
                                          "reason", row->note);
    json_object_set_new(json, "own_best", own->legal ? row_json(table, own) : json_null());
    return json;
}

static void print_row(const struct table *table, const struct row *row, struct dpctl_table *cells)
{
    char text[32];
    dpctl_cell(cells, "%s", row->name);
    if (!row->legal) {
        for (int i = 0; i < cells->columns - 1; i++) {
            dpctl_cell(cells, "%s", "");
        }
        return;
    }
    const struct dp_plan *plan = &row->plan;
    double base = base_step_s(table), hours = dp_plan_gpu_hours(plan, plan->step_s, 1e6);
    dpctl_cell(cells, "%s", dpctl_seconds(text, plan->step_s));
    dpctl_cell(cells, "%.1f", 100 * bubble_s(plan) / plan->step_s);
    dpctl_cell(cells, "%.4g", hours);
    if (base > 0) {
        double saved = dp_plan_gpu_hours(plan, base, 1e6) - hours;
        double more = round(1000 * (1 - plan->step_s / base)) / 10;
        dpctl_cell(cells, "%.3g", fabs(saved) < 1e-9 * hours ? 0.0 : saved);
        dpctl_cell(cells, "%.1f %%", more == 0 ? 0.0 : more);
    } else {
        dpctl_cell(cells, "%s", "");
        dpctl_cell(cells, "%s", "");
    }
    dpctl_cell(cells, "%s", dpctl_bytes(text, held_of(plan).bytes));
    dpctl_cell(cells, "%s", holds_twice(plan) ? dpctl_bytes(text, copy_bytes(plan)) : "");
    dpctl_cell(cells, "%s",
               dpctl_bytes(text, dp_plan_position_bytes(plan, dp_plan_fullest_position(plan))));
    char recompute[DP_NAME_MAX];
    dp_recompute_text(plan->recompute, recompute);
    dpctl_cell(cells, "%s", recompute);
}

static void put_sizes(const struct dp_plan *plan, struct dp_buf *out)
{
    dp_buf_printf(out, "%s%spipeline %d, data %d, expert %d", plan->model,
                  plan->model[0] != '\0' ? ": " : "", plan->pipeline, plan->data, plan->expert);
    const struct {
        const char *name;
        int32_t value;
    } more[] = {{"tensor", plan->tensor},
                {"context", plan->context},
                {"expert tensor", plan->expert_tensor}};
    for (size_t i = 0; i < sizeof(more) / sizeof(more[0]); i++) {
        if (more[i].value > 1) {
            dp_buf_printf(out, ", %s %d", more[i].name, more[i].value);
        }
    }
    char batches[64], samples[64];
    dp_buf_printf(out, "; %s of %s%s%s\n",
                  dpctl_count(batches, (unsigned long long)plan->microbatches, "micro-batch"),
                  dpctl_count(samples, (unsigned long long)plan->micro_batch_size, "sample"),
                  plan->shard != DP_SHARD_AUTO ? "; shard " : "",
                  plan->shard != DP_SHARD_AUTO ? dp_shard_text(plan->shard) : "");
}

// What the second copy of a bidirectional schedule is made of, and what splitting experts saves.
static void put_copy(const struct dp_plan *plan, struct dp_buf *out)
{
    char copy[32], most[32], dense[32], experts[32], unsplit[32];
    struct held held = held_of(plan);
    dp_buf_printf(
        out,
        "%s holds every stage twice. The second copy is %s dense and %s expert parameters a "
        "rank,\n  %s of weights and gradients on average and %s at most",
        plan->schedule, dpctl_parameters(dense, held.dense / 2),
        dpctl_parameters(experts, held.experts / 2), dpctl_bytes(copy, copy_bytes(plan)),
        dpctl_bytes(most, held.most / 2));
    if (plan->expert > 1 && held.experts > 0) {
        dp_buf_printf(out,
                      ";\n  with all experts on every rank instead of split over %d it would be %s",
                      plan->expert, dpctl_bytes(unsplit, unsplit_copy_bytes(plan)));
    }
    dp_buf_printf(out, "\n");
}

static void print_clean(struct dp_buf *text)
{
    dp_utf8_clean(text->bytes, text->length, "\n");
    dpctl_print(text);
}

static void put_own(const struct dp_plan *plan, const char *name, struct dpctl_table *cells)
{
    char text[32];
    dpctl_cell(cells, "%s", name);
    dpctl_cell(cells, "%s", dpctl_seconds(text, plan->step_s));
    dpctl_cell(cells, "%.1f", 100 * bubble_s(plan) / plan->step_s);
    dpctl_cell(cells, "%.4g", dp_plan_gpu_hours(plan, plan->step_s, 1e6));
    dpctl_cell(cells, "%s",
               dpctl_bytes(text, dp_plan_position_bytes(plan, dp_plan_fullest_position(plan))));
    char sizes[96];
    int length =
        snprintf(sizes, sizeof(sizes), "%dx%d e%d", plan->pipeline, plan->data, plan->expert);
    if (plan->tensor > 1) {
        length += snprintf(sizes + length, sizeof(sizes) - (size_t)length, " t%d", plan->tensor);
    }
    if (plan->context > 1) {
        snprintf(sizes + length, sizeof(sizes) - (size_t)length, " c%d", plan->context);
    }
    dpctl_cell(cells, "%s", sizes);
    dpctl_cell(cells, "%dx%d", plan->microbatches, plan->micro_batch_size);
    dpctl_cell(cells, "%s", plan->shard != DP_SHARD_AUTO ? dp_shard_text(plan->shard) : "");
}

// Where sizes that all can have are not the best ones of each.
static void print_own(const struct table *table)
{
    static const char *const heads[] = {"schedule", "step",    "bubble %",      "GPU-h/Mtoken",
                                        "fullest",  "PxD, EP", "micro-batches", "shard"};
    struct dpctl_table cells = {.columns = 8, .right = 0x1e};
    bool any = false;
    for (int i = 0; i < table->count; i++) {
        const struct row *row = &table->own[i];
        any = any || row->legal;
        if (!row->legal) {
            continue;
        }
        if (cells.count == 0) {
            dpctl_heads(&cells, heads);
        }
        put_own(&row->plan, row->name, &cells);
    }
    if (any) {
        printf("each on its own best sizes%s:\n",
               strcmp(table->sizes, "common") == 0 ? "" : " (none were found on which all fit)");
        dpctl_table_print(&cells);
    }
    dpctl_table_deinit(&cells);
}

static void put_notes(const struct table *table, struct dp_buf *below)
{
    const struct row *base = find_row(table, "1f1b");
    const struct dp_plan *legal = &first_legal(table)->plan;
    char bytes[32];
    dp_buf_puts(below, "recovered: GPU-hours per million tokens against 1f1b on the same sizes");
    if ((base == NULL || !base->legal) && !dp_plan_baseline_fits(legal)) {
        dp_buf_printf(below, " (it needs %s and does not fit)",
                      dpctl_bytes(bytes, legal->baseline_memory_bytes));
    }
    dp_buf_puts(below, "; bytes of a rank, on average\n");
    for (int i = 0; i < table->count; i++) {
        if (!table->rows[i].legal) {
            char first[DP_NAME_MAX + 4];
            snprintf(first, sizeof(first), "%s: ", table->rows[i].name);
            dp_plan_text_wrap(first, table->rows[i].note, COLUMNS, below);
        } else if (holds_twice(&table->rows[i].plan)) {
            put_copy(&table->rows[i].plan, below);
        }
    }
}

static void print_table(const struct table *table)
{
    static const char *const heads[] = {"schedule",  "step",     "bubble %",      "GPU-h/Mtoken",
                                        "recovered", "share",    "weights+grads", "second copy",
                                        "fullest",   "recompute"};
    struct dpctl_table cells = {.columns = 10, .right = 0x1fe};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf above = {0}, below = {0};
    put_sizes(&first_legal(table)->plan, &above);
    if (strcmp(table->sizes, "common") == 0) {
        dp_buf_printf(&above, "sizes on which all fit: of those, the best for %s\n",
                      first_legal(table)->name);
    }
    print_clean(&above);
    dpctl_heads(&cells, heads);
    for (int i = 0; i < table->count; i++) {
        print_row(table, &table->rows[i], &cells);
    }
    dpctl_table_print(&cells);
    dpctl_table_deinit(&cells);
    put_notes(table, &below);
    print_clean(&below);
    print_own(table);
}

dp_status plan_compare(struct dpctl *ctl, const struct plan_request *request,
                       const struct plan_question *question, struct dp_error *err)
{
    DP_CLEANUP(plan_rows_deinit) struct table table = {.question = question};
    table.names = dp_strdup(request->compare);
    dp_status status = plan_rows_fill(&table, err);
    if (status != DP_OK) {
        return status;
    }
    if (!ctl->json && request->out != NULL) {
        return dp_fail(err, DP_USAGE, "--out of a comparison needs -o json");
    }
    if (!ctl->json) {
        print_table(&table);
        ctl->answered = true;
        return DP_OK;
    }
    json_t *rows = json_array();
    for (int i = 0; i < table.count; i++) {
        json_array_append_new(rows, listed_json(&table, i));
    }
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dpctl_write_json(json_pack("{s:o, s:s}", "schedules", rows, "sizes", table.sizes),
                     "dp.plan.compare/1", &text);
    return dpctl_write(ctl, request->out, &text, err);
}
