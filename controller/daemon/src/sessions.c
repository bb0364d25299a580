// Agents' streams: bytes in, core events out.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "calibrations.h"
#include "daemon.h"
#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/hash.h"
#include "dp/log.h"
#include "lessons.h"

struct session {
    uint64_t call;
    bool known;        // said hello
    uint32_t protocol; // that it speaks
    UT_hash_handle hh; // by call
};

static struct session *find(const struct daemon *daemon, uint64_t call)
{
    struct session *session = NULL;
    HASH_FIND(hh, daemon->sessions, &call, sizeof(call), session);
    return session;
}

bool session_known(const struct daemon *daemon, uint64_t call)
{
    const struct session *session = find(daemon, call);
    return session != NULL && session->known;
}

uint32_t session_protocol(const struct daemon *daemon, uint64_t call)
{
    const struct session *session = find(daemon, call);
    return session == NULL ? DP_PROTOCOL_VERSION : session->protocol;
}

void session_send(struct daemon *daemon, uint64_t call, Dp__V1__ControllerMessage *message)
{
    dp_status status = dp_rpc_call_send(daemon->server, call, &message->base);
    if (status == DP_TOO_LARGE) {
        dp_log_warn("agent.too_slow", "session=%llu", (unsigned long long)call);
        dp_rpc_call_fail(daemon->server, call, DP_UNAVAILABLE,
                         "the agent does not read what it is sent: connect again");
    }
}

static struct dp_fence take_fence(const Dp__V1__Fence *from)
{
    struct dp_fence fence = {{0}, 0, 0};
    if (from != NULL) {
        DP_COPY_TEXT(fence.job, from->job);
        fence.attempt = from->attempt;
        fence.epoch = from->epoch;
    }
    return fence;
}

static void take_ready(const Dp__V1__RankReady *from, struct dp_rank_ready *ready)
{
    DP_COPY_TEXT(ready->address, from->address);
    ready->corpus_bytes = from->corpus_bytes;
    ready->corpus_hash = from->corpus_hash;
    ready->corpus_tokens = from->corpus_tokens;
    ready->parameters = from->parameters;
    ready->resumed_step = from->resumed_step;
    ready->unigram_entropy = isfinite(from->unigram_entropy) ? from->unigram_entropy : 0;
}

static void take_finished(const Dp__V1__RankFinished *from, struct dp_rank_finished *finished)
{
    finished->ok = from->ok;
    finished->not_finite = from->not_finite;
    finished->peer_lost = from->peer_lost;
    finished->node_fault = from->node_fault;
    finished->step = from->step;
    finished->holdout_loss = from->holdout_loss;
    finished->holdout_known = from->holdout_known;
    DP_COPY_TEXT(finished->error, from->error);
    DP_COPY_TEXT(finished->action, from->action);
}

static void take_held(const Dp__V1__RankHeld *from, struct dp_rank_held *held)
{
    held->step = from->step;
    held->norm_known = from->norm_known;
    held->gradients_whole = from->gradients_whole;
    held->grad_norm = from->grad_norm;
    DP_COPY_TEXT(held->address, from->address);
    DP_COPY_TEXT(held->why, from->why);
}

static void take_rank_level(const Dp__V1__RankLevel *from, struct dp_rank_level *level)
{
    level->rank = from->rank;
    level->phase = (dp_rank_phase)from->phase;
    level->step = from->step;
    level->pid = from->pid;
    level->exit_status = from->exit_status;
    level->signal = from->signal;
    level->stopped = from->stopped;
    level->unkillable = from->unkillable;
    level->ready_known = from->ready != NULL;
    if (level->ready_known) {
        take_ready(from->ready, &level->ready);
    }
    level->finished_known = from->finished != NULL;
    if (level->finished_known) {
        take_finished(from->finished, &level->finished);
    }
    level->held_known = from->held != NULL;
    if (level->held_known) {
        take_held(from->held, &level->held);
    }
}

static struct dp_levels take_levels(uint64_t session, Dp__V1__AssignmentLevel *const *from,
                                    size_t count, struct dp_arena *arena)
{
    struct dp_assignment_level *levels = arena_take(arena, count * sizeof(*levels));
    for (size_t i = 0; i < count; i++) {
        struct dp_rank_level *ranks = arena_take(arena, from[i]->n_ranks * sizeof(*ranks));
        for (size_t k = 0; k < from[i]->n_ranks; k++) {
            take_rank_level(from[i]->ranks[k], &ranks[k]);
        }
        levels[i] = (struct dp_assignment_level){
            .fence = take_fence(from[i]->fence),
            .ranks = ranks,
            .ranks_count = from[i]->n_ranks,
            .keeper_lost = from[i]->keeper_lost,
            .keeper_signal = from[i]->keeper_signal,
            .stopping = from[i]->stopping,
            .error = from[i]->error,
        };
    }
    return (struct dp_levels){.session = session, .assignments = levels, .count = count};
}

static void take_inventory(const Dp__V1__Inventory *from, struct dp_node_record *node)
{
    if (from == NULL) {
        return;
    }
    node->slots = from->slots < DP_NODE_SLOTS_MAX ? from->slots : DP_NODE_SLOTS_MAX;
    node->cores = from->cores;
    node->memory_bytes = from->memory_bytes;
    DP_COPY_TEXT(node->accelerator, from->accelerator);
    DP_COPY_TEXT(node->data_host, from->data_host);
    DP_COPY_TEXT(node->place, from->place);
    // Borrowed: the core copies it.
    node->profile.bytes = (char *)from->profile_json.data;
    node->profile.length = from->profile_json.len;
    if (from->hardware != NULL) { // the caller's to free
        size_t length = protobuf_c_message_get_packed_size(&from->hardware->base);
        protobuf_c_message_pack(&from->hardware->base, dp_buf_extend(&node->hardware, length));
    }
}

// Before anything of it is looked at.
static bool speaks_too_differently(struct daemon *daemon, const struct session *session,
                                   const Dp__V1__Hello *hello)
{
    if (hello->protocol >= DP_PROTOCOL_OLDEST && hello->protocol <= DP_PROTOCOL_VERSION) {
        return false;
    }
    char text[DP_TEXT_MAX];
    snprintf(
        text, sizeof(text),
        "agent %s is version %s (protocol %u), this controller is %s (protocol %u, agents from "
        "%u on): install the same version on both, the controller first",
        hello->node, hello->version, hello->protocol, DP_VERSION, DP_PROTOCOL_VERSION,
        DP_PROTOCOL_OLDEST);
    dp_log_warn("agent.other_version", "node=%s version=%s", hello->node, hello->version);
    dp_rpc_call_fail(daemon->server, session->call, DP_UNSUPPORTED, text);
    return true;
}

static void on_hello(struct daemon *daemon, struct session *session, const Dp__V1__Hello *hello,
                     struct dp_arena *arena)
{
    if (speaks_too_differently(daemon, session, hello)) {
        return;
    }
    if (hello->node[0] == '\0' || strlen(hello->node) >= DP_NAME_MAX) {
        dp_rpc_call_fail(daemon->server, session->call, DP_INVALID,
                         "a node's name has 1 to 63 characters");
        return;
    }
    struct dp_node_record node = {.lease_ms = hello->lease_ms, .fence_ms = hello->fence_ms};
    DP_COPY_TEXT(node.name, hello->node);
    DP_COPY_TEXT(node.boot_id, hello->boot_id);
    DP_COPY_TEXT(node.instance, hello->instance);
    DP_COPY_TEXT(node.version, hello->version);
    dp_rpc_call_peer(daemon->server, session->call, node.address, sizeof(node.address));
    take_inventory(hello->inventory, &node);
    session->known = true;
    session->protocol = hello->protocol;
    struct dp_core_event event = {.kind = DP_EVENT_HELLO, .hello.node = &node};
    event.hello.protocol = hello->protocol;
    event.hello.sent_ns = hello->sent_ns;
    event.hello.notes = hello->notes;
    event.hello.notes_count = hello->n_notes;
    event.hello.calibration_error =
        hello->inventory == NULL ? "" : hello->inventory->calibration_error;
    event.hello.levels =
        take_levels(session->call, hello->assignments, hello->n_assignments, arena);
    daemon_step(daemon, &event);
    dp_buf_deinit(&node.hardware);
}

static void take_usage(const Dp__V1__Utilisation *from, struct dp_usage *usage)
{
    *usage = (struct dp_usage){
        .step = from->step,
        .period_ns = from->period_ns,
        .forward_ns = from->forward_ns,
        .backward_ns = from->backward_ns,
        .weight_ns = from->weight_ns,
        .pair_ns = from->pair_ns,
        .optimizer_ns = from->optimizer_ns,
        .comm_exposed_ns = from->comm_exposed_ns,
        .idle_ns = from->idle_ns,
        .step_ns = from->step_ns,
        .cpu_ns = from->cpu_ns,
        .evaluation_ns = from->evaluation_ns,
        .live_chunks = from->live_chunks,
        .peak_chunks = from->peak_chunks,
        .live_bytes = from->live_bytes,
        .peak_bytes = from->peak_bytes,
        .tokens_per_s = isfinite(from->tokens_per_s) ? from->tokens_per_s : 0,
    };
}

// Of one step of one rank; sums over a run of steps fit.
#define COMM_NS_MAX (86400 * DP_NS_PER_S)

// Kinds that this program does not know, and times that make no sense, are left out.
static void take_comm(const Dp__V1__StepDone *from, struct dp_rank_comm *ret_comm)
{
    for (size_t i = 0; i < from->n_comm; i++) {
        const Dp__V1__StepComm *comm = from->comm[i];
        for (int kind = 0; kind < DP_RANK_COMM_COUNT; kind++) {
            if (strcmp(comm->kind, dp_rank_comm_kind_text((dp_rank_comm_kind)kind)) == 0 &&
                comm->exposed_ns >= 0 && comm->total_ns >= comm->exposed_ns &&
                comm->total_ns <= COMM_NS_MAX) {
                ret_comm[kind] = (struct dp_rank_comm){comm->total_ns, comm->exposed_ns};
            }
        }
    }
}

static uint64_t bytes_of(double bytes)
{
    return bytes > 0 && bytes < 0x1p53 ? (uint64_t)bytes : 0;
}

static void take_memory(const Dp__V1__MemoryParts *from, struct dp_rank_memory_parts *ret_memory)
{
    if (from != NULL) {
        *ret_memory = (struct dp_rank_memory_parts){
            bytes_of(from->weights), bytes_of(from->gradients), bytes_of(from->optimizer),
            bytes_of(from->activations), bytes_of(from->exchange)};
    }
}

static void take_step(const Dp__V1__StepDone *from, struct dp_arena *arena,
                      struct dp_step_report *step)
{
    bool known = from->loss_known_case == DP__V1__STEP_DONE__LOSS_KNOWN_LOSS;
    step->row = (struct dp_step_record){
        .step = from->step,
        .loss = known ? from->loss : 0,
        .loss_known = known && isfinite(from->loss),
        .step_ns = from->step_ns,
        .tokens = from->tokens,
        .lr = isfinite(from->lr) ? from->lr : 0,
        .grad_norm = isfinite(from->grad_norm) ? from->grad_norm : 0,
        .time_ns = from->start_ns + from->step_ns,
    };
    step->busy_ns = from->busy_ns;
    step->bubble_ns = from->bubble_ns;
    step->exchange_ns = from->exchange_ns;
    step->grad_sync_ns = from->grad_sync_ns;
    step->optimizer_ns = from->optimizer_ns;
    take_comm(from, step->comm);
    step->peak_chunks = from->peak_chunks;
    step->peak_bytes = from->peak_bytes;
    take_memory(from->memory, &step->memory);
    if (from->rebalance != NULL) {
        const Dp__V1__Rebalance *moves = from->rebalance;
        step->rebalance = (struct dp_placement_report){
            true,         moves->applied, moves->layers,      moves->moved_layers,
            moves->moved, moves->bytes,   moves->skew_before, moves->skew_after};
    }
    step->load = (struct dp_rank_load){from->expert_skew, from->skew_layer, from->skew_expert,
                                       from->rank_load};
    step->times = straggler_times(from, arena);
    if (from->n_spans > 0) {
        size_t length = protobuf_c_message_get_packed_size(&from->base);
        uint8_t *packed = arena_take(arena, length);
        protobuf_c_message_pack(&from->base, packed);
        step->trace = packed;
        step->trace_length = length;
    }
}

static bool take_report(const Dp__V1__RankReport *from, struct dp_arena *arena,
                        struct dp_report *report)
{
    switch (from->report_case) {
    case DP__V1__RANK_REPORT__REPORT_READY:
        report->kind = DP_REPORT_READY;
        take_ready(from->ready, &report->ready);
        return true;
    case DP__V1__RANK_REPORT__REPORT_UTILISATION:
        report->kind = DP_REPORT_USAGE;
        take_usage(from->utilisation, &report->usage);
        return true;
    case DP__V1__RANK_REPORT__REPORT_STEP:
        report->kind = DP_REPORT_STEP;
        take_step(from->step, arena, &report->step);
        return true;
    case DP__V1__RANK_REPORT__REPORT_EVAL:
        report->kind = DP_REPORT_EVAL;
        report->eval.step = from->eval->step;
        report->eval.loss = from->eval->loss;
        return true;
    case DP__V1__RANK_REPORT__REPORT_CHECKPOINT:
        report->kind = DP_REPORT_CHECKPOINT;
        report->checkpoint.step = from->checkpoint->step;
        report->checkpoint.request = from->checkpoint->request;
        report->checkpoint.path = from->checkpoint->path;
        report->checkpoint.error = from->checkpoint->error;
        return true;
    case DP__V1__RANK_REPORT__REPORT_PROBE:
        report->kind = DP_REPORT_PROBE;
        report->probe = straggler_probe(from->probe, arena);
        return true;
    case DP__V1__RANK_REPORT__REPORT_FINISHED:
        report->kind = DP_REPORT_FINISHED;
        take_finished(from->finished, &report->finished);
        return true;
    default:
        return false;
    }
}

static void on_report(struct daemon *daemon, uint64_t call, const Dp__V1__RankReport *from,
                      struct dp_arena *arena)
{
    struct dp_core_event event = {.kind = DP_EVENT_REPORT};
    event.report.session = call;
    event.report.fence = take_fence(from->fence);
    event.report.rank = from->rank;
    if (take_report(from, arena, &event.report)) {
        if (event.report.kind == DP_REPORT_STEP) {
            lessons_step(daemon, &event.report);
        }
        daemon_step(daemon, &event);
    }
}

static void on_inventory(struct daemon *daemon, uint64_t call, const Dp__V1__Inventory *inventory)
{
    struct dp_node_record node = {0};
    take_inventory(inventory, &node);
    struct dp_core_event event = {.kind = DP_EVENT_INVENTORY,
                                  .inventory = {call, &node, inventory->calibration_error}};
    daemon_step(daemon, &event);
    dp_buf_deinit(&node.hardware);
}

static void dispatch(struct daemon *daemon, struct session *session,
                     const Dp__V1__AgentMessage *message, struct dp_arena *arena)
{
    struct dp_core_event event = {0};
    switch (message->message_case) {
    case DP__V1__AGENT_MESSAGE__MESSAGE_HELLO:
        on_hello(daemon, session, message->hello, arena);
        break;
    case DP__V1__AGENT_MESSAGE__MESSAGE_HEARTBEAT:
        event.kind = DP_EVENT_HEARTBEAT;
        event.levels = take_levels(session->call, message->heartbeat->assignments,
                                   message->heartbeat->n_assignments, arena);
        event.levels.sequence = message->heartbeat->sequence;
        event.levels.acked = message->heartbeat->acked;
        daemon_step(daemon, &event);
        break;
    case DP__V1__AGENT_MESSAGE__MESSAGE_LEVEL:
        event.kind = DP_EVENT_LEVEL;
        event.levels = take_levels(session->call, &message->level, 1, arena);
        daemon_step(daemon, &event);
        break;
    case DP__V1__AGENT_MESSAGE__MESSAGE_REPORT:
        on_report(daemon, session->call, message->report, arena);
        break;
    case DP__V1__AGENT_MESSAGE__MESSAGE_LOG:
        logs_chunk(daemon, message->log);
        break;
    case DP__V1__AGENT_MESSAGE__MESSAGE_CALIBRATION:
        calibrations_level(daemon, session->call, message->calibration);
        break;
    case DP__V1__AGENT_MESSAGE__MESSAGE_INVENTORY:
        on_inventory(daemon, session->call, message->inventory);
        break;
    default:
        break;
    }
}

static void on_open(void *context, uint64_t call)
{
    struct daemon *daemon = context;
    struct session *session = dp_new(struct session);
    session->call = call;
    HASH_ADD(hh, daemon->sessions, call, sizeof(session->call), session);
}

static void on_message(void *context, uint64_t call, const void *bytes, size_t length)
{
    struct daemon *daemon = context;
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    struct session *session = find(daemon, call);
    const Dp__V1__AgentMessage *message =
        service_unpack(daemon, call, &dp__v1__agent_message__descriptor, bytes, length, &arena);
    if (session == NULL || message == NULL || daemon->stopping) {
        return;
    }
    if (!session->known && message->message_case != DP__V1__AGENT_MESSAGE__MESSAGE_HELLO) {
        dp_rpc_call_fail(daemon->server, call, DP_INVALID, "a session begins with a hello");
        return;
    }
    dispatch(daemon, session, message, &arena);
}

static void on_closed(void *context, uint64_t call, bool cancelled)
{
    (void)cancelled;
    struct daemon *daemon = context;
    DP_AUTO_FREE struct session *session = find(daemon, call);
    if (session == NULL) {
        return;
    }
    HASH_DELETE(hh, daemon->sessions, session);
    if (session->known && !daemon->stopping) {
        struct dp_core_event event = {.kind = DP_EVENT_SESSION_CLOSED, .session = call};
        daemon_step(daemon, &event);
    }
}

const struct dp_rpc_handler session_handler = {
    .method = DP_METHOD_SESSION,
    .on_open = on_open,
    .on_message = on_message,
    .on_closed = on_closed,
};
