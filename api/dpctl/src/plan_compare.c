// dpctl plan --compare: schedules side by side, all on the sizes that the first legal one gets.

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/plan_text.h"
#include "dp/utf8.h"
#include "plan_request.h"

enum { ROWS_MAX = 16, COLUMNS = 100 };

struct row {
    const char *name;
    bool legal;
    struct dp_plan plan; // when it is
    char note[1024];     // else why not
};

struct table {
    const struct plan_question *question;
    char *names; // owned; rows point into it
    struct row rows[ROWS_MAX];
    int count;
};

static void table_deinit(struct table *table)
{
    for (int i = 0; i < table->count; i++) {
        dp_plan_deinit(&table->rows[i].plan);
    }
    free(table->names);
}

static const struct row *first_legal(const struct table *table)
{
    for (int i = 0; i < table->count; i++) {
        if (table->rows[i].legal) {
            return &table->rows[i];
        }
    }
    return NULL;
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

// The same sizes for all, so that only the schedule differs (and what memory makes it recompute).
static void set_sizes(const struct dp_plan *plan, struct dp_parallel_spec *parallel)
{
    parallel->pipeline = plan->pipeline;
    parallel->data = plan->data;
    parallel->expert = plan->expert;
    parallel->tensor = plan->tensor;
    parallel->context = plan->context;
    parallel->expert_tensor = plan->expert_tensor;
    parallel->microbatches = plan->microbatches;
    parallel->micro_batch_size = plan->micro_batch_size;
    if (plan->format != DP_FORMAT_AUTO) {
        DP_COPY_TEXT(parallel->precision, dp_format_text(plan->format));
    }
    if (plan->shard != DP_SHARD_AUTO) {
        DP_COPY_TEXT(parallel->shard, dp_shard_text(plan->shard));
    }
}

static void add_row(struct table *table, const char *name)
{
    struct row *row = &table->rows[table->count];
    *row = (struct row){.name = name};
    DP_AUTO_FREE struct dp_job_spec *spec = dp_memdup(&table->question->spec, sizeof(*spec));
    const struct row *like = first_legal(table);
    if (like != NULL) {
        set_sizes(&like->plan, &spec->parallel);
    }
    const struct dp_schedule_family *family = dp_schedule_family_find(name);
    if (family != NULL && family->virtual_max == 0) {
        spec->parallel.virtual_stages = 0; // it has no choice
    }
    DP_COPY_TEXT(spec->parallel.schedule, name);
    struct dp_error err = {0};
    row->legal = plan_question_ask(table->question, spec, false, &row->plan, &err) == DP_OK;
    if (!row->legal) {
        snprintf(row->note, sizeof(row->note), "%.*s", (int)strcspn(err.message, "\n"),
                 err.message);
    }
    table->count++;
}

static dp_status add_rows(struct table *table, struct dp_error *err)
{
    char *save = NULL;
    for (char *name = strtok_r(table->names, ",", &save); name != NULL;
         name = strtok_r(NULL, ",", &save)) {
        if (strcmp(name, "auto") != 0 && dp_schedule_family_find(name) == NULL) {
            const struct dp_schedule_params params = {.pipeline = 2, .microbatches = 4};
            return dp_schedule_check(name, &params, err); // says which there are
        }
        if (table->count == ROWS_MAX) {
            return dp_fail(err, DP_USAGE, "--compare takes at most %d schedules", ROWS_MAX);
        }
        if (find_row(table, name) == NULL) {
            add_row(table, name);
        }
    }
    if (table->count == 0) {
        return dp_fail(err, DP_USAGE, "--compare names no schedule");
    }
    const struct row *legal = first_legal(table);
    if (legal != NULL) {
        return DP_OK;
    }
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    for (int i = 0; i < table->count; i++) {
        dp_buf_printf(&text, "\n  %s: %s", table->rows[i].name, table->rows[i].note);
    }
    return dp_fail(err, DP_UNSCHEDULABLE, "none of the schedules can be had:%s", text.bytes);
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
    if (!row->legal) {
        return json_pack("{s:s, s:b, s:s}", "name", row->name, "legal", 0, "reason", row->note);
    }
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
    dp_buf_printf(out, "; %s of %s\n",
                  dpctl_count(batches, (unsigned long long)plan->microbatches, "micro-batch"),
                  dpctl_count(samples, (unsigned long long)plan->micro_batch_size, "sample"));
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

static void print_table(const struct table *table)
{
    static const char *const heads[] = {"schedule",  "step",     "bubble %",      "GPU-h/Mtoken",
                                        "recovered", "share",    "weights+grads", "second copy",
                                        "fullest",   "recompute"};
    struct dpctl_table cells = {.columns = 10, .right = 0x1fe};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf above = {0}, below = {0};
    put_sizes(&first_legal(table)->plan, &above);
    print_clean(&above);
    dpctl_heads(&cells, heads);
    for (int i = 0; i < table->count; i++) {
        print_row(table, &table->rows[i], &cells);
    }
    dpctl_table_print(&cells);
    dpctl_table_deinit(&cells);
    dp_buf_puts(&below, "recovered: GPU-hours per million tokens against 1f1b on the same sizes; "
                        "bytes of a rank, on average\n");
    for (int i = 0; i < table->count; i++) {
        if (!table->rows[i].legal) {
            char first[DP_NAME_MAX + 4];
            snprintf(first, sizeof(first), "%s: ", table->rows[i].name);
            dp_plan_text_wrap(first, table->rows[i].note, COLUMNS, &below);
        } else if (holds_twice(&table->rows[i].plan)) {
            put_copy(&table->rows[i].plan, &below);
        }
    }
    print_clean(&below);
}

dp_status plan_compare(struct dpctl *ctl, const struct plan_request *request,
                       const struct plan_question *question, struct dp_error *err)
{
    DP_CLEANUP(table_deinit)
    struct table table = {.question = question, .names = dp_strdup(request->compare)};
    dp_status status = add_rows(&table, err);
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
        json_array_append_new(rows, row_json(&table, &table.rows[i]));
    }
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dpctl_write_json(json_pack("{s:o}", "schedules", rows), "dp.plan.compare/1", &text);
    return dpctl_write(ctl, request->out, &text, err);
}
