// A rank that trains no further: it serves what it has until it is told to stop.
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/log.h"
#include "dp/state.h"
#include "job.h"

// What is served, and by whom.
struct service {
    struct dp_state state;
    struct dp_state_server *server; // NULL = it could not be
    pthread_t thread;
    char address[DP_ADDRESS_MAX];
};

bool job_may_hold(const struct job *job, dp_status status)
{
    dp_recovery recovery = DP_RECOVERY_OFF;
    struct dp_error none;
    return (status == DP_UNAVAILABLE || status == DP_TIMEOUT) &&
           dp_recovery_parse(job->spec.recovery.policy, &recovery, &none) == DP_OK &&
           recovery == DP_RECOVERY_AUTO;
}

static void *run_server(void *argument)
{
    dp_state_server_run(argument);
    return NULL;
}

static void begin_service(struct job *job, struct service *service)
{
    struct dp_error err;
    *service = (struct service){0};
    dp_trainer_state(job->trainer, &service->state);
    if (dp_state_server_open(&service->state, job->host, (int32_t)job->rank, job->token,
                             service->address, &service->server, &err) != DP_OK) {
        char reason[DP_ERROR_MESSAGE_MAX];
        dp_log_warn("rank.not_served", "reason=%s",
                    dp_log_quote(reason, sizeof reason, err.message));
        service->address[0] = '\0';
        return;
    }
    DP_CHECK(pthread_create(&service->thread, NULL, run_server, service->server) == 0);
}

static void end_service(struct service *service)
{
    if (service->server != NULL) {
        dp_state_server_close(service->server);
        pthread_join(service->thread, NULL);
        dp_state_server_free(service->server);
    }
    dp_state_deinit(&service->state);
}

static void report_held(struct job *job, const struct dp_trainer_held *held, const char *address,
                        const char *why)
{
    Dp__V1__RankHeld message = DP__V1__RANK_HELD__INIT;
    message.step = (uint64_t)held->step;
    message.norm_known = held->has_norm;
    message.grad_norm = held->norm;
    message.address = (char *)(uintptr_t)address;
    message.why = (char *)(uintptr_t)why;
    message.gradients_whole = held->has_gradients;
    Dp__V1__RankReport report = DP__V1__RANK_REPORT__INIT;
    report.report_case = DP__V1__RANK_REPORT__REPORT_HELD;
    report.held = &message;
    control_report(job->control, DP_LINK_SLOT_HELD, &report);
    char reason[DP_ERROR_MESSAGE_MAX];
    dp_log_info("rank.held", "step=%lld address=%s gradients=%d norm=%.9g why=%s",
                (long long)held->step, address, held->has_gradients, held->norm,
                dp_log_quote(reason, sizeof reason, why));
}

// Until an order that changes what is held, or to stop (false).
static bool await_settle(struct job *job, const struct dp_trainer_held *held, const char *address,
                         const char *why, struct control_settle *ret_settle)
{
    while (control_wait_settle(job->control, ret_settle)) {
        if (ret_settle->step != held->step) {
            return true;
        }
        report_held(job, held, address, why); // told twice
    }
    return false;
}

dp_status job_hold(struct job *job, const char *why, struct dp_error *err)
{
    for (;;) {
        struct dp_trainer_held held;
        struct service service;
        struct control_settle settle;
        dp_trainer_hold(job->trainer, &held);
        begin_service(job, &service);
        report_held(job, &held, service.address, why);
        const bool settles = await_settle(job, &held, service.address, why, &settle);
        end_service(&service);
        if (!settles) {
            return DP_OK;
        }
        dp_status status = dp_trainer_settle(job->trainer, settle.step, settle.grad_norm, err);
        if (status != DP_OK && status != DP_CONFLICT) {
            return status;
        }
        if (status == DP_CONFLICT) {
            char reason[DP_ERROR_MESSAGE_MAX];
            dp_log_warn("rank.not_settled", "reason=%s",
                        dp_log_quote(reason, sizeof reason, err->message));
        }
    }
}
