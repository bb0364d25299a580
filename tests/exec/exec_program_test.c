// The order of components: program.h is private, its rules are those of the published trace.
#include "dp/buf.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/rand.h"
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

// "combine(B)3> attention(F)2 >combine(B)3 ...": pass F, B or W and the layer; > behind a name is
// what posts its exchange, > before it what waits.
static void print(const struct program *program, const struct program_stage *forward,
                  const struct program_stage *backward, struct dp_buf *out)
{
    static const char letters[] = {
        [DP_PASS_FORWARD] = 'F', [DP_PASS_INPUT] = 'B', [DP_PASS_WEIGHT] = 'W'};
    for (size_t i = 0; i < program->count; i++) {
        const struct program_op *op = &program->ops[i];
        if (op->half == PROGRAM_OPEN) {
            continue;
        }
        const struct program_stage *stage = op->backward ? backward : forward;
        const struct dp_component *component = &stage->components[op->component];
        dp_buf_printf(out, "%s%s%s(%c)", out->length == 0 ? "" : " ",
                      op->half == PROGRAM_WAIT ? ">" : "", dp_component_kind_text(component->kind),
                      letters[op->pass]);
        if (component->layer >= 0) {
            dp_buf_printf(out, "%d", component->layer);
        }
        dp_buf_printf(out, "%s", op->half == PROGRAM_POST ? ">" : "");
    }
}

static void expect(const struct program_stage *forward, const struct program_stage *backward,
                   int passes, const char *wanted)
{
    struct program program = {0};
    dp_exec_program_build(&program, forward, backward, passes);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf got = {0};
    print(&program, forward, backward, &got);
    assert_string_equal(got.bytes, wanted);
    dp_exec_program_deinit(&program);
}

// deepseek-ai/profile-data, train.json. On the wire, per layer: combine(B) dispatch(F) dispatch(B)
// combine(F). Beside it: attention(F) mlp(B) mlp(W) mlp(F) attention(B) attention(W). The weights
// of dispatch, the router's, wait for dispatch(B), so they go with those of attention.
static void a_pair_of_moe_layers_runs_in_the_published_order(void **state)
{
    (void)state;
    expect(&moe, &moe, PROGRAM_INPUT | PROGRAM_WEIGHT,
           "combine(B)3> "
           "attention(F)2 dispatch(F)2> >combine(B)3 experts(B)3 dispatch(B)3> combine(W)3 "
           "experts(W)3 >dispatch(F)2 experts(F)2 combine(F)2> >dispatch(B)3 attention(B)3 "
           "combine(B)2> dispatch(W)3 attention(W)3 >combine(F)2 "
           "attention(F)3 dispatch(F)3> >combine(B)2 experts(B)2 dispatch(B)2> combine(W)2 "
           "experts(W)2 >dispatch(F)3 experts(F)3 combine(F)3> >dispatch(B)2 attention(B)2 "
           "dispatch(W)2 attention(W)2 >combine(F)3");
}

static void without_its_weights_the_backward_half_leaves_them_out(void **state)
{
    (void)state;
    expect(&last, &last, PROGRAM_INPUT,
           "attention(F)7 dispatch(F)7> head(B) combine(B)7> >combine(B)7 experts(B)7 "
           "dispatch(B)7> >dispatch(F)7 experts(F)7 combine(F)7> >dispatch(B)7 attention(B)7 "
           ">combine(F)7 head(F)");
}

static void layers_that_only_one_half_has_run_alone(void **state)
{
    (void)state;
    expect(&first, &moe, PROGRAM_INPUT,
           "combine(B)3> embedding(F) attention(F)0 >combine(B)3 experts(B)3 dispatch(B)3> ffn(F)0 "
           ">dispatch(B)3 attention(B)3 combine(B)2> >combine(B)2 experts(B)2 dispatch(B)2> "
           ">dispatch(B)2 attention(B)2");
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

static void a_backward_alone_hides_its_exchanges_behind_its_weights(void **state)
{
    (void)state;
    expect(NULL, &moe, PROGRAM_INPUT | PROGRAM_WEIGHT,
           "combine(B)3> >combine(B)3 experts(B)3 dispatch(B)3> combine(W)3 experts(W)3 "
           ">dispatch(B)3 attention(B)3 combine(B)2> dispatch(W)3 attention(W)3 "
           ">combine(B)2 experts(B)2 dispatch(B)2> combine(W)2 experts(W)2 "
           ">dispatch(B)2 attention(B)2 dispatch(W)2 attention(W)2");
}

// Stages of random layers.
#define MADE_COMPONENTS_MAX 64

struct made_stage {
    struct dp_component components[MADE_COMPONENTS_MAX];
    struct program_stage stage;
};

static void make_stage(struct dp_rand *rand, struct made_stage *ret_made)
{
    int32_t count = 0;
    int32_t first_layer = (int32_t)dp_rand_below(rand, 5);
    int32_t layers = 1 + (int32_t)dp_rand_below(rand, 6);
    struct dp_component *components = ret_made->components;
    if (dp_rand_below(rand, 3) == 0) {
        components[count++] = (struct dp_component){DP_COMPONENT_EMBEDDING, -1};
    }
    for (int32_t layer = first_layer; layer < first_layer + layers; layer++) {
        components[count++] = (struct dp_component){DP_COMPONENT_ATTENTION, layer};
        if (dp_rand_below(rand, 3) == 0) {
            components[count++] = (struct dp_component){DP_COMPONENT_FFN, layer};
            continue;
        }
        components[count++] = (struct dp_component){DP_COMPONENT_DISPATCH, layer};
        components[count++] = (struct dp_component){DP_COMPONENT_EXPERTS, layer};
        components[count++] = (struct dp_component){DP_COMPONENT_COMBINE, layer};
    }
    if (dp_rand_below(rand, 3) == 0) {
        components[count++] = (struct dp_component){DP_COMPONENT_HEAD, -1};
    }
    ret_made->stage = (struct program_stage){components, count, first_layer, first_layer + layers};
}

// Where an op stands; an exchange's halves are told apart, -1 = it is not there.
struct places {
    int32_t start[2][3][MADE_COMPONENTS_MAX], end[2][3][MADE_COMPONENTS_MAX]; // [side][pass][...]
};

static void find_places(const struct program *program, struct places *ret_places)
{
    memset(ret_places, -1, sizeof(*ret_places));
    for (int32_t i = 0; i < (int32_t)program->count; i++) {
        const struct program_op *op = &program->ops[i];
        if (op->half == PROGRAM_OPEN) {
            continue;
        }
        int32_t *start = &ret_places->start[op->backward][op->pass][op->component];
        int32_t *end = &ret_places->end[op->backward][op->pass][op->component];
        if (op->half != PROGRAM_WAIT) {
            assert_int_equal(*start, -1);
            *start = i;
        }
        if (op->half != PROGRAM_POST) {
            assert_int_equal(*end, -1);
            *end = i;
        }
    }
}

// What needs what is written down here again, from the meaning of the components.
static void expect_forward(const struct program_stage *stage, const struct places *places)
{
    for (int32_t c = 0; c < stage->count; c++) {
        int32_t start = places->start[0][DP_PASS_FORWARD][c];
        assert_true(start >= 0 && places->end[0][DP_PASS_FORWARD][c] >= start);
        assert_true(c == 0 || places->end[0][DP_PASS_FORWARD][c - 1] < start);
    }
}

static void expect_backward(const struct program_stage *stage, const struct places *places,
                            int passes)
{
    for (int32_t c = stage->count - 1; c >= 0; c--) {
        int32_t input = places->start[1][DP_PASS_INPUT][c];
        int32_t input_end = places->end[1][DP_PASS_INPUT][c];
        int32_t weight = places->start[1][DP_PASS_WEIGHT][c];
        if ((passes & PROGRAM_INPUT) != 0) {
            assert_true(input >= 0 && input_end >= input);
            assert_true(c == stage->count - 1 || places->end[1][DP_PASS_INPUT][c + 1] < input);
        }
        if ((passes & PROGRAM_WEIGHT) != 0) {
            assert_true(weight > input_end);
            assert_true(c == stage->count - 1 || places->end[1][DP_PASS_WEIGHT][c + 1] < weight);
        }
    }
}

// No edge from dispatch(B) to the mlp's weights: they hide it.
static void expect_weights_beside_dispatch(const struct program_stage *stage,
                                           const struct places *places)
{
    for (int32_t c = 1; c < stage->count; c++) {
        if (stage->components[c].kind == DP_COMPONENT_EXPERTS) {
            int32_t weight = places->start[1][DP_PASS_WEIGHT][c];
            assert_true(weight > places->start[1][DP_PASS_INPUT][c - 1]);
            assert_true(weight < places->end[1][DP_PASS_INPUT][c - 1]);
        }
    }
}

static void expect_halves(const struct program *program, const struct program_stage *stages[2])
{
    for (size_t i = 0; i < program->count; i++) {
        const struct program_op *op = &program->ops[i];
        if (op->half == PROGRAM_OPEN) {
            continue;
        }
        dp_component_kind kind = stages[op->backward]->components[op->component].kind;
        bool moves = kind == DP_COMPONENT_DISPATCH || kind == DP_COMPONENT_COMBINE;
        assert_int_equal(op->half != PROGRAM_RUN, moves && op->pass != DP_PASS_WEIGHT);
        // Nothing but the end of the action stands between a wait and what needs it.
        if (op->half == PROGRAM_WAIT && i + 1 < program->count) {
            const struct program_op *next = &program->ops[i + 1];
            bool is_last = op->component == (op->backward ? 0 : stages[0]->count - 1);
            assert_true(is_last || stages[op->backward]->components[op->component + 1].layer < 0 ||
                        (next->backward == op->backward && next->pass == op->pass));
        }
    }
}

static void expect_program(const struct program_stage *forward,
                           const struct program_stage *backward, int passes)
{
    struct program program = {0}, again = {0}, sequential = {0};
    dp_exec_program_build(&program, forward, backward, passes);
    dp_exec_program_build(&again, forward, backward, passes);
    assert_int_equal(program.count, again.count);
    assert_memory_equal(program.ops, again.ops, program.count * sizeof(*program.ops));
    dp_exec_program_build_sequential(&sequential, forward, backward, passes);
    assert_int_equal(program.count, sequential.count);
    const struct program *both[] = {&program, &sequential};
    const struct program_stage *stages[] = {forward, backward};
    for (int i = 0; i < 2; i++) {
        struct places places;
        find_places(both[i], &places);
        if (forward != NULL) {
            expect_forward(forward, &places);
        }
        if (backward != NULL) {
            expect_backward(backward, &places, passes);
        }
        if (i == 0 && backward != NULL && passes == (PROGRAM_INPUT | PROGRAM_WEIGHT)) {
            expect_weights_beside_dispatch(backward, &places);
        }
    }
    expect_halves(&program, stages);
    dp_exec_program_deinit(&program);
    dp_exec_program_deinit(&again);
    dp_exec_program_deinit(&sequential);
}

static void every_order_respects_what_needs_what(void **state)
{
    (void)state;
    static const int passes[] = {PROGRAM_INPUT, PROGRAM_WEIGHT, PROGRAM_INPUT | PROGRAM_WEIGHT};
    for (uint64_t seed = 0; seed < 500; seed++) {
        struct dp_rand rand;
        dp_rand_init(&rand, seed);
        struct made_stage forward, backward;
        make_stage(&rand, &forward);
        make_stage(&rand, &backward);
        for (size_t i = 0; i < DP_ARRAY_LENGTH(passes); i++) {
            expect_program(NULL, &backward.stage, passes[i]);
            if (passes[i] != PROGRAM_WEIGHT) {
                expect_program(&forward.stage, &backward.stage, passes[i]);
            }
        }
        expect_program(&forward.stage, NULL, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pair_of_moe_layers_runs_in_the_published_order),
        cmocka_unit_test(without_its_weights_the_backward_half_leaves_them_out),
        cmocka_unit_test(layers_that_only_one_half_has_run_alone),
        cmocka_unit_test(each_action_alone_follows_the_model),
        cmocka_unit_test(a_backward_alone_hides_its_exchanges_behind_its_weights),
        cmocka_unit_test(every_order_respects_what_needs_what),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
