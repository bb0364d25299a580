#include "knob.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "dp/alloc.h"

static const char *const texts[KNOB_COUNT] = {
    [KNOB_GEMM] = "products",
    [KNOB_GROUPED_GEMM] = "products of experts",
    [KNOB_WEIGHT_GEMM] = "weight gradients",
    [KNOB_GROUPED_WEIGHT_GEMM] = "weight gradients of experts",
    [KNOB_ATTENTION] = "attention",
    [KNOB_ATTENTION_GRADIENT] = "attention's gradient",
    [KNOB_MEMORY] = "elementwise work",
    [KNOB_START] = "starts",
    [KNOB_EXCHANGE] = "all-to-all",
    [KNOB_HOP] = "hops",
    [KNOB_GRADIENT] = "gradient sums",
    [KNOB_OPTIMIZER] = "optimizer",
};

const char *dp_knob_text(dp_knob knob)
{
    return texts[knob];
}

enum { NO_FIGURE = DP_DEVICE_FIGURE_COUNT, FIGURES_MAX = 4 };

struct figures {
    dp_device_figure list[FIGURES_MAX];
    bool is_time; // of the first: seconds, not a rate
};

#define LIST(...)                                                                                  \
    {                                                                                              \
        .list = { __VA_ARGS__ }                                                                    \
    }

static struct figures figures_of(dp_knob knob, dp_format format)
{
    const dp_device_figure none = (dp_device_figure)NO_FIGURE;
    switch (knob) {
    case KNOB_GEMM:
        return (struct figures)LIST(dp_device_gemm_figure(format), none, none, none);
    case KNOB_GROUPED_GEMM:
        return (struct figures)LIST(dp_device_gemm_figure(format) == DP_DEVICE_bf16_gemm_share
                                        ? DP_DEVICE_grouped_gemm_share
                                        : DP_DEVICE_grouped_narrow_gemm_share,
                                    none, none, none);
    case KNOB_WEIGHT_GEMM:
        return (struct figures)LIST(DP_DEVICE_weight_gemm_share, none, none, none);
    case KNOB_GROUPED_WEIGHT_GEMM:
        return (struct figures)LIST(DP_DEVICE_grouped_weight_gemm_share, none, none, none);
    case KNOB_ATTENTION:
        return (struct figures)LIST(DP_DEVICE_attention_forward_share, none, none, none);
    case KNOB_ATTENTION_GRADIENT:
        return (struct figures)LIST(DP_DEVICE_attention_backward_share, none, none, none);
    case KNOB_MEMORY:
        return (struct figures)LIST(DP_DEVICE_memory_share, none, none, none);
    case KNOB_START:
        return (struct figures){.list = {DP_DEVICE_kernel_s, DP_DEVICE_host_dense_s,
                                         DP_DEVICE_host_moe_s, DP_DEVICE_action_s},
                                .is_time = true};
    case KNOB_EXCHANGE:
        return (struct figures)LIST(DP_DEVICE_exchange_out_share, DP_DEVICE_exchange_up_share, none,
                                    none);
    case KNOB_HOP:
        return (struct figures)LIST(DP_DEVICE_hop_share, none, none, none);
    case KNOB_GRADIENT:
        return (struct figures)LIST(DP_DEVICE_collective_out_share, DP_DEVICE_collective_up_share,
                                    none, none);
    default:
        return (struct figures)LIST(DP_DEVICE_optimizer_share, none, none, none);
    }
}

static double *figure_at(struct dp_profile *profile, dp_device_figure figure)
{
    // A struct of doubles in the order of their names.
    return (double *)&profile->device + figure;
}

static void turn_device(struct dp_profile *profile, dp_knob knob, dp_format format, double factor)
{
    struct figures figures = figures_of(knob, format);
    for (int i = 0; i < FIGURES_MAX && (int)figures.list[i] != NO_FIGURE; i++) {
        double *value = figure_at(profile, figures.list[i]);
        *value = figures.is_time ? *value / factor : fmin(1, *value * factor);
        if (!figures.is_time) {
            *value = fmax(0.01, *value);
        }
    }
}

static void turn_links(struct dp_profile *profile, double factor)
{
    struct dp_link_profile *links[] = {&profile->local, &profile->network};
    for (int i = 0; i < 2; i++) {
        links[i]->bytes_per_s *= factor;
        links[i]->latency_s /= factor;
    }
    for (size_t i = 0; i < profile->exchanges_count; i++) {
        profile->exchanges[i].bytes_per_s *= factor;
        profile->exchanges[i].latency_s /= factor;
    }
}

static void turn_cpu(struct dp_profile *profile, dp_knob knob, double factor)
{
    switch (knob) {
    case KNOB_GEMM:
        profile->gemm_flops_per_s *= factor;
        for (size_t i = 0; i < profile->gemms_count; i++) {
            profile->gemms[i].flops_per_s *= factor;
        }
        break;
    case KNOB_ATTENTION:
        profile->attention_flops_per_s *= factor;
        break;
    case KNOB_ATTENTION_GRADIENT:
        profile->attention_gradient_flops_per_s *= factor;
        break;
    case KNOB_MEMORY:
        profile->memory_bytes_per_s *= factor;
        profile->activation_elements_per_s *= factor;
        profile->activation_gradient_elements_per_s *= factor;
        break;
    case KNOB_START:
        profile->op_overhead_s /= factor;
        profile->action_overhead_s /= factor;
        break;
    case KNOB_EXCHANGE:
        turn_links(profile, factor);
        break;
    case KNOB_GRADIENT:
        profile->local.sum_bytes_per_s *= factor;
        profile->network.sum_bytes_per_s *= factor;
        break;
    case KNOB_OPTIMIZER:
        profile->optimizer_bytes_per_s *= factor;
        break;
    default: // products are not told apart, hops use the exchange's links
        break;
    }
}

void dp_knob_turn(struct dp_profile *profile, dp_knob knob, dp_format format, double factor)
{
    if (profile->is_accelerator) {
        turn_device(profile, knob, format, factor);
    } else {
        turn_cpu(profile, knob, factor);
    }
}

double dp_knob_value(const struct dp_profile *profile, dp_knob knob, dp_format format)
{
    if (profile->is_accelerator) {
        struct dp_profile *unsafe = (struct dp_profile *)profile;
        return *figure_at(unsafe, figures_of(knob, format).list[0]);
    }
    switch (knob) {
    case KNOB_GEMM:
        return profile->gemm_flops_per_s;
    case KNOB_ATTENTION:
        return profile->attention_flops_per_s;
    case KNOB_ATTENTION_GRADIENT:
        return profile->attention_gradient_flops_per_s;
    case KNOB_MEMORY:
        return profile->memory_bytes_per_s;
    case KNOB_EXCHANGE:
        return profile->network.bytes_per_s;
    case KNOB_GRADIENT:
        return profile->network.sum_bytes_per_s;
    case KNOB_OPTIMIZER:
        return profile->optimizer_bytes_per_s;
    default:
        return 0;
    }
}

void dp_knob_source(struct dp_profile *profile, dp_knob knob, dp_format format, const char *source)
{
    struct dp_device_sources *sources = &profile->sources;
    if (!profile->is_accelerator) {
        return;
    }
    int32_t at = 0;
    while (at < sources->texts_count && strcmp(sources->texts[at], source) != 0) {
        at++;
    }
    if (at == sources->texts_count) {
        if (at == DP_DEVICE_SOURCES_MAX) {
            return;
        }
        (void)DP_COPY_TEXT(sources->texts[at], source);
        sources->texts_count++;
    }
    struct figures figures = figures_of(knob, format);
    for (int i = 0; i < FIGURES_MAX && (int)figures.list[i] != NO_FIGURE; i++) {
        sources->source[figures.list[i]] = (uint8_t)(at + 1);
    }
}
