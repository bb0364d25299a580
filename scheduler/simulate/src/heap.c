#include "heap.h"

#include <stdbool.h>

static bool is_before(const struct sim_heap *heap, int32_t a, int32_t b)
{
    return heap->keys[a] < heap->keys[b] || (heap->keys[a] == heap->keys[b] && a < b);
}

static void put(struct sim_heap *heap, int32_t at, int32_t id)
{
    heap->ids[at] = id;
    heap->place[id] = at;
}

// Each moves the id from `at` to where it belongs, the one towards the first, the other away.
static void rise(struct sim_heap *heap, int32_t at, int32_t id)
{
    while (at > 0 && is_before(heap, id, heap->ids[(at - 1) / 2])) {
        put(heap, at, heap->ids[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    put(heap, at, id);
}

static void sink(struct sim_heap *heap, int32_t at, int32_t id)
{
    for (int32_t child = 2 * at + 1; child < heap->count; child = 2 * at + 1) {
        if (child + 1 < heap->count && is_before(heap, heap->ids[child + 1], heap->ids[child])) {
            child++;
        }
        if (!is_before(heap, heap->ids[child], id)) {
            break;
        }
        put(heap, at, heap->ids[child]);
        at = child;
    }
    put(heap, at, id);
}

void dp_sim_heap_add(struct sim_heap *heap, int32_t id)
{
    rise(heap, heap->count++, id);
}

void dp_sim_heap_move(struct sim_heap *heap, int32_t id)
{
    int32_t at = heap->place[id];
    if (at > 0 && is_before(heap, id, heap->ids[(at - 1) / 2])) {
        rise(heap, at, id);
    } else {
        sink(heap, at, id);
    }
}

void dp_sim_heap_remove_first(struct sim_heap *heap)
{
    int32_t last = heap->ids[--heap->count];
    if (heap->count > 0) {
        sink(heap, 0, last);
    }
}
