// Kinds of attention against finite differences: every tensor's gradient.
#include "dp_test.h"

#include <stdlib.h>

#include "dp/strategy.h"
#include "world.h"

static struct dp_model_spec latent_model(int32_t q_rank)
{
    struct dp_model_spec model = world_model();
    model.mla_q_rank = q_rank;
    model.mla_kv_rank = 6;
    model.mla_nope_dim = 4;
    model.mla_rope_dim = 2;
    model.mla_v_dim = 3;
    model.head_dim = 6;
    model.kv_heads = model.heads;
    return model;
}

static void check(const struct dp_model_spec *model, int32_t stages, uint32_t recompute)
{
    struct world *world = world_recompute(model, DP_F64, stages, 1, recompute);
    world_scale(world, 12);
    world_check_differences(world);
}

static void latent_attention_matches_differences(void **state)
{
    (void)state;
    struct dp_model_spec model = latent_model(5);
    check(&model, 1, 0);
    model = latent_model(0);
    check(&model, 3, 0);
    model.biases = DP_BIAS_QKV | DP_BIAS_OUTPUT;
    model.mla_q_rank = 5;
    check(&model, 1, 0);
}

static void latent_attention_that_computes_again_matches_differences(void **state)
{
    (void)state;
    const struct dp_model_spec model = latent_model(5);
    check(&model, 1, DP_RECOMPUTE_UP);
    check(&model, 1, DP_RECOMPUTE_UP | DP_RECOMPUTE_NORM | DP_RECOMPUTE_ATTENTION);
    check(&model, 1, DP_RECOMPUTE_FULL);
}

static void norms_of_queries_and_keys_match_differences(void **state)
{
    (void)state;
    struct dp_model_spec model = world_model();
    model.qk_norm = 1;
    check(&model, 1, 0);
    check(&model, 1, DP_RECOMPUTE_ATTENTION | DP_RECOMPUTE_NORM);
}

static void windows_sinks_and_biases_match_differences(void **state)
{
    (void)state;
    struct dp_model_spec model = world_model();
    model.top_k = model.experts; // nothing jumps where a choice would turn
    model.window = 2;
    model.window_layers = 2;
    check(&model, 1, 0);
    model.sinks = 1;
    model.biases = DP_BIAS_QKV | DP_BIAS_OUTPUT;
    check(&model, 1, 0);
    model.qk_norm = 1;
    check(&model, 1, DP_RECOMPUTE_FULL);
}

static void heads_of_which_a_part_turns_match_differences(void **state)
{
    (void)state;
    struct dp_model_spec model = world_model();
    model.top_k = model.experts; // nothing jumps where a choice would turn
    model.rotary_dim = model.head_dim / 2;
    check(&model, 1, 0);
    model.qk_norm = 1;
    check(&model, 1, DP_RECOMPUTE_FULL);
}

static void a_tied_head_matches_differences(void **state)
{
    (void)state;
    struct dp_model_spec model = world_model();
    model.tied_embedding = 1;
    check(&model, 1, 0);
}

static void multi_token_prediction_adds_its_loss_times_its_weight(void **state)
{
    (void)state;
    struct dp_model_spec model = world_model();
    model.mtp_layers = 1;
    model.mtp_loss_weight = 0.7;
    check(&model, 1, 0);
    check(&model, 3, DP_RECOMPUTE_FULL);
    model.experts = 0;
    model.tied_embedding = 1;
    check(&model, 1, DP_RECOMPUTE_NORM);
}

static void a_gated_shared_expert_matches_differences(void **state)
{
    (void)state;
    struct dp_model_spec model = world_model();
    model.shared_gate = 1;
    check(&model, 1, 0);
    check(&model, 1, DP_RECOMPUTE_EXPERTS | DP_RECOMPUTE_NORM);
    check(&model, 1, DP_RECOMPUTE_FULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(latent_attention_matches_differences),
        cmocka_unit_test(latent_attention_that_computes_again_matches_differences),
        cmocka_unit_test(norms_of_queries_and_keys_match_differences),
        cmocka_unit_test(a_gated_shared_expert_matches_differences),
        cmocka_unit_test(a_tied_head_matches_differences),
        cmocka_unit_test(heads_of_which_a_part_turns_match_differences),
        cmocka_unit_test(multi_token_prediction_adds_its_loss_times_its_weight),
        cmocka_unit_test(windows_sinks_and_biases_match_differences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
