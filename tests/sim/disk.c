// The controller's database: rows that are committed, and transactions that are on their way. They
// are done in order, one may fail, and a crash keeps some of the first.
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "sim.h"

static const size_t row_sizes[DP_RECORD_KIND_COUNT] = {
    [DP_RECORD_JOB] = sizeof(struct dp_job_record) + SIM_SOURCES_MAX,
    [DP_RECORD_RANK] = sizeof(struct dp_rank_record),
    [DP_RECORD_NODE] = sizeof(struct dp_node_record),
    [DP_RECORD_DECISION] = sizeof(struct dp_decision_record),
    [DP_RECORD_QUOTA] = sizeof(struct dp_quota_record),
    [DP_RECORD_ATTEMPT] = sizeof(struct dp_attempt_record),
    [DP_RECORD_AUDIT] = sizeof(struct dp_audit_record),
};

static void commit_job(struct sim *sim, const struct dp_job_record *job)
{
    struct sim_disk *disk = &sim->disk;
    struct sim_row *row = &disk->rows[job->number];
    sim_check_job_row(sim, row, job);
    row->used = true;
    row->job = *job;
    sim->jobs[job->number].recovery = job->recovery; // its ranks read it in the job file
    sim_more_stored(sim, job);
    bool begun = job->state >= DP_STATE_ASSIGNING && !dp_job_state_ended(job->state);
    sim->jobs[job->number].begun |= begun ? UINT64_C(1) << job->attempt % 64 : 0;
    memcpy(row->sources, job->sources.bytes, job->sources.length);
    row->job.sources.bytes = row->sources;
    // What is stored of ranks beyond those of the epoch in force goes.
    row->ranks_count = job->ranks_count < row->ranks_count ? job->ranks_count : row->ranks_count;
    disk->highest = job->number > disk->highest ? job->number : disk->highest;
}

static void commit_rank(struct sim *sim, const struct dp_rank_record *rank)
{
    struct sim_row *row = &sim->disk.rows[rank->job];
    if (rank->rank >= row->ranks_room) {
        size_t room = rank->rank + 4;
        row->ranks = dp_realloc(row->ranks, room, sizeof(*row->ranks));
        memset(row->ranks + row->ranks_room, 0, (room - row->ranks_room) * sizeof(*row->ranks));
        row->ranks_room = room;
    }
    row->ranks[rank->rank] = *rank;
    row->ranks_count = rank->rank >= row->ranks_count ? rank->rank + 1 : row->ranks_count;
}

static void commit_node(struct sim *sim, const struct dp_node_record *node)
{
    for (uint32_t n = 0; n < sim->nodes_count; n++) {
        if (strcmp(sim->nodes[n].name, node->name) == 0) {
            sim->disk.nodes[n] = node->deleted ? (struct dp_node_record){0} : *node;
        }
    }
}

static void commit_decision(struct sim *sim, const struct dp_decision_record *decision)
{
    struct sim_row *row = &sim->disk.rows[decision->job];
    if (row->decision == NULL) {
        row->decision = dp_new(struct dp_decision_record);
    }
    sim_rules_decision(sim, row, decision);
    *row->decision = *decision;
    row->decision->document = (struct dp_buf){0};
}

static void commit_quota(struct sim *sim, const struct dp_quota_record *quota)
{
    sim->disk.quotas[strtoul(quota->user + 1, NULL, 10) % SIM_USERS] = *quota;
}

static void commit_audit(struct sim *sim, const struct dp_audit_record *audit)
{
    uint64_t reply = strtoull(audit->request_id, NULL, 10);
    if (reply > 0 && reply <= sim->calls_count) {
        SIM_TRACE(sim, "call %llu is in the audit: %s", (unsigned long long)reply, audit->outcome);
        sim->calls[reply - 1].kept |= strcmp(audit->outcome, "ok") == 0;
    }
}

static void commit_attempt(struct sim *sim, const struct dp_attempt_record *attempt)
{
    sim_choices_attempt(sim, attempt);
}

static void commit(struct sim *sim, const struct sim_transaction *transaction)
{
    for (size_t i = 0; i < transaction->count && !transaction->fails; i++) {
        const struct dp_record *record = &transaction->records[i];
        if (record->kind == DP_RECORD_JOB) {
            commit_job(sim, record->row);
        } else if (record->kind == DP_RECORD_RANK) {
            commit_rank(sim, record->row);
        } else if (record->kind == DP_RECORD_NODE) {
            commit_node(sim, record->row);
        } else if (record->kind == DP_RECORD_DECISION) {
            commit_decision(sim, record->row);
        } else if (record->kind == DP_RECORD_ATTEMPT) {
            commit_attempt(sim, record->row);
        } else if (record->kind == DP_RECORD_AUDIT) {
            commit_audit(sim, record->row);
        } else {
            commit_quota(sim, record->row);
        }
    }
}

static void drop_first(struct sim_disk *disk)
{
    struct sim_transaction *first = disk->first;
    disk->first = first->next;
    disk->queued--;
    if (disk->first == NULL) {
        disk->last = &disk->first;
    }
    free(first->records);
    free(first->rows);
    free(first);
}

// Borrowed texts outlive the world, so rows need no deep copy.
static void copy_row(const struct sim_disk *disk, const struct dp_record *record, void *to)
{
    if (record->kind != DP_RECORD_JOB) {
        memcpy(to, record->row, row_sizes[record->kind]);
    } else {
        struct dp_job_record *job = to;
        *job = *(const struct dp_job_record *)record->row;
        char *sources = (char *)(job + 1);
        DP_CHECK(job->sources.length <= SIM_SOURCES_MAX);
        if (job->sources.length > 0) {
            memcpy(sources, job->sources.bytes, job->sources.length);
        }
        job->sources = (struct dp_buf){sources, job->sources.length, 0};
        struct sim_row *row = (struct sim_row *)&disk->rows[job->number];
        if (job->job_toml.length > 0 && job->job_toml.length < sizeof(row->text)) {
            memcpy(row->text, job->job_toml.bytes, job->job_toml.length);
        }
        job->job_toml = (struct dp_buf){row->text, job->job_toml.length, 0};
        job->plan = (struct dp_buf){0};
    }
    if (record->kind == DP_RECORD_RANK) {
        // The table has no columns for these.
        struct dp_rank_record *rank = to;
        rank->gone = rank->is_held = rank->unkillable = false;
        rank->final_step = 0;
    }
    if (record->kind == DP_RECORD_NODE) {
        struct dp_node_record *node = to;
        node->profile = (struct dp_buf){(char *)"{}", 2, 0};
        node->hardware = (struct dp_buf){0};
    }
}

static void copy_records(struct sim_disk *disk, const struct dp_effects *effects,
                         struct sim_transaction *transaction)
{
    size_t bytes = 0, count = 0;
    for (size_t i = 0; i < effects->records_count; i++) {
        bytes += (row_sizes[effects->records[i].kind] + 15) & ~(size_t)15;
        count += row_sizes[effects->records[i].kind] > 0;
    }
    if (count == 0) {
        return;
    }
    transaction->records = dp_new_array(struct dp_record, count);
    char *rows = transaction->rows = malloc(bytes);
    for (size_t i = 0; i < effects->records_count; i++) {
        const struct dp_record *record = &effects->records[i];
        if (row_sizes[record->kind] > 0) {
            copy_row(disk, record, rows);
            transaction->records[transaction->count++] = (struct dp_record){record->kind, rows};
            rows += (row_sizes[record->kind] + 15) & ~(size_t)15;
        }
    }
}

void sim_disk_store(struct sim *sim, const struct dp_effects *effects)
{
    struct sim_disk *disk = &sim->disk;
    struct sim_transaction *transaction = dp_new(struct sim_transaction);
    transaction->token = effects->store_token;
    copy_records(disk, effects, transaction);
    int64_t begin_ns = disk->free_ns > sim->now_ns ? disk->free_ns : sim->now_ns;
    int64_t slow_us = sim->now_ns < disk->slow_ns ? 700000 : sim->disk_us;
    disk->free_ns = begin_ns + sim_between(sim, 20, slow_us) * 1000;
    if (disk->free_ns - sim->now_ns > SIM_MS(1000)) {
        disk->behind_ns = disk->free_ns;
    }
    transaction->fails = sim->now_ns < disk->fails_ns && sim_chance(sim, 800);
    *disk->last = transaction;
    disk->last = &transaction->next;
    disk->queued++;
    sim_push(sim, disk->free_ns, SIM_EV_STORED, 0, sim->controller.life, NULL);
}

void sim_disk_stored(struct sim *sim)
{
    struct sim_transaction *transaction = sim->disk.first;
    commit(sim, transaction);
    struct dp_core_event event = {.kind = DP_EVENT_STORED, .stored.token = transaction->token};
    event.stored.error.status = transaction->fails ? DP_IO : DP_OK;
    SIM_TRACE(sim, "transaction %llu with %zu rows %s", (unsigned long long)transaction->token,
              transaction->count, transaction->fails ? "fails" : "is on disk");
    drop_first(&sim->disk);
    sim_controller_event(sim, &event);
}

void sim_disk_crash(struct sim *sim)
{
    int64_t written = sim_between(sim, 0, sim->disk.queued);
    while (sim->disk.first != NULL) {
        if (written-- > 0) {
            commit(sim, sim->disk.first);
        }
        drop_first(&sim->disk);
    }
    sim->disk.free_ns = 0;
}

static void load_jobs(struct sim *sim)
{
    for (uint64_t number = 1; number <= SIM_JOBS_MAX; number++) {
        const struct sim_row *row = &sim->disk.rows[number];
        sim->jobs[number].state = row->used ? row->job.state : DP_STATE_UNKNOWN;
    }
    for (uint64_t number = 1; number <= sim->disk.highest; number++) {
        const struct sim_row *row = &sim->disk.rows[number];
        if (row->used && !dp_job_state_ended(row->job.state)) {
            struct dp_core_event job = {.kind = DP_EVENT_LOAD_JOB,
                                        .load_job = {&row->job, row->ranks, row->ranks_count}};
            sim_controller_event(sim, &job);
            if (row->decision != NULL) {
                struct dp_core_event event = {.kind = DP_EVENT_LOAD_DECISION,
                                              .load_decision = row->decision};
                sim_controller_event(sim, &event);
            }
        }
    }
}

void sim_disk_load(struct sim *sim)
{
    uint64_t ended[SIM_JOBS_MAX];
    size_t count = 0;
    for (uint64_t number = 1; number <= sim->disk.highest; number++) {
        const struct sim_row *row = &sim->disk.rows[number];
        if (row->used && dp_job_state_ended(row->job.state)) {
            ended[count++] = number;
        }
    }
    struct dp_core_event event = {.kind = DP_EVENT_LOAD_ENDED,
                                  .ended = {ended, count, sim->disk.highest}};
    sim_controller_event(sim, &event);
    for (uint32_t n = 0; n < sim->nodes_count; n++) {
        if (sim->disk.nodes[n].name[0] != '\0') {
            struct dp_core_event node = {.kind = DP_EVENT_LOAD_NODE,
                                         .load_node = &sim->disk.nodes[n]};
            sim_controller_event(sim, &node);
        }
    }
    for (uint32_t user = 0; user < SIM_USERS; user++) {
        if (sim->disk.quotas[user].user[0] != '\0') {
            struct dp_core_event quota = {.kind = DP_EVENT_LOAD_QUOTA,
                                          .load_quota = &sim->disk.quotas[user]};
            sim_controller_event(sim, &quota);
        }
    }
    load_jobs(sim);
    sim_choices_loaded(sim);
}

void sim_disk_deinit(struct sim *sim)
{
    while (sim->disk.first != NULL) {
        drop_first(&sim->disk);
    }
    for (uint64_t number = 0; number <= SIM_JOBS_MAX; number++) {
        free(sim->disk.rows[number].ranks);
        free(sim->disk.rows[number].decision);
    }
}
