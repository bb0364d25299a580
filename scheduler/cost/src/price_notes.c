// What prices rest on, in lines for people: the figures by their source, and where a question lies
// beyond what they were fitted on.

#include <math.h>
#include <string.h>

#include "price_internal.h"

// Which choices make a figure count.
enum {
    USE_ALWAYS = 1 << 0,
    USE_NARROW = 1 << 1, // products in FP8 or FP4
    USE_EXPERTS = 1 << 2,
    USE_EXCHANGE = 1 << 3,
    USE_OUT = 1 << 4,    // links between scale-up domains
    USE_GROUPS = 1 << 5, // collectives
    USE_TENSOR = 1 << 6,
    USE_CONTEXT = 1 << 7,
    USE_FSDP = 1 << 8,
    USE_HOP = 1 << 9,
    USE_LATENT = 1 << 10,
    USE_SCORES = 1 << 11,
    USE_WIDE_EXPERTS = 1 << 12,
    USE_NARROW_EXPERTS = 1 << 13,
};

static const struct {
    dp_device_figure figure;
    int when;
} uses[] = {
    {DP_DEVICE_units, USE_ALWAYS},
    {DP_DEVICE_bf16_flops_peak, USE_ALWAYS},
    {DP_DEVICE_bf16_gemm_share, USE_ALWAYS},
    {DP_DEVICE_gemm_ramp_k, USE_ALWAYS},
    {DP_DEVICE_weight_gemm_share, USE_ALWAYS},
    {DP_DEVICE_cast_passes, USE_NARROW},
    {DP_DEVICE_grouped_gemm_share, USE_WIDE_EXPERTS},
    {DP_DEVICE_grouped_narrow_gemm_share, USE_NARROW_EXPERTS},
    {DP_DEVICE_grouped_weight_gemm_share, USE_EXPERTS},
    {DP_DEVICE_grouped_ramp_rows, USE_EXPERTS},
    {DP_DEVICE_expert_start_s, USE_EXPERTS},
    {DP_DEVICE_attention_forward_share, USE_ALWAYS},
    {DP_DEVICE_attention_backward_share, USE_ALWAYS},
    {DP_DEVICE_score_bytes, USE_SCORES},
    {DP_DEVICE_latent_passes, USE_LATENT},
    {DP_DEVICE_memory_bytes_per_s, USE_ALWAYS},
    {DP_DEVICE_memory_share, USE_ALWAYS},
    {DP_DEVICE_optimizer_share, USE_ALWAYS},
    {DP_DEVICE_kernel_s, USE_ALWAYS},
    {DP_DEVICE_host_dense_s, USE_ALWAYS},
    {DP_DEVICE_host_moe_s, USE_EXPERTS},
    {DP_DEVICE_host_expert_s, USE_EXPERTS},
    {DP_DEVICE_up_bytes_per_s, USE_GROUPS},
    {DP_DEVICE_out_bytes_per_s, USE_OUT},
    {DP_DEVICE_collective_up_share, USE_GROUPS},
    {DP_DEVICE_collective_out_share, USE_OUT},
    {DP_DEVICE_hop_share, USE_HOP},
    {DP_DEVICE_hop_contention, USE_HOP},
    {DP_DEVICE_hop_waits, USE_HOP},
    {DP_DEVICE_exchange_once, USE_EXCHANGE},
    {DP_DEVICE_exchange_up_share, USE_EXCHANGE},
    {DP_DEVICE_exchange_out_share, USE_EXCHANGE},
    {DP_DEVICE_exchange_start_s, USE_EXCHANGE},
    {DP_DEVICE_exchange_out_unit_bytes_per_s, USE_EXCHANGE},
    {DP_DEVICE_exchange_shown_share, USE_EXCHANGE},
    {DP_DEVICE_exchange_contention, USE_EXCHANGE},
    {DP_DEVICE_exchange_exposed_share, USE_EXCHANGE},
    {DP_DEVICE_routing_spread, USE_EXCHANGE},
    {DP_DEVICE_tensor_exposed_share, USE_TENSOR},
    {DP_DEVICE_context_exposed_share, USE_CONTEXT},
    {DP_DEVICE_shard_exposed_share, USE_FSDP},
    {DP_DEVICE_gradient_exposed_share, USE_GROUPS},
};

static bool narrow(dp_format format)
{
    return format != DP_FORMAT_BF16 && format != DP_FORMAT_FP32;
}

static int used_by(const struct dp_pricing *p)
{
    const struct dp_strategy *s = p->strategy;
    const struct dp_spans *spans = &p->input->spans;
    bool out = spans->data.level > 0 || spans->expert.level > 0 || spans->hop.level > 0;
    bool experts = p->model->experts > 0;
    int grouped = narrow(p->format) ? USE_NARROW_EXPERTS : USE_WIDE_EXPERTS;
    return USE_ALWAYS | (narrow(p->format) ? USE_NARROW : 0) |
           (experts ? USE_EXPERTS | grouped : 0) | (experts && s->expert > 1 ? USE_EXCHANGE : 0) |
           (out ? USE_OUT : 0) | (dp_strategy_world(s) > s->pipeline ? USE_GROUPS : 0) |
           (s->tensor > 1 ? USE_TENSOR : 0) | (s->context > 1 ? USE_CONTEXT : 0) |
           (s->shard == DP_SHARD_FSDP ? USE_FSDP : 0) | (s->pipeline > 1 ? USE_HOP : 0) |
           (p->model->mla_kv_rank > 0 ? USE_LATENT : 0) |
           (p->profile->memory.scores_kept ? USE_SCORES : 0);
}

static bool has_source(const struct dp_device_sources *sources, dp_device_figure figure,
                       int32_t source)
{
    return sources->source[figure] == source + 1;
}

static void write_source(const struct dp_pricing *p, int used, int32_t source, struct dp_buf *out)
{
    const struct dp_device_sources *sources = &p->profile->sources;
    dp_device_figure share = dp_device_gemm_figure(p->format);
    int count = 0;
    if (narrow(p->format) && has_source(sources, share, source)) {
        dp_buf_printf(out, "%s", dp_device_figure_text(share));
        count++;
    }
    for (size_t i = 0; i < sizeof(uses) / sizeof(uses[0]); i++) {
        if ((uses[i].when & used) != 0 && has_source(sources, uses[i].figure, source)) {
            dp_buf_printf(out, "%s%s", count == 0 ? "" : ", ",
                          dp_device_figure_text(uses[i].figure));
            count++;
        }
    }
    if (count > 0) {
        dp_buf_printf(out, ": %s\n", sources->texts[source]);
    }
}

void dp_price_provenance(const struct dp_price_input *input, struct dp_buf *out)
{
    const struct dp_profile *profile = input->profile;
    dp_buf_printf(out, "profile \"%s\": %s; expect errors of %.0f %%\n", profile->name,
                  profile->provenance, 100 * dp_price_error_share(input));
    if (!profile->is_accelerator) {
        return;
    }
    if (profile->fitted_on[0] != '\0') {
        dp_buf_printf(out, "fitted on: %s\n", profile->fitted_on);
    }
    struct dp_pricing pricing;
    dp_pricing_init(&pricing, input);
    int used = used_by(&pricing);
    for (int32_t i = 0; i < profile->sources.texts_count; i++) {
        write_source(&pricing, used, i, out);
    }
}

// What a step's error grows by beyond what was measured. Between formats of one device the share of
// peak that products reach differs by 10 to 15 %, of which a step feels two thirds; an exchange
// over more domains, or further levels of a fabric, is a part of a step that was not measured.
#define FORMAT_ERROR 0.1
#define DOMAINS_ERROR 0.1
#define LEVELS_ERROR 0.1

static bool is_other_format(const struct dp_pricing *p)
{
    return p->profile->fitted_on[0] != '\0' && (p->profile->fitted_formats & 1 << p->format) == 0;
}

static int32_t expert_domains(const struct dp_pricing *p)
{
    const struct dp_span *span = &p->input->spans.expert;
    if (p->model->experts <= 0 || span->ranks <= 1) {
        return 0;
    }
    int32_t inside = span->level > 0 && span->inside > 0 ? span->inside : span->ranks;
    return (span->ranks + inside - 1) / inside;
}

double dp_price_error_share(const struct dp_price_input *input)
{
    const struct dp_profile *profile = input->profile;
    double base = input->model->experts > 0 && profile->moe_error_share > 0
                      ? profile->moe_error_share
                      : profile->error_share;
    if (!profile->is_accelerator) {
        return base;
    }
    struct dp_pricing pricing;
    dp_pricing_init(&pricing, input);
    int32_t domains = expert_domains(&pricing);
    double format = is_other_format(&pricing) ? FORMAT_ERROR : 0;
    double further = domains > profile->fitted_expert_domains ? DOMAINS_ERROR : 0;
    double levels = domains > 0 && input->spans.expert.level > 1 ? LEVELS_ERROR : 0;
    return sqrt(base * base + format * format + further * further + levels * levels);
}

static void warn_of_format(const struct dp_pricing *p, struct dp_buf *out)
{
    dp_format wanted = p->strategy->format;
    if (wanted != DP_FORMAT_AUTO && wanted != p->format) {
        dp_buf_printf(out, "the device has no %s; products are priced in %s\n",
                      dp_format_text(wanted), dp_format_text(p->format));
    }
    if (is_other_format(p)) {
        dp_buf_printf(out, "extrapolated: no run in %s is behind the figures of \"%s\"\n",
                      dp_format_text(p->format), p->profile->name);
    }
}

static void warn_of_exchange(const struct dp_pricing *p, struct dp_buf *out)
{
    const struct dp_span *span = &p->input->spans.expert;
    int32_t domains = expert_domains(p);
    if (domains == 0) {
        return;
    }
    if (domains > p->profile->fitted_expert_domains) {
        dp_buf_printf(
            out,
            "extrapolated: experts are exchanged over %d scale-up domains, and \"%s\" was "
            "fitted on %d at most\n",
            domains, p->profile->name, p->profile->fitted_expert_domains);
    }
    if (span->level > 1) {
        dp_buf_printf(out, "extrapolated: experts are exchanged beyond the first network level, "
                           "whose links count as the cluster states them\n");
    }
    if (p->imbalance > 1 && !(p->strategy->imbalance > 1)) {
        dp_buf_printf(
            out, "assumed: the fullest expert rank has %.2f times the mean's rows (imbalance)\n",
            p->imbalance);
    }
}

double dp_price_imbalance(const struct dp_price_input *input)
{
    struct dp_pricing pricing;
    dp_pricing_init(&pricing, input);
    return pricing.imbalance;
}

void dp_price_warnings(const struct dp_price_input *input, struct dp_buf *out)
{
    const struct dp_profile *profile = input->profile;
    if (!profile->is_accelerator) {
        return;
    }
    struct dp_pricing pricing;
    dp_pricing_init(&pricing, input);
    if (profile->fitted_on[0] == '\0') {
        dp_buf_printf(out,
                      "extrapolated: no measured run is behind \"%s\"; its figures are published "
                      "ones and shares of other devices\n",
                      profile->name);
    } else {
        warn_of_format(&pricing, out);
    }
    warn_of_exchange(&pricing, out);
}
