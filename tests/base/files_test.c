// Whole files and directories.

#include "dp_test.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/buf.h"
#include "dp/cleanup.h"

static int make_directory(void **state)
{
    char *path = dp_strdup("/tmp/dp-files-XXXXXX");
    *state = mkdtemp(path);
    return *state == NULL;
}

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *where)
{
    (void)info;
    (void)kind;
    (void)where;
    return remove(path);
}

static int remove_directory(void **state)
{
    int result = nftw(*state, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    free(*state);
    return result;
}

static void what_is_written_is_read_back(void **state)
{
    struct dp_error err = {0};
    DP_AUTO_FREE char *path = dp_asprintf("%s/file", (char *)*state);
    char bytes[100000];
    for (size_t i = 0; i < sizeof(bytes); i++) {
        bytes[i] = (char)(i * 31);
    }
    assert_ok(dp_write_file(path, bytes, sizeof(bytes), &err), &err);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf buf = {0};
    assert_ok(dp_read_file(path, sizeof(bytes), &buf, &err), &err);
    assert_int_equal(buf.length, sizeof(bytes));
    assert_memory_equal(buf.bytes, bytes, sizeof(bytes));
}

static void an_empty_file_reads_as_an_empty_text(void **state)
{
    struct dp_error err = {0};
    DP_AUTO_FREE char *path = dp_asprintf("%s/file", (char *)*state);
    assert_ok(dp_write_file(path, "", 0, &err), &err);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf buf = {0};
    assert_ok(dp_read_file(path, 10, &buf, &err), &err);
    assert_string_equal(buf.bytes, "");
}

static void a_file_over_the_limit_is_refused(void **state)
{
    struct dp_error err = {0};
    DP_AUTO_FREE char *path = dp_asprintf("%s/file", (char *)*state);
    assert_ok(dp_write_file(path, "12345", 5, &err), &err);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf buf = {0};
    assert_refused(dp_read_file(path, 4, &buf, &err), DP_TOO_LARGE, &err, "5 bytes");
    assert_refused(dp_read_file("/dev/zero", 1000, &buf, &err), DP_TOO_LARGE, &err, "/dev/zero");
    assert_null(buf.bytes);
}

static void a_missing_file_and_a_directory_are_named(void **state)
{
    struct dp_error err = {0};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf buf = {0};
    assert_refused(dp_read_file("/nonexistent/x", 4, &buf, &err), DP_NOT_FOUND, &err,
                   "/nonexistent/x");
    assert_refused(dp_read_file(*state, 4, &buf, &err), DP_INVALID, &err, "directory");
    assert_refused(dp_write_file("/nonexistent/x", "", 0, &err), DP_NOT_FOUND, &err,
                   "/nonexistent/x");
}

static void a_failed_write_leaves_nothing_behind(void **state)
{
    struct dp_error err = {0};
    DP_AUTO_FREE char *path = dp_asprintf("%s/directory", (char *)*state);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_not_equal(dp_write_file(path, "x", 1, &err), DP_OK);
    DIR *directory = opendir(*state);
    const struct dirent *entry;
    int entries = 0;
    while ((entry = readdir(directory)) != NULL) {
        entries += entry->d_name[0] != '.';
    }
    closedir(directory);
    assert_int_equal(entries, 1);
}

static void directories_are_made_with_their_parents(void **state)
{
    struct dp_error err = {0};
    DP_AUTO_FREE char *path = dp_asprintf("%s/a/b/c", (char *)*state);
    assert_ok(dp_make_directories(path, &err), &err);
    assert_ok(dp_make_directories(path, &err), &err);
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0700);
    DP_AUTO_FREE char *file = dp_asprintf("%s/a/file", (char *)*state);
    assert_ok(dp_write_file(file, "", 0, &err), &err);
    assert_refused(dp_make_directories(file, &err), DP_CONFLICT, &err, "not a directory");
}

// The shell's ways: a link leads to its file, a device stays one.
static void what_is_no_regular_file_is_written_through(void **state)
{
    struct dp_error err = {0};
    struct stat info;
    DP_AUTO_FREE char *file = dp_asprintf("%s/file", (char *)*state);
    DP_AUTO_FREE char *link = dp_asprintf("%s/link", (char *)*state);
    DP_AUTO_FREE char *fifo = dp_asprintf("%s/fifo", (char *)*state);
    assert_int_equal(symlink("file", link), 0);
    for (int i = 0; i < 2; i++) { // first the link dangles
        assert_ok(dp_write_file(link, i == 0 ? "one" : "two", 3, &err), &err);
        DP_CLEANUP(dp_buf_deinit) struct dp_buf buf = {0};
        assert_ok(dp_read_file(file, 10, &buf, &err), &err);
        assert_string_equal(buf.bytes, i == 0 ? "one" : "two");
        assert_int_equal(lstat(link, &info), 0);
        assert_true(S_ISLNK(info.st_mode));
        assert_int_equal(chmod(file, 0600), 0);
    }
    assert_int_equal(stat(file, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    DP_AUTO_CLOSE int reader = open(fifo, O_RDONLY | O_NONBLOCK);
    assert_ok(dp_write_file(fifo, "text", 4, &err), &err);
    char text[5] = {0};
    assert_int_equal(read(reader, text, 4), 4);
    assert_string_equal(text, "text");
    assert_int_equal(lstat(fifo, &info), 0);
    assert_true(S_ISFIFO(info.st_mode));
}

static void a_full_device_a_directory_and_no_name_are_refused(void **state)
{
    struct dp_error err = {0};
    struct stat info;
    DP_AUTO_FREE char *link = dp_asprintf("%s/full", (char *)*state);
    assert_int_equal(symlink("/dev/full", link), 0); // in case it is replaced
    assert_refused(dp_write_file(link, "x", 1, &err), DP_IO, &err, "No space");
    assert_non_null(strstr(err.message, link));
    assert_int_equal(stat(link, &info), 0);
    assert_true(S_ISCHR(info.st_mode));
    assert_refused(dp_write_file("/", "x", 1, &err), DP_INVALID, &err, "it is a directory");
    assert_refused(dp_write_file("", "x", 1, &err), DP_INVALID, &err, "empty");
    assert_refused(dp_write_file("/nonexistent/x", "", 0, &err), DP_NOT_FOUND, &err,
                   "cannot create /nonexistent/x: ");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_written_is_read_back, make_directory,
                                        remove_directory),
        cmocka_unit_test_setup_teardown(an_empty_file_reads_as_an_empty_text, make_directory,
                                        remove_directory),
        cmocka_unit_test_setup_teardown(a_file_over_the_limit_is_refused, make_directory,
                                        remove_directory),
        cmocka_unit_test_setup_teardown(a_missing_file_and_a_directory_are_named, make_directory,
                                        remove_directory),
        cmocka_unit_test_setup_teardown(a_failed_write_leaves_nothing_behind, make_directory,
                                        remove_directory),
        cmocka_unit_test_setup_teardown(what_is_no_regular_file_is_written_through, make_directory,
                                        remove_directory),
        cmocka_unit_test_setup_teardown(a_full_device_a_directory_and_no_name_are_refused,
                                        make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(directories_are_made_with_their_parents, make_directory,
                                        remove_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
