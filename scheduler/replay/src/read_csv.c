#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/csv.h"
#include "dp/replay.h"

enum {
    COLUMN_DP_RANK,
    COLUMN_STAGE,
    COLUMN_RANK,
    COLUMN_STEP,
    COLUMN_OPTYPE,
    COLUMN_START,
    COLUMN_DURATION,
    COLUMN_SEQ,
    COLUMN_MC,
    COLUMN_MICROBATCH,
    COLUMN_GMC,
    COLUMN_COUNT
};

static const struct dp_csv_column columns[COLUMN_COUNT] = {
    [COLUMN_DP_RANK] = {"dp_rank", true},
    [COLUMN_STAGE] = {"stage", true},
    [COLUMN_RANK] = {"rank", true},
    [COLUMN_STEP] = {"step", true},
    [COLUMN_OPTYPE] = {"optype", true},
    [COLUMN_START] = {"start_ts", true},
    [COLUMN_DURATION] = {"duration", true},
    [COLUMN_SEQ] = {"seq_id", true},
    [COLUMN_MC] = {"mc", false},
    [COLUMN_MICROBATCH] = {"mb_id", false},
    [COLUMN_GMC] = {"gmc", false},
};

struct reader {
    int positions[COLUMN_COUNT];
    struct dp_diags diags;
    struct dp_replay_op *ops;
    size_t count, capacity;
};

static void read_integer(struct reader *reader, int line, const struct dp_csv_cell *cells,
                         int column, int32_t min, int32_t max, int32_t *ret_value)
{
    int position = reader->positions[column];
    if (position < 0) {
        *ret_value = -1;
        return;
    }
    const struct dp_csv_cell *cell = &cells[position];
    int64_t value;
    if (!dp_csv_integer(cell, &value) || value < min || value > max) {
        dp_diags_add(&reader->diags, line, cell->column, NULL,
                     "%s: \"%.*s\" is no whole number from %d to %d", columns[column].name,
                     dp_csv_shown(cell), cell->text, min, max);
        return;
    }
    *ret_value = (int32_t)value;
}

static void read_time(struct reader *reader, int line, const struct dp_csv_cell *cells, int column,
                      double min, double *ret_value)
{
    const struct dp_csv_cell *cell = &cells[reader->positions[column]];
    double value;
    if (!dp_csv_number(cell, &value) || value < min || value > DP_REPLAY_SECONDS_MAX) {
        dp_diags_add(&reader->diags, line, cell->column, NULL,
                     "%s: \"%.*s\" is no time in seconds from %g to %g", columns[column].name,
                     dp_csv_shown(cell), cell->text, min, DP_REPLAY_SECONDS_MAX);
        return;
    }
    *ret_value = value;
}

static void refuse_kind(struct reader *reader, int line, const struct dp_csv_cell *cell)
{
    const char *names[DP_REPLAY_KIND_COUNT + 1] = {NULL};
    for (int kind = 0; kind < DP_REPLAY_KIND_COUNT; kind++) {
        names[kind] = dp_replay_kind_text((dp_replay_kind)kind);
    }
    char word[64];
    snprintf(word, sizeof(word), "%.*s", (int)(cell->length < 63 ? cell->length : 63), cell->text);
    const char *meant = dp_suggest(word, names);
    struct dp_buf help = {0};
    if (meant != NULL) {
        dp_buf_printf(&help, "did you mean %s?", meant);
    } else {
        dp_buf_puts(&help, "types are");
        for (int kind = 0; kind < DP_REPLAY_KIND_COUNT; kind++) {
            dp_buf_printf(&help, "%s %s", kind == 0 ? "" : ",", names[kind]);
        }
    }
    dp_diags_add(&reader->diags, line, cell->column, help.bytes, "unknown optype \"%.*s\"",
                 dp_csv_shown(cell), cell->text);
    dp_buf_deinit(&help);
}

static void read_kind(struct reader *reader, int line, const struct dp_csv_cell *cells,
                      uint32_t *ret_kind)
{
    const struct dp_csv_cell *cell = &cells[reader->positions[COLUMN_OPTYPE]];
    for (uint32_t kind = 0; kind < DP_REPLAY_KIND_COUNT; kind++) {
        const char *text = dp_replay_kind_text((dp_replay_kind)kind);
        if (strlen(text) == cell->length && memcmp(text, cell->text, cell->length) == 0) {
            *ret_kind = kind;
            return;
        }
    }
    refuse_kind(reader, line, cell);
}

static void read_row(struct reader *reader, int line, const struct dp_csv_cell *cells)
{
    struct dp_replay_op op = {.line = (uint32_t)line};
    read_integer(reader, line, cells, COLUMN_DP_RANK, 0, DP_RANKS_MAX - 1, &op.dp_rank);
    read_integer(reader, line, cells, COLUMN_STAGE, 0, DP_STAGES_MAX - 1, &op.stage);
    read_integer(reader, line, cells, COLUMN_RANK, 0, INT32_MAX, &op.rank);
    read_integer(reader, line, cells, COLUMN_STEP, 0, INT32_MAX, &op.step);
    read_integer(reader, line, cells, COLUMN_SEQ, 0, INT32_MAX, &op.seq);
    read_integer(reader, line, cells, COLUMN_MC, -1, DP_STAGES_MAX - 1, &op.mc);
    read_integer(reader, line, cells, COLUMN_MICROBATCH, -1, INT32_MAX, &op.microbatch);
    read_integer(reader, line, cells, COLUMN_GMC, -1, INT32_MAX, &op.gmc);
    read_kind(reader, line, cells, &op.kind);
    read_time(reader, line, cells, COLUMN_START, -DP_REPLAY_SECONDS_MAX, &op.start);
    read_time(reader, line, cells, COLUMN_DURATION, 0, &op.duration);
    if (reader->count == reader->capacity) {
        reader->capacity = reader->capacity == 0 ? 1024 : 2 * reader->capacity;
        reader->ops = dp_realloc(reader->ops, reader->capacity, sizeof(*reader->ops));
    }
    reader->ops[reader->count++] = op;
}

static void read_rows(struct reader *reader, const char *text, size_t length)
{
    struct dp_csv csv;
    dp_csv_init(&csv, text, length);
    struct dp_csv_cell cells[DP_CSV_COLUMNS_MAX];
    size_t width = 0, count;
    if (!dp_csv_header(&csv, columns, COLUMN_COUNT, false, reader->positions, &width,
                       &reader->diags)) {
        return;
    }
    while (reader->diags.dropped == 0 && dp_csv_next(&csv, cells, DP_CSV_COLUMNS_MAX, &count)) {
        if (count != width) {
            dp_diags_add(&reader->diags, csv.line, 1, NULL, "%zu cells; the header has %zu", count,
                         width);
        } else if (reader->count == DP_REPLAY_OPS_MAX) {
            dp_diags_add(&reader->diags, csv.line, 1, "keep fewer steps", "over %u operations",
                         DP_REPLAY_OPS_MAX);
            return;
        } else {
            read_row(reader, csv.line, cells);
        }
    }
    if (reader->count == 0 && reader->diags.count == 0) {
        dp_diags_add(&reader->diags, 0, 0, NULL, "no operations after the header");
    }
}

dp_status dp_replay_read_csv(const char *file, const char *text, size_t length,
                             struct dp_replay_op **ret_ops, size_t *ret_count, struct dp_error *err)
{
    if (length > DP_REPLAY_BYTES_MAX) {
        return dp_fail(err, DP_TOO_LARGE, "%s has %zu bytes; at most %u: keep fewer steps", file,
                       length, DP_REPLAY_BYTES_MAX);
    }
    struct reader reader = {0};
    dp_diags_init(&reader.diags, file, text, length);
    read_rows(&reader, text, length);
    dp_status status = dp_diags_status(&reader.diags, err);
    if (status == DP_OK) {
        *ret_ops = reader.ops;
        *ret_count = reader.count;
    } else {
        free(reader.ops);
    }
    dp_diags_deinit(&reader.diags);
    return status;
}
