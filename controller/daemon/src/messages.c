#include <string.h>

#include "daemon.h"
#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/log.h"

void *arena_take(struct dp_arena *arena, size_t bytes)
{
    void *memory = dp_arena_alloc(arena, bytes);
    DP_CHECK(memory != NULL);
    return memory;
}

Dp__V1__Fence *message_fence(const struct dp_fence *fence, struct dp_arena *arena)
{
    Dp__V1__Fence *message = arena_take(arena, sizeof(*message));
    dp__v1__fence__init(message);
    message->job = (char *)fence->job;
    message->attempt = fence->attempt;
    message->epoch = fence->epoch;
    return message;
}

Dp__V1__Utilisation *message_usage(const struct dp_usage *usage, struct dp_arena *arena)
{
    Dp__V1__Utilisation *message = arena_take(arena, sizeof(*message));
    dp__v1__utilisation__init(message);
    message->step = usage->step;
    message->period_ns = usage->period_ns;
    message->forward_ns = usage->forward_ns;
    message->backward_ns = usage->backward_ns;
    message->weight_ns = usage->weight_ns;
    message->pair_ns = usage->pair_ns;
    message->optimizer_ns = usage->optimizer_ns;
    message->comm_exposed_ns = usage->comm_exposed_ns;
    message->idle_ns = usage->idle_ns;
    message->live_chunks = usage->live_chunks;
    message->peak_chunks = usage->peak_chunks;
    message->live_bytes = usage->live_bytes;
    message->peak_bytes = usage->peak_bytes;
    message->step_ns = usage->step_ns;
    message->tokens_per_s = usage->tokens_per_s;
    message->cpu_ns = usage->cpu_ns;
    message->evaluation_ns = usage->evaluation_ns;
    return message;
}

static double tokens_per_s(uint64_t tokens, int64_t step_ns)
{
    return step_ns > 0 ? (double)tokens / ((double)step_ns / 1e9) : 0;
}

Dp__V1__StepPoint *message_step(const struct dp_step_record *step, struct dp_arena *arena)
{
    Dp__V1__StepPoint *message = arena_take(arena, sizeof(*message));
    dp__v1__step_point__init(message);
    message->step = step->step;
    message->loss = step->loss_known ? step->loss : 0;
    message->step_s = (double)step->step_ns / 1e9;
    message->tokens_per_s = tokens_per_s(step->tokens, step->step_ns);
    message->lr = step->lr;
    message->grad_norm = step->grad_norm;
    message->time_ns = step->time_ns;
    return message;
}

static void add_ranks(const struct job_view *view, bool with_kinds, struct dp_arena *arena,
                      Dp__V1__Job *message)
{
    message->ranks = arena_take(arena, view->ranks_count * sizeof(void *));
    for (size_t i = 0; i < view->ranks_count; i++) {
        const struct dp_rank_record *from = &view->ranks[i];
        Dp__V1__JobRank *rank = arena_take(arena, sizeof(*rank));
        dp__v1__job_rank__init(rank);
        rank->rank = from->rank;
        rank->node = (char *)from->node;
        rank->phase = (char *)dp_rank_record_text(from);
        rank->pid = from->pid;
        rank->updated_ns = from->updated_ns;
        if (from->updated_ns != 0) {
            rank->utilisation = message_usage(&from->usage, arena);
        }
        rank->load = message_load(&from->load, arena);
        rank->score = message_score(view->scores, from->rank, with_kinds, arena);
        message->ranks[message->n_ranks++] = rank;
    }
}

Dp__V1__ExpertLoad *message_load(const struct dp_rank_load *load, struct dp_arena *arena)
{
    if (load->skew <= 0) {
        return NULL;
    }
    Dp__V1__ExpertLoad *message = arena_take(arena, sizeof(*message));
    dp__v1__expert_load__init(message);
    message->skew = load->skew;
    message->layer = load->layer;
    message->expert = load->expert;
    message->rank = load->rank;
    return message;
}

static void add_plan(const struct dp_job_record *job, job_detail detail, struct dp_arena *arena,
                     Dp__V1__Job *message)
{
    if (view_plan(job, arena, &message->plan, NULL) != DP_OK) {
        message->plan = NULL;
        return;
    }
    if (detail != JOB_FULL) {
        message->plan->n_candidates = 0;
        message->plan->explanation = (char *)"";
    }
}

// "a,b" as a list.
static void add_left_out(const struct dp_job_record *job, struct dp_arena *arena,
                         Dp__V1__Job *message)
{
    if (job->avoid[0] == '\0') {
        return;
    }
    char *rest = dp_arena_strdup(arena, job->avoid), *name = NULL;
    message->left_out = arena_take(arena, (strlen(rest) / 2 + 1) * sizeof(char *));
    while ((name = strsep(&rest, ",")) != NULL) {
        message->left_out[message->n_left_out++] = name;
    }
    message->left_out_why = (char *)job->avoid_why;
}

Dp__V1__Job *message_job(const struct job_view *view, job_detail detail, struct dp_arena *arena)
{
    const struct dp_job_record *job = view->job;
    Dp__V1__Job *message = arena_take(arena, sizeof(*message));
    dp__v1__job__init(message);
    message->id = (char *)job->id;
    message->name = (char *)job->name;
    message->state = (Dp__V1__JobState)job->state;
    message->reason = (char *)job->reason;
    message->message = (char *)job->message;
    message->attempt = job->attempt;
    message->epoch = job->epoch;
    message->submitted_ns = job->submitted_ns;
    message->started_ns = job->started_ns;
    message->ended_ns = job->ended_ns;
    message->first_step_ns = job->first_step_ns;
    message->step = job->step;
    message->steps_total = job->steps_total;
    message->loss = job->loss_known ? job->loss : 0;
    message->loss_known = job->loss_known;
    message->holdout_loss = job->holdout_known ? job->holdout_loss : 0;
    message->holdout_known = job->holdout_known;
    message->step_s = (double)job->step_ns / 1e9;
    message->tokens_per_s = tokens_per_s(job->tokens_per_step, job->step_ns);
    message->checkpoint = (char *)job->checkpoint;
    message->user = (char *)job->user;
    message->priority = job->priority;
    message->retry_at_ns = job->retry_at_ns;
    message->faults = job->faults;
    message->preemptions = job->preemptions;
    message->ranks_wanted = (uint32_t)job->ranks_wanted;
    message->held_ns = job->held_ns;
    message->held_by = (char *)job->held_by;
    message->held_reason = (char *)job->held_reason;
    add_left_out(job, arena, message);
    if (detail != JOB_BRIEF) {
        add_plan(job, detail, arena, message);
        add_ranks(view, detail == JOB_FULL, arena, message);
        add_stragglers(view, arena, message);
    }
    if (detail == JOB_FULL) {
        message->job_toml.data = (uint8_t *)job->job_toml.bytes;
        message->job_toml.len = job->job_toml.length;
    }
    return message;
}

static Dp__V1__Attempt *make_attempt(const struct dp_attempt_record *from, struct dp_arena *arena)
{
    Dp__V1__Attempt *attempt = arena_take(arena, sizeof(*attempt));
    dp__v1__attempt__init(attempt);
    attempt->attempt = from->attempt;
    attempt->started_ns = from->started_ns;
    attempt->ended_ns = from->ended_ns;
    attempt->first_step = from->first_step;
    attempt->last_step = from->last_step;
    attempt->checkpoint_step = from->checkpoint_step;
    attempt->reason = dp_arena_strdup(arena, from->reason);
    attempt->message = dp_arena_strdup(arena, from->message);
    return attempt;
}

void message_complete(struct daemon *daemon, uint64_t number, struct dp_arena *arena,
                      Dp__V1__Job *message)
{
    DP_AUTO_FREE struct dp_attempt_record *attempts = NULL;
    size_t count = 0;
    struct dp_error err = {0};
    message->index = dp_core_index(daemon->core);
    if (dp_store_load_attempts(daemon->store, number, &attempts, &count, &err) != DP_OK) {
        dp_log_warn("attempts.unreadable", "job=%s reason=\"%s\"", message->id, err.message);
        return;
    }
    message->attempts = arena_take(arena, count * sizeof(void *));
    for (size_t i = 0; i < count; i++) {
        message->attempts[message->n_attempts++] = make_attempt(&attempts[i], arena);
    }
}

Dp__V1__Hardware *node_hardware(const struct dp_node_record *node, struct dp_arena *arena)
{
    ProtobufCMessage *message = NULL;
    if (node->hardware.length == 0 ||
        dp_wire_unpack(&dp__v1__hardware__descriptor, node->hardware.bytes, node->hardware.length,
                       arena, &message, NULL) != DP_OK) {
        return NULL;
    }
    return (Dp__V1__Hardware *)message;
}
