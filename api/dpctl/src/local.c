#include "local.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "connect.h"
#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/client.h"
#include "dp/clock.h"
#include "local_files.h"
#include "process.h"

enum { UP_TIMEOUT_MS = 120000, STOP_TIMEOUT_MS = 15000 };

dp_status local_program(const char *name, char **ret_path, struct dp_error *err)
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

int local_parts(const struct dpctl *ctl, struct local_part *parts, int parts_max)
{
    struct local_shape shape;
    local_read_shape(ctl, &shape);
    int count = 0;
    for (int i = -1; i < shape.nodes && count < parts_max; i++) {
        struct local_part *part = &parts[count++];
        if (i < 0) {
            DP_COPY_TEXT(part->name, "controller");
        } else {
            snprintf(part->name, sizeof part->name, "node-%d", i);
        }
        part->pid = local_part_pid(ctl, part->name);
    }
    return count;
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
    dp_status status = local_program("dp-controller", &program, err);
    if (status != DP_OK) {
        return status;
    }
    DP_AUTO_FREE char *state = local_path(ctl, "controller");
    DP_AUTO_FREE char *address = local_path(ctl, "controller.addr");
    DP_AUTO_FREE char *http_address = local_path(ctl, "controller.http");
    // A stale address would be taken for the new controller's.
    unlink(address);
    unlink(http_address);
    status = dp_make_directories(state, err);
    if (status != DP_OK) {
        return status;
    }
    char *argv[] = {program,       "--state-dir",         state,        "--listen",
                    "127.0.0.1:0", "--address-file",      address,      "--http-port",
                    "0",           "--http-address-file", http_address, NULL};
    return start_part(ctl, "controller", argv, err);
}

static dp_status start_node(const struct dpctl *ctl, int index, int slots, struct dp_error *err)
{
    DP_AUTO_FREE char *program = NULL;
    dp_status status = local_program("dp-worker", &program, err);
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

static dp_status fail_interrupted(struct dp_error *err)
{
    return dp_fail(err, DP_INTERRUPTED,
                   "interrupted; what has started of the local cluster goes on: `dpctl local up` "
                   "completes it, `dpctl local down` stops it");
}

static dp_status fail_with_log(const struct dpctl *ctl, const char *part, struct dp_error *err)
{
    local_append_log(ctl, part, err);
    return err->status;
}

static dp_status wait_for_client(const struct dpctl *ctl, struct dp_client **ret_client,
                                 struct dp_error *err)
{
    DP_AUTO_FREE char *file = local_path(ctl, "controller.addr");
    DP_AUTO_FREE char *address = dp_asprintf("@%s", file);
    int64_t deadline = dp_clock_monotonic_ns() + UP_TIMEOUT_MS * DP_NS_PER_MS;
    for (;;) {
        if (interrupted()) {
            return fail_interrupted(err);
        }
        if (local_part_pid(ctl, "controller") == 0) {
            dp_fail(err, DP_UNAVAILABLE, "dp-controller ended while starting");
            return fail_with_log(ctl, "controller", err);
        }
        if (access(file, R_OK) == 0) {
            dp_status status = dp_client_open(address, 200, ret_client, err);
            if (status != DP_UNAVAILABLE && status != DP_TIMEOUT) {
                return status;
            }
        }
        if (dp_clock_monotonic_ns() > deadline) {
            dp_fail(err, DP_TIMEOUT, "dp-controller did not answer in %d s", UP_TIMEOUT_MS / 1000);
            return fail_with_log(ctl, "controller", err);
        }
        poll(NULL, 0, 20);
    }
}

// As ready as it will get: somebody wants it to take no work.
static bool is_held(const char *state)
{
    static const char *const held[] = {"DRAINING", "DRAINED", "DOWN", "QUARANTINED"};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(held); i++) {
        if (strcmp(state, held[i]) == 0) {
            return true;
        }
    }
    return false;
}

static int ready_nodes(const Dp__V1__ListNodesResponse *nodes, int wanted)
{
    int ready = 0;
    for (size_t i = 0; i < nodes->n_nodes; i++) {
        const Dp__V1__Node *node = nodes->nodes[i];
        int index = -1;
        if (sscanf(node->name, "node-%d", &index) == 1 && index >= 0 && index < wanted) {
            ready +=
                (strcmp(node->state, "READY") == 0 && node->calibrated) || is_held(node->state);
        }
    }
    return ready;
}

// Redrawn on a terminal; elsewhere one line, the first time that something is missing.
static void show_starting(const struct dpctl *ctl, int ready, int wanted, int *shown)
{
    bool first = *shown < 0;
    if (ready == wanted) {
        fputs(first || !ctl->err_is_tty ? "" : "\r\033[K", stderr);
    } else if (ctl->err_is_tty ? ready != *shown : first) {
        fprintf(stderr, "%sstarting: %d of %d nodes ready (the first start calibrates)%s",
                ctl->err_is_tty ? "\r\033[K" : "", ready, wanted, ctl->err_is_tty ? "" : "\n");
    }
    *shown = ready;
}

static dp_status look_for_ended_nodes(const struct dpctl *ctl, int wanted, struct dp_error *err)
{
    for (int i = 0; i < wanted; i++) {
        if (local_node_pid(ctl, i) == 0) {
            DP_AUTO_FREE char *name = dp_asprintf("node-%d", i);
            dp_fail(err, DP_UNAVAILABLE, "dp-worker %s ended while starting", name);
            return fail_with_log(ctl, name, err);
        }
    }
    return DP_OK;
}

static dp_status wait_for_nodes(struct dpctl *ctl, struct dp_client *client, int wanted, int of,
                                int *shown, struct dp_error *err)
{
    int64_t deadline = dp_clock_monotonic_ns() + UP_TIMEOUT_MS * DP_NS_PER_MS;
    for (;;) {
        DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
        Dp__V1__ListNodesResponse *nodes = NULL;
        dp_status status = dp_client_list_nodes(client, &arena, &nodes, err);
        if (status != DP_OK) {
            return status;
        }
        int ready = ready_nodes(nodes, wanted);
        show_starting(ctl, ready, of, shown);
        if (ready == wanted) {
            return DP_OK;
        }
        status = interrupted() ? fail_interrupted(err) : look_for_ended_nodes(ctl, wanted, err);
        if (status != DP_OK) {
            fputs(ctl->err_is_tty ? "\n" : "", stderr); // what failed gets a line of its own
            return status;
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
                             const struct local_shape *wanted, struct dp_error *err)
{
    int shown = -1;
    for (int i = 0; i < wanted->nodes; i++) {
        dp_status status = DP_OK;
        if (i == 1 && !local_is_calibrated(ctl, 0)) {
            status = wait_for_nodes(ctl, client, 1, wanted->nodes, &shown, err);
        }
        if (status == DP_OK && i > 0) {
            status = local_share_profile(ctl, i, err);
        }
        if (status == DP_OK && local_node_pid(ctl, i) == 0) {
            status = start_node(ctl, i, wanted->slots, err);
        }
        if (status != DP_OK) {
            return status;
        }
    }
    return wait_for_nodes(ctl, client, wanted->nodes, wanted->nodes, &shown, err);
}

// Who is on the cluster: "job-3 is", "job-3 and 2 more are"; empty when no job is active.
static dp_status list_active(struct dp_client *client, struct dp_buf *ret_text,
                             struct dp_error *err)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__ListJobsRequest request = DP__V1__LIST_JOBS_REQUEST__INIT;
    request.active = true;
    Dp__V1__ListJobsResponse *jobs = NULL;
    dp_status status = dp_client_list_jobs(client, &request, &arena, &jobs, err);
    if (status == DP_OK && jobs->n_jobs == 1) {
        dp_buf_printf(ret_text, "%s is", jobs->jobs[0]->id);
    } else if (status == DP_OK && jobs->n_jobs > 1) {
        dp_buf_printf(ret_text, "%s and %zu more are", jobs->jobs[0]->id, jobs->n_jobs - 1);
    }
    return status;
}

static dp_status require_idle(struct dp_client *client, const char *why, struct dp_error *err)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf busy = {0};
    dp_status status = list_active(client, &busy, err);
    if (status == DP_OK && busy.length > 0) {
        return dp_fail(err, DP_CONFLICT, "%s, but %s on the local cluster: wait or cancel", why,
                       busy.bytes);
    }
    return status;
}

static dp_status stop_nodes(const struct dpctl *ctl, int from, struct dp_error *err)
{
    for (int i = from; i < DP_LOCAL_NODES_MAX; i++) {
        DP_AUTO_FREE char *file = dp_asprintf("%s/local/node-%d.pid", ctl->state_directory, i);
        dp_status status = process_stop(file, SIGTERM, STOP_TIMEOUT_MS, err);
        if (status == DP_OK) {
            status = local_end_keepers(ctl, i, err);
        }
        if (status != DP_OK) {
            return status;
        }
    }
    return DP_OK;
}

static int larger(int a, int b)
{
    return a > b ? a : b;
}

// `was` is what runs, or what a bare `local up` brings back; zeroes when there is neither.
static dp_status choose_shape(const struct local_options *options, const struct local_shape *was,
                              struct local_shape *ret_shape, struct dp_error *err)
{
    enum { NODES = 2, SLOTS = 2 };
    struct local_shape shape = {
        .nodes = options->nodes > 0 ? options->nodes
                 : was->nodes > 0   ? was->nodes
                                    : NODES,
        .slots = options->slots > 0 ? options->slots
                 : was->slots > 0   ? was->slots
                                    : SLOTS,
    };
    if (options->ranks > 0) {
        shape.nodes = larger(shape.nodes, was->nodes);
        shape.slots = larger(shape.slots, was->slots);
        int needed = (options->ranks - 1) / shape.nodes + 1;
        if (shape.slots < needed && (options->slots > 0 || needed > DP_NODE_SLOTS_MAX)) {
            return dp_fail(err, DP_UNSCHEDULABLE,
                           "the job needs %d ranks; that is %d slots on each of %d nodes%s",
                           options->ranks, needed, shape.nodes,
                           options->slots > 0 ? ", more than --slots allows"
                                              : ": give more --nodes");
        }
        shape.slots = larger(shape.slots, needed);
    }
    *ret_shape = shape;
    return DP_OK;
}

// Stops the nodes that cannot stay as they are: only while no job is there to be disturbed.
static dp_status reshape(const struct dpctl *ctl, struct dp_client *client,
                         const struct local_options *options, const struct local_shape *was,
                         const struct local_shape *wanted, struct dp_error *err)
{
    bool restart = was->slots != wanted->slots || options->recalibrate;
    if (!restart && wanted->nodes >= was->nodes) {
        return DP_OK;
    }
    char a[64], b[64], c[64], d[64];
    DP_AUTO_FREE char *why = options->recalibrate
                                 ? dp_strdup("calibration restarts the nodes")
                                 : dp_asprintf("%s with %s each are needed instead of %s with %s",
                                               dpctl_count(a, (unsigned)wanted->nodes, "node"),
                                               dpctl_count(b, (unsigned)wanted->slots, "slot"),
                                               dpctl_count(c, (unsigned)was->nodes, "node"),
                                               dpctl_count(d, (unsigned)was->slots, "slot"));
    dp_status status = require_idle(client, why, err);
    return status == DP_OK ? stop_nodes(ctl, restart ? 0 : wanted->nodes, err) : status;
}

static dp_status up(struct dpctl *ctl, const struct local_options *options, struct dp_error *err)
{
    struct local_shape was, wanted;
    local_read_shape(ctl, &was);
    bool controller_ran = local_part_pid(ctl, "controller") != 0;
    bool anything_ran = controller_ran || local_any_node_runs(ctl);
    if (options->ranks > 0 && !anything_ran) {
        was = (struct local_shape){0};
    }
    dp_status status = choose_shape(options, &was, &wanted, err);
    if (status == DP_OK && (!options->temporary || !anything_ran)) {
        status = local_set_temporary(ctl, options->temporary, err);
    }
    if (status == DP_OK && !controller_ran) {
        status = start_controller(ctl, err);
    }
    AUTO_CLIENT struct dp_client *client = NULL;
    if (status == DP_OK) {
        status = wait_for_client(ctl, &client, err);
    }
    if (status == DP_OK && anything_ran) {
        status = reshape(ctl, client, options, &was, &wanted, err);
    }
    if (status == DP_OK && options->recalibrate) {
        local_forget_profiles(ctl);
    }
    if (status == DP_OK) {
        status = local_write_shape(ctl, &wanted, err);
    }
    return status == DP_OK ? start_nodes(ctl, client, &wanted, err) : status;
}

dp_status local_up(struct dpctl *ctl, const struct local_options *options, int *ret_lock_fd,
                   struct dp_error *err)
{
    interrupted(); // from here on Ctrl-C is ours
    DP_AUTO_CLOSE int lock_fd = -1;
    dp_status status = local_lock(ctl, &lock_fd, err);
    if (status == DP_OK) {
        status = up(ctl, options, err);
    }
    if (status == DP_OK && ret_lock_fd != NULL) {
        *ret_lock_fd = dp_steal_fd(&lock_fd);
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
    while (status == DP_OK && dp_clock_monotonic_ns() < deadline) {
        DP_CLEANUP(dp_buf_deinit) struct dp_buf busy = {0};
        status = list_active(client, &busy, err);
        if (busy.length == 0) {
            break;
        }
        poll(NULL, 0, 50);
    }
    return status;
}

// A client of the local controller, or NULL: one that does not answer must not keep the cluster up.
static struct dp_client *open_if_it_answers(const struct dpctl *ctl)
{
    struct dp_client *client = NULL;
    struct dp_error ignored = {0};
    DP_AUTO_FREE char *address = dp_asprintf("@%s/local/controller.addr", ctl->state_directory);
    if (local_part_pid(ctl, "controller") != 0) {
        dp_client_open(address, 2000, &client, &ignored);
    }
    if (client != NULL) {
        connect_as_user(client);
    }
    return client;
}

static void cancel_what_runs(const struct dpctl *ctl)
{
    AUTO_CLIENT struct dp_client *client = open_if_it_answers(ctl);
    struct dp_error ignored = {0};
    if (client != NULL) {
        cancel_all(client, &ignored);
    }
}

static void look_for_jobs(const struct dpctl *ctl, struct dp_buf *ret_busy)
{
    AUTO_CLIENT struct dp_client *client = open_if_it_answers(ctl);
    struct dp_error ignored = {0};
    if (client != NULL) {
        list_active(client, ret_busy, &ignored);
    }
}

static dp_status stop_all(struct dpctl *ctl, struct dp_error *err)
{
    dp_status status = stop_nodes(ctl, 0, err);
    DP_AUTO_FREE char *pid_file = local_path(ctl, "controller.pid");
    dp_status last = process_stop(pid_file, SIGTERM, STOP_TIMEOUT_MS, err);
    DP_AUTO_FREE char *address = local_path(ctl, "controller.addr");
    unlink(address);
    status = status == DP_OK ? last : status;
    return status == DP_OK ? local_set_temporary(ctl, false, err) : status;
}

dp_status local_down(struct dpctl *ctl, struct dp_error *err)
{
    DP_AUTO_CLOSE int lock_fd = -1;
    dp_status status = local_lock(ctl, &lock_fd, err);
    if (status != DP_OK) {
        return status;
    }
    cancel_what_runs(ctl);
    return stop_all(ctl, err);
}

dp_status local_down_if_idle(struct dpctl *ctl, struct dp_buf *ret_busy, bool *ret_down,
                             struct dp_error *err)
{
    DP_AUTO_CLOSE int lock_fd = -1;
    *ret_down = false;
    dp_status status = local_lock(ctl, &lock_fd, err);
    if (status != DP_OK || !local_is_temporary(ctl)) {
        return status;
    }
    look_for_jobs(ctl, ret_busy);
    *ret_down = ret_busy->length == 0;
    return *ret_down ? stop_all(ctl, err) : DP_OK;
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
    if (local_part_pid(ctl, "controller") != 0 &&
        dp_read_file(file, DP_ADDRESS_MAX - 1, &text, NULL) == DP_OK) {
        text.bytes[strcspn(text.bytes, "\n")] = '\0';
        dp_copy_text(buffer, DP_ADDRESS_MAX, text.bytes);
        return DP_OK;
    }
    if (local_any_node_runs(ctl)) {
        return dp_fail(err, DP_UNAVAILABLE,
                       "the local cluster's controller is gone; its nodes and their ranks go on. "
                       "`dpctl local up` restarts it");
    }
    return dp_fail(err, DP_UNAVAILABLE,
                   "no local cluster runs; start one with `dpctl local up`, or name a controller "
                   "with --controller HOST:PORT");
}
