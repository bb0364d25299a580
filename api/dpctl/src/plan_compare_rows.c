// Which sizes a comparison is on: those of the first schedule when all fit on them, else the best
// for it on which they do.

#include "plan_compare_rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"

// Sizes that are tried besides the first schedule's best.
enum { TRIES = 8 };

const struct row *plan_rows_first_legal(const struct row *rows, int count)
{
    for (int i = 0; i < count; i++) {
        if (rows[i].legal) {
            return &rows[i];
        }
    }
    return NULL;
}

static void rows_deinit(struct row *rows, int count)
{
    for (int i = 0; i < count; i++) {
        dp_plan_deinit(&rows[i].plan);
    }
}

void plan_rows_deinit(struct table *table)
{
    rows_deinit(table->rows, table->count);
    rows_deinit(table->own, table->count);
    free(table->names);
}

static void set_candidate(const struct dp_plan_candidate *c, struct dp_parallel_spec *parallel)
{
    parallel->pipeline = c->pipeline;
    parallel->data = c->data;
    parallel->expert = c->expert;
    parallel->tensor = c->tensor;
    parallel->context = c->context;
    parallel->expert_tensor = c->expert_tensor;
    parallel->microbatches = c->microbatches;
    parallel->micro_batch_size = c->micro_batch_size;
}

// The same sizes for all, so that only the schedule differs (and what memory makes it recompute).
static void set_sizes(const struct dp_plan *plan, struct dp_parallel_spec *parallel)
{
    const struct dp_plan_candidate sizes = {.pipeline = plan->pipeline,
                                            .data = plan->data,
                                            .expert = plan->expert,
                                            .tensor = plan->tensor,
                                            .context = plan->context,
                                            .expert_tensor = plan->expert_tensor,
                                            .microbatches = plan->microbatches,
                                            .micro_batch_size = plan->micro_batch_size};
    set_candidate(&sizes, parallel);
    if (plan->format != DP_FORMAT_AUTO) {
        DP_COPY_TEXT(parallel->precision, dp_format_text(plan->format));
    }
    if (plan->shard != DP_SHARD_AUTO) {
        DP_COPY_TEXT(parallel->shard, dp_shard_text(plan->shard));
    }
}

// Asks for row->name; `like` or `sizes` (or neither) say on which sizes.
static void ask(const struct table *table, const struct dp_plan *like,
                const struct dp_plan_candidate *sizes, struct row *row)
{
    DP_AUTO_FREE struct dp_job_spec *spec = dp_memdup(&table->question->spec, sizeof(*spec));
    if (like != NULL) {
        set_sizes(like, &spec->parallel);
    } else if (sizes != NULL) {
        set_candidate(sizes, &spec->parallel);
    }
    const struct dp_schedule_family *family = dp_schedule_family_find(row->name);
    if (family != NULL && family->virtual_max == 0) {
        spec->parallel.virtual_stages = 0; // it has no choice
    }
    DP_COPY_TEXT(spec->parallel.schedule, row->name);
    struct dp_error err = {0};
    row->legal = plan_question_ask(table->question, spec, false, &row->plan, &err) == DP_OK;
    if (!row->legal) {
        snprintf(row->note, sizeof(row->note), "%.*s", (int)strcspn(err.message, "\n"),
                 err.message);
    }
}

// Puts other rows in the place of the table's: the first one's plan is its own best.
static void take_rows(struct table *table, const struct row *rows)
{
    bool is_first = true;
    for (int i = 0; i < table->count; i++) {
        if (table->rows[i].legal && is_first) {
            table->own[i] = table->rows[i];
            is_first = false;
        } else {
            dp_plan_deinit(&table->rows[i].plan);
        }
        table->rows[i] = rows[i];
    }
    table->sizes = "common";
}

// Takes sizes over when every schedule that can be had at all is legal on them. Those that did not
// fit are asked first: they decide how parameters are shared, and mostly do not fit here either.
static bool try_sizes(struct table *table, const struct dp_plan_candidate *sizes)
{
    struct row *rows = dp_new_array(struct row, DP_COMPARED_SCHEDULES_MAX);
    const struct dp_plan *like = NULL;
    bool all = true;
    for (int i = 0; i < 2 * table->count && all; i++) {
        const struct row *before = &table->rows[i % table->count];
        struct row *row = &rows[i % table->count];
        row->name = before->name;
        if (before->legal != (i >= table->count)) {
            continue; // in the other round
        }
        if (!before->legal && !table->own[i].legal) {
            memcpy(row->note, before->note, sizeof(row->note));
            continue;
        }
        ask(table, like, sizes, row);
        all = row->legal;
        like = like == NULL ? &row->plan : like;
    }
    if (all) {
        take_rows(table, rows);
    } else {
        rows_deinit(rows, table->count);
    }
    free(rows);
    return all;
}

static bool is_like(const struct dp_plan_candidate *a, const struct dp_plan_candidate *b)
{
    return a->pipeline == b->pipeline && a->data == b->data && a->expert == b->expert &&
           a->tensor == b->tensor && a->context == b->context &&
           a->expert_tensor == b->expert_tensor && a->microbatches == b->microbatches &&
           a->micro_batch_size == b->micro_batch_size;
}

// The candidates of a plan by step, each size once; the plan's own first.
static void find_common(struct table *table, const struct dp_plan *plan, const char *name)
{
    // The table's plans go when sizes are taken over.
    DP_AUTO_FREE struct dp_plan_candidate *sizes =
        dp_new_array(struct dp_plan_candidate, plan->candidates_count);
    size_t count = 0;
    for (size_t i = 0; i < plan->candidates_count && count < TRIES; i++) {
        const struct dp_plan_candidate *c = &plan->candidates[i];
        bool is_new = c->legal && strcmp(c->schedule, name) == 0;
        for (size_t k = 0; k < count && is_new; k++) {
            is_new = !is_like(&sizes[k], c);
        }
        if (is_new) {
            sizes[count++] = *c;
        }
    }
    for (size_t i = 0; i < count && strcmp(table->sizes, "common") != 0; i++) {
        try_sizes(table, &sizes[i]);
    }
}

// Some are not legal on the first one's sizes: looks for sizes on which all are that can be had at
// all, first among the best of the first, then among the others' own.
static void widen(struct table *table)
{
    bool any = false;
    for (int i = 0; i < table->count; i++) {
        struct row *own = &table->own[i];
        own->name = table->rows[i].name;
        if (!table->rows[i].legal) {
            ask(table, NULL, NULL, own);
            any = any || own->legal;
        }
    }
    if (!any) {
        return;
    }
    const struct row *first = plan_rows_first_legal(table->rows, table->count);
    find_common(table, &first->plan, first->name);
    for (int i = 0; i < table->count && strcmp(table->sizes, "common") != 0; i++) {
        if (table->own[i].legal) {
            find_common(table, &table->own[i].plan, table->own[i].name);
        }
    }
    for (int i = 0; i < table->count; i++) {
        if (!table->own[i].legal && table->rows[i].legal) {
            ask(table, NULL, NULL, &table->own[i]);
        }
    }
}

static dp_status read_names(struct table *table, struct dp_error *err)
{
    char *save = NULL;
    for (char *name = strtok_r(table->names, ",", &save); name != NULL;
         name = strtok_r(NULL, ",", &save)) {
        if (strcmp(name, "auto") != 0 && dp_schedule_family_find(name) == NULL) {
            const struct dp_schedule_params params = {.pipeline = 2, .microbatches = 4};
            return dp_schedule_check(name, &params, err); // says which there are
        }
        bool is_known = false;
        for (int i = 0; i < table->count; i++) {
            is_known = is_known || strcmp(table->rows[i].name, name) == 0;
        }
        if (!is_known && table->count == DP_COMPARED_SCHEDULES_MAX) {
            return dp_fail(err, DP_USAGE, "--compare takes at most %d schedules",
                           DP_COMPARED_SCHEDULES_MAX);
        }
        if (!is_known) {
            table->rows[table->count++].name = name;
        }
    }
    return table->count > 0 ? DP_OK : dp_fail(err, DP_USAGE, "--compare names no schedule");
}

dp_status plan_rows_fill(struct table *table, struct dp_error *err)
{
    table->sizes = "first";
    dp_status status = read_names(table, err);
    if (status != DP_OK) {
        return status;
    }
    int legal = 0;
    for (int i = 0; i < table->count; i++) {
        const struct row *like = plan_rows_first_legal(table->rows, i);
        ask(table, like == NULL ? NULL : &like->plan, NULL, &table->rows[i]);
        legal += table->rows[i].legal;
    }
    if (legal == table->count) {
        return DP_OK;
    }
    if (legal > 0) {
        widen(table);
        return DP_OK;
    }
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    for (int i = 0; i < table->count; i++) {
        dp_buf_printf(&text, "\n  %s: %s", table->rows[i].name, table->rows[i].note);
    }
    return dp_fail(err, DP_UNSCHEDULABLE, "none of the schedules can be had:%s", text.bytes);
}
