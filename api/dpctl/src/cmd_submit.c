// dpctl submit and validate.

#include <string.h>
#include <unistd.h>

#include "connect.h"
#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/planner.h"
#include "dp/spec.h"

enum {
    KEY_WAIT = 1,
    KEY_SET,
    KEY_REQUEST_ID,
    KEY_NO_LEARN,
    KEY_CHECK_INDEX,
    KEY_USER,
    KEY_PRIORITY
};

static const struct argp_option submit_options[] = {
    {"wait", KEY_WAIT, NULL, 0, "follow the job; the exit code is the job's", 0},
    {"quiet", 'q', NULL, 0, "print the job's id and nothing else", 0},
    {"set", KEY_SET, "KEY=VALUE", 0, "override a key of the job (repeatable)", 0},
    {"no-learn", KEY_NO_LEARN, NULL, 0, "do not correct profiles by what this run takes", 0},
    {"request-id", KEY_REQUEST_ID, "ID", 0,
     "submitting again under the same id gives the job that is there", 0},
    {"priority", KEY_PRIORITY, "N", 0, "jobs of a higher one go first (0)", 0},
    {"user", KEY_USER, "NAME", 0, "for whom, as quotas see it ($USER)", 0},
    {"check-index", KEY_CHECK_INDEX, "N", 0,
     "only while the cluster is as `dpctl plan --against` or the last submit saw it", 0},
    {0},
};
static const struct argp_option validate_options[] = {
    {"set", KEY_SET, "KEY=VALUE", 0, "override a key of the job (repeatable)", 0},
    {0},
};

struct request {
    const char *file, *request_id, *user;
    long check_index;
    struct dpctl_sets sets;
    char priority[48]; // borrowed by sets
    bool wait, quiet;
};

static error_t handle(int key, char *arg, struct argp_state *state)
{
    struct request *request = state->input;
    switch (key) {
    case KEY_WAIT:
        request->wait = true;
        return 0;
    case 'q':
        request->quiet = true;
        return 0;
    case KEY_REQUEST_ID:
        request->request_id = arg;
        return 0;
    case KEY_SET:
        dpctl_sets_take(state, arg, &request->sets);
        return 0;
    case KEY_USER:
        request->user = arg;
        return 0;
    case KEY_CHECK_INDEX:
        request->check_index = dpctl_number(state, "--check-index", arg, 1, 1l << 53);
        return 0;
    case KEY_PRIORITY:
        snprintf(request->priority, sizeof(request->priority), "queue.priority=%ld",
                 dpctl_number(state, "--priority", arg, -DP_PRIORITY_MAX, DP_PRIORITY_MAX));
        dpctl_sets_take(state, request->priority, &request->sets);
        return 0;
    case KEY_NO_LEARN:
        dpctl_sets_no_learn(state, &request->sets);
        return 0;
    default:
        return dpctl_handle_job_file(key, arg, state, &request->file);
    }
}

static dp_status load(const struct request *request, struct dp_diags *ret_problems,
                      struct dp_job_spec *ret_spec, struct dp_buf *ret_toml, struct dp_error *err)
{
    dp_status status = dp_job_spec_examine(request->file, ret_problems, ret_spec, err);
    if (status == DP_OK) {
        status = dpctl_sets_apply(&request->sets, ret_spec, err);
    }
    if (status == DP_OK) {
        status = dp_planner_check_schedule(ret_spec, err);
    }
    if (status == DP_OK) {
        dp_job_spec_write(ret_spec, ret_toml);
    }
    return status;
}

static void print_submitted(struct dpctl *ctl, const struct request *request,
                            const Dp__V1__Job *job)
{
    const char *id = job->id;
    if (request->quiet) {
        puts(id);
    } else if (ctl->json) {
        dpctl_print_json(ctl,
                         json_pack("{s:s, s:I}", "id", job->id, "index", (json_int_t)job->index),
                         "dp.submitted/1");
    } else if (request->wait) {
        printf("%s submitted\n", id);
    } else {
        printf("%s submitted. Follow it with `dpctl status -f %s`, see its ranks with "
               "`dpctl top %s`.\n",
               id, id, id);
    }
    fflush(stdout);
}

dp_status dpctl_cmd_submit(struct dpctl *ctl, int argc, char **argv, struct dp_error *err)
{
    static const struct dpctl_syntax syntax = {
        .arguments = "JOB.toml",
        .doc = "Hands a job to the controller and returns its id.",
        .exits = "0 submitted (with --wait: completed), 3 the job file is wrong, 4 no such file, "
                 "6 the request id belongs to another job, or the cluster's index is another, 8 no "
                 "controller; with --wait also 7 it "
                 "can never fit, 9 it failed, 10 it was cancelled, 130 Ctrl-C",
        .options = submit_options,
        .handle = handle,
    };
    struct request request = {0};
    dpctl_parse(ctl, &syntax, &request, argc, argv);
    struct dp_job_spec spec;
    DP_CLEANUP(dp_diags_deinit) struct dp_diags problems = {0};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf toml = {0};
    dp_status status = load(&request, &problems, &spec, &toml, err);
    AUTO_CLIENT struct dp_client *client = NULL;
    if (status == DP_OK) {
        status = connect_controller(ctl, &client, err);
    }
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__Job *job = NULL;
    if (status == DP_OK) {
        if (request.user != NULL) {
            dp_client_set_user(client, request.user);
        }
        status = submit_job(client, &toml, request.file, request.request_id,
                            (uint64_t)request.check_index, &arena, &job, err);
    }
    if (status != DP_OK) {
        return status;
    }
    print_submitted(ctl, &request, job);
    if (!request.wait) {
        return DP_OK;
    }
    interrupted();
    status = follow_job(ctl, client, job->id, request.quiet, 0, &arena, &job, err);
    return status == DP_OK ? job_outcome(job, err) : status;
}

static void print_valid(struct dpctl *ctl, const struct request *request,
                        const struct dp_job_spec *spec, const struct dp_buf *toml)
{
    int64_t all = dp_model_parameters(&spec->model);
    int64_t active = dp_model_active_parameters(&spec->model);
    if (ctl->json) {
        dpctl_print_json(ctl,
                         json_pack("{s:b, s:s, s:I, s:I}", "valid", 1, "job_toml", toml->bytes,
                                   "parameters", (json_int_t)all, "active_parameters",
                                   (json_int_t)active),
                         "dp.validation/1");
        return;
    }
    char a[32], b[32];
    printf("%s: valid, %s parameters, %s active per token\n", request->file,
           dpctl_parameters(a, (double)all), dpctl_parameters(b, (double)active));
}

static void warn_if_missing(const char *path)
{
    // A pair of Megatron's may be named without its endings.
    DP_AUTO_FREE char *index = dp_asprintf("%s.idx", path);
    if (path[0] != '\0' && access(path, R_OK) != 0 && access(index, R_OK) != 0) {
        fprintf(stderr, "warning: %s is not readable here; the nodes must have it\n", path);
    }
}

dp_status dpctl_cmd_validate(struct dpctl *ctl, int argc, char **argv, struct dp_error *err)
{
    static const struct dpctl_syntax syntax = {
        .arguments = "JOB.toml",
        .doc = "Checks a job file without a controller; every problem is listed with its position.",
        .exits = "0 valid, 3 not valid, 4 no such file",
        .offline = true,
        .options = validate_options,
        .handle = handle,
    };
    struct request request = {0};
    dpctl_parse(ctl, &syntax, &request, argc, argv);
    struct dp_job_spec spec;
    DP_CLEANUP(dp_diags_deinit) struct dp_diags problems = {0};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf toml = {0};
    dp_status status = load(&request, &problems, &spec, &toml, err);
    if (dp_status_exit_code(status) == dp_status_exit_code(DP_INVALID) && ctl->json) {
        dpctl_print_json(
            ctl,
            json_pack("{s:b, s:o}", "valid", 0, "problems", dpctl_problems_json(&problems, err)),
            "dp.validation/1");
    }
    if (status != DP_OK) {
        return status;
    }
    if (spec.resources.device != DP_DEVICE_SIM) {
        warn_if_missing(spec.data.path);
        warn_if_missing(spec.checkpoint.resume);
    }
    print_valid(ctl, &request, &spec, &toml);
    return DP_OK;
}
