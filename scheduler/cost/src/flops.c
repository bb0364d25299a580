#include "dp/cost.h"

// Widths that attention's core multiplies per head: scores, then values.
static double attention_width(const struct dp_model_spec *m)
{
    return m->mla_kv_rank > 0 ? (double)m->mla_nope_dim + m->mla_rope_dim + m->mla_v_dim
                              : 2.0 * m->head_dim;
}

// Parameters that a token meets in the MTP layers: a layer, the projection, the head again.
static double mtp_active_parameters(const struct dp_model_spec *m)
{
    double h = m->hidden;
    double layer = (double)dp_model_layer_shared_parameters(m, m->layers - 1);
    if (dp_model_layer_is_moe(m, m->layers - 1)) {
        layer += 3.0 * h * m->expert_ffn * m->top_k;
    }
    return m->mtp_layers * (layer + 2 * h * h + h * m->vocabulary);
}

double dp_cost_forward_flops_per_token(const struct dp_model_spec *model, int32_t sequence,
                                       const struct dp_cost_flops_options *options)
{
    double active = (double)dp_model_active_parameters(model);
    double layers = model->layers;
    if (options->with_mtp) {
        active += mtp_active_parameters(model);
        layers += model->mtp_layers;
    }
    double attention = layers * sequence * model->heads * attention_width(model);
    return 2 * active + (options->full_attention ? 2 : 1) * attention;
}

double dp_cost_flops_per_token(const struct dp_model_spec *model, int32_t sequence,
                               const struct dp_cost_flops_options *options)
{
    return 3 * dp_cost_forward_flops_per_token(model, sequence, options);
}
