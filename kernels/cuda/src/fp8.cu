// Matrices as E4M3 codes with a scale for each tile, and back. A warp takes a small tile (1 x 128),
// a block a large one (128 x 128) or 32 tiles of one column (128 x 1).
#include <float.h>

#include "element.cuh"
#include "reduce.cuh"

#define FP8_MAX 448.0f
#define AMAX_MIN 1e-4f // keeps the scale of a tile of zeros from being zero
#define BAND_LANES 8   // rows that a block looks at at once

// To the nearest code, ties to even; saturates, infinities too; NaN stays NaN.
static __device__ __forceinline__ uint8_t encode(float value)
{
    const uint32_t bits = float_bits(value);
    const uint32_t sign = bits >> 24 & 0x80u, magnitude = bits & 0x7fffffffu;
    uint32_t code;
    if (magnitude > 0x7f800000u) {
        code = 0x7fu;
    } else if (magnitude > 0x43e00000u) { // above 448
        code = 0x7eu;
    } else if (magnitude < 0x3c800000u) { // below 2^-6: multiples of 2^-9
        code = (uint32_t)rintf(bits_float(magnitude) * 512.0f);
    } else {
        code = ((magnitude + 0x7ffffu + (magnitude >> 20 & 1u)) >> 20) - (120u << 3);
    }
    return (uint8_t)(code | sign);
}

static __device__ __forceinline__ float decode(uint8_t code)
{
    const uint32_t magnitude = code & 0x7fu;
    float value =
        magnitude < 8 ? (float)magnitude / 512.0f : bits_float((magnitude << 20) + (120u << 23));
    value = magnitude == 0x7fu ? bits_float(0x7fc00000u) : value;
    return (code & 0x80u) != 0 ? -value : value;
}

template <typename T> struct fp8_args {
    struct dp_fp8 fp8;
    int64_t across, tiles;
    const T *from;
    uint8_t *codes;
    float *scales;
    T *to;
    unsigned long long *bad;
};

static __device__ __forceinline__ float scale_of(bool power_of_two, float amax)
{
    float scale = (amax > AMAX_MIN ? amax : AMAX_MIN) / FP8_MAX;
    if (power_of_two) {
        scale = bits_float((float_bits(scale) + 0x7fffffu) & 0xff800000u);
    }
    return scale;
}

// The largest finite magnitude so far, and how many are not finite.
static __device__ __forceinline__ void look(float value, float *amax, unsigned *bad)
{
    const float a = fabsf(value);
    if (!(a <= FLT_MAX)) {
        ++*bad;
    } else {
        *amax = a > *amax ? a : *amax;
    }
}

static __device__ __forceinline__ void report(unsigned long long *to, unsigned bad)
{
    if (bad > 0) {
        atomicAdd(to, (unsigned long long)bad);
    }
}

// What a tile covers.
struct tile {
    int64_t row, col, cols, values;
};

template <typename T>
static __device__ __forceinline__ tile tile_at(const fp8_args<T> &a, int64_t number)
{
    tile t;
    t.row = number / a.across * a.fp8.tile_rows;
    t.col = number % a.across * a.fp8.tile_cols;
    t.cols = least((int64_t)a.fp8.tile_cols, a.fp8.cols - t.col);
    t.values = t.cols * least((int64_t)a.fp8.tile_rows, a.fp8.rows - t.row);
    return t;
}

// `threads` neighbours share a tile, as number `first` of them; amax is joined by `join`.
template <typename T, typename J>
static __device__ __forceinline__ void quantize_tile(const fp8_args<T> &a, int64_t number,
                                                     unsigned first, unsigned threads, J join)
{
    const tile t = tile_at(a, number);
    float amax = 0;
    unsigned bad = 0;
    for (int64_t i = first; i < t.values; i += threads) {
        look(load(a.from[(t.row + i / t.cols) * a.fp8.cols + t.col + i % t.cols]), &amax, &bad);
    }
    report(a.bad, bad);
    const float scale = scale_of(a.fp8.power_of_two, join(amax));
    if (first == 0) {
        a.scales[number] = scale;
    }
    for (int64_t i = first; i < t.values; i += threads) {
        const int64_t at = (t.row + i / t.cols) * a.fp8.cols + t.col + i % t.cols;
        a.codes[at] = encode(load(a.from[at]) / scale);
    }
}

struct join_warp {
    __device__ float operator()(float amax) const
    {
        return warp_max(amax);
    }
};

struct join_block {
    __device__ float operator()(float amax) const
    {
        return block_max(amax);
    }
};

template <typename T> static __global__ void quantize_small_tiles(fp8_args<T> a)
{
    const int64_t warps = blockDim.x / DP_WARP, warp = threadIdx.x / DP_WARP;
    for (int64_t t = blockIdx.x * warps + warp; t < a.tiles; t += gridDim.x * warps) {
        quantize_tile(a, t, threadIdx.x % DP_WARP, DP_WARP, join_warp());
    }
}

template <typename T> static __global__ void quantize_large_tiles(fp8_args<T> a)
{
    for (int64_t t = blockIdx.x; t < a.tiles; t += gridDim.x) {
        quantize_tile(a, t, threadIdx.x, blockDim.x, join_block());
    }
}

// Tiles of one column: 32 neighbours, read row by row.
template <typename T> static __global__ void quantize_columns(fp8_args<T> a)
{
    DP_SHARED(float, partial, BAND_LANES *DP_WARP);
    const int64_t bands = (a.fp8.rows + a.fp8.tile_rows - 1) / a.fp8.tile_rows;
    const int64_t strips = (a.fp8.cols + DP_WARP - 1) / DP_WARP;
    for (int64_t n = blockIdx.x; n < bands * strips; n += gridDim.x) {
        const int64_t band = n / strips, c = n % strips * DP_WARP + threadIdx.x;
        const int64_t begin = band * a.fp8.tile_rows;
        const int64_t end = c < a.fp8.cols ? least(begin + a.fp8.tile_rows, a.fp8.rows) : begin;
        float amax = 0;
        unsigned bad = 0;
        for (int64_t r = begin + threadIdx.y; r < end; r += BAND_LANES) {
            look(load(a.from[r * a.fp8.cols + c]), &amax, &bad);
        }
        report(a.bad, bad);
        partial[threadIdx.y * DP_WARP + threadIdx.x] = amax;
        __syncthreads();
        for (unsigned lane = 0; lane < BAND_LANES; lane++) {
            const float other = partial[lane * DP_WARP + threadIdx.x];
            amax = other > amax ? other : amax;
        }
        __syncthreads();
        const float scale = scale_of(a.fp8.power_of_two, amax);
        if (threadIdx.y == 0 && c < a.fp8.cols) {
            a.scales[band * a.across + c] = scale;
        }
        for (int64_t r = begin + threadIdx.y; r < end; r += BAND_LANES) {
            a.codes[r * a.fp8.cols + c] = encode(load(a.from[r * a.fp8.cols + c]) / scale);
        }
    }
}

template <typename T> static __global__ void dequantize_rows(fp8_args<T> a)
{
    for (int64_t r = blockIdx.x; r < a.fp8.rows; r += gridDim.x) {
        const float *scales = a.scales + r / a.fp8.tile_rows * a.across;
        for (int64_t c = threadIdx.x; c < a.fp8.cols; c += blockDim.x) {
            const int64_t at = r * a.fp8.cols + c;
            store(&a.to[at], decode(a.codes[at]) * scales[c / a.fp8.tile_cols]);
        }
    }
}

template <typename T>
static fp8_args<T> fp8_of(struct dp_stream *stream, const struct dp_fp8 *fp8, const uint8_t *codes,
                          const float *scales)
{
    fp8_args<T> a = {};
    a.fp8 = *fp8;
    a.across = (fp8->cols + fp8->tile_cols - 1) / fp8->tile_cols;
    a.tiles = a.across * ((fp8->rows + fp8->tile_rows - 1) / fp8->tile_rows);
    a.codes = (uint8_t *)codes;
    a.scales = (float *)scales;
    a.bad = stream->bad_values;
    return a;
}

template <typename T> static void launch_quantize(struct dp_stream *stream, const fp8_args<T> &a)
{
    const int64_t values = (int64_t)a.fp8.tile_rows * a.fp8.tile_cols;
    if (a.fp8.tile_cols == 1) {
        DP_LAUNCH(stream, quantize_columns<T>,
                  dp_grid((a.fp8.cols + DP_WARP - 1) / DP_WARP * (a.tiles / a.across), 1),
                  dim3(DP_WARP, BAND_LANES), 0, a);
    } else if (values <= 1024) {
        DP_LAUNCH(stream, quantize_small_tiles<T>, dp_grid(a.tiles, 4), 4 * DP_WARP, 0, a);
    } else {
        DP_LAUNCH(stream, quantize_large_tiles<T>, dp_grid(a.tiles, 1), 256, 0, a);
    }
}

static void quantize_fp8(struct dp_stream *stream, const struct dp_fp8 *fp8, dp_operand from_kind,
                         const void *from, uint8_t *codes, float *scales)
{
    if (fp8->rows == 0 || fp8->cols == 0) {
        return;
    }
    DP_BY_KIND(stream, from_kind, T, fp8_args<T> a = fp8_of<T>(stream, fp8, codes, scales);
               a.from = (const T *)from; launch_quantize(stream, a));
}

static void dequantize_fp8(struct dp_stream *stream, const struct dp_fp8 *fp8, const uint8_t *codes,
                           const float *scales, dp_operand to_kind, void *to)
{
    if (fp8->rows == 0 || fp8->cols == 0) {
        return;
    }
    DP_BY_KIND(stream, to_kind, T, fp8_args<T> a = fp8_of<T>(stream, fp8, codes, scales);
               a.to = (T *)to; DP_LAUNCH(stream, dequantize_rows<T>, dp_grid(fp8->rows, 1),
                                         dp_block(fp8->cols, 256), 0, a));
}

void dp_cuda_install_fp8(struct dp_device_ops *ops)
{
    ops->quantize_fp8 = quantize_fp8;
    ops->dequantize_fp8 = dequantize_fp8;
}
