#include "dp/placement.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "place.h"

_Static_assert((int)DP_PLACEMENT_LEVELS == (int)DP_FABRIC_BLOCKS_MAX, "one level for each block");

static int32_t at_least_one(int32_t value)
{
    return value > 1 ? value : 1;
}

struct name {
    const char *text;
    int32_t node;
};

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct name *)a)->text, ((const struct name *)b)->text);
}

static dp_status find_places(const struct dp_plan *plan, const struct dp_planner_node *nodes,
                             size_t count, struct dp_place *ret_places, struct dp_error *err)
{
    DP_AUTO_FREE struct name *names = dp_new_array(struct name, count);
    for (size_t i = 0; i < count; i++) {
        names[i] = (struct name){nodes[i].name, (int32_t)i};
    }
    if (count > 0) {
        qsort(names, count, sizeof(*names), compare_names);
    }
    for (int32_t i = 0; i < dp_plan_world(plan); i++) {
        struct name key = {plan->ranks[i].node, 0};
        const struct name *found =
            count == 0 ? NULL : bsearch(&key, names, count, sizeof(*names), compare_names);
        if (found == NULL) {
            return dp_fail(err, DP_NOT_FOUND, "rank %d stands on node \"%s\", which is not given",
                           i, plan->ranks[i].node);
        }
        ret_places[i] = (struct dp_place){found->node, plan->ranks[i].slot};
    }
    return DP_OK;
}

// Experts of a token are on ranks of `top_groups` groups of experts, each of which is on
// neighbouring ranks of the EP group.
static int32_t count_token_domains(const struct dp_model_spec *model, const struct dp_span *expert)
{
    int32_t inside = at_least_one(expert->inside);
    int32_t all = (expert->ranks + inside - 1) / inside;
    if (model->expert_groups < 1 || model->top_groups < 1 ||
        expert->ranks % model->expert_groups != 0) {
        return all;
    }
    int32_t ranks = expert->ranks / model->expert_groups;
    int32_t limited = model->top_groups * ((ranks + inside - 1) / inside);
    return limited < all ? limited : all;
}

dp_status dp_placement_of(const struct dp_plan *plan, const struct dp_model_spec *model,
                          const struct dp_planner_node *nodes, size_t nodes_count,
                          struct dp_placement *ret_placement, struct dp_error *err)
{
    DP_AUTO_FREE struct dp_place *places =
        dp_new_array(struct dp_place, (size_t)dp_plan_world(plan));
    dp_status status = find_places(plan, nodes, nodes_count, places, err);
    if (status != DP_OK) {
        return status;
    }
    const struct dp_place_sizes sizes = {
        .pipeline = plan->pipeline,
        .data = plan->data,
        .tensor = at_least_one(plan->tensor),
        .context = at_least_one(plan->context),
        .expert = at_least_one(plan->expert),
        .expert_tensor = at_least_one(plan->expert_tensor),
    };
    DP_CLEANUP(dp_fabric_deinit) struct dp_fabric fabric;
    dp_fabric_init(&fabric, nodes, nodes_count);
    struct dp_placement placement;
    dp_place_spans_of(&fabric, &sizes, places, &placement.spans);
    dp_place_hops(&fabric, &sizes, places, placement.hops);
    placement.token_domains = count_token_domains(model, &placement.spans.expert);
    *ret_placement = placement;
    return DP_OK;
}

static const char *level_name(const char *const *levels, int32_t level)
{
    return level == 0 ? "scale-up" : level == 1 || levels == NULL ? "scale-out" : levels[level - 2];
}

static void put_group(const char *name, const struct dp_span *span, const char *const *levels,
                      struct dp_buf *out)
{
    if (span->ranks < 2) {
        return;
    }
    dp_buf_printf(out, "  %-12s %5d ranks", name, span->ranks);
    if (span->level == 0) {
        dp_buf_puts(out, ", all in one scale-up domain\n");
    } else {
        dp_buf_printf(out, ", %d in a scale-up domain, over %s\n", span->inside,
                      level_name(levels, span->level));
    }
}

void dp_placement_render(const struct dp_placement *placement, const char *const *levels,
                         struct dp_buf *out)
{
    const struct dp_spans *spans = &placement->spans;
    dp_buf_puts(out, "groups on the fabric, each kind where it fares worst\n");
    put_group("tensor", &spans->tensor, levels, out);
    put_group("context", &spans->context, levels, out);
    put_group("expert", &spans->expert, levels, out);
    put_group("expert data", &spans->expert_data, levels, out);
    put_group("data", &spans->data, levels, out);
    if (spans->expert.ranks > 1) {
        dp_buf_printf(out, "  the experts of one token are in at most %d scale-up domain%s\n",
                      placement->token_domains, placement->token_domains == 1 ? "" : "s");
    }
    bool any = false;
    for (int32_t level = 0; level < DP_PLACEMENT_LEVELS; level++) {
        if (placement->hops[level] > 0) {
            dp_buf_printf(out, "%s%" PRId64 " over %s",
                          any ? ", " : "  hops between stages: ", placement->hops[level],
                          level_name(levels, level));
            any = true;
        }
    }
    dp_buf_puts(out, any ? "\n" : "");
}
