// Whatever breaks, in worlds of the real cores: each job ends once, nothing runs twice, nothing is
// told before it is stored, and nothing is left. DP_SIM_RUNS sets how many worlds are tried,
// DP_SIM_SEED the first seed.
#include <stdlib.h>

#include "campaign.h"
#include "dp_test.h"

#define RUNS_DEFAULT 1500

static uint64_t setting(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text == NULL ? otherwise : strtoull(text, NULL, 10);
}

static void whatever_breaks_each_job_ends_once_and_nothing_is_left(void **state)
{
    (void)state;
    uint64_t first = setting("DP_SIM_SEED", 1), runs = setting("DP_SIM_RUNS", RUNS_DEFAULT);
    struct sim_tally tally = {0};
    assert_true(sim_campaign(first, runs, 2, &tally));
    sim_tally_print(&tally, 0);
    assert_int_equal(tally.worlds, runs);
    // Each of them, not on average.
    assert_true(tally.least_events >= SIM_EVENTS_MIN && tally.least_broken >= SIM_FAULTS_MIN);
    for (int kind = 0; kind < SIM_FAULT_KIND_COUNT && runs >= RUNS_DEFAULT; kind++) {
        assert_true(tally.fired[kind] > 0);
    }
    // What there is to be judged, on average in one world of ten at least.
    uint64_t least = runs >= RUNS_DEFAULT ? runs / 10 : 0;
    assert_true(tally.aimed >= least && tally.recoveries >= least && tally.answers >= least);
    assert_true(tally.wrong >= least / 2 && tally.late >= least / 4);
    assert_true(tally.preemptions >= least && tally.forgotten >= least);
    assert_true(tally.held >= least && tally.grown >= least / 20);
}

static void worlds_that_failed_once_pass(void **state)
{
    (void)state;
    FILE *list = fopen(DP_SOURCE_DIR "/tests/sim/seeds.txt", "r");
    assert_non_null(list);
    char line[256];
    while (fgets(line, sizeof(line), list) != NULL) {
        struct sim_tally tally = {0};
        if (line[0] != '#') {
            assert_true(sim_campaign(sim_seed_parse(line), 1, 1, &tally));
        }
    }
    fclose(list);
}

static void one_seed_gives_one_world(void **state)
{
    (void)state;
    struct sim_tally tallies[2] = {0};
    for (int i = 0; i < 2; i++) {
        assert_true(sim_campaign(1, 20, 1, &tallies[i]));
    }
    assert_memory_equal(&tallies[0], &tallies[1], sizeof(tallies[0]));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(whatever_breaks_each_job_ends_once_and_nothing_is_left),
    cmocka_unit_test(worlds_that_failed_once_pass),
    cmocka_unit_test(one_seed_gives_one_world),
};

int main(void)
{
    return cmocka_run_group_tests(tests, NULL, NULL);
}
