// Lines of comma-separated values, each cell with its place: for tables of people and other tools.
// Blank lines and lines that begin with '#' are skipped, blanks around a cell trimmed, a byte order
// mark and \r before \n ignored. Quotes are no part of the form: none of the tables read here holds
// text with commas. Copies nothing and allocates nothing.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dp/diag.h"

struct dp_csv {
    const char *at, *end;
    int line; // of the row that was read last, from 1
};

struct dp_csv_cell {
    const char *text; // borrowed, not terminated
    size_t length;
    int column; // in characters, from 1
};

// text must outlive the reader.
void dp_csv_init(struct dp_csv *csv, const char *text, size_t length);
// The next row: stores its first `max` cells and counts all of them. False at the end.
bool dp_csv_next(struct dp_csv *csv, struct dp_csv_cell *ret_cells, size_t max, size_t *ret_count);

// A column that a table may have.
struct dp_csv_column {
    const char *name;
    bool required;
};

// Reads the header and says where each of the `count` known columns is (-1 = absent). Problems go
// to diags: a missing or repeated column, and an unknown one when `strict` or when it looks like a
// known one. False after a problem, and when there is no header.
bool dp_csv_header(struct dp_csv *csv, const struct dp_csv_column *columns, size_t count,
                   bool strict, int *ret_positions, size_t *ret_cells, struct dp_diags *diags);

// Decimal numbers without blanks (programs keep the C locale); false for anything else, also for
// "inf", "nan" and what a double or 18 digits cannot hold.
bool dp_csv_integer(const struct dp_csv_cell *cell, int64_t *ret_value);
bool dp_csv_number(const struct dp_csv_cell *cell, double *ret_value);

// "%.*s" arguments of a cell, cut to a length that fits a message.
static inline int dp_csv_shown(const struct dp_csv_cell *cell)
{
    return (int)(cell->length < 40 ? cell->length : 40);
}
