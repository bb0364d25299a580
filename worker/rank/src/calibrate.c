#include "calibrate.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/transport.h"

#define MESSAGE_BYTES (256u << 10)
#define ROUNDS 200
#define CONNECT_NS (10 * DP_NS_PER_S)

// One of two ranks that send a message to and fro.
struct end {
    struct dp_transport *transport;
    const char *addresses[2];
    double small_s, large_s; // one way
    dp_status status;
    struct dp_error err;
};

static void *progress(void *argument)
{
    dp_transport_progress(argument);
    return NULL;
}

// Rank 0 sends first.
static dp_status bounce(struct end *end, void *buffer, size_t bytes, struct dp_error *err)
{
    int32_t self = dp_transport_rank(end->transport);
    dp_status status = DP_OK;
    if (self == 0) {
        status = dp_transport_send(end->transport, 1, 1, buffer, bytes, err);
    }
    if (status == DP_OK) {
        status = dp_transport_recv(end->transport, 1 - self, 1, buffer, bytes, 0, err);
    }
    if (status == DP_OK && self == 1) {
        status = dp_transport_send(end->transport, 0, 1, buffer, bytes, err);
    }
    return status;
}

static int compare(const void *a, const void *b)
{
    double left = *(const double *)a;
    double right = *(const double *)b;
    return (left > right) - (left < right);
}

// The median way there: now and then something else runs in between.
static dp_status time_bounces(struct end *end, void *buffer, size_t bytes, double *ret_seconds,
                              struct dp_error *err)
{
    double seconds[ROUNDS];
    dp_status status = bounce(end, buffer, bytes, err);
    for (int i = 0; status == DP_OK && i < ROUNDS; i++) {
        int64_t start_ns = dp_clock_monotonic_ns();
        status = bounce(end, buffer, bytes, err);
        seconds[i] = (double)(dp_clock_monotonic_ns() - start_ns) / (double)DP_NS_PER_S / 2;
    }
    if (status == DP_OK) {
        qsort(seconds, ROUNDS, sizeof(seconds[0]), compare);
        *ret_seconds = seconds[ROUNDS / 2];
    }
    return status;
}

static dp_status run_end(struct end *end, struct dp_error *err)
{
    dp_status status = dp_transport_tcp_connect(end->transport, end->addresses,
                                                dp_clock_monotonic_ns() + CONNECT_NS, err);
    if (status != DP_OK) {
        return status;
    }
    pthread_t thread;
    DP_CHECK(pthread_create(&thread, NULL, progress, end->transport) == 0);
    DP_AUTO_FREE void *buffer = dp_alloc(1, MESSAGE_BYTES);
    status = time_bounces(end, buffer, 8, &end->small_s, err);
    if (status == DP_OK) {
        status = time_bounces(end, buffer, MESSAGE_BYTES, &end->large_s, err);
    }
    dp_transport_close(end->transport, dp_clock_monotonic_ns() + CONNECT_NS);
    pthread_join(thread, NULL);
    return status;
}

static void *run_second(void *argument)
{
    struct end *end = argument;
    end->status = run_end(end, &end->err);
    return NULL;
}

dp_status calibrate_link(struct dp_profile *profile, struct dp_error *err)
{
    char addresses[2][DP_ADDRESS_MAX];
    struct end ends[2] = {0};
    dp_status status = DP_OK;
    for (int i = 0; status == DP_OK && i < 2; i++) {
        status = dp_transport_tcp_listen("127.0.0.1", i, 2, (uint64_t)getpid(), addresses[i],
                                         &ends[i].transport, err);
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
        return dp_fail_in(err, "measuring loopback tcp");
    }
    double bytes_s = ends[0].large_s - ends[0].small_s;
    profile->local.latency_s = ends[0].small_s;
    profile->local.bytes_per_s = MESSAGE_BYTES / (bytes_s > 1e-6 ? bytes_s : 1e-6);
    // Nodes that share this machine are what there is to measure.
    profile->network = profile->local;
    return DP_OK;
}

dp_status calibrate(FILE *out, struct dp_error *err)
{
    struct dp_profile profile;
    dp_profile_default_cpu(&profile);
    dp_status status = calibrate_compute(&profile, err);
    if (status == DP_OK) {
        status = calibrate_link(&profile, err);
    }
    if (status != DP_OK) {
        return status;
    }
    cpu_set_t cores;
    profile.cores = sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : 1;
    profile.measured_at_s = (int64_t)time(NULL);
    profile.error_share = 0.2;
    char host[64] = "";
    gethostname(host, sizeof(host) - 1);
    char now[32];
    snprintf(profile.provenance, sizeof(profile.provenance),
             "measured on %s, %d cores, %s: one core with OpenBLAS, loopback tcp", host,
             profile.cores, dp_clock_format_utc(now, dp_clock_realtime_ns()));
    DP_AUTO_JSON json_t *json = dp_profile_to_json(&profile);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_json_write(json, 2, &text);
    if (fwrite(text.bytes, 1, text.length, out) != text.length || fflush(out) != 0) {
        return dp_fail(err, DP_IO, "writing the profile failed");
    }
    return DP_OK;
}
