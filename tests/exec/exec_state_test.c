// State moves from ranks that hold it to ranks of another layout, without a file, and the training
// goes on as if it had never stopped; whatever moment of a step a rank was lost in.
#include "dp_test.h"

#include <math.h>
#include <string.h>

#include "dp/check.h"
#include "dp/rand.h"
#include "exec_hold.h"

#define LAYERS TRIAL_LAYERS
#define HELD 3
#define STEPS 6
#define SAME_CURVE 1e-4

struct layout {
    const char *schedule;
    int32_t pipeline, expert, data;
    dp_shard shard;
    bool alltoall;
};

static const struct layout layouts[] = {
    {"gpipe", 1, 1, 1, DP_SHARD_NONE, false},       {"dualpipev", 2, 1, 2, DP_SHARD_ZERO1, false},
    {"1f1b", 4, 1, 1, DP_SHARD_NONE, false},        {"1f1b", 2, 2, 4, DP_SHARD_ZERO1, true},
    {"dualpipe", 2, 2, 2, DP_SHARD_NONE, false},    {"gpipe", 1, 4, 4, DP_SHARD_ZERO1, true},
    {"interleaved", 2, 1, 2, DP_SHARD_NONE, false},
};

static void take_layout(struct trial *trial, const struct layout *layout)
{
    trial->schedule = layout->schedule;
    trial->pipeline = layout->pipeline;
    trial->expert = layout->expert;
    trial->data = layout->data;
    trial->shard = layout->shard;
    trial->alltoall = layout->alltoall;
    trial->microbatches = 16 / trial->data;
}

static struct trial trial_of(const struct dp_model_spec *model, const struct layout *layout,
                             dp_element element)
{
    struct trial trial = trial_default();
    trial.model = model;
    trial.layers = LAYERS;
    trial.element = element;
    trial.steps = STEPS;
    trial.clip = 0.05; // every step: whoever settles needs the norm
    take_layout(&trial, layout);
    return trial;
}

// Runs it from what the sources hold; the losses of the steps it ran.
static void go_on(struct trial trial, const struct dp_state_address *sources, int32_t count,
                  int64_t step, struct trial_result *ret_result)
{
    struct takers takers = {.sources = sources, .count = count, .step = step};
    takers_set(&takers, &trial);
    trial_run(&trial, ret_result);
}

static void expect_curve(const struct trial_result *got, const struct trial_result *whole,
                         int64_t after, double tolerance, const char *what)
{
    trial_expect_ok(got);
    assert_int_equal(got->ranks[0].step_first, after + 1);
    for (int64_t step = after + 1; step <= STEPS; step++) {
        const double wanted = whole->ranks[0].reports[step].loss;
        const double loss = got->ranks[0].reports[step].loss;
        if (!(fabs(loss - wanted) <= tolerance * wanted)) {
            fail_msg("%s, step %lld: a loss of %.9f, not %.9f", what, (long long)step, loss,
                     wanted);
        }
    }
}

// All ranks hold after a step; another layout goes on.
static void move(struct trial before, struct trial after, const struct trial_result *whole,
                 double tolerance, const char *what)
{
    struct holders holders;
    struct dp_state_address sources[TRIAL_RANKS_MAX];
    struct trial_result result;
    before.stop_after = HELD;
    holders_begin(&holders, &before, -1);
    assert_int_equal(holders_settle(&holders), HELD);
    const int32_t count = holders_sources(&holders, sources);
    go_on(after, sources, count, HELD, &result);
    expect_curve(&result, whole, HELD, tolerance, what);
    trial_result_deinit(&result);
    holders_end(&holders);
}

static void expect_same_weights(const struct trial_result *got, const struct trial_result *wanted)
{
    for (int32_t r = 0; r < got->world; r++) {
        const struct trial_rank *a = &got->ranks[r], *b = &wanted->ranks[r];
        assert_int_equal(a->weights_count, b->weights_count);
        for (size_t t = 0; t < a->weights_count; t++) {
            assert_string_equal(a->weights[t].name, b->weights[t].name);
            assert_memory_equal(a->weights[t].values, b->weights[t].values,
                                (size_t)a->weights[t].count * sizeof(double));
        }
    }
}

static void follow_curve(const struct dp_model_spec *model, dp_element element, bool bf16_moments)
{
    struct trial one = trial_of(model, &layouts[0], element);
    struct trial_result whole;
    one.bf16_moments = bf16_moments;
    trial_run(&one, &whole);
    trial_expect_ok(&whole);
    const size_t count = TRIAL_UNDER_TSAN ? 2 : DP_ARRAY_LENGTH(layouts);
    for (size_t from = 0; from < count; from++) {
        struct trial before = trial_of(model, &layouts[from], element);
        struct trial after = trial_of(model, &layouts[(from + 1) % count], element);
        char what[64];
        before.bf16_moments = after.bf16_moments = bf16_moments;
        snprintf(what, sizeof what, "%s from layout %zu", model->name, from);
        move(before, after, &whole, SAME_CURVE, what);
    }
    trial_result_deinit(&whole);
}

static void any_layout_goes_on_with_what_another_holds(void **state)
{
    (void)state;
    follow_curve(&trial_latent, DP_F32, false);
    follow_curve(&trial_tied, DP_F32, false);
}

static void so_it_does_in_bf16_and_with_moments_in_bf16(void **state)
{
    (void)state;
    if (TRIAL_UNDER_TSAN) {
        skip();
    }
    follow_curve(&trial_latent, DP_BF16, false);
    follow_curve(&trial_tied, DP_BF16, true);
}

// Of a model whose stages do not all have as many layers.
static void the_same_layout_goes_on_with_the_same_bits(void **state)
{
    (void)state;
    static const size_t same[] = {1, 2, 4, 6};
    for (size_t i = 0; i < (TRIAL_UNDER_TSAN ? 1 : DP_ARRAY_LENGTH(same)); i++) {
        struct trial trial =
            trial_of(i % 2 == 0 ? &trial_latent : &trial_tied, &layouts[same[i]], DP_F32);
        struct trial_result whole, result;
        struct holders holders;
        struct dp_state_address sources[TRIAL_RANKS_MAX];
        trial_run(&trial, &whole);
        trial_expect_ok(&whole);
        struct trial before = trial;
        before.stop_after = HELD;
        holders_begin(&holders, &before, -1);
        const int32_t count = holders_sources(&holders, sources);
        go_on(trial, sources, count, HELD, &result);
        expect_curve(&result, &whole, HELD, 0, "the same layout");
        expect_same_weights(&result, &whole);
        trial_result_deinit(&result);
        trial_result_deinit(&whole);
        holders_end(&holders);
    }
}

// What the living ranks of a broken step hold, once they have settled.
struct broken {
    struct holders holders;
    struct dp_state_address sources[TRIAL_RANKS_MAX];
    int32_t count, settled;
    bool has_broken; // otherwise the run had ended before
    int64_t step;
};

// The victim's link to a peer is cut after so many messages; then, if it dies, it is not heard of
// again.
static void break_run(struct trial trial, int32_t victim, bool is_dead, int32_t peer, int64_t after,
                      int32_t delay_us, struct broken *ret_broken)
{
    const struct dp_transport_fault fault = {
        .seed = (uint64_t)after, .delay_us_max = delay_us, .cut_after = after, .cut_peer = peer};
    trial.stop_after = HELD + 1;
    trial.fault = &fault;
    trial.fault_rank = victim;
    struct broken *broken = ret_broken;
    holders_begin(&broken->holders, &trial, is_dead ? victim : -1);
    broken->has_broken = broken->holders.ranks[victim].status != DP_OK;
    broken->step = holders_settle(&broken->holders);
    broken->settled = 0;
    const int32_t world = trial.pipeline * trial.data;
    for (int32_t i = 0; i < world && broken->has_broken; i++) {
        const struct held_rank *rank = &broken->holders.ranks[i];
        if (i == victim && is_dead) {
            continue;
        }
        const bool is_through = rank->status == DP_OK && rank->held.step == trial.stop_after;
        if (!is_through && rank->status != DP_UNAVAILABLE && rank->status != DP_TIMEOUT) {
            fail_msg("rank %d: %s", i, rank->err.message);
        }
        if (rank->held.step != broken->step) {
            fail_msg("rank %d holds step %lld, others %lld: %s", i, (long long)rank->held.step,
                     (long long)broken->step, rank->refusal.message);
        }
        broken->settled += rank->is_settled;
    }
    broken->count = holders_sources(&broken->holders, broken->sources);
}

// Messages that the victim has sent to the peer by the end of the run.
static int64_t messages_of(const struct trial *trial, int32_t victim, int32_t peer)
{
    int64_t low = 0, high = 256;
    while (high - low > 1) { // the run breaks after `low`, not after `high`
        const int64_t middle = low + (high - low) / 2;
        struct broken broken;
        break_run(*trial, victim, true, peer, middle, 0, &broken);
        *(broken.has_broken ? &low : &high) = middle;
        holders_end(&broken.holders);
    }
    return low;
}

static void break_at(const struct trial *trial, const struct trial *after,
                     const struct trial_result *whole, bool is_dead, int32_t peer, int64_t messages,
                     int32_t delay_us, int32_t *settled)
{
    struct broken broken;
    struct trial_result result;
    char what[64];
    break_run(*trial, 0, is_dead, peer, messages, delay_us, &broken);
    assert_true(broken.has_broken);
    snprintf(what, sizeof what, "rank 0 lost %lld messages after the start to rank %d",
             (long long)messages, peer);
    if (broken.step > 0) {
        go_on(*after, broken.sources, broken.count, broken.step, &result);
        const bool is_same = after == trial;
        expect_curve(&result, whole, broken.step, is_same ? 0 : SAME_CURVE, what);
        if (is_same) {
            expect_same_weights(&result, whole);
        }
        trial_result_deinit(&result);
    }
    *settled += broken.settled;
    holders_end(&broken.holders);
}

// A rank that is slow to send is the last whose norm comes, so those that have had it before its
// link is cut are a step ahead of one that has not; where that is among its messages depends on the
// moment.
static void break_until_some_settle(const struct trial *trial, const struct trial_result *whole,
                                    bool is_dead)
{
    const int32_t last = trial->pipeline * trial->data - 1;
    const int64_t most = messages_of(trial, 0, last);
    int32_t settled = 0;
    for (int64_t i = 0; i < 60 && settled == 0; i++) {
        break_at(trial, trial, whole, is_dead, last, most - i % 6, 3000, &settled);
    }
    assert_true(settled > 0);
}

// Every stage lies on other ranks as well: the one that is lost takes nothing along. The others
// hold the step before or the one at hand, all of them the same once they have settled.
static void whenever_a_rank_is_lost_the_others_hold_a_whole_step(void **state)
{
    (void)state;
    const struct layout spare = {"dualpipe", 2, 1, 2, DP_SHARD_NONE, false};
    const struct layout fewer = {"1f1b", 2, 1, 1, DP_SHARD_NONE, false};
    const struct trial trial = trial_of(&trial_latent, &spare, DP_F32);
    const struct trial smaller = trial_of(&trial_latent, &fewer, DP_F32);
    struct trial_result whole;
    trial_run(&trial, &whole);
    trial_expect_ok(&whole);
    int32_t settled = 0;
    struct dp_rand rand;
    dp_rand_init(&rand, 6);
    const long runs = dp_fuzz_runs(TRIAL_UNDER_TSAN ? 1 : 4);
    for (int32_t peer = TRIAL_UNDER_TSAN ? 3 : 1; peer < 4; peer++) {
        const int64_t most = messages_of(&trial, 0, peer);
        for (long i = 0; i < runs; i++) {
            // The end of a step is where ranks may come to differ.
            const int64_t back = i % 2 == 0 ? i / 2 : (int64_t)dp_rand_below(&rand, (uint64_t)most);
            break_at(&trial, i % 2 == 0 ? &trial : &smaller, &whole, true, peer, most - back, 0,
                     &settled);
        }
    }
    break_until_some_settle(&trial, &whole, true);
    trial_result_deinit(&whole);
}

// Moments in shards have no copy, but as long as every rank is there each has its part, and of the
// weights, too: a link that is lost loses nothing.
static void whenever_a_link_is_lost_shards_come_together_again(void **state)
{
    (void)state;
    if (TRIAL_UNDER_TSAN) {
        skip();
    }
    const struct layout layout = {"1f1b", 2, 1, 2, DP_SHARD_ZERO1, false};
    const struct layout other = {"dualpipev", 2, 1, 2, DP_SHARD_NONE, false};
    const struct trial trial = trial_of(&trial_tied, &layout, DP_F32);
    const struct trial after = trial_of(&trial_tied, &other, DP_F32);
    struct trial_result whole;
    trial_run(&trial, &whole);
    trial_expect_ok(&whole);
    int32_t settled = 0;
    const int64_t most = messages_of(&trial, 0, 2);
    for (int64_t back = 0; back < dp_fuzz_runs(6); back++) {
        const struct trial *next = back % 4 == 3 ? &after : &trial;
        break_at(&trial, next, &whole, false, 2, most - back, 0, &settled);
    }
    break_until_some_settle(&trial, &whole, false);
    trial_result_deinit(&whole);
}

static void what_no_rank_has_any_more_is_named_all_at_once(void **state)
{
    (void)state;
    const struct layout two = {"1f1b", 2, 1, 1, DP_SHARD_NONE, false};
    struct trial before = trial_of(&trial_tied, &two, DP_F32);
    before.stop_after = HELD;
    struct holders holders;
    struct dp_state_address sources[TRIAL_RANKS_MAX];
    holders_begin(&holders, &before, 1);
    assert_int_equal(holders_sources(&holders, sources), 1);
    struct trial_result result;
    go_on(trial_of(&trial_tied, &layouts[0], DP_F32), sources, 1, HELD, &result);
    const struct trial_rank *rank = &result.ranks[0];
    assert_int_equal(rank->status, DP_UNAVAILABLE);
    assert_non_null(strstr(rank->err.message, "lacks model.layers.2."));
    assert_non_null(strstr(rank->err.message, " more"));
    trial_result_deinit(&result);
    // Nor can shards of moments be had from half of those that kept them.
    holders_end(&holders);
    const struct layout shards = {"gpipe", 1, 1, 2, DP_SHARD_ZERO1, false};
    before = trial_of(&trial_tied, &shards, DP_F32);
    before.stop_after = HELD;
    holders_begin(&holders, &before, 1);
    assert_int_equal(holders_sources(&holders, sources), 1);
    go_on(trial_of(&trial_tied, &layouts[0], DP_F32), sources, 1, HELD, &result);
    assert_int_equal(result.ranks[0].status, DP_UNAVAILABLE);
    assert_non_null(strstr(result.ranks[0].err.message, "lacks moments of model."));
    trial_result_deinit(&result);
    holders_end(&holders);
}

static void other_steps_and_tokens_are_no_sources(void **state)
{
    (void)state;
    struct trial before = trial_of(&trial_tied, &layouts[0], DP_F32);
    struct holders holders;
    struct dp_state_address sources[TRIAL_RANKS_MAX];
    before.stop_after = HELD;
    holders_begin(&holders, &before, -1);
    const int32_t count = holders_sources(&holders, sources);
    for (int i = 0; i < 2; i++) {
        struct trial after = trial_of(&trial_tied, &layouts[0], DP_F32);
        struct takers takers = {.sources = sources,
                                .count = count,
                                .step = i == 0 ? HELD + 1 : HELD,
                                .token = i == 0 ? HOLD_TOKEN : HOLD_TOKEN + 1};
        struct trial_result result;
        takers_set(&takers, &after);
        trial_run(&after, &result);
        assert_int_equal(result.ranks[0].status, DP_UNAVAILABLE);
        // Who is hung up on with words unread sees a reset rather than an end.
        const char *message = result.ranks[0].err.message;
        assert_true(i == 0 ? strstr(message, "holds step 3 instead of 4") != NULL
                           : strstr(message, "has closed") != NULL ||
                                 strstr(message, "has gone") != NULL);
        trial_result_deinit(&result);
    }
    holders_end(&holders);
}

// Replicas with different shares of the step's micro-batches train the same model, and state moves
// to such shares and back.
static void unequal_shares_of_a_step_change_no_loss(void **state)
{
    (void)state;
    static const int32_t shares[][4] = {{11, 5}, {4, 12}, {1, 6, 3, 6}};
    static const struct layout over[] = {{"1f1b", 2, 1, 2, DP_SHARD_NONE, false},
                                         {"dualpipev", 2, 1, 2, DP_SHARD_ZERO1, false},
                                         {"gpipe", 1, 1, 4, DP_SHARD_NONE, false}};
    struct trial one = trial_of(&trial_latent, &layouts[0], DP_F32);
    struct trial_result whole;
    one.evaluate = true;
    trial_run(&one, &whole);
    trial_expect_ok(&whole);
    for (size_t i = 0; i < (TRIAL_UNDER_TSAN ? 1 : DP_ARRAY_LENGTH(over)); i++) {
        struct trial trial = trial_of(&trial_latent, &over[i], DP_F32);
        struct trial_result result;
        trial.replica_microbatches = shares[i];
        trial.evaluate = true;
        trial_run(&trial, &result);
        expect_curve(&result, &whole, 0, SAME_CURVE, "unequal shares");
        assert_int_equal(result.ranks[0].evaluated_tokens, whole.ranks[0].evaluated_tokens);
        assert_true(fabs(result.ranks[0].evaluated_loss - whole.ranks[0].evaluated_loss) <=
                    SAME_CURVE * whole.ranks[0].evaluated_loss);
        const struct trial_rank *last = &result.ranks[trial.pipeline * (trial.data - 1)];
        assert_int_equal(last->sample_end, 16 * STEPS);
        assert_int_equal(last->sample_first, 16 - shares[i][trial.data - 1]);
        trial_result_deinit(&result);
    }
    struct trial before = trial_of(&trial_latent, &over[0], DP_F32), after = before;
    after.replica_microbatches = shares[0];
    move(before, after, &whole, SAME_CURVE, "from equal shares");
    move(after, before, &whole, SAME_CURVE, "from unequal shares");
    trial_result_deinit(&whole);
}

// Experts that lie elsewhere than at the start, with copies, keep their names; and a rank that is
// lost while they move leaves every other one with what it had or what it got.
static void experts_that_have_moved_are_found(void **state)
{
    (void)state;
    const struct layout peers = {"dualpipe", 2, 2, 2, DP_SHARD_NONE, true};
    struct trial before = trial_of(&trial_latent, &peers, DP_F32);
    before.expert_copies = 1;
    before.tilt = 0.5; // the first expert of each layer is chosen more
    struct trial_result whole;
    trial_run(&before, &whole); // experts stay
    trial_expect_ok(&whole);
    before.rebalance_every = 1;
    struct trial_result moving;
    trial_run(&before, &moving);
    expect_curve(&moving, &whole, 0, SAME_CURVE, "experts move");
    int64_t moved = 0;
    for (int64_t step = 1; step <= HELD; step++) {
        moved += moving.ranks[0].reports[step].rebalance.moved;
    }
    assert_true(moved > 0);
    trial_result_deinit(&moving);
    struct trial after = trial_of(&trial_latent, &layouts[3], DP_F32);
    move(before, after, &whole, SAME_CURVE, "with experts that have moved");
    if (!TRIAL_UNDER_TSAN) {
        int32_t settled = 0;
        const int64_t most = messages_of(&before, 0, 2);
        for (int64_t back = 0; back < dp_fuzz_runs(6); back++) {
            break_at(&before, &after, &whole, false, 2, most - back, 0, &settled);
        }
    }
    trial_result_deinit(&whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_layout_goes_on_with_what_another_holds),
        cmocka_unit_test(so_it_does_in_bf16_and_with_moments_in_bf16),
        cmocka_unit_test(whenever_a_link_is_lost_shards_come_together_again),
        cmocka_unit_test(what_no_rank_has_any_more_is_named_all_at_once),
        cmocka_unit_test(other_steps_and_tokens_are_no_sources),
        cmocka_unit_test(experts_that_have_moved_are_found),
        cmocka_unit_test(unequal_shares_of_a_step_change_no_loss),
        cmocka_unit_test(whenever_a_rank_is_lost_the_others_hold_a_whole_step),
        cmocka_unit_test(the_same_layout_goes_on_with_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
