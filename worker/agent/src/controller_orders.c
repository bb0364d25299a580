#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/arena.h"
#include "dp/cleanup.h"
#include "dp/log.h"
#include "dp/wire.h"
#include "worker.h"

// The wire has seen to it that there is one, and that the job's id can name a directory.
struct dp_agent_fence orders_fence(const Dp__V1__Fence *fence)
{
    struct dp_agent_fence known = {.attempt = fence->attempt, .epoch = fence->epoch};
    (void)DP_COPY_TEXT(known.job, fence->job);
    return known;
}

static void pack_order(const Dp__V1__RankOrder *order, struct dp_buf *buf)
{
    dp_wire_pack(&order->base, buf);
}

dp_status orders_prepare_rank(const struct worker *worker, const struct dp_buf *prepare,
                              uint32_t rank, struct dp_buf *buf, struct dp_error *err)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    ProtobufCMessage *any;
    dp_status status = dp_wire_unpack(&dp__v1__prepare__descriptor, prepare->bytes, prepare->length,
                                      &arena, &any, err);
    if (status != DP_OK) {
        return dp_fail_in(err, "cannot prepare rank %u", rank);
    }
    const Dp__V1__Prepare *known = (const Dp__V1__Prepare *)any;
    Dp__V1__RankPrepare order = DP__V1__RANK_PREPARE__INIT;
    Dp__V1__RankOrder message = DP__V1__RANK_ORDER__INIT;
    order.fence = known->fence;
    order.rank = rank;
    order.job_toml = known->job_toml;
    order.plan = known->plan;
    order.bind_host = (char *)worker->options.data_host;
    order.checkpoint_directory = known->checkpoint_directory;
    order.token = known->token;
    order.resume = known->resume;
    order.takes_state = known->beside;
    message.order_case = DP__V1__RANK_ORDER__ORDER_PREPARE;
    message.prepare = &order;
    pack_order(&message, buf);
    return DP_OK;
}

static dp_status check_ranks(const Dp__V1__Prepare *prepare, struct dp_error *err)
{
    if (prepare->n_ranks == 0 || prepare->n_ranks > DP_NODE_SLOTS_MAX) {
        return dp_fail(err, DP_INVALID, "%zu ranks on one node; 1 to %d are possible",
                       prepare->n_ranks, DP_NODE_SLOTS_MAX);
    }
    for (size_t i = 0; i < prepare->n_ranks; i++) {
        for (size_t j = 0; j < i; j++) {
            if (prepare->ranks[i] == prepare->ranks[j]) {
                return dp_fail(err, DP_INVALID, "rank %u is named twice", prepare->ranks[i]);
            }
        }
    }
    return DP_OK;
}

static void on_prepare(struct worker *worker, const Dp__V1__ControllerMessage *message)
{
    const Dp__V1__Prepare *prepare = message->prepare;
    struct dp_agent_event event = {
        .type = DP_AGENT_PREPARE,
        .fence = orders_fence(prepare->fence),
        .numbers = prepare->ranks,
        .numbers_count = prepare->n_ranks,
        .beside = prepare->beside,
    };
    struct dp_error err = {0};
    if (check_ranks(prepare, &err) != DP_OK) {
        struct dp_agent_event bad = {
            .type = DP_AGENT_BAD_PREPARE, .fence = event.fence, .text = err.message};
        worker_event(worker, &bad);
        return;
    }
    DP_CLEANUP(dp_buf_deinit) struct dp_buf packed = {0};
    dp_wire_pack(&prepare->base, &packed);
    event.bytes = packed.bytes;
    event.length = packed.length;
    worker_event(worker, &event);
}

void orders_refuse(struct worker *worker, const void *bytes, size_t length, const char *reason)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    ProtobufCMessage *fence;
    if (dp_wire_member(&dp__v1__controller_message__descriptor, "prepare", bytes, length, &bytes,
                       &length) &&
        dp_wire_member(&dp__v1__prepare__descriptor, "fence", bytes, length, &bytes, &length) &&
        dp_wire_unpack(&dp__v1__fence__descriptor, bytes, length, &arena, &fence, NULL) == DP_OK) {
        struct dp_agent_event event = {.type = DP_AGENT_BAD_PREPARE,
                                       .fence = orders_fence((const Dp__V1__Fence *)fence),
                                       .text = reason};
        worker_event(worker, &event);
    }
}

static void on_start(struct worker *worker, const Dp__V1__ControllerMessage *message)
{
    struct dp_agent_event event = {.type = DP_AGENT_START,
                                   .fence = orders_fence(message->start->fence)};
    Dp__V1__RankStart start = DP__V1__RANK_START__INIT;
    Dp__V1__RankOrder order = DP__V1__RANK_ORDER__INIT;
    DP_CLEANUP(dp_buf_deinit) struct dp_buf packed = {0};
    start.fence = message->start->fence;
    start.endpoints = message->start->endpoints;
    start.n_endpoints = message->start->n_endpoints;
    start.sources = message->start->sources;
    start.n_sources = message->start->n_sources;
    start.state_step = message->start->state_step;
    start.state_token = message->start->state_token;
    order.order_case = DP__V1__RANK_ORDER__ORDER_START;
    order.start = &start;
    pack_order(&order, &packed);
    event.bytes = packed.bytes;
    event.length = packed.length;
    worker_event(worker, &event);
}

static void on_stop(struct worker *worker, const Dp__V1__ControllerMessage *message)
{
    const Dp__V1__Stop *stop = message->stop;
    struct dp_agent_event event = {
        .type = DP_AGENT_STOP, .fence = orders_fence(stop->fence), .grace_ms = stop->grace_ms};
    Dp__V1__RankStop rank_stop = DP__V1__RANK_STOP__INIT;
    Dp__V1__RankOrder order = DP__V1__RANK_ORDER__INIT;
    DP_CLEANUP(dp_buf_deinit) struct dp_buf packed = {0};
    if (stop->checkpoint) {
        rank_stop.fence = stop->fence;
        rank_stop.checkpoint = true;
        order.order_case = DP__V1__RANK_ORDER__ORDER_STOP;
        order.stop = &rank_stop;
        pack_order(&order, &packed);
    }
    dp_log_info("job.stop", "job=%s attempt=%u epoch=%u checkpoint=%d grace_ms=%u reason=\"%s\"",
                event.fence.job, event.fence.attempt, event.fence.epoch, stop->checkpoint,
                stop->grace_ms, stop->reason);
    event.bytes = packed.bytes;
    event.length = packed.length;
    worker_event(worker, &event);
}

static void on_release(struct worker *worker, const Dp__V1__ControllerMessage *message)
{
    struct dp_agent_event event = {.type = DP_AGENT_RELEASE,
                                   .fence = orders_fence(message->release->fence)};
    worker_event(worker, &event);
}

// What ranks that run are told, in the words of their own orders.
static void pass_on(struct worker *worker, dp_agent_event_type type, const Dp__V1__Fence *fence,
                    const Dp__V1__RankOrder *order)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf packed = {0};
    pack_order(order, &packed);
    struct dp_agent_event event = {
        .type = type,
        .fence = orders_fence(fence),
        .bytes = packed.bytes,
        .length = packed.length,
    };
    worker_event(worker, &event);
}

static void on_checkpoint(struct worker *worker, const Dp__V1__ControllerMessage *message)
{
    Dp__V1__RankCheckpoint checkpoint = DP__V1__RANK_CHECKPOINT__INIT;
    Dp__V1__RankOrder order = DP__V1__RANK_ORDER__INIT;
    checkpoint.fence = message->checkpoint->fence;
    checkpoint.request = message->checkpoint->request;
    order.order_case = DP__V1__RANK_ORDER__ORDER_CHECKPOINT;
    order.checkpoint = &checkpoint;
    pass_on(worker, DP_AGENT_CHECKPOINT, checkpoint.fence, &order);
}

static void on_pause(struct worker *worker, const Dp__V1__ControllerMessage *message)
{
    Dp__V1__RankPause pause = DP__V1__RANK_PAUSE__INIT;
    Dp__V1__RankOrder order = DP__V1__RANK_ORDER__INIT;
    pause.fence = message->pause->fence;
    order.order_case = DP__V1__RANK_ORDER__ORDER_PAUSE;
    order.pause = &pause;
    pass_on(worker, DP_AGENT_PAUSE, pause.fence, &order);
}

static void on_settle(struct worker *worker, const Dp__V1__ControllerMessage *message)
{
    Dp__V1__RankSettle settle = DP__V1__RANK_SETTLE__INIT;
    Dp__V1__RankOrder order = DP__V1__RANK_ORDER__INIT;
    settle.fence = message->settle->fence;
    settle.step = message->settle->step;
    settle.grad_norm = message->settle->grad_norm;
    order.order_case = DP__V1__RANK_ORDER__ORDER_SETTLE;
    order.settle = &settle;
    pass_on(worker, DP_AGENT_SETTLE, settle.fence, &order);
}

static void on_probe(struct worker *worker, const Dp__V1__ControllerMessage *message)
{
    Dp__V1__RankProbe probe = DP__V1__RANK_PROBE__INIT;
    Dp__V1__RankOrder order = DP__V1__RANK_ORDER__INIT;
    probe.fence = message->probe->fence;
    probe.request = message->probe->request;
    order.order_case = DP__V1__RANK_ORDER__ORDER_PROBE;
    order.probe = &probe;
    pass_on(worker, DP_AGENT_PROBE, probe.fence, &order);
}

static void on_rebalance(struct worker *worker, const Dp__V1__ControllerMessage *message)
{
    Dp__V1__RankRebalance rebalance = DP__V1__RANK_REBALANCE__INIT;
    Dp__V1__RankOrder order = DP__V1__RANK_ORDER__INIT;
    rebalance.fence = message->rebalance->fence;
    rebalance.request = message->rebalance->request;
    order.order_case = DP__V1__RANK_ORDER__ORDER_REBALANCE;
    order.rebalance = &rebalance;
    pass_on(worker, DP_AGENT_REBALANCE, rebalance.fence, &order);
}

static void on_read_log(struct worker *worker, const Dp__V1__ControllerMessage *message)
{
    logs_answer(worker, message->read_log);
}

static void on_calibrate(struct worker *worker, const Dp__V1__ControllerMessage *message)
{
    calibration_order(worker->calibration, message->calibrate->request, message->calibrate->cancel);
}

typedef void (*order_handler)(struct worker *worker, const Dp__V1__ControllerMessage *message);

void orders_handle(struct worker *worker, const Dp__V1__ControllerMessage *message)
{
    static const order_handler handlers[] = {
        [DP__V1__CONTROLLER_MESSAGE__MESSAGE_PREPARE] = on_prepare,
        [DP__V1__CONTROLLER_MESSAGE__MESSAGE_START] = on_start,
        [DP__V1__CONTROLLER_MESSAGE__MESSAGE_STOP] = on_stop,
        [DP__V1__CONTROLLER_MESSAGE__MESSAGE_RELEASE] = on_release,
        [DP__V1__CONTROLLER_MESSAGE__MESSAGE_CHECKPOINT] = on_checkpoint,
        [DP__V1__CONTROLLER_MESSAGE__MESSAGE_READ_LOG] = on_read_log,
        [DP__V1__CONTROLLER_MESSAGE__MESSAGE_CALIBRATE] = on_calibrate,
        [DP__V1__CONTROLLER_MESSAGE__MESSAGE_PAUSE] = on_pause,
        [DP__V1__CONTROLLER_MESSAGE__MESSAGE_SETTLE] = on_settle,
        [DP__V1__CONTROLLER_MESSAGE__MESSAGE_PROBE] = on_probe,
        [DP__V1__CONTROLLER_MESSAGE__MESSAGE_REBALANCE] = on_rebalance,
    };
    size_t kind = (size_t)message->message_case;
    if (kind < sizeof handlers / sizeof handlers[0] && handlers[kind] != NULL) {
        handlers[kind](worker, message);
    }
}
