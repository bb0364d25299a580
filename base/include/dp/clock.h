// Time as nanoseconds. Durations and deadlines use the monotonic clock; the wall clock is for
// people.
#pragma once

#include <stdint.h>

#define DP_NS_PER_S 1000000000ll
#define DP_NS_PER_MS 1000000ll

int64_t dp_clock_monotonic_ns(void);
// UTC since 1970.
int64_t dp_clock_realtime_ns(void);
// CPU time of the calling thread.
int64_t dp_clock_thread_cpu_ns(void);
// Sleeps until the monotonic clock reads deadline_ns; returns at once when it is past.
void dp_clock_sleep_until_ns(int64_t deadline_ns);
// "2026-01-31T12:34:56.789Z"; buffer of at least 32 bytes, returned.
char *dp_clock_format_utc(char *buffer, int64_t realtime_ns);
