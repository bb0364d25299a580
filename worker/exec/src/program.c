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
    program_half half;
    unsigned kinds;
    bool ahead; // of the layer that comes next
};

// The order of exchanges and of computation of a layer in DeepSeek's published trace
// (deepseek-ai/profile-data, train.json): combine(B), dispatch(F), dispatch(B), combine(F) on the
// wire; attention(F), mlp(B), mlp(W), mlp(F), attention(B), attention(W) beside it. Each is posted
// as soon as its rows are there and waited for just before they are needed. Weight gradients, which
// nobody waits for, fill what remains; those of the mlp need nothing of dispatch(B). combine(B) of
// the next layer goes out ahead of attention(W), which then hides it together with what is left of
// combine(F).
static const struct step layer_steps[] = {
    {false, DP_PASS_FORWARD, PROGRAM_RUN, BIT(ATTENTION), false},
    {false, DP_PASS_FORWARD, PROGRAM_POST, BIT(DISPATCH), false},
    {true, DP_PASS_INPUT, PROGRAM_WAIT, BIT(COMBINE), false},
    {true, DP_PASS_INPUT, PROGRAM_RUN, MLP, false},
    {true, DP_PASS_INPUT, PROGRAM_POST, BIT(DISPATCH), false},
    {true, DP_PASS_WEIGHT, PROGRAM_RUN, BIT(COMBINE) | MLP, false},
    {false, DP_PASS_FORWARD, PROGRAM_WAIT, BIT(DISPATCH), false},
    {false, DP_PASS_FORWARD, PROGRAM_RUN, MLP, false},
    {false, DP_PASS_FORWARD, PROGRAM_POST, BIT(COMBINE), false},
    {true, DP_PASS_INPUT, PROGRAM_WAIT, BIT(DISPATCH), false},
    {true, DP_PASS_INPUT, PROGRAM_RUN, BIT(ATTENTION), false},
    {true, DP_PASS_INPUT, PROGRAM_POST, BIT(COMBINE), true},
    {true, DP_PASS_WEIGHT, PROGRAM_RUN, BIT(DISPATCH) | BIT(ATTENTION), false},
    {false, DP_PASS_FORWARD, PROGRAM_WAIT, BIT(COMBINE), false},
};

// The losses: HEAD, and MTP, which runs its layer's exchanges inside itself.
#define HEADS (BIT(HEAD) | BIT(MTP))

#define FORWARD_STEPS 2 // of layer_steps: the forward chunk's, up to its first exchange

// Before the layers: what comes in goes out to the experts at once.
static const struct step first_steps[] = {
    {true, DP_PASS_INPUT, PROGRAM_POST, BIT(COMBINE), true},
    {false, DP_PASS_FORWARD, PROGRAM_RUN, BIT(EMBEDDING), false},
};

// A head makes the gradient first, and hides the forward chunk's first exchange.
static const struct step head_steps[] = {
    {true, DP_PASS_INPUT, PROGRAM_RUN, HEADS, false},
    {true, DP_PASS_INPUT, PROGRAM_POST, BIT(COMBINE), true},
    {true, DP_PASS_WEIGHT, PROGRAM_RUN, HEADS, false},
};

static const struct step last_steps[] = {
    {true, DP_PASS_INPUT, PROGRAM_RUN, BIT(EMBEDDING), false},
    {false, DP_PASS_FORWARD, PROGRAM_RUN, HEADS, false},
    {true, DP_PASS_WEIGHT, PROGRAM_RUN, BIT(EMBEDDING), false},
};

// Components [begin, end) of a stage that belong together; empty when the chunk has no part in it.
struct range {
    int32_t begin, end;
};

// A chunk's stage and the part of it that is being added.
struct side {
    const struct program_stage *stage;
    struct range range;
    struct range ahead; // the layer that comes next
};

bool dp_exec_program_exchanges(const struct dp_component *component, dp_pass pass)
{
    return pass != DP_PASS_WEIGHT &&
           (component->kind == DP_COMPONENT_DISPATCH || component->kind == DP_COMPONENT_COMBINE);
}

static void add(struct program *program, struct program_op op)
{
    if (program->count == program->capacity) {
        program->capacity = program->capacity == 0 ? 64 : 2 * program->capacity;
        program->ops = dp_realloc(program->ops, program->capacity, sizeof(*program->ops));
    }
    program->ops[program->count++] = op;
}

static bool takes_part(dp_pass pass, int backward_passes)
{
    switch (pass) {
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
            add(program, (struct program_op){.half = (uint8_t)step->half,
                                             .pass = (uint8_t)step->pass,
                                             .backward = step->backward,
                                             .component = component});
        }
    }
}

static void add_steps(struct program *program, const struct step *steps, size_t count,
                      struct side forward, struct side backward, int backward_passes)
{
    for (size_t i = 0; i < count; i++) {
        if (takes_part(steps[i].pass, backward_passes)) {
            struct side side = steps[i].backward ? backward : forward;
            add_step(program, &steps[i], side.stage, steps[i].ahead ? side.ahead : side.range);
        }
    }
}

static struct range layer_of(const struct program_stage *stage, int32_t layer)
{
    struct range range = {0, 0};
    for (int32_t i = 0; stage != NULL && i < stage->count; i++) {
        if (stage->components[i].layer == layer) {
            range.begin = range.end == 0 ? i : range.begin;
            range.end = i + 1;
        }
    }
    return range;
}

static int32_t layers_of(const struct program_stage *stage)
{
    return stage == NULL ? 0 : stage->layer_end - stage->layer_begin;
}

// The layer that the chunk comes to as its number-th, from 0 on.
static struct side side_of(const struct program_stage *stage, bool backward, int32_t number)
{
    struct side side = {.stage = stage};
    if (number < layers_of(stage)) {
        int32_t layer = backward ? stage->layer_end - 1 - number : stage->layer_begin + number;
        side.range = layer_of(stage, layer);
        if (number + 1 < layers_of(stage)) {
            side.ahead = layer_of(stage, backward ? layer - 1 : layer + 1);
        }
    }
    return side;
}

// All of the stage, with its first layer ahead.
static struct side whole(const struct program_stage *stage, bool backward)
{
    struct side side = {.stage = stage};
    if (stage != NULL) {
        side.range = (struct range){0, stage->count};
        side.ahead = side_of(stage, backward, 0).range;
    }
    return side;
}

static void add_opens(struct program *program, const struct program_stage *forward,
                      const struct program_stage *backward, int backward_passes)
{
    program->count = 0;
    if (forward != NULL) {
        add(program,
            (struct program_op){.half = PROGRAM_OPEN, .pass = DP_PASS_FORWARD, .component = -1});
    }
    if (backward != NULL && (backward_passes & PROGRAM_INPUT) != 0) {
        add(program,
            (struct program_op){
                .half = PROGRAM_OPEN, .pass = DP_PASS_INPUT, .backward = true, .component = -1});
    }
}

// Returns how many of the first layer's steps it has taken.
static size_t add_first(struct program *program, struct side forward, struct side backward,
                        int backward_passes)
{
    const struct program_stage *stage = backward.stage;
    if (stage == NULL || ((1u << stage->components[stage->count - 1].kind) & HEADS) == 0) {
        add_steps(program, first_steps, DP_ARRAY_LENGTH(first_steps), forward, backward,
                  backward_passes);
        return 0;
    }
    add_step(program, &first_steps[1], forward.stage, forward.range);
    add_steps(program, layer_steps, FORWARD_STEPS, side_of(forward.stage, false, 0),
              side_of(stage, true, 0), backward_passes);
    add_steps(program, head_steps, DP_ARRAY_LENGTH(head_steps), forward, backward, backward_passes);
    return FORWARD_STEPS;
}

void dp_exec_program_build(struct program *program, const struct program_stage *forward,
                           const struct program_stage *backward, int backward_passes)
{
    add_opens(program, forward, backward, backward_passes);
    struct side all_forward = whole(forward, false), all_backward = whole(backward, true);
    size_t done = add_first(program, all_forward, all_backward, backward_passes);
    int32_t forward_layers = layers_of(forward), backward_layers = layers_of(backward);
    for (int32_t i = 0; i < forward_layers || i < backward_layers; i++) {
        add_steps(program, layer_steps + done, DP_ARRAY_LENGTH(layer_steps) - done,
                  side_of(forward, false, i), side_of(backward, true, i), backward_passes);
        done = 0;
    }
    add_steps(program, last_steps, DP_ARRAY_LENGTH(last_steps), all_forward, all_backward,
              backward_passes);
}

static void add_pass(struct program *program, const struct program_stage *stage, bool backward,
                     dp_pass pass, int32_t component)
{
    struct program_op op = {
        .half = PROGRAM_RUN, .pass = (uint8_t)pass, .backward = backward, .component = component};
    if (dp_exec_program_exchanges(&stage->components[component], pass)) {
        op.half = PROGRAM_POST;
        add(program, op);
        op.half = PROGRAM_WAIT;
    }
    add(program, op);
}

void dp_exec_program_build_sequential(struct program *program, const struct program_stage *forward,
                                      const struct program_stage *backward, int backward_passes)
{
    add_opens(program, forward, backward, backward_passes);
    for (int32_t i = 0; forward != NULL && i < forward->count; i++) {
        add_pass(program, forward, false, DP_PASS_FORWARD, i);
    }
    for (int32_t i = backward == NULL ? -1 : backward->count - 1; i >= 0; i--) {
        if ((backward_passes & PROGRAM_INPUT) != 0) {
            add_pass(program, backward, true, DP_PASS_INPUT, i);
        }
        if ((backward_passes & PROGRAM_WEIGHT) != 0) {
            add_pass(program, backward, true, DP_PASS_WEIGHT, i);
        }
    }
}

void dp_exec_program_deinit(struct program *program)
{
    free(program->ops);
    free(program->most);
    *program = (struct program){0};
}
