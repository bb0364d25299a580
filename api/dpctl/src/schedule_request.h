// What the verbs of `dpctl schedule` are asked, and what they share.
#pragma once

#include "dp/auto.h"
#include "dp/limits.h"
#include "dp/schedule.h"
#include "dp/sim_analysis.h"
#include "dp/simulate.h"
#include "dpctl.h"

// Groups of options; a verb refuses those that mean nothing to it.
typedef enum schedule_options {
    SCHEDULE_SIZES = 1 << 0,    // -P, -M, -v, --layers
    SCHEDULE_COSTS = 1 << 1,    // --cost, --hop, --p2p
    SCHEDULE_CHANGES = 1 << 2,  // --slow, --slow-link, --stage-cost
    SCHEDULE_SEARCH = 1 << 3,   // --seed, --moves, --placement, --objective
    SCHEDULE_FAMILIES = 1 << 4, // --schedules, --memory, --tokens-per-s, --step-s, ...
    SCHEDULE_DRAWING = 1 << 5,  // --table
    SCHEDULE_FILES = 1 << 6,    // --format, --out
    SCHEDULE_READING = 1 << 7,  // --letters
    SCHEDULE_WIDTH = 1 << 8,    // --width
    SCHEDULE_BYTES = 1 << 9,    // --activation-bytes, --weight-bytes
    SCHEDULE_CAP = 1 << 10,     // --memory-cap
} schedule_options;

enum { SCHEDULE_GROUPS = 11 };

struct schedule_request {
    const char *verb, *subject;
    const char *schedule;                     // --schedule: the subject by another name
    uint32_t given;                           // schedule_options
    const char *given_names[SCHEDULE_GROUPS]; // of each group the first: "--out"
    int32_t pipeline, microbatches, virtual_stages;
    const char *cost; // "F=1,I=1,W=1"
    double hop;       // seconds
    dp_sim_p2p p2p;
    double activation_bytes, weight_bytes; // kept from F on; of these, until W. 0 = not said
    const char *slow[DP_SCHEDULE_CHANGES_MAX], *slow_links[DP_SCHEDULE_CHANGES_MAX];
    int slow_count, slow_links_count;
    const char *stage_cost; // a file
    double memory_cap;      // bytes of a rank; 0 = none
    uint64_t seed;
    int64_t moves; // 0 = the default
    const char *placement;
    dp_auto_objective objective;
    const char *schedules, *out, *format;
    double memory; // compare: activations of so many micro-batches; 0 = 1F1B's
    double tokens_per_s, step_s, tokens_per_step;
    int32_t gpus;        // compare: that share them; 0 = P
    int32_t layers;      // of the model; 0 = not said
    const char *letters; // check: of a CSV
    bool table;
    int32_t width;    // -1 = not said
    bool same_model;  // auto, compare: seconds and bytes are of 1/P of the model
    bool same_chunks; // compare: and activation_bytes count activations, whatever a file says
};

// Fills the request, with every default, from the command line.
void schedule_request_parse(struct dpctl *ctl, int argc, char **argv,
                            struct schedule_request *ret_request);
// The option of these groups that was given; NULL when none was.
const char *schedule_request_given(const struct schedule_request *request, uint32_t groups);
// What was asked with every default, so that the answer can be had again; null = not said.
json_t *schedule_request_json(const struct schedule_request *request);
