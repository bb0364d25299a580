// Checkpoints as files: what is in a directory, whoever wrote it.
//
//   DIRECTORY/step-120/manifest.json                     dp.checkpoint/2: model, step, data, files
//   DIRECTORY/step-120/config.json                       for others, where their names fit it
//   DIRECTORY/step-120/model.safetensors.index.json      weights: which file has which
//   DIRECTORY/step-120/model-00001-of-00004.safetensors  weights, called as Hugging Face does
//   DIRECTORY/step-120/optimizer-00001-of-00004.safetensors
//
// So a checkpoint is a directory that Hugging Face's readers take, with more in it; and a directory
// with config.json and safetensors that came from there can be opened here, as weights alone.
//
// Optimizer files hold Adam's moments in runs: "model.norm.weight.m[0:64]" are the first moments of
// elements [0, 64) of that tensor, whichever rank kept them. All runs together cover every element
// once.
//
// What is called step-N is whole: its directory was called step-N.partial until everything in it
// was on the disk.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "dp/hf_names.h"
#include "dp/safetensors.h"
#include "dp/spec.h"

#define DP_ARCHIVE_MANIFEST "manifest.json"
#define DP_ARCHIVE_SCHEMA "dp.checkpoint/2"

struct dp_archive_meta {
    struct dp_model_spec model;
    bool is_trained; // what follows is known: not a directory of weights alone
    uint64_t seed;
    int64_t step;        // steps completed
    int64_t next_sample; // first global sample not yet trained on
    uint64_t corpus_hash;
    int64_t sequence; // tokens of a sample; 0 = not known, nor what follows from the text
    int64_t holdout_samples;
    bool is_shuffled;
    int64_t sealed; // its place among those sealed in its directory, from 1; 0 = not known
};

typedef enum dp_archive_kind {
    DP_ARCHIVE_WEIGHT,
    DP_ARCHIVE_SCALE, // of 128 x 128 blocks of a weight in F8_E4M3
    DP_ARCHIVE_M,
    DP_ARCHIVE_V,
} dp_archive_kind;

struct dp_archive_tensor {
    char own[DP_NAME_MAX]; // as dp/model.h calls the weight
    dp_archive_kind kind;
    int64_t begin, end; // of a moment: elements of the weight
    int32_t file;
    const struct dp_saved_tensor *saved; // in the file
};

struct dp_archive {
    char *path; // the directory itself
    struct dp_archive_meta meta;
    struct dp_safetensors *files; // open
    int32_t file_count;
    struct dp_archive_tensor *tensors; // by name, kind and begin
    int64_t count;
    char **unknown; // names that no model here has
    int64_t unknown_count;
};

// `path` is such a directory, or a directory of step-N, whose newest is taken: what was sealed
// last, which after a run has gone back to an earlier one need not have the highest number. Checks
// the manifest, the headers and sizes of all files, and that moments lie side by side.
// DP_UNSUPPORTED for the formats of earlier versions.
dp_status dp_archive_open(const char *path, struct dp_archive *ret_archive, struct dp_error *err);
// Accepts zeros.
void dp_archive_close(struct dp_archive *archive);
// What the manifest of a checkpoint of ours says; no other file is looked at.
dp_status dp_archive_read_meta(const char *path, struct dp_archive_meta *ret_meta,
                               struct dp_error *err);
// The same as JSON text for others than files, appended; and back, where `where` is for messages.
void dp_archive_meta_write(const struct dp_archive_meta *meta, struct dp_buf *out);
dp_status dp_archive_meta_parse(const char *text, size_t length, const char *where,
                                struct dp_archive_meta *ret_meta, struct dp_error *err);
// The newest step-N below `directory`; DP_NOT_FOUND where there is none.
dp_status dp_archive_newest(const char *directory, char **ret_path, struct dp_error *err);

// A weight, or NULL. *ret_scale (may be NULL): its scales, or NULL.
const struct dp_archive_tensor *dp_archive_find(const struct dp_archive *archive, const char *own,
                                                const struct dp_archive_tensor **ret_scale);
// Reads a weight of rows x cols (1 x cols may have one dimension in the file) as F32 or F64,
// multiplied by its scales where it has some.
dp_status dp_archive_read_weight(const struct dp_archive *archive, const char *own, int64_t rows,
                                 int64_t cols, dp_dtype to, void *ret_values, struct dp_error *err);
// Reads `count` first or second moments.
dp_status dp_archive_read_moments(const struct dp_archive *archive, const char *own,
                                  dp_archive_kind kind, int64_t count, dp_dtype to,
                                  void *ret_values, struct dp_error *err);
// DP_INVALID naming the first differing field, when this checkpoint is of another model.
dp_status dp_archive_check_model(const struct dp_archive *archive,
                                 const struct dp_model_spec *model, struct dp_error *err);
// Reads every value; DP_INVALID names the first that does not match its hash, or says that weights
// of the model are missing. *ret_bytes: read.
dp_status dp_archive_verify(const struct dp_archive *archive, uint64_t *ret_bytes,
                            struct dp_error *err);

// Writes the weights alone, with config.json and index, into a new directory: what others load.
// `dtype` is F32 or BF16. Files have at most DP_EXPORT_BYTES, unless one tensor has more; so much
// is in memory at a time. A directory that is there already is refused with DP_CONFLICT.
#define DP_EXPORT_BYTES (4ull << 30)
dp_status dp_archive_export(const struct dp_archive *archive, const char *directory, dp_dtype dtype,
                            uint64_t *ret_bytes, struct dp_error *err);

// Ranks write PARTIAL/model-r7.safetensors and PARTIAL/optimizer-r7.safetensors. One of them then
// calls this: numbers the files, checks that every parameter is there once, writes what else is in
// such a directory, brings it to the disk and calls it FINAL. One of that name is replaced at that
// moment, not before. It is the newest of its directory then (meta->sealed is not looked at).
dp_status dp_archive_seal(const char *partial, const char *final,
                          const struct dp_archive_meta *meta, struct dp_error *err);
// The right to write checkpoints to a directory, which one process has at a time and loses when it
// ends, however it does. Zeros have none.
struct dp_archive_claim {
    char *directory;
    int fd;
};
// Makes the directory, and those above it, and claims it; one that is claimed already stays so, any
// other is given up, whatever comes of it. DP_CONFLICT: another run, which it names, has it.
dp_status dp_archive_claim(struct dp_archive_claim *claim, const char *directory,
                           struct dp_error *err);
// Accepts zeros.
void dp_archive_unclaim(struct dp_archive_claim *claim);
// In a directory that this process has claimed: makes the directory PARTIAL, and removes what
// earlier runs have left beside it.
dp_status dp_archive_prepare(const char *partial, struct dp_error *err);
// Removes a directory of files; what is not there is fine.
void dp_archive_remove(const char *path);
// Removes the oldest step-N of a directory beyond the `keep` newest up to step `newest`, that of
// the one just sealed; 0 keeps all. Later steps are those of a run that this one has gone back
// behind: they neither count nor go.
void dp_archive_retain(const char *directory, int64_t newest, int32_t keep);
