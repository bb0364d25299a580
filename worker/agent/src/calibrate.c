#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/json.h"
#include "dp/log.h"
#include "worker.h"

#define PROFILE_SCHEMA "dp.profile/1"
#define CALIBRATION_MS 120000
#define TURN_MS 15000 // others' calibrations may hold this one back so long

struct calibration {
    struct worker *worker;
    char *file;      // STATE/profile.json
    char *unchecked; // where the run writes
    char *log;
    bool wanted;
    int turn_fd; // held while it runs: one calibration at a time on a host
    int64_t turn_by_ns;
    pid_t child;
    int64_t give_up_ns;
};

static dp_status read_profile(const char *path, struct dp_buf *ret_profile, struct dp_error *err)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    DP_AUTO_JSON json_t *json = NULL;
    dp_status status = dp_read_file(path, DP_SPEC_BYTES_MAX, &text, err);
    if (status == DP_OK) {
        status = dp_json_parse(text.bytes, text.length, DP_SPEC_BYTES_MAX, path, &json, err);
    }
    if (status != DP_OK) {
        return status;
    }
    const char *schema = json_string_value(json_object_get(json, "schema"));
    if (schema == NULL || strcmp(schema, PROFILE_SCHEMA) != 0) {
        return dp_fail(err, DP_INVALID, "%s is not a %s document", path, PROFILE_SCHEMA);
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
    struct dp_error err = {0};
    dp_status status = read_profile(calibration->file, &worker->profile, &err);
    calibration->wanted = status != DP_OK;
    if (status != DP_OK && status != DP_NOT_FOUND) {
        dp_log_warn("profile.unreadable", "reason=\"%s\" next=\"calibrating again\"", err.message);
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

static void start(struct calibration *calibration)
{
    char *arguments[] = {(char *)calibration->worker->options.rank_program, (char *)"--calibrate",
                         NULL};
    struct dp_error err = {0};
    calibration->wanted = false;
    if (child_start(arguments, calibration->unchecked, calibration->log, &calibration->child,
                    &err) != DP_OK) {
        dp_log_error("calibration.failed", "reason=\"%s\"", err.message);
        end_turn(calibration);
        return;
    }
    calibration->give_up_ns = worker_now_ns() + CALIBRATION_MS * DP_NS_PER_MS;
    dp_log_info("calibration.started", "pid=%d", (int)calibration->child);
}

static void finish(struct calibration *calibration, int status, int signal)
{
    calibration->child = 0;
    end_turn(calibration);
    struct dp_error err = {0};
    if (status != 0 || signal != 0) {
        (void)dp_fail(&err, DP_INTERNAL,
                      "dp-rank --calibrate ended with status %d, signal %d; "
                      "see %s",
                      status, signal, calibration->log);
    } else if (read_profile(calibration->unchecked, &calibration->worker->profile, &err) == DP_OK &&
               rename(calibration->unchecked, calibration->file) != 0) {
        (void)dp_fail_errno(&err, errno, "cannot keep %s", calibration->file);
    }
    if (err.status != DP_OK) {
        dp_log_error("calibration.failed", "reason=\"%s\"", err.message);
        (void)unlink(calibration->unchecked);
    }
    if (calibration->worker->profile.length > 0) {
        dp_log_info("calibration.finished", "file=%s", calibration->file);
        session_send_inventory(calibration->worker->session);
    }
}

void calibration_tick(struct calibration *calibration)
{
    if (calibration->wanted &&
        (take_turn(calibration) || worker_now_ns() > calibration->turn_by_ns)) {
        start(calibration);
    }
    int status, signal;
    if (calibration->child > 0 && child_ended(calibration->child, &status, &signal)) {
        finish(calibration, status, signal);
    }
    if (calibration->child > 0 && worker_now_ns() > calibration->give_up_ns) {
        (void)kill(-calibration->child, SIGKILL);
    }
}
