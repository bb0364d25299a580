// Prices of units on an accelerator, and their sums.

#include "dp/price.h"

#include <math.h>
#include <string.h>

#include "price_internal.h"

void dp_spans_default(const struct dp_strategy *s, int32_t domain, struct dp_spans *ret_spans)
{
    int64_t inner = 1, position = (int64_t)s->tensor * s->context * s->data;
    domain = domain < 1 ? 1 : domain;
    struct {
        int64_t ranks, stride;
        struct dp_span *span;
    } rows[] = {
        {s->tensor, inner, &ret_spans->tensor},
        {s->context, s->tensor, &ret_spans->context},
        {(int64_t)s->expert * s->expert_tensor, inner, &ret_spans->expert},
        {(int64_t)s->data * s->context, s->tensor, &ret_spans->data},
        {position / ((int64_t)s->expert * s->expert_tensor), (int64_t)s->expert * s->expert_tensor,
         &ret_spans->expert_data},
        {s->pipeline > 1 ? 2 : 1, position, &ret_spans->hop},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        int64_t ranks = rows[i].ranks < 1 ? 1 : rows[i].ranks;
        int64_t inside = domain / rows[i].stride;
        inside = inside < 1 ? 1 : inside > ranks ? ranks : inside;
        *rows[i].span = (struct dp_span){(int32_t)ranks, (int32_t)inside, inside < ranks};
    }
    // Ranks that share an expert's width exchange rows of their own.
    ret_spans->expert.ranks /= s->expert_tensor;
    int32_t inside = ret_spans->expert.inside / s->expert_tensor;
    ret_spans->expert.inside = inside < 1 ? 1 : inside;
    ret_spans->expert.level = ret_spans->expert.inside < ret_spans->expert.ranks;
}

static dp_format format_of(const struct dp_device_figures *device, dp_format wanted)
{
    return wanted != DP_FORMAT_AUTO && dp_device_flops_peak(device, wanted) > 0 ? wanted
                                                                                : DP_FORMAT_BF16;
}

// How many deviations above the mean the largest of n normal values lies: the quantile at
// (n - 3/8) / (n + 1/4) (Blom 1958), by Newton's method.
static double largest_of(double n)
{
    double p = (n - 0.375) / (n + 0.25), z = sqrt(2 * log(n));
    for (int i = 0; i < 8; i++) {
        double density = exp(-z * z / 2) / sqrt(2 * M_PI);
        z -= (1 - erfc(z / M_SQRT2) / 2 - p) / density;
    }
    return z;
}

// Rows of the fullest of an exchange's ranks over their mean. Experts are chosen by sequence: each
// sequence gives an expert a share of its own, with deviation `routing_spread`. What a rank gets is
// the mean over the group's sequences and the rank's experts, and every exchange waits for the
// fullest of them. Shares that are never negative are skewed, their sums like a gamma
// distribution's: z + skewness / 6 (z^2 - 1) (Cornish and Fisher), where the skewness is twice the
// deviation.
static double imbalance_of(const struct dp_price_input *input)
{
    const struct dp_strategy *s = input->strategy;
    double spread = input->profile->device.routing_spread, n = s->expert;
    if (s->imbalance > 1 || spread <= 0 || n < 2 || input->model->experts < 1) {
        return fmax(1, s->imbalance);
    }
    double sequences = fmax(1, s->micro_batch_size * n / ((double)s->tensor * s->context));
    double experts = fmax(1, input->model->experts / n);
    double z = largest_of(n), deviation = spread / sqrt(sequences * experts);
    double excess = deviation * (z + deviation / 3 * fmax(0, z * z - 1));
    // Not more than all rows on one rank.
    return fmin(1 + excess, n);
}

void dp_pricing_init(struct dp_pricing *pricing, const struct dp_price_input *input)
{
    const struct dp_strategy *s = input->strategy;
    const struct dp_device_figures *device = &input->profile->device;
    double tokens = (double)s->micro_batch_size * input->sequence / s->context;
    *pricing = (struct dp_pricing){
        .input = input,
        .model = input->model,
        .strategy = s,
        .profile = input->profile,
        .device = device,
        .format = format_of(device, s->format),
        .tokens = tokens,
        .split_tokens = tokens / s->tensor,
        .tensor = s->tensor,
        .context = s->context,
        .imbalance = imbalance_of(input),
        .memory_bytes_per_s = device->memory_bytes_per_s * device->memory_share,
    };
}

// Kernels follow each other on the device unless the host cannot start them as fast.
static void set_compute(const struct dp_pricing *p, const struct dp_tally *tally, double host_s,
                        struct dp_unit_price *price)
{
    double backward_s = host_s * p->device->host_backward_factor / 2;
    price->forward_s = fmax(tally->forward_s, host_s);
    price->input_s = fmax(tally->input_s, backward_s);
    price->weight_s = fmax(tally->weight_s, backward_s);
    price->flops = tally->flops;
}

// A layer that is computed again from its input repeats all of its forward pass.
static void repeat_forward(struct dp_unit_price *price)
{
    price->input_s += price->forward_s;
    price->backward_wait_s += price->forward_wait_s;
    price->backward_exchange_s += price->forward_exchange_s;
}

// Products of experts are started one by one, and so are the casts before and after them.
static double host_moe_s(const struct dp_pricing *p)
{
    bool narrow = p->format != DP_FORMAT_BF16 && p->format != DP_FORMAT_FP32;
    double experts = fmax(1, (double)p->model->experts / p->strategy->expert);
    return p->device->host_moe_s + p->device->host_expert_s * experts * (narrow ? 1 : 1.0 / 3);
}

static void price_layer(const struct dp_pricing *p, bool is_moe, const struct dp_tally *besides,
                        const struct dp_unit_bytes *bytes, struct dp_unit_price *price)
{
    struct dp_tally tally = *besides;
    dp_pricing_attention(p, &tally);
    if (is_moe) {
        struct dp_exchange exchange;
        dp_pricing_moe_ffn(p, &tally);
        dp_pricing_exchange(p, 0, &exchange);
        price->forward_exchange_s = exchange.forward_s * p->device->exchange_shown_share;
        price->backward_exchange_s = exchange.backward_s * p->device->exchange_shown_share;
    } else {
        dp_pricing_dense_ffn(p, &tally);
    }
    set_compute(p, &tally, is_moe ? host_moe_s(p) : p->device->host_dense_s, price);
    dp_pricing_wait(p, is_moe, bytes, price);
    if (dp_pricing_again(p, DP_RECOMPUTE_FULL)) {
        repeat_forward(price);
    }
}

static void price_plain(const struct dp_pricing *p, const struct dp_tally *tally,
                        struct dp_unit_price *price)
{
    set_compute(p, tally, 0, price);
}

// A pair that leaves `units` multiprocessors to the exchange.
static void add_mode(const struct dp_pricing *p, double units, double hops_s,
                     struct dp_price *price)
{
    const struct dp_device_figures *d = p->device;
    struct dp_exchange alone, beside;
    dp_pricing_exchange(p, 0, &alone);
    dp_pricing_exchange(p, units, &beside);
    // Units hold what passes alone show of the exchange; in a pair all of it takes part.
    double slower = beside.forward_s / alone.forward_s / d->exchange_shown_share;
    price->pair_modes[price->pair_modes_count++] = (struct dp_pair_mode){
        .units = (int32_t)units,
        .device_share = d->units > units ? units / d->units : 0,
        .exchange_factor = slower * d->exchange_contention,
        .exposed_share = d->exchange_exposed_share,
        .hops_s = hops_s * d->exchange_contention,
    };
}

static void put_best_mode_first(struct dp_price *price)
{
    const struct dp_unit_price *moe = &price->units[DP_UNIT_MOE];
    const struct dp_chunk_price chunk = {
        .forward_s = moe->forward_s,
        .input_s = moe->input_s,
        .weight_s = moe->weight_s,
        .forward_exchange_s = moe->forward_exchange_s,
        .backward_exchange_s = moe->backward_exchange_s,
    };
    int32_t best = 0;
    double best_s = INFINITY;
    int32_t count = price->pair_modes_count;
    for (int32_t i = 0; i < count; i++) {
        struct dp_price one = {.pair_modes = {price->pair_modes[i]}, .pair_modes_count = 1};
        double seconds = dp_price_pair_s(&one, &chunk, &chunk, true, NULL);
        if (seconds < best_s) {
            best = i;
            best_s = seconds;
        }
    }
    struct dp_pair_mode first = price->pair_modes[best];
    price->pair_modes[best] = price->pair_modes[0];
    price->pair_modes[0] = first;
    price->comm_units = first.units;
}

// Without a wish: nothing set apart (F, then B), or one of a few numbers. They are the same
// whatever the links, so that faster ones never make a pair slower.
static void set_modes(const struct dp_pricing *p, double hops_s, struct dp_price *price)
{
    static const int32_t choices[] = {4, 8, 12, 16, 20, 24, 32};
    const struct dp_device_figures *d = p->device;
    const struct dp_unit_price *moe = &price->units[DP_UNIT_MOE];
    double alone_s = moe->forward_exchange_s + moe->backward_exchange_s;
    const struct dp_pair_mode apart = {.exchange_factor = 1, .exposed_share = 1};
    price->pair_modes[0] = apart;
    price->pair_modes_count = 1;
    price->comm_units = 0;
    if (alone_s <= 0 || d->exchange_exposed_share >= 1) {
        return;
    }
    if (p->strategy->comm_units > 0) {
        price->pair_modes_count = 0;
        add_mode(p, p->strategy->comm_units, hops_s, price);
        price->comm_units = p->strategy->comm_units;
        return;
    }
    if (d->exchange_up_unit_bytes_per_s <= 0 && d->exchange_out_unit_bytes_per_s <= 0) {
        add_mode(p, 0, hops_s, price);
    }
    for (size_t i = 0; i < sizeof(choices) / sizeof(choices[0]); i++) {
        if (price->pair_modes_count < DP_PAIR_MODES_MAX && 2 * choices[i] < d->units) {
            add_mode(p, choices[i], hops_s, price);
        }
    }
    put_best_mode_first(price);
}

// Returns what both results of an FB take of the link that the exchange uses as well.
static double set_hop(const struct dp_pricing *p, struct dp_price *price)
{
    const struct dp_span *hop = &p->input->spans.hop;
    const struct dp_device_figures *d = p->device;
    // Tensor ranks each send their share (scatter-gather, arXiv 2104.04473).
    price->hop_bytes = 2 * p->split_tokens * p->model->hidden;
    if (hop->ranks <= 1) {
        return 0;
    }
    bool out = hop->level > 0;
    double rate = out ? dp_pricing_out_bytes_per_s(p, hop) : d->up_bytes_per_s;
    double latency = out ? dp_pricing_out_latency_s(p, hop) : d->up_latency_s;
    double wire_s = price->hop_bytes / (rate * d->hop_share);
    bool shared = p->input->spans.expert.ranks > 1 && p->model->experts > 0 &&
                  (p->input->spans.expert.level > 0) == out;
    price->hop_s = latency + wire_s * (shared ? d->hop_contention : 1);
    return shared ? 2 * wire_s : 0;
}

static void price_mtp(const struct dp_pricing *p, bool is_moe, const struct dp_unit_bytes *bytes,
                      struct dp_unit_price *price)
{
    double h = p->model->hidden;
    struct dp_tally besides = {0};
    dp_pricing_embedding(p, &besides);
    dp_pricing_elements(p, p->split_tokens * h, 6, 8, 3, false, &besides);
    dp_pricing_linear(p, p->format, p->tokens, 2 * h, h / p->tensor, false, &besides);
    dp_pricing_head(p, &besides);
    price_layer(p, is_moe, &besides, bytes, price);
}

void dp_price_units(const struct dp_price_input *input, struct dp_price *ret_price)
{
    memset(ret_price, 0, sizeof(*ret_price));
    dp_memory_units(input, ret_price->bytes);
    if (!input->profile->is_accelerator) {
        dp_price_cpu_units(input, ret_price);
        return;
    }
    struct dp_pricing pricing;
    dp_pricing_init(&pricing, input);
    const struct dp_model_spec *m = input->model;
    const struct dp_tally nothing = {0};
    struct dp_unit_price *units = ret_price->units;
    const struct dp_unit_bytes *bytes = ret_price->bytes;
    if (m->experts == 0 || m->dense_layers > 0) {
        price_layer(&pricing, false, &nothing, &bytes[DP_UNIT_DENSE], &units[DP_UNIT_DENSE]);
    }
    if (m->experts > 0) {
        price_layer(&pricing, true, &nothing, &bytes[DP_UNIT_MOE], &units[DP_UNIT_MOE]);
    }
    struct dp_tally embedding = {0}, head = {0};
    dp_pricing_embedding(&pricing, &embedding);
    dp_pricing_head(&pricing, &head);
    price_plain(&pricing, &embedding, &units[DP_UNIT_EMBEDDING]);
    price_plain(&pricing, &head, &units[DP_UNIT_HEAD]);
    if (m->mtp_layers > 0) {
        price_mtp(&pricing, dp_model_layer_is_moe(m, m->layers - 1), &bytes[DP_UNIT_MTP],
                  &units[DP_UNIT_MTP]);
    }
    ret_price->action_overhead_s = input->profile->device.action_s;
    set_modes(&pricing, set_hop(&pricing, ret_price), ret_price);
}
