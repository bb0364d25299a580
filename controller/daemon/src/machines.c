#include "machines.h"

#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"

struct place {
    const struct dp_node_record *node;
    size_t machine; // index in the answer, or NONE
    size_t host;    // index of the place that stands for the machine
};

#define NONE SIZE_MAX

struct search {
    struct place *places; // by name
    size_t count;
    uint64_t compared;
};

static int by_name(const void *a, const void *b, void *context)
{
    struct search *search = context;
    search->compared++;
    return strcmp(((const struct place *)a)->node->name, ((const struct place *)b)->node->name);
}

static int by_boot(const void *a, const void *b, void *context)
{
    struct search *search = context;
    search->compared++;
    const struct dp_node_record *left = search->places[*(const size_t *)a].node;
    const struct dp_node_record *right = search->places[*(const size_t *)b].node;
    return strcmp(left->boot_id, right->boot_id);
}

// A node that does not say which machine it is on has one of its own.
static void find_hosts(struct search *search)
{
    DP_AUTO_FREE size_t *order = dp_new_array(size_t, search->count);
    for (size_t i = 0; i < search->count; i++) {
        order[i] = i;
    }
    qsort_r(order, search->count, sizeof(*order), by_boot, search);
    for (size_t i = 0; i < search->count; i++) {
        struct place *place = &search->places[order[i]];
        const char *boot_id = place->node->boot_id;
        bool same = i > 0 && boot_id[0] != '\0' &&
                    strcmp(boot_id, search->places[order[i - 1]].node->boot_id) == 0;
        place->host = same ? search->places[order[i - 1]].host : order[i];
    }
}

static struct place *find(struct search *search, const char *name)
{
    size_t low = 0, high = search->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        search->compared++;
        int order = strcmp(search->places[middle].node->name, name);
        if (order == 0) {
            return &search->places[middle];
        }
        if (order < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return NULL;
}

size_t machines_of(const struct dp_node_record *const *nodes, size_t nodes_count,
                   const struct dp_rank_record *ranks, size_t ranks_count,
                   struct machine *ret_machines, uint64_t *ret_compared)
{
    DP_AUTO_FREE struct place *places = dp_new_array(struct place, nodes_count);
    struct search search = {.places = places, .count = nodes_count};
    for (size_t i = 0; i < nodes_count; i++) {
        places[i] = (struct place){.node = nodes[i], .machine = NONE};
    }
    qsort_r(places, nodes_count, sizeof(*places), by_name, &search);
    find_hosts(&search);
    size_t count = 0;
    struct place *place = NULL;
    for (size_t r = 0; r < ranks_count; r++) {
        if (r == 0 || strcmp(ranks[r].node, ranks[r - 1].node) != 0) {
            place = find(&search, ranks[r].node);
        }
        if (place == NULL) {
            continue;
        }
        struct place *host = &places[place->host];
        if (host->machine == NONE) {
            host->machine = count++;
            ret_machines[host->machine] = (struct machine){.node = place->node};
        }
        ret_machines[host->machine].ranks++;
    }
    if (ret_compared != NULL) {
        *ret_compared = search.compared;
    }
    return count;
}
