// The controller's end of an agent's stream, in the test's own process.
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "dp/arena.h"
#include "dp/buf.h"
#include "dp/rpc.h"
#include "dp/v1/agent.pb-c.h"

#define FAKE_RANKS_MAX 16

// What was last heard of one rank.
struct fake_rank_view {
    Dp__V1__RankPhase phase;
    int64_t pid;
    int32_t exit_status;
    int32_t signal;
    bool stopped;
    bool unkillable, was_unkillable;
    bool ready;
    bool finished;
    bool finished_ok;
    uint64_t step;
    uint64_t steps_heard; // StepDone reports since the session was opened
    uint64_t spans_heard;
    uint64_t samples_heard;
    bool held;
    uint64_t held_step;
    char held_address[64];
    uint64_t probe_request; // of the newest answer
};

struct fake_controller {
    struct dp_rpc_server *server;
    uint64_t call;            // the agent's stream; 0 = none
    uint32_t views_per_epoch; // rank r of epoch e is seen at r + (e - 1) * this
    bool beside;              // what is prepared is so beside older epochs
    uint32_t protocol;
    uint64_t hellos;
    uint64_t heartbeats;
    bool has_profile;
    char calibration_error[512];
    uint64_t calibrated_request; // of the newest word on a calibration that was ordered
    Dp__V1__CalibrateOutcome calibrated;
    char calibrated_message[512];
    size_t calibrated_bytes;     // of the profile in it
    bool silent;                 // acknowledges no heartbeat
    uint32_t welcome_ms, ack_ms; // periods of heartbeats that it asks for; 0 = 100, none
    bool bad_plans;              // its plans do not fit together
    uint32_t fence_ms;
    char node[64];
    size_t assignments; // in the newest hello or heartbeat
    bool keeper_lost;
    int32_t keeper_signal;
    char error[512];
    bool stopping;
    char refusal[512]; // the error of the newest level without ranks, and its epoch
    uint32_t refused_epoch;
    struct fake_rank_view ranks[FAKE_RANKS_MAX];
    pid_t watched; // for the test's own conditions
    size_t watched_count;
    struct dp_buf log;
    uint64_t log_offset;
    uint64_t log_answers;
    bool log_end;
    char log_error[512];
};

void fake_controller_open(struct fake_controller *controller, const char *listen);
void fake_controller_close(struct fake_controller *controller);
const char *fake_controller_address(const struct fake_controller *controller);
// Serves until ready() says true; fails the test at the deadline.
void fake_controller_until(struct fake_controller *controller,
                           bool (*ready)(struct fake_controller *controller), const char *what);

void fake_controller_prepare(struct fake_controller *controller, const char *job, uint32_t epoch,
                             const uint32_t *ranks, size_t count);
void fake_controller_start(struct fake_controller *controller, const char *job, uint32_t epoch);
void fake_controller_stop(struct fake_controller *controller, const char *job, uint32_t epoch,
                          uint32_t grace_ms);
void fake_controller_release(struct fake_controller *controller, const char *job, uint32_t epoch);
void fake_controller_read_log(struct fake_controller *controller, const char *job, uint32_t epoch,
                              uint32_t rank);
// Ranks 0 and 1 of the epoch before hold `step` and serve it.
void fake_controller_start_from(struct fake_controller *controller, const char *job, uint32_t epoch,
                                uint64_t step);
void fake_controller_pause(struct fake_controller *controller, const char *job, uint32_t epoch);
void fake_controller_settle(struct fake_controller *controller, const char *job, uint32_t epoch,
                            uint64_t step);
void fake_controller_probe(struct fake_controller *controller, const char *job, uint32_t epoch,
                           uint64_t request);
void fake_controller_calibrate(struct fake_controller *controller, uint64_t request, bool cancel);
