#include "stream.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/cond.h"

static void end_of_stream(struct stream *stream, int32_t peer, int errnum)
{
    const struct stream_link *link = &stream->links[peer];
    bool is_inside = link->frame_got > 0;
    char reason[128];
    snprintf(reason, sizeof reason, "%s%s",
             errnum != 0 ? strerror(errnum) : "it closed the connection",
             is_inside ? " in the middle of a message" : "");
    dp_socket_break(stream, peer, reason);
}

// Whether the peer may be read; if not, its socket is no longer watched for input.
static bool may_read(struct stream *stream, int32_t peer)
{
    struct stream_link *link = &stream->links[peer];
    pthread_mutex_lock(&stream->out_mutex);
    pthread_mutex_lock(stream->base.mutex);
    bool may = dp_transport_may_read(&stream->base, peer);
    pthread_mutex_unlock(stream->base.mutex);
    uint32_t events = link->events & ~(uint32_t)EPOLLIN;
    dp_socket_watch(stream, peer, may ? events | EPOLLIN : events);
    pthread_mutex_unlock(&stream->out_mutex);
    return may;
}

// Reads a few times, so that one busy peer does not keep the others waiting.
static void read_link(struct stream *stream, int32_t peer, bool is_hung_up)
{
    size_t total = 0;
    for (int turn = 0; turn < 8 || is_hung_up; turn++) {
        if (!is_hung_up && !may_read(stream, peer)) {
            break;
        }
        ssize_t got;
        bool is_usable = dp_socket_read(stream, peer, &got);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
            break;
        }
        if (got <= 0) {
            end_of_stream(stream, peer, got < 0 ? errno : 0);
            break;
        }
        if (!is_usable) {
            break;
        }
        total += (size_t)got;
        if ((size_t)got < SCRATCH_BYTES / 4) {
            break; // the socket is most likely empty; epoll says when it is not
        }
    }
    if (total > 0) {
        pthread_mutex_lock(stream->base.mutex);
        stream->base.front->peers[peer].progress_ns = dp_clock_monotonic_ns();
        pthread_mutex_unlock(stream->base.mutex);
    }
}

static void resume_links(struct stream *stream)
{
    uint64_t count;
    ssize_t ignored = read(stream->wake_fd, &count, sizeof count);
    (void)ignored;
    for (int32_t i = 0; i < stream->base.world; i++) {
        if (atomic_exchange(&stream->links[i].resume_wanted, false) && !stream->links[i].broken) {
            may_read(stream, i);
        }
    }
}

void dp_socket_aborted(struct dp_transport *transport)
{
    struct stream *stream = stream_of(transport);
    pthread_mutex_lock(&stream->out_mutex);
    for (int32_t i = 0; i < transport->world; i++) {
        if (stream->links[i].fd >= 0) {
            shutdown(stream->links[i].fd, SHUT_RDWR);
        }
    }
    pthread_cond_broadcast(&stream->out_room);
    pthread_mutex_unlock(&stream->out_mutex);
    dp_socket_wake(stream);
}

void dp_socket_progress(struct dp_transport *transport)
{
    struct stream *stream = stream_of(transport);
    if (!stream->connected) {
        return;
    }
    while (!stream->stop && stream->base.front->aborted == DP_OK) {
        struct epoll_event events[64];
        int count = epoll_wait(stream->epoll_fd, events, 64, -1);
        for (int i = 0; i < count; i++) {
            int32_t peer = (int32_t)events[i].data.u32;
            if (peer == stream->base.rank) {
                resume_links(stream);
                continue;
            }
            if (events[i].events & EPOLLOUT) {
                dp_socket_flush(stream, peer);
            }
            if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
                read_link(stream, peer, (events[i].events & (EPOLLHUP | EPOLLERR)) != 0);
            }
        }
    }
    if (stream->base.front->aborted != DP_OK) {
        dp_socket_aborted(transport); // when it was the reader that gave up
    }
}

void dp_socket_resume(struct dp_transport *transport, int32_t peer)
{
    struct stream *stream = stream_of(transport);
    stream->links[peer].resume_wanted = true;
    dp_socket_wake(stream);
}

void dp_socket_cut(struct dp_transport *transport, int32_t peer)
{
    struct stream *stream = stream_of(transport);
    if (stream->links[peer].fd >= 0) {
        dp_socket_break(stream, peer, "the connection broke");
    }
}

static bool is_linked(const struct dp_transport *transport, int32_t peer)
{
    return ((const struct stream *)transport)->links[peer].fd >= 0;
}

dp_status dp_socket_close(struct dp_transport *transport, int64_t deadline_ns, struct dp_error *err)
{
    struct stream *stream = stream_of(transport);
    dp_status status = DP_OK;
    if (stream->connected) {
        status = dp_socket_drain(stream, deadline_ns, err);
        pthread_mutex_lock(&stream->out_mutex);
        for (int32_t i = 0; i < transport->world; i++) {
            if (stream->links[i].fd >= 0 && !stream->links[i].broken) {
                shutdown(stream->links[i].fd, SHUT_WR);
            }
        }
        pthread_mutex_unlock(&stream->out_mutex);
        if (status == DP_OK) {
            status = dp_transport_await_closed(transport, is_linked, deadline_ns, err);
        }
    }
    stream->stop = true;
    dp_socket_wake(stream);
    return status;
}

void dp_socket_free(struct dp_transport *transport)
{
    struct stream *stream = stream_of(transport);
    for (int32_t i = 0; i < transport->world; i++) {
        struct stream_link *link = &stream->links[i];
        dp_transport_drop_messages(transport, i); // whose bytes may be in a peer's arena
        dp_socket_drop_queue(stream, link);
        dp_socket_drop_input(link);
        dp_shm_forget_peer(link);
        if (link->fd >= 0) {
            close(link->fd);
        }
    }
    if (stream->listen_fd >= 0) {
        close(stream->listen_fd);
    }
    close(stream->epoll_fd);
    close(stream->wake_fd);
    if (stream->bell_fd >= 0) {
        munmap(stream->base.bell, BELL_BYTES);
        close(stream->bell_fd);
    }
    dp_shm_arena_free(stream->arena);
    free(stream->links);
    free(stream->scratch);
    pthread_cond_destroy(&stream->out_room);
    pthread_mutex_destroy(&stream->out_mutex);
    dp_transport_deinit(transport);
    free(stream);
}

dp_status dp_socket_new(const struct dp_transport_ops *ops, int32_t rank, int32_t world,
                        uint64_t token, int listen_fd, struct stream **ret_stream,
                        struct dp_error *err)
{
    DP_AUTO_CLOSE int listener = listen_fd;
    DP_AUTO_CLOSE int epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    DP_AUTO_CLOSE int wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)rank};
    if (epoll_fd < 0 || wake_fd < 0 || epoll_ctl(epoll_fd, EPOLL_CTL_ADD, wake_fd, &event) != 0) {
        return dp_fail_errno(err, errno, "cannot make an epoll instance");
    }
    struct stream *stream = dp_new(struct stream);
    dp_transport_init(&stream->base, ops, rank, world, NULL);
    stream->token = token;
    stream->listen_fd = dp_steal_fd(&listener);
    stream->epoll_fd = dp_steal_fd(&epoll_fd);
    stream->wake_fd = dp_steal_fd(&wake_fd);
    stream->bell_fd = -1;
    stream->scratch = dp_alloc(1, SCRATCH_BYTES);
    stream->links = dp_new_array(struct stream_link, (size_t)world);
    for (int32_t i = 0; i < world; i++) {
        stream->links[i].fd = -1;
        stream->links[i].passed_fd = -1;
        stream->links[i].out_tail = &stream->links[i].out_head;
    }
    pthread_mutex_init(&stream->out_mutex, NULL);
    dp_cond_init(&stream->out_room);
    *ret_stream = stream;
    return DP_OK;
}
