// What the parts of the all-to-all share.
//
// A round is one move of one routing. Rounds are numbered in the order of their begin, the same on
// all members, and each takes the lane (number of its kind) % depth of its kind. What is marked
// "mutex" is shared by the thread that makes the calls and the one that runs dp_alltoall_progress;
// the rest of a round that has started, and of lanes and links, belongs to the latter.
#pragma once

#include <pthread.h>

#include "dp/alltoall.h"
#include "dp/window.h"

typedef enum note_kind {
    NOTE_PART,    // more of the same follows
    NOTE_COUNTS,  // a source's counts
    NOTE_INBOUND, // rows of a source to be forwarded
    NOTE_ARRIVAL, // rows of a source at their last place
    NOTE_PARTIAL, // rows for a source to be added up with those of the node's other ranks
    NOTE_RETURN,  // sums of a node; `source` is the node
    NOTE_CREDIT,  // the lane may be written again
    NOTE_CONTROL,
} note_kind;

typedef enum note_control {
    CONTROL_WAKE,  // to itself
    CONTROL_CLOSE, // nothing more will come
    CONTROL_ACK,   // so many notes have been read
} note_control;

struct note {
    note_kind kind;
    uint32_t move, lane, source, rows; // 2, 2, 10 and NOTE_ROWS_BITS bits; no rows of a part
    uint32_t round, check;             // 16 and 13 bits
};
#define NOTE_ROWS_BITS 18
#define NOTE_ROUND_MASK 0xffffu
#define NOTE_CHECK_MASK 0x1fffu
#define ACK_MASK 0x1fffffffu
// Puts to a peer that it has not read the notes of; what is no row may use the other half.
#define UNREAD_MAX (DP_WINDOW_NOTES_MAX / 2)
#define UNACKED_MAX (DP_WINDOW_NOTES_MAX / 8)

// One source's tokens on their way through this rank: its own, or one of another node's.
struct stream {
    int32_t source;
    const struct dp_alltoall_layout *layout; // NULL until the source's index has come
    int64_t first, entries;                  // in layout->node_token
    // [ranks of the node] to the experts: the next entry; back: where the rank's rows begin, among
    // what is to be added up or, for this rank, among the rows of the load.
    int64_t *at;
    int64_t *row;  // [ranks of the node] rows that are through
    int64_t added; // back: entries that are through
};

struct round {
    struct round *next;
    struct dp_routing *routing;
    struct dp_load load;
    dp_move move;
    uint32_t number; // & NOTE_ROUND_MASK goes with notes
    uint32_t check;
    bool done, finished;     // mutex
    int64_t waited_since_ns; // mutex; 0 while nobody waits
    int64_t begin_ns, progress_ns;
    struct lane *lane;
    int32_t told;    // DISPATCH: members, counted from this one on, that know the own counts
    bool is_counted; // all counts are known
    uint8_t *codes;  // [tokens, hidden] of an FP8 load
    float *scales;
    int64_t *out;           // [nodes] to the experts: entries sent; back: entries in the totals
    int64_t *give;          // [ranks] back: rows of each source given
    struct stream *streams; // [served + 1]; the own one first
    int64_t total;          // back: tokens in the totals
};

struct lane_peer {
    uint64_t credits; // rounds of the lane that are over there
    uint64_t note;    // one that came before its round began here
    bool is_noted, has_counts;
};

struct lane {
    dp_move move;
    uint32_t index;
    const struct dp_alltoall_lane_areas *areas;
    struct round *round;
    uint64_t over; // rounds
    uint32_t last_number, last_check;
    uint64_t last_tag;
    struct lane_peer *peers; // [count]
    int64_t *arrived;        // [count] rows that have landed, by source
    int64_t *inbound;        // [count]
    int64_t *partial;        // [count, ranks of the node]
    int64_t *returned;       // [nodes]
    uint8_t *totals;         // [tokens, hidden] of the round; kept
    uint8_t *total_weights;
    int64_t totals_rows; // room
};

struct link {
    int32_t rank;    // of the transport
    uint8_t *memory; // the peer's window where it can be addressed
    uint64_t sent, acked, read, told;
    bool is_near;   // on the same node
    bool is_linked; // rows can go between it and this rank
    bool has_closed;
};

struct dp_routing {
    struct dp_alltoall *alltoall;
    uint64_t tag;
    int64_t tokens;
    int32_t *index; // [tokens, top_k]
    struct dp_alltoall_layout layout;
    struct dp_alltoall_layout *served; // [served] of other nodes' sources, for this node
    struct dp_alltoall_counts counts;
    bool is_counted, has_arrived;
    int64_t arrived;
    int32_t *expert;         // [arrived, top_k]
    int32_t *expert_counts;  // [own experts]
    struct round *rounds[4]; // mutex; begun, neither finished nor collected
    int64_t landed_ns[4];    // mutex
    int32_t users;           // mutex; the holder and rounds
};

struct dp_alltoall {
    struct dp_exchanger exchanger;
    struct dp_alltoall_topology topology;
    struct dp_alltoall_regions regions;
    struct dp_alltoall_widths widths; // of elements; those of codes are hidden wide
    dp_element element;
    int32_t self, node, experts, top_k, limited_nodes, depth;
    int64_t hidden, tokens_max, blocked_ns;
    int64_t chunk_rows;
    uint32_t epoch;
    int32_t node_ranks, served;
    int32_t *sources; // [served + 1] self, then those it forwards for
    struct dp_transport *transport;
    struct dp_window *window;
    uint8_t *memory;
    struct dp_device *device; // for codes
    struct link *links;       // [count]
    struct lane lanes[4][DP_ALLTOALL_DEPTH_MAX];
    uint8_t *staging;
    size_t staging_bytes;
    const void **terms; // [count] of one sum
    int64_t *cursors;   // [ranks of the node]

    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct round *queue, **queue_end; // begun, not started
    uint32_t next_number;
    uint64_t begun[4];
    bool is_running, is_closing, has_ended;
    _Atomic int failed; // a dp_status
    char reason[DP_ERROR_MESSAGE_MAX];
    struct dp_alltoall_stats stats; // mutex
    uint64_t *peer_bytes;           // [count] mutex
};

static inline bool dp_alltoall_is_back(dp_move move)
{
    return move == DP_MOVE_COMBINE || move == DP_MOVE_DISPATCH_INPUT;
}
const char *dp_alltoall_move_text(uint32_t move);
static inline bool dp_round_is_fp8(const struct round *round)
{
    return round->load.format == DP_WIRE_FP8;
}
// "dispatch (kind 1 stage 2 ...)"; buffer of ROUND_TEXT_MAX, returned.
#define ROUND_TEXT_MAX (DP_TRANSPORT_TAG_TEXT_MAX + 32)
const char *dp_round_text(char *buffer, const struct round *round);

// links.c
// Whether rows of the round may be put to a member now: it has credit and reads its notes.
bool dp_link_may_put(const struct dp_alltoall *alltoall, const struct round *round, int32_t peer);
// A place to write `bytes` that belong at `offset` of the member's window: there, or staging.
uint8_t *dp_link_reserve(struct dp_alltoall *alltoall, int32_t peer, int64_t offset, int64_t bytes);
// What was reserved last is written. NOTE_PART is not told where the memory is the peer's own.
dp_status dp_link_commit(struct dp_alltoall *alltoall, const struct round *round, int32_t peer,
                         int64_t offset, int64_t bytes, note_kind kind, int32_t source,
                         int64_t rows, struct dp_error *err);
// The same of bytes that lie together.
dp_status dp_link_put(struct dp_alltoall *alltoall, const struct round *round, int32_t peer,
                      int64_t offset, const void *bytes, int64_t length, note_kind kind,
                      int32_t source, int64_t rows, struct dp_error *err);
dp_status dp_link_credit(struct dp_alltoall *alltoall, const struct round *round, int32_t peer,
                         struct dp_error *err);
dp_status dp_link_control(struct dp_alltoall *alltoall, int32_t peer, note_control control,
                          uint32_t value, struct dp_error *err);

// notes.c
uint64_t dp_note_pack(const struct note *note);
struct note dp_note_unpack(uint64_t bits);
// Reads what has landed from all members; *progress is set when there was any.
dp_status dp_notes_read(struct dp_alltoall *alltoall, bool *progress, struct dp_error *err);
// Compares what came before the round began.
dp_status dp_notes_check_early(struct dp_alltoall *alltoall, const struct round *round,
                               struct dp_error *err);

// counts.c
// Tells those members what goes where that may be told now.
dp_status dp_counts_tell(struct dp_alltoall *alltoall, struct round *round, bool *progress,
                         struct dp_error *err);
// Takes the counts of all members once they have come.
dp_status dp_counts_take(struct dp_alltoall *alltoall, struct round *round, bool *progress,
                         struct dp_error *err);

// forth.c and back.c: one bit of everything that can be done for the round.
dp_status dp_forth_step(struct dp_alltoall *alltoall, struct round *round, bool *progress,
                        struct dp_error *err);
dp_status dp_back_step(struct dp_alltoall *alltoall, struct round *round, bool *progress,
                       struct dp_error *err);
// Whether nothing is left to be sent, forwarded or added, here.
bool dp_forth_is_over(const struct dp_alltoall *alltoall, const struct round *round);
bool dp_back_is_over(const struct dp_alltoall *alltoall, const struct round *round);
// Members that the round waits for, in words.
void dp_forth_missing(const struct dp_alltoall *alltoall, const struct round *round, char *text,
                      size_t size);
void dp_back_missing(const struct dp_alltoall *alltoall, const struct round *round, char *text,
                     size_t size);
// All that was to come here has come.
void dp_round_done(struct dp_alltoall *alltoall, struct round *round);

// rounds.c
struct round *dp_round_new(struct dp_routing *routing, dp_move move, const struct dp_load *load);
// The lists of a round that starts; those of its streams once the counts are known.
dp_status dp_round_start(struct dp_alltoall *alltoall, struct round *round, struct dp_error *err);
void dp_round_set_streams(struct dp_alltoall *alltoall, struct round *round);
// Whether it is known where the tokens of a forwarded stream go. That comes with its rows in the
// DISPATCH, which may still be under way here when the next move begins.
bool dp_round_find_layout(struct dp_alltoall *alltoall, const struct round *round, int32_t number);
void dp_round_free(struct round *round);
// Under the mutex.
void dp_routing_unuse(struct dp_routing *routing);
extern const struct dp_exchanger dp_alltoall_calls;
// Around a wait of a thread that is not the one which moves rows.
void dp_alltoall_count_waiter(struct dp_alltoall *alltoall, bool begins);

// progress.c
// The first failure counts; wakes everybody.
void dp_alltoall_fail(struct dp_alltoall *alltoall, const struct dp_error *err);
dp_status dp_alltoall_refuse_failed(struct dp_alltoall *alltoall, struct dp_error *err);
void dp_alltoall_wake(struct dp_alltoall *alltoall);

// sums.c
// to[cols] = the terms added up from 0 in order, in float (double for DP_F64), rounded once.
void dp_sum_rows(dp_element element, int64_t cols, const void *const *terms, int32_t count,
                 void *to);
