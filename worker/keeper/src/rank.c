#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/log.h"
#include "keeper.h"
#include "process.h"

#define OUTPUT_CHUNK_BYTES 65536
#define OUTPUT_CHUNKS_PER_TURN 4
#define LAST_WORDS_TURNS 64

struct keeper_rank *rank_find(const struct keeper *keeper, uint32_t number)
{
    for (size_t i = 0; i < keeper->ranks_count; i++) {
        if (keeper->ranks[i]->rank == number) {
            return keeper->ranks[i];
        }
    }
    return NULL;
}

size_t rank_alive_count(const struct keeper *keeper)
{
    size_t alive = 0;
    for (size_t i = 0; i < keeper->ranks_count; i++) {
        alive += keeper->ranks[i]->ended ? 0 : 1;
    }
    return alive;
}

void rank_free(struct keeper_rank *rank)
{
    dp_link_deinit(&rank->link);
    if (rank->output_fd >= 0) {
        close(rank->output_fd);
    }
    dp_rank_log_deinit(&rank->log);
    cache_deinit(&rank->cache);
    free(rank);
}

// The frame borrows `payload`.
static struct dp_link_frame spawned_frame(const struct keeper_rank *rank, struct dp_buf *payload)
{
    struct dp_link_spawned spawned = {
        .pid = rank->pid, .started = rank->started, .stop = rank->stop};
    dp_link_spawned_write(&spawned, payload);
    return (struct dp_link_frame){
        .type = DP_LINK_SPAWNED,
        .rank = rank->rank,
        .payload = payload->bytes,
        .length = payload->length,
    };
}

static struct dp_link_frame exited_frame(const struct keeper_rank *rank, struct dp_buf *payload)
{
    dp_link_exited_write(&rank->exited, payload);
    return (struct dp_link_frame){
        .type = DP_LINK_EXITED,
        .rank = rank->rank,
        .payload = payload->bytes,
        .length = payload->length,
    };
}

void rank_write(const struct keeper_rank *rank, struct dp_buf *buf)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf spawned = {0};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf exited = {0};
    struct dp_link_frame frame = spawned_frame(rank, &spawned);
    dp_link_frame_write(&frame, buf);
    cache_write(&rank->cache, rank->rank, buf);
    if (rank->ended) {
        frame = exited_frame(rank, &exited);
        dp_link_frame_write(&frame, buf);
    }
}

static void tell_spawned(struct keeper *keeper, const struct keeper_rank *rank)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf payload = {0};
    struct dp_link_frame frame = spawned_frame(rank, &payload);
    agent_tell(keeper, rank, &frame);
}

static void tell_exited(struct keeper *keeper, const struct keeper_rank *rank)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf payload = {0};
    struct dp_link_frame frame = exited_frame(rank, &payload);
    agent_tell(keeper, rank, &frame);
}

static struct keeper_rank *add_rank(struct keeper *keeper, uint32_t number)
{
    struct keeper_rank *rank = dp_new(struct keeper_rank);
    rank->rank = number;
    rank->kill_at_ns = INT64_MAX;
    rank->output_fd = -1;
    rank->link.fd = -1;
    dp_rank_log_init(&rank->log, keeper->directory_fd, number, keeper->log_bytes_max);
    keeper->ranks =
        dp_realloc(keeper->ranks, keeper->ranks_count + 1, sizeof(struct keeper_rank *));
    keeper->ranks[keeper->ranks_count++] = rank;
    return rank;
}

void rank_spawn(struct keeper *keeper, uint32_t number, const struct dp_link_spawn *spawn)
{
    struct keeper_rank *rank = rank_find(keeper, number);
    if (rank != NULL || keeper->ending || keeper->ranks_count >= DP_NODE_SLOTS_MAX) {
        dp_log_warn("rank.not_started", "rank=%u reason=\"%s\"", number,
                    rank != NULL ? "it was started before" : "the keeper is ending or full");
        return;
    }
    rank = add_rank(keeper, number);
    struct dp_error err = {0};
    int control_fd;
    if (process_start(spawn, &rank->pid, &control_fd, &rank->output_fd, &err) != DP_OK) {
        dp_log_error("rank.not_started", "rank=%u reason=\"%s\"", number, err.message);
        rank->pid = 0;
        rank->ended = true;
        (void)DP_COPY_TEXT(rank->exited.error, err.message);
        // The process that failed to run the program exits so.
        rank->exited.status = 127;
        tell_exited(keeper, rank);
        return;
    }
    dp_log_info("rank.started", "rank=%u pid=%d", number, (int)rank->pid);
    dp_link_init(&rank->link, control_fd, DP_LINK_OUT_BYTES_MAX);
    tell_spawned(keeper, rank);
    struct dp_link_frame order = {
        .type = DP_LINK_ORDER,
        .rank = number,
        .payload = spawn->order,
        .length = spawn->order_length,
    };
    rank_order(keeper, rank, &order);
}

void rank_order(struct keeper *keeper, struct keeper_rank *rank, const struct dp_link_frame *frame)
{
    bool start = frame->slot == DP_LINK_ORDER_START;
    if (rank->ended || (start && rank->started)) {
        return;
    }
    struct dp_error err = {0};
    if (dp_link_queue(&rank->link, frame, &err) != DP_OK) {
        dp_log_warn("rank.order_lost", "rank=%u reason=\"%s\"", rank->rank, err.message);
        return;
    }
    if (start) {
        rank->started = true;
        tell_spawned(keeper, rank);
    }
}

static void signal_group(const struct keeper_rank *rank, int number)
{
    // The leader is not reaped before its group is gone, so the group's number is still its own.
    if (kill(-rank->pid, number) != 0) {
        (void)kill(rank->pid, number);
    }
}

void rank_stop(struct keeper_rank *rank, uint32_t grace_ms, dp_link_stop who)
{
    if (rank->ended) {
        return;
    }
    rank->stop = rank->stop == DP_LINK_STOP_NONE ? who : rank->stop;
    int64_t kill_at_ns = dp_clock_monotonic_ns() + (int64_t)grace_ms * DP_NS_PER_MS;
    if (grace_ms > 0) {
        signal_group(rank, SIGTERM);
        // A stopped process takes the signal only when it goes on.
        signal_group(rank, SIGCONT);
    }
    if (kill_at_ns < rank->kill_at_ns) {
        rank->kill_at_ns = kill_at_ns;
    }
    rank_kill_if_due(rank, dp_clock_monotonic_ns());
}

void rank_kill_if_due(struct keeper_rank *rank, int64_t now_ns)
{
    if (!rank->ended && now_ns >= rank->kill_at_ns) {
        signal_group(rank, SIGKILL);
        rank->kill_at_ns = INT64_MAX;
    }
}

// One turn; false when the pipe is empty.
static bool read_output(struct keeper_rank *rank)
{
    char chunk[OUTPUT_CHUNK_BYTES];
    ssize_t got = rank->output_fd < 0 ? 0 : read(rank->output_fd, chunk, sizeof chunk);
    if (got > 0) {
        dp_rank_log_write(&rank->log, chunk, (size_t)got, dp_clock_monotonic_ns());
        return true;
    }
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
        return false;
    }
    if (rank->output_fd >= 0) {
        close(rank->output_fd);
        rank->output_fd = -1;
    }
    return false;
}

void rank_output(struct keeper_rank *rank)
{
    for (int i = 0; i < OUTPUT_CHUNKS_PER_TURN && read_output(rank); i++) {
    }
}

static void take_reports(struct keeper *keeper, struct keeper_rank *rank)
{
    struct dp_error err = {0};
    for (;;) {
        struct dp_link_frame frame;
        if (dp_link_next(&rank->link, &frame, &err) != DP_OK ||
            (frame.type != DP_LINK_NONE && frame.type != DP_LINK_REPORT)) {
            dp_log_warn("rank.protocol", "rank=%u reason=\"%s\"", rank->rank, err.message);
            dp_link_deinit(&rank->link);
            return;
        }
        if (frame.type == DP_LINK_NONE) {
            return;
        }
        frame.rank = rank->rank;
        cache_put(&rank->cache, frame.slot, frame.payload, frame.length);
        agent_tell(keeper, rank, &frame);
    }
}

void rank_readable(struct keeper *keeper, struct keeper_rank *rank)
{
    (void)dp_link_read(&rank->link, NULL);
    take_reports(keeper, rank);
    if (rank->link.at_end) {
        dp_link_deinit(&rank->link);
    }
}

// Everything a dead rank had still written.
static void take_last_words(struct keeper *keeper, struct keeper_rank *rank)
{
    for (int i = 0; i < LAST_WORDS_TURNS && read_output(rank); i++) {
    }
    for (int i = 0; i < LAST_WORDS_TURNS && rank->link.fd >= 0; i++) {
        size_t before = rank->link.in.length;
        rank_readable(keeper, rank);
        if (rank->link.in.length == before) {
            break;
        }
    }
    dp_link_deinit(&rank->link);
    if (rank->output_fd >= 0) {
        close(rank->output_fd);
        rank->output_fd = -1;
    }
}

static void end_rank(struct keeper *keeper, struct keeper_rank *rank, int wait_status)
{
    take_last_words(keeper, rank);
    rank->ended = true;
    rank->exited = (struct dp_link_exited){
        .pid = rank->pid, .stop = rank->stop, .log_dropped = rank->log.dropped};
    if (WIFSIGNALED(wait_status)) {
        rank->exited.signal = WTERMSIG(wait_status);
    } else {
        rank->exited.status = WEXITSTATUS(wait_status);
    }
    dp_rank_log_deinit(&rank->log);
    dp_log_info("rank.ended", "rank=%u pid=%d status=%d signal=%d log_dropped=%llu", rank->rank,
                (int)rank->pid, rank->exited.status, rank->exited.signal,
                (unsigned long long)rank->exited.log_dropped);
    tell_exited(keeper, rank);
    if (rank_alive_count(keeper) == 0) {
        agent_write_levels(keeper);
    }
}

static struct keeper_rank *rank_of_pid(const struct keeper *keeper, pid_t pid)
{
    for (size_t i = 0; i < keeper->ranks_count; i++) {
        if (!keeper->ranks[i]->ended && keeper->ranks[i]->pid == pid) {
            return keeper->ranks[i];
        }
    }
    return NULL;
}

void rank_reap_all(struct keeper *keeper)
{
    for (;;) {
        siginfo_t info = {0};
        if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) {
            return;
        }
        struct keeper_rank *rank = rank_of_pid(keeper, info.si_pid);
        if (rank != NULL) {
            // Before the leader is reaped and its number is free again.
            (void)kill(-rank->pid, SIGKILL);
        }
        int wait_status = 0;
        if (waitpid(info.si_pid, &wait_status, 0) == info.si_pid && rank != NULL) {
            end_rank(keeper, rank, wait_status);
        }
    }
}
