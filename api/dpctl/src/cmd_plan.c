// dpctl plan: a dry run that needs no controller.

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "connect.h"
#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/plan.h"
#include "dp/planner.h"
#include "dp/profile.h"
#include "dp/spec.h"

enum { KEY_CLUSTER = 1, KEY_PROFILE, KEY_MODEL, KEY_GPU, KEY_GPUS, KEY_SET, KEY_ALL, KEY_OUT };

static const struct argp_option options[] = {
    {"cluster", KEY_CLUSTER, "FILE", 0, "plan for this cluster.toml (else this machine)", 0},
    {"profile", KEY_PROFILE, "FILE", 0, "device figures measured by calibration", 0},
    {"model", KEY_MODEL, "NAME", 0, "a built-in model or a config.json instead of a job file", 1},
    {"gpu", KEY_GPU, "NAME", 0, "accelerator preset, with --gpus", 1},
    {"gpus", KEY_GPUS, "COUNT", 0, "how many of them", 1},
    {"set", KEY_SET, "KEY=VALUE", 0, "override a key of the job (repeatable)", 1},
    {"all", KEY_ALL, NULL, 0, "list every candidate that the plan names, not the best ten", 2},
    {"out", KEY_OUT, "FILE", 0, "write here instead of stdout", 2},
    {0},
};

struct request {
    const char *file, *cluster, *profile, *model, *gpu, *out;
    int32_t gpus;
    struct dpctl_sets sets;
    bool all;
};

static error_t handle(int key, char *arg, struct argp_state *state)
{
    struct request *request = state->input;
    switch (key) {
    case KEY_CLUSTER:
        request->cluster = arg;
        return 0;
    case KEY_PROFILE:
        request->profile = arg;
        return 0;
    case KEY_MODEL:
        request->model = arg;
        return 0;
    case KEY_GPU:
        request->gpu = arg;
        return 0;
    case KEY_GPUS:
        request->gpus = (int32_t)dpctl_number(state, "--gpus", arg, 1, DP_RANKS_MAX);
        return 0;
    case KEY_SET:
        dpctl_sets_take(state, arg, &request->sets);
        return 0;
    case KEY_ALL:
        request->all = true;
        return 0;
    case KEY_OUT:
        request->out = arg;
        return 0;
    case ARGP_KEY_ARG:
        dpctl_take_argument(state, "job file", arg, &request->file);
        return 0;
    case ARGP_KEY_END:
        if ((request->file == NULL) == (request->model == NULL)) {
            argp_error(state, "give either a job file or --model NAME");
        }
        if ((request->gpu == NULL) != (request->gpus == 0)) {
            argp_error(state, "--gpu and --gpus go together");
        }
        if (request->gpu != NULL && request->cluster != NULL) {
            argp_error(state, "give either --cluster or --gpu");
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

// A job around a model alone: what a strategy question needs and no more.
static dp_status spec_of_model(const char *model, struct dp_job_spec *ret_spec,
                               struct dp_error *err)
{
    dp_job_spec_init(ret_spec);
    ret_spec->train.steps = 1;
    ret_spec->train.sequence = 4096;
    ret_spec->train.global_batch = 1024;
    ret_spec->resources.device = DP_DEVICE_CUDA;
    return dpctl_load_model(model, &ret_spec->model, err);
}

static dp_status load_spec(const struct request *request, struct dp_job_spec *ret_spec,
                           struct dp_error *err)
{
    dp_status status = request->model != NULL ? spec_of_model(request->model, ret_spec, err)
                                              : dp_job_spec_load(request->file, ret_spec, err);
    if (status == DP_OK && request->gpus > 0) {
        ret_spec->resources.device = DP_DEVICE_CUDA;
        ret_spec->resources.ranks = request->gpus;
    }
    return status == DP_OK ? dpctl_sets_apply(&request->sets, ret_spec, err) : status;
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

static dp_status load_cluster(const struct request *request, const struct dp_job_spec *spec,
                              struct dp_cluster_spec *ret_cluster, struct dp_error *err)
{
    if (request->cluster != NULL) {
        return dp_cluster_spec_load(request->cluster, ret_cluster, err);
    }
    if (request->gpu != NULL) {
        return dp_cluster_preset(request->gpu, request->gpus, ret_cluster, err);
    }
    this_machine(spec, ret_cluster);
    return DP_OK;
}

static dp_status load_profile(const struct dpctl *ctl, const struct request *request,
                              const struct dp_cluster_spec *cluster, struct dp_profile *ret_profile,
                              struct dp_error *err)
{
    if (request->profile != NULL) {
        return dp_profile_load(request->profile, ret_profile, err);
    }
    if (strcmp(cluster->accelerator, "cpu") != 0) {
        dp_profile_from_cluster(cluster, ret_profile);
        return DP_OK;
    }
    // What the local cluster's calibration measured on this machine, if it ever ran.
    char path[DP_PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/local/node-0/profile.json", ctl->state_directory);
    struct dp_error ignored = {0};
    if (dp_profile_load(path, ret_profile, &ignored) != DP_OK) {
        dp_profile_default_cpu(ret_profile);
    }
    return DP_OK;
}

static dp_status write_plan(struct dpctl *ctl, const struct request *request,
                            const struct dp_plan *plan, struct dp_error *err)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    if (ctl->json) {
        dpctl_write_json(dp_plan_to_json(plan), "dp.plan/1", &text);
    } else {
        dp_plan_render(plan, request->all ? 0 : 10, &text);
    }
    return dpctl_write(ctl, request->out, &text, err);
}

dp_status dpctl_cmd_plan(struct dpctl *ctl, int argc, char **argv, struct dp_error *err)
{
    static const struct dpctl_syntax syntax = {
        .arguments = "[JOB.toml]",
        .doc = "Recommends a strategy: pipeline depth, expert and data parallel sizes, schedule, "
               "layer split; with the predicted step time and the reasons. Runs nothing.\v"
               "docs/cluster-file.md describes what --cluster reads.\n\nExamples:\n"
               "  dpctl plan examples/tiny-moe.toml\n"
               "  dpctl plan --model deepseek-v3 --gpu h800 --gpus 1024 --set expert=64\n",
        .exits = "0 a plan, 3 the job or the cluster is wrong, 4 no such file or model, 7 nothing "
                 "fits",
        .offline = true,
        .options = options,
        .handle = handle,
    };
    struct request request = {0};
    dpctl_parse(ctl, &syntax, &request, argc, argv);
    struct dp_job_spec spec;
    struct dp_cluster_spec cluster;
    struct dp_profile profile;
    dp_status status = load_spec(&request, &spec, err);
    if (status == DP_OK) {
        status = load_cluster(&request, &spec, &cluster, err);
    }
    if (status == DP_OK) {
        status = load_profile(ctl, &request, &cluster, &profile, err);
    }
    if (status != DP_OK) {
        return status;
    }
    DP_AUTO_FREE struct dp_planner_node *nodes = NULL;
    struct dp_planner_resources resources = {.profile = &profile};
    dp_planner_cluster_nodes(&cluster, &nodes, &resources.nodes_count);
    resources.nodes = nodes;
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = {0};
    status = dp_planner_plan(&spec, &resources, NULL, &plan, err);
    return status == DP_OK ? write_plan(ctl, &request, &plan, err) : status;
}
