// The order of components: program.h is private, its rules are those of the published trace.
#include "dp/buf.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp_test.h"
#include "program.h"

static const struct dp_component moe_layers[] = {
    {DP_COMPONENT_ATTENTION, 2}, {DP_COMPONENT_DISPATCH, 2},  {DP_COMPONENT_EXPERTS, 2},
    {DP_COMPONENT_COMBINE, 2},   {DP_COMPONENT_ATTENTION, 3}, {DP_COMPONENT_DISPATCH, 3},
    {DP_COMPONENT_EXPERTS, 3},   {DP_COMPONENT_COMBINE, 3},
};
static const struct dp_component first_layers[] = {
    {DP_COMPONENT_EMBEDDING, -1},
    {DP_COMPONENT_ATTENTION, 0},
    {DP_COMPONENT_FFN, 0},
};
static const struct dp_component last_layers[] = {
    {DP_COMPONENT_ATTENTION, 7}, {DP_COMPONENT_DISPATCH, 7}, {DP_COMPONENT_EXPERTS, 7},
    {DP_COMPONENT_COMBINE, 7},   {DP_COMPONENT_HEAD, -1},
};
static const struct program_stage moe = {moe_layers, DP_ARRAY_LENGTH(moe_layers), 2, 4};
static const struct program_stage first = {first_layers, DP_ARRAY_LENGTH(first_layers), 0, 1};
static const struct program_stage last = {last_layers, DP_ARRAY_LENGTH(last_layers), 7, 8};

// "combine(B)3 attention(F)2 ...": pass F, B or W and the layer.
static void expect(const struct program_stage *forward, const struct program_stage *backward,
                   int passes, const char *wanted)
{
    struct program program = {0};
    dp_exec_program_build(&program, forward, backward, passes);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf got = {0};
    static const char letters[] = {
        [DP_PASS_FORWARD] = 'F', [DP_PASS_INPUT] = 'B', [DP_PASS_WEIGHT] = 'W'};
    for (size_t i = 0; i < program.count; i++) {
        const struct program_op *op = &program.ops[i];
        const struct program_stage *stage = op->backward ? backward : forward;
        const struct dp_component *component = &stage->components[op->component];
        dp_buf_printf(&got, "%s%s(%c)", i == 0 ? "" : " ", dp_component_kind_text(component->kind),
                      letters[op->pass]);
        if (component->layer >= 0) {
            dp_buf_printf(&got, "%d", component->layer);
        }
    }
    assert_string_equal(got.bytes, wanted);
    dp_exec_program_deinit(&program);
}

static void a_pair_of_moe_layers_runs_in_the_published_order(void **state)
{
    (void)state;
    // deepseek-ai/profile-data, per layer: combine(B) attn(F) mlp(B) dispatch(F) dispatch(B) mlp(W)
    // mlp(F) attn(B) attn(W) combine(F); the weights of dispatch go with those of the mlp.
    expect(&moe, &moe, PROGRAM_INPUT | PROGRAM_WEIGHT,
           "combine(B)3 attention(F)2 experts(B)3 dispatch(F)2 dispatch(B)3 "
           "combine(W)3 experts(W)3 dispatch(W)3 experts(F)2 attention(B)3 attention(W)3 "
           "combine(F)2 "
           "combine(B)2 attention(F)3 experts(B)2 dispatch(F)3 dispatch(B)2 "
           "combine(W)2 experts(W)2 dispatch(W)2 experts(F)3 attention(B)2 attention(W)2 "
           "combine(F)3");
}

static void without_its_weights_the_backward_half_leaves_them_out(void **state)
{
    (void)state;
    expect(&last, &last, PROGRAM_INPUT,
           "head(B) combine(B)7 attention(F)7 experts(B)7 dispatch(F)7 dispatch(B)7 experts(F)7 "
           "attention(B)7 combine(F)7 head(F)");
}

static void layers_that_only_one_half_has_run_alone(void **state)
{
    (void)state;
    expect(&first, &moe, PROGRAM_INPUT,
           "embedding(F) combine(B)3 attention(F)0 experts(B)3 dispatch(B)3 ffn(F)0 "
           "attention(B)3 combine(B)2 experts(B)2 dispatch(B)2 attention(B)2");
}

static void each_action_alone_follows_the_model(void **state)
{
    (void)state;
    expect(&first, NULL, 0, "embedding(F) attention(F)0 ffn(F)0");
    expect(NULL, &first, PROGRAM_INPUT, "ffn(B)0 attention(B)0 embedding(B)");
    expect(NULL, &last, PROGRAM_WEIGHT,
           "head(W) combine(W)7 experts(W)7 dispatch(W)7 attention(W)7");
    expect(NULL, &first, PROGRAM_INPUT | PROGRAM_WEIGHT,
           "ffn(B)0 ffn(W)0 attention(B)0 attention(W)0 embedding(B) embedding(W)");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pair_of_moe_layers_runs_in_the_published_order),
        cmocka_unit_test(without_its_weights_the_backward_half_leaves_them_out),
        cmocka_unit_test(layers_that_only_one_half_has_run_alone),
        cmocka_unit_test(each_action_alone_follows_the_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
