#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/json.h"
#include "dp/render.h"
#include "scale.h"

struct trace {
    struct dp_buf *out;
    bool first;    // no event written yet
    int32_t pid;   // of replica 0 of the track
    uint64_t flow; // id of the next arrow
};

static void begin_event(struct trace *trace)
{
    dp_buf_puts(trace->out, trace->first ? "\n" : ",\n");
    trace->first = false;
}

static void add_text(struct trace *trace, const char *text)
{
    DP_AUTO_JSON json_t *json = json_string(text);
    dp_json_write(json, 0, trace->out);
}

static void add_name(struct trace *trace, const char *what, int32_t pid, int32_t tid,
                     const char *name)
{
    begin_event(trace);
    dp_buf_printf(trace->out, "{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%d,\"tid\":%d,\"args\":", what,
                  pid, tid);
    dp_buf_puts(trace->out, "{\"name\":");
    add_text(trace, name);
    dp_buf_puts(trace->out, "}}");
}

// Threads of a rank: its actions, and what it and its peers sent each other.
static int32_t comm_thread(int32_t rank)
{
    return DP_PIPELINE_MAX + rank;
}

static bool in_range(const struct dp_action_span *span)
{
    return span->rank >= 0 && span->rank < DP_PIPELINE_MAX && span->replica >= 0 &&
           span->replica < DP_RANKS_MAX && span->kind < DP_SPAN_KIND_COUNT;
}

// Names every process and thread that has a span; returns how many process numbers it took.
static int32_t add_names(struct trace *trace, const struct dp_trace_track *track)
{
    int32_t replicas = 1;
    for (size_t i = 0; i < track->count; i++) {
        const struct dp_action_span *span = &track->spans[i];
        if (in_range(span) && span->replica >= replicas) {
            replicas = span->replica + 1;
        }
    }
    DP_AUTO_FREE bool(*seen)[DP_PIPELINE_MAX] = dp_alloc((size_t)replicas, sizeof(*seen));
    for (size_t i = 0; i < track->count; i++) {
        if (in_range(&track->spans[i])) {
            seen[track->spans[i].replica][track->spans[i].rank] = true;
        }
    }
    for (int32_t replica = 0; replica < replicas; replica++) {
        DP_AUTO_FREE char *process = replicas == 1
                                         ? dp_strdup(track->name)
                                         : dp_asprintf("%s, replica %d", track->name, replica);
        add_name(trace, "process_name", trace->pid + replica, 0, process);
        for (int32_t rank = 0; rank < DP_PIPELINE_MAX; rank++) {
            if (seen[replica][rank]) {
                char thread[32];
                snprintf(thread, sizeof(thread), "rank %d", replica * track->pipeline + rank);
                add_name(trace, "thread_name", trace->pid + replica, rank, thread);
            }
        }
    }
    return replicas;
}

static void add_title(struct trace *trace, const struct dp_action_span *span)
{
    if (span->kind >= DP_ACTION_KIND_COUNT) {
        dp_buf_puts(trace->out, dp_span_kind_text(span->kind));
        return;
    }
    struct dp_action action = {.kind = span->kind,
                               .b_kind = span->b_kind,
                               .stage = span->stage,
                               .microbatch = span->microbatch,
                               .b_stage = span->b_stage,
                               .b_microbatch = span->b_microbatch};
    dp_action_format(&action, trace->out);
}

// From one moment to another. Measured ones come from other machines and may be anything.
static double microseconds(int64_t from_ns, int64_t to_ns)
{
    int64_t ns;
    bool fits = !__builtin_sub_overflow(to_ns, from_ns, &ns);
    return (fits ? (double)ns : (double)to_ns - (double)from_ns) / 1e3;
}

static void add_span(struct trace *trace, const struct dp_action_span *span, int64_t origin_ns)
{
    struct dp_buf *out = trace->out;
    begin_event(trace);
    dp_buf_puts(out, "{\"ph\":\"X\",\"name\":\"");
    add_title(trace, span);
    dp_buf_printf(out, "\",\"cat\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f",
                  dp_span_kind_text(span->kind), trace->pid + span->replica, span->rank,
                  microseconds(origin_ns, span->start_ns),
                  microseconds(span->start_ns, span->end_ns));
    dp_buf_printf(out, ",\"args\":{\"kind\":\"%s\",\"step\":%lld", dp_span_kind_text(span->kind),
                  (long long)span->step);
    if (span->kind < DP_ACTION_KIND_COUNT) {
        dp_buf_printf(out, ",\"stage\":%u,\"microbatch\":%u", span->stage, span->microbatch);
    }
    if (span->own_ns != 0) {
        dp_buf_printf(out, ",\"own_us\":%.3f", (double)span->own_ns / 1e3);
    }
    if (span->kind == DP_ACTION_FB) {
        dp_buf_printf(out, ",\"backward\":\"%s\",\"b_stage\":%u,\"b_microbatch\":%u",
                      dp_action_kind_text(span->b_kind), span->b_stage, span->b_microbatch);
    }
    dp_buf_puts(out, "}}");
}

// A counter belongs to a process; its name says the rank.
static void add_level(struct trace *trace, const struct dp_trace_level *level, int64_t origin_ns)
{
    begin_event(trace);
    dp_buf_printf(trace->out,
                  "{\"ph\":\"C\",\"name\":\"activations, rank %d\",\"pid\":%d,\"ts\":%.3f,"
                  "\"args\":{\"bytes\":%llu}}",
                  level->rank, trace->pid, microseconds(origin_ns, level->time_ns),
                  (unsigned long long)level->bytes);
}

// Ends of an arrow bind to the span that encloses them, so they stand a little inside.
static void add_flow_end(struct trace *trace, const struct dp_action_span *span, bool leaves,
                         int64_t origin_ns)
{
    double inside = (leaves ? 0.9 : 0.1) * microseconds(span->start_ns, span->end_ns);
    begin_event(trace);
    dp_buf_printf(trace->out,
                  "{\"ph\":\"%s\",\"name\":\"message\",\"cat\":\"p2p\",\"id\":%llu,\"pid\":%d,"
                  "\"tid\":%d,\"ts\":%.3f}",
                  leaves ? "s" : "f\",\"bp\":\"e", (unsigned long long)trace->flow,
                  trace->pid + span->replica, span->rank,
                  microseconds(origin_ns, span->start_ns) + inside);
}

static void add_flow(struct trace *trace, const struct dp_trace_track *track,
                     const struct dp_trace_flow *flow, int64_t origin_ns)
{
    if (flow->from < track->count && flow->to < track->count &&
        in_range(&track->spans[flow->from]) && in_range(&track->spans[flow->to])) {
        add_flow_end(trace, &track->spans[flow->from], true, origin_ns);
        add_flow_end(trace, &track->spans[flow->to], false, origin_ns);
        trace->flow++;
    }
}

// From the first start to the last end of a rank's spans in a step; false when it has none there.
static bool find_step(const struct dp_trace_track *track, const struct dp_trace_comm *comm,
                      int64_t *ret_start_ns, int64_t *ret_end_ns)
{
    bool any = false;
    for (size_t i = 0; i < track->count; i++) {
        const struct dp_action_span *span = &track->spans[i];
        if (!in_range(span) || span->step != comm->step || span->rank != comm->rank ||
            span->replica != comm->replica) {
            continue;
        }
        *ret_start_ns = any && *ret_start_ns < span->start_ns ? *ret_start_ns : span->start_ns;
        *ret_end_ns = any && *ret_end_ns > span->end_ns ? *ret_end_ns : span->end_ns;
        any = true;
    }
    return any;
}

static void add_comm(struct trace *trace, const struct dp_trace_track *track,
                     const struct dp_trace_comm *comm, int64_t origin_ns)
{
    int64_t start_ns, end_ns;
    if (!find_step(track, comm, &start_ns, &end_ns)) {
        return;
    }
    const double total = (double)comm->total_ns, exposed = (double)comm->exposed_ns;
    DP_AUTO_FREE char *title =
        dp_asprintf("%s: %llu moves, %.3f ms hidden, %.3f ms exposed", comm->kind,
                    (unsigned long long)comm->moves, (total - exposed) / 1e6, exposed / 1e6);
    begin_event(trace);
    dp_buf_puts(trace->out, "{\"ph\":\"X\",\"name\":");
    add_text(trace, title);
    dp_buf_printf(trace->out,
                  ",\"cat\":\"communication\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,"
                  "\"args\":{\"kind\":",
                  trace->pid + comm->replica, comm_thread(comm->rank),
                  microseconds(origin_ns, start_ns), microseconds(start_ns, end_ns));
    add_text(trace, comm->kind);
    dp_buf_printf(trace->out,
                  ",\"step\":%lld,\"moves\":%llu,\"total_us\":%.3f,\"exposed_us\":%.3f,"
                  "\"hidden_us\":%.3f}}",
                  (long long)comm->step, (unsigned long long)comm->moves, total / 1e3,
                  exposed / 1e3, (total - exposed) / 1e3);
}

// Names the threads of communication; comms of a rank stand together or are named more than once,
// which does no harm.
static void add_comms(struct trace *trace, const struct dp_trace_track *track, int64_t origin_ns)
{
    const struct dp_trace_comm *before = NULL;
    for (size_t i = 0; i < track->comm_count; i++) {
        const struct dp_trace_comm *comm = &track->comms[i];
        if (comm->rank < 0 || comm->rank >= DP_PIPELINE_MAX || comm->replica < 0 ||
            comm->replica >= DP_RANKS_MAX) {
            continue;
        }
        if (before == NULL || before->rank != comm->rank || before->replica != comm->replica) {
            char thread[64];
            snprintf(thread, sizeof(thread), "rank %d, communication",
                     comm->replica * track->pipeline + comm->rank);
            add_name(trace, "thread_name", trace->pid + comm->replica, comm_thread(comm->rank),
                     thread);
        }
        add_comm(trace, track, comm, origin_ns);
        before = comm;
    }
}

static void add_track(struct trace *trace, const struct dp_trace_track *track)
{
    int64_t origin_ns = INT64_MAX;
    for (size_t i = 0; i < track->count; i++) {
        if (in_range(&track->spans[i]) && track->spans[i].start_ns < origin_ns) {
            origin_ns = track->spans[i].start_ns;
        }
    }
    int32_t replicas = add_names(trace, track);
    for (size_t i = 0; i < track->count; i++) {
        if (in_range(&track->spans[i])) {
            add_span(trace, &track->spans[i], origin_ns);
        }
    }
    for (size_t i = 0; i < track->level_count; i++) {
        add_level(trace, &track->levels[i], origin_ns);
    }
    for (size_t i = 0; i < track->flow_count; i++) {
        add_flow(trace, track, &track->flows[i], origin_ns);
    }
    add_comms(trace, track, origin_ns);
    trace->pid += replicas;
}

void dp_render_trace(const struct dp_trace_track *tracks, size_t count, struct dp_buf *out)
{
    struct trace trace = {.out = out, .first = true, .pid = 1, .flow = 1};
    dp_buf_puts(out, "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"schema\":\"dp.trace/1\"},"
                     "\"traceEvents\":[");
    for (size_t i = 0; i < count; i++) {
        add_track(&trace, &tracks[i]);
    }
    dp_buf_puts(out, "\n]}\n");
}

void dp_render_spans(const struct dp_schedule *schedule, const struct dp_sim_result *result,
                     int64_t step, struct dp_action_span **ret_spans, size_t *ret_count)
{
    DP_CHECK(result->spans != NULL);
    size_t count = dp_schedule_action_count(schedule);
    struct dp_action_span *spans = dp_new_array(struct dp_action_span, count);
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        for (size_t i = schedule->rank_begin[rank]; i < schedule->rank_begin[rank + 1]; i++) {
            const struct dp_action *action = &schedule->actions[i];
            spans[i] = (struct dp_action_span){.rank = rank,
                                               .kind = action->kind,
                                               .b_kind = action->b_kind,
                                               .stage = action->stage,
                                               .microbatch = action->microbatch,
                                               .b_stage = action->b_stage,
                                               .b_microbatch = action->b_microbatch,
                                               .step = step,
                                               .start_ns = dp_render_ns(result->spans[i].start),
                                               .end_ns = dp_render_ns(result->spans[i].end)};
        }
    }
    *ret_spans = spans;
    *ret_count = count;
}
