// Copies of an expert are trained as one: their gradients are added up, in the order of their
// slots, and every copy gets the sum. So all see the same updates.
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "optim_internal.h"

enum { CALL_COPIES = 12 };

// One layer's slots, over the ranks of an EP group.
struct slots {
    struct held_stage *held;
    int32_t layer, count, share; // of all ranks, of one
    const int32_t *expert;       // [count]
    int64_t elements;            // of a slot
};

static bool has(const struct slots *slots, int32_t rank, int32_t expert)
{
    for (int32_t s = rank * slots->share; s < (rank + 1) * slots->share; s++) {
        if (slots->expert[s] == expert) {
            return true;
        }
    }
    return false;
}

// Bytes of the gradients that `from` sends to `to`: those of its slots whose expert `to` has too.
static size_t sent_bytes(const struct slots *slots, int32_t from, int32_t to)
{
    int64_t count = 0;
    for (int32_t s = from * slots->share; s < (from + 1) * slots->share && from != to; s++) {
        count += has(slots, to, slots->expert[s]);
    }
    return (size_t)(count * slots->elements) * dp_device_real_bytes(slots->held->device);
}

static char *gradient_of(const struct slots *slots, int32_t slot)
{
    return real_at(slots->held, dp_stage_gradients(slots->held->stage),
                   dp_stage_slot_offset(slots->held->stage, slots->layer, slot % slots->share));
}

static void pack(const struct slots *slots, char *send)
{
    const struct dp_group *group = &slots->held->peers;
    const size_t bytes = (size_t)slots->elements * dp_device_real_bytes(slots->held->device);
    const int32_t first = group->self * slots->share;
    for (int32_t to = 0; to < group->count; to++) {
        for (int32_t s = first; s < first + slots->share && to != group->self; s++) {
            if (has(slots, to, slots->expert[s])) {
                memcpy(send, gradient_of(slots, s), bytes);
                send += bytes;
            }
        }
    }
}

static void add(dp_element real, int64_t count, const void *values, double *sum)
{
    for (int64_t i = 0; i < count; i++) {
        sum[i] += real == DP_F64 ? ((const double *)values)[i] : (double)((const float *)values)[i];
    }
}

static void put(dp_element real, int64_t count, const double *sum, void *values)
{
    for (int64_t i = 0; i < count; i++) {
        if (real == DP_F64) {
            ((double *)values)[i] = sum[i];
        } else {
            ((float *)values)[i] = (float)sum[i];
        }
    }
}

// One expert of this rank: over all its slots, then into the own ones. `came` [count]: what other
// ranks' slots have sent, NULL where they have not.
static void sum_expert(const struct slots *slots, int32_t expert, char *const *came, double *sum)
{
    const dp_element real = dp_element_real(slots->held->device->element);
    const int32_t self = slots->held->peers.self;
    memset(sum, 0, (size_t)slots->elements * sizeof *sum);
    for (int32_t s = 0; s < slots->count; s++) {
        if (slots->expert[s] == expert) {
            const bool is_own = s / slots->share == self;
            add(real, slots->elements, is_own ? gradient_of(slots, s) : came[s], sum);
        }
    }
    for (int32_t s = self * slots->share; s < (self + 1) * slots->share; s++) {
        if (slots->expert[s] == expert) {
            put(real, slots->elements, sum, gradient_of(slots, s));
        }
    }
}

static void sum_own(const struct slots *slots, char *recv)
{
    const struct dp_group *group = &slots->held->peers;
    const size_t bytes = (size_t)slots->elements * dp_device_real_bytes(slots->held->device);
    DP_AUTO_FREE char **came = dp_new_array(char *, (size_t)slots->count);
    DP_AUTO_FREE int32_t *copies =
        dp_new_array(int32_t, (size_t)dp_stage_config(slots->held->stage)->model.experts);
    DP_AUTO_FREE double *sum = dp_new_array(double, (size_t)slots->elements);
    for (int32_t s = 0; s < slots->count; s++) {
        copies[slots->expert[s]]++;
        if (s / slots->share != group->self && has(slots, group->self, slots->expert[s])) {
            came[s] = recv;
            recv += bytes;
        }
    }
    const int32_t first = group->self * slots->share;
    for (int32_t s = first; s < first + slots->share; s++) {
        const int32_t expert = slots->expert[s];
        if (copies[expert] > 1) {
            sum_expert(slots, expert, came, sum);
            copies[expert] = 0; // done, for the expert's other slots here
        }
    }
}

static dp_status sum_layer(const struct slots *slots, struct dp_error *err)
{
    struct dp_group *group = &slots->held->peers;
    const size_t members = (size_t)group->count;
    DP_AUTO_FREE size_t *send_bytes = dp_new_array(size_t, members);
    DP_AUTO_FREE size_t *recv_bytes = dp_new_array(size_t, members);
    size_t sent = 0, received = 0;
    for (int32_t i = 0; i < group->count; i++) {
        send_bytes[i] = sent_bytes(slots, group->self, i);
        recv_bytes[i] = sent_bytes(slots, i, group->self);
        sent += send_bytes[i];
        received += recv_bytes[i];
    }
    DP_AUTO_FREE char *send = dp_new_array(char, sent);
    DP_AUTO_FREE char *recv = dp_new_array(char, received);
    pack(slots, send);
    const struct dp_group_parts parts = {.peers = group->count,
                                         .self = group->self,
                                         .send = send,
                                         .send_bytes = send_bytes,
                                         .recv = recv,
                                         .recv_bytes = recv_bytes};
    const uint64_t tag =
        dp_transport_tag(0, (uint32_t)slots->held->index, 0, (uint32_t)slots->layer, CALL_COPIES);
    dp_status status = dp_group_exchange(group, tag, &parts, err);
    if (status == DP_OK) {
        sum_own(slots, recv);
    }
    return status;
}

dp_status dp_optim_sum_copies(struct held_stage *held, struct dp_error *err)
{
    const struct dp_stage_config *config = dp_stage_config(held->stage);
    dp_status status = held->device->ops->stream_sync(held->device->stream, err);
    // Multi-token prediction has a layer behind the last.
    for (int32_t l = config->layer_begin; l <= config->layer_end && status == DP_OK; l++) {
        const int32_t count = dp_stage_slots(held->stage);
        const struct slots slots = {.held = held,
                                    .layer = l,
                                    .count = count,
                                    .share = count / config->ep_size,
                                    .expert = dp_stage_placement(held->stage, l),
                                    .elements = dp_stage_slot_elements(held->stage)};
        if (slots.expert != NULL) {
            status = sum_layer(&slots, err);
            if (status != DP_OK) {
                dp_fail_in(err, "copies of experts of layer %d", l);
            }
        }
    }
    return status;
}
