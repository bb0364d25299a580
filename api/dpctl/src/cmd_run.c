// dpctl run: the whole way on one machine.

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "connect.h"
#include "dp/cleanup.h"
#include "dp/client.h"
#include "dp/spec.h"
#include "local.h"
#include "local_files.h"

enum { KEY_NODES = 1, KEY_SLOTS, KEY_KEEP, KEY_SET, KEY_NO_LEARN };

static const struct argp_option options[] = {
    {"nodes", KEY_NODES, "COUNT", 0, "agents of the local cluster, at least (2)", 0},
    {"slots", KEY_SLOTS, "COUNT", 0, "ranks per agent, at least (as many as the job needs)", 0},
    {"set", KEY_SET, "KEY=VALUE", 0, "override a key of the job (repeatable)", 0},
    {"no-learn", KEY_NO_LEARN, NULL, 0, "do not correct profiles by what this run takes", 0},
    {"keep", KEY_KEEP, NULL, 0, "leave the local cluster running afterwards", 0},
    {0},
};

struct request {
    const char *file;
    struct local_options local;
    struct dpctl_sets sets;
    bool keep;
};

static error_t handle(int key, char *arg, struct argp_state *state)
{
    struct request *request = state->input;
    switch (key) {
    case KEY_NODES:
        request->local.nodes = (int)dpctl_number(state, "--nodes", arg, 1, DP_LOCAL_NODES_MAX);
        return 0;
    case KEY_SLOTS:
        request->local.slots = (int)dpctl_number(state, "--slots", arg, 1, DP_NODE_SLOTS_MAX);
        return 0;
    case KEY_KEEP:
        request->keep = true;
        return 0;
    case KEY_SET:
        dpctl_sets_take(state, arg, &request->sets);
        return 0;
    case KEY_NO_LEARN:
        dpctl_sets_no_learn(state, &request->sets);
        return 0;
    default:
        return dpctl_handle_job_file(key, arg, state, &request->file);
    }
}

// The cluster, large enough, and the job on it. Until the job is there, the lock keeps another
// `dpctl run` from stopping a cluster that looks idle.
static dp_status start(struct dpctl *ctl, const struct request *request, const struct dp_buf *toml,
                       struct dp_client **ret_client, struct dp_arena *arena, Dp__V1__Job **ret_job,
                       struct dp_error *err)
{
    DP_AUTO_CLOSE int lock_fd = -1;
    dp_status status = local_up(ctl, &request->local, &lock_fd, err);
    if (status != DP_OK) {
        return status;
    }
    if (interrupted()) {
        return dp_fail(err, DP_INTERRUPTED,
                       "interrupted before the job was submitted; the local cluster goes on, "
                       "`dpctl local down` stops it");
    }
    ctl->controller = NULL; // the local cluster, whatever the environment names
    status = connect_controller(ctl, ret_client, err);
    if (status == DP_OK) {
        status = submit_job(*ret_client, toml, request->file, NULL, 0, arena, ret_job, err);
    }
    return status;
}

static dp_status follow_and_report(struct dpctl *ctl, struct dp_client *client, const char *id,
                                   struct dp_arena *arena, struct dp_error *err)
{
    Dp__V1__Job *job = NULL;
    dp_status status = follow_job(ctl, client, id, false, 0, arena, &job, err);
    if (status != DP_OK) {
        return status;
    }
    dp_status report = print_report(ctl, client, id, err);
    status = job_outcome(job, err);
    return status == DP_OK ? report : status;
}

// Whether the local cluster is down now.
static bool wind_up(struct dpctl *ctl)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf busy = {0};
    struct dp_error err = {0};
    bool down = false;
    if (local_down_if_idle(ctl, &busy, &down, &err) != DP_OK) {
        fprintf(stderr, "warning: the local cluster did not stop: %s\n", err.message);
    }
    if (busy.length > 0) {
        fprintf(stderr, "the local cluster is left running: %s on it\n", busy.bytes);
    }
    return down;
}

dp_status dpctl_cmd_run(struct dpctl *ctl, int argc, char **argv, struct dp_error *err)
{
    static const struct dpctl_syntax syntax = {
        .arguments = "JOB.toml",
        .doc = "Trains a job on this machine: starts the local cluster, submits the job, follows "
               "it, prints the report and stops what it started.\v"
               "A local cluster that ran before is used and left running; so is one that other "
               "jobs are on. It grows for a job that needs more ranks, while no job is on it. "
               "Ctrl-C leaves the job running and says how to come back.\n",
        .exits = "0 completed, 3 the job file is wrong, 6 jobs are in the way, 7 it does not fit, "
                 "9 the job failed, 10 it was cancelled, 130 Ctrl-C",
        .offline = true,
        .options = options,
        .handle = handle,
    };
    struct request request = {0};
    dpctl_parse(ctl, &syntax, &request, argc, argv);
    interrupted(); // from here on Ctrl-C is ours
    struct dp_job_spec spec;
    DP_CLEANUP(dp_buf_deinit) struct dp_buf toml = {0};
    dp_status status = dp_job_spec_load(request.file, &spec, err);
    if (status == DP_OK) {
        status = dpctl_sets_apply(&request.sets, &spec, err);
    }
    if (status != DP_OK) {
        return status;
    }
    dp_job_spec_write(&spec, &toml);
    request.local.ranks = dp_job_spec_ranks(&spec, NULL);
    request.local.temporary = !request.keep;
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    AUTO_CLIENT struct dp_client *client = NULL;
    Dp__V1__Job *job = NULL;
    status = start(ctl, &request, &toml, &client, &arena, &job, err);
    if (status == DP_OK) {
        status = follow_and_report(ctl, client, job->id, &arena, err);
    }
    dp_client_close(dp_steal(client));
    if (status == DP_INTERRUPTED) {
        return status;
    }
    bool down = !request.keep && wind_up(ctl);
    if (job != NULL) {
        print_next(job->id, down);
    }
    return status;
}
