// Random numbers that are the same everywhere (splitmix64, Steele, Lea and Flood 2014).
#pragma once

#include <stdint.h>

struct dice {
    uint64_t state;
};

static inline uint64_t dice_next(struct dice *dice)
{
    uint64_t z = dice->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

// 0 .. count - 1; count at least 1.
static inline uint32_t dice_below(struct dice *dice, uint32_t count)
{
    return (uint32_t)((dice_next(dice) >> 32) * count >> 32);
}

// From -1 to 1.
static inline double dice_around(struct dice *dice)
{
    return (double)(dice_next(dice) >> 11) * 0x1p-52 - 1;
}
