// Jobs that wait, in the order of their submission.
#include "core_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/clock.h"

static size_t count_active(const struct dp_core *core)
{
    size_t count = 0;
    FOR_EACH_JOB(core, job)
    {
        count += !dp_job_state_ended(job->row.state);
    }
    return count;
}

static void answer_again(struct dp_core *core, struct core_job *job, const struct dp_submit *submit)
{
    const struct dp_buf *before = &job->row.job_toml;
    if (before->length == submit->job_toml_length &&
        (before->length == 0 || memcmp(before->bytes, submit->job_toml, before->length) == 0)) {
        dp_core_reply_stored(core, submit->reply, job);
    } else {
        dp_core_refuse_stored(core, submit->reply, job, DP_CONFLICT, DP_CORE_REQUEST_TAKEN,
                              submit->request_id, job->row.id);
    }
}

void dp_core_submit(struct dp_core *core, const struct dp_submit *submit)
{
    struct core_job *job = dp_core_job_by_request(core, submit->request_id);
    if (job != NULL) {
        answer_again(core, job, submit);
        return;
    }
    if (count_active(core) >= core->config.active_jobs_max) {
        dp_core_reply_error(
            core, submit->reply, DP_UNAVAILABLE,
            "%u jobs are waiting or running, which is the most this controller takes: "
            "wait for some to end, or cancel some",
            core->config.active_jobs_max);
        return;
    }
    job = dp_core_job_add(core, core->next_number++, submit->request_id);
    struct dp_job_record *row = &job->row;
    snprintf(row->id, sizeof(row->id), "job-%llu", (unsigned long long)row->number);
    row->token = submit->token;
    DP_COPY_TEXT(row->name, submit->name);
    DP_COPY_TEXT(row->device, submit->device);
    dp_buf_append(&row->job_toml, submit->job_toml, submit->job_toml_length);
    row->ranks_wanted = submit->ranks_wanted;
    row->ranks_fixed = submit->ranks_fixed;
    row->needs_profile = submit->needs_profile;
    row->steps_total = submit->steps_total;
    row->tokens_per_step = submit->tokens_per_step;
    row->submitted_ns = core->wall_ns;
    dp_core_job_move(core, job, DP_STATE_SUBMITTED, "", "%s", row->name);
    row->message[0] = '\0';
    dp_core_reply_stored(core, submit->reply, job);
}

static void wait_for(struct core_job *job, const char *reason, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void wait_for(struct core_job *job, const char *reason, const char *format, ...)
{
    char message[DP_TEXT_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof(message), format, args);
    va_end(args);
    if (strcmp(job->row.reason, reason) != 0 || strcmp(job->row.message, message) != 0) {
        DP_COPY_TEXT(job->row.reason, reason);
        DP_COPY_TEXT(job->row.message, message);
        dp_core_job_changed(job);
    }
}

static bool usable(const struct core_job *job, const struct core_node *node)
{
    return node->state == DP_NODE_READY ||
           (node->state == DP_NODE_REGISTERING && !job->row.needs_profile && !node->held);
}

static uint32_t slots_free(const struct dp_core *core, const struct core_node *node)
{
    uint32_t used = dp_core_node_slots_used(core, node);
    return node->row.slots > used ? node->row.slots - used : 0;
}

struct supply {
    uint32_t nodes, free, total;     // nodes that the job can use now
    uint32_t nodes_here, slots_here; // and those that are only late, or soon calibrated
    const struct core_node *waits;   // being calibrated, and still waited for
    const struct core_node *failed;  // could not be calibrated so far
    uint32_t waits_slots;
};

static void count_uncalibrated(const struct dp_core *core, const struct core_node *node,
                               struct supply *supply)
{
    if (node->calibration_error[0] == '\0' &&
        core->now_ns < dp_core_node_calibrated_ns(core, node)) {
        supply->waits = node;
        supply->waits_slots += node->row.slots;
        supply->nodes_here++;
        supply->slots_here += node->row.slots;
    } else {
        supply->failed = node;
    }
}

static struct supply measure(const struct dp_core *core, const struct core_job *job)
{
    struct supply supply = {0};
    FOR_EACH_NODE(core, node)
    {
        if (usable(job, node)) {
            supply.nodes++;
            supply.free += slots_free(core, node);
            supply.total += node->row.slots;
        } else if (node->state == DP_NODE_REGISTERING) {
            count_uncalibrated(core, node, &supply);
        } else if (node->state == DP_NODE_LATE) {
            supply.nodes_here++;
            supply.slots_here += node->row.slots;
        }
    }
    supply.nodes_here += supply.nodes;
    supply.slots_here += supply.total;
    return supply;
}

static void wait_for_calibration(struct core_job *job, const struct supply *supply)
{
    uint32_t wanted = (uint32_t)job->row.ranks_wanted;
    if (supply->waits != NULL) {
        wait_for(job, "WaitingForCalibration",
                 "needs %u ranks, %u free of %u; %s with %u slots is being calibrated", wanted,
                 supply->free, supply->total, supply->waits->row.name, supply->waits_slots);
        return;
    }
    const struct core_node *node = supply->failed;
    bool known = node->calibration_error[0] != '\0';
    wait_for(job, "WaitingForCalibration",
             "needs %u ranks, %u free of %u; %s with %u slots is not calibrated: %.*s", wanted,
             supply->free, supply->total, node->row.name, node->row.slots, DP_TEXT_MAX / 2,
             known ? node->calibration_error : "it takes longer than usual");
}

typedef enum verdict {
    CAN_PLAN,
    MUST_WAIT,  // and those behind it, too
    NEVER_FITS, // with the nodes that there are: others need not wait for it
} verdict;

// Sets the reason while the job has to wait.
static verdict judge(const struct dp_core *core, struct core_job *job)
{
    struct supply supply = measure(core, job);
    uint32_t wanted = (uint32_t)job->row.ranks_wanted;
    bool enough = supply.free >= wanted, fits = supply.slots_here >= wanted;
    // More ranks may be used than are wanted at least, so nodes that come up are waited for.
    if ((supply.waits != NULL && (!enough || !job->row.ranks_fixed)) ||
        (supply.failed != NULL && !fits)) {
        wait_for_calibration(job, &supply);
        return fits ? MUST_WAIT : NEVER_FITS;
    }
    if (enough) {
        return CAN_PLAN;
    }
    if (supply.nodes == 0) {
        wait_for(job, "WaitingForNodes", "needs %u ranks, no node is connected", wanted);
    } else if (!fits) {
        wait_for(job, "WaitingForNodes",
                 "needs %u ranks, the cluster has %u in all on %u node%s: it waits for more nodes, "
                 "and others go first",
                 wanted, supply.slots_here, supply.nodes_here, supply.nodes_here == 1 ? "" : "s");
    } else {
        wait_for(job, "WaitingForRanks", "needs %u ranks, %u free of %u on %u node%s", wanted,
                 supply.free, supply.total, supply.nodes, supply.nodes == 1 ? "" : "s");
    }
    return fits ? MUST_WAIT : NEVER_FITS;
}

// The lowest numbers that no rank of the core's jobs has. What a node runs of jobs that are not the
// core's takes slots, too, and has no numbers: the highest are left to it.
static const uint32_t *free_numbers(struct dp_core *core, const struct core_node *node,
                                    uint32_t count)
{
    uint32_t *numbers = dp_arena_alloc(&core->effects->arena, (count + 1) * sizeof(*numbers));
    bool *taken = dp_arena_alloc(&core->effects->arena, node->row.slots + 1);
    FOR_EACH_JOB(core, job)
    {
        bool ended = dp_job_state_ended(job->row.state);
        for (size_t i = 0; i < job->ranks_count; i++) {
            const struct dp_rank_record *rank = &job->ranks[i];
            if ((!ended || !dp_rank_record_over(rank)) && rank->slot < node->row.slots &&
                strcmp(rank->node, node->row.name) == 0) {
                taken[rank->slot] = true;
            }
        }
    }
    uint32_t found = 0;
    for (uint32_t slot = 0; slot < node->row.slots && found < count; slot++) {
        if (!taken[slot]) {
            numbers[found++] = slot;
        }
    }
    return numbers;
}

static void ask_for_plan(struct dp_core *core, struct core_job *job)
{
    size_t count = 0;
    FOR_EACH_NODE(core, node)
    {
        count += usable(job, node);
    }
    struct dp_free_slots *free_slots =
        dp_arena_alloc(&core->effects->arena, count * sizeof(*free_slots));
    size_t filled = 0;
    FOR_EACH_NODE(core, node)
    {
        if (usable(job, node)) {
            uint32_t free_count = slots_free(core, node);
            free_slots[filled++] = (struct dp_free_slots){&node->row, free_count,
                                                          free_numbers(core, node, free_count)};
        }
    }
    job->planning = true;
    struct dp_effect *effect = dp_core_effect(core, DP_EFFECT_PLAN);
    effect->job = job->row.number;
    effect->nodes = free_slots;
    effect->nodes_count = count;
}

static const struct core_job *find_planned(const struct dp_core *core)
{
    FOR_EACH_JOB(core, job)
    {
        if (job->planning && job->row.state == DP_STATE_QUEUED) {
            return job;
        }
    }
    return NULL;
}

// First come, first served among those that fit into the cluster as it is.
void dp_core_schedule(struct dp_core *core)
{
    const struct core_job *first = NULL;
    // One at a time: two plans could want the same slots.
    const struct core_job *planned = find_planned(core);
    FOR_EACH_JOB(core, job)
    {
        if (job->row.state != DP_STATE_QUEUED) {
            continue;
        }
        if (first != NULL) {
            wait_for(job, "WaitingForEarlierJobs", "behind %s", first->row.id);
            continue;
        }
        verdict found = job->planning ? MUST_WAIT : judge(core, job);
        if (found == CAN_PLAN && planned != NULL) {
            wait_for(job, "WaitingForPlanning", "%s is being planned", planned->row.id);
        } else if (found == CAN_PLAN) {
            planned = job;
            wait_for(job, "Planning", "choosing a layout");
            ask_for_plan(core, job);
        }
        first = found == NEVER_FITS ? NULL : job;
    }
}

static bool still_fits(struct dp_core *core, const struct core_job *job,
                       const struct dp_plan_done *done)
{
    FOR_EACH_NODE(core, node)
    {
        uint32_t placed = 0;
        for (size_t i = 0; i < done->ranks_count; i++) {
            placed += strcmp(done->ranks[i].node, node->row.name) == 0;
        }
        if (placed > 0 && (!usable(job, node) || placed > slots_free(core, node))) {
            return false;
        }
    }
    for (size_t i = 0; i < done->ranks_count; i++) {
        if (dp_core_node_find(core, done->ranks[i].node) == NULL) {
            return false;
        }
    }
    return done->ranks_count > 0;
}

void dp_core_plan_done(struct dp_core *core, const struct dp_plan_done *done)
{
    struct core_job *job = dp_core_job_number(core, done->job);
    if (job == NULL || job->row.state != DP_STATE_QUEUED || !job->planning) {
        return;
    }
    job->planning = false;
    dp_core_reschedule(core);
    if (!still_fits(core, job, done)) {
        return;
    }
    dp_buf_clear(&job->row.plan);
    dp_buf_append(&job->row.plan, done->plan, done->plan_length);
    free(job->ranks);
    job->ranks_count = done->ranks_count;
    job->ranks = dp_new_array(struct dp_rank_record, done->ranks_count);
    for (size_t i = 0; i < done->ranks_count; i++) {
        job->ranks[i].job = job->row.number;
        job->ranks[i].rank = (uint32_t)i;
        job->ranks[i].slot = done->ranks[i].slot;
        DP_COPY_TEXT(job->ranks[i].node, done->ranks[i].node);
    }
    dp_core_job_set_members(job);
    job->ranks_changed = true;
    dp_core_job_move(core, job, DP_STATE_PLANNED, "", "%zu rank%s on %zu node%s", job->ranks_count,
                     job->ranks_count == 1 ? "" : "s", job->members_count,
                     job->members_count == 1 ? "" : "s");
    job->row.attempt = 1;
    job->row.epoch++;
    dp_core_job_move(core, job, DP_STATE_ASSIGNING, "", "%s", "");
    job->deadline_ns = core->now_ns + core->config.prepare_timeout_ms * DP_NS_PER_MS;
}

void dp_core_plan_failed(struct dp_core *core, const struct dp_plan_failed *failed)
{
    struct core_job *job = dp_core_job_number(core, failed->job);
    if (job == NULL || job->row.state != DP_STATE_QUEUED || !job->planning) {
        return;
    }
    job->planning = false;
    const char *reason = failed->error.status == DP_UNSCHEDULABLE ? "Unschedulable" : "PlanFailed";
    dp_core_job_move(core, job, DP_STATE_FAILED, reason, "%s", failed->error.message);
}
