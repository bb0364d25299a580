#include "detour.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "dp/check.h"
#include "dp_test.h"

struct way {
    int from, to;
};

static void *carry(void *argument)
{
    struct way way = *(struct way *)argument;
    char bytes[65536];
    ssize_t got;
    free(argument);
    while ((got = recv(way.from, bytes, sizeof bytes, 0)) > 0) {
        for (ssize_t sent = 0, n; sent < got; sent += n) {
            n = send(way.to, bytes + sent, (size_t)(got - sent), MSG_NOSIGNAL);
            if (n <= 0) {
                got = 0;
                n = 0;
                break;
            }
        }
    }
    // Both ways end together, as those of one connection do.
    shutdown(way.from, SHUT_RDWR);
    shutdown(way.to, SHUT_RDWR);
    return NULL;
}

static void carry_each_way(int from, int to)
{
    const struct way ways[] = {{from, to}, {to, from}};
    for (int i = 0; i < 2; i++) {
        struct way *way = malloc(sizeof *way);
        DP_CHECK(way != NULL);
        *way = ways[i];
        pthread_t thread;
        DP_CHECK(pthread_create(&thread, NULL, carry, way) == 0);
        pthread_detach(thread);
    }
}

static void serve(int listener, const struct sockaddr_in *to)
{
    for (;;) {
        int on = 1, from = accept(listener, NULL, NULL);
        int out = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (from < 0 || connect(out, (const struct sockaddr *)to, sizeof *to) != 0) {
            _exit(1);
        }
        setsockopt(from, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        setsockopt(out, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        carry_each_way(from, out);
    }
}

pid_t detour_start(const char *to, char *ret_address)
{
    char host[64];
    const char *colon = strrchr(to, ':');
    struct sockaddr_in target = {.sin_family = AF_INET};
    snprintf(host, sizeof host, "%.*s", (int)(colon - to), to);
    target.sin_port = htons((uint16_t)strtol(colon + 1, NULL, 10));
    assert_int_equal(inet_pton(AF_INET, host, &target.sin_addr), 1);

    struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof own;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&own, sizeof own), 0);
    assert_int_equal(listen(listener, 64), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&own, &length), 0);
    snprintf(ret_address, DETOUR_ADDRESS_MAX, "127.0.0.1:%d", ntohs(own.sin_port));
    pid_t parent = getpid(), pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() == parent) {
            serve(listener, &target);
        }
        _exit(1);
    }
    close(listener);
    return pid;
}
