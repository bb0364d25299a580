#include "verbs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/clock.h"
#include "dp/cond.h"
#include "stream.h"

// What epoll tells of, beside the sockets of peers.
#define EVENT_WAKE (UINT64_MAX)
#define EVENT_COMPLETION (UINT64_MAX - 1)
#define EVENT_ASYNC (UINT64_MAX - 2)

void dp_verbs_wake(struct verbs *verbs)
{
    uint64_t one = 1;
    ssize_t ignored = write(verbs->wake_fd, &one, sizeof one);
    (void)ignored; // a full counter wakes as well
}

// Completions raise an event for each queue that asked for one: ask again before looking.
static void take_completion_events(struct verbs *verbs)
{
    const struct dp_verbs_library *library = verbs->device.library;
    struct ibv_cq *cq;
    void *context;
    while (library->get_cq_event(verbs->device.events, &cq, &context) == 0) {
        struct verbs_link *link = context;
        library->ack_cq_events(cq, 1);
        library->req_notify_cq(cq, 0);
        atomic_store(&link->has_completions, true);
    }
}

static void break_queue(struct verbs *verbs, const struct ibv_qp *qp, const char *reason)
{
    for (int32_t i = 0; i < verbs->base.world; i++) {
        struct verbs_link *link = &verbs->links[i];
        if (link->verbs == NULL) {
            continue;
        }
        pthread_mutex_lock(&link->lock);
        for (int kind = 0; kind < VERBS_CHANNELS; kind++) {
            if (qp == NULL || link->channels[kind].qp == qp) {
                dp_verbs_link_break(link, (verbs_channel_kind)kind, false, reason);
                break;
            }
        }
        pthread_mutex_unlock(&link->lock);
    }
}

static void end_all(struct verbs *verbs, void (*end)(struct verbs_link *link, const char *reason),
                    const char *reason)
{
    for (int32_t i = 0; i < verbs->base.world; i++) {
        struct verbs_link *link = &verbs->links[i];
        if (link->verbs != NULL) {
            pthread_mutex_lock(&link->lock);
            end(link, reason);
            pthread_mutex_unlock(&link->lock);
        }
    }
}

static void take_async_events(struct verbs *verbs)
{
    const struct dp_verbs_library *library = verbs->device.library;
    struct ibv_async_event event;
    while (library->get_async_event(verbs->device.context, &event) == 0) {
        switch (event.event_type) {
        case IBV_EVENT_QP_FATAL:
            break_queue(verbs, event.element.qp, "the device gave up the queue pair");
            break;
        case IBV_EVENT_QP_REQ_ERR:
            break_queue(verbs, event.element.qp, "the peer sent an invalid request");
            break;
        case IBV_EVENT_QP_ACCESS_ERR:
            break_queue(verbs, event.element.qp, "the peer wrote to memory that is not offered");
            break;
        case IBV_EVENT_CQ_ERR:
            end_all(verbs, dp_verbs_link_end,
                    "the device lost completions (completion queue error)");
            break;
        case IBV_EVENT_DEVICE_FATAL:
            end_all(verbs, dp_verbs_link_end, "the device failed (fatal error)");
            break;
        case IBV_EVENT_GID_CHANGE:
        case IBV_EVENT_LID_CHANGE:
            break_queue(verbs, NULL, "the port's address changed");
            break;
        default:
            break; // of a port that went down, the requests tell when that lasts
        }
        library->ack_async_event(&event);
    }
}

static void take_events(struct verbs *verbs, const struct epoll_event *events, int count)
{
    for (int i = 0; i < count; i++) {
        uint64_t what = events[i].data.u64;
        if (what == EVENT_WAKE) {
            uint64_t ignored_count;
            ssize_t ignored = read(verbs->wake_fd, &ignored_count, sizeof ignored_count);
            (void)ignored;
        } else if (what == EVENT_COMPLETION) {
            take_completion_events(verbs);
        } else if (what == EVENT_ASYNC) {
            take_async_events(verbs);
        } else {
            struct verbs_link *link = &verbs->links[what];
            pthread_mutex_lock(&link->lock);
            dp_verbs_control_turn(link, events[i].events);
            pthread_mutex_unlock(&link->lock);
        }
    }
}

// One link's share of a turn; true when there is more to do at once.
static bool serve(struct verbs_link *link)
{
    bool is_busy = false;
    if (atomic_exchange(&link->has_completions, false)) {
        is_busy = dp_verbs_poll(link);
        atomic_store(&link->has_completions, is_busy);
        dp_verbs_consume(link, false);
    } else if (atomic_exchange(&link->resume_wanted, false)) {
        dp_verbs_consume(link, false);
    }
    dp_verbs_link_step(link);
    return is_busy;
}

// Waits for something to happen, until then at the latest, and deals with it.
static void turn(struct verbs *verbs, int64_t until_ns)
{
    int64_t now_ns = dp_clock_monotonic_ns();
    bool is_busy = false;
    for (int32_t i = 0; i < verbs->base.world; i++) {
        struct verbs_link *link = &verbs->links[i];
        if (link->verbs == NULL) {
            continue;
        }
        pthread_mutex_lock(&link->lock);
        is_busy = serve(link) || is_busy;
        until_ns = link->timer_ns < until_ns ? link->timer_ns : until_ns;
        pthread_mutex_unlock(&link->lock);
    }
    int64_t left_ms = until_ns <= now_ns ? 0 : (until_ns - now_ns) / DP_NS_PER_MS + 1;
    struct epoll_event events[64];
    int count = epoll_wait(verbs->epoll_fd, events, 64,
                           is_busy ? 0 : (int)(left_ms < 60000 ? left_ms : 60000));
    take_events(verbs, events, count);
}

static bool all_in(struct verbs *verbs, verbs_state state)
{
    for (int32_t i = 0; i < verbs->base.world; i++) {
        struct verbs_link *link = &verbs->links[i];
        if (link->verbs != NULL) {
            pthread_mutex_lock(&link->lock);
            bool is_in = link->state == state;
            pthread_mutex_unlock(&link->lock);
            if (!is_in) {
                return false;
            }
        }
    }
    return true;
}

// The progress thread breaks the links.
static void verbs_aborted(struct dp_transport *transport)
{
    struct verbs *verbs = verbs_of(transport);
    dp_tcp_ops.aborted(verbs->tcp);
    for (int32_t i = 0; i < transport->world && verbs->connected; i++) {
        struct verbs_link *link = &verbs->links[i];
        if (link->verbs != NULL) {
            pthread_mutex_lock(&link->lock);
            pthread_cond_broadcast(&link->changed);
            pthread_mutex_unlock(&link->lock);
        }
    }
    dp_verbs_wake(verbs);
}

static void verbs_progress(struct dp_transport *transport)
{
    struct verbs *verbs = verbs_of(transport);
    if (!verbs->connected) {
        return;
    }
    while (!verbs->stop && transport->front->aborted == DP_OK) {
        turn(verbs, INT64_MAX);
    }
    if (transport->front->aborted != DP_OK) {
        verbs_aborted(transport); // when it was the reader that gave up
    }
    // Nobody writes here any more once this has returned, and nothing is read from here.
    const char *reason = transport->front->aborted != DP_OK ? "it stopped" : "it was closed";
    end_all(verbs, dp_verbs_link_finish, reason);
    while (!all_in(verbs, VERBS_CLOSED)) {
        turn(verbs, INT64_MAX);
    }
}

static void verbs_resume(struct dp_transport *transport, int32_t peer)
{
    struct verbs *verbs = verbs_of(transport);
    atomic_store(&verbs->links[peer].resume_wanted, true);
    dp_verbs_wake(verbs);
}

static void verbs_cut(struct dp_transport *transport, int32_t peer)
{
    struct verbs_link *link = &verbs_of(transport)->links[peer];
    if (link->verbs != NULL) {
        pthread_mutex_lock(&link->lock);
        link->is_cut = true;
        dp_verbs_link_finish(link, "the connection broke");
        pthread_mutex_unlock(&link->lock);
    }
}

// Waits until the device has sent what was posted.
static dp_status flush_link(struct verbs_link *link, int64_t deadline_ns, struct dp_error *err)
{
    struct dp_transport *front = link->verbs->base.front;
    dp_status status = DP_OK;
    pthread_mutex_lock(&link->lock);
    for (;;) {
        bool is_idle = dp_verbs_link_is_flushed(link);
        dp_verbs_link_mark(link);
        if (is_idle || link->is_ending || link->state == VERBS_CLOSED || link->heard_bye ||
            front->aborted != DP_OK) {
            break;
        }
        if (dp_clock_monotonic_ns() >= deadline_ns) {
            status = dp_fail(err, DP_TIMEOUT, "what was sent to rank %d has not left in time",
                             link->peer);
            break;
        }
        dp_cond_wait(&link->changed, &link->lock, deadline_ns);
    }
    pthread_mutex_unlock(&link->lock);
    return status;
}

static bool is_linked(const struct dp_transport *transport, int32_t peer)
{
    return ((const struct verbs *)transport)->links[peer].verbs != NULL;
}

static dp_status say_goodbye(struct verbs *verbs, int64_t deadline_ns, struct dp_error *err)
{
    struct dp_transport *transport = &verbs->base, *front = transport->front;
    dp_status first = DP_OK;
    for (int32_t i = 0; i < transport->world; i++) {
        struct verbs_link *link = &verbs->links[i];
        if (link->verbs != NULL) {
            dp_status status = flush_link(link, deadline_ns, first == DP_OK ? err : NULL);
            link->is_cut_short = status != DP_OK;
            first = first == DP_OK ? status : first;
        }
    }
    for (int32_t i = 0; i < transport->world; i++) {
        struct verbs_link *link = &verbs->links[i];
        if (link->verbs != NULL) {
            pthread_mutex_lock(&link->lock);
            // Else it is said when that is over; by the progress thread, after an abort.
            if (!link->is_ending && front->aborted == DP_OK) {
                dp_verbs_control_send_bye(
                    link, link->is_cut_short
                              ? "it closed the connection before all that it sent had left"
                              : "it closed the connection");
            }
            pthread_mutex_unlock(&link->lock);
        }
    }
    return first == DP_OK ? dp_transport_await_closed(transport, is_linked, deadline_ns, err)
                          : first;
}

static dp_status verbs_close(struct dp_transport *transport, int64_t deadline_ns,
                             struct dp_error *err)
{
    struct verbs *verbs = verbs_of(transport);
    dp_status status = verbs->connected ? say_goodbye(verbs, deadline_ns, err) : DP_OK;
    verbs->stop = true;
    dp_verbs_wake(verbs);
    return status;
}

static void verbs_free(struct dp_transport *transport)
{
    struct verbs *verbs = verbs_of(transport);
    // Queue pairs, then registrations, completion queues, and the domain.
    for (int32_t i = 0; i < transport->world; i++) {
        dp_verbs_link_deinit(&verbs->links[i]);
    }
    dp_verbs_regions_deinit(&verbs->regions);
    dp_verbs_device_close(&verbs->device);
    dp_transport_free(verbs->tcp);
    if (verbs->epoll_fd >= 0) {
        close(verbs->epoll_fd);
    }
    if (verbs->wake_fd >= 0) {
        close(verbs->wake_fd);
    }
    free(verbs->links);
    dp_transport_deinit(transport);
    free(verbs);
}

// The sockets that the ranks have met by become this row's.
static void take_sockets(struct verbs *verbs, const char *const *addresses)
{
    struct stream *stream = stream_of(verbs->tcp);
    pthread_mutex_lock(&stream->out_mutex);
    for (int32_t i = 0; i < verbs->base.world; i++) {
        if (i != verbs->base.rank && addresses[i] != NULL) {
            struct verbs_link *link = &verbs->links[i];
            epoll_ctl(stream->epoll_fd, EPOLL_CTL_DEL, stream->links[i].fd, NULL);
            link->fd = stream->links[i].fd;
            stream->links[i].fd = -1;
        }
    }
    pthread_mutex_unlock(&stream->out_mutex);
}

static dp_status check_up(struct verbs *verbs, int64_t deadline_ns, bool *ret_is_up,
                          struct dp_error *err)
{
    struct dp_transport *front = verbs->base.front;
    dp_status status = DP_OK;
    *ret_is_up = true;
    pthread_mutex_lock(front->mutex);
    if (front->aborted != DP_OK) {
        status = dp_transport_fail_aborted(&verbs->base, err);
    }
    pthread_mutex_unlock(front->mutex);
    for (int32_t i = 0; i < verbs->base.world && status == DP_OK; i++) {
        struct verbs_link *link = &verbs->links[i];
        if (link->verbs == NULL) {
            continue;
        }
        pthread_mutex_lock(&link->lock);
        *ret_is_up = *ret_is_up && link->state == VERBS_UP;
        if (link->is_ending || link->heard_bye) {
            pthread_mutex_lock(front->mutex);
            status = dp_fail(err, DP_UNAVAILABLE, "no verbs link to rank %d: %s", i,
                             front->peers[i].reason);
            pthread_mutex_unlock(front->mutex);
        } else if (link->state != VERBS_UP && dp_clock_monotonic_ns() >= deadline_ns) {
            status = dp_fail(err, DP_TIMEOUT, "no verbs link to rank %d in time%s%s", i,
                             link->reason[0] != '\0' ? ": " : "", link->reason);
        }
        pthread_mutex_unlock(&link->lock);
    }
    return status;
}

static dp_status verbs_connect(struct dp_transport *transport, const char *const *addresses,
                               int64_t deadline_ns, struct dp_error *err)
{
    struct verbs *verbs = verbs_of(transport);
    dp_transport_join(verbs->tcp, transport->front);
    dp_status status = verbs->tcp->ops->connect(verbs->tcp, addresses, deadline_ns, err);
    if (status != DP_OK) {
        return status;
    }
    for (int32_t i = 0; i < transport->world && status == DP_OK; i++) {
        if (i != transport->rank && addresses[i] != NULL) {
            status = dp_verbs_link_init(verbs, &verbs->links[i], i, err);
        }
    }
    take_sockets(verbs, addresses);
    if (status != DP_OK) {
        return status;
    }
    for (int32_t i = 0; i < transport->world; i++) {
        struct verbs_link *link = &verbs->links[i];
        if (link->verbs != NULL) {
            pthread_mutex_lock(&link->lock);
            link->epoch = 1;
            dp_verbs_control_start(link);
            dp_verbs_link_begin(link);
            pthread_mutex_unlock(&link->lock);
        }
    }
    verbs->connected = true; // from here on an abort reaches the links
    bool is_up = false;
    for (;;) {
        status = check_up(verbs, deadline_ns, &is_up, err);
        if (status != DP_OK || is_up) {
            return status;
        }
        turn(verbs, deadline_ns);
    }
}

static const struct dp_transport_ops verbs_ops = {
    .attributes = {.name = "verbs",
                   .bandwidth = 1e10,
                   .latency_s = 5e-6,
                   .message_bytes_max = DP_TRANSPORT_BYTES_MAX,
                   .is_one_sided = true,
                   .has_registered_memory = true},
    .connect = verbs_connect,
    .send = dp_verbs_send,
    .resume = verbs_resume,
    .cut = verbs_cut,
    .aborted = verbs_aborted,
    .progress = verbs_progress,
    .window_offer = dp_verbs_window_offer,
    .window_accept = dp_verbs_window_accept,
    .window_forget = dp_verbs_window_forget,
    .put = dp_verbs_put,
    .close = verbs_close,
    .free = verbs_free,
};

static struct dp_verbs_config with_defaults(const struct dp_verbs_config *config)
{
    struct dp_verbs_config filled = config != NULL ? *config : (struct dp_verbs_config){0};
    filled.depth = filled.depth != 0 ? filled.depth : 64;
    filled.slot_bytes = filled.slot_bytes != 0 ? filled.slot_bytes : 16384;
    filled.staging_bytes = filled.staging_bytes != 0 ? filled.staging_bytes : 512 << 10;
    filled.timeout = filled.timeout != 0 ? filled.timeout : 17;
    filled.attempts_max = filled.attempts_max != 0 ? filled.attempts_max : 5;
    filled.backoff_ms = filled.backoff_ms != 0 ? filled.backoff_ms : 50;
    filled.attempt_ms = filled.attempt_ms != 0 ? filled.attempt_ms : 10000;
    filled.drain_ms = filled.drain_ms != 0 ? filled.drain_ms : 1000;
    return filled;
}

static dp_status check_config(const struct dp_verbs_config *config, struct dp_error *err)
{
    uint32_t depth = config->depth;
    if (depth < 4 || depth > 4096 || (depth & (depth - 1)) != 0) {
        return dp_fail(err, DP_INVALID, "verbs: a depth of %u is not a power of two from 4 to 4096",
                       depth);
    }
    if (config->slot_bytes > 1 << 20 || config->staging_bytes > 1 << 28 ||
        config->staging_bytes < 4 * (config->slot_bytes + ENTRY_BYTES)) {
        return dp_fail(err, DP_INVALID,
                       "verbs: slots of %zu bytes and staging of %zu: slots have up to 1 MiB, "
                       "staging at least four times as much and up to 256 MiB",
                       config->slot_bytes, config->staging_bytes);
    }
    return DP_OK;
}

static dp_status add_event(struct verbs *verbs, int fd, uint64_t what, struct dp_error *err)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = what};
    return epoll_ctl(verbs->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0
               ? DP_OK
               : dp_fail_errno(err, errno, "cannot watch a descriptor");
}

static dp_status start(struct verbs *verbs, const char *host, uint64_t token, char *ret_address,
                       struct dp_error *err)
{
    dp_status status = dp_transport_tcp_listen(host, verbs->base.rank, verbs->base.world, token,
                                               ret_address, &verbs->tcp, err);
    if (status == DP_OK) {
        status = dp_verbs_device_open(&verbs->config, &verbs->device, err);
    }
    if (status != DP_OK) {
        return status;
    }
    dp_verbs_regions_init(&verbs->regions, verbs->device.library, verbs->device.pd,
                          verbs->device.attributes.max_mr_size);
    verbs->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    verbs->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (verbs->epoll_fd < 0 || verbs->wake_fd < 0) {
        return dp_fail_errno(err, errno, "cannot make an epoll instance");
    }
    status = add_event(verbs, verbs->wake_fd, EVENT_WAKE, err);
    if (status == DP_OK) {
        status = add_event(verbs, verbs->device.events->fd, EVENT_COMPLETION, err);
    }
    if (status == DP_OK) {
        status = add_event(verbs, verbs->device.context->async_fd, EVENT_ASYNC, err);
    }
    return status;
}

dp_status dp_transport_verbs_listen(const char *host, int32_t rank, int32_t world, uint64_t token,
                                    const struct dp_verbs_config *config, char *ret_address,
                                    struct dp_transport **ret_transport, struct dp_error *err)
{
    struct dp_verbs_config filled = with_defaults(config);
    dp_status status = dp_transport_check_world(rank, world, err);
    if (status == DP_OK) {
        status = check_config(&filled, err);
    }
    if (status != DP_OK) {
        return status;
    }
    struct verbs *verbs = dp_new(struct verbs);
    dp_transport_init(&verbs->base, &verbs_ops, rank, world, NULL);
    verbs->config = filled;
    verbs->epoll_fd = verbs->wake_fd = -1;
    verbs->links = dp_new_array(struct verbs_link, (size_t)world);
    for (int32_t i = 0; i < world; i++) {
        verbs->links[i].fd = -1;
    }
    dp_rand_init(&verbs->rand, dp_rand_mix((uint64_t)dp_clock_realtime_ns(), (uint64_t)rank));
    status = start(verbs, host, token, ret_address, err);
    if (status != DP_OK) {
        verbs_free(&verbs->base);
        return status;
    }
    *ret_transport = &verbs->base;
    return DP_OK;
}

void dp_verbs_stats(struct dp_transport *transport, struct dp_verbs_stats *ret_stats)
{
    *ret_stats = (struct dp_verbs_stats){0};
    if (transport->ops != &verbs_ops) {
        return;
    }
    struct verbs *verbs = verbs_of(transport);
    *ret_stats = (struct dp_verbs_stats){.reconnects = verbs->reconnects,
                                         .late = verbs->late,
                                         .duplicates = verbs->duplicates,
                                         .grants = verbs->grants,
                                         .requests = verbs->requests,
                                         .signalled = verbs->signalled,
                                         .zero_copy = verbs->zero_copy,
                                         .in_flight_peak = verbs->in_flight_peak};
    uint32_t least = 0;
    for (int32_t i = 0; i < transport->world; i++) {
        struct verbs_link *link = &verbs->links[i];
        if (link->verbs != NULL) {
            pthread_mutex_lock(&link->lock);
            least = least == 0 || link->mtu < least ? link->mtu : least;
            pthread_mutex_unlock(&link->lock);
        }
    }
    ret_stats->mtu = least == 0 ? 0 : 128u << least;
}
