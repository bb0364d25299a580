#include "admin.h"

#include <stdlib.h>
#include <string.h>

#include "audit.h"
#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"

static const struct {
    const char *name; // as a request has it
    const char *word;
    dp_node_action action;
} actions[] = {
    {"down", "set down", DP_NODE_SET_DOWN},
    {"quarantine", "quarantined", DP_NODE_QUARANTINE},
    {"forget", "forgotten", DP_NODE_FORGET},
};

static bool is_short(struct daemon *daemon, uint64_t call, const char *what, const char *text,
                     size_t size)
{
    if (strlen(text) < size) {
        return true;
    }
    char message[DP_TEXT_MAX];
    snprintf(message, sizeof(message), "%s has more than %zu bytes", what, size - 1);
    call_fail(daemon, call, DP_INVALID, message);
    return false;
}

// The core answers.
static void ask(struct daemon *daemon, uint64_t call, dp_method_id method,
                const struct dp_node_ask *what)
{
    if (!is_short(daemon, call, "the reason", what->reason, DP_TEXT_MAX / 2) ||
        !is_short(daemon, call, "the user's name", what->by, DP_NAME_MAX)) {
        return;
    }
    struct dp_audit_record audit;
    audit_fill(daemon, call, method, what->by, what->node, &audit);
    struct dp_core_event event = {
        .kind = DP_EVENT_NODE_ASK, .audit = &audit, .audit_reply = call, .node_ask = *what};
    event.node_ask.reply = call;
    daemon_expect(daemon, call, method);
    daemon_step(daemon, &event);
}

static void drain_node(struct daemon *daemon, uint64_t call, const void *any,
                       struct dp_arena *arena)
{
    (void)arena;
    const Dp__V1__DrainNodeRequest *request = any;
    struct dp_node_ask what = {
        .node = request->node,
        .reason = request->reason,
        .by = request->user,
        .word = "drained",
        .action = DP_NODE_DRAIN,
        .deadline_ms = (int64_t)request->deadline_s * 1000,
        .force = request->force,
    };
    ask(daemon, call, DP_METHOD_DRAIN_NODE, &what);
}

static void undrain_node(struct daemon *daemon, uint64_t call, const void *any,
                         struct dp_arena *arena)
{
    (void)arena;
    const Dp__V1__UndrainNodeRequest *request = any;
    struct dp_node_ask what = {.node = request->node,
                               .reason = "",
                               .by = request->user,
                               .word = "taken back",
                               .action = DP_NODE_UNDRAIN};
    ask(daemon, call, DP_METHOD_UNDRAIN_NODE, &what);
}

static void set_node(struct daemon *daemon, uint64_t call, const void *any, struct dp_arena *arena)
{
    (void)arena;
    const Dp__V1__SetNodeRequest *request = any;
    for (size_t i = 0; i < DP_ARRAY_LENGTH(actions); i++) {
        if (strcmp(request->action, actions[i].name) == 0) {
            struct dp_node_ask what = {.node = request->node,
                                       .reason = request->reason,
                                       .by = request->user,
                                       .word = actions[i].word,
                                       .action = actions[i].action};
            ask(daemon, call, DP_METHOD_SET_NODE, &what);
            return;
        }
    }
    call_fail(daemon, call, DP_INVALID, "action is down, quarantine or forget");
}

static void set_quota(struct daemon *daemon, uint64_t call, const void *any, struct dp_arena *arena)
{
    (void)arena;
    const Dp__V1__SetQuotaRequest *request = any;
    if (request->of_user[0] == '\0' || strlen(request->of_user) >= DP_NAME_MAX) {
        call_fail(daemon, call, DP_INVALID, "a user's name has 1 to 63 bytes");
        return;
    }
    bool none = request->bound_case == DP__V1__SET_QUOTA_REQUEST__BOUND_NONE;
    if (request->bound_case == DP__V1__SET_QUOTA_REQUEST__BOUND__NOT_SET ||
        (none && !request->none)) {
        call_fail(daemon, call, DP_INVALID,
                  "say how many: \"ranks\" = a number (0 = none may run), or \"none\" = true for "
                  "any number");
        return;
    }
    if (!is_short(daemon, call, "the user's name", request->user, DP_NAME_MAX)) {
        return;
    }
    struct dp_audit_record audit;
    audit_fill(daemon, call, DP_METHOD_SET_QUOTA, request->user, request->of_user, &audit);
    struct dp_core_event event = {.kind = DP_EVENT_QUOTA_ASK,
                                  .audit = &audit,
                                  .audit_reply = call,
                                  .quota_ask = {.reply = call,
                                                .user = request->of_user,
                                                .by = request->user,
                                                .ranks = none ? 0 : request->ranks,
                                                .none = none}};
    daemon_expect(daemon, call, DP_METHOD_SET_QUOTA);
    daemon_step(daemon, &event);
}

static Dp__V1__Quota *make_quota(const struct dp_quota_record *row, uint32_t used,
                                 struct dp_arena *arena)
{
    Dp__V1__Quota *quota = arena_take(arena, sizeof(*quota));
    dp__v1__quota__init(quota);
    quota->user = (char *)row->user;
    quota->ranks = row->ranks;
    quota->ranks_used = used;
    quota->updated_ns = row->updated_ns;
    return quota;
}

static Dp__V1__ListQuotasResponse *make_quotas(struct daemon *daemon, struct dp_arena *arena)
{
    Dp__V1__ListQuotasResponse *response = arena_take(arena, sizeof(*response));
    dp__v1__list_quotas_response__init(response);
    DP_AUTO_FREE const struct dp_quota_record **rows =
        dp_new_array(const struct dp_quota_record *, DP_QUOTAS_LISTED_MAX);
    DP_AUTO_FREE uint32_t *used = dp_new_array(uint32_t, DP_QUOTAS_LISTED_MAX);
    size_t count = dp_core_quotas(daemon->core, rows, used, DP_QUOTAS_LISTED_MAX);
    response->quotas = arena_take(arena, count * sizeof(void *));
    for (size_t i = 0; i < count; i++) {
        response->quotas[response->n_quotas++] = make_quota(rows[i], used[i], arena);
    }
    return response;
}

static void list_quotas(struct daemon *daemon, uint64_t call, const void *any,
                        struct dp_arena *arena)
{
    (void)any;
    call_reply(daemon, call, &make_quotas(daemon, arena)->base);
}

bool admin_is_method(dp_method_id method)
{
    return method == DP_METHOD_DRAIN_NODE || method == DP_METHOD_UNDRAIN_NODE ||
           method == DP_METHOD_SET_NODE || method == DP_METHOD_SET_QUOTA;
}

static void reply_quota(struct daemon *daemon, uint64_t call, const char *user,
                        struct dp_arena *arena)
{
    const Dp__V1__ListQuotasResponse *all = make_quotas(daemon, arena);
    Dp__V1__Quota none = DP__V1__QUOTA__INIT;
    none.user = (char *)user;
    const Dp__V1__Quota *found = &none;
    for (size_t i = 0; i < all->n_quotas; i++) {
        found = strcmp(all->quotas[i]->user, user) == 0 ? all->quotas[i] : found;
    }
    call_reply(daemon, call, &found->base);
}

static void add_fates(struct daemon *daemon, struct dp_arena *arena, Dp__V1__Node *node)
{
    node->fates = arena_take(arena, node->n_jobs * sizeof(char *));
    for (size_t i = 0; i < node->n_jobs; i++) {
        char text[DP_TEXT_MAX];
        dp_core_node_job_fate(daemon->core, node->name, node->jobs[i], text, sizeof(text));
        node->fates[node->n_fates++] = dp_arena_strdup(arena, text);
    }
}

void admin_reply(struct daemon *daemon, dp_method_id method, uint64_t call, const char *name)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    if (method == DP_METHOD_SET_QUOTA) {
        reply_quota(daemon, call, name, &arena);
        return;
    }
    Dp__V1__Node forgotten = DP__V1__NODE__INIT;
    forgotten.name = (char *)name;
    forgotten.state = (char *)"FORGOTTEN";
    Dp__V1__Node *node = service_node(daemon, name, &arena);
    if (node != NULL && method != DP_METHOD_UNDRAIN_NODE) {
        add_fates(daemon, &arena, node);
    }
    call_reply(daemon, call, node == NULL ? &forgotten.base : &node->base);
}

dp_status admin_load(struct daemon *daemon, struct dp_error *err)
{
    DP_AUTO_FREE struct dp_quota_record *rows = NULL;
    size_t count = 0;
    dp_status status = dp_store_load_quotas(daemon->store, &rows, &count, err);
    for (size_t i = 0; status == DP_OK && i < count; i++) {
        struct dp_core_event event = {.kind = DP_EVENT_LOAD_QUOTA, .load_quota = &rows[i]};
        daemon_step(daemon, &event);
    }
    return status;
}

SERVICE_HANDLER(drain_node, DRAIN_NODE)
SERVICE_HANDLER(undrain_node, UNDRAIN_NODE)
SERVICE_HANDLER(set_node, SET_NODE)
SERVICE_HANDLER(set_quota, SET_QUOTA)
SERVICE_HANDLER(list_quotas, LIST_QUOTAS)

const struct dp_rpc_handler admin_handlers[] = {
    {.method = DP_METHOD_DRAIN_NODE, .on_message = on_drain_node},
    {.method = DP_METHOD_UNDRAIN_NODE, .on_message = on_undrain_node},
    {.method = DP_METHOD_SET_NODE, .on_message = on_set_node},
    {.method = DP_METHOD_SET_QUOTA, .on_message = on_set_quota},
    {.method = DP_METHOD_LIST_QUOTAS, .on_message = on_list_quotas},
};
const size_t admin_handlers_count = DP_ARRAY_LENGTH(admin_handlers);
