// A gate in an opened stream's queue: what is queued behind it waits for the caller.
#pragma once

#include <pthread.h>
#include <stdbool.h>

#include "cpu.h"
#include "queue.h"

// Where an opened stream stands until the caller opens it.
struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool open, reached, passed;
};
#define GATE_CLOSED                                                                                \
    {                                                                                              \
        PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, false, false                   \
    }

static inline void stand(struct dp_stream *stream, void *arguments)
{
    (void)stream;
    struct gate *gate = *(struct gate **)arguments;
    pthread_mutex_lock(&gate->lock);
    gate->reached = true;
    pthread_cond_broadcast(&gate->changed);
    while (!gate->open) {
        pthread_cond_wait(&gate->changed, &gate->lock);
    }
    gate->passed = true;
    pthread_mutex_unlock(&gate->lock);
}

static inline void put_gate(struct dp_stream *stream, struct gate *gate)
{
    dp_queue_put(stream->queue, stand, &gate, sizeof(gate));
}

static inline void open_gate(struct gate *gate)
{
    pthread_mutex_lock(&gate->lock);
    gate->open = true;
    pthread_cond_broadcast(&gate->changed);
    pthread_mutex_unlock(&gate->lock);
}

// Until the stream's thread stands at the gate.
static inline void await_gate(struct gate *gate)
{
    pthread_mutex_lock(&gate->lock);
    while (!gate->reached) {
        pthread_cond_wait(&gate->changed, &gate->lock);
    }
    pthread_mutex_unlock(&gate->lock);
}
