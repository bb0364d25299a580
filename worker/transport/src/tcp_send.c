#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/clock.h"
#include "tcp.h"

void dp_tcp_wake(struct tcp *tcp)
{
    uint64_t one = 1;
    ssize_t ignored = write(tcp->wake_fd, &one, sizeof one);
    (void)ignored; // a full counter wakes as well
}

void dp_tcp_watch(struct tcp *tcp, int32_t peer, uint32_t events)
{
    struct tcp_link *link = &tcp->links[peer];
    if (link->events == events || link->broken) {
        return;
    }
    struct epoll_event event = {.events = events, .data.u32 = (uint32_t)peer};
    int failed = epoll_ctl(tcp->epoll_fd, EPOLL_CTL_MOD, link->fd, &event);
    DP_CHECK(failed == 0);
    link->events = events;
}

void dp_tcp_drop_queue(struct tcp *tcp, struct tcp_link *link)
{
    while (link->out_head != NULL) {
        struct tcp_out *out = link->out_head;
        link->out_head = out->next;
        tcp->out_bytes -= out->length - out->sent;
        free(out);
    }
    link->out_tail = &link->out_head;
    pthread_cond_broadcast(&tcp->out_room);
}

// A send that fails says nothing about what can still be read: the reader finds out.
static ssize_t send_some(int fd, struct msghdr *header)
{
    for (;;) {
        ssize_t sent = sendmsg(fd, header, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent >= 0 || errno != EINTR) {
            return sent;
        }
    }
}

static bool would_block(void)
{
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS;
}

void dp_tcp_flush(struct tcp *tcp, int32_t peer)
{
    struct tcp_link *link = &tcp->links[peer];
    pthread_mutex_lock(&tcp->out_mutex);
    while (link->out_head != NULL && !link->broken) {
        struct tcp_out *out = link->out_head;
        struct iovec part = {.iov_base = out->bytes + out->sent,
                             .iov_len = out->length - out->sent};
        struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
        ssize_t sent = send_some(link->fd, &header);
        if (sent < 0) {
            if (!would_block()) {
                dp_tcp_drop_queue(tcp, link);
            }
            break;
        }
        out->sent += (size_t)sent;
        tcp->out_bytes -= (size_t)sent;
        tcp->out_moved += (size_t)sent;
        if (out->sent == out->length) {
            link->out_head = out->next;
            if (link->out_head == NULL) {
                link->out_tail = &link->out_head;
            }
            free(out);
        }
        pthread_cond_broadcast(&tcp->out_room);
    }
    if (link->out_head == NULL) {
        dp_tcp_watch(tcp, peer, link->events & ~(uint32_t)EPOLLOUT);
    }
    pthread_mutex_unlock(&tcp->out_mutex);
}

void dp_tcp_drain(struct tcp *tcp, int64_t deadline_ns)
{
    pthread_mutex_lock(&tcp->out_mutex);
    while (tcp->out_bytes > 0 && tcp->base.aborted == DP_OK &&
           dp_clock_monotonic_ns() < deadline_ns) {
        dp_transport_cond_wait(&tcp->out_room, &tcp->out_mutex, deadline_ns);
    }
    pthread_mutex_unlock(&tcp->out_mutex);
}

static void count_waiter(struct tcp *tcp, bool begin)
{
    pthread_mutex_lock(tcp->base.mutex);
    if (begin) {
        dp_transport_wait_begin(&tcp->base);
    } else {
        dp_transport_wait_end(&tcp->base);
    }
    pthread_mutex_unlock(tcp->base.mutex);
}

static dp_status check_link(struct tcp *tcp, int32_t peer, uint64_t tag, struct dp_error *err)
{
    dp_status status = DP_OK;
    if (tcp->base.aborted == DP_OK && !tcp->links[peer].broken) {
        return status;
    }
    pthread_mutex_lock(tcp->base.mutex);
    status = tcp->base.aborted != DP_OK
                 ? dp_transport_fail_aborted(&tcp->base, err)
                 : dp_transport_fail_closed(&tcp->base, peer, "send to", tag, err);
    pthread_mutex_unlock(tcp->base.mutex);
    return status;
}

// Under out_mutex: waits until the message fits beside what is queued. One message always fits
// into empty queues.
static dp_status wait_for_room(struct tcp *tcp, int32_t peer, uint64_t tag, size_t length,
                               struct dp_error *err)
{
    dp_status status = check_link(tcp, peer, tag, err);
    if (status != DP_OK || tcp->out_bytes == 0 ||
        tcp->out_bytes + length <= DP_TRANSPORT_QUEUED_BYTES_MAX) {
        return status;
    }
    int64_t start_ns = dp_clock_monotonic_ns();
    int64_t last_ns = start_ns;
    uint64_t moved = tcp->out_moved;
    count_waiter(tcp, true);
    while (status == DP_OK && tcp->out_bytes > 0 &&
           tcp->out_bytes + length > DP_TRANSPORT_QUEUED_BYTES_MAX) {
        int64_t now_ns = dp_clock_monotonic_ns();
        if (moved != tcp->out_moved) {
            moved = tcp->out_moved;
            last_ns = now_ns;
        }
        if (now_ns - last_ns >= tcp->base.blocked_ns) {
            char text[DP_TRANSPORT_TAG_TEXT_MAX];
            status = dp_fail(err, DP_TIMEOUT, "rank %d took nothing for %.1f s, sending %s", peer,
                             (double)(now_ns - last_ns) / (double)DP_NS_PER_S,
                             dp_transport_tag_text(text, tag));
            break;
        }
        dp_transport_cond_wait(&tcp->out_room, &tcp->out_mutex, last_ns + tcp->base.blocked_ns);
        status = check_link(tcp, peer, tag, err);
    }
    count_waiter(tcp, false);
    pthread_mutex_lock(tcp->base.mutex);
    tcp->base.stats.send_wait_ns += dp_clock_monotonic_ns() - start_ns;
    pthread_mutex_unlock(tcp->base.mutex);
    return status;
}

// Queues what is behind the first `skip` bytes of the parts.
static void enqueue(struct tcp *tcp, int32_t peer, const struct iovec *parts, int count,
                    size_t skip, size_t length)
{
    struct tcp_link *link = &tcp->links[peer];
    struct tcp_out *out = dp_realloc(NULL, 1, sizeof *out + length - skip);
    *out = (struct tcp_out){.length = length - skip};
    size_t at = 0;
    for (int i = 0; i < count; i++) {
        size_t part = parts[i].iov_len;
        size_t drop = skip < part ? skip : part;
        skip -= drop;
        if (part > drop) {
            memcpy(out->bytes + at, (const char *)parts[i].iov_base + drop, part - drop);
            at += part - drop;
        }
    }
    *link->out_tail = out;
    link->out_tail = &out->next;
    tcp->out_bytes += out->length;
    dp_tcp_watch(tcp, peer, link->events | EPOLLOUT);
}

dp_status dp_tcp_send(struct dp_transport *transport, int32_t peer, uint64_t tag,
                      const struct iovec *parts, int count, size_t length, struct dp_error *err)
{
    struct tcp *tcp = tcp_of(transport);
    DP_CHECK(tcp->connected);
    unsigned char frame[FRAME_BYTES] = {0};
    uint32_t magic = htole32(FRAME_MAGIC);
    uint64_t wire_tag = htole64(tag), wire_length = htole64(length);
    memcpy(frame, &magic, sizeof magic);
    memcpy(frame + 8, &wire_tag, sizeof wire_tag);
    memcpy(frame + 16, &wire_length, sizeof wire_length);
    struct iovec all[DP_TRANSPORT_PARTS_MAX + 1] = {{.iov_base = frame, .iov_len = sizeof frame}};
    memcpy(all + 1, parts, (size_t)count * sizeof parts[0]);
    size_t whole = sizeof frame + length;

    pthread_mutex_lock(&tcp->out_mutex);
    dp_status status = wait_for_room(tcp, peer, tag, whole, err);
    if (status == DP_OK) {
        size_t sent = 0;
        if (tcp->links[peer].out_head == NULL) {
            struct msghdr header = {.msg_iov = all, .msg_iovlen = (size_t)count + 1};
            ssize_t got = send_some(tcp->links[peer].fd, &header);
            // A broken link is found by the reader; the queue is dropped then.
            sent = got > 0 ? (size_t)got : 0;
        }
        if (sent < whole) {
            enqueue(tcp, peer, all, count + 1, sent, whole);
        }
    }
    pthread_mutex_unlock(&tcp->out_mutex);
    return status;
}
