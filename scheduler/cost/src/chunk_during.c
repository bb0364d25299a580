// What this project's executor holds beyond its chunks' own while a pass is inside one layer, and
// the room that passes and kernels work in.

#include <math.h>

#include "chunk_bytes.h"

// One layer while a pass is inside it, with all of it on the device.
struct inside {
    const struct dp_model_spec *model;
    const struct dp_profile *profile;
    const struct dp_cost_batch *batch;
    struct dp_cost_routed routed;
    bool is_moe;
};

static struct sum sum_of(const struct inside *in, uint32_t recompute)
{
    struct sum sum = dp_cost_sum_of(in->model, in->batch);
    sum.recompute = recompute;
    sum.offload = 0;
    return sum;
}

static double attention_bytes(const struct inside *in, uint32_t recompute)
{
    struct sum sum = sum_of(in, recompute);
    dp_cost_add_attention(&sum);
    return dp_cost_sum_bytes(&sum, in->profile);
}

static double ffn_bytes(const struct inside *in, uint32_t recompute)
{
    struct sum sum = sum_of(in, recompute);
    dp_cost_add_ffn(&sum, in->is_moe, &in->routed);
    return dp_cost_sum_bytes(&sum, in->profile);
}

// Before an FFN drops what it does not keep. An activation that is not kept never has room of its
// own in forward.
static uint32_t ffn_inside(uint32_t recompute)
{
    uint32_t light = DP_RECOMPUTE_NORM | DP_RECOMPUTE_ACTIVATION;
    if ((recompute & DP_RECOMPUTE_FULL) != 0) {
        return light;
    }
    bool drops = (recompute & DP_RECOMPUTE_EXPERTS) != 0;
    return (recompute & light) | (drops ? DP_RECOMPUTE_ACTIVATION : 0u);
}

// Beside what a layer keeps: rows that leave and arrive, outputs of experts before and after they
// are added up; in a backward pass gradients of both sides. Each is [rows, hidden] of elements.
// Rows that are kept as codes are there besides while forward reads them; in a backward pass they
// take the place of gradients.
static void ffn_rows(const struct inside *in, struct sum *forward, struct sum *backward)
{
    const struct dp_model_spec *m = in->model;
    double h = m->hidden, hop = forward->tokens * h;
    forward->elements = hop;      // the output
    backward->elements = 2 * hop; // gradients of output and input
    backward->reals = h;
    if (!in->is_moe) {
        return;
    }
    double rows = in->routed.rows * h, tokens = in->routed.tokens * h;
    forward->elements += (in->batch->save_fp8 ? 2 : 1) * rows + tokens;
    backward->elements = hop + 2 * rows + tokens + (m->shared_experts > 0 ? hop : 0);
    backward->reals = in->routed.rows + in->routed.tokens * m->top_k;
}

void dp_cost_layer_during(const struct dp_model_spec *model, const struct dp_profile *profile,
                          const struct dp_cost_batch *batch, bool is_moe,
                          const struct dp_cost_routed *routed, struct dp_cost_during *ret_during)
{
    const struct inside in = {model, profile, batch,
                              routed != NULL ? *routed : dp_cost_balanced(model, batch), is_moe};
    uint32_t kept = batch->recompute;
    bool is_full = (kept & DP_RECOMPUTE_FULL) != 0;
    uint32_t whole = is_full ? DP_RECOMPUTE_NORM : kept & DP_RECOMPUTE_NORM;
    struct sum forward = sum_of(&in, 0), backward = sum_of(&in, 0);
    ffn_rows(&in, &forward, &backward);
    double hop = dp_cost_hop_bytes(model, profile, batch) * profile->activation_share;
    double attention = attention_bytes(&in, kept);
    double all = attention + ffn_bytes(&in, kept);
    double ffn = attention + ffn_bytes(&in, ffn_inside(kept));
    struct sum away = dp_cost_sum_of(model, batch);
    dp_cost_add_attention(&away);
    dp_cost_add_ffn(&away, is_moe, &in.routed);
    struct dp_cost_during during = {.attention = attention,
                                    .away = all - dp_cost_sum_bytes(&away, profile)};
    during.forward =
        fmax(attention_bytes(&in, whole) + hop, ffn + dp_cost_sum_bytes(&forward, profile)) - all;
    ffn = attention_bytes(&in, is_full ? whole : kept) + ffn_bytes(&in, whole);
    during.backward =
        fmax(attention_bytes(&in, whole) + 2 * hop, ffn + dp_cost_sum_bytes(&backward, profile)) -
        all;
    *ret_during = during;
}

void dp_cost_ends_during(const struct dp_model_spec *model, const struct dp_profile *profile,
                         const struct dp_cost_batch *batch, bool is_head,
                         struct dp_cost_during *ret_during)
{
    const struct inside in = {.model = model, .profile = profile, .batch = batch};
    double hop = dp_cost_hop_bytes(model, profile, batch) * profile->activation_share;
    struct sum gain = sum_of(&in, 0);
    gain.reals = is_head ? model->hidden : 0;
    *ret_during = (struct dp_cost_during){.forward = is_head ? 0 : hop,
                                          .backward = hop + dp_cost_sum_bytes(&gain, profile)};
}

// Of MTP with all of it kept, after forward or after input; is_head: its head alone.
static double mtp_bytes(const struct inside *in, bool is_head, bool after_input)
{
    struct sum sum = sum_of(in, in->batch->recompute);
    sum.after_input = after_input;
    if (is_head) {
        dp_cost_add_head(&sum);
    } else {
        dp_cost_add_mtp(&sum, &in->routed);
    }
    return dp_cost_sum_bytes(&sum, in->profile);
}

// Forward is fullest inside the layer, before the head has made its logits, or at the end. Backward
// the head's gradients are there while the layer's are made, and at the end that of the hidden
// rows, which goes on to the head of the model.
void dp_cost_mtp_during(const struct dp_model_spec *model, const struct dp_profile *profile,
                        const struct dp_cost_batch *batch, const struct dp_cost_routed *routed,
                        struct dp_cost_during *ret_during)
{
    struct dp_cost_batch on_device = *batch;
    on_device.offload = 0;
    const struct inside in = {model, profile, &on_device,
                              routed != NULL ? *routed : dp_cost_balanced(model, batch),
                              dp_model_layer_is_moe(model, model->layers)};
    struct dp_cost_during layer;
    dp_cost_layer_during(model, profile, &on_device, in.is_moe, &in.routed, &layer);
    double hop = dp_cost_hop_bytes(model, profile, batch) * profile->activation_share;
    double head = mtp_bytes(&in, true, false), head_after = mtp_bytes(&in, true, true);
    double all = mtp_bytes(&in, false, false), after = mtp_bytes(&in, false, true);
    double first = head_after - head + layer.backward;
    *ret_during = (struct dp_cost_during){
        .forward = fmax(layer.forward - head, 0),
        .backward = fmax(hop, fmax(first, after + hop - all)),
        .attention = all,
    };
}

// A product y = x w' of so many rows.
struct product {
    double rows, in, out;
    bool is_real; // whatever the elements and the choices are
};

enum { PRODUCTS_MAX = 11 };

// Of a matrix that is converted in panels (kernels/device).
#define PANEL_VALUES 131072.0
// Of scores that attention works on at a time, rows of a block and their stride (likewise).
#define BLOCK_ROWS 64
#define BLOCK_KEYS 272

// Of a micro-batch, at the busiest expert of a rank.
static double expert_rows(const struct dp_model_spec *m, const struct dp_cost_batch *batch,
                          const struct dp_cost_holds *holds)
{
    double equal = dp_cost_balanced(m, batch).rows * batch->ep_size / fmax(m->experts, 1);
    return holds->busiest_rows > 0 ? holds->busiest_rows : equal;
}

static size_t list_products(const struct dp_model_spec *m, const struct dp_cost_batch *batch,
                            const struct dp_cost_holds *holds, struct product *ret_products)
{
    double tokens = (double)batch->samples * batch->sequence, h = m->hidden;
    double each = expert_rows(m, batch, holds);
    double query = (double)m->heads * (m->mla_nope_dim + m->mla_rope_dim);
    double qkv = m->mla_kv_rank > 0 ? query : ((double)m->heads + 2.0 * m->kv_heads) * m->head_dim;
    double low = m->mla_q_rank, kv = m->mla_kv_rank;
    double raised = (double)m->heads * (m->mla_nope_dim + m->mla_v_dim);
    double shared = (double)m->shared_experts * m->expert_ffn;
    bool layers = holds->dense || holds->moe, latent = layers && kv > 0;
    const struct product all[PRODUCTS_MAX] = {
        {layers ? tokens : 0, low > 0 ? low : h, qkv, false},
        {latent && low > 0 ? tokens : 0, h, low, false},
        {latent ? tokens : 0, h, kv + m->mla_rope_dim, false},
        {latent ? tokens : 0, kv, raised, false},
        {layers ? tokens : 0, dp_cost_attended_width(m), h, false},
        {holds->dense ? tokens : 0, h, 2.0 * m->ffn, false},
        {holds->moe ? tokens : 0, h, 2 * shared, false},
        {holds->moe ? each : 0, h, 2.0 * m->expert_ffn, false},
        {holds->moe ? tokens : 0, h, m->experts, true},
        {holds->head ? tokens : 0, h, m->vocabulary, true},
        {holds->mtp ? tokens : 0, 2 * h, h, false},
    };
    for (size_t i = 0; i < PRODUCTS_MAX; i++) {
        ret_products[i] = all[i];
    }
    return PRODUCTS_MAX;
}

// What attention takes of one head, and where elements are not what products compute in, their
// operands converted: rows whole; the matrix in panels forward, by each thread, and whole in the
// input gradient; the result before it is rounded. The head's and the router's results are reals.
static double kernel_bytes(const struct dp_model_spec *m, const struct dp_profile *profile,
                           const struct dp_cost_batch *batch, const struct product *products,
                           size_t count)
{
    double key = m->mla_kv_rank > 0 ? (double)m->mla_nope_dim + m->mla_rope_dim : m->head_dim;
    double value = m->mla_kv_rank > 0 ? m->mla_v_dim : m->head_dim;
    double threads = fmax(batch->threads, 1);
    double head = batch->sequence * (3 * key + 2 * value);
    double block = BLOCK_ROWS * (2 * BLOCK_KEYS + 2 * key + value);
    double whole = 0, shared = threads * (head + block);
    for (size_t i = 0; i < count && profile->element_bytes < 4; i++) {
        const struct product *p = &products[i];
        if (p->rows > 0 && p->out > 0) {
            double result = p->is_real ? 0 : p->rows * p->out;
            double panel = fmin(fmax(floor(PANEL_VALUES / p->in), 64), ceil(p->out / threads));
            whole = fmax(whole, p->rows * p->in + result);
            whole = fmax(whole, p->out * p->in + result);
            shared = fmax(shared, threads * panel * (p->in + p->rows));
            shared = fmax(shared, p->rows * p->in);
        }
    }
    return 4 * (whole + shared);
}

double dp_cost_room_bytes(const struct dp_model_spec *m, const struct dp_profile *profile,
                          const struct dp_cost_batch *batch, const struct dp_cost_holds *holds)
{
    struct product products[PRODUCTS_MAX];
    size_t count = list_products(m, batch, holds, products);
    struct sum sum = dp_cost_sum_of(m, batch);
    double wide = 0, narrow = 0, tokens = sum.tokens;
    for (size_t i = 0; i < count; i++) {
        const struct product *p = &products[i];
        wide = !p->is_real ? fmax(wide, p->rows * p->out) : wide;
        narrow = !p->is_real ? fmax(narrow, p->rows * p->in) : narrow;
    }
    // Gradients inside attention and FFNs, which are as wide as what they are gradients of.
    bool layers = holds->dense || holds->moe;
    double widest = layers ? tokens * dp_cost_attended_width(m) : 0;
    widest = holds->mtp ? fmax(widest, tokens * 2 * m->hidden) : widest;
    widest = holds->dense ? fmax(widest, tokens * m->ffn) : widest;
    if (holds->moe) {
        widest = fmax(widest, tokens * m->shared_experts * m->expert_ffn);
        widest = fmax(widest, expert_rows(m, batch, holds) * m->expert_ffn);
        // The gate's choice of its one expert, and its weights' gradient.
        sum.indices += m->shared_gate > 0 ? tokens : 0;
        sum.reals += m->shared_gate > 0 ? tokens : 0;
    }
    bool any = layers || holds->head;
    sum.elements = any ? tokens * m->hidden + widest : 0;
    sum.elements += any && !dp_cost_keeps(&sum, DP_RECOMPUTE_NORM) ? tokens * m->hidden : 0;
    if (layers && m->mla_kv_rank > 0) {
        sum.elements += tokens * m->heads * ((double)m->mla_nope_dim + m->mla_rope_dim);
        sum.elements += tokens * fmax(m->mla_kv_rank, m->mla_q_rank);
    } else if (layers && m->qk_norm > 0) {
        sum.elements += tokens * ((double)m->heads + m->kv_heads) * m->head_dim;
    }
    sum.bytes = batch->fp8 ? (wide + narrow) * (1 + 4.0 / 128) : 0;
    return dp_cost_sum_bytes(&sum, profile) + kernel_bytes(m, profile, batch, products, count);
}

double dp_cost_windows_bytes(const struct dp_model_spec *m, const struct dp_profile *profile,
                             const struct dp_cost_batch *batch)
{
    if (batch->ep_size <= 1 || m->experts == 0) {
        return 0;
    }
    double tokens = (double)batch->samples * batch->sequence, nodes = fmax(batch->ep_nodes, 1);
    double row = (double)m->hidden * profile->element_bytes, real = fmax(profile->element_bytes, 4);
    double scales = ceil(m->hidden / 128.0) * 4, weights = m->top_k * real, index = m->top_k * 4.0;
    // Ranks of a node each forward for one rank of every other node.
    double received = batch->ep_size + (nodes - 1);
    double returned = nodes * (batch->ep_size / nodes - 1) + nodes;
    double rows = 2 * received * (row + scales) + 2 * returned * row;
    return tokens * (rows + received * (index + weights) + returned * weights);
}
