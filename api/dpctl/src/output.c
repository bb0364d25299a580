// Tables, JSON, files and units.

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dpctl.h"

void dpctl_print(const struct dp_buf *text)
{
    fwrite(text->bytes, 1, text->length, stdout);
}

void dpctl_print_json(json_t *json, const char *schema)
{
    DP_AUTO_JSON json_t *document = json_object();
    json_object_set_new(document, "schema", json_string(schema));
    json_object_update(document, json);
    json_decref(json);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_json_write(document, 2, &text);
    dpctl_print(&text);
}

dp_status dpctl_write(const char *path, const struct dp_buf *text, struct dp_error *err)
{
    if (path == NULL || strcmp(path, "-") == 0) {
        dpctl_print(text);
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

void dpctl_table_print(const struct dpctl_table *table)
{
    DP_AUTO_FREE int *widths = dp_new_array(int, (size_t)table->columns);
    const char *cell = table->cells.bytes;
    for (size_t i = 0; i < table->count; i++) {
        int width = text_width(cell);
        int *column = &widths[i % (size_t)table->columns];
        *column = width > *column ? width : *column;
        cell += strlen(cell) + 1;
    }
    cell = table->cells.bytes;
    for (size_t i = 0; i < table->count; i++) {
        size_t column = i % (size_t)table->columns;
        fputs(cell, stdout);
        if (column + 1 == (size_t)table->columns) {
            fputs("\n", stdout);
        } else {
            printf("%*s", widths[column] - text_width(cell) + 2, "");
        }
        cell += strlen(cell) + 1;
    }
}

const char *dpctl_bytes(char buffer[32], double bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    size_t unit = 0;
    while (bytes >= 1024 && unit + 1 < sizeof units / sizeof units[0]) {
        bytes /= 1024;
        unit++;
    }
    snprintf(buffer, 32, unit == 0 ? "%.0f %s" : "%.1f %s", bytes, units[unit]);
    return buffer;
}

const char *dpctl_seconds(char buffer[32], double seconds)
{
    if (seconds >= 3600) {
        snprintf(buffer, 32, "%.0fh%02.0fm", (double)(long)(seconds / 3600),
                 (double)((long)(seconds / 60) % 60));
    } else if (seconds >= 120) {
        snprintf(buffer, 32, "%ldm%02lds", (long)seconds / 60, (long)seconds % 60);
    } else if (seconds >= 1) {
        snprintf(buffer, 32, "%.2f s", seconds);
    } else if (seconds >= 1e-3) {
        snprintf(buffer, 32, "%.1f ms", seconds * 1e3);
    } else {
        snprintf(buffer, 32, "%.0f us", seconds * 1e6);
    }
    return buffer;
}
