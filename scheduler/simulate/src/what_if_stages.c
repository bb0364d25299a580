// Tables of costs per stage. Rows are filed by the chunk or pair that they are about, so memory
// follows the schedule and not the file.

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/what_if.h"
#include "what_if_text.h"

enum {
    COLUMN_STAGE,
    COLUMN_RANK,
    COLUMN_BACKWARD_STAGE,
    COLUMN_F,
    COLUMN_B,
    COLUMN_I,
    COLUMN_W,
    COLUMN_FB,
    COLUMN_FI,
    COLUMN_ACTIVATION_BYTES,
    COLUMN_RELEASED_BYTES,
    COLUMN_COUNT
};

static const struct dp_csv_column columns[COLUMN_COUNT] = {
    [COLUMN_STAGE] = {"stage", true},
    [COLUMN_RANK] = {"rank", false},
    [COLUMN_BACKWARD_STAGE] = {"backward_stage", false},
    [COLUMN_F] = {"F", true},
    [COLUMN_B] = {"B", false},
    [COLUMN_I] = {"I", false},
    [COLUMN_W] = {"W", false},
    [COLUMN_FB] = {"FB", false},
    [COLUMN_FI] = {"FI", false},
    [COLUMN_ACTIVATION_BYTES] = {"activation_bytes", false},
    [COLUMN_RELEASED_BYTES] = {"released_at_i_bytes", false},
};

// Of a pair; 0 = not given, and a line of 0 = no row.
struct pair_row {
    int line;
    double fb, fi;
};

struct chunk_row {
    int line;
    struct what_if_chunk chunk;
    struct pair_row pair; // for every pair whose forward part this is
    bool bytes;
    uint64_t activation_bytes, released_at_i_bytes;
};

// The two ways to name a chunk: every copy of a stage, or the copy on one rank.
struct stage_table {
    const struct dp_schedule *schedule;
    int32_t slots;
    int8_t *slot;              // [pipeline][stages]; -1 = the rank does not hold the stage
    struct chunk_row *any;     // [stages]
    struct chunk_row *own;     // [pipeline][slots]
    struct pair_row *any_pair; // [pipeline][slots][slots]
    struct pair_row *own_pair;
    struct dp_diags diags;
};

struct row {
    int line;
    struct dp_csv_cell cells[COLUMN_COUNT];
    bool given[COLUMN_COUNT];            // the column is there and the cell not blank
    int32_t stage, rank, backward_stage; // rank -1 = every copy
};

static int8_t *new_slots(const struct dp_schedule *schedule)
{
    size_t row = (size_t)schedule->stages;
    size_t ranks = (size_t)schedule->pipeline;
    int8_t *slots = dp_new_array(int8_t, ranks * row);
    memset(slots, -1, ranks * row);
    for (size_t rank = 0; rank < ranks; rank++) {
        int32_t stages[DP_RANK_STAGES_MAX];
        int32_t count = dp_schedule_rank_stages(schedule, (int32_t)rank, stages);
        for (int32_t slot = 0; slot < count; slot++) {
            slots[rank * row + (size_t)stages[slot]] = (int8_t)slot;
        }
    }
    return slots;
}

static int32_t slot_of(const struct stage_table *table, int32_t rank, int32_t stage)
{
    return table->slot[rank * table->schedule->stages + stage];
}

static bool read_index(const struct row *row, int column, int32_t count, struct dp_diags *diags,
                       int32_t *ret_index)
{
    return dp_what_if_index(&row->cells[column], column == COLUMN_RANK ? "rank" : "stage", count,
                            diags, row->line, ret_index);
}

static bool read_seconds(const struct row *row, int column, struct dp_diags *diags,
                         double *ret_seconds)
{
    *ret_seconds = 0;
    return !row->given[column] ||
           dp_what_if_seconds(&row->cells[column], diags, row->line, ret_seconds);
}

static bool read_bytes(const struct row *row, int column, struct dp_diags *diags,
                       uint64_t *ret_bytes)
{
    double value;
    const struct dp_csv_cell *cell = &row->cells[column];
    if (!dp_csv_number(cell, &value) || value < 0 || value > 0x1p53 || value != floor(value)) {
        dp_diags_add(diags, row->line, cell->column, NULL,
                     "\"%.*s\" is no number of bytes: a whole number from 0", dp_csv_shown(cell),
                     cell->text);
        return false;
    }
    *ret_bytes = (uint64_t)value;
    return true;
}

// FB and FI of the row: of one pair, or of every pair of its stage's forward.
static bool read_pair(const struct row *row, struct dp_diags *diags, struct pair_row *ret_pair)
{
    bool good = read_seconds(row, COLUMN_FB, diags, &ret_pair->fb);
    good = read_seconds(row, COLUMN_FI, diags, &ret_pair->fi) && good;
    for (int column = COLUMN_FB; column <= COLUMN_FI && good; column++) {
        if (row->given[column] && (column == COLUMN_FB ? ret_pair->fb : ret_pair->fi) == 0) {
            dp_diags_add(diags, row->line, row->cells[column].column,
                         "leave it blank when nothing overlaps", "%s: a pair takes time",
                         columns[column].name);
            good = false;
        }
    }
    ret_pair->line = row->line;
    return good;
}

static bool read_chunk_bytes(const struct row *row, struct dp_diags *diags, struct chunk_row *chunk)
{
    chunk->bytes = row->given[COLUMN_ACTIVATION_BYTES];
    if (!chunk->bytes) {
        if (row->given[COLUMN_RELEASED_BYTES]) {
            dp_diags_add(diags, row->line, row->cells[COLUMN_RELEASED_BYTES].column, NULL,
                         "released_at_i_bytes without activation_bytes");
            return false;
        }
        return true;
    }
    if (!read_bytes(row, COLUMN_ACTIVATION_BYTES, diags, &chunk->activation_bytes)) {
        return false;
    }
    chunk->released_at_i_bytes = chunk->activation_bytes;
    if (row->given[COLUMN_RELEASED_BYTES] &&
        !read_bytes(row, COLUMN_RELEASED_BYTES, diags, &chunk->released_at_i_bytes)) {
        return false;
    }
    if (chunk->released_at_i_bytes > chunk->activation_bytes) {
        dp_diags_add(diags, row->line, row->cells[COLUMN_RELEASED_BYTES].column, NULL,
                     "I cannot release %" PRIu64 " bytes of %" PRIu64, chunk->released_at_i_bytes,
                     chunk->activation_bytes);
        return false;
    }
    return true;
}

static bool read_chunk(const struct row *row, struct dp_diags *diags, struct chunk_row *ret_chunk)
{
    static const int kind_columns[4] = {[DP_ACTION_F] = COLUMN_F,
                                        [DP_ACTION_B] = COLUMN_B,
                                        [DP_ACTION_I] = COLUMN_I,
                                        [DP_ACTION_W] = COLUMN_W};
    *ret_chunk = (struct chunk_row){.line = row->line};
    bool good = true;
    for (int kind = 0; kind < 4; kind++) {
        int column = kind_columns[kind];
        ret_chunk->chunk.given[kind] = row->given[column];
        good = read_seconds(row, column, diags, &ret_chunk->chunk.seconds[kind]) && good;
    }
    good = read_pair(row, diags, &ret_chunk->pair) && good;
    good = read_chunk_bytes(row, diags, ret_chunk) && good;
    return good && dp_what_if_complete(&ret_chunk->chunk, diags, row->line,
                                       row->cells[COLUMN_STAGE].column);
}

static bool refuse_twice(struct stage_table *table, const struct row *row, int line)
{
    dp_diags_add(&table->diags, row->line, row->cells[COLUMN_STAGE].column, NULL,
                 "the same stage as in line %d", line);
    return false;
}

static bool file_chunk(struct stage_table *table, const struct row *row)
{
    struct chunk_row *place = &table->any[row->stage];
    if (row->rank >= 0) {
        int32_t slot = slot_of(table, row->rank, row->stage);
        if (slot < 0) {
            dp_diags_add(&table->diags, row->line, row->cells[COLUMN_RANK].column, NULL,
                         "rank %d does not hold stage %d", row->rank, row->stage);
            return false;
        }
        place = &table->own[row->rank * table->slots + slot];
    }
    if (place->line > 0) {
        return refuse_twice(table, row, place->line);
    }
    struct chunk_row chunk;
    if (!read_chunk(row, &table->diags, &chunk)) {
        // Filed all the same, so that the stage does not count as missing too.
        chunk.line = row->line;
    }
    *place = chunk;
    return true;
}

// A row of a pair has nothing but the pair's time.
static bool check_pair_row(struct stage_table *table, const struct row *row)
{
    for (int column = COLUMN_F; column < COLUMN_COUNT; column++) {
        if (row->given[column] && column != COLUMN_FB && column != COLUMN_FI) {
            dp_diags_add(&table->diags, row->line, row->cells[column].column,
                         "leave it blank: this row has a backward_stage, so it is about a pair",
                         "%s is no part of a pair", columns[column].name);
            return false;
        }
    }
    if (!row->given[COLUMN_FB]) {
        dp_diags_add(&table->diags, row->line, row->cells[COLUMN_BACKWARD_STAGE].column, NULL,
                     "FB of the pair is missing");
        return false;
    }
    return true;
}

static bool file_pair(struct stage_table *table, const struct row *row)
{
    struct pair_row pair;
    if (!check_pair_row(table, row) || !read_pair(row, &table->diags, &pair)) {
        return false;
    }
    struct pair_row *pairs = row->rank >= 0 ? table->own_pair : table->any_pair;
    bool found = false;
    for (int32_t rank = 0; rank < table->schedule->pipeline; rank++) {
        if (row->rank >= 0 && row->rank != rank) {
            continue;
        }
        int32_t forward = slot_of(table, rank, row->stage);
        int32_t backward = slot_of(table, rank, row->backward_stage);
        if (forward < 0 || backward < 0) {
            continue;
        }
        struct pair_row *place = &pairs[(rank * table->slots + forward) * table->slots + backward];
        if (place->line > 0) {
            return refuse_twice(table, row, place->line);
        }
        *place = pair;
        found = true;
    }
    int column = row->cells[COLUMN_BACKWARD_STAGE].column;
    if (!found && row->rank >= 0) {
        dp_diags_add(&table->diags, row->line, column, NULL,
                     "rank %d does not hold both stage %d and stage %d", row->rank, row->stage,
                     row->backward_stage);
    } else if (!found) {
        dp_diags_add(&table->diags, row->line, column, NULL,
                     "no rank holds both stage %d and stage %d", row->stage, row->backward_stage);
    }
    return found;
}

static void read_row(struct stage_table *table, struct row *row)
{
    const struct dp_schedule *schedule = table->schedule;
    struct dp_diags *diags = &table->diags;
    if (!row->given[COLUMN_STAGE]) {
        dp_diags_add(diags, row->line, row->cells[COLUMN_STAGE].column, NULL, "stage is missing");
        return;
    }
    row->rank = -1;
    bool good = read_index(row, COLUMN_STAGE, schedule->stages, diags, &row->stage);
    if (row->given[COLUMN_RANK]) {
        good = read_index(row, COLUMN_RANK, schedule->pipeline, diags, &row->rank) && good;
    }
    if (row->given[COLUMN_BACKWARD_STAGE]) {
        good =
            read_index(row, COLUMN_BACKWARD_STAGE, schedule->stages, diags, &row->backward_stage) &&
            good;
    }
    if (good && row->given[COLUMN_BACKWARD_STAGE]) {
        file_pair(table, row);
    } else if (good) {
        file_chunk(table, row);
    }
}

static void read_rows(struct stage_table *table, const char *text, size_t length)
{
    struct dp_csv csv;
    dp_csv_init(&csv, text, length);
    int positions[COLUMN_COUNT];
    size_t width = 0, count;
    if (!dp_csv_header(&csv, columns, COLUMN_COUNT, true, positions, &width, &table->diags)) {
        return;
    }
    struct dp_csv_cell cells[DP_CSV_COLUMNS_MAX];
    while (table->diags.dropped == 0 && dp_csv_next(&csv, cells, DP_CSV_COLUMNS_MAX, &count)) {
        if (count != width) {
            dp_diags_add(&table->diags, csv.line, 1, NULL, "%zu cells; the header has %zu", count,
                         width);
            continue;
        }
        struct row row = {.line = csv.line};
        for (int column = 0; column < COLUMN_COUNT; column++) {
            if (positions[column] >= 0) {
                row.cells[column] = cells[positions[column]];
                row.given[column] = row.cells[column].length > 0;
            }
        }
        read_row(table, &row);
    }
}

static const struct chunk_row *chunk_row_of(const struct stage_table *table, int32_t rank,
                                            int32_t slot, int32_t stage)
{
    const struct chunk_row *own = &table->own[rank * table->slots + slot];
    return own->line > 0 ? own : &table->any[stage];
}

static void check_complete(struct stage_table *table)
{
    for (int32_t rank = 0; rank < table->schedule->pipeline; rank++) {
        int32_t stages[DP_RANK_STAGES_MAX];
        int32_t count = dp_schedule_rank_stages(table->schedule, rank, stages);
        for (int32_t slot = 0; slot < count; slot++) {
            if (chunk_row_of(table, rank, slot, stages[slot])->line == 0) {
                dp_diags_add(&table->diags, 0, 0, NULL,
                             "stage %d has no row; the schedule runs it on rank %d", stages[slot],
                             rank);
            }
        }
    }
}

// What is said of a pair: of its very stages, or else in the row of its forward.
static const struct pair_row *pair_row_of(const struct stage_table *table, int32_t rank,
                                          int32_t forward, int32_t backward,
                                          const struct pair_row *of_stage)
{
    size_t filed = ((size_t)rank * (size_t)table->slots + (size_t)forward) * (size_t)table->slots +
                   (size_t)backward;
    return table->own_pair[filed].line > 0   ? &table->own_pair[filed]
           : table->any_pair[filed].line > 0 ? &table->any_pair[filed]
                                             : of_stage;
}

static void check_pair(struct stage_table *table, const struct chunk_row *forward,
                       const struct chunk_row *backward, const struct pair_row *pair)
{
    int line = pair->line > 0 ? pair->line : forward->line;
    const double *parts = backward->chunk.seconds;
    double f = forward->chunk.seconds[DP_ACTION_F];
    double fb_least = fmax(f, parts[DP_ACTION_B]), fi_least = fmax(f, parts[DP_ACTION_I]);
    bool is_fi = !(pair->fb > 0 && pair->fb < fb_least * (1 - 1e-12));
    if (is_fi && !(pair->fi > 0 && pair->fi < fi_least * (1 - 1e-12))) {
        return;
    }
    dp_diags_add(&table->diags, line, 1, NULL,
                 "%s takes %g, but a pair cannot end before its longer part, which takes %g",
                 is_fi ? "FI" : "FB", is_fi ? pair->fi : pair->fb, is_fi ? fi_least : fb_least);
}

static void check_pairs(struct stage_table *table)
{
    for (int32_t rank = 0; rank < table->schedule->pipeline; rank++) {
        int32_t stages[DP_RANK_STAGES_MAX];
        int32_t count = dp_schedule_rank_stages(table->schedule, rank, stages);
        for (int32_t at = 0; at < count * count; at++) {
            int32_t forward = at / count, backward = at % count;
            const struct chunk_row *row = chunk_row_of(table, rank, forward, stages[forward]);
            check_pair(table, row, chunk_row_of(table, rank, backward, stages[backward]),
                       pair_row_of(table, rank, forward, backward, &row->pair));
        }
    }
}

static void apply_pair(const struct stage_table *table, struct dp_sim_costs *costs, int32_t rank,
                       int32_t forward, int32_t backward, const struct pair_row *of_stage)
{
    const struct pair_row *pair = pair_row_of(table, rank, forward, backward, of_stage);
    double f = dp_sim_chunk_at(costs, rank, forward)->seconds[DP_ACTION_F];
    const double *seconds = dp_sim_chunk_at(costs, rank, backward)->seconds;
    double b = seconds[DP_ACTION_B], i = seconds[DP_ACTION_I];
    size_t at = dp_sim_pair_index(costs, rank, forward, backward);
    costs->fb[at] = pair->fb > 0 ? pair->fb : f + b;
    costs->fi[at] = pair->fi > 0   ? pair->fi
                    : pair->fb > 0 ? dp_what_if_fi(f, b, i, pair->fb)
                                   : f + i;
}

static void apply(const struct stage_table *table, struct dp_sim_costs *costs)
{
    for (int32_t rank = 0; rank < table->schedule->pipeline; rank++) {
        int32_t stages[DP_RANK_STAGES_MAX];
        int32_t count = dp_schedule_rank_stages(table->schedule, rank, stages);
        for (int32_t slot = 0; slot < count; slot++) {
            const struct chunk_row *row = chunk_row_of(table, rank, slot, stages[slot]);
            struct dp_sim_chunk *chunk = dp_sim_chunk_at(costs, rank, slot);
            for (int kind = 0; kind < 4; kind++) {
                chunk->seconds[kind] = row->chunk.seconds[kind];
            }
            if (row->bytes) {
                chunk->activation_bytes = row->activation_bytes;
                chunk->released_at_i_bytes = row->released_at_i_bytes;
            }
        }
        for (int32_t forward = 0; forward < count; forward++) {
            const struct chunk_row *row = chunk_row_of(table, rank, forward, stages[forward]);
            for (int32_t backward = 0; backward < count; backward++) {
                apply_pair(table, costs, rank, forward, backward, &row->pair);
            }
        }
    }
}

static void stage_table_deinit(struct stage_table *table)
{
    free(table->slot);
    free(table->any);
    free(table->own);
    free(table->any_pair);
    free(table->own_pair);
    dp_diags_deinit(&table->diags);
}

dp_status dp_what_if_stage_costs(const char *file, const char *text, size_t length,
                                 const struct dp_schedule *schedule, struct dp_sim_costs *costs,
                                 struct dp_error *err)
{
    if (length > DP_STAGE_COSTS_BYTES_MAX) {
        return dp_fail(err, DP_TOO_LARGE, "%s has %zu bytes; at most %u", file, length,
                       DP_STAGE_COSTS_BYTES_MAX);
    }
    size_t chunks = (size_t)schedule->pipeline * (size_t)costs->slots;
    DP_CLEANUP(stage_table_deinit)
    struct stage_table table = {
        .schedule = schedule,
        .slots = costs->slots,
        .slot = new_slots(schedule),
        .any = dp_new_array(struct chunk_row, (size_t)schedule->stages),
        .own = dp_new_array(struct chunk_row, chunks),
        .any_pair = dp_new_array(struct pair_row, chunks * (size_t)costs->slots),
        .own_pair = dp_new_array(struct pair_row, chunks * (size_t)costs->slots),
    };
    dp_diags_init(&table.diags, file, text, length);
    read_rows(&table, text, length);
    if (table.diags.count == 0) {
        check_complete(&table);
    }
    if (table.diags.count == 0) {
        check_pairs(&table);
    }
    dp_status status = dp_diags_status(&table.diags, err);
    if (status == DP_OK) {
        apply(&table, costs);
    }
    return status;
}
