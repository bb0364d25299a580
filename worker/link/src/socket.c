#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "dp/cleanup.h"
#include "dp/link.h"

// A short way to DIRECTORY/name that stays valid while *ret_directory_fd is open.
static dp_status short_address(const char *directory, const char *name, int *ret_directory_fd,
                               struct sockaddr_un *ret_address, struct dp_error *err)
{
    int fd = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return dp_fail_errno(err, errno, "cannot open directory %s", directory);
    }
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int length =
        snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/%s", fd, name);
    if (length >= (int)sizeof address.sun_path) {
        close(fd);
        return dp_fail(err, DP_TOO_LARGE, "the socket name %s is too long", name);
    }
    *ret_directory_fd = fd;
    *ret_address = address;
    return DP_OK;
}

dp_status dp_link_listen(const char *directory, const char *name, int *ret_fd, struct dp_error *err)
{
    DP_AUTO_CLOSE int directory_fd = -1;
    struct sockaddr_un address;
    dp_status status = short_address(directory, name, &directory_fd, &address, err);
    if (status != DP_OK) {
        return status;
    }
    if (unlinkat(directory_fd, name, 0) != 0 && errno != ENOENT) {
        return dp_fail_errno(err, errno, "cannot remove the old socket %s/%s", directory, name);
    }
    DP_AUTO_CLOSE int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return dp_fail_errno(err, errno, "cannot make a unix socket");
    }
    mode_t before = umask(0177);
    int bound = bind(fd, (struct sockaddr *)&address, sizeof address);
    int bind_errno = errno;
    umask(before);
    if (bound != 0) {
        return dp_fail_errno(err, bind_errno, "cannot bind %s/%s", directory, name);
    }
    if (listen(fd, 8) != 0) {
        return dp_fail_errno(err, errno, "cannot listen on %s/%s", directory, name);
    }
    *ret_fd = dp_steal_fd(&fd);
    return DP_OK;
}

dp_status dp_link_connect(const char *directory, const char *name, int *ret_fd,
                          struct dp_error *err)
{
    DP_AUTO_CLOSE int directory_fd = -1;
    struct sockaddr_un address;
    dp_status status = short_address(directory, name, &directory_fd, &address, err);
    if (status != DP_OK) {
        return status;
    }
    DP_AUTO_CLOSE int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return dp_fail_errno(err, errno, "cannot make a unix socket");
    }
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        return dp_fail_errno(err, errno, "cannot connect to %s/%s", directory, name);
    }
    *ret_fd = dp_steal_fd(&fd);
    return DP_OK;
}
