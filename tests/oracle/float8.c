// Products of E4M3 operands, for an implementation outside to do the same: float8 DIRECTORY writes
// for each of the three products of a linear layer (forward, its input's and its weight's gradient)
//   N.json                m, n, k, the transpositions and the tiles of a and b
//   N.a, N.b              operands, float, as they are stored
//   N.a.codes, N.a.scales, N.b.codes, N.b.scales, N.c
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/buf.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/device.h"
#include "dp/rand.h"

// Not whole tiles, so that those at the edges are cut.
#define ROWS 200
#define IN 333
#define OUT 150

struct operand {
    int64_t rows, cols;
    int32_t tile_rows, tile_cols;
};

static const struct product {
    bool transpose_a, transpose_b;
    int64_t m, n, k;
    struct operand a, b;
} products[] = {
    {false, true, ROWS, OUT, IN, {ROWS, IN, 1, 128}, {OUT, IN, 128, 128}},
    {false, false, ROWS, IN, OUT, {ROWS, OUT, 1, 128}, {OUT, IN, 128, 128}},
    {true, false, OUT, IN, ROWS, {ROWS, OUT, 128, 1}, {ROWS, IN, 128, 1}},
};

struct made {
    float *values, *scales;
    uint8_t *codes;
    size_t count, scale_count;
};

static void made_deinit(struct made *made)
{
    free(made->values);
    free(made->scales);
    free(made->codes);
}

static dp_status write_part(const char *directory, size_t number, const char *name,
                            const void *bytes, size_t length, struct dp_error *err)
{
    DP_AUTO_FREE char *path = dp_asprintf("%s/%zu.%s", directory, number, name);
    return dp_write_file(path, bytes, length, err);
}

// Values of every size: columns that differ by powers of two, zeros, and some that stand out.
static void make(const struct dp_device *device, const struct operand *operand,
                 struct dp_rand *rand, struct made *ret_made)
{
    const int64_t tiles = ((operand->rows + operand->tile_rows - 1) / operand->tile_rows) *
                          ((operand->cols + operand->tile_cols - 1) / operand->tile_cols);
    struct made made = {.count = (size_t)(operand->rows * operand->cols),
                        .scale_count = (size_t)tiles};
    made.values = dp_new_array(float, made.count);
    made.codes = dp_new_array(uint8_t, made.count);
    made.scales = dp_new_array(float, made.scale_count);
    for (size_t i = 0; i < made.count; i++) {
        const double size = dp_rand_below(rand, 50) == 0   ? 0
                            : dp_rand_below(rand, 97) == 0 ? 90
                                                           : 1;
        made.values[i] = (float)(size * dp_rand_normal(rand));
    }
    const struct dp_fp8 fp8 = {.rows = operand->rows,
                               .cols = operand->cols,
                               .tile_rows = operand->tile_rows,
                               .tile_cols = operand->tile_cols};
    device->ops->quantize_fp8(device->stream, &fp8, DP_OPERAND_REAL, made.values, made.codes,
                              made.scales);
    *ret_made = made;
}

static dp_status write_operand(const char *directory, size_t number, const char *name,
                               const struct made *made, struct dp_error *err)
{
    DP_AUTO_FREE char *codes = dp_asprintf("%s.codes", name);
    DP_AUTO_FREE char *scales = dp_asprintf("%s.scales", name);
    dp_status status =
        write_part(directory, number, name, made->values, made->count * sizeof(float), err);
    if (status == DP_OK) {
        status = write_part(directory, number, codes, made->codes, made->count, err);
    }
    return status == DP_OK ? write_part(directory, number, scales, made->scales,
                                        made->scale_count * sizeof(float), err)
                           : status;
}

static dp_status describe(const char *directory, size_t number, const struct product *p,
                          struct dp_error *err)
{
    DP_AUTO_FREE char *text = dp_asprintf(
        "{\"m\":%lld,\"n\":%lld,\"k\":%lld,\"transpose_a\":%d,\"transpose_b\":%d,"
        "\"a\":[%lld,%lld,%d,%d],\"b\":[%lld,%lld,%d,%d]}\n",
        (long long)p->m, (long long)p->n, (long long)p->k, p->transpose_a, p->transpose_b,
        (long long)p->a.rows, (long long)p->a.cols, p->a.tile_rows, p->a.tile_cols,
        (long long)p->b.rows, (long long)p->b.cols, p->b.tile_rows, p->b.tile_cols);
    return write_part(directory, number, "json", text, strlen(text), err);
}

static dp_status run(const struct dp_device *device, const char *directory, size_t number,
                     struct dp_error *err)
{
    const struct product *p = &products[number];
    struct dp_rand rand;
    dp_rand_init(&rand, 31 + number);
    DP_CLEANUP(made_deinit) struct made a = {0};
    DP_CLEANUP(made_deinit) struct made b = {0};
    make(device, &p->a, &rand, &a);
    make(device, &p->b, &rand, &b);
    DP_AUTO_FREE float *c = dp_new_array(float, (size_t)(p->m * p->n));
    const struct dp_gemm gemm = {.transpose_a = p->transpose_a,
                                 .transpose_b = p->transpose_b,
                                 .m = p->m,
                                 .n = p->n,
                                 .k = p->k,
                                 .a = a.codes,
                                 .lda = p->a.cols,
                                 .b = b.codes,
                                 .ldb = p->b.cols,
                                 .c = c,
                                 .ldc = p->n,
                                 .a_kind = DP_OPERAND_FP8,
                                 .b_kind = DP_OPERAND_FP8,
                                 .c_kind = DP_OPERAND_REAL,
                                 .a_scales = {a.scales, p->a.tile_rows, p->a.tile_cols},
                                 .b_scales = {b.scales, p->b.tile_rows, p->b.tile_cols}};
    device->ops->gemm(device->stream, &gemm);
    dp_status status = device->ops->stream_sync(device->stream, err);
    status = status == DP_OK ? describe(directory, number, p, err) : status;
    status = status == DP_OK ? write_operand(directory, number, "a", &a, err) : status;
    status = status == DP_OK ? write_operand(directory, number, "b", &b, err) : status;
    return status == DP_OK
               ? write_part(directory, number, "c", c, (size_t)(p->m * p->n) * sizeof(float), err)
               : status;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: float8 DIRECTORY\n");
        return 2;
    }
    struct dp_error err;
    struct dp_device *device = NULL;
    dp_status status = dp_device_open_cpu(DP_BF16, &device, &err);
    for (size_t i = 0; i < DP_ARRAY_LENGTH(products) && status == DP_OK; i++) {
        status = run(device, argv[1], i, &err);
    }
    dp_device_close(device);
    if (status != DP_OK) {
        fprintf(stderr, "float8: %s\n", err.message);
    }
    return status == DP_OK ? 0 : 1;
}
