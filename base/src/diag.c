#include "dp/diag.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"

void dp_diags_init(struct dp_diags *diags, const char *file, const char *text, size_t text_length)
{
    *diags = (struct dp_diags){.file = dp_strdup(file), .text = text, .text_length = text_length};
}

void dp_diags_deinit(struct dp_diags *diags)
{
    for (size_t i = 0; i < diags->count; i++) {
        free(diags->items[i].message);
        free(diags->items[i].help);
    }
    free(diags->file);
    *diags = (struct dp_diags){0};
}

void dp_diags_add(struct dp_diags *diags, int line, int column, const char *help,
                  const char *format, ...)
{
    if (diags->count == DP_DIAGS_MAX) {
        diags->dropped++;
        return;
    }
    struct dp_buf message = {0};
    va_list args;
    va_start(args, format);
    dp_buf_vprintf(&message, format, args);
    va_end(args);
    diags->items[diags->count++] = (struct dp_diag){
        .line = line,
        .column = column,
        .message = dp_buf_take(&message),
        .help = help == NULL ? NULL : dp_strdup(help),
    };
}

static bool begins_character(char c)
{
    return ((unsigned char)c & 0xc0) != 0x80;
}

// A long line is shown from a little before its column on.
static const char *first_shown(const char *line, const char *end, int *column)
{
    enum { SHOWN_BEFORE = 60, SHOWN_WHOLE = 100 };
    int skipped = *column > SHOWN_WHOLE ? *column - SHOWN_BEFORE : 0;
    const char *at = line;
    for (int passed = 0; at < end && (passed < skipped || !begins_character(*at)); at++) {
        passed += begins_character(*at);
    }
    *column -= skipped;
    return at;
}

static void render_source_line(const struct dp_diags *diags, const struct dp_diag *diag,
                               struct dp_buf *out)
{
    const char *at = diags->text;
    const char *end = at + diags->text_length;
    for (int line = 1; line < diag->line && at < end; line++) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        at = newline == NULL ? end : newline + 1;
    }
    if (at >= end) {
        return;
    }
    const char *newline = memchr(at, '\n', (size_t)(end - at));
    end = newline == NULL ? end : newline;
    int wanted = diag->column;
    const char *shown = first_shown(at, end, &wanted);
    const char *indent = shown == at ? "    " : "... ";
    size_t length = (size_t)(end - shown);
    size_t most = shown == at ? 160 : 100;
    length = length > most ? most : length;
    dp_buf_puts(out, indent);
    for (size_t i = 0; i < length; i++) {
        char c = shown[i];
        dp_buf_append(out, (unsigned char)c < ' ' || c == 127 ? " " : &c, 1);
    }
    dp_buf_puts(out, "\n    ");
    // Columns count characters: UTF-8 continuation bytes take no room.
    int column = 1;
    for (size_t i = 0; i < length && column < wanted; i++) {
        if (begins_character(shown[i])) {
            dp_buf_puts(out, " ");
            column++;
        }
    }
    dp_buf_puts(out, "^\n");
}

static void render_problem(const struct dp_diags *diags, const struct dp_diag *diag,
                           struct dp_buf *out)
{
    if (diag->line > 0) {
        dp_buf_printf(out, "error: %s:%d:%d: %s\n", diags->file, diag->line, diag->column,
                      diag->message);
        if (diags->text != NULL) {
            render_source_line(diags, diag, out);
        }
    } else {
        dp_buf_printf(out, "error: %s: %s\n", diags->file, diag->message);
    }
    if (diag->help != NULL) {
        dp_buf_printf(out, "help: %s\n", diag->help);
    }
}

// Problems as long as they fit into `max` bytes, but at least one; then how many are left.
static void render(const struct dp_diags *diags, size_t max, struct dp_buf *out)
{
    size_t shown = 0;
    for (; shown < diags->count; shown++) {
        size_t before = out->length;
        render_problem(diags, &diags->items[shown], out);
        if (out->length > max && shown > 0) {
            out->length = before;
            out->bytes[before] = '\0';
            break;
        }
    }
    size_t left = diags->count - shown + diags->dropped;
    if (left > 0) {
        dp_buf_printf(out, "and %zu more problem%s\n", left, left == 1 ? "" : "s");
    }
}

void dp_diags_render(const struct dp_diags *diags, struct dp_buf *out)
{
    render(diags, SIZE_MAX, out);
}

dp_status dp_diags_status(const struct dp_diags *diags, struct dp_error *err)
{
    // Room for the last line and for what callers put before the message.
    enum { ROOM = 256 };
    if (diags->count == 0) {
        return DP_OK;
    }
    struct dp_buf text = {0};
    render(diags, DP_ERROR_MESSAGE_MAX - ROOM, &text);
    while (text.length > 0 && text.bytes[text.length - 1] == '\n') {
        text.bytes[--text.length] = '\0';
    }
    // The renderer already says "error: "; the program that prints the message says it again.
    const char *message = strncmp(text.bytes, "error: ", 7) == 0 ? text.bytes + 7 : text.bytes;
    dp_status status = dp_fail(err, DP_INVALID, "%s", message);
    dp_buf_deinit(&text);
    return status;
}

static size_t edit_distance(const char *a, const char *b)
{
    enum { LENGTH_MAX = 64 };
    size_t a_length = strlen(a), b_length = strlen(b);
    if (a_length >= LENGTH_MAX || b_length >= LENGTH_MAX) {
        return LENGTH_MAX;
    }
    size_t row[LENGTH_MAX];
    for (size_t j = 0; j <= b_length; j++) {
        row[j] = j;
    }
    for (size_t i = 1; i <= a_length; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b_length; j++) {
            size_t above = row[j];
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            best = above + 1 < best ? above + 1 : best;
            best = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
            diagonal = above;
            row[j] = best;
        }
    }
    return row[b_length];
}

const char *dp_suggest(const char *word, const char *const *candidates)
{
    const char *best = NULL;
    size_t best_distance = 3;
    for (; *candidates != NULL; candidates++) {
        size_t distance = edit_distance(word, *candidates);
        if (distance < best_distance && distance * 2 < strlen(word) + 1) {
            best = *candidates;
            best_distance = distance;
        }
    }
    return best;
}
