// Work that takes long, on libuv's threads: searches for plans, simulations, drawings. The loop
// goes on meanwhile.
#pragma once

#include <protobuf-c/protobuf-c.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <uv.h>

#include "dp/buf.h"
#include "dp/error.h"

struct daemon;

typedef enum task_kind {
    TASK_JOB,   // a plan for a job of the queue: the core decides how many
    TASK_ADAPT, // another layout for a job that runs
    TASK_VALIDATE,
    TASK_PLAN,
    TASK_SIMULATE,
    TASK_KIND_COUNT
} task_kind;
const char *task_kind_text(task_kind kind);

// Embedded first in what a kind of work needs; that owns copies of all it uses.
struct task {
    uv_work_t work;
    struct daemon *daemon;
    task_kind kind;
    uint64_t call; // whose answer it is; 0 = the core's
    // On a work thread. What it finds wrong goes to `error`.
    void (*run)(struct task *task);
    // On the loop, when it has run and somebody wants the answer.
    void (*finish)(struct task *task);
    void (*free)(struct task *task);
    struct dp_error error;
    atomic_bool stop; // nobody waits for the answer any more
    bool running;
    int64_t started_ns;
    struct task *next;
};

// Buckets of a histogram of seconds; the last is without limit.
enum { TASK_BUCKETS = 8 };
extern const double task_bucket_s[TASK_BUCKETS - 1];

struct task_figures {
    uint64_t ok, failed, cancelled, refused;
    double seconds;
    uint64_t bucket[TASK_BUCKETS];
};

struct tasks {
    struct task *first, **last; // those that run and, behind them, those that wait
    size_t running, waiting;    // for callers
    struct task_figures figures[TASK_KIND_COUNT];
};

void tasks_init(struct tasks *tasks);
// Takes the task over. At most DP_PLANNER_SEARCHES_MAX run for callers and DP_PLANNER_QUEUE_MAX
// wait; one more is freed and its call answered with DP_BUSY.
void task_submit(struct task *task);
// The caller is gone: what runs for it is asked to end, what waits is dropped. A handler's
// on_closed.
void tasks_on_closed(void *context, uint64_t call, bool cancelled);
// Asks all to end; callbacks of those that run still come.
void tasks_stop(struct daemon *daemon);
// HTTP only: the answer's JSON, made on the task's thread; nothing for others.
void task_make_json(const struct task *task, const ProtobufCMessage *answer, struct dp_buf *json);
// On the loop: the answer, as JSON where that was made, or what was wrong. Empties the buffer.
void task_answer(struct task *task, const ProtobufCMessage *answer, struct dp_buf *json);
// dp_planner_options.stop and the like, with the task as context. Any thread.
bool task_asked_to_stop(void *task);
