// The bidirectional stream, driven by one poll loop as an agent drives it.
#include "dp_test.h"

#include <poll.h>

#include "dp/clock.h"
#include "dp/v1/agent.pb-c.h"
#include "echo_server.h"

#define LONG_MS 20000

struct session {
    struct dp_rpc_client *client;
    struct dp_rpc_stream *stream;
    uint64_t acked;
    unsigned closed;
    bool leave_when_acked, leave_when_closed;
    struct dp_error err;
};

static void close_session(struct session *session)
{
    dp_rpc_stream_free(session->stream);
    dp_rpc_client_close(session->client);
    session->stream = NULL;
    session->client = NULL;
}

static void on_message(void *context, const void *bytes, size_t length)
{
    struct session *session = context;
    Dp__V1__ControllerMessage *message = dp__v1__controller_message__unpack(NULL, length, bytes);
    assert_non_null(message);
    assert_int_equal(message->message_case, DP__V1__CONTROLLER_MESSAGE__MESSAGE_ACK);
    assert_int_equal(message->ack->sequence, session->acked + 1);
    session->acked++;
    dp__v1__controller_message__free_unpacked(message, NULL);
    if (session->leave_when_acked) {
        close_session(session);
    }
}

static void on_closed(void *context, const struct dp_error *err)
{
    struct session *session = context;
    session->closed++;
    session->err = *err;
    if (session->leave_when_closed) {
        close_session(session);
    }
}

static void open_session(struct session *session, const char *address)
{
    struct dp_error err = {0};
    *session = (struct session){0};
    struct dp_rpc_client_options options = {.address = address, .own_connection = true};
    assert_ok(dp_rpc_client_open(&options, &session->client, &err), &err);
    struct dp_rpc_stream_events events = {
        .on_message = on_message, .on_closed = on_closed, .context = session};
    assert_ok(
        dp_rpc_stream_open(session->client, DP_METHOD_SESSION, &events, &session->stream, &err),
        &err);
}

static dp_status beat(struct session *session, uint64_t sequence, struct dp_error *err)
{
    Dp__V1__Heartbeat heartbeat = DP__V1__HEARTBEAT__INIT;
    heartbeat.sequence = sequence;
    Dp__V1__AgentMessage message = DP__V1__AGENT_MESSAGE__INIT;
    message.message_case = DP__V1__AGENT_MESSAGE__MESSAGE_HEARTBEAT;
    message.heartbeat = &heartbeat;
    return dp_rpc_stream_send(session->stream, &message.base, err);
}

static void pump_once(struct session *session)
{
    struct pollfd wait = {.fd = dp_rpc_stream_fd(session->stream), .events = POLLIN};
    if (poll(&wait, 1, LONG_MS) != 1) {
        fail_msg("nothing came");
    }
    dp_rpc_stream_pump(session->stream);
}

static void messages_go_both_ways_in_order(void **state)
{
    struct dp_error err = {0};
    struct echo_server server;
    struct session session;
    assert_ok(echo_server_start(&server, "127.0.0.1:0", &err), &err);
    open_session(&session, server.address);
    for (uint64_t i = 1; i <= 500; i++) {
        assert_ok(beat(&session, i, &err), &err);
        while (i > session.acked + 8) {
            pump_once(&session);
        }
    }
    while (session.acked < 500) {
        pump_once(&session);
    }
    // Having nothing more to say ends the call, and the server agrees.
    dp_rpc_stream_half_close(session.stream);
    while (session.closed == 0) {
        pump_once(&session);
    }
    assert_int_equal(session.err.status, DP_OK);
    assert_refused(beat(&session, 501, &err), DP_UNAVAILABLE, &err, "is over");
    close_session(&session);
    echo_server_stop(&server, LONG_MS);
    assert_int_equal(atomic_load(&server.closed), 1);
    assert_int_equal(atomic_load(&server.cancelled), 0);
    (void)state;
}

static void a_stream_waits_for_a_server_that_starts_later(void **state)
{
    struct dp_error err = {0};
    struct echo_server server;
    struct session session;
    // Find a port, then give it back.
    assert_ok(echo_server_start(&server, "127.0.0.1:0", &err), &err);
    char address[DP_ADDRESS_MAX];
    snprintf(address, sizeof address, "%s", server.address);
    echo_server_stop(&server, 0);
    open_session(&session, address);
    assert_ok(beat(&session, 1, &err), &err);
    dp_rpc_stream_pump(session.stream);
    assert_int_equal(session.closed, 0);
    assert_ok(echo_server_start(&server, address, &err), &err);
    while (session.acked < 1) {
        pump_once(&session);
    }
    // A server that goes away ends the stream, and says that it will be back.
    echo_server_stop(&server, LONG_MS);
    while (session.closed == 0) {
        pump_once(&session);
    }
    assert_refused(session.err.status, DP_UNAVAILABLE, &session.err, "try again");
    close_session(&session);
    (void)state;
}

static void the_queue_of_a_stream_without_a_peer_is_bounded(void **state)
{
    struct dp_error err = {0};
    struct session session;
    open_session(&session, "127.0.0.1:1");
    uint64_t sent = 0;
    while (beat(&session, sent + 1, &err) == DP_OK) {
        sent++;
        assert_true(sent < 10000);
    }
    assert_int_equal(err.status, DP_TOO_LARGE);
    assert_int_equal(dp_rpc_stream_queued(session.stream), DP_STREAM_QUEUE_MAX);
    close_session(&session);
    (void)state;
}

// A thousand messages of the largest size would be four gigabytes.
static void the_queue_is_bounded_in_bytes_too(void **state)
{
    static uint8_t data[1 << 20];
    struct dp_error err = {0};
    struct session session;
    Dp__V1__LogChunk chunk = DP__V1__LOG_CHUNK__INIT;
    Dp__V1__AgentMessage message = DP__V1__AGENT_MESSAGE__INIT;
    chunk.data = (ProtobufCBinaryData){.len = sizeof data, .data = data};
    message.message_case = DP__V1__AGENT_MESSAGE__MESSAGE_LOG;
    message.log = &chunk;
    open_session(&session, "127.0.0.1:1");
    unsigned sent = 0;
    while (dp_rpc_stream_send(session.stream, &message.base, &err) == DP_OK) {
        sent++;
        assert_true(sent < 100);
    }
    assert_refused(err.status, DP_TOO_LARGE, &err, "bytes wait for 127.0.0.1:1");
    // One is on its way out of the queue already.
    assert_in_range(dp_rpc_stream_queued_bytes(session.stream), 2 * DP_MESSAGE_BYTES_MAX,
                    3 * DP_MESSAGE_BYTES_MAX);
    assert_in_range(sent, 8, 10);
    close_session(&session);
    (void)state;
}

static void a_stream_and_its_client_may_go_in_a_callback(void **state)
{
    struct dp_error err = {0};
    struct echo_server server;
    struct session session;
    assert_ok(echo_server_start(&server, "127.0.0.1:0", &err), &err);
    open_session(&session, server.address);
    session.leave_when_acked = true;
    assert_ok(beat(&session, 1, &err), &err);
    while (session.stream != NULL) {
        pump_once(&session);
    }
    assert_int_equal(session.closed, 0);
    open_session(&session, server.address);
    session.leave_when_closed = true;
    assert_ok(beat(&session, 1, &err), &err);
    while (session.acked == 0) {
        pump_once(&session);
    }
    echo_server_stop(&server, LONG_MS);
    assert_int_equal(atomic_load(&server.cancelled), 2);
    while (session.stream != NULL) {
        pump_once(&session);
    }
    assert_int_equal(session.closed, 1);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_go_both_ways_in_order),
        cmocka_unit_test(a_stream_waits_for_a_server_that_starts_later),
        cmocka_unit_test(the_queue_of_a_stream_without_a_peer_is_bounded),
        cmocka_unit_test(the_queue_is_bounded_in_bytes_too),
        cmocka_unit_test(a_stream_and_its_client_may_go_in_a_callback),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
