// A trace while it is read.
#pragma once

#include "dp/trace_read.h"
#include "json_stream.h"

// Names once each.
struct name_table {
    char **names; // owned
    size_t count, capacity;
    uint32_t *slots; // index + 1 by hash; 0 = free
    size_t slots_count;
};
// -1 when there are too many. What is no UTF-8, or would steer a terminal, becomes "?".
int32_t dp_names_add(struct name_table *table, const char *text, size_t length);

// A call on the host that started something on the device, or an operator.
struct host_event {
    int64_t start_ns, end_ns;
    int64_t correlation;
    int32_t name;
    int32_t thread;
};

struct raw_kernel {
    struct dp_trace_kernel kernel;
    int64_t correlation; // 0 = unknown
};

// Names of kernels and ranges are indices, or -2 - id of a string that may come later (Nsight).
struct trace_rows {
    const char *file;
    struct raw_kernel *kernels;
    size_t kernels_count, kernels_capacity;
    struct host_event *launches; // by correlation
    size_t launches_count, launches_capacity;
    struct host_event *operators;
    size_t operators_count, operators_capacity;
    struct dp_trace_range *ranges; // of the host
    size_t ranges_count, ranges_capacity;
    struct dp_trace_range *device_ranges; // thread = a stream
    size_t device_ranges_count, device_ranges_capacity;
    struct name_table names;
    int32_t *strings; // Nsight's: index of a name by id; -1 = not there
    size_t strings_count;
    int64_t *streams; // keys, by number
    size_t streams_count, streams_capacity;
    int64_t *threads;
    size_t threads_count, threads_capacity;
    bool is_nsight;
    int64_t dropped;
};
void dp_rows_deinit(struct trace_rows *rows);
dp_status dp_rows_add_kernel(struct trace_rows *rows, const struct raw_kernel *kernel,
                             struct dp_error *err);
dp_status dp_rows_add_launch(struct trace_rows *rows, const struct host_event *event,
                             struct dp_error *err);
dp_status dp_rows_add_operator(struct trace_rows *rows, const struct host_event *event,
                               struct dp_error *err);
dp_status dp_rows_add_range(struct trace_rows *rows, const struct dp_trace_range *range,
                            bool on_device, struct dp_error *err);
dp_status dp_rows_add_string(struct trace_rows *rows, int64_t id, const char *text, size_t length,
                             struct dp_error *err);
// Numbers of what a trace names by large or odd keys.
int32_t dp_rows_stream(struct trace_rows *rows, int64_t key);
int32_t dp_rows_thread(struct trace_rows *rows, int64_t key);
// Sorts, joins and moves everything out.
dp_status dp_rows_join(struct trace_rows *rows, struct dp_trace *ret_trace, struct dp_error *err);
