// The emulator itself: what runs right under every schedule, and what is wrong and is found.
extern "C" {
#include "dp_test.h"
}

#include "emulate.h"
#include "probes.h"

static struct dp_stream stream;

static uint32_t *words(size_t count, uint32_t value)
{
    uint32_t *memory = (uint32_t *)emulate_alloc(count * sizeof(uint32_t));
    for (size_t i = 0; i < count; i++) {
        memory[i] = value;
    }
    return memory;
}

static void configure(uint64_t seed, bool weak_stores)
{
    emulate_options options = {};
    options.seed = seed;
    options.weak_stores = weak_stores;
    emulate_configure(options);
}

static void run(const probe &p, unsigned blocks, unsigned threads, unsigned shared_bytes = 0)
{
    probe_launch(&stream, &p, blocks, threads, shared_bytes);
}

static void assert_fine(void)
{
    if (stream.err.status != DP_OK) {
        fail_msg("%s", stream.err.message);
    }
}

static void assert_found(const char *part)
{
    assert_refused(stream.err.status, DP_INTERNAL, &stream.err, part);
    stream.err.status = DP_OK;
}

static void counts_and_barriers_hold_under_every_schedule(void **)
{
    const unsigned blocks = 3, threads = 64;
    uint32_t *count = words(1, 0), *in = words(blocks * threads, 0),
             *out = words(blocks * threads, 0);
    for (uint32_t i = 0; i < blocks * threads; i++) {
        in[i] = 7 * i;
    }
    for (uint64_t seed = 0; seed < 40; seed++) {
        configure(seed, seed % 2 == 1);
        *count = 0;
        run({PROBE_COUNT_ATOMIC, count, nullptr, nullptr, 1}, blocks, threads);
        run({PROBE_REVERSE, out, nullptr, in, 0}, blocks, threads);
        assert_fine();
        assert_int_equal(*count, blocks * threads);
        for (unsigned i = 0; i < blocks * threads; i++) {
            assert_int_equal(out[i], in[i / threads * threads + threads - 1 - i % threads]);
        }
    }
    emulate_free(count);
    emulate_free(in);
    emulate_free(out);
}

// How many of 40 schedules give something else than the right answer.
static int schedules_that_find(enum probe_kind kind, bool weak_stores)
{
    const unsigned threads = 64;
    uint32_t *in = words(threads, 0), *out = words(threads, 0);
    int found = 0;
    for (uint32_t i = 0; i < threads; i++) {
        in[i] = i + 1;
    }
    for (uint64_t seed = 1; seed <= 40; seed++) {
        configure(seed, weak_stores);
        memset(out, 0, threads * sizeof(uint32_t));
        run({kind, out, nullptr, in, threads}, 1, threads);
        assert_fine();
        bool right = true;
        for (uint32_t i = 0; i < threads; i++) {
            right = right && (kind == PROBE_COUNT_PLAIN ? *out == threads : out[i] == threads - i);
        }
        found += right ? 0 : 1;
    }
    emulate_free(in);
    emulate_free(out);
    return found;
}

static void a_race_is_found_by_the_schedules(void **)
{
    assert_in_range(schedules_that_find(PROBE_COUNT_PLAIN, false), 10, 40);
    assert_in_range(schedules_that_find(PROBE_REVERSE_RACING, false), 20, 40);
    assert_in_range(schedules_that_find(PROBE_REVERSE_RACING, true), 20, 40);
    assert_int_equal(schedules_that_find(PROBE_REVERSE, true), 0);
}

static void the_same_seed_gives_the_same_order(void **)
{
    enum { THREADS = 96 };
    uint32_t *turn = words(1, 0), *first = words(THREADS, 0), *second = words(THREADS, 0);
    int others = 0;
    for (uint64_t seed = 0; seed < 20; seed++) {
        for (int round = 0; round < 2; round++) {
            *turn = 0;
            configure(seed + (round == 1 && seed > 9 ? 100 : 0), false);
            run({PROBE_ORDER, round == 0 ? first : second, turn, nullptr, THREADS}, 3, THREADS / 3);
        }
        const bool same = memcmp(first, second, THREADS * sizeof(uint32_t)) == 0;
        if (seed <= 9) {
            assert_true(same);
        } else {
            others += same ? 0 : 1;
        }
    }
    assert_int_equal(others, 10);
    emulate_free(turn);
    emulate_free(first);
    emulate_free(second);
}

static void lanes_and_named_barriers_meet(void **)
{
    uint32_t *out = words(64, 0);
    for (uint64_t seed = 0; seed < 20; seed++) {
        configure(seed, seed % 2 == 1);
        memset(out, 0, 64 * sizeof(uint32_t));
        run({PROBE_WARPS, out, nullptr, nullptr, 64}, 1, 64);
        for (int i = 0; i < 64; i++) {
            assert_int_equal(out[i], 1);
        }
        run({PROBE_NAMED, out, nullptr, nullptr, 10}, 1, 64);
        for (uint32_t lane = 0; lane < 32; lane++) {
            assert_int_equal(out[lane], 55 + 10 * lane);
        }
        assert_fine();
    }
    emulate_free(out);
}

// Sums of right rings; how many of the seeds lose a word where the sender is careless.
static int run_rings(bool careless, bool weak_stores)
{
    const unsigned blocks = 3;
    probe_ring r = {words(blocks * 4, 0),
                    words(blocks, 0),
                    words(blocks, 0),
                    words(blocks, 0),
                    4,
                    30,
                    careless};
    struct dp_stream send = {}, receive = {};
    send.handle = emulate_stream_open();
    receive.handle = emulate_stream_open();
    int lost = 0;
    for (uint64_t seed = 0; seed < 20; seed++) {
        configure(seed, weak_stores);
        memset(r.words, 0, blocks * 4 * sizeof(uint32_t));
        memset(r.heads, 0, blocks * sizeof(uint32_t));
        memset(r.tails, 0, blocks * sizeof(uint32_t));
        emulate_options all = {seed, weak_stores, blocks};
        emulate_configure(all);
        probe_receive(&receive, &r, blocks);
        probe_send(&send, &r, blocks);
        emulate_run();
        const char *problem = emulate_error();
        if (problem != nullptr) {
            fail_msg("seed %d: %s", (int)seed, problem);
        }
        for (unsigned b = 0; b < blocks; b++) {
            lost += r.sums[b] == 465 ? 0 : 1;
        }
    }
    emulate_stream_close((struct emulate_stream *)send.handle);
    emulate_stream_close((struct emulate_stream *)receive.handle);
    emulate_free(r.words);
    emulate_free(r.heads);
    emulate_free(r.tails);
    emulate_free(r.sums);
    return lost;
}

static void kernels_of_two_streams_talk_through_a_ring(void **)
{
    assert_int_equal(run_rings(false, false), 0);
    assert_int_equal(run_rings(false, true), 0);
}

static void a_flag_that_overtakes_its_data_is_found_by_held_stores(void **)
{
    assert_int_equal(run_rings(true, false), 0);
    assert_in_range(run_rings(true, true), 10, 60);
}

static void accesses_outside_of_a_threads_memory_are_found(void **)
{
    uint32_t *out = words(8, 0), *in = words(8, 0);
    uint32_t *host = (uint32_t *)malloc(sizeof(uint32_t));
    *host = 3;
    configure(1, false);
    run({PROBE_SPILLED, out, nullptr, in, 8}, 1, 32);
    assert_found("a store of 4 bytes at offset 32 of 32 bytes of device memory");
    run({PROBE_SPILLED_SHARED, out, nullptr, in, 16}, 1, 32, 64);
    assert_found("a store of 4 bytes at offset 64 of 64 bytes of shared memory");
    run({PROBE_HOST, out, nullptr, host, 8}, 1, 32);
    assert_found("memory that is not the device's");
    run({PROBE_MISALIGNED, out, nullptr, in, 8}, 1, 32);
    assert_found("no multiple");
    run({PROBE_SPILLED, out, nullptr, in, 7}, 1, 32);
    assert_fine();
    free(host);
    emulate_free(in);
    emulate_free(out);
}

static void deadlocks_are_found(void **)
{
    uint32_t *out = words(1, 0), *flag = words(1, 0);
    for (uint64_t seed = 0; seed < 6; seed++) {
        configure(seed, false);
        run({PROBE_UNMET_BARRIER, out, flag, nullptr, 1}, 2, 64);
        assert_found("a deadlock: this thread waits at a barrier");
        run({PROBE_UNMET_LANE, out, flag, nullptr, 1}, 1, 64);
        assert_found("a deadlock");
        run({PROBE_LONELY_SPIN, out, flag, nullptr, 1}, 2, 64);
        assert_found("a value that nobody writes");
        run({PROBE_ABSENT_LANE, out, flag, nullptr, 1}, 1, 32);
        assert_found("shuffles from lane 20, which is not there");
        run({PROBE_TRAP, out, flag, nullptr, 1}, 1, 32);
        assert_found("gave up");
        run({PROBE_COUNT_ATOMIC, out, nullptr, nullptr, 1}, 2, 64);
        assert_fine();
    }
    emulate_free(out);
    emulate_free(flag);
}

static void launches_that_a_device_refuses_are_refused(void **)
{
    const probe p = {PROBE_NOTHING, nullptr, nullptr, nullptr, 0};
    run(p, 0, 32);
    assert_found("a grid of (0, 1, 1) blocks of 32 threads is an invalid launch");
    run(p, 1, 0);
    assert_found("an invalid launch");
    run(p, 1, 2048);
    assert_found("more than a device takes");
    run(p, 1, 32, 300 * 1024);
    assert_found("more than a device takes");
    run(p, 70000, 1);
    assert_fine();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_and_barriers_hold_under_every_schedule),
        cmocka_unit_test(a_race_is_found_by_the_schedules),
        cmocka_unit_test(the_same_seed_gives_the_same_order),
        cmocka_unit_test(lanes_and_named_barriers_meet),
        cmocka_unit_test(kernels_of_two_streams_talk_through_a_ring),
        cmocka_unit_test(a_flag_that_overtakes_its_data_is_found_by_held_stores),
        cmocka_unit_test(accesses_outside_of_a_threads_memory_are_found),
        cmocka_unit_test(deadlocks_are_found),
        cmocka_unit_test(launches_that_a_device_refuses_are_refused),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
