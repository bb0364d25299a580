// Loaded into dp-rank before the C library: one call of it never returns, as calls of communication
// libraries do whose peers are gone. DP_TEST_HANGS says which: "shutdown", what cuts the links, or
// "join", the end of the threads behind them. Reaching it creates the file DP_TEST_HANGS_AT.
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static bool is_told(const char *call)
{
    const char *wanted = getenv("DP_TEST_HANGS");
    return wanted != NULL && strcmp(wanted, call) == 0;
}

static _Noreturn void hang(void)
{
    close(open(getenv("DP_TEST_HANGS_AT"), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    for (;;) {
        pause();
    }
}

int shutdown(int fd, int how)
{
    if (is_told("shutdown")) {
        hang();
    }
    int (*real)(int, int);
    *(void **)&real = dlsym(RTLD_NEXT, "shutdown");
    return real(fd, how);
}

int pthread_join(pthread_t thread, void **ret_value)
{
    static atomic_int calls;
    // The first is the thread that tells the keeper; then nothing is left to say.
    if (is_told("join") && atomic_fetch_add(&calls, 1) > 0) {
        hang();
    }
    int (*real)(pthread_t, void **);
    *(void **)&real = dlsym(RTLD_NEXT, "pthread_join");
    return real(thread, ret_value);
}
