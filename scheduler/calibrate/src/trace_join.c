// Kernels to the ranges that they were started in.
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/trace_fit.h"
#include "trace.h"

void dp_trace_deinit(struct dp_trace *trace)
{
    for (size_t i = 0; i < trace->names_count; i++) {
        free(trace->names[i]);
    }
    free(trace->names);
    free(trace->kernels);
    free(trace->ranges);
    *trace = (struct dp_trace){0};
}

static int order_of(int64_t a, int64_t b)
{
    return (a > b) - (a < b);
}

static int by_kernel_start(const void *a, const void *b)
{
    const struct dp_trace_kernel *left = &((const struct raw_kernel *)a)->kernel;
    const struct dp_trace_kernel *right = &((const struct raw_kernel *)b)->kernel;
    int order = order_of(left->start_ns, right->start_ns);
    order = order != 0 ? order : order_of(left->stream, right->stream);
    return order != 0 ? order : order_of(left->end_ns, right->end_ns);
}

static int by_correlation(const void *a, const void *b)
{
    const struct host_event *left = a, *right = b;
    int order = order_of(left->correlation, right->correlation);
    return order != 0 ? order : order_of(left->start_ns, right->start_ns);
}

// The outer one first.
static int by_place(int32_t left_thread, int64_t left_start, int64_t left_end, int32_t right_thread,
                    int64_t right_start, int64_t right_end)
{
    int order = order_of(left_thread, right_thread);
    order = order != 0 ? order : order_of(left_start, right_start);
    return order != 0 ? order : order_of(right_end, left_end);
}

static int by_thread(const void *a, const void *b)
{
    const struct dp_trace_range *l = a, *r = b;
    return by_place(l->thread, l->start_ns, l->end_ns, r->thread, r->start_ns, r->end_ns);
}

static int operators_by_thread(const void *a, const void *b)
{
    const struct host_event *l = a, *r = b;
    return by_place(l->thread, l->start_ns, l->end_ns, r->thread, r->start_ns, r->end_ns);
}

// Ranges of all threads, by thread and start, each with the one that holds it.
struct nest {
    const struct dp_trace_range *ranges; // borrowed
    size_t count;
    int32_t *outer; // -1 = none; owned
};

static void nest_deinit(struct nest *nest)
{
    free(nest->outer);
}

static dp_status nest_make(struct nest *nest, struct dp_trace_range *ranges, size_t count,
                           struct dp_error *err)
{
    int32_t open[DP_TRACE_DEPTH_MAX];
    int32_t depth = 0;
    if (count > 0) {
        qsort(ranges, count, sizeof(*ranges), by_thread);
    }
    nest->ranges = ranges;
    nest->count = count;
    nest->outer = dp_new_array(int32_t, count);
    for (size_t i = 0; i < count; i++) {
        while (depth > 0 && (ranges[open[depth - 1]].thread != ranges[i].thread ||
                             ranges[open[depth - 1]].end_ns <= ranges[i].start_ns)) {
            depth--;
        }
        if (depth == DP_TRACE_DEPTH_MAX) {
            return dp_fail(err, DP_TOO_LARGE,
                           "more than %d named ranges are open at once on one thread, at %lld ns",
                           DP_TRACE_DEPTH_MAX, (long long)ranges[i].start_ns);
        }
        nest->outer[i] = depth == 0 ? -1 : open[depth - 1];
        open[depth++] = (int32_t)i;
    }
    return DP_OK;
}

static bool is_before(const struct dp_trace_range *range, int32_t thread, int64_t at_ns)
{
    return range->thread < thread || (range->thread == thread && range->start_ns <= at_ns);
}

// The innermost range on this thread that is a phase; without one, the innermost.
static int32_t nest_find(const struct nest *nest, const bool *is_phase, int32_t thread,
                         int64_t at_ns)
{
    size_t low = 0, high = nest->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (is_before(&nest->ranges[middle], thread, at_ns)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    int32_t innermost = -1;
    for (int32_t i = (int32_t)low - 1; i >= 0 && nest->ranges[i].thread == thread;
         i = nest->outer[i]) {
        if (at_ns >= nest->ranges[i].end_ns) {
            continue;
        }
        if (is_phase[nest->ranges[i].name]) {
            return i;
        }
        innermost = innermost < 0 ? i : innermost;
        if (nest->outer[i] < 0) {
            break;
        }
    }
    return innermost;
}

static int32_t name_of(struct trace_rows *rows, int32_t name)
{
    if (name >= 0) {
        return name;
    }
    size_t id = (size_t)(-2 - (int64_t)name);
    int32_t found = name == -1 || id >= rows->strings_count ? -1 : rows->strings[id];
    return found >= 0 ? found : dp_names_add(&rows->names, "?", 1);
}

static void resolve_names(struct trace_rows *rows)
{
    for (size_t i = 0; i < rows->kernels_count; i++) {
        rows->kernels[i].kernel.name = name_of(rows, rows->kernels[i].kernel.name);
    }
    for (size_t i = 0; i < rows->ranges_count; i++) {
        rows->ranges[i].name = name_of(rows, rows->ranges[i].name);
    }
}

// A run on a CPU: what no other operator is a part of.
static dp_status operators_as_kernels(struct trace_rows *rows, struct dp_error *err)
{
    if (rows->operators_count > 0) {
        qsort(rows->operators, rows->operators_count, sizeof(*rows->operators),
              operators_by_thread);
    }
    int32_t thread = -1;
    int64_t until_ns = INT64_MIN;
    dp_status status = DP_OK;
    for (size_t i = 0; status == DP_OK && i < rows->operators_count; i++) {
        const struct host_event *event = &rows->operators[i];
        if (event->thread != thread || event->start_ns >= until_ns) {
            struct raw_kernel kernel = {.kernel = {.start_ns = event->start_ns,
                                                   .end_ns = event->end_ns,
                                                   .stream = event->thread,
                                                   .name = event->name}};
            thread = event->thread;
            until_ns = event->end_ns;
            status = dp_rows_add_kernel(rows, &kernel, err);
        }
    }
    return status;
}

static const struct host_event *launch_of(const struct trace_rows *rows, int64_t correlation)
{
    size_t low = 0, high = rows->launches_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (rows->launches[middle].correlation < correlation) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    bool found = correlation != 0 && low < rows->launches_count &&
                 rows->launches[low].correlation == correlation;
    return found ? &rows->launches[low] : NULL;
}

struct join {
    struct trace_rows *rows;
    struct nest host, device;
    int32_t *drawn; // of a device's range: the one that stands for it on all streams
    bool *is_phase; // by name
    bool is_cpu;
};

// By the call that started it; else by what the profiler drew on its stream. Ranges of the device
// are numbered behind those of the host.
static int32_t range_of(const struct join *join, const struct raw_kernel *raw)
{
    const struct dp_trace_kernel *kernel = &raw->kernel;
    if (join->is_cpu) {
        return nest_find(&join->host, join->is_phase, kernel->stream, kernel->start_ns);
    }
    const struct host_event *launch = launch_of(join->rows, raw->correlation);
    int32_t found = launch == NULL
                        ? -1
                        : nest_find(&join->host, join->is_phase, launch->thread, launch->start_ns);
    if (found >= 0 && join->is_phase[join->host.ranges[found].name]) {
        return found;
    }
    int32_t drawn = nest_find(&join->device, join->is_phase, kernel->stream, kernel->start_ns);
    return drawn >= 0 ? (int32_t)join->host.count + join->drawn[drawn] : found;
}

struct drawn {
    const struct dp_trace_range *range;
    int32_t index;
};

static int by_name(const void *a, const void *b)
{
    const struct dp_trace_range *l = ((const struct drawn *)a)->range;
    const struct dp_trace_range *r = ((const struct drawn *)b)->range;
    return l->name != r->name ? (l->name < r->name ? -1 : 1) : order_of(l->start_ns, r->start_ns);
}

// One range of the program is drawn on each stream that it used: those of one name that overlap.
static int32_t *join_drawn(const struct nest *device)
{
    DP_AUTO_FREE struct drawn *order = dp_new_array(struct drawn, device->count);
    int32_t *first = dp_new_array(int32_t, device->count);
    for (size_t i = 0; i < device->count; i++) {
        order[i] = (struct drawn){&device->ranges[i], (int32_t)i};
    }
    if (device->count > 0) {
        qsort(order, device->count, sizeof(*order), by_name);
    }
    int64_t until_ns = INT64_MIN;
    for (size_t i = 0; i < device->count; i++) {
        const struct dp_trace_range *range = order[i].range;
        bool same = i > 0 && order[i - 1].range->name == range->name && range->start_ns < until_ns;
        first[order[i].index] = same ? first[order[i - 1].index] : order[i].index;
        until_ns = same && until_ns > range->end_ns ? until_ns : range->end_ns;
    }
    return first;
}

static void move_kernels(const struct join *join, struct dp_trace *trace)
{
    struct trace_rows *rows = join->rows;
    const struct raw_kernel *raw = rows->kernels;
    int64_t base_ns = raw[0].kernel.start_ns;
    trace->kernels = dp_new_array(struct dp_trace_kernel, rows->kernels_count);
    trace->kernels_count = rows->kernels_count;
    DP_AUTO_FREE dp_kernel_kind *kinds = dp_new_array(dp_kernel_kind, rows->names.count);
    for (size_t i = 0; i < rows->names.count; i++) {
        kinds[i] = dp_kernel_kind_of(rows->names.names[i]);
    }
    for (size_t i = 0; i < rows->kernels_count; i++) {
        trace->kernels[i] = raw[i].kernel;
        trace->kernels[i].kind = kinds[raw[i].kernel.name];
        trace->kernels[i].range = range_of(join, &raw[i]);
        trace->kernels[i].start_ns -= base_ns;
        trace->kernels[i].end_ns -= base_ns;
        trace->streams =
            raw[i].kernel.stream >= trace->streams ? raw[i].kernel.stream + 1 : trace->streams;
    }
    trace->ranges_count = rows->ranges_count + rows->device_ranges_count;
    trace->ranges = dp_new_array(struct dp_trace_range, trace->ranges_count);
    if (rows->ranges_count > 0) {
        memcpy(trace->ranges, rows->ranges, rows->ranges_count * sizeof(*rows->ranges));
    }
    if (rows->device_ranges_count > 0) {
        memcpy(trace->ranges + rows->ranges_count, rows->device_ranges,
               rows->device_ranges_count * sizeof(*rows->ranges));
    }
    for (size_t i = 0; i < trace->ranges_count; i++) {
        trace->ranges[i].start_ns -= base_ns;
        trace->ranges[i].end_ns -= base_ns;
    }
}

static dp_status join_ranges(struct join *join, struct dp_trace *trace, struct dp_error *err)
{
    struct trace_rows *rows = join->rows;
    dp_status status = nest_make(&join->host, rows->ranges, rows->ranges_count, err);
    if (status == DP_OK) {
        status = nest_make(&join->device, rows->device_ranges, rows->device_ranges_count, err);
    }
    if (status != DP_OK) {
        return status;
    }
    for (size_t i = 0; i < rows->names.count; i++) {
        join->is_phase[i] = dp_phase_of(rows->names.names[i]) != DP_PHASE_COUNT;
    }
    join->drawn = join_drawn(&join->device);
    move_kernels(join, trace);
    free(join->drawn);
    return DP_OK;
}

dp_status dp_rows_join(struct trace_rows *rows, struct dp_trace *ret_trace, struct dp_error *err)
{
    struct join join = {.rows = rows, .is_cpu = rows->kernels_count == 0};
    if (join.is_cpu) {
        dp_status status = operators_as_kernels(rows, err);
        if (status != DP_OK) {
            return status;
        }
    }
    if (rows->kernels_count == 0) {
        return dp_fail(err, DP_INVALID,
                       "no kernel and no operator in it: a PyTorch profiler's Chrome trace has "
                       "\"traceEvents\" with cat \"kernel\", an nsys export has CudaEvent lines");
    }
    resolve_names(rows);
    qsort(rows->kernels, rows->kernels_count, sizeof(*rows->kernels), by_kernel_start);
    if (rows->launches_count > 0) {
        qsort(rows->launches, rows->launches_count, sizeof(*rows->launches), by_correlation);
    }
    struct dp_trace trace = {.is_cpu = join.is_cpu, .is_nsight = rows->is_nsight};
    join.is_phase = dp_new_array(bool, rows->names.count);
    dp_status status = join_ranges(&join, &trace, err);
    free(join.is_phase);
    nest_deinit(&join.host);
    nest_deinit(&join.device);
    if (status != DP_OK) {
        return status;
    }
    trace.dropped = rows->dropped;
    trace.names = dp_steal(rows->names.names);
    trace.names_count = rows->names.count;
    rows->names.count = 0;
    *ret_trace = trace;
    return DP_OK;
}
