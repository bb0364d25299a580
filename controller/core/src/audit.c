// Who asked for a change: kept in the transaction that makes it, or alone when it is refused. What
// a full disk kept off goes with the next transaction: no change is told of without its row.
#include "core_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"

#define PENDING_MAX 4096 // rows that are kept until they are stored; more are tried once

static void describe_quota(const struct dp_core *core, const char *user, char *ret_text,
                           size_t size)
{
    struct core_quota *quota = NULL;
    HASH_FIND(by_user, core->quotas, user, strlen(user), quota);
    if (quota == NULL || quota->row.deleted) {
        snprintf(ret_text, size, "any number");
    } else {
        snprintf(ret_text, size, "%u ranks", quota->row.ranks);
    }
}

// "RUNNING 1.3": state, attempt and epoch of a job, or "priority 5 held"; the state of a node; how
// many ranks a user may have; "" = none of them.
static void describe(const struct dp_core *core, const char *object, dp_core_event_kind kind,
                     char *ret_text, size_t size)
{
    if (kind == DP_EVENT_QUOTA_ASK) {
        describe_quota(core, object, ret_text, size);
        return;
    }
    bool is_node = kind == DP_EVENT_NODE_ASK;
    const struct core_job *job = dp_core_job_number(core, dp_core_number_of(object));
    const struct core_node *node = dp_core_node_find(core, object);
    ret_text[0] = '\0';
    if (is_node && node != NULL) {
        snprintf(ret_text, size, "%s", dp_node_state_text(node->state));
    } else if (kind == DP_EVENT_UPDATE && job != NULL) {
        snprintf(ret_text, size, "priority %d%s", job->row.priority,
                 job->row.held_ns == 0 ? "" : " held");
    } else if (!is_node && job != NULL) {
        snprintf(ret_text, size, "%s %u.%u", dp_job_state_text(job->row.state), job->row.attempt,
                 job->row.epoch);
    }
}

void dp_core_audit_begin(struct dp_core *core, const struct dp_core_event *event)
{
    core->audit = NULL;
    if (event->audit == NULL) {
        return;
    }
    core->audit = dp_core_keep(core, event->audit, sizeof(*core->audit));
    core->audit_reply = event->audit_reply;
    core->audit->time_ns = core->wall_ns;
    core->audit_number = core->next_number;
    core->audit_answers = 0;
    DP_COPY_TEXT(core->audit->outcome, "ok");
    if (core->audit->before[0] == '\0') {
        describe(core, core->audit->object, event->kind, core->audit->before,
                 sizeof(core->audit->before));
    }
}

void dp_core_audit_refused(struct dp_core *core, uint64_t reply, dp_status status, const char *text)
{
    if (core->audit != NULL && reply != 0 && reply == core->audit_reply) {
        DP_COPY_TEXT(core->audit->outcome, dp_status_name(status));
        DP_COPY_TEXT(core->audit->message, text);
    }
}

// Into the step's transaction, and at the end of the list.
static void put(struct dp_core *core, struct core_audit *audit)
{
    dp_core_store(core, DP_RECORD_AUDIT, &audit->row);
    audit->token = core->rows_token = dp_core_token(core);
    audit->unstored = false;
    audit->next = NULL;
    *(core->audits == NULL ? &core->audits : core->audits_last) = audit;
    core->audits_last = &audit->next;
}

static void take_out(struct dp_core *core, struct core_audit **link)
{
    struct core_audit *audit = *link;
    *link = audit->next;
    core->audits_last = core->audits_last == &audit->next ? link : core->audits_last;
}

void dp_core_audit_end(struct dp_core *core, const struct dp_core_event *event)
{
    struct dp_audit_record *row = core->audit;
    if (row == NULL) {
        return;
    }
    const struct core_job *job = NULL;
    if (event->kind == DP_EVENT_SUBMIT) {
        job = core->next_number > core->audit_number
                  ? dp_core_job_number(core, core->audit_number)
                  : dp_core_job_by_request(core, event->submit.request_id);
    }
    if (job != NULL) {
        DP_COPY_TEXT(row->object, job->row.id);
    }
    if (row->after[0] == '\0') {
        describe(core, row->object, event->kind, row->after, sizeof(row->after));
    }
    if (core->audits_count < PENDING_MAX) {
        struct core_audit *kept = dp_new(struct core_audit);
        kept->row = *row;
        kept->reply = core->audit_reply;
        kept->answers = core->audit_answers;
        if (event->kind == DP_EVENT_CHECKPOINT) {
            kept->answers = dp_core_number_of(event->ask.job); // it is answered later
        }
        kept->job = core->next_number > core->audit_number ? core->audit_number : 0;
        core->audits_count++;
        put(core, kept);
    } else {
        dp_core_store(core, DP_RECORD_AUDIT, row);
    }
    core->audit = NULL;
}

// It is on disk: an answer may have waited for it.
static void forget(struct dp_core *core, struct core_audit *audit, const struct dp_stored *stored)
{
    struct core_job *job = audit->failed ? dp_core_job_number(core, audit->answers) : NULL;
    core->audits_failed -= audit->failed;
    free(audit);
    if (job != NULL) {
        dp_core_job_touch(job);
        dp_core_release_replies(job, stored);
    }
}

void dp_core_audits_stored(struct dp_core *core, const struct dp_stored *stored)
{
    struct core_audit *const *end = core->audits_last;
    struct core_audit **link = &core->audits;
    while (core->audits != NULL && link != end && (*link)->token <= stored->token) {
        struct core_audit *audit = *link;
        if (audit->token != stored->token) {
            link = &audit->next; // it has failed before
        } else if (stored->error.status != DP_OK) {
            core->audits_failed += !audit->failed;
            audit->unstored = audit->failed = core->audits_unstored = true;
            link = &audit->next;
        } else {
            take_out(core, link);
            core->audits_count--;
            end = core->audits_last;
            forget(core, audit, stored);
        }
    }
}

bool dp_core_audit_lacks(const struct dp_core *core, uint64_t reply)
{
    const struct core_audit *audit = core->audits_failed > 0 ? core->audits : NULL;
    while (audit != NULL && !(audit->failed && audit->reply == reply)) {
        audit = audit->next;
    }
    return audit != NULL;
}

bool dp_core_audit_has(const struct dp_core *core, const char *request_id, const char *object)
{
    const struct core_audit *audit = request_id[0] == '\0' ? NULL : core->audits;
    while (audit != NULL &&
           (strcmp(audit->row.request_id, request_id) != 0 ||
            strcmp(audit->row.object, object) != 0 || strcmp(audit->row.outcome, "ok") != 0)) {
        audit = audit->next;
    }
    return audit != NULL;
}

void dp_core_audits_store(struct dp_core *core)
{
    struct core_audit **link = &core->audits;
    for (size_t left = core->audits_count; core->audits_unstored && left > 0; left--) {
        struct core_audit *audit = *link;
        if (audit->unstored) {
            take_out(core, link);
            put(core, audit);
        } else {
            link = &audit->next;
        }
    }
    core->audits_unstored = false;
}

void dp_core_audits_refuse(struct dp_core *core, uint64_t job, const struct dp_error *error)
{
    for (struct core_audit *audit = core->audits; audit != NULL; audit = audit->next) {
        // Also of who asked for the same again meanwhile.
        if (audit->job == job || audit->answers == job) {
            DP_COPY_TEXT(audit->row.outcome, dp_status_name(error->status));
            snprintf(audit->row.message, sizeof(audit->row.message), "not stored: %.*s",
                     DP_TEXT_MAX / 2, error->message);
            audit->row.after[0] = '\0';
            audit->job = audit->answers = 0;
            audit->reply = 0; // it is answered: no other answer waits for this row
        }
    }
}

void dp_core_audits_free(struct dp_core *core)
{
    while (core->audits != NULL) {
        struct core_audit *next = core->audits->next;
        free(core->audits);
        core->audits = next;
    }
}
