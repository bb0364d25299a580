#include <string.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/arena.h"
#include "dp/cleanup.h"
#include "dp/limits.h"
#include "dp/log.h"
#include "dp/sealed.h"
#include "dp/wire.h"
#include "worker.h"

static struct dp_agent_event event_for(const struct keeper_conn *conn, dp_agent_event_type type,
                                       uint32_t rank)
{
    return (struct dp_agent_event){.type = type, .fence = conn->fence, .rank = rank};
}

static dp_status on_hello(struct keeper_conn *conn, const struct dp_link_frame *frame,
                          struct dp_error *err)
{
    (void)conn;
    struct dp_link_hello hello;
    dp_status status = dp_link_hello_read(frame, &hello, err);
    if (status == DP_OK && hello.protocol != DP_LINK_PROTOCOL) {
        status = dp_fail(err, DP_UNSUPPORTED, "the keeper speaks protocol %u, this agent %u",
                         hello.protocol, DP_LINK_PROTOCOL);
    }
    return status;
}

static dp_status on_spawned(struct keeper_conn *conn, const struct dp_link_frame *frame,
                            struct dp_error *err)
{
    struct dp_link_spawned spawned;
    dp_status status = dp_link_spawned_read(frame, &spawned, err);
    if (status == DP_OK) {
        struct dp_agent_event event = event_for(conn, DP_AGENT_SPAWNED, frame->rank);
        event.pid = spawned.pid;
        event.started = spawned.started;
        event.stopped = spawned.stop != DP_LINK_STOP_NONE;
        event.by_keeper = spawned.stop == DP_LINK_STOP_KEEPER;
        worker_event(conn->worker, &event);
    }
    return status;
}

static dp_status on_exited(struct keeper_conn *conn, const struct dp_link_frame *frame,
                           struct dp_error *err)
{
    struct dp_link_exited exited;
    dp_status status = dp_link_exited_read(frame, &exited, err);
    if (status == DP_OK) {
        struct dp_agent_event event = event_for(conn, DP_AGENT_EXITED, frame->rank);
        event.pid = exited.pid;
        event.status = exited.status;
        event.signal = exited.signal;
        event.stopped = exited.stop != DP_LINK_STOP_NONE;
        event.by_keeper = exited.stop == DP_LINK_STOP_KEEPER;
        event.text = exited.error;
        worker_event(conn->worker, &event);
    }
    return status;
}

// A step is kept without its spans, which are many and of use only while they are new.
static void keep_step(Dp__V1__RankReport *report, struct dp_agent_event *event, struct dp_buf *kept)
{
    size_t spans = report->step->n_spans;
    report->step->n_spans = 0;
    dp_wire_pack(&report->base, kept);
    report->step->n_spans = spans;
    event->kind = DP_AGENT_REPORT_STEP;
    event->step = report->step->step;
}

static void describe(Dp__V1__RankReport *report, struct dp_agent_event *event, struct dp_buf *inner,
                     struct dp_buf *kept)
{
    switch (report->report_case) {
    case DP__V1__RANK_REPORT__REPORT_READY:
        event->kind = DP_AGENT_REPORT_READY;
        dp_wire_pack(&report->ready->base, inner);
        break;
    case DP__V1__RANK_REPORT__REPORT_FINISHED:
        event->kind = DP_AGENT_REPORT_FINISHED;
        event->step = report->finished->step;
        dp_wire_pack(&report->finished->base, inner);
        break;
    case DP__V1__RANK_REPORT__REPORT_STEP:
        keep_step(report, event, kept);
        break;
    case DP__V1__RANK_REPORT__REPORT_EVAL:
        event->kind = DP_AGENT_REPORT_EVALUATION;
        dp_wire_pack(&report->base, kept);
        break;
    case DP__V1__RANK_REPORT__REPORT_CHECKPOINT:
        event->kind = DP_AGENT_REPORT_CHECKPOINT;
        dp_wire_pack(&report->base, kept);
        break;
    case DP__V1__RANK_REPORT__REPORT_HELD:
        event->kind = DP_AGENT_REPORT_HELD;
        event->step = report->held->step;
        dp_wire_pack(&report->held->base, inner);
        break;
    case DP__V1__RANK_REPORT__REPORT_PROBE:
        event->kind = DP_AGENT_REPORT_ONCE;
        event->step = report->probe->step;
        break;
    case DP__V1__RANK_REPORT__REPORT_UTILISATION:
        event->kind = DP_AGENT_REPORT_SAMPLE;
        event->step = report->utilisation->step;
        break;
    default:
        event->kind = DP_AGENT_REPORT_SAMPLE;
        break;
    }
}

static dp_status on_report(struct keeper_conn *conn, const struct dp_link_frame *frame,
                           struct dp_error *err)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf inner = {0};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf kept = {0};
    ProtobufCMessage *any;
    struct dp_error why = {0};
    (void)err;
    if (dp_wire_unpack(&dp__v1__rank_report__descriptor, frame->payload, frame->length, &arena,
                       &any, &why) != DP_OK) {
        dp_log_warn("rank.bad_report", "job=%s rank=%u reason=\"%s\"", conn->fence.job, frame->rank,
                    why.message);
        return DP_OK;
    }
    Dp__V1__RankReport *report = (Dp__V1__RankReport *)any;
    struct dp_agent_fence fence = orders_fence(report->fence);
    if (!dp_agent_fence_equal(&fence, &conn->fence) || report->rank != frame->rank) {
        dp_log_warn("rank.foreign_report", "job=%s rank=%u", conn->fence.job, frame->rank);
        return DP_OK;
    }
    struct dp_agent_event event = event_for(conn, DP_AGENT_REPORT, frame->rank);
    describe(report, &event, &inner, &kept);
    event.bytes = frame->payload;
    event.length = frame->length;
    event.inner = inner.bytes;
    event.inner_length = inner.length;
    event.kept = kept.bytes;
    event.kept_length = kept.length;
    worker_event(conn->worker, &event);
    return DP_OK;
}

static dp_status on_synced(struct keeper_conn *conn, const struct dp_link_frame *frame,
                           struct dp_error *err)
{
    (void)err;
    conn->synced = true;
    conn->was_synced = true;
    if (conn->released) {
        // It was told to go, and the connection broke before it heard.
        return keeper_send(conn, &(struct dp_link_frame){.type = DP_LINK_SHUTDOWN}, err);
    }
    struct dp_agent_event event = event_for(conn, DP_AGENT_KEEPER_SYNCED, frame->rank);
    worker_event(conn->worker, &event);
    return DP_OK;
}

static dp_status on_ping(struct keeper_conn *conn, const struct dp_link_frame *frame,
                         struct dp_error *err)
{
    (void)conn;
    (void)frame;
    (void)err;
    return DP_OK;
}

dp_status keeper_frame(struct keeper_conn *conn, const struct dp_link_frame *frame,
                       struct dp_error *err)
{
    static dp_status (*const handlers[DP_LINK_TYPE_COUNT])(
        struct keeper_conn * conn, const struct dp_link_frame *frame, struct dp_error *err) = {
        [DP_LINK_HELLO] = on_hello,   [DP_LINK_SPAWNED] = on_spawned, [DP_LINK_EXITED] = on_exited,
        [DP_LINK_REPORT] = on_report, [DP_LINK_SYNCED] = on_synced,   [DP_LINK_PING] = on_ping,
    };
    if (handlers[frame->type] == NULL) {
        return dp_fail(err, DP_INVALID, "the keeper sent a frame of type %d", (int)frame->type);
    }
    return handlers[frame->type](conn, frame, err);
}

// A keeper of the version before wrote frames alone; none begins as a seal does, whose first
// letters would be a length that no frame has.
static dp_status read_levels(const char *path, struct dp_buf *buf, struct dp_error *err)
{
    dp_status status = dp_sealed_check(path, err);
    if (status == DP_OK) {
        status = dp_read_file(path, DP_KEEPER_LEVELS_BYTES_MAX, buf, err);
    }
    if (status == DP_OK && (buf->length < 3 || memcmp(buf->bytes, "dp.", 3) == 0)) {
        dp_buf_clear(buf);
        status = dp_sealed_read(path, DP_LINK_LEVELS_KIND, DP_KEEPER_LEVELS_BYTES_MAX, buf, err);
    }
    return status;
}

void keeper_replay_file(struct keeper_conn *conn)
{
    DP_AUTO_FREE char *path = dp_asprintf("%s/" DP_LINK_LEVELS_FILE, conn->directory);
    struct dp_link link = {.fd = -1};
    struct dp_error err = {0};
    dp_status status = read_levels(path, &link.in, &err);
    struct dp_link_frame frame = {.type = DP_LINK_HELLO};
    while (status == DP_OK && frame.type != DP_LINK_NONE) {
        status = dp_link_next(&link, &frame, &err);
        if (status == DP_OK && frame.type != DP_LINK_NONE) {
            status = keeper_frame(conn, &frame, &err);
        }
    }
    if (status == DP_INVALID && access(path, F_OK) == 0) {
        status = dp_sealed_put_aside(path, &err);
    }
    if (status != DP_OK && status != DP_NOT_FOUND) {
        dp_log_warn("levels.unreadable", "path=%s reason=\"%s\"", path, err.message);
        worker_note(conn->worker, err.message);
    }
    dp_link_deinit(&link);
}
