// What the parts of the price of a micro-batch share.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "dp/price.h"

// One way of dividing a model, with the sizes that every part needs.
struct dp_pricing {
    const struct dp_price_input *input;
    const struct dp_model_spec *model;
    const struct dp_strategy *strategy;
    const struct dp_profile *profile;
    const struct dp_device_figures *device;
    dp_format format;       // of products: what the device has of what was asked for
    double tokens;          // of one rank's share of the context
    double split_tokens;    // those over tensor ranks: what norms (with sequence parallelism) and
                            // experts see
    double tensor, context; // sizes
    double imbalance;       // rows of the fullest expert rank over their mean
    double memory_bytes_per_s;
};
void dp_pricing_init(struct dp_pricing *pricing, const struct dp_price_input *input);

// What passes of one unit take on the device alone.
struct dp_tally {
    double forward_s, input_s, weight_s;
    double flops; // of the forward pass
};
void dp_tally_add(struct dp_tally *sum, const struct dp_tally *part, double times);

// The bytes of one element with its scales.
double dp_format_bytes(dp_format format);

// groups products c[m, n] = a[m, k] b[k, n] in one kernel. share: of what large products reach;
// output_bytes: of an element of c, read and write both counted.
double dp_pricing_gemm_s(const struct dp_pricing *pricing, dp_format format, double groups,
                         double m, double n, double k, double share, double output_bytes);
// A kernel that reads and writes bytes.
double dp_pricing_memory_s(const struct dp_pricing *pricing, double bytes);

// The parts of a layer. again: the backward pass computes the forward pass once more.
void dp_pricing_attention(const struct dp_pricing *pricing, struct dp_tally *tally);
void dp_pricing_dense_ffn(const struct dp_pricing *pricing, struct dp_tally *tally);
void dp_pricing_moe_ffn(const struct dp_pricing *pricing, struct dp_tally *tally);
void dp_pricing_embedding(const struct dp_pricing *pricing, struct dp_tally *tally);
void dp_pricing_head(const struct dp_pricing *pricing, struct dp_tally *tally);
void dp_pricing_linear(const struct dp_pricing *pricing, dp_format format, double m, double k,
                       double n, bool again, struct dp_tally *tally);
void dp_pricing_elements(const struct dp_pricing *pricing, double elements, double forward,
                         double input, double weight, bool again, struct dp_tally *tally);
static inline bool dp_pricing_again(const struct dp_pricing *pricing, uint32_t what)
{
    return (pricing->strategy->recompute & what) != 0;
}

// Bytes per second and rank, and the latency of a message, between members of a group that lie in
// different scale-up domains.
double dp_pricing_out_bytes_per_s(const struct dp_pricing *pricing, const struct dp_span *span);
double dp_pricing_out_latency_s(const struct dp_pricing *pricing, const struct dp_span *span);
// An all-gather or reduce-scatter that leaves (takes) `bytes` on each member.
double dp_pricing_gather_s(const struct dp_pricing *pricing, const struct dp_span *span,
                           double bytes);

// Copies of a token that leave its rank: over links between domains, and inside them.
struct dp_copies {
    double out, up;
};
void dp_pricing_copies(const struct dp_pricing *pricing, struct dp_copies *ret_copies);
// Of an element of a row that is dispatched, with its scale; what is combined is bf16.
double dp_pricing_dispatch_bytes(const struct dp_pricing *pricing);
// One dispatch and combine, and those of a backward pass, alone on the fabric, moved by
// `units` multiprocessors (0 = as many as it likes).
struct dp_exchange {
    double forward_s, backward_s;
};
void dp_pricing_exchange(const struct dp_pricing *pricing, double units,
                         struct dp_exchange *ret_exchange);

// Collectives of tensor, sequence and context parallelism and FSDP that one layer waits for, after
// its compute is known.
void dp_pricing_wait(const struct dp_pricing *pricing, bool is_moe,
                     const struct dp_unit_bytes *bytes, struct dp_unit_price *price);

// The same answers by dp/cost.h, for this project's executor on CPU cores.
void dp_price_cpu_units(const struct dp_price_input *input, struct dp_price *ret_price);
void dp_price_cpu_step_end(const struct dp_price_input *input,
                           const struct dp_unit_parameters *held, const struct dp_span *dense,
                           const struct dp_span *experts, struct dp_step_end *ret_end);
