// Many calls at once from one thread: submits, and watchers that read or do not.
#pragma once

#include <stdint.h>

#include "dp/error.h"

// Hands in `count` jobs (each with a request id of its own that begins with `prefix`), at most
// `at_once` without an answer, over `connections`. *ret_seconds from the first call to the last
// answer: every job is on disk then.
dp_status burst_submit(const char *address, const char *prefix, const char *toml, uint32_t count,
                       uint32_t at_once, uint32_t connections, double *ret_seconds,
                       struct dp_error *err);

struct watchers;
// Opens streams of events, from the index on; the first `reading` of them take what comes.
dp_status watchers_open(const char *address, uint32_t count, uint32_t reading, uint64_t after,
                        struct watchers **ret_watchers, struct dp_error *err);
struct watchers_figures {
    uint64_t batches; // that readers took
    uint64_t index;   // the lowest that one of those that read has reached
    uint32_t dropped; // streams that were ended, and said "lagged: resume from index N"
    uint32_t gaps;    // of them, those whose N is beyond the last index that they got
    uint32_t failed;  // streams that were ended in another way
};
// Takes what comes for so long.
void watchers_run(struct watchers *watchers, int64_t ms);
// From now on all read: those that did not take what was kept for them, and learn what became of
// them.
void watchers_wake(struct watchers *watchers);
struct watchers_figures watchers_figures(const struct watchers *watchers);
// Accepts NULL.
void watchers_close(struct watchers *watchers);
