#include "since.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "dp/clock.h"

#define SECOND_MAX INT64_C(4000000000) // in 2096: the last that messages carry as nanoseconds

// Seconds of a unit, 0 = no such unit.
static int64_t unit_s(const char *unit)
{
    static const struct {
        const char *unit;
        int64_t seconds;
    } units[] = {{"s", 1}, {"m", 60}, {"h", 3600}, {"d", 86400}};
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
        if (strcmp(unit, units[i].unit) == 0) {
            return units[i].seconds;
        }
    }
    return 0;
}

int64_t dpctl_since(struct argp_state *state, const char *text)
{
    static const char *const formats[] = {"%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%dT%H:%MZ", "%Y-%m-%d"};
    for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++) {
        struct tm tm = {0};
        const char *end = strptime(text, formats[i], &tm);
        int64_t second = end != NULL && *end == '\0' ? (int64_t)timegm(&tm) : -1;
        if (second >= 0 && second <= SECOND_MAX) {
            return second * DP_NS_PER_S;
        }
    }
    char *unit = NULL;
    errno = 0;
    long count = strtol(text, &unit, 10);
    int64_t seconds = errno == 0 && unit != text ? unit_s(unit) : 0;
    if (seconds == 0 || count < 0 || count > 36500) {
        argp_error(state,
                   "--since takes 90s, 30m, 2h or 7d, or a time like 2026-11-30T10:00:00Z, not "
                   "\"%s\"",
                   text);
    }
    return dp_clock_realtime_ns() - count * seconds * DP_NS_PER_S;
}
