// dpctl timeline: what ran when, and what was on its way meanwhile.

#include <stdlib.h>
#include <string.h>

#include "connect.h"
#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/render.h"
#include "dp/wire.h"

enum { KEY_OUT = 1, KEY_FORMAT };

static const struct argp_option timeline_options[] = {
    {"out", KEY_OUT, "FILE", 0, "write here instead of stdout", 0},
    {"format", KEY_FORMAT, "FORMAT", 0, "perfetto (default) or text", 0},
    {0},
};

struct request {
    const char *id, *out, *format;
};

static error_t handle(int key, char *arg, struct argp_state *state)
{
    struct request *request = state->input;
    switch (key) {
    case KEY_OUT:
        request->out = arg;
        return 0;
    case KEY_FORMAT:
        request->format = arg;
        return 0;
    case ARGP_KEY_ARG:
        dpctl_take_argument(state, "job", arg, &request->id);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static int64_t earliest(Dp__V1__Span *const *spans, size_t count)
{
    int64_t first = INT64_MAX;
    for (size_t i = 0; i < count; i++) {
        first = spans[i]->start_ns < first ? spans[i]->start_ns : first;
    }
    return first;
}

static size_t add_spans(Dp__V1__Span *const *from, size_t count, int32_t pipeline, uint64_t step,
                        int64_t shift_ns, struct dp_action_span *spans)
{
    for (size_t i = 0; i < count; i++) {
        dp_wire_span_from_proto(from[i], pipeline, (int64_t)step, &spans[i]);
        spans[i].start_ns += shift_ns;
        spans[i].end_ns += shift_ns;
    }
    return count;
}

static size_t add_comms(const Dp__V1__TimelineStep *step, int32_t pipeline,
                        struct dp_trace_comm *comms)
{
    size_t count = 0;
    for (size_t i = 0; i < step->n_comm; i++) {
        const Dp__V1__RankComm *from = step->comm[i];
        for (size_t k = 0; k < from->n_comm; k++) {
            comms[count++] = (struct dp_trace_comm){.rank = (int32_t)from->rank % pipeline,
                                                    .replica = (int32_t)from->rank / pipeline,
                                                    .step = (int64_t)step->step,
                                                    .kind = from->comm[k]->kind,
                                                    .moves = from->comm[k]->count,
                                                    .total_ns = from->comm[k]->total_ns,
                                                    .exposed_ns = from->comm[k]->exposed_ns};
        }
    }
    return count;
}

// What there is to draw.
struct extent {
    size_t spans, traced, comms; // of measured steps
    int32_t pipeline;
};

static dp_status find_extent(const Dp__V1__Timeline *timeline, struct extent *ret_extent,
                             struct dp_error *err)
{
    const Dp__V1__Plan *plan = timeline->job->plan;
    struct extent extent = {.pipeline =
                                plan == NULL || plan->pipeline == 0 ? 1 : (int32_t)plan->pipeline};
    for (size_t i = 0; i < timeline->n_measured; i++) {
        const Dp__V1__TimelineStep *step = timeline->measured[i];
        extent.spans += step->n_spans;
        extent.traced += step->n_spans > 0;
        for (size_t k = 0; k < step->n_comm; k++) {
            extent.comms += step->comm[k]->n_comm;
        }
    }
    if (extent.spans == 0) {
        return dp_fail(err, DP_NOT_FOUND,
                       "no step of %s was traced yet; try again after its first step",
                       timeline->job->id);
    }
    *ret_extent = extent;
    return DP_OK;
}

// Measured steps as one track, the prediction as another: under each measured step, from its start.
static void render_trace(const Dp__V1__Timeline *timeline, const struct extent *extent,
                         struct dp_buf *out)
{
    const int32_t pipeline = extent->pipeline;
    DP_AUTO_FREE struct dp_action_span *measured_spans =
        dp_new_array(struct dp_action_span, extent->spans);
    DP_AUTO_FREE struct dp_action_span *predicted_spans =
        dp_new_array(struct dp_action_span, extent->traced * timeline->n_predicted);
    DP_AUTO_FREE struct dp_trace_comm *comms = dp_new_array(struct dp_trace_comm, extent->comms);
    struct dp_trace_track tracks[2] = {
        {.name = "measured", .pipeline = pipeline, .spans = measured_spans, .comms = comms},
        {.name = "predicted", .pipeline = pipeline, .spans = predicted_spans}};
    int64_t zero = earliest(timeline->predicted, timeline->n_predicted);
    for (size_t i = 0; i < timeline->n_measured; i++) {
        const Dp__V1__TimelineStep *step = timeline->measured[i];
        if (step->n_spans == 0) {
            continue;
        }
        tracks[0].count += add_spans(step->spans, step->n_spans, pipeline, step->step, 0,
                                     measured_spans + tracks[0].count);
        tracks[0].comm_count += add_comms(step, pipeline, comms + tracks[0].comm_count);
        tracks[1].count += add_spans(timeline->predicted, timeline->n_predicted, pipeline,
                                     step->step, earliest(step->spans, step->n_spans) - zero,
                                     predicted_spans + tracks[1].count);
    }
    dp_render_trace(tracks, 2, out);
}

// Of one rank in one step: how often, and for how long.
struct line {
    uint64_t count;
    double seconds;
};

static void add_line(struct dp_buf *out, uint32_t rank, const char *what, struct line line,
                     const char *exposed, const char *hidden)
{
    char text[32];
    dp_buf_printf(out, "%4u  %-13s %6llu  %9s  %9s  %9s\n", rank, what,
                  (unsigned long long)line.count, dpctl_seconds(text, line.seconds), exposed,
                  hidden);
}

// A rank's actions by kind, each with the time that is its own.
static void list_actions(const Dp__V1__TimelineStep *step, uint32_t rank, int32_t pipeline,
                         struct dp_buf *out)
{
    struct line lines[DP_SPAN_KIND_COUNT] = {0};
    for (size_t i = 0; i < step->n_spans; i++) {
        struct dp_action_span span;
        dp_wire_span_from_proto(step->spans[i], pipeline, (int64_t)step->step, &span);
        if (step->spans[i]->rank == rank && span.kind < DP_SPAN_KIND_COUNT) {
            const double length = (double)span.end_ns - (double)span.start_ns;
            lines[span.kind].count++;
            lines[span.kind].seconds += 1e-9 * (span.own_ns != 0 ? (double)span.own_ns : length);
        }
    }
    for (int kind = 0; kind < DP_SPAN_KIND_COUNT; kind++) {
        if (lines[kind].count > 0) {
            add_line(out, rank, dp_span_kind_text(kind), lines[kind], "-", "-");
        }
    }
}

static void list_moves(const Dp__V1__TimelineStep *step, uint32_t rank, struct dp_buf *out)
{
    for (size_t i = 0; i < step->n_comm; i++) {
        const Dp__V1__RankComm *from = step->comm[i];
        for (size_t k = 0; from->rank == rank && k < from->n_comm; k++) {
            const Dp__V1__StepComm *comm = from->comm[k];
            char exposed[32], hidden[32];
            const double total_s = 1e-9 * (double)comm->total_ns;
            const double exposed_s = 1e-9 * (double)comm->exposed_ns;
            add_line(out, rank, comm->kind, (struct line){comm->count, total_s},
                     dpctl_seconds(exposed, exposed_s), dpctl_seconds(hidden, total_s - exposed_s));
        }
    }
}

// The newest step that was traced: what each rank computed and what was on its way meanwhile.
static void render_text(const Dp__V1__Timeline *timeline, const struct extent *extent,
                        struct dp_buf *out)
{
    size_t newest = timeline->n_measured - 1;
    while (timeline->measured[newest]->n_spans == 0) {
        newest--;
    }
    const Dp__V1__TimelineStep *step = timeline->measured[newest];
    uint32_t last = 0;
    for (size_t i = 0; i < step->n_spans; i++) {
        last = step->spans[i]->rank > last ? step->spans[i]->rank : last;
    }
    dp_buf_printf(out, "%s, step %llu\n", timeline->job->id, (unsigned long long)step->step);
    dp_buf_puts(out, "RANK  WHAT           COUNT       TIME    EXPOSED     HIDDEN\n");
    for (uint32_t rank = 0; rank <= last; rank++) {
        list_actions(step, rank, extent->pipeline, out);
        list_moves(step, rank, out);
    }
}

dp_status dpctl_cmd_timeline(struct dpctl *ctl, int argc, char **argv, struct dp_error *err)
{
    static const struct dpctl_syntax syntax = {
        .arguments = "[JOB]",
        .doc = "What really ran when, with the prediction under each step, as a trace that "
               "ui.perfetto.dev opens (Chrome JSON), or the newest step as text.\v"
               "Next to a rank's actions stands its communication: moves of expert exchanges and "
               "hops between stages, by kind, and how long they were under way hidden behind "
               "computation, and exposed. TIME of an action is its own: without waits, and "
               "without what filled them.\n"
               "Example: dpctl timeline job-3 --out trace.json\n"
               "         dpctl timeline --format text\n",
        .exits = "0 ok, 2 no such format, 4 no such job or no step traced yet, 8 no controller",
        .options = timeline_options,
        .handle = handle,
    };
    struct request request = {.format = "perfetto"};
    dpctl_parse(ctl, &syntax, &request, argc, argv);
    const bool is_text = strcmp(request.format, "text") == 0;
    if (!is_text && strcmp(request.format, "perfetto") != 0) {
        return dp_fail(err, DP_USAGE, "unknown format \"%s\"; there are perfetto, text",
                       request.format);
    }
    AUTO_CLIENT struct dp_client *client = NULL;
    dp_status status = connect_controller(ctl, &client, err);
    if (status != DP_OK) {
        return status;
    }
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__Timeline *timeline = NULL;
    status = newest_job(client, request.id, false, &arena, &request.id, err);
    if (status == DP_OK) {
        status = dp_client_get_timeline(client, request.id, &arena, &timeline, err);
    }
    struct extent extent;
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    if (status == DP_OK) {
        status = find_extent(timeline, &extent, err);
    }
    if (status == DP_OK) {
        (is_text ? render_text : render_trace)(timeline, &extent, &text);
        status = dpctl_write(ctl, request.out, &text, err);
    }
    if (status == DP_OK && !is_text && request.out != NULL && strcmp(request.out, "-") != 0) {
        fprintf(stderr, "%s written; open it with https://ui.perfetto.dev\n", request.out);
    }
    return status;
}
