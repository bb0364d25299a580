// Values out of an archive.
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "archive_internal.h"
#include "dp/alloc.h"

#define SCALE_BLOCK 128 // of DeepSeek-V3's published weights: config.json's weight_block_size

struct key {
    const char *own;
    dp_archive_kind kind;
};

static int key_order(const void *a, const void *b)
{
    const struct key *key = a;
    const struct dp_archive_tensor *tensor = b;
    int order = strcmp(key->own, tensor->own);
    return order != 0 ? order : (key->kind > tensor->kind) - (key->kind < tensor->kind);
}

static const struct dp_archive_tensor *find(const struct dp_archive *archive, const char *own,
                                            dp_archive_kind kind)
{
    const struct key key = {own, kind};
    return archive->count == 0 ? NULL
                               : bsearch(&key, archive->tensors, (size_t)archive->count,
                                         sizeof archive->tensors[0], key_order);
}

const struct dp_archive_tensor *dp_archive_find(const struct dp_archive *archive, const char *own,
                                                const struct dp_archive_tensor **ret_scale)
{
    if (ret_scale != NULL) {
        *ret_scale = find(archive, own, DP_ARCHIVE_SCALE);
    }
    return find(archive, own, DP_ARCHIVE_WEIGHT);
}

// The tensor's values as floats of type `to`.
static dp_status read_wide(const struct dp_archive *archive, const struct dp_archive_tensor *tensor,
                           dp_dtype to, void *ret_values, struct dp_error *err)
{
    const struct dp_safetensors *file = &archive->files[tensor->file];
    const struct dp_saved_tensor *saved = tensor->saved;
    if (saved->dtype == to) {
        return dp_safetensors_read_all(file, saved, ret_values, err);
    }
    DP_AUTO_FREE char *values = dp_alloc_aligned((size_t)saved->bytes, 1);
    dp_status status = dp_safetensors_read_all(file, saved, values, err);
    if (status == DP_OK &&
        !dp_dtype_widen(saved->dtype, values, dp_saved_tensor_count(saved), to, ret_values)) {
        return dp_fail(err, DP_UNSUPPORTED, "%s: %s holds %s; weights are floats", file->path,
                       saved->name, dp_dtype_name(saved->dtype));
    }
    return status;
}

static bool has_shape(const struct dp_saved_tensor *saved, int64_t rows, int64_t cols)
{
    return (saved->dims == 2 && saved->shape[0] == rows && saved->shape[1] == cols) ||
           (saved->dims == 1 && rows == 1 && saved->shape[0] == cols);
}

static dp_status multiply(const struct dp_archive *archive, const struct dp_archive_tensor *scale,
                          int64_t rows, int64_t cols, dp_dtype to, void *values,
                          struct dp_error *err)
{
    int64_t across = (cols + SCALE_BLOCK - 1) / SCALE_BLOCK;
    int64_t down = (rows + SCALE_BLOCK - 1) / SCALE_BLOCK;
    if (!has_shape(scale->saved, down, across)) {
        return dp_fail(err, DP_INVALID, "%s: %s is to have %" PRId64 " x %" PRId64 " scales",
                       archive->files[scale->file].path, scale->saved->name, down, across);
    }
    DP_AUTO_FREE double *scales = dp_new_array(double, (size_t)(down * across));
    dp_status status = read_wide(archive, scale, DP_DTYPE_F64, scales, err);
    for (int64_t i = 0; status == DP_OK && i < rows * cols; i++) {
        double by = scales[i / cols / SCALE_BLOCK * across + i % cols / SCALE_BLOCK];
        if (to == DP_DTYPE_F64) {
            ((double *)values)[i] *= by;
        } else {
            ((float *)values)[i] *= (float)by;
        }
    }
    return status;
}

dp_status dp_archive_read_weight(const struct dp_archive *archive, const char *own, int64_t rows,
                                 int64_t cols, dp_dtype to, void *ret_values, struct dp_error *err)
{
    const struct dp_archive_tensor *scale;
    const struct dp_archive_tensor *tensor = dp_archive_find(archive, own, &scale);
    if (tensor == NULL) {
        return dp_fail(err, DP_INVALID, "the checkpoint %s lacks the tensor %s", archive->path,
                       own);
    }
    if (!has_shape(tensor->saved, rows, cols)) {
        return dp_fail(err, DP_INVALID,
                       "%s: %s has %" PRId64 " values in %d dimensions where the model has %" PRId64
                       " x %" PRId64,
                       archive->files[tensor->file].path, tensor->saved->name,
                       dp_saved_tensor_count(tensor->saved), tensor->saved->dims, rows, cols);
    }
    dp_status status = read_wide(archive, tensor, to, ret_values, err);
    if (status == DP_OK && scale != NULL) {
        status = multiply(archive, scale, rows, cols, to, ret_values, err);
    }
    return status;
}

dp_status dp_archive_read_moments(const struct dp_archive *archive, const char *own,
                                  dp_archive_kind kind, int64_t count, dp_dtype to,
                                  void *ret_values, struct dp_error *err)
{
    const struct dp_archive_tensor *tensor = find(archive, own, kind);
    const struct dp_archive_tensor *first = archive->tensors;
    while (tensor != NULL && tensor > first && tensor[-1].kind == kind &&
           strcmp(tensor[-1].own, own) == 0) {
        tensor--;
    }
    int64_t at = 0;
    const struct dp_archive_tensor *end = archive->tensors + archive->count;
    for (; tensor != NULL && tensor < end && tensor->kind == kind && strcmp(tensor->own, own) == 0;
         tensor++) {
        if (tensor->begin != at || tensor->end > count) {
            break;
        }
        char *to_values = (char *)ret_values + (size_t)at * dp_dtype_bytes(to);
        dp_status status = read_wide(archive, tensor, to, to_values, err);
        if (status != DP_OK) {
            return status;
        }
        at = tensor->end;
    }
    if (at != count) {
        return dp_fail(err, DP_INVALID,
                       "the checkpoint %s lacks the moments of %s from element %" PRId64 " on",
                       archive->path, own, at);
    }
    return DP_OK;
}

dp_status dp_archive_check_model(const struct dp_archive *archive,
                                 const struct dp_model_spec *model, struct dp_error *err)
{
    double theirs, ours;
    struct dp_model_spec saved = archive->meta.model;
    // Weights may be taken without those that predict further tokens.
    saved.mtp_layers = archive->meta.is_trained || model->mtp_layers > 0 ? saved.mtp_layers : 0;
    const char *field = dp_model_difference(&saved, model, &theirs, &ours);
    if (field == NULL) {
        return DP_OK;
    }
    return dp_fail(err, DP_INVALID,
                   "the checkpoint %s is of another model: its %s is %g, this job's is %g",
                   archive->path, field, theirs, ours);
}
