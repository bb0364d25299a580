// What a layer of a plan keeps of one micro-batch, tensor by tensor.

#include "plan_tensors.h"

#include <stdlib.h>

#include "dp/cleanup.h"
#include "dp/memory.h"
#include "dp/plan_text.h"
#include "dp/price.h"

static int32_t at_least_one(int32_t size)
{
    return size > 0 ? size : 1;
}

// Of the plan's strategy, what bytes of tensors depend on.
static struct dp_strategy strategy_of(const struct plan_question *question,
                                      const struct dp_plan *plan)
{
    double imbalance = question->spec.parallel.imbalance; // the plan's is what prices made of it
    return (struct dp_strategy){
        .pipeline = plan->pipeline,
        .data = plan->data,
        .tensor = at_least_one(plan->tensor),
        .context = at_least_one(plan->context),
        .expert = plan->expert,
        .expert_tensor = at_least_one(plan->expert_tensor),
        .micro_batch_size = plan->micro_batch_size,
        .sequence_parallel = plan->sequence_parallel,
        .format = plan->format,
        .recompute = plan->recompute,
        .imbalance = imbalance >= 1 ? imbalance : 1,
    };
}

static int by_bytes(const void *a, const void *b)
{
    const struct dp_memory_tensor *one = a, *other = b;
    double first = one->recomputed ? 0 : one->elements * one->bytes;
    double second = other->recomputed ? 0 : other->elements * other->bytes;
    return (first < second) - (first > second);
}

static size_t tensors_of(const struct plan_question *question, const struct dp_plan *plan, int unit,
                         struct dp_memory_tensor *ret_tensors)
{
    const struct dp_strategy strategy = strategy_of(question, plan);
    const struct dp_price_input input = {.model = &question->spec.model,
                                         .profile = &question->profile,
                                         .strategy = &strategy,
                                         .sequence = question->spec.train.sequence};
    size_t count = dp_memory_tensors(&input, unit, ret_tensors);
    qsort(ret_tensors, count, sizeof(*ret_tensors), by_bytes);
    return count;
}

static const struct {
    int unit;
    const char *key, *name;
} kinds[] = {{DP_UNIT_DENSE, "dense", "a dense layer"}, {DP_UNIT_MOE, "moe", "an MoE layer"}};

// The largest that are kept, the others together, and what comes again.
static void put_unit(const struct dp_memory_tensor *tensors, size_t count, const char *name,
                     struct dp_buf *out)
{
    enum { NAMED = 6, COLUMNS = 100 };
    char text[32];
    double kept = 0, rest = 0, deferred = 0, again = 0;
    for (size_t i = 0; i < count; i++) {
        double bytes = tensors[i].elements * tensors[i].bytes;
        deferred += tensors[i].elements * tensors[i].deferred;
        again += tensors[i].recomputed ? bytes : 0;
        kept += tensors[i].recomputed ? 0 : bytes;
        rest += tensors[i].recomputed || i < NAMED ? 0 : bytes;
    }
    DP_CLEANUP(dp_buf_deinit) struct dp_buf line = {0};
    dp_buf_printf(&line, "%s keeps %s of a micro-batch:", name, dpctl_bytes(text, kept));
    for (size_t i = 0; i < count && i < NAMED && !tensors[i].recomputed; i++) {
        dp_buf_printf(&line, "%s %s %s", i > 0 ? "," : "", tensors[i].name,
                      dpctl_bytes(text, tensors[i].elements * tensors[i].bytes));
    }
    if (rest > 0) {
        dp_buf_printf(&line, ", others %s", dpctl_bytes(text, rest));
    }
    if (again > 0) {
        dp_buf_printf(&line, "; computes %s again", dpctl_bytes(text, again));
    }
    dp_buf_printf(&line, "; a split backward keeps %s until W", dpctl_bytes(text, deferred));
    dp_plan_text_wrap("of these   ", line.bytes, COLUMNS, out);
}

// Whether one of the stages has a layer with experts, or one without.
static bool has_kind(const struct dp_model_spec *model, const struct dp_plan *plan,
                     const int32_t *stages, int32_t stages_count, bool is_moe)
{
    for (int32_t i = 0; i < stages_count; i++) {
        const int32_t *layers = &plan->layer_begin[stages[i]];
        for (int32_t layer = layers[0]; layer < layers[1]; layer++) {
            if (dp_model_layer_is_moe(model, layer) == is_moe) {
                return true;
            }
        }
    }
    return false;
}

void plan_tensors_put(const struct plan_question *question, const struct dp_plan *plan,
                      const int32_t *stages, int32_t stages_count, struct dp_buf *out)
{
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        struct dp_memory_tensor tensors[DP_MEMORY_TENSORS_MAX];
        size_t count = tensors_of(question, plan, kinds[i].unit, tensors);
        if (count > 0 && has_kind(&question->spec.model, plan, stages, stages_count,
                                  kinds[i].unit == DP_UNIT_MOE)) {
            put_unit(tensors, count, kinds[i].name, out);
        }
    }
}

json_t *plan_tensors_json(const struct plan_question *question, const struct dp_plan *plan)
{
    json_t *json = json_object();
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        struct dp_memory_tensor tensors[DP_MEMORY_TENSORS_MAX];
        size_t count = tensors_of(question, plan, kinds[i].unit, tensors);
        json_t *list = json_array();
        for (size_t t = 0; t < count; t++) {
            const struct dp_memory_tensor *tensor = &tensors[t];
            json_array_append_new(list,
                                  json_pack("{s:s, s:f, s:f, s:b}", "name", tensor->name, "bytes",
                                            tensor->elements * tensor->bytes, "deferred_bytes",
                                            tensor->elements * tensor->deferred, "recomputed",
                                            tensor->recomputed));
        }
        json_object_set_new(json, kinds[i].key, list);
    }
    return json;
}
