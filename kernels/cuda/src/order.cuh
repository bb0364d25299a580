// Memory order between threads of different blocks, devices and the host: the only place with PTX.
// Without a scope in its name a call orders all threads that see the memory (.sys).
#pragma once

#include "gpu.cuh"

#ifdef __CUDACC__

static __device__ __forceinline__ uint32_t load_acquire(const uint32_t *from)
{
    uint32_t value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}

static __device__ __forceinline__ uint64_t load_acquire(const uint64_t *from)
{
    unsigned long long value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
    return value;
}

static __device__ __forceinline__ void store_release(uint32_t *to, uint32_t value)
{
    asm volatile("st.release.sys.global.u32 [%0], %1;" : : "l"(to), "r"(value) : "memory");
}

static __device__ __forceinline__ void store_release(uint64_t *to, uint64_t value)
{
    asm volatile("st.release.sys.global.u64 [%0], %1;"
                 :
                 : "l"(to), "l"((unsigned long long)value)
                 : "memory");
}

static __device__ __forceinline__ void add_release(uint32_t *to, uint32_t value)
{
    asm volatile("red.release.sys.global.add.u32 [%0], %1;" : : "l"(to), "r"(value) : "memory");
}

static __device__ __forceinline__ void fence(void)
{
    __threadfence_system();
}

// Barriers 1 to 15 for `threads` of a block, a multiple of 32: those that sync and those that only
// arrive.
static __device__ __forceinline__ void barrier_sync(unsigned id, unsigned threads)
{
    asm volatile("barrier.sync %0, %1;" : : "r"(id), "r"(threads) : "memory");
}

static __device__ __forceinline__ void barrier_arrive(unsigned id, unsigned threads)
{
    asm volatile("barrier.arrive %0, %1;" : : "r"(id), "r"(threads) : "memory");
}

// Between two looks at what another thread writes.
static __device__ __forceinline__ void back_off(void)
{
    __nanosleep(100);
}

static __device__ __forceinline__ uint64_t clock_now(void)
{
    return (uint64_t)clock64();
}

static __device__ __forceinline__ void give_up(void)
{
    __trap();
}

#else

template <typename T> EMULATE_PLAIN T load_acquire(const T *from)
{
    emulate_atomic((void *)(uintptr_t)from, sizeof(T), false);
    return *from;
}

template <typename T> EMULATE_PLAIN void store_release(T *to, T value)
{
    emulate_release();
    emulate_atomic(to, sizeof(T), true);
    *to = value;
}

template <typename T> EMULATE_PLAIN void add_release(T *to, T value)
{
    emulate_release();
    emulate_atomic(to, sizeof(T), true);
    *to += value;
}

inline void fence(void)
{
    emulate_release();
}

inline void barrier_sync(unsigned id, unsigned threads)
{
    emulate_barrier(id, threads, true);
}

inline void barrier_arrive(unsigned id, unsigned threads)
{
    emulate_barrier(id, threads, false);
}

inline void back_off(void)
{
    emulate_spin();
}

inline uint64_t clock_now(void)
{
    return emulate_clock();
}

inline void give_up(void)
{
    emulate_trap();
}

#endif
