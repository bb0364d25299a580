// The job that `dpctl whatif` is about: one that runs, or a job file with the plan that it would
// get.

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "connect.h"
#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/wire.h"
#include "whatif.h"

void whatif_job_deinit(struct whatif_job *job)
{
    dp_plan_deinit(&job->plan);
    plan_question_free(job->question);
    free(job->nodes);
    free(job->spares);
    *job = (struct whatif_job){0};
}

static bool is_taken(const struct dp_plan *plan, const char *node, int32_t slot)
{
    for (int32_t r = 0; r < dp_plan_world(plan); r++) {
        if (plan->ranks[r].slot == slot && strcmp(plan->ranks[r].node, node) == 0) {
            return true;
        }
    }
    return false;
}

// Slots of the nodes that none of the job's ranks has.
static void find_spares(struct whatif_job *job, size_t nodes_count)
{
    size_t room = 0;
    for (size_t n = 0; n < nodes_count; n++) {
        room += (size_t)job->nodes[n].slots;
    }
    job->spares = dp_new_array(struct dp_adapt_spare, room);
    for (size_t n = 0; n < nodes_count; n++) {
        const struct dp_planner_node *node = &job->nodes[n];
        for (int32_t i = node->first_slot; i < node->first_slot + node->slots; i++) {
            if (!is_taken(&job->plan, node->name, i)) {
                struct dp_adapt_spare *spare = &job->spares[job->spares_count++];
                DP_COPY_TEXT(spare->node, node->name);
                spare->slot = i;
                spare->memory_bytes = node->memory_bytes;
            }
        }
    }
}

static dp_status read_plan(const char *path, struct dp_plan *ret_plan, struct dp_error *err)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    DP_AUTO_JSON json_t *json = NULL;
    dp_status status = dp_read_file(path, DP_MESSAGE_BYTES_MAX, &text, err);
    status = status == DP_OK
                 ? dp_json_parse(text.bytes, text.length, DP_MESSAGE_BYTES_MAX, path, &json, err)
                 : status;
    status = status == DP_OK ? dp_plan_from_json(json, ret_plan, err) : status;
    return status == DP_OK ? DP_OK : dp_fail_in(err, "%s", path);
}

static dp_status load_file(struct dpctl *ctl, const struct whatif_request *request,
                           struct whatif_job *job, struct dp_error *err)
{
    const struct plan_request asked = {.file = request->source,
                                       .cluster = request->cluster,
                                       .profile = request->profile,
                                       .gpu = request->gpu,
                                       .gpus = request->gpus,
                                       .sets = request->sets,
                                       .rank = -1};
    dp_status status = plan_question_load(ctl, &asked, &job->question, err);
    if (status != DP_OK) {
        return status;
    }
    const struct plan_question *question = job->question;
    job->spec = question->spec;
    job->resources = question->resources;
    size_t count = job->resources.nodes_count;
    job->nodes = dp_memdup(job->resources.nodes, count * sizeof(*job->nodes));
    job->resources.nodes = job->nodes;
    status = request->plan != NULL
                 ? read_plan(request->plan, &job->plan, err)
                 : plan_question_ask(question, &job->spec, false, &job->plan, err);
    if (status == DP_OK) {
        find_spares(job, count);
        job->steps_left = job->spec.train.steps;
        job->measured_step_s = job->plan.step_s;
        DP_COPY_TEXT(job->name, job->spec.name);
    }
    return status;
}

static bool takes_ranks(const Dp__V1__Node *node)
{
    return strcmp(node->state, "READY") == 0 || strcmp(node->state, "REGISTERING") == 0;
}

// Free slots and those of the job itself. Which of them are free is not told: as many as there are,
// behind those of the job.
static void take_nodes(const Dp__V1__ListNodesResponse *response, struct whatif_job *job)
{
    job->nodes = dp_new_array(struct dp_planner_node, response->n_nodes);
    size_t count = 0;
    for (size_t i = 0; i < response->n_nodes; i++) {
        const Dp__V1__Node *from = response->nodes[i];
        int32_t own = 0;
        for (int32_t r = 0; r < dp_plan_world(&job->plan); r++) {
            own += strcmp(job->plan.ranks[r].node, from->name) == 0;
        }
        int32_t free_slots = takes_ranks(from) && from->slots > from->slots_used
                                 ? (int32_t)(from->slots - from->slots_used)
                                 : 0;
        if (own + free_slots > 0) {
            struct dp_planner_node *to = &job->nodes[count++];
            DP_COPY_TEXT(to->name, from->name);
            to->slots = own + free_slots;
            to->cores = (int32_t)from->cores;
            to->memory_bytes = from->slots > 0 ? (double)from->memory_bytes / from->slots : 0;
        }
    }
    job->resources = (struct dp_planner_resources){.nodes = job->nodes, .nodes_count = count};
    find_spares(job, count);
}

static dp_status parse_spec(const Dp__V1__Job *message, struct dp_job_spec *ret_spec,
                            struct dp_error *err)
{
    struct dp_diags diags;
    const char *text = (const char *)message->job_toml.data;
    dp_diags_init(&diags, message->id, text, message->job_toml.len);
    dp_status status = dp_job_spec_parse(text, message->job_toml.len, NULL, &diags, ret_spec, err);
    dp_diags_deinit(&diags);
    return status;
}

static dp_status load_job(struct dpctl *ctl, const struct whatif_request *request,
                          struct whatif_job *job, struct dp_error *err)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    AUTO_CLIENT struct dp_client *client = NULL;
    Dp__V1__Job *message = NULL;
    Dp__V1__ListNodesResponse *nodes = NULL;
    dp_status status = connect_controller(ctl, &client, err);
    status = status == DP_OK ? dp_client_get_job(client, request->source, &arena, &message, err)
                             : status;
    status = status == DP_OK ? dp_client_list_nodes(client, &arena, &nodes, err) : status;
    if (status == DP_OK && message->plan == NULL) {
        return dp_fail(err, DP_CONFLICT, "job %s has no plan yet", message->id);
    }
    status = status == DP_OK ? parse_spec(message, &job->spec, err) : status;
    status = status == DP_OK ? dp_wire_plan_from_proto(message->plan, &job->plan, err) : status;
    if (status != DP_OK) {
        return status;
    }
    take_nodes(nodes, job);
    job->measured_step_s = message->step_s;
    job->steps_left = (int64_t)message->steps_total - (int64_t)message->step;
    DP_COPY_TEXT(job->name, message->id);
    return DP_OK;
}

dp_status whatif_job_load(struct dpctl *ctl, const struct whatif_request *request,
                          struct whatif_job *ret_job, struct dp_error *err)
{
    DP_CLEANUP(whatif_job_deinit) struct whatif_job job = {0};
    const char *ending = strrchr(request->source, '.');
    bool is_file = (ending != NULL && strcmp(ending, ".toml") == 0) ||
                   strchr(request->source, '/') != NULL || strcmp(request->source, "-") == 0;
    dp_status status =
        is_file ? load_file(ctl, request, &job, err) : load_job(ctl, request, &job, err);
    if (status == DP_OK) {
        job.steps_left = request->steps > 0 ? request->steps : job.steps_left;
        *ret_job = job;
        job = (struct whatif_job){0};
    }
    return status;
}
