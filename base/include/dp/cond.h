// Condition variables that wait by the monotonic clock, which nobody sets.
#pragma once

#include <pthread.h>
#include <stdint.h>

void dp_cond_init(pthread_cond_t *cond);
// Of a condition that dp_cond_init made: until it is signalled, the clock reads until_ns, or for no
// reason.
void dp_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex, int64_t until_ns);
