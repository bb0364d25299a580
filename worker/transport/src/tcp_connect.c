// How the links of an assignment come about. The lower rank of a pair dials the higher one, says
// who it is, and gets the same back. Whoever cannot say the token is dropped.
#include <endian.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "tcp.h"

#define HELLO_MAGIC 0x48545044u // "DPTH"
#define HELLO_VERSION 1u
#define HELLO_BYTES 32u // magic, version u32; token u64; from, to, world, zero u32
#define STRANGERS_MAX 64

typedef enum greeting_state {
    GREETING_DIALLING, // connect is under way; we speak first
    GREETING_SPOKEN,   // our hello is out, theirs is to come
    GREETING_ACCEPTED, // they speak first
} greeting_state;

struct greeting {
    int fd;
    greeting_state state;
    int32_t peer; // -1 while unknown
    unsigned char hello[HELLO_BYTES];
    size_t got;
};

struct meeting {
    struct tcp *tcp;
    const char *const *addresses;
    struct greeting *greetings; // [capacity]
    struct pollfd *polls;       // [capacity + 2]: listener, wake, greetings
    int32_t count, capacity;
    int32_t missing; // links still to be made
};

static void put_hello(const struct tcp *tcp, int32_t to, unsigned char *hello)
{
    uint32_t words[2] = {htole32(HELLO_MAGIC), htole32(HELLO_VERSION)};
    uint64_t token = htole64(tcp->token);
    uint32_t ranks[4] = {htole32((uint32_t)tcp->base.rank), htole32((uint32_t)to),
                         htole32((uint32_t)tcp->base.world), 0};
    memcpy(hello, words, sizeof words);
    memcpy(hello + 8, &token, sizeof token);
    memcpy(hello + 16, ranks, sizeof ranks);
}

// The rank that speaks, or -1 when it is none of this assignment that may say this to us.
static int32_t read_hello(const struct tcp *tcp, const unsigned char *hello)
{
    uint32_t words[2], ranks[4];
    uint64_t token;
    memcpy(words, hello, sizeof words);
    memcpy(&token, hello + 8, sizeof token);
    memcpy(ranks, hello + 16, sizeof ranks);
    uint32_t from = le32toh(ranks[0]);
    bool is_ours = le32toh(words[0]) == HELLO_MAGIC && le32toh(words[1]) == HELLO_VERSION &&
                   le64toh(token) == tcp->token && le32toh(ranks[1]) == (uint32_t)tcp->base.rank &&
                   le32toh(ranks[2]) == (uint32_t)tcp->base.world &&
                   from < (uint32_t)tcp->base.world;
    return is_ours ? (int32_t)from : -1;
}

// "host:port" or "[v6]:port".
static dp_status resolve(const char *address, struct addrinfo **ret_info, struct dp_error *err)
{
    char host[DP_ADDRESS_MAX];
    const char *colon = strrchr(address, ':');
    if (colon == NULL || !DP_COPY_TEXT(host, address)) {
        return dp_fail(err, DP_INVALID, "\"%s\" is not host:port", address);
    }
    host[colon - address] = '\0';
    char *name = host;
    size_t length = strlen(host);
    if (length >= 2 && host[0] == '[' && host[length - 1] == ']') {
        host[length - 1] = '\0';
        name = host + 1;
    }
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    int failed = getaddrinfo(name, colon + 1, &hints, ret_info);
    if (failed != 0) {
        return dp_fail(err, DP_UNAVAILABLE, "cannot resolve %s: %s", address, gai_strerror(failed));
    }
    return DP_OK;
}

static void close_greeting(struct meeting *meeting, int32_t index)
{
    close(meeting->greetings[index].fd);
    meeting->greetings[index] = meeting->greetings[--meeting->count];
}

static dp_status dial(struct meeting *meeting, int32_t peer, struct dp_error *err)
{
    struct addrinfo *info;
    dp_status status = resolve(meeting->addresses[peer], &info, err);
    if (status != DP_OK) {
        return dp_fail_in(err, "rank %d", peer);
    }
    DP_AUTO_CLOSE int fd =
        socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP);
    int failed = fd < 0 ? errno : 0;
    if (failed == 0 && connect(fd, info->ai_addr, info->ai_addrlen) != 0 && errno != EINPROGRESS) {
        failed = errno;
    }
    freeaddrinfo(info);
    if (failed != 0) {
        return dp_fail_errno(err, failed, "cannot reach rank %d at %s", peer,
                             meeting->addresses[peer]);
    }
    meeting->greetings[meeting->count++] =
        (struct greeting){.fd = dp_steal_fd(&fd), .state = GREETING_DIALLING, .peer = peer};
    return DP_OK;
}

static void accept_some(struct meeting *meeting)
{
    for (;;) {
        int fd = accept4(meeting->tcp->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            return;
        }
        if (meeting->count == meeting->capacity) {
            // Full of connections that say nothing: the oldest accepted one makes room.
            for (int32_t i = 0; i < meeting->count; i++) {
                if (meeting->greetings[i].state == GREETING_ACCEPTED) {
                    close_greeting(meeting, i);
                    break;
                }
            }
        }
        meeting->greetings[meeting->count++] =
            (struct greeting){.fd = fd, .state = GREETING_ACCEPTED, .peer = -1};
    }
}

static bool say_hello(const struct tcp *tcp, int fd, int32_t to)
{
    unsigned char hello[HELLO_BYTES];
    put_hello(tcp, to, hello);
    // An empty socket buffer takes 32 bytes.
    return send(fd, hello, sizeof hello, MSG_NOSIGNAL) == (ssize_t)sizeof hello;
}

// The greeting is over: its socket becomes the link.
static void make_link(struct meeting *meeting, int32_t index)
{
    struct tcp *tcp = meeting->tcp;
    struct greeting *greeting = &meeting->greetings[index];
    struct tcp_link *link = &tcp->links[greeting->peer];
    int on = 1;
    setsockopt(greeting->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(greeting->fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    pthread_mutex_lock(&tcp->out_mutex);
    link->fd = greeting->fd;
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)greeting->peer};
    epoll_ctl(tcp->epoll_fd, EPOLL_CTL_ADD, link->fd, &event);
    link->events = EPOLLIN;
    pthread_mutex_unlock(&tcp->out_mutex);
    meeting->greetings[index] = meeting->greetings[--meeting->count];
    meeting->missing--;
}

static dp_status fail_greeting(const struct meeting *meeting, const struct greeting *greeting,
                               int errnum, struct dp_error *err)
{
    const char *address = meeting->addresses[greeting->peer];
    if (errnum != 0) {
        dp_fail_errno(err, errnum, "cannot reach rank %d at %s", greeting->peer, address);
    } else {
        dp_fail(err, DP_UNAVAILABLE,
                "rank %d at %s closed the connection before it had greeted: it has ended, or is "
                "of another assignment or version",
                greeting->peer, address);
    }
    if (err != NULL) {
        err->status = DP_UNAVAILABLE;
    }
    return DP_UNAVAILABLE;
}

// The dialled peer answers, or the connection fails: both concern a rank that we need.
static dp_status go_on_dialled(struct meeting *meeting, int32_t index, struct dp_error *err)
{
    struct greeting *greeting = &meeting->greetings[index];
    if (greeting->state == GREETING_DIALLING) {
        int errnum = 0;
        socklen_t length = sizeof errnum;
        getsockopt(greeting->fd, SOL_SOCKET, SO_ERROR, &errnum, &length);
        if (errnum != 0 || !say_hello(meeting->tcp, greeting->fd, greeting->peer)) {
            return fail_greeting(meeting, greeting, errnum, err);
        }
        greeting->state = GREETING_SPOKEN;
        return DP_OK;
    }
    ssize_t got =
        recv(greeting->fd, greeting->hello + greeting->got, HELLO_BYTES - greeting->got, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
        return DP_OK;
    }
    if (got <= 0) {
        return fail_greeting(meeting, greeting, got < 0 ? errno : 0, err);
    }
    greeting->got += (size_t)got;
    if (greeting->got < HELLO_BYTES) {
        return DP_OK;
    }
    if (read_hello(meeting->tcp, greeting->hello) != greeting->peer) {
        return dp_fail(err, DP_CONFLICT, "what answers at %s is not rank %d of this assignment",
                       meeting->addresses[greeting->peer], greeting->peer);
    }
    make_link(meeting, index);
    return DP_OK;
}

// Someone who dialled us speaks; a stranger is dropped without harm.
static void go_on_accepted(struct meeting *meeting, int32_t index)
{
    struct tcp *tcp = meeting->tcp;
    struct greeting *greeting = &meeting->greetings[index];
    ssize_t got =
        recv(greeting->fd, greeting->hello + greeting->got, HELLO_BYTES - greeting->got, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
        return;
    }
    greeting->got += got > 0 ? (size_t)got : 0;
    if (got > 0 && greeting->got < HELLO_BYTES) {
        return;
    }
    int32_t peer = got > 0 ? read_hello(tcp, greeting->hello) : -1;
    bool is_expected = peer >= 0 && peer < tcp->base.rank && tcp->links[peer].fd < 0;
    if (!is_expected || !say_hello(tcp, greeting->fd, peer)) {
        close_greeting(meeting, index);
        return;
    }
    greeting->peer = peer;
    make_link(meeting, index);
}

static dp_status fail_late(const struct meeting *meeting, struct dp_error *err)
{
    const struct tcp *tcp = meeting->tcp;
    int32_t first = 0;
    while (first == tcp->base.rank || tcp->links[first].fd >= 0) {
        first++;
    }
    return dp_fail(err, DP_TIMEOUT,
                   "%d of %d peers are not connected in time, the first is rank "
                   "%d at %s",
                   meeting->missing, tcp->base.world - 1, first, meeting->addresses[first]);
}

static void fill_polls(const struct meeting *meeting)
{
    meeting->polls[0] = (struct pollfd){.fd = meeting->tcp->listen_fd, .events = POLLIN};
    meeting->polls[1] = (struct pollfd){.fd = meeting->tcp->wake_fd, .events = POLLIN};
    for (int32_t i = 0; i < meeting->count; i++) {
        const struct greeting *greeting = &meeting->greetings[i];
        meeting->polls[i + 2] = (struct pollfd){
            .fd = greeting->fd, .events = greeting->state == GREETING_DIALLING ? POLLOUT : POLLIN};
    }
}

static dp_status turn(struct meeting *meeting, int64_t deadline_ns, struct dp_error *err)
{
    struct tcp *tcp = meeting->tcp;
    int64_t left_ns = deadline_ns - dp_clock_monotonic_ns();
    if (tcp->base.aborted != DP_OK) {
        pthread_mutex_lock(tcp->base.mutex);
        dp_status status = dp_transport_fail_aborted(&tcp->base, err);
        pthread_mutex_unlock(tcp->base.mutex);
        return status;
    }
    if (left_ns <= 0) {
        return fail_late(meeting, err);
    }
    fill_polls(meeting);
    int32_t polled = meeting->count;
    int64_t left_ms = left_ns / DP_NS_PER_MS + 1;
    int ready = poll(meeting->polls, (nfds_t)polled + 2, left_ms > 60000 ? 60000 : (int)left_ms);
    if (ready < 0 && errno != EINTR) {
        return dp_fail_errno(err, errno, "cannot poll");
    }
    // From the last on, since the end of a greeting moves the last one into its place.
    for (int32_t i = polled - 1; ready > 0 && i >= 0; i--) {
        if (meeting->polls[i + 2].revents == 0) {
            continue;
        }
        if (meeting->greetings[i].state == GREETING_ACCEPTED) {
            go_on_accepted(meeting, i);
        } else {
            dp_status status = go_on_dialled(meeting, i, err);
            if (status != DP_OK) {
                return status;
            }
        }
    }
    if (ready > 0 && meeting->polls[0].revents != 0) {
        accept_some(meeting);
    }
    return DP_OK;
}

static dp_status meet(struct meeting *meeting, int64_t deadline_ns, struct dp_error *err)
{
    struct tcp *tcp = meeting->tcp;
    for (int32_t peer = tcp->base.rank + 1; peer < tcp->base.world; peer++) {
        dp_status status = dial(meeting, peer, err);
        if (status != DP_OK) {
            return status;
        }
    }
    while (meeting->missing > 0) {
        dp_status status = turn(meeting, deadline_ns, err);
        if (status != DP_OK) {
            return status;
        }
    }
    return DP_OK;
}

dp_status dp_transport_tcp_connect(struct dp_transport *transport, const char *const *addresses,
                                   int64_t deadline_ns, struct dp_error *err)
{
    if (transport->ops != &dp_tcp_ops) {
        return DP_OK;
    }
    struct tcp *tcp = tcp_of(transport);
    struct meeting meeting = {.tcp = tcp,
                              .addresses = addresses,
                              .capacity = transport->world + STRANGERS_MAX,
                              .missing = transport->world - 1};
    DP_AUTO_FREE struct greeting *greetings =
        dp_new_array(struct greeting, (size_t)meeting.capacity);
    DP_AUTO_FREE struct pollfd *polls = dp_new_array(struct pollfd, (size_t)meeting.capacity + 2);
    meeting.greetings = greetings;
    meeting.polls = polls;
    dp_status status = meet(&meeting, deadline_ns, err);
    while (meeting.count > 0) {
        close_greeting(&meeting, meeting.count - 1);
    }
    if (status == DP_OK) {
        close(tcp->listen_fd);
        tcp->listen_fd = -1;
        tcp->connected = true;
    }
    return status;
}

static dp_status listen_on(const char *host, char *ret_address, int *ret_fd, struct dp_error *err)
{
    struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    struct addrinfo *info;
    int failed = getaddrinfo(host, "0", &hints, &info);
    if (failed != 0) {
        return dp_fail(err, DP_INVALID, "cannot resolve the data host %s: %s", host,
                       gai_strerror(failed));
    }
    DP_AUTO_CLOSE int fd =
        socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP);
    bool is_bound =
        fd >= 0 && bind(fd, info->ai_addr, info->ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0;
    int errnum = errno;
    bool is_v6 = info->ai_family == AF_INET6;
    freeaddrinfo(info);
    if (!is_bound) {
        return dp_fail_errno(err, errnum, "cannot listen on %s", host);
    }
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } bound = {0};
    socklen_t length = sizeof bound;
    if (getsockname(fd, &bound.any, &length) != 0) {
        return dp_fail_errno(err, errno, "cannot tell the port on %s", host);
    }
    unsigned port = ntohs(is_v6 ? bound.v6.sin6_port : bound.v4.sin_port);
    int used = snprintf(ret_address, DP_ADDRESS_MAX, is_v6 ? "[%s]:%u" : "%s:%u", host, port);
    if (used >= DP_ADDRESS_MAX) {
        return dp_fail(err, DP_TOO_LARGE, "the data host %s is too long a name", host);
    }
    *ret_fd = dp_steal_fd(&fd);
    return DP_OK;
}

dp_status dp_transport_tcp_listen(const char *host, int32_t rank, int32_t world, uint64_t token,
                                  char *ret_address, struct dp_transport **ret_transport,
                                  struct dp_error *err)
{
    if (world < 1 || world > DP_TRANSPORT_WORLD_MAX || rank < 0 || rank >= world) {
        return dp_fail(err, DP_INVALID, "rank %d of %d: at most %d ranks", rank, world,
                       DP_TRANSPORT_WORLD_MAX);
    }
    DP_AUTO_CLOSE int listen_fd = -1;
    dp_status status = listen_on(host, ret_address, &listen_fd, err);
    if (status != DP_OK) {
        return status;
    }
    DP_AUTO_CLOSE int epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    DP_AUTO_CLOSE int wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)rank};
    if (epoll_fd < 0 || wake_fd < 0 || epoll_ctl(epoll_fd, EPOLL_CTL_ADD, wake_fd, &event) != 0) {
        return dp_fail_errno(err, errno, "cannot make an epoll instance");
    }
    struct tcp *tcp = dp_new(struct tcp);
    dp_transport_init(&tcp->base, &dp_tcp_ops, rank, world, NULL);
    tcp->token = token;
    tcp->listen_fd = dp_steal_fd(&listen_fd);
    tcp->epoll_fd = dp_steal_fd(&epoll_fd);
    tcp->wake_fd = dp_steal_fd(&wake_fd);
    tcp->scratch = dp_alloc(1, SCRATCH_BYTES);
    tcp->links = dp_new_array(struct tcp_link, (size_t)world);
    for (int32_t i = 0; i < world; i++) {
        tcp->links[i].fd = -1;
        tcp->links[i].out_tail = &tcp->links[i].out_head;
    }
    pthread_mutex_init(&tcp->out_mutex, NULL);
    dp_transport_cond_init(&tcp->out_room);
    *ret_transport = &tcp->base;
    return DP_OK;
}
