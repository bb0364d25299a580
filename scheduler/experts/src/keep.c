// A placement turned so that little has to move.
#include <stdbool.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/experts.h"

// How many of a pack's slots hold what a rank held; `count` [experts] is zeros before and after.
static int32_t overlap(const int32_t *pack, const int32_t *held, int32_t size, int32_t *count)
{
    int32_t common = 0;
    for (int32_t i = 0; i < size; i++) {
        count[held[i]]++;
    }
    for (int32_t i = 0; i < size; i++) {
        common += count[pack[i]] > 0;
        count[pack[i]] -= count[pack[i]] > 0;
    }
    for (int32_t i = 0; i < size; i++) {
        count[held[i]] = 0;
    }
    return common;
}

// The pack's experts in an order that leaves those in place that the rank has.
static void settle(const int32_t *pack, const int32_t *held, int32_t size, int32_t *ret_expert)
{
    DP_AUTO_FREE bool *taken = dp_new_array(bool, (size_t)size); // of the pack
    for (int32_t i = 0; i < size; i++) {
        ret_expert[i] = -1;
        for (int32_t k = 0; k < size && ret_expert[i] < 0; k++) {
            if (!taken[k] && pack[k] == held[i]) {
                taken[k] = true;
                ret_expert[i] = pack[k];
            }
        }
    }
    int32_t next = 0;
    for (int32_t i = 0; i < size; i++) {
        if (ret_expert[i] >= 0) {
            continue;
        }
        while (taken[next]) {
            next++;
        }
        ret_expert[i] = pack[next++];
    }
}

void dp_experts_keep(const struct dp_experts_shape *shape, const int32_t *held, int32_t *expert)
{
    const int32_t size = shape->slots / shape->ranks, node_ranks = shape->ranks / shape->nodes;
    DP_AUTO_FREE int32_t *pack = dp_memdup(expert, (size_t)shape->slots * sizeof(*expert));
    DP_AUTO_FREE int32_t *count = dp_new_array(int32_t, (size_t)shape->experts);
    DP_AUTO_FREE bool *given = dp_new_array(bool, (size_t)shape->ranks);
    for (int32_t r = 0; r < shape->ranks; r++) {
        const int32_t first = r / node_ranks * node_ranks;
        int32_t best = -1, most = -1;
        for (int32_t p = first; p < first + node_ranks; p++) {
            const int32_t common =
                given[p] ? -1 : overlap(pack + p * size, held + r * size, size, count);
            if (common > most) {
                best = p;
                most = common;
            }
        }
        given[best] = true;
        settle(pack + best * size, held + r * size, size, expert + r * size);
    }
}

int32_t dp_experts_moved(const struct dp_experts_shape *shape, const int32_t *held,
                         const int32_t *expert)
{
    int32_t moved = 0;
    for (int32_t s = 0; s < shape->slots; s++) {
        moved += held[s] != expert[s];
    }
    return moved;
}

double dp_experts_fullest(const struct dp_experts_shape *shape, const double *load,
                          const int32_t *expert)
{
    double sum = 0;
    for (int32_t e = 0; e < shape->experts; e++) {
        sum += load[e];
    }
    return dp_experts_skew(shape, load, expert) * sum / shape->ranks;
}

bool dp_experts_propose(const struct dp_experts_shape *shape, const double *load,
                        const int32_t *held, double worth, int32_t *ret_expert)
{
    dp_experts_place(shape, load, ret_expert);
    dp_experts_keep(shape, held, ret_expert);
    if (dp_experts_skew(shape, load, ret_expert) < worth * dp_experts_skew(shape, load, held)) {
        return true;
    }
    memcpy(ret_expert, held, (size_t)shape->slots * sizeof(*held));
    return false;
}
