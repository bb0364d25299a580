// What the agent decides: which assignments it holds, what it tells their keepers and the
// controller. Pure: no clock, no I/O; the shell turns what happens into events and performs the
// effects in order.
//
// An assignment is known by its fence (job, attempt, epoch). An order whose fence is not newer than
// what this node has seen of the job is refused, with the reason, unless the assignment is held; a
// newer one first ends the older ranks. One that is prepared beside them leaves the ranks of older
// epochs of its attempt alone: each assignment then lives by its own orders. What is told are
// levels, everything that is, so that a lost message costs nothing.
//
// A keeper that was out of touch has the last word: what its replay does not name was never started
// there, whatever had been ordered, and is ordered again.
//
// A node that is cut off ends its ranks itself, counted from the sending of the last word that the
// controller acknowledged: the controller, which counts from its arrival, is never earlier.
//
// One thread.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dp/limits.h"

#define DP_AGENT_STOP_GRACE_MS 5000
#define DP_AGENT_UNKILLABLE_MS 30000    // a process that was killed so long ago cannot be killed
#define DP_AGENT_KEEPER_ANSWER_MS 10000 // a keeper that says nothing for so long is unreachable
// From the moment that the core forces a stop until no rank is left: the grace, or the time until a
// keeper that does not answer is killed, and then some for signals and the ends of processes.
#define DP_AGENT_STOP_MS (DP_AGENT_STOP_GRACE_MS + DP_AGENT_KEEPER_ANSWER_MS)

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
    bool named;    // by its keeper, since the connection to it was made
    bool started;  // told to run
    bool stopping; // its keeper was told to end it
    bool ended;
    bool stopped;    // ended after it had been told to
    bool unkillable; // was killed long ago and has not ended
    int64_t pid;
    int32_t exit_status;
    int32_t signal;
    uint64_t step;                 // completed
    struct dp_agent_blob ready;    // packed dp.v1.RankReady
    struct dp_agent_blob finished; // packed dp.v1.RankFinished
    struct dp_agent_blob held;     // packed dp.v1.RankHeld, the newest
    struct dp_agent_steps *steps;  // reports kept for a controller that was away
};

typedef enum dp_agent_keeper {
    DP_AGENT_KEEPER_NONE, // waits until an older assignment of the job has ended
    DP_AGENT_KEEPER_AWAY, // started, or out of touch: orders wait until it has told what it knows
    DP_AGENT_KEEPER_CONNECTED,
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
    bool beside;  // takes over from older epochs of the attempt, which go on meanwhile
    bool stopping;
    bool releasing;
    bool fenced;                      // ended by this node itself: the controller was away too long
    int64_t force_at_ns;              // a polite stop ends then; INT64_MAX = none
    int64_t gone_by_ns;               // its ranks, killed, have ended by then; INT64_MAX = none
    struct dp_agent_blob prepare;     // as it was ordered, until the keeper was started
    struct dp_agent_blob start_order; // a RankStart, for ranks that have not had it
    // RankPause and RankSettle, the newest: given again to a keeper that was out of touch. Whoever
    // has obeyed loses nothing by hearing it twice.
    struct dp_agent_blob pause_order, settle_order;
    char error[DP_AGENT_TEXT_MAX];   // why the node could not do its part
    char trouble[DP_AGENT_TEXT_MAX]; // the same, as long as it lasts: the keeper is out of reach
};

typedef enum dp_agent_event_type {
    // From the controller; `fence` is the order's.
    DP_AGENT_PREPARE,     // numbers = the ranks; bytes = packed dp.v1.Prepare; beside
    DP_AGENT_BAD_PREPARE, // one that makes no sense; text
    DP_AGENT_START,       // bytes = packed RankOrder for each rank
    DP_AGENT_STOP,        // bytes = packed RankOrder to finish the step and stop, or none; grace_ms
    DP_AGENT_RELEASE,
    DP_AGENT_CHECKPOINT,   // bytes = packed RankOrder, for ranks that run
    DP_AGENT_PAUSE,        // the same
    DP_AGENT_SETTLE,       // the same
    DP_AGENT_PROBE,        // the same
    DP_AGENT_REBALANCE,    // the same
    DP_AGENT_STREAM_UP,    // the controller said welcome
    DP_AGENT_ACKNOWLEDGED, // sent_ns: when what it answers was sent
    DP_AGENT_STREAM_DOWN,
    // From the disk, when the agent starts.
    DP_AGENT_FOUND, // numbers = the ranks, none when the file was unreadable
    DP_AGENT_WAS_RELEASED,
    // From a keeper.
    DP_AGENT_KEEPER_SYNCED,
    DP_AGENT_KEEPER_LEFT,        // the connection broke; what was ordered may be lost
    DP_AGENT_KEEPER_UNREACHABLE, // it lives and does not answer; text; said again while it lasts
    DP_AGENT_KEEPER_FAILED,      // could not be started; text
    DP_AGENT_KEEPER_ENDED,       // and every frame of it was handed over; signal when known
    DP_AGENT_SPAWNED,            // rank, pid, started, stopped (was told to), by_keeper
    DP_AGENT_EXITED,             // rank, pid, status, signal, stopped, by_keeper, text
    DP_AGENT_REPORT,             // rank, kind, step, bytes = packed RankReport, inner, kept
    DP_AGENT_TICK,
    DP_AGENT_END_ALL, // the agent ends and takes its ranks with it
    DP_AGENT_EVENT_COUNT
} dp_agent_event_type;

typedef enum dp_agent_report {
    DP_AGENT_REPORT_READY,      // inner = packed RankReady
    DP_AGENT_REPORT_STEP,       // kept = the report without what need not be sent twice
    DP_AGENT_REPORT_FINISHED,   // inner = packed RankFinished
    DP_AGENT_REPORT_EVALUATION, // the newest is sent again, kept = it
    DP_AGENT_REPORT_CHECKPOINT, // the same
    DP_AGENT_REPORT_HELD,       // inner = packed RankHeld, step = what it holds
    DP_AGENT_REPORT_ONCE,       // passes through: who asked asks again
    DP_AGENT_REPORT_SAMPLE,     // utilisation: `step` counts, the rest passes through
} dp_agent_report;

// Pointers are borrowed for the duration of the call.
struct dp_agent_event {
    dp_agent_event_type type;
    int64_t now_ns; // monotonic
    int64_t sent_ns;
    struct dp_agent_fence fence;
    uint32_t rank;
    const uint32_t *numbers;
    size_t numbers_count;
    int64_t pid;
    int32_t status;
    int32_t signal;
    bool started;
    bool stopped;
    bool by_keeper; // it stopped the rank itself: nobody renewed its lease, or a signal
    bool beside;
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
    DP_AGENT_DO_KILL_KEEPER,  // it does not answer, and its ranks must end: they end with it
    DP_AGENT_DO_FORGET,       // mark the directory released
    DP_AGENT_DO_LEVEL,        // the assignment's level to the controller
    DP_AGENT_DO_REPORT,       // bytes = packed RankReport to the controller
    DP_AGENT_DO_REFUSE,       // a level of an assignment that is not held: text; leftover
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
    bool sample;   // a report that the next one makes up for
    bool leftover; // files of an earlier assignment with this very fence are in its directory
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

// How often the controller hears of the node: as it asks (0 = it does not), but several times
// before the node would end its ranks itself.
uint32_t dp_agent_heartbeat_ms(uint32_t asked_ms, uint32_t orphan_ms);
// Until the next one: the period or up to a fifth less, by `chance` in [0, 1). So nodes that began
// together (a controller that was started again) do not stay together, and none is late.
int64_t dp_agent_heartbeat_wait_ns(uint32_t period_ms, double chance);

// The node ends its ranks itself when what was sent within the last orphan_ms was not acknowledged.
// heard_ns starts that clock: now, or what is known from an earlier life.
struct dp_agent_core *dp_agent_core_new(uint32_t orphan_ms, int64_t heard_ns);
// Instead of DP_AGENT_UNKILLABLE_MS.
void dp_agent_core_set_unkillable(struct dp_agent_core *core, uint32_t unkillable_ms);
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
