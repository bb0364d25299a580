// A training state on disk, independent of how it was laid out over ranks.
//
//   DIRECTORY/step-120/manifest.json       dp.checkpoint/1: model, step, seed, shards with sizes
//   DIRECTORY/step-120/shard-3-1.dpt       what rank 3 stood for of its second stage
//
// Every distinct tensor is in one shard once, with its two Adam moments. Shards are written into
// step-120.partial; the manifest comes last, after every rank has said that its shards are safe,
// and then the directory gets its name: what is called step-N is whole. Loading finds tensors by
// name in all shards, so that another (P, EP, D, schedule) can go on from it. All ranks need to see
// the same directory.
//
// A shard is "DPSHARD1", the length of a JSON header and its hash (u64, little-endian), the header
// (tensor names, shapes, places, hashes), then raw little-endian values, 64-byte aligned.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "dp/model.h"
#include "dp/spec.h"

struct dp_checkpoint_meta {
    struct dp_model_spec model;
    uint64_t seed;
    int64_t step;        // steps completed
    int64_t next_sample; // first global sample not yet trained on
    uint64_t corpus_hash;
};

struct dp_checkpoint_stage {
    struct dp_stage *stage;             // borrowed
    void *m, *v;                        // Adam moments in device memory, as the weights
    bool writes_shared, writes_experts; // saving: this rank is the one that writes them
};

// How the ranks wait for each other: returns DP_OK on all when all gave DP_OK, a failure on all
// otherwise (dp_group_agree). NULL for a single rank.
struct dp_checkpoint_sync {
    dp_status (*agree)(void *context, dp_status mine, struct dp_error *err);
    void *context;
};

// Called by every rank at the same step. Rank 0 makes the directory and the manifest. An older
// checkpoint of the same step is replaced; on failure it is untouched and nothing else is left
// behind. ret_bytes (may be NULL): what this rank wrote.
dp_status dp_checkpoint_save(const char *directory, int32_t rank,
                             const struct dp_checkpoint_meta *meta,
                             const struct dp_checkpoint_stage *stages, int32_t count,
                             const struct dp_checkpoint_sync *sync, uint64_t *ret_bytes,
                             struct dp_error *err);

struct dp_checkpoint;

// `path` is a step-N directory, or a directory of them, whose newest is taken. Checks the manifest,
// every shard's size and header, and that all tensors of the model are there.
dp_status dp_checkpoint_open(const char *path, struct dp_checkpoint **ret_checkpoint,
                             struct dp_error *err);
// Accepts NULL.
void dp_checkpoint_close(struct dp_checkpoint *checkpoint);
const struct dp_checkpoint_meta *dp_checkpoint_meta(const struct dp_checkpoint *checkpoint);
// The step-N directory.
const char *dp_checkpoint_path(const struct dp_checkpoint *checkpoint);
// DP_INVALID naming the first differing field, when this checkpoint is of another model.
dp_status dp_checkpoint_check_model(const struct dp_checkpoint *checkpoint,
                                    const struct dp_model_spec *model, struct dp_error *err);
// Fills weights and moments (m and v may be NULL) of a stage. Damage gives DP_INVALID naming file
// and tensor; the stage is then partly overwritten.
dp_status dp_checkpoint_load_stage(struct dp_checkpoint *checkpoint,
                                   const struct dp_checkpoint_stage *stage, struct dp_error *err);
