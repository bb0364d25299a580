// What is tcp's alone: how links come about, and strangers on the port.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cluster.h"
#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/rand.h"
#include "dp/window.h"

#define TOKEN 0x1122334455667788u

struct end {
    struct dp_transport *transport;
    char address[DP_ADDRESS_MAX];
};

static void listen_on(struct end *end, int32_t rank, int32_t world, uint64_t token)
{
    struct dp_error err = {0};
    assert_ok(dp_transport_tcp_listen("127.0.0.1", rank, world, token, end->address,
                                      &end->transport, &err),
              &err);
}

struct connecting {
    struct dp_transport *transport;
    const char *const *addresses;
    int64_t timeout_ms;
    dp_status status;
    struct dp_error err;
    pthread_t thread;
};

static void *run_connect(void *argument)
{
    struct connecting *connecting = argument;
    connecting->status = dp_transport_connect(
        connecting->transport, connecting->addresses,
        dp_clock_monotonic_ns() + connecting->timeout_ms * DP_NS_PER_MS, &connecting->err);
    return NULL;
}

static void start(struct connecting *connecting)
{
    pthread_create(&connecting->thread, NULL, run_connect, connecting);
}

static int dial(const char *address)
{
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)atoi(strrchr(address, ':') + 1)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

// As the protocol has it: magic, version; token; from, to, world, 0.
static void make_hello(unsigned char *hello, uint32_t magic, uint32_t version, uint64_t token,
                       uint32_t from, uint32_t to, uint32_t world)
{
    uint32_t head[2] = {magic, version}, ranks[4] = {from, to, world, 0};
    memcpy(hello, head, 8);
    memcpy(hello + 8, &token, 8);
    memcpy(hello + 16, ranks, 16);
}

static bool is_dropped(int fd)
{
    char byte;
    return recv(fd, &byte, 1, 0) <= 0;
}

static dp_status ping(struct dp_transport *transport, void *context, struct dp_error *err)
{
    (void)context;
    int32_t self = dp_transport_rank(transport), got = -1;
    for (int32_t peer = 0; peer < dp_transport_world(transport); peer++) {
        EXPECT_OK(dp_transport_send(transport, peer, 1, &self, sizeof self, err));
    }
    for (int32_t peer = 0; peer < dp_transport_world(transport); peer++) {
        EXPECT_OK(dp_transport_recv(transport, peer, 1, &got, sizeof got, 0, err));
        EXPECT(got == peer);
    }
    return DP_OK;
}

static void strangers_on_the_port_are_dropped_and_do_no_harm(void **state)
{
    (void)state;
    struct end ends[2];
    listen_on(&ends[0], 0, 2, TOKEN);
    listen_on(&ends[1], 1, 2, TOKEN);
    const char *addresses[2] = {ends[0].address, ends[1].address};
    unsigned char hello[32];
    int fds[9];
    for (int i = 0; i < 9; i++) {
        fds[i] = dial(ends[1].address); // before anybody accepts
    }
    const uint32_t magic = 0x48545044;
    make_hello(hello, magic, 2, TOKEN + 1, 0, 1, 2); // another assignment
    assert_int_equal(send(fds[0], hello, 32, 0), 32);
    make_hello(hello, magic, 2, TOKEN, 0, 0, 2); // meant for another rank
    assert_int_equal(send(fds[1], hello, 32, 0), 32);
    make_hello(hello, magic, 2, TOKEN, 0, 1, 3); // another world
    assert_int_equal(send(fds[2], hello, 32, 0), 32);
    make_hello(hello, magic, 1, TOKEN, 0, 1, 2); // another version
    assert_int_equal(send(fds[3], hello, 32, 0), 32);
    make_hello(hello, magic, 2, TOKEN, 7, 1, 2); // no such rank
    assert_int_equal(send(fds[4], hello, 32, 0), 32);
    make_hello(hello, magic, 2, TOKEN, 1, 1, 2); // the rank itself
    assert_int_equal(send(fds[5], hello, 32, 0), 32);
    assert_int_equal(send(fds[6], "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", 36, 0), 36);
    assert_int_equal(send(fds[7], hello, 5, 0), 5); // and nothing more; fds[8] says nothing
    close(fds[7]);
    struct connecting one = {ends[1].transport, addresses, 120000, DP_OK, {0}, 0};
    struct connecting zero = {ends[0].transport, addresses, 120000, DP_OK, {0}, 0};
    start(&one);
    for (int i = 0; i < 7; i++) {
        assert_true(is_dropped(fds[i]));
        close(fds[i]);
    }
    start(&zero);
    pthread_join(one.thread, NULL);
    pthread_join(zero.thread, NULL);
    assert_ok(one.status, &one.err);
    assert_ok(zero.status, &zero.err);
    assert_true(is_dropped(fds[8]));
    close(fds[8]);
    struct dp_transport *both[2] = {ends[0].transport, ends[1].transport};
    cluster_run_on(both, 2, ping, NULL, NULL, NULL);
}

static void more_silent_strangers_than_there_is_room_for_do_not_keep_a_peer_out(void **state)
{
    (void)state;
    struct end ends[2];
    listen_on(&ends[0], 0, 2, TOKEN);
    listen_on(&ends[1], 1, 2, TOKEN);
    const char *addresses[2] = {ends[0].address, ends[1].address};
    struct connecting one = {ends[1].transport, addresses, 120000, DP_OK, {0}, 0};
    struct connecting zero = {ends[0].transport, addresses, 120000, DP_OK, {0}, 0};
    start(&one);
    int fds[150];
    for (int i = 0; i < 150; i++) {
        fds[i] = dial(ends[1].address);
    }
    start(&zero);
    pthread_join(one.thread, NULL);
    pthread_join(zero.thread, NULL);
    assert_ok(one.status, &one.err);
    assert_ok(zero.status, &zero.err);
    for (int i = 0; i < 150; i++) {
        close(fds[i]);
    }
    struct dp_transport *both[2] = {ends[0].transport, ends[1].transport};
    cluster_run_on(both, 2, ping, NULL, NULL, NULL);
}

static void a_port_is_held_from_listen_on(void **state)
{
    (void)state;
    struct end end;
    listen_on(&end, 0, 1, TOKEN);
    struct sockaddr_in taken = {.sin_family = AF_INET,
                                .sin_port = htons((uint16_t)atoi(strrchr(end.address, ':') + 1)),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
    assert_int_equal(bind(fd, (struct sockaddr *)&taken, sizeof taken), -1);
    close(fd);
    dp_transport_free(end.transport);
}

static void a_peer_that_has_ended_is_named(void **state)
{
    (void)state;
    struct end zero, one;
    listen_on(&zero, 0, 2, TOKEN);
    listen_on(&one, 1, 2, TOKEN);
    const char *addresses[2] = {zero.address, one.address};
    dp_transport_free(one.transport);
    struct dp_error err = {0};
    dp_status status = dp_transport_connect(zero.transport, addresses,
                                            dp_clock_monotonic_ns() + 120 * DP_NS_PER_S, &err);
    assert_refused(status, DP_UNAVAILABLE, &err, "cannot reach rank 1 at 127.0.0.1:");
    dp_transport_free(zero.transport);
}

static void a_peer_of_another_assignment_is_told_apart(void **state)
{
    (void)state;
    struct end zero, one;
    listen_on(&zero, 0, 2, TOKEN);
    listen_on(&one, 1, 2, TOKEN + 1);
    const char *addresses[2] = {zero.address, one.address};
    struct connecting other = {one.transport, addresses, 2000, DP_OK, {0}, 0};
    start(&other);
    struct dp_error err = {0};
    dp_status status = dp_transport_connect(zero.transport, addresses,
                                            dp_clock_monotonic_ns() + 120 * DP_NS_PER_S, &err);
    assert_refused(status, DP_UNAVAILABLE, &err, "of another assignment");
    pthread_join(other.thread, NULL);
    assert_refused(other.status, DP_TIMEOUT, &other.err, "1 of 1 peers");
    assert_refused(other.status, DP_TIMEOUT, &other.err, "the first is rank 0 at");
    dp_transport_free(zero.transport);
    dp_transport_free(one.transport);
}

static void what_answers_with_a_wrong_hello_is_told_apart(void **state)
{
    (void)state;
    struct end zero;
    listen_on(&zero, 0, 2, TOKEN);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof name;
    assert_int_equal(bind(listener, (struct sockaddr *)&name, sizeof name), 0);
    assert_int_equal(listen(listener, 1), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&name, &length), 0);
    char address[64];
    snprintf(address, sizeof address, "127.0.0.1:%u", ntohs(name.sin_port));
    const char *addresses[2] = {zero.address, address};
    struct connecting connecting = {zero.transport, addresses, 120000, DP_OK, {0}, 0};
    start(&connecting);
    int fd = accept(listener, NULL, NULL);
    assert_int_equal(send(fd, "220 mail.example.org ready when you are\r\n", 41, 0), 41);
    pthread_join(connecting.thread, NULL);
    assert_refused(connecting.status, DP_CONFLICT, &connecting.err, "is not rank 1");
    close(fd);
    close(listener);
    dp_transport_free(zero.transport);
}

static void an_abort_ends_a_connect_that_waits(void **state)
{
    (void)state;
    struct end one;
    listen_on(&one, 1, 2, TOKEN);
    const char *addresses[2] = {"127.0.0.1:1", one.address};
    struct connecting connecting = {one.transport, addresses, 60000, DP_OK, {0}, 0};
    start(&connecting);
    dp_transport_abort(one.transport, DP_JOB_CANCELLED, "stopped");
    pthread_join(connecting.thread, NULL);
    assert_refused(connecting.status, DP_JOB_CANCELLED, &connecting.err, "stopped");
    dp_transport_free(one.transport);
}

static void addresses_and_hosts_that_are_none_are_refused(void **state)
{
    (void)state;
    struct end zero;
    struct dp_error err = {0};
    dp_status status =
        dp_transport_tcp_listen("no such host", 0, 2, 1, zero.address, &zero.transport, &err);
    assert_refused(status, DP_INVALID, &err, "no such host");
    status = dp_transport_tcp_listen("127.0.0.1", 2, 2, 1, zero.address, &zero.transport, &err);
    assert_refused(status, DP_INVALID, &err, "rank 2 of 2");
    listen_on(&zero, 0, 2, TOKEN);
    const char *addresses[2] = {zero.address, "nowhere"};
    status = dp_transport_connect(zero.transport, addresses, dp_clock_monotonic_ns(), &err);
    assert_refused(status, DP_INVALID, &err, "rank 1: \"nowhere\" is not host:port");
    dp_transport_free(zero.transport);
}

static void *run_progress(void *argument)
{
    dp_transport_progress(argument);
    return NULL;
}

// A peer that speaks the greeting but no messages.
static void bytes_that_are_no_message_close_the_link(void **state)
{
    (void)state;
    struct end one;
    listen_on(&one, 1, 2, TOKEN);
    const char *addresses[2] = {"127.0.0.1:1", one.address};
    struct connecting connecting = {one.transport, addresses, 120000, DP_OK, {0}, 0};
    start(&connecting);
    int fd = dial(one.address);
    unsigned char hello[32];
    make_hello(hello, 0x48545044, 2, TOKEN, 0, 1, 2);
    assert_int_equal(send(fd, hello, 32, 0), 32);
    assert_int_equal(recv(fd, hello, 32, MSG_WAITALL), 32);
    pthread_join(connecting.thread, NULL);
    assert_ok(connecting.status, &connecting.err);
    char junk[100];
    memset(junk, 0x5a, sizeof junk);
    assert_int_equal(send(fd, junk, sizeof junk, 0), sizeof junk);
    pthread_t mover;
    pthread_create(&mover, NULL, run_progress, one.transport);
    struct dp_error err = {0};
    dp_status status = dp_transport_recv(one.transport, 0, 1, NULL, 0, 0, &err);
    assert_refused(status, DP_UNAVAILABLE, &err, "it sent bytes that are no message");
    (void)dp_transport_close(one.transport, 0, NULL);
    pthread_join(mover, NULL);
    dp_transport_free(one.transport);
    close(fd);
}

// As the protocol has it: magic, key; tag or note, length; of a put offset and number.
static void send_frame(int fd, uint32_t magic, uint32_t key, uint64_t tag, uint64_t length,
                       const uint64_t *place)
{
    unsigned char frame[40];
    uint32_t words[2] = {magic, key};
    uint64_t longs[4] = {tag, length, place != NULL ? place[0] : 0, place != NULL ? place[1] : 0};
    size_t bytes = place != NULL ? 40 : 24;
    memcpy(frame, words, 8);
    memcpy(frame + 8, longs, 32);
    assert_int_equal(send(fd, frame, bytes, 0), (ssize_t)bytes);
}

// A peer of the protocol's whose first put is right and whose second one is not.
static void put_badly(uint64_t offset, uint64_t length, uint64_t number, const char *reason)
{
    struct end one;
    listen_on(&one, 1, 2, TOKEN);
    const char *addresses[2] = {"127.0.0.1:1", one.address};
    struct connecting connecting = {one.transport, addresses, 120000, DP_OK, {0}, 0};
    start(&connecting);
    int fd = dial(one.address);
    unsigned char bytes[80];
    make_hello(bytes, 0x48545044, 2, TOKEN, 0, 1, 2);
    assert_int_equal(send(fd, bytes, 32, 0), 32);
    assert_int_equal(recv(fd, bytes, 32, MSG_WAITALL), 32);
    pthread_join(connecting.thread, NULL);
    assert_ok(connecting.status, &connecting.err);
    uint32_t key = 1 << 16 | 3, card[2] = {0x43575044, key};
    uint64_t size = 100, places[3][2] = {{90, 1}, {offset, number}};
    memset(bytes, 0, sizeof bytes);
    memcpy(bytes, card, 8);
    memcpy(bytes + 8, &size, 8);
    send_frame(fd, 0x31545044, 0, 0xffffffff00000003, 80, NULL);
    assert_int_equal(send(fd, bytes, 80, 0), 80);
    pthread_t mover;
    pthread_create(&mover, NULL, run_progress, one.transport);
    struct dp_error err = {0};
    struct dp_window *window = NULL;
    assert_ok(dp_window_open(one.transport, 3, 100, 0, &window, &err), &err);
    send_frame(fd, 0x31575044, key, 7, 10, places[0]);
    assert_int_equal(send(fd, "0123456789", 10, 0), 10);
    uint64_t note = 0;
    assert_ok(dp_window_wait(window, 0, 1, 0, &note, &err), &err);
    assert_int_equal(note, 7);
    unsigned char before[100];
    memcpy(before, dp_window_memory(window), 100);
    assert_memory_equal(before + 90, "0123456789", 10);
    send_frame(fd, 0x31575044, key, 8, length, places[1]);
    send(fd, "abcdefghij", 10, MSG_NOSIGNAL); // the link may be gone by now
    assert_refused(dp_window_wait(window, 0, 2, 0, &note, &err), DP_UNAVAILABLE, &err, reason);
    assert_memory_equal(dp_window_memory(window), before, 100);
    dp_window_close(window);
    (void)dp_transport_close(one.transport, 0, NULL);
    pthread_join(mover, NULL);
    dp_transport_free(one.transport);
    close(fd);
}

static void a_put_is_checked_before_a_byte_of_it_is_let_in(void **state)
{
    (void)state;
    put_badly(91, 10, 2, "it put beyond the end of a window");
    put_badly(UINT64_MAX - 4, 10, 2, "it put beyond the end of a window");
    put_badly(0, 1ull << 40, 2, "it sent bytes that are no message");
    put_badly(0, 10, 1, "its puts are out of order");
    put_badly(0, 10, 3, "its puts are out of order");
}

static dp_status wide(struct dp_transport *transport, void *context, struct dp_error *err)
{
    for (int round = 0; round < 5; round++) {
        EXPECT_OK(ping(transport, context, err));
    }
    return DP_OK;
}

static void addresses_may_be_v6(void **state)
{
    (void)state;
    struct end ends[2];
    struct dp_error err = {0};
    for (int32_t i = 0; i < 2; i++) {
        dp_status status =
            dp_transport_tcp_listen("::1", i, 2, TOKEN, ends[i].address, &ends[i].transport, &err);
        if (status != DP_OK && i == 0) {
            print_message("skipped: %s\n", err.message);
            skip();
        }
        assert_ok(status, &err);
        assert_memory_equal(ends[i].address, "[::1]:", 6);
    }
    const char *addresses[2] = {ends[0].address, ends[1].address};
    struct connecting one = {ends[1].transport, addresses, 120000, DP_OK, {0}, 0};
    struct connecting zero = {ends[0].transport, addresses, 120000, DP_OK, {0}, 0};
    start(&one);
    start(&zero);
    pthread_join(one.thread, NULL);
    pthread_join(zero.thread, NULL);
    assert_ok(one.status, &one.err);
    assert_ok(zero.status, &zero.err);
    struct dp_transport *both[2] = {ends[0].transport, ends[1].transport};
    cluster_run_on(both, 2, ping, NULL, NULL, NULL);
}

static void thirty_two_ranks_are_all_linked(void **state)
{
    (void)state;
    cluster_run(CLUSTER_TCP, 32, wide, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strangers_on_the_port_are_dropped_and_do_no_harm),
        cmocka_unit_test(more_silent_strangers_than_there_is_room_for_do_not_keep_a_peer_out),
        cmocka_unit_test(a_port_is_held_from_listen_on),
        cmocka_unit_test(a_peer_that_has_ended_is_named),
        cmocka_unit_test(a_peer_of_another_assignment_is_told_apart),
        cmocka_unit_test(what_answers_with_a_wrong_hello_is_told_apart),
        cmocka_unit_test(an_abort_ends_a_connect_that_waits),
        cmocka_unit_test(addresses_and_hosts_that_are_none_are_refused),
        cmocka_unit_test(bytes_that_are_no_message_close_the_link),
        cmocka_unit_test(a_put_is_checked_before_a_byte_of_it_is_let_in),
        cmocka_unit_test(addresses_may_be_v6),
        cmocka_unit_test(thirty_two_ranks_are_all_linked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
