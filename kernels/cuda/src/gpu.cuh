// The rules that let one source be a CUDA kernel and a test's fibres (tests/cuda/emulate): kernels
// take one struct of arguments by value, are launched by DP_LAUNCH, declare shared memory by
// DP_SHARED or DP_SHARED_DYNAMIC, and use no PTX outside of order.cuh.
#pragma once

#include <stdint.h>

#include "cuda_device.h"

#ifdef __CUDACC__

#include <cuda_runtime.h>

#define DP_SHARED(type, name, count) __shared__ type name[count]
#define DP_SHARED_DYNAMIC(type, name)                                                              \
    extern __shared__ __align__(16) unsigned char dp_shared_dynamic[];                             \
    type *name = (type *)dp_shared_dynamic
#define DP_LAUNCH(stream, kernel, grid, block, shared_bytes, arguments)                            \
    do {                                                                                           \
        dp_cuda_use((stream)->device);                                                             \
        kernel<<<grid, block, shared_bytes, (cudaStream_t)(stream)->handle>>>(arguments);          \
        dp_cuda_launched(stream, #kernel);                                                         \
    } while (0)

#else

#include <math.h>

#include "emulate.h"

#define DP_SHARED(type, name, count)                                                               \
    static const char name##_key = 0;                                                              \
    type *name = (type *)emulate_shared(&name##_key, sizeof(type) * (count))
#define DP_SHARED_DYNAMIC(type, name) type *name = (type *)emulate_shared_dynamic()
#define DP_LAUNCH(stream, kernel, grid, block, shared_bytes, arguments)                            \
    do {                                                                                           \
        emulate_call((struct emulate_stream *)(stream)->handle, #kernel, kernel, grid, block,      \
                     shared_bytes, arguments);                                                     \
        dp_cuda_launched(stream, #kernel);                                                         \
    } while (0)

#endif

#define DP_WARP 32u
#define DP_ALL_LANES 0xffffffffu

// The most blocks of a launch; the emulator's build has few, so that kernels do go on in strides.
#ifndef DP_GRID_MAX
#define DP_GRID_MAX 65535
#endif

// Blocks for `items` at `each` a block. Kernels go on in strides of the grid, so no count is too
// large for it; 0 items are no launch (a grid without blocks is an error).
static inline unsigned dp_grid(int64_t items, int64_t each)
{
    const int64_t blocks = (items + each - 1) / each;
    return (unsigned)(blocks < DP_GRID_MAX ? blocks : DP_GRID_MAX);
}

// Threads of a block for `items`: whole warps.
static inline unsigned dp_block(int64_t items, unsigned most)
{
    const int64_t threads = (items + DP_WARP - 1) / DP_WARP * DP_WARP;
    return threads < DP_WARP ? DP_WARP : threads > most ? most : (unsigned)threads;
}

// A statement in which E is the device's element.
#define DP_BY_ELEMENT(stream, ...)                                                                 \
    do {                                                                                           \
        if ((stream)->device->element == DP_BF16) {                                                \
            typedef bf16 E;                                                                        \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            typedef float E;                                                                       \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)

// A statement in which T is the type of a tensor's values, and one for two tensors, F and T.
#define DP_BY_KIND(stream, kind, T, ...)                                                           \
    do {                                                                                           \
        if ((stream)->device->element == DP_BF16 && (kind) == DP_OPERAND_ELEMENT) {                \
            typedef bf16 T;                                                                        \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            typedef float T;                                                                       \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)
#define DP_BY_KINDS(stream, from_kind, to_kind, ...)                                               \
    DP_BY_KIND(stream, from_kind, F, DP_BY_KIND(stream, to_kind, T, __VA_ARGS__))
