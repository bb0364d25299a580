// Finds what is wrong with a schedule and tells whoever asked: validate stops at the first problem,
// audit takes all.
#pragma once

#include "words.h"

typedef enum dp_problem_about {
    DP_PROBLEM_SIZES,     // the numbers of ranks, stages and micro-batches
    DP_PROBLEM_PLACEMENT, // which rank holds which stage
    DP_PROBLEM_LISTS,     // how many actions there are
    DP_PROBLEM_ACTION,    // the one at `index`
    DP_PROBLEM_END,       // something is missing when the rank's list ends
} dp_problem_about;

struct dp_problem {
    dp_problem_about about;
    int32_t rank; // of an action or an end
    size_t index; // into the actions
    const char *message;
    const char *help; // NULL = none
};

struct dp_problem_sink {
    struct dp_words words;
    bool (*note)(void *context, const struct dp_problem *problem); // whether to look for more
    void *context;
};

// Whether there was none. What the sizes or the placement get wrong hides the rest; rings of ranks
// that wait for each other are looked for when nothing else is wrong.
bool dp_schedule_find_problems(const struct dp_schedule *schedule,
                               const struct dp_problem_sink *sink);

// Where the parts of a schedule stand in the text that it came from; line 0 = nowhere.
struct dp_schedule_source {
    struct dp_words words;
    struct dp_schedule_place sizes, placement, lists;
};

// dp_schedule_audit in the words of the source.
bool dp_schedule_audit_source(const struct dp_schedule *schedule,
                              const struct dp_schedule_source *source, struct dp_diags *diags);
