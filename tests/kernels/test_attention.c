// Attention in every variant of a model against its definition, one query at a time, and its
// gradients against finite differences, in double.
#include "f64_device.h"
#include "gradient.h"

#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"

// One buffer of rows: queries, keys, values, each head `gap` elements from the next one, and `gap`
// more at the end of a row.
struct layout {
    int64_t samples, sequence;
    int32_t heads, kv_heads, qk_dim, v_dim, gap;
    int64_t window;
    double scale;
    bool has_sink;
};

static struct layout plain(int64_t samples, int64_t sequence, int32_t heads, int32_t kv_heads,
                           int32_t qk_dim, int32_t v_dim)
{
    return (struct layout){.samples = samples,
                           .sequence = sequence,
                           .heads = heads,
                           .kv_heads = kv_heads,
                           .qk_dim = qk_dim,
                           .v_dim = v_dim};
}

struct attention_case {
    struct dp_attention a;
    int64_t rows, stride, outputs;
    double *x, *sink, *output, *lse, *r;
};

static double *poisoned(int64_t count)
{
    double *values = dp_new_array(double, (size_t)count);
    memset(values, 0xff, (size_t)count * sizeof(double));
    return values;
}

static struct attention_case make_case(struct layout l)
{
    const int64_t qk = l.qk_dim + l.gap, v = l.v_dim + l.gap;
    struct attention_case c = {.rows = l.samples * l.sequence,
                               .stride = (l.heads + l.kv_heads) * qk + l.kv_heads * v + l.gap};
    c.outputs = c.rows * l.heads * l.v_dim;
    c.x = drawn(1, c.rows * c.stride, 1);
    c.sink = drawn(2, l.heads, 1);
    c.r = drawn(3, c.outputs, 1);
    c.output = poisoned(c.outputs);
    c.lse = poisoned(c.rows * l.heads);
    c.a = (struct dp_attention){.samples = l.samples,
                                .sequence = l.sequence,
                                .heads = l.heads,
                                .kv_heads = l.kv_heads,
                                .qk_dim = l.qk_dim,
                                .v_dim = l.v_dim,
                                .scale = l.scale,
                                .window = l.window,
                                .q = c.x,
                                .k = c.x + l.heads * qk,
                                .v = c.x + (l.heads + l.kv_heads) * qk,
                                .q_stride = c.stride,
                                .k_stride = c.stride,
                                .v_stride = c.stride,
                                .q_head_stride = l.gap > 0 ? qk : 0,
                                .k_head_stride = l.gap > 0 ? qk : 0,
                                .v_head_stride = l.gap > 0 ? v : 0,
                                .sink = l.has_sink ? c.sink : NULL,
                                .output = c.output,
                                .lse = c.lse};
    return c;
}

static void case_free(struct attention_case *c)
{
    free(c->x);
    free(c->sink);
    free(c->r);
    free(c->output);
    free(c->lse);
}

#define CASE DP_CLEANUP(case_free) struct attention_case

static const double *head_at(const void *x, int64_t row, int64_t stride, int64_t head,
                             int64_t head_stride, int64_t dim)
{
    return (const double *)x + row * stride + head * (head_stride > 0 ? head_stride : dim);
}

// The definition: output element d of query head h of a row, and the log of the denominator.
static double naive(const struct dp_attention *a, int64_t row, int64_t h, int64_t d,
                    double *ret_lse)
{
    const int64_t start = row / a->sequence * a->sequence, kv = h * a->kv_heads / a->heads;
    const double scale = a->scale > 0 ? a->scale : 1 / sqrt((double)a->qk_dim);
    const double *q = head_at(a->q, row, a->q_stride, h, a->q_head_stride, a->qk_dim);
    double top = 0, bottom = a->sink == NULL ? 0 : exp(((const double *)a->sink)[h]);
    for (int64_t t = start; t <= row; t++) {
        if (a->window > 0 && row - t >= a->window) {
            continue;
        }
        const double *k = head_at(a->k, t, a->k_stride, kv, a->k_head_stride, a->qk_dim);
        double score = 0;
        for (int64_t i = 0; i < a->qk_dim; i++) {
            score += q[i] * k[i];
        }
        bottom += exp(scale * score);
        top +=
            exp(scale * score) * head_at(a->v, t, a->v_stride, kv, a->v_head_stride, a->v_dim)[d];
    }
    *ret_lse = log(bottom);
    return top / bottom;
}

static double objective(void *context)
{
    struct attention_case *c = context;
    ops->attention_forward(device->stream, &c->a);
    return weighted_sum(c->r, c->output, c->outputs);
}

static void check_forward(struct attention_case *c)
{
    const int64_t heads = c->a.heads, dim = c->a.v_dim;
    objective(c);
    for (int64_t i = 0; i < c->outputs; i++) {
        double lse;
        const int64_t row = i / (heads * dim), h = i / dim % heads;
        assert_near(c->output[i], naive(&c->a, row, h, i % dim, &lse), 1e-11);
        assert_near(c->lse[row * heads + h], lse, 1e-11);
    }
}

// What lies between heads, which no gradient may touch, is told by its NaN.
static void check(struct layout layout, int64_t every)
{
    CASE c = make_case(layout);
    check_forward(&c);
    DP_AUTO_FREE double *dx = poisoned(c.rows * c.stride);
    DP_AUTO_FREE double *dsink = dp_new_array(double, (size_t)layout.heads);
    ops->attention_input_grad(device->stream, &c.a, c.r, dx, dx + ((const double *)c.a.k - c.x),
                              dx + ((const double *)c.a.v - c.x), layout.has_sink ? dsink : NULL);
    int64_t untouched = 0;
    for (int64_t i = 0; i < c.rows * c.stride; i++) {
        if (isnan(dx[i])) {
            dx[i] = 0; // by differences as well: nothing reads it
            untouched++;
        }
    }
    assert_int_equal(untouched, c.rows * (layout.heads + 2 * layout.kv_heads + 1) * layout.gap);
    assert_gradient("dx", c.x, dx, c.rows * c.stride, every, objective, &c);
    if (layout.has_sink) {
        assert_gradient("dsink", c.sink, dsink, layout.heads, 1, objective, &c);
    }
}

static void attention_matches_its_definition_and_differences(void **state)
{
    (void)state;
    check(plain(2, 5, 4, 2, 4, 4), 1);
    check(plain(1, 1, 2, 1, 4, 4), 1);
    check(plain(1, 64, 1, 1, 4, 4), 37);
    check(plain(2, 150, 2, 1, 4, 4), 211); // blocks of rows, the last one short
    check(plain(1, 530, 1, 1, 3, 2), 401); // and of keys
}

static void keys_may_be_wider_than_values_as_in_latent_attention(void **state)
{
    (void)state;
    check((struct layout){.samples = 2,
                          .sequence = 7,
                          .heads = 3,
                          .kv_heads = 3,
                          .qk_dim = 6,
                          .v_dim = 4,
                          .gap = 2,
                          .scale = 0.7},
          1);
    // Wider than any vector, and no multiple of one.
    check((struct layout){.samples = 1,
                          .sequence = 9,
                          .heads = 2,
                          .kv_heads = 1,
                          .qk_dim = 37,
                          .v_dim = 19,
                          .gap = 1},
          3);
}

static void a_window_hides_all_but_the_nearest_keys(void **state)
{
    (void)state;
    for (int64_t window = 1; window <= 8; window++) {
        check((struct layout){.samples = 2,
                              .sequence = 7,
                              .heads = 2,
                              .kv_heads = 1,
                              .qk_dim = 4,
                              .v_dim = 2,
                              .window = window},
              1);
    }
    // Across blocks of rows and keys, where a block's first keys are out of some rows' sight.
    const int64_t windows[] = {3, 63, 70, 256, 300};
    for (size_t i = 0; i < sizeof(windows) / sizeof(windows[0]); i++) {
        check((struct layout){.samples = 1,
                              .sequence = 530,
                              .heads = 1,
                              .kv_heads = 1,
                              .qk_dim = 3,
                              .v_dim = 2,
                              .window = windows[i]},
              523);
    }
}

static void a_sink_takes_its_share_and_has_a_gradient(void **state)
{
    (void)state;
    check((struct layout){.samples = 2,
                          .sequence = 6,
                          .heads = 4,
                          .kv_heads = 2,
                          .qk_dim = 4,
                          .v_dim = 4,
                          .has_sink = true},
          1);
    check((struct layout){.samples = 1,
                          .sequence = 300,
                          .heads = 1,
                          .kv_heads = 1,
                          .qk_dim = 2,
                          .v_dim = 2,
                          .has_sink = true,
                          .window = 20},
          307);
}

static void gradients_may_take_the_place_of_what_they_are_of(void **state)
{
    (void)state;
    CASE c = make_case(plain(2, 70, 4, 2, 4, 4));
    objective(&c);
    const int64_t count = c.rows * c.stride;
    DP_AUTO_FREE double *dx = poisoned(count);
    const int64_t k = (const double *)c.a.k - c.x, v = (const double *)c.a.v - c.x;
    ops->attention_input_grad(device->stream, &c.a, c.r, dx, dx + k, dx + v, NULL);
    ops->attention_input_grad(device->stream, &c.a, c.r, c.x, c.x + k, c.x + v, NULL);
    assert_memory_equal(c.x, dx, (size_t)count * sizeof(double));
}

static void scores_of_thousands_neither_overflow_nor_vanish(void **state)
{
    (void)state;
    const struct layout layout = {.samples = 1,
                                  .sequence = 300,
                                  .heads = 1,
                                  .kv_heads = 1,
                                  .qk_dim = 1,
                                  .v_dim = 1,
                                  .scale = 1};
    CASE c = make_case(layout);
    // Scores rise by 10 with every key: each query takes nearly all from the newest one.
    for (int64_t r = 0; r < c.rows; r++) {
        c.x[r * 3] = 1;
        c.x[r * 3 + 1] = (double)(10 * r);
        c.x[r * 3 + 2] = (double)r;
    }
    objective(&c);
    for (int64_t r = 0; r < c.rows; r++) {
        assert_near(c.output[r], (double)r, 1e-4);
        assert_near(c.lse[r], (double)(10 * r), 1e-4);
    }
}

static void what_is_not_a_number_stays_one(void **state)
{
    (void)state;
    CASE c = make_case(plain(1, 4, 1, 1, 2, 2));
    c.x[2 * c.stride + 2] = NAN; // a key: rows 2 and 3 see it
    objective(&c);
    for (int64_t r = 0; r < 4; r++) {
        assert_int_equal(isnan(c.output[2 * r]) != 0, r >= 2);
        assert_int_equal(isnan(c.lse[r]) != 0, r >= 2);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_matches_its_definition_and_differences),
        cmocka_unit_test(keys_may_be_wider_than_values_as_in_latent_attention),
        cmocka_unit_test(a_window_hides_all_but_the_nearest_keys),
        cmocka_unit_test(a_sink_takes_its_share_and_has_a_gradient),
        cmocka_unit_test(gradients_may_take_the_place_of_what_they_are_of),
        cmocka_unit_test(scores_of_thousands_neither_overflow_nor_vanish),
        cmocka_unit_test(what_is_not_a_number_stays_one),
    };
    return cmocka_run_group_tests(tests, f64_device_open, f64_device_close);
}
