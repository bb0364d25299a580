// dpctl schedule compare: the same model under several families, and which one to take when all
// may use the same memory.

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "schedule_verbs.h"

struct row {
    const char *name; // as asked for
    bool legal;
    char note[512]; // why it is not legal; else which changes do nothing to it; mostly empty
    int32_t stages;
    double makespan, bubble_ratio, own_span_bubble_ratio, bubble_max;
    double activations;    // most on a rank, in micro-batches' activations on 1/P of the model
    double parameters;     // on a rank, in 1/P of the model
    size_t messages;       // between ranks, of one step
    const char *placement; // of what was searched for, with how; NULL = a family
    long long moves, best_at;
    int32_t chunks; // per rank
};

struct table {
    const struct schedule_request *request;
    struct row *rows;
    size_t count, capacity;
    double memory; // activations that fit a rank, in micro-batches
};

double schedule_parameters(const struct dp_schedule *schedule)
{
    int32_t most = 0;
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        int32_t stages[DP_RANK_STAGES_MAX];
        int32_t count = dp_schedule_rank_stages(schedule, rank, stages);
        most = count > most ? count : most;
    }
    return (double)most * schedule->pipeline / schedule->stages;
}

// Every edge between stages on different ranks carries each micro-batch there and its gradient
// back.
static size_t messages_of(const struct dp_schedule *schedule)
{
    size_t messages = 0;
    int32_t first = schedule->microbatches / 2;
    int32_t of_direction[2] = {schedule->microbatches, 0};
    if (schedule->directions == 2) {
        of_direction[0] = first;
        of_direction[1] = schedule->microbatches - first;
    }
    for (int32_t stage = 1; stage < schedule->stages; stage++) {
        for (int direction = 0; direction < schedule->directions; direction++) {
            const int32_t *here = &schedule->placement[2 * stage + direction];
            messages += here[0] == here[-2] ? 0 : 2 * (size_t)of_direction[direction];
        }
    }
    return messages;
}

static void fill_row(const struct schedule_subject *subject, const struct dp_sim_result *result,
                     struct row *row)
{
    const struct dp_schedule *schedule = &subject->schedule;
    row->legal = true;
    row->stages = schedule->stages;
    row->makespan = result->makespan;
    row->bubble_ratio = dp_sim_bubble_ratio(result);
    row->own_span_bubble_ratio = dp_sim_own_span_bubble_ratio(result);
    row->parameters = schedule_parameters(schedule);
    row->messages = messages_of(schedule);
    for (int32_t r = 0; r < result->pipeline; r++) {
        const struct dp_sim_rank *rank = &result->ranks[r];
        row->bubble_max = rank->bubble > row->bubble_max ? rank->bubble : row->bubble_max;
        row->activations =
            rank->peak_activations > row->activations ? rank->peak_activations : row->activations;
    }
    if (subject->found != NULL) {
        row->placement = schedule_placement_name(schedule);
        row->chunks = schedule->stages / schedule->pipeline;
        row->moves = subject->found->moves;
        row->best_at = subject->found->best_at;
    }
    const char *notes = subject->notes.length > 0 ? subject->notes.bytes : "";
    snprintf(row->note, sizeof(row->note), "%.*s", (int)strcspn(notes, "\n"), notes);
}

// What is asked of one family. `auto` gets the memory that all are compared at, and no placement
// that holds parameters twice.
static struct schedule_request request_for(const struct schedule_request *request, const char *name)
{
    struct schedule_request own = *request;
    const struct dp_schedule_family *family = dp_schedule_family_find(name);
    if (family != NULL && family->virtual_max == 0) {
        own.virtual_stages = 0;
    }
    if (family == NULL) {
        own.memory_cap = own.memory * own.activation_bytes;
        own.placement = own.placement != NULL ? own.placement : "single";
    }
    return own;
}

static dp_status compare_one(const struct schedule_request *request, const char *name,
                             struct row *ret_row, struct dp_error *err)
{
    const struct schedule_request own = request_for(request, name);
    DP_CLEANUP(schedule_subject_deinit) struct schedule_subject subject = {0};
    DP_CLEANUP(dp_sim_result_deinit) struct dp_sim_result result = {0};
    dp_status status = schedule_obtain(&own, name, NULL, &subject, err);
    if (status == DP_OK) {
        status = dp_simulate(&subject.schedule, &subject.costs, false, &result, err);
    }
    if (status == DP_OK) {
        *ret_row = (struct row){.name = name};
        fill_row(&subject, &result, ret_row);
    }
    return status;
}

// A family that cannot do (P, M) says why instead.
static void add_row(struct table *table, const char *name)
{
    if (table->count == table->capacity) {
        table->capacity = 2 * table->capacity + 16;
        table->rows = dp_realloc(table->rows, table->capacity, sizeof(*table->rows));
    }
    struct row *row = &table->rows[table->count++];
    struct dp_error err = {0};
    if (compare_one(table->request, name, row, &err) != DP_OK) {
        *row = (struct row){.name = name};
        // Of problems in a file, the first line of the first.
        const char *why = strncmp(err.message, "error: ", 7) == 0 ? err.message + 7 : err.message;
        snprintf(row->note, sizeof(row->note), "%.*s", (int)strcspn(why, "\n"), why);
    }
}

static bool has_row(const struct table *table, const char *name)
{
    for (size_t i = 0; i < table->count; i++) {
        if (strcmp(table->rows[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

static bool has_legal_row(const struct table *table)
{
    for (size_t i = 0; i < table->count; i++) {
        if (table->rows[i].legal) {
            return true;
        }
    }
    return false;
}

static dp_status add_named(struct table *table, char *names, struct dp_error *err)
{
    char *save = NULL;
    for (char *name = strtok_r(names, ",", &save); name != NULL;
         name = strtok_r(NULL, ",", &save)) {
        if (strcmp(name, "auto") != 0 && dp_schedule_family_find(name) == NULL) {
            struct dp_schedule_params params = {.pipeline = 2, .microbatches = 4};
            return dp_schedule_check(name, &params, err); // says which there are
        }
        if (!has_row(table, name)) {
            add_row(table, name);
        }
    }
    return table->count > 0 ? DP_OK
                            : dp_fail(err, DP_USAGE, "--schedules \"%s\" names no schedule",
                                      table->request->schedules);
}

static void add_all(struct table *table)
{
    size_t count;
    const struct dp_schedule_family *families = dp_schedule_families(&count);
    for (size_t i = 0; i < count; i++) {
        add_row(table, families[i].name);
    }
    add_row(table, "auto");
}

// The fastest that needs no more activations than `memory`, nor more parameters than one copy.
static const struct row *best_at_equal_memory(const struct table *table)
{
    const struct row *best = NULL;
    for (size_t i = 0; i < table->count; i++) {
        const struct row *row = &table->rows[i];
        bool fits =
            row->legal && row->activations <= table->memory * (1 + 1e-9) && row->parameters <= 1;
        if (fits && (best == NULL || row->makespan < best->makespan)) {
            best = row;
        }
    }
    return best;
}

// GPU-hours of a million tokens, given what 1F1B reaches; 0 when nothing was said of it.
static double gpu_hours(const struct schedule_request *request, double makespan, double of_1f1b)
{
    double rate = request->tokens_per_s;
    if (rate <= 0 && request->step_s > 0) {
        rate = request->tokens_per_step / request->step_s;
    }
    double gpus = request->gpus > 0 ? request->gpus : request->pipeline;
    return rate > 0 && of_1f1b > 0 ? gpus * 1e6 / (rate * of_1f1b / makespan) / 3600 : 0;
}

// Of messages, against 1F1B.
static double volume_of(const struct row *row, const struct row *base)
{
    return base->messages > 0 ? (double)row->messages / (double)base->messages : 1.0;
}

static json_t *row_json(const struct table *table, const struct row *row, const struct row *base)
{
    if (!row->legal) {
        return json_pack("{s:s, s:b, s:s}", "name", row->name, "legal", 0, "reason", row->note);
    }
    json_t *json = json_pack(
        "{s:s, s:b, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:I}", "name", row->name, "legal", 1,
        "stages", (int)row->stages, "makespan", row->makespan, "bubble_ratio", row->bubble_ratio,
        "own_span_bubble_ratio", row->own_span_bubble_ratio, "utilisation", 1 - row->bubble_ratio,
        "bubble_max", row->bubble_max, "peak_activations", row->activations, "parameters",
        row->parameters, "p2p_messages", (json_int_t)row->messages);
    if (base->legal) {
        json_object_set_new(json, "p2p_volume", json_real(volume_of(row, base)));
        json_object_set_new(json, "time_against_1f1b",
                            json_real(base->makespan > 0 ? row->makespan / base->makespan : 1.0));
    }
    if (row->placement != NULL) {
        json_object_update_new(
            json, json_pack("{s:I, s:I, s:I, s:s, s:i, s:f}", "moves", (json_int_t)row->moves,
                            "seed", (json_int_t)table->request->seed, "best_at",
                            (json_int_t)row->best_at, "placement", row->placement, "virtual",
                            (int)row->chunks, "memory_cap", table->memory));
    }
    if (row->note[0] != '\0') {
        json_object_set_new(json, "note", json_string(row->note));
    }
    double hours = gpu_hours(table->request, row->makespan, base->makespan);
    if (hours > 0) {
        double saved = gpu_hours(table->request, base->makespan, base->makespan) - hours;
        json_object_set_new(json, "gpu_hours_per_million_tokens", json_real(hours));
        json_object_set_new(json, "gpu_hours_saved_against_1f1b", json_real(saved));
    }
    return json;
}

static json_t *answer_json(const struct schedule_request *request, const struct table *table,
                           const struct row *base)
{
    json_t *rows = json_array();
    for (size_t i = 0; i < table->count; i++) {
        json_array_append_new(rows, row_json(table, &table->rows[i], base));
    }
    const struct row *best = best_at_equal_memory(table);
    return json_pack("{s:o, s:i, s:i, s:o, s:{s:f, s:f, s:s?}}", "request",
                     schedule_request_json(request), "pipeline", (int)request->pipeline,
                     "microbatches", (int)request->microbatches, "schedules", rows, "equal_memory",
                     "activations", table->memory, "parameters", 1.0, "best",
                     best != NULL ? best->name : NULL);
}

static void print_note(struct dpctl_table *cells, const struct row *row)
{
    char tried[64];
    if (row->placement == NULL) {
        dpctl_cell(cells, "%s", row->note);
        return;
    }
    dpctl_cell(cells, "%s placement, %s tried%s%s", row->placement,
               dpctl_count(tried, (unsigned long long)row->moves, "order"),
               row->note[0] != '\0' ? "; " : "", row->note);
}

static void print_row(struct dpctl_table *cells, const struct table *table, const struct row *row,
                      const struct row *base, bool with_hours)
{
    dpctl_cell(cells, "%s", row->name);
    if (!row->legal) {
        for (int i = 0; i < cells->columns - 2; i++) {
            dpctl_cell(cells, "%s", "");
        }
        dpctl_cell(cells, "%s", row->note);
        return;
    }
    dpctl_cell(cells, "%d", (int)row->stages);
    dpctl_cell(cells, "%.6g", row->makespan);
    if (base->legal && base->makespan > 0) {
        // Without the sign of what rounds to nothing.
        double more = round(1000 * (row->makespan / base->makespan - 1)) / 10;
        dpctl_cell(cells, "%+.1f %%", more == 0 ? 0.0 : more);
    } else {
        dpctl_cell(cells, "%s", "");
    }
    dpctl_cell(cells, "%.2f", 100 * row->bubble_ratio);
    dpctl_cell(cells, "%.2f", 100 * (1 - row->bubble_ratio));
    dpctl_cell(cells, "%.4g", row->activations);
    dpctl_cell(cells, "%.3gx", row->parameters);
    if (base->legal) {
        dpctl_cell(cells, "%.3gx", volume_of(row, base));
    } else {
        dpctl_cell(cells, "%s", "");
    }
    if (with_hours) {
        dpctl_cell(cells, "%.4g", gpu_hours(table->request, row->makespan, base->makespan));
    }
    print_note(cells, row);
}

static void print_best(const struct table *table, const struct row *base)
{
    printf("at equal memory (%.4g micro-batches' activations, one copy of the parameters): ",
           table->memory);
    const struct row *best = best_at_equal_memory(table);
    if (best == NULL) {
        printf("none fits\n");
    } else if (base->legal && base->makespan > best->makespan) {
        printf("%s, %.2f %% less time than 1f1b\n", best->name,
               100 * (1 - best->makespan / base->makespan));
    } else {
        printf("%s\n", best->name);
    }
    if (!base->legal) {
        printf("1f1b, which others are compared with, cannot be had: %s\n", base->note);
    }
}

static void print_answer(const struct table *table, const struct row *base)
{
    bool with_hours = gpu_hours(table->request, base->makespan, base->makespan) > 0;
    static const char *const plain[] = {"SCHEDULE", "STAGES",   "MAKESPAN", "TIME", "BUBBLE_%",
                                        "UTIL_%",   "PEAK_ACT", "PARAMS",   "P2P",  "NOTE"};
    static const char *const hours[] = {"SCHEDULE", "STAGES",     "MAKESPAN", "TIME",
                                        "BUBBLE_%", "UTIL_%",     "PEAK_ACT", "PARAMS",
                                        "P2P",      "GPU_H/MTOK", "NOTE"};
    DP_CLEANUP(dpctl_table_deinit)
    struct dpctl_table cells = {.columns = with_hours ? 11 : 10,
                                .right = with_hours ? 0x3fe : 0x1fe};
    dpctl_heads(&cells, with_hours ? hours : plain);
    for (size_t i = 0; i < table->count; i++) {
        print_row(&cells, table, &table->rows[i], base, with_hours);
    }
    dpctl_table_print(&cells);
    printf(
        "MAKESPAN in seconds; TIME and P2P (messages between ranks) against 1f1b. Of the rank with "
        "most:\nPEAK_ACT, activations in micro-batches on 1/P of the model, and PARAMS, in 1/P of "
        "the model.\n");
    print_best(table, base);
}

static dp_status check_request(const struct schedule_request *request, struct dp_error *err)
{
    if (request->pipeline == 0 || request->microbatches == 0) {
        return dp_fail(err, DP_USAGE, "say -P RANKS and -M MICROBATCHES");
    }
    if ((request->step_s > 0) != (request->tokens_per_step > 0)) {
        return dp_fail(err, DP_USAGE, "--step-s and --tokens-per-step belong together");
    }
    if (request->step_s > 0 && request->tokens_per_s > 0) {
        return dp_fail(err, DP_USAGE, "give --tokens-per-s, or --step-s with --tokens-per-step");
    }
    if (request->gpus > 0 && request->step_s <= 0 && request->tokens_per_s <= 0) {
        return dp_fail(err, DP_USAGE,
                       "--gpus is for GPU-hours, which need --tokens-per-s, or --step-s with "
                       "--tokens-per-step");
    }
    return DP_OK;
}

dp_status schedule_compare(struct dpctl *ctl, const struct schedule_request *request,
                           struct dp_error *err)
{
    dp_status status = check_request(request, err);
    if (status != DP_OK) {
        return status;
    }
    struct schedule_request same_model = *request;
    same_model.same_model = true;
    // Activations are counted in micro-batches here, in a unit that up to 16 chunks per rank
    // divide.
    same_model.same_chunks = true;
    same_model.activation_bytes = same_model.weight_bytes = 720720;
    // Where 1F1B itself cannot take what is said of stages, others may.
    struct table base_table = {.request = &same_model};
    add_row(&base_table, "1f1b");
    const struct row base = base_table.rows[0];
    free(base_table.rows);
    // Micro-batches that 1F1B keeps.
    double of_1f1b = fmin(request->pipeline, request->microbatches);
    struct table table = {.memory = request->memory > 0 ? request->memory : of_1f1b};
    same_model.memory = table.memory;
    table.request = &same_model;
    DP_AUTO_FREE char *names = dp_strdup(request->schedules != NULL ? request->schedules : "");
    if (request->schedules == NULL) {
        add_all(&table);
    } else {
        status = add_named(&table, names, err);
    }
    if (status == DP_OK && !base.legal && !has_legal_row(&table)) {
        struct row unused;
        status = compare_one(&same_model, "1f1b", &unused, err); // says all that is wrong
    }
    if (status == DP_OK && ctl->json) {
        dpctl_print_json(ctl, answer_json(request, &table, &base), "dp.comparison/1");
    } else if (status == DP_OK) {
        print_answer(&table, &base);
    }
    free(table.rows);
    return status;
}
