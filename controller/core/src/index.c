// What finds jobs and nodes, and what a step has to look at: the jobs it touched, and deadlines.
#include "core_internal.h"

#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"

struct core_job *dp_core_job_number(const struct dp_core *core, uint64_t number)
{
    struct core_job *job = NULL;
    HASH_FIND(by_number, core->jobs_by_number, &number, sizeof(number), job);
    return job;
}

struct core_job *dp_core_job_by_id(struct dp_core *core, const char *id)
{
    struct core_job *job = dp_core_job_number(core, dp_core_number_of(id));
    if (job != NULL) {
        dp_core_job_touch(job);
    }
    return job;
}

struct core_job *dp_core_job_by_request(struct dp_core *core, const char *request_id)
{
    struct core_job *job = NULL;
    HASH_FIND(by_request, core->jobs_by_request, request_id, strlen(request_id), job);
    return job;
}

struct core_job *dp_core_job_add(struct dp_core *core, uint64_t number, const char *request_id)
{
    struct core_job *job = dp_new(struct core_job);
    job->core = core;
    job->row.number = number;
    DP_COPY_TEXT(job->row.request_id, request_id);
    job->before = core->jobs_last;
    *(core->jobs_last == NULL ? &core->jobs : &core->jobs_last->next) = job;
    core->jobs_last = job;
    core->jobs_count++;
    HASH_ADD(by_number, core->jobs_by_number, row.number, sizeof(job->row.number), job);
    if (request_id[0] != '\0') {
        HASH_ADD_KEYPTR(by_request, core->jobs_by_request, job->row.request_id,
                        strlen(job->row.request_id), job);
    }
    dp_core_job_touch(job);
    return job;
}

void dp_core_job_unlink(struct core_job *job)
{
    struct dp_core *core = job->core;
    *(job->before == NULL ? &core->jobs : &job->before->next) = job->next;
    *(job->next == NULL ? &core->jobs_last : &job->next->before) = job->before;
    core->jobs_count--;
    HASH_DELETE(by_number, core->jobs_by_number, job);
    if (job->row.request_id[0] != '\0') {
        HASH_DELETE(by_request, core->jobs_by_request, job);
    }
    if (job->touched != 0) {
        core->touched[job->touched - 1] = NULL;
    }
    dp_core_timer_set(core, &job->timer, 0);
}

void dp_core_job_touch(struct core_job *job)
{
    struct dp_core *core = job->core;
    if (job->touched != 0) {
        return;
    }
    if (core->touched_count == core->touched_capacity) {
        core->touched_capacity = core->touched_capacity == 0 ? 64 : core->touched_capacity * 2;
        core->touched =
            dp_realloc(core->touched, core->touched_capacity, sizeof(struct core_job *));
    }
    core->touched[core->touched_count++] = job;
    job->touched = core->touched_count;
}

static int compare_numbers(const void *left, const void *right)
{
    const struct core_job *const *a = left, *const *b = right;
    uint64_t x = (*a)->row.number, y = (*b)->row.number;
    return x < y ? -1 : x > y;
}

void dp_core_touched_sort(struct dp_core *core)
{
    size_t kept = 0;
    for (size_t i = 0; i < core->touched_count; i++) {
        if (core->touched[i] != NULL) {
            core->touched[kept++] = core->touched[i];
        }
    }
    core->touched_count = kept;
    if (kept > 1) {
        qsort(core->touched, kept, sizeof(struct core_job *), compare_numbers);
    }
    for (size_t i = 0; i < kept; i++) {
        core->touched[i]->touched = i + 1;
    }
}

void dp_core_touched_clear(struct dp_core *core)
{
    for (size_t i = 0; i < core->touched_count; i++) {
        if (core->touched[i] != NULL) {
            core->touched[i]->touched = 0;
        }
    }
    core->touched_count = 0;
}

struct core_node *dp_core_node_find(const struct dp_core *core, const char *name)
{
    struct core_node *node = NULL;
    HASH_FIND(by_name, core->nodes_by_name, name, strlen(name), node);
    return node;
}

struct core_node *dp_core_node_session(struct dp_core *core, uint64_t session)
{
    struct core_node *node = NULL;
    if (session != 0) {
        HASH_FIND(by_session, core->nodes_by_session, &session, sizeof(session), node);
    }
    return node;
}

void dp_core_node_set_session(struct dp_core *core, struct core_node *node, uint64_t session)
{
    if (node->session != 0) {
        HASH_DELETE(by_session, core->nodes_by_session, node);
    }
    node->session = session;
    if (session != 0) {
        HASH_ADD(by_session, core->nodes_by_session, session, sizeof(session), node);
    }
    // What they are told, and whether they are forgotten, hangs on who can be reached.
    dp_core_node_touch_jobs(node);
}

void dp_core_node_touch_jobs(const struct core_node *node)
{
    for (size_t i = 0; i < node->jobs_count; i++) {
        dp_core_job_touch(node->jobs[i]);
    }
}

struct core_node *dp_core_node_add(struct dp_core *core, const char *name)
{
    if (core->nodes_count >= DP_NODES_MAX) {
        return NULL;
    }
    struct core_node *node = dp_new(struct core_node);
    DP_COPY_TEXT(node->row.name, name);
    node->order = core->nodes_last == NULL ? 0 : core->nodes_last->order + 1;
    core->nodes_count++;
    node->timer.is_node = true;
    node->state = DP_NODE_LATE;
    node->core = core;
    *(core->nodes_last == NULL ? &core->nodes : &core->nodes_last->next) = node;
    core->nodes_last = node;
    HASH_ADD_KEYPTR(by_name, core->nodes_by_name, node->row.name, strlen(node->row.name), node);
    dp_core_admin_returns(core, node);
    for (size_t i = 0; i < core->sided_count; i++) {
        dp_core_sides_meet(core->sided[i], node);
    }
    if (core->homeless) {
        // Jobs of an earlier life may have ranks there.
        FOR_EACH_JOB(core, job)
        {
            dp_core_members_meet(job, node);
        }
    }
    return node;
}

void dp_core_node_free(struct core_node *node)
{
    dp_node_record_deinit(&node->row);
    free(node->foreign);
    free(node->jobs);
    free(node);
}

void dp_core_node_remove(struct dp_core *core, struct core_node *node)
{
    struct core_node **link = &core->nodes, *last = NULL;
    while (*link != node) {
        last = *link;
        link = &(*link)->next;
    }
    *link = node->next;
    core->nodes_last = core->nodes_last == node ? last : core->nodes_last;
    core->nodes_count--;
    HASH_DELETE(by_name, core->nodes_by_name, node);
    dp_core_node_set_session(core, node, 0);
    dp_core_timer_set(core, &node->timer, 0);
    node->next = core->gone_nodes;
    core->gone_nodes = node;
}

void dp_core_reschedule(struct dp_core *core)
{
    core->schedule = true;
}

// Timers: a heap, the earliest first.

static void put(struct dp_core *core, size_t at, struct core_timer *timer)
{
    core->timers[at] = timer;
    timer->at = at + 1;
}

static void sift(struct dp_core *core, size_t at)
{
    struct core_timer *timer = core->timers[at];
    while (at > 0 && core->timers[(at - 1) / 2]->due_ns > timer->due_ns) {
        put(core, at, core->timers[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    for (;;) {
        size_t child = 2 * at + 1;
        if (child + 1 < core->timers_count &&
            core->timers[child + 1]->due_ns < core->timers[child]->due_ns) {
            child++;
        }
        if (child >= core->timers_count || core->timers[child]->due_ns >= timer->due_ns) {
            break;
        }
        put(core, at, core->timers[child]);
        at = child;
    }
    put(core, at, timer);
}

void dp_core_timer_set(struct dp_core *core, struct core_timer *timer, int64_t due_ns)
{
    if (timer->at != 0 && due_ns == timer->due_ns) {
        return;
    }
    timer->due_ns = due_ns;
    if (due_ns == 0) {
        if (timer->at != 0) {
            size_t at = timer->at - 1;
            timer->at = 0;
            struct core_timer *last = core->timers[--core->timers_count];
            if (last != timer) {
                put(core, at, last);
                sift(core, at);
            }
        }
        return;
    }
    if (timer->at == 0) {
        if (core->timers_count == core->timers_capacity) {
            core->timers_capacity = core->timers_capacity == 0 ? 64 : core->timers_capacity * 2;
            core->timers =
                dp_realloc(core->timers, core->timers_capacity, sizeof(struct core_timer *));
        }
        put(core, core->timers_count++, timer);
    }
    sift(core, timer->at - 1);
}

int64_t dp_core_timer_first(const struct dp_core *core)
{
    return core->timers_count == 0 ? 0 : core->timers[0]->due_ns;
}

// Below `at` in the heap; what is late is all at its top.
static size_t collect(const struct dp_core *core, size_t at, struct core_timer **ret_late,
                      size_t count)
{
    if (at >= core->timers_count || core->timers[at]->due_ns > core->now_ns) {
        return count;
    }
    if (ret_late != NULL) {
        ret_late[count] = core->timers[at];
    }
    count = collect(core, 2 * at + 1, ret_late, count + 1);
    return collect(core, 2 * at + 2, ret_late, count);
}

static uint64_t order_of(const struct core_timer *timer)
{
    return timer->is_node ? DP_CONTAINER(timer, const struct core_node, timer)->order
                          : DP_CONTAINER(timer, const struct core_job, timer)->row.number;
}

static int compare_timers(const void *left, const void *right)
{
    const struct core_timer *const *a = left, *const *b = right;
    if ((*a)->is_node != (*b)->is_node) {
        return (*a)->is_node ? -1 : 1;
    }
    uint64_t x = order_of(*a), y = order_of(*b);
    return x < y ? -1 : x > y;
}

size_t dp_core_timers_late(struct dp_core *core, struct core_timer ***ret_late)
{
    size_t count = collect(core, 0, NULL, 0);
    struct core_timer **late =
        dp_arena_alloc(&core->effects->arena, (count + 1) * sizeof(struct core_timer *));
    collect(core, 0, late, 0);
    if (count > 1) {
        qsort(late, count, sizeof(struct core_timer *), compare_timers);
    }
    *ret_late = late;
    return count;
}
