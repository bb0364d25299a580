#include "moe_trainer.h"

#include <stdio.h>
#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/clock.h"
#include "dp/rand.h"

static const struct dp_model_spec model = {.name = "moe-step",
                                           .layers = 4,
                                           .hidden = 256,
                                           .heads = 4,
                                           .kv_heads = 4,
                                           .head_dim = 64,
                                           .experts = 8,
                                           .top_k = 2,
                                           .expert_ffn = 512,
                                           .vocabulary = 8192,
                                           .rope_theta = 10000,
                                           .norm_eps = 1e-5,
                                           .aux_loss_weight = 0.001};

static void must(dp_status status, const struct dp_error *err)
{
    if (status != DP_OK) {
        fprintf(stderr, "%s\n", err->message);
        exit(1);
    }
}

static dp_status fill(void *context, bool holdout, int64_t first, int32_t count,
                      int32_t *ret_tokens, int32_t *ret_targets, struct dp_error *err)
{
    (void)context;
    (void)holdout;
    (void)err;
    struct dp_rand rand;
    dp_rand_init(&rand, (uint64_t)first);
    for (int64_t i = 0; i < (int64_t)count * MOE_SEQUENCE; i++) {
        ret_tokens[i] = (int32_t)dp_rand_below(&rand, 256);
        ret_targets[i] = (int32_t)dp_rand_below(&rand, 256);
    }
    return DP_OK;
}

void moe_trainer_open(struct moe_trainer *moe, int32_t threads, const struct dp_device_ops *ops)
{
    struct dp_error err;
    must(dp_device_open_cpu(DP_F32, &moe->device, &err), &err);
    must(dp_device_set_threads(moe->device, threads, &err), &err);
    if (ops != NULL) {
        moe->device->ops = ops;
    }
    struct dp_schedule_params params = {.pipeline = 1, .microbatches = 1};
    must(dp_schedule_generate("1f1b", &params, &moe->schedule, &err), &err);
    dp_transport_loopback(1, &moe->transport);
    static const int32_t layer_begin[] = {0, 4};
    struct dp_trainer_config config = {.exec = {.schedule = &moe->schedule,
                                                .data = 1,
                                                .expert = 1,
                                                .transport = moe->transport,
                                                .device = moe->device,
                                                .model = model,
                                                .layer_begin = layer_begin,
                                                .micro_batch_size = MOE_SAMPLES,
                                                .sequence = MOE_SEQUENCE,
                                                .seed = 1,
                                                .source = {.fill = fill}},
                                       .optimizer = {.lr = 1e-4,
                                                     .lr_min = 1e-5,
                                                     .beta1 = 0.9,
                                                     .beta2 = 0.999,
                                                     .eps = 1e-8,
                                                     .weight_decay = 0.01,
                                                     .grad_clip = 1},
                                       .steps = 1000};
    DP_COPY_TEXT(config.optimizer.moments, "fp32");
    must(dp_trainer_new(&config, &moe->trainer, &err), &err);
}

void moe_trainer_close(struct moe_trainer *moe)
{
    dp_trainer_free(moe->trainer);
    dp_transport_free(moe->transport);
    dp_schedule_deinit(&moe->schedule);
    dp_device_close(moe->device);
}

double moe_trainer_step(struct moe_trainer *moe)
{
    struct dp_error err;
    struct dp_trainer_report report;
    int64_t begin = dp_clock_monotonic_ns();
    must(dp_trainer_step(moe->trainer, NULL, &report, &err), &err);
    return 1e-9 * (double)(dp_clock_monotonic_ns() - begin);
}
