// dpctl audit: who changed what.
#include "connect.h"
#include "dp/cleanup.h"
#include "dp/method.h"
#include "since.h"

enum { KEY_OBJECT = 1, KEY_USER, KEY_SINCE, KEY_AFTER };

static const struct argp_option options[] = {
    {"object", KEY_OBJECT, "NAME", 0, "only of this job, node, cluster or user", 0},
    {"user", KEY_USER, "USER", 0, "only what this user asked for", 0},
    {"since", KEY_SINCE, "TIME", 0, "only from then on: 2h, 7d, 2026-11-30T10:00:00Z", 0},
    {"after", KEY_AFTER, "INDEX", 0, "only entries after this one", 0},
    {"limit", 'n', "COUNT", 0, "at most COUNT (1000)", 0},
    DPCTL_WIDE_OPTION,
    {0},
};

struct request {
    Dp__V1__ListAuditRequest list;
    bool wide;
};

static error_t handle(int key, char *arg, struct argp_state *state)
{
    struct request *given = state->input;
    Dp__V1__ListAuditRequest *request = &given->list;
    switch (key) {
    case 'w':
        given->wide = true;
        return 0;
    case KEY_OBJECT:
        request->object = arg;
        return 0;
    case KEY_USER:
        request->of_user = arg;
        return 0;
    case KEY_SINCE:
        request->since_ns = dpctl_since(state, arg);
        return 0;
    case KEY_AFTER:
        request->after = (uint64_t)dpctl_number(state, "--after", arg, 0, 1l << 53);
        return 0;
    case 'n':
        request->limit = (uint32_t)dpctl_number(state, "--limit", arg, 1, DP_HISTORY_LISTED_MAX);
        return 0;
    default:
        return dpctl_handle_none(key, arg, state);
    }
}

static void print(const Dp__V1__ListAuditResponse *answer, int fits)
{
    // First without FROM, INDEX, USER.
    DP_CLEANUP(dpctl_table_deinit)
    struct dpctl_table table = {.columns = 8, .fits = fits, .drops = "dac"};
    const char *const heads[] = {"INDEX", "TIME",   "USER",   "FROM",
                                 "VERB",  "OBJECT", "CHANGE", "OUTCOME"};
    dpctl_heads(&table, heads);
    for (size_t i = 0; i < answer->n_entries; i++) {
        const Dp__V1__AuditEntry *entry = answer->entries[i];
        char time[32];
        dpctl_cell(&table, "%llu", (unsigned long long)entry->index);
        dpctl_cell(&table, "%s", dpctl_time(time, entry->time_ns, fits));
        dpctl_cell(&table, "%s", entry->user);
        dpctl_cell(&table, "%s %s", entry->door, entry->peer);
        dpctl_cell(&table, "%s", entry->verb);
        dpctl_cell(&table, "%s", entry->object);
        bool both = entry->before[0] != '\0' && entry->after[0] != '\0';
        dpctl_cell(&table, "%s%s%s", entry->before, both ? " -> " : "", entry->after);
        dpctl_cell(&table, "%s%s%s", entry->outcome, entry->message[0] == '\0' ? "" : ": ",
                   entry->message);
    }
    dpctl_table_print(&table);
}

dp_status dpctl_cmd_audit(struct dpctl *ctl, int argc, char **argv, struct dp_error *err)
{
    static const struct dpctl_syntax syntax = {
        .doc = "Who asked for which change, from where, and what came of it: one entry for each "
               "request that changes something, refused ones too, the oldest first. Entries are "
               "written with the change itself and never altered. CHANGE is the state before and "
               "after: of a job with its attempt and epoch (RUNNING 2.1).\v"
               "  dpctl audit --object job-17\n"
               "  dpctl audit --user alice --since 2h -o json\n",
        .exits = "0 ok, 8 no controller",
        .options = options,
        .handle = handle,
    };
    struct request request = {.list = DP__V1__LIST_AUDIT_REQUEST__INIT};
    dpctl_parse(ctl, &syntax, &request, argc, argv);
    AUTO_CLIENT struct dp_client *client = NULL;
    dp_status status = connect_controller(ctl, &client, err);
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__ListAuditResponse *answer = NULL;
    if (status == DP_OK) {
        status = dp_client_list_audit(client, &request.list, &arena, &answer, err);
    }
    if (status != DP_OK) {
        return status;
    }
    if (ctl->json) {
        dpctl_print_json(ctl, dp_message_to_json(&answer->base), "dp.audit/1");
    } else {
        print(answer, dpctl_fits(ctl, request.wide));
    }
    if (answer->more) {
        fprintf(stderr, "there is more: dpctl audit --after %llu\n",
                (unsigned long long)answer->entries[answer->n_entries - 1]->index);
    }
    return DP_OK;
}
