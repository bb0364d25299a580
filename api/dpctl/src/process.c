#include "process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/buf.h"
#include "dp/cleanup.h"

extern char **environ;

// Field 22 of /proc/PID/stat, in clock ticks since boot; 0 when there is no such process or it is
// a zombie.
static unsigned long long start_time(int pid)
{
    DP_AUTO_FREE char *path = dp_asprintf("/proc/%d/stat", pid);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    if (dp_read_file(path, 4096, &text, NULL) != DP_OK) {
        return 0;
    }
    // The name in parentheses may hold anything; fields count from the last ')'.
    const char *at = strrchr(text.bytes, ')');
    if (at == NULL || at[1] == '\0' || at[2] == 'Z' || at[2] == 'X') {
        return 0;
    }
    unsigned long long value = 0;
    for (int field = 2; field < 22 && at != NULL; field++) {
        at = strchr(at + 1, ' ');
    }
    return at != NULL && sscanf(at + 1, "%llu", &value) == 1 ? value : 0;
}

int process_read(const char *pid_file)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    int pid = 0;
    unsigned long long started = 0;
    if (dp_read_file(pid_file, 128, &text, NULL) != DP_OK ||
        sscanf(text.bytes, "%d %llu", &pid, &started) != 2 || pid <= 1) {
        return 0;
    }
    return start_time(pid) == started && started != 0 ? pid : 0;
}

static dp_status spawn(const char *log_file, char *const argv[], pid_t *ret_pid,
                       struct dp_error *err)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, log_file, O_WRONLY | O_CREAT | O_APPEND,
                                     0600);
    posix_spawn_file_actions_adddup2(&files, STDOUT_FILENO, STDERR_FILENO);
    posix_spawn_file_actions_addclosefrom_np(&files, 3);
    sigset_t all, none;
    sigfillset(&all);
    sigemptyset(&none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setflags(&attributes,
                             POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
    int error = posix_spawn(ret_pid, argv[0], &files, &attributes, argv, environ);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
    return error == 0 ? DP_OK : dp_fail_errno(err, error, "cannot start %s", argv[0]);
}

dp_status process_start(const char *pid_file, const char *log_file, char *const argv[],
                        struct dp_error *err)
{
    pid_t pid = 0;
    dp_status status = spawn(log_file, argv, &pid, err);
    if (status != DP_OK) {
        return status;
    }
    DP_AUTO_FREE char *text = dp_asprintf("%d %llu\n", (int)pid, start_time(pid));
    status = dp_write_file(pid_file, text, strlen(text), err);
    if (status != DP_OK) {
        kill(pid, SIGKILL);
    }
    return status;
}

static bool wait_end(int pidfd, int64_t timeout_ms)
{
    struct pollfd poll_fd = {.fd = pidfd, .events = POLLIN};
    int ready;
    do {
        ready = poll(&poll_fd, 1, (int)timeout_ms);
    } while (ready < 0 && errno == EINTR);
    return ready > 0;
}

// A process that is stopped hears the first signal only once it goes on.
static dp_status end(int pid, int pidfd, int first_signal, int64_t timeout_ms, struct dp_error *err)
{
    syscall(SYS_pidfd_send_signal, pidfd, first_signal, NULL, 0);
    syscall(SYS_pidfd_send_signal, pidfd, SIGCONT, NULL, 0);
    if (!wait_end(pidfd, timeout_ms)) {
        syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0);
        if (!wait_end(pidfd, 5000)) {
            return dp_fail(err, DP_TIMEOUT, "process %d does not end, not even by SIGKILL", pid);
        }
    }
    waitpid(pid, NULL, WNOHANG); // reaps it when this very dpctl is the parent
    return DP_OK;
}

dp_status process_stop(const char *pid_file, int first_signal, int64_t timeout_ms,
                       struct dp_error *err)
{
    int pid = process_read(pid_file);
    if (pid == 0) {
        unlink(pid_file);
        return DP_OK;
    }
    DP_AUTO_CLOSE int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    // Looked up again behind the descriptor: from here on the pid cannot be another process.
    if (pidfd < 0 || process_read(pid_file) != pid) {
        unlink(pid_file);
        return DP_OK;
    }
    dp_status status = end(pid, pidfd, first_signal, timeout_ms, err);
    if (status == DP_OK) {
        unlink(pid_file);
    }
    return status;
}

// The process in the file when it works in `directory` and the file is locked, else 0.
static int locked_pid(const char *pid_file, const char *directory)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    DP_AUTO_CLOSE int fd = open(pid_file, O_RDONLY | O_CLOEXEC);
    int pid = 0;
    if (fd < 0 || flock(fd, LOCK_SH | LOCK_NB) == 0 ||
        dp_read_file(pid_file, 64, &text, NULL) != DP_OK || sscanf(text.bytes, "%d", &pid) != 1 ||
        pid <= 1) {
        return 0;
    }
    DP_AUTO_FREE char *link = dp_asprintf("/proc/%d/cwd", pid);
    struct stat its, wanted;
    bool is_there = stat(link, &its) == 0 && stat(directory, &wanted) == 0 &&
                    its.st_dev == wanted.st_dev && its.st_ino == wanted.st_ino;
    return is_there ? pid : 0;
}

dp_status process_stop_locked(const char *pid_file, const char *directory, int64_t timeout_ms,
                              struct dp_error *err)
{
    int pid = locked_pid(pid_file, directory);
    DP_AUTO_CLOSE int pidfd = pid == 0 ? -1 : (int)syscall(SYS_pidfd_open, pid, 0);
    if (pidfd < 0 || locked_pid(pid_file, directory) != pid) {
        return DP_OK;
    }
    return end(pid, pidfd, SIGTERM, timeout_ms, err);
}
