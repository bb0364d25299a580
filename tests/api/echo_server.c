#include "echo_server.h"

#include <poll.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/v1/agent.pb-c.h"
#include "dp/v1/controller.pb-c.h"

#define LOG_CHUNKS 256

static void on_get_version(void *context, uint64_t call, const void *bytes, size_t length)
{
    (void)bytes;
    (void)length;
    struct echo_server *server = context;
    Dp__V1__VersionInfo answer = DP__V1__VERSION_INFO__INIT;
    answer.version = "9.8.7";
    answer.protocol = server->protocol;
    answer.instance = "echo";
    answer.started_ns = atomic_load(&server->cancelled);
    dp_rpc_call_reply(server->rpc, call, &answer.base);
}

static bool refuse_garbage(struct echo_server *server, uint64_t call, const void *request)
{
    if (request == NULL) {
        dp_rpc_call_fail(server->rpc, call, DP_INVALID, "the bytes are not a request");
    }
    return request == NULL;
}

static void answer_job(struct echo_server *server, uint64_t call, const char *id)
{
    static char text[1801], huge[DP_MESSAGE_BYTES_MAX + 1];
    Dp__V1__Job job = DP__V1__JOB__INIT;
    job.id = (char *)id;
    if (strcmp(id, "missing") == 0) {
        dp_rpc_call_fail(server->rpc, call, DP_NOT_FOUND, "no job \"missing\"");
        return;
    }
    if (strcmp(id, "unschedulable") == 0) {
        memset(text, 'x', sizeof text - 1);
        memcpy(text + sizeof text - 5, "end.", 4);
        dp_rpc_call_fail(server->rpc, call, DP_UNSCHEDULABLE, text);
        return;
    }
    if (strcmp(id, "huge") == 0) {
        memset(huge, 'x', sizeof huge - 1);
        job.message = huge;
    }
    dp_rpc_call_reply(server->rpc, call, &job.base);
    // A second answer, or one to a call that never was, changes nothing.
    dp_rpc_call_reply(server->rpc, call, &job.base);
    dp_rpc_call_reply(server->rpc, call + 1000000, &job.base);
}

static void on_get_job(void *context, uint64_t call, const void *bytes, size_t length)
{
    struct echo_server *server = context;
    atomic_fetch_add(&server->opened, 1);
    Dp__V1__GetJobRequest *request = dp__v1__get_job_request__unpack(NULL, length, bytes);
    if (refuse_garbage(server, call, request)) {
        return;
    }
    if (strcmp(request->id, "never") != 0) {
        answer_job(server, call, request->id);
    }
    dp__v1__get_job_request__free_unpacked(request, NULL);
}

static void on_submit_job(void *context, uint64_t call, const void *bytes, size_t length)
{
    struct echo_server *server = context;
    Dp__V1__SubmitJobRequest *request = dp__v1__submit_job_request__unpack(NULL, length, bytes);
    if (refuse_garbage(server, call, request)) {
        return;
    }
    Dp__V1__Job job = DP__V1__JOB__INIT;
    job.id = "job-1";
    job.job_toml = request->job_toml;
    dp_rpc_call_reply(server->rpc, call, &job.base);
    dp__v1__submit_job_request__free_unpacked(request, NULL);
}

static void on_watch_job(void *context, uint64_t call, const void *bytes, size_t length)
{
    struct echo_server *server = context;
    atomic_fetch_add(&server->opened, 1);
    Dp__V1__WatchJobRequest *request = dp__v1__watch_job_request__unpack(NULL, length, bytes);
    if (refuse_garbage(server, call, request)) {
        return;
    }
    for (uint64_t step = 1; step <= request->after_step; step++) {
        Dp__V1__StepPoint point = DP__V1__STEP_POINT__INIT;
        point.step = step;
        Dp__V1__JobEvent event = DP__V1__JOB_EVENT__INIT;
        event.event_case = DP__V1__JOB_EVENT__EVENT_STEP;
        event.step = &point;
        dp_rpc_call_send(server->rpc, call, &event.base);
    }
    if (strcmp(request->id, "forever") != 0) {
        dp_rpc_call_finish(server->rpc, call);
    }
    dp__v1__watch_job_request__free_unpacked(request, NULL);
}

static void on_closed(void *context, uint64_t call, bool cancelled)
{
    struct echo_server *server = context;
    (void)call;
    atomic_fetch_add(&server->closed, 1);
    atomic_fetch_add(&server->cancelled, cancelled ? 1 : 0);
}

static void send_logs(void *context, uint64_t call)
{
    static uint8_t data[65536];
    struct echo_server *server = context;
    Dp__V1__LogText text = DP__V1__LOG_TEXT__INIT;
    text.data = (ProtobufCBinaryData){.len = sizeof data, .data = data};
    while (server->logs_sent < LOG_CHUNKS) {
        text.rank = server->logs_sent;
        dp_status status = dp_rpc_call_send(server->rpc, call, &text.base);
        unsigned queued = (unsigned)dp_rpc_call_queued(server->rpc, call);
        if (queued > atomic_load(&server->queued_max)) {
            atomic_store(&server->queued_max, queued);
        }
        if (status != DP_OK) {
            atomic_fetch_add(&server->refused, status == DP_TOO_LARGE ? 1 : 0);
            return;
        }
        server->logs_sent++;
    }
    dp_rpc_call_finish(server->rpc, call);
}

static void on_read_logs(void *context, uint64_t call, const void *bytes, size_t length)
{
    struct echo_server *server = context;
    (void)bytes;
    (void)length;
    atomic_fetch_add(&server->opened, 1);
    server->logs_sent = 0;
    send_logs(server, call);
}

static void on_session_open(void *context, uint64_t call)
{
    struct echo_server *server = context;
    (void)call;
    atomic_fetch_add(&server->opened, 1);
}

static void on_session(void *context, uint64_t call, const void *bytes, size_t length)
{
    struct echo_server *server = context;
    Dp__V1__AgentMessage *message = dp__v1__agent_message__unpack(NULL, length, bytes);
    if (refuse_garbage(server, call, message)) {
        return;
    }
    if (message->message_case == DP__V1__AGENT_MESSAGE__MESSAGE_HEARTBEAT) {
        Dp__V1__Ack ack = DP__V1__ACK__INIT;
        ack.sequence = message->heartbeat->sequence;
        Dp__V1__ControllerMessage answer = DP__V1__CONTROLLER_MESSAGE__INIT;
        answer.message_case = DP__V1__CONTROLLER_MESSAGE__MESSAGE_ACK;
        answer.ack = &ack;
        dp_rpc_call_send(server->rpc, call, &answer.base);
    }
    dp__v1__agent_message__free_unpacked(message, NULL);
}

static const struct dp_rpc_handler handlers[] = {
    {.method = DP_METHOD_GET_VERSION, .on_message = on_get_version},
    {.method = DP_METHOD_GET_JOB, .on_message = on_get_job, .on_closed = on_closed},
    {.method = DP_METHOD_SUBMIT_JOB, .on_message = on_submit_job},
    {.method = DP_METHOD_WATCH_JOB, .on_message = on_watch_job, .on_closed = on_closed},
    {.method = DP_METHOD_READ_LOGS,
     .on_message = on_read_logs,
     .on_writable = send_logs,
     .on_closed = on_closed},
    {.method = DP_METHOD_SESSION,
     .on_open = on_session_open,
     .on_message = on_session,
     .on_closed = on_closed},
};

static void *run(void *data)
{
    struct echo_server *server = data;
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    struct pollfd wait[2] = {{.fd = dp_rpc_server_fd(server->rpc), .events = POLLIN},
                             {.fd = server->wake[0], .events = POLLIN}};
    while (wait[1].revents == 0) {
        poll(wait, 2, -1);
        dp_rpc_server_pump(server->rpc);
        atomic_store(&server->calls, (unsigned)dp_rpc_server_calls(server->rpc));
    }
    dp_rpc_server_stop(server->rpc, server->grace_ms);
    dp_rpc_server_free(server->rpc);
    return NULL;
}

dp_status echo_server_start(struct echo_server *server, const char *listen, struct dp_error *err)
{
    return echo_server_start_protocol(server, listen, DP_PROTOCOL_VERSION, err);
}

dp_status echo_server_start_protocol(struct echo_server *server, const char *listen,
                                     uint32_t protocol, struct dp_error *err)
{
    memset(server, 0, sizeof *server);
    server->protocol = protocol;
    struct dp_rpc_server_options options = {
        .listen = listen,
        .handlers = handlers,
        .handlers_count = DP_ARRAY_LENGTH(handlers),
        .context = server,
        .queue_messages_max = 16,
    };
    dp_status status = dp_rpc_server_new(&options, &server->rpc, err);
    if (status != DP_OK) {
        return status;
    }
    DP_COPY_TEXT(server->address, dp_rpc_server_address(server->rpc));
    DP_CHECK(pipe(server->wake) == 0);
    DP_CHECK(pthread_create(&server->thread, NULL, run, server) == 0);
    return DP_OK;
}

void echo_server_stop(struct echo_server *server, unsigned grace_ms)
{
    server->grace_ms = grace_ms;
    close(server->wake[1]);
    pthread_join(server->thread, NULL);
    close(server->wake[0]);
}
