// The tokens that both sides of the comparison carry: 4096 of 1024 floats on each rank, each with
// 8 different ones of 64 experts. Plain C with nothing of ours, since peers are built by MPI's
// compilers.
#pragma once

#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#define TOKENS 4096
#define HIDDEN 1024
#define TOP_K 8
#define EXPERTS 64
#define WARM 1
#define REPEATS 7

// xorshift64* (Vigna, arXiv 1402.6246)
static inline uint64_t next_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 2685821657736338717ull;
}

// index[TOKENS * TOP_K], ascending for each token.
static inline void make_index(int rank, int32_t *index)
{
    uint64_t state = 88172645463325252ull + (uint64_t)rank;
    for (int t = 0; t < TOKENS; t++) {
        uint64_t chosen = 0;
        for (int k = 0; k < TOP_K;) {
            uint64_t bit = 1ull << (next_random(&state) >> 33) % EXPERTS;
            k += (chosen & bit) == 0;
            chosen |= bit;
        }
        for (int e = 0, k = 0; e < EXPERTS; e++) {
            if ((chosen >> e & 1) != 0) {
                index[t * TOP_K + k++] = e;
            }
        }
    }
}

static inline double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static inline int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
