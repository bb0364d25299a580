// Peers of an all-to-all that say what cannot be, leave early, or are far ahead.
#include <endian.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/window.h"
#include "end.h"

// Speaks to an all-to-all of two ranks as only a damaged rank would: says what it likes about its
// window, and puts notes into it by hand (kind, move, round and check as worker/alltoall packs
// them).
#define BYTES_TAG 0xfffffffe00000001u // with the window's id
#define ACK_OF(count) (7ull << 61 | 2ull << 59 | (count))

static dp_status tell_bytes(struct dp_transport *transport, int64_t bytes, struct dp_error *err)
{
    uint64_t mine = htole64((uint64_t)bytes);
    return dp_transport_send(transport, 0, BYTES_TAG, &mine, sizeof mine, err);
}

static dp_status ask_for_bytes(struct dp_transport *transport, void *context, struct dp_error *err)
{
    static const struct {
        int64_t bytes;
        dp_status status;
        const char *part;
    } tries[] = {{1 << 21, DP_TOO_LARGE, "rank 1 needs a window of 2097152 bytes"},
                 {INT64_MIN, DP_INTERNAL, "rank 1 tells of a window of -9223372036854775808 bytes"},
                 {0, DP_INTERNAL, "rank 1 tells of a window of 0 bytes"}};
    (void)context;
    for (size_t i = 0; i < DP_ARRAY_LENGTH(tries); i++) {
        if (dp_transport_rank(transport) == 1) {
            EXPECT_OK(tell_bytes(transport, tries[i].bytes, err));
            continue;
        }
        struct dp_alltoall *alltoall;
        struct dp_error refused;
        struct dp_alltoall_config config = end_config(transport);
        config.bytes_max = 1 << 20;
        EXPECT_REFUSED(
            dp_alltoall_open(&config, dp_clock_monotonic_ns() + DP_NS_PER_S, &alltoall, &refused),
            tries[i].status, &refused, tries[i].part);
    }
    return dp_transport_rank(transport) == 0 ? dp_transport_send(transport, 1, 99, NULL, 0, err)
                                             : dp_transport_recv(transport, 0, 99, NULL, 0, 0, err);
}

static void a_peer_whose_window_makes_no_sense_is_refused_by_name(void **state)
{
    (void)state;
    cluster_run(CLUSTER_LOOPBACK, 2, ask_for_bytes, NULL);
}

static dp_status acknowledge_too_much(struct dp_transport *transport, void *context,
                                      struct dp_error *err)
{
    (void)context;
    if (dp_transport_rank(transport) == 1) {
        uint64_t theirs;
        struct dp_window *window;
        EXPECT_OK(dp_transport_recv(transport, 0, BYTES_TAG, &theirs, sizeof theirs, 0, err));
        EXPECT_OK(tell_bytes(transport, (int64_t)le64toh(theirs), err));
        EXPECT_OK(dp_window_open(transport, 1, (size_t)le64toh(theirs), 0, &window, err));
        EXPECT_OK(dp_window_put(window, 0, 0, NULL, 0, ACK_OF(1000), err));
        EXPECT_OK(dp_transport_recv(transport, 0, 99, NULL, 0, 0, err));
        dp_window_close(window);
        return DP_OK;
    }
    struct end end = {0};
    struct dp_alltoall_config config = end_config(transport);
    struct dp_routing *routing;
    struct dp_arrivals arrivals;
    struct dp_error refused;
    config.blocked_ms = 2000; // when nobody notices
    EXPECT_OK(end_open(&end, &config, err));
    dp_status status = end_begin_dispatch(&end, 4, &routing, &refused);
    if (status == DP_OK) {
        status = end.exchanger->arrive(routing, DP_MOVE_DISPATCH, &arrivals, &refused);
    }
    EXPECT_OK(dp_transport_send(transport, 1, 99, NULL, 0, err));
    end.exchanger->release(routing);
    EXPECT_OK(end_close(&end, err));
    EXPECT_REFUSED(status, DP_INTERNAL, &refused, "rank 1 says that it has read 1000");
    return DP_OK;
}

static void a_peer_that_has_read_more_than_was_sent_is_refused(void **state)
{
    (void)state;
    cluster_run(CLUSTER_LOOPBACK, 2, acknowledge_too_much, NULL);
}

// The thread that moves rows need not have come to run when its program closes.
static dp_status close_first(struct dp_transport *transport, void *context, struct dp_error *err)
{
    (void)context;
    struct end end = {0};
    struct dp_alltoall_config config = end_config(transport);
    EXPECT_OK(dp_alltoall_open(&config, 0, &end.alltoall, err));
    end.exchanger = dp_alltoall_exchanger(end.alltoall);
    if (dp_transport_rank(transport) == 0) {
        struct dp_routing *routing = NULL;
        struct dp_error refused;
        int64_t deadline_ns = dp_clock_monotonic_ns() + 50 * DP_NS_PER_MS;
        EXPECT_REFUSED(dp_alltoall_close(end.alltoall, deadline_ns, &refused), DP_TIMEOUT, &refused,
                       "not all members closed in time");
        EXPECT_REFUSED(end_begin_dispatch(&end, 1, &routing, &refused), DP_TIMEOUT, &refused,
                       "not all members closed in time");
        end.exchanger->release(routing);
        EXPECT_OK(dp_transport_send(transport, 1, 99, NULL, 0, err));
    } else {
        EXPECT_OK(dp_transport_recv(transport, 0, 99, NULL, 0, 0, err));
    }
    dp_alltoall_abort(end.alltoall, DP_JOB_CANCELLED, "over");
    dp_alltoall_progress(end.alltoall);
    dp_alltoall_free(end.alltoall);
    return DP_OK;
}

static void a_close_before_anything_moves_ends_at_its_deadline(void **state)
{
    (void)state;
    cluster_run(CLUSTER_LOOPBACK, 2, close_first, NULL);
}

// Rank 0 sends far more than rank 1, which computes, is to hold for it: that its other thread waits
// for rows does not mean that it takes everything.
#define FLOOD_BYTES (1u << 20)
#define FLOOD_MESSAGES 400

static dp_status flood(struct dp_transport *transport, void *context, struct dp_error *err)
{
    _Atomic int *has_ended = context;
    struct end end = {0};
    struct dp_alltoall_config config = end_config(transport);
    EXPECT_OK(end_open(&end, &config, err));
    dp_status status = DP_OK;
    struct dp_error refused = {0};
    if (dp_transport_rank(transport) == 0) {
        DP_AUTO_FREE char *bytes = dp_alloc(1, FLOOD_BYTES);
        dp_transport_set_blocked_ms(transport, 1000);
        for (int i = 0; i < FLOOD_MESSAGES && status == DP_OK; i++) {
            status = dp_transport_send(transport, 1, 98, bytes, FLOOD_BYTES, &refused);
        }
        *has_ended = 1;
    }
    while (*has_ended == 0) {
        sched_yield();
    }
    dp_alltoall_abort(end.alltoall, DP_JOB_CANCELLED, "over");
    dp_transport_abort(transport, DP_JOB_CANCELLED, "over");
    EXPECT_OK(end_close(&end, err));
    if (dp_transport_rank(transport) == 0) {
        EXPECT_REFUSED(status, DP_TIMEOUT, &refused, "rank 1 took nothing");
    }
    return DP_OK;
}

static void a_rank_that_computes_holds_back_who_is_far_ahead_of_it(void **state)
{
    (void)state;
    _Atomic int has_ended = 0;
    cluster_run(CLUSTER_TCP, 2, flood, &has_ended);
}

// Rows that stand in the same stream behind what was held back come when they are waited for.
static dp_status flood_and_go_on(struct dp_transport *transport, void *context,
                                 struct dp_error *err)
{
    (void)context;
    struct end end = {0};
    struct dp_alltoall_config config = end_config(transport);
    struct dp_routing *routing;
    EXPECT_OK(end_open(&end, &config, err));
    DP_AUTO_FREE char *bytes = dp_alloc(1, FLOOD_BYTES);
    const int messages = 100;
    for (int i = 0; i < messages && dp_transport_rank(transport) == 0; i++) {
        EXPECT_OK(dp_transport_send(transport, 1, 98, bytes, FLOOD_BYTES, err));
    }
    EXPECT_OK(end_begin_dispatch(&end, 3, &routing, err));
    EXPECT_OK(end_go_forward(&end, routing, err));
    end.exchanger->release(routing);
    EXPECT_OK(end_close(&end, err));
    for (int i = 0; i < messages && dp_transport_rank(transport) == 1; i++) {
        EXPECT_OK(dp_transport_recv(transport, 0, 98, bytes, FLOOD_BYTES, 0, err));
    }
    return DP_OK;
}

static void rows_behind_what_was_held_back_come_when_they_are_waited_for(void **state)
{
    (void)state;
    cluster_run(CLUSTER_TCP, 2, flood_and_go_on, NULL);
    cluster_run(CLUSTER_MESH, 2, flood_and_go_on, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_peer_whose_window_makes_no_sense_is_refused_by_name),
        cmocka_unit_test(a_peer_that_has_read_more_than_was_sent_is_refused),
        cmocka_unit_test(a_close_before_anything_moves_ends_at_its_deadline),
        cmocka_unit_test(a_rank_that_computes_holds_back_who_is_far_ahead_of_it),
        cmocka_unit_test(rows_behind_what_was_held_back_come_when_they_are_waited_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
