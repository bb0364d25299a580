#include "audit.h"

#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/clock.h"

#define LIST_DEFAULT 1000

void audit_fill(struct daemon *daemon, uint64_t call, dp_method_id method, const char *user,
                const char *object, struct dp_audit_record *ret_row)
{
    struct dp_audit_record row = {.time_ns = dp_clock_realtime_ns()};
    bool http = dp_rest_is_call(call);
    DP_COPY_TEXT(row.door, http ? "http" : "grpc");
    // HTTP is served to this machine alone.
    DP_COPY_TEXT(row.peer, http ? "loopback" : "");
    if (!http) {
        dp_rpc_call_peer(daemon->server, call, row.peer, sizeof(row.peer));
    }
    DP_COPY_TEXT(row.verb, strrchr(dp_methods[method].name, '/') + 1);
    DP_COPY_TEXT(row.user, user);
    DP_COPY_TEXT(row.object, object);
    *ret_row = row;
}

void audit_keep(struct daemon *daemon, struct dp_audit_record *row, const struct dp_error *why)
{
    bool ok = why->status == DP_OK;
    DP_COPY_TEXT(row->outcome, ok ? "ok" : dp_status_name(why->status));
    DP_COPY_TEXT(row->message, ok ? "" : why->message);
    struct dp_record record = {DP_RECORD_AUDIT, row};
    dp_store_submit(daemon->store, 0, &record, 1);
}

void audit_refuse(struct daemon *daemon, uint64_t call, struct dp_audit_record *row,
                  const struct dp_error *why)
{
    audit_keep(daemon, row, why);
    call_fail_error(daemon, call, why);
}

static Dp__V1__AuditEntry *make_entry(const struct dp_audit_record *row, struct dp_arena *arena)
{
    Dp__V1__AuditEntry *entry = arena_take(arena, sizeof(*entry));
    dp__v1__audit_entry__init(entry);
    entry->index = row->id;
    entry->time_ns = row->time_ns;
    entry->user = (char *)row->user;
    entry->peer = (char *)row->peer;
    entry->door = (char *)row->door;
    entry->verb = (char *)row->verb;
    entry->object = (char *)row->object;
    entry->request_id = (char *)row->request_id;
    entry->before = (char *)row->before;
    entry->after = (char *)row->after;
    entry->outcome = (char *)row->outcome;
    entry->message = (char *)row->message;
    return entry;
}

static void list_audit(struct daemon *daemon, uint64_t call, const void *any,
                       struct dp_arena *arena)
{
    const Dp__V1__ListAuditRequest *request = any;
    uint32_t limit = request->limit == 0 ? LIST_DEFAULT : request->limit;
    limit = limit < DP_HISTORY_LISTED_MAX ? limit : DP_HISTORY_LISTED_MAX;
    struct dp_store_audit_filter filter = {.object = request->object,
                                           .user = request->of_user,
                                           .since_ns = request->since_ns,
                                           .after = request->after,
                                           .limit = limit + 1};
    DP_AUTO_FREE struct dp_audit_record *rows = NULL;
    size_t count = 0;
    struct dp_error err = {0};
    if (dp_store_load_audit(daemon->store, &filter, &rows, &count, &err) != DP_OK) {
        call_fail_error(daemon, call, &err);
        return;
    }
    Dp__V1__ListAuditResponse response = DP__V1__LIST_AUDIT_RESPONSE__INIT;
    response.more = count > limit;
    count = response.more ? limit : count;
    response.entries = arena_take(arena, count * sizeof(void *));
    for (size_t i = 0; i < count; i++) {
        response.entries[response.n_entries++] = make_entry(&rows[i], arena);
    }
    call_reply(daemon, call, &response.base);
}

static Dp__V1__HistoryDecision *make_decision(const struct dp_decision_record *row,
                                              struct dp_arena *arena)
{
    Dp__V1__HistoryDecision *decision = arena_take(arena, sizeof(*decision));
    dp__v1__history_decision__init(decision);
    decision->number = row->number;
    decision->time_ns = row->time_ns;
    decision->state = (Dp__V1__DecisionState)row->state;
    decision->step = row->step;
    decision->kind = dp_arena_printf(arena, "%s", row->kind);
    decision->cause = dp_arena_printf(arena, "%s", row->cause);
    decision->answer = dp_arena_printf(arena, "%s", row->action);
    decision->outcome = dp_arena_printf(arena, "%s", row->outcome);
    decision->predicted_step_s = (double)row->predicted_step_ns / 1e9;
    decision->measured_step_s = (double)row->measured_step_ns / 1e9;
    decision->before_step_s = (double)row->before_step_ns / 1e9;
    decision->measured_pause_s = (double)row->measured_pause_ns / 1e9;
    return decision;
}

static Dp__V1__Attempt *make_attempt(const struct dp_attempt_record *row, struct dp_arena *arena)
{
    Dp__V1__Attempt *attempt = arena_take(arena, sizeof(*attempt));
    dp__v1__attempt__init(attempt);
    attempt->attempt = row->attempt;
    attempt->started_ns = row->started_ns;
    attempt->ended_ns = row->ended_ns;
    attempt->first_step = row->first_step;
    attempt->last_step = row->last_step;
    attempt->checkpoint_step = row->checkpoint_step;
    attempt->reason = dp_arena_printf(arena, "%s", row->reason);
    attempt->message = dp_arena_printf(arena, "%s", row->message);
    return attempt;
}

static dp_status add_decisions(struct daemon *daemon, uint64_t job, Dp__V1__HistoryEntry *entry,
                               struct dp_arena *arena, struct dp_error *err)
{
    struct dp_decision_record *rows = NULL;
    size_t count = 0;
    dp_status status =
        dp_store_load_decisions(daemon->store, job, DP_HISTORY_PARTS_MAX, &rows, &count, err);
    if (status != DP_OK) {
        return status;
    }
    entry->decisions = arena_take(arena, count * sizeof(void *));
    for (size_t i = 0; i < count; i++) {
        entry->decisions[entry->n_decisions++] = make_decision(&rows[i], arena);
        dp_decision_record_deinit(&rows[i]);
    }
    free(rows);
    return DP_OK;
}

static dp_status add_attempts(struct daemon *daemon, uint64_t job, Dp__V1__HistoryEntry *entry,
                              struct dp_arena *arena, struct dp_error *err)
{
    DP_AUTO_FREE struct dp_attempt_record *rows = NULL;
    size_t count = 0;
    dp_status status = dp_store_load_attempts(daemon->store, job, &rows, &count, err);
    if (status != DP_OK) {
        return status;
    }
    entry->attempts = arena_take(arena, count * sizeof(void *));
    for (size_t i = 0; i < count; i++) {
        entry->attempts[entry->n_attempts++] = make_attempt(&rows[i], arena);
    }
    return DP_OK;
}

static Dp__V1__HistoryEntry *make_history(struct daemon *daemon, const struct dp_job_record *job,
                                          struct dp_arena *arena, struct dp_error *err)
{
    Dp__V1__HistoryEntry *entry = arena_take(arena, sizeof(*entry));
    dp__v1__history_entry__init(entry);
    struct job_view view = {.job = job};
    entry->job = message_job(&view, JOB_BRIEF, arena);
    if (add_attempts(daemon, job->number, entry, arena, err) != DP_OK ||
        add_decisions(daemon, job->number, entry, arena, err) != DP_OK) {
        return NULL;
    }
    return entry;
}

static void list_history(struct daemon *daemon, uint64_t call, const void *any,
                         struct dp_arena *arena)
{
    const Dp__V1__ListHistoryRequest *request = any;
    uint32_t limit = request->limit == 0 ? LIST_DEFAULT / 10 : request->limit;
    limit = limit < DP_JOBS_LISTED_MAX ? limit : DP_JOBS_LISTED_MAX;
    struct dp_job_record *jobs = NULL;
    size_t count = 0;
    struct dp_error err = {0};
    dp_status status = dp_store_load_history(daemon->store, request->of_user, request->since_ns,
                                             limit, &jobs, &count, &err);
    Dp__V1__ListHistoryResponse response = DP__V1__LIST_HISTORY_RESPONSE__INIT;
    response.entries = arena_take(arena, (count + 1) * sizeof(void *));
    for (size_t i = 0; i < count && status == DP_OK; i++) {
        Dp__V1__HistoryEntry *entry = make_history(daemon, &jobs[i], arena, &err);
        status = entry == NULL ? err.status : DP_OK;
        response.entries[response.n_entries] = entry;
        response.n_entries += entry != NULL;
    }
    if (status == DP_OK) {
        call_reply(daemon, call, &response.base);
    } else {
        call_fail_error(daemon, call, &err);
    }
    for (size_t i = 0; i < count; i++) {
        dp_job_record_deinit(&jobs[i]);
    }
    free(jobs);
}

SERVICE_HANDLER(list_audit, LIST_AUDIT)
SERVICE_HANDLER(list_history, LIST_HISTORY)

const struct dp_rpc_handler audit_handlers[] = {
    {.method = DP_METHOD_LIST_AUDIT, .on_message = on_list_audit},
    {.method = DP_METHOD_LIST_HISTORY, .on_message = on_list_history},
};
const size_t audit_handlers_count = DP_ARRAY_LENGTH(audit_handlers);
