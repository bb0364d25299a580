// One thread answers all readers: it is at the disk's place, and the network is what is slow.
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/buf.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/tcp.h"
#include "internal.h"

#define ACCEPTED_AT_ONCE 64 // then those that are there are heard again
#define FULL_MS 100         // until it is looked again whether there is room for another

// A connection: it says hello and asks; what it is told goes out before it is heard again.
struct reader {
    int fd;
    bool is_known;
    unsigned char in[STATE_REQUEST_BYTES]; // a hello is as long
    size_t got;
    unsigned char *out; // [room]
    size_t room, length, sent;
};

struct dp_state_server {
    const struct dp_state *state;
    int32_t rank;
    uint64_t token;
    int listen_fd, wake_fd;
    bool has_no_room;       // for another connection, the last time that one came
    struct reader *readers; // [DP_STATE_READERS_MAX]
    struct pollfd *polls;   // [2 + DP_STATE_READERS_MAX]
    int32_t count;
    struct dp_buf table;
};

DP_DEFINE_CLEANUP(cleanup_server, struct dp_state_server, dp_state_server_free)

dp_status dp_state_server_open(const struct dp_state *state, const char *host, int32_t rank,
                               uint64_t token, char *ret_address,
                               struct dp_state_server **ret_server, struct dp_error *err)
{
    DP_CLEANUP(cleanup_server) struct dp_state_server *server = dp_new(struct dp_state_server);
    server->state = state;
    server->rank = rank;
    server->token = token;
    server->listen_fd = -1;
    server->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    DP_CHECK(server->wake_fd >= 0);
    dp_state_write_table(state, &server->table);
    if (server->table.length > DP_STATE_TABLE_BYTES_MAX || state->count > DP_STATE_PARTS_MAX) {
        return dp_fail(err, DP_TOO_LARGE, "the table of %lld tensors that rank %d holds",
                       (long long)state->count, rank);
    }
    dp_status status = dp_tcp_listen(host, ret_address, &server->listen_fd, err);
    if (status != DP_OK) {
        return dp_fail_in(err, "serving the state of rank %d", rank);
    }
    server->readers = dp_new_array(struct reader, DP_STATE_READERS_MAX);
    server->polls = dp_new_array(struct pollfd, DP_STATE_READERS_MAX + 2);
    *ret_server = dp_steal(server);
    return DP_OK;
}

// Readers stay in the order in which they came.
static void drop(struct dp_state_server *server, int32_t index)
{
    struct reader *reader = &server->readers[index];
    close(reader->fd);
    free(reader->out);
    server->count--;
    memmove(reader, reader + 1, (size_t)(server->count - index) * sizeof *reader);
}

void dp_state_server_free(struct dp_state_server *server)
{
    if (server == NULL) {
        return;
    }
    while (server->count > 0) {
        drop(server, server->count - 1);
    }
    if (server->listen_fd >= 0) {
        close(server->listen_fd);
    }
    close(server->wake_fd);
    dp_buf_deinit(&server->table);
    free(server->readers);
    free(server->polls);
    free(server);
}

void dp_state_server_close(struct dp_state_server *server)
{
    uint64_t one = 1;
    ssize_t written = write(server->wake_fd, &one, sizeof one);
    DP_CHECK(written == sizeof one || errno == EAGAIN);
}

// The one that has said nothing for longest goes: a reader says hello at once, and has been heard
// by the time that so many others have come.
static bool drop_stranger(struct dp_state_server *server)
{
    for (int32_t i = 0; i < server->count; i++) {
        if (!server->readers[i].is_known) {
            drop(server, i);
            return true;
        }
    }
    return false;
}

static void accept_some(struct dp_state_server *server)
{
    for (int32_t i = 0; i < ACCEPTED_AT_ONCE; i++) {
        const int fd = accept4(server->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        const bool none_left = fd < 0 && (errno == EMFILE || errno == ENFILE);
        if (fd < 0 && !none_left) {
            return;
        }
        if ((none_left || server->count == DP_STATE_READERS_MAX) && !drop_stranger(server)) {
            // Who waits is met when somebody has gone; to look at once would not end.
            server->has_no_room = none_left;
            if (fd >= 0) {
                close(fd);
            }
            return;
        }
        if (fd >= 0) {
            server->readers[server->count++] = (struct reader){.fd = fd};
        }
    }
}

static unsigned char *make_room(struct reader *reader, size_t length)
{
    if (length > reader->room) {
        free(reader->out);
        reader->out = dp_alloc(length, 1);
        reader->room = length;
    }
    reader->length = length;
    reader->sent = 0;
    return reader->out;
}

// The answer's frame in front of the `length` bytes behind it.
static void frame(struct reader *reader, state_question question, size_t length)
{
    const struct state_answer answer = {
        question, length, dp_safetensors_hash(reader->out + STATE_ANSWER_BYTES, length)};
    dp_state_put_answer(reader->out, &answer);
}

static bool answer_values(const struct dp_state_server *server, struct reader *reader,
                          const struct state_request *request)
{
    const struct dp_state *state = server->state;
    if (request->part >= (uint64_t)state->count) {
        return false;
    }
    const struct dp_state_part *part = &state->parts[request->part];
    const uint64_t width = dp_dtype_bytes(part->dtype), there = (uint64_t)(part->end - part->begin);
    if (request->first > there || request->count == 0 || request->count > there - request->first ||
        request->count > DP_STATE_CHUNK_BYTES / width) {
        return false;
    }
    const size_t length = (size_t)(request->count * width);
    unsigned char *out = make_room(reader, STATE_ANSWER_BYTES + length);
    struct dp_device *device = state->device;
    struct dp_error err;
    device->ops->copy(device->stream, out + STATE_ANSWER_BYTES,
                      (const char *)part->values + request->first * width, length);
    if (device->ops->stream_sync(device->stream, &err) != DP_OK) {
        return false;
    }
    frame(reader, STATE_VALUES, length);
    return true;
}

// False: it is none of ours, or asks for what is not there.
static bool answer(const struct dp_state_server *server, struct reader *reader)
{
    if (!reader->is_known) {
        int32_t from, to;
        if (!dp_state_read_hello(reader->in, server->token, &from, &to) || to != server->rank) {
            return false;
        }
        reader->is_known = true;
        dp_state_put_hello(make_room(reader, STATE_HELLO_BYTES), server->token, server->rank, from);
        return true;
    }
    const struct state_request request = dp_state_read_request(reader->in);
    if (request.question == STATE_TABLE) {
        unsigned char *out = make_room(reader, STATE_ANSWER_BYTES + server->table.length);
        memcpy(out + STATE_ANSWER_BYTES, server->table.bytes, server->table.length);
        frame(reader, STATE_TABLE, server->table.length);
        return true;
    }
    return request.question == STATE_VALUES && answer_values(server, reader, &request);
}

// One turn of a connection; false: it is over.
static bool go_on(const struct dp_state_server *server, struct reader *reader)
{
    if (reader->sent < reader->length) {
        const ssize_t sent = send(reader->fd, reader->out + reader->sent,
                                  reader->length - reader->sent, MSG_NOSIGNAL);
        if (sent < 0) {
            return errno == EAGAIN || errno == EINTR;
        }
        reader->sent += (size_t)sent;
        return true;
    }
    const ssize_t got =
        recv(reader->fd, reader->in + reader->got, sizeof reader->in - reader->got, 0);
    if (got <= 0) {
        return got < 0 && (errno == EAGAIN || errno == EINTR);
    }
    reader->got += (size_t)got;
    if (reader->got < sizeof reader->in) {
        return true;
    }
    reader->got = 0;
    return answer(server, reader);
}

void dp_state_server_run(struct dp_state_server *server)
{
    for (;;) {
        const bool has_no_room = server->has_no_room;
        server->has_no_room = false;
        server->polls[0] =
            (struct pollfd){.fd = has_no_room ? -1 : server->listen_fd, .events = POLLIN};
        server->polls[1] = (struct pollfd){.fd = server->wake_fd, .events = POLLIN};
        const int32_t polled = server->count;
        for (int32_t i = 0; i < polled; i++) {
            const struct reader *reader = &server->readers[i];
            server->polls[i + 2] = (struct pollfd){
                .fd = reader->fd, .events = reader->sent < reader->length ? POLLOUT : POLLIN};
        }
        const int ready = poll(server->polls, (nfds_t)polled + 2, has_no_room ? FULL_MS : -1);
        if (ready > 0 && server->polls[1].revents != 0) {
            return;
        }
        // From the last on: those behind one that is dropped move.
        for (int32_t i = polled - 1; ready > 0 && i >= 0; i--) {
            if (server->polls[i + 2].revents != 0 && !go_on(server, &server->readers[i])) {
                drop(server, i);
            }
        }
        if (ready > 0 && server->polls[0].revents != 0) {
            accept_some(server);
        }
    }
}
