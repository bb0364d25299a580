// The verbs transport over real libibverbs, between two processes; runs in the virtual machine
// that run_vm.py starts, whose kernel has an RDMA device in software. Prints a line for each case:
// "PASS name" or "FAIL name: why".
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/limits.h"
#include "dp/rand.h"
#include "dp/verbs.h"
#include "dp/verbs_library.h"
#include "dp/window.h"

#define DEADLINE_S 30

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            return dp_fail(err, DP_INTERNAL, "line %d: %s", __LINE__, #condition);                 \
        }                                                                                          \
    } while (0)
#define EXPECT_OK(status)                                                                          \
    do {                                                                                           \
        dp_status expect_ok_status_ = (status);                                                    \
        if (expect_ok_status_ != DP_OK) {                                                          \
            return dp_fail_in(err, "line %d", __LINE__);                                           \
        }                                                                                          \
    } while (0)

// What one rank does; the transport is connected and moved by a thread of its own.
typedef dp_status (*rank_act)(struct dp_transport *transport, struct dp_error *err);

// The machine's library with accidents: set before the transport is made.
static struct dp_verbs_library library;
static const struct dp_verbs_library *real;
static _Atomic int posts;
static int break_at, wrong_key_at; // counted in posted requests; 0 = never

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *request, struct ibv_send_wr **ret_bad)
{
    int number = atomic_fetch_add(&posts, 1) + 1;
    if (number == break_at) {
        struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_ERR};
        real->modify_qp(qp, &attributes, IBV_QP_STATE);
    }
    if (wrong_key_at > 0 && number >= wrong_key_at && request->opcode == IBV_WR_RDMA_WRITE) {
        struct ibv_send_wr wrong = *request;
        wrong.wr.rdma.rkey ^= 0x777700;
        return real->post_send(qp, &wrong, ret_bad);
    }
    return real->post_send(qp, request, ret_bad);
}

static unsigned char byte_of(uint64_t key, size_t at)
{
    return (unsigned char)(dp_rand_mix(key, at / 8) >> (8 * (at % 8)));
}

static void fill(unsigned char *bytes, size_t length, uint64_t key)
{
    for (size_t i = 0; i < length; i++) {
        bytes[i] = byte_of(key, i);
    }
}

static bool is_filled(const unsigned char *bytes, size_t length, uint64_t key)
{
    for (size_t i = 0; i < length; i++) {
        if (bytes[i] != byte_of(key, i)) {
            return false;
        }
    }
    return true;
}

#define MESSAGES 40
#define LENGTH_MAX 40000

static size_t length_of(uint64_t key)
{
    uint64_t roll = dp_rand_mix(key, 7);
    return roll % 5 == 0 ? roll % LENGTH_MAX : roll % 300;
}

static dp_status messages(struct dp_transport *transport, struct dp_error *err)
{
    uint64_t self = (uint64_t)dp_transport_rank(transport), other = 1 - self;
    DP_AUTO_FREE unsigned char *bytes = dp_alloc(1, LENGTH_MAX);
    for (uint64_t i = 0; i < MESSAGES; i++) {
        uint64_t key = self * 1000 + i;
        fill(bytes, length_of(key), key);
        EXPECT_OK(dp_transport_send(transport, (int32_t)other, i % 3, bytes, length_of(key), err));
    }
    for (uint64_t tag = 0; tag < 3; tag++) {
        for (uint64_t i = tag; i < MESSAGES; i += 3) {
            uint64_t key = other * 1000 + i;
            EXPECT_OK(
                dp_transport_recv(transport, (int32_t)other, tag, bytes, length_of(key), 0, err));
            EXPECT(is_filled(bytes, length_of(key), key));
        }
    }
    struct dp_verbs_stats stats;
    dp_verbs_stats(transport, &stats);
    EXPECT(stats.in_flight_peak <= 8 && stats.signalled < stats.requests && stats.mtu == 4096);
    return DP_OK;
}

#define PUTS 30
#define WINDOW_BYTES 100000

// Each puts into the other's window, and again only after a note that it was looked at.
static dp_status windows(struct dp_transport *transport, struct dp_error *err)
{
    uint64_t self = (uint64_t)dp_transport_rank(transport), other = 1 - self;
    struct dp_window *data, *credits;
    EXPECT_OK(dp_window_open(transport, 1, WINDOW_BYTES, 0, &data, err));
    EXPECT_OK(dp_window_open(transport, 2, 0, 0, &credits, err));
    DP_AUTO_FREE unsigned char *bytes = dp_alloc(1, WINDOW_BYTES);
    for (uint64_t n = 1; n <= PUTS; n++) {
        uint64_t key = self * 5000 + n, coming = other * 5000 + n, note;
        size_t at = n % 2 == 0 ? 17 : WINDOW_BYTES / 2;
        fill(bytes, length_of(key), key);
        struct iovec part = {.iov_base = bytes, .iov_len = length_of(key)};
        EXPECT_OK(dp_window_wait(credits, (int32_t)other, n - 1, 0, NULL, err));
        EXPECT_OK(dp_window_put(data, (int32_t)other, at, &part, 1, key, err));
        EXPECT_OK(dp_window_wait(data, (int32_t)other, n, 0, &note, err));
        EXPECT(note == coming);
        EXPECT(is_filled((unsigned char *)dp_window_memory(data) + at, length_of(coming), coming));
        EXPECT_OK(dp_window_put(credits, (int32_t)other, 0, NULL, 0, n, err));
    }
    // From registered memory, without a copy.
    unsigned char *memory = dp_window_memory(data);
    EXPECT_OK(dp_window_wait(credits, (int32_t)other, PUTS, 0, NULL, err));
    fill(memory, WINDOW_BYTES / 2, self);
    struct iovec half = {.iov_base = memory, .iov_len = WINDOW_BYTES / 2};
    EXPECT_OK(dp_window_put(data, (int32_t)other, WINDOW_BYTES / 2, &half, 1, 0, err));
    EXPECT_OK(dp_window_wait(data, (int32_t)other, PUTS + 1, 0, NULL, err));
    EXPECT(is_filled(memory + WINDOW_BYTES / 2, WINDOW_BYTES / 2, other));
    struct dp_verbs_stats stats;
    dp_verbs_stats(transport, &stats);
    EXPECT(stats.zero_copy == 1);
    dp_window_close(data);
    dp_window_close(credits);
    return DP_OK;
}

static dp_status after_a_break(struct dp_transport *transport, struct dp_error *err)
{
    EXPECT_OK(messages(transport, err));
    EXPECT_OK(windows(transport, err));
    struct dp_verbs_stats stats;
    dp_verbs_stats(transport, &stats);
    EXPECT(stats.reconnects >= 1);
    return DP_OK;
}

static dp_status refused(dp_status status, struct dp_error *got, const char *what,
                         struct dp_error *err)
{
    if (status != DP_UNAVAILABLE || strstr(got->message, what) == NULL) {
        return dp_fail(err, DP_INTERNAL, "%s \"%s\" instead of \"%s\"", dp_status_name(status),
                       got->message, what);
    }
    return DP_OK;
}

static dp_status wrong_key(struct dp_transport *transport, struct dp_error *err)
{
    struct dp_window *window;
    struct dp_error got = {0};
    EXPECT_OK(dp_window_open(transport, 1, WINDOW_BYTES, 0, &window, err));
    dp_status status = DP_OK;
    if (dp_transport_rank(transport) == 0) {
        char text[100] = "where it does not belong";
        struct iovec part = {.iov_base = text, .iov_len = sizeof text};
        status = dp_window_put(window, 1, 0, &part, 1, 0, &got);
        if (status == DP_OK) {
            status = dp_transport_recv(transport, 1, 5, text, 1, 0, &got);
        }
        EXPECT_OK(refused(status, &got, "remote access error", err));
    } else {
        status = dp_window_wait(window, 0, 1, 0, NULL, &got);
        EXPECT_OK(refused(status, &got, "remote access error", err));
        EXPECT(dp_window_landed(window, 0) == 0);
        EXPECT(((char *)dp_window_memory(window))[0] == 0);
    }
    dp_window_close(window);
    return DP_OK;
}

static dp_status death(struct dp_transport *transport, struct dp_error *err)
{
    struct dp_error got = {0};
    char bytes[3000] = {0};
    for (int i = 0;; i++) {
        if (dp_transport_rank(transport) == 1 && i == 20) {
            kill(getpid(), SIGKILL);
        }
        dp_status status =
            dp_transport_send(transport, 1 - dp_transport_rank(transport), 1, bytes, 3000, &got);
        if (status == DP_OK) {
            status = dp_transport_recv(transport, 1 - dp_transport_rank(transport), 1, bytes, 3000,
                                       0, &got);
        }
        if (status != DP_OK) {
            return refused(status, &got, "rank 1", err);
        }
    }
}

static void *move(void *transport)
{
    dp_transport_progress(transport);
    return NULL;
}

static dp_status run(int32_t rank, int socket, rank_act act, struct dp_error *err)
{
    struct dp_verbs_config config = {
        .library = &library, .depth = 8, .timeout = 12, .attempt_ms = 5000};
    struct dp_transport *transport;
    char own[DP_ADDRESS_MAX] = {0}, other[DP_ADDRESS_MAX];
    EXPECT_OK(dp_transport_verbs_listen("127.0.0.1", rank, 2, 9, &config, own, &transport, err));
    EXPECT(send(socket, own, sizeof own, 0) == sizeof own);
    EXPECT(recv(socket, other, sizeof other, MSG_WAITALL) == sizeof other);
    const char *addresses[2] = {rank == 0 ? own : other, rank == 0 ? other : own};
    dp_status status = dp_transport_connect(
        transport, addresses, dp_clock_monotonic_ns() + DEADLINE_S * DP_NS_PER_S, err);
    pthread_t mover;
    if (status == DP_OK) {
        pthread_create(&mover, NULL, move, transport);
        status = act(transport, err);
        bool is_well = status == DP_OK;
        dp_status closed =
            dp_transport_close(transport, dp_clock_monotonic_ns() + DEADLINE_S / 2 * DP_NS_PER_S,
                               is_well ? err : NULL);
        status = is_well ? closed : status;
        pthread_join(mover, NULL);
    }
    dp_transport_free(transport);
    return status;
}

static pid_t start(int32_t rank, int socket, rank_act act)
{
    pid_t pid = fork();
    if (pid == 0) {
        struct dp_error err = {0};
        alarm(DEADLINE_S);
        dp_status status = run(rank, socket, act, &err);
        if (status != DP_OK) {
            printf("rank %d: %s\n", rank, err.message);
            fflush(stdout);
        }
        _exit(status != DP_OK);
    }
    return pid;
}

static bool pair(const char *name, rank_act act, bool is_second_killed)
{
    int sockets[2];
    DP_CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
    int64_t start_ns = dp_clock_monotonic_ns();
    pid_t first = start(0, sockets[0], act);
    break_at = break_at > 0 ? break_at + 7 : 0; // not both at the same time
    pid_t second = start(1, sockets[1], act);
    int ended[2];
    waitpid(first, &ended[0], 0);
    waitpid(second, &ended[1], 0);
    close(sockets[0]);
    close(sockets[1]);
    bool is_fine = ended[0] == 0 && (is_second_killed ? WIFSIGNALED(ended[1]) : ended[1] == 0);
    printf("%s %s (%.1f s)\n", is_fine ? "PASS" : "FAIL", name,
           (double)(dp_clock_monotonic_ns() - start_ns) / 1e9);
    fflush(stdout);
    break_at = wrong_key_at = 0;
    return is_fine;
}

int main(void)
{
    struct dp_error err = {0};
    if (dp_verbs_library(&real, &err) != DP_OK) {
        printf("FAIL library: %s\n", err.message);
        return 1;
    }
    library = *real;
    library.post_send = post_send;
    bool is_fine = pair("messages", messages, false);
    is_fine = pair("windows", windows, false) && is_fine;
    break_at = 20;
    is_fine = pair("a failed queue pair is made anew", after_a_break, false) && is_fine;
    wrong_key_at = 1;
    is_fine = pair("a wrong key is refused and named", wrong_key, false) && is_fine;
    is_fine = pair("a killed peer is named", death, true) && is_fine;
    printf("%s\n", is_fine ? "DONE" : "FAILED");
    return !is_fine;
}
