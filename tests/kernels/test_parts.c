// Norms and rotations of parts of rows, losses with targets left out, and indices past 2^31
// elements.
#include "f64_device.h"
#include "gradient.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"

// Rows of 11: one value that stays, two heads of 4 that are normed by themselves, two that stay.
enum { ROWS = 3, WIDTH = 11, HEADS = 2, DIM = 4, AT = 1 };

static bool is_normed(int64_t i)
{
    return i % WIDTH >= AT && i % WIDTH < AT + HEADS * DIM;
}

struct parts_case {
    struct dp_rmsnorm norm;
    const double *x, *r;
    double *y;
};

// What stands beside the heads counts as it is.
static double parts_objective(void *context)
{
    struct parts_case *c = context;
    memcpy(c->y, c->x, ROWS * WIDTH * sizeof(double));
    ops->rmsnorm_forward(device->stream, &c->norm, c->y + AT);
    return weighted_sum(c->r, c->y, ROWS * WIDTH);
}

static void check_heads(const struct parts_case *c, const double *gain)
{
    for (int64_t i = 0; i < ROWS * WIDTH; i++) {
        double expected = c->x[i];
        if (is_normed(i)) {
            const int64_t first = i - (i % WIDTH - AT) % DIM;
            double sum = 0;
            for (int64_t j = first; j < first + DIM; j++) {
                sum += c->x[j] * c->x[j];
            }
            expected *= gain[i - first] / sqrt(sum / DIM + c->norm.eps);
        }
        assert_near(c->y[i], expected, 1e-14);
    }
}

static void heads_inside_of_rows_are_normed_each_by_itself(void **state)
{
    (void)state;
    const int64_t count = ROWS * WIDTH;
    DP_AUTO_FREE double *x = drawn(1, count, 1), *gain = drawn(2, DIM, 1), *r = drawn(3, count, 1);
    DP_AUTO_FREE double *y = drawn(4, count, 1), *dx = drawn(3, count, 1);
    double rstd[ROWS * HEADS], dgain[DIM] = {0};
    struct parts_case c = {{.rows = ROWS,
                            .cols = DIM,
                            .eps = 1e-2,
                            .x = x + AT,
                            .gain = gain,
                            .rstd = rstd,
                            .groups = HEADS,
                            .x_stride = WIDTH,
                            .y_stride = WIDTH,
                            .replace = true},
                           x,
                           r,
                           y};
    parts_objective(&c);
    check_heads(&c, gain);
    ops->rmsnorm_weight_grad(device->stream, &c.norm, r + AT, dgain);
    assert_gradient("dgain", gain, dgain, DIM, 1, parts_objective, &c);
    // The gradient takes the place of what it is computed from.
    ops->rmsnorm_input_grad(device->stream, &c.norm, dx + AT, dx + AT);
    assert_gradient("dx", x, dx, count, 1, parts_objective, &c);
    // And the norm that of its input.
    memcpy(y, x, (size_t)count * sizeof(double));
    struct dp_rmsnorm in_place = c.norm;
    in_place.x = y + AT;
    ops->rmsnorm_forward(device->stream, &in_place, y + AT);
    check_heads(&c, gain);
}

static void a_norm_between_rows_of_different_strides_accumulates_in_those_of_its_input(void **state)
{
    (void)state;
    DP_AUTO_FREE double *x = drawn(1, 2 * 5, 1), *dy = drawn(2, 2 * 3, 1);
    double dense_x[6], rstd[2], y[6], dense_y[6], dx[10] = {0}, dense_dx[6] = {0};
    const double gain[] = {1, 2, 3};
    for (int i = 0; i < 6; i++) {
        dense_x[i] = x[i / 3 * 5 + i % 3];
    }
    struct dp_rmsnorm n = {
        .rows = 2, .cols = 3, .eps = 1e-3, .x = x, .gain = gain, .rstd = rstd, .x_stride = 5};
    ops->rmsnorm_forward(device->stream, &n, y);
    ops->rmsnorm_input_grad(device->stream, &n, dy, dx);
    ops->rmsnorm_input_grad(device->stream, &n, dy, dx);
    n.x = dense_x;
    n.x_stride = 0;
    ops->rmsnorm_forward(device->stream, &n, dense_y);
    ops->rmsnorm_input_grad(device->stream, &n, dy, dense_dx);
    assert_memory_equal(y, dense_y, sizeof(y));
    for (int i = 0; i < 10; i++) {
        assert_near(dx[i], i % 5 < 3 ? 2 * dense_dx[i / 5 * 3 + i % 5] : 0, 1e-15);
    }
}

// As complex numbers, (x + iy) e^(i angle), in both layouts, beside elements that stay.
static void neighbours_turn_as_halves_do_and_leave_the_rest(void **state)
{
    (void)state;
    const double a = 0.3, b = -1.2;
    const double table[] = {1, 1, 0, 0, cos(a), cos(b), sin(a), sin(b)};
    double halves[2 * 14], neighbours[2 * 14];
    for (int i = 0; i < 28; i++) {
        halves[i] = neighbours[i] = i;
    }
    // Two heads, 7 elements from one to the next, of which 4 turn.
    struct dp_rope rope = {.rows = 2,
                           .sequence = 2,
                           .heads = 2,
                           .width = 4,
                           .stride = 14,
                           .head_stride = 7,
                           .table = table};
    ops->rope(device->stream, &rope, halves);
    rope.interleaved = true;
    ops->rope(device->stream, &rope, neighbours);
    for (int h = 0; h < 2; h++) {
        const double *x = halves + 14 + 7 * h, *y = neighbours + 14 + 7 * h;
        const double v = 14 + 7 * h; // of the head's first element
        assert_near(x[0], v * cos(a) - (v + 2) * sin(a), 1e-14);
        assert_near(x[2], v * sin(a) + (v + 2) * cos(a), 1e-14);
        assert_near(x[1], (v + 1) * cos(b) - (v + 3) * sin(b), 1e-14);
        assert_near(y[0], v * cos(a) - (v + 1) * sin(a), 1e-14);
        assert_near(y[1], v * sin(a) + (v + 1) * cos(a), 1e-14);
        assert_near(y[3], (v + 2) * sin(b) + (v + 3) * cos(b), 1e-14);
        for (int i = 4; i < 7; i++) {
            assert_near(x[i], v + i, 0);
            assert_near(y[i], v + i, 0);
        }
    }
    rope.inverse = true;
    ops->rope(device->stream, &rope, neighbours);
    for (int i = 0; i < 28; i++) {
        assert_near(neighbours[i], i, 1e-14);
    }
}

static void targets_below_zero_are_left_out_of_the_loss(void **state)
{
    (void)state;
    double x[] = {1, 2, 3, NAN, NAN, NAN, 3, 2, 1}, y[] = {1, 2, 3, 3, 2, 1};
    const int32_t targets[] = {0, -1, 2}, kept[] = {0, 2};
    double lse[3], lse_kept[2], sum = NAN, sum_kept = NAN;
    const struct dp_cross_entropy loss = {3, 3, targets, lse}, without = {2, 3, kept, lse_kept};
    ops->cross_entropy_forward(device->stream, &loss, x, &sum);
    ops->cross_entropy_forward(device->stream, &without, y, &sum_kept);
    assert_near(sum, sum_kept, 0);
    ops->cross_entropy_input_grad(device->stream, &loss, 0.5, x);
    ops->cross_entropy_input_grad(device->stream, &without, 0.5, y);
    for (int i = 0; i < 3; i++) {
        assert_near(x[i], y[i], 0);
        assert_near(x[3 + i], 0, 0);
        assert_near(x[6 + i], y[3 + i], 0);
    }
}

// One megabyte of floats again and again, with a row of its own at the end; NULL = not possible.
static float *map_repeated(int64_t rows, size_t row_bytes)
{
    const int file = memfd_create("row", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, (off_t)row_bytes) != 0) {
        return NULL;
    }
    char *base = mmap(NULL, (size_t)rows * row_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    for (int64_t r = 0; base != MAP_FAILED && r < rows - 1; r++) {
        if (mmap(base + (size_t)r * row_bytes, row_bytes, PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED) {
            munmap(base, (size_t)rows * row_bytes);
            base = MAP_FAILED;
        }
    }
    close(file);
    return base == MAP_FAILED ? NULL : (float *)(void *)base;
}

// llm.c issues 212 and 263: batch x sequence x vocabulary does not fit an int.
static void logits_past_2_31_elements_are_reached(void **state)
{
    (void)state;
    const int64_t vocabulary = 1 << 20, tokens = 2050;
    const size_t row_bytes = (size_t)vocabulary * sizeof(float);
    assert_true(tokens * vocabulary > INT32_MAX);
    float *logits = map_repeated(tokens, row_bytes);
    if (logits == NULL) {
        skip(); // no address space for 8.6 GB
    }
    struct dp_device *floats;
    assert_int_equal(dp_device_open_cpu(DP_F32, &floats, NULL), DP_OK);
    DP_AUTO_FREE int32_t *targets = dp_new_array(int32_t, (size_t)tokens);
    DP_AUTO_FREE float *lse = dp_new_array(float, (size_t)tokens);
    memset(targets, 0xff, (size_t)(tokens - 1) * sizeof(int32_t));
    targets[tokens - 1] = 5;
    float *last = logits + (tokens - 1) * vocabulary;
    for (int64_t i = 0; i < vocabulary; i++) {
        last[i] = 0;
    }
    const struct dp_cross_entropy loss = {tokens, vocabulary, targets, lse};
    double sum = NAN;
    floats->ops->cross_entropy_forward(floats->stream, &loss, logits, &sum);
    assert_near(sum, log((double)vocabulary), 1e-5);
    floats->ops->cross_entropy_input_grad(floats->stream, &loss, 1, logits);
    assert_near((double)last[5], -1, 1e-5);
    assert_near((double)last[6], 1 / (double)vocabulary, 1e-10);
    assert_near((double)logits[0], 0, 0);
    munmap(logits, (size_t)tokens * row_bytes);
    dp_device_close(floats);
}

// Two rows of a sequence whose distance alone is past 2^31 elements; only their pages exist.
static void rows_further_apart_than_2_31_elements_are_reached(void **state)
{
    (void)state;
    const int64_t stride = (int64_t)INT32_MAX + 1000;
    const size_t bytes = (size_t)(stride + 64) * sizeof(double);
    double *x = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (x == MAP_FAILED) {
        skip(); // no address space for 17 GB
    }
    for (int i = 0; i < 6; i++) {
        x[i] = 1;
        x[stride + i] = i + 1;
    }
    double out[4], lse[2], rstd[2], y[4];
    const double gain[] = {1, 1}, table[] = {1, 0, 0, 1};
    const struct dp_attention a = {.samples = 1,
                                   .sequence = 2,
                                   .heads = 1,
                                   .kv_heads = 1,
                                   .qk_dim = 2,
                                   .v_dim = 2,
                                   .scale = 1000,
                                   .q = x,
                                   .k = x + 2,
                                   .v = x + 4,
                                   .q_stride = stride,
                                   .k_stride = stride,
                                   .v_stride = stride,
                                   .output = out,
                                   .lse = lse};
    ops->attention_forward(device->stream, &a);
    assert_near(out[2], 5, 1e-12); // the second key is all that its query sees
    assert_near(out[3], 6, 1e-12);
    const struct dp_rmsnorm norm = {.rows = 2,
                                    .cols = 2,
                                    .x = x,
                                    .gain = gain,
                                    .rstd = rstd,
                                    .x_stride = stride,
                                    .y_stride = 2};
    ops->rmsnorm_forward(device->stream, &norm, y);
    assert_near(y[3], 2 / sqrt(2.5), 1e-12);
    const struct dp_rope rope = {
        .rows = 2, .sequence = 2, .heads = 1, .width = 2, .stride = stride, .table = table};
    ops->rope(device->stream, &rope, x);
    assert_near(x[stride], -2, 1e-12);
    assert_near(x[stride + 1], 1, 1e-12);
    munmap(x, bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heads_inside_of_rows_are_normed_each_by_itself),
        cmocka_unit_test(
            a_norm_between_rows_of_different_strides_accumulates_in_those_of_its_input),
        cmocka_unit_test(neighbours_turn_as_halves_do_and_leave_the_rest),
        cmocka_unit_test(targets_below_zero_are_left_out_of_the_loss),
        cmocka_unit_test(logits_past_2_31_elements_are_reached),
        cmocka_unit_test(rows_further_apart_than_2_31_elements_are_reached),
    };
    return cmocka_run_group_tests(tests, f64_device_open, f64_device_close);
}
