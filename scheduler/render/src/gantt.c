#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/render.h"
#include "legend.h"
#include "scale.h"
#include "shade.h"

enum {
    LOOKS = 2 * DP_ACTION_KIND_COUNT, // kind, and which stream
    IDLE = -1,
    WIDTH_MIN = 40,
    WIDTH_MAX = 4096
};

struct chart {
    const struct dp_schedule *schedule;
    const struct dp_sim_result *result;
    bool color;
    int32_t width;
    int32_t columns; // of the width: those that show time
    int32_t label;   // columns of the rank's number
    double column_seconds;
    double (*shares)[LOOKS]; // [columns]: seconds of each look
};

// Puts the action's seconds into the columns that it covers.
static void spread(struct chart *chart, const struct dp_sim_span *span, int look)
{
    int32_t first = (int32_t)(span->start / chart->column_seconds);
    for (int32_t column = first; column < chart->columns; column++) {
        double from = column * chart->column_seconds;
        double to = from + chart->column_seconds;
        if (from >= span->end) {
            break;
        }
        from = span->start > from ? span->start : from;
        to = span->end < to ? span->end : to;
        chart->shares[column][look] += to - from;
    }
}

// What fills most of the column, unless it is idle for most of its time.
static int look_of(const struct chart *chart, int32_t column)
{
    double busy = 0;
    double most = 0;
    int look = IDLE;
    for (int i = 0; i < LOOKS; i++) {
        double share = chart->shares[column][i];
        busy += share;
        if (share > most) {
            most = share;
            look = i;
        }
    }
    return 2 * busy > chart->column_seconds ? look : IDLE;
}

static void add_columns(const struct chart *chart, struct dp_buf *out)
{
    int before = IDLE;
    for (int32_t column = 0; column < chart->columns; column++) {
        int look = look_of(chart, column);
        if (chart->color && look != before) {
            if (before != IDLE) {
                dp_render_shade_end(out);
            }
            if (look != IDLE) {
                dp_render_shade_begin(look / 2, look % 2 == 1, out);
            }
        }
        char letter = look == IDLE ? '.' : dp_render_shade_letter(look / 2, look % 2 == 1);
        dp_buf_append(out, &letter, 1);
        before = look;
    }
    if (chart->color && before != IDLE) {
        dp_render_shade_end(out);
    }
}

static void add_row(struct chart *chart, int32_t rank, struct dp_buf *out)
{
    const struct dp_schedule *schedule = chart->schedule;
    memset(chart->shares, 0, (size_t)chart->columns * sizeof(*chart->shares));
    struct shade_rank shade;
    dp_render_shade_rank_init(&shade, schedule, rank);
    for (size_t i = schedule->rank_begin[rank]; i < schedule->rank_begin[rank + 1]; i++) {
        const struct dp_action *action = &schedule->actions[i];
        bool second = dp_render_shade_is_second(&shade, action);
        spread(chart, &chart->result->spans[i], 2 * action->kind + second);
    }
    dp_buf_printf(out, "%*d ", chart->label, rank);
    add_columns(chart, out);
    double busy = dp_sim_rank_busy(&chart->result->ranks[rank]);
    dp_buf_printf(out, " %3.0f%%\n", 100 * busy / chart->result->makespan);
}

// Round times where they stand, and the makespan at the end.
static void add_axis(const struct chart *chart, struct dp_buf *out)
{
    struct scale_unit unit = dp_render_time_unit(chart->result->makespan);
    double step = dp_render_round_step(12 * chart->column_seconds / unit.seconds);
    DP_AUTO_FREE char *line = dp_alloc((size_t)chart->columns + 1, 1);
    memset(line, ' ', (size_t)chart->columns);
    char text[64];
    int32_t length =
        snprintf(text, sizeof(text), "%.4g %s", chart->result->makespan / unit.seconds, unit.name);
    int32_t room = chart->columns - length; // columns before the makespan
    memcpy(&line[room], text, (size_t)length);
    for (int32_t k = 0;; k++) {
        int32_t column = (int32_t)(k * step * unit.seconds / chart->column_seconds + 0.5);
        length = snprintf(text, sizeof(text), "%.6g", k * step);
        if (column + length >= room) {
            break;
        }
        memcpy(&line[column], text, (size_t)length);
    }
    dp_buf_printf(out, "%*s %s\n", chart->label, "", line);
}

static void add_legend(const struct chart *chart, struct dp_buf *out)
{
    struct legend legend = {
        .width = chart->width, .indent = chart->label + 1, .color = chart->color, .pair = "X"};
    dp_render_legend_kinds(&legend, chart->schedule, out);
    dp_render_legend_note(&legend, ". idle", out);
    const char *second = dp_render_second_stream(chart->schedule);
    if (second != NULL) {
        dp_render_legend_note(&legend, second, out);
    }
    dp_render_legend_end(&legend, out);
}

void dp_render_gantt(const struct dp_schedule *schedule, const struct dp_sim_result *result,
                     const struct dp_render_options *options, struct dp_buf *out)
{
    DP_CHECK(result->spans != NULL);
    struct chart chart = {.schedule = schedule, .result = result, .color = options->color};
    if (!dp_render_is_drawable(result->makespan)) {
        dp_buf_puts(out, result->makespan > 1 ? "this takes too long to be drawn\n"
                                              : "nothing takes time\n");
        return;
    }
    chart.label = dp_render_digits(schedule->pipeline - 1);
    chart.width = options->width > 0 ? options->width : 100;
    chart.width = chart.width < WIDTH_MIN ? WIDTH_MIN : chart.width;
    chart.width = chart.width > WIDTH_MAX ? WIDTH_MAX : chart.width;
    chart.columns = chart.width - chart.label - 6; // a space, and " 100%"
    chart.column_seconds = result->makespan / chart.columns;
    DP_AUTO_FREE double(*shares)[LOOKS] = dp_alloc((size_t)chart.columns, sizeof(*shares));
    chart.shares = shares;
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        add_row(&chart, rank, out);
    }
    add_axis(&chart, out);
    add_legend(&chart, out);
}
