// The store with real SQLite on a real file system.
#include <poll.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/store.h"
#include "store_support.h"

static void what_is_stored_is_read_back_after_a_restart(void **state)
{
    const char *directory = *state;
    struct dp_store *store = store_open(directory);
    struct dp_job_record job = store_job(17, DP_STATE_RUNNING);
    DP_COPY_TEXT(job.message, "zażółć 'gęślą' \"jaźń\"");
    dp_buf_append(&job.plan, "\0\1\2", 3);
    job.token = UINT64_MAX - 3;
    job.unigram_entropy = 3.17;
    job.corpus_tokens = 4711;
    struct dp_rank_record rank = {.job = 17, .rank = 3, .phase = DP_RANK_READY, .signal = -1};
    rank.total.comm_exposed_ns = 1ll << 60;
    rank.usage.evaluation_ns = 12;
    rank.total.evaluation_ns = 1ll << 50;
    rank.load = (struct dp_rank_load){3.5, 60, 255, 0.75};
    struct dp_record records[] = {{DP_RECORD_JOB, &job}, {DP_RECORD_RANK, &rank}};
    assert_int_equal(store_write(store, records, 2, NULL), DP_OK);
    dp_store_close(store);

    store = store_open(directory);
    struct dp_job_record *jobs = NULL;
    struct dp_rank_record *ranks = NULL;
    size_t count = 0;
    struct dp_error err = {0};
    assert_ok(dp_store_load_jobs(store, DP_STORE_JOBS_ALL, "", true, 0, &jobs, &count, &err), &err);
    assert_int_equal(count, 1);
    assert_string_equal(jobs[0].message, job.message);
    assert_int_equal(jobs[0].state, DP_STATE_RUNNING);
    assert_true(jobs[0].token == UINT64_MAX - 3);
    assert_true(jobs[0].unigram_entropy == 3.17);
    assert_int_equal(jobs[0].corpus_tokens, 4711);
    assert_int_equal(jobs[0].plan.length, 3);
    assert_memory_equal(jobs[0].plan.bytes, "\0\1\2", 3);
    assert_ok(dp_store_load_ranks(store, 17, &ranks, &count, &err), &err);
    assert_int_equal(count, 1);
    assert_int_equal(ranks[0].signal, -1);
    assert_true(ranks[0].total.comm_exposed_ns == 1ll << 60);
    assert_true(ranks[0].usage.evaluation_ns == 12 && ranks[0].total.evaluation_ns == 1ll << 50);
    assert_true(ranks[0].load.skew == 3.5 && ranks[0].load.rank == 0.75);
    assert_true(ranks[0].load.layer == 60 && ranks[0].load.expert == 255);
    free(ranks);
    dp_job_record_deinit(&jobs[0]);
    free(jobs);
    dp_job_record_deinit(&job);
    dp_store_close(store);
}

static void an_ended_job_is_never_changed_on_disk(void **state)
{
    struct dp_store *store = store_open(*state);
    struct dp_error err = {0};
    assert_int_equal(store_write_job(store, 1, DP_STATE_ASSIGNING, &err), DP_OK);
    // A row may skip states that were never written, but not go back.
    assert_int_equal(store_write_job(store, 1, DP_STATE_COMPLETED, &err), DP_OK);
    for (dp_job_state to = DP_STATE_SUBMITTED; to < DP_STATE_COUNT; to++) {
        if (to != DP_STATE_COMPLETED) {
            assert_refused(store_write_job(store, 1, to, &err), DP_CONFLICT, &err, "cannot become");
        }
    }
    struct dp_job_record job;
    assert_ok(dp_store_find_job(store, "job-1", &job, &err), &err);
    assert_int_equal(job.state, DP_STATE_COMPLETED);
    dp_job_record_deinit(&job);
    dp_store_close(store);
}

static void one_refused_transaction_does_not_hurt_its_neighbours(void **state)
{
    struct dp_store *store = store_open(*state);
    struct dp_error err = {0};
    assert_int_equal(store_write_job(store, 1, DP_STATE_FAILED, &err), DP_OK);
    struct dp_job_record jobs[3] = {store_job(2, DP_STATE_QUEUED), store_job(1, DP_STATE_RUNNING),
                                    store_job(3, DP_STATE_QUEUED)};
    struct dp_event_record event = {.kind = "half", .message = "of a refused transaction"};
    for (uint64_t i = 0; i < 3; i++) {
        struct dp_record records[] = {{DP_RECORD_EVENT, &event}, {DP_RECORD_JOB, &jobs[i]}};
        dp_store_submit(store, i + 1, records, 2);
    }
    struct store_result results[3];
    store_wait(store, results, 3);
    for (uint64_t i = 0; i < 3; i++) {
        assert_int_equal(results[i].token, i + 1);
        assert_int_equal(results[i].error.status, i == 1 ? DP_CONFLICT : DP_OK);
    }
    DP_AUTO_FREE struct dp_event_record *events = NULL;
    size_t count = 0;
    assert_ok(dp_store_load_events(store, "", 0, 0, &events, &count, &err), &err);
    assert_int_equal(count, 2);
    dp_store_close(store);
}

static void a_request_id_belongs_to_one_job(void **state)
{
    struct dp_store *store = store_open(*state);
    struct dp_job_record job = store_job(1, DP_STATE_QUEUED);
    DP_COPY_TEXT(job.request_id, "r-1");
    struct dp_record record = {DP_RECORD_JOB, &job};
    struct dp_error err = {0};
    assert_int_equal(store_write(store, &record, 1, &err), DP_OK);
    job = store_job(2, DP_STATE_QUEUED);
    DP_COPY_TEXT(job.request_id, "r-1");
    assert_int_equal(store_write(store, &record, 1, &err), DP_CONFLICT);
    uint64_t number = 0;
    assert_ok(dp_store_find_request(store, "r-1", &number, &err), &err);
    assert_int_equal(number, 1);
    assert_ok(dp_store_find_request(store, "", &number, &err), &err);
    assert_int_equal(number, 0);
    dp_store_close(store);
}

static void a_job_is_found_by_id_name_or_a_prefix_that_fits_one(void **state)
{
    struct dp_store *store = store_open(*state);
    static const char *const names[] = {"alpha-one", "alpha-two", "beta", "alpha-one"};
    struct dp_error err = {0};
    for (uint64_t i = 0; i < 4; i++) {
        struct dp_job_record job = store_job(i + 1, DP_STATE_QUEUED);
        DP_COPY_TEXT(job.name, names[i]);
        struct dp_record record = {DP_RECORD_JOB, &job};
        assert_int_equal(store_write(store, &record, 1, &err), DP_OK);
    }
    static const struct {
        const char *key;
        uint64_t number;
        dp_status status;
    } rows[] = {
        {"job-2", 2, DP_OK},        {"alpha-one", 4, DP_OK},          {"alpha-t", 2, DP_OK},
        {"beta", 3, DP_OK},         {"alph", 0, DP_CONFLICT},         {"bet", 0, DP_NOT_FOUND},
        {"gamma", 0, DP_NOT_FOUND}, {"' OR 1=1 --", 0, DP_NOT_FOUND},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct dp_job_record job = {0};
        assert_int_equal(dp_store_find_job(store, rows[i].key, &job, &err), rows[i].status);
        assert_int_equal(job.number, rows[i].number);
        dp_job_record_deinit(&job);
    }
    dp_store_close(store);
}

static void reports_of_one_step_are_merged(void **state)
{
    struct dp_store *store = store_open(*state);
    assert_int_equal(store_write_job(store, 1, DP_STATE_RUNNING, NULL), DP_OK);
    struct dp_step_record steps[] = {
        {.job = 1, .step = 1, .step_ns = 7, .tokens = 100, .time_ns = 20},
        {.job = 1, .step = 1, .step_ns = 9, .loss = 5.5, .loss_known = true, .time_ns = 10},
        {.job = 1, .step = 1, .step_ns = 8},
    };
    for (size_t i = 0; i < 3; i++) {
        struct dp_record record = {DP_RECORD_STEP, &steps[i]};
        assert_int_equal(store_write(store, &record, 1, NULL), DP_OK);
    }
    DP_AUTO_FREE struct dp_step_record *loaded = NULL;
    size_t count = 0;
    struct dp_error err = {0};
    assert_ok(dp_store_load_steps(store, 1, 0, 1, 0, &loaded, &count, &err), &err);
    assert_int_equal(count, 1);
    assert_int_equal(loaded[0].step_ns, 9);
    assert_int_equal(loaded[0].tokens, 100);
    assert_true(loaded[0].loss_known && loaded[0].loss == 5.5);
    assert_int_equal(loaded[0].time_ns, 20);
    dp_store_close(store);
}

// The newest step of a job, as it is listed and as it is found.
static void assert_newest(struct dp_store *store, uint64_t step, bool loss_known)
{
    struct dp_error err = {0};
    struct dp_job_record found = {0}, *listed = NULL;
    size_t count = 0;
    assert_ok(dp_store_find_job(store, "job-1", &found, &err), &err);
    assert_ok(dp_store_load_jobs(store, DP_STORE_JOBS_ALL, "", false, 0, &listed, &count, &err),
              &err);
    assert_int_equal(count, 1);
    assert_int_equal(found.step, step);
    assert_int_equal(listed[0].step, step);
    assert_true(found.loss_known == loss_known && listed[0].loss_known == loss_known);
    dp_job_record_deinit(&found);
    dp_job_record_deinit(&listed[0]);
    free(listed);
}

static void steps_of_an_attempt_that_is_over_are_not_the_job_s_newest(void **state)
{
    struct dp_store *store = store_open(*state);
    struct dp_job_record job = store_job(1, DP_STATE_RUNNING);
    struct dp_record record = {DP_RECORD_JOB, &job};
    job.attempt = 1;
    assert_int_equal(store_write(store, &record, 1, NULL), DP_OK);
    for (uint64_t i = 1; i <= 36; i++) {
        struct dp_step_record step = {
            .job = 1, .step = i, .attempt = 1, .loss = 4.6, .loss_known = true};
        dp_store_submit(store, 0, &(struct dp_record){DP_RECORD_STEP, &step}, 1);
    }
    store_drain(store);
    assert_newest(store, 36, true);
    job.state = DP_STATE_QUEUED;
    job.attempt = 2;
    job.resumed_step = 20;
    assert_int_equal(store_write(store, &record, 1, NULL), DP_OK);
    assert_newest(store, 20, false);
    struct dp_step_record again = {
        .job = 1, .step = 21, .attempt = 2, .loss = 4.7, .loss_known = true};
    record = (struct dp_record){DP_RECORD_STEP, &again};
    assert_int_equal(store_write(store, &record, 1, NULL), DP_OK);
    assert_newest(store, 21, true);
    dp_store_close(store);
}

static void the_summary_of_steps_has_mean_and_ends(void **state)
{
    struct dp_store *store = store_open(*state);
    assert_int_equal(store_write_job(store, 1, DP_STATE_RUNNING, NULL), DP_OK);
    for (uint64_t i = 1; i <= 31; i++) {
        // The first is slow; the others take 1 to 30 in a shuffled order.
        int64_t step_ns = i == 1 ? 1000 : (int64_t)(i * 7 % 31);
        struct dp_step_record step = {
            .job = 1, .step = i, .step_ns = step_ns, .loss_known = true, .loss = 100.0 - (double)i};
        struct dp_record record = {DP_RECORD_STEP, &step};
        dp_store_submit(store, 0, &record, 1);
    }
    store_drain(store);
    struct dp_step_summary summary;
    struct dp_error err = {0};
    assert_ok(dp_store_summarise_steps(store, 1, &summary, &err), &err);
    assert_int_equal(summary.steps, 31);
    assert_true(summary.first_loss == 99.0);
    assert_int_equal(summary.first_loss_step, 1);
    assert_int_equal(summary.averaged, 10);
    assert_true(summary.last_loss == 100.0 - (22 + 31) / 2.0);
    // 0 to 30 without 7 (i = 1): 458 / 30.
    assert_int_equal(summary.mean_step_ns, 15);
    DP_AUTO_FREE struct dp_step_record *thin = NULL;
    size_t count = 0;
    assert_ok(dp_store_load_steps(store, 1, 0, 10, 0, &thin, &count, &err), &err);
    assert_int_equal(count, 5);
    assert_int_equal(thin[0].step, 1);
    assert_int_equal(thin[3].step, 30);
    assert_int_equal(thin[4].step, 31);
    dp_store_close(store);
}

static void only_the_newest_traces_of_a_job_are_kept(void **state)
{
    struct dp_store *store = store_open(*state);
    assert_int_equal(store_write_job(store, 1, DP_STATE_RUNNING, NULL), DP_OK);
    for (uint64_t step = 1; step <= 3 * DP_TRACE_STEPS_MAX; step++) {
        for (uint32_t rank = 0; rank < 2; rank++) {
            struct dp_trace_record trace = {.job = 1, .step = step, .rank = rank};
            dp_buf_append(&trace.spans, "x", 1);
            struct dp_record record = {DP_RECORD_TRACE, &trace};
            dp_store_submit(store, 0, &record, 1);
            dp_trace_record_deinit(&trace);
        }
    }
    store_drain(store);
    struct dp_trace_record *traces = NULL;
    size_t count = 0;
    struct dp_error err = {0};
    assert_ok(dp_store_load_traces(store, 1, SIZE_MAX / 2, &traces, &count, &err), &err);
    assert_int_equal(count, 2 * DP_TRACE_STEPS_MAX);
    assert_int_equal(traces[0].step, 2 * DP_TRACE_STEPS_MAX + 1);
    for (size_t i = 0; i < count; i++) {
        dp_trace_record_deinit(&traces[i]);
    }
    free(traces);
    dp_store_close(store);
}

static void events_resume_from_an_index_and_belong_to_jobs(void **state)
{
    struct dp_store *store = store_open(*state);
    for (int i = 0; i < 5; i++) {
        struct dp_event_record event = {.time_ns = i, .kind = "k", .message = "m"};
        DP_COPY_TEXT(event.job, i % 2 == 0 ? "job-1" : "job-2");
        struct dp_record record = {DP_RECORD_EVENT, &event};
        assert_int_equal(store_write(store, &record, 1, NULL), DP_OK);
    }
    DP_AUTO_FREE struct dp_event_record *all = NULL, *some = NULL;
    size_t count = 0;
    struct dp_error err = {0};
    assert_ok(dp_store_load_events(store, "", 2, 2, &all, &count, &err), &err);
    assert_int_equal(count, 2);
    assert_int_equal(all[0].id, 3);
    assert_ok(dp_store_load_events(store, "job-1", 1, 0, &some, &count, &err), &err);
    assert_int_equal(count, 2);
    assert_int_equal(some[1].id, 5);
    // The newest ones, still in order.
    DP_AUTO_FREE struct dp_event_record *last = NULL, *own = NULL;
    assert_ok(dp_store_load_last_events(store, "", 1, 2, &last, &count, &err), &err);
    assert_int_equal(count, 2);
    assert_int_equal(last[0].id, 4);
    assert_int_equal(last[1].id, 5);
    assert_ok(dp_store_load_last_events(store, "job-2", 0, 1, &own, &count, &err), &err);
    assert_int_equal(count, 1);
    assert_int_equal(own[0].id, 4);
    dp_store_close(store);
}

static void jobs_of_one_user_are_found_and_the_limit_counts_them_alone(void **state)
{
    struct dp_store *store = store_open(*state);
    for (uint64_t number = 1; number <= 6; number++) {
        struct dp_job_record job =
            store_job(number, number < 3 ? DP_STATE_COMPLETED : DP_STATE_QUEUED);
        DP_COPY_TEXT(job.user, number % 2 == 0 ? "alice" : "bob");
        struct dp_record record = {DP_RECORD_JOB, &job};
        assert_int_equal(store_write(store, &record, 1, NULL), DP_OK);
    }
    static const struct {
        const char *user;
        dp_store_jobs which;
        uint32_t limit;
        size_t wanted;
        uint64_t first;
    } asked[] = {{"alice", DP_STORE_JOBS_ALL, 0, 3, 6},
                 {"alice", DP_STORE_JOBS_ACTIVE, 0, 2, 6},
                 {"bob", DP_STORE_JOBS_ALL, 2, 2, 5},
                 {"", DP_STORE_JOBS_ALL, 0, 6, 6},
                 {"nobody", DP_STORE_JOBS_ALL, 0, 0, 0}};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(asked); i++) {
        struct dp_job_record *jobs = NULL;
        size_t count = 0;
        struct dp_error err = {0};
        assert_ok(dp_store_load_jobs(store, asked[i].which, asked[i].user, false, asked[i].limit,
                                     &jobs, &count, &err),
                  &err);
        assert_int_equal(count, asked[i].wanted);
        for (size_t k = 0; k < count; k++) {
            assert_true(k > 0 || jobs[k].number == asked[i].first);
            dp_job_record_deinit(&jobs[k]);
        }
        free(jobs);
    }
    dp_store_close(store);
}

static void a_full_disk_fails_what_does_not_fit_and_nothing_else(void **state)
{
    struct dp_store_options options = {.directory = *state, .pages_max = 60};
    struct dp_store *store = NULL;
    struct dp_error err = {0};
    assert_ok(dp_store_open(&options, &store, &err), &err);
    assert_int_equal(store_write_job(store, 1, DP_STATE_QUEUED, &err), DP_OK);
    struct dp_job_record large = store_job(2, DP_STATE_QUEUED);
    dp_buf_extend(&large.job_toml, 1 << 20);
    memset(large.job_toml.bytes, 'x', large.job_toml.length);
    struct dp_record record = {DP_RECORD_JOB, &large};
    // In one group with others, so that its failure meets them.
    struct dp_job_record small[2] = {store_job(3, DP_STATE_QUEUED), store_job(4, DP_STATE_QUEUED)};
    dp_store_submit(store, 1, &(struct dp_record){DP_RECORD_JOB, &small[0]}, 1);
    dp_store_submit(store, 2, &record, 1);
    dp_store_submit(store, 3, &(struct dp_record){DP_RECORD_JOB, &small[1]}, 1);
    struct store_result results[3];
    store_wait(store, results, 3);
    assert_int_equal(results[0].error.status, DP_OK);
    assert_refused(results[1].error.status, DP_IO, &results[1].error, "make room on the disk");
    assert_int_equal(results[2].error.status, DP_OK);
    dp_job_record_deinit(&large);
    uint64_t *ended = NULL, highest = 0;
    size_t count = 0;
    assert_ok(dp_store_ended_jobs(store, &ended, &count, &highest, &err), &err);
    assert_int_equal(highest, 4);
    free(ended);
    assert_int_equal(store_write_job(store, 1, DP_STATE_CANCELLED, &err), DP_OK);
    dp_store_close(store);
}

static void the_second_user_of_a_directory_is_told_who_the_first_is(void **state)
{
    struct dp_store *store = store_open(*state);
    struct dp_store_options options = {.directory = *state};
    struct dp_store *second = NULL;
    struct dp_error err = {0};
    char pid[32];
    snprintf(pid, sizeof(pid), "process %ld", (long)getpid());
    assert_refused(dp_store_open(&options, &second, &err), DP_CONFLICT, &err, pid);
    assert_int_equal(store_write_job(store, 1, DP_STATE_QUEUED, &err), DP_OK);
    dp_store_close(store);
    assert_ok(dp_store_open(&options, &second, &err), &err);
    dp_store_close(second);
}

static void the_integrity_check_reads_what_a_store_has_left(void **state)
{
    struct dp_store *store = store_open(*state);
    assert_int_equal(store_write_job(store, 1, DP_STATE_QUEUED, NULL), DP_OK);
    struct dp_error err = {0};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf report = {0};
    assert_refused(dp_store_check(*state, &report, &err), DP_CONFLICT, &err, "in use");
    dp_store_close(store);
    assert_ok(dp_store_check(*state, &report, &err), &err);
    assert_non_null(strstr(report.bytes, "controller.db: ok\n"));
}

static void put_profile(struct dp_store *store, const char *node, int64_t time_ns,
                        const char *source, const char *text)
{
    struct dp_profile_record row = {.time_ns = time_ns};
    DP_COPY_TEXT(row.node, node);
    DP_COPY_TEXT(row.source, source);
    dp_buf_puts(&row.document, text);
    struct dp_record record = {DP_RECORD_PROFILE, &row};
    struct dp_error err = {0};
    assert_ok(store_write(store, &record, 1, &err), &err);
    dp_profile_record_deinit(&row);
}

static void the_newest_64_profiles_of_each_node_are_kept(void **state)
{
    struct dp_store *store = store_open(*state);
    for (int i = 1; i <= 70; i++) {
        char text[16];
        snprintf(text, sizeof(text), "p%d", i);
        put_profile(store, "a", i, i % 10 == 0 ? DP_PROFILE_RUN : DP_PROFILE_CALIBRATION, text);
    }
    put_profile(store, "b", 1, DP_PROFILE_CALIBRATION, "other");
    struct dp_profile_record *rows = NULL;
    size_t count = 0;
    struct dp_error err = {0};
    assert_ok(dp_store_load_profiles(store, "a", "", 0, &rows, &count, &err), &err);
    assert_int_equal(count, 64);
    assert_string_equal(rows[0].document.bytes, "p70");
    assert_string_equal(rows[63].document.bytes, "p7");
    for (size_t i = 0; i < count; i++) {
        dp_profile_record_deinit(&rows[i]);
    }
    free(rows);
    assert_ok(dp_store_load_profiles(store, "", DP_PROFILE_RUN, 3, &rows, &count, &err), &err);
    assert_int_equal(count, 3);
    assert_int_equal(rows[2].time_ns, 50);
    for (size_t i = 0; i < count; i++) {
        dp_profile_record_deinit(&rows[i]);
    }
    free(rows);
    dp_store_close(store);
}

static void a_lesson_is_written_over_and_one_that_is_missing_is_empty(void **state)
{
    struct dp_store *store = store_open(*state);
    for (int i = 0; i < 2; i++) {
        struct dp_lesson_record row = {.job = 9};
        dp_buf_puts(&row.document, i == 0 ? "planned" : "learned");
        struct dp_record record = {DP_RECORD_LESSON, &row};
        struct dp_error stored = {0};
        assert_ok(store_write(store, &record, 1, &stored), &stored);
        dp_lesson_record_deinit(&row);
    }
    struct dp_lesson_record lesson;
    struct dp_error err = {0};
    assert_ok(dp_store_load_lesson(store, 9, &lesson, &err), &err);
    assert_string_equal(lesson.document.bytes, "learned");
    dp_lesson_record_deinit(&lesson);
    assert_ok(dp_store_load_lesson(store, 8, &lesson, &err), &err);
    assert_int_equal(lesson.document.length, 0);
    dp_store_close(store);
}

static void put_cluster(struct dp_store *store, const char *name, uint64_t version, bool deleted)
{
    struct dp_cluster_record row = {.version = version, .hosts = 7, .deleted = deleted};
    struct dp_record record = {DP_RECORD_CLUSTER, &row};
    DP_COPY_TEXT(row.name, name);
    dp_buf_printf(&row.toml, "name = \"%s\"\n", name);
    assert_int_equal(store_write(store, &record, 1, NULL), DP_OK);
    dp_cluster_record_deinit(&row);
}

static void assert_clusters(struct dp_store *store, const char *name, bool blobs,
                            const char *wanted)
{
    struct dp_error err = {0};
    struct dp_cluster_record *rows = NULL;
    size_t count = 0;
    assert_ok(dp_store_load_clusters(store, name, blobs, &rows, &count, &err), &err);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_buf_puts(&text, "");
    for (size_t i = 0; i < count; i++) {
        dp_buf_printf(&text, "%s@%d:%zu ", rows[i].name, (int)rows[i].version, rows[i].toml.length);
        assert_int_equal(rows[i].hosts, 7);
        dp_cluster_record_deinit(&rows[i]);
    }
    free(rows);
    assert_string_equal(text.bytes, wanted);
}

static void clusters_are_kept_by_name_until_they_are_deleted(void **state)
{
    struct dp_store *store = store_open(*state);
    put_cluster(store, "lab", 1, false);
    put_cluster(store, "a", 1, false);
    put_cluster(store, "lab", 2, false);
    assert_clusters(store, NULL, false, "a@1:0 lab@2:0 ");
    assert_clusters(store, "lab", true, "lab@2:13 ");
    put_cluster(store, "lab", 2, true);
    put_cluster(store, "never", 1, true);
    dp_store_close(store);
    store = store_open(*state);
    assert_clusters(store, NULL, true, "a@1:11 ");
    put_cluster(store, "lab", 1, false); // the name may be used again
    assert_clusters(store, NULL, false, "a@1:0 lab@1:0 ");
    dp_store_close(store);
}

static void what_a_node_has_is_read_back(void **state)
{
    struct dp_store *store = store_open(*state);
    struct dp_node_record node = {.slots = 2};
    struct dp_record record = {DP_RECORD_NODE, &node};
    DP_COPY_TEXT(node.name, "n1");
    dp_buf_append(&node.hardware, "\0\1gpu", 5);
    assert_int_equal(store_write(store, &record, 1, NULL), DP_OK);
    dp_node_record_deinit(&node);
    dp_store_close(store);
    store = store_open(*state);
    struct dp_error err = {0};
    struct dp_node_record *nodes = NULL;
    size_t count = 0;
    assert_ok(dp_store_load_nodes(store, &nodes, &count, &err), &err);
    assert_int_equal(count, 1);
    assert_int_equal(nodes[0].hardware.length, 5);
    assert_memory_equal(nodes[0].hardware.bytes, "\0\1gpu", 5);
    dp_node_record_deinit(&nodes[0]);
    free(nodes);
    dp_store_close(store);
}

#define STORE_TEST(name) cmocka_unit_test_setup_teardown(name, store_setup, store_teardown)

static const struct CMUnitTest tests[] = {
    STORE_TEST(what_is_stored_is_read_back_after_a_restart),
    STORE_TEST(an_ended_job_is_never_changed_on_disk),
    STORE_TEST(one_refused_transaction_does_not_hurt_its_neighbours),
    STORE_TEST(a_request_id_belongs_to_one_job),
    STORE_TEST(a_job_is_found_by_id_name_or_a_prefix_that_fits_one),
    STORE_TEST(reports_of_one_step_are_merged),
    STORE_TEST(steps_of_an_attempt_that_is_over_are_not_the_job_s_newest),
    STORE_TEST(the_summary_of_steps_has_mean_and_ends),
    STORE_TEST(only_the_newest_traces_of_a_job_are_kept),
    STORE_TEST(events_resume_from_an_index_and_belong_to_jobs),
    STORE_TEST(jobs_of_one_user_are_found_and_the_limit_counts_them_alone),
    STORE_TEST(a_full_disk_fails_what_does_not_fit_and_nothing_else),
    STORE_TEST(the_second_user_of_a_directory_is_told_who_the_first_is),
    STORE_TEST(the_newest_64_profiles_of_each_node_are_kept),
    STORE_TEST(a_lesson_is_written_over_and_one_that_is_missing_is_empty),
    STORE_TEST(clusters_are_kept_by_name_until_they_are_deleted),
    STORE_TEST(what_a_node_has_is_read_back),
    STORE_TEST(the_integrity_check_reads_what_a_store_has_left),
};

int main(void)
{
    return cmocka_run_group_tests(tests, NULL, NULL);
}
