// What a byte and a message cost between two processes of one node, over each transport, beside
// memcpy and beside sockets without anything around them in the same run. Prints rows of
// build/bench.json.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
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
#include "dp/window.h"

enum { RUNS = 5, BIG = 4 << 20, BIG_COUNT = 64, PINGS = 2000, PLACES = 4 };

// Seconds of the best run.
struct figures {
    double put_s, put_ping_s;         // BIG bytes; there and back
    double message_s, message_ping_s; // the same with tagged messages
    double rows_s;                    // BIG bytes in rows of 2 KiB stored through the mapping
};

static double now_s(void)
{
    return (double)dp_clock_monotonic_ns() / (double)DP_NS_PER_S;
}

static void keep_least(double *least, double seconds)
{
    if (*least == 0 || seconds < *least) {
        *least = seconds;
    }
}

static void must(dp_status status, const struct dp_error *err)
{
    if (status != DP_OK) {
        fprintf(stderr, "error: %s\n", err->message);
        _exit(1);
    }
}

static void put(struct dp_window *window, int32_t peer, size_t offset, const void *bytes,
                size_t length)
{
    struct dp_error err = {0};
    struct iovec part = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = length};
    must(dp_window_put(window, peer, offset, &part, 1, 0, &err), &err);
}

static void await(struct dp_window *window, int32_t peer, uint64_t count)
{
    struct dp_error err = {0};
    must(dp_window_wait(window, peer, count, 0, NULL, &err), &err);
}

// Rank 0 puts into PLACES places in turn; rank 1 gives each back by a note.
static void big_puts(struct dp_window *window, int32_t self, bool mapped, const char *bytes,
                     uint64_t *landed, double *ret_s)
{
    int32_t peer = 1 - self;
    char *there = mapped ? dp_window_map(window, peer) : NULL;
    if (mapped && there == NULL) {
        return;
    }
    double begin = now_s();
    for (uint64_t i = 1; i <= BIG_COUNT; i++) {
        size_t at = (size_t)(i % PLACES) * BIG;
        if (self == 1) {
            await(window, peer, *landed + i);
            put(window, peer, 0, NULL, 0);
            continue;
        }
        await(window, peer, *landed + (i > PLACES ? i - PLACES : 0));
        for (size_t row = 0; mapped && row < BIG; row += 2048) {
            memcpy(there + at + row, bytes + (row * 7) % BIG, 2048);
        }
        put(window, peer, at, bytes, mapped ? 0 : BIG);
    }
    if (self == 0) {
        await(window, peer, *landed + BIG_COUNT);
    }
    *landed += BIG_COUNT;
    keep_least(ret_s, (now_s() - begin) / BIG_COUNT);
}

static void put_pings(struct dp_window *window, int32_t self, uint64_t *landed, double *ret_s)
{
    int32_t peer = 1 - self;
    uint64_t word = 7;
    double begin = now_s();
    for (uint64_t i = 1; i <= PINGS; i++) {
        if (self == 0) {
            put(window, peer, 0, &word, sizeof word);
        }
        await(window, peer, *landed + i);
        if (self == 1) {
            put(window, peer, 0, &word, sizeof word);
        }
    }
    *landed += PINGS;
    keep_least(ret_s, (now_s() - begin) / PINGS);
}

static void messages(struct dp_transport *transport, int32_t self, char *bytes, size_t length,
                     int count, bool ping, double *ret_s)
{
    struct dp_error err = {0};
    int32_t peer = 1 - self;
    double begin = now_s();
    for (int i = 0; i < count; i++) {
        if (self == 0) {
            must(dp_transport_send(transport, peer, 1, bytes, length, &err), &err);
        } else {
            must(dp_transport_recv(transport, peer, 1, bytes, length, 0, &err), &err);
        }
        if (ping && self == 1) {
            must(dp_transport_send(transport, peer, 1, bytes, length, &err), &err);
        } else if (ping) {
            must(dp_transport_recv(transport, peer, 1, bytes, length, 0, &err), &err);
        }
    }
    if (!ping && self == 1) {
        must(dp_transport_send(transport, peer, 2, NULL, 0, &err), &err);
    } else if (!ping) {
        must(dp_transport_recv(transport, peer, 2, NULL, 0, 0, &err), &err);
    }
    keep_least(ret_s, (now_s() - begin) / count);
}

static void *run_mover(void *argument)
{
    dp_transport_progress(argument);
    return NULL;
}

static struct dp_transport *join(dp_transport_kind kind, int32_t self, int socket)
{
    struct dp_error err = {0};
    char texts[2][DP_ADDRESS_MAX] = {{0}};
    const char *addresses[2] = {texts[0], texts[1]};
    struct dp_transport_config config = {
        .kind = kind, .host = "127.0.0.1", .rank = self, .world = 2, .token = 1};
    struct dp_transport *transport = NULL;
    must(dp_transport_open(&config, texts[self], &transport, &err), &err);
    DP_CHECK(send(socket, texts[self], DP_ADDRESS_MAX, 0) == DP_ADDRESS_MAX);
    DP_CHECK(recv(socket, texts[1 - self], DP_ADDRESS_MAX, MSG_WAITALL) == DP_ADDRESS_MAX);
    must(dp_transport_connect(transport, addresses, dp_clock_monotonic_ns() + 10 * DP_NS_PER_S,
                              &err),
         &err);
    return transport;
}

static void run_rank(dp_transport_kind kind, int32_t self, int socket, struct figures *ret_figures)
{
    struct dp_error err = {0};
    struct dp_transport *transport = join(kind, self, socket);
    pthread_t mover;
    pthread_create(&mover, NULL, run_mover, transport);
    struct dp_window *window = NULL;
    must(dp_window_open(transport, 0, (size_t)PLACES * BIG, 0, &window, &err), &err);
    DP_AUTO_FREE char *bytes = dp_alloc(1, BIG);
    memset(bytes, 1, BIG);
    uint64_t landed = 0; // of the peer's puts so far
    for (int run = 0; run < RUNS; run++) {
        big_puts(window, self, false, bytes, &landed, &ret_figures->put_s);
        big_puts(window, self, true, bytes, &landed, &ret_figures->rows_s);
        put_pings(window, self, &landed, &ret_figures->put_ping_s);
        messages(transport, self, bytes, BIG, BIG_COUNT, false, &ret_figures->message_s);
        messages(transport, self, bytes, 64, PINGS, true, &ret_figures->message_ping_s);
    }
    dp_window_close(window);
    (void)dp_transport_close(transport, dp_clock_monotonic_ns() + 10 * DP_NS_PER_S, NULL);
    pthread_join(mover, NULL);
    dp_transport_free(transport);
}

static struct figures measure(dp_transport_kind kind)
{
    int pair[2];
    struct figures figures = {0};
    DP_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    pid_t child = fork();
    if (child == 0) {
        run_rank(kind, 1, pair[1], &figures);
        _exit(0);
    }
    run_rank(kind, 0, pair[0], &figures);
    waitpid(child, NULL, 0);
    close(pair[0]);
    close(pair[1]);
    return figures;
}

static void exchange(int fd, char *bytes, size_t length, bool sends)
{
    for (size_t done = 0; done < length;) {
        ssize_t part = sends ? send(fd, bytes + done, length - done, MSG_NOSIGNAL)
                             : recv(fd, bytes + done, length - done, MSG_WAITALL);
        DP_CHECK(part > 0);
        done += (size_t)part;
    }
}

// What any transport with a thread of its own cannot do without: that thread is woken by the
// socket, and wakes the one that waits.
struct reader {
    int fd;
    pthread_mutex_t mutex;
    pthread_cond_t arrived;
    int count;
};

static void *read_for_other(void *argument)
{
    struct reader *reader = argument;
    char bytes[64];
    while (recv(reader->fd, bytes, sizeof bytes, MSG_WAITALL) == sizeof bytes) {
        pthread_mutex_lock(&reader->mutex);
        reader->count++;
        pthread_cond_signal(&reader->arrived);
        pthread_mutex_unlock(&reader->mutex);
    }
    return NULL;
}

static void wait_for_reader(struct reader *reader)
{
    pthread_mutex_lock(&reader->mutex);
    while (reader->count == 0) {
        pthread_cond_wait(&reader->arrived, &reader->mutex);
    }
    reader->count--;
    pthread_mutex_unlock(&reader->mutex);
}

static void read_rank(int fd, bool first, double *ret_ping_s)
{
    struct reader reader = {.fd = fd};
    char bytes[64] = {0};
    pthread_t thread;
    pthread_mutex_init(&reader.mutex, NULL);
    pthread_cond_init(&reader.arrived, NULL);
    pthread_create(&thread, NULL, read_for_other, &reader);
    for (int run = 0; run < RUNS; run++) {
        double begin = now_s();
        for (int i = 0; i < PINGS; i++) {
            if (!first) {
                wait_for_reader(&reader);
            }
            exchange(fd, bytes, sizeof bytes, true);
            if (first) {
                wait_for_reader(&reader);
            }
        }
        keep_least(ret_ping_s, (now_s() - begin) / PINGS);
    }
    shutdown(fd, SHUT_RDWR);
    pthread_join(thread, NULL);
    pthread_cond_destroy(&reader.arrived);
    pthread_mutex_destroy(&reader.mutex);
}

static double measure_read(void)
{
    int pair[2];
    double ping_s = 0;
    DP_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    pid_t child = fork();
    if (child == 0) {
        read_rank(pair[1], false, &ping_s);
        _exit(0);
    }
    read_rank(pair[0], true, &ping_s);
    waitpid(child, NULL, 0);
    close(pair[0]);
    close(pair[1]);
    return ping_s;
}

static void raw_rank(int fd, bool first, double *ret_s, double *ret_ping_s)
{
    DP_AUTO_FREE char *bytes = dp_alloc(1, BIG);
    for (int run = 0; run < RUNS; run++) {
        double begin = now_s();
        for (int i = 0; i < BIG_COUNT; i++) {
            exchange(fd, bytes, BIG, first);
        }
        exchange(fd, bytes, 1, !first);
        keep_least(ret_s, (now_s() - begin) / BIG_COUNT);
        begin = now_s();
        for (int i = 0; i < PINGS; i++) {
            exchange(fd, bytes, 64, first);
            exchange(fd, bytes, 64, !first);
        }
        keep_least(ret_ping_s, (now_s() - begin) / PINGS);
    }
}

// Blocking calls on a connected pair, nothing else.
static void measure_raw(bool tcp, double *ret_s, double *ret_ping_s)
{
    int pair[2];
    if (tcp) {
        int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
        struct sockaddr_in name = {.sin_family = AF_INET,
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t length = sizeof name;
        DP_CHECK(bind(listener, (struct sockaddr *)&name, sizeof name) == 0 &&
                 listen(listener, 1) == 0 &&
                 getsockname(listener, (struct sockaddr *)&name, &length) == 0);
        pair[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        DP_CHECK(connect(pair[0], (struct sockaddr *)&name, sizeof name) == 0);
        pair[1] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        for (int i = 0; i < 2; i++) {
            setsockopt(pair[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        }
        close(listener);
    } else {
        DP_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    }
    pid_t child = fork();
    if (child == 0) {
        raw_rank(pair[1], false, ret_s, ret_ping_s);
        _exit(0);
    }
    raw_rank(pair[0], true, ret_s, ret_ping_s);
    waitpid(child, NULL, 0);
    close(pair[0]);
    close(pair[1]);
}

// Into PLACES places in turn, as the puts.
static double measure_memcpy(void)
{
    DP_AUTO_FREE char *from = dp_alloc(1, BIG), *to = dp_alloc(PLACES, BIG);
    memset(from, 1, BIG);
    double least = 0;
    for (int run = 0; run < RUNS; run++) {
        double begin = now_s();
        for (size_t i = 0; i < BIG_COUNT; i++) {
            memcpy(to + (i % PLACES) * BIG, from, BIG);
            __asm__ volatile("" : : "r"(to) : "memory");
        }
        keep_least(&least, (now_s() - begin) / BIG_COUNT);
    }
    return least;
}

static void bandwidth_row(const char *name, double seconds, const char *peer, double peer_s,
                          double goal)
{
    double ratio = peer_s / seconds;
    printf("{\"name\": \"%s\", \"value\": %.3f, \"unit\": \"GB/s\", \"peer\": \"%s: %.3f GB/s\", "
           "\"ratio\": %.4f, \"goal\": \"at least %.2f x\", \"met\": %s}\n",
           name, BIG / seconds / 1e9, peer, BIG / peer_s / 1e9, ratio, goal,
           ratio >= goal ? "true" : "false");
}

static void latency_row(const char *name, double seconds, const char *peer, double peer_s,
                        double goal)
{
    double ratio = seconds / peer_s;
    printf("{\"name\": \"%s\", \"value\": %.2f, \"unit\": \"us there and back\", \"peer\": "
           "\"%s: %.2f us\", \"ratio\": %.4f, \"goal\": \"at most %.2f x\", \"met\": %s}\n",
           name, seconds * 1e6, peer, peer_s * 1e6, ratio, goal, ratio <= goal ? "true" : "false");
}

int main(void)
{
    double tcp_s = 0, tcp_ping_s = 0, local_s = 0, local_ping_s = 0;
    double memcpy_s = measure_memcpy();
    measure_raw(true, &tcp_s, &tcp_ping_s);
    measure_raw(false, &local_s, &local_ping_s);
    double read_ping_s = measure_read();
    struct figures tcp = measure(DP_TRANSPORT_TCP), shm = measure(DP_TRANSPORT_SHM);
    bandwidth_row("puts of 4 MiB over shm", shm.put_s, "memcpy", memcpy_s, 0.8);
    bandwidth_row("rows of 2 KiB stored over shm", shm.rows_s, "memcpy", memcpy_s, 0.8);
    bandwidth_row("puts of 4 MiB over tcp", tcp.put_s, "a socket of TCP", tcp_s, 0.9);
    bandwidth_row("messages of 4 MiB over shm", shm.message_s, "a local socket", local_s, 0.9);
    bandwidth_row("messages of 4 MiB over tcp", tcp.message_s, "a socket of TCP", tcp_s, 0.6);
    latency_row("a put of 8 bytes over shm", shm.put_ping_s, "a local socket", local_ping_s, 1.2);
    latency_row("a put of 8 bytes over tcp", tcp.put_ping_s, "a socket of TCP", tcp_ping_s, 2.0);
    latency_row("a message of 64 bytes over shm", shm.message_ping_s, "a local socket",
                local_ping_s, 2.0);
    latency_row("a message of 64 bytes over shm, beside what its threads must do",
                shm.message_ping_s, "a local socket and a thread that reads it", read_ping_s, 1.3);
    latency_row("a message of 64 bytes over tcp", tcp.message_ping_s, "a socket of TCP", tcp_ping_s,
                2.0);
    return 0;
}
