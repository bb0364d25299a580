// What a stage asks of whoever moves its rows between expert-parallel ranks.
//
// A routing says where the tokens of one micro-batch go at one layer. It is made once and serves
// four moves of rows (after DeepSeek's DualPipe trace, deepseek-ai/profile-data):
//
//   forward DISPATCH   to the experts   normed tokens, with each token's routing weights
//   forward COMBINE    back             the experts' outputs, summed over the ranks of a token
//   INPUT of COMBINE   to the experts   gradients of the outputs: the same way as forward DISPATCH
//   INPUT of DISPATCH  back             gradients of the tokens, with those of the routing weights
//
// A token crosses to a rank once, however many of its experts that rank holds; the rank that owns
// the experts unfolds it to one row per expert, and folds the outputs into one row per token again.
//
// Each move has a begin, which returns at once and reads its buffers until `end`, and an end, which
// waits. Moves of different routings may be under way at the same time; those of one routing follow
// each other. Every peer begins the same moves in the same order, also those with no token.
//
// One thread makes the calls of one exchanger.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "dp/device.h"
#include "dp/error.h"

struct dp_routing;

typedef enum dp_move {
    DP_MOVE_DISPATCH,
    DP_MOVE_COMBINE,
    DP_MOVE_COMBINE_INPUT,
    DP_MOVE_DISPATCH_INPUT,
} dp_move;

// How rows look on the wire. Sums on the way back are formed in real and rounded to the wire's
// format once per stage of the way: rank, node, token.
typedef enum dp_wire_format {
    DP_WIRE_ELEMENT, // the device's element
    DP_WIRE_FP8,     // E4M3 with one float scale per 128 elements; to the experts only
} dp_wire_format;

// What the side of the experts has received, in the order (source rank, token): valid until the
// move's dp_exchanger.finish. Memory of the exchanger.
struct dp_arrivals {
    int64_t tokens; // rows
    // [tokens, hidden] of elements, or E4M3 codes [tokens, hidden] with scales
    // [tokens, ceil(hidden / 128)] when the move's format is DP_WIRE_FP8.
    const void *rows;
    const float *scales;   // NULL unless DP_WIRE_FP8
    const void *weights;   // [tokens, top_k] reals; 0 where expert is -1; DISPATCH alone
    const int32_t *expert; // [tokens, top_k] own experts from 0, -1 = another rank's or none
    const int32_t *counts; // host, [own experts] rows of each after unfolding; NULL = not counted
};

// Rows and weights to move. What a move does not use is NULL.
struct dp_load {
    dp_wire_format format;
    // To the experts: [T, hidden] of the routing's own tokens. Back: one row per arrived token.
    const void *rows;
    // DISPATCH: [T, top_k] reals. DISPATCH_INPUT: [arrived, top_k] reals, the gradients of the
    // weights, 0 where expert is -1.
    const void *weights;
};

struct dp_exchanger {
    void *context;
    // A routing of `tokens` tokens from index [tokens, top_k] of experts of the whole model, -1 =
    // none; copied. `tag` tells micro-batch and layer apart (dp_transport_tag).
    dp_status (*route)(void *context, uint64_t tag, int64_t tokens, const int32_t *index,
                       struct dp_routing **ret_routing, struct dp_error *err);
    void (*release)(struct dp_routing *routing); // accepts NULL; at any time
    dp_status (*begin)(struct dp_routing *routing, dp_move move, const struct dp_load *load,
                       struct dp_error *err);
    // Whether the next call to arrive or collect would not wait.
    bool (*ready)(struct dp_routing *routing, dp_move move);
    // The monotonic time at which everything of the move had arrived here, once ready has said so;
    // 0 = unknown.
    int64_t (*landed_ns)(struct dp_routing *routing, dp_move move);
    // Ends a move to the experts.
    dp_status (*arrive)(struct dp_routing *routing, dp_move move, struct dp_arrivals *ret_arrivals,
                        struct dp_error *err);
    // The arrivals have been read: their memory may be used again.
    void (*finish)(struct dp_routing *routing, dp_move move);
    // Ends a move back: rows [T, hidden] of elements and weights [T, top_k] of reals (NULL unless
    // DISPATCH_INPUT) are overwritten with the sums; 0 for tokens without experts.
    dp_status (*collect)(struct dp_routing *routing, dp_move move, void *rows, void *weights,
                         struct dp_error *err);
};
