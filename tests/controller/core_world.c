#include "core_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/clock.h"
#include "dp_test.h"

static void take_send(struct world *world, const struct dp_effect *effect)
{
    DP_CHECK(world->sent_count < WORLD_SENT_MAX);
    struct world_order *sent = &world->sent[world->sent_count++];
    *sent = (struct world_order){
        .order = effect->order,
        .fence = effect->fence,
        .status = effect->status,
        .session = effect->session,
        .request = effect->request,
        .checkpoint = effect->checkpoint,
        .grace_ms = effect->grace_ms,
        .heartbeat_ms = effect->heartbeat_ms,
        .grad_norm = effect->grad_norm,
    };
    DP_COPY_TEXT(sent->node, effect->node);
}

static void take_ask(struct world *world, const struct dp_effect *effect)
{
    const struct dp_adapt_ask *ask = effect->adapt;
    struct world_asked *asked = &world->asked;
    *asked = (struct world_asked){
        .job = effect->job,
        .request = ask->request,
        .step = ask->step,
        .steps_left = ask->steps_left,
        .recovers = ask->recovers,
        .grows = ask->grows,
        .lost_count = ask->lost_count,
        .step_ns = ask->step_ns,
        .restart_ns = ask->restart_ns,
        .trust = ask->trust,
        .nodes_count = effect->nodes_count,
    };
    DP_CHECK(ask->lost_count <= DP_ARRAY_LENGTH(asked->lost) && effect->nodes_count <= 16);
    for (size_t i = 0; i < ask->lost_count; i++) {
        asked->lost[i] = ask->lost[i];
    }
    DP_COPY_TEXT(asked->cause, ask->cause);
    DP_COPY_TEXT(asked->away, ask->away);
    for (size_t i = 0; i < effect->nodes_count; i++) {
        DP_COPY_TEXT(asked->nodes[i], effect->nodes[i].node->name);
        asked->slots[i] = effect->nodes[i].slots_free;
    }
    world->asks++;
}

static void take_reply(struct world *world, const struct dp_effect *effect)
{
    DP_CHECK(world->replies_count < WORLD_REPLIES_MAX);
    struct world_reply *reply = &world->replies[world->replies_count++];
    *reply = (struct world_reply){effect->reply, effect->job, effect->request, effect->status, ""};
    DP_COPY_TEXT(reply->text, effect->text);
}

static void take_offers(struct world *world, const struct dp_effect *effect)
{
    world->offers_count = 0;
    for (size_t i = 0; i < effect->nodes_count; i++) {
        for (uint32_t k = 0; k < effect->nodes[i].slots_free; k++) {
            DP_CHECK(world->offers_count < WORLD_OFFERS_MAX);
            struct world_slot *offer = &world->offers[world->offers_count++];
            DP_COPY_TEXT(offer->node, effect->nodes[i].node->name);
            offer->slot = effect->nodes[i].slots[k];
        }
    }
}

static void take_effects(struct world *world)
{
    const struct dp_effects *effects = &world->effects;
    if (effects->store_token != 0) {
        DP_CHECK(world->tokens_count < DP_ARRAY_LENGTH(world->tokens));
        world->tokens[world->tokens_count++] = effects->store_token;
    }
    for (size_t i = 0; i < effects->records_count; i++) {
        const struct dp_event_record *event = effects->records[i].row;
        if (effects->records[i].kind == DP_RECORD_EVENT &&
            strncmp(event->message, "QUEUED", 6) == 0) {
            DP_COPY_TEXT(world->requeued, event->message);
        }
        world->traces += effects->records[i].kind == DP_RECORD_TRACE;
        world->quota_rows += effects->records[i].kind == DP_RECORD_QUOTA;
        if (effects->records[i].kind == DP_RECORD_AUDIT) {
            world->audit_rows++;
            world->audit = *(const struct dp_audit_record *)effects->records[i].row;
        }
        if (effects->records[i].kind == DP_RECORD_NODE) {
            const struct dp_node_record *node = effects->records[i].row;
            world->node_deletions += node->deleted;
        }
        if (effects->records[i].kind == DP_RECORD_DECISION) {
            world->decision = *(const struct dp_decision_record *)effects->records[i].row;
            world->decision.document = (struct dp_buf){0};
        }
    }
    for (size_t i = 0; i < effects->count; i++) {
        const struct dp_effect *effect = &effects->items[i];
        if (effect->kind == DP_EFFECT_SEND) {
            take_send(world, effect);
        } else if (effect->kind == DP_EFFECT_REPLY) {
            take_reply(world, effect);
        } else if (effect->kind == DP_EFFECT_PLAN) {
            assert_int_equal(world->planned_job, 0);
            world->planned_job = effect->job;
            take_offers(world, effect);
        } else if (effect->kind == DP_EFFECT_ADAPT) {
            take_ask(world, effect);
        } else if (effect->kind == DP_EFFECT_LOG) {
            struct world_note *note = &world->notes[world->notes_count++ % WORLD_NOTES_MAX];
            DP_COPY_TEXT(note->event, effect->event);
            DP_COPY_TEXT(note->text, effect->text);
        } else if (effect->kind == DP_EFFECT_STEP) {
            DP_CHECK(world->steps_count < DP_ARRAY_LENGTH(world->steps));
            world->steps[world->steps_count++] = effect->step;
        }
    }
}

static void step_once(struct world *world, struct dp_core_event *event)
{
    event->now_ns = world->now_ns;
    event->wall_ns = world->now_ns + 1000 * DP_NS_PER_S;
    dp_core_step(world->core, event, &world->effects);
    take_effects(world);
}

void world_store(struct world *world, dp_status status)
{
    DP_CHECK(world->tokens_count > 0);
    struct dp_core_event event = {.kind = DP_EVENT_STORED, .stored.token = world->tokens[0]};
    event.stored.error.status = status;
    DP_COPY_TEXT(event.stored.error.message, status == DP_OK ? "" : "disk is full");
    world->tokens_count--;
    memmove(world->tokens, world->tokens + 1, world->tokens_count * sizeof(*world->tokens));
    world_step(world, &event);
}

void world_store_all(struct world *world)
{
    while (world->tokens_count > 0) {
        world_store(world, DP_OK);
    }
}

void world_plan(struct world *world)
{
    struct dp_slot slots[64];
    size_t count = 0;
    const struct dp_job_record *job = world_job(world, world->planned_job);
    size_t wanted = job == NULL ? 0 : (size_t)job->ranks_wanted; // it may be gone by now
    DP_CHECK(wanted <= DP_ARRAY_LENGTH(slots));
    while (count < wanted && count < world->offers_count) {
        const struct world_slot *offer = &world->offers[count];
        slots[count++] = (struct dp_slot){offer->node, offer->slot};
    }
    struct dp_core_event event = {
        .kind = DP_EVENT_PLAN_DONE,
        .plan_done = {world->planned_job, "plan", 4, slots, count},
    };
    world->planned_job = 0;
    world_step(world, &event);
}

static void settle(struct world *world)
{
    while ((!world->hold_store && world->tokens_count > 0) ||
           (!world->hold_plan && world->planned_job != 0)) {
        if (!world->hold_store && world->tokens_count > 0) {
            world_store(world, DP_OK);
        } else {
            world_plan(world);
        }
    }
}

void world_step(struct world *world, struct dp_core_event *event)
{
    step_once(world, event);
    settle(world);
}

void world_pass(struct world *world, int64_t ms)
{
    world->now_ns += ms * DP_NS_PER_MS;
    struct dp_core_event event = {.kind = DP_EVENT_TICK};
    world_step(world, &event);
}

void world_init(struct world *world)
{
    *world = (struct world){.now_ns = 1000 * DP_NS_PER_S};
    dp_core_config_init(&world->config);
    world->config.start_grace_ms = 0;
    world->core = dp_core_new(&world->config);
}

void world_configure(struct world *world)
{
    dp_core_free(world->core);
    world->core = dp_core_new(&world->config);
}

void world_deinit(struct world *world)
{
    dp_core_free(world->core);
    dp_effects_deinit(&world->effects);
}

void world_submit(struct world *world, uint64_t reply, int32_t ranks, const char *request_id)
{
    struct dp_core_event event = {
        .kind = DP_EVENT_SUBMIT,
        .submit = {.reply = reply,
                   .request_id = request_id,
                   .name = "a job",
                   .device = "cpu",
                   .token = 7,
                   .job_toml = "x = 1",
                   .job_toml_length = 5,
                   .ranks_wanted = ranks,
                   .ranks_fixed = true,
                   .needs_profile = true,
                   .recovery = world->recovery,
                   .adapt = world->adapt,
                   .steps_total = 10,
                   .tokens_per_step = 100},
    };
    world_step(world, &event);
}

void world_cancel(struct world *world, uint64_t reply, const char *job)
{
    struct dp_core_event event = {.kind = DP_EVENT_CANCEL, .ask = {.reply = reply, .reason = ""}};
    DP_COPY_TEXT(event.ask.job, job);
    world_step(world, &event);
}

size_t world_noted(const struct world *world, const char *event, const char *part)
{
    size_t found = 0;
    for (size_t i = 0; i < WORLD_NOTES_MAX && i < world->notes_count; i++) {
        const struct world_note *note = &world->notes[i];
        found += strcmp(note->event, event) == 0 && strstr(note->text, part) != NULL;
    }
    return found;
}

uint64_t world_hello(struct world *world, const char *name, uint32_t slots,
                     const struct dp_assignment_level *levels, size_t count)
{
    struct dp_node_record node = {
        .slots = slots, .cores = slots, .lease_ms = 10000, .fence_ms = 60000};
    DP_COPY_TEXT(node.name, name);
    DP_COPY_TEXT(node.instance, name);
    node.profile.bytes = (char *)"{}";
    node.profile.length = 2;
    uint64_t session = ++world->sessions;
    struct dp_core_event event = {
        .kind = DP_EVENT_HELLO,
        .hello = {.levels = {.session = session, .assignments = levels, .count = count},
                  .node = &node,
                  .protocol = 2}};
    world_step(world, &event);
    return session;
}

void world_close(struct world *world, uint64_t session)
{
    struct dp_core_event event = {.kind = DP_EVENT_SESSION_CLOSED, .session = session};
    world_step(world, &event);
}

void world_heartbeat(struct world *world, uint64_t session,
                     const struct dp_assignment_level *levels, size_t count)
{
    struct dp_core_event event = {.kind = DP_EVENT_HEARTBEAT,
                                  .levels = {session, levels, count, 0}};
    world_step(world, &event);
}

struct dp_fence world_fence(const char *job)
{
    struct dp_fence fence = {.attempt = 1, .epoch = 1};
    DP_COPY_TEXT(fence.job, job);
    return fence;
}

struct dp_rank_level world_rank_level(uint32_t rank, dp_rank_phase phase)
{
    struct dp_rank_level level = {.rank = rank, .phase = phase, .pid = 100 + rank};
    if (phase >= DP_RANK_READY && phase != DP_RANK_DIED) {
        level.ready_known = true;
        snprintf(level.ready.address, sizeof(level.ready.address), "127.0.0.1:%u", 5000 + rank);
    }
    if (phase == DP_RANK_FINISHED) {
        level.finished_known = true;
        level.finished.ok = true;
    }
    return level;
}

struct dp_assignment_level world_pair(struct dp_rank_level ranks[2], uint32_t first,
                                      dp_rank_phase phase)
{
    ranks[0] = world_rank_level(first, phase);
    ranks[1] = world_rank_level(first + 1, phase);
    return (struct dp_assignment_level){
        .fence = world_fence("job-1"), .ranks = ranks, .ranks_count = 2, .error = ""};
}

void world_send_level(struct world *world, uint64_t session, struct dp_assignment_level *level)
{
    if (level->fence.job[0] == '\0') {
        level->fence = world_fence("job-1");
    }
    level->error = level->error == NULL ? "" : level->error;
    struct dp_core_event event = {.kind = DP_EVENT_LEVEL, .levels = {session, level, 1, 0}};
    world_step(world, &event);
}

void world_level(struct world *world, uint64_t session, uint32_t first, uint32_t last,
                 dp_rank_phase phase)
{
    struct dp_rank_level ranks[64];
    size_t count = 0;
    for (uint32_t rank = first; rank <= last; rank++) {
        ranks[count++] = world_rank_level(rank, phase);
    }
    struct dp_assignment_level level = {.ranks = ranks, .ranks_count = count};
    world_send_level(world, session, &level);
}

void world_report(struct world *world, uint64_t session, uint32_t rank, struct dp_report *report)
{
    struct dp_core_event event = {.kind = DP_EVENT_REPORT, .report = *report};
    event.report.session = session;
    event.report.rank = rank;
    if (event.report.fence.job[0] == '\0') {
        event.report.fence = world_fence("job-1");
    }
    world_step(world, &event);
}

void world_report_step(struct world *world, uint64_t session, uint32_t rank, uint64_t step,
                       double loss)
{
    struct dp_report report = {.kind = DP_REPORT_STEP};
    report.step.row = (struct dp_step_record){
        .step = step,
        .loss = loss,
        .loss_known = loss > 0,
        .step_ns = (int64_t)(1000 + rank),
        .tokens = 100,
        .time_ns = 50,
    };
    report.step.busy_ns = 10;
    report.step.exchange_ns = 2;
    report.step.grad_sync_ns = 3;
    report.step.optimizer_ns = 4;
    report.step.load = (struct dp_rank_load){1 + (double)step / 8, 3, rank, 1.25};
    world_report(world, session, rank, &report);
}

size_t world_sent(const struct world *world, dp_order_kind order, const char *node)
{
    size_t count = 0;
    for (size_t i = 0; i < world->sent_count; i++) {
        count += world->sent[i].order == order &&
                 (node[0] == '\0' || strcmp(world->sent[i].node, node) == 0);
    }
    return count;
}

const struct world_reply *world_reply(const struct world *world, uint64_t reply)
{
    const struct world_reply *found = NULL;
    for (size_t i = 0; i < world->replies_count; i++) {
        if (world->replies[i].reply == reply) {
            assert_null(found); // one answer to each question
            found = &world->replies[i];
        }
    }
    return found;
}

const struct dp_job_record *world_job(const struct world *world, uint64_t number)
{
    return dp_core_job(world->core, number, NULL, NULL);
}

dp_node_state world_node_state(const struct world *world, const char *name)
{
    for (size_t i = 0; i < dp_core_nodes_count(world->core); i++) {
        struct dp_node_view view;
        dp_core_node_at(world->core, i, &view);
        if (strcmp(view.node->name, name) == 0) {
            return view.state;
        }
    }
    fail_msg("there is no node %s", name);
    return DP_NODE_STATE_COUNT;
}

void world_bring(struct world *world, dp_job_state state, uint64_t ret_sessions[2])
{
    ret_sessions[0] = world_hello(world, "a", 2, NULL, 0);
    ret_sessions[1] = world_hello(world, "b", 2, NULL, 0);
    world_submit(world, 1, 4, "");
    for (uint32_t n = 0; n < 2; n++) {
        world_level(world, ret_sessions[n], 2 * n, 2 * n + 1, DP_RANK_STARTING);
    }
    for (uint32_t n = 0; n < 2 && state >= DP_STATE_RUNNING; n++) {
        world_level(world, ret_sessions[n], 2 * n, 2 * n + 1, DP_RANK_READY);
    }
    for (uint32_t n = 0; n < 2 && state >= DP_STATE_RUNNING; n++) {
        world_level(world, ret_sessions[n], 2 * n, 2 * n + 1, DP_RANK_RUNNING);
    }
    assert_int_equal(world_job(world, 1)->state, state);
}

void world_start(struct world *world, dp_job_state state, uint64_t ret_sessions[2])
{
    world_init(world);
    world_bring(world, state, ret_sessions);
}
