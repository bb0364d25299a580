// The planner on libuv's work threads. A search owns copies of all it needs; its answer comes back
// to the loop.
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "daemon.h"
#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/log.h"
#include "dp/planner.h"

struct planning {
    uv_work_t work;
    struct daemon *daemon;
    uint64_t job, call; // one of them
    struct dp_job_spec spec;
    struct dp_planner_node *nodes;
    uint32_t **slots; // for each node the numbers of its free slots
    size_t nodes_count;
    struct dp_profile profile;
    bool profile_known;
    atomic_bool stop;
    struct dp_plan plan;
    struct dp_error error;
    struct planning *next;
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
    dp_diags_deinit(&diags);
    return status;
}

static bool asked_to_stop(void *context)
{
    struct planning *planning = context;
    return atomic_load(&planning->stop);
}

static void work(uv_work_t *work_item)
{
    struct planning *planning = work_item->data;
    struct dp_planner_resources resources = {
        .nodes = planning->nodes,
        .nodes_count = planning->nodes_count,
        .profile = planning->profile_known ? &planning->profile : NULL,
    };
    struct dp_planner_options options = {.stop = asked_to_stop, .context = planning};
    dp_planner_plan(&planning->spec, &resources, &options, &planning->plan, &planning->error);
}

static void planning_free(struct planning *planning)
{
    struct planning **link = &planning->daemon->plannings;
    while (*link != NULL && *link != planning) {
        link = &(*link)->next;
    }
    if (*link == planning) {
        *link = planning->next;
    }
    dp_plan_deinit(&planning->plan);
    for (size_t i = 0; i < planning->nodes_count; i++) {
        free(planning->slots[i]);
    }
    free(planning->slots);
    free(planning->nodes);
    free(planning);
}

// The planner counts the free slots of a node from 0; they have numbers.
static void number_slots(struct planning *planning)
{
    int32_t world = dp_plan_world(&planning->plan);
    for (int32_t r = 0; r < world; r++) {
        struct dp_plan_rank *rank = &planning->plan.ranks[r];
        size_t n = 0;
        while (n < planning->nodes_count && strcmp(planning->nodes[n].name, rank->node) != 0) {
            n++;
        }
        DP_CHECK(n < planning->nodes_count && rank->slot < planning->nodes[n].slots);
        rank->slot = (int32_t)planning->slots[n][rank->slot];
    }
}

static void tell_core(struct planning *planning)
{
    struct daemon *daemon = planning->daemon;
    if (planning->error.status != DP_OK) {
        struct dp_core_event event = {.kind = DP_EVENT_PLAN_FAILED,
                                      .plan_failed.job = planning->job};
        event.plan_failed.error = planning->error;
        daemon_step(daemon, &event);
        return;
    }
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf packed = {0};
    number_slots(planning);
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
    daemon_step(daemon, &event);
}

static void tell_caller(struct planning *planning)
{
    struct daemon *daemon = planning->daemon;
    if (planning->error.status != DP_OK) {
        call_fail_error(daemon, planning->call, &planning->error);
        return;
    }
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__ValidateJobResponse response = DP__V1__VALIDATE_JOB_RESPONSE__INIT;
    response.plan = dp_wire_plan_to_proto(&planning->plan, &arena);
    call_reply(daemon, planning->call, &response.base);
}

static void after_work(uv_work_t *work_item, int status)
{
    (void)status;
    struct planning *planning = work_item->data;
    if (!planning->daemon->stopping) {
        if (planning->call != 0) {
            tell_caller(planning);
        } else {
            tell_core(planning);
        }
    }
    planning_free(planning);
}

static void take_profile(struct planning *planning, const struct dp_node_record *node)
{
    DP_AUTO_JSON json_t *json = NULL;
    struct dp_error err = {0};
    if (planning->profile_known || node->profile.length == 0) {
        return;
    }
    if (dp_json_parse(node->profile.bytes, node->profile.length, DP_PROFILE_BYTES_MAX, "profile",
                      &json, &err) != DP_OK ||
        dp_profile_from_json(json, &planning->profile, &err) != DP_OK) {
        dp_log_warn("profile.unreadable", "node=%s reason=\"%s\"", node->name, err.message);
        return;
    }
    planning->profile_known = true;
}

// `numbers` of the free slots, NULL = from 0.
static void add_node(struct planning *planning, const struct dp_node_record *node, uint32_t slots,
                     const uint32_t *numbers)
{
    if (slots == 0) {
        return;
    }
    uint32_t *own = dp_new_array(uint32_t, slots);
    for (uint32_t i = 0; i < slots; i++) {
        own[i] = numbers == NULL ? i : numbers[i];
    }
    planning->slots[planning->nodes_count] = own;
    struct dp_planner_node *to = &planning->nodes[planning->nodes_count++];
    DP_COPY_TEXT(to->name, node->name);
    DP_COPY_TEXT(to->host, node->boot_id);
    to->slots = (int32_t)slots;
    to->cores = (int32_t)node->cores;
    to->memory_bytes = node->slots > 0 ? (double)node->memory_bytes / node->slots : 0;
    take_profile(planning, node);
}

static struct planning *planning_new(struct daemon *daemon, size_t nodes_count)
{
    struct planning *planning = dp_new(struct planning);
    planning->daemon = daemon;
    planning->work.data = planning;
    planning->nodes = dp_new_array(struct dp_planner_node, nodes_count);
    planning->slots = dp_new_array(uint32_t *, nodes_count);
    planning->next = daemon->plannings;
    daemon->plannings = planning;
    return planning;
}

static void queue(struct planning *planning)
{
    uv_queue_work(&planning->daemon->loop, &planning->work, work, after_work);
}

static void work_nothing(uv_work_t *work_item)
{
    (void)work_item;
}

void planning_start(struct daemon *daemon, uint64_t number, const struct dp_free_slots *nodes,
                    size_t nodes_count)
{
    struct planning *planning = planning_new(daemon, nodes_count);
    planning->job = number;
    const struct dp_job_record *job = dp_core_job(daemon->core, number, NULL, NULL);
    dp_status status = planning_parse(job->job_toml.bytes, job->job_toml.length, job->id,
                                      &planning->spec, &planning->error);
    for (size_t i = 0; i < nodes_count; i++) {
        add_node(planning, nodes[i].node, nodes[i].slots_free, nodes[i].slots);
    }
    if (status == DP_OK) {
        queue(planning);
    } else {
        uv_queue_work(&daemon->loop, &planning->work, work_nothing, after_work);
    }
}

void planning_validate(struct daemon *daemon, uint64_t call, const void *toml, size_t length,
                       const char *file)
{
    size_t count = dp_core_nodes_count(daemon->core);
    struct planning *planning = planning_new(daemon, count);
    planning->call = call;
    if (planning_parse(toml, length, file, &planning->spec, &planning->error) != DP_OK) {
        tell_caller(planning);
        planning_free(planning);
        return;
    }
    DP_AUTO_FREE struct dp_node_view *views = dp_new_array(struct dp_node_view, count);
    dp_core_node_views(daemon->core, views);
    for (size_t i = 0; i < count; i++) {
        if (views[i].state == DP_NODE_READY || views[i].state == DP_NODE_REGISTERING) {
            add_node(planning, views[i].node, views[i].node->slots, NULL);
        }
    }
    if (planning->nodes_count == 0) {
        dp_fail(&planning->error, DP_UNSCHEDULABLE,
                "the job file is valid, but no node is connected to run it");
        tell_caller(planning);
        planning_free(planning);
        return;
    }
    queue(planning);
}

void planning_stop(struct daemon *daemon)
{
    for (struct planning *planning = daemon->plannings; planning != NULL;
         planning = planning->next) {
        atomic_store(&planning->stop, true);
    }
}
