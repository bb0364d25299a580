// dp.schedule/1: what is read is valid, can be lowered and written, and comes back the same.
#include "dp/check.h"
#include "dp/schedule.h"
#include "fuzz.h"

enum { BYTES_MAX = 1 << 16 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    DP_AUTO_JSON json_t *json = NULL;
    struct dp_error err = {0};
    struct dp_schedule schedule;
    if (dp_json_parse((const char *)data, size, BYTES_MAX, "input", &json, &err) != DP_OK ||
        dp_schedule_from_json(json, &schedule, &err) != DP_OK) {
        return 0;
    }
    DP_CHECK(dp_schedule_validate(&schedule, &err) == DP_OK);
    struct dp_lowered lowered;
    DP_CHECK(dp_schedule_lower_all(&schedule, &lowered, &err) == DP_OK);
    dp_lowered_deinit(&lowered);
    DP_AUTO_JSON json_t *written = dp_schedule_to_json(&schedule);
    struct dp_schedule back;
    DP_CHECK(dp_schedule_from_json(written, &back, &err) == DP_OK);
    DP_CHECK(dp_schedule_hash(&back) == dp_schedule_hash(&schedule));
    dp_schedule_deinit(&back);
    dp_schedule_deinit(&schedule);
    return 0;
}
