// Orders of its own making for jobs that ask for schedule = "auto": the search of scheduler/auto
// with the planner's costs and the nodes' memory.
#include <math.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/auto.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "search.h"

// Families that are not in the table of families, one for each way to place the stages.
static const struct dp_schedule_family rows[] = {
    {.name = "auto", .summary = "straight", .directions = 1, .stages_per_rank = 1},
    {.name = "auto", .summary = "in a V", .directions = 1, .stages_per_rank = 2},
    {.name = "auto", .summary = "in loops of two", .directions = 1, .stages_per_rank = 2},
    {.name = "auto", .summary = "from both ends", .directions = 2, .stages_per_rank = 2},
};
static const dp_auto_placement placements[] = {DP_AUTO_STRAIGHT, DP_AUTO_VEE, DP_AUTO_LOOP,
                                               DP_AUTO_BIDIRECTIONAL};

// About as many actions are looked at for one order.
enum { ACTIONS_TRIED = 20000000, MOVES_LEAST = 200, MOVES_MOST = 2000 };
// Ranks that share cores are simulated in the order of time, which takes much longer.
enum { MOVES_SHARED = 100 };
// An action in a list takes no fewer bytes.
enum { BYTES_LISTED = sizeof("{\"kind\":\"F\",\"stage\":0,\"microbatch\":0},") - 1 };

const struct dp_schedule_family *dp_planner_order_rows(size_t *ret_count)
{
    *ret_count = DP_ARRAY_LENGTH(rows);
    return rows;
}

bool dp_planner_is_auto(const struct dp_schedule_family *family)
{
    for (size_t i = 0; i < DP_ARRAY_LENGTH(rows); i++) {
        if (family == &rows[i]) {
            return true;
        }
    }
    return false;
}

unsigned dp_planner_order_placement(const struct dp_schedule_family *row)
{
    return placements[row - rows];
}

struct asked {
    const struct problem *problem;
    const struct choice *choice;
};

// Whether some pair of the rank is faster than its parts.
static bool pairs_help(const struct dp_sim_costs *costs, int32_t rank, int32_t count)
{
    for (int32_t f = 0; f < count; f++) {
        for (int32_t b = 0; b < count; b++) {
            const double *forward = dp_sim_chunk_at(costs, rank, f)->seconds;
            const double *backward = dp_sim_chunk_at(costs, rank, b)->seconds;
            size_t pair = dp_sim_pair_index(costs, rank, f, b);
            if (costs->fb[pair] < forward[DP_ACTION_F] + backward[DP_ACTION_B] ||
                costs->fi[pair] < forward[DP_ACTION_F] + backward[DP_ACTION_I]) {
                return true;
            }
        }
    }
    return false;
}

// Caps are on what a rank keeps of chunks; what a running action holds besides, at most, counts as
// always there. Both parts of a pair hold theirs at once.
static void fill_bytes(const struct problem *problem, const struct layout *layout,
                       const struct dp_schedule *shape, struct dp_sim_costs *costs,
                       uint64_t *ret_static_bytes)
{
    const struct dp_rank_memory memory = dp_planner_memory_of(problem, layout, shape);
    for (int32_t rank = 0; rank < shape->pipeline; rank++) {
        int32_t stages[DP_RANK_STAGES_MAX];
        int32_t count = dp_schedule_rank_stages(shape, rank, stages);
        double forward = 0, backward = 0;
        for (int32_t slot = 0; slot < count; slot++) {
            struct dp_rank_chunk bytes;
            dp_rank_memory_chunk(&memory, stages[slot], &bytes);
            double kept = ceil(fmax(bytes.kept, bytes.deferred));
            struct dp_sim_chunk *chunk = dp_sim_chunk_at(costs, rank, slot);
            chunk->activation_bytes = (uint64_t)kept;
            chunk->released_at_i_bytes = (uint64_t)floor(kept - bytes.deferred);
            forward = fmax(forward, bytes.forward - kept);
            backward = fmax(backward, fmax(bytes.backward, bytes.input) - kept);
        }
        double most = pairs_help(costs, rank, count) ? forward + backward : fmax(forward, backward);
        struct dp_memory_parts still;
        dp_rank_memory_still(&memory, rank, &still);
        ret_static_bytes[rank] = (uint64_t)ceil(dp_memory_total(&still) + most);
    }
}

static dp_status costs_of(void *context, const struct dp_schedule *shape,
                          struct dp_sim_costs *ret_costs, uint64_t *ret_static_bytes,
                          struct dp_error *err)
{
    const struct asked *asked = context;
    struct choice choice = *asked->choice;
    choice.stages = shape->stages;
    int32_t layers = asked->problem->spec->model.layers;
    if (shape->stages > layers) {
        return dp_fail(err, DP_INVALID, "%d stages of a model that has %d layers", shape->stages,
                       layers);
    }
    DP_CLEANUP(dp_planner_layout_deinit) struct layout layout = {0};
    dp_planner_layout_init(&layout, asked->problem, &choice, shape);
    dp_planner_layout_costs(asked->problem, &layout, 0, shape, ret_costs);
    fill_bytes(asked->problem, &layout, shape, ret_costs, ret_static_bytes);
    return DP_OK;
}

// The least memory among the replicas of each pipeline rank.
static void fill_caps(const struct problem *problem, const struct layout *layout,
                      uint64_t *ret_caps)
{
    int32_t pipeline = layout->choice.pipeline;
    for (int32_t i = 0; i < pipeline * layout->choice.data; i++) {
        double limit = problem->nodes[layout->places[i].node].memory_bytes;
        uint64_t cap = limit > 0 && limit < 0x1p63 ? (uint64_t)limit : UINT64_MAX;
        uint64_t *least = &ret_caps[i % pipeline];
        *least = i < pipeline || cap < *least ? cap : *least;
    }
}

static bool shares_cores(const struct problem *problem, const struct layout *layout)
{
    for (int32_t i = 0; i < layout->choice.pipeline * layout->choice.data; i++) {
        int32_t node = layout->places[i].node;
        bool is_new = i == 0 || node != layout->places[i - 1].node;
        if (is_new && dp_planner_ranks_per_core(problem, layout, node) > 1) {
            return true;
        }
    }
    return false;
}

static int64_t moves_for(const struct choice *choice, bool is_shared)
{
    int64_t moves = ACTIONS_TRIED / (3 * (int64_t)choice->microbatches * choice->stages);
    int64_t most = is_shared ? MOVES_SHARED : MOVES_MOST;
    moves = moves < MOVES_LEAST ? MOVES_LEAST : moves;
    return moves > most ? most : moves;
}

char *dp_planner_order_describe(const struct dp_auto_result *result,
                                const struct dp_schedule_family *row)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_buf_printf(&text,
                  "auto: stages placed %s; %lld moves with seed 0; actions end after %.4g s, no "
                  "order of these chunks before %.4g s",
                  row->summary, (long long)result->moves, result->makespan, result->bound);
    if (result->family[0] == '\0') {
        dp_buf_puts(&text, "; no fixed family fits there\n");
    } else {
        dp_buf_printf(&text, "; the best fixed family there is %s with %.4g s\n", result->family,
                      result->family_objective);
    }
    return dp_buf_take(&text);
}

dp_status dp_planner_order_is_too_long(size_t actions, size_t bytes, struct dp_error *err)
{
    return dp_fail(err, DP_TOO_LARGE,
                   "a list of %zu actions takes %zu bytes, and a plan carries at most %u; ask for "
                   "fewer micro-batches, or for a schedule by name",
                   actions, bytes, DP_PLAN_SCHEDULE_BYTES_MAX);
}

dp_status dp_planner_order_write(const struct dp_schedule *schedule, char **ret_list,
                                 struct dp_error *err)
{
    size_t bytes = dp_schedule_json_bytes(schedule);
    if (bytes > DP_PLAN_SCHEDULE_BYTES_MAX) {
        return dp_planner_order_is_too_long(dp_schedule_action_count(schedule), bytes, err);
    }
    struct dp_buf text = {0};
    dp_schedule_write_json(schedule, &text);
    *ret_list = dp_buf_take(&text);
    return DP_OK;
}

dp_status dp_planner_order_find(const struct problem *problem, const struct choice *choice,
                                struct dp_schedule *ret_schedule, char **ret_note,
                                struct dp_error *err)
{
    // At least a forward and a backward of each chunk.
    size_t actions = 2 * (size_t)choice->stages * (size_t)choice->microbatches;
    if (actions * BYTES_LISTED > DP_PLAN_SCHEDULE_BYTES_MAX) {
        return dp_planner_order_is_too_long(actions, actions * BYTES_LISTED, err);
    }
    struct asked asked = {problem, choice};
    uint64_t caps[DP_PIPELINE_MAX];
    DP_CLEANUP(dp_planner_layout_deinit) struct layout layout = {.choice = *choice};
    layout.places = dp_new_array(struct place, (size_t)choice->pipeline * (size_t)choice->data);
    dp_planner_place_ranks(problem, choice, layout.places);
    fill_caps(problem, &layout, caps);
    bool is_shared = !problem->is_sim && shares_cores(problem, &layout);
    const struct dp_auto_problem search = {.pipeline = choice->pipeline,
                                           .microbatches = choice->microbatches,
                                           .costs = costs_of,
                                           .context = &asked,
                                           .memory_cap = problem->is_sim ? NULL : caps,
                                           .placements = placements[choice->family - rows],
                                           .virtual_stages = choice->family->stages_per_rank /
                                                             choice->family->directions};
    const struct dp_auto_options options = {.moves_max = moves_for(choice, is_shared),
                                            .stop = problem->stop,
                                            .context = problem->stop_context};
    DP_CLEANUP(dp_auto_result_deinit) struct dp_auto_result result = {0};
    dp_status status = dp_auto_search(&search, &options, &result, err);
    if (status != DP_OK) {
        return status;
    }
    if (result.is_stopped) {
        return dp_fail(err, DP_INTERRUPTED, "planning was stopped after %lld orders",
                       (long long)result.moves);
    }
    *ret_note = dp_planner_order_describe(&result, choice->family);
    *ret_schedule = result.schedule;
    result.schedule = (struct dp_schedule){0};
    return DP_OK;
}
