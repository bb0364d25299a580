// Stages at the ends of a pipeline that hold the embedding or the head alone, as published runs had
// them (arXiv 2401.10241: a layer less on the first and the last stage).

#include "search_support.h"

static dp_status plan_with(const char *layers, struct dp_plan *ret_plan, struct dp_error *err)
{
    struct cluster cluster;
    cluster_init(&cluster, "a100-80gb", 8);
    char assignment[2 * DP_NAME_MAX];
    snprintf(assignment, sizeof(assignment), "layers_per_stage=%s", layers);
    struct dp_job_spec spec =
        JOB("gpt-1.5b", 48, 1024, "resources.device=cuda", "pipeline=8", "schedule=zb-v",
            "micro_batch_size=1", "recompute=none", "model.layers=14", assignment);
    dp_status status = plan_on_cluster(&cluster, &spec, ret_plan, err);
    cluster_deinit(&cluster);
    return status;
}

static void the_ends_may_hold_no_layer(void **state)
{
    (void)state;
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = {.pipeline = 0};
    struct dp_error err = {0};
    assert_ok(plan_with("0,1,1,1,1,1,1,1,1,1,1,1,1,1,1,0", &plan, &err), &err);
    assert_int_equal(plan.stages, 16);
    assert_int_equal(plan.layer_begin[1], 0);
    assert_int_equal(plan.layer_begin[15], plan.layer_begin[16]);
    assert_ok(dp_plan_check(&plan, &err), &err);
    // Rank 0 holds both ends of the V and no layer: the table that embedding and head share,
    // learned positions, and the last norm.
    double h = 2304, v = 32000;
    assert_near(plan.positions[0].held.dense, h * v + h * 1024 + 2 * h, 1);
    assert_true(plan.positions[0].memory.activations < plan.positions[1].memory.activations);
    plan.layer_begin[4] = plan.layer_begin[5];
    assert_refused(dp_plan_check(&plan, &err), DP_INVALID, &err, "stage 4 runs layers");
}

// Megatron-Bridge ran Llama 3.1 405B, 126 layers, on 16 ranks of 8 chunks each.
static void a_layer_each_leaves_the_ends_to_embedding_and_head(void **state)
{
    (void)state;
    struct cluster cluster;
    cluster_init(&cluster, "gb200", 256);
    struct dp_job_spec spec =
        JOB("llama-3.1-405b", 1536, 8192, "resources.device=cuda", "pipeline=16", "tensor=4",
            "virtual=8", "schedule=interleaved", "micro_batch_size=1", "precision=fp8");
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = {.pipeline = 0};
    struct dp_error err = {0};
    dp_status status = plan_on_cluster(&cluster, &spec, &plan, &err);
    cluster_deinit(&cluster);
    assert_ok(status, &err);
    assert_int_equal(plan.stages, 128);
    for (int32_t s = 0; s < 128; s++) {
        int32_t layers = plan.layer_begin[s + 1] - plan.layer_begin[s];
        assert_int_equal(layers, s > 0 && s < 127);
    }
}

static void inner_stages_may_not(void **state)
{
    (void)state;
    struct dp_plan plan;
    struct dp_error err = {0};
    assert_refused(plan_with("1,0,1,1,1,1,1,1,1,1,1,1,1,1,1,0", &plan, &err), DP_INVALID, &err,
                   "at least 1 (0 at the ends)");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_ends_may_hold_no_layer),
        cmocka_unit_test(a_layer_each_leaves_the_ends_to_embedding_and_head),
        cmocka_unit_test(inner_stages_may_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
