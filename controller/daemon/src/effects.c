// Doing what the core decided.
#include "adapting.h"
#include "admin.h"
#include "daemon.h"
#include "lessons.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/log.h"

#define STORE_QUEUED_MAX 20000 // transactions

typedef void send_function(struct daemon *daemon, const struct dp_effect *effect,
                           struct dp_arena *arena, Dp__V1__ControllerMessage *message);

static void fill_welcome(struct daemon *daemon, const struct dp_effect *effect,
                         struct dp_arena *arena, Dp__V1__ControllerMessage *message)
{
    Dp__V1__Welcome *welcome = arena_take(arena, sizeof(*welcome));
    dp__v1__welcome__init(welcome);
    welcome->version = (char *)DP_VERSION;
    // An older agent goes on with a controller that says it speaks as it does.
    welcome->protocol = session_protocol(daemon, effect->session);
    welcome->heartbeat_ms = effect->heartbeat_ms;
    welcome->controller = daemon->instance;
    message->message_case = DP__V1__CONTROLLER_MESSAGE__MESSAGE_WELCOME;
    message->welcome = welcome;
}

static void fill_ack(struct daemon *daemon, const struct dp_effect *effect, struct dp_arena *arena,
                     Dp__V1__ControllerMessage *message)
{
    (void)daemon;
    Dp__V1__Ack *ack = arena_take(arena, sizeof(*ack));
    dp__v1__ack__init(ack);
    ack->sequence = effect->request;
    ack->heartbeat_ms = effect->heartbeat_ms;
    message->message_case = DP__V1__CONTROLLER_MESSAGE__MESSAGE_ACK;
    message->ack = ack;
}

static void fill_prepare(struct daemon *daemon, const struct dp_effect *effect,
                         struct dp_arena *arena, Dp__V1__ControllerMessage *message)
{
    struct dp_assignment_view view;
    struct dp_error err = {0};
    Dp__V1__Prepare *prepare = arena_take(arena, sizeof(*prepare));
    dp__v1__prepare__init(prepare);
    if (!dp_core_assignment(daemon->core, &effect->fence, &view) ||
        view_unpack_plan(view.job, view.plan, arena, &prepare->plan, &err) != DP_OK) {
        dp_log_error("prepare.no_plan", "job=%s reason=\"%s\"", effect->fence.job, err.message);
        return;
    }
    prepare->fence = message_fence(&effect->fence, arena);
    prepare->ranks = arena_take(arena, view.ranks_count * sizeof(*prepare->ranks));
    for (size_t i = 0; i < view.ranks_count; i++) {
        if (strcmp(view.ranks[i].node, effect->node) == 0) {
            prepare->ranks[prepare->n_ranks++] = view.ranks[i].rank;
        }
    }
    prepare->job_toml.data = (uint8_t *)view.job->job_toml.bytes;
    prepare->job_toml.len = view.job->job_toml.length;
    prepare->token = view.token;
    prepare->device = (char *)view.job->device;
    prepare->beside = view.beside;
    // A later attempt goes on from the newest checkpoint, if there is one.
    bool resumes = view.job->attempt > 1 && !view.beside;
    prepare->resume = resumes ? (char *)view.job->checkpoint : (char *)"";
    prepare->checkpoint_directory =
        dp_arena_printf(arena, "%s/checkpoints/%s", daemon->state_dir, view.job->id);
    message->message_case = DP__V1__CONTROLLER_MESSAGE__MESSAGE_PREPARE;
    message->prepare = prepare;
}

static Dp__V1__StateSource **make_sources(const struct dp_assignment_view *view,
                                          struct dp_arena *arena)
{
    Dp__V1__StateSource **sources = arena_take(arena, view->sources_count * sizeof(void *));
    for (size_t i = 0; i < view->sources_count; i++) {
        sources[i] = arena_take(arena, sizeof(**sources));
        dp__v1__state_source__init(sources[i]);
        sources[i]->rank = view->sources[i].rank;
        sources[i]->address = (char *)view->sources[i].address;
    }
    return sources;
}

static void fill_start(struct daemon *daemon, const struct dp_effect *effect,
                       struct dp_arena *arena, Dp__V1__ControllerMessage *message)
{
    struct dp_assignment_view view;
    if (!dp_core_assignment(daemon->core, &effect->fence, &view)) {
        return;
    }
    Dp__V1__Start *start = arena_take(arena, sizeof(*start));
    dp__v1__start__init(start);
    start->fence = message_fence(&effect->fence, arena);
    start->n_endpoints = view.ranks_count;
    start->endpoints = arena_take(arena, view.ranks_count * sizeof(void *));
    for (size_t i = 0; i < view.ranks_count; i++) {
        Dp__V1__Endpoint *endpoint = arena_take(arena, sizeof(*endpoint));
        dp__v1__endpoint__init(endpoint);
        endpoint->rank = view.ranks[i].rank;
        endpoint->address = (char *)view.ranks[i].address;
        start->endpoints[i] = endpoint;
    }
    start->sources = make_sources(&view, arena);
    start->n_sources = view.sources_count;
    start->state_step = view.state_step;
    start->state_token = view.state_token;
    message->message_case = DP__V1__CONTROLLER_MESSAGE__MESSAGE_START;
    message->start = start;
}

static void fill_pause(struct daemon *daemon, const struct dp_effect *effect,
                       struct dp_arena *arena, Dp__V1__ControllerMessage *message)
{
    (void)daemon;
    Dp__V1__Pause *pause = arena_take(arena, sizeof(*pause));
    dp__v1__pause__init(pause);
    pause->fence = message_fence(&effect->fence, arena);
    message->message_case = DP__V1__CONTROLLER_MESSAGE__MESSAGE_PAUSE;
    message->pause = pause;
}

static void fill_settle(struct daemon *daemon, const struct dp_effect *effect,
                        struct dp_arena *arena, Dp__V1__ControllerMessage *message)
{
    (void)daemon;
    Dp__V1__Settle *settle = arena_take(arena, sizeof(*settle));
    dp__v1__settle__init(settle);
    settle->fence = message_fence(&effect->fence, arena);
    settle->step = effect->request;
    settle->grad_norm = effect->grad_norm;
    message->message_case = DP__V1__CONTROLLER_MESSAGE__MESSAGE_SETTLE;
    message->settle = settle;
}

static void fill_stop(struct daemon *daemon, const struct dp_effect *effect, struct dp_arena *arena,
                      Dp__V1__ControllerMessage *message)
{
    (void)daemon;
    Dp__V1__Stop *stop = arena_take(arena, sizeof(*stop));
    dp__v1__stop__init(stop);
    stop->fence = message_fence(&effect->fence, arena);
    stop->grace_ms = effect->grace_ms;
    stop->reason = (char *)effect->text;
    stop->checkpoint = effect->checkpoint;
    message->message_case = DP__V1__CONTROLLER_MESSAGE__MESSAGE_STOP;
    message->stop = stop;
}

static void fill_release(struct daemon *daemon, const struct dp_effect *effect,
                         struct dp_arena *arena, Dp__V1__ControllerMessage *message)
{
    (void)daemon;
    Dp__V1__Release *release = arena_take(arena, sizeof(*release));
    dp__v1__release__init(release);
    release->fence = message_fence(&effect->fence, arena);
    message->message_case = DP__V1__CONTROLLER_MESSAGE__MESSAGE_RELEASE;
    message->release = release;
}

static void fill_checkpoint(struct daemon *daemon, const struct dp_effect *effect,
                            struct dp_arena *arena, Dp__V1__ControllerMessage *message)
{
    (void)daemon;
    Dp__V1__Checkpoint *checkpoint = arena_take(arena, sizeof(*checkpoint));
    dp__v1__checkpoint__init(checkpoint);
    checkpoint->fence = message_fence(&effect->fence, arena);
    checkpoint->request = effect->request;
    message->message_case = DP__V1__CONTROLLER_MESSAGE__MESSAGE_CHECKPOINT;
    message->checkpoint = checkpoint;
}

static void fill_probe(struct daemon *daemon, const struct dp_effect *effect,
                       struct dp_arena *arena, Dp__V1__ControllerMessage *message)
{
    (void)daemon;
    Dp__V1__Probe *probe = arena_take(arena, sizeof(*probe));
    dp__v1__probe__init(probe);
    probe->fence = message_fence(&effect->fence, arena);
    probe->request = effect->request;
    message->message_case = DP__V1__CONTROLLER_MESSAGE__MESSAGE_PROBE;
    message->probe = probe;
}

static void fill_rebalance(struct daemon *daemon, const struct dp_effect *effect,
                           struct dp_arena *arena, Dp__V1__ControllerMessage *message)
{
    (void)daemon;
    Dp__V1__RebalanceOrder *rebalance = arena_take(arena, sizeof(*rebalance));
    dp__v1__rebalance_order__init(rebalance);
    rebalance->fence = message_fence(&effect->fence, arena);
    rebalance->request = effect->request;
    message->message_case = DP__V1__CONTROLLER_MESSAGE__MESSAGE_REBALANCE;
    message->rebalance = rebalance;
}

static send_function *const fillers[] = {
    [DP_ORDER_WELCOME] = fill_welcome,
    [DP_ORDER_ACK] = fill_ack,
    [DP_ORDER_PREPARE] = fill_prepare,
    [DP_ORDER_START] = fill_start,
    [DP_ORDER_STOP] = fill_stop,
    [DP_ORDER_RELEASE] = fill_release,
    [DP_ORDER_CHECKPOINT] = fill_checkpoint,
    [DP_ORDER_PAUSE] = fill_pause,
    [DP_ORDER_SETTLE] = fill_settle,
    [DP_ORDER_PROBE] = fill_probe,
    [DP_ORDER_REBALANCE] = fill_rebalance,
};

static void perform_send(struct daemon *daemon, const struct dp_effect *effect)
{
    if (effect->order == DP_ORDER_REFUSE) {
        dp_log_warn("agent.refused", "node=%s reason=\"%s\"", effect->node, effect->text);
        dp_rpc_call_fail(daemon->server, effect->session, effect->status, effect->text);
        return;
    }
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__ControllerMessage message = DP__V1__CONTROLLER_MESSAGE__INIT;
    fillers[effect->order](daemon, effect, &arena, &message);
    if (message.message_case != DP__V1__CONTROLLER_MESSAGE__MESSAGE__NOT_SET) {
        dp_log_debug("order.sent", "node=%s job=%s order=%s", effect->node, effect->fence.job,
                     dp_order_kind_text(effect->order));
        session_send(daemon, effect->session, &message);
    }
}

static struct pending *take_pending(struct daemon *daemon, uint64_t call)
{
    struct pending **link = &daemon->pending;
    while (*link != NULL && (*link)->call != call) {
        link = &(*link)->next;
    }
    struct pending *found = *link;
    if (found != NULL) {
        *link = found->next;
    }
    return found;
}

static void reply_checkpoint(struct daemon *daemon, const struct dp_effect *effect)
{
    Dp__V1__CheckpointJobResponse response = DP__V1__CHECKPOINT_JOB_RESPONSE__INIT;
    response.path = (char *)effect->text;
    response.step = effect->request;
    call_reply(daemon, effect->reply, &response.base);
}

static void reply_job(struct daemon *daemon, const struct dp_effect *effect)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    DP_CLEANUP(view_deinit) struct job_view view = {0};
    struct dp_error err = {0};
    if (view_get(daemon, effect->job, &view, &err) != DP_OK) {
        call_fail_error(daemon, effect->reply, &err);
        return;
    }
    Dp__V1__Job *job = message_job(&view, JOB_LIVE, &arena);
    message_complete(daemon, effect->job, &arena, job);
    call_reply(daemon, effect->reply, &job->base);
}

static void perform_reply(struct daemon *daemon, const struct dp_effect *effect)
{
    DP_AUTO_FREE struct pending *pending = take_pending(daemon, effect->reply);
    if (pending == NULL) {
        return;
    }
    if (effect->status != DP_OK) {
        call_fail(daemon, effect->reply, effect->status, effect->text);
    } else if (admin_is_method(pending->method)) {
        admin_reply(daemon, pending->method, effect->reply, effect->text);
    } else if (pending->method == DP_METHOD_CHECKPOINT_JOB) {
        reply_checkpoint(daemon, effect);
    } else {
        reply_job(daemon, effect);
    }
}

static void perform_log(const struct dp_effect *effect)
{
    char id[DP_ID_MAX] = "-";
    if (effect->job != 0) {
        snprintf(id, sizeof(id), "job-%llu", (unsigned long long)effect->job);
    }
    char text[DP_TEXT_MAX * 2];
    dp_log(effect->warning ? DP_LOG_WARN : DP_LOG_INFO, effect->event, "job=%s node=%s text=%s", id,
           effect->node[0] == '\0' ? "-" : effect->node,
           dp_log_quote(text, sizeof(text), effect->text));
}

// Steps and traces pile up when the disk stalls; jobs, ranks and nodes are few and never dropped.
static bool may_drop(const struct dp_effects *effects)
{
    for (size_t i = 0; i < effects->records_count; i++) {
        dp_record_kind kind = effects->records[i].kind;
        if (kind != DP_RECORD_STEP && kind != DP_RECORD_TRACE) {
            return false;
        }
    }
    return effects->records_count > 0;
}

static void perform_store(struct daemon *daemon, const struct dp_effects *effects)
{
    bool behind = dp_store_queued(daemon->store) > STORE_QUEUED_MAX;
    if (behind != daemon->store_behind) {
        dp_log_warn(behind ? "store.behind" : "store.caught_up", "queued=%zu effect=\"%s\"",
                    dp_store_queued(daemon->store),
                    behind ? "steps and traces are dropped" : "all is stored again");
        daemon->store_behind = behind;
    }
    if (!behind || !may_drop(effects)) {
        dp_store_submit(daemon->store, effects->store_token, effects->records,
                        effects->records_count);
    }
}

void effects_perform(struct daemon *daemon, const struct dp_effects *effects)
{
    if (effects->store_token != 0) {
        perform_store(daemon, effects);
    }
    for (size_t i = 0; i < effects->count && !daemon->stopping; i++) {
        const struct dp_effect *effect = &effects->items[i];
        switch (effect->kind) {
        case DP_EFFECT_SEND:
            perform_send(daemon, effect);
            break;
        case DP_EFFECT_REPLY:
            perform_reply(daemon, effect);
            break;
        case DP_EFFECT_PLAN:
            planning_start(daemon, effect->job, effect->nodes, effect->nodes_count);
            break;
        case DP_EFFECT_JOB:
            lessons_job(daemon, effect->job);
            watch_changed(daemon, effect->job);
            break;
        case DP_EFFECT_STEP:
            watch_changed(daemon, effect->job);
            break;
        case DP_EFFECT_LOG:
            perform_log(effect);
            break;
        case DP_EFFECT_ADAPT:
            adapting_start(daemon, effect);
            break;
        }
    }
}
