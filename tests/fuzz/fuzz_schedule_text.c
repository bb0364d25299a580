// What people write about costs: the first byte picks the parser, the rest is its text. Costs that
// were accepted can be simulated, and give times that are numbers.
#include <math.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/simulate.h"
#include "dp/what_if.h"
#include "fuzz.h"

static void simulate(const struct dp_schedule *schedule, const struct dp_sim_costs *costs)
{
    struct dp_sim_result result;
    struct dp_error err = {0};
    if (dp_simulate(schedule, costs, false, &result, &err) == DP_OK) {
        DP_CHECK(isfinite(result.makespan) && result.makespan >= 0);
        dp_sim_result_deinit(&result);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct dp_error err = {0};
    struct dp_sim_uniform uniform = {.f = 1, .b = 2, .i = 1, .w = 1, .fb = 2.5};
    const struct dp_schedule_params params = {.pipeline = 4, .microbatches = 8};
    struct dp_schedule schedule;
    struct dp_sim_costs costs;
    if (size == 0) {
        return 0;
    }
    uniform.hop.latency = 0.125;
    DP_AUTO_FREE char *text = dp_strndup((const char *)data + 1, size - 1);
    if (data[0] % 4 == 0 && dp_what_if_parse_cost("--cost", text, &uniform, &err) != DP_OK) {
        return 0;
    }
    DP_CHECK(dp_schedule_generate(data[0] % 8 < 4 ? "dualpipe" : "zb-v", &params, &schedule,
                                  &err) == DP_OK);
    dp_sim_costs_init_uniform(&costs, &schedule, &uniform);
    dp_status status = DP_OK;
    struct dp_buf notes = {0};
    switch (data[0] % 4) {
    case 1:
        status = dp_what_if_slow("--slow", text, &schedule, &costs, &err);
        break;
    case 2:
        status = dp_what_if_slow_link("--slow-link", text, &schedule, &costs, &notes, &err);
        break;
    case 3:
        status = dp_what_if_stage_costs("costs.csv", (const char *)data + 1, size - 1, &schedule,
                                        &costs, &err);
        break;
    default:
        break;
    }
    if (status == DP_OK) {
        simulate(&schedule, &costs);
    }
    dp_buf_deinit(&notes);
    dp_sim_costs_deinit(&costs);
    dp_schedule_deinit(&schedule);
    return 0;
}
