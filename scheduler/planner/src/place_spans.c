// How groups of ranks stand on the fabric: in closed form where blocks are alike and sizes divide
// them, else by looking at every group.

#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "place_internal.h"

// Members of a group as a product of arithmetic series, innermost first.
struct product {
    int32_t sizes[PLACE_DIMS];
    int64_t strides[PLACE_DIMS];
    int32_t count;
    int32_t ranks;
};

// The ranks of one position: all but the pipeline's dimension, in the order of a plan.
struct series {
    int32_t size;
    int64_t stride;
};

// Leaves out `skip` consecutive ranks of a position, then takes every one of the next `count`
// multiples of it. False when that is no product.
static bool take_product(const struct dp_place_radix *radix, int64_t skip, int64_t count,
                         struct product *ret)
{
    const struct series dims[] = {{radix->tensor, radix->tensor_stride},
                                  {radix->context, radix->context_stride},
                                  {radix->expert, radix->expert_stride},
                                  {radix->replica, radix->replica_stride}};
    struct product product = {.count = 0, .ranks = (int32_t)count};
    if (count == 1) {
        *ret = product;
        return true;
    }
    for (size_t i = 0; i < DP_ARRAY_LENGTH(dims); i++) {
        int32_t size = dims[i].size;
        int64_t stride = dims[i].stride;
        if (skip > 1) {
            int64_t out = skip < size ? skip : size;
            if (skip % out != 0 || size % out != 0) {
                return false;
            }
            skip /= out;
            size = (int32_t)(size / out);
            stride *= out;
        }
        int64_t in = count < size ? count : size;
        if (count % in != 0 || size % in != 0) {
            return false;
        }
        count /= in;
        if (in > 1) {
            product.sizes[product.count] = (int32_t)in;
            product.strides[product.count++] = stride;
        }
        if (count == 1) {
            break;
        }
    }
    *ret = product;
    return skip == 1 && count == 1;
}

// Members in one block of `length` consecutive ranks; 0 when groups are not all alike.
static int32_t members_inside(const struct product *product, int64_t length, int64_t ranks)
{
    int32_t inside = 1;
    for (int32_t i = 0; i < product->count; i++) {
        int32_t size = product->sizes[i];
        int64_t stride = product->strides[i], fit = length / stride;
        if (fit < 1) {
            continue;
        }
        bool outermost = stride * size >= ranks;
        bool whole = fit >= size;
        if (length % stride != 0 ||
            (!outermost && (whole ? length % (stride * size) != 0 : size % fit != 0))) {
            return 0;
        }
        inside *= whole ? size : (int32_t)fit;
    }
    return inside;
}

// Ranks in a row that each kind of block takes; false where blocks differ or do not nest.
static bool block_lengths(const struct dp_fabric *fabric, const struct dp_place_units *units,
                          int64_t ret_lengths[DP_FABRIC_BLOCKS_MAX])
{
    DP_AUTO_FREE int32_t *usable = dp_new_array(int32_t, (size_t)fabric->classes_count);
    dp_place_usable(fabric, units, usable);
    for (int32_t kind = 1; kind < fabric->levels + 2; kind++) {
        int64_t length = usable[fabric->class_of[kind][0]];
        if (fabric->block[kind] == 0 || length == 0 ||
            (kind > 1 && length % ret_lengths[kind - 1] != 0)) {
            return false;
        }
        ret_lengths[kind] = length;
    }
    return true;
}

static bool span_of(const struct dp_fabric *fabric, const struct product *product,
                    const int64_t *lengths, int64_t ranks, struct dp_span *ret_span)
{
    struct dp_span span = {product->ranks, members_inside(product, lengths[1], ranks), 0};
    if (span.inside == 0) {
        return false;
    }
    if (span.inside < span.ranks) {
        span.level = fabric->levels > 0 ? fabric->levels + 1 : 1;
        for (int32_t kind = fabric->levels + 1; kind >= 2; kind--) {
            int32_t inside = members_inside(product, lengths[kind], ranks);
            if (inside == 0) {
                return false;
            }
            span.level = inside == span.ranks ? kind : span.level;
        }
    }
    *ret_span = span;
    return true;
}

static bool closed_form(const struct dp_fabric *fabric, const struct dp_place_sizes *sizes,
                        const struct dp_place_order *order, struct dp_spans *ret_spans)
{
    struct dp_place_units units;
    struct dp_place_radix radix;
    int64_t lengths[DP_FABRIC_BLOCKS_MAX];
    dp_place_radix_of(sizes, order, &radix);
    dp_place_units_of(fabric, sizes, order, &units);
    if (!block_lengths(fabric, &units, lengths)) {
        return false;
    }
    int64_t shards = (int64_t)sizes->tensor * sizes->context;
    int64_t group = (int64_t)sizes->expert * sizes->expert_tensor;
    struct dp_spans spans;
    const struct {
        int64_t skip, count;
        struct dp_span *span;
    } rows[] = {
        {1, sizes->tensor, &spans.tensor},
        {sizes->tensor, sizes->context, &spans.context},
        {sizes->expert_tensor, sizes->expert, &spans.expert},
        {sizes->tensor, (int64_t)sizes->context * sizes->data, &spans.data},
        {group, shards * sizes->data / group, &spans.expert_data},
    };
    for (size_t i = 0; i < DP_ARRAY_LENGTH(rows); i++) {
        struct product product;
        if (!take_product(&radix, rows[i].skip, rows[i].count, &product) ||
            !span_of(fabric, &product, lengths, radix.ranks, rows[i].span)) {
            return false;
        }
    }
    struct product pipeline = {{radix.pipeline}, {radix.pipeline_stride}, 1, radix.pipeline};
    if (!span_of(fabric, &pipeline, lengths, radix.ranks, &spans.hop)) {
        return false;
    }
    bool together = spans.hop.inside == spans.hop.ranks;
    spans.hop.ranks = sizes->pipeline > 1 ? 2 : 1;
    spans.hop.inside = together ? spans.hop.ranks : 1;
    *ret_spans = spans;
    return true;
}

// Where the ranks of a plan stand, position after position, and members of domains that one group
// has, group after group.
struct tally {
    const struct dp_fabric *fabric;
    int64_t ranks;      // of a position
    int32_t *node;      // [positions][ranks], in the order tensor, context, data
    int32_t *domain;    // the same
    int32_t *members;   // [domains] of the current group
    int32_t *last_seen; // [domains]: the group that counted last
    int32_t group;
    int32_t most;  // members in one domain, of the current group
    int64_t first; // its first member
    int32_t level; // outermost that it crosses
    int32_t size;
};

static void tally_begin(struct tally *tally)
{
    tally->group++;
    tally->most = 0;
    tally->level = 0;
    tally->size = 0;
}

static void tally_add(struct tally *tally, int64_t rank)
{
    int32_t domain = tally->domain[rank];
    if (tally->last_seen[domain] != tally->group) {
        tally->last_seen[domain] = tally->group;
        tally->members[domain] = 0;
        if (tally->size == 0) {
            tally->first = rank;
        } else { // a domain that is new to the group: the others have shown their level
            int32_t level =
                dp_fabric_level(tally->fabric, tally->node[tally->first], tally->node[rank]);
            tally->level = level > tally->level ? level : tally->level;
        }
    }
    tally->size++;
    int32_t members = ++tally->members[domain];
    tally->most = members > tally->most ? members : tally->most;
}

static void tally_end(const struct tally *tally, struct dp_span *span)
{
    bool first = span->ranks == 0;
    span->ranks = tally->size;
    span->inside = first || tally->most < span->inside ? tally->most : span->inside;
    span->level = tally->level > span->level ? tally->level : span->level;
}

// Groups of every `skip`-th of `skip * count` consecutive ranks of each position.
static void tally_position(const struct dp_place_sizes *sizes, int64_t skip, int64_t count,
                           struct tally *tally, struct dp_span *ret_span)
{
    *ret_span = (struct dp_span){0, 0, 0};
    for (int64_t base = 0; base < tally->ranks * sizes->pipeline; base += skip * count) {
        for (int64_t offset = 0; offset < skip; offset++) {
            tally_begin(tally);
            for (int64_t i = 0; i < count; i++) {
                tally_add(tally, base + offset + i * skip);
            }
            tally_end(tally, ret_span);
        }
    }
}

static void tally_hops(const struct dp_place_sizes *sizes, struct tally *tally,
                       struct dp_span *ret_span)
{
    *ret_span = sizes->pipeline > 1 ? (struct dp_span){0, 0, 0} : (struct dp_span){1, 1, 0};
    for (int64_t i = tally->ranks; i < tally->ranks * sizes->pipeline; i++) {
        tally_begin(tally);
        tally_add(tally, i - tally->ranks);
        tally_add(tally, i);
        tally_end(tally, ret_span);
    }
}

// The ranks of a plan by position.
static void find_ranks(const struct dp_fabric *fabric, const struct dp_place_sizes *sizes,
                       const struct dp_place *places, struct tally *tally)
{
    DP_AUTO_FREE int32_t *place_of = dp_new_array(int32_t, (size_t)fabric->nodes_count);
    for (int32_t i = 0; i < fabric->nodes_count; i++) {
        place_of[fabric->order[i]] = i;
    }
    int64_t shards = (int64_t)sizes->tensor * sizes->context, rank = 0;
    for (int32_t d = 0; d < sizes->data; d++) {
        for (int32_t p = 0; p < sizes->pipeline; p++) {
            int64_t at = p * tally->ranks + d * shards;
            for (int64_t i = 0; i < shards; i++, rank++) {
                tally->node[at + i] = places[rank].node;
                tally->domain[at + i] = fabric->block_of[1][place_of[places[rank].node]];
            }
        }
    }
}

void dp_place_spans_of(const struct dp_fabric *fabric, const struct dp_place_sizes *sizes,
                       const struct dp_place *places, struct dp_spans *ret_spans)
{
    size_t domains = (size_t)fabric->blocks_count[1];
    int64_t shards = (int64_t)sizes->tensor * sizes->context, ranks = shards * sizes->data;
    int64_t group = (int64_t)sizes->expert * sizes->expert_tensor;
    size_t world = (size_t)(ranks * sizes->pipeline);
    DP_AUTO_FREE int32_t *node = dp_new_array(int32_t, world);
    DP_AUTO_FREE int32_t *domain = dp_new_array(int32_t, world);
    DP_AUTO_FREE int32_t *members = dp_new_array(int32_t, domains);
    DP_AUTO_FREE int32_t *last_seen = dp_new_array(int32_t, domains);
    struct tally tally = {.fabric = fabric,
                          .ranks = ranks,
                          .node = node,
                          .domain = domain,
                          .members = members,
                          .last_seen = last_seen};
    find_ranks(fabric, sizes, places, &tally);
    tally_position(sizes, 1, sizes->tensor, &tally, &ret_spans->tensor);
    tally_position(sizes, sizes->tensor, sizes->context, &tally, &ret_spans->context);
    tally_position(sizes, sizes->expert_tensor, sizes->expert, &tally, &ret_spans->expert);
    tally_position(sizes, sizes->tensor, (int64_t)sizes->context * sizes->data, &tally,
                   &ret_spans->data);
    tally_position(sizes, group, ranks / group, &tally, &ret_spans->expert_data);
    tally_hops(sizes, &tally, &ret_spans->hop);
}

void dp_place_spans(const struct dp_fabric *fabric, const struct dp_place_sizes *sizes,
                    const struct dp_place_order *order, struct dp_spans *ret_spans)
{
    if (closed_form(fabric, sizes, order, ret_spans)) {
        return;
    }
    size_t ranks = (size_t)sizes->pipeline * (size_t)sizes->data * (size_t)sizes->tensor *
                   (size_t)sizes->context;
    DP_AUTO_FREE struct dp_place *places = dp_new_array(struct dp_place, ranks);
    dp_place_ranks(fabric, sizes, order, places);
    dp_place_spans_of(fabric, sizes, places, ret_spans);
}

void dp_place_hops(const struct dp_fabric *fabric, const struct dp_place_sizes *sizes,
                   const struct dp_place *places, int64_t ret_hops[DP_FABRIC_BLOCKS_MAX])
{
    memset(ret_hops, 0, DP_FABRIC_BLOCKS_MAX * sizeof(*ret_hops));
    int64_t shards = (int64_t)sizes->tensor * sizes->context, rank = 0;
    for (int32_t d = 0; d < sizes->data; d++) {
        rank += shards; // those of the first position have none before them
        for (int64_t i = shards; i < shards * sizes->pipeline; i++, rank++) {
            ret_hops[dp_fabric_level(fabric, places[rank - shards].node, places[rank].node)]++;
        }
    }
}
