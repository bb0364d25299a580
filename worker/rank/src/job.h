// One rank's part of a job: prepared from its first order, connected by its second, then trained.
#pragma once

#include <pthread.h>
#include <stdbool.h>

#include "control.h"
#include "dp/alltoall.h"
#include "dp/data.h"
#include "dp/plan.h"
#include "dp/simulate.h"
#include "dp/spec.h"
#include "dp/trainer.h"

struct job {
    struct control *control; // borrowed
    uint32_t rank;
    uint32_t attempt; // of its first order: what an earlier one still sends is refused
    struct dp_job_spec spec;
    struct dp_plan plan;
    struct dp_schedule schedule;
    struct dp_sim_costs costs; // of a sim rank
    struct dp_sim_pace *pace;  // of a sim rank
    struct dp_corpus *corpus;  // of a rank that computes
    struct dp_device *device;
    bool fp8; // products take E4M3 operands
    struct dp_exec_meter *meter;
    struct dp_transport *transport;
    struct dp_trainer *trainer;
    char address[DP_ADDRESS_MAX];
    char directory[DP_PATH_MAX];  // of checkpoints
    int64_t blocked_ms;           // without a word from a peer it counts as lost; 0 = the default
    struct dp_alltoall *alltoall; // NULL without expert-parallel peers
    pthread_t progress, comm;     // of the transport, of the alltoall
    pthread_t saving;             // writes checkpoints; of a rank that computes
    bool is_connected, is_saving;
    char host[DP_ADDRESS_MAX]; // where its ports are
    uint64_t token;            // of its assignment
    bool takes_state;          // of ranks that hold it, instead of a checkpoint's
    bool has_lost_peer;        // which closing may wait for in vain
    bool lacks_transport;      // its machine has none such, or no port
    uint64_t save_request;     // that the checkpoint under way answers
    int64_t trace_every;       // steps between two whose spans are reported
    double holdout_loss;       // of the newest evaluation that it reported
    bool holdout_known;
};

// A zeroed job may be deinited.
void job_deinit(struct job *job);

// Plan, schedule, data, weights and the data port: all that can be wrong before peers are needed.
dp_status job_prepare(struct job *job, const Dp__V1__RankPrepare *prepare, struct dp_error *err);
void job_report_ready(struct job *job);
// Slots for experts of a layer, over an EP group.
int32_t job_expert_slots(const struct job *job);
// Links to all peers, and the threads that serve them.
dp_status job_connect(struct job *job, const Dp__V1__RankStart *start, struct dp_error *err);
// Ends these threads, in good order where all went well.
void job_disconnect(struct job *job);
// Measures products and links between two steps, and reports.
dp_status job_probe(struct job *job, uint64_t request, int64_t step, struct dp_error *err);
// Trains to the end or to an ordered stop.
dp_status job_run(struct job *job, struct dp_error *err);
// Whether a run that has failed so goes on as one that holds its state.
bool job_may_hold(const struct job *job, dp_status status);
// Trains no further and serves its state to others until it is told to stop; `why` is "" or the
// peer that it has lost.
dp_status job_hold(struct job *job, const char *why, struct dp_error *err);
// What the sources that the start names hold becomes the state of this rank.
dp_status job_take(struct job *job, const Dp__V1__RankStart *start, struct dp_error *err);
// The rank's last word.
void job_report_finished(struct job *job, dp_status status, const struct dp_error *err);
