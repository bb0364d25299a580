#include "local.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/client.h"
#include "dp/clock.h"
#include "process.h"

static void local_cleanup_client(struct dp_client **client)
{
    dp_client_close(*client);
}

enum { NODES_MAX = 64, UP_TIMEOUT_MS = 120000, STOP_TIMEOUT_MS = 15000 };

static char *local_path(const struct dpctl *ctl, const char *name)
{
    return dp_asprintf("%s/local%s%s", ctl->state_directory, name[0] == '\0' ? "" : "/", name);
}

// Two dpctl that start or stop the cluster at the same time take turns.
static dp_status lock(const struct dpctl *ctl, int *ret_fd, struct dp_error *err)
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
    }
    *ret_fd = dp_steal_fd(&fd);
    return DP_OK;
}

// The programs lie beside dpctl.
static dp_status program_path(const char *name, char **ret_path, struct dp_error *err)
{
    char self[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length < 0) {
        return dp_fail_errno(err, errno, "cannot tell where dpctl lies");
    }
    self[length] = '\0';
    *strrchr(self, '/') = '\0';
    DP_AUTO_FREE char *path = dp_asprintf("%s/%s", self, name);
    if (access(path, X_OK) != 0) {
        return dp_fail_errno(err, errno, "cannot run %s, which belongs beside dpctl", path);
    }
    *ret_path = dp_steal(path);
    return DP_OK;
}

// "nodes slots" of the last up; both 0 when there was none.
static void read_shape(const struct dpctl *ctl, struct local_options *ret_shape)
{
    DP_AUTO_FREE char *path = local_path(ctl, "shape");
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    *ret_shape = (struct local_options){0};
    if (dp_read_file(path, 64, &text, NULL) == DP_OK &&
        (sscanf(text.bytes, "%d %d", &ret_shape->nodes, &ret_shape->slots) != 2 ||
         ret_shape->nodes < 1 || ret_shape->nodes > NODES_MAX || ret_shape->slots < 1 ||
         ret_shape->slots > DP_NODE_SLOTS_MAX)) {
        *ret_shape = (struct local_options){0};
    }
}

static dp_status write_shape(const struct dpctl *ctl, const struct local_options *shape,
                             struct dp_error *err)
{
    DP_AUTO_FREE char *path = local_path(ctl, "shape");
    DP_AUTO_FREE char *text = dp_asprintf("%d %d\n", shape->nodes, shape->slots);
    return dp_write_file(path, text, strlen(text), err);
}

int local_parts(const struct dpctl *ctl, struct local_part *parts, int parts_max)
{
    struct local_options shape;
    read_shape(ctl, &shape);
    int count = 0;
    for (int i = -1; i < shape.nodes && count < parts_max; i++) {
        struct local_part *part = &parts[count++];
        if (i < 0) {
            DP_COPY_TEXT(part->name, "controller");
        } else {
            snprintf(part->name, sizeof part->name, "node-%d", i);
        }
        DP_AUTO_FREE char *file = dp_asprintf("%s/local/%s.pid", ctl->state_directory, part->name);
        part->pid = process_read(file);
    }
    return count;
}

static int part_pid(const struct dpctl *ctl, const char *name)
{
    DP_AUTO_FREE char *file = dp_asprintf("%s/local/%s.pid", ctl->state_directory, name);
    return process_read(file);
}

static dp_status start_part(const struct dpctl *ctl, const char *name, char *const argv[],
                            struct dp_error *err)
{
    DP_AUTO_FREE char *pid_file = dp_asprintf("%s/local/%s.pid", ctl->state_directory, name);
    DP_AUTO_FREE char *log_file = dp_asprintf("%s/local/%s.log", ctl->state_directory, name);
    return process_start(pid_file, log_file, argv, err);
}

static dp_status start_controller(const struct dpctl *ctl, struct dp_error *err)
{
    DP_AUTO_FREE char *program = NULL;
    dp_status status = program_path("dp-controller", &program, err);
    if (status != DP_OK) {
        return status;
    }
    DP_AUTO_FREE char *state = local_path(ctl, "controller");
    DP_AUTO_FREE char *address = local_path(ctl, "controller.addr");
    // A stale address would be taken for the new controller's.
    unlink(address);
    status = dp_make_directories(state, err);
    if (status != DP_OK) {
        return status;
    }
    char *argv[] = {program,       "--state-dir",    state,   "--listen",
                    "127.0.0.1:0", "--address-file", address, NULL};
    return start_part(ctl, "controller", argv, err);
}

static dp_status start_node(const struct dpctl *ctl, int index, int slots, struct dp_error *err)
{
    DP_AUTO_FREE char *program = NULL;
    dp_status status = program_path("dp-worker", &program, err);
    if (status != DP_OK) {
        return status;
    }
    DP_AUTO_FREE char *name = dp_asprintf("node-%d", index);
    DP_AUTO_FREE char *state = local_path(ctl, name);
    DP_AUTO_FREE char *controller = dp_asprintf("@%s/local/controller.addr", ctl->state_directory);
    DP_AUTO_FREE char *slots_text = dp_asprintf("%d", slots);
    status = dp_make_directories(state, err);
    if (status != DP_OK) {
        return status;
    }
    char *argv[] = {program,    "--state-dir",          state,      "--name",
                    name,       "--controller",         controller, "--slots",
                    slots_text, "--kill-ranks-on-exit", NULL};
    return start_part(ctl, name, argv, err);
}

static char *profile_path(const struct dpctl *ctl, int node)
{
    return dp_asprintf("%s/local/node-%d/profile.json", ctl->state_directory, node);
}

// The nodes are one machine: what node-0 measured holds for all, and measuring once is enough.
static dp_status share_profile(const struct dpctl *ctl, int node, struct dp_error *err)
{
    DP_AUTO_FREE char *from = profile_path(ctl, 0);
    DP_AUTO_FREE char *to = profile_path(ctl, node);
    DP_AUTO_FREE char *name = dp_asprintf("node-%d", node);
    DP_AUTO_FREE char *directory = local_path(ctl, name);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_status status = dp_make_directories(directory, err);
    if (status != DP_OK || access(to, R_OK) == 0 ||
        dp_read_file(from, DP_PROFILE_BYTES_MAX, &text, NULL) != DP_OK) {
        return status;
    }
    return dp_write_file(to, text.bytes, text.length, err);
}

// The last lines of a part's log: why it ended.
static void append_log_tail(const struct dpctl *ctl, const char *name, struct dp_error *err)
{
    DP_AUTO_FREE char *path = dp_asprintf("%s/local/%s.log", ctl->state_directory, name);
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

static dp_status wait_for_client(const struct dpctl *ctl, struct dp_client **ret_client,
                                 struct dp_error *err)
{
    DP_AUTO_FREE char *file = local_path(ctl, "controller.addr");
    DP_AUTO_FREE char *address = dp_asprintf("@%s", file);
    int64_t deadline = dp_clock_monotonic_ns() + UP_TIMEOUT_MS * DP_NS_PER_MS;
    for (;;) {
        if (part_pid(ctl, "controller") == 0) {
            dp_fail(err, DP_UNAVAILABLE, "dp-controller ended while starting");
            append_log_tail(ctl, "controller", err);
            return err->status;
        }
        if (access(file, R_OK) == 0) {
            return dp_client_open(address, UP_TIMEOUT_MS, ret_client, err);
        }
        if (dp_clock_monotonic_ns() > deadline) {
            dp_fail(err, DP_TIMEOUT, "dp-controller did not say where it listens in %d s",
                    UP_TIMEOUT_MS / 1000);
            append_log_tail(ctl, "controller", err);
            return err->status;
        }
        poll(NULL, 0, 20);
    }
}

static int ready_nodes(const Dp__V1__ListNodesResponse *nodes, int wanted)
{
    int ready = 0;
    for (size_t i = 0; i < nodes->n_nodes; i++) {
        const Dp__V1__Node *node = nodes->nodes[i];
        int index = -1;
        if (sscanf(node->name, "node-%d", &index) == 1 && index >= 0 && index < wanted) {
            ready += strcmp(node->state, "READY") == 0 && node->calibrated;
        }
    }
    return ready;
}

static dp_status wait_for_nodes(struct dpctl *ctl, struct dp_client *client, int wanted,
                                struct dp_error *err)
{
    int64_t deadline = dp_clock_monotonic_ns() + UP_TIMEOUT_MS * DP_NS_PER_MS;
    int reported = -1;
    for (;;) {
        DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
        Dp__V1__ListNodesResponse *nodes = NULL;
        dp_status status = dp_client_list_nodes(client, &arena, &nodes, err);
        if (status != DP_OK) {
            return status;
        }
        int ready = ready_nodes(nodes, wanted);
        if (ready == wanted) {
            if (reported >= 0 && ctl->err_is_tty) {
                fputs("\r\033[K", stderr);
            }
            return DP_OK;
        }
        if (ready != reported && ctl->err_is_tty) {
            fprintf(stderr, "\r\033[Kstarting: %d of %d nodes ready (the first start calibrates)",
                    ready, wanted);
        }
        reported = ready;
        for (int i = 0; i < wanted; i++) {
            DP_AUTO_FREE char *name = dp_asprintf("node-%d", i);
            if (part_pid(ctl, name) == 0) {
                dp_fail(err, DP_UNAVAILABLE, "dp-worker %s ended while starting", name);
                append_log_tail(ctl, name, err);
                return err->status;
            }
        }
        if (dp_clock_monotonic_ns() > deadline) {
            return dp_fail(err, DP_TIMEOUT,
                           "%d of %d nodes became ready in %d s; see %s/local/*.log", ready, wanted,
                           UP_TIMEOUT_MS / 1000, ctl->state_directory);
        }
        poll(NULL, 0, 50);
    }
}

// Starts those that do not run; the first one calibrates, when nobody has, before the others start.
static dp_status start_nodes(struct dpctl *ctl, struct dp_client *client,
                             const struct local_options *wanted, struct dp_error *err)
{
    for (int i = 0; i < wanted->nodes; i++) {
        DP_AUTO_FREE char *name = dp_asprintf("node-%d", i);
        DP_AUTO_FREE char *calibrated = profile_path(ctl, 0);
        dp_status status = DP_OK;
        if (i == 1 && access(calibrated, R_OK) != 0) {
            status = wait_for_nodes(ctl, client, 1, err);
        }
        if (status == DP_OK && i > 0) {
            status = share_profile(ctl, i, err);
        }
        if (status == DP_OK && part_pid(ctl, name) == 0) {
            status = start_node(ctl, i, wanted->slots, err);
        }
        if (status != DP_OK) {
            return status;
        }
    }
    return wait_for_nodes(ctl, client, wanted->nodes, err);
}

static dp_status count_active(struct dp_client *client, size_t *ret_active, struct dp_error *err)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__ListJobsRequest request = DP__V1__LIST_JOBS_REQUEST__INIT;
    request.active = true;
    Dp__V1__ListJobsResponse *jobs = NULL;
    dp_status status = dp_client_list_jobs(client, &request, &arena, &jobs, err);
    if (status == DP_OK) {
        *ret_active = jobs->n_jobs;
    }
    return status;
}

static dp_status stop_nodes(const struct dpctl *ctl, int from, struct dp_error *err)
{
    for (int i = from; i < NODES_MAX; i++) {
        DP_AUTO_FREE char *file = dp_asprintf("%s/local/node-%d.pid", ctl->state_directory, i);
        dp_status status = process_stop(file, SIGTERM, STOP_TIMEOUT_MS, err);
        if (status != DP_OK) {
            return status;
        }
    }
    return DP_OK;
}

// Another number of nodes or slots than what runs: only while no job is there to be disturbed.
static dp_status reshape(const struct dpctl *ctl, struct dp_client *client,
                         const struct local_options *was, const struct local_options *wanted,
                         struct dp_error *err)
{
    if (was->nodes == 0 || (was->nodes == wanted->nodes && was->slots == wanted->slots)) {
        return DP_OK;
    }
    size_t active = 0;
    dp_status status = count_active(client, &active, err);
    if (status != DP_OK) {
        return status;
    }
    if (active > 0) {
        return dp_fail(err, DP_CONFLICT,
                       "the local cluster has %d nodes with %d slots, %d with %d are needed, and "
                       "%zu jobs are on it; wait for them or cancel them",
                       was->nodes, was->slots, wanted->nodes, wanted->slots, active);
    }
    return stop_nodes(ctl, was->slots == wanted->slots ? wanted->nodes : 0, err);
}

dp_status local_up(struct dpctl *ctl, const struct local_options *options, bool *ret_started,
                   struct dp_error *err)
{
    DP_AUTO_CLOSE int lock_fd = -1;
    dp_status status = lock(ctl, &lock_fd, err);
    if (status != DP_OK) {
        return status;
    }
    struct local_options was, wanted;
    read_shape(ctl, &was);
    wanted.nodes = options->nodes > 0 ? options->nodes : was.nodes > 0 ? was.nodes : 2;
    wanted.slots = options->slots > 0 ? options->slots : was.slots > 0 ? was.slots : 2;
    bool controller_ran = part_pid(ctl, "controller") != 0;
    bool anything_ran = controller_ran;
    for (int i = 0; i < was.nodes; i++) {
        DP_AUTO_FREE char *name = dp_asprintf("node-%d", i);
        anything_ran = anything_ran || part_pid(ctl, name) != 0;
    }
    if (!controller_ran && (status = start_controller(ctl, err)) != DP_OK) {
        return status;
    }
    DP_CLEANUP(local_cleanup_client) struct dp_client *client = NULL;
    status = wait_for_client(ctl, &client, err);
    if (status == DP_OK) {
        status = reshape(ctl, client, &was, &wanted, err);
    }
    if (status == DP_OK) {
        status = write_shape(ctl, &wanted, err);
    }
    if (status == DP_OK) {
        status = start_nodes(ctl, client, &wanted, err);
    }
    if (status == DP_OK && ret_started != NULL) {
        *ret_started = !anything_ran;
    }
    return status;
}

static dp_status cancel_all(struct dp_client *client, struct dp_error *err)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__ListJobsRequest request = DP__V1__LIST_JOBS_REQUEST__INIT;
    request.active = true;
    Dp__V1__ListJobsResponse *jobs = NULL;
    dp_status status = dp_client_list_jobs(client, &request, &arena, &jobs, err);
    for (size_t i = 0; status == DP_OK && i < jobs->n_jobs; i++) {
        Dp__V1__Job *job = NULL;
        status = dp_client_cancel_job(client, jobs->jobs[i]->id, "the local cluster is stopped",
                                      &arena, &job, err);
    }
    int64_t deadline = dp_clock_monotonic_ns() + STOP_TIMEOUT_MS * DP_NS_PER_MS;
    size_t active = status == DP_OK ? 1 : 0;
    while (active > 0 && dp_clock_monotonic_ns() < deadline) {
        status = count_active(client, &active, err);
        if (status != DP_OK || active == 0) {
            break;
        }
        poll(NULL, 0, 50);
    }
    return status;
}

dp_status local_down(struct dpctl *ctl, struct dp_error *err)
{
    DP_AUTO_CLOSE int lock_fd = -1;
    dp_status status = lock(ctl, &lock_fd, err);
    if (status != DP_OK) {
        return status;
    }
    if (part_pid(ctl, "controller") != 0) {
        // Best effort: a controller that does not answer must not keep the cluster up.
        DP_CLEANUP(local_cleanup_client) struct dp_client *client = NULL;
        struct dp_error ignored = {0};
        DP_AUTO_FREE char *address = dp_asprintf("@%s/local/controller.addr", ctl->state_directory);
        if (dp_client_open(address, 2000, &client, &ignored) == DP_OK) {
            cancel_all(client, &ignored);
        }
    }
    status = stop_nodes(ctl, 0, err);
    DP_AUTO_FREE char *pid_file = local_path(ctl, "controller.pid");
    dp_status last = process_stop(pid_file, SIGTERM, STOP_TIMEOUT_MS, err);
    DP_AUTO_FREE char *address = local_path(ctl, "controller.addr");
    unlink(address);
    return status == DP_OK ? last : status;
}

dp_status local_find_controller(struct dpctl *ctl, char buffer[DP_ADDRESS_MAX],
                                struct dp_error *err)
{
    if (ctl->controller != NULL) {
        if (strlen(ctl->controller) >= DP_ADDRESS_MAX) {
            return dp_fail(err, DP_USAGE, "the controller's address has over %d characters",
                           DP_ADDRESS_MAX - 1);
        }
        dp_copy_text(buffer, DP_ADDRESS_MAX, ctl->controller);
        return DP_OK;
    }
    DP_AUTO_FREE char *file = local_path(ctl, "controller.addr");
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    if (part_pid(ctl, "controller") == 0 ||
        dp_read_file(file, DP_ADDRESS_MAX - 1, &text, NULL) != DP_OK) {
        return dp_fail(err, DP_UNAVAILABLE,
                       "no local cluster runs; start one with `dpctl local up`, or name a "
                       "controller with --controller HOST:PORT");
    }
    text.bytes[strcspn(text.bytes, "\n")] = '\0';
    dp_copy_text(buffer, DP_ADDRESS_MAX, text.bytes);
    return DP_OK;
}
