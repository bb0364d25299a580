// Words for a strategy that does not fit, and what could be changed.

#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "peak.h"

#define GIB 1073741824.0

static void add_change(struct memory_change *changes, size_t *count,
                       const struct dp_strategy *strategy, const char *name, int32_t value)
{
    struct memory_change *change = &changes[(*count)++];
    *change = (struct memory_change){.strategy = *strategy};
    char recompute[DP_NAME_MAX];
    dp_recompute_text(strategy->recompute, recompute);
    DP_AUTO_FREE char *text = name != NULL ? dp_asprintf("%s = %d", name, (int)value)
                                           : dp_asprintf("recompute = %s", recompute);
    DP_COPY_TEXT(change->what, text);
}

// Recomputation in the order of what it costs: elementwise first, then products, then everything.
static void add_recomputation(struct memory_change *changes, size_t *count,
                              const struct dp_strategy *strategy, const struct dp_model_spec *model)
{
    if ((strategy->recompute & DP_RECOMPUTE_FULL) != 0) {
        return;
    }
    uint32_t up = model->mla_kv_rank > 0 ? DP_RECOMPUTE_UP : 0;
    uint32_t experts = model->experts > 0 ? DP_RECOMPUTE_EXPERTS : 0;
    const uint32_t steps[] = {DP_RECOMPUTE_NORM | DP_RECOMPUTE_ACTIVATION, up, experts};
    struct dp_strategy next = *strategy;
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        if ((next.recompute | steps[i]) != next.recompute) {
            next.recompute |= steps[i];
            add_change(changes, count, &next, NULL, 0);
        }
    }
    next.recompute = DP_RECOMPUTE_FULL;
    add_change(changes, count, &next, NULL, 0);
}

static bool can_split_experts(const struct dp_strategy *s, const struct dp_model_spec *model)
{
    int64_t group = 2 * (int64_t)s->expert * s->expert_tensor;
    int64_t ranks = (int64_t)s->data * s->tensor * s->context;
    return model->experts > 0 && model->experts % (2 * s->expert) == 0 && ranks % group == 0;
}

static bool can_split_heads(const struct dp_strategy *s, const struct dp_model_spec *model)
{
    int32_t tensor = 2 * s->tensor;
    return model->heads % tensor == 0 && tensor <= 8;
}

size_t dp_planner_memory_changes(const struct dp_strategy *strategy,
                                 const struct dp_model_spec *model,
                                 struct memory_change ret_changes[MEMORY_CHANGES_MAX])
{
    size_t count = 0;
    struct dp_strategy next = *strategy;
    if (strategy->micro_batch_size > 1) {
        next.micro_batch_size /= 2;
        next.microbatches *= 2;
        add_change(ret_changes, &count, &next, "micro_batch_size", next.micro_batch_size);
    }
    if (strategy->shard == DP_SHARD_NONE && strategy->data * strategy->context > 1) {
        next = *strategy;
        next.shard = DP_SHARD_ZERO1;
        add_change(ret_changes, &count, &next, "shard", 0);
        DP_COPY_TEXT(ret_changes[count - 1].what, "shard = zero1");
    }
    add_recomputation(ret_changes, &count, strategy, model);
    if (can_split_experts(strategy, model)) {
        next = *strategy;
        next.expert *= 2;
        add_change(ret_changes, &count, &next, "expert", next.expert);
    }
    if (2 * strategy->pipeline <= model->layers && 2 * strategy->pipeline <= DP_PIPELINE_MAX) {
        next = *strategy;
        next.pipeline *= 2;
        add_change(ret_changes, &count, &next, "pipeline", next.pipeline);
    }
    if (can_split_heads(strategy, model)) {
        next = *strategy;
        next.tensor *= 2;
        next.sequence_parallel = true;
        add_change(ret_changes, &count, &next, "tensor", next.tensor);
    }
    return count;
}

static void write_parts(const struct memory_refusal *refusal, struct dp_buf *out)
{
    const struct dp_memory_parts *p = &refusal->parts;
    const struct {
        const char *name;
        double bytes;
        int32_t chunks;
    } parts[] = {
        {"weights", p->weights, -1},
        {"gradients", p->gradients, -1},
        {"optimizer", p->optimizer, -1},
        {"activations", p->activations, refusal->kept},
        {"until W", p->deferred, refusal->deferred},
        {"running action", p->transient, -1},
        {"communication", p->exchange, -1},
        {"runtime", p->runtime, -1},
    };
    const char *separator = "";
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        if (parts[i].bytes < 0.005 * GIB) {
            continue;
        }
        dp_buf_printf(out, "%s%s %.2f", separator, parts[i].name, parts[i].bytes / GIB);
        if (parts[i].chunks >= 0) {
            dp_buf_printf(out, " (%d chunk%s)", (int)parts[i].chunks,
                          parts[i].chunks == 1 ? "" : "s");
        }
        separator = ", ";
    }
    dp_buf_puts(out, " GiB");
}

static void write_change(const struct memory_refusal *refusal, struct dp_buf *out)
{
    const struct memory_change *nearest = NULL;
    for (size_t i = 0; i < refusal->changes_count; i++) {
        const struct memory_change *change = &refusal->changes[i];
        if (change->bytes > 0 && change->bytes <= refusal->limit) {
            dp_buf_printf(out, "; %s would fit, with %.1f GiB", change->what, change->bytes / GIB);
            return;
        }
        if (change->bytes > 0 && (nearest == NULL || change->bytes < nearest->bytes)) {
            nearest = change;
        }
    }
    if (nearest != NULL) {
        dp_buf_printf(out, "; no single change fits: %s comes nearest, with %.1f GiB",
                      nearest->what, nearest->bytes / GIB);
    }
}

void dp_planner_memory_refusal_write(const struct memory_refusal *refusal, struct dp_buf *out)
{
    double total = dp_memory_total(&refusal->parts);
    dp_buf_printf(out, "rank %d (pipeline position %d) needs %.1f GiB of %.1f: %.1f GiB too much",
                  (int)refusal->rank, (int)refusal->position, total / GIB, refusal->limit / GIB,
                  (total - refusal->limit) / GIB);
    dp_buf_puts(out, ", in ");
    dp_action_format(&refusal->action, out);
    if (refusal->at_s >= 0) {
        dp_buf_printf(out, " at %.3g s", refusal->at_s);
    }
    dp_buf_puts(out, ": ");
    write_parts(refusal, out);
    write_change(refusal, out);
}
