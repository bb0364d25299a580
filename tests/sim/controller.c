// The controller's shell: what comes in becomes events of the core, what the core wants is done.
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/straggler.h"
#include "sim.h"

#define TICKS_MAX 20    // in one moment
#define SILENCE_MS 4000 // of a node, that rules count

// What an agent's level says, as the wire would hand it over. Scratch that is filled anew.
static struct dp_rank_level rank_levels[SIM_JOBS_MAX][SIM_SLOTS_MAX];
static struct dp_assignment_level assignment_levels[SIM_JOBS_MAX];

static void take_finished(const struct sim_report *report, struct dp_rank_finished *finished)
{
    finished->ok = report->ok;
    finished->not_finite = false;
    finished->peer_lost = report->peer_lost;
    // By a figure that is drawn already: of some it was the machine.
    finished->node_fault = !report->ok && !report->peer_lost && report->step % 2 == 1;
    finished->step = report->step;
    finished->action[0] = '\0';
    finished->error[0] = '\0';
    if (!report->ok) {
        DP_COPY_TEXT(finished->error, report->peer_lost ? "a peer is gone" : "it went wrong");
    }
}

static void take_held(const struct sim_report *report, struct dp_rank_held *held)
{
    held->step = report->step;
    held->norm_known = report->norm_known;
    held->gradients_whole = report->gradients_whole;
    held->grad_norm = 1;
    DP_COPY_TEXT(held->address, "there:1");
    DP_COPY_TEXT(held->why, report->peer_lost ? "a peer is gone" : "");
}

static void take_rank(const struct sim_rank_level *from, struct dp_rank_level *level)
{
    level->rank = from->rank;
    level->stopped = from->stopped;
    level->phase = (dp_rank_phase)from->phase;
    level->step = from->step;
    level->pid = from->pid;
    level->exit_status = from->exit_status;
    level->signal = from->signal;
    level->ready_known = from->ready;
    DP_COPY_TEXT(level->ready.address, from->ready ? "here:1" : "");
    level->ready.resumed_step = from->resumed_step;
    level->finished_known = from->finished;
    if (from->finished) {
        take_finished(&from->last, &level->finished);
    }
    level->held_known = from->holds;
    if (from->holds) {
        take_held(&from->held, &level->held);
    }
}

static struct dp_fence fence_of(const struct dp_agent_fence *from)
{
    struct dp_fence fence = {.attempt = from->attempt, .epoch = from->epoch};
    DP_COPY_TEXT(fence.job, from->job);
    return fence;
}

static struct dp_levels take_levels(const struct sim_message *message)
{
    for (uint32_t i = 0; i < message->levels_count; i++) {
        const struct sim_level *from = &message->levels[i];
        for (uint32_t k = 0; k < from->ranks_count; k++) {
            take_rank(&from->ranks[k], &rank_levels[i][k]);
        }
        assignment_levels[i] = (struct dp_assignment_level){
            .fence = fence_of(&from->fence),
            .ranks = rank_levels[i],
            .ranks_count = from->ranks_count,
            .keeper_lost = from->keeper_lost,
            .keeper_signal = from->keeper_signal,
            .stopping = from->stopping,
            .error = from->error,
        };
    }
    return (struct dp_levels){message->session, assignment_levels, message->levels_count,
                              message->number, message->acked};
}

static void give_hello(struct sim *sim, const struct sim_message *message)
{
    const struct sim_node *node = &sim->nodes[sim_connection_of(sim, message->session)->node];
    struct dp_node_record row = {.slots = node->slots,
                                 .lease_ms = message->lease_ms,
                                 .fence_ms = message->fence_ms,
                                 .profile = {(char *)"{}", 2, 0}};
    DP_COPY_TEXT(row.name, node->name);
    DP_COPY_TEXT(row.instance, message->instance);
    snprintf(row.boot_id, sizeof(row.boot_id), "boot-%u", message->boot);
    struct dp_core_event event = {
        .kind = DP_EVENT_HELLO,
        .hello = {.levels = take_levels(message),
                  .sent_ns = message->sent_ns,
                  .protocol = 2,
                  .node = &row},
    };
    sim_controller_event(sim, &event);
}

// What a rank computed in a step. Two of them do the same.
static struct dp_straggler_kind work_of(const struct sim *sim, const struct sim_report *report)
{
    struct dp_straggler_kind work = {.kind = DP_ACTION_F, .count = 4};
    uint32_t parts = sim_parts(report->world);
    work.stage = work.b_stage = (uint16_t)(parts == 0 ? 0 : report->rank % parts);
    work.median_ns = sim->jobs[report->key.job].step_ns / (report->slow ? 4 : 8);
    work.total_ns = 4 * work.median_ns;
    return work;
}

static void give_report(struct sim *sim, const struct sim_message *message)
{
    const struct sim_report *report = &message->report;
    struct dp_core_event event = {.kind = DP_EVENT_REPORT};
    struct dp_report *given = &event.report;
    if (report->kind == SIM_REPORT_HELD) {
        return; // its level says it
    }
    given->session = message->session;
    given->kind = (dp_report_kind)report->kind;
    given->rank = report->rank;
    given->fence.attempt = report->key.attempt;
    given->fence.epoch = report->key.epoch;
    snprintf(given->fence.job, sizeof(given->fence.job), "job-%u", report->key.job);
    char path[64];
    struct dp_straggler_kind work = work_of(sim, report);
    struct dp_straggler_sample times = {.kinds = &work, .kinds_count = 1};
    struct dp_straggler_probe probe = {
        .request = report->request, .gemm_ns = report->slow ? 2000 : 1000, .gemm_flops = 1e6};
    if (report->kind == DP_REPORT_READY) {
        DP_COPY_TEXT(given->ready.address, "here:1");
        given->ready.resumed_step = report->step;
    } else if (report->kind == DP_REPORT_FINISHED) {
        take_finished(report, &given->finished);
    } else if (report->kind == DP_REPORT_USAGE) {
        given->usage.step = report->step;
    } else if (report->kind == DP_REPORT_STEP) {
        given->step.row.step = report->step;
        given->step.row.step_ns = sim->jobs[report->key.job].step_ns;
        given->step.times = sim->more.stragglers ? &times : NULL;
        given->step.rebalance = (struct dp_placement_report){
            .looked = report->rebalanced, .applied = true, .moved = report->request % 3};
    } else if (report->kind == DP_REPORT_PROBE) {
        given->probe = &probe;
    } else if (report->kind == DP_REPORT_CHECKPOINT) {
        snprintf(path, sizeof(path), "checkpoints/job-%u/%llu", report->key.job,
                 (unsigned long long)report->step);
        given->checkpoint.step = report->step;
        given->checkpoint.request = report->request;
        given->checkpoint.path = path;
        given->checkpoint.error = report->error ? "the disk is full" : "";
    }
    sim_controller_event(sim, &event);
}

static void note_taken(struct sim *sim, struct sim_node *node)
{
    int64_t long_ns = SIM_MS(sim->controller.config.lease_default_ms);
    if (sim->now_ns - node->taken_ns > SIM_MS(SILENCE_MS)) {
        node->settled_ns = sim->now_ns;
    }
    if (sim->now_ns - node->taken_ns > long_ns) {
        node->returned_ns = sim->now_ns;
    }
    node->taken_ns = sim->now_ns;
}

static void give(struct sim *sim, const struct sim_message *message)
{
    struct dp_core_event event = {.kind = DP_EVENT_HEARTBEAT};
    switch (message->kind) {
    case SIM_HELLO:
        give_hello(sim, message);
        return;
    case SIM_REPORT:
        give_report(sim, message);
        return;
    case SIM_CLOSED:
        event.kind = DP_EVENT_SESSION_CLOSED;
        event.session = message->session;
        break;
    case SIM_LEVEL:
        event.kind = DP_EVENT_LEVEL;
        event.levels = take_levels(message);
        break;
    default:
        event.levels = take_levels(message);
        break;
    }
    sim_controller_event(sim, &event);
}

// A process that stands still is connected to all the same.
void sim_controller_accept(struct sim *sim, uint64_t session)
{
    struct sim_connection *connection = sim_connection_of(sim, session);
    if (connection->controller_life == 0 && sim->controller.core != NULL) {
        connection->controller_life = sim->controller.life;
        connection->controller_open = true;
    }
}

// The message stays the caller's.
void sim_controller_take(struct sim *sim, struct sim_message *message)
{
    struct sim_connection *connection = sim_connection_of(sim, message->session);
    struct sim_controller *controller = &sim->controller;
    if (connection->dropped[0] && message->kind != SIM_CLOSED) {
        return;
    }
    if (message->kind == SIM_HELLO) {
        sim_controller_accept(sim, message->session);
        connection->known = connection->controller_open;
    }
    bool ours = controller->core != NULL && connection->controller_life == controller->life;
    if (!ours || !connection->controller_open) {
        if (connection->agent_open && message->kind != SIM_CLOSED && !controller->dark) {
            sim_send(sim, sim_message_new(SIM_CLOSED, message->session, 0), false);
        }
        return;
    }
    if (message->kind == SIM_CLOSED) {
        connection->controller_open = false;
    } else {
        note_taken(sim, &sim->nodes[connection->node]);
    }
    if (connection->known) {
        give(sim, message);
    }
}

static void fill_prepare(const struct dp_assignment_view *view, const struct dp_effect *effect,
                         struct sim_prepare *prepare)
{
    prepare->world = (uint32_t)view->ranks_count;
    prepare->beside = view->beside;
    const char *last = strrchr(view->job->checkpoint, '/');
    if (view->job->attempt > 1 && !view->beside && last != NULL) {
        prepare->resume_step = strtoull(last + 1, NULL, 10);
    }
    for (size_t i = 0; i < view->ranks_count; i++) {
        if (strcmp(view->ranks[i].node, effect->node) == 0 && prepare->count < SIM_SLOTS_MAX) {
            prepare->numbers[prepare->count] = view->ranks[i].rank;
            prepare->slots[prepare->count++] = view->ranks[i].slot;
        }
    }
}

static void fill_start(const struct dp_assignment_view *view, struct sim_rank_order *order)
{
    order->step = view->state_step;
    order->source_epoch = view->job->source_epoch;
    for (size_t i = 0; i < view->sources_count; i++) {
        order->sources |= UINT32_C(1) << view->sources[i].rank;
    }
}

// False when there is nothing to be said any more.
static bool fill_order(struct sim *sim, const struct dp_effect *effect, struct sim_message *message)
{
    struct sim_rank_order *order = &message->rank_order;
    order->kind = effect->order;
    order->request = effect->request;
    order->step = effect->request; // SETTLE
    if (effect->order != DP_ORDER_PREPARE && effect->order != DP_ORDER_START) {
        return true;
    }
    struct dp_assignment_view view;
    if (!dp_core_assignment(sim->controller.core, &effect->fence, &view)) {
        return false;
    }
    if (effect->order == DP_ORDER_PREPARE) {
        fill_prepare(&view, effect, &message->prepare);
    } else {
        fill_start(&view, order);
    }
    return true;
}

static void perform_send(struct sim *sim, const struct dp_effect *effect)
{
    sim->tally->orders[effect->order]++;
    if (effect->order != DP_ORDER_ACK) {
        SIM_TRACE(sim, "controller tells %s: %s job-%llu (attempt %u, epoch %u) %s", effect->node,
                  dp_order_kind_text(effect->order), (unsigned long long)effect->job,
                  effect->fence.attempt, effect->fence.epoch, effect->text);
        sim_faults_trigger(sim, SIM_AT_ORDER, effect->order, effect->job,
                           (uint32_t)strtoul(effect->node + 1, NULL, 10));
    }
    if (effect->order == DP_ORDER_PAUSE) {
        sim->jobs[effect->job].pausing = true;
    }
    if (effect->order == DP_ORDER_REFUSE) {
        sim_close_controller_end(sim, effect->session, true);
        return;
    }
    sim_check_order(sim, effect);
    const struct sim_connection *connection = sim_connection_of(sim, effect->session);
    if (!connection->controller_open) {
        return;
    }
    struct sim_message *message = sim_message_new(SIM_ORDER, effect->session, 0);
    message->order = effect->order;
    message->fence = effect->fence;
    message->grace_ms = effect->grace_ms;
    message->number = effect->request;
    message->checkpoint = effect->checkpoint;
    message->heartbeat_ms = effect->heartbeat_ms;
    if (fill_order(sim, effect, message)) {
        sim_send(sim, message, false);
    } else {
        free(message);
    }
}

static void perform(struct sim *sim)
{
    struct sim_controller *controller = &sim->controller;
    const struct dp_effects *effects = &controller->effects;
    if (effects->store_token != 0) {
        sim_disk_store(sim, effects);
    }
    sim_choices_effects(sim, effects);
    for (size_t i = 0; i < effects->count; i++) {
        const struct dp_effect *effect = &effects->items[i];
        if (effect->kind == DP_EFFECT_SEND) {
            perform_send(sim, effect);
        } else if (effect->kind == DP_EFFECT_PLAN) {
            sim_rules_plan(sim, effect->job);
            sim_choices_plan(sim, effect);
            sim_planner_plan(sim, effect);
        } else if (effect->kind == DP_EFFECT_ADAPT) {
            sim_rules_ask(sim, effect);
            sim_choices_ask(sim, effect);
            sim_planner_ask(sim, effect);
        } else if (effect->kind == DP_EFFECT_REPLY) {
            sim_users_replied(sim, effect);
        } else if (effect->kind == DP_EFFECT_LOG) {
            SIM_TRACE(sim, "controller: %s job-%llu %s %s", effect->event,
                      (unsigned long long)effect->job, effect->node, effect->text);
            if (strcmp(effect->event, "job.state") == 0) {
                sim_check_move(sim, effect);
            } else {
                sim_choices_note(sim, effect);
                sim_rules_note(sim, effect);
            }
        }
    }
    if (effects->store_token != 0) {
        sim_faults_trigger(sim, SIM_AT_STORE, 0, 0, SIM_NODES_MAX);
    }
    int64_t timer_ns = effects->timer_ns == 0 ? 0 : effects->timer_ns - controller->clock_ns;
    if (timer_ns != controller->timer_ns) {
        controller->timer_ns = timer_ns;
        controller->timer_number++;
        if (timer_ns != 0) {
            sim_push(sim, timer_ns, SIM_EV_TIMER, 0, controller->timer_number, NULL);
        }
    }
}

void sim_controller_event(struct sim *sim, struct dp_core_event *event)
{
    struct sim_controller *controller = &sim->controller;
    event->now_ns = sim->now_ns + controller->clock_ns;
    event->wall_ns = sim->now_ns + controller->wall_ns;
    event->stalled_ns = controller->stood_ns;
    controller->stood_ns = 0;
    dp_core_step(controller->core, event, &controller->effects);
    perform(sim);
}

void sim_controller_timer(struct sim *sim, uint64_t number)
{
    struct sim_controller *controller = &sim->controller;
    if (number != controller->timer_number) {
        return;
    }
    controller->timer_ns = 0;
    controller->ticks = sim->now_ns == controller->ticked_ns ? controller->ticks + 1 : 0;
    controller->ticked_ns = sim->now_ns;
    if (controller->ticks > TICKS_MAX) {
        sim_fail(sim, "timer", "the core wants to be woken again and again at the same moment");
    }
    struct dp_core_event event = {.kind = DP_EVENT_TICK};
    sim_controller_event(sim, &event);
}

void sim_controller_start(struct sim *sim)
{
    struct sim_controller *controller = &sim->controller;
    controller->life++;
    controller->dark = false;
    controller->clock_ns = sim_between(sim, SIM_MS(1000), SIM_MS(1000000000));
    controller->core = dp_core_new(&controller->config);
    controller->stall_ns = controller->stood_ns = 0;
    controller->started_ns = sim->now_ns;
    SIM_TRACE(sim, "the controller starts for the %lluth time",
              (unsigned long long)controller->life);
    sim_rules_restarted(sim);
    sim_disk_load(sim);
}

void sim_controller_deinit(struct sim *sim)
{
    dp_core_free(sim->controller.core);
    sim_planner_forget(sim);
    dp_effects_deinit(&sim->controller.effects);
}

void sim_controller_crash(struct sim *sim, bool told, int64_t down_ns)
{
    struct sim_controller *controller = &sim->controller;
    if (controller->core == NULL) {
        return;
    }
    sim_disk_crash(sim);
    dp_core_free(controller->core);
    controller->core = NULL;
    controller->stall_ns = controller->stood_ns = 0;
    controller->timer_number++;
    controller->timer_ns = 0;
    controller->plan_job = 0;
    sim_planner_forget(sim);
    controller->dark = !told;
    sim->tally->restarts++;
    for (size_t i = 0; i < sim->connections_count; i++) {
        if (sim->connections[i].controller_life == controller->life) {
            sim_close_controller_end(sim, i + 1, told);
        }
    }
    sim_push(sim, sim->now_ns + down_ns, SIM_EV_CONTROLLER_UP, 0, 0, NULL);
}
