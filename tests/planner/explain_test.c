// What a plan for accelerators says of itself: each line where its cause is there, and not where it
// is not. Figures in the lines are worked out from the plan's own parts.

#include "search_support.h"

#include <string.h>

#include "dp/check.h"

static struct dp_plan plan_of(const struct cluster *cluster, const struct dp_job_spec *spec)
{
    struct dp_plan plan = {0};
    struct dp_error err = {0};
    assert_ok(plan_on_cluster(cluster, spec, &plan, &err), &err);
    return plan;
}

static void assert_says(const char *text, const char *part, bool wanted)
{
    if ((strstr(text, part) != NULL) != wanted) {
        fail_msg("\"%s\" is %s in\n%s", part, wanted ? "missing" : "said", text);
    }
}

static void tensor_groups_that_cross_domains_are_told_with_their_share(void **state)
{
    (void)state;
    struct cluster cluster;
    cluster_init(&cluster, "h100", 32); // 8 to a domain
    for (int32_t tensor = 8; tensor <= 16; tensor *= 2) {
        struct dp_job_spec spec = JOB("llama-3-70b", 32, 4096, "resources.device=cuda");
        spec.parallel.tensor = tensor;
        DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = plan_of(&cluster, &spec);
        assert_says(plan.warnings, "cross scale-up domains (8 ranks in one)", tensor > 8);
        const struct dp_plan_position *critical = &plan.positions[dp_plan_critical_position(&plan)];
        char share[64];
        snprintf(share, sizeof share, "%.0f %% of the step", 100 * critical->wait_s / plan.step_s);
        assert_says(plan.warnings, share, tensor > 8);
    }
    cluster_deinit(&cluster);
}

static void one_rank_that_overlaps_is_no_pipeline(void **state)
{
    (void)state;
    struct cluster cluster;
    cluster_init(&cluster, "h100", 16);
    static const char *const schedules[] = {"1f1b", "dualpipev"};
    for (int i = 0; i < 2; i++) {
        struct dp_job_spec spec = JOB("qwen3-30b-a3b", 256, 4096, "resources.device=cuda",
                                      "pipeline=1", "expert=16", "micro_batch_size=1");
        DP_COPY_TEXT(spec.parallel.schedule, schedules[i]);
        DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = plan_of(&cluster, &spec);
        assert_true((plan.positions[0].overlapped_s > 0) == (i == 1));
        assert_says(plan.explanation, "with pipeline 1 there is no pipeline: dualpipev", i == 1);
    }
    cluster_deinit(&cluster);
}

static void stages_without_layers_are_explained(void **state)
{
    (void)state;
    struct cluster cluster;
    cluster_init(&cluster, "h100", 32);
    static const struct {
        const char *layers, *says;
    } cases[] = {{"0,11,11,10", "stage 0 has no layers: the embedding is a stage of its own"},
                 {"10,11,11,0", "stage 3 has no layers: the head with the loss is a stage"},
                 {"0,16,16,0", "stages 0 and 3 have no layers"},
                 {"8,8,8,8", NULL}};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(cases); i++) {
        struct dp_job_spec spec = JOB("mixtral-8x7b", 64, 4096, "resources.device=cuda",
                                      "pipeline=4", "schedule=1f1b", "expert=4");
        DP_COPY_TEXT(spec.parallel.layers_per_stage, cases[i].layers);
        DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = plan_of(&cluster, &spec);
        assert_says(plan.explanation, cases[i].says != NULL ? cases[i].says : "no layers",
                    cases[i].says != NULL);
    }
    cluster_deinit(&cluster);
}

static void large_micro_batches_are_explained_where_starting_kernels_binds(void **state)
{
    (void)state;
    struct cluster cluster;
    cluster_init(&cluster, "h100", 16);
    struct dp_device_figures *device = &cluster.profile.device;
    for (int slow = 0; slow < 2; slow++) {
        device->kernel_s = device->host_moe_s = device->host_expert_s = 0;
        // A host that needs half a second for a layer: 32 layers forward and then backward, for
        // each of 8 micro-batches; twice as many of half the size need twice of it.
        device->host_dense_s = device->host_moe_s = slow * 0.5;
        device->host_backward_factor = 1;
        struct dp_job_spec spec =
            JOB("mixtral-8x7b", 256, 4096, "resources.device=cuda", "pipeline=1", "schedule=1f1b",
                "micro_batch_size=2", "expert=8");
        DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = plan_of(&cluster, &spec);
        assert_says(plan.explanation, "micro-batches of 2 samples: starting kernels takes", slow);
        const char *line = strstr(plan.explanation, "starting kernels takes ");
        double now = 0, then = 0;
        if (slow) {
            assert_int_equal(sscanf(line,
                                    "starting kernels takes %lf s of the step, with 1 it "
                                    "would take %lf s",
                                    &now, &then),
                             2);
            // Twice the starts, and half the compute that hides some of them.
            assert_true(then > 1.9 * now && then < 2.2 * now);
        }
    }
    cluster_deinit(&cluster);
}

static void the_imbalance_is_what_prices_counted_with(void **state)
{
    (void)state;
    struct cluster cluster;
    cluster_init(&cluster, "h800", 64);
    struct dp_job_spec spec = JOB("deepseek-v2-lite", 256, 4096, "resources.device=cuda",
                                  "pipeline=4", "expert=16", "schedule=dualpipe");
    DP_CLEANUP(dp_plan_deinit) struct dp_plan assumed = plan_of(&cluster, &spec);
    char words[96];
    snprintf(words, sizeof words, "the fullest expert rank has %.2f times the mean's rows",
             assumed.imbalance);
    assert_true(assumed.imbalance > 1);
    assert_says(assumed.warnings, words, true);
    spec.parallel.imbalance = 1.5;
    DP_CLEANUP(dp_plan_deinit) struct dp_plan given = plan_of(&cluster, &spec);
    assert_true(given.imbalance == 1.5);
    // The same factor set by hand is the same price.
    spec.parallel.imbalance = assumed.imbalance;
    DP_CLEANUP(dp_plan_deinit) struct dp_plan same = plan_of(&cluster, &spec);
    if (same.data == assumed.data && same.recompute == assumed.recompute &&
        same.micro_batch_size == assumed.micro_batch_size) {
        assert_near(same.step_s, assumed.step_s, 1e-6 * assumed.step_s);
    }
    cluster_deinit(&cluster);
}

static void recovered_knows_whether_its_baseline_fits(void **state)
{
    (void)state;
    struct cluster cluster;
    cluster_init(&cluster, "h800", 2048);
    // The same sizes with 1F1B, asked for by hand.
    struct dp_job_spec spec = JOB("deepseek-v3", 15360, 4096, "resources.device=cuda",
                                  "pipeline=16", "expert=64", "schedule=dualpipe");
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = plan_of(&cluster, &spec);
    spec.parallel.data = plan.data;
    spec.parallel.micro_batch_size = plan.micro_batch_size;
    dp_recompute_text(plan.recompute, spec.parallel.recompute);
    DP_COPY_TEXT(spec.parallel.schedule, "1f1b");
    DP_CLEANUP(dp_buf_deinit) struct dp_buf layers = {0};
    for (int32_t s = 0; s < plan.stages; s++) {
        dp_buf_printf(&layers, "%s%d", s > 0 ? "," : "",
                      plan.layer_begin[s + 1] - plan.layer_begin[s]);
    }
    DP_COPY_TEXT(spec.parallel.layers_per_stage, layers.bytes);
    DP_CLEANUP(dp_plan_deinit) struct dp_plan base = plan_of(&cluster, &spec);
    assert_true(dp_plan_baseline_fits(&plan));
    assert_near(plan.baseline_memory_bytes,
                dp_plan_position_bytes(&base, dp_plan_fullest_position(&base)), 1);
    const struct dp_plan_candidate *best = dp_plan_best_of(&plan, "1f1b");
    assert_non_null(best);
    assert_true(best->step_s > 0 && best->step_s <= plan.baseline_step_s);
    plan.baseline_memory_bytes = 1e12;
    assert_false(dp_plan_baseline_fits(&plan));
    cluster_deinit(&cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensor_groups_that_cross_domains_are_told_with_their_share),
        cmocka_unit_test(one_rank_that_overlaps_is_no_pipeline),
        cmocka_unit_test(stages_without_layers_are_explained),
        cmocka_unit_test(large_micro_batches_are_explained_where_starting_kernels_binds),
        cmocka_unit_test(the_imbalance_is_what_prices_counted_with),
        cmocka_unit_test(recovered_knows_whether_its_baseline_fits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
