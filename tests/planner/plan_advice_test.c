// What a plan's own figures say: why candidates lost, ties, when two directions are wrong. All
// figures are made up here, and the numbers of the sentences worked out by hand.

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/plan.h"
#include "dp_test.h"

enum { P = 4, D = 8, GIB = 1 << 30 };

static const struct dp_model_spec moe = {.experts = 64, .top_k = 4, .layers = 8};
static const struct dp_model_spec dense = {.layers = 8};

static struct dp_plan_candidate candidate(const char *schedule, double step_s, double memory)
{
    struct dp_plan_candidate c = {.pipeline = P,
                                  .expert = 8,
                                  .data = D,
                                  .microbatches = 40,
                                  .micro_batch_size = 1,
                                  .legal = true,
                                  .step_s = step_s,
                                  .memory_max_bytes = memory * GIB,
                                  .memory_limit_bytes = 80.0 * GIB};
    DP_COPY_TEXT(c.schedule, schedule);
    return c;
}

// DualPipe on 32 ranks, a step of 10 s of 32768 tokens x 40: 2 GiB of second copies, 50 of 80 GiB
// used, 3 s of all-to-all hidden and 0.5 s exposed. Candidate 0 is the chosen one.
static struct dp_plan healthy(void)
{
    struct dp_plan plan = {.pipeline = P,
                           .expert = 8,
                           .data = D,
                           .microbatches = 40,
                           .micro_batch_size = 1,
                           .schedule = "dualpipe",
                           .stages = P,
                           .step_s = 10,
                           .tokens_per_s = 131072,
                           .error_share = 0.05,
                           .baseline_step_s = 14};
    plan.layer_begin = dp_new_array(int32_t, P + 1);
    plan.ranks = dp_new_array(struct dp_plan_rank, P * D);
    for (int32_t i = 0; i < P * D; i++) { // a replica on a node: groups cross all nodes
        snprintf(plan.ranks[i].node, sizeof plan.ranks[i].node, "n%d", i / P);
        plan.ranks[i].slot = i % P;
    }
    plan.positions = dp_new_array(struct dp_plan_position, P);
    for (int32_t p = 0; p < P; p++) {
        plan.positions[p] = (struct dp_plan_position){.forward_s = 1,
                                                      .overlapped_s = 8,
                                                      .bubble_s = 1,
                                                      .exchange_s = 0.5,
                                                      .hidden_s = 3,
                                                      .memory_limit_bytes = 80.0 * GIB};
        plan.positions[p].memory.weights = 1.0 * GIB;
        plan.positions[p].memory.gradients = 3.0 * GIB;
        plan.positions[p].memory.activations = 46.0 * GIB;
    }
    plan.candidates = dp_new_array(struct dp_plan_candidate, 8);
    plan.candidates[0] = candidate("dualpipe", 10, 50);
    plan.candidates[0].chosen = true;
    plan.candidates[0].compute_s = 8.5;
    plan.candidates[0].bubble_s = 1;
    plan.candidates[0].exchange_s = 0.5;
    plan.candidates_count = 1;
    return plan;
}

static void add(struct dp_plan *plan, struct dp_plan_candidate c)
{
    plan->candidates[plan->candidates_count++] = c;
}

static const char *advice(struct dp_plan *plan, const struct dp_model_spec *model)
{
    free(plan->warnings);
    plan->warnings = NULL;
    dp_plan_explain(plan, model);
    return plan->warnings;
}

static void assert_says(const char *text, const char *part)
{
    if (strstr(text, part) == NULL) {
        fail_msg("\"%s\" is missing in\n%s", part, text);
    }
}

static void a_plan_that_suits_dualpipe_gets_no_advice(void **state)
{
    (void)state;
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = healthy();
    add(&plan, candidate("interleaved", 12, 40));
    assert_string_equal(advice(&plan, &moe), "");
    assert_int_equal(plan.candidates[1].tied, false);
}

static void few_micro_batches_are_named_with_the_batch_that_would_do(void **state)
{
    (void)state;
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = healthy();
    plan.microbatches = 2 * P + 1;
    assert_string_equal(advice(&plan, &moe), "");
    plan.microbatches = 2 * P;
    // 4 P = 16 micro-batches of 1 sample in 8 replicas.
    assert_says(advice(&plan, &moe),
                "few micro-batches: 8 for 4 pipeline ranks leave pairs 80 % of "
                "the step and bubbles 10 %");
    assert_says(plan.warnings, "some 16 of them (global batch 128) would fill it");
    DP_COPY_TEXT(plan.schedule, "1f1b");
    assert_string_equal(advice(&plan, &moe), ""); // 10 % of bubbles are no news there
    for (int32_t p = 0; p < P; p++) {
        plan.positions[p].bubble_s = 2;
    }
    assert_says(advice(&plan, &moe), "bubbles are 20 % of the step");
}

static void a_dense_model_has_nothing_to_hide(void **state)
{
    (void)state;
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = healthy();
    plan.expert = 1;
    assert_says(advice(&plan, &moe), "experts are not split");
    for (int32_t p = 0; p < P; p++) {
        plan.positions[p].hidden_s = plan.positions[p].exchange_s = 0;
    }
    assert_says(advice(&plan, &dense), "a dense model has no all-to-all to hide (0 s of it in a "
                                       "step of 10 s), and the second copy of every stage takes "
                                       "2.00 GiB a rank");
    DP_COPY_TEXT(plan.schedule, "dualpipev"); // holds one copy
    assert_string_equal(advice(&plan, &dense), "");
}

static void expert_groups_inside_a_node_have_little_to_hide(void **state)
{
    (void)state;
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = healthy();
    for (int32_t i = 0; i < P * D; i++) { // a pipeline position on a node
        snprintf(plan.ranks[i].node, sizeof plan.ranks[i].node, "n%d", i % P);
    }
    assert_string_equal(advice(&plan, &moe), ""); // 3.5 s are worth hiding wherever they travel
    for (int32_t p = 0; p < P; p++) {
        plan.positions[p].hidden_s = 0.3;
        plan.positions[p].exchange_s = 0.1;
    }
    assert_says(advice(&plan, &moe),
                "expert groups of 8 stay inside their nodes: all-to-all is 400 "
                "ms, 4.0 % of the step");
    DP_COPY_TEXT(plan.ranks[P].node, "elsewhere"); // one member of one group
    assert_string_equal(advice(&plan, &moe), "");
}

static void memory_that_binds_is_named_with_what_the_second_copy_takes(void **state)
{
    (void)state;
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = healthy();
    plan.positions[2].memory.activations = 67.0 * GIB; // 9 GiB are left
    assert_string_equal(advice(&plan, &moe), "");
    plan.positions[2].memory.activations = 68.5 * GIB; // 7.5, less than a tenth of 80
    assert_says(advice(&plan, &moe),
                "memory binds: rank 2 has 7.50 GiB left of 80.0 GiB, and the second copy of its "
                "stages takes 2.00 GiB");
    plan.positions[2].memory.activations = 68.0 * GIB; // 8 of 80 is a tenth
    assert_string_equal(advice(&plan, &moe), "");
    plan.positions[2].memory.activations = 78.0 * GIB; // 82 in all
    assert_says(advice(&plan, &moe), "rank 2 lacks 2.00 GiB beyond its 80.0 GiB");
}

static void what_is_as_fast_with_one_copy_is_named(void **state)
{
    (void)state;
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = healthy();
    struct dp_plan_candidate close = candidate("interleaved", 10.4, 44);
    close.virtual_stages = 4;
    add(&plan, close);
    assert_says(advice(&plan, &moe),
                "interleaved v4 (pipeline 4) takes +4.0 %, inside the error of "
                "5 %, holds every stage once and needs 6.00 GiB less");
    add(&plan, candidate("dualpipev", 10.1, 60));
    assert_says(advice(&plan, &moe), "dualpipev (pipeline 4) takes +1.0 %");
    assert_says(plan.warnings, "needs 10.0 GiB more");
    plan.candidates[2].memory_max_bytes = 50.4 * GIB;
    assert_says(advice(&plan, &moe), "holds every stage once and needs as much memory");
    plan.candidates[1].step_s = 10.5; // on the bar
    advice(&plan, &moe);
    assert_true(plan.candidates[1].tied);
    plan.ranking_share = 0.03; // a ratio is surer than a step
    advice(&plan, &moe);
    assert_false(plan.candidates[1].tied);
    assert_true(plan.candidates[2].tied);
    plan.ranking_share = 0.07; // never less sure
    advice(&plan, &moe);
    assert_true(plan.candidates[1].tied);
    plan.candidates[1].step_s = 10.6;
    plan.candidates[2].memory_max_bytes = 81.0 * GIB; // does not fit
    assert_string_equal(advice(&plan, &moe), "");
    assert_false(plan.candidates[1].tied || plan.candidates[2].tied);
}

static void two_directions_that_gain_nothing_are_named(void **state)
{
    (void)state;
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = healthy();
    plan.baseline_step_s = 9.8;
    assert_says(advice(&plan, &moe), "+2.0 % against 1f1b on the same sizes");
    plan.baseline_step_s = 10.2;
    assert_string_equal(advice(&plan, &moe), "");
}

static void a_baseline_that_does_not_fit_is_no_rival(void **state)
{
    (void)state;
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = healthy();
    plan.baseline_step_s = 9.8;
    plan.baseline_memory_bytes = 80.0 * GIB;
    assert_true(dp_plan_baseline_fits(&plan));
    plan.baseline_memory_bytes = 81.0 * GIB;
    assert_false(dp_plan_baseline_fits(&plan));
    assert_string_equal(advice(&plan, &moe), "");
    plan.positions[0].memory_limit_bytes = 96.0 * GIB; // the least of all counts
    assert_false(dp_plan_baseline_fits(&plan));
    for (int32_t p = 0; p < P; p++) {
        plan.positions[p].memory_limit_bytes = 0; // no limit
    }
    assert_true(dp_plan_baseline_fits(&plan));
}

static const char *cost_of(const struct dp_plan *plan, struct dp_buf *text)
{
    text->length = 0;
    dp_plan_render(plan, true, text);
    // Where the line was broken does not matter.
    for (char *at = text->bytes; (at = strstr(at, "\n           ")) != NULL;) {
        memmove(at + 1, at + 12, strlen(at + 12) + 1);
        *at = ' ';
    }
    return strstr(text->bytes, "cost ");
}

// A step of 10 s on 32 ranks makes 1.31 M tokens: 67.8 k GPU-hours per trillion.
static void what_is_recovered_is_told_against_both_1f1b(void **state)
{
    (void)state;
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = healthy();
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_plan_explain(&plan, NULL);
    plan.baseline_memory_bytes = 60.0 * GIB;
    assert_says(cost_of(&plan, &text), "67.8 k GPU-hours per trillion tokens; 27.1 k (28.6 %) "
                                       "recovered against 1f1b on the same sizes\n");
    struct dp_plan_candidate best = candidate("1f1b", 12.5, 50);
    best.expert = 4;
    add(&plan, candidate("1f1b", 11, 81)); // does not fit
    add(&plan, candidate("1f1b", 13, 40));
    add(&plan, best);
    plan.baseline_memory_bytes = 81.0 * GIB;
    assert_says(cost_of(&plan, &text),
                "; 17 k (20.0 %) recovered against the best 1f1b (4x8 e4), 27.1 k (28.6 %) "
                "recovered against it on the same sizes, which does not fit (81.0 GiB)\n");
    DP_AUTO_JSON json_t *json = dp_plan_to_json(&plan);
    double same, of_best;
    int fits, expert;
    assert_int_equal(json_unpack(json, "{s:{s:{s:F, s:b}, s:{s:F, s:i}}}", "chosen", "recovered",
                                 "share", &same, "fits", &fits, "recovered_best", "share", &of_best,
                                 "expert", &expert),
                     0);
    assert_true(fabs(same - (1 - 10.0 / 14)) < 1e-12 && fabs(of_best - 0.2) < 1e-12);
    assert_true(!fits && expert == 4);
    plan.candidates[3].step_s = 8; // faster than what the job sets
    assert_says(cost_of(&plan, &text), "; 13.6 k (25.0 %) lost against the best 1f1b (4x8 e4)");
    plan.candidates[3].expert = 8; // all as chosen
    assert_says(cost_of(&plan, &text), "lost against the best 1f1b (the same sizes)\n");
}

static void a_loser_is_told_by_the_parts_in_which_it_lost(void **state)
{
    (void)state;
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = healthy();
    struct dp_plan_candidate c = plan.candidates[0];
    c.chosen = false;
    DP_COPY_TEXT(c.schedule, "1f1b");
    c.step_s = 13;
    c.bubble_s = 2.2;
    c.exchange_s = 2.2;
    c.compute_s = 8.6;
    add(&plan, c);
    c.memory_max_bytes = 97.0 * GIB;
    c.memory_position = 3;
    add(&plan, c);
    c = plan.candidates[0];
    c.chosen = false;
    c.step_s = 10.3;
    c.hop_s = 0.3;
    c.bubble_s = 1.3; // all of it hops
    add(&plan, c);
    c.step_s = 12;
    c.hop_s = 0;
    c.bubble_s = 1;
    c.expert = 4;
    c.compute_s = 10.5;
    add(&plan, c);
    c.legal = false;
    c.reason = dp_strdup("4 does not divide 7");
    add(&plan, c);
    dp_plan_explain(&plan, &moe);
    const char *const reasons[] = {
        "chosen", "+30.0 %: exposed all-to-all +1.7 s, bubble +1.2 s",
        "does not fit: rank 3 needs 97.0 GiB, 17.0 GiB more than its 80.0 GiB",
        "tie, +3.0 %: hops +300 ms",
        // 4096 tokens to 4 of 64 experts: 2048 rows for each from 8 ranks, 1024 from 4.
        "+20.0 %: compute +2 s (1024 tokens an expert, not 2048)", "4 does not divide 7"};
    for (size_t i = 0; i < plan.candidates_count; i++) {
        assert_string_equal(plan.candidates[i].reason, reasons[i]);
        assert_int_equal(plan.candidates[i].tied, i == 3);
    }
}

static void sums_for_people_follow_from_the_step(void **state)
{
    (void)state;
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = healthy();
    // 32 ranks for 10 s make 131072 x 10 tokens.
    double hours = dp_plan_gpu_hours(&plan, 10, 1e12);
    assert_true(fabs(hours - 32 * 10 / 3600.0 / 1310720 * 1e12) < 1e-6);
    plan.positions[1].bubble_s = 0.5;
    plan.positions[3].memory.deferred = 1;
    assert_int_equal(dp_plan_critical_position(&plan), 1);
    assert_int_equal(dp_plan_fullest_position(&plan), 3);
    plan.positions[0].memory_limit_bytes = 60.0 * GIB; // less room, though not more in it
    assert_int_equal(dp_plan_fullest_position(&plan), 0);
}

static void the_map_folds_nodes_that_repeat(void **state)
{
    (void)state;
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = healthy();
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0}, file = {0};
    dp_plan_render_map(&plan, &text);
    assert_string_equal(text.bytes,
                        "32 ranks on 8 nodes; an expert group is 8 consecutive ranks of one "
                        "pipeline position\npipeline 0-3, data 0-7: n0 .. n7, a node 4 pipeline\n");
    for (int32_t i = 0; i < P * D; i++) { // two nodes to a replica, the names not in order
        snprintf(plan.ranks[i].node, sizeof plan.ranks[i].node, "n%d", i / 2);
    }
    text.length = 0;
    dp_plan_render_map(&plan, &text);
    assert_says(text.bytes, "pipeline 0-1, data 0-7: every 2nd of n0 .. n14, a node 2 pipeline\n"
                            "pipeline 2-3, data 0-7: every 2nd of n1 .. n15, a node 2 pipeline\n");
    for (int32_t i = 0; i < P * D; i++) { // replica 2 alone is on two nodes
        int32_t node = i < 2 * P ? i / P : i < 3 * P ? i / 2 - 2 : i / P + 1;
        snprintf(plan.ranks[i].node, sizeof plan.ranks[i].node, "n%d", node);
    }
    text.length = 0;
    dp_plan_render_map(&plan, &text);
    assert_says(text.bytes, "pipeline 0-1, data 2: n2, a node 2 pipeline\n"
                            "pipeline 0-3, data 0-7: n0 .. n1, n4 .. n8, a node 4 pipeline\n"
                            "pipeline 2-3, data 2: n3, a node 2 pipeline\n");
    for (int32_t i = 0; i < P * D; i++) { // three to a node cross replicas
        snprintf(plan.ranks[i].node, sizeof plan.ranks[i].node, "n%d", i / 3);
        plan.ranks[i].slot = i % 3;
    }
    text.length = 0;
    dp_plan_render_map(&plan, &text);
    assert_says(text.bytes, "n1: ranks 3-5\n");
    dp_plan_render_rank_file(&plan, &file);
    assert_says(file.bytes, "\n13\tn4\t1\t1\t3\t0\t0\t3\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_that_suits_dualpipe_gets_no_advice),
        cmocka_unit_test(few_micro_batches_are_named_with_the_batch_that_would_do),
        cmocka_unit_test(a_dense_model_has_nothing_to_hide),
        cmocka_unit_test(expert_groups_inside_a_node_have_little_to_hide),
        cmocka_unit_test(memory_that_binds_is_named_with_what_the_second_copy_takes),
        cmocka_unit_test(what_is_as_fast_with_one_copy_is_named),
        cmocka_unit_test(two_directions_that_gain_nothing_are_named),
        cmocka_unit_test(a_baseline_that_does_not_fit_is_no_rival),
        cmocka_unit_test(what_is_recovered_is_told_against_both_1f1b),
        cmocka_unit_test(a_loser_is_told_by_the_parts_in_which_it_lost),
        cmocka_unit_test(sums_for_people_follow_from_the_step),
        cmocka_unit_test(the_map_folds_nodes_that_repeat),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
