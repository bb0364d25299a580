#include "keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/log.h"
#include "process.h"

#define LOCK_FILE "keeper.pid"
#define END_GRACE_MS 2000
#define UNKILLABLE_MS 10000
#define SWEEPS_MAX 100

static dp_status enter_directory(struct keeper *keeper, const char *directory, struct dp_error *err)
{
    keeper->directory_fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (keeper->directory_fd < 0 || fchdir(keeper->directory_fd) != 0) {
        return dp_fail_errno(err, errno, "cannot enter directory %s", directory);
    }
    if (fchmod(keeper->directory_fd, 0700) != 0) {
        return dp_fail_errno(err, errno, "cannot make %s private", directory);
    }
    return DP_OK;
}

// Locks, not files, say that a keeper lives; they go with the process. That of the directory stands
// whatever becomes of the files in it; file systems that lock no directory leave the other.
static dp_status take_locks(const struct keeper *keeper, const char *directory,
                            struct dp_error *err)
{
    if (flock(keeper->directory_fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        return dp_fail(err, DP_CONFLICT, "another keeper runs in %s", directory);
    }
    int fd = open(LOCK_FILE, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) {
        return dp_fail_errno(err, errno, "cannot open %s/%s", directory, LOCK_FILE);
    }
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        close(fd);
        return dp_fail(err, DP_CONFLICT, "another keeper runs in %s", directory);
    }
    if (ftruncate(fd, 0) != 0 || dprintf(fd, "%d\n", (int)getpid()) < 0) {
        return dp_fail_errno(err, errno, "cannot write %s/%s", directory, LOCK_FILE);
    }
    // Stays open, and locked, for the life of the process.
    return DP_OK;
}

static dp_status take_signals(struct keeper *keeper, struct dp_error *err)
{
    // An ignored SIGCHLD, handed down by whoever started this, would hide how ranks ended.
    for (int number = 1; number < NSIG; number++) {
        (void)signal(number, SIG_DFL);
    }
    sigset_t handled;
    sigemptyset(&handled);
    sigaddset(&handled, SIGCHLD);
    sigaddset(&handled, SIGTERM);
    sigaddset(&handled, SIGINT);
    sigprocmask(SIG_SETMASK, &handled, NULL);
    (void)signal(SIGHUP, SIG_IGN);
    (void)signal(SIGPIPE, SIG_IGN);
    keeper->signal_fd = signalfd(-1, &handled, SFD_NONBLOCK | SFD_CLOEXEC);
    if (keeper->signal_fd < 0) {
        return dp_fail_errno(err, errno, "cannot make a signalfd");
    }
    return DP_OK;
}

dp_status keeper_open(struct keeper *keeper, const struct keeper_options *options,
                      struct dp_error *err)
{
    *keeper = (struct keeper){
        .log_bytes_max = options->log_bytes_max,
        .signal_fd = -1,
        .listen_fd = -1,
        .socket = options->socket,
        .agent = {.fd = -1},
        .lease_ns = options->lease_ms * DP_NS_PER_MS,
        .lease_until_ns = dp_clock_monotonic_ns() + options->lease_ms * DP_NS_PER_MS,
    };
    dp_status status = enter_directory(keeper, options->directory, err);
    if (status == DP_OK) {
        status = take_locks(keeper, options->directory, err);
    }
    if (status == DP_OK) {
        status = take_signals(keeper, err);
    }
    if (status == DP_OK && prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) {
        status = dp_fail_errno(err, errno, "cannot become the reaper of what ranks leave behind");
    }
    if (status == DP_OK) {
        // An agent's terminal and its signals do not reach another session.
        (void)setsid();
        status = dp_link_listen(".", options->socket, &keeper->listen_fd, err);
    }
    return status;
}

void keeper_close(struct keeper *keeper)
{
    dp_link_deinit(&keeper->agent);
    for (size_t i = 0; i < keeper->ranks_count; i++) {
        rank_free(keeper->ranks[i]);
    }
    free(keeper->ranks);
    if (keeper->listen_fd >= 0) {
        (void)unlinkat(keeper->directory_fd, keeper->socket, 0);
    }
    dp_cleanup_close(&keeper->listen_fd);
    dp_cleanup_close(&keeper->signal_fd);
    dp_cleanup_close(&keeper->directory_fd);
}

void keeper_end(struct keeper *keeper, uint32_t grace_ms, dp_link_stop who)
{
    if (!keeper->ending) {
        keeper->ending = true;
        keeper->give_up_ns =
            dp_clock_monotonic_ns() + (int64_t)(grace_ms + UNKILLABLE_MS) * DP_NS_PER_MS;
    }
    for (size_t i = 0; i < keeper->ranks_count; i++) {
        rank_stop(keeper->ranks[i], grace_ms, who);
    }
}

static void on_signals(struct keeper *keeper)
{
    struct signalfd_siginfo info;
    while (read(keeper->signal_fd, &info, sizeof info) == sizeof info) {
        if (info.ssi_signo == SIGTERM || info.ssi_signo == SIGINT) {
            dp_log_info("keeper.told_to_end", "signal=%u", info.ssi_signo);
            keeper_end(keeper, END_GRACE_MS, DP_LINK_STOP_KEEPER);
        }
    }
    rank_reap_all(keeper);
}

static void check_deadlines(struct keeper *keeper)
{
    int64_t now_ns = dp_clock_monotonic_ns();
    if (!keeper->ending && now_ns >= keeper->lease_until_ns) {
        dp_log_warn("lease.lapsed", "lease_ms=%lld ranks=%zu",
                    (long long)(keeper->lease_ns / DP_NS_PER_MS), rank_alive_count(keeper));
        keeper_end(keeper, END_GRACE_MS, DP_LINK_STOP_KEEPER);
    }
    for (size_t i = 0; i < keeper->ranks_count; i++) {
        rank_kill_if_due(keeper->ranks[i], now_ns);
    }
}

static int next_timeout_ms(const struct keeper *keeper)
{
    int64_t next_ns = keeper->ending ? keeper->give_up_ns : keeper->lease_until_ns;
    for (size_t i = 0; i < keeper->ranks_count; i++) {
        if (!keeper->ranks[i]->ended && keeper->ranks[i]->kill_at_ns < next_ns) {
            next_ns = keeper->ranks[i]->kill_at_ns;
        }
    }
    int64_t left_ms = (next_ns - dp_clock_monotonic_ns() + DP_NS_PER_MS - 1) / DP_NS_PER_MS;
    return left_ms < 0 ? 0 : left_ms > 60000 ? 60000 : (int)left_ms;
}

static struct pollfd entry_of(int fd, bool writes)
{
    return (struct pollfd){.fd = fd, .events = (short)(POLLIN | (writes ? POLLOUT : 0))};
}

#define FIXED_ENTRIES 3

// Entries: signals, the listener, the agent, then two for each rank.
static size_t fill_entries(const struct keeper *keeper, struct pollfd *entries)
{
    size_t count = 0;
    entries[count++] = entry_of(keeper->signal_fd, false);
    entries[count++] = entry_of(keeper->listen_fd, false);
    entries[count++] = entry_of(keeper->agent.fd, dp_link_wants_write(&keeper->agent));
    for (size_t i = 0; i < keeper->ranks_count; i++) {
        const struct keeper_rank *rank = keeper->ranks[i];
        entries[count++] = entry_of(rank->link.fd, dp_link_wants_write(&rank->link));
        entries[count++] = entry_of(rank->output_fd, false);
    }
    return count;
}

static void serve_rank(struct keeper *keeper, struct keeper_rank *rank, short control, short output)
{
    if (output != 0) {
        rank_output(rank);
    }
    if ((control & POLLOUT) != 0) {
        (void)dp_link_flush(&rank->link, NULL);
    }
    if ((control & ~POLLOUT) != 0) {
        rank_readable(keeper, rank);
    }
}

// The agent is served before deadlines are looked at: a frame that waited while this process was
// stopped or starved still renews the lease.
static void serve(struct keeper *keeper, const struct pollfd *entries, size_t ranks_count)
{
    if ((entries[2].revents & POLLOUT) != 0) {
        agent_writable(keeper);
    }
    if ((entries[2].revents & ~POLLOUT) != 0 && keeper->agent.fd >= 0) {
        agent_readable(keeper);
    }
    for (size_t i = 0; i < ranks_count; i++) {
        const struct pollfd *pair = &entries[FIXED_ENTRIES + 2 * i];
        serve_rank(keeper, keeper->ranks[i], pair[0].revents, pair[1].revents);
    }
    if (entries[0].revents != 0) {
        on_signals(keeper);
    }
    agent_drop_broken(keeper);
    if (entries[1].revents != 0) {
        agent_accept(keeper);
    }
}

static bool is_live_rank(void *context, pid_t pid)
{
    const struct keeper *keeper = context;
    for (size_t i = 0; i < keeper->ranks_count; i++) {
        if (keeper->ranks[i]->pid == pid && !keeper->ranks[i]->ended) {
            return true;
        }
    }
    return false;
}

// Kills what ranks left behind, and what that leaves behind in turn.
static void sweep(struct keeper *keeper)
{
    for (int i = 0; i < SWEEPS_MAX && process_kill_orphans(is_live_rank, keeper) > 0; i++) {
        while (waitpid(-1, NULL, rank_alive_count(keeper) > 0 ? WNOHANG : 0) > 0) {
        }
    }
}

int keeper_run(struct keeper *keeper)
{
    struct pollfd *entries = NULL;
    while (!keeper->ending ||
           (rank_alive_count(keeper) > 0 && dp_clock_monotonic_ns() < keeper->give_up_ns)) {
        size_t ranks_count = keeper->ranks_count;
        entries = dp_realloc(entries, FIXED_ENTRIES + 2 * ranks_count, sizeof *entries);
        size_t count = fill_entries(keeper, entries);
        int ready = poll(entries, count, next_timeout_ms(keeper));
        DP_CHECK(ready >= 0 || errno == EINTR);
        if (ready > 0) {
            serve(keeper, entries, ranks_count);
        }
        check_deadlines(keeper);
    }
    free(entries);
    agent_write_levels(keeper);
    size_t alive = rank_alive_count(keeper);
    if (alive > 0) {
        dp_log_error("ranks.unkillable", "count=%zu", alive);
    }
    sweep(keeper);
    dp_log_info("keeper.ended", "ranks=%zu", keeper->ranks_count);
    return alive > 0 ? 1 : 0;
}
