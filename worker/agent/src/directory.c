#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/arena.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/log.h"
#include "dp/sealed.h"
#include "dp/wire.h"
#include "worker.h"

#define ASSIGNMENT_FILE "assignment"
#define ASSIGNMENT_KIND "dp.assignment/1"
#define RELEASED_FILE "released"
#define RELEASED_KEPT 64

dp_status directory_lock(const char *state_dir, int *ret_fd, struct dp_error *err)
{
    dp_status status = dp_make_directories(state_dir, err);
    if (status != DP_OK) {
        return status;
    }
    DP_AUTO_FREE char *path = dp_asprintf("%s/lock", state_dir);
    DP_AUTO_CLOSE int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) {
        return dp_fail_errno(err, errno, "cannot open %s", path);
    }
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        return dp_fail(err, DP_CONFLICT,
                       "another dp-worker runs on %s; stop it or give another --state-dir",
                       state_dir);
    }
    *ret_fd = dp_steal_fd(&fd);
    return DP_OK;
}

char *directory_of(const char *state_dir, const struct dp_agent_fence *fence)
{
    return dp_asprintf("%s/jobs/%s.%u.%u", state_dir, fence->job, fence->attempt, fence->epoch);
}

dp_status directory_make(const char *directory, const void *prepare, size_t length,
                         struct dp_error *err)
{
    if (access(directory, F_OK) == 0) {
        return dp_fail(err, DP_CONFLICT,
                       "%s is there already, with what an earlier assignment of that name left: "
                       "move it away",
                       directory);
    }
    dp_status status = dp_make_directories(directory, err);
    if (status != DP_OK) {
        return status;
    }
    DP_AUTO_FREE char *path = dp_asprintf("%s/" ASSIGNMENT_FILE, directory);
    return dp_sealed_write(path, ASSIGNMENT_KIND, prepare, length, err);
}

// What cannot be looked at may be locked.
static bool is_locked(const char *path)
{
    DP_AUTO_CLOSE int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) {
        // A link, or a socket, is not the file that a keeper has made.
        return errno != ENOENT && errno != ENOTDIR && errno != ELOOP && errno != ENXIO;
    }
    return flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

bool directory_has_keeper(const char *directory)
{
    DP_AUTO_FREE char *path = dp_asprintf("%s/keeper.pid", directory);
    return is_locked(directory) || is_locked(path);
}

// Who listens on its socket, as the kernel knows it; 0 when nobody can be asked.
static pid_t listener_of(const char *directory)
{
    DP_AUTO_CLOSE int fd = -1;
    struct ucred peer;
    socklen_t size = sizeof peer;
    if (dp_link_connect(directory, KEEPER_SOCKET, &fd, NULL) != DP_OK ||
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
        return 0;
    }
    return peer.pid;
}

static pid_t written_in(const char *directory)
{
    DP_AUTO_FREE char *path = dp_asprintf("%s/keeper.pid", directory);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    if (dp_read_file(path, 64, &text, NULL) != DP_OK || text.length == 0) {
        return 0;
    }
    long pid = strtol(text.bytes, NULL, 10);
    return pid > 1 && pid <= INT32_MAX ? (pid_t)pid : 0;
}

// A keeper works in its directory, and nobody else does.
static bool works_in(pid_t pid, const char *directory)
{
    DP_AUTO_FREE char *link = dp_asprintf("/proc/%d/cwd", (int)pid);
    struct stat its, ours;
    return stat(link, &its) == 0 && stat(directory, &ours) == 0 && its.st_dev == ours.st_dev &&
           its.st_ino == ours.st_ino;
}

pid_t directory_keeper_pid(const char *directory)
{
    // A number in a file may be damaged, or belong to a stranger by now.
    const pid_t candidates[] = {listener_of(directory), written_in(directory)};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(candidates); i++) {
        if (candidates[i] > 1 && works_in(candidates[i], directory) &&
            directory_has_keeper(directory)) {
            return candidates[i];
        }
    }
    return 0;
}

static bool is_released(const char *directory)
{
    DP_AUTO_FREE char *path = dp_asprintf("%s/" RELEASED_FILE, directory);
    return access(path, F_OK) == 0;
}

static void remove_directory(const char *directory)
{
    DIR *listing = opendir(directory);
    if (listing == NULL) {
        return;
    }
    for (struct dirent *entry = readdir(listing); entry != NULL; entry = readdir(listing)) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            (void)unlinkat(dirfd(listing), entry->d_name, 0);
        }
    }
    closedir(listing);
    if (rmdir(directory) != 0) {
        dp_log_warn("directory.not_removed", "path=%s reason=\"%s\"", directory, strerror(errno));
    }
}

struct released {
    char *path;
    int64_t time_ns;
};

static int by_time(const void *a, const void *b)
{
    int64_t left = ((const struct released *)a)->time_ns;
    int64_t right = ((const struct released *)b)->time_ns;
    return left < right ? -1 : left > right;
}

// Keeps the output of the newest jobs for people, and the disk from filling up.
static void prune(const char *state_dir)
{
    DP_AUTO_FREE char *jobs = dp_asprintf("%s/jobs", state_dir);
    struct released *found = NULL;
    size_t count = 0;
    DIR *listing = opendir(jobs);
    for (struct dirent *entry = listing == NULL ? NULL : readdir(listing); entry != NULL;
         entry = readdir(listing)) {
        DP_AUTO_FREE char *path = dp_asprintf("%s/%s", jobs, entry->d_name);
        DP_AUTO_FREE char *mark = dp_asprintf("%s/" RELEASED_FILE, path);
        struct stat info;
        if (stat(mark, &info) == 0) {
            found = dp_realloc(found, count + 1, sizeof *found);
            found[count++] = (struct released){
                .path = dp_steal(path),
                .time_ns = info.st_mtim.tv_sec * 1000000000ll + info.st_mtim.tv_nsec,
            };
        }
    }
    if (listing != NULL) {
        closedir(listing);
    }
    if (count > 0) {
        qsort(found, count, sizeof *found, by_time);
    }
    for (size_t i = 0; i < count; i++) {
        if (count - i > RELEASED_KEPT) {
            remove_directory(found[i].path);
        }
        free(found[i].path);
    }
    free(found);
}

void directory_release(const char *state_dir, const char *directory)
{
    DP_AUTO_FREE char *path = dp_asprintf("%s/" RELEASED_FILE, directory);
    DP_AUTO_CLOSE int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) {
        dp_log_warn("directory.not_released", "path=%s reason=\"%s\"", path, strerror(errno));
    }
    prune(state_dir);
}

// JOB.ATTEMPT.EPOCH; a job id has no dot.
static bool fence_of_name(const char *name, struct dp_agent_fence *ret_fence)
{
    struct dp_agent_fence fence = {0};
    const char *dot = strchr(name, '.');
    size_t length = dot == NULL ? 0 : (size_t)(dot - name);
    if (length == 0 || length >= sizeof fence.job) {
        return false;
    }
    memcpy(fence.job, name, length);
    char again[DP_ID_MAX + 32];
    if (sscanf(dot, ".%" SCNu32 ".%" SCNu32, &fence.attempt, &fence.epoch) != 2) {
        return false;
    }
    snprintf(again, sizeof again, "%s.%u.%u", fence.job, fence.attempt, fence.epoch);
    *ret_fence = fence;
    return strcmp(again, name) == 0;
}

static void found(struct worker *worker, const struct dp_agent_fence *fence, const char *directory)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf prepare = {0};
    struct dp_error err = {0};
    ProtobufCMessage *message = NULL;
    DP_AUTO_FREE char *path = dp_asprintf("%s/" ASSIGNMENT_FILE, directory);
    dp_status status = dp_sealed_read(path, ASSIGNMENT_KIND, DP_MESSAGE_BYTES_MAX, &prepare, &err);
    if (status == DP_OK) {
        status = dp_wire_unpack(&dp__v1__prepare__descriptor, prepare.bytes, prepare.length, &arena,
                                &message, &err);
    }
    if (status != DP_OK) {
        // The keeper still knows which ranks it holds.
        dp_log_warn("assignment.unreadable", "directory=%s reason=\"%s\"", directory, err.message);
        worker_note(worker, err.message);
        dp_buf_clear(&prepare);
    }
    const Dp__V1__Prepare *known = (const Dp__V1__Prepare *)message;
    struct dp_agent_event event = {
        .type = DP_AGENT_FOUND,
        .fence = *fence,
        .numbers = known == NULL ? NULL : known->ranks,
        .numbers_count = known == NULL ? 0 : known->n_ranks,
    };
    worker_event(worker, &event);
    keeper_adopt(worker, fence, &prepare);
}

void directory_scan(struct worker *worker)
{
    DP_AUTO_FREE char *jobs = dp_asprintf("%s/jobs", worker->options.state_dir);
    DIR *listing = opendir(jobs);
    if (listing == NULL) {
        return;
    }
    for (struct dirent *entry = readdir(listing); entry != NULL; entry = readdir(listing)) {
        struct dp_agent_event event = {.type = DP_AGENT_WAS_RELEASED};
        if (!fence_of_name(entry->d_name, &event.fence)) {
            continue;
        }
        DP_AUTO_FREE char *directory = dp_asprintf("%s/%s", jobs, entry->d_name);
        if (is_released(directory)) {
            worker_event(worker, &event);
        } else {
            found(worker, &event.fence, directory);
        }
    }
    closedir(listing);
}
