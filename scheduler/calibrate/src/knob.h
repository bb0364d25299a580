// Figures of a profile that one kind of work rests on, turned together: the same on accelerators
// and on CPU cores, whose profiles hold other figures.
#pragma once

#include "dp/profile.h"
#include "dp/strategy.h"

typedef enum dp_knob {
    KNOB_GEMM,
    KNOB_GROUPED_GEMM, // products of experts alone
    KNOB_WEIGHT_GEMM,  // gradients of weights alone, without those of experts
    KNOB_GROUPED_WEIGHT_GEMM,
    KNOB_ATTENTION,
    KNOB_ATTENTION_GRADIENT,
    KNOB_MEMORY,   // elementwise work
    KNOB_START,    // what starts kernels, operators and actions
    KNOB_EXCHANGE, // of experts; on CPU cores the links, hops included
    KNOB_HOP,      // nothing on CPU cores, where hops are on the exchange's links
    KNOB_GRADIENT,
    KNOB_OPTIMIZER,
    KNOB_COUNT
} dp_knob;
const char *dp_knob_text(dp_knob knob);
// Multiplies the rates by `factor`; shares stay within what they may be. `format`: whose products.
void dp_knob_turn(struct dp_profile *profile, dp_knob knob, dp_format format, double factor);
// Its first figure, to show; 0 = the profile has none.
double dp_knob_value(const struct dp_profile *profile, dp_knob knob, dp_format format);
// Notes where the figures come from now; accelerators alone keep that for each.
void dp_knob_source(struct dp_profile *profile, dp_knob knob, dp_format format, const char *source);
