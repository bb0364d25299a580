// The HTTP door in the loop: the handlers that serve gRPC serve it, too.
#include <stdlib.h>
#include <string.h>

#include "daemon.h"
#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/log.h"

static void on_timer(uv_timer_t *timer);

static void pump(struct daemon *daemon)
{
    dp_rest_server_pump(daemon->rest);
    int timeout_ms = dp_rest_server_timeout_ms(daemon->rest);
    if (timeout_ms < 0) {
        uv_timer_stop(&daemon->rest_timer);
    } else if (!uv_is_closing((uv_handle_t *)&daemon->rest_timer)) {
        // Never 0: the loop runs what is due until nothing is, and the library stays due for as
        // long as it cannot make anything of what a client sent. Nobody else would be served.
        uv_update_time(&daemon->loop);
        uv_timer_start(&daemon->rest_timer, on_timer, timeout_ms == 0 ? 1 : (uint64_t)timeout_ms,
                       0);
    }
}

static void on_timer(uv_timer_t *timer)
{
    pump(timer->data);
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
    (void)status;
    (void)events;
    pump(poll->data);
}

// Those of gRPC, but for agents' sessions.
static size_t take_handlers(const struct dp_rpc_handler *handlers, size_t count,
                            struct dp_rest_handler *ret_handlers)
{
    size_t taken = 0;
    for (size_t i = 0; i < count; i++) {
        if (dp_methods[handlers[i].method].http_verb != NULL) {
            ret_handlers[taken++] = (struct dp_rest_handler){
                .method = handlers[i].method,
                .on_message = handlers[i].on_message,
                .on_writable = handlers[i].on_writable,
                .on_closed = handlers[i].on_closed,
            };
        }
    }
    return taken;
}

dp_status rest_start(struct daemon *daemon, const struct dp_rpc_handler *handlers, size_t count,
                     struct dp_error *err)
{
    // Borrowed by the server, which lives as long as the process does.
    static struct dp_rest_handler own[DP_METHOD_COUNT];
    static const struct dp_rest_page pages[] = {
        {.path = "/metrics",
         .content_type = METRICS_CONTENT_TYPE,
         .summary = "figures for Prometheus",
         .write = metrics_write},
    };
    struct dp_rest_server_options options = {
        .listen = daemon->options.http_listen,
        .handlers = own,
        .handlers_count = take_handlers(handlers, count, own),
        .pages = pages,
        .pages_count = DP_ARRAY_LENGTH(pages),
        .context = daemon,
    };
    if (daemon->options.http_listen == NULL) {
        return DP_OK;
    }
    dp_status status = dp_rest_server_new(&options, &daemon->rest, err);
    if (status != DP_OK) {
        return dp_fail_in(err, "--http-port");
    }
    const char *address = dp_rest_server_address(daemon->rest);
    dp_log_info("controller.http", "address=%s", address);
    uv_timer_init(&daemon->loop, &daemon->rest_timer);
    uv_poll_init(&daemon->loop, &daemon->rest_poll, dp_rest_server_fd(daemon->rest));
    daemon->rest_timer.data = daemon->rest_poll.data = daemon;
    uv_poll_start(&daemon->rest_poll, UV_READABLE, on_readable);
    if (daemon->options.http_address_file != NULL) {
        DP_AUTO_FREE char *line = dp_asprintf("%s\n", address);
        return dp_write_file(daemon->options.http_address_file, line, strlen(line), err);
    }
    return DP_OK;
}

void rest_stop(struct daemon *daemon, unsigned grace_ms)
{
    if (daemon->rest != NULL) {
        dp_rest_server_stop(daemon->rest, grace_ms);
    }
}
