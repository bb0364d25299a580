// The keys of a section as a table: one description serves reading, --set, writing and messages.
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "dp/buf.h"
#include "dp/diag.h"
#include "dp/toml.h"

typedef enum dp_key_type {
    DP_KEY_INT32,
    DP_KEY_INT64,
    DP_KEY_UINT64,
    DP_KEY_DOUBLE,
    DP_KEY_TEXT,
    DP_KEY_PATH,    // made absolute against the base directory
    DP_KEY_TEXTS,   // a list of texts, or one with ';' between them; kept so
    DP_KEY_DEVICE,  // dp_device_kind by name
    DP_KEY_FORMAT,  // dp_format by name
    DP_KEY_BIASES,  // DP_BIAS_* by name
    DP_KEY_ROUTER,  // dp_router_kind by name
    DP_KEY_ROPE,    // dp_rope_kind by name
    DP_KEY_SPECIAL, // known, but read by the section's own code; never written
} dp_key_type;

struct dp_key {
    const char *name;
    dp_key_type type;
    size_t offset, size; // of the member; size bounds texts
    double min, max;     // numbers; max is excluded when below_max
    bool below_max;
    bool required;    // must be given unless a preset has set it
    const char *help; // what it is, one line
};

struct dp_section {
    const char *name; // "" = the top level
    const struct dp_key *keys;
    size_t keys_count;
};

#define DP_MEMBER(type, member) offsetof(struct type, member), sizeof(((struct type *)NULL)->member)

// Reads every key of `table` into `object`. Sub-tables are skipped at the top level (name ""):
// they are sections. `sections` (NULL-name end) is searched to say where a misplaced key belongs.
void dp_keys_read(const struct dp_section *section, const struct dp_section *sections,
                  const struct dp_toml_node *table, const char *base_directory,
                  struct dp_diags *diags, void *object);
// Reports the required keys that are still zero in `object`; table may be NULL (no such section).
void dp_keys_require(const struct dp_section *section, const struct dp_toml_node *section_node,
                     struct dp_diags *diags, const void *object);
// Stores one value; a problem goes to diags.
void dp_key_store(const struct dp_section *section, const struct dp_key *key,
                  const struct dp_toml_node *node, const char *base_directory,
                  struct dp_diags *diags, void *object);
const struct dp_key *dp_section_find_key(const struct dp_section *section, const char *name);
const struct dp_section *dp_section_find(const struct dp_section *sections, const char *name);
// Appends the section as TOML; keys that are absent (0 where 0 is out of range, "") are left out.
void dp_keys_write(const struct dp_section *section, const void *object, struct dp_buf *out);
// "[train]" or "the top level".
const char *dp_section_label(const struct dp_section *section, char *buffer, size_t size)
    __attribute__((warn_unused_result));
