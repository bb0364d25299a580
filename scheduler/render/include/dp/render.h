// Schedules and timelines for people and other tools: text, SVG, Perfetto, PyTorch and Megatron.
//
// Nothing here fails for size: what does not fit is put together or wrapped, and said so. All
// outputs are the same bytes for the same input, everywhere.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dp/action_span.h"
#include "dp/buf.h"
#include "dp/error.h"
#include "dp/limits.h"
#include "dp/schedule.h"
#include "dp/simulate.h"

struct dp_render_options {
    int32_t width;             // columns of the terminal; 0 = 100 for a Gantt chart, and a table
                               // whose lines are as long as it takes
    bool color;                // ANSI colours: kind by colour, second stream by shade
};

// A Gantt chart of true length, one row per rank, each with its busy share; then the time axis and
// a legend. No line is longer than the width (40 and less count as 40). A column that is busy for
// more than half of its time shows the kind that fills most of it. Without colour: F, B, I, W and X
// (an overlapped pair), lower case for the second stream, "." for idle. The second stream is
// direction 1 of a bidirectional schedule, and every other chunk of ranks that hold several.
// `result` must hold spans.
void dp_render_gantt(const struct dp_schedule *schedule, const struct dp_sim_result *result,
                     const struct dp_render_options *options, struct dp_buf *out);

// The form of text books: one cell per slot of `unit` seconds, each with the kind and the
// micro-batch ("F3"), in lower case for direction 1 ("f11"), with the stage in front where ranks
// hold several stages of one direction ("6F3"); a pair is forward+backward ("F3+b0"). An action
// that is longer than a slot is continued with "-"; "." is idle. Above stand the numbers of the
// slots; the first bubble-free one (dp_render_steady) bears a "*", and the line below the table
// says where it is or that there is none. When actions begin or end within slots, a line says so.
// Lines that would exceed the width are wrapped: the table goes on in further blocks of slots.
// DP_INVALID when there would be more than DP_RENDER_SLOTS_MAX slots or unit is not positive.
// `result` must hold spans.
dp_status dp_render_table(const struct dp_schedule *schedule, const struct dp_sim_result *result,
                          double unit, const struct dp_render_options *options, struct dp_buf *out,
                          struct dp_error *err);

// A unit for dp_render_table: the longest of which all times are multiples, or else all durations,
// when it is at least a tenth of the shortest action and makes no more slots than a table may
// have; else that action. 0 when nothing takes time.
double dp_render_table_unit(const struct dp_sim_result *result, size_t action_count);

// The steady part of a step: from *ret_from on no rank idles until the cool-down, which begins at
// *ret_until, when the first rank has made its last forward (alone or in a pair). False when some
// rank idles right before the cool-down: then there is no bubble-free time, and only *ret_until is
// set. Idle times below a billionth of the makespan do not count. `result` must hold spans.
bool dp_render_steady(const struct dp_schedule *schedule, const struct dp_sim_result *result,
                      double *ret_from, double *ret_until);

struct dp_render_svg_options {
    const char *title;         // NULL = the schedule's name, P and M; borrowed
    int32_t width;             // pixels, 640 to 8192; 0 = 1200
};

// A figure for a report: a row per rank with its busy share, kinds by colour and chunks or
// directions by shade, a pair as forward over backward, micro-batch numbers where they fit, bubbles
// hatched; under each row the activations kept over time with the peak marked; the time axis and a
// legend. One file without references to others; valid XML. Actions narrower than a pixel are put
// together, so that the file stays below some megabytes. `result` must hold spans of these costs.
void dp_render_svg(const struct dp_schedule *schedule, const struct dp_sim_result *result,
                   const struct dp_sim_costs *costs, const struct dp_render_svg_options *options,
                   struct dp_buf *out);

// A value that holds from `time_ns` on, and a message from one span to another.
struct dp_trace_level {
    int32_t rank;              // pipeline rank, of replica 0
    int64_t time_ns;           // of the same clock as the track's spans
    uint64_t bytes;
};
struct dp_trace_flow {
    size_t from, to;           // indices into the track's spans
};

// What a rank and its peers sent each other in one step, of one kind.
struct dp_trace_comm {
    int32_t rank, replica;
    int64_t step;
    const char *kind; // "dispatch(F)", ...; borrowed
    uint64_t moves;
    int64_t total_ns, exposed_ns; // under way; of these, the rank had nothing else to do
};

// One group of processes in a trace.
struct dp_trace_track {
    const char *name;                   // "measured", "predicted"; borrowed
    int32_t pipeline;                   // ranks of one replica: how threads get global numbers
    const struct dp_action_span *spans; // any order; borrowed
    size_t count;
    const struct dp_trace_level *levels; // activations kept, by rank; may be NULL; borrowed
    size_t level_count;
    const struct dp_trace_flow *flows;   // may be NULL; borrowed
    size_t flow_count;
    const struct dp_trace_comm *comms;   // may be NULL; borrowed
    size_t comm_count;
};

// A trace in the Chrome JSON form that Perfetto opens, schema "dp.trace/1" in its otherData: one
// process per track and replica, one thread per rank (named by its global number), one X event per
// span (ts and dur in microseconds, name "F3@2" or "FB(5@1;B0@6)", args with kind, stage,
// microbatch, step). Each track starts at its earliest span, so that predicted and measured lie
// side by side. Levels become counter tracks (C events), flows arrows (s and f events). A rank with
// comms has a second thread, "rank N, communication": in each step that has spans of the rank, one
// X event as long as these for each kind, with category "communication", its moves and its hidden
// and exposed time in the name, and args kind, step, moves, total_us, exposed_us and hidden_us. A
// span whose own time is known has it as own_us.
void dp_render_trace(const struct dp_trace_track *tracks, size_t count, struct dp_buf *out);

// A prediction as spans of replica 0, step `step`. The caller frees *ret_spans (one per action).
void dp_render_spans(const struct dp_schedule *schedule, const struct dp_sim_result *result,
                     int64_t step, struct dp_action_span **ret_spans, size_t *ret_count);

// The trace of a prediction alone, with bytes kept per rank and an arrow per message; arrows are
// left out beyond DP_RENDER_FLOWS_MAX messages. `result` must hold spans of these costs.
void dp_render_prediction(const struct dp_schedule *schedule, const struct dp_sim_result *result,
                          const struct dp_sim_costs *costs, struct dp_buf *out);

// A compute_only CSV for torch.distributed.pipelining (_PipelineScheduleRuntime._load_csv): one row
// per rank, cells such as 2F0, 1I3, (0F7;7B3)OVERLAP_F_B. DP_UNSUPPORTED for bidirectional
// schedules: PyTorch keeps each stage on one rank.
dp_status dp_render_torch_csv(const struct dp_schedule *schedule, struct dp_buf *out,
                              struct dp_error *err);

// The compute_comms form (_load_csv(path, format="compute_comms")): the same rows with every SEND
// and RECV in its place. All messages have one order, that in which they are ready in `result`
// (equal times: by rank and position), and every rank's messages follow it; so ranks that run them
// strictly in order, each send waiting for its receive, cannot deadlock. A send stands right behind
// its action; a receive stands before the first action of its rank that ends after the message is
// ready: early enough to travel while the rank computes, and not so early that it holds up what
// the rank sends meanwhile. `with_waits` adds the WAIT_SEND_F and WAIT_SEND_B that PyTorch 2.15 and
// later want for each send (2.14 and before do not know them; pairs in this form need 2.10): behind
// the action during which the peer has used the message, so they hold up nothing. `result` must
// hold spans. DP_UNSUPPORTED as above; DP_INVALID when actions wait for each other
// (dp_schedule_validate says which).
dp_status dp_render_torch_csv_comms(const struct dp_schedule *schedule,
                                    const struct dp_sim_result *result, bool with_waits,
                                    struct dp_buf *out, struct dp_error *err);

struct dp_render_megatron_options {
    int32_t layers;               // decoder layers of the model, MTP ones aside
    const int32_t *stage_layers;  // decoder layers of each stage, [stages]; NULL = evenly, those
                                  // left over to the stages after the first; borrowed
    int32_t mtp_layers;           // multi-token-prediction layers, all in the last stage
    int32_t micro_batch_size;     // samples; 0 = unknown: no batch flags
    int32_t data;                 // data-parallel size D; 0 counts as 1
};

// The flags of Megatron-Core 0.20's training scripts that run this very order, one per line with
// " \" between them, the layout string among them (quoted for a shell). Megatron has 1F1B and
// interleaved 1F1B in loop placement: the order is compared with the one it would run, action by
// action. DP_UNSUPPORTED for any other says why and what is nearest; DP_INVALID when layers do not
// fit.
dp_status dp_render_megatron(const struct dp_schedule *schedule,
                             const struct dp_render_megatron_options *options, struct dp_buf *out,
                             struct dp_error *err);
