#include "core_internal.h"

#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/clock.h"

void dp_core_config_init(struct dp_core_config *config)
{
    *config = (struct dp_core_config){
        .heartbeat_ms = 1000,
        .late_ms = 3500,
        .lease_margin_ms = 2000,
        .lease_default_ms = 10000,
        .fence_default_ms = 900000,
        .calibrate_ms = 60000,
        .prepare_timeout_ms = 120000,
        .collect_ms = 1000,
        .settle_ms = 2000,
        .stop_grace_ms = 5000,
        .stop_timeout_ms = 60000,
        .checkpoint_timeout_ms = 120000,
        .pause_timeout_ms = 120000, // evaluations and checkpoints are ends of steps, too
        .answer_timeout_ms = 120000,
        .cool_down_ms = 60000,
        .grow_ms = 10000,
        .measured_steps = 20,
        .recoveries_max = 3,
        .store_retry_ms = 1000,
        .save_ms = 5000,
        .active_jobs_max = DP_JOBS_ACTIVE_MAX,
        .queue = DP_QUEUE_BEST_EFFORT,
        .pass_ms = 600000,
        .backoff_max_ms = 300000,
        .preempt_ms = 60000,
        .heartbeats_per_s = 400,
        .start_grace_ms = 20000,
        .suspect_ms = 3600000,
    };
}

struct dp_core *dp_core_new(const struct dp_core_config *config)
{
    struct dp_core *core = dp_new(struct dp_core);
    core->config = *config;
    core->next_number = core->next_token = 1;
    core->trust = 1;
    return core;
}

static void forget_transaction(struct dp_core *core, struct core_transaction *transaction)
{
    HASH_DELETE(hh, core->transactions, transaction);
    free(transaction->jobs);
    free(transaction);
}

static void free_nodes(struct core_node *node)
{
    while (node != NULL) {
        struct core_node *next = node->next;
        dp_core_node_free(node);
        node = next;
    }
}

void dp_core_free(struct dp_core *core)
{
    if (core == NULL) {
        return;
    }
    while (core->jobs != NULL) {
        dp_core_job_remove(core->jobs);
    }
    HASH_CLEAR(by_name, core->nodes_by_name);
    HASH_CLEAR(by_session, core->nodes_by_session);
    free_nodes(core->nodes);
    free_nodes(core->gone_nodes);
    while (core->transactions != NULL) {
        forget_transaction(core, core->transactions);
    }
    dp_core_quotas_free(core);
    dp_core_audits_free(core);
    while (core->row_replies != NULL) {
        struct core_reply *next = core->row_replies->next;
        free(core->row_replies->text);
        free(core->row_replies);
        core->row_replies = next;
    }
    free(core->marks);
    free(core->ended);
    free(core->timers);
    free(core->sided);
    free(core->touched);
    free(core);
}

static void job_stored(struct dp_core *core, struct core_job *job, const struct dp_stored *stored)
{
    if (stored->error.status == DP_OK) {
        job->stored_token = stored->token > job->stored_token ? stored->token : job->stored_token;
        dp_core_pasts_stored(job, job->stored_token);
        dp_core_decisions_stored(job);
        if (dp_core_job_clean(job)) {
            dp_core_sides_stored(job);
        }
        bool ends = job->row.state == DP_STATE_STOPPING || dp_job_state_ended(job->row.state);
        if (ends && !job->gives_back && dp_core_job_clean(job)) {
            job->gives_back = true;
            dp_core_sides_recount(job);
            dp_core_job_advance(core, job); // it may have waited for that to begin again
        }
        if (job->row.state == DP_STATE_SUBMITTED && dp_core_job_clean(job)) {
            dp_core_job_move(core, job, DP_STATE_QUEUED, "", "%s", "");
        }
    } else if (job->dirty_token == stored->token && !dp_core_job_unheard(job)) {
        job->retry_ns = core->now_ns + core->config.store_retry_ms * DP_NS_PER_MS;
    }
}

// Rows of no job: what was decided about nodes and quotas.
static void rows_stored(struct dp_core *core, const struct dp_stored *stored)
{
    dp_core_release_rows(core, stored);
    if (stored->token > core->rows_token) {
        return;
    }
    dp_core_audits_stored(core, stored);
    dp_core_quotas_stored(core, stored);
    dp_core_admins_stored(core, stored);
    if (stored->error.status != DP_OK) {
        core->rows_retry_ns = core->now_ns + core->config.store_retry_ms * DP_NS_PER_MS;
    }
}

static void index_stored(struct dp_core *core, const struct dp_stored *stored)
{
    size_t answered = 0;
    while (answered < core->marks_count && core->marks[answered].token <= stored->token) {
        if (stored->error.status == DP_OK) {
            core->index_told = core->marks[answered].index;
        } else {
            core->index_behind = true;
        }
        answered++;
    }
    core->marks_count -= answered;
    if (answered == 0) {
        return;
    }
    memmove(core->marks, core->marks + answered, core->marks_count * sizeof(*core->marks));
}

// The step changed something that plans rest on, or stores anew what could not be stored.
static void mark_index(struct dp_core *core)
{
    bool again = core->index_behind && core->effects->store_token != 0;
    if (core->index == core->index_marked && !again) {
        return;
    }
    core->index_behind = core->index_behind && !again;
    core->index_marked = core->index;
    if (core->marks_count == core->marks_capacity) {
        core->marks_capacity = core->marks_capacity == 0 ? 16 : core->marks_capacity * 2;
        core->marks = dp_realloc(core->marks, core->marks_capacity, sizeof(*core->marks));
    }
    core->marks[core->marks_count++] = (struct core_mark){dp_core_token(core), core->index};
}

uint64_t dp_core_index(const struct dp_core *core)
{
    return core->index_told;
}

static void take_stored(struct dp_core *core, const struct dp_stored *stored)
{
    rows_stored(core, stored);
    index_stored(core, stored);
    struct core_transaction *transaction = NULL;
    HASH_FIND(hh, core->transactions, &stored->token, sizeof(stored->token), transaction);
    if (transaction == NULL) {
        return; // without jobs
    }
    for (size_t i = 0; i < transaction->count; i++) {
        struct core_job *job = dp_core_job_number(core, transaction->jobs[i]);
        if (job == NULL) {
            continue;
        }
        dp_core_job_touch(job);
        job_stored(core, job, stored);
        dp_core_release_replies(job, stored);
        if (stored->error.status != DP_OK && dp_core_job_unheard(job) &&
            job->dirty_token == stored->token) {
            dp_core_audits_refuse(core, job->row.number, &stored->error);
            dp_core_job_remove(job);
        }
    }
    forget_transaction(core, transaction);
}

static void take_deadlines(struct dp_core *core)
{
    struct core_timer **late;
    size_t count = dp_core_timers_late(core, &late);
    if (core->rows_retry_ns != 0 && core->now_ns >= core->rows_retry_ns) {
        core->rows_retry_ns = 0;
        dp_core_admins_store(core);
        dp_core_quotas_store(core);
        dp_core_audits_store(core);
    }
    for (size_t i = 0; i < count; i++) {
        if (late[i]->is_node) {
            dp_core_node_deadline(core, DP_CONTAINER(late[i], struct core_node, timer));
            continue;
        }
        struct core_job *job = DP_CONTAINER(late[i], struct core_job, timer);
        dp_core_job_touch(job);
        dp_core_job_deadline(core, job);
        if (job->retry_ns != 0 && core->now_ns >= job->retry_ns) {
            job->changed = job->ranks_changed = true;
        }
    }
}

// What a start finds, and what people ask. Whether it was that.
static bool take_ask(struct dp_core *core, const struct dp_core_event *event)
{
    switch (event->kind) {
    case DP_EVENT_LOAD_ENDED:
        dp_core_load_ended(core, &event->ended);
        break;
    case DP_EVENT_LOAD_NODE:
        dp_core_load_node(core, event->load_node);
        break;
    case DP_EVENT_LOAD_JOB:
        dp_core_load_job(core, &event->load_job);
        break;
    case DP_EVENT_LOAD_QUOTA:
        dp_core_load_quota(core, event->load_quota);
        break;
    case DP_EVENT_NODE_ASK:
        dp_core_node_ask(core, &event->node_ask);
        break;
    case DP_EVENT_QUOTA_ASK:
        dp_core_quota_ask(core, &event->quota_ask);
        break;
    case DP_EVENT_SUBMIT:
        dp_core_submit(core, &event->submit);
        break;
    case DP_EVENT_CANCEL:
        dp_core_job_cancel(core, &event->ask);
        break;
    case DP_EVENT_UPDATE:
        dp_core_job_update(core, &event->update);
        break;
    case DP_EVENT_CHECKPOINT:
        dp_core_job_checkpoint(core, &event->ask);
        break;
    case DP_EVENT_HOLD:
        dp_core_hold(core, &event->hold);
        break;
    case DP_EVENT_REASSIGN:
        dp_core_reassign_ask(core, &event->reassign);
        break;
    case DP_EVENT_LOAD_DECISION:
        dp_core_load_decision(core, event->load_decision);
        break;
    default:
        return false;
    }
    return true;
}

static void take_event(struct dp_core *core, const struct dp_core_event *event)
{
    if (take_ask(core, event)) {
        return;
    }
    switch (event->kind) {
    case DP_EVENT_HELLO:
        dp_core_hello(core, &event->hello);
        break;
    case DP_EVENT_HEARTBEAT:
        dp_core_heartbeat(core, &event->levels);
        break;
    case DP_EVENT_LEVEL:
        dp_core_level(core, &event->levels);
        break;
    case DP_EVENT_INVENTORY:
        dp_core_inventory(core, &event->inventory);
        break;
    case DP_EVENT_REPORT:
        dp_core_report(core, &event->report);
        break;
    case DP_EVENT_SESSION_CLOSED:
        dp_core_session_closed(core, event->session);
        break;
    case DP_EVENT_PLAN_DONE:
        dp_core_plan_done(core, &event->plan_done);
        break;
    case DP_EVENT_PLAN_FAILED:
        dp_core_plan_failed(core, &event->plan_failed);
        break;
    case DP_EVENT_STORED:
        take_stored(core, &event->stored);
        break;
    case DP_EVENT_ADAPT_DONE:
        dp_core_adapt_done(core, &event->adapt_done);
        break;
    case DP_EVENT_ADAPT_FAILED:
        dp_core_adapt_failed(core, &event->adapt_failed);
        break;
    default: // DP_EVENT_TICK
        break;
    }
}

static bool is_told(const struct core_job *job)
{
    for (size_t i = 0; i < job->members_count; i++) {
        const struct core_member *member = &job->members[i];
        const struct core_node *node = member->at;
        bool reachable = node != NULL && node->session != 0;
        // What may still run on a silent node keeps its slots, so it is not forgotten.
        bool kept = node != NULL && !dp_core_job_over(job, member->node);
        if (kept || (reachable && member->told != DP_ORDER_RELEASE)) {
            return false;
        }
    }
    return dp_core_sides_done(job->core, job);
}

// At the start of a step: the effects of the one before may still have spoken of the job.
static void forget_ended(struct dp_core *core)
{
    for (size_t i = 0; i < core->touched_count; i++) {
        struct core_job *job = core->touched[i];
        if (job != NULL && dp_job_state_ended(job->row.state) && dp_core_job_clean(job) &&
            !job->show && job->replies == NULL && is_told(job)) {
            dp_core_add_ended(core, job->row.number);
            dp_core_job_remove(job);
        }
    }
    dp_core_touched_clear(core);
}

static void note_transaction(struct dp_core *core, const struct core_job *job)
{
    uint64_t token = dp_core_token(core);
    struct core_transaction *transaction = NULL;
    HASH_FIND(hh, core->transactions, &token, sizeof(token), transaction);
    if (transaction == NULL) {
        transaction = dp_new(struct core_transaction);
        transaction->token = token;
        transaction->jobs = dp_new_array(uint64_t, core->touched_count);
        HASH_ADD(hh, core->transactions, token, sizeof(token), transaction);
    }
    transaction->jobs[transaction->count++] = job->row.number;
}

static void store_changes(struct dp_core *core)
{
    FOR_EACH_TOUCHED(core, job)
    {
        if (!job->changed && !job->ranks_changed) {
            continue;
        }
        job->row.ranks_count = (uint32_t)job->ranks_count;
        dp_core_store(core, DP_RECORD_JOB, &job->row);
        note_transaction(core, job);
        job->dirty_token = dp_core_token(core);
        job->retry_ns = 0;
        dp_core_decisions_store(core, job);
        // A row without the ranks that belong to it would be wrong if theirs is not stored.
        bool with_ranks = job->ranks_changed || job->ranks_token > job->stored_token;
        for (size_t i = 0; with_ranks && i < job->ranks_count; i++) {
            dp_core_store(core, DP_RECORD_RANK, &job->ranks[i]);
        }
        job->ranks_token = with_ranks ? job->dirty_token : job->ranks_token;
        dp_core_pasts_store(core, job);
        job->changed = job->ranks_changed = false;
    }
}

static void show_changes(struct dp_core *core)
{
    FOR_EACH_TOUCHED(core, job)
    {
        if (job->show && dp_core_job_clean(job)) {
            dp_core_effect(core, DP_EFFECT_JOB)->job = job->row.number;
            job->show = false;
        }
    }
}

static int64_t job_due(const struct dp_core *core, const struct core_job *job)
{
    int64_t due_ns = 0;
    dp_core_sooner(&due_ns, job->deadline_ns);
    dp_core_sooner(&due_ns, job->retry_ns);
    dp_core_sooner(&due_ns, job->backoff_ns);
    if (job->settle_ns > core->now_ns) {
        dp_core_sooner(&due_ns, job->settle_ns);
    }
    dp_core_sooner(&due_ns, dp_core_reassign_timer_ns(job));
    if (dp_core_job_trains(job)) {
        dp_core_sooner(&due_ns, job->save_ns);
    }
    if (job->row.state == DP_STATE_STOPPING && job->stop_ns > core->now_ns) {
        dp_core_sooner(&due_ns, job->stop_ns);
    }
    for (const struct core_checkpoint *c = job->checkpoints; c != NULL; c = c->next) {
        dp_core_sooner(&due_ns, c->deadline_ns);
    }
    return due_ns;
}

static void later(int64_t *at_ns, int64_t delay_ns)
{
    *at_ns += *at_ns == 0 ? 0 : delay_ns;
}

// Nothing could be heard or done while the owner stood still, so that time counts against nobody.
static void take_stall(struct dp_core *core, int64_t stalled_ns)
{
    int64_t settled_ns = core->now_ns + core->config.settle_ms * DP_NS_PER_MS;
    FOR_EACH_NODE(core, node)
    {
        later(&node->seen_ns, stalled_ns);
        later(&node->connected_ns, stalled_ns);
        if (node->leave_ns != 0 && node->leave_ns < settled_ns) {
            node->leave_ns = settled_ns; // people were told when; nodes say what has ended first
        }
    }
    FOR_EACH_JOB(core, job)
    {
        later(&job->deadline_ns, stalled_ns);
        later(&job->done_ns, stalled_ns);
        later(&job->words_ns, stalled_ns);
        later(&job->settle_ns, stalled_ns);
        later(&job->reassign.since_ns, stalled_ns);
        later(&job->reassign.answer_ns, stalled_ns);
        for (struct core_checkpoint *c = job->checkpoints; c != NULL; c = c->next) {
            later(&c->deadline_ns, stalled_ns);
        }
        for (size_t i = 0; i < job->members_count; i++) {
            later(&job->members[i].told_ns, stalled_ns);
        }
        dp_core_job_touch(job);
    }
    FOR_EACH_NODE(core, node)
    {
        dp_core_node_deadline(core, node);
    }
}

// What happened is written, told and shown.
static void finish_step(struct dp_core *core)
{
    FOR_EACH_TOUCHED(core, job)
    {
        if (job->recount) {
            dp_core_job_recount(job);
            job->recount = false;
        }
    }
    if (core->schedule || (core->fresh > 0 && !dp_core_schedule_fresh(core))) {
        core->schedule = false;
        dp_core_schedule(core);
        dp_core_grow_look(core);
    }
    dp_core_touched_sort(core);
    store_changes(core);
    mark_index(core);
    if (core->effects->store_token != 0) {
        dp_core_audits_store(core);
    }
    FOR_EACH_TOUCHED(core, job)
    {
        dp_core_job_drive(core, job);
        dp_core_timer_set(core, &job->timer, job_due(core, job));
    }
    show_changes(core);
}

void dp_core_step(struct dp_core *core, const struct dp_core_event *event,
                  struct dp_effects *effects)
{
    dp_arena_deinit(&effects->arena);
    dp_arena_init(&effects->arena, 0);
    effects->store_token = 0;
    effects->records_count = effects->count = 0;
    core->effects = effects;
    core->now_ns = event->now_ns;
    core->wall_ns = event->wall_ns;
    if (core->started_ns == 0) {
        core->started_ns = event->now_ns;
    }
    if (core->next_request == 0) {
        // Rises over restarts, too: a checkpoint reported for an earlier life's request is older.
        core->next_request = (uint64_t)(event->wall_ns / DP_NS_PER_MS) + 1;
    }
    forget_ended(core);
    if (event->stalled_ns > 0) {
        take_stall(core, event->stalled_ns);
    }
    dp_core_audit_begin(core, event);
    take_event(core, event);
    dp_core_audit_end(core, event);
    take_deadlines(core);
    finish_step(core);
    effects->timer_ns = dp_core_timer_first(core);
    dp_core_sooner(&effects->timer_ns, core->rows_retry_ns);
    core->effects = NULL;
}
