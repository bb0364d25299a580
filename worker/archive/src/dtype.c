// Types of values and their way to floats and back.
#include <math.h>
#include <string.h>

#include "dp/check.h"
#include "dp/safetensors.h"

static const struct {
    const char *name;
    size_t bytes;
} dtypes[] = {
#define X(name, bytes) {#name, bytes},
    DP_DTYPE_LIST(X)
#undef X
};

const char *dp_dtype_name(dp_dtype dtype)
{
    return dtypes[dtype].name;
}

size_t dp_dtype_bytes(dp_dtype dtype)
{
    return dtypes[dtype].bytes;
}

static float float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t bits_of_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

// A sign, `exponent_bits` and `mantissa_bits`, of a value that is finite.
static double small_float(uint32_t bits, int exponent_bits, int mantissa_bits)
{
    uint32_t mantissa = bits & ((1u << mantissa_bits) - 1);
    int exponent = (int)(bits >> mantissa_bits & ((1u << exponent_bits) - 1));
    int bias = (1 << (exponent_bits - 1)) - 1;
    double value = exponent == 0
                       ? ldexp(mantissa, 1 - bias - mantissa_bits)
                       : ldexp(mantissa + (1u << mantissa_bits), exponent - bias - mantissa_bits);
    return bits >> (exponent_bits + mantissa_bits) != 0 ? -value : value;
}

static double half(uint16_t bits)
{
    if ((bits & 0x7c00) == 0x7c00) {
        double value = (bits & 0x3ff) != 0 ? (double)NAN : (double)INFINITY;
        return (bits & 0x8000) != 0 ? -value : value;
    }
    return small_float(bits, 5, 10);
}

// OCP 8-bit floating point, 1.0: E4M3 has no infinities.
static double e4m3(uint8_t bits)
{
    return (bits & 0x7f) == 0x7f ? (double)NAN : small_float(bits, 4, 3);
}

static double e5m2(uint8_t bits)
{
    return half((uint16_t)(bits << 8));
}

static bool value_at(dp_dtype dtype, const void *values, int64_t index, double *ret_value)
{
    switch (dtype) {
    case DP_DTYPE_F64:
        *ret_value = ((const double *)values)[index];
        return true;
    case DP_DTYPE_F32:
        *ret_value = (double)((const float *)values)[index];
        return true;
    case DP_DTYPE_F16:
        *ret_value = half(((const uint16_t *)values)[index]);
        return true;
    case DP_DTYPE_BF16:
        *ret_value = (double)float_of_bits((uint32_t)((const uint16_t *)values)[index] << 16);
        return true;
    case DP_DTYPE_F8_E4M3:
        *ret_value = e4m3(((const uint8_t *)values)[index]);
        return true;
    case DP_DTYPE_F8_E5M2:
        *ret_value = e5m2(((const uint8_t *)values)[index]);
        return true;
    default:
        return false;
    }
}

bool dp_dtype_widen(dp_dtype from, const void *values, int64_t count, dp_dtype to, void *ret_wide)
{
    DP_CHECK(to == DP_DTYPE_F32 || to == DP_DTYPE_F64);
    if (from == to) {
        memcpy(ret_wide, values, (size_t)count * dp_dtype_bytes(to));
        return true;
    }
    for (int64_t i = 0; i < count; i++) {
        double value;
        if (!value_at(from, values, i, &value)) {
            return false;
        }
        if (to == DP_DTYPE_F64) {
            ((double *)ret_wide)[i] = value;
        } else {
            ((float *)ret_wide)[i] = (float)value;
        }
    }
    return true;
}

static uint16_t to_bf16(float value)
{
    uint32_t bits = bits_of_float(value);
    if (isnan(value)) {
        return (uint16_t)(bits >> 16 | 0x40);
    }
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

bool dp_dtype_narrow(dp_dtype from, const void *values, int64_t count, dp_dtype to, void *ret)
{
    if ((from != DP_DTYPE_F32 && from != DP_DTYPE_F64) ||
        (to != DP_DTYPE_F32 && to != DP_DTYPE_BF16)) {
        return false;
    }
    for (int64_t i = 0; i < count; i++) {
        double value = 0;
        (void)value_at(from, values, i, &value);
        if (to == DP_DTYPE_F32) {
            ((float *)ret)[i] = (float)value;
        } else {
            ((uint16_t *)ret)[i] = to_bf16((float)value);
        }
    }
    return true;
}
