// Ranks that are threads of one process: a sender puts its message into the receiver's queue.
// All ends share one mutex, each has its own condition variable.
#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/cond.h"
#include "dp/transport_ops.h"

struct hub {
    pthread_mutex_t mutex;
    int32_t world, alive;
    struct dp_window_offer *offers;
    struct dp_transport *ends[]; // NULL once freed
};

struct loopback {
    struct dp_transport base;
    struct hub *hub;
};

static struct hub *hub_of(struct dp_transport *transport)
{
    return ((struct loopback *)transport)->hub;
}

// Under the mutex: waits until the receiver lets more in.
static dp_status wait_for_room(struct dp_transport *transport, int32_t peer, uint64_t tag,
                               struct dp_error *err)
{
    struct hub *hub = hub_of(transport);
    dp_status status = DP_OK;
    int64_t start_ns = dp_clock_monotonic_ns();
    int64_t until_ns = start_ns + transport->blocked_ns;
    bool waited = false;
    for (;;) {
        if (transport->aborted != DP_OK) {
            status = dp_transport_fail_aborted(transport, err);
            break;
        }
        if (transport->peers[peer].closed) {
            status = dp_transport_fail_closed(transport, peer, "send to", tag, err);
            break;
        }
        if (dp_transport_may_read(hub->ends[peer], transport->rank)) {
            break;
        }
        if (dp_clock_monotonic_ns() >= until_ns) {
            char text[DP_TRANSPORT_TAG_TEXT_MAX];
            status = dp_fail(err, DP_TIMEOUT, "rank %d took nothing for %.1f s, sending %s", peer,
                             (double)transport->blocked_ns / (double)DP_NS_PER_S,
                             dp_transport_tag_text(text, tag));
            break;
        }
        waited = true;
        dp_transport_wait_begin(transport);
        dp_cond_wait(&transport->changed, transport->mutex, until_ns);
        dp_transport_wait_end(transport);
    }
    if (waited) {
        transport->stats.send_wait_ns += dp_clock_monotonic_ns() - start_ns;
    }
    return status;
}

static dp_status loopback_send(struct dp_transport *transport, int32_t peer, uint64_t tag,
                               const struct iovec *parts, int count, size_t length,
                               struct dp_error *err)
{
    struct dp_message *message = dp_message_gather(tag, parts, count, length);
    pthread_mutex_lock(transport->mutex);
    dp_status status = wait_for_room(transport, peer, tag, err);
    if (status == DP_OK) {
        dp_transport_deliver(hub_of(transport)->ends[peer], transport->rank, message);
    } else {
        free(message);
    }
    pthread_mutex_unlock(transport->mutex);
    return status;
}

static dp_status window_offer(struct dp_transport *transport, struct dp_window *window,
                              int32_t peer, unsigned char card[DP_WINDOW_CARD_BYTES],
                              struct dp_error *err)
{
    (void)card;
    (void)err;
    pthread_mutex_lock(transport->mutex);
    dp_window_offer_add(&hub_of(transport)->offers, window, transport->rank, peer);
    pthread_mutex_unlock(transport->mutex);
    return DP_OK;
}

// Each window holds those of its peers, which may close theirs and even end before it.
static dp_status window_accept(struct dp_transport *transport, struct dp_window *window,
                               int32_t peer, const unsigned char card[DP_WINDOW_CARD_BYTES],
                               struct dp_error *err)
{
    (void)card;
    (void)err;
    pthread_mutex_lock(transport->mutex);
    window->outs[peer].row =
        dp_window_offer_take(&hub_of(transport)->offers, window->key, peer, transport->rank);
    pthread_mutex_unlock(transport->mutex);
    return DP_OK;
}

static void window_forget(struct dp_transport *transport, struct dp_window *window, int32_t peer)
{
    (void)transport;
    dp_window_release(dp_steal(window->outs[peer].row));
}

static void *window_map(struct dp_transport *transport, struct dp_window *window, int32_t peer)
{
    (void)transport;
    return ((struct dp_window *)window->outs[peer].row)->memory;
}

// The mutex is for the end of the peer, which must not be freed while its bell is rung.
static dp_status loopback_put(struct dp_transport *transport, struct dp_window *window,
                              int32_t peer, size_t offset, const struct iovec *parts, int count,
                              size_t length, uint64_t number, uint64_t note, struct dp_error *err)
{
    (void)length;
    struct dp_window *to = window->outs[peer].row;
    dp_window_gather(to->memory + offset, parts, count);
    dp_status status = DP_OK;
    pthread_mutex_lock(transport->mutex);
    if (transport->peers[peer].closed) {
        status = dp_fail(err, DP_UNAVAILABLE, "cannot put to rank %d (window %u): %s", peer,
                         window->key & 0xffff, transport->peers[peer].reason);
    } else {
        dp_window_land(to, transport->rank, number, note);
    }
    pthread_mutex_unlock(transport->mutex);
    return status;
}

static void loopback_resume(struct dp_transport *transport, int32_t peer)
{
    struct dp_transport *sender = hub_of(transport)->ends[peer];
    if (sender != NULL) {
        pthread_cond_broadcast(&sender->changed);
    }
}

static void part(struct dp_transport *transport, int32_t peer, const char *reason)
{
    struct dp_transport *other = hub_of(transport)->ends[peer];
    if (other != NULL && other != transport) {
        dp_transport_peer_closed(other, transport->rank, reason);
        dp_transport_peer_closed(transport, peer, "the connection was closed here");
    }
}

static void part_from_all(struct dp_transport *transport, const char *reason)
{
    pthread_mutex_lock(transport->mutex);
    for (int32_t i = 0; i < transport->world; i++) {
        part(transport, i, reason);
    }
    pthread_mutex_unlock(transport->mutex);
}

static void loopback_cut(struct dp_transport *transport, int32_t peer)
{
    pthread_mutex_lock(transport->mutex);
    part(transport, peer, "the connection broke");
    pthread_mutex_unlock(transport->mutex);
}

static void loopback_aborted(struct dp_transport *transport)
{
    part_from_all(transport, "it stopped");
}

static void loopback_progress(struct dp_transport *transport)
{
    (void)transport;
}

static dp_status loopback_close(struct dp_transport *transport, int64_t deadline_ns,
                                struct dp_error *err)
{
    (void)deadline_ns; // all that was sent has arrived
    (void)err;
    part_from_all(transport, "it closed the connection");
    return DP_OK;
}

static void loopback_free(struct dp_transport *transport)
{
    struct hub *hub = hub_of(transport);
    part_from_all(transport, "it closed the connection");
    pthread_mutex_lock(&hub->mutex);
    hub->ends[transport->rank] = NULL;
    bool is_last = --hub->alive == 0;
    pthread_mutex_unlock(&hub->mutex);
    dp_transport_deinit(transport);
    free(transport);
    if (is_last) {
        dp_window_offers_drop(&hub->offers);
        pthread_mutex_destroy(&hub->mutex);
        free(hub);
    }
}

static const struct dp_transport_ops loopback_ops = {
    .attributes = {.name = "loopback",
                   .bandwidth = 8e9,
                   .latency_s = 5e-6,
                   .message_bytes_max = DP_TRANSPORT_BYTES_MAX,
                   .is_one_sided = true,
                   .shares_node = true},
    .send = loopback_send,
    .window_offer = window_offer,
    .window_accept = window_accept,
    .window_forget = window_forget,
    .window_map = window_map,
    .put = loopback_put,
    .resume = loopback_resume,
    .cut = loopback_cut,
    .aborted = loopback_aborted,
    .progress = loopback_progress,
    .close = loopback_close,
    .free = loopback_free,
};

void dp_transport_loopback(int32_t world, struct dp_transport **ret_transports)
{
    struct hub *hub = dp_alloc(1, sizeof *hub + (size_t)world * sizeof hub->ends[0]);
    pthread_mutex_init(&hub->mutex, NULL);
    hub->world = world;
    hub->alive = world;
    for (int32_t i = 0; i < world; i++) {
        struct loopback *end = dp_new(struct loopback);
        dp_transport_init(&end->base, &loopback_ops, i, world, &hub->mutex);
        end->hub = hub;
        hub->ends[i] = &end->base;
        ret_transports[i] = &end->base;
    }
}
