#include "queue.h"

#include "dp/alloc.h"
#include "search.h"

static int compare_nodes(const struct node *a, const struct node *b)
{
    if (a->choice.bound_s != b->choice.bound_s) {
        return a->choice.bound_s < b->choice.bound_s ? -1 : 1;
    }
    if ((a->choice.family == NULL) != (b->choice.family == NULL)) {
        return a->choice.family == NULL ? -1 : 1;
    }
    if (a->choice.family == NULL) {
        return 0;
    }
    if (a->bytes != b->bytes) {
        return a->bytes < b->bytes ? -1 : 1;
    }
    return dp_planner_choice_compare(&a->choice, &b->choice);
}

void dp_planner_queue_push(struct queue *queue, const struct node *node)
{
    if (queue->count == queue->room) {
        queue->room = 2 * queue->room + 1024;
        queue->nodes = dp_realloc(queue->nodes, queue->room, sizeof(*queue->nodes));
    }
    size_t at = queue->count++;
    while (at > 0 && compare_nodes(node, &queue->nodes[(at - 1) / 2]) < 0) {
        queue->nodes[at] = queue->nodes[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    queue->nodes[at] = *node;
}

struct node dp_planner_queue_pop(struct queue *queue)
{
    struct node top = queue->nodes[0], last = queue->nodes[--queue->count];
    size_t at = 0;
    for (size_t child = 1; child < queue->count; child = 2 * at + 1) {
        child += child + 1 < queue->count &&
                 compare_nodes(&queue->nodes[child + 1], &queue->nodes[child]) < 0;
        if (compare_nodes(&last, &queue->nodes[child]) <= 0) {
            break;
        }
        queue->nodes[at] = queue->nodes[child];
        at = child;
    }
    queue->nodes[at] = last;
    return top;
}
