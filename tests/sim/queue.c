// What happens next: a binary heap by time; what is due at the same moment keeps its order.
#include "dp/alloc.h"
#include "sim.h"

static bool is_sooner(const struct sim_event *a, const struct sim_event *b)
{
    return a->at_ns < b->at_ns || (a->at_ns == b->at_ns && a->order < b->order);
}

void sim_push(struct sim *sim, int64_t at_ns, sim_event_kind kind, uint32_t a, uint64_t b, void *p)
{
    struct sim_queue *queue = &sim->queue;
    if (queue->count == queue->capacity) {
        queue->capacity = queue->capacity == 0 ? 256 : 2 * queue->capacity;
        queue->heap = dp_realloc(queue->heap, queue->capacity, sizeof(*queue->heap));
    }
    int64_t due_ns = at_ns > sim->now_ns ? at_ns : sim->now_ns;
    struct sim_event event = {due_ns, queue->next_order++, kind, a, b, p};
    size_t at = queue->count++;
    while (at > 0 && is_sooner(&event, &queue->heap[(at - 1) / 2])) {
        queue->heap[at] = queue->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    queue->heap[at] = event;
}

bool sim_pop(struct sim *sim, struct sim_event *ret_event)
{
    struct sim_queue *queue = &sim->queue;
    if (queue->count == 0) {
        return false;
    }
    *ret_event = queue->heap[0];
    struct sim_event last = queue->heap[--queue->count];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= queue->count) {
            break;
        }
        if (child + 1 < queue->count && is_sooner(&queue->heap[child + 1], &queue->heap[child])) {
            child++;
        }
        if (!is_sooner(&queue->heap[child], &last)) {
            break;
        }
        queue->heap[at] = queue->heap[child];
        at = child;
    }
    queue->heap[at] = last;
    return true;
}
