// The parts of the reader of PyTorch's CSV.
#pragma once

#include "problems.h"

// What stands in a cell, beyond dp_action_kind. Letters are as in the file: I is CSV_I only in new
// files; CSV_BW is found in old ones.
typedef enum csv_kind {
    CSV_BW = DP_ACTION_KIND_COUNT,
    CSV_SEND_F,
    CSV_RECV_F,
    CSV_SEND_B,
    CSV_RECV_B,
    CSV_WAIT_SEND_F,
    CSV_WAIT_SEND_B,
    CSV_UNSHARD, // from here on without a micro-batch
    CSV_RESHARD,
    CSV_REDUCE_GRAD,
    CSV_WAIT_REDUCE_GRAD,
    CSV_KIND_COUNT
} csv_kind;

static inline bool csv_is_compute(uint8_t kind)
{
    return kind <= CSV_BW;
}

struct csv_item {
    struct dp_action action; // kind may be a csv_kind
    struct dp_schedule_place place;
};

// A file as read: the items of all rows, row after row.
struct csv_file {
    struct csv_item *items;
    size_t count, capacity;
    int32_t rows;
    size_t row_begin[DP_PIPELINE_MAX + 1];
    struct dp_schedule_place
        empty[DP_PIPELINE_MAX]; // the first empty cell of each row; line 0 = none
};
void dp_csv_file_deinit(struct csv_file *file);

// "3SEND_F1", as in a file of new letters.
void dp_csv_item_text(const struct csv_item *item, struct dp_buf *out);

// A part of one line. Blanks around it do not count.
struct csv_text {
    const char *at, *end;
    struct dp_schedule_place place; // of `at`
};

// Reads one action; false after a problem, which goes to diags.
bool dp_csv_cell_read(struct csv_text cell, struct csv_item *ret_item, struct dp_diags *diags);
// Reads all cells; false when some were no actions.
bool dp_csv_rows_read(const char *text, size_t length, struct csv_file *ret_file,
                      struct dp_diags *diags);

// The messages of a compute_comms file, whose actions are valid. Whether they are right.
bool dp_csv_messages_check(const struct csv_file *file, const struct dp_schedule *schedule,
                           struct dp_diags *diags);
