// What travels between ranks: collectives of tensor, context and sharded data parallelism, and the
// all-to-all of experts.

#include <math.h>

#include "price_internal.h"

// A group that crosses several levels is bound by the slowest of them.
double dp_pricing_out_bytes_per_s(const struct dp_pricing *p, const struct dp_span *span)
{
    double rate = p->device->out_bytes_per_s;
    for (int32_t i = 0; i < p->profile->levels_count && i < span->level - 1; i++) {
        rate = fmin(rate, p->profile->levels[i].bytes_per_s);
    }
    return rate;
}

double dp_pricing_out_latency_s(const struct dp_pricing *p, const struct dp_span *span)
{
    double latency = p->device->out_latency_s;
    for (int32_t i = 0; i < p->profile->levels_count && i < span->level - 1; i++) {
        latency = fmax(latency, p->profile->levels[i].latency_s);
    }
    return latency;
}

static bool crosses(const struct dp_span *span)
{
    return span->level > 0 && span->inside < span->ranks;
}

// Rings that use the links of all members of a domain at once; messages halve the distance.
double dp_pricing_gather_s(const struct dp_pricing *p, const struct dp_span *span, double bytes)
{
    if (span->ranks <= 1 || bytes <= 0) {
        return 0;
    }
    const struct dp_device_figures *d = p->device;
    double members = span->ranks, share = (members - 1) / members;
    double rate = d->collective_up_share * d->up_bytes_per_s;
    double latency = d->collective_start_s + ceil(log2(members)) * d->up_latency_s;
    if (crosses(span)) {
        double inside = fmax(1, span->inside);
        double out = d->collective_out_share * dp_pricing_out_bytes_per_s(p, span) * inside;
        rate = inside > 1 ? fmin(rate, out) : out;
        latency += ceil(log2(members / inside)) * dp_pricing_out_latency_s(p, span);
    }
    return share * bytes / rate + latency;
}

// Of `choices` distinct ones out of `all` in `places` equal places: how many places are visited.
static double visited(double places, double all, double choices)
{
    double in_one = all / places, missed = 1;
    for (int32_t i = 0; i < choices && i < all; i++) {
        missed *= fmax(0, all - in_one - i) / (all - i);
    }
    return places * (1 - missed);
}

// Domains that a token visits when its experts lie in top_groups of expert_groups. Groups are
// neighbours: several share a domain, or one spreads over several.
static double domains_visited(const struct dp_model_spec *m, double domains)
{
    if (m->top_groups <= 0 || m->expert_groups <= m->top_groups) {
        return visited(domains, m->experts, m->top_k);
    }
    double groups = m->expert_groups, chosen = m->top_groups;
    if (domains <= groups) {
        return visited(domains, groups, chosen);
    }
    double each = domains / groups, choices = fmax(1, m->top_k / chosen);
    return chosen * each * (1 - pow(1 - 1 / each, choices));
}

// Ranks that a token visits: its top_groups groups hold their part of all ranks and experts.
static double ranks_visited(const struct dp_model_spec *m, double ranks)
{
    double part = 1;
    if (m->top_groups > 0 && m->expert_groups > m->top_groups && ranks >= m->expert_groups) {
        part = (double)m->top_groups / m->expert_groups;
    }
    return visited(ranks * part, m->experts * part, m->top_k);
}

void dp_pricing_copies(const struct dp_pricing *p, struct dp_copies *ret_copies)
{
    const struct dp_span *span = &p->input->spans.expert;
    double ranks = span->ranks, inside = crosses(span) ? fmax(1, span->inside) : ranks;
    double domains = ranks / inside;
    if (p->device->exchange_once < 0.5) {
        *ret_copies = (struct dp_copies){
            .out = p->model->top_k * (ranks - inside) / ranks,
            .up = p->model->top_k * (inside - 1) / ranks,
        };
        return;
    }
    // A copy that comes from outside arrives at the rank with its sender's index and goes on to
    // those of its domain that want it.
    *ret_copies = (struct dp_copies){
        .out = domains_visited(p->model, domains) * (domains - 1) / domains,
        .up = ranks_visited(p->model, ranks) * (inside - 1) / inside,
    };
}

// What a link gives, or what multiprocessors move where only some take part.
static double exchange_rate(double link, double units, double each)
{
    return units > 0 && each > 0 ? fmin(link, units * each) : link;
}

// One all-to-all of `bytes` a copy: links work side by side, but for what fills the pipeline
// between them.
static double transfer_s(const struct dp_pricing *p, const struct dp_copies *copies, double units,
                         double bytes)
{
    const struct dp_device_figures *d = p->device;
    const struct dp_span *span = &p->input->spans.expert;
    double rows = p->split_tokens * p->imbalance * bytes;
    double up_rate = exchange_rate(d->up_bytes_per_s * d->exchange_up_share, units,
                                   d->exchange_up_unit_bytes_per_s);
    double out_rate = exchange_rate(dp_pricing_out_bytes_per_s(p, span) * d->exchange_out_share,
                                    units, d->exchange_out_unit_bytes_per_s);
    double up_s = rows * copies->up / up_rate, out_s = rows * copies->out / out_rate;
    double latency = crosses(span) ? dp_pricing_out_latency_s(p, span) : d->up_latency_s;
    return fmax(up_s, out_s) + d->exchange_fill_share * fmin(up_s, out_s) + latency +
           d->exchange_start_s + d->exchange_rank_s * span->ranks;
}

double dp_pricing_dispatch_bytes(const struct dp_pricing *p)
{
    bool narrow = p->device->exchange_fp8 >= 0.5 && p->format != DP_FORMAT_BF16 &&
                  p->format != DP_FORMAT_FP32;
    return narrow ? dp_format_bytes(DP_FORMAT_FP8_BLOCK) : 2;
}

void dp_pricing_exchange(const struct dp_pricing *p, double units, struct dp_exchange *ret_exchange)
{
    if (p->input->spans.expert.ranks <= 1 || p->model->experts <= 0) {
        *ret_exchange = (struct dp_exchange){0, 0};
        return;
    }
    struct dp_copies copies;
    dp_pricing_copies(p, &copies);
    double h = p->model->hidden, wide = 2 * h, thin = h * dp_pricing_dispatch_bytes(p);
    // The gradient of a combine is a dispatch and the other way round.
    double both = transfer_s(p, &copies, units, thin) + transfer_s(p, &copies, units, wide);
    *ret_exchange = (struct dp_exchange){both, both};
}

// Megatron's tensor parallelism: rows are gathered before a block's first product and summed up
// and scattered after its last; without sequence parallelism they are all-reduced, which moves the
// same. The backward pass does the same and gathers once more for the weight gradient, hidden
// behind the input gradient.
static void add_tensor_wait(const struct dp_pricing *p, bool is_moe, struct dp_unit_price *price)
{
    const struct dp_model_spec *m = p->model;
    double rows = p->tokens * m->hidden * 2;
    double blocks = is_moe && m->shared_experts == 0 ? 1 : 2;
    double one = dp_pricing_gather_s(p, &p->input->spans.tensor, rows);
    double wait = 2 * blocks * one * p->device->tensor_exposed_share;
    price->forward_wait_s += wait;
    price->backward_wait_s += wait;
    if (is_moe && p->strategy->expert_tensor > 1) {
        double copies = p->split_tokens * m->top_k * p->imbalance;
        struct dp_span span = p->input->spans.tensor;
        span.ranks = p->strategy->expert_tensor;
        span.inside = span.inside < span.ranks ? span.inside : span.ranks;
        double gathered = dp_pricing_gather_s(p, &span, copies * span.ranks * m->hidden * 2);
        price->forward_wait_s += 2 * gathered;
        price->backward_wait_s += 2 * gathered;
    }
}

// Keys and values of other context ranks come round in a ring while the core works on those that
// are here; gradients of both go round besides in the backward pass.
static void add_context_wait(const struct dp_pricing *p, struct dp_unit_price *price)
{
    const struct dp_model_spec *m = p->model;
    double heads = m->mla_kv_rank > 0 ? m->heads : m->kv_heads;
    double width = m->mla_kv_rank > 0 ? (double)m->mla_nope_dim + m->mla_rope_dim + m->mla_v_dim
                                      : 2.0 * m->head_dim;
    double bytes = p->tokens * p->context * fmax(1, heads / p->tensor) * width * 2;
    double one = dp_pricing_gather_s(p, &p->input->spans.context, bytes);
    price->forward_wait_s += one * p->device->context_exposed_share;
    price->backward_wait_s += 2 * one * p->device->context_exposed_share;
}

// FSDP: a unit's weights are gathered before each pass while another computes, gradients are
// scattered after the backward pass.
static void add_shard_wait(const struct dp_pricing *p, const struct dp_unit_bytes *bytes,
                           struct dp_unit_price *price)
{
    const struct dp_spans *spans = &p->input->spans;
    double dense = 2 * bytes->parameters.dense, experts = 2 * bytes->parameters.experts;
    double gather = dp_pricing_gather_s(p, &spans->data, dense) +
                    dp_pricing_gather_s(p, &spans->expert_data, experts);
    // Gradients in their own width, weights in two bytes.
    double width = p->profile->memory.gradient_bytes > 0 ? p->profile->memory.gradient_bytes : 4;
    double scatter = dp_pricing_gather_s(p, &spans->data, width / 2 * dense) +
                     dp_pricing_gather_s(p, &spans->expert_data, width / 2 * experts);
    double exposed = p->device->shard_exposed_share;
    double backward = price->input_s + price->weight_s;
    price->forward_wait_s += fmax(gather * exposed, gather - price->forward_s);
    price->backward_wait_s += fmax((gather + scatter) * exposed, gather + scatter - backward);
}

void dp_pricing_wait(const struct dp_pricing *p, bool is_moe, const struct dp_unit_bytes *bytes,
                     struct dp_unit_price *price)
{
    if (p->tensor > 1) {
        add_tensor_wait(p, is_moe, price);
    }
    if (p->context > 1) {
        add_context_wait(p, price);
    }
    if (p->strategy->shard == DP_SHARD_FSDP) {
        add_shard_wait(p, bytes, price);
    }
}
