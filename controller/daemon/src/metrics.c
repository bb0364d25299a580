// GET /metrics: the text format of Prometheus, version 0.0.4.
#include <stdlib.h>
#include <string.h>

#include "daemon.h"
#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/log.h"
#include "metrics_text.h"

static void write_process(const struct daemon *daemon, struct dp_buf *out)
{
    metric_begin(out, "dp_build_info", "gauge", "1, with the version of this controller.");
    metric_value(out, "dp_build_info", 1, "version", DP_VERSION, NULL);
    metric_begin(out, "dp_start_time_seconds", "gauge", "When this controller started.");
    metric_value(out, "dp_start_time_seconds", (double)daemon->started_ns / 1e9, NULL);
    metric_begin(out, "dp_loop_delay_seconds", "histogram",
                 "How late the loop's ticks come: what every request waits at least.");
    metric_histogram(out, "dp_loop_delay_seconds", loop_delay_bucket_s, daemon->delay.bucket,
                     LOOP_DELAY_BUCKETS, daemon->delay.seconds, NULL);
}

static void write_jobs(struct daemon *daemon, struct dp_buf *out)
{
    uint64_t counts[DP_STATE_COUNT] = {0};
    struct dp_error err = {0};
    if (dp_store_count_jobs(daemon->store, counts, &err) != DP_OK) {
        dp_log_error("metrics.unreadable", "reason=\"%s\"", err.message);
        return;
    }
    metric_begin(out, "dp_jobs", "gauge", "Jobs by state, ended ones too.");
    for (int state = DP_STATE_SUBMITTED; state < DP_STATE_COUNT; state++) {
        metric_value(out, "dp_jobs", (double)counts[state], "state",
                     dp_job_state_text((dp_job_state)state), NULL);
    }
}

static void write_nodes(struct daemon *daemon, struct dp_buf *out)
{
    size_t count = dp_core_nodes_count(daemon->core);
    DP_AUTO_FREE struct dp_node_view *views = dp_new_array(struct dp_node_view, count);
    uint64_t states[DP_NODE_STATE_COUNT] = {0}, slots = 0, used = 0;
    dp_core_node_views(daemon->core, views);
    for (size_t i = 0; i < count; i++) {
        states[views[i].state]++;
        slots += views[i].node->slots;
        used += views[i].slots_used;
    }
    metric_begin(out, "dp_nodes", "gauge", "Nodes by state.");
    for (int state = 0; state < DP_NODE_STATE_COUNT; state++) {
        metric_value(out, "dp_nodes", (double)states[state], "state",
                     dp_node_state_text((dp_node_state)state), NULL);
    }
    metric_begin(out, "dp_slots", "gauge", "Rank slots of all nodes.");
    metric_value(out, "dp_slots", (double)slots, NULL);
    metric_begin(out, "dp_slots_used", "gauge", "Rank slots that jobs have.");
    metric_value(out, "dp_slots_used", (double)used, NULL);
}

// A figure of each rank of the running jobs; NULL `of` = the step of the job.
struct rank_metric {
    const char *name, *help;
    double (*of)(const struct dp_usage *usage);
};

static double share(int64_t part_ns, const struct dp_usage *usage)
{
    return usage->period_ns > 0 ? (double)part_ns / (double)usage->period_ns : 0;
}

static double busy(const struct dp_usage *usage)
{
    return share(usage->forward_ns + usage->backward_ns + usage->weight_ns + usage->pair_ns +
                     usage->optimizer_ns + usage->evaluation_ns,
                 usage);
}

static double evaluating(const struct dp_usage *usage)
{
    return share(usage->evaluation_ns, usage);
}

static double exposed(const struct dp_usage *usage)
{
    return share(usage->comm_exposed_ns, usage);
}

static double idle(const struct dp_usage *usage)
{
    return share(usage->idle_ns, usage);
}

static double live_bytes(const struct dp_usage *usage)
{
    return (double)usage->live_bytes;
}

// Those in the core; the caller frees the array.
static const struct dp_job_record **job_rows(const struct daemon *daemon)
{
    size_t count = dp_core_jobs_count(daemon->core);
    const struct dp_job_record **rows = dp_new_array(const struct dp_job_record *, count);
    dp_core_job_rows(daemon->core, rows);
    return rows;
}

static void write_rank_metric(struct daemon *daemon, const struct rank_metric *metric,
                              struct dp_buf *out)
{
    size_t left = DP_METRICS_RANKS_MAX;
    metric_begin(out, metric->name, "gauge", metric->help);
    size_t jobs_count = dp_core_jobs_count(daemon->core);
    DP_AUTO_FREE const struct dp_job_record **jobs = job_rows(daemon);
    for (size_t i = 0; i < jobs_count && left > 0; i++) {
        const struct dp_job_record *job = jobs[i];
        const struct dp_rank_record *ranks = NULL;
        size_t count = 0;
        dp_core_job(daemon->core, job->number, &ranks, &count);
        for (size_t r = 0; r < count && job->state == DP_STATE_RUNNING && left > 0; r++) {
            if (ranks[r].updated_ns != 0) {
                char number[16];
                snprintf(number, sizeof number, "%u", ranks[r].rank);
                metric_value(out, metric->name, metric->of(&ranks[r].usage), "job", job->id, "node",
                             ranks[r].node, "rank", number, NULL);
                left--;
            }
        }
    }
}

static void write_ranks(struct daemon *daemon, struct dp_buf *out)
{
    static const struct rank_metric metrics[] = {
        {"dp_rank_busy_ratio",
         "Share of a rank's last period in actions, the optimizer and evaluations.", busy},
        {"dp_rank_evaluation_ratio", "Share that it evaluated held-out samples.", evaluating},
        {"dp_rank_comm_exposed_ratio", "Share that it waited for data of a peer.", exposed},
        {"dp_rank_idle_ratio", "Share that it had nothing to do.", idle},
        {"dp_rank_live_bytes", "Bytes of activations that it holds.", live_bytes},
    };
    for (size_t i = 0; i < DP_ARRAY_LENGTH(metrics); i++) {
        write_rank_metric(daemon, &metrics[i], out);
    }
}

static void write_running(struct daemon *daemon, struct dp_buf *out)
{
    static const char *const names[] = {"dp_job_step", "dp_job_step_seconds", "dp_job_loss"};
    static const char *const helps[] = {"Steps that a running job has completed.",
                                        "What its last step took.", "Its newest loss."};
    size_t jobs_count = dp_core_jobs_count(daemon->core);
    DP_AUTO_FREE const struct dp_job_record **jobs = job_rows(daemon);
    for (size_t metric = 0; metric < DP_ARRAY_LENGTH(names); metric++) {
        size_t left = DP_METRICS_RANKS_MAX;
        metric_begin(out, names[metric], "gauge", helps[metric]);
        for (size_t i = 0; i < jobs_count && left > 0; i++) {
            const struct dp_job_record *job = jobs[i];
            const double values[] = {(double)job->step, (double)job->step_ns / 1e9, job->loss};
            if (job->state == DP_STATE_RUNNING && (metric < 2 || job->loss_known)) {
                metric_value(out, names[metric], values[metric], "job", job->id, NULL);
                left--;
            }
        }
    }
}

static void write_planner(const struct daemon *daemon, struct dp_buf *out)
{
    const struct tasks *tasks = &daemon->tasks;
    metric_begin(out, "dp_planner_tasks_total", "counter",
                 "Searches and simulations that are over, by kind and result.");
    for (int kind = 0; kind < TASK_KIND_COUNT; kind++) {
        const struct task_figures *figures = &tasks->figures[kind];
        const struct {
            const char *result;
            uint64_t count;
        } results[] = {{"ok", figures->ok},
                       {"failed", figures->failed},
                       {"cancelled", figures->cancelled},
                       {"refused", figures->refused}};
        for (size_t i = 0; i < DP_ARRAY_LENGTH(results); i++) {
            metric_value(out, "dp_planner_tasks_total", (double)results[i].count, "kind",
                         task_kind_text((task_kind)kind), "result", results[i].result, NULL);
        }
    }
    metric_begin(out, "dp_planner_task_seconds", "histogram", "What those that ran took.");
    for (int kind = 0; kind < TASK_KIND_COUNT; kind++) {
        const struct task_figures *figures = &tasks->figures[kind];
        metric_histogram(out, "dp_planner_task_seconds", task_bucket_s, figures->bucket,
                         TASK_BUCKETS, figures->seconds, "kind", task_kind_text((task_kind)kind),
                         NULL);
    }
    metric_begin(out, "dp_planner_running", "gauge", "Searches that run for callers.");
    metric_value(out, "dp_planner_running", (double)tasks->running, NULL);
    metric_begin(out, "dp_planner_queue", "gauge", "Searches that wait for their turn.");
    metric_value(out, "dp_planner_queue", (double)tasks->waiting, NULL);
}

static void write_requests(const struct daemon *daemon, struct dp_buf *out)
{
    char code[16];
    metric_begin(out, "dp_grpc_requests_total", "counter",
                 "gRPC calls that are over, by method and gRPC code.");
    for (int method = 0; method < DP_METHOD_COUNT; method++) {
        for (int i = 0; i < DP_RPC_CODES; i++) {
            uint64_t count = dp_rpc_server_ended(daemon->server, (dp_method_id)method, i);
            snprintf(code, sizeof code, "%d", i);
            if (count > 0) {
                metric_value(out, "dp_grpc_requests_total", (double)count, "method",
                             dp_methods[method].name + 1, "code", code, NULL);
            }
        }
    }
    metric_begin(out, "dp_http_requests_total", "counter",
                 "HTTP requests that were answered, by what they asked for and HTTP code.");
    struct dp_rest_count row;
    for (size_t i = 0; dp_rest_server_count(daemon->rest, i, &row); i++) {
        snprintf(code, sizeof code, "%d", row.code);
        metric_value(out, "dp_http_requests_total", (double)row.count, "method", row.verb, "path",
                     row.path, "code", code, NULL);
    }
    metric_begin(out, "dp_grpc_calls", "gauge", "gRPC calls that are open, agents' sessions too.");
    metric_value(out, "dp_grpc_calls", (double)dp_rpc_server_calls(daemon->server), NULL);
    metric_begin(out, "dp_http_connections", "gauge", "HTTP clients that are connected.");
    metric_value(out, "dp_http_connections", (double)dp_rest_server_connections(daemon->rest),
                 NULL);
}

static void write_store(const struct daemon *daemon, struct dp_buf *out)
{
    struct dp_store_figures figures;
    dp_store_figures(daemon->store, &figures);
    metric_begin(out, "dp_store_commit_seconds", "histogram",
                 "What a commit of the database took, of one or more transactions.");
    metric_histogram(out, "dp_store_commit_seconds", dp_store_bucket_s, figures.bucket,
                     DP_STORE_BUCKETS, figures.seconds, NULL);
    metric_begin(out, "dp_store_transactions_total", "counter", "Transactions that were tried.");
    metric_value(out, "dp_store_transactions_total", (double)figures.transactions, NULL);
    metric_begin(out, "dp_store_failures_total", "counter", "Those of them that were not stored.");
    metric_value(out, "dp_store_failures_total", (double)figures.failed, NULL);
    metric_begin(out, "dp_store_queue", "gauge", "Transactions that wait to be on disk.");
    metric_value(out, "dp_store_queue", (double)figures.queued, NULL);
}

void metrics_write(void *context, struct dp_buf *out)
{
    struct daemon *daemon = context;
    write_process(daemon, out);
    write_jobs(daemon, out);
    write_nodes(daemon, out);
    write_running(daemon, out);
    write_ranks(daemon, out);
    write_planner(daemon, out);
    write_requests(daemon, out);
    write_store(daemon, out);
}
