// Frames and the table, byte by byte.
#include <endian.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/buf.h"
#include "dp/cleanup.h"
#include "internal.h"

#define PART_BYTES 32u // kind, dtype u8; length of the name u16; zero u32; begin, end, count u64

static void put_u32(unsigned char *at, uint32_t value)
{
    value = htole32(value);
    memcpy(at, &value, sizeof value);
}

static void put_u64(unsigned char *at, uint64_t value)
{
    value = htole64(value);
    memcpy(at, &value, sizeof value);
}

static uint32_t get_u32(const unsigned char *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return le32toh(value);
}

static uint64_t get_u64(const unsigned char *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return le64toh(value);
}

void dp_state_put_hello(unsigned char *bytes, uint64_t token, int32_t from, int32_t to)
{
    memset(bytes, 0, STATE_HELLO_BYTES);
    put_u32(bytes, STATE_MAGIC);
    put_u32(bytes + 4, STATE_VERSION);
    put_u64(bytes + 8, token);
    put_u32(bytes + 16, (uint32_t)from);
    put_u32(bytes + 20, (uint32_t)to);
}

bool dp_state_read_hello(const unsigned char *bytes, uint64_t token, int32_t *ret_from,
                         int32_t *ret_to)
{
    *ret_from = (int32_t)get_u32(bytes + 16);
    *ret_to = (int32_t)get_u32(bytes + 20);
    return get_u32(bytes) == STATE_MAGIC && get_u32(bytes + 4) == STATE_VERSION &&
           get_u64(bytes + 8) == token;
}

void dp_state_put_request(unsigned char *bytes, const struct state_request *request)
{
    memset(bytes, 0, STATE_REQUEST_BYTES);
    put_u32(bytes, request->question);
    put_u32(bytes + 4, request->part);
    put_u64(bytes + 8, request->first);
    put_u64(bytes + 16, request->count);
}

struct state_request dp_state_read_request(const unsigned char *bytes)
{
    return (struct state_request){get_u32(bytes), get_u32(bytes + 4), get_u64(bytes + 8),
                                  get_u64(bytes + 16)};
}

void dp_state_put_answer(unsigned char *bytes, const struct state_answer *answer)
{
    memset(bytes, 0, STATE_ANSWER_BYTES);
    put_u32(bytes, STATE_MAGIC);
    put_u32(bytes + 4, answer->question);
    put_u64(bytes + 8, answer->length);
    put_u64(bytes + 16, answer->hash);
}

bool dp_state_read_answer(const unsigned char *bytes, uint32_t question, uint64_t length_max,
                          struct state_answer *ret_answer)
{
    *ret_answer =
        (struct state_answer){get_u32(bytes + 4), get_u64(bytes + 8), get_u64(bytes + 16)};
    return get_u32(bytes) == STATE_MAGIC && ret_answer->question == question &&
           ret_answer->length <= length_max;
}

void dp_state_write_table(const struct dp_state *state, struct dp_buf *out)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf meta = {0};
    dp_archive_meta_write(&state->meta, &meta);
    unsigned char word[PART_BYTES];
    put_u32(word, (uint32_t)meta.length);
    put_u32(word + 4, (uint32_t)state->count);
    dp_buf_append(out, word, 8);
    dp_buf_append(out, meta.bytes, meta.length);
    for (int64_t i = 0; i < state->count; i++) {
        const struct dp_state_part *part = &state->parts[i];
        const size_t length = strlen(part->own);
        memset(word, 0, sizeof word);
        word[0] = (unsigned char)part->kind;
        word[1] = (unsigned char)part->dtype;
        word[2] = (unsigned char)length;
        word[3] = (unsigned char)(length >> 8);
        put_u64(word + 8, (uint64_t)part->begin);
        put_u64(word + 16, (uint64_t)part->end);
        put_u64(word + 24, (uint64_t)part->count);
        dp_buf_append(out, word, sizeof word);
        dp_buf_append(out, part->own, length);
    }
}

// What is left of the bytes.
struct cursor {
    const unsigned char *at;
    size_t left;
};

static const unsigned char *take(struct cursor *cursor, size_t length)
{
    if (length > cursor->left) {
        return NULL;
    }
    const unsigned char *at = cursor->at;
    cursor->at += length;
    cursor->left -= length;
    return at;
}

static bool is_name(const unsigned char *bytes, size_t length)
{
    bool good = length > 0 && length < DP_NAME_MAX;
    for (size_t i = 0; good && i < length; i++) {
        good = bytes[i] > ' ' && bytes[i] < 0x7f;
    }
    return good;
}

static bool is_kind(unsigned kind)
{
    return kind == DP_ARCHIVE_WEIGHT || kind == DP_ARCHIVE_M || kind == DP_ARCHIVE_V;
}

static bool is_dtype(unsigned dtype)
{
    return dtype == DP_DTYPE_F64 || dtype == DP_DTYPE_F32 || dtype == DP_DTYPE_BF16;
}

static bool parse_part(struct cursor *cursor, struct dp_state_part *ret_part)
{
    const unsigned char *word = take(cursor, PART_BYTES);
    const size_t length = word == NULL ? 0 : (size_t)word[2] | (size_t)word[3] << 8;
    const unsigned char *name = word == NULL ? NULL : take(cursor, length);
    if (name == NULL || !is_name(name, length) || !is_kind(word[0]) || !is_dtype(word[1])) {
        return false;
    }
    const uint64_t begin = get_u64(word + 8), end = get_u64(word + 16), count = get_u64(word + 24);
    if (count > DP_STATE_ELEMENTS_MAX || end > count || begin >= end) {
        return false;
    }
    *ret_part = (struct dp_state_part){.kind = (dp_archive_kind)word[0],
                                       .dtype = (dp_dtype)word[1],
                                       .begin = (int64_t)begin,
                                       .end = (int64_t)end,
                                       .count = (int64_t)count};
    memcpy(ret_part->own, name, length);
    return true;
}

static dp_status parse_parts(struct cursor *cursor, int64_t count, struct dp_state *state,
                             struct dp_error *err)
{
    if (count > DP_STATE_PARTS_MAX) {
        return dp_fail(err, DP_TOO_LARGE, "a table of %lld tensors; at most %d are taken",
                       (long long)count, DP_STATE_PARTS_MAX);
    }
    if ((uint64_t)count * PART_BYTES > cursor->left) {
        return dp_fail(err, DP_INVALID, "a table of %lld tensors ends after %zu bytes",
                       (long long)count, cursor->left);
    }
    state->parts = dp_new_array(struct dp_state_part, (size_t)count);
    for (; state->count < count; state->count++) {
        if (!parse_part(cursor, &state->parts[state->count])) {
            return dp_fail(err, DP_INVALID, "tensor %lld of the table is none",
                           (long long)state->count);
        }
    }
    return cursor->left == 0 ? DP_OK
                             : dp_fail(err, DP_INVALID, "%zu bytes behind the table", cursor->left);
}

dp_status dp_state_parse_table(const void *bytes, size_t length, struct dp_state *ret_state,
                               struct dp_error *err)
{
    struct cursor cursor = {bytes, length};
    DP_CLEANUP(dp_state_deinit) struct dp_state state = {0};
    const unsigned char *head = take(&cursor, 8);
    const size_t meta_length = head == NULL ? 0 : get_u32(head);
    const char *meta = head == NULL ? NULL : (const char *)take(&cursor, meta_length);
    if (meta == NULL) {
        return dp_fail(err, DP_INVALID, "a table of %zu bytes is cut off", length);
    }
    dp_status status = dp_archive_meta_parse(meta, meta_length, "table of state", &state.meta, err);
    if (status == DP_OK) {
        status = parse_parts(&cursor, get_u32(head + 4), &state, err);
    }
    if (status == DP_OK) {
        *ret_state = state;
        state = (struct dp_state){0};
    }
    return status;
}

void dp_state_deinit(struct dp_state *state)
{
    free(state->parts);
    *state = (struct dp_state){0};
}
