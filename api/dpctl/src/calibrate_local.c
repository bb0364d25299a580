// dpctl calibrate --local: this machine, by a dp-rank of its own.

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "calibrate.h"
#include "connect.h"
#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/profile.h"
#include "local.h"

// Its progress goes to our standard error, its answer to a pipe.
static dp_status start(const char *program, pid_t *ret_pid, int *ret_fd, struct dp_error *err)
{
    int pipe_fds[2];
    if (pipe2(pipe_fds, O_CLOEXEC) != 0) {
        return dp_fail_errno(err, errno, "cannot make a pipe");
    }
    DP_AUTO_CLOSE int write_end = pipe_fds[1];
    char *arguments[] = {(char *)program, (char *)"--calibrate", NULL};
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, write_end, STDOUT_FILENO);
    int failed = posix_spawn(ret_pid, program, &files, NULL, arguments, environ);
    posix_spawn_file_actions_destroy(&files);
    if (failed != 0) {
        close(pipe_fds[0]);
        return dp_fail_errno(err, failed, "cannot start %s", program);
    }
    *ret_fd = pipe_fds[0];
    return DP_OK;
}

static dp_status collect(int fd, struct dp_buf *out, struct dp_error *err)
{
    for (;;) {
        if (interrupted()) {
            return dp_fail(err, DP_INTERRUPTED, "cancelled: the saved profile is as it was");
        }
        char bytes[4096];
        ssize_t length = read(fd, bytes, sizeof bytes);
        if (length == 0) {
            return DP_OK;
        }
        if (length < 0 && errno != EINTR) {
            return dp_fail_errno(err, errno, "cannot read what dp-rank measured");
        }
        if (length > 0) {
            dp_buf_append(out, bytes, (size_t)length);
        }
        if (out->length > DP_PROFILE_BYTES_MAX) {
            return dp_fail(err, DP_TOO_LARGE, "dp-rank wrote more than a profile has");
        }
    }
}

static dp_status measure(const char *program, struct dp_buf *out, struct dp_error *err)
{
    pid_t pid = 0;
    DP_AUTO_CLOSE int fd = -1;
    dp_status status = start(program, &pid, &fd, err);
    if (status != DP_OK) {
        return status;
    }
    status = collect(fd, out, err);
    if (status != DP_OK) {
        (void)kill(pid, SIGKILL);
    }
    int end = 0;
    while (waitpid(pid, &end, 0) < 0 && errno == EINTR) {
    }
    if (status == DP_OK && (!WIFEXITED(end) || WEXITSTATUS(end) != 0)) {
        return dp_fail(err, DP_INTERNAL, "dp-rank --calibrate failed: see above");
    }
    return status;
}

dp_status calibrate_local(struct dpctl *ctl, const struct calibrate_request *request,
                          struct dp_error *err)
{
    (void)interrupted();
    DP_AUTO_FREE char *program = NULL;
    DP_AUTO_FREE char *saved = dp_asprintf("%s/profile.json", ctl->state_directory);
    const char *path = request->out != NULL ? request->out : saved;
    struct dp_profile before, after;
    bool had = dp_profile_load(path, &before, NULL) == DP_OK;
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    DP_AUTO_JSON json_t *json = NULL;
    dp_status status = local_program("dp-rank", &program, err);
    if (status == DP_OK) {
        status = measure(program, &text, err);
    }
    if (status == DP_OK) {
        status = dp_json_parse(text.length == 0 ? "" : text.bytes, text.length,
                               DP_PROFILE_BYTES_MAX, "dp-rank --calibrate", &json, err);
    }
    if (status == DP_OK) {
        status = dp_profile_from_json(json, &after, err);
    }
    if (status == DP_OK && request->out == NULL) {
        status = dp_make_directories(ctl->state_directory, err);
    }
    if (status == DP_OK) {
        status = dp_write_file(path, text.bytes, text.length, err);
    }
    if (status != DP_OK) {
        return status;
    }
    if (ctl->json) {
        dpctl_print_json(ctl,
                         json_pack("{s:s, s:o, s:O}", "file", path, "changes",
                                   calibrate_changes_json(had ? &before : NULL, &after), "profile",
                                   json),
                         "dp.calibration/1");
        return DP_OK;
    }
    DP_CLEANUP(dp_buf_deinit) struct dp_buf out = {0};
    dp_buf_printf(&out, "%s\n", after.provenance);
    calibrate_render_changes(had ? &before : NULL, &after, &out);
    dpctl_print(&out);
    fflush(stdout);
    fprintf(stderr, "%s written%s\n", path,
            request->out == NULL ? ": dpctl plan uses it" : "; dpctl plan --profile takes it");
    return DP_OK;
}
