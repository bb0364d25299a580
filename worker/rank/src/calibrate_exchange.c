// All-to-all of 2, 4, ... ranks over the transport of ranks on one node, as expert peers do it.
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

#define MEMBERS_MAX 16
#define MEMBERS_ALWAYS 4 // what a node takes by default, whatever its cores
#define PART_BYTES (64u << 10)
#define TAG 3
#define ROUNDS 60
// Between exchanges, as layers do: one member always has more to do (see calibrate_link.c).
#define LITTLE_NS (DP_NS_PER_MS / 5)
#define MUCH_NS (DP_NS_PER_MS * 7 / 10)
#define CONNECT_NS (10 * DP_NS_PER_S)
#define SHORTEST_S 1e-6

struct member {
    struct dp_transport *transport;
    const char *const *addresses; // of all
    int32_t self, members;
    int64_t start_ns[2][ROUNDS], end_ns[2][ROUNDS]; // of small ones, of large ones
    dp_status status;
    struct dp_error err;
    pthread_t thread;
};

static void *progress(void *argument)
{
    dp_transport_progress(argument);
    return NULL;
}

static dp_status exchange_rounds(struct member *member, struct dp_group *group, int large,
                                 char *buffer)
{
    size_t parts[MEMBERS_MAX];
    size_t bytes = large != 0 ? PART_BYTES : sizeof(int64_t);
    for (int32_t i = 0; i < member->members; i++) {
        parts[i] = i == member->self ? 0 : bytes;
    }
    struct dp_group_parts exchange = {.peers = member->members,
                                      .self = member->self,
                                      .send = buffer,
                                      .send_bytes = parts,
                                      .recv = buffer + (size_t)member->members * PART_BYTES,
                                      .recv_bytes = parts};
    dp_status status = DP_OK;
    for (int i = 0; status == DP_OK && i < ROUNDS; i++) {
        bool much = i % member->members == member->self;
        int64_t until_ns = dp_clock_monotonic_ns() + (much ? MUCH_NS : LITTLE_NS);
        while (dp_clock_monotonic_ns() < until_ns) {
        }
        member->start_ns[large][i] = dp_clock_monotonic_ns();
        status = dp_group_exchange(group, TAG, &exchange, &member->err);
        member->end_ns[large][i] = dp_clock_monotonic_ns();
    }
    return status;
}

static dp_status run_member(struct member *member)
{
    int32_t ranks[MEMBERS_MAX];
    for (int32_t i = 0; i < member->members; i++) {
        ranks[i] = i;
    }
    struct dp_group group = {0};
    dp_status status =
        dp_group_init(&group, member->transport, TAG, ranks, member->members, &member->err);
    if (status != DP_OK) {
        return status;
    }
    DP_AUTO_FREE char *buffer = dp_alloc(2 * (size_t)member->members, PART_BYTES);
    status = exchange_rounds(member, &group, 0, buffer);
    if (status == DP_OK) {
        status = exchange_rounds(member, &group, 1, buffer);
    }
    dp_group_deinit(&group);
    return status;
}

static void *run_thread(void *argument)
{
    struct member *member = argument;
    member->status = dp_transport_connect(member->transport, member->addresses,
                                          dp_clock_monotonic_ns() + CONNECT_NS, &member->err);
    if (member->status != DP_OK) {
        return NULL;
    }
    pthread_t thread;
    DP_CHECK(pthread_create(&thread, NULL, progress, member->transport) == 0);
    member->status = run_member(member);
    bool is_well = member->status == DP_OK;
    dp_status closed = dp_transport_close(member->transport, dp_clock_monotonic_ns() + CONNECT_NS,
                                          is_well ? &member->err : NULL);
    member->status = is_well ? closed : member->status;
    pthread_join(thread, NULL);
    return NULL;
}

// Each starts when all are there, and is over when all have what they wait for.
static void all_s(const struct member *members, int32_t count, int large, double *ret_seconds)
{
    for (int i = 0; i < ROUNDS; i++) {
        int64_t start_ns = INT64_MIN, end_ns = INT64_MIN;
        for (int32_t m = 0; m < count; m++) {
            int64_t starts = members[m].start_ns[large][i], ends = members[m].end_ns[large][i];
            start_ns = starts > start_ns ? starts : start_ns;
            end_ns = ends > end_ns ? ends : end_ns;
        }
        ret_seconds[i] = (double)(end_ns - start_ns) / (double)DP_NS_PER_S;
    }
}

static dp_status run_all(struct member *members, int32_t count, struct dp_error *err)
{
    for (int32_t i = 0; i < count; i++) {
        DP_CHECK(pthread_create(&members[i].thread, NULL, run_thread, &members[i]) == 0);
    }
    dp_status status = DP_OK;
    for (int32_t i = 0; i < count; i++) {
        pthread_join(members[i].thread, NULL);
        if (status == DP_OK && members[i].status != DP_OK) {
            status = dp_fail(err, members[i].status, "%s", members[i].err.message);
        }
    }
    return status;
}

static dp_status measure(int32_t count, struct dp_exchange_point *ret_point, struct dp_error *err)
{
    char addresses[MEMBERS_MAX][DP_ADDRESS_MAX];
    const char *list[MEMBERS_MAX];
    DP_AUTO_FREE struct member *members = dp_new_array(struct member, (size_t)count);
    dp_status status = DP_OK;
    for (int32_t i = 0; status == DP_OK && i < count; i++) {
        members[i].self = i;
        members[i].members = count;
        members[i].addresses = list;
        list[i] = addresses[i];
        struct dp_transport_config config = {
            .host = "127.0.0.1", .rank = i, .world = count, .token = (uint64_t)getpid()};
        status = dp_transport_open(&config, addresses[i], &members[i].transport, err);
    }
    if (status == DP_OK) {
        status = run_all(members, count, err);
    }
    for (int32_t i = 0; i < count; i++) {
        dp_transport_free(members[i].transport);
    }
    if (status != DP_OK) {
        return status;
    }
    // As for a link: threads that are woken late count on the average, but say nothing of the
    // bytes.
    double small_s[ROUNDS], large_s[ROUNDS];
    all_s(members, count, 0, small_s);
    all_s(members, count, 1, large_s);
    double bytes_s =
        fmax(calibrate_median(large_s, ROUNDS) - calibrate_median(small_s, ROUNDS), SHORTEST_S);
    *ret_point = (struct dp_exchange_point){
        .ranks = count,
        .latency_s = fmax(calibrate_mean(large_s, ROUNDS) - bytes_s, SHORTEST_S),
        .bytes_per_s = (double)(count - 1) * PART_BYTES / bytes_s};
    return DP_OK;
}

dp_status calibrate_exchange(struct dp_profile *profile, struct dp_error *err)
{
    int32_t most = profile->cores > MEMBERS_ALWAYS ? profile->cores : MEMBERS_ALWAYS;
    most = most < MEMBERS_MAX ? most : MEMBERS_MAX;
    profile->exchanges_count = 0;
    for (int32_t count = 2; count <= most; count *= 2) {
        char text[64];
        snprintf(text, sizeof text, "measuring all-to-all of %d ranks", count);
        calibrate_say(text);
        dp_status status = measure(count, &profile->exchanges[profile->exchanges_count], err);
        if (status != DP_OK) {
            return dp_fail_in(err, "measuring all-to-all of %d ranks", count);
        }
        profile->exchanges_count++;
    }
    return DP_OK;
}
