#include "uri.h"

#include <string.h>

#include "dp/check.h"
#include "dp/limits.h"
#include "dp/utf8.h"

static void *take(struct dp_arena *arena, size_t bytes)
{
    void *memory = dp_arena_alloc(arena, bytes);
    DP_CHECK(memory != NULL);
    return memory;
}

static int hex(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

// NULL when an escape is none, hides a zero byte, or the text is not UTF-8.
static char *decode(struct dp_arena *arena, const char *text, size_t length, bool plus_is_space)
{
    char *out = take(arena, length + 1);
    size_t used = 0;
    for (size_t i = 0; i < length; i++) {
        char c = text[i];
        if (c == '+' && plus_is_space) {
            c = ' ';
        } else if (c == '%') {
            int high = i + 2 < length ? hex(text[i + 1]) : -1;
            int low = high < 0 ? -1 : hex(text[i + 2]);
            if (high < 0 || low < 0 || high + low == 0) {
                return NULL;
            }
            c = (char)(high << 4 | low);
            i += 2;
        }
        out[used++] = c;
    }
    return dp_utf8_valid(out, used) ? out : NULL;
}

static size_t count_of(const char *text, char wanted)
{
    size_t count = 0;
    for (; *text != '\0'; text++) {
        count += *text == wanted;
    }
    return count;
}

static dp_status bad(const char *what, const char *text, size_t length, struct dp_error *err)
{
    return dp_fail(err, DP_INVALID, "%s \"%.*s\" is not percent-encoded UTF-8 text", what,
                   (int)(length < DP_NAME_MAX ? length : DP_NAME_MAX), text);
}

static dp_status take_segments(struct rest_uri *uri, struct dp_error *err)
{
    uri->segments = take(&uri->arena, (count_of(uri->path, '/') + 1) * sizeof *uri->segments);
    for (const char *at = uri->path; *at == '/' && at[1] != '\0';) {
        const char *start = at + 1;
        size_t length = strcspn(start, "/");
        const char *segment = decode(&uri->arena, start, length, false);
        if (segment == NULL) {
            return bad("in the path,", start, length, err);
        }
        uri->segments[uri->segments_count++] = segment;
        at = start + length;
        if (at[0] == '/' && at[1] == '\0') {
            uri->segments[uri->segments_count++] = ""; // "/v1/jobs/" is not "/v1/jobs"
        }
    }
    return DP_OK;
}

static dp_status take_parameters(struct rest_uri *uri, const char *query, struct dp_error *err)
{
    size_t room = count_of(query, '&') + 1;
    if (room > DP_REST_PARAMETERS_MAX) {
        return dp_fail(err, DP_TOO_LARGE, "the query has %zu parts; the limit is %d", room,
                       DP_REST_PARAMETERS_MAX);
    }
    uri->parameters = take(&uri->arena, room * sizeof *uri->parameters);
    while (*query != '\0') {
        size_t length = strcspn(query, "&");
        size_t name_length = strcspn(query, "=&");
        size_t value_at = name_length < length ? name_length + 1 : length;
        struct rest_parameter parameter = {
            .name = decode(&uri->arena, query, name_length, true),
            .value = decode(&uri->arena, query + value_at, length - value_at, true),
        };
        if (parameter.name == NULL || parameter.value == NULL) {
            return bad("in the query,", query, length, err);
        }
        if (length > 0) {
            uri->parameters[uri->parameters_count++] = parameter;
        }
        query += length + (query[length] == '&');
    }
    return DP_OK;
}

dp_status dp_rest_uri_parse(const char *text, struct rest_uri *ret_uri, struct dp_error *err)
{
    *ret_uri = (struct rest_uri){0};
    size_t length = strlen(text);
    if (length > DP_REST_PATH_BYTES_MAX) {
        return dp_fail(err, DP_TOO_LARGE, "the path and query have %zu bytes; the limit is %d",
                       length, DP_REST_PATH_BYTES_MAX);
    }
    size_t path_length = strcspn(text, "?#");
    ret_uri->path = take(&ret_uri->arena, path_length + 1);
    memcpy(ret_uri->path, text, path_length);
    if (text[0] != '/') {
        return dp_fail(err, DP_INVALID, "the request's target must be a path that begins with /");
    }
    const char *query = text + path_length;
    dp_status status = take_segments(ret_uri, err);
    if (status == DP_OK) {
        status = take_parameters(ret_uri, query + (*query == '?'), err);
    }
    return status;
}

void dp_rest_uri_deinit(struct rest_uri *uri)
{
    dp_arena_deinit(&uri->arena);
    *uri = (struct rest_uri){0};
}
