// JSON in pieces: bytes in, values out, nothing held but the value at hand.
//
// Any number of documents may follow each other. What a value means is known by a node: the handler
// names the node of a member below its object's node, or NONE for what it does not care about.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dp/error.h"
#include "dp/limits.h"

enum { JSON_NODE_NONE = -1, JSON_NODE_TOP = 0 };

struct json_frame {
    int32_t node;
    bool is_array;
    int64_t index; // of the element at hand
};

typedef enum value_kind {
    VALUE_TEXT,
    VALUE_NUMBER,
    VALUE_TRUE,
    VALUE_FALSE,
    VALUE_NULL
} value_kind;

struct json_value {
    int32_t node; // its own; of an element, its array's
    value_kind kind;
    const char *text; // with a 0 behind it; a long one is cut
    size_t length;
    int32_t depth;  // values around it
    int64_t index;  // in its array; -1 = a member
    int64_t offset; // of its first byte
};

struct json_handler {
    void *context;
    // The node of member `key` in an object of node `parent`.
    int32_t (*member)(void *context, int32_t parent, const char *key, size_t length);
    dp_status (*begin)(void *context, int32_t node, bool is_array, int32_t depth,
                       struct dp_error *err);
    dp_status (*end)(void *context, int32_t node, bool is_array, int32_t depth,
                     struct dp_error *err);
    dp_status (*value)(void *context, const struct json_value *value, struct dp_error *err);
};

struct json_stream {
    struct json_handler handler;
    int64_t offset; // bytes taken
    int64_t token_offset;
    int state;
    int32_t depth;
    struct json_frame frames[DP_TRACE_DEPTH_MAX];
    int32_t member; // node of the value to come
    char token[DP_TRACE_TEXT_MAX + 8];
    size_t token_length;
    bool token_is_key;
    int unicode_left;
    uint32_t unicode;
};
void dp_json_stream_init(struct json_stream *stream, const struct json_handler *handler);
dp_status dp_json_stream_feed(struct json_stream *stream, const char *bytes, size_t length,
                              struct dp_error *err);
// DP_INVALID when a document is open.
dp_status dp_json_stream_finish(struct json_stream *stream, struct dp_error *err);
