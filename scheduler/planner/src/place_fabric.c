// The fabric as blocks within blocks, and which of them are made alike.

#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "place_internal.h"

// Group of a node by kind of block from 1; 0 = of its own.
static int32_t label(const struct dp_planner_node *node, int32_t kind)
{
    return kind == 1 ? node->domain : node->group[kind - 2];
}

struct key {
    const struct dp_planner_node *nodes;
    int32_t kind; // outermost
};

// Outermost groups first; nodes in no domain keep their order.
static int compare_nodes(const void *a, const void *b, void *context)
{
    const struct key *key = context;
    int32_t one = *(const int32_t *)a, two = *(const int32_t *)b;
    for (int32_t kind = key->kind; kind >= 1; kind--) {
        int32_t first = label(&key->nodes[one], kind), second = label(&key->nodes[two], kind);
        if (first != second) {
            return first < second ? -1 : 1;
        }
    }
    return (one > two) - (one < two);
}

static bool same_block(const struct dp_fabric *fabric, int32_t kind, int32_t a, int32_t b)
{
    const struct dp_planner_node *one = &fabric->nodes[fabric->order[a]];
    const struct dp_planner_node *two = &fabric->nodes[fabric->order[b]];
    for (int32_t outer = kind; outer <= fabric->levels + 1; outer++) {
        // An outer group that differs ends inner ones as well, whatever they are called.
        if (label(one, outer) != label(two, outer)) {
            return false;
        }
    }
    return kind > 1 || (kind == 1 && one->domain > 0);
}

static void number_blocks(struct dp_fabric *fabric, int32_t kind)
{
    int32_t *blocks = dp_new_array(int32_t, (size_t)fabric->nodes_count);
    int32_t block = 0;
    for (int32_t i = 0; i < fabric->nodes_count; i++) {
        block += i > 0 && (kind == 0 || !same_block(fabric, kind, i - 1, i));
        blocks[i] = block;
    }
    fabric->block_of[kind] = blocks;
    fabric->blocks_count[kind] = fabric->nodes_count > 0 ? block + 1 : 0;
    fabric->class_of[kind] = dp_new_array(int32_t, (size_t)fabric->blocks_count[kind]);
}

static int32_t take_class(struct dp_fabric *fabric, const struct dp_fabric_class *made)
{
    for (int32_t i = fabric->classes_count - 1; i >= 0; i--) {
        const struct dp_fabric_class *known = &fabric->classes[i];
        if (known->kind == made->kind && known->slots == made->slots &&
            known->runs_count == made->runs_count &&
            (made->runs_count == 0 ||
             memcmp(known->runs, made->runs, (size_t)made->runs_count * sizeof(*made->runs)) ==
                 0)) {
            return i;
        }
    }
    size_t count = (size_t)fabric->classes_count;
    if ((count & (count - 1)) == 0) { // room doubles
        fabric->classes =
            dp_realloc(fabric->classes, count == 0 ? 1 : 2 * count, sizeof(*fabric->classes));
    }
    fabric->classes[count] = *made;
    if (made->runs_count > 0) {
        fabric->classes[count].runs =
            dp_memdup(made->runs, (size_t)made->runs_count * sizeof(*made->runs));
    }
    return fabric->classes_count++;
}

static void add_child(struct dp_fabric_class *block, int32_t child, int32_t slots)
{
    block->slots += slots;
    if (block->runs_count > 0 && block->runs[block->runs_count - 1].class_index == child) {
        block->runs[block->runs_count - 1].count++;
    } else {
        block->runs[block->runs_count++] = (struct dp_fabric_run){child, 1};
    }
}

static void classify_hosts(struct dp_fabric *fabric)
{
    for (int32_t i = 0; i < fabric->nodes_count; i++) {
        struct dp_fabric_class host = {.slots = fabric->nodes[fabric->order[i]].slots};
        fabric->class_of[0][i] = take_class(fabric, &host);
    }
}

// Blocks of one kind from those of the kind inside.
static void classify_blocks(struct dp_fabric *fabric, int32_t kind)
{
    DP_AUTO_FREE struct dp_fabric_run *runs =
        dp_new_array(struct dp_fabric_run, (size_t)fabric->nodes_count + 1);
    const int32_t *inner = fabric->block_of[kind - 1];
    for (int32_t i = 0; i < fabric->nodes_count;) {
        int32_t block = fabric->block_of[kind][i];
        struct dp_fabric_class made = {.kind = kind, .runs = runs};
        for (; i < fabric->nodes_count && fabric->block_of[kind][i] == block; i++) {
            if (i == 0 || inner[i] != inner[i - 1]) {
                int32_t child = fabric->class_of[kind - 1][inner[i]];
                add_child(&made, child, fabric->classes[child].slots);
            }
        }
        fabric->class_of[kind][block] = take_class(fabric, &made);
    }
}

// The whole fabric, of its outermost blocks.
static void classify_all(struct dp_fabric *fabric, int32_t outermost)
{
    DP_AUTO_FREE struct dp_fabric_run *runs =
        dp_new_array(struct dp_fabric_run, (size_t)fabric->blocks_count[outermost] + 1);
    struct dp_fabric_class all = {.kind = outermost + 1, .runs = runs};
    for (int32_t i = 0; i < fabric->blocks_count[outermost]; i++) {
        int32_t child = fabric->class_of[outermost][i];
        add_child(&all, child, fabric->classes[child].slots);
    }
    take_class(fabric, &all);
}

static int32_t alike_slots(const struct dp_fabric *fabric, int32_t kind)
{
    const int32_t *class_of = fabric->class_of[kind];
    int32_t count = fabric->blocks_count[kind];
    for (int32_t i = 1; i < count; i++) {
        bool last = i == count - 1;
        if (class_of[i] != class_of[0] &&
            !(last && fabric->classes[class_of[i]].slots <= fabric->classes[class_of[0]].slots)) {
            return 0;
        }
    }
    return count > 0 ? fabric->classes[class_of[0]].slots : 0;
}

void dp_fabric_init(struct dp_fabric *ret_fabric, const struct dp_planner_node *nodes, size_t count)
{
    struct dp_fabric fabric = {.nodes = nodes, .nodes_count = (int32_t)count};
    fabric.order = dp_new_array(int32_t, count);
    for (int32_t i = 0; i < fabric.nodes_count; i++) {
        fabric.order[i] = i;
        fabric.slots += nodes[i].slots;
        for (int32_t level = fabric.levels; level < DP_CLUSTER_LEVELS_MAX; level++) {
            fabric.levels = nodes[i].group[level] > 0 ? level + 1 : fabric.levels;
        }
    }
    struct key key = {nodes, fabric.levels + 1};
    if (count > 0) {
        qsort_r(fabric.order, count, sizeof(*fabric.order), compare_nodes, &key);
    }
    for (int32_t kind = 0; kind < fabric.levels + 2; kind++) {
        number_blocks(&fabric, kind);
        if (kind == 0) {
            classify_hosts(&fabric);
        } else {
            classify_blocks(&fabric, kind);
        }
        fabric.block[kind] = alike_slots(&fabric, kind);
    }
    classify_all(&fabric, fabric.levels + 1);
    *ret_fabric = fabric;
}

void dp_fabric_deinit(struct dp_fabric *fabric)
{
    free(fabric->order);
    for (int32_t kind = 0; kind < DP_FABRIC_BLOCKS_MAX; kind++) {
        free(fabric->block_of[kind]);
        free(fabric->class_of[kind]);
    }
    for (int32_t i = 0; i < fabric->classes_count; i++) {
        free(fabric->classes[i].runs);
    }
    free(fabric->classes);
    *fabric = (struct dp_fabric){0};
}

int32_t dp_fabric_level(const struct dp_fabric *fabric, int32_t node_a, int32_t node_b)
{
    const struct dp_planner_node *one = &fabric->nodes[node_a], *two = &fabric->nodes[node_b];
    int32_t outermost = 0;
    for (int32_t kind = 2; kind < fabric->levels + 2; kind++) {
        outermost = label(one, kind) != label(two, kind) ? kind : outermost;
    }
    if (outermost > 0) {
        // Groups that differ are joined by the next level out; the last one joins all.
        return outermost < fabric->levels + 1 ? outermost + 1 : outermost;
    }
    bool together = node_a == node_b || (one->domain > 0 && one->domain == two->domain);
    return together ? 0 : fabric->levels > 0 ? 2 : 1;
}
