// The rows of a comparison of schedules.
#pragma once

#include "dp/limits.h"
#include "plan_request.h"

struct row {
    const char *name;
    bool legal;
    struct dp_plan plan; // when it is
    char note[1024];     // else why not
};

struct table {
    const struct plan_question *question;
    char *names; // owned; rows point into it
    struct row rows[DP_COMPARED_SCHEDULES_MAX];
    // Of each on any sizes, where the first one's best do not fit all.
    struct row own[DP_COMPARED_SCHEDULES_MAX];
    int count;
    const char *sizes; // "first": the best of the first legal row; "common": on which all rows are
                       // legal, though they are not the first one's best
};

// table->question and ->names are given. DP_UNSCHEDULABLE when no schedule can be had at all.
dp_status plan_rows_fill(struct table *table, struct dp_error *err);
void plan_rows_deinit(struct table *table);
const struct row *plan_rows_first_legal(const struct row *rows, int count);
