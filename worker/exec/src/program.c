#include "program.h"

#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/check.h"

#define BIT(kind) (1u << DP_COMPONENT_##kind)
#define MLP (BIT(FFN) | BIT(EXPERTS))

// One step of a pair of layers: the pass runs on those components of the layer whose kind is named.
struct step {
    bool backward;
    dp_pass pass;
    unsigned kinds;
};

// The order of a layer in DeepSeek's published trace (deepseek-ai/profile-data, train.json): each
// exchange of one chunk stands beside computation of the other, and weight gradients, which nobody
// waits for, fill what remains. What each chunk does is in its own order of dependencies.
static const struct step layer_steps[] = {
    {true, DP_PASS_INPUT, BIT(COMBINE)},
    {false, DP_PASS_FORWARD, BIT(ATTENTION)},
    {true, DP_PASS_INPUT, MLP},
    {false, DP_PASS_FORWARD, BIT(DISPATCH)},
    {true, DP_PASS_INPUT, BIT(DISPATCH)},
    {true, DP_PASS_WEIGHT, BIT(COMBINE) | MLP | BIT(DISPATCH)},
    {false, DP_PASS_FORWARD, MLP},
    {true, DP_PASS_INPUT, BIT(ATTENTION)},
    {true, DP_PASS_WEIGHT, BIT(ATTENTION)},
    {false, DP_PASS_FORWARD, BIT(COMBINE)},
};

// Before the layers: the backward chunk's head makes the gradient that all wait for.
static const struct step first_steps[] = {
    {true, DP_PASS_INPUT, BIT(HEAD)},
    {false, DP_PASS_FORWARD, BIT(EMBEDDING)},
    {true, DP_PASS_WEIGHT, BIT(HEAD)},
};

static const struct step last_steps[] = {
    {true, DP_PASS_INPUT, BIT(EMBEDDING)},
    {false, DP_PASS_FORWARD, BIT(HEAD)},
    {true, DP_PASS_WEIGHT, BIT(EMBEDDING)},
};

// Components [begin, end) of a stage that belong together; empty when the chunk has no part in it.
struct range {
    int32_t begin, end;
};

static void add(struct program *program, const struct step *step, int32_t component)
{
    if (program->count == program->capacity) {
        program->capacity = program->capacity == 0 ? 64 : 2 * program->capacity;
        program->ops = dp_realloc(program->ops, program->capacity, sizeof(*program->ops));
    }
    program->ops[program->count++] = (struct program_op){
        .backward = step->backward, .pass = (uint8_t)step->pass, .component = component};
}

static bool takes_part(const struct step *step, int backward_passes)
{
    switch (step->pass) {
    case DP_PASS_INPUT:
        return (backward_passes & PROGRAM_INPUT) != 0;
    case DP_PASS_WEIGHT:
        return (backward_passes & PROGRAM_WEIGHT) != 0;
    default:
        return true;
    }
}

static void add_step(struct program *program, const struct step *step,
                     const struct program_stage *stage, struct range range)
{
    for (int32_t i = 0; i < range.end - range.begin; i++) {
        int32_t component = step->backward ? range.end - 1 - i : range.begin + i;
        if ((step->kinds & (1u << stage->components[component].kind)) != 0) {
            add(program, step, component);
        }
    }
}

// A chunk's stage and the part of it that is being added.
struct side {
    const struct program_stage *stage;
    struct range range;
};

static void add_steps(struct program *program, const struct step *steps, size_t count,
                      struct side forward, struct side backward, int backward_passes)
{
    for (size_t i = 0; i < count; i++) {
        if (takes_part(&steps[i], backward_passes)) {
            struct side side = steps[i].backward ? backward : forward;
            add_step(program, &steps[i], side.stage, side.range);
        }
    }
}

static struct side whole(const struct program_stage *stage)
{
    return (struct side){stage, {0, stage == NULL ? 0 : stage->count}};
}

static struct side layer_of(const struct program_stage *stage, int32_t layer)
{
    struct side side = {stage, {0, 0}};
    for (int32_t i = 0; stage != NULL && i < stage->count; i++) {
        if (stage->components[i].layer == layer) {
            side.range.begin = side.range.end == 0 ? i : side.range.begin;
            side.range.end = i + 1;
        }
    }
    return side;
}

static int32_t layers_of(const struct program_stage *stage)
{
    return stage == NULL ? 0 : stage->layer_end - stage->layer_begin;
}

void dp_exec_program_build(struct program *program, const struct program_stage *forward,
                           const struct program_stage *backward, int backward_passes)
{
    program->count = 0;
    add_steps(program, first_steps, DP_ARRAY_LENGTH(first_steps), whole(forward), whole(backward),
              backward_passes);
    int32_t forward_layers = layers_of(forward);
    int32_t backward_layers = layers_of(backward);
    for (int32_t i = 0; i < forward_layers || i < backward_layers; i++) {
        struct side f = layer_of(i < forward_layers ? forward : NULL,
                                 forward == NULL ? 0 : forward->layer_begin + i);
        struct side b = layer_of(i < backward_layers ? backward : NULL,
                                 backward == NULL ? 0 : backward->layer_end - 1 - i);
        add_steps(program, layer_steps, DP_ARRAY_LENGTH(layer_steps), f, b, backward_passes);
    }
    add_steps(program, last_steps, DP_ARRAY_LENGTH(last_steps), whole(forward), whole(backward),
              backward_passes);
}

void dp_exec_program_deinit(struct program *program)
{
    free(program->ops);
    *program = (struct program){0};
}
