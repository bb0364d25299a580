#include "scan.h"

#include <math.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/rand.h"

#define BLOCK_TOKENS (1 << 16)

struct scan {
    const struct token_files *files;
    int32_t vocabulary;
    int32_t *tokens; // [BLOCK_TOKENS]
    int64_t *counts; // [vocabulary]
    int64_t seen;
    uint64_t hash;
};

static dp_status scan_block(struct scan *scan, int64_t at, struct dp_error *err)
{
    int64_t left = scan->files->tokens - at;
    int64_t count = left < BLOCK_TOKENS ? left : BLOCK_TOKENS;
    dp_status status =
        dp_token_files_read(scan->files, at, count, scan->vocabulary, scan->tokens, err);
    if (status != DP_OK) {
        return status;
    }
    for (int64_t i = 0; i < count; i++) {
        scan->counts[scan->tokens[i]]++;
    }
    scan->seen += count;
    scan->hash = dp_hash64(scan->tokens, (uint64_t)count * sizeof scan->tokens[0], scan->hash);
    return DP_OK;
}

static double entropy_of(const struct scan *scan)
{
    double entropy = 0;
    for (int32_t i = 0; i < scan->vocabulary; i++) {
        if (scan->counts[i] > 0) {
            double share = (double)scan->counts[i] / (double)scan->seen;
            entropy -= share * log(share);
        }
    }
    return entropy;
}

dp_status dp_token_files_scan(const struct token_files *files, int32_t vocabulary,
                              struct token_scan *ret_scan, struct dp_error *err)
{
    DP_AUTO_FREE int32_t *tokens = dp_new_array(int32_t, BLOCK_TOKENS);
    DP_AUTO_FREE int64_t *counts = dp_new_array(int64_t, (size_t)vocabulary);
    struct scan scan = {
        .files = files, .vocabulary = vocabulary, .tokens = tokens, .counts = counts};
    // Blocks are numbered; of too many, every so-manieth is read, the last one always.
    int64_t blocks = (files->tokens + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
    int64_t most = (int64_t)(DP_CORPUS_SCAN_TOKENS_MAX / BLOCK_TOKENS);
    int64_t taken = blocks < most ? blocks : most;
    scan.hash = (uint64_t)files->tokens;
    for (int64_t i = 0; i < taken; i++) {
        int64_t block =
            taken > 1 ? (int64_t)((double)i * (double)(blocks - 1) / (double)(taken - 1)) : 0;
        dp_status status = scan_block(&scan, block * BLOCK_TOKENS, err);
        if (status != DP_OK) {
            return status;
        }
    }
    *ret_scan = (struct token_scan){.hash = scan.hash, .entropy = entropy_of(&scan)};
    return DP_OK;
}
