#include "store_internal.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"

#define USAGE_COLUMNS(p)                                                                           \
    p "_step INTEGER NOT NULL, " p "_period_ns INTEGER NOT NULL, " p                               \
      "_forward_ns INTEGER NOT NULL, " p "_backward_ns INTEGER NOT NULL, " p                       \
      "_weight_ns INTEGER NOT NULL, " p "_pair_ns INTEGER NOT NULL, " p                            \
      "_optimizer_ns INTEGER NOT NULL, " p "_comm_exposed_ns INTEGER NOT NULL, " p                 \
      "_idle_ns INTEGER NOT NULL, " p "_step_ns INTEGER NOT NULL, " p                              \
      "_cpu_ns INTEGER NOT NULL, " p "_live_chunks INTEGER NOT NULL, " p                           \
      "_peak_chunks INTEGER NOT NULL, " p "_live_bytes INTEGER NOT NULL, " p                       \
      "_peak_bytes INTEGER NOT NULL, " p "_tokens_per_s REAL NOT NULL"

static const char first_schema[] =
    "CREATE TABLE jobs (number INTEGER PRIMARY KEY, token INTEGER NOT NULL, "
    "  id TEXT NOT NULL UNIQUE, name TEXT NOT NULL, request_id TEXT NOT NULL, "
    "  state INTEGER NOT NULL, outcome INTEGER NOT NULL, reason TEXT NOT NULL, "
    "  message TEXT NOT NULL, cause_weight INTEGER NOT NULL, attempt INTEGER NOT NULL, "
    "  epoch INTEGER NOT NULL, job_toml BLOB NOT NULL, plan BLOB NOT NULL, "
    "  ranks_wanted INTEGER NOT NULL, ranks_fixed INTEGER NOT NULL, "
    "  needs_profile INTEGER NOT NULL, device TEXT NOT NULL, submitted_ns INTEGER NOT NULL, "
    "  started_ns INTEGER NOT NULL, ended_ns INTEGER NOT NULL, first_step_ns INTEGER NOT NULL, "
    "  steps_total INTEGER NOT NULL, tokens_per_step INTEGER NOT NULL, checkpoint TEXT NOT NULL, "
    "  unigram_entropy REAL NOT NULL, corpus_bytes INTEGER NOT NULL, holdout_loss REAL, "
    "  holdout_known INTEGER NOT NULL) STRICT;"
    "CREATE INDEX jobs_by_name ON jobs (name);"
    "CREATE UNIQUE INDEX jobs_by_request ON jobs (request_id) WHERE request_id <> '';"
    "CREATE TABLE ranks (job INTEGER NOT NULL REFERENCES jobs, rank INTEGER NOT NULL, "
    "  node TEXT NOT NULL, slot INTEGER NOT NULL, phase INTEGER NOT NULL, step INTEGER NOT NULL, "
    "  pid INTEGER NOT NULL, exit_status INTEGER NOT NULL, signal INTEGER NOT NULL, "
    "  address TEXT NOT NULL, parameters INTEGER NOT NULL, finished INTEGER NOT NULL, "
    "  ok INTEGER NOT NULL, not_finite INTEGER NOT NULL, peer_lost INTEGER NOT NULL, "
    "  action TEXT NOT NULL, error TEXT NOT NULL, updated_ns INTEGER NOT NULL, "
    "  steps_measured INTEGER NOT NULL, busy_ns INTEGER NOT NULL, bubble_ns INTEGER NOT NULL, "
    "  peak_chunks INTEGER NOT NULL, peak_bytes INTEGER NOT NULL, " USAGE_COLUMNS(
        "usage") ", " USAGE_COLUMNS("total") ", "
                                             "  PRIMARY KEY (job, rank)) STRICT, WITHOUT ROWID;"
                                             "CREATE TABLE steps (job INTEGER NOT NULL REFERENCES "
                                             "jobs, step INTEGER NOT NULL, "
                                             "  loss REAL, loss_known INTEGER NOT NULL, step_ns "
                                             "INTEGER NOT NULL, tokens INTEGER NOT NULL, "
                                             "  lr REAL, grad_norm REAL, time_ns INTEGER NOT NULL, "
                                             "  PRIMARY KEY (job, step)) STRICT, WITHOUT ROWID;"
                                             "CREATE TABLE traces (job INTEGER NOT NULL REFERENCES "
                                             "jobs, step INTEGER NOT NULL, "
                                             "  rank INTEGER NOT NULL, spans BLOB NOT NULL, "
                                             "PRIMARY KEY (job, step, rank)) STRICT;"
                                             "CREATE TABLE nodes (name TEXT PRIMARY KEY, boot_id "
                                             "TEXT NOT NULL, instance TEXT NOT NULL, "
                                             "  version TEXT NOT NULL, address TEXT NOT NULL, "
                                             "slots INTEGER NOT NULL, "
                                             "  cores INTEGER NOT NULL, memory_bytes INTEGER NOT "
                                             "NULL, accelerator TEXT NOT NULL, "
                                             "  data_host TEXT NOT NULL, profile BLOB NOT NULL, "
                                             "lease_ms INTEGER NOT NULL, "
                                             "  last_seen_ns INTEGER NOT NULL) STRICT;"
                                             "CREATE TABLE events (id INTEGER PRIMARY KEY "
                                             "AUTOINCREMENT, time_ns INTEGER NOT NULL, "
                                             "  job TEXT NOT NULL, node TEXT NOT NULL, kind TEXT "
                                             "NOT NULL, message TEXT NOT NULL) STRICT;"
                                             "CREATE INDEX events_by_job ON events (job, id);"
                                             "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT "
                                             "NOT NULL) STRICT;"
                                             "INSERT INTO meta VALUES ('created', "
                                             "strftime('%Y-%m-%dT%H:%M:%fZ', 'now'));";

// LOST was an end before; now a job goes on from it.
static const char fences_and_parts[] =
    "ALTER TABLE nodes ADD COLUMN fence_ms INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE jobs ADD COLUMN resumed_step INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE ranks ADD COLUMN stopped INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE ranks ADD COLUMN measured_ns INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE ranks ADD COLUMN exchange_ns INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE ranks ADD COLUMN grad_sync_ns INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE ranks ADD COLUMN optimizer_ns INTEGER NOT NULL DEFAULT 0;"
    "UPDATE jobs SET state = 9 WHERE state = 11;";

// A row that says deleted goes as soon as it is written: names may be used again, from version 1.
static const char clusters_and_hardware[] =
    "CREATE TABLE clusters (name TEXT PRIMARY KEY, version INTEGER NOT NULL, toml BLOB NOT NULL, "
    "  updated_ns INTEGER NOT NULL, deleted INTEGER NOT NULL, accelerator TEXT NOT NULL, "
    "  hosts INTEGER NOT NULL, accelerators INTEGER NOT NULL) STRICT;"
    "CREATE TRIGGER clusters_inserted AFTER INSERT ON clusters WHEN NEW.deleted "
    "  BEGIN DELETE FROM clusters WHERE name = NEW.name; END;"
    "CREATE TRIGGER clusters_updated AFTER UPDATE ON clusters WHEN NEW.deleted "
    "  BEGIN DELETE FROM clusters WHERE name = NEW.name; END;"
    "ALTER TABLE nodes ADD COLUMN hardware BLOB NOT NULL DEFAULT x'';";

// Of a node's history the newest 64 rows are kept (DP_PROFILES_KEPT).
static const char profiles_and_lessons[] =
    "CREATE TABLE profiles (node TEXT NOT NULL, time_ns INTEGER NOT NULL, source TEXT NOT NULL, "
    "  job TEXT NOT NULL, document BLOB NOT NULL, PRIMARY KEY (node, time_ns, source)) STRICT;"
    "CREATE TRIGGER profiles_kept AFTER INSERT ON profiles BEGIN DELETE FROM profiles "
    "  WHERE node = NEW.node AND time_ns <= (SELECT time_ns FROM profiles WHERE node = NEW.node "
    "    ORDER BY time_ns DESC LIMIT 1 OFFSET 64); END;"
    "CREATE TABLE lessons (job INTEGER PRIMARY KEY, document BLOB NOT NULL) STRICT;"
    // What nodes measured before there was a history.
    "INSERT INTO profiles SELECT name, last_seen_ns, 'calibration', '', profile FROM nodes "
    "  WHERE length(profile) > 0;";

static const char loads_of_experts[] =
    "ALTER TABLE ranks ADD COLUMN load_skew REAL NOT NULL DEFAULT 0;"
    "ALTER TABLE ranks ADD COLUMN load_layer INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE ranks ADD COLUMN load_expert INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE ranks ADD COLUMN load_rank REAL NOT NULL DEFAULT 0;";

static const char communication[] =
    "ALTER TABLE ranks ADD COLUMN comm_dispatch_f_total_ns INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE ranks ADD COLUMN comm_dispatch_f_exposed_ns INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE ranks ADD COLUMN comm_combine_f_total_ns INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE ranks ADD COLUMN comm_combine_f_exposed_ns INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE ranks ADD COLUMN comm_combine_b_total_ns INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE ranks ADD COLUMN comm_combine_b_exposed_ns INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE ranks ADD COLUMN comm_dispatch_b_total_ns INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE ranks ADD COLUMN comm_dispatch_b_exposed_ns INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE ranks ADD COLUMN comm_hop_f_total_ns INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE ranks ADD COLUMN comm_hop_f_exposed_ns INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE ranks ADD COLUMN comm_hop_b_total_ns INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE ranks ADD COLUMN comm_hop_b_exposed_ns INTEGER NOT NULL DEFAULT 0;";

static const char device_memory[] =
    "ALTER TABLE ranks ADD COLUMN memory_weights INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE ranks ADD COLUMN memory_gradients INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE ranks ADD COLUMN memory_optimizer INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE ranks ADD COLUMN memory_activations INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE ranks ADD COLUMN memory_exchange INTEGER NOT NULL DEFAULT 0;";

static const char tokens_of_corpus[] =
    "ALTER TABLE jobs ADD COLUMN corpus_tokens INTEGER NOT NULL DEFAULT 0;";

// Ranks of an epoch that was replaced by one with fewer go with the row that says so.
static const char reassignments[] =
    "ALTER TABLE jobs ADD COLUMN epoch_used INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE jobs ADD COLUMN ranks_count INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE jobs ADD COLUMN recovery INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE jobs ADD COLUMN adapt INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE jobs ADD COLUMN source_epoch INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE jobs ADD COLUMN source_step INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE jobs ADD COLUMN sources BLOB NOT NULL DEFAULT x'';"
    "UPDATE jobs SET epoch_used = epoch, "
    "  ranks_count = (SELECT count(*) FROM ranks WHERE ranks.job = jobs.number);"
    "CREATE TRIGGER ranks_fewer AFTER UPDATE OF ranks_count ON jobs "
    "  WHEN NEW.ranks_count < OLD.ranks_count "
    "  BEGIN DELETE FROM ranks WHERE job = NEW.number AND rank >= NEW.ranks_count; END;"
    "CREATE TABLE decisions (job INTEGER NOT NULL, number INTEGER NOT NULL, "
    "  time_ns INTEGER NOT NULL, state INTEGER NOT NULL, step INTEGER NOT NULL, "
    "  attempt INTEGER NOT NULL, epoch INTEGER NOT NULL, kind TEXT NOT NULL, "
    "  cause TEXT NOT NULL, action TEXT NOT NULL, outcome TEXT NOT NULL, "
    "  before_step_ns INTEGER NOT NULL, predicted_step_ns INTEGER NOT NULL, "
    "  predicted_pause_ns INTEGER NOT NULL, measured_step_ns INTEGER NOT NULL, "
    "  measured_pause_ns INTEGER NOT NULL, trust_before REAL NOT NULL, "
    "  trust_after REAL NOT NULL, document BLOB NOT NULL, PRIMARY KEY (job, number)) STRICT;";

// Rows that say deleted go as soon as they are written, as those of clusters.
static const char queue_and_attempts[] =
    "ALTER TABLE jobs ADD COLUMN user TEXT NOT NULL DEFAULT '';"
    "ALTER TABLE jobs ADD COLUMN priority INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE jobs ADD COLUMN preemptible INTEGER NOT NULL DEFAULT 1;"
    "ALTER TABLE jobs ADD COLUMN retry_max INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE jobs ADD COLUMN retry_backoff_s INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE jobs ADD COLUMN no_progress_max INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE jobs ADD COLUMN faults INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE jobs ADD COLUMN stalled INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE jobs ADD COLUMN preemptions INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE jobs ADD COLUMN retry_at_ns INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE jobs ADD COLUMN queued_ns INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE jobs ADD COLUMN checkpoint_step INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE nodes ADD COLUMN admin INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE nodes ADD COLUMN admin_reason TEXT NOT NULL DEFAULT '';"
    "ALTER TABLE nodes ADD COLUMN admin_by TEXT NOT NULL DEFAULT '';"
    "ALTER TABLE nodes ADD COLUMN admin_since_ns INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE nodes ADD COLUMN drain_deadline_ns INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE nodes ADD COLUMN place TEXT NOT NULL DEFAULT '';"
    "ALTER TABLE nodes ADD COLUMN deleted INTEGER NOT NULL DEFAULT 0;"
    "CREATE TRIGGER nodes_inserted AFTER INSERT ON nodes WHEN NEW.deleted "
    "  BEGIN DELETE FROM nodes WHERE name = NEW.name; END;"
    "CREATE TRIGGER nodes_updated AFTER UPDATE ON nodes WHEN NEW.deleted "
    "  BEGIN DELETE FROM nodes WHERE name = NEW.name; END;"
    "CREATE TABLE attempts (job INTEGER NOT NULL, attempt INTEGER NOT NULL, "
    "  started_ns INTEGER NOT NULL, ended_ns INTEGER NOT NULL, first_step INTEGER NOT NULL, "
    "  last_step INTEGER NOT NULL, checkpoint_step INTEGER NOT NULL, reason TEXT NOT NULL, "
    "  message TEXT NOT NULL, PRIMARY KEY (job, attempt)) STRICT, WITHOUT ROWID;"
    "CREATE TABLE quotas (user TEXT PRIMARY KEY, ranks INTEGER NOT NULL, "
    "  updated_ns INTEGER NOT NULL, deleted INTEGER NOT NULL) STRICT;"
    "CREATE TRIGGER quotas_inserted AFTER INSERT ON quotas WHEN NEW.deleted "
    "  BEGIN DELETE FROM quotas WHERE user = NEW.user; END;"
    "CREATE TRIGGER quotas_updated AFTER UPDATE ON quotas WHEN NEW.deleted "
    "  BEGIN DELETE FROM quotas WHERE user = NEW.user; END;";

// Who changed what: never changed and never taken back. And what stays of jobs whose rows are no
// longer kept: their numbers, so that they are not given again and what still runs of them is known
// to be over.
static const char audit_and_retention[] =
    "CREATE TABLE audit (id INTEGER PRIMARY KEY AUTOINCREMENT, time_ns INTEGER NOT NULL, "
    "  user TEXT NOT NULL, peer TEXT NOT NULL, door TEXT NOT NULL, verb TEXT NOT NULL, "
    "  object TEXT NOT NULL, request_id TEXT NOT NULL, before TEXT NOT NULL, "
    "  after TEXT NOT NULL, outcome TEXT NOT NULL, message TEXT NOT NULL) STRICT;"
    "CREATE INDEX audit_by_object ON audit (object, id);"
    "CREATE INDEX audit_by_time ON audit (time_ns);"
    "CREATE TRIGGER audit_stays BEFORE UPDATE ON audit "
    "  BEGIN SELECT RAISE(ABORT, 'the audit is only added to'); END;"
    "CREATE TRIGGER audit_is_kept BEFORE DELETE ON audit "
    "  BEGIN SELECT RAISE(ABORT, 'the audit is only added to'); END;"
    "CREATE TABLE forgotten (number INTEGER PRIMARY KEY) STRICT;"
    "CREATE INDEX jobs_by_state ON jobs (state, number);"
    "CREATE INDEX jobs_by_end ON jobs (ended_ns, number);";

static const char verdicts[] =
    "ALTER TABLE jobs ADD COLUMN straggler_enter REAL NOT NULL DEFAULT 0;"
    "CREATE TABLE verdicts (id INTEGER PRIMARY KEY AUTOINCREMENT, job INTEGER NOT NULL, "
    "  time_ns INTEGER NOT NULL, attempt INTEGER NOT NULL, epoch INTEGER NOT NULL, "
    "  state TEXT NOT NULL, cause TEXT NOT NULL, rank INTEGER NOT NULL, peer INTEGER NOT NULL, "
    "  stage INTEGER NOT NULL, node TEXT NOT NULL, slowdown REAL NOT NULL, lost_s REAL NOT NULL, "
    "  onset_step INTEGER NOT NULL, step INTEGER NOT NULL, text TEXT NOT NULL) STRICT;"
    "CREATE INDEX verdicts_by_job ON verdicts (job, id);";

static const char nodes_to_avoid[] =
    "ALTER TABLE jobs ADD COLUMN avoid TEXT NOT NULL DEFAULT '';"
    "ALTER TABLE jobs ADD COLUMN avoid_why TEXT NOT NULL DEFAULT '';";

static const char ranks_once_had[] =
    "ALTER TABLE jobs ADD COLUMN ranks_full INTEGER NOT NULL DEFAULT 0;";

static const char attempts_of_steps[] =
    "ALTER TABLE steps ADD COLUMN attempt INTEGER NOT NULL DEFAULT 0;";

// Requests are carried out once: what was done is known by the id that it was asked under.
static const char holds_and_requests[] =
    "ALTER TABLE jobs ADD COLUMN held_ns INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE jobs ADD COLUMN held_by TEXT NOT NULL DEFAULT '';"
    "ALTER TABLE jobs ADD COLUMN held_reason TEXT NOT NULL DEFAULT '';"
    "CREATE INDEX audit_by_request ON audit (request_id) WHERE request_id <> '';";

static const char evaluations[] =
    "ALTER TABLE ranks ADD COLUMN usage_evaluation_ns INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE ranks ADD COLUMN total_evaluation_ns INTEGER NOT NULL DEFAULT 0;";

const struct dp_migration dp_migrations[] = {
    {first_schema},     {fences_and_parts},   {clusters_and_hardware}, {profiles_and_lessons},
    {loads_of_experts}, {communication},      {device_memory},         {tokens_of_corpus},
    {reassignments},    {queue_and_attempts}, {audit_and_retention},   {verdicts},
    {nodes_to_avoid},   {ranks_once_had},     {attempts_of_steps},     {holds_and_requests},
    {evaluations},
};
const size_t dp_migrations_count = DP_ARRAY_LENGTH(dp_migrations);

uint32_t dp_store_schema(void)
{
    return (uint32_t)dp_migrations_count;
}

// Under its name only when it is whole, whatever had that name before.
static dp_status copy_database(sqlite3 *db, const char *target, struct dp_error *err)
{
    DP_AUTO_FREE char *part = dp_asprintf("%s.part", target);
    unlink(part);
    dp_status status = dp_store_make_file(part, err);
    if (status != DP_OK) {
        return status;
    }
    sqlite3 *copy = NULL;
    int code = sqlite3_open_v2(part, &copy, SQLITE_OPEN_READWRITE, NULL);
    if (code == SQLITE_OK) {
        sqlite3_backup *backup = sqlite3_backup_init(copy, "main", db, "main");
        if (backup != NULL) {
            sqlite3_backup_step(backup, -1);
            sqlite3_backup_finish(backup);
        }
        code = sqlite3_errcode(copy);
    }
    if (code != SQLITE_OK) {
        status = dp_store_fail(err, copy, code, "cannot copy the database before changing it");
        dp_fail_in(err, "%s", target);
    }
    sqlite3_close(copy);
    if (status == DP_OK && rename(part, target) != 0) {
        status = dp_fail_errno(err, errno, "cannot make %s", target);
    }
    if (status != DP_OK) {
        unlink(part);
    }
    return status;
}

static dp_status apply(sqlite3 *db, const struct dp_migration *migration, size_t version,
                       struct dp_error *err)
{
    DP_AUTO_FREE char *mark = dp_asprintf("PRAGMA user_version = %zu", version);
    dp_status status = dp_store_execute(db, "BEGIN IMMEDIATE", err);
    int64_t found = 0;
    if (status == DP_OK) {
        // Another process may have been here since the version was read.
        status = dp_store_integer(db, "PRAGMA user_version", &found, err);
    }
    bool done = found >= (int64_t)version;
    if (status == DP_OK && !done) {
        status = dp_store_execute(db, migration->sql, err);
    }
    if (status == DP_OK && !done) {
        status = dp_store_execute(db, mark, err);
    }
    if (status == DP_OK) {
        status = dp_store_execute(db, "COMMIT", err);
    }
    if (status != DP_OK) {
        sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL);
        return dp_fail_in(err, "bringing the database to schema %zu", version);
    }
    return DP_OK;
}

dp_status dp_store_migrate(sqlite3 *db, const char *path, const struct dp_migration *migrations,
                           size_t count, struct dp_error *err)
{
    int64_t version = 0;
    dp_status status = dp_store_integer(db, "PRAGMA user_version", &version, err);
    if (status != DP_OK) {
        return status;
    }
    if (version < 0 || version > (int64_t)count) {
        return dp_fail(err, DP_CONFLICT,
                       "%s has schema %lld and this dp-controller knows up to %zu: it was written "
                       "by a newer version; run that version, or restore a copy made before",
                       path, (long long)version, count);
    }
    if (version > 0 && version < (int64_t)count) {
        DP_AUTO_FREE char *backup = dp_asprintf("%s.backup-v%lld", path, (long long)version);
        status = copy_database(db, backup, err);
    }
    for (size_t i = (size_t)version; status == DP_OK && i < count; i++) {
        status = apply(db, &migrations[i], i + 1, err);
    }
    return status;
}
