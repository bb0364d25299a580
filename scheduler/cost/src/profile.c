#include "dp/profile.h"

#include <math.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "profile_internal.h"

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

void dp_profile_set_cpu_format(struct dp_profile *profile, dp_format format, dp_moments moments)
{
    bool is_bf16 = format == DP_FORMAT_BF16 || format == DP_FORMAT_FP8_BLOCK;
    if (is_bf16) {
        profile->element_bytes = 2;
        profile->weight_bytes = 4 + 2;
    }
    if (format == DP_FORMAT_FP8_BLOCK) {
        profile->weight_bytes += 1 + 4.0 / (128 * 128);
    }
    if (moments == DP_MOMENTS_BF16) {
        profile->optimizer_bytes = 4;
    }
}

// DeepSeek-V3 keeps about 0.7 of the 2.2 GiB that a layer's activations take for 4096 tokens:
// norms, up-projections and SwiGLU are computed again, the rest is stored as FP8 (arXiv
// 2412.19437, 3.2.3 and 3.3.3).
#define ACTIVATION_SHARE 0.32

// dp/cost.h has one rate where prices have curves: what large products in bf16 reach.
void dp_profile_device_settle(struct dp_profile *profile)
{
    const struct dp_device_figures *d = &profile->device;
    double memory = d->memory_bytes_per_s * d->memory_share;
    double each = d->exchange_out_unit_bytes_per_s;
    double units = each > 0 ? d->out_bytes_per_s * d->exchange_out_share / each : 0;
    profile->element_bytes = 2;
    profile->gemms_count = 0;
    profile->gemm_flops_per_s = d->bf16_gemm_share * d->bf16_flops_peak;
    profile->attention_flops_per_s = d->attention_forward_share * d->bf16_flops_peak;
    profile->attention_gradient_flops_per_s = d->attention_backward_share * d->bf16_flops_peak;
    // Gate and up are read and the product written; the gradient reads three and writes three.
    profile->activation_elements_per_s = memory / (3 * 2);
    profile->activation_gradient_elements_per_s = memory / (6 * 2);
    profile->memory_bytes_per_s = memory;
    profile->op_overhead_s = d->kernel_s;
    profile->action_overhead_s = d->action_s;
    profile->optimizer_bytes_per_s = d->memory_bytes_per_s * d->optimizer_share;
    profile->busy_slowdown = 1;
    profile->local = link_of(d->up_latency_s, d->exchange_up_share * d->up_bytes_per_s);
    profile->network = link_of(d->out_latency_s, d->exchange_out_share * d->out_bytes_per_s);
    profile->exchange_device_share = d->units > units ? units / d->units : 0;
    profile->exchange_hidden_share = 1 - d->exchange_exposed_share;
    profile->exchange_by_node = d->exchange_once >= 0.5;
    profile->activation_share = ACTIVATION_SHARE;
    profile->weight_bytes = 2;
    profile->gradient_bytes = 4;
    profile->optimizer_bytes = 12;
    profile->optimizer_sharded = true;
}

void dp_profile_set_cluster(struct dp_profile *profile, const struct dp_cluster_spec *cluster)
{
    struct dp_device_figures *d = &profile->device;
    d->bf16_flops_peak = cluster->flops_peak;
    d->fp8_flops_peak = cluster->fp8_flops_peak > 0 ? cluster->fp8_flops_peak : d->fp8_flops_peak;
    d->units = cluster->units > 0 ? cluster->units : d->units;
    d->memory_bytes_per_s = cluster->memory_bandwidth;
    d->up_bytes_per_s = cluster->scale_up_bandwidth;
    d->up_latency_s = cluster->scale_up_latency_s;
    d->out_bytes_per_s = cluster->scale_out_bandwidth;
    d->out_latency_s = cluster->scale_out_latency_s;
    profile->cores = cluster->cores_per_node;
    profile->levels_count = cluster->levels_count;
    for (int32_t i = 0; i < cluster->levels_count; i++) {
        profile->levels[i] =
            (struct dp_device_level){cluster->levels[i].bandwidth, cluster->levels[i].latency_s};
    }
    dp_profile_device_settle(profile);
}

void dp_profile_from_cluster(const struct dp_cluster_spec *cluster, struct dp_profile *ret_profile)
{
    if (strcmp(cluster->accelerator, "cpu") == 0) {
        from_cpu_cluster(cluster, ret_profile);
        return;
    }
    struct dp_error ignored;
    DP_AUTO_FREE struct dp_profile *profile = dp_new(struct dp_profile);
    if (dp_profile_builtin_default(cluster->accelerator, profile, &ignored) != DP_OK) {
        DP_CHECK(dp_profile_builtin("accelerator", profile, &ignored) == DP_OK);
        DP_COPY_TEXT(profile->name, cluster->accelerator);
    }
    dp_profile_set_cluster(profile, cluster);
    *ret_profile = *profile;
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

struct dp_link_profile dp_profile_exchange(const struct dp_profile *profile, int32_t ranks)
{
    struct dp_link_profile link = profile->local;
    const struct dp_exchange_point *points = profile->exchanges;
    size_t count = profile->exchanges_count, above = 0;
    if (count == 0) {
        return link;
    }
    while (above < count && points[above].ranks < ranks) {
        above++;
    }
    const struct dp_exchange_point *high = &points[above < count ? above : count - 1];
    const struct dp_exchange_point *low = above == 0 || above == count ? high : high - 1;
    double share =
        low == high ? 0 : log((double)ranks / low->ranks) / log((double)high->ranks / low->ranks);
    link.latency_s = low->latency_s + share * (high->latency_s - low->latency_s);
    link.bytes_per_s = low->bytes_per_s * pow(high->bytes_per_s / low->bytes_per_s, share);
    return link;
}
