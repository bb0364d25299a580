// RMSNorm's kernels against the cpu's.
#include "twin.h"

static const int64_t rows_of[] = {0, 1, 16, 17, 100}, cols_of[] = {1, 16, 17, 100, 300};

struct norm_case {
    dp_element element;
    struct dp_rmsnorm norm;
    int x, gain, rstd, dy, y, again, dx, dgain;
};

static void run(struct twin *t, struct norm_case *c, int side)
{
    const struct dp_device_ops *ops = t->device[side]->ops;
    struct dp_stream *stream = t->device[side]->stream;
    struct dp_rmsnorm norm = c->norm;
    norm.x = t->at[c->x][side];
    norm.gain = t->at[c->gain][side];
    norm.rstd = t->at[c->rstd][side];
    ops->rmsnorm_forward(stream, &norm, t->at[c->y][side]);
    ops->rmsnorm_again(stream, &norm, t->at[c->again][side]);
    ops->rmsnorm_input_grad(stream, &norm, t->at[c->dy][side], t->at[c->dx][side]);
    ops->rmsnorm_weight_grad(stream, &norm, t->at[c->dy][side], t->at[c->dgain][side]);
}

static void compare(struct norm_case *c, uint64_t seed)
{
    struct twin t = twin_open(c->element, seed);
    struct dp_rmsnorm *n = &c->norm;
    const int64_t groups = n->groups > 0 ? n->groups : 1, width = groups * n->cols;
    const int64_t xs = n->x_stride > 0 ? n->x_stride : width;
    const int64_t ys = n->y_stride > 0 ? n->y_stride : width;
    c->x = twin_values(&t, DP_OPERAND_ELEMENT, n->rows * xs, 2);
    c->gain = twin_values(&t, DP_OPERAND_REAL, n->cols, 1);
    c->rstd = twin_values(&t, DP_OPERAND_REAL, n->rows * groups, 0);
    c->dy = twin_values(&t, DP_OPERAND_ELEMENT, n->rows * ys, 1);
    c->y = twin_values(&t, DP_OPERAND_ELEMENT, n->rows * ys, 0);
    c->again = twin_values(&t, DP_OPERAND_ELEMENT, n->rows * ys, 0);
    c->dx = twin_values(&t, DP_OPERAND_ELEMENT, n->rows * xs, n->replace ? 0 : 1);
    c->dgain = twin_values(&t, DP_OPERAND_REAL, n->cols, 1);
    for (int schedule = 0; schedule < twin_schedules(); schedule++) {
        twin_schedule(&t, seed, schedule);
        run(&t, c, CPU);
        run(&t, c, GPU);
        twin_sync(&t);
        twin_near(&t, c->rstd, 1e-6, 0);
        twin_near(&t, c->y, 2e-6, 1e-6);
        assert_memory_equal(t.at[c->y][GPU], t.at[c->again][GPU], t.bytes[c->y]);
        twin_near(&t, c->dx, 2e-6, 1e-5);
        twin_near(&t, c->dgain, 2e-6, 1e-5);
    }
    twin_close(&t);
}

static void norms_of_all_sizes_are_the_cpus(void **state)
{
    (void)state;
    uint64_t seed = 1;
    for (size_t r = 0; r < sizeof(rows_of) / sizeof(rows_of[0]); r++) {
        for (size_t k = 0; k < sizeof(cols_of) / sizeof(cols_of[0]); k++, seed++) {
            struct norm_case c = {
                .element = seed % 2 == 0 ? DP_F32 : DP_BF16,
                .norm = {
                    .rows = rows_of[r], .cols = cols_of[k], .eps = 1e-6, .replace = seed % 3 == 0}};
            compare(&c, seed);
        }
    }
}

static void norms_of_heads_inside_wider_rows_are_the_cpus(void **state)
{
    (void)state;
    for (uint64_t seed = 100; seed < 104; seed++) {
        struct norm_case c = {.element = seed % 2 == 0 ? DP_F32 : DP_BF16,
                              .norm = {.rows = 17,
                                       .cols = 24,
                                       .eps = 1e-5,
                                       .groups = 3,
                                       .x_stride = 100,
                                       .y_stride = seed % 3 == 0 ? 80 : 0}};
        compare(&c, seed);
    }
}

static void rotations_are_the_cpus(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed < 9; seed++) {
        struct twin t = twin_open(seed % 2 == 0 ? DP_F32 : DP_BF16, seed);
        struct dp_rope rope = {.rows = 21,
                               .sequence = 7,
                               .heads = 3,
                               .width = 10,
                               .stride = 50,
                               .head_stride = seed % 3 == 0 ? 16 : 0,
                               .interleaved = seed % 4 < 2,
                               .inverse = seed % 5 == 0};
        const int table = twin_values(&t, DP_OPERAND_REAL, 7 * 10, 1);
        const int x = twin_values(&t, DP_OPERAND_ELEMENT, 21 * 50, 1);
        for (int schedule = 0; schedule < twin_schedules(); schedule++) {
            twin_schedule(&t, seed, schedule);
            for (int side = 0; side < 2; side++) {
                rope.table = t.at[table][side];
                t.device[side]->ops->rope(t.device[side]->stream, &rope, t.at[x][side]);
            }
            twin_sync(&t);
            twin_near(&t, x, 2e-6, 1e-6);
        }
        twin_close(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms_of_all_sizes_are_the_cpus),
        cmocka_unit_test(norms_of_heads_inside_wider_rows_are_the_cpus),
        cmocka_unit_test(rotations_are_the_cpus),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
