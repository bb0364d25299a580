// What real runs teach: how much longer each kind of work took than was predicted, and what becomes
// of a node's profile. Pure; any thread.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dp/buf.h"
#include "dp/error.h"
#include "dp/json.h"
#include "dp/limits.h"
#include "dp/profile.h"

typedef enum dp_part {
    DP_PART_COMPUTE,  // actions, without the exchange inside them
    DP_PART_EXCHANGE, // waits for the all-to-all of experts
    DP_PART_HOP,      // messages between stages
    DP_PART_GRADIENT, // sums of gradients
    DP_PART_OPTIMIZER,
    DP_PART_COUNT
} dp_part;
const char *dp_part_text(dp_part part);

// Factors on the seconds of each part: 1 = as the profile says.
struct dp_correction {
    double factor[DP_PART_COUNT];
    int64_t base_measured_at_s; // of the profile that they correct
    char source[DP_ID_MAX];     // "job-17", the newest run that taught something; "" = none did
    int32_t runs;               // that taught
};
void dp_correction_init(struct dp_correction *ret_correction);
bool dp_correction_is_none(const struct dp_correction *correction);

// Scales the profile's figures so that each part takes `factor` times as long, and says so in its
// provenance ("corrected by job-17: compute x1.06"). One that was made against another profile
// (measured at another time) does nothing.
void dp_correction_apply(const struct dp_correction *correction, struct dp_profile *profile);

// Seconds of one step on one rank, by part; 0 = not known. A run's are medians over its steps.
struct dp_part_times {
    double s[DP_PART_COUNT];
};

// What is known of a run when it is over.
struct dp_run_facts {
    const char *job;
    bool completed;
    bool is_sim;
    bool cores_exceeded; // more ranks than cores on some machine
    // CPU time of ranks over the wall time of what they computed: less than 1 where others ran,
    // 0 = not known.
    double core_share;
    bool learning_off; // asked for: --no-learn, or [resources] learn = false
    bool recalibrated; // its nodes were measured again meanwhile
    int64_t steps;     // measured, the first left out
    double predicted_step_s, measured_step_s;
    double steps_spread; // (third - first quartile) / median of step times
    const struct dp_part_times *predicted, *measured; // [ranks]
    size_t ranks;
    struct dp_correction used; // with which the prediction was made
};

// How one part came out.
struct dp_part_result {
    double predicted_s, measured_s; // medians over ranks
    double ratio;                   // 0 = not known
    bool learned;
};

struct dp_lesson {
    bool learned;
    char reason[DP_NAME_MAX * 3]; // why nothing was
    struct dp_part_result parts[DP_PART_COUNT];
    struct dp_correction used;
    double hops_s; // of a step: what messages take while a pipeline fills and drains, predicted
    struct dp_correction correction; // what holds from now on: `used` when nothing was learned
};
// Learns from runs that completed on a real device with a core for each rank, with at least
// DP_LEARN_STEPS_MIN steady steps. A part counts where it is at least a hundredth of the step. The
// new factor moves from the used one towards used x ratio, by at most DP_LEARN_CHANGE_MAX in one
// run, and stays within DP_LEARN_FACTOR_MAX of the profile.
void dp_lesson_learn(const struct dp_run_facts *facts, struct dp_lesson *ret_lesson);

// The form "dp.correction/1".
json_t *dp_correction_to_json(const struct dp_correction *correction);
dp_status dp_correction_from_json(const json_t *json, struct dp_correction *ret_correction,
                                  struct dp_error *err);
// "compute x1.06, gradient sums x0.91"; "" when it changes nothing.
void dp_correction_render(const struct dp_correction *correction, struct dp_buf *out);
