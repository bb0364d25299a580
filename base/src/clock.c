#include "dp/clock.h"

#include <errno.h>
#include <stdio.h>
#include <time.h>

static int64_t read_clock(clockid_t id)
{
    struct timespec now;
    clock_gettime(id, &now);
    return (int64_t)now.tv_sec * DP_NS_PER_S + now.tv_nsec;
}

int64_t dp_clock_monotonic_ns(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

int64_t dp_clock_realtime_ns(void)
{
    return read_clock(CLOCK_REALTIME);
}

int64_t dp_clock_thread_cpu_ns(void)
{
    return read_clock(CLOCK_THREAD_CPUTIME_ID);
}

void dp_clock_sleep_until_ns(int64_t deadline_ns)
{
    struct timespec until = {.tv_sec = deadline_ns / DP_NS_PER_S,
                             .tv_nsec = deadline_ns % DP_NS_PER_S};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR) {
    }
}

char *dp_clock_format_utc(char *buffer, int64_t realtime_ns)
{
    time_t seconds = (time_t)(realtime_ns / DP_NS_PER_S);
    struct tm utc;
    gmtime_r(&seconds, &utc);
    size_t used = strftime(buffer, 32, "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(buffer + used, 32 - used, ".%03dZ", (int)(realtime_ns % DP_NS_PER_S / DP_NS_PER_MS));
    return buffer;
}
