// Simulates choices in the order of their bounds until none left can win.
#pragma once

#include "dp/buf.h"
#include "internal.h"

// A choice that was simulated, or was not because its bound cannot win.
struct outcome {
    struct choice choice;
    bool simulated, fits;
    double step_s;             // else the bound
    double memory_bytes;       // of the fullest rank
    double memory_limit_bytes; // of that rank's node
    int32_t memory_position;   // where in the pipeline it is
    // Parts of the step, as in struct dp_plan_candidate.
    double compute_s, bubble_s, hop_s, wait_s, exchange_s, gradient_s, optimizer_s;
};

// What more memory buys is told for so much of it, as a share of what there is.
#define DP_PLANNER_MORE_MEMORY 0.1

struct search {
    struct outcome *outcomes; // as simulated, then the rest
    size_t count;
    size_t best; // index of the winner
    int64_t moves, moves_max;
    int64_t scored;       // whose time and memory were computed
    double reached_s;     // bounds up to here were looked at
    double largest_s;     // the best step on the most ranks; INFINITY = nothing fits there
    double more_memory_s; // the best step with DP_PLANNER_MORE_MEMORY more of it
    char *refusal;        // why an order that was asked for was not searched, a placement's; owned
};

// What fills the fullest rank of a choice that does not fit, and what would do.
void dp_planner_cpu_refusal_write(const struct problem *problem, const struct outcome *least,
                                  struct dp_buf *out);
// DP_UNSCHEDULABLE when nothing fits into memory.
dp_status dp_planner_search_run(const struct problem *problem, const struct choices *choices,
                                const struct dp_planner_options *options, struct search *ret_search,
                                struct dp_error *err);
void dp_planner_search_deinit(struct search *search);
dp_status dp_planner_search_make_plan(const struct search *search, const struct problem *problem,
                                      const struct choices *choices, struct dp_plan *ret_plan,
                                      struct dp_error *err);

// One simulated layout. Replicas that stand alike share a result.
struct replica {
    int32_t like;              // the first replica that stands alike; itself when it is
    struct dp_sim_costs costs; // of the first ones only
    struct dp_sim_result result;
};
struct evaluation {
    struct layout layout;
    struct dp_schedule schedule;
    struct replica *replicas; // [data]
    int32_t slowest;          // a first one
    char *note;               // how a searched order compares, a line; NULL for fixed families
};
dp_status dp_planner_evaluate(const struct problem *problem, const struct choice *choice,
                              struct evaluation *ret_evaluation, struct dp_error *err);
void dp_planner_evaluation_deinit(struct evaluation *evaluation);
const struct replica *dp_planner_evaluation_replica(const struct evaluation *evaluation,
                                                    int32_t replica);
// A total order of choices, simpler ones first.
int dp_planner_choice_compare(const struct choice *a, const struct choice *b);
// Bytes on the fullest rank against its node's memory: the rank with the least room, and where in
// the pipeline it is.
double dp_planner_fullest_rank(const struct problem *problem, const struct evaluation *evaluation,
                               double *ret_limit, int32_t *ret_position);
// Provenance and explanation, for the plan to own. note = evaluation.note.
char *dp_planner_explain_provenance(const struct problem *problem);
char *dp_planner_explain_choice(const struct problem *problem, const struct search *search,
                                const struct choices *choices, const struct dp_plan *plan,
                                const char *note);
// Fills the parts of an outcome's step from the pipeline rank with the least bubble.
void dp_planner_explain_parts(const struct problem *problem, const struct evaluation *evaluation,
                              struct outcome *outcome);
// [pipeline], for the plan to own.
struct dp_plan_position *dp_planner_explain_positions(const struct problem *problem,
                                                      const struct evaluation *evaluation);
// Fills plan->candidates: the winner, then by step, then those that break a rule.
void dp_planner_explain_candidates(const struct search *search, const struct choices *choices,
                                   struct dp_plan *plan);
