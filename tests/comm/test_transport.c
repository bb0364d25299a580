// One suite over every transport.
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "cluster.h"
#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/rand.h"
#include "slow.h"

// Bytes that tell who sent them to whom, and the how-manieth they were.
static void fill(unsigned char *bytes, size_t length, uint64_t key)
{
    struct dp_rand rand;
    dp_rand_init(&rand, key);
    for (size_t i = 0; i < length; i++) {
        bytes[i] = (unsigned char)dp_rand_u64(&rand);
    }
}

static bool is_filled(const unsigned char *bytes, size_t length, uint64_t key)
{
    DP_AUTO_FREE unsigned char *wanted = dp_alloc(length, 1);
    fill(wanted, length, key);
    return length == 0 || memcmp(bytes, wanted, length) == 0;
}

static dp_status by_tag(struct dp_transport *transport, void *context, struct dp_error *err)
{
    (void)context;
    if (dp_transport_rank(transport) == 0) {
        for (int i = 0; i < 4; i++) {
            EXPECT_OK(dp_transport_send(transport, 1, 10 + (uint64_t)i, &i, sizeof i, err));
        }
        int again = 99;
        EXPECT_OK(dp_transport_send(transport, 1, 10, &again, sizeof again, err));
        return DP_OK;
    }
    int got = -1;
    for (int i = 3; i >= 0; i--) {
        EXPECT_OK(dp_transport_recv(transport, 0, 10 + (uint64_t)i, &got, sizeof got, 0, err));
        EXPECT(got == i);
    }
    EXPECT_OK(dp_transport_recv(transport, 0, 10, &got, sizeof got, 0, err));
    EXPECT(got == 99);
    return DP_OK;
}

static void messages_are_received_by_tag_in_any_order_and_fifo_within_one(void **state)
{
    cluster_run(cluster_kind_of(state), 2, by_tag, NULL);
}

static dp_status empty_and_self(struct dp_transport *transport, void *context, struct dp_error *err)
{
    (void)context;
    int32_t self = dp_transport_rank(transport), world = dp_transport_world(transport);
    for (int32_t peer = 0; peer < world; peer++) {
        EXPECT_OK(dp_transport_send(transport, peer, 5, NULL, 0, err));
        EXPECT_OK(dp_transport_send(transport, peer, 6, &self, sizeof self, err));
    }
    for (int32_t peer = 0; peer < world; peer++) {
        int32_t got = -1;
        EXPECT_OK(dp_transport_recv(transport, peer, 6, &got, sizeof got, 0, err));
        EXPECT(got == peer);
        size_t length = 9;
        EXPECT_OK(dp_transport_peek(transport, peer, 5, NULL, 0, 0, &length, err));
        EXPECT(length == 0);
        EXPECT(dp_transport_probe(transport, peer, 5, &length));
        EXPECT_OK(dp_transport_recv(transport, peer, 5, NULL, 0, 0, err));
        EXPECT(!dp_transport_probe(transport, peer, 5, NULL));
    }
    struct dp_transport_stats stats;
    dp_transport_stats(transport, &stats);
    EXPECT(stats.sent_messages == 2 * (uint64_t)world);
    EXPECT(stats.received_messages == 2 * (uint64_t)world);
    EXPECT(stats.received_bytes == 4 * (uint64_t)world && stats.waiting_bytes == 0);
    return DP_OK;
}

static void empty_messages_and_messages_to_oneself_arrive(void **state)
{
    cluster_run(cluster_kind_of(state), 5, empty_and_self, NULL);
    cluster_run(cluster_kind_of(state), 1, empty_and_self, NULL);
}

static dp_status parts(struct dp_transport *transport, void *context, struct dp_error *err)
{
    (void)context;
    char head[3] = "ab", tail[5] = "cdef", whole[8] = {0};
    if (dp_transport_rank(transport) == 0) {
        struct iovec pieces[3] = {{head, 2}, {NULL, 0}, {tail, 4}};
        return dp_transport_sendv(transport, 1, 1, pieces, 3, err);
    }
    size_t length;
    EXPECT_OK(dp_transport_peek(transport, 0, 1, whole, 3, 0, &length, err));
    EXPECT(length == 6 && strcmp(whole, "abc") == 0);
    char a[2] = {0}, b[6] = {0};
    struct iovec pieces[2] = {{a, 1}, {b, 5}};
    EXPECT_OK(dp_transport_recvv(transport, 0, 1, pieces, 2, 0, err));
    EXPECT(strcmp(a, "a") == 0 && strcmp(b, "bcdef") == 0);
    return DP_OK;
}

static void a_message_may_be_sent_and_received_in_pieces(void **state)
{
    cluster_run(cluster_kind_of(state), 2, parts, NULL);
}

// Every pair exchanges messages of random tags and sizes; receivers ask for the tags in an order
// of their own.
#define STORM_MESSAGES 120
#define STORM_TAGS 7

static uint64_t storm_key(int32_t from, int32_t to, int i)
{
    return (uint64_t)from * 1000003 + (uint64_t)to * 10007 + (uint64_t)i;
}

static uint64_t storm_tag(int32_t from, int32_t to, int i)
{
    return dp_rand_mix(storm_key(from, to, i), 1) % STORM_TAGS;
}

static size_t storm_length(int32_t from, int32_t to, int i)
{
    uint64_t roll = dp_rand_mix(storm_key(from, to, i), 2);
    return roll % 16 == 0 ? roll % 300000 : roll % 700;
}

static dp_status storm(struct dp_transport *transport, void *context, struct dp_error *err)
{
    struct dp_transport_fault fault = {.seed = *(uint64_t *)context, .delay_us_max = 20};
    fault.seed += (uint64_t)dp_transport_rank(transport);
    dp_transport_set_fault(transport, &fault);
    int32_t self = dp_transport_rank(transport), world = dp_transport_world(transport);
    DP_AUTO_FREE unsigned char *bytes = dp_alloc(300000, 1);
    for (int i = 0; i < STORM_MESSAGES; i++) {
        for (int32_t peer = 0; peer < world; peer++) {
            size_t length = storm_length(self, peer, i);
            fill(bytes, length, storm_key(self, peer, i));
            EXPECT_OK(
                dp_transport_send(transport, peer, storm_tag(self, peer, i), bytes, length, err));
        }
    }
    for (int tag = STORM_TAGS - 1; tag >= 0; tag--) {
        for (int32_t peer = world - 1; peer >= 0; peer--) {
            for (int i = 0; i < STORM_MESSAGES; i++) {
                if (storm_tag(peer, self, i) != (uint64_t)tag) {
                    continue;
                }
                size_t length = storm_length(peer, self, i);
                EXPECT_OK(dp_transport_recv(transport, peer, (uint64_t)tag, bytes, length, 0, err));
                EXPECT(is_filled(bytes, length, storm_key(peer, self, i)));
            }
        }
    }
    return DP_OK;
}

static void storms_of_random_messages_arrive_whole(void **state)
{
    for (uint64_t seed = 1; seed <= 3; seed++) {
        cluster_run(cluster_kind_of(state), 4, storm, &seed);
    }
}

// 3 x 48 MiB each way is more than may be queued and more than may wait.
#define BIG_BYTES (48u << 20)

static dp_status big_both_ways(struct dp_transport *transport, void *context, struct dp_error *err)
{
    (void)context;
    int32_t self = dp_transport_rank(transport), peer = 1 - self;
    DP_AUTO_FREE unsigned char *bytes = dp_alloc(BIG_BYTES, 1);
    memset(bytes, self + 1, BIG_BYTES);
    for (uint64_t i = 0; i < 3; i++) {
        bytes[BIG_BYTES - 1] = (unsigned char)i;
        EXPECT_OK(dp_transport_send(transport, peer, i, bytes, BIG_BYTES, err));
    }
    for (uint64_t i = 3; i-- > 0;) {
        EXPECT_OK(dp_transport_recv(transport, peer, i, bytes, BIG_BYTES, 0, err));
        EXPECT(bytes[BIG_BYTES - 1] == i && bytes[0] == peer + 1 &&
               bytes[BIG_BYTES - 2] == peer + 1);
    }
    struct dp_transport_stats stats;
    dp_transport_stats(transport, &stats);
    EXPECT(stats.waiting_bytes_peak >= 2ull * BIG_BYTES);
    return DP_OK;
}

static void two_ranks_that_send_more_than_fits_before_they_receive_do_not_lock_up(void **state)
{
    cluster_run(cluster_kind_of(state), 2, big_both_ways, NULL);
}

struct flood {
    _Atomic int sent;
    _Atomic int go;
};

// Each leaves the third of 32 MiB in its queue: the peer holds what may wait, and computes. Over
// tcp one that still sends may have read it, over shm never.
static dp_status close_unread(struct dp_transport *transport, void *context, struct dp_error *err)
{
    struct flood *flood = context;
    int32_t peer = 1 - dp_transport_rank(transport);
    size_t length = 32u << 20;
    DP_AUTO_FREE unsigned char *bytes = dp_alloc(length, 1);
    dp_status status = DP_OK;
    for (uint64_t i = 0; i < 3 && status == DP_OK; i++) {
        status = dp_transport_send(transport, peer, i, bytes, length, err);
    }
    flood->sent++;
    while (flood->sent < 2) {
        sched_yield();
    }
    return status;
}

static void two_ranks_that_close_with_more_unread_than_may_wait_do_not_lock_up(void **state)
{
    struct flood flood = {0};
    cluster_run(cluster_kind_of(state), 2, close_unread, &flood);
}

// The receiver computes (does not wait in the transport) until it is told to go on.
static dp_status flood_rank(struct dp_transport *transport, void *context, struct dp_error *err)
{
    struct flood *flood = context;
    size_t length = 16u << 20;
    DP_AUTO_FREE unsigned char *bytes = dp_alloc(length, 1);
    if (dp_transport_rank(transport) == 0) {
        for (int i = 0; i < 30; i++) {
            EXPECT_OK(dp_transport_send(transport, 1, 1, bytes, length, err));
            flood->sent++;
            flood->go = flood->sent >= 4;
        }
        return DP_OK;
    }
    while (!flood->go) {
        sched_yield();
    }
    struct dp_transport_stats stats;
    dp_transport_stats(transport, &stats);
    EXPECT(stats.waiting_bytes <= DP_TRANSPORT_WAITING_BYTES_MAX + length);
    EXPECT(flood->sent < 30);
    for (int i = 0; i < 30; i++) {
        EXPECT_OK(dp_transport_recv(transport, 0, 1, bytes, length, 0, err));
    }
    return DP_OK;
}

static void a_sender_waits_for_a_receiver_that_computes(void **state)
{
    struct flood flood = {0};
    cluster_run(cluster_kind_of(state), 2, flood_rank, &flood);
}

static dp_status wrong_length(struct dp_transport *transport, void *context, struct dp_error *err)
{
    (void)context;
    uint64_t tag = dp_transport_tag(3, 2, 7, 5, 1);
    int word = 5;
    if (dp_transport_rank(transport) == 0) {
        return dp_transport_send(transport, 1, tag, &word, sizeof word, err);
    }
    struct dp_error got = {0};
    char buffer[10];
    EXPECT_REFUSED(dp_transport_recv(transport, 0, tag, buffer, 10, 0, &got), DP_INTERNAL, &got,
                   "rank 0 sent 4 bytes where rank 1 expects 10 "
                   "(kind 3 stage 2 micro-batch 7 layer 5 phase 1)");
    EXPECT_OK(dp_transport_recv(transport, 0, tag, buffer, 4, 0, err));
    return DP_OK;
}

static void another_length_is_refused_naming_both_and_the_message_stays(void **state)
{
    cluster_run(cluster_kind_of(state), 2, wrong_length, NULL);
}

static dp_status too_big(struct dp_transport *transport, void *context, struct dp_error *err)
{
    (void)context;
    char byte = 0;
    struct dp_error got = {0};
    EXPECT_REFUSED(dp_transport_send(transport, 1, 1, &byte, DP_TRANSPORT_BYTES_MAX + 1ull, &got),
                   DP_TOO_LARGE, &got, "to rank 1");
    struct iovec huge[2] = {{&byte, SIZE_MAX - 3}, {&byte, 8}}; // their sum wraps
    EXPECT_REFUSED(dp_transport_sendv(transport, 1, 1, huge, 2, &got), DP_TOO_LARGE, &got,
                   "to rank 1");
    struct iovec wide[2] = {{&byte, 1}, {&byte, 3ull << 32}};
    EXPECT_REFUSED(dp_transport_sendv(transport, 1, 1, wide, 2, &got), DP_TOO_LARGE, &got,
                   "to rank 1");
    return DP_OK;
}

static void a_message_over_the_limit_is_refused_before_it_is_read(void **state)
{
    cluster_run(cluster_kind_of(state), 2, too_big, NULL);
}

static dp_status late(struct dp_transport *transport, void *context, struct dp_error *err)
{
    (void)context;
    char byte;
    struct dp_error got = {0};
    if (dp_transport_rank(transport) == 0) {
        // Answers only when rank 1 is through, so nothing comes from here before.
        EXPECT_OK(dp_transport_recv(transport, 1, 9, NULL, 0, 0, err));
        return DP_OK;
    }
    int64_t deadline_ns = dp_clock_monotonic_ns() + 20 * DP_NS_PER_MS;
    EXPECT_REFUSED(dp_transport_recv(transport, 0, 2, &byte, 1, deadline_ns, &got), DP_TIMEOUT,
                   &got, "did not come in time from rank 0 (kind 0 stage 0 micro-batch 2");
    EXPECT(dp_clock_monotonic_ns() >= deadline_ns);
    dp_transport_set_blocked_ms(transport, 20);
    EXPECT_REFUSED(dp_transport_recv(transport, 0, 2, &byte, 1, 0, &got), DP_TIMEOUT, &got,
                   "nothing came from rank 0 (kind 0 stage 0 micro-batch 2");
    EXPECT_OK(dp_transport_send(transport, 0, 9, NULL, 0, err));
    return DP_OK;
}

static void a_message_that_does_not_come_ends_in_a_timeout_naming_rank_and_tag(void **state)
{
    cluster_run(cluster_kind_of(state), 2, late, NULL);
}

static dp_status stuck_sender(struct dp_transport *transport, void *context, struct dp_error *err)
{
    struct flood *flood = context;
    size_t length = 32u << 20;
    if (dp_transport_rank(transport) == 1) {
        while (!flood->go) {
            sched_yield();
        }
        return DP_OK;
    }
    DP_AUTO_FREE unsigned char *bytes = dp_alloc(length, 1);
    dp_transport_set_blocked_ms(transport, 50);
    struct dp_error got = {0};
    dp_status status = DP_OK;
    for (int i = 0; i < 30 && status == DP_OK; i++) {
        status = dp_transport_send(transport, 1, 1, bytes, length, &got);
    }
    flood->go = 1;
    EXPECT_REFUSED(status, DP_TIMEOUT, &got, "rank 1 took nothing");
    return dp_fail(err, DP_INTERRUPTED, "done"); // what is queued will never leave
}

// The peer computes, with as much unread as may wait where messages are given.
static dp_status close_alone(struct dp_transport *transport, void *context, struct dp_error *err)
{
    struct flood *flood = context;
    if (dp_transport_rank(transport) == 1) {
        while (!flood->go) {
            sched_yield();
        }
        return DP_OK;
    }
    size_t length = 32u << 20;
    DP_AUTO_FREE unsigned char *bytes = dp_alloc(length, 1);
    dp_status status = DP_OK;
    for (int i = 0; i < flood->sent && status == DP_OK; i++) {
        status = dp_transport_send(transport, 1, 1, bytes, length, err);
    }
    if (status == DP_OK) {
        int64_t deadline_ns = dp_clock_monotonic_ns() + 20 * DP_NS_PER_MS;
        status = dp_transport_close(transport, deadline_ns, err);
    }
    flood->go = 1;
    return status == DP_OK ? dp_fail(err, DP_INTERNAL, "it was closed") : status;
}

static void check_late_close(cluster_kind kind, int messages, const char *reason)
{
    struct flood flood = {.sent = messages};
    struct dp_transport *ends[2];
    dp_status statuses[2];
    struct dp_error errors[2];
    cluster_open(kind, 2, ends);
    cluster_run_on(ends, 2, close_alone, &flood, statuses, errors);
    assert_refused(statuses[0], DP_TIMEOUT, &errors[0], reason);
}

static void closing_names_a_peer_that_has_not_closed_in_time(void **state)
{
    check_late_close(cluster_kind_of(state), 0, "rank 1 has not closed in time");
}

static void closing_tells_what_has_not_left_in_time(void **state)
{
    check_late_close(cluster_kind_of(state), 3, "bytes for rank 1 have not left in time");
}

static void a_sender_that_makes_no_progress_ends_in_a_timeout(void **state)
{
    struct flood flood = {0};
    struct dp_transport *ends[2];
    dp_status statuses[2];
    struct dp_error errors[2];
    cluster_open(cluster_kind_of(state), 2, ends);
    cluster_run_on(ends, 2, stuck_sender, &flood, statuses, errors);
    assert_refused(statuses[0], DP_INTERRUPTED, &errors[0], "done");
}

static dp_status one_dies(struct dp_transport *transport, void *context, struct dp_error *err)
{
    (void)context;
    int word = 7;
    if (dp_transport_rank(transport) == 2) {
        EXPECT_OK(dp_transport_send(transport, 0, 1, &word, sizeof word, err));
        EXPECT_OK(dp_transport_recv(transport, 0, 1, &word, sizeof word, 0, err));
        return dp_fail(err, DP_INTERRUPTED, "dies");
    }
    if (dp_transport_rank(transport) == 1) {
        struct dp_error got = {0};
        EXPECT_REFUSED(dp_transport_recv(transport, 2, 1, &word, sizeof word, 0, &got),
                       DP_UNAVAILABLE, &got, "cannot receive from rank 2");
        EXPECT_OK(dp_transport_send(transport, 0, 2, NULL, 0, err));
        return DP_OK;
    }
    EXPECT_OK(dp_transport_send(transport, 2, 1, &word, sizeof word, err));
    EXPECT_OK(dp_transport_recv(transport, 1, 2, NULL, 0, 0, err));
    // Rank 2 is dead by now; what it said before can still be read.
    EXPECT_OK(dp_transport_recv(transport, 2, 1, &word, sizeof word, 0, err));
    EXPECT(word == 7);
    struct dp_error got = {0};
    EXPECT_REFUSED(dp_transport_recv(transport, 2, 1, &word, sizeof word, 0, &got), DP_UNAVAILABLE,
                   &got, "rank 2");
    EXPECT_REFUSED(dp_transport_send(transport, 2, 1, &word, sizeof word, &got), DP_UNAVAILABLE,
                   &got, "cannot send to rank 2");
    return DP_OK;
}

static void a_dead_peer_is_named_and_what_it_said_is_still_there(void **state)
{
    struct dp_transport *ends[3];
    dp_status statuses[3];
    struct dp_error errors[3];
    cluster_open(cluster_kind_of(state), 3, ends);
    cluster_run_on(ends, 3, one_dies, NULL, statuses, errors);
    assert_ok(statuses[0], &errors[0]);
    assert_ok(statuses[1], &errors[1]);
    assert_string_equal(errors[2].message, "dies");
}

static dp_status cut_off(struct dp_transport *transport, void *context, struct dp_error *err)
{
    (void)context;
    struct dp_error got = {0};
    int word = 0;
    if (dp_transport_rank(transport) == 0) {
        struct dp_transport_fault fault = {.cut_after = 3, .cut_peer = 1};
        dp_transport_set_fault(transport, &fault);
        for (word = 0; word < 3; word++) {
            EXPECT_OK(dp_transport_send(transport, 1, 1, &word, sizeof word, err));
        }
        EXPECT_REFUSED(dp_transport_send(transport, 1, 1, &word, sizeof word, &got), DP_UNAVAILABLE,
                       &got, "rank 1");
        return DP_OK;
    }
    for (int i = 0; i < 3; i++) {
        EXPECT_OK(dp_transport_recv(transport, 0, 1, &word, sizeof word, 0, err));
        EXPECT(word == i);
    }
    EXPECT_REFUSED(dp_transport_recv(transport, 0, 1, &word, sizeof word, 0, &got), DP_UNAVAILABLE,
                   &got, "rank 0");
    return DP_OK;
}

static void a_link_can_be_cut_at_the_nth_message(void **state)
{
    cluster_run(cluster_kind_of(state), 2, cut_off, NULL);
}

static void *abort_it(void *argument)
{
    dp_transport_abort(argument, DP_JOB_CANCELLED, "cancelled by test");
    dp_transport_abort(argument, DP_INTERNAL, "too late");
    return NULL;
}

static dp_status aborted(struct dp_transport *transport, void *context, struct dp_error *err)
{
    (void)context;
    struct dp_error got = {0};
    if (dp_transport_rank(transport) == 1) {
        EXPECT_REFUSED(dp_transport_recv(transport, 0, 1, NULL, 0, 0, &got), DP_UNAVAILABLE, &got,
                       "rank 0");
        return DP_OK;
    }
    pthread_t thread;
    pthread_create(&thread, NULL, abort_it, transport);
    dp_status status = dp_transport_recv(transport, 1, 1, NULL, 0, 0, &got);
    pthread_join(thread, NULL);
    EXPECT_REFUSED(status, DP_JOB_CANCELLED, &got, "cancelled by test");
    EXPECT_REFUSED(dp_transport_send(transport, 1, 1, NULL, 0, &got), DP_JOB_CANCELLED, &got,
                   "cancelled by test");
    EXPECT_REFUSED(dp_transport_recv(transport, 1, 1, NULL, 0, 0, &got), DP_JOB_CANCELLED, &got,
                   "cancelled by test");
    return DP_OK;
}

static void an_abort_wakes_who_waits_and_the_first_reason_counts(void **state)
{
    for (int i = 0; i < 10; i++) {
        cluster_run(cluster_kind_of(state), 2, aborted, NULL);
    }
}

static dp_status aborted_while_sending(struct dp_transport *transport, void *context,
                                       struct dp_error *err)
{
    struct flood *flood = context;
    if (dp_transport_rank(transport) == 1) {
        while (!flood->go) {
            sched_yield();
        }
        return DP_OK;
    }
    size_t length = 40u << 20;
    DP_AUTO_FREE unsigned char *bytes = dp_alloc(length, 1);
    pthread_t thread;
    struct dp_error got = {0};
    pthread_create(&thread, NULL, abort_it, transport);
    dp_status status = DP_OK;
    while (status == DP_OK) {
        status = dp_transport_send(transport, 1, 1, bytes, length, &got);
    }
    flood->go = 1;
    pthread_join(thread, NULL);
    EXPECT_REFUSED(status, DP_JOB_CANCELLED, &got, "cancelled by test");
    return DP_OK;
}

static void an_abort_wakes_a_sender_that_waits_for_room(void **state)
{
    struct flood flood = {0};
    cluster_run(cluster_kind_of(state), 2, aborted_while_sending, &flood);
}

static int count_fds(void)
{
    DIR *directory = opendir("/proc/self/fd");
    assert_non_null(directory);
    int count = 0;
    while (readdir(directory) != NULL) {
        count++;
    }
    closedir(directory);
    return count;
}

static void nothing_stays_open_after_free(void **state)
{
    cluster_run(cluster_kind_of(state), 3, empty_and_self, NULL);
    int before = count_fds();
    for (int i = 0; i < 5; i++) {
        cluster_run(cluster_kind_of(state), 3, empty_and_self, NULL);
    }
    assert_int_equal(count_fds(), before);
}

static dp_status many_tags(struct dp_transport *transport, void *context, struct dp_error *err)
{
    uint64_t *overtaken = context;
    for (uint64_t tag = 0; tag < 64; tag++) {
        if (dp_transport_rank(transport) == 0) {
            EXPECT_OK(dp_transport_send(transport, 1, tag, NULL, 0, err));
        } else {
            EXPECT_OK(dp_transport_recv(transport, 0, tag, NULL, 0, 0, err));
        }
    }
    if (dp_transport_rank(transport) == 0) {
        EXPECT_OK(dp_transport_recv(transport, 1, 64, NULL, 0, 0, err));
        *overtaken = slow_overtaken(transport);
        return DP_OK;
    }
    return dp_transport_send(transport, 0, 64, NULL, 0, err);
}

// Otherwise the suite would show nothing about order.
static void slow_links_let_messages_overtake_each_other(void **state)
{
    (void)state;
    uint64_t overtaken = 0;
    cluster_run(CLUSTER_SLOW, 2, many_tags, &overtaken);
    assert_true(overtaken > 0);
}

static void tags_differ_in_every_field(void **state)
{
    (void)state;
    uint64_t tag = dp_transport_tag(1, 1, 1, 1, 1);
    assert_true(tag != dp_transport_tag(2, 1, 1, 1, 1) && tag != dp_transport_tag(1, 2, 1, 1, 1));
    assert_true(tag != dp_transport_tag(1, 1, 2, 1, 1) && tag != dp_transport_tag(1, 1, 1, 2, 1));
    assert_true(tag != dp_transport_tag(1, 1, 1, 1, 2));
    assert_true(dp_transport_tag(127, 4095, (1 << 24) - 1, 4095, 255) == UINT64_MAX >> 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CLUSTER_EACH(messages_are_received_by_tag_in_any_order_and_fifo_within_one),
        CLUSTER_EACH(empty_messages_and_messages_to_oneself_arrive),
        CLUSTER_EACH(a_message_may_be_sent_and_received_in_pieces),
        CLUSTER_EACH(storms_of_random_messages_arrive_whole),
        CLUSTER_EACH(two_ranks_that_send_more_than_fits_before_they_receive_do_not_lock_up),
        // Those that queue what the peer does not read.
        CLUSTER_ON(two_ranks_that_close_with_more_unread_than_may_wait_do_not_lock_up, "tcp",
                   CLUSTER_TCP),
        CLUSTER_ON(two_ranks_that_close_with_more_unread_than_may_wait_do_not_lock_up, "shm",
                   CLUSTER_SHM),
        CLUSTER_ON(two_ranks_that_close_with_more_unread_than_may_wait_do_not_lock_up, "mesh",
                   CLUSTER_MESH),
        CLUSTER_EACH(a_sender_waits_for_a_receiver_that_computes),
        CLUSTER_EACH(another_length_is_refused_naming_both_and_the_message_stays),
        CLUSTER_EACH(a_message_over_the_limit_is_refused_before_it_is_read),
        CLUSTER_EACH(a_message_that_does_not_come_ends_in_a_timeout_naming_rank_and_tag),
        CLUSTER_EACH(a_sender_that_makes_no_progress_ends_in_a_timeout),
        // A rank that reads a goodbye over a socket answers by itself.
        CLUSTER_ON(closing_names_a_peer_that_has_not_closed_in_time, "verbs", CLUSTER_VERBS),
        CLUSTER_ON(closing_names_a_peer_that_has_not_closed_in_time, "slow", CLUSTER_SLOW),
        CLUSTER_ON(closing_tells_what_has_not_left_in_time, "tcp", CLUSTER_TCP),
        CLUSTER_ON(closing_tells_what_has_not_left_in_time, "shm", CLUSTER_SHM),
        CLUSTER_ON(closing_tells_what_has_not_left_in_time, "mesh", CLUSTER_MESH),
        CLUSTER_EACH(a_dead_peer_is_named_and_what_it_said_is_still_there),
        CLUSTER_EACH(a_link_can_be_cut_at_the_nth_message),
        CLUSTER_EACH(an_abort_wakes_who_waits_and_the_first_reason_counts),
        CLUSTER_EACH(an_abort_wakes_a_sender_that_waits_for_room),
        CLUSTER_EACH(nothing_stays_open_after_free),
        cmocka_unit_test(slow_links_let_messages_overtake_each_other),
        cmocka_unit_test(tags_differ_in_every_field),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
