#include "dp/csv.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dp/check.h"
#include "dp/utf8.h"

void dp_csv_init(struct dp_csv *csv, const char *text, size_t length)
{
    const char *begin = text + dp_utf8_mark(text, length);
    *csv = (struct dp_csv){.at = begin, .end = text + length, .line = 0};
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

static int characters(const char *from, const char *to)
{
    int count = 0;
    for (; from < to; from++) {
        count += ((unsigned char)*from & 0xc0) != 0x80;
    }
    return count;
}

static struct dp_csv_cell trimmed(const char *from, const char *to, int column)
{
    while (from < to && is_blank(*from)) {
        from++;
        column++;
    }
    while (to > from && is_blank(to[-1])) {
        to--;
    }
    return (struct dp_csv_cell){.text = from, .length = (size_t)(to - from), .column = column};
}

static size_t split(const char *line, const char *end, struct dp_csv_cell *ret_cells, size_t max)
{
    size_t count = 0;
    int column = 1;
    for (const char *at = line;; at++) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        const char *stop = comma == NULL ? end : comma;
        if (count < max) {
            ret_cells[count] = trimmed(at, stop, column);
        }
        count++;
        if (comma == NULL) {
            return count;
        }
        column += characters(at, stop) + 1;
        at = stop;
    }
}

bool dp_csv_next(struct dp_csv *csv, struct dp_csv_cell *ret_cells, size_t max, size_t *ret_count)
{
    while (csv->at < csv->end) {
        const char *line = csv->at;
        const char *newline = memchr(line, '\n', (size_t)(csv->end - line));
        const char *end = newline == NULL ? csv->end : newline;
        csv->at = newline == NULL ? csv->end : newline + 1;
        csv->line++;
        struct dp_csv_cell whole = trimmed(line, end, 1);
        if (whole.length > 0 && whole.text[0] != '#') {
            *ret_count = split(line, end, ret_cells, max);
            return true;
        }
    }
    return false;
}

static bool cell_is(const struct dp_csv_cell *cell, const char *text)
{
    return strlen(text) == cell->length && memcmp(cell->text, text, cell->length) == 0;
}

// A column of another name: true when that is no problem.
static bool check_unknown(const struct dp_csv_cell *cell, int line,
                          const struct dp_csv_column *columns, size_t count, bool strict,
                          struct dp_diags *diags)
{
    const char *names[DP_CSV_COLUMNS_MAX + 1] = {NULL};
    for (size_t i = 0; i < count; i++) {
        names[i] = columns[i].name;
    }
    char word[64];
    size_t length = cell->length < sizeof(word) ? cell->length : sizeof(word) - 1;
    memcpy(word, cell->text, length);
    word[length] = '\0';
    const char *meant = dp_suggest(word, names);
    if (meant == NULL && !strict) {
        return true;
    }
    struct dp_buf help = {0};
    if (meant != NULL) {
        dp_buf_printf(&help, "did you mean %s?", meant);
    } else {
        dp_buf_puts(&help, "columns are");
        for (size_t i = 0; i < count; i++) {
            dp_buf_printf(&help, "%s %s", i == 0 ? "" : ",", names[i]);
        }
    }
    dp_diags_add(diags, line, cell->column, help.bytes, "unknown column \"%.*s\"",
                 dp_csv_shown(cell), cell->text);
    dp_buf_deinit(&help);
    return false;
}

// Puts one cell of the header in its place.
static bool take_column(const struct dp_csv_cell *cells, size_t i, int line,
                        const struct dp_csv_column *columns, size_t count, bool strict,
                        int *positions, struct dp_diags *diags)
{
    for (size_t known = 0; known < count; known++) {
        if (!cell_is(&cells[i], columns[known].name)) {
            continue;
        }
        if (positions[known] >= 0) {
            dp_diags_add(diags, line, cells[i].column, NULL, "column %s is there twice",
                         columns[known].name);
            return false;
        }
        positions[known] = (int)i;
        return true;
    }
    return check_unknown(&cells[i], line, columns, count, strict, diags);
}

bool dp_csv_header(struct dp_csv *csv, const struct dp_csv_column *columns, size_t count,
                   bool strict, int *ret_positions, size_t *ret_cells, struct dp_diags *diags)
{
    DP_CHECK(count <= DP_CSV_COLUMNS_MAX);
    struct dp_csv_cell cells[DP_CSV_COLUMNS_MAX];
    if (!dp_csv_next(csv, cells, DP_CSV_COLUMNS_MAX, ret_cells)) {
        dp_diags_add(diags, 0, 0, NULL, "the file is empty; its first line names the columns");
        return false;
    }
    if (*ret_cells > DP_CSV_COLUMNS_MAX) {
        dp_diags_add(diags, csv->line, 1, NULL, "%zu columns; at most %d", *ret_cells,
                     DP_CSV_COLUMNS_MAX);
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        ret_positions[i] = -1;
    }
    bool good = true;
    for (size_t i = 0; i < *ret_cells; i++) {
        good =
            take_column(cells, i, csv->line, columns, count, strict, ret_positions, diags) && good;
    }
    for (size_t i = 0; i < count; i++) {
        if (columns[i].required && ret_positions[i] < 0) {
            dp_diags_add(diags, csv->line, 1, NULL, "column %s is missing", columns[i].name);
            good = false;
        }
    }
    return good;
}

bool dp_csv_integer(const struct dp_csv_cell *cell, int64_t *ret_value)
{
    bool negative = cell->length > 0 && cell->text[0] == '-';
    size_t digits = cell->length - negative;
    if (digits == 0 || digits > 18) {
        return false;
    }
    int64_t value = 0;
    for (size_t i = negative; i < cell->length; i++) {
        if (cell->text[i] < '0' || cell->text[i] > '9') {
            return false;
        }
        value = value * 10 + (cell->text[i] - '0');
    }
    *ret_value = negative ? -value : value;
    return true;
}

bool dp_csv_number(const struct dp_csv_cell *cell, double *ret_value)
{
    char text[DP_CSV_NUMBER_MAX];
    if (cell->length == 0 || cell->length >= sizeof(text)) {
        return false;
    }
    // Of what strtod takes, only plain decimals: no hexadecimal, no words.
    size_t digits = 0;
    for (size_t i = 0; i < cell->length; i++) {
        char c = cell->text[i];
        bool digit = c >= '0' && c <= '9';
        digits += digit;
        if (!digit && c != '+' && c != '-' && c != '.' && c != 'e' && c != 'E') {
            return false;
        }
        text[i] = c;
    }
    text[cell->length] = '\0';
    char *end = NULL;
    double value = strtod(text, &end);
    if (digits == 0 || *end != '\0' || !isfinite(value)) {
        return false;
    }
    *ret_value = value;
    return true;
}
