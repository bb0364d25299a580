#include "cache.h"

#include <stdlib.h>

#include "dp/alloc.h"

static void forget(struct kept_report *report)
{
    free(report->bytes);
    *report = (struct kept_report){0};
}

void cache_deinit(struct report_cache *cache)
{
    for (size_t i = 0; i < DP_LINK_SLOT_LATEST_END; i++) {
        forget(&cache->latest[i]);
    }
    for (size_t i = 0; i < DP_LINK_STEPS_KEPT; i++) {
        forget(&cache->steps[i]);
    }
}

static void drop_oldest_step(struct report_cache *cache)
{
    struct kept_report *oldest = &cache->steps[cache->steps_first];
    cache->steps_bytes -= oldest->length;
    forget(oldest);
    cache->steps_first = (cache->steps_first + 1) % DP_LINK_STEPS_KEPT;
    cache->steps_count--;
}

static void put_step(struct report_cache *cache, const void *bytes, size_t length)
{
    while (cache->steps_count > 0 && (cache->steps_count == DP_LINK_STEPS_KEPT ||
                                      cache->steps_bytes + length > DP_LINK_STEPS_BYTES_MAX)) {
        drop_oldest_step(cache);
    }
    size_t at = (cache->steps_first + cache->steps_count) % DP_LINK_STEPS_KEPT;
    cache->steps[at] = (struct kept_report){.bytes = dp_memdup(bytes, length), .length = length};
    cache->steps_count++;
    cache->steps_bytes += length;
}

void cache_put(struct report_cache *cache, uint16_t slot, const void *bytes, size_t length)
{
    if (slot == DP_LINK_SLOT_STEP) {
        put_step(cache, bytes, length);
    } else if (slot > DP_LINK_SLOT_NONE && slot < DP_LINK_SLOT_LATEST_END) {
        forget(&cache->latest[slot]);
        cache->latest[slot] =
            (struct kept_report){.bytes = dp_memdup(bytes, length), .length = length};
    }
}

static void write_report(const struct kept_report *report, uint16_t slot, uint32_t rank,
                         struct dp_buf *buf)
{
    if (report->bytes == NULL) {
        return;
    }
    struct dp_link_frame frame = {
        .type = DP_LINK_REPORT,
        .slot = slot,
        .rank = rank,
        .payload = report->bytes,
        .length = report->length,
    };
    dp_link_frame_write(&frame, buf);
}

void cache_write(const struct report_cache *cache, uint32_t rank, struct dp_buf *buf)
{
    write_report(&cache->latest[DP_LINK_SLOT_READY], DP_LINK_SLOT_READY, rank, buf);
    for (size_t i = 0; i < cache->steps_count; i++) {
        size_t at = (cache->steps_first + i) % DP_LINK_STEPS_KEPT;
        write_report(&cache->steps[at], DP_LINK_SLOT_STEP, rank, buf);
    }
    for (uint16_t slot = DP_LINK_SLOT_READY + 1; slot < DP_LINK_SLOT_LATEST_END; slot++) {
        write_report(&cache->latest[slot], slot, rank, buf);
    }
}
