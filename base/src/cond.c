#include "dp/cond.h"

#include <time.h>

#include "dp/clock.h"

void dp_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attributes);
    pthread_condattr_destroy(&attributes);
}

void dp_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex, int64_t until_ns)
{
    struct timespec until = {.tv_sec = until_ns / DP_NS_PER_S, .tv_nsec = until_ns % DP_NS_PER_S};
    pthread_cond_timedwait(cond, mutex, &until);
}
