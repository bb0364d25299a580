#include "fake_controller.h"

#include <poll.h>
#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/clock.h"
#include "dp/wire.h"
#include "dp_test.h"
#include "harness.h"

static void send(struct fake_controller *controller, const Dp__V1__ControllerMessage *message)
{
    assert_int_equal(dp_rpc_call_send(controller->server, controller->call, &message->base), DP_OK);
}

static struct fake_rank_view *view_of(struct fake_controller *controller,
                                      const Dp__V1__Fence *fence, uint32_t rank)
{
    uint32_t at = rank + (fence->epoch - 1) * controller->views_per_epoch;
    assert_true(at < FAKE_RANKS_MAX);
    return &controller->ranks[at];
}

static void see_rank(const Dp__V1__RankLevel *rank, struct fake_rank_view *view)
{
    view->phase = rank->phase;
    view->pid = rank->pid;
    view->exit_status = rank->exit_status;
    view->signal = rank->signal;
    view->stopped = rank->stopped;
    view->unkillable = rank->unkillable;
    view->was_unkillable = view->was_unkillable || rank->unkillable;
    view->step = rank->step;
    view->ready = rank->ready != NULL;
    view->finished = rank->finished != NULL;
    view->finished_ok = rank->finished != NULL && rank->finished->ok;
    view->held = rank->held != NULL;
    view->held_step = rank->held != NULL ? rank->held->step : 0;
    (void)DP_COPY_TEXT(view->held_address, rank->held != NULL ? rank->held->address : "");
}

static void see_level(struct fake_controller *controller, const Dp__V1__AssignmentLevel *level)
{
    if (level->n_ranks == 0 && level->error[0] != '\0') {
        (void)DP_COPY_TEXT(controller->refusal, level->error);
        controller->refused_epoch = level->fence->epoch;
        return;
    }
    controller->keeper_lost = level->keeper_lost;
    controller->stopping = level->stopping;
    controller->keeper_signal = level->keeper_signal;
    (void)DP_COPY_TEXT(controller->error, level->error);
    for (size_t i = 0; i < level->n_ranks; i++) {
        const Dp__V1__RankLevel *rank = level->ranks[i];
        see_rank(rank, view_of(controller, level->fence, rank->rank));
    }
}

static void see_levels(struct fake_controller *controller, Dp__V1__AssignmentLevel **levels,
                       size_t count)
{
    controller->assignments = count;
    for (size_t i = 0; i < count; i++) {
        see_level(controller, levels[i]);
    }
}

static void see_inventory(struct fake_controller *controller, const Dp__V1__Inventory *inventory)
{
    controller->has_profile = inventory->profile_json.len > 0;
    (void)DP_COPY_TEXT(controller->calibration_error, inventory->calibration_error);
}

static void on_hello(struct fake_controller *controller, const Dp__V1__Hello *hello)
{
    Dp__V1__Welcome welcome = DP__V1__WELCOME__INIT;
    Dp__V1__ControllerMessage message = DP__V1__CONTROLLER_MESSAGE__INIT;
    controller->hellos++;
    controller->fence_ms = hello->fence_ms;
    see_inventory(controller, hello->inventory);
    (void)DP_COPY_TEXT(controller->node, hello->node);
    // Nothing that an earlier session said counts any more.
    memset(controller->ranks, 0, sizeof controller->ranks);
    see_levels(controller, hello->assignments, hello->n_assignments);
    welcome.version = (char *)DP_VERSION;
    welcome.protocol = controller->protocol;
    welcome.heartbeat_ms = controller->welcome_ms > 0 ? controller->welcome_ms : 100;
    welcome.controller = (char *)"fake";
    message.message_case = DP__V1__CONTROLLER_MESSAGE__MESSAGE_WELCOME;
    message.welcome = &welcome;
    send(controller, &message);
}

static void on_heartbeat(struct fake_controller *controller, const Dp__V1__Heartbeat *heartbeat)
{
    Dp__V1__Ack ack = DP__V1__ACK__INIT;
    Dp__V1__ControllerMessage message = DP__V1__CONTROLLER_MESSAGE__INIT;
    controller->heartbeats++;
    see_levels(controller, heartbeat->assignments, heartbeat->n_assignments);
    // 0 is the sequence of no heartbeat.
    ack.sequence = controller->silent ? 0 : heartbeat->sequence;
    ack.heartbeat_ms = controller->ack_ms;
    message.message_case = DP__V1__CONTROLLER_MESSAGE__MESSAGE_ACK;
    message.ack = &ack;
    send(controller, &message);
}

static void on_report(struct fake_controller *controller, const Dp__V1__RankReport *report)
{
    struct fake_rank_view *view = view_of(controller, report->fence, report->rank);
    if (report->report_case == DP__V1__RANK_REPORT__REPORT_STEP) {
        view->steps_heard++;
        view->spans_heard += report->step->n_spans;
    }
    if (report->report_case == DP__V1__RANK_REPORT__REPORT_UTILISATION) {
        view->samples_heard++;
    }
    if (report->report_case == DP__V1__RANK_REPORT__REPORT_PROBE) {
        view->probe_request = report->probe->request;
    }
}

static void on_log(struct fake_controller *controller, const Dp__V1__LogChunk *chunk)
{
    dp_buf_append(&controller->log, chunk->data.data, chunk->data.len);
    controller->log_offset = chunk->offset + chunk->data.len;
    controller->log_end = chunk->end;
    controller->log_answers++;
    (void)DP_COPY_TEXT(controller->log_error, chunk->error);
}

static void on_message(void *context, uint64_t call, const void *bytes, size_t length)
{
    struct fake_controller *controller = context;
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    struct dp_error err = {0};
    ProtobufCMessage *any;
    assert_ok(dp_wire_unpack(&dp__v1__agent_message__descriptor, bytes, length, &arena, &any, &err),
              &err);
    const Dp__V1__AgentMessage *message = (const Dp__V1__AgentMessage *)any;
    controller->call = call;
    switch (message->message_case) {
    case DP__V1__AGENT_MESSAGE__MESSAGE_HELLO:
        on_hello(controller, message->hello);
        break;
    case DP__V1__AGENT_MESSAGE__MESSAGE_HEARTBEAT:
        on_heartbeat(controller, message->heartbeat);
        break;
    case DP__V1__AGENT_MESSAGE__MESSAGE_LEVEL:
        see_level(controller, message->level);
        break;
    case DP__V1__AGENT_MESSAGE__MESSAGE_REPORT:
        on_report(controller, message->report);
        break;
    case DP__V1__AGENT_MESSAGE__MESSAGE_LOG:
        on_log(controller, message->log);
        break;
    case DP__V1__AGENT_MESSAGE__MESSAGE_CALIBRATION:
        controller->calibrated_request = message->calibration->request;
        controller->calibrated = message->calibration->outcome;
        controller->calibrated_bytes = message->calibration->profile_json.len;
        (void)DP_COPY_TEXT(controller->calibrated_message, message->calibration->message);
        break;
    case DP__V1__AGENT_MESSAGE__MESSAGE_INVENTORY:
        see_inventory(controller, message->inventory);
        break;
    default:
        fail_msg("an empty message arrived");
    }
}

static void on_closed(void *context, uint64_t call, bool cancelled)
{
    (void)cancelled;
    struct fake_controller *controller = context;
    if (controller->call == call) {
        controller->call = 0;
    }
}

static const struct dp_rpc_handler session_handler = {
    .method = DP_METHOD_SESSION,
    .on_message = on_message,
    .on_closed = on_closed,
};

void fake_controller_open(struct fake_controller *controller, const char *listen)
{
    struct dp_error err = {0};
    *controller = (struct fake_controller){.protocol = DP_PROTOCOL_VERSION};
    struct dp_rpc_server_options options = {
        .listen = listen,
        .handlers = &session_handler,
        .handlers_count = 1,
        .context = controller,
    };
    assert_ok(dp_rpc_server_new(&options, &controller->server, &err), &err);
}

void fake_controller_close(struct fake_controller *controller)
{
    dp_rpc_server_free(controller->server);
    dp_buf_deinit(&controller->log);
}

const char *fake_controller_address(const struct fake_controller *controller)
{
    return dp_rpc_server_address(controller->server);
}

void fake_controller_until(struct fake_controller *controller,
                           bool (*ready)(struct fake_controller *controller), const char *what)
{
    int64_t deadline_ns = dp_clock_monotonic_ns() + HARNESS_DEADLINE_MS * DP_NS_PER_MS;
    while (!ready(controller)) {
        struct pollfd entry = {.fd = dp_rpc_server_fd(controller->server), .events = POLLIN};
        (void)poll(&entry, 1, 100);
        dp_rpc_server_pump(controller->server);
        if (dp_clock_monotonic_ns() > deadline_ns) {
            fail_msg("not in time: %s", what);
        }
    }
}

static Dp__V1__Fence fence_of(const char *job, uint32_t epoch)
{
    Dp__V1__Fence fence = DP__V1__FENCE__INIT;
    fence.job = (char *)job;
    fence.attempt = 1;
    fence.epoch = epoch;
    return fence;
}

#define PLAN_RANKS 2

// The smallest plan that is one for two ranks: a layer each.
struct small_plan {
    Dp__V1__Plan plan;
    Dp__V1__RankPlan ranks[PLAN_RANKS];
    Dp__V1__RankPlan *rank_pointers[PLAN_RANKS];
    uint32_t layer_begin[PLAN_RANKS + 1];
};

static void fill_plan(struct small_plan *small)
{
    dp__v1__plan__init(&small->plan);
    for (uint32_t i = 0; i < PLAN_RANKS; i++) {
        dp__v1__rank_plan__init(&small->ranks[i]);
        small->ranks[i].rank = i;
        small->ranks[i].node = (char *)"node-a";
        small->ranks[i].slot = i;
        small->rank_pointers[i] = &small->ranks[i];
        small->layer_begin[i + 1] = i + 1;
    }
    small->plan.pipeline = PLAN_RANKS;
    small->plan.expert = 1;
    small->plan.data = 1;
    small->plan.microbatches = 2;
    small->plan.micro_batch_size = 1;
    small->plan.stages = PLAN_RANKS;
    small->plan.virtual_stages = 1;
    small->plan.schedule = (char *)"gpipe";
    small->plan.ranks = small->rank_pointers;
    small->plan.n_ranks = PLAN_RANKS;
    small->plan.layer_begin = small->layer_begin;
    small->plan.n_layer_begin = PLAN_RANKS + 1;
}

void fake_controller_prepare(struct fake_controller *controller, const char *job, uint32_t epoch,
                             const uint32_t *ranks, size_t count)
{
    Dp__V1__Fence fence = fence_of(job, epoch);
    struct small_plan small = {0};
    Dp__V1__Prepare prepare = DP__V1__PREPARE__INIT;
    Dp__V1__ControllerMessage message = DP__V1__CONTROLLER_MESSAGE__INIT;
    fill_plan(&small);
    small.plan.n_layer_begin -= controller->bad_plans;
    prepare.fence = &fence;
    prepare.plan = &small.plan;
    prepare.ranks = (uint32_t *)ranks;
    prepare.n_ranks = count;
    prepare.device = (char *)"cpu";
    prepare.beside = controller->beside;
    message.message_case = DP__V1__CONTROLLER_MESSAGE__MESSAGE_PREPARE;
    message.prepare = &prepare;
    send(controller, &message);
}

void fake_controller_start(struct fake_controller *controller, const char *job, uint32_t epoch)
{
    Dp__V1__Fence fence = fence_of(job, epoch);
    Dp__V1__Start start = DP__V1__START__INIT;
    Dp__V1__ControllerMessage message = DP__V1__CONTROLLER_MESSAGE__INIT;
    start.fence = &fence;
    message.message_case = DP__V1__CONTROLLER_MESSAGE__MESSAGE_START;
    message.start = &start;
    send(controller, &message);
}

void fake_controller_start_from(struct fake_controller *controller, const char *job, uint32_t epoch,
                                uint64_t step)
{
    Dp__V1__Fence fence = fence_of(job, epoch);
    Dp__V1__StateSource held[2] = {DP__V1__STATE_SOURCE__INIT, DP__V1__STATE_SOURCE__INIT};
    Dp__V1__StateSource *sources[2] = {&held[0], &held[1]};
    Dp__V1__Start start = DP__V1__START__INIT;
    Dp__V1__ControllerMessage message = DP__V1__CONTROLLER_MESSAGE__INIT;
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t at = i + (epoch - 2) * controller->views_per_epoch;
        held[i].rank = i;
        held[i].address = controller->ranks[at].held_address;
    }
    start.fence = &fence;
    start.sources = sources;
    start.n_sources = 2;
    start.state_step = step;
    start.state_token = 0xfeed;
    message.message_case = DP__V1__CONTROLLER_MESSAGE__MESSAGE_START;
    message.start = &start;
    send(controller, &message);
}

void fake_controller_pause(struct fake_controller *controller, const char *job, uint32_t epoch)
{
    Dp__V1__Fence fence = fence_of(job, epoch);
    Dp__V1__Pause pause = DP__V1__PAUSE__INIT;
    Dp__V1__ControllerMessage message = DP__V1__CONTROLLER_MESSAGE__INIT;
    pause.fence = &fence;
    message.message_case = DP__V1__CONTROLLER_MESSAGE__MESSAGE_PAUSE;
    message.pause = &pause;
    send(controller, &message);
}

void fake_controller_settle(struct fake_controller *controller, const char *job, uint32_t epoch,
                            uint64_t step)
{
    Dp__V1__Fence fence = fence_of(job, epoch);
    Dp__V1__Settle settle = DP__V1__SETTLE__INIT;
    Dp__V1__ControllerMessage message = DP__V1__CONTROLLER_MESSAGE__INIT;
    settle.fence = &fence;
    settle.step = step;
    settle.grad_norm = 1.5;
    message.message_case = DP__V1__CONTROLLER_MESSAGE__MESSAGE_SETTLE;
    message.settle = &settle;
    send(controller, &message);
}

void fake_controller_probe(struct fake_controller *controller, const char *job, uint32_t epoch,
                           uint64_t request)
{
    Dp__V1__Fence fence = fence_of(job, epoch);
    Dp__V1__Probe probe = DP__V1__PROBE__INIT;
    Dp__V1__ControllerMessage message = DP__V1__CONTROLLER_MESSAGE__INIT;
    probe.fence = &fence;
    probe.request = request;
    message.message_case = DP__V1__CONTROLLER_MESSAGE__MESSAGE_PROBE;
    message.probe = &probe;
    send(controller, &message);
}

void fake_controller_stop(struct fake_controller *controller, const char *job, uint32_t epoch,
                          uint32_t grace_ms)
{
    Dp__V1__Fence fence = fence_of(job, epoch);
    Dp__V1__Stop stop = DP__V1__STOP__INIT;
    Dp__V1__ControllerMessage message = DP__V1__CONTROLLER_MESSAGE__INIT;
    stop.fence = &fence;
    stop.grace_ms = grace_ms;
    message.message_case = DP__V1__CONTROLLER_MESSAGE__MESSAGE_STOP;
    message.stop = &stop;
    send(controller, &message);
}

void fake_controller_release(struct fake_controller *controller, const char *job, uint32_t epoch)
{
    Dp__V1__Fence fence = fence_of(job, epoch);
    Dp__V1__Release release = DP__V1__RELEASE__INIT;
    Dp__V1__ControllerMessage message = DP__V1__CONTROLLER_MESSAGE__INIT;
    release.fence = &fence;
    message.message_case = DP__V1__CONTROLLER_MESSAGE__MESSAGE_RELEASE;
    message.release = &release;
    send(controller, &message);
}

void fake_controller_read_log(struct fake_controller *controller, const char *job, uint32_t epoch,
                              uint32_t rank)
{
    Dp__V1__Fence fence = fence_of(job, epoch);
    Dp__V1__ReadLog read_log = DP__V1__READ_LOG__INIT;
    Dp__V1__ControllerMessage message = DP__V1__CONTROLLER_MESSAGE__INIT;
    read_log.fence = &fence;
    read_log.request = 1;
    read_log.rank = rank;
    read_log.offset = controller->log_offset;
    message.message_case = DP__V1__CONTROLLER_MESSAGE__MESSAGE_READ_LOG;
    message.read_log = &read_log;
    send(controller, &message);
}

void fake_controller_calibrate(struct fake_controller *controller, uint64_t request, bool cancel)
{
    Dp__V1__CalibrateOrder order = DP__V1__CALIBRATE_ORDER__INIT;
    Dp__V1__ControllerMessage message = DP__V1__CONTROLLER_MESSAGE__INIT;
    order.request = request;
    order.cancel = cancel;
    message.message_case = DP__V1__CONTROLLER_MESSAGE__MESSAGE_CALIBRATE;
    message.calibrate = &order;
    send(controller, &message);
}
