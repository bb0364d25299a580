#include "dp/json.h"

#include <stdlib.h>

static int append(const char *bytes, size_t length, void *data)
{
    dp_buf_append(data, bytes, length);
    return 0;
}

dp_status dp_json_parse(const char *text, size_t length, size_t max_bytes, const char *name,
                        json_t **ret_json, struct dp_error *err)
{
    if (length > max_bytes) {
        return dp_fail(err, DP_TOO_LARGE, "%s has %zu bytes of JSON; the limit is %zu", name,
                       length, max_bytes);
    }
    json_error_t where;
    json_t *json = json_loadb(text, length, JSON_REJECT_DUPLICATES, &where);
    if (json == NULL) {
        return dp_fail(err, DP_INVALID, "%s:%d:%d: %s", name, where.line, where.column, where.text);
    }
    *ret_json = json;
    return DP_OK;
}

void dp_json_write(const json_t *json, int indent, struct dp_buf *out)
{
    size_t flags = JSON_ENCODE_ANY | JSON_REAL_PRECISION(12);
    flags |= indent > 0 ? JSON_INDENT((size_t)indent) : JSON_COMPACT;
    json_dump_callback(json, append, out, flags);
    if (indent > 0) {
        dp_buf_puts(out, "\n");
    }
}
