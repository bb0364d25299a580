// SwiGLU, fp8, plain arithmetic and the loss against the cpu's.
#include "twin.h"

#define ELEMENT DP_OPERAND_ELEMENT
#define REAL DP_OPERAND_REAL

static const int64_t rows_of[] = {0, 1, 16, 17, 100}, width_of[] = {1, 16, 17, 100, 300};

static void gates_of_all_sizes_are_the_cpus(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 25; seed++) {
        struct twin t = twin_open(seed % 2 == 0 ? DP_F32 : DP_BF16, seed);
        struct dp_swiglu swiglu = {.rows = rows_of[seed / 5], .width = width_of[seed % 5]};
        const int64_t outputs = swiglu.rows * swiglu.width;
        const bool in_place = seed % 3 == 1, has_weight = seed % 4 != 3;
        const int x = twin_values(&t, ELEMENT, 2 * outputs, 2);
        const int weight = twin_values(&t, REAL, swiglu.rows, 1);
        const int dy = twin_values(&t, ELEMENT, outputs, 1);
        const int y = twin_values(&t, ELEMENT, outputs, 0),
                  again = twin_values(&t, ELEMENT, outputs, 0);
        const int dx = in_place ? x : twin_values(&t, ELEMENT, 2 * outputs, 0);
        const int dweight = twin_values(&t, REAL, swiglu.rows, 0);
        for (int schedule = 0; schedule < twin_schedules(); schedule++) {
            twin_schedule(&t, seed, schedule);
            for (int side = 0; side < 2; side++) {
                const struct dp_device_ops *ops = t.device[side]->ops;
                swiglu.gate_up = t.at[x][side];
                swiglu.weight = has_weight ? t.at[weight][side] : NULL;
                ops->swiglu_forward(t.device[side]->stream, &swiglu, t.at[y][side]);
                ops->swiglu_input_grad(t.device[side]->stream, &swiglu, t.at[dy][side],
                                       t.at[dx][side], has_weight ? t.at[dweight][side] : NULL,
                                       t.at[again][side]);
            }
            twin_sync(&t);
            twin_near(&t, y, 2e-6, 1e-6);
            twin_near(&t, again, 2e-6, 1e-6);
            twin_near(&t, dx, 4e-6, 2e-6);
            twin_near(&t, dweight, 4e-6, 2e-5);
        }
        twin_close(&t);
    }
}

static void codes_and_scales_are_the_cpus_bits(void **state)
{
    (void)state;
    static const int32_t tiles[][2] = {{1, 128}, {128, 128}, {128, 1}, {40, 40}, {1, 32}};
    for (uint64_t seed = 0; seed < 25; seed++) {
        struct twin t = twin_open(seed % 2 == 0 ? DP_F32 : DP_BF16, seed);
        const struct dp_fp8 fp8 = {.rows = seed == 24 ? 150 : rows_of[seed / 5],
                                   .cols = width_of[seed % 5],
                                   .tile_rows = tiles[seed % 5][0],
                                   .tile_cols = tiles[seed % 5][1],
                                   .power_of_two = seed % 3 == 0};
        const int64_t count = fp8.rows * fp8.cols;
        const int64_t scales = ((fp8.rows + fp8.tile_rows - 1) / fp8.tile_rows) *
                               ((fp8.cols + fp8.tile_cols - 1) / fp8.tile_cols);
        const dp_operand kind = seed % 4 == 0 ? REAL : ELEMENT;
        // Far apart in size, zeros among them.
        const int x = twin_values(&t, kind, count, seed % 2 == 0 ? 1e-3 : 300);
        const int codes = twin_bytes(&t, (size_t)count, NULL);
        const int scale = twin_values(&t, REAL, scales, 0);
        const int back = twin_values(&t, kind, count, 0);
        for (int schedule = 0; schedule < twin_schedules(); schedule++) {
            twin_schedule(&t, seed, schedule);
            for (int side = 0; side < 2; side++) {
                const struct dp_device_ops *ops = t.device[side]->ops;
                struct dp_stream *stream = t.device[side]->stream;
                ops->quantize_fp8(stream, &fp8, kind, t.at[x][side], t.at[codes][side],
                                  t.at[scale][side]);
                ops->dequantize_fp8(stream, &fp8, t.at[codes][side], t.at[scale][side], kind,
                                    t.at[back][side]);
            }
            twin_sync(&t);
            twin_same_bits(&t, scale);
            twin_same_bits(&t, codes);
            twin_same_bits(&t, back);
        }
        twin_close(&t);
    }
}

// All 256 codes decode and encode to themselves, and a value that is not finite is told.
static void values_that_are_not_finite_are_told(void **state)
{
    (void)state;
    static const int32_t tiles[][2] = {{1, 128}, {128, 128}, {128, 1}};
    for (int n = 0; n < 3; n++) {
        struct dp_error err;
        struct twin t = twin_open(DP_F32, 1);
        const struct dp_fp8 fp8 = {
            .rows = 20, .cols = 30, .tile_rows = tiles[n][0], .tile_cols = tiles[n][1]};
        float values[600];
        for (int i = 0; i < 600; i++) {
            values[i] = (float)(i - 300);
        }
        values[17] = INFINITY;
        values[555] = NAN;
        const int x = twin_bytes(&t, sizeof(values), values), codes = twin_bytes(&t, 600, NULL);
        const int scales = twin_bytes(&t, 600 * sizeof(float), NULL);
        for (int side = 0; side < 2; side++) {
            const struct dp_device_ops *ops = t.device[side]->ops;
            ops->quantize_fp8(t.device[side]->stream, &fp8, REAL, t.at[x][side], t.at[codes][side],
                              t.at[scales][side]);
            assert_refused(ops->stream_sync(t.device[side]->stream, &err), DP_INVALID, &err,
                           "2 of the values");
        }
        twin_same_bits(&t, codes);
        twin_same_bits(&t, scales);
        twin_close(&t);
    }
}

static void plain_arithmetic_is_the_cpus(void **state)
{
    (void)state;
    static const int64_t counts[] = {0, 1, 17, 3000};
    for (uint64_t seed = 0; seed < 8; seed++) {
        struct twin t = twin_open(seed % 2 == 0 ? DP_F32 : DP_BF16, seed);
        const int64_t count = counts[seed / 2];
        const int real = twin_values(&t, REAL, count, 1),
                  element = twin_values(&t, ELEMENT, count, 1);
        const int to = twin_values(&t, ELEMENT, count, 0), sum = twin_values(&t, REAL, count, 1);
        const int drawn = twin_values(&t, ELEMENT, count, 0);
        double *draws = dp_new_array(double, (size_t)count + 1), squares[2];
        for (int64_t i = 0; i < count; i++) {
            draws[i] = dp_rand_normal(&t.rand);
        }
        for (int schedule = 0; schedule < twin_schedules(); schedule++) {
            twin_schedule(&t, seed, schedule);
            for (int side = 0; side < 2; side++) {
                const struct dp_device_ops *ops = t.device[side]->ops;
                struct dp_stream *stream = t.device[side]->stream;
                ops->from_double(stream, count, draws, ELEMENT, t.at[drawn][side]);
                ops->convert(stream, count, REAL, t.at[real][side], ELEMENT, t.at[to][side]);
                ops->add(stream, count, ELEMENT, t.at[element][side], REAL, t.at[sum][side]);
                ops->add(stream, count, REAL, t.at[real][side], ELEMENT, t.at[element][side]);
                ops->scale(stream, count, 0.7, ELEMENT, t.at[to][side]);
                ops->sum_squares(stream, count, ELEMENT, t.at[to][side], &squares[side]);
            }
            twin_sync(&t);
            twin_same_bits(&t, drawn);
            twin_same_bits(&t, to);
            twin_same_bits(&t, sum);
            twin_same_bits(&t, element);
            assert_true(fabs(squares[CPU] - squares[GPU]) <= 1e-12 * squares[CPU]);
        }
        free(draws);
        twin_close(&t);
    }
}

static void adamw_is_the_cpus(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 4; seed++) {
        struct twin t = twin_open(DP_F32, seed);
        const bool is_bf16 = seed % 2 == 1;
        const int64_t count = 700;
        const struct dp_adamw config = {.lr = 1e-2,
                                        .beta1 = 0.9,
                                        .beta2 = 0.95,
                                        .eps = 1e-8,
                                        .weight_decay = 0.1,
                                        .step = 3,
                                        .grad_scale = 0.5,
                                        .bf16_moments = is_bf16};
        const int grad = twin_values(&t, REAL, count, 1), weight = twin_values(&t, REAL, count, 1);
        const int m = twin_bytes(&t, (size_t)count * 4, NULL);
        const int v = twin_bytes(&t, (size_t)count * 4, NULL);
        memset(t.first[m], 0, t.bytes[m]);
        memset(t.first[v], 0, t.bytes[v]);
        for (int schedule = 0; schedule < twin_schedules(); schedule++) {
            twin_schedule(&t, seed, schedule);
            for (int side = 0; side < 2; side++) {
                for (int step = 0; step < 2; step++) {
                    t.device[side]->ops->adamw(t.device[side]->stream, &config, count,
                                               t.at[grad][side], t.at[weight][side], t.at[m][side],
                                               t.at[v][side]);
                }
            }
            twin_sync(&t);
            twin_near(&t, weight, is_bf16 ? 1e-3 : 1e-6, is_bf16 ? 1e-3 : 1e-6);
        }
        twin_close(&t);
    }
}

static void losses_are_the_cpus(void **state)
{
    (void)state;
    static const int64_t vocabulary_of[] = {1, 31, 300};
    for (uint64_t seed = 0; seed < 6; seed++) {
        struct twin t = twin_open(DP_F32, seed);
        const int64_t tokens = seed == 5 ? 0 : 17, vocabulary = vocabulary_of[seed % 3];
        int32_t targets[17];
        for (int i = 0; i < 17; i++) {
            targets[i] = (int32_t)dp_rand_below(&t.rand, (uint64_t)vocabulary + 1) - 1;
        }
        const int target = twin_bytes(&t, sizeof(targets), targets);
        const int logits = twin_values(&t, REAL, tokens * vocabulary, 3);
        const int lse = twin_values(&t, REAL, tokens, 0);
        for (int schedule = 0; schedule < twin_schedules(); schedule++) {
            double sum[2] = {-1, -2};
            twin_schedule(&t, seed, schedule);
            for (int side = 0; side < 2; side++) {
                const struct dp_device_ops *ops = t.device[side]->ops;
                const struct dp_cross_entropy loss = {tokens, vocabulary, t.at[target][side],
                                                      t.at[lse][side]};
                ops->cross_entropy_forward(t.device[side]->stream, &loss, t.at[logits][side],
                                           &sum[side]);
                ops->cross_entropy_input_grad(t.device[side]->stream, &loss, 0.25,
                                              t.at[logits][side]);
            }
            twin_sync(&t);
            twin_near(&t, lse, 2e-6, 1e-6);
            twin_near(&t, logits, 4e-6, 1e-6);
            assert_true(fabs(sum[CPU] - sum[GPU]) <= 1e-6 * fabs(sum[CPU]) + 1e-6);
        }
        twin_close(&t);
    }
}

static void attention_is_refused_by_its_name(void **state)
{
    (void)state;
    struct dp_error err;
    struct dp_device *device = emulated_device_open(DP_BF16);
    device->ops->attention_forward(device->stream, &(struct dp_attention){.samples = 0});
    assert_refused(device->ops->stream_sync(device->stream, &err), DP_UNSUPPORTED, &err,
                   "attention on the cuda device is not built");
    emulated_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gates_of_all_sizes_are_the_cpus),
        cmocka_unit_test(codes_and_scales_are_the_cpus_bits),
        cmocka_unit_test(values_that_are_not_finite_are_told),
        cmocka_unit_test(plain_arithmetic_is_the_cpus),
        cmocka_unit_test(adamw_is_the_cpus),
        cmocka_unit_test(losses_are_the_cpus),
        cmocka_unit_test(attention_is_refused_by_its_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
