// How many ranks a user may have at once.
#include "core_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"

static struct core_quota *find(const struct dp_core *core, const char *user)
{
    struct core_quota *quota = NULL;
    HASH_FIND(by_user, core->quotas, user, strlen(user), quota);
    return quota;
}

static struct core_quota *add(struct dp_core *core, const char *user)
{
    struct core_quota *quota = dp_new(struct core_quota);
    DP_COPY_TEXT(quota->row.user, user);
    HASH_ADD_KEYPTR(by_user, core->quotas, quota->row.user, strlen(quota->row.user), quota);
    return quota;
}

static struct core_quota *next_of(const struct core_quota *quota)
{
    return quota->by_user.next;
}

void dp_core_quotas_free(struct dp_core *core)
{
    struct core_quota *quota = core->quotas;
    HASH_CLEAR(by_user, core->quotas);
    while (quota != NULL) {
        struct core_quota *next = next_of(quota);
        free(quota);
        quota = next;
    }
}

void dp_core_load_quota(struct dp_core *core, const struct dp_quota_record *row)
{
    struct core_quota *quota = find(core, row->user);
    quota = quota == NULL ? add(core, row->user) : quota;
    quota->row = *row;
}

// Ranks that a job has, or will have when its plan is as it was asked for.
static uint32_t ranks_of(const struct core_job *job)
{
    if (job->row.state == DP_STATE_QUEUED) {
        return job->planning ? (uint32_t)job->row.ranks_wanted : 0;
    }
    // With its slots.
    return job->gives_back && dp_job_state_ended(job->row.state) ? 0 : (uint32_t)job->ranks_count;
}

static void count_job(const struct dp_core *core, const struct core_job *job)
{
    struct core_quota *quota = find(core, job->row.user);
    if (quota != NULL) {
        quota->used += ranks_of(job);
    }
}

void dp_core_quotas_count(struct dp_core *core)
{
    for (struct core_quota *quota = core->quotas; quota != NULL; quota = next_of(quota)) {
        quota->used = 0;
    }
    if (core->quotas == NULL) {
        return;
    }
    FOR_EACH_PLACED_JOB(core, job)
    {
        count_job(core, job);
    }
    if (core->planned != NULL) {
        count_job(core, core->planned);
    }
}

uint32_t dp_core_quota_left(struct dp_core *core, const struct core_job *job)
{
    const struct core_quota *quota = find(core, job->row.user);
    if (quota == NULL || quota->row.deleted) {
        return UINT32_MAX;
    }
    return quota->row.ranks > quota->used ? quota->row.ranks - quota->used : 0;
}

void dp_core_quota_suppose(struct dp_core *core, const struct core_job *job, int64_t ranks)
{
    struct core_quota *quota = find(core, job->row.user);
    if (quota != NULL) {
        quota->used = (uint32_t)((int64_t)quota->used + ranks);
    }
}

void dp_core_quota_take(struct dp_core *core, const struct core_job *job)
{
    count_job(core, job);
}

bool dp_core_quota_allows(struct dp_core *core, const struct core_job *job, char *ret_text,
                          size_t size)
{
    uint32_t wanted = (uint32_t)job->row.ranks_wanted;
    if (dp_core_quota_left(core, job) >= wanted) {
        return true;
    }
    const struct core_quota *quota = find(core, job->row.user);
    snprintf(ret_text, size, "over quota: %s uses %u of %u ranks, and this job needs %u",
             quota->row.user, quota->used, quota->row.ranks, wanted);
    return false;
}

void dp_core_quota_ask(struct dp_core *core, const struct dp_quota_ask *ask)
{
    struct core_quota *quota = find(core, ask->user);
    if (quota == NULL && ask->none) {
        dp_core_reply_row(core, ask->reply, ask->user); // there was none
        return;
    }
    quota = quota == NULL ? add(core, ask->user) : quota;
    quota->row.ranks = ask->none ? 0 : ask->ranks;
    quota->row.deleted = ask->none;
    quota->row.updated_ns = core->wall_ns;
    if (ask->none) {
        dp_core_note(core, NULL, NULL, false, "quota", "%s: no bound%s%s", ask->user,
                     ask->by[0] == '\0' ? "" : ", by ", ask->by);
    } else {
        dp_core_note(core, NULL, NULL, false, "quota", "%s: %u ranks at once%s%s", ask->user,
                     ask->ranks, ask->by[0] == '\0' ? "" : ", by ", ask->by);
    }
    dp_core_store(core, DP_RECORD_QUOTA, &quota->row);
    quota->token = core->rows_token = dp_core_token(core);
    dp_core_reply_row(core, ask->reply, ask->user);
    dp_core_reschedule(core);
}

// What a full disk kept off is tried again; until then it holds all the same.
void dp_core_quotas_stored(struct dp_core *core, const struct dp_stored *stored)
{
    struct core_quota *quota = core->quotas;
    while (quota != NULL) {
        struct core_quota *next = next_of(quota);
        if (quota->token == stored->token) {
            quota->token = 0;
            quota->unstored = stored->error.status != DP_OK;
            if (quota->row.deleted && !quota->unstored) {
                HASH_DELETE(by_user, core->quotas, quota);
                free(quota);
            }
        }
        quota = next;
    }
}

void dp_core_quotas_store(struct dp_core *core)
{
    for (struct core_quota *quota = core->quotas; quota != NULL; quota = next_of(quota)) {
        if (quota->unstored) {
            quota->unstored = false;
            dp_core_store(core, DP_RECORD_QUOTA, &quota->row);
            quota->token = core->rows_token = dp_core_token(core);
        }
    }
}

static int compare_users(const struct core_quota *left, const struct core_quota *right)
{
    return strcmp(left->row.user, right->row.user);
}

size_t dp_core_quotas(struct dp_core *core, const struct dp_quota_record **ret_rows,
                      uint32_t *ret_used, size_t max)
{
    size_t count = 0;
    dp_core_quotas_count(core);
    HASH_SRT(by_user, core->quotas, compare_users);
    for (const struct core_quota *quota = core->quotas; quota != NULL; quota = next_of(quota)) {
        if (!quota->row.deleted && count < max) {
            ret_rows[count] = &quota->row;
            ret_used[count++] = quota->used;
        }
    }
    return count;
}
