// Which nodes a job is offered: close to each other, when it needs no more than they have.
#include "core_internal.h"

#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"

void dp_core_node_mark_slots(const struct dp_core *core, const struct core_node *node, bool *taken)
{
    for (size_t j = 0; j < node->jobs_count; j++) {
        struct core_job *job = node->jobs[j];
        const struct core_member *member = dp_core_job_member(job, node->row.name);
        for (uint32_t i = 0; member != NULL && i < member->ranks; i++) {
            const struct dp_rank_record *rank = dp_core_member_rank(job, member, i);
            if (dp_core_rank_has_slot(job, rank) && rank->slot < node->row.slots) {
                taken[rank->slot] = true;
            }
        }
    }
    for (size_t k = 0; node->sides > 0 && k < core->sided_count; k++) {
        dp_core_sides_slots(core->sided[k], node->row.name, taken, node->row.slots);
    }
}

// Bytes of the place's first `level` parts; all of it when it has fewer. Level DP_PLACE_LEVELS_MAX
// is the node itself.
static size_t prefix_of(const struct core_node *node, int level)
{
    const char *place = node->row.place, *end = place;
    for (int i = 0; i < level && *end != '\0'; i++) {
        end += *end == '/' ? 1 : 0;
        end += strcspn(end, "/");
    }
    return (size_t)(end - place);
}

static bool together(const struct core_node *a, const struct core_node *b, int level)
{
    if (level == DP_PLACE_LEVELS_MAX) {
        return a == b;
    }
    size_t length = prefix_of(a, level);
    return length > 0 && length == prefix_of(b, level) &&
           memcmp(a->row.place, b->row.place, length) == 0;
}

static int compare_places(const void *left, const void *right)
{
    const struct core_node *const *a = left, *const *b = right;
    int order = strcmp((*a)->row.place, (*b)->row.place);
    return order != 0 ? order : (*a)->order < (*b)->order ? -1 : 1;
}

// Of nodes by their places, the group of this level that has enough slots and the fewest more.
static size_t find_group(const struct dp_core *core, const struct core_node **nodes, size_t count,
                         int level, uint32_t wanted, size_t *ret_first)
{
    size_t best = 0;
    uint32_t best_slots = 0;
    for (size_t first = 0, next; first < count; first = next) {
        uint32_t slots = 0;
        for (next = first; next < count && together(nodes[first], nodes[next], level); next++) {
            slots += dp_core_node_slots_free(core, nodes[next]);
        }
        if (next > first && slots >= wanted && (best == 0 || slots < best_slots)) {
            best = next - first;
            best_slots = slots;
            *ret_first = first;
        }
        next += next == first; // its place is not known
    }
    return best;
}

// Without the node that ended the attempt before, when the others have enough; they keep their
// order. Returns how many are left.
static size_t go_around(const struct dp_core *core, const struct core_job *job,
                        const struct core_node **nodes, size_t count)
{
    uint32_t slots = 0;
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        bool out = strcmp(nodes[i]->row.name, job->around) == 0;
        slots += out ? 0 : dp_core_node_slots_free(core, nodes[i]);
    }
    for (size_t i = 0; i < count; i++) {
        bool out = strcmp(nodes[i]->row.name, job->around) == 0;
        if (!out || slots < (uint32_t)job->row.ranks_wanted) {
            nodes[kept++] = nodes[i];
        }
    }
    return kept;
}

size_t dp_core_queue_choose(struct dp_core *core, struct core_job *job,
                            const struct core_node ***ret_nodes)
{
    const struct core_node **nodes =
        dp_arena_alloc(&core->effects->arena, (core->nodes_count + 1) * sizeof(*nodes));
    size_t count = 0;
    bool placed = false;
    FOR_EACH_NODE(core, node)
    {
        if (dp_core_node_usable(job, node) && dp_core_node_slots_free(core, node) > 0) {
            placed = placed || node->row.place[0] != '\0';
            nodes[count++] = node;
        }
    }
    *ret_nodes = nodes;
    size_t all = count;
    if (job->around[0] != '\0' && !job->offer_all) {
        count = go_around(core, job, nodes, count);
    }
    job->offered_some = count < all;
    if (!job->row.ranks_fixed || job->offer_all || !placed) {
        return count;
    }
    // The innermost level with a group that is large enough; of those the one that it fills best.
    qsort(nodes, count, sizeof(*nodes), compare_places);
    for (int level = DP_PLACE_LEVELS_MAX; level > 0; level--) {
        size_t first = 0;
        size_t found =
            find_group(core, nodes, count, level, (uint32_t)job->row.ranks_wanted, &first);
        if (found > 0) {
            job->offered_some = job->offered_some || found < count;
            *ret_nodes = nodes + first;
            return found;
        }
    }
    return count;
}
