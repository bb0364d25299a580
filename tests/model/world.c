#include "dp_test.h"

#include "gradient.h"
#include "world.h"

#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/rand.h"

struct dp_model_spec world_model(void)
{
    return (struct dp_model_spec){.name = "small",
                                  .layers = 3,
                                  .dense_layers = 1,
                                  .hidden = 16,
                                  .heads = 4,
                                  .kv_heads = 2,
                                  .head_dim = 4,
                                  .ffn = 20,
                                  .experts = 4,
                                  .top_k = 2,
                                  .shared_experts = 1,
                                  .expert_ffn = 12,
                                  .vocabulary = 11,
                                  .rope_theta = 100,
                                  .norm_eps = 1e-5};
}

static void connect(struct world *world, const struct dp_model_spec *model)
{
    struct dp_error err;
    const int32_t ranks[WORLD_RANKS_MAX] = {0, 1, 2, 3};
    dp_transport_loopback(world->ranks, world->transports);
    for (int32_t r = 0; r < world->ranks; r++) {
        assert_ok(
            dp_group_init(&world->groups[r], world->transports[r], 1, ranks, world->ranks, &err),
            &err);
        const struct dp_group_exchanger_config config = {.group = &world->groups[r],
                                                         .device = world->device,
                                                         .hidden = model->hidden,
                                                         .top_k = model->top_k,
                                                         .experts = model->experts};
        world->exchangers[r] = dp_group_exchanger_new(&config);
    }
}

static struct dp_exchanger *exchanger_of(const struct world *world, int32_t rank)
{
    struct dp_group_exchanger *exchanger = world->exchangers[rank];
    return exchanger == NULL ? NULL : dp_group_exchanger_interface(exchanger);
}

// What stages are made with beyond what world_new's caller says.
static uint32_t recompute_of_new;
static uint32_t offload_of_new;
static bool fp8_of_new, save_fp8_of_new;

struct world *world_saved_fp8(const struct dp_model_spec *model, int32_t ranks, uint32_t recompute)
{
    save_fp8_of_new = true;
    recompute_of_new = recompute;
    struct world *world = world_fp8(model, DP_BF16, ranks);
    save_fp8_of_new = false;
    recompute_of_new = 0;
    return world;
}

struct world *world_offload(const struct dp_model_spec *model, dp_element element,
                            int32_t stage_count, int32_t ranks, uint32_t offload)
{
    offload_of_new = offload;
    struct world *world =
        world_new(model, element, stage_count, ranks, WORLD_SEQUENCE, WORLD_SAMPLES);
    offload_of_new = 0;
    return world;
}

struct world *world_fp8(const struct dp_model_spec *model, dp_element element, int32_t ranks)
{
    fp8_of_new = true;
    struct world *world = world_new(model, element, 1, ranks, WORLD_SEQUENCE, WORLD_SAMPLES);
    fp8_of_new = false;
    return world;
}

struct world *world_recompute(const struct dp_model_spec *model, dp_element element,
                              int32_t stage_count, int32_t ranks, uint32_t recompute)
{
    recompute_of_new = recompute;
    struct world *world =
        world_new(model, element, stage_count, ranks, WORLD_SEQUENCE, WORLD_SAMPLES);
    recompute_of_new = 0;
    return world;
}

struct world *world_new(const struct dp_model_spec *model, dp_element element, int32_t stage_count,
                        int32_t ranks, int32_t sequence, int32_t samples)
{
    struct dp_error err;
    struct world *world = dp_new(struct world);
    assert_ok(dp_device_open_cpu(element, &world->device, &err), &err);
    world->stage_count = stage_count;
    world->ranks = ranks;
    world->samples = samples;
    world->loss_scale = 1.0 / (samples * sequence);
    if (ranks > 1) {
        connect(world, model);
    }
    for (int32_t s = 0; s < stage_count; s++) {
        for (int32_t r = 0; r < ranks; r++) {
            const int32_t each = model->layers / stage_count;
            const bool last = s == stage_count - 1;
            struct dp_stage_config config = {.model = *model,
                                             .layer_begin = s * each,
                                             .layer_end = last ? model->layers : (s + 1) * each,
                                             .has_embedding = s == 0,
                                             .has_head = last,
                                             .ep_rank = r,
                                             .ep_size = ranks,
                                             .sequence = sequence,
                                             .seed = 7,
                                             .recompute = recompute_of_new,
                                             .fp8 = fp8_of_new,
                                             .save_fp8 = save_fp8_of_new,
                                             .offload = offload_of_new,
                                             .exchanger = exchanger_of(world, r),
                                             .poison = true};
            assert_ok(dp_stage_new(world->device, &config, &world->stages[s][r], &err), &err);
        }
    }
    return world;
}

void world_free(struct world *world)
{
    for (int32_t s = 0; s < world->stage_count; s++) {
        for (int32_t r = 0; r < world->ranks; r++) {
            dp_stage_free(world->stages[s][r]);
        }
    }
    for (int32_t r = 0; r < world->ranks; r++) {
        dp_group_exchanger_free(world->exchangers[r]);
        dp_group_deinit(&world->groups[r]);
        dp_transport_free(world->transports[r]);
    }
    dp_device_close(world->device);
    free(world);
}

void world_run(struct dp_chunk **chunks, int32_t ranks, dp_pass pass, int32_t component)
{
    struct dp_error err;
    for (int32_t r = 0; r < ranks; r++) {
        assert_ok(dp_chunk_begin(chunks[r], pass, component, &err), &err);
    }
    for (int32_t r = 0; r < ranks; r++) {
        assert_ok(dp_chunk_end(chunks[r], pass, component, &err), &err);
    }
}

typedef struct dp_chunk *chunk_table[WORLD_STAGES_MAX][WORLD_RANKS_MAX];

static double forward(struct world *world, chunk_table chunks, const int32_t *tokens,
                      const int32_t *targets)
{
    const int64_t batch = (int64_t)world->samples * dp_stage_config(world->stages[0][0])->sequence;
    struct dp_error err;
    double loss = 0;
    for (int32_t s = 0; s < world->stage_count; s++) {
        for (int32_t r = 0; r < world->ranks; r++) {
            struct dp_chunk *chunk =
                dp_chunk_new(world->stages[s][r], world->samples, world->loss_scale);
            chunks[s][r] = chunk;
            if (s == 0) {
                assert_ok(dp_chunk_set_tokens(chunk, tokens + r * batch, &err), &err);
            } else {
                void *input;
                assert_ok(dp_chunk_make_input(chunk, &input, &err), &err);
                memcpy(input, dp_chunk_output(chunks[s - 1][r]), dp_chunk_hidden_bytes(chunk));
                dp_chunk_drop_output(chunks[s - 1][r]);
            }
            if (s == world->stage_count - 1) {
                assert_ok(dp_chunk_set_targets(chunk, targets + r * batch, &err), &err);
            }
        }
        for (int32_t c = 0; c < dp_stage_component_count(world->stages[s][0]); c++) {
            world_run(chunks[s], world->ranks, DP_PASS_FORWARD, c);
        }
    }
    for (int32_t r = 0; r < world->ranks; r++) {
        const struct dp_chunk *last = chunks[world->stage_count - 1][r];
        const double weight = dp_stage_config(world->stages[0][0])->model.mtp_loss_weight;
        loss += dp_chunk_loss_sum(last) + weight * dp_chunk_mtp_loss_sum(last);
    }
    return loss;
}

static void weights(struct world *world, chunk_table chunks)
{
    for (int32_t s = world->stage_count - 1; s >= 0; s--) {
        for (int32_t c = dp_stage_component_count(world->stages[s][0]) - 1; c >= 0; c--) {
            world_run(chunks[s], world->ranks, DP_PASS_WEIGHT, c);
        }
    }
}

static void backward(struct world *world, chunk_table chunks, world_order order)
{
    struct dp_error err;
    for (int32_t s = world->stage_count - 1; s >= 0; s--) {
        for (int32_t r = 0; r < world->ranks && s < world->stage_count - 1; r++) {
            void *grad;
            assert_ok(dp_chunk_make_output_grad(chunks[s][r], &grad, &err), &err);
            memcpy(grad, dp_chunk_input_grad(chunks[s + 1][r]),
                   dp_chunk_hidden_bytes(chunks[s][r]));
            dp_chunk_drop_input_grad(chunks[s + 1][r]);
        }
        for (int32_t c = dp_stage_component_count(world->stages[s][0]) - 1; c >= 0; c--) {
            world_run(chunks[s], world->ranks, DP_PASS_INPUT, c);
            if (order == WORLD_B) {
                world_run(chunks[s], world->ranks, DP_PASS_WEIGHT, c);
            }
        }
    }
}

static void free_chunks(struct world *world, chunk_table chunks)
{
    for (int32_t s = 0; s < world->stage_count; s++) {
        for (int32_t r = 0; r < world->ranks; r++) {
            dp_chunk_free(chunks[s][r]);
        }
    }
}

double world_step(struct world *world, int32_t micro_batches, const int32_t *tokens,
                  const int32_t *targets, world_order order)
{
    const int32_t rounds = micro_batches / world->ranks;
    const int64_t round_tokens =
        (int64_t)world->ranks * world->samples * dp_stage_config(world->stages[0][0])->sequence;
    DP_AUTO_FREE chunk_table *chunks = dp_new_array(chunk_table, (size_t)rounds);
    double loss = 0;
    for (int32_t i = 0; i < rounds; i++) {
        loss += forward(world, chunks[i], tokens + i * round_tokens, targets + i * round_tokens);
    }
    for (int32_t i = 0; i < rounds; i++) {
        backward(world, chunks[i], order);
    }
    for (int32_t i = 0; i < rounds; i++) {
        if (order == WORLD_I_THEN_W) {
            weights(world, chunks[i]);
        }
        for (int32_t s = 0; s < world->stage_count; s++) {
            assert_int_equal(dp_chunk_live_bytes(chunks[i][s][0]), 0);
        }
        free_chunks(world, chunks[i]);
    }
    return loss;
}

double world_loss(struct world *world, int32_t micro_batches, const int32_t *tokens,
                  const int32_t *targets)
{
    const int64_t round_tokens =
        (int64_t)world->ranks * world->samples * dp_stage_config(world->stages[0][0])->sequence;
    double loss = 0;
    for (int32_t i = 0; i < micro_batches / world->ranks; i++) {
        chunk_table chunks;
        loss += forward(world, chunks, tokens + i * round_tokens, targets + i * round_tokens);
        free_chunks(world, chunks);
    }
    return loss;
}

const struct dp_tensor *world_tensor(const struct dp_stage *stage, const char *name)
{
    int32_t count;
    const struct dp_tensor *tensors = dp_stage_tensors(stage, &count);
    for (int32_t i = 0; i < count; i++) {
        if (strcmp(tensors[i].name, name) == 0) {
            return &tensors[i];
        }
    }
    return NULL;
}

static double element(const struct dp_stage *stage, const void *base, int64_t at)
{
    return dp_stage_device(stage)->element == DP_F64 ? ((const double *)base)[at]
                                                     : (double)((const float *)base)[at];
}

double *world_gradient(const struct world *world, const char *name, int64_t *ret_count)
{
    double *sum = NULL;
    for (int32_t i = 0; i < world->stage_count * world->ranks; i++) {
        struct dp_stage *stage = world->stages[i / world->ranks][i % world->ranks];
        const struct dp_tensor *tensor = world_tensor(stage, name);
        if (tensor == NULL) {
            continue;
        }
        if (sum == NULL) {
            sum = dp_new_array(double, (size_t)tensor->count);
            *ret_count = tensor->count;
        }
        for (int64_t j = 0; j < tensor->count; j++) {
            sum[j] += element(stage, dp_stage_gradients(stage), tensor->offset + j);
        }
    }
    assert_non_null(sum);
    return sum;
}

void world_set(struct world *world, const char *name, int64_t at, double value)
{
    for (int32_t i = 0; i < world->stage_count * world->ranks; i++) {
        struct dp_stage *stage = world->stages[i / world->ranks][i % world->ranks];
        const struct dp_tensor *tensor = world_tensor(stage, name);
        for (int64_t j = 0; tensor != NULL && j < tensor->count; j++) {
            if (j == at || at == -1) {
                char *memory = dp_stage_weights(stage);
                world->device->ops->from_double(world->device->stream, 1, &value, DP_OPERAND_REAL,
                                                memory + (size_t)(tensor->offset + j) *
                                                             dp_device_real_bytes(world->device));
            }
        }
        dp_stage_refresh(stage);
    }
}

void world_scale(struct world *world, double factor)
{
    for (int32_t i = 0; i < world->stage_count * world->ranks; i++) {
        struct dp_stage *stage = world->stages[i / world->ranks][i % world->ranks];
        int32_t count;
        const struct dp_tensor *tensors = dp_stage_tensors(stage, &count);
        for (int32_t t = 0; t < count; t++) {
            if (tensors[t].decays) {
                char *memory = dp_stage_weights(stage);
                world->device->ops->scale(
                    world->device->stream, tensors[t].count, factor, DP_OPERAND_REAL,
                    memory + (size_t)tensors[t].offset * dp_device_real_bytes(world->device));
            }
        }
        dp_stage_refresh(stage);
    }
}

int32_t *world_tokens(const struct dp_model_spec *model, uint64_t seed, int64_t count)
{
    int32_t *tokens = dp_new_array(int32_t, (size_t)count);
    struct dp_rand rand;
    dp_rand_init(&rand, seed);
    for (int64_t i = 0; i < count; i++) {
        tokens[i] = (int32_t)dp_rand_below(&rand, (uint64_t)model->vocabulary);
    }
    return tokens;
}

#define PER_TENSOR 6

struct objective {
    struct world *world;
    const int32_t *tokens, *targets;
    int32_t micro_batches;
};

static double scaled_loss(void *context)
{
    const struct objective *o = context;
    return o->world->loss_scale * world_loss(o->world, o->micro_batches, o->tokens, o->targets);
}

// Elements spread over every tensor of every stage of rank `rank`.
static void check_stage(struct objective *o, struct dp_stage *stage)
{
    int32_t count;
    const struct dp_tensor *tensors = dp_stage_tensors(stage, &count);
    for (int32_t i = 0; i < count; i++) {
        double *weights = (double *)dp_stage_weights(stage) + tensors[i].offset;
        double *gradients = (double *)dp_stage_gradients(stage) + tensors[i].offset;
        int64_t stride = tensors[i].count / PER_TENSOR;
        assert_gradient(tensors[i].name, weights, gradients, tensors[i].count,
                        stride > 1 ? stride | 1 : 1, scaled_loss, o);
    }
}

void world_check_differences(struct world *world)
{
    const struct dp_stage_config *config = dp_stage_config(world->stages[0][0]);
    const struct dp_model_spec *model = &config->model;
    const int64_t count = (int64_t)world->samples * config->sequence;
    DP_AUTO_FREE int32_t *tokens = world_tokens(model, 1, 2 * count);
    DP_AUTO_FREE int32_t *targets = world_tokens(model, 2, 2 * count);
    struct objective o = {world, tokens, targets, 2};
    double loss = world_step(world, 2, tokens, targets, WORLD_B);
    assert_near(loss, world_loss(world, 2, tokens, targets), 1e-12);
    for (int32_t s = 0; s < world->stage_count; s++) {
        check_stage(&o, world->stages[s][0]);
    }
    world_free(world);
}
