// A link from one epoch to the next: made, up, failed, drained, made anew or given up.
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "dp/alloc.h"
#include "dp/clock.h"
#include "verbs.h"

#define BACKOFF_MS_MAX 5000
// rdma_rxe flushes no receives of a queue pair that nothing comes to any more. They have no memory,
// so it is enough that what came before has had time to be told.
#define RECEIVES_MS 50
#define STABLE_NS (10 * DP_NS_PER_S) // a link that has lasted so long has forgotten its failures

static void enter(struct verbs_link *link, verbs_state state, int64_t timeout_ms)
{
    link->state = state;
    link->timer_ns =
        timeout_ms > 0 ? dp_clock_monotonic_ns() + timeout_ms * DP_NS_PER_MS : INT64_MAX;
    pthread_cond_broadcast(&link->changed);
    dp_verbs_wake(link->verbs);
}

// The last that the peer hears.
static void say_end(struct verbs_link *link)
{
    if (link->is_cut) {
        shutdown(link->fd, SHUT_RDWR); // the dead say nothing
    } else {
        dp_verbs_control_send_bye(link, link->end_reason);
    }
}

static void start_draining(struct verbs_link *link)
{
    if (link->is_ending) {
        say_end(link);
    }
    dp_verbs_queues_stop(link);
    int64_t drain_ms = link->verbs->config.drain_ms;
    enter(link, VERBS_DRAINING, drain_ms < RECEIVES_MS ? drain_ms : RECEIVES_MS);
    link->drain_until_ns = dp_clock_monotonic_ns() + drain_ms * DP_NS_PER_MS;
}

static bool has_queues(const struct verbs_link *link)
{
    return link->state == VERBS_OFFERED || link->state == VERBS_READY || link->state == VERBS_UP ||
           link->state == VERBS_FLUSHING;
}

void dp_verbs_link_break(struct verbs_link *link, verbs_channel_kind kind, bool is_hopeless,
                         const char *reason)
{
    if (!has_queues(link)) {
        link->is_hopeless = link->is_hopeless || is_hopeless;
        return;
    }
    DP_COPY_TEXT(link->reason, reason);
    link->failed_kind = kind;
    link->is_reason_own = true;
    link->is_hopeless = is_hopeless;
    start_draining(link);
}

static void close_peer(struct verbs_link *link, const char *reason)
{
    link->is_ending = true;
    DP_COPY_TEXT(link->end_reason, reason);
    struct dp_transport *front = link->verbs->base.front;
    pthread_mutex_lock(front->mutex);
    dp_transport_peer_closed(&link->verbs->base, link->peer, reason);
    pthread_mutex_unlock(front->mutex);
}

void dp_verbs_link_end(struct verbs_link *link, const char *reason)
{
    if (link->state == VERBS_FLUSHING) {
        start_draining(link);
        return;
    }
    if (link->is_ending || link->state == VERBS_NONE) {
        return;
    }
    close_peer(link, reason);
    if (has_queues(link)) {
        start_draining(link);
        return;
    }
    say_end(link);
    if (link->state != VERBS_DRAINING) {
        enter(link, VERBS_CLOSED, 0);
    }
}

void dp_verbs_link_finish(struct verbs_link *link, const char *reason)
{
    if (link->state != VERBS_UP) {
        if (link->state != VERBS_FLUSHING) {
            dp_verbs_link_end(link, reason);
        }
        return;
    }
    close_peer(link, reason);
    enter(link, VERBS_FLUSHING, link->verbs->config.drain_ms);
    dp_verbs_link_mark(link);
}

bool dp_verbs_link_is_flushed(const struct verbs_link *link)
{
    const struct verbs_channel *channels = link->channels;
    return channels[VERBS_MESSAGES].head == channels[VERBS_MESSAGES].tail &&
           channels[VERBS_WINDOWS].head == channels[VERBS_WINDOWS].tail;
}

void dp_verbs_link_mark(struct verbs_link *link)
{
    for (int kind = 0; kind < VERBS_CHANNELS; kind++) {
        const struct verbs_channel *channel = &link->channels[kind];
        bool is_live = link->state == VERBS_UP || link->state == VERBS_FLUSHING;
        if (is_live && channel->head != channel->tail && channel->signalled_at < channel->tail) {
            dp_verbs_post_mark(link, (verbs_channel_kind)kind);
        }
    }
}

// How often the link has failed where it failed now.
static int count_attempt(struct verbs_link *link)
{
    if (link->failed_kind == VERBS_CHANNELS) {
        return ++link->attempts; // on the way up
    }
    struct verbs_channel *channel = &link->channels[link->failed_kind];
    uint64_t place = channel->acknowledged + channel->arrived;
    bool is_elsewhere = place != channel->failed_at;
    bool is_stable = link->up_ns != 0 && dp_clock_monotonic_ns() - link->up_ns > STABLE_NS;
    channel->attempts = is_elsewhere || is_stable ? 1 : channel->attempts + 1;
    channel->failed_at = place;
    return channel->attempts;
}

static void wait_for_next(struct verbs_link *link, int attempt)
{
    int64_t wait_ms = link->verbs->config.backoff_ms;
    for (int i = 1; i < attempt && wait_ms < BACKOFF_MS_MAX; i++) {
        wait_ms *= 2;
    }
    enter(link, VERBS_BACKOFF, wait_ms < BACKOFF_MS_MAX ? wait_ms : BACKOFF_MS_MAX);
}

static void give_up(struct verbs_link *link, int attempts)
{
    char reason[sizeof link->reason + 64];
    snprintf(reason, sizeof reason, "the link failed %d times at the same place: %s", attempts,
             link->reason);
    dp_verbs_link_end(link, attempts > 1 ? reason : link->reason);
}

// The queue pairs are idle: on to the next epoch, or the end.
static void after_draining(struct verbs_link *link)
{
    dp_verbs_queues_free(link);
    enter(link, VERBS_BACKOFF, 1);
    if (link->is_ending) {
        enter(link, VERBS_CLOSED, 0);
        dp_verbs_windows_drop(link, false);
        return;
    }
    if (link->is_hopeless || link->heard_bye) {
        give_up(link, 0);
        return;
    }
    int attempt = link->is_peers_wish ? 0 : count_attempt(link);
    if (attempt > link->verbs->config.attempts_max) {
        give_up(link, attempt);
        return;
    }
    link->is_peers_wish = false;
    link->up_ns = 0;
    link->epoch++;
    atomic_fetch_add(&link->verbs->reconnects, 1);
    wait_for_next(link, attempt);
}

void dp_verbs_link_begin(struct verbs_link *link)
{
    struct dp_error err = {0};
    if (link->peer_end.epoch > link->epoch) {
        link->epoch = (uint32_t)link->peer_end.epoch;
    }
    if (dp_verbs_queues_new(link, &err) != DP_OK) {
        dp_verbs_queues_free(link);
        DP_COPY_TEXT(link->reason, err.message);
        int attempt = ++link->attempts;
        if (attempt > link->verbs->config.attempts_max) {
            enter(link, VERBS_BACKOFF, 1);
            give_up(link, attempt);
        } else {
            wait_for_next(link, attempt);
        }
        return;
    }
    enter(link, VERBS_OFFERED, link->verbs->config.attempt_ms);
    dp_verbs_control_send_end(link);
}

static void connect_queues(struct verbs_link *link)
{
    struct dp_error err = {0};
    if (dp_verbs_queues_connect(link, &err) != DP_OK) {
        dp_verbs_link_break(link, VERBS_CHANNELS, false, err.message);
        return;
    }
    enter(link, VERBS_READY, link->verbs->config.attempt_ms);
    dp_verbs_control_send_ready(link);
}

static void go_up(struct verbs_link *link)
{
    enter(link, VERBS_UP, 0);
    link->attempts = 0;
    link->up_ns = dp_clock_monotonic_ns();
    for (int kind = 0; kind < VERBS_CHANNELS; kind++) {
        uint64_t arrived = link->peer_end.channels[kind].arrived;
        struct verbs_channel *channel = &link->channels[kind];
        uint64_t consumed = link->peer_end.channels[kind].consumed;
        if (consumed > channel->credit && consumed <= channel->sent) {
            channel->credit = consumed;
        }
        if (!dp_verbs_replay(link, (verbs_channel_kind)kind, arrived)) {
            dp_verbs_link_break(link, (verbs_channel_kind)kind, true,
                                "what had been acknowledged has not arrived");
            return;
        }
    }
    dp_verbs_consume(link, false);
}

// The peer is at a later epoch than this end.
static void follow(struct verbs_link *link)
{
    if (link->state == VERBS_OFFERED) {
        dp_verbs_queues_free(link); // nothing has been asked of them yet
        dp_verbs_link_begin(link);
        return;
    }
    dp_verbs_link_break(link, VERBS_CHANNELS, false, "the peer's end had failed");
    link->is_peers_wish = true;
}

void dp_verbs_link_step(struct verbs_link *link)
{
    bool is_due = dp_clock_monotonic_ns() >= link->timer_ns;
    bool is_behind = link->peer_end.epoch > link->epoch;
    switch (link->state) {
    case VERBS_OFFERED:
    case VERBS_READY:
    case VERBS_UP:
        if (is_behind) {
            follow(link);
        } else if (link->state == VERBS_OFFERED && link->peer_end.epoch == link->epoch) {
            connect_queues(link);
        } else if (link->state == VERBS_READY && link->peer_ready == link->epoch) {
            go_up(link);
        } else if (is_due) {
            dp_verbs_link_break(link, VERBS_CHANNELS, false, "it did not answer in time");
        }
        break;
    case VERBS_FLUSHING:
        if (is_due || dp_verbs_link_is_flushed(link)) {
            start_draining(link);
        } else {
            dp_verbs_link_mark(link); // for which there may have been no room until now
        }
        break;
    case VERBS_DRAINING:
        if (dp_verbs_queues_are_drained(link, is_due) ||
            dp_clock_monotonic_ns() >= link->drain_until_ns) {
            after_draining(link);
        } else if (is_due) {
            link->timer_ns = link->drain_until_ns;
        }
        break;
    case VERBS_BACKOFF:
        if (is_due || link->peer_end.epoch >= link->epoch) {
            dp_verbs_link_begin(link);
        }
        break;
    case VERBS_NONE:
    case VERBS_CLOSED:
        break;
    }
}
