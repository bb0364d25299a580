// Every operation with a gradient against finite differences, in double; outputs that must be
// written afresh start as NaN.
#include "f64_device.h"
#include "gradient.h"

#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"

static double *poisoned(int64_t count)
{
    double *values = dp_new_array(double, (size_t)count);
    memset(values, 0xff, (size_t)count * sizeof(double));
    return values;
}

struct norm_case {
    struct dp_rmsnorm norm;
    const double *r;
    double *y;
};

static double norm_objective(void *context)
{
    struct norm_case *c = context;
    ops->rmsnorm_forward(device->stream, &c->norm, c->y);
    return weighted_sum(c->r, c->y, c->norm.rows * c->norm.cols);
}

static void rmsnorm_gradients_match_differences(void **state)
{
    (void)state;
    const int64_t rows = 3, cols = 7;
    DP_AUTO_FREE double *x = drawn(1, rows * cols, 1), *gain = drawn(2, cols, 1);
    DP_AUTO_FREE double *r = drawn(3, rows * cols, 1), *y = poisoned(rows * cols);
    DP_AUTO_FREE double *rstd = poisoned(rows), *again = poisoned(rows * cols);
    DP_AUTO_FREE double *dx = drawn(4, rows * cols, 1), *before = drawn(4, rows * cols, 1);
    DP_AUTO_FREE double *dgain = dp_new_array(double, (size_t)cols);
    struct norm_case c = {
        {.rows = rows, .cols = cols, .eps = 1e-2, .x = x, .gain = gain, .rstd = rstd}, r, y};
    norm_objective(&c);
    ops->rmsnorm_again(device->stream, &c.norm, again);
    assert_memory_equal(again, y, (size_t)(rows * cols) * sizeof(double));
    ops->rmsnorm_input_grad(device->stream, &c.norm, r, dx);
    ops->rmsnorm_weight_grad(device->stream, &c.norm, r, dgain);
    for (int64_t i = 0; i < rows * cols; i++) {
        dx[i] -= before[i]; // it accumulates
    }
    assert_gradient("dx", x, dx, rows * cols, 1, norm_objective, &c);
    assert_gradient("dgain", gain, dgain, cols, 1, norm_objective, &c);
}

static void rope_turns_by_position_and_back(void **state)
{
    (void)state;
    // One head of four values beside one value that stays; positions 0 and 1.
    const double c = cos(1.0), s = sin(1.0);
    const double table[] = {1, 1, 0, 0, c, 1, s, 0};
    double x[] = {1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2, 3, 4, 5};
    struct dp_rope rope = {
        .rows = 3, .sequence = 2, .heads = 1, .width = 4, .stride = 5, .table = table};
    ops->rope(device->stream, &rope, x);
    const double turned[] = {c - 3 * s, 2, 3 * c + s, 4, 5};
    for (int i = 0; i < 5; i++) {
        assert_near(x[i], i + 1, 0);
        assert_near(x[5 + i], turned[i], 1e-15);
        assert_near(x[10 + i], i + 1, 0);
    }
    rope.inverse = true;
    ops->rope(device->stream, &rope, x);
    for (int i = 0; i < 15; i++) {
        assert_near(x[i], i % 5 + 1, 1e-15);
    }
}

struct swiglu_case {
    struct dp_swiglu s;
    const double *r;
    double *y;
};

static double swiglu_objective(void *context)
{
    struct swiglu_case *c = context;
    ops->swiglu_forward(device->stream, &c->s, c->y);
    return weighted_sum(c->r, c->y, c->s.rows * c->s.width);
}

static void swiglu_gradients_match_differences(void **state)
{
    (void)state;
    const int64_t rows = 3, width = 5, n = rows * width;
    for (int weighted = 0; weighted < 2; weighted++) {
        DP_AUTO_FREE double *gate_up = drawn(7, 2 * n, 1), *weight = drawn(8, rows, 1);
        DP_AUTO_FREE double *r = drawn(9, n, 1), *y = poisoned(n), *again = poisoned(n);
        DP_AUTO_FREE double *dweight = poisoned(rows), *d = drawn(7, 2 * n, 1);
        struct swiglu_case c = {{rows, width, gate_up, weighted ? weight : NULL}, r, y};
        swiglu_objective(&c);
        // In place over the saved gate and up.
        struct dp_swiglu in_place = {rows, width, d, c.s.weight};
        ops->swiglu_input_grad(device->stream, &in_place, r, d, weighted ? dweight : NULL, again);
        for (int64_t i = 0; i < n; i++) {
            assert_near(again[i], y[i], 1e-15);
        }
        assert_gradient("dgate_up", gate_up, d, 2 * n, 1, swiglu_objective, &c);
        if (weighted) {
            assert_gradient("dweight", weight, dweight, rows, 1, swiglu_objective, &c);
        }
    }
}

static void slots_are_sorted_by_expert_and_keep_their_order(void **state)
{
    (void)state;
    const int32_t index[] = {2, 0, 2, 3, 0, 2};
    const int32_t counts_expected[] = {2, 0, 3, 1}, rows_expected[] = {2, 0, 3, 5, 1, 4};
    int32_t counts[4] = {9, 9, 9, 9}, row_of[6];
    ops->sort_slots(device->stream, 6, 4, index, counts, row_of);
    assert_memory_equal(counts, counts_expected, sizeof(counts));
    assert_memory_equal(row_of, rows_expected, sizeof(row_of));
}

static void rows_move_to_their_places_and_back(void **state)
{
    (void)state;
    const double from[] = {1, 2, 3, 4}; // two rows of two
    const int32_t index[] = {3, 0, 1, 2};
    double to[8], sum[] = {10, 20, 30, 40};
    const struct dp_rows four = {.rows = 4, .cols = 2}, two = {.rows = 2, .cols = 2};
    ops->spread_rows(device->stream, &four, 2, index, from, to);
    const double spread[] = {1, 2, 3, 4, 3, 4, 1, 2};
    assert_memory_equal(to, spread, sizeof(spread));
    ops->collect_rows(device->stream, &two, 2, true, index, to, sum);
    const double added[] = {12, 24, 36, 48};
    assert_memory_equal(sum, added, sizeof(added));
    ops->collect_rows(device->stream, &two, 2, false, index, to, sum);
    const double fresh[] = {2, 4, 6, 8};
    assert_memory_equal(sum, fresh, sizeof(fresh));
    const int32_t twice[] = {1, 1};
    ops->add_rows(device->stream, &two, twice, from, sum);
    const double repeated[] = {2, 4, 10, 14};
    assert_memory_equal(sum, repeated, sizeof(repeated));
}

static void heads_are_copied_and_summed_inside_wider_rows(void **state)
{
    (void)state;
    const double from[] = {1, 2, 9, 3, 4, 9}; // two rows with one vector of two each
    double to[] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    const struct dp_heads spread = {2, 2, 2, 3, 0, 5, 2};
    ops->copy_heads(device->stream, &spread, from, to);
    const double copied[] = {1, 2, 1, 2, 0, 3, 4, 3, 4, 0};
    assert_memory_equal(to, copied, sizeof(copied));
    const struct dp_heads back = {2, 2, 2, 5, 2, 3, 0};
    double sum[] = {7, 7, 7, 7, 7, 7};
    to[2] = 10;
    ops->sum_heads(device->stream, &back, to, sum);
    const double summed[] = {11, 4, 7, 6, 8, 7};
    assert_memory_equal(sum, summed, sizeof(summed));
}

struct loss_case {
    struct dp_cross_entropy loss;
    const double *logits;
    double scale;
};

static double loss_objective(void *context)
{
    struct loss_case *c = context;
    double sum = NAN;
    ops->cross_entropy_forward(device->stream, &c->loss, c->logits, &sum);
    return c->scale * sum;
}

static void cross_entropy_gradient_matches_differences(void **state)
{
    (void)state;
    const int64_t n = 3 * 6;
    DP_AUTO_FREE double *logits = drawn(12, n, 2), *d = drawn(12, n, 2), *lse = poisoned(3);
    const int32_t targets[] = {5, 0, 2};
    struct loss_case c = {{3, 6, targets, lse}, logits, 0.3};
    double expected = 0;
    for (int t = 0; t < 3; t++) {
        double total = 0;
        for (int i = 0; i < 6; i++) {
            total += exp(logits[t * 6 + i]);
        }
        expected += 0.3 * (log(total) - logits[t * 6 + targets[t]]);
    }
    assert_near(loss_objective(&c), expected, 1e-13);
    ops->cross_entropy_input_grad(device->stream, &c.loss, 0.3, d);
    assert_gradient("dlogits", logits, d, n, 1, loss_objective, &c);
}

static void naive_gemm(const struct dp_gemm *g, double *c)
{
    const double *a = g->a, *b = g->b;
    for (int64_t i = 0; i < g->m; i++) {
        for (int64_t j = 0; j < g->n; j++) {
            double sum = g->accumulate ? c[i * g->ldc + j] : 0;
            for (int64_t l = 0; l < g->k; l++) {
                sum += (g->transpose_a ? a[l * g->lda + i] : a[i * g->lda + l]) *
                       (g->transpose_b ? b[j * g->ldb + l] : b[l * g->ldb + j]);
            }
            c[i * g->ldc + j] = sum;
        }
    }
}

static void gemm_has_every_transpose_and_size_zero(void **state)
{
    (void)state;
    const int64_t sizes[][3] = {{3, 4, 5}, {1, 9, 2}, {0, 4, 5}, {3, 0, 5}, {3, 4, 0}, {7, 6, 8}};
    DP_AUTO_FREE double *a = drawn(13, 100, 1), *b = drawn(14, 100, 1);
    for (int i = 0; i < (int)DP_ARRAY_LENGTH(sizes) * 8; i++) {
        struct dp_gemm g = {.transpose_a = i & 1,
                            .transpose_b = i & 2,
                            .accumulate = i & 4,
                            .m = sizes[i / 8][0],
                            .n = sizes[i / 8][1],
                            .k = sizes[i / 8][2],
                            .lda = 9,
                            .ldb = 10,
                            .ldc = 11,
                            .a = a,
                            .b = b};
        DP_AUTO_FREE double *c = drawn(15, 100, 1), *expected = drawn(15, 100, 1);
        for (int64_t j = 0; !g.accumulate && j < g.m * g.n; j++) {
            c[j / g.n * g.ldc + j % g.n] = NAN;
        }
        g.c = c;
        ops->gemm(device->stream, &g);
        naive_gemm(&g, expected);
        for (int64_t j = 0; j < 100; j++) {
            assert_near(c[j], expected[j], 1e-12);
        }
    }
}

// Two steps by hand with beta1 1/2 and beta2 3/4.
static void adamw_takes_the_steps_of_the_paper(void **state)
{
    (void)state;
    double w = 2, m = 0, v = 0;
    double g = 8;
    struct dp_adamw adamw = {.lr = 0.1,
                             .beta1 = 0.5,
                             .beta2 = 0.75,
                             .eps = 1,
                             .weight_decay = 0.5,
                             .step = 1,
                             .grad_scale = 0.5};
    ops->adamw(device->stream, &adamw, 1, &g, &w, &m, &v);
    assert_near(m, 2, 1e-15);
    assert_near(v, 4, 1e-15);
    const double first = 2 * 0.95 - 0.1 * 4 / (4 + 1);
    assert_near(w, first, 1e-15);
    g = -4;
    adamw.step = 2;
    ops->adamw(device->stream, &adamw, 1, &g, &w, &m, &v);
    assert_near(m, 0, 1e-15);
    assert_near(v, 4, 1e-15);
    assert_near(w, first * 0.95, 1e-15);
}

static void sum_of_squares_tells_what_is_not_finite(void **state)
{
    (void)state;
    double x[] = {3, 4, 0, 0, 0, 0, 0, 0, 0};
    double sum = NAN;
    ops->sum_squares(device->stream, 9, DP_OPERAND_REAL, x, &sum);
    assert_near(sum, 25, 0);
    x[7] = INFINITY;
    ops->sum_squares(device->stream, 9, DP_OPERAND_REAL, x, &sum);
    assert_false(isfinite(sum));
    x[7] = NAN;
    ops->sum_squares(device->stream, 9, DP_OPERAND_REAL, x, &sum);
    assert_false(isfinite(sum));
    ops->sum_squares(device->stream, 0, DP_OPERAND_REAL, x, &sum);
    assert_near(sum, 0, 0);
    const int64_t many = 20001;
    DP_AUTO_FREE double *numbers = dp_new_array(double, (size_t)many);
    for (int64_t i = 0; i < many; i++) {
        numbers[i] = (double)(i + 1);
    }
    ops->sum_squares(device->stream, many, DP_OPERAND_REAL, numbers, &sum);
    const double n = (double)many;
    assert_near(sum, n * (n + 1) * (2 * n + 1) / 6, 0);
}

static void plain_arithmetic_is_plain(void **state)
{
    (void)state;
    double x[] = {1, 2, 3}, y[] = {10, 20, 30};
    ops->add(device->stream, 3, DP_OPERAND_ELEMENT, x, DP_OPERAND_REAL, y);
    ops->scale(device->stream, 3, 0.5, DP_OPERAND_ELEMENT, y);
    const double expected[] = {5.5, 11, 16.5};
    assert_memory_equal(y, expected, sizeof(expected));
    ops->from_double(device->stream, 3, x, DP_OPERAND_REAL, y);
    assert_memory_equal(y, x, sizeof(x));
    ops->fill(device->stream, y, 0xff, sizeof(y));
    assert_true(isnan(y[0]) && isnan(y[2]));
    struct dp_event *event;
    struct dp_error err;
    assert_ok(ops->event_record(device->stream, &event, &err), &err);
    ops->event_wait(device->stream, event);
    ops->event_close(event);
    assert_ok(ops->stream_sync(device->stream, &err), &err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rmsnorm_gradients_match_differences),
        cmocka_unit_test(rope_turns_by_position_and_back),
        cmocka_unit_test(swiglu_gradients_match_differences),
        cmocka_unit_test(slots_are_sorted_by_expert_and_keep_their_order),
        cmocka_unit_test(rows_move_to_their_places_and_back),
        cmocka_unit_test(heads_are_copied_and_summed_inside_wider_rows),
        cmocka_unit_test(cross_entropy_gradient_matches_differences),
        cmocka_unit_test(gemm_has_every_transpose_and_size_zero),
        cmocka_unit_test(adamw_takes_the_steps_of_the_paper),
        cmocka_unit_test(sum_of_squares_tells_what_is_not_finite),
        cmocka_unit_test(plain_arithmetic_is_plain),
    };
    return cmocka_run_group_tests(tests, f64_device_open, f64_device_close);
}
