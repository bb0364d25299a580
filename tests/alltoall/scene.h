// Made-up micro-batches of a group of expert-parallel ranks, known as a whole, and what each rank
// must get: written from the definition of the exchange, token by token.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "dp/device.h"
#include "dp/exchanger.h"

#define SCENE_RANKS_MAX 24
#define SCENE_ROUTINGS_MAX 8

typedef enum scene_kind {
    SCENE_ANY,        // experts anywhere, each rank with its own number of tokens, often none
    SCENE_ALL_TO_ONE, // every slot is one expert
    SCENE_MASKED,     // a third of the slots are -1
    SCENE_UNBALANCED, // most slots are the first rank's
    SCENE_EMPTY_RANK, // rank 0 has no tokens at all, and no expert of the last rank is chosen
    SCENE_KINDS
} scene_kind;

struct scene_shape {
    uint64_t seed;
    scene_kind kind;
    int32_t ranks;
    int32_t node_of[SCENE_RANKS_MAX];
    int32_t own; // experts of a rank
    int32_t top_k, routings;
    int64_t hidden, tokens_max;
    dp_element element;
    bool is_fp8; // to the experts
};

// One rank's tokens in one routing.
struct scene_tokens {
    int64_t tokens;
    int32_t *index;
    void *rows, *weights;
    void *gradients; // of the outputs
    // As codes, when is_fp8: of rows, and of gradients.
    uint8_t *codes[2];
    float *scales[2];
};

struct scene {
    struct scene_shape shape;
    int32_t nodes, experts;
    size_t row, real; // bytes
    int64_t scale_cols;
    struct scene_tokens of[SCENE_ROUTINGS_MAX][SCENE_RANKS_MAX];
};

void scene_make(struct scene *scene, const struct scene_shape *shape);
void scene_drop(struct scene *scene);

bool scene_goes_to(const struct scene *scene, int32_t routing, int32_t source, int64_t token,
                   int32_t rank);
// What a rank makes of an arrived row (elements, or codes with scales): one row of elements. The
// forward and the backward pass differ.
void scene_apply(const struct scene *scene, bool is_backward, int32_t rank, const void *row,
                 const float *scales, void *out);
// Its gradients of weights, [top_k] reals, from the experts in the rank's own numbering.
void scene_weight_gradients(const struct scene *scene, const int32_t *expert, const void *row,
                            void *out);

// Compares with what must be; NULL when it is the same bit for bit, else what differs.
const char *scene_check_arrivals(const struct scene *scene, int32_t routing, int32_t rank,
                                 dp_move move, const struct dp_arrivals *arrivals);
const char *scene_check_sums(const struct scene *scene, int32_t routing, int32_t rank, dp_move move,
                             const void *rows, const void *weights);
// How far sums are from adding up at once, in double, what the ranks gave, or, of codes, what they
// would have given had they got the rows as they were: 1 - 2 <x, y> / (<x, x> + <y, y>).
double scene_distance(const struct scene *scene, int32_t routing, int32_t rank, dp_move move,
                      bool is_weights, const void *got);
// Bytes that `rank` puts to each in the four moves of a routing, [ranks], added to ret_bytes: every
// token is sent alone.
void scene_add_bytes(const struct scene *scene, int32_t routing, int32_t rank, uint64_t *ret_bytes);
