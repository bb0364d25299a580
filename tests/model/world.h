// A model cut into stages and spread over EP ranks, all in one thread: every rank begins before one
// ends, so that messages are there when they are waited for.
#pragma once

#include "dp/group_exchanger.h"
#include "dp/model.h"

#define WORLD_STAGES_MAX 4
#define WORLD_RANKS_MAX 4

struct world {
    struct dp_device *device;
    int32_t stage_count, ranks;
    int32_t samples; // per micro-batch
    double loss_scale;
    struct dp_stage *stages[WORLD_STAGES_MAX][WORLD_RANKS_MAX];
    // With more than one rank.
    struct dp_transport *transports[WORLD_RANKS_MAX];
    struct dp_group groups[WORLD_RANKS_MAX];
    struct dp_group_exchanger *exchangers[WORLD_RANKS_MAX];
};

// Small enough for finite differences: 3 layers, the first dense, 4 experts, top 2, 1 shared.
struct dp_model_spec world_model(void);

// The model's layers over stage_count stages (the last ones get the rest), experts over `ranks`.
// Every buffer is poisoned with NaN. Fails the test when it cannot.
struct world *world_new(const struct dp_model_spec *model, dp_element element, int32_t stage_count,
                        int32_t ranks, int32_t sequence, int32_t samples);
// The same with a choice of what is computed again, DP_RECOMPUTE_*.
// The same with buffers that wait in host memory, DP_OFFLOAD_*.
struct world *world_offload(const struct dp_model_spec *model, dp_element element,
                            int32_t stage_count, int32_t ranks, uint32_t offload);
// The same with E4M3 in all places where it may be, and a choice of what is computed again.
struct world *world_saved_fp8(const struct dp_model_spec *model, int32_t ranks, uint32_t recompute);
struct world *world_fp8(const struct dp_model_spec *model, dp_element element, int32_t ranks);
struct world *world_recompute(const struct dp_model_spec *model, dp_element element,
                              int32_t stage_count, int32_t ranks, uint32_t recompute);
#define WORLD_SEQUENCE 6
#define WORLD_SAMPLES 2
void world_free(struct world *world);

typedef enum world_order {
    WORLD_B,        // W right after I, component by component
    WORLD_I_THEN_W, // all W after all I of all micro-batches
} world_order;

// Forward and backward of micro-batches, `ranks` at a time: micro-batch m on rank m % ranks. tokens
// and targets are [micro_batches, samples, sequence]. Returns the sum of cross-entropies.
double world_step(struct world *world, int32_t micro_batches, const int32_t *tokens,
                  const int32_t *targets, world_order order);
// The same without backward.
double world_loss(struct world *world, int32_t micro_batches, const int32_t *tokens,
                  const int32_t *targets);

// One pass of one component on every rank's chunk.
void world_run(struct dp_chunk **chunks, int32_t ranks, dp_pass pass, int32_t component);

// Where a tensor lies in the weights or gradients of (stage, rank); NULL if it is not held there.
const struct dp_tensor *world_tensor(const struct dp_stage *stage, const char *name);
// A tensor's gradient summed over the ranks, in double; the caller frees it.
double *world_gradient(const struct world *world, const char *name, int64_t *ret_count);
// Sets element `at` of a tensor on every rank that has it; at -1 sets all.
void world_set(struct world *world, const char *name, int64_t at, double value);
// Multiplies all weights of rank 2 and above, so that nothing is near its linear regime.
void world_scale(struct world *world, double factor);

// One step of a world of doubles, then elements spread over every tensor of every stage of rank 0
// against differences of the loss. Frees the world.
void world_check_differences(struct world *world);

// Random token numbers below the vocabulary; the caller frees them.
int32_t *world_tokens(const struct dp_model_spec *model, uint64_t seed, int64_t count);
