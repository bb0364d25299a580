// Planner.Plan: what `dpctl plan` answers, for whoever asks. Everything from the model's text to
// the answer's JSON happens on a work thread; the loop only gathers what it alone knows.
#include <stdlib.h>
#include <string.h>

#include "clusters.h"
#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "planning.h"

struct question {
    struct task task;
    struct dp_arena arena;
    const Dp__V1__PlanRequest *request; // in the arena, as the answer is
    struct dp_job_spec spec;
    bool cluster_known;
    struct dp_cluster_spec cluster;
    struct plan_nodes nodes; // those that are connected, or the cluster's
    struct dp_plan plan;
    Dp__V1__PlanResponse response;
    struct dp_buf json; // for HTTP, instead
};

static void question_free(struct task *task)
{
    struct question *question = (struct question *)task;
    plan_nodes_deinit(&question->nodes);
    dp_plan_deinit(&question->plan);
    dp_buf_deinit(&question->json);
    dp_arena_deinit(&question->arena);
    free(question);
}

static bool is_given(const ProtobufCBinaryData *text)
{
    return text->len > 0;
}

static dp_status check_request(const Dp__V1__PlanRequest *request, struct dp_error *err)
{
    int models = is_given(&request->job_toml) + is_given(&request->model_config) +
                 (request->model[0] != '\0');
    int clusters = is_given(&request->cluster_toml) + (request->cluster[0] != '\0') +
                   (request->gpu[0] != '\0');
    if (models != 1) {
        return dp_fail(err, DP_INVALID, "give one of job_toml, model and model_config%s",
                       models == 0 ? ": what is to be planned" : ", not several");
    }
    if (clusters > 1) {
        return dp_fail(err, DP_INVALID, "give one of gpu (with gpus), cluster and cluster_toml");
    }
    if ((request->gpu[0] != '\0') != (request->gpus > 0)) {
        return dp_fail(err, DP_INVALID, "gpu and gpus go together: which accelerators, how many");
    }
    if (request->profile[0] != '\0' && is_given(&request->profile_json)) {
        return dp_fail(err, DP_INVALID, "give one of profile and profile_json");
    }
    return DP_OK;
}

static dp_status load_model(const Dp__V1__PlanRequest *request, struct dp_job_spec *spec,
                            struct dp_error *err)
{
    struct dp_model_spec model;
    const ProtobufCBinaryData *config = &request->model_config;
    dp_status status = is_given(config)
                           ? dp_model_from_hf_config((const char *)config->data, config->len,
                                                     "model_config", &model, err)
                           : dp_model_preset(request->model, &model, err);
    if (status == DP_OK) {
        bool is_cpu = request->gpu[0] == '\0' && request->cluster[0] == '\0' &&
                      !is_given(&request->cluster_toml);
        dp_job_spec_of_model(&model, is_cpu ? DP_DEVICE_CPU : DP_DEVICE_CUDA, spec);
    }
    return status;
}

static dp_status load_spec(struct question *question, struct dp_error *err)
{
    const Dp__V1__PlanRequest *request = question->request;
    struct dp_job_spec *spec = &question->spec;
    dp_status status = is_given(&request->job_toml)
                           ? planning_parse(request->job_toml.data, request->job_toml.len,
                                            request->file, spec, err)
                           : load_model(request, spec, err);
    if (status != DP_OK) {
        return status;
    }
    if (request->gpus > 0) {
        spec->resources.device = DP_DEVICE_CUDA;
        spec->resources.ranks = 0; // all that some division uses
    }
    if (request->global_batch > 0) {
        spec->train.global_batch = (int32_t)request->global_batch;
    }
    if (request->seq_len > 0) {
        spec->train.sequence = (int32_t)request->seq_len;
    }
    for (size_t i = 0; i < request->n_sets && status == DP_OK; i++) {
        status = dp_job_spec_set(spec, request->sets[i], err);
    }
    return status == DP_OK ? dp_job_spec_check(spec, err) : status;
}

static dp_status parse_cluster(const ProtobufCBinaryData *text, struct dp_cluster_spec *ret_cluster,
                               struct dp_error *err)
{
    struct dp_diags diags;
    dp_diags_init(&diags, "cluster.toml", (const char *)text->data, text->len);
    dp_status status =
        dp_cluster_spec_parse((const char *)text->data, text->len, &diags, ret_cluster, err);
    if (status == DP_INVALID && diags.count > 0) {
        status = dp_diags_status(&diags, err);
    }
    dp_diags_deinit(&diags);
    return status;
}

static dp_status load_cluster(struct question *question, struct dp_error *err)
{
    const Dp__V1__PlanRequest *request = question->request;
    dp_status status = DP_OK;
    if (is_given(&request->cluster_toml)) {
        status = parse_cluster(&request->cluster_toml, &question->cluster, err);
    } else if (request->gpu[0] != '\0') {
        status = dp_cluster_preset(request->gpu, (int32_t)request->gpus, &question->cluster, err);
    } else if (!question->cluster_known) {
        return DP_OK; // the nodes that are connected
    }
    if (status == DP_OK) {
        dp_planner_cluster_nodes(&question->cluster, &question->nodes.nodes,
                                 &question->nodes.count);
        dp_profile_from_cluster(&question->cluster, &question->nodes.profile);
        question->nodes.profile_known = question->cluster_known = true;
    }
    return status;
}

static dp_status load_profile(struct question *question, struct dp_error *err)
{
    const Dp__V1__PlanRequest *request = question->request;
    struct dp_profile *profile = &question->nodes.profile;
    dp_status status = DP_OK;
    if (is_given(&request->profile_json)) {
        DP_AUTO_JSON json_t *json = NULL;
        status = dp_json_parse((const char *)request->profile_json.data, request->profile_json.len,
                               DP_PROFILE_BYTES_MAX, "profile_json", &json, err);
        status = status == DP_OK ? dp_profile_from_json(json, profile, err) : status;
    } else if (request->profile[0] != '\0') {
        status = dp_profile_builtin(request->profile, profile, err);
        if (status == DP_OK && question->cluster_known && profile->is_accelerator) {
            dp_profile_set_cluster(profile, &question->cluster);
        }
    } else {
        return DP_OK;
    }
    question->nodes.profile_known = true;
    return status;
}

static dp_status answer(struct question *question, struct dp_error *err)
{
    dp_status status = load_spec(question, err);
    if (status == DP_OK) {
        status = load_cluster(question, err);
    }
    if (status == DP_OK) {
        status = load_profile(question, err);
    }
    if (status == DP_OK && question->nodes.count == 0) {
        return dp_fail(err, DP_UNSCHEDULABLE,
                       "no node is connected to plan for; name gpu and gpus, or a cluster");
    }
    if (status != DP_OK) {
        return status;
    }
    const Dp__V1__PlanRequest *request = question->request;
    for (size_t i = 0; request->ignore_memory && i < question->nodes.count; i++) {
        question->nodes.nodes[i].memory_bytes = 0;
    }
    struct dp_planner_resources resources = plan_nodes_resources(&question->nodes);
    struct dp_planner_options options = {.stop = task_asked_to_stop, .context = question};
    int64_t begin_ns = dp_clock_monotonic_ns();
    status = request->pareto
                 ? dp_planner_pareto(&question->spec, &resources, &options, &question->plan, err)
                 : dp_planner_plan(&question->spec, &resources, &options, &question->plan, err);
    question->plan.search_s = (double)(dp_clock_monotonic_ns() - begin_ns) / 1e9;
    if (status == DP_OK) {
        DP_CLEANUP(dp_buf_deinit) struct dp_buf warnings = {0};
        dp_cluster_spec_warnings(&question->cluster, &warnings);
        dp_plan_add_warnings(&question->plan, warnings.bytes);
    }
    return status;
}

static void run(struct task *task)
{
    struct question *question = (struct question *)task;
    Dp__V1__PlanResponse *response = &question->response;
    dp__v1__plan_response__init(response);
    if (answer(question, &task->error) != DP_OK) {
        return;
    }
    response->plan = dp_wire_plan_to_proto(&question->plan, &question->arena);
    response->searched = (uint64_t)question->plan.searched;
    response->search_s = question->plan.search_s;
    task_make_json(task, &response->base, &question->json);
}

static void finish(struct task *task)
{
    struct question *question = (struct question *)task;
    task_answer(task, &question->response.base, &question->json);
}

static void on_message(void *context, uint64_t call, const void *bytes, size_t length)
{
    struct daemon *daemon = context;
    struct question *question = dp_new(struct question);
    struct task *task = &question->task;
    *task = (struct task){
        .daemon = daemon,
        .kind = TASK_PLAN,
        .call = call,
        .run = run,
        .finish = finish,
        .free = question_free,
    };
    question->request = service_unpack(daemon, call, &dp__v1__plan_request__descriptor, bytes,
                                       length, &question->arena);
    if (question->request == NULL) {
        question_free(task);
        return;
    }
    const Dp__V1__PlanRequest *request = question->request;
    dp_status status = check_request(request, &task->error);
    if (status == DP_OK && request->cluster[0] != '\0') {
        status = clusters_find(daemon, request->cluster, &question->cluster, &task->error);
        question->cluster_known = status == DP_OK;
    } else if (request->gpu[0] == '\0' && !is_given(&request->cluster_toml)) {
        plan_nodes_connected(daemon, &question->nodes);
    }
    if (status != DP_OK) {
        finish(task);
        question_free(task);
        return;
    }
    task_submit(task);
}

const struct dp_rpc_handler plan_handler = {
    .method = DP_METHOD_PLAN,
    .on_message = on_message,
    .on_closed = tasks_on_closed,
};
