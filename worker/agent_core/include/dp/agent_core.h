// What the agent decides: which assignments it holds, what it tells their keepers and the
// controller. Pure: no clock, no I/O; the shell turns what happens into events and performs the
// effects in order.
//
// An assignment is known by its fence (job, attempt, epoch). An order whose fence is older than
// what this node has seen of the job is refused; a newer one first ends the older ranks. What is
// told are levels, everything that is, so that a lost message costs nothing.
//
// One thread.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dp/limits.h"

#define DP_AGENT_TEXT_MAX 512
#define DP_AGENT_ASSIGNMENTS_MAX 256
#define DP_AGENT_STOP_GRACE_MS 5000

struct dp_agent_fence {
    char job[DP_ID_MAX];
    uint32_t attempt;
    uint32_t epoch;
};
bool dp_agent_fence_equal(const struct dp_agent_fence *a, const struct dp_agent_fence *b);

struct dp_agent_blob {
    void *bytes; // owned; NULL = none
    size_t length;
};

// The numbers of dp.v1.RankPhase.
typedef enum dp_agent_phase {
    DP_AGENT_UNKNOWN, // not started yet
    DP_AGENT_STARTING,
    DP_AGENT_READY,
    DP_AGENT_RUNNING,
    DP_AGENT_FINISHED, // has ended and said how
    DP_AGENT_DIED,     // has ended without a word
} dp_agent_phase;

struct dp_agent_steps;

struct dp_agent_rank {
    uint32_t rank;
    dp_agent_phase phase;
    bool started; // told to run
    bool ended;
    int64_t pid;
    int32_t exit_status;
    int32_t signal;
    uint64_t step;                 // completed
    struct dp_agent_blob ready;    // packed dp.v1.RankReady
    struct dp_agent_blob finished; // packed dp.v1.RankFinished
    struct dp_agent_steps *steps;  // reports kept for a controller that was away
};

typedef enum dp_agent_keeper {
    DP_AGENT_KEEPER_NONE, // waits until an older assignment of the job has ended
    DP_AGENT_KEEPER_STARTING,
    DP_AGENT_KEEPER_CONNECTED, // and everything it knew was replayed
    DP_AGENT_KEEPER_GONE,
} dp_agent_keeper;

struct dp_agent_assignment {
    struct dp_agent_fence fence;
    struct dp_agent_rank *ranks;
    size_t ranks_count;
    dp_agent_keeper keeper;
    bool keeper_lost; // it died while ranks ran
    int32_t keeper_signal;
    bool adopted; // found on disk, not prepared in this life
    bool stopping;
    bool releasing;
    bool fenced;                      // ended by this node itself: the controller was away too long
    int64_t force_at_ns;              // a polite stop ends then; INT64_MAX = none
    struct dp_agent_blob prepare;     // as it was ordered, until the keeper was started
    struct dp_agent_blob start_order; // a RankStart, for ranks that have not had it
    char error[DP_AGENT_TEXT_MAX];    // why the node could not do its part
};

typedef enum dp_agent_event_type {
    // From the controller; `fence` is the order's.
    DP_AGENT_PREPARE, // numbers = the ranks; bytes = packed dp.v1.Prepare
    DP_AGENT_START,   // bytes = packed RankOrder for each rank
    DP_AGENT_STOP,    // bytes = packed RankOrder to finish the step and stop, or none; grace_ms
    DP_AGENT_RELEASE,
    DP_AGENT_CHECKPOINT, // bytes = packed RankOrder
    DP_AGENT_STREAM_UP,  // the controller said welcome
    DP_AGENT_STREAM_DOWN,
    // From the disk, when the agent starts.
    DP_AGENT_FOUND, // numbers = the ranks, none when the file was unreadable
    DP_AGENT_WAS_RELEASED,
    // From a keeper.
    DP_AGENT_KEEPER_SYNCED,
    DP_AGENT_KEEPER_FAILED, // could not be started or reached; text
    DP_AGENT_KEEPER_ENDED,  // and every frame of it was handed over; signal when known
    DP_AGENT_SPAWNED,       // rank, pid, started
    DP_AGENT_EXITED,        // rank, pid, status, signal, text
    DP_AGENT_REPORT,        // rank, kind, step, bytes = packed RankReport, inner, kept
    DP_AGENT_TICK,
    DP_AGENT_END_ALL, // the agent ends and takes its ranks with it
    DP_AGENT_EVENT_COUNT
} dp_agent_event_type;

typedef enum dp_agent_report {
    DP_AGENT_REPORT_READY,    // inner = packed RankReady
    DP_AGENT_REPORT_STEP,     // kept = the report without what need not be sent twice
    DP_AGENT_REPORT_FINISHED, // inner = packed RankFinished
    DP_AGENT_REPORT_LASTING,  // evaluation, checkpoint: the newest is sent again, kept = it
    DP_AGENT_REPORT_SAMPLE,   // utilisation: `step` counts, the rest passes through
} dp_agent_report;

// Pointers are borrowed for the duration of the call.
struct dp_agent_event {
    dp_agent_event_type type;
    int64_t now_ns; // monotonic
    struct dp_agent_fence fence;
    uint32_t rank;
    const uint32_t *numbers;
    size_t numbers_count;
    int64_t pid;
    int32_t status;
    int32_t signal;
    bool started;
    uint32_t grace_ms;
    dp_agent_report kind;
    uint64_t step;
    const void *bytes;
    size_t length;
    const void *inner;
    size_t inner_length;
    const void *kept;
    size_t kept_length;
    const char *text;
};

typedef enum dp_agent_effect_type {
    DP_AGENT_DO_START_KEEPER, // record the assignment (bytes), start its keeper, connect
    DP_AGENT_DO_SPAWN,        // `rank`, with its RankPrepare
    DP_AGENT_DO_ORDER,        // bytes to `rank`; start
    DP_AGENT_DO_STOP,         // `rank` or DP_AGENT_ALL_RANKS within grace_ms
    DP_AGENT_DO_SHUTDOWN,     // all is known: the keeper may go
    DP_AGENT_DO_FORGET,       // mark the directory released
    DP_AGENT_DO_LEVEL,        // the assignment's level to the controller
    DP_AGENT_DO_REPORT,       // bytes = packed RankReport to the controller
    DP_AGENT_DO_LOG,          // text
    DP_AGENT_EFFECT_COUNT
} dp_agent_effect_type;

#define DP_AGENT_ALL_RANKS UINT32_MAX

// bytes are borrowed from the event or the core: valid until the next step.
struct dp_agent_effect {
    dp_agent_effect_type type;
    struct dp_agent_fence fence;
    uint32_t rank;
    uint32_t grace_ms;
    bool start;
    bool sample; // a report that the next one makes up for
    const void *bytes;
    size_t length;
    char text[DP_AGENT_TEXT_MAX];
};

struct dp_agent_effects {
    struct dp_agent_effect *items;
    size_t count;
    size_t capacity;
};
void dp_agent_effects_deinit(struct dp_agent_effects *effects);

struct dp_agent_core;

// After orphan_ms without a controller the node ends its ranks itself. now_ns starts that clock.
struct dp_agent_core *dp_agent_core_new(uint32_t orphan_ms, int64_t now_ns);
void dp_agent_core_free(struct dp_agent_core *core);
// Appends the effects of one event. An event about an assignment that is not held does nothing but
// say so.
void dp_agent_core_step(struct dp_agent_core *core, const struct dp_agent_event *event,
                        struct dp_agent_effects *effects);
// What is held, in the order it came; borrowed until the next step.
size_t dp_agent_core_count(const struct dp_agent_core *core);
const struct dp_agent_assignment *dp_agent_core_at(const struct dp_agent_core *core, size_t index);
const struct dp_agent_assignment *dp_agent_core_find(const struct dp_agent_core *core,
                                                     const struct dp_agent_fence *fence);
// No rank of it runs or will.
bool dp_agent_assignment_ended(const struct dp_agent_assignment *assignment);
