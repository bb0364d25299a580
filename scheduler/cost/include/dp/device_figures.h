// Figures of an accelerator and the software on it, each with where it comes from.
//
// docs/cost-model.md says what each means and how prices follow from them. "share" is reached over
// published; 0 where a device has no such thing.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "dp/limits.h"
#include "dp/strategy.h"

// X(name, minimum, maximum): every figure is a number within these bounds. In this order:
//
// Multiprocessors or compute units; dense operations per second by number format. What large
// products reach of them (gemm_share). gemm_ramp_k: start and end of an output tile, as
// multiply-adds along k in bf16. Of the share: products of experts in one kernel (grouped, in bf16
// or a narrower format), gradients of weights, and of experts' weights on top of grouped.
// grouped_ramp_rows: what starting an expert costs, as rows of its own. expert_start_s: what each
// expert costs the device in each of its products besides, where they run one after the other with
// their casts (a third of it without casts). cast_passes: how often an operand is read and written
// again to become FP8 or FP4.
//
// The core of attention and its gradient, of bf16's peak, at long sequences with heads of 128; the
// length at which half of that is reached; how much faster the core is where products are narrow
// and so is it (attention_narrow_factor). Where scores go through memory instead (stacks without
// flash attention): bytes that a forward pass moves for each, with softmax, but without dropout.
//
// latent_passes: how often latent attention's queries, keys and values are read and written to be
// rotated and put together. activation_passes: how often an expert's activation passes through
// memory besides, in two bytes, where the model gives experts biases (then it is clamped and
// biased by kernels of its own).
//
// Memory: published, what elementwise kernels reach of it, what the optimizer does.
//
// kernel_s: a kernel, however small, on the device. host_*_s: what the host needs to start a
// layer's forward pass (host_expert_s: for each expert of the rank besides; a third of it without
// casts), and its backward pass as a multiple. action_s: an action of the schedule.
//
// Links, per rank and direction, inside the scale-up domain (up) and between domains (out); what
// collectives reach of them and what starting one takes; hops, and how much longer one takes where
// the all-to-all uses the link as well. hop_waits: 1 = ranks wait for a batch of messages before
// they compute, 0 = messages travel beside compute.
//
// All-to-all of experts. once: 1 = a token goes to a domain once and is copied there to each rank,
// 0 = each of its top_k copies travels alone. shown_share: what an F or B alone waits for of it
// (1F1B that overlaps neighbours' passes). fp8: dispatch in FP8 when products are narrow. What it
// reaches of the links; of the faster link's time, what does not overlap with the slower's; its
// start, and that for each member. unit: of it, what one multiprocessor moves; 0 = it needs none.
// Beside compute: how much longer it takes (contention), and what of it compute waits for (1 = this
// stack does not overlap them).
//
// routing_spread: deviation of an expert's rows in one sequence, as a share of their mean.
//
// What compute waits for of collectives that are meant to be hidden (*_exposed_share).
#define DP_DEVICE_FIGURES(X)                                                                       \
    X(units, 0, 4096)                                                                              \
    X(fp32_flops_peak, 0, 1e18)                                                                    \
    X(bf16_flops_peak, 1, 1e18)                                                                    \
    X(fp8_flops_peak, 0, 1e18)                                                                     \
    X(fp4_flops_peak, 0, 1e18)                                                                     \
    X(bf16_gemm_share, 0.01, 1)                                                                    \
    X(fp8_gemm_share, 0.01, 1)                                                                     \
    X(fp8_block_gemm_share, 0.01, 1)                                                               \
    X(mxfp8_gemm_share, 0.01, 1)                                                                   \
    X(nvfp4_gemm_share, 0.01, 1)                                                                   \
    X(gemm_ramp_k, 0, 65536)                                                                       \
    X(grouped_gemm_share, 0.01, 1)                                                                 \
    X(weight_gemm_share, 0.01, 1)                                                                  \
    X(grouped_narrow_gemm_share, 0.01, 1)                                                          \
    X(grouped_weight_gemm_share, 0.01, 1)                                                          \
    X(grouped_ramp_rows, 0, 65536)                                                                 \
    X(expert_start_s, 0, 1)                                                                        \
    X(cast_passes, 0, 16)                                                                          \
    X(attention_forward_share, 0.01, 1)                                                            \
    X(attention_backward_share, 0.01, 1)                                                           \
    X(attention_narrow_factor, 0.1, 10)                                                            \
    X(attention_ramp, 0, 1e6)                                                                      \
    X(score_bytes, 0, 1024)                                                                        \
    X(latent_passes, 0.5, 16)                                                                      \
    X(activation_passes, 0, 1000)                                                                  \
    X(memory_bytes_per_s, 1, 1e15)                                                                 \
    X(memory_share, 0.01, 1)                                                                       \
    X(optimizer_share, 0.01, 1)                                                                    \
    X(kernel_s, 0, 1)                                                                              \
    X(host_dense_s, 0, 10)                                                                         \
    X(host_moe_s, 0, 10)                                                                           \
    X(host_expert_s, 0, 10)                                                                        \
    X(host_backward_factor, 0, 16)                                                                 \
    X(action_s, 0, 10)                                                                             \
    X(up_bytes_per_s, 1, 1e15)                                                                     \
    X(up_latency_s, 0, 1)                                                                          \
    X(out_bytes_per_s, 1, 1e15)                                                                    \
    X(out_latency_s, 0, 1)                                                                         \
    X(collective_up_share, 0.01, 1)                                                                \
    X(collective_out_share, 0.01, 1)                                                               \
    X(collective_start_s, 0, 10)                                                                   \
    X(hop_share, 0.01, 1)                                                                          \
    X(hop_contention, 1, 16)                                                                       \
    X(hop_waits, 0, 1)                                                                             \
    X(exchange_once, 0, 1)                                                                         \
    X(exchange_shown_share, 0.01, 1)                                                               \
    X(exchange_fp8, 0, 1)                                                                          \
    X(exchange_up_share, 0.01, 1)                                                                  \
    X(exchange_out_share, 0.01, 1)                                                                 \
    X(exchange_fill_share, 0, 1)                                                                   \
    X(exchange_start_s, 0, 10)                                                                     \
    X(exchange_rank_s, 0, 1)                                                                       \
    X(exchange_up_unit_bytes_per_s, 0, 1e15)                                                       \
    X(exchange_out_unit_bytes_per_s, 0, 1e15)                                                      \
    X(exchange_contention, 1, 16)                                                                  \
    X(exchange_exposed_share, 0, 1)                                                                \
    X(routing_spread, 0, 100)                                                                      \
    X(tensor_exposed_share, 0, 1)                                                                  \
    X(context_exposed_share, 0, 1)                                                                 \
    X(shard_exposed_share, 0, 1)                                                                   \
    X(gradient_exposed_share, 0, 1)

typedef enum dp_device_figure {
#define DP_DEVICE_ENUM(name, minimum, maximum) DP_DEVICE_##name,
    DP_DEVICE_FIGURES(DP_DEVICE_ENUM)
#undef DP_DEVICE_ENUM
        DP_DEVICE_FIGURE_COUNT
} dp_device_figure;

struct dp_device_figures {
#define DP_DEVICE_MEMBER(name, minimum, maximum) double name;
    DP_DEVICE_FIGURES(DP_DEVICE_MEMBER)
#undef DP_DEVICE_MEMBER
};

// Where figures come from: texts[source[figure] - 1]; 0 = unsaid.
struct dp_device_sources {
    char texts[DP_DEVICE_SOURCES_MAX][DP_DEVICE_SOURCE_MAX];
    int32_t texts_count;
    uint8_t source[DP_DEVICE_FIGURE_COUNT];
};

// Links of the cluster's levels beyond scale-out, from inner to outer.
struct dp_device_level {
    double bytes_per_s, latency_s;
};

const char *dp_device_figure_text(dp_device_figure figure); // "bf16_flops_peak"; NULL beyond
// Dense operations per second in a format; 0 = the device does not have it.
double dp_device_flops_peak(const struct dp_device_figures *device, dp_format format);
// The share of that which products reach.
dp_device_figure dp_device_gemm_figure(dp_format format);
