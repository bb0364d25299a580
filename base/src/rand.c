#include "dp/rand.h"

#include <math.h>

static uint64_t splitmix64(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static uint64_t rotate_left(uint64_t value, int count)
{
    return (value << count) | (value >> (64 - count));
}

void dp_rand_init(struct dp_rand *rand, uint64_t seed)
{
    for (int i = 0; i < 4; i++) {
        rand->state[i] = splitmix64(&seed);
    }
}

uint64_t dp_rand_u64(struct dp_rand *rand)
{
    uint64_t *s = rand->state;
    uint64_t result = rotate_left(s[0] + s[3], 23) + s[0];
    uint64_t t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate_left(s[3], 45);
    return result;
}

uint64_t dp_rand_below(struct dp_rand *rand, uint64_t bound)
{
    // Rejects the few values that would favour the low end.
    uint64_t limit = UINT64_MAX - UINT64_MAX % bound;
    uint64_t value;
    do {
        value = dp_rand_u64(rand);
    } while (value >= limit);
    return value % bound;
}

double dp_rand_double(struct dp_rand *rand)
{
    return (double)(dp_rand_u64(rand) >> 11) * 0x1.0p-53;
}

double dp_rand_normal(struct dp_rand *rand)
{
    double u = 1.0 - dp_rand_double(rand);
    double v = dp_rand_double(rand);
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586476925 * v);
}

uint64_t dp_rand_mix(uint64_t a, uint64_t b)
{
    uint64_t state = a ^ (b * 0xd1342543de82ef95ull + 0x2545f4914f6cdd1dull);
    return splitmix64(&state);
}

uint64_t dp_hash64(const void *bytes, uint64_t length, uint64_t seed)
{
    const unsigned char *at = bytes;
    uint64_t hash = 0xcbf29ce484222325ull ^ seed;
    for (uint64_t i = 0; i < length; i++) {
        hash = (hash ^ at[i]) * 0x100000001b3ull;
    }
    return hash;
}
