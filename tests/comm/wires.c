#include "wires.h"

#include <fcntl.h>
#include <sched.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dp/check.h"

#define WORDS_MAX 24
#define HERE "/proc/thread-self/ns/net"
// What may pass at once after a rest: little, so that short messages take their time too.
#define BURST_BYTES 8000

extern char **environ;

// Runs a program of iproute2 in the namespace of the calling thread; 0 when it went well.
__attribute__((format(printf, 1, 2))) static int run(const char *format, ...)
{
    char line[256], *words[WORDS_MAX], *rest = line;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    int count = 0;
    for (char *word = strtok_r(line, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
        DP_CHECK(count < WORDS_MAX - 1);
        words[count++] = word;
    }
    words[count] = NULL;
    pid_t pid;
    int status = -1;
    if (posix_spawnp(&pid, words[0], NULL, NULL, words, environ) != 0) {
        return -1;
    }
    DP_CHECK(waitpid(pid, &status, 0) == pid);
    return status;
}

const char *wires_host(int32_t rank, char *buffer)
{
    snprintf(buffer, WIRES_HOST_MAX, "10.77.%d.1", rank);
    return buffer;
}

void wires_enter(const struct wires *wires, int32_t rank)
{
    DP_CHECK(setns(wires->places[rank], CLONE_NEWNET) == 0);
}

void wires_go_home(const struct wires *wires)
{
    DP_CHECK(setns(wires->home, CLONE_NEWNET) == 0);
}

static const char *make_place(struct wires *wires, int32_t rank)
{
    if (unshare(CLONE_NEWNET) != 0) {
        return "network namespaces are not allowed here";
    }
    wires->places[rank] = open(HERE, O_RDONLY | O_CLOEXEC);
    DP_CHECK(wires->places[rank] >= 0);
    wires->ranks++;
    char host[WIRES_HOST_MAX];
    const int failed = run("ip address add %s/32 dev lo", wires_host(rank, host));
    wires_go_home(wires);
    if (failed != 0) {
        return "there is no ip(8) of iproute2, or it may not set addresses";
    }
    return NULL;
}

// One end of the link between two ranks: it is called w<peer>.
static const char *set_end(const struct wires *wires, int32_t rank, int32_t peer,
                           double bytes_per_second)
{
    char host[WIRES_HOST_MAX], from[WIRES_HOST_MAX];
    wires_enter(wires, rank);
    int failed = run("ip link set dev lo up");
    failed |= run("ip link set dev w%d up", peer);
    failed |= run("ip route add %s/32 dev w%d src %s", wires_host(peer, host), peer,
                  wires_host(rank, from));
    const char *why = failed != 0 ? "ip(8) may not set up links" : NULL;
    if (why == NULL && bytes_per_second > 0 &&
        run("tc qdisc add dev w%d root tbf rate %.0fbit burst %d latency 2s", peer,
            8 * bytes_per_second, BURST_BYTES) != 0) {
        why = "tc(8) of iproute2 may not limit a link's rate (tbf)";
    }
    wires_go_home(wires);
    return why;
}

static const char *join(const struct wires *wires, int32_t a, int32_t b, double bytes_per_second)
{
    wires_enter(wires, a);
    const int failed = run("ip link add name w%d type veth peer name w%d netns /proc/%d/fd/%d", b,
                           a, (int)getpid(), wires->places[b]);
    wires_go_home(wires);
    if (failed != 0) {
        return "ip(8) may not make veth pairs";
    }
    const char *why = set_end(wires, a, b, bytes_per_second);
    return why == NULL ? set_end(wires, b, a, bytes_per_second) : why;
}

const char *wires_open(struct wires *wires, int32_t ranks, double bytes_per_second)
{
    DP_CHECK(ranks <= WIRES_RANKS_MAX);
    *wires = (struct wires){.home = open(HERE, O_RDONLY | O_CLOEXEC)};
    DP_CHECK(wires->home >= 0);
    const char *why = NULL;
    for (int32_t r = 0; r < ranks && why == NULL; r++) {
        why = make_place(wires, r);
        for (int32_t p = 0; p < r && why == NULL; p++) {
            why = join(wires, p, r, bytes_per_second);
        }
    }
    if (why != NULL) {
        wires_close(wires);
    }
    return why;
}

void wires_close(struct wires *wires)
{
    for (int32_t r = 0; r < wires->ranks; r++) {
        close(wires->places[r]);
    }
    close(wires->home);
    *wires = (struct wires){.home = -1};
}

uint64_t wires_sent_bytes(const struct wires *wires, int32_t rank)
{
    char line[512];
    uint64_t sum = 0;
    wires_enter(wires, rank);
    FILE *file = fopen("/proc/thread-self/net/dev", "re");
    DP_CHECK(file != NULL);
    while (fgets(line, sizeof line, file) != NULL) {
        // A name, eight figures of what came, then the bytes that left.
        char name[32];
        unsigned long long sent;
        if (sscanf(line, " %31[^:]: %*u %*u %*u %*u %*u %*u %*u %*u %llu", name, &sent) == 2 &&
            name[0] == 'w') {
            sum += sent;
        }
    }
    fclose(file);
    wires_go_home(wires);
    return sum;
}
