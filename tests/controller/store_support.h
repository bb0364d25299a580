// What the store's tests share: a directory for each test, and writing that waits.
#pragma once

#include "dp/store.h"
#include "dp_test.h"

struct store_result {
    uint64_t token;
    struct dp_error error;
};

// *state is a fresh directory; teardown removes it.
int store_setup(void **state);
int store_teardown(void **state);
struct dp_store *store_open(const char *directory);
struct dp_job_record store_job(uint64_t number, dp_job_state state);
// Waits for the next `count` completions.
void store_wait(struct dp_store *store, struct store_result *ret_results, size_t count);
// Waits until nothing is queued.
void store_drain(struct dp_store *store);
// One transaction, and its fate; err may be NULL.
dp_status store_write(struct dp_store *store, const struct dp_record *records, size_t count,
                      struct dp_error *err);
dp_status store_write_job(struct dp_store *store, uint64_t number, dp_job_state state,
                          struct dp_error *err);
// Runs statements on the database of this directory, or of this file; waits for other writers.
void store_sql(const char *directory, const char *sql);
void store_sql_in(const char *path, const char *sql);
// Writes a copy of the whole database there.
void store_back_up(struct dp_store *store, const char *path);
// The same of one that is closed.
void store_back_up_closed(const char *directory, const char *path);
// No file of this process grows beyond this from now on, which writers take for a full disk;
// store_unlimit_files() lets them grow again.
void store_limit_files(uint64_t bytes);
void store_unlimit_files(void);
// Every row of a database's tables as text, in order: two with the same content give the same. The
// caller frees it.
char *store_dump(const char *path);
