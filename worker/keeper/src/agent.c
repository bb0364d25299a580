#include <sys/socket.h>
#include <unistd.h>

#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/log.h"
#include "dp/sealed.h"
#include "keeper.h"

// Room for the largest that one rank's replay can be, above a usual queue.
#define AGENT_OUT_BYTES_MAX (8u * DP_FRAME_BYTES_MAX)
#define REPLAY_BELOW_BYTES (1u << 20)

static void drop(struct keeper *keeper, const char *why)
{
    if (keeper->agent.fd >= 0) {
        dp_log_info("agent.disconnected", "reason=\"%s\"", why);
    }
    dp_link_deinit(&keeper->agent);
    keeper->agent_known = false;
    keeper->agent_broken = false;
    keeper->synced = false;
    keeper->replayed = 0;
}

void agent_accept(struct keeper *keeper)
{
    int fd = accept4(keeper->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
        return;
    }
    // An agent that was restarted is the one to talk to; what the older had ordered is obeyed.
    if (keeper->agent.fd >= 0) {
        agent_readable(keeper);
    }
    drop(keeper, "a newer agent connected");
    dp_link_init(&keeper->agent, fd, AGENT_OUT_BYTES_MAX);
}

// It gets everything again when it comes back. Its orders may be in use right now, so the
// connection is closed later.
static void give_up_writing(struct keeper *keeper, const struct dp_error *err)
{
    dp_log_info("agent.not_told", "reason=\"%s\"", err->message);
    keeper->agent_broken = true;
}

static void send_to_agent(struct keeper *keeper, const struct dp_link_frame *frame)
{
    struct dp_error err = {0};
    if (keeper->agent.fd >= 0 && !keeper->agent_broken &&
        dp_link_queue(&keeper->agent, frame, &err) != DP_OK) {
        give_up_writing(keeper, &err);
    }
}

void agent_tell(struct keeper *keeper, const struct keeper_rank *rank,
                const struct dp_link_frame *frame)
{
    bool told = keeper->synced;
    for (size_t i = 0; i < keeper->replayed && !told; i++) {
        told = keeper->ranks[i] == rank;
    }
    if (told) {
        send_to_agent(keeper, frame);
    }
}

// Replays rank by rank, as the agent reads.
static void replay(struct keeper *keeper)
{
    while (keeper->agent_known && !keeper->synced && !keeper->agent_broken &&
           keeper->agent.out.length - keeper->agent.out_at < REPLAY_BELOW_BYTES) {
        if (keeper->replayed < keeper->ranks_count) {
            rank_write(keeper->ranks[keeper->replayed], &keeper->agent.out);
            keeper->replayed++;
        } else {
            keeper->synced = true;
            dp_link_frame_write(&(struct dp_link_frame){.type = DP_LINK_SYNCED},
                                &keeper->agent.out);
        }
        struct dp_error err = {0};
        if (dp_link_flush(&keeper->agent, &err) != DP_OK) {
            give_up_writing(keeper, &err);
        }
    }
}

void agent_writable(struct keeper *keeper)
{
    struct dp_error err = {0};
    if (dp_link_flush(&keeper->agent, &err) != DP_OK) {
        give_up_writing(keeper, &err);
    }
    replay(keeper);
}

void agent_write_levels(const struct keeper *keeper)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf levels = {0};
    for (size_t i = 0; i < keeper->ranks_count; i++) {
        rank_write(keeper->ranks[i], &levels);
    }
    struct dp_error err = {0};
    if (dp_sealed_write(DP_LINK_LEVELS_FILE, DP_LINK_LEVELS_KIND, levels.bytes, levels.length,
                        &err) != DP_OK) {
        dp_log_error("levels.not_written", "reason=\"%s\"", err.message);
    }
}

static dp_status on_hello(struct keeper *keeper, const struct dp_link_frame *frame,
                          struct dp_error *err)
{
    struct dp_link_hello hello;
    dp_status status = dp_link_hello_read(frame, &hello, err);
    if (status != DP_OK) {
        return status;
    }
    if (hello.protocol != DP_LINK_PROTOCOL) {
        return dp_fail(err, DP_UNSUPPORTED, "the agent speaks protocol %u, this keeper %u",
                       hello.protocol, DP_LINK_PROTOCOL);
    }
    if (hello.lease_ms > 0) {
        keeper->lease_ns = hello.lease_ms * DP_NS_PER_MS;
        keeper->lease_until_ns = dp_clock_monotonic_ns() + keeper->lease_ns;
    }
    dp_log_info("agent.connected", "pid=%lld", (long long)hello.pid);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf payload = {0};
    struct dp_link_hello answer = {
        .protocol = DP_LINK_PROTOCOL,
        .lease_ms = (uint32_t)(keeper->lease_ns / DP_NS_PER_MS),
        .pid = getpid(),
    };
    dp_link_hello_write(&answer, &payload);
    send_to_agent(keeper, &(struct dp_link_frame){.type = DP_LINK_HELLO,
                                                  .payload = payload.bytes,
                                                  .length = payload.length});
    keeper->agent_known = keeper->agent.fd >= 0;
    keeper->synced = false;
    keeper->replayed = 0;
    replay(keeper);
    return DP_OK;
}

static dp_status on_spawn(struct keeper *keeper, const struct dp_link_frame *frame,
                          struct dp_error *err)
{
    struct dp_link_spawn spawn;
    dp_status status = dp_link_spawn_read(frame, &spawn, err);
    if (status == DP_OK) {
        rank_spawn(keeper, frame->rank, &spawn);
        dp_link_spawn_deinit(&spawn);
    }
    return status;
}

static dp_status on_order(struct keeper *keeper, const struct dp_link_frame *frame,
                          struct dp_error *err)
{
    (void)err;
    struct keeper_rank *rank = rank_find(keeper, frame->rank);
    if (rank != NULL) {
        rank_order(keeper, rank, frame);
    }
    return DP_OK;
}

static dp_status on_stop(struct keeper *keeper, const struct dp_link_frame *frame,
                         struct dp_error *err)
{
    uint32_t grace_ms;
    dp_status status = dp_link_u32_read(frame, &grace_ms, err);
    // What died before was not stopped.
    rank_reap_all(keeper);
    for (size_t i = 0; status == DP_OK && i < keeper->ranks_count; i++) {
        if (frame->rank == DP_LINK_ALL_RANKS || keeper->ranks[i]->rank == frame->rank) {
            rank_stop(keeper->ranks[i], grace_ms, DP_LINK_STOP_ORDERED);
        }
    }
    return status;
}

static dp_status on_ping(struct keeper *keeper, const struct dp_link_frame *frame,
                         struct dp_error *err)
{
    (void)err;
    send_to_agent(keeper, frame);
    return DP_OK;
}

static dp_status on_shutdown(struct keeper *keeper, const struct dp_link_frame *frame,
                             struct dp_error *err)
{
    (void)frame;
    (void)err;
    keeper_end(keeper, 0, DP_LINK_STOP_ORDERED);
    return DP_OK;
}

static dp_status (*const handlers[DP_LINK_TYPE_COUNT])(struct keeper *keeper,
                                                       const struct dp_link_frame *frame,
                                                       struct dp_error *err) = {
    [DP_LINK_HELLO] = on_hello, [DP_LINK_SPAWN] = on_spawn, [DP_LINK_ORDER] = on_order,
    [DP_LINK_STOP] = on_stop,   [DP_LINK_PING] = on_ping,   [DP_LINK_SHUTDOWN] = on_shutdown,
};

void agent_readable(struct keeper *keeper)
{
    struct dp_error err = {0};
    (void)dp_link_read(&keeper->agent, NULL);
    while (keeper->agent.fd >= 0) {
        struct dp_link_frame frame;
        dp_status status = dp_link_next(&keeper->agent, &frame, &err);
        if (status == DP_OK && frame.type == DP_LINK_NONE) {
            break;
        }
        if (status == DP_OK && (handlers[frame.type] == NULL ||
                                (!keeper->agent_known && frame.type != DP_LINK_HELLO))) {
            status = dp_fail(&err, DP_INVALID, "a frame of type %d is not expected here",
                             (int)frame.type);
        }
        if (status == DP_OK) {
            keeper->lease_until_ns = dp_clock_monotonic_ns() + keeper->lease_ns;
            status = handlers[frame.type](keeper, &frame, &err);
        }
        if (status != DP_OK) {
            drop(keeper, err.message);
        }
    }
    if (keeper->agent.fd >= 0 && keeper->agent.at_end) {
        drop(keeper, "the agent closed the connection");
    }
}

void agent_drop_broken(struct keeper *keeper)
{
    if (keeper->agent_broken) {
        agent_readable(keeper);
        drop(keeper, "it could not be written to");
    }
}
