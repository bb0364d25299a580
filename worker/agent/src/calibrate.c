#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/log.h"
#include "dp/profile.h"
#include "dp/sealed.h"
#include "worker.h"

// Together less than the minute that a controller waits for a node's figures. Once it knows that
// they come late, a try may take longer: the machine may be busy.
#define TURN_MS 10000 // others' calibrations may hold this one back so long
#define LIMIT_FIRST_MS 40000
#define LIMIT_MAX_MS 160000
#define RETRY_FIRST_MS 2000
#define RETRY_MAX_MS 60000

struct calibration {
    struct worker *worker;
    char *file;      // STATE/profile.json
    char *unchecked; // where the run writes
    char *log;
    bool wanted;
    int64_t wanted_at_ns; // not before
    uint32_t retry_ms;    // after the next failure
    int turn_fd;          // held while it runs: one calibration at a time on a host
    int64_t turn_by_ns;
    pid_t child;
    uint32_t limit_ms; // of a try
    int64_t give_up_ns;
    bool late;
    char error[DP_AGENT_TEXT_MAX]; // of the newest try
    // Asked for by the controller.
    uint64_t ordered; // its number; 0 = none
    bool cancelled;   // the child is told to end, and nobody wants to know how
    bool answer_due;  // not sent for want of room
    Dp__V1__CalibrateOutcome outcome;
    char message[DP_AGENT_TEXT_MAX];
    off_t log_seen; // what of the log was told
};

// One that is damaged, or of a form that was written before, is no profile.
static dp_status read_profile(const char *path, struct dp_buf *ret_profile, struct dp_error *err)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    struct dp_profile profile;
    dp_status status = dp_profile_load(path, &profile, err);
    if (status == DP_OK) {
        status = dp_read_file(path, DP_PROFILE_BYTES_MAX, &text, err);
    }
    if (status != DP_OK) {
        return status;
    }
    dp_buf_deinit(ret_profile);
    *ret_profile = text;
    text = (struct dp_buf){0};
    return DP_OK;
}

struct calibration *calibration_new(struct worker *worker)
{
    struct calibration *calibration = dp_new(struct calibration);
    const char *state = worker->options.state_dir;
    calibration->worker = worker;
    calibration->file = dp_asprintf("%s/profile.json", state);
    calibration->unchecked = dp_asprintf("%s/profile.json.new", state);
    calibration->log = dp_asprintf("%s/calibrate.log", state);
    calibration->turn_fd = -1;
    calibration->turn_by_ns = worker_now_ns() + TURN_MS * DP_NS_PER_MS;
    calibration->retry_ms = RETRY_FIRST_MS;
    calibration->limit_ms = LIMIT_FIRST_MS;
    struct dp_error err = {0};
    dp_status status = read_profile(calibration->file, &worker->profile, &err);
    calibration->wanted = status != DP_OK;
    if (status != DP_OK && status != DP_NOT_FOUND) {
        dp_log_warn("profile.unreadable", "reason=\"%s\" next=\"calibrating again\"", err.message);
        (void)dp_sealed_put_aside(calibration->file, &err);
        worker_note(worker, err.message);
    }
    return calibration;
}

void calibration_free(struct calibration *calibration)
{
    if (calibration->child > 0) {
        (void)kill(-calibration->child, SIGKILL);
        (void)waitpid(calibration->child, NULL, 0);
    }
    dp_cleanup_close(&calibration->turn_fd);
    free(calibration->file);
    free(calibration->unchecked);
    free(calibration->log);
    free(calibration);
}

// A name that only one process on the host can have, and that goes with the process.
static bool take_turn(struct calibration *calibration)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int length = snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "dp-calibrate-%u",
                          (unsigned)getuid());
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&address, size) == 0) {
        calibration->turn_fd = fd;
        return true;
    }
    dp_cleanup_close(&fd);
    return false;
}

static void end_turn(struct calibration *calibration)
{
    dp_cleanup_close(&calibration->turn_fd);
    calibration->turn_fd = -1;
}

const char *calibration_error(const struct calibration *calibration)
{
    return calibration->error;
}

static bool answer(struct calibration *calibration, Dp__V1__CalibrateOutcome outcome,
                   const char *message)
{
    Dp__V1__CalibrateLevel level = DP__V1__CALIBRATE_LEVEL__INIT;
    level.request = calibration->ordered;
    level.outcome = outcome;
    level.message = (char *)message;
    if (outcome == DP__V1__CALIBRATE_OUTCOME__CALIBRATE_MEASURED) {
        level.profile_json.data = (uint8_t *)calibration->worker->profile.bytes;
        level.profile_json.len = calibration->worker->profile.length;
    }
    return session_send_calibration(calibration->worker->session, &level);
}

// The last word on what was ordered; sent again until there is room for it.
static void end_order(struct calibration *calibration, Dp__V1__CalibrateOutcome outcome,
                      const char *message)
{
    if (calibration->ordered == 0) {
        return;
    }
    calibration->answer_due = !answer(calibration, outcome, message);
    calibration->outcome = outcome;
    (void)DP_COPY_TEXT(calibration->message, message);
    if (!calibration->answer_due) {
        calibration->ordered = 0;
    }
}

static const char *busy_text(const struct worker *worker, char *ret_text, size_t size)
{
    for (size_t i = 0; i < dp_agent_core_count(worker->core); i++) {
        const struct dp_agent_assignment *assignment = dp_agent_core_at(worker->core, i);
        if (!dp_agent_assignment_ended(assignment)) {
            snprintf(ret_text, size, "ranks of %s run there", assignment->fence.job);
            return ret_text;
        }
    }
    return NULL;
}

static void refuse(struct calibration *calibration, uint64_t request, const char *why)
{
    uint64_t kept = calibration->ordered;
    calibration->ordered = request;
    (void)answer(calibration, DP__V1__CALIBRATE_OUTCOME__CALIBRATE_REFUSED, why);
    calibration->ordered = kept;
}

static void cancel(struct calibration *calibration, uint64_t request)
{
    if (calibration->ordered != request) {
        return;
    }
    calibration->ordered = 0;
    calibration->answer_due = false;
    // Without a profile the node wants one for itself.
    if (calibration->worker->profile.length == 0) {
        return;
    }
    calibration->wanted = false;
    if (calibration->child > 0) {
        calibration->cancelled = true;
        (void)kill(-calibration->child, SIGKILL);
    }
}

void calibration_order(struct calibration *calibration, uint64_t request, bool is_cancel)
{
    char text[DP_AGENT_TEXT_MAX];
    if (is_cancel) {
        cancel(calibration, request);
    } else if (calibration->ordered != 0) {
        refuse(calibration, request, "it is being calibrated for somebody else");
    } else if (busy_text(calibration->worker, text, sizeof text) != NULL) {
        refuse(calibration, request, text);
    } else {
        // One that runs for the node's own sake serves as well.
        calibration->ordered = request;
        if (calibration->child == 0 || calibration->cancelled) {
            calibration->wanted = true;
            calibration->wanted_at_ns = worker_now_ns();
            calibration->turn_by_ns = calibration->wanted_at_ns + TURN_MS * DP_NS_PER_MS;
            calibration->limit_ms = LIMIT_MAX_MS; // who asked waits for longer
        }
        worker_hurry(calibration->worker);
    }
}

// The newest whole line that the child wrote on its progress.
static void tell_progress(struct calibration *calibration)
{
    char lines[1024];
    struct stat info;
    if (calibration->ordered == 0 || stat(calibration->log, &info) != 0 ||
        info.st_size <= calibration->log_seen) {
        return;
    }
    DP_AUTO_CLOSE int fd = open(calibration->log, O_RDONLY | O_CLOEXEC);
    ssize_t length = pread(fd, lines, sizeof lines - 1, calibration->log_seen);
    while (length > 0 && lines[length - 1] != '\n') {
        length--;
    }
    if (length <= 0) {
        return;
    }
    calibration->log_seen += length;
    lines[length - 1] = '\0';
    const char *newest = strrchr(lines, '\n');
    (void)answer(calibration, DP__V1__CALIBRATE_OUTCOME__CALIBRATE_GOES_ON,
                 newest == NULL ? lines : newest + 1);
}

// Tells the controller, and tries again after a while, longer each time. A node that has figures
// keeps them.
static void fail(struct calibration *calibration, const struct dp_error *err)
{
    int64_t now_ns = worker_now_ns();
    dp_log_error("calibration.failed", "reason=\"%s\" next=\"again in %u ms\"", err->message,
                 calibration->retry_ms);
    (void)unlink(calibration->unchecked);
    end_order(calibration, DP__V1__CALIBRATE_OUTCOME__CALIBRATE_FAILED, err->message);
    if (calibration->worker->profile.length > 0) {
        return;
    }
    (void)DP_COPY_TEXT(calibration->error, err->message);
    calibration->wanted = true;
    calibration->wanted_at_ns = now_ns + calibration->retry_ms * DP_NS_PER_MS;
    calibration->turn_by_ns = calibration->wanted_at_ns + TURN_MS * DP_NS_PER_MS;
    calibration->retry_ms =
        2 * calibration->retry_ms < RETRY_MAX_MS ? 2 * calibration->retry_ms : RETRY_MAX_MS;
    session_send_inventory(calibration->worker->session);
}

static void start(struct calibration *calibration)
{
    char *arguments[] = {(char *)calibration->worker->options.rank_program, (char *)"--calibrate",
                         NULL};
    struct dp_error err = {0};
    struct stat info;
    calibration->wanted = false;
    calibration->late = calibration->cancelled = false;
    calibration->log_seen = stat(calibration->log, &info) == 0 ? info.st_size : 0;
    if (child_start(arguments, calibration->unchecked, calibration->log, &calibration->child,
                    &err) != DP_OK) {
        end_turn(calibration);
        fail(calibration, &err);
        return;
    }
    calibration->give_up_ns = worker_now_ns() + calibration->limit_ms * DP_NS_PER_MS;
    dp_log_info("calibration.started", "pid=%d", (int)calibration->child);
}

static dp_status take_result(struct calibration *calibration, int status, int signal,
                             struct dp_error *err)
{
    if (calibration->late) {
        uint32_t limit_ms = calibration->limit_ms;
        calibration->limit_ms = 2 * limit_ms < LIMIT_MAX_MS ? 2 * limit_ms : LIMIT_MAX_MS;
        return dp_fail(err, DP_TIMEOUT, "dp-rank --calibrate did not end within %u s; see %s",
                       limit_ms / 1000, calibration->log);
    }
    if (status != 0 || signal != 0) {
        return dp_fail(err, DP_INTERNAL,
                       "dp-rank --calibrate ended with status %d, signal %d; see %s", status,
                       signal, calibration->log);
    }
    dp_status read = read_profile(calibration->unchecked, &calibration->worker->profile, err);
    if (read == DP_OK && rename(calibration->unchecked, calibration->file) != 0) {
        // It serves this life of the agent.
        dp_log_warn("profile.not_kept", "file=%s reason=\"%s\"", calibration->file,
                    strerror(errno));
    }
    return read;
}

static void finish(struct calibration *calibration, int status, int signal)
{
    calibration->child = 0;
    end_turn(calibration);
    struct dp_error err = {0};
    if (calibration->cancelled) {
        calibration->cancelled = false;
        (void)unlink(calibration->unchecked);
        dp_log_info("calibration.cancelled", "kept=%s", calibration->file);
        return;
    }
    if (take_result(calibration, status, signal, &err) != DP_OK) {
        fail(calibration, &err);
        return;
    }
    calibration->error[0] = '\0';
    dp_log_info("calibration.finished", "file=%s", calibration->file);
    session_send_inventory(calibration->worker->session);
    end_order(calibration, DP__V1__CALIBRATE_OUTCOME__CALIBRATE_MEASURED, "measured");
}

void calibration_tick(struct calibration *calibration)
{
    int64_t now_ns = worker_now_ns();
    if (calibration->answer_due) {
        end_order(calibration, calibration->outcome, calibration->message);
    }
    if (calibration->child > 0) {
        tell_progress(calibration);
    }
    if (calibration->wanted && calibration->child == 0 && now_ns >= calibration->wanted_at_ns &&
        (take_turn(calibration) || now_ns > calibration->turn_by_ns)) {
        start(calibration);
    }
    int status, signal;
    if (calibration->child > 0 && child_ended(calibration->child, &status, &signal)) {
        finish(calibration, status, signal);
    }
    if (calibration->child > 0 && !calibration->late && now_ns > calibration->give_up_ns) {
        calibration->late = true;
        (void)kill(-calibration->child, SIGKILL);
    }
}
