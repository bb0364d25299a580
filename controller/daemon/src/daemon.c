#include "daemon.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "admin.h"
#include "audit.h"
#include "backups.h"
#include "calibrations.h"
#include "clusters.h"
#include "decisions.h"
#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/log.h"
#include "dp/rand.h"
#include "events.h"
#include "lessons.h"
#include "queue.h"

#define TICK_MS 250
#define STALL_MS 1000
#define STOP_GRACE_MS 1000
#define EVENTS_EVERY_MS 20
#define RETAIN_EVERY_S 60
#define RETAIN_YOUNG_S 3600

static void arm_timer(struct daemon *daemon);

// The ticker shows that this process runs. Since it was seen to for the last time it may have been
// stopped, or have had no processor: that long it could not have heard anybody.
static int64_t note_alive(struct daemon *daemon, int64_t now_ns)
{
    int64_t stalled_ns = daemon->stalled_ns;
    int64_t away_ns = daemon->alive_ns == 0 ? 0 : now_ns - daemon->alive_ns;
    if (away_ns > STALL_MS * DP_NS_PER_MS) {
        stalled_ns += away_ns;
        dp_log_warn("controller.stalled", "ms=%lld effect=\"all deadlines are that much later\"",
                    (long long)(away_ns / DP_NS_PER_MS));
    }
    daemon->alive_ns = now_ns;
    daemon->stalled_ns = 0;
    return stalled_ns;
}

void daemon_step(struct daemon *daemon, struct dp_core_event *event)
{
    // Performing effects must not come back here: the effects would change under the loop.
    DP_CHECK(!daemon->stepping);
    daemon->stepping = true;
    event->now_ns = dp_clock_monotonic_ns();
    event->wall_ns = dp_clock_realtime_ns();
    event->stalled_ns = note_alive(daemon, event->now_ns);
    dp_core_step(daemon->core, event, &daemon->effects);
    effects_perform(daemon, &daemon->effects);
    daemon->stepping = false;
    arm_timer(daemon);
}

void daemon_expect(struct daemon *daemon, uint64_t call, dp_method_id method)
{
    struct pending *pending = dp_new(struct pending);
    *pending = (struct pending){call, method, daemon->pending};
    daemon->pending = pending;
}

static void on_core_timer(uv_timer_t *timer)
{
    struct dp_core_event event = {.kind = DP_EVENT_TICK};
    daemon_step(timer->data, &event);
}

static void arm_timer(struct daemon *daemon)
{
    int64_t timer_ns = daemon->effects.timer_ns;
    if (timer_ns == 0 || daemon->stopping) {
        uv_timer_stop(&daemon->core_timer);
        return;
    }
    int64_t left_ns = timer_ns - dp_clock_monotonic_ns();
    // Never 0: a timer that its own callback starts anew for now keeps the loop from all else.
    uint64_t left_ms = left_ns <= 0 ? 1 : (uint64_t)(left_ns / DP_NS_PER_MS) + 1;
    uv_update_time(&daemon->loop);
    uv_timer_start(&daemon->core_timer, on_core_timer, left_ms, 0);
}

static void on_stored(void *context, uint64_t token, const struct dp_error *err)
{
    if (err->status != DP_OK) {
        dp_log_error("store.failed", "token=%llu reason=\"%s\"", (unsigned long long)token,
                     err->message);
    }
    if (clusters_is_token(token)) {
        clusters_on_stored(context, token, err);
        return;
    }
    if (backups_is_token(token)) {
        backups_on_stored(context, token, err);
        return;
    }
    struct dp_core_event event = {.kind = DP_EVENT_STORED, .stored = {.token = token}};
    event.stored.error = *err;
    daemon_step(context, &event);
}

static void on_store_readable(uv_poll_t *poll, int status, int events)
{
    (void)status;
    (void)events;
    struct daemon *daemon = poll->data;
    dp_store_pump(daemon->store, on_stored, daemon);
    watch_pump(daemon);
    int64_t now_ns = dp_clock_monotonic_ns();
    if (now_ns - daemon->events_pumped_ns > EVENTS_EVERY_MS * DP_NS_PER_MS) {
        daemon->events_pumped_ns = now_ns;
        events_pump(daemon);
    }
    calibrations_pump(daemon);
}

static void on_rpc_readable(uv_poll_t *poll, int status, int events)
{
    (void)status;
    (void)events;
    struct daemon *daemon = poll->data;
    dp_rpc_server_pump(daemon->server);
}

const double loop_delay_bucket_s[LOOP_DELAY_BUCKETS - 1] = {0.001, 0.005, 0.02, 0.1, 0.5, 2};

static void note_delay(struct loop_delay *delay)
{
    uint64_t now_ns = uv_hrtime();
    if (delay->tick_ns != 0) {
        double late_s = (double)(now_ns - delay->tick_ns) / 1e9 - TICK_MS / 1e3;
        size_t bucket = 0;
        while (bucket < LOOP_DELAY_BUCKETS - 1 && late_s > loop_delay_bucket_s[bucket]) {
            bucket++;
        }
        delay->bucket[bucket]++;
        delay->seconds += late_s > 0 ? late_s : 0;
    }
    delay->tick_ns = now_ns;
}

// What failed before is tried again. What ended a moment ago may still be in the core.
static void retain(struct daemon *daemon)
{
    int64_t now_ns = dp_clock_monotonic_ns(), wall_ns = dp_clock_realtime_ns();
    if (daemon->retained_ns != 0 && now_ns - daemon->retained_ns < RETAIN_EVERY_S * DP_NS_PER_S) {
        return;
    }
    daemon->retained_ns = now_ns;
    int64_t days = daemon->options.history_days;
    struct dp_store_retention retention = {
        .jobs_max = (uint64_t)daemon->options.history_jobs,
        .before_ns = days == 0 ? 0 : wall_ns - days * 24 * 3600 * DP_NS_PER_S,
        .never_since_ns = wall_ns - RETAIN_YOUNG_S * DP_NS_PER_S,
    };
    dp_store_retain(daemon->store, &retention);
}

static void on_tick(uv_timer_t *timer)
{
    struct daemon *daemon = timer->data;
    note_delay(&daemon->delay);
    daemon->stalled_ns = note_alive(daemon, dp_clock_monotonic_ns());
    logs_pump(daemon);
    watch_pump(daemon);
    events_pump(daemon);
    calibrations_pump(daemon);
    retain(daemon);
}

static void on_signal(uv_signal_t *signal, int number)
{
    struct daemon *daemon = signal->data;
    dp_log_info("controller.stopping", "signal=%d", number);
    uv_stop(&daemon->loop);
}

static void load_job(struct daemon *daemon, const struct dp_job_record *job,
                     const struct dp_rank_record *ranks, size_t count)
{
    struct dp_core_event event = {.kind = DP_EVENT_LOAD_JOB, .load_job = {job, ranks, count}};
    daemon_step(daemon, &event);
}

static dp_status load_jobs(struct daemon *daemon, struct dp_error *err)
{
    struct dp_job_record *jobs = NULL;
    size_t count = 0;
    dp_status status =
        dp_store_load_jobs(daemon->store, DP_STORE_JOBS_ACTIVE, "", true, 0, &jobs, &count, err);
    for (size_t i = count; i-- > 0;) {
        DP_AUTO_FREE struct dp_rank_record *ranks = NULL;
        size_t ranks_count = 0;
        if (status == DP_OK) {
            status = dp_store_load_ranks(daemon->store, jobs[i].number, &ranks, &ranks_count, err);
        }
        if (status == DP_OK) {
            load_job(daemon, &jobs[i], ranks, ranks_count);
        }
        dp_job_record_deinit(&jobs[i]);
    }
    free(jobs);
    return status;
}

// The newest of each job, and the newest that was measured: trust goes on from it.
static dp_status load_decisions(struct daemon *daemon, struct dp_error *err)
{
    struct dp_decision_record *decisions = NULL;
    size_t count = 0;
    dp_status status = dp_store_load_last_decisions(daemon->store, &decisions, &count, err);
    for (size_t i = 0; i < count; i++) {
        struct dp_core_event event = {.kind = DP_EVENT_LOAD_DECISION,
                                      .load_decision = &decisions[i]};
        daemon_step(daemon, &event);
        dp_decision_record_deinit(&decisions[i]);
    }
    free(decisions);
    return status;
}

static dp_status load_nodes(struct daemon *daemon, struct dp_error *err)
{
    struct dp_node_record *nodes = NULL;
    size_t count = 0;
    dp_status status = dp_store_load_nodes(daemon->store, &nodes, &count, err);
    for (size_t i = 0; i < count; i++) {
        struct dp_core_event event = {.kind = DP_EVENT_LOAD_NODE, .load_node = &nodes[i]};
        daemon_step(daemon, &event);
        dp_node_record_deinit(&nodes[i]);
    }
    free(nodes);
    return status;
}

static dp_status load(struct daemon *daemon, struct dp_error *err)
{
    DP_AUTO_FREE uint64_t *ended = NULL;
    size_t count = 0;
    uint64_t highest = 0;
    uint64_t last_event = 0;
    dp_status status = dp_store_ended_jobs(daemon->store, &ended, &count, &highest, err);
    if (status == DP_OK) {
        status = dp_store_last_event(daemon->store, &last_event, err);
    }
    if (status != DP_OK) {
        return status;
    }
    struct dp_core_event event = {.kind = DP_EVENT_LOAD_ENDED,
                                  .ended = {ended, count, highest, last_event}};
    daemon_step(daemon, &event);
    status = lessons_load(daemon, err);
    if (status == DP_OK) {
        status = admin_load(daemon, err);
    }
    if (status == DP_OK) {
        status = load_nodes(daemon, err);
    }
    if (status == DP_OK) {
        status = load_jobs(daemon, err);
    }
    return status == DP_OK ? load_decisions(daemon, err) : status;
}

static dp_status serve(struct daemon *daemon, struct dp_error *err)
{
    const struct dp_rpc_handler *const others[] = {
        &session_handler,   &watch_handler,     &logs_handler,         &plan_handler,
        &simulate_handler,  &calibrate_handler, &events_handler,       &backup_handler,
        &audit_handlers[0], &audit_handlers[1], &decision_handlers[0], &decision_handlers[1],
        &update_handler};
    size_t own = service_handlers_count + DP_ARRAY_LENGTH(others);
    size_t count = own + admin_handlers_count + cluster_handlers_count;
    // Borrowed by the server, which lives as long as the process does.
    static struct dp_rpc_handler handlers[DP_METHOD_COUNT];
    DP_CHECK(count <= DP_METHOD_COUNT);
    memcpy(handlers, service_handlers, service_handlers_count * sizeof(*handlers));
    for (size_t i = 0; i < DP_ARRAY_LENGTH(others); i++) {
        handlers[service_handlers_count + i] = *others[i];
    }
    memcpy(handlers + own, admin_handlers, admin_handlers_count * sizeof(*handlers));
    memcpy(handlers + count - cluster_handlers_count, cluster_handlers,
           cluster_handlers_count * sizeof(*handlers));
    struct dp_rpc_server_options options = {
        .listen = daemon->options.listen,
        .handlers = handlers,
        .handlers_count = count,
        .context = daemon,
    };
    dp_status status = dp_rpc_server_new(&options, &daemon->server, err);
    if (status != DP_OK) {
        return dp_fail_in(err, "serving on %s", daemon->options.listen);
    }
    const char *address = dp_rpc_server_address(daemon->server);
    dp_log_info("controller.serving", "address=%s state_dir=%s instance=%s", address,
                daemon->state_dir, daemon->instance);
    // Before gRPC's address is told: who finds that finds this, too.
    status = rest_start(daemon, handlers, count, err);
    if (status == DP_OK && daemon->options.address_file != NULL) {
        DP_AUTO_FREE char *line = dp_asprintf("%s\n", address);
        return dp_write_file(daemon->options.address_file, line, strlen(line), err);
    }
    return status;
}

static void init_loop(struct daemon *daemon)
{
    static const int numbers[] = {SIGTERM, SIGINT};
    DP_CHECK(uv_loop_init(&daemon->loop) == 0);
    uv_timer_init(&daemon->loop, &daemon->core_timer);
    uv_timer_init(&daemon->loop, &daemon->ticker);
    daemon->core_timer.data = daemon->ticker.data = daemon;
    for (size_t i = 0; i < DP_ARRAY_LENGTH(numbers); i++) {
        uv_signal_init(&daemon->loop, &daemon->signals[i]);
        daemon->signals[i].data = daemon;
        uv_signal_start(&daemon->signals[i], on_signal, numbers[i]);
    }
}

static void start_polling(struct daemon *daemon)
{
    uv_poll_init(&daemon->loop, &daemon->store_poll, dp_store_fd(daemon->store));
    uv_poll_init(&daemon->loop, &daemon->rpc_poll, dp_rpc_server_fd(daemon->server));
    daemon->store_poll.data = daemon->rpc_poll.data = daemon;
    uv_poll_start(&daemon->store_poll, UV_READABLE, on_store_readable);
    uv_poll_start(&daemon->rpc_poll, UV_READABLE, on_rpc_readable);
    uv_timer_start(&daemon->ticker, on_tick, TICK_MS, TICK_MS);
}

static void close_handle(uv_handle_t *handle, void *context)
{
    (void)context;
    if (!uv_is_closing(handle)) {
        uv_close(handle, NULL);
    }
}

// Streams end with UNAVAILABLE, what is queued is stored, jobs stay as they are.
static void stop(struct daemon *daemon)
{
    daemon->stopping = true;
    tasks_stop(daemon);
    uv_walk(&daemon->loop, close_handle, NULL);
    if (daemon->server != NULL) {
        dp_rpc_server_stop(daemon->server, STOP_GRACE_MS);
    }
    rest_stop(daemon, STOP_GRACE_MS);
    uv_run(&daemon->loop, UV_RUN_DEFAULT);
    uv_loop_close(&daemon->loop);
    if (daemon->options.address_file != NULL && daemon->server != NULL) {
        // While the store's lock is held: the next controller's file must not be taken away.
        unlink(daemon->options.address_file);
    }
    if (daemon->options.http_address_file != NULL && daemon->rest != NULL) {
        unlink(daemon->options.http_address_file);
    }
    dp_rest_server_free(daemon->rest);
    dp_rpc_server_free(daemon->server);
    backups_stop(daemon);
    queue_stop(daemon);
    dp_store_close(daemon->store);
    dp_core_free(daemon->core);
    lessons_free(daemon);
    clusters_stop(daemon);
    dp_effects_deinit(&daemon->effects);
    while (daemon->pending != NULL) {
        struct pending *next = daemon->pending->next;
        free(daemon->pending);
        daemon->pending = next;
    }
    free(daemon->state_dir);
}

static dp_status start(struct daemon *daemon, struct dp_error *err)
{
    struct dp_store_options store = {.directory = daemon->options.state_dir};
    dp_status status = dp_store_open(&store, &daemon->store, err);
    if (status != DP_OK) {
        return status;
    }
    daemon->state_dir = realpath(daemon->options.state_dir, NULL);
    if (daemon->state_dir == NULL) {
        return dp_fail_errno(err, errno, "%s", daemon->options.state_dir);
    }
    backups_start(daemon);
    status = load(daemon, err);
    if (status == DP_OK) {
        status = serve(daemon, err);
    }
    if (status == DP_OK) {
        start_polling(daemon);
    }
    return status;
}

dp_status daemon_run(const struct daemon_options *options, struct dp_error *err)
{
    struct daemon *daemon = dp_new(struct daemon);
    daemon->options = *options;
    daemon->started_ns = dp_clock_realtime_ns();
    uint64_t random = 0;
    DP_CHECK(getrandom(&random, sizeof(random), 0) == sizeof(random));
    snprintf(daemon->instance, sizeof(daemon->instance), "%016llx", (unsigned long long)random);
    struct dp_core_config config;
    dp_core_config_init(&config);
    config.queue = options->queue_strict ? DP_QUEUE_STRICT : DP_QUEUE_BEST_EFFORT;
    config.pass_ms = (uint32_t)options->queue_pass_s * 1000;
    daemon->core = dp_core_new(&config);
    tasks_init(&daemon->tasks);
    signal(SIGPIPE, SIG_IGN);
    dp_raise_file_limit();
    signal(SIGXFSZ, SIG_IGN); // a file that must not grow is a full disk
    init_loop(daemon);
    dp_status status = start(daemon, err);
    if (status == DP_OK) {
        uv_run(&daemon->loop, UV_RUN_DEFAULT);
    }
    stop(daemon);
    free(daemon);
    return status;
}
