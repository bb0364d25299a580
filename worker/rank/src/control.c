#include "control.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/exec.h"
#include "dp/log.h"
#include "dp/wire.h"
#include "job_times.h"
#include "utilisation.h"

#define SAMPLE_NS (DP_NS_PER_S / 2)
// Frames have a limit; a step with more spans than this is reported without the rest.
#define SPANS_MAX 50000

// A report that waits for the thread.
struct queued {
    struct queued *next;
    dp_link_slot slot;
    struct dp_buf bytes;   // of a whole report; empty for a step:
    Dp__V1__StepDone step; // its expert_tokens and layers are owned; what follows is its:
    Dp__V1__Rebalance rebalance;
    Dp__V1__MemoryParts memory;
    Dp__V1__StepComm comm[DP_EXEC_COMM_KIND_COUNT];
    Dp__V1__StepComm *comm_list[DP_EXEC_COMM_KIND_COUNT];
    struct job_times times;
    bool with_spans;
};

struct control {
    struct dp_link link;
    uint32_t rank;
    int wake_fd;
    pthread_t thread;
    struct utilisation utilisation; // of the thread
    int64_t sample_at_ns;

    pthread_mutex_t lock; // of all that follows
    pthread_cond_t changed;
    struct dp_buf prepare, start; // packed orders that were not asked for yet
    struct control_wish wish;
    struct control_settle settle;
    bool has_settle; // that was not asked for yet
    struct queued *first, **last;
    struct dp_exec_meter *meter;
    int32_t pipeline;
    char job[DP_ID_MAX];
    Dp__V1__Fence fence; // its job is the above; NULL before it is known
    bool closing;
};

static void *run(void *argument);

struct control *control_new(int fd, uint32_t rank)
{
    struct control *self = dp_new(struct control);
    dp_link_init(&self->link, fd, DP_LINK_OUT_BYTES_MAX);
    self->rank = rank;
    self->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    DP_CHECK(self->wake_fd >= 0);
    pthread_mutex_init(&self->lock, NULL);
    pthread_cond_init(&self->changed, NULL);
    self->last = &self->first;
    dp__v1__fence__init(&self->fence);
    self->fence.job = self->job;
    DP_CHECK(pthread_create(&self->thread, NULL, run, self) == 0);
    return self;
}

static void wake(struct control *self)
{
    uint64_t one = 1;
    ssize_t written = write(self->wake_fd, &one, sizeof(one));
    DP_CHECK(written == sizeof(one) || errno == EAGAIN);
}

void control_free(struct control *control)
{
    if (control == NULL) {
        return;
    }
    pthread_mutex_lock(&control->lock);
    control->closing = true;
    pthread_mutex_unlock(&control->lock);
    wake(control);
    pthread_join(control->thread, NULL);
    dp_link_deinit(&control->link);
    close(control->wake_fd);
    utilisation_deinit(&control->utilisation);
    dp_buf_deinit(&control->prepare);
    dp_buf_deinit(&control->start);
    pthread_cond_destroy(&control->changed);
    pthread_mutex_destroy(&control->lock);
    free(control);
}

static dp_status unpack(const void *bytes, size_t length, struct dp_arena *arena,
                        Dp__V1__RankOrder **ret_order, struct dp_error *err)
{
    ProtobufCMessage *message = NULL;
    dp_status status =
        dp_wire_unpack(&dp__v1__rank_order__descriptor, bytes, length, arena, &message, err);
    if (status == DP_OK) {
        *ret_order = (Dp__V1__RankOrder *)message;
    }
    return status;
}

dp_status control_wait_order(struct control *control, Dp__V1__RankOrder__OrderCase kind,
                             struct dp_arena *arena, Dp__V1__RankOrder **ret_order,
                             struct dp_error *err)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf bytes = {0};
    struct dp_buf *slot =
        kind == DP__V1__RANK_ORDER__ORDER_PREPARE ? &control->prepare : &control->start;
    pthread_mutex_lock(&control->lock);
    while (slot->length == 0 && !control->wish.stop) {
        pthread_cond_wait(&control->changed, &control->lock);
    }
    bytes = *slot;
    *slot = (struct dp_buf){0};
    pthread_mutex_unlock(&control->lock);
    if (bytes.length == 0) {
        return dp_fail(err, DP_INTERRUPTED, "stopped before the start");
    }
    return unpack(bytes.bytes, bytes.length, arena, ret_order, err);
}

void control_set_fence(struct control *control, const Dp__V1__Fence *fence)
{
    pthread_mutex_lock(&control->lock);
    DP_COPY_TEXT(control->job, fence->job);
    control->fence.attempt = fence->attempt;
    control->fence.epoch = fence->epoch;
    pthread_mutex_unlock(&control->lock);
}

void control_set_meter(struct control *control, struct dp_exec_meter *meter, int32_t pipeline)
{
    pthread_mutex_lock(&control->lock);
    control->meter = meter;
    control->pipeline = pipeline;
    pthread_mutex_unlock(&control->lock);
    wake(control);
}

void control_peek_wish(struct control *control, struct control_wish *ret_wish)
{
    pthread_mutex_lock(&control->lock);
    *ret_wish = control->wish;
    pthread_mutex_unlock(&control->lock);
}

void control_take_checkpoint(struct control *control, uint64_t request)
{
    pthread_mutex_lock(&control->lock);
    if (control->wish.request == request) {
        control->wish.checkpoint = false;
    }
    pthread_mutex_unlock(&control->lock);
}

bool control_wait_settle(struct control *control, struct control_settle *ret_settle)
{
    pthread_mutex_lock(&control->lock);
    while (!control->has_settle && !control->wish.stop) {
        pthread_cond_wait(&control->changed, &control->lock);
    }
    const bool settles = !control->wish.stop;
    *ret_settle = control->settle;
    control->has_settle = false;
    pthread_mutex_unlock(&control->lock);
    return settles;
}

void control_take_probe(struct control *control, uint64_t request)
{
    pthread_mutex_lock(&control->lock);
    if (control->wish.probe == request) {
        control->wish.probe = 0;
    }
    pthread_mutex_unlock(&control->lock);
}

void control_take_rebalance(struct control *control, uint64_t request)
{
    pthread_mutex_lock(&control->lock);
    if (control->wish.rebalance == request) {
        control->wish.rebalance = 0;
    }
    pthread_mutex_unlock(&control->lock);
}

static void free_queued(struct queued *item)
{
    dp_buf_deinit(&item->bytes);
    free(item->step.expert_tokens);
    for (size_t i = 0; i < item->step.n_layers; i++) {
        free(item->step.layers[i]->chosen);
        free(item->step.layers[i]->slot_experts);
        free(item->step.layers[i]);
    }
    free(item->step.layers);
    job_times_deinit(&item->times);
    free(item);
}

static void append(struct control *self, struct queued *item)
{
    pthread_mutex_lock(&self->lock);
    *self->last = item;
    self->last = &item->next;
    pthread_mutex_unlock(&self->lock);
    wake(self);
}

static void pack_report(struct control *self, Dp__V1__RankReport *report, struct dp_buf *out)
{
    report->fence = &self->fence;
    report->rank = self->rank;
    dp_wire_pack(&report->base, out);
}

void control_report(struct control *control, dp_link_slot slot, Dp__V1__RankReport *report)
{
    struct queued *item = dp_new(struct queued);
    item->slot = slot;
    pack_report(control, report, &item->bytes);
    append(control, item);
}

static Dp__V1__LayerLoad *copy_of(const Dp__V1__LayerLoad *load)
{
    Dp__V1__LayerLoad *copy = dp_memdup(load, sizeof(*load));
    copy->chosen = dp_memdup(load->chosen, load->n_chosen * sizeof(*load->chosen));
    copy->slot_experts =
        dp_memdup(load->slot_experts, load->n_slot_experts * sizeof(*load->slot_experts));
    return copy;
}

void control_report_step(struct control *control, const Dp__V1__StepDone *step, bool with_spans)
{
    struct queued *item = dp_new(struct queued);
    item->slot = DP_LINK_SLOT_STEP;
    item->step = *step;
    item->step.expert_tokens =
        dp_memdup(step->expert_tokens, step->n_expert_tokens * sizeof(uint64_t));
    item->step.layers = dp_new_array(Dp__V1__LayerLoad *, step->n_layers);
    for (size_t i = 0; i < step->n_layers; i++) {
        item->step.layers[i] = copy_of(step->layers[i]);
    }
    if (step->rebalance != NULL) {
        item->rebalance = *step->rebalance;
        item->step.rebalance = &item->rebalance;
    }
    if (step->memory != NULL) {
        item->memory = *step->memory;
        item->step.memory = &item->memory;
    }
    item->step.comm = item->comm_list;
    for (size_t i = 0; i < step->n_comm; i++) {
        item->comm[i] = *step->comm[i]; // kinds are texts that stay
        item->comm_list[i] = &item->comm[i];
    }
    job_times_copy(step, &item->times, &item->step);
    item->with_spans = with_spans;
    append(control, item);
}

// From here on: the thread.

static bool fence_matches(const struct control *self, const Dp__V1__Fence *fence)
{
    return fence != NULL && strcmp(fence->job, self->job) == 0 &&
           fence->attempt == self->fence.attempt && fence->epoch == self->fence.epoch;
}

static const Dp__V1__Fence *fence_of(const Dp__V1__RankOrder *order)
{
    switch (order->order_case) {
    case DP__V1__RANK_ORDER__ORDER_START:
        return order->start->fence;
    case DP__V1__RANK_ORDER__ORDER_STOP:
        return order->stop->fence;
    case DP__V1__RANK_ORDER__ORDER_CHECKPOINT:
        return order->checkpoint->fence;
    case DP__V1__RANK_ORDER__ORDER_PAUSE:
        return order->pause->fence;
    case DP__V1__RANK_ORDER__ORDER_PROBE:
        return order->probe->fence;
    case DP__V1__RANK_ORDER__ORDER_REBALANCE:
        return order->rebalance->fence;
    case DP__V1__RANK_ORDER__ORDER_SETTLE:
        return order->settle->fence;
    default:
        return NULL;
    }
}

static void keep(struct dp_buf *slot, const void *bytes, size_t length)
{
    dp_buf_clear(slot);
    dp_buf_append(slot, bytes, length);
}

// Holding the lock.
static void take_order(struct control *self, const Dp__V1__RankOrder *order, const void *bytes,
                       size_t length)
{
    if (order->order_case == DP__V1__RANK_ORDER__ORDER_PREPARE) {
        keep(&self->prepare, bytes, length);
        return;
    }
    if (!fence_matches(self, fence_of(order))) {
        dp_log_warn("rank.order_refused", "reason=\"of another attempt or epoch\" kind=%d",
                    (int)order->order_case);
        return;
    }
    switch (order->order_case) {
    case DP__V1__RANK_ORDER__ORDER_START:
        keep(&self->start, bytes, length);
        break;
    case DP__V1__RANK_ORDER__ORDER_STOP:
        self->wish.stop = true;
        self->wish.checkpoint = self->wish.checkpoint || order->stop->checkpoint;
        break;
    case DP__V1__RANK_ORDER__ORDER_CHECKPOINT:
        self->wish.checkpoint = true;
        self->wish.request = order->checkpoint->request;
        break;
    case DP__V1__RANK_ORDER__ORDER_PAUSE:
        self->wish.pause = true;
        break;
    case DP__V1__RANK_ORDER__ORDER_PROBE:
        self->wish.probe = order->probe->request;
        break;
    case DP__V1__RANK_ORDER__ORDER_REBALANCE:
        self->wish.rebalance = order->rebalance->request;
        break;
    case DP__V1__RANK_ORDER__ORDER_SETTLE:
        self->settle =
            (struct control_settle){(int64_t)order->settle->step, order->settle->grad_norm};
        self->has_settle = true;
        break;
    default:
        break;
    }
}

static void receive_orders(struct control *self)
{
    const uint8_t *bytes;
    size_t length;
    struct dp_error err;
    char reason[DP_ERROR_MESSAGE_MAX];
    dp_status status;
    while ((status = dp_link_rank_order(&self->link, 0, &bytes, &length, &err)) == DP_OK) {
        DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
        Dp__V1__RankOrder *order;
        if (unpack(bytes, length, &arena, &order, &err) != DP_OK) {
            dp_log_error("rank.order_refused", "reason=%s",
                         dp_log_quote(reason, sizeof(reason), err.message));
            continue;
        }
        pthread_mutex_lock(&self->lock);
        take_order(self, order, bytes, length);
        pthread_cond_broadcast(&self->changed);
        pthread_mutex_unlock(&self->lock);
    }
    if (status != DP_TIMEOUT) {
        // Without a keeper nobody watches this process or wants its results.
        dp_log_error("rank.keeper_lost", "reason=%s",
                     dp_log_quote(reason, sizeof(reason), err.message));
        _exit(dp_status_exit_code(DP_UNAVAILABLE));
    }
}

static void send_bytes(struct control *self, dp_link_slot slot, const struct dp_buf *bytes)
{
    struct dp_error err;
    if (dp_link_rank_report(&self->link, self->rank, slot, bytes->bytes, bytes->length, &err) !=
        DP_OK) {
        char reason[DP_ERROR_MESSAGE_MAX];
        dp_log_warn("rank.report_lost", "slot=%d reason=%s", (int)slot,
                    dp_log_quote(reason, sizeof(reason), err.message));
    }
}

static void send_step(struct control *self, struct queued *item)
{
    utilisation_drain(&self->utilisation);
    self->utilisation.step_ns = item->step.step_ns;
    self->utilisation.step_tokens = item->step.tokens;
    DP_AUTO_FREE Dp__V1__Span *spans = NULL;
    size_t count =
        utilisation_take_step(&self->utilisation, (int64_t)item->step.step, self->pipeline,
                              SPANS_MAX, item->with_spans ? &spans : NULL);
    DP_AUTO_FREE Dp__V1__Span **pointers = dp_new_array(Dp__V1__Span *, count);
    for (size_t i = 0; i < count; i++) {
        pointers[i] = &spans[i];
    }
    item->step.spans = pointers;
    item->step.n_spans = count;
    Dp__V1__RankReport report = DP__V1__RANK_REPORT__INIT;
    report.report_case = DP__V1__RANK_REPORT__REPORT_STEP;
    report.step = &item->step;
    pack_report(self, &report, &item->bytes);
    send_bytes(self, item->slot, &item->bytes);
}

static void send_queued(struct control *self)
{
    pthread_mutex_lock(&self->lock);
    struct queued *item = self->first;
    self->first = NULL;
    self->last = &self->first;
    pthread_mutex_unlock(&self->lock);
    while (item != NULL) {
        struct queued *next = item->next;
        if (item->bytes.length == 0) {
            send_step(self, item);
        } else {
            send_bytes(self, item->slot, &item->bytes);
        }
        free_queued(item);
        item = next;
    }
}

static void send_sample(struct control *self)
{
    self->sample_at_ns = dp_clock_monotonic_ns() + SAMPLE_NS;
    if (self->utilisation.meter == NULL) {
        return;
    }
    Dp__V1__Utilisation sample;
    utilisation_sample(&self->utilisation, &sample);
    Dp__V1__RankReport report = DP__V1__RANK_REPORT__INIT;
    report.report_case = DP__V1__RANK_REPORT__REPORT_UTILISATION;
    report.utilisation = &sample;
    DP_CLEANUP(dp_buf_deinit) struct dp_buf bytes = {0};
    pack_report(self, &report, &bytes);
    send_bytes(self, DP_LINK_SLOT_UTILISATION, &bytes);
}

static void *run(void *argument)
{
    struct control *self = argument;
    bool closing = false;
    while (!closing) {
        struct pollfd fds[2] = {{.fd = self->link.fd, .events = POLLIN},
                                {.fd = self->wake_fd, .events = POLLIN}};
        int64_t left_ns = self->sample_at_ns - dp_clock_monotonic_ns();
        poll(fds, 2, left_ns > 0 ? (int)(left_ns / DP_NS_PER_MS) + 1 : 0);
        uint64_t ignored;
        if (read(self->wake_fd, &ignored, sizeof(ignored)) < 0) {
            DP_CHECK(errno == EAGAIN);
        }
        pthread_mutex_lock(&self->lock);
        closing = self->closing;
        struct dp_exec_meter *meter = self->meter;
        pthread_mutex_unlock(&self->lock);
        if (meter != NULL && self->utilisation.meter == NULL) {
            utilisation_start(&self->utilisation, meter);
        }
        receive_orders(self);
        send_queued(self);
        if (dp_clock_monotonic_ns() >= self->sample_at_ns) {
            send_sample(self);
        }
    }
    return NULL;
}
