// What checkpoint files hold, and how it is written and read.
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "dp/checkpoint.h"
#include "dp/json.h"

#define MANIFEST_NAME "manifest.json"
#define MANIFEST_BYTES_MAX (16u << 20)
#define SHARD_HEADER_BYTES_MAX (64u << 20)
#define SHARD_PARTS 3 // weight, m, v

struct shard_tensor {
    char name[DP_NAME_MAX];
    int64_t rows, cols;
    uint64_t offset; // of the weights in the file; m and v follow
    uint64_t hash;   // of all three
    int32_t shard;   // index into the shards of a checkpoint
};

struct shard {
    char *file; // name inside the checkpoint's directory; owned
    uint64_t bytes;
    dp_element element;
    int64_t step;
    struct shard_tensor *tensors; // owned
    int32_t count;
};

void dp_checkpoint_shard_deinit(struct shard *shard);
// Writes the tensors of a stage that this rank stands for; *ret_bytes is 0 when that is none, and
// there is no file then.
dp_status dp_checkpoint_shard_write(const char *directory, const char *file, int64_t step,
                                    const struct dp_checkpoint_stage *stage, uint64_t *ret_bytes,
                                    struct dp_error *err);
// Reads and checks everything but the values.
dp_status dp_checkpoint_shard_read(const char *directory, const char *file, struct shard *ret_shard,
                                   struct dp_error *err);

// The whole state of a checkpoint that is not in shards.
struct manifest {
    struct dp_checkpoint_meta meta;
    struct shard *shards; // file and bytes; owned
    int32_t count;
};

void dp_checkpoint_manifest_deinit(struct manifest *manifest);
dp_status dp_checkpoint_manifest_write(const char *directory, const struct manifest *manifest,
                                       struct dp_error *err);
dp_status dp_checkpoint_manifest_read(const char *directory, struct manifest *ret_manifest,
                                      struct dp_error *err);

// A model's shapes as JSON, and the field in which two models differ (NULL: in none). Names and
// what training may change freely are left out.
json_t *dp_checkpoint_model_to_json(const struct dp_model_spec *model);
dp_status dp_checkpoint_model_from_json(const json_t *json, const char *where,
                                        struct dp_model_spec *ret_model, struct dp_error *err);
const char *dp_checkpoint_model_difference(const struct dp_model_spec *a,
                                           const struct dp_model_spec *b, double *ret_a,
                                           double *ret_b);

// u64 as "0x...", since JSON's integers are signed.
json_t *dp_checkpoint_hex_to_json(uint64_t value);
bool dp_checkpoint_hex_from_json(const json_t *json, uint64_t *ret_value);
