// One operation on two devices: the cpu's, and the cuda kernels in the emulator. What goes in is
// the same; what comes out is compared.
#pragma once

#include "dp_test.h"

#include <math.h>

#include "dp/alloc.h"
#include "dp/device.h"
#include "dp/rand.h"
#include "emulated_device.h"

enum { TWIN_BUFFERS = 16, CPU = 0, GPU = 1 };

struct twin {
    struct dp_device *device[2];
    struct dp_rand rand;
    // Buffers of both sides, each with a copy of what it held at first.
    void *at[TWIN_BUFFERS][2], *first[TWIN_BUFFERS];
    size_t bytes[TWIN_BUFFERS];
    dp_operand kind[TWIN_BUFFERS];
    int count;
};

static inline struct twin twin_open(dp_element element, uint64_t seed)
{
    struct dp_error err;
    struct twin t = {.count = 0};
    assert_ok(dp_device_open_cpu(element, &t.device[CPU], &err), &err);
    t.device[GPU] = emulated_device_open(element);
    dp_rand_init(&t.rand, seed);
    return t;
}

static inline void twin_close(struct twin *t)
{
    for (int i = 0; i < t->count; i++) {
        t->device[CPU]->ops->free(t->device[CPU], t->at[i][CPU]);
        t->device[GPU]->ops->free(t->device[GPU], t->at[i][GPU]);
        free(t->first[i]);
    }
    dp_device_close(t->device[CPU]);
    emulated_device_close(t->device[GPU]);
}

// A buffer of `bytes` from `values`, or of NaN where there are none. Its number.
static inline int twin_bytes(struct twin *t, size_t bytes, const void *values)
{
    struct dp_error err;
    const int i = t->count++;
    assert_true(i < TWIN_BUFFERS);
    t->first[i] = dp_alloc(bytes + 1, 1);
    memset(t->first[i], 0xff, bytes);
    if (values != NULL && bytes > 0) {
        memcpy(t->first[i], values, bytes);
    }
    t->bytes[i] = bytes;
    for (int side = 0; side < 2; side++) {
        const struct dp_device_ops *ops = t->device[side]->ops;
        assert_ok(ops->alloc(t->device[side], DP_MEMORY_SCRATCH, bytes, &t->at[i][side], &err),
                  &err);
        ops->copy(t->device[side]->stream, t->at[i][side], t->first[i], bytes);
    }
    return i;
}

// Normal draws times `scale`, or NaN where it is 0.
static inline int twin_values(struct twin *t, dp_operand kind, int64_t count, double scale)
{
    double *draws = dp_new_array(double, (size_t)count + 1);
    const size_t bytes = (size_t)count * dp_operand_bytes(t->device[CPU], kind);
    void *values = dp_alloc(bytes + 1, 1);
    for (int64_t i = 0; i < count; i++) {
        draws[i] = scale * dp_rand_normal(&t->rand);
    }
    t->device[CPU]->ops->from_double(t->device[CPU]->stream, count, draws, kind, values);
    const int i = twin_bytes(t, bytes, scale == 0 ? NULL : values);
    t->kind[i] = kind;
    free(draws);
    free(values);
    return i;
}

// Both sides as they were.
static inline void twin_again(struct twin *t)
{
    for (int i = 0; i < t->count; i++) {
        for (int side = 0; side < 2; side++) {
            t->device[side]->ops->copy(t->device[side]->stream, t->at[i][side], t->first[i],
                                       t->bytes[i]);
        }
    }
}

static inline void twin_sync(struct twin *t)
{
    struct dp_error err;
    for (int side = 0; side < 2; side++) {
        assert_ok(t->device[side]->ops->stream_sync(t->device[side]->stream, &err), &err);
    }
}

static inline void twin_same_bits(struct twin *t, int i)
{
    if (t->bytes[i] > 0) {
        assert_memory_equal(t->at[i][CPU], t->at[i][GPU], t->bytes[i]);
    }
}

static inline double twin_value(struct twin *t, int i, int side, int64_t k)
{
    const size_t each = dp_operand_bytes(t->device[CPU], t->kind[i]);
    uint32_t bits = 0;
    memcpy((char *)&bits + (4 - each), (const char *)t->at[i][side] + (size_t)k * each, each);
    float value;
    memcpy(&value, &bits, sizeof(value));
    return (double)value;
}

// Value by value: within `relative` of the cpu's, or a bf16's last bit where that is what they are,
// and `absolute`; NaN where the cpu has it and nowhere else.
static inline void twin_near(struct twin *t, int i, double relative, double absolute)
{
    const size_t each = dp_operand_bytes(t->device[CPU], t->kind[i]);
    const double bound = each == 2 && relative < 0x1p-7 ? 0x1p-7 : relative;
    for (int64_t k = 0; k < (int64_t)(t->bytes[i] / each); k++) {
        const double cpu = twin_value(t, i, CPU, k), gpu = twin_value(t, i, GPU, k);
        // What is not finite is near nothing but itself.
        const bool is_same = cpu == gpu || (isnan(cpu) && isnan(gpu));
        if (!is_same && !(isfinite(cpu) && fabs(cpu - gpu) <= bound * fabs(cpu) + absolute)) {
            fail_msg("buffer %d, value %lld: %.9g on the cpu, %.9g on the gpu", i, (long long)k,
                     cpu, gpu);
        }
    }
}

// The schedules that a result must not depend on: in order, and then by seeds, every other one with
// stores held back. More of them with DP_FUZZ_RUNS.
static inline int twin_schedules(void)
{
    return (int)dp_fuzz_runs(5);
}

// Both sides as they were, and the next schedule.
static inline void twin_schedule(struct twin *t, uint64_t seed, int schedule)
{
    twin_again(t);
    emulated_device_schedule(schedule == 0 ? 0 : seed * 1000003 + (uint64_t)schedule,
                             schedule % 2 == 0);
}
