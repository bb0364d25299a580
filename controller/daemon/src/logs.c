// ReadLogs: asks the agents for parts of the ranks' output, one part at a time for each rank.
#include <stdlib.h>
#include <string.h>

#include "daemon.h"
#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/clock.h"

#define POLL_MS 250
#define ANSWER_MS 10000 // after which a part is asked for again
#define QUEUED_MAX 32   // parts waiting for a reader before no more are asked for

// One rank's output.
struct log_cursor {
    uint32_t rank;
    char node[DP_NAME_MAX];
    uint64_t offset;
    uint64_t request; // asked and not answered, 0 = none
    uint64_t session; // that was asked
    int64_t next_ns;  // when to ask (again)
    bool done;
    bool tailing; // still looks for the beginning of the last lines
    struct dp_buf tail;
};

struct log_stream {
    uint64_t call, job;
    struct dp_fence fence;
    bool follow, all_ranks;
    uint32_t rank, tail_lines;
    struct log_cursor *cursors;
    size_t cursors_count;
    struct log_stream *next;
};

static uint64_t next_request = 1;

static void stream_free(struct log_stream *stream)
{
    for (size_t i = 0; i < stream->cursors_count; i++) {
        dp_buf_deinit(&stream->cursors[i].tail);
    }
    free(stream->cursors);
    free(stream);
}

// The ranks to read, once the job has some.
static dp_status set_cursors(struct log_stream *stream, const struct job_view *view,
                             struct dp_error *err)
{
    if (view->ranks_count == 0) {
        bool ended = dp_job_state_ended(view->job->state);
        return ended || !stream->follow
                   ? dp_fail(err, DP_CONFLICT, "%s has no output: it is %s and has no ranks",
                             view->job->id, dp_job_state_text(view->job->state))
                   : DP_OK;
    }
    if (!stream->all_ranks && stream->rank >= view->ranks_count) {
        return dp_fail(err, DP_NOT_FOUND, "%s has no rank %u: its ranks are 0 to %zu",
                       view->job->id, stream->rank, view->ranks_count - 1);
    }
    stream->fence = (struct dp_fence){.attempt = view->job->attempt, .epoch = view->job->epoch};
    DP_COPY_TEXT(stream->fence.job, view->job->id);
    stream->cursors_count = stream->all_ranks ? view->ranks_count : 1;
    stream->cursors = dp_new_array(struct log_cursor, stream->cursors_count);
    for (size_t i = 0; i < stream->cursors_count; i++) {
        const struct dp_rank_record *rank = &view->ranks[stream->all_ranks ? i : stream->rank];
        stream->cursors[i].rank = rank->rank;
        stream->cursors[i].tailing = stream->tail_lines > 0;
        DP_COPY_TEXT(stream->cursors[i].node, rank->node);
    }
    return DP_OK;
}

static void ask(struct daemon *daemon, struct log_stream *stream, struct log_cursor *cursor,
                uint64_t session)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__ReadLog read = DP__V1__READ_LOG__INIT;
    cursor->request = next_request++;
    cursor->session = session;
    cursor->next_ns = dp_clock_monotonic_ns() + ANSWER_MS * DP_NS_PER_MS;
    read.request = cursor->request;
    read.fence = message_fence(&stream->fence, &arena);
    read.rank = cursor->rank;
    read.offset = cursor->offset;
    read.bytes_max = DP_LOG_CHUNK_BYTES_MAX;
    Dp__V1__ControllerMessage message = DP__V1__CONTROLLER_MESSAGE__INIT;
    message.message_case = DP__V1__CONTROLLER_MESSAGE__MESSAGE_READ_LOG;
    message.read_log = &read;
    session_send(daemon, session, &message);
}

static void pump_cursor(struct daemon *daemon, struct log_stream *stream, struct log_cursor *cursor)
{
    uint64_t session = dp_core_node_session_of(daemon->core, cursor->node);
    bool lost = cursor->request != 0 && session != cursor->session;
    bool due = dp_clock_monotonic_ns() >= cursor->next_ns;
    if (cursor->done || (cursor->request != 0 && !lost && !due) || (cursor->request == 0 && !due)) {
        return;
    }
    if (session != 0) {
        ask(daemon, stream, cursor, session);
    } else if (!stream->follow) {
        struct dp_error err = {0};
        dp_fail(&err, DP_UNAVAILABLE,
                "node %s, which keeps the output of rank %u, is not connected: try again when "
                "`dpctl nodes` shows it READY",
                cursor->node, cursor->rank);
        dp_rpc_call_fail_error(daemon->server, stream->call, &err);
        cursor->done = true;
    }
}

static void pump_stream(struct daemon *daemon, struct log_stream *stream)
{
    struct dp_error err = {0};
    DP_CLEANUP(view_deinit) struct job_view view = {0};
    if (stream->cursors_count == 0 && (view_get(daemon, stream->job, &view, &err) != DP_OK ||
                                       set_cursors(stream, &view, &err) != DP_OK)) {
        dp_rpc_call_fail_error(daemon->server, stream->call, &err);
        return;
    }
    size_t done = 0;
    for (size_t i = 0; i < stream->cursors_count; i++) {
        if (dp_rpc_call_queued(daemon->server, stream->call) < QUEUED_MAX) {
            pump_cursor(daemon, stream, &stream->cursors[i]);
        }
        done += stream->cursors[i].done;
    }
    if (stream->cursors_count > 0 && done == stream->cursors_count) {
        dp_rpc_call_finish(daemon->server, stream->call);
    }
}

void logs_pump(struct daemon *daemon)
{
    for (struct log_stream *stream = daemon->log_streams; stream != NULL; stream = stream->next) {
        pump_stream(daemon, stream);
    }
}

static void send_text(struct daemon *daemon, const struct log_stream *stream,
                      const struct log_cursor *cursor, const void *bytes, size_t length)
{
    if (length == 0) {
        return;
    }
    Dp__V1__LogText text = DP__V1__LOG_TEXT__INIT;
    text.rank = cursor->rank;
    text.node = (char *)cursor->node;
    text.data.data = (uint8_t *)bytes;
    text.data.len = length;
    dp_rpc_call_send(daemon->server, stream->call, &text.base);
}

// Cuts the front so that at most the last `lines` lines stay.
static void keep_lines(struct dp_buf *tail, uint32_t lines)
{
    size_t at = tail->length;
    uint32_t found = 0;
    while (at > 0) {
        bool end_of_line = tail->bytes[at - 1] == '\n' && at != tail->length;
        if (end_of_line && ++found == lines) {
            break;
        }
        at--;
    }
    dp_buf_consume(tail, at);
}

static void flush_tail(struct daemon *daemon, const struct log_stream *stream,
                       struct log_cursor *cursor)
{
    for (size_t at = 0; at < cursor->tail.length; at += DP_LOG_CHUNK_BYTES_MAX) {
        size_t left = cursor->tail.length - at;
        send_text(daemon, stream, cursor, cursor->tail.bytes + at,
                  left < DP_LOG_CHUNK_BYTES_MAX ? left : DP_LOG_CHUNK_BYTES_MAX);
    }
    dp_buf_deinit(&cursor->tail);
    cursor->tailing = false;
}

static void take_chunk(struct daemon *daemon, struct log_stream *stream, struct log_cursor *cursor,
                       const Dp__V1__LogChunk *chunk)
{
    cursor->request = 0;
    cursor->next_ns = 0;
    if (chunk->error[0] != '\0') {
        dp_rpc_call_fail(daemon->server, stream->call, DP_NOT_FOUND, chunk->error);
        cursor->done = true;
        return;
    }
    cursor->offset = chunk->offset + chunk->data.len;
    bool at_end = chunk->data.len == 0;
    if (cursor->tailing) {
        dp_buf_append(&cursor->tail, chunk->data.data, chunk->data.len);
        keep_lines(&cursor->tail, stream->tail_lines);
    } else {
        send_text(daemon, stream, cursor, chunk->data.data, chunk->data.len);
    }
    if (at_end && cursor->tailing) {
        flush_tail(daemon, stream, cursor);
    }
    cursor->done = at_end && (chunk->end || !stream->follow);
    if (at_end) {
        cursor->next_ns = dp_clock_monotonic_ns() + POLL_MS * DP_NS_PER_MS;
    }
}

void logs_chunk(struct daemon *daemon, const Dp__V1__LogChunk *chunk)
{
    for (struct log_stream *stream = daemon->log_streams; stream != NULL; stream = stream->next) {
        for (size_t i = 0; i < stream->cursors_count; i++) {
            struct log_cursor *cursor = &stream->cursors[i];
            if (cursor->request == chunk->request && chunk->request != 0) {
                take_chunk(daemon, stream, cursor, chunk);
                pump_stream(daemon, stream);
                return;
            }
        }
    }
}

static void on_message(void *context, uint64_t call, const void *bytes, size_t length)
{
    struct daemon *daemon = context;
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    const Dp__V1__ReadLogsRequest *request =
        service_unpack(daemon, call, &dp__v1__read_logs_request__descriptor, bytes, length, &arena);
    if (request == NULL) {
        return;
    }
    struct dp_error err = {0};
    DP_CLEANUP(view_deinit) struct job_view view = {0};
    if (view_find(daemon, request->id, &view, &err) != DP_OK) {
        dp_rpc_call_fail_error(daemon->server, call, &err);
        return;
    }
    struct log_stream *stream = dp_new(struct log_stream);
    *stream = (struct log_stream){
        .call = call,
        .job = view.job->number,
        .follow = request->follow,
        .all_ranks = request->all_ranks,
        .rank = request->rank,
        .tail_lines = request->tail_lines,
        .next = daemon->log_streams,
    };
    daemon->log_streams = stream;
    pump_stream(daemon, stream);
}

static void on_closed(void *context, uint64_t call, bool cancelled)
{
    (void)cancelled;
    struct daemon *daemon = context;
    struct log_stream **link = &daemon->log_streams;
    while (*link != NULL && (*link)->call != call) {
        link = &(*link)->next;
    }
    if (*link != NULL) {
        struct log_stream *stream = *link;
        *link = stream->next;
        stream_free(stream);
    }
}

const struct dp_rpc_handler logs_handler = {
    .method = DP_METHOD_READ_LOGS,
    .on_message = on_message,
    .on_closed = on_closed,
};
