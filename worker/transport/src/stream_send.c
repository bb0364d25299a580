#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/clock.h"
#include "dp/cond.h"
#include "stream.h"

void dp_socket_wake(struct stream *stream)
{
    uint64_t one = 1;
    ssize_t ignored = write(stream->wake_fd, &one, sizeof one);
    (void)ignored; // a full counter wakes as well
}

void dp_socket_watch(struct stream *stream, int32_t peer, uint32_t events)
{
    struct stream_link *link = &stream->links[peer];
    if (link->events == events || link->broken) {
        return;
    }
    struct epoll_event event = {.events = events, .data.u32 = (uint32_t)peer};
    int failed = epoll_ctl(stream->epoll_fd, EPOLL_CTL_MOD, link->fd, &event);
    DP_CHECK(failed == 0);
    link->events = events;
}

static void free_out(struct stream_out *out)
{
    if (out->fd >= 0) {
        close(out->fd);
    }
    free(out);
}

void dp_socket_drop_queue(struct stream *stream, struct stream_link *link)
{
    while (link->out_head != NULL) {
        struct stream_out *out = link->out_head;
        link->out_head = out->next;
        link->out_bytes -= out->length - out->sent;
        stream->out_bytes -= out->length - out->sent;
        free_out(out);
    }
    link->out_tail = &link->out_head;
    pthread_cond_broadcast(&stream->out_room);
}

// A send that fails says nothing about what can still be read: the reader finds out.
// pass_fd -1 = none.
static ssize_t send_some(int fd, struct iovec *parts, size_t count, int pass_fd)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct msghdr header = {.msg_iov = parts, .msg_iovlen = count};
    if (pass_fd >= 0) {
        header.msg_control = control.bytes;
        header.msg_controllen = sizeof control.bytes;
        control.align = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof pass_fd),
                                         .cmsg_level = SOL_SOCKET,
                                         .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(&control.align), &pass_fd, sizeof pass_fd);
    }
    for (;;) {
        ssize_t sent = sendmsg(fd, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent >= 0 || errno != EINTR) {
            return sent;
        }
    }
}

static bool would_block(void)
{
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS;
}

void dp_socket_flush(struct stream *stream, int32_t peer)
{
    struct stream_link *link = &stream->links[peer];
    pthread_mutex_lock(&stream->out_mutex);
    while (link->out_head != NULL && !link->broken) {
        struct stream_out *out = link->out_head;
        struct iovec part = {.iov_base = out->bytes + out->sent,
                             .iov_len = out->length - out->sent};
        ssize_t sent = send_some(link->fd, &part, 1, out->sent == 0 ? out->fd : -1);
        if (sent < 0) {
            if (!would_block()) {
                dp_socket_drop_queue(stream, link);
            }
            break;
        }
        out->sent += (size_t)sent;
        link->out_bytes -= (size_t)sent;
        link->out_moved += (size_t)sent;
        stream->out_bytes -= (size_t)sent;
        if (out->sent == out->length) {
            link->out_head = out->next;
            if (link->out_head == NULL) {
                link->out_tail = &link->out_head;
            }
            free_out(out);
        }
        pthread_cond_broadcast(&stream->out_room);
    }
    if (link->out_head == NULL) {
        dp_socket_watch(stream, peer, link->events & ~(uint32_t)EPOLLOUT);
    }
    pthread_mutex_unlock(&stream->out_mutex);
}

static void count_waiter(struct stream *stream, bool begin)
{
    pthread_mutex_lock(stream->base.mutex);
    if (begin) {
        dp_transport_wait_begin(&stream->base);
    } else {
        dp_transport_wait_end(&stream->base);
    }
    pthread_mutex_unlock(stream->base.mutex);
}

// A waiter like any other: two ranks that both have more to send than the other may leave unread
// would else wait for each other.
dp_status dp_socket_drain(struct stream *stream, int64_t deadline_ns, struct dp_error *err)
{
    count_waiter(stream, true);
    pthread_mutex_lock(&stream->out_mutex);
    while (stream->out_bytes > 0 && stream->base.front->aborted == DP_OK &&
           dp_clock_monotonic_ns() < deadline_ns) {
        dp_cond_wait(&stream->out_room, &stream->out_mutex, deadline_ns);
    }
    dp_status status = DP_OK;
    for (int32_t i = 0; i < stream->base.world && stream->base.front->aborted == DP_OK; i++) {
        if (stream->links[i].out_bytes > 0) {
            status = dp_fail(err, DP_TIMEOUT, "%zu bytes for rank %d have not left in time",
                             stream->links[i].out_bytes, i);
            break;
        }
    }
    pthread_mutex_unlock(&stream->out_mutex);
    count_waiter(stream, false);
    return status;
}

// What is being sent, for messages about failures.
struct what {
    int32_t peer;
    uint64_t tag;
    const struct dp_window *window; // NULL = the tagged message
};

static const char *what_text(const struct what *what, char text[DP_TRANSPORT_TAG_TEXT_MAX])
{
    if (what->window == NULL) {
        return dp_transport_tag_text(text, what->tag);
    }
    snprintf(text, DP_TRANSPORT_TAG_TEXT_MAX, "window %u", what->window->key & 0xffff);
    return text;
}

static dp_status check_link(struct stream *stream, const struct what *what, struct dp_error *err)
{
    dp_status status = DP_OK;
    struct dp_transport *front = stream->base.front;
    if (front->aborted == DP_OK && !stream->links[what->peer].broken) {
        return status;
    }
    char text[DP_TRANSPORT_TAG_TEXT_MAX];
    pthread_mutex_lock(front->mutex);
    if (front->aborted != DP_OK) {
        status = dp_transport_fail_aborted(front, err);
    } else {
        status = dp_fail(err, DP_UNAVAILABLE, "cannot send to rank %d (%s): %s", what->peer,
                         what_text(what, text), front->peers[what->peer].reason);
    }
    pthread_mutex_unlock(front->mutex);
    return status;
}

// Under out_mutex: waits until the message fits beside what is queued for that peer, so that one
// who takes nothing holds up those alone who send to it. One message always fits into an empty
// queue.
static dp_status wait_for_room(struct stream *stream, const struct what *what, size_t length,
                               struct dp_error *err)
{
    const struct stream_link *link = &stream->links[what->peer];
    dp_status status = check_link(stream, what, err);
    if (status != DP_OK || link->out_bytes == 0 ||
        link->out_bytes + length <= DP_TRANSPORT_QUEUED_BYTES_MAX) {
        return status;
    }
    int64_t blocked_ns = stream->base.front->blocked_ns;
    int64_t start_ns = dp_clock_monotonic_ns();
    int64_t last_ns = start_ns;
    uint64_t moved = link->out_moved;
    count_waiter(stream, true);
    while (status == DP_OK && link->out_bytes > 0 &&
           link->out_bytes + length > DP_TRANSPORT_QUEUED_BYTES_MAX) {
        int64_t now_ns = dp_clock_monotonic_ns();
        if (moved != link->out_moved) {
            moved = link->out_moved;
            last_ns = now_ns;
        }
        if (now_ns - last_ns >= blocked_ns) {
            char text[DP_TRANSPORT_TAG_TEXT_MAX];
            status =
                dp_fail(err, DP_TIMEOUT, "rank %d took nothing for %.1f s, sending %s", what->peer,
                        (double)(now_ns - last_ns) / (double)DP_NS_PER_S, what_text(what, text));
            break;
        }
        dp_cond_wait(&stream->out_room, &stream->out_mutex, last_ns + blocked_ns);
        status = check_link(stream, what, err);
    }
    count_waiter(stream, false);
    pthread_mutex_lock(stream->base.mutex);
    stream->base.front->stats.send_wait_ns += dp_clock_monotonic_ns() - start_ns;
    pthread_mutex_unlock(stream->base.mutex);
    return status;
}

// Queues what is behind the first `skip` bytes of the parts.
static void enqueue(struct stream *stream, int32_t peer, const struct iovec *parts, int count,
                    size_t skip, size_t length, int pass_fd)
{
    struct stream_link *link = &stream->links[peer];
    struct stream_out *out = dp_realloc(NULL, 1, sizeof *out + length - skip);
    *out = (struct stream_out){.length = length - skip,
                               .fd = pass_fd >= 0 && skip == 0 ? fcntl(pass_fd, F_DUPFD_CLOEXEC, 0)
                                                               : -1};
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
    link->out_bytes += out->length;
    stream->out_bytes += out->length;
    dp_socket_watch(stream, peer, link->events | EPOLLOUT);
}

// A frame and, behind it, the parts.
static dp_status write_frame(struct stream *stream, const struct what *what,
                             const unsigned char *frame, size_t frame_bytes,
                             const struct iovec *parts, int count, size_t length, int pass_fd,
                             struct dp_error *err)
{
    DP_CHECK(stream->connected && stream->links[what->peer].fd >= 0);
    struct stream_link *link = &stream->links[what->peer];
    struct iovec all[DP_TRANSPORT_PARTS_MAX + 1] = {
        {.iov_base = (void *)(uintptr_t)frame, .iov_len = frame_bytes}};
    if (count > 0) {
        memcpy(all + 1, parts, (size_t)count * sizeof parts[0]);
    }
    size_t whole = frame_bytes + length;
    pthread_mutex_lock(&stream->out_mutex);
    dp_status status = wait_for_room(stream, what, whole, err);
    if (status == DP_OK) {
        size_t sent = 0;
        if (link->out_head == NULL) {
            ssize_t got = send_some(link->fd, all, (size_t)count + 1, pass_fd);
            // A broken link is found by the reader; the queue is dropped then.
            sent = got > 0 ? (size_t)got : 0;
        }
        if (sent < whole) {
            enqueue(stream, what->peer, all, count + 1, sent, whole, pass_fd);
        }
    }
    pthread_mutex_unlock(&stream->out_mutex);
    return status;
}

static void put_head(unsigned char *frame, uint32_t magic, uint32_t key, uint64_t tag,
                     uint64_t length)
{
    uint32_t words[2] = {htole32(magic), htole32(key)};
    uint64_t longs[2] = {htole64(tag), htole64(length)};
    memcpy(frame, words, sizeof words);
    memcpy(frame + 8, longs, sizeof longs);
}

dp_status dp_socket_send(struct dp_transport *transport, int32_t peer, uint64_t tag,
                         const struct iovec *parts, int count, size_t length, struct dp_error *err)
{
    unsigned char frame[FRAME_HEAD_BYTES];
    struct what what = {.peer = peer, .tag = tag};
    put_head(frame, FRAME_MESSAGE, 0, tag, length);
    return write_frame(stream_of(transport), &what, frame, sizeof frame, parts, count, length, -1,
                       err);
}

dp_status dp_socket_put(struct dp_transport *transport, struct dp_window *window, int32_t peer,
                        size_t offset, const struct iovec *parts, int count, size_t length,
                        uint64_t number, uint64_t note, struct dp_error *err)
{
    unsigned char frame[FRAME_BYTES_MAX];
    struct what what = {.peer = peer, .window = window};
    uint64_t longs[2] = {htole64(offset), htole64(number)};
    put_head(frame, FRAME_PUT, window->key, note, length);
    memcpy(frame + FRAME_HEAD_BYTES, longs, sizeof longs);
    return write_frame(stream_of(transport), &what, frame, sizeof frame, parts, count, length, -1,
                       err);
}

dp_status dp_socket_tell(struct stream *stream, int32_t peer, uint32_t magic, uint64_t tag,
                         uint64_t length, uint64_t offset, struct dp_error *err)
{
    unsigned char frame[FRAME_BYTES_MAX] = {0};
    struct what what = {.peer = peer, .tag = tag};
    uint64_t place = htole64(offset);
    put_head(frame, magic, 0, tag, length);
    memcpy(frame + FRAME_HEAD_BYTES, &place, sizeof place);
    return write_frame(stream, &what, frame, sizeof frame, NULL, 0, 0, -1, err);
}

dp_status dp_socket_pass(struct stream *stream, int32_t peer, uint32_t key, int fd,
                         struct dp_error *err)
{
    unsigned char frame[FRAME_HEAD_BYTES];
    struct what what = {.peer = peer, .tag = key};
    put_head(frame, FRAME_FD, key, 0, 0);
    return write_frame(stream, &what, frame, sizeof frame, NULL, 0, 0, fd, err);
}
