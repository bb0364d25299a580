// One rank's row: what it does, and what it keeps in memory.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/sim_analysis.h"
#include "shade.h"
#include "svg.h"

enum {
    FONT = 10, // pixels, of numbers in actions
    FONT_MIN = 7,
    NONE = -1
};

// One action as two halves, one over the other; both are the same unless it is a pair.
struct halves {
    int color[2];
    uint32_t microbatch[2];
    bool pair;
};

static struct halves halves_of(const struct svg *svg, const struct shade_rank *shade,
                               const struct dp_action *action)
{
    bool pair = action->kind == DP_ACTION_FB;
    dp_action_kind kind = pair ? DP_ACTION_F : (dp_action_kind)action->kind;
    int32_t slot = dp_render_svg_shade(svg, shade, action->stage, action->microbatch);
    struct halves halves = {{svg_color(kind, slot), svg_color(kind, slot)},
                            {action->microbatch, action->microbatch},
                            pair};
    if (pair) {
        slot = dp_render_svg_shade(svg, shade, action->b_stage, action->b_microbatch);
        halves.color[1] = svg_color((dp_action_kind)action->b_kind, slot);
        halves.microbatch[1] = action->b_microbatch;
    }
    return halves;
}

// Seconds by color of one column that many actions share.
typedef double column_shares[SVG_COLORS];

static int32_t column_count(const struct svg *svg)
{
    return (int32_t)ceil((svg->right - svg->left) / svg->bin);
}

static double column_seconds(const struct svg *svg)
{
    return svg->result->makespan * svg->bin / (svg->right - svg->left);
}

static void spread(const struct svg *svg, column_shares *shares, const struct halves *halves,
                   const struct dp_sim_span *span)
{
    double seconds = column_seconds(svg);
    int32_t count = column_count(svg);
    for (int32_t i = (int32_t)(span->start / seconds); i < count; i++) {
        double from = fmax(span->start, i * seconds);
        double to = fmin(span->end, (i + 1) * seconds);
        if (from >= to) {
            break;
        }
        shares[i][halves->color[0]] += (to - from) / 2;
        shares[i][halves->color[1]] += (to - from) / 2;
    }
}

// A rectangle of one color that grows to the right until the shares change.
struct band {
    int32_t first;
    double y, height; // 0 = none
};

static void end_band(const struct svg *svg, struct band *band, int32_t last)
{
    if (band->height > 0) {
        double x = svg->left + band->first * svg->bin;
        dp_buf_puts(svg->out, "M");
        dp_render_svg_number(x, svg->out);
        dp_buf_puts(svg->out, " ");
        dp_render_svg_number(band->y, svg->out);
        dp_buf_puts(svg->out, "H");
        dp_render_svg_number(fmin(svg->left + last * svg->bin, svg->right), svg->out);
        dp_buf_puts(svg->out, "v");
        dp_render_svg_number(band->height, svg->out);
        dp_buf_puts(svg->out, "H");
        dp_render_svg_number(x, svg->out);
        dp_buf_puts(svg->out, "z");
    }
    band->height = 0;
}

// Where the color stands in the column: colors lie over each other, the last at the bottom, each as
// high as its share of time, to half a pixel.
static struct band band_of(const struct svg *svg, int32_t rank, int32_t column,
                           const column_shares *shares, int color)
{
    double below = 0;
    for (int i = color + 1; i < SVG_COLORS; i++) {
        below += shares[column][i];
    }
    double scale = 2 * svg->bar / column_seconds(svg);
    double bottom = round(below * scale) / 2;
    double top = round((below + shares[column][color]) * scale) / 2;
    return (struct band){column, svg_y(svg, rank) + svg->bar - top, top - bottom};
}

static void add_stack(const struct svg *svg, int32_t rank, const column_shares *shares)
{
    int32_t count = column_count(svg);
    for (int color = 0; color < SVG_COLORS; color++) {
        if (!svg->used[color]) {
            continue;
        }
        dp_buf_puts(svg->out, "<path class=\"");
        dp_render_svg_class(color, svg->out);
        dp_buf_puts(svg->out, "\" d=\"");
        struct band band = {0};
        for (int32_t i = 0; i < count; i++) {
            struct band next = band_of(svg, rank, i, shares, color);
            if (next.y != band.y || next.height != band.height) {
                end_band(svg, &band, i);
                band = next;
            }
        }
        end_band(svg, &band, count);
        dp_buf_puts(svg->out, "\"/>\n");
    }
}

// Numbers are set smaller where that makes the longest of all fit, and left out where it does not.
static void add_number(const struct svg *svg, double x, double y, double font, int color,
                       uint32_t number, double room)
{
    int32_t digits = dp_render_digits(svg->schedule->microbatches - 1);
    double fits = floor(2 * (room - 2.5) / (0.56 * digits)) / 2;
    if (fits < FONT_MIN || font < FONT_MIN) {
        return;
    }
    font = fmin(font, fits);
    dp_buf_printf(svg->out, "<text class=\"%c\"", dp_render_svg_ink(svg, color));
    dp_render_svg_attribute("font-size", font, svg->out);
    dp_render_svg_attribute("x", x, svg->out);
    dp_render_svg_attribute("y", y + 0.36 * font, svg->out);
    dp_buf_printf(svg->out, ">%u</text>\n", number);
}

static void add_box(const struct svg *svg, const char *class, int color, double x, double y,
                    double width, double height)
{
    dp_buf_printf(svg->out, "<rect class=\"%s", class);
    if (color != NONE) {
        dp_render_svg_class(color, svg->out);
    }
    dp_buf_puts(svg->out, "\"");
    dp_render_svg_attribute("x", x, svg->out);
    dp_render_svg_attribute("y", y, svg->out);
    dp_render_svg_attribute("width", width, svg->out);
    dp_render_svg_attribute("height", height, svg->out);
    dp_buf_puts(svg->out, "/>\n");
}

static void begin_action(const struct svg *svg, const struct dp_action *action,
                         const struct dp_sim_span *span)
{
    dp_buf_puts(svg->out, "<g><title>");
    dp_action_format(action, svg->out);
    dp_buf_printf(svg->out, ": %.4g to %.4g %s</title>\n", span->start / svg->unit.seconds,
                  span->end / svg->unit.seconds, svg->unit.name);
}

static void add_action(const struct svg *svg, int32_t rank, const struct halves *halves,
                       const struct dp_sim_span *span)
{
    double x = svg_x(svg, span->start);
    double y = svg_y(svg, rank);
    double width = svg_x(svg, span->end) - x;
    double middle = x + width / 2;
    // A hair of white between neighbours.
    double shown = width > 5 ? width - 0.8 : width;
    if (!halves->pair) {
        add_box(svg, "", halves->color[0], x, y, shown, svg->bar);
        add_number(svg, middle, y + svg->bar / 2, fmin(FONT, svg->bar - 3), halves->color[0],
                   halves->microbatch[0], width);
        return;
    }
    for (int half = 0; half < 2; half++) {
        double half_y = y + half * svg->bar / 2;
        add_box(svg, "", halves->color[half], x, half_y, shown, svg->bar / 2);
        add_number(svg, middle, half_y + svg->bar / 4, fmin(FONT, svg->bar / 2 - 3),
                   halves->color[half], halves->microbatch[half], width);
    }
    if (width > 5) {
        add_box(svg, "p", NONE, x + 0.4, y + 0.4, shown - 0.8, svg->bar - 0.8);
    }
}

static void add_actions(const struct svg *svg, int32_t rank, const struct shade_rank *shade)
{
    const struct dp_schedule *schedule = svg->schedule;
    for (size_t i = schedule->rank_begin[rank]; i < schedule->rank_begin[rank + 1]; i++) {
        struct halves halves = halves_of(svg, shade, &schedule->actions[i]);
        if (svg->with_titles) {
            begin_action(svg, &schedule->actions[i], &svg->result->spans[i]);
        }
        add_action(svg, rank, &halves, &svg->result->spans[i]);
        dp_buf_puts(svg->out, svg->with_titles ? "</g>\n" : "");
    }
}

void dp_render_svg_rank(const struct svg *svg, int32_t rank)
{
    const struct dp_schedule *schedule = svg->schedule;
    struct shade_rank shade;
    dp_render_shade_rank_init(&shade, schedule, rank);
    if (!svg->stacks) {
        add_actions(svg, rank, &shade);
        return;
    }
    DP_AUTO_FREE column_shares *shares = dp_alloc((size_t)column_count(svg), sizeof(*shares));
    for (size_t i = schedule->rank_begin[rank]; i < schedule->rank_begin[rank + 1]; i++) {
        struct halves halves = halves_of(svg, &shade, &schedule->actions[i]);
        spread(svg, shares, &halves, &svg->result->spans[i]);
    }
    add_stack(svg, rank, (const column_shares *)shares);
}

// The most that is kept in each column: [columns].
static void find_levels(const struct svg *svg, const struct dp_sim_memory_point *points,
                        size_t count, double bin, uint64_t *ret_levels, int32_t columns)
{
    for (size_t i = 0; i < count; i++) {
        double end = i + 1 < count ? points[i + 1].time : svg->result->makespan;
        if (end <= points[i].time) {
            continue;
        }
        int32_t first = (int32_t)((svg_x(svg, points[i].time) - svg->left) / bin + 1e-6);
        double last = (svg_x(svg, end) - svg->left) / bin - 1e-6;
        for (int32_t column = first; column < columns && column <= last; column++) {
            ret_levels[column] =
                points[i].bytes > ret_levels[column] ? points[i].bytes : ret_levels[column];
        }
    }
}

void dp_render_svg_memory(const struct svg *svg, int32_t rank)
{
    DP_AUTO_FREE struct dp_sim_memory_point *points = NULL;
    size_t count = 0;
    dp_sim_memory_over_time(svg->schedule, svg->costs, svg->result->spans, rank, &points, &count);
    double bin = svg->bin / 6;
    int32_t columns = (int32_t)ceil((svg->right - svg->left) / bin);
    DP_AUTO_FREE uint64_t *levels = dp_new_array(uint64_t, (size_t)columns);
    find_levels(svg, points, count, bin, levels, columns);
    double base = svg_y(svg, rank) + svg->bar + 2 + svg->strip;
    dp_buf_puts(svg->out, "<path class=\"m\" d=\"M");
    dp_render_svg_number(svg->left, svg->out);
    dp_buf_puts(svg->out, " ");
    dp_render_svg_number(base, svg->out);
    for (int32_t i = 0; i <= columns; i++) {
        uint64_t before = i == 0 ? 0 : levels[i - 1];
        uint64_t level = i == columns ? 0 : levels[i];
        if (level == before) {
            continue;
        }
        dp_buf_puts(svg->out, "H");
        dp_render_svg_number(fmin(svg->left + i * bin, svg->right), svg->out);
        dp_buf_puts(svg->out, "V");
        dp_render_svg_number(base - svg->strip * ((double)level / (double)svg->peak_bytes),
                             svg->out);
    }
    dp_buf_puts(svg->out, "z\"/>\n");
    const struct dp_sim_rank *own = &svg->result->ranks[rank];
    if (own->peak_bytes > 0) {
        double y = base - svg->strip * ((double)own->peak_bytes / (double)svg->peak_bytes);
        dp_buf_puts(svg->out, "<circle class=\"d\"");
        dp_render_svg_attribute("r", svg->strip < 10 ? 1 : 1.8, svg->out);
        dp_render_svg_attribute("cx", svg_x(svg, own->peak_at), svg->out);
        dp_render_svg_attribute("cy", y, svg->out);
        dp_buf_puts(svg->out, "/>\n");
    }
}
