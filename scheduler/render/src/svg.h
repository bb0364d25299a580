// What the parts of the figure share.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "dp/render.h"
#include "scale.h"

enum {
    SVG_SHADES = DP_RANK_STAGES_MAX,
    SVG_COLORS = DP_ACTION_FB * SVG_SHADES // a pair is drawn as its forward over its backward
};

struct svg {
    const struct dp_schedule *schedule;
    const struct dp_sim_result *result;
    const struct dp_sim_costs *costs;
    struct dp_buf *out;
    int32_t width;          // of the figure
    double left, right;     // where time begins and ends
    double top;             // of rank 0's row
    double bar, strip;      // heights: actions, memory (0 when nothing weighs anything)
    double pitch;           // from one rank's row to the next
    bool stacks;            // actions are too many or too narrow to be drawn one by one
    double bin;             // then they are put together in columns of this width
    int32_t shades;         // chunks per rank, or 2 for two directions
    struct scale_unit unit; // of the time axis
    bool counts_chunks;     // every chunk weighs one byte: memory is a number of chunks
    uint64_t peak_bytes;    // of all ranks
    bool with_titles;       // few enough actions to explain each
    bool used[SVG_COLORS];
    bool has_pairs;
};

static inline double svg_x(const struct svg *svg, double time)
{
    return svg->left + (svg->right - svg->left) * (time / svg->result->makespan);
}

static inline double svg_y(const struct svg *svg, int32_t rank)
{
    return svg->top + svg->pitch * rank;
}

// A number with at most two decimals, and none that say nothing.
void dp_render_svg_number(double number, struct dp_buf *out);
// ` name="number"`.
void dp_render_svg_attribute(const char *name, double number, struct dp_buf *out);
// Text between tags; what XML does not allow is left out.
void dp_render_svg_text(const char *text, struct dp_buf *out);
// Bytes, or chunks where each weighs one.
void dp_render_svg_weight(const struct svg *svg, uint64_t bytes, struct dp_buf *out);

// Colours. A color is kind * SVG_SHADES + shade.
static inline int svg_color(dp_action_kind kind, int32_t shade)
{
    return (int)kind * SVG_SHADES + shade;
}
// The class of a color ("F0"), and of text on it ("d" or "l": dark or light).
void dp_render_svg_class(int color, struct dp_buf *out);
char dp_render_svg_ink(const struct svg *svg, int color);
// <style> with the classes of the used colours.
void dp_render_svg_style(const struct svg *svg);
// Marks the colours that the schedule needs.
void dp_render_svg_use(struct svg *svg);

// The rows: actions, and memory under them.
void dp_render_svg_rank(const struct svg *svg, int32_t rank);
void dp_render_svg_memory(const struct svg *svg, int32_t rank);
// Shade of one chunk on this rank.
struct shade_rank;
int32_t dp_render_svg_shade(const struct svg *svg, const struct shade_rank *rank, int32_t stage,
                            uint32_t microbatch);
