// Who asked for a change: kept in the transaction that makes it, or alone when it is refused.
#include "core_internal.h"

#include <stdio.h>
#include <string.h>

// "RUNNING 1.3": state, attempt and epoch of a job; the state of a node; "" = neither.
static void describe(const struct dp_core *core, const char *object, bool is_node, char *ret_text,
                     size_t size)
{
    const struct core_job *job = dp_core_job_number(core, dp_core_number_of(object));
    const struct core_node *node = dp_core_node_find(core, object);
    ret_text[0] = '\0';
    if (is_node && node != NULL) {
        snprintf(ret_text, size, "%s", dp_node_state_text(node->state));
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
    DP_COPY_TEXT(core->audit->outcome, "ok");
    if (core->audit->before[0] == '\0') {
        describe(core, core->audit->object, event->kind == DP_EVENT_NODE_ASK, core->audit->before,
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
        describe(core, row->object, event->kind == DP_EVENT_NODE_ASK, row->after,
                 sizeof(row->after));
    }
    dp_core_store(core, DP_RECORD_AUDIT, row);
    core->audit = NULL;
}
