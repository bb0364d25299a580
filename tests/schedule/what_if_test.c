#include "support.h"

#include <math.h>

#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/rand.h"
#include "dp/what_if.h"
#include "made_costs.h"

static void assert_near(double got, double wanted)
{
    if (!(fabs(got - wanted) <= 1e-9 * (1 + fabs(wanted)))) {
        fail_msg("%.12g is not %.12g", got, wanted);
    }
}

static struct dp_sim_uniform cost_of(const char *text)
{
    struct dp_sim_uniform uniform;
    struct dp_error err = {0};
    assert_ok(dp_what_if_parse_cost("--cost", text, &uniform, &err), &err);
    return uniform;
}

static void assert_cost(const char *text, const double wanted[6])
{
    struct dp_sim_uniform cost = cost_of(text);
    const double got[6] = {cost.f, cost.b, cost.i, cost.w, cost.fb, cost.fi};
    for (int i = 0; i < 6; i++) {
        if (!(fabs(got[i] - wanted[i]) <= 1e-12)) {
            fail_msg("%s: number %d is %g, not %g", text, i, got[i], wanted[i]);
        }
    }
    assert_true(cost.hop.latency == 0 && cost.hop.bytes_per_second == 0);
}

static void what_a_cost_leaves_out_follows_from_the_rest(void **state)
{
    (void)state;
    // F, B, I, W, FB, FI
    assert_cost("F=1,I=1,W=1", (double[]){1, 2, 1, 1, 3, 2});
    assert_cost("W=1, I=1 ,F=1", (double[]){1, 2, 1, 1, 3, 2});
    assert_cost("F=1,I=1,W=1,B=1.75", (double[]){1, 1.75, 1, 1, 2.75, 2});
    assert_cost("F=1,B=2", (double[]){1, 2, 1, 1, 3, 2});
    assert_cost("F=1,B=3,I=1", (double[]){1, 3, 1, 2, 4, 2});
    assert_cost("F=1,B=3,W=1", (double[]){1, 3, 2, 1, 4, 3});
    assert_cost("F=1,I=1,W=1,FB=2.5", (double[]){1, 2, 1, 1, 2.5, 1.5});
    assert_cost("F=1,I=1,W=1,FB=2.5,FI=1.9", (double[]){1, 2, 1, 1, 2.5, 1.9});
    // FB - B + I would be 2.5, less than the forward alone.
    assert_cost("F=3,I=1,W=1,FB=3.5", (double[]){3, 2, 1, 1, 3.5, 3});
    assert_cost("F=1e-3,I=2.5E-3,W=0", (double[]){1e-3, 2.5e-3, 2.5e-3, 0, 3.5e-3, 3.5e-3});
}

static void a_cost_that_cannot_be_is_refused_with_its_column(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"", "--cost: the text is empty"},
        {"F=1\nI=1", "more than one line"},
        {"F=1,I=1,W=1,X=3", "--cost:1:13: unknown key \"X\""},
        {"F=1,I=1,W=1,X=3", "keys are F, B, I, W, FB and FI"},
        {"f=1,B=2", "--cost:1:1: unknown key \"f\""},
        {"F=1,F=2,B=2", "--cost:1:5: F is there twice"},
        {"F=1,B=-2", "--cost:1:7: \"-2\" is no time"},
        {"F=1,B=nan", "--cost:1:7: \"nan\" is no time"},
        {"F=inf,B=1", "--cost:1:3: \"inf\" is no time"},
        {"F=1e10,B=1", "--cost:1:3: \"1e10\" is no time: a number from 0 to 1e+09"},
        {"F=,B=1", "--cost:1:3: \"\" is no time"},
        {"F=1 s,B=1", "\"1 s\" is no time"},
        {"F:1,B=2", "--cost:1:1: \"F:1\" is no KEY=SECONDS"},
        {"F=1,,B=2", "--cost:1:5: \"\" is no KEY=SECONDS"},
        {"B=2", "F is missing"},
        {"F=1", "the backward is missing: B"},
        {"F=1,I=1", "the backward is missing: W"},
        {"F=1,W=1", "the backward is missing: I"},
        {"F=1,B=1,I=2", "I takes 2, more than B with 1, and W is not given"},
        {"F=0,B=0", "nothing takes any time"},
        {"F=1,B=2,FB=0", "--cost:1:12: FB: a pair takes time"},
        {"FB=1.9,F=1,I=1,W=1", "--cost:1:4: FB takes 1.9, but a pair cannot end before its longer"},
        {"F=4,B=2,FB=3", "its longer part: F takes 4"},
        {"F=1,B=2,I=1.5,FI=1.4", "--cost:1:18: FI takes 1.4, but a pair cannot end before its "
                                 "longer part: I takes 1.5"},
    };
    for (size_t i = 0; i < DP_ARRAY_LENGTH(cases); i++) {
        struct dp_sim_uniform uniform = {.f = 17};
        struct dp_error err = {0};
        dp_status status = dp_what_if_parse_cost("--cost", cases[i][0], &uniform, &err);
        assert_refused(status, DP_INVALID, &err, cases[i][1]);
        assert_true(uniform.f == 17);
    }
    struct dp_sim_uniform uniform;
    struct dp_error err = {0};
    assert_refused(dp_what_if_parse_cost("--cost", "F=x,Q=1,W=-1", &uniform, &err), DP_INVALID,
                   &err, "--cost:1:3");
    assert_non_null(strstr(err.message, "--cost:1:5"));
    assert_non_null(strstr(err.message, "--cost:1:11"));
}

// A schedule with its costs.
struct given {
    struct dp_schedule schedule;
    struct dp_sim_costs costs;
};

static struct given give(const char *family, int32_t pipeline, int32_t microbatches,
                         const char *cost)
{
    struct given given;
    struct dp_sim_uniform uniform = cost_of(cost);
    given.schedule = make_schedule(family, pipeline, microbatches);
    dp_sim_costs_init_uniform(&given.costs, &given.schedule, &uniform);
    return given;
}

static void given_deinit(struct given *given)
{
    dp_sim_costs_deinit(&given->costs);
    dp_schedule_deinit(&given->schedule);
}

static double makespan(const struct given *given)
{
    double seconds;
    struct dp_error err = {0};
    assert_ok(dp_sim_costs_check(&given->costs, &given->schedule, &err), &err);
    assert_ok(dp_simulate_makespan(&given->schedule, &given->costs, NULL, &seconds, NULL, &err),
              &err);
    return seconds;
}

static void slow(struct given *given, const char *text)
{
    struct dp_error err = {0};
    assert_ok(dp_what_if_slow("--slow", text, &given->schedule, &given->costs, &err), &err);
}

static void slow_link(struct given *given, const char *text, struct dp_buf *notes)
{
    struct dp_error err = {0};
    assert_ok(
        dp_what_if_slow_link("--slow-link", text, &given->schedule, &given->costs, notes, &err),
        &err);
}

static const char *const families[] = {"gpipe", "1f1b", "dualpipe", "dualpipev"};

// The families that exist for 4 ranks and 12 micro-batches.
static size_t families_of_four(const char *ret_names[32])
{
    size_t count, found = 0;
    const struct dp_schedule_family *all = dp_schedule_families(&count);
    struct dp_schedule_params params = {.pipeline = 4, .microbatches = 12};
    for (size_t i = 0; i < count && found < 32; i++) {
        if (dp_schedule_check(all[i].name, &params, NULL) == DP_OK) {
            ret_names[found++] = all[i].name;
        }
    }
    assert_true(found >= 10);
    return found;
}

static bool same_costs(const struct dp_sim_costs *a, const struct dp_sim_costs *b)
{
    int32_t chunks = a->pipeline * a->slots;
    for (int32_t i = 0; i < chunks; i++) {
        for (int kind = 0; kind < DP_ACTION_FB; kind++) {
            double one = a->chunks[i].seconds[kind], other = b->chunks[i].seconds[kind];
            if (!(fabs(one - other) <= 1e-12 * one)) {
                return false;
            }
        }
    }
    for (int32_t i = 0; i < chunks * a->slots; i++) {
        if (!(fabs(a->fb[i] - b->fb[i]) <= 1e-12 * a->fb[i]) ||
            !(fabs(a->fi[i] - b->fi[i]) <= 1e-12 * a->fi[i])) {
            return false;
        }
    }
    return true;
}

static void slowing_everybody_multiplies_the_makespan(void **state)
{
    (void)state;
    const char *names[32];
    size_t count = families_of_four(names);
    for (size_t i = 0; i < count; i++) {
        struct given by_rank = give(names[i], 4, 12, "F=1,I=0.9,W=0.8,FB=2.4");
        struct given by_stage = give(names[i], 4, 12, "F=1,I=0.9,W=0.8,FB=2.4");
        double before = makespan(&by_rank);
        slow(&by_rank, "rank=0:1.7,rank=1:1.7,rank=2:1.7,rank=3:1.7");
        assert_near(makespan(&by_rank), 1.7 * before);
        for (int32_t stage = 0; stage < by_stage.schedule.stages; stage++) {
            char text[32];
            snprintf(text, sizeof(text), "stage=%d:1.7", stage);
            slow(&by_stage, text);
        }
        assert_near(makespan(&by_stage), 1.7 * before);
        given_deinit(&by_rank);
        given_deinit(&by_stage);
    }
}

static void a_slow_rank_is_slow_in_all_it_does(void **state)
{
    (void)state;
    struct given whole = give("dualpipe", 4, 10, "F=1,I=0.9,W=0.8,FB=2.4");
    struct given kinds = give("dualpipe", 4, 10, "F=1,I=0.9,W=0.8,FB=2.4");
    struct given other = give("dualpipe", 4, 10, "F=1,I=0.9,W=0.8,FB=2.4");
    slow(&whole, "rank=2:1.5");
    slow(&kinds, "rank=2:F=1.5,rank=2:B=1.5,rank=2:I=1.5,rank=2:W=1.5");
    costs_slow_rank(&other.costs, 2, 1.5);
    assert_true(same_costs(&whole.costs, &other.costs));
    assert_true(same_costs(&kinds.costs, &other.costs));
    // And back again.
    slow(&whole, "rank=2:0.66666666666666667");
    struct given untouched = give("dualpipe", 4, 10, "F=1,I=0.9,W=0.8,FB=2.4");
    assert_true(same_costs(&whole.costs, &untouched.costs));
    given_deinit(&whole);
    given_deinit(&kinds);
    given_deinit(&other);
    given_deinit(&untouched);
}

static void a_slow_stage_is_slow_in_every_copy_and_in_no_other(void **state)
{
    (void)state;
    struct given given = give("dualpipe", 4, 10, "F=1,I=1,W=1,FB=2.4");
    slow(&given, "stage=1:2");
    for (int32_t rank = 0; rank < 4; rank++) {
        int32_t stages[DP_RANK_STAGES_MAX];
        int32_t count = dp_schedule_rank_stages(&given.schedule, rank, stages);
        assert_int_equal(count, 2);
        for (int32_t slot = 0; slot < count; slot++) {
            const double *seconds = dp_sim_chunk_at(&given.costs, rank, slot)->seconds;
            double factor = stages[slot] == 1 ? 2 : 1;
            assert_near(seconds[DP_ACTION_F], factor);
            assert_near(seconds[DP_ACTION_B], 2 * factor);
            // Overlap hid 0.6 of 3; a pair with the slow stage in one half hides as much of it.
            int32_t other = 1 - slot;
            double both = factor + 2.0 * (stages[other] == 1 ? 2 : 1);
            size_t pair = dp_sim_pair_index(&given.costs, rank, slot, other);
            assert_near(given.costs.fb[pair], fmax(2.4 / 3 * both, fmax(factor, both - factor)));
        }
    }
    given_deinit(&given);
}

static void a_pair_is_never_shorter_than_its_longer_part(void **state)
{
    (void)state;
    struct given given = give("dualpipev", 2, 6, "F=1,I=1,W=1,FB=2");
    slow(&given, "rank=0:B=10");
    size_t pair = dp_sim_pair_index(&given.costs, 0, 0, 1);
    assert_near(given.costs.fb[pair], 20); // 2 / 3 of 21 would be 14
    given_deinit(&given);
}

// Identical jobs through stations in a row: all of them once, and the slowest once more for each
// further job.
static double flow_shop(const double *seconds, int32_t stations, int32_t jobs)
{
    double sum = 0, most = 0;
    for (int32_t i = 0; i < stations; i++) {
        sum += seconds[i];
        most = fmax(most, seconds[i]);
    }
    return sum + (jobs - 1) * most;
}

static void gpipe_with_slow_ranks_is_two_flow_shops(void **state)
{
    (void)state;
    struct dp_rand rand;
    dp_rand_init(&rand, 61);
    for (long run = 0; run < dp_fuzz_runs(200); run++) {
        int32_t ranks = 1 + (int32_t)dp_rand_below(&rand, 7);
        int32_t jobs = 1 + (int32_t)dp_rand_below(&rand, 12);
        struct given given = give("gpipe", ranks, jobs, "F=1,I=1.2,W=0.7");
        double f[8], b[8];
        struct dp_buf text = {0};
        for (int32_t rank = 0; rank < ranks; rank++) {
            double factor = 0.25 + 4 * dp_rand_double(&rand);
            f[rank] = factor;
            b[rank] = 1.9 * factor;
            dp_buf_printf(&text, "%srank=%d:%.17g", rank == 0 ? "" : ",", rank, factor);
        }
        slow(&given, text.bytes);
        assert_near(makespan(&given), flow_shop(f, ranks, jobs) + flow_shop(b, ranks, jobs));
        dp_buf_deinit(&text);
        given_deinit(&given);
    }
}

static void a_slow_that_cannot_be_is_refused_with_its_column(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"", "--slow: the text is empty"},
        {"rank=4:1.5", "--slow:1:6: rank 4: the schedule has ranks 0 to 3"},
        {"rank=-1:1.5", "rank -1: the schedule has ranks 0 to 3"},
        {"rank=x:1.5", "--slow:1:6: \"x\" is no rank: a number from 0 to 3"},
        {"stage=8:1.5", "stage 8: the schedule has stages 0 to 3"},
        {"node=1:2", "--slow:1:1: unknown word \"node\""},
        {"rank=1:0", "--slow:1:8: \"0\" is no factor"},
        {"rank=1:-2", "\"-2\" is no factor: a number over 0 and at most 1e+06"},
        {"rank=1:2xx", "\"2xx\" is no factor"},
        {"rank=1:", "\"\" is no factor"},
        {"rank=1:1e7", "\"1e7\" is no factor"},
        {"rank=1:G=2", "--slow:1:8: unknown kind \"G\""},
        {"rank=1:FB=2", "kinds are F, B, I and W"},
        {"rank=1:F=", "--slow:1:10: \"\" is no factor"},
        {"rank:1=2", "--slow:1:1: \"rank:1=2\" is no rank or stage with a factor"},
        {"rank=1", "write rank=3:1.5, stage=2:1.3 or rank=3:F=1.5"},
        {"rank=1:2,rank=1:3", "--slow:1:10: rank 1 is there twice"},
        {"rank=9:2, stage=9:2", "--slow:1:17: stage 9"},
    };
    struct given given = give("1f1b", 4, 8, "F=1,I=1,W=1");
    struct given untouched = give("1f1b", 4, 8, "F=1,I=1,W=1");
    for (size_t i = 0; i < DP_ARRAY_LENGTH(cases); i++) {
        struct dp_error err = {0};
        dp_status status =
            dp_what_if_slow("--slow", cases[i][0], &given.schedule, &given.costs, &err);
        assert_refused(status, DP_INVALID, &err, cases[i][1]);
        assert_true(same_costs(&given.costs, &untouched.costs));
    }
    given_deinit(&given);
    given_deinit(&untouched);
}

static struct given give_hops(const char *family, int32_t pipeline, int32_t microbatches)
{
    struct given given = give(family, pipeline, microbatches, "F=1,B=2");
    for (int32_t from = 0; from < pipeline; from++) {
        for (int32_t to = 0; to < pipeline; to++) {
            dp_sim_hop_at(&given.costs, from, to)->latency = from == to ? 0 : 0.1;
        }
    }
    return given;
}

// GPipe: each link is passed once on the way in and once on the way out.
static void a_slow_link_delays_gpipe_once_each_way(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        double later;
    } cases[] = {
        {"2-3:4x", 0.3 + 0.3},      {"2>3:4", 0.3},    {"3>2:4x", 0.3},
        {"2-3:+0.5", 0.5 + 0.5},    {"3>2:+0.5", 0.5}, {"2-3:0.5x", -0.05 - 0.05},
        {"0-1:2x,2>3:+1", 0.2 + 1}, {"1-3:9x", 0},
    };
    for (size_t i = 0; i < DP_ARRAY_LENGTH(cases); i++) {
        struct given given = give_hops("gpipe", 4, 6);
        assert_near(makespan(&given), (4 - 1 + 6) * 3 + 2 * 3 * 0.1);
        slow_link(&given, cases[i].text, NULL);
        assert_near(makespan(&given), (4 - 1 + 6) * 3 + 2 * 3 * 0.1 + cases[i].later);
        given_deinit(&given);
    }
}

static void a_slow_link_divides_the_bandwidth(void **state)
{
    (void)state;
    struct given given = give_hops("gpipe", 2, 3);
    given.costs.message_bytes_f = 100;
    given.costs.message_bytes_b = 200;
    dp_sim_hop_at(&given.costs, 0, 1)->bytes_per_second = 1000;
    dp_sim_hop_at(&given.costs, 1, 0)->bytes_per_second = 1000;
    double before = makespan(&given);
    slow_link(&given, "0>1:4x", NULL);
    assert_near(dp_sim_hop_at(&given.costs, 0, 1)->bytes_per_second, 250);
    assert_near(dp_sim_hop_at(&given.costs, 1, 0)->bytes_per_second, 1000);
    // 0.1 and 100 / 1000 seconds, both times 4.
    assert_near(makespan(&given), before + 3 * 0.2);
    given_deinit(&given);
}

static void a_slow_link_never_hurries_and_delays_no_more_than_its_messages(void **state)
{
    (void)state;
    struct dp_rand rand;
    dp_rand_init(&rand, 62);
    for (long run = 0; run < dp_fuzz_runs(60); run++) {
        int32_t ranks = 2 * (1 + (int32_t)dp_rand_below(&rand, 3));
        struct given given = give_hops(families[dp_rand_below(&rand, 4)], ranks, 2 * ranks);
        double before = makespan(&given);
        int32_t from = (int32_t)dp_rand_below(&rand, (uint64_t)ranks - 1);
        double later = dp_rand_double(&rand);
        char text[64];
        snprintf(text, sizeof(text), "%d-%d:+%.17g", from, from + 1, later);
        slow_link(&given, text, NULL);
        double after = makespan(&given);
        assert_true(after >= before - 1e-9);
        assert_true(after <= before + 2 * given.schedule.stages * 2.0 * ranks * later + 1e-9);
        given_deinit(&given);
    }
}

static void what_a_slow_link_cannot_change_is_said(void **state)
{
    (void)state;
    struct given free_hops = give("dualpipe", 4, 8, "F=1,B=2");
    struct given given = give_hops("dualpipe", 4, 8);
    double before = makespan(&given);
    struct dp_buf notes = {0};
    slow_link(&free_hops, "1-2:4x", &notes);
    assert_string_equal(notes.bytes, "link 1-2 costs nothing, and 4 times nothing is nothing: give "
                                     "a hop, or 1-2:+SECONDS\n");
    dp_buf_clear(&notes);
    slow_link(&given, "0>2:4x", &notes);
    assert_string_equal(notes.bytes, "no neighbouring stages are on ranks 0 and 2: link 0>2 is "
                                     "unused\n");
    assert_near(makespan(&given), before);
    dp_buf_clear(&notes);
    slow_link(&given, "1-2:4x,2>1:+1", &notes);
    assert_int_equal(notes.length, 0);
    dp_buf_deinit(&notes);
    given_deinit(&free_hops);
    given_deinit(&given);
}

static void a_link_that_cannot_be_is_refused_with_its_column(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"", "--slow-link: the text is empty"},
        {"2-3", "--slow-link:1:1: \"2-3\" is no link with a change"},
        {"23:4x", "\"23:4x\" is no link with a change"},
        {"2-3:fast", "--slow-link:1:5: \"fast\" is no link with a change"},
        {"2-3:x", "--slow-link:1:5: \"x\" is no factor"},
        {"2-3:0x", "\"0x\" is no factor"},
        {"2-3:+", "--slow-link:1:6: \"\" is no time"},
        {"2-3:+-1", "--slow-link:1:6: \"-1\" is no time"},
        {"2-4:4x", "--slow-link:1:3: rank 4: the schedule has ranks 0 to 3"},
        {"9>1:4x", "--slow-link:1:1: rank 9"},
        {"2-2:4x", "rank 2 needs no link to itself"},
        {"a-b:4x", "\"a\" is no rank"},
        {"0-1:2x,1-5:2x", "--slow-link:1:10: rank 5"},
        {"2-3:4x,2-3:4x", "--slow-link:1:8: link 2-3 is there twice"},
        {"2-3:4x,3-2:2x", "--slow-link:1:8: link 3-2 is there twice"},
        {"2>3:4x,2-3:2x", "--slow-link:1:8: link 2-3 is there twice"},
        {"2-3:+1,0-1:2x,3>2:+2", "--slow-link:1:15: link 3>2 is there twice"},
        {"0-1:1e6x,0-1:+1e9,1>2:+1,1>2:1e6x",
         "--slow-link:1:10: the link's latency would be 1.0001e+09 seconds; at most 1e+09"},
        {"2>3:4x,3>2:4x,2>3:+1", NULL},
        {"2-3:4x", NULL},
    };
    struct given given = give_hops("1f1b", 4, 8);
    for (size_t i = 0; i < DP_ARRAY_LENGTH(cases); i++) {
        struct dp_error err = {0};
        dp_status status = dp_what_if_slow_link("--slow-link", cases[i][0], &given.schedule,
                                                &given.costs, NULL, &err);
        if (cases[i][1] == NULL) {
            assert_ok(status, &err);
        } else {
            assert_refused(status, DP_INVALID, &err, cases[i][1]);
            assert_near(dp_sim_hop_at(&given.costs, 0, 1)->latency, 0.1);
        }
    }
    given_deinit(&given);
}

// A bandwidth of 0 would mean no time for bytes at all: changes of many calls must not come there.
static void a_link_that_is_slowed_for_ever_is_refused_before_it_is_fast(void **state)
{
    (void)state;
    struct given given = give_hops("1f1b", 4, 8);
    struct dp_sim_hop *hop = dp_sim_hop_at(&given.costs, 1, 2);
    struct dp_error err = {0};
    dp_status status = DP_OK;
    hop->latency = 0;
    hop->bytes_per_second = 2e9;
    int calls = 0;
    for (; status == DP_OK && calls < 60; calls++) {
        status = dp_what_if_slow_link("l", "1>2:1e6x", &given.schedule, &given.costs, NULL, &err);
    }
    assert_refused(status, DP_INVALID, &err, "l:1:1: the link would carry 2e-15 bytes/s; at least");
    assert_int_equal(calls, 4);
    assert_true(hop->bytes_per_second > 1.9e-9 && hop->bytes_per_second < 2.1e-9);
    hop->bytes_per_second = 1e308;
    assert_refused(
        dp_what_if_slow_link("l", "1>2:1e-6x", &given.schedule, &given.costs, NULL, &err),
        DP_INVALID, &err, "infinitely fast");
    given_deinit(&given);
}

static dp_status load(struct given *given, const char *text, struct dp_error *err)
{
    return dp_what_if_stage_costs("s.csv", text, strlen(text), &given->schedule, &given->costs,
                                  err);
}

static void a_table_that_says_the_same_of_every_stage_changes_nothing(void **state)
{
    (void)state;
    const char *names[32];
    size_t count = families_of_four(names);
    for (size_t i = 0; i < count; i++) {
        struct given table = give(names[i], 4, 12, "F=9,B=9");
        struct given flags = give(names[i], 4, 12, "F=1,I=0.9,W=0.8,FB=2.4");
        struct dp_buf text = {0};
        dp_buf_puts(&text, "W,stage,FB,F,I\n");
        for (int32_t stage = 0; stage < table.schedule.stages; stage++) {
            dp_buf_printf(&text, "0.8,%d,2.4,1,0.9\n", stage);
        }
        struct dp_error err = {0};
        assert_ok(load(&table, text.bytes, &err), &err);
        assert_true(same_costs(&table.costs, &flags.costs));
        assert_near(makespan(&table), makespan(&flags));
        dp_buf_deinit(&text);
        given_deinit(&table);
        given_deinit(&flags);
    }
}

static void gpipe_with_uneven_stages_is_two_flow_shops(void **state)
{
    (void)state;
    struct dp_rand rand;
    dp_rand_init(&rand, 63);
    for (long run = 0; run < dp_fuzz_runs(100); run++) {
        int32_t ranks = 1 + (int32_t)dp_rand_below(&rand, 7);
        int32_t jobs = 1 + (int32_t)dp_rand_below(&rand, 12);
        struct given given = give("gpipe", ranks, jobs, "F=1,B=1");
        double f[8], b[8];
        struct dp_buf text = {0};
        dp_buf_puts(&text, "stage,F,B\n");
        for (int32_t stage = 0; stage < ranks; stage++) {
            f[stage] = dp_rand_double(&rand);
            b[stage] = dp_rand_double(&rand);
            dp_buf_printf(&text, "%d,%.17g,%.17g\n", stage, f[stage], b[stage]);
        }
        struct dp_error err = {0};
        assert_ok(load(&given, text.bytes, &err), &err);
        assert_near(makespan(&given), flow_shop(f, ranks, jobs) + flow_shop(b, ranks, jobs));
        dp_buf_deinit(&text);
        given_deinit(&given);
    }
}

static const struct dp_sim_chunk *chunk_of(const struct given *given, int32_t rank, int32_t stage)
{
    int32_t stages[DP_RANK_STAGES_MAX];
    int32_t count = dp_schedule_rank_stages(&given->schedule, rank, stages);
    for (int32_t slot = 0; slot < count; slot++) {
        if (stages[slot] == stage) {
            return dp_sim_chunk_at(&given->costs, rank, slot);
        }
    }
    fail_msg("rank %d does not hold stage %d", rank, stage);
    return NULL;
}

static double pair_of(const struct given *given, const double *pairs, int32_t rank, int32_t forward,
                      int32_t backward)
{
    int64_t first = chunk_of(given, rank, forward) - dp_sim_chunk_at(&given->costs, rank, 0);
    int64_t second = chunk_of(given, rank, backward) - dp_sim_chunk_at(&given->costs, rank, 0);
    return pairs[dp_sim_pair_index(&given->costs, rank, (int32_t)first, (int32_t)second)];
}

static void what_is_said_of_one_rank_goes_before_what_is_said_of_all(void **state)
{
    (void)state;
    // Rank r of two-way pipelines of 2 holds both stages.
    struct given given = give("dualpipe", 2, 6, "F=9,B=9");
    static const char text[] = "rank,stage,backward_stage,F,I,W,FB,FI,activation_bytes,"
                               "released_at_i_bytes\n"
                               ",0,,1,1,1,,,100,60\n"
                               "1,0,,2,2,2,5,,,\n"
                               ",1,,1,1,1,4.25,2.25,200,\n"
                               ",0,1,,,,2.75,,,\n"
                               "1,0,1,,,,4.5,3.5,,\n";
    struct dp_error err = {0};
    assert_ok(load(&given, text, &err), &err);
    assert_near(chunk_of(&given, 0, 0)->seconds[DP_ACTION_B], 2);
    assert_near(chunk_of(&given, 1, 0)->seconds[DP_ACTION_B], 4);
    assert_int_equal(chunk_of(&given, 0, 0)->activation_bytes, 100);
    assert_int_equal(chunk_of(&given, 0, 0)->released_at_i_bytes, 60);
    assert_int_equal(chunk_of(&given, 1, 0)->activation_bytes, 1); // as it was
    assert_int_equal(chunk_of(&given, 1, 1)->released_at_i_bytes, 200);
    // A row of the pair; of its rank; of the forward stage; nothing at all.
    assert_near(pair_of(&given, given.costs.fb, 0, 0, 1), 2.75);
    assert_near(pair_of(&given, given.costs.fi, 0, 0, 1), 2.75 - 2 + 1);
    assert_near(pair_of(&given, given.costs.fb, 1, 0, 1), 4.5);
    assert_near(pair_of(&given, given.costs.fi, 1, 0, 1), 3.5);
    assert_near(pair_of(&given, given.costs.fb, 1, 0, 0), 5);
    assert_near(pair_of(&given, given.costs.fb, 0, 1, 0), 4.25);
    assert_near(pair_of(&given, given.costs.fi, 0, 1, 0), 2.25);
    assert_near(pair_of(&given, given.costs.fb, 0, 0, 0), 3);
    assert_near(pair_of(&given, given.costs.fi, 0, 0, 0), 2);
    given_deinit(&given);
}

static void a_table_that_cannot_be_is_refused_with_line_and_column(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"", "s.csv: the file is empty"},
        {"stage,F,B\n", "s.csv: stage 0 has no row; the schedule runs it on rank 0"},
        {"stage,F,B\n0,1,2\n", "s.csv: stage 1 has no row; the schedule runs it on rank 0"},
        {"stage,B\n", "s.csv:1:1: column F is missing"},
        {"stage,F,B,seconds\n", "s.csv:1:11: unknown column \"seconds\""},
        {"stage,F,B,activation_byte\n", "did you mean activation_bytes?"},
        {"stage,F,B\n0,1\n", "s.csv:2:1: 2 cells; the header has 3"},
        {"stage,F,B\n2,1,2\n", "s.csv:2:1: stage 2: the schedule has stages 0 to 1"},
        {"stage,F,B\nx,1,2\n", "s.csv:2:1: \"x\" is no stage"},
        {"stage,F,B\n,1,2\n", "s.csv:2:1: stage is missing"},
        {"stage,F,B\n0,-1,2\n", "s.csv:2:3: \"-1\" is no time"},
        {"stage,F,B\n0,,2\n", "s.csv:2:1: F is missing"},
        {"stage,F,B\n0,1,\n", "s.csv:2:1: the backward is missing: B"},
        {"stage,F,B,I\n0,1,2,3\n", "I takes 3, more than B with 2"},
        {"stage,F,B\n0,1,2\n1,1,2\n0,1,2\n", "s.csv:4:1: the same stage as in line 2"},
        {"stage,rank,F,B\n0,2,1,2\n", "s.csv:2:3: rank 2: the schedule has ranks 0 to 1"},
        {"stage,F,B,FB\n0,1,2,0\n", "s.csv:2:7: FB: a pair takes time"},
        {"stage,F,B,FB\n0,1,2,1.9\n1,1,2,2\n", "s.csv:2:1: FB takes 1.9, but a pair cannot end"},
        {"stage,backward_stage,F,B,FB\n0,,1,2,\n1,,1,4,\n0,1,,,3\n",
         "s.csv:4:1: FB takes 3, but a pair cannot end before its longer part, which takes 4"},
        {"stage,backward_stage,F,B,FB\n0,1,1,,3\n", "s.csv:2:5: F is no part of a pair"},
        {"stage,backward_stage,F,B,FB\n0,1,,,\n", "s.csv:2:3: FB of the pair is missing"},
        {"stage,backward_stage,F,B,FB\n0,7,,,3\n", "s.csv:2:3: stage 7"},
        {"stage,F,B,activation_bytes\n0,1,2,1.5\n", "s.csv:2:7: \"1.5\" is no number of bytes"},
        {"stage,F,B,released_at_i_bytes\n0,1,2,5\n", "without activation_bytes"},
        {"stage,F,B,activation_bytes,released_at_i_bytes\n0,1,2,5,6\n",
         "s.csv:2:9: I cannot release 6 bytes of 5"},
    };
    struct given given = give("dualpipe", 2, 6, "F=1,B=2");
    struct given untouched = give("dualpipe", 2, 6, "F=1,B=2");
    for (size_t i = 0; i < DP_ARRAY_LENGTH(cases); i++) {
        struct dp_error err = {0};
        assert_refused(load(&given, cases[i][0], &err), DP_INVALID, &err, cases[i][1]);
        assert_true(same_costs(&given.costs, &untouched.costs));
    }
    struct dp_error err = {0};
    assert_refused(load(&given, "stage,F,B\n0,x,2\n9,1,2\n1,1,y\n", &err), DP_INVALID, &err,
                   "s.csv:2:3");
    assert_non_null(strstr(err.message, "s.csv:3:1"));
    assert_non_null(strstr(err.message, "s.csv:4:5"));
    given_deinit(&given);
    given_deinit(&untouched);
}

static void a_rank_that_does_not_hold_the_stage_is_named(void **state)
{
    (void)state;
    struct given given = give("1f1b", 2, 4, "F=1,B=2");
    struct dp_error err = {0};
    assert_refused(load(&given, "stage,rank,F,B\n0,1,1,2\n", &err), DP_INVALID, &err,
                   "s.csv:2:3: rank 1 does not hold stage 0");
    assert_refused(load(&given, "stage,backward_stage,F,B,FB\n0,1,,,3\n", &err), DP_INVALID, &err,
                   "s.csv:2:3: no rank holds both stage 0 and stage 1");
    assert_refused(load(&given, "stage,rank,backward_stage,F,B,FB\n0,1,0,,,3\n", &err), DP_INVALID,
                   &err, "s.csv:2:5: rank 1 does not hold both stage 0 and stage 0");
    given_deinit(&given);
}

static void the_example_fits_schedules_of_eight_stages(void **state)
{
    (void)state;
    DP_CLEANUP(dp_buf_deinit) struct dp_buf file = {0};
    struct dp_error err = {0};
    assert_ok(dp_read_file(DP_SOURCE_DIR "/examples/stage-cost.csv", DP_STAGE_COSTS_BYTES_MAX,
                           &file, &err),
              &err);
    struct given given = give("dualpipe", 8, 20, "F=1,B=2");
    assert_ok(load(&given, file.bytes, &err), &err);
    assert_near(pair_of(&given, given.costs.fb, 0, 0, 7), 0.031);
    assert_near(pair_of(&given, given.costs.fb, 3, 3, 4), 0.025);
    assert_near(pair_of(&given, given.costs.fb, 0, 0, 0), 0.0115 + 0.0121 + 0.0108);
    assert_true(makespan(&given) < 1);
    given_deinit(&given);
    struct given other = give("1f1b", 8, 20, "F=1,B=2");
    assert_refused(load(&other, file.bytes, &err), DP_INVALID, &err, "no rank holds both");
    given_deinit(&other);
}

static void any_text_is_read_or_refused(void **state)
{
    (void)state;
    static const char *const seeds[] = {
        "F=1,I=1,W=1,FB=2.5",
        "rank=3:1.5,stage=2:F=1.3",
        "2-3:4x,2>3:+0.5",
        "stage,rank,backward_stage,F,B,FB\n0,,,1,2,3\n1,1,,1,2,\n0,0,1,,,3\n",
    };
    static const char alphabet[] = "FIWB=,.:-+>x0123456789e\n# stagernk";
    struct given given = give("dualpipe", 4, 8, "F=1,B=2");
    struct dp_rand rand;
    dp_rand_init(&rand, 64);
    for (long run = 0; run < dp_fuzz_runs(4000); run++) {
        char text[128];
        size_t which = dp_rand_below(&rand, DP_ARRAY_LENGTH(seeds));
        snprintf(text, sizeof(text), "%s", seeds[which]);
        for (size_t change = dp_rand_below(&rand, 5); change > 0; change--) {
            text[dp_rand_below(&rand, strlen(seeds[which]))] =
                alphabet[dp_rand_below(&rand, sizeof(alphabet) - 1)];
        }
        struct dp_sim_uniform uniform;
        struct dp_sim_costs costs;
        dp_sim_costs_copy(&costs, &given.costs);
        struct dp_error err = {0};
        dp_status status =
            which == 0   ? dp_what_if_parse_cost("t", text, &uniform, &err)
            : which == 1 ? dp_what_if_slow("t", text, &given.schedule, &costs, &err)
            : which == 2
                ? dp_what_if_slow_link("t", text, &given.schedule, &costs, NULL, &err)
                : dp_what_if_stage_costs("t", text, strlen(text), &given.schedule, &costs, &err);
        if (status == DP_OK) {
            assert_ok(dp_sim_costs_check(&costs, &given.schedule, &err), &err);
        } else {
            assert_string_equal(dp_status_name(status), dp_status_name(DP_INVALID));
        }
        dp_sim_costs_deinit(&costs);
    }
    given_deinit(&given);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_cost_leaves_out_follows_from_the_rest),
        cmocka_unit_test(a_cost_that_cannot_be_is_refused_with_its_column),
        cmocka_unit_test(slowing_everybody_multiplies_the_makespan),
        cmocka_unit_test(a_slow_rank_is_slow_in_all_it_does),
        cmocka_unit_test(a_slow_stage_is_slow_in_every_copy_and_in_no_other),
        cmocka_unit_test(a_pair_is_never_shorter_than_its_longer_part),
        cmocka_unit_test(gpipe_with_slow_ranks_is_two_flow_shops),
        cmocka_unit_test(a_slow_that_cannot_be_is_refused_with_its_column),
        cmocka_unit_test(a_slow_link_delays_gpipe_once_each_way),
        cmocka_unit_test(a_slow_link_divides_the_bandwidth),
        cmocka_unit_test(a_slow_link_never_hurries_and_delays_no_more_than_its_messages),
        cmocka_unit_test(what_a_slow_link_cannot_change_is_said),
        cmocka_unit_test(a_link_that_cannot_be_is_refused_with_its_column),
        cmocka_unit_test(a_link_that_is_slowed_for_ever_is_refused_before_it_is_fast),
        cmocka_unit_test(a_table_that_says_the_same_of_every_stage_changes_nothing),
        cmocka_unit_test(gpipe_with_uneven_stages_is_two_flow_shops),
        cmocka_unit_test(what_is_said_of_one_rank_goes_before_what_is_said_of_all),
        cmocka_unit_test(a_table_that_cannot_be_is_refused_with_line_and_column),
        cmocka_unit_test(a_rank_that_does_not_hold_the_stage_is_named),
        cmocka_unit_test(the_example_fits_schedules_of_eight_stages),
        cmocka_unit_test(any_text_is_read_or_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
