#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/arena.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/log.h"
#include "dp/method.h"
#include "dp/rand.h"
#include "dp/rpc.h"
#include "dp/wire.h"
#include "worker.h"

#define WELCOME_MS 3000 // to connect and be welcomed
#define RETRY_FIRST_MS 200
#define RETRY_MAX_MS 3000
#define REFUSED_RETRY_MS 3000
#define HEARTBEATS_KEPT 64

struct heartbeat {
    uint64_t sequence;
    int64_t sent_ns;
};

struct session {
    struct worker *worker;
    char instance[32];
    struct dp_rand rand;
    struct dp_rpc_client *client;
    struct dp_rpc_stream *stream;
    uv_poll_t *poll;
    bool welcomed;
    bool refused;       // it speaks another protocol
    int64_t give_up_ns; // when not welcomed
    int64_t heard_ns;   // last word of the controller
    int64_t retry_at_ns;
    uint32_t retry_ms;
    uint32_t heartbeat_ms;
    int64_t heartbeat_at_ns;
    int64_t hello_ns;
    uint64_t sequence;
    uint64_t acked;                               // newest in this stream
    struct heartbeat heartbeats[HEARTBEATS_KEPT]; // of this stream, by sequence
    bool inventory_due;
    struct outbox *outbox;
    bool said_unreachable;
};

struct session *session_new(struct worker *worker)
{
    struct session *session = dp_new(struct session);
    uint64_t seed[2] = {0};
    session->worker = worker;
    session->outbox = outbox_new(worker);
    session->retry_ms = RETRY_FIRST_MS;
    session->heartbeat_ms = dp_agent_heartbeat_ms(0, worker->options.orphan_ms);
    if (getrandom(seed, sizeof seed, 0) != sizeof seed) {
        seed[0] = (uint64_t)dp_clock_realtime_ns();
        seed[1] = (uint64_t)getpid();
    }
    dp_rand_init(&session->rand, seed[1]);
    snprintf(session->instance, sizeof session->instance, "%016llx", (unsigned long long)seed[0]);
    return session;
}

static void free_handle(uv_handle_t *handle)
{
    free(handle);
}

// Leaves the stream and tries again after a while, longer each time, never all agents at once.
static void leave(struct session *session, uint32_t retry_ms)
{
    bool was_welcomed = session->welcomed;
    if (session->poll != NULL) {
        (void)uv_poll_stop(session->poll);
        uv_close((uv_handle_t *)session->poll, free_handle);
        session->poll = NULL;
    }
    dp_rpc_stream_free(session->stream);
    session->stream = NULL;
    dp_rpc_client_close(session->client);
    session->client = NULL;
    session->welcomed = false;
    session->refused = false;
    outbox_clear(session->outbox);
    double spread = 0.5 + dp_rand_double(&session->rand);
    session->retry_at_ns = worker_now_ns() + (int64_t)(retry_ms * spread) * DP_NS_PER_MS;
    session->retry_ms = retry_ms * 3 / 2 > RETRY_MAX_MS ? RETRY_MAX_MS : retry_ms * 3 / 2;
    if (was_welcomed) {
        struct dp_agent_event event = {.type = DP_AGENT_STREAM_DOWN};
        worker_event(session->worker, &event);
    }
}

void session_free(struct session *session)
{
    leave(session, RETRY_FIRST_MS);
    outbox_free(session->outbox);
    free(session);
}

static void on_closed(void *context, const struct dp_error *err)
{
    struct session *session = context;
    if (session->welcomed || !session->said_unreachable) {
        dp_log_warn("controller.lost", "address=%s reason=\"%s\"",
                    dp_rpc_client_address(session->client),
                    err->status == DP_OK ? "it ended the session" : err->message);
        session->said_unreachable = true;
    }
    leave(session, session->retry_ms);
}

// What was sent then has reached the controller.
static void note_contact(struct session *session, int64_t sent_ns)
{
    contact_note(&session->worker->contact, sent_ns);
    struct dp_agent_event event = {.type = DP_AGENT_ACKNOWLEDGED, .sent_ns = sent_ns};
    worker_event(session->worker, &event);
}

static int64_t next_heartbeat_ns(struct session *session)
{
    return worker_now_ns() +
           dp_agent_heartbeat_wait_ns(session->heartbeat_ms, dp_rand_double(&session->rand));
}

// A period that is shorter than the one before counts from now on.
static void set_period(struct session *session, uint32_t asked_ms)
{
    uint32_t period_ms = dp_agent_heartbeat_ms(asked_ms, session->worker->options.orphan_ms);
    if (period_ms == session->heartbeat_ms) {
        return;
    }
    session->heartbeat_ms = period_ms;
    int64_t next_ns = next_heartbeat_ns(session);
    session->heartbeat_at_ns =
        next_ns < session->heartbeat_at_ns ? next_ns : session->heartbeat_at_ns;
}

static void on_ack(struct session *session, const Dp__V1__Ack *ack)
{
    if (ack->heartbeat_ms > 0) {
        set_period(session, ack->heartbeat_ms);
    }
    const struct heartbeat *heartbeat = &session->heartbeats[ack->sequence % HEARTBEATS_KEPT];
    if (ack->sequence != 0 && heartbeat->sequence == ack->sequence) {
        session->acked = ack->sequence;
        note_contact(session, heartbeat->sent_ns);
    }
}

static void on_welcome(struct session *session, const Dp__V1__Welcome *welcome)
{
    if (welcome->protocol != DP_PROTOCOL_VERSION) {
        dp_log_error("controller.other_protocol",
                     "protocol=%u ours=%u version=%s next=\"install the same version on both\"",
                     welcome->protocol, DP_PROTOCOL_VERSION, welcome->version);
        // The stream cannot be closed while it calls; see on_poll.
        session->refused = true;
        return;
    }
    session->welcomed = true;
    session->said_unreachable = false;
    session->retry_ms = RETRY_FIRST_MS;
    session->heartbeat_ms =
        dp_agent_heartbeat_ms(welcome->heartbeat_ms, session->worker->options.orphan_ms);
    session->heartbeat_at_ns = next_heartbeat_ns(session);
    dp_log_info("controller.connected", "address=%s version=%s heartbeat_ms=%u",
                dp_rpc_client_address(session->client), welcome->version, session->heartbeat_ms);
    note_contact(session, session->hello_ns);
    struct dp_agent_event event = {.type = DP_AGENT_STREAM_UP};
    worker_event(session->worker, &event);
}

static void on_message(void *context, const void *bytes, size_t length)
{
    struct session *session = context;
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    struct dp_error err = {0};
    ProtobufCMessage *any;
    if (session->refused) {
        return;
    }
    if (dp_wire_unpack(&dp__v1__controller_message__descriptor, bytes, length, &arena, &any,
                       &err) != DP_OK) {
        dp_log_error("controller.bad_message", "reason=\"%s\"", err.message);
        if (session->welcomed) {
            orders_refuse(session->worker, bytes, length, err.message);
        }
        return;
    }
    const Dp__V1__ControllerMessage *message = (const Dp__V1__ControllerMessage *)any;
    session->heard_ns = worker_now_ns();
    if (message->message_case == DP__V1__CONTROLLER_MESSAGE__MESSAGE_WELCOME) {
        on_welcome(session, message->welcome);
    } else if (session->welcomed &&
               message->message_case == DP__V1__CONTROLLER_MESSAGE__MESSAGE_ACK) {
        on_ack(session, message->ack);
    } else if (session->welcomed) {
        orders_handle(session->worker, message);
    }
}

static void drain(struct session *session)
{
    if (session->welcomed) {
        outbox_drain(session->outbox, session->stream);
    }
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
    (void)status;
    (void)events;
    struct session *session = poll->data;
    if (session->stream != NULL) {
        dp_rpc_stream_pump(session->stream);
    }
    if (session->refused) {
        leave(session, REFUSED_RETRY_MS);
    }
    drain(session);
}

static dp_status controller_address(const char *controller, char *ret_address, size_t size,
                                    struct dp_error *err)
{
    if (controller[0] != '@') {
        (void)dp_copy_text(ret_address, size, controller);
        return DP_OK;
    }
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_status status = dp_read_file(controller + 1, DP_ADDRESS_MAX, &text, err);
    if (status != DP_OK) {
        return status;
    }
    text.bytes[strcspn(text.bytes, " \r\n")] = '\0';
    if (text.bytes[0] == '\0') {
        return dp_fail(err, DP_INVALID, "%s holds no address", controller + 1);
    }
    (void)dp_copy_text(ret_address, size, text.bytes);
    return DP_OK;
}

static dp_status send_hello(struct session *session, struct dp_error *err)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    struct worker *worker = session->worker;
    Dp__V1__Hello hello = DP__V1__HELLO__INIT;
    Dp__V1__AgentMessage message = DP__V1__AGENT_MESSAGE__INIT;
    hello.node = (char *)worker->options.name;
    hello.boot_id = worker->contact.boot_id;
    hello.instance = session->instance;
    hello.version = (char *)DP_VERSION;
    hello.protocol = DP_PROTOCOL_VERSION;
    hello.inventory = levels_inventory(worker, &arena);
    hello.notes = worker->notes;
    hello.n_notes = worker->notes_count;
    hello.assignments = levels_all(worker->core, &arena, &hello.n_assignments);
    hello.lease_ms = worker->options.lease_ms;
    hello.fence_ms = worker->options.orphan_ms + DP_AGENT_STOP_MS + worker->options.lease_ms;
    session->inventory_due = false;
    session->acked = 0;
    session->hello_ns = worker_now_ns();
    hello.sent_ns = session->hello_ns;
    memset(session->heartbeats, 0, sizeof session->heartbeats);
    message.message_case = DP__V1__AGENT_MESSAGE__MESSAGE_HELLO;
    message.hello = &hello;
    return dp_rpc_stream_send(session->stream, &message.base, err);
}

static dp_status open_stream(struct session *session, struct dp_error *err)
{
    char address[DP_ADDRESS_MAX];
    dp_status status =
        controller_address(session->worker->options.controller, address, sizeof address, err);
    if (status != DP_OK) {
        return status;
    }
    struct dp_rpc_client_options options = {.address = address, .own_connection = true};
    struct dp_rpc_stream_events events = {on_message, on_closed, session};
    status = dp_rpc_client_open(&options, &session->client, err);
    if (status == DP_OK) {
        status =
            dp_rpc_stream_open(session->client, DP_METHOD_SESSION, &events, &session->stream, err);
    }
    if (status == DP_OK) {
        status = send_hello(session, err);
    }
    if (status != DP_OK) {
        return status;
    }
    session->poll = dp_new(uv_poll_t);
    session->poll->data = session;
    (void)uv_poll_init(&session->worker->loop, session->poll, dp_rpc_stream_fd(session->stream));
    (void)uv_poll_start(session->poll, UV_READABLE, on_poll);
    session->give_up_ns = worker_now_ns() + WELCOME_MS * DP_NS_PER_MS;
    session->heard_ns = worker_now_ns();
    return DP_OK;
}

static void try_open(struct session *session)
{
    struct dp_error err = {0};
    if (open_stream(session, &err) != DP_OK) {
        if (!session->said_unreachable) {
            dp_log_warn("controller.unreachable", "reason=\"%s\" next=\"trying on\"", err.message);
            session->said_unreachable = true;
        }
        leave(session, session->retry_ms);
    }
}

static void send_heartbeat(struct session *session)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__Heartbeat heartbeat = DP__V1__HEARTBEAT__INIT;
    Dp__V1__AgentMessage message = DP__V1__AGENT_MESSAGE__INIT;
    heartbeat.sequence = ++session->sequence;
    heartbeat.acked = session->acked;
    heartbeat.assignments = levels_all(session->worker->core, &arena, &heartbeat.n_assignments);
    message.message_case = DP__V1__AGENT_MESSAGE__MESSAGE_HEARTBEAT;
    message.heartbeat = &heartbeat;
    int64_t now_ns = worker_now_ns();
    // One that finds no room is made up for by the next.
    if (dp_rpc_stream_send(session->stream, &message.base, NULL) == DP_OK) {
        session->heartbeats[heartbeat.sequence % HEARTBEATS_KEPT] =
            (struct heartbeat){.sequence = heartbeat.sequence, .sent_ns = now_ns};
    }
    session->heartbeat_at_ns = next_heartbeat_ns(session);
}

void session_send_level(struct session *session, const struct dp_agent_fence *fence)
{
    if (session->welcomed) {
        outbox_put_level(session->outbox, fence);
        drain(session);
    }
}

void session_send_refusal(struct session *session, const struct dp_agent_fence *fence,
                          const char *text)
{
    if (session->welcomed) {
        outbox_put_refusal(session->outbox, fence, text);
        drain(session);
    }
}

void session_send_report(struct session *session, const void *bytes, size_t length, bool sample)
{
    if (session->welcomed && !(sample && outbox_waits(session->outbox))) {
        outbox_put_report(session->outbox, bytes, length);
        drain(session);
    }
}

void session_send_log(struct session *session, Dp__V1__LogChunk *chunk)
{
    Dp__V1__AgentMessage message = DP__V1__AGENT_MESSAGE__INIT;
    message.message_case = DP__V1__AGENT_MESSAGE__MESSAGE_LOG;
    message.log = chunk;
    if (session->welcomed) {
        // The asker asks again when no answer comes.
        (void)dp_rpc_stream_send(session->stream, &message.base, NULL);
    }
}

bool session_send_calibration(struct session *session, Dp__V1__CalibrateLevel *level)
{
    Dp__V1__AgentMessage message = DP__V1__AGENT_MESSAGE__INIT;
    message.message_case = DP__V1__AGENT_MESSAGE__MESSAGE_CALIBRATION;
    message.calibration = level;
    return !session->welcomed || dp_rpc_stream_send(session->stream, &message.base, NULL) == DP_OK;
}

void session_send_inventory(struct session *session)
{
    session->inventory_due = true;
}

static void send_inventory(struct session *session)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__AgentMessage message = DP__V1__AGENT_MESSAGE__INIT;
    message.message_case = DP__V1__AGENT_MESSAGE__MESSAGE_INVENTORY;
    message.inventory = levels_inventory(session->worker, &arena);
    // Without room now it is due still.
    session->inventory_due = dp_rpc_stream_send(session->stream, &message.base, NULL) != DP_OK;
}

// It answers each heartbeat, so a few of them must have gone by.
static uint32_t silence_max_ms(const struct session *session)
{
    uint32_t lease_ms = session->worker->options.lease_ms;
    return lease_ms > 3 * session->heartbeat_ms ? lease_ms : 3 * session->heartbeat_ms;
}

void session_tick(struct session *session)
{
    int64_t now_ns = worker_now_ns();
    int64_t silence_ns = silence_max_ms(session) * DP_NS_PER_MS;
    if (session->stream == NULL) {
        if (now_ns >= session->retry_at_ns) {
            try_open(session);
        }
        return;
    }
    if (!session->welcomed && now_ns > session->give_up_ns) {
        // Its address may have changed since.
        leave(session, session->retry_ms);
        return;
    }
    if (session->welcomed && now_ns - session->heard_ns > silence_ns) {
        dp_log_warn("controller.silent", "for_ms=%u", silence_max_ms(session));
        leave(session, session->retry_ms);
        return;
    }
    if (session->welcomed && now_ns >= session->heartbeat_at_ns) {
        send_heartbeat(session);
    }
    if (session->welcomed && session->inventory_due) {
        send_inventory(session);
    }
    drain(session);
}
