#include "store_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"

static dp_status refuse(const char *directory, int fd, struct dp_error *err)
{
    char pid[32] = "";
    ssize_t length = pread(fd, pid, sizeof(pid) - 1, 0);
    pid[length > 0 ? length : 0] = '\0';
    pid[strcspn(pid, "\n")] = '\0';
    return dp_fail(err, DP_CONFLICT,
                   "state directory %s is in use by process %s: stop that dp-controller first, or "
                   "give this one another --state-dir",
                   directory, pid[0] == '\0' ? "?" : pid);
}

dp_status dp_store_lock(const char *directory, int *ret_fd, struct dp_error *err)
{
    DP_AUTO_FREE char *path = dp_asprintf("%s/%s", directory, DP_STORE_LOCK);
    DP_AUTO_CLOSE int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) {
        return dp_fail_errno(err, errno, "cannot open %s", path);
    }
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno == EWOULDBLOCK) {
            return refuse(directory, fd, err);
        }
        return dp_fail_errno(err, errno, "cannot lock %s", path);
    }
    char pid[32];
    int length = snprintf(pid, sizeof(pid), "%ld\n", (long)getpid());
    if (ftruncate(fd, 0) != 0 || pwrite(fd, pid, (size_t)length, 0) != length) {
        return dp_fail_errno(err, errno, "cannot write %s", path);
    }
    *ret_fd = dp_steal_fd(&fd);
    return DP_OK;
}
