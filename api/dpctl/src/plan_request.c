// The command line of `dpctl plan`, and the files that it names.

#include "plan_request.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cluster.h"
#include "connect.h"
#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/clock.h"

enum {
    KEY_CLUSTER = 1,
    KEY_PROFILE,
    KEY_MODEL,
    KEY_GPU,
    KEY_GPUS,
    KEY_BATCH,
    KEY_SEQUENCE,
    KEY_SET,
    KEY_IGNORE_MEMORY,
    KEY_EXPLAIN,
    KEY_COMPARE,
    KEY_PARETO,
    KEY_MAP,
    KEY_EXPORT,
    KEY_ALL,
    KEY_RANK_FILE,
    KEY_OUT,
    KEY_AGAINST
};

static const struct argp_option options[] = {
    {"model", KEY_MODEL, "NAME", 0, "a built-in model or a config.json instead of a job file", 0},
    {"global-batch", KEY_BATCH, "N", 0, "samples of a step (with --model: 1024)", 0},
    {"seq-len", KEY_SEQUENCE, "N", 0, "tokens of a sample (with --model: 4096 or its positions)",
     0},
    {"set", KEY_SET, "KEY=VALUE", 0, "override a key of the job (repeatable)", 0},
    {"gpu", KEY_GPU, "NAME", 0, "accelerator preset, with --gpus", 1},
    {"gpus", KEY_GPUS, "COUNT", 0, "how many of them", 1},
    {"cluster", KEY_CLUSTER, "FILE|NAME", 0,
     "plan for this cluster.toml, or one that dpctl cluster apply stored (else this machine)", 1},
    {"profile", KEY_PROFILE, "NAME", 0,
     "device figures: a built-in name, or a file that calibration wrote", 1},
    {"ignore-memory", KEY_IGNORE_MEMORY, NULL, 0, "as if every rank had enough of it", 1},
    {"explain", KEY_EXPLAIN, "RANK", 0, "what this rank does, holds and waits for", 2},
    {"compare", KEY_COMPARE, "LIST", 0,
     "schedules side by side on the sizes of the first, comma separated", 2},
    {"pareto", KEY_PARETO, NULL, 0,
     "what a plan with less memory costs, up to three times the step", 2},
    {"map", KEY_MAP, NULL, 0, "which rank stands where", 2},
    {"against", KEY_AGAINST, "JOB", 0, "what would change of this job of the controller's", 2},
    {"export", KEY_EXPORT, "FORM", 0,
     "the choice for others: megatron (arguments), torch (a Python file), env (variables) or "
     "openmpi (a rank file)",
     2},
    {"all", KEY_ALL, NULL, 0, "all that the answer has, not a screen of it", 3},
    {"rank-file", KEY_RANK_FILE, "FILE", 0, "also write node, slot and coordinates of every rank",
     3},
    {"out", KEY_OUT, "FILE", 0, "write here instead of stdout", 3},
    {0},
};

static void check_request(struct argp_state *state, const struct plan_request *request)
{
    if ((request->file == NULL) == (request->model == NULL)) {
        argp_error(state, "give either a job file or --model NAME");
    }
    if ((request->gpu == NULL) != (request->gpus == 0)) {
        argp_error(state, "--gpu and --gpus go together");
    }
    if (request->gpu != NULL && request->cluster != NULL) {
        argp_error(state, "give either --cluster or --gpu");
    }
    int forms = (request->rank >= 0) + request->pareto + (request->compare != NULL) + request->map +
                (request->format != NULL) + (request->against != NULL);
    if (request->format != NULL && !plan_export_knows(request->format)) {
        argp_error(state, "--export is megatron, torch, env or openmpi, not \"%s\"",
                   request->format);
    }
    if (forms > 1) {
        argp_error(state,
                   "one of --explain, --compare, --pareto, --map, --export and --against at a "
                   "time");
    }
    if (request->against != NULL && (request->gpu != NULL || request->cluster != NULL)) {
        argp_error(state, "--against is about the controller's own nodes: leave out --gpu and "
                          "--cluster");
    }
    if (request->rank_file != NULL && (request->compare != NULL || request->pareto)) {
        argp_error(state, "--rank-file is of one plan: it does not go with --compare or --pareto");
    }
}

// The slot of an option whose value is taken as it is; NULL for others.
static const char **text_slot(struct plan_request *request, int key)
{
    switch (key) {
    case KEY_CLUSTER:
        return &request->cluster;
    case KEY_PROFILE:
        return &request->profile;
    case KEY_MODEL:
        return &request->model;
    case KEY_GPU:
        return &request->gpu;
    case KEY_COMPARE:
        return &request->compare;
    case KEY_EXPORT:
        return &request->format;
    case KEY_RANK_FILE:
        return &request->rank_file;
    case KEY_OUT:
        return &request->out;
    case KEY_AGAINST:
        return &request->against;
    default:
        return NULL;
    }
}

static bool *switch_slot(struct plan_request *request, int key)
{
    switch (key) {
    case KEY_ALL:
        return &request->all;
    case KEY_PARETO:
        return &request->pareto;
    case KEY_MAP:
        return &request->map;
    case KEY_IGNORE_MEMORY:
        return &request->ignore_memory;
    default:
        return NULL;
    }
}

static error_t handle(int key, char *arg, struct argp_state *state)
{
    struct plan_request *request = state->input;
    const char **text = text_slot(request, key);
    if (text != NULL) {
        *text = arg;
        return 0;
    }
    bool *flag = switch_slot(request, key);
    if (flag != NULL) {
        *flag = true;
        return 0;
    }
    switch (key) {
    case KEY_GPUS:
        request->gpus = (int32_t)dpctl_number(state, "--gpus", arg, 1, DP_RANKS_MAX);
        return 0;
    case KEY_BATCH:
        request->global_batch =
            (int32_t)dpctl_number(state, "--global-batch", arg, 1, DP_GLOBAL_BATCH_MAX);
        return 0;
    case KEY_SEQUENCE:
        request->sequence = (int32_t)dpctl_number(state, "--seq-len", arg, 1, DP_SEQUENCE_MAX);
        return 0;
    case KEY_EXPLAIN:
        request->rank = (int32_t)dpctl_number(state, "--explain", arg, 0, DP_RANKS_MAX - 1);
        return 0;
    case KEY_SET:
        dpctl_sets_take(state, arg, &request->sets);
        return 0;
    case ARGP_KEY_ARG:
        dpctl_take_argument(state, "job file", arg, &request->file);
        return 0;
    case ARGP_KEY_END:
        check_request(state, request);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

void plan_request_parse(struct dpctl *ctl, int argc, char **argv, struct plan_request *ret_request)
{
    static const struct dpctl_syntax syntax = {
        .arguments = "[JOB.toml]",
        .doc = "Recommends a strategy: pipeline depth, expert and data parallel sizes, schedule, "
               "layer split; with the predicted step time and the reasons. Runs nothing.\v"
               "docs/planner.md explains the answer, docs/cluster-file.md what --cluster reads."
               "\n\nExamples:\n"
               "  dpctl plan examples/tiny-moe.toml\n"
               "  dpctl plan --model deepseek-v3 --gpu h800 --gpus 2048 --global-batch 15360\n"
               "  dpctl plan --model mixtral-8x7b --gpu h100 --gpus 64 --compare 1f1b,dualpipe\n",
        .exits = "0 a plan, 3 the job or the cluster is wrong, 4 no such file or model, 7 nothing "
                 "fits; with --against also 20 something would change",
        .options = options,
        .handle = handle,
    };
    *ret_request = (struct plan_request){.rank = -1};
    const char *before = ctl->controller;
    dpctl_parse(ctl, &syntax, ret_request, argc, argv);
    // Planning needs no controller, so one that the environment names is not asked.
    ret_request->is_remote = ctl->controller != before || ret_request->against != NULL;
}

static dp_status spec_of_model(const struct plan_request *request, struct dp_job_spec *ret_spec,
                               struct dp_error *err)
{
    struct dp_model_spec model;
    dp_status status = dpctl_load_model(request->model, &model, err);
    if (status == DP_OK) {
        bool is_cpu = request->gpu == NULL && request->cluster == NULL;
        dp_job_spec_of_model(&model, is_cpu ? DP_DEVICE_CPU : DP_DEVICE_CUDA, ret_spec);
    }
    return status;
}

static dp_status load_spec(const struct plan_request *request, struct dp_job_spec *ret_spec,
                           bool *ret_experts_dropped, struct dp_error *err)
{
    dp_status status = request->model != NULL ? spec_of_model(request, ret_spec, err)
                                              : dp_job_spec_load(request->file, ret_spec, err);
    if (status != DP_OK) {
        return status;
    }
    if (request->gpus > 0) {
        ret_spec->resources.device = DP_DEVICE_CUDA;
        ret_spec->resources.ranks = 0; // all that some division uses
    }
    if (request->global_batch > 0) {
        ret_spec->train.global_batch = request->global_batch;
    }
    if (request->sequence > 0) {
        ret_spec->train.sequence = request->sequence;
    }
    bool had_experts = ret_spec->model.experts > 0;
    status = dpctl_sets_apply(&request->sets, ret_spec, err);
    *ret_experts_dropped = had_experts && ret_spec->model.experts == 0;
    return status;
}

// What `dpctl run` would make of this machine: two agents that share its cores and memory.
static void this_machine(const struct dp_job_spec *spec, struct dp_cluster_spec *ret)
{
    *ret = (struct dp_cluster_spec){.nodes = 2};
    DP_COPY_TEXT(ret->name, "this machine");
    DP_COPY_TEXT(ret->accelerator, "cpu");
    int32_t ranks = dp_job_spec_ranks(spec, NULL);
    ret->ranks_per_node = ranks > 4 ? (ranks + 1) / 2 : 2;
    long cores = sysconf(_SC_NPROCESSORS_ONLN) / 2;
    ret->cores_per_node = cores < 1 ? 1 : (int32_t)cores;
    double memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    ret->memory_bytes = memory / (2.0 * ret->ranks_per_node);
}

static dp_status load_cluster(struct dpctl *ctl, const struct plan_request *request,
                              const struct dp_job_spec *spec, struct dp_cluster_spec *ret_cluster,
                              struct dp_error *err)
{
    if (request->cluster != NULL) {
        return dpctl_load_cluster(ctl, request->cluster, ret_cluster, err);
    }
    if (request->gpu != NULL) {
        return dp_cluster_preset(request->gpu, request->gpus, ret_cluster, err);
    }
    this_machine(spec, ret_cluster);
    return DP_OK;
}

bool plan_profile_is_file(const char *name)
{
    return strchr(name, '/') != NULL || access(name, F_OK) == 0;
}

// A built-in profile by name, with the links of the cluster; or a file.
static dp_status named_profile(const char *name, const struct dp_cluster_spec *cluster,
                               struct dp_profile *ret_profile, struct dp_error *err)
{
    if (!plan_profile_is_file(name)) {
        dp_status status = dp_profile_builtin(name, ret_profile, err);
        if (status == DP_OK && strcmp(cluster->accelerator, "cpu") != 0) {
            dp_profile_set_cluster(ret_profile, cluster);
        }
        return status;
    }
    return dp_profile_load(name, ret_profile, err);
}

static dp_status load_profile(const struct dpctl *ctl, const struct plan_request *request,
                              const struct dp_cluster_spec *cluster, struct dp_profile *ret_profile,
                              struct dp_error *err)
{
    if (request->profile != NULL) {
        return named_profile(request->profile, cluster, ret_profile, err);
    }
    if (strcmp(cluster->accelerator, "cpu") != 0) {
        dp_profile_from_cluster(cluster, ret_profile);
        return DP_OK;
    }
    // What `dpctl calibrate --local` saved, else what the local cluster measured, if either did.
    static const char *const files[] = {"profile.json", "local/node-0/profile.json"};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(files); i++) {
        char path[DP_PATH_MAX + 64];
        snprintf(path, sizeof path, "%s/%s", ctl->state_directory, files[i]);
        if (dp_profile_load(path, ret_profile, NULL) == DP_OK) {
            return DP_OK;
        }
    }
    dp_profile_default_cpu(ret_profile);
    return DP_OK;
}

void plan_question_free(struct plan_question *question)
{
    if (question != NULL) {
        free(question->nodes);
        dp_client_close(question->client);
    }
    free(question);
}

dp_status plan_question_load(struct dpctl *ctl, const struct plan_request *request,
                             struct plan_question **ret_question, struct dp_error *err)
{
    struct plan_question *question = dp_new(struct plan_question);
    dp_status status = load_spec(request, &question->spec, &question->experts_dropped, err);
    if (status == DP_OK) {
        status = load_cluster(ctl, request, &question->spec, &question->cluster, err);
    }
    if (status == DP_OK) {
        status = load_profile(ctl, request, &question->cluster, &question->profile, err);
    }
    if (status == DP_OK && request->is_remote) {
        status = plan_remote_open(ctl, request, question, err);
    }
    if (status != DP_OK) {
        plan_question_free(question);
        return status;
    }
    question->resources.profile = &question->profile;
    dp_planner_cluster_nodes(&question->cluster, &question->nodes,
                             &question->resources.nodes_count);
    question->resources.nodes = question->nodes;
    for (size_t i = 0; request->ignore_memory && i < question->resources.nodes_count; i++) {
        question->nodes[i].memory_bytes = 0;
    }
    *ret_question = question;
    return DP_OK;
}

static dp_status ask_here(const struct plan_question *question, const struct dp_job_spec *spec,
                          bool pareto, struct dp_plan *ret_plan, struct dp_error *err)
{
    int64_t begin_ns = dp_clock_monotonic_ns();
    dp_status status = pareto ? dp_planner_pareto(spec, &question->resources, NULL, ret_plan, err)
                              : dp_planner_plan(spec, &question->resources, NULL, ret_plan, err);
    if (status == DP_OK) {
        ret_plan->search_s = (double)(dp_clock_monotonic_ns() - begin_ns) / 1e9;
        DP_CLEANUP(dp_buf_deinit) struct dp_buf warnings = {0};
        dp_cluster_spec_warnings(&question->cluster, &warnings);
        dp_plan_add_warnings(ret_plan, warnings.bytes);
    }
    return status;
}

dp_status plan_question_ask(const struct plan_question *question, const struct dp_job_spec *spec,
                            bool pareto, struct dp_plan *ret_plan, struct dp_error *err)
{
    dp_status status = question->client != NULL
                           ? plan_remote_ask(question, spec, pareto, ret_plan, err)
                           : ask_here(question, spec, pareto, ret_plan, err);
    if (status == DP_OK && question->experts_dropped) {
        DP_AUTO_FREE char *line = dp_asprintf(
            "model.experts = 0: all %d layers are dense now, with an FFN %d wide; it is no longer "
            "%s\n",
            spec->model.layers, spec->model.ffn, spec->model.name);
        dp_plan_add_warnings(ret_plan, line);
    }
    return status;
}
