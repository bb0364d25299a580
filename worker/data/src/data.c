#include "dp/data.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/rand.h"

// Up to here the file is read into memory, where later changes to it do no harm; longer ones are
// mapped.
#define READ_BYTES_MAX (256ll << 20)

struct dp_corpus {
    unsigned char *bytes;
    int64_t length, train_length;
    bool is_mapped;
    int32_t sequence;
    uint64_t seed;
    int64_t train_samples, holdout_samples;
    int64_t shift_count; // how many start offsets an epoch can have
    uint64_t hash;
    double entropy;
};

// A sample has one byte more than `sequence`; the next one may start at its last byte.
static int64_t windows(int64_t bytes, int32_t sequence)
{
    return bytes > 0 ? (bytes - 1) / sequence : 0;
}

static int64_t holdout_bytes(int64_t length, double holdout)
{
    return (int64_t)floor((double)length * holdout);
}

static bool is_enough(int64_t length, double holdout, int32_t sequence)
{
    int64_t held = holdout_bytes(length, holdout);
    return windows(length - held, sequence) > 0 && (holdout <= 0 || windows(held, sequence) > 0);
}

// The fewest bytes that hold one sample of each kind.
static int64_t needed_bytes(double holdout, int32_t sequence)
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

static dp_status read_whole(int fd, const char *path, struct dp_corpus *corpus,
                            struct dp_error *err)
{
    corpus->bytes = dp_alloc((size_t)corpus->length, 1);
    int64_t at = 0;
    while (at < corpus->length) {
        ssize_t got = read(fd, corpus->bytes + at, (size_t)(corpus->length - at));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return dp_fail_errno(err, errno, "cannot read the corpus %s", path);
        }
        if (got == 0) {
            return dp_fail(err, DP_IO, "the corpus %s became shorter while it was read", path);
        }
        at += got;
    }
    return DP_OK;
}

static dp_status map_whole(int fd, const char *path, struct dp_corpus *corpus, struct dp_error *err)
{
    void *bytes = mmap(NULL, (size_t)corpus->length, PROT_READ, MAP_PRIVATE, fd, 0);
    if (bytes == MAP_FAILED) {
        return dp_fail_errno(err, errno, "cannot map the corpus %s", path);
    }
    corpus->bytes = bytes;
    corpus->is_mapped = true;
    return DP_OK;
}

static dp_status load(const char *path, struct dp_corpus *corpus, struct dp_error *err)
{
    // Not blocking, since opening a fifo would wait for a writer.
    DP_AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        return dp_fail_errno(err, errno, "cannot open the corpus %s", path);
    }
    struct stat info;
    if (fstat(fd, &info) != 0) {
        return dp_fail_errno(err, errno, "cannot stat the corpus %s", path);
    }
    if (!S_ISREG(info.st_mode)) {
        return dp_fail(err, DP_INVALID, "the corpus %s is %s, not a regular file", path,
                       S_ISDIR(info.st_mode) ? "a directory" : "a device, pipe or socket");
    }
    if (info.st_size == 0) {
        return dp_fail(err, DP_INVALID, "the corpus %s is empty", path);
    }
    if ((uint64_t)info.st_size > DP_CORPUS_BYTES_MAX) {
        return dp_fail(err, DP_TOO_LARGE, "the corpus %s has %lld bytes; the limit is %llu", path,
                       (long long)info.st_size, (unsigned long long)DP_CORPUS_BYTES_MAX);
    }
    corpus->length = info.st_size;
    return corpus->length <= READ_BYTES_MAX ? read_whole(fd, path, corpus, err)
                                            : map_whole(fd, path, corpus, err);
}

// Nats per byte.
static double unigram_entropy(const unsigned char *bytes, int64_t length)
{
    int64_t counts[256] = {0};
    for (int64_t i = 0; i < length; i++) {
        counts[bytes[i]]++;
    }
    double entropy = 0;
    for (int i = 0; i < 256; i++) {
        if (counts[i] > 0) {
            double share = (double)counts[i] / (double)length;
            entropy -= share * log(share);
        }
    }
    return entropy;
}

static void lay_out(struct dp_corpus *corpus, double holdout)
{
    int64_t held = holdout > 0 ? holdout_bytes(corpus->length, holdout) : 0;
    corpus->train_length = corpus->length - held;
    corpus->holdout_samples = windows(held, corpus->sequence);
    // One window less than would fit leaves room for every start offset below `sequence`.
    int64_t fit = windows(corpus->train_length, corpus->sequence);
    corpus->train_samples = fit > 1 ? fit - 1 : fit;
    int64_t room = corpus->train_length - 1 - corpus->train_samples * corpus->sequence;
    corpus->shift_count = room < corpus->sequence ? room + 1 : corpus->sequence;
}

dp_status dp_corpus_open(const struct dp_data_spec *data, int32_t sequence, uint64_t seed,
                         struct dp_corpus **ret_corpus, struct dp_error *err)
{
    DP_CHECK(sequence > 0);
    struct dp_corpus *corpus = dp_new(struct dp_corpus);
    dp_status status = load(data->path, corpus, err);
    if (status == DP_OK && !is_enough(corpus->length, data->holdout, sequence)) {
        status = dp_fail(err, DP_INVALID,
                         "the corpus %s has %lld bytes; a sequence of %d with holdout %g needs at "
                         "least %lld: take a longer text or a smaller train.sequence",
                         data->path, (long long)corpus->length, sequence, data->holdout,
                         (long long)needed_bytes(data->holdout, sequence));
    }
    if (status != DP_OK) {
        dp_corpus_close(corpus);
        return status;
    }
    corpus->sequence = sequence;
    corpus->seed = seed;
    corpus->hash = dp_hash64(corpus->bytes, (uint64_t)corpus->length, 0);
    corpus->entropy = unigram_entropy(corpus->bytes, corpus->length);
    lay_out(corpus, data->holdout);
    *ret_corpus = corpus;
    return DP_OK;
}

void dp_corpus_close(struct dp_corpus *corpus)
{
    if (corpus == NULL) {
        return;
    }
    if (corpus->is_mapped) {
        munmap(corpus->bytes, (size_t)corpus->length);
    } else {
        free(corpus->bytes);
    }
    free(corpus);
}

int64_t dp_corpus_bytes(const struct dp_corpus *corpus)
{
    return corpus->length;
}

uint64_t dp_corpus_hash(const struct dp_corpus *corpus)
{
    return corpus->hash;
}

double dp_corpus_unigram_entropy(const struct dp_corpus *corpus)
{
    return corpus->entropy;
}

int64_t dp_corpus_train_samples(const struct dp_corpus *corpus)
{
    return corpus->train_samples;
}

int64_t dp_corpus_holdout_samples(const struct dp_corpus *corpus)
{
    return corpus->holdout_samples;
}

int64_t dp_corpus_train_bytes(const struct dp_corpus *corpus)
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

static void fill_one(const struct dp_corpus *corpus, int64_t offset, int32_t *ret_tokens,
                     int32_t *ret_targets)
{
    const unsigned char *from = corpus->bytes + offset;
    for (int32_t i = 0; i < corpus->sequence; i++) {
        ret_tokens[i] = from[i];
        ret_targets[i] = from[i + 1];
    }
}

void dp_corpus_fill_train(const struct dp_corpus *corpus, int64_t first, int32_t count,
                          int32_t *ret_tokens, int32_t *ret_targets)
{
    for (int32_t i = 0; i < count; i++) {
        int64_t at = (int64_t)i * corpus->sequence;
        fill_one(corpus, dp_corpus_train_offset(corpus, first + i), ret_tokens + at,
                 ret_targets + at);
    }
}

void dp_corpus_fill_holdout(const struct dp_corpus *corpus, int64_t first, int32_t count,
                            int32_t *ret_tokens, int32_t *ret_targets)
{
    for (int32_t i = 0; i < count; i++) {
        int64_t at = (int64_t)i * corpus->sequence;
        fill_one(corpus, dp_corpus_holdout_offset(corpus, first + i), ret_tokens + at,
                 ret_targets + at);
    }
}
