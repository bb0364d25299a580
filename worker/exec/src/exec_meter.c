#include "dp/exec_meter.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "dp/alloc.h"

struct dp_exec_meter {
    size_t mask;
    struct dp_exec_record *records;
    // Head belongs to the writer, tail to the reader; on lines of their own, so that neither slows
    // the other down.
    _Alignas(64) atomic_size_t head;
    _Alignas(64) atomic_size_t tail;
    _Alignas(64) atomic_uint_fast64_t dropped;
    atomic_uint_fast32_t live_chunks, peak_chunks;
    atomic_uint_fast64_t live_bytes, peak_bytes;
    atomic_int_fast64_t step;
};

struct dp_exec_meter *dp_exec_meter_new(size_t records)
{
    struct dp_exec_meter *meter = dp_alloc_aligned(1, sizeof(*meter));
    size_t size = 1;
    while (size < records) {
        size *= 2;
    }
    meter->mask = size - 1;
    meter->records = dp_new_array(struct dp_exec_record, size);
    return meter;
}

void dp_exec_meter_free(struct dp_exec_meter *meter)
{
    if (meter != NULL) {
        free(meter->records);
        free(meter);
    }
}

void dp_exec_meter_push(struct dp_exec_meter *meter, const struct dp_exec_record *record)
{
    size_t head = atomic_load_explicit(&meter->head, memory_order_relaxed);
    size_t tail = atomic_load_explicit(&meter->tail, memory_order_acquire);
    if (head - tail > meter->mask) {
        atomic_fetch_add_explicit(&meter->dropped, 1, memory_order_relaxed);
        return;
    }
    meter->records[head & meter->mask] = *record;
    atomic_store_explicit(&meter->head, head + 1, memory_order_release);
}

size_t dp_exec_meter_pop(struct dp_exec_meter *meter, struct dp_exec_record *ret_records,
                         size_t max)
{
    size_t tail = atomic_load_explicit(&meter->tail, memory_order_relaxed);
    size_t head = atomic_load_explicit(&meter->head, memory_order_acquire);
    size_t count = head - tail < max ? head - tail : max;
    for (size_t i = 0; i < count; i++) {
        ret_records[i] = meter->records[(tail + i) & meter->mask];
    }
    atomic_store_explicit(&meter->tail, tail + count, memory_order_release);
    return count;
}

void dp_exec_meter_set_levels(struct dp_exec_meter *meter, const struct dp_exec_levels *levels)
{
    atomic_store_explicit(&meter->live_chunks, levels->live_chunks, memory_order_relaxed);
    atomic_store_explicit(&meter->peak_chunks, levels->peak_chunks, memory_order_relaxed);
    atomic_store_explicit(&meter->live_bytes, levels->live_bytes, memory_order_relaxed);
    atomic_store_explicit(&meter->peak_bytes, levels->peak_bytes, memory_order_relaxed);
    atomic_store_explicit(&meter->step, levels->step, memory_order_relaxed);
}

void dp_exec_meter_levels(struct dp_exec_meter *meter, struct dp_exec_levels *ret_levels)
{
    *ret_levels = (struct dp_exec_levels){
        .live_chunks = (uint32_t)atomic_load_explicit(&meter->live_chunks, memory_order_relaxed),
        .peak_chunks = (uint32_t)atomic_load_explicit(&meter->peak_chunks, memory_order_relaxed),
        .live_bytes = atomic_load_explicit(&meter->live_bytes, memory_order_relaxed),
        .peak_bytes = atomic_load_explicit(&meter->peak_bytes, memory_order_relaxed),
        .step = atomic_load_explicit(&meter->step, memory_order_relaxed)};
}

uint64_t dp_exec_meter_dropped(struct dp_exec_meter *meter)
{
    return atomic_load_explicit(&meter->dropped, memory_order_relaxed);
}
