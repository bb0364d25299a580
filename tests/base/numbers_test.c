// Random numbers, hashes and clocks.

#include "dp_test.h"

#include <math.h>
#include <time.h>

#include "dp/check.h"
#include "dp/clock.h"
#include "dp/rand.h"

// xoshiro256++ seeded by splitmix64 from 0: values of the authors' own C code.
static void the_generator_gives_the_published_sequence(void **state)
{
    (void)state;
    struct dp_rand rand;
    dp_rand_init(&rand, 0);
    assert_true(rand.state[0] == 0xe220a8397b1dcdafull);
    assert_true(rand.state[1] == 0x6e789e6aa1b965f4ull);
    assert_true(rand.state[2] == 0x06c45d188009454full);
    assert_true(rand.state[3] == 0xf88bb8a8724c81ecull);
    // The first output from state {1, 2, 3, 4} by hand: rotl(1 + 4, 23) + 1.
    struct dp_rand small = {{1, 2, 3, 4}};
    assert_true(dp_rand_u64(&small) == ((5ull << 23) + 1));
}

static void bounded_numbers_are_uniform_and_in_range(void **state)
{
    (void)state;
    enum { BOUND = 7, DRAWS = 70000 };
    struct dp_rand rand;
    dp_rand_init(&rand, 42);
    int counts[BOUND] = {0};
    for (int i = 0; i < DRAWS; i++) {
        counts[dp_rand_below(&rand, BOUND)]++;
    }
    double chi2 = 0, expected = (double)DRAWS / BOUND;
    for (int i = 0; i < BOUND; i++) {
        chi2 += (counts[i] - expected) * (counts[i] - expected) / expected;
    }
    assert_true(chi2 < 22.46); // the 0.1 % quantile for 6 degrees of freedom
    assert_int_equal(dp_rand_below(&rand, 1), 0);
}

static void normal_numbers_have_mean_0_and_variance_1(void **state)
{
    (void)state;
    enum { DRAWS = 100000 };
    struct dp_rand rand;
    dp_rand_init(&rand, 1);
    double sum = 0, squares = 0;
    for (int i = 0; i < DRAWS; i++) {
        double x = dp_rand_normal(&rand);
        assert_true(isfinite(x));
        sum += x;
        squares += x * x;
    }
    assert_true(fabs(sum / DRAWS) < 4.0 / sqrt(DRAWS));
    assert_true(fabs(squares / DRAWS - 1) < 4 * sqrt(2.0 / DRAWS));
}

static void equal_seeds_repeat_and_mixed_ones_differ(void **state)
{
    (void)state;
    struct dp_rand a, b;
    dp_rand_init(&a, 9);
    dp_rand_init(&b, 9);
    for (int i = 0; i < 100; i++) {
        assert_true(dp_rand_u64(&a) == dp_rand_u64(&b));
    }
    assert_true(dp_rand_mix(1, 2) == dp_rand_mix(1, 2));
    assert_true(dp_rand_mix(1, 2) != dp_rand_mix(2, 1));
    assert_true(dp_rand_mix(0, 0) != dp_rand_mix(0, 1));
}

// FNV-1a test vectors of the draft by Fowler, Noll, Vo and Eastlake.
static void the_hash_is_fnv_1a(void **state)
{
    (void)state;
    assert_true(dp_hash64("", 0, 0) == 0xcbf29ce484222325ull);
    assert_true(dp_hash64("a", 1, 0) == 0xaf63dc4c8601ec8cull);
    assert_true(dp_hash64("foobar", 6, 0) == 0x85944171f73967e8ull);
}

static void times_are_written_in_utc(void **state)
{
    (void)state;
    char buffer[32];
    assert_string_equal(dp_clock_format_utc(buffer, 0), "1970-01-01T00:00:00.000Z");
    assert_string_equal(dp_clock_format_utc(buffer, 951782400ll * DP_NS_PER_S + 1999999),
                        "2000-02-29T00:00:00.001Z");
}

// Around the hours that New York has twice and not at all in 2026.
static void times_do_not_depend_on_the_local_time_and_its_changes(void **state)
{
    (void)state;
    static const struct {
        int64_t second;
        const char *text;
    } times[] = {{1772949599, "2026-03-08T05:59:59.000Z"},
                 {1772953200, "2026-03-08T07:00:00.000Z"},
                 {1793509200, "2026-11-01T05:00:00.000Z"},
                 {1793512800, "2026-11-01T06:00:00.000Z"}};
    static const char *const zones[] = {"America/New_York", "Asia/Kolkata", "UTC"};
    const char *before = getenv("TZ");
    for (size_t z = 0; z < DP_ARRAY_LENGTH(zones); z++) {
        assert_int_equal(setenv("TZ", zones[z], 1), 0);
        tzset();
        for (size_t i = 0; i < DP_ARRAY_LENGTH(times); i++) {
            char buffer[32];
            assert_string_equal(dp_clock_format_utc(buffer, times[i].second * DP_NS_PER_S),
                                times[i].text);
        }
    }
    if (before == NULL) {
        unsetenv("TZ");
    } else {
        setenv("TZ", before, 1);
    }
    tzset();
}

static void the_monotonic_clock_does_not_go_back(void **state)
{
    (void)state;
    int64_t last = dp_clock_monotonic_ns();
    for (int i = 0; i < 1000; i++) {
        int64_t now = dp_clock_monotonic_ns();
        assert_true(now >= last);
        last = now;
    }
    dp_clock_sleep_until_ns(last); // past: returns at once
    dp_clock_sleep_until_ns(last + 1000000);
    assert_true(dp_clock_monotonic_ns() >= last + 1000000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_generator_gives_the_published_sequence),
        cmocka_unit_test(bounded_numbers_are_uniform_and_in_range),
        cmocka_unit_test(normal_numbers_have_mean_0_and_variance_1),
        cmocka_unit_test(equal_seeds_repeat_and_mixed_ones_differ),
        cmocka_unit_test(the_hash_is_fnv_1a),
        cmocka_unit_test(times_are_written_in_utc),
        cmocka_unit_test(times_do_not_depend_on_the_local_time_and_its_changes),
        cmocka_unit_test(the_monotonic_clock_does_not_go_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
