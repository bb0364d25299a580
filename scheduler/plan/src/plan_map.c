// Where ranks stand, for people and for launchers.

#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/plan.h"

// What one rank is in each dimension.
struct coordinates {
    int32_t pipeline, data, context, tensor, expert;
};

static struct coordinates coordinates_of(const struct dp_plan *plan, int32_t rank)
{
    int32_t tensor = plan->tensor > 1 ? plan->tensor : 1;
    int32_t context = plan->context > 1 ? plan->context : 1;
    int32_t expert_tensor = plan->expert_tensor > 1 ? plan->expert_tensor : 1;
    struct coordinates at = {
        .tensor = rank % tensor,
        .context = rank / tensor % context,
        .pipeline = dp_plan_rank_position(plan, rank),
        .data = rank / dp_plan_shards(plan) / plan->pipeline,
    };
    int32_t of_position = (at.data * context + at.context) * tensor + at.tensor;
    at.expert = of_position / expert_tensor % plan->expert;
    return at;
}

void dp_plan_render_rank_file(const struct dp_plan *plan, struct dp_buf *out)
{
    dp_buf_puts(out, "# rank\tnode\tslot\tpipeline\tdata\tcontext\ttensor\texpert\n");
    for (int32_t i = 0; i < dp_plan_world(plan); i++) {
        struct coordinates at = coordinates_of(plan, i);
        dp_buf_printf(out, "%d\t%s\t%d\t%d\t%d\t%d\t%d\t%d\n", i, plan->ranks[i].node,
                      plan->ranks[i].slot, at.pipeline, at.data, at.context, at.tensor, at.expert);
    }
}

enum { DIMENSIONS = 4 };
static const char *const dimension_names[DIMENSIONS] = {"pipeline", "data", "context", "tensor"};

// Ranks of one node, or of neighbours, as ranges of each dimension.
struct box {
    int32_t low[DIMENSIONS], high[DIMENSIONS];
    int32_t first, last; // nodes: indices into the list of ranks by node
    int32_t ranks, nodes;
};

// For qsort, which hands nothing on but the elements.
struct standing {
    const struct dp_plan_rank *rank;
    int32_t number;
};

static int compare_standings(const void *a, const void *b)
{
    const struct standing *one = a, *two = b;
    int order = strverscmp(one->rank->node, two->rank->node);
    return order != 0 ? order
                      : (one->rank->slot > two->rank->slot) - (one->rank->slot < two->rank->slot);
}

static struct box box_of_rank(const struct dp_plan *plan, int32_t rank, int32_t index)
{
    struct coordinates at = coordinates_of(plan, rank);
    const int32_t values[DIMENSIONS] = {at.pipeline, at.data, at.context, at.tensor};
    struct box box = {.first = index, .last = index, .ranks = 1, .nodes = 1};
    memcpy(box.low, values, sizeof(values));
    memcpy(box.high, values, sizeof(values));
    return box;
}

static struct box joined(const struct box *a, const struct box *b)
{
    struct box box = {.first = a->first,
                      .last = b->last,
                      .ranks = a->ranks + b->ranks,
                      .nodes = a->nodes + b->nodes};
    for (int d = 0; d < DIMENSIONS; d++) {
        box.low[d] = a->low[d] < b->low[d] ? a->low[d] : b->low[d];
        box.high[d] = a->high[d] > b->high[d] ? a->high[d] : b->high[d];
    }
    return box;
}

// Whether the ranges say exactly which ranks there are.
static bool is_full(const struct box *box)
{
    int64_t volume = 1;
    for (int d = 0; d < DIMENSIONS; d++) {
        volume *= box->high[d] - box->low[d] + 1;
    }
    return volume == box->ranks;
}

static void put_box(const struct box *box, const struct standing *sorted, struct dp_buf *out)
{
    const char *first = sorted[box->first].rank->node, *last = sorted[box->last].rank->node;
    dp_buf_printf(out, "%s%s%s (%d rank%s): ", first, box->nodes > 1 ? " .. " : "",
                  box->nodes > 1 ? last : "", box->ranks, box->ranks == 1 ? "" : "s");
    if (!is_full(box)) {
        dp_buf_puts(out, "ranks");
        for (int32_t i = box->first; i <= box->last; i++) {
            dp_buf_printf(out, " %d", sorted[i].number);
        }
        dp_buf_puts(out, "\n");
        return;
    }
    const char *separator = "";
    for (int d = 0; d < DIMENSIONS; d++) {
        bool is_shown = d < 2 || box->high[d] > 0;
        if (is_shown && box->low[d] == box->high[d]) {
            dp_buf_printf(out, "%s%s %d", separator, dimension_names[d], box->low[d]);
        } else if (is_shown) {
            dp_buf_printf(out, "%s%s %d-%d", separator, dimension_names[d], box->low[d],
                          box->high[d]);
        }
        separator = ", ";
    }
    dp_buf_puts(out, "\n");
}

void dp_plan_render_map(const struct dp_plan *plan, struct dp_buf *out)
{
    int32_t world = dp_plan_world(plan);
    DP_AUTO_FREE struct standing *sorted = dp_new_array(struct standing, (size_t)world);
    for (int32_t i = 0; i < world; i++) {
        sorted[i] = (struct standing){&plan->ranks[i], i};
    }
    qsort(sorted, (size_t)world, sizeof(*sorted), compare_standings);
    if (plan->expert > 1) {
        dp_buf_printf(out, "an expert group is %d consecutive ranks of one pipeline position\n",
                      plan->expert * (plan->expert_tensor > 1 ? plan->expert_tensor : 1));
    }
    struct box line = {0};
    for (int32_t i = 0; i < world;) {
        struct box node = box_of_rank(plan, sorted[i].number, i);
        int32_t first = i++;
        while (i < world && strcmp(sorted[i].rank->node, sorted[first].rank->node) == 0) {
            struct box rank = box_of_rank(plan, sorted[i].number, i);
            node = joined(&node, &rank);
            i++;
        }
        node.nodes = 1;
        struct box both = joined(&line, &node);
        if (line.ranks > 0 && is_full(&line) && is_full(&node) && is_full(&both)) {
            line = both;
            continue;
        }
        if (line.ranks > 0) {
            put_box(&line, sorted, out);
        }
        line = node;
    }
    put_box(&line, sorted, out);
}
