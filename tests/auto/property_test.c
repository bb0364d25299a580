// What holds for every input: the answer is valid, within its caps, no worse than any family, and
// the same again.
#include <math.h>

#include "auto_support.h"
#include "dp/cleanup.h"
#include "dp_test.h"

struct input {
    struct made_model model;
    struct dp_auto_problem problem;
    struct dp_auto_options options;
    uint64_t caps[DP_PIPELINE_MAX];
};

// Caps from too little to plenty, in chunks of a straight pipeline.
static void fill_caps(struct input *input, uint64_t *state)
{
    for (int32_t rank = 0; rank < input->problem.pipeline; rank++) {
        input->caps[rank] = 1500 + made_next(state) % 4000 +
                            2000 * (made_next(state) % (uint64_t)(input->problem.pipeline + 2));
    }
    input->problem.memory_cap = input->caps;
}

static void make_input(struct input *ret_input, uint64_t seed)
{
    uint64_t state = seed * 977 + 1;
    struct input input = {0};
    input.problem.pipeline = 1 + (int32_t)(made_next(&state) % 7);
    input.problem.microbatches = 1 + (int32_t)(made_next(&state) % 12);
    made_model_init(&input.model, made_next(&state), input.problem.microbatches);
    input.problem.costs = made_costs;
    input.problem.objective =
        made_next(&state) % 3 == 0 ? DP_AUTO_LONGEST_SPAN : DP_AUTO_MAKESPAN;
    if (made_next(&state) % 2 == 0) {
        input.problem.placements = 1 + (unsigned)(made_next(&state) % 31);
    }
    // Room for every family's own choice of chunks, without asking for hundreds of stages.
    static const int32_t chunks[] = {0, 1, 1, 2, 2, 3, 4, 6};
    input.problem.virtual_stages = chunks[made_next(&state) % 8];
    input.options.seed = made_next(&state);
    bool is_quick = input.model.cores <= 0 && input.model.p2p == DP_SIM_P2P_FREE;
    input.options.moves_max = 1 + (int64_t)(made_next(&state) % (is_quick ? 1500 : 300));
    *ret_input = input;
    if (input.model.has_memory && made_next(&state) % 4 > 0) {
        fill_caps(ret_input, &state);
    }
    ret_input->problem.memory_cap = ret_input->problem.memory_cap != NULL ? ret_input->caps : NULL;
    ret_input->problem.context = &ret_input->model;
}

static double objective_of(const struct input *input, const struct dp_sim_result *times)
{
    double longest = 0;
    for (int32_t rank = 0; rank < times->pipeline; rank++) {
        longest = fmax(longest, times->ranks[rank].end - times->ranks[rank].begin);
    }
    return input->problem.objective == DP_AUTO_LONGEST_SPAN ? longest : times->makespan;
}

static bool fits(const struct input *input, const struct dp_sim_result *times,
                 const uint64_t *fixed)
{
    for (int32_t rank = 0; input->problem.memory_cap != NULL && rank < times->pipeline; rank++) {
        if (times->ranks[rank].peak_bytes + fixed[rank] > input->caps[rank]) {
            return false;
        }
    }
    return true;
}

static bool is_allowed(const struct input *input, const struct dp_schedule *schedule)
{
    int32_t chunks = schedule->stages / schedule->pipeline;
    unsigned kinds = 0;
    bool loop = true, zigzag = true, mirrored = schedule->directions == 2;
    for (int32_t s = 0; s < schedule->stages; s++) {
        int32_t place = s % schedule->pipeline, rank = schedule->placement[2 * s];
        loop = loop && rank == place;
        zigzag = zigzag && rank == (s / schedule->pipeline % 2 == 0
                                        ? place
                                        : schedule->pipeline - 1 - place);
    }
    kinds |= mirrored ? DP_AUTO_BIDIRECTIONAL : 0;
    kinds |= !mirrored && loop ? chunks == 1 ? DP_AUTO_STRAIGHT : DP_AUTO_LOOP : 0;
    kinds |= !mirrored && zigzag && chunks > 1 ? chunks == 2 ? DP_AUTO_VEE : DP_AUTO_WAVES : 0;
    return (input->problem.placements == 0 || (input->problem.placements & kinds) != 0) &&
           (input->problem.virtual_stages == 0 || input->problem.virtual_stages == chunks);
}

// The best fixed family by itself; infinite when none is legal, allowed and fits.
static double best_family(struct input *input)
{
    double best = INFINITY;
    size_t count;
    const struct dp_schedule_family *families = dp_schedule_families(&count);
    for (size_t i = 0; i < count; i++) {
        for (int32_t chunks = 0; chunks <= families[i].virtual_max; chunks++) {
            const struct dp_schedule_params params = {input->problem.pipeline,
                                                      input->problem.microbatches, chunks};
            DP_CLEANUP(dp_schedule_deinit) struct dp_schedule schedule = {0};
            if (dp_schedule_generate(families[i].name, &params, &schedule, NULL) != DP_OK ||
                !is_allowed(input, &schedule)) {
                continue;
            }
            DP_CLEANUP(dp_sim_costs_deinit) struct dp_sim_costs costs = {0};
            DP_CLEANUP(dp_sim_result_deinit) struct dp_sim_result times = {0};
            uint64_t fixed[DP_PIPELINE_MAX] = {0};
            struct dp_error err;
            assert_ok(made_costs(&input->model, &schedule, &costs, fixed, &err), &err);
            assert_ok(dp_simulate(&schedule, &costs, false, &times, &err), &err);
            if (fits(input, &times, fixed)) {
                best = fmin(best, objective_of(input, &times));
            }
        }
    }
    return best;
}

// Chunks of a stage pass in the order of their numbers, so every edge is first in, first out.
static void assert_in_order(const struct dp_schedule *schedule)
{
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        uint32_t next[2][2][DP_STAGES_MAX] = {{{0}}};
        for (size_t i = schedule->rank_begin[rank]; i < schedule->rank_begin[rank + 1]; i++) {
            const struct dp_action *a = &schedule->actions[i];
            bool pair = a->kind == DP_ACTION_FB;
            if (a->kind == DP_ACTION_F || pair) {
                uint32_t *at = &next[0][dp_schedule_direction(schedule, a->microbatch)][a->stage];
                assert_true(a->microbatch >= *at);
                *at = a->microbatch + 1;
            }
            if (pair || a->kind == DP_ACTION_B || a->kind == DP_ACTION_I) {
                uint32_t m = pair ? a->b_microbatch : a->microbatch;
                int32_t stage = pair ? a->b_stage : a->stage;
                uint32_t *at = &next[1][dp_schedule_direction(schedule, m)][stage];
                assert_true(m >= *at);
                *at = m + 1;
            }
        }
    }
}

static void assert_sound(struct input *input, const struct dp_auto_result *result)
{
    struct dp_error err;
    assert_string_equal(result->schedule.name, "auto");
    assert_ok(dp_schedule_validate(&result->schedule, &err), &err);
    assert_in_order(&result->schedule);
    DP_CLEANUP(dp_lowered_deinit) struct dp_lowered lowered = {0};
    assert_ok(dp_schedule_lower_all(&result->schedule, &lowered, &err), &err);
    // The costs are asked for anew: the answer stands on no copy of its own.
    DP_CLEANUP(dp_sim_costs_deinit) struct dp_sim_costs costs = {0};
    DP_CLEANUP(dp_sim_result_deinit) struct dp_sim_result times = {0};
    uint64_t fixed[DP_PIPELINE_MAX] = {0};
    assert_ok(made_costs(&input->model, &result->schedule, &costs, fixed, &err), &err);
    assert_ok(dp_simulate(&result->schedule, &costs, false, &times, &err), &err);
    assert_true(fits(input, &times, fixed));
    assert_true(is_allowed(input, &result->schedule));
    assert_true(result->objective == objective_of(input, &times));
    assert_true(result->bound <= result->objective * (1 + 1e-9));
    double best = best_family(input);
    assert_true(result->objective <= best);
    assert_true(isinf(best) ? isinf(result->family_objective)
                            : fabs(result->family_objective - best) <= 1e-12 * best);
}

static bool search(struct input *input, struct dp_auto_result *ret_result)
{
    struct dp_error err = {0};
    dp_status status = dp_auto_search(&input->problem, &input->options, ret_result, &err);
    if (status != DP_OK) {
        assert_int_equal(status, DP_INVALID);
        // No family disagrees.
        assert_true(isinf(best_family(input)));
        return false;
    }
    return true;
}

static void answers_are_valid_within_caps_and_no_worse_than_families(void **state)
{
    (void)state;
    long runs = dp_fuzz_runs(300), found = 0;
    for (long run = 0; run < runs; run++) {
        struct input input;
        make_input(&input, (uint64_t)run);
        DP_CLEANUP(dp_auto_result_deinit) struct dp_auto_result result = {0};
        if (search(&input, &result)) {
            assert_sound(&input, &result);
            found++;
        }
    }
    assert_true(found > runs / 2);
}

static void the_same_moves_give_the_same_answer(void **state)
{
    (void)state;
    for (long run = 0; run < dp_fuzz_runs(60); run++) {
        struct input input;
        make_input(&input, (uint64_t)run + 5000);
        DP_CLEANUP(dp_auto_result_deinit) struct dp_auto_result one = {0}, two = {0};
        if (!search(&input, &one)) {
            continue;
        }
        assert_in_range(one.moves, 1, (unsigned long)input.options.moves_max);
        input.options.moves_max = one.moves;
        assert_true(search(&input, &two));
        assert_int_equal(dp_schedule_hash(&one.schedule), dp_schedule_hash(&two.schedule));
        assert_int_equal(one.moves, two.moves);
        assert_int_equal(one.best_at, two.best_at);
    }
}

// The answer is there at the move that found it, and more moves make nothing worse.
static void more_moves_never_make_it_worse(void **state)
{
    (void)state;
    for (long run = 0; run < dp_fuzz_runs(40); run++) {
        struct input input;
        make_input(&input, (uint64_t)run + 9000);
        DP_CLEANUP(dp_auto_result_deinit) struct dp_auto_result full = {0}, cut = {0};
        if (!search(&input, &full)) {
            continue;
        }
        int64_t moves = full.moves;
        input.options.moves_max = full.best_at;
        assert_true(search(&input, &cut));
        assert_true(cut.objective == full.objective);
        double before = full.objective;
        for (; moves > 0; moves /= 3) {
            DP_CLEANUP(dp_auto_result_deinit) struct dp_auto_result fewer = {0};
            input.options.moves_max = moves;
            assert_true(search(&input, &fewer));
            assert_true(fewer.objective >= before);
            before = fewer.objective;
        }
    }
}

static void the_seed_decides_where_the_search_goes(void **state)
{
    (void)state;
    long other = 0;
    for (long run = 0; run < 20; run++) {
        struct input input;
        make_input(&input, (uint64_t)run + 15000);
        input.options.moves_max = 800;
        DP_CLEANUP(dp_auto_result_deinit) struct dp_auto_result one = {0}, two = {0};
        if (search(&input, &one)) {
            input.options.seed++;
            assert_true(search(&input, &two));
            other += dp_schedule_hash(&one.schedule) != dp_schedule_hash(&two.schedule);
        }
    }
    assert_true(other > 0);
}

struct patience {
    int64_t left;
};

static bool runs_out(void *context)
{
    struct patience *patience = context;
    return --patience->left < 0;
}

static void a_stopped_search_can_be_repeated_by_its_moves(void **state)
{
    (void)state;
    long stopped = 0;
    for (long run = 0; run < dp_fuzz_runs(40); run++) {
        struct input input;
        make_input(&input, (uint64_t)run + 12000);
        struct patience patience = {60 + run % 40};
        input.options.stop = runs_out;
        input.options.context = &patience;
        DP_CLEANUP(dp_auto_result_deinit) struct dp_auto_result one = {0}, two = {0};
        struct dp_error err = {0};
        dp_status status = dp_auto_search(&input.problem, &input.options, &one, &err);
        if (status == DP_INVALID) {
            continue;
        }
        if (status == DP_INTERRUPTED) {
            assert_non_null(strstr(err.message, "families"));
            continue;
        }
        assert_ok(status, &err);
        stopped += one.is_stopped;
        // It was asked before each move, and obeyed at once.
        assert_true(one.moves <= 61 + run % 40);
        assert_true(!one.is_stopped || patience.left == -1);
        input.options.stop = NULL;
        input.options.moves_max = one.moves;
        assert_true(search(&input, &two));
        assert_int_equal(dp_schedule_hash(&one.schedule), dp_schedule_hash(&two.schedule));
    }
    assert_true(stopped > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_valid_within_caps_and_no_worse_than_families),
        cmocka_unit_test(the_same_moves_give_the_same_answer),
        cmocka_unit_test(more_moves_never_make_it_worse),
        cmocka_unit_test(the_seed_decides_where_the_search_goes),
        cmocka_unit_test(a_stopped_search_can_be_repeated_by_its_moves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
