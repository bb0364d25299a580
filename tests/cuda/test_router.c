// Routing's kernels against the cpu's: choices in the same bits, weights and gradients near.
#include "twin.h"

#define REAL DP_OPERAND_REAL

struct routing {
    struct dp_router router;
    double aux_scale;
    int logits, bias, index, weight, dweight, grad;
    double balance[2];
};

static void run(struct twin *t, struct routing *c, int side)
{
    const struct dp_device_ops *ops = t->device[side]->ops;
    struct dp_stream *stream = t->device[side]->stream;
    struct dp_router router = c->router;
    router.bias = c->bias < 0 ? NULL : t->at[c->bias][side];
    ops->router_forward(stream, &router, t->at[c->logits][side], t->at[c->index][side],
                        t->at[c->weight][side]);
    ops->router_balance(stream, &router, t->at[c->index][side], t->at[c->logits][side],
                        &c->balance[side]);
    ops->copy(stream, t->at[c->grad][side], t->at[c->logits][side], t->bytes[c->logits]);
    ops->router_input_grad(stream, &router, c->aux_scale, t->at[c->index][side],
                           t->at[c->dweight][side], t->at[c->grad][side]);
}

// Draws that come in a few levels, so that many are equal.
static int tied_logits(struct twin *t, int64_t count)
{
    float *values = dp_new_array(float, (size_t)count + 1);
    for (int64_t i = 0; i < count; i++) {
        values[i] = 0.5f * (float)dp_rand_below(&t->rand, 5) - 1;
    }
    const int buffer = twin_bytes(t, (size_t)count * sizeof(float), values);
    t->kind[buffer] = REAL;
    free(values);
    return buffer;
}

static void compare(struct routing *c, uint64_t seed, bool is_tied)
{
    const struct dp_router *r = &c->router;
    struct twin t = twin_open(seed % 2 == 0 ? DP_F32 : DP_BF16, seed);
    const int64_t logits = r->tokens * r->experts, slots = r->tokens * r->top_k;
    c->logits = is_tied ? tied_logits(&t, logits) : twin_values(&t, REAL, logits, 1.5);
    c->bias = seed % 3 == 0 ? twin_values(&t, REAL, r->experts, 0.25) : -1;
    c->index = twin_bytes(&t, (size_t)slots * sizeof(int32_t), NULL);
    c->weight = twin_values(&t, REAL, slots, 0);
    c->dweight = twin_values(&t, REAL, slots, 1);
    c->grad = twin_values(&t, REAL, logits, 0);
    for (int schedule = 0; schedule < twin_schedules(); schedule++) {
        twin_schedule(&t, seed, schedule);
        run(&t, c, CPU);
        run(&t, c, GPU);
        twin_sync(&t);
        twin_same_bits(&t, c->index);
        twin_near(&t, c->weight, 2e-6, 0);
        twin_near(&t, c->grad, 1e-5, 2e-6);
        if (!(fabs(c->balance[CPU] - c->balance[GPU]) <= 1e-6 * c->balance[CPU])) {
            fail_msg("balance %g and %g", c->balance[CPU], c->balance[GPU]);
        }
    }
    twin_close(&t);
}

static struct routing routing_for(uint64_t seed, int64_t tokens, int64_t sequence)
{
    static const struct {
        int32_t experts, top_k, groups, top_groups;
    } sizes[] = {{8, 2, 0, 0},  {1, 1, 0, 0},   {40, 33, 0, 0},
                 {64, 8, 8, 4}, {33, 33, 0, 0}, {6, 2, 6, 3}};
    const size_t n = seed % (sizeof(sizes) / sizeof(sizes[0]));
    return (struct routing){
        .router = {.tokens = tokens,
                   .sequence = sequence,
                   .experts = sizes[n].experts,
                   .top_k = sizes[n].top_k,
                   .score = seed % 4 < 2 ? DP_ROUTER_SOFTMAX : DP_ROUTER_SIGMOID,
                   .raw_weights = seed % 5 == 0,
                   .route_scale = seed % 7 == 0 ? 2.5 : 0,
                   .groups = sizes[n].groups,
                   .top_groups = sizes[n].top_groups},
        .aux_scale = seed % 2 == 0 ? 0.1 : 0};
}

static void tokens_go_to_the_cpus_experts(void **state)
{
    (void)state;
    static const int64_t tokens_of[] = {0, 1, 16, 17, 100};
    for (uint64_t seed = 0; seed < 36; seed++) {
        const int64_t tokens = tokens_of[seed % 5];
        struct routing c = routing_for(seed, tokens,
                                       tokens % 4 == 0 && tokens > 0 ? tokens / 4
                                       : tokens > 0                  ? tokens
                                                                     : 8);
        compare(&c, seed, false);
    }
}

static void ties_go_to_the_lowest_index(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 24; seed++) {
        // With a bias equal logits are no ties.
        struct routing c = routing_for(seed, 16, 8);
        compare(&c, 3 * seed + 1, true);
    }
}

static void a_token_that_is_not_finite_is_seen_as_on_the_cpu(void **state)
{
    (void)state;
    static const float odd[] = {NAN, INFINITY, -INFINITY};
    for (int n = 0; n < 3; n++) {
        struct twin t = twin_open(DP_F32, 1);
        float values[12];
        for (int i = 0; i < 12; i++) {
            values[i] = (float)i;
        }
        values[5] = odd[n];
        struct routing c = {.router = {.tokens = 2, .sequence = 2, .experts = 6, .top_k = 3},
                            .aux_scale = 0.1,
                            .bias = -1};
        c.logits = twin_bytes(&t, sizeof(values), values);
        c.index = twin_bytes(&t, 6 * sizeof(int32_t), NULL);
        c.weight = twin_values(&t, REAL, 6, 0);
        c.dweight = twin_values(&t, REAL, 6, 1);
        c.grad = twin_values(&t, REAL, 12, 0);
        run(&t, &c, CPU);
        run(&t, &c, GPU);
        twin_sync(&t);
        twin_same_bits(&t, c.index);
        twin_near(&t, c.weight, 2e-6, 0);
        twin_near(&t, c.grad, 1e-5, 1e-6);
        twin_close(&t);
    }
}

static void more_experts_than_shared_memory_holds_are_refused(void **state)
{
    (void)state;
    struct dp_error err;
    struct dp_device *device = emulated_device_open(DP_F32);
    const struct dp_router router = {.tokens = 1, .sequence = 1, .experts = 13000, .top_k = 1};
    device->ops->router_forward(device->stream, &router, NULL, NULL, NULL);
    assert_refused(device->ops->stream_sync(device->stream, &err), DP_UNSUPPORTED, &err,
                   "routing to 13000 experts");
    emulated_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_go_to_the_cpus_experts),
        cmocka_unit_test(ties_go_to_the_lowest_index),
        cmocka_unit_test(a_token_that_is_not_finite_is_seen_as_on_the_cpu),
        cmocka_unit_test(more_experts_than_shared_memory_holds_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
