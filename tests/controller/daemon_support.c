#include "daemon_support.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/wire.h"

#define RANKS_MAX 16

extern char **environ;

int daemon_setup(void **state)
{
    struct daemon_process *process = dp_new(struct daemon_process);
    const char *base = getenv("TMPDIR");
    // Whoever takes a path for a pattern finds nothing in it.
    snprintf(process->directory, sizeof(process->directory), "%s/dp-[ctl]-XXXXXX",
             base == NULL ? "/tmp" : base);
    assert_non_null(mkdtemp(process->directory));
    snprintf(process->address_file, sizeof(process->address_file), "%s/address",
             process->directory);
    *state = process;
    return 0;
}

static int remove_one(const char *path, const struct stat *info, int flag, struct FTW *walk)
{
    (void)info;
    (void)flag;
    (void)walk;
    return remove(path);
}

int daemon_teardown(void **state)
{
    struct daemon_process *process = *state;
    if (process->pid != 0) {
        daemon_end(process, SIGKILL);
    }
    int code = nftw(process->directory, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    free(process);
    return code;
}

// Output goes to `path`. Nothing but exec happens in the child: this process uses gRPC.
static pid_t spawn(const char *const *arguments, const char *path)
{
    char *argv[16] = {(char *)DP_CONTROLLER_PATH};
    size_t count = 1;
    for (; arguments[count - 1] != NULL; count++) {
        DP_CHECK(count < 15);
        argv[count] = (char *)arguments[count - 1];
    }
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    pid_t pid = 0;
    assert_int_equal(posix_spawn(&pid, DP_CONTROLLER_PATH, &actions, NULL, argv, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    return pid;
}

static int wait_for_exit(pid_t pid)
{
    int status = 0;
    while (waitpid(pid, &status, 0) < 0) {
        assert_int_equal(errno, EINTR);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void daemon_start(struct daemon_process *process)
{
    DP_AUTO_FREE char *state = dp_asprintf("%s/state", process->directory);
    DP_AUTO_FREE char *log = dp_asprintf("%s/log", process->directory);
    unlink(process->address_file);
    const char *arguments[] = {"--state-dir", state, "--address-file", process->address_file, NULL};
    process->pid = spawn(arguments, log);
    int64_t end_ns = dp_clock_monotonic_ns() + DEADLINE_MS * DP_NS_PER_MS;
    while (access(process->address_file, R_OK) != 0) {
        assert_true(dp_clock_monotonic_ns() < end_ns);
        assert_int_equal(waitpid(process->pid, NULL, WNOHANG), 0);
        dp_clock_sleep_until_ns(dp_clock_monotonic_ns() + 5 * DP_NS_PER_MS);
    }
}

int daemon_run_once(const struct daemon_process *process, const char *const *arguments,
                    char *ret_text, size_t size)
{
    DP_AUTO_FREE char *path = dp_asprintf("%s/stderr", process->directory);
    unlink(path);
    int code = wait_for_exit(spawn(arguments, path));
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    assert_int_equal(dp_read_file(path, 1 << 20, &text, NULL), DP_OK);
    dp_copy_text(ret_text, size, text.bytes == NULL ? "" : text.bytes);
    return code;
}

int daemon_end(struct daemon_process *process, int signal_number)
{
    assert_int_equal(kill(process->pid, signal_number), 0);
    int code = wait_for_exit(process->pid);
    process->pid = 0;
    return code;
}

struct dp_client *daemon_client(const struct daemon_process *process)
{
    DP_AUTO_FREE char *address = dp_asprintf("@%s", process->address_file);
    struct dp_client *client = NULL;
    struct dp_error err = {0};
    assert_ok(dp_client_open(address, DEADLINE_MS, &client, &err), &err);
    return client;
}

static void on_message(void *context, const void *bytes, size_t length)
{
    struct fake_agent *agent = context;
    ProtobufCMessage *message = NULL;
    struct dp_error err = {0};
    assert_ok(dp_wire_unpack(&dp__v1__controller_message__descriptor, bytes, length, &agent->arena,
                             &message, &err),
              &err);
    DP_CHECK(agent->got_count < DP_ARRAY_LENGTH(agent->got));
    Dp__V1__ControllerMessage *got = (Dp__V1__ControllerMessage *)message;
    if (got->message_case != DP__V1__CONTROLLER_MESSAGE__MESSAGE_ACK) {
        agent->got[agent->got_count++] = got;
    } else {
        agent->acked++;
    }
}

static void on_closed(void *context, const struct dp_error *err)
{
    struct fake_agent *agent = context;
    agent->closed = true;
    agent->error = *err;
}

static void send_hello(struct fake_agent *agent, uint32_t protocol, uint32_t lease_ms,
                       Dp__V1__AssignmentLevel *level)
{
    Dp__V1__Inventory inventory = DP__V1__INVENTORY__INIT;
    inventory.slots = 4;
    inventory.cores = 4;
    inventory.memory_bytes = 1ull << 34;
    inventory.accelerator = (char *)"cpu";
    inventory.data_host = (char *)"127.0.0.1";
    Dp__V1__Hello hello = DP__V1__HELLO__INIT;
    hello.node = (char *)"node-x";
    hello.boot_id = (char *)"boot";
    hello.instance = (char *)"instance";
    hello.version = (char *)"0.0.1";
    hello.protocol = protocol;
    hello.inventory = &inventory;
    hello.lease_ms = lease_ms;
    hello.fence_ms = 120000;
    hello.n_assignments = level != NULL;
    hello.assignments = &level;
    Dp__V1__AgentMessage message = DP__V1__AGENT_MESSAGE__INIT;
    message.message_case = DP__V1__AGENT_MESSAGE__MESSAGE_HELLO;
    message.hello = &hello;
    agent_send(agent, &message);
}

static void open_stream(struct fake_agent *agent, const struct daemon_process *process)
{
    *agent = (struct fake_agent){0};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf address = {0};
    struct dp_error err = {0};
    assert_ok(dp_read_file(process->address_file, 1024, &address, &err), &err);
    address.bytes[strcspn(address.bytes, "\n")] = '\0';
    struct dp_rpc_client_options options = {.address = address.bytes, .own_connection = true};
    assert_ok(dp_rpc_client_open(&options, &agent->client, &err), &err);
    struct dp_rpc_stream_events events = {on_message, on_closed, agent};
    assert_ok(dp_rpc_stream_open(agent->client, DP_METHOD_SESSION, &events, &agent->stream, &err),
              &err);
}

void agent_connect(struct fake_agent *agent, const struct daemon_process *process,
                   uint32_t protocol, Dp__V1__AssignmentLevel *level)
{
    open_stream(agent, process);
    send_hello(agent, protocol, 60000, level); // a test sends no heartbeats
}

void agent_connect_lease(struct fake_agent *agent, const struct daemon_process *process,
                         uint32_t lease_ms)
{
    open_stream(agent, process);
    send_hello(agent, DP_PROTOCOL_VERSION, lease_ms, NULL);
}

void agent_close(struct fake_agent *agent)
{
    dp_rpc_stream_free(agent->stream);
    dp_rpc_client_close(agent->client);
    dp_arena_deinit(&agent->arena);
    *agent = (struct fake_agent){0};
}

void agent_pump(struct fake_agent *agent, int timeout_ms)
{
    struct pollfd poll_fd = {.fd = dp_rpc_stream_fd(agent->stream), .events = POLLIN};
    poll(&poll_fd, 1, timeout_ms);
    dp_rpc_stream_pump(agent->stream);
}

static void pump(struct fake_agent *agent, int64_t end_ns)
{
    int64_t left_ms = (end_ns - dp_clock_monotonic_ns()) / DP_NS_PER_MS;
    assert_true(left_ms > 0);
    agent_pump(agent, (int)left_ms);
}

const Dp__V1__ControllerMessage *agent_expect(struct fake_agent *agent,
                                              Dp__V1__ControllerMessage__MessageCase kind)
{
    int64_t end_ns = dp_clock_monotonic_ns() + DEADLINE_MS * DP_NS_PER_MS;
    while (agent->taken == agent->got_count) {
        assert_false(agent->closed);
        pump(agent, end_ns);
    }
    const Dp__V1__ControllerMessage *message = agent->got[agent->taken++];
    assert_int_equal(message->message_case, kind);
    return message;
}

void agent_expect_closed(struct fake_agent *agent)
{
    int64_t end_ns = dp_clock_monotonic_ns() + DEADLINE_MS * DP_NS_PER_MS;
    while (!agent->closed) {
        pump(agent, end_ns);
    }
}

void agent_send(struct fake_agent *agent, const Dp__V1__AgentMessage *message)
{
    struct dp_error err = {0};
    assert_ok(dp_rpc_stream_send(agent->stream, &message->base, &err), &err);
}

Dp__V1__AssignmentLevel *agent_make_level(Dp__V1__Fence *fence, uint32_t count,
                                          Dp__V1__RankPhase phase)
{
    static Dp__V1__AssignmentLevel level;
    static Dp__V1__RankLevel ranks[RANKS_MAX], *pointers[RANKS_MAX];
    static Dp__V1__RankReady ready = DP__V1__RANK_READY__INIT;
    static Dp__V1__RankFinished finished = DP__V1__RANK_FINISHED__INIT;
    DP_CHECK(count <= RANKS_MAX);
    ready.address = (char *)"127.0.0.1:4242";
    finished.ok = true;
    dp__v1__assignment_level__init(&level);
    level.fence = fence;
    level.ranks = pointers;
    level.n_ranks = count;
    for (uint32_t i = 0; i < count; i++) {
        dp__v1__rank_level__init(&ranks[i]);
        ranks[i].rank = i;
        ranks[i].phase = phase;
        ranks[i].pid = 1000 + i;
        ranks[i].ready = phase >= DP__V1__RANK_PHASE__RANK_READY ? &ready : NULL;
        ranks[i].finished = phase == DP__V1__RANK_PHASE__RANK_FINISHED ? &finished : NULL;
        pointers[i] = &ranks[i];
    }
    return &level;
}

void agent_level(struct fake_agent *agent, Dp__V1__Fence *fence, uint32_t count,
                 Dp__V1__RankPhase phase)
{
    Dp__V1__AgentMessage message = DP__V1__AGENT_MESSAGE__INIT;
    message.message_case = DP__V1__AGENT_MESSAGE__MESSAGE_LEVEL;
    message.level = agent_make_level(fence, count, phase);
    agent_send(agent, &message);
}

void agent_step(struct fake_agent *agent, Dp__V1__Fence *fence, uint32_t rank, uint64_t step,
                double loss)
{
    Dp__V1__Span span = DP__V1__SPAN__INIT, *spans[] = {&span};
    span.rank = rank;
    span.duration_ns = 1000;
    Dp__V1__StepDone done = DP__V1__STEP_DONE__INIT;
    done.step = step;
    done.step_ns = 1000000;
    done.loss_known_case = DP__V1__STEP_DONE__LOSS_KNOWN_LOSS;
    done.loss = loss;
    done.start_ns = dp_clock_realtime_ns();
    done.busy_ns = 700000;
    done.bubble_ns = 300000;
    done.tokens = 64;
    done.spans = spans;
    done.n_spans = 1;
    Dp__V1__RankReport report = DP__V1__RANK_REPORT__INIT;
    report.fence = fence;
    report.rank = rank;
    report.report_case = DP__V1__RANK_REPORT__REPORT_STEP;
    report.step = &done;
    Dp__V1__AgentMessage message = DP__V1__AGENT_MESSAGE__INIT;
    message.message_case = DP__V1__AGENT_MESSAGE__MESSAGE_REPORT;
    message.report = &report;
    agent_send(agent, &message);
}

void agent_heartbeat(struct fake_agent *agent)
{
    Dp__V1__Heartbeat heartbeat = DP__V1__HEARTBEAT__INIT;
    Dp__V1__AgentMessage message = DP__V1__AGENT_MESSAGE__INIT;
    message.message_case = DP__V1__AGENT_MESSAGE__MESSAGE_HEARTBEAT;
    message.heartbeat = &heartbeat;
    agent_send(agent, &message);
}

const char daemon_sim_job[] = "name = \"little\"\n"
                              "[model]\npreset = \"tiny-moe\"\n"
                              "[train]\nsteps = 3\nglobal_batch = 4\nsequence = 16\n"
                              "[parallel]\npipeline = 2\nexpert = 1\ndata = 1\n"
                              "schedule = \"1f1b\"\nmicrobatches = 4\nmicro_batch_size = 1\n"
                              "[resources]\ndevice = \"sim\"\n"
                              "[sim]\nforward_s = 0.001\ninput_grad_s = 0.001\n"
                              "weight_grad_s = 0.001\npair_s = 0.002\n";

void daemon_close_client(struct dp_client **client)
{
    dp_client_close(*client);
    *client = NULL;
}

dp_status daemon_submit(struct dp_client *client, const char *toml, const char *request_id,
                        struct dp_arena *arena, Dp__V1__Job **ret_job, struct dp_error *err)
{
    Dp__V1__SubmitJobRequest request = DP__V1__SUBMIT_JOB_REQUEST__INIT;
    request.job_toml.data = (uint8_t *)toml;
    request.job_toml.len = strlen(toml);
    request.request_id = (char *)request_id;
    request.file = (char *)"my.toml";
    return dp_client_submit_job(client, &request, arena, ret_job, err);
}

void agent_start_ranks(struct fake_agent *agent, Dp__V1__Fence *fence)
{
    agent_level(agent, fence, 2, DP__V1__RANK_PHASE__RANK_READY);
    const Dp__V1__Start *start =
        agent_expect(agent, DP__V1__CONTROLLER_MESSAGE__MESSAGE_START)->start;
    assert_int_equal(start->n_endpoints, 2);
    assert_string_equal(start->endpoints[1]->address, "127.0.0.1:4242");
    agent_level(agent, fence, 2, DP__V1__RANK_PHASE__RANK_RUNNING);
}

Dp__V1__Fence *daemon_start_job(struct dp_client *client, struct fake_agent *agent,
                                struct dp_arena *arena)
{
    Dp__V1__Job *job = NULL;
    struct dp_error err = {0};
    agent_expect(agent, DP__V1__CONTROLLER_MESSAGE__MESSAGE_WELCOME);
    assert_ok(daemon_submit(client, daemon_sim_job, "", arena, &job, &err), &err);
    const Dp__V1__Prepare *prepare =
        agent_expect(agent, DP__V1__CONTROLLER_MESSAGE__MESSAGE_PREPARE)->prepare;
    assert_string_equal(prepare->fence->job, "job-1");
    assert_int_equal(prepare->n_ranks, 2);
    assert_int_equal(prepare->job_toml.len, strlen(daemon_sim_job));
    assert_int_equal(prepare->plan->pipeline, 2);
    assert_string_equal(prepare->plan->schedule, "1f1b");
    assert_string_equal(prepare->device, "sim");
    agent_start_ranks(agent, prepare->fence);
    return prepare->fence;
}

void scene_open(struct scene *scene, void **state)
{
    *scene = (struct scene){.process = *state};
    daemon_start(scene->process);
    scene->client = daemon_client(scene->process);
}

void scene_reopen(struct scene *scene)
{
    agent_close(&scene->agent);
    daemon_close_client(&scene->client);
    daemon_start(scene->process);
    scene->client = daemon_client(scene->process);
}

void scene_close(struct scene *scene)
{
    agent_close(&scene->agent);
    daemon_close_client(&scene->client);
    dp_arena_deinit(&scene->arena);
}

void scene_start_job(struct scene *scene)
{
    scene->fence = *daemon_start_job(scene->client, &scene->agent, &scene->arena);
    scene->fence.job = (char *)"job-1"; // outlives the agent
}

void scene_open_training(struct scene *scene, void **state)
{
    scene_open(scene, state);
    agent_connect(&scene->agent, scene->process, DP_PROTOCOL_VERSION, NULL);
    scene_start_job(scene);
}

void scene_level(struct scene *scene, Dp__V1__RankPhase phase)
{
    agent_level(&scene->agent, &scene->fence, 2, phase);
}

void scene_steps(struct scene *scene, uint64_t first, uint64_t last)
{
    for (uint64_t step = first; step <= last; step++) {
        agent_step(&scene->agent, &scene->fence, 0, step, 6.0 - (double)step);
        agent_step(&scene->agent, &scene->fence, 1, step, 6.0 - (double)step);
    }
}

void scene_finish(struct scene *scene)
{
    scene_level(scene, DP__V1__RANK_PHASE__RANK_FINISHED);
    agent_expect(&scene->agent, DP__V1__CONTROLLER_MESSAGE__MESSAGE_RELEASE);
}
