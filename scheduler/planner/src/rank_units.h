// What a rank's passes hold, from stages as rows of units: an embedding, layers, a head, MTP.
#pragma once

#include "dp/rank_memory.h"

// One step through a stage.
struct unit {
    double kept, deferred, attention, away, forward, backward;
};

struct units {
    const struct dp_rank_memory *memory;
    struct unit embedding, head, mtp;
    struct unit *layers; // [model->layers]
    double hop;
};
void dp_units_init(struct units *units, const struct dp_rank_memory *memory);
void dp_units_deinit(struct units *units);

struct dp_cost_stage dp_units_stage(const struct dp_rank_memory *memory, int32_t stage);

// A stage as a row of units.
struct row {
    const struct units *units;
    struct dp_cost_stage stage;
    int32_t count;
};
struct row dp_row_of(const struct units *units, int32_t stage);

struct totals {
    double kept, deferred;
};
struct totals dp_row_totals(const struct row *row);

// The most that a chunk holds in a pass, all of it; of a pair both chunks, in sequence or layer by
// layer. defers: an I, whose W comes later.
double dp_row_forward(const struct row *row);
double dp_row_backward(const struct row *row, bool defers);
double dp_row_weight(const struct row *row);
double dp_rows_pair(const struct row *forward, const struct row *backward, bool defers);
double dp_rows_sequence(const struct row *forward, const struct row *backward, bool defers);
