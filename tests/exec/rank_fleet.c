#include "rank_fleet.h"

#include <fcntl.h>
#include <libgen.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "detour.h"
#include "dp/alloc.h"
#include "dp/buf.h"
#include "dp/cleanup.h"
#include "dp/planner.h"
#include "dp/wire.h"
#include "dp_test.h"
#include "temporary.h"

#define DEADLINE_MS 60000
#define FLEET_TOKEN 99u

static void write_text(const char *path)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    for (int i = 0; i < 1500; i++) {
        dp_buf_printf(&text, "line %d says that %d is a number\n", i, i * 7 % 100);
    }
    struct dp_error err;
    assert_ok(dp_write_file(path, text.bytes, text.length, &err), &err);
}

void fleet_init(struct fleet *fleet)
{
    *fleet = (struct fleet){0};
    temporary_make(fleet->directory);
    struct dp_job_spec *spec = &fleet->spec;
    dp_job_spec_init(spec);
    DP_COPY_TEXT(spec->name, "rank-test");
    snprintf(spec->data.path, sizeof(spec->data.path), "%s/text", fleet->directory);
    write_text(spec->data.path);
    spec->data.holdout = 0.1;
    snprintf(spec->checkpoint.directory, sizeof(spec->checkpoint.directory), "%s/checkpoints",
             fleet->directory);
    spec->model = (struct dp_model_spec){.name = "tiny",
                                         .layers = 4,
                                         .dense_layers = 1,
                                         .hidden = 32,
                                         .heads = 4,
                                         .kv_heads = 2,
                                         .head_dim = 8,
                                         .ffn = 64,
                                         .experts = 4,
                                         .top_k = 2,
                                         .shared_experts = 1,
                                         .expert_ffn = 24,
                                         .vocabulary = 256,
                                         .rope_theta = 10000,
                                         .norm_eps = 1e-5};
    spec->train.steps = 6;
    spec->train.global_batch = 8;
    spec->train.sequence = 32;
    spec->train.seed = 5;
    spec->optimizer.lr = 1e-2;
    spec->optimizer.warmup_steps = 1;
    spec->parallel.pipeline = 2;
    spec->parallel.expert = 1;
    spec->parallel.data = 1;
    spec->parallel.microbatches = 4;
    spec->parallel.micro_batch_size = 2;
    DP_COPY_TEXT(spec->parallel.schedule, "gpipe");
    spec->resources.device = DP_DEVICE_CPU;
    DP_COPY_TEXT(spec->recovery.policy, "off");
    dp__v1__fence__init(&fleet->fence);
    fleet->fence.job = (char *)"job-1";
    fleet->fence.attempt = 1;
    fleet->fence.epoch = 3;
}

void fleet_deinit(struct fleet *fleet)
{
    for (int32_t i = 0; i < fleet->count; i++) {
        struct fleet_rank *rank = &fleet->ranks[i];
        if (!rank->ended) {
            kill(rank->pid, SIGKILL);
            waitpid(rank->pid, &rank->status, 0);
        }
        dp_link_deinit(&rank->link);
        dp_arena_deinit(&rank->arena);
    }
    if (fleet->detour > 0) {
        kill(fleet->detour, SIGKILL);
        waitpid(fleet->detour, NULL, 0);
    }
    dp_plan_deinit(&fleet->plan);
    temporary_remove(fleet->directory);
}

static void plan_job(struct fleet *fleet)
{
    struct dp_planner_node node = {.name = "node-a", .slots = FLEET_RANKS_MAX, .cores = 2};
    struct dp_planner_resources resources = {.nodes = &node, .nodes_count = 1};
    struct dp_error err;
    assert_ok(dp_planner_plan(&fleet->spec, &resources, NULL, &fleet->plan, &err), &err);
}

char *fleet_program(void)
{
    char self[512];
    ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
    assert_true(length > 0);
    self[length] = '\0';
    return dp_asprintf("%s/dp-rank", dirname(self));
}

static void spawn_rank(struct fleet *fleet, int32_t number)
{
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    DP_AUTO_FREE char *program = fleet_program();
    DP_AUTO_FREE char *name = dp_asprintf("%d", number);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        dup2(pair[1], DP_LINK_RANK_FD);
        if (pair[1] == DP_LINK_RANK_FD) {
            fcntl(pair[1], F_SETFD, 0);
        }
        if (fleet->preload != NULL) {
            setenv("LD_PRELOAD", fleet->preload, 1);
            setenv("ASAN_OPTIONS", "verify_asan_link_order=0", 1);
        }
        execl(program, program, "--control-fd", "3", "--rank", name, (char *)NULL);
        _exit(127);
    }
    close(pair[1]);
    fleet->ranks[number].pid = pid;
    dp_link_init(&fleet->ranks[number].link, pair[0], DP_LINK_OUT_BYTES_MAX);
}

void fleet_spawn(struct fleet *fleet)
{
    plan_job(fleet);
    int32_t world = dp_plan_world(&fleet->plan);
    assert_true(world <= FLEET_RANKS_MAX);
    for (; fleet->count < world; fleet->count++) {
        spawn_rank(fleet, fleet->count);
    }
}

void fleet_order(struct fleet *fleet, int32_t rank, Dp__V1__RankOrder *order)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf bytes = {0};
    dp_wire_pack(&order->base, &bytes);
    struct dp_link_frame frame = {.type = DP_LINK_ORDER,
                                  .rank = (uint32_t)rank,
                                  .payload = bytes.bytes,
                                  .length = bytes.length};
    struct dp_error err;
    assert_ok(dp_link_send(&fleet->ranks[rank].link, &frame, DEADLINE_MS, &err), &err);
}

static Dp__V1__Fence fence_of(const struct fleet *fleet, int32_t rank)
{
    Dp__V1__Fence fence = fleet->fence;
    fence.attempt -= fleet->has_stale_rank && rank == fleet->count - 1;
    return fence;
}

void fleet_prepare(struct fleet *fleet)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf toml = {0};
    dp_job_spec_write(&fleet->spec, &toml);
    for (int32_t i = 0; i < fleet->count; i++) {
        Dp__V1__RankPrepare prepare = DP__V1__RANK_PREPARE__INIT;
        Dp__V1__Fence fence = fence_of(fleet, i);
        prepare.fence = &fence;
        prepare.rank = (uint32_t)i;
        prepare.job_toml.data = (uint8_t *)toml.bytes;
        prepare.job_toml.len = toml.length;
        prepare.plan = dp_wire_plan_to_proto(&fleet->plan, &arena);
        prepare.bind_host = (char *)"127.0.0.1";
        prepare.checkpoint_directory = fleet->directory;
        prepare.token = FLEET_TOKEN + fleet->fence.epoch;
        prepare.takes_state = fleet->from != NULL;
        Dp__V1__RankOrder order = DP__V1__RANK_ORDER__INIT;
        order.order_case = DP__V1__RANK_ORDER__ORDER_PREPARE;
        order.prepare = &prepare;
        fleet_order(fleet, i, &order);
    }
}

// The address with another host and port behind "tcp="; the caller frees it.
static char *make_detour(struct fleet *fleet, const char *address)
{
    char to[DETOUR_ADDRESS_MAX], by[DETOUR_ADDRESS_MAX];
    const char *at = strstr(address, "tcp=");
    assert_non_null(at);
    at += strlen("tcp=");
    size_t length = strcspn(at, ";");
    snprintf(to, sizeof to, "%.*s", (int)length, at);
    fleet->detour = detour_start(to, by);
    return dp_asprintf("%.*s%s%s", (int)(at - address), address, by, at + length);
}

static char *on_node(const struct fleet *fleet, const char *address, int32_t rank,
                     struct dp_arena *arena)
{
    return dp_arena_printf(arena, "%s;node=%c", address, 'a' + rank * fleet->nodes / fleet->count);
}

// The newest word of each rank that holds and has not ended.
static void add_sources(const struct fleet *fleet, struct dp_arena *arena, Dp__V1__RankStart *start)
{
    start->sources = dp_arena_alloc(arena, FLEET_RANKS_MAX * sizeof(*start->sources));
    for (int32_t i = 0; i < fleet->from->count; i++) {
        const Dp__V1__RankReport *held = NULL, *next;
        for (size_t n = 1;
             (next = fleet_report(fleet->from, i, DP__V1__RANK_REPORT__REPORT_HELD, n)) != NULL;
             n++) {
            held = next;
        }
        if (held == NULL || fleet->from->ranks[i].ended) {
            continue;
        }
        Dp__V1__StateSource *source = dp_arena_alloc(arena, sizeof(*source));
        dp__v1__state_source__init(source);
        source->rank = (uint32_t)i;
        source->address = held->held->address;
        start->sources[start->n_sources++] = source;
    }
    start->state_step = fleet->state_step;
    start->state_token = FLEET_TOKEN + fleet->from->fence.epoch;
}

void fleet_start(struct fleet *fleet)
{
    DP_AUTO_FREE char *detour = NULL;
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__Endpoint endpoints[FLEET_RANKS_MAX];
    Dp__V1__Endpoint *pointers[FLEET_RANKS_MAX];
    for (int32_t i = 0; i < fleet->count; i++) {
        dp__v1__endpoint__init(&endpoints[i]);
        endpoints[i].rank = (uint32_t)i;
        endpoints[i].address =
            fleet_await(fleet, i, DP__V1__RANK_REPORT__REPORT_READY, 1)->ready->address;
        pointers[i] = &endpoints[i];
        if (fleet->nodes > 0) {
            endpoints[i].address = on_node(fleet, endpoints[i].address, i, &arena);
        }
    }
    if (fleet->has_detour) {
        char **last = &endpoints[fleet->count - 1].address;
        *last = detour = make_detour(fleet, *last);
    }
    Dp__V1__RankStart start = DP__V1__RANK_START__INIT;
    start.n_endpoints = (size_t)fleet->count;
    start.endpoints = pointers;
    if (fleet->from != NULL) {
        add_sources(fleet, &arena, &start);
    }
    Dp__V1__RankOrder order = DP__V1__RANK_ORDER__INIT;
    order.order_case = DP__V1__RANK_ORDER__ORDER_START;
    order.start = &start;
    for (int32_t i = 0; i < fleet->count; i++) {
        Dp__V1__Fence fence = fence_of(fleet, i);
        start.fence = &fence;
        fleet_order(fleet, i, &order);
    }
}

// Those that have not ended.
static void order_all(struct fleet *fleet, Dp__V1__RankOrder *order)
{
    for (int32_t i = 0; i < fleet->count; i++) {
        if (!fleet->ranks[i].ended) {
            fleet_order(fleet, i, order);
        }
    }
}

void fleet_pause(struct fleet *fleet)
{
    Dp__V1__RankPause pause = DP__V1__RANK_PAUSE__INIT;
    pause.fence = &fleet->fence;
    Dp__V1__RankOrder order = DP__V1__RANK_ORDER__INIT;
    order.order_case = DP__V1__RANK_ORDER__ORDER_PAUSE;
    order.pause = &pause;
    order_all(fleet, &order);
}

void fleet_settle(struct fleet *fleet, int32_t rank, uint64_t step, double grad_norm)
{
    Dp__V1__RankSettle settle = DP__V1__RANK_SETTLE__INIT;
    settle.fence = &fleet->fence;
    settle.step = step;
    settle.grad_norm = grad_norm;
    Dp__V1__RankOrder order = DP__V1__RANK_ORDER__INIT;
    order.order_case = DP__V1__RANK_ORDER__ORDER_SETTLE;
    order.settle = &settle;
    fleet_order(fleet, rank, &order);
}

void fleet_stop(struct fleet *fleet, bool checkpoint)
{
    Dp__V1__RankStop stop = DP__V1__RANK_STOP__INIT;
    stop.fence = &fleet->fence;
    stop.checkpoint = checkpoint;
    Dp__V1__RankOrder order = DP__V1__RANK_ORDER__INIT;
    order.order_case = DP__V1__RANK_ORDER__ORDER_STOP;
    order.stop = &stop;
    order_all(fleet, &order);
}

const Dp__V1__RankReport *fleet_report(const struct fleet *fleet, int32_t rank,
                                       Dp__V1__RankReport__ReportCase kind, size_t number)
{
    const struct fleet_rank *self = &fleet->ranks[rank];
    for (size_t i = 0; i < self->reports_count; i++) {
        if (self->reports[i]->report_case == kind && --number == 0) {
            return self->reports[i];
        }
    }
    return NULL;
}

// Takes one report; false at the end of the connection.
static bool take_report(struct fleet *fleet, int32_t rank)
{
    struct fleet_rank *self = &fleet->ranks[rank];
    struct dp_link_frame frame;
    struct dp_error err;
    dp_status status = dp_link_recv(&self->link, DEADLINE_MS, &frame, &err);
    if (status == DP_UNAVAILABLE) {
        return false;
    }
    assert_ok(status, &err);
    assert_int_equal(frame.type, DP_LINK_REPORT);
    assert_int_equal(frame.rank, rank);
    ProtobufCMessage *message;
    assert_ok(dp_wire_unpack(&dp__v1__rank_report__descriptor, frame.payload, frame.length,
                             &self->arena, &message, &err),
              &err);
    assert_true(self->reports_count < FLEET_REPORTS_MAX);
    self->reports[self->reports_count++] = (Dp__V1__RankReport *)message;
    return true;
}

const Dp__V1__RankReport *fleet_await(struct fleet *fleet, int32_t rank,
                                      Dp__V1__RankReport__ReportCase kind, size_t number)
{
    const Dp__V1__RankReport *report;
    while ((report = fleet_report(fleet, rank, kind, number)) == NULL) {
        if (!take_report(fleet, rank)) {
            const Dp__V1__RankReport *last =
                fleet_report(fleet, rank, DP__V1__RANK_REPORT__REPORT_FINISHED, 1);
            fail_msg("rank %d ended without report %d: %s", rank, (int)kind,
                     last != NULL ? last->finished->error : "no last word");
        }
    }
    return report;
}

int fleet_await_end(struct fleet *fleet, int32_t rank)
{
    struct fleet_rank *self = &fleet->ranks[rank];
    while (take_report(fleet, rank)) {
    }
    if (!self->ended) {
        assert_int_equal(waitpid(self->pid, &self->status, 0), self->pid);
        self->ended = true;
    }
    return self->status;
}

void fleet_run(struct fleet *fleet)
{
    fleet_spawn(fleet);
    fleet_prepare(fleet);
    fleet_start(fleet);
    for (int32_t i = 0; i < fleet->count; i++) {
        const Dp__V1__RankReport *last =
            fleet_await(fleet, i, DP__V1__RANK_REPORT__REPORT_FINISHED, 1);
        if (!last->finished->ok) {
            fail_msg("rank %d: %s", i, last->finished->error);
        }
        assert_int_equal(fleet_await_end(fleet, i), 0);
    }
}
