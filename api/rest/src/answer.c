// Answers: of calls, as JSON, at once or line by line; and errors.
#include <stdarg.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/clock.h"
#include "server.h"

#define RETRY_AFTER "2" // seconds, for who was turned away for now
#define STREAM_BLOCK_BYTES 32768
#define LEAVE_NS DP_NS_PER_S

static void add_header(struct MHD_Response *response, const char *name, const char *value)
{
    DP_CHECK(MHD_add_response_header(response, name, value) == MHD_YES);
}

// Documents of this door are for programs: no guessing of types, no keeping.
static void add_headers(struct MHD_Response *response, const char *content_type)
{
    if (content_type != NULL) {
        add_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, content_type);
    }
    add_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    add_header(response, "X-Content-Type-Options", "nosniff");
}

// From here on the request has its answer, and waits for nothing but to be sent.
static void set_answer(struct rest_request *request, unsigned code, struct MHD_Response *response)
{
    DP_CHECK(response != NULL && request->response == NULL);
    request->response = response;
    request->code = code;
    dp_rest_resume(request);
}

void dp_rest_answer(struct rest_request *request, unsigned code, const char *content_type,
                    char *text, size_t length)
{
    struct MHD_Response *response =
        MHD_create_response_from_buffer(length, text, MHD_RESPMEM_MUST_FREE);
    DP_CHECK(response != NULL);
    add_headers(response, content_type);
    if (code == MHD_HTTP_TOO_MANY_REQUESTS || code == MHD_HTTP_SERVICE_UNAVAILABLE) {
        add_header(response, MHD_HTTP_HEADER_RETRY_AFTER, RETRY_AFTER);
    }
    set_answer(request, code, response);
}

static void answer_json(struct rest_request *request, unsigned code, json_t *json)
{
    struct dp_buf text = {0};
    dp_json_write(json, 0, &text);
    dp_buf_puts(&text, "\n");
    json_decref(json);
    size_t length = text.length;
    dp_rest_answer(request, code, "application/json", dp_buf_take(&text), length);
}

static json_t *error_json(unsigned code, dp_status status, const char *message)
{
    json_t *text = json_string(message);
    return json_pack("{s:i, s:s, s:o}", "code", (int)code, "status", dp_status_name(status),
                     "message", text != NULL ? text : json_string(dp_status_text(status)));
}

void dp_rest_refuse(struct rest_request *request, const struct dp_error *err)
{
    unsigned code = (unsigned)dp_status_http_code(err->status);
    answer_json(request, code, error_json(code, err->status, err->message));
}

void dp_rest_refuse_as(struct rest_request *request, unsigned code, dp_status status,
                       const char *format, ...)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf message = {0};
    va_list args;
    va_start(args, format);
    dp_buf_vprintf(&message, format, args);
    va_end(args);
    answer_json(request, code, error_json(code, status, message.bytes));
}

static void count(struct rest_request *request)
{
    struct dp_rest_server *server = request->server;
    size_t i = 0;
    while (i < server->counters_count && (server->counters[i].route != request->route ||
                                          server->counters[i].code != request->code)) {
        i++;
    }
    if (i == server->counters_count) {
        server->counters = dp_realloc(server->counters, i + 1, sizeof *server->counters);
        server->counters[server->counters_count++] =
            (struct rest_counter){.route = request->route, .code = request->code};
    }
    server->counters[i].count++;
}

void dp_rest_refuse_at_once(struct rest_request *request, unsigned code, const struct dp_error *err)
{
    struct rest_connection *connection = request->connection;
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0}, answer = {0};
    json_t *json = error_json(code, err->status, err->message);
    dp_json_write(json, 0, &text);
    json_decref(json);
    dp_buf_printf(&answer,
                  "HTTP/1.1 %u %s\r\nConnection: close\r\nContent-Type: application/json\r\n"
                  "Content-Length: %zu\r\n\r\n%s\n",
                  code, MHD_get_reason_phrase_for(code), text.length + 1, text.bytes);
    (void)!send(connection->fd, answer.bytes, answer.length, MSG_NOSIGNAL | MSG_DONTWAIT);
    shutdown(connection->fd, SHUT_WR);
    request->code = code;
    request->left = true;
    count(request);
    // To read it, before what it has sent meanwhile breaks the connection off.
    connection->deadline_ns = dp_rest_now_ns() + LEAVE_NS;
}

enum MHD_Result dp_rest_answer_queue(struct rest_request *request)
{
    struct rest_connection *connection = request->connection;
    DP_CHECK(!request->queued);
    count(request);
    // A stream takes as long as it takes; a reader that stops reading ends by the library's own
    // timeout.
    bool is_stream = request->id != 0 && request->queue_lines > 0;
    connection->deadline_ns = is_stream ? 0 : dp_rest_now_ns() + request->server->answer_ns;
    request->queued = true;
    enum MHD_Result result = MHD_queue_response(request->mhd, request->code, request->response);
    MHD_destroy_response(request->response); // ours; the library has its own
    return result;
}

void dp_rest_call_over(struct rest_request *request, bool cancelled)
{
    struct dp_rest_server *server = request->server;
    if (request->told) {
        request->told = false;
        const struct dp_rest_handler *handler = request->route->handler;
        if (handler->on_closed != NULL) {
            handler->on_closed(server->context, request->id, cancelled);
        }
    }
}

// Open calls that still want an answer.
static struct rest_request *find(const struct dp_rest_server *server, uint64_t id)
{
    struct rest_request *request = NULL;
    HASH_FIND(hh, server->calls, &id, sizeof id, request);
    return request == NULL || request->left || request->finished ? NULL : request;
}

static struct rest_request *find_unanswered(const struct dp_rest_server *server, uint64_t id)
{
    struct rest_request *request = find(server, id);
    return request == NULL || request->response != NULL ? NULL : request;
}

void dp_rest_call_reply(struct dp_rest_server *server, uint64_t id, const ProtobufCMessage *message)
{
    struct rest_request *request = find_unanswered(server, id);
    if (request != NULL) {
        answer_json(request, MHD_HTTP_OK, dp_message_to_json(message));
    }
}

void dp_rest_call_reply_json(struct dp_rest_server *server, uint64_t id, char *json, size_t length)
{
    struct rest_request *request = find_unanswered(server, id);
    if (request != NULL) {
        dp_rest_answer(request, MHD_HTTP_OK, "application/json", json, length);
    } else {
        free(json);
    }
}

// The library asks for the next bytes of a stream.
static ssize_t read_stream(void *context, uint64_t position, char *bytes, size_t size)
{
    (void)position;
    struct rest_request *request = context;
    struct dp_buf *queue = &request->queue;
    if (request->left) {
        return MHD_CONTENT_READER_END_WITH_ERROR;
    }
    if (queue->length == 0) {
        if (!request->finished) {
            dp_rest_suspend(request);
            return 0;
        }
        return request->failed ? MHD_CONTENT_READER_END_WITH_ERROR
                               : MHD_CONTENT_READER_END_OF_STREAM;
    }
    size_t length = queue->length < size ? queue->length : size;
    memcpy(bytes, queue->bytes, length);
    for (size_t i = 0; i < length; i++) {
        request->queue_lines -= bytes[i] == '\n';
    }
    dp_buf_consume(queue, length);
    bool room =
        request->queue_lines <= DP_STREAM_QUEUE_MAX / 2 && queue->length <= DP_MESSAGE_BYTES_MAX;
    request->writable_due =
        (request->send_refused && room) || (request->wake && queue->length == 0);
    return (ssize_t)length;
}

static void begin_stream(struct rest_request *request)
{
    struct MHD_Response *response = MHD_create_response_from_callback(
        MHD_SIZE_UNKNOWN, STREAM_BLOCK_BYTES, read_stream, request, NULL);
    DP_CHECK(response != NULL);
    add_headers(response, "application/x-ndjson");
    set_answer(request, MHD_HTTP_OK, response);
}

static void add_line(struct rest_request *request, json_t *json)
{
    dp_json_write(json, 0, &request->queue);
    dp_buf_puts(&request->queue, "\n");
    request->queue_lines++;
    json_decref(json);
}

dp_status dp_rest_call_send(struct dp_rest_server *server, uint64_t id,
                            const ProtobufCMessage *message)
{
    struct rest_request *request = find(server, id);
    if (request == NULL) {
        return DP_NOT_FOUND;
    }
    DP_CHECK(dp_methods[request->route->handler->method].server_streaming);
    if (request->queue_lines >= DP_STREAM_QUEUE_MAX ||
        request->queue.length >= 2 * DP_MESSAGE_BYTES_MAX) {
        request->send_refused = true;
        return DP_TOO_LARGE;
    }
    add_line(request, dp_message_to_json(message));
    if (request->response == NULL) {
        begin_stream(request);
    } else {
        dp_rest_resume(request);
    }
    return DP_OK;
}

void dp_rest_call_wake(struct dp_rest_server *server, uint64_t id)
{
    struct rest_request *request = find(server, id);
    if (request != NULL) {
        request->wake = true;
    }
}

size_t dp_rest_call_queued(const struct dp_rest_server *server, uint64_t id)
{
    const struct rest_request *request = find(server, id);
    return request == NULL ? 0 : request->queue_lines;
}

void dp_rest_call_finish(struct dp_rest_server *server, uint64_t id)
{
    struct rest_request *request = find(server, id);
    if (request == NULL) {
        return;
    }
    request->finished = true;
    if (request->response == NULL) {
        begin_stream(request);
    } else {
        dp_rest_resume(request);
    }
}

void dp_rest_call_fail(struct dp_rest_server *server, uint64_t id, dp_status status,
                       const char *message)
{
    DP_CHECK(status != DP_OK);
    struct rest_request *request = find(server, id);
    if (request == NULL) {
        return;
    }
    unsigned code = (unsigned)dp_status_http_code(status);
    if (request->response == NULL) {
        answer_json(request, code, error_json(code, status, message));
        return;
    }
    if (dp_methods[request->route->handler->method].server_streaming) {
        // 200 has been said: the last line, and the missing last chunk, say what became of it.
        add_line(request, json_pack("{s:o}", "error", error_json(code, status, message)));
        request->finished = request->failed = true;
        dp_rest_resume(request);
    }
}
