// A trace without ranges: layers by their attention kernels.
#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "fit.h"

// Where the core of attention runs, forward or backward: once in a layer, several kernels maybe.
struct marker {
    size_t at; // index of its kernel
    bool forward;
};

// Kernels of one core follow each other on its stream with nothing else in between.
static size_t find_markers(const struct dp_trace *trace, struct marker *ret_markers)
{
    size_t count = 0;
    DP_AUTO_FREE dp_kernel_kind *newest = dp_new_array(dp_kernel_kind, (size_t)trace->streams + 1);
    for (size_t i = 0; i < trace->kernels_count; i++) {
        const struct dp_trace_kernel *kernel = &trace->kernels[i];
        dp_kernel_kind before = newest[kernel->stream];
        newest[kernel->stream] = kernel->kind;
        bool is_core =
            kernel->kind == DP_KERNEL_ATTENTION || kernel->kind == DP_KERNEL_ATTENTION_GRADIENT;
        if (is_core && before != kernel->kind) {
            ret_markers[count++] = (struct marker){i, kernel->kind == DP_KERNEL_ATTENTION};
        }
    }
    return count;
}

static int32_t count_of(const struct marker *markers, size_t count, bool forward)
{
    int32_t found = 0;
    for (size_t i = 0; i < count; i++) {
        found += markers[i].forward == forward;
    }
    return found;
}

// Runs of markers of one direction: as many as markers when forward and backward layers alternate.
static int32_t runs_of(const struct marker *markers, size_t count)
{
    int32_t runs = 0;
    for (size_t i = 0; i < count; i++) {
        runs += i == 0 || markers[i].forward != markers[i - 1].forward;
    }
    return runs;
}

// A kernel belongs to the direction of its nearest marker, in the order of their starts.
static void add_passes(const struct dp_trace *trace, const struct marker *markers, size_t count,
                       bool paired, struct dp_trace_fit *fit)
{
    struct cover covers[2] = {{.until_ns = INT64_MIN}, {.until_ns = INT64_MIN}};
    size_t next = 0;
    for (size_t i = 0; i < trace->kernels_count; i++) {
        while (next < count && markers[next].at <= i) {
            next++;
        }
        size_t nearest = next == 0 ? 0 : next - 1;
        if (next > 0 && next < count && markers[next].at - i < i - markers[next - 1].at) {
            nearest = next;
        }
        int side = paired || markers[nearest].forward ? 0 : 1;
        const struct dp_trace_kernel *kernel = &trace->kernels[i];
        double s = (double)(kernel->end_ns - kernel->start_ns) * 1e-9;
        fit->by_kind_s[side][kernel->kind] += s;
        if (!dp_kernel_is_communication(kernel->kind)) {
            dp_cover_add(&covers[side], kernel->start_ns, kernel->end_ns);
        } else if (kernel->kind == DP_KERNEL_NOTIFY) {
            *(side == 0 ? &fit->forward_wait_s : &fit->input_wait_s) += s;
        } else {
            *(side == 0 ? &fit->forward_data_s : &fit->input_data_s) += s;
        }
    }
    fit->forward_s = (double)covers[0].length_ns * 1e-9;
    fit->input_s = (double)covers[1].length_ns * 1e-9;
}

static void per_layer(struct dp_trace_fit *fit, int32_t forward, int32_t backward)
{
    double *figures[2][3] = {
        {&fit->forward_s, &fit->forward_data_s, &fit->forward_wait_s},
        {&fit->input_s, &fit->input_data_s, &fit->input_wait_s},
    };
    int32_t layers[2] = {forward, backward};
    for (int side = 0; side < 2; side++) {
        for (int i = 0; layers[side] > 0 && i < 3; i++) {
            *figures[side][i] /= layers[side];
        }
        for (int kind = 0; layers[side] > 0 && kind < DP_KERNEL_KIND_COUNT; kind++) {
            fit->by_kind_s[side][kind] /= layers[side];
        }
    }
}

dp_status dp_fit_names(const struct dp_trace *trace, struct dp_trace_fit *ret_fit,
                       struct dp_error *err)
{
    DP_AUTO_FREE struct marker *markers = dp_new_array(struct marker, trace->kernels_count);
    size_t count = find_markers(trace, markers);
    if (count == 0) {
        return dp_fail(err, DP_INVALID,
                       "none of %zu kernels is the core of attention, and no range is named "
                       "attn(F), mlp(F), ...: nothing tells its layers apart. Trace a whole layer, "
                       "or put record_function(\"attn(F)\") and the like around its parts",
                       trace->kernels_count);
    }
    int32_t forward = count_of(markers, count, true), backward = (int32_t)count - forward;
    struct dp_trace_fit fit = {.layers = forward > backward ? forward : backward};
    // Layer by layer in turn, more than twice: chunks of one layer alternate just as well, but then
    // with nothing that runs beside.
    fit.paired = runs_of(markers, count) > fit.layers && fit.layers > 1;
    DP_AUTO_FREE const struct dp_trace_kernel **kernels =
        dp_new_array(const struct dp_trace_kernel *, trace->kernels_count);
    for (size_t i = 0; i < trace->kernels_count; i++) {
        kernels[i] = &trace->kernels[i];
    }
    dp_fit_totals(&fit, kernels, trace->kernels_count);
    fit.paired = fit.paired && fit.hidden_share > 0.25;
    fit.exchange_units = dp_fit_exchange_units(kernels, trace->kernels_count);
    add_passes(trace, markers, count, fit.paired, &fit);
    per_layer(&fit, fit.paired ? fit.layers : forward, fit.paired ? fit.layers : backward);
    fit.pair_s = fit.paired ? fit.wall_s / fit.layers : 0;
    *ret_fit = fit;
    return DP_OK;
}
