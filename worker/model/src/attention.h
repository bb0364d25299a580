// How ATTENTION makes queries, keys and values from its normed input, and what becomes of their
// gradients: from one product, or from latents (MLA).
#pragma once

#include "stage.h"

struct dp_projections {
    // Fills the layer's slots from the normed input [T, hidden].
    dp_status (*forward)(struct dp_chunk *chunk, int32_t layer, const void *normed,
                         struct dp_error *err);
    // What FORWARD has let go of those slots again.
    dp_status (*again)(struct dp_chunk *chunk, int32_t layer, struct dp_error *err);
    // Points q, k and v at the slots, or at scratch (DP_SCRATCH_KEYS) that is filled from them.
    dp_status (*view)(struct dp_chunk *chunk, int32_t layer, struct dp_attention *attention,
                      struct dp_error *err);
    // After attention's gradient has taken the place of what view gave: gradients for WEIGHT in the
    // slots, and that of the normed input in dnormed [T, hidden].
    dp_status (*input)(struct dp_chunk *chunk, int32_t layer, const struct dp_attention *attention,
                       void *dnormed, struct dp_error *err);
    // normed as in forward.
    dp_status (*weight)(struct dp_chunk *chunk, int32_t layer, const void *normed,
                        struct dp_error *err);
};
extern const struct dp_projections dp_projections_plain, dp_projections_latent;

// Turns `heads` heads of each row, the first at `x`, by their positions or back.
void dp_chunk_turn(const struct dp_chunk *chunk, void *x, int32_t heads, int64_t stride,
                   int64_t head_stride, bool inverse);
// y [T, width] += the bias at `offset`.
dp_status dp_chunk_add_bias(const struct dp_chunk *chunk, int64_t offset, int64_t width, void *y,
                            struct dp_error *err);
// The bias's gradient += the sum of dy's rows.
dp_status dp_chunk_bias_grad(const struct dp_chunk *chunk, int64_t offset, int64_t width,
                             const void *dy, struct dp_error *err);
