#include "receive.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/tcp.h"

static dp_status fail_io(const struct source *source, int errnum, const char *what,
                         struct dp_error *err)
{
    dp_fail(err, DP_UNAVAILABLE, "rank %d at %s %s%s%s", source->rank, source->address, what,
            errnum == 0 ? "" : ": ", errnum == 0 ? "" : strerrordesc_np(errnum));
    return DP_UNAVAILABLE;
}

// Until the socket is ready, and looks once when that is past.
static dp_status await(const struct source *source, short events, int64_t deadline_ns,
                       struct dp_error *err)
{
    for (;;) {
        struct pollfd poll_fd = {.fd = source->fd, .events = events};
        const int64_t left_ms = (deadline_ns - dp_clock_monotonic_ns()) / DP_NS_PER_MS;
        const int ready = poll(&poll_fd, 1, left_ms <= 0 ? 0 : (int)left_ms + 1);
        if (ready > 0) {
            return DP_OK;
        }
        if (ready == 0) {
            return fail_io(source, 0, "has said nothing for too long", err);
        }
        if (errno != EINTR) {
            return fail_io(source, errno, "cannot be heard", err);
        }
    }
}

static int64_t silence_ends_ns(const struct source *source)
{
    return dp_clock_monotonic_ns() + source->silent_ms * DP_NS_PER_MS;
}

static dp_status send_all(const struct source *source, const void *bytes, size_t length,
                          struct dp_error *err)
{
    const char *at = bytes;
    while (length > 0) {
        const ssize_t sent = send(source->fd, at, length, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN && errno != EINTR) {
            return fail_io(source, errno, "has gone", err);
        }
        if (sent < 0) {
            dp_status status = await(source, POLLOUT, silence_ends_ns(source), err);
            if (status != DP_OK) {
                return status;
            }
            continue;
        }
        at += sent;
        length -= (size_t)sent;
    }
    return DP_OK;
}

static dp_status take_all(const struct source *source, void *ret_bytes, size_t length,
                          int64_t deadline_ns, struct dp_error *err)
{
    char *at = ret_bytes;
    while (length > 0) {
        const ssize_t got = recv(source->fd, at, length, 0);
        if (got == 0) {
            return fail_io(source, 0, "has closed", err);
        }
        if (got < 0 && errno != EAGAIN && errno != EINTR) {
            return fail_io(source, errno, "has gone", err);
        }
        if (got < 0) {
            dp_status status =
                await(source, POLLIN, deadline_ns > 0 ? deadline_ns : silence_ends_ns(source), err);
            if (status != DP_OK) {
                return status;
            }
            continue;
        }
        at += got;
        length -= (size_t)got;
    }
    return DP_OK;
}

dp_status dp_state_source_dial(struct source *source, struct dp_error *err)
{
    struct sockaddr_storage to = {0};
    socklen_t length;
    dp_status status = dp_tcp_resolve(source->address, &to, &length, err);
    if (status != DP_OK) {
        return dp_fail_in(err, "rank %d", source->rank);
    }
    DP_AUTO_CLOSE int fd = socket(to.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || (connect(fd, (struct sockaddr *)&to, length) != 0 && errno != EINPROGRESS)) {
        return fail_io(source, errno, "cannot be reached", err);
    }
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    source->fd = dp_steal_fd(&fd);
    return DP_OK;
}

dp_status dp_state_source_greet(struct source *source, uint64_t token, int32_t self,
                                struct dp_error *err)
{
    unsigned char hello[STATE_HELLO_BYTES];
    int errnum = 0;
    socklen_t length = sizeof errnum;
    getsockopt(source->fd, SOL_SOCKET, SO_ERROR, &errnum, &length);
    if (errnum != 0) {
        return fail_io(source, errnum, "cannot be reached", err);
    }
    dp_state_put_hello(hello, token, self, source->rank);
    dp_status status = send_all(source, hello, sizeof hello, err);
    const struct state_request request = {.question = STATE_TABLE};
    return status == DP_OK ? dp_state_source_ask(source, &request, err) : status;
}

dp_status dp_state_source_take_hello(struct source *source, uint64_t token, int64_t deadline_ns,
                                     struct dp_error *err)
{
    unsigned char hello[STATE_HELLO_BYTES];
    dp_status status = take_all(source, hello, sizeof hello, deadline_ns, err);
    int32_t from, to;
    if (status == DP_OK &&
        (!dp_state_read_hello(hello, token, &from, &to) || from != source->rank)) {
        return dp_fail(err, DP_CONFLICT, "what answers at %s is not rank %d that holds its state",
                       source->address, source->rank);
    }
    return status;
}

dp_status dp_state_source_ask(struct source *source, const struct state_request *request,
                              struct dp_error *err)
{
    unsigned char bytes[STATE_REQUEST_BYTES];
    dp_state_put_request(bytes, request);
    return send_all(source, bytes, sizeof bytes, err);
}

static dp_status take_head(const struct source *source, state_question question,
                           uint64_t length_max, struct state_answer *ret_answer,
                           struct dp_error *err)
{
    unsigned char head[STATE_ANSWER_BYTES];
    dp_status status = take_all(source, head, sizeof head, 0, err);
    if (status == DP_OK && !dp_state_read_answer(head, question, length_max, ret_answer)) {
        return fail_io(source, 0, "has given an answer that is none", err);
    }
    return status;
}

static dp_status check_hash(const struct source *source, const struct state_answer *answer,
                            const void *bytes, struct dp_error *err)
{
    return dp_safetensors_hash(bytes, (size_t)answer->length) == answer->hash
               ? DP_OK
               : fail_io(source, 0, "has sent bytes that do not match their hash", err);
}

dp_status dp_state_source_take_table(struct source *source, struct dp_error *err)
{
    struct state_answer answer;
    dp_status status = take_head(source, STATE_TABLE, DP_STATE_TABLE_BYTES_MAX, &answer, err);
    if (status != DP_OK) {
        return status;
    }
    DP_AUTO_FREE char *bytes = dp_alloc((size_t)answer.length + 1, 1);
    status = take_all(source, bytes, (size_t)answer.length, 0, err);
    if (status == DP_OK) {
        status = check_hash(source, &answer, bytes, err);
    }
    if (status == DP_OK) {
        status = dp_state_parse_table(bytes, (size_t)answer.length, &source->table, err);
        return status == DP_OK ? DP_OK : dp_fail_in(err, "rank %d", source->rank);
    }
    return status;
}

dp_status dp_state_source_take_values(struct source *source, void *ret_bytes, size_t length,
                                      struct dp_error *err)
{
    struct state_answer answer;
    dp_status status = take_head(source, STATE_VALUES, length, &answer, err);
    if (status == DP_OK && answer.length != length) {
        return fail_io(source, 0, "has given an answer of another length", err);
    }
    if (status == DP_OK) {
        status = take_all(source, ret_bytes, length, 0, err);
    }
    return status == DP_OK ? check_hash(source, &answer, ret_bytes, err) : status;
}
