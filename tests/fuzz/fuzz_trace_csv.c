// A measured trace: read, replayed and shown.
#include <math.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/replay.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    DP_AUTO_FREE struct dp_replay_op *ops = NULL;
    size_t count;
    struct dp_error err = {0};
    struct dp_replay_result result;
    if (dp_replay_read_csv("trace.csv", (const char *)data, size, &ops, &count, &err) != DP_OK ||
        dp_replay_analyze(ops, count, &result, &err) != DP_OK) {
        return 0;
    }
    DP_CHECK(isfinite(result.replayed_s) && isfinite(result.ideal_s));
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_replay_render(&result, &text);
    json_decref(dp_replay_to_json(&result));
    dp_replay_result_deinit(&result);
    return 0;
}
