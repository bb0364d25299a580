// What the verbs of `dpctl schedule` are asked, and what they share.
#pragma once

#include "dp/schedule.h"
#include "dp/simulate.h"
#include "dpctl.h"

// Groups of options; a verb refuses those that mean nothing to it.
typedef enum schedule_options {
    SCHEDULE_SIZES = 1 << 0,    // -P, -M
    SCHEDULE_COSTS = 1 << 1,    // --f, --b, ...
    SCHEDULE_FAMILIES = 1 << 2, // --schedules
    SCHEDULE_DRAWING = 1 << 3,  // --table, --width
    SCHEDULE_FILES = 1 << 4,    // --format, --out
} schedule_options;

struct schedule_request {
    const char *verb, *subject;
    uint32_t given; // schedule_options
    int32_t pipeline, microbatches;
    const char *schedules, *out, *format;
    double f, b, i, w, fb, hop;
    bool table;
    int32_t width;
    bool same_model; // compare: seconds are of 1/P of the model, whatever a family makes of it
};

// Fills the request, with every default, from the command line.
void schedule_request_parse(struct dpctl *ctl, int argc, char **argv,
                            struct schedule_request *ret_request);
// The schedule that `subject` names: a file, or a family at the sizes asked for.
dp_status schedule_obtain(const struct schedule_request *request, const char *subject,
                          struct dp_schedule *ret_schedule, struct dp_error *err);
dp_status schedule_simulate(const struct schedule_request *request,
                            const struct dp_schedule *schedule, bool with_spans,
                            struct dp_sim_result *ret_result, struct dp_error *err);
json_t *schedule_result_json(const struct dp_schedule *schedule,
                             const struct dp_sim_result *result);
// The table of `dpctl schedule compare`.
dp_status schedule_compare(struct dpctl *ctl, const struct schedule_request *request,
                           const struct dp_schedule *none, struct dp_error *err);
