// Byte-level text: a file, its samples and the order they are seen in.
//
// The last `holdout` share of the file is kept for evaluation and never trained on. From the rest,
// training samples are `sequence` + 1 bytes: tokens are the first `sequence`, targets the last. The
// training bytes are cut into windows that step by `sequence`, so that every byte but the first is
// a target once an epoch. Which window the global sample number g (counted from 0 over the whole
// run) is, follows from (seed, g) alone: epoch g / samples has its own start offset below
// `sequence` and its own permutation of windows. So ranks need no word with each other, and the
// same run sees the same samples whatever its layout.
//
// A corpus is read-only after opening: any thread.
#pragma once

#include <stdint.h>

#include "dp/error.h"
#include "dp/spec.h"

struct dp_corpus;

// Opens the file and reads it once. Refuses, with the path and what it would need: a missing or
// unreadable file, a directory or device, an empty file, one too short for one training sample and
// (when holdout > 0) one held-out sample, and more than DP_CORPUS_BYTES_MAX.
dp_status dp_corpus_open(const struct dp_data_spec *data, int32_t sequence, uint64_t seed,
                         struct dp_corpus **ret_corpus, struct dp_error *err);
// Accepts NULL.
void dp_corpus_close(struct dp_corpus *corpus);

int64_t dp_corpus_bytes(const struct dp_corpus *corpus);
// Of the whole content: ranks on other nodes compare it to know that they read the same text.
uint64_t dp_corpus_hash(const struct dp_corpus *corpus);
// Entropy of the byte frequencies of the whole file, nats per byte: what a model that knows nothing
// but frequencies would lose.
double dp_corpus_unigram_entropy(const struct dp_corpus *corpus);
// Training samples of one epoch, >= 1.
int64_t dp_corpus_train_samples(const struct dp_corpus *corpus);
// Held-out samples; 0 when holdout is 0.
int64_t dp_corpus_holdout_samples(const struct dp_corpus *corpus);
// Bytes that can be trained on, [0, this); the held-out ones are behind them.
int64_t dp_corpus_train_bytes(const struct dp_corpus *corpus);

// Where the sample starts in the file. global_sample >= 0 and without upper end.
int64_t dp_corpus_train_offset(const struct dp_corpus *corpus, int64_t global_sample);
// `index` in [0, holdout_samples); in file order.
int64_t dp_corpus_holdout_offset(const struct dp_corpus *corpus, int64_t index);

// tokens and targets are [count, sequence]: samples first, first + 1, ...
void dp_corpus_fill_train(const struct dp_corpus *corpus, int64_t first, int32_t count,
                          int32_t *ret_tokens, int32_t *ret_targets);
// Samples past the last held-out one are not allowed.
void dp_corpus_fill_holdout(const struct dp_corpus *corpus, int64_t first, int32_t count,
                            int32_t *ret_tokens, int32_t *ret_targets);
