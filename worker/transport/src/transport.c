#include "dp/transport.h"

#include <stdio.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/clock.h"
#include "dp/transport_ops.h"

const char *dp_transport_tag_text(char *buffer, uint64_t tag)
{
    if (tag >> 63 != 0) {
        snprintf(buffer, DP_TRANSPORT_TAG_TEXT_MAX, "group %u call %u",
                 (unsigned)(tag >> 32 & 0x7fffffff), (unsigned)(tag & 0xffffffff));
    } else {
        snprintf(buffer, DP_TRANSPORT_TAG_TEXT_MAX,
                 "kind %u stage %u micro-batch %u layer %u phase %u", (unsigned)(tag >> 56),
                 (unsigned)(tag >> 24 & 0xfff), (unsigned)(tag & 0xffffff),
                 (unsigned)(tag >> 36 & 0xfff), (unsigned)(tag >> 48 & 0xff));
    }
    return buffer;
}

int32_t dp_transport_rank(const struct dp_transport *transport)
{
    return transport->rank;
}

int32_t dp_transport_world(const struct dp_transport *transport)
{
    return transport->world;
}

const struct dp_transport_attributes *dp_transport_attributes(const struct dp_transport *transport)
{
    return &transport->ops->attributes;
}

const struct dp_transport_attributes *
dp_transport_peer_attributes(const struct dp_transport *transport, int32_t peer)
{
    DP_CHECK(peer >= 0 && peer < transport->world);
    return transport->ops->peer_attributes != NULL
               ? transport->ops->peer_attributes(transport, peer)
               : &transport->ops->attributes;
}

void dp_transport_nodes(const struct dp_transport *transport, int32_t *ret_node_of)
{
    if (transport->ops->nodes != NULL) {
        transport->ops->nodes(transport, ret_node_of);
        return;
    }
    for (int32_t i = 0; i < transport->world; i++) {
        ret_node_of[i] = transport->ops->attributes.shares_node ? 0 : i;
    }
}

dp_status dp_transport_check_world(int32_t rank, int32_t world, struct dp_error *err)
{
    if (world < 1 || world > DP_TRANSPORT_WORLD_MAX || rank < 0 || rank >= world) {
        return dp_fail(err, DP_INVALID, "rank %d of %d: at most %d ranks", rank, world,
                       DP_TRANSPORT_WORLD_MAX);
    }
    return DP_OK;
}

dp_status dp_transport_connect(struct dp_transport *transport, const char *const *addresses,
                               int64_t deadline_ns, struct dp_error *err)
{
    return transport->ops->connect == NULL
               ? DP_OK
               : transport->ops->connect(transport, addresses, deadline_ns, err);
}

void dp_transport_set_blocked_ms(struct dp_transport *transport, int64_t blocked_ms)
{
    transport->blocked_ns = blocked_ms * DP_NS_PER_MS;
}

void dp_transport_set_fault(struct dp_transport *transport, const struct dp_transport_fault *fault)
{
    pthread_mutex_lock(transport->mutex);
    transport->fault = *fault;
    transport->fault_sent = 0;
    dp_rand_init(&transport->fault_rand, fault->seed);
    pthread_mutex_unlock(transport->mutex);
}

void dp_transport_apply_fault(struct dp_transport *transport, int32_t peer)
{
    int64_t delay_us = 0;
    bool cut = false;
    pthread_mutex_lock(transport->mutex);
    const struct dp_transport_fault *fault = &transport->fault;
    if (fault->delay_us_max > 0) {
        delay_us = (int64_t)dp_rand_below(&transport->fault_rand, (uint64_t)fault->delay_us_max);
    }
    if (fault->cut_after > 0 && peer == fault->cut_peer) {
        cut = transport->fault_sent++ == fault->cut_after;
    }
    pthread_mutex_unlock(transport->mutex);
    if (delay_us > 0) {
        dp_clock_sleep_until_ns(dp_clock_monotonic_ns() + delay_us * 1000);
    }
    if (cut) {
        transport->ops->cut(transport, peer);
    }
}

static dp_status send_to_self(struct dp_transport *transport, uint64_t tag,
                              const struct iovec *parts, int count, size_t length,
                              struct dp_error *err)
{
    struct dp_message *message = dp_message_gather(tag, parts, count, length);
    pthread_mutex_lock(transport->mutex);
    dp_transport_deliver(transport, transport->rank, message);
    dp_status status = DP_OK;
    if (transport->aborted != DP_OK) {
        status = dp_transport_fail_aborted(transport, err);
    }
    pthread_mutex_unlock(transport->mutex);
    return status;
}

dp_status dp_transport_sendv(struct dp_transport *transport, int32_t peer, uint64_t tag,
                             const struct iovec *parts, int count, struct dp_error *err)
{
    DP_CHECK(peer >= 0 && peer < transport->world && count <= DP_TRANSPORT_PARTS_MAX);
    size_t length = 0;
    for (int i = 0; i < count; i++) {
        if (parts[i].iov_len > DP_TRANSPORT_BYTES_MAX - length) {
            char text[DP_TRANSPORT_TAG_TEXT_MAX];
            return dp_fail(err, DP_TOO_LARGE, "a message to rank %d (%s) is over %u bytes", peer,
                           dp_transport_tag_text(text, tag), DP_TRANSPORT_BYTES_MAX);
        }
        length += parts[i].iov_len;
    }
    dp_transport_apply_fault(transport, peer);
    dp_status status = peer == transport->rank
                           ? send_to_self(transport, tag, parts, count, length, err)
                           : transport->ops->send(transport, peer, tag, parts, count, length, err);
    if (status == DP_OK) {
        pthread_mutex_lock(transport->mutex);
        transport->stats.sent_messages++;
        transport->stats.sent_bytes += length;
        pthread_mutex_unlock(transport->mutex);
    }
    return status;
}

dp_status dp_transport_send(struct dp_transport *transport, int32_t peer, uint64_t tag,
                            const void *bytes, size_t length, struct dp_error *err)
{
    struct iovec part = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = length};
    return dp_transport_sendv(transport, peer, tag, &part, 1, err);
}

dp_status dp_transport_recv(struct dp_transport *transport, int32_t peer, uint64_t tag,
                            void *buffer, size_t length, int64_t deadline_ns, struct dp_error *err)
{
    struct iovec part = {.iov_base = buffer, .iov_len = length};
    return dp_transport_recvv(transport, peer, tag, &part, 1, deadline_ns, err);
}

void dp_transport_abort(struct dp_transport *transport, dp_status status, const char *reason)
{
    DP_CHECK(status != DP_OK);
    pthread_mutex_lock(transport->mutex);
    if (transport->aborted == DP_OK) {
        DP_COPY_TEXT(transport->abort_reason, reason);
        transport->aborted = (int)status;
    }
    pthread_cond_broadcast(&transport->changed);
    pthread_mutex_unlock(transport->mutex);
    dp_bell_ring(transport->bell);
    transport->ops->aborted(transport);
}

void dp_transport_progress(struct dp_transport *transport)
{
    transport->ops->progress(transport);
}

dp_status dp_transport_close(struct dp_transport *transport, int64_t deadline_ns,
                             struct dp_error *err)
{
    pthread_mutex_lock(transport->mutex);
    bool was_aborted = transport->aborted != DP_OK;
    pthread_mutex_unlock(transport->mutex);
    dp_status status = transport->ops->close(transport, deadline_ns, err);
    pthread_mutex_lock(transport->mutex);
    if (status == DP_OK && !was_aborted && transport->aborted != DP_OK) {
        status = dp_transport_fail_aborted(transport, err);
    }
    pthread_mutex_unlock(transport->mutex);
    return status;
}

void dp_transport_free(struct dp_transport *transport)
{
    if (transport != NULL) {
        transport->ops->free(transport);
    }
}

void dp_transport_stats(struct dp_transport *transport, struct dp_transport_stats *ret_stats)
{
    pthread_mutex_lock(transport->mutex);
    *ret_stats = transport->stats;
    ret_stats->waiting_bytes = transport->waiting_bytes;
    pthread_mutex_unlock(transport->mutex);
}
