#include "decisions.h"

#include <stdlib.h>
#include <string.h>

#include "audit.h"
#include "dp/adapt.h"
#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/log.h"

#define DECISIONS_SHOWN 5 // with their job

static double seconds(int64_t ns)
{
    return (double)ns / DP_NS_PER_S;
}

Dp__V1__Decision *decision_message(const struct dp_decision_record *from, bool document,
                                   struct dp_arena *arena)
{
    Dp__V1__Decision *to = arena_take(arena, sizeof(*to));
    dp__v1__decision__init(to);
    to->number = from->number;
    to->time_ns = from->time_ns;
    to->state = (Dp__V1__DecisionState)from->state;
    to->step = from->step;
    to->attempt = from->attempt;
    to->epoch = from->epoch;
    to->kind = dp_arena_strdup(arena, from->kind);
    to->cause = dp_arena_strdup(arena, from->cause);
    to->answer = dp_arena_strdup(arena, from->action);
    to->outcome = dp_arena_strdup(arena, from->outcome);
    to->before_step_s = seconds(from->before_step_ns);
    to->predicted_step_s = seconds(from->predicted_step_ns);
    to->measured_step_s = seconds(from->measured_step_ns);
    to->predicted_pause_s = seconds(from->predicted_pause_ns);
    to->measured_pause_s = seconds(from->measured_pause_ns);
    to->trust_before = from->trust_before;
    to->trust_after = from->trust_after;
    if (document) {
        to->document.data = arena_take(arena, from->document.length + 1);
        to->document.len = from->document.length;
        if (from->document.length > 0) {
            memcpy(to->document.data, from->document.bytes, from->document.length);
        }
    }
    return to;
}

static void free_all(struct dp_decision_record *decisions, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        dp_decision_record_deinit(&decisions[i]);
    }
    free(decisions);
}

size_t decisions_of(struct daemon *daemon, uint64_t job, uint32_t newest, bool documents,
                    struct dp_arena *arena, Dp__V1__Decision ***ret_decisions, struct dp_error *err)
{
    struct dp_decision_record *rows = NULL;
    size_t count = 0;
    if (dp_store_load_decisions(daemon->store, job, newest, &rows, &count, err) != DP_OK) {
        return 0;
    }
    Dp__V1__Decision **messages = arena_take(arena, (count + 1) * sizeof(void *));
    for (size_t i = 0; i < count; i++) {
        messages[i] = decision_message(&rows[i], documents, arena);
    }
    free_all(rows, count);
    *ret_decisions = messages;
    return count;
}

void decisions_show(struct daemon *daemon, uint64_t number, Dp__V1__Job *job,
                    struct dp_arena *arena)
{
    struct dp_error err = {0};
    job->n_decisions =
        decisions_of(daemon, number, DECISIONS_SHOWN, false, arena, &job->decisions, &err);
    if (err.status != DP_OK) {
        dp_log_warn("decisions.unreadable", "job=%s reason=\"%s\"", job->id, err.message);
    }
}

static void list_decisions(struct daemon *daemon, uint64_t call, const void *any,
                           struct dp_arena *arena)
{
    const Dp__V1__ListDecisionsRequest *request = any;
    struct dp_error err = {0};
    DP_CLEANUP(view_deinit) struct job_view view = {0};
    Dp__V1__ListDecisionsResponse response = DP__V1__LIST_DECISIONS_RESPONSE__INIT;
    if (view_find(daemon, request->id, &view, &err) == DP_OK) {
        response.n_decisions = decisions_of(daemon, view.job->number, DP_HISTORY_PARTS_MAX, true,
                                            arena, &response.decisions, &err);
    }
    if (err.status != DP_OK) {
        call_fail_error(daemon, call, &err);
        return;
    }
    call_reply(daemon, call, &response.base);
}

static dp_status check_answer(const Dp__V1__ReassignJobRequest *request, struct dp_error *err)
{
    dp_adapt_kind kind = DP_ADAPT_IGNORE;
    if (request->answer[0] == '\0') {
        return DP_OK;
    }
    if (!dp_adapt_kind_of(request->answer, &kind) || kind == DP_ADAPT_IGNORE) {
        DP_CLEANUP(dp_buf_deinit) struct dp_buf known = {0};
        for (int k = DP_ADAPT_IGNORE + 1; k < DP_ADAPT_KIND_COUNT; k++) {
            dp_buf_printf(&known, "%s%s", known.length > 0 ? ", " : "",
                          dp_adapt_kind_text((dp_adapt_kind)k));
        }
        return dp_fail(err, DP_INVALID, "answer \"%.*s\" is none of %s", DP_NAME_MAX,
                       request->answer, known.bytes);
    }
    return request->away[0] == '\0'
               ? DP_OK
               : dp_fail(err, DP_INVALID,
                         "a node to leave is an answer of its own: give one of "
                         "\"away\" and \"answer\"");
}

static void reassign_job(struct daemon *daemon, uint64_t call, const void *any,
                         struct dp_arena *arena)
{
    (void)arena;
    const Dp__V1__ReassignJobRequest *request = any;
    struct dp_error err = {0};
    DP_CLEANUP(view_deinit) struct job_view view = {0};
    struct dp_audit_record audit;
    audit_fill(daemon, call, DP_METHOD_REASSIGN_JOB, request->user, request->id, &audit);
    if (check_answer(request, &err) == DP_OK &&
        view_find(daemon, request->id, &view, &err) == DP_OK) {
        DP_COPY_TEXT(audit.object, view.job->id);
        view_check_live(&view, &err);
    }
    if (err.status != DP_OK) {
        audit_refuse(daemon, call, &audit, &err);
        return;
    }
    struct dp_core_event event = {.kind = DP_EVENT_REASSIGN,
                                  .audit = &audit,
                                  .audit_reply = call,
                                  .reassign = {.reply = call,
                                               .away = request->away,
                                               .answer = request->answer,
                                               .advise = request->advise}};
    DP_COPY_TEXT(event.reassign.job, view.job->id);
    daemon_expect(daemon, call, DP_METHOD_REASSIGN_JOB);
    daemon_step(daemon, &event);
}

SERVICE_HANDLER(list_decisions, LIST_DECISIONS)
SERVICE_HANDLER(reassign_job, REASSIGN_JOB)

const struct dp_rpc_handler decision_handlers[] = {
    {.method = DP_METHOD_LIST_DECISIONS, .on_message = on_list_decisions},
    {.method = DP_METHOD_REASSIGN_JOB, .on_message = on_reassign_job},
};
