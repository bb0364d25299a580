#include "relay.h"

#include <poll.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/tcp.h"

static int dial(const char *address)
{
    struct sockaddr_storage to = {0};
    socklen_t length;
    struct dp_error err;
    DP_CHECK(dp_tcp_resolve(address, &to, &length, &err) == DP_OK);
    int fd = socket(to.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    DP_CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&to, length) == 0);
    return fd;
}

static void send_all(int fd, const unsigned char *bytes, size_t length)
{
    while (length > 0) {
        ssize_t sent = send(fd, bytes, length, MSG_NOSIGNAL);
        if (sent <= 0) {
            return;
        }
        bytes += sent;
        length -= (size_t)sent;
    }
}

// False: the connection is over.
static bool from_server(struct relay *relay, int server, int client)
{
    unsigned char bytes[4096];
    ssize_t got = recv(server, bytes, sizeof bytes, 0);
    if (got <= 0) {
        return false;
    }
    const size_t passed = atomic_load(&relay->passed), last = passed + (size_t)got;
    size_t length = (size_t)got;
    if (relay->after >= passed && relay->after < last) {
        if (relay->fault == RELAY_FLIPS) {
            bytes[relay->after - passed] ^= 4;
        } else {
            length = relay->after - passed;
        }
    } else if (relay->after < passed && relay->fault == RELAY_IS_MUTE) {
        length = 0;
    }
    send_all(client, bytes, length);
    atomic_store(&relay->passed, last);
    return relay->fault != RELAY_CLOSES || last <= relay->after;
}

static bool from_client(int client, int server)
{
    unsigned char bytes[4096];
    ssize_t got = recv(client, bytes, sizeof bytes, 0);
    if (got > 0) {
        send_all(server, bytes, (size_t)got);
    }
    return got > 0;
}

// True: it is to stop.
static bool pass(struct relay *relay, int client)
{
    const int server = dial(relay->to);
    bool goes_on = true, stops = false;
    while (goes_on && !stops) {
        struct pollfd fds[3] = {{.fd = server, .events = POLLIN},
                                {.fd = client, .events = POLLIN},
                                {.fd = relay->wake_fd, .events = POLLIN}};
        poll(fds, 3, -1);
        stops = fds[2].revents != 0;
        goes_on = (fds[0].revents == 0 || from_server(relay, server, client)) &&
                  (fds[1].revents == 0 || from_client(client, server));
    }
    close(server);
    return stops;
}

static void *run(void *argument)
{
    struct relay *relay = argument;
    bool stops = false;
    while (!stops) {
        struct pollfd fds[2] = {{.fd = relay->listen_fd, .events = POLLIN},
                                {.fd = relay->wake_fd, .events = POLLIN}};
        poll(fds, 2, -1);
        stops = fds[1].revents != 0;
        int client = stops ? -1 : accept(relay->listen_fd, NULL, NULL);
        if (client >= 0) {
            stops = pass(relay, client);
            close(client);
        }
    }
    return NULL;
}

void relay_start(struct relay *relay, const char *to, relay_fault fault, size_t after)
{
    struct dp_error err;
    *relay = (struct relay){.fault = fault, .after = after};
    DP_COPY_TEXT(relay->to, to);
    DP_CHECK(dp_tcp_listen("127.0.0.1", relay->address, &relay->listen_fd, &err) == DP_OK);
    relay->wake_fd = eventfd(0, EFD_CLOEXEC);
    DP_CHECK(relay->wake_fd >= 0);
    DP_CHECK(pthread_create(&relay->thread, NULL, run, relay) == 0);
}

void relay_stop(struct relay *relay)
{
    uint64_t one = 1;
    DP_CHECK(write(relay->wake_fd, &one, sizeof one) == sizeof one);
    pthread_join(relay->thread, NULL);
    close(relay->listen_fd);
    close(relay->wake_fd);
}
