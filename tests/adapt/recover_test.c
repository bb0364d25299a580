// What runs after ranks are lost.

#include "adapt_support.h"
#include "dp/plan_survival.h"

static void recover(const struct dp_adapt_loss *loss, struct dp_adapt_recovery *ret_recovery)
{
    struct dp_error err = {0};
    assert_ok(dp_adapt_recover(loss, ret_recovery, &err), &err);
}

// No two ranks in one place, none in a lost one, and the batch of the step as it was.
static void holds_together(const struct dp_adapt_loss *loss, const struct dp_plan *plan)
{
    struct dp_error err = {0};
    assert_ok(dp_plan_check(plan, &err), &err);
    const struct dp_plan *old = loss->plan;
    for (int32_t r = 0; r < dp_plan_world(plan); r++) {
        const struct dp_plan_rank *rank = &plan->ranks[r];
        for (int32_t other = 0; other < r; other++) {
            assert_false(plan->ranks[other].slot == rank->slot &&
                         strcmp(plan->ranks[other].node, rank->node) == 0);
        }
        bool is_free = false;
        for (int32_t o = 0; o < dp_plan_world(old); o++) {
            is_free = is_free || (!loss->lost[o] && old->ranks[o].slot == rank->slot &&
                                  strcmp(old->ranks[o].node, rank->node) == 0);
        }
        for (size_t i = 0; i < loss->spares_count; i++) {
            is_free = is_free || (loss->spares[i].slot == rank->slot &&
                                  strcmp(loss->spares[i].node, rank->node) == 0);
        }
        assert_true(is_free);
    }
    assert_int_equal(dp_plan_step_microbatches(plan) * plan->micro_batch_size,
                     dp_plan_step_microbatches(old) * old->micro_batch_size);
    for (int32_t d = 0; d < plan->data; d++) {
        DP_CLEANUP(dp_schedule_deinit) struct dp_schedule schedule = {0};
        assert_ok(dp_plan_replica_schedule(plan, d, &schedule, &err), &err);
        assert_ok(dp_schedule_validate(&schedule, &err), &err);
    }
}

static void a_dead_rank_goes_to_a_free_slot_and_the_others_stay(void **state)
{
    (void)state;
    DP_CLEANUP(dp_plan_deinit)
    struct dp_plan plan = plan_of(&(struct sizes){"dualpipe", 4, 1, 1, 8, 8, 0, 2});
    const bool lost[] = {false, true, false, false};
    const struct dp_adapt_spare spares[] = {{.node = "slow", .slow = 2}, {.node = "s", .slot = 5}};
    const struct dp_adapt_loss loss = {
        .plan = &plan, .lost = lost, .spares = spares, .spares_count = 2};
    DP_CLEANUP(dp_adapt_recovery_deinit) struct dp_adapt_recovery recovery = {0};
    recover(&loss, &recovery);
    assert_int_equal(recovery.kind, DP_ADAPT_ON_SPARES);
    assert_string_equal(recovery.action, "rank 1 to s slot 5");
    for (int32_t r = 0; r < 4; r++) {
        assert_string_equal(recovery.plan.ranks[r].node, r == 1 ? "s" : plan.ranks[r].node);
    }
    assert_true(recovery.plan.schedule_hash == plan.schedule_hash);
    holds_together(&loss, &recovery.plan);
}

static void without_a_free_slot_fewer_replicas_share_the_step(void **state)
{
    (void)state;
    DP_CLEANUP(dp_plan_deinit)
    struct dp_plan plan = plan_of(&(struct sizes){"1f1b", 2, 4, 1, 8, 4, 0, 2});
    bool lost[8] = {false};
    lost[5] = true; // of replica 2; rank 4 is left over
    const struct dp_adapt_loss loss = {.plan = &plan, .lost = lost};
    DP_CLEANUP(dp_adapt_recovery_deinit) struct dp_adapt_recovery recovery = {0};
    recover(&loss, &recovery);
    assert_int_equal(recovery.kind, DP_ADAPT_ON_FEWER);
    assert_int_equal(recovery.plan.data, 3);
    assert_false(recovery.is_anew);
    int32_t most = 0, least = 100;
    for (int32_t d = 0; d < 3; d++) {
        int32_t count = dp_plan_replica_microbatches(&recovery.plan, d);
        most = count > most ? count : most;
        least = count < least ? count : least;
    }
    assert_int_equal(most - least, 1); // 32 over 3: 11, 11, 10
    assert_true(recovery.plan.step_s >= plan.step_s);
    holds_together(&loss, &recovery.plan);
}

static void what_no_rank_holds_any_more_comes_from_the_checkpoint_and_is_named(void **state)
{
    (void)state;
    DP_CLEANUP(dp_plan_deinit)
    struct dp_plan plan = plan_of(&(struct sizes){"dualpipe", 4, 1, 1, 8, 8, 0, 1});
    const bool lost[] = {false, true, true, false}; // a rank and its mirror
    const struct dp_adapt_spare spares[] = {{.node = "a"}, {.node = "b"}};
    struct dp_adapt_loss loss = {.plan = &plan, .lost = lost, .spares = spares, .spares_count = 2};
    DP_CLEANUP(dp_adapt_recovery_deinit) struct dp_adapt_recovery recovery = {0};
    recover(&loss, &recovery);
    assert_int_equal(recovery.kind, DP_ADAPT_FROM_CHECKPOINT);
    assert_true(recovery.has_plan);
    assert_non_null(strstr(recovery.reason, "the weights of stage 1 had no other copy"));
    holds_together(&loss, &recovery.plan);

    // Held ranks that were asked know better than the plan.
    dp_adapt_recovery_deinit(&recovery);
    loss.covered = 1;
    recover(&loss, &recovery);
    assert_int_equal(recovery.kind, DP_ADAPT_ON_SPARES);

    dp_adapt_recovery_deinit(&recovery);
    const bool one[] = {false, true, false, false};
    loss.covered = 0;
    loss.lost = one;
    plan.shard = DP_SHARD_ZERO1;
    recover(&loss, &recovery);
    assert_int_equal(recovery.kind, DP_ADAPT_FROM_CHECKPOINT);
    assert_non_null(strstr(recovery.reason, "zero1"));
}

static void nothing_that_is_left_can_run_it_says_what_is_needed(void **state)
{
    (void)state;
    DP_CLEANUP(dp_plan_deinit)
    struct dp_plan plan = plan_of(&(struct sizes){"dualpipe", 4, 1, 1, 8, 8, 0, 1});
    const bool lost[] = {false, true, false, false};
    const struct dp_adapt_loss loss = {.plan = &plan, .lost = lost};
    DP_CLEANUP(dp_adapt_recovery_deinit) struct dp_adapt_recovery recovery = {0};
    recover(&loss, &recovery);
    assert_int_equal(recovery.kind, DP_ADAPT_FROM_CHECKPOINT);
    assert_false(recovery.has_plan);
    assert_non_null(strstr(recovery.reason, "3 places are left, a pipeline takes 4"));
    struct dp_error err = {0};
    const bool none[4] = {false};
    const struct dp_adapt_loss nothing = {.plan = &plan, .lost = none};
    assert_refused(dp_adapt_recover(&nothing, &recovery, &err), DP_INVALID, &err, "no rank");
}

static void the_planner_finds_another_depth_when_a_pipeline_does_not_fit_any_more(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_job_spec spec;
    dp_job_spec_init(&spec);
    assert_ok(dp_model_preset("tiny-moe", &spec.model, &err), &err);
    DP_COPY_TEXT(spec.name, "shrinks");
    DP_COPY_TEXT(spec.data.path, "corpus");
    spec.train.global_batch = 16;
    spec.train.sequence = 128;
    spec.train.steps = 10;
    spec.parallel.pipeline = 4;
    spec.parallel.data = 1;
    spec.resources.ranks = 4;
    DP_COPY_TEXT(spec.parallel.schedule, "dualpipe");
    const struct dp_planner_node nodes[] = {{.name = "a", .slots = 2}, {.name = "b", .slots = 2}};
    const struct dp_planner_resources resources = {nodes, 2, NULL}, left = {nodes, 1, NULL};
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = {0};
    assert_ok(dp_planner_plan(&spec, &resources, NULL, &plan, &err), &err);
    bool lost[4];
    for (int32_t r = 0; r < 4; r++) {
        lost[r] = strcmp(plan.ranks[r].node, "b") == 0;
    }
    const struct dp_adapt_loss loss = {
        .plan = &plan, .lost = lost, .spec = &spec, .resources = &left};
    DP_CLEANUP(dp_adapt_recovery_deinit) struct dp_adapt_recovery recovery = {0};
    recover(&loss, &recovery);
    assert_int_equal(recovery.kind, DP_ADAPT_ON_FEWER);
    assert_int_equal(dp_plan_world(&recovery.plan), 2);
    assert_true(recovery.is_anew);
    holds_together(&loss, &recovery.plan);
    assert_non_null(strstr(recovery.action, "giving up"));
}

static void sizes_that_the_job_sets_give_way_only_when_ranks_are_lost(void **state)
{
    (void)state;
    DP_CLEANUP(dp_plan_deinit)
    struct dp_plan plan = plan_of(&(struct sizes){"1f1b", 2, 2, 1, 8, 4, 0, 2});
    const bool lost[] = {false, false, false, true};
    DP_AUTO_FREE struct dp_job_spec *spec = dp_new(struct dp_job_spec);
    struct dp_adapt_loss loss = {.plan = &plan, .lost = lost, .spec = spec, .obeys = true};
    for (int is_set = 0; is_set < 2; is_set++) {
        spec->parallel.data = is_set ? 2 : 0;
        DP_CLEANUP(dp_adapt_recovery_deinit) struct dp_adapt_recovery recovery = {0};
        recover(&loss, &recovery);
        assert_int_equal(recovery.kind, is_set ? DP_ADAPT_FROM_CHECKPOINT : DP_ADAPT_ON_FEWER);
        assert_int_equal(recovery.has_plan, !is_set);
        if (is_set) {
            assert_non_null(strstr(recovery.reason, "the job sets its sizes"));
        } else {
            assert_null(strstr(recovery.action, "giving up"));
        }
    }
    loss.obeys = false;
    DP_CLEANUP(dp_adapt_recovery_deinit) struct dp_adapt_recovery recovery = {0};
    recover(&loss, &recovery);
    assert_int_equal(recovery.kind, DP_ADAPT_ON_FEWER);
    assert_int_equal(recovery.plan.data, 1);
    assert_non_null(strstr(recovery.action, "giving up the number of replicas"));
    holds_together(&loss, &recovery.plan);
}

// Random losses: what comes out holds together, and says "checkpoint" exactly when tensors are gone
// or nothing fits.
static void any_loss_gets_a_layout_that_holds_together(void **state)
{
    (void)state;
    static const struct sizes sizes[] = {
        {"1f1b", 2, 4, 1, 8, 4, 0, 2},        {"1f1b", 3, 3, 1, 6, 6, 0, 2},
        {"dualpipe", 4, 3, 1, 12, 8, 0, 4},   {"gpipe", 2, 4, 2, 8, 4, 0, 4},
        {"interleaved", 2, 3, 1, 4, 8, 2, 2}, {"dualpipev", 2, 4, 1, 8, 8, 0, 2},
    };
    struct dp_rand rand;
    dp_rand_init(&rand, 7);
    int kinds[3] = {0};
    for (long run = 0; run < dp_fuzz_runs(300); run++) {
        struct dp_error err = {0};
        size_t pick = dp_rand_below(&rand, sizeof(sizes) / sizeof(sizes[0]));
        DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = plan_of(&sizes[pick]);
        bool lost[64] = {false};
        uint64_t often = 2 + dp_rand_below(&rand, 6);
        for (int32_t r = 0; r < dp_plan_world(&plan); r++) {
            lost[r] = dp_rand_below(&rand, often) == 0;
        }
        lost[dp_rand_below(&rand, (uint64_t)dp_plan_world(&plan))] = true;
        struct dp_adapt_spare spares[4] = {
            {.node = "s0"}, {.node = "s1"}, {.node = "s2"}, {.node = "s3"}};
        const struct dp_adapt_loss loss = {
            .plan = &plan, .lost = lost, .spares = spares, .spares_count = dp_rand_below(&rand, 5)};
        DP_CLEANUP(dp_adapt_recovery_deinit) struct dp_adapt_recovery recovery = {0};
        recover(&loss, &recovery);
        bool survives;
        assert_ok(dp_plan_survives(&plan, lost, &survives, NULL, &err), &err);
        assert_int_equal(recovery.kind == DP_ADAPT_FROM_CHECKPOINT,
                         !survives || !recovery.has_plan);
        kinds[recovery.kind]++;
        if (recovery.has_plan) {
            holds_together(&loss, &recovery.plan);
        }
    }
    assert_true(kinds[0] > 0 && kinds[1] > 0 && kinds[2] > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_dead_rank_goes_to_a_free_slot_and_the_others_stay),
        cmocka_unit_test(without_a_free_slot_fewer_replicas_share_the_step),
        cmocka_unit_test(what_no_rank_holds_any_more_comes_from_the_checkpoint_and_is_named),
        cmocka_unit_test(nothing_that_is_left_can_run_it_says_what_is_needed),
        cmocka_unit_test(the_planner_finds_another_depth_when_a_pipeline_does_not_fit_any_more),
        cmocka_unit_test(sizes_that_the_job_sets_give_way_only_when_ranks_are_lost),
        cmocka_unit_test(any_loss_gets_a_layout_that_holds_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
