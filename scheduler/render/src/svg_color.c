// Colours that people with any of the usual colour blindnesses can tell apart, also in their
// lighter shades: blue and vermilion of Okabe and Ito, wine and yellow of Tol's sets.
#include <math.h>

#include "dp/check.h"
#include "shade.h"
#include "svg.h"

enum {
    LIGHTEST_OF_TWO = 45, // per cent of white
    LIGHTEST_OF_MANY = 60
};

struct rgb {
    int red, green, blue;
};

static struct rgb rgb_of(const struct svg *svg, int color)
{
    static const struct rgb bases[DP_ACTION_FB] = {
        [DP_ACTION_F] = {0x00, 0x72, 0xb2},
        [DP_ACTION_B] = {0xd5, 0x5e, 0x00},
        [DP_ACTION_I] = {0x88, 0x22, 0x55},
        [DP_ACTION_W] = {0xf0, 0xc0, 0x00},
    };
    struct rgb base = bases[color / SVG_SHADES];
    int lightest = svg->shades <= 2 ? LIGHTEST_OF_TWO : LIGHTEST_OF_MANY;
    int white = svg->shades == 1 ? 0 : lightest * (color % SVG_SHADES) / (svg->shades - 1);
    return (struct rgb){(base.red * (100 - white) + 255 * white) / 100,
                        (base.green * (100 - white) + 255 * white) / 100,
                        (base.blue * (100 - white) + 255 * white) / 100};
}

static double linear(int channel)
{
    double value = channel / 255.0;
    return value <= 0.04045 ? value / 12.92 : pow((value + 0.055) / 1.055, 2.4);
}

// Black or white, whichever has more contrast (WCAG 2: both have 4.58 at a luminance of 0.179).
char dp_render_svg_ink(const struct svg *svg, int color)
{
    struct rgb rgb = rgb_of(svg, color);
    double luminance =
        0.2126 * linear(rgb.red) + 0.7152 * linear(rgb.green) + 0.0722 * linear(rgb.blue);
    return luminance > 0.179 ? 'd' : 'l';
}

void dp_render_svg_class(int color, struct dp_buf *out)
{
    dp_buf_printf(out, "%s%d", dp_action_kind_text((dp_action_kind)(color / SVG_SHADES)),
                  color % SVG_SHADES);
}

void dp_render_svg_style(const struct svg *svg)
{
    struct dp_buf *out = svg->out;
    dp_buf_puts(out, "<style>text{font-family:Helvetica,Arial,'Liberation Sans',sans-serif;"
                     "fill:#222}.d{fill:#000}.l{fill:#fff}.s{fill:#555}.m{fill:#8a97a6}"
                     ".p{fill:none;stroke:#222;stroke-width:.8}"
                     ".g{stroke:#ddd;stroke-width:.8}");
    for (int color = 0; color < SVG_COLORS; color++) {
        if (svg->used[color]) {
            struct rgb rgb = rgb_of(svg, color);
            dp_buf_puts(out, ".");
            dp_render_svg_class(color, out);
            dp_buf_printf(out, "{fill:#%02x%02x%02x}", rgb.red, rgb.green, rgb.blue);
        }
    }
    dp_buf_puts(out, "</style>\n");
}

int32_t dp_render_svg_shade(const struct svg *svg, const struct shade_rank *rank, int32_t stage,
                            uint32_t microbatch)
{
    return svg->schedule->directions == 2 ? dp_schedule_direction(svg->schedule, microbatch)
                                          : dp_render_shade_slot(rank, stage);
}

void dp_render_svg_use(struct svg *svg)
{
    const struct dp_schedule *schedule = svg->schedule;
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        struct shade_rank shade;
        dp_render_shade_rank_init(&shade, schedule, rank);
        for (size_t i = schedule->rank_begin[rank]; i < schedule->rank_begin[rank + 1]; i++) {
            const struct dp_action *action = &schedule->actions[i];
            bool pair = action->kind == DP_ACTION_FB;
            dp_action_kind kind = pair ? DP_ACTION_F : (dp_action_kind)action->kind;
            int32_t slot = dp_render_svg_shade(svg, &shade, action->stage, action->microbatch);
            svg->used[svg_color(kind, slot)] = true;
            if (pair) {
                slot = dp_render_svg_shade(svg, &shade, action->b_stage, action->b_microbatch);
                svg->used[svg_color((dp_action_kind)action->b_kind, slot)] = true;
                svg->has_pairs = true;
            }
        }
    }
}
