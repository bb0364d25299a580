// Elements in device memory: float, and bf16 as the upper half of a float. Arithmetic is done in
// float; what is stored is rounded once, to nearest with ties to even.
#pragma once

#include "gpu.cuh"

struct bf16 {
    uint16_t bits;
};

static __device__ __forceinline__ uint32_t float_bits(float value)
{
#ifdef __CUDACC__
    return __float_as_uint(value);
#else
    uint32_t bits;
    __builtin_memcpy(&bits, &value, sizeof(bits));
    return bits;
#endif
}

static __device__ __forceinline__ float bits_float(uint32_t bits)
{
#ifdef __CUDACC__
    return __uint_as_float(bits);
#else
    float value;
    __builtin_memcpy(&value, &bits, sizeof(value));
    return value;
#endif
}

static __device__ __forceinline__ float load(float value)
{
    return value;
}

static __device__ __forceinline__ float load(bf16 value)
{
    return bits_float((uint32_t)value.bits << 16);
}

static __device__ __forceinline__ void store(float *to, float value)
{
    *to = value;
}

static __device__ __forceinline__ void store(bf16 *to, float value)
{
    const uint32_t bits = float_bits(value);
    const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    const uint32_t rounded = bits + 0x7fffu + (bits >> 16 & 1u);
    to->bits = (uint16_t)((is_nan ? bits | 0x400000u : rounded) >> 16);
}

// Several elements that are moved at once.
template <typename E, int N> struct alignas(sizeof(E) * N) pack {
    E values[N];
};

// Whether rows of `cols` elements from here can be moved by 16 bytes.
static inline bool dp_is_aligned(const void *memory, int64_t cols, size_t element_bytes)
{
    return (uintptr_t)memory % 16 == 0 && (size_t)cols * element_bytes % 16 == 0;
}

template <typename T> static __host__ __device__ __forceinline__ T least(T a, T b)
{
    return a < b ? a : b;
}
