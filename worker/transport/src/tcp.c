#include "tcp.h"

#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/clock.h"

// Nothing more comes over the link or goes out.
static void break_link(struct tcp *tcp, int32_t peer, const char *reason)
{
    struct tcp_link *link = &tcp->links[peer];
    pthread_mutex_lock(&tcp->out_mutex);
    if (!link->broken) {
        pthread_mutex_lock(tcp->base.mutex);
        dp_transport_peer_closed(&tcp->base, peer, reason);
        pthread_mutex_unlock(tcp->base.mutex);
        epoll_ctl(tcp->epoll_fd, EPOLL_CTL_DEL, link->fd, NULL);
        link->events = 0;
        link->broken = true;
        shutdown(link->fd, SHUT_RDWR);
        dp_tcp_drop_queue(tcp, link);
    }
    pthread_mutex_unlock(&tcp->out_mutex);
}

static void end_of_stream(struct tcp *tcp, int32_t peer, int errnum)
{
    const struct tcp_link *link = &tcp->links[peer];
    bool is_inside = link->frame_got > 0;
    char reason[128];
    snprintf(reason, sizeof reason, "%s%s",
             errnum != 0 ? strerror(errnum) : "it closed the connection",
             is_inside ? " in the middle of a message" : "");
    break_link(tcp, peer, reason);
}

// Starts the message that the frame announces.
static bool begin_message(struct tcp *tcp, int32_t peer)
{
    struct tcp_link *link = &tcp->links[peer];
    uint32_t magic;
    uint64_t tag, length;
    memcpy(&magic, link->frame, sizeof magic);
    memcpy(&tag, link->frame + 8, sizeof tag);
    memcpy(&length, link->frame + 16, sizeof length);
    if (le32toh(magic) != FRAME_MAGIC || le64toh(length) > DP_TRANSPORT_BYTES_MAX) {
        break_link(tcp, peer, "it sent bytes that are no message");
        return false;
    }
    link->message = dp_message_new(le64toh(tag), (size_t)le64toh(length));
    link->message_got = 0;
    return true;
}

static bool finish_message(struct tcp *tcp, int32_t peer)
{
    struct tcp_link *link = &tcp->links[peer];
    struct dp_message *message = dp_steal(link->message);
    link->frame_got = 0;
    pthread_mutex_lock(tcp->base.mutex);
    bool is_taken = dp_transport_deliver(&tcp->base, peer, message);
    pthread_mutex_unlock(tcp->base.mutex);
    return is_taken;
}

// Takes bytes of the stream apart; false when the link is of no more use.
static bool feed(struct tcp *tcp, int32_t peer, const unsigned char *bytes, size_t count)
{
    struct tcp_link *link = &tcp->links[peer];
    for (;;) {
        if (link->message == NULL) {
            size_t need = FRAME_BYTES - link->frame_got;
            size_t part = count < need ? count : need;
            memcpy(link->frame + link->frame_got, bytes, part);
            link->frame_got += part;
            bytes += part;
            count -= part;
            if (link->frame_got < FRAME_BYTES) {
                return true;
            }
            if (!begin_message(tcp, peer)) {
                return false;
            }
        }
        size_t need = link->message->length - link->message_got;
        size_t part = count < need ? count : need;
        memcpy(link->message->bytes + link->message_got, bytes, part);
        link->message_got += part;
        bytes += part;
        count -= part;
        if (link->message_got < link->message->length) {
            return true;
        }
        if (!finish_message(tcp, peer)) {
            return false;
        }
    }
}

// One read: straight into the message when much of it is still to come, else through the scratch.
static ssize_t read_once(struct tcp *tcp, int32_t peer, bool *ret_usable)
{
    struct tcp_link *link = &tcp->links[peer];
    *ret_usable = true;
    size_t need = link->message == NULL ? 0 : link->message->length - link->message_got;
    bool is_direct = need >= SCRATCH_BYTES;
    void *to = is_direct ? link->message->bytes + link->message_got : tcp->scratch;
    ssize_t got = recv(link->fd, to, is_direct ? need : SCRATCH_BYTES, MSG_DONTWAIT);
    if (got <= 0) {
        return got;
    }
    if (!is_direct) {
        *ret_usable = feed(tcp, peer, tcp->scratch, (size_t)got);
    } else {
        link->message_got += (size_t)got;
        if (link->message_got == link->message->length) {
            *ret_usable = finish_message(tcp, peer);
        }
    }
    return got;
}

// Whether the peer may be read; if not, its socket is no longer watched for input.
static bool may_read(struct tcp *tcp, int32_t peer)
{
    struct tcp_link *link = &tcp->links[peer];
    pthread_mutex_lock(&tcp->out_mutex);
    pthread_mutex_lock(tcp->base.mutex);
    bool may = dp_transport_may_read(&tcp->base, peer);
    pthread_mutex_unlock(tcp->base.mutex);
    uint32_t events = link->events & ~(uint32_t)EPOLLIN;
    dp_tcp_watch(tcp, peer, may ? events | EPOLLIN : events);
    pthread_mutex_unlock(&tcp->out_mutex);
    return may;
}

// Reads a few times, so that one busy peer does not keep the others waiting.
static void read_link(struct tcp *tcp, int32_t peer, bool is_hung_up)
{
    size_t total = 0;
    for (int turn = 0; turn < 8 || is_hung_up; turn++) {
        if (!is_hung_up && !may_read(tcp, peer)) {
            break;
        }
        bool usable;
        ssize_t got = read_once(tcp, peer, &usable);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
            break;
        }
        if (got <= 0) {
            end_of_stream(tcp, peer, got < 0 ? errno : 0);
            break;
        }
        if (!usable) {
            break;
        }
        total += (size_t)got;
        if ((size_t)got < SCRATCH_BYTES / 4) {
            break; // the socket is most likely empty; epoll says when it is not
        }
    }
    if (total > 0) {
        pthread_mutex_lock(tcp->base.mutex);
        tcp->base.peers[peer].progress_ns = dp_clock_monotonic_ns();
        pthread_mutex_unlock(tcp->base.mutex);
    }
}

static void resume_links(struct tcp *tcp)
{
    uint64_t count;
    ssize_t ignored = read(tcp->wake_fd, &count, sizeof count);
    (void)ignored;
    for (int32_t i = 0; i < tcp->base.world; i++) {
        if (atomic_exchange(&tcp->links[i].resume_wanted, false) && !tcp->links[i].broken) {
            may_read(tcp, i);
        }
    }
}

static void tcp_aborted(struct dp_transport *transport)
{
    struct tcp *tcp = tcp_of(transport);
    pthread_mutex_lock(&tcp->out_mutex);
    for (int32_t i = 0; i < transport->world; i++) {
        if (tcp->links[i].fd >= 0) {
            shutdown(tcp->links[i].fd, SHUT_RDWR);
        }
    }
    pthread_cond_broadcast(&tcp->out_room);
    pthread_mutex_unlock(&tcp->out_mutex);
    dp_tcp_wake(tcp);
}

static void tcp_progress(struct dp_transport *transport)
{
    struct tcp *tcp = tcp_of(transport);
    if (!tcp->connected) {
        return;
    }
    while (!tcp->stop && tcp->base.aborted == DP_OK) {
        struct epoll_event events[64];
        int count = epoll_wait(tcp->epoll_fd, events, 64, -1);
        for (int i = 0; i < count; i++) {
            int32_t peer = (int32_t)events[i].data.u32;
            if (peer == tcp->base.rank) {
                resume_links(tcp);
                continue;
            }
            if (events[i].events & EPOLLOUT) {
                dp_tcp_flush(tcp, peer);
            }
            if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
                read_link(tcp, peer, (events[i].events & (EPOLLHUP | EPOLLERR)) != 0);
            }
        }
    }
    if (tcp->base.aborted != DP_OK) {
        tcp_aborted(transport); // when it was the reader that gave up
    }
}

static void tcp_resume(struct dp_transport *transport, int32_t peer)
{
    struct tcp *tcp = tcp_of(transport);
    tcp->links[peer].resume_wanted = true;
    dp_tcp_wake(tcp);
}

static void tcp_cut(struct dp_transport *transport, int32_t peer)
{
    struct tcp *tcp = tcp_of(transport);
    if (tcp->links[peer].fd >= 0) {
        break_link(tcp, peer, "the connection broke");
    }
}

static bool all_closed(const struct dp_transport *transport)
{
    for (int32_t i = 0; i < transport->world; i++) {
        if (i != transport->rank && !transport->peers[i].closed) {
            return false;
        }
    }
    return true;
}

static void tcp_close(struct dp_transport *transport, int64_t deadline_ns)
{
    struct tcp *tcp = tcp_of(transport);
    if (tcp->connected) {
        dp_tcp_drain(tcp, deadline_ns);
        pthread_mutex_lock(&tcp->out_mutex);
        for (int32_t i = 0; i < transport->world; i++) {
            if (tcp->links[i].fd >= 0 && !tcp->links[i].broken) {
                shutdown(tcp->links[i].fd, SHUT_WR);
            }
        }
        pthread_mutex_unlock(&tcp->out_mutex);
        pthread_mutex_lock(transport->mutex);
        dp_transport_wait_begin(transport);
        while (transport->aborted == DP_OK && !all_closed(transport) &&
               dp_clock_monotonic_ns() < deadline_ns) {
            dp_transport_cond_wait(&transport->changed, transport->mutex, deadline_ns);
        }
        dp_transport_wait_end(transport);
        pthread_mutex_unlock(transport->mutex);
    }
    tcp->stop = true;
    dp_tcp_wake(tcp);
}

static void tcp_free(struct dp_transport *transport)
{
    struct tcp *tcp = tcp_of(transport);
    for (int32_t i = 0; i < transport->world; i++) {
        struct tcp_link *link = &tcp->links[i];
        dp_tcp_drop_queue(tcp, link);
        free(link->message);
        if (link->fd >= 0) {
            close(link->fd);
        }
    }
    if (tcp->listen_fd >= 0) {
        close(tcp->listen_fd);
    }
    close(tcp->epoll_fd);
    close(tcp->wake_fd);
    free(tcp->links);
    free(tcp->scratch);
    pthread_cond_destroy(&tcp->out_room);
    pthread_mutex_destroy(&tcp->out_mutex);
    dp_transport_deinit(transport);
    free(tcp);
}

const struct dp_transport_ops dp_tcp_ops = {
    .attributes = {.name = "tcp", .bandwidth = 2e9, .latency_s = 3e-5},
    .send = dp_tcp_send,
    .resume = tcp_resume,
    .cut = tcp_cut,
    .aborted = tcp_aborted,
    .progress = tcp_progress,
    .close = tcp_close,
    .free = tcp_free,
};
