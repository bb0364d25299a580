// Ranks over RDMA: what the files of the row share. See dp/verbs.h for how it works.
//
// Lock order: a link's lock, then the common mutex. Requests are posted to a queue pair under its
// link's lock alone, by whichever thread has something to send, so that no two post at a time.
// States of links change under the lock too; all but the step to draining and the end are the
// progress thread's.
#pragma once

#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>

#include "dp/rand.h"
#include "dp/transport_ops.h"
#include "dp/verbs.h"
#include "dp/verbs_library.h"
#include "verbs_region.h"

// An entry of the table that announces what was written; nine words, little-endian. The payload of
// a piece of a message follows it in the slot.
#define ENTRY_BYTES 64u
typedef enum verbs_entry_kind {
    VERBS_ENTRY_PIECE = 1, // of a message: tag, length of the message, offset, length of the piece
    VERBS_ENTRY_PUT = 2,   // note, number, key of the window, -
    VERBS_ENTRY_GONE = 3   // -, -, key of a window that the sender has closed
} verbs_entry_kind;
struct verbs_entry {
    uint64_t number;   // of the entries of this queue pair, from 1
    uint32_t epoch;    // of the link, when it was posted
    uint32_t kind;     // verbs_entry_kind
    uint64_t consumed; // the sender's own count of the other direction: credits
    uint64_t words[4]; // by kind
    uint64_t zero;
};
_Static_assert(sizeof(struct verbs_entry) <= ENTRY_BYTES, "an entry fills its place");

// Credits that travel alone: words of a small table of their own, absolute counts.
#define GRANTS 4u // at most two are ever on their way
#define GRANT_BYTES 64u
struct verbs_grant {
    uint64_t number; // of the grants of this epoch, from 1
    uint64_t epoch;
    uint64_t consumed;
};

// Immediate data: the number of an entry, or of a grant, modulo 2^31, whose place in its table
// follows from it. So a note that comes again is known without a look at memory that may just be
// written.
#define IMM_GRANT 0x80000000u
#define IMM_NUMBER 0x7fffffffu

// Room in the queues beyond what entries need: grants, the marks that end a drain.
#define SPARE_REQUESTS 8u
#define SIGNAL_EVERY 16u
#define ZERO_COPY_BYTES_MIN 32768u
#define STAGED_BYTES_MAX 65536u // of one write

typedef enum verbs_channel_kind {
    VERBS_MESSAGES,
    VERBS_WINDOWS,
    VERBS_CHANNELS
} verbs_channel_kind;

// A request that may have to be posted again under another epoch.
struct verbs_request {
    uint64_t number;    // of the entry that it is or belongs to; 0 = a grant
    uint64_t remote;    // address
    uint64_t stage_end; // of the staging ring, once it is done
    unsigned char *local;
    uint32_t length, lkey, rkey, imm;
    bool is_entry;
};

struct verbs_channel {
    struct ibv_qp *qp; // NULL while there is none
    uint32_t psn;
    // What comes. Slots of the table are [depth] of slot_bytes; then the grants.
    unsigned char *slots;
    size_t slot_bytes;
    unsigned char *grants;
    uint64_t arrived;  // entries whose completion has come
    uint64_t consumed; // of these dealt with
    uint64_t granted;  // of these told to the peer
    uint64_t grants_arrived;
    bool recv_drained, send_drained;
    // What goes.
    uint64_t sent;                  // entries
    uint64_t acknowledged;          // entries whose request is done
    uint64_t credit;                // entries that the peer has dealt with
    uint64_t grants_sent;           // in this epoch
    unsigned char *grant_sources;   // [GRANTS]
    struct verbs_request *requests; // ring of request_count
    uint32_t request_count;
    uint64_t head, tail;   // of the ring: oldest that is not done, next
    uint64_t signalled_at; // tail after the last signalled one
    uint64_t stage_signalled_at;
    unsigned char *stage; // ring of stage_bytes
    uint64_t stage_head, stage_tail;
    uint64_t remote_slots, remote_grants;
    uint32_t remote_rkey;
    uint32_t inline_bytes; // what the queue pair takes without a registered source
    bool is_taken;         // by a sender, for the pieces of one message or put
    bool grant_wanted;     // there was no room for it
    uint64_t failed_at;    // acknowledged entries when it last failed
    int attempts;          // of making the link anew at that place
};

typedef enum verbs_state {
    VERBS_NONE, // a peer that is not this row's
    VERBS_OFFERED,
    VERBS_READY,
    VERBS_UP,
    VERBS_FLUSHING, // what was posted before the end still leaves
    VERBS_DRAINING,
    VERBS_BACKOFF,
    VERBS_CLOSED
} verbs_state;

// What ranks tell each other about their ends over the tcp connection.
struct verbs_end {
    uint64_t epoch;
    uint32_t mtu; // enum ibv_mtu
    uint32_t lid;
    unsigned char gid[16];
    struct {
        uint32_t qpn, psn;
        uint64_t slots, grants;
        uint32_t rkey, depth;
        uint64_t slot_bytes;
        uint64_t arrived, consumed;
    } channels[VERBS_CHANNELS];
};
#define FRAME_WORDS 32
#define FRAME_BYTES (FRAME_WORDS * 8)
#define FRAME_TEXT_BYTES (FRAME_BYTES - 16)
typedef enum verbs_frame_kind {
    VERBS_FRAME_END = 1, // a struct verbs_end
    VERBS_FRAME_READY,   // its queue pairs take what comes
    VERBS_FRAME_BYE      // nothing more will come; why
} verbs_frame_kind;

struct verbs_link {
    struct verbs *verbs;
    int32_t peer;
    pthread_mutex_t lock;
    pthread_cond_t changed; // room, the state
    verbs_state state;
    bool is_ending;    // for good
    bool is_cut;       // as if this rank had died
    bool is_cut_short; // closed before all had left; of the thread that closes
    char end_reason[128];
    int64_t drain_until_ns;
    bool said_bye, heard_bye;
    uint32_t epoch;
    int64_t timer_ns;               // when the state is to be left; 0 = never
    int64_t moved_ns;               // when something last went
    char reason[128];               // of the last failure
    bool is_reason_own;             // a completion's, not just a flush that follows one
    bool is_hopeless;               // it would fail again
    bool is_peers_wish;             // the peer's end failed, and it counts how often
    verbs_channel_kind failed_kind; // VERBS_CHANNELS = none in particular
    int attempts;                   // of getting up
    int64_t up_ns;                  // since when
    struct ibv_cq *cq;
    struct verbs_channel channels[VERBS_CHANNELS];
    unsigned char *memory; // slots, staging and grants of both
    size_t memory_bytes;
    struct verbs_region *region;
    struct verbs_end peer_end;  // the newest heard of
    uint32_t peer_ready;        // epoch
    uint32_t mtu;               // enum ibv_mtu, agreed
    struct dp_message *message; // coming in
    size_t message_got;
    struct verbs_window *windows;
    // The tcp connection; frames are sent under the lock.
    int fd;
    unsigned char frame[FRAME_BYTES];
    size_t frame_got;
    unsigned char *out; // frames that wait for the socket
    size_t out_bytes;
    uint32_t watched;
    _Atomic bool resume_wanted, has_completions;
};

// What this row holds of one window towards one peer; outs[peer].row.
struct verbs_window {
    struct verbs_window *next;
    struct dp_window *window; // held
    uint32_t key;
    struct verbs_region *region; // of its memory here
    bool is_gone_here, is_gone_there;
    // Of the peer's.
    uint64_t memory, base, piece_bytes;
    uint32_t rkeys[10];
    uint32_t pieces;
};

struct verbs_device {
    const struct dp_verbs_library *library;
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_comp_channel *events;
    struct ibv_device_attr attributes;
    char name[64];
    uint8_t port;
    int gid_wanted; // index + 1; 0 = any
    // As it was when last asked.
    bool is_ethernet;
    int gid_index;
    union ibv_gid gid;
    uint16_t lid;
    enum ibv_mtu mtu;
};

struct verbs {
    struct dp_transport base;
    struct dp_verbs_config config; // defaults filled in
    struct verbs_device device;
    struct verbs_regions regions;
    struct dp_transport *tcp; // by which the ranks meet
    struct verbs_link *links; // [world]
    int epoll_fd, wake_fd;
    _Atomic bool stop, connected;
    _Atomic uint64_t reconnects, late, duplicates, grants, requests, signalled, zero_copy;
    _Atomic uint32_t in_flight_peak;
    struct dp_rand rand; // progress thread
};

static inline struct verbs *verbs_of(struct dp_transport *transport)
{
    return (struct verbs *)transport;
}

// verbs_device.c
dp_status dp_verbs_device_open(const struct dp_verbs_config *config, struct verbs_device *device,
                               struct dp_error *err);
void dp_verbs_device_close(struct verbs_device *device);
// Reads the port anew: its state, MTU, and which GID to use.
dp_status dp_verbs_device_probe(struct verbs_device *device, struct dp_error *err);

// verbs_queue.c; all under the link's lock.
dp_status dp_verbs_link_init(struct verbs *verbs, struct verbs_link *link, int32_t peer,
                             struct dp_error *err);
void dp_verbs_link_deinit(struct verbs_link *link);
dp_status dp_verbs_queues_new(struct verbs_link *link, struct dp_error *err);
// To the peer's end; from here on they take what comes, and may send.
dp_status dp_verbs_queues_connect(struct verbs_link *link, struct dp_error *err);
// To the error state, with a mark behind what is posted.
void dp_verbs_queues_stop(struct verbs_link *link);
// Late: receives are not waited for any more.
bool dp_verbs_queues_are_drained(const struct verbs_link *link, bool is_late);
void dp_verbs_queues_free(struct verbs_link *link);

// verbs_post.c; all under the link's lock.
// Puts a request behind the others and posts it; a failure to post breaks the link, whose next
// epoch posts it again. Signalled: with a completion in any case, not just every so often.
void dp_verbs_post(struct verbs_link *link, verbs_channel_kind kind,
                   const struct verbs_request *request, bool is_signalled);
// The same for an entry, which is stamped with the epoch and brings credits along.
void dp_verbs_post_entry(struct verbs_link *link, verbs_channel_kind kind,
                         const struct verbs_request *request, bool is_signalled);
// A request of no bytes, behind all others, with a completion; where there is room for it.
void dp_verbs_post_mark(struct verbs_link *link, verbs_channel_kind kind);
// Tells the peer how much has been dealt with, when that is worth a write or urgent.
void dp_verbs_grant(struct verbs_link *link, verbs_channel_kind kind, bool is_urgent);
// The requests before `position` are done.
void dp_verbs_retire(struct verbs_link *link, verbs_channel_kind kind, uint64_t position);
// After a reconnect: what the peer has got is done, the rest is posted again. False when the peer
// lacks what had been acknowledged.
bool dp_verbs_replay(struct verbs_link *link, verbs_channel_kind kind, uint64_t arrived);
bool dp_verbs_post_recv(struct verbs_link *link, verbs_channel_kind kind);
uint64_t dp_verbs_wr_id(const struct verbs_link *link, verbs_channel_kind kind, bool is_recv,
                        bool is_mark, uint64_t position);
// Room in the staging ring for `length` bytes in one piece; NULL = not now. To be filled and posted
// before the lock is given up.
unsigned char *dp_verbs_stage(struct verbs_link *link, struct verbs_channel *channel, size_t length,
                              uint64_t *ret_end);

// verbs_send.c
dp_status dp_verbs_send(struct dp_transport *transport, int32_t peer, uint64_t tag,
                        const struct iovec *parts, int count, size_t length, struct dp_error *err);
dp_status dp_verbs_put(struct dp_transport *transport, struct dp_window *window, int32_t peer,
                       size_t offset, const struct iovec *parts, int count, size_t length,
                       uint64_t number, uint64_t note, struct dp_error *err);
dp_status dp_verbs_window_offer(struct dp_transport *transport, struct dp_window *window,
                                int32_t peer, unsigned char card[DP_WINDOW_CARD_BYTES],
                                struct dp_error *err);
dp_status dp_verbs_window_accept(struct dp_transport *transport, struct dp_window *window,
                                 int32_t peer, const unsigned char card[DP_WINDOW_CARD_BYTES],
                                 struct dp_error *err);
void dp_verbs_window_forget(struct dp_transport *transport, struct dp_window *window, int32_t peer);
// Under the link's lock: gives up what both sides have closed; all = whatever they have.
void dp_verbs_windows_drop(struct verbs_link *link, bool is_all);

// verbs_receive.c; under the link's lock, progress thread.
// Takes completions; true when there may be more.
bool dp_verbs_poll(struct verbs_link *link);
// Deals with entries that have arrived; is_last = also those of a paused peer.
void dp_verbs_consume(struct verbs_link *link, bool is_last);

// verbs_link.c; under the link's lock.
// Something failed: the queues are drained and made anew, or the link is given up.
// `kind` is the channel that failed, VERBS_CHANNELS when it was none in particular.
void dp_verbs_link_break(struct verbs_link *link, verbs_channel_kind kind, bool is_hopeless,
                         const char *reason);
// For good, at once: what has not left is lost.
void dp_verbs_link_end(struct verbs_link *link, const char *reason);
// For good, after what was posted has left.
void dp_verbs_link_finish(struct verbs_link *link, const char *reason);
bool dp_verbs_link_is_flushed(const struct verbs_link *link);
// Marks what a live link was given without a completion behind it (grants are), where there is room
// for one: else nothing would tell of its end.
void dp_verbs_link_mark(struct verbs_link *link);
void dp_verbs_link_begin(struct verbs_link *link);
// What is due by the clock and by what has been heard; progress thread.
void dp_verbs_link_step(struct verbs_link *link);

// verbs_control.c; under the link's lock.
void dp_verbs_control_send_end(struct verbs_link *link);
void dp_verbs_control_send_ready(struct verbs_link *link);
void dp_verbs_control_send_bye(struct verbs_link *link, const char *reason);
void dp_verbs_control_start(struct verbs_link *link);
// What the socket has and takes; progress thread.
void dp_verbs_control_turn(struct verbs_link *link, uint32_t events);

void dp_verbs_wake(struct verbs *verbs);
// A completion status in words, with what it usually means. Static.
const char *dp_verbs_status_text(enum ibv_wc_status status);
