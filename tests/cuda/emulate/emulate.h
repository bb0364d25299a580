// CUDA kernels without a GPU: the same .cu files, compiled as C++. Every thread of a launch is a
// fibre of one thread of the host. Kernels are compiled with -fsanitize=thread, whose hooks this
// emulator defines (ThreadSanitizer itself is not linked): so each of their loads and stores is
// checked against the memory that was given out, is a place where another fibre may go on, and can
// be held back. A seed decides the order; the same seed gives it again.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

extern "C" {

struct emulate_stream;

struct emulate_options {
    uint64_t seed;           // 0 = in order, a fibre runs until it waits
    bool weak_stores;        // plain stores reach others late and in any order, at the latest with
                             // the next release, fence or barrier of their thread
    unsigned blocks_at_once; // of each launch; 0 = the seed says
};

// For the launches from now on.
void emulate_configure(struct emulate_options options);

// Device memory with gaps between pieces. Content is 0xff: NaN. It is the arena's, of which much
// may be reserved: untouched pages cost nothing. NULL when the arena is full.
void *emulate_alloc(size_t bytes);
void emulate_free(void *memory);

// Launches of one stream run in order, those of several at once; both only in emulate_run. Without
// a stream a launch has ended when the call returns.
struct emulate_stream *emulate_stream_open(void);
void emulate_stream_close(struct emulate_stream *stream);
void emulate_run(void);

// What went wrong since the last call: a bad launch, an access outside of the memory that a thread
// may touch, a wrong barrier, a deadlock. NULL = nothing.
const char *emulate_error(void);
uint64_t emulate_switches(void); // since the start of the program

} // extern "C"

// What CUDA's compiler knows by itself.
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};

#define threadIdx (emulate_thread_index())
#define blockIdx (emulate_block_index())
#define blockDim (emulate_block_dim())
#define gridDim (emulate_grid_dim())
dim3 emulate_thread_index(void);
dim3 emulate_block_index(void);
dim3 emulate_block_dim(void);
dim3 emulate_grid_dim(void);

// Barriers 0 to 15 of a block; a count of 0 is all of its threads that have not ended.
void emulate_barrier(unsigned id, unsigned count, bool waits);
#define __syncthreads() emulate_barrier(0, 0, true)

enum emulate_collective {
    EMULATE_SYNC,
    EMULATE_SHUFFLE,
    EMULATE_BALLOT,
    EMULATE_ANY,
    EMULATE_ALL,
    EMULATE_ADD,
    EMULATE_MIN,
    EMULATE_MAX,
};
// Meets the other lanes of the mask. value: what this lane brings; source: of which lane it wants
// the value.
uint64_t emulate_warp(enum emulate_collective what, unsigned mask, uint64_t value, unsigned source);

unsigned emulate_lane(void);

template <typename T> T emulate_shuffle(unsigned mask, T value, unsigned source)
{
    static_assert(sizeof(T) <= 8, "a lane's value has at most 8 bytes");
    uint64_t bits = 0;
    __builtin_memcpy(&bits, &value, sizeof(T));
    bits = emulate_warp(EMULATE_SHUFFLE, mask, bits, source);
    __builtin_memcpy(&value, &bits, sizeof(T));
    return value;
}

template <typename T> T __shfl_sync(unsigned mask, T value, int source)
{
    return emulate_shuffle(mask, value, (unsigned)source & 31u);
}

template <typename T> T __shfl_xor_sync(unsigned mask, T value, int lanes)
{
    return emulate_shuffle(mask, value, emulate_lane() ^ (unsigned)lanes);
}

// A lane without one so far below keeps its own value.
template <typename T> T __shfl_up_sync(unsigned mask, T value, unsigned delta)
{
    const unsigned lane = emulate_lane();
    return emulate_shuffle(mask, value, lane < delta ? lane : lane - delta);
}

inline void __syncwarp(unsigned mask = 0xffffffffu)
{
    emulate_warp(EMULATE_SYNC, mask, 0, 0);
}

inline unsigned __ballot_sync(unsigned mask, int value)
{
    return (unsigned)emulate_warp(EMULATE_BALLOT, mask, value != 0, 0);
}

inline int __any_sync(unsigned mask, int value)
{
    return (int)emulate_warp(EMULATE_ANY, mask, value != 0, 0);
}

inline int __all_sync(unsigned mask, int value)
{
    return (int)emulate_warp(EMULATE_ALL, mask, value != 0, 0);
}

inline unsigned __reduce_add_sync(unsigned mask, unsigned value)
{
    return (unsigned)emulate_warp(EMULATE_ADD, mask, value, 0);
}

inline unsigned __reduce_min_sync(unsigned mask, unsigned value)
{
    return (unsigned)emulate_warp(EMULATE_MIN, mask, value, 0);
}

inline unsigned __reduce_max_sync(unsigned mask, unsigned value)
{
    return (unsigned)emulate_warp(EMULATE_MAX, mask, value, 0);
}

inline int __popc(unsigned bits)
{
    return __builtin_popcount(bits);
}

inline int __ffs(int bits)
{
    return __builtin_ffs(bits);
}

// Before an atomic access of `bytes` at `address`: a place to switch, checked, and never held back.
void emulate_atomic(void *address, size_t bytes, bool writes);
// Own stores become visible to all.
void emulate_release(void);
// A thread that waits for others asks again; when nobody but such threads runs, that is a deadlock.
void emulate_spin(void);
[[noreturn]] void emulate_trap(void);
uint64_t emulate_clock(void);

// Not seen by the hooks: emulate_atomic has done what they do.
#define EMULATE_PLAIN __attribute__((no_sanitize("thread")))

template <typename T> EMULATE_PLAIN T atomicAdd(T *address, T value)
{
    emulate_atomic(address, sizeof(T), true);
    const T old = *address;
    *address = old + value;
    return old;
}

template <typename T> EMULATE_PLAIN T atomicMax(T *address, T value)
{
    emulate_atomic(address, sizeof(T), true);
    const T old = *address;
    *address = old > value ? old : value;
    return old;
}

template <typename T> EMULATE_PLAIN T atomicExch(T *address, T value)
{
    emulate_atomic(address, sizeof(T), true);
    const T old = *address;
    *address = value;
    return old;
}

template <typename T> EMULATE_PLAIN T atomicCAS(T *address, T expected, T value)
{
    emulate_atomic(address, sizeof(T), true);
    const T old = *address;
    *address = old == expected ? value : old;
    return old;
}

// Shared memory of the caller's block: `key` is the declaration; content is 0xff at first.
void *emulate_shared(const void *key, size_t bytes);
void *emulate_shared_dynamic(void);

// A grid of blocks that call run(arguments). The arguments are copied.
void emulate_launch(struct emulate_stream *stream, const char *name, dim3 grid, dim3 block,
                    size_t shared_bytes, void (*run)(const void *arguments), const void *arguments,
                    size_t argument_bytes);

template <typename A> struct emulate_kernel {
    typedef void (*type)(A);
    type kernel;
    A arguments;

    EMULATE_PLAIN static void run(const void *self)
    {
        const emulate_kernel copy = *(const emulate_kernel *)self;
        copy.kernel(copy.arguments);
    }
};

template <typename A>
void emulate_call(struct emulate_stream *stream, const char *name, void (*kernel)(A), dim3 grid,
                  dim3 block, size_t shared_bytes, const A &arguments)
{
    const emulate_kernel<A> call = {kernel, arguments};
    emulate_launch(stream, name, grid, block, shared_bytes, emulate_kernel<A>::run, &call,
                   sizeof(call));
}
