#include "dp/profile.h"

#include <math.h>
#include <string.h>

#include "dp/alloc.h"

// Debian's OpenBLAS 0.3, one thread of an AVX2 server, middle of the three kinds.
static const struct {
    int32_t m, k, n;
    double flops_per_s;
} default_gemms[] = {
    {32, 256, 512, 55e9},   {64, 512, 1024, 65e9},    {128, 512, 2048, 66e9},
    {512, 768, 3072, 75e9}, {1024, 1024, 1024, 74e9},
};

// Of byte-level models early in their training, where loads of experts differ most.
#define ROUTING_SPREAD 0.7

void dp_profile_default_cpu(struct dp_profile *ret_profile)
{
    struct dp_profile profile = {
        .error_share = 0.5,
        .element_bytes = 4,
        .gemm_flops_per_s = 50e9,
        .attention_flops_per_s = 30e9,
        .attention_gradient_flops_per_s = 35e9,
        .activation_elements_per_s = 1.5e9,
        .activation_gradient_elements_per_s = 0.6e9,
        .memory_bytes_per_s = 18e9,
        .op_overhead_s = 0.5e-6,
        .action_overhead_s = 50e-6,
        .optimizer_bytes_per_s = 25e9,
        .busy_slowdown = 1.1,
        .local = {.latency_s = 40e-6, .bytes_per_s = 1.5e9, .sum_bytes_per_s = 1.2e9},
        .network = {.latency_s = 60e-6, .bytes_per_s = 1.2e9, .sum_bytes_per_s = 1e9},
        .routing_spread = ROUTING_SPREAD,
        .activation_share = 1,
        .weight_bytes = 4,
        .gradient_bytes = 4,
        .optimizer_bytes = 8,
    };
    DP_COPY_TEXT(profile.name, "cpu");
    DP_COPY_TEXT(profile.provenance,
                 "built-in figures of one AVX2 core with OpenBLAS; not measured here");
    for (size_t i = 0; i < sizeof(default_gemms) / sizeof(default_gemms[0]); i++) {
        for (int kind = 0; kind < DP_GEMM_KIND_COUNT; kind++) {
            profile.gemms[profile.gemms_count++] =
                (struct dp_gemm_point){(dp_gemm_kind)kind, default_gemms[i].m, default_gemms[i].k,
                                       default_gemms[i].n, default_gemms[i].flops_per_s};
        }
    }
    *ret_profile = profile;
}

// Shares that are commonly reached on accelerators. DeepSeek-V3's layer pair runs at 510 of 989
// TFLOP/s on the 112 of 132 multiprocessors that its exchange leaves, and hides 96 % of the
// exchange (deepseek-ai/profile-data). It keeps about 0.7 of the 2.2 GiB that a layer's activations
// take for 4096 tokens: norms, up-projections and SwiGLU are computed again, the rest is stored as
// FP8 (arXiv 2412.19437, 3.2.3 and 3.3.3).
enum { EXCHANGE_UNITS = 20, DEVICE_UNITS = 132 };
#define GEMM_SHARE 0.6
#define ATTENTION_SHARE 0.5
#define MEMORY_SHARE 0.8
#define LINK_SHARE 0.9
#define HIDDEN_SHARE 0.963
#define ACTIVATION_SHARE 0.32

static struct dp_link_profile link_of(double latency_s, double bytes_per_s)
{
    return (struct dp_link_profile){latency_s, bytes_per_s, bytes_per_s};
}

static void from_cpu_cluster(const struct dp_cluster_spec *cluster, struct dp_profile *ret_profile)
{
    dp_profile_default_cpu(ret_profile);
    ret_profile->cores = cluster->cores_per_node;
    ret_profile->local = link_of(cluster->scale_up_latency_s, cluster->scale_up_bandwidth);
    ret_profile->network = link_of(cluster->scale_out_latency_s, cluster->scale_out_bandwidth);
}

void dp_profile_from_cluster(const struct dp_cluster_spec *cluster, struct dp_profile *ret_profile)
{
    if (strcmp(cluster->accelerator, "cpu") == 0) {
        from_cpu_cluster(cluster, ret_profile);
        return;
    }
    double memory = MEMORY_SHARE * cluster->memory_bandwidth;
    double element_bytes = 2;
    struct dp_profile profile = {
        .error_share = 0.25,
        .cores = cluster->cores_per_node,
        .element_bytes = (int32_t)element_bytes,
        .gemm_flops_per_s = GEMM_SHARE * cluster->flops_peak,
        .attention_flops_per_s = ATTENTION_SHARE * cluster->flops_peak,
        .attention_gradient_flops_per_s = ATTENTION_SHARE * cluster->flops_peak,
        // Gate and up are read and the product written; the gradient reads three and writes three.
        .activation_elements_per_s = memory / (3 * element_bytes),
        .activation_gradient_elements_per_s = memory / (6 * element_bytes),
        .memory_bytes_per_s = memory,
        .op_overhead_s = 5e-6,
        .action_overhead_s = 20e-6,
        .optimizer_bytes_per_s = memory,
        .busy_slowdown = 1,
        .local = link_of(cluster->scale_up_latency_s, LINK_SHARE * cluster->scale_up_bandwidth),
        .network = link_of(cluster->scale_out_latency_s, LINK_SHARE * cluster->scale_out_bandwidth),
        .exchange_device_share = (double)EXCHANGE_UNITS / DEVICE_UNITS,
        .exchange_hidden_share = HIDDEN_SHARE,
        .exchange_by_node = true,
        .activation_share = ACTIVATION_SHARE,
        .weight_bytes = 2,
        .gradient_bytes = 4,
        .optimizer_bytes = 12,
        .optimizer_sharded = true,
        .is_accelerator = true,
    };
    DP_COPY_TEXT(profile.name, cluster->accelerator);
    DP_COPY_TEXT(profile.provenance,
                 "published figures of the accelerator times commonly reached shares (GEMM 60 %, "
                 "memory 80 %, links 90 %); not measured here");
    *ret_profile = profile;
}

// Inverse-square weights of distances in powers of two: exact at a point, smooth between, and far
// away the mean of all.
double dp_profile_gemm_flops_per_s(const struct dp_profile *profile, dp_gemm_kind kind, double m,
                                   double k, double n)
{
    double weights = 0, sum = 0;
    for (size_t i = 0; i < profile->gemms_count; i++) {
        const struct dp_gemm_point *point = &profile->gemms[i];
        if (point->kind != kind) {
            continue;
        }
        double dm = log2(m / point->m), dk = log2(k / point->k), dn = log2(n / point->n);
        double distance2 = dm * dm + dk * dk + dn * dn;
        double weight = 1 / (distance2 * distance2 + 1e-12);
        weights += weight;
        sum += weight * log(point->flops_per_s);
    }
    return weights > 0 ? exp(sum / weights) : profile->gemm_flops_per_s;
}
