#include "legend.h"

#include <string.h>

#include "shade.h"

static void begin_item(struct legend *legend, size_t length, struct dp_buf *out)
{
    bool first = legend->column == 0;
    bool fits = legend->width == 0 || legend->column + 2 + (int32_t)length <= legend->width;
    if (!first && fits) {
        dp_buf_puts(out, "  ");
        legend->column += 2;
    } else {
        dp_buf_printf(out, "%s%*s", first ? "" : "\n", legend->indent, "");
        legend->column = legend->indent;
    }
    legend->column += (int32_t)length;
}

void dp_render_legend_note(struct legend *legend, const char *text, struct dp_buf *out)
{
    begin_item(legend, strlen(text), out);
    dp_buf_puts(out, text);
}

void dp_render_legend_kinds(struct legend *legend, const struct dp_schedule *schedule,
                            struct dp_buf *out)
{
    bool used[DP_ACTION_KIND_COUNT] = {false};
    size_t count = dp_schedule_action_count(schedule);
    for (size_t i = 0; i < count; i++) {
        used[schedule->actions[i].kind] = true;
    }
    for (int kind = 0; kind < DP_ACTION_KIND_COUNT; kind++) {
        if (!used[kind]) {
            continue;
        }
        const char *name = dp_render_kind_name(kind);
        const char *mark =
            kind == DP_ACTION_FB ? legend->pair : dp_action_kind_text((dp_action_kind)kind);
        begin_item(legend, strlen(mark) + 1 + strlen(name), out);
        if (legend->color) {
            dp_render_shade_begin(kind, false, out);
        }
        dp_buf_puts(out, mark);
        if (legend->color) {
            dp_render_shade_end(out);
        }
        dp_buf_printf(out, " %s", name);
    }
}

void dp_render_legend_end(struct legend *legend, struct dp_buf *out)
{
    dp_buf_puts(out, "\n");
    legend->column = 0;
}

void dp_render_sentence(const char *text, int32_t width, struct dp_buf *out)
{
    int32_t column = 0;
    while (*text != '\0') {
        int32_t length = (int32_t)strcspn(text, " ");
        bool breaks = column > 0 && width > 0 && column + 1 + length > width;
        if (column > 0) {
            dp_buf_puts(out, breaks ? "\n" : " ");
        }
        dp_buf_append(out, text, (size_t)length);
        column = breaks || column == 0 ? length : column + 1 + length;
        text += length;
        text += strspn(text, " ");
    }
    dp_buf_puts(out, "\n");
}
