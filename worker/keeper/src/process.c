#include "process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dp/buf.h"
#include "dp/cleanup.h"

// Descriptors are moved above these before they get their final numbers.
#define LOW_FDS 16

// What the child needs between fork and exec.
struct child {
    const struct dp_link_spawn *spawn;
    pid_t parent;
    int null_fd, output_fd, control_fd, failure_fd;
};

static void reset_signals(void)
{
    // The system call itself: posix_spawn leaves the library's own two signals ignored, and the
    // library refuses to touch them. All zeroes are the default on every machine.
    static const uint64_t by_default[8];
    for (int number = 1; number < NSIG; number++) {
        (void)syscall(SYS_rt_sigaction, number, by_default, NULL, sizeof(uint64_t));
    }
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

static bool place_descriptors(const struct child *child)
{
    return dup2(child->null_fd, STDIN_FILENO) >= 0 && dup2(child->output_fd, STDOUT_FILENO) >= 0 &&
           dup2(child->output_fd, STDERR_FILENO) >= 0 &&
           dup2(child->control_fd, DP_LINK_RANK_FD) >= 0 &&
           dup3(child->failure_fd, DP_LINK_RANK_FD + 1, O_CLOEXEC) >= 0 &&
           close_range(DP_LINK_RANK_FD + 2, ~0u, 0) == 0;
}

__attribute__((noreturn)) static void run_child(const struct child *child)
{
    reset_signals();
    setsid();
    int failure_fd = child->failure_fd;
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && place_descriptors(child)) {
        failure_fd = DP_LINK_RANK_FD + 1;
        // The parent may have died before the death signal was asked for.
        if (getppid() != child->parent) {
            _exit(127);
        }
        execve(child->spawn->arguments[0], child->spawn->arguments, child->spawn->environment);
    }
    int reason = errno;
    ssize_t put = write(failure_fd, &reason, sizeof reason);
    _exit(put == sizeof reason ? 127 : 126);
}

// A pair of descriptors, both above the low ones.
struct pair {
    int ours, theirs;
};

static void close_pair(struct pair *pair)
{
    dp_cleanup_close(&pair->ours);
    dp_cleanup_close(&pair->theirs);
}

static dp_status lift(struct pair *pair, struct dp_error *err)
{
    int *ends[] = {&pair->ours, &pair->theirs};
    for (size_t i = 0; i < 2; i++) {
        int high = fcntl(*ends[i], F_DUPFD_CLOEXEC, LOW_FDS);
        if (high < 0) {
            return dp_fail_errno(err, errno, "cannot duplicate a descriptor");
        }
        close(*ends[i]);
        *ends[i] = high;
    }
    return DP_OK;
}

static dp_status make_pipe(struct pair *ret_pair, struct dp_error *err)
{
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0) {
        return dp_fail_errno(err, errno, "cannot make a pipe");
    }
    *ret_pair = (struct pair){.ours = fds[0], .theirs = fds[1]};
    return lift(ret_pair, err);
}

static dp_status make_socket_pair(struct pair *ret_pair, struct dp_error *err)
{
    int fds[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) {
        return dp_fail_errno(err, errno, "cannot make a socket pair");
    }
    *ret_pair = (struct pair){.ours = fds[0], .theirs = fds[1]};
    return lift(ret_pair, err);
}

// Waits until the child runs its program; the pipe closes by itself then.
static dp_status await_exec(int failure_fd, pid_t pid, const char *program, struct dp_error *err)
{
    int reason = 0;
    ssize_t got;
    do {
        got = read(failure_fd, &reason, sizeof reason);
    } while (got < 0 && errno == EINTR);
    if (got == 0) {
        return DP_OK;
    }
    (void)waitpid(pid, NULL, 0);
    return dp_fail_errno(err, got == sizeof reason ? reason : EIO, "cannot start %s", program);
}

dp_status process_start(const struct dp_link_spawn *spawn, pid_t *ret_pid, int *ret_control_fd,
                        int *ret_output_fd, struct dp_error *err)
{
    DP_CLEANUP(close_pair) struct pair output = {-1, -1};
    DP_CLEANUP(close_pair) struct pair control = {-1, -1};
    DP_CLEANUP(close_pair) struct pair failure = {-1, -1};
    DP_CLEANUP(close_pair) struct pair null = {-1, -1};
    if (make_pipe(&output, err) != DP_OK || make_socket_pair(&control, err) != DP_OK ||
        make_pipe(&failure, err) != DP_OK) {
        return dp_fail_in(err, "cannot start %s", spawn->arguments[0]);
    }
    null.ours = open("/dev/null", O_RDONLY | O_CLOEXEC);
    null.theirs = fcntl(null.ours, F_DUPFD_CLOEXEC, LOW_FDS);
    if (null.theirs < 0) {
        return dp_fail_errno(err, errno, "cannot open /dev/null");
    }
    struct child child = {.spawn = spawn,
                          .parent = getpid(),
                          .null_fd = null.theirs,
                          .output_fd = output.theirs,
                          .control_fd = control.theirs,
                          .failure_fd = failure.theirs};
    pid_t pid = fork();
    if (pid < 0) {
        return dp_fail_errno(err, errno, "cannot start a process for %s", spawn->arguments[0]);
    }
    if (pid == 0) {
        run_child(&child);
    }
    close(dp_steal_fd(&failure.theirs));
    dp_status status = await_exec(failure.ours, pid, spawn->arguments[0], err);
    if (status != DP_OK) {
        return status;
    }
    (void)fcntl(output.ours, F_SETFL, O_NONBLOCK);
    (void)fcntl(control.ours, F_SETFL, O_NONBLOCK);
    *ret_pid = pid;
    *ret_control_fd = dp_steal_fd(&control.ours);
    *ret_output_fd = dp_steal_fd(&output.ours);
    return DP_OK;
}

static bool parent_of(const char *pid_text, pid_t *ret_parent)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%.20s/stat", pid_text);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    if (dp_read_file(path, 4096, &text, NULL) != DP_OK) {
        return false;
    }
    // The program's name may hold anything; the fields start after its closing bracket.
    const char *after = strrchr(text.bytes, ')');
    int parent;
    if (after == NULL || sscanf(after, ") %*c %d", &parent) != 1) {
        return false;
    }
    *ret_parent = (pid_t)parent;
    return true;
}

int process_kill_orphans(bool (*keep)(void *context, pid_t pid), void *context)
{
    DIR *directory = opendir("/proc");
    if (directory == NULL) {
        return 0;
    }
    int killed = 0;
    for (struct dirent *entry = readdir(directory); entry != NULL; entry = readdir(directory)) {
        pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);
        pid_t parent;
        if (pid <= 0 || !parent_of(entry->d_name, &parent) || parent != getpid() ||
            keep(context, pid)) {
            continue;
        }
        // A child that nobody has waited for keeps its pid, so this cannot hit a stranger.
        (void)kill(pid, SIGKILL);
        killed++;
    }
    closedir(directory);
    return killed;
}
