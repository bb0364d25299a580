// A whole cluster in virtual time: the controller's core and every node's agent core are the real
// ones; network, disks, keepers, ranks, users and clocks around them are models. Nothing happens
// but by an event of one queue, and all that is random comes from one seed, so a seed is a world
// that can be seen again. What was added later is drawn from streams of their own, so that older
// ones draw what they always drew: seed 7 has them all, 7/2 is the world of two streams.
//
// What must always hold is checked when it could break: a process starts to train, a row reaches
// the disk, an order or an answer leaves. See checks.c and rules.c for the lists.
//
// One world at a time in a process; one thread.
#pragma once

#include <setjmp.h>
#include <stdio.h>

#include "dp/agent_core.h"
#include "dp/core.h"
#include "dp/rand.h"

#define SIM_MS(ms) ((int64_t)(ms)*1000000)
#define SIM_NODES_MAX 6
#define SIM_SLOTS_MAX 4
#define SIM_RANKS_MAX 12
#define SIM_JOBS_MAX 320 // numbers, of submissions that were not stored, too
#define SIM_REQUESTS_MAX 80
#define SIM_FAULTS_MAX 32
#define SIM_STREAMS 3
#define SIM_CALLS_MAX 512
#define SIM_EVENTS_MIN 1000 // in each world
#define SIM_FAULTS_MIN 3    // that broke something, not wishes
#define SIM_TRACE_LINES 40
#define SIM_HEARTBEATS 64

struct sim;

// Identity of an assignment without its text.
struct sim_key {
    uint32_t job, attempt, epoch;
};

typedef enum sim_event_kind {
    SIM_EV_TO_CONTROLLER, // p = message
    SIM_EV_TO_AGENT,      // p = message
    SIM_EV_TO_KEEPER,     // p = frame
    SIM_EV_FROM_KEEPER,   // p = frame
    SIM_EV_CONTROLLER_UP,
    SIM_EV_TIMER, // the core's; b = its number
    SIM_EV_STORED,
    SIM_EV_PLANNED, // b = number of the search
    SIM_EV_ADAPTED, // p = question, b = life
    SIM_EV_NODE_UP,
    SIM_EV_AGENT_UP,
    SIM_EV_SESSION,       // a = node, b = number
    SIM_EV_AGENT_TICK,    // a = node, b = number
    SIM_EV_KEEPER_TRY,    // the agent looks at a keeper that it is not connected to; p, b = agent
    SIM_EV_KEEPER_MISSED, // p
    SIM_EV_KEEPER_LEASE,  // p
    SIM_EV_KEEPER_FAILED, // p: it could not be started
    SIM_EV_RANK,          // p = process, b = number: its next move is due
    SIM_EV_STEP,          // p = run
    SIM_EV_FAULT,         // a = number of the fault
    SIM_EV_USER,
    SIM_EV_KIND_COUNT
} sim_event_kind;

struct sim_event {
    int64_t at_ns;
    uint64_t order;
    sim_event_kind kind;
    uint32_t a;
    uint64_t b;
    void *p;
};

struct sim_queue {
    struct sim_event *heap;
    size_t count, capacity;
    uint64_t next_order;
};

// What a rank says of itself, as it travels and as agents keep it.
#define SIM_REPORT_HELD 64 // beside dp_report_kind: what a rank holds

struct sim_report {
    int kind;
    struct sim_key key;
    uint32_t rank;
    uint64_t step, request;
    bool ok, peer_lost, error;
    bool slow;       // STEP, PROBE: where it runs everything takes longer
    bool rebalanced; // STEP: experts were placed, as `request` says
    uint32_t world;
    bool norm_known, gradients_whole; // HELD; peer_lost: nobody told it to
};

struct sim_rank_level {
    uint32_t rank;
    dp_agent_phase phase;
    bool stopped, ready, finished, holds, unkillable;
    struct sim_report last; // when finished
    struct sim_report held; // when it holds
    uint64_t step, resumed_step;
    int64_t pid;
    int32_t exit_status, signal;
};

struct sim_level {
    struct dp_agent_fence fence;
    bool keeper_lost, stopping;
    int32_t keeper_signal;
    char error[120];
    uint32_t ranks_count;
    struct sim_rank_level ranks[SIM_SLOTS_MAX];
};

typedef enum sim_message_kind {
    SIM_HELLO,
    SIM_HEARTBEAT,
    SIM_LEVEL,
    SIM_REPORT,
    SIM_CLOSED, // either way: the other end is gone
    SIM_ORDER,
} sim_message_kind;

// What the controller packs into Prepare, and the agent hands on to keepers.
struct sim_prepare {
    uint32_t world; // ranks of the assignment
    bool beside;    // takes its state from ranks of an older epoch
    uint64_t resume_step;
    uint32_t count;
    uint32_t numbers[SIM_SLOTS_MAX], slots[SIM_SLOTS_MAX];
};

// What a rank is told through its agent and keeper.
struct sim_rank_order {
    dp_order_kind kind; // START, STOP after a checkpoint, CHECKPOINT, PROBE, PAUSE, SETTLE
    uint64_t request, step;
    uint32_t source_epoch; // START beside others: who serves what it takes
    uint32_t sources;      // bit = rank of that epoch
};

struct sim_message {
    sim_message_kind kind;
    uint64_t session;
    uint64_t number;   // of a heartbeat, of a request
    uint64_t acked;    // the newest that was acknowledged
    char instance[24]; // HELLO
    int64_t sent_ns;
    uint32_t boot, lease_ms, fence_ms;
    uint32_t heartbeat_ms; // asked of the node
    dp_order_kind order;
    struct dp_fence fence;
    uint32_t grace_ms;
    bool checkpoint;
    struct sim_prepare prepare;
    struct sim_rank_order rank_order;
    struct sim_report report;
    uint32_t levels_count;
    struct sim_level levels[];
};

// One stream between an agent and the controller.
struct sim_connection {
    uint32_t node;
    bool agent_open, controller_open, known;
    bool dropped[2]; // what is still on its way to the controller, to the agent is lost
    uint64_t controller_life;
    int64_t last_ns[2]; // when the newest message arrives; to the controller, to the agent
};

typedef enum sim_frame_kind {
    SIM_FRAME_HELLO,
    SIM_FRAME_SPAWN,
    SIM_FRAME_ORDER,
    SIM_FRAME_STOP,
    SIM_FRAME_SHUTDOWN,
    SIM_FRAME_SPAWNED,
    SIM_FRAME_EXITED,
    SIM_FRAME_REPORT,
    SIM_FRAME_SYNCED,
    SIM_FRAME_EOF,
} sim_frame_kind;

typedef enum sim_stop {
    SIM_STOP_NONE,
    SIM_STOP_ORDERED,
    SIM_STOP_KEEPER,
} sim_stop;

struct sim_frame {
    sim_frame_kind kind;
    uint64_t link;
    struct sim_keeper *keeper;
    uint32_t rank, grace_ms;
    int64_t pid;
    bool started;
    sim_stop stop;
    int32_t status, signal;
    struct sim_rank_order order;
    struct sim_report report;
};

typedef enum sim_process_state {
    SIM_RANK_STARTING,
    SIM_RANK_READY,
    SIM_RANK_TAKING, // its state from others
    SIM_RANK_TRAINING,
    SIM_RANK_HELD,   // it serves what it has
    SIM_RANK_ENDING, // it said its last word
    SIM_RANK_ENDED,
} sim_process_state;

struct sim_process {
    int64_t pid;
    struct sim_keeper *keeper;
    struct sim_run *run;
    uint32_t node, rank, slot;
    sim_process_state state;
    bool started; // the keeper passed START on
    sim_stop stop;
    int64_t kill_ns, next_ns;
    int64_t held_ns; // since when it serves
    int64_t idle_ns; // since when it was seen that nobody wants it any more; 0 = somebody does
    uint64_t number; // of the next move
    uint64_t step;
    bool ready, finished, holds;
    struct sim_report last, held;
    struct sim_rank_order start;
    int32_t status, signal;
    struct sim_process *next;
};

struct sim_keeper {
    struct sim_node *node;
    struct dp_agent_fence fence;
    struct sim_key key;
    // Its directory.
    struct sim_prepare prepare;
    bool released, levels_written;
    // The process.
    bool alive, ending;
    int64_t stall_ns, lease_ns, quiet_ns;
    uint64_t link;
    struct sim_process *ranks;
    // What the agent has of it.
    bool held, over, synced, was_synced, agent_released, is_child;
    uint64_t agent_link;
    int64_t last_ns[2];
    struct sim_keeper *next;
};

// The ranks of one assignment, over all nodes: they train together or not at all.
struct sim_run {
    struct sim_key key;
    uint32_t world, training;
    uint64_t step, first_step;
    bool broken, stepping, pauses, stops;
    bool ahead; // as it broke, some ranks had completed one step more
    struct sim_process *ranks[SIM_RANKS_MAX];
    uint64_t checkpoint; // asked for; 0 = none
    uint64_t rebalance;  // experts are to be placed
    struct sim_run *next;
};

// What is true of a job, whatever anybody believes.
struct sim_job {
    uint32_t ranks;
    uint64_t steps;
    int64_t step_ns;
    uint64_t checkpoint_every;
    dp_recovery_policy recovery;
    struct sim_process *trains[SIM_RANKS_MAX];
    struct sim_run *runs;
    dp_job_state state;  // of the newest move that was logged
    bool cancelled;      // a cancellation was acknowledged
    dp_job_state before; // it moved to `state`
    // What its newest changes came to, as the controller told.
    bool pausing, switching;
    bool refused, misled; // a question about it was answered with no, with nonsense
    uint64_t recovered_step;
    uint32_t recoveries, agains;
    uint64_t begun, kept; // bit = an attempt that is on disk, that has its row there
    uint32_t preempted;
    int64_t passed_ns; // since when others start before it; 0 = none does
    uint32_t away;     // 1 + the node that a question about it is to keep off
    uint32_t decided;  // the attempt that the newest decision is about
    uint32_t failed;   // attempts that are on disk and that failed by themselves
    uint32_t wanted;   // ranks of the layout that was answered last
    bool held;         // somebody was told so, and nobody has asked for its release since
    uint32_t updated;  // the newest call about its place in the queue
};

struct sim_node {
    uint32_t index;
    char name[DP_NAME_MAX];
    uint32_t slots;
    bool up; // the machine
    uint32_t boot;
    int64_t clock_ns; // what its clock reads at 0
    double drift;
    int64_t contact_ns; // its file, by its own clock
    uint32_t contact_boot;
    struct sim_keeper *keepers;    // every one that ever was: directories stay
    uint64_t owner[SIM_SLOTS_MAX]; // job whose processes use the slot
    uint32_t users[SIM_SLOTS_MAX];
    // The agent.
    struct dp_agent_core *core; // NULL = it does not run
    uint64_t life;
    int64_t stall_ns, quiet_ns, adopt_ns;
    struct dp_agent_effects effects;
    uint64_t tick_number, timer_number;
    int64_t tick_ns;
    // Its session.
    uint64_t session;
    bool welcomed;
    int64_t give_up_ns, heard_ns, retry_ns, heartbeat_ns, hello_ns;
    uint32_t retry_ms, heartbeat_ms;
    uint64_t sequence, acked;
    int64_t sent_ns[SIM_HEARTBEATS];
    // The network around it: to the controller, from it.
    int64_t blocked_ns[2];
    int64_t slow_ns, lossy_ns;
    // When the controller took a word of it last.
    int64_t taken_ns, returned_ns;
    // Rules: since when nothing was in the way of orders; when its jobs have to go, 0 = never.
    int64_t settled_ns, leave_ns;
    bool leave_by_wall; // once the controller was started anew that is a time of the wall clock
    bool kept_from;     // people want no new work there
    uint32_t asked;     // the newest call about it
};

#define SIM_USERS 3
#define SIM_SOURCES_MAX 1024

struct sim_row {
    bool used;
    struct dp_job_record job;
    char sources[SIM_SOURCES_MAX];
    struct dp_decision_record *decision; // the newest; NULL = none
    struct dp_rank_record *ranks;
    size_t ranks_count, ranks_room;
    char text[16]; // the job file
};

struct sim_transaction {
    uint64_t token;
    bool fails;
    struct dp_record *records;
    size_t count;
    void *rows;
    struct sim_transaction *next;
};

typedef enum sim_call_kind {
    SIM_CALL_SUBMIT,
    SIM_CALL_CANCEL,
    SIM_CALL_CHECKPOINT,
    SIM_CALL_REASSIGN,
    SIM_CALL_NODE,
    SIM_CALL_QUOTA,
    SIM_CALL_UPDATE,
} sim_call_kind;

// What a call of that kind wants.
typedef enum sim_update {
    SIM_UPDATE_HOLD,
    SIM_UPDATE_RELEASE,
    SIM_UPDATE_PRIORITY,
    SIM_UPDATE_COUNT
} sim_update;

// A client's request: asked again when the controller went away before it answered.
struct sim_call {
    sim_call_kind kind;
    uint32_t request; // SUBMIT: which; its file and sizes follow from it
    uint64_t job;
    uint32_t node, detail; // REASSIGN: to be left; NODE: what is done with it
    dp_node_action action;
    sim_update update;
    int64_t until_ns; // FORGET: a node that cannot go is asked for again until then
    bool accepted;    // it was answered with yes
    bool kept;        // and its row of the audit is on disk
    bool done, open;
    uint64_t controller_life;
    int64_t retry_ns;
};

typedef enum sim_fault_kind {
    SIM_FAULT_CONTROLLER_CRASH,
    SIM_FAULT_CONTROLLER_POWER, // nobody is told that its connections are gone
    SIM_FAULT_CONTROLLER_STALL,
    SIM_FAULT_DISK_SLOW,
    SIM_FAULT_DISK_FAILS,
    SIM_FAULT_WALL_JUMP,
    SIM_FAULT_AGENT_CRASH,
    SIM_FAULT_AGENT_STALL,
    SIM_FAULT_NODE_POWER,
    SIM_FAULT_CONNECTION,
    SIM_FAULT_PARTITION,
    SIM_FAULT_SLOW_NETWORK,
    SIM_FAULT_LOSSY_NETWORK,
    SIM_FAULT_KEEPER_KILL,
    SIM_FAULT_KEEPER_STALL,
    SIM_FAULT_LINK,
    SIM_FAULT_RANK_KILL,
    SIM_FAULT_RANK_FAILS,
    SIM_FAULT_DATA_LINK,
    SIM_FAULT_PLAN_FAILS,
    SIM_FAULT_SUBMITS,
    SIM_FAULT_CANCELS,
    SIM_FAULT_REASSIGNS,
    SIM_FAULT_DRAINS,
    SIM_FAULT_QUOTAS,
    SIM_FAULT_FIRST_COUNT, // those that the first stream draws
    SIM_FAULT_FORGET = SIM_FAULT_FIRST_COUNT,
    SIM_FAULT_KIND_COUNT
} sim_fault_kind;

// What a fault waits for, when not for its time.
typedef enum sim_trigger {
    SIM_AT_TIME,
    SIM_AT_ORDER, // the controller sends one of a kind
    SIM_AT_STORE, // something goes to the disk
    SIM_AT_MOVE,  // a job moves to a state
    SIM_AT_NOTE,  // the controller notes one of sim_note_text
} sim_trigger;

struct sim_fault {
    sim_fault_kind kind;
    sim_trigger trigger;
    uint32_t which, count; // order or state, and how often before
    uint32_t repeats;      // it happens so often again
    int64_t at_ns, for_ns;
    uint32_t node, detail;
    bool fired;
    // It hits the node that the order goes to, ranks of the job that it is about, a moment later.
    bool aimed;
    bool same_job; // whenever it happens again
    int64_t after_ns;
    uint64_t job; // 0 = none yet
};

struct sim_tally {
    uint64_t worlds, events, faults, restarts;
    uint64_t fired[SIM_FAULT_KIND_COUNT];
    uint64_t orders[DP_ORDER_SETTLE + 1];
    uint64_t moves[DP_STATE_COUNT][DP_STATE_COUNT];
    uint64_t aimed;                // faults that hit an order, a move or a note
    uint64_t recoveries;           // jobs that went on without ranks that were lost
    uint64_t answers, wrong, late; // to questions for layouts
    uint64_t preemptions, forgotten, held, grown;
    uint64_t hash; // of all that happened
    // Of the world that has the fewest.
    uint64_t least_events, least_broken;
};

// Another layout that the core asks for.
struct sim_question {
    uint64_t job, request;
    bool recovers, grows, fails;
    bool wrong, twice; // nobody should believe it, or not again
    const char *kind;
    uint64_t again_steps;
    struct dp_slot slots[SIM_RANKS_MAX];
    size_t count;        // 0 = all stays as it is
    const char *without; // NULL, or begin anew without this node
    bool rebalances;
    struct sim_question *next;
};

struct sim_controller {
    struct dp_core *core; // NULL = down
    uint64_t life;
    struct dp_core_config config;
    struct dp_effects effects;
    bool dark;                  // its machine is off: it does not even refuse
    int64_t clock_ns;           // monotonic minus virtual time, another one after each start
    int64_t wall_ns;            // wall minus virtual time
    int64_t stall_ns, stood_ns; // stands still until; for so long, to be told with the next event
    int64_t started_ns;
    int64_t timer_ns;
    int64_t ticked_ns;
    uint32_t ticks; // at that moment
    uint64_t timer_number, plan_number, plan_job;
    struct sim_question *questions; // that are open
    struct dp_slot plan_slots[SIM_RANKS_MAX];
    size_t plan_count;
    bool plan_fails;
};

struct sim_disk {
    struct sim_row rows[SIM_JOBS_MAX + 1]; // by number
    uint64_t highest;
    struct dp_node_record nodes[SIM_NODES_MAX];
    struct dp_quota_record quotas[SIM_USERS];
    struct sim_transaction *first, **last;
    uint32_t queued;
    int64_t free_ns, slow_ns, fails_ns;
    int64_t behind_ns; // what waited for long is done
};

// What the second stream adds to a world.
struct sim_more {
    struct dp_rand rand;
    bool stragglers; // ranks tell their times, and some place is slow
    uint32_t slow_node, slow_slot;
    int64_t slow_from_ns;
    uint32_t wrong_per_mille; // answers
    int64_t peace_ns;         // until then what was decided about nodes stands
    bool jumped;              // the wall clock has
};

// What the third stream adds.
struct sim_late {
    struct dp_rand rand;
    bool in_place;  // who recovers stays where it is, whenever that can be
    bool patient;   // jobs train for long, and grow again soon
    bool reordered; // somebody has changed a priority
};

struct sim {
    uint64_t seed;
    uint32_t streams; // so many draw
    struct sim_more more;
    struct sim_late late;
    struct sim_queue queue;
    struct sim_event current;
    int64_t now_ns, calm_ns, end_ns;
    struct dp_rand rand;
    uint64_t faults_masked; // bit = a fault that is left out
    struct sim_fault faults[SIM_FAULTS_MAX];
    uint32_t faults_count, faults_fired;
    uint32_t broken; // by faults; the others are wishes
    uint64_t events;
    struct sim_controller controller;
    struct sim_disk disk;
    struct sim_node nodes[SIM_NODES_MAX];
    uint32_t nodes_count;
    struct sim_connection *connections; // by session - 1
    size_t connections_count, connections_room;
    struct sim_job jobs[SIM_JOBS_MAX + 1];
    uint64_t links, pids;
    struct sim_call calls[SIM_CALLS_MAX];
    uint32_t calls_count, requests, requests_wanted;
    uint64_t accepted[SIM_JOBS_MAX + 1]; // job of each request
    // Of the network and the disk of this world.
    uint32_t delay_us, disk_us, lease_ms, orphan_ms;
    struct sim_tally *tally;
    // A failure.
    jmp_buf failed;
    const char *rule;
    char text[512];
    bool tracing;
    FILE *print; // every line of the trace, too; NULL = not
    char trace[SIM_TRACE_LINES][256];
    uint64_t traced;
};

// queue.c
void sim_push(struct sim *sim, int64_t at_ns, sim_event_kind kind, uint32_t a, uint64_t b, void *p);
bool sim_pop(struct sim *sim, struct sim_event *ret_event);

// world.c
// "7" or "7/2": the number, and the streams above its 56 bits, 0 = all.
uint64_t sim_seed_parse(const char *text);
const char *sim_seed_text(uint64_t seed, char ret_text[static 32]);
void sim_init(struct sim *sim, uint64_t seed, uint64_t faults_masked, struct sim_tally *tally);
void sim_deinit(struct sim *sim);
// Until it is over; false when a rule was broken: sim->rule, sim->text.
bool sim_run(struct sim *sim);
int64_t sim_between(struct sim *sim, int64_t low, int64_t high);
bool sim_chance(struct sim *sim, uint32_t per_mille);
bool sim_is_calm(const struct sim *sim);
void sim_fail(struct sim *sim, const char *rule, const char *format, ...)
    __attribute__((format(printf, 3, 4), noreturn));
void sim_trace_line(struct sim *sim, const char *format, ...) __attribute__((format(printf, 2, 3)));
#define SIM_TRACE(sim, ...)                                                                        \
    do {                                                                                           \
        if ((sim)->tracing) {                                                                      \
            sim_trace_line((sim), __VA_ARGS__);                                                    \
        }                                                                                          \
    } while (0)
uint32_t sim_job_number(const char *id);
struct sim_key sim_key_of(const struct dp_agent_fence *fence);

// network.c
struct sim_connection *sim_connection_of(struct sim *sim, uint64_t session);
struct sim_message *sim_message_new(sim_message_kind kind, uint64_t session, uint32_t levels);
// Takes the message.
void sim_send(struct sim *sim, struct sim_message *message, bool to_controller);
uint64_t sim_connect(struct sim *sim, uint32_t node);
void sim_close_agent_end(struct sim *sim, uint64_t session, bool told);
void sim_close_controller_end(struct sim *sim, uint64_t session, bool told);

// controller.c
void sim_controller_start(struct sim *sim);
void sim_controller_crash(struct sim *sim, bool told, int64_t down_ns);
void sim_controller_event(struct sim *sim, struct dp_core_event *event);
void sim_controller_accept(struct sim *sim, uint64_t session);
void sim_controller_take(struct sim *sim, struct sim_message *message);
void sim_controller_timer(struct sim *sim, uint64_t number);

// planner.c
void sim_planner_plan(struct sim *sim, const struct dp_effect *effect);
void sim_planner_planned(struct sim *sim, uint64_t number);
void sim_planner_ask(struct sim *sim, const struct dp_effect *effect);
void sim_planner_adapted(struct sim *sim, struct sim_question *question, uint64_t life);
void sim_planner_forget(struct sim *sim);
// Whether the job stays off the node, since it slowed it down.
bool sim_is_avoided(const struct dp_job_record *job, const char *node);
// Each part of a model lives on two ranks, as the two directions of a pipeline have it.
uint32_t sim_parts(size_t world);
void sim_controller_deinit(struct sim *sim);

// disk.c
void sim_disk_store(struct sim *sim, const struct dp_effects *effects);
// The oldest transaction is done.
void sim_disk_stored(struct sim *sim);
// Some of what was on its way is there, and nothing after it.
void sim_disk_crash(struct sim *sim);
void sim_disk_load(struct sim *sim);
void sim_disk_deinit(struct sim *sim);

// node.c
void sim_node_init(struct sim *sim, uint32_t index);
void sim_node_deinit(struct sim_node *node);
int64_t sim_node_clock(const struct sim *sim, const struct sim_node *node);
void sim_agent_start(struct sim *sim, struct sim_node *node);
void sim_agent_crash(struct sim *sim, struct sim_node *node, bool told, int64_t down_ns);
void sim_node_power(struct sim *sim, struct sim_node *node, int64_t down_ns);
void sim_node_start(struct sim *sim, struct sim_node *node);
void sim_agent_event(struct sim *sim, struct sim_node *node, struct dp_agent_event *event);
void sim_agent_tick(struct sim *sim, struct sim_node *node, uint64_t number);

// session.c: the agent's
void sim_session_init(struct sim *sim, struct sim_node *node);
void sim_session_leave(struct sim *sim, struct sim_node *node, bool told);
void sim_session_timer(struct sim *sim, struct sim_node *node, uint64_t number);
void sim_session_arm(struct sim *sim, struct sim_node *node);
void sim_session_take(struct sim *sim, struct sim_node *node, struct sim_message *message);
void sim_session_level(struct sim *sim, struct sim_node *node, const struct dp_agent_fence *fence);
void sim_session_refuse(struct sim *sim, struct sim_node *node, const struct dp_agent_fence *fence,
                        const char *text);
void sim_session_report(struct sim *sim, struct sim_node *node, const struct sim_report *report);

// keeper.c
struct sim_keeper *sim_keeper_find(struct sim_node *node, const struct dp_agent_fence *fence);
void sim_keeper_start(struct sim *sim, struct sim_node *node, const struct dp_agent_effect *effect);
void sim_keeper_adopt(struct sim *sim, struct sim_keeper *keeper);
bool sim_keepers_settled(const struct sim_node *node);
void sim_keeper_kill(struct sim *sim, struct sim_keeper *keeper);
void sim_keeper_stall(struct sim *sim, struct sim_keeper *keeper, int64_t for_ns);
void sim_keeper_send(struct sim *sim, struct sim_keeper *keeper, const struct sim_frame *frame);
void sim_keeper_tell(struct sim *sim, struct sim_keeper *keeper, const struct sim_frame *frame);
void sim_keeper_lose(struct sim *sim, struct sim_keeper *keeper);
void sim_keeper_agent_gone(struct sim *sim, struct sim_keeper *keeper);
void sim_keeper_try(struct sim *sim, struct sim_keeper *keeper, uint64_t life);
void sim_keeper_missed(struct sim *sim, struct sim_keeper *keeper);
void sim_keeper_lease(struct sim *sim, struct sim_keeper *keeper);
void sim_keeper_take(struct sim *sim, const struct sim_frame *frame);
void sim_keeper_check_end(struct sim *sim, struct sim_keeper *keeper);
void sim_agent_take_frame(struct sim *sim, const struct sim_frame *frame);

// rank.c
struct sim_process *sim_rank_find(const struct sim_keeper *keeper, uint32_t rank);
bool sim_rank_alive(const struct sim_process *process);
void sim_rank_spawn(struct sim *sim, struct sim_keeper *keeper, uint32_t rank);
void sim_rank_order(struct sim *sim, struct sim_process *process,
                    const struct sim_rank_order *order);
void sim_rank_stop(struct sim *sim, struct sim_process *process, uint32_t grace_ms, sim_stop who);
void sim_rank_end(struct sim *sim, struct sim_process *process, int32_t status, int32_t signal);
void sim_rank_fail(struct sim *sim, struct sim_process *process, bool peer_lost);
void sim_rank_moves(struct sim *sim, struct sim_process *process, uint64_t number);
void sim_run_step(struct sim *sim, struct sim_run *run);
void sim_run_break(struct sim *sim, struct sim_run *run);
struct sim_frame sim_rank_spawned(const struct sim_process *process);
struct sim_frame sim_rank_exited(const struct sim_process *process);

// users.c
void sim_users_init(struct sim *sim);
void sim_users_act(struct sim *sim);
void sim_users_submit(struct sim *sim, uint32_t request);
void sim_users_burst(struct sim *sim, uint32_t count);
void sim_users_cancel(struct sim *sim, uint64_t job);
void sim_users_reassign(struct sim *sim, uint64_t job, uint32_t detail);
void sim_users_node(struct sim *sim, uint32_t node, uint32_t detail);
void sim_users_quota(struct sim *sim, uint32_t detail);
void sim_users_update(struct sim *sim, uint64_t job, sim_update update, uint32_t detail);
void sim_users_replied(struct sim *sim, const struct dp_effect *effect);
void sim_users_forget(struct sim *sim, uint32_t node, int64_t until_ns);
bool sim_users_done(const struct sim *sim);
// Size of a request, which its job file stands for.
uint32_t sim_request_ranks(const struct sim *sim, uint32_t request);
dp_recovery_policy sim_request_recovery(const struct sim *sim, uint32_t request);

// faults.c
void sim_faults_init(struct sim *sim);
void sim_fault_fire(struct sim *sim, uint32_t number);
// False when there is nothing to be hit.
bool sim_fault_hit(struct sim *sim, const struct sim_fault *fault);
// What happened is about a job and a node: 0, SIM_NODES_MAX = none in particular.
void sim_faults_trigger(struct sim *sim, sim_trigger trigger, uint32_t which, uint64_t job,
                        uint32_t node);
const char *sim_fault_text(sim_fault_kind kind);
void sim_fault_describe(const struct sim *sim, uint32_t number, char *ret_text, size_t size);

// checks.c
void sim_check_order(struct sim *sim, const struct dp_effect *effect);
void sim_check_reply(struct sim *sim, const struct dp_effect *effect, const struct sim_call *call);
void sim_check_job_row(struct sim *sim, const struct sim_row *row, const struct dp_job_record *job);
void sim_check_training(struct sim *sim, struct sim_process *process);
void sim_check_slot(struct sim *sim, const struct sim_process *process);
void sim_check_move(struct sim *sim, const struct dp_effect *effect);
void sim_check_silence(struct sim *sim);
bool sim_is_over(struct sim *sim);
uint32_t sim_quota_of(struct sim *sim, const char *user); // UINT32_MAX = has none
// Ranks that jobs of the user have.
uint32_t sim_ranks_of(struct sim *sim, const char *user);
void sim_check_end(struct sim *sim);
void sim_fail_unfinished(struct sim *sim);

// more.c: what the second stream draws
void sim_more_init(struct sim *sim);
int64_t sim_more_between(struct sim *sim, int64_t low, int64_t high);
bool sim_more_chance(struct sim *sim, uint32_t per_mille); // never without this stream
void sim_more_faults(struct sim *sim);
// What a submission has besides.
void sim_more_submit(const struct sim *sim, uint32_t request, struct dp_submit *submit);
// Its ranks read in the job file how many steps it has.
void sim_more_stored(struct sim *sim, const struct dp_job_record *job);
bool sim_more_is_slow(const struct sim *sim, const struct sim_process *process);
// Another answer than the one that was found, and another time for it.
void sim_more_answer(struct sim *sim, const struct dp_effect *effect, struct sim_question *question,
                     int64_t *delay_ns);
const char *sim_note_text(uint32_t which); // NULL = there are no more

// late.c: what the third stream draws
void sim_late_init(struct sim *sim);
int64_t sim_late_between(struct sim *sim, int64_t low, int64_t high);
bool sim_late_chance(struct sim *sim, uint32_t per_mille); // never without this stream
// What people do besides: jobs are held, released and reordered.
void sim_late_act(struct sim *sim);
// Faults are about to stop: too few broke something so far, so there is more work, and more faults.
void sim_late_make_up(struct sim *sim);

// rules.c
void sim_rules_note(struct sim *sim, const struct dp_effect *effect);
void sim_rules_move(struct sim *sim, uint64_t job, dp_job_state to);
void sim_rules_look(struct sim *sim);
void sim_rules_plan(struct sim *sim, uint64_t job);
void sim_rules_ask(struct sim *sim, const struct dp_effect *effect);
void sim_rules_replied(struct sim *sim, struct sim_call *call);
void sim_rules_restarted(struct sim *sim);
void sim_rules_decision(struct sim *sim, const struct sim_row *row,
                        const struct dp_decision_record *decision);
void sim_rules_end(struct sim *sim);

// choices.c
void sim_choices_plan(struct sim *sim, const struct dp_effect *effect);
void sim_choices_ask(struct sim *sim, const struct dp_effect *effect);
void sim_choices_unchanged(struct sim *sim, const struct sim_question *question);
void sim_choices_note(struct sim *sim, const struct dp_effect *effect);
void sim_choices_effects(struct sim *sim, const struct dp_effects *effects);
void sim_choices_look(struct sim *sim);
void sim_choices_move(struct sim *sim, uint64_t job, dp_job_state to);
void sim_choices_updated(struct sim *sim, const struct sim_call *call);
void sim_choices_loaded(struct sim *sim);
void sim_choices_attempt(struct sim *sim, const struct dp_attempt_record *attempt);
