// Rows to columns and back, by tables.
#include "store_internal.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"

#define COLUMN_AS(column, type, row, member)                                                       \
    {                                                                                              \
        column, type, offsetof(struct row, member), sizeof(((struct row *)NULL)->member)           \
    }
#define COLUMN(type, row, member) COLUMN_AS(#member, type, row, member)

#define JOB(type, member) COLUMN(DP_COLUMN_##type, dp_job_record, member)
static const struct dp_column job_columns[] = {
    JOB(I64, number),        JOB(I64, token),           JOB(TEXT, id),
    JOB(TEXT, name),         JOB(TEXT, request_id),     JOB(U32, state),
    JOB(U32, outcome),       JOB(TEXT, reason),         JOB(TEXT, message),
    JOB(I32, cause_weight),  JOB(U32, attempt),         JOB(U32, epoch),
    JOB(BLOB, job_toml),     JOB(BLOB, plan),           JOB(I32, ranks_wanted),
    JOB(BOOL, ranks_fixed),  JOB(BOOL, needs_profile),  JOB(TEXT, device),
    JOB(I64, submitted_ns),  JOB(I64, started_ns),      JOB(I64, ended_ns),
    JOB(I64, first_step_ns), JOB(I64, steps_total),     JOB(I64, tokens_per_step),
    JOB(TEXT, checkpoint),   JOB(F64, unigram_entropy), JOB(I64, corpus_bytes),
    JOB(F64, holdout_loss),  JOB(BOOL, holdout_known),  JOB(I64, resumed_step),
    JOB(I64, corpus_tokens), JOB(U32, epoch_used),      JOB(U32, ranks_count),
    JOB(U32, recovery),      JOB(U32, adapt),           JOB(F64, straggler_enter),
    JOB(U32, source_epoch),  JOB(I64, source_step),     JOB(BLOB, sources),
    JOB(TEXT, user),         JOB(I32, priority),        JOB(BOOL, preemptible),
    JOB(U32, retry_max),     JOB(U32, retry_backoff_s), JOB(U32, no_progress_max),
    JOB(U32, faults),        JOB(U32, stalled),         JOB(U32, preemptions),
    JOB(I64, retry_at_ns),   JOB(I64, queued_ns),       JOB(I64, checkpoint_step),
    JOB(TEXT, avoid),        JOB(TEXT, avoid_why),      JOB(U32, ranks_full),
    JOB(I64, held_ns),       JOB(TEXT, held_by),        JOB(TEXT, held_reason),
};

#define RANK(type, member) COLUMN(DP_COLUMN_##type, dp_rank_record, member)
#define USE(prefix, type, member)                                                                  \
    COLUMN_AS(#prefix "_" #member, DP_COLUMN_##type, dp_rank_record, prefix.member)
#define USAGE(prefix)                                                                              \
    USE(prefix, I64, step), USE(prefix, I64, period_ns), USE(prefix, I64, forward_ns),             \
        USE(prefix, I64, backward_ns), USE(prefix, I64, weight_ns), USE(prefix, I64, pair_ns),     \
        USE(prefix, I64, optimizer_ns), USE(prefix, I64, comm_exposed_ns),                         \
        USE(prefix, I64, idle_ns), USE(prefix, I64, step_ns), USE(prefix, I64, cpu_ns),            \
        USE(prefix, I64, evaluation_ns), USE(prefix, U32, live_chunks),                            \
        USE(prefix, U32, peak_chunks), USE(prefix, I64, live_bytes), USE(prefix, I64, peak_bytes), \
        USE(prefix, F64, tokens_per_s)
#define RANK_COMM(name, kind)                                                                      \
    COLUMN_AS("comm_" #name "_total_ns", DP_COLUMN_I64, dp_rank_record, comm[kind].total_ns),      \
        COLUMN_AS("comm_" #name "_exposed_ns", DP_COLUMN_I64, dp_rank_record,                      \
                  comm[kind].exposed_ns)
static const struct dp_column rank_columns[] = {
    RANK(I64, job),
    RANK(U32, rank),
    RANK(TEXT, node),
    RANK(U32, slot),
    RANK(U32, phase),
    RANK(I64, step),
    RANK(I64, pid),
    RANK(I32, exit_status),
    RANK(I32, signal),
    RANK(TEXT, address),
    RANK(I64, parameters),
    RANK(BOOL, finished),
    RANK(BOOL, ok),
    RANK(BOOL, not_finite),
    RANK(BOOL, peer_lost),
    RANK(BOOL, stopped),
    RANK(TEXT, action),
    RANK(TEXT, error),
    RANK(I64, updated_ns),
    RANK(I64, steps_measured),
    RANK(I64, measured_ns),
    RANK(I64, busy_ns),
    RANK(I64, bubble_ns),
    RANK(I64, exchange_ns),
    RANK(I64, grad_sync_ns),
    RANK(I64, optimizer_ns),
    RANK_COMM(dispatch_f, DP_RANK_COMM_DISPATCH_F),
    RANK_COMM(combine_f, DP_RANK_COMM_COMBINE_F),
    RANK_COMM(combine_b, DP_RANK_COMM_COMBINE_B),
    RANK_COMM(dispatch_b, DP_RANK_COMM_DISPATCH_B),
    RANK_COMM(hop_f, DP_RANK_COMM_HOP_F),
    RANK_COMM(hop_b, DP_RANK_COMM_HOP_B),
    RANK(U32, peak_chunks),
    RANK(I64, peak_bytes),
    COLUMN_AS("memory_weights", DP_COLUMN_I64, dp_rank_record, memory.weights),
    COLUMN_AS("memory_gradients", DP_COLUMN_I64, dp_rank_record, memory.gradients),
    COLUMN_AS("memory_optimizer", DP_COLUMN_I64, dp_rank_record, memory.optimizer),
    COLUMN_AS("memory_activations", DP_COLUMN_I64, dp_rank_record, memory.activations),
    COLUMN_AS("memory_exchange", DP_COLUMN_I64, dp_rank_record, memory.exchange),
    COLUMN_AS("load_skew", DP_COLUMN_F64, dp_rank_record, load.skew),
    COLUMN_AS("load_layer", DP_COLUMN_U32, dp_rank_record, load.layer),
    COLUMN_AS("load_expert", DP_COLUMN_U32, dp_rank_record, load.expert),
    COLUMN_AS("load_rank", DP_COLUMN_F64, dp_rank_record, load.rank),
    USAGE(usage),
    USAGE(total),
};

#define STEP(type, member) COLUMN(DP_COLUMN_##type, dp_step_record, member)
static const struct dp_column step_columns[] = {
    STEP(I64, job),     STEP(I64, step),    STEP(F64, loss), STEP(BOOL, loss_known),
    STEP(I64, step_ns), STEP(I64, tokens),  STEP(F64, lr),   STEP(F64, grad_norm),
    STEP(I64, time_ns), STEP(U32, attempt),
};

#define TRACE(type, member) COLUMN(DP_COLUMN_##type, dp_trace_record, member)
static const struct dp_column trace_columns[] = {
    TRACE(I64, job),
    TRACE(I64, step),
    TRACE(U32, rank),
    TRACE(BLOB, spans),
};

#define NODE(type, member) COLUMN(DP_COLUMN_##type, dp_node_record, member)
static const struct dp_column node_columns[] = {
    NODE(TEXT, name),          NODE(TEXT, boot_id),          NODE(TEXT, instance),
    NODE(TEXT, version),       NODE(TEXT, address),          NODE(U32, slots),
    NODE(U32, cores),          NODE(I64, memory_bytes),      NODE(TEXT, accelerator),
    NODE(TEXT, data_host),     NODE(BLOB, profile),          NODE(U32, lease_ms),
    NODE(U32, fence_ms),       NODE(I64, last_seen_ns),      NODE(BLOB, hardware),
    NODE(U32, admin),          NODE(TEXT, admin_reason),     NODE(TEXT, admin_by),
    NODE(I64, admin_since_ns), NODE(I64, drain_deadline_ns), NODE(TEXT, place),
    NODE(BOOL, deleted),
};

#define EVENT(type, member) COLUMN(DP_COLUMN_##type, dp_event_record, member)
static const struct dp_column event_columns[] = {
    EVENT(I64, id),    EVENT(I64, time_ns), EVENT(TEXT, job),
    EVENT(TEXT, node), EVENT(TEXT, kind),   EVENT(TEXT, message),
};

#define CLUSTER(type, member) COLUMN(DP_COLUMN_##type, dp_cluster_record, member)
static const struct dp_column cluster_columns[] = {
    CLUSTER(TEXT, name),      CLUSTER(I64, version),      CLUSTER(BLOB, toml),
    CLUSTER(I64, updated_ns), CLUSTER(BOOL, deleted),     CLUSTER(TEXT, accelerator),
    CLUSTER(U32, hosts),      CLUSTER(U32, accelerators),
};

#define PROFILE(type, member) COLUMN(DP_COLUMN_##type, dp_profile_record, member)
static const struct dp_column profile_columns[] = {
    PROFILE(TEXT, node), PROFILE(I64, time_ns),   PROFILE(TEXT, source),
    PROFILE(TEXT, job),  PROFILE(BLOB, document),
};

#define LESSON(type, member) COLUMN(DP_COLUMN_##type, dp_lesson_record, member)
static const struct dp_column lesson_columns[] = {LESSON(I64, job), LESSON(BLOB, document)};

#define DECISION(type, member) COLUMN(DP_COLUMN_##type, dp_decision_record, member)
static const struct dp_column decision_columns[] = {
    DECISION(I64, job),
    DECISION(I64, number),
    DECISION(I64, time_ns),
    DECISION(U32, state),
    DECISION(I64, step),
    DECISION(U32, attempt),
    DECISION(U32, epoch),
    DECISION(TEXT, kind),
    DECISION(TEXT, cause),
    DECISION(TEXT, action),
    DECISION(TEXT, outcome),
    DECISION(I64, before_step_ns),
    DECISION(I64, predicted_step_ns),
    DECISION(I64, predicted_pause_ns),
    DECISION(I64, measured_step_ns),
    DECISION(I64, measured_pause_ns),
    DECISION(F64, trust_before),
    DECISION(F64, trust_after),
    DECISION(BLOB, document),
};

#define ATTEMPT(type, member) COLUMN(DP_COLUMN_##type, dp_attempt_record, member)
static const struct dp_column attempt_columns[] = {
    ATTEMPT(I64, job),
    ATTEMPT(U32, attempt),
    ATTEMPT(I64, started_ns),
    ATTEMPT(I64, ended_ns),
    ATTEMPT(I64, first_step),
    ATTEMPT(I64, last_step),
    ATTEMPT(I64, checkpoint_step),
    ATTEMPT(TEXT, reason),
    ATTEMPT(TEXT, message),
};

#define QUOTA(type, member) COLUMN(DP_COLUMN_##type, dp_quota_record, member)
static const struct dp_column quota_columns[] = {
    QUOTA(TEXT, user),
    QUOTA(U32, ranks),
    QUOTA(I64, updated_ns),
    QUOTA(BOOL, deleted),
};

#define AUDIT(type, member) COLUMN(DP_COLUMN_##type, dp_audit_record, member)
static const struct dp_column audit_columns[] = {
    AUDIT(I64, id),      AUDIT(I64, time_ns), AUDIT(TEXT, user),    AUDIT(TEXT, peer),
    AUDIT(TEXT, door),   AUDIT(TEXT, verb),   AUDIT(TEXT, object),  AUDIT(TEXT, request_id),
    AUDIT(TEXT, before), AUDIT(TEXT, after),  AUDIT(TEXT, outcome), AUDIT(TEXT, message),
};

#define VERDICT(type, member) COLUMN(DP_COLUMN_##type, dp_verdict_record, member)
static const struct dp_column verdict_columns[] = {
    VERDICT(I64, id),     VERDICT(I64, job),        VERDICT(I64, time_ns), VERDICT(U32, attempt),
    VERDICT(U32, epoch),  VERDICT(TEXT, state),     VERDICT(TEXT, cause),  VERDICT(U32, rank),
    VERDICT(U32, peer),   VERDICT(U32, stage),      VERDICT(TEXT, node),   VERDICT(F64, slowdown),
    VERDICT(F64, lost_s), VERDICT(I64, onset_step), VERDICT(I64, step),    VERDICT(TEXT, text),
};

#define TABLE(list, type)                                                                          \
    .row_size = sizeof(struct type), .columns = list, .columns_count = DP_ARRAY_LENGTH(list)

const struct dp_table dp_tables[DP_RECORD_KIND_COUNT] = {
    [DP_RECORD_JOB] = {.name = "jobs",
                       .keys = "number",
                       // The mask has a bit for each state that may become the new one.
                       .condition = "(? >> jobs.state) & 1",
                       TABLE(job_columns, dp_job_record)},
    [DP_RECORD_RANK] = {.name = "ranks", .keys = "job, rank", TABLE(rank_columns, dp_rank_record)},
    [DP_RECORD_STEP] =
        {.name = "steps",
         .keys = "job, step",
         .on_conflict =
             "loss = CASE WHEN excluded.loss_known THEN excluded.loss ELSE loss END, "
             "loss_known = max(loss_known, excluded.loss_known), "
             "step_ns = max(step_ns, excluded.step_ns), "
             "tokens = max(tokens, excluded.tokens), "
             "lr = max(lr, excluded.lr), grad_norm = max(grad_norm, excluded.grad_norm), "
             "time_ns = max(time_ns, excluded.time_ns), attempt = max(attempt, excluded.attempt)",
         TABLE(step_columns, dp_step_record)},
    [DP_RECORD_TRACE] = {.name = "traces",
                         .keys = "job, step, rank",
                         TABLE(trace_columns, dp_trace_record)},
    [DP_RECORD_NODE] = {.name = "nodes", .keys = "name", TABLE(node_columns, dp_node_record)},
    [DP_RECORD_EVENT] = {.name = "events", TABLE(event_columns, dp_event_record)},
    [DP_RECORD_CLUSTER] = {.name = "clusters",
                           .keys = "name",
                           TABLE(cluster_columns, dp_cluster_record)},
    [DP_RECORD_PROFILE] = {.name = "profiles",
                           .keys = "node, time_ns, source",
                           TABLE(profile_columns, dp_profile_record)},
    [DP_RECORD_LESSON] = {.name = "lessons",
                          .keys = "job",
                          TABLE(lesson_columns, dp_lesson_record)},
    [DP_RECORD_DECISION] = {.name = "decisions",
                            .keys = "job, number",
                            TABLE(decision_columns, dp_decision_record)},
    [DP_RECORD_ATTEMPT] = {.name = "attempts",
                           .keys = "job, attempt",
                           TABLE(attempt_columns, dp_attempt_record)},
    [DP_RECORD_AUDIT] = {.name = "audit", TABLE(audit_columns, dp_audit_record)},
    [DP_RECORD_VERDICT] = {.name = "verdicts", TABLE(verdict_columns, dp_verdict_record)},
    [DP_RECORD_QUOTA] = {.name = "quotas", .keys = "user", TABLE(quota_columns, dp_quota_record)},
};

static void column_names(const struct dp_table *table, struct dp_buf *out)
{
    for (size_t i = 0; i < table->columns_count; i++) {
        dp_buf_printf(out, "%s%s", i == 0 ? "" : ", ", table->columns[i].name);
    }
}

void dp_table_upsert_sql(const struct dp_table *table, struct dp_buf *out)
{
    dp_buf_printf(out, "INSERT INTO %s (", table->name);
    column_names(table, out);
    dp_buf_puts(out, ") VALUES (");
    for (size_t i = 0; i < table->columns_count; i++) {
        dp_buf_puts(out, i == 0 ? "?" : ", ?");
    }
    dp_buf_puts(out, ")");
    if (table->keys == NULL) {
        return;
    }
    dp_buf_printf(out, " ON CONFLICT (%s) DO UPDATE SET ", table->keys);
    if (table->on_conflict != NULL) {
        dp_buf_puts(out, table->on_conflict);
    }
    for (size_t i = 0; table->on_conflict == NULL && i < table->columns_count; i++) {
        const char *name = table->columns[i].name;
        dp_buf_printf(out, "%s%s = excluded.%s", i == 0 ? "" : ", ", name, name);
    }
    if (table->condition != NULL) {
        dp_buf_printf(out, " WHERE %s", table->condition);
    }
}

void dp_table_select_sql(const struct dp_table *table, bool blobs, struct dp_buf *out)
{
    dp_buf_puts(out, "SELECT ");
    for (size_t i = 0; i < table->columns_count; i++) {
        bool left_out = !blobs && table->columns[i].type == DP_COLUMN_BLOB;
        dp_buf_printf(out, "%s%s", i == 0 ? "" : ", ", left_out ? "x''" : table->columns[i].name);
    }
    dp_buf_printf(out, " FROM %s ", table->name);
}

static void bind_column(const struct dp_column *column, sqlite3_stmt *statement, int index,
                        const void *member)
{
    const struct dp_buf *blob = member;
    switch (column->type) {
    case DP_COLUMN_BOOL:
        sqlite3_bind_int(statement, index, *(const bool *)member);
        break;
    case DP_COLUMN_I32:
        sqlite3_bind_int(statement, index, *(const int32_t *)member);
        break;
    case DP_COLUMN_U32:
        sqlite3_bind_int64(statement, index, *(const uint32_t *)member);
        break;
    case DP_COLUMN_I64:
        sqlite3_bind_int64(statement, index, *(const int64_t *)member);
        break;
    case DP_COLUMN_F64:
        sqlite3_bind_double(statement, index, *(const double *)member);
        break;
    case DP_COLUMN_TEXT:
        sqlite3_bind_text(statement, index, member, -1, SQLITE_STATIC);
        break;
    case DP_COLUMN_BLOB:
        sqlite3_bind_blob64(statement, index, blob->length > 0 ? blob->bytes : "", blob->length,
                            SQLITE_STATIC);
        break;
    }
}

void dp_table_bind(const struct dp_table *table, sqlite3_stmt *statement, const void *row)
{
    for (size_t i = 0; i < table->columns_count; i++) {
        const struct dp_column *column = &table->columns[i];
        bind_column(column, statement, (int)i + 1, (const char *)row + column->offset);
    }
}

static void read_column(const struct dp_column *column, sqlite3_stmt *statement, int index,
                        void *member)
{
    const char *text;
    switch (column->type) {
    case DP_COLUMN_BOOL:
        *(bool *)member = sqlite3_column_int(statement, index) != 0;
        break;
    case DP_COLUMN_I32:
        *(int32_t *)member = sqlite3_column_int(statement, index);
        break;
    case DP_COLUMN_U32:
        *(uint32_t *)member = (uint32_t)sqlite3_column_int64(statement, index);
        break;
    case DP_COLUMN_I64:
        *(int64_t *)member = sqlite3_column_int64(statement, index);
        break;
    case DP_COLUMN_F64:
        *(double *)member = sqlite3_column_double(statement, index);
        break;
    case DP_COLUMN_TEXT:
        text = (const char *)sqlite3_column_text(statement, index);
        dp_copy_text(member, column->size, text == NULL ? "" : text);
        break;
    case DP_COLUMN_BLOB:
        dp_buf_append(member, sqlite3_column_blob(statement, index),
                      (size_t)sqlite3_column_bytes(statement, index));
        break;
    }
}

void dp_table_read(const struct dp_table *table, sqlite3_stmt *statement, void *row)
{
    for (size_t i = 0; i < table->columns_count; i++) {
        const struct dp_column *column = &table->columns[i];
        read_column(column, statement, (int)i, (char *)row + column->offset);
    }
}

void *dp_table_copy(const struct dp_table *table, const void *row)
{
    char *copy = dp_memdup(row, table->row_size);
    for (size_t i = 0; i < table->columns_count; i++) {
        if (table->columns[i].type == DP_COLUMN_BLOB) {
            struct dp_buf *blob = (struct dp_buf *)(copy + table->columns[i].offset);
            struct dp_buf original = *blob;
            *blob = (struct dp_buf){0};
            dp_buf_append(blob, original.bytes, original.length);
        }
    }
    return copy;
}

void dp_table_free(const struct dp_table *table, void *row)
{
    for (size_t i = 0; row != NULL && i < table->columns_count; i++) {
        if (table->columns[i].type == DP_COLUMN_BLOB) {
            dp_buf_deinit((struct dp_buf *)((char *)row + table->columns[i].offset));
        }
    }
    free(row);
}
