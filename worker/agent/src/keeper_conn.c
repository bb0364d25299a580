#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/log.h"
#include "worker.h"

#define SOCKET_NAME "keeper.sock"
#define CONNECT_MS 10000

static struct keeper_conn *conn_new(struct worker *worker, const struct dp_agent_fence *fence)
{
    struct keeper_conn *conn = dp_new(struct keeper_conn);
    conn->worker = worker;
    conn->fence = *fence;
    conn->directory = directory_of(worker->options.state_dir, fence);
    conn->link.fd = -1;
    conn->give_up_ns = worker_now_ns() + CONNECT_MS * DP_NS_PER_MS;
    conn->next = worker->keepers;
    worker->keepers = conn;
    return conn;
}

static void free_handle(uv_handle_t *handle)
{
    free(handle);
}

static void disconnect(struct keeper_conn *conn)
{
    if (conn->poll != NULL) {
        (void)uv_poll_stop(conn->poll);
        uv_close((uv_handle_t *)conn->poll, free_handle);
        conn->poll = NULL;
    }
    dp_link_deinit(&conn->link);
}

void keeper_free(struct keeper_conn *conn)
{
    disconnect(conn);
    dp_buf_deinit(&conn->prepare);
    free(conn->directory);
    free(conn);
}

struct keeper_conn *keeper_find(struct worker *worker, const struct dp_agent_fence *fence)
{
    for (struct keeper_conn *conn = worker->keepers; conn != NULL; conn = conn->next) {
        if (!conn->over && dp_agent_fence_equal(&conn->fence, fence)) {
            return conn;
        }
    }
    return NULL;
}

bool keeper_is_settled(const struct keeper_conn *conn)
{
    return conn->over || (conn->poll != NULL && conn->synced);
}

static void report_failure(struct worker *worker, const struct dp_agent_fence *fence,
                           const char *text)
{
    struct dp_agent_event event = {
        .type = DP_AGENT_KEEPER_FAILED,
        .fence = *fence,
        .text = text,
    };
    worker_event(worker, &event);
}

static dp_status start_process(struct keeper_conn *conn, struct dp_error *err)
{
    const struct worker_options *options = &conn->worker->options;
    DP_AUTO_FREE char *log = dp_asprintf("%s/keeper.log", conn->directory);
    DP_AUTO_FREE char *lease = dp_asprintf("%u", options->lease_ms);
    char *arguments[] = {
        (char *)options->keeper_program,
        (char *)"--directory",
        conn->directory,
        (char *)"--socket",
        (char *)SOCKET_NAME,
        (char *)"--lease-ms",
        lease,
        NULL,
    };
    return child_start(arguments, NULL, log, &conn->child, err);
}

void keeper_start(struct worker *worker, const struct dp_agent_fence *fence, const void *prepare,
                  size_t length)
{
    struct dp_error err = {0};
    struct keeper_conn *conn = conn_new(worker, fence);
    dp_buf_append(&conn->prepare, prepare, length);
    dp_status status = directory_make(conn->directory, prepare, length, &err);
    if (status == DP_OK) {
        status = start_process(conn, &err);
    }
    if (status != DP_OK) {
        conn->over = true;
        report_failure(worker, fence, err.message);
    }
    worker_hurry(worker);
}

void keeper_adopt(struct worker *worker, const struct dp_agent_fence *fence, struct dp_buf *prepare)
{
    struct keeper_conn *conn = conn_new(worker, fence);
    conn->prepare = *prepare;
    *prepare = (struct dp_buf){0};
    worker_hurry(worker);
}

static void on_poll(uv_poll_t *poll, int status, int events);

static void watch(struct keeper_conn *conn)
{
    int events = UV_READABLE | (dp_link_wants_write(&conn->link) ? UV_WRITABLE : 0);
    (void)uv_poll_start(conn->poll, events, on_poll);
}

dp_status keeper_send(struct keeper_conn *conn, const struct dp_link_frame *frame,
                      struct dp_error *err)
{
    if (conn->poll == NULL) {
        return dp_fail(err, DP_UNAVAILABLE, "the keeper is not connected");
    }
    dp_status status = dp_link_queue(&conn->link, frame, err);
    if (status != DP_OK) {
        dp_log_warn("keeper.not_told", "job=%s type=%d reason=\"%s\"", conn->fence.job,
                    (int)frame->type, err->message);
    }
    watch(conn);
    return status;
}

// Hands over every frame that has come; a keeper that breaks the protocol is left.
static dp_status take_frames(struct keeper_conn *conn, struct dp_error *err)
{
    for (;;) {
        struct dp_link_frame frame;
        dp_status status = dp_link_next(&conn->link, &frame, err);
        if (status != DP_OK || frame.type == DP_LINK_NONE) {
            return status;
        }
        status = keeper_frame(conn, &frame, err);
        if (status != DP_OK || conn->poll == NULL) {
            return status;
        }
    }
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
    struct keeper_conn *conn = poll->data;
    struct dp_error err = {0};
    dp_status result = status < 0 ? DP_IO : DP_OK;
    if (result == DP_OK && (events & UV_WRITABLE) != 0) {
        result = dp_link_flush(&conn->link, &err);
    }
    if (result == DP_OK) {
        (void)dp_link_read(&conn->link, NULL);
        result = take_frames(conn, &err);
    }
    if (conn->poll == NULL) {
        return;
    }
    if (result != DP_OK || conn->link.at_end) {
        disconnect(conn);
        conn->give_up_ns = worker_now_ns() + CONNECT_MS * DP_NS_PER_MS;
        conn->synced = false;
        worker_hurry(conn->worker);
        return;
    }
    watch(conn);
}

static bool connect_to(struct keeper_conn *conn)
{
    int fd;
    if (dp_link_connect(conn->directory, SOCKET_NAME, &fd, NULL) != DP_OK) {
        return false;
    }
    dp_link_init(&conn->link, fd, 4 * DP_LINK_OUT_BYTES_MAX);
    conn->poll = dp_new(uv_poll_t);
    conn->poll->data = conn;
    (void)uv_poll_init(&conn->worker->loop, conn->poll, fd);
    watch(conn);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf payload = {0};
    struct dp_link_hello hello = {
        .protocol = DP_LINK_PROTOCOL,
        .lease_ms = conn->worker->options.lease_ms,
        .pid = getpid(),
    };
    dp_link_hello_write(&hello, &payload);
    struct dp_link_frame frame = {
        .type = DP_LINK_HELLO,
        .payload = payload.bytes,
        .length = payload.length,
    };
    struct dp_error err = {0};
    return keeper_send(conn, &frame, &err) == DP_OK;
}

// The keeper's end is known once its process was reaped, or, for one of another life, once its
// lock is free.
static bool has_ended(struct keeper_conn *conn, int *ret_status)
{
    *ret_status = 0;
    if (conn->child > 0) {
        if (!child_ended(conn->child, ret_status, &conn->signal)) {
            return false;
        }
        conn->child = 0;
        return true;
    }
    return !directory_has_keeper(conn->directory);
}

static void on_ended(struct keeper_conn *conn, int status)
{
    struct worker *worker = conn->worker;
    conn->over = true;
    // A keeper that was killed could not remove its socket.
    DP_AUTO_FREE char *socket_path = dp_asprintf("%s/%s", conn->directory, SOCKET_NAME);
    (void)unlink(socket_path);
    if (conn->released) {
        return;
    }
    if (!conn->was_synced && status != 0) {
        DP_AUTO_FREE char *text = dp_asprintf("the keeper ended with status %d; see %s/keeper.log",
                                              status, conn->directory);
        report_failure(worker, &conn->fence, text);
        return;
    }
    // Events may let the assignment go; the connection stays until the tick is over.
    keeper_replay_file(conn);
    struct dp_agent_event event = {
        .type = DP_AGENT_KEEPER_ENDED,
        .fence = conn->fence,
        .signal = conn->signal,
    };
    worker_event(worker, &event);
}

void keeper_tick(struct keeper_conn *conn)
{
    int64_t now_ns = worker_now_ns();
    if (conn->over) {
        return;
    }
    if (conn->poll != NULL) {
        if (now_ns >= conn->ping_ns) {
            conn->ping_ns = now_ns + conn->worker->options.lease_ms * DP_NS_PER_MS / 4;
            struct dp_error err = {0};
            (void)keeper_send(conn, &(struct dp_link_frame){.type = DP_LINK_PING}, &err);
        }
        return;
    }
    int status;
    if (has_ended(conn, &status)) {
        on_ended(conn, status);
    } else if (!connect_to(conn) && now_ns > conn->give_up_ns) {
        conn->over = true;
        report_failure(conn->worker, &conn->fence,
                       "the keeper lives but its socket "
                       "could not be reached");
    }
}

static dp_status send_spawn(struct keeper_conn *conn, uint32_t rank, const struct dp_buf *order,
                            struct dp_error *err)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf payload = {0};
    DP_AUTO_FREE char *number = dp_asprintf("%u", rank);
    char *arguments[] = {
        (char *)conn->worker->options.rank_program,
        (char *)"--control-fd",
        (char *)"3",
        (char *)"--rank",
        number,
        NULL,
    };
    struct dp_link_spawn spawn = {
        .arguments = arguments,
        .environment = environ,
        .order = order->bytes,
        .order_length = order->length,
    };
    dp_link_spawn_write(&spawn, &payload);
    struct dp_link_frame frame = {
        .type = DP_LINK_SPAWN,
        .rank = rank,
        .payload = payload.bytes,
        .length = payload.length,
    };
    return keeper_send(conn, &frame, err);
}

void keeper_spawn_rank(struct keeper_conn *conn, uint32_t rank)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf order = {0};
    struct dp_error err = {0};
    dp_status status = orders_prepare_rank(conn->worker, &conn->prepare, rank, &order, &err);
    if (status == DP_OK) {
        status = send_spawn(conn, rank, &order, &err);
    }
    // When the keeper went away just now, its end says the same of all ranks.
    if (status != DP_OK && status != DP_UNAVAILABLE) {
        struct dp_agent_event event = {
            .type = DP_AGENT_EXITED,
            .fence = conn->fence,
            .rank = rank,
            .status = 127,
            .text = err.message,
        };
        worker_event(conn->worker, &event);
    }
}
