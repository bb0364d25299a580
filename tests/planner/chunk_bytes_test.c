// The cost model's bytes of a chunk against the executor's own closed form.

#include "planner_support.h"

#include "dp/model.h"
#include "dp/rand.h"
#include "dp/strategy.h"

static void compare(struct dp_device *device, const struct dp_model_spec *model,
                    const struct dp_cost_stage *shape, struct dp_rand *rand)
{
    struct dp_error err = {0};
    struct dp_stage *stage = NULL;
    struct dp_stage_config config = {.model = *model,
                                     .layer_begin = shape->layer_begin,
                                     .layer_end = shape->layer_end,
                                     .has_embedding = shape->has_embedding,
                                     .has_head = shape->has_head,
                                     .ep_size = 1,
                                     .sequence = 1 + (int32_t)dp_rand_below(rand, 20),
                                     .seed = 1,
                                     .recompute =
                                         (uint32_t)dp_rand_below(rand, DP_RECOMPUTE_FULL + 1),
                                     .offload = (uint32_t)dp_rand_below(rand, 16),
                                     .save_fp8 = dp_rand_below(rand, 2) == 0};
    config.model.mtp_layers = shape->has_mtp;
    assert_ok(dp_stage_new(device, &config, &stage, &err), &err);
    struct dp_profile profile;
    dp_profile_default_cpu(&profile);
    profile.element_bytes = (int32_t)dp_element_bytes(device->element);
    struct dp_cost_batch batch = {.samples = 1 + (int32_t)dp_rand_below(rand, 5),
                                  .sequence = config.sequence,
                                  .ep_size = 1,
                                  .ep_nodes = 1,
                                  .recompute = config.recompute,
                                  .offload = config.offload,
                                  .save_fp8 = config.save_fp8};
    struct dp_cost_routed given[8] = {0};
    struct dp_routed routed[8] = {0};
    for (int32_t l = shape->layer_begin; l < shape->layer_end + shape->has_mtp; l++) {
        bool moe = dp_model_layer_is_moe(model, l);
        int64_t rows = moe ? (int64_t)dp_rand_below(rand, 500) : 0;
        int64_t tokens = moe ? (int64_t)dp_rand_below(rand, 500) : 0;
        given[l - shape->layer_begin] =
            (struct dp_cost_routed){.tokens = (double)tokens, .rows = (double)rows};
        routed[l - shape->layer_begin] = (struct dp_routed){.tokens = tokens, .rows = rows};
    }
    struct dp_cost_chunk_bytes bytes;
    dp_cost_chunk_bytes(model, &profile, shape, &batch, given, &bytes);
    assert_true((int64_t)bytes.after_forward ==
                dp_stage_chunk_bytes(stage, batch.samples, routed, DP_CHUNK_FORWARD_DONE));
    assert_true((int64_t)bytes.after_input ==
                dp_stage_chunk_bytes(stage, batch.samples, routed, DP_CHUNK_INPUT_DONE));
    dp_stage_free(stage);
}

// Latent attention with and without a latent of queries, norms of each head, gated shared experts.
static void vary(struct dp_model_spec *model, int round)
{
    model->shared_experts = round % 3;
    model->shared_gate = model->shared_experts > 0 && round % 2 > 0;
    model->qk_norm = round % 4 == 0;
    model->sinks = round % 5 == 0;
    model->tied_embedding = round % 2;
    model->mla_kv_rank = round % 4 > 1 ? 12 : 0;
    model->mla_q_rank = round % 4 > 2 ? 10 : 0;
    model->mla_nope_dim = model->mla_v_dim = 6;
    model->mla_rope_dim = 4;
    model->kv_heads = model->mla_kv_rank > 0 ? model->heads : 2;
}

static void chunk_bytes_equal_the_executors(void **state)
{
    (void)state;
    struct dp_rand rand;
    dp_rand_init(&rand, 8);
    struct dp_model_spec model = {.layers = 4,
                                  .dense_layers = 1,
                                  .hidden = 24,
                                  .heads = 6,
                                  .kv_heads = 2,
                                  .head_dim = 8,
                                  .ffn = 40,
                                  .experts = 4,
                                  .top_k = 2,
                                  .shared_experts = 1,
                                  .expert_ffn = 12,
                                  .vocabulary = 256,
                                  .rope_theta = 10000,
                                  .norm_eps = 1e-6};
    const struct dp_cost_stage shapes[] = {{0, 4, true, true, true},   {0, 4, true, true, false},
                                           {0, 1, true, false, false}, {1, 3, false, false, false},
                                           {3, 4, false, true, false}, {3, 4, false, true, true}};
    for (int element = DP_F32; element <= DP_BF16; element++) {
        struct dp_device *device = NULL;
        struct dp_error err = {0};
        assert_ok(dp_device_open_cpu((dp_element)element, &device, &err), &err);
        for (int round = 0; round < 20; round++) {
            vary(&model, round);
            for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
                compare(device, &model, &shapes[i], &rand);
            }
        }
        dp_device_close(device);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunk_bytes_equal_the_executors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
