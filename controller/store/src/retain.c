// What is no longer kept of jobs that ended long ago: taken away in small transactions between
// those of others, on the writer's thread.
#include "store_internal.h"

#include "dp/alloc.h"
#include "dp/cleanup.h"

// By what a row is found among those of its job; "" = the job's only one.
static const struct {
    const char *table, *key;
} tables[] = {
    {"steps", "step"},       {"traces", "rowid"},     {"ranks", "rank"},
    {"attempts", "attempt"}, {"decisions", "number"}, {"lessons", ""},
    {"verdicts", "id"},
};

// Jobs that ended before this are not kept: *ret_before_ns 0 = all are.
static dp_status find_cutoff(sqlite3 *db, const struct dp_store_retention *retention,
                             int64_t *ret_before_ns, struct dp_error *err)
{
    int64_t newest_out = 0;
    if (retention->jobs_max > 0) {
        DP_AUTO_FREE char *sql =
            dp_asprintf("SELECT coalesce((SELECT ended_ns FROM jobs WHERE ended_ns > 0 "
                        "ORDER BY ended_ns DESC LIMIT 1 OFFSET %llu), 0)",
                        (unsigned long long)retention->jobs_max);
        dp_status status = dp_store_integer(db, sql, &newest_out, err);
        if (status != DP_OK) {
            return status;
        }
    }
    int64_t before_ns = newest_out == 0 ? 0 : newest_out + 1;
    before_ns = before_ns > retention->before_ns ? before_ns : retention->before_ns;
    bool young = retention->never_since_ns > 0 && before_ns > retention->never_since_ns;
    *ret_before_ns = young ? retention->never_since_ns : before_ns;
    return DP_OK;
}

static dp_status take_rows(sqlite3 *db, int64_t job, int *left, struct dp_error *err)
{
    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]) && *left > 0; i++) {
        const char *table = tables[i].table, *key = tables[i].key;
        DP_AUTO_FREE char *sql =
            key[0] == '\0'
                ? dp_asprintf("DELETE FROM %s WHERE job = %lld", table, (long long)job)
                : dp_asprintf("DELETE FROM %s WHERE job = %lld AND %s IN (SELECT %s FROM %s WHERE "
                              "job = %lld LIMIT %d)",
                              table, (long long)job, key, key, table, (long long)job, *left);
        dp_status status = dp_store_execute(db, sql, err);
        if (status != DP_OK) {
            return status;
        }
        *left -= sqlite3_changes(db);
    }
    return DP_OK;
}

static dp_status take_job(sqlite3 *db, int64_t job, struct dp_error *err)
{
    DP_AUTO_FREE char *sql = dp_asprintf("INSERT OR IGNORE INTO forgotten VALUES (%lld);"
                                         "DELETE FROM jobs WHERE number = %lld",
                                         (long long)job, (long long)job);
    return dp_store_execute(db, sql, err);
}

static dp_status take_some(sqlite3 *db, int64_t before_ns, uint64_t *ret_jobs, bool *ret_more,
                           struct dp_error *err)
{
    DP_AUTO_FREE char *oldest =
        dp_asprintf("SELECT coalesce((SELECT number FROM jobs WHERE ended_ns > 0 AND ended_ns < "
                    "%lld ORDER BY ended_ns LIMIT 1), 0)",
                    (long long)before_ns);
    int left = DP_STORE_RETAIN_ROWS;
    *ret_more = true;
    while (left > 0) {
        int64_t job = 0;
        dp_status status = dp_store_integer(db, oldest, &job, err);
        if (status == DP_OK && job == 0) {
            *ret_more = false;
            return DP_OK;
        }
        if (status == DP_OK) {
            status = take_rows(db, job, &left, err);
        }
        if (status == DP_OK && left > 0) {
            status = take_job(db, job, err);
            left--;
            *ret_jobs += 1;
        }
        if (status != DP_OK) {
            return status;
        }
    }
    return DP_OK;
}

dp_status dp_store_retain_some(sqlite3 *db, const struct dp_store_retention *retention,
                               uint64_t *ret_jobs, bool *ret_more, struct dp_error *err)
{
    int64_t before_ns = 0;
    uint64_t jobs = 0;
    bool more = false;
    dp_status status = find_cutoff(db, retention, &before_ns, err);
    if (status == DP_OK && before_ns > 0) {
        status = dp_store_execute(db, "BEGIN IMMEDIATE", err);
        if (status == DP_OK) {
            status = take_some(db, before_ns, &jobs, &more, err);
        }
        if (status == DP_OK) {
            status = dp_store_execute(db, "COMMIT", err);
        }
    }
    if (status != DP_OK) {
        sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL);
        return dp_fail_in(err, "taking away old jobs");
    }
    *ret_jobs = jobs;
    *ret_more = more;
    return DP_OK;
}
