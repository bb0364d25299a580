// The verbs of `dpctl schedule`, and what they share: one schedule with its costs.
#pragma once

#include "dp/diag.h"
#include "schedule_request.h"

struct schedule_subject {
    struct dp_schedule schedule;
    struct dp_sim_costs costs;
    bool changed;                 // by --slow or --slow-link
    struct dp_sim_costs before;   // without them, when changed
    struct dp_buf notes;          // on changes that change nothing, a line each
    struct dp_auto_result *found; // how `auto` found it; else NULL. Its schedule has moved up
};
void schedule_subject_deinit(struct schedule_subject *subject);

// What a file turned out to be, and what is wrong with it. Zero-initialised is none.
struct schedule_file {
    struct dp_buf text;
    struct dp_diags problems; // of the text
    const char *form;         // "dp.schedule/1", "compute_only", "compute_comms"; NULL = unknown
    const char *letters;      // of a CSV: "new", "old"; else NULL
};
void schedule_file_deinit(struct schedule_file *file);

// The family or file that `name` says ("-" is stdin), costs as the request says. A file that was
// read is left in *file, also on failure; NULL = not wanted. The caller deinits both.
dp_status schedule_obtain(const struct schedule_request *request, const char *name,
                          struct schedule_file *file, struct schedule_subject *ret_subject,
                          struct dp_error *err);
// The request's one subject; its notes go to stderr.
dp_status schedule_obtain_subject(const struct schedule_request *request,
                                  struct schedule_file *file, struct schedule_subject *ret_subject,
                                  struct dp_error *err);

// Where `auto` has put the stages, as --placement names it.
const char *schedule_placement_name(const struct dp_schedule *schedule);
// Of the rank with most, in 1/P of the model.
double schedule_parameters(const struct dp_schedule *schedule);

// Makespan, ratios, ranks: the members of dp.simulation/1 but those that need a second pass.
json_t *schedule_result_json(const struct dp_schedule *schedule,
                             const struct dp_sim_result *result);
// The line of text that says the same of all ranks together.
void schedule_print_summary(const struct dp_schedule *schedule, const struct dp_sim_result *result);

typedef dp_status schedule_verb_run(struct dpctl *ctl, const struct schedule_request *request,
                                    struct dp_error *err);
schedule_verb_run schedule_list, schedule_show, schedule_run_simulate, schedule_compare,
    schedule_check, schedule_export, schedule_replay;
