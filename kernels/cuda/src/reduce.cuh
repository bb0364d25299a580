// Sums over the lanes of a warp and the threads of a block. The order of additions depends on the
// number of threads alone, so the bits are the same every time.
#pragma once

#include "gpu.cuh"

template <typename T> static __device__ __forceinline__ T warp_sum(T value)
{
    for (int lanes = DP_WARP / 2; lanes > 0; lanes /= 2) {
        value += __shfl_xor_sync(DP_ALL_LANES, value, lanes);
    }
    return value;
}

static __device__ __forceinline__ float warp_max(float value)
{
    for (int lanes = DP_WARP / 2; lanes > 0; lanes /= 2) {
        const float other = __shfl_xor_sync(DP_ALL_LANES, value, lanes);
        value = other > value ? other : value;
    }
    return value;
}

// The same sum for every thread of a block of whole warps. All of them call it; the block may go on
// to the next sum at once.
template <typename T> static __device__ __forceinline__ T block_sum(T value)
{
    DP_SHARED(T, partial, DP_WARP);
    const unsigned warp = threadIdx.x / DP_WARP, warps = blockDim.x / DP_WARP;
    value = warp_sum(value);
    if (warps == 1) {
        return value;
    }
    if (threadIdx.x % DP_WARP == 0) {
        partial[warp] = value;
    }
    __syncthreads();
    T sum = 0;
    for (unsigned w = 0; w < warps; w++) {
        sum += partial[w];
    }
    __syncthreads();
    return sum;
}

// The largest value, for every thread of the block.
static __device__ __forceinline__ float block_max(float value)
{
    DP_SHARED(float, partial, DP_WARP);
    const unsigned warp = threadIdx.x / DP_WARP, warps = blockDim.x / DP_WARP;
    value = warp_max(value);
    if (threadIdx.x % DP_WARP == 0) {
        partial[warp] = value;
    }
    __syncthreads();
    for (unsigned w = 0; w < warps; w++) {
        value = partial[w] > value ? partial[w] : value;
    }
    __syncthreads();
    return value;
}
