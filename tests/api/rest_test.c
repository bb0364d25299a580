// The HTTP door, with handlers of the test and a client that writes bytes.
#include "dp_test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/rest.h"
#include "dp/v1/controller.pb-c.h"
#include "dp/wire.h"

#define DEADLINE_MS 20000
#define HOST "Host: localhost\r\n"

// What the handlers were given.
struct seen {
    uint64_t call; // the newest
    int calls, closed, cancelled, writable;
    uint32_t limit;
    bool active;
    char id[DP_NAME_MAX];
    struct dp_buf job_toml;
    bool later; // do not answer
};

struct fixture {
    struct dp_rest_server *server;
    struct seen seen;
};

static void on_list(void *context, uint64_t call, const void *bytes, size_t length)
{
    struct fixture *f = context;
    Dp__V1__ListJobsRequest *request = dp__v1__list_jobs_request__unpack(NULL, length, bytes);
    assert_non_null(request);
    f->seen.calls++;
    f->seen.limit = request->limit;
    f->seen.active = request->active;
    dp__v1__list_jobs_request__free_unpacked(request, NULL);
    Dp__V1__ListJobsResponse response = DP__V1__LIST_JOBS_RESPONSE__INIT;
    dp_rest_call_reply(f->server, call, &response.base);
}

static void on_get(void *context, uint64_t call, const void *bytes, size_t length)
{
    struct fixture *f = context;
    Dp__V1__GetJobRequest *request = dp__v1__get_job_request__unpack(NULL, length, bytes);
    assert_non_null(request);
    f->seen.calls++;
    f->seen.call = call;
    DP_COPY_TEXT(f->seen.id, request->id);
    dp__v1__get_job_request__free_unpacked(request, NULL);
    if (!f->seen.later) {
        dp_rest_call_fail(f->server, call, DP_NOT_FOUND, "no job");
    }
}

static void on_submit(void *context, uint64_t call, const void *bytes, size_t length)
{
    struct fixture *f = context;
    Dp__V1__SubmitJobRequest *request = dp__v1__submit_job_request__unpack(NULL, length, bytes);
    assert_non_null(request);
    f->seen.calls++;
    dp_buf_clear(&f->seen.job_toml);
    dp_buf_append(&f->seen.job_toml, request->job_toml.data, request->job_toml.len);
    dp__v1__submit_job_request__free_unpacked(request, NULL);
    Dp__V1__Job job = DP__V1__JOB__INIT;
    job.id = "job-1";
    dp_rest_call_reply(f->server, call, &job.base);
}

static void on_watch(void *context, uint64_t call, const void *bytes, size_t length)
{
    (void)bytes;
    (void)length;
    struct fixture *f = context;
    f->seen.calls++;
    f->seen.call = call;
}

static void on_writable(void *context, uint64_t call)
{
    (void)call;
    ((struct fixture *)context)->seen.writable++;
}

static void on_closed(void *context, uint64_t call, bool cancelled)
{
    (void)call;
    struct fixture *f = context;
    f->seen.closed++;
    f->seen.cancelled += cancelled;
}

static void write_page(void *context, struct dp_buf *out)
{
    (void)context;
    dp_buf_puts(out, "up 1\n");
}

static const struct dp_rest_handler handlers[] = {
    {.method = DP_METHOD_LIST_JOBS, .on_message = on_list, .on_closed = on_closed},
    {.method = DP_METHOD_GET_JOB, .on_message = on_get, .on_closed = on_closed},
    {.method = DP_METHOD_SUBMIT_JOB, .on_message = on_submit, .on_closed = on_closed},
    {.method = DP_METHOD_WATCH_JOB,
     .on_message = on_watch,
     .on_writable = on_writable,
     .on_closed = on_closed},
};
static const struct dp_rest_page pages[] = {
    {.path = "/metrics", .content_type = "text/plain", .summary = "figures", .write = write_page},
};

static struct dp_rest_server_options options_of(struct fixture *f)
{
    return (struct dp_rest_server_options){
        .listen = "127.0.0.1:0",
        .handlers = handlers,
        .handlers_count = DP_ARRAY_LENGTH(handlers),
        .pages = pages,
        .pages_count = DP_ARRAY_LENGTH(pages),
        .context = f,
    };
}

static int set_up_with(void **state, const struct dp_rest_server_options *change)
{
    struct fixture *f = calloc(1, sizeof *f);
    struct dp_rest_server_options options = options_of(f);
    options.headers_ms = change->headers_ms;
    options.body_ms = change->body_ms;
    options.calls_max = change->calls_max;
    struct dp_error err = {0};
    assert_ok(dp_rest_server_new(&options, &f->server, &err), &err);
    *state = f;
    return 0;
}

static int set_up(void **state)
{
    return set_up_with(state, &(struct dp_rest_server_options){0});
}

static int set_up_impatient(void **state)
{
    return set_up_with(state, &(struct dp_rest_server_options){.headers_ms = 50, .body_ms = 50});
}

static int set_up_narrow(void **state)
{
    return set_up_with(state, &(struct dp_rest_server_options){.calls_max = 1});
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    dp_rest_server_free(f->server);
    dp_buf_deinit(&f->seen.job_toml);
    free(f);
    return 0;
}

static int dial(const struct fixture *f)
{
    const char *address = dp_rest_server_address(f->server);
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                             .sin_port = htons((uint16_t)atoi(strrchr(address, ':') + 1))};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    assert_int_equal(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    return fd;
}

// Lets the server run until something happens, the client's descriptor too; -1 = none.
static void turn(struct fixture *f, int fd, short events)
{
    int timeout_ms = dp_rest_server_timeout_ms(f->server);
    struct pollfd fds[] = {{.fd = dp_rest_server_fd(f->server), .events = POLLIN},
                           {.fd = fd, .events = events}};
    poll(fds, 2, timeout_ms < 0 || timeout_ms > 100 ? 100 : timeout_ms);
    dp_rest_server_pump(f->server);
}

static void send_all(struct fixture *f, int fd, const char *bytes, size_t length)
{
    int64_t end_ns = dp_clock_monotonic_ns() + DEADLINE_MS * DP_NS_PER_MS;
    while (length > 0 && dp_clock_monotonic_ns() < end_ns) {
        ssize_t sent = send(fd, bytes, length, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN) {
            return; // the server closed: what it said is still to be read
        }
        if (sent > 0) {
            bytes += sent;
            length -= (size_t)sent;
        }
        turn(f, fd, POLLOUT);
    }
    assert_int_equal(length, 0);
}

// Reads until the server closes, or until `until` came (NULL = never).
static void receive(struct fixture *f, int fd, const char *until, struct dp_buf *out)
{
    int64_t end_ns = dp_clock_monotonic_ns() + DEADLINE_MS * DP_NS_PER_MS;
    while (dp_clock_monotonic_ns() < end_ns) {
        char bytes[65536];
        ssize_t got = recv(fd, bytes, sizeof bytes, 0);
        if (got > 0) {
            dp_buf_append(out, bytes, (size_t)got);
            if (until != NULL && strstr(out->bytes, until) != NULL) {
                return;
            }
        } else if (got == 0 || errno != EAGAIN) {
            dp_buf_puts(out, "");
            return;
        }
        turn(f, fd, POLLIN);
    }
    fail_msg("no end of the answer: %s", out->bytes == NULL ? "" : out->bytes);
}

// One request on a connection of its own.
static char *ask(struct fixture *f, const char *request)
{
    struct dp_buf out = {0};
    DP_AUTO_CLOSE int fd = dial(f);
    send_all(f, fd, request, strlen(request));
    receive(f, fd, NULL, &out);
    return dp_buf_take(&out);
}

static void assert_answer(struct fixture *f, const char *request, const char *status,
                          const char *part)
{
    DP_AUTO_FREE char *answer = ask(f, request);
    if (strncmp(answer, status, strlen(status)) != 0 || strstr(answer, part) == NULL) {
        fail_msg("%s\nis answered with\n%s\nand not with %s ... %s", request, answer, status, part);
    }
}

#define CLOSE "Connection: close\r\n\r\n"

static void fields_come_from_the_query(void **state)
{
    struct fixture *f = *state;
    assert_answer(f, "GET /v1/jobs?limit=5&active=true HTTP/1.1\r\n" HOST CLOSE,
                  "HTTP/1.1 200 OK\r\n", "\r\n\r\n{\"jobs\":[]}\n");
    assert_int_equal(f->seen.limit, 5);
    assert_true(f->seen.active);
    assert_answer(f, "GET /v1/jobs?limit=5&limit=6 HTTP/1.1\r\n" HOST CLOSE, "HTTP/1.1 400",
                  "given twice");
    assert_answer(f, "GET /v1/jobs?limit=-1 HTTP/1.1\r\n" HOST CLOSE, "HTTP/1.1 400",
                  "limit must be an integer from 0 to 4294967295");
    assert_answer(f, "GET /v1/jobs?active=maybe HTTP/1.1\r\n" HOST CLOSE, "HTTP/1.1 400",
                  "active must be true or false");
    assert_answer(f, "GET /v1/jobs?lmit=1 HTTP/1.1\r\n" HOST CLOSE, "HTTP/1.1 400",
                  "did you mean \\\"limit\\\"?");
    assert_int_equal(f->seen.calls, 1);
    assert_int_equal(f->seen.closed, 1);
    assert_int_equal(f->seen.cancelled, 0);
}

static void fields_come_from_the_path_decoded(void **state)
{
    struct fixture *f = *state;
    assert_answer(f, "GET /v1/jobs/a%20%C3%A4%2Fb HTTP/1.1\r\n" HOST CLOSE,
                  "HTTP/1.1 404 Not Found\r\n",
                  "{\"code\":404,\"status\":\"NOT_FOUND\",\"message\":\"no job\"}");
    assert_string_equal(f->seen.id, "a \xc3\xa4/b");
    static const char *const bad[] = {"%", "%2", "%zz", "%00", "%ff", "a%C3"};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(bad); i++) {
        DP_CLEANUP(dp_buf_deinit) struct dp_buf request = {0};
        dp_buf_printf(&request, "GET /v1/jobs/%s HTTP/1.1\r\n" HOST CLOSE, bad[i]);
        assert_answer(f, request.bytes, "HTTP/1.1 400", "not percent-encoded UTF-8");
    }
    assert_answer(f, "GET /v1/jobs/ HTTP/1.1\r\n" HOST CLOSE, "HTTP/1.1 404", "there is no");
    assert_answer(f, "GET http://localhost/v1/jobs HTTP/1.1\r\n" HOST CLOSE, "HTTP/1.1 400",
                  "must be a path");
    assert_int_equal(f->seen.calls, 1);
}

#define JSON "Content-Type: application/json; charset=utf-8\r\n"

static void fields_come_from_a_body_of_json(void **state)
{
    struct fixture *f = *state;
    assert_answer(f,
                  "POST /v1/jobs HTTP/1.1\r\n" HOST JSON
                  "Content-Length: 19\r\nConnection: close\r\n\r\n{\"job_toml\":\"x=\\n\"}",
                  "HTTP/1.1 200 OK\r\n", "\"id\":\"job-1\"");
    assert_string_equal(f->seen.job_toml.bytes, "x=\n");
    assert_answer(f,
                  "POST /v1/jobs HTTP/1.1\r\n" HOST JSON
                  "Content-Length: 14\r\nConnection: close\r\n\r\n{\n \"job_toml\"\n",
                  "HTTP/1.1 400", "body:3:0");
    assert_answer(f,
                  "POST /v1/jobs HTTP/1.1\r\n" HOST JSON
                  "Content-Length: 16\r\nConnection: close\r\n\r\n{\"job_toml\": 12}",
                  "HTTP/1.1 400", "job_toml must be a string");
    assert_answer(f,
                  "POST /v1/jobs HTTP/1.1\r\n" HOST JSON
                  "Content-Length: 2\r\nConnection: close\r\n\r\n[]",
                  "HTTP/1.1 400", "must be a JSON object");
    assert_int_equal(f->seen.calls, 1);
}

static void a_body_in_chunks_is_put_together(void **state)
{
    struct fixture *f = *state;
    assert_answer(f,
                  "POST /v1/jobs HTTP/1.1\r\n" HOST JSON
                  "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
                  "6\r\n{\"job_\r\n9\r\ntoml\":\"y\"\r\n1\r\n}\r\n0\r\n\r\n",
                  "HTTP/1.1 200 OK\r\n", "job-1");
    assert_string_equal(f->seen.job_toml.bytes, "y");
}

static void a_job_file_may_be_sent_as_it_is(void **state)
{
    struct fixture *f = *state;
    assert_answer(f,
                  "POST /v1/jobs?file=a.toml HTTP/1.1\r\n" HOST "Content-Type: application/toml\r\n"
                  "Content-Length: 7\r\nConnection: close\r\n\r\n[model]",
                  "HTTP/1.1 200 OK\r\n", "job-1");
    assert_string_equal(f->seen.job_toml.bytes, "[model]");
    assert_answer(f,
                  "POST /v1/jobs HTTP/1.1\r\n" HOST "Content-Type: text/plain\r\n"
                  "Content-Length: 7\r\nConnection: close\r\n\r\n[model]",
                  "HTTP/1.1 415", "application/json or");
    assert_answer(f,
                  "POST /v1/jobs HTTP/1.1\r\n" HOST
                  "Content-Length: 7\r\nConnection: close\r\n\r\n[model]",
                  "HTTP/1.1 415", "without a Content-Type");
}

static void what_is_not_there_is_told_with_what_is(void **state)
{
    struct fixture *f = *state;
    assert_answer(f, "GET /v2/jobs HTTP/1.1\r\n" HOST CLOSE, "HTTP/1.1 404 Not Found\r\n",
                  "there are GET /v1/jobs, GET /v1/jobs/{id}, POST /v1/jobs");
    assert_answer(f, "DELETE /v1/jobs HTTP/1.1\r\n" HOST CLOSE,
                  "HTTP/1.1 405 Method Not Allowed\r\n", "Allow: GET, HEAD, POST, OPTIONS\r\n");
    assert_answer(f, "OPTIONS /v1/jobs HTTP/1.1\r\n" HOST CLOSE, "HTTP/1.1 204",
                  "Allow: GET, HEAD, POST, OPTIONS\r\n");
    assert_answer(f, "GET /metrics HTTP/1.1\r\n" HOST CLOSE, "HTTP/1.1 200 OK\r\n", "up 1\n");
    DP_AUTO_FREE char *head = ask(f, "HEAD /v1/jobs HTTP/1.1\r\n" HOST CLOSE);
    assert_non_null(strstr(head, "Content-Length: 12\r\n"));
    assert_string_equal(strstr(head, "\r\n\r\n"), "\r\n\r\n");
}

// "a&a&...&a"
static char *query_of(int parts)
{
    struct dp_buf text = {0};
    for (int i = 0; i < parts; i++) {
        dp_buf_puts(&text, i == 0 ? "a" : "&a");
    }
    return dp_buf_take(&text);
}

static void a_query_of_any_number_of_parts_is_answered(void **state)
{
    static const struct {
        int parts;
        const char *status, *why;
    } cases[] = {
        {256, "HTTP/1.1 400", "is given twice"},
        {257, "HTTP/1.1 414", "the query has 257 parts; the limit is 256"},
        {1200, "HTTP/1.1 414", "the query has 1200 parts; the limit is 256"},
        {2040, "HTTP/1.1 414", "the query has 2040 parts; the limit is 256"},
        {20000, "HTTP/1.1 414", "bytes; the limit is 4096"},
    };
    for (size_t i = 0; i < DP_ARRAY_LENGTH(cases); i++) {
        DP_AUTO_FREE char *query = query_of(cases[i].parts);
        DP_AUTO_FREE char *request = dp_asprintf("GET /v1/jobs?%s HTTP/1.1\r\n" HOST CLOSE, query);
        assert_answer(*state, request, cases[i].status, cases[i].why);
        assert_answer(*state, "GET /metrics HTTP/1.1\r\n" HOST CLOSE, "HTTP/1.1 200", "up 1\n");
    }
}

static void pages_of_other_sites_get_nothing(void **state)
{
    struct fixture *f = *state;
    static const struct {
        const char *headers, *status;
    } cases[] = {
        {"Host: localhost\r\n", "HTTP/1.1 200"},
        {"Host: LOCALHOST:8080\r\n", "HTTP/1.1 200"},
        {"Host: 127.0.0.1:1\r\n", "HTTP/1.1 200"},
        {"Host: [::1]\r\n", "HTTP/1.1 200"},
        {"Host: localhost\r\nOrigin: http://127.0.0.1:3000\r\n", "HTTP/1.1 200"},
        {"Host: evil.example\r\n", "HTTP/1.1 421"},
        {"Host: localhost.evil.example\r\n", "HTTP/1.1 421"},
        {"Host: 127.0.0.1.evil.example\r\n", "HTTP/1.1 421"},
        {"Host: localhost:80@evil.example\r\n", "HTTP/1.1 421"},
        {"Host: \r\n", "HTTP/1.1 421"},
        {"Host: localhost\r\nHost: evil.example\r\n", "HTTP/1.1 400"},
        {"", "HTTP/1.1 400"},
        {"Host: localhost\r\nOrigin: http://evil.example\r\n", "HTTP/1.1 403"},
        {"Host: localhost\r\nOrigin: http://localhost.evil.example\r\n", "HTTP/1.1 403"},
        {"Host: localhost\r\nOrigin: null\r\n", "HTTP/1.1 403"},
    };
    for (size_t i = 0; i < DP_ARRAY_LENGTH(cases); i++) {
        DP_CLEANUP(dp_buf_deinit) struct dp_buf request = {0};
        dp_buf_printf(&request, "GET /v1/jobs HTTP/1.1\r\n%s" CLOSE, cases[i].headers);
        DP_AUTO_FREE char *answer = ask(f, request.bytes);
        assert_memory_equal(answer, cases[i].status, strlen(cases[i].status));
        assert_null(strstr(answer, "Access-Control"));
    }
    assert_int_equal(f->seen.calls, 5);
}

static void a_body_over_the_limit_is_refused_however_it_comes(void **state)
{
    struct fixture *f = *state;
    DP_CLEANUP(dp_buf_deinit) struct dp_buf request = {0};
    dp_buf_printf(&request, "POST /v1/jobs HTTP/1.1\r\n" HOST JSON "Content-Length: %u\r\n" CLOSE,
                  DP_REST_BODY_BYTES_MAX + 1);
    assert_answer(f, request.bytes, "HTTP/1.1 413", "more than 8388608 bytes");
    dp_buf_clear(&request);
    dp_buf_printf(&request,
                  "POST /v1/jobs HTTP/1.1\r\n" HOST JSON
                  "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n%x\r\n",
                  DP_REST_BODY_BYTES_MAX + 1);
    memset(dp_buf_extend(&request, DP_REST_BODY_BYTES_MAX + 1), ' ', DP_REST_BODY_BYTES_MAX + 1);
    dp_buf_puts(&request, "\r\n0\r\n\r\n");
    struct dp_buf out = {0};
    DP_AUTO_CLOSE int fd = dial(f);
    send_all(f, fd, request.bytes, request.length);
    receive(f, fd, NULL, &out);
    DP_AUTO_FREE char *answer = dp_buf_take(&out);
    assert_memory_equal(answer, "HTTP/1.1 413", 12);
    assert_int_equal(f->seen.calls, 0);
}

static void one_connection_serves_several_requests(void **state)
{
    struct fixture *f = *state;
    DP_AUTO_CLOSE int fd = dial(f);
    for (int i = 0; i < 3; i++) {
        DP_CLEANUP(dp_buf_deinit) struct dp_buf out = {0};
        static const char *const requests[] = {"GET /v1/jobs HTTP/1.1\r\n" HOST "\r\n",
                                               "GET /nothing HTTP/1.1\r\n" HOST "\r\n",
                                               "GET /v1/jobs HTTP/1.1\r\n" HOST "\r\n"};
        send_all(f, fd, requests[i], strlen(requests[i]));
        receive(f, fd, "}\n", &out);
        assert_null(strstr(out.bytes, "Connection: close"));
    }
    // Two that come at once are answered one after the other.
    DP_CLEANUP(dp_buf_deinit) struct dp_buf out = {0};
    const char *both = "GET /v1/jobs HTTP/1.1\r\n" HOST "\r\nGET /metrics HTTP/1.1\r\n" HOST CLOSE;
    send_all(f, fd, both, strlen(both));
    receive(f, fd, NULL, &out);
    assert_non_null(strstr(out.bytes, "{\"jobs\":[]}\n"));
    assert_non_null(strstr(out.bytes, "up 1\n"));
}

static void wait_for_calls(struct fixture *f, int calls)
{
    int64_t end_ns = dp_clock_monotonic_ns() + DEADLINE_MS * DP_NS_PER_MS;
    while (f->seen.calls < calls && dp_clock_monotonic_ns() < end_ns) {
        turn(f, -1, 0);
    }
    assert_int_equal(f->seen.calls, calls);
}

static void wait_for_closed(struct fixture *f, int closed)
{
    int64_t end_ns = dp_clock_monotonic_ns() + DEADLINE_MS * DP_NS_PER_MS;
    while (f->seen.closed < closed && dp_clock_monotonic_ns() < end_ns) {
        turn(f, -1, 0);
    }
    assert_int_equal(f->seen.closed, closed);
}

static const char *const get_job = "GET /v1/jobs/job-1 HTTP/1.1\r\n" HOST CLOSE;

static void an_answer_may_come_later(void **state)
{
    struct fixture *f = *state;
    f->seen.later = true;
    DP_AUTO_CLOSE int fd = dial(f);
    send_all(f, fd, get_job, strlen(get_job));
    wait_for_calls(f, 1);
    assert_true(dp_rest_is_call(f->seen.call));
    assert_int_equal(dp_rest_server_calls(f->server), 1);
    Dp__V1__Job job = DP__V1__JOB__INIT;
    job.id = "job-7";
    dp_rest_call_reply(f->server, f->seen.call, &job.base);
    dp_rest_call_fail(f->server, f->seen.call, DP_CONFLICT, "a second answer is ignored");
    DP_CLEANUP(dp_buf_deinit) struct dp_buf out = {0};
    receive(f, fd, NULL, &out);
    assert_non_null(strstr(out.bytes, "\"id\":\"job-7\""));
    assert_int_equal(f->seen.closed, 1);
    assert_int_equal(f->seen.cancelled, 0);
    assert_int_equal(dp_rest_server_calls(f->server), 0);
}

static void a_client_that_leaves_cancels_its_call(void **state)
{
    struct fixture *f = *state;
    f->seen.later = true;
    int fd = dial(f);
    send_all(f, fd, get_job, strlen(get_job));
    wait_for_calls(f, 1);
    close(fd);
    wait_for_closed(f, 1);
    assert_int_equal(f->seen.cancelled, 1);
    dp_rest_call_fail(f->server, f->seen.call, DP_CONFLICT, "nobody hears this");
    turn(f, -1, 0);
}

static void more_calls_than_there_is_room_for_are_told_to_wait(void **state)
{
    struct fixture *f = *state;
    f->seen.later = true;
    DP_AUTO_CLOSE int fd = dial(f);
    send_all(f, fd, get_job, strlen(get_job));
    wait_for_calls(f, 1);
    assert_answer(f, get_job, "HTTP/1.1 429", "Retry-After: 2\r\n");
    dp_rest_call_fail(f->server, f->seen.call, DP_NOT_FOUND, "no");
    DP_CLEANUP(dp_buf_deinit) struct dp_buf out = {0};
    receive(f, fd, NULL, &out);
    f->seen.later = false;
    assert_answer(f, get_job, "HTTP/1.1 404", "no job");
}

static void a_stopping_server_answers_what_is_open(void **state)
{
    struct fixture *f = *state;
    f->seen.later = true;
    DP_AUTO_CLOSE int fd = dial(f), idle = dial(f);
    send_all(f, fd, get_job, strlen(get_job));
    wait_for_calls(f, 1);
    dp_rest_server_stop(f->server, 1000);
    assert_int_equal(f->seen.closed, 1);
    assert_int_equal(f->seen.cancelled, 1);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf out = {0};
    receive(f, fd, NULL, &out);
    assert_memory_equal(out.bytes, "HTTP/1.1 503", 12);
}

static void send_step(struct fixture *f, uint64_t step)
{
    Dp__V1__StepPoint point = DP__V1__STEP_POINT__INIT;
    Dp__V1__JobEvent event = DP__V1__JOB_EVENT__INIT;
    point.step = step;
    event.event_case = DP__V1__JOB_EVENT__EVENT_STEP;
    event.step = &point;
    assert_int_equal(dp_rest_call_send(f->server, f->seen.call, &event.base), DP_OK);
}

static const char *const watch_job = "GET /v1/jobs/job-1/watch HTTP/1.1\r\n" HOST CLOSE;

static void a_stream_is_one_object_a_line(void **state)
{
    struct fixture *f = *state;
    DP_AUTO_CLOSE int fd = dial(f);
    send_all(f, fd, watch_job, strlen(watch_job));
    wait_for_calls(f, 1);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf out = {0};
    send_step(f, 1);
    receive(f, fd, "{\"step\":{\"step\":1,", &out);
    assert_non_null(strstr(out.bytes, "Content-Type: application/x-ndjson\r\n"));
    send_step(f, 2);
    receive(f, fd, "{\"step\":{\"step\":2,", &out);
    dp_rest_call_finish(f->server, f->seen.call);
    receive(f, fd, NULL, &out);
    assert_non_null(strstr(out.bytes, "\r\n0\r\n\r\n")); // the last chunk
    wait_for_closed(f, 1);
    assert_int_equal(f->seen.cancelled, 0);
}

static void a_stream_that_fails_says_so_and_breaks_off(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(f->seen.calls, 0);
    DP_AUTO_CLOSE int fd = dial(f);
    send_all(f, fd, watch_job, strlen(watch_job));
    wait_for_calls(f, 1);
    send_step(f, 1);
    dp_rest_call_fail(f->server, f->seen.call, DP_UNAVAILABLE, "gone");
    DP_CLEANUP(dp_buf_deinit) struct dp_buf out = {0};
    receive(f, fd, NULL, &out);
    assert_non_null(strstr(
        out.bytes, "{\"error\":{\"code\":503,\"status\":\"UNAVAILABLE\",\"message\":\"gone\"}}"));
    assert_null(strstr(out.bytes, "\r\n0\r\n\r\n"));
    // One that fails before it began is an error like any other.
    DP_AUTO_CLOSE int second = dial(f);
    send_all(f, second, watch_job, strlen(watch_job));
    wait_for_calls(f, 2);
    dp_rest_call_fail(f->server, f->seen.call, DP_NOT_FOUND, "none");
    dp_buf_clear(&out);
    receive(f, second, NULL, &out);
    assert_memory_equal(out.bytes, "HTTP/1.1 404", 12);
}

static void a_reader_that_does_not_read_costs_a_bounded_queue(void **state)
{
    struct fixture *f = *state;
    DP_AUTO_CLOSE int fd = dial(f);
    send_all(f, fd, watch_job, strlen(watch_job));
    wait_for_calls(f, 1);
    char long_text[4001];
    memset(long_text, 'x', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = '\0';
    Dp__V1__Job job = DP__V1__JOB__INIT;
    Dp__V1__JobEvent event = DP__V1__JOB_EVENT__INIT;
    job.message = long_text;
    event.event_case = DP__V1__JOB_EVENT__EVENT_JOB;
    event.job = &job;
    dp_status status = DP_OK;
    for (int i = 0; i < 100000 && status == DP_OK; i++) {
        status = dp_rest_call_send(f->server, f->seen.call, &event.base);
        dp_rest_server_pump(f->server);
    }
    assert_int_equal(status, DP_TOO_LARGE);
    assert_true(dp_rest_call_queued(f->server, f->seen.call) <= DP_STREAM_QUEUE_MAX);
    assert_int_equal(f->seen.writable, 0);
    // Once it reads there is room again, which the handler is told once.
    DP_CLEANUP(dp_buf_deinit) struct dp_buf out = {0};
    int64_t end_ns = dp_clock_monotonic_ns() + DEADLINE_MS * DP_NS_PER_MS;
    while (dp_rest_call_queued(f->server, f->seen.call) > 0 && dp_clock_monotonic_ns() < end_ns) {
        char bytes[65536];
        (void)!recv(fd, bytes, sizeof bytes, 0);
        turn(f, fd, POLLIN);
    }
    assert_int_equal(f->seen.writable, 1);
    dp_rest_call_finish(f->server, f->seen.call);
    receive(f, fd, NULL, &out);
    assert_int_equal(f->seen.cancelled, 0);
}

// A client that sends its request byte by byte keeps its place only for so long.
static void a_request_that_does_not_get_ready_is_cut_off(void **state)
{
    struct fixture *f = *state;
    static const char *const halves[] = {"", "GET /v1/jobs HTTP/1.1\r\nHost: loc",
                                         "POST /v1/jobs HTTP/1.1\r\n" HOST JSON
                                         "Content-Length: 100\r\n\r\n{"};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(halves); i++) {
        DP_CLEANUP(dp_buf_deinit) struct dp_buf out = {0};
        DP_AUTO_CLOSE int fd = dial(f);
        send_all(f, fd, halves[i], strlen(halves[i]));
        receive(f, fd, NULL, &out);
        assert_int_equal(out.length, 0);
    }
    assert_int_equal(f->seen.calls, 0);
    int64_t end_ns = dp_clock_monotonic_ns() + DEADLINE_MS * DP_NS_PER_MS;
    while (dp_rest_server_connections(f->server) > 0 && dp_clock_monotonic_ns() < end_ns) {
        turn(f, -1, 0);
    }
    assert_int_equal(dp_rest_server_connections(f->server), 0);
}

static void requests_are_counted_by_what_they_asked_for(void **state)
{
    struct fixture *f = *state;
    free(ask(f, "GET /v1/jobs HTTP/1.1\r\n" HOST CLOSE));
    free(ask(f, "GET /v1/jobs HTTP/1.1\r\n" HOST CLOSE));
    free(ask(f, "GET /v1/jobs/x HTTP/1.1\r\n" HOST CLOSE));
    free(ask(f, "GET /a HTTP/1.1\r\n" HOST CLOSE));
    free(ask(f, "GET /b HTTP/1.1\r\n" HOST CLOSE));
    static const struct dp_rest_count wanted[] = {
        {"GET", "/v1/jobs", 200, 2}, {"GET", "/v1/jobs/{id}", 404, 1}, {"other", "other", 404, 2}};
    struct dp_rest_count got;
    for (size_t i = 0; i < DP_ARRAY_LENGTH(wanted); i++) {
        assert_true(dp_rest_server_count(f->server, i, &got));
        assert_string_equal(got.verb, wanted[i].verb);
        assert_string_equal(got.path, wanted[i].path);
        assert_int_equal(got.code, wanted[i].code);
        assert_int_equal(got.count, wanted[i].count);
    }
    assert_false(dp_rest_server_count(f->server, DP_ARRAY_LENGTH(wanted), &got));
}

static void only_loopback_is_listened_on(void **state)
{
    (void)state;
    struct dp_rest_server_options options = options_of(NULL);
    struct dp_rest_server *server = NULL;
    struct dp_error err = {0};
    static const char *const far[] = {"0.0.0.0:0", "[::]:0", "192.0.2.1:80", "10.0.0.1:0"};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(far); i++) {
        options.listen = far[i];
        assert_refused(dp_rest_server_new(&options, &server, &err), DP_DENIED, &err, "loopback");
    }
    static const char *const wrong[] = {
        "", "80", ":80", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:65536", "example.org:80"};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(wrong); i++) {
        options.listen = wrong[i];
        assert_refused(dp_rest_server_new(&options, &server, &err), DP_INVALID, &err, "127.0.0.1");
    }
    options.listen = "localhost:0";
    assert_ok(dp_rest_server_new(&options, &server, &err), &err);
    struct dp_rest_server *second = NULL;
    options.listen = dp_rest_server_address(server);
    assert_refused(dp_rest_server_new(&options, &second, &err), DP_CONFLICT, &err, "in use");
    dp_rest_server_free(server);
}

static void damaged_requests_do_no_harm(void **state)
{
    struct fixture *f = *state;
    static const char whole[] = "POST /v1/jobs?file=a%20b HTTP/1.1\r\n" HOST JSON
                                "Content-Length: 18\r\nConnection: close\r\n\r\n"
                                "{\"job_toml\":\"abc\"}";
    uint64_t random = 88172645463325252u;
    for (long run = 0; run < dp_fuzz_runs(300); run++) {
        char request[sizeof whole];
        memcpy(request, whole, sizeof whole);
        for (int i = 0; i < 3; i++) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            request[random % (sizeof whole - 1)] = (char)(random >> 32);
        }
        struct dp_buf out = {0};
        DP_AUTO_CLOSE int fd = dial(f);
        send_all(f, fd, request, sizeof whole - 1);
        shutdown(fd, SHUT_WR);
        receive(f, fd, NULL, &out);
        dp_buf_deinit(&out);
    }
    assert_answer(f, "GET /metrics HTTP/1.1\r\n" HOST CLOSE, "HTTP/1.1 200", "up 1");
}

#define WITH(test, set_up_of) cmocka_unit_test_setup_teardown(test, set_up_of, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH(fields_come_from_the_query, set_up),
        WITH(fields_come_from_the_path_decoded, set_up),
        WITH(fields_come_from_a_body_of_json, set_up),
        WITH(a_body_in_chunks_is_put_together, set_up),
        WITH(a_job_file_may_be_sent_as_it_is, set_up),
        WITH(what_is_not_there_is_told_with_what_is, set_up),
        WITH(a_query_of_any_number_of_parts_is_answered, set_up),
        WITH(pages_of_other_sites_get_nothing, set_up),
        WITH(a_body_over_the_limit_is_refused_however_it_comes, set_up),
        WITH(one_connection_serves_several_requests, set_up),
        WITH(an_answer_may_come_later, set_up),
        WITH(a_client_that_leaves_cancels_its_call, set_up),
        WITH(more_calls_than_there_is_room_for_are_told_to_wait, set_up_narrow),
        WITH(a_stopping_server_answers_what_is_open, set_up),
        WITH(a_stream_is_one_object_a_line, set_up),
        WITH(a_stream_that_fails_says_so_and_breaks_off, set_up),
        WITH(a_reader_that_does_not_read_costs_a_bounded_queue, set_up),
        WITH(a_request_that_does_not_get_ready_is_cut_off, set_up_impatient),
        WITH(requests_are_counted_by_what_they_asked_for, set_up),
        cmocka_unit_test(only_loopback_is_listened_on),
        WITH(damaged_requests_do_no_harm, set_up_impatient),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
