// Rotary positions: the table of angles that queries and keys are turned by, and the scale of
// scores, both as the `transformers` package computes them from a config.json.
#include <math.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "stage.h"

#define TURN (2 * 3.14159265358979323846)

int32_t dp_stage_turned(const struct dp_stage *stage)
{
    const struct dp_model_spec *m = &stage->config.model;
    const int32_t plain = m->rotary_dim > 0 ? m->rotary_dim : m->head_dim;
    return m->mla_kv_rank > 0 ? m->mla_rope_dim : plain;
}

static double or_else(double value, double fallback)
{
    return value > 0 ? value : fallback;
}

// Waves that fit many times into the sequence before stay, those that fit less than low_factor
// times are stretched, and between the two it goes over smoothly.
static double llama3(const struct dp_rope_scaling *rope, double speed)
{
    const double low = or_else(rope->low_factor, 1), high = or_else(rope->high_factor, 4);
    const double turns = rope->original * speed / TURN;
    if (turns > high) {
        return speed;
    }
    const double keeps = turns < low ? 0 : (turns - low) / (high - low);
    return keeps * speed + (1 - keeps) * speed / rope->factor;
}

// The pair of a head of `dim` that makes so many turns over the sequence before.
static double pair_of(const struct dp_model_spec *m, double dim, double turns)
{
    return dim * log(m->rope.original / (turns * TURN)) / (2 * log(m->rope_theta));
}

// Pairs before the first of two stay, those from the second on are stretched.
static double yarn(const struct dp_model_spec *m, double dim, double pair, double speed)
{
    double first = pair_of(m, dim, or_else(m->rope.beta_fast, 32));
    double last = pair_of(m, dim, or_else(m->rope.beta_slow, 1));
    if (m->rope.untruncated == 0) {
        first = floor(first);
        last = ceil(last);
    }
    first = fmax(first, 0);
    last = fmin(last, dim - 1);
    last += last == first ? 0.001 : 0; // NOLINT: the same number, as transformers has it
    const double stretched = fmin(fmax((pair - first) / (last - first), 0), 1);
    return stretched * speed / m->rope.factor + (1 - stretched) * speed;
}

static double speed_of(const struct dp_model_spec *m, double dim, double pair)
{
    const double speed = pow(m->rope_theta, -2 * pair / dim);
    switch (m->rope.kind) {
    case DP_ROPE_PLAIN:
        break;
    case DP_ROPE_LINEAR:
        return speed / m->rope.factor;
    case DP_ROPE_LLAMA3:
        return llama3(&m->rope, speed);
    case DP_ROPE_YARN:
        return yarn(m, dim, pair, speed);
    }
    return speed;
}

static double growth(const struct dp_rope_scaling *rope, double mscale)
{
    return rope->factor > 1 ? 0.1 * mscale * log(rope->factor) + 1 : 1;
}

// What the table is multiplied by.
static double amplitude(const struct dp_rope_scaling *rope)
{
    if (rope->kind != DP_ROPE_YARN) {
        return 1;
    }
    if (rope->attention_factor > 0) {
        return rope->attention_factor;
    }
    return rope->mscale > 0 && rope->mscale_all > 0
               ? growth(rope, rope->mscale) / growth(rope, rope->mscale_all)
               : growth(rope, 1);
}

// DeepSeek's attention multiplies scores by the square of what mscale_all makes.
static double score_scale(const struct dp_model_spec *m)
{
    if (m->mla_kv_rank == 0 || m->rope.kind != DP_ROPE_YARN || m->rope.mscale_all <= 0) {
        return 0;
    }
    const double grown = growth(&m->rope, m->rope.mscale_all);
    return grown * grown / sqrt((double)m->mla_nope_dim + m->mla_rope_dim);
}

dp_status dp_stage_make_angles(struct dp_stage *stage, struct dp_error *err)
{
    struct dp_device *device = stage->device;
    const struct dp_model_spec *m = &stage->config.model;
    const int64_t dim = dp_stage_turned(stage), half = dim / 2;
    const int64_t count = stage->config.sequence * dim;
    dp_status status = device->ops->alloc(
        device, DP_MEMORY_WEIGHTS, (size_t)count * stage->real_bytes, &stage->rope_table, err);
    if (status != DP_OK) {
        return status;
    }
    DP_AUTO_FREE double *table = dp_new_array(double, (size_t)count);
    const double height = amplitude(&m->rope);
    for (int64_t i = 0; i < half; i++) {
        const double speed = speed_of(m, (double)dim, (double)i);
        for (int64_t t = 0; t < stage->config.sequence; t++) {
            table[t * dim + i] = height * cos((double)t * speed);
            table[t * dim + half + i] = height * sin((double)t * speed);
        }
    }
    device->ops->from_double(device->stream, count, table, DP_OPERAND_REAL, stage->rope_table);
    stage->attention_scale = score_scale(m);
    return DP_OK;
}
