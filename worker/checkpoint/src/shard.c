#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/rand.h"
#include "format.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "values are written as they lie in memory, which is to be little-endian"
#endif

#define SHARD_MAGIC "DPSHARD1"
#define SHARD_SCHEMA "dp.shard/1"
#define SHARD_ALIGN 64u
#define PREAMBLE_BYTES 24u // magic, length and hash of the header

void dp_checkpoint_shard_deinit(struct shard *shard)
{
    free(shard->file);
    free(shard->tensors);
    *shard = (struct shard){0};
}

static uint64_t align_up(uint64_t offset)
{
    return (offset + SHARD_ALIGN - 1) / SHARD_ALIGN * SHARD_ALIGN;
}

static bool is_ours(const struct dp_checkpoint_stage *stage, const struct dp_tensor *tensor)
{
    return tensor->is_expert ? stage->writes_experts : stage->writes_shared;
}

// One tensor's weight, m and v, one behind the other, in host memory.
static void fetch(const struct dp_checkpoint_stage *stage, const struct dp_tensor *tensor,
                  char *values)
{
    struct dp_device *device = dp_stage_device(stage->stage);
    const void *sources[SHARD_PARTS] = {dp_stage_weights(stage->stage), stage->m, stage->v};
    size_t element = dp_element_bytes(device->element);
    size_t bytes = (size_t)tensor->count * element;
    for (int i = 0; i < SHARD_PARTS; i++) {
        if (sources[i] == NULL) {
            memset(values + (size_t)i * bytes, 0, bytes);
        } else {
            device->ops->copy(device->stream, values + (size_t)i * bytes,
                              (const char *)sources[i] + (size_t)tensor->offset * element, bytes);
        }
    }
    device->ops->stream_sync(device->stream, NULL);
}

struct writer {
    const struct dp_checkpoint_stage *stage;
    const struct dp_tensor *tensors;
    int32_t count;
    size_t element;
    char *values;  // room for the largest tensor's three parts
    uint64_t data; // bytes behind the header
};

static size_t tensor_bytes(const struct writer *writer, const struct dp_tensor *tensor)
{
    return SHARD_PARTS * (size_t)tensor->count * writer->element;
}

// The header, in which offsets count from the first tensor on.
static json_t *make_header(struct writer *writer, int64_t step)
{
    json_t *list = json_array();
    writer->data = 0;
    for (int32_t i = 0; i < writer->count; i++) {
        const struct dp_tensor *tensor = &writer->tensors[i];
        if (!is_ours(writer->stage, tensor)) {
            continue;
        }
        fetch(writer->stage, tensor, writer->values);
        uint64_t hash = dp_hash64(writer->values, tensor_bytes(writer, tensor), 0);
        json_array_append_new(list,
                              json_pack("[s, I, I, I, o]", tensor->name, (json_int_t)tensor->rows,
                                        (json_int_t)tensor->cols, (json_int_t)writer->data,
                                        dp_checkpoint_hex_to_json(hash)));
        writer->data += align_up(tensor_bytes(writer, tensor));
    }
    const char *element = writer->element == sizeof(double) ? "f64" : "f32";
    return json_pack("{s:s, s:s, s:I, s:o}", "schema", SHARD_SCHEMA, "element", element, "step",
                     (json_int_t)step, "tensors", list);
}

static void put_padded(FILE *file, const void *bytes, size_t length)
{
    static const char zeros[SHARD_ALIGN];
    fwrite(bytes, 1, length, file);
    fwrite(zeros, 1, align_up(length) - length, file);
}

static dp_status write_file(struct writer *writer, const char *path, int64_t step,
                            uint64_t *ret_bytes, struct dp_error *err)
{
    DP_AUTO_JSON json_t *header = make_header(writer, step);
    if (writer->data == 0) {
        *ret_bytes = 0;
        return DP_OK;
    }
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    char preamble[PREAMBLE_BYTES] = SHARD_MAGIC;
    dp_buf_append(&text, preamble, sizeof preamble);
    dp_json_write(header, 0, &text);
    size_t length = text.length - PREAMBLE_BYTES;
    uint64_t words[2] = {length, dp_hash64(text.bytes + PREAMBLE_BYTES, length, 0)};
    memcpy(text.bytes + 8, words, sizeof words);

    DP_AUTO_FCLOSE FILE *file = fopen(path, "we");
    if (file == NULL) {
        return dp_fail_errno(err, errno, "cannot create %s", path);
    }
    put_padded(file, text.bytes, text.length);
    for (int32_t i = 0; i < writer->count; i++) {
        if (is_ours(writer->stage, &writer->tensors[i])) {
            fetch(writer->stage, &writer->tensors[i], writer->values);
            put_padded(file, writer->values, tensor_bytes(writer, &writer->tensors[i]));
        }
    }
    // The stream remembers the first failure.
    if (fflush(file) != 0 || ferror(file) || fsync(fileno(file)) != 0) {
        return dp_fail_errno(err, errno, "cannot write %s", path);
    }
    *ret_bytes = align_up(text.length) + writer->data;
    return DP_OK;
}

dp_status dp_checkpoint_shard_write(const char *directory, const char *file, int64_t step,
                                    const struct dp_checkpoint_stage *stage, uint64_t *ret_bytes,
                                    struct dp_error *err)
{
    struct writer writer = {.stage = stage,
                            .element = dp_element_bytes(dp_stage_device(stage->stage)->element)};
    writer.tensors = dp_stage_tensors(stage->stage, &writer.count);
    size_t most = 0;
    for (int32_t i = 0; i < writer.count; i++) {
        size_t bytes = tensor_bytes(&writer, &writer.tensors[i]);
        most = bytes > most ? bytes : most;
    }
    DP_AUTO_FREE char *values = writer.values = dp_alloc_aligned(most, 1);
    DP_AUTO_FREE char *path = dp_asprintf("%s/%s", directory, file);
    return write_file(&writer, path, step, ret_bytes, err);
}

static dp_status fail_damaged(const char *path, const char *what, struct dp_error *err)
{
    return dp_fail(err, DP_INVALID, "%s is damaged: %s", path, what);
}

// Reads exactly `length` bytes at the start.
static dp_status read_start(int fd, const char *path, char *bytes, size_t length,
                            struct dp_error *err)
{
    for (size_t at = 0; at < length;) {
        ssize_t got = pread(fd, bytes + at, length - at, (off_t)at);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return dp_fail_errno(err, errno, "cannot read %s", path);
        }
        if (got == 0) {
            return fail_damaged(path, "it ends inside its header", err);
        }
        at += (size_t)got;
    }
    return DP_OK;
}

static dp_status read_header(int fd, const char *path, uint64_t *ret_data, json_t **ret_header,
                             struct dp_error *err)
{
    char preamble[PREAMBLE_BYTES];
    dp_status status = read_start(fd, path, preamble, sizeof preamble, err);
    if (status != DP_OK) {
        return status;
    }
    uint64_t words[2];
    memcpy(words, preamble + 8, sizeof words);
    if (memcmp(preamble, SHARD_MAGIC, 8) != 0) {
        return fail_damaged(path, "it does not start as a shard", err);
    }
    if (words[0] > SHARD_HEADER_BYTES_MAX) {
        return fail_damaged(path, "its header is longer than any", err);
    }
    size_t whole = PREAMBLE_BYTES + (size_t)words[0];
    DP_AUTO_FREE char *bytes = dp_alloc(whole, 1);
    status = read_start(fd, path, bytes, whole, err);
    if (status != DP_OK) {
        return status;
    }
    if (dp_hash64(bytes + PREAMBLE_BYTES, words[0], 0) != words[1]) {
        return fail_damaged(path, "its header does not match its hash", err);
    }
    *ret_data = align_up(whole);
    return dp_json_parse(bytes + PREAMBLE_BYTES, (size_t)words[0], SHARD_HEADER_BYTES_MAX, path,
                         ret_header, err);
}

static bool read_tensor(json_t *item, const struct shard *shard, uint64_t data,
                        struct shard_tensor *ret_tensor)
{
    const char *name, *hash;
    json_int_t rows, cols, offset;
    if (json_unpack(item, "[s, I, I, I, s]", &name, &rows, &cols, &offset, &hash) != 0 ||
        rows <= 0 || cols <= 0 || offset < 0 || rows > INT64_MAX / 64 / cols) {
        return false;
    }
    uint64_t room = shard->bytes - data;
    uint64_t length =
        SHARD_PARTS * (uint64_t)rows * (uint64_t)cols * dp_element_bytes(shard->element);
    *ret_tensor = (struct shard_tensor){.rows = rows, .cols = cols};
    ret_tensor->offset = data + (uint64_t)offset;
    return dp_checkpoint_hex_from_json(json_array_get(item, 4), &ret_tensor->hash) &&
           DP_COPY_TEXT(ret_tensor->name, name) && (uint64_t)offset <= room &&
           length <= room - (uint64_t)offset;
}

static dp_status read_tensors(json_t *header, const char *path, uint64_t data, struct shard *shard,
                              struct dp_error *err)
{
    const char *schema = json_string_value(json_object_get(header, "schema"));
    const char *element = json_string_value(json_object_get(header, "element"));
    const json_t *step = json_object_get(header, "step");
    json_t *list = json_object_get(header, "tensors");
    if (schema == NULL || strcmp(schema, SHARD_SCHEMA) != 0 || element == NULL ||
        !json_is_integer(step) || !json_is_array(list) || data > shard->bytes) {
        return fail_damaged(path, "its header is none of a shard, or it ends too early", err);
    }
    shard->element = strcmp(element, "f64") == 0 ? DP_F64 : DP_F32;
    shard->step = json_integer_value(step);
    shard->tensors = dp_new_array(struct shard_tensor, json_array_size(list));
    size_t i;
    json_t *item;
    json_array_foreach(list, i, item)
    {
        if (!read_tensor(item, shard, data, &shard->tensors[i])) {
            return dp_fail(err, DP_INVALID,
                           "%s is damaged: tensor %zu (%s) does not lie inside the file", path, i,
                           shard->tensors[i].name);
        }
        shard->count++;
    }
    return DP_OK;
}

dp_status dp_checkpoint_shard_read(const char *directory, const char *file, struct shard *ret_shard,
                                   struct dp_error *err)
{
    DP_AUTO_FREE char *path = dp_asprintf("%s/%s", directory, file);
    DP_AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat info;
    if (fd < 0 || fstat(fd, &info) != 0) {
        return dp_fail_errno(err, errno, "cannot open %s", path);
    }
    DP_CLEANUP(dp_checkpoint_shard_deinit)
    struct shard shard = {.file = dp_strdup(file), .bytes = (uint64_t)info.st_size};
    DP_AUTO_JSON json_t *header = NULL;
    uint64_t data = 0;
    dp_status status = read_header(fd, path, &data, &header, err);
    if (status == DP_OK) {
        status = read_tensors(header, path, data, &shard, err);
    }
    if (status == DP_OK) {
        *ret_shard = shard;
        shard = (struct shard){0};
    }
    return status;
}
