#include "core_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"

static const char *const order_texts[] = {
    [DP_ORDER_NONE] = "none",
    [DP_ORDER_WELCOME] = "welcome",
    [DP_ORDER_REFUSE] = "refuse",
    [DP_ORDER_ACK] = "ack",
    [DP_ORDER_PREPARE] = "prepare",
    [DP_ORDER_START] = "start",
    [DP_ORDER_STOP] = "stop",
    [DP_ORDER_RELEASE] = "release",
    [DP_ORDER_CHECKPOINT] = "checkpoint",
    [DP_ORDER_PROBE] = "probe",
    [DP_ORDER_REBALANCE] = "rebalance",
    [DP_ORDER_PAUSE] = "pause",
    [DP_ORDER_SETTLE] = "settle",
};

const char *dp_order_kind_text(dp_order_kind kind)
{
    return kind < DP_ARRAY_LENGTH(order_texts) ? order_texts[kind] : "unknown";
}

void dp_effects_deinit(struct dp_effects *effects)
{
    dp_arena_deinit(&effects->arena);
    free(effects->records);
    free(effects->items);
    *effects = (struct dp_effects){0};
}

struct dp_effect *dp_core_effect(struct dp_core *core, dp_effect_kind kind)
{
    struct dp_effects *effects = core->effects;
    if (effects->count == effects->capacity) {
        effects->capacity = effects->capacity == 0 ? 16 : effects->capacity * 2;
        effects->items = dp_realloc(effects->items, effects->capacity, sizeof(*effects->items));
    }
    struct dp_effect *effect = &effects->items[effects->count++];
    *effect = (struct dp_effect){.kind = kind, .text = "", .node = "", .event = ""};
    return effect;
}

uint64_t dp_core_token(struct dp_core *core)
{
    if (core->effects->store_token == 0) {
        core->effects->store_token = core->next_token++;
    }
    return core->effects->store_token;
}

void dp_core_store(struct dp_core *core, dp_record_kind kind, const void *row)
{
    struct dp_effects *effects = core->effects;
    dp_core_token(core);
    if (effects->records_count == effects->records_capacity) {
        effects->records_capacity =
            effects->records_capacity == 0 ? 16 : effects->records_capacity * 2;
        effects->records =
            dp_realloc(effects->records, effects->records_capacity, sizeof(*effects->records));
    }
    effects->records[effects->records_count++] = (struct dp_record){kind, row};
}

void *dp_core_keep(struct dp_core *core, const void *bytes, size_t length)
{
    void *copy = dp_arena_alloc(&core->effects->arena, length + 1);
    if (length > 0) {
        memcpy(copy, bytes, length);
    }
    return copy;
}

const char *dp_core_keep_text(struct dp_core *core, const char *text)
{
    return dp_core_keep(core, text, strlen(text));
}

void dp_core_note(struct dp_core *core, const struct core_job *job, const struct core_node *node,
                  bool warning, const char *kind, const char *format, ...)
{
    struct dp_event_record event = {.time_ns = core->wall_ns};
    va_list args;
    va_start(args, format);
    vsnprintf(event.message, sizeof(event.message), format, args);
    va_end(args);
    DP_COPY_TEXT(event.job, job != NULL ? job->row.id : "");
    DP_COPY_TEXT(event.node, node != NULL ? node->row.name : "");
    DP_COPY_TEXT(event.kind, kind);
    const struct dp_event_record *kept = dp_core_keep(core, &event, sizeof(event));
    dp_core_store(core, DP_RECORD_EVENT, kept);
    struct dp_effect *effect = dp_core_effect(core, DP_EFFECT_LOG);
    effect->event = kept->kind;
    effect->text = kept->message;
    effect->node = kept->node;
    effect->job = job != NULL ? job->row.number : 0;
    effect->warning = warning;
}

void dp_core_reply_error(struct dp_core *core, uint64_t reply, dp_status status, const char *format,
                         ...)
{
    if (reply == 0) {
        return;
    }
    char text[DP_ERROR_MESSAGE_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    dp_core_audit_refused(core, reply, status, text);
    struct dp_effect *effect = dp_core_effect(core, DP_EFFECT_REPLY);
    effect->reply = reply;
    effect->status = status;
    effect->text = dp_core_keep_text(core, text);
}

void dp_core_reply_job(struct dp_core *core, uint64_t reply, const struct core_job *job)
{
    if (reply != 0) {
        struct dp_effect *effect = dp_core_effect(core, DP_EFFECT_REPLY);
        effect->reply = reply;
        effect->job = job->row.number;
    }
}

// A waiting answer, or NULL when nobody wants it or it need not wait.
static struct core_reply *reply_later(struct dp_core *core, uint64_t reply, struct core_job *job)
{
    if (reply == 0 || dp_core_job_clean(job)) {
        return NULL;
    }
    struct core_reply *waiting = dp_new(struct core_reply);
    bool changes = job->changed || job->ranks_changed;
    *waiting = (struct core_reply){
        .reply = reply,
        .token = changes ? dp_core_token(core) : job->dirty_token,
        .next = job->replies,
    };
    job->replies = waiting;
    if (reply == core->audit_reply) {
        core->audit_answers = job->row.number;
    }
    dp_core_job_touch(job);
    return waiting;
}

void dp_core_reply_stored(struct dp_core *core, uint64_t reply, struct core_job *job)
{
    if (core->audit != NULL && reply != 0 && reply == core->audit_reply) {
        dp_core_job_changed(job); // the answer waits for the transaction that has the audit's row
    }
    if (reply_later(core, reply, job) == NULL) {
        dp_core_reply_job(core, reply, job);
    }
}

void dp_core_refuse_stored(struct dp_core *core, uint64_t reply, struct core_job *job,
                           dp_status status, const char *format, ...)
{
    char text[DP_ERROR_MESSAGE_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    struct core_reply *waiting = reply_later(core, reply, job);
    if (waiting == NULL) {
        dp_core_reply_error(core, reply, status, "%s", text);
        return;
    }
    dp_core_audit_refused(core, reply, status, text);
    waiting->status = status;
    waiting->text = dp_strdup(text);
}

static void reply_checkpoint(struct dp_core *core, uint64_t reply, uint64_t job, uint64_t step,
                             const char *path)
{
    struct dp_effect *effect = dp_core_effect(core, DP_EFFECT_REPLY);
    effect->reply = reply;
    effect->job = job;
    effect->request = step;
    effect->text = dp_core_keep_text(core, path);
}

void dp_core_reply_checkpoint(struct dp_core *core, uint64_t reply, struct core_job *job,
                              uint64_t step, const char *path)
{
    struct core_reply *waiting = reply_later(core, reply, job);
    if (waiting != NULL) {
        waiting->step = step;
        waiting->text = dp_strdup(path);
    } else if (reply != 0) {
        reply_checkpoint(core, reply, job->row.number, step, path);
    }
}

static void give_reply(const struct core_reply *waiting, const struct core_job *job)
{
    struct dp_core *core = job->core;
    if (waiting->status != DP_OK) {
        dp_core_reply_error(core, waiting->reply, waiting->status, "%s", waiting->text);
    } else if (waiting->text != NULL) {
        reply_checkpoint(core, waiting->reply, job->row.number, waiting->step, waiting->text);
    } else {
        dp_core_reply_job(core, waiting->reply, job);
    }
}

void dp_core_release_replies(struct core_job *job, const struct dp_stored *stored)
{
    bool dropped = dp_core_job_unheard(job) && stored->error.status != DP_OK;
    struct core_reply **link = &job->replies;
    while (*link != NULL) {
        struct core_reply *waiting = *link;
        if (dropped && waiting->token == stored->token) {
            dp_core_reply_error(job->core, waiting->reply, stored->error.status, "not stored: %s",
                                stored->error.message);
        } else if (job->stored_token >= waiting->token &&
                   !dp_core_audit_lacks(job->core, waiting->reply)) {
            give_reply(waiting, job);
        } else {
            link = &waiting->next;
            continue;
        }
        *link = waiting->next;
        free(waiting->text);
        free(waiting);
    }
}

void dp_core_reply_row(struct dp_core *core, uint64_t reply, const char *name)
{
    struct core_reply *waiting = dp_new(struct core_reply);
    *waiting = (struct core_reply){.reply = reply,
                                   .token = dp_core_token(core),
                                   .text = dp_strdup(name),
                                   .next = core->row_replies};
    core->row_replies = waiting;
}

void dp_core_release_rows(struct dp_core *core, const struct dp_stored *stored)
{
    struct core_reply **link = &core->row_replies;
    while (*link != NULL) {
        struct core_reply *waiting = *link;
        if (waiting->token != stored->token) {
            link = &waiting->next;
            continue;
        }
        if (stored->error.status != DP_OK) {
            dp_core_reply_error(core, waiting->reply, stored->error.status,
                                "it holds, but is not stored yet and tried again: %s",
                                stored->error.message);
        } else if (waiting->reply != 0) {
            struct dp_effect *effect = dp_core_effect(core, DP_EFFECT_REPLY);
            effect->reply = waiting->reply;
            effect->text = dp_core_keep_text(core, waiting->text);
        }
        *link = waiting->next;
        free(waiting->text);
        free(waiting);
    }
}

void dp_core_send(struct dp_core *core, const struct core_node *node, dp_order_kind order,
                  const struct dp_fence *fence, const char *text)
{
    struct dp_effect *effect = dp_core_effect(core, DP_EFFECT_SEND);
    effect->order = order;
    effect->session = node->session;
    effect->node = dp_core_keep_text(core, node->row.name);
    effect->grace_ms = core->config.stop_grace_ms;
    effect->text = text == NULL ? "" : dp_core_keep_text(core, text);
    if (fence != NULL) {
        effect->fence = *fence;
        effect->job = dp_core_number_of(fence->job);
    }
}
