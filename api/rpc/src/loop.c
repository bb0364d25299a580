#include "loop.h"

#include <poll.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "core.h"
#include "dp/check.h"

static void set_out(struct rpc_loop *loop, struct rpc_tag *tag, bool out)
{
    pthread_mutex_lock(&loop->lock);
    DP_CHECK(tag->out != out);
    tag->out = out;
    pthread_mutex_unlock(&loop->lock);
}

void dp_rpc_loop_hand_over(struct rpc_loop *loop, struct rpc_tag *tag)
{
    set_out(loop, tag, true);
}

bool dp_rpc_loop_start(struct rpc_loop *loop, struct rpc_tag *tag, grpc_call *call,
                       const grpc_op *ops, size_t count)
{
    dp_rpc_loop_hand_over(loop, tag);
    bool started = dp_rpc_batch_start(call, ops, count, tag);
    if (!started) {
        set_out(loop, tag, false);
    }
    return started;
}

static void complete(struct rpc_loop *loop, struct rpc_tag *tag, bool success)
{
    pthread_mutex_lock(&loop->lock);
    DP_CHECK(tag->out);
    tag->out = false;
    tag->success = success;
    tag->next = NULL;
    bool was_empty = loop->first == NULL;
    *loop->last = tag;
    loop->last = &tag->next;
    if (was_empty) {
        uint64_t one = 1;
        DP_CHECK(write(loop->fd, &one, sizeof one) == sizeof one);
    }
    pthread_mutex_unlock(&loop->lock);
}

static void *poll_queue(void *data)
{
    struct rpc_loop *loop = data;
    for (;;) {
        grpc_event event = grpc_completion_queue_next(loop->cq, dp_rpc_deadline_never(), NULL);
        if (event.type == GRPC_QUEUE_SHUTDOWN) {
            return NULL;
        }
        if (event.type == GRPC_OP_COMPLETE) {
            complete(loop, event.tag, event.success != 0);
        }
    }
}

void dp_rpc_loop_init(struct rpc_loop *loop, unsigned threads)
{
    DP_CHECK(threads >= 1 && threads <= RPC_THREADS_MAX);
    *loop = (struct rpc_loop){.threads_count = threads};
    loop->last = &loop->first;
    loop->cq = grpc_completion_queue_create_for_next(NULL);
    loop->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    DP_CHECK(loop->fd >= 0);
    pthread_mutex_init(&loop->lock, NULL);
    sigset_t old;
    dp_rpc_signals_block(&old);
    for (unsigned i = 0; i < threads; i++) {
        DP_CHECK(pthread_create(&loop->threads[i], NULL, poll_queue, loop) == 0);
        pthread_setname_np(loop->threads[i], "dp-rpc");
    }
    dp_rpc_signals_restore(&old);
}

void dp_rpc_loop_pump(struct rpc_loop *loop)
{
    pthread_mutex_lock(&loop->lock);
    struct rpc_tag *tag = loop->first;
    loop->first = NULL;
    loop->last = &loop->first;
    if (tag != NULL) {
        uint64_t count = 0;
        DP_CHECK(read(loop->fd, &count, sizeof count) == sizeof count);
    }
    pthread_mutex_unlock(&loop->lock);
    while (tag != NULL) {
        // A tag may be started again, or freed, by its own run.
        struct rpc_tag *next = tag->next;
        tag->run(tag, tag->success);
        tag = next;
    }
}

bool dp_rpc_loop_wait(struct rpc_loop *loop, int timeout_ms)
{
    struct pollfd wait = {.fd = loop->fd, .events = POLLIN};
    return poll(&wait, 1, timeout_ms) > 0;
}

void dp_rpc_loop_deinit(struct rpc_loop *loop)
{
    // The threads hand over every batch that is still out before they see the end.
    grpc_completion_queue_shutdown(loop->cq);
    for (unsigned i = 0; i < loop->threads_count; i++) {
        pthread_join(loop->threads[i], NULL);
    }
    dp_rpc_loop_pump(loop);
    grpc_completion_queue_destroy(loop->cq);
    pthread_mutex_destroy(&loop->lock);
    close(loop->fd);
}
