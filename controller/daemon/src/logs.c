// ReadLogs: asks the agents for parts of the ranks' output, one part at a time for each rank; by
// rank one after the other, or all together when they are followed. A part that the reader has no
// room for waits here, and no other is asked for before it is gone.
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "daemon.h"
#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "streams.h"

#define POLL_MS 250
#define ANSWER_MS 10000 // after which a part is asked for again
#define TAIL_LINE_BYTES 4096

// One rank's output.
struct log_cursor {
    uint32_t rank;
    char node[DP_NAME_MAX];
    uint64_t offset;
    uint64_t request; // asked and not answered, 0 = none
    uint64_t session; // that was asked
    int64_t next_ns;  // when to ask (again)
    bool tailing;     // still looks for the beginning of the last lines
    bool cut;         // what was read first is not there any more
    bool at_end;      // nothing more was there
    bool ended;       // nor will be
    bool done;
    struct dp_buf data; // read and not sent
};

struct log_stream {
    uint64_t call, job;
    struct dp_fence fence;
    bool follow, all_ranks;
    uint32_t rank, tail_lines;
    struct log_cursor *cursors;
    size_t cursors_count;
    struct dp_error problem; // of the first rank whose output could not be had to its end
    struct log_stream *next;
};

static uint64_t next_request = 1;

static void free_cursors(struct log_stream *stream)
{
    for (size_t i = 0; i < stream->cursors_count; i++) {
        dp_buf_deinit(&stream->cursors[i].data);
    }
    free(stream->cursors);
    stream->cursors = NULL;
    stream->cursors_count = 0;
}

static void stream_free(struct log_stream *stream)
{
    free_cursors(stream);
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

// What can be sent now: no character is cut whose end is still to come.
static size_t sendable(const struct log_stream *stream, const struct log_cursor *cursor)
{
    const struct dp_buf *data = &cursor->data;
    size_t length = data->length < DP_LOG_CHUNK_BYTES_MAX ? data->length : DP_LOG_CHUNK_BYTES_MAX;
    bool is_last = cursor->at_end && (cursor->ended || !stream->follow);
    if (is_last && length == data->length) {
        return length;
    }
    for (size_t back = 1; back <= 3 && back <= length; back++) {
        unsigned char c = (unsigned char)data->bytes[length - back];
        if ((c & 0xc0) != 0x80) {
            size_t needs = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : c >= 0xc0 ? 2 : 1;
            return needs > back ? length - back : length;
        }
    }
    return length;
}

// False while the reader has no room; on_writable or the tick come back to it.
static bool flush(struct daemon *daemon, const struct log_stream *stream, struct log_cursor *cursor)
{
    size_t length;
    while ((length = sendable(stream, cursor)) > 0) {
        Dp__V1__LogText text = DP__V1__LOG_TEXT__INIT;
        text.rank = cursor->rank;
        text.node = (char *)cursor->node;
        text.data.data = (uint8_t *)cursor->data.bytes;
        text.data.len = length;
        if (call_send(daemon, stream->call, &text.base) != DP_OK) {
            return false;
        }
        dp_buf_consume(&cursor->data, text.data.len);
    }
    return true;
}

static void give_up(struct log_stream *stream, struct log_cursor *cursor, dp_status status,
                    const char *text)
{
    cursor->done = true;
    if (stream->problem.status == DP_OK) {
        dp_fail(&stream->problem, status, "%s", text);
    }
}

// Nobody can be asked. A node that is only late is waited for by who follows.
static void miss_node(struct daemon *daemon, struct log_stream *stream, struct log_cursor *cursor)
{
    dp_node_state state = dp_core_node_state_of(daemon->core, cursor->node);
    if (stream->follow && state != DP_NODE_LOST) {
        return;
    }
    char text[DP_TEXT_MAX];
    snprintf(text, sizeof(text),
             "node %s, which keeps the output of rank %u, is %s: try again when `dpctl nodes` "
             "shows it READY",
             cursor->node, cursor->rank, state == DP_NODE_LOST ? "LOST" : "not connected");
    give_up(stream, cursor, DP_UNAVAILABLE, text);
}

static void pump_cursor(struct daemon *daemon, struct log_stream *stream, struct log_cursor *cursor)
{
    if (cursor->done || (!cursor->tailing && !flush(daemon, stream, cursor))) {
        return;
    }
    if (cursor->at_end && (cursor->ended || !stream->follow)) {
        cursor->done = true;
        return;
    }
    uint64_t session = dp_core_node_session_of(daemon->core, cursor->node);
    bool waits = cursor->request != 0 && session == cursor->session;
    if (dp_clock_monotonic_ns() < cursor->next_ns && (waits || cursor->request == 0)) {
        return;
    }
    if (session == 0) {
        miss_node(daemon, stream, cursor);
    } else if (call_queued(daemon, stream->call) < DP_LOG_QUEUED_MAX) {
        ask(daemon, stream, cursor, session);
    }
}

static void end_stream(struct daemon *daemon, struct log_stream *stream)
{
    if (stream->problem.status == DP_OK) {
        call_finish(daemon, stream->call);
    } else if (call_queued(daemon, stream->call) == 0) {
        // An error drops what still waits, so it comes after that.
        call_fail_error(daemon, stream->call, &stream->problem);
    }
}

// Other ranks have taken over, or will: whoever follows the job goes on with them, from their
// beginning.
static bool goes_on(struct daemon *daemon, struct log_stream *stream)
{
    struct dp_error err = {0};
    DP_CLEANUP(view_deinit) struct job_view view = {0};
    if (!stream->follow || view_get(daemon, stream->job, &view, &err) != DP_OK ||
        dp_job_state_ended(view.job->state)) {
        return false;
    }
    bool same =
        view.job->attempt == stream->fence.attempt && view.job->epoch == stream->fence.epoch;
    if (same) {
        return view.job->state != DP_STATE_RUNNING;
    }
    // The core's ranks are those of the row once that is stored.
    bool whole = view.owned_job == NULL && view.ranks_count > 0;
    if (whole) {
        free_cursors(stream);
        stream->tail_lines = 0;
        stream->problem = (struct dp_error){0};
        return set_cursors(stream, &view, &stream->problem) == DP_OK;
    }
    return true;
}

static void pump_stream(struct daemon *daemon, struct log_stream *stream)
{
    struct dp_error err = {0};
    DP_CLEANUP(view_deinit) struct job_view view = {0};
    if (stream->cursors_count == 0 && (view_get(daemon, stream->job, &view, &err) != DP_OK ||
                                       set_cursors(stream, &view, &err) != DP_OK)) {
        call_fail_error(daemon, stream->call, &err);
        return;
    }
    size_t done = 0;
    for (size_t i = 0; i < stream->cursors_count; i++) {
        pump_cursor(daemon, stream, &stream->cursors[i]);
        done += stream->cursors[i].done;
        if (!stream->follow && !stream->cursors[i].done) {
            break; // the next rank's turn has not come
        }
    }
    if (stream->cursors_count > 0 && done == stream->cursors_count && !goes_on(daemon, stream)) {
        end_stream(daemon, stream);
    }
}

void logs_pump(struct daemon *daemon)
{
    for (struct log_stream *stream = daemon->log_streams; stream != NULL; stream = stream->next) {
        pump_stream(daemon, stream);
    }
}

// Last lines that are longer than this on average are fewer than were asked for.
static size_t tail_bytes_max(const struct log_stream *stream)
{
    size_t wanted = (size_t)stream->tail_lines * TAIL_LINE_BYTES;
    size_t most = DP_LOG_TAIL_BYTES_MAX / (stream->follow ? stream->cursors_count : 1);
    wanted = wanted < DP_LOG_CHUNK_BYTES_MAX ? DP_LOG_CHUNK_BYTES_MAX : wanted;
    return wanted < most ? wanted : most;
}

// While the end is not known: the front goes when it is as much again as may stay.
static void keep_tail(const struct log_stream *stream, struct log_cursor *cursor)
{
    size_t most = tail_bytes_max(stream);
    if (cursor->data.length > 2 * most) {
        dp_buf_consume(&cursor->data, cursor->data.length - most);
        cursor->cut = true;
    }
}

// Cuts the front so that at most the last `tail_lines` lines stay, and no part of a line.
static void keep_lines(const struct log_stream *stream, struct log_cursor *cursor)
{
    struct dp_buf *data = &cursor->data;
    size_t most = tail_bytes_max(stream), at = data->length, line = data->length;
    uint32_t found = 0;
    while (at > 0 && found < stream->tail_lines && data->length - at < most) {
        at--;
        if (data->bytes[at] == '\n' && at + 1 != data->length) {
            line = at + 1;
            found++;
        }
    }
    if (at == 0 && found < stream->tail_lines && !cursor->cut) {
        return; // all of it
    }
    // One line that is longer than everything that may stay is cut.
    dp_buf_consume(data, line < data->length ? line : at);
}

static void take_chunk(struct log_stream *stream, struct log_cursor *cursor,
                       const Dp__V1__LogChunk *chunk)
{
    cursor->request = 0;
    cursor->next_ns = 0;
    if (chunk->error[0] != '\0') {
        give_up(stream, cursor, DP_NOT_FOUND, chunk->error);
        return;
    }
    if (chunk->offset < cursor->offset) {
        return; // asked for again
    }
    // Later than asked: what was there has been rotated away.
    cursor->cut = cursor->cut || chunk->offset > cursor->offset;
    cursor->offset = chunk->offset + chunk->data.len;
    cursor->at_end = chunk->data.len == 0;
    cursor->ended = chunk->end;
    dp_buf_append(&cursor->data, chunk->data.data, chunk->data.len);
    if (cursor->tailing && cursor->at_end) {
        keep_lines(stream, cursor);
    } else if (cursor->tailing) {
        keep_tail(stream, cursor);
    }
    if (cursor->at_end) {
        cursor->tailing = false;
        cursor->next_ns = dp_clock_monotonic_ns() + POLL_MS * DP_NS_PER_MS;
    }
}

void logs_chunk(struct daemon *daemon, const Dp__V1__LogChunk *chunk)
{
    for (struct log_stream *stream = daemon->log_streams; stream != NULL; stream = stream->next) {
        for (size_t i = 0; i < stream->cursors_count; i++) {
            struct log_cursor *cursor = &stream->cursors[i];
            if (cursor->request == chunk->request && chunk->request != 0) {
                take_chunk(stream, cursor, chunk);
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
    if (request == NULL || !stream_admit(daemon, call)) {
        return;
    }
    struct dp_error err = {0};
    DP_CLEANUP(view_deinit) struct job_view view = {0};
    if (view_find(daemon, request->id, &view, &err) != DP_OK) {
        call_fail_error(daemon, call, &err);
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

static void on_writable(void *context, uint64_t call)
{
    struct daemon *daemon = context;
    for (struct log_stream *stream = daemon->log_streams; stream != NULL; stream = stream->next) {
        if (stream->call == call) {
            pump_stream(daemon, stream);
            return;
        }
    }
}

static void on_closed(void *context, uint64_t call, bool cancelled)
{
    (void)cancelled;
    struct daemon *daemon = context;
    stream_leave(daemon, call);
    struct log_stream *stream = NULL;
    LL_SEARCH_SCALAR(daemon->log_streams, stream, call, call);
    if (stream != NULL) {
        LL_DELETE(daemon->log_streams, stream);
        stream_free(stream);
    }
}

const struct dp_rpc_handler logs_handler = {
    .method = DP_METHOD_READ_LOGS,
    .on_message = on_message,
    .on_writable = on_writable,
    .on_closed = on_closed,
};
