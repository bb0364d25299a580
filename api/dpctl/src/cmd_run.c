// dpctl run: the whole way on one machine. dpctl local: its cluster alone.

#include <stdlib.h>
#include <string.h>

#include "connect.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/client.h"
#include "dp/spec.h"
#include "local.h"

enum { KEY_NODES = 1, KEY_SLOTS, KEY_KEEP, KEY_SET };

static const struct argp_option local_options_table[] = {
    {"nodes", KEY_NODES, "COUNT", 0, "agents of the local cluster (2)", 0},
    {"slots", KEY_SLOTS, "COUNT", 0, "ranks per agent (2)", 0},
    {0},
};
static const struct argp_option run_options[] = {
    {"nodes", KEY_NODES, "COUNT", 0, "agents of the local cluster (2)", 0},
    {"slots", KEY_SLOTS, "COUNT", 0, "ranks per agent (as many as the job needs)", 0},
    {"set", KEY_SET, "KEY=VALUE", 0, "override a key of the job (repeatable)", 0},
    {"keep", KEY_KEEP, NULL, 0, "leave the local cluster running afterwards", 0},
    {0},
};

struct request {
    const char *subject;
    struct local_options local;
    struct dpctl_sets sets;
    bool keep;
};

static error_t handle(int key, char *arg, struct argp_state *state)
{
    struct request *request = state->input;
    switch (key) {
    case KEY_NODES:
        request->local.nodes = (int)dpctl_number(state, "--nodes", arg, 1, 64);
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
    case ARGP_KEY_ARG:
        if (request->subject != NULL) {
            argp_error(state, "one argument only, not also \"%s\"", arg);
        }
        request->subject = arg;
        return 0;
    case ARGP_KEY_END:
        if (request->subject == NULL) {
            argp_error(state, "an argument is missing");
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

// Ranks that the job asks for, spread over the agents.
static int slots_for(const struct dp_job_spec *spec, int nodes)
{
    int ranks = spec->resources.ranks;
    if (ranks == 0 && spec->parallel.pipeline > 0) {
        ranks = spec->parallel.pipeline * (spec->parallel.data > 0 ? spec->parallel.data : 1);
    }
    int slots = (ranks + nodes - 1) / nodes;
    return slots < 2 ? 2 : slots;
}

static dp_status submit_and_follow(struct dpctl *ctl, const struct dp_buf *toml, const char *file,
                                   struct dp_error *err)
{
    AUTO_CLIENT struct dp_client *client = NULL;
    dp_status status = connect_controller(ctl, &client, err);
    if (status != DP_OK) {
        return status;
    }
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__SubmitJobRequest request = DP__V1__SUBMIT_JOB_REQUEST__INIT;
    request.job_toml = (ProtobufCBinaryData){toml->length, (uint8_t *)toml->bytes};
    request.file = (char *)file;
    Dp__V1__Job *job = NULL;
    status = dp_client_submit_job(client, &request, &arena, &job, err);
    if (status != DP_OK) {
        return status;
    }
    const char *id = job->id;
    status = follow_job(ctl, client, id, false, &arena, &job, err);
    if (status != DP_OK) {
        return status;
    }
    dp_status report = print_report(ctl, client, id, err);
    status = job_outcome(job, err);
    return status == DP_OK ? report : status;
}

dp_status dpctl_cmd_run(struct dpctl *ctl, int argc, char **argv, struct dp_error *err)
{
    static const struct dpctl_syntax syntax = {
        "JOB.toml",
        "Trains a job on this machine: starts the local cluster, submits the job, follows it, "
        "prints the report and stops what it started.\v"
        "A local cluster that ran before is used and left running. Ctrl-C leaves the job running "
        "and says how to come back.\n\nExit codes: 0 completed, 3 the job file is wrong, "
        "7 it does not fit, 9 the job failed, 10 it was cancelled, 130 Ctrl-C.\n",
        run_options, handle};
    struct request request = {0};
    dpctl_parse(ctl, &syntax, &request, argc, argv);
    interrupted(); // from here on Ctrl-C is ours
    struct dp_job_spec spec;
    DP_CLEANUP(dp_buf_deinit) struct dp_buf toml = {0};
    dp_status status = dp_job_spec_load(request.subject, &spec, err);
    if (status == DP_OK) {
        status = dpctl_sets_apply(&request.sets, &spec, err);
    }
    if (status != DP_OK) {
        return status;
    }
    dp_job_spec_write(&spec, &toml);
    int nodes = request.local.nodes > 0 ? request.local.nodes : 2;
    request.local.nodes = nodes;
    if (request.local.slots == 0) {
        request.local.slots = slots_for(&spec, nodes);
    }
    bool started = false;
    status = local_up(ctl, &request.local, &started, err);
    if (status != DP_OK) {
        return status;
    }
    ctl->controller = NULL; // the local cluster, whatever the environment names
    status = submit_and_follow(ctl, &toml, request.subject, err);
    if (started && !request.keep && status != DP_INTERRUPTED) {
        struct dp_error down_err = {0};
        dp_status down = local_down(ctl, &down_err);
        if (down != DP_OK) {
            fprintf(stderr, "warning: the local cluster did not stop: %s\n", down_err.message);
        }
    }
    return status;
}

static dp_status print_status(struct dpctl *ctl, struct dp_error *err)
{
    struct local_part parts[80];
    int count = local_parts(ctl, parts, (int)DP_ARRAY_LENGTH(parts));
    char address[DP_ADDRESS_MAX] = "";
    struct dp_error ignored = {0};
    const char *named = ctl->controller;
    ctl->controller = NULL;
    local_find_controller(ctl, address, &ignored);
    ctl->controller = named;
    int running = 0;
    for (int i = 0; i < count; i++) {
        running += parts[i].pid != 0;
    }
    if (ctl->json) {
        json_t *rows = json_array();
        for (int i = 0; i < count; i++) {
            json_array_append_new(rows,
                                  json_pack("{s:s, s:b, s:i}", "name", parts[i].name, "running",
                                            parts[i].pid != 0, "pid", parts[i].pid));
        }
        dpctl_print_json(json_pack("{s:s, s:s, s:o}", "address", address, "state_directory",
                                   ctl->state_directory, "parts", rows),
                         "dp.local/1");
    } else if (count == 0 || running == 0) {
        puts("no local cluster runs");
    } else {
        DP_CLEANUP(dpctl_table_deinit) struct dpctl_table table = {.columns = 3};
        dpctl_cell(&table, "PART");
        dpctl_cell(&table, "PID");
        dpctl_cell(&table, "STATE");
        for (int i = 0; i < count; i++) {
            dpctl_cell(&table, "%s", parts[i].name);
            dpctl_cell(&table, parts[i].pid != 0 ? "%d" : "", parts[i].pid);
            dpctl_cell(&table, "%s",
                       parts[i].pid == 0 ? "gone (dpctl local up restarts it)"
                       : i == 0          ? address
                                         : "running");
        }
        dpctl_table_print(&table);
    }
    return running == count && count > 0
               ? DP_OK
               : dp_fail(err, DP_UNAVAILABLE, "%d of %d parts run", running, count);
}

dp_status dpctl_cmd_local(struct dpctl *ctl, int argc, char **argv, struct dp_error *err)
{
    static const struct dpctl_syntax syntax = {
        "up|down|status",
        "The local cluster: a controller and agents on loopback, for one user on one machine.\v"
        "`up` may be repeated: it restarts what died and touches nothing that runs. `down` cancels "
        "what runs. State and logs lie under $XDG_STATE_HOME/dp/local.\n",
        local_options_table, handle};
    struct request request = {0};
    dpctl_parse(ctl, &syntax, &request, argc, argv);
    if (strcmp(request.subject, "up") == 0) {
        dp_status status = local_up(ctl, &request.local, NULL, err);
        return status == DP_OK ? print_status(ctl, err) : status;
    }
    if (strcmp(request.subject, "down") == 0) {
        return local_down(ctl, err);
    }
    if (strcmp(request.subject, "status") == 0) {
        return print_status(ctl, err);
    }
    return dp_fail(err, DP_USAGE, "unknown verb \"%s\"; there are up, down and status",
                   request.subject);
}
