// Tables of what a rank that holds serves. What is accepted is within its bounds, and comes out the
// same when it is written and read again.
#include "dp/buf.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/state.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct dp_state state, again;
    if (dp_state_parse_table(data, size, &state, NULL) != DP_OK) {
        return 0;
    }
    DP_CLEANUP(dp_buf_deinit) struct dp_buf table = {0};
    dp_state_write_table(&state, &table);
    DP_CHECK(dp_state_parse_table(table.bytes, table.length, &again, NULL) == DP_OK);
    DP_CHECK(again.count == state.count && again.meta.step == state.meta.step);
    for (int64_t i = 0; i < state.count; i++) {
        const struct dp_state_part *part = &state.parts[i];
        DP_CHECK(part->begin >= 0 && part->begin < part->end && part->end <= part->count);
        DP_CHECK(again.parts[i].begin == part->begin && again.parts[i].dtype == part->dtype);
    }
    dp_state_deinit(&state);
    dp_state_deinit(&again);
    return 0;
}
