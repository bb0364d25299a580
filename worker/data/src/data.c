#include "dp/data.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/rand.h"
#include "scan.h"

struct dp_corpus {
    struct token_files files;
    struct token_scan scan;
    int64_t train_length; // tokens that are trained on
    int32_t sequence, vocabulary;
    uint64_t seed;
    bool is_shuffled;
    int64_t train_samples, holdout_samples;
    int64_t shift_count; // how many start offsets an epoch can have
};

// A sample has one token more than `sequence`; the next one may start at its last token.
static int64_t windows(int64_t tokens, int32_t sequence)
{
    return tokens > 0 ? (tokens - 1) / sequence : 0;
}

static int64_t holdout_tokens(int64_t length, double holdout)
{
    return (int64_t)floor((double)length * holdout);
}

static bool is_enough(int64_t length, double holdout, int32_t sequence)
{
    int64_t held = holdout_tokens(length, holdout);
    return windows(length - held, sequence) > 0 && (holdout <= 0 || windows(held, sequence) > 0);
}

// The fewest tokens that hold one sample of each kind.
static int64_t needed_tokens(double holdout, int32_t sequence)
{
    int64_t least = sequence + 1;
    if (holdout > 0) {
        least = (int64_t)floor((double)least / holdout);
    }
    while (!is_enough(least, holdout, sequence)) {
        least++;
    }
    return least;
}

static void lay_out(struct dp_corpus *corpus, double holdout)
{
    int64_t held = holdout > 0 ? holdout_tokens(corpus->files.tokens, holdout) : 0;
    corpus->train_length = corpus->files.tokens - held;
    corpus->holdout_samples = windows(held, corpus->sequence);
    // One window less than would fit leaves room for every start offset below `sequence`.
    int64_t fit = windows(corpus->train_length, corpus->sequence);
    corpus->train_samples = fit > 1 && corpus->is_shuffled ? fit - 1 : fit;
    int64_t room = corpus->train_length - 1 - corpus->train_samples * corpus->sequence;
    corpus->shift_count = room < corpus->sequence ? room + 1 : corpus->sequence;
}

static dp_status check_length(const struct dp_corpus *corpus, const struct dp_data_spec *data,
                              struct dp_error *err)
{
    if (is_enough(corpus->files.tokens, data->holdout, corpus->sequence)) {
        return DP_OK;
    }
    bool is_bytes = corpus->files.format == DP_DATA_BYTES;
    return dp_fail(err, DP_INVALID,
                   "the corpus %s has %lld %s; a sequence of %d with holdout %g needs at least "
                   "%lld: take a longer text or a smaller train.sequence",
                   data->path, (long long)corpus->files.tokens, is_bytes ? "bytes" : "tokens",
                   corpus->sequence, data->holdout,
                   (long long)needed_tokens(data->holdout, corpus->sequence));
}

dp_status dp_corpus_open(const struct dp_data_spec *data, int32_t sequence, int32_t vocabulary,
                         uint64_t seed, struct dp_corpus **ret_corpus, struct dp_error *err)
{
    DP_CHECK(sequence > 0 && vocabulary > 0);
    struct dp_corpus *corpus = dp_new(struct dp_corpus);
    corpus->sequence = sequence;
    corpus->vocabulary = vocabulary;
    corpus->seed = seed;
    corpus->is_shuffled = data->shuffle != 0;
    dp_status status = dp_token_files_open(data, vocabulary, &corpus->files, err);
    if (status == DP_OK) {
        status = check_length(corpus, data, err);
    }
    if (status == DP_OK) {
        status = dp_token_files_scan(&corpus->files, vocabulary, &corpus->scan, err);
    }
    if (status != DP_OK) {
        dp_corpus_close(corpus);
        return status;
    }
    lay_out(corpus, data->holdout);
    *ret_corpus = corpus;
    return DP_OK;
}

void dp_corpus_close(struct dp_corpus *corpus)
{
    if (corpus != NULL) {
        dp_token_files_deinit(&corpus->files);
        free(corpus);
    }
}

dp_data_format dp_corpus_format(const struct dp_corpus *corpus)
{
    return corpus->files.format;
}

int64_t dp_corpus_tokens(const struct dp_corpus *corpus)
{
    return corpus->files.tokens;
}

int64_t dp_corpus_bytes(const struct dp_corpus *corpus)
{
    int64_t bytes = 0;
    for (int32_t i = 0; i < corpus->files.count; i++) {
        bytes += corpus->files.items[i].count * dp_token_bytes(corpus->files.items[i].type);
    }
    return bytes;
}

uint64_t dp_corpus_hash(const struct dp_corpus *corpus)
{
    return corpus->scan.hash;
}

double dp_corpus_unigram_entropy(const struct dp_corpus *corpus)
{
    return corpus->scan.entropy;
}

int64_t dp_corpus_train_samples(const struct dp_corpus *corpus)
{
    return corpus->train_samples;
}

int64_t dp_corpus_holdout_samples(const struct dp_corpus *corpus)
{
    return corpus->holdout_samples;
}

int64_t dp_corpus_train_tokens(const struct dp_corpus *corpus)
{
    return corpus->train_length;
}

// A permutation of [0, count) without a table: a Feistel network on the next even number of bits,
// walked until it falls inside (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002).
static uint64_t permute(uint64_t value, uint64_t count, uint64_t key)
{
    if (count < 2) {
        return 0;
    }
    unsigned half = 1;
    while (2 * half < 64 && count - 1 >= 1ull << (2 * half)) {
        half++;
    }
    uint64_t mask = (1ull << half) - 1;
    do {
        uint64_t left = value >> half, right = value & mask;
        for (uint64_t round = 0; round < 6; round++) {
            uint64_t next = left ^ (dp_rand_mix(dp_rand_mix(key, round), right) & mask);
            left = right;
            right = next;
        }
        value = left << half | right;
    } while (value >= count);
    return value;
}

int64_t dp_corpus_train_offset(const struct dp_corpus *corpus, int64_t global_sample)
{
    DP_CHECK(global_sample >= 0);
    uint64_t epoch = (uint64_t)(global_sample / corpus->train_samples);
    uint64_t place = (uint64_t)(global_sample % corpus->train_samples);
    if (!corpus->is_shuffled) {
        return (int64_t)place * corpus->sequence;
    }
    uint64_t key = dp_rand_mix(corpus->seed, epoch);
    int64_t shift = (int64_t)(dp_rand_mix(key, UINT64_MAX) % (uint64_t)corpus->shift_count);
    uint64_t window = permute(place, (uint64_t)corpus->train_samples, key);
    return shift + (int64_t)window * corpus->sequence;
}

int64_t dp_corpus_holdout_offset(const struct dp_corpus *corpus, int64_t index)
{
    DP_CHECK(index >= 0 && index < corpus->holdout_samples);
    return corpus->train_length + index * corpus->sequence;
}

static dp_status fill_one(const struct dp_corpus *corpus, int64_t offset, int32_t *ret_tokens,
                          int32_t *ret_targets, struct dp_error *err)
{
    int32_t tail = corpus->sequence;
    dp_status status =
        dp_token_files_read(&corpus->files, offset + 1, tail, corpus->vocabulary, ret_targets, err);
    if (status == DP_OK) {
        memcpy(ret_tokens + 1, ret_targets, (size_t)(tail - 1) * sizeof ret_tokens[0]);
        status =
            dp_token_files_read(&corpus->files, offset, 1, corpus->vocabulary, ret_tokens, err);
    }
    return status;
}

dp_status dp_corpus_fill_train(const struct dp_corpus *corpus, int64_t first, int32_t count,
                               int32_t *ret_tokens, int32_t *ret_targets, struct dp_error *err)
{
    dp_status status = DP_OK;
    for (int32_t i = 0; status == DP_OK && i < count; i++) {
        int64_t at = (int64_t)i * corpus->sequence;
        status = fill_one(corpus, dp_corpus_train_offset(corpus, first + i), ret_tokens + at,
                          ret_targets + at, err);
    }
    return status;
}

dp_status dp_corpus_fill_holdout(const struct dp_corpus *corpus, int64_t first, int32_t count,
                                 int32_t *ret_tokens, int32_t *ret_targets, struct dp_error *err)
{
    dp_status status = DP_OK;
    for (int32_t i = 0; status == DP_OK && i < count; i++) {
        int64_t at = (int64_t)i * corpus->sequence;
        status = fill_one(corpus, dp_corpus_holdout_offset(corpus, first + i), ret_tokens + at,
                          ret_targets + at, err);
    }
    return status;
}
