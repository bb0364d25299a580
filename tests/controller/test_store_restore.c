// What takes the place of a database, and what does not.
#include <fcntl.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/buf.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "store_internal.h"
#include "store_support.h"

// A database with some jobs, closed; its content as text.
static char *fill(const char *directory, uint64_t jobs)
{
    struct dp_store *store = store_open(directory);
    for (uint64_t number = 1; number <= jobs; number++) {
        assert_int_equal(store_write_job(store, number, DP_STATE_QUEUED, NULL), DP_OK);
    }
    dp_store_close(store);
    DP_AUTO_FREE char *path = dp_asprintf("%s/%s", directory, DP_STORE_FILE);
    return store_dump(path);
}

// As a controller leaves it that is killed: the last rows are in the log alone.
static char *leave_killed(const char *directory, const char *copy)
{
    static const char *const ends[] = {"", "-wal"};
    DP_AUTO_FREE char *killed = dp_asprintf("%s.killed", directory);
    assert_int_equal(mkdir(killed, 0700), 0);
    struct dp_store *store = store_open(directory);
    assert_int_equal(store_write_job(store, 1, DP_STATE_QUEUED, NULL), DP_OK);
    store_back_up(store, copy);
    assert_int_equal(store_write_job(store, 2, DP_STATE_QUEUED, NULL), DP_OK);
    for (size_t i = 0; i < DP_ARRAY_LENGTH(ends); i++) {
        DP_AUTO_FREE char *from = dp_asprintf("%s/%s%s", directory, DP_STORE_FILE, ends[i]);
        DP_AUTO_FREE char *to = dp_asprintf("%s/%s%s", killed, DP_STORE_FILE, ends[i]);
        DP_CLEANUP(dp_buf_deinit) struct dp_buf bytes = {0};
        struct dp_error err = {0};
        assert_ok(dp_read_file(from, 1 << 24, &bytes, &err), &err);
        assert_true(bytes.length > 0);
        assert_ok(dp_write_file(to, bytes.bytes, bytes.length, &err), &err);
    }
    dp_store_close(store);
    return dp_steal(killed);
}

// At no moment of a restore the database is there without what its log holds.
static void the_log_of_what_was_there_is_moved_into_it(void **state)
{
    const char *directory = *state;
    DP_AUTO_FREE char *copy = dp_asprintf("%s/copy.db", directory);
    DP_AUTO_FREE char *killed = leave_killed(directory, copy);
    DP_AUTO_FREE char *whole = dp_asprintf("%s/%s", directory, DP_STORE_FILE);
    DP_AUTO_FREE char *later = store_dump(whole);
    char kept[DP_PATH_MAX];
    struct dp_error err = {0};
    assert_ok(dp_store_restore(killed, copy, kept, sizeof(kept), &err), &err);
    DP_AUTO_FREE char *log = dp_asprintf("%s-wal", kept);
    assert_int_not_equal(access(log, F_OK), 0);
    DP_AUTO_FREE char *old = store_dump(kept);
    assert_string_equal(old, later);
    void *again = dp_strdup(killed);
    store_teardown(&again);
}

static void a_log_without_its_database_is_not_read_into_what_is_restored(void **state)
{
    const char *directory = *state;
    DP_AUTO_FREE char *copy = dp_asprintf("%s/copy.db", directory);
    DP_AUTO_FREE char *killed = leave_killed(directory, copy);
    DP_AUTO_FREE char *path = dp_asprintf("%s/%s", killed, DP_STORE_FILE);
    DP_AUTO_FREE char *wanted = store_dump(copy);
    assert_int_equal(unlink(path), 0);
    char kept[DP_PATH_MAX];
    struct dp_error err = {0};
    assert_ok(dp_store_restore(killed, copy, kept, sizeof(kept), &err), &err);
    assert_non_null(strstr(kept, "-wal"));
    assert_int_equal(access(kept, F_OK), 0);
    DP_AUTO_FREE char *restored = store_dump(path);
    assert_string_equal(restored, wanted);
    void *again = dp_strdup(killed);
    store_teardown(&again);
}

static void nothing_is_restored_while_a_controller_has_the_directory(void **state)
{
    const char *directory = *state;
    DP_AUTO_FREE char *before = fill(directory, 2);
    DP_AUTO_FREE char *copy = dp_asprintf("%s/copy.db", directory);
    DP_AUTO_FREE char *path = dp_asprintf("%s/%s", directory, DP_STORE_FILE);
    store_back_up_closed(directory, copy);
    struct dp_store *store = store_open(directory);
    char kept[DP_PATH_MAX];
    struct dp_error err = {0};
    assert_refused(dp_store_restore(directory, copy, kept, sizeof(kept), &err), DP_CONFLICT, &err,
                   "in use by process");
    dp_store_close(store);
    DP_AUTO_FREE char *after = store_dump(path);
    assert_string_equal(after, before);
}

static void a_damaged_foreign_or_newer_file_is_not_restored(void **state)
{
    const char *directory = *state;
    DP_AUTO_FREE char *before = fill(directory, 20);
    DP_AUTO_FREE char *copy = dp_asprintf("%s/copy.db", directory);
    DP_AUTO_FREE char *path = dp_asprintf("%s/%s", directory, DP_STORE_FILE);
    char kept[DP_PATH_MAX];
    struct dp_error err = {0};
    assert_refused(dp_store_restore(directory, copy, kept, sizeof(kept), &err), DP_NOT_FOUND, &err,
                   "cannot read");
    assert_int_equal(dp_write_file(copy, "no database", 11, &err), DP_OK);
    assert_refused(dp_store_restore(directory, copy, kept, sizeof(kept), &err), DP_INVALID, &err,
                   "take another backup");
    assert_int_equal(unlink(copy), 0);
    store_back_up_closed(directory, copy);
    int fd = open(copy, O_WRONLY | O_CLOEXEC);
    struct stat info;
    assert_int_equal(fstat(fd, &info), 0);
    static const char junk[600] = {0x5a};
    for (off_t at = 4096 * 3; at < info.st_size; at += 4096) {
        assert_int_equal(pwrite(fd, junk, sizeof(junk), at), sizeof(junk));
    }
    close(fd);
    assert_int_equal(dp_store_restore(directory, copy, kept, sizeof(kept), &err), DP_INVALID);
    assert_int_equal(unlink(copy), 0);
    store_back_up_closed(directory, copy);
    sqlite3 *db = NULL;
    assert_int_equal(sqlite3_open(copy, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "PRAGMA user_version = 9999", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    assert_refused(dp_store_restore(directory, copy, kept, sizeof(kept), &err), DP_CONFLICT, &err,
                   "schema 9999");
    DP_AUTO_FREE char *after = store_dump(path);
    assert_string_equal(after, before);
}

// A controller would not start with it.
static void a_copy_without_the_tables_of_its_schema_is_not_restored(void **state)
{
    static const char *const damages[] = {"PRAGMA user_version = 0", "PRAGMA user_version = -3",
                                          "PRAGMA user_version = 3", "DROP TABLE attempts",
                                          "ALTER TABLE jobs DROP COLUMN message"};
    const char *directory = *state;
    DP_AUTO_FREE char *before = fill(directory, 3);
    DP_AUTO_FREE char *copy = dp_asprintf("%s/copy.db", directory);
    DP_AUTO_FREE char *path = dp_asprintf("%s/%s", directory, DP_STORE_FILE);
    for (size_t i = 0; i < DP_ARRAY_LENGTH(damages); i++) {
        store_back_up_closed(directory, copy);
        store_sql_in(copy, damages[i]);
        char kept[DP_PATH_MAX];
        struct dp_error err = {0};
        assert_refused(dp_store_restore(directory, copy, kept, sizeof(kept), &err), DP_INVALID,
                       &err, "nothing was changed");
        assert_int_equal(unlink(copy), 0);
    }
    DP_AUTO_FREE char *after = store_dump(path);
    assert_string_equal(after, before);
}

#define STORE_TEST(name) cmocka_unit_test_setup_teardown(name, store_setup, store_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        STORE_TEST(the_log_of_what_was_there_is_moved_into_it),
        STORE_TEST(a_log_without_its_database_is_not_read_into_what_is_restored),
        STORE_TEST(nothing_is_restored_while_a_controller_has_the_directory),
        STORE_TEST(a_damaged_foreign_or_newer_file_is_not_restored),
        STORE_TEST(a_copy_without_the_tables_of_its_schema_is_not_restored),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
