// Plans on the nodes that are there: for jobs of the queue, and for ValidateJob.
#include <stdlib.h>
#include <string.h>

#include "lessons.h"
#include "planning.h"

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/log.h"

struct planning {
    struct task task;
    uint64_t job; // 0 = the call's
    struct dp_job_spec spec;
    struct plan_nodes nodes;
    struct dp_plan plan;
};

dp_status planning_parse(const void *toml, size_t length, const char *file,
                         struct dp_job_spec *ret_spec, struct dp_error *err)
{
    struct dp_diags diags;
    dp_diags_init(&diags, file[0] == '\0' ? "job.toml" : file, toml, length);
    dp_status status = dp_job_spec_parse(toml, length, NULL, &diags, ret_spec, err);
    if (status == DP_INVALID && diags.count > 0) {
        status = dp_diags_status(&diags, err);
    }
    if (status == DP_OK) {
        status = dp_planner_check_schedule(ret_spec, err);
    }
    dp_diags_deinit(&diags);
    return status;
}

static void run(struct task *task)
{
    struct planning *planning = (struct planning *)task;
    if (task->error.status != DP_OK) {
        return; // the job file could not be read
    }
    struct dp_planner_resources resources = plan_nodes_resources(&planning->nodes);
    struct dp_planner_options options = {.stop = task_asked_to_stop, .context = task};
    dp_planner_plan(&planning->spec, &resources, &options, &planning->plan, &task->error);
}

static void planning_free(struct task *task)
{
    struct planning *planning = (struct planning *)task;
    dp_plan_deinit(&planning->plan);
    plan_nodes_deinit(&planning->nodes);
    free(planning);
}

void plan_nodes_number(const struct plan_nodes *nodes, struct dp_plan *plan)
{
    int32_t world = dp_plan_world(plan);
    for (int32_t r = 0; r < world; r++) {
        struct dp_plan_rank *rank = &plan->ranks[r];
        size_t n = 0;
        while (n < nodes->count && strcmp(nodes->nodes[n].name, rank->node) != 0) {
            n++;
        }
        DP_CHECK(n < nodes->count && rank->slot < nodes->nodes[n].slots);
        rank->slot = (int32_t)nodes->slots[n][rank->slot];
    }
}

static void tell_core(struct task *task)
{
    struct planning *planning = (struct planning *)task;
    struct daemon *daemon = task->daemon;
    if (task->error.status != DP_OK) {
        struct dp_core_event event = {.kind = DP_EVENT_PLAN_FAILED,
                                      .plan_failed.job = planning->job};
        event.plan_failed.error = task->error;
        daemon_step(daemon, &event);
        return;
    }
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf packed = {0};
    plan_nodes_number(&planning->nodes, &planning->plan);
    dp_wire_pack(&dp_wire_plan_to_proto(&planning->plan, &arena)->base, &packed);
    size_t world = (size_t)dp_plan_world(&planning->plan);
    struct dp_slot *slots = arena_take(&arena, world * sizeof(*slots));
    for (size_t i = 0; i < world; i++) {
        const struct dp_plan_rank *rank = &planning->plan.ranks[i];
        slots[i] = (struct dp_slot){.node = rank->node, .slot = (uint32_t)rank->slot};
    }
    struct dp_core_event event = {
        .kind = DP_EVENT_PLAN_DONE,
        .plan_done = {planning->job, packed.bytes, packed.length, slots, world},
    };
    lessons_planned(daemon, planning->job, &planning->nodes, &planning->spec, &planning->plan);
    daemon_step(daemon, &event);
}

static void tell_caller(struct task *task)
{
    struct planning *planning = (struct planning *)task;
    if (task->error.status != DP_OK) {
        call_fail_error(task->daemon, task->call, &task->error);
        return;
    }
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__ValidateJobResponse response = DP__V1__VALIDATE_JOB_RESPONSE__INIT;
    response.plan = dp_wire_plan_to_proto(&planning->plan, &arena);
    call_reply(task->daemon, task->call, &response.base);
}

static void take_profile(struct plan_nodes *nodes, const struct dp_node_record *node)
{
    DP_AUTO_JSON json_t *json = NULL;
    struct dp_error err = {0};
    if (nodes->profile_known || node->profile.length == 0) {
        return;
    }
    if (dp_json_parse(node->profile.bytes, node->profile.length, DP_PROFILE_BYTES_MAX, "profile",
                      &json, &err) != DP_OK ||
        dp_profile_from_json(json, &nodes->profile, &err) != DP_OK) {
        dp_log_warn("profile.unreadable", "node=%s reason=\"%s\"", node->name, err.message);
        return;
    }
    nodes->profile_known = true;
    DP_COPY_TEXT(nodes->profile_node, node->name);
}

void plan_nodes_init(struct plan_nodes *nodes, size_t count_max)
{
    nodes->nodes = dp_new_array(struct dp_planner_node, count_max);
    nodes->slots = dp_new_array(uint32_t *, count_max);
}

void plan_nodes_add(struct plan_nodes *nodes, const struct dp_node_record *node, uint32_t slots,
                    const uint32_t *numbers)
{
    if (slots == 0) {
        return;
    }
    uint32_t *own = dp_new_array(uint32_t, slots);
    for (uint32_t i = 0; i < slots; i++) {
        own[i] = numbers == NULL ? i : numbers[i];
    }
    nodes->slots[nodes->count] = own;
    struct dp_planner_node *to = &nodes->nodes[nodes->count++];
    DP_COPY_TEXT(to->name, node->name);
    DP_COPY_TEXT(to->host, node->boot_id);
    to->slots = (int32_t)slots;
    to->cores = (int32_t)node->cores;
    to->memory_bytes = node->slots > 0 ? (double)node->memory_bytes / node->slots : 0;
    take_profile(nodes, node);
}

void plan_nodes_connected(struct daemon *daemon, struct plan_nodes *ret_nodes)
{
    size_t count = dp_core_nodes_count(daemon->core);
    DP_AUTO_FREE struct dp_node_view *views = dp_new_array(struct dp_node_view, count);
    dp_core_node_views(daemon->core, views);
    plan_nodes_init(ret_nodes, count);
    for (size_t i = 0; i < count; i++) {
        if (views[i].state == DP_NODE_READY || views[i].state == DP_NODE_REGISTERING) {
            plan_nodes_add(ret_nodes, views[i].node, views[i].node->slots, NULL);
        }
    }
    lessons_apply(daemon, ret_nodes);
}

void plan_nodes_deinit(struct plan_nodes *nodes)
{
    for (size_t i = 0; nodes->slots != NULL && i < nodes->count; i++) {
        free(nodes->slots[i]);
    }
    free(nodes->slots);
    free(nodes->nodes);
    *nodes = (struct plan_nodes){0};
}

struct dp_planner_resources plan_nodes_resources(const struct plan_nodes *nodes)
{
    return (struct dp_planner_resources){
        .nodes = nodes->nodes,
        .nodes_count = nodes->count,
        .profile = nodes->profile_known ? &nodes->profile : NULL,
    };
}

static struct planning *planning_new(struct daemon *daemon, task_kind kind, uint64_t call)
{
    struct planning *planning = dp_new(struct planning);
    planning->task = (struct task){
        .daemon = daemon,
        .kind = kind,
        .call = call,
        .run = run,
        .finish = call == 0 ? tell_core : tell_caller,
        .free = planning_free,
    };
    return planning;
}

void planning_start(struct daemon *daemon, uint64_t number, const struct dp_free_slots *nodes,
                    size_t nodes_count)
{
    struct planning *planning = planning_new(daemon, TASK_JOB, 0);
    planning->job = number;
    plan_nodes_init(&planning->nodes, nodes_count);
    const struct dp_job_record *job = dp_core_job(daemon->core, number, NULL, NULL);
    planning_parse(job->job_toml.bytes, job->job_toml.length, job->id, &planning->spec,
                   &planning->task.error);
    for (size_t i = 0; i < nodes_count; i++) {
        plan_nodes_add(&planning->nodes, nodes[i].node, nodes[i].slots_free, nodes[i].slots);
    }
    lessons_apply(daemon, &planning->nodes);
    task_submit(&planning->task);
}

void planning_validate(struct daemon *daemon, uint64_t call, const void *toml, size_t length,
                       const char *file)
{
    struct planning *planning = planning_new(daemon, TASK_VALIDATE, call);
    struct dp_error *err = &planning->task.error;
    dp_status status = planning_parse(toml, length, file, &planning->spec, err);
    plan_nodes_connected(daemon, &planning->nodes);
    if (status == DP_OK && planning->nodes.count == 0) {
        status = dp_fail(err, DP_UNSCHEDULABLE,
                         "the job file is valid, but no node is connected to run it");
    }
    if (status != DP_OK) {
        tell_caller(&planning->task);
        planning_free(&planning->task);
        return;
    }
    task_submit(&planning->task);
}
