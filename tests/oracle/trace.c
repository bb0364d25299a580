// Trains a tiny model for ten steps and writes everything an outside implementation needs to do
// the same: trace DIRECTORY
//   manifest.json  shapes, optimizer, tensors (name, rows, cols, elements before it)
//   weights.f32    initial weights          gradients.f32  gradients of step 1
//   batches.i32    [steps, samples, sequence + 1] tokens; the target is the next token
//   losses.txt     mean cross-entropy of each step
#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/buf.h"
#include "dp/cleanup.h"
#include "dp/model.h"
#include "dp/rand.h"

#define STEPS 10
#define MICRO_BATCHES 2
#define SAMPLES 2
#define SEQUENCE 32

static const struct dp_model_spec model = {
    .name = "oracle",
    .layers = 4,
    .dense_layers = 1,
    .hidden = 32,
    .heads = 4,
    .kv_heads = 2,
    .head_dim = 8,
    .ffn = 48,
    .experts = 4,
    .top_k = 2,
    .shared_experts = 1,
    .expert_ffn = 24,
    .vocabulary = 64,
    .rope_theta = 10000,
    .norm_eps = 1e-6,
    .aux_loss_weight = 0.05,
};

static const struct dp_adamw optimizer = {
    .lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .grad_scale = 1};

static dp_status write_manifest(const struct dp_stage *stage, const char *directory,
                                struct dp_error *err)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_buf_printf(&text,
                  "{\"steps\":%d,\"samples\":%d,\"sequence\":%d,\"layers\":%d,\"dense_layers\":%d,"
                  "\"hidden\":%d,\"heads\":%d,\"kv_heads\":%d,\"head_dim\":%d,\"experts\":%d,"
                  "\"top_k\":%d,\"vocabulary\":%d,\"rope_theta\":%g,\"norm_eps\":%g,"
                  "\"aux_loss_weight\":%g,\"lr\":%g,\"beta1\":%g,\"beta2\":%g,\"eps\":%g,"
                  "\"weight_decay\":%g,\"tensors\":[",
                  STEPS, MICRO_BATCHES * SAMPLES, SEQUENCE, model.layers, model.dense_layers,
                  model.hidden, model.heads, model.kv_heads, model.head_dim, model.experts,
                  model.top_k, model.vocabulary, model.rope_theta, model.norm_eps,
                  model.aux_loss_weight, optimizer.lr, optimizer.beta1, optimizer.beta2,
                  optimizer.eps, optimizer.weight_decay);
    int32_t count;
    const struct dp_tensor *tensors = dp_stage_tensors(stage, &count);
    for (int32_t i = 0; i < count; i++) {
        dp_buf_printf(&text, "%s{\"name\":\"%s\",\"rows\":%lld,\"cols\":%lld,\"offset\":%lld}",
                      i == 0 ? "" : ",", tensors[i].name, (long long)tensors[i].rows,
                      (long long)tensors[i].cols, (long long)tensors[i].offset);
    }
    dp_buf_puts(&text, "]}\n");
    DP_AUTO_FREE char *path = dp_asprintf("%s/manifest.json", directory);
    return dp_write_file(path, text.bytes, text.length, err);
}

static dp_status write_floats(const struct dp_stage *stage, const void *floats,
                              const char *directory, const char *name, struct dp_error *err)
{
    DP_AUTO_FREE char *path = dp_asprintf("%s/%s", directory, name);
    return dp_write_file(path, floats, (size_t)dp_stage_parameter_count(stage) * sizeof(float),
                         err);
}

// Token t + 1 depends on token t, so that there is something to learn.
static void draw_sample(struct dp_rand *rand, int32_t *tokens)
{
    tokens[0] = (int32_t)dp_rand_below(rand, (uint64_t)model.vocabulary);
    for (int32_t i = 1; i <= SEQUENCE; i++) {
        int32_t step = (int32_t)dp_rand_below(rand, 3);
        tokens[i] = (tokens[i - 1] * 5 + step) % model.vocabulary;
    }
}

// One micro-batch forward and backward; adds its loss sum.
static dp_status run_micro_batch(struct dp_stage *stage, const int32_t *samples, double *loss,
                                 struct dp_error *err)
{
    int32_t tokens[SAMPLES * SEQUENCE], targets[SAMPLES * SEQUENCE];
    for (int32_t i = 0; i < SAMPLES * SEQUENCE; i++) {
        const int32_t *at = samples + i / SEQUENCE * (SEQUENCE + 1) + i % SEQUENCE;
        tokens[i] = at[0];
        targets[i] = at[1];
    }
    struct dp_chunk *chunk =
        dp_chunk_new(stage, SAMPLES, 1.0 / (MICRO_BATCHES * SAMPLES * SEQUENCE));
    dp_status status = dp_chunk_set_tokens(chunk, tokens, err);
    if (status == DP_OK) {
        status = dp_chunk_set_targets(chunk, targets, err);
    }
    for (int pass = DP_PASS_FORWARD; pass <= DP_PASS_WEIGHT && status == DP_OK; pass++) {
        status = dp_chunk_run_all(chunk, (dp_pass)pass, err);
    }
    *loss += dp_chunk_loss_sum(chunk);
    dp_chunk_free(chunk);
    return status;
}

static void optimize(struct dp_stage *stage, int64_t step, float *m, float *v)
{
    const struct dp_device *device = dp_stage_device(stage);
    float *weights = dp_stage_weights(stage), *gradients = dp_stage_gradients(stage);
    int32_t count;
    const struct dp_tensor *tensors = dp_stage_tensors(stage, &count);
    for (int32_t i = 0; i < count; i++) {
        struct dp_adamw adamw = optimizer;
        adamw.step = step;
        adamw.weight_decay = tensors[i].decays ? optimizer.weight_decay : 0;
        const int64_t at = tensors[i].offset;
        device->ops->adamw(device->stream, &adamw, tensors[i].count, gradients + at, weights + at,
                           m + at, v + at);
    }
}

static dp_status train(struct dp_stage *stage, const char *directory, const int32_t *batches,
                       struct dp_error *err)
{
    const size_t count = (size_t)dp_stage_parameter_count(stage);
    const int64_t sample = SEQUENCE + 1;
    DP_AUTO_FREE float *m = dp_new_array(float, count), *v = dp_new_array(float, count);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf losses = {0};
    for (int64_t step = 1; step <= STEPS; step++) {
        double loss = 0;
        dp_stage_zero_gradients(stage);
        for (int64_t i = 0; i < MICRO_BATCHES; i++) {
            const int64_t at = ((step - 1) * MICRO_BATCHES + i) * SAMPLES * sample;
            dp_status status = run_micro_batch(stage, batches + at, &loss, err);
            if (status != DP_OK) {
                return status;
            }
        }
        if (step == 1) {
            dp_status status =
                write_floats(stage, dp_stage_gradients(stage), directory, "gradients.f32", err);
            if (status != DP_OK) {
                return status;
            }
        }
        dp_buf_printf(&losses, "%.9g\n", loss / (MICRO_BATCHES * SAMPLES * SEQUENCE));
        optimize(stage, step, m, v);
    }
    DP_AUTO_FREE char *path = dp_asprintf("%s/losses.txt", directory);
    return dp_write_file(path, losses.bytes, losses.length, err);
}

static dp_status write_trace(struct dp_stage *stage, const char *directory, struct dp_error *err)
{
    const size_t samples = (size_t)STEPS * MICRO_BATCHES * SAMPLES;
    DP_AUTO_FREE int32_t *batches = dp_new_array(int32_t, samples * (SEQUENCE + 1));
    struct dp_rand rand;
    dp_rand_init(&rand, 5);
    for (size_t i = 0; i < samples; i++) {
        draw_sample(&rand, batches + i * (SEQUENCE + 1));
    }
    DP_AUTO_FREE char *path = dp_asprintf("%s/batches.i32", directory);
    dp_status status =
        dp_write_file(path, batches, samples * (SEQUENCE + 1) * sizeof(int32_t), err);
    if (status == DP_OK) {
        status = write_manifest(stage, directory, err);
    }
    if (status == DP_OK) {
        status = write_floats(stage, dp_stage_weights(stage), directory, "weights.f32", err);
    }
    return status == DP_OK ? train(stage, directory, batches, err) : status;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: trace DIRECTORY\n");
        return 2;
    }
    const struct dp_stage_config config = {.model = model,
                                           .layer_end = model.layers,
                                           .has_embedding = true,
                                           .has_head = true,
                                           .ep_size = 1,
                                           .sequence = SEQUENCE,
                                           .seed = 11};
    struct dp_error err;
    struct dp_device *device = NULL;
    struct dp_stage *stage = NULL;
    dp_status status = dp_device_open_cpu(DP_F32, &device, &err);
    if (status == DP_OK) {
        status = dp_stage_new(device, &config, &stage, &err);
    }
    if (status == DP_OK) {
        status = write_trace(stage, argv[1], &err);
    }
    dp_stage_free(stage);
    dp_device_close(device);
    if (status != DP_OK) {
        fprintf(stderr, "trace: %s\n", err.message);
        return 1;
    }
    return 0;
}
