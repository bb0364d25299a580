// Machines that others use, too: what comes and goes, and messages that nobody had a core for.
#include <math.h>
#include <string.h>

#include "dp/cleanup.h"
#include "dp/rand.h"
#include "dp/straggler.h"
#include "dp_test.h"

DP_DEFINE_CLEANUP(cleanup_straggler, struct dp_straggler, dp_straggler_free)

#define MS INT64_C(1000000)

enum { RANKS = 4 };

struct job {
    struct dp_straggler *detector;
    int64_t step, step_ns;
    int64_t waits_ns; // so much longer a step takes than what its work does
    uint32_t slow_rank;
    double slow;     // of its work; 0 = 1
    double slow_too; // of the work of rank 1; 0 = 1
    int64_t slow_off_core_ns;
    double slow_link;    // of messages between ranks 1 and 2
    int64_t off_core_ns; // of both of these
    int64_t gap_ns;      // of slow_rank, between actions
    bool is_chain;       // each rank has a stage of its own, and sends to its neighbours
    double crowd[RANKS]; // what others make of each rank's work; 0 = 1
    double lacking;      // of what that is more, there is no core; the rest is slow on a core
};

static struct dp_straggler *new_detector(void)
{
    struct dp_straggler_config config;
    dp_straggler_config_init(&config);
    static const uint32_t one_node[RANKS];
    config.ranks = RANKS;
    config.nodes = one_node;
    return dp_straggler_new(&config);
}

// Eight forwards and backwards that take 60 % of the step.
static void report(struct job *job, uint32_t rank)
{
    double slow = rank == job->slow_rank ? job->slow : rank == 1 ? job->slow_too : 0;
    uint16_t stage = job->is_chain ? (uint16_t)rank : 0;
    double crowd = job->crowd[rank] > 0 ? job->crowd[rank] : 1;
    double usual_ns = 0.025 * (double)job->step_ns;
    int64_t one_ns = (int64_t)(usual_ns * (slow > 0 ? slow : 1) * crowd);
    struct dp_straggler_kind kinds[2];
    for (uint8_t i = 0; i < 2; i++) {
        kinds[i] = (struct dp_straggler_kind){.kind = i == 0 ? DP_ACTION_F : DP_ACTION_B,
                                              .stage = stage,
                                              .b_stage = stage,
                                              .count = 8,
                                              .total_ns = 8 * (1 + i) * one_ns,
                                              .median_ns = (1 + i) * one_ns};
    }
    struct dp_straggler_link links[2];
    struct dp_straggler_sample sample = {.rank = rank,
                                         .step = job->step,
                                         .step_ns = job->step_ns + job->waits_ns,
                                         .kinds = kinds,
                                         .kinds_count = 2,
                                         .links = links};
    sample.launch_gap_ns = rank == job->slow_rank ? job->gap_ns : 0;
    sample.off_core_ns = rank == job->slow_rank ? job->slow_off_core_ns : 0;
    sample.off_core_ns += rank == 1 || rank == 2 ? job->off_core_ns : 0;
    sample.off_core_ns += (int64_t)(24 * usual_ns * (crowd - 1) * job->lacking);
    for (uint32_t peer = rank - 1; job->is_chain && peer != rank + 3; peer += 2) {
        bool is_slow = rank + peer == 1 + 2 && job->slow_link > 0;
        if (peer < RANKS) {
            links[sample.links_count++] = (struct dp_straggler_link){
                .peer = peer,
                .count = 8,
                .bytes = 8 << 20,
                .transfer_ns = (int64_t)(16e6 * (is_slow ? job->slow_link : 1))};
        }
    }
    dp_straggler_take(job->detector, &sample);
}

// Takes so many steps; how many suspicions they bring.
static int take(struct job *job, int steps)
{
    int suspicions = 0;
    for (int i = 0; i < steps; i++) {
        job->step++;
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            report(job, rank);
        }
        struct dp_straggler_verdict verdict;
        while (dp_straggler_next(job->detector, &verdict)) {
            suspicions += verdict.state == DP_STRAGGLER_SUSPECTED;
        }
    }
    return suspicions;
}

// Slow for a while, then as fast as others.
static int take_burst(struct job *job, int slow, int healthy)
{
    job->slow = 3;
    int suspicions = take(job, slow);
    job->slow = 1;
    return suspicions + take(job, healthy);
}

static void what_comes_and_goes_is_suspected_less_and_less(void **state)
{
    (void)state;
    DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = new_detector();
    struct job job = {.detector = detector, .step_ns = 10 * MS, .slow_rank = 2};
    assert_int_equal(take(&job, 100), 0);
    int suspicions = 0;
    for (int burst = 0; burst < 60; burst++) { // 0.9 s of each 2 s
        suspicions += take_burst(&job, 90, 110);
    }
    assert_in_range(suspicions, 1, 2);
    // What stays is still found, and what was long ago is forgotten.
    assert_int_equal(take_burst(&job, 1000, 100), 1);
    job.step_ns = 4000 * MS;
    assert_int_equal(take(&job, 1000), 0);
    job.step_ns = 10 * MS;
    assert_int_equal(take(&job, 20), 0);
    for (int burst = 0; burst < 2; burst++) {
        assert_int_equal(take_burst(&job, 110, 110), 1);
    }
}

static void it_is_found_as_soon_as_ever_where_steps_are_long(void **state)
{
    (void)state;
    DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = new_detector();
    struct job job = {.detector = detector, .step_ns = 400 * MS, .slow_rank = 2};
    assert_int_equal(take(&job, 60), 0);
    for (int burst = 0; burst < 4; burst++) {
        assert_int_equal(take_burst(&job, 12, 60), 1);
    }
}

static void messages_that_no_core_was_there_for_blame_no_link(void **state)
{
    (void)state;
    for (int lacking = 0; lacking < 2; lacking++) {
        DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = new_detector();
        struct job job = {.detector = detector, .step_ns = 400 * MS, .is_chain = true};
        assert_int_equal(take(&job, 60), 0);
        // 64 ms of each step are lost by it; the ends lack cores for 40 ms, a sixth of their work.
        job.slow_link = 3;
        job.off_core_ns = lacking == 1 ? 20 * MS : 0;
        assert_int_equal(take(&job, 40), lacking == 1 ? 0 : 1);
    }
}

// In every step one of the ranks takes longer, now one and now another.
static void a_rank_that_lacks_its_core_now_and_then_has_no_uneven_data(void **state)
{
    (void)state;
    for (int lacking = 0; lacking < 2; lacking++) {
        DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = new_detector();
        struct job job = {.detector = detector, .step_ns = 400 * MS};
        bool noted = false;
        for (job.step = 1; job.step <= 80; job.step++) {
            job.slow_rank = (uint32_t)(job.step * 7 / 3) % RANKS;
            job.slow = 1.6;
            job.slow_off_core_ns = lacking == 1 ? 100 * MS : 0; // of 144 ms that it takes longer
            for (uint32_t rank = 0; rank < RANKS; rank++) {
                report(&job, rank);
            }
            struct dp_straggler_verdict verdict;
            while (dp_straggler_next(detector, &verdict)) {
                assert_int_equal(verdict.cause, DP_STRAGGLER_UNEVEN_DATA);
                noted = true;
            }
        }
        assert_int_equal(noted, lacking == 0);
    }
}

// Products of rank 2 take `ratio` times as long as those of others on a core, and for so many
// milliseconds more it has none; the others for 1 ms, if they lack cores. What stands of it then.
struct products {
    double ratio, missing_ms;
    bool others_lack;
};

static dp_straggler_state answer_probe(struct dp_straggler *detector, struct products products)
{
    uint64_t request;
    assert_true(dp_straggler_wants_probe(detector, &request));
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        double missing_ms = rank == 2 ? products.missing_ms : products.others_lack;
        double on_core_ms = rank == 2 ? products.ratio : 1;
        const struct dp_straggler_probe probe = {.request = request,
                                                 .rank = rank,
                                                 .gemm_ns =
                                                     (int64_t)(1e6 * (on_core_ms + missing_ms)),
                                                 .gemm_off_core_ns = (int64_t)(1e6 * missing_ms),
                                                 .gemm_flops = 1e6};
        dp_straggler_take_probe(detector, &probe);
    }
    struct dp_straggler_verdict standing[2];
    size_t count = dp_straggler_standing(detector, standing, 2);
    assert_in_range(count, 1, 2);
    assert_int_equal(standing[count - 1].rank, 2);
    return standing[count - 1].state;
}

// A quota is used up now within an action and now between two.
static void cores_that_are_missed_here_and_there_are_found_as_the_hosts_fault(void **state)
{
    (void)state;
    for (int lasts = 0; lasts < 2; lasts++) {
        DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = new_detector();
        struct job job = {.detector = detector, .step_ns = 400 * MS, .slow_rank = 2};
        assert_int_equal(take(&job, 60), 0);
        int slow_steps = 0;
        for (bool found = false; !found; slow_steps++) {
            bool within = slow_steps % 2 == 0;
            job.slow = within ? 1.6 : 1;
            job.slow_off_core_ns = within ? 144 * MS : 0;
            job.gap_ns = within ? 0 : 144 * MS;
            found = take(&job, 1) > 0;
            assert_true(slow_steps < 12);
        }
        struct dp_straggler_verdict verdict;
        assert_int_equal(dp_straggler_standing(detector, &verdict, 1), 1);
        assert_int_equal(verdict.cause, DP_STRAGGLER_HOST);
        assert_int_equal(verdict.rank, 2);
        assert_true(fabs(verdict.slowdown - 1.6) < 0.05);
        // Whoever took the cores may be gone when the probe is taken, or the next one.
        assert_int_equal(answer_probe(detector, (struct products){.ratio = 1, .missing_ms = 0.6}),
                         DP_STRAGGLER_SUSPECTED);
        assert_int_equal(take(&job, 6), 0);
        const struct products products = {.ratio = 1, .missing_ms = lasts == 1 ? 0.6 : 0};
        assert_int_equal(answer_probe(detector, products),
                         lasts == 1 ? DP_STRAGGLER_CONFIRMED : DP_STRAGGLER_SUSPECTED);
    }
}

// Of every so many steps, of 16 ms, one stands still for 50 ms. What is suspected of it.
static int stand_still(struct job *job, int steps, int every)
{
    int suspicions = 0;
    for (int i = 0; i < steps; i++) {
        bool stands = i % every == every - 1, within = i % 2 == 1;
        job->step_ns = 16 * MS;
        job->slow = stands && within ? 1 + 50 / 9.6 : 1;
        job->slow_off_core_ns = stands && within ? 50 * MS : 0;
        job->gap_ns = stands && !within ? 50 * MS : 0;
        job->waits_ns = stands ? 50 * MS : 0;
        suspicions += take(job, 1);
    }
    job->slow = 1;
    job->slow_off_core_ns = job->gap_ns = job->waits_ns = 0;
    return suspicions;
}

// Half a core: a kernel that deals it out every 0.1 s lets three steps run and stops in the fourth.
static void quotas_that_stop_few_of_many_short_steps_are_found(void **state)
{
    (void)state;
    for (int every = 3; every < 6; every++) {
        DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = new_detector();
        struct job job = {.detector = detector, .step_ns = 16 * MS, .slow_rank = 2};
        assert_int_equal(take(&job, 60), 0);
        assert_int_equal(stand_still(&job, 60, every), 1); // 2 s and less
        struct dp_straggler_verdict verdict;
        assert_int_equal(dp_straggler_standing(detector, &verdict, 1), 1);
        assert_int_equal(verdict.cause, DP_STRAGGLER_HOST);
        assert_int_equal(verdict.rank, 2);
        assert_in_range(verdict.onset_step, 50, 70);
        // It stands as long as that goes on.
        assert_int_equal(stand_still(&job, 200, every), 0);
        assert_int_equal(dp_straggler_standing(detector, &verdict, 1), 1);
        assert_int_equal(take(&job, 60), 0);
        assert_int_equal(dp_straggler_standing(detector, &verdict, 1), 0);
    }
}

static void single_steps_that_stand_still_are_nobodys_fault(void **state)
{
    (void)state;
    DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = new_detector();
    struct job job = {.detector = detector, .step_ns = 16 * MS, .slow_rank = 2};
    assert_int_equal(take(&job, 60), 0);
    assert_int_equal(stand_still(&job, 4000, 40), 0);
}

// What a rank loses to missing cores lies in few of its steps, but it is most of what it loses.
static void a_rank_that_lacks_its_core_in_some_steps_has_no_slow_device(void **state)
{
    (void)state;
    DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = new_detector();
    struct job job = {.detector = detector, .step_ns = 400 * MS, .slow_rank = 2};
    assert_int_equal(take(&job, 60), 0);
    int suspicions = 0;
    for (int i = 0; i < 16; i++) {
        bool lacks = i % 4 == 0;
        job.slow = lacks ? 6 : 1.4;
        job.slow_off_core_ns = lacks ? 1200 * MS : 0;
        suspicions += take(&job, 1);
    }
    assert_int_equal(suspicions, 1);
    struct dp_straggler_verdict verdict;
    assert_int_equal(dp_straggler_standing(detector, &verdict, 1), 1);
    assert_int_equal(verdict.cause, DP_STRAGGLER_HOST);
}

// Rank 2 takes `slow` times as long, and is suspected.
static struct dp_straggler *new_suspicion(struct job *job, double slow)
{
    struct dp_straggler *detector = new_detector();
    *job = (struct job){.detector = detector, .step_ns = 400 * MS, .slow_rank = 2};
    assert_int_equal(take(job, 60), 0);
    job->slow = slow;
    assert_int_equal(take(job, 12), 1);
    return detector;
}

// Where others use the machine, some rank is a little slower in every probe.
static void a_probe_confirms_what_it_explains_a_good_part_of(void **state)
{
    (void)state;
    for (int agrees = 0; agrees < 2; agrees++) {
        struct job job;
        DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = new_suspicion(&job, 3);
        const struct products products = {.ratio = agrees == 1 ? 2 : 1.3};
        assert_int_equal(answer_probe(detector, products),
                         agrees == 1 ? DP_STRAGGLER_CONFIRMED : DP_STRAGGLER_SUSPECTED);
    }
}

static void what_is_little_slower_is_confirmed_when_it_is_found_twice_in_succession(void **state)
{
    (void)state;
    const struct products found = {.ratio = 1.2}, not_found = {.ratio = 1};
    struct job job;
    DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = new_suspicion(&job, 1.25);
    assert_int_equal(answer_probe(detector, found), DP_STRAGGLER_SUSPECTED);
    take(&job, 5); // the next one soon, but not at once: 2 s
    assert_int_equal(answer_probe(detector, not_found), DP_STRAGGLER_SUSPECTED);
    take(&job, 20);
    assert_int_equal(answer_probe(detector, found), DP_STRAGGLER_SUSPECTED);
    take(&job, 5);
    assert_int_equal(answer_probe(detector, found), DP_STRAGGLER_CONFIRMED);
}

// Others slow cores down, too, without taking them: the other thread of one, a cache, a hypervisor.
static void
what_computes_on_cores_is_confirmed_by_two_probes_and_an_accelerator_by_one(void **state)
{
    (void)state;
    const struct products found = {.ratio = 2};
    for (int on_cores = 0; on_cores < 2; on_cores++) {
        struct job job;
        DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = new_suspicion(&job, 2);
        job.off_core_ns = on_cores == 1 ? 1 * MS : 0;
        assert_int_equal(take(&job, 1), 0);
        assert_int_equal(answer_probe(detector, found),
                         on_cores == 1 ? DP_STRAGGLER_SUSPECTED : DP_STRAGGLER_CONFIRMED);
        if (on_cores == 1) {
            assert_int_equal(take(&job, 5), 0);
            assert_int_equal(answer_probe(detector, found), DP_STRAGGLER_CONFIRMED);
        }
    }
}

// Any machine takes cores away for a moment.
static void missing_cores_are_confirmed_when_they_are_found_twice_in_succession(void **state)
{
    (void)state;
    const struct products few = {.ratio = 1, .missing_ms = 0.2};
    struct job job;
    DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = new_detector();
    job = (struct job){.detector = detector, .step_ns = 400 * MS, .slow_rank = 2, .slow = 1};
    assert_int_equal(take(&job, 60), 0);
    job.gap_ns = 100 * MS;
    assert_int_equal(take(&job, 10), 1);
    assert_int_equal(answer_probe(detector, few), DP_STRAGGLER_SUSPECTED);
    take(&job, 5);
    assert_int_equal(answer_probe(detector, (struct products){.ratio = 1.2}),
                     DP_STRAGGLER_SUSPECTED); // slower, but with all its cores
    take(&job, 20);
    assert_int_equal(answer_probe(detector, few), DP_STRAGGLER_SUSPECTED);
    take(&job, 5);
    assert_int_equal(answer_probe(detector, few), DP_STRAGGLER_CONFIRMED);
}

static void the_second_probe_of_short_steps_comes_seconds_later(void **state)
{
    (void)state;
    struct job job;
    DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = new_suspicion(&job, 1.25);
    job.step_ns = 10 * MS;
    uint64_t request;
    assert_int_equal(answer_probe(detector, (struct products){.ratio = 1.2}),
                     DP_STRAGGLER_SUSPECTED);
    take(&job, 190);
    assert_false(dp_straggler_wants_probe(detector, &request));
    take(&job, 20);
    assert_true(dp_straggler_wants_probe(detector, &request));
}

// Rank 1 is suspected and probed half a second after rank 2.
static void a_probe_tells_of_those_that_it_was_taken_for(void **state)
{
    (void)state;
    const struct products found = {.ratio = 1.2};
    struct job job;
    DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = new_suspicion(&job, 1.25);
    assert_int_equal(answer_probe(detector, found), DP_STRAGGLER_SUSPECTED);
    job.step_ns = 10 * MS;
    job.slow_too = 3;
    assert_int_equal(take(&job, 100), 1);
    assert_int_equal(answer_probe(detector, found), DP_STRAGGLER_SUSPECTED);
}

// A probe that takes longer because there is no core for it tells nothing of a device, and what is
// little slower on its core may be the others' doing, too: caches, memory.
static void products_that_lack_cores_confirm_no_device_that_is_little_slower(void **state)
{
    (void)state;
    static const struct products crowded[] = {
        {.ratio = 1, .missing_ms = 0.6},
        {.ratio = 1.35, .missing_ms = 2, .others_lack = true},
        {.ratio = 1.35, .others_lack = true},
    };
    for (size_t i = 0; i < sizeof(crowded) / sizeof(crowded[0]); i++) {
        struct job job;
        DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = new_suspicion(&job, 1.25);
        uint64_t request;
        for (int probe = 0; probe < 3; probe++) {
            assert_int_equal(answer_probe(detector, crowded[i]), DP_STRAGGLER_SUSPECTED);
            take(&job, 20);
        }
        assert_false(dp_straggler_wants_probe(detector, &request));
    }
}

static void a_device_that_is_much_slower_is_confirmed_on_a_crowded_node_by_two_probes(void **state)
{
    (void)state;
    const struct products crowded = {.ratio = 1.5, .missing_ms = 1, .others_lack = true};
    struct job job;
    DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = new_suspicion(&job, 1.5);
    assert_int_equal(answer_probe(detector, crowded), DP_STRAGGLER_SUSPECTED);
    take(&job, 5);
    assert_int_equal(answer_probe(detector, crowded), DP_STRAGGLER_CONFIRMED);
}

// What is left when the missing cores are taken out would not be suspected.
static void a_rank_that_lacks_cores_for_part_of_what_it_loses_has_no_slow_device(void **state)
{
    (void)state;
    DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = new_detector();
    struct job job = {.detector = detector, .step_ns = 400 * MS, .slow_rank = 2};
    assert_int_equal(take(&job, 60), 0);
    job.slow = 1.25; // 60 of 240 ms
    job.slow_off_core_ns = 20 * MS;
    assert_int_equal(take(&job, 12), 1);
    struct dp_straggler_verdict verdict;
    assert_int_equal(dp_straggler_standing(detector, &verdict, 1), 1);
    assert_int_equal(verdict.cause, DP_STRAGGLER_HOST);
}

static void what_is_far_slower_than_what_came_and_went_is_found_at_once(void **state)
{
    (void)state;
    DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = new_detector();
    struct job job = {.detector = detector, .step_ns = 100 * MS, .slow_rank = 2};
    assert_int_equal(take(&job, 100), 0);
    for (int burst = 0; burst < 60; burst++) {
        take_burst(&job, 30, 110);
    }
    job.slow = 3;
    assert_int_equal(take(&job, 12), 0);
    job.slow = 1;
    take(&job, 20);
    job.slow = 10;
    assert_int_equal(take(&job, 12), 1);
}

// The others' load of each core goes on for about a second, 40 steps.
static void change_crowd(struct job *job, struct dp_rand *rand, double loads[RANKS])
{
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        loads[rank] += (dp_rand_normal(rand) * 0.6 - loads[rank]) * 0.3 * dp_rand_double(rand);
        job->crowd[rank] = exp(fmax(loads[rank], 0));
    }
}

static void probe_crowd(const struct job *job, uint64_t request)
{
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        double missing = (job->crowd[rank] - 1) * job->lacking;
        const struct dp_straggler_probe probe = {.request = request,
                                                 .rank = rank,
                                                 .gemm_ns = (int64_t)(1e6 * job->crowd[rank]),
                                                 .gemm_off_core_ns = (int64_t)(1e6 * missing),
                                                 .gemm_flops = 1e6};
        dp_straggler_take_probe(job->detector, &probe);
    }
}

static void whatever_others_take_of_a_node_no_device_is_confirmed(void **state)
{
    (void)state;
    long runs = dp_fuzz_runs(10);
    int confirmed = 0;
    for (uint64_t seed = 1; seed <= (uint64_t)runs; seed++) {
        struct dp_rand rand;
        dp_rand_init(&rand, seed);
        DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = new_detector();
        struct job job = {.detector = detector, .step_ns = 25 * MS, .slow_rank = RANKS};
        job.lacking = 0.5 + 0.5 * dp_rand_double(&rand);
        double loads[RANKS] = {0};
        for (int step = 0; step < 5000; step++) {
            change_crowd(&job, &rand, loads);
            take(&job, 1);
            uint64_t request;
            if (dp_straggler_wants_probe(detector, &request)) {
                probe_crowd(&job, request);
            }
            struct dp_straggler_verdict verdict;
            while (dp_straggler_next(detector, &verdict)) {
                assert_false(verdict.state == DP_STRAGGLER_CONFIRMED &&
                             verdict.cause == DP_STRAGGLER_DEVICE);
                confirmed += verdict.state == DP_STRAGGLER_CONFIRMED;
            }
        }
    }
    printf("%d hosts confirmed\n", confirmed);
}

// A single long step is no time that a host has taken anything away for.
static void one_long_step_makes_no_suspicion_of_a_host_last_longer(void **state)
{
    (void)state;
    DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = new_detector();
    struct job job = {.detector = detector, .step_ns = 16 * MS, .slow_rank = 2};
    assert_int_equal(take(&job, 60), 0);
    for (int burst = 0; burst < 2; burst++) { // of 1.7 s; the next one has to last for 2 s
        assert_int_equal(stand_still(&job, 60, 4), 1);
        assert_int_equal(take(&job, 120), 0);
    }
    assert_int_equal(stand_still(&job, 50, 4), 0);
    job.gap_ns = 200 * MS;
    job.waits_ns = 3000 * MS;
    assert_int_equal(take(&job, 1), 0);
    job.gap_ns = job.waits_ns = 0;
    assert_int_equal(stand_still(&job, 6, 4), 0);
}

// What a host takes away since experts changed places is how it is from then on.
static void what_hosts_take_since_our_own_action_is_nobodys_fault(void **state)
{
    (void)state;
    for (int period = 0; period < 8; period++) {
        for (int64_t step_ns = 16 * MS; step_ns <= 400 * MS; step_ns += 384 * MS) {
            DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = new_detector();
            struct job job = {.detector = detector, .step_ns = step_ns, .slow_rank = 2};
            assert_int_equal(take(&job, 200 + (step_ns < 100 * MS ? 7 : 1) * period), 0);
            dp_straggler_freeze(detector, job.step, "experts changed places");
            job.gap_ns = step_ns / 4;
            assert_int_equal(take(&job, 400), 0);
            // More than that is.
            job.gap_ns = step_ns;
            assert_int_equal(take(&job, 100), 1);
        }
    }
}

// What came before one rank was suspected is no time that data have been uneven for.
static void data_are_uneven_for_as_long_as_that_was_seen(void **state)
{
    (void)state;
    DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = new_detector();
    struct job job = {.detector = detector, .step_ns = 16 * MS, .slow_rank = 2};
    assert_int_equal(take(&job, 60), 0);
    job.slow = 3;
    assert_int_equal(take(&job, 600), 1);
    bool noted = false;
    int steps = 0;
    for (; steps < 600 && !noted; steps++) { // now one and now another
        job.slow_rank = (uint32_t)(job.step * 7 / 3) % RANKS;
        job.slow = 1.6;
        job.step++;
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            report(&job, rank);
        }
        struct dp_straggler_verdict verdict;
        while (dp_straggler_next(detector, &verdict)) {
            noted = noted || verdict.cause == DP_STRAGGLER_UNEVEN_DATA;
        }
    }
    assert_true(noted);
    assert_in_range(steps, 5000 / 16, 500);
}

// One step in three stands still for 50 ms, between actions: 50 of 98 ms.
static void the_share_that_a_host_takes_is_of_the_time_of_all_steps(void **state)
{
    (void)state;
    DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = new_detector();
    struct job job = {.detector = detector, .step_ns = 16 * MS, .slow_rank = 2};
    for (int i = 0; i < 300; i++) {
        job.gap_ns = job.waits_ns = i % 3 == 2 ? 50 * MS : 0;
        take(&job, 1);
    }
    struct dp_straggler_score score;
    dp_straggler_score(detector, 2, &score);
    assert_true(fabs(score.gap - 50.0 / 98) < 0.1);
}

// The first probe found a device a little slower, the second one that it has no core.
static void what_two_probes_find_has_to_be_the_same(void **state)
{
    (void)state;
    struct job job;
    DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = new_suspicion(&job, 1.25);
    assert_int_equal(answer_probe(detector, (struct products){.ratio = 1.2}),
                     DP_STRAGGLER_SUSPECTED);
    job.slow_off_core_ns = 55 * MS; // of 60
    take(&job, 6);
    const struct products missing = {.ratio = 1, .missing_ms = 0.6};
    assert_int_equal(answer_probe(detector, missing), DP_STRAGGLER_SUSPECTED);
    take(&job, 6);
    assert_int_equal(answer_probe(detector, missing), DP_STRAGGLER_CONFIRMED);
}

// Any rank that computes on cores misses one for a moment in each step.
static void a_link_of_ranks_on_cores_is_slow_until_it_recovers(void **state)
{
    (void)state;
    DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = new_detector();
    struct job job = {.detector = detector, .step_ns = 400 * MS, .is_chain = true};
    job.off_core_ns = MS / 10;
    assert_int_equal(take(&job, 60), 0);
    job.slow_link = 3;
    assert_int_equal(take(&job, 12), 1);
    job.slow_link = 1;
    assert_int_equal(take(&job, 1), 0);
    struct dp_straggler_verdict verdict;
    assert_int_equal(dp_straggler_standing(detector, &verdict, 1), 1);
    job.slow_link = 3;
    assert_int_equal(take(&job, 20), 0);
    job.slow_link = 1;
    for (int i = 0; i < 20 && dp_straggler_standing(detector, &verdict, 1) > 0; i++) {
        job.step++;
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            report(&job, rank);
        }
    }
    assert_true(dp_straggler_next(detector, &verdict));
    assert_int_equal(verdict.state, DP_STRAGGLER_HEALTHY);
    assert_non_null(strstr(verdict.text, "as fast as others"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_comes_and_goes_is_suspected_less_and_less),
        cmocka_unit_test(it_is_found_as_soon_as_ever_where_steps_are_long),
        cmocka_unit_test(messages_that_no_core_was_there_for_blame_no_link),
        cmocka_unit_test(a_rank_that_lacks_its_core_now_and_then_has_no_uneven_data),
        cmocka_unit_test(cores_that_are_missed_here_and_there_are_found_as_the_hosts_fault),
        cmocka_unit_test(quotas_that_stop_few_of_many_short_steps_are_found),
        cmocka_unit_test(single_steps_that_stand_still_are_nobodys_fault),
        cmocka_unit_test(a_rank_that_lacks_its_core_in_some_steps_has_no_slow_device),
        cmocka_unit_test(a_rank_that_lacks_cores_for_part_of_what_it_loses_has_no_slow_device),
        cmocka_unit_test(a_probe_confirms_what_it_explains_a_good_part_of),
        cmocka_unit_test(what_is_little_slower_is_confirmed_when_it_is_found_twice_in_succession),
        cmocka_unit_test(
            what_computes_on_cores_is_confirmed_by_two_probes_and_an_accelerator_by_one),
        cmocka_unit_test(missing_cores_are_confirmed_when_they_are_found_twice_in_succession),
        cmocka_unit_test(the_second_probe_of_short_steps_comes_seconds_later),
        cmocka_unit_test(a_probe_tells_of_those_that_it_was_taken_for),
        cmocka_unit_test(products_that_lack_cores_confirm_no_device_that_is_little_slower),
        cmocka_unit_test(a_device_that_is_much_slower_is_confirmed_on_a_crowded_node_by_two_probes),
        cmocka_unit_test(whatever_others_take_of_a_node_no_device_is_confirmed),
        cmocka_unit_test(what_is_far_slower_than_what_came_and_went_is_found_at_once),
        cmocka_unit_test(one_long_step_makes_no_suspicion_of_a_host_last_longer),
        cmocka_unit_test(what_hosts_take_since_our_own_action_is_nobodys_fault),
        cmocka_unit_test(data_are_uneven_for_as_long_as_that_was_seen),
        cmocka_unit_test(the_share_that_a_host_takes_is_of_the_time_of_all_steps),
        cmocka_unit_test(what_two_probes_find_has_to_be_the_same),
        cmocka_unit_test(a_link_of_ranks_on_cores_is_slow_until_it_recovers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
