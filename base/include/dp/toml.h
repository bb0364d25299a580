// TOML documents with positions. The parser is tomlplusplus behind this C interface.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dp/diag.h"

typedef enum dp_toml_type {
    DP_TOML_TABLE,
    DP_TOML_ARRAY,
    DP_TOML_STRING,
    DP_TOML_INTEGER,
    DP_TOML_FLOAT,
    DP_TOML_BOOLEAN,
    DP_TOML_DATETIME, // value.string holds its text
} dp_toml_type;

// One value. Children of a table are sorted by where they stand in the file.
struct dp_toml_node {
    dp_toml_type type;
    const char *key;          // NULL in arrays and for the root
    int key_line, key_column; // 1-based; of the key
    int line, column;         // 1-based; of the value
    union {
        const char *string;
        int64_t integer;
        double number;
        bool boolean;
    } value;
    size_t string_length;
    struct dp_toml_node *children;
    size_t children_count;
};

struct dp_toml;

// Refuses more than DP_SPEC_BYTES_MAX bytes, and brackets nested deeper than DP_SPEC_DEPTH_MAX,
// before parsing. A syntax error (there is at most one) goes to diags and returns DP_INVALID.
dp_status dp_toml_parse(const char *text, size_t length, struct dp_diags *diags,
                        struct dp_toml **ret_toml, struct dp_error *err);
// Accepts NULL.
void dp_toml_free(struct dp_toml *toml);
const struct dp_toml_node *dp_toml_root(const struct dp_toml *toml);
// The child of a table by key, or NULL.
const struct dp_toml_node *dp_toml_get(const struct dp_toml_node *table, const char *key);
const char *dp_toml_type_text(dp_toml_type type);
