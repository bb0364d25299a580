// State that moves from a rank that holds it to another beside the bare way: as many bytes through
// one tcp connection between two threads, looked at by nobody. They take turns; the least of each
// counts. Prints a row of build/bench.json.
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/device.h"
#include "dp/state.h"
#include "dp/tcp.h"

#define ROUNDS 5
#define COUNT (64ll << 20) // values: 256 MiB
#define BYTES ((size_t)COUNT * sizeof(float))
#define PIECE (1u << 20)
#define TOKEN 5u
#define GOAL 0.5

static void *run_server(void *argument)
{
    dp_state_server_run(argument);
    return NULL;
}

static double seconds_of_state(struct dp_device *device, const float *from, float *to)
{
    struct dp_state_part part = {.own = "tensor",
                                 .kind = DP_ARCHIVE_WEIGHT,
                                 .dtype = DP_DTYPE_F32,
                                 .end = COUNT,
                                 .count = COUNT,
                                 .values = from};
    const struct dp_state state = {
        .meta = {.is_trained = true}, .device = device, .parts = &part, .count = 1};
    char address[DP_ADDRESS_MAX];
    struct dp_state_server *server;
    struct dp_state_reader *reader;
    struct dp_error err;
    pthread_t thread;
    DP_CHECK(dp_state_server_open(&state, "127.0.0.1", 0, TOKEN, address, &server, &err) == DP_OK);
    DP_CHECK(pthread_create(&thread, NULL, run_server, server) == 0);
    const struct dp_state_address at = {0, address};
    const int64_t begin = dp_clock_monotonic_ns();
    const struct dp_state_reader_config config = {
        .sources = &at, .count = 1, .token = TOKEN, .deadline_ns = begin + 10 * DP_NS_PER_S};
    DP_CHECK(dp_state_reader_open(&config, &reader, &err) == DP_OK);
    const struct dp_tensor_source source = dp_state_reader_source(reader);
    DP_CHECK(source.read_weight(source.context, "tensor", 1, COUNT, DP_DTYPE_F32, to, &err) ==
             DP_OK);
    const double seconds = 1e-9 * (double)(dp_clock_monotonic_ns() - begin);
    dp_state_reader_free(reader);
    dp_state_server_close(server);
    pthread_join(thread, NULL);
    dp_state_server_free(server);
    DP_CHECK(memcmp(from, to, BYTES) == 0);
    return seconds;
}

struct sender {
    int fd;
    const char *bytes;
};

static void *run_sender(void *argument)
{
    const struct sender *sender = argument;
    for (size_t at = 0; at < BYTES;) {
        const size_t left = BYTES - at;
        const ssize_t sent = send(sender->fd, sender->bytes + at, left < PIECE ? left : PIECE, 0);
        DP_CHECK(sent > 0);
        at += (size_t)sent;
    }
    return NULL;
}

static double seconds_of_tcp(const float *from, float *to)
{
    char address[DP_ADDRESS_MAX];
    struct sockaddr_storage place = {0};
    socklen_t length;
    struct dp_error err;
    int listen_fd;
    DP_CHECK(dp_tcp_listen("127.0.0.1", address, &listen_fd, &err) == DP_OK);
    DP_CHECK(dp_tcp_resolve(address, &place, &length, &err) == DP_OK);
    DP_AUTO_CLOSE int fd = socket(place.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    DP_CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&place, length) == 0);
    struct sender sender = {accept(listen_fd, NULL, NULL), (const char *)from};
    DP_CHECK(sender.fd >= 0);
    pthread_t thread;
    const int64_t begin = dp_clock_monotonic_ns();
    DP_CHECK(pthread_create(&thread, NULL, run_sender, &sender) == 0);
    for (size_t at = 0; at < BYTES;) {
        const ssize_t got = recv(fd, (char *)to + at, BYTES - at, 0);
        DP_CHECK(got > 0);
        at += (size_t)got;
    }
    const double seconds = 1e-9 * (double)(dp_clock_monotonic_ns() - begin);
    pthread_join(thread, NULL);
    close(sender.fd);
    close(listen_fd);
    return seconds;
}

int main(void)
{
    struct dp_device *device;
    struct dp_error err;
    DP_CHECK(dp_device_open_cpu(DP_F32, &device, &err) == DP_OK);
    DP_AUTO_FREE float *from = dp_new_array(float, COUNT);
    DP_AUTO_FREE float *to = dp_new_array(float, COUNT);
    for (int64_t i = 0; i < COUNT; i++) {
        from[i] = (float)i;
    }
    memset(to, 1, BYTES);
    double ours = INFINITY, bare = INFINITY;
    for (int round = 0; round < ROUNDS; round++) {
        ours = fmin(ours, seconds_of_state(device, from, to));
        bare = fmin(bare, seconds_of_tcp(from, to));
    }
    dp_device_close(device);
    printf("{\"name\": \"state from rank to rank\", \"value\": %.4g, \"unit\": \"GB/s\", \"peer\": "
           "\"one tcp connection, bytes unseen: %.4g GB/s\", \"ratio\": %.4f, "
           "\"goal\": \"at least %g\", \"met\": %s}\n",
           (double)BYTES / ours * 1e-9, (double)BYTES / bare * 1e-9, bare / ours, GOAL,
           bare / ours >= GOAL ? "true" : "false");
    return 0;
}
