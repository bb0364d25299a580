// Bytes of files become tokens.
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dp/cleanup.h"
#include "files.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "token files are little-endian and are read as they lie"
#endif

#define CHUNK_BYTES 32768

int32_t dp_token_bytes(token_type type)
{
    static const int32_t bytes[] = {
        [TOKEN_U8] = 1,  [TOKEN_I8] = 1,  [TOKEN_U16] = 2, [TOKEN_I16] = 2,
        [TOKEN_U32] = 4, [TOKEN_I32] = 4, [TOKEN_I64] = 8,
    };
    return bytes[type];
}

dp_status dp_token_file_open(const char *path, int *ret_fd, int64_t *ret_bytes,
                             struct dp_error *err)
{
    // Not blocking, since opening a fifo would wait for a writer.
    DP_AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        return dp_fail_errno(err, errno, "cannot open the corpus %s", path);
    }
    struct stat info;
    if (fstat(fd, &info) != 0) {
        return dp_fail_errno(err, errno, "cannot stat the corpus %s", path);
    }
    if (!S_ISREG(info.st_mode)) {
        return dp_fail(err, DP_INVALID, "the corpus %s is %s, not a regular file", path,
                       S_ISDIR(info.st_mode) ? "a directory" : "a device, pipe or socket");
    }
    if (info.st_size == 0) {
        return dp_fail(err, DP_INVALID, "the corpus %s is empty", path);
    }
    if ((uint64_t)info.st_size > DP_CORPUS_BYTES_MAX) {
        return dp_fail(err, DP_TOO_LARGE, "the corpus %s has %lld bytes; the limit is %llu", path,
                       (long long)info.st_size, (unsigned long long)DP_CORPUS_BYTES_MAX);
    }
    *ret_bytes = info.st_size;
    *ret_fd = fd;
    fd = -1;
    return DP_OK;
}

dp_status dp_token_file_pread(int fd, const char *path, int64_t offset, void *bytes, size_t length,
                              struct dp_error *err)
{
    for (size_t at = 0; at < length;) {
        ssize_t got = pread(fd, (char *)bytes + at, length - at, offset + (int64_t)at);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return dp_fail_errno(err, errno, "cannot read %s at offset %lld", path,
                                 (long long)offset + (long long)at);
        }
        if (got == 0) {
            return dp_fail(err, DP_IO,
                           "%s ends at or before offset %lld, where %zu more bytes were when it "
                           "was opened: it was cut short",
                           path, (long long)offset + (long long)at, length - at);
        }
        at += (size_t)got;
    }
    return DP_OK;
}

#define DECODE(name, type)                                                                         \
    static int64_t name(const void *from, int64_t count, int64_t vocabulary, int32_t *ret_tokens,  \
                        int64_t *ret_bad)                                                          \
    {                                                                                              \
        const type *values = from;                                                                 \
        for (int64_t i = 0; i < count; i++) {                                                      \
            int64_t value = (int64_t)values[i];                                                    \
            if (value < 0 || value >= vocabulary) {                                                \
                *ret_bad = value;                                                                  \
                return i;                                                                          \
            }                                                                                      \
            ret_tokens[i] = (int32_t)value;                                                        \
        }                                                                                          \
        return count;                                                                              \
    }

DECODE(decode_u8, uint8_t)
DECODE(decode_i8, int8_t)
DECODE(decode_u16, uint16_t)
DECODE(decode_i16, int16_t)
DECODE(decode_u32, uint32_t)
DECODE(decode_i32, int32_t)
DECODE(decode_i64, int64_t)

int64_t dp_tokens_decode(token_type type, const void *from, int64_t count, int32_t vocabulary,
                         int32_t *ret_tokens, int64_t *ret_bad)
{
    static int64_t (*const decoders[])(const void *, int64_t, int64_t, int32_t *, int64_t *) = {
        [TOKEN_U8] = decode_u8,   [TOKEN_I8] = decode_i8,   [TOKEN_U16] = decode_u16,
        [TOKEN_I16] = decode_i16, [TOKEN_U32] = decode_u32, [TOKEN_I32] = decode_i32,
        [TOKEN_I64] = decode_i64,
    };
    return decoders[type](from, count, vocabulary, ret_tokens, ret_bad);
}

dp_status dp_token_file_read(const struct token_file *file, int64_t at, int64_t count,
                             int32_t vocabulary, int32_t *ret_tokens, struct dp_error *err)
{
    const int64_t width = dp_token_bytes(file->type);
    _Alignas(int64_t) char chunk[CHUNK_BYTES];
    while (count > 0) {
        int64_t part = count < CHUNK_BYTES / width ? count : CHUNK_BYTES / width;
        int64_t offset = file->offset + at * width;
        dp_status status =
            dp_token_file_pread(file->fd, file->path, offset, chunk, (size_t)(part * width), err);
        if (status != DP_OK) {
            return status;
        }
        int64_t bad = 0;
        int64_t good = dp_tokens_decode(file->type, chunk, part, vocabulary, ret_tokens, &bad);
        if (good < part) {
            return dp_fail(
                err, DP_INVALID,
                "%s holds token %lld at offset %lld; the model's vocabulary has %d: take "
                "the tokenizer's vocabulary, or check [data] format and token_bytes",
                file->path, (long long)bad, (long long)(offset + good * width), vocabulary);
        }
        at += part;
        ret_tokens += part;
        count -= part;
    }
    return DP_OK;
}

// The file that holds a token.
static const struct token_file *file_at(const struct token_files *files, int64_t at)
{
    int32_t low = 0, high = files->count;
    while (high - low > 1) {
        int32_t middle = low + (high - low) / 2;
        if (files->items[middle].first <= at) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return &files->items[low];
}

dp_status dp_token_files_read(const struct token_files *files, int64_t at, int64_t count,
                              int32_t vocabulary, int32_t *ret_tokens, struct dp_error *err)
{
    while (count > 0) {
        const struct token_file *file = file_at(files, at);
        int64_t inside = at - file->first;
        int64_t part = count < file->count - inside ? count : file->count - inside;
        dp_status status = dp_token_file_read(file, inside, part, vocabulary, ret_tokens, err);
        if (status != DP_OK) {
            return status;
        }
        at += part;
        ret_tokens += part;
        count -= part;
    }
    return DP_OK;
}
