#include "refusal.h"

#include <stdio.h>

dp_status dp_schedule_refuse_odd_pipeline(const char *family, int32_t pipeline,
                                          struct dp_error *err)
{
    char nearest[32];
    if (pipeline == 1) {
        snprintf(nearest, sizeof(nearest), "2");
    } else {
        snprintf(nearest, sizeof(nearest), "%d, %d", pipeline - 1, pipeline + 1);
    }
    return dp_fail(err, DP_INVALID,
                   "%s needs an even pipeline, as every stage lives on two ranks; it is %d. "
                   "Nearest legal: %s; \"auto\" has a bidirectional order for any size",
                   family, pipeline, nearest);
}
