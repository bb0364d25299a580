// A port that stays open when descriptors run out.
//
// The library (1.51) closes a listening socket for good when accept4 fails with anything but EAGAIN
// and ECONNABORTED: after one moment without descriptors nobody reaches the server any more until
// it is started again. So the library's accept4 is this one, in every program with a server. At the
// limit it hangs up on those who come, with a descriptor that is kept for that: who is connected
// stays, and who comes when there is room again is served.
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core.h"
#include "dp/clock.h"
#include "dp/log.h"

#define TOLD_EVERY_MS 10000

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int spare_fd = -1;
static int64_t told_ns;

// What shared libraries call: a program's own symbols come first.
__attribute__((visibility("default"))) int dp_rpc_accept(int fd, struct sockaddr *ret_address,
                                                         socklen_t *ret_length,
                                                         int flags) __asm__("accept4");

static void keep_spare(void)
{
    spare_fd = spare_fd < 0 ? open("/dev/null", O_RDONLY | O_CLOEXEC) : spare_fd;
}

void dp_rpc_accept_prepare(void)
{
    pthread_mutex_lock(&mutex);
    keep_spare();
    pthread_mutex_unlock(&mutex);
}

static int accept_next(int fd, struct sockaddr *ret_address, socklen_t *ret_length, int flags)
{
    return (int)syscall(SYS_accept4, fd, ret_address, ret_length, flags);
}

// Hangs up on the next one. False: there is none, or the descriptor went to another thread.
static bool turn_away(int fd)
{
    pthread_mutex_lock(&mutex);
    if (spare_fd >= 0) {
        close(spare_fd);
        spare_fd = -1;
    }
    const int caller = accept_next(fd, NULL, NULL, SOCK_CLOEXEC);
    if (caller >= 0) {
        close(caller);
    }
    keep_spare();
    const int64_t now_ns = dp_clock_monotonic_ns();
    const bool tells =
        caller >= 0 && (told_ns == 0 || now_ns - told_ns > TOLD_EVERY_MS * DP_NS_PER_MS);
    told_ns = tells ? now_ns : told_ns;
    pthread_mutex_unlock(&mutex);
    if (tells) {
        dp_log_warn("rpc.full", "reason=\"no descriptors are left: who connects now is hung up on; "
                                "raise the limit of open files\"");
    }
    return caller >= 0;
}

int dp_rpc_accept(int fd, struct sockaddr *ret_address, socklen_t *ret_length, int flags)
{
    for (;;) {
        const int caller = accept_next(fd, ret_address, ret_length, flags);
        if (caller >= 0) {
            return caller;
        }
        switch (errno) {
        case EMFILE:
        case ENFILE:
            if (turn_away(fd)) {
                continue;
            }
            errno = EAGAIN;
            return -1;
        case ENOBUFS:
        case ENOMEM:
            errno = EAGAIN;
            return -1;
        // What became of a connection before it was accepted; the next one may be well.
        case EHOSTDOWN:
        case EHOSTUNREACH:
        case ENETDOWN:
        case ENETUNREACH:
        case ENONET:
        case ENOPROTOOPT:
        case EPROTO:
            continue;
        default:
            return -1;
        }
    }
}
