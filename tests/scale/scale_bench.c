// How much one controller carries, each figure beside its bound; rows of build/bench.json. Sections
// as arguments (heartbeats, submits, watchers, restart, lost) run these alone.
#include <ftw.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "burst.h"
#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/client.h"
#include "dp/clock.h"
#include "fleet.h"
#include "state.h"

static const char *program;
static char directory[256];
static const char toml[] =
    "name = \"scale\"\n[model]\npreset = \"tiny-moe\"\n"
    "[train]\nsteps = 10\nglobal_batch = 16\nsequence = 128\n[parallel]\npipeline = 4\n"
    "expert = 1\ndata = 1\nmicrobatches = 8\nmicro_batch_size = 2\nschedule = \"dualpipe\"\n"
    "[resources]\ndevice = \"sim\"\n[sim]\nforward_s = 0.001\ninput_grad_s = 0.001\n"
    "weight_grad_s = 0.001\n";

static void row(const char *name, double value, const char *unit, const char *bound, double limit,
                bool most)
{
    bool met = most ? value <= limit : value >= limit;
    printf("{\"name\": \"scale: %s\", \"value\": %.6g, \"unit\": \"%s\", \"peer\": \"%s\", "
           "\"ratio\": %.4g, \"goal\": \"%s %g %s\", \"met\": %s}\n",
           name, value, unit, bound, limit == 0 ? value : value / limit,
           most ? "at most" : "at least", limit, unit, met ? "true" : "false");
    fflush(stdout);
}

static void must(dp_status status, const struct dp_error *err)
{
    if (status != DP_OK) {
        fprintf(stderr, "scale_bench: %s\n", err->message);
        exit(1);
    }
}

static int remove_one(const char *path, const struct stat *info, int flag, struct FTW *walk)
{
    (void)info;
    (void)flag;
    (void)walk;
    return remove(path);
}

static void fresh_directory(void)
{
    const char *base = getenv("TMPDIR");
    snprintf(directory, sizeof(directory), "%s/dp-scale-XXXXXX", base == NULL ? "/tmp" : base);
    DP_CHECK(mkdtemp(directory) != NULL);
}

static void remove_directory(void)
{
    nftw(directory, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static struct controller start_controller(void)
{
    struct controller controller = {0};
    struct dp_error err = {0};
    must(controller_start(program, directory, &controller, &err), &err);
    return controller;
}

// 2,000 agents, a heartbeat each 5 s; 10,000 ranks, a sample each second.
static void bench_heartbeats(void)
{
    // Settled: what is kept of every rank's newest steps is as long as it gets.
    enum { AGENTS = 2000, PER_AGENT = 5, PER_JOB = 100, SETTLE_MS = 20000, RUN_MS = 20000 };
    fresh_directory();
    DP_AUTO_FREE char *state = dp_asprintf("%s/state", directory);
    struct dp_error err = {0};
    must(state_fill_running(state, AGENTS * PER_AGENT / PER_JOB, PER_JOB, PER_AGENT, &err), &err);
    struct controller controller = start_controller();
    struct fleet_options options = {.address = controller.address,
                                    .agents = AGENTS,
                                    .connections = AGENTS,
                                    .ranks_per_agent = PER_AGENT,
                                    .ranks_per_job = PER_JOB,
                                    .heartbeat_ms = 5000,
                                    .sample_ms = 1000,
                                    .lease_ms = 30000};
    struct fleet *fleet = NULL;
    must(fleet_open(&options, &fleet, &err), &err);
    DP_CHECK(fleet_settle(fleet, 60000));
    fleet_run(fleet, SETTLE_MS);
    struct fleet_figures before = fleet_figures(fleet);
    double cpu_s = controller_cpu_s(&controller);
    uint64_t rss = controller_rss_bytes(&controller);
    int64_t begin_ns = dp_clock_monotonic_ns();
    fleet_run(fleet, RUN_MS);
    double seconds = (double)(dp_clock_monotonic_ns() - begin_ns) / 1e9;
    struct fleet_figures after = fleet_figures(fleet);
    cpu_s = controller_cpu_s(&controller) - cpu_s;
    double grown = ((double)controller_rss_bytes(&controller) - (double)rss) / (double)rss;
    row("samples of 10,000 ranks each second, taken",
        (double)(after.samples - before.samples) / seconds, "samples/s", "all that were due", 9900,
        false);
    row("heartbeats of 2,000 agents each 5 s, answered",
        (double)(after.acked - before.acked) / seconds, "heartbeats/s", "all that were due", 390,
        false);
    row("processor time for these", cpu_s / seconds, "cores", "half of one core", 0.5, true);
    row("memory while they come", 1 + grown, "times before", "flat", 1.05, true);
    DP_CHECK(after.closed == 0);
    fleet_close(fleet);
    controller_stop(&controller);
    remove_directory();
}

static void bench_submits(void)
{
    enum { COUNT = 5000, AT_ONCE = 64, CONNECTIONS = 4 };
    fresh_directory();
    struct controller controller = start_controller();
    double seconds = 0;
    struct dp_error err = {0};
    must(burst_submit(controller.address, "warm", toml, 200, AT_ONCE, CONNECTIONS, &seconds, &err),
         &err);
    must(burst_submit(controller.address, "burst", toml, COUNT, AT_ONCE, CONNECTIONS, &seconds,
                      &err),
         &err);
    row("jobs handed in, validated and on disk", COUNT / seconds, "jobs/s", "1,000 a second", 1000,
        false);
    controller_stop(&controller);
    remove_directory();
}

// Thirty megabytes of events: more than a connection takes from a sender whose reader sleeps.
static void bench_watchers(void)
{
    enum { WATCHERS = 200, READING = 20, EVENTS = 60000, BYTES = 500, LAG_MS = 20000 };
    fresh_directory();
    DP_AUTO_FREE char *state = dp_asprintf("%s/state", directory);
    struct dp_error err = {0};
    must(state_fill_events(state, EVENTS, BYTES, &err), &err);
    struct controller controller = start_controller();
    uint64_t rss = controller_rss_bytes(&controller);
    struct watchers *watchers = NULL;
    must(watchers_open(controller.address, WATCHERS, READING, 0, &watchers, &err), &err);
    int64_t begin_ns = dp_clock_monotonic_ns();
    double read_s = 0;
    uint64_t peak = 0;
    while (dp_clock_monotonic_ns() - begin_ns < LAG_MS * DP_NS_PER_MS) {
        watchers_run(watchers, 100);
        uint64_t now = controller_rss_bytes(&controller);
        peak = now > peak ? now : peak;
        if (read_s == 0 && watchers_figures(watchers).index >= EVENTS) {
            read_s = (double)(dp_clock_monotonic_ns() - begin_ns) / 1e9;
        }
    }
    double each_mb = ((double)peak - (double)rss) / (WATCHERS - READING) / 1e6;
    watchers_wake(watchers);
    watchers_run(watchers, 5000);
    struct watchers_figures all = watchers_figures(watchers);
    row("20 readers have 60,000 events after", read_s == 0 ? LAG_MS : read_s, "s",
        "beside 180 that do not read", LAG_MS / 1e3, true);
    row("watchers that do not read and are dropped", all.dropped, "watchers", "180 of 200",
        WATCHERS - READING, false);
    row("of them that would miss events", all.gaps + all.failed, "watchers", "none", 0, true);
    row("memory for each of them at the most", each_mb, "MB", "one queue", 1, true);
    watchers_close(watchers);
    controller_stop(&controller);
    remove_directory();
}

static void bench_restart(void)
{
    enum { JOBS = 100000 };
    fresh_directory();
    DP_AUTO_FREE char *state = dp_asprintf("%s/state", directory);
    struct dp_error err = {0};
    must(state_fill_ended(state, JOBS, toml, &err), &err);
    struct controller controller = start_controller();
    controller_stop(&controller);
    controller = start_controller();
    row("start with 100,000 jobs in the database", controller.ready_s, "s", "two seconds", 2, true);
    controller_stop(&controller);
    remove_directory();
}

// When the latest of the nodes that are LOST was found to be so, after its lease; and how many are.
static void find_lost(const struct controller *controller, int64_t lease_ns, double *ret_late_s,
                      uint32_t *ret_count)
{
    struct dp_client *client = NULL;
    struct dp_error err = {0};
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    must(dp_client_open(controller->address, 5000, &client, &err), &err);
    Dp__V1__ListNodesResponse *nodes = NULL;
    must(dp_client_list_nodes(client, &arena, &nodes, &err), &err);
    Dp__V1__ListEventsRequest request = DP__V1__LIST_EVENTS_REQUEST__INIT;
    Dp__V1__ListEventsResponse *events = NULL;
    *ret_late_s = 0;
    *ret_count = 0;
    do {
        must(dp_client_list_events(client, &request, &arena, &events, &err), &err);
        for (size_t i = 0; i < events->n_events; i++) {
            const Dp__V1__Event *event = events->events[i];
            request.after = event->id;
            bool lost =
                strcmp(event->kind, "node.state") == 0 && strncmp(event->message, "LOST", 4) == 0;
            for (size_t n = 0; lost && n < nodes->n_nodes; n++) {
                if (strcmp(nodes->nodes[n]->name, event->node) == 0) {
                    double late_s =
                        (double)(event->time_ns - nodes->nodes[n]->last_seen_ns - lease_ns) / 1e9;
                    *ret_late_s = late_s > *ret_late_s ? late_s : *ret_late_s;
                    *ret_count += 1;
                }
            }
        }
    } while (events->n_events > 0);
    dp_client_close(client);
}

static void bench_lost(void)
{
    enum { AGENTS = 1000, PER_AGENT = 5, PER_JOB = 100, LOST = 200, LEASE_MS = 10000 };
    fresh_directory();
    DP_AUTO_FREE char *state = dp_asprintf("%s/state", directory);
    struct dp_error err = {0};
    must(state_fill_running(state, AGENTS * PER_AGENT / PER_JOB, PER_JOB, PER_AGENT, &err), &err);
    struct controller controller = start_controller();
    struct fleet_options options = {.address = controller.address,
                                    .agents = AGENTS,
                                    .connections = 100,
                                    .ranks_per_agent = PER_AGENT,
                                    .ranks_per_job = PER_JOB,
                                    .heartbeat_ms = 1000,
                                    .sample_ms = 1000,
                                    .lease_ms = LEASE_MS};
    struct fleet *fleet = NULL;
    must(fleet_open(&options, &fleet, &err), &err);
    DP_CHECK(fleet_settle(fleet, 60000));
    fleet_run(fleet, 3000);
    fleet_silence(fleet, 0, LOST);
    fleet_run(fleet, LEASE_MS + 6000);
    double late_s = 0;
    uint32_t count = 0;
    find_lost(&controller, LEASE_MS * DP_NS_PER_MS, &late_s, &count);
    row("agents found LOST of 200 that fall silent at once", count, "agents", "all", LOST, false);
    row("the latest of them is LOST after its lease", late_s, "s", "three seconds", 3, true);
    fleet_close(fleet);
    controller_stop(&controller);
    remove_directory();
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } sections[] = {{"heartbeats", bench_heartbeats},
                    {"submits", bench_submits},
                    {"watchers", bench_watchers},
                    {"restart", bench_restart},
                    {"lost", bench_lost}};
    // Beside this program.
    char self[4096];
    ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
    DP_CHECK(length > 0);
    self[length] = '\0';
    *strrchr(self, '/') = '\0';
    DP_AUTO_FREE char *path = dp_asprintf("%s/dp-controller", self);
    program = path;
    for (size_t i = 0; i < DP_ARRAY_LENGTH(sections); i++) {
        if (argc < 2 || strcmp(argv[1], sections[i].name) == 0) {
            sections[i].run();
        }
    }
    return 0;
}
