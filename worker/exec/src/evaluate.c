#include <math.h>

#include "dp/limits.h"
#include "exec_internal.h"

// A held-out micro-batch of one replica.
struct batch {
    struct samples samples;
    uint32_t number;
    bool counts; // its samples are this replica's, and not there for the peers' sake
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
    const int64_t start_ns = dp_exec_now_ns(exec);
    dp_exec_tag_chunk(chunk, MESSAGE_EVALUATE, slot->index, batch->number);
    status = dp_chunk_run_all(chunk, DP_PASS_FORWARD, err);
    struct dp_device *device = exec->config.device;
    if (status == DP_OK) {
        status = device->ops->stream_sync(device->stream, err);
    }
    if (status != DP_OK) {
        return status;
    }
    dp_exec_record(exec, DP_SPAN_EVALUATION, exec->step, start_ns);
    if (!dp_stage_config(slot->stage)->has_head) {
        int32_t peer = exec_rank_of(exec, position_of(exec, slot->index + 1));
        return dp_transport_send(exec->config.transport, peer, tag_of(slot->index + 1, batch),
                                 dp_chunk_output(chunk), dp_chunk_hidden_bytes(chunk), err);
    }
    *loss_sum += batch->counts ? dp_chunk_loss_sum(chunk) : 0;
    return isfinite(*loss_sum) ? DP_OK : dp_exec_fail_not_finite(exec, "the held-out loss", err);
}

static const struct slot *slot_of_stage(const struct dp_exec *exec, int32_t stage)
{
    const struct slot *slot = exec->slots;
    while (slot->index != stage) {
        slot++;
    }
    return slot;
}

// This replica's share of the held-out samples.
struct share {
    int64_t first, samples;
    int64_t batches; // as many on every replica
};

// Replicas share the samples in order; the first ones have one more where they do not divide.
static struct share share_of(const struct dp_exec *exec, int64_t samples)
{
    const struct dp_exec_config *config = &exec->config;
    int64_t first = dp_group_share_begin(samples, config->data, config->replica);
    int64_t end = dp_group_share_begin(samples, config->data, config->replica + 1);
    int64_t most = dp_group_share_begin(samples, config->data, 1), size = config->micro_batch_size;
    return (struct share){first, end - first, (most + size - 1) / size};
}

// Expert-parallel peers run as many micro-batches as each other. A replica without a sample for the
// last one takes the first of all.
static struct batch batch_at(const struct dp_exec *exec, const struct share *share, int64_t number)
{
    int64_t done = number * exec->config.micro_batch_size;
    int64_t left = share->samples - done;
    int32_t most = exec->config.micro_batch_size;
    struct batch batch = {.number = (uint32_t)number, .counts = left > 0};
    batch.samples = batch.counts ? (struct samples){.holdout = true,
                                                    .first = share->first + done,
                                                    .count = left < most ? (int32_t)left : most}
                                 : (struct samples){.holdout = true, .count = 1};
    return batch;
}

static dp_status run_batch(struct dp_exec *exec, const struct slot *slot, const struct batch *batch,
                           double *loss_sum, struct dp_error *err)
{
    struct dp_chunk *chunk = dp_chunk_new(slot->stage, batch->samples.count, 0);
    dp_status status = run_chunk(exec, slot, chunk, batch, loss_sum, err);
    dp_chunk_free(chunk);
    if (status != DP_OK) {
        exec->failure.peer_lost = status == DP_UNAVAILABLE || status == DP_TIMEOUT;
        dp_fail_in(err, "rank %d, evaluation, stage %d, micro-batch %u", dp_exec_world_rank(exec),
                   slot->index, batch->number);
    }
    return status;
}

// Micro-batches [begin, end) through this rank's stages of direction 0, in the order of the model.
// Stage by stage, so that a rank that the model comes back to is busy in between.
static dp_status run_batches(struct dp_exec *exec, const struct share *share, int64_t begin,
                             int64_t end, double *loss_sum, struct dp_error *err)
{
    for (int32_t stage = 0; stage < exec->config.schedule->stages; stage++) {
        if (position_of(exec, stage) != exec->config.position) {
            continue;
        }
        const struct slot *slot = slot_of_stage(exec, stage);
        for (int64_t number = begin; number < end; number++) {
            struct batch batch = batch_at(exec, share, number);
            dp_status status = run_batch(exec, slot, &batch, loss_sum, err);
            if (status != DP_OK) {
                return status;
            }
        }
    }
    return DP_OK;
}

dp_status dp_exec_evaluate(struct dp_exec *exec, double *ret_loss_sum, uint64_t *ret_tokens,
                           struct dp_error *err)
{
    const struct dp_exec_config *config = &exec->config;
    exec->failure = (struct dp_exec_failure){0};
    if (config->device == NULL || config->source.holdout_samples == 0) {
        *ret_loss_sum = 0;
        *ret_tokens = 0;
        return DP_OK;
    }
    int64_t most = DP_EVALUATE_TOKENS_MAX / config->sequence;
    int64_t samples = config->source.holdout_samples;
    most = most > 0 ? most : 1;
    samples = samples < most ? samples : most;
    const struct share share = share_of(exec, samples);
    double loss_sum = 0;
    // Enough at a time to keep every rank busy.
    for (int64_t begin = 0; begin < share.batches; begin += config->schedule->pipeline) {
        int64_t end = begin + config->schedule->pipeline;
        end = end < share.batches ? end : share.batches;
        dp_status status = run_batches(exec, &share, begin, end, &loss_sum, err);
        if (status != DP_OK) {
            return status;
        }
    }
    *ret_loss_sum = loss_sum;
    *ret_tokens = (uint64_t)(samples * config->sequence);
    return DP_OK;
}
