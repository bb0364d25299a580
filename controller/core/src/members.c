// A job's ranks by the nodes that hold them, and how many slots of each node that takes.
#include "core_internal.h"

#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"

static struct core_member *member_of(const struct core_job *job, const char *node)
{
    size_t low = 0, high = job->members_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        struct core_member *member = &job->members[job->by_name[middle]];
        int order = strcmp(member->node, node);
        if (order == 0) {
            return member;
        }
        low = order < 0 ? middle + 1 : low;
        high = order < 0 ? high : middle;
    }
    return NULL;
}

struct core_member *dp_core_job_member(struct core_job *job, const char *node)
{
    return member_of(job, node);
}

struct dp_rank_record *dp_core_member_rank(const struct core_job *job,
                                           const struct core_member *member, uint32_t i)
{
    return &job->ranks[job->by_member[member->first + i]];
}

static bool is_over(const struct core_job *job, const struct core_member *member)
{
    for (uint32_t i = 0; i < member->ranks; i++) {
        if (!dp_rank_record_over(dp_core_member_rank(job, member, i))) {
            return false;
        }
    }
    return true;
}

bool dp_core_job_over(const struct core_job *job, const char *node)
{
    if (node != NULL) {
        const struct core_member *member = member_of(job, node);
        return member == NULL || is_over(job, member);
    }
    for (size_t i = 0; i < job->members_count; i++) {
        if (!is_over(job, &job->members[i])) {
            return false;
        }
    }
    return true;
}

void dp_core_job_end_ranks(struct core_job *job, const char *node)
{
    const struct core_member *member = member_of(job, node);
    for (uint32_t i = 0; member != NULL && i < member->ranks; i++) {
        struct dp_rank_record *rank = dp_core_member_rank(job, member, i);
        if (!dp_rank_record_over(rank)) {
            rank->phase = DP_RANK_UNKNOWN;
            rank->gone = true;
            job->ranks_changed = true;
            job->show = job->recount = true;
            dp_core_job_touch(job);
        }
    }
}

static uint32_t slots_of(const struct core_job *job, const struct core_member *member)
{
    uint32_t used = 0;
    for (uint32_t i = 0; i < member->ranks; i++) {
        used += dp_core_rank_has_slot(job, dp_core_member_rank(job, member, i));
    }
    return used;
}

uint32_t dp_core_job_slots(const struct core_job *job, const char *node)
{
    const struct core_member *member = member_of(job, node);
    return member == NULL ? 0 : slots_of(job, member);
}

static void count_slots(struct core_member *member, uint32_t used)
{
    if (member->at != NULL && used != member->used) {
        member->at->used += used - member->used;
        dp_core_reschedule(member->at->core);
    }
    member->used = used;
}

void dp_core_job_recount(struct core_job *job)
{
    for (size_t i = 0; i < job->members_count; i++) {
        count_slots(&job->members[i], slots_of(job, &job->members[i]));
    }
}

static void add_job(struct core_node *node, struct core_job *job)
{
    if (node->jobs_count == node->jobs_capacity) {
        node->jobs_capacity = node->jobs_capacity == 0 ? 4 : node->jobs_capacity * 2;
        node->jobs = dp_realloc(node->jobs, node->jobs_capacity, sizeof(struct core_job *));
    }
    node->jobs[node->jobs_count++] = job;
}

// The others keep their order.
static void drop_job(struct core_node *node, const struct core_job *job)
{
    size_t kept = 0;
    for (size_t i = 0; i < node->jobs_count; i++) {
        if (node->jobs[i] != job) {
            node->jobs[kept++] = node->jobs[i];
        }
    }
    node->jobs_count = kept;
}

static void settle(struct core_job *job, struct core_member *member, struct core_node *node)
{
    member->at = node;
    add_job(node, job);
    count_slots(member, slots_of(job, member));
}

void dp_core_members_meet(struct core_job *job, struct core_node *node)
{
    struct core_member *member = member_of(job, node->row.name);
    if (member != NULL && member->at == NULL) {
        member->used = 0;
        settle(job, member, node);
    }
}

static void list_placed(struct core_job *job)
{
    struct dp_core *core = job->core;
    job->placed_next = core->placed;
    if (core->placed != NULL) {
        core->placed->placed_before = job;
    }
    core->placed = job;
}

static void unlist_placed(struct core_job *job)
{
    struct core_job **link =
        job->placed_before == NULL ? &job->core->placed : &job->placed_before->placed_next;
    *link = job->placed_next;
    if (job->placed_next != NULL) {
        job->placed_next->placed_before = job->placed_before;
    }
    job->placed_before = job->placed_next = NULL;
}

void dp_core_members_clear(struct core_job *job)
{
    if (job->members_count > 0) {
        unlist_placed(job);
    }
    for (size_t i = 0; i < job->members_count; i++) {
        struct core_member *member = &job->members[i];
        if (member->at != NULL) {
            count_slots(member, 0);
            drop_job(member->at, job);
        }
    }
    free(job->members);
    free(job->by_member);
    free(job->by_name);
    job->members = NULL;
    job->by_member = job->by_name = NULL;
    job->members_count = 0;
}

static int compare_ranks(const void *left, const void *right, void *context)
{
    const struct dp_rank_record *ranks = context;
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    int order = strcmp(ranks[a].node, ranks[b].node);
    return order != 0 ? order : a < b ? -1 : a > b;
}

// By their first rank.
static int compare_members(const void *left, const void *right, void *context)
{
    const uint32_t *by_member = context;
    uint32_t a = by_member[((const struct core_member *)left)->first];
    uint32_t b = by_member[((const struct core_member *)right)->first];
    return a < b ? -1 : a > b;
}

static int compare_names(const void *left, const void *right, void *context)
{
    const struct core_member *members = context;
    return strcmp(members[*(const uint32_t *)left].node, members[*(const uint32_t *)right].node);
}

static void group(struct core_job *job)
{
    size_t count = job->ranks_count;
    for (uint32_t i = 0; i < count; i++) {
        job->by_member[i] = i;
    }
    qsort_r(job->by_member, count, sizeof(uint32_t), compare_ranks, job->ranks);
    struct core_member *member = NULL;
    for (uint32_t i = 0; i < count; i++) {
        const char *node = job->ranks[job->by_member[i]].node;
        if (member == NULL || strcmp(member->node, node) != 0) {
            member = &job->members[job->members_count++];
            DP_COPY_TEXT(member->node, node);
            member->first = i;
        }
        member->ranks++;
    }
    qsort_r(job->members, job->members_count, sizeof(*job->members), compare_members,
            job->by_member);
    for (uint32_t i = 0; i < job->members_count; i++) {
        job->by_name[i] = i;
    }
    qsort_r(job->by_name, job->members_count, sizeof(uint32_t), compare_names, job->members);
}

void dp_core_job_set_members(struct core_job *job)
{
    dp_core_members_clear(job);
    if (job->ranks_count > 0) {
        job->members = dp_new_array(struct core_member, job->ranks_count);
        job->by_member = dp_new_array(uint32_t, job->ranks_count);
        job->by_name = dp_new_array(uint32_t, job->ranks_count);
        group(job);
        list_placed(job);
    }
    for (size_t i = 0; i < job->members_count; i++) {
        struct core_node *node = dp_core_node_find(job->core, job->members[i].node);
        if (node != NULL) {
            settle(job, &job->members[i], node);
        } else {
            job->core->homeless = true;
        }
    }
    dp_core_job_touch(job);
}
