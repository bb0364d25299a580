// What the shape of a schedule says of any costs, against the simulator and against walking the
// lists.

#include "search_support.h"

#include "peak.h"
#include "shape.h"

// Seconds and bytes of every stage and pair, made up.
struct made {
    double forward[DP_STAGES_MAX], input[DP_STAGES_MAX], weight[DP_STAGES_MAX];
    struct dp_chunk_bytes bytes[DP_STAGES_MAX];
    double hop_s, pair_share;
    dp_sim_p2p p2p;
    double gradient_s[DP_PIPELINE_MAX], optimizer_s[DP_PIPELINE_MAX];
};

static void make(struct dp_rand *rand, int32_t stages, int32_t pipeline, struct made *made)
{
    // Now and then all stages alike, or one that is much slower.
    bool even = dp_rand_below(rand, 3) == 0;
    for (int32_t s = 0; s < stages; s++) {
        double size = even ? 1 : 0.3 + dp_rand_double(rand);
        size *= dp_rand_below(rand, 12) == 0 ? 3 : 1;
        made->forward[s] = size * (even ? 1 : 0.5 + dp_rand_double(rand));
        made->input[s] = size * (even ? 1.5 : 0.5 + 2 * dp_rand_double(rand));
        made->weight[s] = size * (even ? 0.7 : dp_rand_double(rand));
        made->bytes[s] = (struct dp_chunk_bytes){
            .after_forward = 1 + dp_rand_double(rand),
            .after_input = 2 * dp_rand_double(rand),
            .forward_peak = 1 + dp_rand_double(rand),
            .backward_peak = dp_rand_double(rand),
            .input_peak = dp_rand_double(rand),
        };
    }
    made->hop_s = dp_rand_below(rand, 2) == 0 ? 0 : 0.3 * dp_rand_double(rand);
    made->p2p = dp_rand_below(rand, 2) == 0 ? DP_SIM_P2P_FREE : DP_SIM_P2P_BLOCKING;
    made->pair_share = 0.6 + 0.5 * dp_rand_double(rand);
    for (int32_t p = 0; p < pipeline; p++) {
        made->gradient_s[p] = 5 * dp_rand_double(rand);
        made->optimizer_s[p] = 5 * dp_rand_double(rand);
    }
}

static double pair_s(const struct made *made, int32_t f, int32_t b, bool with_weight)
{
    return made->pair_share *
           (made->forward[f] + made->input[b] + (with_weight ? made->weight[b] : 0));
}

static void fill_costs(const struct dp_schedule *schedule, const struct made *made,
                       struct dp_sim_costs *costs)
{
    dp_sim_costs_init(costs, schedule);
    costs->p2p = made->p2p;
    for (int32_t r = 0; r < schedule->pipeline; r++) {
        int32_t stages[DP_RANK_STAGES_MAX];
        int32_t count = dp_schedule_rank_stages(schedule, r, stages);
        costs->gradient_sync[r] = made->gradient_s[r];
        costs->optimizer[r] = made->optimizer_s[r];
        for (int32_t f = 0; f < count; f++) {
            struct dp_sim_chunk *chunk = dp_sim_chunk_at(costs, r, f);
            chunk->seconds[DP_ACTION_F] = made->forward[stages[f]];
            chunk->seconds[DP_ACTION_I] = made->input[stages[f]];
            chunk->seconds[DP_ACTION_W] = made->weight[stages[f]];
            chunk->seconds[DP_ACTION_B] = made->input[stages[f]] + made->weight[stages[f]];
            for (int32_t b = 0; b < count; b++) {
                size_t pair = dp_sim_pair_index(costs, r, f, b);
                costs->fb[pair] = pair_s(made, stages[f], stages[b], true);
                costs->fi[pair] = pair_s(made, stages[f], stages[b], false);
            }
        }
        for (int32_t other = 0; other < schedule->pipeline; other++) {
            dp_sim_hop_at(costs, r, other)->latency = other == r ? 0 : made->hop_s;
        }
    }
}

static double term_s(const struct shape_rank *rank, const struct shape_term *term,
                     const struct made *made)
{
    int32_t stage = rank->stages[term->slot];
    switch (term->kind) {
    case DP_ACTION_F:
        return made->forward[stage];
    case DP_ACTION_I:
        return made->input[stage];
    case DP_ACTION_W:
        return made->weight[stage];
    case DP_ACTION_B:
        return made->input[stage] + made->weight[stage];
    default:
        return pair_s(made, stage, rank->stages[term->b_slot], term->b_kind == DP_ACTION_B);
    }
}

// The bound, and the simulated step.
static void compare(const struct dp_schedule *schedule, const struct shape *shape,
                    const struct made *made, double *ret_bound, double *ret_step)
{
    struct dp_error err = {0};
    size_t cells = (size_t)shape->pipeline * (size_t)shape->terms_max;
    DP_AUTO_FREE double *seconds = dp_new_array(double, cells);
    for (int32_t r = 0; r < shape->pipeline; r++) {
        for (int32_t t = 0; t < shape->ranks[r].terms_count; t++) {
            seconds[r * shape->terms_max + t] =
                term_s(&shape->ranks[r], &shape->ranks[r].terms[t], made);
        }
    }
    const struct shape_costs costs = {seconds, made->hop_s, made->gradient_s, made->optimizer_s};
    double makespan_bound, makespan;
    *ret_bound = dp_planner_shape_bound_s(shape, &costs, &makespan_bound);
    DP_CLEANUP(dp_sim_costs_deinit) struct dp_sim_costs sim = {0};
    fill_costs(schedule, made, &sim);
    assert_ok(dp_simulate_makespan(schedule, &sim, NULL, &makespan, ret_step, &err), &err);
    assert_true(makespan_bound <= makespan * (1 + 1e-12));
}

static double most_by_shape(const struct shape_rank *rank, const struct made *made)
{
    struct dp_chunk_bytes chunks[DP_RANK_STAGES_MAX];
    for (int32_t slot = 0; slot < rank->slots; slot++) {
        chunks[slot] = made->bytes[rank->stages[slot]];
    }
    double most = 0;
    for (int32_t i = 0; i < rank->live_count; i++) {
        const struct shape_live *live = &rank->live[i];
        const struct shape_term *term = &rank->terms[live->term];
        double bytes =
            dp_planner_peak_running(chunks, term->kind, term->b_kind, term->slot, term->b_slot);
        for (int32_t slot = 0; slot < rank->slots; slot++) {
            bytes += live->chunks[slot] * chunks[slot].after_forward +
                     live->chunks[rank->slots + slot] * chunks[slot].after_input;
        }
        most = fmax(most, bytes);
    }
    return most;
}

static void assert_same_memory(const struct dp_schedule *schedule, const struct shape *shape,
                               const struct made *made)
{
    for (int32_t r = 0; r < schedule->pipeline; r++) {
        struct dp_chunk_bytes chunks[DP_RANK_STAGES_MAX];
        const struct shape_rank *rank = &shape->ranks[r];
        for (int32_t slot = 0; slot < rank->slots; slot++) {
            chunks[slot] = made->bytes[rank->stages[slot]];
        }
        struct peak peak;
        dp_planner_peak_walk(schedule, r, chunks, &peak);
        double walked = peak.activations + peak.deferred + peak.transient;
        assert_near(most_by_shape(rank, made) / walked, 1, 1e-9);
    }
}

static void no_order_is_faster_than_its_bound_and_its_memory_is_exact(void **state)
{
    (void)state;
    size_t families_count;
    const struct dp_schedule_family *families = dp_schedule_families(&families_count);
    struct dp_rand rand;
    dp_rand_init(&rand, 31);
    DP_AUTO_FREE struct made *made = dp_new(struct made);
    long looked = 0;
    for (long round = 0; round < dp_fuzz_runs(400); round++) {
        const struct dp_schedule_family *family = &families[dp_rand_below(&rand, families_count)];
        const struct dp_schedule_params params = {
            .pipeline = rand_between(&rand, 1, 9),
            .microbatches = rand_between(&rand, 1, 40),
            .virtual_stages =
                family->virtual_max > 0 ? family->virtual_step * rand_between(&rand, 1, 3) : 0};
        struct dp_error err = {0};
        DP_CLEANUP(dp_schedule_deinit) struct dp_schedule schedule = {0};
        if (dp_schedule_generate(family->name, &params, &schedule, &err) != DP_OK) {
            continue;
        }
        DP_CLEANUP(dp_planner_shape_deinit) struct shape shape = {0};
        dp_planner_shape_of(&schedule, &shape);
        for (int i = 0; i < 3; i++) {
            double bound, step;
            make(&rand, schedule.stages, schedule.pipeline, made);
            compare(&schedule, &shape, made, &bound, &step);
            if (bound > step * (1 + 1e-12)) {
                fail_msg("%s, P %d, M %d: bound %.15g, step %.15g", family->name, params.pipeline,
                         params.microbatches, bound, step);
            }
            assert_same_memory(&schedule, &shape, made);
            looked++;
        }
    }
    assert_true(looked > 500);
}

// Where stages are alike and hops take no time, 1F1B takes (M + P - 1) (F + B) (Narayanan et al.,
// arXiv 2104.04473), GPipe as much, and interleaving divides the fill by its chunks: the bound is
// no less, or it would spare no simulation.
static void the_bound_of_even_stages_is_the_closed_form(void **state)
{
    (void)state;
    const struct {
        const char *family;
        int32_t chunks;
    } table[] = {{"1f1b", 1}, {"gpipe", 1}, {"interleaved", 2}, {"interleaved", 4}};
    DP_AUTO_FREE struct made *made = dp_new(struct made);
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        const struct dp_schedule_params params = {.pipeline = 8,
                                                  .microbatches = 32,
                                                  .virtual_stages =
                                                      table[i].chunks > 1 ? table[i].chunks : 0};
        struct dp_error err = {0};
        DP_CLEANUP(dp_schedule_deinit) struct dp_schedule schedule = {0};
        assert_ok(dp_schedule_generate(table[i].family, &params, &schedule, &err), &err);
        DP_CLEANUP(dp_planner_shape_deinit) struct shape shape = {0};
        dp_planner_shape_of(&schedule, &shape);
        memset(made, 0, sizeof(*made));
        for (int32_t s = 0; s < schedule.stages; s++) {
            made->forward[s] = 1.0 / table[i].chunks;
            made->input[s] = 2.0 / table[i].chunks;
        }
        double bound, step, closed = 32 * 3 + 7 * 3.0 / table[i].chunks;
        compare(&schedule, &shape, made, &bound, &step);
        assert_near(bound, closed, 1e-9);
        assert_near(step, closed, 1e-9);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_order_is_faster_than_its_bound_and_its_memory_is_exact),
        cmocka_unit_test(the_bound_of_even_stages_is_the_closed_form),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
