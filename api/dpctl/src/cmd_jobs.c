// dpctl jobs, status, cancel and checkpoint.

#include <stdlib.h>
#include <string.h>

#include "connect.h"
#include "decisions.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/method.h"
#include "queue.h"

enum { KEY_LIMIT = 1, KEY_ACTIVE, KEY_REASON, KEY_USER, KEY_QUEUED };

static const struct argp_option jobs_options[] = {
    {"limit", 'n', "COUNT", 0, "newest COUNT jobs (100)", 0},
    {"active", KEY_ACTIVE, NULL, 0, "only jobs that have not ended", 0},
    {"queued", KEY_QUEUED, NULL, 0, "only jobs that wait, in the order in which they go", 0},
    {"user", KEY_USER, "USER", 0, "only this user's jobs", 0},
    DPCTL_WIDE_OPTION,
    {0},
};
static const struct argp_option status_options[] = {
    {"follow", 'f', NULL, 0, "follow its progress until it ends", 0},
    {0},
};
static const struct argp_option cancel_options[] = {
    {"reason", KEY_REASON, "TEXT", 0, "kept with the job", 0},
    {0},
};
struct request {
    const char *id, *reason, *user;
    long limit;
    bool active, queued, wide, follow, needs_id, takes_id;
};

static error_t handle(int key, char *arg, struct argp_state *state)
{
    struct request *request = state->input;
    switch (key) {
    case 'n':
        request->limit = dpctl_number(state, "--limit", arg, 1, DP_JOBS_LISTED_MAX);
        return 0;
    case KEY_ACTIVE:
        request->active = true;
        return 0;
    case KEY_QUEUED:
        request->queued = true;
        return 0;
    case 'w':
        request->wide = true;
        return 0;
    case KEY_REASON:
        request->reason = arg;
        return 0;
    case KEY_USER:
        request->user = arg;
        return 0;
    case 'f':
        request->follow = true;
        return 0;
    case ARGP_KEY_ARG:
        if (request->id != NULL || !request->takes_id) {
            argp_error(state, "unexpected argument \"%s\"", arg);
        }
        request->id = arg;
        return 0;
    case ARGP_KEY_END:
        if (request->id == NULL && request->needs_id) {
            argp_error(state, "say which job (`dpctl jobs` lists them)");
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

// Parses, connects: what each of these commands begins with.
static dp_status begin(struct dpctl *ctl, const struct dpctl_syntax *syntax,
                       struct request *request, int argc, char **argv,
                       struct dp_client **ret_client, struct dp_error *err)
{
    dpctl_parse(ctl, syntax, request, argc, argv);
    return connect_controller(ctl, ret_client, err);
}

static void print_message(struct dpctl *ctl, const ProtobufCMessage *message, const char *schema)
{
    dpctl_print_json(ctl, dp_message_to_json(message), schema);
}

static void cell_age(struct dpctl_table *table, int64_t since_ns, int64_t until_ns)
{
    char text[32];
    if (since_ns == 0) {
        dpctl_cell(table, "%s", "");
    } else {
        dpctl_cell(table, "%s", dpctl_seconds(text, (double)(until_ns - since_ns) / 1e9));
    }
}

dp_status dpctl_cmd_jobs(struct dpctl *ctl, int argc, char **argv, struct dp_error *err)
{
    static const struct dpctl_syntax syntax = {
        .doc = "Lists jobs, newest first. TIME is since a job was submitted, to its end; REASON "
               "is a word of `dpctl status`, which has the sentence. With --queued, those that "
               "wait: their place, what is ahead of them, and when they will start if those that "
               "run take their steps as fast as now; \"unknown\" hangs on a job of which nobody "
               "knows how long it takes.",
        .exits = "0 ok, 8 no controller",
        .options = jobs_options,
        .handle = handle,
    };
    struct request request = {.limit = 100, .user = ""};
    AUTO_CLIENT struct dp_client *client = NULL;
    dp_status status = begin(ctl, &syntax, &request, argc, argv, &client, err);
    if (status != DP_OK) {
        return status;
    }
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__ListJobsRequest list = DP__V1__LIST_JOBS_REQUEST__INIT;
    list.limit = (uint32_t)request.limit;
    list.active = request.active;
    list.queued = request.queued;
    list.of_user = (char *)request.user;
    Dp__V1__ListJobsResponse *jobs = NULL;
    status = dp_client_list_jobs(client, &list, &arena, &jobs, err);
    if (status != DP_OK) {
        return status;
    }
    if (ctl->json) {
        print_message(ctl, &jobs->base, "dp.jobs/1");
        return DP_OK;
    }
    int fits = dpctl_fits(ctl, request.wide);
    if (request.queued) {
        dpctl_print_queue(jobs, fits);
        return DP_OK;
    }
    // First without USER, LOSS, NAME, TIME.
    DP_CLEANUP(dpctl_table_deinit)
    struct dpctl_table table = {.columns = 8, .right = 7u << 4, .fits = fits, .drops = "cfbg"};
    const char *const heads[] = {"ID", "NAME", "USER", "STATE", "STEP", "LOSS", "TIME", "REASON"};
    dpctl_heads(&table, heads);
    for (size_t i = 0; i < jobs->n_jobs; i++) {
        const Dp__V1__Job *job = jobs->jobs[i];
        dpctl_cell(&table, "%s", job->id);
        dpctl_cell(&table, "%s", job->name);
        dpctl_cell(&table, "%s", job->user);
        dpctl_cell(&table, "%s", job_state_text(job->state));
        dpctl_cell(&table, "%llu/%llu", (unsigned long long)job->step,
                   (unsigned long long)job->steps_total);
        dpctl_cell(&table, job->loss_known ? "%.4f" : "", job->loss);
        cell_age(&table, job->submitted_ns,
                 job->ended_ns != 0 ? job->ended_ns : dp_clock_realtime_ns());
        dpctl_cell(&table, "%s", job->reason);
    }
    dpctl_table_print(&table);
    return DP_OK;
}

static void print_job_ranks(const Dp__V1__Job *job)
{
    if (job->n_ranks == 0) {
        return;
    }
    DP_CLEANUP(dpctl_table_deinit) struct dpctl_table table = {.columns = 4};
    const char *const heads[] = {"RANK", "NODE", "PHASE", "PID"};
    dpctl_heads(&table, heads);
    for (size_t i = 0; i < job->n_ranks; i++) {
        const Dp__V1__JobRank *rank = job->ranks[i];
        dpctl_cell(&table, "%u", rank->rank);
        dpctl_cell(&table, "%s", rank->node);
        dpctl_cell(&table, "%s", rank->phase);
        dpctl_cell(&table, rank->pid != 0 ? "%lld" : "", (long long)rank->pid);
    }
    puts("");
    dpctl_table_print(&table);
}

// How a job came to its present attempt.
static void print_attempts(const Dp__V1__Job *job)
{
    if (job->attempt < 2 || job->n_attempts == 0) {
        return;
    }
    DP_CLEANUP(dpctl_table_deinit) struct dpctl_table table = {.columns = 5, .right = 3u << 1};
    const char *const heads[] = {"ATTEMPT", "FROM STEP", "TO STEP", "ENDED", "WHY"};
    dpctl_heads(&table, heads);
    for (size_t i = 0; i < job->n_attempts; i++) {
        const Dp__V1__Attempt *attempt = job->attempts[i];
        char time[32];
        dpctl_cell(&table, "%u", attempt->attempt);
        dpctl_cell(&table, "%llu", (unsigned long long)attempt->first_step);
        dpctl_cell(&table, "%llu", (unsigned long long)attempt->last_step);
        dpctl_cell(&table, "%s", dp_clock_format_utc(time, attempt->ended_ns));
        dpctl_cell(&table, "%s%s%s", attempt->reason, attempt->reason[0] == '\0' ? "" : ": ",
                   attempt->message);
    }
    puts("");
    dpctl_table_print(&table);
}

static void print_queue(const Dp__V1__Job *job)
{
    if (job->user[0] != '\0' || job->priority != 0) {
        printf("queue      %s%spriority %d", job->user, job->user[0] == '\0' ? "" : ", ",
               job->priority);
        if (job->preemptions > 0) {
            char times[64];
            printf(", made way %s", dpctl_count(times, job->preemptions, "time"));
        }
        puts("");
    }
    if (job->queue != NULL) {
        char place[256];
        printf("place      %s\n", dpctl_queue_text(place, sizeof(place), job->queue));
    }
}

static void print_left_out(const Dp__V1__Job *job)
{
    for (size_t i = 0; i < job->n_left_out; i++) {
        printf("%s%s", i == 0 ? "without    " : ", ", job->left_out[i]);
    }
    if (job->n_left_out > 0) {
        printf("%s%s\n", job->left_out_why[0] == '\0' ? "" : ": ", job->left_out_why);
    }
}

static void print_job(const Dp__V1__Job *job)
{
    char time[32];
    printf("%s  %s  %s%s%s\n", job->id, job->name, job_state_text(job->state),
           job->reason[0] == '\0' ? "" : "  ", job->reason);
    if (job->message[0] != '\0') {
        printf("%s\n", job->message);
    }
    printf("submitted  %s\n", dp_clock_format_utc(time, job->submitted_ns));
    print_queue(job);
    if (job->started_ns != 0) {
        printf("running    %s  attempt %u, epoch %u\n", dp_clock_format_utc(time, job->started_ns),
               job->attempt, job->epoch);
    }
    if (job->ended_ns != 0) {
        printf("ended      %s\n", dp_clock_format_utc(time, job->ended_ns));
    }
    printf("step       %llu of %llu", (unsigned long long)job->step,
           (unsigned long long)job->steps_total);
    if (job->loss_known) {
        printf("  loss %.4f", job->loss);
    }
    if (job->holdout_known) {
        printf("  held out %.4f", job->holdout_loss);
    }
    if (job->step_s > 0) {
        char seconds[32];
        printf("  %s a step  %.0f tokens/s", dpctl_seconds(seconds, job->step_s),
               job->tokens_per_s);
    }
    puts("");
    if (job->plan != NULL) {
        char plan[192];
        printf("plan       %s\n", plan_text(plan, job->plan));
    }
    if (job->checkpoint[0] != '\0') {
        printf("checkpoint %s\n", job->checkpoint);
    }
    print_left_out(job);
    print_attempts(job);
    dpctl_print_verdicts("slow       ", job);
    dpctl_print_decisions(job->decisions, job->n_decisions);
    print_job_ranks(job);
}

dp_status dpctl_cmd_status(struct dpctl *ctl, int argc, char **argv, struct dp_error *err)
{
    static const struct dpctl_syntax syntax = {
        .arguments = "[JOB]",
        .doc = "One job (the newest, when none is named): state and reason, progress, plan, ranks.",
        .exits = "0 ok, 4 no such job, 8 no controller; with -f also 7 it can never fit, 9 it "
                 "failed, 10 it was cancelled, 130 Ctrl-C",
        .options = status_options,
        .handle = handle,
    };
    struct request request = {.takes_id = true};
    AUTO_CLIENT struct dp_client *client = NULL;
    dp_status status = begin(ctl, &syntax, &request, argc, argv, &client, err);
    if (status != DP_OK) {
        return status;
    }
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__Job *job = NULL;
    status = newest_job(client, request.id, true, &arena, &request.id, err);
    if (status == DP_OK) {
        status = dp_client_get_job(client, request.id, &arena, &job, err);
    }
    if (status == DP_OK && request.follow) {
        interrupted();
        status = follow_job(ctl, client, job->id, false, job->step, &arena, &job, err);
    }
    if (status != DP_OK) {
        return status;
    }
    if (ctl->json) {
        print_message(ctl, &job->base, "dp.job/1");
    } else {
        print_job(job);
    }
    return request.follow ? job_outcome(job, err) : DP_OK;
}

dp_status dpctl_cmd_cancel(struct dpctl *ctl, int argc, char **argv, struct dp_error *err)
{
    static const struct dpctl_syntax syntax = {
        .arguments = "JOB",
        .doc = "Ends a job. Returns at once; `dpctl status` tells when its ranks are gone.",
        .exits = "0 ok, 4 no such job, 6 it has ended already, 8 no controller",
        .options = cancel_options,
        .handle = handle,
    };
    struct request request = {.needs_id = true, .takes_id = true, .reason = "cancelled by a user"};
    AUTO_CLIENT struct dp_client *client = NULL;
    dp_status status = begin(ctl, &syntax, &request, argc, argv, &client, err);
    if (status != DP_OK) {
        return status;
    }
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__Job *job = NULL;
    status = dp_client_cancel_job(client, request.id, request.reason, &arena, &job, err);
    if (status != DP_OK) {
        return status;
    }
    if (ctl->json) {
        print_message(ctl, &job->base, "dp.job/1");
    } else {
        printf("%s %s\n", job->id, job_state_text(job->state));
    }
    return DP_OK;
}

dp_status dpctl_cmd_checkpoint(struct dpctl *ctl, int argc, char **argv, struct dp_error *err)
{
    static const struct dpctl_syntax syntax = {
        .arguments = "JOB\nshow PATH\ncheck PATH\nexport PATH DIRECTORY",
        .doc = "Has a running job write a checkpoint after its current step, and waits for it. "
               "show, check and export are about checkpoints as files.",
        .exits = "0 written, 4 no such job, 6 it does not run, 8 no controller",
        .handle = handle,
    };
    for (int i = 1; i < argc; i++) {
        if (dpctl_is_checkpoint_verb(argv[i])) {
            return dpctl_checkpoint_files(ctl, argc, argv, err);
        }
    }
    struct request request = {.needs_id = true, .takes_id = true};
    AUTO_CLIENT struct dp_client *client = NULL;
    dp_status status = begin(ctl, &syntax, &request, argc, argv, &client, err);
    if (status != DP_OK) {
        return status;
    }
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__CheckpointJobResponse *done = NULL;
    status = dp_client_checkpoint_job(client, request.id, &arena, &done, err);
    if (status != DP_OK) {
        return status;
    }
    if (ctl->json) {
        print_message(ctl, &done->base, "dp.checkpoint_done/1");
    } else {
        printf("step %llu written to %s\n", (unsigned long long)done->step, done->path);
    }
    return DP_OK;
}
