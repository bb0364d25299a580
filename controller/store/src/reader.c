// Reading what was committed, on the owner's thread.
#include "store_internal.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"

struct rows {
    const struct dp_table *table;
    char *items;
    size_t count, capacity;
};

static void rows_free(struct rows *rows)
{
    for (size_t i = 0; i < rows->count; i++) {
        void *row = rows->items + i * rows->table->row_size;
        for (size_t c = 0; c < rows->table->columns_count; c++) {
            if (rows->table->columns[c].type == DP_COLUMN_BLOB) {
                dp_buf_deinit((struct dp_buf *)((char *)row + rows->table->columns[c].offset));
            }
        }
    }
    free(rows->items);
}

static void *rows_add(struct rows *rows)
{
    size_t size = rows->table->row_size;
    if (rows->count == rows->capacity) {
        rows->capacity = rows->capacity == 0 ? 16 : rows->capacity * 2;
        rows->items = dp_realloc(rows->items, rows->capacity, size);
    }
    void *row = rows->items + rows->count++ * size;
    memset(row, 0, size);
    return row;
}

// One parameter of a query: text when it is not NULL, else the integer.
struct parameter {
    const char *text;
    int64_t integer;
};

static dp_status query(struct dp_store *store, const char *sql, const struct parameter *parameters,
                       size_t count, sqlite3_stmt **ret_statement, struct dp_error *err)
{
    sqlite3_stmt *statement = NULL;
    int code = sqlite3_prepare_v2(store->reader, sql, -1, &statement, NULL);
    if (code != SQLITE_OK) {
        return dp_store_fail(err, store->reader, code, sql);
    }
    for (size_t i = 0; i < count; i++) {
        if (parameters[i].text != NULL) {
            sqlite3_bind_text(statement, (int)i + 1, parameters[i].text, -1, SQLITE_TRANSIENT);
        } else {
            sqlite3_bind_int64(statement, (int)i + 1, parameters[i].integer);
        }
    }
    *ret_statement = statement;
    return DP_OK;
}

static void finalize(sqlite3_stmt **statement)
{
    sqlite3_finalize(*statement);
}

// Rows of a whole table's columns that `clause` chooses; without `blobs` these are left empty.
static dp_status load_some(struct dp_store *store, dp_record_kind kind, bool blobs,
                           const char *clause, const struct parameter *parameters,
                           size_t parameters_count, void *ret_rows, size_t *ret_count,
                           struct dp_error *err)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf sql = {0};
    dp_table_select_sql(&dp_tables[kind], blobs, &sql);
    dp_buf_puts(&sql, clause);
    DP_CLEANUP(finalize) sqlite3_stmt *statement = NULL;
    dp_status status = query(store, sql.bytes, parameters, parameters_count, &statement, err);
    if (status != DP_OK) {
        return status;
    }
    struct rows rows = {.table = &dp_tables[kind]};
    int code;
    while ((code = sqlite3_step(statement)) == SQLITE_ROW) {
        dp_table_read(rows.table, statement, rows_add(&rows));
    }
    if (code != SQLITE_DONE) {
        rows_free(&rows);
        return dp_store_fail(err, store->reader, code, rows.table->name);
    }
    memcpy(ret_rows, &rows.items, sizeof(rows.items));
    *ret_count = rows.count;
    return DP_OK;
}

static dp_status load(struct dp_store *store, dp_record_kind kind, const char *clause,
                      const struct parameter *parameters, size_t parameters_count, void *ret_rows,
                      size_t *ret_count, struct dp_error *err)
{
    return load_some(store, kind, true, clause, parameters, parameters_count, ret_rows, ret_count,
                     err);
}

static int64_t limit_or_all(uint32_t limit)
{
    return limit == 0 ? -1 : (int64_t)limit;
}

// The newest step is not in the job's own row: it would be written again with every step. What an
// earlier attempt took beyond where this one began is to be taken again.
static dp_status add_newest_steps(struct dp_store *store, struct dp_job_record *jobs, size_t count,
                                  struct dp_error *err)
{
    static const char sql[] = "SELECT step, step_ns, loss, loss_known FROM steps WHERE job = ? "
                              "AND attempt IN (0, ?) ORDER BY step DESC LIMIT 1";
    DP_CLEANUP(finalize) sqlite3_stmt *statement = NULL;
    dp_status status = query(store, sql, NULL, 0, &statement, err);
    for (size_t i = 0; status == DP_OK && i < count; i++) {
        sqlite3_bind_int64(statement, 1, (int64_t)jobs[i].number);
        sqlite3_bind_int64(statement, 2, jobs[i].attempt);
        int code = sqlite3_step(statement);
        if (code == SQLITE_ROW) {
            jobs[i].step = (uint64_t)sqlite3_column_int64(statement, 0);
            jobs[i].step_ns = sqlite3_column_int64(statement, 1);
            jobs[i].loss = sqlite3_column_double(statement, 2);
            jobs[i].loss_known = sqlite3_column_int(statement, 3) != 0;
        } else if (code == SQLITE_DONE) {
            jobs[i].step = jobs[i].resumed_step;
        } else {
            status = dp_store_fail(err, store->reader, code, sql);
        }
        // What its ranks reported last may have been lost with a node or a full disk.
        if (jobs[i].state == DP_STATE_COMPLETED && jobs[i].step < jobs[i].steps_total) {
            jobs[i].step = jobs[i].steps_total;
        }
        sqlite3_reset(statement);
    }
    return status;
}

static void free_jobs(struct dp_job_record *jobs, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        dp_job_record_deinit(&jobs[i]);
    }
    free(jobs);
}

static dp_status load_jobs(struct dp_store *store, bool blobs, const char *clause,
                           const struct parameter *parameters, size_t parameters_count,
                           struct dp_job_record **ret_jobs, size_t *ret_count, struct dp_error *err)
{
    struct dp_job_record *jobs = NULL;
    size_t count = 0;
    dp_status status = load_some(store, DP_RECORD_JOB, blobs, clause, parameters, parameters_count,
                                 &jobs, &count, err);
    if (status == DP_OK) {
        status = add_newest_steps(store, jobs, count, err);
    }
    if (status != DP_OK) {
        free_jobs(jobs, count);
        return status;
    }
    *ret_jobs = jobs;
    *ret_count = count;
    return DP_OK;
}

// "(8, 9, 10)": the states that a job ends in.
static void ended_states(struct dp_buf *out)
{
    for (unsigned state = 0; state < DP_STATE_COUNT; state++) {
        if (dp_job_state_ended((dp_job_state)state)) {
            dp_buf_printf(out, "%s%u", out->length == 0 ? "(" : ", ", state);
        }
    }
    dp_buf_puts(out, ")");
}

dp_status dp_store_load_jobs(struct dp_store *store, dp_store_jobs which, const char *user,
                             bool blobs, uint32_t limit, struct dp_job_record **ret_jobs,
                             size_t *ret_count, struct dp_error *err)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf ended = {0};
    ended_states(&ended);
    DP_AUTO_FREE char *clause =
        dp_asprintf("WHERE (?1 = '' OR user = ?1)%s%s ORDER BY number DESC LIMIT ?2",
                    which == DP_STORE_JOBS_ACTIVE ? " AND state NOT IN " : "",
                    which == DP_STORE_JOBS_ACTIVE ? ended.bytes : "");
    struct parameter parameters[] = {{.text = user}, {.integer = limit_or_all(limit)}};
    return load_jobs(store, blobs, clause, parameters, 2, ret_jobs, ret_count, err);
}

// Runs one of the ways to find a job; *ret_count is 0, 1 or 2 (several).
static dp_status find_by(struct dp_store *store, const char *clause, const char *key,
                         struct dp_job_record *ret_job, size_t *ret_count, struct dp_error *err)
{
    struct parameter parameters[] = {{.text = key}};
    struct dp_job_record *jobs = NULL;
    dp_status status = load_jobs(store, true, clause, parameters, 1, &jobs, ret_count, err);
    if (status != DP_OK) {
        return status;
    }
    if (*ret_count == 1) {
        *ret_job = jobs[0];
        free(jobs);
    } else {
        free_jobs(jobs, *ret_count);
    }
    return DP_OK;
}

#define PREFIX_LENGTH_MIN 4

dp_status dp_store_find_job(struct dp_store *store, const char *key, struct dp_job_record *ret_job,
                            struct dp_error *err)
{
    static const char *const ways[] = {
        "WHERE id = ?",
        "WHERE name = ? ORDER BY number DESC LIMIT 1",
        "WHERE substr(id, 1, length(?1)) = ?1 OR substr(name, 1, length(?1)) = ?1 "
        "ORDER BY number DESC LIMIT 2",
    };
    size_t ways_count = strlen(key) < PREFIX_LENGTH_MIN ? 2 : 3, count = 0;
    for (size_t i = 0; i < ways_count; i++) {
        dp_status status = find_by(store, ways[i], key, ret_job, &count, err);
        if (status != DP_OK || count == 1) {
            return status;
        }
    }
    if (count > 1) {
        return dp_fail(err, DP_CONFLICT, "\"%s\" fits more than one job: write more of it", key);
    }
    return dp_fail(err, DP_NOT_FOUND, "no job \"%s\": `dpctl jobs` lists them", key);
}

// The first column of the first row; *ret_value keeps its value when there is no row.
static dp_status query_integer(struct dp_store *store, const char *sql,
                               const struct parameter *parameters, size_t count, int64_t *ret_value,
                               struct dp_error *err)
{
    DP_CLEANUP(finalize) sqlite3_stmt *statement = NULL;
    dp_status status = query(store, sql, parameters, count, &statement, err);
    if (status != DP_OK) {
        return status;
    }
    int code = sqlite3_step(statement);
    if (code == SQLITE_ROW) {
        *ret_value = sqlite3_column_int64(statement, 0);
        return DP_OK;
    }
    return code == SQLITE_DONE ? DP_OK : dp_store_fail(err, store->reader, code, sql);
}

dp_status dp_store_find_request(struct dp_store *store, const char *request_id,
                                uint64_t *ret_number, struct dp_error *err)
{
    struct parameter parameters[] = {{.text = request_id}};
    int64_t number = 0;
    dp_status status =
        query_integer(store, "SELECT number FROM jobs WHERE request_id = ? AND request_id <> ''",
                      parameters, 1, &number, err);
    *ret_number = (uint64_t)number;
    return status;
}

dp_status dp_store_find_change(struct dp_store *store, const char *verb, const char *request_id,
                               char ret_object[DP_NAME_MAX], struct dp_error *err)
{
    static const char sql[] = "SELECT object FROM audit WHERE request_id = ?1 AND "
                              "request_id <> '' AND verb = ?2 AND outcome = 'ok' LIMIT 1";
    struct parameter parameters[] = {{.text = request_id}, {.text = verb}};
    DP_CLEANUP(finalize) sqlite3_stmt *statement = NULL;
    dp_status status = query(store, sql, parameters, 2, &statement, err);
    if (status != DP_OK) {
        return status;
    }
    int code = sqlite3_step(statement);
    if (code != SQLITE_ROW && code != SQLITE_DONE) {
        return dp_store_fail(err, store->reader, code, sql);
    }
    const char *object = code == SQLITE_ROW ? (const char *)sqlite3_column_text(statement, 0) : "";
    snprintf(ret_object, DP_NAME_MAX, "%s", object);
    return DP_OK;
}

dp_status dp_store_count_jobs(struct dp_store *store, uint64_t ret_counts[DP_STATE_COUNT],
                              struct dp_error *err)
{
    DP_CLEANUP(finalize) sqlite3_stmt *statement = NULL;
    dp_status status =
        query(store, "SELECT state, count(*) FROM jobs GROUP BY state", NULL, 0, &statement, err);
    if (status != DP_OK) {
        return status;
    }
    uint64_t counts[DP_STATE_COUNT] = {0};
    int code;
    while ((code = sqlite3_step(statement)) == SQLITE_ROW) {
        int64_t state = sqlite3_column_int64(statement, 0);
        if (state >= 0 && state < DP_STATE_COUNT) {
            counts[state] = (uint64_t)sqlite3_column_int64(statement, 1);
        }
    }
    if (code != SQLITE_DONE) {
        return dp_store_fail(err, store->reader, code, "jobs");
    }
    memcpy(ret_counts, counts, sizeof(counts));
    return DP_OK;
}

dp_status dp_store_ended_jobs(struct dp_store *store, uint64_t **ret_numbers, size_t *ret_count,
                              uint64_t *ret_highest, struct dp_error *err)
{
    int64_t highest = 0;
    dp_status status = query_integer(store,
                                     "SELECT max(coalesce((SELECT max(number) FROM jobs), 0), "
                                     "coalesce((SELECT max(number) FROM forgotten), 0))",
                                     NULL, 0, &highest, err);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf ended = {0};
    ended_states(&ended);
    DP_AUTO_FREE char *sql =
        dp_asprintf("SELECT number FROM jobs WHERE state IN %s UNION ALL SELECT number FROM "
                    "forgotten ORDER BY number",
                    ended.bytes);
    DP_CLEANUP(finalize) sqlite3_stmt *statement = NULL;
    if (status == DP_OK) {
        status = query(store, sql, NULL, 0, &statement, err);
    }
    if (status != DP_OK) {
        return status;
    }
    DP_AUTO_FREE uint64_t *numbers = NULL;
    size_t count = 0, capacity = 0;
    int code;
    while ((code = sqlite3_step(statement)) == SQLITE_ROW) {
        if (count == capacity) {
            capacity = capacity == 0 ? 64 : capacity * 2;
            numbers = dp_realloc(numbers, capacity, sizeof(*numbers));
        }
        numbers[count++] = (uint64_t)sqlite3_column_int64(statement, 0);
    }
    if (code != SQLITE_DONE) {
        return dp_store_fail(err, store->reader, code, "jobs");
    }
    *ret_numbers = dp_steal(numbers);
    *ret_count = count;
    *ret_highest = (uint64_t)highest;
    return DP_OK;
}

dp_status dp_store_load_ranks(struct dp_store *store, uint64_t job,
                              struct dp_rank_record **ret_ranks, size_t *ret_count,
                              struct dp_error *err)
{
    struct parameter parameters[] = {{.integer = (int64_t)job}};
    return load(store, DP_RECORD_RANK, "WHERE job = ? ORDER BY rank", parameters, 1, ret_ranks,
                ret_count, err);
}

dp_status dp_store_load_steps(struct dp_store *store, uint64_t job, uint64_t after, uint64_t stride,
                              uint32_t limit, struct dp_step_record **ret_steps, size_t *ret_count,
                              struct dp_error *err)
{
    struct parameter parameters[] = {{.integer = (int64_t)job},
                                     {.integer = (int64_t)after},
                                     {.integer = stride == 0 ? 1 : (int64_t)stride},
                                     {.integer = limit_or_all(limit)}};
    return load(store, DP_RECORD_STEP,
                "WHERE job = ?1 AND step > ?2 AND (step % ?3 = 0 OR step = 1 OR step = "
                "(SELECT max(step) FROM steps WHERE job = ?1)) ORDER BY step LIMIT ?4",
                parameters, 4, ret_steps, ret_count, err);
}

dp_status dp_store_load_traces(struct dp_store *store, uint64_t job, size_t bytes_max,
                               struct dp_trace_record **ret_traces, size_t *ret_count,
                               struct dp_error *err)
{
    struct parameter parameters[] = {{.integer = (int64_t)job}, {.integer = INT64_MAX}};
    DP_CLEANUP(finalize) sqlite3_stmt *sizes = NULL;
    dp_status status = query(store,
                             "SELECT step, sum(length(spans)) FROM traces WHERE job = ? "
                             "GROUP BY step ORDER BY step DESC",
                             parameters, 1, &sizes, err);
    int64_t left = (int64_t)bytes_max;
    while (status == DP_OK && sqlite3_step(sizes) == SQLITE_ROW &&
           (left -= sqlite3_column_int64(sizes, 1)) >= 0) {
        parameters[1].integer = sqlite3_column_int64(sizes, 0);
    }
    if (status != DP_OK) {
        return status;
    }
    return load(store, DP_RECORD_TRACE, "WHERE job = ? AND step >= ? ORDER BY step, rank",
                parameters, 2, ret_traces, ret_count, err);
}

dp_status dp_store_load_nodes(struct dp_store *store, struct dp_node_record **ret_nodes,
                              size_t *ret_count, struct dp_error *err)
{
    return load(store, DP_RECORD_NODE, "ORDER BY name", NULL, 0, ret_nodes, ret_count, err);
}

dp_status dp_store_load_clusters(struct dp_store *store, const char *name, bool blobs,
                                 struct dp_cluster_record **ret_clusters, size_t *ret_count,
                                 struct dp_error *err)
{
    struct parameter parameters[] = {{.text = name}};
    return load_some(store, DP_RECORD_CLUSTER, blobs,
                     name == NULL ? "ORDER BY name" : "WHERE name = ?1", parameters, name != NULL,
                     ret_clusters, ret_count, err);
}

dp_status dp_store_load_events(struct dp_store *store, const char *job, uint64_t after,
                               uint32_t limit, struct dp_event_record **ret_events,
                               size_t *ret_count, struct dp_error *err)
{
    struct parameter parameters[] = {
        {.integer = (int64_t)after}, {.integer = limit_or_all(limit)}, {.text = job}};
    bool all = job[0] == '\0';
    return load(store, DP_RECORD_EVENT,
                all ? "WHERE id > ?1 ORDER BY id LIMIT ?2"
                    : "WHERE id > ?1 AND job = ?3 ORDER BY id LIMIT ?2",
                parameters, all ? 2 : 3, ret_events, ret_count, err);
}

dp_status dp_store_load_last_events(struct dp_store *store, const char *job, uint64_t after,
                                    uint32_t limit, struct dp_event_record **ret_events,
                                    size_t *ret_count, struct dp_error *err)
{
    struct parameter parameters[] = {
        {.integer = (int64_t)after}, {.integer = limit_or_all(limit)}, {.text = job}};
    bool all = job[0] == '\0';
    return load(store, DP_RECORD_EVENT,
                all ? "WHERE id IN (SELECT id FROM events WHERE id > ?1 ORDER BY id DESC LIMIT ?2) "
                      "ORDER BY id"
                    : "WHERE id IN (SELECT id FROM events WHERE id > ?1 AND job = ?3 ORDER BY id "
                      "DESC LIMIT ?2) ORDER BY id",
                parameters, all ? 2 : 3, ret_events, ret_count, err);
}

dp_status dp_store_load_audit(struct dp_store *store, const struct dp_store_audit_filter *filter,
                              struct dp_audit_record **ret_entries, size_t *ret_count,
                              struct dp_error *err)
{
    struct parameter parameters[] = {{.integer = (int64_t)filter->after},
                                     {.integer = filter->since_ns},
                                     {.text = filter->user},
                                     {.integer = limit_or_all(filter->limit)},
                                     {.text = filter->object}};
    bool any = filter->object[0] == '\0';
    return load(store, DP_RECORD_AUDIT,
                any ? "WHERE id > ?1 AND time_ns >= ?2 AND (?3 = '' OR user = ?3) "
                      "ORDER BY id LIMIT ?4"
                    : "WHERE object = ?5 AND id > ?1 AND time_ns >= ?2 AND "
                      "(?3 = '' OR user = ?3) ORDER BY id LIMIT ?4",
                parameters, any ? 4 : 5, ret_entries, ret_count, err);
}

dp_status dp_store_load_history(struct dp_store *store, const char *user, int64_t since_ns,
                                uint32_t limit, struct dp_job_record **ret_jobs, size_t *ret_count,
                                struct dp_error *err)
{
    struct parameter parameters[] = {
        {.integer = since_ns}, {.text = user}, {.integer = limit_or_all(limit)}};
    return load_jobs(store, false,
                     "WHERE ended_ns > 0 AND ended_ns >= ?1 AND (?2 = '' OR user = ?2) "
                     "ORDER BY ended_ns DESC, number DESC LIMIT ?3",
                     parameters, 3, ret_jobs, ret_count, err);
}

dp_status dp_store_load_profiles(struct dp_store *store, const char *node, const char *source,
                                 uint32_t limit, struct dp_profile_record **ret_profiles,
                                 size_t *ret_count, struct dp_error *err)
{
    struct parameter parameters[] = {
        {.text = node}, {.text = source}, {.integer = limit_or_all(limit)}};
    return load(store, DP_RECORD_PROFILE,
                "WHERE (?1 = '' OR node = ?1) AND (?2 = '' OR source = ?2) "
                "ORDER BY time_ns DESC, node LIMIT ?3",
                parameters, 3, ret_profiles, ret_count, err);
}

dp_status dp_store_load_decisions(struct dp_store *store, uint64_t job, uint32_t limit,
                                  struct dp_decision_record **ret_decisions, size_t *ret_count,
                                  struct dp_error *err)
{
    struct parameter parameters[] = {{.integer = (int64_t)job}, {.integer = limit_or_all(limit)}};
    return load(store, DP_RECORD_DECISION,
                "WHERE job = ?1 AND (?2 < 0 OR number > (SELECT max(number) FROM decisions WHERE "
                "job = ?1) - ?2) ORDER BY number",
                parameters, 2, ret_decisions, ret_count, err);
}

dp_status dp_store_load_last_decisions(struct dp_store *store,
                                       struct dp_decision_record **ret_decisions, size_t *ret_count,
                                       struct dp_error *err)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf ended = {0};
    ended_states(&ended);
    DP_AUTO_FREE char *clause = dp_asprintf(
        "WHERE (job, number) IN (SELECT d.job, max(d.number) FROM jobs JOIN decisions AS d ON "
        "d.job = jobs.number WHERE jobs.state NOT IN %s GROUP BY d.job) OR (job, number) IN "
        "(SELECT job, number FROM decisions WHERE state = ? ORDER BY time_ns DESC LIMIT 1) "
        "ORDER BY job, number",
        ended.bytes);
    struct parameter parameters[] = {{.integer = DP_DECISION_MEASURED}};
    return load(store, DP_RECORD_DECISION, clause, parameters, 1, ret_decisions, ret_count, err);
}

dp_status dp_store_load_verdicts(struct dp_store *store, uint64_t job, uint32_t limit,
                                 struct dp_verdict_record **ret_verdicts, size_t *ret_count,
                                 struct dp_error *err)
{
    struct parameter parameters[] = {{.integer = (int64_t)job}, {.integer = limit_or_all(limit)}};
    return load(store, DP_RECORD_VERDICT, "WHERE job = ? ORDER BY id DESC LIMIT ?", parameters, 2,
                ret_verdicts, ret_count, err);
}

dp_status dp_store_load_attempts(struct dp_store *store, uint64_t job,
                                 struct dp_attempt_record **ret_attempts, size_t *ret_count,
                                 struct dp_error *err)
{
    struct parameter parameters[] = {{.integer = (int64_t)job}};
    return load(store, DP_RECORD_ATTEMPT, "WHERE job = ? ORDER BY attempt", parameters, 1,
                ret_attempts, ret_count, err);
}

dp_status dp_store_load_quotas(struct dp_store *store, struct dp_quota_record **ret_quotas,
                               size_t *ret_count, struct dp_error *err)
{
    return load(store, DP_RECORD_QUOTA, "ORDER BY user", NULL, 0, ret_quotas, ret_count, err);
}

dp_status dp_store_last_event(struct dp_store *store, uint64_t *ret_id, struct dp_error *err)
{
    // Of rows that retention has taken away, too.
    static const char sql[] =
        "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'events'), 0)";
    int64_t last = 0;
    dp_status status = query_integer(store, sql, NULL, 0, &last, err);
    if (status == DP_OK) {
        *ret_id = (uint64_t)last;
    }
    return status;
}

dp_status dp_store_load_lesson(struct dp_store *store, uint64_t job,
                               struct dp_lesson_record *ret_lesson, struct dp_error *err)
{
    struct parameter parameters[] = {{.integer = (int64_t)job}};
    struct dp_lesson_record *lessons = NULL;
    size_t count = 0;
    dp_status status =
        load(store, DP_RECORD_LESSON, "WHERE job = ?1", parameters, 1, &lessons, &count, err);
    if (status != DP_OK) {
        return status;
    }
    *ret_lesson = (struct dp_lesson_record){.job = job};
    if (count > 0) {
        *ret_lesson = lessons[0];
    }
    free(lessons);
    return DP_OK;
}

// The only row of a query for a job, by column; what is NULL keeps its value.
static dp_status query_row(struct dp_store *store, const char *sql, uint64_t job,
                           sqlite3_stmt **ret_statement, bool *ret_found, struct dp_error *err)
{
    struct parameter parameters[] = {{.integer = (int64_t)job}};
    dp_status status = query(store, sql, parameters, 1, ret_statement, err);
    if (status != DP_OK) {
        return status;
    }
    int code = sqlite3_step(*ret_statement);
    *ret_found = code == SQLITE_ROW;
    return code == SQLITE_ROW || code == SQLITE_DONE ? DP_OK
                                                     : dp_store_fail(err, store->reader, code, sql);
}

static dp_status summarise_losses(struct dp_store *store, uint64_t job,
                                  struct dp_step_summary *summary, struct dp_error *err)
{
    DP_CLEANUP(finalize) sqlite3_stmt *first = NULL;
    DP_CLEANUP(finalize) sqlite3_stmt *last = NULL;
    bool found = false;
    dp_status status = query_row(store,
                                 "SELECT step, loss FROM steps WHERE job = ? AND loss_known "
                                 "ORDER BY step LIMIT 1",
                                 job, &first, &found, err);
    if (status != DP_OK || !found) {
        return status;
    }
    summary->loss_known = true;
    summary->first_loss_step = (uint64_t)sqlite3_column_int64(first, 0);
    summary->first_loss = sqlite3_column_double(first, 1);
    status = query_row(store,
                       "SELECT count(*), avg(loss) FROM (SELECT loss FROM steps WHERE job = ? AND "
                       "loss_known ORDER BY step DESC LIMIT 10)",
                       job, &last, &found, err);
    if (status == DP_OK && found) {
        summary->averaged = (uint64_t)sqlite3_column_int64(last, 0);
        summary->last_loss = sqlite3_column_double(last, 1);
    }
    return status;
}

dp_status dp_store_summarise_steps(struct dp_store *store, uint64_t job,
                                   struct dp_step_summary *ret_summary, struct dp_error *err)
{
    struct dp_step_summary summary = {0};
    DP_CLEANUP(finalize) sqlite3_stmt *statement = NULL;
    bool found = false;
    dp_status status = query_row(
        store,
        "SELECT coalesce(max(step), 0), coalesce(avg(CASE WHEN step > (SELECT min(step) FROM "
        "steps WHERE job = ?1) THEN step_ns END), 0), count(*) FROM steps WHERE job = ?1",
        job, &statement, &found, err);
    if (status == DP_OK && found) {
        summary.steps = (uint64_t)sqlite3_column_int64(statement, 0);
        summary.mean_step_ns = (int64_t)sqlite3_column_double(statement, 1);
        summary.rows = (uint64_t)sqlite3_column_int64(statement, 2);
        status = summarise_losses(store, job, &summary, err);
    }
    *ret_summary = summary;
    return status;
}
