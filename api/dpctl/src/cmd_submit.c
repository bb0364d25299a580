// dpctl submit and validate.

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "connect.h"
#include "dp/cleanup.h"
#include "dp/rand.h"
#include "dp/spec.h"

enum { KEY_WAIT = 1, KEY_SET, KEY_REQUEST_ID };

static const struct argp_option submit_options[] = {
    {"wait", KEY_WAIT, NULL, 0, "follow the job; the exit code is the job's", 0},
    {"quiet", 'q', NULL, 0, "print the job's id and nothing else", 0},
    {"set", KEY_SET, "KEY=VALUE", 0, "override a key of the job (repeatable)", 0},
    {"request-id", KEY_REQUEST_ID, "ID", 0, "the same id gives the same job", 0},
    {0},
};
static const struct argp_option validate_options[] = {
    {"set", KEY_SET, "KEY=VALUE", 0, "override a key of the job (repeatable)", 0},
    {0},
};

struct request {
    const char *file, *request_id;
    struct dpctl_sets sets;
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
    case ARGP_KEY_ARG:
        dpctl_take_argument(state, "job file", arg, &request->file);
        return 0;
    case ARGP_KEY_END:
        if (request->file == NULL) {
            argp_error(state, "a job file is missing (- reads standard input)");
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static dp_status load(const struct request *request, struct dp_job_spec *ret_spec,
                      struct dp_buf *ret_toml, struct dp_error *err)
{
    dp_status status = dp_job_spec_load(request->file, ret_spec, err);
    if (status == DP_OK) {
        status = dpctl_sets_apply(&request->sets, ret_spec, err);
    }
    if (status == DP_OK) {
        dp_job_spec_write(ret_spec, ret_toml);
    }
    return status;
}

static void print_submitted(struct dpctl *ctl, const struct request *request, const char *id)
{
    if (request->quiet) {
        puts(id);
    } else if (ctl->json) {
        dpctl_print_json(json_pack("{s:s}", "id", id), "dp.submitted/1");
    } else {
        printf("%s submitted. Look with `dpctl status %s`, follow its output with "
               "`dpctl logs -f %s`.\n",
               id, id, id);
    }
    fflush(stdout);
}

dp_status dpctl_cmd_submit(struct dpctl *ctl, int argc, char **argv, struct dp_error *err)
{
    static const struct dpctl_syntax syntax = {
        "JOB.toml",
        "Hands a job to the controller and returns its id.\v"
        "Exit codes: 0 submitted (with --wait: completed), 3 the job file is wrong, "
        "7 it can never fit, 8 no controller, 9 and 10 with --wait: failed, cancelled.\n",
        submit_options, handle};
    struct request request = {0};
    dpctl_parse(ctl, &syntax, &request, argc, argv);
    struct dp_job_spec spec;
    DP_CLEANUP(dp_buf_deinit) struct dp_buf toml = {0};
    dp_status status = load(&request, &spec, &toml, err);
    if (status != DP_OK) {
        return status;
    }
    AUTO_CLIENT struct dp_client *client = NULL;
    status = connect_controller(ctl, &client, err);
    if (status != DP_OK) {
        return status;
    }
    char fresh[DP_NAME_MAX];
    uint64_t random[2] = {0};
    if (getentropy(random, sizeof random) != 0) {
        return dp_fail_errno(err, errno, "no randomness for a request id");
    }
    snprintf(fresh, sizeof fresh, "dpctl-%016llx%016llx", (unsigned long long)random[0],
             (unsigned long long)random[1]);
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__SubmitJobRequest submit = DP__V1__SUBMIT_JOB_REQUEST__INIT;
    submit.job_toml = (ProtobufCBinaryData){toml.length, (uint8_t *)toml.bytes};
    submit.file = (char *)request.file;
    submit.request_id = request.request_id == NULL ? fresh : (char *)request.request_id;
    Dp__V1__Job *job = NULL;
    status = dp_client_submit_job(client, &submit, &arena, &job, err);
    if (status != DP_OK) {
        return status;
    }
    print_submitted(ctl, &request, job->id);
    if (!request.wait) {
        return DP_OK;
    }
    interrupted();
    status = follow_job(ctl, client, job->id, request.quiet, &arena, &job, err);
    return status == DP_OK ? job_outcome(job, err) : status;
}

dp_status dpctl_cmd_validate(struct dpctl *ctl, int argc, char **argv, struct dp_error *err)
{
    static const struct dpctl_syntax syntax = {
        "JOB.toml",
        "Checks a job file without a controller; every problem is listed with its position.\v"
        "Exit codes: 0 valid, 3 not valid, 4 no such file.\n",
        validate_options, handle};
    struct request request = {0};
    dpctl_parse(ctl, &syntax, &request, argc, argv);
    struct dp_job_spec spec;
    DP_CLEANUP(dp_buf_deinit) struct dp_buf toml = {0};
    dp_status status = load(&request, &spec, &toml, err);
    if (status != DP_OK) {
        return status;
    }
    bool data_missing = spec.resources.device != DP_DEVICE_SIM && spec.data.path[0] != '\0' &&
                        access(spec.data.path, R_OK) != 0;
    if (data_missing) {
        fprintf(stderr, "warning: %s is not readable here; the nodes must have it\n",
                spec.data.path);
    }
    if (ctl->json) {
        dpctl_print_json(json_pack("{s:b, s:s}", "valid", 1, "job_toml", toml.bytes),
                         "dp.validation/1");
    } else {
        printf("%s: valid, %lld parameters, %lld active per token\n", request.file,
               (long long)dp_model_parameters(&spec.model),
               (long long)dp_model_active_parameters(&spec.model));
    }
    return DP_OK;
}
