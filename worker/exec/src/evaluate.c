#include <math.h>

#include "dp/limits.h"
#include "exec_internal.h"

// A held-out micro-batch of one replica.
struct batch {
    struct samples samples;
    uint32_t number;
};

// The position of the stage in direction 0.
static int32_t position_of(const struct dp_exec *exec, int32_t stage)
{
    return exec->config.schedule->placement[2 * stage];
}

static uint64_t tag_of(int32_t stage, const struct batch *batch)
{
    return dp_transport_tag(MESSAGE_EVALUATE, (uint32_t)stage, batch->number, 0, 0);
}

static dp_status fill_chunk(struct dp_exec *exec, const struct slot *slot, struct dp_chunk *chunk,
                            const struct batch *batch, struct dp_error *err)
{
    dp_status status = dp_exec_fill_tokens(exec, slot, chunk, &batch->samples, err);
    void *input = NULL;
    if (status == DP_OK && slot->index > 0) {
        status = dp_chunk_make_input(chunk, &input, err);
    }
    if (status != DP_OK || input == NULL) {
        return status;
    }
    int32_t peer = exec_rank_of(exec, position_of(exec, slot->index - 1));
    return dp_transport_recv(exec->config.transport, peer, tag_of(slot->index, batch), input,
                             dp_chunk_hidden_bytes(chunk), 0, err);
}

static dp_status run_chunk(struct dp_exec *exec, const struct slot *slot, struct dp_chunk *chunk,
                           const struct batch *batch, double *loss_sum, struct dp_error *err)
{
    dp_status status = fill_chunk(exec, slot, chunk, batch, err);
    if (status != DP_OK) {
        return status;
    }
    int64_t waited_ns = 0;
    struct exchange_context context = {
        .exec = exec, .tag = tag_of(slot->index, batch), .waited_ns = &waited_ns};
    struct dp_exchanger exchanger = {.exchange = dp_exec_exchange_run, .context = &context};
    status = dp_chunk_run_all(chunk, DP_PASS_FORWARD, &exchanger, err);
    struct dp_device *device = exec->config.device;
    if (status == DP_OK) {
        status = device->ops->stream_sync(device->stream, err);
    }
    if (status != DP_OK) {
        return status;
    }
    if (!dp_stage_config(slot->stage)->has_head) {
        int32_t peer = exec_rank_of(exec, position_of(exec, slot->index + 1));
        return dp_transport_send(exec->config.transport, peer, tag_of(slot->index + 1, batch),
                                 dp_chunk_output(chunk), dp_chunk_hidden_bytes(chunk), err);
    }
    *loss_sum += dp_chunk_loss_sum(chunk);
    return isfinite(*loss_sum) ? DP_OK : dp_exec_fail_not_finite(exec, "the held-out loss", err);
}

// This rank's stages of direction 0, in the order of the model.
static dp_status run_batch(struct dp_exec *exec, const struct batch *batch, double *loss_sum,
                           struct dp_error *err)
{
    const struct dp_schedule *schedule = exec->config.schedule;
    for (int32_t stage = 0; stage < schedule->stages; stage++) {
        if (position_of(exec, stage) != exec->config.position) {
            continue;
        }
        const struct slot *slot = exec->slots;
        while (slot->index != stage) {
            slot++;
        }
        struct dp_chunk *chunk = dp_chunk_new(slot->stage, batch->samples.count, 0);
        dp_status status = run_chunk(exec, slot, chunk, batch, loss_sum, err);
        dp_chunk_free(chunk);
        if (status != DP_OK) {
            exec->failure.peer_lost = status == DP_UNAVAILABLE || status == DP_TIMEOUT;
            dp_fail_in(err, "rank %d, evaluation, stage %d, micro-batch %u",
                       dp_exec_world_rank(exec), stage, batch->number);
            return status;
        }
    }
    return DP_OK;
}

dp_status dp_exec_evaluate(struct dp_exec *exec, double *ret_loss_sum, uint64_t *ret_tokens,
                           struct dp_error *err)
{
    const struct dp_exec_config *config = &exec->config;
    exec->failure = (struct dp_exec_failure){0};
    int64_t share = 0;
    if (config->device != NULL) {
        int64_t most = DP_EVALUATE_TOKENS_MAX / config->sequence;
        int64_t samples = config->source.holdout_samples;
        share = (samples < most ? samples : most) / config->data;
    }
    double loss_sum = 0;
    struct batch batch = {.samples = {.holdout = true, .first = share * config->replica}};
    int64_t end = batch.samples.first + share;
    while (batch.samples.first < end) {
        int64_t left = end - batch.samples.first;
        batch.samples.count =
            (int32_t)(left < config->micro_batch_size ? left : config->micro_batch_size);
        dp_status status = run_batch(exec, &batch, &loss_sum, err);
        if (status != DP_OK) {
            return status;
        }
        batch.samples.first += batch.samples.count;
        batch.number++;
    }
    *ret_loss_sum = loss_sum;
    *ret_tokens = (uint64_t)(share * config->data * config->sequence);
    return DP_OK;
}
