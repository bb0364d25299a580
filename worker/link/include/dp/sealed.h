// Small files of agents and keepers that tell when they were damaged: a line of 64 bytes with kind,
// length and hash, then the bytes.
#pragma once

#include <stddef.h>

#include "dp/buf.h"
#include "dp/error.h"

// Replaces the file as a whole. kind: a word with its version, "dp.assignment/1", below 24 bytes.
dp_status dp_sealed_write(const char *path, const char *kind, const void *bytes, size_t length,
                          struct dp_error *err);
// Appends what was sealed to *buf, at most bytes_max. DP_NOT_FOUND: there is none. DP_INVALID: it
// is of another kind, longer or shorter than it says, or changed; it was renamed to PATH.corrupt,
// which err says.
dp_status dp_sealed_read(const char *path, const char *kind, size_t bytes_max, struct dp_buf *buf,
                         struct dp_error *err);
// DP_INVALID: it is no file of its own (a pipe, at which whoever opens it waits, a link), and was
// renamed as above. dp_sealed_read begins with this.
dp_status dp_sealed_check(const char *path, struct dp_error *err);
// Renames a file that cannot be used to PATH.corrupt; err gets that, and its status DP_INVALID.
dp_status dp_sealed_put_aside(const char *path, struct dp_error *err);
