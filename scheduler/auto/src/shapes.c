// Placements of stages on ranks that the search knows of itself.
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "search.h"

static const struct {
    dp_auto_placement placement;
    int32_t chunks; // per rank and direction
} shapes[] = {
    {DP_AUTO_STRAIGHT, 1}, {DP_AUTO_VEE, 2},  {DP_AUTO_BIDIRECTIONAL, 1},
    {DP_AUTO_LOOP, 2},     {DP_AUTO_LOOP, 4}, {DP_AUTO_WAVES, 4},
};

static int32_t rank_of(dp_auto_placement placement, int32_t pipeline, int32_t stage)
{
    int32_t turn = stage / pipeline, place = stage % pipeline;
    bool zigzag = placement == DP_AUTO_VEE || placement == DP_AUTO_WAVES;
    return zigzag && turn % 2 == 1 ? pipeline - 1 - place : place;
}

static void make_shape(const struct dp_auto_problem *problem, dp_auto_placement placement,
                       int32_t chunks, struct dp_schedule *ret_shape)
{
    int32_t pipeline = problem->pipeline;
    bool both_ways = placement == DP_AUTO_BIDIRECTIONAL;
    struct dp_schedule shape = {.name = "auto",
                                .pipeline = pipeline,
                                .microbatches = problem->microbatches,
                                .stages = chunks * pipeline,
                                .directions = both_ways ? 2 : 1};
    shape.placement = dp_new_array(int32_t, 2 * (size_t)shape.stages);
    shape.actions = dp_new_array(struct dp_action, 0);
    shape.rank_begin = dp_new_array(size_t, (size_t)pipeline + 1);
    for (int32_t stage = 0; stage < shape.stages; stage++) {
        int32_t rank = rank_of(placement, pipeline, stage);
        shape.placement[2 * stage] = rank;
        shape.placement[2 * stage + 1] = both_ways ? pipeline - 1 - rank : rank;
    }
    *ret_shape = shape;
}

static bool is_allowed(const struct dp_auto_problem *problem, dp_auto_placement placement,
                       int32_t chunks)
{
    bool chosen = problem->placements == 0 || (problem->placements & placement) != 0;
    bool counted = problem->virtual_stages == 0 || problem->virtual_stages == chunks;
    return chosen && counted && chunks * problem->pipeline <= DP_STAGES_MAX;
}

void dp_auto_shape_copy(const struct dp_schedule *shape, struct dp_schedule *ret_shape)
{
    *ret_shape = *shape;
    DP_COPY_TEXT(ret_shape->name, "auto");
    ret_shape->placement =
        dp_memdup(shape->placement, 2 * (size_t)shape->stages * sizeof(int32_t));
    ret_shape->actions = dp_new_array(struct dp_action, 0);
    ret_shape->rank_begin = dp_new_array(size_t, (size_t)shape->pipeline + 1);
}

bool dp_auto_shape(const struct dp_auto_problem *problem, int index, struct dp_schedule *ret_shape)
{
    if (problem->shape != NULL) {
        if (index == 0) {
            dp_auto_shape_copy(problem->shape, ret_shape);
        }
        return index == 0;
    }
    for (size_t i = 0; i < DP_ARRAY_LENGTH(shapes); i++) {
        if (is_allowed(problem, shapes[i].placement, shapes[i].chunks) && index-- == 0) {
            make_shape(problem, shapes[i].placement, shapes[i].chunks, ret_shape);
            return true;
        }
    }
    // Numbers of chunks that are not in the table were asked for by name.
    static const dp_auto_placement by_chunks[] = {DP_AUTO_LOOP, DP_AUTO_WAVES};
    int32_t chunks = problem->virtual_stages;
    for (size_t i = 0; i < 2; i++) {
        bool legal = by_chunks[i] == DP_AUTO_LOOP ? chunks == 3 || chunks > 4
                                                  : chunks > 4 && chunks % 2 == 0;
        if (legal && is_allowed(problem, by_chunks[i], chunks) && index-- == 0) {
            make_shape(problem, by_chunks[i], chunks, ret_shape);
            return true;
        }
    }
    return false;
}

bool dp_auto_shape_equal(const struct dp_schedule *a, const struct dp_schedule *b)
{
    return a->pipeline == b->pipeline && a->microbatches == b->microbatches &&
           a->stages == b->stages && a->directions == b->directions &&
           memcmp(a->placement, b->placement, 2 * (size_t)a->stages * sizeof(int32_t)) == 0;
}

// Which placements a shape is an instance of; on few ranks some are the same.
static unsigned kinds_of(const struct dp_auto_problem *problem, const struct dp_schedule *shape)
{
    unsigned found = 0;
    int32_t chunks = shape->stages / shape->pipeline;
    dp_auto_placement kinds[] = {DP_AUTO_STRAIGHT, DP_AUTO_STRAIGHT, DP_AUTO_BIDIRECTIONAL};
    if (chunks > 1) {
        kinds[0] = DP_AUTO_LOOP;
        kinds[1] = chunks == 2 ? DP_AUTO_VEE : DP_AUTO_WAVES;
    }
    for (size_t i = 0; i < DP_ARRAY_LENGTH(kinds); i++) {
        DP_CLEANUP(dp_schedule_deinit) struct dp_schedule like = {0};
        make_shape(problem, kinds[i], chunks, &like);
        if (dp_auto_shape_equal(&like, shape)) {
            found |= kinds[i];
        }
    }
    return found;
}

bool dp_auto_shape_is_wanted(const struct dp_auto_problem *problem,
                             const struct dp_schedule *shape)
{
    if (problem->shape != NULL) {
        return dp_auto_shape_equal(problem->shape, shape);
    }
    bool counted = problem->virtual_stages == 0 ||
                   problem->virtual_stages == shape->stages / shape->pipeline;
    return counted &&
           (problem->placements == 0 || (problem->placements & kinds_of(problem, shape)) != 0);
}
