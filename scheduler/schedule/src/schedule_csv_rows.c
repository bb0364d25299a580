// Rows and cells as Python's csv module takes them apart: commas, quotes, any end of line. A row is
// a rank, so blank lines count, but not those at the end.
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/utf8.h"
#include "schedule_csv.h"

void dp_csv_file_deinit(struct csv_file *file)
{
    free(file->items);
    *file = (struct csv_file){0};
}

static int32_t characters(const char *from, const char *to)
{
    int32_t count = 0;
    for (; from < to; from++) {
        count += ((unsigned char)*from & 0xc0) != 0x80;
    }
    return count;
}

static bool is_empty(const struct csv_text *cell)
{
    for (const char *c = cell->at; c < cell->end; c++) {
        if (*c != ' ' && *c != '\t' && *c != '\r') {
            return false;
        }
    }
    return true;
}

// Takes a quoted cell off the line; false after a problem, with the line passed.
static bool take_quoted(struct csv_text *line, struct csv_text *ret_cell, struct dp_diags *diags)
{
    const char *close = memchr(line->at + 1, '"', (size_t)(line->end - line->at - 1));
    const char *comma = close == NULL ? NULL : memchr(close, ',', (size_t)(line->end - close));
    const char *stop = comma == NULL ? line->end : comma;
    struct csv_text behind = {close == NULL ? stop : close + 1, stop, line->place};
    if (close == NULL || !is_empty(&behind)) {
        dp_diags_add(diags, line->place.line, line->place.column, NULL,
                     close == NULL ? "the quotes are not closed on this line"
                                   : "something stands behind the closing quotes");
        line->at = line->end;
        return false;
    }
    *ret_cell = (struct csv_text){line->at + 1, close, {line->place.line, line->place.column + 1}};
    line->place.column += characters(line->at, stop) + 1;
    line->at = comma == NULL ? NULL : comma + 1;
    return true;
}

// Takes the next cell off the line, whose `at` becomes NULL behind the last.
static bool take_cell(struct csv_text *line, struct csv_text *ret_cell, struct dp_diags *diags)
{
    if (line->at < line->end && *line->at == '"') {
        return take_quoted(line, ret_cell, diags);
    }
    const char *comma = memchr(line->at, ',', (size_t)(line->end - line->at));
    *ret_cell = *line;
    ret_cell->end = comma == NULL ? line->end : comma;
    line->place.column += characters(line->at, ret_cell->end) + 1;
    line->at = comma == NULL ? NULL : comma + 1;
    return true;
}

static void append(struct csv_file *file, const struct csv_item *item)
{
    if (file->count == file->capacity) {
        file->capacity = file->capacity == 0 ? 256 : 2 * file->capacity;
        file->items = dp_realloc(file->items, file->capacity, sizeof(*file->items));
    }
    file->items[file->count++] = *item;
}

static bool read_row(struct csv_text line, struct csv_file *file, struct dp_diags *diags)
{
    struct dp_schedule_place *empty = &file->empty[file->rows];
    struct dp_schedule_place row = line.place;
    size_t before = file->count;
    bool good = true;
    while (line.at != NULL) {
        struct csv_text cell;
        struct csv_item item;
        if (!take_cell(&line, &cell, diags)) {
            return false;
        }
        if (is_empty(&cell)) {
            *empty = empty->line == 0 ? cell.place : *empty;
        } else if (dp_csv_cell_read(cell, &item, diags)) {
            append(file, &item);
        } else {
            good = false;
        }
    }
    if (good && file->count == before) {
        dp_diags_add(diags, row.line, row.column,
                     "a row stands for each rank, so there are no blank lines",
                     "rank %d has no actions", file->rows);
        good = false;
    }
    return good;
}

bool dp_csv_rows_read(const char *text, size_t length, struct csv_file *ret_file,
                      struct dp_diags *diags)
{
    const char *end = text + length;
    bool good = true;
    *ret_file = (struct csv_file){0};
    while (end > text && strchr(" \t\r\n", end[-1]) != NULL && end[-1] != '\0') {
        end--;
    }
    for (const char *at = text + dp_utf8_mark(text, length); at < end; ret_file->rows++) {
        if (ret_file->rows == DP_PIPELINE_MAX) {
            dp_diags_add(diags, ret_file->rows + 1, 1, NULL, "more rows than the %d ranks allowed",
                         DP_PIPELINE_MAX);
            return false;
        }
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        struct csv_text line = {at, newline == NULL ? end : newline, {ret_file->rows + 1, 1}};
        good = read_row(line, ret_file, diags) && good;
        ret_file->row_begin[ret_file->rows + 1] = ret_file->count;
        at = newline == NULL ? end : newline + 1;
    }
    if (ret_file->rows == 0) {
        dp_diags_add(diags, 1, 1, "each line holds the actions of one rank, as 0F0,0F1,0B0,0B1",
                     "the file is empty");
        good = false;
    }
    if (good && ret_file->count > DP_ACTIONS_MAX) {
        dp_diags_add(diags, 1, 1, NULL, "%zu actions; the limit is %u", ret_file->count,
                     DP_ACTIONS_MAX);
        good = false;
    }
    return good;
}
