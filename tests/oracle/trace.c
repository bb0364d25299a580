// Trains tiny models and writes everything an outside implementation needs to do the same:
//   trace DIRECTORY         trains every variant below, each into DIRECTORY/NAME:
//     manifest.json         shapes, optimizer, tensors (name, rows, cols, elements before it),
//                           routers' biases by layer
//     weights.f64           initial weights          gradients.f64  gradients of step 1
//     batches.i32           [steps, samples, sequence + 1] tokens; the target is the next token
//     losses.txt            mean cross-entropy of each step
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "dp/alloc.h"
#include "dp/buf.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/model.h"
#include "dp/rand.h"
#include "variants.h"

#define MICRO_BATCHES 2
#define SAMPLES 2
#define SEQUENCE 32

static const struct dp_adamw optimizer = {
    .lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .grad_scale = 1};

// A run of one variant. The same step without recomputation is what its gradients are held to.
struct trace {
    const struct variant *variant;
    struct dp_stage *stage;
    const char *directory;
};

static double value_at(const struct dp_stage *stage, const void *reals, int64_t at)
{
    return dp_stage_device(stage)->element == DP_F64 ? ((const double *)reals)[at]
                                                     : (double)((const float *)reals)[at];
}

static dp_status write_reals(const struct trace *trace, const void *reals, const char *name,
                             struct dp_error *err)
{
    const int64_t count = dp_stage_parameter_count(trace->stage);
    DP_AUTO_FREE double *values = dp_new_array(double, (size_t)count);
    for (int64_t i = 0; i < count; i++) {
        values[i] = value_at(trace->stage, reals, i);
    }
    DP_AUTO_FREE char *path = dp_asprintf("%s/%s", trace->directory, name);
    return dp_write_file(path, values, (size_t)count * sizeof(double), err);
}

static void write_biases(const struct trace *trace, struct dp_buf *text)
{
    const struct dp_model_spec *model = &trace->variant->model;
    const char *before = "";
    for (int32_t layer = 0; layer <= model->layers; layer++) {
        const void *bias = dp_stage_router_bias(trace->stage, layer);
        if (bias == NULL) {
            continue;
        }
        dp_buf_printf(text, "%s\"%d\":[", before, layer);
        for (int32_t e = 0; e < model->experts; e++) {
            dp_buf_printf(text, "%s%.17g", e == 0 ? "" : ",", value_at(trace->stage, bias, e));
        }
        dp_buf_puts(text, "]");
        before = ",";
    }
}

static dp_status write_manifest(const struct trace *trace, struct dp_error *err)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_buf_printf(&text,
                  "{\"steps\":%d,\"samples\":%d,\"sequence\":%d,\"is_double\":%d,\"lr\":%g,"
                  "\"beta1\":%g,\"beta2\":%g,\"eps\":%g,\"weight_decay\":%g,",
                  trace->variant->steps, MICRO_BATCHES * SAMPLES, SEQUENCE,
                  trace->variant->element == DP_F64, optimizer.lr, optimizer.beta1, optimizer.beta2,
                  optimizer.eps, optimizer.weight_decay);
    variant_write_model(trace->variant, &text);
    dp_buf_puts(&text, ",\"router_bias\":{");
    write_biases(trace, &text);
    dp_buf_puts(&text, "},\"tensors\":[");
    int32_t count;
    const struct dp_tensor *tensors = dp_stage_tensors(trace->stage, &count);
    for (int32_t i = 0; i < count; i++) {
        dp_buf_printf(&text,
                      "%s{\"name\":\"%s\",\"rows\":%lld,\"cols\":%lld,\"offset\":%lld,"
                      "\"decays\":%d}",
                      i == 0 ? "" : ",", tensors[i].name, (long long)tensors[i].rows,
                      (long long)tensors[i].cols, (long long)tensors[i].offset, tensors[i].decays);
    }
    dp_buf_puts(&text, "]}\n");
    DP_AUTO_FREE char *path = dp_asprintf("%s/manifest.json", trace->directory);
    return dp_write_file(path, text.bytes, text.length, err);
}

// Token t + 1 depends on token t, so that there is something to learn.
static void draw_sample(struct dp_rand *rand, int32_t vocabulary, int32_t *tokens)
{
    tokens[0] = (int32_t)dp_rand_below(rand, (uint64_t)vocabulary);
    for (int32_t i = 1; i <= SEQUENCE; i++) {
        int32_t step = (int32_t)dp_rand_below(rand, 3);
        tokens[i] = (tokens[i - 1] * 5 + step) % vocabulary;
    }
}

// Away from the weights that training starts with: matrices large enough for nothing to be near
// linear, and vectors that are neither 0 nor 1.
static void stir(struct dp_stage *stage, const struct variant *variant)
{
    const struct dp_device *device = dp_stage_device(stage);
    const size_t real_bytes = dp_device_real_bytes(device);
    struct dp_rand rand;
    dp_rand_init(&rand, 17);
    int32_t count;
    const struct dp_tensor *tensors = dp_stage_tensors(stage, &count);
    for (int32_t i = 0; i < count; i++) {
        char *at = (char *)dp_stage_weights(stage) + (size_t)tensors[i].offset * real_bytes;
        if (tensors[i].decays) {
            device->ops->scale(device->stream, tensors[i].count, 6, DP_OPERAND_REAL, at);
            continue;
        }
        for (int64_t j = 0; j < tensors[i].count; j++) {
            double value = value_at(stage, at, j) + 0.3 * dp_rand_normal(&rand);
            device->ops->from_double(device->stream, 1, &value, DP_OPERAND_REAL,
                                     at + (size_t)j * real_bytes);
        }
    }
    for (int32_t layer = 0; layer <= variant->model.layers; layer++) {
        char *bias = dp_stage_router_bias(stage, layer);
        for (int32_t e = 0; bias != NULL && e < variant->model.experts; e++) {
            double value = 0.2 * dp_rand_normal(&rand);
            device->ops->from_double(device->stream, 1, &value, DP_OPERAND_REAL,
                                     bias + (size_t)e * real_bytes);
        }
    }
    dp_stage_refresh(stage);
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

static void optimize(struct dp_stage *stage, int64_t step, char *m, char *v)
{
    const struct dp_device *device = dp_stage_device(stage);
    const size_t real_bytes = dp_device_real_bytes(device);
    char *weights = dp_stage_weights(stage), *gradients = dp_stage_gradients(stage);
    int32_t count;
    const struct dp_tensor *tensors = dp_stage_tensors(stage, &count);
    for (int32_t i = 0; i < count; i++) {
        struct dp_adamw adamw = optimizer;
        adamw.step = step;
        adamw.weight_decay = tensors[i].decays ? optimizer.weight_decay : 0;
        const size_t at = (size_t)tensors[i].offset * real_bytes;
        device->ops->adamw(device->stream, &adamw, tensors[i].count, gradients + at, weights + at,
                           m + at, v + at);
    }
    dp_stage_refresh(stage);
}

static dp_status train(const struct trace *trace, const int32_t *batches, struct dp_error *err)
{
    struct dp_stage *stage = trace->stage;
    const size_t bytes = (size_t)dp_stage_parameter_count(stage) * sizeof(double);
    const int64_t sample = SEQUENCE + 1;
    DP_AUTO_FREE char *m = dp_new_array(char, bytes), *v = dp_new_array(char, bytes);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf losses = {0};
    for (int64_t step = 1; step <= trace->variant->steps; step++) {
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
            dp_status status = write_reals(trace, dp_stage_gradients(stage), "gradients.f64", err);
            if (status != DP_OK) {
                return status;
            }
        }
        dp_buf_printf(&losses, "%.17g\n", loss / (MICRO_BATCHES * SAMPLES * SEQUENCE));
        optimize(stage, step, m, v);
    }
    DP_AUTO_FREE char *path = dp_asprintf("%s/losses.txt", trace->directory);
    return dp_write_file(path, losses.bytes, losses.length, err);
}

static dp_status write_trace(const struct trace *trace, struct dp_error *err)
{
    const size_t samples = (size_t)trace->variant->steps * MICRO_BATCHES * SAMPLES;
    DP_AUTO_FREE int32_t *batches = dp_new_array(int32_t, samples * (SEQUENCE + 1));
    struct dp_rand rand;
    dp_rand_init(&rand, 5);
    for (size_t i = 0; i < samples; i++) {
        draw_sample(&rand, trace->variant->model.vocabulary, batches + i * (SEQUENCE + 1));
    }
    if (trace->variant->stirs) {
        stir(trace->stage, trace->variant);
    }
    DP_AUTO_FREE char *path = dp_asprintf("%s/batches.i32", trace->directory);
    dp_status status =
        dp_write_file(path, batches, samples * (SEQUENCE + 1) * sizeof(int32_t), err);
    if (status == DP_OK) {
        status = write_manifest(trace, err);
    }
    if (status == DP_OK) {
        status = write_reals(trace, dp_stage_weights(trace->stage), "weights.f64", err);
    }
    return status == DP_OK ? train(trace, batches, err) : status;
}

static dp_status run(const struct variant *variant, const char *root, struct dp_error *err)
{
    const struct dp_stage_config config = {.model = variant->model,
                                           .layer_end = variant->model.layers,
                                           .has_embedding = true,
                                           .has_head = true,
                                           .ep_size = 1,
                                           .sequence = SEQUENCE,
                                           .seed = 11,
                                           .recompute = variant->recompute,
                                           .poison = true};
    DP_AUTO_FREE char *directory = dp_asprintf("%s/%s", root, variant->model.name);
    struct dp_device *device = NULL;
    struct trace trace = {.variant = variant, .directory = directory};
    if (mkdir(directory, 0777) != 0) {
        return dp_fail_errno(err, errno, "cannot make %s", directory);
    }
    dp_status status = dp_device_open_cpu(variant->element, &device, err);
    if (status == DP_OK) {
        status = dp_stage_new(device, &config, &trace.stage, err);
    }
    if (status == DP_OK) {
        status = write_trace(&trace, err);
    }
    dp_stage_free(trace.stage);
    dp_device_close(device);
    return status;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: trace DIRECTORY\n");
        return 2;
    }
    struct dp_error err;
    for (size_t i = 0; i < variants_count; i++) {
        if (run(&variants[i], argv[1], &err) != DP_OK) {
            fprintf(stderr, "trace: %s: %s\n", variants[i].model.name, err.message);
            return 1;
        }
    }
    return 0;
}
