// The target of a request, taken apart: "/v1/jobs/a%20b?limit=5".
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "dp/arena.h"
#include "dp/error.h"

struct rest_parameter {
    const char *name, *value;
};

// Everything decoded; lies in `arena`. Segments of "/" are none.
struct rest_uri {
    struct dp_arena arena;
    char *path; // as it came, for messages
    const char **segments;
    size_t segments_count;
    struct rest_parameter *parameters;
    size_t parameters_count;
};

// DP_INVALID for what is no path, a bad escape, a zero byte or text that is not UTF-8; DP_TOO_LARGE
// beyond DP_REST_PATH_BYTES_MAX. The caller deinits *ret_uri whatever came out.
dp_status dp_rest_uri_parse(const char *text, struct rest_uri *ret_uri, struct dp_error *err);
void dp_rest_uri_deinit(struct rest_uri *uri);
