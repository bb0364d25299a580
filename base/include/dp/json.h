// JSON documents: jansson, and the few habits this project has with it.
#pragma once

#include <jansson.h>

#include "dp/buf.h"
#include "dp/cleanup.h"
#include "dp/error.h"

static inline void dp_cleanup_json(json_t **json)
{
    json_decref(*json);
}
#define DP_AUTO_JSON DP_CLEANUP(dp_cleanup_json)

// As jansson has it, without a byte-order mark at the start and with each key once. NULL, and
// *ret_where says why, when the text is no JSON.
json_t *dp_json_load(const char *text, size_t length, json_error_t *ret_where);
// Parses text of at most max_bytes (depth is capped by jansson); *ret_json is the caller's.
// `name` is what errors call the input.
dp_status dp_json_parse(const char *text, size_t length, size_t max_bytes, const char *name,
                        json_t **ret_json, struct dp_error *err);
// Appends compact JSON (indent 0) or pretty JSON with a final newline. Keys keep their order;
// numbers keep 17 digits at most and no trailing noise.
void dp_json_write(const json_t *json, int indent, struct dp_buf *out);
