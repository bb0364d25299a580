// Two ranks of one node: all-to-all as expert peers do it, and sums of gradients.
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "calibrate.h"
#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/collective.h"

#define MESSAGE_BYTES (256u << 10)
#define EXCHANGES 200
// Between exchanges, as layers do. One rank always has more to do, so that the other one's core has
// been idle for a while and answers later.
#define LITTLE_NS (DP_NS_PER_MS / 5)
#define MUCH_NS (DP_NS_PER_MS * 7 / 10)
// More than a cache holds.
#define SUM_ELEMENTS (6 << 20)
#define SUMS 7
#define CONNECT_NS (10 * DP_NS_PER_S)
// No rate is infinite, whatever the clock says.
#define SHORTEST_S 1e-6

// What both ranks do at the same time, over and over.
struct series {
    int64_t start_ns[EXCHANGES], end_ns[EXCHANGES];
    double cpu_s[EXCHANGES]; // of the rank's own thread
};

// One of two ranks.
struct end {
    struct dp_transport *transport;
    struct dp_group group;
    const char *addresses[2];
    struct series small, large, sums;
    dp_status status;
    struct dp_error err;
};

static void *progress(void *argument)
{
    dp_transport_progress(argument);
    return NULL;
}

// Each starts when both are there, and is over when both have what they wait for.
static void both_s(const struct series *a, const struct series *b, int count, double *ret_seconds)
{
    for (int i = 0; i < count; i++) {
        int64_t start_ns = a->start_ns[i] > b->start_ns[i] ? a->start_ns[i] : b->start_ns[i];
        int64_t end_ns = a->end_ns[i] > b->end_ns[i] ? a->end_ns[i] : b->end_ns[i];
        ret_seconds[i] = (double)(end_ns - start_ns) / (double)DP_NS_PER_S;
    }
}

static dp_status run_exchanges(struct end *end, void *buffer, size_t bytes, struct series *series,
                               struct dp_error *err)
{
    size_t parts[2] = {bytes, bytes};
    struct dp_group_parts exchange = {.peers = 2,
                                      .self = end->group.self,
                                      .send = buffer,
                                      .send_bytes = parts,
                                      .recv = (char *)buffer + 2 * MESSAGE_BYTES,
                                      .recv_bytes = parts};
    dp_status status = DP_OK;
    for (int i = 0; status == DP_OK && i < EXCHANGES; i++) {
        bool much = i % 2 == end->group.self;
        int64_t until_ns = dp_clock_monotonic_ns() + (much ? MUCH_NS : LITTLE_NS);
        while (dp_clock_monotonic_ns() < until_ns) {
        }
        int64_t cpu_ns = dp_clock_thread_cpu_ns();
        series->start_ns[i] = dp_clock_monotonic_ns();
        status = dp_group_exchange(&end->group, 1, &exchange, err);
        series->end_ns[i] = dp_clock_monotonic_ns();
        series->cpu_s[i] = (double)(dp_clock_thread_cpu_ns() - cpu_ns) / (double)DP_NS_PER_S;
    }
    return status;
}

static dp_status run_sums(struct end *end, struct series *series, struct dp_error *err)
{
    DP_AUTO_FREE float *values = dp_new_array(float, SUM_ELEMENTS);
    dp_status status = DP_OK;
    for (int i = 0; status == DP_OK && i < SUMS; i++) {
        series->start_ns[i] = dp_clock_monotonic_ns();
        status = dp_group_sum(&end->group, 2, DP_F32, values, SUM_ELEMENTS, err);
        series->end_ns[i] = dp_clock_monotonic_ns();
    }
    return status;
}

static dp_status measure_end(struct end *end, struct dp_error *err)
{
    const int32_t ranks[2] = {0, 1};
    dp_status status = dp_group_init(&end->group, end->transport, 1, ranks, 2, err);
    if (status != DP_OK) {
        return status;
    }
    DP_AUTO_FREE void *buffer = dp_alloc(4, MESSAGE_BYTES);
    status = run_exchanges(end, buffer, sizeof(int64_t), &end->small, err);
    if (status == DP_OK) {
        status = run_exchanges(end, buffer, MESSAGE_BYTES, &end->large, err);
    }
    return status == DP_OK ? run_sums(end, &end->sums, err) : status;
}

static dp_status run_end(struct end *end, struct dp_error *err)
{
    dp_status status = dp_transport_connect(end->transport, end->addresses,
                                            dp_clock_monotonic_ns() + CONNECT_NS, err);
    if (status != DP_OK) {
        return status;
    }
    pthread_t thread;
    DP_CHECK(pthread_create(&thread, NULL, progress, end->transport) == 0);
    status = measure_end(end, err);
    dp_group_deinit(&end->group);
    dp_status closed = dp_transport_close(end->transport, dp_clock_monotonic_ns() + CONNECT_NS,
                                          status == DP_OK ? err : NULL);
    pthread_join(thread, NULL);
    return status == DP_OK ? closed : status;
}

static void *run_second(void *argument)
{
    struct end *end = argument;
    end->status = run_end(end, &end->err);
    return NULL;
}

// Now and then a thread is not woken at once. A step has so many messages that this counts on the
// average, but it says nothing of the bytes.
static void set_link(struct end ends[2], struct dp_profile *profile)
{
    double small_s[EXCHANGES], large_s[EXCHANGES], sum_s[SUMS];
    both_s(&ends[0].small, &ends[1].small, EXCHANGES, small_s);
    both_s(&ends[0].large, &ends[1].large, EXCHANGES, large_s);
    both_s(&ends[0].sums, &ends[1].sums, SUMS, sum_s);
    double bytes_s = calibrate_median(large_s, EXCHANGES) - calibrate_median(small_s, EXCHANGES);
    double latency_s = calibrate_mean(large_s, EXCHANGES) - bytes_s;
    profile->local = (struct dp_link_profile){
        .latency_s = fmax(latency_s, SHORTEST_S),
        .bytes_per_s = MESSAGE_BYTES / fmax(bytes_s, SHORTEST_S),
        .sum_bytes_per_s =
            SUM_ELEMENTS * sizeof(float) / fmax(calibrate_median(sum_s, SUMS), SHORTEST_S)};
    // Nodes that share this machine are what there is to measure.
    profile->network = profile->local;
    profile->action_overhead_s = calibrate_median(ends[0].large.cpu_s, EXCHANGES);
}

dp_status calibrate_link(struct dp_profile *profile, struct dp_error *err)
{
    char addresses[2][DP_ADDRESS_MAX];
    DP_AUTO_FREE struct end *ends = dp_new_array(struct end, 2);
    dp_status status = DP_OK;
    for (int i = 0; status == DP_OK && i < 2; i++) {
        struct dp_transport_config config = {
            .host = "127.0.0.1", .rank = i, .world = 2, .token = (uint64_t)getpid()};
        status = dp_transport_open(&config, addresses[i], &ends[i].transport, err);
        ends[0].addresses[i] = ends[1].addresses[i] = addresses[i];
    }
    if (status == DP_OK) {
        pthread_t second;
        DP_CHECK(pthread_create(&second, NULL, run_second, &ends[1]) == 0);
        status = run_end(&ends[0], err);
        pthread_join(second, NULL);
    }
    dp_transport_free(ends[0].transport);
    dp_transport_free(ends[1].transport);
    if (status != DP_OK) {
        return dp_fail_in(err, "measuring the link between ranks");
    }
    set_link(ends, profile);
    return DP_OK;
}
