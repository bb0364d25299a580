// What the readers of what-if texts share.
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "dp/csv.h"
#include "dp/diag.h"

// The comma-separated items of a text that stands on one line.
struct what_if_items {
    struct dp_diags diags;
    struct dp_csv_cell *cells; // owned
    size_t count;
};

// A problem of the text as a whole (none, or too many items) is in diags, and count is then 0.
void dp_what_if_items_init(struct what_if_items *items, const char *name, const char *text);
void dp_what_if_items_deinit(struct what_if_items *items);

// Cuts at the first `separator`; false when there is none.
bool dp_what_if_cut(const struct dp_csv_cell *cell, char separator, struct dp_csv_cell *ret_left,
                    struct dp_csv_cell *ret_right);
bool dp_what_if_is(const struct dp_csv_cell *cell, const char *text);
// A rank, a stage: 0 to count - 1. `noun` is "rank" or "stage".
bool dp_what_if_index(const struct dp_csv_cell *cell, const char *noun, int32_t count,
                      struct dp_diags *diags, int line, int32_t *ret_index);
// Seconds from 0 to DP_COST_SECONDS_MAX.
bool dp_what_if_seconds(const struct dp_csv_cell *cell, struct dp_diags *diags, int line,
                        double *ret_seconds);
// Over 0 and at most DP_COST_FACTOR_MAX.
bool dp_what_if_factor(const struct dp_csv_cell *cell, struct dp_diags *diags, int line,
                       double *ret_factor);

// Seconds of the four kinds, by dp_action_kind; B, I and W complete each other. A problem that lies
// between them goes to diags at the given place.
struct what_if_chunk {
    double seconds[4];
    bool given[4];
};
bool dp_what_if_complete(struct what_if_chunk *chunk, struct dp_diags *diags, int line, int column);
// What a pair with the input-gradient backward takes when the pair with the full one takes `fb`:
// overlap hides the same of both, and no pair is shorter than its longer part.
double dp_what_if_fi(double f, double b, double i, double fb);
