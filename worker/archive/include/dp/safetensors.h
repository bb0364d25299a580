// Files of tensors in the safetensors format (github.com/huggingface/safetensors, "Format"):
// the length of the header (u64, little-endian), the header (JSON: name -> dtype, shape and
// data_offsets; "__metadata__" -> texts), then the values, little-endian, row-major, without gaps.
//
// A file that this project writes starts its values at a multiple of 8 bytes and has two texts in
// its metadata: "format" = "pt", which readers ask for, and "dp.xxh64", the hashes of the tensors'
// values (XXH64, seed 0) in the order of their offsets, 16 hexadecimal digits each.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dp/buf.h"
#include "dp/error.h"
#include "dp/limits.h"

// X(name, bytes of a value)
#define DP_DTYPE_LIST(X)                                                                           \
    X(F64, 8)                                                                                      \
    X(F32, 4)                                                                                      \
    X(F16, 2)                                                                                      \
    X(BF16, 2)                                                                                     \
    X(F8_E4M3, 1)                                                                                  \
    X(F8_E5M2, 1)                                                                                  \
    X(F8_E8M0, 1)                                                                                  \
    X(I64, 8)                                                                                      \
    X(I32, 4)                                                                                      \
    X(I16, 2)                                                                                      \
    X(I8, 1)                                                                                       \
    X(U64, 8)                                                                                      \
    X(U32, 4)                                                                                      \
    X(U16, 2)                                                                                      \
    X(U8, 1)                                                                                       \
    X(BOOL, 1)

typedef enum dp_dtype {
#define X(name, bytes) DP_DTYPE_##name,
    DP_DTYPE_LIST(X)
#undef X
        DP_DTYPE_COUNT
} dp_dtype;
const char *dp_dtype_name(dp_dtype dtype);
size_t dp_dtype_bytes(dp_dtype dtype);
// count values become floats or doubles (`to` is F32 or F64) of any float type. False for types
// that are no floats.
bool dp_dtype_widen(dp_dtype from, const void *values, int64_t count, dp_dtype to, void *ret_wide);
// Rounded to nearest, ties to even; `to` is BF16 or F32, `from` F32 or F64. Of other pairs false.
bool dp_dtype_narrow(dp_dtype from, const void *values, int64_t count, dp_dtype to, void *ret);

struct dp_saved_tensor {
    char *name; // owned by its file
    dp_dtype dtype;
    int32_t dims;
    int64_t shape[DP_TENSOR_DIMS_MAX];
    uint64_t begin, bytes; // in the file
    uint64_t hash;         // of the values, where the file has hashes
};
// Values: the product of the shape.
int64_t dp_saved_tensor_count(const struct dp_saved_tensor *tensor);

struct dp_safetensors {
    char *path;
    int fd;
    uint64_t bytes;       // of the file
    uint64_t header_hash; // XXH64 of the header's text
    bool has_hashes;
    struct dp_saved_tensor *tensors; // in the order of their offsets; owned
    int64_t count;
};

// Reads and checks everything but the values: lengths, types, that tensors cover the file without
// gaps or overlaps. DP_INVALID names the file and what is wrong in it.
dp_status dp_safetensors_open(const char *path, struct dp_safetensors *ret_file,
                              struct dp_error *err);
// Accepts a closed file or zeros.
void dp_safetensors_close(struct dp_safetensors *file);
// The header of a file called `path` of `bytes` bytes in all, which open() reads; fd is -1 then.
dp_status dp_safetensors_parse(const char *path, uint64_t bytes, const char *text, size_t length,
                               struct dp_safetensors *ret_file, struct dp_error *err);
// Bytes [at, at + length) of the tensor's values; by any thread.
dp_status dp_safetensors_read(const struct dp_safetensors *file,
                              const struct dp_saved_tensor *tensor, uint64_t at, size_t length,
                              void *ret_bytes, struct dp_error *err);
// All of them, and checks the hash where there is one.
dp_status dp_safetensors_read_all(const struct dp_safetensors *file,
                                  const struct dp_saved_tensor *tensor, void *ret_bytes,
                                  struct dp_error *err);
uint64_t dp_safetensors_hash(const void *bytes, size_t length);

// A file that is being written: header first, so everything is known before.
struct dp_saved_part {
    const char *name;
    dp_dtype dtype;
    int32_t dims;
    int64_t shape[DP_TENSOR_DIMS_MAX];
    const void *values; // bytes as the shape says
};
// Writes a new file, tensors in the given order, and brings it to the disk. On failure nothing is
// left of it. *ret_bytes: of the whole file.
dp_status dp_safetensors_write(const char *path, const struct dp_saved_part *parts, int64_t count,
                               uint64_t *ret_bytes, struct dp_error *err);
