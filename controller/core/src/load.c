// A start: what the controller knew before.
#include "core_internal.h"

#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/clock.h"

// JSON numbers are exact up to here.
#define NUMBER_MAX ((UINT64_C(1) << 53) - 1)

uint64_t dp_core_number_of(const char *id)
{
    if (strncmp(id, "job-", 4) != 0) {
        return 0;
    }
    uint64_t number = 0;
    const char *digit = id + 4;
    for (; *digit >= '0' && *digit <= '9' && number <= NUMBER_MAX / 10; digit++) {
        number = number * 10 + (uint64_t)(*digit - '0');
        if (number == 0) {
            return 0;
        }
    }
    return *digit == '\0' && number <= NUMBER_MAX ? number : 0;
}

static size_t position_of(const struct dp_core *core, uint64_t number)
{
    size_t low = 0, high = core->ended_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (core->ended[middle] < number) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

bool dp_core_has_ended(const struct dp_core *core, uint64_t number)
{
    size_t position = position_of(core, number);
    return position < core->ended_count && core->ended[position] == number;
}

void dp_core_add_ended(struct dp_core *core, uint64_t number)
{
    if (core->ended_count == core->ended_capacity) {
        core->ended_capacity = core->ended_capacity == 0 ? 64 : core->ended_capacity * 2;
        core->ended = dp_realloc(core->ended, core->ended_capacity, sizeof(*core->ended));
    }
    size_t position = position_of(core, number);
    memmove(core->ended + position + 1, core->ended + position,
            (core->ended_count - position) * sizeof(*core->ended));
    core->ended[position] = number;
    core->ended_count++;
}

void dp_core_load_ended(struct dp_core *core, const struct dp_load_ended *ended)
{
    for (size_t i = 0; i < ended->count; i++) {
        dp_core_add_ended(core, ended->numbers[i]);
    }
    core->index = core->index_marked = core->index_told = ended->last_event + 1;
    if (ended->highest >= core->next_number) {
        core->next_number = ended->highest + 1;
    }
    dp_core_note(core, NULL, NULL, false, "controller.started", "%zu jobs have ended so far",
                 ended->count);
}

static void resume(struct dp_core *core, struct core_job *job)
{
    job->save_ns = core->now_ns + core->config.save_ms * DP_NS_PER_MS;
    switch (job->row.state) {
    case DP_STATE_SUBMITTED:
        dp_core_job_move(core, job, DP_STATE_QUEUED, "", "%s", "");
        break;
    case DP_STATE_QUEUED:
        dp_core_job_resume_wait(core, job);
        dp_core_queue_add(core, job);
        break;
    case DP_STATE_PLANNED:
        // Nothing was told to anybody yet; the free slots are counted anew.
        job->ranks_count = 0;
        dp_core_members_clear(job);
        dp_core_job_move(core, job, DP_STATE_QUEUED, "", "%s", "");
        break;
    case DP_STATE_ASSIGNING:
        job->deadline_ns = core->now_ns + core->config.prepare_timeout_ms * DP_NS_PER_MS;
        break;
    case DP_STATE_STOPPING:
        job->deadline_ns = core->now_ns + core->config.stop_timeout_ms * DP_NS_PER_MS;
        break;
    case DP_STATE_REASSIGNING:
        dp_core_reassign_load(core, job);
        break;
    default:
        break;
    }
}

// The row of a node may not have been stored in time; it is waited for like any other.
static void know_nodes(struct dp_core *core, const struct core_job *job)
{
    for (size_t i = 0; i < job->ranks_count; i++) {
        if (dp_core_node_find(core, job->ranks[i].node) == NULL) {
            struct dp_node_record row = {0};
            DP_COPY_TEXT(row.name, job->ranks[i].node);
            dp_core_load_node(core, &row);
        }
    }
}

void dp_core_load_job(struct dp_core *core, const struct dp_load_job *load)
{
    struct core_job *job = dp_core_job_add(core, load->job->number, load->job->request_id);
    job->row = *load->job;
    job->row.job_toml = job->row.plan = job->row.sources = (struct dp_buf){0};
    dp_buf_append(&job->row.job_toml, load->job->job_toml.bytes, load->job->job_toml.length);
    dp_buf_append(&job->row.plan, load->job->plan.bytes, load->job->plan.length);
    dp_buf_append(&job->row.sources, load->job->sources.bytes, load->job->sources.length);
    job->ranks_count = load->ranks_count;
    job->ranks = dp_new_array(struct dp_rank_record, load->ranks_count);
    if (load->ranks_count > 0) {
        memcpy(job->ranks, load->ranks, load->ranks_count * sizeof(*job->ranks));
    }
    for (size_t i = 0; i < job->ranks_count; i++) {
        // Steps that every rank has completed are on disk; others are told again.
        job->ranks[i].step = job->row.step;
        // Its last word has more than the row.
        job->ranks[i].finished = job->ranks[i].finished && dp_job_state_ended(job->row.state);
    }
    core->avoiding = core->avoiding || job->row.avoid[0] != '\0';
    core->small = core->small || job->row.ranks_count < job->row.ranks_full;
    job->loaded = true;
    job->gives_back = job->row.state == DP_STATE_STOPPING;
    know_nodes(core, job);
    dp_core_job_set_members(job);
    dp_core_reschedule(core);
    for (size_t i = 0; i < job->members_count; i++) {
        job->members[i].reached = true;
    }
    if (job->row.number >= core->next_number) {
        core->next_number = job->row.number + 1;
    }
    resume(core, job);
}
