// Taking the stream of a peer apart: messages to the queues, puts straight into their windows.
#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "stream.h"

void dp_socket_break(struct stream *stream, int32_t peer, const char *reason)
{
    struct stream_link *link = &stream->links[peer];
    pthread_mutex_lock(&stream->out_mutex);
    if (!link->broken) {
        pthread_mutex_lock(stream->base.mutex);
        link->broken = true; // to all who see that the peer has closed
        dp_transport_peer_closed(&stream->base, peer, reason);
        pthread_mutex_unlock(stream->base.mutex);
        epoll_ctl(stream->epoll_fd, EPOLL_CTL_DEL, link->fd, NULL);
        link->events = 0;
        shutdown(link->fd, SHUT_RDWR);
        dp_socket_drop_queue(stream, link);
        if (stream->arena != NULL) {
            dp_shm_arena_release_all(stream, peer);
        }
    }
    pthread_mutex_unlock(&stream->out_mutex);
}

void dp_socket_drop_input(struct stream_link *link)
{
    free(dp_steal(link->message));
    dp_window_release(dp_steal(link->window));
    if (link->passed_fd >= 0) {
        close(dp_steal_fd(&link->passed_fd));
    }
}

static uint32_t frame_u32(const struct stream_link *link, size_t at)
{
    uint32_t value;
    memcpy(&value, link->frame + at, sizeof value);
    return le32toh(value);
}

static uint64_t frame_u64(const struct stream_link *link, size_t at)
{
    uint64_t value;
    memcpy(&value, link->frame + at, sizeof value);
    return le64toh(value);
}

static size_t frame_bytes(const struct stream_link *link)
{
    uint32_t magic = link->frame_got >= sizeof(uint32_t) ? frame_u32(link, 0) : 0;
    bool is_long = magic == FRAME_PUT || magic == FRAME_SHARED || magic == FRAME_FREE;
    return is_long ? FRAME_BYTES_MAX : FRAME_HEAD_BYTES;
}

static bool fail(struct stream *stream, int32_t peer, const char *reason)
{
    dp_socket_break(stream, peer, reason);
    return false;
}

static bool begin_message(struct stream *stream, int32_t peer)
{
    struct stream_link *link = &stream->links[peer];
    link->left = (size_t)frame_u64(link, 16);
    link->message = dp_message_new(frame_u64(link, 8), link->left);
    link->to = link->message->bytes;
    return true;
}

// Everything is checked before the first byte is let into the window.
static bool begin_put(struct stream *stream, int32_t peer)
{
    struct stream_link *link = &stream->links[peer];
    uint64_t offset = frame_u64(link, 24);
    link->left = (size_t)frame_u64(link, 16);
    link->note = frame_u64(link, 8);
    link->number = frame_u64(link, 32);
    link->window = dp_window_acquire(&stream->base, frame_u32(link, 4));
    link->to = NULL;
    if (link->window == NULL) {
        return true; // closed here already: nobody will look
    }
    size_t bytes = link->window->bytes;
    if (offset > bytes || link->left > bytes - offset) {
        return fail(stream, peer, "it put beyond the end of a window");
    }
    if (link->number != dp_window_landed(link->window, peer) + 1) {
        return fail(stream, peer, "its puts are out of order");
    }
    link->to = link->window->memory + offset;
    return true;
}

static bool take_fd(struct stream *stream, int32_t peer)
{
    struct stream_link *link = &stream->links[peer];
    int fd = dp_steal_fd(&link->passed_fd);
    bool is_good = false;
    if (fd >= 0) {
        pthread_mutex_lock(stream->base.mutex);
        is_good = dp_shm_passed(stream, peer, frame_u32(link, 4), fd);
        pthread_mutex_unlock(stream->base.mutex);
    }
    link->left = 0;
    link->to = NULL;
    return is_good || fail(stream, peer, "it passed no descriptor where one was announced");
}

// What a peer says about its arena or this rank's.
static bool take_shared(struct stream *stream, int32_t peer)
{
    struct stream_link *link = &stream->links[peer];
    uint64_t offset = frame_u64(link, 24);
    link->left = 0;
    link->to = NULL;
    if (frame_u32(link, 0) == FRAME_FREE) {
        return dp_shm_arena_release(stream, peer, offset) ||
               fail(stream, peer, "it gave back what it had not been lent");
    }
    link->message =
        dp_shm_arena_message(stream, peer, frame_u64(link, 8), frame_u64(link, 16), offset);
    return link->message != NULL || fail(stream, peer, "its message is outside of its memory");
}

// The frame is complete.
static bool begin(struct stream *stream, int32_t peer)
{
    struct stream_link *link = &stream->links[peer];
    uint32_t magic = frame_u32(link, 0);
    bool is_known = magic == FRAME_MESSAGE || magic == FRAME_PUT ||
                    (magic == FRAME_FD && stream->is_local && frame_u64(link, 16) == 0) ||
                    ((magic == FRAME_SHARED || magic == FRAME_FREE) && stream->is_local);
    if (!is_known || frame_u64(link, 16) > DP_TRANSPORT_BYTES_MAX) {
        return fail(stream, peer, "it sent bytes that are no message");
    }
    link->is_inside = true;
    if (magic == FRAME_FD) {
        return take_fd(stream, peer);
    }
    if (magic == FRAME_SHARED || magic == FRAME_FREE) {
        return take_shared(stream, peer);
    }
    return magic == FRAME_PUT ? begin_put(stream, peer) : begin_message(stream, peer);
}

static bool finish(struct stream *stream, int32_t peer)
{
    struct stream_link *link = &stream->links[peer];
    bool is_good = true;
    link->frame_got = 0;
    link->is_inside = false;
    link->to = NULL;
    if (link->message != NULL) {
        struct dp_message *message = dp_steal(link->message);
        pthread_mutex_lock(stream->base.mutex);
        is_good = dp_transport_deliver(&stream->base, peer, message);
        pthread_mutex_unlock(stream->base.mutex);
    } else if (link->window != NULL) {
        struct dp_window *window = dp_steal(link->window);
        dp_window_land(window, peer, link->number, link->note);
        dp_window_release(window);
    }
    return is_good;
}

// Takes bytes of the stream apart; false when the link is of no more use.
static bool feed(struct stream *stream, int32_t peer, const unsigned char *bytes, size_t count)
{
    struct stream_link *link = &stream->links[peer];
    for (;;) {
        while (!link->is_inside) {
            size_t need = frame_bytes(link) - link->frame_got;
            if (link->frame_got < sizeof(uint32_t)) {
                need = sizeof(uint32_t) - link->frame_got; // then the kind is known
            }
            size_t part = count < need ? count : need;
            memcpy(link->frame + link->frame_got, bytes, part);
            link->frame_got += part;
            bytes += part;
            count -= part;
            if (part < need) {
                return true;
            }
            if (link->frame_got == frame_bytes(link) && !begin(stream, peer)) {
                return false;
            }
        }
        size_t part = count < link->left ? count : link->left;
        if (link->to != NULL) {
            memcpy(link->to, bytes, part);
            link->to += part;
        }
        link->left -= part;
        bytes += part;
        count -= part;
        if (link->left > 0) {
            return true;
        }
        if (!finish(stream, peer)) {
            return false;
        }
    }
}

// As recv; a local peer's descriptor is kept for the frame that announces it.
static ssize_t receive(struct stream *stream, struct stream_link *link, void *to, size_t length)
{
    if (!stream->is_local) {
        return recv(link->fd, to, length, MSG_DONTWAIT);
    }
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(4 * sizeof(int))];
    } control;
    struct iovec part = {.iov_base = to, .iov_len = length};
    struct msghdr header = {.msg_iov = &part,
                            .msg_iovlen = 1,
                            .msg_control = control.bytes,
                            .msg_controllen = sizeof control.bytes};
    ssize_t got = recvmsg(link->fd, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    for (struct cmsghdr *at = got >= 0 ? CMSG_FIRSTHDR(&header) : NULL; at != NULL;
         at = CMSG_NXTHDR(&header, at)) {
        size_t bytes = at->cmsg_len - CMSG_LEN(0);
        for (size_t i = 0; at->cmsg_level == SOL_SOCKET && at->cmsg_type == SCM_RIGHTS &&
                           (i + 1) * sizeof(int) <= bytes;
             i++) {
            if (link->passed_fd >= 0) {
                close(link->passed_fd); // never more than one at a time from a rank of ours
            }
            memcpy(&link->passed_fd, CMSG_DATA(at) + i * sizeof(int), sizeof(int));
        }
    }
    return got;
}

// Straight into its place when much of it is still to come, else through the scratch.
bool dp_socket_read(struct stream *stream, int32_t peer, ssize_t *ret_got)
{
    struct stream_link *link = &stream->links[peer];
    bool is_direct = link->is_inside && link->to != NULL && link->left >= SCRATCH_BYTES;
    ssize_t got = receive(stream, link, is_direct ? link->to : stream->scratch,
                          is_direct ? link->left : SCRATCH_BYTES);
    *ret_got = got;
    if (got <= 0) {
        return false;
    }
    if (!is_direct) {
        return feed(stream, peer, stream->scratch, (size_t)got);
    }
    link->to += got;
    link->left -= (size_t)got;
    return link->left > 0 || finish(stream, peer);
}
