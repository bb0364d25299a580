// The CSV files of torch.distributed.pipelining (schedules.py, _load_csv and _dump_csv): row i is
// rank i, each cell an action in its order: "2F0", "1I3", "1W3", "0B1", "(0F7;7B3)OVERLAP_F_B", in
// files with communication also "3SEND_F1", "0UNSHARD" and their like. Stages are global.
#pragma once

#include "dp/schedule.h"
#include "dp/schedule_audit.h"

// Until late 2024 "B" was the input gradient and "BW" the full backward; now these are "I" and "B".
typedef enum dp_csv_letters {
    DP_CSV_LETTERS_GUESS, // old when the file has a BW; new when it has an I or neither
    DP_CSV_LETTERS_NEW,
    DP_CSV_LETTERS_OLD
} dp_csv_letters;

const char *dp_csv_letters_text(dp_csv_letters letters); // "guess", "new", "old"

struct dp_schedule_csv {
    struct dp_schedule schedule; // "csv"; P from rows, M and S from cells, placement from F cells
    struct dp_schedule_positions positions;
    dp_csv_letters letters;     // new or old
    const char *letters_reason; // what in the file says so; static
    bool comms;                 // compute_comms: it has cells that are no work
    size_t sends;               // SEND_F and SEND_B cells
    size_t empty_cells;
};

// Reads a text of at most DP_SCHEDULE_BYTES_MAX bytes. "\n" and "\r\n" end a row, cells may be
// quoted and padded with blanks; an empty cell is an idle slot, which PyTorch drops. Problems go to
// diags with line and column: first what cannot be read (all of it); when all can be read, what
// dp_schedule_audit finds, and in a file with communication what PyTorch does not check: every
// border between ranks crossed by one SEND and one RECV on the right ranks, after the work that
// makes the message and before the work that needs it, both ends of each pair of ranks in one
// order, no ring of ranks whose sends and receives, taken one after the other in the order of the
// file, wait for each other; no work on a stage between its RESHARD and its next UNSHARD, or before
// the first; REDUCE_GRAD once and after all of the stage's backwards.
// DP_INVALID (DP_TOO_LARGE) with the rendered diags in err when there is any problem. The caller
// deinits *ret_csv.
dp_status dp_schedule_csv_read(const char *text, size_t length, dp_csv_letters letters,
                               struct dp_diags *diags, struct dp_schedule_csv *ret_csv,
                               struct dp_error *err);
void dp_schedule_csv_deinit(struct dp_schedule_csv *csv);
