// Frames on unix stream sockets: rank <-> keeper <-> agent, always on one machine.
//
// A frame is a header {u32 length, u16 type, u16 slot, u32 rank} in the machine's byte order and
// `length` payload bytes, at most DP_FRAME_BYTES_MAX; a length or type out of range ends the
// connection. Memory grows with the bytes that arrive, never with what a header claims.
//
// A rank needs only this part (descriptor 3 is given by the keeper):
//
//   struct dp_link link;
//   dp_link_init(&link, 3, DP_LINK_OUT_BYTES_MAX);
//   dp_link_rank_order(&link, timeout_ms, &bytes, &length, &err);       // packed dp.v1.RankOrder
//   dp_link_rank_report(&link, rank, DP_LINK_SLOT_READY, packed, size, &err);  // dp.v1.RankReport
//   dp_link_deinit(&link);
//
// Threads: one thread may receive while another sends; two may not do the same thing at once.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dp/buf.h"
#include "dp/error.h"
#include "dp/limits.h"

#define DP_LINK_PROTOCOL 2
#define DP_LINK_HEADER_BYTES 12
#define DP_LINK_ALL_RANKS UINT32_MAX
#define DP_LINK_RANK_FD 3

typedef enum dp_link_type {
    DP_LINK_NONE,     // no whole frame is there
    DP_LINK_HELLO,    // agent -> keeper, then the answer; dp_link_hello
    DP_LINK_SPAWN,    // agent -> keeper: start `rank`; dp_link_spawn
    DP_LINK_SPAWNED,  // keeper -> agent: `rank` was started; dp_link_spawned
    DP_LINK_EXITED,   // keeper -> agent: `rank` has ended, or could not start; dp_link_exited
    DP_LINK_ORDER,    // agent -> keeper -> rank: a packed dp.v1.RankOrder; slot dp_link_order
    DP_LINK_REPORT,   // rank -> keeper -> agent: a packed dp.v1.RankReport; slot dp_link_slot
    DP_LINK_STOP,     // agent -> keeper: end `rank` or DP_LINK_ALL_RANKS; payload u32 grace_ms
    DP_LINK_PING,     // agent -> keeper renews the lease; the keeper answers with the same
    DP_LINK_SYNCED,   // keeper -> agent: everything known was replayed
    DP_LINK_SHUTDOWN, // agent -> keeper: all is recorded; end what still runs and exit
    DP_LINK_TYPE_COUNT
} dp_link_type;

// How the keeper remembers a report for an agent that connects later.
typedef enum dp_link_slot {
    DP_LINK_SLOT_NONE,  // not at all: dropped while no agent is connected
    DP_LINK_SLOT_READY, // the newest of each of these
    DP_LINK_SLOT_UTILISATION,
    DP_LINK_SLOT_EVALUATION,
    DP_LINK_SLOT_CHECKPOINT,
    DP_LINK_SLOT_FINISHED,
    DP_LINK_SLOT_HELD,
    DP_LINK_SLOT_LATEST_END,
    // The newest DP_LINK_STEPS_KEPT frames of a rank, at most DP_LINK_STEPS_BYTES_MAX bytes.
    DP_LINK_SLOT_STEP = 8,
    DP_LINK_SLOT_COUNT
} dp_link_slot;

// The slot of an ORDER. The keeper passes START on once per rank and tells in SPAWNED whether it
// did, so that an agent that was restarted in between never starts a rank twice.
typedef enum dp_link_order {
    DP_LINK_ORDER_OTHER,
    DP_LINK_ORDER_START,
} dp_link_order;

// payload is borrowed: valid until the next read or receive on the same link.
struct dp_link_frame {
    dp_link_type type;
    uint16_t slot;
    uint32_t rank;
    const void *payload;
    size_t length;
};

// One end of a connection. Members are for this module; `fd` may be polled.
struct dp_link {
    int fd;
    struct dp_buf in;
    size_t in_at; // first byte not yet handed out
    struct dp_buf out;
    size_t out_at; // first byte not yet written
    size_t out_bytes_max;
    bool at_end;
};

// Takes fd (a connected stream socket, any blocking mode; a negative one makes a closed link).
// At most out_bytes_max bytes wait for a slow peer.
void dp_link_init(struct dp_link *link, int fd, size_t out_bytes_max);
// Closes the socket. Safe on a zeroed or deinitialised link whose fd is negative.
void dp_link_deinit(struct dp_link *link);

// Rank side.

// Waits for the next order; *ret_bytes is borrowed until the next call. timeout_ms < 0 waits for
// ever. DP_TIMEOUT: none came; DP_UNAVAILABLE: the keeper is gone, end the process.
dp_status dp_link_rank_order(struct dp_link *link, int timeout_ms, const uint8_t **ret_bytes,
                             size_t *ret_length, struct dp_error *err);
// Sends one report, waiting at most ten seconds for the keeper to take it (DP_TIMEOUT after that).
// SIGPIPE is never raised. DP_TOO_LARGE when length is over DP_FRAME_BYTES_MAX.
dp_status dp_link_rank_report(struct dp_link *link, uint32_t rank, dp_link_slot slot,
                              const void *bytes, size_t length, struct dp_error *err);

// Blocking use.

dp_status dp_link_send(struct dp_link *link, const struct dp_link_frame *frame, int timeout_ms,
                       struct dp_error *err);
// DP_TIMEOUT keeps what has arrived of a frame; DP_UNAVAILABLE is the end of the stream.
dp_status dp_link_recv(struct dp_link *link, int timeout_ms, struct dp_link_frame *ret_frame,
                       struct dp_error *err);

// Non-blocking use: when fd is readable call dp_link_read, then dp_link_next until it gives
// DP_LINK_NONE; when dp_link_wants_write, poll for writability too and call dp_link_flush.

// Reads what is there, a bounded amount per call. After the end of the stream (at_end) it keeps
// returning DP_UNAVAILABLE; frames that came before are still given out by dp_link_next.
dp_status dp_link_read(struct dp_link *link, struct dp_error *err);
// The next whole frame, or type DP_LINK_NONE. DP_INVALID: the peer broke the protocol; close.
dp_status dp_link_next(struct dp_link *link, struct dp_link_frame *ret_frame, struct dp_error *err);
// Appends a frame and writes what the socket takes now. DP_TOO_LARGE, with nothing appended, when
// more than out_bytes_max would wait or the payload is over the limit.
dp_status dp_link_queue(struct dp_link *link, const struct dp_link_frame *frame,
                        struct dp_error *err);
dp_status dp_link_flush(struct dp_link *link, struct dp_error *err);
bool dp_link_wants_write(const struct dp_link *link);
// Appends the frame's bytes to buf: frames in files and tests.
void dp_link_frame_write(const struct dp_link_frame *frame, struct dp_buf *buf);

// What a keeper knew, as frames: for an agent that comes when it is gone (dp/sealed.h).
#define DP_LINK_LEVELS_FILE "keeper.levels"
#define DP_LINK_LEVELS_KIND "dp.levels/1"

// Payloads. Encoders append to buf; decoders refuse anything that does not fit exactly with
// DP_INVALID, and what they return is borrowed from the frame unless it says otherwise.

struct dp_link_hello {
    uint32_t protocol;
    uint32_t lease_ms; // of the keeper; from an agent: what it wants from now on, 0 = no change
    int64_t pid;       // of the sender
};
void dp_link_hello_write(const struct dp_link_hello *hello, struct dp_buf *buf);
dp_status dp_link_hello_read(const struct dp_link_frame *frame, struct dp_link_hello *ret_hello,
                             struct dp_error *err);

// Start one rank and give it its first order, all or nothing.
struct dp_link_spawn {
    char **arguments;   // ends with NULL; [0] is the program's path
    char **environment; // ends with NULL; the whole of it
    const void *order;
    size_t order_length;
};
void dp_link_spawn_write(const struct dp_link_spawn *spawn, struct dp_buf *buf);
// On success free both pointer arrays with dp_link_spawn_deinit; the strings are borrowed.
dp_status dp_link_spawn_read(const struct dp_link_frame *frame, struct dp_link_spawn *ret_spawn,
                             struct dp_error *err);
void dp_link_spawn_deinit(struct dp_link_spawn *spawn);

// Who told a rank to end.
typedef enum dp_link_stop {
    DP_LINK_STOP_NONE,
    DP_LINK_STOP_ORDERED, // an agent
    DP_LINK_STOP_KEEPER,  // the keeper itself: its lease lapsed, or a signal told it to end
    DP_LINK_STOP_COUNT
} dp_link_stop;

struct dp_link_spawned {
    int64_t pid;
    bool started; // DP_LINK_ORDER_START was passed on
    dp_link_stop stop;
};
void dp_link_spawned_write(const struct dp_link_spawned *spawned, struct dp_buf *buf);
dp_status dp_link_spawned_read(const struct dp_link_frame *frame,
                               struct dp_link_spawned *ret_spawned, struct dp_error *err);

struct dp_link_exited {
    int64_t pid;                  // 0: it could not be started
    int32_t status;               // exit status, when signal is 0
    int32_t signal;               // that ended it
    dp_link_stop stop;            // had it been told to?
    uint64_t log_dropped;         // bytes of its output that were not kept
    char error[DP_LINK_TEXT_MAX]; // why it could not be started, or ""
};
void dp_link_exited_write(const struct dp_link_exited *exited, struct dp_buf *buf);
dp_status dp_link_exited_read(const struct dp_link_frame *frame, struct dp_link_exited *ret_exited,
                              struct dp_error *err);

void dp_link_u32_write(uint32_t value, struct dp_buf *buf);
dp_status dp_link_u32_read(const struct dp_link_frame *frame, uint32_t *ret_value,
                           struct dp_error *err);

// A unix socket DIRECTORY/name whose path may be longer than the 107 bytes of an address: the
// directory is opened and reached through /proc/self/fd.

// Removes a stale file of that name first; the caller has made sure that nobody listens there.
dp_status dp_link_listen(const char *directory, const char *name, int *ret_fd,
                         struct dp_error *err);
// A connected, non-blocking, close-on-exec socket. DP_NOT_FOUND or DP_UNAVAILABLE: nobody listens.
dp_status dp_link_connect(const char *directory, const char *name, int *ret_fd,
                          struct dp_error *err);
