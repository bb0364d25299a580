// Problems found in one input file, all of them at once, each with position, source line and help.
#pragma once

#include <stddef.h>

#include "dp/buf.h"
#include "dp/error.h"

struct dp_diag {
    int line;      // 1-based; 0 = the whole file
    int column;    // 1-based, in characters
    char *message; // owned
    char *help;    // owned, NULL = none
};

struct dp_diags {
    char *file;       // owned; the name shown to people
    const char *text; // borrowed source text, for the source line; may be NULL
    size_t text_length;
    struct dp_diag items[DP_DIAGS_MAX];
    size_t count;
    size_t dropped; // over DP_DIAGS_MAX
};

// text may be NULL; it must outlive the diags when given.
void dp_diags_init(struct dp_diags *diags, const char *file, const char *text, size_t text_length);
void dp_diags_deinit(struct dp_diags *diags);
// help may be NULL.
void dp_diags_add(struct dp_diags *diags, int line, int column, const char *help,
                  const char *format, ...) __attribute__((format(printf, 5, 6)));
// "error: FILE:LINE:COLUMN: MESSAGE", the source line, a caret and "help: ..." for each.
void dp_diags_render(const struct dp_diags *diags, struct dp_buf *out);
// DP_OK when empty; otherwise DP_INVALID with the rendered text in err, which ends behind the last
// problem that fits and says how many are left.
dp_status dp_diags_status(const struct dp_diags *diags, struct dp_error *err);
// The candidate nearest to `word` (edit distance at most 2, and under half the word), or NULL.
// candidates ends with NULL.
const char *dp_suggest(const char *word, const char *const *candidates);
