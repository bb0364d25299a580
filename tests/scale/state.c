#include "state.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/store.h"
#include "fleet.h"

extern char **environ;

#define RECORDS_AT_ONCE 5000

// Rows that gather into transactions.
struct filler {
    struct dp_store *store;
    struct dp_record records[RECORDS_AT_ONCE];
    size_t count;
    uint64_t sent, stored;
    struct dp_error error;
};

static void on_stored(void *context, uint64_t token, const struct dp_error *err)
{
    struct filler *filler = context;
    filler->stored = token;
    if (err->status != DP_OK && filler->error.status == DP_OK) {
        filler->error = *err;
    }
}

static void flush(struct filler *filler)
{
    dp_store_submit(filler->store, ++filler->sent, filler->records, filler->count);
    for (size_t i = 0; i < filler->count; i++) {
        free((void *)filler->records[i].row);
    }
    filler->count = 0;
    while (filler->stored < filler->sent) {
        struct pollfd readable = {.fd = dp_store_fd(filler->store), .events = POLLIN};
        poll(&readable, 1, 1000);
        dp_store_pump(filler->store, on_stored, filler);
    }
}

// The row's blobs are borrowed until it is flushed.
static void add(struct filler *filler, dp_record_kind kind, const void *row, size_t size)
{
    if (filler->count == RECORDS_AT_ONCE) {
        flush(filler);
    }
    filler->records[filler->count++] = (struct dp_record){kind, dp_memdup(row, size)};
}

static dp_status open_filler(const char *directory, struct filler *filler, struct dp_error *err)
{
    struct dp_store_options options = {.directory = directory};
    return dp_store_open(&options, &filler->store, err);
}

static dp_status close_filler(struct filler *filler, struct dp_error *err)
{
    flush(filler);
    dp_store_close(filler->store);
    return filler->error.status == DP_OK
               ? DP_OK
               : dp_fail(err, filler->error.status, "filling: %s", filler->error.message);
}

static struct dp_job_record make_job(uint64_t number, dp_job_state state, uint32_t ranks)
{
    struct dp_job_record job = {.number = number,
                                .token = number * 7919,
                                .state = state,
                                .attempt = 1,
                                .epoch = 1,
                                .epoch_used = 1,
                                .ranks_wanted = (int32_t)ranks,
                                .ranks_count = ranks,
                                .submitted_ns = dp_clock_realtime_ns(),
                                .steps_total = 1000000,
                                .tokens_per_step = 4096};
    job.started_ns = job.submitted_ns;
    snprintf(job.id, sizeof(job.id), "job-%llu", (unsigned long long)number);
    snprintf(job.name, sizeof(job.name), "scale-%llu", (unsigned long long)number);
    DP_COPY_TEXT(job.device, "sim");
    return job;
}

static void add_ranks(struct filler *filler, const struct dp_job_record *job,
                      uint32_t ranks_per_agent, dp_rank_phase phase)
{
    for (uint32_t r = 0; r < job->ranks_count; r++) {
        uint32_t global = (uint32_t)(job->number - 1) * job->ranks_count + r;
        struct dp_rank_record rank = {
            .job = job->number, .rank = r, .phase = phase, .pid = 1000 + (int64_t)r};
        rank.slot = ranks_per_agent == 0 ? r : global % ranks_per_agent;
        char name[16];
        fleet_name(name, ranks_per_agent == 0 ? r / 4 : global / ranks_per_agent);
        DP_COPY_TEXT(rank.node, name);
        DP_COPY_TEXT(rank.address, "127.0.0.1:4000");
        add(filler, DP_RECORD_RANK, &rank, sizeof(rank));
    }
}

dp_status state_fill_running(const char *directory, uint32_t jobs, uint32_t ranks_per_job,
                             uint32_t ranks_per_agent, struct dp_error *err)
{
    DP_AUTO_FREE struct filler *filler = dp_new(struct filler);
    dp_status status = open_filler(directory, filler, err);
    if (status != DP_OK) {
        return status;
    }
    for (uint32_t i = 1; i <= jobs; i++) {
        struct dp_job_record job = make_job(i, DP_STATE_RUNNING, ranks_per_job);
        add(filler, DP_RECORD_JOB, &job, sizeof(job));
        add_ranks(filler, &job, ranks_per_agent, DP_RANK_RUNNING);
    }
    return close_filler(filler, err);
}

dp_status state_fill_ended(const char *directory, uint32_t jobs, const char *toml,
                           struct dp_error *err)
{
    enum { PLAN_BYTES = 2000, RANKS = 4, STEPS = 2 };
    DP_AUTO_FREE struct filler *filler = dp_new(struct filler);
    dp_status status = open_filler(directory, filler, err);
    if (status != DP_OK) {
        return status;
    }
    static char plan[PLAN_BYTES] = {1};
    for (uint32_t i = 1; i <= jobs; i++) {
        struct dp_job_record job = make_job(i, DP_STATE_COMPLETED, RANKS);
        job.ended_ns = job.submitted_ns;
        job.job_toml = (struct dp_buf){.bytes = (char *)toml, .length = strlen(toml)};
        job.plan = (struct dp_buf){.bytes = plan, .length = sizeof(plan)};
        snprintf(job.request_id, sizeof(job.request_id), "request-%u", i);
        add(filler, DP_RECORD_JOB, &job, sizeof(job));
        add_ranks(filler, &job, 0, DP_RANK_FINISHED);
        for (uint64_t step = 1; step <= STEPS; step++) {
            struct dp_step_record row = {.job = i, .step = step, .step_ns = 1000000};
            add(filler, DP_RECORD_STEP, &row, sizeof(row));
        }
    }
    return close_filler(filler, err);
}

dp_status state_fill_events(const char *directory, uint32_t events, size_t bytes,
                            struct dp_error *err)
{
    DP_AUTO_FREE struct filler *filler = dp_new(struct filler);
    dp_status status = open_filler(directory, filler, err);
    if (status != DP_OK) {
        return status;
    }
    struct dp_event_record event = {.time_ns = 1};
    DP_CHECK(bytes < sizeof(event.message));
    memset(event.message, 'x', bytes);
    DP_COPY_TEXT(event.kind, "scale.event");
    for (uint32_t i = 0; i < events; i++) {
        add(filler, DP_RECORD_EVENT, &event, sizeof(event));
    }
    return close_filler(filler, err);
}

dp_status state_fill_nodes(const char *directory, uint32_t nodes, struct dp_error *err)
{
    DP_AUTO_FREE struct filler *filler = dp_new(struct filler);
    dp_status status = open_filler(directory, filler, err);
    if (status != DP_OK) {
        return status;
    }
    for (uint32_t i = 0; i < nodes; i++) {
        struct dp_node_record node = {.slots = 8, .cores = 64, .lease_ms = 30000};
        snprintf(node.name, sizeof(node.name), "%063u", i);
        DP_COPY_TEXT(node.accelerator, "cpu");
        add(filler, DP_RECORD_NODE, &node, sizeof(node));
    }
    return close_filler(filler, err);
}

static dp_status read_address(const char *path, struct controller *controller, struct dp_error *err)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_status status = dp_read_file(path, sizeof(controller->address) - 1, &text, err);
    if (status == DP_OK) {
        dp_copy_text(controller->address, sizeof(controller->address), text.bytes);
        controller->address[strcspn(controller->address, "\n")] = '\0';
    }
    return status;
}

dp_status controller_start(const char *program, const char *directory,
                           struct controller *ret_controller, struct dp_error *err)
{
    DP_AUTO_FREE char *state = dp_asprintf("%s/state", directory);
    DP_AUTO_FREE char *log = dp_asprintf("%s/log", directory);
    DP_AUTO_FREE char *address = dp_asprintf("%s/address", directory);
    char *argv[] = {
        (char *)program, (char *)"--state-dir", state, (char *)"--address-file", address, NULL};
    struct controller controller = {0};
    unlink(address);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    int64_t begin_ns = dp_clock_monotonic_ns(), end_ns = begin_ns + 120 * DP_NS_PER_S;
    int code = posix_spawn(&controller.pid, program, &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (code != 0) {
        return dp_fail_errno(err, code, "cannot start %s", program);
    }
    while (access(address, R_OK) != 0) {
        if (waitpid(controller.pid, NULL, WNOHANG) != 0 || dp_clock_monotonic_ns() > end_ns) {
            return dp_fail(err, DP_UNAVAILABLE, "%s does not serve: see %s", program, log);
        }
        dp_clock_sleep_until_ns(dp_clock_monotonic_ns() + DP_NS_PER_MS);
    }
    controller.ready_s = (double)(dp_clock_monotonic_ns() - begin_ns) / 1e9;
    dp_status status = read_address(address, &controller, err);
    if (status == DP_OK) {
        *ret_controller = controller;
    }
    return status;
}

static void end(struct controller *controller, int signal_number)
{
    kill(controller->pid, signal_number);
    waitpid(controller->pid, NULL, 0);
    controller->pid = 0;
}

void controller_stop(struct controller *controller)
{
    end(controller, SIGTERM);
}

void controller_kill(struct controller *controller)
{
    end(controller, SIGKILL);
}

uint32_t controller_log_count(const char *directory, const char *text)
{
    DP_AUTO_FREE char *path = dp_asprintf("%s/log", directory);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf log = {0};
    uint32_t count = 0;
    if (dp_read_file(path, 64u << 20, &log, NULL) == DP_OK && log.bytes != NULL) {
        for (const char *at = log.bytes; (at = strstr(at, text)) != NULL; at++) {
            count++;
        }
    }
    return count;
}

double controller_cpu_s(const struct controller *controller)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)controller->pid);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    unsigned long long user = 0, system = 0;
    if (dp_read_file(path, 4096, &text, NULL) == DP_OK) {
        const char *rest = strrchr(text.bytes, ')');
        DP_CHECK(rest != NULL && sscanf(rest + 2,
                                        "%*s %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u "
                                        "%llu %llu",
                                        &user, &system) == 2);
    }
    return (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
}

uint64_t controller_rss_bytes(const struct controller *controller)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/statm", (int)controller->pid);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    unsigned long long pages = 0;
    if (dp_read_file(path, 4096, &text, NULL) == DP_OK) {
        DP_CHECK(sscanf(text.bytes, "%*u %llu", &pages) == 1);
    }
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}
