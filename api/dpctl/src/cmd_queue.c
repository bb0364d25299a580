// dpctl hold, release and priority; what `dpctl jobs --queued` prints.

#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/method.h"
#include "queue.h"

enum { KEY_REASON = 1, KEY_REQUEST_ID };

#define REQUEST_ID_OPTION                                                                          \
    {                                                                                              \
        "request-id", KEY_REQUEST_ID, "ID", 0,                                                     \
            "asking again under the same id changes nothing more", 0                               \
    }

static const struct argp_option hold_options[] = {
    {"reason", KEY_REASON, "TEXT", 0, "shown with the job", 0},
    REQUEST_ID_OPTION,
    {0},
};
static const struct argp_option options[] = {
    REQUEST_ID_OPTION,
    {0},
};

struct request {
    const char *id, *reason, *request_id, *priority;
    bool takes_priority;
};

static error_t handle(int key, char *arg, struct argp_state *state)
{
    struct request *request = state->input;
    switch (key) {
    case KEY_REASON:
        request->reason = arg;
        return 0;
    case KEY_REQUEST_ID:
        request->request_id = arg;
        return 0;
    case ARGP_KEY_ARG:
        if (request->id == NULL || !request->takes_priority) {
            dpctl_take_argument(state, "job", arg, &request->id);
        } else {
            dpctl_take_argument(state, "priority", arg, &request->priority);
            dpctl_number(state, "N", arg, -DP_PRIORITY_MAX, DP_PRIORITY_MAX);
        }
        return 0;
    case ARGP_KEY_END:
        if (request->id == NULL) {
            argp_error(state, "say which job (`dpctl jobs --queued` lists those that wait)");
        } else if (request->takes_priority && request->priority == NULL) {
            argp_error(state, "say which priority; a higher one goes first");
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static dp_status update(struct dpctl *ctl, const struct request *request,
                        Dp__V1__UpdateJobRequest *what, struct dp_error *err)
{
    char fresh[DP_NAME_MAX];
    if (request->request_id == NULL && fresh_request_id(fresh, err) != DP_OK) {
        return err->status;
    }
    what->id = (char *)request->id;
    what->request_id = request->request_id == NULL ? fresh : (char *)request->request_id;
    AUTO_CLIENT struct dp_client *client = NULL;
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__Job *job = NULL;
    dp_status status = connect_controller(ctl, &client, err);
    if (status == DP_OK) {
        status = dp_client_update_job(client, what, &arena, &job, err);
    }
    if (status != DP_OK) {
        return status;
    }
    if (ctl->json) {
        dpctl_print_json(ctl, dp_message_to_json(&job->base), "dp.job/1");
    } else {
        printf("%s  %s  priority %d%s%s\n", job->id, job_state_text(job->state), job->priority,
               job->message[0] == '\0' ? "" : "  ", job->message);
    }
    return DP_OK;
}

dp_status dpctl_cmd_hold(struct dpctl *ctl, int argc, char **argv, struct dp_error *err)
{
    static const struct dpctl_syntax syntax = {
        .arguments = "JOB",
        .doc = "Keeps a job that waits from starting until `dpctl release`. It keeps its place in "
               "the order, and everybody passes it.",
        .exits = "0 ok, 4 no such job, 6 it does not wait, 8 no controller",
        .options = hold_options,
        .handle = handle,
    };
    struct request request = {.reason = ""};
    dpctl_parse(ctl, &syntax, &request, argc, argv);
    Dp__V1__UpdateJobRequest what = DP__V1__UPDATE_JOB_REQUEST__INIT;
    what.hold_case = DP__V1__UPDATE_JOB_REQUEST__HOLD_HELD;
    what.held = true;
    what.reason = (char *)request.reason;
    return update(ctl, &request, &what, err);
}

dp_status dpctl_cmd_release(struct dpctl *ctl, int argc, char **argv, struct dp_error *err)
{
    static const struct dpctl_syntax syntax = {
        .arguments = "JOB",
        .doc = "Lets a job start that was held.",
        .exits = "0 ok, 4 no such job, 6 it has ended already, 8 no controller",
        .options = options,
        .handle = handle,
    };
    struct request request = {0};
    dpctl_parse(ctl, &syntax, &request, argc, argv);
    Dp__V1__UpdateJobRequest what = DP__V1__UPDATE_JOB_REQUEST__INIT;
    what.hold_case = DP__V1__UPDATE_JOB_REQUEST__HOLD_HELD;
    return update(ctl, &request, &what, err);
}

// A negative number is no option: it goes to the end, behind "--", if nobody has done that.
static char **set_apart(int argc, char **argv, int *ret_argc)
{
    char **apart = dp_new_array(char *, (size_t)argc + 2);
    char *number = NULL;
    int count = 0;
    bool is_apart = false;
    for (int i = 0; i < argc; i++) {
        is_apart = is_apart || strcmp(argv[i], "--") == 0;
        if (number == NULL && !is_apart && argv[i][0] == '-' && argv[i][1] >= '0' &&
            argv[i][1] <= '9') {
            number = argv[i];
        } else {
            apart[count++] = argv[i];
        }
    }
    if (number != NULL) {
        static char rest[] = "--";
        apart[count++] = rest;
        apart[count++] = number;
    }
    *ret_argc = count;
    return apart;
}

dp_status dpctl_cmd_priority(struct dpctl *ctl, int argc, char **argv, struct dp_error *err)
{
    static const struct dpctl_syntax syntax = {
        .arguments = "JOB N",
        .doc = "Changes the priority of a job that has not ended. Of those that wait, a higher one "
               "goes first; one that runs makes way for a higher one, from now on by the new "
               "priority.",
        .exits = "0 ok, 4 no such job, 6 it has ended already, 8 no controller",
        .options = options,
        .handle = handle,
    };
    struct request request = {.takes_priority = true};
    int count = 0;
    DP_AUTO_FREE char **apart = set_apart(argc, argv, &count);
    dpctl_parse(ctl, &syntax, &request, count, apart);
    Dp__V1__UpdateJobRequest what = DP__V1__UPDATE_JOB_REQUEST__INIT;
    what.order_case = DP__V1__UPDATE_JOB_REQUEST__ORDER_PRIORITY;
    what.priority = (int32_t)strtol(request.priority, NULL, 10);
    return update(ctl, &request, &what, err);
}

static const char *ahead_text(char *buffer, size_t size, const Dp__V1__QueuePlace *place)
{
    char jobs[64], ranks[64];
    if (place->jobs_ahead == 0) {
        snprintf(buffer, size, "nobody");
    } else {
        snprintf(buffer, size, "%s, %s", dpctl_count(jobs, place->jobs_ahead, "job"),
                 dpctl_count(ranks, place->ranks_ahead, "rank"));
    }
    return buffer;
}

static const char *start_text(char buffer[32], const Dp__V1__QueuePlace *place, int fits)
{
    return place->start_ns == 0 ? "unknown" : dpctl_time(buffer, place->start_ns, fits);
}

const char *dpctl_queue_text(char *buffer, size_t size, const Dp__V1__QueuePlace *place)
{
    char ahead[160], start[32];
    if (place->position == 0) {
        snprintf(buffer, size, "held: others pass it");
    } else {
        snprintf(buffer, size, "%u; ahead: %s; start %s%s", place->position,
                 ahead_text(ahead, sizeof(ahead), place), place->start_ns == 0 ? "" : "about ",
                 start_text(start, place, 0));
    }
    return buffer;
}

void dpctl_print_queue(const Dp__V1__ListJobsResponse *jobs, int fits)
{
    // First without NAME, USER, RANKS, PRIORITY, AHEAD.
    DP_CLEANUP(dpctl_table_deinit)
    struct dpctl_table table = {
        .columns = 9, .right = 1u | 3u << 4, .fits = fits, .drops = "cdfeg"};
    const char *const heads[] = {"PLACE", "ID",    "NAME",  "USER", "PRIORITY",
                                 "RANKS", "AHEAD", "START", "WHY"};
    dpctl_heads(&table, heads);
    for (size_t i = 0; i < jobs->n_jobs; i++) {
        const Dp__V1__Job *job = jobs->jobs[i];
        const Dp__V1__QueuePlace *place = job->queue;
        bool held = place == NULL || place->position == 0;
        char ahead[160], start[32];
        dpctl_cell(&table, held ? "" : "%u", held ? 0 : place->position);
        dpctl_cell(&table, "%s", job->id);
        dpctl_cell(&table, "%s", job->name);
        dpctl_cell(&table, "%s", job->user);
        dpctl_cell(&table, "%d", job->priority);
        dpctl_cell(&table, "%u", job->ranks_wanted);
        dpctl_cell(&table, "%s", held ? "" : ahead_text(ahead, sizeof(ahead), place));
        dpctl_cell(&table, "%s", held ? "" : start_text(start, place, fits));
        dpctl_cell(&table, "%s", job->message);
    }
    dpctl_table_print(&table);
}
