// Kills, damaged files, and databases of other versions.
#include <signal.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/buf.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/rand.h"
#include "store_internal.h"
#include "store_support.h"

#define KILLS 12

// Stores jobs 1, 2, 3, ... and writes each number that was reported stored to the pipe.
static void write_until_killed(const char *directory, int fd)
{
    struct dp_store_options options = {.directory = directory};
    struct dp_store *store = NULL;
    if (dp_store_open(&options, &store, NULL) != DP_OK) {
        _exit(3);
    }
    uint64_t *ended = NULL, next = 0;
    size_t count = 0;
    dp_store_ended_jobs(store, &ended, &count, &next, NULL);
    for (;;) {
        // Several at once: a group that is cut must not be half there.
        for (uint64_t i = 1; i <= 3; i++) {
            struct dp_job_record job = store_job(next + i, DP_STATE_QUEUED);
            struct dp_rank_record rank = {.job = next + i};
            struct dp_record records[] = {{DP_RECORD_JOB, &job}, {DP_RECORD_RANK, &rank}};
            dp_store_submit(store, next + i, records, 2);
        }
        struct store_result results[3];
        store_wait(store, results, 3);
        for (size_t i = 0; i < 3; i++) {
            if (results[i].error.status != DP_OK ||
                write(fd, &results[i].token, sizeof(results[i].token)) < 0) {
                _exit(4);
            }
        }
        next += 3;
    }
}

static uint64_t run_and_kill(const char *directory, uint64_t wanted)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        close(ends[0]);
        write_until_killed(directory, ends[1]);
    }
    close(ends[1]);
    uint64_t number = 0, last = 0;
    while (wanted-- > 0 && read(ends[0], &number, sizeof(number)) == sizeof(number)) {
        last = number;
    }
    assert_int_equal(kill(pid, SIGKILL), 0);
    while (read(ends[0], &number, sizeof(number)) == sizeof(number)) {
        last = number;
    }
    close(ends[0]);
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    return last;
}

static void kill_9_loses_nothing_that_was_reported_stored(void **state)
{
    const char *directory = *state;
    struct dp_rand rand;
    dp_rand_init(&rand, 1);
    for (int i = 0; i < KILLS; i++) {
        uint64_t last = run_and_kill(directory, 1 + dp_rand_below(&rand, 20));
        struct dp_store *store = store_open(directory);
        struct dp_job_record *jobs = NULL;
        size_t count = 0;
        struct dp_error err = {0};
        assert_ok(dp_store_load_jobs(store, DP_STORE_JOBS_ALL, "", true, 0, &jobs, &count, &err),
                  &err);
        assert_true(count >= last);
        for (size_t k = 0; k < count; k++) {
            struct dp_rank_record *ranks = NULL;
            size_t ranks_count = 0;
            assert_int_equal(jobs[k].number, count - k); // no gap
            assert_ok(dp_store_load_ranks(store, jobs[k].number, &ranks, &ranks_count, &err), &err);
            assert_int_equal(ranks_count, 1); // and no half
            free(ranks);
            dp_job_record_deinit(&jobs[k]);
        }
        free(jobs);
        dp_store_close(store);
    }
}

static void read_whole(const char *directory, struct dp_buf *ret_bytes)
{
    DP_AUTO_FREE char *path = dp_asprintf("%s/%s", directory, DP_STORE_FILE);
    struct dp_error err = {0};
    dp_buf_deinit(ret_bytes);
    assert_ok(dp_read_file(path, 64u << 20, ret_bytes, &err), &err);
}

static void write_whole(const char *directory, const struct dp_buf *bytes, size_t length)
{
    DP_AUTO_FREE char *path = dp_asprintf("%s/%s", directory, DP_STORE_FILE);
    struct dp_error err = {0};
    assert_ok(dp_write_file(path, bytes->bytes, length, &err), &err);
}

static dp_status try_open(const char *directory, struct dp_error *err)
{
    struct dp_store_options options = {.directory = directory};
    struct dp_store *store = NULL;
    dp_status status = dp_store_open(&options, &store, err);
    dp_store_close(store);
    return status;
}

static void fill(const char *directory)
{
    struct dp_store *store = store_open(directory);
    for (uint64_t i = 1; i <= 40; i++) {
        struct dp_job_record job = store_job(i, DP_STATE_QUEUED);
        dp_buf_extend(&job.job_toml, 3000);
        memset(job.job_toml.bytes, 'x', 3000);
        struct dp_record record = {DP_RECORD_JOB, &job};
        assert_int_equal(store_write(store, &record, 1, NULL), DP_OK);
        dp_job_record_deinit(&job);
    }
    dp_store_close(store);
}

static void a_truncated_database_is_refused_and_left_as_it_is(void **state)
{
    const char *directory = *state;
    fill(directory);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf whole = {0}, after = {0};
    read_whole(directory, &whole);
    assert_true(whole.length > 100000);
    static const size_t per_mille[] = {0, 1, 17, 250, 500, 777, 999};
    for (size_t i = 0; i < sizeof(per_mille) / sizeof(per_mille[0]); i++) {
        size_t length = whole.length * per_mille[i] / 1000;
        write_whole(directory, &whole, length);
        struct dp_error err = {0};
        assert_refused(try_open(directory, &err), DP_INVALID, &err, "controller.db is damaged");
        assert_non_null(strstr(err.message, "nothing was changed"));
        assert_non_null(strstr(err.message, "Put a good copy in its place"));
        read_whole(directory, &after);
        assert_int_equal(after.length, length);
        assert_memory_equal(after.bytes, whole.bytes, length);
    }
    write_whole(directory, &whole, whole.length);
    struct dp_error err = {0};
    assert_ok(try_open(directory, &err), &err);
}

static void a_page_of_rubbish_is_found_before_anything_is_written(void **state)
{
    const char *directory = *state;
    fill(directory);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf whole = {0};
    read_whole(directory, &whole);
    memset(whole.bytes + 4096, 0xa5, 4096);
    write_whole(directory, &whole, whole.length);
    struct dp_error err = {0};
    assert_refused(try_open(directory, &err), DP_INVALID, &err, "is damaged");
}

static void a_file_of_somebody_else_is_not_taken(void **state)
{
    const char *directory = *state;
    DP_AUTO_FREE char *path = dp_asprintf("%s/%s", directory, DP_STORE_FILE);
    sqlite3 *db = NULL;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "CREATE TABLE jobs (x)", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    struct dp_error err = {0};
    assert_refused(try_open(directory, &err), DP_INVALID, &err, "not a database of dp-controller");
    static const struct dp_buf text = {(char *)"just some text that is no database at all\n", 42,
                                       0};
    write_whole(directory, &text, text.length);
    assert_refused(try_open(directory, &err), DP_INVALID, &err, "controller.db is damaged");
}

static void a_newer_schema_is_refused_with_both_versions(void **state)
{
    fill(*state);
    store_sql(*state, "PRAGMA user_version = 99");
    struct dp_error err = {0};
    assert_refused(try_open(*state, &err), DP_CONFLICT, &err, "schema 99");
    assert_non_null(strstr(err.message, "written by a newer version"));
    assert_int_equal(dp_status_exit_code(DP_CONFLICT), 6);
}

static void a_missing_database_beside_its_log_is_not_replaced_by_an_empty_one(void **state)
{
    const char *directory = *state;
    DP_AUTO_FREE char *wal = dp_asprintf("%s/%s-wal", directory, DP_STORE_FILE);
    struct dp_error err = {0};
    assert_ok(dp_write_file(wal, "x", 1, &err), &err);
    assert_refused(try_open(directory, &err), DP_INVALID, &err, "is missing but its");
}

static sqlite3 *open_plain(const char *directory, const char *name)
{
    DP_AUTO_FREE char *path = dp_asprintf("%s/%s", directory, name);
    sqlite3 *db = NULL;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    return db;
}

static void migrations_run_in_order_after_a_copy_was_made(void **state)
{
    const char *directory = *state;
    static const struct dp_migration steps[] = {
        {"CREATE TABLE t (a); INSERT INTO t VALUES (1);"},
        {"ALTER TABLE t ADD COLUMN b DEFAULT 5;"},
        {"UPDATE t SET b = b + a;"},
    };
    DP_AUTO_FREE char *path = dp_asprintf("%s/x.db", directory);
    sqlite3 *db = open_plain(directory, "x.db");
    struct dp_error err = {0};
    int64_t value = 0;
    assert_ok(dp_store_migrate(db, path, steps, 1, &err), &err);
    // Whatever has the copy's name gives way.
    DP_AUTO_FREE char *taken = dp_asprintf("%s.backup-v1", path);
    assert_ok(dp_write_file(taken, "no database at all", 18, &err), &err);
    assert_ok(dp_store_migrate(db, path, steps, 3, &err), &err);
    assert_ok(dp_store_integer(db, "SELECT b FROM t", &value, &err), &err);
    assert_int_equal(value, 6);
    assert_ok(dp_store_integer(db, "PRAGMA user_version", &value, &err), &err);
    assert_int_equal(value, 3);
    assert_ok(dp_store_migrate(db, path, steps, 3, &err), &err); // nothing left to do
    sqlite3_close(db);
    sqlite3 *copy = open_plain(directory, "x.db.backup-v1");
    assert_ok(dp_store_integer(copy, "PRAGMA user_version", &value, &err), &err);
    assert_int_equal(value, 1);
    assert_ok(dp_store_integer(copy, "SELECT a FROM t", &value, &err), &err);
    sqlite3_close(copy);
}

static void a_migration_that_fails_changes_nothing(void **state)
{
    const char *directory = *state;
    static const struct dp_migration steps[] = {
        {"CREATE TABLE t (a);"},
        {"CREATE TABLE u (b); INSERT INTO nowhere VALUES (1);"},
    };
    DP_AUTO_FREE char *path = dp_asprintf("%s/x.db", directory);
    sqlite3 *db = open_plain(directory, "x.db");
    struct dp_error err = {0};
    int64_t value = 0;
    assert_refused(dp_store_migrate(db, path, steps, 2, &err), DP_IO, &err,
                   "bringing the database to schema 2");
    assert_ok(dp_store_integer(db, "PRAGMA user_version", &value, &err), &err);
    assert_int_equal(value, 1);
    assert_ok(
        dp_store_integer(db, "SELECT count(*) FROM sqlite_schema WHERE name = 'u'", &value, &err),
        &err);
    assert_int_equal(value, 0);
    sqlite3_close(db);
}

static sqlite3 *begin(const char *directory)
{
    sqlite3 *db = open_plain(directory, DP_STORE_FILE);
    sqlite3_busy_timeout(db, 5000);
    assert_int_equal(sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    return db;
}

static void end(sqlite3 *db)
{
    assert_int_equal(sqlite3_exec(db, "COMMIT", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
}

// The first of three fails, until the third is there: it must not overwrite the second.
static void what_failed_is_never_written_over_what_came_after_it(void **state)
{
    const char *directory = *state;
    struct dp_store *store = store_open(directory);
    assert_int_equal(store_write_job(store, 1, DP_STATE_RUNNING, NULL), DP_OK);
    // abs() of the smallest integer is an error that is no constraint's.
    store_sql(directory, "CREATE TRIGGER fails BEFORE UPDATE ON jobs WHEN NEW.message = 'old' AND "
                         "NOT EXISTS (SELECT 1 FROM steps) BEGIN "
                         "SELECT abs(-9223372036854775807 - 1); END");
    struct dp_job_record older = store_job(1, DP_STATE_RUNNING), newer = older;
    DP_COPY_TEXT(older.message, "old");
    DP_COPY_TEXT(newer.message, "new");
    struct dp_step_record step = {.job = 1, .step = 1};
    struct dp_record records[] = {
        {DP_RECORD_JOB, &older}, {DP_RECORD_JOB, &newer}, {DP_RECORD_STEP, &step}};
    // The writer waits for the lock with something else, so that the three make one group.
    sqlite3 *lock = begin(directory);
    struct dp_node_record node = {.name = "a"};
    struct dp_record other = {DP_RECORD_NODE, &node};
    dp_store_submit(store, 9, &other, 1);
    for (uint64_t i = 0; i < 3; i++) {
        dp_store_submit(store, 10 + i, &records[i], 1);
    }
    end(lock);
    struct store_result results[4];
    store_wait(store, results, 4);
    assert_int_equal(results[1].token, 10);
    assert_int_equal(results[1].error.status, DP_IO);
    assert_int_equal(results[2].error.status, DP_OK);
    struct dp_job_record job = {0};
    struct dp_error err = {0};
    assert_ok(dp_store_find_job(store, "job-1", &job, &err), &err);
    assert_string_equal(job.message, "new");
    dp_job_record_deinit(&job);
    dp_store_close(store);
}

static void steps_that_found_no_room_are_written_when_there_is_some(void **state)
{
    const char *directory = *state;
    struct dp_store *store = store_open(directory);
    assert_int_equal(store_write_job(store, 1, DP_STATE_RUNNING, NULL), DP_OK);
    store_sql(directory, "CREATE TRIGGER fails BEFORE INSERT ON steps BEGIN "
                         "SELECT abs(-9223372036854775807 - 1); END");
    for (uint64_t number = 1; number <= 3; number++) {
        struct dp_step_record step = {.job = 1, .step = number};
        struct dp_job_record job = store_job(1, DP_STATE_RUNNING);
        struct dp_record records[] = {{DP_RECORD_JOB, &job}, {DP_RECORD_STEP, &step}};
        struct dp_error err = {0};
        assert_refused(store_write(store, records, 2, &err), DP_IO, &err, "steps");
    }
    store_sql(directory, "DROP TRIGGER fails");
    struct dp_step_record *steps = NULL;
    size_t count = 0;
    struct dp_error err = {0};
    // Writing something shows that there is room; closing writes what is left, too.
    assert_int_equal(store_write_job(store, 1, DP_STATE_RUNNING, NULL), DP_OK);
    dp_store_close(store);
    store = store_open(directory);
    assert_ok(dp_store_load_steps(store, 1, 0, 1, 0, &steps, &count, &err), &err);
    assert_int_equal(count, 3);
    assert_int_equal(steps[2].step, 3);
    free(steps);
    dp_store_close(store);
}

static void drop_communication(const char *directory)
{
    static const char *const kinds[] = {"dispatch_f", "combine_f", "combine_b",
                                        "dispatch_b", "hop_f",     "hop_b"};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(kinds); i++) {
        DP_CLEANUP(dp_buf_deinit) struct dp_buf sql = {0};
        dp_buf_printf(&sql,
                      "ALTER TABLE ranks DROP COLUMN comm_%s_total_ns;"
                      "ALTER TABLE ranks DROP COLUMN comm_%s_exposed_ns",
                      kinds[i], kinds[i]);
        store_sql(directory, sql.bytes);
    }
}

static void drop_memory(const char *directory)
{
    static const char *const parts[] = {"weights", "gradients", "optimizer", "activations",
                                        "exchange"};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(parts); i++) {
        DP_CLEANUP(dp_buf_deinit) struct dp_buf sql = {0};
        dp_buf_printf(&sql, "ALTER TABLE ranks DROP COLUMN memory_%s", parts[i]);
        store_sql(directory, sql.bytes);
    }
}

static void drop_reassignments(const char *directory)
{
    store_sql(directory, "DROP TRIGGER ranks_fewer; DROP TABLE decisions;"
                         "ALTER TABLE jobs DROP COLUMN straggler_enter;"
                         "ALTER TABLE jobs DROP COLUMN epoch_used;"
                         "ALTER TABLE jobs DROP COLUMN ranks_count;"
                         "ALTER TABLE jobs DROP COLUMN recovery;"
                         "ALTER TABLE jobs DROP COLUMN adapt;"
                         "ALTER TABLE jobs DROP COLUMN source_epoch;"
                         "ALTER TABLE jobs DROP COLUMN source_step;"
                         "ALTER TABLE jobs DROP COLUMN sources");
}

static void drop_queue(const char *directory)
{
    static const char *const job[] = {
        "user",   "priority", "preemptible", "retry_max",   "retry_backoff_s", "no_progress_max",
        "faults", "stalled",  "preemptions", "retry_at_ns", "queued_ns",       "checkpoint_step"};
    static const char *const node[] = {"admin",          "admin_reason",      "admin_by",
                                       "admin_since_ns", "drain_deadline_ns", "place",
                                       "deleted"};
    store_sql(directory, "DROP TABLE attempts; DROP TABLE quotas; DROP TRIGGER nodes_inserted;"
                         "DROP TRIGGER nodes_updated");
    for (size_t i = 0; i < DP_ARRAY_LENGTH(job); i++) {
        DP_AUTO_FREE char *sql = dp_asprintf("ALTER TABLE jobs DROP COLUMN %s", job[i]);
        store_sql(directory, sql);
    }
    for (size_t i = 0; i < DP_ARRAY_LENGTH(node); i++) {
        DP_AUTO_FREE char *sql = dp_asprintf("ALTER TABLE nodes DROP COLUMN %s", node[i]);
        store_sql(directory, sql);
    }
}

static void drop_audit(const char *directory)
{
    store_sql(directory, "DROP TABLE verdicts;"
                         "DROP TABLE audit; DROP TABLE forgotten; DROP INDEX jobs_by_state;"
                         "DROP INDEX jobs_by_end");
}

static void drop_newest(const char *directory)
{
    store_sql(directory, "ALTER TABLE steps DROP COLUMN attempt;"
                         "ALTER TABLE jobs DROP COLUMN ranks_full;"
                         "ALTER TABLE jobs DROP COLUMN held_ns;"
                         "ALTER TABLE jobs DROP COLUMN held_by;"
                         "ALTER TABLE jobs DROP COLUMN held_reason;"
                         "ALTER TABLE ranks DROP COLUMN usage_evaluation_ns;"
                         "ALTER TABLE ranks DROP COLUMN total_evaluation_ns");
}

static void a_lost_job_of_the_first_schema_has_failed(void **state)
{
    const char *directory = *state;
    fill(directory);
    drop_newest(directory);
    drop_communication(directory);
    drop_memory(directory);
    drop_reassignments(directory);
    drop_queue(directory);
    drop_audit(directory);
    // As the first schema had it.
    store_sql(directory,
              "ALTER TABLE nodes DROP COLUMN fence_ms; ALTER TABLE jobs DROP COLUMN resumed_step;"
              "ALTER TABLE jobs DROP COLUMN corpus_tokens; ALTER TABLE jobs DROP COLUMN avoid;"
              "ALTER TABLE jobs DROP COLUMN avoid_why;"
              "ALTER TABLE ranks DROP COLUMN stopped; ALTER TABLE ranks DROP COLUMN measured_ns;"
              "ALTER TABLE ranks DROP COLUMN exchange_ns; ALTER TABLE ranks DROP COLUMN "
              "grad_sync_ns; ALTER TABLE ranks DROP COLUMN optimizer_ns;"
              "ALTER TABLE ranks DROP COLUMN load_skew; ALTER TABLE ranks DROP COLUMN load_layer;"
              "ALTER TABLE ranks DROP COLUMN load_expert; ALTER TABLE ranks DROP COLUMN load_rank;"
              "ALTER TABLE nodes DROP COLUMN hardware; DROP TABLE clusters;"
              "DROP TABLE profiles; DROP TABLE lessons;"
              "UPDATE jobs SET state = 11 WHERE number = 1; PRAGMA user_version = 1");
    struct dp_store *store = store_open(directory);
    struct dp_job_record job = {0};
    struct dp_error err = {0};
    assert_ok(dp_store_find_job(store, "job-1", &job, &err), &err);
    assert_int_equal(job.state, DP_STATE_FAILED);
    dp_job_record_deinit(&job);
    dp_store_close(store);
}

#define STORE_TEST(name) cmocka_unit_test_setup_teardown(name, store_setup, store_teardown)

static const struct CMUnitTest tests[] = {
    STORE_TEST(kill_9_loses_nothing_that_was_reported_stored),
    STORE_TEST(a_truncated_database_is_refused_and_left_as_it_is),
    STORE_TEST(a_page_of_rubbish_is_found_before_anything_is_written),
    STORE_TEST(a_file_of_somebody_else_is_not_taken),
    STORE_TEST(a_newer_schema_is_refused_with_both_versions),
    STORE_TEST(a_missing_database_beside_its_log_is_not_replaced_by_an_empty_one),
    STORE_TEST(migrations_run_in_order_after_a_copy_was_made),
    STORE_TEST(a_migration_that_fails_changes_nothing),
    STORE_TEST(what_failed_is_never_written_over_what_came_after_it),
    STORE_TEST(steps_that_found_no_room_are_written_when_there_is_some),
    STORE_TEST(a_lost_job_of_the_first_schema_has_failed),
};

int main(void)
{
    return cmocka_run_group_tests(tests, NULL, NULL);
}
