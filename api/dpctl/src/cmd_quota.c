// dpctl quota: how many ranks users may have at once.

#include <stdlib.h>
#include <string.h>

#include "connect.h"
#include "dp/cleanup.h"
#include "dp/method.h"

struct request {
    const char *user, *ranks;
};

static error_t handle(int key, char *arg, struct argp_state *state)
{
    struct request *request = state->input;
    switch (key) {
    case ARGP_KEY_ARG:
        if (request->user == NULL) {
            request->user = arg;
        } else {
            dpctl_take_argument(state, "number of ranks", arg, &request->ranks);
            if (strcmp(arg, "none") != 0) {
                dpctl_number(state, "RANKS", arg, 0, DP_QUOTA_RANKS_MAX);
            }
        }
        return 0;
    case ARGP_KEY_END:
        if (request->user != NULL && request->ranks == NULL) {
            argp_error(state, "say how many ranks %s may have at once, or none for any number",
                       request->user);
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static dp_status list(struct dpctl *ctl, struct dp_client *client, struct dp_error *err)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__ListQuotasResponse *quotas = NULL;
    dp_status status = dp_client_list_quotas(client, &arena, &quotas, err);
    if (status != DP_OK) {
        return status;
    }
    if (ctl->json) {
        dpctl_print_json(ctl, dp_message_to_json(&quotas->base), "dp.quotas/1");
        return DP_OK;
    }
    DP_CLEANUP(dpctl_table_deinit) struct dpctl_table table = {.columns = 3, .right = 3u << 1};
    const char *const heads[] = {"USER", "IN USE", "RANKS"};
    dpctl_heads(&table, heads);
    for (size_t i = 0; i < quotas->n_quotas; i++) {
        dpctl_cell(&table, "%s", quotas->quotas[i]->user);
        dpctl_cell(&table, "%u", quotas->quotas[i]->ranks_used);
        dpctl_cell(&table, "%u", quotas->quotas[i]->ranks);
    }
    dpctl_table_print(&table);
    return DP_OK;
}

dp_status dpctl_cmd_quota(struct dpctl *ctl, int argc, char **argv, struct dp_error *err)
{
    static const struct dpctl_syntax syntax = {
        .arguments = "[USER RANKS|none]",
        .doc = "Lists how many ranks users may have at once, or sets it for one. Jobs that would "
               "be more wait; those that run are left alone.",
        .exits = "0 ok, 8 no controller",
        .handle = handle,
    };
    struct request request = {0};
    dpctl_parse(ctl, &syntax, &request, argc, argv);
    AUTO_CLIENT struct dp_client *client = NULL;
    dp_status status = connect_controller(ctl, &client, err);
    if (status != DP_OK || request.user == NULL) {
        return status == DP_OK ? list(ctl, client, err) : status;
    }
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__SetQuotaRequest set = DP__V1__SET_QUOTA_REQUEST__INIT;
    set.of_user = (char *)request.user;
    bool none = strcmp(request.ranks, "none") == 0;
    set.bound_case =
        none ? DP__V1__SET_QUOTA_REQUEST__BOUND_NONE : DP__V1__SET_QUOTA_REQUEST__BOUND_RANKS;
    if (none) {
        set.none = true;
    } else {
        set.ranks = (uint32_t)strtoul(request.ranks, NULL, 10);
    }
    Dp__V1__Quota *quota = NULL;
    status = dp_client_set_quota(client, &set, &arena, &quota, err);
    if (status != DP_OK) {
        return status;
    }
    if (ctl->json) {
        dpctl_print_json(ctl, dp_message_to_json(&quota->base), "dp.quota/1");
    } else if (none) {
        printf("%s  any number of ranks\n", request.user);
    } else {
        printf("%s  %u ranks at once, %u in use\n", quota->user, quota->ranks, quota->ranks_used);
    }
    return DP_OK;
}
