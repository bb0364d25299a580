// Matrix products by their shape, and work that memory bounds.
//
// A product is cut into output tiles that `units` multiprocessors take in waves; a tile's time is
// its multiply-adds and a start and end that do not depend on k. The best of a few tile shapes
// counts, and never less than its operands take to come from memory. Every step of that grows with
// m, n and k and shrinks with peak and bandwidth.

#include <math.h>

#include "price_internal.h"

// Tile shapes of common libraries (CUTLASS, DeepGEMM) and what smaller ones lose to loads.
static const struct {
    double m, n, share;
} tiles[] = {{256, 128, 1}, {128, 256, 1}, {128, 128, 0.97}, {64, 128, 0.85}, {64, 64, 0.7}};

double dp_device_flops_peak(const struct dp_device_figures *device, dp_format format)
{
    switch (format) {
    case DP_FORMAT_FP32:
        return device->fp32_flops_peak;
    case DP_FORMAT_FP8:
    case DP_FORMAT_FP8_BLOCK:
    case DP_FORMAT_MXFP8:
        return device->fp8_flops_peak;
    case DP_FORMAT_NVFP4:
        return device->fp4_flops_peak;
    default:
        return device->bf16_flops_peak;
    }
}

static double gemm_share(const struct dp_device_figures *device, dp_format format)
{
    switch (format) {
    case DP_FORMAT_FP8:
        return device->fp8_gemm_share;
    case DP_FORMAT_FP8_BLOCK:
        return device->fp8_block_gemm_share;
    case DP_FORMAT_MXFP8:
        return device->mxfp8_gemm_share;
    case DP_FORMAT_NVFP4:
        return device->nvfp4_gemm_share;
    default:
        return device->bf16_gemm_share;
    }
}

// Scales: one fp32 for 128 elements, one byte for 32, one byte for 16.
double dp_format_bytes(dp_format format)
{
    switch (format) {
    case DP_FORMAT_FP32:
        return 4;
    case DP_FORMAT_FP8:
        return 1;
    case DP_FORMAT_FP8_BLOCK:
    case DP_FORMAT_MXFP8:
        return 1 + 1.0 / 32;
    case DP_FORMAT_NVFP4:
        return 0.5 + 1.0 / 16;
    default:
        return 2;
    }
}

static double waves_of(double units, double groups, double m, double n, double tile_m,
                       double tile_n)
{
    double count = groups * ceil(m / tile_m) * ceil(n / tile_n);
    return units >= 1 ? ceil(count / units) * units : count;
}

double dp_pricing_gemm_s(const struct dp_pricing *pricing, dp_format format, double groups,
                         double m, double n, double k, double share, double output_bytes)
{
    if (groups <= 0 || m <= 0 || n <= 0 || k <= 0) {
        return 0;
    }
    const struct dp_device_figures *device = pricing->device;
    double peak = dp_device_flops_peak(device, format);
    double rate = share * gemm_share(device, format) * peak;
    double depth = k + device->gemm_ramp_k * peak / device->bf16_flops_peak;
    double best = INFINITY;
    for (size_t i = 0; i < sizeof(tiles) / sizeof(tiles[0]); i++) {
        double work =
            waves_of(device->units, groups, m, n, tiles[i].m, tiles[i].n) * tiles[i].m * tiles[i].n;
        best = fmin(best, work / tiles[i].share);
    }
    double element = dp_format_bytes(format);
    double bytes = groups * (element * (m * k + k * n) + output_bytes * m * n);
    return fmax(2 * best * depth / rate, bytes / pricing->memory_bytes_per_s) + device->kernel_s;
}

double dp_pricing_memory_s(const struct dp_pricing *pricing, double bytes)
{
    return bytes > 0 ? bytes / pricing->memory_bytes_per_s + pricing->device->kernel_s : 0;
}
