// dp.plan/1, in its form and in that of older versions: what is accepted is written, reads back, is
// written to the same bytes, and can be shown whatever its names hold.
#include <string.h>

#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/plan.h"
#include "fuzz.h"

static void write_plan(const struct dp_plan *plan, struct dp_buf *out)
{
    DP_AUTO_JSON json_t *json = dp_plan_to_json(plan);
    dp_json_write(json, 0, out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct dp_error err = {0};
    DP_AUTO_JSON json_t *json = NULL, *back = NULL;
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = {0}, again = {0};
    if (dp_json_parse((const char *)data, size, 1 << 20, "input", &json, &err) != DP_OK ||
        dp_plan_from_json(json, &plan, &err) != DP_OK) {
        return 0;
    }
    DP_CLEANUP(dp_buf_deinit) struct dp_buf first = {0}, second = {0}, text = {0};
    write_plan(&plan, &first);
    back = dp_plan_to_json(&plan);
    DP_CHECK(dp_plan_from_json(back, &again, &err) == DP_OK);
    write_plan(&again, &second);
    DP_CHECK(first.length == second.length && memcmp(first.bytes, second.bytes, first.length) == 0);
    dp_plan_render(&plan, true, &text);
    dp_plan_render(&plan, false, &text);
    dp_plan_render_map(&plan, &text);
    dp_plan_render_rank_file(&plan, &text);
    return 0;
}
