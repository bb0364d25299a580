// Two chunks of two stages in flight at once, component by component in the order that DeepSeek's
// profile shows, with exchanges left open while the other chunk computes: the bits of one chunk
// after the other.
#include "dp_test.h"

#include "world.h"

#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"

#define SEQUENCE 5
#define SAMPLES 2
#define TOKENS (SEQUENCE * SAMPLES)
#define RANKS 2
#define LAYERS 2 // in each of the two stages, all MoE

// Components of a MoE layer, by their place in it.
enum { ATTENTION, DISPATCH, EXPERTS, COMBINE, PER_LAYER };

struct pair {
    struct world *world;
    struct dp_chunk *f[RANKS], *b[RANKS]; // forward on stage 0, backward on stage 1
};

static int32_t forward_at(int32_t layer, int32_t which)
{
    return 1 + layer * PER_LAYER + which; // behind the embedding
}

static int32_t backward_at(int32_t layer, int32_t which)
{
    return (LAYERS - 1 - layer) * PER_LAYER + which;
}

static void begin(struct dp_chunk **chunks, dp_pass pass, int32_t component)
{
    struct dp_error err;
    for (int32_t r = 0; r < RANKS; r++) {
        assert_ok(dp_chunk_begin(chunks[r], pass, component, &err), &err);
    }
}

static void finish(struct dp_chunk **chunks, dp_pass pass, int32_t component)
{
    struct dp_error err;
    for (int32_t r = 0; r < RANKS; r++) {
        assert_ok(dp_chunk_end(chunks[r], pass, component, &err), &err);
    }
}

static void overlap_layer(struct pair *p, int32_t layer)
{
    const int32_t f = forward_at(layer, 0), b = backward_at(layer, 0);
    begin(p->b, DP_PASS_INPUT, b + COMBINE);
    world_run(p->f, RANKS, DP_PASS_FORWARD, f + ATTENTION);
    finish(p->b, DP_PASS_INPUT, b + COMBINE);
    begin(p->f, DP_PASS_FORWARD, f + DISPATCH);
    world_run(p->b, RANKS, DP_PASS_INPUT, b + EXPERTS);
    begin(p->b, DP_PASS_INPUT, b + DISPATCH);
    finish(p->f, DP_PASS_FORWARD, f + DISPATCH);
    world_run(p->b, RANKS, DP_PASS_WEIGHT, b + EXPERTS);
    world_run(p->f, RANKS, DP_PASS_FORWARD, f + EXPERTS);
    finish(p->b, DP_PASS_INPUT, b + DISPATCH);
    begin(p->f, DP_PASS_FORWARD, f + COMBINE);
    world_run(p->b, RANKS, DP_PASS_INPUT, b + ATTENTION);
    world_run(p->b, RANKS, DP_PASS_WEIGHT, b + DISPATCH);
    world_run(p->b, RANKS, DP_PASS_WEIGHT, b + ATTENTION);
    finish(p->f, DP_PASS_FORWARD, f + COMBINE);
}

static void run_all(struct dp_chunk **chunks, dp_pass pass, int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        world_run(chunks, RANKS, pass, pass == DP_PASS_FORWARD ? i : count - 1 - i);
    }
}

// A backward chunk that has run forward on stage 1, and a forward chunk that has its tokens.
static void start(struct pair *p, const int32_t *tokens)
{
    struct dp_error err;
    for (int32_t r = 0; r < RANKS; r++) {
        void *input;
        p->f[r] = dp_chunk_new(p->world->stages[0][r], SAMPLES, 0.1);
        p->b[r] = dp_chunk_new(p->world->stages[1][r], SAMPLES, 0.1);
        assert_ok(dp_chunk_set_tokens(p->f[r], tokens + r * TOKENS, &err), &err);
        assert_ok(dp_chunk_set_targets(p->b[r], tokens + r * TOKENS, &err), &err);
        assert_ok(dp_chunk_make_input(p->b[r], &input, &err), &err);
        float *x = input;
        for (size_t i = 0; i < dp_chunk_hidden_bytes(p->b[r]) / sizeof(float); i++) {
            x[i] = (float)((double)(tokens[r * TOKENS + (int64_t)i % TOKENS] + (int)i % 5) - 7);
        }
    }
    run_all(p->b, DP_PASS_FORWARD, LAYERS * PER_LAYER + 1);
    world_run(p->b, RANKS, DP_PASS_INPUT, LAYERS * PER_LAYER);
    world_run(p->b, RANKS, DP_PASS_WEIGHT, LAYERS * PER_LAYER);
    world_run(p->f, RANKS, DP_PASS_FORWARD, 0);
}

static void assert_same_bits(const struct pair *one, const struct pair *two)
{
    for (int32_t r = 0; r < RANKS; r++) {
        struct dp_stage *a = one->world->stages[1][r], *b = two->world->stages[1][r];
        assert_memory_equal(dp_stage_gradients(a), dp_stage_gradients(b),
                            (size_t)dp_stage_parameter_count(a) * sizeof(float));
        assert_memory_equal(dp_chunk_output(one->f[r]), dp_chunk_output(two->f[r]),
                            dp_chunk_hidden_bytes(one->f[r]));
        assert_memory_equal(dp_chunk_input_grad(one->b[r]), dp_chunk_input_grad(two->b[r]),
                            dp_chunk_hidden_bytes(one->b[r]));
    }
}

static void an_overlapped_pair_gives_the_bits_of_one_after_the_other(void **state)
{
    (void)state;
    struct dp_model_spec model = world_model();
    model.layers = 2 * LAYERS;
    model.dense_layers = 0;
    DP_AUTO_FREE int32_t *tokens = world_tokens(&model, 9, RANKS * TOKENS);
    struct pair pairs[2];
    for (int i = 0; i < 2; i++) {
        pairs[i].world = world_new(&model, DP_F32, 2, RANKS, SEQUENCE, SAMPLES);
        world_scale(pairs[i].world, 10);
        start(&pairs[i], tokens);
    }
    for (int32_t i = 1; i <= LAYERS * PER_LAYER; i++) {
        world_run(pairs[0].f, RANKS, DP_PASS_FORWARD, i);
    }
    run_all(pairs[0].b, DP_PASS_INPUT, LAYERS * PER_LAYER);
    run_all(pairs[0].b, DP_PASS_WEIGHT, LAYERS * PER_LAYER);
    for (int32_t layer = 0; layer < LAYERS; layer++) {
        overlap_layer(&pairs[1], layer);
    }
    assert_same_bits(&pairs[0], &pairs[1]);
    for (int i = 0; i < 2; i++) {
        for (int32_t r = 0; r < RANKS; r++) {
            dp_chunk_free(pairs[i].f[r]);
            dp_chunk_free(pairs[i].b[r]);
        }
        world_free(pairs[i].world);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_overlapped_pair_gives_the_bits_of_one_after_the_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
