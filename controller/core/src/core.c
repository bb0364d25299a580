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

void dp_core_free(struct dp_core *core)
{
    if (core == NULL) {
        return;
    }
    while (core->jobs != NULL) {
        dp_core_job_remove(core, core->jobs);
    }
    while (core->nodes != NULL) {
        struct core_node *next = core->nodes->next;
        dp_node_record_deinit(&core->nodes->row);
        free(core->nodes->foreign);
        free(core->nodes);
        core->nodes = next;
    }
    while (core->replies != NULL) {
        struct core_reply *next = core->replies->next;
        free(core->replies->text);
        free(core->replies);
        core->replies = next;
    }
    free(core->ended);
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
    FOR_EACH_JOB(core, job)
    {
        bool waits = job->dirty_token >= stored->token && job->stored_token < stored->token;
        if (waits) {
            job_stored(core, job, stored);
        }
    }
    dp_core_release_replies(core, stored);
    struct core_job *next;
    for (struct core_job *job = core->jobs; job != NULL; job = next) {
        next = job->next;
        if (stored->error.status != DP_OK && job->row.state == DP_STATE_SUBMITTED &&
            job->dirty_token == stored->token) {
            dp_core_job_remove(core, job);
        }
    }
}

static void take_deadlines(struct dp_core *core)
{
    dp_core_nodes_deadline(core);
    FOR_EACH_JOB(core, job)
    {
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
    case DP_EVENT_TICK:
    case DP_EVENT_KIND_COUNT:
        break;
    }
}

static bool is_told(struct dp_core *core, const struct core_job *job)
{
    for (size_t i = 0; i < job->members_count; i++) {
        const struct core_member *member = &job->members[i];
        const struct core_node *node = dp_core_node_find(core, member->node);
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
    struct core_job *next;
    for (struct core_job *job = core->jobs; job != NULL; job = next) {
        next = job->next;
        if (dp_job_state_ended(job->row.state) && dp_core_job_clean(job) && !job->show &&
            is_told(core, job)) {
            dp_core_add_ended(core, job->row.number);
            dp_core_job_remove(core, job);
        }
    }
}

static void store_changes(struct dp_core *core)
{
    FOR_EACH_JOB(core, job)
    {
        if (job->changed || job->ranks_changed) {
            job->row.ranks_count = (uint32_t)job->ranks_count;
            dp_core_store(core, DP_RECORD_JOB, &job->row);
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
    FOR_EACH_JOB(core, job)
    {
        if (job->show && dp_core_job_clean(job)) {
            dp_core_effect(core, DP_EFFECT_JOB)->job = job->row.number;
            job->show = false;
        }
    }
}

static void sooner(int64_t *timer_ns, int64_t at_ns)
{
    if (at_ns != 0 && (*timer_ns == 0 || at_ns < *timer_ns)) {
        *timer_ns = at_ns;
    }
}

static int64_t next_timer(const struct dp_core *core)
{
    int64_t timer_ns = 0;
    FOR_EACH_JOB(core, job)
    {
        sooner(&timer_ns, job->deadline_ns);
        sooner(&timer_ns, job->retry_ns);
        if (job->row.state == DP_STATE_RUNNING) {
            sooner(&timer_ns, job->save_ns);
        }
        if (job->row.state == DP_STATE_STOPPING && job->stop_ns > core->now_ns) {
            sooner(&timer_ns, job->stop_ns);
        }
        for (const struct core_checkpoint *c = job->checkpoints; c != NULL; c = c->next) {
            sooner(&timer_ns, c->deadline_ns);
        }
    }
    FOR_EACH_NODE(core, node)
    {
        if (node->state == DP_NODE_REGISTERING &&
            core->now_ns < dp_core_node_calibrated_ns(core, node)) {
            sooner(&timer_ns, dp_core_node_calibrated_ns(core, node));
        }
        if (node->state != DP_NODE_LATE && node->state != DP_NODE_LOST) {
            sooner(&timer_ns, dp_core_node_late_ns(core, node));
        }
        if (node->state != DP_NODE_LOST) {
            sooner(&timer_ns, dp_core_node_lost_ns(core, node));
        } else if (!node->fenced) {
            sooner(&timer_ns, dp_core_node_fence_ns(core, node));
        }
    }
    return timer_ns;
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
    }
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
    if (event->stalled_ns > 0) {
        take_stall(core, event->stalled_ns);
    }
    forget_ended(core);
    take_event(core, event);
    take_deadlines(core);
    dp_core_schedule(core);
    store_changes(core);
    FOR_EACH_JOB(core, job)
    {
        dp_core_job_drive(core, job);
    }
    show_changes(core);
    effects->timer_ns = next_timer(core);
    core->effects = NULL;
}
