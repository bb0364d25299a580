#include "crew.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/check.h"

// Looks at a word that another core will write, before sleeping: some hundred microseconds, longer
// than the gap between two operations, since a thread that slept is often woken on its waker's core
// and then waits for it. Between looks, whoever else wants the core gets it.
#define SPINS 10000
#define SPINS_PER_YIELD 100

struct member {
    struct dp_crew *crew;
    int32_t part;
    pthread_t thread;
};

struct dp_crew {
    struct member *members;
    int32_t threads;
    // The job: written before `round` goes up, read after.
    int32_t parts;
    void (*work)(int32_t part, void *context);
    void *context;
    bool ends;
    atomic_uint round;
    atomic_int working; // members that have not finished the round
    pthread_mutex_t lock;
    pthread_cond_t started, finished;
};

static void pause_core(int spin)
{
    if (spin % SPINS_PER_YIELD == SPINS_PER_YIELD - 1) {
        sched_yield();
    }
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

static void await_round(struct dp_crew *crew, unsigned seen)
{
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&crew->round, memory_order_acquire) != seen) {
            return;
        }
        pause_core(i);
    }
    pthread_mutex_lock(&crew->lock);
    while (atomic_load_explicit(&crew->round, memory_order_acquire) == seen) {
        pthread_cond_wait(&crew->started, &crew->lock);
    }
    pthread_mutex_unlock(&crew->lock);
}

static void *run_member(void *argument)
{
    const struct member *member = argument;
    struct dp_crew *crew = member->crew;
    for (unsigned seen = 0;; seen++) {
        await_round(crew, seen);
        if (crew->ends) {
            return NULL;
        }
        if (member->part < crew->parts) {
            crew->work(member->part, crew->context);
        }
        if (atomic_fetch_sub_explicit(&crew->working, 1, memory_order_acq_rel) == 1) {
            pthread_mutex_lock(&crew->lock);
            pthread_cond_signal(&crew->finished);
            pthread_mutex_unlock(&crew->lock);
        }
    }
}

static void start_round(struct dp_crew *crew)
{
    pthread_mutex_lock(&crew->lock);
    atomic_fetch_add_explicit(&crew->round, 1, memory_order_release);
    pthread_cond_broadcast(&crew->started);
    pthread_mutex_unlock(&crew->lock);
}

static void await_members(struct dp_crew *crew)
{
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&crew->working, memory_order_acquire) == 0) {
            return;
        }
        pause_core(i);
    }
    pthread_mutex_lock(&crew->lock);
    while (atomic_load_explicit(&crew->working, memory_order_acquire) > 0) {
        pthread_cond_wait(&crew->finished, &crew->lock);
    }
    pthread_mutex_unlock(&crew->lock);
}

dp_status dp_crew_new(int32_t threads, struct dp_crew **ret_crew, struct dp_error *err)
{
    DP_CHECK(threads >= 2);
    struct dp_crew *crew = dp_new(struct dp_crew);
    crew->members = dp_new_array(struct member, (size_t)threads - 1);
    pthread_mutex_init(&crew->lock, NULL);
    pthread_cond_init(&crew->started, NULL);
    pthread_cond_init(&crew->finished, NULL);
    for (crew->threads = 1; crew->threads < threads; crew->threads++) {
        struct member *member = &crew->members[crew->threads - 1];
        *member = (struct member){.crew = crew, .part = crew->threads};
        const int errnum = pthread_create(&member->thread, NULL, run_member, member);
        if (errnum != 0) {
            dp_crew_free(crew);
            return dp_fail_errno(err, errnum, "%d threads for the cpu device; use fewer per rank",
                                 threads);
        }
    }
    *ret_crew = crew;
    return DP_OK;
}

void dp_crew_free(struct dp_crew *crew)
{
    if (crew == NULL) {
        return;
    }
    crew->ends = true;
    start_round(crew);
    for (int32_t i = 0; i < crew->threads - 1; i++) {
        pthread_join(crew->members[i].thread, NULL);
    }
    pthread_cond_destroy(&crew->started);
    pthread_cond_destroy(&crew->finished);
    pthread_mutex_destroy(&crew->lock);
    free(crew->members);
    free(crew);
}

int32_t dp_crew_threads(const struct dp_crew *crew)
{
    return crew->threads;
}

void dp_crew_run(struct dp_crew *crew, int32_t parts, void (*work)(int32_t part, void *context),
                 void *context)
{
    DP_CHECK(parts <= crew->threads);
    crew->parts = parts;
    crew->work = work;
    crew->context = context;
    atomic_store_explicit(&crew->working, crew->threads - 1, memory_order_relaxed);
    start_round(crew);
    work(0, context);
    await_members(crew);
}
