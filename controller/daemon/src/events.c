// WatchEvents: what came after an index, then what comes, from the store alone. A watcher costs a
// cursor and a bounded queue. One that does not take what its queue holds is dropped, with the
// index to go on from.
#include "events.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/log.h"
#include "streams.h"

#define EVENTS_AT_ONCE 64
#define LAG_MS 5000 // a full queue for so long is a reader that does not read
#define ALIVE_MS 10000

struct event_watch {
    uint64_t call, index;
    // Index behind each of the newest batches, as a ring: what still waits when it is dropped does
    // not get there.
    uint64_t sent[DP_EVENTS_QUEUED_MAX + 2];
    size_t sent_count;
    char job[DP_ID_MAX]; // "" = of everything
    int64_t sent_ns;     // when the last batch was
    int64_t full_ns;     // since when its queue has been full, 0 = it is not
    struct event_watch *next;
};

Dp__V1__Event *event_message(const struct dp_event_record *from, struct dp_arena *arena)
{
    Dp__V1__Event *event = arena_take(arena, sizeof(*event));
    dp__v1__event__init(event);
    event->id = from->id;
    event->time_ns = from->time_ns;
    event->job = (char *)from->job;
    event->node = (char *)from->node;
    event->kind = (char *)from->kind;
    event->message = (char *)from->message;
    return event;
}

// False when there is no room for it.
static bool send_batch(struct daemon *daemon, struct event_watch *watch,
                       const struct dp_event_record *events, size_t count, uint64_t index)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__EventBatch batch = DP__V1__EVENT_BATCH__INIT;
    batch.index = index;
    batch.events = arena_take(&arena, count * sizeof(void *));
    for (size_t i = 0; i < count; i++) {
        if (watch->job[0] == '\0' || strcmp(watch->job, events[i].job) == 0) {
            batch.events[batch.n_events++] = event_message(&events[i], &arena);
        }
    }
    int64_t now_ns = dp_clock_monotonic_ns();
    bool silent = batch.n_events == 0 && now_ns - watch->sent_ns < ALIVE_MS * DP_NS_PER_MS;
    if (!silent && call_send(daemon, watch->call, &batch.base) != DP_OK) {
        return false;
    }
    if (!silent) {
        watch->sent_ns = now_ns;
        watch->sent[++watch->sent_count % DP_ARRAY_LENGTH(watch->sent)] = index;
    }
    watch->index = index;
    return true;
}

static void drop(struct daemon *daemon, const struct event_watch *watch)
{
    char text[128];
    // One more may be on its way, and not arrive.
    size_t waiting = call_queued(daemon, watch->call) + 1;
    size_t newest = watch->sent_count > waiting ? watch->sent_count - waiting : 0;
    uint64_t index = watch->sent[newest % DP_ARRAY_LENGTH(watch->sent)];
    snprintf(text, sizeof(text), "lagged: resume from index %llu", (unsigned long long)index);
    dp_log_warn("events.lagged", "call=%llu index=%llu", (unsigned long long)watch->call,
                (unsigned long long)index);
    daemon->events_lagged++;
    call_fail(daemon, watch->call, DP_UNAVAILABLE, text);
}

// Whether it takes more now; one that did not for too long is dropped.
static bool has_room(struct daemon *daemon, struct event_watch *watch)
{
    int64_t now_ns = dp_clock_monotonic_ns();
    if (call_queued(daemon, watch->call) < DP_EVENTS_QUEUED_MAX) {
        watch->full_ns = 0;
        return true;
    }
    call_wake(daemon, watch->call);
    if (watch->full_ns == 0) {
        watch->full_ns = now_ns;
    } else if (now_ns - watch->full_ns > LAG_MS * DP_NS_PER_MS) {
        watch->full_ns = INT64_MAX; // once
        drop(daemon, watch);        // on_closed takes it away
    }
    return false;
}

// Watchers of one index share what is read for it.
struct shared {
    uint64_t after, index;
    struct dp_event_record *events;
    size_t count;
    bool loaded;
};

static bool load(struct daemon *daemon, uint64_t after, struct shared *shared)
{
    if (shared->loaded && shared->after == after) {
        return true;
    }
    free(shared->events);
    *shared = (struct shared){.after = after, .index = after};
    struct dp_error err = {0};
    if (dp_store_load_events(daemon->store, "", after, EVENTS_AT_ONCE, &shared->events,
                             &shared->count, &err) != DP_OK) {
        dp_log_error("events.unreadable", "reason=\"%s\"", err.message);
        return false;
    }
    if (shared->count > 0) {
        shared->index = shared->events[shared->count - 1].id;
    }
    shared->loaded = true;
    return true;
}

static void pump_one(struct daemon *daemon, struct event_watch *watch, struct shared *shared)
{
    while (has_room(daemon, watch) && load(daemon, watch->index, shared)) {
        size_t count = shared->count;
        if (!send_batch(daemon, watch, shared->events, count, shared->index) ||
            count < EVENTS_AT_ONCE) {
            return;
        }
    }
}

void events_pump(struct daemon *daemon)
{
    struct shared shared = {0};
    struct event_watch *next;
    for (struct event_watch *watch = daemon->event_watches; watch != NULL; watch = next) {
        next = watch->next;
        pump_one(daemon, watch, &shared);
    }
    free(shared.events);
}

static void on_message(void *context, uint64_t call, const void *bytes, size_t length)
{
    struct daemon *daemon = context;
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    const Dp__V1__WatchEventsRequest *request = service_unpack(
        daemon, call, &dp__v1__watch_events_request__descriptor, bytes, length, &arena);
    if (request == NULL || !stream_admit(daemon, call)) {
        return;
    }
    struct dp_error err = {0};
    DP_CLEANUP(view_deinit) struct job_view view = {0};
    uint64_t index = request->after, last = 0;
    dp_status status = DP_OK;
    if (request->job[0] != '\0') {
        status = view_find(daemon, request->job, &view, &err);
    }
    if (status == DP_OK) {
        status = dp_store_last_event(daemon->store, &last, &err);
    }
    if (status == DP_OK && index > last) {
        // It would wait for that number, and miss all that happens until then.
        status =
            dp_fail(&err, DP_CONFLICT,
                    "there is no event %llu, the newest is %llu: these are the events of "
                    "another database, or of a restored one; go on with --after %llu",
                    (unsigned long long)index, (unsigned long long)last, (unsigned long long)last);
    }
    index = request->from_now ? last : index;
    if (status != DP_OK) {
        call_fail_error(daemon, call, &err);
        return;
    }
    struct event_watch *watch = dp_new(struct event_watch);
    *watch = (struct event_watch){
        .call = call, .index = index, .sent = {index}, .next = daemon->event_watches};
    DP_COPY_TEXT(watch->job, view.job == NULL ? "" : view.job->id);
    daemon->event_watches = watch;
    struct shared shared = {0};
    pump_one(daemon, watch, &shared);
    free(shared.events);
}

static void on_writable(void *context, uint64_t call)
{
    struct daemon *daemon = context;
    struct shared shared = {0};
    for (struct event_watch *watch = daemon->event_watches; watch != NULL; watch = watch->next) {
        if (watch->call == call) {
            pump_one(daemon, watch, &shared);
            break;
        }
    }
    free(shared.events);
}

static void on_closed(void *context, uint64_t call, bool cancelled)
{
    (void)cancelled;
    struct daemon *daemon = context;
    stream_leave(daemon, call);
    struct event_watch *watch = NULL;
    LL_SEARCH_SCALAR(daemon->event_watches, watch, call, call);
    if (watch != NULL) {
        LL_DELETE(daemon->event_watches, watch);
        free(watch);
    }
}

const struct dp_rpc_handler events_handler = {
    .method = DP_METHOD_WATCH_EVENTS,
    .on_message = on_message,
    .on_writable = on_writable,
    .on_closed = on_closed,
};
