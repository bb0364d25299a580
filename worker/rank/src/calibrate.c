#include "calibrate.h"

#include <sched.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/clock.h"

static int compare(const void *a, const void *b)
{
    double left = *(const double *)a;
    double right = *(const double *)b;
    return (left > right) - (left < right);
}

void calibrate_say(const char *what)
{
    fprintf(stderr, "%s\n", what);
}

double calibrate_median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof(values[0]), compare);
    return values[count / 2];
}

double calibrate_mean(double *values, int count)
{
    qsort(values, (size_t)count, sizeof(values[0]), compare);
    int kept = count - count / 5;
    double sum = 0;
    for (int i = 0; i < kept; i++) {
        sum += values[i];
    }
    return sum / kept;
}

dp_status calibrate(FILE *out, struct dp_error *err)
{
    struct dp_profile profile;
    dp_profile_default_cpu(&profile);
    cpu_set_t cores;
    profile.cores = sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : 1;
    calibrate_say("measuring products, attention and memory");
    dp_status status = calibrate_compute(&profile, err);
    if (status == DP_OK) {
        calibrate_say("measuring hops and sums");
        status = calibrate_link(&profile, err);
    }
    if (status == DP_OK) {
        status = calibrate_exchange(&profile, err);
    }
    if (status != DP_OK) {
        return status;
    }
    profile.measured_at_s = (int64_t)time(NULL);
    profile.error_share = 0.15;
    char host[64] = "";
    gethostname(host, sizeof(host) - 1);
    char now[32];
    snprintf(profile.provenance, sizeof(profile.provenance),
             "measured on %s, %d cores, %s: one core with oneDNN, the ranks' own transport", host,
             profile.cores, dp_clock_format_utc(now, dp_clock_realtime_ns()));
    DP_AUTO_JSON json_t *json = dp_profile_to_json(&profile);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_json_write(json, 2, &text);
    if (fwrite(text.bytes, 1, text.length, out) != text.length || fflush(out) != 0) {
        return dp_fail(err, DP_IO, "writing the profile failed");
    }
    return DP_OK;
}
