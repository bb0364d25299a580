// The element type of the variant being compiled, and the functions that depend on it.
#pragma once

#include <math.h>
#include <string.h>

#include "cpu.h"

#define DP_CPU_PASTE2(a, b) a##b
#define DP_CPU_PASTE(a, b) DP_CPU_PASTE2(a, b)
// The name of this variant's installer for one group of operations.
#define DP_CPU_INSTALLER(group) DP_CPU_PASTE(dp_cpu_install_##group##_, DP_CPU_VARIANT)

#ifdef DP_CPU_DOUBLE

typedef double real;

static inline real real_exp(real x)
{
    return exp(x);
}

static inline real real_sqrt(real x)
{
    return sqrt(x);
}

#else

typedef float real;

// e^x to about 1e-7 relative on [-87.3, 88.3], clamped outside, NaN kept; without branches or calls
// so that loops over it vectorise. x = n ln 2 + r with |r| <= ln 2 / 2, e^r by its Taylor series to
// the seventh power. Adding 1.5 * 2^23 rounds to an integer that sits in the low mantissa bits.
static inline real real_exp(real x)
{
    const float round = 12582912.0f;
    x = x < -87.3f ? -87.3f : x;
    x = x > 88.3f ? 88.3f : x;
    float shifted = x * 1.44269504f + round;
    float n = shifted - round;
    float r = x - n * 0.693145752f;
    r -= n * 1.42860677e-6f;
    float p = 1.0f / 5040.0f;
    p = p * r + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    uint32_t bits;
    memcpy(&bits, &shifted, sizeof(bits));
    bits = (bits - 0x4b400000u + 127u) << 23;
    float power;
    memcpy(&power, &bits, sizeof(power));
    return p * power;
}

static inline real real_sqrt(real x)
{
    return sqrtf(x);
}

#endif

// A gemm with the leading dimensions given, c = a op b.
void DP_CPU_PASTE(dp_cpu_gemm_, DP_CPU_VARIANT)(struct dp_stream *stream,
                                                const struct dp_gemm *gemm);
#define real_gemm DP_CPU_PASTE(dp_cpu_gemm_, DP_CPU_VARIANT)
