#include "probes.h"

#include "element.cuh"
#include "order.cuh"

static __device__ void reverse(const probe &p, bool waits)
{
    DP_SHARED(uint32_t, values, 1024);
    const unsigned i = threadIdx.x, n = blockDim.x, first = blockIdx.x * n;
    values[i] = p.in[first + i];
    if (waits) {
        __syncthreads();
    }
    p.out[first + i] = values[n - 1 - i];
}

// What lanes 0 to 31 of each warp get from each other, as bits of out[thread].
static __device__ void meet(const probe &p)
{
    const unsigned lane = threadIdx.x % DP_WARP;
    bool right = __shfl_sync(DP_ALL_LANES, lane * 3, 5) == 15;
    right = right && __shfl_xor_sync(DP_ALL_LANES, lane, 7) == (lane ^ 7u);
    right = right && __shfl_up_sync(DP_ALL_LANES, lane, 1) == (lane == 0 ? 0 : lane - 1);
    right = right && __ballot_sync(DP_ALL_LANES, lane % 3 == 0) == 0x49249249u;
    right = right && __any_sync(DP_ALL_LANES, lane == 31) && !__any_sync(DP_ALL_LANES, lane > 31);
    right = right && __all_sync(DP_ALL_LANES, lane < 32) && !__all_sync(DP_ALL_LANES, lane < 31);
    right = right && __reduce_add_sync(DP_ALL_LANES, lane) == 496;
    right = right && __reduce_min_sync(DP_ALL_LANES, lane + 4) == 4;
    right = right && __reduce_max_sync(DP_ALL_LANES, lane + 4) == 35;
    // Halves that go different ways meet by themselves.
    const unsigned half = lane < 16 ? 0xffffu : 0xffff0000u;
    if (lane < 16) {
        right = right && __reduce_add_sync(half, 1) == 16;
    } else {
        right = right && __ballot_sync(half, 1) == 0xffff0000u;
    }
    __syncwarp();
    p.out[threadIdx.x] = right ? 1 : 0;
}

// Warp 0 writes a word into shared memory when warp 1 has taken the one before.
static __device__ void hand_over(const probe &p)
{
    DP_SHARED(uint32_t, word, DP_WARP);
    const unsigned lane = threadIdx.x % DP_WARP;
    uint32_t sum = 0;
    for (uint32_t i = 1; i <= p.count; i++) {
        if (threadIdx.x < DP_WARP) {
            word[lane] = i + lane;
            barrier_arrive(1, 2 * DP_WARP);
            barrier_sync(2, 2 * DP_WARP);
        } else {
            barrier_sync(1, 2 * DP_WARP);
            sum += word[lane];
            barrier_arrive(2, 2 * DP_WARP);
        }
    }
    if (threadIdx.x >= DP_WARP) {
        p.out[lane] = sum;
    }
}

static __device__ void stand_still(const probe &p)
{
    const unsigned lane = threadIdx.x % DP_WARP;
    if (p.kind == PROBE_UNMET_BARRIER) {
        if (threadIdx.x < DP_WARP) {
            barrier_sync(3, 2 * DP_WARP);
        }
    } else if (p.kind == PROBE_UNMET_LANE) {
        if (lane < 16) {
            __syncwarp();
        } else {
            __syncthreads();
        }
    } else if (p.kind == PROBE_LONELY_SPIN) {
        while (load_acquire(p.flag) == 0) {
            back_off();
        }
    }
}

static __device__ void misbehave(const probe &p)
{
    DP_SHARED_DYNAMIC(uint32_t, shared);
    if (p.kind == PROBE_SPILLED) {
        p.out[p.count] = 1;
    } else if (p.kind == PROBE_SPILLED_SHARED) {
        shared[p.count] = 1;
    } else if (p.kind == PROBE_HOST) {
        p.out[0] = *p.in;
    } else if (p.kind == PROBE_MISALIGNED) {
        p.out[0] = *(const uint32_t *)((const char *)p.in + 2);
    } else if (p.kind == PROBE_ABSENT_LANE && threadIdx.x < 16) {
        p.out[0] = __shfl_sync(0xffffu, threadIdx.x, 20);
    } else if (p.kind == PROBE_TRAP) {
        give_up();
    }
}

static __global__ void probe_kernel(probe p)
{
    switch (p.kind) {
    case PROBE_ORDER:
        p.out[atomicAdd(p.flag, 1u)] = blockIdx.x * blockDim.x + threadIdx.x;
        break;
    case PROBE_COUNT_ATOMIC:
        atomicAdd(p.out, 1u);
        break;
    case PROBE_COUNT_PLAIN:
        p.out[0] += 1;
        break;
    case PROBE_REVERSE:
        reverse(p, true);
        break;
    case PROBE_REVERSE_RACING:
        reverse(p, false);
        break;
    case PROBE_WARPS:
        meet(p);
        break;
    case PROBE_NAMED:
        hand_over(p);
        break;
    case PROBE_UNMET_BARRIER:
    case PROBE_UNMET_LANE:
    case PROBE_LONELY_SPIN:
        stand_still(p);
        break;
    case PROBE_NOTHING:
        break;
    default:
        misbehave(p);
        break;
    }
}

static __global__ void ring_send(probe_ring r)
{
    uint32_t *words = r.words + blockIdx.x * r.slots;
    for (uint32_t i = 0; i < r.count; i++) {
        while (i - load_acquire(&r.heads[blockIdx.x]) >= r.slots) {
            back_off();
        }
        words[i % r.slots] = i + 1;
        if (r.careless) {
            atomicExch(&r.tails[blockIdx.x], i + 1);
        } else {
            store_release(&r.tails[blockIdx.x], i + 1);
        }
    }
}

static __global__ void ring_receive(probe_ring r)
{
    const uint32_t *words = r.words + blockIdx.x * r.slots;
    uint32_t sum = 0;
    for (uint32_t i = 0; i < r.count; i++) {
        while (load_acquire(&r.tails[blockIdx.x]) <= i) {
            back_off();
        }
        sum += words[i % r.slots];
        add_release(&r.heads[blockIdx.x], 1u);
    }
    r.sums[blockIdx.x] = sum;
}

void probe_launch(struct dp_stream *stream, const struct probe *probe, unsigned blocks,
                  unsigned threads, unsigned shared_bytes)
{
    DP_LAUNCH(stream, probe_kernel, blocks, threads, shared_bytes, *probe);
}

void probe_send(struct dp_stream *stream, const struct probe_ring *ring, unsigned blocks)
{
    DP_LAUNCH(stream, ring_send, blocks, 1, 0, *ring);
}

void probe_receive(struct dp_stream *stream, const struct probe_ring *ring, unsigned blocks)
{
    DP_LAUNCH(stream, ring_receive, blocks, 1, 0, *ring);
}
