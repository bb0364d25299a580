// Probes between two steps: who measures with whom, and that nothing else changes.
#include <sched.h>
#include <string.h>

#include "dp/clock.h"
#include "dp/sim_pace.h"
#include "dp_test.h"
#include "exec_harness.h"
#include "slow.h"

#define RANKS 4

static struct trial trial_of(const char *schedule)
{
    struct trial trial = trial_default();
    trial.schedule = schedule;
    trial.pipeline = RANKS;
    trial.layers = 8;
    trial.microbatches = 8;
    trial.steps = 2;
    trial.probe_after = 1;
    return trial;
}

static const struct dp_probe_link *link_to(const struct dp_probe *probe, int32_t peer)
{
    for (int32_t i = 0; i < probe->links_count; i++) {
        if (probe->links[i].peer == peer) {
            return &probe->links[i];
        }
    }
    return NULL;
}

// Each rank has the links of `neighbours` (a string of its peers' positions) and no others.
static void expect_links(const struct trial *trial, const struct trial_result *result,
                         const char *const neighbours[RANKS])
{
    for (int32_t rank = 0; rank < result->world; rank++) {
        const struct dp_probe *probe = &result->ranks[rank].probe;
        int32_t base = rank / RANKS * RANKS;
        assert_int_equal(probe->links_count, strlen(neighbours[rank - base]));
        for (const char *c = neighbours[rank - base]; *c != '\0'; c++) {
            const struct dp_probe_link *mine = link_to(probe, base + *c - '0');
            assert_non_null(mine);
            const struct dp_probe_link *theirs =
                link_to(&result->ranks[base + *c - '0'].probe, rank);
            assert_non_null(theirs);
            assert_int_equal(mine->latency_ns, theirs->latency_ns);
            assert_true(mine->bytes_per_s == theirs->bytes_per_s);
            assert_true(mine->latency_ns > 0 && mine->bytes_per_s > 0);
        }
        assert_true(trial->sim || probe->product_ns > 0);
        assert_true(probe->product_flops == 2.0 * 256 * 256 * 256);
    }
}

static void every_rank_measures_its_neighbours_in_the_pipeline(void **state)
{
    (void)state;
    static const char *const line[RANKS] = {"1", "02", "13", "2"};
    static const char *const ring[RANKS] = {"13", "02", "13", "02"};
    const struct {
        const char *schedule;
        int32_t virtual_stages, data;
        const char *const *neighbours;
    } cases[] = {
        {"1f1b", 0, 2, line},
        {"interleaved", 2, 1, ring},
        {"dualpipe", 0, 1, line},
        {"zb-v", 0, 1, line},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct trial trial = trial_of(cases[i].schedule);
        struct trial_result result;
        trial.virtual_stages = cases[i].virtual_stages;
        trial.data = cases[i].data;
        trial_run(&trial, &result);
        trial_expect_ok(&result);
        expect_links(&trial, &result, cases[i].neighbours);
        trial_result_deinit(&result);
    }
}

static void a_probe_changes_no_weight_and_no_loss(void **state)
{
    (void)state;
    struct trial trial = trial_of("dualpipe");
    struct trial_result probed, plain;
    trial.steps = 3;
    trial_run(&trial, &probed);
    trial.probe_after = 0;
    trial_run(&trial, &plain);
    trial_expect_ok(&probed);
    trial_expect_ok(&plain);
    for (int32_t rank = 0; rank < RANKS; rank++) {
        const struct trial_rank *a = &probed.ranks[rank], *b = &plain.ranks[rank];
        assert_true(a->reports[3].loss == b->reports[3].loss);
        assert_int_equal(a->weights_count, b->weights_count);
        for (size_t i = 0; i < a->weights_count; i++) {
            assert_memory_equal(a->weights[i].values, b->weights[i].values,
                                (size_t)a->weights[i].count * sizeof(double));
        }
    }
    trial_result_deinit(&probed);
    trial_result_deinit(&plain);
}

static void no_link_is_found_faster_than_it_is(void **state)
{
    (void)state;
    const struct slow_link slow = {.seed = 1, .latency_us = 2000, .bytes_per_second = 40e6};
    struct trial trial = trial_of("1f1b");
    struct trial_result result;
    trial.slow = &slow;
    trial_run(&trial, &result);
    trial_expect_ok(&result);
    for (int32_t rank = 0; rank < RANKS; rank++) {
        const struct dp_probe *probe = &result.ranks[rank].probe;
        for (int32_t i = 0; i < probe->links_count; i++) {
            const struct dp_probe_link *link = &probe->links[i];
            assert_true(link->latency_ns >= 2 * DP_NS_PER_MS);
            // A long message there and back: twice the latency and its bytes at that pace.
            double long_ns = 2.0 * (double)link->latency_ns +
                             2.0 * (256 << 10) * (double)DP_NS_PER_S / link->bytes_per_s;
            assert_true(long_ns >= 4e6 + 2.0 * (256 << 10) * 1e9 / 40e6 - 1e5);
        }
    }
    trial_result_deinit(&result);
}

// One core, by affinity, for all ranks.
static void what_products_had_no_core_for_is_told(void **state)
{
    (void)state;
    cpu_set_t before, one;
    assert_int_equal(sched_getaffinity(0, sizeof(before), &before), 0);
    CPU_ZERO(&one);
    for (int cpu = 0; CPU_COUNT(&one) == 0; cpu++) {
        if (CPU_ISSET(cpu, &before)) {
            CPU_SET(cpu, &one);
        }
    }
    assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
    struct trial trial = trial_of("1f1b");
    struct trial_result result;
    trial_run(&trial, &result);
    assert_int_equal(sched_setaffinity(0, sizeof(before), &before), 0);
    trial_expect_ok(&result);
    double on_core = 0;
    for (int32_t rank = 0; rank < RANKS; rank++) {
        const struct dp_probe *probe = &result.ranks[rank].probe;
        assert_in_range(probe->product_off_core_ns, 0, probe->product_ns);
        on_core += 1 - (double)probe->product_off_core_ns / (double)probe->product_ns;
    }
    // All compute at once: together they have about one core, and not one each.
    assert_true(on_core > 0 && on_core < RANKS - 1);
    trial_result_deinit(&result);
}

static dp_status open_accelerator(dp_element element, struct dp_device **ret_device,
                                  struct dp_error *err)
{
    dp_status status = dp_device_open_cpu(element, ret_device, err);
    if (status == DP_OK) {
        (*ret_device)->on_host = false;
    }
    return status;
}

static void who_waits_for_an_accelerator_lacks_no_core(void **state)
{
    (void)state;
    struct trial trial = trial_of("1f1b");
    trial.open_device = open_accelerator;
    trial.probe_after = 1;
    struct trial_result result;
    trial_run(&trial, &result);
    trial_expect_ok(&result);
    for (int32_t rank = 0; rank < RANKS; rank++) {
        assert_true(result.ranks[rank].probe.product_ns > 0);
        assert_int_equal(result.ranks[rank].probe.product_off_core_ns, 0);
    }
    trial_result_deinit(&result);
}

static void sim_ranks_say_how_slow_they_and_their_links_are(void **state)
{
    (void)state;
    static const struct dp_sim_place places[RANKS] = {
        {0, "n1", 0}, {1, "n1", 1}, {2, "n2", 0}, {3, "n2", 1}};
    const struct dp_sim_spec spec = {.slow = "slot=n2/0:3@2", .slow_link = "0-1:5"};
    const struct dp_sim_uniform uniform = {.f = 1e-3, .b = 2e-3, .hop = {.latency = 2e-3}};
    for (int64_t step = 1; step <= 2; step++) {
        struct trial trial = trial_of("1f1b");
        struct dp_sim_pace *paces[RANKS];
        struct dp_schedule schedule;
        struct dp_sim_costs costs;
        struct trial_result result;
        trial_make_schedule(&trial, &schedule);
        dp_sim_costs_init_uniform(&costs, &schedule, &uniform);
        for (int32_t i = 0; i < RANKS; i++) {
            const struct dp_sim_pace_config config = {
                .spec = &spec, .places = places, .world = RANKS, .rank = i};
            struct dp_error err = {0};
            assert_ok(dp_sim_pace_new(&config, &paces[i], &err), &err);
        }
        trial.sim = true;
        trial.costs = &costs;
        trial.paces = (const struct dp_sim_pace *const *)paces;
        trial.probe_after = step;
        trial_run(&trial, &result);
        trial_expect_ok(&result);
        for (int32_t i = 0; i < RANKS; i++) {
            int64_t slowness = i == 2 && step == 2 ? 3 : 1;
            assert_int_equal(result.ranks[i].probe.product_ns, slowness * DP_NS_PER_MS);
            dp_sim_pace_free(paces[i]);
        }
        assert_true(link_to(&result.ranks[0].probe, 1)->latency_ns >= 10 * DP_NS_PER_MS);
        assert_true(link_to(&result.ranks[1].probe, 0)->latency_ns >= 10 * DP_NS_PER_MS);
        assert_true(link_to(&result.ranks[1].probe, 2)->latency_ns >= 2 * DP_NS_PER_MS);
        trial_result_deinit(&result);
        dp_sim_costs_deinit(&costs);
        dp_schedule_deinit(&schedule);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rank_measures_its_neighbours_in_the_pipeline),
        cmocka_unit_test(a_probe_changes_no_weight_and_no_loss),
        cmocka_unit_test(no_link_is_found_faster_than_it_is),
        cmocka_unit_test(what_products_had_no_core_for_is_told),
        cmocka_unit_test(who_waits_for_an_accelerator_lacks_no_core),
        cmocka_unit_test(sim_ranks_say_how_slow_they_and_their_links_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
