#include "dp/json.h"

#include <stdlib.h>

#include "dp/utf8.h"

static int append(const char *bytes, size_t length, void *data)
{
    dp_buf_append(data, bytes, length);
    return 0;
}

json_t *dp_json_load(const char *text, size_t length, json_error_t *ret_where)
{
    size_t mark = dp_utf8_mark(text, length);
    json_t *json = json_loadb(text + mark, length - mark, JSON_REJECT_DUPLICATES, ret_where);
    enum json_error_code code = json == NULL ? json_error_code(ret_where) : json_error_unknown;
    if (code == json_error_null_character || code == json_error_null_byte_in_key) {
        // jansson's words are for who calls it.
        snprintf(ret_where->text, sizeof(ret_where->text), "a text must not hold \\u0000");
    }
    return json;
}

dp_status dp_json_parse(const char *text, size_t length, size_t max_bytes, const char *name,
                        json_t **ret_json, struct dp_error *err)
{
    if (length > max_bytes) {
        return dp_fail(err, DP_TOO_LARGE, "%s has %zu bytes of JSON; the limit is %zu", name,
                       length, max_bytes);
    }
    json_error_t where;
    json_t *json = dp_json_load(text, length, &where);
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
