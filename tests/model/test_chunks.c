// What a chunk holds, and what stages and chunks refuse.
#include "dp_test.h"

#include "world.h"

#include <math.h>
#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"

#define SEQUENCE 6
#define SAMPLES 2
#define TOKENS (SEQUENCE * SAMPLES)

static void check_phase(struct dp_chunk *chunk, const struct dp_stage *stage, dp_chunk_phase phase)
{
    assert_int_equal(dp_chunk_live_bytes(chunk),
                     dp_stage_chunk_bytes(stage, SAMPLES, dp_chunk_routed(chunk), phase));
}

// Takes the output of `from` (or the tokens) as input; from may be NULL.
static struct dp_chunk *feed(struct dp_stage *stage, struct dp_chunk *from, const int32_t *tokens)
{
    struct dp_error err;
    struct dp_chunk *chunk = dp_chunk_new(stage, SAMPLES, 0.1);
    void *input;
    if (from == NULL) {
        assert_ok(dp_chunk_set_tokens(chunk, tokens, &err), &err);
    } else {
        assert_ok(dp_chunk_make_input(chunk, &input, &err), &err);
        memcpy(input, dp_chunk_output(from), dp_chunk_hidden_bytes(from));
    }
    if (dp_stage_config(stage)->has_head) {
        assert_ok(dp_chunk_set_targets(chunk, tokens, &err), &err);
    }
    assert_ok(dp_chunk_run_all(chunk, DP_PASS_FORWARD, &err), &err);
    return chunk;
}

static void check_bytes(struct world *world)
{
    struct dp_error err;
    const struct dp_model_spec *model = &dp_stage_config(world->stages[0][0])->model;
    DP_AUTO_FREE int32_t *tokens = world_tokens(model, 3, TOKENS);
    struct dp_chunk *chunks[WORLD_STAGES_MAX] = {0};
    const int32_t last = world->stage_count - 1;
    for (int32_t s = 0; s <= last; s++) {
        struct dp_stage *stage = world->stages[s][0];
        chunks[s] = feed(stage, s == 0 ? NULL : chunks[s - 1], tokens);
        if (s > 0) {
            dp_chunk_drop_output(chunks[s - 1]);
            check_phase(chunks[s - 1], world->stages[s - 1][0], DP_CHUNK_FORWARD_DONE);
        }
    }
    check_phase(chunks[last], world->stages[last][0], DP_CHUNK_FORWARD_DONE);
    for (int32_t s = last; s >= 0; s--) {
        struct dp_stage *stage = world->stages[s][0];
        void *grad;
        if (s < last) {
            assert_ok(dp_chunk_make_output_grad(chunks[s], &grad, &err), &err);
            memset(grad, 0, dp_chunk_hidden_bytes(chunks[s]));
        }
        assert_ok(dp_chunk_run_all(chunks[s], DP_PASS_INPUT, &err), &err);
        dp_chunk_drop_input_grad(chunks[s]);
        check_phase(chunks[s], stage, DP_CHUNK_INPUT_DONE);
        assert_int_equal(dp_stage_live_bytes(stage), dp_chunk_live_bytes(chunks[s]));
        assert_true(dp_stage_peak_bytes(stage) >= dp_stage_live_bytes(stage));
        assert_ok(dp_chunk_run_all(chunks[s], DP_PASS_WEIGHT, &err), &err);
        assert_int_equal(dp_chunk_live_bytes(chunks[s]), 0);
        dp_chunk_free(chunks[s]);
    }
}

static void live_bytes_equal_their_closed_form(void **state)
{
    (void)state;
    for (int32_t stages = 1; stages <= 3; stages += 2) {
        for (int32_t shared = 0; shared <= 2; shared++) {
            struct dp_model_spec model = world_model();
            model.shared_experts = shared;
            const dp_element elements[] = {DP_F32, DP_F64, DP_BF16};
            for (uint32_t recompute = 0; recompute <= DP_RECOMPUTE_FULL; recompute++) {
                struct world *world =
                    world_recompute(&model, elements[shared], stages, 1, recompute);
                check_bytes(world);
                world_free(world);
            }
        }
    }
}

// Everything a layer or an end can hold beside the plain model's.
static struct dp_model_spec full_model(void)
{
    struct dp_model_spec model = world_model();
    model.shared_gate = 1;
    model.sinks = 1;
    model.mtp_layers = 1;
    model.tied_embedding = 1;
    return model;
}

static void live_bytes_of_variants_equal_their_closed_form(void **state)
{
    (void)state;
    struct dp_model_spec models[3] = {full_model(), full_model(), full_model()};
    models[0].qk_norm = 1;
    for (int i = 1; i < 3; i++) {
        models[i].mla_q_rank = i == 1 ? 0 : 5;
        models[i].mla_kv_rank = 6;
        models[i].mla_nope_dim = 4;
        models[i].mla_rope_dim = 2;
        models[i].mla_v_dim = 3;
    }
    for (int i = 0; i < 3; i++) {
        for (uint32_t recompute = 0; recompute <= DP_RECOMPUTE_FULL; recompute++) {
            struct world *world = world_recompute(&models[i], DP_BF16, 1, 1, recompute);
            check_bytes(world);
            world_free(world);
        }
    }
}

static void what_waits_in_host_memory_is_not_live(void **state)
{
    (void)state;
    const struct dp_model_spec model = world_model();
    for (uint32_t offload = 0; offload < 2 * DP_OFFLOAD_EXPERTS; offload++) {
        struct world *world = world_offload(&model, DP_F32, 3, 1, offload);
        check_bytes(world);
        world_free(world);
    }
    struct world *world = world_saved_fp8(&model, 1, 0);
    check_bytes(world);
    world_free(world);
}

// By hand for one dense layer in the middle, float: what the closed form must say.
static void a_dense_layer_holds_what_the_equations_need(void **state)
{
    (void)state;
    const struct dp_model_spec model = world_model();
    struct world *world = world_new(&model, DP_F32, 3, 1, SEQUENCE, SAMPLES);
    const struct dp_routed rows[1] = {{0, 0}};
    // per token: x, its norm 16 + 1, qkv 32, attended 16, lse 4; x, its norm, gate and up 40,
    // active 20; a token number
    const int64_t forward = 12 * 4 * ((16 + 17 + 32 + 16 + 4) + (16 + 17 + 60) + 1);
    // no lse; dy twice, the embedding's dy; two gains of 16
    const int64_t input =
        12 * 4 * ((16 + 17 + 32 + 16) + (16 + 17 + 60) + 1 + 32 + 16) + 2 * 16 * 4;
    struct dp_stage *stage = world->stages[0][0];
    assert_int_equal(dp_stage_chunk_bytes(stage, SAMPLES, rows, DP_CHUNK_FORWARD_DONE), forward);
    assert_int_equal(dp_stage_chunk_bytes(stage, SAMPLES, rows, DP_CHUNK_INPUT_DONE), input);
    world_free(world);
}

static void components_come_in_the_order_promised(void **state)
{
    (void)state;
    const struct dp_model_spec model = world_model();
    struct world *world = world_new(&model, DP_F32, 1, 1, SEQUENCE, SAMPLES);
    const char *const expected[] = {"embedding", "attention", "ffn",     "attention",
                                    "dispatch",  "experts",   "combine", "attention",
                                    "dispatch",  "experts",   "combine", "head"};
    const int32_t layers[] = {-1, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, -1};
    const struct dp_stage *stage = world->stages[0][0];
    assert_int_equal(dp_stage_component_count(stage), 12);
    for (int32_t i = 0; i < 12; i++) {
        const struct dp_component *component = dp_stage_component(stage, i);
        assert_string_equal(dp_component_kind_text(component->kind), expected[i]);
        assert_int_equal(component->layer, layers[i]);
    }
    world_free(world);
}

static void a_chunk_can_be_dropped_at_any_point(void **state)
{
    (void)state;
    const struct dp_model_spec model = world_model();
    struct world *world = world_new(&model, DP_F32, 1, 1, SEQUENCE, SAMPLES);
    struct dp_stage *stage = world->stages[0][0];
    DP_AUTO_FREE int32_t *tokens = world_tokens(&model, 3, TOKENS);
    const int32_t count = dp_stage_component_count(stage);
    for (int32_t stop = 0; stop <= 3 * count; stop++) {
        struct dp_error err;
        struct dp_chunk *chunk = dp_chunk_new(stage, SAMPLES, 0.1);
        assert_true(isnan(dp_chunk_loss_sum(chunk)));
        assert_ok(dp_chunk_set_tokens(chunk, tokens, &err), &err);
        assert_ok(dp_chunk_set_targets(chunk, tokens, &err), &err);
        for (int32_t i = 0; i < stop; i++) {
            const int32_t at = i % count;
            assert_ok(
                dp_chunk_run(chunk, (dp_pass)(i / count), i < count ? at : count - 1 - at, &err),
                &err);
        }
        dp_chunk_free(chunk);
        assert_int_equal(dp_stage_live_bytes(stage), 0);
    }
    world_free(world);
}

static void a_weight_that_is_nan_gives_a_loss_that_is_nan(void **state)
{
    (void)state;
    const struct dp_model_spec model = world_model();
    const char *const names[] = {"layers.1.router", "layers.2.experts.0.up", "embedding"};
    DP_AUTO_FREE int32_t *tokens = world_tokens(&model, 3, TOKENS);
    for (int i = 0; i < 3; i++) {
        struct world *world = world_new(&model, DP_F32, 1, 1, SEQUENCE, SAMPLES);
        world_set(world, names[i], -1, NAN);
        assert_true(isnan(world_step(world, 1, tokens, tokens, WORLD_B)));
        world_free(world);
    }
}

static void tokens_outside_the_vocabulary_are_refused(void **state)
{
    (void)state;
    struct dp_error err;
    const struct dp_model_spec model = world_model();
    struct world *world = world_new(&model, DP_F32, 1, 1, SEQUENCE, SAMPLES);
    DP_AUTO_FREE int32_t *tokens = world_tokens(&model, 3, TOKENS);
    struct dp_chunk *chunk = dp_chunk_new(world->stages[0][0], SAMPLES, 1);
    tokens[7] = 11;
    assert_refused(dp_chunk_set_tokens(chunk, tokens, &err), DP_INVALID, &err,
                   "token 11 at position 7");
    tokens[7] = -1;
    assert_refused(dp_chunk_set_targets(chunk, tokens, &err), DP_INVALID, &err, "token -1");
    dp_chunk_free(chunk);
    world_free(world);
}

static void expect_refusal(const struct dp_stage_config *config, dp_status status, const char *part)
{
    struct dp_error err;
    struct dp_device *device;
    struct dp_stage *stage;
    assert_ok(dp_device_open_cpu(DP_F32, &device, &err), &err);
    assert_refused(dp_stage_new(device, config, &stage, &err), status, &err, part);
    dp_device_close(device);
}

static void shapes_that_cannot_run_are_refused_with_the_reason(void **state)
{
    (void)state;
    const struct dp_stage_config good = {
        .model = world_model(), .layer_end = 3, .ep_size = 1, .sequence = 4};
    struct dp_stage_config bad = good;
    bad.model.mla_kv_rank = 512;
    expect_refusal(&bad, DP_INVALID, "heads of latent attention are 0 + 0 wide");
    bad = good;
    bad.model.mtp_layers = 2;
    expect_refusal(&bad, DP_UNSUPPORTED, "multi-token");
    bad = good;
    bad.model.expert_groups = 3;
    expect_refusal(&bad, DP_INVALID, "3 expert groups must divide");
    bad = good;
    bad.model.expert_groups = 4;
    bad.model.top_groups = 1;
    expect_refusal(&bad, DP_INVALID, "must fit into top_groups 1");
    bad = good;
    bad.ep_size = 3;
    expect_refusal(&bad, DP_INVALID, "divide the 4 experts");
    bad = good;
    bad.model.top_k = 5;
    expect_refusal(&bad, DP_INVALID, "top_k 5");
    bad = good;
    bad.layer_begin = 3;
    expect_refusal(&bad, DP_INVALID, "[3, 3)");
    bad = good;
    bad.model.head_dim = 3;
    expect_refusal(&bad, DP_INVALID, "head_dim 3");
    bad = good;
    bad.model.kv_heads = 3;
    expect_refusal(&bad, DP_INVALID, "kv_heads 3");
    bad = good;
    bad.sequence = 0;
    expect_refusal(&bad, DP_INVALID, "sequence of 0");
    // Copies of experts: as many on every rank, and of use to other ranks alone.
    bad = good;
    bad.expert_slots = 5;
    expect_refusal(&bad, DP_INVALID, "5 slots for 4 experts on one rank");
    bad.ep_size = 2;
    expect_refusal(&bad, DP_INVALID, "5 slots hold no copy of each of 4 experts in equal shares");
    bad.expert_slots = 2;
    expect_refusal(&bad, DP_INVALID, "2 slots hold no copy");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(live_bytes_equal_their_closed_form),
        cmocka_unit_test(live_bytes_of_variants_equal_their_closed_form),
        cmocka_unit_test(what_waits_in_host_memory_is_not_live),
        cmocka_unit_test(a_dense_layer_holds_what_the_equations_need),
        cmocka_unit_test(components_come_in_the_order_promised),
        cmocka_unit_test(a_chunk_can_be_dropped_at_any_point),
        cmocka_unit_test(a_weight_that_is_nan_gives_a_loss_that_is_nan),
        cmocka_unit_test(tokens_outside_the_vocabulary_are_refused),
        cmocka_unit_test(shapes_that_cannot_run_are_refused_with_the_reason),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
