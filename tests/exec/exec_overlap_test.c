// Overlapped and sequential execution are the same bit for bit, whatever the model, the schedule,
// the layout, the links and who moves the rows; and all peers take part in the same moves.
#include "dp/check.h"
#include "dp/rand.h"
#include "dp_test.h"
#include "exec_harness.h"

static const char *const families[] = {"dualpipe", "dualpipev", "1f1b",  "gpipe",
                                       "zb-h1",    "zb-v",      "hanayo"};
// All of DP_RECOMPUTE_*, whole layers too.
#define RECOMPUTE_BITS 6

struct sample {
    struct trial trial;
    struct dp_model_spec model;
    struct made made;
    struct slow_link slow;
};

static void draw_schedule(struct dp_rand *rand, struct sample *sample)
{
    struct trial *trial = &sample->trial;
    if (dp_rand_below(rand, 3) > 0) {
        trial->schedule = families[dp_rand_below(rand, DP_ARRAY_LENGTH(families))];
        return;
    }
    sample->made = (struct made){.placement = (made_placement)dp_rand_below(rand, 4),
                                 .chunks = 1 + (int32_t)dp_rand_below(rand, 2),
                                 .splits = (int32_t)dp_rand_below(rand, 101),
                                 .pairs = (int32_t)dp_rand_below(rand, 101),
                                 .live = 6,
                                 .seed = dp_rand_u64(rand)};
    trial->schedule = "made";
    trial->made = &sample->made;
}

static void draw_model(struct dp_rand *rand, struct sample *sample)
{
    struct trial *trial = &sample->trial;
    trial->threads = 1 + (int32_t)dp_rand_below(rand, 2);
    trial->fp8 = trial->element == DP_BF16 && dp_rand_below(rand, 2) == 0;
    trial->save_fp8 = trial->fp8 && dp_rand_below(rand, 2) == 0;
    if (dp_rand_below(rand, 3) == 0) {
        sample->model = trial_latent_groups();
        sample->model.layers = trial->layers;
        sample->model.mtp_layers = (int32_t)dp_rand_below(rand, 2);
        trial->model = &sample->model;
    }
}

static void draw(uint64_t seed, struct sample *ret_sample)
{
    struct dp_rand rand;
    dp_rand_init(&rand, seed);
    *ret_sample = (struct sample){.trial = trial_default()};
    struct trial *trial = &ret_sample->trial;
    draw_schedule(&rand, ret_sample);
    trial->pipeline = dp_rand_below(&rand, 2) == 0 ? 2 : 4;
    trial->expert = dp_rand_below(&rand, 4) == 0 ? 1 : 2;
    trial->data = trial->expert;
    trial->microbatches = 2 * trial->pipeline;
    trial->layers = 8 + (int32_t)dp_rand_below(&rand, 3);
    trial->element = dp_rand_below(&rand, 4) == 0 ? DP_BF16 : DP_F32;
    trial->steps = 2;
    trial->alltoall = dp_rand_below(&rand, 2) == 0;
    trial->nodes = 1 + (int32_t)dp_rand_below(&rand, 2);
    trial->recompute = (uint32_t)dp_rand_below(&rand, 2) == 0
                           ? 0
                           : (uint32_t)dp_rand_below(&rand, 1 << RECOMPUTE_BITS);
    ret_sample->slow = (struct slow_link){.seed = seed,
                                          .delay_us_max = 500,
                                          .bytes_per_second = 50e6,
                                          .stall_one_in = 200,
                                          .stall_us = 3000};
    trial->slow = dp_rand_below(&rand, 2) == 0 ? &ret_sample->slow : NULL;
    draw_model(&rand, ret_sample);
}

static void expect_same_tensors(const struct trial_tensor *a, const struct trial_tensor *b,
                                size_t count, uint64_t seed, const char *what)
{
    for (size_t i = 0; i < count; i++) {
        assert_string_equal(a[i].name, b[i].name);
        if (memcmp(a[i].values, b[i].values, (size_t)a[i].count * sizeof(double)) != 0) {
            fail_msg("seed %llu: the %s of %s differs", (unsigned long long)seed, what, a[i].name);
        }
    }
}

static void expect_same(const struct trial_result *a, const struct trial_result *b, int64_t steps,
                        uint64_t seed)
{
    for (int32_t rank = 0; rank < a->world; rank++) {
        const struct trial_rank *left = &a->ranks[rank], *right = &b->ranks[rank];
        for (int64_t step = 1; step <= steps; step++) {
            assert_memory_equal(&left->reports[step].loss, &right->reports[step].loss,
                                sizeof(double));
            assert_memory_equal(&left->reports[step].grad_norm, &right->reports[step].grad_norm,
                                sizeof(double));
            for (int kind = 0; kind < DP_EXEC_COMM_KIND_COUNT; kind++) {
                assert_int_equal(left->reports[step].comm[kind].count,
                                 right->reports[step].comm[kind].count);
            }
        }
        assert_int_equal(left->gradients_count, right->gradients_count);
        expect_same_tensors(left->gradients, right->gradients, left->gradients_count, seed,
                            "gradient");
        expect_same_tensors(left->weights, right->weights, left->weights_count, seed, "weight");
    }
}

// Ranks of one pipeline position begin as many moves of each kind, and time is accounted for.
static void expect_equal_moves(const struct trial *trial, const struct trial_result *result)
{
    for (int32_t rank = 0; rank < result->world; rank++) {
        const struct dp_exec_comm *mine = result->ranks[rank].reports[1].comm;
        const struct dp_exec_comm *first = result->ranks[rank % trial->pipeline].reports[1].comm;
        for (int kind = 0; kind < DP_EXEC_COMM_KIND_COUNT; kind++) {
            assert_int_equal(mine[kind].count, first[kind].count);
            assert_true(mine[kind].exposed_ns >= 0 && mine[kind].total_ns >= mine[kind].exposed_ns);
        }
        int64_t moves = mine[DP_EXEC_COMM_DISPATCH_F].count;
        assert_int_equal(moves > 0, trial->expert > 1);
        assert_int_equal(mine[DP_EXEC_COMM_COMBINE_F].count, moves);
        // Rows of layers that are computed again travel once more, beside the gradients.
        assert_true(mine[DP_EXEC_COMM_COMBINE_B].count >= moves);
        assert_int_equal(mine[DP_EXEC_COMM_DISPATCH_B].count, moves);
    }
}

static void overlapped_is_sequential_bit_for_bit(void **state)
{
    (void)state;
    long runs = dp_fuzz_runs(TRIAL_UNDER_TSAN ? 2 : 12);
    for (long run = 0; run < runs; run++) {
        uint64_t seed = (uint64_t)run + 1;
        struct sample sample;
        draw(seed, &sample);
        struct trial_result overlapped, sequential;
        trial_run(&sample.trial, &overlapped);
        trial_expect_ok(&overlapped);
        expect_equal_moves(&sample.trial, &overlapped);
        struct trial plain = sample.trial;
        plain.no_overlap = true;
        plain.alltoall = sample.trial.alltoall && sample.trial.fp8; // codes on the wire
        plain.slow = NULL;
        trial_run(&plain, &sequential);
        trial_expect_ok(&sequential);
        expect_same(&overlapped, &sequential, sample.trial.steps, seed);
        trial_result_deinit(&overlapped);
        trial_result_deinit(&sequential);
    }
}

// Of two peers one at least waits for as long as the link takes, and without overlap it has nothing
// else to do.
static void a_move_takes_at_least_what_its_link_takes(void **state)
{
    (void)state;
    struct slow_link slow = {.latency_us = 2000};
    struct trial trial = trial_default();
    trial.schedule = "dualpipev";
    trial.pipeline = 2;
    trial.expert = trial.data = 2;
    trial.microbatches = 4;
    trial.steps = 1;
    trial.slow = &slow;
    trial.no_overlap = true;
    struct trial_result result;
    trial_run(&trial, &result);
    trial_expect_ok(&result);
    for (int32_t rank = 0; rank < trial.pipeline; rank++) {
        const struct dp_exec_comm *a = result.ranks[rank].reports[1].comm;
        const struct dp_exec_comm *b = result.ranks[rank + trial.pipeline].reports[1].comm;
        for (int kind = 0; kind <= DP_EXEC_COMM_DISPATCH_B; kind++) {
            assert_true(a[kind].count > 0);
            assert_true(a[kind].exposed_ns + b[kind].exposed_ns >= a[kind].count * 1900000);
        }
    }
    trial_result_deinit(&result);
}

// A wait is filled with what belongs to later actions. What an action took itself does not contain
// it; with what ran early, the actions' own times make up all that a step computed.
static void an_actions_own_time_has_no_part_of_others(void **state)
{
    (void)state;
    struct slow_link slow = {.latency_us = 2000};
    struct trial trial = trial_default();
    trial.schedule = "dualpipev";
    trial.pipeline = 2;
    trial.expert = trial.data = 2;
    trial.microbatches = 4;
    trial.steps = 2;
    trial.slow = &slow;
    trial.alltoall = true;
    struct trial_result result;
    trial_run(&trial, &result);
    trial_expect_ok(&result);
    int64_t filled_ns = 0;
    for (int32_t rank = 0; rank < result.world; rank++) {
        const struct trial_rank *from = &result.ranks[rank];
        for (int64_t step = 1; step <= trial.steps; step++) {
            int64_t own_ns = 0;
            for (size_t i = 0; i < from->records_count; i++) {
                const struct dp_exec_record *record = &from->records[i];
                const struct dp_action_span *span = &record->span;
                if (span->step != step || span->kind >= DP_ACTION_KIND_COUNT) {
                    continue;
                }
                assert_true(span->own_ns > 0);
                assert_true(span->own_ns + record->filled_ns + record->exchange_ns <=
                            span->end_ns - span->start_ns + record->early_ns);
                filled_ns += record->filled_ns;
                own_ns += span->own_ns;
            }
            assert_int_equal(own_ns, from->reports[step].busy_ns);
        }
    }
    assert_true(filled_ns > 0);
    trial_result_deinit(&result);
}

// A rank that begins its moves in another order than its peers is found out instead of hanging, or
// of taking rows for others: deepseek-ai/DeepEP #496, #414.
static void a_swapped_order_of_moves_is_told(void **state)
{
    (void)state;
    for (int engine = 0; engine < 2; engine++) {
        struct trial trial = trial_default();
        trial.schedule = "dualpipev";
        trial.expert = trial.data = 2;
        trial.microbatches = 4;
        trial.steps = 1;
        trial.alltoall = engine == 1;
        trial.sequential_rank = 1;
        struct trial_result result;
        trial_run(&trial, &result);
        const struct trial_rank *ranks = result.ranks;
        bool told = false;
        for (int32_t rank = 0; rank < 2; rank++) {
            assert_int_not_equal(ranks[rank].status, DP_OK);
            assert_true(ranks[rank].failure.action[0] == 'F');
            told = told || ranks[rank].status == DP_INTERNAL;
        }
        assert_true(told);
        trial_result_deinit(&result);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(overlapped_is_sequential_bit_for_bit),
        cmocka_unit_test(a_move_takes_at_least_what_its_link_takes),
        cmocka_unit_test(an_actions_own_time_has_no_part_of_others),
        cmocka_unit_test(a_swapped_order_of_moves_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
