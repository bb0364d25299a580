// What stands between the caller's matrices and cuBLASLt: copies in float, and scales of fp8 where
// cuBLASLt looks for them. Layouts of scales are those of its documentation, "Narrow precision data
// types usage" (CUDA 13).
#include "element.cuh"
#include "operands.h"

// A matrix of `rows` rows of `cols` values, and a dense copy in float.
struct copy_args {
    int64_t rows, cols, ld;
    bf16 *matrix;
    float *dense;
    bool widens;
};

static __global__ void operand_copy(copy_args a)
{
    for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x) {
        for (int64_t c = threadIdx.x; c < a.cols; c += blockDim.x) {
            if (a.widens) {
                a.dense[r * a.cols + c] = load(a.matrix[r * a.ld + c]);
            } else {
                store(&a.matrix[r * a.ld + c], a.dense[r * a.cols + c]);
            }
        }
    }
}

static void copy_operand(struct dp_stream *stream, const struct dp_cuda_operand *operand,
                         int64_t ld, void *matrix, float *dense, bool widens)
{
    const copy_args a = {operand->cols, operand->rows, ld, (bf16 *)matrix, dense, widens};
    if (a.rows > 0 && a.cols > 0) {
        DP_LAUNCH(stream, operand_copy, dp_grid(a.rows, 1), dp_block(a.cols, 256), 0, a);
    }
}

extern "C" void dp_cuda_widen(struct dp_stream *stream, const struct dp_cuda_operand *operand,
                              int64_t ld, const void *matrix, float *dense)
{
    copy_operand(stream, operand, ld, (void *)(uintptr_t)matrix, dense, true);
}

extern "C" void dp_cuda_narrow(struct dp_stream *stream, const struct dp_cuda_operand *operand,
                               int64_t ld, const float *dense, void *matrix)
{
    copy_operand(stream, operand, ld, matrix, (float *)(uintptr_t)dense, false);
}

struct scales_args {
    int64_t rows, tile_rows, across; // rows of the matrix; scales in a row of tiles
    int64_t places;                  // of cuBLASLt's scales
    const float *scales;
    float *floats;
    uint8_t *exponents;
    unsigned long long *bad;
};

static __device__ __forceinline__ float scale_at(const scales_args &a, int64_t row, int64_t tile)
{
    return a.scales[row / a.tile_rows * a.across + tile];
}

static __device__ __forceinline__ int64_t first_place(void)
{
    return blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
}

// [k / 128, rows]: neighbouring rows side by side.
static __global__ void scales_vec128(scales_args a)
{
    for (int64_t i = first_place(); i < a.places; i += (int64_t)gridDim.x * blockDim.x) {
        a.floats[i] = scale_at(a, i % a.rows, i / a.rows);
    }
}

// [rows / 128, k / 128], with rows of a multiple of 4 scales.
static __global__ void scales_blk128(scales_args a)
{
    const int64_t padded = (a.across + 3) / 4 * 4;
    for (int64_t i = first_place(); i < a.places; i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t tile = i % padded;
        a.floats[i] = tile < a.across ? scale_at(a, i / padded * 128, tile) : 0;
    }
}

// Exponents for each 32 values along k: tiles of 128 rows x 4, in which row r stands in line r % 32
// of 16 bytes, at r / 32 * 4. What a float scale has besides its exponent would be lost.
static __global__ void scales_vec32(scales_args a)
{
    const int64_t tiles_across = a.across; // 4 blocks of 32 are one tile of 128
    for (int64_t i = first_place(); i < a.places; i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t tile = i / 512, line = i % 512 / 16, at = i % 16;
        const int64_t row = tile / tiles_across * 128 + at / 4 * 32 + line;
        uint32_t bits = 0;
        if (row < a.rows) {
            bits = float_bits(scale_at(a, row, tile % tiles_across));
            if ((bits & 0x807fffffu) != 0) {
                atomicAdd(a.bad, 1ull);
            }
        }
        a.exponents[i] = (uint8_t)(bits >> 23);
    }
}

extern "C" void dp_cuda_lay_scales(struct dp_stream *stream, const struct dp_cuda_operand *operand,
                                   const float *scales, void *to)
{
    const bool bytes = operand->scale == DP_CUDA_SCALE_VEC32;
    scales_args a = {};
    a.rows = operand->cols; // column-major: the stored rows
    a.tile_rows = operand->tile_rows;
    a.across = operand->scale_cols;
    a.places = (int64_t)(operand->scale_bytes / (bytes ? 1 : sizeof(float)));
    a.scales = scales;
    a.floats = (float *)to;
    a.exponents = (uint8_t *)to;
    a.bad = stream->bad_scales;
    if (a.places == 0) {
        return;
    }
    if (operand->scale == DP_CUDA_SCALE_VEC128) {
        DP_LAUNCH(stream, scales_vec128, dp_grid(a.places, 256), 256, 0, a);
    } else if (operand->scale == DP_CUDA_SCALE_BLK128) {
        DP_LAUNCH(stream, scales_blk128, dp_grid(a.places, 256), 256, 0, a);
    } else {
        DP_LAUNCH(stream, scales_vec32, dp_grid(a.places, 256), 256, 0, a);
    }
}
