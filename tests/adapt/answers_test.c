// Which answer is best for what, and what it is weighed against.

#include "adapt_support.h"
#include "dp/check.h"

static void slow_one(int32_t rank, double factor, double slow[16])
{
    for (int i = 0; i < 16; i++) {
        slow[i] = 1;
    }
    slow[rank] = factor;
}

static void choose(const struct dp_adapt_input *input, struct dp_adapt_answers *ret_answers)
{
    struct dp_error err = {0};
    assert_ok(dp_adapt_choose(input, ret_answers, &err), &err);
}

static void a_step_is_what_the_closed_form_of_1f1b_says(void **state)
{
    (void)state;
    // (M + P - 1) (F + B) of even stages; a slow rank's work bounds the rest:
    // M x (F + B) on it, and what fills and drains the pipeline once around it.
    struct dp_error err = {0};
    const struct sizes sizes = {"1f1b", 4, 1, 1, 8, 8, 0, 1};
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = plan_of(&sizes);
    DP_CLEANUP(dp_adapt_costs_deinit) struct dp_adapt_costs costs = even_costs(&plan, 1, 1, 1);
    struct dp_adapt_input input = input_of(&plan, &costs, NULL);
    double step, slow[16];
    assert_ok(dp_adapt_step(&input, &plan, &step, &err), &err);
    assert_true(fabs(step - (8 + 3) * 6) < 1e-9);
    slow_one(3, 2, slow);
    input.slow = slow;
    assert_ok(dp_adapt_step(&input, &plan, &step, &err), &err);
    assert_true(fabs(step - (8 * 12 + 3 * 6)) < 1e-9);
    // Sums and the update follow the slowest.
    for (int p = 0; p < 4; p++) {
        costs.gradient_s[p] = 2;
        costs.optimizer_s[p] = 1;
    }
    assert_ok(dp_adapt_step(&input, &plan, &step, &err), &err);
    assert_true(fabs(step - (8 * 12 + 3 * 6 + 3)) < 1e-9);
}

static void micro_batches_move_to_the_replica_that_is_done_first(void **state)
{
    (void)state;
    // One rank a replica: m_k x o_k is the step, the least max of it over m_0 + m_1 = 12 with
    // o = (2, 1) is 8 at (4, 8) (facts of Malleus: minimise max m_k o_k).
    const struct sizes sizes = {"1f1b", 1, 2, 1, 6, 4, 0, 1};
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = plan_of(&sizes);
    DP_CLEANUP(dp_adapt_costs_deinit) struct dp_adapt_costs costs = even_costs(&plan, 1, 1, 1);
    double slow[16];
    slow_one(0, 2, slow);
    struct dp_adapt_input input = input_of(&plan, &costs, slow);
    DP_CLEANUP(dp_adapt_answers_deinit) struct dp_adapt_answers answers = {0};
    choose(&input, &answers);
    const struct dp_adapt_answer *best = &answers.answers[answers.best];
    assert_int_equal(best->kind, DP_ADAPT_SHIFT);
    assert_true(fabs(best->before_s - 6 * 24) < 1e-9);
    assert_true(fabs(best->after_s - 8 * 12) < 1e-9);
    assert_true(fabs(answers.healthy_s - 6 * 12) < 1e-9);
    assert_int_equal(best->plan->replicas[0].microbatches, 4);
    assert_int_equal(best->plan->replicas[1].microbatches, 8);
    // What it says is what the plan takes.
    double step;
    struct dp_error err = {0};
    assert_ok(dp_adapt_step(&input, best->plan, &step, &err), &err);
    assert_true(fabs(step - best->after_s) < 1e-9);
}

static void replicas_that_share_expert_groups_keep_the_same_micro_batches(void **state)
{
    (void)state;
    const struct sizes sizes = {"1f1b", 2, 2, 2, 8, 8, 0, 2};
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = plan_of(&sizes);
    DP_CLEANUP(dp_adapt_costs_deinit) struct dp_adapt_costs costs = even_costs(&plan, 1, 1, 1);
    double slow[16];
    slow_one(0, 2, slow);
    struct dp_adapt_input input = input_of(&plan, &costs, slow);
    DP_CLEANUP(dp_adapt_answers_deinit) struct dp_adapt_answers answers = {0};
    choose(&input, &answers);
    const struct dp_adapt_answer *shift = answer_of(&answers, DP_ADAPT_SHIFT);
    assert_false(shift->possible);
    assert_non_null(strstr(shift->reason, "expert groups couple"));
    // The slow rank's peer waits for it in every action: both replicas are as slow as it.
    slow[2] = 2;
    const int32_t counts[] = {8, 8};
    const struct way way = {&plan, &costs, plan.layer_begin, counts, slow, NULL};
    assert_true(fabs(shift->before_s - simulate_way(&way)) < 1e-9);
}

static void layers_leave_a_slow_rank_and_go_where_memory_takes_them(void **state)
{
    (void)state;
    const struct sizes sizes = {"1f1b", 2, 1, 1, 16, 9, 0, 1};
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = plan_of(&sizes);
    DP_CLEANUP(dp_adapt_costs_deinit) struct dp_adapt_costs costs = even_costs(&plan, 1, 1, 1);
    double slow[16];
    slow_one(1, 2, slow);
    struct dp_adapt_input input = input_of(&plan, &costs, slow);
    DP_CLEANUP(dp_adapt_answers_deinit) struct dp_adapt_answers answers = {0};
    choose(&input, &answers);
    // x_i l_i alike: 6 layers at 1, 3 at 2.
    const struct dp_adapt_answer *layers = answer_of(&answers, DP_ADAPT_LAYERS);
    assert_true(layers->possible);
    assert_int_equal(layers->plan->layer_begin[1], 6);
    assert_string_equal(layers->action, "layers of the stages 6,3");

    // A rank that has room for one layer more takes one.
    plan.positions = dp_new_array(struct dp_plan_position, 2);
    for (int p = 0; p < 2; p++) {
        plan.positions[p].memory.weights = 100.0 * (p == 0 ? 4 : 5);
        plan.positions[p].memory_limit_bytes = 510;
    }
    dp_adapt_answers_deinit(&answers);
    choose(&input, &answers);
    layers = answer_of(&answers, DP_ADAPT_LAYERS);
    assert_int_equal(layers->plan->layer_begin[1], 5);
}

static void a_slow_link_gets_the_edge_with_the_least_traffic(void **state)
{
    (void)state;
    // Four ranks in a row: the link between 1 and 2 is slow. With rank 2's place at an end (facts
    // 2.5 S3b) fewer messages of the pipeline cross it, or none do.
    const struct sizes sizes = {"1f1b", 4, 1, 1, 8, 8, 0, 1};
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = plan_of(&sizes);
    DP_CLEANUP(dp_adapt_costs_deinit) struct dp_adapt_costs costs = even_costs(&plan, 1, 1, 1);
    const struct dp_adapt_link links[] = {{1, 2, {10, 0}, DP_ADAPT_NO_END},
                                          {2, 1, {10, 0}, DP_ADAPT_NO_END}};
    struct dp_adapt_input input = input_of(&plan, &costs, NULL);
    input.links = links;
    input.links_count = 2;
    DP_CLEANUP(dp_adapt_answers_deinit) struct dp_adapt_answers answers = {0};
    choose(&input, &answers);
    const struct dp_adapt_answer *swap = answer_of(&answers, DP_ADAPT_SWAP);
    assert_true(swap->possible);
    assert_true(fabs(swap->after_s - answers.healthy_s) < 1e-9);
    int32_t at[2] = {-1, -1};
    for (int32_t r = 0; r < 4; r++) {
        for (int i = 0; i < 2; i++) {
            if (strcmp(swap->plan->ranks[r].node, i == 0 ? "n1" : "n2") == 0) {
                at[i] = r;
            }
        }
    }
    assert_true(at[0] >= 0 && at[1] >= 0);
    assert_true(abs(at[0] - at[1]) > 1);
}

static void a_spare_takes_the_slow_ranks_stage_and_costs_its_state(void **state)
{
    (void)state;
    const struct sizes sizes = {"1f1b", 4, 1, 1, 8, 8, 0, 1};
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = plan_of(&sizes);
    DP_CLEANUP(dp_adapt_costs_deinit) struct dp_adapt_costs costs = even_costs(&plan, 1, 1, 1);
    double slow[16];
    slow_one(2, 3, slow);
    const struct dp_adapt_spare spares[] = {{.node = "old", .slot = 3, .slow = 1.5},
                                            {.node = "new", .slot = 1}};
    struct dp_adapt_input input = input_of(&plan, &costs, slow);
    input.spares = spares;
    input.spares_count = 2;
    input.acting = (struct dp_adapt_acting){
        .switch_s = 3, .state_bytes = 100, .local_bytes_per_s = 1000, .network_bytes_per_s = 50};
    DP_CLEANUP(dp_adapt_answers_deinit) struct dp_adapt_answers answers = {0};
    choose(&input, &answers);
    const struct dp_adapt_answer *best = answer_of(&answers, DP_ADAPT_SPARE);
    assert_string_equal(best->plan->ranks[2].node, "new");
    assert_int_equal(best->plan->ranks[2].slot, 1);
    assert_true(fabs(best->after_s - answers.healthy_s) < 1e-9);
    // Two layers over the network, 2 s each; the others' within their nodes at the same time.
    assert_true(fabs(best->cost_s - (3 + 2 * 100.0 / 50)) < 1e-9);
    assert_true(fabs(best->net_s - ((best->before_s - best->after_s) * 1000 - best->cost_s)) <
                1e-6);
}

static void experts_are_re_placed_when_their_loads_are_the_cause(void **state)
{
    (void)state;
    const struct sizes sizes = {"1f1b", 2, 2, 2, 8, 8, 0, 4};
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = plan_of(&sizes);
    DP_CLEANUP(dp_adapt_costs_deinit) struct dp_adapt_costs costs = even_costs(&plan, 1, 1, 1);
    // Experts 0 and 1 have all rows and lie on rank 0 of the group: twice its mean. Spread, each
    // rank has one of them.
    const double load[] = {10, 10, 0, 0};
    const int32_t held[] = {0, 1, 2, 3};
    const struct dp_adapt_experts experts = {.shape = {4, 4, 1, 1, 2},
                                             .layers = 1,
                                             .load = load,
                                             .held = held,
                                             .share = 0.5,
                                             .move_s = 1};
    struct dp_adapt_input input = input_of(&plan, &costs, NULL);
    input.experts = &experts;
    DP_CLEANUP(dp_adapt_answers_deinit) struct dp_adapt_answers answers = {0};
    choose(&input, &answers);
    const struct dp_adapt_answer *best = &answers.answers[answers.best];
    assert_int_equal(best->kind, DP_ADAPT_EXPERTS);
    assert_true(fabs(best->before_s - 1.5 * answers.healthy_s) < 1e-9);
    assert_true(fabs(best->after_s - answers.healthy_s) < 1e-9);
    assert_null(best->plan);
}

static void of_ranks_loads_alone_the_fullest_expert_bounds_what_placing_can_do(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_model_spec model;
    assert_ok(dp_model_preset("tiny-moe", &model, &err), &err);
    const struct sizes sizes = {"1f1b", 2, 2, 2, 8, 8, 0, 4};
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = plan_of(&sizes);
    DP_CLEANUP(dp_adapt_costs_deinit) struct dp_adapt_costs costs = even_costs(&plan, 1, 1, 1);
    const double rank_load[] = {1.6, 1.6, 0.4, 0.4};
    struct dp_adapt_experts experts;
    // The fullest expert has five times the mean of tiny-moe's 8, so 1.25 times a rank's four.
    assert_int_equal(model.experts, 8);
    dp_adapt_experts_of_ranks(&plan, &model, rank_load, 5, 0, &experts);
    assert_true(fabs(experts.reachable - 1.25) < 1e-12);
    assert_true(experts.share > 0 && experts.share < 1);
    experts.share = 0.5;
    struct dp_adapt_input input = input_of(&plan, &costs, NULL);
    input.experts = &experts;
    DP_CLEANUP(dp_adapt_answers_deinit) struct dp_adapt_answers answers = {0};
    choose(&input, &answers);
    const struct dp_adapt_answer *answer = answer_of(&answers, DP_ADAPT_EXPERTS);
    assert_true(fabs(answer->before_s / answers.healthy_s - 1.3) < 1e-9);
    assert_true(fabs(answer->after_s / answers.healthy_s - 1.125) < 1e-9);
    // A slot for a copy halves the fullest expert.
    dp_adapt_experts_of_ranks(&plan, &model, rank_load, 5, 1, &experts);
    assert_true(fabs(experts.reachable - 1) < 1e-12);
}

// Placing experts costs nothing, so it pays at once; the rank that is slow besides stays slow.
static void who_is_slow_is_asked_about_again_once_experts_were_placed(void **state)
{
    (void)state;
    const struct sizes sizes = {"1f1b", 2, 2, 2, 8, 8, 0, 1};
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = plan_of(&sizes);
    DP_CLEANUP(dp_adapt_costs_deinit) struct dp_adapt_costs costs = even_costs(&plan, 1, 1, 1);
    const double rank_load[] = {1.3, 1.3, 0.7, 0.7};
    const struct dp_adapt_experts experts = {.rank_load = rank_load, .reachable = 1, .share = 0.5};
    double slow[16];
    slow_one(0, 2, slow);
    const struct dp_adapt_spare spare = {.node = "new"};
    struct dp_adapt_input input = input_of(&plan, &costs, slow);
    input.experts = &experts;
    input.spares = &spare;
    input.spares_count = 1;
    input.acting.switch_s = 100;
    for (int excess_s = 0; excess_s <= 1000; excess_s += 1000) {
        input.excess_s = excess_s;
        input.wanted = excess_s == 0 ? DP_ADAPT_IGNORE : DP_ADAPT_EXPERTS;
        DP_CLEANUP(dp_adapt_answers_deinit) struct dp_adapt_answers answers = {0};
        choose(&input, &answers);
        assert_int_equal(answers.answers[answers.best].kind, DP_ADAPT_EXPERTS);
        const struct dp_adapt_answer *other = answer_of(&answers, DP_ADAPT_SPARE);
        assert_true(other->net_s > 0);
        assert_int_equal(other->wait_steps > 0, excess_s == 0);
        assert_in_range(dp_adapt_again_steps(&answers, 1000), 1,
                        excess_s == 0 ? other->wait_steps : 1);
        assert_int_equal(dp_adapt_again_steps(&answers, 1), 0);
    }
}

static void memory_bounds_where_ranks_go_unless_they_hold_nothing(void **state)
{
    (void)state;
    const struct sizes sizes = {"1f1b", 2, 1, 1, 8, 8, 0, 1};
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = plan_of(&sizes);
    DP_CLEANUP(dp_adapt_costs_deinit) struct dp_adapt_costs costs = even_costs(&plan, 1, 1, 1);
    DP_AUTO_FREE struct dp_job_spec *spec = dp_new(struct dp_job_spec);
    double slow[16];
    slow_one(1, 2, slow);
    plan.positions = dp_new_array(struct dp_plan_position, 2);
    plan.positions[0].memory.weights = plan.positions[1].memory.weights = 400;
    const struct dp_adapt_spare spare = {.node = "small", .memory_bytes = 399};
    struct dp_adapt_input input = input_of(&plan, &costs, slow);
    input.spares = &spare;
    input.spares_count = 1;
    input.spec = spec; // no resources: no restart
    for (int device = 0; device < 2; device++) {
        spec->resources.device = device == 0 ? DP_DEVICE_CPU : DP_DEVICE_SIM;
        DP_CLEANUP(dp_adapt_answers_deinit) struct dp_adapt_answers answers = {0};
        choose(&input, &answers);
        const struct dp_adapt_answer *answer = answer_of(&answers, DP_ADAPT_SPARE);
        assert_int_equal(answer->possible, device == 1);
    }
}

static void a_restart_leaves_out_the_node_at_fault_and_obeys_the_job(void **state)
{
    (void)state;
    struct dp_error err = {0};
    DP_AUTO_FREE struct dp_job_spec *spec = dp_new(struct dp_job_spec);
    dp_job_spec_init(spec);
    assert_ok(dp_model_preset("tiny-moe", &spec->model, &err), &err);
    DP_COPY_TEXT(spec->name, "restarts");
    DP_COPY_TEXT(spec->data.path, "corpus");
    spec->train.global_batch = 16;
    spec->train.sequence = 128;
    spec->train.steps = 10;
    spec->parallel.pipeline = 2;
    spec->parallel.data = 1;
    spec->resources.ranks = 2;
    DP_COPY_TEXT(spec->parallel.schedule, "1f1b");
    const struct dp_planner_node nodes[] = {
        {.name = "a", .slots = 1}, {.name = "b", .slots = 1}, {.name = "c", .slots = 1}};
    struct dp_planner_resources resources = {nodes, 3, NULL};
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = {0};
    assert_ok(dp_planner_plan(spec, &resources, NULL, &plan, &err), &err);
    DP_CLEANUP(dp_adapt_costs_deinit) struct dp_adapt_costs costs = {0};
    assert_ok(dp_adapt_costs_predict(spec, &plan, &resources, &costs, &err), &err);
    struct dp_adapt_input input = input_of(&plan, &costs, NULL);
    input.spec = spec;
    input.resources = &resources;
    input.wanted = DP_ADAPT_RESTART;
    // Slow both ways, and rank 1's fault.
    struct dp_adapt_link links[] = {{0, 1, {1, 1}, DP_ADAPT_TO}, {1, 0, {1, 1}, DP_ADAPT_FROM}};
    input.links = links;
    input.links_count = 2;
    {
        DP_CLEANUP(dp_adapt_answers_deinit) struct dp_adapt_answers answers = {0};
        choose(&input, &answers);
        const struct dp_adapt_answer *best = &answers.answers[answers.best];
        assert_int_equal(best->kind, DP_ADAPT_RESTART);
        assert_string_equal(best->without, plan.ranks[1].node);
    }
    {
        // With two nodes left for two ranks that are set, there is no third one to lose.
        resources.nodes_count = 2;
        DP_CLEANUP(dp_adapt_answers_deinit) struct dp_adapt_answers answers = {0};
        choose(&input, &answers);
        assert_false(answer_of(&answers, DP_ADAPT_RESTART)->possible);
        assert_int_equal(answers.best, 0);
        assert_non_null(strstr(answers.answers[0].reason, "restart was asked for"));
    }
    {
        resources.nodes_count = 3;
        links[0].at_fault = links[1].at_fault = DP_ADAPT_NO_END;
        DP_CLEANUP(dp_adapt_answers_deinit) struct dp_adapt_answers answers = {0};
        choose(&input, &answers);
        const struct dp_adapt_answer *restart = answer_of(&answers, DP_ADAPT_RESTART);
        assert_false(restart->possible);
        assert_non_null(strstr(restart->reason, "no node is slow as a whole"));
    }
}

// Messages take as long as a layer: what has more micro-batches under way does not wait for them.
static void ranks_without_memory_take_orders_that_keep_more_chunks(void **state)
{
    (void)state;
    struct dp_error err = {0};
    DP_AUTO_FREE struct dp_job_spec *spec = dp_new(struct dp_job_spec);
    dp_job_spec_init(spec);
    DP_CLEANUP(dp_plan_deinit)
    struct dp_plan plan = plan_of(&(struct sizes){"1f1b", 4, 1, 1, 8, 8, 0, 1});
    DP_CLEANUP(dp_plan_deinit)
    struct dp_plan gpipe = plan_of(&(struct sizes){"gpipe", 4, 1, 1, 8, 8, 0, 1});
    DP_CLEANUP(dp_adapt_costs_deinit) struct dp_adapt_costs costs = even_costs(&plan, 1, 1, 1);
    costs.local.latency = costs.network.latency = 3;
    struct dp_adapt_input input = input_of(&plan, &costs, NULL);
    double step, after[2];
    assert_ok(dp_adapt_step(&input, &gpipe, &step, &err), &err);
    input.spec = spec;
    for (int sim = 0; sim < 2; sim++) {
        spec->resources.device = sim == 1 ? DP_DEVICE_SIM : DP_DEVICE_CPU;
        DP_CLEANUP(dp_adapt_answers_deinit) struct dp_adapt_answers answers = {0};
        choose(&input, &answers);
        after[sim] = answer_of(&answers, DP_ADAPT_ORDER)->after_s;
    }
    assert_true(after[1] <= step * (1 + 1e-9));
    assert_true(after[0] > step * (1 + 1e-9));
}

// A job that takes as many ranks as there are, and of which rank 0 alone is left.
static void a_job_that_lost_ranks_takes_more_when_that_pays(void **state)
{
    (void)state;
    struct dp_error err = {0};
    DP_AUTO_FREE struct dp_job_spec *spec = dp_new(struct dp_job_spec);
    dp_job_spec_init(spec);
    assert_ok(dp_model_preset("tiny-moe", &spec->model, &err), &err);
    DP_COPY_TEXT(spec->name, "grows");
    DP_COPY_TEXT(spec->data.path, "corpus");
    spec->train.global_batch = 16;
    spec->train.sequence = 128;
    spec->train.steps = 10;
    spec->parallel.pipeline = 1;
    spec->parallel.micro_batch_size = 1;
    DP_COPY_TEXT(spec->parallel.schedule, "1f1b");
    const struct dp_planner_node nodes[] = {{.name = "a", .slots = 1}, {.name = "b", .slots = 1}};
    struct dp_planner_resources resources = {nodes, 1, NULL};
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = {0};
    assert_ok(dp_planner_plan(spec, &resources, NULL, &plan, &err), &err);
    assert_int_equal(dp_plan_world(&plan), 1);
    DP_CLEANUP(dp_adapt_costs_deinit) struct dp_adapt_costs costs = {0};
    assert_ok(dp_adapt_costs_predict(spec, &plan, &resources, &costs, &err), &err);
    resources.nodes_count = 2;
    struct dp_adapt_input input = input_of(&plan, &costs, NULL);
    input.spec = spec;
    input.resources = &resources;
    input.measured_step_s = 1;
    input.excess_s = 0;
    input.acting.switch_s = 5;
    for (int steps = 1; steps <= 1000; steps *= 1000) {
        for (int grows = 0; grows < 2; grows++) {
            input.grows = grows == 1;
            input.remaining_steps = steps;
            DP_CLEANUP(dp_adapt_answers_deinit) struct dp_adapt_answers answers = {0};
            choose(&input, &answers);
            const struct dp_adapt_answer *grow = answer_of(&answers, DP_ADAPT_GROW);
            assert_int_equal(grow->possible, grows == 1);
            assert_int_equal(answers.answers[answers.best].kind,
                             grows == 1 && steps > 1 ? DP_ADAPT_GROW : DP_ADAPT_IGNORE);
            if (grow->possible) {
                assert_int_equal(dp_plan_world(grow->plan), 2);
                // Half of the micro-batches each, and the sum of gradients over the network.
                assert_true(grow->after_s >= 0.5 && grow->after_s < 1);
                assert_int_equal(grow->wait_steps, 0);
            }
        }
    }
    // There is nothing to grow onto.
    resources.nodes_count = 1;
    input.grows = true;
    DP_CLEANUP(dp_adapt_answers_deinit) struct dp_adapt_answers answers = {0};
    choose(&input, &answers);
    assert_non_null(strstr(answer_of(&answers, DP_ADAPT_GROW)->reason,
                           "the best layout on what is free has 1 ranks"));
}

static void an_answer_that_is_asked_for_is_taken_whatever_it_is_worth(void **state)
{
    (void)state;
    DP_CLEANUP(dp_plan_deinit)
    struct dp_plan plan = plan_of(&(struct sizes){"1f1b", 2, 2, 1, 8, 8, 0, 1});
    DP_CLEANUP(dp_adapt_costs_deinit) struct dp_adapt_costs costs = even_costs(&plan, 1, 1, 1);
    double slow[16];
    slow_one(1, 1.5, slow);
    struct dp_adapt_input input = input_of(&plan, &costs, slow);
    input.remaining_steps = 0; // nothing pays
    static const dp_adapt_kind kinds[] = {DP_ADAPT_SHIFT, DP_ADAPT_LAYERS};
    for (int i = 0; i < 2; i++) {
        input.wanted = kinds[i];
        DP_CLEANUP(dp_adapt_answers_deinit) struct dp_adapt_answers answers = {0};
        choose(&input, &answers);
        assert_int_equal(answers.answers[answers.best].kind, kinds[i]);
        dp_adapt_kind named;
        assert_true(dp_adapt_kind_of(dp_adapt_kind_text(kinds[i]), &named));
        assert_int_equal(named, kinds[i]);
    }
    // Devices that run no stage without a layer get none, however slow its rank is.
    DP_AUTO_FREE struct dp_job_spec *spec = dp_new(struct dp_job_spec);
    input.spec = spec;
    slow[1] = slow[3] = 100;
    for (int device = 0; device < 2; device++) {
        spec->resources.device = device == 0 ? DP_DEVICE_CPU : DP_DEVICE_CUDA;
        DP_CLEANUP(dp_adapt_answers_deinit) struct dp_adapt_answers answers = {0};
        choose(&input, &answers);
        const struct dp_adapt_answer *layers = answer_of(&answers, DP_ADAPT_LAYERS);
        assert_int_equal(layers->plan->layer_begin[1], device == 0 ? 7 : 8);
    }
    // A split that the job sets stays.
    DP_COPY_TEXT(spec->parallel.layers_per_stage, "4,4");
    DP_CLEANUP(dp_adapt_answers_deinit) struct dp_adapt_answers answers = {0};
    choose(&input, &answers);
    assert_int_equal(answers.best, 0);
    assert_non_null(strstr(answers.answers[0].reason, "the job sets layers_per_stage"));
}

// The rules of weighing.

struct bench {
    struct dp_plan plan;
    struct dp_adapt_costs costs;
    double slow[16];
    struct dp_adapt_spare spare;
    struct dp_adapt_input input;
};

// 33 s lost in each step of 99, and a spare that costs 100 s.
static void set_up(struct bench *bench)
{
    *bench = (struct bench){.plan = plan_of(&(struct sizes){"1f1b", 1, 1, 1, 11, 3, 0, 1}),
                            .spare = {.node = "new"}};
    bench->costs = even_costs(&bench->plan, 1, 1, 0);
    slow_one(0, 1.5, bench->slow);
    bench->input = input_of(&bench->plan, &bench->costs, bench->slow);
    bench->input.spares = &bench->spare;
    bench->input.spares_count = 1;
    bench->input.acting.switch_s = 100;
}

static void tear_down(struct bench *bench)
{
    dp_plan_deinit(&bench->plan);
    dp_adapt_costs_deinit(&bench->costs);
}

static dp_adapt_kind best_of(const struct dp_adapt_input *input, const char *reason)
{
    DP_CLEANUP(dp_adapt_answers_deinit) struct dp_adapt_answers answers = {0};
    choose(input, &answers);
    const struct dp_adapt_answer *spare = answer_of(&answers, DP_ADAPT_SPARE);
    assert_true(spare->possible);
    assert_part(spare->reason, reason);
    return answers.answers[answers.best].kind;
}

static void nothing_is_done_before_the_time_lost_has_reached_the_cost(void **state)
{
    (void)state;
    DP_CLEANUP(tear_down) struct bench bench;
    set_up(&bench);
    bench.input.excess_s = 99;
    assert_int_equal(best_of(&bench.input, "in 1 steps"), DP_ADAPT_IGNORE);
    bench.input.excess_s = 0; // 33 s lost in each step: 99 after three, 132 after four
    assert_int_equal(best_of(&bench.input, "in 4 steps"), DP_ADAPT_IGNORE);
    bench.input.excess_s = 100;
    assert_int_equal(best_of(&bench.input, "saves"), DP_ADAPT_SPARE);
    // A node that is known to stay slow for long needs no such patience; for short, no answer.
    bench.input.excess_s = 0;
    bench.input.expected_steps = 10;
    assert_int_equal(best_of(&bench.input, "saves"), DP_ADAPT_SPARE);
    bench.input.expected_steps = 3;
    assert_int_equal(best_of(&bench.input, "do not pay"), DP_ADAPT_IGNORE);
}

// The rule costs at most twice what knowing would have: for every duration of a slowness, what is
// lost by waiting and then acting over the least of acting at once and not at all.
static void waiting_costs_at_most_twice_what_knowing_would(void **state)
{
    (void)state;
    DP_CLEANUP(tear_down) struct bench bench;
    set_up(&bench);
    const double each = 33, cost = 100;
    for (int64_t lasts = 1; lasts <= 40; lasts++) {
        double paid = 0;
        bool acted = false;
        for (int64_t step = 0; step < lasts && !acted; step++) {
            bench.input.excess_s = paid;
            acted = best_of(&bench.input, "") == DP_ADAPT_SPARE;
            paid += acted ? cost : each;
        }
        double knowing = fmin((double)lasts * each, cost);
        assert_true(paid <= 2 * knowing + each);
    }
}

static void gains_trust_and_cool_down_bound_what_is_done(void **state)
{
    (void)state;
    DP_CLEANUP(tear_down) struct bench bench;
    set_up(&bench);
    assert_int_equal(best_of(&bench.input, "saves"), DP_ADAPT_SPARE);
    bench.input.limits.since_action_steps = 49;
    assert_int_equal(best_of(&bench.input, "cooling down: 49 of 50"), DP_ADAPT_IGNORE);
    bench.input.limits.since_action_steps = 50;
    assert_int_equal(best_of(&bench.input, "saves"), DP_ADAPT_SPARE);
    bench.input.remaining_steps = 3;
    assert_int_equal(best_of(&bench.input, "do not pay"), DP_ADAPT_IGNORE);
    bench.input.remaining_steps = 4;
    assert_int_equal(best_of(&bench.input, "saves"), DP_ADAPT_SPARE);
    bench.input.trust = 0.5;
    assert_int_equal(best_of(&bench.input, "do not pay"), DP_ADAPT_IGNORE);
    bench.input = input_of(&bench.plan, &bench.costs, bench.slow);
    bench.input.spares = &bench.spare;
    bench.input.spares_count = 1;
    bench.slow[0] = 1.06;
    bench.spare.slow = 1.05;
    assert_int_equal(best_of(&bench.input, "worth acting on"), DP_ADAPT_IGNORE);
}

static void a_wrong_prediction_lowers_trust_and_a_right_one_brings_it_back(void **state)
{
    (void)state;
    assert_true(fabs(dp_adapt_trust_after(1, 10, 6, 6) - 1) < 1e-12);
    assert_true(fabs(dp_adapt_trust_after(1, 10, 6, 10) - 0.5) < 1e-12);
    assert_true(fabs(dp_adapt_trust_after(0.5, 10, 6, 12) - 0.25) < 1e-12);
    assert_true(fabs(dp_adapt_trust_after(0.5, 10, 6, 8) - 0.5) < 1e-12);
    assert_true(fabs(dp_adapt_trust_after(0.5, 10, 6, 2) - 0.75) < 1e-12);
    double trust = 1;
    for (int i = 0; i < 20; i++) {
        trust = dp_adapt_trust_after(trust, 10, 6, 11);
    }
    assert_true(trust >= 0.1 && trust < 0.11);
}

static void figures_are_scaled_to_the_step_that_was_measured(void **state)
{
    (void)state;
    DP_CLEANUP(tear_down) struct bench bench;
    set_up(&bench);
    bench.input.measured_step_s = 198;
    DP_CLEANUP(dp_adapt_answers_deinit) struct dp_adapt_answers answers = {0};
    choose(&bench.input, &answers);
    const struct dp_adapt_answer *spare = answer_of(&answers, DP_ADAPT_SPARE);
    assert_true(fabs(spare->before_s - 198) < 1e-9);
    assert_true(fabs(spare->after_s - 132) < 1e-9);
    assert_true(fabs(spare->plan->step_s - 132) < 1e-9);
    double parts = spare->plan->compute_s + spare->plan->bubble_s + spare->plan->comm_s +
                   spare->plan->grad_sync_s + spare->plan->optimizer_s;
    assert_true(fabs(parts - 132) < 1e-9);
    // Tokens of a step are as many as before.
    assert_true(fabs(spare->plan->tokens_per_s * 132 - 1000) < 1e-6);
}

static void the_same_question_gets_the_same_answer_bit_for_bit(void **state)
{
    (void)state;
    const struct sizes sizes = {"dualpipe", 4, 2, 1, 10, 12, 0, 2};
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = plan_of(&sizes);
    DP_CLEANUP(dp_adapt_costs_deinit) struct dp_adapt_costs costs = even_costs(&plan, 1, 1.2, 0.9);
    double slow[16];
    slow_one(5, 1.7, slow);
    struct dp_adapt_input input = input_of(&plan, &costs, slow);
    struct dp_buf texts[2] = {{0}};
    for (int i = 0; i < 2; i++) {
        DP_CLEANUP(dp_adapt_answers_deinit) struct dp_adapt_answers answers = {0};
        choose(&input, &answers);
        DP_AUTO_JSON json_t *json = dp_adapt_to_json(&answers);
        dp_json_write(json, 0, &texts[i]);
        dp_adapt_render(&answers, &texts[i]);
    }
    assert_string_equal(texts[0].bytes, texts[1].bytes);
    dp_buf_deinit(&texts[0]);
    dp_buf_deinit(&texts[1]);
}

static void a_decision_that_was_written_is_read_as_it_was(void **state)
{
    (void)state;
    const struct sizes sizes = {"dualpipe", 4, 2, 1, 10, 12, 0, 2};
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = plan_of(&sizes);
    DP_CLEANUP(dp_adapt_costs_deinit) struct dp_adapt_costs costs = even_costs(&plan, 1, 1.2, 0.9);
    DP_CLEANUP(dp_adapt_answers_deinit) struct dp_adapt_answers made = {0}, read = {0}, none = {0};
    double slow[16];
    slow_one(5, 1.7, slow);
    struct dp_adapt_input input = input_of(&plan, &costs, slow);
    choose(&input, &made);
    struct dp_error err = {0};
    struct dp_buf texts[2] = {{0}};
    DP_AUTO_JSON json_t *json = dp_adapt_to_json(&made);
    assert_ok(dp_adapt_from_json(json, &read, &err), &err);
    DP_AUTO_JSON json_t *again = dp_adapt_to_json(&read);
    assert_true(json_equal(json, again));
    dp_adapt_render(&made, &texts[0]);
    dp_adapt_render(&read, &texts[1]);
    assert_string_equal(texts[0].bytes, texts[1].bytes);
    dp_buf_deinit(&texts[0]);
    dp_buf_deinit(&texts[1]);
    // Without a member of it, it is none, and nothing is left to free.
    const char *members[] = {"schema", "step_healthy_s", "steps", "simulations", "best", "answers"};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(members); i++) {
        DP_AUTO_JSON json_t *part = json_copy(json);
        json_object_del(part, members[i]);
        assert_int_equal(dp_adapt_from_json(part, &none, &err), DP_INVALID);
    }
    json_object_del(json_array_get(json_object_get(json, "answers"), 1), "reason");
    assert_int_equal(dp_adapt_from_json(json, &none, &err), DP_INVALID);
}

static bool always(void *context)
{
    (void)context;
    return true;
}

static void what_does_not_fit_is_refused_and_a_stop_is_heard(void **state)
{
    (void)state;
    struct dp_error err = {0};
    DP_CLEANUP(tear_down) struct bench bench;
    set_up(&bench);
    struct dp_adapt_answers answers = {0};
    bench.slow[0] = 0;
    assert_refused(dp_adapt_choose(&bench.input, &answers, &err), DP_INVALID, &err, "rank 0");
    bench.slow[0] = 2;
    bench.input.trust = 1.5;
    assert_refused(dp_adapt_choose(&bench.input, &answers, &err), DP_INVALID, &err, "trust");
    bench.input.trust = 1;
    bench.costs.layers = 2;
    assert_refused(dp_adapt_choose(&bench.input, &answers, &err), DP_INVALID, &err, "layers");
    bench.costs.layers = 3;
    const struct dp_adapt_link nowhere = {0, 7, {1, 0}, DP_ADAPT_NO_END};
    bench.input.links = &nowhere;
    bench.input.links_count = 1;
    assert_refused(dp_adapt_choose(&bench.input, &answers, &err), DP_INVALID, &err, "rank 7");
    bench.input.links_count = 0;
    bench.input.limits.stop = always;
    assert_int_equal(dp_adapt_choose(&bench.input, &answers, &err), DP_INTERRUPTED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_is_what_the_closed_form_of_1f1b_says),
        cmocka_unit_test(micro_batches_move_to_the_replica_that_is_done_first),
        cmocka_unit_test(replicas_that_share_expert_groups_keep_the_same_micro_batches),
        cmocka_unit_test(layers_leave_a_slow_rank_and_go_where_memory_takes_them),
        cmocka_unit_test(a_slow_link_gets_the_edge_with_the_least_traffic),
        cmocka_unit_test(a_spare_takes_the_slow_ranks_stage_and_costs_its_state),
        cmocka_unit_test(experts_are_re_placed_when_their_loads_are_the_cause),
        cmocka_unit_test(of_ranks_loads_alone_the_fullest_expert_bounds_what_placing_can_do),
        cmocka_unit_test(who_is_slow_is_asked_about_again_once_experts_were_placed),
        cmocka_unit_test(memory_bounds_where_ranks_go_unless_they_hold_nothing),
        cmocka_unit_test(a_restart_leaves_out_the_node_at_fault_and_obeys_the_job),
        cmocka_unit_test(an_answer_that_is_asked_for_is_taken_whatever_it_is_worth),
        cmocka_unit_test(nothing_is_done_before_the_time_lost_has_reached_the_cost),
        cmocka_unit_test(waiting_costs_at_most_twice_what_knowing_would),
        cmocka_unit_test(gains_trust_and_cool_down_bound_what_is_done),
        cmocka_unit_test(a_wrong_prediction_lowers_trust_and_a_right_one_brings_it_back),
        cmocka_unit_test(figures_are_scaled_to_the_step_that_was_measured),
        cmocka_unit_test(ranks_without_memory_take_orders_that_keep_more_chunks),
        cmocka_unit_test(a_job_that_lost_ranks_takes_more_when_that_pays),
        cmocka_unit_test(the_same_question_gets_the_same_answer_bit_for_bit),
        cmocka_unit_test(a_decision_that_was_written_is_read_as_it_was),
        cmocka_unit_test(what_does_not_fit_is_refused_and_a_stop_is_heard),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
