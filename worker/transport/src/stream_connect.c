// How the links of an assignment come about. The lower rank of a pair dials the higher one, says
// who it is, and gets the same back. Whoever cannot say the token is dropped.
#include <endian.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "stream.h"

#define HELLO_MAGIC 0x48545044u // "DPTH"
#define HELLO_VERSION 2u
#define HELLO_BYTES 32u // magic, version u32; token u64; from, to, world, zero u32

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
    struct stream *stream;
    const char *const *addresses;
    struct greeting *greetings; // [capacity]
    struct pollfd *polls;       // [capacity + 2]: listener, wake, greetings
    int32_t count, capacity;
    int32_t missing; // links still to be made
};

static bool is_peer(const struct meeting *meeting, int32_t rank)
{
    return rank != meeting->stream->base.rank && meeting->addresses[rank] != NULL;
}

static void put_hello(const struct stream *stream, int32_t to, unsigned char *hello)
{
    uint32_t words[2] = {htole32(HELLO_MAGIC), htole32(HELLO_VERSION)};
    uint64_t token = htole64(stream->token);
    uint32_t ranks[4] = {htole32((uint32_t)stream->base.rank), htole32((uint32_t)to),
                         htole32((uint32_t)stream->base.world), 0};
    memcpy(hello, words, sizeof words);
    memcpy(hello + 8, &token, sizeof token);
    memcpy(hello + 16, ranks, sizeof ranks);
}

// The rank that speaks, or -1 when it is none of this assignment that may say this to us.
static int32_t read_hello(const struct stream *stream, const unsigned char *hello)
{
    uint32_t words[2], ranks[4];
    uint64_t token;
    memcpy(words, hello, sizeof words);
    memcpy(&token, hello + 8, sizeof token);
    memcpy(ranks, hello + 16, sizeof ranks);
    uint32_t from = le32toh(ranks[0]);
    bool is_ours =
        le32toh(words[0]) == HELLO_MAGIC && le32toh(words[1]) == HELLO_VERSION &&
        le64toh(token) == stream->token && le32toh(ranks[1]) == (uint32_t)stream->base.rank &&
        le32toh(ranks[2]) == (uint32_t)stream->base.world && from < (uint32_t)stream->base.world;
    return is_ours ? (int32_t)from : -1;
}

static void close_greeting(struct meeting *meeting, int32_t index)
{
    close(meeting->greetings[index].fd);
    meeting->greetings[index] = meeting->greetings[--meeting->count];
}

static dp_status dial(struct meeting *meeting, int32_t peer, struct dp_error *err)
{
    const char *address = meeting->addresses[peer];
    struct sockaddr_storage to = {0};
    socklen_t length;
    dp_status status = meeting->stream->is_local
                           ? dp_shm_resolve(meeting->stream, address, &to, &length, err)
                           : dp_tcp_resolve(address, &to, &length, err);
    if (status != DP_OK) {
        return dp_fail_in(err, "rank %d", peer);
    }
    DP_AUTO_CLOSE int fd = socket(to.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int failed = fd < 0 ? errno : 0;
    if (failed == 0 && connect(fd, (struct sockaddr *)&to, length) != 0 && errno != EINPROGRESS) {
        failed = errno;
    }
    if (failed != 0) {
        dp_fail_errno(err, failed, "cannot reach rank %d at %s", peer, address);
        if (err != NULL) {
            err->status = DP_UNAVAILABLE;
        }
        return DP_UNAVAILABLE;
    }
    meeting->greetings[meeting->count++] =
        (struct greeting){.fd = dp_steal_fd(&fd), .state = GREETING_DIALLING, .peer = peer};
    return DP_OK;
}

static void accept_some(struct meeting *meeting)
{
    for (;;) {
        int fd = accept4(meeting->stream->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
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

// Whoever can reach a local socket without a name in the file system might be anybody.
static bool is_own_user(const struct stream *stream, int fd)
{
    struct ucred credentials;
    socklen_t length = sizeof credentials;
    return !stream->is_local ||
           (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) == 0 &&
            credentials.uid == geteuid());
}

static bool say_hello(const struct stream *stream, int fd, int32_t to)
{
    unsigned char hello[HELLO_BYTES];
    put_hello(stream, to, hello);
    // An empty socket buffer takes 32 bytes.
    return send(fd, hello, sizeof hello, MSG_NOSIGNAL) == (ssize_t)sizeof hello;
}

// The greeting is over: its socket becomes the link.
static void make_link(struct meeting *meeting, int32_t index)
{
    struct stream *stream = meeting->stream;
    struct greeting *greeting = &meeting->greetings[index];
    struct stream_link *link = &stream->links[greeting->peer];
    int on = 1;
    if (!stream->is_local) {
        setsockopt(greeting->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        setsockopt(greeting->fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    }
    pthread_mutex_lock(&stream->out_mutex);
    link->fd = greeting->fd;
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)greeting->peer};
    epoll_ctl(stream->epoll_fd, EPOLL_CTL_ADD, link->fd, &event);
    link->events = EPOLLIN;
    pthread_mutex_unlock(&stream->out_mutex);
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
        if (errnum != 0 || !say_hello(meeting->stream, greeting->fd, greeting->peer)) {
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
    if (read_hello(meeting->stream, greeting->hello) != greeting->peer) {
        return dp_fail(err, DP_CONFLICT, "what answers at %s is not rank %d of this assignment",
                       meeting->addresses[greeting->peer], greeting->peer);
    }
    make_link(meeting, index);
    return DP_OK;
}

// Someone who dialled us speaks; a stranger is dropped without harm.
static void go_on_accepted(struct meeting *meeting, int32_t index)
{
    struct stream *stream = meeting->stream;
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
    int32_t peer = got > 0 ? read_hello(stream, greeting->hello) : -1;
    bool is_expected = peer >= 0 && peer < stream->base.rank && is_peer(meeting, peer) &&
                       stream->links[peer].fd < 0 && is_own_user(stream, greeting->fd);
    if (!is_expected || !say_hello(stream, greeting->fd, peer)) {
        close_greeting(meeting, index);
        return;
    }
    greeting->peer = peer;
    make_link(meeting, index);
}

static dp_status fail_late(const struct meeting *meeting, struct dp_error *err)
{
    const struct stream *stream = meeting->stream;
    int32_t first = 0;
    while (!is_peer(meeting, first) || stream->links[first].fd >= 0) {
        first++;
    }
    return dp_fail(err, DP_TIMEOUT,
                   "%d of %d peers are not connected in time, the first is rank "
                   "%d at %s",
                   meeting->missing, stream->base.world - 1, first, meeting->addresses[first]);
}

static void fill_polls(const struct meeting *meeting)
{
    meeting->polls[0] = (struct pollfd){.fd = meeting->stream->listen_fd, .events = POLLIN};
    meeting->polls[1] = (struct pollfd){.fd = meeting->stream->wake_fd, .events = POLLIN};
    for (int32_t i = 0; i < meeting->count; i++) {
        const struct greeting *greeting = &meeting->greetings[i];
        meeting->polls[i + 2] = (struct pollfd){
            .fd = greeting->fd, .events = greeting->state == GREETING_DIALLING ? POLLOUT : POLLIN};
    }
}

static dp_status turn(struct meeting *meeting, int64_t deadline_ns, struct dp_error *err)
{
    struct stream *stream = meeting->stream;
    int64_t left_ns = deadline_ns - dp_clock_monotonic_ns();
    if (stream->base.front->aborted != DP_OK) {
        pthread_mutex_lock(stream->base.mutex);
        dp_status status = dp_transport_fail_aborted(&stream->base, err);
        pthread_mutex_unlock(stream->base.mutex);
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
    struct stream *stream = meeting->stream;
    for (int32_t peer = stream->base.rank + 1; peer < stream->base.world; peer++) {
        dp_status status = is_peer(meeting, peer) ? dial(meeting, peer, err) : DP_OK;
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

dp_status dp_socket_connect(struct dp_transport *transport, const char *const *addresses,
                            int64_t deadline_ns, struct dp_error *err)
{
    struct stream *stream = stream_of(transport);
    struct meeting meeting = {.stream = stream,
                              .addresses = addresses,
                              .capacity = transport->world + DP_TRANSPORT_STRANGERS_MAX};
    for (int32_t i = 0; i < transport->world; i++) {
        meeting.missing += is_peer(&meeting, i);
    }
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
        close(stream->listen_fd);
        stream->listen_fd = -1;
        stream->connected = true;
    }
    return status;
}
