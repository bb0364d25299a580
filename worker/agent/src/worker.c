#include "worker.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/log.h"

#define TICK_MS 100
#define HURRY_MS 10
#define LATE_MS 1000
#define END_GRACE_MS 2000
#define END_MS 10000
#define END_KILLED_MS 2000
#define ADOPT_MS 5000

struct pending_event {
    struct pending_event *next;
    struct dp_agent_event event;
    char *text; // owned
};

int64_t worker_now_ns(void)
{
    return dp_clock_monotonic_ns();
}

static void do_start_keeper(struct worker *worker, const struct dp_agent_effect *effect)
{
    keeper_start(worker, &effect->fence, effect->bytes, effect->length);
}

static void do_spawn(struct worker *worker, const struct dp_agent_effect *effect)
{
    struct keeper_conn *conn = keeper_find(worker, &effect->fence);
    if (conn != NULL) {
        keeper_spawn_rank(conn, effect->rank);
    }
}

static void send_to_keeper(struct worker *worker, const struct dp_agent_effect *effect,
                           struct dp_link_frame frame)
{
    struct keeper_conn *conn = keeper_find(worker, &effect->fence);
    frame.rank = effect->rank;
    if (conn != NULL) {
        struct dp_error err = {0};
        (void)keeper_send(conn, &frame, &err);
    }
}

static void do_order(struct worker *worker, const struct dp_agent_effect *effect)
{
    send_to_keeper(worker, effect,
                   (struct dp_link_frame){
                       .type = DP_LINK_ORDER,
                       .slot = effect->start ? DP_LINK_ORDER_START : DP_LINK_ORDER_OTHER,
                       .payload = effect->bytes,
                       .length = effect->length,
                   });
}

static void do_stop(struct worker *worker, const struct dp_agent_effect *effect)
{
    send_to_keeper(worker, effect,
                   (struct dp_link_frame){
                       .type = DP_LINK_STOP,
                       .payload = &effect->grace_ms,
                       .length = sizeof effect->grace_ms,
                   });
}

static void do_shutdown(struct worker *worker, const struct dp_agent_effect *effect)
{
    send_to_keeper(worker, effect, (struct dp_link_frame){.type = DP_LINK_SHUTDOWN});
}

static void do_kill_keeper(struct worker *worker, const struct dp_agent_effect *effect)
{
    struct keeper_conn *conn = keeper_find(worker, &effect->fence);
    if (conn != NULL) {
        keeper_kill(conn);
    }
}

static void do_refuse(struct worker *worker, const struct dp_agent_effect *effect)
{
    DP_AUTO_FREE char *directory = directory_of(worker->options.state_dir, &effect->fence);
    DP_AUTO_FREE char *text =
        effect->leftover
            ? dp_asprintf("%s; its files are in %s. When the controller's state was lost, move "
                          "that directory away and restart dp-worker",
                          effect->text, directory)
            : dp_strdup(effect->text);
    session_send_refusal(worker->session, &effect->fence, text);
}

static void do_forget(struct worker *worker, const struct dp_agent_effect *effect)
{
    struct keeper_conn *conn = keeper_find(worker, &effect->fence);
    if (conn != NULL) {
        conn->released = true;
    }
    DP_AUTO_FREE char *directory = directory_of(worker->options.state_dir, &effect->fence);
    directory_release(worker->options.state_dir, directory);
}

static void do_level(struct worker *worker, const struct dp_agent_effect *effect)
{
    session_send_level(worker->session, &effect->fence);
}

static void do_report(struct worker *worker, const struct dp_agent_effect *effect)
{
    session_send_report(worker->session, effect->bytes, effect->length, effect->sample);
}

static void do_log(struct worker *worker, const struct dp_agent_effect *effect)
{
    (void)worker;
    char quoted[2 * DP_AGENT_TEXT_MAX];
    dp_log_info("assignment", "job=%s attempt=%u epoch=%u what=%s", effect->fence.job,
                effect->fence.attempt, effect->fence.epoch,
                dp_log_quote(quoted, sizeof quoted, effect->text));
}

static void perform(struct worker *worker, const struct dp_agent_effects *effects)
{
    static void (*const performers[DP_AGENT_EFFECT_COUNT])(struct worker * worker,
                                                           const struct dp_agent_effect *effect) = {
        [DP_AGENT_DO_START_KEEPER] = do_start_keeper,
        [DP_AGENT_DO_SPAWN] = do_spawn,
        [DP_AGENT_DO_ORDER] = do_order,
        [DP_AGENT_DO_STOP] = do_stop,
        [DP_AGENT_DO_SHUTDOWN] = do_shutdown,
        [DP_AGENT_DO_KILL_KEEPER] = do_kill_keeper,
        [DP_AGENT_DO_FORGET] = do_forget,
        [DP_AGENT_DO_LEVEL] = do_level,
        [DP_AGENT_DO_REPORT] = do_report,
        [DP_AGENT_DO_REFUSE] = do_refuse,
        [DP_AGENT_DO_LOG] = do_log,
    };
    for (size_t i = 0; i < effects->count; i++) {
        performers[effects->items[i].type](worker, &effects->items[i]);
    }
}

static void put_off(struct worker *worker, const struct dp_agent_event *event)
{
    DP_CHECK(event->bytes == NULL && event->numbers == NULL);
    struct pending_event *pending = dp_new(struct pending_event);
    struct pending_event **last = &worker->pending;
    while (*last != NULL) {
        last = &(*last)->next;
    }
    pending->event = *event;
    pending->text = event->text == NULL ? NULL : dp_strdup(event->text);
    pending->event.text = pending->text;
    *last = pending;
}

static void step(struct worker *worker, struct dp_agent_event *event)
{
    DP_CLEANUP(dp_agent_effects_deinit) struct dp_agent_effects effects = {0};
    event->now_ns = worker_now_ns();
    dp_agent_core_step(worker->core, event, &effects);
    perform(worker, &effects);
}

void worker_event(struct worker *worker, struct dp_agent_event *event)
{
    if (worker->performing) {
        put_off(worker, event);
        return;
    }
    worker->performing = true;
    step(worker, event);
    while (worker->pending != NULL) {
        struct pending_event *pending = worker->pending;
        worker->pending = pending->next;
        step(worker, &pending->event);
        free(pending->text);
        free(pending);
    }
    worker->performing = false;
}

void worker_note(struct worker *worker, const char *text)
{
    if (worker->notes_count < WORKER_NOTES_MAX) {
        worker->notes[worker->notes_count++] = dp_strdup(text);
    }
}

static void on_tick(uv_timer_t *timer);

void worker_hurry(struct worker *worker)
{
    (void)uv_timer_start(&worker->tick, on_tick, HURRY_MS, HURRY_MS);
}

// An agent that was stopped or starved itself has not read what keepers said meanwhile.
static bool is_late(const struct worker *worker)
{
    return worker->ticked_ns != 0 && worker_now_ns() - worker->ticked_ns > LATE_MS * DP_NS_PER_MS;
}

static void forgive_own_delay(struct worker *worker)
{
    int64_t now_ns = worker_now_ns();
    int64_t passed_ns = now_ns - worker->ticked_ns;
    if (is_late(worker)) {
        for (struct keeper_conn *conn = worker->keepers; conn != NULL; conn = conn->next) {
            conn->give_up_ns += passed_ns;
        }
    }
    worker->ticked_ns = now_ns;
}

// Also removes the keepers that are over.
static bool tick_keepers(struct worker *worker)
{
    bool settled = true;
    forgive_own_delay(worker);
    for (struct keeper_conn *conn = worker->keepers; conn != NULL; conn = conn->next) {
        keeper_tick(conn);
    }
    struct keeper_conn **at = &worker->keepers;
    while (*at != NULL) {
        struct keeper_conn *conn = *at;
        if (conn->over && conn->child == 0) {
            *at = conn->next;
            keeper_free(conn);
            continue;
        }
        int status;
        if (conn->over && child_ended(conn->child, &status, &conn->signal)) {
            conn->child = 0;
        }
        settled = settled && keeper_is_settled(conn);
        at = &conn->next;
    }
    return settled;
}

// Keepers that do not end when told to, being stopped perhaps, are killed, and their ranks with
// them.
static void kill_keepers(struct worker *worker)
{
    for (struct keeper_conn *conn = worker->keepers; conn != NULL; conn = conn->next) {
        keeper_kill(conn);
    }
    worker->killed = true;
    worker->end_by_ns = worker_now_ns() + END_KILLED_MS * DP_NS_PER_MS;
}

static void check_end(struct worker *worker)
{
    bool empty = worker->keepers == NULL || !worker->options.kill_ranks_on_exit;
    bool late = worker->ending && worker_now_ns() > worker->end_by_ns;
    if (late && !empty && !worker->killed) {
        kill_keepers(worker);
    } else if (late || (worker->ending && empty)) {
        if (!empty) {
            dp_log_error("worker.left_behind", "reason=\"a keeper did not end in time\"");
        }
        uv_stop(&worker->loop);
    }
}

static void on_tick(uv_timer_t *timer)
{
    struct worker *worker = timer->data;
    struct dp_agent_event event = {.type = DP_AGENT_TICK};
    // What has come meanwhile is read before anything is made of what has not.
    worker->skips_tick = is_late(worker) && !worker->skips_tick;
    if (!worker->skips_tick) {
        worker_event(worker, &event);
    }
    bool settled = tick_keepers(worker);
    if (settled || worker_now_ns() > worker->adopt_until_ns) {
        // Once is enough: a keeper that starts later does not silence the node.
        worker->adopt_until_ns = 0;
        session_tick(worker->session);
    }
    calibration_tick(worker->calibration);
    if (settled) {
        (void)uv_timer_start(&worker->tick, on_tick, TICK_MS, TICK_MS);
    }
    check_end(worker);
}

static void on_signal(uv_signal_t *handle, int number)
{
    struct worker *worker = handle->data;
    if (worker->ending) {
        return;
    }
    worker->ending = true;
    worker->end_by_ns = worker_now_ns() + END_MS * DP_NS_PER_MS;
    dp_log_info("worker.ending", "signal=%d ranks=%s", number,
                worker->options.kill_ranks_on_exit ? "ended" : "left running");
    if (worker->options.kill_ranks_on_exit) {
        struct dp_agent_event event = {.type = DP_AGENT_END_ALL, .grace_ms = END_GRACE_MS};
        worker_event(worker, &event);
    }
    worker_hurry(worker);
}

static void start_handles(struct worker *worker)
{
    static const int numbers[] = {SIGTERM, SIGINT, SIGHUP};
    _Static_assert(sizeof numbers / sizeof numbers[0] ==
                       sizeof worker->signals / sizeof worker->signals[0],
                   "one handle for each signal");
    DP_CHECK(uv_loop_init(&worker->loop) == 0);
    (void)uv_timer_init(&worker->loop, &worker->tick);
    worker->tick.data = worker;
    for (size_t i = 0; i < DP_ARRAY_LENGTH(numbers); i++) {
        (void)uv_signal_init(&worker->loop, &worker->signals[i]);
        worker->signals[i].data = worker;
        (void)uv_signal_start(&worker->signals[i], on_signal, numbers[i]);
    }
}

dp_status worker_open(struct worker *worker, const struct worker_options *options,
                      struct dp_error *err)
{
    *worker = (struct worker){.options = *options, .lock_fd = -1};
    int64_t heard_ns;
    dp_status status = directory_lock(options->state_dir, &worker->lock_fd, err);
    if (status == DP_OK) {
        status = contact_open(options->state_dir, &worker->contact, &heard_ns, err);
    }
    if (status != DP_OK) {
        dp_cleanup_close(&worker->lock_fd);
        return status;
    }
    if (heard_ns == INT64_MIN) {
        // Who cannot know how long it was alone gets one lease to find the controller.
        int64_t alone_ms = (int64_t)options->orphan_ms - options->lease_ms;
        heard_ns = worker_now_ns() - (alone_ms > 0 ? alone_ms : 0) * DP_NS_PER_MS;
    }
    (void)signal(SIGPIPE, SIG_IGN);
    dp_raise_file_limit();
    // Ignored, as some starters hand it down, it would hide how keepers ended.
    (void)signal(SIGCHLD, SIG_DFL);
    worker->core = dp_agent_core_new(options->orphan_ms, heard_ns);
    dp_agent_core_set_unkillable(worker->core, options->unkillable_ms);
    start_handles(worker);
    worker->hardware = hardware_new(worker);
    worker->calibration = calibration_new(worker);
    worker->session = session_new(worker);
    directory_scan(worker);
    worker->adopt_until_ns = worker_now_ns() + ADOPT_MS * DP_NS_PER_MS;
    dp_log_info("worker.started", "node=%s slots=%u state_dir=%s assignments=%zu", options->name,
                options->slots, options->state_dir, dp_agent_core_count(worker->core));
    return DP_OK;
}

void worker_run(struct worker *worker)
{
    worker_hurry(worker);
    (void)uv_run(&worker->loop, UV_RUN_DEFAULT);
}

static void close_handle(uv_handle_t *handle, void *context)
{
    (void)context;
    if (!uv_is_closing(handle)) {
        uv_close(handle, NULL);
    }
}

void worker_close(struct worker *worker)
{
    if (worker->core != NULL) {
        session_free(worker->session);
        worker->session = NULL;
        hardware_cancel(worker->hardware);
        calibration_free(worker->calibration);
        while (worker->keepers != NULL) {
            struct keeper_conn *conn = worker->keepers;
            worker->keepers = conn->next;
            keeper_free(conn);
        }
        uv_walk(&worker->loop, close_handle, NULL);
        (void)uv_run(&worker->loop, UV_RUN_DEFAULT);
        DP_CHECK(uv_loop_close(&worker->loop) == 0);
        hardware_free(worker->hardware);
        dp_agent_core_free(worker->core);
        dp_buf_deinit(&worker->profile);
        for (size_t i = 0; i < worker->notes_count; i++) {
            free(worker->notes[i]);
        }
        contact_close(&worker->contact);
    }
    dp_cleanup_close(&worker->lock_fd);
}
