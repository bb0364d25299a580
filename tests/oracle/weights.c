// Models to and from files, for readers from outside.
//   oracle_weights save VARIANT DIRECTORY   a model with drawn weights; DIRECTORY/step-1 is written
//   oracle_weights load DIRECTORY           weights from anywhere
// Both print one JSON object: losses of single samples, and of each tensor its shape and values.
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/checkpoint.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/rand.h"
#include "variants.h"

#define SEQUENCE 24
#define SAMPLES 4
#define VALUES 3 // of each tensor, beside the sum

DP_DEFINE_CLEANUP(cleanup_stage, struct dp_stage, dp_stage_free)
DP_DEFINE_CLEANUP(cleanup_saver, struct dp_saver, dp_saver_free)

static dp_status make_stage(struct dp_device *device, const struct dp_model_spec *model,
                            struct dp_stage **ret_stage, struct dp_error *err)
{
    struct dp_stage_config config = {.model = *model,
                                     .layer_end = model->layers,
                                     .has_embedding = true,
                                     .has_head = true,
                                     .ep_size = 1,
                                     .sequence = SEQUENCE,
                                     .seed = 5};
    return dp_stage_new(device, &config, ret_stage, err);
}

// Weights that are far from what all start with: norms other than 1, biases other than 0.
static void stir(struct dp_stage *stage)
{
    struct dp_rand rand;
    dp_rand_init(&rand, 9);
    double *weights = dp_stage_weights(stage);
    for (int64_t i = 0; i < dp_stage_parameter_count(stage); i++) {
        weights[i] += 0.1 * dp_rand_normal(&rand);
    }
    const struct dp_stage_config *config = dp_stage_config(stage);
    for (int32_t layer = config->layer_begin; layer <= config->layer_end; layer++) {
        double *bias = dp_stage_router_bias(stage, layer);
        for (int32_t e = 0; bias != NULL && e < config->model.experts; e++) {
            bias[e] = 0.05 * dp_rand_normal(&rand);
        }
    }
    dp_stage_refresh(stage);
}

static dp_status sample_loss(struct dp_stage *stage, const int32_t *tokens, double *ret_loss,
                             struct dp_error *err)
{
    struct dp_chunk *chunk = dp_chunk_new(stage, 1, 0);
    dp_status status = dp_chunk_set_tokens(chunk, tokens, err);
    if (status == DP_OK) {
        status = dp_chunk_set_targets(chunk, tokens + 1, err);
    }
    if (status == DP_OK) {
        status = dp_chunk_run_all(chunk, DP_PASS_FORWARD, err);
    }
    *ret_loss = dp_chunk_loss_sum(chunk) / SEQUENCE;
    dp_chunk_free(chunk);
    return status;
}

static dp_status print_losses(struct dp_stage *stage, struct dp_error *err)
{
    struct dp_rand rand;
    dp_rand_init(&rand, 77);
    for (int i = 0; i < SAMPLES; i++) {
        int32_t tokens[SEQUENCE + 1];
        printf("%s{\"tokens\":[", i == 0 ? "\"samples\":[" : ",");
        for (int t = 0; t <= SEQUENCE; t++) {
            uint64_t kinds = (uint64_t)dp_stage_config(stage)->model.vocabulary;
            tokens[t] = (int32_t)dp_rand_below(&rand, kinds);
            printf("%s%d", t == 0 ? "" : ",", tokens[t]);
        }
        double loss = NAN;
        dp_status status = sample_loss(stage, tokens, &loss, err);
        if (status != DP_OK) {
            return status;
        }
        printf("],\"loss\":%.17g}", loss);
    }
    printf("]");
    return DP_OK;
}

static void print_values(const double *values, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += values[i];
    }
    printf("\"sum\":%.17g,\"values\":[", sum);
    for (int64_t i = 0; i < VALUES; i++) {
        int64_t at = i * (count - 1) / (VALUES - 1);
        printf("%s[%" PRId64 ",%.17g]", i == 0 ? "" : ",", at, values[at]);
    }
    printf("]");
}

static void print_tensors(struct dp_stage *stage)
{
    int32_t count;
    const struct dp_tensor *tensors = dp_stage_tensors(stage, &count);
    const double *weights = dp_stage_weights(stage);
    printf(",\"tensors\":{");
    for (int32_t i = 0; i < count; i++) {
        printf("%s\"%s\":{\"rows\":%" PRId64 ",\"cols\":%" PRId64 ",\"moments\":[%" PRId64
               ",%" PRId64 "],",
               i == 0 ? "" : ",", tensors[i].name, tensors[i].rows, tensors[i].cols,
               tensors[i].offset, tensors[i].offset + tensors[i].count);
        print_values(weights + tensors[i].offset, tensors[i].count);
        printf("}");
    }
    const struct dp_stage_config *config = dp_stage_config(stage);
    for (int32_t layer = config->layer_begin; layer <= config->layer_end; layer++) {
        const double *bias = dp_stage_router_bias(stage, layer);
        if (bias != NULL) {
            printf(",\"layers.%d.router.bias\":{\"rows\":1,\"cols\":%d,", layer,
                   config->model.experts);
            print_values(bias, config->model.experts);
            printf("}");
        }
    }
    printf("}");
}

// Moments in two runs that do not end where tensors do. First ones are 0, 1, 2, ... over the stage,
// second ones half of that.
static dp_status save(struct dp_stage *stage, const char *directory, struct dp_error *err)
{
    int64_t count = dp_stage_parameter_count(stage), middle = count / 3;
    DP_AUTO_FREE double *m = dp_new_array(double, (size_t)count);
    DP_AUTO_FREE double *v = dp_new_array(double, (size_t)count);
    for (int64_t i = 0; i < count; i++) {
        m[i] = (double)i;
        v[i] = 0.5 * (double)i;
    }
    struct dp_archive_meta meta = {.model = dp_stage_config(stage)->model, .step = 1};
    struct dp_checkpoint_stage entry = {stage, true, true};
    struct dp_checkpoint_run runs[] = {{0, 0, middle, m, v, false},
                                       {0, middle, count, m + middle, v + middle, false}};
    struct dp_checkpoint_state state = {&meta, &entry, 1, runs, 2};
    DP_AUTO_FREE char *partial = dp_asprintf("%s/step-1.partial", directory);
    DP_CLEANUP(cleanup_saver) struct dp_saver *saver = NULL;
    dp_status status = dp_saver_new(dp_stage_device(stage), 0, &saver, err);
    if (status == DP_OK) {
        status = dp_archive_prepare(partial, err);
    }
    if (status == DP_OK) {
        status = dp_saver_begin(saver, directory, &state, err);
    }
    if (status != DP_OK) {
        return status;
    }
    if (dp_saver_wait(saver, INT64_MAX) == DP_SAVER_WRITTEN) {
        dp_saver_seal(saver, 0);
    }
    if (dp_saver_wait(saver, INT64_MAX) != DP_SAVER_SEALED) {
        return dp_fail(err, dp_saver_error(saver)->status, "%s", dp_saver_error(saver)->message);
    }
    return DP_OK;
}

static dp_status run_save(struct dp_device *device, const char *name, const char *directory,
                          struct dp_error *err)
{
    for (size_t i = 0; i < variants_count; i++) {
        if (strcmp(variants[i].model.name, name) != 0) {
            continue;
        }
        DP_CLEANUP(cleanup_stage) struct dp_stage *stage = NULL;
        dp_status status = make_stage(device, &variants[i].model, &stage, err);
        if (status == DP_OK) {
            stir(stage);
            status = save(stage, directory, err);
        }
        if (status == DP_OK) {
            status = print_losses(stage, err);
            print_tensors(stage);
        }
        return status;
    }
    return dp_fail(err, DP_NOT_FOUND, "no variant %s", name);
}

static dp_status run_load(struct dp_device *device, const char *directory, struct dp_error *err)
{
    DP_CLEANUP(dp_archive_close) struct dp_archive archive = {0};
    DP_CLEANUP(cleanup_stage) struct dp_stage *stage = NULL;
    dp_status status = dp_archive_open(directory, &archive, err);
    if (status == DP_OK) {
        status = make_stage(device, &archive.meta.model, &stage, err);
    }
    if (status == DP_OK) {
        status = dp_checkpoint_load_stage(&archive, stage, NULL, NULL, err);
    }
    if (status == DP_OK) {
        dp_stage_refresh(stage);
        status = print_losses(stage, err);
        print_tensors(stage);
    }
    return status;
}

int main(int count, char **arguments)
{
    bool saves = count == 4 && strcmp(arguments[1], "save") == 0;
    if (!saves && (count != 3 || strcmp(arguments[1], "load") != 0)) {
        return EXIT_FAILURE;
    }
    struct dp_error err = {0};
    struct dp_device *device = NULL;
    dp_status status = dp_device_open_cpu(DP_F64, &device, &err);
    printf("{");
    if (status == DP_OK) {
        status = saves ? run_save(device, arguments[2], arguments[3], &err)
                       : run_load(device, arguments[2], &err);
    }
    printf("}\n");
    dp_device_close(device);
    if (status != DP_OK) {
        fprintf(stderr, "%s\n", err.message);
        return EXIT_FAILURE;
    }
    return EXIT_SUCCESS;
}
