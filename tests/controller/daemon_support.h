// A real dp-controller, a typed client, and an agent that does what the test says.
#pragma once

#include <sys/types.h>

#include "dp/client.h"
#include "dp/rpc.h"
#include "dp/v1/agent.pb-c.h"
#include "dp_test.h"

#define DEADLINE_MS 120000

struct daemon_process {
    pid_t pid;           // 0 = not running
    char directory[256]; // the test's; the state lies in state/
    char address_file[300];
};

#define AUTO_CLIENT __attribute__((cleanup(daemon_close_client)))
#define AUTO_AGENT __attribute__((cleanup(agent_close)))
#define AUTO_SCENE __attribute__((cleanup(scene_close)))
#define DAEMON_TEST(name) cmocka_unit_test_setup_teardown(name, daemon_setup, daemon_teardown)

// *state is a struct daemon_process in a fresh directory; teardown kills what runs and removes it.
int daemon_setup(void **state);
int daemon_teardown(void **state);
// Starts it and waits until it serves.
void daemon_start(struct daemon_process *process);
// Runs it with these arguments until it exits; the exit status, and what it wrote.
int daemon_run_once(const struct daemon_process *process, const char *const *arguments,
                    char *ret_text, size_t size);
// Sends the signal and waits; the exit status, or 128 + the signal that ended it.
int daemon_end(struct daemon_process *process, int signal_number);
struct dp_client *daemon_client(const struct daemon_process *process);
// Closes it, if there is one, and forgets it.
void daemon_close_client(struct dp_client **client);
// Two ranks that compute nothing, so no profile and no data are needed.
extern const char daemon_sim_job[];
dp_status daemon_submit(struct dp_client *client, const char *toml, const char *request_id,
                        struct dp_arena *arena, Dp__V1__Job **ret_job, struct dp_error *err);

struct fake_agent {
    struct dp_rpc_client *client;
    struct dp_rpc_stream *stream;
    bool closed;
    struct dp_error error; // why it closed
    struct dp_arena arena; // holds what came
    Dp__V1__ControllerMessage *got[64];
    size_t got_count, taken;
    uint64_t acked; // acknowledgements that came
};

void agent_connect(struct fake_agent *agent, const struct daemon_process *process,
                   uint32_t protocol, Dp__V1__AssignmentLevel *level);
// The same with another lease than a minute.
void agent_connect_lease(struct fake_agent *agent, const struct daemon_process *process,
                         uint32_t lease_ms);
void agent_close(struct fake_agent *agent);
// The next message of this kind, within the deadline; acknowledgements are passed over.
const Dp__V1__ControllerMessage *agent_expect(struct fake_agent *agent,
                                              Dp__V1__ControllerMessage__MessageCase kind);
// Waits until the controller has ended the session.
void agent_expect_closed(struct fake_agent *agent);
// Sends what is queued and takes what came; waits at most this long for either.
void agent_pump(struct fake_agent *agent, int timeout_ms);
void agent_send(struct fake_agent *agent, const Dp__V1__AgentMessage *message);
// All `count` ranks of this assignment are in one phase.
void agent_level(struct fake_agent *agent, Dp__V1__Fence *fence, uint32_t count,
                 Dp__V1__RankPhase phase);
void agent_step(struct fake_agent *agent, Dp__V1__Fence *fence, uint32_t rank, uint64_t step,
                double loss);
// The two ranks that it was told to prepare get ready, are told to start, and run.
void agent_start_ranks(struct fake_agent *agent, Dp__V1__Fence *fence);
void agent_heartbeat(struct fake_agent *agent);
// A level with `count` ranks, in static memory, for agent_connect.
Dp__V1__AssignmentLevel *agent_make_level(Dp__V1__Fence *fence, uint32_t count,
                                          Dp__V1__RankPhase phase);
// Submits daemon_sim_job to a connected agent and brings it to RUNNING; its fence is the agent's.
Dp__V1__Fence *daemon_start_job(struct dp_client *client, struct fake_agent *agent,
                                struct dp_arena *arena);

// A controller that serves, who asks it, and the agent of its one node.
struct scene {
    struct daemon_process *process;
    struct dp_client *client;
    struct fake_agent agent;
    Dp__V1__Fence fence; // of job-1
    struct dp_arena arena;
};

// state is the test's; the agent is not there yet.
void scene_open(struct scene *scene, void **state);
// The controller, which has ended, starts again; the agent and who asks come anew.
void scene_reopen(struct scene *scene);
// Closes what is open.
void scene_close(struct scene *scene);
// The agent has connected; job-1 trains on its node from now on.
void scene_start_job(struct scene *scene);
// All of that at once.
void scene_open_training(struct scene *scene, void **state);
// Both ranks are in this phase.
void scene_level(struct scene *scene, Dp__V1__RankPhase phase);
// Both ranks tell of these steps; their loss is 6 less the step's number.
void scene_steps(struct scene *scene, uint64_t first, uint64_t last);
// Both ranks finish, and the controller lets go of them.
void scene_finish(struct scene *scene);
