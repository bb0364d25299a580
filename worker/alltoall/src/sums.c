#include "engine.h"

#include <string.h>

#define BLOCK 512

static float load_bf16(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

// To nearest, ties to even; NaN stays NaN.
static uint16_t store_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? bits >> 16 | 0x40u : rounded);
}

static void sum_floats(int64_t cols, const void *const *terms, int32_t count, int64_t at, void *to)
{
    float sums[BLOCK] = {0};
    for (int32_t i = 0; i < count; i++) {
        const float *term = (const float *)terms[i] + at;
        for (int64_t c = 0; c < cols; c++) {
            sums[c] += term[c];
        }
    }
    memcpy((float *)to + at, sums, (size_t)cols * sizeof sums[0]);
}

static void sum_doubles(int64_t cols, const void *const *terms, int32_t count, int64_t at, void *to)
{
    double sums[BLOCK] = {0};
    for (int32_t i = 0; i < count; i++) {
        const double *term = (const double *)terms[i] + at;
        for (int64_t c = 0; c < cols; c++) {
            sums[c] += term[c];
        }
    }
    memcpy((double *)to + at, sums, (size_t)cols * sizeof sums[0]);
}

static void sum_bf16(int64_t cols, const void *const *terms, int32_t count, int64_t at, void *to)
{
    float sums[BLOCK] = {0};
    for (int32_t i = 0; i < count; i++) {
        const uint16_t *term = (const uint16_t *)terms[i] + at;
        for (int64_t c = 0; c < cols; c++) {
            sums[c] += load_bf16(term[c]);
        }
    }
    uint16_t *row = (uint16_t *)to + at;
    for (int64_t c = 0; c < cols; c++) {
        row[c] = store_bf16(sums[c]);
    }
}

void dp_sum_rows(dp_element element, int64_t cols, const void *const *terms, int32_t count,
                 void *to)
{
    for (int64_t at = 0; at < cols; at += BLOCK) {
        int64_t part = cols - at < BLOCK ? cols - at : BLOCK;
        switch (element) {
        case DP_F32:
            sum_floats(part, terms, count, at, to);
            break;
        case DP_F64:
            sum_doubles(part, terms, count, at, to);
            break;
        case DP_BF16:
            sum_bf16(part, terms, count, at, to);
            break;
        }
    }
}
