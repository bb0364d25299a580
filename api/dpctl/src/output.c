// Tables, JSON, files and units.

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/diag.h"
#include "dp/utf8.h"
#include "dpctl.h"

void dpctl_print(const struct dp_buf *text)
{
    fwrite(text->bytes, 1, text->length, stdout);
}

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

// Bytes are whole. Of seconds, what is under a picosecond is what a subtraction left of nothing.
static void tidy(json_t *json)
{
    const char *key;
    size_t index;
    json_t *value;
    json_array_foreach(json, index, value)
    {
        tidy(value);
    }
    json_object_foreach(json, key, value)
    {
        double number = json_real_value(value);
        if (json_is_real(value) && ends_with(key, "_bytes") && fabs(number) < 9e15) {
            json_object_set_new(json, key, json_integer(llround(number)));
        } else if (json_is_real(value) && ends_with(key, "_s") && fabs(number) < 1e-12) {
            json_real_set(value, 0);
        } else {
            tidy(value);
        }
    }
}

static void write_document(json_t *json, const char *schema, int indent, struct dp_buf *out)
{
    DP_AUTO_JSON json_t *document = json_object();
    json_object_set_new(document, "schema", json_string(schema));
    json_object_update(document, json);
    json_decref(json);
    tidy(document);
    dp_json_write(document, indent, out);
    if (indent == 0) {
        dp_buf_puts(out, "\n");
    }
}

void dpctl_write_json(json_t *json, const char *schema, struct dp_buf *out)
{
    write_document(json, schema, 2, out);
}

void dpctl_print_json(struct dpctl *ctl, json_t *json, const char *schema)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    write_document(json, schema, ctl->json_lines ? 0 : 2, &text);
    dpctl_print(&text);
    ctl->answered = true;
}

json_t *dpctl_text_json(const char *text, size_t length)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf valid = {0};
    for (size_t at = 0; at < length;) {
        size_t step = dp_utf8_length(text + at, length - at);
        dp_buf_append(&valid, step == 0 ? "\xef\xbf\xbd" : text + at, step == 0 ? 3 : step);
        at += step == 0 ? 1 : step;
    }
    return json_stringn(valid.length == 0 ? "" : valid.bytes, valid.length);
}

static json_t *text_json(const char *text)
{
    return dpctl_text_json(text, strlen(text));
}

// Of the whole input when line is 0.
static json_t *problem_json(int line, int column, const char *message, const char *help)
{
    return json_pack("{s:o, s:o, s:o, s:o}", "line", line > 0 ? json_integer(line) : json_null(),
                     "column", line > 0 ? json_integer(column) : json_null(), "message",
                     text_json(message), "help", help == NULL ? json_null() : text_json(help));
}

json_t *dpctl_problems_json(const struct dp_diags *problems, const struct dp_error *err)
{
    json_t *list = json_array();
    for (size_t i = 0; i < problems->count; i++) {
        const struct dp_diag *diag = &problems->items[i];
        json_array_append_new(list,
                              problem_json(diag->line, diag->column, diag->message, diag->help));
    }
    if (problems->count == 0) {
        json_array_append_new(list, problem_json(0, 0, err->message, NULL));
    }
    return list;
}

int dpctl_width(int fd)
{
    struct winsize size;
    return ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col >= 20 ? size.ws_col : 100;
}

bool dpctl_output_lost(void)
{
    return ferror(stdout) != 0;
}

dp_status dpctl_write(struct dpctl *ctl, const char *path, const struct dp_buf *text,
                      struct dp_error *err)
{
    if (path == NULL || strcmp(path, "-") == 0) {
        dpctl_print(text);
        ctl->answered = true;
        return DP_OK;
    }
    return dp_write_file(path, text->bytes, text->length, err);
}

void dpctl_table_deinit(struct dpctl_table *table)
{
    dp_buf_deinit(&table->cells);
}

void dpctl_cell(struct dpctl_table *table, const char *format, ...)
{
    size_t start = table->cells.length;
    va_list args;
    va_start(args, format);
    dp_buf_vprintf(&table->cells, format, args);
    va_end(args);
    if (table->cells.length == start) {
        dp_buf_puts(&table->cells, "-");
    }
    dp_utf8_clean(table->cells.bytes + start, table->cells.length - start, "");
    dp_buf_append(&table->cells, "", 1);
    table->count++;
}

void dpctl_heads(struct dpctl_table *table, const char *const *heads)
{
    for (int i = 0; i < table->columns; i++) {
        dpctl_cell(table, "%s", heads[i]);
    }
}

// Characters, not bytes, of UTF-8 text.
static int text_width(const char *text)
{
    int width = 0;
    for (; *text != '\0'; text++) {
        width += ((unsigned char)*text & 0xc0) != 0x80;
    }
    return width;
}

#define GAP 2             // between two columns
#define LAST_WIDTH_MIN 16 // that the last column keeps while others can go

int dpctl_fits(const struct dpctl *ctl, bool wide)
{
    return ctl->out_is_tty && !wide ? ctl->width : 0;
}

// "2026-11-30T17:14:02.123Z" is cut to the second of today, or the minute of another day.
const char *dpctl_time(char buffer[32], int64_t time_ns, int fits)
{
    char now[32];
    dp_clock_format_utc(buffer, time_ns);
    if (fits == 0 || strlen(buffer) != strlen("2026-11-30T17:14:02.123Z")) {
        return buffer;
    }
    dp_clock_format_utc(now, dp_clock_realtime_ns());
    bool is_today = strncmp(buffer, now, strlen("2026-11-30")) == 0;
    size_t start = is_today ? strlen("2026-11-30T") : 0;
    size_t end = strlen(is_today ? "2026-11-30T17:14:02" : "2026-11-30T17:14");
    memmove(buffer, buffer + start, end - start);
    (void)dp_copy_text(buffer + (end - start), 2, "Z");
    return buffer;
}

struct layout {
    int *widths; // of each column; of the last one at most this much is shown; -1 = left out
    bool is_cut; // the last one is
};

static int width_of(const struct dpctl_table *table, const struct layout *layout)
{
    int width = 0;
    for (int i = 0; i + 1 < table->columns; i++) {
        width += layout->widths[i] < 0 ? 0 : layout->widths[i] + GAP;
    }
    return width;
}

// Leaves out columns until what is left fits, then cuts the last one.
static void fit(const struct dpctl_table *table, struct layout *layout)
{
    int *last = &layout->widths[table->columns - 1];
    int least = *last < LAST_WIDTH_MIN ? *last : LAST_WIDTH_MIN;
    for (const char *drop = table->drops; drop != NULL && *drop != '\0'; drop++) {
        if (width_of(table, layout) + least <= table->fits) {
            break;
        }
        layout->widths[*drop - 'a'] = -1;
    }
    int room = table->fits - width_of(table, layout);
    room = room < least ? least : room;
    layout->is_cut = *last > room;
    *last = layout->is_cut ? room : *last;
}

static void print_last(const char *cell, const struct layout *layout, int width)
{
    int shown = 0;
    const char *end = cell;
    if (!layout->is_cut || text_width(cell) <= width) {
        printf("%s\n", cell);
        return;
    }
    // Whole characters, and one column for the mark.
    while (shown < width - 1) {
        end++;
        while (((unsigned char)*end & 0xc0) == 0x80) {
            end++;
        }
        shown++;
    }
    printf("%.*s\u2026\n", (int)(end - cell), cell);
}

static void print_cell(const struct dpctl_table *table, const struct layout *layout, int column,
                       const char *cell)
{
    bool last = column + 1 == table->columns;
    int width = layout->widths[column], room = width - text_width(cell);
    if (width < 0) {
        return;
    }
    if ((table->right & (1u << column)) != 0) {
        printf("%*s%s%s", room, "", cell, last ? "\n" : "  ");
    } else if (last) {
        print_last(cell, layout, width);
    } else {
        printf("%s%*s", cell, room + GAP, "");
    }
}

// The heads of what is left out.
static void say_what_is_missing(const struct dpctl_table *table, const struct layout *layout)
{
    const char *cell = table->cells.bytes, *before = "--wide shows ";
    for (int i = 0; i < table->columns; i++) {
        if (layout->widths[i] < 0) {
            fprintf(stderr, "%s%s", before, cell);
            before = ", ";
        }
        cell += strlen(cell) + 1;
    }
    if (before[0] == ',') {
        fputs(", too\n", stderr);
    }
}

void dpctl_table_print(const struct dpctl_table *table)
{
    DP_AUTO_FREE int *widths = dp_new_array(int, (size_t)table->columns);
    struct layout layout = {.widths = widths};
    for (int i = 0; table->widths != NULL && i < table->columns; i++) {
        widths[i] = table->widths[i];
    }
    const char *cell = table->cells.bytes;
    for (size_t i = 0; i < table->count; i++) {
        int width = text_width(cell);
        int *column = &widths[i % (size_t)table->columns];
        *column = width > *column ? width : *column;
        cell += strlen(cell) + 1;
    }
    if (table->fits > 0) {
        fit(table, &layout);
    }
    cell = table->cells.bytes;
    for (size_t i = 0; i < table->count; i++) {
        print_cell(table, &layout, (int)(i % (size_t)table->columns), cell);
        cell += strlen(cell) + 1;
    }
    say_what_is_missing(table, &layout);
}

// The number with the unit in which it is at least 1.
static const char *scaled(char buffer[32], double number, double step, const char *const *units,
                          const char *format)
{
    size_t unit = 0;
    while (number >= step && units[unit + 1] != NULL) {
        number /= step;
        unit++;
    }
    snprintf(buffer, 32, unit == 0 ? "%.0f%s" : format, number, units[unit]);
    return buffer;
}

const char *dpctl_bytes(char buffer[32], double bytes)
{
    static const char *const units[] = {" B", " KiB", " MiB", " GiB", " TiB", " PiB", NULL};
    return scaled(buffer, bytes, 1024, units, "%.1f%s");
}

const char *dpctl_parameters(char buffer[32], double parameters)
{
    static const char *const units[] = {"", " k", " M", " B", " T", NULL};
    return scaled(buffer, parameters, 1000, units, "%.2f%s");
}

const char *dpctl_count(char buffer[64], unsigned long long count, const char *noun)
{
    const char *plural = ends_with(noun, "ch") ? "es" : "s";
    snprintf(buffer, 64, "%llu %s%s", count, noun, count == 1 ? "" : plural);
    return buffer;
}

const char *dpctl_seconds(char buffer[32], double seconds)
{
    long whole = (long)(seconds + 0.5);
    if (whole >= 3600) {
        snprintf(buffer, 32, "%ldh%02ldm", whole / 3600, whole / 60 % 60);
    } else if (whole >= 60) {
        snprintf(buffer, 32, "%ldm%02lds", whole / 60, whole % 60);
    } else if (seconds >= 1) {
        snprintf(buffer, 32, "%.2f s", seconds);
    } else if (seconds >= 1e-3) {
        snprintf(buffer, 32, "%.1f ms", seconds * 1e3);
    } else if (seconds > 1e-9) {
        snprintf(buffer, 32, "%.0f us", seconds * 1e6);
    } else {
        snprintf(buffer, 32, "0 s");
    }
    return buffer;
}
