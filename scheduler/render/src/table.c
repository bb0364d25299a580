#include <math.h>
#include <string.h>

#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/render.h"
#include "shade.h"

enum { CELLS_MAX = 4096 };

struct table {
    const struct dp_schedule *schedule;
    const struct dp_sim_result *result;
    double unit;
    bool color;
    int32_t label; // columns of the rank's number
    int32_t cell;  // columns of a cell's text
};

static void cell_text(const struct dp_action *action, char *text, size_t size)
{
    if (action->kind == DP_ACTION_FB) {
        snprintf(text, size, "%u+%u", action->microbatch, action->b_microbatch);
    } else {
        snprintf(text, size, "%s%u", dp_action_kind_text(action->kind), action->microbatch);
    }
}

static int64_t cell_at(const struct table *table, double time)
{
    return (int64_t)llround(time / table->unit);
}

static void add_cell(const struct table *table, const struct shade_rank *shade,
                     const struct dp_action *action, const char *text, struct dp_buf *out)
{
    bool shaded = table->color && action != NULL;
    dp_buf_puts(out, " ");
    if (shaded) {
        dp_render_shade_begin(action->kind, dp_render_shade_is_second(shade, action), out);
    }
    dp_buf_printf(out, "%-*s", table->cell, text);
    if (shaded) {
        dp_render_shade_end(out);
    }
}

static void add_row(const struct table *table, int32_t rank, int64_t cells, struct dp_buf *out)
{
    const struct dp_schedule *schedule = table->schedule;
    dp_buf_printf(out, "%*d", table->label, rank);
    struct shade_rank shade;
    dp_render_shade_rank_init(&shade, schedule, rank);
    int64_t at = 0;
    for (size_t i = schedule->rank_begin[rank]; i < schedule->rank_begin[rank + 1]; i++) {
        const struct dp_action *action = &schedule->actions[i];
        char text[32];
        cell_text(action, text, sizeof(text));
        for (int64_t start = cell_at(table, table->result->spans[i].start); at < start; at++) {
            add_cell(table, &shade, NULL, ".", out);
        }
        int64_t end = cell_at(table, table->result->spans[i].end);
        for (const char *shown = text; at < end; at++, shown = "-") {
            add_cell(table, &shade, action, shown, out);
        }
    }
    for (; at < cells; at++) {
        add_cell(table, &shade, NULL, ".", out);
    }
    dp_buf_puts(out, "\n");
}

double dp_render_table_unit(const struct dp_sim_result *result, size_t action_count)
{
    DP_CHECK(result->spans != NULL);
    double unit = 0;
    for (size_t i = 0; i < action_count; i++) {
        double seconds = result->spans[i].end - result->spans[i].start;
        if (seconds > 0 && (unit == 0 || seconds < unit)) {
            unit = seconds;
        }
    }
    return unit;
}

dp_status dp_render_table(const struct dp_schedule *schedule, const struct dp_sim_result *result,
                          double unit, const struct dp_render_options *options, struct dp_buf *out,
                          struct dp_error *err)
{
    DP_CHECK(result->spans != NULL);
    if (!(unit > 0)) {
        return dp_fail(err, DP_INVALID, "a cell of %g seconds; give a positive unit", unit);
    }
    if (result->makespan / unit > CELLS_MAX) {
        return dp_fail(err, DP_INVALID,
                       "the table would have %.0f cells in a row; the limit is %d: give a longer "
                       "unit or draw a Gantt chart",
                       result->makespan / unit, CELLS_MAX);
    }
    struct table table = {.schedule = schedule,
                          .result = result,
                          .unit = unit,
                          .color = options->color,
                          .label = 1 + (schedule->pipeline > 10) + (schedule->pipeline > 100)};
    size_t count = dp_schedule_action_count(schedule);
    for (size_t i = 0; i < count; i++) {
        char text[32];
        cell_text(&schedule->actions[i], text, sizeof(text));
        int32_t length = (int32_t)strlen(text);
        table.cell = length > table.cell ? length : table.cell;
    }
    int64_t cells = cell_at(&table, result->makespan);
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        add_row(&table, rank, cells, out);
    }
    return DP_OK;
}
