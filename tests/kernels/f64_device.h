// The cpu device in double that the tests of one program share.
#pragma once

#include "dp/alloc.h"
#include "dp/device.h"
#include "dp/rand.h"
#include "gradient.h"

static struct dp_device *device;
static const struct dp_device_ops *ops; // the device's

static inline int f64_device_open(void **state)
{
    (void)state;
    if (dp_device_open_cpu(DP_F64, &device, NULL) != DP_OK) {
        return -1;
    }
    ops = device->ops;
    return 0;
}

static inline int f64_device_close(void **state)
{
    (void)state;
    dp_device_close(device);
    return 0;
}

// The caller frees them.
static inline double *drawn(uint64_t seed, int64_t count, double scale)
{
    double *values = dp_new_array(double, (size_t)count);
    struct dp_rand rand;
    dp_rand_init(&rand, seed);
    fill_normal(&rand, values, count, scale);
    return values;
}
