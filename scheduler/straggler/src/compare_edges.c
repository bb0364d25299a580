// What a message takes between two ranks, compared with that pair's own past and with how other
// pairs have changed.
//
// There and back are taken together where both are measured: clocks of two nodes may be apart, and
// what one direction gains by it the other loses.
#include <math.h>

#include "dp/alloc.h"
#include "internal.h"

static const double value_min_ns = 1000; // clocks tell no less

static uint32_t edge_between(struct dp_straggler *self, uint32_t a, uint32_t b)
{
    uint32_t low = a < b ? a : b, high = a < b ? b : a;
    const struct rank *other = &self->ranks[b];
    for (size_t i = 0; i < other->links_count; i++) {
        if (other->links[i].peer == a) {
            return other->links[i].edge;
        }
    }
    self->edges = dp_realloc(self->edges, self->edges_count + 1, sizeof(*self->edges));
    const uint32_t *nodes = self->config.nodes;
    self->edges[self->edges_count] = (struct edge){
        .low = low, .high = high, .same_node = nodes != NULL && nodes[low] == nodes[high]};
    return (uint32_t)self->edges_count++;
}

static struct edge *edge_of(struct dp_straggler *self, uint32_t to, uint32_t from, size_t hint)
{
    struct rank *rank = &self->ranks[to];
    for (size_t i = 0; i < rank->links_count; i++) {
        const struct link *link = &rank->links[(hint + i) % rank->links_count];
        if (link->peer == from) {
            return &self->edges[link->edge];
        }
    }
    if (rank->links_count >= DP_STRAGGLER_LINKS_MAX) {
        return NULL;
    }
    rank->links = dp_realloc(rank->links, rank->links_count + 1, sizeof(*rank->links));
    uint32_t edge = edge_between(self, to, from);
    rank->links[rank->links_count++] = (struct link){.peer = from, .edge = edge};
    return &self->edges[edge];
}

static void take_links(struct dp_straggler *self)
{
    for (uint32_t r = 0; r < self->config.ranks; r++) {
        const struct dp_straggler_sample *sample = self->ranks[r].sample;
        for (size_t i = 0; sample != NULL && i < sample->links_count; i++) {
            const struct dp_straggler_link *link = &sample->links[i];
            bool known = link->count > 0 && link->peer < self->config.ranks && link->peer != r;
            struct edge *edge = known ? edge_of(self, r, link->peer, i) : NULL;
            if (edge != NULL) {
                int side = r == edge->high;
                edge->sum_ns[side] += (double)link->transfer_ns;
                edge->messages[side] += link->count;
                edge->bytes += (double)link->bytes;
            }
        }
    }
}

static void find_value(struct edge *edge)
{
    double both = edge->messages[0] + edge->messages[1], sum = 0;
    for (int side = 0; side < 2; side++) {
        sum += edge->messages[side] > 0 ? edge->sum_ns[side] / edge->messages[side] : 0;
    }
    edge->value_ns = both > 0 ? fmax(sum, value_min_ns) : 0;
    edge->bytes = both > 0 ? edge->bytes / both : 0;
    edge->log = NAN;
}

// How pairs of this kind (within a node, across) have changed; sorted, in the scratch.
static size_t changes_of(struct dp_straggler *self, bool same_node)
{
    size_t count = 0;
    for (size_t i = 0; i < self->edges_count; i++) {
        const struct edge *edge = &self->edges[i];
        if (edge->value_ns > 0 && edge->usual_ns > 0 && edge->same_node == same_node) {
            self->scratch[count++] = log(edge->value_ns / edge->usual_ns);
        }
    }
    dp_straggler_sort(self->scratch, count);
    return count;
}

static void compare_changes(struct dp_straggler *self, bool same_node)
{
    size_t count = changes_of(self, same_node);
    for (size_t i = 0; i < self->edges_count; i++) {
        struct edge *edge = &self->edges[i];
        if (edge->value_ns <= 0 || edge->usual_ns <= 0 || edge->same_node != same_node) {
            continue;
        }
        double change = log(edge->value_ns / edge->usual_ns), others = 0;
        if (count > 1) {
            others = fmax(dp_straggler_median_of_others(self->scratch, count, change), 0);
        }
        edge->log = change - others;
        double messages = edge->messages[0] + edge->messages[1];
        double directions = (edge->messages[0] > 0) + (edge->messages[1] > 0);
        edge->lost_ns = edge->value_ns * (1 - exp(-edge->log)) * messages / directions;
    }
}

void dp_straggler_compare_edges(struct dp_straggler *self)
{
    for (size_t i = 0; i < self->edges_count; i++) {
        struct edge *edge = &self->edges[i];
        edge->sum_ns[0] = edge->sum_ns[1] = edge->messages[0] = edge->messages[1] = 0;
        edge->bytes = edge->lost_ns = 0;
    }
    take_links(self);
    dp_straggler_make_room(self, self->edges_count);
    for (size_t i = 0; i < self->edges_count; i++) {
        find_value(&self->edges[i]);
    }
    compare_changes(self, false);
    compare_changes(self, true);
}
