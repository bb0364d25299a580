#include "queue.h"

#include <pthread.h>
#include <stdalign.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"

struct task {
    struct task *next;
    dp_task run;
    alignas(max_align_t) char arguments[];
};

struct dp_queue {
    struct dp_stream *stream;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t filled, drained;
    struct task *first, **last;
    bool busy, ends;
};

static struct task *take(struct dp_queue *queue)
{
    pthread_mutex_lock(&queue->lock);
    queue->busy = false;
    if (queue->first == NULL) {
        pthread_cond_broadcast(&queue->drained);
    }
    while (queue->first == NULL && !queue->ends) {
        pthread_cond_wait(&queue->filled, &queue->lock);
    }
    struct task *task = queue->first;
    if (task != NULL) {
        queue->first = task->next;
        queue->last = queue->first == NULL ? &queue->first : queue->last;
        queue->busy = true;
    }
    pthread_mutex_unlock(&queue->lock);
    return task;
}

static void *run_queue(void *argument)
{
    struct dp_queue *queue = argument;
    for (struct task *task; (task = take(queue)) != NULL;) {
        task->run(queue->stream, task->arguments);
        free(task);
    }
    return NULL;
}

dp_status dp_queue_open(struct dp_stream *stream, struct dp_queue **ret_queue, struct dp_error *err)
{
    struct dp_queue *queue = dp_new(struct dp_queue);
    queue->stream = stream;
    queue->last = &queue->first;
    pthread_mutex_init(&queue->lock, NULL);
    pthread_cond_init(&queue->filled, NULL);
    pthread_cond_init(&queue->drained, NULL);
    int errnum = pthread_create(&queue->thread, NULL, run_queue, queue);
    if (errnum != 0) {
        free(queue);
        return dp_fail_errno(err, errnum, "no thread for a stream of the cpu device");
    }
    *ret_queue = queue;
    return DP_OK;
}

void dp_queue_close(struct dp_queue *queue)
{
    pthread_mutex_lock(&queue->lock);
    queue->ends = true;
    pthread_cond_signal(&queue->filled);
    pthread_mutex_unlock(&queue->lock);
    pthread_join(queue->thread, NULL);
    pthread_cond_destroy(&queue->filled);
    pthread_cond_destroy(&queue->drained);
    pthread_mutex_destroy(&queue->lock);
    free(queue);
}

void dp_queue_put(struct dp_queue *queue, dp_task run, const void *arguments, size_t bytes)
{
    struct task *task = dp_alloc(1, sizeof(struct task) + bytes);
    task->next = NULL;
    task->run = run;
    memcpy(task->arguments, arguments, bytes);
    pthread_mutex_lock(&queue->lock);
    *queue->last = task;
    queue->last = &task->next;
    pthread_cond_signal(&queue->filled);
    pthread_mutex_unlock(&queue->lock);
}

void dp_queue_drain(struct dp_queue *queue)
{
    pthread_mutex_lock(&queue->lock);
    while (queue->first != NULL || queue->busy) {
        pthread_cond_wait(&queue->drained, &queue->lock);
    }
    pthread_mutex_unlock(&queue->lock);
}
