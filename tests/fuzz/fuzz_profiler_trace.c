// A profiler's trace, read in pieces, fitted and shown.
#include <math.h>

#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/trace_fit.h"
#include "dp/trace_read.h"
#include "fuzz.h"

DP_DEFINE_CLEANUP(free_reader, struct dp_trace_reader, dp_trace_reader_free)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    DP_CLEANUP(free_reader) struct dp_trace_reader *reader = dp_trace_reader_new("trace.json");
    DP_CLEANUP(dp_trace_deinit) struct dp_trace trace = {0};
    struct dp_error err = {0};
    struct dp_trace_fit fit;
    size_t half = size / 2;
    if (dp_trace_reader_feed(reader, data, half, &err) != DP_OK ||
        dp_trace_reader_feed(reader, data + half, size - half, &err) != DP_OK ||
        dp_trace_reader_finish(reader, &trace, &err) != DP_OK ||
        dp_trace_fit(&trace, &fit, &err) != DP_OK) {
        return 0;
    }
    DP_CHECK(isfinite(fit.wall_s) && isfinite(fit.pair_s) && isfinite(fit.hidden_share));
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_trace_fit_render(&fit, &text);
    json_decref(dp_trace_fit_to_json(&fit));
    return 0;
}
