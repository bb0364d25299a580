// A completion queue, the threads that poll it, and the hand-over to the owner's thread.
#pragma once

#include <grpc/grpc.h>
#include <pthread.h>
#include <stdbool.h>

// What a batch is started with; embedded in what it belongs to. Completed by `run`, on the owner's
// thread, once for each batch. Nothing that the batch points to may be freed before.
struct rpc_tag {
    void (*run)(struct rpc_tag *tag, bool success);
    struct rpc_tag *next;
    bool success;
    bool out; // with the library; under the loop's lock
};

#define RPC_THREADS_MAX 16

struct rpc_loop {
    grpc_completion_queue *cq;
    pthread_t threads[RPC_THREADS_MAX];
    unsigned threads_count;
    int fd; // readable while `first` is not NULL
    pthread_mutex_t lock;
    struct rpc_tag *first; // completed, in order; under lock
    struct rpc_tag **last;
};

void dp_rpc_loop_init(struct rpc_loop *loop, unsigned threads);
// Before the library gets a tag, which is with one batch at a time. Taking the lock also makes what
// was written to it before visible to the thread that completes it.
void dp_rpc_loop_hand_over(struct rpc_loop *loop, struct rpc_tag *tag);
// dp_rpc_batch_start with a tag of the loop.
bool dp_rpc_loop_start(struct rpc_loop *loop, struct rpc_tag *tag, grpc_call *call,
                       const grpc_op *ops, size_t count);
// Runs what has completed.
void dp_rpc_loop_pump(struct rpc_loop *loop);
// Waits for something to pump; false after timeout_ms.
bool dp_rpc_loop_wait(struct rpc_loop *loop, int timeout_ms);
// Waits for all batches, runs them, and ends the threads. No batch may start from now on.
void dp_rpc_loop_deinit(struct rpc_loop *loop);
