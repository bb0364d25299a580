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
        .lease_margin_ms = 3000,
        .lease_default_ms = 10000,
        .fence_default_ms = 900000,
        .calibrate_ms = 60000,
        .prepare_timeout_ms = 120000,
        .collect_ms = 1000,
        .settle_ms = 2000,
        .stop_grace_ms = 5000,
        .stop_timeout_ms = 60000,
        .checkpoint_timeout_ms = 120000,
        .store_retry_ms = 1000,
        .save_ms = 5000,
        .active_jobs_max = DP_JOBS_LISTED_MAX,
    };
}

struct dp_core *dp_core_new(const struct dp_core_config *config)
{
    struct dp_core *core = dp_new(struct dp_core);
    core->config = *config;
    core->next_number = core->next_token = 1;
    return core;
}

const struct dp_core_config *dp_core_config_of(const struct dp_core *core)
{
    return &core->config;
}

static void forget_transaction(struct dp_core *core, struct core_transaction *transaction)
{
    HASH_DELETE(hh, core->transactions, transaction);
    free(transaction->jobs);
    free(transaction);
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
    while (core->nodes != NULL) {
        struct core_node *next = core->nodes->next;
        dp_node_record_deinit(&core->nodes->row);
        free(core->nodes->foreign);
        free(core->nodes->jobs);
        free(core->nodes);
        core->nodes = next;
    }
    while (core->transactions != NULL) {
        forget_transaction(core, core->transactions);
    }
    free(core->ended);
    free(core->timers);
    free(core->touched);
    free(core);
}

static void job_stored(struct dp_core *core, struct core_job *job, const struct dp_stored *stored)
{
    if (stored->error.status == DP_OK) {
        job->stored_token = stored->token > job->stored_token ? stored->token : job->stored_token;
        if (job->row.state == DP_STATE_SUBMITTED && dp_core_job_clean(job)) {
            dp_core_job_move(core, job, DP_STATE_QUEUED, "", "%s", "");
        }
    } else if (job->dirty_token == stored->token && job->row.state != DP_STATE_SUBMITTED) {
        job->retry_ns = core->now_ns + core->config.store_retry_ms * DP_NS_PER_MS;
    }
}

static void take_stored(struct dp_core *core, const struct dp_stored *stored)
{
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
        if (stored->error.status != DP_OK && job->row.state == DP_STATE_SUBMITTED &&
            job->dirty_token == stored->token) {
            dp_core_job_remove(job);
        }
    }
    forget_transaction(core, transaction);
}

static void take_deadlines(struct dp_core *core)
{
    struct core_timer **late;
    size_t count = dp_core_timers_late(core, &late);
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

static void take_event(struct dp_core *core, const struct dp_core_event *event)
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
    case DP_EVENT_SUBMIT:
        dp_core_submit(core, &event->submit);
        break;
    case DP_EVENT_CANCEL:
        dp_core_job_cancel(core, &event->ask);
        break;
    case DP_EVENT_CHECKPOINT:
        dp_core_job_checkpoint(core, &event->ask);
        break;
    case DP_EVENT_HOLD:
        dp_core_hold(core, &event->hold);
        break;
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
    case DP_EVENT_LOAD_DECISION:
    case DP_EVENT_ADAPT_DONE:
    case DP_EVENT_ADAPT_FAILED:
    case DP_EVENT_TICK:
    case DP_EVENT_KIND_COUNT:
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
    return true;
}

// At the start of a step: the effects of the one before may still have spoken of the job.
static void forget_ended(struct dp_core *core)
{
    for (size_t i = 0; i < core->touched_count; i++) {
        struct core_job *job = core->touched[i];
        if (job != NULL && dp_job_state_ended(job->row.state) && dp_core_job_clean(job) &&
            !job->show && is_told(job)) {
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
        if (job->changed || job->ranks_changed) {
            job->row.ranks_count = (uint32_t)job->ranks_count;
            dp_core_store(core, DP_RECORD_JOB, &job->row);
            note_transaction(core, job);
            job->dirty_token = dp_core_token(core);
            job->retry_ns = 0;
        }
        for (size_t i = 0; job->ranks_changed && i < job->ranks_count; i++) {
            dp_core_store(core, DP_RECORD_RANK, &job->ranks[i]);
        }
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
    if (job->row.state == DP_STATE_RUNNING) {
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
    FOR_EACH_NODE(core, node)
    {
        later(&node->seen_ns, stalled_ns);
        later(&node->connected_ns, stalled_ns);
    }
    FOR_EACH_JOB(core, job)
    {
        later(&job->deadline_ns, stalled_ns);
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
    if (core->schedule) {
        core->schedule = false;
        dp_core_schedule(core);
    }
    dp_core_touched_sort(core);
    store_changes(core);
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
    if (core->next_request == 0) {
        // Rises over restarts, too: a checkpoint reported for an earlier life's request is older.
        core->next_request = (uint64_t)(event->wall_ns / DP_NS_PER_MS) + 1;
    }
    forget_ended(core);
    if (event->stalled_ns > 0) {
        take_stall(core, event->stalled_ns);
    }
    take_event(core, event);
    take_deadlines(core);
    finish_step(core);
    effects->timer_ns = dp_core_timer_first(core);
    core->effects = NULL;
}
