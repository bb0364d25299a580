// A reader's connection to one source.
#pragma once

#include "internal.h"

struct source {
    int32_t rank;
    char address[DP_ADDRESS_MAX];
    int fd;            // -1: it is none any more
    int64_t silent_ms; // that it may be
    struct dp_state table;
    uint64_t asked_bytes; // of values, so far
};

// Begins; what comes of it is told by source_greet.
dp_status source_dial(struct source *source, struct dp_error *err);
// Says hello, hears it, and asks for the table.
dp_status source_greet(struct source *source, uint64_t token, int32_t self, int64_t deadline_ns,
                       struct dp_error *err);
dp_status source_take_table(struct source *source, struct dp_error *err);
dp_status source_ask(struct source *source, const struct state_request *request,
                     struct dp_error *err);
// The answer to the oldest question, which has `length` bytes.
dp_status source_take_values(struct source *source, void *ret_bytes, size_t length,
                             struct dp_error *err);
