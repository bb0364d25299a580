// A cluster in virtual time around the controller's core: agents as small models, a network with
// delays and breaks, a store that is slow or fails, and a controller that dies anywhere. Steps of
// 10 ms; everything random comes from one seed.
#pragma once

#include "dp/core.h"
#include "dp/rand.h"

#define SIM_STEP_NS (10 * 1000000ll)
#define SIM_MS(ms) ((ms)*1000000ll)
#define SIM_AGENTS_MAX 4
#define SIM_JOBS_MAX 8
#define SIM_RANKS_MAX 8
#define SIM_SLOTS 3
#define SIM_LEASE_MS 10000  // of a keeper without its agent
#define SIM_ORPHAN_MS 20000 // of an agent without a controller
#define SIM_GRACE_MS 6000   // of a rank that is told to stop
#define SIM_FENCE_MS (SIM_ORPHAN_MS + SIM_GRACE_MS + SIM_LEASE_MS)
#define SIM_MESSAGES_MAX 4096
#define SIM_TRANSACTIONS_MAX 512
#define SIM_RECORDS_MAX 64

struct sim_rank {
    uint32_t rank;
    dp_rank_phase phase;
    bool ok, peer_lost, stopped;
    int signal;
    int64_t ready_ns, finish_ns;
};

struct sim_assignment {
    bool used;
    struct dp_fence fence;
    struct sim_rank ranks[SIM_RANKS_MAX];
    uint32_t ranks_count;
    int64_t stop_ns; // when its ranks end, 0 = not told
    char error[64];
};

struct sim_agent {
    char name[DP_NAME_MAX];
    uint64_t instance;
    bool up;
    int64_t up_ns;     // down: when it comes back
    int64_t keeper_ns; // down: when its keepers end the ranks
    uint64_t session;  // 0 = none
    bool welcomed;
    int64_t heard_ns, heartbeat_ns, connect_ns, partition_ns;
    int64_t hello_ns, acked_ns; // when the newest acknowledged heartbeat, or hello, was sent
    // As the controller sees it: when it last took something, and when that ended a long silence.
    int64_t taken_ns, returned_ns;
    struct sim_assignment assignments[SIM_JOBS_MAX];
};

typedef enum sim_message_kind {
    SIM_HELLO,
    SIM_HEARTBEAT,
    SIM_LEVEL,
    SIM_CLOSED,
    SIM_ORDER
} sim_message_kind;

struct sim_message {
    sim_message_kind kind;
    int64_t due_ns;
    uint64_t session;
    int agent;
    uint64_t instance;
    uint64_t sequence;                          // of a heartbeat and its ACK: when it was sent
    struct sim_assignment levels[SIM_JOBS_MAX]; // as they were when it was sent
    dp_order_kind order;
    struct dp_fence fence;
    uint32_t ranks[SIM_RANKS_MAX];
    uint32_t ranks_count;
};

struct sim_row {
    bool used;
    struct dp_job_record job;
    struct dp_rank_record ranks[SIM_RANKS_MAX];
    size_t ranks_count;
};

struct sim_transaction {
    uint64_t token;
    int64_t due_ns;
    bool fails;
    struct dp_record records[SIM_RECORDS_MAX];
    size_t count;
};

struct sim {
    uint64_t seed;
    bool log;
    struct dp_rand rand;
    int64_t now_ns, calm_ns; // no faults after calm_ns
    struct dp_core *core;    // NULL = down
    struct dp_core_config config;
    struct dp_effects effects;
    int64_t up_ns, timer_ns, plan_ns;
    int64_t stall_from_ns, stall_ns; // the controller's process is stopped until then
    uint64_t plan_job;
    struct sim_agent agents[SIM_AGENTS_MAX];
    int agents_count;
    struct sim_message *messages;
    size_t messages_count;
    uint64_t next_session;
    struct sim_row rows[SIM_JOBS_MAX + 1];                     // committed, by number
    struct dp_node_record nodes[SIM_AGENTS_MAX];               // committed
    struct sim_transaction transactions[SIM_TRANSACTIONS_MAX]; // ring: first, count
    size_t transactions_first, transactions_count;
    int64_t store_free_ns;
    int jobs_wanted, jobs_asked;
    bool accepted[64];                     // by reply
    int restarts, faults, stalls, returns; // jobs that were LOST and went on
};

// sim_world.c: the controller's side
void sim_init(struct sim *sim, uint64_t seed);
void sim_deinit(struct sim *sim);
void sim_step_controller(struct sim *sim);
void sim_event(struct sim *sim, struct dp_core_event *event);
void sim_crash_controller(struct sim *sim);
void sim_stall_controller(struct sim *sim);
int64_t sim_between(struct sim *sim, int64_t low, int64_t high);
bool sim_chance(struct sim *sim, double probability); // of one step
void sim_send(struct sim *sim, const struct sim_message *message);
// Stops the run: prints the seed and what went wrong.
void sim_fail(const struct sim *sim, const char *format, ...)
    __attribute__((format(printf, 2, 3), noreturn));

// sim_agent.c: nodes
void sim_step_agents(struct sim *sim);
void sim_agent_take(struct sim *sim, struct sim_agent *agent, const struct sim_message *message);
void sim_agent_kill(struct sim *sim, struct sim_agent *agent, bool with_ranks);
void sim_agent_disconnect(struct sim *sim, struct sim_agent *agent);
bool sim_rank_alive(const struct sim_rank *rank);
