// dpctl reassign: another layout for a job that runs; and what was decided about jobs' ranks.
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "connect.h"
#include "decisions.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/method.h"
#include "dp/plan_text.h"

enum { KEY_AWAY = 1, KEY_ADVISE, KEY_ANSWER };

static const struct argp_option options[] = {
    {"away", KEY_AWAY, "NODE", 0, "its ranks leave this node", 0},
    {"answer", KEY_ANSWER, "KIND", 0,
     "carry this answer out, whatever it is worth: shift-microbatches, move-layers, change-order, "
     "swap-ranks, spare, experts, combined, restart, grow",
     0},
    {"advise", KEY_ADVISE, NULL, 0, "tell what would be best, and leave it", 0},
    {0},
};

static error_t handle(int key, char *arg, struct argp_state *state)
{
    Dp__V1__ReassignJobRequest *request = state->input;
    switch (key) {
    case KEY_AWAY:
        request->away = arg;
        return 0;
    case KEY_ANSWER:
        request->answer = arg;
        return 0;
    case KEY_ADVISE:
        request->advise = true;
        return 0;
    case ARGP_KEY_ARG:
        if (request->id[0] != '\0') {
            argp_error(state, "unexpected argument \"%s\"", arg);
        }
        request->id = arg;
        return 0;
    case ARGP_KEY_END:
        if (request->id[0] == '\0') {
            argp_error(state, "say which job (`dpctl jobs` lists them)");
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

dp_status dpctl_cmd_reassign(struct dpctl *ctl, int argc, char **argv, struct dp_error *err)
{
    static const struct dpctl_syntax syntax = {
        .arguments = "JOB",
        .doc = "Looks for a better layout of a running job and carries it out: new ranks start "
               "beside the old ones and take over what these hold. Returns at once; `dpctl "
               "status` shows what was decided and what came of it.",
        .exits = "0 ok, 3 no such answer, 4 no such job, 6 it does not run, 8 no controller",
        .options = options,
        .handle = handle,
    };
    Dp__V1__ReassignJobRequest request = DP__V1__REASSIGN_JOB_REQUEST__INIT;
    dpctl_parse(ctl, &syntax, &request, argc, argv);
    AUTO_CLIENT struct dp_client *client = NULL;
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__Job *job = NULL;
    dp_status status = connect_controller(ctl, &client, err);
    if (status == DP_OK) {
        status = dp_client_reassign_job(client, &request, &arena, &job, err);
    }
    if (status != DP_OK) {
        return status;
    }
    if (ctl->json) {
        dpctl_print_json(ctl, dp_message_to_json(&job->base), "dp.job/1");
    } else {
        printf("%s  a layout is being looked for; `dpctl status %s` shows what is decided\n",
               job->id, job->id);
    }
    return DP_OK;
}

static const char *state_text(Dp__V1__DecisionState state)
{
    const ProtobufCEnumValue *value =
        protobuf_c_enum_descriptor_get_value(&dp__v1__decision_state__descriptor, (int)state);
    return value == NULL ? "?" : value->name + strlen("DECISION_");
}

static void print_figures(const Dp__V1__Decision *decision)
{
    char before[32], predicted[32], measured[32], pause[32];
    if (decision->predicted_step_s > 0) {
        printf("           step     %s -> %s predicted",
               dpctl_seconds(before, decision->before_step_s),
               dpctl_seconds(predicted, decision->predicted_step_s));
        if (decision->measured_step_s > 0) {
            printf(", %s measured; trust %.2f -> %.2f",
                   dpctl_seconds(measured, decision->measured_step_s), decision->trust_before,
                   decision->trust_after);
        }
        puts("");
    }
    if (decision->measured_pause_s > 0) {
        printf("           pause    %s\n", dpctl_seconds(pause, decision->measured_pause_s));
    }
}

// On a terminal no line is longer than it is wide; what is piped stays a line.
static void print_text(const char *label, const char *text)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf line = {0};
    dp_plan_text_wrap(label, text, isatty(STDOUT_FILENO) ? dpctl_width(STDOUT_FILENO) : INT_MAX,
                      &line);
    dpctl_print(&line);
}

void dpctl_print_decisions(Dp__V1__Decision *const *decisions, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const Dp__V1__Decision *decision = decisions[i];
        char time[32];
        printf("decision %-2llu %s  %s  %s at step %llu\n", (unsigned long long)decision->number,
               dp_clock_format_utc(time, decision->time_ns), state_text(decision->state),
               decision->kind, (unsigned long long)decision->step);
        print_text("           cause    ", decision->cause);
        print_text("           answer   ", decision->answer);
        if (decision->outcome[0] != '\0') {
            print_text("           outcome  ", decision->outcome);
        }
        print_figures(decision);
    }
}

bool dpctl_verdict_stands(const Dp__V1__Job *job, const Dp__V1__StragglerVerdict *verdict)
{
    if (strcmp(verdict->state, "healthy") == 0 || verdict->attempt != job->attempt ||
        job_state_is_final(job->state)) {
        return false;
    }
    // A new layout is told nothing anew about a rank that has stayed where it was.
    bool stands = verdict->epoch == job->epoch;
    for (size_t i = 0; !stands && verdict->has_rank && i < job->n_ranks; i++) {
        stands =
            job->ranks[i]->rank == verdict->rank && strcmp(job->ranks[i]->node, verdict->node) == 0;
    }
    return stands;
}

void dpctl_verdict_text(char *buffer, size_t size, const Dp__V1__StragglerVerdict *verdict)
{
    char who[64] = "the job";
    if (verdict->has_peer) {
        snprintf(who, sizeof(who), "link %u-%u", verdict->rank, verdict->peer);
    } else if (verdict->has_rank) {
        snprintf(who, sizeof(who), "rank %u on %.32s", verdict->rank, verdict->node);
    } else if (verdict->has_stage) {
        snprintf(who, sizeof(who), "stage %u", verdict->stage);
    }
    snprintf(buffer, size, "%s: %s, %s, x%.2f since step %llu", who, verdict->state, verdict->cause,
             verdict->slowdown, (unsigned long long)verdict->onset_step);
}

void dpctl_print_verdicts(const char *label, const Dp__V1__Job *job)
{
    for (size_t i = 0; i < job->n_stragglers; i++) {
        char text[256];
        dpctl_verdict_text(text, sizeof(text), job->stragglers[i]);
        if (dpctl_verdict_stands(job, job->stragglers[i])) {
            printf("%s%s\n", label, text);
        }
    }
}
