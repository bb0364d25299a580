// What `dpctl plan` was asked, and what it needs to answer.
#pragma once

#include "dp/planner.h"
#include "dp/profile.h"
#include "dp/spec.h"
#include "dpctl.h"

struct plan_request {
    const char *file, *cluster, *profile, *model, *gpu; // about what
    const char *out, *rank_file, *compare, *format, *against;
    int32_t gpus, global_batch, sequence;
    int32_t rank; // to explain; -1 = none
    bool all, pareto, map, ignore_memory;
    bool is_remote; // the named controller is to answer
    struct dpctl_sets sets;
};
void plan_request_parse(struct dpctl *ctl, int argc, char **argv, struct plan_request *ret_request);

// A question that the planner takes. Plain data but for the nodes.
struct plan_question {
    struct dp_job_spec spec;
    struct dp_cluster_spec cluster;
    struct dp_profile profile;
    struct dp_planner_node *nodes; // owned
    struct dp_planner_resources resources;
    struct dp_client *client; // owned; NULL = answered in this process
    const char *profile_name; // as it was given; NULL = none was
    bool ignore_memory, on_connected_nodes;
    bool experts_dropped; // the model has some, and --set took them away
};
// The caller frees it with plan_question_free.
dp_status plan_question_load(struct dpctl *ctl, const struct plan_request *request,
                             struct plan_question **ret_question, struct dp_error *err);
void plan_question_free(struct plan_question *question);

// Plans for `spec` on the question's nodes, and looks at the clock while it does. With `pareto` the
// plan's candidates are those that no other beats in both time and memory.
dp_status plan_question_ask(const struct plan_question *question, const struct dp_job_spec *spec,
                            bool pareto, struct dp_plan *ret_plan, struct dp_error *err);
// Whether --profile names a file, not built-in figures.
bool plan_profile_is_file(const char *name);

// plan_remote.c: the question goes to the controller that was named. Without a cluster it is about
// the nodes that are connected there.
dp_status plan_remote_open(struct dpctl *ctl, const struct plan_request *request,
                           struct plan_question *question, struct dp_error *err);
dp_status plan_remote_ask(const struct plan_question *question, const struct dp_job_spec *spec,
                          bool pareto, struct dp_plan *ret_plan, struct dp_error *err);
// The command that asks for this very strategy, for a shell.
void plan_command(const struct plan_request *request, const struct dp_plan *plan,
                  struct dp_buf *out);
// The text in quotes where a shell would take it apart.
void plan_quote(const char *text, struct dp_buf *out);

// Writes text for people, or for files that they look at: nothing in it speaks to a terminal.
dp_status plan_write_text(struct dpctl *ctl, const struct plan_request *request,
                          struct dp_buf *text, struct dp_error *err);

// What can be said of an answer.
typedef dp_status plan_verb(struct dpctl *ctl, const struct plan_request *request,
                            const struct plan_question *question, const struct dp_plan *plan,
                            struct dp_error *err);
plan_verb plan_show, plan_export, plan_explain, plan_map, plan_pareto;
bool plan_export_knows(const char *format);
// What would change of a job that runs: DP_PLAN_DIFFERS when something would.
dp_status plan_against(struct dpctl *ctl, const struct plan_request *request,
                       const struct plan_question *question, struct dp_error *err);
// Asks several times by itself.
dp_status plan_compare(struct dpctl *ctl, const struct plan_request *request,
                       const struct plan_question *question, struct dp_error *err);
