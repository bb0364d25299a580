// The common part of every transport: queues of what arrived, and how receivers wait for it.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/cond.h"
#include "dp/transport_ops.h"

struct dp_message *dp_message_new(uint64_t tag, size_t length)
{
    struct dp_message *message = dp_realloc(NULL, 1, sizeof *message + length);
    message->next = NULL;
    message->data = message->bytes;
    message->release = NULL;
    message->tag = tag;
    message->length = length;
    return message;
}

struct dp_message *dp_message_gather(uint64_t tag, const struct iovec *parts, int count,
                                     size_t length)
{
    struct dp_message *message = dp_message_new(tag, length);
    size_t at = 0;
    for (int i = 0; i < count; i++) {
        if (parts[i].iov_len > 0) {
            memcpy(message->bytes + at, parts[i].iov_base, parts[i].iov_len);
            at += parts[i].iov_len;
        }
    }
    return message;
}

void dp_message_free(struct dp_message *message)
{
    if (message->release != NULL) {
        message->release(message);
    }
    free(message);
}

void dp_transport_init(struct dp_transport *transport, const struct dp_transport_ops *ops,
                       int32_t rank, int32_t world, pthread_mutex_t *mutex)
{
    DP_CHECK(world > 0 && world <= DP_TRANSPORT_WORLD_MAX && rank >= 0 && rank < world);
    transport->ops = ops;
    transport->front = transport;
    transport->bell = &transport->own_bell;
    transport->rank = rank;
    transport->world = world;
    transport->blocked_ns = DP_TRANSPORT_BLOCKED_MS_MAX * DP_NS_PER_MS;
    pthread_mutex_init(&transport->own_mutex, NULL);
    transport->mutex = mutex != NULL ? mutex : &transport->own_mutex;
    dp_cond_init(&transport->changed);
    transport->peers = dp_new_array(struct dp_transport_peer, (size_t)world);
    transport->put_bytes = dp_new_array(_Atomic uint64_t, (size_t)world);
    for (int32_t i = 0; i < world; i++) {
        transport->peers[i].tail = &transport->peers[i].head;
    }
}

void dp_transport_join(struct dp_transport *transport, struct dp_transport *front)
{
    DP_CHECK(transport->world == front->world && transport->rank == front->rank);
    transport->front = front;
    transport->mutex = front->mutex;
}

void dp_transport_drop_messages(struct dp_transport *transport, int32_t peer)
{
    struct dp_transport *front = transport->front;
    struct dp_transport_peer *from = &front->peers[peer];
    pthread_mutex_lock(front->mutex);
    struct dp_message *message = dp_steal(from->head);
    from->tail = &from->head;
    front->waiting_bytes -= from->waiting_bytes;
    from->waiting_bytes = 0;
    pthread_mutex_unlock(front->mutex);
    while (message != NULL) {
        struct dp_message *next = message->next;
        dp_message_free(message);
        message = next;
    }
}

void dp_transport_deinit(struct dp_transport *transport)
{
    for (int32_t i = 0; i < transport->world && transport->front == transport; i++) {
        dp_transport_drop_messages(transport, i);
    }
    free(transport->peers);
    free(transport->put_bytes);
    pthread_cond_destroy(&transport->changed);
    pthread_mutex_destroy(&transport->own_mutex);
}

bool dp_transport_deliver(struct dp_transport *transport, int32_t peer, struct dp_message *message)
{
    transport = transport->front;
    struct dp_transport_peer *from = &transport->peers[peer];
    if (from->waiting_bytes + message->length > DP_TRANSPORT_HELD_BYTES_MAX) {
        char text[DP_TRANSPORT_TAG_TEXT_MAX];
        if (transport->aborted == DP_OK) {
            snprintf(transport->abort_reason, sizeof transport->abort_reason,
                     "rank %d sent more than %llu bytes that nobody asked for, up to %s", peer,
                     (unsigned long long)DP_TRANSPORT_HELD_BYTES_MAX,
                     dp_transport_tag_text(text, message->tag));
            transport->aborted = DP_TOO_LARGE;
        }
        free(message);
        pthread_cond_broadcast(&transport->changed);
        dp_bell_ring(transport->bell);
        return false;
    }
    *from->tail = message;
    from->tail = &message->next;
    from->waiting_bytes += message->length;
    message->arrived_ns = dp_clock_monotonic_ns();
    from->progress_ns = message->arrived_ns;
    transport->waiting_bytes += message->length;
    if (transport->stats.waiting_bytes_peak < transport->waiting_bytes) {
        transport->stats.waiting_bytes_peak = transport->waiting_bytes;
    }
    pthread_cond_broadcast(&transport->changed);
    return true;
}

bool dp_transport_may_read(struct dp_transport *transport, int32_t peer)
{
    transport = transport->front;
    struct dp_transport_peer *from = &transport->peers[peer];
    from->paused = transport->waiters == 0 && from->waiting_bytes >= DP_TRANSPORT_WAITING_BYTES_MAX;
    return !from->paused;
}

static void resume(struct dp_transport *transport, int32_t peer)
{
    if (transport->peers[peer].paused && dp_transport_may_read(transport, peer)) {
        transport->ops->resume(transport, peer);
    }
}

void dp_transport_peer_closed(struct dp_transport *transport, int32_t peer, const char *reason)
{
    transport = transport->front;
    struct dp_transport_peer *from = &transport->peers[peer];
    if (!from->closed) {
        from->closed = true;
        DP_COPY_TEXT(from->reason, reason);
        pthread_cond_broadcast(&transport->changed);
        dp_bell_ring(transport->bell);
    }
}

void dp_transport_wait_begin(struct dp_transport *transport)
{
    transport = transport->front;
    transport->waiters++;
    for (int32_t i = 0; i < transport->world; i++) {
        resume(transport, i);
    }
}

void dp_transport_wait_end(struct dp_transport *transport)
{
    transport->front->waiters--;
}

dp_status dp_transport_await_closed(struct dp_transport *transport,
                                    bool (*is_linked)(const struct dp_transport *, int32_t peer),
                                    int64_t deadline_ns, struct dp_error *err)
{
    struct dp_transport *front = transport->front;
    dp_status status = DP_OK;
    pthread_mutex_lock(front->mutex);
    dp_transport_wait_begin(transport);
    for (int32_t peer = 0; peer < transport->world && front->aborted == DP_OK;) {
        if (front->peers[peer].closed || !is_linked(transport, peer)) {
            peer++;
        } else if (dp_clock_monotonic_ns() < deadline_ns) {
            dp_cond_wait(&front->changed, front->mutex, deadline_ns);
        } else {
            status = dp_fail(err, DP_TIMEOUT, "rank %d has not closed in time", peer);
            break;
        }
    }
    dp_transport_wait_end(transport);
    pthread_mutex_unlock(front->mutex);
    return status;
}

dp_status dp_transport_fail_aborted(struct dp_transport *transport, struct dp_error *err)
{
    const struct dp_transport *front = transport->front;
    return dp_fail(err, (dp_status)front->aborted, "%s", front->abort_reason);
}

dp_status dp_transport_fail_closed(struct dp_transport *transport, int32_t peer, const char *action,
                                   uint64_t tag, struct dp_error *err)
{
    char text[DP_TRANSPORT_TAG_TEXT_MAX];
    return dp_fail(err, DP_UNAVAILABLE, "cannot %s rank %d (%s): %s", action, peer,
                   dp_transport_tag_text(text, tag), transport->front->peers[peer].reason);
}

static struct dp_message **find(struct dp_transport_peer *from, uint64_t tag)
{
    for (struct dp_message **at = &from->head; *at != NULL; at = &(*at)->next) {
        if ((*at)->tag == tag) {
            return at;
        }
    }
    return NULL;
}

static dp_status fail_late(int32_t peer, uint64_t tag, int64_t waited_ns, bool is_deadline,
                           struct dp_error *err)
{
    char text[DP_TRANSPORT_TAG_TEXT_MAX];
    return dp_fail(err, DP_TIMEOUT, "%s from rank %d (%s) after %.1f s",
                   is_deadline ? "the message did not come in time" : "nothing came", peer,
                   dp_transport_tag_text(text, tag), (double)waited_ns / (double)DP_NS_PER_S);
}

// Under the mutex: waits until the message is there; *ret_at is the link that points to it.
static dp_status await(struct dp_transport *transport, int32_t peer, uint64_t tag,
                       int64_t deadline_ns, struct dp_message ***ret_at, struct dp_error *err)
{
    struct dp_transport_peer *from = &transport->peers[peer];
    int64_t start_ns = 0;
    dp_status status = DP_OK;
    for (;;) {
        struct dp_message **at = find(from, tag);
        if (at != NULL && transport->aborted == DP_OK) {
            *ret_at = at;
            break;
        }
        if (transport->aborted != DP_OK) {
            status = dp_transport_fail_aborted(transport, err);
            break;
        }
        if (from->closed) {
            status = dp_transport_fail_closed(transport, peer, "receive from", tag, err);
            break;
        }
        int64_t now_ns = dp_clock_monotonic_ns();
        start_ns = start_ns == 0 ? now_ns : start_ns;
        int64_t last_ns = from->progress_ns > start_ns ? from->progress_ns : start_ns;
        int64_t until_ns = last_ns + transport->blocked_ns;
        bool is_deadline = deadline_ns > 0 && deadline_ns < until_ns;
        until_ns = is_deadline ? deadline_ns : until_ns;
        if (now_ns >= until_ns) {
            status = fail_late(peer, tag, now_ns - start_ns, is_deadline, err);
            break;
        }
        dp_transport_wait_begin(transport);
        dp_cond_wait(&transport->changed, transport->mutex, until_ns);
        dp_transport_wait_end(transport);
    }
    if (start_ns != 0) {
        transport->stats.receive_wait_ns += dp_clock_monotonic_ns() - start_ns;
    }
    return status;
}

static struct dp_message *take(struct dp_transport *transport, int32_t peer, struct dp_message **at)
{
    struct dp_transport_peer *from = &transport->peers[peer];
    struct dp_message *message = *at;
    *at = message->next;
    if (from->tail == &message->next) {
        from->tail = at;
    }
    from->waiting_bytes -= message->length;
    transport->waiting_bytes -= message->length;
    transport->stats.received_messages++;
    transport->stats.received_bytes += message->length;
    resume(transport, peer);
    return message;
}

dp_status dp_transport_recvv(struct dp_transport *transport, int32_t peer, uint64_t tag,
                             const struct iovec *parts, int count, int64_t deadline_ns,
                             struct dp_error *err)
{
    int64_t arrived_ns;
    return dp_transport_recvv_timed(transport, peer, tag, parts, count, deadline_ns, &arrived_ns,
                                    err);
}

dp_status dp_transport_recvv_timed(struct dp_transport *transport, int32_t peer, uint64_t tag,
                                   const struct iovec *parts, int count, int64_t deadline_ns,
                                   int64_t *ret_arrived_ns, struct dp_error *err)
{
    DP_CHECK(peer >= 0 && peer < transport->world && count <= DP_TRANSPORT_PARTS_MAX);
    size_t length = 0;
    for (int i = 0; i < count; i++) {
        length += parts[i].iov_len;
    }
    struct dp_message **at;
    struct dp_message *message = NULL;
    pthread_mutex_lock(transport->mutex);
    dp_status status = await(transport, peer, tag, deadline_ns, &at, err);
    if (status == DP_OK && (*at)->length != length) {
        char text[DP_TRANSPORT_TAG_TEXT_MAX];
        status =
            dp_fail(err, DP_INTERNAL, "rank %d sent %zu bytes where rank %d expects %zu (%s)", peer,
                    (*at)->length, transport->rank, length, dp_transport_tag_text(text, tag));
    }
    if (status == DP_OK) {
        message = take(transport, peer, at);
    }
    pthread_mutex_unlock(transport->mutex);
    if (message != NULL) {
        *ret_arrived_ns = message->arrived_ns;
        const unsigned char *from = message->data;
        for (int i = 0; i < count; i++) {
            if (parts[i].iov_len > 0) {
                memcpy(parts[i].iov_base, from, parts[i].iov_len);
                from += parts[i].iov_len;
            }
        }
        dp_message_free(message);
    }
    return status;
}

dp_status dp_transport_peek(struct dp_transport *transport, int32_t peer, uint64_t tag,
                            void *buffer, size_t length, int64_t deadline_ns, size_t *ret_length,
                            struct dp_error *err)
{
    DP_CHECK(peer >= 0 && peer < transport->world);
    struct dp_message **at;
    pthread_mutex_lock(transport->mutex);
    dp_status status = await(transport, peer, tag, deadline_ns, &at, err);
    if (status == DP_OK) {
        size_t whole = (*at)->length;
        size_t part = whole < length ? whole : length;
        if (part > 0) {
            memcpy(buffer, (*at)->data, part);
        }
        *ret_length = whole;
    }
    pthread_mutex_unlock(transport->mutex);
    return status;
}

bool dp_transport_probe(struct dp_transport *transport, int32_t peer, uint64_t tag,
                        size_t *ret_length)
{
    DP_CHECK(peer >= 0 && peer < transport->world);
    pthread_mutex_lock(transport->mutex);
    struct dp_message **at = find(&transport->peers[peer], tag);
    if (at != NULL && ret_length != NULL) {
        *ret_length = (*at)->length;
    }
    pthread_mutex_unlock(transport->mutex);
    return at != NULL;
}
