#include "tasks.h"

#include "daemon.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/json.h"
#include "dp/log.h"
#include "dp/method.h"

const double task_bucket_s[TASK_BUCKETS - 1] = {0.001, 0.01, 0.1, 0.5, 2, 10, 60};

const char *task_kind_text(task_kind kind)
{
    static const char *const texts[TASK_KIND_COUNT] = {
        [TASK_JOB] = "job",   [TASK_ADAPT] = "adapt",       [TASK_VALIDATE] = "validate",
        [TASK_PLAN] = "plan", [TASK_SIMULATE] = "simulate",
    };
    return texts[kind];
}

void tasks_init(struct tasks *tasks)
{
    tasks->last = &tasks->first;
}

bool task_asked_to_stop(void *context)
{
    struct task *task = context;
    return atomic_load(&task->stop);
}

void task_make_json(const struct task *task, const ProtobufCMessage *answer, struct dp_buf *json)
{
    if (dp_rest_is_call(task->call)) {
        DP_AUTO_JSON json_t *made = dp_message_to_json(answer);
        dp_json_write(made, 0, json);
        dp_buf_puts(json, "\n");
    }
}

void task_answer(struct task *task, const ProtobufCMessage *answer, struct dp_buf *json)
{
    if (task->error.status != DP_OK) {
        call_fail_error(task->daemon, task->call, &task->error);
    } else if (json->length > 0) {
        call_reply_json(task->daemon, task->call, json);
    } else {
        call_reply(task->daemon, task->call, answer);
    }
}

// Unlinks and frees it.
static void drop(struct task *task)
{
    struct tasks *tasks = &task->daemon->tasks;
    struct task **link = &tasks->first;
    while (*link != task) {
        link = &(*link)->next;
    }
    *link = task->next;
    tasks->last = tasks->last == &task->next ? link : tasks->last;
    task->free(task);
}

static void note(struct task *task)
{
    struct task_figures *figures = &task->daemon->tasks.figures[task->kind];
    double seconds = (double)(dp_clock_monotonic_ns() - task->started_ns) / 1e9;
    size_t bucket = 0;
    while (bucket < TASK_BUCKETS - 1 && seconds > task_bucket_s[bucket]) {
        bucket++;
    }
    figures->bucket[bucket]++;
    figures->seconds += seconds;
    if (atomic_load(&task->stop)) {
        figures->cancelled++;
    } else if (task->error.status == DP_OK) {
        figures->ok++;
    } else {
        figures->failed++;
    }
}

static void work(uv_work_t *work_item)
{
    struct task *task = work_item->data;
    if (!atomic_load(&task->stop)) {
        task->run(task);
    }
}

static void start_waiting(struct daemon *daemon);

static void after_work(uv_work_t *work_item, int status)
{
    (void)status;
    struct task *task = work_item->data;
    struct daemon *daemon = task->daemon;
    daemon->tasks.running -= task->call != 0;
    note(task);
    if (!daemon->stopping && !atomic_load(&task->stop)) {
        task->finish(task);
    }
    drop(task);
    start_waiting(daemon);
}

static void start(struct task *task)
{
    task->running = true;
    task->started_ns = dp_clock_monotonic_ns();
    task->daemon->tasks.running += task->call != 0;
    uv_queue_work(&task->daemon->loop, &task->work, work, after_work);
}

static void start_waiting(struct daemon *daemon)
{
    struct tasks *tasks = &daemon->tasks;
    struct task *task = tasks->first;
    while (task != NULL && tasks->running < DP_PLANNER_SEARCHES_MAX && !daemon->stopping) {
        if (!task->running) {
            tasks->waiting--;
            start(task);
        }
        task = task->next;
    }
}

void task_submit(struct task *task)
{
    struct daemon *daemon = task->daemon;
    struct tasks *tasks = &daemon->tasks;
    bool has_turn = task->call == 0 || tasks->running < DP_PLANNER_SEARCHES_MAX;
    if (!has_turn && tasks->waiting >= DP_PLANNER_QUEUE_MAX) {
        struct dp_error err = {0};
        dp_fail(&err, DP_BUSY,
                "%d searches run and %d wait for their turn; try again in some seconds",
                DP_PLANNER_SEARCHES_MAX, DP_PLANNER_QUEUE_MAX);
        tasks->figures[task->kind].refused++;
        call_fail_error(daemon, task->call, &err);
        task->free(task);
        return;
    }
    task->work.data = task;
    task->next = NULL;
    *tasks->last = task;
    tasks->last = &task->next;
    if (has_turn) {
        start(task);
    } else {
        tasks->waiting++;
    }
}

void tasks_on_closed(void *context, uint64_t call, bool cancelled)
{
    struct daemon *daemon = context;
    struct task *task = daemon->tasks.first;
    while (task != NULL && task->call != call) {
        task = task->next;
    }
    if (task == NULL || !cancelled) {
        return;
    }
    dp_log_debug("task.left", "kind=%s running=%d", task_kind_text(task->kind), task->running);
    if (task->running) {
        atomic_store(&task->stop, true);
        return;
    }
    daemon->tasks.waiting--;
    daemon->tasks.figures[task->kind].cancelled++;
    drop(task);
}

void tasks_stop(struct daemon *daemon)
{
    struct task *next = NULL;
    for (struct task *task = daemon->tasks.first; task != NULL; task = next) {
        next = task->next;
        if (task->running) {
            atomic_store(&task->stop, true);
        } else {
            daemon->tasks.waiting--;
            drop(task);
        }
    }
}
