// Following a job: one line that is redrawn on a terminal, lines now and then elsewhere.

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "connect.h"
#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/clock.h"

enum { POLL_MS = 200, PLAIN_LINE_EVERY_S = 5, RECONNECT_S = 30 };

struct progress {
    struct dpctl *ctl;
    bool quiet;
    bool line_open; // a redrawn line without its newline
    int64_t last_plain_ns;
    uint64_t steps_total, step;
    uint64_t steps_seen;
    double mean_step_s; // of the last ten or so
    char state_shown[DP_NAME_MAX * 2];
};

static void end_line(struct progress *progress)
{
    if (progress->line_open) {
        fputs("\n", stderr);
        progress->line_open = false;
    }
}

static void show_state(struct progress *progress, const Dp__V1__Job *job)
{
    char shown[DP_NAME_MAX * 2];
    snprintf(shown, sizeof shown, "%s %s", job_state_text(job->state), job->reason);
    if (progress->quiet || strcmp(shown, progress->state_shown) == 0) {
        return;
    }
    DP_COPY_TEXT(progress->state_shown, shown);
    end_line(progress);
    if (job->state == DP__V1__JOB_STATE__JOB_RUNNING && job->plan != NULL) {
        char plan[192];
        fprintf(stderr, "%s running: %s\n", job->id, plan_text(plan, job->plan));
    } else if (!job_state_is_final(job->state)) {
        fprintf(stderr, "%s %s%s%s\n", job->id, job_state_text(job->state),
                job->message[0] == '\0' ? "" : ": ", job->message);
    }
}

static void show_step(struct progress *progress, const Dp__V1__StepPoint *point)
{
    int64_t now = dp_clock_monotonic_ns();
    bool plain = !progress->ctl->err_is_tty;
    bool last = point->step == progress->steps_total;
    if (progress->quiet ||
        (plain && !last && now - progress->last_plain_ns < PLAIN_LINE_EVERY_S * DP_NS_PER_S)) {
        return;
    }
    progress->last_plain_ns = now;
    char eta[32] = "-", loss[32] = "-", line[256];
    if (progress->steps_total >= point->step) {
        dpctl_seconds(eta, (double)(progress->steps_total - point->step) * progress->mean_step_s);
    }
    if (point->loss > 0) {
        snprintf(loss, sizeof loss, "%.4f", point->loss);
    }
    int length =
        snprintf(line, sizeof line, "step %llu/%llu  loss %s  %.0f tokens/s  ETA %s",
                 (unsigned long long)point->step, (unsigned long long)progress->steps_total, loss,
                 point->tokens_per_s, eta);
    if (plain) {
        fprintf(stderr, "%s\n", line);
        return;
    }
    // A line that fills the terminal would wrap, and could not be redrawn.
    int room = dpctl_width(STDERR_FILENO) - 1;
    fprintf(stderr, "\r\033[K%.*s", length < room ? length : room, line);
    progress->line_open = true;
}

// The plain mean at first, so that one odd step does not move the ETA much; later ones fade.
static void take_step(struct progress *progress, const Dp__V1__StepPoint *point)
{
    progress->step = point->step;
    progress->steps_seen++;
    double weight = progress->steps_seen < 10 ? 1.0 / (double)progress->steps_seen : 0.1;
    progress->mean_step_s += weight * (point->step_s - progress->mean_step_s);
    show_step(progress, point);
}

// The stream breaks when the controller is restarted; the job does not. Watches again from the
// last step seen, for a while.
static dp_status watch_again(struct dp_client *client, const char *id, struct progress *progress,
                             struct dp_client_watch **watch, int64_t *broken_since_ns,
                             struct dp_error *err)
{
    int64_t now = dp_clock_monotonic_ns();
    *broken_since_ns = *broken_since_ns == 0 ? now : *broken_since_ns;
    if (now - *broken_since_ns > RECONNECT_S * DP_NS_PER_S) {
        return dp_fail_in(err, "lost the controller for %d s while following %s", RECONNECT_S, id);
    }
    dp_client_watch_close(dp_steal(*watch));
    Dp__V1__WatchJobRequest request = DP__V1__WATCH_JOB_REQUEST__INIT;
    request.id = (char *)id;
    request.after_step = progress->step;
    dp_clock_sleep_until_ns(now + POLL_MS * DP_NS_PER_MS);
    return dp_client_watch_job(client, &request, watch, err);
}

static void cleanup_watch(struct dp_client_watch **watch)
{
    if (*watch != NULL) {
        dp_client_watch_close(*watch);
    }
}

static void take_event(struct progress *progress, const Dp__V1__JobEvent *event, bool *ret_final)
{
    if (event->event_case == DP__V1__JOB_EVENT__EVENT_JOB) {
        progress->steps_total = event->job->steps_total;
        show_state(progress, event->job);
        *ret_final = job_state_is_final(event->job->state);
    } else if (event->event_case == DP__V1__JOB_EVENT__EVENT_STEP) {
        take_step(progress, event->step);
    }
}

dp_status follow_job(struct dpctl *ctl, struct dp_client *client, const char *id, bool quiet,
                     uint64_t after_step, struct dp_arena *arena, Dp__V1__Job **ret_job,
                     struct dp_error *err)
{
    struct progress progress = {.ctl = ctl, .quiet = quiet, .step = after_step};
    // Steps may come before the first word on the job's state.
    DP_CLEANUP(dp_arena_deinit) struct dp_arena first = {0};
    Dp__V1__Job *job = NULL;
    if (dp_client_get_job(client, id, &first, &job, err) == DP_OK) {
        progress.steps_total = job->steps_total;
    }
    DP_CLEANUP(cleanup_watch) struct dp_client_watch *watch = NULL;
    Dp__V1__WatchJobRequest request = DP__V1__WATCH_JOB_REQUEST__INIT;
    request.id = (char *)id;
    request.after_step = after_step;
    dp_status status = dp_client_watch_job(client, &request, &watch, err);
    int64_t broken_since_ns = 0;
    bool final = false;
    while (!final && (status == DP_OK || status == DP_UNAVAILABLE || status == DP_TIMEOUT)) {
        if (interrupted()) {
            end_line(&progress);
            return dp_fail(err, DP_INTERRUPTED,
                           "stopped following; %s goes on. Come back with `dpctl status -f %s`, "
                           "end it with `dpctl cancel %s`",
                           id, id, id);
        }
        DP_CLEANUP(dp_arena_deinit) struct dp_arena event_arena = {0};
        Dp__V1__JobEvent *event = NULL;
        bool end = false;
        if (status == DP_OK) {
            status = dp_client_watch_next(watch, POLL_MS, &event_arena, &event, &end, err);
        }
        if (status == DP_OK && event != NULL) {
            broken_since_ns = 0;
            take_event(&progress, event, &final);
        } else if (!final && (status != DP_OK || end)) {
            status = watch_again(client, id, &progress, &watch, &broken_since_ns, err);
            if (broken_since_ns + RECONNECT_S * DP_NS_PER_S < dp_clock_monotonic_ns()) {
                break;
            }
        }
    }
    end_line(&progress);
    return final ? dp_client_get_job(client, id, arena, ret_job, err) : status;
}
