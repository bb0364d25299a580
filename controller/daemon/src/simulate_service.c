// Planner.Simulate: what `dpctl schedule simulate` answers, for a schedule by name or as a
// document.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon.h"
#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/schedule_audit.h"
#include "dp/sim_analysis.h"
#include "dp/what_if.h"

#define COST_DEFAULT "F=1,I=1,W=1"

struct simulation {
    struct task task;
    struct dp_arena arena;
    const Dp__V1__SimulateRequest *request;
    struct dp_schedule schedule;
    struct dp_sim_costs costs;
    struct dp_buf notes;
    Dp__V1__Simulation answer;
    struct dp_buf json; // for HTTP, instead
};

static void simulation_free(struct task *task)
{
    struct simulation *simulation = (struct simulation *)task;
    dp_schedule_deinit(&simulation->schedule);
    dp_sim_costs_deinit(&simulation->costs);
    dp_buf_deinit(&simulation->notes);
    dp_buf_deinit(&simulation->json);
    dp_arena_deinit(&simulation->arena);
    free(simulation);
}

static dp_status check_actions(uint64_t actions, struct dp_error *err)
{
    return actions <= DP_PLANNER_ACTIONS_MAX
               ? DP_OK
               : dp_fail(err, DP_TOO_LARGE,
                         "the schedule has %llu actions; the service simulates at most %u (dpctl "
                         "schedule simulate has no such limit)",
                         (unsigned long long)actions, DP_PLANNER_ACTIONS_MAX);
}

// At most F, I and W of each chunk.
static dp_status generate(const Dp__V1__SimulateRequest *request, struct dp_schedule *ret_schedule,
                          struct dp_error *err)
{
    struct dp_schedule_params params = {
        .pipeline = (int32_t)request->pipeline,
        .microbatches = (int32_t)request->microbatches,
        .virtual_stages = (int32_t)request->virtual_stages,
    };
    if (params.pipeline == 0 || params.microbatches == 0) {
        return dp_fail(err, DP_INVALID, "say pipeline and microbatches of schedule %s",
                       request->schedule);
    }
    const struct dp_schedule_family *family = dp_schedule_family_find(request->schedule);
    dp_status status = DP_OK;
    if (family != NULL) {
        status = dp_schedule_check(request->schedule, &params, err);
    }
    if (status == DP_OK && family != NULL) {
        uint64_t stages = (uint64_t)dp_schedule_family_stages(family, &params);
        status = check_actions(3 * stages * request->microbatches, err);
    }
    return status == DP_OK ? dp_schedule_generate(request->schedule, &params, ret_schedule, err)
                           : status;
}

static dp_status read_document(const Dp__V1__SimulateRequest *request,
                               struct dp_schedule *ret_schedule, struct dp_error *err)
{
    if (request->schedule[0] != '\0' || request->pipeline > 0 || request->microbatches > 0 ||
        request->virtual_stages > 0) {
        return dp_fail(err, DP_INVALID,
                       "schedule_json has its own name and sizes; leave out schedule, pipeline, "
                       "microbatches and virtual_stages");
    }
    const char *text = (const char *)request->schedule_json.data;
    size_t length = request->schedule_json.len;
    struct dp_diags diags;
    dp_diags_init(&diags, "schedule_json", text, length);
    dp_status status = dp_schedule_read_json(text, length, ret_schedule, &diags, err);
    dp_diags_deinit(&diags);
    return status;
}

static dp_status obtain(struct simulation *simulation, struct dp_error *err)
{
    const Dp__V1__SimulateRequest *request = simulation->request;
    if (request->schedule_json.len > 0) {
        return read_document(request, &simulation->schedule, err);
    }
    return request->schedule[0] != '\0'
               ? generate(request, &simulation->schedule, err)
               : dp_fail(err, DP_INVALID, "give schedule, a family's name, or schedule_json");
}

static dp_status read_p2p(const char *text, dp_sim_p2p *ret_p2p, struct dp_error *err)
{
    bool blocking = strcmp(text, "blocking") == 0;
    *ret_p2p = blocking ? DP_SIM_P2P_BLOCKING : DP_SIM_P2P_FREE;
    return blocking || text[0] == '\0' || strcmp(text, "free") == 0
               ? DP_OK
               : dp_fail(err, DP_INVALID, "p2p is free or blocking, not \"%s\"", text);
}

// As `dpctl schedule simulate` takes them: what a chunk keeps, and how much of that until W.
static dp_status set_bytes(const Dp__V1__SimulateRequest *request, struct dp_sim_costs *costs,
                           struct dp_error *err)
{
    double bytes = request->activation_bytes, until_w = request->weight_bytes;
    if (bytes < 0 || until_w < 0 || until_w > bytes || bytes > (double)DP_COST_RANK_BYTES_MAX) {
        return dp_fail(err, DP_INVALID,
                       "activation_bytes must be 0 or more, and weight_bytes at most as much");
    }
    uint64_t whole = (uint64_t)ceil(bytes), kept = (uint64_t)ceil(until_w);
    for (int32_t i = 0; bytes > 0 && i < costs->pipeline * costs->slots; i++) {
        costs->chunks[i].activation_bytes = whole;
        costs->chunks[i].released_at_i_bytes = whole - kept;
    }
    return DP_OK;
}

static dp_status base_costs(struct simulation *simulation, struct dp_error *err)
{
    const Dp__V1__SimulateRequest *request = simulation->request;
    struct dp_sim_uniform uniform;
    dp_sim_p2p p2p;
    const char *cost = request->cost[0] == '\0' ? COST_DEFAULT : request->cost;
    dp_status status = dp_what_if_parse_cost("cost", cost, &uniform, err);
    if (status == DP_OK) {
        status = read_p2p(request->p2p, &p2p, err);
    }
    if (status != DP_OK) {
        return status;
    }
    uniform.hop.latency = request->hop_s;
    dp_sim_costs_init_uniform(&simulation->costs, &simulation->schedule, &uniform);
    simulation->costs.p2p = p2p;
    status = set_bytes(request, &simulation->costs, err);
    const ProtobufCBinaryData *table = &request->stage_cost_csv;
    return status == DP_OK && table->len > 0
               ? dp_what_if_stage_costs("stage_cost_csv", (const char *)table->data, table->len,
                                        &simulation->schedule, &simulation->costs, err)
               : status;
}

static dp_status change_costs(struct simulation *simulation, struct dp_error *err)
{
    const Dp__V1__SimulateRequest *request = simulation->request;
    dp_status status = DP_OK;
    for (size_t i = 0; i < request->n_slow && status == DP_OK; i++) {
        status = dp_what_if_slow("slow", request->slow[i], &simulation->schedule,
                                 &simulation->costs, err);
    }
    for (size_t i = 0; i < request->n_slow_links && status == DP_OK; i++) {
        status = dp_what_if_slow_link("slow_links", request->slow_links[i], &simulation->schedule,
                                      &simulation->costs, &simulation->notes, err);
    }
    return status;
}

// Without the changes, where there are any.
static dp_status simulate_unchanged(struct simulation *simulation, struct dp_error *err)
{
    const Dp__V1__SimulateRequest *request = simulation->request;
    return request->n_slow + request->n_slow_links == 0
               ? DP_OK
               : dp_simulate_makespan(&simulation->schedule, &simulation->costs, NULL,
                                      &simulation->answer.unchanged_makespan_s, NULL, err);
}

static void add_ranks(struct simulation *simulation, const struct dp_sim_result *result)
{
    Dp__V1__Simulation *answer = &simulation->answer;
    answer->ranks = arena_take(&simulation->arena, (size_t)result->pipeline * sizeof(void *));
    for (int32_t r = 0; r < result->pipeline; r++) {
        const struct dp_sim_rank *from = &result->ranks[r];
        Dp__V1__SimulatedRank *to = arena_take(&simulation->arena, sizeof *to);
        dp__v1__simulated_rank__init(to);
        to->rank = (uint32_t)r;
        to->busy_s = dp_sim_rank_busy(from);
        to->bubble_s = from->bubble;
        to->warmup_s = from->warmup;
        to->dependency_s = from->dependency;
        to->imbalance_s = from->imbalance;
        to->comm_s = from->comm;
        to->cooldown_s = from->cooldown;
        to->own_span_bubble_s = from->span_bubble;
        to->peak_activations = from->peak_activations;
        to->peak_chunks = from->held_peak_chunks;
        to->peak_bytes = from->peak_bytes;
        to->peak_at_s = from->peak_at;
        answer->ranks[answer->n_ranks++] = to;
    }
}

static void add_path(Dp__V1__Simulation *answer, const struct dp_sim_analysis *analysis)
{
    double before = 0;
    for (size_t i = 0; i < analysis->path_count; i++) {
        const struct dp_sim_path_step *step = &analysis->path[i];
        answer->path_computing_s += step->end - step->start;
        answer->path_travelling_s += step->start - before;
        before = step->end;
    }
    answer->path_actions = analysis->path_count;
}

static void add_notes(struct simulation *simulation)
{
    Dp__V1__Simulation *answer = &simulation->answer;
    answer->notes = arena_take(&simulation->arena, (simulation->notes.length + 1) * sizeof(char *));
    char *save = NULL;
    for (char *line =
             simulation->notes.length == 0 ? NULL : strtok_r(simulation->notes.bytes, "\n", &save);
         line != NULL; line = strtok_r(NULL, "\n", &save)) {
        answer->notes[answer->n_notes++] = line;
    }
}

static void fill(struct simulation *simulation, const struct dp_sim_result *result,
                 const struct dp_sim_analysis *analysis)
{
    const struct dp_schedule *schedule = &simulation->schedule;
    Dp__V1__Simulation *answer = &simulation->answer;
    answer->name = (char *)schedule->name;
    answer->pipeline = (uint32_t)schedule->pipeline;
    answer->microbatches = (uint32_t)schedule->microbatches;
    answer->stages = (uint32_t)schedule->stages;
    answer->actions = dp_schedule_action_count(schedule);
    answer->schedule_hash = dp_schedule_hash(schedule);
    answer->makespan_s = result->makespan;
    answer->bubble_ratio = dp_sim_bubble_ratio(result);
    answer->own_span_bubble_ratio = dp_sim_own_span_bubble_ratio(result);
    add_ranks(simulation, result);
    add_path(answer, analysis);
    add_notes(simulation);
}

static dp_status simulate(struct simulation *simulation, struct dp_error *err)
{
    DP_CLEANUP(dp_sim_result_deinit) struct dp_sim_result result = {0};
    DP_CLEANUP(dp_sim_analysis_deinit) struct dp_sim_analysis analysis = {0};
    dp_status status = obtain(simulation, err);
    if (status == DP_OK) {
        status = check_actions(dp_schedule_action_count(&simulation->schedule), err);
    }
    if (status == DP_OK) {
        status = base_costs(simulation, err);
    }
    if (status == DP_OK) {
        status = dp_sim_costs_check(&simulation->costs, &simulation->schedule, err);
    }
    if (status == DP_OK) {
        status = simulate_unchanged(simulation, err);
    }
    if (status == DP_OK) {
        status = change_costs(simulation, err);
    }
    if (status == DP_OK) {
        status = dp_simulate_analyzed(&simulation->schedule, &simulation->costs, &result, &analysis,
                                      err);
    }
    if (status == DP_OK) {
        fill(simulation, &result, &analysis);
    }
    return status;
}

static void run(struct task *task)
{
    struct simulation *simulation = (struct simulation *)task;
    dp__v1__simulation__init(&simulation->answer);
    if (simulate(simulation, &task->error) == DP_OK) {
        task_make_json(task, &simulation->answer.base, &simulation->json);
    }
}

static void finish(struct task *task)
{
    struct simulation *simulation = (struct simulation *)task;
    task_answer(task, &simulation->answer.base, &simulation->json);
}

static void on_message(void *context, uint64_t call, const void *bytes, size_t length)
{
    struct daemon *daemon = context;
    struct simulation *simulation = dp_new(struct simulation);
    struct task *task = &simulation->task;
    *task = (struct task){
        .daemon = daemon,
        .kind = TASK_SIMULATE,
        .call = call,
        .run = run,
        .finish = finish,
        .free = simulation_free,
    };
    simulation->request = service_unpack(daemon, call, &dp__v1__simulate_request__descriptor, bytes,
                                         length, &simulation->arena);
    if (simulation->request == NULL) {
        simulation_free(task);
        return;
    }
    task_submit(task);
}

const struct dp_rpc_handler simulate_handler = {
    .method = DP_METHOD_SIMULATE,
    .on_message = on_message,
    .on_closed = tasks_on_closed,
};
