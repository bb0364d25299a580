// All ranks of a small job as threads of the test, over loopback, tcp or slow links.
#pragma once

#include "dp/trainer.h"
#include "dp/trainer_probe.h"
#include "made_schedule.h"
#include "slow.h"
#include "wires.h"

#define TRIAL_STEPS_MAX 64
#define TRIAL_RANKS_MAX 16

// ThreadSanitizer is slow and after races: whether numbers are right is for the other builds.
#ifdef __SANITIZE_THREAD__
#define TRIAL_UNDER_TSAN 1
#else
#define TRIAL_UNDER_TSAN 0
#endif

struct trial {
    const char *schedule;
    const struct made *made;         // instead; its sizes are the trial's
    const struct dp_schedule *given; // instead
    int32_t virtual_stages;          // 0 = the family's default
    int32_t layers;                  // of the model
    int32_t pipeline, data, expert;
    int32_t microbatches; // per replica
    // [data] of each replica instead, with orders of its own; their sum is data * microbatches.
    // NULL = all have as many.
    const int32_t *replica_microbatches;
    int32_t micro_batch_size;
    dp_element element;
    int64_t steps;      // length of the run
    int64_t stop_after; // steps actually run; 0 = all
    double lr;
    bool tcp, no_overlap, sim, evaluate;
    bool verbs;              // over the machine's own RDMA device
    bool alltoall;           // EP peers exchange by dp_alltoall, as in dp-rank; else by messages
    int32_t sequential_rank; // this rank alone does not overlap; -1 = none
    int32_t nodes;           // to the alltoall: EP peers are dealt out evenly to so many; 0 = 1
    int32_t limited_nodes;   // what the alltoall is promised
    // Told of every routing that an EP rank makes, by the rank's own thread; NULL = nobody.
    void (*routed)(void *context, int32_t rank, int64_t tokens, const int32_t *index);
    void *routed_context;
    uint32_t recompute, offload; // as in dp_exec_config
    bool fp8, save_fp8;
    const struct dp_model_spec *model; // instead of the tiny one; of as many layers as the trial
    // What a rank computes with; NULL = the cpu device as it is.
    dp_status (*open_device)(dp_element element, struct dp_device **ret_device,
                             struct dp_error *err);
    const struct slow_link *slow;     // the links are so; NULL = loopback or tcp
    const struct wires *wires;        // with tcp: ranks are there; NULL = all on loopback
    const char *resume;               // checkpoint to start from
    const char *save;                 // directory to write one to at the end
    int32_t cut_rank;                 // this rank's transport is aborted before step 2; -1 = none
    int64_t holdout;                  // samples held out
    int32_t delay_us;                 // every message is delayed by up to this
    const struct dp_sim_costs *costs; // of a sim trial
    // Of its ranks; NULL = as planned.
    const struct dp_sim_pace *const *paces;
    int64_t probe_after; // this step, every rank probes; 0 = never
    dp_shard shard;
    bool bf16_moments;
    double bias_update;
    double tilt;             // the bias of the first expert of each layer starts here
    int32_t threads;         // of each rank's device; 0 = 1
    int64_t rebalance_every; // as in dp_trainer_config
    bool advise;             // experts stay where they are
    int32_t expert_copies;   // slots more on each rank; EP > 1
    double clip;             // of the gradient's norm; 0 = 1
    // On each rank before its first step, and after the last or the one that failed: what they give
    // is what has come of the rank. NULL = nothing.
    dp_status (*begin)(void *context, int32_t rank, struct dp_trainer *trainer,
                       struct dp_error *err);
    dp_status (*end)(void *context, int32_t rank, struct dp_trainer *trainer, dp_status status,
                     struct dp_error *err);
    void *hooks;
    const struct dp_transport_fault *fault; // of fault_rank's links; NULL = none
    int32_t fault_rank;
};

// Every default of the tests: the tiny model on one rank, 16 samples a step.
struct trial trial_default(void);
struct dp_model_spec trial_model(const struct trial *trial);
#define TRIAL_SEQUENCE 32
#define TRIAL_LAYERS 4
// Latent attention, sigmoid scores with a bias that moves far, multi-token prediction.
extern const struct dp_model_spec trial_latent;
// Its experts in groups, with an auxiliary loss and a bias that moves slowly.
struct dp_model_spec trial_latent_groups(void);
// One matrix at both ends, gated shared experts, biases and norms of queries and keys.
extern const struct dp_model_spec trial_tied;
// First layer of the stage.
int32_t trial_layer_begin(const struct trial *trial, const struct dp_schedule *schedule,
                          int32_t stage);
int64_t trial_global_batch(const struct trial *trial);

struct trial_tensor {
    char name[DP_NAME_MAX];
    int64_t count;
    double *values;
};

// What one rank ended with.
struct trial_rank {
    dp_status status;
    struct dp_error err;
    struct dp_exec_failure failure;
    struct dp_trainer_report reports[TRIAL_STEPS_MAX];
    int64_t step_first, step_done;
    struct trial_tensor *gradients; // of the first step run, summed; copies too
    size_t gradients_count;
    struct trial_tensor *weights; // at the end
    size_t weights_count;
    double rank_loads[TRIAL_STEPS_MAX]; // tokens that came to its experts over its EP group's mean
    double skews[TRIAL_STEPS_MAX];      // of each step, the most uneven layer that it holds
    int64_t sample_first, sample_end;   // trained on, where this rank has tokens to read
    double evaluated_loss;
    uint64_t evaluated_tokens;
    struct dp_exec_record *records; // of all steps
    size_t records_count;
    uint64_t put_bytes;                   // by the alltoall, to other ranks, in all
    uint64_t peer_bytes[TRIAL_RANKS_MAX]; // to each member of its EP group
    struct dp_device_memory memory;       // of its device, at the end
    struct dp_probe probe;
};

struct trial_result {
    int32_t world;
    struct dp_schedule schedule;
    struct trial_rank *ranks; // by global rank
};

// The schedule that its ranks will run; the caller deinits it.
void trial_make_schedule(const struct trial *trial, struct dp_schedule *ret_schedule);
// Runs it; ranks may fail, setting it up may not.
void trial_run(const struct trial *trial, struct trial_result *ret_result);
void trial_result_deinit(struct trial_result *result);
// Fails the test when a rank has failed.
void trial_expect_ok(const struct trial_result *result);

// norm(a - b) / norm(b).
double trial_distance(const struct trial_tensor *a, const struct trial_tensor *b);
const struct trial_tensor *trial_find(const struct trial_tensor *tensors, size_t count,
                                      const char *name);
