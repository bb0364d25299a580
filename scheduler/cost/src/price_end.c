// The end of a step: gradients are summed up over replicas, parameters are updated.

#include <math.h>

#include "price_internal.h"

// Every replica reduces its gradients and, where states are split, gets its new weights back; an
// all-reduce moves as much as both.
static double reduction_s(const struct dp_pricing *p, const struct dp_span *span, double parameters)
{
    double gradient = p->profile->memory.gradient_bytes > 0 ? p->profile->memory.gradient_bytes : 4;
    double reduce = dp_pricing_gather_s(p, span, parameters * gradient);
    double gather = p->strategy->shard == DP_SHARD_NONE ? reduce
                    : p->strategy->shard == DP_SHARD_FSDP
                        ? 0
                        : dp_pricing_gather_s(p, span, parameters * 2);
    return p->strategy->shard == DP_SHARD_FSDP ? 0 : reduce + gather;
}

// Master weights and two moments are read and written, the gradient read, the weight written.
static double update_s(const struct dp_pricing *p, const struct dp_span *span, double parameters)
{
    const struct dp_memory_traits *t = &p->profile->memory;
    double master = t->master_bytes > 0 ? t->master_bytes : 4;
    double moment = t->moment_bytes > 0 ? t->moment_bytes : 4;
    double gradient = t->gradient_bytes > 0 ? t->gradient_bytes : 4;
    double shards = p->strategy->shard == DP_SHARD_NONE ? 1 : span->ranks;
    double bytes = 2 * (master + 2 * moment) + gradient + 2;
    return parameters / shards * bytes /
           (p->device->memory_bytes_per_s * p->device->optimizer_share);
}

// Holders of the same parameters: every replica, and the other direction's position, which stands
// as far away as neighbours in the pipeline do.
static struct dp_span holders(const struct dp_price_input *input, const struct dp_span *replicas,
                              int32_t copies)
{
    struct dp_span span = *replicas;
    if (copies > 1) {
        int32_t hop = input->spans.hop.level;
        span.ranks *= copies;
        span.inside *= hop > 0 ? 1 : copies;
        span.level = span.level > hop ? span.level : hop;
    }
    return span;
}

void dp_price_step_end(const struct dp_price_input *input, const struct dp_unit_parameters *held,
                       int32_t copies, struct dp_step_end *ret_end)
{
    struct dp_span dense = holders(input, &input->spans.data, copies);
    struct dp_span experts = holders(input, &input->spans.expert_data, copies);
    if (!input->profile->is_accelerator) {
        dp_price_cpu_step_end(input, held, &dense, &experts, ret_end);
        return;
    }
    struct dp_pricing p;
    dp_pricing_init(&p, input);
    double reduction =
        reduction_s(&p, &dense, held->dense) + reduction_s(&p, &experts, held->experts);
    ret_end->gradient_s = reduction * p.device->gradient_exposed_share;
    ret_end->optimizer_s =
        update_s(&p, &dense, held->dense) + update_s(&p, &experts, held->experts);
}
