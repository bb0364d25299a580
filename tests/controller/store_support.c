#include "store_support.h"

#include <dirent.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "dp/alloc.h"
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
