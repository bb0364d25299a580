#include "fleet.h"

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/support/alloc.h>
#include <grpc/support/time.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/clock.h"
#include "dp/method.h"
#include "dp/v1/agent.pb-c.h"

typedef enum tag_kind { TAG_HEADERS, TAG_STATUS, TAG_RECEIVED, TAG_SENT, TAG_COUNT } tag_kind;

struct agent;
struct tag {
    struct agent *agent;
    tag_kind kind;
};

struct agent {
    struct fleet *fleet;
    uint32_t number;
    grpc_call *call;
    struct tag tags[TAG_COUNT];
    grpc_byte_buffer *received, *sending;
    grpc_metadata_array headers, trailers;
    grpc_status_code code;
    grpc_slice details;
    bool over, silent, send_out;
    bool heartbeat_due;
    uint32_t samples_due; // of this many ranks, the last ones
    uint64_t sequence, step;
    int64_t heartbeat_ns, sample_ns; // when the next one is due
    unsigned outstanding;            // tags
};

struct fleet {
    struct fleet_options options;
    grpc_completion_queue *queue;
    grpc_channel **channels;
    struct agent *agents;
    struct fleet_figures figures;
    int64_t next_ns; // before that nothing is due
};

void fleet_name(char name[16], uint32_t agent)
{
    snprintf(name, 16, "node-%05u", agent);
}

static void start(struct agent *agent, tag_kind kind, const grpc_op *op)
{
    grpc_call_error code = grpc_call_start_batch(agent->call, op, 1, &agent->tags[kind], NULL);
    DP_CHECK(code == GRPC_CALL_OK);
    agent->outstanding++;
}

static void send_message(struct agent *agent, const Dp__V1__AgentMessage *message)
{
    size_t length = dp__v1__agent_message__get_packed_size(message);
    grpc_slice slice = grpc_slice_malloc(length);
    dp__v1__agent_message__pack(message, GRPC_SLICE_START_PTR(slice));
    agent->sending = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    grpc_op op = {.op = GRPC_OP_SEND_MESSAGE};
    op.data.send_message.send_message = agent->sending;
    agent->send_out = true;
    start(agent, TAG_SENT, &op);
}

#define RANKS_MAX 1024

// The levels of an agent's ranks, by job.
struct levels {
    Dp__V1__Fence fences[RANKS_MAX];
    char jobs[RANKS_MAX][32];
    Dp__V1__RankLevel ranks[RANKS_MAX], *rank_list[RANKS_MAX];
    Dp__V1__AssignmentLevel items[RANKS_MAX], *list[RANKS_MAX];
    size_t count;
};

static void fill_levels(const struct agent *agent, struct levels *levels)
{
    const struct fleet_options *options = &agent->fleet->options;
    levels->count = 0;
    for (uint32_t i = 0; i < options->ranks_per_agent; i++) {
        uint32_t global = agent->number * options->ranks_per_agent + i;
        uint32_t job = global / options->ranks_per_job;
        if (i == 0 || global % options->ranks_per_job == 0) {
            size_t at = levels->count++;
            dp__v1__fence__init(&levels->fences[at]);
            snprintf(levels->jobs[at], sizeof(levels->jobs[at]), "job-%u", job + 1);
            levels->fences[at].job = levels->jobs[at];
            levels->fences[at].attempt = levels->fences[at].epoch = 1;
            dp__v1__assignment_level__init(&levels->items[at]);
            levels->items[at].fence = &levels->fences[at];
            levels->items[at].ranks = &levels->rank_list[i];
            levels->list[at] = &levels->items[at];
        }
        Dp__V1__RankLevel *rank = &levels->ranks[i];
        dp__v1__rank_level__init(rank);
        rank->rank = global % options->ranks_per_job;
        rank->phase = DP__V1__RANK_PHASE__RANK_RUNNING;
        rank->step = agent->step;
        rank->pid = 1000 + (int64_t)i;
        levels->rank_list[i] = rank;
        levels->items[levels->count - 1].n_ranks++;
    }
}

static void send_hello(struct agent *agent)
{
    static struct levels levels;
    fill_levels(agent, &levels);
    char name[16];
    fleet_name(name, agent->number);
    Dp__V1__Inventory inventory = DP__V1__INVENTORY__INIT;
    inventory.slots = agent->fleet->options.ranks_per_agent + 1;
    inventory.cores = 8;
    inventory.memory_bytes = 1ull << 34;
    inventory.accelerator = (char *)"cpu";
    inventory.data_host = (char *)"127.0.0.1";
    Dp__V1__Hello hello = DP__V1__HELLO__INIT;
    hello.node = name;
    hello.boot_id = (char *)"boot";
    hello.instance = name;
    hello.version = (char *)"0.1.0";
    hello.protocol = DP_PROTOCOL_VERSION;
    hello.inventory = &inventory;
    hello.lease_ms = agent->fleet->options.lease_ms;
    hello.fence_ms = 600000;
    hello.assignments = levels.list;
    hello.n_assignments = levels.count;
    Dp__V1__AgentMessage message = DP__V1__AGENT_MESSAGE__INIT;
    message.message_case = DP__V1__AGENT_MESSAGE__MESSAGE_HELLO;
    message.hello = &hello;
    send_message(agent, &message);
}

static void send_heartbeat(struct agent *agent)
{
    static struct levels levels;
    fill_levels(agent, &levels);
    Dp__V1__Heartbeat heartbeat = DP__V1__HEARTBEAT__INIT;
    heartbeat.sequence = ++agent->sequence;
    heartbeat.assignments = levels.list;
    heartbeat.n_assignments = levels.count;
    Dp__V1__AgentMessage message = DP__V1__AGENT_MESSAGE__INIT;
    message.message_case = DP__V1__AGENT_MESSAGE__MESSAGE_HEARTBEAT;
    message.heartbeat = &heartbeat;
    send_message(agent, &message);
}

static void send_sample(struct agent *agent, uint32_t index)
{
    const struct fleet_options *options = &agent->fleet->options;
    uint32_t global = agent->number * options->ranks_per_agent + index;
    char job[32];
    snprintf(job, sizeof(job), "job-%u", global / options->ranks_per_job + 1);
    Dp__V1__Fence fence = DP__V1__FENCE__INIT;
    fence.job = job;
    fence.attempt = fence.epoch = 1;
    Dp__V1__Utilisation usage = DP__V1__UTILISATION__INIT;
    usage.step = agent->step;
    usage.period_ns = DP_NS_PER_S;
    usage.forward_ns = usage.backward_ns = 400000000;
    usage.idle_ns = 100000000;
    usage.comm_exposed_ns = 100000000;
    usage.live_chunks = usage.peak_chunks = 8;
    usage.live_bytes = usage.peak_bytes = 1 << 30;
    usage.step_ns = 500000000;
    usage.cpu_ns = 900000000;
    usage.tokens_per_s = 12345.5;
    Dp__V1__RankReport report = DP__V1__RANK_REPORT__INIT;
    report.fence = &fence;
    report.rank = global % options->ranks_per_job;
    report.report_case = DP__V1__RANK_REPORT__REPORT_UTILISATION;
    report.utilisation = &usage;
    Dp__V1__AgentMessage message = DP__V1__AGENT_MESSAGE__INIT;
    message.message_case = DP__V1__AGENT_MESSAGE__MESSAGE_REPORT;
    message.report = &report;
    send_message(agent, &message);
    agent->fleet->figures.samples++;
}

static void send_next(struct agent *agent)
{
    if (agent->send_out || agent->over || agent->silent) {
        return;
    }
    if (agent->heartbeat_due) {
        agent->heartbeat_due = false;
        send_heartbeat(agent);
    } else if (agent->samples_due > 0) {
        send_sample(agent, agent->fleet->options.ranks_per_agent - agent->samples_due--);
    }
}

static void receive_next(struct agent *agent)
{
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};
    op.data.recv_message.recv_message = &agent->received;
    start(agent, TAG_RECEIVED, &op);
}

static void on_received(struct agent *agent)
{
    if (agent->received == NULL) {
        return; // the end; the status follows
    }
    grpc_byte_buffer_reader reader;
    DP_CHECK(grpc_byte_buffer_reader_init(&reader, agent->received));
    grpc_slice slice = grpc_byte_buffer_reader_readall(&reader);
    Dp__V1__ControllerMessage *message = dp__v1__controller_message__unpack(
        NULL, GRPC_SLICE_LENGTH(slice), GRPC_SLICE_START_PTR(slice));
    DP_CHECK(message != NULL);
    struct fleet_figures *figures = &agent->fleet->figures;
    figures->welcomed += message->message_case == DP__V1__CONTROLLER_MESSAGE__MESSAGE_WELCOME;
    figures->acked += message->message_case == DP__V1__CONTROLLER_MESSAGE__MESSAGE_ACK;
    dp__v1__controller_message__free_unpacked(message, NULL);
    grpc_slice_unref(slice);
    grpc_byte_buffer_reader_destroy(&reader);
    grpc_byte_buffer_destroy(agent->received);
    agent->received = NULL;
    receive_next(agent);
}

static void on_tag(const struct tag *tag)
{
    struct agent *agent = tag->agent;
    agent->outstanding--;
    if (tag->kind == TAG_SENT) {
        grpc_byte_buffer_destroy(agent->sending);
        agent->sending = NULL;
        agent->send_out = false;
        send_next(agent);
    } else if (tag->kind == TAG_RECEIVED) {
        on_received(agent);
    } else if (tag->kind == TAG_STATUS) {
        agent->over = true;
        agent->fleet->figures.closed++;
    }
}

static void open_agent(struct fleet *fleet, uint32_t number)
{
    struct agent *agent = &fleet->agents[number];
    const struct fleet_options *options = &fleet->options;
    agent->fleet = fleet;
    agent->number = number;
    for (int kind = 0; kind < TAG_COUNT; kind++) {
        agent->tags[kind] = (struct tag){agent, (tag_kind)kind};
    }
    agent->call = grpc_channel_create_call(
        fleet->channels[number % options->connections], NULL, GRPC_PROPAGATE_DEFAULTS, fleet->queue,
        grpc_slice_from_static_string(dp_methods[DP_METHOD_SESSION].name), NULL,
        gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    grpc_op op = {.op = GRPC_OP_RECV_STATUS_ON_CLIENT};
    op.data.recv_status_on_client.trailing_metadata = &agent->trailers;
    op.data.recv_status_on_client.status = &agent->code;
    op.data.recv_status_on_client.status_details = &agent->details;
    start(agent, TAG_STATUS, &op);
    grpc_op headers[] = {
        {.op = GRPC_OP_SEND_INITIAL_METADATA, .flags = GRPC_INITIAL_METADATA_WAIT_FOR_READY},
        {.op = GRPC_OP_RECV_INITIAL_METADATA}};
    headers[1].data.recv_initial_metadata.recv_initial_metadata = &agent->headers;
    DP_CHECK(grpc_call_start_batch(agent->call, headers, 2, &agent->tags[TAG_HEADERS], NULL) ==
             GRPC_CALL_OK);
    agent->outstanding++;
    receive_next(agent);
    send_hello(agent);
    // Spread over the period, as agents that start at different times are.
    int64_t now_ns = dp_clock_monotonic_ns();
    int64_t heartbeat_ns = options->heartbeat_ms * DP_NS_PER_MS;
    int64_t sample_ns = options->sample_ms * DP_NS_PER_MS;
    agent->heartbeat_ns = now_ns + heartbeat_ns * (number + 1) / options->agents;
    agent->sample_ns = now_ns + sample_ns * (number + 1) / options->agents;
}

dp_status fleet_open(const struct fleet_options *options, struct fleet **ret_fleet,
                     struct dp_error *err)
{
    if (options->agents == 0 || options->connections == 0 || options->ranks_per_agent > RANKS_MAX) {
        return dp_fail(err, DP_INVALID, "a fleet of %u agents on %u connections", options->agents,
                       options->connections);
    }
    grpc_init();
    struct fleet *fleet = dp_new(struct fleet);
    fleet->options = *options;
    fleet->queue = grpc_completion_queue_create_for_next(NULL);
    fleet->channels = dp_new_array(grpc_channel *, options->connections);
    for (uint32_t i = 0; i < options->connections; i++) {
        grpc_arg args[] = {
            {.type = GRPC_ARG_INTEGER, .key = (char *)"dp.connection", .value.integer = (int)i},
            {.type = GRPC_ARG_INTEGER, .key = (char *)GRPC_ARG_ENABLE_HTTP_PROXY},
            {.type = GRPC_ARG_INTEGER,
             .key = (char *)GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL,
             .value.integer = 1},
        };
        grpc_channel_args all = {sizeof(args) / sizeof(args[0]), args};
        grpc_channel_credentials *credentials = grpc_insecure_credentials_create();
        fleet->channels[i] = grpc_channel_create(options->address, credentials, &all);
        grpc_channel_credentials_release(credentials);
    }
    fleet->agents = dp_new_array(struct agent, options->agents);
    for (uint32_t i = 0; i < options->agents; i++) {
        open_agent(fleet, i);
    }
    *ret_fleet = fleet;
    return DP_OK;
}

static void look_at(struct agent *agent, int64_t now_ns)
{
    const struct fleet_options *options = &agent->fleet->options;
    if (options->heartbeat_ms > 0 && now_ns >= agent->heartbeat_ns) {
        agent->fleet->figures.skipped += agent->heartbeat_due;
        agent->heartbeat_due = true;
        agent->heartbeat_ns += options->heartbeat_ms * DP_NS_PER_MS;
    }
    if (options->sample_ms > 0 && now_ns >= agent->sample_ns) {
        agent->fleet->figures.skipped += agent->samples_due;
        agent->samples_due = options->ranks_per_agent;
        agent->sample_ns += options->sample_ms * DP_NS_PER_MS;
        agent->step++;
    }
    send_next(agent);
}

void fleet_run(struct fleet *fleet, int64_t ms)
{
    enum { LOOK_MS = 10 };
    int64_t now_ns = dp_clock_monotonic_ns(), end_ns = now_ns + ms * DP_NS_PER_MS;
    while (now_ns < end_ns) {
        if (now_ns >= fleet->next_ns) {
            for (uint32_t i = 0; i < fleet->options.agents; i++) {
                if (!fleet->agents[i].over && !fleet->agents[i].silent) {
                    look_at(&fleet->agents[i], now_ns);
                }
            }
            fleet->next_ns = now_ns + LOOK_MS * DP_NS_PER_MS;
        }
        gpr_timespec wait = gpr_time_from_millis(LOOK_MS, GPR_TIMESPAN);
        gpr_timespec until = gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), wait);
        grpc_event event = grpc_completion_queue_next(fleet->queue, until, NULL);
        if (event.type == GRPC_OP_COMPLETE) {
            on_tag(event.tag);
        }
        now_ns = dp_clock_monotonic_ns();
    }
}

bool fleet_settle(struct fleet *fleet, int64_t timeout_ms)
{
    int64_t end_ns = dp_clock_monotonic_ns() + timeout_ms * DP_NS_PER_MS;
    while (fleet->figures.welcomed < fleet->options.agents && dp_clock_monotonic_ns() < end_ns) {
        fleet_run(fleet, 10);
    }
    return fleet->figures.welcomed >= fleet->options.agents;
}

void fleet_silence(struct fleet *fleet, uint32_t first, uint32_t count)
{
    for (uint32_t i = first; i < first + count && i < fleet->options.agents; i++) {
        fleet->agents[i].silent = true;
    }
}

struct fleet_figures fleet_figures(const struct fleet *fleet)
{
    return fleet->figures;
}

static unsigned outstanding(const struct fleet *fleet)
{
    unsigned count = 0;
    for (uint32_t i = 0; i < fleet->options.agents; i++) {
        count += fleet->agents[i].outstanding;
    }
    return count;
}

void fleet_close(struct fleet *fleet)
{
    if (fleet == NULL) {
        return;
    }
    for (uint32_t i = 0; i < fleet->options.agents; i++) {
        fleet->agents[i].silent = true;
        grpc_call_cancel(fleet->agents[i].call, NULL);
    }
    while (outstanding(fleet) > 0) {
        grpc_event event =
            grpc_completion_queue_next(fleet->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
        struct tag *tag = event.tag;
        tag->agent->outstanding--;
    }
    for (uint32_t i = 0; i < fleet->options.agents; i++) {
        struct agent *agent = &fleet->agents[i];
        grpc_byte_buffer_destroy(agent->sending);
        grpc_byte_buffer_destroy(agent->received);
        grpc_metadata_array_destroy(&agent->headers);
        grpc_metadata_array_destroy(&agent->trailers);
        grpc_slice_unref(agent->details);
        grpc_call_unref(agent->call);
    }
    for (uint32_t i = 0; i < fleet->options.connections; i++) {
        grpc_channel_destroy(fleet->channels[i]);
    }
    grpc_completion_queue_shutdown(fleet->queue);
    while (
        grpc_completion_queue_next(fleet->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL).type !=
        GRPC_QUEUE_SHUTDOWN) {
    }
    grpc_completion_queue_destroy(fleet->queue);
    grpc_shutdown();
    free(fleet->channels);
    free(fleet->agents);
    free(fleet);
}
