// What to do about a rank, node or link that slows a job down, or that is gone.
//
// Every answer is simulated with what was measured, and weighed: what it gains per step, times the
// steps that are left to gain from it, times the trust that earlier predictions earned, against
// what it costs once. How long a slowness lasts is not known beforehand, so nothing is done before
// the time already lost has reached the cost of doing it (the ski-rental rule: at most twice the
// cost of knowing; Greyhound's ladder S1 to S4 follows from it, since cheap answers come first).
// Where the history of a node says how long it stays slow, that counts in place of the rule.
//
// The model. A chunk of a stage takes the sum of its layers' times on a healthy rank (first and
// last stage: also embedding and head) times the slowness of the place that it runs at; a link
// costs what was measured of it, others what links between nodes and within one usually do.
// Replicas whose ranks share expert groups run in step: there the slowest place counts for all of
// them. A step ends when the last replica is done (gradient sums, update). Bounds of the searches:
// docs/adapt.md.
//
// Pure: no clock, threads or I/O; the same input gives the same answers. Any thread.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dp/buf.h"
#include "dp/error.h"
#include "dp/experts.h"
#include "dp/json.h"
#include "dp/plan.h"
#include "dp/planner.h"
#include "dp/simulate.h"
#include "dp/spec.h"

enum { DP_ADAPT_KINDS = DP_ACTION_FB }; // F, B, I, W, by dp_action_kind

// Seconds of one micro-batch on a healthy rank. The arrays are owned.
struct dp_adapt_costs {
    int32_t layers, pipeline;
    double (*layer)[DP_ADAPT_KINDS];         // [layers]
    double first[DP_ADAPT_KINDS];            // embedding
    double last[DP_ADAPT_KINDS];             // head and loss
    double action[DP_ADAPT_KINDS];           // of any action, whatever is in it
    double pair_share, pair_input_share;     // FB over F + B, F & I over F + I; 0 counts as 1
    double message_bytes_f, message_bytes_b; // between two stages
    struct dp_sim_hop local, network;        // within a node, and between two
    double *gradient_s, *optimizer_s;        // [pipeline], with the layers as they lie now
    dp_sim_p2p p2p;
};
void dp_adapt_costs_init(struct dp_adapt_costs *ret_costs, int32_t layers, int32_t pipeline);
void dp_adapt_costs_deinit(struct dp_adapt_costs *costs);
// What the planner predicts of the plan's job (dp_planner_costs, by differences of its stages).
// resources NULL as there. The caller deinits *ret_costs.
dp_status dp_adapt_costs_predict(const struct dp_job_spec *spec, const struct dp_plan *plan,
                                 const struct dp_planner_resources *resources,
                                 struct dp_adapt_costs *ret_costs, struct dp_error *err);

// What a rank took for one kind of action, the median of a window.
struct dp_adapt_measured {
    int32_t rank;           // global
    dp_action_kind kind;    // F, B, I, W or FB
    bool with_input;        // FB: its backward part is an I
    int32_t stage, b_stage; // as in the schedule; b_stage of FB alone
    double seconds;
};
// Scales the costs so that healthy ranks take what was measured: of each stage and kind the median
// over its ranks of seconds / slow[rank]; kinds and stages without a measurement move as the others
// do on the whole. slow[world] as in dp_adapt_input; NULL = all are healthy. Rows of other stages
// and of no time are passed over.
dp_status dp_adapt_costs_measure(struct dp_adapt_costs *costs, const struct dp_plan *plan,
                                 const double *slow, const struct dp_adapt_measured *rows,
                                 size_t count, struct dp_error *err);

// A free place for a rank.
struct dp_adapt_spare {
    char node[DP_NAME_MAX];
    int32_t slot;
    double slow;         // as in dp_adapt_input; 0 counts as 1
    double memory_bytes; // 0 = no limit
};

typedef enum dp_adapt_end { DP_ADAPT_NO_END, DP_ADAPT_FROM, DP_ADAPT_TO } dp_adapt_end;

// A link that is not as others: what messages from rank `from` to rank `to` cost where they stand
// now. It goes with the places, whichever ranks stand there. A link that is slow both ways is two.
struct dp_adapt_link {
    int32_t from, to; // global ranks; to = -1: any rank of another node; from = -1 likewise
    struct dp_sim_hop hop;
    dp_adapt_end at_fault; // whose node a restart does without; NO_END = nobody's that is known
};

// Loads of experts, where they are the cause: of every expert, or in sum of every rank.
struct dp_adapt_experts {
    struct dp_experts_shape shape; // of one layer and group
    int32_t layers;
    const double *load;  // [layers][shape.experts]; NULL = only ranks are known; borrowed
    const int32_t *held; // [layers][shape.slots]: as they lie now; borrowed
    // Without `load`: rows that came to each rank's experts over the mean of its group, [world],
    // and the least that the fullest rank can come to. Borrowed.
    const double *rank_load;
    double reachable;
    double share;  // of a chunk's time that follows the rows of its experts
    double move_s; // once, to move them
};
// From what ranks report: rank_load as above, borrowed, and `skew`, the fullest expert of a layer
// over the mean of its experts. The share is that of the operations of a token that are routed
// experts'; the fullest rank has at least the fullest expert's rows, over its copies if `copies`
// slots of each rank are for such.
void dp_adapt_experts_of_ranks(const struct dp_plan *plan, const struct dp_model_spec *model,
                               const double *rank_load, double skew, int32_t copies,
                               struct dp_adapt_experts *ret_experts);

// What acting costs, as measured; 0 = nothing.
struct dp_adapt_acting {
    double switch_s; // a change of epoch without its state: the last old step to the first new
    double local_bytes_per_s; // at which a rank takes over state within its node; 0 = no time
    double network_bytes_per_s;
    double state_bytes;  // weights and moments of one layer on one rank; 0 = as the plan says
    double checkpoint_s; // to write one
    double restart_s;    // from the end of the ranks to the first step of a new attempt
};

// What to assume before a cluster has measured its own: 2 s for a change, 1 GB/s within a node, the
// network of the costs between nodes (1 GB/s where it has no bandwidth), 10 s to write a checkpoint
// and 30 s to start again.
void dp_adapt_acting_init(struct dp_adapt_acting *ret_acting, const struct dp_adapt_costs *costs);

struct dp_adapt_limits {
    double least_gain_share;     // of a step; below it nothing is done; 0.03
    int64_t cool_down_steps;     // after an action; 50
    int64_t since_action_steps;  // steps since the last one; < 0 = there was none
    int64_t moves_max;           // orders that the search of an order looks at; 0 = the default
    bool (*stop)(void *context); // NULL = never
    void *context;
};
void dp_adapt_limits_init(struct dp_adapt_limits *ret_limits);

typedef enum dp_adapt_kind {
    DP_ADAPT_IGNORE,
    DP_ADAPT_SHIFT,    // micro-batches between data-parallel replicas
    DP_ADAPT_LAYERS,   // between stages
    DP_ADAPT_ORDER,    // another order of the same actions on the slow replica's ranks
    DP_ADAPT_SWAP,     // ranks change places
    DP_ADAPT_SPARE,    // ranks go to free places
    DP_ADAPT_EXPERTS,  // re-placed or copied
    DP_ADAPT_COMBINED, // several of these at once
    DP_ADAPT_RESTART,  // from a checkpoint, without the slow nodes
    DP_ADAPT_GROW,     // laid out anew with more ranks, where it has lost some
    DP_ADAPT_KIND_COUNT
} dp_adapt_kind;
const char *dp_adapt_kind_text(dp_adapt_kind kind); // "ignore", "shift-microbatches", ...
// The kind that is called so; false = none is.
bool dp_adapt_kind_of(const char *text, dp_adapt_kind *ret_kind);

struct dp_adapt_input {
    const struct dp_plan *plan; // in force; its ranks say where each one stands; borrowed
    const struct dp_adapt_costs *costs;
    // [world] by global rank: its time over that of a healthy one for the same work; 1 = healthy.
    const double *slow;
    const struct dp_adapt_link *links;
    size_t links_count;
    const struct dp_adapt_spare *spares;
    size_t spares_count;
    const struct dp_adapt_experts *experts; // NULL = even, or not known
    // For a restart without the slow nodes, and for more ranks: the job, and every node with the
    // slots that it would have then, the job's own among them; NULL = neither is weighed.
    const struct dp_job_spec *spec;
    const struct dp_planner_resources *resources;
    bool grows;             // it has fewer ranks than it once had: more are weighed
    double measured_step_s; // 0 = not known: predictions are as simulated; else scaled to it
    int64_t remaining_steps;
    int64_t expected_steps; // that the slowness lasts, by the history of its node; 0 = not known
    double excess_s;        // lost so far: sum of (step - step before the onset); under 0 = nothing
    double trust;           // in predictions, 0 to 1
    // The one answer that is wanted, whatever it is worth; IGNORE = the best of all.
    dp_adapt_kind wanted;
    struct dp_adapt_acting acting;
    struct dp_adapt_limits limits;
};

struct dp_adapt_answer {
    dp_adapt_kind kind;
    unsigned parts; // COMBINED: 1 << kind of each
    bool possible;  // the figures below are known
    bool chosen;
    double before_s, after_s; // the step
    double cost_s;            // once; what the job stands still
    double net_s;             // trust x gain x steps - cost
    int64_t wait_steps;       // until the time lost reaches the cost, if nothing changes; 0 = now
    char *action;             // what would be done, in words; owned
    char *without;            // RESTART: the nodes that are left out, "a,b"; else NULL; owned
    char *reason;             // why it was not taken, or why it was; owned
    // What would be run, with its predictions; NULL where nothing is planned anew (ignore,
    // experts, what is not possible). Slots are those of ranks and spares, but of RESTART and GROW
    // counted from first_slot of each node of input->resources. Owned.
    struct dp_plan *plan;
};

struct dp_adapt_answers {
    struct dp_adapt_answer answers[DP_ADAPT_KIND_COUNT];
    int32_t count;
    int32_t best;     // index; the first one ("ignore") is always there
    double healthy_s; // the step without what is slow
    int64_t steps;    // that gains were weighed over
    int64_t moves;    // simulations
};
// Zero-initialised ones may be deinited too.
void dp_adapt_answers_deinit(struct dp_adapt_answers *answers);

// All answers, and which is best now. DP_INVALID when costs, plan and slowness do not fit each
// other; DP_INTERRUPTED when stopped. The caller deinits *ret_answers.
dp_status dp_adapt_choose(const struct dp_adapt_input *input, struct dp_adapt_answers *ret_answers,
                          struct dp_error *err);

// After how many steps to ask again, since something may pay then that is not chosen now; 0 =
// never. Experts are placed while ranks train, before what changes ranks pays: who is slow stays
// slow.
int64_t dp_adapt_again_steps(const struct dp_adapt_answers *answers, int64_t remaining_steps);

// The step that a plan takes with these costs, slowness and links; its ranks stand at the places
// where their names say, which are the input's plan's or spares.
dp_status dp_adapt_step(const struct dp_adapt_input *input, const struct dp_plan *plan,
                        double *ret_step_s, struct dp_error *err);

// The trust that is left when a prediction is held against what was measured after it: half of what
// there was and half of the share of the promised gain that came true (0 to 1). 1 at most, and
// never under 0.1, so that it can come back.
double dp_adapt_trust_after(double trust, double before_s, double predicted_s, double measured_s);

typedef enum dp_adapt_recovery_kind {
    DP_ADAPT_ON_SPARES,       // the same plan, dead ranks on free places
    DP_ADAPT_ON_FEWER,        // another plan on what is left
    DP_ADAPT_FROM_CHECKPOINT, // state is lost, or what is left is not enough
} dp_adapt_recovery_kind;
const char *dp_adapt_recovery_text(dp_adapt_recovery_kind kind); // "spares", "fewer", "checkpoint"

struct dp_adapt_loss {
    const struct dp_plan *plan; // that ran; borrowed, as all of this
    const bool *lost;           // [world]: ranks that are gone
    // Whether every tensor was found on a rank that holds, where that is known (1 yes, -1 no); 0 =
    // by the plan.
    int32_t covered;
    const struct dp_adapt_spare *spares; // on nodes that are there
    size_t spares_count;
    // For a plan on fewer ranks: the job, and the nodes that are there with the slots that it may
    // have, its living ranks' among them. NULL = only spares.
    const struct dp_job_spec *spec;
    const struct dp_planner_resources *resources;
    const struct dp_planner_options *options; // NULL = default
    bool obeys; // sizes that the job sets stay: nothing is lost yet, and it can wait
};

struct dp_adapt_recovery {
    dp_adapt_recovery_kind kind;
    bool has_plan; // not when what is left cannot run the job at all
    // The planner made it: slots are counted from first_slot of each node of loss->resources.
    // Otherwise they are those of living ranks and spares.
    bool is_anew;
    struct dp_plan plan; // what to run; owned
    char *action;        // in words; owned
    char *reason;        // why this one: what is lost, what would not do; owned
};
void dp_adapt_recovery_deinit(struct dp_adapt_recovery *recovery);
// The best layout on what is left. Free places come first, then fewer ranks as far as the job
// leaves their number open. Only when neither will do, and not with `obeys`, sizes that the job
// sets give way: the number of replicas, then the rest; the global batch stays. With too few
// places, or with tensors that nobody holds any more, it says so and starts from the last
// checkpoint, on the same layout. DP_INVALID for arguments that do not fit the plan,
// DP_INTERRUPTED.
dp_status dp_adapt_recover(const struct dp_adapt_loss *loss, struct dp_adapt_recovery *ret_recovery,
                           struct dp_error *err);

// The form "dp.decision/1", and a table for people.
json_t *dp_adapt_to_json(const struct dp_adapt_answers *answers);
// Back, but for plans and what a restart leaves out. DP_INVALID when it is not of that form. The
// caller deinits *ret_answers.
dp_status dp_adapt_from_json(const json_t *json, struct dp_adapt_answers *ret_answers,
                             struct dp_error *err);
void dp_adapt_render(const struct dp_adapt_answers *answers, struct dp_buf *out);
