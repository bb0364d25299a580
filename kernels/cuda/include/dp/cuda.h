// The cuda device: dp_device_ops on one NVIDIA GPU. Built where the CUDA toolkit is (target
// dp_cuda); a program without a GPU gets the driver's reason from dp_device_open_cuda.
//
// Products go to cuBLASLt, everything else to own kernels. Operations on every stream, the device's
// own too, are only queued; events and copies are CUDA's. Attention is refused, and with it models
// that have it (dp_stream's sync says so).
#pragma once

#include "dp/device.h"

// element: DP_F32 or DP_BF16. gpu: its number among those that this process sees. DP_UNSUPPORTED
// for other elements and for GPUs before compute capability 8.0; DP_UNAVAILABLE, with CUDA's
// reason, where there is no such GPU. The caller closes it, after freeing what it allocated and
// closing what it opened.
dp_status dp_device_open_cuda(dp_element element, int gpu, struct dp_device **ret_device,
                              struct dp_error *err);
void dp_device_close_cuda(struct dp_device *device); // NULL does nothing
