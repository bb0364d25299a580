#include "slow.h"

#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/cond.h"
#include "dp/rand.h"
#include "dp/transport_ops.h"

struct hub {
    pthread_mutex_t mutex; // guards all ends
    int32_t alive;
    struct dp_window_offer *offers;
    struct dp_transport *ends[]; // NULL once freed
};

// A message on its way.
struct flight {
    struct dp_message *message;
    int64_t due_ns;
    uint64_t number; // in the order of sends
    int32_t peer;
    // Of a put; its message holds the bytes, and the note as its tag.
    struct dp_window *window; // the peer's, held; NULL = a message
    size_t offset;
    uint64_t put;
};

struct slow {
    struct dp_transport base;
    struct hub *hub;
    struct slow_link link;
    struct dp_rand rand;
    struct flight *flights; // in no order
    size_t count, capacity;
    uint64_t bytes; // of the flights
    uint64_t sent, overtaken;
    int64_t *free_ns;       // [world], when the link to a peer carries the next message
    int64_t moved_ns;       // when a message arrived last
    pthread_cond_t changed; // for the mover: a flight, room at a peer, the end
    bool stop;
};

static struct slow *slow_of(struct dp_transport *transport)
{
    return (struct slow *)transport;
}

static struct dp_transport *end_of(struct slow *slow, int32_t rank)
{
    return slow->hub->ends[rank];
}

// Messages of one stream arrive in the order of their sending, and so do a pair's puts into one
// window.
static int64_t not_before(const struct slow *slow, const struct flight *next, int64_t due_ns)
{
    for (size_t i = 0; i < slow->count; i++) {
        const struct flight *flight = &slow->flights[i];
        bool follows = flight->peer == next->peer && flight->window == next->window &&
                       (next->window != NULL || flight->message->tag == next->message->tag);
        if (follows && flight->due_ns > due_ns) {
            due_ns = flight->due_ns;
        }
    }
    return due_ns;
}

static void take_off(struct slow *slow, struct flight next)
{
    int32_t peer = next.peer;
    struct dp_message *message = next.message;
    const struct slow_link *link = &slow->link;
    int64_t now_ns = dp_clock_monotonic_ns();
    int64_t leaves_ns = slow->free_ns[peer] > now_ns ? slow->free_ns[peer] : now_ns;
    if (link->bytes_per_second > 0) {
        leaves_ns +=
            (int64_t)((double)message->length / link->bytes_per_second * (double)DP_NS_PER_S);
    }
    if (link->stall_one_in > 0 && dp_rand_below(&slow->rand, (uint64_t)link->stall_one_in) == 0) {
        leaves_ns += link->stall_us * 1000;
    }
    slow->free_ns[peer] = leaves_ns;
    int64_t due_ns = leaves_ns;
    if (link->delay_us_max > 0) {
        due_ns += (int64_t)dp_rand_below(&slow->rand, (uint64_t)link->delay_us_max * 1000);
    }
    if (link->latency_us > 0) {
        due_ns += link->latency_us * 1000;
    }
    next.due_ns = not_before(slow, &next, due_ns);
    next.number = slow->sent++;
    if (slow->count == slow->capacity) {
        slow->capacity = slow->capacity == 0 ? 64 : 2 * slow->capacity;
        slow->flights = dp_realloc(slow->flights, slow->capacity, sizeof(*slow->flights));
    }
    slow->flights[slow->count++] = next;
    slow->bytes += message->length;
    pthread_cond_signal(&slow->changed);
}

// Takes the flight off the list and hands its message over, unless nobody is there any more.
static void land(struct slow *slow, size_t index)
{
    struct flight flight = slow->flights[index];
    slow->flights[index] = slow->flights[--slow->count];
    slow->bytes -= flight.message->length;
    bool overtakes = false;
    for (size_t i = 0; i < slow->count; i++) {
        overtakes |=
            slow->flights[i].peer == flight.peer && slow->flights[i].number < flight.number;
    }
    slow->overtaken += overtakes;
    slow->moved_ns = dp_clock_monotonic_ns();
    struct dp_transport *end = end_of(slow, flight.peer);
    if (flight.window != NULL && end != NULL) {
        memcpy(flight.window->memory + flight.offset, flight.message->bytes,
               flight.message->length);
        dp_window_land(flight.window, slow->base.rank, flight.put, flight.message->tag);
        end->peers[slow->base.rank].progress_ns = slow->moved_ns;
    }
    if (flight.window != NULL || end == NULL) {
        free(flight.message);
        dp_window_release(flight.window);
    } else {
        dp_transport_deliver(end, slow->base.rank, flight.message);
    }
    pthread_cond_broadcast(&slow->base.changed);
}

static bool is_earlier(const struct flight *a, const struct flight *b)
{
    return a->due_ns < b->due_ns || (a->due_ns == b->due_ns && a->number < b->number);
}

// The next flight among those whose peer lets more in (or, with `peer` >= 0, to that peer); the
// count when there is none.
static size_t next_of(struct slow *slow, int32_t peer)
{
    size_t best = slow->count;
    for (size_t i = 0; i < slow->count; i++) {
        const struct flight *flight = &slow->flights[i];
        struct dp_transport *end = end_of(slow, flight->peer);
        bool is_open = peer >= 0 ? flight->peer == peer
                                 : end == NULL || dp_transport_may_read(end, slow->base.rank);
        if (is_open && (best == slow->count || is_earlier(flight, &slow->flights[best]))) {
            best = i;
        }
    }
    return best;
}

// What was sent before the end of a connection still arrives.
static void land_all(struct slow *slow, int32_t peer)
{
    for (size_t next; (next = next_of(slow, peer)) < slow->count;) {
        land(slow, next);
    }
}

static void slow_progress(struct dp_transport *transport)
{
    struct slow *slow = slow_of(transport);
    pthread_mutex_lock(transport->mutex);
    while (!slow->stop && transport->aborted == DP_OK) {
        size_t next = next_of(slow, -1);
        int64_t now_ns = dp_clock_monotonic_ns();
        if (next < slow->count && slow->flights[next].due_ns <= now_ns) {
            land(slow, next);
            continue;
        }
        int64_t until_ns = next < slow->count ? slow->flights[next].due_ns : now_ns + DP_NS_PER_S;
        dp_cond_wait(&slow->changed, transport->mutex, until_ns);
    }
    pthread_mutex_unlock(transport->mutex);
}

static dp_status fail_stuck(const struct slow *slow, int32_t peer, uint64_t tag,
                            struct dp_error *err)
{
    char text[DP_TRANSPORT_TAG_TEXT_MAX];
    return dp_fail(err, DP_TIMEOUT, "rank %d took nothing for %.1f s, sending %s", peer,
                   (double)slow->base.blocked_ns / (double)DP_NS_PER_S,
                   dp_transport_tag_text(text, tag));
}

// Under the mutex: waits until no more is on its way than may be.
static dp_status wait_for_room(struct slow *slow, int32_t peer, uint64_t tag, struct dp_error *err)
{
    struct dp_transport *transport = &slow->base;
    int64_t start_ns = dp_clock_monotonic_ns();
    for (;;) {
        if (transport->aborted != DP_OK) {
            return dp_transport_fail_aborted(transport, err);
        }
        if (transport->peers[peer].closed) {
            return dp_transport_fail_closed(transport, peer, "send to", tag, err);
        }
        if (slow->bytes < DP_TRANSPORT_QUEUED_BYTES_MAX) {
            return DP_OK;
        }
        int64_t last_ns = slow->moved_ns > start_ns ? slow->moved_ns : start_ns;
        int64_t until_ns = last_ns + transport->blocked_ns;
        if (dp_clock_monotonic_ns() >= until_ns) {
            return fail_stuck(slow, peer, tag, err);
        }
        dp_transport_wait_begin(transport);
        dp_cond_wait(&transport->changed, transport->mutex, until_ns);
        dp_transport_wait_end(transport);
    }
}

static dp_status slow_send(struct dp_transport *transport, int32_t peer, uint64_t tag,
                           const struct iovec *parts, int count, size_t length,
                           struct dp_error *err)
{
    struct dp_message *message = dp_message_gather(tag, parts, count, length);
    pthread_mutex_lock(transport->mutex);
    dp_status status = wait_for_room(slow_of(transport), peer, tag, err);
    if (status == DP_OK) {
        take_off(slow_of(transport), (struct flight){.message = message, .peer = peer});
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
    dp_window_offer_add(&slow_of(transport)->hub->offers, window, transport->rank, peer);
    pthread_mutex_unlock(transport->mutex);
    return DP_OK;
}

static dp_status window_accept(struct dp_transport *transport, struct dp_window *window,
                               int32_t peer, const unsigned char card[DP_WINDOW_CARD_BYTES],
                               struct dp_error *err)
{
    (void)card;
    (void)err;
    pthread_mutex_lock(transport->mutex);
    window->outs[peer].row =
        dp_window_offer_take(&slow_of(transport)->hub->offers, window->key, peer, transport->rank);
    pthread_mutex_unlock(transport->mutex);
    return DP_OK;
}

static void window_forget(struct dp_transport *transport, struct dp_window *window, int32_t peer)
{
    (void)transport;
    dp_window_release(dp_steal(window->outs[peer].row));
}

static dp_status slow_put(struct dp_transport *transport, struct dp_window *window, int32_t peer,
                          size_t offset, const struct iovec *parts, int count, size_t length,
                          uint64_t number, uint64_t note, struct dp_error *err)
{
    struct flight flight = {.message = dp_message_gather(note, parts, count, length),
                            .peer = peer,
                            .window = window->outs[peer].row,
                            .offset = offset,
                            .put = number};
    pthread_mutex_lock(transport->mutex);
    dp_status status = wait_for_room(slow_of(transport), peer, window->key, err);
    if (status == DP_OK) {
        atomic_fetch_add(&flight.window->users, 1);
        take_off(slow_of(transport), flight);
    } else {
        free(flight.message);
    }
    pthread_mutex_unlock(transport->mutex);
    return status;
}

static void slow_resume(struct dp_transport *transport, int32_t peer)
{
    struct dp_transport *sender = end_of(slow_of(transport), peer);
    if (sender != NULL && peer != transport->rank) {
        pthread_cond_signal(&slow_of(sender)->changed);
    }
}

// The other end hears nothing more from this one.
static void part(struct slow *slow, int32_t peer, const char *reason)
{
    struct dp_transport *other = end_of(slow, peer);
    if (other != NULL && peer != slow->base.rank) {
        dp_transport_peer_closed(other, slow->base.rank, reason);
    }
}

static void part_from_all(struct slow *slow, const char *reason)
{
    for (int32_t i = 0; i < slow->base.world; i++) {
        part(slow, i, reason);
    }
}

static void slow_cut(struct dp_transport *transport, int32_t peer)
{
    struct slow *slow = slow_of(transport);
    pthread_mutex_lock(transport->mutex);
    land_all(slow, peer);
    part(slow, peer, "the connection broke");
    dp_transport_peer_closed(transport, peer, "the connection was closed here");
    pthread_mutex_unlock(transport->mutex);
}

static void slow_aborted(struct dp_transport *transport)
{
    struct slow *slow = slow_of(transport);
    pthread_mutex_lock(transport->mutex);
    for (int32_t i = 0; i < transport->world; i++) {
        land_all(slow, i);
    }
    part_from_all(slow, "it stopped");
    pthread_cond_signal(&slow->changed);
    pthread_mutex_unlock(transport->mutex);
}

static bool is_linked(const struct dp_transport *transport, int32_t peer)
{
    return peer != transport->rank;
}

static dp_status slow_close(struct dp_transport *transport, int64_t deadline_ns,
                            struct dp_error *err)
{
    struct slow *slow = slow_of(transport);
    pthread_mutex_lock(transport->mutex);
    dp_transport_wait_begin(transport);
    while (transport->aborted == DP_OK && slow->count > 0 &&
           dp_clock_monotonic_ns() < deadline_ns) {
        dp_cond_wait(&transport->changed, transport->mutex, deadline_ns);
    }
    size_t left = transport->aborted == DP_OK ? slow->count : 0;
    part_from_all(slow, "it closed the connection");
    dp_transport_wait_end(transport);
    pthread_mutex_unlock(transport->mutex);
    dp_status status = left > 0
                           ? dp_fail(err, DP_TIMEOUT, "%zu messages have not arrived in time", left)
                           : dp_transport_await_closed(transport, is_linked, deadline_ns, err);
    pthread_mutex_lock(transport->mutex);
    slow->stop = true;
    pthread_cond_signal(&slow->changed);
    pthread_mutex_unlock(transport->mutex);
    return status;
}

static void slow_free(struct dp_transport *transport)
{
    struct slow *slow = slow_of(transport);
    struct hub *hub = slow->hub;
    pthread_mutex_lock(&hub->mutex);
    part_from_all(slow, "it closed the connection");
    hub->ends[transport->rank] = NULL;
    bool is_last = --hub->alive == 0;
    pthread_mutex_unlock(&hub->mutex);
    for (size_t i = 0; i < slow->count; i++) {
        free(slow->flights[i].message);
        dp_window_release(slow->flights[i].window);
    }
    free(slow->flights);
    free(slow->free_ns);
    pthread_cond_destroy(&slow->changed);
    dp_transport_deinit(transport);
    free(slow);
    if (is_last) {
        dp_window_offers_drop(&hub->offers);
        pthread_mutex_destroy(&hub->mutex);
        free(hub);
    }
}

static const struct dp_transport_ops slow_ops = {
    .attributes = {.name = "slow",
                   .bandwidth = 1e9,
                   .latency_s = 1e-3,
                   .message_bytes_max = DP_TRANSPORT_BYTES_MAX},
    .send = slow_send,
    .window_offer = window_offer,
    .window_accept = window_accept,
    .window_forget = window_forget,
    .put = slow_put,
    .resume = slow_resume,
    .cut = slow_cut,
    .aborted = slow_aborted,
    .progress = slow_progress,
    .close = slow_close,
    .free = slow_free,
};

void slow_open(const struct slow_link *link, int32_t world, struct dp_transport **ret_ends)
{
    struct hub *hub = dp_alloc(1, sizeof *hub + (size_t)world * sizeof hub->ends[0]);
    pthread_mutex_init(&hub->mutex, NULL);
    hub->alive = world;
    for (int32_t i = 0; i < world; i++) {
        struct slow *slow = dp_new(struct slow);
        dp_transport_init(&slow->base, &slow_ops, i, world, &hub->mutex);
        slow->hub = hub;
        slow->link = *link;
        dp_rand_init(&slow->rand, dp_rand_mix(link->seed, (uint64_t)i));
        slow->free_ns = dp_new_array(int64_t, (size_t)world);
        dp_cond_init(&slow->changed);
        hub->ends[i] = &slow->base;
        ret_ends[i] = &slow->base;
    }
}

uint64_t slow_overtaken(const struct dp_transport *end)
{
    pthread_mutex_lock(end->mutex);
    uint64_t overtaken = ((const struct slow *)end)->overtaken;
    pthread_mutex_unlock(end->mutex);
    return overtaken;
}
