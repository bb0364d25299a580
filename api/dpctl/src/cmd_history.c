// dpctl history: jobs that are over.
#include "connect.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/method.h"
#include "since.h"

enum { KEY_USER = 1, KEY_SINCE };

static const struct argp_option options[] = {
    {"user", KEY_USER, "USER", 0, "only this user's jobs", 0},
    {"since", KEY_SINCE, "TIME", 0, "only jobs that ended since then: 2h, 7d, 2026-11-30", 0},
    {"limit", 'n', "COUNT", 0, "newest COUNT jobs (100)", 0},
    {0},
};

static error_t handle(int key, char *arg, struct argp_state *state)
{
    Dp__V1__ListHistoryRequest *request = state->input;
    switch (key) {
    case KEY_USER:
        request->of_user = arg;
        return 0;
    case KEY_SINCE:
        request->since_ns = dpctl_since(state, arg);
        return 0;
    case 'n':
        request->limit = (uint32_t)dpctl_number(state, "--limit", arg, 1, DP_JOBS_LISTED_MAX);
        return 0;
    default:
        return dpctl_handle_none(key, arg, state);
    }
}

// When its first attempt began to run; 0 = none did.
static int64_t started_ns(const Dp__V1__HistoryEntry *entry)
{
    for (size_t i = 0; i < entry->n_attempts; i++) {
        if (entry->attempts[i]->started_ns != 0) {
            return entry->attempts[i]->started_ns;
        }
    }
    return entry->job->started_ns;
}

static void print(const Dp__V1__ListHistoryResponse *answer)
{
    DP_CLEANUP(dpctl_table_deinit) struct dpctl_table table = {.columns = 9, .right = 7u << 4};
    const char *const heads[] = {"ID",       "NAME",      "USER",  "STATE", "TIME",
                                 "ATTEMPTS", "DECISIONS", "ENDED", "REASON"};
    dpctl_heads(&table, heads);
    for (size_t i = 0; i < answer->n_entries; i++) {
        const Dp__V1__HistoryEntry *entry = answer->entries[i];
        const Dp__V1__Job *job = entry->job;
        if (job == NULL) {
            continue;
        }
        char took[32], time[32];
        dpctl_cell(&table, "%s", job->id);
        dpctl_cell(&table, "%s", job->name);
        dpctl_cell(&table, "%s", job->user);
        dpctl_cell(&table, "%s", job_state_text(job->state));
        int64_t began_ns = started_ns(entry);
        dpctl_cell(&table, "%s",
                   began_ns == 0 ? ""
                                 : dpctl_seconds(took, (double)(job->ended_ns - began_ns) / 1e9));
        dpctl_cell(&table, "%u", job->attempt);
        dpctl_cell(&table, "%zu", entry->n_decisions);
        dpctl_cell(&table, "%s", dp_clock_format_utc(time, job->ended_ns));
        dpctl_cell(&table, "%s%s%s", job->reason, job->reason[0] == '\0' ? "" : ": ", job->message);
    }
    dpctl_table_print(&table);
}

dp_status dpctl_cmd_history(struct dpctl *ctl, int argc, char **argv, struct dp_error *err)
{
    static const struct dpctl_syntax syntax = {
        .doc = "Jobs that are over, the newest first, with their attempts and what was decided "
               "about their ranks (in full with -o json, and in `dpctl status JOB`). TIME is from "
               "the first attempt's start to the end. How long they are kept is the controller's "
               "--history-days and --history-jobs.\v"
               "  dpctl history --user alice --since 7d\n",
        .exits = "0 ok, 8 no controller",
        .options = options,
        .handle = handle,
    };
    Dp__V1__ListHistoryRequest request = DP__V1__LIST_HISTORY_REQUEST__INIT;
    dpctl_parse(ctl, &syntax, &request, argc, argv);
    AUTO_CLIENT struct dp_client *client = NULL;
    dp_status status = connect_controller(ctl, &client, err);
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__ListHistoryResponse *answer = NULL;
    if (status == DP_OK) {
        status = dp_client_list_history(client, &request, &arena, &answer, err);
    }
    if (status != DP_OK) {
        return status;
    }
    if (ctl->json) {
        dpctl_print_json(ctl, dp_message_to_json(&answer->base), "dp.history/1");
    } else {
        print(answer);
    }
    return DP_OK;
}
