// The agent of one node: one stream to the controller, one connection to each keeper, and the core
// between them. Everything here runs on the loop's thread.
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

#include "dp/agent_core.h"
#include "dp/buf.h"
#include "dp/error.h"
#include "dp/link.h"
#include "dp/rpc.h"
#include "dp/v1/agent.pb-c.h"

struct worker_options {
    const char *state_dir;
    const char *name;
    const char *controller; // host:port, or @FILE that holds it
    const char *data_host;
    const char *place; // "outer/inner"; "" = not said
    const char *rank_program;
    const char *keeper_program;
    uint32_t slots;
    uint32_t lease_ms;
    uint32_t orphan_ms;
    uint32_t unkillable_ms;
    bool kill_ranks_on_exit;
    const char *hardware_root; // a directory with a sys/ of its own; NULL = this machine's
    const char *nvml_library;  // NULL = the usual one
};

#define WORKER_NOTES_MAX 16

struct session;
struct keeper_conn;
struct calibration;
struct hardware;
struct pending_event;

// contact.c: STATE/contact, where an agent that starts finds when the one before it was last heard.
struct contact {
    int fd;
    char boot_id[64]; // of this boot of the machine
};

struct worker {
    struct worker_options options;
    int lock_fd;
    struct contact contact;
    uv_loop_t loop;
    uv_timer_t tick;
    uv_signal_t signals[3];
    struct dp_agent_core *core;
    struct session *session;
    struct keeper_conn *keepers; // a list
    struct calibration *calibration;
    struct hardware *hardware;
    struct dp_buf profile;         // dp.profile/1, empty until calibrated
    bool performing;               // effects of one event
    struct pending_event *pending; // events that came up meanwhile
    int64_t adopt_until_ns; // the controller hears nothing before keepers were asked, or then
    int64_t ticked_ns;
    bool skips_tick;               // of the core, this time
    char *notes[WORKER_NOTES_MAX]; // owned
    size_t notes_count;
    bool ending;
    bool killed; // keepers that did not end
    int64_t end_by_ns;
};

// worker.c
dp_status worker_open(struct worker *worker, const struct worker_options *options,
                      struct dp_error *err);
void worker_run(struct worker *worker);
void worker_close(struct worker *worker);
// Gives an event (its time is set here) to the core and performs what follows. One that comes up
// while effects are performed waits until they are done; it may have no bytes.
void worker_event(struct worker *worker, struct dp_agent_event *event);
// The controller hears of it with the next hello: files that were damaged.
void worker_note(struct worker *worker, const char *text);
// Looks after everything that is due, soon.
void worker_hurry(struct worker *worker);
int64_t worker_now_ns(void);

// Opens the file. *ret_heard_ns: the newest word of the agent that was acknowledged was sent then;
// INT64_MIN when that is not known.
dp_status contact_open(const char *state_dir, struct contact *contact, int64_t *ret_heard_ns,
                       struct dp_error *err);
void contact_note(struct contact *contact, int64_t heard_ns);
void contact_close(struct contact *contact);

// session.c: the stream to the controller.
struct session *session_new(struct worker *worker);
void session_free(struct session *session);
void session_tick(struct session *session);
// Queued behind what waits already; all are dropped while there is no welcomed stream.
void session_send_level(struct session *session, const struct dp_agent_fence *fence);
// The level of an assignment that is not held: why not.
void session_send_refusal(struct session *session, const struct dp_agent_fence *fence,
                          const char *text);
// A packed dp.v1.RankReport; a `sample` is left out when the controller reads too slowly.
void session_send_report(struct session *session, const void *bytes, size_t length, bool sample);
void session_send_log(struct session *session, Dp__V1__LogChunk *chunk);
// False when there is no room now; true also while there is no welcomed stream, since nobody waits.
bool session_send_calibration(struct session *session, Dp__V1__CalibrateLevel *level);
// At the next tick of a welcomed stream.
void session_send_inventory(struct session *session);

// outbox.c: what waits for room on the stream. A bounded number of bytes; the oldest give way.
struct outbox;
struct outbox *outbox_new(struct worker *worker);
void outbox_free(struct outbox *outbox);
void outbox_clear(struct outbox *outbox);
bool outbox_waits(const struct outbox *outbox);
// One of each assignment is enough.
void outbox_put_level(struct outbox *outbox, const struct dp_agent_fence *fence);
void outbox_put_refusal(struct outbox *outbox, const struct dp_agent_fence *fence,
                        const char *text);
void outbox_put_report(struct outbox *outbox, const void *bytes, size_t length);
void outbox_drain(struct outbox *outbox, struct dp_rpc_stream *stream);

// controller_orders.c: messages of the controller, other than those about the stream itself.
void orders_handle(struct worker *worker, const Dp__V1__ControllerMessage *message);
// Answers the bytes of an order that was refused, when it can be told whom it was about.
void orders_refuse(struct worker *worker, const void *bytes, size_t length, const char *reason);
// The RankOrder that a rank starts with, appended to buf.
dp_status orders_prepare_rank(const struct worker *worker, const struct dp_buf *prepare,
                              uint32_t rank, struct dp_buf *buf, struct dp_error *err);
struct dp_agent_fence orders_fence(const Dp__V1__Fence *fence);

// levels.c: what the core holds, as messages in `arena`.
struct dp_arena;
Dp__V1__AssignmentLevel *levels_of(const struct dp_agent_assignment *assignment,
                                   struct dp_arena *arena);
// Of an assignment that is not held: why not.
Dp__V1__AssignmentLevel *levels_refusal(const struct dp_agent_fence *fence, const char *text,
                                        struct dp_arena *arena);
Dp__V1__AssignmentLevel **levels_all(const struct dp_agent_core *core, struct dp_arena *arena,
                                     size_t *ret_count);
Dp__V1__Inventory *levels_inventory(const struct worker *worker, struct dp_arena *arena);

// hardware.c: what the node has inside.
struct hardware *hardware_new(struct worker *worker);
// Ends what has not begun; free when the loop has ended.
void hardware_cancel(struct hardware *hardware);
void hardware_free(struct hardware *hardware);
// NULL = not known yet. Texts are borrowed.
Dp__V1__Hardware *hardware_message(const struct hardware *hardware, struct dp_arena *arena);

#define KEEPER_SOCKET "keeper.sock" // in its directory

// directory.c: STATE/jobs/JOB.ATTEMPT.EPOCH, one for each assignment.
dp_status directory_lock(const char *state_dir, int *ret_fd, struct dp_error *err);
char *directory_of(const char *state_dir, const struct dp_agent_fence *fence);
// DP_CONFLICT when it is there already: what others left must not pass for ours.
dp_status directory_make(const char *directory, const void *prepare, size_t length,
                         struct dp_error *err);
void directory_release(const char *state_dir, const char *directory);
// Whether a keeper lives there, or may: false only when it is known that none does.
bool directory_has_keeper(const char *directory);
// Its process; 0 when there is none.
pid_t directory_keeper_pid(const char *directory);
// Tells the core of every assignment found and connects to their keepers.
void directory_scan(struct worker *worker);

// keeper_conn.c: a keeper's process and the connection to it.
struct keeper_conn {
    struct keeper_conn *next;
    struct worker *worker;
    struct dp_agent_fence fence;
    char *directory;       // owned
    struct dp_buf prepare; // packed dp.v1.Prepare, empty when it could not be read
    pid_t child;           // 0: started in another life, or reaped
    bool is_ours;          // started in this life
    int signal;            // that ended it, when known
    struct dp_link link;   // fd < 0: not connected
    uv_poll_t *poll;       // NULL while not connected
    bool synced;           // on this connection
    bool was_synced;       // ever
    bool released;         // the core has let it go: only its end is waited for
    bool broken;           // a frame was not taken: all is to be told anew
    int64_t give_up_ns;    // it is unreachable when it has not said anything by then
    int64_t ping_ns;       // when the next is due
    bool over;             // to be removed
    // Why it could not be connected to; DP_OK once it was.
    struct dp_error unconnected;
};
// Makes the directory, starts the keeper and connects; failures go to the core.
void keeper_start(struct worker *worker, const struct dp_agent_fence *fence, const void *prepare,
                  size_t length);
void keeper_adopt(struct worker *worker, const struct dp_agent_fence *fence,
                  struct dp_buf *prepare);
struct keeper_conn *keeper_find(struct worker *worker, const struct dp_agent_fence *fence);
void keeper_tick(struct keeper_conn *conn);
// DP_UNAVAILABLE while not connected. Any other failure is logged and ends the connection: the core
// orders again what the keeper then does not know.
dp_status keeper_send(struct keeper_conn *conn, const struct dp_link_frame *frame,
                      struct dp_error *err);
void keeper_spawn_rank(struct keeper_conn *conn, uint32_t rank);
void keeper_kill(struct keeper_conn *conn);
void keeper_free(struct keeper_conn *conn);
// Connected and in step, or over; otherwise there is something to wait for.
bool keeper_is_settled(const struct keeper_conn *conn);

// keeper_frames.c
// Turns one frame of a keeper into an event.
dp_status keeper_frame(struct keeper_conn *conn, const struct dp_link_frame *frame,
                       struct dp_error *err);
// As if they had come from the socket: the frames in the levels file a keeper leaves behind.
void keeper_replay_file(struct keeper_conn *conn);

// logs.c
void logs_answer(struct worker *worker, const Dp__V1__ReadLog *request);

// calibrate.c: the figures of this node's ranks, made once and kept in STATE/profile.json.
struct calibration *calibration_new(struct worker *worker);
void calibration_free(struct calibration *calibration);
void calibration_tick(struct calibration *calibration);
// The controller wants it measured now, or no longer.
void calibration_order(struct calibration *calibration, uint64_t request, bool is_cancel);
// Why the newest try failed, or "".
const char *calibration_error(const struct calibration *calibration);

// child.c
// posix_spawn with a clean signal state in its own session: null input, `output` (truncated, NULL =
// none) as standard output, `log` (appended) as standard error.
dp_status child_start(char *const *arguments, const char *output, const char *log, pid_t *ret_pid,
                      struct dp_error *err);
// True once it has ended and was reaped; signal or exit status.
bool child_ended(pid_t pid, int *ret_status, int *ret_signal);
