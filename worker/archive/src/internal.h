// Between the parts that know files byte by byte.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "dp/error.h"

#define PREAMBLE_BYTES 8 // the header's length
#define HASHES_KEY "dp.xxh64"
#define HASH_DIGITS 16

// A file that is written from some place on. The disk begins while the rest is still being made:
// what is behind is handed to it piece by piece.
#define DP_WRITE_PIECE (4u << 20)
struct dp_file_writer {
    const char *path; // borrowed
    int fd;           // borrowed
    uint64_t at;      // of the next byte
    uint64_t handed;  // to the disk, up to here; a whole page
};
// At most DP_WRITE_PIECE bytes at a time are worth it.
dp_status dp_file_writer_put(struct dp_file_writer *writer, const void *bytes, size_t length,
                             struct dp_error *err);
