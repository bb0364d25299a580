// Random schedules and accidents: what arrives is right, in order and complete, or the error is a
// clean one that names the peer, and nobody waits beyond the deadline.
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/rand.h"
#include "dp/window.h"
#include "verbs_world.h"

#define WORLD_MAX 3
#define ROUNDS 40
#define PART_BYTES 6000
#define DEADLINE_S 120
#define WORST_DEADLINE_S 15 // of what is lost for good: nothing else tells

struct trial {
    uint64_t seed;
    int64_t deadline_s;
    int32_t world;
    struct dp_verbs_config config;
    struct fake_faults faults;
    struct dp_verbs_stats stats[WORLD_MAX];
};

static uint64_t key_of(const struct trial *trial, int32_t from, int32_t to, uint64_t round,
                       uint64_t what)
{
    uint64_t pair = (uint64_t)from * 16 + (uint64_t)to;
    return dp_rand_mix(trial->seed, pair * 1000003 + round * 31 + what);
}

static size_t length_of(uint64_t key)
{
    return key % 7 == 0 ? key % PART_BYTES : key % 80;
}

// A message and a put to a peer, each of a size of its own.
static dp_status give(struct dp_transport *transport, const struct trial *trial,
                      struct dp_window *window, int32_t peer, uint64_t round, struct dp_error *err)
{
    int32_t self = dp_transport_rank(transport);
    unsigned char bytes[PART_BYTES];
    uint64_t said = key_of(trial, self, peer, round, 1), put = key_of(trial, self, peer, round, 2);
    verbs_fill(bytes, length_of(said), said);
    dp_status status = dp_transport_send(transport, peer, round % 2, bytes, length_of(said), err);
    if (status == DP_OK) {
        verbs_fill(bytes, length_of(put), put);
        struct iovec part = {.iov_base = bytes, .iov_len = length_of(put)};
        status = dp_window_put(window, peer, (size_t)self * PART_BYTES, &part, 1, put, err);
    }
    return status;
}

static dp_status take(struct dp_transport *transport, const struct trial *trial,
                      struct dp_window *window, int32_t peer, uint64_t round, int64_t deadline_ns,
                      struct dp_error *err)
{
    int32_t self = dp_transport_rank(transport);
    unsigned char bytes[PART_BYTES];
    uint64_t said = key_of(trial, peer, self, round, 1), put = key_of(trial, peer, self, round, 2);
    uint64_t note;
    dp_status status =
        dp_transport_recv(transport, peer, round % 2, bytes, length_of(said), deadline_ns, err);
    if (status == DP_OK) {
        EXPECT(verbs_is_filled(bytes, length_of(said), said));
        status = dp_window_wait(window, peer, round, deadline_ns, &note, err);
    }
    if (status == DP_OK) {
        const unsigned char *memory = dp_window_memory(window);
        EXPECT(note == put && dp_window_landed(window, peer) == round);
        EXPECT(verbs_is_filled(memory + (size_t)peer * PART_BYTES, length_of(put), put));
    }
    return status;
}

static dp_status exchange(struct dp_transport *transport, struct trial *trial,
                          struct dp_window *window, struct dp_window *credits, int64_t deadline_ns,
                          struct dp_error *err)
{
    int32_t self = dp_transport_rank(transport);
    dp_status status = DP_OK;
    for (uint64_t round = 1; round <= ROUNDS && status == DP_OK; round++) {
        for (int32_t i = 1; i < trial->world && status == DP_OK; i++) {
            int32_t peer = (self + i) % trial->world;
            status = dp_window_wait(credits, peer, round - 1, deadline_ns, NULL, err);
            if (status == DP_OK) {
                status = give(transport, trial, window, peer, round, err);
            }
        }
        for (int32_t i = 1; i < trial->world && status == DP_OK; i++) {
            int32_t peer = (self + i) % trial->world;
            status = take(transport, trial, window, peer, round, deadline_ns, err);
            if (status == DP_OK && round < ROUNDS) {
                status = dp_window_put(credits, peer, 0, NULL, 0, round, err);
            }
        }
    }
    return status;
}

static dp_status rank_of_trial(struct dp_transport *transport, void *context, struct dp_error *err)
{
    struct trial *trial = context;
    int64_t deadline_ns = dp_clock_monotonic_ns() + trial->deadline_s * DP_NS_PER_S;
    size_t bytes = (size_t)trial->world * PART_BYTES;
    struct dp_window *window = NULL, *credits = NULL;
    dp_transport_set_blocked_ms(transport, trial->deadline_s * 1000);
    dp_status status = dp_window_open(transport, 0, bytes, deadline_ns, &window, err);
    if (status == DP_OK) {
        status = dp_window_open(transport, 1, 0, deadline_ns, &credits, err);
    }
    if (status == DP_OK) {
        status = exchange(transport, trial, window, credits, deadline_ns, err);
    }
    dp_verbs_stats(transport, &trial->stats[dp_transport_rank(transport)]);
    if (status != DP_OK) {
        dp_transport_abort(transport, status, err->message);
    }
    dp_window_close(credits);
    dp_window_close(window);
    return status;
}

static struct trial draw(uint64_t seed)
{
    struct dp_rand rand;
    dp_rand_init(&rand, seed);
    static const uint32_t depths[] = {4, 8, 64};
    static const size_t slots[] = {64, 1000, 16384};
    size_t slot = slots[dp_rand_below(&rand, 3)];
    struct trial trial = {.seed = seed,
                          .deadline_s = DEADLINE_S,
                          .world = 2 + (int32_t)dp_rand_below(&rand, WORLD_MAX - 1),
                          .config = {.depth = depths[dp_rand_below(&rand, 3)],
                                     .slot_bytes = slot,
                                     .staging_bytes = 4 * (slot + 64) + dp_rand_below(&rand, 20000),
                                     .backoff_ms = 1,
                                     .drain_ms = 200},
                          .faults = {.seed = seed,
                                     .delay_us_max = (int64_t)dp_rand_below(&rand, 300),
                                     .duplicate_one_in = (uint32_t)dp_rand_below(&rand, 20),
                                     .not_ready_one_in = (uint32_t)dp_rand_below(&rand, 40)}};
    return trial;
}

// A status that may end a run, with a reason that tells which rank and what.
static void check_failure(const struct trial *trial, int32_t rank, dp_status status,
                          const struct dp_error *err)
{
    bool is_clean = status == DP_UNAVAILABLE && strstr(err->message, "rank ") != NULL;
    if (!is_clean) {
        fail_msg("seed %llu rank %d: %s: %s", (unsigned long long)trial->seed, rank,
                 dp_status_name(status), err->message);
    }
}

static bool run(struct trial *trial, bool may_fail, struct fake_verbs_counts *ret_counts)
{
    struct fake_device devices[WORLD_MAX] = {0};
    struct dp_transport *ends[WORLD_MAX];
    dp_status statuses[WORLD_MAX];
    struct dp_error errors[WORLD_MAX];
    bool is_whole = true;
    for (int32_t i = 0; i < trial->world; i++) {
        devices[i].inline_max = dp_rand_mix(trial->seed, (uint64_t)i) % 3 == 0 ? 1 : 0;
    }
    alarm(4 * DEADLINE_S); // a hang ends the program
    verbs_world_open(trial->world, &trial->faults, devices, &trial->config, ends);
    cluster_run_on(ends, trial->world, rank_of_trial, trial, statuses, errors);
    alarm(0);
    fake_verbs_counts(ret_counts);
    for (int32_t i = 0; i < trial->world; i++) {
        is_whole = is_whole && statuses[i] == DP_OK;
        if (statuses[i] != DP_OK && !may_fail) {
            fail_msg("seed %llu rank %d: %s: %s", (unsigned long long)trial->seed, i,
                     dp_status_name(statuses[i]), errors[i].message);
        }
        if (statuses[i] != DP_OK) {
            check_failure(trial, i, statuses[i], &errors[i]);
        }
        assert_true(trial->stats[i].in_flight_peak <= trial->config.depth);
    }
    return is_whole;
}

// Everything that the specification allows: late and reordered writes, queue pairs served in any
// order, notes that come twice, receivers that are not ready.
static void whatever_is_allowed_changes_nothing(void **state)
{
    (void)state;
    long runs = dp_fuzz_runs(12);
    struct fake_verbs_counts sum = {0};
    for (long i = 0; i < runs; i++) {
        struct trial trial = draw(dp_rand_mix(1, (uint64_t)i));
        struct fake_verbs_counts counts;
        run(&trial, false, &counts);
        for (int32_t r = 0; r < trial.world; r++) {
            assert_int_equal(trial.stats[r].reconnects, 0);
        }
        sum.overtaken += counts.overtaken;
        sum.duplicated += counts.duplicated;
        sum.not_ready += counts.not_ready;
    }
    assert_true(sum.overtaken > 0 && sum.duplicated > 0 && sum.not_ready > 0);
}

// Queue pairs that fail a few times, at places apart: made anew, and nothing is lost or doubled.
static void failures_now_and_then_are_made_good(void **state)
{
    (void)state;
    long runs = dp_fuzz_runs(12);
    struct fake_verbs_counts sum = {0};
    uint64_t reconnects = 0, late = 0;
    for (long i = 0; i < runs; i++) {
        struct trial trial = draw(dp_rand_mix(2, (uint64_t)i));
        uint32_t often = 20 + (uint32_t)(trial.seed % 100);
        trial.config.attempts_max = 8;
        trial.faults.count_max = 6; // fewer than it takes to give up
        trial.faults.lose_one_in = often;
        trial.faults.flush_one_in = often;
        trial.faults.not_ready_for_good_one_in = often;
        trial.faults.stale_one_in = 2;
        struct fake_verbs_counts counts;
        run(&trial, false, &counts);
        for (int32_t r = 0; r < trial.world; r++) {
            reconnects += trial.stats[r].reconnects;
            late += trial.stats[r].late;
        }
        sum.lost += counts.lost;
        sum.flushed += counts.flushed;
        sum.stale += counts.stale;
    }
    assert_true(sum.lost > 0 && sum.flushed > 0 && sum.stale > 0);
    assert_true(reconnects > 0 && late > 0);
}

// Hardware against the rules, and failures without end.
static void the_worst_ends_in_a_clean_error_if_it_is_not_right(void **state)
{
    (void)state;
    long runs = dp_fuzz_runs(12);
    int whole = 0, failed = 0;
    uint64_t unkept = 0, swapped = 0;
    for (long i = 0; i < runs; i++) {
        struct trial trial = draw(dp_rand_mix(3, (uint64_t)i));
        trial.config.attempts_max = 2;
        trial.deadline_s = WORST_DEADLINE_S;
        trial.faults.delay_us_max = 300; // so that there is something to overtake
        trial.faults.unkept_one_in = i % 4 == 0 ? 50 : 0;
        trial.faults.swap_one_in = i % 2 != 0 ? 5 : 0;
        trial.faults.lose_one_in = i % 5 == 0 ? 3 : 60;
        trial.faults.count_max = i % 5 == 0 ? 0 : 4;
        struct fake_verbs_counts counts;
        bool is_whole = run(&trial, true, &counts);
        whole += is_whole;
        failed += !is_whole;
        unkept += counts.unkept;
        swapped += counts.swapped;
    }
    assert_true(whole > 0 && failed > 0 && unkept > 0 && swapped > 0);
}

// Rank 0 gives up right behind its last message and put, while its adapter still has them.
static dp_status gives_up(struct dp_transport *transport, void *context, struct dp_error *err)
{
    (void)context;
    struct dp_window *window;
    uint64_t word = 42, got_word = 0, note = 0;
    dp_status status = dp_window_open(transport, 0, sizeof word, 0, &window, err);
    if (status != DP_OK) {
        return status;
    }
    if (dp_transport_rank(transport) == 0) {
        struct iovec part = {.iov_base = &word, .iov_len = sizeof word};
        status = dp_window_put(window, 1, 0, &part, 1, 7, err);
        if (status == DP_OK) {
            status = dp_transport_send(transport, 1, 5, &word, sizeof word, err);
        }
        dp_window_close(window);
        return status != DP_OK ? status : dp_fail(err, DP_INTERRUPTED, "gives up");
    }
    struct dp_error lost = {0};
    dp_status waited = dp_window_wait(window, 0, 2, 0, NULL, &lost);
    status = dp_transport_recv(transport, 0, 5, &got_word, sizeof got_word, 0, err);
    if (status == DP_OK) {
        status = dp_window_wait(window, 0, 1, 0, &note, err);
    }
    uint64_t put_word = *(uint64_t *)dp_window_memory(window);
    dp_window_close(window);
    EXPECT_REFUSED(waited, DP_UNAVAILABLE, &lost, "1 have landed: it stopped");
    EXPECT(status != DP_OK || (got_word == word && put_word == word && note == 7));
    return status;
}

static void what_was_sent_before_an_abort_leaves_before_the_goodbye(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 10; i++) {
        struct fake_faults faults = {.seed = i, .delay_us_max = 20000};
        struct dp_verbs_config config = {.drain_ms = DEADLINE_S * 1000};
        struct dp_transport *ends[2];
        dp_status statuses[2];
        struct dp_error errors[2];
        verbs_world_open(2, &faults, NULL, &config, ends);
        cluster_run_on(ends, 2, gives_up, NULL, statuses, errors);
        assert_string_equal(errors[0].message, "gives up");
        assert_ok(statuses[1], &errors[1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_sent_before_an_abort_leaves_before_the_goodbye),
        cmocka_unit_test(whatever_is_allowed_changes_nothing),
        cmocka_unit_test(failures_now_and_then_are_made_good),
        cmocka_unit_test(the_worst_ends_in_a_clean_error_if_it_is_not_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
