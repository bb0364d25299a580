// Weights alone, for others.
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "archive_internal.h"
#include "dp/alloc.h"
#include "dp/check.h"

struct exporter {
    const struct dp_archive *archive;
    const char *directory;
    dp_dtype dtype;
    struct dp_archive written; // files that are there, for the index
    uint64_t bytes;
};

static bool is_exported(const struct dp_archive_tensor *tensor)
{
    return tensor->kind == DP_ARCHIVE_WEIGHT;
}

// The balance of routers is added to scores in full.
static dp_dtype dtype_of(const struct exporter *exporter, const struct dp_archive_tensor *tensor)
{
    static const char end[] = "router.bias";
    size_t length = strlen(tensor->own);
    bool is_balance =
        length >= sizeof end - 1 && strcmp(tensor->own + length - (sizeof end - 1), end) == 0;
    return is_balance ? DP_DTYPE_F32 : exporter->dtype;
}

static uint64_t size_of(const struct exporter *exporter, const struct dp_archive_tensor *tensor)
{
    return (uint64_t)dp_saved_tensor_count(tensor->saved) *
           dp_dtype_bytes(dtype_of(exporter, tensor));
}

// The first tensor behind the file that starts at `first`.
static int64_t file_end(const struct exporter *exporter, int64_t first)
{
    uint64_t bytes = 0;
    int64_t end = first;
    for (; end < exporter->archive->count; end++) {
        const struct dp_archive_tensor *tensor = &exporter->archive->tensors[end];
        uint64_t more = is_exported(tensor) ? size_of(exporter, tensor) : 0;
        if (bytes > 0 && bytes + more > DP_EXPORT_BYTES) {
            break;
        }
        bytes += more;
    }
    return end;
}

// The values in the wanted type, from any float type.
static dp_status convert(const struct exporter *exporter, const struct dp_archive_tensor *tensor,
                         void *ret_values, struct dp_error *err)
{
    int64_t count = dp_saved_tensor_count(tensor->saved);
    int64_t cols = tensor->saved->dims > 0 ? tensor->saved->shape[tensor->saved->dims - 1] : 1;
    int64_t rows = cols > 0 ? count / cols : 0;
    if (dtype_of(exporter, tensor) == DP_DTYPE_F32) {
        return dp_archive_read_weight(exporter->archive, tensor->own, rows, cols, DP_DTYPE_F32,
                                      ret_values, err);
    }
    DP_AUTO_FREE float *wide = dp_new_array(float, (size_t)count);
    dp_status status =
        dp_archive_read_weight(exporter->archive, tensor->own, rows, cols, DP_DTYPE_F32, wide, err);
    if (status == DP_OK) {
        (void)dp_dtype_narrow(DP_DTYPE_F32, wide, count, exporter->dtype, ret_values);
    }
    return status;
}

static dp_status read_parts(const struct exporter *exporter, int64_t first, int64_t end,
                            struct dp_saved_part *parts, char *values, int64_t *ret_count,
                            struct dp_error *err)
{
    *ret_count = 0;
    for (int64_t i = first; i < end; i++) {
        const struct dp_archive_tensor *tensor = &exporter->archive->tensors[i];
        if (!is_exported(tensor)) {
            continue;
        }
        struct dp_saved_part *part = &parts[(*ret_count)++];
        *part = (struct dp_saved_part){.name = tensor->saved->name,
                                       .dtype = dtype_of(exporter, tensor),
                                       .dims = tensor->saved->dims,
                                       .values = values};
        memcpy(part->shape, tensor->saved->shape, sizeof part->shape);
        dp_status status = convert(exporter, tensor, values, err);
        if (status != DP_OK) {
            return status;
        }
        values += size_of(exporter, tensor);
    }
    return DP_OK;
}

static dp_status write_one(struct exporter *exporter, int64_t first, int64_t end, int32_t number,
                           int32_t files, struct dp_error *err)
{
    uint64_t room = 0;
    for (int64_t i = first; i < end; i++) {
        const struct dp_archive_tensor *tensor = &exporter->archive->tensors[i];
        room += is_exported(tensor) ? size_of(exporter, tensor) : 0;
    }
    DP_AUTO_FREE char *values = dp_alloc((size_t)room, 1);
    DP_AUTO_FREE struct dp_saved_part *parts =
        dp_new_array(struct dp_saved_part, (size_t)(end - first));
    int64_t count;
    dp_status status = read_parts(exporter, first, end, parts, values, &count, err);
    if (status != DP_OK) {
        return status;
    }
    DP_AUTO_FREE char *path =
        dp_asprintf("%s/model-%05d-of-%05d.safetensors", exporter->directory, number + 1, files);
    uint64_t bytes;
    status = dp_safetensors_write(path, parts, count, &bytes, err);
    if (status == DP_OK) {
        exporter->bytes += bytes;
        status = dp_safetensors_open(path, &exporter->written.files[number], err);
        exporter->written.file_count += status == DP_OK;
    }
    return status;
}

static dp_status write_files(struct exporter *exporter, struct dp_error *err)
{
    int32_t files = 0;
    for (int64_t at = 0; at < exporter->archive->count; at = file_end(exporter, at)) {
        files++;
    }
    exporter->written.files = dp_new_array(struct dp_safetensors, (size_t)files);
    dp_status status = DP_OK;
    int64_t at = 0;
    for (int32_t i = 0; i < files && status == DP_OK; i++) {
        int64_t end = file_end(exporter, at);
        status = write_one(exporter, at, end, i, files, err);
        at = end;
    }
    return status;
}

dp_status dp_archive_export(const struct dp_archive *archive, const char *directory, dp_dtype dtype,
                            uint64_t *ret_bytes, struct dp_error *err)
{
    dp_status counted = dp_archive_check_count(archive, false, err);
    if (counted != DP_OK) {
        return counted;
    }
    if (mkdir(directory, 0777) != 0) {
        return dp_fail_errno(err, errno, "cannot make the directory %s", directory);
    }
    struct exporter exporter = {.archive = archive, .directory = directory, .dtype = dtype};
    exporter.written.path = dp_strdup(directory);
    exporter.written.meta = archive->meta;
    dp_status status = write_files(&exporter, err);
    if (status == DP_OK) {
        status = dp_archive_index(&exporter.written, err);
    }
    if (status == DP_OK) {
        status = dp_archive_write_hf(directory, &exporter.written, err);
    }
    if (status == DP_OK) {
        static const char *const names[] = {DP_ARCHIVE_CONFIG, DP_ARCHIVE_INDEX};
        status = dp_archive_sync_files(directory, names, DP_ARRAY_LENGTH(names), err);
    }
    dp_archive_close(&exporter.written);
    if (status != DP_OK) {
        dp_archive_remove(directory);
        return status;
    }
    *ret_bytes = exporter.bytes;
    return DP_OK;
}
