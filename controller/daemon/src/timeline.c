// GetTimeline: what ran, as it was measured, beside the plan's own simulation. The loop gathers
// what is needed; unpacking and simulating happen on a work thread.
#include <stdlib.h>
#include <string.h>

#include "daemon.h"
#include "dp/action_span.h"
#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/log.h"
#include "dp/planner.h"

#define MEASURED_BYTES_MAX (DP_MESSAGE_BYTES_MAX / 4 * 3)
#define PREDICTED_SPANS_MAX 20000 // of at most 50 bytes

struct drawing {
    uv_work_t work;
    struct daemon *daemon;
    uint64_t job, call;
    struct dp_job_spec spec;
    struct dp_plan plan;
    // The nodes as the plan has them, with the cores and the profile that it was made with.
    struct dp_planner_node *nodes;
    size_t nodes_count;
    struct dp_profile profile;
    bool profile_known;
    struct dp_trace_record *traces;
    size_t traces_count;
    struct dp_arena arena; // holds what the timeline points to
    Dp__V1__Timeline timeline;
    struct dp_error error;
};

static Dp__V1__TimelineStep *add_step(Dp__V1__Timeline *timeline, uint64_t number, size_t spans_max,
                                      struct dp_arena *arena)
{
    Dp__V1__TimelineStep *step = arena_take(arena, sizeof(*step));
    dp__v1__timeline_step__init(step);
    step->step = number;
    step->spans = arena_take(arena, spans_max * sizeof(void *));
    step->loads = arena_take(arena, spans_max * sizeof(void *));
    step->comm = arena_take(arena, spans_max * sizeof(void *));
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

// As the rank told it; its report is kept by the arena.
static void add_comm(const Dp__V1__StepDone *done, uint32_t rank, struct dp_arena *arena,
                     Dp__V1__TimelineStep *step)
{
    if (done->n_comm > 0) {
        Dp__V1__RankComm *comm = arena_take(arena, sizeof(*comm));
        dp__v1__rank_comm__init(comm);
        comm->rank = rank;
        comm->comm = done->comm;
        comm->n_comm = done->n_comm;
        step->comm[step->n_comm++] = comm;
    }
}

static void add_measured(const struct dp_trace_record *traces, size_t count, struct dp_arena *arena,
                         Dp__V1__Timeline *timeline)
{
    size_t i = 0;
    timeline->measured = arena_take(arena, count * sizeof(void *));
    while (i < count) {
        size_t end = i, spans_max = 0;
        for (; end < count && traces[end].step == traces[i].step; end++) {
            // A span, load or kind of move has more than one byte.
            spans_max += traces[end].spans.length;
        }
        Dp__V1__TimelineStep *step = add_step(timeline, traces[i].step, spans_max, arena);
        for (; i < end; i++) {
            const Dp__V1__StepDone *done = unpack_trace(&traces[i], arena);
            for (size_t k = 0; done != NULL && k < done->n_spans; k++) {
                done->spans[k]->rank = traces[i].rank;
                step->spans[step->n_spans++] = done->spans[k];
            }
            for (size_t k = 0; done != NULL && k < done->n_layers; k++) {
                step->loads[step->n_loads++] = done->layers[k];
            }
            if (done != NULL) {
                add_comm(done, traces[i].rank, arena, step);
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

static dp_status simulate_replica(struct drawing *drawing,
                                  const struct dp_planner_resources *resources, int32_t replica,
                                  const struct dp_schedule *schedule, struct dp_error *err)
{
    struct dp_sim_costs costs = {0};
    struct dp_sim_result result = {0};
    dp_status status =
        dp_planner_costs(&drawing->spec, &drawing->plan, resources, replica, schedule, &costs, err);
    if (status != DP_OK) {
        return status;
    }
    status = dp_simulate(schedule, &costs, true, &result, err);
    if (status == DP_OK) {
        add_predicted(&drawing->timeline, schedule, &result, replica, &drawing->arena);
        add_tail(&drawing->timeline, &costs, &result, replica, &drawing->arena);
        dp_sim_result_deinit(&result);
    }
    dp_sim_costs_deinit(&costs);
    return status;
}

// Orders of as many replicas as one message takes, and of at least one; each may have its own.
struct orders {
    struct dp_schedule *items;
    int32_t count;
    size_t spans; // of all
};

static void orders_deinit(struct orders *orders)
{
    for (int32_t d = 0; d < orders->count; d++) {
        dp_schedule_deinit(&orders->items[d]);
    }
    free(orders->items);
}

static dp_status expand(const struct dp_plan *plan, struct orders *orders, struct dp_error *err)
{
    orders->items = dp_new_array(struct dp_schedule, (size_t)plan->data);
    for (int32_t d = 0; d < plan->data; d++) {
        struct dp_schedule *schedule = &orders->items[d];
        dp_status status = dp_plan_replica_schedule(plan, d, schedule, err);
        if (status != DP_OK) {
            return status;
        }
        // Each rank may have two more after its actions.
        size_t spans = dp_schedule_action_count(schedule) + 2 * (size_t)plan->pipeline;
        if (d > 0 && orders->spans + spans > PREDICTED_SPANS_MAX) {
            dp_schedule_deinit(schedule);
            break;
        }
        orders->spans += spans;
        orders->count++;
    }
    return DP_OK;
}

static dp_status predict(struct drawing *drawing, struct dp_error *err)
{
    DP_CLEANUP(orders_deinit) struct orders orders = {0};
    dp_status status = expand(&drawing->plan, &orders, err);
    struct dp_planner_resources resources = {
        .nodes = drawing->nodes,
        .nodes_count = drawing->nodes_count,
        .profile = drawing->profile_known ? &drawing->profile : NULL,
    };
    drawing->timeline.predicted = arena_take(&drawing->arena, orders.spans * sizeof(void *));
    for (int32_t d = 0; status == DP_OK && d < orders.count; d++) {
        status = simulate_replica(drawing, &resources, d, &orders.items[d], err);
    }
    return status;
}

static void work(uv_work_t *work_item)
{
    struct drawing *drawing = work_item->data;
    if (predict(drawing, &drawing->error) == DP_OK) {
        add_measured(drawing->traces, drawing->traces_count, &drawing->arena, &drawing->timeline);
    }
}

static void drawing_free(struct drawing *drawing)
{
    for (size_t i = 0; i < drawing->traces_count; i++) {
        dp_trace_record_deinit(&drawing->traces[i]);
    }
    free(drawing->traces);
    free(drawing->nodes);
    dp_plan_deinit(&drawing->plan);
    dp_arena_deinit(&drawing->arena);
    free(drawing);
}

static void answer(struct drawing *drawing)
{
    struct daemon *daemon = drawing->daemon;
    DP_CLEANUP(view_deinit) struct job_view view = {0};
    if (drawing->error.status == DP_OK) {
        view_get(daemon, drawing->job, &view, &drawing->error);
    }
    if (drawing->error.status != DP_OK) {
        call_fail_error(daemon, drawing->call, &drawing->error);
        return;
    }
    drawing->timeline.job = message_job(&view, JOB_LIVE, &drawing->arena);
    call_reply(daemon, drawing->call, &drawing->timeline.base);
}

static void after_work(uv_work_t *work_item, int status)
{
    (void)status;
    struct drawing *drawing = work_item->data;
    if (!drawing->daemon->stopping) {
        answer(drawing);
    }
    drawing_free(drawing);
}

static void gather_nodes(struct drawing *drawing)
{
    size_t count = dp_core_nodes_count(drawing->daemon->core);
    DP_AUTO_FREE const struct dp_node_record **rows =
        dp_new_array(const struct dp_node_record *, count);
    dp_core_node_rows(drawing->daemon->core, rows);
    drawing->nodes = dp_new_array(struct dp_planner_node, count);
    for (size_t i = 0; i < count; i++) {
        struct dp_planner_node *node = &drawing->nodes[drawing->nodes_count++];
        DP_COPY_TEXT(node->name, rows[i]->name);
        DP_COPY_TEXT(node->host, rows[i]->boot_id);
        node->slots = (int32_t)rows[i]->slots;
        node->cores = (int32_t)rows[i]->cores;
        DP_AUTO_JSON json_t *json = NULL;
        if (!drawing->profile_known && rows[i]->profile.length > 0 &&
            dp_json_parse(rows[i]->profile.bytes, rows[i]->profile.length, DP_PROFILE_BYTES_MAX,
                          "profile", &json, NULL) == DP_OK) {
            drawing->profile_known = dp_profile_from_json(json, &drawing->profile, NULL) == DP_OK;
        }
    }
}

static dp_status gather(struct drawing *drawing, const char *key, struct dp_error *err)
{
    DP_CLEANUP(view_deinit) struct job_view view = {0};
    Dp__V1__Plan *message = NULL;
    dp_status status = view_find(drawing->daemon, key, &view, err);
    if (status != DP_OK) {
        return status;
    }
    const struct dp_job_record *job = view.job;
    drawing->job = job->number;
    status =
        planning_parse(job->job_toml.bytes, job->job_toml.length, job->id, &drawing->spec, err);
    if (status == DP_OK) {
        status = view_plan(job, &drawing->arena, &message, err);
    }
    if (status == DP_OK) {
        status = dp_wire_plan_from_proto(message, &drawing->plan, err);
    }
    if (status == DP_OK) {
        status = dp_store_load_traces(drawing->daemon->store, job->number, MEASURED_BYTES_MAX,
                                      &drawing->traces, &drawing->traces_count, err);
    }
    gather_nodes(drawing);
    return status;
}

void timeline_answer(struct daemon *daemon, uint64_t call, const char *key)
{
    struct drawing *drawing = dp_new(struct drawing);
    drawing->daemon = daemon;
    drawing->call = call;
    drawing->work.data = drawing;
    dp__v1__timeline__init(&drawing->timeline);
    if (gather(drawing, key, &drawing->error) != DP_OK) {
        answer(drawing);
        drawing_free(drawing);
        return;
    }
    uv_queue_work(&daemon->loop, &drawing->work, work, after_work);
}
