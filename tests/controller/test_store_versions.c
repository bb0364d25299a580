// Databases of two real schemas, several processes at once, and a log that stays small.
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/buf.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "store_internal.h"
#include "store_support.h"

#define OLD_SCHEMA 8 // before there were attempts, decisions and an audit

static sqlite3 *open_raw(const char *path)
{
    sqlite3 *db = NULL;
    struct dp_error err = {0};
    assert_ok(dp_store_connect(path, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, &db, &err), &err);
    return db;
}

static int64_t number_of(sqlite3 *db, const char *sql)
{
    int64_t value = 0;
    struct dp_error err = {0};
    assert_ok(dp_store_integer(db, sql, &value, &err), &err);
    return value;
}

// As the version of that schema left it, with a job of two ranks in it.
static void make_old(const char *path)
{
    sqlite3 *db = open_raw(path);
    struct dp_error err = {0};
    DP_AUTO_FREE char *mark = dp_asprintf("PRAGMA application_id = %d", DP_STORE_APPLICATION_ID);
    assert_ok(dp_store_execute(db, mark, &err), &err);
    assert_ok(dp_store_execute(db, "PRAGMA journal_mode = WAL", &err), &err);
    assert_ok(dp_store_migrate(db, path, dp_migrations, OLD_SCHEMA, &err), &err);
    assert_ok(dp_store_execute(
                  db,
                  "INSERT INTO jobs (number, token, id, name, request_id, state, outcome, reason, "
                  "message, cause_weight, attempt, epoch, job_toml, plan, ranks_wanted, "
                  "ranks_fixed, needs_profile, device, submitted_ns, started_ns, ended_ns, "
                  "first_step_ns, steps_total, tokens_per_step, checkpoint, unigram_entropy, "
                  "corpus_bytes, holdout_known) VALUES (7, 1, 'job-7', 'old', 'r7', 8, 0, '', "
                  "'all ranks finished', 0, 1, 1, x'', x'', 2, 1, 0, 'sim', 10, 20, 30, 25, 5, 4, "
                  "'', 0, 0, 0);"
                  "INSERT INTO steps VALUES (7, 5, 2.5, 1, 100, 4, 0.1, 1.0, 28)",
                  &err),
              &err);
    assert_int_equal(number_of(db, "PRAGMA user_version"), OLD_SCHEMA);
    sqlite3_close(db);
}

static void an_older_schema_is_brought_up_to_date_and_a_copy_of_it_kept(void **state)
{
    const char *directory = *state;
    DP_AUTO_FREE char *path = dp_asprintf("%s/%s", directory, DP_STORE_FILE);
    make_old(path);
    struct dp_store *store = store_open(directory);
    struct dp_job_record job = {0};
    struct dp_error err = {0};
    assert_ok(dp_store_find_job(store, "job-7", &job, &err), &err);
    assert_string_equal(job.name, "old");
    assert_int_equal(job.state, DP_STATE_COMPLETED);
    assert_int_equal(job.step, 5);
    assert_int_equal(job.preemptible, true); // what jobs of then were
    dp_job_record_deinit(&job);
    dp_store_close(store);
    // The copy is what the old version had, and opens with its schema.
    DP_AUTO_FREE char *copy = dp_asprintf("%s.backup-v%d", path, OLD_SCHEMA);
    sqlite3 *db = open_raw(copy);
    assert_int_equal(number_of(db, "PRAGMA user_version"), OLD_SCHEMA);
    assert_int_equal(number_of(db, "SELECT number FROM jobs WHERE name = 'old'"), 7);
    assert_ok(dp_store_migrate(db, copy, dp_migrations, OLD_SCHEMA, &err), &err);
    sqlite3_close(db);
    // And can be put back.
    char kept[DP_PATH_MAX];
    assert_ok(dp_store_restore(directory, copy, kept, sizeof(kept), &err), &err);
    dp_store_close(store_open(directory));
}

static void a_newer_schema_is_refused_by_the_older_version_and_left_as_it_is(void **state)
{
    const char *directory = *state;
    DP_AUTO_FREE char *path = dp_asprintf("%s/%s", directory, DP_STORE_FILE);
    dp_store_close(store_open(directory));
    sqlite3 *db = open_raw(path);
    int64_t rows = number_of(db, "SELECT count(*) FROM sqlite_schema");
    struct dp_error err = {0};
    assert_refused(dp_store_migrate(db, path, dp_migrations, OLD_SCHEMA, &err), DP_CONFLICT, &err,
                   "newer version");
    assert_int_equal(number_of(db, "PRAGMA user_version"), (int64_t)dp_migrations_count);
    assert_int_equal(number_of(db, "SELECT count(*) FROM sqlite_schema"), rows);
    sqlite3_close(db);
}

static void processes_that_bring_a_schema_up_to_date_at_once_do_it_once(void **state)
{
    enum { PROCESSES = 6 };
    const char *directory = *state;
    DP_AUTO_FREE char *path = dp_asprintf("%s/%s", directory, DP_STORE_FILE);
    make_old(path);
    int gate[2];
    assert_int_equal(pipe(gate), 0);
    pid_t pids[PROCESSES];
    for (int i = 0; i < PROCESSES; i++) {
        pids[i] = fork();
        assert_true(pids[i] >= 0);
        if (pids[i] == 0) {
            char byte;
            struct dp_error err = {0};
            close(gate[1]);
            DP_CHECK(read(gate[0], &byte, 1) == 0);
            sqlite3 *db = open_raw(path);
            DP_AUTO_FREE char *own = dp_asprintf("%s.%d", path, (int)getpid());
            _exit(dp_store_migrate(db, own, dp_migrations, dp_migrations_count, &err) == DP_OK ? 0
                                                                                               : 1);
        }
    }
    close(gate[0]);
    close(gate[1]); // they all go
    for (int i = 0; i < PROCESSES; i++) {
        int status = 0;
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
    dp_store_close(store_open(directory));
}

static void of_controllers_that_start_at_once_on_an_old_database_one_has_it(void **state)
{
    enum { PROCESSES = 6 };
    const char *directory = *state;
    DP_AUTO_FREE char *path = dp_asprintf("%s/%s", directory, DP_STORE_FILE);
    make_old(path);
    int gate[2], hold[2];
    assert_int_equal(pipe(gate), 0);
    assert_int_equal(pipe(hold), 0);
    pid_t pids[PROCESSES];
    for (int i = 0; i < PROCESSES; i++) {
        pids[i] = fork();
        assert_true(pids[i] >= 0);
        if (pids[i] == 0) {
            char byte;
            struct dp_store_options options = {.directory = directory};
            struct dp_store *store = NULL;
            close(gate[1]);
            close(hold[1]);
            DP_CHECK(read(gate[0], &byte, 1) == 0);
            dp_status status = dp_store_open(&options, &store, NULL);
            DP_CHECK(read(hold[0], &byte, 1) == 0); // what it has it keeps meanwhile
            _exit(status == DP_OK ? 0 : status == DP_CONFLICT ? 1 : 2);
        }
    }
    close(gate[0]);
    close(hold[0]);
    close(gate[1]);
    int had = 0;
    // Those that were refused wait, too; when nobody else can have it any more, all may end.
    DP_CLEANUP(dp_buf_deinit) struct dp_buf lock = {0};
    close(hold[1]);
    for (int i = 0; i < PROCESSES; i++) {
        int status = 0;
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) <= 1);
        had += WEXITSTATUS(status) == 0;
    }
    assert_true(had >= 1);
    dp_store_close(store_open(directory));
}

static void four_writers_of_one_database_never_find_it_locked(void **state)
{
    enum { WRITERS = 4, EACH = 100 };
    const char *directory = *state;
    DP_AUTO_FREE char *path = dp_asprintf("%s/%s", directory, DP_STORE_FILE);
    dp_store_close(store_open(directory));
    pid_t pids[WRITERS];
    for (int i = 0; i < WRITERS; i++) {
        pids[i] = fork();
        assert_true(pids[i] >= 0);
        if (pids[i] == 0) {
            sqlite3 *db = open_raw(path);
            int failed = 0;
            for (int n = 0; n < EACH; n++) {
                failed += dp_store_execute(db,
                                           "BEGIN IMMEDIATE; INSERT INTO events (time_ns, job, "
                                           "node, kind, message) VALUES (1, '', '', '', ''); "
                                           "COMMIT",
                                           NULL) != DP_OK;
            }
            _exit(failed == 0 ? 0 : 1);
        }
    }
    for (int i = 0; i < WRITERS; i++) {
        int status = 0;
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    sqlite3 *db = open_raw(path);
    assert_int_equal(number_of(db, "SELECT count(*) FROM events"), WRITERS * EACH);
    sqlite3_close(db);
}

// A reader that stays in the middle of its rows keeps the log from being taken over; here every
// read ends before the call does.
static void the_log_stays_small_while_jobs_are_written_and_read(void **state)
{
    enum { ROUNDS = 60, EACH = 50, BYTES = 4000, LOG_MAX = 12 << 20 };
    const char *directory = *state;
    DP_AUTO_FREE char *log = dp_asprintf("%s/%s-wal", directory, DP_STORE_FILE);
    struct dp_store *store = store_open(directory);
    static char plan[BYTES] = {1};
    off_t most = 0, written = 0;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        for (uint64_t i = 1; i <= EACH; i++) {
            struct dp_job_record job = store_job(i, DP_STATE_QUEUED);
            plan[0] = (char)round;
            job.plan = (struct dp_buf){.bytes = plan, .length = sizeof(plan)};
            struct dp_record record = {DP_RECORD_JOB, &job};
            assert_int_equal(store_write(store, &record, 1, NULL), DP_OK);
            written += BYTES;
        }
        struct dp_job_record *jobs = NULL;
        size_t count = 0;
        struct dp_error err = {0};
        assert_ok(dp_store_load_jobs(store, DP_STORE_JOBS_ALL, "", true, 0, &jobs, &count, &err),
                  &err);
        for (size_t i = 0; i < count; i++) {
            dp_job_record_deinit(&jobs[i]);
        }
        free(jobs);
        struct stat info;
        assert_int_equal(stat(log, &info), 0);
        most = info.st_size > most ? info.st_size : most;
    }
    assert_true(written < LOG_MAX ? true : most < LOG_MAX);
    assert_true(most < LOG_MAX);
    dp_store_close(store);
}

#define STORE_TEST(name) cmocka_unit_test_setup_teardown(name, store_setup, store_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        STORE_TEST(an_older_schema_is_brought_up_to_date_and_a_copy_of_it_kept),
        STORE_TEST(a_newer_schema_is_refused_by_the_older_version_and_left_as_it_is),
        STORE_TEST(processes_that_bring_a_schema_up_to_date_at_once_do_it_once),
        STORE_TEST(of_controllers_that_start_at_once_on_an_old_database_one_has_it),
        STORE_TEST(four_writers_of_one_database_never_find_it_locked),
        STORE_TEST(the_log_stays_small_while_jobs_are_written_and_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
