// Operations per token, by the convention of published TFLOP/s.

#include "dp/cost.h"

// Widths that attention's core multiplies per head: scores, then values.
static double attention_width(const struct dp_model_spec *m)
{
    return m->mla_kv_rank > 0 ? (double)m->mla_nope_dim + m->mla_rope_dim + m->mla_v_dim
                              : 2.0 * m->head_dim;
}

double dp_cost_attention_flops(const struct dp_model_spec *model, int32_t layer, int32_t sequence,
                               bool full_attention)
{
    // A token sees sequence / 2 others on average; in a window w, what the first w tokens lack.
    double window = dp_model_layer_window(model, layer), seen = sequence;
    if (window > 0 && window < sequence) {
        seen = 2 * window - window * window / sequence;
    }
    return (full_attention ? 2 : 1) * seen * model->heads * attention_width(model);
}

double dp_cost_layer_flops(const struct dp_model_spec *model, int32_t layer, int32_t sequence,
                           bool full_attention)
{
    struct dp_layer_parts parts;
    dp_model_layer_parts(model, layer, &parts);
    return 2 * (double)dp_layer_parts_active(&parts) +
           dp_cost_attention_flops(model, layer, sequence, full_attention);
}

double dp_cost_forward_flops_per_token(const struct dp_model_spec *model, int32_t sequence,
                                       const struct dp_cost_flops_options *options)
{
    double flops = 2 * (double)dp_model_head_parameters(model);
    for (int32_t layer = 0; layer < model->layers; layer++) {
        flops += dp_cost_layer_flops(model, layer, sequence, options->full_attention);
    }
    if (options->with_mtp) {
        flops += 2 * (double)dp_model_mtp_active_parameters(model);
        flops += model->mtp_layers *
                 dp_cost_attention_flops(model, model->layers, sequence, options->full_attention);
    }
    return flops;
}

double dp_cost_flops_per_token(const struct dp_model_spec *model, int32_t sequence,
                               const struct dp_cost_flops_options *options)
{
    return 3 * dp_cost_forward_flops_per_token(model, sequence, options);
}
