#include "dp/plan_survival.h"

#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"

const char *dp_plan_tensors_text(dp_plan_tensors tensors)
{
    static const char *const names[DP_PLAN_TENSORS_COUNT] = {"weights", "experts", "moments"};
    return names[tensors];
}

// Ranks by the node that they stand on, numbered as names sort.
struct ground {
    const struct dp_plan *plan;
    int32_t *node;  // [world]
    int32_t *stamp; // [nodes], the last group that was counted there
    int32_t group;
};

static void ground_deinit(struct ground *ground)
{
    free(ground->node);
    free(ground->stamp);
}

struct standing {
    const char *name;
    int32_t rank;
};

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct standing *)a)->name, ((const struct standing *)b)->name);
}

static void ground_init(struct ground *ret_ground, const struct dp_plan *plan)
{
    size_t world = (size_t)dp_plan_world(plan);
    *ret_ground = (struct ground){.plan = plan, .node = dp_new_array(int32_t, world)};
    DP_AUTO_FREE struct standing *sorted = dp_new_array(struct standing, world);
    for (size_t i = 0; i < world; i++) {
        sorted[i] = (struct standing){plan->ranks[i].node, (int32_t)i};
    }
    qsort(sorted, world, sizeof(*sorted), compare_names);
    int32_t nodes = 0;
    for (size_t i = 0; i < world; i++) {
        nodes += i > 0 && strcmp(sorted[i].name, sorted[i - 1].name) != 0;
        ret_ground->node[sorted[i].rank] = nodes;
    }
    ret_ground->stamp = dp_new_array(int32_t, (size_t)nodes + 1);
}

// Into how many parts a position's ranks divide such tensors. Ranks whose numbers within the
// position ((replica, context rank, tensor rank) in order) are the same modulo this hold the same.
static int32_t parts_count(const struct dp_plan *plan, dp_plan_tensors tensors)
{
    int32_t tensor = plan->tensor > 1 ? plan->tensor : 1;
    int32_t split = plan->expert_tensor > 1 ? plan->expert_tensor : 1;
    return tensors == DP_PLAN_EXPERTS ? plan->expert * split : tensor;
}

// Experts that every rank of a position holds are no different from the other weights.
static bool has_experts(const struct dp_plan *plan)
{
    return parts_count(plan, DP_PLAN_EXPERTS) > 1;
}

static bool is_shared_out(const struct dp_plan *plan, dp_plan_tensors tensors)
{
    return plan->shard == DP_SHARD_FSDP ||
           (plan->shard == DP_SHARD_ZERO1 && tensors == DP_PLAN_MOMENTS);
}

// Ranks of the stage's positions that hold this part and are not lost; `rank` becomes one that is,
// or without losses one of them all.
static void count_part(struct ground *ground, const int32_t *placement, dp_plan_tensors tensors,
                       int32_t part, const bool *lost, struct dp_plan_copies *ret_copies)
{
    const struct dp_plan *plan = ground->plan;
    int32_t shards = dp_plan_shards(plan), parts = parts_count(plan, tensors);
    int32_t of_position = plan->data * shards;
    ground->group++;
    ret_copies->ranks = ret_copies->nodes = 0;
    for (int direction = 0; direction < (placement[0] == placement[1] ? 1 : 2); direction++) {
        for (int32_t i = part; i < of_position; i += parts) {
            int32_t rank =
                (i / shards * plan->pipeline + placement[direction]) * shards + i % shards;
            if (lost == NULL || lost[rank]) {
                ret_copies->rank = rank;
            }
            if (lost != NULL && lost[rank]) {
                continue;
            }
            ret_copies->ranks++;
            int32_t *stamp = &ground->stamp[ground->node[rank]];
            ret_copies->nodes += *stamp != ground->group;
            *stamp = ground->group;
        }
    }
}

// The part with the fewest copies, by nodes when there are as many.
static void scarcest_part(struct ground *ground, const int32_t *placement, dp_plan_tensors tensors,
                          struct dp_plan_copies *copies)
{
    for (int32_t part = 0; part < parts_count(ground->plan, tensors); part++) {
        struct dp_plan_copies one = *copies;
        count_part(ground, placement, tensors, part, NULL, &one);
        // Fewer nodes is what a part may have with no fewer ranks.
        int32_t nodes = part == 0 || one.nodes < copies->nodes ? one.nodes : copies->nodes;
        if (part == 0 || one.ranks < copies->ranks || one.nodes < copies->nodes) {
            copies->rank = one.rank;
        }
        copies->ranks = part == 0 || one.ranks < copies->ranks ? one.ranks : copies->ranks;
        copies->nodes = nodes;
    }
    if (is_shared_out(ground->plan, tensors)) {
        copies->ranks = copies->nodes = 1;
    }
}

static void fill_stage(struct ground *ground, const struct dp_schedule *schedule, int32_t stage,
                       struct dp_plan_copies *row)
{
    const int32_t *placement = &schedule->placement[2 * stage];
    for (int kind = 0; kind < DP_PLAN_TENSORS_COUNT; kind++) {
        row[kind] = (struct dp_plan_copies){.stage = stage, .tensors = (dp_plan_tensors)kind};
    }
    scarcest_part(ground, placement, DP_PLAN_WEIGHTS, &row[DP_PLAN_WEIGHTS]);
    row[DP_PLAN_MOMENTS] = row[DP_PLAN_WEIGHTS];
    if (has_experts(ground->plan)) {
        scarcest_part(ground, placement, DP_PLAN_EXPERTS, &row[DP_PLAN_EXPERTS]);
        struct dp_plan_copies *moments = &row[DP_PLAN_MOMENTS], *experts = &row[DP_PLAN_EXPERTS];
        if (experts->ranks < moments->ranks || experts->nodes < moments->nodes) {
            *moments = *experts;
        }
    }
    row[DP_PLAN_MOMENTS].tensors = DP_PLAN_MOMENTS;
    if (is_shared_out(ground->plan, DP_PLAN_MOMENTS)) {
        row[DP_PLAN_MOMENTS].ranks = row[DP_PLAN_MOMENTS].nodes = 1;
    }
}

dp_status dp_plan_copies_of(const struct dp_plan *plan, struct dp_plan_copies **ret_copies,
                            struct dp_error *err)
{
    DP_CLEANUP(dp_schedule_deinit) struct dp_schedule schedule = {0};
    dp_status status = dp_plan_schedule(plan, &schedule, err);
    if (status != DP_OK) {
        return status;
    }
    DP_CLEANUP(ground_deinit) struct ground ground;
    ground_init(&ground, plan);
    struct dp_plan_copies *copies =
        dp_new_array(struct dp_plan_copies, (size_t)plan->stages * DP_PLAN_TENSORS_COUNT);
    for (int32_t s = 0; s < plan->stages; s++) {
        fill_stage(&ground, &schedule, s, copies + (size_t)s * DP_PLAN_TENSORS_COUNT);
    }
    *ret_copies = copies;
    return DP_OK;
}

dp_status dp_plan_survival_of(const struct dp_plan *plan, struct dp_plan_survival *ret_survival,
                              struct dp_error *err)
{
    DP_AUTO_FREE struct dp_plan_copies *copies = NULL;
    dp_status status = dp_plan_copies_of(plan, &copies, err);
    if (status != DP_OK) {
        return status;
    }
    struct dp_plan_survival survival = {.by_ranks = copies[0], .by_nodes = copies[0]};
    for (int32_t i = 1; i < plan->stages * DP_PLAN_TENSORS_COUNT; i++) {
        const struct dp_plan_copies *row = &copies[i];
        if (row->ranks > 0 && row->ranks < survival.by_ranks.ranks) {
            survival.by_ranks = *row;
        }
        if (row->ranks > 0 && row->nodes < survival.by_nodes.nodes) {
            survival.by_nodes = *row;
        }
    }
    survival.ranks = survival.by_ranks.ranks - 1;
    survival.nodes = survival.by_nodes.nodes - 1;
    *ret_survival = survival;
    return DP_OK;
}

static void put_many(const char *noun, int32_t count, struct dp_buf *out)
{
    if (count == 1) {
        dp_buf_printf(out, "any one %s", noun);
    } else {
        dp_buf_printf(out, "any %d %ss", count, noun);
    }
}

// Why the scarcest has no more copies.
static void put_reason(const struct dp_plan *plan, const struct dp_plan_copies *copies,
                       bool by_node, struct dp_buf *out)
{
    if (is_shared_out(plan, copies->tensors)) {
        dp_buf_printf(out, "%s are shared out (%s), each part on one rank",
                      dp_plan_tensors_text(copies->tensors), dp_shard_text(plan->shard));
    } else if (copies->ranks == 1) {
        dp_buf_printf(out, "rank %d alone holds the %s of stage %d", copies->rank,
                      dp_plan_tensors_text(copies->tensors), copies->stage);
    } else if (by_node && copies->nodes == 1) {
        dp_buf_printf(out, "all %d copies of the %s of stage %d stand on node %s", copies->ranks,
                      dp_plan_tensors_text(copies->tensors), copies->stage,
                      plan->ranks[copies->rank].node);
    } else {
        dp_buf_printf(out, "every tensor is on %d %ss or more",
                      by_node ? copies->nodes : copies->ranks, by_node ? "node" : "rank");
    }
}

void dp_plan_survival_text(const struct dp_plan *plan, const struct dp_plan_survival *survival,
                           struct dp_buf *out)
{
    dp_buf_puts(out, "tolerates ");
    if (survival->ranks == 0) {
        dp_buf_puts(out, "no loss: ");
        put_reason(plan, &survival->by_ranks, false, out);
        return;
    }
    if (survival->nodes > 0) {
        put_many("node", survival->nodes, out);
        dp_buf_puts(out, ": ");
        put_reason(plan, &survival->by_nodes, true, out);
        return;
    }
    put_many("rank", survival->ranks, out);
    dp_buf_puts(out, " but no node: ");
    put_reason(plan, &survival->by_nodes, true, out);
}

// Whether a stage's tensors of one kind are all there. Shared out, each rank's part is its own.
static bool is_there(struct ground *ground, const int32_t *placement, dp_plan_tensors tensors,
                     const bool *lost, struct dp_plan_copies *gone)
{
    dp_plan_tensors held = tensors;
    bool is_shared = is_shared_out(ground->plan, tensors);
    for (int32_t part = 0; part < parts_count(ground->plan, held); part++) {
        struct dp_plan_copies all = *gone;
        count_part(ground, placement, held, part, NULL, &all);
        count_part(ground, placement, held, part, lost, gone);
        if (is_shared ? gone->ranks < all.ranks : gone->ranks == 0) {
            return false;
        }
    }
    return true;
}

dp_status dp_plan_survives(const struct dp_plan *plan, const bool *lost, bool *ret_survives,
                           struct dp_plan_copies *ret_gone, struct dp_error *err)
{
    DP_CLEANUP(dp_schedule_deinit) struct dp_schedule schedule = {0};
    dp_status status = dp_plan_schedule(plan, &schedule, err);
    if (status != DP_OK) {
        return status;
    }
    DP_CLEANUP(ground_deinit) struct ground ground;
    ground_init(&ground, plan);
    struct dp_plan_copies gone = {0};
    bool survives = true;
    for (int32_t s = 0; s < plan->stages && survives; s++) {
        const int32_t *placement = &schedule.placement[2 * s];
        for (int kind = 0; kind < DP_PLAN_TENSORS_COUNT && survives; kind++) {
            gone = (struct dp_plan_copies){.stage = s, .tensors = (dp_plan_tensors)kind};
            survives = (kind == DP_PLAN_EXPERTS && !has_experts(plan)) ||
                       is_there(&ground, placement, (dp_plan_tensors)kind, lost, &gone);
        }
    }
    if (!survives && ret_gone != NULL) {
        *ret_gone = gone;
    }
    *ret_survives = survives;
    return DP_OK;
}
