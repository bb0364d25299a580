// WatchJob: the job, the steps behind it, then what changes. Steps come from the store, so that
// nobody sees what could still be lost, and a slow reader costs a cursor and no queue.
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "daemon.h"
#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/log.h"
#include "streams.h"

#define JOB_EVERY_MS 250
#define SETTLE_MS 3000 // for the last steps of an ended job to be on disk
#define STEPS_AT_ONCE 256

struct watch {
    uint64_t call, job;
    uint64_t step;      // newest one sent
    bool changed;       // something to look for
    dp_job_state shown; // state in the newest job sent
    int64_t shown_ns;
    int64_t ended_ns; // when the job was first seen to have ended, 0 = it has not
    struct watch *next;
};

void watch_changed(struct daemon *daemon, uint64_t job)
{
    for (struct watch *watch = daemon->watches; watch != NULL; watch = watch->next) {
        watch->changed = watch->changed || watch->job == job;
    }
}

static bool send_job(struct daemon *daemon, struct watch *watch, const struct job_view *view)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__JobEvent event = DP__V1__JOB_EVENT__INIT;
    event.event_case = DP__V1__JOB_EVENT__EVENT_JOB;
    event.job = message_job(view, JOB_LIVE, &arena);
    watch->shown = view->job->state;
    watch->shown_ns = dp_clock_monotonic_ns();
    return call_send(daemon, watch->call, &event.base) == DP_OK;
}

static bool send_step(struct daemon *daemon, struct watch *watch, const struct dp_step_record *step)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__JobEvent event = DP__V1__JOB_EVENT__INIT;
    event.event_case = DP__V1__JOB_EVENT__EVENT_STEP;
    event.step = message_step(step, &arena);
    if (call_send(daemon, watch->call, &event.base) != DP_OK) {
        return false;
    }
    watch->step = step->step;
    return true;
}

// False while there are more to send.
static bool send_steps(struct daemon *daemon, struct watch *watch)
{
    DP_AUTO_FREE struct dp_step_record *steps = NULL;
    size_t count = 0;
    struct dp_error err = {0};
    if (dp_store_load_steps(daemon->store, watch->job, watch->step, 1, STEPS_AT_ONCE, &steps,
                            &count, &err) != DP_OK) {
        dp_log_error("watch.unreadable", "reason=\"%s\"", err.message);
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        if (!send_step(daemon, watch, &steps[i])) {
            return false;
        }
    }
    return count < STEPS_AT_ONCE;
}

static void pump_one(struct daemon *daemon, struct watch *watch)
{
    if (!watch->changed || call_queued(daemon, watch->call) > DP_WATCH_QUEUED_MAX) {
        return;
    }
    DP_CLEANUP(view_deinit) struct job_view view = {0};
    struct dp_error err = {0};
    if (view_get(daemon, watch->job, &view, &err) != DP_OK) {
        call_fail_error(daemon, watch->call, &err);
        return;
    }
    int64_t age_ns = dp_clock_monotonic_ns() - watch->shown_ns;
    bool state_changed = view.job->state != watch->shown;
    bool ended = dp_job_state_ended(view.job->state);
    bool due = age_ns >= JOB_EVERY_MS * DP_NS_PER_MS;
    if (!ended && (state_changed || due)) {
        send_job(daemon, watch, &view);
    }
    bool all_sent = send_steps(daemon, watch);
    // What was not sent for want of time is looked at again by the next tick.
    watch->changed = !all_sent || ended || !(state_changed || due);
    // A job that the core has let go has all of its steps on disk, if they ever get there.
    // One that keeps slots of a silent node stays in the core; what is missing then was lost.
    watch->ended_ns = ended && watch->ended_ns == 0 ? dp_clock_monotonic_ns() : watch->ended_ns;
    bool late = ended && dp_clock_monotonic_ns() - watch->ended_ns > SETTLE_MS * DP_NS_PER_MS;
    bool all_stored = !view.in_core || late || watch->step >= view.job->step;
    if (ended && all_sent && all_stored) {
        send_job(daemon, watch, &view);
        call_finish(daemon, watch->call);
        watch->changed = false;
    }
}

void watch_pump(struct daemon *daemon)
{
    for (struct watch *watch = daemon->watches; watch != NULL; watch = watch->next) {
        pump_one(daemon, watch);
    }
}

static void on_message(void *context, uint64_t call, const void *bytes, size_t length)
{
    struct daemon *daemon = context;
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    const Dp__V1__WatchJobRequest *request =
        service_unpack(daemon, call, &dp__v1__watch_job_request__descriptor, bytes, length, &arena);
    if (request == NULL || !stream_admit(daemon, call)) {
        return;
    }
    struct dp_error err = {0};
    DP_CLEANUP(view_deinit) struct job_view view = {0};
    if (view_find(daemon, request->id, &view, &err) != DP_OK) {
        call_fail_error(daemon, call, &err);
        return;
    }
    struct watch *watch = dp_new(struct watch);
    *watch = (struct watch){
        .call = call,
        .job = view.job->number,
        .step = request->after_step,
        .changed = true,
        .shown = view.job->state,
        .next = daemon->watches,
    };
    daemon->watches = watch;
    if (!dp_job_state_ended(view.job->state)) {
        send_job(daemon, watch, &view);
    }
    pump_one(daemon, watch);
}

static void on_writable(void *context, uint64_t call)
{
    (void)call;
    watch_pump(context);
}

static void on_closed(void *context, uint64_t call, bool cancelled)
{
    (void)cancelled;
    struct daemon *daemon = context;
    stream_leave(daemon, call);
    struct watch *watch = NULL;
    LL_SEARCH_SCALAR(daemon->watches, watch, call, call);
    if (watch != NULL) {
        LL_DELETE(daemon->watches, watch);
        free(watch);
    }
}

const struct dp_rpc_handler watch_handler = {
    .method = DP_METHOD_WATCH_JOB,
    .on_message = on_message,
    .on_writable = on_writable,
    .on_closed = on_closed,
};
