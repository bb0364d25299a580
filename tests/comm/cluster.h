// Ranks as threads over a transport, for tests.
#pragma once

#include "dp/clock.h"
#include "dp/transport.h"
#include "dp_test.h"

typedef enum cluster_kind {
    CLUSTER_LOOPBACK,
    CLUSTER_TCP,
    CLUSTER_SHM,
    CLUSTER_MESH,  // the lower and the upper half of the ranks as if on two nodes
    CLUSTER_SLOW,  // slow.h, with links that delay, reorder and stall
    CLUSTER_VERBS, // over fake_verbs.h, which delays, reorders and duplicates
    CLUSTER_KINDS
} cluster_kind;

// Every kind once, as the state of a test; cluster_kind_of() is which.
extern cluster_kind cluster_kinds[CLUSTER_KINDS];
#define CLUSTER_ON(test, on, kind)                                                                 \
    {                                                                                              \
        .name = #test " [" on "]", .test_func = test, .initial_state = &cluster_kinds[kind]        \
    }
#define CLUSTER_EACH(test)                                                                         \
    CLUSTER_ON(test, "loopback", CLUSTER_LOOPBACK), CLUSTER_ON(test, "tcp", CLUSTER_TCP),          \
        CLUSTER_ON(test, "shm", CLUSTER_SHM), CLUSTER_ON(test, "verbs", CLUSTER_VERBS),            \
        CLUSTER_ON(test, "mesh", CLUSTER_MESH), CLUSTER_ON(test, "slow", CLUSTER_SLOW)
cluster_kind cluster_kind_of(void **state);

// What one rank does. It may not use cmocka's asserts, which belong to the main thread.
typedef dp_status (*cluster_rank)(struct dp_transport *transport, void *context,
                                  struct dp_error *err);

// Fails the rank with the place and the text of the condition.
#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            return dp_fail(err, DP_INTERNAL, "%s:%d: %s", __FILE__, __LINE__, #condition);         \
        }                                                                                          \
    } while (0)
#define EXPECT_OK(status)                                                                          \
    do {                                                                                           \
        dp_status expect_ok_status_ = (status);                                                    \
        if (expect_ok_status_ != DP_OK) {                                                          \
            return expect_ok_status_;                                                              \
        }                                                                                          \
    } while (0)
#define EXPECT_REFUSED(got, wanted, error, part)                                                   \
    do {                                                                                           \
        dp_status expect_got_ = (got);                                                             \
        if (expect_got_ != (wanted) || strstr((error)->message, (part)) == NULL) {                 \
            return dp_fail(err, DP_INTERNAL, "%s:%d: %s \"%s\" instead of %s \"%s\"", __FILE__,    \
                           __LINE__, dp_status_name(expect_got_), (error)->message,                \
                           dp_status_name(wanted), (part));                                        \
        }                                                                                          \
    } while (0)

// Connects transports that listen, each in a thread. Statuses and errors [world] may be NULL: any
// failure fails the test.
void cluster_connect(int32_t world, struct dp_transport **ends, const char *const *addresses,
                     dp_status *ret_statuses, struct dp_error *ret_errors);
// Makes connected transports; ends[world].
void cluster_open(cluster_kind kind, int32_t world, struct dp_transport **ret_ends);
// Runs `rank` on every end in a thread of its own, together with the thread that moves its bytes,
// then closes and frees all. Statuses and errors [world] may be NULL: any failure fails the test.
void cluster_run_on(struct dp_transport **ends, int32_t world, cluster_rank rank, void *context,
                    dp_status *ret_statuses, struct dp_error *ret_errors);
void cluster_run(cluster_kind kind, int32_t world, cluster_rank rank, void *context);
