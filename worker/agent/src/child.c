#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "worker.h"

static void set_signals(posix_spawnattr_t *attributes)
{
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(attributes, &none);
    posix_spawnattr_setsigdefault(attributes, &all);
    posix_spawnattr_setflags(attributes,
                             POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSID);
}

dp_status child_start(char *const *arguments, const char *output, const char *log, pid_t *ret_pid,
                      struct dp_error *err)
{
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_t files;
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_init(&files);
    set_signals(&attributes);
    posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, output == NULL ? "/dev/null" : output,
                                     O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_addopen(&files, STDERR_FILENO, log, O_WRONLY | O_CREAT | O_APPEND,
                                     0600);
    // No descriptor of the agent's libraries survives even if one forgot to say so.
    posix_spawn_file_actions_addclosefrom_np(&files, STDERR_FILENO + 1);
    pid_t pid;
    int failed = posix_spawn(&pid, arguments[0], &files, &attributes, arguments, environ);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
    if (failed != 0) {
        return dp_fail_errno(err, failed, "cannot start %s", arguments[0]);
    }
    *ret_pid = pid;
    return DP_OK;
}

bool child_ended(pid_t pid, int *ret_status, int *ret_signal)
{
    int wait_status;
    if (waitpid(pid, &wait_status, WNOHANG) != pid) {
        return false;
    }
    *ret_signal = WIFSIGNALED(wait_status) ? WTERMSIG(wait_status) : 0;
    *ret_status = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 0;
    return true;
}
