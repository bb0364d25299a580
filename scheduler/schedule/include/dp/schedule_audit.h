// All that is wrong with lists of actions, such as a file that somebody wrote by hand, where
// dp_schedule_validate stops at the first problem.
#pragma once

#include "dp/diag.h"
#include "dp/schedule.h"

struct dp_schedule_position {
    uint32_t line, column; // from 1; columns count characters
};

// Where a schedule's actions stand in the text that it was read from.
struct dp_schedule_positions {
    struct dp_schedule_position *actions; // [action count]; a pair stands where it begins
    struct dp_schedule_position *ends;    // [pipeline], where each rank's list ends
};

void dp_schedule_positions_deinit(struct dp_schedule_positions *positions);

// Adds to diags every problem of the schedule: actions that are out of range, on the wrong rank,
// done twice, missing, before what they need on their rank (F, I and B of the stage or of the next
// one), weight gradients done twice (W after B, B beside I), pairs whose halves depend on each
// other, and every ring of ranks that wait for each other, with all of its ranks, positions and
// actions. Each names rank, position and action, and the place in the text when positions are
// given (NULL = not from a text). One mistake is reported once: what is missing, doubled or on the
// wrong rank is taken as done for what follows it. Returns how many problems there are; 0 exactly
// when dp_schedule_validate agrees. Sizes, placement and rank_begin may be anything that their
// arrays can hold.
size_t dp_schedule_audit(const struct dp_schedule *schedule,
                         const struct dp_schedule_positions *positions, struct dp_diags *diags);

// Reads the text of a dp.schedule/1 document, of at most DP_SCHEDULE_BYTES_MAX bytes. Problems go
// to diags with line and column: a syntax error or a wrong value alone, otherwise all that
// dp_schedule_audit finds. DP_INVALID (DP_TOO_LARGE) with the rendered diags in err when there are
// any. The caller deinits *ret_schedule.
dp_status dp_schedule_json_read(const char *text, size_t length, struct dp_diags *diags,
                                struct dp_schedule *ret_schedule, struct dp_error *err);
