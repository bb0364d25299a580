// The audit, what is kept of jobs that ended, copies of a database that is written, and their way
// back.
#include <fcntl.h>
#include <poll.h>
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
#include "dp/clock.h"
#include "store_internal.h"
#include "store_support.h"

#define DEADLINE_MS 120000

static int64_t count_of(const char *path, const char *sql)
{
    sqlite3 *db = NULL;
    sqlite3_stmt *statement = NULL;
    assert_int_equal(sqlite3_open_v2(path, &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, sql, -1, &statement, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(statement), SQLITE_ROW);
    int64_t value = sqlite3_column_int64(statement, 0);
    sqlite3_finalize(statement);
    sqlite3_close(db);
    return value;
}

static struct dp_audit_record make_audit(const char *user, const char *verb, const char *object,
                                         int64_t time_ns)
{
    struct dp_audit_record row = {.time_ns = time_ns};
    DP_COPY_TEXT(row.user, user);
    DP_COPY_TEXT(row.verb, verb);
    DP_COPY_TEXT(row.object, object);
    DP_COPY_TEXT(row.outcome, "ok");
    return row;
}

static void the_audit_is_only_ever_added_to(void **state)
{
    const char *directory = *state;
    struct dp_store *store = store_open(directory);
    struct dp_audit_record row = make_audit("alice", "CancelJob", "job-1", 5);
    struct dp_record record = {DP_RECORD_AUDIT, &row};
    assert_int_equal(store_write(store, &record, 1, NULL), DP_OK);
    dp_store_close(store);
    DP_AUTO_FREE char *path = dp_asprintf("%s/%s", directory, DP_STORE_FILE);
    sqlite3 *db = NULL;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    static const char *const attempts[] = {"UPDATE audit SET user = 'mallory'", "DELETE FROM audit",
                                           "REPLACE INTO audit SELECT id, 9, user, peer, door, "
                                           "verb, object, request_id, before, after, outcome, "
                                           "message FROM audit"};
    // REPLACE takes the old row away by a delete, for which triggers run when they are recursive.
    sqlite3_exec(db, "PRAGMA recursive_triggers = 1", NULL, NULL, NULL);
    for (size_t i = 0; i < DP_ARRAY_LENGTH(attempts); i++) {
        assert_int_equal(sqlite3_exec(db, attempts[i], NULL, NULL, NULL), SQLITE_CONSTRAINT);
        assert_string_equal(sqlite3_errmsg(db), "the audit is only added to");
    }
    sqlite3_close(db);
    assert_int_equal(count_of(path, "SELECT count(*) FROM audit WHERE user = 'alice' AND "
                                    "time_ns = 5"),
                     1);
}

static void a_change_and_its_entry_are_stored_together_or_not_at_all(void **state)
{
    struct dp_store *store = store_open(*state);
    assert_int_equal(store_write_job(store, 1, DP_STATE_COMPLETED, NULL), DP_OK);
    struct dp_job_record job = store_job(1, DP_STATE_QUEUED); // what has ended stays so
    struct dp_audit_record row = make_audit("alice", "CancelJob", "job-1", 5);
    struct dp_record records[] = {{DP_RECORD_AUDIT, &row}, {DP_RECORD_JOB, &job}};
    assert_int_equal(store_write(store, records, 2, NULL), DP_CONFLICT);
    struct dp_audit_record *entries = NULL;
    size_t count = 0;
    struct dp_error err = {0};
    struct dp_store_audit_filter all = {.object = "", .user = ""};
    assert_ok(dp_store_load_audit(store, &all, &entries, &count, &err), &err);
    assert_int_equal(count, 0);
    free(entries);
    dp_store_close(store);
}

static void the_newest_decisions_of_a_job_are_read_in_their_order(void **state)
{
    struct dp_store *store = store_open(*state);
    for (uint64_t job = 1; job <= 2; job++) {
        for (uint64_t number = 1; number <= 7; number++) {
            struct dp_decision_record row = {.job = job, .number = number, .time_ns = 5};
            struct dp_record record = {DP_RECORD_DECISION, &row};
            assert_int_equal(store_write(store, &record, 1, NULL), DP_OK);
        }
    }
    static const struct {
        uint32_t limit;
        uint64_t first;
    } all[] = {{0, 1}, {3, 5}, {7, 1}, {100, 1}};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(all); i++) {
        struct dp_decision_record *rows = NULL;
        size_t count = 0;
        struct dp_error err = {0};
        assert_ok(dp_store_load_decisions(store, 2, all[i].limit, &rows, &count, &err), &err);
        assert_int_equal(count, 8 - all[i].first);
        for (size_t k = 0; k < count; k++) {
            assert_int_equal(rows[k].job, 2);
            assert_int_equal(rows[k].number, all[i].first + k);
            dp_decision_record_deinit(&rows[k]);
        }
        free(rows);
    }
    dp_store_close(store);
}

static void a_start_reads_no_more_decisions_than_it_needs(void **state)
{
    struct dp_store *store = store_open(*state);
    assert_int_equal(store_write_job(store, 1, DP_STATE_COMPLETED, NULL), DP_OK);
    assert_int_equal(store_write_job(store, 2, DP_STATE_RUNNING, NULL), DP_OK);
    assert_int_equal(store_write_job(store, 3, DP_STATE_COMPLETED, NULL), DP_OK);
    for (uint64_t job = 1; job <= 3; job++) {
        for (uint64_t number = 1; number <= 4; number++) {
            struct dp_decision_record row = {.job = job,
                                             .number = number,
                                             .time_ns = (int64_t)(10 * job + number),
                                             .state = DP_DECISION_ADVISED};
            row.state = job != 2 && number == 2 ? DP_DECISION_MEASURED : row.state;
            struct dp_record record = {DP_RECORD_DECISION, &row};
            assert_int_equal(store_write(store, &record, 1, NULL), DP_OK);
        }
    }
    struct dp_decision_record *rows = NULL;
    size_t count = 0;
    struct dp_error err = {0};
    assert_ok(dp_store_load_last_decisions(store, &rows, &count, &err), &err);
    assert_int_equal(count, 2);
    assert_int_equal(rows[0].job, 2);
    assert_int_equal(rows[0].number, 4);
    assert_int_equal(rows[1].job, 3);
    assert_int_equal(rows[1].number, 2);
    for (size_t i = 0; i < count; i++) {
        dp_decision_record_deinit(&rows[i]);
    }
    free(rows);
    dp_store_close(store);
}

static void the_audit_is_read_by_object_user_and_time(void **state)
{
    struct dp_store *store = store_open(*state);
    struct dp_audit_record rows[] = {make_audit("alice", "SubmitJob", "job-1", 100),
                                     make_audit("bob", "SubmitJob", "job-2", 200),
                                     make_audit("bob", "CancelJob", "job-1", 300),
                                     make_audit("alice", "DrainNode", "n1", 400)};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(rows); i++) {
        struct dp_record record = {DP_RECORD_AUDIT, &rows[i]};
        assert_int_equal(store_write(store, &record, 1, NULL), DP_OK);
    }
    static const struct {
        struct dp_store_audit_filter filter;
        uint64_t ids[4];
        size_t count;
    } cases[] = {
        {{.object = "", .user = ""}, {1, 2, 3, 4}, 4},
        {{.object = "job-1", .user = ""}, {1, 3}, 2},
        {{.object = "job-1", .user = "bob"}, {3}, 1},
        {{.object = "", .user = "alice", .since_ns = 101}, {4}, 1},
        {{.object = "", .user = "", .after = 1, .limit = 2}, {2, 3}, 2},
        {{.object = "job-9", .user = ""}, {0}, 0},
    };
    for (size_t i = 0; i < DP_ARRAY_LENGTH(cases); i++) {
        struct dp_audit_record *entries = NULL;
        size_t count = 0;
        struct dp_error err = {0};
        assert_ok(dp_store_load_audit(store, &cases[i].filter, &entries, &count, &err), &err);
        assert_int_equal(count, cases[i].count);
        for (size_t e = 0; e < count; e++) {
            assert_int_equal(entries[e].id, cases[i].ids[e]);
        }
        free(entries);
    }
    dp_store_close(store);
}

// Job `number` that ended then, with ranks, steps, a trace, an attempt and a decision.
static void write_ended(struct dp_store *store, uint64_t number, int64_t ended_ns, uint64_t steps)
{
    struct dp_job_record job = store_job(number, DP_STATE_COMPLETED);
    job.ended_ns = ended_ns;
    job.ranks_count = 1;
    DP_COPY_TEXT(job.user, number % 2 == 0 ? "even" : "odd");
    snprintf(job.request_id, sizeof(job.request_id), "request-%llu", (unsigned long long)number);
    struct dp_rank_record rank = {.job = number};
    struct dp_attempt_record attempt = {.job = number, .attempt = 1};
    struct dp_decision_record decision = {.job = number, .number = 1};
    struct dp_trace_record trace = {.job = number, .step = 1};
    struct dp_record records[] = {{DP_RECORD_JOB, &job},
                                  {DP_RECORD_RANK, &rank},
                                  {DP_RECORD_ATTEMPT, &attempt},
                                  {DP_RECORD_DECISION, &decision},
                                  {DP_RECORD_TRACE, &trace}};
    assert_int_equal(store_write(store, records, DP_ARRAY_LENGTH(records), NULL), DP_OK);
    for (uint64_t step = 1; step <= steps; step++) {
        struct dp_step_record row = {.job = number, .step = step};
        struct dp_record record = {DP_RECORD_STEP, &row};
        dp_store_submit(store, 0, &record, 1);
    }
    store_drain(store);
}

static struct dp_store_figures figures_of(struct dp_store *store)
{
    struct dp_store_figures figures;
    dp_store_figures(store, &figures);
    return figures;
}

static void wait_forgotten(struct dp_store *store, uint64_t jobs)
{
    int64_t end_ns = dp_clock_monotonic_ns() + DEADLINE_MS * DP_NS_PER_MS;
    while (figures_of(store).forgotten < jobs) {
        assert_true(dp_clock_monotonic_ns() < end_ns);
        dp_clock_sleep_until_ns(dp_clock_monotonic_ns() + DP_NS_PER_MS);
    }
}

static void wait_failed(struct dp_store *store, uint64_t attempts)
{
    int64_t end_ns = dp_clock_monotonic_ns() + DEADLINE_MS * DP_NS_PER_MS;
    while (figures_of(store).retain_failed < attempts) {
        assert_true(dp_clock_monotonic_ns() < end_ns);
        dp_clock_sleep_until_ns(dp_clock_monotonic_ns() + DP_NS_PER_MS);
    }
}

static void assert_kept(struct dp_store *store, const uint64_t *numbers, size_t wanted)
{
    struct dp_job_record *jobs = NULL;
    size_t count = 0;
    struct dp_error err = {0};
    assert_ok(dp_store_load_jobs(store, DP_STORE_JOBS_ALL, "", false, 0, &jobs, &count, &err),
              &err);
    assert_int_equal(count, wanted);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(jobs[i].number, numbers[i]);
        dp_job_record_deinit(&jobs[i]);
    }
    free(jobs);
}

static void old_jobs_go_with_all_their_rows_and_their_numbers_stay_ended(void **state)
{
    const char *directory = *state;
    struct dp_store *store = store_open(directory);
    for (uint64_t number = 1; number <= 6; number++) {
        write_ended(store, number, (int64_t)number * 100, 3);
    }
    assert_int_equal(store_write_job(store, 7, DP_STATE_RUNNING, NULL), DP_OK);
    // Two of the six by age, two more by number; the one that runs does not count.
    struct dp_store_retention retention = {.jobs_max = 2, .before_ns = 201};
    dp_store_retain(store, &retention);
    wait_forgotten(store, 4);
    assert_kept(store, (uint64_t[]){7, 6, 5}, 3);
    uint64_t *ended = NULL, highest = 0;
    size_t count = 0;
    struct dp_error err = {0};
    assert_ok(dp_store_ended_jobs(store, &ended, &count, &highest, &err), &err);
    assert_int_equal(count, 6);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(ended[i], i + 1);
    }
    assert_int_equal(highest, 7);
    free(ended);
    dp_store_close(store);
    DP_AUTO_FREE char *path = dp_asprintf("%s/%s", directory, DP_STORE_FILE);
    static const char *const tables[] = {"ranks",    "steps",     "traces",
                                         "attempts", "decisions", "lessons"};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(tables); i++) {
        DP_AUTO_FREE char *sql =
            dp_asprintf("SELECT count(*) FROM %s WHERE job NOT IN (5, 6)", tables[i]);
        assert_int_equal(count_of(path, sql), 0);
    }
    assert_int_equal(count_of(path, "SELECT count(*) FROM steps"), 6);
}

static void the_highest_number_is_known_when_its_job_is_no_longer_kept(void **state)
{
    struct dp_store *store = store_open(*state);
    write_ended(store, 41, 100, 1);
    struct dp_store_retention retention = {.before_ns = 101};
    dp_store_retain(store, &retention);
    wait_forgotten(store, 1);
    uint64_t *ended = NULL, highest = 0;
    size_t count = 0;
    struct dp_error err = {0};
    assert_ok(dp_store_ended_jobs(store, &ended, &count, &highest, &err), &err);
    assert_int_equal(highest, 41);
    free(ended);
    dp_store_close(store);
}

static void young_jobs_are_kept_whatever_else_is_said(void **state)
{
    struct dp_store *store = store_open(*state);
    for (uint64_t number = 1; number <= 4; number++) {
        write_ended(store, number, (int64_t)number * 100, 1);
    }
    struct dp_store_retention retention = {.jobs_max = 1, .before_ns = 1000, .never_since_ns = 300};
    dp_store_retain(store, &retention);
    wait_forgotten(store, 2);
    assert_int_equal(store_write_job(store, 9, DP_STATE_QUEUED, NULL), DP_OK);
    assert_kept(store, (uint64_t[]){9, 4, 3}, 3);
    dp_store_close(store);
}

// More rows than one transaction takes away.
static void a_long_job_goes_in_parts_between_the_transactions_of_others(void **state)
{
    struct dp_store *store = store_open(*state);
    write_ended(store, 1, 100, 2 * DP_STORE_RETAIN_ROWS + 500);
    struct dp_store_retention retention = {.before_ns = 101};
    dp_store_retain(store, &retention);
    for (uint64_t number = 2; number <= 20; number++) {
        assert_int_equal(store_write_job(store, number, DP_STATE_QUEUED, NULL), DP_OK);
    }
    wait_forgotten(store, 1);
    assert_int_equal(figures_of(store).retain_failed, 0);
    dp_store_close(store);
}

static void keeping_house_that_fails_is_done_when_it_is_asked_for_again(void **state)
{
    const char *directory = *state;
    struct dp_store *store = store_open(directory);
    write_ended(store, 1, 100, 3);
    store_sql(directory, "CREATE TRIGGER stalls BEFORE DELETE ON steps BEGIN "
                         "SELECT RAISE(ABORT, 'the disk stalls'); END");
    struct dp_store_retention retention = {.before_ns = 101};
    dp_store_retain(store, &retention);
    wait_failed(store, 1);
    assert_kept(store, (uint64_t[]){1}, 1);
    assert_int_equal(store_write_job(store, 2, DP_STATE_QUEUED, NULL), DP_OK);
    dp_store_retain(store, &retention);
    wait_failed(store, 2);
    store_sql(directory, "DROP TRIGGER stalls");
    dp_store_retain(store, &retention);
    wait_forgotten(store, 1);
    assert_kept(store, (uint64_t[]){2}, 1);
    dp_store_close(store);
}

static void the_history_has_ended_jobs_of_a_user_since_a_time(void **state)
{
    struct dp_store *store = store_open(*state);
    for (uint64_t number = 1; number <= 5; number++) {
        write_ended(store, number, (int64_t)number * 100, 1);
    }
    assert_int_equal(store_write_job(store, 6, DP_STATE_RUNNING, NULL), DP_OK);
    static const struct {
        const char *user;
        int64_t since_ns;
        uint32_t limit;
        uint64_t numbers[5];
        size_t count;
    } cases[] = {{"", 0, 0, {5, 4, 3, 2, 1}, 5},
                 {"even", 0, 0, {4, 2}, 2},
                 {"", 300, 0, {5, 4, 3}, 3},
                 {"odd", 301, 0, {5}, 1},
                 {"", 0, 2, {5, 4}, 2}};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(cases); i++) {
        struct dp_job_record *jobs = NULL;
        size_t count = 0;
        struct dp_error err = {0};
        assert_ok(dp_store_load_history(store, cases[i].user, cases[i].since_ns, cases[i].limit,
                                        &jobs, &count, &err),
                  &err);
        assert_int_equal(count, cases[i].count);
        for (size_t j = 0; j < count; j++) {
            assert_int_equal(jobs[j].number, cases[i].numbers[j]);
            dp_job_record_deinit(&jobs[j]);
        }
        free(jobs);
    }
    dp_store_close(store);
}

struct backup_watch {
    uint64_t token; // of the backup
    bool done;
    struct dp_error error;
    uint64_t stored; // the highest number that was reported
};

static void on_done(void *context, uint64_t token, const struct dp_error *err)
{
    struct backup_watch *watch = context;
    if (token == watch->token) {
        watch->done = true;
        watch->error = *err;
    } else {
        assert_int_equal(err->status, DP_OK);
        watch->stored = token;
    }
}

static void submit_job(struct dp_store *store, uint64_t number)
{
    static char plan[20000] = {1};
    struct dp_job_record job = store_job(number, DP_STATE_QUEUED);
    struct dp_rank_record rank = {.job = number};
    job.ranks_count = 1;
    job.plan = (struct dp_buf){.bytes = plan, .length = sizeof(plan)};
    struct dp_record records[] = {{DP_RECORD_JOB, &job}, {DP_RECORD_RANK, &rank}};
    dp_store_submit(store, number, records, 2);
}

static void a_backup_made_while_it_is_written_is_whole_and_of_one_moment(void **state)
{
    enum { BEFORE = 1500 };
    const char *directory = *state;
    struct dp_store *store = store_open(directory);
    struct backup_watch watch = {.token = UINT64_MAX};
    uint64_t next = 1;
    while (next <= BEFORE) {
        submit_job(store, next++);
    }
    while (watch.stored < BEFORE) {
        dp_store_pump(store, on_done, &watch);
    }
    DP_AUTO_FREE char *path = dp_asprintf("%s/copy.db", directory);
    struct dp_error err = {0};
    assert_ok(dp_store_backup(store, watch.token, path, &err), &err);
    assert_refused(dp_store_backup(store, 7, path, &err), DP_BUSY, &err, "another backup");
    // Writers go on: what is handed in meanwhile is stored meanwhile.
    while (!watch.done) {
        if (dp_store_queued(store) < 20) {
            submit_job(store, next++);
        }
        dp_store_pump(store, on_done, &watch);
    }
    assert_ok(watch.error.status, &watch.error);
    assert_true(watch.stored > BEFORE);
    int64_t jobs = count_of(path, "SELECT count(*) FROM jobs");
    assert_true(jobs >= BEFORE);
    assert_int_equal(count_of(path, "SELECT max(number) FROM jobs"), jobs);
    assert_int_equal(count_of(path, "SELECT count(*) FROM ranks"), jobs);
    dp_store_close(store);
    // Its rows are those of the original.
    DP_AUTO_FREE char *cut = dp_asprintf("DELETE FROM jobs WHERE number > %lld;"
                                         "DELETE FROM ranks WHERE job > %lld",
                                         (long long)jobs, (long long)jobs);
    store_sql(directory, cut);
    DP_AUTO_FREE char *original = dp_asprintf("%s/%s", directory, DP_STORE_FILE);
    DP_AUTO_FREE char *left = store_dump(original), *right = store_dump(path);
    assert_string_equal(left, right);
    DP_AUTO_FREE char *log = dp_asprintf("%s-wal", path);
    assert_int_not_equal(access(log, F_OK), 0);
}

static void a_backup_that_finds_no_room_says_so_and_the_next_one_works(void **state)
{
    const char *directory = *state;
    struct dp_store *store = store_open(directory);
    assert_int_equal(store_write_job(store, 1, DP_STATE_QUEUED, NULL), DP_OK);
    DP_AUTO_FREE char *path = dp_asprintf("%s/copy.db", directory);
    DP_AUTO_FREE char *place = dp_asprintf("%s.fresh", directory);
    struct store_result result;
    struct dp_error err = {0};
    // A file that may not grow is a disk without room.
    store_limit_files(8192);
    assert_ok(dp_store_backup(store, 5, path, &err), &err);
    store_wait(store, &result, 1);
    store_unlimit_files();
    assert_int_equal(result.token, 5);
    assert_int_not_equal(result.error.status, DP_OK);
    unlink(path);
    store_back_up(store, path);
    assert_int_equal(mkdir(place, 0700), 0);
    char kept[DP_PATH_MAX];
    store_limit_files(8192);
    dp_status status = dp_store_restore(place, path, kept, sizeof(kept), &err);
    store_unlimit_files();
    assert_int_not_equal(status, DP_OK);
    assert_null(strstr(err.message, "not an error"));
    void *again = dp_strdup(place);
    store_teardown(&again);
    unlink(path);
    store_back_up(store, path);
    assert_int_equal(count_of(path, "SELECT count(*) FROM jobs"), 1);
    dp_store_close(store);
}

// A database with some of everything, closed; its content as text.
static char *fill(const char *directory, uint64_t jobs)
{
    struct dp_store *store = store_open(directory);
    for (uint64_t number = 1; number <= jobs; number++) {
        write_ended(store, number, (int64_t)number * 100, 2);
    }
    struct dp_audit_record audit = make_audit("alice", "SubmitJob", "job-1", 5);
    struct dp_event_record event = {.time_ns = 1};
    struct dp_record records[] = {{DP_RECORD_AUDIT, &audit}, {DP_RECORD_EVENT, &event}};
    assert_int_equal(store_write(store, records, 2, NULL), DP_OK);
    dp_store_close(store);
    DP_AUTO_FREE char *path = dp_asprintf("%s/%s", directory, DP_STORE_FILE);
    return store_dump(path);
}

static void a_restored_backup_has_every_row_and_what_was_there_is_kept(void **state)
{
    const char *directory = *state;
    DP_AUTO_FREE char *before = fill(directory, 5);
    DP_AUTO_FREE char *copy = dp_asprintf("%s/copy.db", directory);
    DP_AUTO_FREE char *path = dp_asprintf("%s/%s", directory, DP_STORE_FILE);
    store_back_up_closed(directory, copy);
    struct dp_store *store = store_open(directory);
    assert_int_equal(store_write_job(store, 6, DP_STATE_QUEUED, NULL), DP_OK);
    dp_store_close(store);
    DP_AUTO_FREE char *later = store_dump(path);
    char kept[DP_PATH_MAX];
    struct dp_error err = {0};
    assert_ok(dp_store_restore(directory, copy, kept, sizeof(kept), &err), &err);
    DP_AUTO_FREE char *restored = store_dump(path), *old = store_dump(kept);
    assert_string_equal(restored, before);
    assert_string_equal(old, later);
    store = store_open(directory);
    assert_kept(store, (uint64_t[]){5, 4, 3, 2, 1}, 5);
    assert_int_equal(store_write_job(store, 6, DP_STATE_QUEUED, NULL), DP_OK);
    dp_store_close(store);
    // Into a directory where there was nothing.
    DP_AUTO_FREE char *fresh = dp_asprintf("%s.fresh", directory);
    assert_int_equal(dp_store_restore(fresh, copy, kept, sizeof(kept), &err), DP_NOT_FOUND);
    assert_int_equal(access(fresh, F_OK), -1);
    assert_int_equal(mkdir(fresh, 0700), 0);
    assert_ok(dp_store_restore(fresh, copy, kept, sizeof(kept), &err), &err);
    assert_string_equal(kept, "");
    DP_AUTO_FREE char *there = dp_asprintf("%s/%s", fresh, DP_STORE_FILE);
    DP_AUTO_FREE char *second = store_dump(there);
    assert_string_equal(second, before);
    void *again = dp_strdup(fresh);
    store_teardown(&again);
}

static int mode_of(const char *path)
{
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    return (int)(info.st_mode & 0777);
}

// In a directory that everybody may enter, and with a log.
static void only_the_owner_reads_the_database_its_log_and_copies(void **state)
{
    const char *directory = *state;
    assert_int_equal(chmod(directory, 0755), 0);
    DP_AUTO_FREE char *path = dp_asprintf("%s/%s", directory, DP_STORE_FILE);
    DP_AUTO_FREE char *log = dp_asprintf("%s-wal", path);
    DP_AUTO_FREE char *copy = dp_asprintf("%s/copy.db", directory);
    DP_AUTO_FREE char *fresh = dp_asprintf("%s.fresh", directory);
    DP_AUTO_FREE char *restored = dp_asprintf("%s/%s", fresh, DP_STORE_FILE);
    const mode_t mask = umask(022);
    struct dp_store *store = store_open(directory);
    assert_int_equal(store_write_job(store, 1, DP_STATE_QUEUED, NULL), DP_OK);
    assert_int_equal(mode_of(path), 0600);
    assert_int_equal(mode_of(log), 0600);
    dp_store_close(store);
    store_back_up_closed(directory, copy);
    assert_int_equal(mode_of(copy), 0600);
    char kept[DP_PATH_MAX];
    struct dp_error err = {0};
    assert_int_equal(mkdir(fresh, 0755), 0);
    assert_ok(dp_store_restore(fresh, copy, kept, sizeof(kept), &err), &err);
    assert_int_equal(mode_of(restored), 0600);
    umask(mask);
    void *again = dp_strdup(fresh);
    store_teardown(&again);
}

#define STORE_TEST(name) cmocka_unit_test_setup_teardown(name, store_setup, store_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        STORE_TEST(the_audit_is_only_ever_added_to),
        STORE_TEST(a_change_and_its_entry_are_stored_together_or_not_at_all),
        STORE_TEST(the_newest_decisions_of_a_job_are_read_in_their_order),
        STORE_TEST(a_start_reads_no_more_decisions_than_it_needs),
        STORE_TEST(the_audit_is_read_by_object_user_and_time),
        STORE_TEST(old_jobs_go_with_all_their_rows_and_their_numbers_stay_ended),
        STORE_TEST(the_highest_number_is_known_when_its_job_is_no_longer_kept),
        STORE_TEST(young_jobs_are_kept_whatever_else_is_said),
        STORE_TEST(a_long_job_goes_in_parts_between_the_transactions_of_others),
        STORE_TEST(keeping_house_that_fails_is_done_when_it_is_asked_for_again),
        STORE_TEST(the_history_has_ended_jobs_of_a_user_since_a_time),
        STORE_TEST(a_backup_made_while_it_is_written_is_whole_and_of_one_moment),
        STORE_TEST(a_backup_that_finds_no_room_says_so_and_the_next_one_works),
        STORE_TEST(a_restored_backup_has_every_row_and_what_was_there_is_kept),
        STORE_TEST(only_the_owner_reads_the_database_its_log_and_copies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
