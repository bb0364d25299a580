// A small, seeded, repeatable generator (xoshiro256++, seeded by splitmix64; Blackman and Vigna,
// prng.di.unimi.it). Not for secrets. One state per thread.
#pragma once

#include <stdint.h>

struct dp_rand {
    uint64_t state[4];
};

void dp_rand_init(struct dp_rand *rand, uint64_t seed);
uint64_t dp_rand_u64(struct dp_rand *rand);
// Uniform in [0, bound); bound > 0.
uint64_t dp_rand_below(struct dp_rand *rand, uint64_t bound);
// Uniform in [0, 1).
double dp_rand_double(struct dp_rand *rand);
// Standard normal (Box-Muller, one value per call).
double dp_rand_normal(struct dp_rand *rand);
// One 64-bit mix of two values: derives independent seeds from (seed, index).
uint64_t dp_rand_mix(uint64_t a, uint64_t b);
// 64-bit FNV-1a, for names and fingerprints; not for untrusted tables.
uint64_t dp_hash64(const void *bytes, uint64_t length, uint64_t seed);
