// Where ranks stand, for people and for launchers.

#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/plan.h"

struct dp_plan_coordinates dp_plan_rank_coordinates(const struct dp_plan *plan, int32_t rank)
{
    int32_t tensor = plan->tensor > 1 ? plan->tensor : 1;
    int32_t context = plan->context > 1 ? plan->context : 1;
    int32_t expert_tensor = plan->expert_tensor > 1 ? plan->expert_tensor : 1;
    struct dp_plan_coordinates at = {
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
        struct dp_plan_coordinates at = dp_plan_rank_coordinates(plan, i);
        dp_buf_printf(out, "%d\t%s\t%d\t%d\t%d\t%d\t%d\t%d\n", i, plan->ranks[i].node,
                      plan->ranks[i].slot, at.pipeline, at.data, at.context, at.tensor, at.expert);
    }
}

enum { DIMENSIONS = 4 };
static const char *const dimension_names[DIMENSIONS] = {"pipeline", "data", "context", "tensor"};

// Ranks of one node as ranges of each dimension.
struct box {
    int32_t low[DIMENSIONS], high[DIMENSIONS];
    int32_t first, ranks; // into the list of ranks by node
    int32_t node;         // its number in that order
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

static void add_rank(const struct dp_plan *plan, int32_t rank, struct box *box)
{
    struct dp_plan_coordinates at = dp_plan_rank_coordinates(plan, rank);
    const int32_t values[DIMENSIONS] = {at.pipeline, at.data, at.context, at.tensor};
    for (int d = 0; d < DIMENSIONS; d++) {
        box->low[d] = box->ranks == 0 || values[d] < box->low[d] ? values[d] : box->low[d];
        box->high[d] = box->ranks == 0 || values[d] > box->high[d] ? values[d] : box->high[d];
    }
    box->ranks++;
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

// Nodes of one part of the pipeline with as many ranks follow each other, then in their order.
static int compare_boxes(const void *a, const void *b)
{
    const struct box *one = a, *two = b;
    const int32_t keys[2][5] = {{!is_full(one), one->low[0], one->high[0], one->ranks, one->node},
                                {!is_full(two), two->low[0], two->high[0], two->ranks, two->node}};
    for (int i = 0; i < 5; i++) {
        if (keys[0][i] != keys[1][i]) {
            return keys[0][i] < keys[1][i] ? -1 : 1;
        }
    }
    return 0;
}

static bool is_alike(const struct box *a, const struct box *b)
{
    return is_full(a) && is_full(b) && a->low[0] == b->low[0] && a->high[0] == b->high[0] &&
           a->ranks == b->ranks;
}

static void put_run(const struct box *first, const struct box *last, const struct standing *sorted,
                    struct dp_buf *out)
{
    dp_buf_puts(out, sorted[first->first].rank->node);
    if (last != first) {
        dp_buf_printf(out, " .. %s", sorted[last->first].rank->node);
    }
}

// "node-0 .. node-7", "every 2nd of node-0 .. node-254", or the first runs of neighbours.
static void put_nodes(const struct box *boxes, int32_t count, const struct standing *sorted,
                      struct dp_buf *out)
{
    enum { RUNS_MAX = 4 };
    int32_t stride = count > 1 ? boxes[1].node - boxes[0].node : 1;
    bool is_even = true;
    for (int32_t i = 1; i < count; i++) {
        is_even = is_even && boxes[i].node - boxes[i - 1].node == stride;
    }
    if (is_even) {
        if (stride > 1) {
            dp_buf_printf(out, "every %d%s of ", stride,
                          stride == 2   ? "nd"
                          : stride == 3 ? "rd"
                                        : "th");
        }
        put_run(&boxes[0], &boxes[count - 1], sorted, out);
        return;
    }
    int32_t runs = 0, shown = 0;
    for (int32_t i = 0; i < count && runs < RUNS_MAX; runs++) {
        int32_t last = i;
        while (last + 1 < count && boxes[last + 1].node == boxes[last].node + 1) {
            last++;
        }
        dp_buf_puts(out, i > 0 ? ", " : "");
        put_run(&boxes[i], &boxes[last], sorted, out);
        i = shown = last + 1;
    }
    if (shown < count) {
        dp_buf_printf(out, " and %d more", count - shown);
    }
}

static void put_range(const char *name, int32_t low, int32_t high, struct dp_buf *out)
{
    dp_buf_printf(out, "%s %d", name, low);
    if (high > low) {
        dp_buf_printf(out, "-%d", high);
    }
}

static void put_group(const struct box *boxes, int32_t count, const struct standing *sorted,
                      struct dp_buf *out)
{
    const struct box *box = &boxes[0];
    if (!is_full(box)) {
        dp_buf_printf(out, "%s: ranks", sorted[box->first].rank->node);
        int32_t end = box->first + box->ranks;
        for (int32_t i = box->first; i < end;) {
            int32_t last = i;
            while (last + 1 < end && sorted[last + 1].number == sorted[last].number + 1) {
                last++;
            }
            dp_buf_puts(out, i > box->first ? "," : "");
            put_range("", sorted[i].number, sorted[last].number, out);
            i = last + 1;
        }
        dp_buf_puts(out, "\n");
        return;
    }
    int32_t low = box->low[1], high = box->high[1];
    for (int32_t i = 1; i < count; i++) {
        low = boxes[i].low[1] < low ? boxes[i].low[1] : low;
        high = boxes[i].high[1] > high ? boxes[i].high[1] : high;
    }
    put_range("pipeline", box->low[0], box->high[0], out);
    dp_buf_puts(out, ", ");
    put_range("data", low, high, out);
    dp_buf_puts(out, ": ");
    put_nodes(boxes, count, sorted, out);
    dp_buf_puts(out, ", a node ");
    const char *separator = "";
    for (int d = 0; d < DIMENSIONS; d++) {
        if (box->high[d] > box->low[d]) {
            dp_buf_printf(out, "%s%d %s", separator, box->high[d] - box->low[d] + 1,
                          dimension_names[d]);
            separator = " x ";
        }
    }
    dp_buf_puts(out, separator[0] == '\0' ? "one rank\n" : "\n");
}

void dp_plan_render_map(const struct dp_plan *plan, struct dp_buf *out)
{
    int32_t world = dp_plan_world(plan), nodes = 0;
    DP_AUTO_FREE struct standing *sorted = dp_new_array(struct standing, (size_t)world);
    DP_AUTO_FREE struct box *boxes = dp_new_array(struct box, (size_t)world);
    for (int32_t i = 0; i < world; i++) {
        sorted[i] = (struct standing){&plan->ranks[i], i};
    }
    qsort(sorted, (size_t)world, sizeof(*sorted), compare_standings);
    for (int32_t i = 0; i < world; i++) {
        if (i == 0 || strcmp(sorted[i].rank->node, sorted[i - 1].rank->node) != 0) {
            boxes[nodes] = (struct box){.first = i, .node = nodes};
            nodes++;
        }
        add_rank(plan, sorted[i].number, &boxes[nodes - 1]);
    }
    qsort(boxes, (size_t)nodes, sizeof(*boxes), compare_boxes);
    dp_buf_printf(out, "%d ranks on %d node%s", world, nodes, nodes == 1 ? "" : "s");
    if (plan->expert > 1) {
        dp_buf_printf(out, "; an expert group is %d consecutive ranks of one pipeline position",
                      plan->expert * (plan->expert_tensor > 1 ? plan->expert_tensor : 1));
    }
    dp_buf_puts(out, "\n");
    for (int32_t i = 0; i < nodes;) {
        int32_t count = 1;
        while (i + count < nodes && is_alike(&boxes[i], &boxes[i + count])) {
            count++;
        }
        put_group(&boxes[i], count, sorted, out);
        i += count;
    }
}
