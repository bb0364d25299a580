// The choice: what is obeyed, what is refused, what wins, and that it can be repeated.

#include "planner_support.h"

static const struct dp_planner_node two_agents[] = {{.name = "node-0", .slots = 2, .cores = 64},
                                                    {.name = "node-1", .slots = 2, .cores = 64}};

static dp_status plan_on(const struct dp_planner_node *nodes, size_t count,
                         const struct dp_job_spec *spec, struct dp_plan *ret_plan,
                         struct dp_error *err)
{
    struct dp_planner_resources resources = {nodes, count, NULL};
    return dp_planner_plan(spec, &resources, NULL, ret_plan, err);
}

static void what_the_job_sets_is_obeyed(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_job_spec spec = JOB("tiny-moe", 16, 128, "pipeline=2", "expert=2", "data=2",
                                  "microbatches=4", "micro_batch_size=2", "schedule=dualpipe");
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = {0};
    assert_ok(plan_on(two_agents, 2, &spec, &plan, &err), &err);
    assert_int_equal(plan.pipeline, 2);
    assert_int_equal(plan.expert, 2);
    assert_int_equal(plan.data, 2);
    assert_int_equal(plan.microbatches, 4);
    assert_int_equal(plan.micro_batch_size, 2);
    assert_string_equal(plan.schedule, "dualpipe");
    assert_int_equal(plan.candidates_count, 1);
    // Whole pipelines on a node, so that expert peers stand on different ones.
    const char *const nodes[] = {"node-0", "node-0", "node-1", "node-1"};
    for (int i = 0; i < 4; i++) {
        assert_string_equal(plan.ranks[i].node, nodes[i]);
        assert_int_equal(plan.ranks[i].slot, i % 2);
    }
    assert_ok(dp_plan_check(&plan, &err), &err);
}

static void layers_lie_where_the_job_puts_them(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_job_spec spec = JOB("tiny-moe", 16, 128, "pipeline=2", "schedule=1f1b",
                                  "microbatches=8", "layers_per_stage=6,2");
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = {0};
    assert_ok(plan_on(two_agents, 2, &spec, &plan, &err), &err);
    assert_int_equal(plan.stages, 2);
    assert_int_equal(plan.layer_begin[1], 6);
    assert_int_equal(plan.layer_begin[2], 8);
    struct dp_job_spec folded = JOB("tiny-moe", 16, 128, "pipeline=2", "schedule=dualpipev",
                                    "microbatches=8", "layers_per_stage=6,2");
    assert_refused(plan_on(two_agents, 2, &folded, &plan, &err), DP_INVALID, &err,
                   "layers_per_stage has 2 stages, but dualpipev on 2 ranks 4");
}

static void the_examples_can_be_planned(void **state)
{
    (void)state;
    const struct {
        const char *name;
        int32_t slots, ranks;
    } table[] = {{"tiny-moe", 2, 4}, {"tiny-moe-ep", 2, 4}, {"deepseek-v3-sim", 8, 16}};
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        struct dp_error err = {0};
        struct dp_job_spec spec;
        DP_AUTO_FREE char *path = dp_asprintf("%s/examples/%s.toml", DP_SOURCE_DIR, table[i].name);
        assert_ok(dp_job_spec_load(path, &spec, &err), &err);
        struct dp_planner_node nodes[] = {two_agents[0], two_agents[1]};
        nodes[0].slots = nodes[1].slots = table[i].slots;
        DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = {0};
        assert_ok(plan_on(nodes, 2, &spec, &plan, &err), &err);
        assert_int_equal(dp_plan_world(&plan), table[i].ranks);
        assert_string_equal(plan.schedule, "dualpipe");
    }
}

// The closed form of DualPipe's step for equal stages (its README's bubble) at the example's times:
// pairs shorter than a full backward make it an approximation.
static void the_sim_example_takes_the_time_of_the_closed_form(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_job_spec spec;
    assert_ok(dp_job_spec_load(DP_SOURCE_DIR "/examples/deepseek-v3-sim.toml", &spec, &err), &err);
    struct dp_planner_node nodes[] = {{.name = "a", .slots = 16}};
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = {0};
    assert_ok(plan_on(nodes, 1, &spec, &plan, &err), &err);
    double f = 9.74e-3, b = (111.7 + 35.1) * 1e-4, w = 3.51e-3, fb = 12.85e-3;
    double n = 20, h = 8;
    double closed = (2 * n - 2 * h - 1) * fb + (2 * h + 1) * (f + b) + (h - 1) * (fb + b - 3 * w);
    assert_near(plan.step_s / closed, 1, 0.05);
    for (int32_t r = 0; r < 16; r++) {
        assert_int_equal(plan.ranks[r].peak_chunks, 17);
        assert_in_range(plan.layer_begin[r + 1] - plan.layer_begin[r], 3, 4);
    }
}

static void the_parts_of_a_step_add_up(void **state)
{
    (void)state;
    struct dp_error err = {0};
    static const char *const schedules[] = {"gpipe", "1f1b", "dualpipe", "dualpipev"};
    for (size_t i = 0; i < 4; i++) {
        DP_AUTO_FREE char *setting = dp_asprintf("schedule=%s", schedules[i]);
        struct dp_job_spec spec = JOB("tiny-moe", 16, 128, setting, "pipeline=2", "data=2");
        DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = {0};
        assert_ok(plan_on(two_agents, 2, &spec, &plan, &err), &err);
        double sum =
            plan.compute_s + plan.bubble_s + plan.comm_s + plan.grad_sync_s + plan.optimizer_s;
        assert_near(sum / plan.step_s, 1, 1e-9);
        assert_near(plan.tokens_per_s * plan.step_s, 16 * 128, 1e-6);
    }
}

static void the_winner_is_no_slower_than_any_candidate(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_job_spec spec = JOB("tiny-moe", 16, 128, NULL);
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = {0};
    assert_ok(plan_on(two_agents, 2, &spec, &plan, &err), &err);
    assert_true(plan.candidates[0].chosen);
    size_t legal = 0;
    for (size_t i = 0; i < plan.candidates_count; i++) {
        const struct dp_plan_candidate *c = &plan.candidates[i];
        assert_true(c->reason[0] != '\0');
        legal += c->legal;
        if (c->legal) {
            assert_true(c->step_s >= plan.step_s * (1 - 1e-9));
        }
    }
    assert_true(legal > 10);
}

// The step of the only choice that is left; infinite when it is illegal. One chunk = as many as the
// family has.
static double step_of(int32_t pipeline, int32_t data, int32_t size,
                      const struct dp_schedule_family *family, int32_t chunks)
{
    DP_AUTO_FREE char *a = dp_asprintf("pipeline=%d", pipeline);
    DP_AUTO_FREE char *b = dp_asprintf("data=%d", data);
    DP_AUTO_FREE char *c = dp_asprintf("micro_batch_size=%d", size);
    DP_AUTO_FREE char *d = dp_asprintf("schedule=%s", family->name);
    DP_AUTO_FREE char *e = dp_asprintf("virtual=%d", chunks);
    struct dp_job_spec spec = JOB("tiny-moe", 8, 64, a, b, c, d, chunks > 1 ? e : NULL);
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = {0};
    struct dp_error err = {0};
    return plan_on(two_agents, 2, &spec, &plan, &err) == DP_OK ? plan.step_s : INFINITY;
}

// The bounds that spare simulations must not hide a winner: against simulating everything.
static void pruning_does_not_change_the_choice(void **state)
{
    (void)state;
    size_t families_count;
    const struct dp_schedule_family *families = dp_schedule_families(&families_count);
    struct dp_error err = {0};
    struct dp_job_spec spec = JOB("tiny-moe", 8, 64, NULL);
    DP_CLEANUP(dp_plan_deinit) struct dp_plan winner = {0};
    assert_ok(plan_on(two_agents, 2, &spec, &winner, &err), &err);
    double fastest = INFINITY;
    for (int32_t p = 1; p <= 4; p++) {
        for (int32_t d = 1; p * d <= 4; d++) {
            for (int32_t size = 1; size <= 8; size *= 2) {
                for (size_t s = 0; s < families_count; s++) {
                    int most = families[s].virtual_max > 0 ? 4 : 1;
                    for (int chunks = 1; chunks <= most; chunks++) {
                        fastest = fmin(fastest, step_of(p, d, size, &families[s], chunks));
                    }
                }
            }
        }
    }
    assert_near(winner.step_s / fastest, 1, 1e-9);
}

// As good as the best of what the job may ask for; what it asks for is obeyed.
static void chunks_per_rank_are_chosen_where_the_job_leaves_them_open(void **state)
{
    (void)state;
    struct dp_error err = {0};
    static const char *const schedules[] = {"schedule=interleaved", "schedule=hanayo"};
    for (size_t i = 0; i < 2; i++) {
        double fastest = INFINITY;
        for (int chunks = 2; chunks <= 4; chunks++) {
            DP_AUTO_FREE char *wanted = dp_asprintf("virtual=%d", chunks);
            struct dp_job_spec spec = JOB("tiny-moe", 16, 128, "model.layers=16", "pipeline=4",
                                          "data=1", "microbatches=8", schedules[i], wanted);
            DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = {0};
            if (plan_on(two_agents, 2, &spec, &plan, &err) == DP_OK) {
                assert_int_equal(plan.virtual_stages, chunks);
                assert_int_equal(plan.stages, 4 * chunks);
                fastest = fmin(fastest, plan.step_s);
            } else {
                assert_true(i == 1 && chunks == 3);
            }
        }
        struct dp_job_spec open = JOB("tiny-moe", 16, 128, "model.layers=16", "pipeline=4",
                                      "data=1", "microbatches=8", schedules[i]);
        DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = {0};
        assert_ok(plan_on(two_agents, 2, &open, &plan, &err), &err);
        assert_near(plan.step_s / fastest, 1, 1e-9);
        assert_int_equal(plan.candidates_count, i == 0 ? 3 : 2);
        assert_int_equal(plan.stages, 4 * plan.virtual_stages);
        assert_ok(dp_plan_check(&plan, &err), &err);
    }
}

static void the_same_input_gives_the_same_plan_bit_for_bit(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_job_spec spec = JOB("tiny-moe", 16, 128, NULL);
    char *texts[2];
    for (int i = 0; i < 2; i++) {
        struct dp_plan plan;
        assert_ok(plan_on(two_agents, 2, &spec, &plan, &err), &err);
        DP_AUTO_JSON json_t *json = dp_plan_to_json(&plan);
        struct dp_buf text = {0};
        dp_json_write(json, 0, &text);
        texts[i] = dp_buf_take(&text);
        dp_plan_deinit(&plan);
    }
    assert_string_equal(texts[0], texts[1]);
    free(texts[0]);
    free(texts[1]);
}

static void what_cannot_be_is_refused_with_the_reason(void **state)
{
    (void)state;
    const struct {
        const char *settings[5];
        dp_status status;
        const char *message;
    } table[] = {
        {{"pipeline=4", "data=2"}, DP_UNSCHEDULABLE, "needs 8 ranks (pipeline 4 x data 2); 4 are"},
        {{"resources.ranks=16"}, DP_UNSCHEDULABLE, "needs 16 ranks; 4 are free on 2 nodes"},
        {{"expert=8"}, DP_UNSCHEDULABLE, "needs 8 ranks"},
        {{"pipeline=4", "microbatches=2", "schedule=dualpipe"}, DP_INVALID, "Nearest legal: 6"},
        {{"pipeline=3", "schedule=dualpipe"}, DP_INVALID, "even"},
        {{"schedule=dualpip"}, DP_INVALID, "dualpipe"},
        {{"data=3", "expert=2"}, DP_INVALID, "expert (2) does not divide data (3)"},
        {{"model.layers=3", "pipeline=2", "schedule=dualpipev", "microbatches=8"},
         DP_INVALID,
         "4 stages, but the model only 3 layers; pipeline at most 1"},
        {{"pipeline=4", "schedule=interleaved", "virtual=4"},
         DP_INVALID,
         "16 stages, but the model only 8 layers; virtual at most 2"},
        {{"resources.ranks=3", "pipeline=1"}, DP_INVALID, "no division of 16 samples"},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        struct dp_error err = {0};
        struct dp_job_spec spec = job("tiny-moe", 16, 128, table[i].settings);
        struct dp_plan plan = {0};
        assert_refused(plan_on(two_agents, 2, &spec, &plan, &err), table[i].status, &err,
                       table[i].message);
    }
}

static void a_schedule_that_is_none_is_refused_with_what_to_do(void **state)
{
    (void)state;
    static const char *const names[][2] = {{"any", "leave the key out"},
                                           {"DualPipeV", "did you mean dualpipev?"},
                                           {"nothing-like-it", "dualpipev-full-b, auto"}};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct dp_error err = {0};
        struct dp_job_spec spec = JOB("tiny-moe", 16, 128, NULL);
        snprintf(spec.parallel.schedule, sizeof(spec.parallel.schedule), "%s", names[i][0]);
        struct dp_plan plan = {0};
        assert_refused(plan_on(two_agents, 2, &spec, &plan, &err), DP_INVALID, &err, names[i][1]);
    }
}

static void a_job_without_room_in_memory_says_how_much_it_needs(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_job_spec spec = JOB("tiny-moe", 16, 128, NULL);
    struct dp_planner_node node = {.name = "a", .slots = 1, .memory_bytes = 50e6};
    struct dp_plan plan = {0};
    assert_refused(plan_on(&node, 1, &spec, &plan, &err), DP_UNSCHEDULABLE, &err, "0.05 GB");
    // 6.86 M parameters of 4 bytes, and two moments.
    assert_non_null(strstr(err.message, "gradients 0.0274, optimizer 0.0549"));
    assert_non_null(strstr(err.message, " comes nearest, with "));
    node.memory_bytes = 100e6;
    assert_refused(plan_on(&node, 1, &spec, &plan, &err), DP_UNSCHEDULABLE, &err,
                   "moments = bf16 would fit, with 0.0");
    // 16 bytes for each of 6.9 M parameters and a few activations.
    node.memory_bytes = 200e6;
    assert_ok(plan_on(&node, 1, &spec, &plan, &err), &err);
    assert_true(plan.ranks[0].memory_bytes > 110e6 && plan.ranks[0].memory_bytes <= 200e6);
    dp_plan_deinit(&plan);
}

static void choices_that_do_not_fit_lose_to_slower_ones_that_do(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_job_spec spec = JOB("tiny-moe", 16, 128, NULL);
    DP_CLEANUP(dp_plan_deinit) struct dp_plan wide = {0}, narrow = {0};
    assert_ok(plan_on(two_agents, 2, &spec, &wide, &err), &err);
    struct dp_planner_node small[] = {two_agents[0], two_agents[1]};
    double chosen = wide.candidates[0].memory_max_bytes, leanest = chosen;
    for (size_t i = 0; i < wide.candidates_count; i++) {
        const struct dp_plan_candidate *candidate = &wide.candidates[i];
        leanest = candidate->legal ? fmin(leanest, candidate->memory_max_bytes) : leanest;
    }
    assert_true(leanest < chosen);
    small[0].memory_bytes = small[1].memory_bytes = (leanest + chosen) / 2;
    assert_ok(plan_on(small, 2, &spec, &narrow, &err), &err);
    assert_true(narrow.step_s >= wide.step_s);
    for (int32_t i = 0; i < dp_plan_world(&narrow); i++) {
        assert_true(narrow.ranks[i].memory_bytes <= small[0].memory_bytes);
    }
}

static void nodes_of_one_machine_share_its_cores(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_job_spec spec =
        JOB("tiny-moe", 16, 128, "schedule=1f1b", "pipeline=4", "data=1", "microbatches=8");
    struct dp_planner_node nodes[] = {{.name = "a", .host = "h", .slots = 2, .cores = 2},
                                      {.name = "b", .host = "h", .slots = 2, .cores = 2}};
    DP_CLEANUP(dp_plan_deinit) struct dp_plan shared = {0}, apart = {0};
    assert_ok(plan_on(nodes, 2, &spec, &shared, &err), &err);
    nodes[1].host[0] = 'i';
    assert_ok(plan_on(nodes, 2, &spec, &apart, &err), &err);
    assert_true(shared.cores_exceeded);
    assert_false(apart.cores_exceeded);
    // Four ranks on two cores take at least half of their work each.
    assert_true(shared.step_s > 1.3 * apart.step_s);
}

static void slots_in_use_are_left_alone(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_job_spec spec = JOB("tiny-moe", 16, 128, "pipeline=2", "data=2");
    struct dp_planner_node nodes[] = {{.name = "a", .slots = 3, .first_slot = 5},
                                      {.name = "b", .slots = 3}};
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = {0};
    assert_ok(plan_on(nodes, 2, &spec, &plan, &err), &err);
    // The third slot of "a" stays free rather than tearing a replica apart.
    const int32_t slots[] = {5, 6, 0, 1};
    for (int i = 0; i < 4; i++) {
        assert_string_equal(plan.ranks[i].node, i < 2 ? "a" : "b");
        assert_int_equal(plan.ranks[i].slot, slots[i]);
    }
}

static bool stop_at_once(void *context)
{
    (void)context;
    return true;
}

static void a_search_stops_when_asked_and_keeps_to_its_budget(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_job_spec spec = JOB("tiny-moe", 16, 128, NULL);
    struct dp_planner_resources resources = {two_agents, 2, NULL};
    struct dp_planner_options stop = {.stop = stop_at_once};
    struct dp_planner_options small = {.moves_max = 3};
    struct dp_plan plan = {0};
    assert_refused(dp_planner_plan(&spec, &resources, &stop, &plan, &err), DP_INTERRUPTED, &err,
                   "stopped");
    assert_ok(dp_planner_plan(&spec, &resources, &small, &plan, &err), &err);
    assert_non_null(strstr(plan.explanation, "3 of at most 3 simulations"));
    dp_plan_deinit(&plan);
}

// What simulate says with the plan's costs is what the plan says.
static void the_costs_of_a_plan_give_its_prediction(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_job_spec spec = JOB("tiny-moe", 16, 128, "schedule=dualpipe", "pipeline=2", "data=2");
    struct dp_planner_resources resources = {two_agents, 2, NULL};
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = {0};
    assert_ok(dp_planner_plan(&spec, &resources, NULL, &plan, &err), &err);
    DP_CLEANUP(dp_schedule_deinit) struct dp_schedule schedule = {0};
    assert_ok(dp_plan_schedule(&plan, &schedule, &err), &err);
    double slowest = 0;
    for (int32_t d = 0; d < 2; d++) {
        DP_CLEANUP(dp_sim_costs_deinit) struct dp_sim_costs costs = {0};
        DP_CLEANUP(dp_sim_result_deinit) struct dp_sim_result result = {0};
        assert_ok(dp_planner_costs(&spec, &plan, &resources, d, &schedule, &costs, &err), &err);
        assert_ok(dp_simulate(&schedule, &costs, true, &result, &err), &err);
        slowest = fmax(slowest, result.step);
        for (int32_t p = 0; p < 2; p++) {
            assert_near(dp_sim_rank_busy(&result.ranks[p]), plan.ranks[d * 2 + p].busy_s, 1e-12);
        }
    }
    assert_near(slowest, plan.step_s, 1e-12);
    struct dp_sim_costs costs;
    assert_refused(dp_planner_costs(&spec, &plan, &resources, 2, &schedule, &costs, &err),
                   DP_INVALID, &err, "replica 2");
    // Without resources the nodes are those that the plan names.
    assert_ok(dp_planner_costs(&spec, &plan, NULL, 1, &schedule, &costs, &err), &err);
    dp_sim_costs_deinit(&costs);
}

// By hand, on the one rank of a pipeline of one: two chunks live at most under GPipe, one under
// 1F1B. A chunk keeps 100 bytes, 130 after I; its output takes 10.
static void peak_bytes_follow_from_the_order_of_a_rank(void **state)
{
    (void)state;
    struct dp_error err = {0};
    const struct dp_cost_chunk_bytes bytes = {
        .after_forward = 100, .after_input = 130, .end_of_forward = 110, .end_of_input = 140};
    const struct {
        const char *family;
        double peak;
    } table[] = {{"gpipe", 210}, {"1f1b", 110}};
    const struct dp_schedule_params params = {.pipeline = 1, .microbatches = 2};
    for (size_t i = 0; i < 2; i++) {
        DP_CLEANUP(dp_schedule_deinit) struct dp_schedule schedule = {0};
        assert_ok(dp_schedule_generate(table[i].family, &params, &schedule, &err), &err);
        assert_near(dp_planner_peak_bytes(&schedule, 0, &bytes), table[i].peak, 0);
    }
    // F F I I W W: both after I, the second at its end.
    struct dp_action split[] = {
        {.kind = DP_ACTION_F, .microbatch = 0}, {.kind = DP_ACTION_F, .microbatch = 1},
        {.kind = DP_ACTION_I, .microbatch = 0}, {.kind = DP_ACTION_I, .microbatch = 1},
        {.kind = DP_ACTION_W, .microbatch = 0}, {.kind = DP_ACTION_W, .microbatch = 1}};
    size_t begin[] = {0, 6};
    int32_t placement[] = {0, 0};
    struct dp_schedule schedule = {.pipeline = 1,
                                   .microbatches = 2,
                                   .stages = 1,
                                   .directions = 1,
                                   .placement = placement,
                                   .actions = split,
                                   .rank_begin = begin};
    assert_near(dp_planner_peak_bytes(&schedule, 0, &bytes), 270, 0);
}

static void get_costs(const struct dp_job_spec *spec, const struct dp_planner_resources *resources,
                      struct dp_plan *ret_plan, struct dp_sim_costs *ret_costs)
{
    struct dp_error err = {0};
    DP_CLEANUP(dp_schedule_deinit) struct dp_schedule schedule = {0};
    assert_ok(dp_planner_plan(spec, resources, NULL, ret_plan, &err), &err);
    assert_ok(dp_plan_schedule(ret_plan, &schedule, &err), &err);
    assert_ok(dp_planner_costs(spec, ret_plan, resources, 0, &schedule, ret_costs, &err), &err);
}

// Two pipelines of two on one machine of two cores and two nodes: each replica has one core, its
// hop stays on its node, its gradients go over the network to all four copies of a stage.
static void costs_know_links_cores_and_copies(void **state)
{
    (void)state;
    struct dp_profile profile;
    dp_profile_default_cpu(&profile);
    profile.local = (struct dp_link_profile){1e-3, 1e8, 2e8};
    profile.network = (struct dp_link_profile){2e-3, 1e7, 3e7};
    struct dp_planner_node nodes[] = {{.name = "a", .host = "h", .slots = 2, .cores = 2},
                                      {.name = "b", .host = "h", .slots = 2, .cores = 2}};
    struct dp_planner_resources resources = {nodes, 2, &profile};
    struct dp_job_spec spec = JOB("tiny-moe", 16, 128, "pipeline=2", "data=2", "expert=1",
                                  "schedule=dualpipe", "micro_batch_size=2");
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = {0}, across = {0};
    DP_CLEANUP(dp_sim_costs_deinit) struct dp_sim_costs costs = {0}, far = {0};
    get_costs(&spec, &resources, &plan, &costs);
    assert_int_equal(costs.hosts, 1);
    assert_near(costs.cores[0], 1, 0);
    assert_near(dp_sim_hop_at(&costs, 0, 1)->latency, 1e-3, 0);
    assert_near(dp_sim_hop_at(&costs, 0, 1)->bytes_per_second, 1e8, 0);
    assert_near(costs.message_bytes_f, 2 * 128 * 128 * 4, 0);
    // A rank holds both stages, so the whole model: a ring of four, six rounds, for each of them;
    // two ranks share a core.
    double bytes = 4.0 * (double)dp_model_parameters(&spec.model);
    assert_near(costs.gradient_sync[0], 2 * (12 * 2e-3 + 6 * bytes / 4 / 3e7), 1e-9);
    // One pipeline over both nodes: its hop and its two copies are far.
    assert_int_equal(dp_job_spec_set(&spec, "data=1", NULL), DP_OK);
    nodes[0].slots = nodes[1].slots = 1;
    get_costs(&spec, &resources, &across, &far);
    assert_near(dp_sim_hop_at(&far, 0, 1)->latency, 2e-3, 0);
    assert_near(far.gradient_sync[0], 4 * 2e-3 + 2 * bytes / 2 / 3e7, 1e-9);
    assert_near(far.cores[0], 0, 0);
    assert_near(costs.optimizer[0], 2 * far.optimizer[0], 1e-9);
}

// One rank of a machine computes alone, two of three cores are half way to all of them.
static void busy_cores_slow_each_other_down(void **state)
{
    (void)state;
    struct dp_profile profile;
    dp_profile_default_cpu(&profile);
    profile.busy_slowdown = 1.5;
    profile.action_overhead_s = 0;
    double forward[3];
    const struct {
        const char *data;
        int32_t cores;
    } table[] = {{"data=1", 2}, {"data=2", 2}, {"data=2", 3}};
    for (size_t i = 0; i < 3; i++) {
        struct dp_planner_node node = {.name = "a", .slots = 2, .cores = table[i].cores};
        struct dp_planner_resources resources = {&node, 1, &profile};
        struct dp_job_spec spec = JOB("tiny-moe", 16, 128, "pipeline=1", "expert=1",
                                      "schedule=1f1b", "micro_batch_size=2", table[i].data);
        DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = {0};
        DP_CLEANUP(dp_sim_costs_deinit) struct dp_sim_costs costs = {0};
        get_costs(&spec, &resources, &plan, &costs);
        forward[i] = dp_sim_chunk_at(&costs, 0, 0)->seconds[DP_ACTION_F];
    }
    assert_near(forward[1] / forward[0], 1.5, 1e-9);
    assert_near(forward[2] / forward[0], 1.25, 1e-9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_the_job_sets_is_obeyed),
        cmocka_unit_test(layers_lie_where_the_job_puts_them),
        cmocka_unit_test(the_examples_can_be_planned),
        cmocka_unit_test(the_sim_example_takes_the_time_of_the_closed_form),
        cmocka_unit_test(the_parts_of_a_step_add_up),
        cmocka_unit_test(the_winner_is_no_slower_than_any_candidate),
        cmocka_unit_test(pruning_does_not_change_the_choice),
        cmocka_unit_test(chunks_per_rank_are_chosen_where_the_job_leaves_them_open),
        cmocka_unit_test(the_same_input_gives_the_same_plan_bit_for_bit),
        cmocka_unit_test(what_cannot_be_is_refused_with_the_reason),
        cmocka_unit_test(a_schedule_that_is_none_is_refused_with_what_to_do),
        cmocka_unit_test(a_job_without_room_in_memory_says_how_much_it_needs),
        cmocka_unit_test(choices_that_do_not_fit_lose_to_slower_ones_that_do),
        cmocka_unit_test(nodes_of_one_machine_share_its_cores),
        cmocka_unit_test(slots_in_use_are_left_alone),
        cmocka_unit_test(a_search_stops_when_asked_and_keeps_to_its_budget),
        cmocka_unit_test(the_costs_of_a_plan_give_its_prediction),
        cmocka_unit_test(peak_bytes_follow_from_the_order_of_a_rank),
        cmocka_unit_test(costs_know_links_cores_and_copies),
        cmocka_unit_test(busy_cores_slow_each_other_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
