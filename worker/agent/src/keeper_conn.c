#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/log.h"
#include "worker.h"

#define ANSWER_NS (DP_AGENT_KEEPER_ANSWER_MS * DP_NS_PER_MS)

static struct keeper_conn *conn_new(struct worker *worker, const struct dp_agent_fence *fence)
{
    struct keeper_conn *conn = dp_new(struct keeper_conn);
    conn->worker = worker;
    conn->fence = *fence;
    conn->directory = directory_of(worker->options.state_dir, fence);
    conn->link.fd = -1;
    conn->give_up_ns = worker_now_ns() + ANSWER_NS;
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

// Whatever was not read is lost, and nobody can tell what was: the core asks the keeper when it is
// connected again.
static void lose(struct keeper_conn *conn)
{
    if (conn->poll == NULL) {
        return;
    }
    disconnect(conn);
    conn->synced = false;
    conn->broken = false;
    if (!conn->released) {
        struct dp_agent_event event = {.type = DP_AGENT_KEEPER_LEFT, .fence = conn->fence};
        worker_event(conn->worker, &event);
    }
    worker_hurry(conn->worker);
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

static void report(const struct keeper_conn *conn, dp_agent_event_type type, const char *text)
{
    struct dp_agent_event event = {.type = type, .fence = conn->fence, .text = text};
    worker_event(conn->worker, &event);
}

static dp_status start_process(struct keeper_conn *conn, struct dp_error *err)
{
    const struct worker_options *options = &conn->worker->options;
    DP_AUTO_FREE char *log = dp_asprintf("%s/keeper.log", conn->directory);
    DP_AUTO_FREE char *lease = dp_asprintf("%u", options->lease_ms);
    char *arguments[] = {
        (char *)options->keeper_program, (char *)"--directory", conn->directory, (char *)"--socket",
        (char *)KEEPER_SOCKET,           (char *)"--lease-ms",  lease,           NULL,
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
        conn->is_ours = status == DP_OK;
    }
    if (status != DP_OK) {
        conn->over = true;
        report(conn, DP_AGENT_KEEPER_FAILED, err.message);
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
        // Its frames may be in use right now, so the connection is closed later.
        conn->broken = true;
        worker_hurry(conn->worker);
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
        conn->give_up_ns = worker_now_ns() + ANSWER_NS;
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
        lose(conn);
        return;
    }
    watch(conn);
}

static void connect_to(struct keeper_conn *conn)
{
    int fd;
    if (dp_link_connect(conn->directory, KEEPER_SOCKET, &fd, &conn->unconnected) != DP_OK) {
        return;
    }
    conn->unconnected = (struct dp_error){0};
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
    (void)keeper_send(conn, &frame, &err);
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
    DP_AUTO_FREE char *socket_path = dp_asprintf("%s/%s", conn->directory, KEEPER_SOCKET);
    (void)unlink(socket_path);
    if (conn->released) {
        return;
    }
    if (conn->is_ours && !conn->was_synced && conn->signal == 0) {
        DP_AUTO_FREE char *text = dp_asprintf(
            "the keeper ended with status %d before it was reached%s%s; see %s/keeper.log", status,
            conn->unconnected.status == DP_OK ? "" : ": ", conn->unconnected.message,
            conn->directory);
        report(conn, DP_AGENT_KEEPER_FAILED, text);
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

// Renews the lease, and asks for a sign of life.
static void ping(struct keeper_conn *conn, int64_t now_ns)
{
    int64_t lease_ns = conn->worker->options.lease_ms * DP_NS_PER_MS;
    if (now_ns >= conn->ping_ns) {
        conn->ping_ns = now_ns + (lease_ns < ANSWER_NS ? lease_ns : ANSWER_NS) / 4;
        struct dp_error err = {0};
        (void)keeper_send(conn, &(struct dp_link_frame){.type = DP_LINK_PING}, &err);
    }
}

// It is not known to be dead, and neither are its ranks.
static void miss(struct keeper_conn *conn)
{
    lose(conn);
    conn->give_up_ns = worker_now_ns() + ANSWER_NS;
    if (conn->released) {
        keeper_kill(conn);
        return;
    }
    DP_AUTO_FREE char *text =
        dp_asprintf("the keeper in %s lives and has not answered for %d s%s%s; what its ranks do "
                    "is not known, and it is asked again",
                    conn->directory, DP_AGENT_KEEPER_ANSWER_MS / 1000,
                    conn->unconnected.status == DP_OK ? "" : ": ", conn->unconnected.message);
    report(conn, DP_AGENT_KEEPER_UNREACHABLE, text);
}

void keeper_tick(struct keeper_conn *conn)
{
    int64_t now_ns = worker_now_ns();
    int status;
    if (conn->over) {
        return;
    }
    if (conn->broken) {
        lose(conn);
    }
    if (conn->poll != NULL) {
        ping(conn, now_ns);
    } else if (has_ended(conn, &status)) {
        on_ended(conn, status);
        return;
    } else {
        connect_to(conn);
    }
    if (now_ns > conn->give_up_ns) {
        miss(conn);
    }
}

void keeper_kill(struct keeper_conn *conn)
{
    pid_t pid = conn->child > 0 ? conn->child : directory_keeper_pid(conn->directory);
    if (pid > 0) {
        dp_log_warn("keeper.killed", "job=%s pid=%d reason=\"it does not answer\"", conn->fence.job,
                    (int)pid);
        (void)kill(pid, SIGKILL);
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
    if (payload.length > DP_FRAME_BYTES_MAX) {
        return dp_fail(err, DP_TOO_LARGE, "rank %u needs %zu bytes to start; the limit is %u", rank,
                       payload.length, DP_FRAME_BYTES_MAX);
    }
    // One that is lost is sent again: the keeper will not know of the rank.
    (void)keeper_send(conn, &frame, err);
    return DP_OK;
}

void keeper_spawn_rank(struct keeper_conn *conn, uint32_t rank)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf order = {0};
    struct dp_error err = {0};
    dp_status status = orders_prepare_rank(conn->worker, &conn->prepare, rank, &order, &err);
    if (status == DP_OK) {
        status = send_spawn(conn, rank, &order, &err);
    }
    if (status != DP_OK) {
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
