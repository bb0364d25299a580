// Switches linked into a tree, and the groups of hosts that each level of it makes.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "topology_internal.h"

enum { DEPTH_MAX = 64 }; // of switches below each other; bounds recursion

// Names sorted, each with the switch it stands for (a host: that it hangs on).
struct entry {
    const char *name;
    size_t owner; // index of the switch
    size_t order; // of appearance
};

static int compare_entries(const void *a, const void *b)
{
    const struct entry *one = a, *two = b;
    int names = strcmp(one->name, two->name);
    return names != 0 ? names : (one->order > two->order) - (one->order < two->order);
}

static int compare_name(const void *key, const void *entry)
{
    return strcmp(key, ((const struct entry *)entry)->name);
}

static int compare_texts(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static const struct entry *find_entry(const char *name, const struct entry *entries, size_t count)
{
    return count == 0 ? NULL : bsearch(name, entries, count, sizeof(*entries), compare_name);
}

// All switches by name; reports those that are named twice.
static struct entry *index_switches(const struct dp_topology_lines *lines, struct dp_diags *diags)
{
    struct entry *entries = dp_new_array(struct entry, lines->count);
    for (size_t i = 0; i < lines->count; i++) {
        entries[i] = (struct entry){lines->switches[i].name, i, i};
    }
    qsort(entries, lines->count, sizeof(*entries), compare_entries);
    for (size_t i = 1; i < lines->count; i++) {
        if (strcmp(entries[i].name, entries[i - 1].name) == 0) {
            const struct dp_topology_switch *again = &lines->switches[entries[i].owner];
            dp_diags_add(diags, again->line, again->column, NULL,
                         "%s \"%s\" has been described before, in line %d",
                         lines->blocks ? "block" : "switch", again->name,
                         lines->switches[entries[i - 1].owner].line);
        }
    }
    return entries;
}

static void link_children(struct dp_topology_lines *lines, size_t parent,
                          const struct entry *entries, struct dp_diags *diags)
{
    struct dp_topology_switch *above = &lines->switches[parent];
    size_t *last = &above->first_child;
    for (size_t i = 0; i < above->list.count; i++) {
        const char *name = above->list.names[i];
        const struct entry *entry = find_entry(name, entries, lines->count);
        if (entry == NULL) {
            dp_diags_add(diags, above->list_line, above->list_column, NULL,
                         "switch \"%s\" joins \"%s\", which no line describes", above->name, name);
            continue;
        }
        struct dp_topology_switch *child = &lines->switches[entry->owner];
        if (child->parent != 0) {
            dp_diags_add(diags, above->list_line, above->list_column,
                         "a switch may hang below one other: the fabric is read as a tree",
                         "switch \"%s\" is below \"%s\" already", name,
                         lines->switches[child->parent - 1].name);
            continue;
        }
        child->parent = parent + 1;
        *last = entry->owner + 1;
        last = &child->next_sibling;
    }
}

// Climbs from every switch once; one that comes back to where it started is on a cycle.
static void find_cycles(const struct dp_topology_lines *lines, struct dp_diags *diags)
{
    DP_AUTO_FREE size_t *seen = dp_new_array(size_t, lines->count); // by the climb from index + 1
    for (size_t i = 0; i < lines->count; i++) {
        size_t at = i + 1;
        size_t depth = 0;
        while (at != 0 && seen[at - 1] == 0) {
            seen[at - 1] = i + 1;
            at = lines->switches[at - 1].parent;
            depth++;
        }
        const struct dp_topology_switch *start = &lines->switches[i];
        if (at != 0 && seen[at - 1] == i + 1) {
            dp_diags_add(diags, start->line, start->column, NULL,
                         "switch \"%s\" is above itself: \"%s\" leads back to it", start->name,
                         lines->switches[at - 1].name);
        }
    }
}

// Removes hosts that are not wanted; `only` is sorted.
static void keep_hosts(struct dp_topology_switch *leaf, char *const *only, size_t only_count)
{
    size_t kept = 0;
    for (size_t i = 0; i < leaf->list.count; i++) {
        char *name = leaf->list.names[i];
        if (bsearch(&name, only, only_count, sizeof(*only), compare_texts) != NULL) {
            leaf->list.names[kept++] = name;
        } else {
            free(name);
        }
    }
    leaf->list.count = kept;
}

static void check_hosts(struct dp_topology_lines *lines, struct dp_diags *diags)
{
    size_t total = 0;
    for (size_t i = 0; i < lines->count; i++) {
        total += lines->switches[i].is_leaf ? lines->switches[i].list.count : 0;
    }
    if (total == 0 || total > DP_NODES_MAX) {
        dp_diags_add(diags, 0, 0, NULL,
                     total == 0 ? "no switch joins any host that is asked for"
                                : "%zu hosts; at most %d are possible",
                     total, DP_NODES_MAX);
        return;
    }
    DP_AUTO_FREE struct entry *entries = dp_new_array(struct entry, total);
    size_t count = 0;
    for (size_t i = 0; i < lines->count; i++) {
        const struct dp_hosts *hosts = &lines->switches[i].list;
        for (size_t h = 0; lines->switches[i].is_leaf && h < hosts->count; h++, count++) {
            entries[count] = (struct entry){hosts->names[h], i, count};
        }
    }
    qsort(entries, count, sizeof(*entries), compare_entries);
    for (size_t i = 1; i < count; i++) {
        if (strcmp(entries[i].name, entries[i - 1].name) == 0) {
            const struct dp_topology_switch *again = &lines->switches[entries[i].owner];
            dp_diags_add(diags, again->list_line, again->list_column,
                         "a host may hang on one switch: its rails count as one",
                         "host \"%s\" is below \"%s\" already", entries[i].name,
                         lines->switches[entries[i - 1].owner].name);
        }
    }
}

static void select_hosts(struct dp_topology_lines *lines, const struct dp_hosts *only)
{
    DP_AUTO_FREE char **sorted = dp_memdup(only->names, only->count * sizeof(*only->names));
    qsort(sorted, only->count, sizeof(*sorted), compare_texts);
    for (size_t i = 0; i < lines->count; i++) {
        if (lines->switches[i].is_leaf) {
            keep_hosts(&lines->switches[i], sorted, only->count);
        }
    }
}

// Hosts below each switch and its level, from every leaf up.
static void measure(struct dp_topology_lines *lines, struct dp_diags *diags)
{
    for (size_t i = 0; i < lines->count; i++) {
        const struct dp_topology_switch *leaf = &lines->switches[i];
        if (!leaf->is_leaf) {
            continue;
        }
        int32_t level = 0;
        for (size_t at = i + 1; at != 0; at = lines->switches[at - 1].parent, level++) {
            struct dp_topology_switch *above = &lines->switches[at - 1];
            if (level > DEPTH_MAX) {
                dp_diags_add(diags, leaf->line, leaf->column, NULL,
                             "switch \"%s\" lies below more than %d others", leaf->name, DEPTH_MAX);
                return;
            }
            above->hosts_below += leaf->list.count;
            above->level = level > above->level && leaf->list.count > 0 ? level : above->level;
        }
    }
}

// Every host must be reachable: one switch without a parent has them all.
static void check_roots(const struct dp_topology_lines *lines, struct dp_diags *diags)
{
    const struct dp_topology_switch *first = NULL;
    for (size_t i = 0; i < lines->count; i++) {
        const struct dp_topology_switch *root = &lines->switches[i];
        if (root->parent != 0 || root->hosts_below == 0) {
            continue;
        }
        if (first != NULL) {
            dp_diags_add(diags, root->line, root->column,
                         "name one switch above both, or choose hosts of one with hosts = \"...\"",
                         "no switch joins \"%s\" and \"%s\"", first->name, root->name);
            return;
        }
        first = root;
    }
}

void dp_topology_link(struct dp_topology_lines *lines, const struct dp_hosts *only,
                      struct dp_diags *diags)
{
    DP_AUTO_FREE struct entry *entries = index_switches(lines, diags);
    if (diags->count > 0) {
        return;
    }
    for (size_t i = 0; i < lines->count; i++) {
        if (!lines->switches[i].is_leaf) {
            link_children(lines, i, entries, diags);
        }
    }
    find_cycles(lines, diags);
    if (only != NULL) {
        select_hosts(lines, only);
    }
    check_hosts(lines, diags);
    if (diags->count == 0 && !lines->blocks) {
        measure(lines, diags);
        check_roots(lines, diags);
    }
}

// Leaves in the order of the tree; depth was bounded before.
static void collect_leaves(const struct dp_topology_lines *lines, size_t at, size_t *leaves,
                           size_t *count)
{
    const struct dp_topology_switch *here = &lines->switches[at];
    if (here->is_leaf && here->list.count > 0) {
        leaves[(*count)++] = at;
    }
    for (size_t child = here->first_child; child != 0;
         child = lines->switches[child - 1].next_sibling) {
        collect_leaves(lines, child - 1, leaves, count);
    }
}

// The switch at or above a leaf that stands for it on a level.
static size_t ancestor(const struct dp_topology_lines *lines, size_t leaf, int32_t level)
{
    size_t at = leaf;
    for (size_t up = lines->switches[at].parent; up != 0 && lines->switches[up - 1].level <= level;
         up = lines->switches[up - 1].parent) {
        at = up - 1;
    }
    return at;
}

static bool same_sizes(const struct dp_topology_level *level, const int32_t *sizes, size_t count)
{
    return level->count == count && memcmp(level->sizes, sizes, count * sizeof(*sizes)) == 0;
}

// Appends a level (its sizes are taken) unless it says nothing that the levels inside do not.
static void add_level(int32_t *sizes, size_t count, struct dp_diags *diags,
                      struct dp_topology *topology)
{
    int32_t levels = topology->levels_count;
    bool splits_all = count == topology->hosts.count; // a group for each host
    if (splits_all || (levels > 0 && same_sizes(&topology->levels[levels - 1], sizes, count))) {
        free(sizes);
        return;
    }
    if (levels == DP_CLUSTER_LEVELS_MAX) {
        free(sizes);
        dp_diags_add(diags, 0, 0, NULL, "more than %d levels of switches", DP_CLUSTER_LEVELS_MAX);
        return;
    }
    topology->levels[levels].sizes = sizes;
    topology->levels[levels].count = count;
    topology->levels_count++;
}

static void take_hosts(const struct dp_topology_switch *leaf, struct dp_hosts *hosts)
{
    hosts->names = dp_realloc(hosts->names, hosts->count + leaf->list.count, sizeof(*hosts->names));
    for (size_t i = 0; i < leaf->list.count; i++) {
        hosts->names[hosts->count++] = dp_strdup(leaf->list.names[i]);
    }
}

static void fill_tree(const struct dp_topology_lines *lines, const size_t *leaves, size_t count,
                      int32_t depth, struct dp_diags *diags, struct dp_topology *topology)
{
    static const char *const names[DP_CLUSTER_LEVELS_MAX] = {"leaf", "spine", "core", "outer"};
    for (int32_t level = 0; level <= depth; level++) {
        int32_t *sizes = dp_new_array(int32_t, count);
        size_t groups = 0, before = lines->count;
        for (size_t i = 0; i < count; i++) {
            size_t group = ancestor(lines, leaves[i], level);
            groups += group != before;
            sizes[groups - 1] += (int32_t)lines->switches[leaves[i]].list.count;
            before = group;
        }
        add_level(sizes, groups, diags, topology);
    }
    for (int32_t i = 0; i < topology->levels_count; i++) {
        DP_COPY_TEXT(topology->levels[i].name, names[i]);
    }
}

// Units of `joined` blocks each.
static void add_blocks(const struct dp_topology_lines *lines, int32_t joined,
                       struct dp_diags *diags, struct dp_topology *topology)
{
    int32_t *sizes = dp_new_array(int32_t, lines->count);
    size_t groups = 0;
    int32_t blocks = 0;
    for (size_t i = 0; i < lines->count; i++) {
        int32_t hosts = (int32_t)lines->switches[i].list.count;
        if (hosts > 0) {
            groups += blocks++ % joined == 0;
            sizes[groups - 1] += hosts;
        }
    }
    add_level(sizes, groups, diags, topology);
}

static void fill_blocks(const struct dp_topology_lines *lines, struct dp_diags *diags,
                        struct dp_topology *topology)
{
    add_blocks(lines, 1, diags, topology);
    for (int32_t i = 1; i < lines->block_sizes_count; i++) {
        int32_t base = lines->block_sizes[0], size = lines->block_sizes[i];
        if (size % base != 0 || size <= lines->block_sizes[i - 1]) {
            dp_diags_add(diags, lines->block_sizes_line, lines->block_sizes_column, NULL,
                         "BlockSizes must be multiples of the first, %d, that grow; %d is not",
                         base, size);
            return;
        }
        add_blocks(lines, size / base, diags, topology);
    }
    add_blocks(lines, INT32_MAX, diags, topology);
    static const char *const names[DP_CLUSTER_LEVELS_MAX] = {"block", "blocks", "row", "hall"};
    for (int32_t i = 0; i < topology->levels_count; i++) {
        bool outermost = i > 0 && i == topology->levels_count - 1;
        DP_COPY_TEXT(topology->levels[i].name, outermost ? "spine" : names[i]);
    }
}

void dp_topology_fill(const struct dp_topology_lines *lines, struct dp_diags *diags,
                      struct dp_topology *ret_topology)
{
    DP_AUTO_FREE size_t *leaves = dp_new_array(size_t, lines->count);
    size_t count = 0;
    int32_t depth = 0;
    for (size_t i = 0; i < lines->count; i++) {
        if (lines->switches[i].parent == 0) {
            collect_leaves(lines, i, leaves, &count);
        }
        depth = lines->switches[i].level > depth ? lines->switches[i].level : depth;
    }
    for (size_t i = 0; i < count; i++) {
        take_hosts(&lines->switches[leaves[i]], &ret_topology->hosts);
    }
    if (lines->blocks) {
        fill_blocks(lines, diags, ret_topology);
    } else {
        fill_tree(lines, leaves, count, depth, diags, ret_topology);
    }
}
