// Divisions and candidates in the order of their bounds.
#pragma once

#include "explorer.h"

// A division (family NULL) with the least memory of its candidates, or a candidate with its own.
struct node {
    struct choice choice;
    double bytes;
    int32_t position; // of the fullest rank
};

struct queue {
    struct node *nodes; // a binary heap; the owner frees it
    size_t count, room;
};
void dp_planner_queue_push(struct queue *queue, const struct node *node);
// Needs a node: the one with the least bound; of equal ones divisions first, then less memory, then
// the simpler choice.
struct node dp_planner_queue_pop(struct queue *queue);
