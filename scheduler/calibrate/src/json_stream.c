#include "json_stream.h"

#include <string.h>

enum {
    STATE_TOP, // between documents
    STATE_VALUE,
    STATE_VALUE_OR_END, // after [
    STATE_KEY_OR_END,   // after {
    STATE_KEY,          // after a comma
    STATE_COLON,
    STATE_COMMA_OR_END,
    STATE_STRING,
    STATE_ESCAPE,
    STATE_UNICODE,
    STATE_NUMBER,
    STATE_WORD, // true, false, null
};

void dp_json_stream_init(struct json_stream *stream, const struct json_handler *handler)
{
    *stream = (struct json_stream){.handler = *handler, .state = STATE_TOP};
}

static dp_status refuse(const struct json_stream *stream, int64_t offset, const char *what,
                        struct dp_error *err)
{
    (void)stream;
    return dp_fail(err, DP_INVALID, "byte %lld: %s", (long long)offset, what);
}

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static struct json_frame *innermost(struct json_stream *stream)
{
    return stream->depth == 0 ? NULL : &stream->frames[stream->depth - 1];
}

// The node of the value that comes now.
static int32_t node_of_value(struct json_stream *stream)
{
    const struct json_frame *frame = innermost(stream);
    if (frame == NULL) {
        return JSON_NODE_TOP;
    }
    return frame->is_array ? frame->node : stream->member;
}

static void after_value(struct json_stream *stream)
{
    stream->state = stream->depth == 0 ? STATE_TOP : STATE_COMMA_OR_END;
}

static dp_status emit(struct json_stream *stream, value_kind kind, struct dp_error *err)
{
    const struct json_frame *frame = innermost(stream);
    stream->token[stream->token_length] = '\0';
    struct json_value value = {.node = node_of_value(stream),
                               .kind = kind,
                               .text = stream->token,
                               .length = stream->token_length,
                               .depth = stream->depth,
                               .index = frame != NULL && frame->is_array ? frame->index : -1,
                               .offset = stream->token_offset};
    after_value(stream);
    if (value.node == JSON_NODE_NONE) {
        return DP_OK;
    }
    return stream->handler.value(stream->handler.context, &value, err);
}

static dp_status open(struct json_stream *stream, bool is_array, struct dp_error *err)
{
    if (stream->depth == DP_TRACE_DEPTH_MAX) {
        return dp_fail(err, DP_TOO_LARGE,
                       "byte %lld: more than %d values within values, which no trace has",
                       (long long)stream->offset, DP_TRACE_DEPTH_MAX);
    }
    int32_t node = node_of_value(stream);
    stream->frames[stream->depth++] = (struct json_frame){.node = node, .is_array = is_array};
    stream->state = is_array ? STATE_VALUE_OR_END : STATE_KEY_OR_END;
    if (node == JSON_NODE_NONE) {
        return DP_OK;
    }
    return stream->handler.begin(stream->handler.context, node, is_array, stream->depth - 1, err);
}

static dp_status close_one(struct json_stream *stream, bool is_array, struct dp_error *err)
{
    const struct json_frame *frame = innermost(stream);
    if (frame == NULL || frame->is_array != is_array) {
        return refuse(stream, stream->offset,
                      is_array ? "a ] that closes nothing" : "a } that closes nothing", err);
    }
    int32_t node = frame->node;
    stream->depth--;
    after_value(stream);
    if (node == JSON_NODE_NONE) {
        return DP_OK;
    }
    return stream->handler.end(stream->handler.context, node, is_array, stream->depth, err);
}

static void begin_token(struct json_stream *stream, int state, bool is_key)
{
    stream->state = state;
    stream->token_offset = stream->offset;
    stream->token_length = 0;
    stream->token_is_key = is_key;
}

// What is too long is cut: only its beginning is looked at.
static void keep(struct json_stream *stream, const char *bytes, size_t length)
{
    size_t room = DP_TRACE_TEXT_MAX - stream->token_length;
    size_t taken = length < room ? length : room;
    memcpy(stream->token + stream->token_length, bytes, taken);
    stream->token_length += taken;
}

static dp_status begin_value(struct json_stream *stream, char c, struct dp_error *err)
{
    if (c == '{' || c == '[') {
        return open(stream, c == '[', err);
    }
    if (c == '"') {
        begin_token(stream, STATE_STRING, false);
        return DP_OK;
    }
    if (c == '-' || (c >= '0' && c <= '9')) {
        begin_token(stream, STATE_NUMBER, false);
        keep(stream, &c, 1);
        return DP_OK;
    }
    if (c == 't' || c == 'f' || c == 'n') {
        begin_token(stream, STATE_WORD, false);
        keep(stream, &c, 1);
        return DP_OK;
    }
    return refuse(stream, stream->offset,
                  c == 'N' || c == 'I' ? "a number that is not finite: JSON has none"
                                       : "not JSON: a value is expected here",
                  err);
}

static dp_status end_string(struct json_stream *stream, struct dp_error *err)
{
    if (!stream->token_is_key) {
        return emit(stream, VALUE_TEXT, err);
    }
    stream->token[stream->token_length] = '\0';
    const struct json_frame *frame = innermost(stream);
    stream->member = frame->node == JSON_NODE_NONE
                         ? JSON_NODE_NONE
                         : stream->handler.member(stream->handler.context, frame->node,
                                                  stream->token, stream->token_length);
    stream->state = STATE_COLON;
    return DP_OK;
}

static void keep_unicode(struct json_stream *stream)
{
    uint32_t c = stream->unicode;
    char bytes[3];
    size_t length = 1;
    if (c < 0x80) {
        bytes[0] = (char)(c < 0x20 ? '?' : c);
    } else if (c < 0x800) {
        bytes[0] = (char)(0xc0 | c >> 6);
        bytes[1] = (char)(0x80 | (c & 0x3f));
        length = 2;
    } else if (c >= 0xd800 && c < 0xe000) {
        bytes[0] = '?'; // one half of a pair: names have no use for it
    } else {
        bytes[0] = (char)(0xe0 | c >> 12);
        bytes[1] = (char)(0x80 | (c >> 6 & 0x3f));
        bytes[2] = (char)(0x80 | (c & 0x3f));
        length = 3;
    }
    keep(stream, bytes, length);
}

static dp_status take_unicode(struct json_stream *stream, char c, struct dp_error *err)
{
    uint32_t digit;
    if (c >= '0' && c <= '9') {
        digit = (uint32_t)(c - '0');
    } else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') {
        digit = (uint32_t)((c | 0x20) - 'a' + 10);
    } else {
        return refuse(stream, stream->offset, "\\u wants four hexadecimal digits", err);
    }
    stream->unicode = stream->unicode << 4 | digit;
    if (--stream->unicode_left == 0) {
        keep_unicode(stream);
        stream->state = STATE_STRING;
    }
    return DP_OK;
}

static dp_status take_escape(struct json_stream *stream, char c, struct dp_error *err)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/     ";
    if (c == 'u') {
        stream->unicode = 0;
        stream->unicode_left = 4;
        stream->state = STATE_UNICODE;
        return DP_OK;
    }
    const char *found = c == '\0' ? NULL : strchr(from, c);
    if (found == NULL) {
        return refuse(stream, stream->offset, "an escape that JSON does not have", err);
    }
    keep(stream, &to[found - from], 1);
    stream->state = STATE_STRING;
    return DP_OK;
}

static bool is_number_byte(char c)
{
    return (c >= '0' && c <= '9') || c == '.' || c == '-' || c == '+' || c == 'e' || c == 'E';
}

// -?(0|[1-9][0-9]*)(.[0-9]+)?([eE][+-]?[0-9]+)?
static bool is_number(const char *at)
{
    at += *at == '-';
    if (*at == '0') {
        at++;
    } else if (*at >= '1' && *at <= '9') {
        at += strspn(at, "0123456789");
    } else {
        return false;
    }
    if (*at == '.') {
        size_t digits = strspn(++at, "0123456789");
        if (digits == 0) {
            return false;
        }
        at += digits;
    }
    if (*at == 'e' || *at == 'E') {
        at++;
        at += *at == '+' || *at == '-';
        size_t digits = strspn(at, "0123456789");
        if (digits == 0) {
            return false;
        }
        at += digits;
    }
    return *at == '\0';
}

static dp_status end_number(struct json_stream *stream, struct dp_error *err)
{
    stream->token[stream->token_length] = '\0';
    if (stream->token_length >= DP_TRACE_NUMBER_MAX) {
        return dp_fail(err, DP_TOO_LARGE, "byte %lld: a number of more than %d characters",
                       (long long)stream->token_offset, DP_TRACE_NUMBER_MAX - 1);
    }
    if (!is_number(stream->token)) {
        return refuse(stream, stream->token_offset,
                      strpbrk(stream->token, "IN") != NULL
                          ? "a number that is not finite: JSON has none"
                          : "not a number as JSON writes it",
                      err);
    }
    return emit(stream, VALUE_NUMBER, err);
}

static dp_status end_word(struct json_stream *stream, struct dp_error *err)
{
    static const struct {
        const char *text;
        value_kind kind;
    } words[] = {{"true", VALUE_TRUE}, {"false", VALUE_FALSE}, {"null", VALUE_NULL}};
    stream->token[stream->token_length] = '\0';
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strcmp(stream->token, words[i].text) == 0) {
            return emit(stream, words[i].kind, err);
        }
    }
    return refuse(stream, stream->token_offset,
                  strncmp(stream->token, "nan", 3) == 0
                      ? "a number that is not finite: JSON has none"
                      : "a word that is not true, false or null",
                  err);
}

// Bytes of a string up to its end, an escape, or the end of what there is.
static size_t string_bytes(struct json_stream *stream, const char *bytes, size_t length)
{
    size_t count = 0;
    while (count < length && bytes[count] != '"' && bytes[count] != '\\' &&
           (unsigned char)bytes[count] >= 0x20) {
        count++;
    }
    keep(stream, bytes, count);
    return count;
}

static dp_status in_string(struct json_stream *stream, char c, struct dp_error *err)
{
    if (stream->state == STATE_ESCAPE) {
        return take_escape(stream, c, err);
    }
    if (stream->state == STATE_UNICODE) {
        return take_unicode(stream, c, err);
    }
    if (c == '"') {
        return end_string(stream, err);
    }
    if (c == '\\') {
        stream->state = STATE_ESCAPE;
        return DP_OK;
    }
    // Tabs within names are wrong, and common.
    if (c == '\t') {
        keep(stream, " ", 1);
        return DP_OK;
    }
    return refuse(stream, stream->offset, "a control character within a string", err);
}

static dp_status between(struct json_stream *stream, char c, struct dp_error *err)
{
    struct json_frame *frame = innermost(stream);
    switch (stream->state) {
    case STATE_TOP:
        if (c != '{' && c != '[') {
            return refuse(stream, stream->offset, "not JSON: an object or a list begins here", err);
        }
        return open(stream, c == '[', err);
    case STATE_VALUE_OR_END:
        return c == ']' ? close_one(stream, true, err) : begin_value(stream, c, err);
    case STATE_VALUE:
        return begin_value(stream, c, err);
    case STATE_COLON:
        if (c != ':') {
            return refuse(stream, stream->offset, "not JSON: a colon is expected here", err);
        }
        stream->state = STATE_VALUE;
        return DP_OK;
    case STATE_COMMA_OR_END:
        if (c == ',') {
            frame->index++;
            stream->state = frame->is_array ? STATE_VALUE : STATE_KEY;
            return DP_OK;
        }
        if (c != ']' && c != '}') {
            return refuse(stream, stream->offset, "not JSON: a comma or an end is expected here",
                          err);
        }
        return close_one(stream, c == ']', err);
    default: // a key
        if (c == '}' && stream->state == STATE_KEY_OR_END) {
            return close_one(stream, false, err);
        }
        if (c != '"') {
            return refuse(stream, stream->offset, "not JSON: a key is expected here", err);
        }
        begin_token(stream, STATE_STRING, true);
        return DP_OK;
    }
}

dp_status dp_json_stream_feed(struct json_stream *stream, const char *bytes, size_t length,
                              struct dp_error *err)
{
    dp_status status = DP_OK;
    for (size_t at = 0; status == DP_OK && at < length;) {
        char c = bytes[at];
        if (stream->state == STATE_STRING) {
            size_t plain = string_bytes(stream, bytes + at, length - at);
            at += plain;
            stream->offset += (int64_t)plain;
            if (at == length) {
                break;
            }
            c = bytes[at];
        }
        bool in_number = stream->state == STATE_NUMBER;
        bool in_word = stream->state == STATE_WORD;
        if (in_number || in_word) {
            bool more = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                        (in_number && is_number_byte(c));
            if (!more) {
                // The byte behind it is looked at again.
                status = in_number ? end_number(stream, err) : end_word(stream, err);
                continue;
            }
            keep(stream, &c, 1);
        } else if (stream->state >= STATE_STRING && stream->state <= STATE_UNICODE) {
            status = in_string(stream, c, err);
        } else if (!is_space(c)) {
            status = between(stream, c, err);
        }
        at++;
        stream->offset++;
    }
    return status;
}

dp_status dp_json_stream_finish(struct json_stream *stream, struct dp_error *err)
{
    if (stream->state != STATE_TOP) {
        return dp_fail(err, DP_INVALID,
                       "byte %lld: the file ends within a value: it was cut off, or is still "
                       "being written",
                       (long long)stream->offset);
    }
    return DP_OK;
}
