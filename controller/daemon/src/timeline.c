// GetTimeline: what ran, as it was measured, beside the plan's own simulation.
#include <stdlib.h>
#include <string.h>

#include "daemon.h"
#include "dp/action_span.h"
#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/log.h"
#include "dp/planner.h"

#define MEASURED_BYTES_MAX (DP_MESSAGE_BYTES_MAX / 4 * 3)

static Dp__V1__TimelineStep *add_step(Dp__V1__Timeline *timeline, uint64_t number, size_t spans_max,
                                      struct dp_arena *arena)
{
    Dp__V1__TimelineStep *step = arena_take(arena, sizeof(*step));
    dp__v1__timeline_step__init(step);
    step->step = number;
    step->spans = arena_take(arena, spans_max * sizeof(void *));
    timeline->measured[timeline->n_measured++] = step;
    return step;
}

static Dp__V1__StepDone *unpack_trace(const struct dp_trace_record *trace, struct dp_arena *arena)
{
    ProtobufCMessage *message = NULL;
    struct dp_error err = {0};
    if (dp_wire_unpack(&dp__v1__step_done__descriptor, trace->spans.bytes, trace->spans.length,
                       arena, &message, &err) != DP_OK) {
        dp_log_warn("trace.unreadable", "job=%llu reason=\"%s\"", (unsigned long long)trace->job,
                    err.message);
        return NULL;
    }
    return (Dp__V1__StepDone *)message;
}

// The newest steps whose records fit into one message.
static size_t first_that_fits(const struct dp_trace_record *traces, size_t count)
{
    size_t bytes = 0, first = count;
    while (first > 0) {
        size_t from = first - 1;
        while (from > 0 && traces[from - 1].step == traces[first - 1].step) {
            from--;
        }
        for (size_t i = from; i < first; i++) {
            bytes += traces[i].spans.length;
        }
        if (bytes > MEASURED_BYTES_MAX) {
            return first;
        }
        first = from;
    }
    return 0;
}

static void add_measured(const struct dp_trace_record *traces, size_t count, struct dp_arena *arena,
                         Dp__V1__Timeline *timeline)
{
    size_t i = first_that_fits(traces, count);
    timeline->measured = arena_take(arena, (count - i) * sizeof(void *));
    while (i < count) {
        size_t end = i, spans_max = 0;
        for (; end < count && traces[end].step == traces[i].step; end++) {
            spans_max += traces[end].spans.length; // a span has more than one byte
        }
        Dp__V1__TimelineStep *step = add_step(timeline, traces[i].step, spans_max, arena);
        for (; i < end; i++) {
            const Dp__V1__StepDone *done = unpack_trace(&traces[i], arena);
            for (size_t k = 0; done != NULL && k < done->n_spans; k++) {
                step->spans[step->n_spans++] = done->spans[k];
            }
            if (done != NULL && (step->start_ns == 0 || done->start_ns < step->start_ns)) {
                step->start_ns = done->start_ns;
            }
        }
    }
}

static void add_span(Dp__V1__Timeline *timeline, struct dp_action_span span, int32_t pipeline,
                     double start, double end, struct dp_arena *arena)
{
    Dp__V1__Span *message = arena_take(arena, sizeof(*message));
    span.start_ns = (int64_t)(start * 1e9);
    span.end_ns = (int64_t)(end * 1e9);
    dp_wire_span_to_proto(&span, pipeline, message);
    timeline->predicted[timeline->n_predicted++] = message;
}

// What follows the last action. Sums are drawn as late as the optimizer allows.
static void add_tail(Dp__V1__Timeline *timeline, const struct dp_sim_costs *costs,
                     const struct dp_sim_result *result, int32_t replica, struct dp_arena *arena)
{
    double longest = 0;
    for (int32_t p = 0; p < costs->pipeline; p++) {
        longest = costs->optimizer[p] > longest ? costs->optimizer[p] : longest;
    }
    double summed = result->step - longest;
    for (int32_t p = 0; p < costs->pipeline; p++) {
        struct dp_action_span span = {.rank = p, .replica = replica};
        span.kind = DP_SPAN_GRADIENT_SYNC;
        if (costs->gradient_sync[p] > 0) {
            add_span(timeline, span, costs->pipeline, summed - costs->gradient_sync[p], summed,
                     arena);
        }
        span.kind = DP_SPAN_OPTIMIZER;
        if (costs->optimizer[p] > 0) {
            add_span(timeline, span, costs->pipeline, summed, summed + costs->optimizer[p], arena);
        }
    }
}

static void add_predicted(Dp__V1__Timeline *timeline, const struct dp_schedule *schedule,
                          const struct dp_sim_result *result, int32_t replica,
                          struct dp_arena *arena)
{
    for (int32_t p = 0; p < schedule->pipeline; p++) {
        for (size_t i = schedule->rank_begin[p]; i < schedule->rank_begin[p + 1]; i++) {
            const struct dp_action *action = &schedule->actions[i];
            struct dp_action_span span = {
                .rank = p,
                .replica = replica,
                .kind = action->kind,
                .b_kind = action->b_kind,
                .stage = action->stage,
                .microbatch = action->microbatch,
                .b_stage = action->b_stage,
                .b_microbatch = action->b_microbatch,
            };
            add_span(timeline, span, schedule->pipeline, result->spans[i].start,
                     result->spans[i].end, arena);
        }
    }
}

// The nodes as the plan has them, with the cores and the profile that it was made with.
struct resources {
    struct dp_planner_node *nodes;
    size_t count;
    struct dp_profile profile;
    bool profile_known;
};

static void gather(struct daemon *daemon, struct resources *resources)
{
    size_t count = dp_core_nodes_count(daemon->core);
    resources->nodes = dp_new_array(struct dp_planner_node, count);
    for (size_t i = 0; i < count; i++) {
        struct dp_node_view view;
        dp_core_node_at(daemon->core, i, &view);
        struct dp_planner_node *node = &resources->nodes[resources->count++];
        DP_COPY_TEXT(node->name, view.node->name);
        DP_COPY_TEXT(node->host, view.node->boot_id);
        node->slots = (int32_t)view.node->slots;
        node->cores = (int32_t)view.node->cores;
        DP_AUTO_JSON json_t *json = NULL;
        if (!resources->profile_known && view.node->profile.length > 0 &&
            dp_json_parse(view.node->profile.bytes, view.node->profile.length, DP_PROFILE_BYTES_MAX,
                          "profile", &json, NULL) == DP_OK) {
            resources->profile_known =
                dp_profile_from_json(json, &resources->profile, NULL) == DP_OK;
        }
    }
}

static dp_status simulate_replica(const struct dp_job_spec *spec, const struct dp_plan *plan,
                                  const struct dp_planner_resources *resources, int32_t replica,
                                  const struct dp_schedule *schedule, struct dp_arena *arena,
                                  Dp__V1__Timeline *timeline, struct dp_error *err)
{
    struct dp_sim_costs costs = {0};
    struct dp_sim_result result = {0};
    dp_status status = dp_planner_costs(spec, plan, resources, replica, schedule, &costs, err);
    if (status != DP_OK) {
        return status;
    }
    status = dp_simulate(schedule, &costs, true, &result, err);
    if (status == DP_OK) {
        add_predicted(timeline, schedule, &result, replica, arena);
        add_tail(timeline, &costs, &result, replica, arena);
        dp_sim_result_deinit(&result);
    }
    dp_sim_costs_deinit(&costs);
    return status;
}

static dp_status predict(struct daemon *daemon, const struct dp_job_spec *spec,
                         const struct dp_plan *plan, struct dp_arena *arena,
                         Dp__V1__Timeline *timeline, struct dp_error *err)
{
    struct dp_schedule schedule = {0};
    dp_status status = dp_plan_schedule(plan, &schedule, err);
    if (status != DP_OK) {
        return status;
    }
    struct resources known = {0};
    gather(daemon, &known);
    struct dp_planner_resources resources = {
        .nodes = known.nodes,
        .nodes_count = known.count,
        .profile = known.profile_known ? &known.profile : NULL,
    };
    // Each rank may have two more after its actions.
    size_t actions = dp_schedule_action_count(&schedule);
    size_t spans = (actions + 2 * (size_t)plan->pipeline) * (size_t)plan->data;
    timeline->predicted = arena_take(arena, spans * sizeof(void *));
    for (int32_t d = 0; status == DP_OK && d < plan->data; d++) {
        status = simulate_replica(spec, plan, &resources, d, &schedule, arena, timeline, err);
    }
    free(known.nodes);
    dp_schedule_deinit(&schedule);
    return status;
}

static dp_status add_prediction(struct daemon *daemon, const struct dp_job_record *job,
                                struct dp_arena *arena, Dp__V1__Timeline *timeline,
                                struct dp_error *err)
{
    struct dp_job_spec spec;
    struct dp_plan plan = {0};
    Dp__V1__Plan *message = NULL;
    dp_status status =
        planning_parse(job->job_toml.bytes, job->job_toml.length, job->id, &spec, err);
    if (status == DP_OK) {
        status = view_plan(job, arena, &message, err);
    }
    if (status == DP_OK) {
        status = dp_wire_plan_from_proto(message, &plan, err);
    }
    if (status == DP_OK) {
        status = predict(daemon, &spec, &plan, arena, timeline, err);
        dp_plan_deinit(&plan);
    }
    return status;
}

void timeline_answer(struct daemon *daemon, uint64_t call, const char *key)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    DP_CLEANUP(view_deinit) struct job_view view = {0};
    struct dp_trace_record *traces = NULL;
    size_t count = 0;
    struct dp_error err = {0};
    Dp__V1__Timeline timeline = DP__V1__TIMELINE__INIT;
    dp_status status = view_find(daemon, key, &view, &err);
    if (status == DP_OK) {
        status = dp_store_load_traces(daemon->store, view.job->number, &traces, &count, &err);
    }
    if (status == DP_OK) {
        status = add_prediction(daemon, view.job, &arena, &timeline, &err);
    }
    if (status == DP_OK) {
        timeline.job = message_job(&view, JOB_LIVE, &arena);
        add_measured(traces, count, &arena, &timeline);
        dp_rpc_call_reply(daemon->server, call, &timeline.base);
    } else {
        dp_rpc_call_fail_error(daemon->server, call, &err);
    }
    for (size_t i = 0; i < count; i++) {
        dp_trace_record_deinit(&traces[i]);
    }
    free(traces);
}
