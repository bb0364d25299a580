// The types of the variant being compiled, and the functions that depend on them: real, in which it
// computes, and element, in which it keeps activations.
#pragma once

#include <math.h>
#include <string.h>

#include "cpu.h"
#include "cpu_element.h"

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

#ifdef DP_CPU_BF16

typedef dp_bf16 element;

static inline real element_load(element x)
{
    return dp_bf16_load(x);
}

static inline element element_store(real x)
{
    return dp_bf16_store(x);
}

#else

typedef real element;

static inline real element_load(element x)
{
    return x;
}

static inline element element_store(real x)
{
    return x;
}

#endif

// Whether values of this kind are stored as reals.
static inline bool kind_is_real(dp_operand kind)
{
    return kind == DP_OPERAND_REAL || sizeof(element) == sizeof(real);
}

static inline size_t kind_bytes(dp_operand kind)
{
    return kind == DP_OPERAND_REAL ? sizeof(real) : sizeof(element);
}

static inline void load_elements(int64_t count, const element *restrict from, real *restrict to)
{
    for (int64_t i = 0; i < count; i++) {
        to[i] = element_load(from[i]);
    }
}

static inline void store_elements(int64_t count, const real *restrict from, element *restrict to)
{
    for (int64_t i = 0; i < count; i++) {
        to[i] = element_store(from[i]);
    }
}

// Values go through blocks of reals on the stack where their kind is another type.
#define BLOCK 512

static inline int64_t block_count(int64_t at, int64_t count)
{
    return count - at < BLOCK ? count - at : BLOCK;
}

// Values [at, at + count) as reals: where they are, or in `block`.
static inline const real *block_load(dp_operand kind, const void *from, int64_t at, int64_t count,
                                     real *block)
{
    if (kind_is_real(kind)) {
        return (const real *)from + at;
    }
    load_elements(count, (const element *)from + at, block);
    return block;
}

// Where reals for values [at, at + count) are to be written before block_store: there, or `block`.
static inline real *block_target(dp_operand kind, void *to, int64_t at, real *block)
{
    return kind_is_real(kind) ? (real *)to + at : block;
}

static inline void block_store(dp_operand kind, void *to, int64_t at, int64_t count,
                               const real *block)
{
    if (!kind_is_real(kind)) {
        store_elements(count, block, (element *)to + at);
    }
}

// Rows [first, first + rows) of a matrix of codes with leading dimension `ld`, as dense reals.
#define fp8_decode_rows DP_CPU_PASTE(dp_cpu_fp8_decode_rows_, DP_CPU_VARIANT)
void fp8_decode_rows(const struct dp_fp8 *fp8, int64_t first, int64_t rows, const uint8_t *codes,
                     int64_t ld, const float *scales, real *to);

// A gemm of reals, c = a op b, whatever the kinds say; no scratch memory.
void DP_CPU_PASTE(dp_cpu_gemm_, DP_CPU_VARIANT)(struct dp_stream *stream,
                                                const struct dp_gemm *gemm);
#define real_gemm DP_CPU_PASTE(dp_cpu_gemm_, DP_CPU_VARIANT)
