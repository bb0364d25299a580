#include "harness.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/clock.h"
#include "dp/rank_log.h"
#include "dp_test.h"

char *harness_directory(void)
{
    const char *base = getenv("TMPDIR");
    char *path = dp_asprintf("%s/dp-worker-test-XXXXXX", base == NULL ? "/tmp" : base);
    assert_non_null(mkdtemp(path));
    return path;
}

void harness_remove(const char *directory)
{
    DIR *listing = opendir(directory);
    assert_non_null(listing);
    for (struct dirent *entry = readdir(listing); entry != NULL; entry = readdir(listing)) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) {
            continue;
        }
        DP_AUTO_FREE char *path = dp_asprintf("%s/%s", directory, entry->d_name);
        if (entry->d_type == DT_DIR) {
            harness_remove(path);
        } else {
            assert_int_equal(unlink(path), 0);
        }
    }
    closedir(listing);
    assert_int_equal(rmdir(directory), 0);
}

static pid_t started[256];
static size_t started_count;

// What a failed test did not get to end.
static void kill_started(void)
{
    for (size_t i = 0; i < started_count; i++) {
        if (started[i] > 0) {
            (void)kill(started[i], SIGKILL);
        }
    }
}

static void remember(pid_t pid)
{
    if (started_count == 0) {
        atexit(kill_started);
    }
    if (started_count < sizeof started / sizeof started[0]) {
        started[started_count++] = pid;
    }
}

static void forget(pid_t pid)
{
    for (size_t i = 0; i < started_count; i++) {
        if (started[i] == pid) {
            started[i] = 0;
        }
    }
}

pid_t harness_start(char *const *arguments, char *const *environment)
{
    char *merged[1024];
    size_t count = 0;
    for (; environment != NULL && environment[count] != NULL; count++) {
        merged[count] = environment[count];
    }
    for (size_t i = 0; environ[i] != NULL && count < 1023; i++) {
        merged[count++] = environ[i];
    }
    merged[count] = NULL;
    pid_t pid;
    assert_int_equal(posix_spawn(&pid, arguments[0], NULL, NULL, arguments, merged), 0);
    remember(pid);
    return pid;
}

static void await_end(int pidfd)
{
    struct pollfd entry = {.fd = pidfd, .events = POLLIN};
    int ready = poll(&entry, 1, HARNESS_DEADLINE_MS);
    close(pidfd);
    if (ready != 1) {
        fail_msg("a process that should have ended still runs");
    }
}

int harness_wait(pid_t pid)
{
    int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    assert_true(pidfd >= 0);
    await_end(pidfd);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    forget(pid);
    return status;
}

void harness_wait_gone(pid_t pid)
{
    int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (pidfd >= 0) {
        await_end(pidfd);
    } else {
        assert_int_equal(errno, ESRCH);
    }
}

bool harness_exists(pid_t pid)
{
    return kill(pid, 0) == 0;
}

void harness_until(bool (*ready)(void *context), void *context, const char *what)
{
    int64_t deadline_ns = dp_clock_monotonic_ns() + HARNESS_DEADLINE_MS * DP_NS_PER_MS;
    while (!ready(context)) {
        if (dp_clock_monotonic_ns() > deadline_ns) {
            fail_msg("not in time: %s", what);
        }
        (void)poll(NULL, 0, 5);
    }
}

void harness_rank_log(const char *directory, uint32_t rank, struct dp_buf *ret_text)
{
    uint64_t offset = 0;
    size_t before;
    do {
        struct dp_error err = {0};
        uint64_t start;
        before = ret_text->length;
        assert_ok(dp_rank_log_read(directory, rank, offset, 65536, &start, ret_text, &err), &err);
        offset = start + ret_text->length - before;
    } while (ret_text->length > before);
}
