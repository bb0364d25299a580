// A rank's output on disk: nothing lost across rotation, never more than the cap.
#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/clock.h"
#include "dp/rank_log.h"
#include "dp_test.h"
#include "harness.h"

struct place {
    char *directory;
    int fd;
};

static struct place place_open(void)
{
    struct place place = {.directory = harness_directory()};
    place.fd = open(place.directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(place.fd >= 0);
    return place;
}

static void place_close(struct place *place)
{
    close(place->fd);
    harness_remove(place->directory);
    free(place->directory);
}

static uint64_t bytes_on_disk(const char *directory)
{
    uint64_t total = 0;
    DIR *listing = opendir(directory);
    assert_non_null(listing);
    for (struct dirent *entry = readdir(listing); entry != NULL; entry = readdir(listing)) {
        struct stat info;
        assert_int_equal(fstatat(dirfd(listing), entry->d_name, &info, 0), 0);
        total += S_ISREG(info.st_mode) ? (uint64_t)info.st_size : 0;
    }
    closedir(listing);
    return total;
}

static void a_reader_that_keeps_up_sees_every_byte_across_rotation(void **state)
{
    (void)state;
    struct place place = place_open();
    struct dp_error err = {0};
    struct dp_rank_log log;
    struct dp_buf written = {0}, read_back = {0};
    dp_rank_log_init(&log, place.fd, 3, 64);
    uint64_t offset = 0;
    for (int i = 0; i < 100; i++) {
        char line[32];
        // Characters of several bytes fall on every border.
        int length = snprintf(line, sizeof line, "line %d \u017c\u00f3\u0142w\n", i);
        dp_rank_log_write(&log, line, (size_t)length, i * DP_NS_PER_S);
        dp_buf_append(&written, line, (size_t)length);
        size_t before;
        do {
            uint64_t start;
            before = read_back.length;
            assert_ok(dp_rank_log_read(place.directory, 3, offset, 5, &start, &read_back, &err),
                      &err);
            assert_int_equal(start, offset);
            offset += read_back.length - before;
        } while (read_back.length > before);
    }
    assert_string_equal(read_back.bytes, written.bytes);
    assert_true(bytes_on_disk(place.directory) <= 64);
    dp_rank_log_deinit(&log);
    dp_buf_deinit(&written);
    dp_buf_deinit(&read_back);
    place_close(&place);
}

static void a_late_reader_starts_at_the_oldest_byte_kept(void **state)
{
    (void)state;
    struct place place = place_open();
    struct dp_error err = {0};
    struct dp_rank_log log;
    dp_rank_log_init(&log, place.fd, 0, 200);
    for (int i = 0; i < 50; i++) {
        dp_rank_log_write(&log, "0123456789", 10, i * DP_NS_PER_S);
    }
    struct dp_buf text = {0};
    uint64_t start;
    assert_ok(dp_rank_log_read(place.directory, 0, 0, 10, &start, &text, &err), &err);
    // 500 bytes in files of 100: the newest two are kept, and three are gone.
    assert_int_equal(start, 300);
    assert_string_equal(text.bytes, "0123456789");
    assert_int_equal(log.dropped, 300);
    dp_rank_log_deinit(&log);
    dp_buf_deinit(&text);
    place_close(&place);
}

static void a_flood_loses_the_excess_and_says_how_much(void **state)
{
    (void)state;
    struct place place = place_open();
    struct dp_error err = {0};
    struct dp_rank_log log;
    static char block[1 << 20];
    memset(block, 'x', sizeof block);
    dp_rank_log_init(&log, place.fd, 1, 1 << 30);
    // The burst is 8 MiB; the clock stands still.
    for (int i = 0; i < 20; i++) {
        dp_rank_log_write(&log, block, sizeof block, 1);
    }
    assert_int_equal(log.dropped, 12 << 20);
    dp_rank_log_write(&log, "after\n", 6, 10 * DP_NS_PER_S);
    struct dp_buf text = {0};
    uint64_t start;
    assert_ok(dp_rank_log_read(place.directory, 1, 8 << 20, 4096, &start, &text, &err), &err);
    assert_string_equal(text.bytes, "[dp-keeper: 12582912 bytes of output dropped]\nafter\n");
    dp_rank_log_deinit(&log);
    dp_buf_deinit(&text);
    place_close(&place);
}

static void a_directory_that_is_gone_is_an_error_and_a_silent_rank_is_not(void **state)
{
    (void)state;
    struct place place = place_open();
    struct dp_error err = {0};
    struct dp_buf text = {0};
    uint64_t start;
    assert_ok(dp_rank_log_read(place.directory, 5, 0, 100, &start, &text, &err), &err);
    assert_int_equal(text.length, 0);
    assert_refused(dp_rank_log_read("/nonexistent", 5, 0, 100, &start, &text, &err), DP_NOT_FOUND,
                   &err, "/nonexistent");
    dp_buf_deinit(&text);
    place_close(&place);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_reader_that_keeps_up_sees_every_byte_across_rotation),
        cmocka_unit_test(a_late_reader_starts_at_the_oldest_byte_kept),
        cmocka_unit_test(a_flood_loses_the_excess_and_says_how_much),
        cmocka_unit_test(a_directory_that_is_gone_is_an_error_and_a_silent_rank_is_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
