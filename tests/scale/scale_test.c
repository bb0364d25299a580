// The short form of what scale_bench measures: that nothing is lost or refused, with real streams.
#include <ftw.h>
#include <unistd.h>

#include "burst.h"
#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/client.h"
#include "dp/clock.h"
#include "dp_test.h"
#include "fleet.h"
#include "state.h"

#define DEADLINE_MS 120000

static const char toml[] =
    "name = \"scale\"\n[model]\npreset = \"tiny-moe\"\n"
    "[train]\nsteps = 10\nglobal_batch = 16\nsequence = 128\n[parallel]\npipeline = 4\n"
    "expert = 1\ndata = 1\nmicrobatches = 8\nmicro_batch_size = 2\nschedule = \"dualpipe\"\n"
    "[resources]\ndevice = \"sim\"\n[sim]\nforward_s = 0.001\ninput_grad_s = 0.001\n"
    "weight_grad_s = 0.001\n";

struct place {
    char directory[256];
    char state[300];
    struct controller controller;
};

static int setup(void **state)
{
    struct place *place = dp_new(struct place);
    const char *base = getenv("TMPDIR");
    snprintf(place->directory, sizeof(place->directory), "%s/dp-scale-XXXXXX",
             base == NULL ? "/tmp" : base);
    assert_non_null(mkdtemp(place->directory));
    snprintf(place->state, sizeof(place->state), "%s/state", place->directory);
    *state = place;
    return 0;
}

static int remove_one(const char *path, const struct stat *info, int flag, struct FTW *walk)
{
    (void)info;
    (void)flag;
    (void)walk;
    return remove(path);
}

static int teardown(void **state)
{
    struct place *place = *state;
    if (place->controller.pid != 0) {
        controller_stop(&place->controller);
    }
    int code = nftw(place->directory, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    free(place);
    return code;
}

static void start_controller(struct place *place)
{
    struct dp_error err = {0};
    assert_ok(controller_start(DP_CONTROLLER_PATH, place->directory, &place->controller, &err),
              &err);
}

static struct dp_client *connect_client(const struct place *place)
{
    struct dp_client *client = NULL;
    struct dp_error err = {0};
    assert_ok(dp_client_open(place->controller.address, DEADLINE_MS, &client, &err), &err);
    return client;
}

static void cleanup_client(struct dp_client **client)
{
    dp_client_close(*client);
}
#define AUTO_CLIENT DP_CLEANUP(cleanup_client)

// Runs the fleet until it has sent and been answered so much.
static void run_until(struct fleet *fleet, uint64_t samples, uint64_t acked)
{
    int64_t end_ns = dp_clock_monotonic_ns() + DEADLINE_MS * DP_NS_PER_MS;
    while (fleet_figures(fleet).samples < samples || fleet_figures(fleet).acked < acked) {
        assert_true(dp_clock_monotonic_ns() < end_ns);
        fleet_run(fleet, 20);
    }
}

static void every_sample_of_many_ranks_arrives_and_every_heartbeat_is_answered(void **state)
{
    enum { AGENTS = 60, PER_AGENT = 5, PER_JOB = 20 };
    struct place *place = *state;
    struct dp_error err = {0};
    assert_ok(
        state_fill_running(place->state, AGENTS * PER_AGENT / PER_JOB, PER_JOB, PER_AGENT, &err),
        &err);
    start_controller(place);
    struct fleet_options options = {.address = place->controller.address,
                                    .agents = AGENTS,
                                    .connections = AGENTS,
                                    .ranks_per_agent = PER_AGENT,
                                    .ranks_per_job = PER_JOB,
                                    .heartbeat_ms = 200,
                                    .sample_ms = 100,
                                    .lease_ms = 60000};
    struct fleet *fleet = NULL;
    assert_ok(fleet_open(&options, &fleet, &err), &err);
    assert_true(fleet_settle(fleet, DEADLINE_MS));
    run_until(fleet, 5 * AGENTS * PER_AGENT, 3 * AGENTS);
    AUTO_CLIENT struct dp_client *client = connect_client(place);
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__ListNodesResponse *nodes = NULL;
    assert_ok(dp_client_list_nodes(client, &arena, &nodes, &err), &err);
    assert_int_equal(nodes->n_nodes, AGENTS);
    for (size_t i = 0; i < nodes->n_nodes; i++) {
        assert_int_equal(nodes->nodes[i]->slots_used, PER_AGENT);
    }
    char id[32];
    for (int number = 1; number <= AGENTS * PER_AGENT / PER_JOB; number++) {
        Dp__V1__Job *job = NULL;
        snprintf(id, sizeof(id), "job-%d", number);
        assert_ok(dp_client_get_job(client, id, &arena, &job, &err), &err);
        assert_int_equal(job->state, DP__V1__JOB_STATE__JOB_RUNNING);
        assert_int_equal(job->n_ranks, PER_JOB);
        for (size_t r = 0; r < job->n_ranks; r++) {
            assert_non_null(job->ranks[r]->utilisation);
            assert_int_equal(job->ranks[r]->utilisation->forward_ns, 400000000);
        }
    }
    assert_int_equal(fleet_figures(fleet).closed, 0);
    fleet_close(fleet);
}

static void agents_that_fall_silent_at_once_are_lost_together_and_the_others_stay(void **state)
{
    enum { AGENTS = 40, PER_AGENT = 5, PER_JOB = 20, LOST = 12, LEASE_MS = 4000 };
    struct place *place = *state;
    struct dp_error err = {0};
    assert_ok(
        state_fill_running(place->state, AGENTS * PER_AGENT / PER_JOB, PER_JOB, PER_AGENT, &err),
        &err);
    start_controller(place);
    struct fleet_options options = {.address = place->controller.address,
                                    .agents = AGENTS,
                                    .connections = 4,
                                    .ranks_per_agent = PER_AGENT,
                                    .ranks_per_job = PER_JOB,
                                    .heartbeat_ms = 300,
                                    .lease_ms = LEASE_MS};
    struct fleet *fleet = NULL;
    assert_ok(fleet_open(&options, &fleet, &err), &err);
    assert_true(fleet_settle(fleet, DEADLINE_MS));
    run_until(fleet, 0, 2 * AGENTS);
    fleet_silence(fleet, 0, LOST); // jobs 1 to 3
    AUTO_CLIENT struct dp_client *client = connect_client(place);
    size_t lost = 0;
    int64_t end_ns = dp_clock_monotonic_ns() + DEADLINE_MS * DP_NS_PER_MS;
    while (lost < LOST) {
        assert_true(dp_clock_monotonic_ns() < end_ns);
        fleet_run(fleet, 100);
        DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
        Dp__V1__ListNodesResponse *nodes = NULL;
        assert_ok(dp_client_list_nodes(client, &arena, &nodes, &err), &err);
        lost = 0;
        for (size_t i = 0; i < nodes->n_nodes; i++) {
            lost += strcmp(nodes->nodes[i]->state, "LOST") == 0;
        }
        assert_true(lost <= LOST);
    }
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__ListJobsRequest request = DP__V1__LIST_JOBS_REQUEST__INIT;
    Dp__V1__ListJobsResponse *jobs = NULL;
    assert_ok(dp_client_list_jobs(client, &request, &arena, &jobs, &err), &err);
    size_t running = 0;
    for (size_t i = 0; i < jobs->n_jobs; i++) {
        running += jobs->jobs[i]->state == DP__V1__JOB_STATE__JOB_RUNNING;
    }
    assert_int_equal(running, (AGENTS - LOST) * PER_AGENT / PER_JOB);
    fleet_close(fleet);
}

static void a_burst_of_submits_is_all_there_after_kill_9(void **state)
{
    enum { JOBS = 300 };
    struct place *place = *state;
    struct dp_error err = {0};
    double seconds = 0;
    start_controller(place);
    assert_ok(burst_submit(place->controller.address, "burst", toml, JOBS, 64, 4, &seconds, &err),
              &err);
    controller_kill(&place->controller);
    start_controller(place);
    // Each one once: the same request ids find the same jobs.
    assert_ok(burst_submit(place->controller.address, "burst", toml, JOBS, 64, 4, &seconds, &err),
              &err);
    AUTO_CLIENT struct dp_client *client = connect_client(place);
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__ListJobsRequest request = DP__V1__LIST_JOBS_REQUEST__INIT;
    request.limit = 1000;
    Dp__V1__ListJobsResponse *jobs = NULL;
    assert_ok(dp_client_list_jobs(client, &request, &arena, &jobs, &err), &err);
    assert_int_equal(jobs->n_jobs, JOBS);
    Dp__V1__ListAuditRequest ask = DP__V1__LIST_AUDIT_REQUEST__INIT;
    Dp__V1__ListAuditResponse *audit = NULL;
    ask.limit = 10000;
    assert_ok(dp_client_list_audit(client, &ask, &arena, &audit, &err), &err);
    assert_int_equal(audit->n_entries, 2 * JOBS);
}

static void watchers_that_do_not_read_are_dropped_with_an_index_and_readers_get_all(void **state)
{
    // More than a connection takes from a sender whose reader sleeps.
    enum { WATCHERS = 24, READING = 4, EVENTS = 16000, BYTES = 900 };
    struct place *place = *state;
    struct dp_error err = {0};
    assert_ok(state_fill_events(place->state, EVENTS, BYTES, &err), &err);
    start_controller(place);
    struct watchers *watchers = NULL;
    assert_ok(watchers_open(place->controller.address, WATCHERS, READING, 0, &watchers, &err),
              &err);
    int64_t end_ns = dp_clock_monotonic_ns() + DEADLINE_MS * DP_NS_PER_MS;
    while (watchers_figures(watchers).index < EVENTS) {
        assert_true(dp_clock_monotonic_ns() < end_ns);
        watchers_run(watchers, 50);
    }
    while (controller_log_count(place->directory, "events.lagged") < WATCHERS - READING) {
        assert_true(dp_clock_monotonic_ns() < end_ns);
        watchers_run(watchers, 100);
    }
    watchers_wake(watchers);
    while (watchers_figures(watchers).dropped < WATCHERS - READING) {
        assert_true(dp_clock_monotonic_ns() < end_ns);
        watchers_run(watchers, 50);
    }
    struct watchers_figures figures = watchers_figures(watchers);
    assert_int_equal(figures.gaps, 0);
    assert_int_equal(figures.failed, 0);
    watchers_close(watchers);
}

static void ten_thousand_nodes_are_listed_whole(void **state)
{
    enum { NODES = 10000 };
    struct place *place = *state;
    struct dp_error err = {0};
    assert_ok(state_fill_nodes(place->state, NODES, &err), &err);
    start_controller(place);
    AUTO_CLIENT struct dp_client *client = connect_client(place);
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__ListNodesResponse *nodes = NULL;
    assert_ok(dp_client_list_nodes(client, &arena, &nodes, &err), &err);
    assert_int_equal(nodes->n_nodes, NODES);
    for (size_t i = 0; i < nodes->n_nodes; i++) {
        assert_int_equal(strlen(nodes->nodes[i]->name), 63);
    }
}

static void a_start_with_many_ended_jobs_reads_their_numbers_alone(void **state)
{
    enum { JOBS = 3000 };
    struct place *place = *state;
    struct dp_error err = {0};
    assert_ok(state_fill_ended(place->state, JOBS, toml, &err), &err);
    start_controller(place);
    AUTO_CLIENT struct dp_client *client = connect_client(place);
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__Job *job = NULL;
    Dp__V1__SubmitJobRequest request = DP__V1__SUBMIT_JOB_REQUEST__INIT;
    request.job_toml.data = (uint8_t *)toml;
    request.job_toml.len = strlen(toml);
    assert_ok(dp_client_submit_job(client, &request, &arena, &job, &err), &err);
    assert_string_equal(job->id, "job-3001");
    assert_refused(dp_client_cancel_job(client, "job-2999", "", &arena, &job, &err), DP_CONFLICT,
                   &err, "has ended already");
}

#define SCALE_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCALE_TEST(every_sample_of_many_ranks_arrives_and_every_heartbeat_is_answered),
        SCALE_TEST(agents_that_fall_silent_at_once_are_lost_together_and_the_others_stay),
        SCALE_TEST(a_burst_of_submits_is_all_there_after_kill_9),
        SCALE_TEST(watchers_that_do_not_read_are_dropped_with_an_index_and_readers_get_all),
        SCALE_TEST(ten_thousand_nodes_are_listed_whole),
        SCALE_TEST(a_start_with_many_ended_jobs_reads_their_numbers_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
