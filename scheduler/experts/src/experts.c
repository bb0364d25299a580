#include "dp/experts.h"

#include <stdbool.h>
#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/limits.h"

dp_status dp_experts_shape_check(const struct dp_experts_shape *shape, struct dp_error *err)
{
    if (shape->experts < 1 || shape->groups < 1 || shape->nodes < 1 || shape->ranks < 1) {
        return dp_fail(err, DP_INVALID,
                       "%d experts in %d groups cannot be placed on %d ranks of %d nodes: each "
                       "must be at least 1",
                       shape->experts, shape->groups, shape->ranks, shape->nodes);
    }
    if (shape->experts > DP_EXPERTS_MAX || shape->slots > DP_EXPERT_SLOTS_MAX) {
        return dp_fail(err, DP_TOO_LARGE, "%d experts in %d slots; at most %d in %d are placed",
                       shape->experts, shape->slots, DP_EXPERTS_MAX, DP_EXPERT_SLOTS_MAX);
    }
    if (shape->slots < shape->experts) {
        return dp_fail(err, DP_INVALID, "%d slots hold no copy of each of %d experts", shape->slots,
                       shape->experts);
    }
    const struct {
        int32_t whole, part;
        const char *what, *over;
    } divisions[] = {{shape->experts, shape->groups, "experts", "groups"},
                     {shape->ranks, shape->nodes, "ranks", "nodes"},
                     {shape->slots, shape->ranks, "slots", "ranks"}};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(divisions); i++) {
        if (divisions[i].whole % divisions[i].part != 0) {
            return dp_fail(err, DP_INVALID, "%d %s do not divide over %d %s", divisions[i].whole,
                           divisions[i].what, divisions[i].part, divisions[i].over);
        }
    }
    return DP_OK;
}

struct item {
    double weight;
    int32_t number;
};

static int heavier_first(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    if (x->weight != y->weight) {
        return x->weight > y->weight ? -1 : 1;
    }
    return (x->number > y->number) - (x->number < y->number);
}

// Packs `count` items into as many packs of equal size; ret_place[i] is pack * size + the place in
// it. Packs of one item stay in order: no choice makes them better.
static void pack(const double *weight, int32_t count, int32_t packs, int32_t *ret_place)
{
    const int32_t size = count / packs;
    DP_AUTO_FREE struct item *items = dp_new_array(struct item, (size_t)count);
    DP_AUTO_FREE double *full = dp_new_array(double, (size_t)packs);
    DP_AUTO_FREE int32_t *used = dp_new_array(int32_t, (size_t)packs);
    for (int32_t i = 0; i < count; i++) {
        items[i] = (struct item){weight[i], i};
        ret_place[i] = i;
    }
    if (size == 1) {
        return;
    }
    qsort(items, (size_t)count, sizeof(*items), heavier_first);
    for (int32_t i = 0; i < count; i++) {
        int32_t best = -1;
        for (int32_t p = 0; p < packs; p++) {
            if (used[p] < size && (best < 0 || full[p] < full[best])) {
                best = p;
            }
        }
        ret_place[items[i].number] = best * size + used[best]++;
        full[best] += items[i].weight;
    }
}

// Copies of `experts` experts until there are `slots`; ret_expert[slots], the first ones in order.
static void copy_busiest(const double *load, int32_t experts, int32_t slots, int32_t *ret_expert,
                         int32_t *ret_copies)
{
    for (int32_t e = 0; e < experts; e++) {
        ret_copies[e] = 1;
        ret_expert[e] = e;
    }
    for (int32_t s = experts; s < slots; s++) {
        int32_t busiest = 0;
        for (int32_t e = 1; e < experts; e++) {
            if (load[e] / ret_copies[e] > load[busiest] / ret_copies[busiest]) {
                busiest = e;
            }
        }
        ret_copies[busiest]++;
        ret_expert[s] = busiest;
    }
}

// A node's experts: member[experts] of the layer. Fills its slots.
static void place_in_node(const double *load, const int32_t *member, int32_t experts, int32_t slots,
                          int32_t ranks, int32_t *ret_expert)
{
    DP_AUTO_FREE double *own = dp_new_array(double, (size_t)experts);
    DP_AUTO_FREE int32_t *copies = dp_new_array(int32_t, (size_t)experts);
    DP_AUTO_FREE int32_t *expert = dp_new_array(int32_t, (size_t)slots);
    DP_AUTO_FREE double *weight = dp_new_array(double, (size_t)slots);
    DP_AUTO_FREE int32_t *place = dp_new_array(int32_t, (size_t)slots);
    for (int32_t e = 0; e < experts; e++) {
        own[e] = load[member[e]];
    }
    copy_busiest(own, experts, slots, expert, copies);
    for (int32_t s = 0; s < slots; s++) {
        weight[s] = own[expert[s]] / copies[expert[s]];
    }
    pack(weight, slots, ranks, place);
    for (int32_t s = 0; s < slots; s++) {
        ret_expert[place[s]] = member[expert[s]];
    }
}

void dp_experts_place(const struct dp_experts_shape *shape, const double *load, int32_t *ret_expert)
{
    const bool together = shape->groups % shape->nodes != 0;
    const int32_t groups = together ? 1 : shape->groups;
    const int32_t nodes = together ? 1 : shape->nodes;
    const int32_t size = shape->experts / groups;
    DP_AUTO_FREE double *group_load = dp_new_array(double, (size_t)groups);
    DP_AUTO_FREE int32_t *place = dp_new_array(int32_t, (size_t)groups);
    DP_AUTO_FREE int32_t *member = dp_new_array(int32_t, (size_t)shape->experts);
    for (int32_t e = 0; e < shape->experts; e++) {
        group_load[e / size] += load[e];
    }
    pack(group_load, groups, nodes, place);
    for (int32_t e = 0; e < shape->experts; e++) {
        member[place[e / size] * size + e % size] = e;
    }
    const int32_t node_experts = shape->experts / nodes, node_slots = shape->slots / nodes;
    for (int32_t n = 0; n < nodes; n++) {
        place_in_node(load, member + (size_t)n * (size_t)node_experts, node_experts, node_slots,
                      shape->ranks / nodes, ret_expert + (size_t)n * (size_t)node_slots);
    }
}

void dp_experts_place_plainly(const struct dp_experts_shape *shape, int32_t *ret_expert)
{
    for (int32_t s = 0; s < shape->slots; s++) {
        ret_expert[s] = s % shape->experts;
    }
}

double dp_experts_skew(const struct dp_experts_shape *shape, const double *load,
                       const int32_t *expert)
{
    DP_AUTO_FREE int32_t *copies = dp_new_array(int32_t, (size_t)shape->experts);
    for (int32_t s = 0; s < shape->slots; s++) {
        copies[expert[s]]++;
    }
    const int32_t rank_slots = shape->slots / shape->ranks;
    double sum = 0, fullest = 0;
    for (int32_t r = 0; r < shape->ranks; r++) {
        double own = 0;
        for (int32_t s = r * rank_slots; s < (r + 1) * rank_slots; s++) {
            own += load[expert[s]] / copies[expert[s]];
        }
        sum += own;
        fullest = own > fullest ? own : fullest;
    }
    return sum > 0 ? fullest * shape->ranks / sum : 1;
}
