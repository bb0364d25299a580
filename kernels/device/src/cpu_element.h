// bfloat16: the upper half of a float (8 bits of exponent, 7 of mantissa).
#pragma once

#include <stdint.h>
#include <string.h>

// A struct, so that no arithmetic compiles on it.
typedef struct dp_bf16 {
    uint16_t bits;
} dp_bf16;

static inline float dp_bf16_load(dp_bf16 x)
{
    const uint32_t bits = (uint32_t)x.bits << 16;
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

// To nearest, ties to even; what is past the largest becomes infinity, and NaN stays NaN.
static inline dp_bf16 dp_bf16_store(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    const uint32_t rounded = bits + 0x7fffu + (bits >> 16 & 1u);
    const uint32_t nan = bits | 0x400000u;
    return (dp_bf16){(uint16_t)(((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded) >> 16)};
}
