// What plans say they tolerate, beside taking ranks and nodes away one by one.

#include "adapt_support.h"
#include "dp/plan_survival.h"

enum { TENSORS_MAX = 4096 };

// Tensors as a rank of the executor holds them, spelled out: a name for each, whichever ranks have
// it. Written from what ranks do, not from the library's arithmetic.
struct holding {
    char name[48];
    int32_t rank;
};

struct holdings {
    struct holding items[TENSORS_MAX];
    int32_t count;
};

static void hold(struct holdings *holdings, int32_t rank, const char *format, int32_t stage,
                 int32_t part)
{
    struct holding *holding = &holdings->items[holdings->count++];
    assert_true(holdings->count < TENSORS_MAX);
    snprintf(holding->name, sizeof(holding->name), format, stage, part);
    holding->rank = rank;
}

// Ranks of own executor: tensor = context = 1. Rank r is position r % P of replica r / P; its
// experts are those of its number in its expert group; with zero1 its share of the moments is its
// alone.
static void list_holdings(const struct dp_plan *plan, struct holdings *ret_holdings)
{
    struct dp_error err = {0};
    DP_CLEANUP(dp_schedule_deinit) struct dp_schedule schedule = {0};
    assert_ok(dp_plan_schedule(plan, &schedule, &err), &err);
    ret_holdings->count = 0;
    for (int32_t r = 0; r < plan->pipeline * plan->data; r++) {
        int32_t stages[DP_RANK_STAGES_MAX];
        int32_t count = dp_schedule_rank_stages(&schedule, r % plan->pipeline, stages);
        int32_t in_group = r / plan->pipeline % plan->expert;
        for (int32_t i = 0; i < count; i++) {
            hold(ret_holdings, r, "stage %d weights %d", stages[i], 0);
            hold(ret_holdings, r, "stage %d experts %d", stages[i], in_group);
            if (plan->shard == DP_SHARD_ZERO1) {
                hold(ret_holdings, r, "stage %d moments of rank %d", stages[i], r);
            } else {
                hold(ret_holdings, r, "stage %d moments %d", stages[i], 0);
                hold(ret_holdings, r, "stage %d moments of experts %d", stages[i], in_group);
            }
        }
    }
}

static bool is_left(const struct holdings *holdings, const char *name, const bool *lost)
{
    for (int32_t i = 0; i < holdings->count; i++) {
        if (strcmp(holdings->items[i].name, name) == 0 && !lost[holdings->items[i].rank]) {
            return true;
        }
    }
    return false;
}

static bool all_left(const struct holdings *holdings, const bool *lost)
{
    for (int32_t i = 0; i < holdings->count; i++) {
        if (!is_left(holdings, holdings->items[i].name, lost)) {
            return false;
        }
    }
    return true;
}

static bool survives(const struct dp_plan *plan, const bool *lost)
{
    struct dp_error err = {0};
    bool says = false;
    assert_ok(dp_plan_survives(plan, lost, &says, NULL, &err), &err);
    return says;
}

// Whether everything survives the loss of every set of `size` of the nodes (or ranks).
static bool survives_all(const struct dp_plan *plan, const struct holdings *holdings, bool by_node,
                         int32_t size, int32_t first, bool *lost)
{
    int32_t world = plan->pipeline * plan->data;
    if (size == 0) {
        bool is_there = all_left(holdings, lost);
        assert_int_equal(survives(plan, lost), is_there);
        return is_there;
    }
    bool all = true;
    for (int32_t r = first; r < world && all; r++) {
        bool before[64];
        memcpy(before, lost, sizeof(before));
        for (int32_t other = 0; other < world; other++) {
            bool goes =
                by_node ? strcmp(plan->ranks[other].node, plan->ranks[r].node) == 0 : other == r;
            lost[other] = lost[other] || goes;
        }
        all = survives_all(plan, holdings, by_node, size - 1, r + 1, lost);
        memcpy(lost, before, sizeof(before));
    }
    return all;
}

// The most that any set of may be.
static int32_t tolerated(const struct dp_plan *plan, const struct holdings *holdings, bool by_node)
{
    int32_t size = 0;
    bool lost[64] = {false};
    while (size < 3 && survives_all(plan, holdings, by_node, size + 1, 0, lost)) {
        size++;
    }
    return size;
}

static const struct sizes some_sizes[] = {
    {"1f1b", 2, 1, 1, 4, 4, 0, 1},        {"1f1b", 2, 2, 1, 4, 4, 0, 1},
    {"1f1b", 2, 2, 1, 4, 4, 0, 2},        {"1f1b", 2, 2, 1, 4, 4, 0, 4},
    {"1f1b", 2, 4, 2, 4, 4, 0, 2},        {"1f1b", 2, 4, 4, 4, 4, 0, 2},
    {"dualpipe", 4, 1, 1, 8, 8, 0, 1},    {"dualpipe", 4, 1, 1, 8, 8, 0, 2},
    {"dualpipe", 4, 1, 1, 8, 8, 0, 4},    {"dualpipe", 4, 2, 2, 8, 8, 0, 4},
    {"dualpipe", 4, 2, 1, 8, 8, 0, 2},    {"dualpipev", 2, 2, 1, 4, 4, 0, 2},
    {"interleaved", 2, 3, 1, 4, 8, 2, 3}, {"gpipe", 3, 3, 3, 3, 6, 0, 2},
    {"dualpipe", 4, 4, 4, 8, 8, 0, 3},    {"zb-h1", 3, 2, 1, 6, 6, 0, 1},
};

static void what_a_plan_tolerates_is_what_survives_when_ranks_and_nodes_are_taken_away(void **state)
{
    (void)state;
    struct dp_error err = {0};
    DP_AUTO_FREE struct holdings *holdings = dp_new(struct holdings);
    for (size_t i = 0; i < sizeof(some_sizes) / sizeof(some_sizes[0]); i++) {
        for (int shard = 0; shard < 2; shard++) {
            DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = plan_of(&some_sizes[i]);
            plan.shard = shard == 0 ? DP_SHARD_NONE : DP_SHARD_ZERO1;
            struct dp_plan_survival survival;
            assert_ok(dp_plan_survival_of(&plan, &survival, &err), &err);
            list_holdings(&plan, holdings);
            int32_t ranks = tolerated(&plan, holdings, false);
            int32_t nodes = tolerated(&plan, holdings, true);
            assert_int_equal(survival.ranks < 3 ? survival.ranks : 3, ranks);
            assert_int_equal(survival.nodes < 3 ? survival.nodes : 3, nodes);
        }
    }
}

static void random_losses_survive_as_the_tensors_do(void **state)
{
    (void)state;
    DP_AUTO_FREE struct holdings *holdings = dp_new(struct holdings);
    struct dp_rand rand;
    dp_rand_init(&rand, 6);
    for (long run = 0; run < dp_fuzz_runs(300); run++) {
        size_t pick = dp_rand_below(&rand, sizeof(some_sizes) / sizeof(some_sizes[0]));
        DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = plan_of(&some_sizes[pick]);
        plan.shard = dp_rand_below(&rand, 4) == 0 ? DP_SHARD_ZERO1 : DP_SHARD_NONE;
        bool lost[64] = {false};
        for (int32_t r = 0; r < plan.pipeline * plan.data; r++) {
            lost[r] = dp_rand_below(&rand, 3) == 0;
        }
        list_holdings(&plan, holdings);
        assert_int_equal(survives(&plan, lost), all_left(holdings, lost));
    }
}

static void says(const struct sizes *sizes, dp_shard shard, const char *wanted)
{
    struct dp_error err = {0};
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = plan_of(sizes);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0}, screen = {0};
    struct dp_plan_survival survival;
    plan.shard = shard;
    assert_ok(dp_plan_survival_of(&plan, &survival, &err), &err);
    dp_plan_survival_text(&plan, &survival, &text);
    assert_string_equal(text.bytes, wanted);
    DP_AUTO_JSON json_t *json = dp_plan_to_json(&plan);
    const json_t *in_json = json_object_get(json, "survival");
    assert_string_equal(json_string_value(json_object_get(in_json, "text")), wanted);
    assert_int_equal(json_integer_value(json_object_get(in_json, "any_nodes")), survival.nodes);
    dp_plan_render(&plan, false, &screen);
    assert_non_null(strstr(screen.bytes, "\ntolerates  "));
}

static void a_plan_says_in_words_what_it_tolerates_and_why_no_more(void **state)
{
    (void)state;
    says(&(struct sizes){"1f1b", 2, 1, 1, 4, 4, 0, 1}, DP_SHARD_NONE,
         "tolerates no loss: rank 0 alone holds the weights of stage 0");
    says(&(struct sizes){"1f1b", 2, 2, 1, 4, 4, 0, 1}, DP_SHARD_NONE,
         "tolerates any one node: every tensor is on 2 nodes or more");
    says(&(struct sizes){"1f1b", 2, 2, 1, 4, 4, 0, 4}, DP_SHARD_NONE,
         "tolerates any one rank but no node: all 2 copies of the weights of stage 0 stand on node "
         "n0");
    says(&(struct sizes){"1f1b", 2, 3, 1, 4, 4, 0, 2}, DP_SHARD_NONE,
         "tolerates any 2 nodes: every tensor is on 3 nodes or more");
    says(&(struct sizes){"1f1b", 2, 4, 4, 4, 4, 0, 2}, DP_SHARD_NONE,
         "tolerates no loss: rank 0 alone holds the experts of stage 0");
    says(&(struct sizes){"dualpipe", 4, 2, 1, 8, 8, 0, 2}, DP_SHARD_ZERO1,
         "tolerates no loss: moments are shared out (zero1), each part on one rank");
}

// Shares of replicas.

static void
shares_are_legal_where_the_family_runs_them_and_expert_groups_do_not_couple(void **state)
{
    (void)state;
    struct dp_error err = {0};
    DP_CLEANUP(dp_plan_deinit)
    struct dp_plan plan = plan_of(&(struct sizes){"dualpipe", 4, 2, 1, 10, 8, 0, 4});
    assert_int_equal(dp_plan_coupled_replicas(&plan), 1);
    assert_refused(dp_plan_share_microbatches(&plan, (const int32_t[]){9, 11}, &err), DP_INVALID,
                   &err, "even");
    assert_null(plan.replicas);
    assert_ok(dp_plan_share_microbatches(&plan, (const int32_t[]){8, 12}, &err), &err);
    assert_int_equal(plan.microbatches, 12);
    assert_int_equal(dp_plan_first_microbatch(&plan, 1), 8);
    assert_int_equal(dp_plan_step_microbatches(&plan), 20);
    DP_CLEANUP(dp_schedule_deinit) struct dp_schedule first = {0}, second = {0};
    assert_ok(dp_plan_replica_schedule(&plan, 0, &first, &err), &err);
    assert_ok(dp_plan_replica_schedule(&plan, 1, &second, &err), &err);
    assert_int_equal(first.microbatches, 8);
    assert_int_equal(second.microbatches, 12);
    plan.replicas[0].schedule_hash++;
    dp_schedule_deinit(&first);
    assert_refused(dp_plan_replica_schedule(&plan, 0, &first, &err), DP_CONFLICT, &err,
                   "replica 0");
    assert_ok(dp_plan_share_microbatches(&plan, (const int32_t[]){10, 10}, &err), &err);
    assert_null(plan.replicas);
    assert_int_equal(plan.microbatches, 10);

    DP_CLEANUP(dp_plan_deinit)
    struct dp_plan coupled = plan_of(&(struct sizes){"1f1b", 2, 4, 2, 4, 4, 0, 4});
    assert_int_equal(dp_plan_coupled_replicas(&coupled), 2);
    assert_refused(dp_plan_share_microbatches(&coupled, (const int32_t[]){3, 5, 4, 4}, &err),
                   DP_INVALID, &err, "expert group");
    assert_ok(dp_plan_share_microbatches(&coupled, (const int32_t[]){3, 3, 5, 5}, &err), &err);
}

static void shares_and_orders_of_replicas_survive_the_file_form(void **state)
{
    (void)state;
    struct dp_error err = {0};
    DP_CLEANUP(dp_plan_deinit)
    struct dp_plan plan = plan_of(&(struct sizes){"1f1b", 2, 3, 1, 4, 4, 0, 2});
    DP_CLEANUP(dp_plan_deinit) struct dp_plan copy = {0}, back = {0};
    assert_ok(dp_plan_share_microbatches(&plan, (const int32_t[]){2, 5, 5}, &err), &err);
    DP_CLEANUP(dp_schedule_deinit) struct dp_schedule own = {0};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf document = {0};
    const struct dp_schedule_params params = {2, 2, 0};
    assert_ok(dp_schedule_generate("gpipe", &params, &own, &err), &err);
    dp_schedule_write_json(&own, &document);
    plan.replicas[0].schedule_json = dp_strdup(document.bytes);
    plan.replicas[0].schedule_hash = dp_schedule_hash(&own);
    dp_plan_copy(&copy, &plan);
    DP_AUTO_JSON json_t *json = dp_plan_to_json(&copy);
    assert_ok(dp_plan_from_json(json, &back, &err), &err);
    for (int32_t d = 0; d < 3; d++) {
        assert_int_equal(back.replicas[d].microbatches, plan.replicas[d].microbatches);
        DP_CLEANUP(dp_schedule_deinit) struct dp_schedule schedule = {0};
        assert_ok(dp_plan_replica_schedule(&back, d, &schedule, &err), &err);
        assert_true(dp_schedule_hash(&schedule) == plan.replicas[d].schedule_hash);
    }
    json_object_set_new(
        json_array_get(json_object_get(json_object_get(json, "chosen"), "replicas"), 1),
        "microbatches", json_integer(0));
    dp_plan_deinit(&back);
    assert_refused(dp_plan_from_json(json, &back, &err), DP_INVALID, &err, "\"replicas\"[1]");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            what_a_plan_tolerates_is_what_survives_when_ranks_and_nodes_are_taken_away),
        cmocka_unit_test(random_losses_survive_as_the_tensors_do),
        cmocka_unit_test(a_plan_says_in_words_what_it_tolerates_and_why_no_more),
        cmocka_unit_test(
            shares_are_legal_where_the_family_runs_them_and_expert_groups_do_not_couple),
        cmocka_unit_test(shares_and_orders_of_replicas_survive_the_file_form),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
