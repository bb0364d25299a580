#include "server.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <utlist.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/clock.h"
#include "dp/log.h"

#define EVENTS_AT_ONCE 64
#define ROUNDS_AT_ONCE 16
#define ROOM_KEPT 16
#define STALLED_S 60 // without a byte either way

int64_t dp_rest_now_ns(void)
{
    return dp_clock_monotonic_ns();
}

static void watch(struct rest_connection *connection, bool on)
{
    if (connection->watched == on) {
        return;
    }
    // Its end alone: what a client sends ahead is none of our business yet.
    struct epoll_event event = {.events = EPOLLRDHUP, .data.ptr = connection};
    int epoll_fd = connection->server->epoll_fd;
    DP_CHECK(epoll_ctl(epoll_fd, on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, connection->fd, &event) == 0);
    connection->watched = on;
}

void dp_rest_suspend(struct rest_request *request)
{
    DP_CHECK(!request->suspended);
    request->suspended = true;
    MHD_suspend_connection(request->mhd);
    watch(request->connection, true);
}

void dp_rest_resume(struct rest_request *request)
{
    if (request->suspended) {
        request->suspended = false;
        watch(request->connection, false);
        MHD_resume_connection(request->mhd);
        uint64_t one = 1;
        DP_CHECK(write(request->server->wake_fd, &one, sizeof one) == sizeof one);
    }
}

// Before the last places are taken: the connection that has been idle for longest goes, so that
// clients that only hold theirs keep nobody out.
static void make_room(struct dp_rest_server *server)
{
    if (server->connections_count + ROOM_KEPT < server->connections_max) {
        return;
    }
    struct rest_connection *connection = NULL;
    DL_FOREACH(server->connections, connection)
    {
        bool is_idle = connection->request == NULL || !connection->request->begun;
        if (is_idle && !connection->closing) {
            connection->closing = true;
            shutdown(connection->fd, SHUT_RDWR);
            return;
        }
    }
}

static void on_connection(void *context, struct MHD_Connection *mhd, void **socket_context,
                          enum MHD_ConnectionNotificationCode code)
{
    struct dp_rest_server *server = context;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        struct rest_connection *connection = dp_new(struct rest_connection);
        connection->server = server;
        connection->fd =
            MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
        connection->deadline_ns = dp_rest_now_ns() + server->headers_ns;
        make_room(server);
        DL_APPEND(server->connections, connection);
        server->connections_count++;
        *socket_context = connection;
        return;
    }
    struct rest_connection *connection = *socket_context;
    if (connection->request != NULL) {
        // The library forgets to tell of a request for which it had no room.
        void *request = connection->request;
        dp_rest_on_completed(server, mhd, &request, MHD_REQUEST_TERMINATED_WITH_ERROR);
    }
    watch(connection, false);
    DL_DELETE(server->connections, connection);
    server->connections_count--;
    free(connection);
    *socket_context = NULL;
}

static void on_log(void *context, const char *format, va_list args)
{
    (void)context;
    char text[512], quoted[1100];
    vsnprintf(text, sizeof text, format, args);
    text[strcspn(text, "\n")] = '\0';
    dp_log_debug("http.library", "text=%s", dp_log_quote(quoted, sizeof quoted, text));
}

// The listening socket is the library's from here on, also when it does not start.
static dp_status start_library(struct dp_rest_server *server, int fd, bool is_ipv6,
                               struct dp_error *err)
{
    unsigned flags =
        MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG | (is_ipv6 ? MHD_USE_IPv6 : 0);
    server->mhd = MHD_start_daemon(
        flags, 0, NULL, NULL, dp_rest_on_request, server, MHD_OPTION_EXTERNAL_LOGGER, on_log,
        server, MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_URI_LOG_CALLBACK, dp_rest_on_uri, server,
        MHD_OPTION_NOTIFY_COMPLETED, dp_rest_on_completed, server, MHD_OPTION_NOTIFY_CONNECTION,
        on_connection, server, MHD_OPTION_CONNECTION_LIMIT, (unsigned)server->connections_max,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)DP_REST_HEADER_BYTES_MAX,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)STALLED_S, MHD_OPTION_STRICT_FOR_CLIENT, 1,
        MHD_OPTION_END);
    if (server->mhd == NULL) {
        close(fd);
        return dp_fail(err, DP_INTERNAL, "the HTTP library does not start on %s", server->address);
    }
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(server->mhd, MHD_DAEMON_INFO_EPOLL_FD);
    struct epoll_event event = {.events = EPOLLIN};
    DP_CHECK(info != NULL &&
             epoll_ctl(server->epoll_fd, EPOLL_CTL_ADD, info->epoll_fd, &event) == 0);
    return DP_OK;
}

static int64_t ns_or(unsigned ms, unsigned fallback_ms)
{
    return (int64_t)(ms == 0 ? fallback_ms : ms) * DP_NS_PER_MS;
}

dp_status dp_rest_server_new(const struct dp_rest_server_options *options,
                             struct dp_rest_server **ret_server, struct dp_error *err)
{
    char address[DP_ADDRESS_MAX];
    bool is_ipv6 = false;
    int fd = -1;
    dp_status status = dp_rest_listen(options->listen, &fd, &is_ipv6, address, sizeof address, err);
    if (status != DP_OK) {
        return status;
    }
    struct dp_rest_server *server = dp_new(struct dp_rest_server);
    DP_COPY_TEXT(server->address, address);
    server->handlers = options->handlers;
    server->handlers_count = options->handlers_count;
    server->pages = options->pages;
    server->pages_count = options->pages_count;
    server->context = options->context;
    server->headers_ns = ns_or(options->headers_ms, 10000);
    server->body_ns = ns_or(options->body_ms, 30000);
    server->answer_ns = ns_or(options->answer_ms, 60000);
    server->connections_max =
        options->connections_max == 0 ? DP_REST_CONNECTIONS_MAX : options->connections_max;
    server->calls_max = options->calls_max == 0 ? DP_REST_CALLS_MAX : options->calls_max;
    server->next_id = 1;
    server->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    server->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN};
    DP_CHECK(server->epoll_fd >= 0 && server->wake_fd >= 0 &&
             epoll_ctl(server->epoll_fd, EPOLL_CTL_ADD, server->wake_fd, &event) == 0);
    dp_rest_routes_make(server);
    status = start_library(server, fd, is_ipv6, err);
    if (status != DP_OK) {
        dp_rest_server_free(server);
        return status;
    }
    *ret_server = server;
    return DP_OK;
}

const char *dp_rest_server_address(const struct dp_rest_server *server)
{
    return server->address;
}

int dp_rest_server_fd(const struct dp_rest_server *server)
{
    return server->epoll_fd;
}

static int64_t next_deadline_ns(const struct dp_rest_server *server)
{
    int64_t next_ns = INT64_MAX;
    const struct rest_connection *connection = NULL;
    DL_FOREACH(server->connections, connection)
    {
        if (connection->deadline_ns != 0 && connection->deadline_ns < next_ns) {
            next_ns = connection->deadline_ns;
        }
    }
    return next_ns;
}

static bool library_is_due(const struct dp_rest_server *server)
{
    MHD_UNSIGNED_LONG_LONG ms = 0;
    return MHD_get_timeout(server->mhd, &ms) == MHD_YES && ms == 0;
}

int dp_rest_server_timeout_ms(const struct dp_rest_server *server)
{
    if (server->stopped) {
        return -1;
    }
    MHD_UNSIGNED_LONG_LONG library_ms = 0;
    bool library_waits = MHD_get_timeout(server->mhd, &library_ms) == MHD_YES;
    int64_t next_ns = next_deadline_ns(server);
    int64_t ms = INT32_MAX;
    if (next_ns != INT64_MAX) {
        int64_t left_ns = next_ns - dp_rest_now_ns();
        ms = left_ns <= 0 ? 0 : left_ns / DP_NS_PER_MS + 1;
    }
    if (library_waits && library_ms < (MHD_UNSIGNED_LONG_LONG)ms) {
        ms = (int64_t)library_ms;
    }
    return ms >= INT32_MAX ? -1 : (int)ms;
}

// The client closed its end while its request waited for the answer.
static void client_left(struct rest_connection *connection)
{
    struct rest_request *request = connection->request;
    DP_CHECK(request != NULL && request->suspended);
    request->left = true;
    dp_rest_call_over(request, true);
    dp_rest_resume(request);
}

static void look_for_leavers(struct dp_rest_server *server)
{
    struct epoll_event events[EVENTS_AT_ONCE];
    uint64_t wakes = 0;
    if (read(server->wake_fd, &wakes, sizeof wakes) < 0) {
        DP_CHECK(errno == EAGAIN);
    }
    int count = epoll_wait(server->epoll_fd, events, EVENTS_AT_ONCE, 0);
    for (int i = 0; i < count; i++) {
        struct rest_connection *connection = events[i].data.ptr;
        // What one leaver's end led to may have answered the next.
        if (connection != NULL && connection->watched) {
            client_left(connection);
        }
    }
}

static void tell_writable(struct dp_rest_server *server)
{
    struct rest_request *request = NULL, *next = NULL;
    HASH_ITER(hh, server->calls, request, next)
    {
        if (request->writable_due && !request->left && !request->finished) {
            request->writable_due = request->send_refused = request->wake = false;
            const struct dp_rest_handler *handler = request->route->handler;
            if (handler->on_writable != NULL) {
                handler->on_writable(server->context, request->id);
            }
        }
    }
}

// A call that took too long gets an answer; a client that did, none.
static void time_out(struct rest_connection *connection)
{
    struct rest_request *request = connection->request;
    connection->deadline_ns = 0;
    if (request != NULL && request->suspended && request->response == NULL) {
        dp_rest_call_over(request, true);
        const struct dp_method *method = &dp_methods[request->route->handler->method];
        dp_rest_refuse_as(request, (unsigned)dp_status_http_code(DP_TIMEOUT), DP_TIMEOUT,
                          "%s had no answer within %u s", method->http_path,
                          method->deadline_ms / 1000);
    } else {
        shutdown(connection->fd, SHUT_RDWR);
    }
}

static void look_for_late(struct dp_rest_server *server)
{
    int64_t now_ns = dp_rest_now_ns();
    struct rest_connection *connection = NULL, *next = NULL;
    DL_FOREACH_SAFE(server->connections, connection, next)
    {
        if (connection->deadline_ns != 0 && connection->deadline_ns <= now_ns) {
            time_out(connection);
        }
    }
}

void dp_rest_server_pump(struct dp_rest_server *server)
{
    if (server->stopped) {
        return;
    }
    look_for_leavers(server);
    look_for_late(server);
    for (int i = 0; i == 0 || (i < ROUNDS_AT_ONCE && library_is_due(server)); i++) {
        MHD_run(server->mhd);
        tell_writable(server);
    }
}

static void end_calls(struct dp_rest_server *server)
{
    struct rest_request *request = NULL, *next = NULL;
    HASH_ITER(hh, server->calls, request, next)
    {
        uint64_t id = request->id;
        dp_rest_call_over(request, true);
        dp_rest_call_fail(server, id, DP_UNAVAILABLE,
                          "the server is stopping; try again in a moment");
    }
}

void dp_rest_server_stop(struct dp_rest_server *server, unsigned grace_ms)
{
    if (server->stopped) {
        return;
    }
    server->stopping = true;
    int64_t end_ns = dp_rest_now_ns() + (int64_t)grace_ms * DP_NS_PER_MS;
    end_calls(server);
    do {
        dp_rest_server_pump(server);
        end_calls(server);
        struct pollfd poll_fd = {.fd = server->epoll_fd, .events = POLLIN};
        if (HASH_COUNT(server->calls) > 0 && dp_rest_now_ns() < end_ns) {
            poll(&poll_fd, 1, 10);
        }
    } while (HASH_COUNT(server->calls) > 0 && dp_rest_now_ns() < end_ns);
    // The library must not be stopped while it waits for us.
    struct rest_connection *connection = NULL, *next = NULL;
    DL_FOREACH_SAFE(server->connections, connection, next)
    {
        if (connection->request != NULL) {
            connection->request->left = true;
            dp_rest_resume(connection->request);
        }
    }
    MHD_stop_daemon(server->mhd);
    server->mhd = NULL;
    server->stopped = true;
}

void dp_rest_server_free(struct dp_rest_server *server)
{
    if (server == NULL) {
        return;
    }
    if (server->mhd != NULL) {
        dp_rest_server_stop(server, 0);
    }
    close(server->wake_fd);
    close(server->epoll_fd);
    dp_buf_deinit(&server->openapi);
    free(server->routes);
    free(server->counters);
    free(server);
}

bool dp_rest_server_count(const struct dp_rest_server *server, size_t index,
                          struct dp_rest_count *ret_count)
{
    if (index >= server->counters_count) {
        return false;
    }
    const struct rest_counter *counter = &server->counters[index];
    const struct rest_route *route = counter->route;
    *ret_count = (struct dp_rest_count){
        .verb = route == NULL ? "other" : route->verb,
        .path = route == NULL ? "other" : route->path,
        .code = (int)counter->code,
        .count = counter->count,
    };
    return true;
}

size_t dp_rest_server_connections(const struct dp_rest_server *server)
{
    return server->connections_count;
}

size_t dp_rest_server_calls(const struct dp_rest_server *server)
{
    return HASH_COUNT(server->calls);
}
