// A profiler's trace, read piece by piece: what a device ran, and what its program called it.
//
// Two forms are read: Chrome traces as the PyTorch profiler (Kineto) writes them, and the JSON of
// `nsys export` (--type json, and jsonlines with a "table" in each line). A file of 1 GB is never
// held as a whole: events are kept as rows of some 40 bytes, everything else is dropped as it is
// read. Bytes are untrusted: sizes meet limits.h, and a refusal says at which byte. Pure; any
// thread, one reader at a time.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dp/error.h"

// What a kernel does, by its name.
typedef enum dp_kernel_kind {
    DP_KERNEL_GEMM,
    DP_KERNEL_GROUPED_GEMM, // of experts
    DP_KERNEL_ATTENTION,    // its core, forward
    DP_KERNEL_ATTENTION_GRADIENT,
    DP_KERNEL_OTHER,      // elementwise, norms, casts, permutations
    DP_KERNEL_DISPATCH,   // all-to-all on the way to the experts: the data
    DP_KERNEL_COMBINE,    // and back
    DP_KERNEL_EXCHANGE,   // an all-to-all of a library that does not tell which
    DP_KERNEL_NOTIFY,     // sizes and barriers of an all-to-all: waits for peers, moves no data
    DP_KERNEL_COLLECTIVE, // sums, gathers
    DP_KERNEL_COPY,       // between devices; copies on one device are OTHER
    DP_KERNEL_KIND_COUNT
} dp_kernel_kind;
dp_kernel_kind dp_kernel_kind_of(const char *name);
const char *dp_kernel_kind_text(dp_kernel_kind kind);
static inline bool dp_kernel_is_communication(dp_kernel_kind kind)
{
    return kind >= DP_KERNEL_DISPATCH;
}

struct dp_trace_kernel {
    int64_t start_ns, end_ns; // since the first kernel of the trace
    int32_t stream;           // a number of this trace, from 0
    int32_t name;             // index into names
    int32_t blocks;           // of its grid; 0 = unknown
    int32_t range;            // the innermost range it was started in; -1 = none
    dp_kernel_kind kind;
};

// A stretch of the program that it gave a name: record_function, NVTX.
struct dp_trace_range {
    int64_t start_ns, end_ns; // on the clock of the kernels
    int32_t name;
    int32_t thread; // a number of this trace: ranges nest within one
};

struct dp_trace {
    struct dp_trace_kernel *kernels; // by start; owned, as is all of this
    size_t kernels_count;
    struct dp_trace_range *ranges; // by start
    size_t ranges_count;
    char **names;
    size_t names_count;
    int32_t streams;
    bool is_cpu;     // of a run without an accelerator: the kernels are a CPU's operators
    bool is_nsight;  // else Kineto
    int64_t dropped; // events that are no kernels, ranges or launches
};
void dp_trace_deinit(struct dp_trace *trace);

struct dp_trace_reader;
// `file` is what errors call the input (copied).
struct dp_trace_reader *dp_trace_reader_new(const char *file);
void dp_trace_reader_free(struct dp_trace_reader *reader);
// The next bytes, any number of them. After a refusal the reader is of no further use.
dp_status dp_trace_reader_feed(struct dp_trace_reader *reader, const void *bytes, size_t length,
                               struct dp_error *err);
// Nothing follows: the trace, sorted, each kernel with the range it belongs to. The caller deinits
// *ret_trace. DP_INVALID when the document is cut off, is no trace, or holds no kernel.
dp_status dp_trace_reader_finish(struct dp_trace_reader *reader, struct dp_trace *ret_trace,
                                 struct dp_error *err);
