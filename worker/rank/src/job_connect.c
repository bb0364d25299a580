// From a prepared rank to one of a connected world: links, and the threads that move bytes.
#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/checkpoint.h"
#include "dp/clock.h"
#include "dp/limits.h"
#include "dp/log.h"
#include "job.h"

// The controller has seen every rank ready, so peers are there; this is for a lost one.
#define CONNECT_NS (60 * DP_NS_PER_S)
#define CLOSE_NS (10 * DP_NS_PER_S)
#define EXCHANGE_WINDOW 0

static void *run_progress(void *argument)
{
    dp_transport_progress(argument);
    return NULL;
}

static void *run_comm(void *argument)
{
    dp_alltoall_progress(argument);
    return NULL;
}

static void *run_saver(void *argument)
{
    dp_saver_run(argument);
    return NULL;
}

static dp_status link_peers(struct job *job, const Dp__V1__RankStart *start, struct dp_error *err)
{
    int32_t world = dp_plan_world(&job->plan);
    DP_AUTO_FREE const char **addresses = dp_new_array(const char *, (size_t)world);
    for (size_t i = 0; i < start->n_endpoints; i++) {
        if (start->endpoints[i]->rank < (uint32_t)world) {
            addresses[start->endpoints[i]->rank] = start->endpoints[i]->address;
        }
    }
    for (int32_t i = 0; i < world; i++) {
        if (addresses[i] == NULL) {
            return dp_fail(err, DP_INVALID, "the order to start names no address of rank %d", i);
        }
    }
    return dp_transport_connect(job->transport, addresses, dp_clock_monotonic_ns() + CONNECT_NS,
                                err);
}

// The ranks with which this one shares experts, and their nodes, numbered as they are met.
static void find_members(const struct job *job, int32_t *ret_ranks, int32_t *ret_node_of)
{
    const struct dp_plan *plan = &job->plan;
    int32_t position = (int32_t)job->rank % plan->pipeline;
    int32_t block = (int32_t)job->rank / plan->pipeline / plan->expert;
    DP_AUTO_FREE int32_t *world_node_of = dp_new_array(int32_t, (size_t)dp_plan_world(plan));
    dp_transport_nodes(job->transport, world_node_of);
    int32_t nodes = 0;
    for (int32_t i = 0; i < plan->expert; i++) {
        ret_ranks[i] = (block * plan->expert + i) * plan->pipeline + position;
        int32_t earlier = 0;
        while (world_node_of[ret_ranks[earlier]] != world_node_of[ret_ranks[i]]) {
            earlier++;
        }
        ret_node_of[i] = earlier < i ? ret_node_of[earlier] : nodes++;
    }
}

// Over how many nodes the ranks of every EP group lie in equal shares, in order; 1 where one does
// not. All ranks see the same nodes, so all find the same answer.
static int32_t expert_nodes(const struct job *job)
{
    const struct dp_plan *plan = &job->plan;
    const int32_t world = dp_plan_world(plan), groups = world / plan->expert;
    DP_AUTO_FREE int32_t *node_of = dp_new_array(int32_t, (size_t)world);
    dp_transport_nodes(job->transport, node_of);
    int32_t share = plan->expert; // ranks of a node
    for (int32_t g = 0; g < groups; g++) {
        const int32_t position = g % plan->pipeline, block = g / plan->pipeline;
        const int32_t first = block * plan->expert * plan->pipeline + position;
        int32_t run = 1;
        while (run < plan->expert && node_of[first + run * plan->pipeline] == node_of[first]) {
            run++;
        }
        share = run < share ? run : share;
    }
    for (int32_t i = 0; i < world; i++) {
        const int32_t place = i / plan->pipeline % plan->expert;
        const int32_t head = i - place % share * plan->pipeline;
        const bool is_new = place > 0 && place % share == 0;
        if (node_of[i] != node_of[head] || (is_new && node_of[i - plan->pipeline] == node_of[i])) {
            return 1;
        }
    }
    return plan->expert % share == 0 ? plan->expert / share : 1;
}

// Whether experts may come to lie in other slots than at the start.
static dp_status may_move(const struct job *job, bool *ret_moves, struct dp_error *err)
{
    dp_expert_placement placement = DP_EXPERT_PLACEMENT_OFF;
    dp_status status =
        dp_expert_placement_parse(job->spec.parallel.expert_placement, &placement, err);
    *ret_moves = placement == DP_EXPERT_PLACEMENT_AUTO;
    return status;
}

// Nodes that the groups of a group-limited router can reach; 0 = no promise. When experts move,
// groups stay together where they divide over the nodes (dp/experts.h).
static int32_t limit_nodes(const struct job *job, const int32_t *node_of, bool moves)
{
    const struct dp_model_spec *model = &job->spec.model;
    const int32_t groups = model->expert_groups, top = model->top_groups;
    const int32_t limit = dp_alltoall_limited_nodes(
        job->plan.expert, node_of, job_expert_slots(job), model->experts, groups, top);
    if (limit == 0 || !moves) {
        return limit;
    }
    const int32_t nodes = expert_nodes(job);
    return nodes == 1 || groups % nodes != 0 ? 0 : top > limit ? top : limit;
}

static dp_status open_exchange(struct job *job, struct dp_error *err)
{
    const struct dp_plan *plan = &job->plan;
    const struct dp_model_spec *model = &job->spec.model;
    if (job->device == NULL || plan->expert == 1 || model->experts == 0) {
        return DP_OK;
    }
    DP_AUTO_FREE int32_t *ranks = dp_new_array(int32_t, (size_t)plan->expert);
    DP_AUTO_FREE int32_t *node_of = dp_new_array(int32_t, (size_t)plan->expert);
    find_members(job, ranks, node_of);
    bool moves;
    dp_status status = may_move(job, &moves, err);
    if (status != DP_OK) {
        return status;
    }
    struct dp_alltoall_config config = {.transport = job->transport,
                                        .window = EXCHANGE_WINDOW,
                                        .ranks = ranks,
                                        .count = plan->expert,
                                        .node_of = node_of,
                                        .element = job->device->element,
                                        .experts = job_expert_slots(job),
                                        .top_k = model->top_k,
                                        .hidden = model->hidden,
                                        .tokens_max = (int64_t)plan->micro_batch_size *
                                                      job->spec.train.sequence,
                                        .limited_nodes = limit_nodes(job, node_of, moves),
                                        .epoch = job->attempt,
                                        .blocked_ms = job->blocked_ms};
    status = dp_alltoall_open(&config, dp_clock_monotonic_ns() + CONNECT_NS, &job->alltoall, err);
    if (status != DP_OK) {
        return dp_fail_in(err, "the exchange between %d expert ranks", plan->expert);
    }
    DP_CHECK(pthread_create(&job->comm, NULL, run_comm, job->alltoall) == 0);
    struct dp_alltoall_stats stats;
    dp_alltoall_stats(job->alltoall, &stats, NULL);
    dp_device_count(job->device, DP_MEMORY_WINDOWS, (int64_t)stats.window_bytes);
    dp_trainer_set_expert_nodes(job->trainer, expert_nodes(job));
    dp_exec_set_exchanger(dp_trainer_exec(job->trainer), dp_alltoall_exchanger(job->alltoall));
    return DP_OK;
}

dp_status job_connect(struct job *job, const Dp__V1__RankStart *start, struct dp_error *err)
{
    dp_status status = link_peers(job, start, err);
    if (status != DP_OK) {
        return status;
    }
    DP_CHECK(pthread_create(&job->progress, NULL, run_progress, job->transport) == 0);
    job->is_connected = true;
    struct dp_saver *saver = dp_trainer_saver(job->trainer);
    if (saver != NULL) {
        DP_CHECK(pthread_create(&job->saving, NULL, run_saver, saver) == 0);
        job->is_saving = true;
    }
    status = open_exchange(job, err);
    return status == DP_OK ? job_take(job, start, err) : status;
}

static void say_not_closed(const struct job *job, const struct dp_error *err)
{
    char reason[DP_ERROR_MESSAGE_MAX];
    dp_log_warn("rank.not_closed", "rank=%u reason=%s", job->rank,
                dp_log_quote(reason, sizeof reason, err->message));
}

void job_disconnect(struct job *job)
{
    struct dp_error err;
    if (job->is_saving) {
        dp_saver_close(dp_trainer_saver(job->trainer));
    }
    if (job->alltoall != NULL) {
        if (dp_alltoall_close(job->alltoall, dp_clock_monotonic_ns() + CLOSE_NS, &err) != DP_OK) {
            say_not_closed(job, &err);
        }
        pthread_join(job->comm, NULL);
    }
    if (job->is_connected) {
        if (dp_transport_close(job->transport, dp_clock_monotonic_ns() + CLOSE_NS, &err) != DP_OK) {
            say_not_closed(job, &err);
        }
        pthread_join(job->progress, NULL);
    }
    // Last: its thread may still be removing old checkpoints, which no peer is to wait for.
    if (job->is_saving) {
        pthread_join(job->saving, NULL);
    }
}
