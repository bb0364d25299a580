#include "dp/correction.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "dp/alloc.h"
#include "knob.h"

static const char *const part_texts[DP_PART_COUNT] = {
    [DP_PART_COMPUTE] = "compute",        [DP_PART_EXCHANGE] = "exchange",   [DP_PART_HOP] = "hops",
    [DP_PART_GRADIENT] = "gradient sums", [DP_PART_OPTIMIZER] = "optimizer",
};

const char *dp_part_text(dp_part part)
{
    return part_texts[part];
}

void dp_correction_init(struct dp_correction *ret_correction)
{
    *ret_correction = (struct dp_correction){.runs = 0};
    for (int part = 0; part < DP_PART_COUNT; part++) {
        ret_correction->factor[part] = 1;
    }
}

// Less than what is printed.
static bool is_one(double factor)
{
    return fabs(factor - 1) < 0.005;
}

bool dp_correction_is_none(const struct dp_correction *correction)
{
    for (int part = 0; part < DP_PART_COUNT; part++) {
        if (!is_one(correction->factor[part])) {
            return false;
        }
    }
    return true;
}

void dp_correction_render(const struct dp_correction *correction, struct dp_buf *out)
{
    const char *separator = "";
    for (int part = 0; part < DP_PART_COUNT; part++) {
        if (!is_one(correction->factor[part])) {
            dp_buf_printf(out, "%s%s x%.2f", separator, part_texts[part], correction->factor[part]);
            separator = ", ";
        }
    }
}

// Every format: a run may use any, and what is slow is slow in all of them.
static void turn_products(struct dp_profile *profile, double rate)
{
    static const dp_format formats[] = {DP_FORMAT_BF16, DP_FORMAT_FP8, DP_FORMAT_FP8_BLOCK,
                                        DP_FORMAT_MXFP8, DP_FORMAT_NVFP4};
    size_t count = profile->is_accelerator ? sizeof formats / sizeof formats[0] : 1;
    for (size_t i = 0; i < count; i++) {
        dp_knob_turn(profile, KNOB_GEMM, formats[i], rate);
    }
}

// On CPU cores the exchange and hops use the same links: what is known of both meets in the middle.
static void turn_links(const struct dp_correction *correction, struct dp_profile *profile)
{
    double exchange = correction->factor[DP_PART_EXCHANGE], hop = correction->factor[DP_PART_HOP];
    if (profile->is_accelerator) {
        dp_knob_turn(profile, KNOB_EXCHANGE, DP_FORMAT_BF16, 1 / exchange);
        dp_knob_turn(profile, KNOB_HOP, DP_FORMAT_BF16, 1 / hop);
        return;
    }
    bool both = !is_one(exchange) && !is_one(hop);
    dp_knob_turn(profile, KNOB_EXCHANGE, DP_FORMAT_BF16,
                 1 / (both ? sqrt(exchange * hop) : exchange * hop));
}

void dp_correction_apply(const struct dp_correction *correction, struct dp_profile *profile)
{
    if (correction->base_measured_at_s != profile->measured_at_s ||
        dp_correction_is_none(correction)) {
        return;
    }
    static const struct {
        dp_part part;
        dp_knob knob;
    } turns[] = {
        {DP_PART_COMPUTE, KNOB_ATTENTION}, {DP_PART_COMPUTE, KNOB_ATTENTION_GRADIENT},
        {DP_PART_COMPUTE, KNOB_MEMORY},    {DP_PART_COMPUTE, KNOB_START},
        {DP_PART_GRADIENT, KNOB_GRADIENT}, {DP_PART_OPTIMIZER, KNOB_OPTIMIZER},
    };
    turn_products(profile, 1 / correction->factor[DP_PART_COMPUTE]);
    turn_links(correction, profile);
    for (size_t i = 0; i < sizeof turns / sizeof turns[0]; i++) {
        dp_knob_turn(profile, turns[i].knob, DP_FORMAT_BF16, 1 / correction->factor[turns[i].part]);
    }
    DP_CLEANUP(dp_buf_deinit) struct dp_buf factors = {0};
    dp_correction_render(correction, &factors);
    char measured[DP_PROVENANCE_MAX];
    (void)DP_COPY_TEXT(measured, profile->provenance);
    // The correction is what changes from run to run: it stays when there is not room for both.
    snprintf(profile->provenance, sizeof profile->provenance, "corrected by %s: %s; %s",
             correction->source, factors.bytes, measured);
}
