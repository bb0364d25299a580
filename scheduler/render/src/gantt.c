#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/render.h"
#include "shade.h"

enum {
    LOOKS = 2 * DP_ACTION_KIND_COUNT, // kind, and which stream
    IDLE = -1,
    WIDTH_MAX = 4096
};

struct chart {
    const struct dp_schedule *schedule;
    const struct dp_sim_result *result;
    bool color;
    int32_t columns;
    int32_t label;           // columns of the rank's number
    double (*shares)[LOOKS]; // [columns]: seconds of each look
};

// Puts the action's seconds into the columns that it covers.
static void spread(struct chart *chart, const struct dp_sim_span *span, int look)
{
    double column_seconds = chart->result->makespan / chart->columns;
    int32_t first = (int32_t)(span->start / column_seconds);
    for (int32_t column = first; column < chart->columns; column++) {
        double from = column * column_seconds;
        double to = from + column_seconds;
        if (from >= span->end) {
            break;
        }
        from = span->start > from ? span->start : from;
        to = span->end < to ? span->end : to;
        chart->shares[column][look] += to - from;
    }
}

// What fills most of the column.
static int look_of(const struct chart *chart, int32_t column)
{
    double idle = chart->result->makespan / chart->columns;
    int look = IDLE;
    double most = 0;
    for (int i = 0; i < LOOKS; i++) {
        double share = chart->shares[column][i];
        idle -= share;
        if (share > most) {
            most = share;
            look = i;
        }
    }
    return idle > most ? IDLE : look;
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
    for (int32_t column = 0; column < chart->columns; column++) {
        for (int i = 0; i < LOOKS; i++) {
            chart->shares[column][i] = 0;
        }
    }
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

static void add_axis(const struct chart *chart, struct dp_buf *out)
{
    static const struct {
        double seconds;
        const char *name;
    } units[] = {{1, "s"}, {1e-3, "ms"}, {1e-6, "us"}};
    size_t unit = 0;
    while (unit + 1 < DP_ARRAY_LENGTH(units) && chart->result->makespan < units[unit].seconds) {
        unit++;
    }
    DP_CLEANUP(dp_buf_deinit) struct dp_buf end = {0};
    dp_buf_printf(&end, "%.4g %s", chart->result->makespan / units[unit].seconds, units[unit].name);
    dp_buf_printf(out, "%*s 0%*s\n", chart->label, "", chart->columns - 1, end.bytes);
}

static void add_legend(const struct chart *chart, struct dp_buf *out)
{
    static const char *const names[DP_ACTION_KIND_COUNT] = {"forward", "backward", "input gradient",
                                                            "weight gradient", "overlapped pair"};
    bool used[DP_ACTION_KIND_COUNT] = {false};
    const struct dp_schedule *schedule = chart->schedule;
    size_t count = dp_schedule_action_count(schedule);
    for (size_t i = 0; i < count; i++) {
        used[schedule->actions[i].kind] = true;
    }
    dp_buf_printf(out, "%*s ", chart->label, "");
    for (int kind = 0; kind < DP_ACTION_KIND_COUNT; kind++) {
        if (!used[kind]) {
            continue;
        }
        char letter = dp_render_shade_letter(kind, false);
        if (chart->color) {
            dp_render_shade_begin(kind, false, out);
        }
        dp_buf_append(out, &letter, 1);
        if (chart->color) {
            dp_render_shade_end(out);
        }
        dp_buf_printf(out, " %s  ", names[kind]);
    }
    dp_buf_puts(out, ". idle");
    if (schedule->directions == 2) {
        dp_buf_puts(out, "  lower case: from the last rank");
    } else if (schedule->stages > schedule->pipeline) {
        dp_buf_puts(out, "  lower case: the way back");
    }
    dp_buf_puts(out, "\n");
}

void dp_render_gantt(const struct dp_schedule *schedule, const struct dp_sim_result *result,
                     const struct dp_render_options *options, struct dp_buf *out)
{
    DP_CHECK(result->spans != NULL);
    struct chart chart = {.schedule = schedule, .result = result, .color = options->color};
    if (!(result->makespan > 0)) {
        dp_buf_puts(out, "nothing takes time\n");
        return;
    }
    chart.label = 1 + (schedule->pipeline > 10) + (schedule->pipeline > 100);
    int32_t width = options->width > 0 ? options->width : 100;
    width = width > WIDTH_MAX ? WIDTH_MAX : width;
    chart.columns = width - chart.label - 6; // a space, and " 100%"
    chart.columns = chart.columns < 10 ? 10 : chart.columns;
    DP_AUTO_FREE double(*shares)[LOOKS] = dp_alloc((size_t)chart.columns, sizeof(*shares));
    chart.shares = shares;
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        add_row(&chart, rank, out);
    }
    add_axis(&chart, out);
    add_legend(&chart, out);
}
