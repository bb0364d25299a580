// Token files that are wrong, and files that change under a job.
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/buf.h"
#include "dp/cleanup.h"
#include "dp/data.h"
#include "dp/rand.h"
#include "dp_test.h"

DP_DEFINE_CLEANUP(cleanup_corpus, struct dp_corpus, dp_corpus_close)
#define AUTO_CORPUS DP_CLEANUP(cleanup_corpus)

#define VOCABULARY 1000
#define SEQUENCE 8

static char directory[] = "/tmp/dp-test-tokens-XXXXXX";

static int make_directory(void **state)
{
    (void)state;
    return mkdtemp(directory) == NULL ? -1 : 0;
}

static int remove_directory(void **state)
{
    (void)state;
    static const char *const names[] = {"t.bin", "t.idx"};
    for (size_t i = 0; i < 2; i++) {
        DP_AUTO_FREE char *path = dp_asprintf("%s/%s", directory, names[i]);
        unlink(path);
    }
    return rmdir(directory);
}

static void write_as(const char *ending, const void *bytes, size_t length)
{
    DP_AUTO_FREE char *path = dp_asprintf("%s/t.%s", directory, ending);
    struct dp_error err = {0};
    assert_ok(dp_write_file(path, bytes, length, &err), &err);
}

static void unlink_idx(void)
{
    DP_AUTO_FREE char *path = dp_asprintf("%s/t.idx", directory);
    unlink(path);
}

static struct dp_data_spec spec_of(const char *format)
{
    struct dp_data_spec spec = {.holdout = 0.1, .shuffle = 1};
    snprintf(spec.path, sizeof spec.path, "%s/t.bin", directory);
    snprintf(spec.format, sizeof spec.format, "%s", format);
    return spec;
}

static void refuse(const struct dp_data_spec *spec, dp_status wanted, const char *part)
{
    struct dp_corpus *corpus = NULL;
    struct dp_error err = {0};
    dp_status status = dp_corpus_open(spec, SEQUENCE, VOCABULARY, 1, &corpus, &err);
    assert_refused(status, wanted, &err, part);
    assert_non_null(strstr(err.message, directory));
    assert_null(corpus);
}

#define TOKENS 400

// 400 tokens behind a header of llm.c.
struct llmc {
    int32_t header[256];
    uint16_t tokens[TOKENS];
};

static struct llmc make_llmc(void)
{
    struct llmc file = {.header = {20240520, 1, TOKENS}};
    for (int i = 0; i < TOKENS; i++) {
        file.tokens[i] = (uint16_t)(i * 7 % VOCABULARY);
    }
    return file;
}

static void a_wrong_header_of_llmc_is_named_with_its_offset(void **state)
{
    (void)state;
    const struct {
        int word;
        int32_t value;
        size_t length;
        const char *part;
    } cases[] = {
        {1, 2, sizeof(struct llmc), "offset 4: version 2"},
        {2, TOKENS + 1, sizeof(struct llmc), "offset 8: the header says 401 tokens"},
        {2, TOKENS - 1, sizeof(struct llmc), "offset 8: the header says 399 tokens"},
        {2, -5, sizeof(struct llmc), "offset 8: the header says -5 tokens"},
        {2, INT32_MAX, sizeof(struct llmc), "offset 8: the header says 2147483647 tokens"},
        {2, 0, 1024, "offset 8: the header says 0 tokens"},
        {0, 20240520, 700, "ends at offset 700 inside its header of 1024"},
        {0, 20240520, sizeof(struct llmc) - 1, "the file has 1823 bytes"},
        {0, 20240801, sizeof(struct llmc), "offset 4: version 1 of a file with magic 20240801"},
    };
    unlink_idx();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct llmc file = make_llmc();
        file.header[cases[i].word] = cases[i].value;
        write_as("bin", &file, cases[i].length);
        struct dp_data_spec spec = spec_of("auto");
        refuse(&spec, DP_INVALID, cases[i].part);
    }
    struct llmc file = make_llmc();
    write_as("bin", &file, sizeof file);
    struct dp_data_spec spec = spec_of("gpt2");
    AUTO_CORPUS struct dp_corpus *corpus = NULL;
    struct dp_error err = {0};
    assert_ok(dp_corpus_open(&spec, SEQUENCE, VOCABULARY, 1, &corpus, &err), &err);
    assert_int_equal(dp_corpus_tokens(corpus), TOKENS);
}

static void a_token_outside_the_vocabulary_is_named_with_file_and_offset(void **state)
{
    (void)state;
    unlink_idx();
    struct llmc file = make_llmc();
    file.tokens[123] = VOCABULARY;
    write_as("bin", &file, sizeof file);
    struct dp_data_spec spec = spec_of("auto");
    refuse(&spec, DP_INVALID, "t.bin holds token 1000 at offset 1270"); // 1024 + 2 * 123
    file.tokens[123] = UINT16_MAX;
    write_as("bin", file.tokens, sizeof file.tokens);
    refuse(&spec, DP_INVALID, "t.bin holds token 65535 at offset 246");
    struct dp_data_spec bytes = spec_of("bytes");
    struct dp_corpus *corpus = NULL;
    struct dp_error err = {0};
    dp_status status = dp_corpus_open(&bytes, SEQUENCE, 255, 1, &corpus, &err);
    assert_refused(status, DP_INVALID, &err, "vocabulary = 255");
}

static void a_torn_token_is_named(void **state)
{
    (void)state;
    unlink_idx();
    struct llmc file = make_llmc();
    write_as("bin", file.tokens, sizeof file.tokens - 1);
    struct dp_data_spec spec = spec_of("auto");
    refuse(&spec, DP_INVALID, "no multiple of the 2 of a token: the last one, at offset 798");
    write_as("bin", file.tokens, sizeof file.tokens - 2);
    spec.token_bytes = 4;
    refuse(&spec, DP_INVALID, "no multiple of the 4 of a token: the last one, at offset 796");
}

// An index of sequences of 100 tokens, as bytes.
#define SEQUENCES (TOKENS / 100)
struct __attribute__((packed)) idx {
    char magic[9];
    uint64_t version;
    uint8_t code;
    uint64_t sequences, documents;
    int32_t lengths[SEQUENCES];
    int64_t places[SEQUENCES];
    int64_t first[3];
};

static struct idx make_idx(void)
{
    struct idx idx = {.magic = "MMIDIDX\0",
                      .version = 1,
                      .code = 8,
                      .sequences = SEQUENCES,
                      .documents = 3,
                      .first = {0, 1, SEQUENCES}};
    for (int i = 0; i < SEQUENCES; i++) {
        idx.lengths[i] = 100;
        idx.places[i] = 200 * i;
    }
    return idx;
}

static void write_pair(const struct idx *idx, size_t idx_length, size_t bin_length)
{
    struct llmc file = make_llmc();
    write_as("bin", file.tokens, bin_length);
    write_as("idx", idx, idx_length);
}

static void an_index_is_read_when_it_is_whole(void **state)
{
    (void)state;
    struct idx idx = make_idx();
    write_pair(&idx, sizeof idx, TOKENS * 2);
    struct dp_data_spec spec = spec_of("auto");
    AUTO_CORPUS struct dp_corpus *corpus = NULL;
    struct dp_error err = {0};
    assert_ok(dp_corpus_open(&spec, SEQUENCE, VOCABULARY, 1, &corpus, &err), &err);
    assert_int_equal(dp_corpus_format(corpus), DP_DATA_MEGATRON);
    assert_int_equal(dp_corpus_tokens(corpus), TOKENS);
}

// What is named by none of a pair's endings, and is there, is meant itself: a text beside an index
// of something else.
static void a_file_of_the_very_name_is_no_pair(void **state)
{
    (void)state;
    struct idx idx = make_idx();
    write_pair(&idx, sizeof idx, TOKENS * 2);
    struct dp_data_spec spec = spec_of("auto");
    snprintf(spec.path, sizeof spec.path, "%s/t", directory);
    struct dp_error err = {0};
    AUTO_CORPUS struct dp_corpus *pair = NULL, *text = NULL;
    assert_ok(dp_corpus_open(&spec, SEQUENCE, VOCABULARY, 1, &pair, &err), &err);
    assert_int_equal(dp_corpus_format(pair), DP_DATA_MEGATRON);
    char bytes[300];
    memset(bytes, 'x', sizeof bytes);
    assert_ok(dp_write_file(spec.path, bytes, sizeof bytes, &err), &err);
    dp_status status = dp_corpus_open(&spec, SEQUENCE, VOCABULARY, 1, &text, &err);
    unlink(spec.path);
    assert_ok(status, &err);
    assert_int_equal(dp_corpus_format(text), DP_DATA_BYTES);
    assert_int_equal(dp_corpus_tokens(text), sizeof bytes);
}

static void refuse_pair(const struct idx *idx, size_t idx_length, size_t bin_length,
                        const char *part)
{
    write_pair(idx, idx_length, bin_length);
    struct dp_data_spec spec = spec_of("auto");
    refuse(&spec, DP_INVALID, part);
}

static void a_wrong_index_is_named_with_its_offset(void **state)
{
    (void)state;
    const struct idx good = make_idx();
    const size_t whole = sizeof good, bin = TOKENS * 2;
    refuse_pair(&good, 20, bin, "t.idx ends at offset 20 inside its header of 34");
    refuse_pair(&good, whole - 1, bin, "t.idx has 105 bytes; 4 sequences and 3 documents");
    refuse_pair(&good, whole, bin - 2, "offset 46: sequence 3 has 100 tokens of 2 bytes");
    struct idx idx = good;
    idx.magic[3] = 'X';
    refuse_pair(&idx, whole, bin, "t.idx, offset 0: it does not start with \"MMIDIDX\"");
    idx = good;
    idx.version = 2;
    refuse_pair(&idx, whole, bin, "t.idx, offset 9: version 2");
    idx = good;
    idx.code = 9;
    refuse_pair(&idx, whole, bin, "t.idx, offset 17: 9 is the code of no type");
    idx.code = 7;
    refuse_pair(&idx, whole, bin, "t.idx, offset 17: code 7 is float32");
    idx = good;
    idx.sequences = UINT64_MAX / 4;
    refuse_pair(&idx, whole, bin, "t.idx, offset 18: 4611686018427387903 sequences");
    idx = good;
    idx.documents = UINT64_MAX;
    refuse_pair(&idx, whole, bin, "18446744073709551615 documents");
    idx = good;
    idx.sequences = 0;
    refuse_pair(&idx, whole, bin, "t.idx, offset 18: 0 sequences");
}

static void an_index_that_lies_about_its_sequences_is_named_with_the_offset(void **state)
{
    (void)state;
    const struct idx good = make_idx();
    const size_t whole = sizeof good, bin = TOKENS * 2;
    struct idx idx = good;
    idx.lengths[1] = -1;
    refuse_pair(&idx, whole, bin, "t.idx, offset 38: sequence 1 has -1 tokens");
    idx.lengths[1] = 301;
    refuse_pair(&idx, whole, bin,
                "t.idx, offset 38: sequence 1 has 301 tokens of 2 bytes; the .bin "
                "has 600 bytes left");
    idx.lengths[1] = INT32_MAX;
    refuse_pair(&idx, whole, bin, "t.idx, offset 38: sequence 1 has 2147483647 tokens");
    idx = good;
    idx.lengths[3] = 99;
    refuse_pair(&idx, whole, bin, "t.bin has 800 bytes; the sequences of");
    idx = good;
    idx.places[2] = 402;
    refuse_pair(&idx, whole, bin,
                "t.idx, offset 66: sequence 2 lies at 402 of the .bin; the ones "
                "before it end at 400");
    idx = good;
    idx.first[1] = 5;
    refuse_pair(&idx, whole, bin, "t.idx, offset 90: document 1 starts with sequence 5; 0 to 4");
    idx.first[1] = -1;
    refuse_pair(&idx, whole, bin, "t.idx, offset 90: document 1 starts with sequence -1");
    struct dp_data_spec spec = spec_of("megatron");
    unlink_idx();
    refuse(&spec, DP_NOT_FOUND, "t.idx");
}

// A mapped file would end the process by SIGBUS here.
static void a_file_that_is_cut_under_a_job_is_an_error_that_names_the_offset(void **state)
{
    (void)state;
    unlink_idx();
    struct llmc file = make_llmc();
    write_as("bin", &file, sizeof file);
    struct dp_data_spec spec = spec_of("auto");
    spec.shuffle = 0;
    AUTO_CORPUS struct dp_corpus *corpus = NULL;
    struct dp_error err = {0};
    assert_ok(dp_corpus_open(&spec, SEQUENCE, VOCABULARY, 1, &corpus, &err), &err);
    int32_t tokens[SEQUENCE], targets[SEQUENCE];
    assert_int_equal(truncate(spec.path, 1024 + 2 * 100), 0);
    assert_ok(dp_corpus_fill_train(corpus, 11, 1, tokens, targets, &err), &err);
    dp_status status = dp_corpus_fill_train(corpus, 12, 1, tokens, targets, &err);
    assert_refused(status, DP_IO, &err, "t.bin ends at or before offset 1224");
}

// Offsets beyond 2 and 4 GiB, in a file with holes.
static void a_token_beyond_four_gib_is_read_from_its_own_place(void **state)
{
    (void)state;
    unlink_idx();
    struct dp_data_spec spec = spec_of("gpt2");
    spec.holdout = 0;
    spec.shuffle = 0;
    const off_t bytes = ((off_t)5 << 30) + 18;
    write_as("bin", "", 0);
    assert_int_equal(truncate(spec.path, bytes), 0);
    int fd = open(spec.path, O_WRONLY | O_CLOEXEC);
    const uint16_t last[] = {11, 22, 33, 44, 55, 66, 77, 88, 99};
    assert_int_equal(pwrite(fd, last, sizeof last, bytes - 18), 18);
    close(fd);
    AUTO_CORPUS struct dp_corpus *corpus = NULL;
    struct dp_error err = {0};
    dp_status status = dp_corpus_open(&spec, SEQUENCE, VOCABULARY, 1, &corpus, &err);
    assert_ok(status, &err);
    assert_int_equal(dp_corpus_tokens(corpus), bytes / 2);
    int32_t tokens[SEQUENCE], targets[SEQUENCE];
    int64_t sample = dp_corpus_train_samples(corpus) - 1;
    assert_int_equal(dp_corpus_train_offset(corpus, sample) + SEQUENCE + 1, bytes / 2);
    assert_ok(dp_corpus_fill_train(corpus, sample, 1, tokens, targets, &err), &err);
    for (int i = 0; i < SEQUENCE; i++) {
        assert_int_equal(tokens[i], last[i]);
        assert_int_equal(targets[i], last[i + 1]);
    }
}

// Random layouts that stop at random steps and go on as others, knowing the next sample alone: all
// that is ever trained on is one run of sample numbers, each window once an epoch.
static void stops_and_other_layouts_neither_repeat_nor_skip_a_sample(void **state)
{
    (void)state;
    unlink_idx();
    struct llmc file = make_llmc();
    write_as("bin", &file, sizeof file);
    struct dp_data_spec spec = spec_of("auto");
    AUTO_CORPUS struct dp_corpus *corpus = NULL;
    struct dp_error err = {0};
    assert_ok(dp_corpus_open(&spec, SEQUENCE, VOCABULARY, 1, &corpus, &err), &err);
    const int64_t samples = dp_corpus_train_samples(corpus), epochs = 3;
    struct dp_rand rand;
    dp_rand_init(&rand, 9);
    for (long run = dp_fuzz_runs(50); run > 0; run--) {
        DP_AUTO_FREE int *seen = dp_new_array(int, (size_t)(epochs * TOKENS));
        int64_t next = 0;
        while (next < epochs * samples) {
            // A layout, and how many steps it lives.
            int64_t data = 1 + (int64_t)dp_rand_below(&rand, 4);
            int64_t microbatches = 1 + (int64_t)dp_rand_below(&rand, 3);
            int64_t size = 1 + (int64_t)dp_rand_below(&rand, 3);
            int64_t steps = 1 + (int64_t)dp_rand_below(&rand, 3);
            for (int64_t step = 0; step < steps; step++) {
                for (int64_t i = 0; i < data * microbatches * size; i++) {
                    int64_t sample = next + i, epoch = sample / samples;
                    if (epoch < epochs) {
                        seen[epoch * TOKENS + dp_corpus_train_offset(corpus, sample)]++;
                    }
                }
                next += data * microbatches * size;
            }
        }
        for (int64_t epoch = 0; epoch < epochs; epoch++) {
            int64_t windows = 0;
            for (int64_t i = 0; i < TOKENS; i++) {
                assert_in_range(seen[epoch * TOKENS + i], 0, 1);
                windows += seen[epoch * TOKENS + i];
            }
            assert_int_equal(windows, samples);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wrong_header_of_llmc_is_named_with_its_offset),
        cmocka_unit_test(a_token_outside_the_vocabulary_is_named_with_file_and_offset),
        cmocka_unit_test(a_torn_token_is_named),
        cmocka_unit_test(an_index_is_read_when_it_is_whole),
        cmocka_unit_test(a_file_of_the_very_name_is_no_pair),
        cmocka_unit_test(a_wrong_index_is_named_with_its_offset),
        cmocka_unit_test(an_index_that_lies_about_its_sequences_is_named_with_the_offset),
        cmocka_unit_test(a_file_that_is_cut_under_a_job_is_an_error_that_names_the_offset),
        cmocka_unit_test(a_token_beyond_four_gib_is_read_from_its_own_place),
        cmocka_unit_test(stops_and_other_layouts_neither_repeat_nor_skip_a_sample),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
