#include "svg.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dp/check.h"
#include "dp/cleanup.h"
#include "shade.h"

enum {
    WIDTH = 1200,
    WIDTH_MIN = 640,
    WIDTH_MAX = 8192,
    LEFT = 62, // columns for the rank's name, and for its figures
    RIGHT = 84,
    TOP = 64,            // title and heads of columns
    TITLES_MAX = 5000,   // actions; more are not explained one by one
    ACTIONS_MAX = 25000, // more are put together in columns, and those are at most
    COLUMNS_MAX = 50000,
    LEGEND_LINE = 22
};

void dp_render_svg_number(double number, struct dp_buf *out)
{
    char text[64];
    snprintf(text, sizeof(text), "%.2f", fabs(number) < 0.005 ? 0.0 : number);
    size_t length = strlen(text);
    while (text[length - 1] == '0') {
        length--;
    }
    length -= text[length - 1] == '.';
    dp_buf_append(out, text, length);
}

void dp_render_svg_attribute(const char *name, double number, struct dp_buf *out)
{
    dp_buf_printf(out, " %s=\"", name);
    dp_render_svg_number(number, out);
    dp_buf_puts(out, "\"");
}

void dp_render_svg_text(const char *text, struct dp_buf *out)
{
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '&' || c == '<' || c == '>' || c == '"') {
            dp_buf_printf(out, "&#%d;", c);
        } else if (c >= 0x20 && c != 0x7f) {
            dp_buf_append(out, text, 1);
        }
    }
}

void dp_render_svg_weight(const struct svg *svg, uint64_t bytes, struct dp_buf *out)
{
    if (svg->counts_chunks) {
        dp_buf_printf(out, "%llu chunk%s", (unsigned long long)bytes, bytes == 1 ? "" : "s");
    } else {
        dp_render_bytes(bytes, out);
    }
}

static void add_label(const struct svg *svg, const char *class, const char *anchor, int font,
                      double x, double y, const char *text)
{
    struct dp_buf *out = svg->out;
    dp_buf_printf(out, "<text class=\"%s\" text-anchor=\"%s\" font-size=\"%d\"", class, anchor,
                  font);
    dp_render_svg_attribute("x", x, out);
    dp_render_svg_attribute("y", y, out);
    dp_buf_puts(out, ">");
    dp_render_svg_text(text, out);
    dp_buf_puts(out, "</text>\n");
}

static void add_line(const struct svg *svg, double x1, double y1, double x2, double y2)
{
    dp_buf_puts(svg->out, "<line class=\"g\"");
    dp_render_svg_attribute("x1", x1, svg->out);
    dp_render_svg_attribute("y1", y1, svg->out);
    dp_render_svg_attribute("x2", x2, svg->out);
    dp_render_svg_attribute("y2", y2, svg->out);
    dp_buf_puts(svg->out, "/>\n");
}

// Rows grow thinner with the number of ranks.
static void choose_heights(struct svg *svg)
{
    static const struct {
        int32_t ranks;
        double bar, strip, gap;
    } heights[] = {{16, 26, 14, 8}, {32, 20, 10, 6}, {64, 13, 7, 4}, {128, 8, 5, 3}, {0, 6, 3, 2}};
    size_t i = 0;
    while (i + 1 < DP_ARRAY_LENGTH(heights) && svg->schedule->pipeline > heights[i].ranks) {
        i++;
    }
    svg->bar = heights[i].bar;
    svg->strip = svg->peak_bytes > 0 ? heights[i].strip : 0;
    svg->pitch = svg->bar + (svg->strip > 0 ? svg->strip + 2 : 0) + heights[i].gap;
}

static void measure(struct svg *svg, int32_t width)
{
    const struct dp_schedule *schedule = svg->schedule;
    svg->width = width <= 0          ? WIDTH
                 : width < WIDTH_MIN ? WIDTH_MIN
                 : width > WIDTH_MAX ? WIDTH_MAX
                                     : width;
    svg->left = LEFT;
    svg->right = svg->width - RIGHT;
    svg->top = TOP;
    svg->shades = schedule->directions == 2 ? 2 : dp_render_stages_per_rank(schedule);
    svg->unit = dp_render_time_unit(svg->result->makespan);
    svg->with_titles = dp_schedule_action_count(schedule) <= TITLES_MAX;
    svg->counts_chunks = true;
    for (int32_t i = 0; i < svg->costs->pipeline * svg->costs->slots; i++) {
        svg->counts_chunks = svg->counts_chunks && svg->costs->chunks[i].activation_bytes <= 1;
    }
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        uint64_t peak = svg->result->ranks[rank].peak_bytes;
        svg->peak_bytes = peak > svg->peak_bytes ? peak : svg->peak_bytes;
    }
    choose_heights(svg);
    double pixels = (svg->right - svg->left) * schedule->pipeline;
    double busy = pixels * (1 - dp_sim_bubble_ratio(svg->result));
    double count = (double)dp_schedule_action_count(schedule);
    svg->stacks = count > ACTIONS_MAX || busy < 1.5 * count;
    svg->bin = fmax(3, ceil(pixels / COLUMNS_MAX));
}

static void add_title(const struct svg *svg, const char *title)
{
    const struct dp_schedule *schedule = svg->schedule;
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_buf_printf(&text, "%s, P = %d, M = %d", schedule->name, schedule->pipeline,
                  schedule->microbatches);
    title = title != NULL ? title : text.bytes;
    dp_buf_puts(svg->out, "<title>");
    dp_render_svg_text(title, svg->out);
    dp_buf_puts(svg->out, "</title>\n");
    add_label(svg, "t", "start", 16, 10, 24, title);
    dp_buf_clear(&text);
    dp_buf_printf(&text, "makespan %.6g %s, bubble %.2f %%",
                  svg->result->makespan / svg->unit.seconds, svg->unit.name,
                  100 * dp_sim_bubble_ratio(svg->result));
    if (svg->peak_bytes > 0) {
        dp_buf_puts(&text, ", peak ");
        dp_render_svg_weight(svg, svg->peak_bytes, &text);
    }
    add_label(svg, "s", "start", 12, 10, 43, text.bytes);
}

static void add_axis(const struct svg *svg, double bottom)
{
    double pixel_seconds = svg->result->makespan / (svg->right - svg->left);
    double step = dp_render_round_step(80 * pixel_seconds / svg->unit.seconds);
    for (int32_t k = 0; k * step * svg->unit.seconds <= svg->result->makespan * (1 + 1e-9); k++) {
        double x = svg_x(svg, k * step * svg->unit.seconds);
        char text[32];
        snprintf(text, sizeof(text), "%.6g", k * step);
        add_line(svg, x, svg->top - 4, x, bottom + 4);
        add_label(svg, "s", "middle", 11, x, bottom + 17, text);
    }
    DP_CLEANUP(dp_buf_deinit) struct dp_buf name = {0};
    dp_buf_printf(&name, "time, %s", svg->unit.name);
    add_label(svg, "s", "end", 11, svg->width - 8, bottom + 17, name.bytes);
}

// Every row is a bubble where nothing covers it.
static void add_grounds(const struct svg *svg)
{
    const struct dp_schedule *schedule = svg->schedule;
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        dp_buf_puts(svg->out, "<rect fill=\"url(#bubble)\"");
        dp_render_svg_attribute("x", svg->left, svg->out);
        dp_render_svg_attribute("y", svg_y(svg, rank), svg->out);
        dp_render_svg_attribute("width", svg->right - svg->left, svg->out);
        dp_render_svg_attribute("height", svg->bar, svg->out);
        dp_buf_puts(svg->out, "/>\n");
    }
}

// Names and figures beside the rows; of rows too thin for that, some.
static void add_sides(const struct svg *svg)
{
    int32_t every = (int32_t)ceil(14 / svg->pitch);
    add_label(svg, "s", "start", 11, svg->right + 8, svg->top - 8,
              svg->strip > 0 ? "busy, peak" : "busy");
    for (int32_t rank = 0; rank < svg->schedule->pipeline; rank += every) {
        const struct dp_sim_rank *own = &svg->result->ranks[rank];
        double middle = svg_y(svg, rank) + svg->bar / 2;
        DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
        dp_buf_printf(&text, "rank %d", rank);
        add_label(svg, "t", "end", 11, svg->left - 6, middle + 4, text.bytes);
        dp_buf_clear(&text);
        dp_buf_printf(&text, "%.1f %%", 100 * dp_sim_rank_busy(own) / svg->result->makespan);
        add_label(svg, "t", "start", 11, svg->right + 8, middle + 4, text.bytes);
        if (svg->strip >= 10) {
            dp_buf_clear(&text);
            dp_render_svg_weight(svg, own->peak_bytes, &text);
            add_label(svg, "s", "start", 10, svg->right + 8,
                      svg_y(svg, rank) + svg->bar + 2 + svg->strip / 2 + 4, text.bytes);
        }
    }
}

// The legend, item after item; what does not fit into the line begins another.
struct key {
    const struct svg *svg;
    double x, y;
};

// Returns where the item's swatches begin; they take `swatches` pixels.
static double begin_key(struct key *key, double swatches, const char *text)
{
    double width = swatches + 6 + 6 * (double)strlen(text) + 16;
    if (key->x > key->svg->left && key->x + width > key->svg->width) {
        key->x = key->svg->left;
        key->y += LEGEND_LINE;
    }
    double x = key->x;
    add_label(key->svg, "t", "start", 11, x + swatches + 6, key->y + 4, text);
    key->x += width;
    return x;
}

static void add_swatch(const struct svg *svg, const char *class, int color, const char *fill,
                       const double box[4])
{
    dp_buf_puts(svg->out, "<rect");
    if (fill != NULL) {
        dp_buf_printf(svg->out, " fill=\"%s\"", fill);
    } else {
        dp_buf_printf(svg->out, " class=\"%s", class);
        if (color >= 0) {
            dp_render_svg_class(color, svg->out);
        }
        dp_buf_puts(svg->out, "\"");
    }
    dp_render_svg_attribute("x", box[0], svg->out);
    dp_render_svg_attribute("y", box[1], svg->out);
    dp_render_svg_attribute("width", box[2], svg->out);
    dp_render_svg_attribute("height", box[3], svg->out);
    dp_buf_puts(svg->out, "/>\n");
}

static void add_kind_key(struct key *key, dp_action_kind kind)
{
    const struct svg *svg = key->svg;
    int32_t count = 0;
    int32_t last = 0;
    for (int32_t shade = 0; shade < svg->shades; shade++) {
        bool used = svg->used[svg_color(kind, shade)];
        count += used;
        last = used ? shade : last;
    }
    if (count == 0) {
        return;
    }
    double each = svg->shades > 4 ? 6 : 14;
    double x = begin_key(key, each * (last + 1), dp_render_kind_name(kind));
    for (int32_t shade = 0; shade <= last; shade++) {
        if (svg->used[svg_color(kind, shade)]) {
            add_swatch(svg, "", svg_color(kind, shade), NULL,
                       (double[]){x + each * shade, key->y - 7, each, 14});
        }
    }
}

static void add_pair_key(struct key *key)
{
    const struct svg *svg = key->svg;
    double x = begin_key(key, 22, "overlapped pair: forward over backward");
    int below = svg->used[svg_color(DP_ACTION_B, 0)] ? svg_color(DP_ACTION_B, 0)
                                                     : svg_color(DP_ACTION_B, 1);
    int above = svg->used[svg_color(DP_ACTION_F, 0)] ? svg_color(DP_ACTION_F, 0)
                                                     : svg_color(DP_ACTION_F, 1);
    add_swatch(svg, "", above, NULL, (double[]){x, key->y - 7, 22, 7});
    add_swatch(svg, "", below, NULL, (double[]){x, key->y, 22, 7});
    add_swatch(svg, "p", -1, NULL, (double[]){x + 0.4, key->y - 6.6, 21.2, 13.2});
}

static double add_legend(const struct svg *svg, double y)
{
    struct key key = {svg, svg->left, y};
    for (int kind = 0; kind < DP_ACTION_FB; kind++) {
        add_kind_key(&key, (dp_action_kind)kind);
    }
    if (svg->has_pairs) {
        add_pair_key(&key);
    }
    double x = begin_key(&key, 22, "bubble");
    add_swatch(svg, "", -1, "url(#bubble)", (double[]){x, key.y - 7, 22, 14});
    if (svg->strip > 0) {
        x = begin_key(&key, 22, "activations kept, and their peak");
        add_swatch(svg, "m", -1, NULL, (double[]){x, key.y - 1, 22, 8});
        add_swatch(svg, "m", -1, NULL, (double[]){x + 7, key.y - 6, 8, 6});
        dp_buf_puts(svg->out, "<circle class=\"d\" r=\"1.8\"");
        dp_render_svg_attribute("cx", x + 7, svg->out);
        dp_render_svg_attribute("cy", key.y - 6, svg->out);
        dp_buf_puts(svg->out, "/>\n");
    }
    const char *shades = svg->schedule->directions == 2 ? "dark: from rank 0; light: from the last"
                         : svg->shades > 1 ? "from dark to light: a rank's chunks in turn"
                                           : NULL;
    if (shades != NULL) {
        begin_key(&key, -6, shades);
    }
    if (svg->stacks) {
        begin_key(&key, -6, "height: share of the time, as actions are too narrow to be seen");
    }
    return key.y + LEGEND_LINE;
}

static void add_frame(const struct svg *svg, double height)
{
    dp_buf_puts(svg->out, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
                          "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\"");
    dp_render_svg_attribute("width", svg->width, svg->out);
    dp_render_svg_attribute("height", height, svg->out);
    dp_buf_printf(svg->out, " viewBox=\"0 0 %d ", svg->width);
    dp_render_svg_number(height, svg->out);
    dp_buf_puts(svg->out, "\">\n");
}

static void add_ground(const struct svg *svg)
{
    dp_render_svg_style(svg);
    dp_buf_puts(svg->out, "<defs><pattern id=\"bubble\" width=\"6\" height=\"6\" "
                          "patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\">"
                          "<rect width=\"6\" height=\"6\" fill=\"#f4f4f4\"/>"
                          "<rect width=\"1.2\" height=\"6\" fill=\"#c4c4c4\"/></pattern></defs>\n"
                          "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n");
}

void dp_render_svg(const struct dp_schedule *schedule, const struct dp_sim_result *result,
                   const struct dp_sim_costs *costs, const struct dp_render_svg_options *options,
                   struct dp_buf *out)
{
    DP_CHECK(result->spans != NULL);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf body = {0};
    struct svg svg = {.schedule = schedule, .result = result, .costs = costs, .out = &body};
    measure(&svg, options->width);
    dp_render_svg_use(&svg);
    add_ground(&svg);
    add_title(&svg, options->title);
    double bottom = svg_y(&svg, schedule->pipeline);
    if (dp_render_is_drawable(result->makespan)) {
        add_axis(&svg, bottom);
        add_grounds(&svg);
        add_sides(&svg);
        dp_buf_puts(&body, "<g text-anchor=\"middle\" font-size=\"10\">\n");
        for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
            dp_render_svg_rank(&svg, rank);
        }
        dp_buf_puts(&body, "</g>\n");
        for (int32_t rank = 0; rank < schedule->pipeline && svg.strip > 0; rank++) {
            dp_render_svg_memory(&svg, rank);
        }
    }
    double height = add_legend(&svg, bottom + 40);
    svg.out = out;
    add_frame(&svg, height);
    dp_buf_append(out, body.bytes, body.length);
    dp_buf_puts(out, "</svg>\n");
}
