#include "queue.h"

#include <stdlib.h>
#include <string.h>

#include "audit.h"
#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/clock.h"

// A look at a long queue is shown again until the loop has done other things for so many times as
// long as it took: people who poll must not keep it from agents. A cheap one is always new.
#define CHEAP_NS (DP_NS_PER_S / 1000)
#define LOOKS_APART 20

static const struct queue_look *look(struct daemon *daemon)
{
    struct queue_look *last = &daemon->queue;
    int64_t now_ns = dp_clock_monotonic_ns();
    if (last->cost_ns > CHEAP_NS && now_ns - last->monotonic_ns < LOOKS_APART * last->cost_ns) {
        return last;
    }
    int64_t cpu_ns = dp_clock_thread_cpu_ns();
    queue_stop(daemon);
    last->places = dp_new_array(struct dp_queue_place, dp_core_queue_length(daemon->core));
    last->count = dp_core_queue_places(daemon->core, now_ns, last->places);
    last->monotonic_ns = now_ns;
    last->realtime_ns = dp_clock_realtime_ns();
    last->cost_ns = dp_clock_thread_cpu_ns() - cpu_ns;
    return last;
}

void queue_stop(struct daemon *daemon)
{
    free(daemon->queue.places);
    daemon->queue = (struct queue_look){0};
}

static Dp__V1__QueuePlace *make_place(const struct queue_look *look,
                                      const struct dp_queue_place *from, struct dp_arena *arena)
{
    Dp__V1__QueuePlace *place = arena_take(arena, sizeof(*place));
    dp__v1__queue_place__init(place);
    place->position = from->position;
    place->jobs_ahead = from->jobs_ahead;
    place->ranks_ahead = from->ranks_ahead;
    place->start_ns = from->start_in_ns < 0 ? 0 : look->realtime_ns + from->start_in_ns;
    return place;
}

// False when it is not to be listed.
static bool add_job(struct daemon *daemon, const struct queue_look *queue, size_t index,
                    const Dp__V1__ListJobsRequest *request, struct dp_arena *arena,
                    Dp__V1__Job **ret_job)
{
    const struct dp_queue_place *place = &queue->places[index];
    DP_CLEANUP(view_deinit) struct job_view view = {0};
    // What is not on disk yet is shown as it was.
    if (view_get(daemon, place->job, &view, NULL) != DP_OK || view.job->state != DP_STATE_QUEUED ||
        (request->of_user[0] != '\0' && strcmp(view.job->user, request->of_user) != 0)) {
        return false;
    }
    struct dp_job_record *row = arena_take(arena, sizeof(*row)); // the message borrows its texts
    *row = *view.job;
    struct job_view kept = {.job = row};
    *ret_job = message_job(&kept, JOB_BRIEF, arena);
    (*ret_job)->queue = make_place(queue, place, arena);
    return true;
}

void queue_list(struct daemon *daemon, uint64_t call, const Dp__V1__ListJobsRequest *request,
                uint32_t limit, struct dp_arena *arena)
{
    const struct queue_look *queue = look(daemon);
    Dp__V1__ListJobsResponse response = DP__V1__LIST_JOBS_RESPONSE__INIT;
    size_t most = queue->count < limit ? queue->count : limit;
    response.jobs = arena_take(arena, most * sizeof(void *));
    for (size_t i = 0; i < queue->count && response.n_jobs < limit; i++) {
        response.n_jobs +=
            add_job(daemon, queue, i, request, arena, &response.jobs[response.n_jobs]);
    }
    call_reply(daemon, call, &response.base);
}

void queue_show(struct daemon *daemon, uint64_t number, Dp__V1__Job *job, struct dp_arena *arena)
{
    const struct queue_look *queue = look(daemon);
    for (size_t i = 0; i < queue->count; i++) {
        if (queue->places[i].job == number) {
            job->queue = make_place(queue, &queue->places[i], arena);
        }
    }
}

static dp_status check(const Dp__V1__UpdateJobRequest *request, struct dp_error *err)
{
    bool holds = request->hold_case == DP__V1__UPDATE_JOB_REQUEST__HOLD_HELD;
    bool orders = request->order_case == DP__V1__UPDATE_JOB_REQUEST__ORDER_PRIORITY;
    if (!holds && !orders) {
        return dp_fail(err, DP_INVALID,
                       "nothing is to be changed: give \"held\" = true or false, or \"priority\"");
    }
    if (request->reason[0] != '\0' && !(holds && request->held)) {
        return dp_fail(err, DP_INVALID, "a reason is given of holding a job alone");
    }
    if (orders && (request->priority > DP_PRIORITY_MAX || request->priority < -DP_PRIORITY_MAX)) {
        return dp_fail(err, DP_INVALID, "priority is %d; it is from %d to %d", request->priority,
                       -DP_PRIORITY_MAX, DP_PRIORITY_MAX);
    }
    if (strlen(request->reason) >= sizeof(((struct dp_job_record *)NULL)->held_reason)) {
        return dp_fail(err, DP_INVALID, "the reason has more than %zu bytes",
                       sizeof(((struct dp_job_record *)NULL)->held_reason) - 1);
    }
    if (strlen(request->user) >= DP_NAME_MAX || strlen(request->request_id) >= DP_NAME_MAX) {
        return dp_fail(err, DP_INVALID, "request_id or user has more than %d bytes",
                       DP_NAME_MAX - 1);
    }
    return DP_OK;
}

// Under this id a change was carried out already: *ret_again when it was this job's.
static dp_status look_for_request(struct daemon *daemon, const char *request_id, const char *job,
                                  bool *ret_again, struct dp_error *err)
{
    char object[DP_NAME_MAX] = "";
    dp_status status = dp_store_find_change(daemon->store, "UpdateJob", request_id, object, err);
    *ret_again = strcmp(object, job) == 0;
    if (status == DP_OK && object[0] != '\0' && !*ret_again) {
        return dp_fail(err, DP_CONFLICT,
                       "request id \"%s\" was used to change %s: give this one an id of its own",
                       request_id, object);
    }
    return status;
}

static void step(struct daemon *daemon, uint64_t call, const Dp__V1__UpdateJobRequest *request,
                 const char *job, const struct dp_audit_record *audit)
{
    bool holds = request->hold_case == DP__V1__UPDATE_JOB_REQUEST__HOLD_HELD;
    struct dp_core_event event = {
        .kind = DP_EVENT_UPDATE,
        .audit = audit,
        .audit_reply = call,
        .update = {.reply = call,
                   .request_id = request->request_id,
                   .by = request->user,
                   .reason = request->reason,
                   .holds = holds && request->held,
                   .releases = holds && !request->held,
                   .sets_priority =
                       request->order_case == DP__V1__UPDATE_JOB_REQUEST__ORDER_PRIORITY,
                   .priority = request->priority},
    };
    DP_COPY_TEXT(event.update.job, job);
    daemon_expect(daemon, call, DP_METHOD_UPDATE_JOB);
    daemon_step(daemon, &event);
}

static void update_job(struct daemon *daemon, uint64_t call, const void *any,
                       struct dp_arena *arena)
{
    const Dp__V1__UpdateJobRequest *request = any;
    struct dp_error err = {0};
    DP_CLEANUP(view_deinit) struct job_view view = {0};
    struct dp_audit_record audit;
    bool again = false;
    audit_fill(daemon, call, DP_METHOD_UPDATE_JOB, request->user, request->id, &audit);
    DP_COPY_TEXT(audit.request_id, request->request_id);
    dp_status status = check(request, &err);
    if (status == DP_OK) {
        status = view_find(daemon, request->id, &view, &err);
    }
    if (status == DP_OK) {
        DP_COPY_TEXT(audit.object, view.job->id);
        status = look_for_request(daemon, request->request_id, view.job->id, &again, &err);
    }
    if (status == DP_OK && !again) {
        status = view_check_live(&view, &err);
    }
    if (status == DP_OK && !again) {
        step(daemon, call, request, view.job->id, &audit);
        return;
    }
    audit_keep(daemon, &audit, &err);
    if (status == DP_OK) {
        Dp__V1__Job *job = message_job(&view, JOB_LIVE, arena);
        message_complete(daemon, view.job->number, arena, job);
        call_reply(daemon, call, &job->base);
    } else {
        call_fail_error(daemon, call, &err);
    }
}

SERVICE_HANDLER(update_job, UPDATE_JOB)

const struct dp_rpc_handler update_handler = {.method = DP_METHOD_UPDATE_JOB,
                                              .on_message = on_update_job};
