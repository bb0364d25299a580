// dpctl history: jobs that are over, and what was decided about a job's ranks.
#include "connect.h"
#include "decisions.h"
#include "dp/adapt.h"
#include "dp/cleanup.h"
#include "dp/method.h"
#include "since.h"

enum { KEY_USER = 1, KEY_SINCE, KEY_DECISION };

struct request {
    Dp__V1__ListHistoryRequest list;
    const char *job;
    uint64_t decision; // 0 = all of them
    bool wide;
};

static const struct argp_option options[] = {
    {"user", KEY_USER, "USER", 0, "only this user's jobs", 0},
    {"since", KEY_SINCE, "TIME", 0, "only jobs that ended since then: 2h, 7d, 2026-11-30", 0},
    {"limit", 'n', "COUNT", 0, "newest COUNT jobs (100)", 0},
    DPCTL_WIDE_OPTION,
    {"decision", KEY_DECISION, "N", 0, "of JOB: this one, with every answer that was weighed", 1},
    {0},
};

static error_t handle(int key, char *arg, struct argp_state *state)
{
    struct request *request = state->input;
    Dp__V1__ListHistoryRequest *list = &request->list;
    switch (key) {
    case KEY_USER:
        list->of_user = arg;
        return 0;
    case KEY_SINCE:
        list->since_ns = dpctl_since(state, arg);
        return 0;
    case 'n':
        list->limit = (uint32_t)dpctl_number(state, "--limit", arg, 1, DP_JOBS_LISTED_MAX);
        return 0;
    case 'w':
        request->wide = true;
        return 0;
    case KEY_DECISION:
        request->decision = (uint64_t)dpctl_number(state, "--decision", arg, 1, INT32_MAX);
        return 0;
    case ARGP_KEY_ARG:
        dpctl_take_argument(state, "job", arg, &request->job);
        return 0;
    case ARGP_KEY_END:
        if (request->job == NULL && request->decision != 0) {
            argp_error(state, "say of which JOB the decision is");
        }
        if (request->job != NULL &&
            (list->of_user[0] != '\0' || list->since_ns != 0 || list->limit != 0)) {
            argp_error(state, "of one job all is shown: leave out --user, --since and --limit");
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
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

static void print(const Dp__V1__ListHistoryResponse *answer, int fits)
{
    // First without DECISIONS, ATTEMPTS, TIME, ENDED, USER.
    DP_CLEANUP(dpctl_table_deinit)
    struct dpctl_table table = {.columns = 9, .right = 7u << 4, .fits = fits, .drops = "gfehc"};
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
        dpctl_cell(&table, "%s", dpctl_time(time, job->ended_ns, fits));
        dpctl_cell(&table, "%s%s%s", job->reason, job->reason[0] == '\0' ? "" : ": ", job->message);
    }
    dpctl_table_print(&table);
}

// What was weighed for it; nothing where ranks were lost and there was one way to go on.
static dp_status print_weighed(const Dp__V1__Decision *decision, struct dp_error *err)
{
    DP_CLEANUP(dp_adapt_answers_deinit) struct dp_adapt_answers answers = {0};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    DP_AUTO_JSON json_t *json = NULL;
    if (decision->document.len == 0) {
        puts("\nno other answers were weighed");
        return DP_OK;
    }
    dp_status status = dp_json_parse((const char *)decision->document.data, decision->document.len,
                                     DP_MESSAGE_BYTES_MAX, "the decision's document", &json, err);
    if (status == DP_OK) {
        status = dp_adapt_from_json(json, &answers, err);
    }
    if (status == DP_OK) {
        puts("");
        dp_adapt_render(&answers, &text);
        dpctl_print(&text);
    }
    return status;
}

static dp_status print_decision(const struct request *request,
                                const Dp__V1__ListDecisionsResponse *answer, struct dp_error *err)
{
    if (answer->n_decisions == 0) {
        printf("nothing was decided about the ranks of %s\n", request->job);
        return DP_OK;
    }
    if (request->decision == 0) {
        dpctl_print_decisions(answer->decisions, answer->n_decisions);
        return DP_OK;
    }
    dpctl_print_decisions(answer->decisions, 1);
    return print_weighed(answer->decisions[0], err);
}

// Leaves the one that is wanted.
static dp_status choose(const struct request *request, Dp__V1__ListDecisionsResponse *answer,
                        struct dp_error *err)
{
    for (size_t i = 0; i < answer->n_decisions; i++) {
        if (answer->decisions[i]->number == request->decision) {
            answer->decisions[0] = answer->decisions[i];
            answer->n_decisions = 1;
            return DP_OK;
        }
    }
    return request->decision == 0
               ? DP_OK
               : dp_fail(err, DP_NOT_FOUND,
                         "%s has no decision %llu (`dpctl history %s` lists them)", request->job,
                         (unsigned long long)request->decision, request->job);
}

static dp_status show_decisions(struct dpctl *ctl, struct dp_client *client,
                                const struct request *request, struct dp_error *err)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__ListDecisionsResponse *answer = NULL;
    dp_status status = dp_client_list_decisions(client, request->job, &arena, &answer, err);
    if (status == DP_OK) {
        status = choose(request, answer, err);
    }
    if (status == DP_OK && ctl->json) {
        dpctl_print_json(ctl, dp_message_to_json(&answer->base), "dp.decisions/1");
        return DP_OK;
    }
    return status == DP_OK ? print_decision(request, answer, err) : status;
}

static dp_status list(struct dpctl *ctl, struct dp_client *client, const struct request *request,
                      struct dp_error *err)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__ListHistoryResponse *answer = NULL;
    dp_status status = dp_client_list_history(client, &request->list, &arena, &answer, err);
    if (status != DP_OK) {
        return status;
    }
    if (ctl->json) {
        dpctl_print_json(ctl, dp_message_to_json(&answer->base), "dp.history/1");
    } else {
        print(answer, dpctl_fits(ctl, request->wide));
    }
    return DP_OK;
}

dp_status dpctl_cmd_history(struct dpctl *ctl, int argc, char **argv, struct dp_error *err)
{
    static const struct dpctl_syntax syntax = {
        .arguments = "[JOB]",
        .doc = "Jobs that are over, the newest first, with their attempts and what was decided "
               "about their ranks (in full with -o json). TIME is from the first attempt's start "
               "to the end. Of one JOB, over or not: what was decided about its ranks and what "
               "came of it, the oldest first; with --decision the answers that were weighed, as "
               "whatif shows them. How long jobs are kept is the controller's --history-days and "
               "--history-jobs.\v"
               "  dpctl history --user alice --since 7d\n"
               "  dpctl history job-17 --decision 2\n",
        .exits = "0 ok, 4 no such job or decision, 8 no controller",
        .options = options,
        .handle = handle,
    };
    struct request request = {.list = DP__V1__LIST_HISTORY_REQUEST__INIT};
    dpctl_parse(ctl, &syntax, &request, argc, argv);
    AUTO_CLIENT struct dp_client *client = NULL;
    dp_status status = connect_controller(ctl, &client, err);
    if (status != DP_OK) {
        return status;
    }
    return request.job == NULL ? list(ctl, client, &request, err)
                               : show_decisions(ctl, client, &request, err);
}
