// What is shown of jobs and nodes.
#include "core_internal.h"

#include <string.h>

const struct dp_job_record *dp_core_job(const struct dp_core *core, uint64_t number,
                                        const struct dp_rank_record **ret_ranks, size_t *ret_count)
{
    const struct core_job *job = dp_core_job_number(core, number);
    if (job == NULL) {
        return NULL;
    }
    if (ret_ranks != NULL) {
        *ret_ranks = job->ranks;
        *ret_count = job->ranks_count;
    }
    return &job->row;
}

bool dp_core_job_stored(const struct dp_core *core, uint64_t number)
{
    const struct core_job *job = dp_core_job_number(core, number);
    return job == NULL || dp_core_job_clean(job);
}

size_t dp_core_jobs_count(const struct dp_core *core)
{
    return core->jobs_count;
}

void dp_core_job_rows(const struct dp_core *core, const struct dp_job_record **ret_rows)
{
    FOR_EACH_JOB(core, job)
    {
        *ret_rows++ = &job->row;
    }
}

uint64_t dp_core_job_find(const struct dp_core *core, const char *id)
{
    const struct core_job *job = dp_core_job_number(core, dp_core_number_of(id));
    return job == NULL ? 0 : job->row.number;
}

size_t dp_core_nodes_count(const struct dp_core *core)
{
    return core->nodes_count;
}

static void fill_view(const struct dp_core *core, const struct core_node *node,
                      struct dp_node_view *view)
{
    *view = (struct dp_node_view){
        .node = &node->row,
        .state = node->state,
        .reason = node->reason,
        .slots_used = dp_core_node_slots_used(core, node),
        .session = node->session,
    };
}

void dp_core_node_at(const struct dp_core *core, size_t index, struct dp_node_view *ret_view)
{
    FOR_EACH_NODE(core, node)
    {
        if (index-- == 0) {
            fill_view(core, node, ret_view);
            return;
        }
    }
}

void dp_core_node_views(const struct dp_core *core, struct dp_node_view *ret_views)
{
    FOR_EACH_NODE(core, node)
    {
        fill_view(core, node, ret_views++);
    }
}

void dp_core_node_rows(const struct dp_core *core, const struct dp_node_record **ret_rows)
{
    FOR_EACH_NODE(core, node)
    {
        *ret_rows++ = &node->row;
    }
}

uint64_t dp_core_node_session_of(const struct dp_core *core, const char *node)
{
    const struct core_node *found = dp_core_node_find(core, node);
    return found == NULL ? 0 : found->session;
}

dp_node_state dp_core_node_state_of(const struct dp_core *core, const char *node)
{
    const struct core_node *found = dp_core_node_find(core, node);
    return found == NULL ? DP_NODE_LOST : found->state;
}

size_t dp_core_node_jobs_max(const struct dp_core *core, const char *node)
{
    const struct core_node *found = dp_core_node_find(core, node);
    return found == NULL ? 0 : found->jobs_count;
}

size_t dp_core_node_jobs(const struct dp_core *core, const char *node, const char **ret_ids)
{
    const struct core_node *found = dp_core_node_find(core, node);
    size_t count = 0;
    for (size_t i = 0; found != NULL && i < found->jobs_count; i++) {
        if (dp_core_job_slots(found->jobs[i], node) > 0) {
            ret_ids[count++] = found->jobs[i]->row.id;
        }
    }
    return count;
}
