// The training state of a rank that trains no further, read by others out of its device's memory.
//
// A rank that holds lists what it has as a dp_state: runs of weights, moments and biases of routers
// under the names that checkpoints know them by, and where the training stands. It serves that over
// a tcp port of its own; whoever knows the token may read, any part, as often as it likes, and
// nothing changes by it. Ranks of a new assignment take what their stages need from whichever rank
// has it, whatever the layouts are: a dp_state_reader is a dp_tensor_source (dp/checkpoint.h).
//
// Both ends say hello first as ranks do (magic, version, token, rank). Then a reader asks, for the
// table or for values, and gets answers in the order of its questions; each carries XXH64 of its
// bytes. What a reader gets is untrusted until it has been checked against lengths and hashes.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "dp/archive.h"
#include "dp/checkpoint.h"
#include "dp/model.h"

// Elements [begin, end) of a tensor of `count`.
struct dp_state_part {
    char own[DP_NAME_MAX]; // as dp/model.h calls the weight
    dp_archive_kind kind;  // WEIGHT, M or V
    dp_dtype dtype;
    int64_t begin, end, count;
    const void *values; // device memory; NULL in a table that was read
};

struct dp_state {
    struct dp_archive_meta meta;
    struct dp_device *device; // borrowed; NULL: there is no part
    struct dp_state_part *parts;
    int64_t count, room;
};

// Weights [begin, end) of a stage, which stays; cut at the borders of tensors.
void dp_state_add_weights(struct dp_state *state, struct dp_stage *stage, int64_t begin,
                          int64_t end);
void dp_state_add_moments(struct dp_state *state, const struct dp_stage *stage,
                          const struct dp_checkpoint_run *run);
void dp_state_add_biases(struct dp_state *state, struct dp_stage *stage);
// Accepts zeros.
void dp_state_deinit(struct dp_state *state);

// The table as it travels: meta and parts without their values. parse is given what anyone may have
// sent: DP_INVALID says what is wrong with it, DP_TOO_LARGE what is too much.
void dp_state_write_table(const struct dp_state *state, struct dp_buf *out);
dp_status dp_state_parse_table(const void *bytes, size_t length, struct dp_state *ret_state,
                               struct dp_error *err);

struct dp_state_server;

// Listens on `host`; ret_address as in dp_transport_tcp_listen. The state is borrowed, and what it
// points to does not change, until the server is freed.
dp_status dp_state_server_open(const struct dp_state *state, const char *host, int32_t rank,
                               uint64_t token, char *ret_address,
                               struct dp_state_server **ret_server, struct dp_error *err);
// Answers readers until it is closed; run by one thread of the program, while nobody else uses the
// device.
void dp_state_server_run(struct dp_state_server *server);
// Any thread, at any time.
void dp_state_server_close(struct dp_state_server *server);
// After run has returned, or where it was never called. Accepts NULL.
void dp_state_server_free(struct dp_state_server *server);

struct dp_state_address {
    int32_t rank; // of the assignment that holds
    const char *address;
};

struct dp_state_reader_config {
    const struct dp_state_address *sources;
    int32_t count;
    int32_t rank;   // of the reader, in its own assignment: readers begin with different sources
    uint64_t token; // of the assignment that holds
    int64_t step;   // that a source holds, or it is none
    int64_t deadline_ns; // until when sources may be met; less once one was: silent_ms from then
    int64_t silent_ms;   // a source that says nothing for so long is lost; 0 = DP_STATE_SILENT_MS
};

struct dp_state_reader;

// Meets the sources and reads their tables. Those that cannot be reached, or hold another step, or
// say what cannot be, are left out and told by dp_state_reader_lost; DP_UNAVAILABLE when none is
// left.
dp_status dp_state_reader_open(const struct dp_state_reader_config *config,
                               struct dp_state_reader **ret_reader, struct dp_error *err);
// Accepts NULL.
void dp_state_reader_free(struct dp_state_reader *reader);
// What all sources agree on.
const struct dp_archive_meta *dp_state_reader_meta(const struct dp_state_reader *reader);
// What lies on several sources is read in turns from those that have given least. One that fails is
// left out from then on and its share read from others; DP_UNAVAILABLE when nobody has it any more.
struct dp_tensor_source dp_state_reader_source(struct dp_state_reader *reader);
// Why sources were left out, so far; "" = none was. Owned by the reader.
const char *dp_state_reader_lost(const struct dp_state_reader *reader);

struct dp_state_reader_stats {
    uint64_t bytes; // of values
    int32_t sources, lost;
};
void dp_state_reader_stats(const struct dp_state_reader *reader,
                           struct dp_state_reader_stats *ret_stats);
