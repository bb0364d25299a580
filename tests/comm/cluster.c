#include "cluster.h"

#include <pthread.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "fake_verbs.h"
#include "slow.h"

cluster_kind cluster_kinds[CLUSTER_KINDS] = {CLUSTER_LOOPBACK, CLUSTER_TCP,  CLUSTER_SHM,
                                             CLUSTER_MESH,     CLUSTER_SLOW, CLUSTER_VERBS};

cluster_kind cluster_kind_of(void **state)
{
    return *(cluster_kind *)*state;
}

struct runner {
    struct dp_transport *transport;
    cluster_rank rank;
    void *context;
    dp_status status;
    struct dp_error err;
    pthread_t thread, mover;
};

struct connector {
    struct dp_transport *transport;
    const char *const *addresses;
    dp_status status;
    struct dp_error err;
    pthread_t thread;
};

static void *connect_one(void *argument)
{
    struct connector *connector = argument;
    connector->status =
        dp_transport_connect(connector->transport, connector->addresses,
                             dp_clock_monotonic_ns() + 300 * DP_NS_PER_S, &connector->err);
    return NULL;
}

static dp_status listen_as(cluster_kind kind, int32_t rank, int32_t world, char *ret_address,
                           struct dp_transport **ret_end, struct dp_error *err)
{
    if (kind == CLUSTER_TCP) {
        return dp_transport_tcp_listen("127.0.0.1", rank, world, 77, ret_address, ret_end, err);
    }
    if (kind == CLUSTER_SHM) {
        return dp_transport_shm_listen(rank, world, 77, ret_address, ret_end, err);
    }
    if (kind == CLUSTER_VERBS) {
        char device[16];
        snprintf(device, sizeof device, "fake%d", rank % FAKE_DEVICES_MAX);
        // The adapter is a thread, which may have to wait for the machine's cores.
        struct dp_verbs_config config = {.library = &fake_verbs_library,
                                         .device = device,
                                         .attempt_ms = 120000,
                                         .drain_ms = 30000};
        return dp_transport_verbs_listen("127.0.0.1", rank, world, 77, &config, ret_address,
                                         ret_end, err);
    }
    struct dp_transport_config config = {
        .host = "127.0.0.1", .rank = rank, .world = world, .token = 77};
    dp_status status = dp_transport_open(&config, ret_address, ret_end, err);
    if (status == DP_OK) {
        size_t used = strlen(ret_address);
        snprintf(ret_address + used, DP_ADDRESS_MAX - used, ";node=%c",
                 rank < (world + 1) / 2 ? 'a' : 'b');
    }
    return status;
}

void cluster_connect(int32_t world, struct dp_transport **ends, const char *const *addresses,
                     dp_status *ret_statuses, struct dp_error *ret_errors)
{
    DP_AUTO_FREE struct connector *connectors = dp_new_array(struct connector, (size_t)world);
    for (int32_t i = 0; i < world; i++) {
        connectors[i].transport = ends[i];
        connectors[i].addresses = addresses;
        pthread_create(&connectors[i].thread, NULL, connect_one, &connectors[i]);
    }
    for (int32_t i = 0; i < world; i++) {
        pthread_join(connectors[i].thread, NULL);
    }
    for (int32_t i = 0; i < world; i++) {
        if (ret_statuses != NULL) {
            ret_statuses[i] = connectors[i].status;
            ret_errors[i] = connectors[i].err;
        } else {
            assert_ok(connectors[i].status, &connectors[i].err);
        }
    }
}

static void open_linked(cluster_kind kind, int32_t world, struct dp_transport **ret_ends)
{
    DP_AUTO_FREE char *texts = dp_alloc((size_t)world, DP_ADDRESS_MAX);
    DP_AUTO_FREE const char **addresses = dp_new_array(const char *, (size_t)world);
    struct dp_error err = {0};
    for (int32_t i = 0; i < world; i++) {
        addresses[i] = texts + (size_t)i * DP_ADDRESS_MAX;
        assert_ok(listen_as(kind, i, world, texts + (size_t)i * DP_ADDRESS_MAX, &ret_ends[i], &err),
                  &err);
    }
    cluster_connect(world, ret_ends, addresses, NULL, NULL);
}

// What the fake has seen of its users, once they are gone.
static void check_fake(void)
{
    struct fake_verbs_counts counts;
    fake_verbs_stop(&counts);
    if (counts.violations != 0) {
        fail_msg("%llu violations, first: %s", (unsigned long long)counts.violations,
                 counts.violation);
    }
}

static void start_fake(int32_t world)
{
    if (fake_verbs_is_running()) {
        check_fake();
    }
    struct fake_faults faults = {.seed = (uint64_t)world,
                                 .delay_us_max = 100,
                                 .duplicate_one_in = 20,
                                 .not_ready_one_in = 50};
    fake_verbs_start(&faults, NULL, FAKE_DEVICES_MAX);
}

void cluster_open(cluster_kind kind, int32_t world, struct dp_transport **ret_ends)
{
    if (kind == CLUSTER_SLOW) {
        struct slow_link link = {
            .seed = 5, .delay_us_max = 500, .stall_one_in = 60, .stall_us = 2000};
        slow_open(&link, world, ret_ends);
    } else if (kind == CLUSTER_LOOPBACK) {
        dp_transport_loopback(world, ret_ends);
    } else {
        if (kind == CLUSTER_VERBS) {
            start_fake(world);
        }
        open_linked(kind, world, ret_ends);
    }
}

static void *run_rank(void *argument)
{
    struct runner *runner = argument;
    runner->status = runner->rank(runner->transport, runner->context, &runner->err);
    if (runner->status != DP_OK) {
        dp_transport_abort(runner->transport, runner->status, runner->err.message);
    }
    bool is_well = runner->status == DP_OK;
    dp_status closed =
        dp_transport_close(runner->transport, dp_clock_monotonic_ns() + 120 * DP_NS_PER_S,
                           is_well ? &runner->err : NULL);
    runner->status = is_well ? closed : runner->status;
    return NULL;
}

static void *run_mover(void *argument)
{
    dp_transport_progress(argument);
    return NULL;
}

void cluster_run_on(struct dp_transport **ends, int32_t world, cluster_rank rank, void *context,
                    dp_status *ret_statuses, struct dp_error *ret_errors)
{
    DP_AUTO_FREE struct runner *runners = dp_new_array(struct runner, (size_t)world);
    for (int32_t i = 0; i < world; i++) {
        runners[i].transport = ends[i];
        runners[i].rank = rank;
        runners[i].context = context;
        pthread_create(&runners[i].mover, NULL, run_mover, ends[i]);
        pthread_create(&runners[i].thread, NULL, run_rank, &runners[i]);
    }
    for (int32_t i = 0; i < world; i++) {
        pthread_join(runners[i].thread, NULL);
        pthread_join(runners[i].mover, NULL);
    }
    for (int32_t i = 0; i < world; i++) {
        dp_transport_free(ends[i]);
    }
    if (fake_verbs_is_running()) {
        check_fake();
    }
    for (int32_t i = 0; i < world; i++) {
        if (ret_statuses != NULL) {
            ret_statuses[i] = runners[i].status;
            ret_errors[i] = runners[i].err;
        } else if (runners[i].status != DP_OK && runners[i].status != DP_UNAVAILABLE) {
            fail_msg("rank %d: %s", i, runners[i].err.message);
        }
    }
    for (int32_t i = 0; i < world && ret_statuses == NULL; i++) {
        assert_ok(runners[i].status, &runners[i].err);
    }
}

void cluster_run(cluster_kind kind, int32_t world, cluster_rank rank, void *context)
{
    DP_AUTO_FREE struct dp_transport **ends = dp_new_array(struct dp_transport *, (size_t)world);
    cluster_open(kind, world, ends);
    cluster_run_on(ends, world, rank, context, NULL, NULL);
}
