// What people ask: one handler for each unary method.
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "audit.h"
#include "calibrations.h"
#include "daemon.h"
#include "decisions.h"
#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/spec.h"
#include "events.h"
#include "queue.h"

#define LIST_DEFAULT 100
#define HARDWARE_BYTES_MAX (DP_MESSAGE_BYTES_MAX / 2) // of all nodes in one answer

void *service_unpack(struct daemon *daemon, uint64_t call, const ProtobufCMessageDescriptor *type,
                     const void *bytes, size_t length, struct dp_arena *arena)
{
    struct dp_error err = {0};
    ProtobufCMessage *message = NULL;
    if (dp_wire_unpack(type, bytes, length, arena, &message, &err) != DP_OK) {
        call_fail_error(daemon, call, &err);
        return NULL;
    }
    return message;
}

static void get_version(struct daemon *daemon, uint64_t call, const void *any,
                        struct dp_arena *arena)
{
    (void)any;
    (void)arena;
    Dp__V1__VersionInfo info = DP__V1__VERSION_INFO__INIT;
    info.version = (char *)DP_VERSION;
    info.protocol = DP_PROTOCOL_VERSION;
    info.instance = daemon->instance;
    info.started_ns = daemon->started_ns;
    call_reply(daemon, call, &info.base);
}

// Names that a checked job file has are known.
static dp_recovery_policy recovery_of(const struct dp_job_spec *spec)
{
    static const dp_recovery_policy policies[] = {
        [DP_RECOVERY_AUTO] = DP_JOB_RECOVERY_AUTO,
        [DP_RECOVERY_CHECKPOINT] = DP_JOB_RECOVERY_CHECKPOINT,
        [DP_RECOVERY_OFF] = DP_JOB_RECOVERY_OFF,
    };
    dp_recovery recovery = DP_RECOVERY_AUTO;
    struct dp_error err = {0};
    dp_recovery_parse(spec->recovery.policy, &recovery, &err);
    return policies[recovery];
}

static dp_adapt_policy adapt_of(const struct dp_job_spec *spec)
{
    static const dp_adapt_policy policies[] = {
        [DP_STRAGGLERS_ADVISE] = DP_JOB_ADAPT_ADVISE,
        [DP_STRAGGLERS_OFF] = DP_JOB_ADAPT_OFF,
        [DP_STRAGGLERS_AUTO] = DP_JOB_ADAPT_AUTO,
    };
    dp_straggler_policy policy = DP_STRAGGLERS_ADVISE;
    struct dp_error err = {0};
    dp_straggler_policy_parse(spec->straggler.policy, &policy, &err);
    return policies[policy];
}

static void submit(struct daemon *daemon, uint64_t call, const Dp__V1__SubmitJobRequest *request,
                   const struct dp_job_spec *spec)
{
    struct dp_audit_record audit;
    audit_fill(daemon, call, DP_METHOD_SUBMIT_JOB, request->user, "", &audit);
    DP_COPY_TEXT(audit.request_id, request->request_id);
    struct dp_core_event event = {.kind = DP_EVENT_SUBMIT, .audit = &audit, .audit_reply = call};
    struct dp_submit *job = &event.submit;
    DP_CHECK(getrandom(&job->token, sizeof(job->token), 0) == sizeof(job->token));
    job->reply = call;
    job->request_id = request->request_id;
    job->name = spec->name;
    job->device = dp_device_kind_text(spec->resources.device);
    job->job_toml = request->job_toml.data;
    job->job_toml_length = request->job_toml.len;
    job->ranks_wanted = dp_job_spec_ranks(spec, &job->ranks_fixed);
    job->needs_profile = spec->resources.device != DP_DEVICE_SIM;
    job->recovery = recovery_of(spec);
    job->adapt = adapt_of(spec);
    job->steps_total = (uint64_t)spec->train.steps;
    job->tokens_per_step = (uint64_t)spec->train.global_batch * (uint64_t)spec->train.sequence;
    job->straggler_enter = spec->straggler.threshold;
    job->user = request->user;
    job->check_index = request->check_index;
    job->priority = spec->queue.priority;
    job->preemptible = spec->queue.preemptible != 0;
    job->retry_max = (uint32_t)spec->retry.max;
    job->retry_backoff_s = (uint32_t)spec->retry.backoff_s;
    job->no_progress_max = (uint32_t)spec->retry.no_progress;
    daemon_expect(daemon, call, DP_METHOD_SUBMIT_JOB);
    daemon_step(daemon, &event);
}

static void reply_view(struct daemon *daemon, uint64_t call, struct job_view *view,
                       struct dp_arena *arena)
{
    Dp__V1__Job *job = message_job(view, JOB_FULL, arena);
    message_complete(daemon, view->job->number, arena, job);
    decisions_show(daemon, view->job->number, job, arena);
    if (view->job->state == DP_STATE_QUEUED) {
        queue_show(daemon, view->job->number, job, arena);
    }
    call_reply(daemon, call, &job->base);
}

// One that makes no job.
static void keep_submit(struct daemon *daemon, uint64_t call,
                        const Dp__V1__SubmitJobRequest *request, const char *job,
                        const struct dp_error *why)
{
    struct dp_audit_record audit;
    audit_fill(daemon, call, DP_METHOD_SUBMIT_JOB, request->user, job, &audit);
    DP_COPY_TEXT(audit.request_id, request->request_id);
    audit_keep(daemon, &audit, why);
}

static bool is_same_file(const struct dp_job_record *job, const Dp__V1__SubmitJobRequest *request)
{
    return job->job_toml.length == request->job_toml.len &&
           (request->job_toml.len == 0 ||
            memcmp(job->job_toml.bytes, request->job_toml.data, request->job_toml.len) == 0);
}

static void submit_job(struct daemon *daemon, uint64_t call, const void *any,
                       struct dp_arena *arena)
{
    const Dp__V1__SubmitJobRequest *request = any;
    struct dp_error err = {0};
    struct dp_job_spec spec;
    uint64_t before = 0;
    if (strlen(request->request_id) >= DP_NAME_MAX || strlen(request->user) >= DP_NAME_MAX) {
        call_fail(daemon, call, DP_INVALID, "request_id or user has more than 63 bytes");
        return;
    }
    dp_status status =
        planning_parse(request->job_toml.data, request->job_toml.len, request->file, &spec, &err);
    if (status == DP_OK) {
        status = dp_store_find_request(daemon->store, request->request_id, &before, &err);
    }
    DP_CLEANUP(view_deinit) struct job_view view = {0};
    if (status == DP_OK && before != 0) {
        status = view_get(daemon, before, &view, &err);
    }
    if (status == DP_OK && before != 0 && !is_same_file(view.job, request)) {
        status =
            dp_fail(&err, DP_CONFLICT, DP_CORE_REQUEST_TAKEN, request->request_id, view.job->id);
    }
    if (status == DP_OK && before == 0) {
        submit(daemon, call, request, &spec);
        return;
    }
    keep_submit(daemon, call, request, view.job == NULL ? "" : view.job->id, &err);
    if (status != DP_OK) {
        call_fail_error(daemon, call, &err);
    } else {
        reply_view(daemon, call, &view, arena);
    }
}

static void validate_job(struct daemon *daemon, uint64_t call, const void *any,
                         struct dp_arena *arena)
{
    (void)arena;
    const Dp__V1__ValidateJobRequest *request = any;
    planning_validate(daemon, call, request->job_toml.data, request->job_toml.len, request->file);
}

static void get_job(struct daemon *daemon, uint64_t call, const void *any, struct dp_arena *arena)
{
    const Dp__V1__GetJobRequest *request = any;
    struct dp_error err = {0};
    DP_CLEANUP(view_deinit) struct job_view view = {0};
    if (view_find(daemon, request->id, &view, &err) != DP_OK) {
        call_fail_error(daemon, call, &err);
        return;
    }
    reply_view(daemon, call, &view, arena);
}

static void list_jobs(struct daemon *daemon, uint64_t call, const void *any, struct dp_arena *arena)
{
    const Dp__V1__ListJobsRequest *request = any;
    uint32_t limit = request->limit == 0 ? LIST_DEFAULT : request->limit;
    limit = limit < DP_JOBS_LISTED_MAX ? limit : DP_JOBS_LISTED_MAX;
    if (request->queued) {
        queue_list(daemon, call, request, limit, arena);
        return;
    }
    struct dp_error err = {0};
    struct dp_job_record *jobs = NULL;
    size_t count = 0;
    if (dp_store_load_jobs(daemon->store,
                           request->active ? DP_STORE_JOBS_ACTIVE : DP_STORE_JOBS_ALL,
                           request->of_user, false, limit, &jobs, &count, &err) != DP_OK) {
        call_fail_error(daemon, call, &err);
        return;
    }
    Dp__V1__ListJobsResponse response = DP__V1__LIST_JOBS_RESPONSE__INIT;
    response.jobs = arena_take(arena, count * sizeof(void *));
    for (size_t i = 0; i < count; i++) {
        struct job_view view = {.job = view_row(daemon, &jobs[i])};
        response.jobs[response.n_jobs++] = message_job(&view, JOB_BRIEF, arena);
    }
    call_reply(daemon, call, &response.base);
    for (size_t i = 0; i < count; i++) {
        dp_job_record_deinit(&jobs[i]);
    }
    free(jobs);
}

// CANCEL and CHECKPOINT go to the core when it has the job; else the job has ended long ago.
static void ask_core(struct daemon *daemon, uint64_t call, dp_method_id method, const char *key,
                     const char *reason, const char *user)
{
    struct dp_error err = {0};
    DP_CLEANUP(view_deinit) struct job_view view = {0};
    struct dp_audit_record audit;
    audit_fill(daemon, call, method, user, key, &audit);
    if (view_find(daemon, key, &view, &err) == DP_OK) {
        DP_COPY_TEXT(audit.object, view.job->id);
        view_check_live(&view, &err);
    }
    if (err.status != DP_OK) {
        audit_refuse(daemon, call, &audit, &err);
        return;
    }
    bool cancel = method == DP_METHOD_CANCEL_JOB;
    struct dp_core_event event = {.kind = cancel ? DP_EVENT_CANCEL : DP_EVENT_CHECKPOINT,
                                  .audit = &audit,
                                  .audit_reply = call};
    event.ask.reply = call;
    event.ask.reason = reason;
    DP_COPY_TEXT(event.ask.job, view.job->id);
    daemon_expect(daemon, call, method);
    daemon_step(daemon, &event);
}

static void cancel_job(struct daemon *daemon, uint64_t call, const void *any,
                       struct dp_arena *arena)
{
    (void)arena;
    const Dp__V1__CancelJobRequest *request = any;
    ask_core(daemon, call, DP_METHOD_CANCEL_JOB, request->id, request->reason, request->user);
}

static void checkpoint_job(struct daemon *daemon, uint64_t call, const void *any,
                           struct dp_arena *arena)
{
    (void)arena;
    const Dp__V1__CheckpointJobRequest *request = any;
    ask_core(daemon, call, DP_METHOD_CHECKPOINT_JOB, request->id, "", request->user);
}

static Dp__V1__Node *make_node(struct daemon *daemon, const struct dp_node_view *view,
                               struct dp_arena *arena)
{
    Dp__V1__Node *node = arena_take(arena, sizeof(*node));
    dp__v1__node__init(node);
    node->name = (char *)view->node->name;
    node->state = (char *)dp_node_state_text(view->state);
    node->reason = (char *)view->reason;
    node->address = (char *)view->node->address;
    node->slots = view->node->slots;
    node->slots_used = view->slots_used;
    node->cores = view->node->cores;
    node->memory_bytes = view->node->memory_bytes;
    node->accelerator = (char *)view->node->accelerator;
    node->version = (char *)view->node->version;
    node->last_seen_ns = view->node->last_seen_ns;
    node->calibrated = view->node->profile.length > 0;
    node->admin_by = (char *)view->node->admin_by;
    node->admin_since_ns = view->node->admin_since_ns;
    node->drain_deadline_ns = view->node->drain_deadline_ns;
    node->place = (char *)view->node->place;
    node->jobs =
        arena_take(arena, dp_core_node_jobs_max(daemon->core, node->name) * sizeof(char *));
    node->n_jobs = dp_core_node_jobs(daemon->core, node->name, (const char **)node->jobs);
    return node;
}

Dp__V1__Node *service_node(struct daemon *daemon, const char *name, struct dp_arena *arena)
{
    size_t count = dp_core_nodes_count(daemon->core);
    struct dp_node_view *views = arena_take(arena, count * sizeof(*views));
    dp_core_node_views(daemon->core, views);
    for (size_t i = 0; i < count; i++) {
        if (strcmp(views[i].node->name, name) == 0) {
            return make_node(daemon, &views[i], arena);
        }
    }
    return NULL;
}

// node-2 stands before node-10.
static int by_name(const void *a, const void *b)
{
    const struct dp_node_view *left = a, *right = b;
    return strverscmp(left->node->name, right->node->name);
}

static void list_nodes(struct daemon *daemon, uint64_t call, const void *any,
                       struct dp_arena *arena)
{
    (void)any;
    size_t count = dp_core_nodes_count(daemon->core);
    struct dp_node_view *views = arena_take(arena, count * sizeof(*views));
    dp_core_node_views(daemon->core, views);
    qsort(views, count, sizeof(*views), by_name);
    Dp__V1__ListNodesResponse response = DP__V1__LIST_NODES_RESPONSE__INIT;
    response.nodes = arena_take(arena, count * sizeof(void *));
    size_t hardware_bytes = 0;
    for (size_t i = 0; i < count; i++) {
        Dp__V1__Node *node = make_node(daemon, &views[i], arena);
        hardware_bytes += views[i].node->hardware.length;
        if (hardware_bytes <= HARDWARE_BYTES_MAX) {
            node->hardware = node_hardware(views[i].node, arena);
        }
        response.nodes[response.n_nodes++] = node;
    }
    call_reply(daemon, call, &response.base);
}

static void list_events(struct daemon *daemon, uint64_t call, const void *any,
                        struct dp_arena *arena)
{
    const Dp__V1__ListEventsRequest *request = any;
    uint32_t limit = request->limit == 0 ? DP_JOBS_LISTED_MAX : request->limit;
    limit = limit < DP_JOBS_LISTED_MAX ? limit : DP_JOBS_LISTED_MAX;
    struct dp_error err = {0};
    DP_CLEANUP(view_deinit) struct job_view view = {0};
    DP_AUTO_FREE struct dp_event_record *events = NULL;
    size_t count = 0;
    dp_status status = DP_OK;
    if (request->job[0] != '\0') {
        status = view_find(daemon, request->job, &view, &err);
    }
    if (status == DP_OK) {
        const char *job = view.job == NULL ? "" : view.job->id;
        status = request->newest ? dp_store_load_last_events(daemon->store, job, request->after,
                                                             limit, &events, &count, &err)
                                 : dp_store_load_events(daemon->store, job, request->after, limit,
                                                        &events, &count, &err);
    }
    if (status != DP_OK) {
        call_fail_error(daemon, call, &err);
        return;
    }
    Dp__V1__ListEventsResponse response = DP__V1__LIST_EVENTS_RESPONSE__INIT;
    response.events = arena_take(arena, count * sizeof(void *));
    for (size_t i = 0; i < count; i++) {
        response.events[response.n_events++] = event_message(&events[i], arena);
    }
    call_reply(daemon, call, &response.base);
}

static void get_report(struct daemon *daemon, uint64_t call, const void *any,
                       struct dp_arena *arena)
{
    (void)arena;
    report_answer(daemon, call, ((const Dp__V1__GetReportRequest *)any)->id);
}

static void get_timeline(struct daemon *daemon, uint64_t call, const void *any,
                         struct dp_arena *arena)
{
    (void)arena;
    timeline_answer(daemon, call, ((const Dp__V1__GetTimelineRequest *)any)->id);
}

void service_handle(struct daemon *daemon, dp_method_id method, service_answer *answer,
                    uint64_t call, const void *bytes, size_t length)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    const void *request =
        service_unpack(daemon, call, dp_methods[method].request, bytes, length, &arena);
    if (request != NULL) {
        answer(daemon, call, request, &arena);
    }
}

static void list_profiles(struct daemon *daemon, uint64_t call, const void *any,
                          struct dp_arena *arena)
{
    calibrations_list(daemon, call, any, arena);
}

SERVICE_HANDLER(list_profiles, LIST_PROFILES)
SERVICE_HANDLER(get_version, GET_VERSION)
SERVICE_HANDLER(submit_job, SUBMIT_JOB)
SERVICE_HANDLER(validate_job, VALIDATE_JOB)
SERVICE_HANDLER(get_job, GET_JOB)
SERVICE_HANDLER(list_jobs, LIST_JOBS)
SERVICE_HANDLER(cancel_job, CANCEL_JOB)
SERVICE_HANDLER(checkpoint_job, CHECKPOINT_JOB)
SERVICE_HANDLER(list_nodes, LIST_NODES)
SERVICE_HANDLER(list_events, LIST_EVENTS)
SERVICE_HANDLER(get_report, GET_REPORT)
SERVICE_HANDLER(get_timeline, GET_TIMELINE)

const struct dp_rpc_handler service_handlers[] = {
    {.method = DP_METHOD_LIST_PROFILES, .on_message = on_list_profiles},
    {.method = DP_METHOD_GET_VERSION, .on_message = on_get_version},
    {.method = DP_METHOD_SUBMIT_JOB, .on_message = on_submit_job},
    {.method = DP_METHOD_VALIDATE_JOB, .on_message = on_validate_job, .on_closed = tasks_on_closed},
    {.method = DP_METHOD_GET_JOB, .on_message = on_get_job},
    {.method = DP_METHOD_LIST_JOBS, .on_message = on_list_jobs},
    {.method = DP_METHOD_CANCEL_JOB, .on_message = on_cancel_job},
    {.method = DP_METHOD_CHECKPOINT_JOB, .on_message = on_checkpoint_job},
    {.method = DP_METHOD_LIST_NODES, .on_message = on_list_nodes},
    {.method = DP_METHOD_LIST_EVENTS, .on_message = on_list_events},
    {.method = DP_METHOD_GET_REPORT, .on_message = on_get_report},
    {.method = DP_METHOD_GET_TIMELINE, .on_message = on_get_timeline},
};
const size_t service_handlers_count = DP_ARRAY_LENGTH(service_handlers);
