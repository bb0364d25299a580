// E4M3 codes as numbers: one sign bit, four of exponent with bias 7, three of mantissa.
#pragma once

#include <stdint.h>
#include <string.h>

#define DP_FP8_MAX 448.0f

static inline float dp_fp8_decode(uint8_t code)
{
    const uint32_t magnitude = code & 0x7fu;
    const uint32_t bits = (magnitude << 20) + (120u << 23);
    float normal, value;
    memcpy(&normal, &bits, sizeof(normal));
    value = magnitude < 8 ? (float)magnitude * 0x1p-9f : normal;
    value = magnitude == 0x7f ? __builtin_nanf("") : value;
    return code & 0x80u ? -value : value;
}

// To the nearest, ties to even; saturates, infinities too; NaN stays NaN.
static inline uint8_t dp_fp8_encode(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    const uint32_t sign = bits >> 24 & 0x80u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    const uint32_t normal = ((magnitude + 0x7ffffu + (magnitude >> 20 & 1u)) >> 20) - (120u << 3);
    // Adding 1.5 * 2^14 rounds to a multiple of 2^-9, which then sits in the low mantissa bits.
    float small;
    memcpy(&small, &magnitude, sizeof(small));
    small += 24576.0f;
    uint32_t subnormal;
    memcpy(&subnormal, &small, sizeof(subnormal));
    uint32_t code = magnitude < 0x3c800000u ? subnormal & 0xfu : normal; // below 2^-6
    code = magnitude > 0x43e00000u ? 0x7eu : code;                       // above 448
    code = magnitude > 0x7f800000u ? 0x7fu : code;
    return (uint8_t)(code | sign);
}
