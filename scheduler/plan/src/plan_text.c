#include "dp/plan_text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const char *dp_plan_text_seconds(char buffer[DP_PLAN_WORD_MAX], double seconds)
{
    if (fabs(seconds) < 1e-9) {
        snprintf(buffer, DP_PLAN_WORD_MAX, "0 s");
    } else if (fabs(seconds) >= 1) {
        snprintf(buffer, DP_PLAN_WORD_MAX, fabs(seconds) < 1000 ? "%.3g s" : "%.0f s", seconds);
    } else if (fabs(seconds) >= 1e-3) {
        snprintf(buffer, DP_PLAN_WORD_MAX, "%.3g ms", seconds * 1e3);
    } else {
        snprintf(buffer, DP_PLAN_WORD_MAX, "%.3g us", seconds * 1e6);
    }
    return buffer;
}

const char *dp_plan_text_bytes(char buffer[DP_PLAN_WORD_MAX], double bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    size_t unit = 0;
    while (bytes >= 999.5 && unit + 1 < sizeof(units) / sizeof(units[0])) {
        bytes /= 1024;
        unit++;
    }
    snprintf(buffer, DP_PLAN_WORD_MAX,
             bytes < 9.995 && unit > 0   ? "%.2f %s"
             : bytes < 99.95 && unit > 0 ? "%.1f %s"
                                         : "%.0f %s",
             bytes, units[unit]);
    return buffer;
}

const char *dp_plan_text_count(char buffer[DP_PLAN_WORD_MAX], double count)
{
    static const char *const units[] = {"", " k", " M", " G", " T", " P"};
    size_t unit = 0;
    while (fabs(count) >= 999.5 && unit + 1 < sizeof(units) / sizeof(units[0])) {
        count /= 1000;
        unit++;
    }
    snprintf(buffer, DP_PLAN_WORD_MAX, "%.3g%s", count, units[unit]);
    return buffer;
}

const char *dp_plan_text_schedule(char buffer[DP_NAME_MAX + 16], const char *name, int32_t chunks)
{
    if (chunks > 0) {
        snprintf(buffer, DP_NAME_MAX + 16, "%s v%d", name, chunks);
    } else {
        snprintf(buffer, DP_NAME_MAX + 16, "%s", name);
    }
    return buffer;
}

const char *dp_plan_text_more(char buffer[DP_PLAN_WORD_MAX], double value, double base)
{
    double more = base > 0 ? round(1000 * (value / base - 1)) / 10 : 0;
    snprintf(buffer, DP_PLAN_WORD_MAX, more == 0 ? "%.1f %%" : "%+.1f %%", more == 0 ? 0.0 : more);
    return buffer;
}

// Characters, not bytes, of UTF-8 text.
static int columns_of(const char *text, size_t length)
{
    int columns = 0;
    for (size_t i = 0; i < length; i++) {
        columns += ((unsigned char)text[i] & 0xc0) != 0x80;
    }
    return columns;
}

// Length of the word at `text`, with the unit behind it when it is a number: "1.2 GiB," is one.
static size_t word_length(const char *text)
{
    size_t length = strcspn(text, " ");
    if (length == 0 || text[length] != ' ' || text[strspn(text, "(+-.0123456789")] != ' ') {
        return length;
    }
    size_t unit = strcspn(text + length + 1, " ");
    size_t letters = strspn(text + length + 1, "%kMGTPsmuiB");
    return letters > 0 && letters <= 3 && letters + 3 > unit ? length + 1 + unit : length;
}

void dp_plan_text_wrap(const char *first, const char *words, int width, struct dp_buf *out)
{
    int indent = columns_of(first, strlen(first)), column = indent;
    dp_buf_puts(out, first);
    bool is_first = true;
    while (*words != '\0') {
        words += strspn(words, " ");
        size_t length = word_length(words);
        int columns = columns_of(words, length);
        if (!is_first && column + 1 + columns > width) {
            dp_buf_printf(out, "\n%*s", indent, "");
            column = indent;
        } else if (!is_first && length > 0) {
            dp_buf_puts(out, " ");
            column++;
        }
        dp_buf_append(out, words, length);
        column += columns;
        words += length;
        is_first = false;
    }
    dp_buf_puts(out, "\n");
}
