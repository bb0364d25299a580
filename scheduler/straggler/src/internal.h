// Shared by the detector's own files.
#pragma once

#include "dp/straggler.h"

enum {
    BEST_STEPS = DP_STRAGGLER_WINDOW / 2, // of the windows whose best is the own reference
    PROBE_EVERY = 20,                     // steps between two probes for the same suspicion
    PROBE_AGAIN = 4,                      // when the first one agreed, and has to be found again
    PROBE_TRIES = 3,
    PERIODS_MIN = 6, // of hosts, that a change must have lasted: most of what recovery looks at
    LAPSES_MAX = 10, // that make a suspicion wait longer: 1024 times as long
};
#define QUIET_NS 3600e9    // after which they are forgotten
#define PROBE_APART_NS 2e9 // what others do to a machine lasts for seconds
// Hosts are looked at over so long, or a step. A kernel deals quotas of cores out anew every 0.1 s:
// of steps that are shorter most run at full speed, and one stands still for the rest of it.
#define HOST_PERIOD_NS 0.1e9

// A ring of the newest values.
struct window {
    float values[DP_STRAGGLER_WINDOW];
    uint32_t count; // that were ever added
};

// Logarithms of own / reference, step by step, and the test for a change of them.
struct series {
    struct window window;
    float history[DP_STRAGGLER_HISTORY]; // healthy ones, a ring
    uint32_t history_count;              // ever added
    double sigma;                        // of the history
    double sum;                          // of the log likelihood ratios; 0 = no change in sight
    uint32_t run;                        // samples since it was 0
    int64_t onset_step;
};

// Of a job's time.
struct stretch {
    uint32_t steps;
    double ns;
};

// What there is a verdict about: a rank's work, its host, a link, a stage, the job.
struct subject {
    struct series series;
    struct dp_straggler_verdict *verdict; // owned; NULL = healthy
    uint64_t request;                     // newest probe that was asked for it
    int64_t probed_step;
    double probed_ns;
    uint32_t probes; // of this suspicion
    uint32_t agreed; // of them, the newest ones in succession
    uint32_t lapses; // verdicts that ended and were never confirmed, one after the other
    double lapsed_ns;
    double even_ns;                   // stages, data: when they were last not uneven
    double lapsed_log, suspected_log; // own / reference, at the most: of these; of the one that is
};

// One kind of work of one rank.
struct work {
    struct dp_straggler_kind newest;
    uint32_t group;
    struct window own;      // ns of one, normalised by tokens
    struct window relative; // log of own / reference
    double best_ns;         // median of the best few steps; 0 = not known yet
    double mean_ns, mean_tokens;
    // Of the step at hand, beyond these means, as shares of what is usual in the group; the most of
    // more_ns that counts.
    double more_ns, more_tokens, more_max;
    // Of the step at hand; 0 = none. Normalised by tokens as is best known, and at least and at
    // most.
    double value_ns, low_ns, high_ns;
    double reference_ns; // of others, at most
    double raw_ns;       // not normalised
};

// All work of one kind, on whatever rank: the same stages, the same passes.
struct group {
    struct dp_straggler_kind kind;
    uint32_t members;
    // How time follows tokens, fitted within ranks: sums over steps that fade.
    double sum_xx, sum_xy, sum_yy, weight;
    double step_x, step_y, step_count; // of the step at hand
    double tokens;                     // mean of one action; 0 = no experts
    double sum_tokens;                 // of the step at hand
    uint32_t tokens_steps;
    double share_low, share, share_high; // of the time that follows the tokens
    // Of the step at hand.
    double planned_ns; // median of its members
    double median_ns;  // lower median of the values
    double count;      // mean of the members' counts
    uint32_t first, present;
    uint32_t newest_rank; // one of those that do it
};

struct link {
    uint32_t peer, edge;
};

struct slot { // a sample that waits for those of other ranks
    int64_t step;
    bool filled;
    struct dp_straggler_sample sample; // its arrays are owned
    struct dp_straggler_kind *kinds;
    struct dp_straggler_link *links;
    size_t kinds_capacity, links_capacity;
};

// What its host takes away from a rank: time between actions, or that and time within them for
// which there was no core. A rank that is kept from its cores loses now the one and now the other;
// where others use the machine, too, the sum of both is the noisier one.
enum { HOST_GAPS, HOST_CORES, HOST_WAYS };
struct host {
    struct subject subject;
    double sum_ns;       // taken in the period at hand
    struct window taken; // ns of a step, mean of a period: the newest ones
    double best_ns;      // of the best few of them
    bool best_known;
    double usual_ns;     // of the period at hand, a step of it: what is no fault; < 0 = not known
    bool is_settling;    // after an action of ours: compared with nothing until the best is known
    double log, lost_ns; // of the period that ends with the step at hand, by step; NaN = none does
};

struct rank {
    struct slot slots[DP_STRAGGLER_PENDING_MAX];
    struct work *works;
    size_t works_count;
    struct link *links;
    size_t links_count;
    uint32_t missed; // steps in a row without a sample
    struct subject work, silence;
    struct host hosts[HOST_WAYS];
    double host_own_ns;  // sum of work and gaps in the period at hand
    uint32_t host_steps; // of these, with a sample
    bool is_on_host;     // it computes on cores: some were missing at times
    double known;        // how slow it was known to be from the beginning; 0 = not
    struct window individual, busy, off_core, lost; // of the newest steps
    // Of the step at hand.
    const struct dp_straggler_sample *sample; // NULL = none
    double own_ns, reference_ns, best_ns;     // of a step's work; 0 = not known
    double raw_log;                           // log of own / reference, not normalised by tokens
    double forward_log, backward_log;
    bool alone;                          // nobody does the same
    double relative_log, individual_log; // NaN = not known
};

// A pair of ranks that send each other something.
struct edge {
    uint32_t low, high;
    struct subject subject;
    float history[DP_STRAGGLER_HISTORY]; // value_ns while it was healthy, a ring
    uint32_t history_count;              // ever added
    double usual_ns;                     // median of the history; 0 = not known yet
    bool same_node;
    // Of the step at hand.
    double sum_ns[2], messages[2]; // to low, to high
    double value_ns;               // a message there and one back; 0 = none
    double bytes;                  // of one
    double log, lost_ns;
};

struct stage {
    struct subject subject;
    struct window ratio;
    double work_ns, planned_ns; // of the step at hand, on one rank
    uint32_t ranks, only_rank;
    bool is_changed; // a rank that has it is slower than it used to be, or kept from its cores
};

struct probe_figures {
    double gemm, gemm_on_core;             // ns of one flop; 0 = none
    double off_core;                       // share of that
    struct dp_straggler_probe_link *links; // owned
    size_t links_count;
    bool answered;
};

struct dp_straggler {
    struct dp_straggler_config config; // nodes is owned
    struct rank *ranks;
    struct group *groups;
    size_t groups_count;
    struct edge *edges;
    size_t edges_count;
    struct stage *stages;
    size_t stages_count;
    struct { // steps that wait, ascending
        int64_t step;
        uint32_t reported;
    } pending[DP_STRAGGLER_PENDING_MAX];
    uint8_t order[DP_STRAGGLER_PENDING_MAX]; // slots of these, in the order of steps
    size_t pending_count;
    uint32_t awaited;  // ranks that are not blind
    int64_t step;      // newest that was looked at
    uint64_t looked;   // how many
    double step_ns;    // of the slowest rank, step at hand
    double elapsed_ns; // sum of these
    struct window step_times;
    struct stretch period;      // of hosts: what there is of it
    int64_t period_first;       // step
    bool period_ends;           // with the step at hand
    struct window period_times; // ns of a step, mean of a period: the newest ones
    // An action of ours.
    int64_t freeze_step;
    uint32_t frozen; // steps left
    double before_ns;
    char why[DP_NAME_MAX * 2];
    struct subject data, doing;
    struct window unevenness, explained; // log of the worst rank's own / reference, by step
    double agreement[3];                 // fading sums: forward with backward, and their squares
    // Probes.
    uint64_t request;
    bool probing;
    int64_t asked_step;
    uint32_t answers;
    struct probe_figures *figures; // [ranks]
    // News.
    struct dp_straggler_verdict *news;
    size_t news_first, news_count, news_capacity;
    double *scratch; // [ranks, their works, edges: whichever is most]
    size_t scratch_size;
};

// series.c
void dp_straggler_window_add(struct window *window, double value);
// NaN of an empty one.
double dp_straggler_window_median(const struct window *window, uint32_t newest);
// Mean of those within three deviations of the median.
double dp_straggler_window_mean(const struct window *window, uint32_t newest);
// Mean of all of them.
double dp_straggler_window_plain_mean(const struct window *window, uint32_t newest);
void dp_straggler_sort(double *values, size_t count);
double dp_straggler_median(double *values, size_t count); // sorts them; the lower one
// Lower median of all but `own`, which is one of two or more sorted values.
double dp_straggler_median_of_others(const double *sorted, size_t count, double own);
// Learns what is healthy, tests what may not be.
void dp_straggler_series_add(struct series *series, const struct dp_straggler_config *config,
                             int64_t step, double value, bool healthy);
// A value that is shown but teaches nothing.
void dp_straggler_series_show(struct series *series, double value);
// Of the values since the change seems to have begun; NaN = there is none.
double dp_straggler_series_mean(const struct series *series);
// `each`: what a value is about; `persist_s`: for so long a change must have lasted.
bool dp_straggler_series_changed(const struct series *series,
                                 const struct dp_straggler_config *config, struct stretch each,
                                 double persist_s);
bool dp_straggler_series_recovered(const struct series *series,
                                   const struct dp_straggler_config *config);
void dp_straggler_series_reset(struct series *series);

// compare.c: what the step at hand is compared with.
// At least so many values in the scratch.
void dp_straggler_make_room(struct dp_straggler *self, size_t values);
void dp_straggler_compare_works(struct dp_straggler *self);
void dp_straggler_compare_edges(struct dp_straggler *self);

// compare_hosts.c: what hosts took away, summed over periods. A period ends with the step at hand
// when it is long enough; the next one begins after what has been learned of it.
void dp_straggler_compare_hosts(struct dp_straggler *self);
void dp_straggler_learn_hosts(struct dp_straggler *self);
// Forgets what there is of a period.
void dp_straggler_begin_period(struct dp_straggler *self);

// judge.c
void dp_straggler_judge(struct dp_straggler *self);
// The verdict of a subject, made where there is none; what changes is news.
struct dp_straggler_verdict *dp_straggler_verdict_of(struct subject *subject);
void dp_straggler_tell(struct dp_straggler *self, const struct dp_straggler_verdict *verdict);
// Healthy again: tells it, with these words behind.
void dp_straggler_clear(struct dp_straggler *self, struct subject *subject, const char *why);
// Its verdict ends by itself: the next one has to last longer, unless this one was confirmed.
void dp_straggler_count_lapse(const struct dp_straggler *self, struct subject *subject);
// Seconds that a change must have lasted.
double dp_straggler_patience_s(const struct dp_straggler *self, const struct subject *subject);
// Time in a step that the rank was ready to compute and had no core, beyond what others had.
double dp_straggler_off_core_ns(struct dp_straggler *self, uint32_t r);
// So much of the rank's work it had no core for, that what it and its messages take tells of
// nothing else.
bool dp_straggler_lacks_cores(const struct rank *rank);
bool dp_straggler_is_suspect(const struct subject *subject);
bool dp_straggler_host_is_suspect(const struct rank *rank);

// whole.c
void dp_straggler_judge_stages(struct dp_straggler *self);
void dp_straggler_judge_data(struct dp_straggler *self);
void dp_straggler_judge_doing(struct dp_straggler *self);

// probe.c
void dp_straggler_judge_probes(struct dp_straggler *self);
