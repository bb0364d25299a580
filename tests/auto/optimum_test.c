// Against exhaustive search: every order of a tiny pipeline is tried, timed by a relaxation that
// shares no code with the library.
#include <math.h>

#include "dp/auto.h"
#include "dp_test.h"

enum { WORDS_MAX = 60000, LENGTH_MAX = 12, RANKS_MAX = 3, BATCHES_MAX = 4 };

struct costs {
    int32_t ranks, batches;
    double seconds[RANKS_MAX][DP_ACTION_FB]; // by kind
    double fb[RANKS_MAX], fi[RANKS_MAX];
    double hop;
    int32_t held, at_i, room;                // of a chunk; of these freed at I; most at a time
};

// One rank's list: F, B, I, W, and pairs of F with B ('P') or with I ('Q').
struct word {
    char letters[LENGTH_MAX + 1];
    int32_t length;
};

struct words {
    struct word items[WORDS_MAX];
    int32_t count;
};

struct prefix {
    struct word word;
    int32_t forwards, backwards, owed; // owed: W to come
    int32_t bytes;
};

// Every list that is complete and stays within memory.
static void grow(const struct costs *costs, struct prefix prefix, bool pairs, struct words *words)
{
    if (prefix.forwards == costs->batches && prefix.backwards == costs->batches &&
        prefix.owed == 0) {
        assert_in_range(words->count, 0, WORDS_MAX - 1);
        words->items[words->count++] = prefix.word;
        return;
    }
    for (const char *letter = pairs ? "FBIWPQ" : "FBIW"; *letter != '\0'; letter++) {
        bool forward = strchr("FPQ", *letter) != NULL;
        bool whole = strchr("BP", *letter) != NULL, split = strchr("IQ", *letter) != NULL;
        bool weight = *letter == 'W';
        struct prefix next = prefix;
        // A pair's backward cannot be that of its own forward.
        if ((forward && prefix.forwards == costs->batches) ||
            ((whole || split) && prefix.backwards >= prefix.forwards) ||
            (weight && prefix.owed == 0)) {
            continue;
        }
        next.bytes += forward ? costs->held : 0;
        if (next.bytes > costs->room) {
            continue;
        }
        next.bytes -= whole ? costs->held : split ? costs->at_i : 0;
        next.bytes -= weight ? costs->held - costs->at_i : 0;
        next.forwards += forward;
        next.backwards += whole || split;
        next.owed += split - weight;
        next.word.letters[next.word.length++] = *letter;
        grow(costs, next, pairs, words);
    }
}

static double seconds_of(const struct costs *costs, int32_t rank, char letter)
{
    switch (letter) {
    case 'F':
        return costs->seconds[rank][DP_ACTION_F];
    case 'B':
        return costs->seconds[rank][DP_ACTION_B];
    case 'I':
        return costs->seconds[rank][DP_ACTION_I];
    case 'W':
        return costs->seconds[rank][DP_ACTION_W];
    case 'P':
        return costs->fb[rank];
    default:
        return costs->fi[rank];
    }
}

// The end of the last action; infinite when the ranks wait for each other. Rounds over all ranks,
// each going on while it can.
static double time_of(const struct costs *costs, const struct word *const lists[RANKS_MAX])
{
    double forward[RANKS_MAX][BATCHES_MAX], backward[RANKS_MAX][BATCHES_MAX];
    int32_t at[RANKS_MAX] = {0}, forwards[RANKS_MAX] = {0}, backwards[RANKS_MAX] = {0};
    double free_at[RANKS_MAX] = {0}, last = 0;
    bool moved = true;
    while (moved) {
        moved = false;
        for (int32_t r = 0; r < costs->ranks; r++) {
            while (at[r] < lists[r]->length) {
                char letter = lists[r]->letters[at[r]];
                bool f = strchr("FPQ", letter) != NULL, b = strchr("BIPQ", letter) != NULL;
                double start = free_at[r];
                if (f && r > 0) {
                    if (forwards[r - 1] <= forwards[r]) {
                        break;
                    }
                    start = fmax(start, forward[r - 1][forwards[r]] + costs->hop);
                }
                if (b && r < costs->ranks - 1) {
                    if (backwards[r + 1] <= backwards[r]) {
                        break;
                    }
                    start = fmax(start, backward[r + 1][backwards[r]] + costs->hop);
                }
                free_at[r] = start + seconds_of(costs, r, letter);
                last = fmax(last, free_at[r]);
                if (f) {
                    forward[r][forwards[r]++] = free_at[r];
                }
                if (b) {
                    backward[r][backwards[r]++] = free_at[r];
                }
                at[r]++;
                moved = true;
            }
        }
    }
    for (int32_t r = 0; r < costs->ranks; r++) {
        if (at[r] < lists[r]->length) {
            return INFINITY;
        }
    }
    return last;
}

static double best_of_all(const struct costs *costs, const struct words *words)
{
    double best = INFINITY;
    const struct word *lists[RANKS_MAX] = {NULL};
    int64_t total = 1;
    for (int32_t r = 0; r < costs->ranks; r++) {
        total *= words->count;
    }
    for (int64_t number = 0; number < total; number++) {
        int64_t rest = number;
        for (int32_t r = 0; r < costs->ranks; r++) {
            lists[r] = &words->items[rest % words->count];
            rest /= words->count;
        }
        best = fmin(best, time_of(costs, lists));
    }
    return best;
}

static dp_status fill(void *context, const struct dp_schedule *shape,
                      struct dp_sim_costs *ret_costs, uint64_t *ret_static_bytes,
                      struct dp_error *err)
{
    const struct costs *costs = context;
    (void)ret_static_bytes;
    (void)err;
    dp_sim_costs_init(ret_costs, shape);
    for (int32_t rank = 0; rank < costs->ranks; rank++) {
        struct dp_sim_chunk *chunk = dp_sim_chunk_at(ret_costs, rank, 0);
        memcpy(chunk->seconds, costs->seconds[rank], sizeof(chunk->seconds));
        chunk->activation_bytes = (uint64_t)costs->held;
        chunk->released_at_i_bytes = (uint64_t)costs->at_i;
        ret_costs->fb[rank] = costs->fb[rank];
        ret_costs->fi[rank] = costs->fi[rank];
        for (int32_t to = 0; to < costs->ranks; to++) {
            dp_sim_hop_at(ret_costs, rank, to)->latency = rank == to ? 0 : costs->hop;
        }
    }
    return DP_OK;
}

static void assert_optimal(struct costs *costs, bool pairs, uint64_t seed)
{
    static struct words words;
    words.count = 0;
    grow(costs, (struct prefix){.bytes = 0}, pairs, &words);
    assert_true(words.count > 0);
    double best = best_of_all(costs, &words);
    uint64_t caps[RANKS_MAX];
    for (int32_t rank = 0; rank < costs->ranks; rank++) {
        caps[rank] = (uint64_t)costs->room;
    }
    const struct dp_auto_problem problem = {.pipeline = costs->ranks,
                                            .microbatches = costs->batches,
                                            .costs = fill,
                                            .context = costs,
                                            .memory_cap = caps,
                                            .placements = DP_AUTO_STRAIGHT};
    const struct dp_auto_options options = {.seed = seed, .moves_max = 30000};
    DP_CLEANUP(dp_auto_result_deinit) struct dp_auto_result result = {0};
    struct dp_error err;
    assert_ok(dp_auto_search(&problem, &options, &result, &err), &err);
    if (result.objective > best * (1 + 1e-9) || result.bound > best * (1 + 1e-9) ||
        result.objective < best * (1 - 1e-9)) {
        fail_msg("P=%d M=%d, seed %llu: the best order takes %.9g, the search found %.9g, its "
                 "bound is %.9g",
                 costs->ranks, costs->batches, (unsigned long long)seed, best, result.objective,
                 result.bound);
    }
}

static uint64_t next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static double between(uint64_t *state, double low, double high)
{
    return low + (high - low) * (double)next(state) / 0x1p31;
}

static struct costs random_costs(uint64_t *state, int32_t ranks, int32_t batches, bool pairs)
{
    struct costs costs = {.ranks = ranks, .batches = batches, .held = 10};
    bool whole_numbers = next(state) % 2 == 0;
    for (int32_t rank = 0; rank < ranks; rank++) {
        double *seconds = costs.seconds[rank];
        for (int kind = 0; kind < DP_ACTION_FB; kind++) {
            seconds[kind] = whole_numbers ? 1 + (double)(next(state) % 3)
                                          : between(state, 0.5, 3);
        }
        seconds[DP_ACTION_B] =
            (seconds[DP_ACTION_I] + seconds[DP_ACTION_W]) * (next(state) % 2 == 0 ? 1 : 0.9);
        double share = pairs ? between(state, 0.6, 1.1) : 1;
        costs.fb[rank] = share * (seconds[DP_ACTION_F] + seconds[DP_ACTION_B]);
        costs.fi[rank] = share * (seconds[DP_ACTION_F] + seconds[DP_ACTION_I]);
    }
    costs.hop = next(state) % 2 == 0 ? 0 : between(state, 0, 1);
    costs.at_i = (int32_t)(next(state) % 11);
    costs.room = 10 * (1 + (int32_t)(next(state) % (uint64_t)batches)) + (int32_t)(next(state) % 5);
    return costs;
}

static void finds_the_optimum(int32_t ranks, int32_t batches, bool pairs, long runs)
{
    uint64_t state = (uint64_t)(100 * ranks + 10 * batches + pairs);
    for (long run = 0; run < runs; run++) {
        struct costs costs = random_costs(&state, ranks, batches, pairs);
        assert_optimal(&costs, pairs, (uint64_t)run);
    }
}

static void two_ranks_get_the_best_of_all_orders(void **state)
{
    (void)state;
    finds_the_optimum(2, 2, false, dp_fuzz_runs(40));
    finds_the_optimum(2, 3, false, dp_fuzz_runs(20));
}

static void three_ranks_get_the_best_of_all_orders(void **state)
{
    (void)state;
    finds_the_optimum(3, 2, false, dp_fuzz_runs(20));
}

static void pairs_are_formed_as_in_the_best_of_all_orders(void **state)
{
    (void)state;
    finds_the_optimum(2, 2, true, dp_fuzz_runs(20));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_ranks_get_the_best_of_all_orders),
        cmocka_unit_test(three_ranks_get_the_best_of_all_orders),
        cmocka_unit_test(pairs_are_formed_as_in_the_best_of_all_orders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
