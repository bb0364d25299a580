#include "dp/link.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "dp/check.h"
#include "dp/clock.h"

#define READ_BYTES 65536
#define READS_PER_CALL 16
#define REPORT_TIMEOUT_MS 10000

struct header {
    uint32_t length;
    uint16_t type;
    uint16_t slot;
    uint32_t rank;
};

_Static_assert(sizeof(struct header) == DP_LINK_HEADER_BYTES, "a header has no padding");

void dp_link_init(struct dp_link *link, int fd, size_t out_bytes_max)
{
    *link = (struct dp_link){.fd = fd, .out_bytes_max = out_bytes_max, .at_end = fd < 0};
}

void dp_link_deinit(struct dp_link *link)
{
    if (link->fd > 0) {
        close(link->fd);
    }
    dp_buf_deinit(&link->in);
    dp_buf_deinit(&link->out);
    *link = (struct dp_link){.fd = -1, .at_end = true};
}

void dp_link_frame_write(const struct dp_link_frame *frame, struct dp_buf *buf)
{
    DP_CHECK(frame->length <= DP_FRAME_BYTES_MAX);
    struct header header = {
        .length = (uint32_t)frame->length,
        .type = (uint16_t)frame->type,
        .slot = frame->slot,
        .rank = frame->rank,
    };
    dp_buf_append(buf, &header, sizeof header);
    dp_buf_append(buf, frame->payload, frame->length);
}

// Drops what was handed out, so that `in` starts with the first unread byte.
static void compact(struct dp_link *link)
{
    dp_buf_consume(&link->in, link->in_at);
    link->in_at = 0;
}

dp_status dp_link_read(struct dp_link *link, struct dp_error *err)
{
    compact(link);
    for (int i = 0; i < READS_PER_CALL && !link->at_end; i++) {
        char chunk[READ_BYTES];
        ssize_t got = recv(link->fd, chunk, sizeof chunk, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            return DP_OK;
        }
        if (got <= 0) {
            link->at_end = true;
            break;
        }
        dp_buf_append(&link->in, chunk, (size_t)got);
        if ((size_t)got < sizeof chunk) {
            return DP_OK;
        }
    }
    if (link->at_end) {
        return dp_fail(err, DP_UNAVAILABLE, "the other end closed the connection");
    }
    return DP_OK;
}

dp_status dp_link_next(struct dp_link *link, struct dp_link_frame *ret_frame, struct dp_error *err)
{
    *ret_frame = (struct dp_link_frame){.type = DP_LINK_NONE};
    size_t have = link->in.length - link->in_at;
    if (have < DP_LINK_HEADER_BYTES) {
        return DP_OK;
    }
    struct header header;
    memcpy(&header, link->in.bytes + link->in_at, sizeof header);
    if (header.length > DP_FRAME_BYTES_MAX) {
        return dp_fail(err, DP_INVALID, "a frame of %u bytes arrived; the limit is %u",
                       header.length, DP_FRAME_BYTES_MAX);
    }
    if (header.type == DP_LINK_NONE || header.type >= DP_LINK_TYPE_COUNT) {
        return dp_fail(err, DP_INVALID, "a frame of unknown type %u arrived", header.type);
    }
    if (have - DP_LINK_HEADER_BYTES < header.length) {
        return DP_OK;
    }
    *ret_frame = (struct dp_link_frame){
        .type = (dp_link_type)header.type,
        .slot = header.slot,
        .rank = header.rank,
        .payload = link->in.bytes + link->in_at + DP_LINK_HEADER_BYTES,
        .length = header.length,
    };
    link->in_at += DP_LINK_HEADER_BYTES + header.length;
    return DP_OK;
}

bool dp_link_wants_write(const struct dp_link *link)
{
    return link->out.length > link->out_at;
}

dp_status dp_link_flush(struct dp_link *link, struct dp_error *err)
{
    while (dp_link_wants_write(link)) {
        ssize_t put = send(link->fd, link->out.bytes + link->out_at,
                           link->out.length - link->out_at, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (put < 0 && errno == EINTR) {
            continue;
        }
        if (put < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            break;
        }
        if (put < 0) {
            return dp_fail(err, DP_UNAVAILABLE, "cannot write to the other end: %s",
                           strerror(errno));
        }
        link->out_at += (size_t)put;
    }
    if (!dp_link_wants_write(link)) {
        dp_buf_clear(&link->out);
        link->out_at = 0;
    } else if (link->out_at > link->out.length / 2) {
        dp_buf_consume(&link->out, link->out_at);
        link->out_at = 0;
    }
    return DP_OK;
}

dp_status dp_link_queue(struct dp_link *link, const struct dp_link_frame *frame,
                        struct dp_error *err)
{
    if (frame->length > DP_FRAME_BYTES_MAX) {
        return dp_fail(err, DP_TOO_LARGE, "a frame of %zu bytes is over the limit of %u",
                       frame->length, DP_FRAME_BYTES_MAX);
    }
    size_t waiting = link->out.length - link->out_at;
    if (waiting + DP_LINK_HEADER_BYTES + frame->length > link->out_bytes_max) {
        return dp_fail(err, DP_TOO_LARGE, "%zu bytes already wait for a peer that does not read",
                       waiting);
    }
    dp_link_frame_write(frame, &link->out);
    return dp_link_flush(link, err);
}

static int64_t deadline_of(int timeout_ms)
{
    return timeout_ms < 0 ? INT64_MAX : dp_clock_monotonic_ns() + timeout_ms * DP_NS_PER_MS;
}

// DP_OK when the socket is ready for `events` (or broken: the next call tells).
static dp_status wait_ready(int fd, short events, int64_t deadline_ns, struct dp_error *err)
{
    for (;;) {
        int timeout_ms = -1;
        if (deadline_ns != INT64_MAX) {
            int64_t left_ns = deadline_ns - dp_clock_monotonic_ns();
            int64_t left_ms = (left_ns + DP_NS_PER_MS - 1) / DP_NS_PER_MS;
            timeout_ms = left_ns <= 0 ? 0 : (int)left_ms;
        }
        struct pollfd entry = {.fd = fd, .events = events};
        int ready = poll(&entry, 1, timeout_ms);
        if (ready > 0) {
            return DP_OK;
        }
        if (ready == 0) {
            return dp_fail(err, DP_TIMEOUT, "nothing happened on the connection in time");
        }
        if (errno != EINTR) {
            return dp_fail_errno(err, errno, "cannot poll a connection");
        }
    }
}

dp_status dp_link_send(struct dp_link *link, const struct dp_link_frame *frame, int timeout_ms,
                       struct dp_error *err)
{
    int64_t deadline_ns = deadline_of(timeout_ms);
    if (link->fd < 0) {
        return dp_fail(err, DP_UNAVAILABLE, "the connection is closed");
    }
    dp_status status = dp_link_queue(link, frame, err);
    while (status == DP_OK && dp_link_wants_write(link)) {
        status = wait_ready(link->fd, POLLOUT, deadline_ns, err);
        if (status == DP_OK) {
            status = dp_link_flush(link, err);
        }
    }
    return status;
}

dp_status dp_link_recv(struct dp_link *link, int timeout_ms, struct dp_link_frame *ret_frame,
                       struct dp_error *err)
{
    int64_t deadline_ns = deadline_of(timeout_ms);
    for (;;) {
        struct dp_link_frame frame;
        dp_status status = dp_link_next(link, &frame, err);
        if (status == DP_OK && frame.type != DP_LINK_NONE) {
            *ret_frame = frame;
            return DP_OK;
        }
        if (status == DP_OK && link->at_end) {
            status = dp_fail(err, DP_UNAVAILABLE, "the other end closed the connection");
        }
        if (status == DP_OK) {
            status = wait_ready(link->fd, POLLIN, deadline_ns, err);
        }
        if (status != DP_OK) {
            return status;
        }
        // The end of the stream shows once the frames before it are handed out.
        (void)dp_link_read(link, NULL);
    }
}

dp_status dp_link_rank_order(struct dp_link *link, int timeout_ms, const uint8_t **ret_bytes,
                             size_t *ret_length, struct dp_error *err)
{
    struct dp_link_frame frame;
    dp_status status = dp_link_recv(link, timeout_ms, &frame, err);
    if (status != DP_OK) {
        return status;
    }
    if (frame.type != DP_LINK_ORDER) {
        return dp_fail(err, DP_INVALID, "the keeper sent a frame of type %d, not an order",
                       (int)frame.type);
    }
    *ret_bytes = frame.payload;
    *ret_length = frame.length;
    return DP_OK;
}

dp_status dp_link_rank_report(struct dp_link *link, uint32_t rank, dp_link_slot slot,
                              const void *bytes, size_t length, struct dp_error *err)
{
    struct dp_link_frame frame = {
        .type = DP_LINK_REPORT,
        .slot = (uint16_t)slot,
        .rank = rank,
        .payload = bytes,
        .length = length,
    };
    return dp_link_send(link, &frame, REPORT_TIMEOUT_MS, err);
}
