#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/buf.h"
#include "dp/cleanup.h"
#include "dp/data.h"
#include "dp_test.h"

DP_DEFINE_CLEANUP(cleanup_corpus, struct dp_corpus, dp_corpus_close)
#define AUTO_CORPUS DP_CLEANUP(cleanup_corpus)

static char directory[] = "/tmp/dp-test-data-XXXXXX";

static int make_directory(void **state)
{
    (void)state;
    return mkdtemp(directory) == NULL ? -1 : 0;
}

static int remove_directory(void **state)
{
    (void)state;
    DP_AUTO_FREE char *path = dp_asprintf("%s/text", directory);
    unlink(path);
    return rmdir(directory);
}

static struct dp_data_spec write_text(const void *bytes, size_t length, double holdout)
{
    struct dp_data_spec spec = {.holdout = holdout, .shuffle = 1};
    struct dp_error err = {0};
    snprintf(spec.path, sizeof spec.path, "%s/text", directory);
    assert_ok(dp_write_file(spec.path, bytes, length, &err), &err);
    return spec;
}

// A text without repeats, the same in every run.
static struct dp_data_spec write_random(size_t length, double holdout, unsigned char *ret_text)
{
    uint32_t x = 12345;
    for (size_t i = 0; i < length; i++) {
        x = x * 1664525u + 1013904223u;
        ret_text[i] = (unsigned char)(x >> 24);
    }
    return write_text(ret_text, length, holdout);
}

static void every_window_is_seen_once_an_epoch_and_the_held_out_part_never(void **state)
{
    (void)state;
    const struct {
        size_t length;
        double holdout;
        int32_t sequence;
    } cases[] = {{1000, 0.1, 16}, {997, 0.25, 7}, {4096, 0, 64},    {34, 0.5, 16},
                 {100, 0, 99},    {200, 0.01, 1}, {5000, 0.05, 128}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        DP_AUTO_FREE unsigned char *text = dp_alloc(cases[c].length, 1);
        struct dp_data_spec spec = write_random(cases[c].length, cases[c].holdout, text);
        AUTO_CORPUS struct dp_corpus *corpus = NULL;
        struct dp_error err = {0};
        int32_t sequence = cases[c].sequence;
        assert_ok(dp_corpus_open(&spec, sequence, 256, 42, &corpus, &err), &err);
        int64_t samples = dp_corpus_train_samples(corpus);
        int64_t end = dp_corpus_train_tokens(corpus);
        assert_true(samples >= 1);
        for (int64_t epoch = 0; epoch < 4; epoch++) {
            DP_AUTO_FREE unsigned char *seen = dp_alloc(cases[c].length, 1);
            for (int64_t i = 0; i < samples; i++) {
                int64_t offset = dp_corpus_train_offset(corpus, epoch * samples + i);
                assert_true(offset >= 0 && offset + sequence < end);
                // Each byte is a target at most once; that many windows leave no room for a gap.
                for (int64_t k = offset + 1; k <= offset + sequence; k++) {
                    assert_int_equal(seen[k]++, 0);
                }
            }
            // At most two windows' worth of bytes stays unseen, at both ends.
            assert_true(end - 1 - samples * sequence < 2 * (int64_t)sequence);
        }
        for (int64_t i = 0; i < dp_corpus_holdout_samples(corpus); i++) {
            int64_t offset = dp_corpus_holdout_offset(corpus, i);
            assert_true(offset >= end && offset + sequence < (int64_t)cases[c].length);
        }
        assert_true((dp_corpus_holdout_samples(corpus) > 0) == (cases[c].holdout > 0));
    }
}

static void tokens_and_targets_are_the_text_one_apart(void **state)
{
    (void)state;
    unsigned char text[1000];
    struct dp_data_spec spec = write_random(sizeof text, 0.2, text);
    AUTO_CORPUS struct dp_corpus *corpus = NULL;
    struct dp_error err = {0};
    assert_ok(dp_corpus_open(&spec, 10, 256, 1, &corpus, &err), &err);
    int32_t tokens[30], targets[30];
    assert_ok(dp_corpus_fill_train(corpus, 55, 3, tokens, targets, &err), &err);
    for (int i = 0; i < 30; i++) {
        int64_t offset = dp_corpus_train_offset(corpus, 55 + i / 10);
        assert_int_equal(tokens[i], text[offset + i % 10]);
        assert_int_equal(targets[i], text[offset + i % 10 + 1]);
    }
    assert_ok(dp_corpus_fill_holdout(corpus, 1, 2, tokens, targets, &err), &err);
    assert_int_equal(tokens[0], text[810]);
    assert_int_equal(targets[19], text[830]);
}

static void the_order_follows_from_the_seed_and_differs_between_seeds_and_epochs(void **state)
{
    (void)state;
    DP_AUTO_FREE unsigned char *text = dp_alloc(20000, 1);
    struct dp_data_spec spec = write_random(20000, 0.1, text);
    AUTO_CORPUS struct dp_corpus *a = NULL;
    AUTO_CORPUS struct dp_corpus *again = NULL;
    AUTO_CORPUS struct dp_corpus *other = NULL;
    struct dp_error err = {0};
    assert_ok(dp_corpus_open(&spec, 32, 256, 7, &a, &err), &err);
    assert_ok(dp_corpus_open(&spec, 32, 256, 7, &again, &err), &err);
    assert_ok(dp_corpus_open(&spec, 32, 256, 8, &other, &err), &err);
    int64_t samples = dp_corpus_train_samples(a);
    int alike = 0, next_epoch_alike = 0, in_file_order = 0;
    for (int64_t i = 0; i < samples; i++) {
        assert_int_equal(dp_corpus_train_offset(a, i), dp_corpus_train_offset(again, i));
        alike += dp_corpus_train_offset(a, i) == dp_corpus_train_offset(other, i);
        next_epoch_alike += dp_corpus_train_offset(a, i) == dp_corpus_train_offset(a, i + samples);
        in_file_order +=
            i > 0 && dp_corpus_train_offset(a, i) == dp_corpus_train_offset(a, i - 1) + 32;
    }
    assert_true(samples > 500);
    assert_true(alike < 20 && next_epoch_alike < 20 && in_file_order < 20);
    assert_true(dp_corpus_hash(a) == dp_corpus_hash(other));
    // Windows do not start at the same places in every epoch: most of the 32 offsets occur in 100.
    bool seen[32] = {false};
    int different = 0;
    for (int64_t epoch = 0; epoch < 100; epoch++) {
        int64_t offset = dp_corpus_train_offset(a, epoch * samples) % 32;
        different += !seen[offset];
        seen[offset] = true;
    }
    assert_true(different > 20);
}

static void one_changed_byte_changes_the_hash(void **state)
{
    (void)state;
    unsigned char text[500];
    struct dp_data_spec spec = write_random(sizeof text, 0, text);
    AUTO_CORPUS struct dp_corpus *a = NULL;
    AUTO_CORPUS struct dp_corpus *b = NULL;
    struct dp_error err = {0};
    assert_ok(dp_corpus_open(&spec, 8, 256, 7, &a, &err), &err);
    text[499] ^= 1;
    spec = write_text(text, sizeof text, 0);
    assert_ok(dp_corpus_open(&spec, 8, 256, 7, &b, &err), &err);
    assert_true(dp_corpus_hash(a) != dp_corpus_hash(b));
}

static void the_unigram_entropy_of_small_texts_is_that_worked_out_by_hand(void **state)
{
    (void)state;
    const struct {
        const char *text;
        double nats;
    } cases[] = {
        {"aaaaaaaa", 0},
        {"abababab", 0.69314718055994531}, // ln 2
        {"aaabaaab", 0.56233514461880829}, // 3/4 ln 4/3 + 1/4 ln 4
        {"abcdefgh", 2.0794415416798359},  // ln 8
        {"aabbccdd", 1.3862943611198906},  // ln 4
        {"aaaabbcd", 1.2130075659799043},  // 7/4 ln 2
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct dp_data_spec spec = write_text(cases[i].text, 8, 0);
        AUTO_CORPUS struct dp_corpus *corpus = NULL;
        struct dp_error err = {0};
        assert_ok(dp_corpus_open(&spec, 4, 256, 1, &corpus, &err), &err);
        assert_true(fabs(dp_corpus_unigram_entropy(corpus) - cases[i].nats) < 1e-14);
    }
}

static void the_licence_text_of_debian_has_its_published_entropy(void **state)
{
    (void)state;
    struct dp_data_spec spec = {.path = "/usr/share/common-licenses/GPL-3", .holdout = 0.1};
    if (access(spec.path, R_OK) != 0) {
        print_message("skipped: no %s here\n", spec.path);
        skip();
    }
    AUTO_CORPUS struct dp_corpus *corpus = NULL;
    struct dp_error err = {0};
    assert_ok(dp_corpus_open(&spec, 64, 256, 1, &corpus, &err), &err);
    assert_true(fabs(dp_corpus_unigram_entropy(corpus) - 3.170) < 0.0005);
}

static void refuse(const struct dp_data_spec *spec, int32_t sequence, dp_status wanted,
                   const char *part)
{
    struct dp_corpus *corpus = NULL;
    struct dp_error err = {0};
    dp_status status = dp_corpus_open(spec, sequence, 256, 1, &corpus, &err);
    assert_refused(status, wanted, &err, part);
    assert_non_null(strstr(err.message, spec->path));
    assert_null(corpus);
}

static void what_is_no_readable_text_is_refused_with_the_reason(void **state)
{
    (void)state;
    struct dp_data_spec spec = {.holdout = 0.1};
    snprintf(spec.path, sizeof spec.path, "%s/absent", directory);
    refuse(&spec, 8, DP_NOT_FOUND, "No such file");
    snprintf(spec.path, sizeof spec.path, "%s", directory);
    refuse(&spec, 8, DP_INVALID, "is a directory");
    snprintf(spec.path, sizeof spec.path, "/dev/null");
    refuse(&spec, 8, DP_INVALID, "not a regular file");
    spec = write_text("", 0, 0.1);
    refuse(&spec, 8, DP_INVALID, "is empty");
    snprintf(spec.path, sizeof spec.path, "%s/fifo", directory);
    assert_int_equal(mkfifo(spec.path, 0600), 0);
    refuse(&spec, 8, DP_INVALID, "not a regular file");
    unlink(spec.path);
    spec = write_text("some text", 9, 0.1);
    if (geteuid() != 0) {
        assert_int_equal(chmod(spec.path, 0), 0);
        refuse(&spec, 8, DP_DENIED, "Permission denied");
        assert_int_equal(chmod(spec.path, 0600), 0);
    }
}

// The number that the refusal names is right: that many bytes do, one less does not.
static void a_text_that_is_too_short_is_told_how_many_bytes_it_needs(void **state)
{
    (void)state;
    const struct {
        int32_t sequence;
        double holdout;
        int64_t needed;
    } cases[] = {{16, 0, 17}, {16, 0.5, 34}, {16, 0.1, 170}, {1, 0.25, 8}, {99, 0.3, 334}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        unsigned char text[400];
        struct dp_data_spec spec =
            write_random((size_t)cases[i].needed - 1, cases[i].holdout, text);
        char part[64];
        snprintf(part, sizeof part, "needs at least %lld", (long long)cases[i].needed);
        refuse(&spec, cases[i].sequence, DP_INVALID, part);
        spec = write_random((size_t)cases[i].needed, cases[i].holdout, text);
        AUTO_CORPUS struct dp_corpus *corpus = NULL;
        struct dp_error err = {0};
        assert_ok(dp_corpus_open(&spec, cases[i].sequence, 256, 1, &corpus, &err), &err);
    }
}

static void a_text_over_the_limit_is_refused_before_it_is_read(void **state)
{
    (void)state;
    struct dp_data_spec spec = write_text("x", 1, 0);
    assert_int_equal(truncate(spec.path, (off_t)DP_CORPUS_BYTES_MAX + 1), 0); // sparse
    refuse(&spec, 8, DP_TOO_LARGE, "the limit is");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_window_is_seen_once_an_epoch_and_the_held_out_part_never),
        cmocka_unit_test(tokens_and_targets_are_the_text_one_apart),
        cmocka_unit_test(the_order_follows_from_the_seed_and_differs_between_seeds_and_epochs),
        cmocka_unit_test(one_changed_byte_changes_the_hash),
        cmocka_unit_test(the_unigram_entropy_of_small_texts_is_that_worked_out_by_hand),
        cmocka_unit_test(the_licence_text_of_debian_has_its_published_entropy),
        cmocka_unit_test(what_is_no_readable_text_is_refused_with_the_reason),
        cmocka_unit_test(a_text_that_is_too_short_is_told_how_many_bytes_it_needs),
        cmocka_unit_test(a_text_over_the_limit_is_refused_before_it_is_read),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
