// Orders of the dimensions, and how ranks in such an order fill the slots of the fabric.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "place_internal.h"

// Data replicas that one EP group takes in; 1 where it does not take in whole ones.
static int32_t expert_replicas(const struct dp_place_sizes *sizes)
{
    int64_t shards = (int64_t)sizes->tensor * sizes->context;
    int64_t group = (int64_t)sizes->expert * sizes->expert_tensor;
    return group % shards == 0 && sizes->data % (group / shards) == 0 ? (int32_t)(group / shards)
                                                                      : 1;
}

static int32_t size_of(const struct dp_place_sizes *sizes, dp_place_dim dim)
{
    int32_t expert = expert_replicas(sizes);
    return dim == DP_PLACE_EXPERT     ? expert
           : dim == DP_PLACE_PIPELINE ? sizes->pipeline
                                      : sizes->data / expert;
}

void dp_place_order_text(const struct dp_place_order *order, const struct dp_place_sizes *sizes,
                         char ret_text[DP_NAME_MAX])
{
    static const char *const names[DP_PLACE_DIM_COUNT] = {"expert", "pipeline", "data"};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_buf_puts(&text, sizes->tensor > 1 ? ", tensor" : "");
    dp_buf_puts(&text, sizes->context > 1 ? ", context" : "");
    for (int32_t i = 0; i < DP_PLACE_DIM_COUNT; i++) {
        if (size_of(sizes, order->dims[i]) > 1) {
            dp_buf_printf(&text, ", %s", names[order->dims[i]]);
        }
    }
    dp_copy_text(ret_text, DP_NAME_MAX, text.length > 2 ? text.bytes + 2 : "one rank");
}

int32_t dp_place_orders(const struct dp_place_sizes *sizes,
                        struct dp_place_order ret_orders[DP_PLACE_ORDERS_MAX])
{
    static const struct dp_place_order all[DP_PLACE_ORDERS_MAX] = {
        {{DP_PLACE_EXPERT, DP_PLACE_REPLICA, DP_PLACE_PIPELINE}},
        {{DP_PLACE_EXPERT, DP_PLACE_PIPELINE, DP_PLACE_REPLICA}},
        {{DP_PLACE_PIPELINE, DP_PLACE_EXPERT, DP_PLACE_REPLICA}},
        {{DP_PLACE_PIPELINE, DP_PLACE_REPLICA, DP_PLACE_EXPERT}},
        {{DP_PLACE_REPLICA, DP_PLACE_EXPERT, DP_PLACE_PIPELINE}},
        {{DP_PLACE_REPLICA, DP_PLACE_PIPELINE, DP_PLACE_EXPERT}},
    };
    int32_t count = 0;
    uint32_t known[DP_PLACE_ORDERS_MAX];
    for (int32_t i = 0; i < DP_PLACE_ORDERS_MAX; i++) {
        uint32_t digits = 0; // the order without dimensions of size 1
        for (int32_t j = 0; j < DP_PLACE_DIM_COUNT; j++) {
            dp_place_dim dim = all[i].dims[j];
            digits = size_of(sizes, dim) > 1 ? 4 * digits + dim + 1 : digits;
        }
        bool is_new = true;
        for (int32_t j = 0; j < count; j++) {
            is_new = is_new && known[j] != digits;
        }
        if (is_new) {
            known[count] = digits;
            ret_orders[count++] = all[i];
        }
    }
    return count;
}

void dp_place_radix_of(const struct dp_place_sizes *sizes, const struct dp_place_order *order,
                       struct dp_place_radix *ret_radix)
{
    struct dp_place_radix radix = {
        .tensor = sizes->tensor,
        .context = sizes->context,
        .expert = size_of(sizes, DP_PLACE_EXPERT),
        .replica = size_of(sizes, DP_PLACE_REPLICA),
        .pipeline = sizes->pipeline,
        .tensor_stride = 1,
        .context_stride = sizes->tensor,
    };
    int64_t stride = (int64_t)sizes->tensor * sizes->context;
    for (int32_t i = 0; i < DP_PLACE_DIM_COUNT; i++) {
        int64_t *strides[DP_PLACE_DIM_COUNT] = {&radix.expert_stride, &radix.pipeline_stride,
                                                &radix.replica_stride};
        *strides[order->dims[i]] = stride;
        stride *= size_of(sizes, order->dims[i]);
    }
    radix.ranks = stride;
    *ret_radix = radix;
}

// Lengths of runs of ranks that talk much to each other, each a multiple of the one before.
static int32_t run_lengths(const struct dp_place_sizes *sizes, const struct dp_place_order *order,
                           int64_t ret_lengths[2 + PLACE_DIMS])
{
    int64_t shards = (int64_t)sizes->tensor * sizes->context, length = shards;
    int32_t count = 0;
    ret_lengths[count++] = 1;
    ret_lengths[count++] = sizes->tensor;
    ret_lengths[count++] = shards;
    int64_t group = (int64_t)sizes->expert * sizes->expert_tensor;
    if (order->dims[0] == DP_PLACE_EXPERT && sizes->expert_groups > 1 &&
        group % (sizes->expert_groups * shards) == 0) {
        ret_lengths[count++] = group / sizes->expert_groups; // ranks of one group of experts
    }
    for (int32_t i = 0; i < DP_PLACE_DIM_COUNT; i++) {
        length *= size_of(sizes, order->dims[i]);
        ret_lengths[count++] = length;
    }
    return count;
}

void dp_place_usable(const struct dp_fabric *fabric, const struct dp_place_units *units,
                     int32_t *ret_usable)
{
    for (int32_t i = 0; i < fabric->classes_count; i++) { // inner kinds come first
        const struct dp_fabric_class *block = &fabric->classes[i];
        int32_t inside = block->kind == 0 ? block->slots : 0;
        for (int32_t j = 0; j < block->runs_count; j++) {
            inside += block->runs[j].count * ret_usable[block->runs[j].class_index];
        }
        ret_usable[i] = inside / units->whole[block->kind] * units->whole[block->kind];
    }
}

static int32_t largest_block(const struct dp_fabric *fabric, int32_t kind)
{
    int32_t slots = 0;
    for (int32_t i = 0; i < fabric->classes_count; i++) {
        const struct dp_fabric_class *block = &fabric->classes[i];
        slots = block->kind == kind && block->slots > slots ? block->slots : slots;
    }
    return slots;
}

// Whether all ranks find a slot when runs are kept whole like this.
static bool fits(const struct dp_fabric *fabric, const struct dp_place_units *units, int64_t ranks,
                 int32_t *usable)
{
    dp_place_usable(fabric, units, usable);
    return usable[fabric->classes_count - 1] >= ranks;
}

void dp_place_units_of(const struct dp_fabric *fabric, const struct dp_place_sizes *sizes,
                       const struct dp_place_order *order, struct dp_place_units *ret_units)
{
    int64_t lengths[2 + PLACE_DIMS];
    int32_t count = run_lengths(sizes, order, lengths), outermost = fabric->levels + 1;
    int32_t wanted[DP_FABRIC_BLOCKS_MAX], chosen[DP_FABRIC_BLOCKS_MAX];
    DP_AUTO_FREE int32_t *usable = dp_new_array(int32_t, (size_t)fabric->classes_count);
    struct dp_place_units units;
    units.whole[outermost + 1] = 1;
    for (int32_t kind = 0; kind <= outermost; kind++) {
        int32_t largest = largest_block(fabric, kind), at = count - 1;
        while (at > 0 && lengths[at] > largest) {
            at--;
        }
        wanted[kind] = chosen[kind] = at;
        units.whole[kind] = (int32_t)lengths[at];
    }
    int64_t ranks = lengths[count - 1];
    // What leaves too many slots free gives way from the outermost blocks inwards; then what gave
    // way in vain is taken back.
    for (int32_t kind = outermost; kind >= 0; kind--) {
        while (!fits(fabric, &units, ranks, usable) && chosen[kind] > 0) {
            units.whole[kind] = (int32_t)lengths[--chosen[kind]];
        }
    }
    for (int32_t kind = 0; kind <= outermost; kind++) {
        for (bool more = true; more && chosen[kind] < wanted[kind];) {
            units.whole[kind] = (int32_t)lengths[chosen[kind] + 1];
            more = fits(fabric, &units, ranks, usable);
            chosen[kind] += more;
            units.whole[kind] = (int32_t)lengths[chosen[kind]];
        }
    }
    *ret_units = units;
}

// Slots of each node that are filled, by place in fabric->order.
static void fill_nodes(const struct dp_fabric *fabric, const struct dp_place_units *units,
                       int64_t ranks, int32_t *ret_filled)
{
    DP_AUTO_FREE int32_t *usable = dp_new_array(int32_t, (size_t)fabric->classes_count);
    dp_place_usable(fabric, units, usable);
    int32_t left[DP_FABRIC_BLOCKS_MAX] = {0};
    for (int32_t i = 0; i < fabric->nodes_count; i++) {
        int64_t take = ranks;
        for (int32_t kind = 0; kind < fabric->levels + 2; kind++) {
            const int32_t *block = fabric->block_of[kind];
            if (i == 0 || block[i] != block[i - 1]) {
                left[kind] = usable[fabric->class_of[kind][block[i]]];
            }
            take = left[kind] < take ? left[kind] : take;
        }
        for (int32_t kind = 0; kind < fabric->levels + 2; kind++) {
            left[kind] -= (int32_t)take;
        }
        ret_filled[i] = (int32_t)take;
        ranks -= take;
    }
    DP_CHECK(ranks == 0);
}

void dp_place_ranks(const struct dp_fabric *fabric, const struct dp_place_sizes *sizes,
                    const struct dp_place_order *order, struct dp_place *ret_places)
{
    struct dp_place_units units;
    struct dp_place_radix radix;
    dp_place_units_of(fabric, sizes, order, &units);
    dp_place_radix_of(sizes, order, &radix);
    DP_AUTO_FREE int32_t *filled = dp_new_array(int32_t, (size_t)fabric->nodes_count);
    fill_nodes(fabric, &units, radix.ranks, filled);
    DP_AUTO_FREE struct dp_place *in_order = dp_new_array(struct dp_place, (size_t)radix.ranks);
    int64_t next = 0;
    for (int32_t i = 0; i < fabric->nodes_count; i++) {
        int32_t node = fabric->order[i];
        for (int32_t slot = 0; slot < filled[i]; slot++) {
            in_order[next++] = (struct dp_place){node, fabric->nodes[node].first_slot + slot};
        }
    }
    int64_t rank = 0;
    for (int32_t d = 0; d < sizes->data; d++) {
        for (int32_t p = 0; p < sizes->pipeline; p++) {
            int64_t base = d % radix.expert * radix.expert_stride +
                           d / radix.expert * radix.replica_stride + p * radix.pipeline_stride;
            for (int32_t shard = 0; shard < sizes->tensor * sizes->context; shard++) {
                ret_places[rank++] = in_order[base + shard];
            }
        }
    }
}
