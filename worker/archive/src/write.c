// Writing: how long the header is follows from names and shapes; what it says of the values, their
// hashes, is known behind the last of them. So it is written last, and a file that was left before
// is none.
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "dp/alloc.h"
#include "dp/check.h"
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

static void make_header(const struct dp_saved_part *parts, int64_t count, const uint64_t *hashes,
                        struct dp_buf *text)
{
    uint64_t length = 0, at = 0;
    dp_buf_append(text, &length, sizeof length);
    dp_buf_puts(text, "{\"__metadata__\":{\"format\":\"pt\",\"" HASHES_KEY "\":\"");
    for (int64_t i = 0; i < count; i++) {
        dp_buf_printf(text, "%0*" PRIx64, HASH_DIGITS, hashes[i]);
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

// Each piece is hashed while the disk is at the one before.
static dp_status put_values(struct dp_file_writer *writer, const struct dp_saved_part *part,
                            XXH64_state_t *state, uint64_t *ret_hash, struct dp_error *err)
{
    uint64_t bytes = part_bytes(part);
    XXH64_reset(state, 0);
    for (uint64_t done = 0; done < bytes;) {
        size_t piece = (size_t)(bytes - done < DP_WRITE_PIECE ? bytes - done : DP_WRITE_PIECE);
        const char *values = (const char *)part->values + done;
        XXH64_update(state, values, piece);
        dp_status status = dp_file_writer_put(writer, values, piece, err);
        if (status != DP_OK) {
            return status;
        }
        done += piece;
    }
    *ret_hash = XXH64_digest(state);
    return DP_OK;
}

static dp_status put_all(struct dp_file_writer *writer, const struct dp_saved_part *parts,
                         int64_t count, uint64_t *hashes, struct dp_error *err)
{
    XXH64_state_t *state = XXH64_createState();
    DP_CHECK(state != NULL);
    dp_status status = DP_OK;
    for (int64_t i = 0; i < count && status == DP_OK; i++) {
        status = put_values(writer, &parts[i], state, &hashes[i], err);
    }
    XXH64_freeState(state);
    return status;
}

static dp_status write_to(int fd, const char *path, const struct dp_saved_part *parts,
                          int64_t count, uint64_t *ret_bytes, struct dp_error *err)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf header = {0};
    DP_AUTO_FREE uint64_t *hashes = dp_new_array(uint64_t, (size_t)count);
    make_header(parts, count, hashes, &header);
    struct dp_file_writer values = {.path = path, .fd = fd, .at = header.length};
    dp_status status = put_all(&values, parts, count, hashes, err);
    if (status == DP_OK) {
        header.length = 0;
        make_header(parts, count, hashes, &header);
        struct dp_file_writer front = {.path = path, .fd = fd};
        status = dp_file_writer_put(&front, header.bytes, header.length, err);
    }
    if (status == DP_OK && fsync(fd) != 0) {
        status = dp_fail_errno(err, errno, "cannot write %s", path);
    }
    *ret_bytes = values.at;
    return status;
}

dp_status dp_safetensors_write(const char *path, const struct dp_saved_part *parts, int64_t count,
                               uint64_t *ret_bytes, struct dp_error *err)
{
    DP_AUTO_CLOSE int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) {
        return dp_fail_errno(err, errno, "cannot create %s", path);
    }
    uint64_t bytes;
    dp_status status = write_to(fd, path, parts, count, &bytes, err);
    if (status != DP_OK) {
        unlink(path);
        return status;
    }
    *ret_bytes = bytes;
    return DP_OK;
}
