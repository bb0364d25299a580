// Everything that is wrong with an order of actions, and the files of other tools that hold one.
//
// Thread: any. Nothing here keeps its arguments but as said.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dp/diag.h"
#include "dp/error.h"
#include "dp/schedule.h"

// Where an action stands in the text that it came from.
struct dp_schedule_place {
    int32_t line, column;  // from 1
};

// Adds every problem of the schedule to diags: what dp_schedule_validate proves, but all of it and
// not only the first. One mistake is told once: what is missing is told at the end of its rank's
// list and not where it is needed, what is on a wrong rank is told there. Sizes and placement that
// are wrong hide the rest; rings of ranks that wait for each other, each with its ranks, places and
// actions, are looked for when nothing else is wrong. places (parallel to the actions) may be NULL;
// the end of a list has the place of its last action. Returns whether there was no problem.
bool dp_schedule_audit(const struct dp_schedule *schedule, const struct dp_schedule_place *places,
                       struct dp_diags *diags);

// Reads dp.schedule/1 and audits it. DP_INVALID with the text of the problems in err; all of them
// stay in diags, which the caller initialises with the same text and deinits, each with its line
// and column. DP_TOO_LARGE beyond DP_SCHEDULE_BYTES_MAX. The caller deinits *ret_schedule.
dp_status dp_schedule_read_json(const char *text, size_t length, struct dp_schedule *ret_schedule,
                                struct dp_diags *diags, struct dp_error *err);

// PyTorch's letters changed: I, W, B (full) today; B, W, BW (full) before 2.6.
typedef enum dp_schedule_letters {
    DP_SCHEDULE_LETTERS_ANY,  // as the file shows: I is new; BW, or a W without any I, is old
    DP_SCHEDULE_LETTERS_NEW,
    DP_SCHEDULE_LETTERS_OLD,
} dp_schedule_letters;

struct dp_schedule_csv {
    struct dp_schedule schedule;   // named "imported"; valid; owned
    dp_schedule_letters letters;   // that were taken
    bool has_comms;                // compute_comms: with every SEND and RECV
};

// Reads a file of torch.distributed.pipelining, compute_only or compute_comms: row = rank, cell =
// action (2F0, 1I3, (0F7;7B3)OVERLAP_F_B, 3SEND_F1), and audits it. P, M, S and the placement are
// what the file uses. Stricter than PyTorch, which ignores what follows an action in its cell and
// takes messages on trust. Cells may be quoted and padded; empty ones, which PyTorch drops, are for
// compute_only alone. Of a compute_comms file also: each message that crosses ranks is sent once,
// after it was made, and received once, before it is needed; both ends of an edge agree on the
// order; ranks that run their messages strictly in order, each send waiting for its receive, do not
// wait for each other in a ring; a WAIT_SEND stands behind its SEND. UNSHARD, RESHARD,
// REDUCE_GRAD and WAIT_REDUCE_GRAD are passed over. Errors, err and diags as above.
dp_status dp_schedule_read_csv(const char *text, size_t length, dp_schedule_letters letters,
                               struct dp_schedule_csv *ret_csv, struct dp_diags *diags,
                               struct dp_error *err);
void dp_schedule_csv_deinit(struct dp_schedule_csv *csv);
