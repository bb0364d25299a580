// Between the parts of an archive.
#pragma once

#include <stdbool.h>

#include "dp/archive.h"
#include "dp/json.h"

// Opens the files that the manifest, or the index of a directory from elsewhere, lists.
dp_status dp_archive_read_manifest(struct dp_archive *archive, struct dp_error *err);
dp_status dp_archive_open_hf(struct dp_archive *archive, struct dp_error *err);
// Whether the weights are as many as those of the model that config.json says.
dp_status dp_archive_check_count(const struct dp_archive *archive, bool may_lack,
                                 struct dp_error *err);
// Of the open files: `tensors` and `unknown`.
dp_status dp_archive_index(struct dp_archive *archive, struct dp_error *err);
// Whether the tensor is among what dp_model_parameters counts.
bool dp_archive_counts(const struct dp_archive *archive, const struct dp_archive_tensor *tensor);
// Values of weights, without the balance of routers and multi-token prediction; and how many the
// model has of them.
int64_t dp_archive_parameters(const struct dp_archive *archive);
int64_t dp_archive_parameters_wanted(const struct dp_model_spec *model);
int64_t dp_archive_step_of(const char *name);
// The checkpoint's place in the order in which those of a directory were sealed; -1 where its
// manifest cannot be read.
int64_t dp_archive_sealed(const char *path);
// The step that is the newest in a directory (-1 = there is none), and the last place in the order.
// False where the directory cannot be listed, with errno.
bool dp_archive_look(const char *directory, int64_t *ret_step, int64_t *ret_sealed);

#define DP_ARCHIVE_CONFIG "config.json"
#define DP_ARCHIVE_INDEX "model.safetensors.index.json"
// As dp_read_file, of regular files alone: what others may have put there waits for nobody.
dp_status dp_archive_read_text(const char *path, size_t bytes_max, struct dp_buf *ret_text,
                               struct dp_error *err);
// Writes a file whole; it is on the disk after dp_archive_sync_files of its name.
dp_status dp_archive_put_file(const char *directory, const char *name, const struct dp_buf *text,
                              struct dp_error *err);
// Brings the files, and what the directory says of all of them, to the disk: all are on their way
// before the first is waited for.
dp_status dp_archive_sync_files(const char *directory, const char *const *names, size_t count,
                                struct dp_error *err);
dp_status dp_archive_sync_directory(const char *directory, struct dp_error *err);
dp_status dp_archive_write_manifest(const char *directory, const struct dp_archive *archive,
                                    struct dp_error *err);
// Writes config.json and the index of weights.
dp_status dp_archive_write_hf(const char *directory, const struct dp_archive *archive,
                              struct dp_error *err);

// A model's shapes as JSON, and the field in which two models differ (NULL: in none). Names and
// what training may change freely are left out.
json_t *dp_model_to_json(const struct dp_model_spec *model);
dp_status dp_model_from_json(const json_t *json, const char *where, struct dp_model_spec *ret_model,
                             struct dp_error *err);
const char *dp_model_difference(const struct dp_model_spec *a, const struct dp_model_spec *b,
                                double *ret_a, double *ret_b);

// u64 as "0x...", since JSON's integers are signed.
json_t *dp_hex_to_json(uint64_t value);
bool dp_hex_from_json(const json_t *json, uint64_t *ret_value);
