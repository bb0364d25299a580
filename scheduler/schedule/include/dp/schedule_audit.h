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
// not only the first. A ring of ranks that wait for each other is looked for when nothing else is
// wrong. places (parallel to the actions) may be NULL. An empty end of a rank's list has the place
// of the rank's last action. Returns whether there was none.
bool dp_schedule_audit(const struct dp_schedule *schedule, const struct dp_schedule_place *places,
                       struct dp_diags *diags);

// Reads dp.schedule/1 and audits it. DP_INVALID with the text of all problems in err; they stay in
// diags too, which the caller initialises with the same text and deinits.
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
// what the file uses. Of a compute_comms file also: each message that crosses ranks is sent once,
// after it was made, and received once, before it is needed; both ends of an edge agree on the
// order; ranks that run their messages strictly in order do not wait for each other in a ring.
// DP_INVALID, err and diags as above.
dp_status dp_schedule_read_csv(const char *text, size_t length, dp_schedule_letters letters,
                               struct dp_schedule_csv *ret_csv, struct dp_diags *diags,
                               struct dp_error *err);
void dp_schedule_csv_deinit(struct dp_schedule_csv *csv);
