// A device as it was measured, or as it is published: every figure that predictions rest on.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "dp/device_figures.h"
#include "dp/error.h"
#include "dp/json.h"
#include "dp/limits.h"
#include "dp/memory_traits.h"
#include "dp/spec.h"
#include "dp/strategy.h"

// Forward (x W^T), input gradient (dy W) and weight gradient (dy^T x) use their libraries' kernels
// differently.
typedef enum dp_gemm_kind { DP_GEMM_NT, DP_GEMM_NN, DP_GEMM_TN, DP_GEMM_KIND_COUNT } dp_gemm_kind;

// c[m, n] = a[m, k] b[k, n] at `flops_per_s`.
struct dp_gemm_point {
    dp_gemm_kind kind;
    int32_t m, k, n;
    double flops_per_s;
};

struct dp_link_profile {
    double latency_s;       // of one message
    double bytes_per_s;     // of messages, both directions at once
    double sum_bytes_per_s; // of two ranks that add up what they have (dp_cost_sum_s)
};

// One all-to-all between `ranks` ranks of one node, measured as such.
struct dp_exchange_point {
    int32_t ranks;
    double latency_s;   // of one that carries next to nothing
    double bytes_per_s; // of what each rank sends to all others together
};

struct dp_profile {
    char name[DP_NAME_MAX];             // "cpu", "h800"
    char provenance[DP_PROVENANCE_MAX]; // for people: measured where and how, or published where
    int64_t measured_at_s;              // UTC; 0 = not measured
    double error_share;                 // error of predictions to expect, as a share
    double moe_error_share;             // of models with experts; 0 = error_share
    double ranking_error_share;         // of the ratio of two steps of one model; 0 = unknown
    int32_t cores;                      // of the node it was measured on; 0 = unknown
    int32_t element_bytes;              // of activations and messages

    struct dp_gemm_point gemms[DP_PROFILE_GEMMS_MAX];
    size_t gemms_count;
    double gemm_flops_per_s; // where no point is known
    // The core of attention and its gradient, causal half counted.
    double attention_flops_per_s, attention_gradient_flops_per_s;
    // SwiGLU's outputs, and the same for its gradient.
    double activation_elements_per_s, activation_gradient_elements_per_s;
    double memory_bytes_per_s;    // other elementwise work, read and write both counted
    double op_overhead_s;         // one operation, however small
    double action_overhead_s;     // one action of the schedule, with its messages
    double optimizer_bytes_per_s; // weights, gradients and state, read and write both counted
    // Time of compute while every core of the node computes, over its time while one does.
    double busy_slowdown;

    struct dp_link_profile local;   // between ranks of one node
    struct dp_link_profile network; // between nodes
    // By ranks, rising; none: an all-to-all is as fast as `local` is.
    struct dp_exchange_point exchanges[DP_PROFILE_EXCHANGES_MAX];
    size_t exchanges_count;

    // FB: the share of the device that the exchange takes while it overlaps with compute, and the
    // share of the exchange that can be hidden (0 = an FB is F then B).
    double exchange_device_share, exchange_hidden_share;
    bool exchange_by_node; // a token travels once to each node, not once for each expert
    // Deviation of an expert's rows from their mean, as a share of it: 0 = routing is balanced.
    double routing_spread;
    // Share of a chunk's activations that is kept; the rest is computed again (in the rates above).
    double activation_share;

    // Bytes per parameter; the optimizer's are split over replicas when sharded.
    double weight_bytes, gradient_bytes, optimizer_bytes;
    bool optimizer_sharded;
    // Prices and bytes come from the tables for accelerators and the strategy's choices; else from
    // the figures above, which describe this project's own executor on a CPU core (dp/cost.h).
    bool is_accelerator;
    struct dp_memory_traits memory;  // of accelerators
    struct dp_device_figures device; // likewise
    struct dp_device_level levels[DP_CLUSTER_LEVELS_MAX];
    int32_t levels_count;
    // What the figures were fitted on or hold for: what lies beyond is an extrapolation.
    char fitted_on[DP_PROFILE_FITTED_MAX]; // names of published rows; "" = none
    int32_t fitted_formats;                // bits 1 << dp_format; 0 = no format was
    int32_t fitted_expert_domains;         // of most scale-up domains that an expert group spanned
    struct dp_device_sources sources;
};

// One core of a common server, float: OpenBLAS, ranks over loopback TCP.
void dp_profile_default_cpu(struct dp_profile *ret_profile);
// What the cpu device keeps when products are in `format` (AUTO: fp32) and moments in `moments`:
// bytes of elements, weights with the copies that products read, and moments. Rates stay.
void dp_profile_set_cpu_format(struct dp_profile *profile, dp_format format, dp_moments moments);
// Built-in accelerators and stacks on them ("h800", "a100-80gb@zero-bubble"): their figures and
// where each comes from stand in data/profiles.json. DEVICE@SOFTWARE[+SOFTWARE] puts entries
// together, later ones on top ("gb200@megatron-bridge-26.06+full-graphs"). DP_NOT_FOUND lists the
// names.
dp_status dp_profile_builtin(const char *name, struct dp_profile *ret_profile,
                             struct dp_error *err);
// A device with the software that most people get on it ("default_stack"), where that is known.
dp_status dp_profile_builtin_default(const char *device, struct dp_profile *ret_profile,
                                     struct dp_error *err);
// Name number `index`, in the order of the file; false beyond the last.
bool dp_profile_builtin_name(size_t index, char ret_name[DP_NAME_MAX]);
// The built-in of a cluster's accelerator, with its default software and that cluster's peaks and
// links; an accelerator without one gets what is common to all. "cpu" is the default CPU with these
// links.
void dp_profile_from_cluster(const struct dp_cluster_spec *cluster, struct dp_profile *ret_profile);

// Rate of a product by its nearest measured neighbours of the same kind in (log m, log k, log n).
double dp_profile_gemm_flops_per_s(const struct dp_profile *profile, dp_gemm_kind kind, double m,
                                   double k, double n);

// The link that an all-to-all between `ranks` ranks of one node sees: by its measured neighbours in
// log(ranks), the last one beyond them; `local` without any.
struct dp_link_profile dp_profile_exchange(const struct dp_profile *profile, int32_t ranks);

// Puts a cluster's peaks, memory and links into an accelerator's profile.
void dp_profile_set_cluster(struct dp_profile *profile, const struct dp_cluster_spec *cluster);

// The form "dp.profile/1". from_json refuses figures that are missing, negative or not finite.
json_t *dp_profile_to_json(const struct dp_profile *profile);
dp_status dp_profile_from_json(const json_t *json, struct dp_profile *ret_profile,
                               struct dp_error *err);
dp_status dp_profile_load(const char *path, struct dp_profile *ret_profile, struct dp_error *err);
