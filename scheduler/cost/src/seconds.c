// Seconds of a chunk: every matrix product by its shape, attention, and the rest by its bytes.

#include <math.h>

#include "dp/cost.h"

// What one layer, head or embedding adds to each pass.
struct tally {
    const struct dp_profile *profile;
    double forward_s, input_s, weight_s;
};

static void add_scaled(struct tally *tally, const struct tally *part, double times)
{
    tally->forward_s += times * part->forward_s;
    tally->input_s += times * part->input_s;
    tally->weight_s += times * part->weight_s;
}

// y[m, n] = x[m, k] W[n, k]^T and its two gradients. Measured rates are of weights that come from
// memory, as those of a whole stage do; published ones are not, so that the weights are read (their
// gradients read and written) at the speed of memory besides.
static void add_linear(struct tally *tally, double m, double k, double n)
{
    if (m <= 0) {
        return;
    }
    const struct dp_profile *p = tally->profile;
    double flops = 2 * m * k * n;
    double load_s = p->gemms_count > 0 ? 0 : k * n * p->element_bytes / p->memory_bytes_per_s;
    double overhead_s = p->op_overhead_s;
    tally->forward_s +=
        flops / dp_profile_gemm_flops_per_s(p, DP_GEMM_NT, m, k, n) + load_s + overhead_s;
    tally->input_s +=
        flops / dp_profile_gemm_flops_per_s(p, DP_GEMM_NN, m, n, k) + load_s + overhead_s;
    tally->weight_s +=
        flops / dp_profile_gemm_flops_per_s(p, DP_GEMM_TN, n, m, k) + 2 * load_s + overhead_s;
}

// Elementwise work: how many times `elements` are read or written in each pass.
static void add_elements(struct tally *tally, double elements, double forward, double input,
                         double weight)
{
    const struct dp_profile *p = tally->profile;
    double seconds = elements * p->element_bytes / p->memory_bytes_per_s;
    tally->forward_s += forward * seconds + (forward > 0 ? p->op_overhead_s : 0);
    tally->input_s += input * seconds + (input > 0 ? p->op_overhead_s : 0);
    tally->weight_s += weight * seconds + (weight > 0 ? p->op_overhead_s : 0);
}

// Norm and residual around a block: forward reads and writes the row, the gradient twice that.
static void add_norm(struct tally *tally, const struct dp_model_spec *m, double tokens)
{
    add_elements(tally, tokens * m->hidden, 4, 6, 3);
}

static void add_projections(struct tally *tally, const struct dp_model_spec *m, double tokens)
{
    double h = m->hidden, heads = m->heads;
    if (m->mla_kv_rank == 0) {
        add_linear(tally, tokens, h, (heads + 2.0 * m->kv_heads) * m->head_dim);
        add_linear(tally, tokens, heads * m->head_dim, h);
        return;
    }
    double nope = m->mla_nope_dim, rope = m->mla_rope_dim, value = m->mla_v_dim;
    if (m->mla_q_rank > 0) {
        add_linear(tally, tokens, h, m->mla_q_rank);
        add_linear(tally, tokens, m->mla_q_rank, heads * (nope + rope));
    } else {
        add_linear(tally, tokens, h, heads * (nope + rope));
    }
    add_linear(tally, tokens, h, m->mla_kv_rank + rope);
    add_linear(tally, tokens, m->mla_kv_rank, heads * (nope + value));
    add_linear(tally, tokens, heads * value, h);
}

static void add_attention(struct tally *tally, const struct dp_model_spec *m, double tokens,
                          double sequence)
{
    const struct dp_profile *p = tally->profile;
    double width = m->mla_kv_rank > 0 ? (double)m->mla_nope_dim + m->mla_rope_dim + m->mla_v_dim
                                      : 2.0 * m->head_dim;
    double core = tokens * sequence * m->heads * width;
    add_norm(tally, m, tokens);
    add_projections(tally, m, tokens);
    add_elements(tally, tokens * m->heads * width, 1, 1, 0); // rotation
    tally->forward_s += core / p->attention_flops_per_s + p->op_overhead_s;
    // The gradient recomputes the scores: five products where forward has two (arXiv 2205.14135).
    tally->input_s += 2.5 * core / p->attention_gradient_flops_per_s + p->op_overhead_s;
}

static void add_ffn(struct tally *tally, double rows, double hidden, double width)
{
    if (rows <= 0 || width <= 0) {
        return;
    }
    const struct dp_profile *p = tally->profile;
    add_linear(tally, rows, hidden, 2 * width);
    add_linear(tally, rows, width, hidden);
    tally->forward_s += rows * width / p->activation_elements_per_s + p->op_overhead_s;
    tally->input_s += rows * width / p->activation_gradient_elements_per_s + p->op_overhead_s;
}

// The routed experts of one rank. Every rank of the EP group sends an equal share to each expert.
static struct tally routed_experts(const struct dp_profile *profile, const struct dp_model_spec *m,
                                   double tokens, const struct dp_cost_batch *batch)
{
    struct tally one = {.profile = profile}, all = {.profile = profile};
    add_ffn(&one, tokens * batch->ep_size * m->top_k / m->experts, m->hidden, m->expert_ffn);
    add_scaled(&all, &one, (double)m->experts / batch->ep_size);
    return all;
}

static void add_moe(struct tally *tally, const struct dp_model_spec *m, double tokens,
                    const struct dp_cost_batch *batch)
{
    double h = m->hidden;
    add_norm(tally, m, tokens);
    add_linear(tally, tokens, h, m->experts);
    add_elements(tally, tokens * m->experts, 4, 4, 0);
    struct tally routed = routed_experts(tally->profile, m, tokens, batch);
    add_scaled(tally, &routed, 1);
    add_ffn(tally, tokens, h, (double)m->shared_experts * m->expert_ffn);
    // Rows are gathered to their experts and back.
    add_elements(tally, tokens * m->top_k * h, 4, 4, 0);
}

// `count` layers of one kind cost alike.
static void add_layers(struct tally *tally, const struct dp_model_spec *m, double count, bool moe,
                       const struct dp_cost_batch *batch)
{
    if (count <= 0) {
        return;
    }
    struct tally one = {.profile = tally->profile};
    double tokens = (double)batch->samples * batch->sequence;
    add_attention(&one, m, tokens, batch->sequence);
    if (moe) {
        add_moe(&one, m, tokens, batch);
    } else {
        add_norm(&one, m, tokens);
        add_ffn(&one, tokens, m->hidden, m->ffn);
    }
    add_scaled(tally, &one, count);
}

// How much more than its share the fullest of n ranks has: the mean of the largest of n values is
// at most (n - 1) / sqrt(2 n - 1) deviations above theirs, and close to it for few (Hartley and
// David, Ann. Math. Stat. 25, 1954). A rank's experts even each other out.
static double fullest_excess(const struct dp_model_spec *m, const struct dp_profile *profile,
                             int32_t ep_size)
{
    double experts = (double)m->experts / ep_size;
    return profile->routing_spread / sqrt(experts) * (ep_size - 1) / sqrt(2.0 * ep_size - 1);
}

// All-to-all of one MoE layer, and the wait for the peer with the most rows.
static void set_exchange(const struct dp_model_spec *m, const struct dp_profile *profile,
                         const struct dp_cost_batch *batch, double layers,
                         struct dp_cost_chunk *chunk)
{
    if (batch->ep_size <= 1) {
        return;
    }
    const struct dp_link_profile link =
        batch->ep_nodes <= 1 ? dp_profile_exchange(profile, batch->ep_size) : profile->network;
    double tokens = (double)batch->samples * batch->sequence;
    double rows_s = dp_cost_exchange_bytes(m, profile, batch) / link.bytes_per_s + link.latency_s;
    double excess = fullest_excess(m, profile, batch->ep_size);
    struct tally routed = routed_experts(profile, m, tokens, batch);
    // Forward tells the peers first how many rows they get.
    chunk->forward_exchange_s = layers * (link.latency_s + 2 * rows_s + excess * routed.forward_s);
    chunk->backward_exchange_s =
        layers * (2 * rows_s + excess * (routed.input_s + routed.weight_s));
}

void dp_cost_chunk(const struct dp_model_spec *model, const struct dp_profile *profile,
                   const struct dp_cost_stage *stage, const struct dp_cost_batch *batch,
                   struct dp_cost_chunk *ret_chunk)
{
    struct tally tally = {.profile = profile};
    double tokens = (double)batch->samples * batch->sequence;
    double moe_layers = 0, dense_layers = 0;
    for (int32_t layer = stage->layer_begin; layer < stage->layer_end; layer++) {
        moe_layers += dp_model_layer_is_moe(model, layer);
        dense_layers += !dp_model_layer_is_moe(model, layer);
    }
    add_layers(&tally, model, dense_layers, false, batch);
    add_layers(&tally, model, moe_layers, true, batch);
    if (stage->has_embedding) {
        add_elements(&tally, tokens * model->hidden, 2, 0, 3);
    }
    if (stage->has_head) {
        add_norm(&tally, model, tokens);
        add_linear(&tally, tokens, model->hidden, model->vocabulary);
        add_elements(&tally, tokens * model->vocabulary, 3, 3, 0);
    }
    *ret_chunk = (struct dp_cost_chunk){
        .forward_s = tally.forward_s + profile->action_overhead_s,
        .input_s = tally.input_s + profile->action_overhead_s,
        .weight_s = tally.weight_s + profile->action_overhead_s,
    };
    set_exchange(model, profile, batch, moe_layers, ret_chunk);
}

double dp_cost_pair_s(const struct dp_profile *profile, const struct dp_cost_chunk *forward,
                      const struct dp_cost_chunk *backward, bool with_weight)
{
    double compute =
        forward->forward_s + backward->input_s + (with_weight ? backward->weight_s : 0);
    double exchange = forward->forward_exchange_s + backward->backward_exchange_s;
    if (exchange <= 0 || profile->exchange_hidden_share <= 0) {
        return compute + exchange;
    }
    double slowed = compute / (1 - profile->exchange_device_share);
    double hidden = exchange * profile->exchange_hidden_share;
    return fmax(slowed, hidden) + exchange - hidden;
}

// Layers of a stage, and what embedding and head add to its forward.
static double sim_layers(const struct dp_cost_stage *stage)
{
    return (double)stage->layer_end - stage->layer_begin;
}

static double sim_extra_s(const struct dp_sim_spec *sim, const struct dp_cost_stage *stage)
{
    return (stage->has_embedding ? sim->embedding_s : 0) + (stage->has_head ? sim->head_s : 0);
}

void dp_cost_sim_chunk(const struct dp_sim_spec *sim, const struct dp_cost_stage *stage,
                       struct dp_cost_sim_chunk *ret_chunk)
{
    double layers = sim_layers(stage) + sim_extra_s(sim, stage) / sim->forward_s;
    *ret_chunk = (struct dp_cost_sim_chunk){
        .forward_s = sim->scale * layers * sim->forward_s,
        .input_s = sim->scale * layers * sim->input_grad_s,
        .weight_s = sim->scale * layers * sim->weight_grad_s,
    };
}

double dp_cost_sim_pair_s(const struct dp_sim_spec *sim, const struct dp_cost_stage *forward,
                          const struct dp_cost_stage *backward, bool with_weight)
{
    double both = fmin(sim_layers(forward), sim_layers(backward));
    struct dp_cost_sim_chunk f, b;
    dp_cost_sim_chunk(sim, forward, &f);
    dp_cost_sim_chunk(sim, backward, &b);
    double shared_f = sim->scale * both * sim->forward_s;
    double shared_i = sim->scale * both * sim->input_grad_s;
    double shared_w = sim->scale * both * sim->weight_grad_s;
    double pair = sim->scale * both * sim->pair_s;
    if (!with_weight) {
        pair = fmax(pair - shared_w, fmax(shared_f, shared_i));
    }
    double rest_f = f.forward_s - shared_f;
    double rest_b = b.input_s - shared_i + (with_weight ? b.weight_s - shared_w : 0);
    return pair + rest_f + rest_b;
}

double dp_cost_sum_s(const struct dp_link_profile *link, double bytes, int32_t members)
{
    if (members <= 1) {
        return 0;
    }
    double rounds = 2.0 * (members - 1);
    return rounds * (link->latency_s + bytes / members / link->sum_bytes_per_s);
}

// Reads weight, gradient and two moments; writes weight and moments.
double dp_cost_optimizer_s(const struct dp_profile *profile, double parameters)
{
    double bytes =
        2 * profile->weight_bytes + profile->gradient_bytes + 2 * profile->optimizer_bytes;
    return parameters * bytes / profile->optimizer_bytes_per_s;
}
