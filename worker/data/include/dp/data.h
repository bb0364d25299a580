// A corpus of tokens: one file or several, its samples and the order they are seen in.
//
// A corpus is one run of tokens, whatever it lies in ([data] format):
//   bytes     any file: every byte is a token
//   gpt2      a .bin file of uint16 or uint32 tokens, as nanoGPT writes it, or behind the header of
//             llm.c (256 int32: magic 20240520, version 1, tokens for uint16; magic 20240801,
//             version 7 for uint32); or a directory of them, in the order of their names
//   megatron  a .bin file of tokens with its .idx (Megatron-LM's IndexedDataset), named with either
//             ending or none; or a directory of them. Sequences follow each other as they lie
//   auto      megatron where an .idx is named, or lies beside a .bin or a name without a file, else
//             gpt2 where the file starts with llm.c's magic or is called .bin, else bytes
//
// The last `holdout` share of the tokens is kept for evaluation and never trained on. From the
// rest, training samples are `sequence` + 1 tokens: the first `sequence` go in, the last are the
// targets. The training tokens are cut into windows that step by `sequence`, so that every token
// but the first is a target once an epoch. Which window the global sample number g (counted from 0
// over the whole run) is, follows from (seed, g) alone: epoch g / samples has its own start offset
// below `sequence` and its own permutation of windows; without `shuffle`, windows come as they lie.
// So ranks need no word with each other, the same run sees the same samples whatever its layout,
// and the number of the next sample is all there is to go on from.
//
// Files are read when a sample is asked for, never mapped: one that is cut short or changed under a
// running job is an error that names it. A corpus does not change after opening: any thread.
#pragma once

#include <stdint.h>

#include "dp/error.h"
#include "dp/spec.h"

struct dp_corpus;

// Opens the files and reads them: all of them, or of more than DP_CORPUS_SCAN_TOKENS_MAX tokens
// evenly spaced parts. Refuses, with the file, the place in it and what was expected: what is
// missing, unreadable, empty or no regular file, headers and indices that do not fit their files,
// tokens outside the vocabulary, a corpus too short for one training sample and (when holdout > 0)
// one held-out sample, more than DP_CORPUS_BYTES_MAX or DP_CORPUS_FILES_MAX files. vocabulary >= 1.
dp_status dp_corpus_open(const struct dp_data_spec *data, int32_t sequence, int32_t vocabulary,
                         uint64_t seed, struct dp_corpus **ret_corpus, struct dp_error *err);
// Accepts NULL.
void dp_corpus_close(struct dp_corpus *corpus);

dp_data_format dp_corpus_format(const struct dp_corpus *corpus); // never AUTO
int64_t dp_corpus_tokens(const struct dp_corpus *corpus);
int64_t dp_corpus_bytes(const struct dp_corpus *corpus); // of the tokens
// Of what was read at opening: ranks on other nodes compare it to know that they read the same.
uint64_t dp_corpus_hash(const struct dp_corpus *corpus);
// Entropy of the frequencies of tokens (of what was read at opening), nats per token: what a model
// that knows nothing but frequencies would lose.
double dp_corpus_unigram_entropy(const struct dp_corpus *corpus);
// Training samples of one epoch, >= 1.
int64_t dp_corpus_train_samples(const struct dp_corpus *corpus);
// Held-out samples; 0 when holdout is 0.
int64_t dp_corpus_holdout_samples(const struct dp_corpus *corpus);
// Tokens that can be trained on, [0, this); the held-out ones are behind them.
int64_t dp_corpus_train_tokens(const struct dp_corpus *corpus);

// The first token of the sample. global_sample >= 0 and without upper end.
int64_t dp_corpus_train_offset(const struct dp_corpus *corpus, int64_t global_sample);
// `index` in [0, holdout_samples); in order.
int64_t dp_corpus_holdout_offset(const struct dp_corpus *corpus, int64_t index);

// tokens and targets are [count, sequence]: samples first, first + 1, ... An error names the file
// and the offset: it cannot be read, ends early, or holds a token outside the vocabulary.
dp_status dp_corpus_fill_train(const struct dp_corpus *corpus, int64_t first, int32_t count,
                               int32_t *ret_tokens, int32_t *ret_targets, struct dp_error *err);
// Samples past the last held-out one are not allowed.
dp_status dp_corpus_fill_holdout(const struct dp_corpus *corpus, int64_t first, int32_t count,
                                 int32_t *ret_tokens, int32_t *ret_targets, struct dp_error *err);
