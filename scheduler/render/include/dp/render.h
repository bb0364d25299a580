// Schedules and timelines for people and other tools: text, Perfetto and PyTorch files.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dp/action_span.h"
#include "dp/buf.h"
#include "dp/error.h"
#include "dp/schedule.h"
#include "dp/simulate.h"

struct dp_render_options {
    int32_t width;             // columns of the terminal; 0 = 100
    bool color;                // ANSI colours: kind by colour, direction by shade
};

// A Gantt chart of true length, one row per rank, each with its busy share; then the time axis and
// a legend. Without colour: F, B, I, W and X (an overlapped pair), lower case for direction 1, "."
// for idle. `result` must hold spans.
void dp_render_gantt(const struct dp_schedule *schedule, const struct dp_sim_result *result,
                     const struct dp_render_options *options, struct dp_buf *out);

// The form of text books: one cell per `unit` seconds, each with the kind and the micro-batch
// ("F3"; a pair is "3+0": forward+backward), "." for idle. An action that is longer than the unit
// fills its later cells with "-". DP_INVALID when a row would have more than 4096 cells or unit is
// not positive. `result` must hold spans.
dp_status dp_render_table(const struct dp_schedule *schedule, const struct dp_sim_result *result,
                          double unit, const struct dp_render_options *options, struct dp_buf *out,
                          struct dp_error *err);

// The shortest action that takes time at all: a unit for dp_render_table. 0 when there is none.
double dp_render_table_unit(const struct dp_sim_result *result, size_t action_count);

// One group of processes in a trace.
struct dp_trace_track {
    const char *name;                   // "measured", "predicted"; borrowed
    int32_t pipeline;                   // ranks of one replica: how threads get global numbers
    const struct dp_action_span *spans; // any order; borrowed
    size_t count;
};

// A trace in the Chrome JSON form that Perfetto opens, schema "dp.trace/1" in its otherData: one
// process per track and replica, one thread per rank (named by its global number), one X event per
// span (ts and dur in microseconds, name "F3@2" or "FB(5@1;B0@6)", args with kind, stage,
// microbatch, step). Each track starts at its earliest span, so that predicted and measured lie
// side by side.
void dp_render_trace(const struct dp_trace_track *tracks, size_t count, struct dp_buf *out);

// A prediction as spans of replica 0, step `step`. The caller frees *ret_spans (one per action).
void dp_render_spans(const struct dp_schedule *schedule, const struct dp_sim_result *result,
                     int64_t step, struct dp_action_span **ret_spans, size_t *ret_count);

// A compute_only CSV for torch.distributed.pipelining (_PipelineScheduleRuntime._load_csv): one row
// per rank, cells such as 2F0, 1I3, (0F7;7B3)OVERLAP_F_B. DP_UNSUPPORTED for bidirectional
// schedules: PyTorch keeps each stage on one rank.
dp_status dp_render_torch_csv(const struct dp_schedule *schedule, struct dp_buf *out,
                              struct dp_error *err);
