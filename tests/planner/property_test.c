// Random jobs on random nodes: a plan that holds together, or a refusal that says why.

#include "planner_support.h"

#include "dp/rand.h"

static int32_t between(struct dp_rand *rand, int32_t low, int32_t high)
{
    return low + (int32_t)dp_rand_below(rand, (uint64_t)(high - low) + 1);
}

static struct dp_job_spec some_job(struct dp_rand *rand)
{
    static const char *const schedules[] = {"gpipe", "1f1b", "dualpipe", "dualpipev"};
    struct dp_job_spec spec = JOB("tiny-moe", 16, 64, NULL);
    spec.train.global_batch = between(rand, 1, 48);
    spec.model.layers = between(rand, 1, 12);
    spec.model.dense_layers = between(rand, 0, spec.model.layers);
    struct dp_parallel_spec *p = &spec.parallel;
    p->pipeline = between(rand, 0, 2) == 0 ? between(rand, 1, 6) : 0;
    p->data = between(rand, 0, 3) == 0 ? between(rand, 1, 4) : 0;
    p->expert = between(rand, 0, 3) == 0 ? 1 << between(rand, 0, 2) : 0;
    p->microbatches = between(rand, 0, 3) == 0 ? between(rand, 1, 16) : 0;
    p->micro_batch_size = between(rand, 0, 3) == 0 ? between(rand, 1, 4) : 0;
    if (between(rand, 0, 1) == 1) {
        DP_COPY_TEXT(p->schedule, schedules[between(rand, 0, 3)]);
    }
    spec.resources.ranks = between(rand, 0, 4) == 0 ? between(rand, 1, 12) : 0;
    if (between(rand, 0, 4) == 0) {
        spec.resources.device = DP_DEVICE_SIM;
        spec.sim = (struct dp_sim_spec){.forward_s = 1e-3,
                                        .input_grad_s = 2e-3,
                                        .weight_grad_s = dp_rand_double(rand) * 2e-3,
                                        .pair_s = dp_rand_double(rand) * 5e-3,
                                        .head_s = dp_rand_double(rand) * 1e-3,
                                        .scale = 0.1};
    }
    return spec;
}

static size_t some_nodes(struct dp_rand *rand, struct dp_planner_node nodes[4])
{
    size_t count = (size_t)between(rand, 1, 4);
    for (size_t i = 0; i < count; i++) {
        nodes[i] = (struct dp_planner_node){.slots = between(rand, 0, 5),
                                            .first_slot = between(rand, 0, 2),
                                            .cores = between(rand, 0, 4)};
        snprintf(nodes[i].name, sizeof(nodes[i].name), "node-%zu", i);
        snprintf(nodes[i].host, sizeof(nodes[i].host), "%s", between(rand, 0, 1) == 1 ? "h" : "");
        nodes[i].memory_bytes = between(rand, 0, 2) == 0 ? 60e6 + dp_rand_double(rand) * 2e8 : 0;
    }
    return count;
}

// Each rank has a slot of its own that its node really has.
static void check_places(const struct dp_plan *plan, const struct dp_planner_node *nodes,
                         size_t count)
{
    for (int32_t i = 0; i < dp_plan_world(plan); i++) {
        const struct dp_plan_rank *rank = &plan->ranks[i];
        bool found = false;
        for (size_t n = 0; n < count; n++) {
            found = found ||
                    (strcmp(rank->node, nodes[n].name) == 0 && rank->slot >= nodes[n].first_slot &&
                     rank->slot < nodes[n].first_slot + nodes[n].slots);
        }
        assert_true(found);
        for (int32_t j = 0; j < i; j++) {
            assert_false(strcmp(rank->node, plan->ranks[j].node) == 0 &&
                         rank->slot == plan->ranks[j].slot);
        }
    }
}

static void obeys(const struct dp_job_spec *spec, const struct dp_plan *plan)
{
    const struct dp_parallel_spec *p = &spec->parallel;
    assert_true(p->pipeline == 0 || p->pipeline == plan->pipeline);
    assert_true(p->data == 0 || p->data == plan->data);
    assert_true(p->expert == 0 || p->expert == plan->expert);
    assert_true(p->microbatches == 0 || p->microbatches == plan->microbatches);
    assert_true(p->micro_batch_size == 0 || p->micro_batch_size == plan->micro_batch_size);
    assert_true(p->schedule[0] == '\0' || strcmp(p->schedule, plan->schedule) == 0);
    assert_true(spec->resources.ranks == 0 || spec->resources.ranks == dp_plan_world(plan));
    assert_int_equal(plan->data * plan->microbatches * plan->micro_batch_size,
                     spec->train.global_batch);
    assert_int_equal(plan->layer_begin[plan->stages], spec->model.layers);
}

static void every_job_is_planned_or_refused_with_a_reason(void **state)
{
    (void)state;
    struct dp_rand rand;
    dp_rand_init(&rand, 21);
    int planned = 0, refused = 0;
    for (int round = 0; round < 400; round++) {
        struct dp_error err = {0};
        struct dp_planner_node nodes[4];
        struct dp_job_spec spec = some_job(&rand);
        size_t count = some_nodes(&rand, nodes);
        struct dp_planner_resources resources = {nodes, count, NULL};
        struct dp_planner_options options = {.moves_max = 40};
        DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = {0};
        dp_status status = dp_planner_plan(&spec, &resources, &options, &plan, &err);
        if (status != DP_OK) {
            assert_true(status == DP_INVALID || status == DP_UNSCHEDULABLE);
            assert_true(strlen(err.message) > 10);
            refused++;
            continue;
        }
        planned++;
        assert_ok(dp_plan_check(&plan, &err), &err);
        obeys(&spec, &plan);
        check_places(&plan, nodes, count);
        DP_CLEANUP(dp_schedule_deinit) struct dp_schedule schedule = {0};
        assert_ok(dp_plan_schedule(&plan, &schedule, &err), &err);
        assert_ok(dp_schedule_validate(&schedule, &err), &err);
    }
    assert_true(planned > 100);
    assert_true(refused > 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_job_is_planned_or_refused_with_a_reason),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
