// The verbs of `dpctl schedule`, and what they share: one schedule with its costs.
#pragma once

#include "dp/diag.h"
#include "schedule_request.h"

struct schedule_subject {
    struct dp_schedule schedule;
    struct dp_sim_costs costs;
    bool changed;                 // by --slow or --slow-link
    struct dp_sim_costs before;   // without them, when changed
    struct dp_auto_result *found; // how `auto` found it; else NULL. Its schedule has moved up
};
void schedule_subject_deinit(struct schedule_subject *subject);

// Whether the subject names a file and not a family.
bool schedule_is_file(const char *subject);
// What a file turned out to be, and what is wrong with it. Zero-initialised is none.
struct schedule_file {
    struct dp_buf text;
    struct dp_diags problems; // of the text
    const char *form;         // "dp.schedule/1", "compute_only", "compute_comms"; NULL = unknown
    const char *letters;      // of a CSV: "new", "old"; else NULL
};
void schedule_file_deinit(struct schedule_file *file);

// The valid schedule of a file, JSON or CSV; "-" is stdin.
dp_status schedule_load(const char *path, struct dp_schedule *ret_schedule, struct dp_error *err);
// The family or file that `name` says, costs as the request says.
dp_status schedule_obtain(const struct schedule_request *request, const char *name,
                          struct schedule_subject *ret_subject, struct dp_error *err);
// The same; a file that was read is left in *file, also on failure. The caller deinits it.
dp_status schedule_obtain_noting(const struct schedule_request *request, const char *name,
                                 struct schedule_file *file, struct schedule_subject *ret_subject,
                                 struct dp_error *err);

// Makespan, ratios, ranks: the members of dp.simulation/1 but those that need a second pass.
json_t *schedule_result_json(const struct dp_schedule *schedule,
                             const struct dp_sim_result *result);

json_t *schedule_auto_json(const struct schedule_request *request,
                           const struct dp_auto_result *found);

typedef dp_status schedule_verb_run(struct dpctl *ctl, const struct schedule_request *request,
                                    struct dp_error *err);
schedule_verb_run schedule_list, schedule_show, schedule_run_simulate, schedule_compare,
    schedule_check, schedule_export, schedule_replay;
