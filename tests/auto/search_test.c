// What the search does for people: odd sizes, uneven stages, caps, and how it says no.
#include <math.h>

#include "auto_costs.h"
#include "auto_support.h"
#include "dp/cleanup.h"
#include "dp_test.h"

enum { CHUNK = 1000 }; // bytes of a micro-batch on a P-th of the model

static const struct uniform_model unit = {
    .stage = {.f = 1, .b = 2, .i = 1, .w = 1},
    .activation_bytes = CHUNK,
    .released_at_i_bytes = CHUNK,
};

static struct dp_auto_problem uniform_problem(const struct uniform_model *model, int32_t pipeline,
                                              int32_t microbatches)
{
    return (struct dp_auto_problem){.pipeline = pipeline,
                                    .microbatches = microbatches,
                                    .costs = uniform_costs,
                                    .context = (void *)model};
}

static void set_caps(struct dp_auto_problem *problem, uint64_t caps[DP_PIPELINE_MAX],
                     uint64_t bytes)
{
    for (int32_t rank = 0; rank < problem->pipeline; rank++) {
        caps[rank] = bytes;
    }
    problem->memory_cap = caps;
}

static struct dp_auto_result search(const struct dp_auto_problem *problem, int64_t moves)
{
    struct dp_auto_result result = {0};
    const struct dp_auto_options options = {.moves_max = moves};
    struct dp_error err;
    assert_ok(dp_auto_search(problem, &options, &result, &err), &err);
    assert_ok(dp_schedule_validate(&result.schedule, &err), &err);
    return result;
}

// The makespan of a family on the model, and whether it fits into `room` bytes.
static double family_makespan(const char *name, const struct uniform_model *model,
                              int32_t pipeline, int32_t microbatches, uint64_t room)
{
    const struct dp_schedule_params params = {.pipeline = pipeline, .microbatches = microbatches};
    DP_CLEANUP(dp_schedule_deinit) struct dp_schedule schedule = {0};
    DP_CLEANUP(dp_sim_costs_deinit) struct dp_sim_costs costs = {0};
    DP_CLEANUP(dp_sim_result_deinit) struct dp_sim_result times = {0};
    uint64_t fixed[DP_PIPELINE_MAX] = {0};
    struct dp_error err;
    assert_ok(dp_schedule_generate(name, &params, &schedule, &err), &err);
    assert_ok(uniform_costs((void *)model, &schedule, &costs, fixed, &err), &err);
    assert_ok(dp_simulate(&schedule, &costs, false, &times, &err), &err);
    for (int32_t rank = 0; rank < pipeline; rank++) {
        if (times.ranks[rank].peak_bytes + fixed[rank] > room) {
            return INFINITY;
        }
    }
    return times.makespan;
}

static void with_the_memory_of_1f1b_it_is_at_least_as_good_as_zb_h1_and_zb_v(void **state)
{
    (void)state;
    uint64_t caps[DP_PIPELINE_MAX];
    for (int32_t pipeline = 4; pipeline <= 16; pipeline += 3) {
        int32_t microbatches = 3 * pipeline;
        uint64_t room = (uint64_t)pipeline * CHUNK;
        struct dp_auto_problem problem = uniform_problem(&unit, pipeline, microbatches);
        set_caps(&problem, caps, room);
        DP_CLEANUP(dp_auto_result_deinit) struct dp_auto_result result = search(&problem, 500);
        double zb_h1 = family_makespan("zb-h1", &unit, pipeline, microbatches, room);
        double zb_v = family_makespan("zb-v", &unit, pipeline, microbatches, room);
        // 3M + P - 1 is the published bubble of ZB-H1, (P-1)(F+I-W), beside the work.
        assert_true(fabs(zb_h1 - (3 * microbatches + pipeline - 1)) < 1e-9);
        assert_true(result.makespan <= zb_h1 && result.makespan <= zb_v);
        problem.placements = DP_AUTO_STRAIGHT;
        DP_CLEANUP(dp_auto_result_deinit) struct dp_auto_result straight = search(&problem, 500);
        assert_true(fabs(straight.makespan - zb_h1) < 1e-9);
        // And that is proved to be the best there is on this placement.
        assert_true(fabs(straight.bound - zb_h1) < 1e-6);
    }
}

static size_t count_of(const struct dp_schedule *schedule, dp_action_kind kind)
{
    size_t count = 0;
    for (size_t i = 0; i < dp_schedule_action_count(schedule); i++) {
        count += schedule->actions[i].kind == kind;
    }
    return count;
}

static void odd_pipelines_get_a_bidirectional_schedule_that_beats_1f1b(void **state)
{
    (void)state;
    struct uniform_model model = unit;
    model.stage.fb = 2.5;
    model.stage.fi = 1.5;
    static const int32_t sizes[][2] = {{3, 7}, {5, 15}, {7, 9}, {9, 20}, {5, 2}};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        int32_t pipeline = sizes[i][0], microbatches = sizes[i][1];
        struct dp_auto_problem problem = uniform_problem(&model, pipeline, microbatches);
        problem.placements = DP_AUTO_BIDIRECTIONAL;
        DP_CLEANUP(dp_auto_result_deinit) struct dp_auto_result result = search(&problem, 3000);
        double f1b1 = family_makespan("1f1b", &model, pipeline, microbatches, UINT64_MAX);
        assert_int_equal(result.schedule.directions, 2);
        assert_true(result.makespan < f1b1);
        // The middle rank holds its stage once, for both directions.
        int32_t stages[DP_RANK_STAGES_MAX];
        assert_int_equal(dp_schedule_rank_stages(&result.schedule, pipeline / 2, stages), 1);
        if (microbatches > pipeline) {
            assert_true(count_of(&result.schedule, DP_ACTION_FB) > 0);
        }
    }
}

static void one_micro_batch_and_one_rank_are_no_special_cases(void **state)
{
    (void)state;
    static const int32_t sizes[][2] = {{1, 1}, {1, 5}, {4, 1}, {5, 1}, {2, 2}};
    static const unsigned placements[] = {0, DP_AUTO_STRAIGHT, DP_AUTO_BIDIRECTIONAL, DP_AUTO_VEE};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        for (size_t k = 0; k < sizeof(placements) / sizeof(placements[0]); k++) {
            struct dp_auto_problem problem = uniform_problem(&unit, sizes[i][0], sizes[i][1]);
            problem.placements = placements[k];
            DP_CLEANUP(dp_auto_result_deinit) struct dp_auto_result result = search(&problem, 300);
            assert_true(result.makespan >= result.bound * (1 - 1e-9));
        }
    }
}

// What is uneven about an otherwise even model.
struct uneven {
    double head;    // of the last stage beside its layers, in units of F
    double slow;    // of the rank in the middle
    double far_hop; // across the middle of the pipeline
};

static dp_status uneven_costs(void *context, const struct dp_schedule *shape,
                              struct dp_sim_costs *ret_costs, uint64_t *ret_static_bytes,
                              struct dp_error *err)
{
    const struct uneven *uneven = context;
    dp_status status =
        uniform_costs((void *)&unit, shape, ret_costs, ret_static_bytes, err);
    assert_ok(status, err);
    int32_t middle = shape->pipeline / 2;
    for (int32_t rank = 0; rank < shape->pipeline; rank++) {
        int32_t stages[DP_RANK_STAGES_MAX];
        int32_t count = dp_schedule_rank_stages(shape, rank, stages);
        for (int32_t slot = 0; slot < count; slot++) {
            double *seconds = dp_sim_chunk_at(ret_costs, rank, slot)->seconds;
            double head = stages[slot] == shape->stages - 1 ? uneven->head : 0;
            for (int kind = 0; kind < DP_ACTION_FB; kind++) {
                seconds[kind] += kind == DP_ACTION_B ? 2 * head : head;
            }
        }
        for (int32_t to = 0; to < shape->pipeline; to++) {
            bool far = (rank < middle) != (to < middle);
            dp_sim_hop_at(ret_costs, rank, to)->latency = far ? uneven->far_hop : 0;
        }
    }
    costs_add_pairs(ret_costs);
    costs_slow_rank(ret_costs, middle, uneven->slow);
    return DP_OK;
}

static void assert_gain(struct uneven uneven, int32_t pipeline, int32_t microbatches,
                        unsigned placements, double gain)
{
    struct dp_auto_problem problem = {.pipeline = pipeline,
                                      .microbatches = microbatches,
                                      .costs = uneven_costs,
                                      .context = &uneven,
                                      .placements = placements};
    uint64_t caps[DP_PIPELINE_MAX];
    set_caps(&problem, caps, (uint64_t)pipeline * CHUNK);
    DP_CLEANUP(dp_auto_result_deinit) struct dp_auto_result result = search(&problem, 4000);
    print_message("%s takes %.4g, auto %.4g, no order less than %.4g\n", result.family,
                  result.family_objective, result.objective, result.bound);
    assert_true(result.objective * gain < result.family_objective);
    assert_true(result.best_at > 1);
}

static void uneven_stages_and_hops_are_where_it_gains(void **state)
{
    (void)state;
    assert_gain((struct uneven){.head = 0.5, .slow = 1}, 8, 24, 0, 1.1);
    assert_gain((struct uneven){.slow = 1.2, .far_hop = 1}, 16, 32, DP_AUTO_STRAIGHT, 1.03);
    assert_gain((struct uneven){.slow = 1.5}, 8, 24, DP_AUTO_STRAIGHT, 1.01);
}

static void a_cap_that_nothing_fits_names_the_rank_and_its_need(void **state)
{
    (void)state;
    struct uniform_model model = unit;
    model.static_bytes = 500;
    struct dp_auto_problem problem = uniform_problem(&model, 4, 8);
    problem.placements = DP_AUTO_STRAIGHT;
    uint64_t caps[DP_PIPELINE_MAX];
    set_caps(&problem, caps, 5 * CHUNK);
    caps[2] = 1200;
    struct dp_auto_result result;
    struct dp_error err;
    assert_refused(dp_auto_search(&problem, NULL, &result, &err), DP_INVALID, &err,
                   "rank 2 needs at least 1500 bytes (500 of them all the time");
    assert_non_null(strstr(err.message, "may use 1200"));
    // That much is enough.
    caps[2] = 1500;
    DP_CLEANUP(dp_auto_result_deinit) struct dp_auto_result enough = search(&problem, 200);
    assert_true(enough.makespan > 0);
}

// One micro-batch after the other takes M times F and B of the whole model. Memory for a third of
// the pipeline must be enough for three at a time, and the ranks must not lock each other up: on a
// rank of a V the first stage's chunks could take the room that the second needs.
static void little_memory_locks_nothing_up(void **state)
{
    (void)state;
    struct dp_auto_problem problem = uniform_problem(&unit, 6, 12);
    uint64_t caps[DP_PIPELINE_MAX];
    set_caps(&problem, caps, 2 * CHUNK);
    static const unsigned placements[] = {DP_AUTO_VEE, DP_AUTO_BIDIRECTIONAL};
    for (size_t i = 0; i < 2; i++) {
        problem.placements = placements[i];
        DP_CLEANUP(dp_auto_result_deinit) struct dp_auto_result result = search(&problem, 400);
        assert_true(result.makespan < 12 * 6 * 3 / 2.0);
    }
    problem.placements = DP_AUTO_VEE;
    DP_CLEANUP(dp_auto_result_deinit) struct dp_auto_result result = search(&problem, 400);
    assert_true(result.makespan < 12 * 6 * 3 / 3.0);
}

static void costs_of_one_shape_keep_the_search_to_it(void **state)
{
    (void)state;
    struct made_model model;
    made_model_init(&model, 3, 8);
    model.stages_only = 8;
    struct dp_auto_problem problem = {
        .pipeline = 4, .microbatches = 8, .costs = made_costs, .context = &model};
    DP_CLEANUP(dp_auto_result_deinit) struct dp_auto_result result = search(&problem, 300);
    assert_int_equal(result.schedule.stages, 8);
    problem.placements = DP_AUTO_STRAIGHT;
    struct dp_auto_result none;
    struct dp_error err;
    assert_refused(dp_auto_search(&problem, NULL, &none, &err), DP_INVALID, &err,
                   "costs of 8 stages are known, not of 4");
}

static void a_given_table_of_costs_fixes_the_shape(void **state)
{
    (void)state;
    const struct dp_schedule_params params = {.pipeline = 4, .microbatches = 12};
    DP_CLEANUP(dp_schedule_deinit) struct dp_schedule zb_v = {0};
    DP_CLEANUP(dp_sim_costs_deinit) struct dp_sim_costs costs = {0};
    struct dp_error err;
    assert_ok(dp_schedule_generate("zb-v", &params, &zb_v, &err), &err);
    dp_sim_costs_init_uniform(&costs, &zb_v,
                              &(struct dp_sim_uniform){.f = 1, .b = 2.2, .i = 1.3, .w = 0.9});
    const struct dp_auto_problem problem = {.pipeline = 4,
                                            .microbatches = 12,
                                            .costs = fixed_costs,
                                            .context = &costs,
                                            .shape = &zb_v};
    DP_CLEANUP(dp_auto_result_deinit) struct dp_auto_result result = search(&problem, 2000);
    assert_int_equal(result.schedule.stages, 8);
    assert_memory_equal(result.schedule.placement, zb_v.placement, 16 * sizeof(int32_t));
}

// F, I and W of 65536 micro-batches on 42 stages are 8257536 actions; on 43 they would be more than
// 2^23, and so are those of two stages on each of 22 ranks.
static void what_is_too_large_is_left_out_or_refused(void **state)
{
    (void)state;
    struct dp_auto_problem problem = uniform_problem(&unit, 43, 65536);
    struct dp_auto_result none;
    struct dp_error err;
    assert_refused(dp_auto_search(&problem, NULL, &none, &err), DP_TOO_LARGE, &err,
                   "take 65027 micro-batches or fewer");
    problem = uniform_problem(&unit, 22, 65536);
    problem.placements = DP_AUTO_STRAIGHT | DP_AUTO_VEE;
    DP_CLEANUP(dp_auto_result_deinit) struct dp_auto_result result = search(&problem, 1);
    assert_int_equal(result.schedule.stages, 22);
    // In a V there are at least zb-v, v-half, v-min, dualpipev, and the wave of two chunks.
    assert_true(result.left_out >= 5);
    problem.microbatches = 44;
    DP_CLEANUP(dp_auto_result_deinit) struct dp_auto_result small = search(&problem, 1);
    assert_int_equal(small.left_out, 0);
}

// ZB-V's 6M+P-1 slots are the work of a rank and its first input's way to the last one: nothing can
// be better.
static void it_stops_where_nothing_can_be_better(void **state)
{
    (void)state;
    struct dp_auto_problem problem = uniform_problem(&unit, 8, 24);
    problem.placements = DP_AUTO_VEE;
    DP_CLEANUP(dp_auto_result_deinit) struct dp_auto_result even = search(&problem, 0);
    assert_true(even.makespan == 24 * 3 + 7 * 0.5);
    assert_int_equal(even.moves, 1);
    assert_int_equal(even.best_at, 1);
}

// Also in the middle of improving an order: on one placement the move that gets to the bound is the
// last.
static void the_move_that_reaches_the_bound_is_the_last(void **state)
{
    (void)state;
    int reached = 0;
    int late = 0;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        struct made_model model;
        made_model_init(&model, seed, 4);
        struct dp_auto_problem problem = {.pipeline = 4,
                                          .microbatches = 8,
                                          .costs = made_costs,
                                          .context = &model,
                                          .placements = DP_AUTO_VEE};
        DP_CLEANUP(dp_auto_result_deinit) struct dp_auto_result result = search(&problem, 3000);
        if (result.objective <= result.bound * (1 + 1e-9)) {
            assert_int_equal(result.moves, result.best_at);
            reached++;
            late += result.moves > 200;
        }
    }
    assert_true(reached > 5 && late > 0);
}

static void sizes_out_of_range_are_refused(void **state)
{
    (void)state;
    struct dp_auto_problem problem = uniform_problem(&unit, 0, 8);
    struct dp_auto_result result;
    struct dp_error err;
    assert_refused(dp_auto_search(&problem, NULL, &result, &err), DP_INVALID, &err, "pipeline");
    problem = uniform_problem(&unit, 4, 0);
    assert_refused(dp_auto_search(&problem, NULL, &result, &err), DP_INVALID, &err, "microbatches");
    problem = uniform_problem(&unit, 4, 8);
    problem.placements = DP_AUTO_STRAIGHT;
    problem.virtual_stages = 2;
    assert_refused(dp_auto_search(&problem, NULL, &result, &err), DP_INVALID, &err,
                   "no placement of stages is allowed");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(with_the_memory_of_1f1b_it_is_at_least_as_good_as_zb_h1_and_zb_v),
        cmocka_unit_test(odd_pipelines_get_a_bidirectional_schedule_that_beats_1f1b),
        cmocka_unit_test(one_micro_batch_and_one_rank_are_no_special_cases),
        cmocka_unit_test(uneven_stages_and_hops_are_where_it_gains),
        cmocka_unit_test(a_cap_that_nothing_fits_names_the_rank_and_its_need),
        cmocka_unit_test(little_memory_locks_nothing_up),
        cmocka_unit_test(costs_of_one_shape_keep_the_search_to_it),
        cmocka_unit_test(a_given_table_of_costs_fixes_the_shape),
        cmocka_unit_test(what_is_too_large_is_left_out_or_refused),
        cmocka_unit_test(it_stops_where_nothing_can_be_better),
        cmocka_unit_test(the_move_that_reaches_the_bound_is_the_last),
        cmocka_unit_test(sizes_out_of_range_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
