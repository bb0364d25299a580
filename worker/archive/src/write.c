// Writing: the header is known whole before the first byte.
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/json.h"
#include "dp/safetensors.h"
#include "internal.h"

#define ALIGN 8u

static uint64_t part_bytes(const struct dp_saved_part *part)
{
    uint64_t bytes = dp_dtype_bytes(part->dtype);
    for (int32_t i = 0; i < part->dims; i++) {
        bytes *= (uint64_t)part->shape[i];
    }
    return bytes;
}

static void put_part(const struct dp_saved_part *part, uint64_t at, struct dp_buf *text)
{
    // Names of tensors are ours: letters, digits and "._[:]".
    dp_buf_printf(text, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", part->name,
                  dp_dtype_name(part->dtype));
    for (int32_t i = 0; i < part->dims; i++) {
        dp_buf_printf(text, "%s%" PRId64, i == 0 ? "" : ",", part->shape[i]);
    }
    dp_buf_printf(text, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", at, at + part_bytes(part));
}

static void make_header(const struct dp_saved_part *parts, int64_t count, struct dp_buf *text)
{
    uint64_t length = 0, at = 0;
    dp_buf_append(text, &length, sizeof length);
    dp_buf_puts(text, "{\"__metadata__\":{\"format\":\"pt\",\"" HASHES_KEY "\":\"");
    for (int64_t i = 0; i < count; i++) {
        dp_buf_printf(text, "%016" PRIx64,
                      dp_safetensors_hash(parts[i].values, (size_t)part_bytes(&parts[i])));
    }
    dp_buf_puts(text, "\"}");
    for (int64_t i = 0; i < count; i++) {
        put_part(&parts[i], at, text);
        at += part_bytes(&parts[i]);
    }
    dp_buf_puts(text, "}");
    while (text->length % ALIGN != 0) {
        dp_buf_puts(text, " ");
    }
    length = text->length - PREAMBLE_BYTES;
    memcpy(text->bytes, &length, sizeof length);
}

static dp_status put_bytes(int fd, const char *path, const void *bytes, uint64_t length,
                           struct dp_error *err)
{
    for (uint64_t done = 0; done < length;) {
        ssize_t put = write(fd, (const char *)bytes + done, (size_t)(length - done));
        if (put < 0 && errno == EINTR) {
            continue;
        }
        if (put < 0) {
            return dp_fail_errno(err, errno, "cannot write %s", path);
        }
        done += (uint64_t)put;
    }
    return DP_OK;
}

dp_status dp_safetensors_write(const char *path, const struct dp_saved_part *parts, int64_t count,
                               uint64_t *ret_bytes, struct dp_error *err)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf header = {0};
    make_header(parts, count, &header);
    DP_AUTO_CLOSE int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0) {
        return dp_fail_errno(err, errno, "cannot create %s", path);
    }
    uint64_t bytes = header.length;
    dp_status status = put_bytes(fd, path, header.bytes, header.length, err);
    for (int64_t i = 0; i < count && status == DP_OK; i++) {
        status = put_bytes(fd, path, parts[i].values, part_bytes(&parts[i]), err);
        bytes += part_bytes(&parts[i]);
    }
    if (status == DP_OK && fsync(fd) != 0) {
        status = dp_fail_errno(err, errno, "cannot write %s", path);
    }
    if (status != DP_OK) {
        unlink(path);
        return status;
    }
    *ret_bytes = bytes;
    return DP_OK;
}
