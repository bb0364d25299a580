// The parent of one job's ranks on one node: keeps their output and last words, relays frames
// between them and the agent, and ends them when told or when the agent's lease lapses.
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "cache.h"
#include "dp/link.h"
#include "dp/rank_log.h"

struct keeper_rank {
    uint32_t rank;
    pid_t pid; // 0 when it could not be started
    bool ended;
    bool started;       // DP_LINK_ORDER_START was passed on
    dp_link_stop stop;  // who told it to end, first
    int64_t kill_at_ns; // when patience ends; INT64_MAX = nobody asked
    struct dp_link link;
    int output_fd;
    struct dp_rank_log log;
    struct report_cache cache;
    struct dp_link_exited exited; // when ended
};

struct keeper {
    int directory_fd; // also the working directory
    uint64_t log_bytes_max;
    int signal_fd;
    int listen_fd;
    const char *socket; // its name, borrowed
    struct dp_link agent;
    bool agent_known;  // it said HELLO
    bool agent_broken; // writing failed; what it sent before is still obeyed
    size_t replayed;   // ranks whose state the agent has; the others wait for room
    bool synced;
    int64_t lease_ns;
    int64_t lease_until_ns;
    bool ending;        // exits once all ranks have
    int64_t give_up_ns; // when ending: ranks that cannot be killed are left behind
    struct keeper_rank **ranks;
    size_t ranks_count;
};

struct keeper_options {
    const char *directory;
    const char *socket;
    uint32_t lease_ms;
    uint64_t log_bytes_max;
};

// keeper.c
dp_status keeper_open(struct keeper *keeper, const struct keeper_options *options,
                      struct dp_error *err);
void keeper_close(struct keeper *keeper);
// Until the end; returns the exit status.
int keeper_run(struct keeper *keeper);
// Ends every rank: asks, then kills after grace_ms. The keeper exits when all have ended.
void keeper_end(struct keeper *keeper, uint32_t grace_ms, dp_link_stop who);

// agent.c
void agent_accept(struct keeper *keeper);
void agent_readable(struct keeper *keeper);
void agent_writable(struct keeper *keeper);
// Obeys what a broken agent had sent, then closes its connection.
void agent_drop_broken(struct keeper *keeper);
// Tells the agent what happened to a rank, unless the replay will.
void agent_tell(struct keeper *keeper, const struct keeper_rank *rank,
                const struct dp_link_frame *frame);
// All that is known, as an agent would be told it.
void agent_write_levels(const struct keeper *keeper);

// rank.c
struct keeper_rank *rank_find(const struct keeper *keeper, uint32_t number);
void rank_spawn(struct keeper *keeper, uint32_t number, const struct dp_link_spawn *spawn);
void rank_order(struct keeper *keeper, struct keeper_rank *rank, const struct dp_link_frame *frame);
void rank_stop(struct keeper_rank *rank, uint32_t grace_ms, dp_link_stop who);
void rank_kill_if_due(struct keeper_rank *rank, int64_t now_ns);
void rank_readable(struct keeper *keeper, struct keeper_rank *rank);
void rank_output(struct keeper_rank *rank);
// Reaps what has died.
void rank_reap_all(struct keeper *keeper);
size_t rank_alive_count(const struct keeper *keeper);
void rank_free(struct keeper_rank *rank);
// Appends SPAWNED, the kept reports and EXITED.
void rank_write(const struct keeper_rank *rank, struct dp_buf *buf);
