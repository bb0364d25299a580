// Shared by the files that count what chunks of this project's executor hold.
#pragma once

#include "dp/cost.h"
#include "dp/strategy.h"

// What is summed up for one phase of a chunk. Reals are what stays in float whatever the elements
// are: norms' scales, logits, log-sum-exps, routing weights.
struct sum {
    const struct dp_model_spec *model;
    double tokens;
    uint32_t recompute, offload;
    bool save_fp8;
    bool after_input;
    double elements, reals, indices, bytes;
};
// Of the batch's choices, after forward, with nothing summed up.
struct sum dp_cost_sum_of(const struct dp_model_spec *model, const struct dp_cost_batch *batch);
double dp_cost_sum_bytes(const struct sum *sum, const struct dp_profile *profile);
bool dp_cost_keeps(const struct sum *sum, uint32_t bits);

double dp_cost_attended_width(const struct dp_model_spec *model);
struct dp_cost_routed dp_cost_balanced(const struct dp_model_spec *model,
                                       const struct dp_cost_batch *batch);
// Input, norm, rows and log-sum-exp; after the input gradient the log-sum-exp is gone, the output's
// gradient has come.
void dp_cost_add_attention(struct sum *sum);
void dp_cost_add_ffn(struct sum *sum, bool is_moe, const struct dp_cost_routed *routed);
void dp_cost_add_head(struct sum *sum);
void dp_cost_add_mtp(struct sum *sum, const struct dp_cost_routed *routed);
