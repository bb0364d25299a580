#include "scale.h"

#include <math.h>

#include "dp/check.h"

struct scale_unit dp_render_time_unit(double seconds)
{
    static const struct scale_unit units[] = {{1, "s"}, {1e-3, "ms"}, {1e-6, "us"}, {1e-9, "ns"}};
    size_t unit = 0;
    while (unit + 1 < DP_ARRAY_LENGTH(units) && seconds < units[unit].seconds) {
        unit++;
    }
    return units[unit];
}

int64_t dp_render_ns(double seconds)
{
    double ns = seconds * 1e9;
    return ns < 0x1p63 ? llround(ns) : INT64_MAX;
}

bool dp_render_is_drawable(double makespan)
{
    return makespan >= 1e-18 && makespan <= 1e30;
}

double dp_render_round_step(double least)
{
    double power = pow(10, floor(log10(least)));
    const double steps[] = {1, 2, 5};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(steps); i++) {
        // A hair of slack: a power of ten may come out just below itself.
        if (steps[i] * power >= least * (1 - 1e-9)) {
            return steps[i] * power;
        }
    }
    return 10 * power;
}

void dp_render_bytes(uint64_t bytes, struct dp_buf *out)
{
    static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    size_t unit = 0;
    while (value >= 1024 && unit + 1 < DP_ARRAY_LENGTH(names)) {
        value /= 1024;
        unit++;
    }
    dp_buf_printf(out, "%.*f %s",
                  unit == 0     ? 0
                  : value < 10  ? 2
                  : value < 100 ? 1
                                : 0,
                  value, names[unit]);
}

int32_t dp_render_digits(int64_t number)
{
    int32_t digits = 1;
    for (; number >= 10; number /= 10) {
        digits++;
    }
    return digits;
}

int32_t dp_render_stages_per_rank(const struct dp_schedule *schedule)
{
    int32_t most = 0;
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        int32_t stages[DP_RANK_STAGES_MAX];
        int32_t count = dp_schedule_rank_stages(schedule, rank, stages);
        most = count > most ? count : most;
    }
    return most;
}
