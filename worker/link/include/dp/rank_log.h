// A rank's output on disk: capped, rotated, and readable by offset while it is written.
//
// The bytes that were kept form one stream that starts at offset 0. A file named
// rank-N.OFFSET.log holds the part that starts at OFFSET; a new file starts when one has reached
// half of bytes_max and the file before the newest two is removed, so a reader never has to guess
// where a rotated file belongs.
#pragma once

#include <stdint.h>

#include "dp/buf.h"
#include "dp/error.h"

struct dp_rank_log {
    int directory_fd; // borrowed
    uint32_t rank;
    uint64_t bytes_max;
    int fd;
    uint64_t start;    // offset of the newest file
    uint64_t end;      // offset after the last byte kept
    uint64_t previous; // start of the file before, when start > 0
    uint64_t dropped;  // bytes not kept: too fast, no space, or rotated away
    uint64_t unsaid;   // of those, not yet told in the stream
    int64_t budget;    // bytes that may be written now
    int64_t budget_ns; // when budget was last filled
};

// directory_fd must stay open. Files appear with the first byte.
void dp_rank_log_init(struct dp_rank_log *log, int directory_fd, uint32_t rank, uint64_t bytes_max);
void dp_rank_log_deinit(struct dp_rank_log *log);
// Never fails: what cannot be kept is counted in `dropped`, and a line in the stream says so once
// there is room again. A rank that writes faster than DP_RANK_LOG_BYTES_PER_S for long loses the
// excess. now_ns is the monotonic clock.
void dp_rank_log_write(struct dp_rank_log *log, const void *bytes, size_t length, int64_t now_ns);

// Appends to buf at most bytes_max bytes from `offset` on; *ret_offset is where they start, later
// than `offset` when the bytes asked for were rotated away. Nothing appended: there is no more now.
dp_status dp_rank_log_read(const char *directory, uint32_t rank, uint64_t offset, size_t bytes_max,
                           uint64_t *ret_offset, struct dp_buf *buf, struct dp_error *err);
