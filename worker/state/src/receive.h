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

// Begins; the socket can be written to when something has come of it.
dp_status dp_state_source_dial(struct source *source, struct dp_error *err);
// Then: says hello and asks for the table.
dp_status dp_state_source_greet(struct source *source, uint64_t token, int32_t self,
                                struct dp_error *err);
// The answer to the hello.
dp_status dp_state_source_take_hello(struct source *source, uint64_t token, int64_t deadline_ns,
                                     struct dp_error *err);
dp_status dp_state_source_take_table(struct source *source, struct dp_error *err);
dp_status dp_state_source_ask(struct source *source, const struct state_request *request,
                              struct dp_error *err);
// The answer to the oldest question, which has `length` bytes.
dp_status dp_state_source_take_values(struct source *source, void *ret_bytes, size_t length,
                                      struct dp_error *err);
