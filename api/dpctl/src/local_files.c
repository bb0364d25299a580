#include "local_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "connect.h"
#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "process.h"

#define KEEPER_TIMEOUT_MS 5000 // they give their ranks two seconds

char *local_path(const struct dpctl *ctl, const char *name)
{
    return dp_asprintf("%s/local%s%s", ctl->state_directory, name[0] == '\0' ? "" : "/", name);
}

// "node-0.log" and the like.
static char *part_path(const struct dpctl *ctl, const char *name, const char *ending)
{
    return dp_asprintf("%s/local/%s%s", ctl->state_directory, name, ending);
}

dp_status local_lock(const struct dpctl *ctl, int *ret_fd, struct dp_error *err)
{
    DP_AUTO_FREE char *directory = local_path(ctl, "");
    dp_status status = dp_make_directories(directory, err);
    if (status != DP_OK) {
        return status;
    }
    DP_AUTO_FREE char *path = local_path(ctl, "lock");
    DP_AUTO_CLOSE int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) {
        return dp_fail_errno(err, errno, "cannot open %s", path);
    }
    while (flock(fd, LOCK_EX) != 0) {
        if (errno != EINTR) {
            return dp_fail_errno(err, errno, "cannot lock %s", path);
        }
        if (interrupted()) {
            return dp_fail(err, DP_INTERRUPTED,
                           "interrupted while another dpctl starts or stops the local cluster");
        }
    }
    *ret_fd = dp_steal_fd(&fd);
    return DP_OK;
}

void local_read_shape(const struct dpctl *ctl, struct local_shape *ret_shape)
{
    DP_AUTO_FREE char *path = local_path(ctl, "shape");
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    struct local_shape shape = {0};
    bool good = dp_read_file(path, 64, &text, NULL) == DP_OK &&
                sscanf(text.bytes, "%d %d", &shape.nodes, &shape.slots) == 2 && shape.nodes >= 1 &&
                shape.nodes <= DP_LOCAL_NODES_MAX && shape.slots >= 1 &&
                shape.slots <= DP_NODE_SLOTS_MAX;
    *ret_shape = good ? shape : (struct local_shape){0};
}

dp_status local_write_shape(const struct dpctl *ctl, const struct local_shape *shape,
                            struct dp_error *err)
{
    DP_AUTO_FREE char *path = local_path(ctl, "shape");
    DP_AUTO_FREE char *text = dp_asprintf("%d %d\n", shape->nodes, shape->slots);
    return dp_write_file(path, text, strlen(text), err);
}

bool local_is_temporary(const struct dpctl *ctl)
{
    DP_AUTO_FREE char *path = local_path(ctl, "temporary");
    return access(path, F_OK) == 0;
}

dp_status local_set_temporary(const struct dpctl *ctl, bool temporary, struct dp_error *err)
{
    DP_AUTO_FREE char *path = local_path(ctl, "temporary");
    if (temporary) {
        return dp_write_file(path, "", 0, err);
    }
    if (unlink(path) != 0 && errno != ENOENT) {
        return dp_fail_errno(err, errno, "cannot remove %s", path);
    }
    return DP_OK;
}

int local_part_pid(const struct dpctl *ctl, const char *name)
{
    DP_AUTO_FREE char *file = part_path(ctl, name, ".pid");
    return process_read(file);
}

int local_node_pid(const struct dpctl *ctl, int node)
{
    DP_AUTO_FREE char *name = dp_asprintf("node-%d", node);
    return local_part_pid(ctl, name);
}

bool local_any_node_runs(const struct dpctl *ctl)
{
    struct local_shape shape;
    local_read_shape(ctl, &shape);
    for (int i = 0; i < shape.nodes; i++) {
        if (local_node_pid(ctl, i) != 0) {
            return true;
        }
    }
    return false;
}

dp_status local_end_keepers(const struct dpctl *ctl, int node, struct dp_error *err)
{
    DP_AUTO_FREE char *jobs = dp_asprintf("%s/local/node-%d/jobs", ctl->state_directory, node);
    DIR *listing = opendir(jobs);
    dp_status status = DP_OK;
    for (struct dirent *entry = listing == NULL ? NULL : readdir(listing);
         entry != NULL && status == DP_OK; entry = readdir(listing)) {
        DP_AUTO_FREE char *directory = dp_asprintf("%s/%s", jobs, entry->d_name);
        DP_AUTO_FREE char *pid_file = dp_asprintf("%s/keeper.pid", directory);
        status = process_stop_locked(pid_file, directory, KEEPER_TIMEOUT_MS, err);
    }
    if (listing != NULL) {
        closedir(listing);
    }
    return status;
}

void local_http_address(const struct dpctl *ctl, char ret_address[DP_ADDRESS_MAX])
{
    DP_AUTO_FREE char *file = local_path(ctl, "controller.http");
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    ret_address[0] = '\0';
    if (local_part_pid(ctl, "controller") != 0 &&
        dp_read_file(file, DP_ADDRESS_MAX - 1, &text, NULL) == DP_OK && text.length > 0) {
        text.bytes[strcspn(text.bytes, "\n")] = '\0';
        dp_copy_text(ret_address, DP_ADDRESS_MAX, text.bytes);
    }
}

void local_append_log(const struct dpctl *ctl, const char *name, struct dp_error *err)
{
    DP_AUTO_FREE char *path = part_path(ctl, name, ".log");
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    if (dp_read_file(path, 64u << 20, &text, NULL) != DP_OK || text.length == 0) {
        return;
    }
    const char *tail = text.bytes + (text.length > 600 ? text.length - 600 : 0);
    const char *newline = tail == text.bytes ? NULL : strchr(tail, '\n');
    tail = newline == NULL ? tail : newline + 1;
    size_t used = strlen(err->message);
    snprintf(err->message + used, sizeof err->message - used, "; its log %s ends with:\n%s", path,
             tail);
}

static char *profile_path(const struct dpctl *ctl, int node)
{
    return dp_asprintf("%s/local/node-%d/profile.json", ctl->state_directory, node);
}

bool local_is_calibrated(const struct dpctl *ctl, int node)
{
    DP_AUTO_FREE char *path = profile_path(ctl, node);
    return access(path, R_OK) == 0;
}

dp_status local_share_profile(const struct dpctl *ctl, int node, struct dp_error *err)
{
    DP_AUTO_FREE char *from = profile_path(ctl, 0);
    DP_AUTO_FREE char *to = profile_path(ctl, node);
    DP_AUTO_FREE char *name = dp_asprintf("node-%d", node);
    DP_AUTO_FREE char *directory = local_path(ctl, name);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_status status = dp_make_directories(directory, err);
    if (status != DP_OK || local_is_calibrated(ctl, node) ||
        dp_read_file(from, DP_PROFILE_BYTES_MAX, &text, NULL) != DP_OK) {
        return status;
    }
    return dp_write_file(to, text.bytes, text.length, err);
}

void local_forget_profiles(const struct dpctl *ctl)
{
    for (int i = 0; i < DP_LOCAL_NODES_MAX; i++) {
        DP_AUTO_FREE char *path = profile_path(ctl, i);
        unlink(path);
    }
}
