// The shell around the core: one libuv loop that owns the store, the gRPC server and the core, and
// performs the core's effects. Everything here runs on the loop's thread, but for tasks (tasks.h).
#pragma once

#include <uv.h>

#include "dp/core.h"
#include "dp/rest.h"
#include "dp/rpc.h"
#include "dp/spec.h"
#include "dp/store.h"
#include "dp/v1/agent.pb-c.h"
#include "dp/v1/calibration.pb-c.h"
#include "dp/v1/cluster.pb-c.h"
#include "dp/v1/controller.pb-c.h"
#include "dp/v1/history.pb-c.h"
#include "dp/v1/planner.pb-c.h"
#include "dp/wire.h"
#include "tasks.h"

struct daemon_options {
    const char *state_dir;
    const char *listen;
    const char *address_file; // NULL = none
    const char *http_listen;  // NULL = no HTTP
    const char *http_address_file;
    long history_days, history_jobs; // of ended jobs, what is kept; 0 = all
    bool queue_strict;
    long queue_pass_s;
};

// A call whose answer comes from the core.
struct pending {
    uint64_t call;
    dp_method_id method;
    struct pending *next;
};

// How late the ticker's ticks come.
enum { LOOP_DELAY_BUCKETS = 7 };
extern const double loop_delay_bucket_s[LOOP_DELAY_BUCKETS - 1];
struct loop_delay {
    uint64_t tick_ns; // the last one
    double seconds;
    uint64_t bucket[LOOP_DELAY_BUCKETS];
};

// The queue when it was last looked through.
struct queue_look {
    struct dp_queue_place *places;
    size_t count;
    int64_t monotonic_ns, realtime_ns, cost_ns;
};

struct daemon {
    struct daemon_options options;
    char *state_dir; // absolute
    char instance[32];
    int64_t started_ns; // wall clock
    uv_loop_t loop;
    uv_poll_t store_poll, rpc_poll, rest_poll;
    uv_timer_t core_timer, ticker, rest_timer;
    uv_signal_t signals[2];
    struct dp_store *store;
    struct dp_core *core;
    struct dp_effects effects;
    struct dp_rpc_server *server;
    struct dp_rest_server *rest; // NULL = no HTTP
    struct pending *pending;
    struct session *sessions;
    struct watch *watches;
    struct log_stream *log_streams;
    struct lessons *lessons;
    struct calibration *calibrations;
    struct event_watch *event_watches;
    struct stream *streams; // of these three kinds, by call
    struct caller *callers; // whose they are, by host
    int64_t events_pumped_ns, retained_ns;
    uint64_t events_lagged; // watchers that were dropped
    struct queue_look queue;
    struct backup *backups;
    uint64_t last_backup;
    struct cluster_change *cluster_changes; // not on disk yet, the oldest first
    uint64_t last_calibration, last_cluster_token;
    struct tasks tasks;
    bool stepping, stopping;
    int64_t alive_ns, stalled_ns; // when this process was last seen to run; not told to the core
    bool store_behind;
    struct loop_delay delay;
};

// daemon.c
dp_status daemon_run(const struct daemon_options *options, struct dp_error *err);
// Gives the core one event, with the time, and performs what follows.
void daemon_step(struct daemon *daemon, struct dp_core_event *event);
// The answer to `call` will come from the core.
void daemon_expect(struct daemon *daemon, uint64_t call, dp_method_id method);

// calls.c: every answer to a call of the table but an agent's session goes through these, since it
// may have come over gRPC or HTTP. As dp_rpc_call_*.
void call_reply(struct daemon *daemon, uint64_t call, const ProtobufCMessage *message);
dp_status call_send(struct daemon *daemon, uint64_t call, const ProtobufCMessage *message);
size_t call_queued(const struct daemon *daemon, uint64_t call);
void call_wake(struct daemon *daemon, uint64_t call);
void call_finish(struct daemon *daemon, uint64_t call);
void call_fail(struct daemon *daemon, uint64_t call, dp_status status, const char *message);
void call_fail_error(struct daemon *daemon, uint64_t call, const struct dp_error *err);
// HTTP only: what the message's JSON would be, made on a work thread. Empties the buffer.
void call_reply_json(struct daemon *daemon, uint64_t call, struct dp_buf *json);

// rest.c
dp_status rest_start(struct daemon *daemon, const struct dp_rpc_handler *handlers, size_t count,
                     struct dp_error *err);
void rest_stop(struct daemon *daemon, unsigned grace_ms);

// metrics.c: the text format of Prometheus
#define METRICS_CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8"
void metrics_write(void *context, struct dp_buf *out);

// effects.c
void effects_perform(struct daemon *daemon, const struct dp_effects *effects);

// sessions.c: agents
extern const struct dp_rpc_handler session_handler;
// Sends to one session; a session that cannot take it is ended, and the agent connects again.
void session_send(struct daemon *daemon, uint64_t session, Dp__V1__ControllerMessage *message);
// Whether this session has said hello.
bool session_known(const struct daemon *daemon, uint64_t session);
// That its agent speaks.
uint32_t session_protocol(const struct daemon *daemon, uint64_t session);

// service.c: one handler for each method
extern const struct dp_rpc_handler service_handlers[];
extern const size_t service_handlers_count;
// Unpacks a request into the arena, or ends the call.
void *service_unpack(struct daemon *daemon, uint64_t call, const ProtobufCMessageDescriptor *type,
                     const void *bytes, size_t length, struct dp_arena *arena);
// The node's message, or NULL when the core has no such node.
Dp__V1__Node *service_node(struct daemon *daemon, const char *name, struct dp_arena *arena);
// Answers a unary call whose request was unpacked; the arena lives until it returns.
typedef void service_answer(struct daemon *daemon, uint64_t call, const void *request,
                            struct dp_arena *arena);
void service_handle(struct daemon *daemon, dp_method_id method, service_answer *answer,
                    uint64_t call, const void *bytes, size_t length);
// on_NAME, for a row of service_handlers, from NAME, a service_answer.
#define SERVICE_HANDLER(name, METHOD)                                                              \
    static void on_##name(void *context, uint64_t call, const void *bytes, size_t length)          \
    {                                                                                              \
        service_handle(context, DP_METHOD_##METHOD, name, call, bytes, length);                    \
    }

// views.c: what may be told of a job: from the core as far as it is stored, else from the store
#define VIEW_VERDICTS_MAX 16
struct machine;
struct job_view {
    const struct dp_job_record *job;
    const struct dp_rank_record *ranks;
    size_t ranks_count;
    const struct dp_straggler *scores;                           // of the ranks; NULL = none
    const struct dp_verdict_record *verdicts[VIEW_VERDICTS_MAX]; // the newest first
    size_t verdicts_count;
    bool in_core;                    // it has not ended, or just now
    struct dp_job_record *owned_job; // when it came from the store
    struct dp_rank_record *owned_ranks;
    struct dp_verdict_record *owned_verdicts;
};
// The core's row of a job that the store has given, where the core may show its own; borrowed until
// the core's next step.
const struct dp_job_record *view_row(struct daemon *daemon, const struct dp_job_record *loaded);
// By id, name or prefix. What was found in the core is borrowed until its next step.
dp_status view_find(struct daemon *daemon, const char *key, struct job_view *ret_view,
                    struct dp_error *err);
dp_status view_get(struct daemon *daemon, uint64_t number, struct job_view *ret_view,
                   struct dp_error *err);
// DP_CONFLICT when the job has ended.
dp_status view_check_live(const struct job_view *view, struct dp_error *err);
// The machines that its ranks lie on, in the arena; how many.
size_t view_machines(const struct daemon *daemon, const struct job_view *view,
                     struct dp_arena *arena, const struct machine **ret_machines);
void view_deinit(struct job_view *view);
dp_status view_plan(const struct dp_job_record *job, struct dp_arena *arena,
                    Dp__V1__Plan **ret_plan, struct dp_error *err);
// Of another assignment of the job.
dp_status view_unpack_plan(const struct dp_job_record *job, const struct dp_buf *packed,
                           struct dp_arena *arena, Dp__V1__Plan **ret_plan, struct dp_error *err);

// messages.c: rows to messages, in an arena without limit; strings are borrowed
typedef enum job_detail {
    JOB_BRIEF, // a line of a list
    JOB_LIVE,  // with the plan's sizes and the ranks
    JOB_FULL,  // with everything
} job_detail;
// stragglers.c
// What the report says of kinds of action and links; NULL = nothing.
const struct dp_straggler_sample *straggler_times(const Dp__V1__StepDone *from,
                                                  struct dp_arena *arena);
const struct dp_straggler_probe *straggler_probe(const Dp__V1__ProbeDone *from,
                                                 struct dp_arena *arena);
Dp__V1__RankScore *message_score(const struct dp_straggler *scores, uint32_t rank, bool with_kinds,
                                 struct dp_arena *arena);
Dp__V1__StragglerVerdict *message_verdict(const struct dp_verdict_record *from,
                                          struct dp_arena *arena);
void add_stragglers(const struct job_view *view, struct dp_arena *arena, Dp__V1__Job *message);

Dp__V1__Job *message_job(const struct job_view *view, job_detail detail, struct dp_arena *arena);
// What the record does not have: the cluster's index, attempts that are over.
void message_complete(struct daemon *daemon, uint64_t number, struct dp_arena *arena,
                      Dp__V1__Job *message);
Dp__V1__StepPoint *message_step(const struct dp_step_record *step, struct dp_arena *arena);
Dp__V1__Utilisation *message_usage(const struct dp_usage *usage, struct dp_arena *arena);
// NULL without experts.
Dp__V1__ExpertLoad *message_load(const struct dp_rank_load *load, struct dp_arena *arena);
Dp__V1__Fence *message_fence(const struct dp_fence *fence, struct dp_arena *arena);
void *arena_take(struct dp_arena *arena, size_t bytes);
// What the node's agent said it has, or NULL.
Dp__V1__Hardware *node_hardware(const struct dp_node_record *node, struct dp_arena *arena);

// planning.c
void planning_start(struct daemon *daemon, uint64_t job, const struct dp_free_slots *nodes,
                    size_t nodes_count);
// ValidateJob: the answer goes to `call`.
void planning_validate(struct daemon *daemon, uint64_t call, const void *toml, size_t length,
                       const char *file);
dp_status planning_parse(const void *toml, size_t length, const char *file,
                         struct dp_job_spec *ret_spec, struct dp_error *err);

// plan_service.c, simulate_service.c
extern const struct dp_rpc_handler plan_handler, simulate_handler;

// watch.c
extern const struct dp_rpc_handler watch_handler;
void watch_changed(struct daemon *daemon, uint64_t job);
void watch_pump(struct daemon *daemon);

// logs.c
extern const struct dp_rpc_handler logs_handler;
void logs_chunk(struct daemon *daemon, const Dp__V1__LogChunk *chunk);
void logs_pump(struct daemon *daemon);

// report.c, timeline.c
void report_answer(struct daemon *daemon, uint64_t call, const char *key);
void timeline_answer(struct daemon *daemon, uint64_t call, const char *key);
