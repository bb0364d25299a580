#include "store_support.h"

#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/buf.h"
#include "dp/check.h"
#include "dp/cleanup.h"

#define DEADLINE_MS 120000

int store_setup(void **state)
{
    const char *base = getenv("TMPDIR");
    char *directory = dp_asprintf("%s/dp-store-XXXXXX", base == NULL ? "/tmp" : base);
    assert_non_null(mkdtemp(directory));
    *state = directory;
    return 0;
}

int store_teardown(void **state)
{
    DP_AUTO_FREE char *directory = *state;
    DIR *listing = opendir(directory);
    assert_non_null(listing);
    struct dirent *entry;
    while ((entry = readdir(listing)) != NULL) {
        DP_AUTO_FREE char *path = dp_asprintf("%s/%s", directory, entry->d_name);
        unlink(path);
    }
    closedir(listing);
    return rmdir(directory);
}

struct dp_store *store_open(const char *directory)
{
    struct dp_store_options options = {.directory = directory};
    struct dp_store *store = NULL;
    struct dp_error err = {0};
    assert_ok(dp_store_open(&options, &store, &err), &err);
    return store;
}

struct dp_job_record store_job(uint64_t number, dp_job_state state)
{
    struct dp_job_record job = {.number = number, .state = state};
    snprintf(job.id, sizeof(job.id), "job-%llu", (unsigned long long)number);
    return job;
}

struct waiting {
    struct store_result *results;
    size_t count, wanted;
};

static void on_done(void *context, uint64_t token, const struct dp_error *err)
{
    struct waiting *waiting = context;
    assert_true(waiting->count < waiting->wanted);
    waiting->results[waiting->count++] = (struct store_result){token, *err};
}

static void wait_for_some(struct dp_store *store)
{
    struct pollfd poll_fd = {.fd = dp_store_fd(store), .events = POLLIN};
    assert_int_equal(poll(&poll_fd, 1, DEADLINE_MS), 1);
}

void store_wait(struct dp_store *store, struct store_result *ret_results, size_t count)
{
    struct waiting waiting = {ret_results, 0, count};
    while (waiting.count < count) {
        wait_for_some(store);
        dp_store_pump(store, on_done, &waiting);
    }
}

void store_drain(struct dp_store *store)
{
    struct waiting waiting = {0};
    while (dp_store_queued(store) > 0) {
        wait_for_some(store);
        dp_store_pump(store, on_done, &waiting);
    }
    dp_store_pump(store, on_done, &waiting);
}

dp_status store_write(struct dp_store *store, const struct dp_record *records, size_t count,
                      struct dp_error *err)
{
    struct store_result result;
    dp_store_submit(store, 1, records, count);
    store_wait(store, &result, 1);
    if (err != NULL) {
        *err = result.error;
    }
    return result.error.status;
}

dp_status store_write_job(struct dp_store *store, uint64_t number, dp_job_state state,
                          struct dp_error *err)
{
    struct dp_job_record job = store_job(number, state);
    struct dp_record record = {DP_RECORD_JOB, &job};
    return store_write(store, &record, 1, err);
}

// Every row of every table as text, in order: two databases with the same content give the same.
char *store_dump(const char *path)
{
    static const char *const tables[] = {"jobs",  "ranks", "steps",   "events",
                                         "audit", "nodes", "attempts"};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf out = {0};
    sqlite3 *db = NULL;
    assert_int_equal(sqlite3_open_v2(path, &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    for (size_t i = 0; i < DP_ARRAY_LENGTH(tables); i++) {
        DP_AUTO_FREE char *sql = dp_asprintf("SELECT * FROM %s ORDER BY 1, 2", tables[i]);
        sqlite3_stmt *statement = NULL;
        assert_int_equal(sqlite3_prepare_v2(db, sql, -1, &statement, NULL), SQLITE_OK);
        while (sqlite3_step(statement) == SQLITE_ROW) {
            for (int c = 0; c < sqlite3_column_count(statement); c++) {
                const char *text = (const char *)sqlite3_column_text(statement, c);
                dp_buf_printf(&out, "%s|", text == NULL ? "" : text);
            }
            dp_buf_puts(&out, "\n");
        }
        sqlite3_finalize(statement);
    }
    sqlite3_close(db);
    return dp_strdup(out.bytes == NULL ? "" : out.bytes);
}

void store_sql_in(const char *path, const char *sql)
{
    sqlite3 *db = NULL;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    sqlite3_busy_timeout(db, DEADLINE_MS);
    char *message = NULL;
    if (sqlite3_exec(db, sql, NULL, NULL, &message) != SQLITE_OK) {
        fail_msg("%s: %s", sql, message);
    }
    sqlite3_close(db);
}

void store_sql(const char *directory, const char *sql)
{
    DP_AUTO_FREE char *path = dp_asprintf("%s/%s", directory, DP_STORE_FILE);
    store_sql_in(path, sql);
}

void store_back_up(struct dp_store *store, const char *path)
{
    struct store_result result;
    struct dp_error err = {0};
    assert_ok(dp_store_backup(store, 4, path, &err), &err);
    store_wait(store, &result, 1);
    assert_ok(result.error.status, &result.error);
}

void store_back_up_closed(const char *directory, const char *path)
{
    struct dp_store *store = store_open(directory);
    store_back_up(store, path);
    dp_store_close(store);
}

static void set_limit(rlim_t bytes)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

void store_limit_files(uint64_t bytes)
{
    signal(SIGXFSZ, SIG_IGN);
    set_limit(bytes);
}

void store_unlimit_files(void)
{
    set_limit(RLIM_INFINITY);
    signal(SIGXFSZ, SIG_DFL);
}
