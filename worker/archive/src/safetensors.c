// Reading: a header from outside is checked before anything follows from it.
#include "dp/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/json.h"
#include "internal.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "values are written as they lie in memory, which is to be little-endian"
#endif

uint64_t dp_safetensors_hash(const void *bytes, size_t length)
{
    return XXH64(bytes, length, 0);
}

int64_t dp_saved_tensor_count(const struct dp_saved_tensor *tensor)
{
    int64_t count = 1;
    for (int32_t i = 0; i < tensor->dims; i++) {
        count *= tensor->shape[i];
    }
    return count;
}

void dp_safetensors_close(struct dp_safetensors *file)
{
    for (int64_t i = 0; i < file->count; i++) {
        free(file->tensors[i].name);
    }
    free(file->tensors);
    if (file->path != NULL && file->fd >= 0) {
        close(file->fd);
    }
    free(file->path);
    *file = (struct dp_safetensors){.fd = -1};
}

static dp_status fail_tensor(const char *path, const char *name, const char *what,
                             struct dp_error *err)
{
    return dp_fail(err, DP_INVALID, "%s is no whole safetensors file: tensor %.100s %s", path, name,
                   what);
}

static bool find_dtype(const char *name, dp_dtype *ret_dtype)
{
    for (int i = 0; name != NULL && i < DP_DTYPE_COUNT; i++) {
        if (strcmp(dp_dtype_name((dp_dtype)i), name) == 0) {
            *ret_dtype = (dp_dtype)i;
            return true;
        }
    }
    return false;
}

// False where the product leaves the range of a file's size.
static bool read_shape(const json_t *shape, struct dp_saved_tensor *tensor, uint64_t *ret_bytes)
{
    if (!json_is_array(shape) || json_array_size(shape) > DP_TENSOR_DIMS_MAX) {
        return false;
    }
    uint64_t bytes = dp_dtype_bytes(tensor->dtype);
    tensor->dims = (int32_t)json_array_size(shape);
    for (int32_t i = 0; i < tensor->dims; i++) {
        const json_t *item = json_array_get(shape, (size_t)i);
        json_int_t size = json_integer_value(item);
        if (!json_is_integer(item) || size < 0 ||
            __builtin_mul_overflow(bytes, (uint64_t)size, &bytes) || bytes > INT64_MAX) {
            return false;
        }
        tensor->shape[i] = size;
    }
    *ret_bytes = bytes;
    return true;
}

static dp_status read_tensor(const char *path, const char *name, const json_t *json, uint64_t data,
                             struct dp_saved_tensor *tensor, struct dp_error *err)
{
    const char *dtype = json_string_value(json_object_get(json, "dtype"));
    if (!find_dtype(dtype, &tensor->dtype)) {
        return dp_fail(err, DP_INVALID, "%s: tensor %.100s has the unknown dtype \"%.20s\"", path,
                       name, dtype == NULL ? "" : dtype);
    }
    uint64_t bytes;
    if (!read_shape(json_object_get(json, "shape"), tensor, &bytes)) {
        return fail_tensor(path, name, "has no fitting shape", err);
    }
    const json_t *offsets = json_object_get(json, "data_offsets");
    const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end) ||
        json_integer_value(begin) < 0 || json_integer_value(end) < json_integer_value(begin)) {
        return fail_tensor(path, name, "has no fitting data_offsets", err);
    }
    tensor->bytes = (uint64_t)(json_integer_value(end) - json_integer_value(begin));
    tensor->begin = data + (uint64_t)json_integer_value(begin);
    if (tensor->bytes != bytes) {
        return fail_tensor(path, name, "has data_offsets that do not fit its shape", err);
    }
    return DP_OK;
}

static int by_place(const void *a, const void *b)
{
    const struct dp_saved_tensor *left = a, *right = b;
    if (left->begin != right->begin) {
        return left->begin < right->begin ? -1 : 1;
    }
    if (left->bytes != right->bytes) {
        return left->bytes < right->bytes ? -1 : 1;
    }
    return strcmp(left->name, right->name);
}

// What the format promises: no gap, no overlap, nothing behind the last tensor.
static dp_status check_places(struct dp_safetensors *file, uint64_t data, struct dp_error *err)
{
    if (file->count > 0) {
        qsort(file->tensors, (size_t)file->count, sizeof file->tensors[0], by_place);
    }
    uint64_t at = data;
    for (int64_t i = 0; i < file->count; i++) {
        const struct dp_saved_tensor *tensor = &file->tensors[i];
        if (tensor->begin != at || tensor->bytes > file->bytes - at) {
            return dp_fail(err, DP_INVALID,
                           "%s is no whole safetensors file: tensor %.100s lies at %" PRIu64
                           " to %" PRIu64 ", the one before ends at %" PRIu64
                           " and the file at %" PRIu64,
                           file->path, tensor->name, tensor->begin, tensor->begin + tensor->bytes,
                           at, file->bytes);
        }
        at += tensor->bytes;
    }
    if (at != file->bytes) {
        return dp_fail(err, DP_INVALID,
                       "%s is no whole safetensors file: its tensors end at %" PRIu64
                       ", the file at %" PRIu64,
                       file->path, at, file->bytes);
    }
    return DP_OK;
}

static bool take_hash(const char *digits, uint64_t *ret_hash)
{
    *ret_hash = 0;
    for (int i = 0; i < HASH_DIGITS; i++) {
        char c = digits[i];
        int value = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (value < 0) {
            return false;
        }
        *ret_hash = *ret_hash << 4 | (uint64_t)value;
    }
    return true;
}

static dp_status take_hashes(struct dp_safetensors *file, const json_t *metadata,
                             struct dp_error *err)
{
    const json_t *hashes = json_object_get(metadata, HASHES_KEY);
    if (hashes == NULL) {
        return DP_OK;
    }
    const char *digits = json_string_value(hashes);
    bool fits = digits != NULL && json_string_length(hashes) == (size_t)file->count * HASH_DIGITS;
    for (int64_t i = 0; fits && i < file->count; i++) {
        fits = take_hash(digits + i * HASH_DIGITS, &file->tensors[i].hash);
    }
    if (!fits) {
        return dp_fail(err, DP_INVALID, "%s: its metadata has no hash for each tensor", file->path);
    }
    file->has_hashes = true;
    return DP_OK;
}

dp_status dp_safetensors_parse(const char *path, uint64_t bytes, const char *text, size_t length,
                               struct dp_safetensors *ret_file, struct dp_error *err)
{
    DP_AUTO_JSON json_t *root = NULL;
    dp_status status =
        dp_json_parse(text, length, DP_SAFETENSORS_HEADER_BYTES_MAX, path, &root, err);
    if (status != DP_OK) {
        return status;
    }
    if (!json_is_object(root) || bytes < PREAMBLE_BYTES + length) {
        return dp_fail(err, DP_INVALID, "%s is no safetensors file: its header is no JSON object",
                       path);
    }
    DP_CLEANUP(dp_safetensors_close)
    struct dp_safetensors file = {.path = dp_strdup(path), .fd = -1, .bytes = bytes};
    file.header_hash = dp_safetensors_hash(text, length);
    file.tensors = dp_new_array(struct dp_saved_tensor, json_object_size(root));
    const char *name;
    json_t *item;
    json_object_foreach(root, name, item)
    {
        if (strcmp(name, "__metadata__") == 0) {
            continue;
        }
        struct dp_saved_tensor *tensor = &file.tensors[file.count++];
        tensor->name = dp_strdup(name);
        status = read_tensor(path, name, item, PREAMBLE_BYTES + length, tensor, err);
        if (status != DP_OK) {
            return status;
        }
    }
    status = check_places(&file, PREAMBLE_BYTES + length, err);
    if (status == DP_OK) {
        status = take_hashes(&file, json_object_get(root, "__metadata__"), err);
    }
    if (status == DP_OK) {
        *ret_file = file;
        file = (struct dp_safetensors){.fd = -1};
    }
    return status;
}

static dp_status read_at(int fd, const char *path, uint64_t at, size_t length, void *ret_bytes,
                         struct dp_error *err)
{
    for (size_t done = 0; done < length;) {
        ssize_t got = pread(fd, (char *)ret_bytes + done, length - done, (off_t)(at + done));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return dp_fail_errno(err, errno, "cannot read %s at %" PRIu64, path, at + done);
        }
        if (got == 0) {
            return dp_fail(err, DP_INVALID, "%s is damaged: it ends at %" PRIu64, path, at + done);
        }
        done += (size_t)got;
    }
    return DP_OK;
}

dp_status dp_safetensors_open(const char *path, struct dp_safetensors *ret_file,
                              struct dp_error *err)
{
    DP_AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat info;
    if (fd < 0 || fstat(fd, &info) != 0) {
        return dp_fail_errno(err, errno, "cannot open %s", path);
    }
    uint64_t length;
    if (!S_ISREG(info.st_mode)) {
        return dp_fail(err, DP_INVALID, "%s is no safetensors file: it is no regular file", path);
    }
    if (info.st_size < PREAMBLE_BYTES) {
        return dp_fail(err, DP_INVALID, "%s is no safetensors file: it has %lld bytes", path,
                       (long long)info.st_size);
    }
    dp_status status = read_at(fd, path, 0, sizeof length, &length, err);
    if (status != DP_OK) {
        return status;
    }
    if (length > DP_SAFETENSORS_HEADER_BYTES_MAX ||
        length > (uint64_t)info.st_size - PREAMBLE_BYTES) {
        return dp_fail(err, DP_INVALID,
                       "%s is no whole safetensors file: its header of %" PRIu64
                       " bytes is longer than the file or than any",
                       path, length);
    }
    DP_AUTO_FREE char *text = dp_alloc(length + 1, 1);
    status = read_at(fd, path, PREAMBLE_BYTES, (size_t)length, text, err);
    if (status == DP_OK) {
        status =
            dp_safetensors_parse(path, (uint64_t)info.st_size, text, (size_t)length, ret_file, err);
    }
    if (status == DP_OK) {
        ret_file->fd = dp_steal_fd(&fd);
    }
    return status;
}

dp_status dp_safetensors_read(const struct dp_safetensors *file,
                              const struct dp_saved_tensor *tensor, uint64_t at, size_t length,
                              void *ret_bytes, struct dp_error *err)
{
    DP_CHECK(at <= tensor->bytes && length <= tensor->bytes - at);
    return read_at(file->fd, file->path, tensor->begin + at, length, ret_bytes, err);
}

dp_status dp_safetensors_read_all(const struct dp_safetensors *file,
                                  const struct dp_saved_tensor *tensor, void *ret_bytes,
                                  struct dp_error *err)
{
    size_t length = (size_t)tensor->bytes;
    dp_status status = dp_safetensors_read(file, tensor, 0, length, ret_bytes, err);
    if (status == DP_OK && file->has_hashes &&
        dp_safetensors_hash(ret_bytes, length) != tensor->hash) {
        return dp_fail(err, DP_INVALID, "%s is damaged: %s at %" PRIu64 " does not match its hash",
                       file->path, tensor->name, tensor->begin);
    }
    return status;
}
