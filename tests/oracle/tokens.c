// Prints a corpus as the trainer sees it, for an oracle: tokens of PATH by samples.
//   oracle_tokens PATH FORMAT TOKEN_BYTES VOCABULARY SEQUENCE SEED SHUFFLE HOLDOUT SAMPLES
// The first line is format, tokens, bytes, training samples, held-out samples; then a line for each
// of SAMPLES training samples and each held-out one: the place of its first token, its tokens, and
// the last target.
#include <inttypes.h>
#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/data.h"

DP_DEFINE_CLEANUP(cleanup_corpus, struct dp_corpus, dp_corpus_close)

static void print_sample(int64_t offset, const int32_t *tokens, const int32_t *targets,
                         int32_t sequence)
{
    printf("%" PRId64, offset);
    for (int32_t i = 0; i < sequence; i++) {
        printf(" %d", tokens[i]);
        if (i > 0 && targets[i - 1] != tokens[i]) {
            printf(" (targets differ)");
        }
    }
    printf(" %d\n", targets[sequence - 1]);
}

static dp_status print_corpus(const struct dp_corpus *corpus, int32_t sequence, int64_t samples,
                              struct dp_error *err)
{
    DP_AUTO_FREE int32_t *tokens = dp_new_array(int32_t, (size_t)sequence);
    DP_AUTO_FREE int32_t *targets = dp_new_array(int32_t, (size_t)sequence);
    printf("%s %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 "\n",
           dp_data_format_text(dp_corpus_format(corpus)), dp_corpus_tokens(corpus),
           dp_corpus_bytes(corpus), dp_corpus_train_samples(corpus),
           dp_corpus_holdout_samples(corpus));
    dp_status status = DP_OK;
    for (int64_t i = 0; i < samples && status == DP_OK; i++) {
        status = dp_corpus_fill_train(corpus, i, 1, tokens, targets, err);
        print_sample(dp_corpus_train_offset(corpus, i), tokens, targets, sequence);
    }
    for (int64_t i = 0; i < dp_corpus_holdout_samples(corpus) && status == DP_OK; i++) {
        status = dp_corpus_fill_holdout(corpus, i, 1, tokens, targets, err);
        print_sample(dp_corpus_holdout_offset(corpus, i), tokens, targets, sequence);
    }
    return status;
}

int main(int count, char **arguments)
{
    if (count != 10) {
        return EXIT_FAILURE;
    }
    struct dp_data_spec data = {.token_bytes = atoi(arguments[3]),
                                .shuffle = atoi(arguments[7]),
                                .holdout = strtod(arguments[8], NULL)};
    DP_COPY_TEXT(data.path, arguments[1]);
    DP_COPY_TEXT(data.format, arguments[2]);
    int32_t sequence = atoi(arguments[5]);
    DP_CLEANUP(cleanup_corpus) struct dp_corpus *corpus = NULL;
    struct dp_error err = {0};
    dp_status status = dp_corpus_open(&data, sequence, atoi(arguments[4]),
                                      strtoull(arguments[6], NULL, 10), &corpus, &err);
    if (status == DP_OK) {
        status = print_corpus(corpus, sequence, atoll(arguments[9]), &err);
    }
    if (status != DP_OK) {
        fprintf(stderr, "%s\n", err.message);
        return EXIT_FAILURE;
    }
    return EXIT_SUCCESS;
}
