// The reports of one rank that an agent which connects later still needs.
#pragma once

#include "dp/link.h"

struct kept_report {
    void *bytes; // owned; NULL = none
    size_t length;
};

struct report_cache {
    struct kept_report latest[DP_LINK_SLOT_LATEST_END];
    struct kept_report steps[DP_LINK_STEPS_KEPT]; // a ring
    size_t steps_first;
    size_t steps_count;
    size_t steps_bytes;
};

void cache_deinit(struct report_cache *cache);
void cache_put(struct report_cache *cache, uint16_t slot, const void *bytes, size_t length);
// Appends everything kept as REPORT frames of `rank`, the last word of the rank last.
void cache_write(const struct report_cache *cache, uint32_t rank, struct dp_buf *buf);
