#include "connect.h"

#include <errno.h>
#include <pwd.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dp/check.h"
#include "dp/cleanup.h"
#include "local.h"

void connect_as_user(struct dp_client *client)
{
    const char *user = getenv("USER");
    const struct passwd *entry = user == NULL || user[0] == '\0' ? getpwuid(geteuid()) : NULL;
    user = entry != NULL ? entry->pw_name : user;
    if (user != NULL) {
        dp_client_set_user(client, user);
    }
}

dp_status connect_controller(struct dpctl *ctl, struct dp_client **ret_client, struct dp_error *err)
{
    char address[DP_ADDRESS_MAX];
    dp_status status = local_find_controller(ctl, address, err);
    if (status == DP_OK) {
        status = dp_client_open(address, 3000, ret_client, err);
    }
    if (status == DP_OK) {
        connect_as_user(*ret_client);
    }
    return status;
}

void connect_cleanup(struct dp_client **client)
{
    dp_client_close(*client);
}

dp_status newest_job(struct dp_client *client, const char *given, bool active_first,
                     struct dp_arena *arena, const char **ret_id, struct dp_error *err)
{
    if (given != NULL) {
        *ret_id = given;
        return DP_OK;
    }
    Dp__V1__ListJobsRequest list = DP__V1__LIST_JOBS_REQUEST__INIT;
    list.limit = 1;
    list.active = active_first;
    Dp__V1__ListJobsResponse *jobs = NULL;
    dp_status status = dp_client_list_jobs(client, &list, arena, &jobs, err);
    if (status == DP_OK && jobs->n_jobs == 0 && active_first) {
        return newest_job(client, NULL, false, arena, ret_id, err);
    }
    if (status == DP_OK && jobs->n_jobs == 0) {
        return dp_fail(err, DP_NOT_FOUND, "there is no job yet; `dpctl submit FILE` makes one");
    }
    if (status == DP_OK) {
        *ret_id = jobs->jobs[0]->id;
    }
    return status;
}

const char *job_state_text(Dp__V1__JobState state)
{
    const ProtobufCEnumValue *value =
        protobuf_c_enum_descriptor_get_value(&dp__v1__job_state__descriptor, (int)state);
    return value == NULL ? "UNKNOWN" : value->name + strlen("JOB_");
}

bool job_state_is_final(Dp__V1__JobState state)
{
    return state == DP__V1__JOB_STATE__JOB_COMPLETED || state == DP__V1__JOB_STATE__JOB_FAILED ||
           state == DP__V1__JOB_STATE__JOB_CANCELLED;
}

dp_status job_outcome(const Dp__V1__Job *job, struct dp_error *err)
{
    switch (job->state) {
    case DP__V1__JOB_STATE__JOB_COMPLETED:
        return DP_OK;
    case DP__V1__JOB_STATE__JOB_CANCELLED:
        return dp_fail(err, DP_JOB_CANCELLED, "%s was cancelled: %s", job->id, job->message);
    default:
        return dp_fail(err,
                       strcmp(job->reason, "Unschedulable") == 0 ? DP_UNSCHEDULABLE : DP_JOB_FAILED,
                       "%s failed (%s): %s", job->id, job->reason, job->message);
    }
}

const char *plan_text(char buffer[192], const Dp__V1__Plan *plan)
{
    char microbatches[64], samples[64], chunks[16] = "";
    if (plan->virtual_stages > 0) {
        snprintf(chunks, sizeof chunks, " v%u", plan->virtual_stages);
    }
    snprintf(buffer, 192, "%s%s, pipeline %u, expert %u, data %u, %s of %s", plan->schedule, chunks,
             plan->pipeline, plan->expert, plan->data,
             dpctl_count(microbatches, plan->microbatches, "micro-batch"),
             dpctl_count(samples, plan->micro_batch_size, "sample"));
    return buffer;
}

dp_status fresh_request_id(char ret_id[DP_NAME_MAX], struct dp_error *err)
{
    uint64_t random[2] = {0};
    if (getentropy(random, sizeof random) != 0) {
        return dp_fail_errno(err, errno, "no randomness for a request id");
    }
    snprintf(ret_id, DP_NAME_MAX, "dpctl-%016llx%016llx", (unsigned long long)random[0],
             (unsigned long long)random[1]);
    return DP_OK;
}

dp_status submit_job(struct dp_client *client, const struct dp_buf *toml, const char *file,
                     const char *request_id, uint64_t check_index, struct dp_arena *arena,
                     Dp__V1__Job **ret_job, struct dp_error *err)
{
    char fresh[DP_NAME_MAX];
    if (fresh_request_id(fresh, err) != DP_OK) {
        return err->status;
    }
    Dp__V1__SubmitJobRequest submit = DP__V1__SUBMIT_JOB_REQUEST__INIT;
    submit.job_toml = (ProtobufCBinaryData){toml->length, (uint8_t *)toml->bytes};
    submit.file = (char *)file;
    submit.check_index = check_index;
    submit.request_id = request_id == NULL ? fresh : (char *)request_id;
    return dp_client_submit_job(client, &submit, arena, ret_job, err);
}

static volatile sig_atomic_t interrupt_seen;

static void on_interrupt(int signal_number)
{
    (void)signal_number;
    interrupt_seen = 1;
}

bool interrupted(void)
{
    static bool installed;
    if (!installed) {
        installed = true;
        // A second one does not wait for anything. What is being written meanwhile is not lost.
        struct sigaction action = {.sa_handler = on_interrupt,
                                   .sa_flags = SA_RESETHAND | SA_RESTART};
        DP_CHECK(sigaction(SIGINT, &action, NULL) == 0 && sigaction(SIGTERM, &action, NULL) == 0);
    }
    return interrupt_seen != 0;
}
