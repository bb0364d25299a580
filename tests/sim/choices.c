// Rules about single choices of the controller, which need not wait for what comes of them:
//   offers     only nodes that are heard and that people do not keep work from; nobody is planned
//              before the wait for his next attempt is over, or while he is held
//   leaving    no job trains, as the core has it, on a node that it had to leave
//   away       a layout keeps off a node only while somebody wants that
//   step       what is recovered is the newest step that a rank holds
//   taken      ranks that took over have their state
//   twice      no order is sent twice in one step
//   restart    a controller that starts knows what its predecessor stored
//   retries    a job burns as many faults as it has, and what it was saved is not forgotten
#include <stdlib.h>
#include <string.h>

#include "sim.h"

#define TOLD_MS 2000    // the core has acted by then
#define SETTLED_MS 3000 // the same, since it stood still, or was started
#define AWAKE_MS 10000  // and has heard of everybody

static bool is_awake(const struct sim *sim, int64_t for_ms)
{
    const struct sim_controller *controller = &sim->controller;
    int64_t since_ns = controller->stall_ns > controller->started_ns ? controller->stall_ns
                                                                     : controller->started_ns;
    return controller->core != NULL && sim->now_ns - since_ns > SIM_MS(for_ms);
}

static struct sim_node *node_of(struct sim *sim, const char *name)
{
    return &sim->nodes[strtoul(name + 1, NULL, 10) % SIM_NODES_MAX];
}

// Offers.

// As the core has it, and as somebody was told.
static void check_held(struct sim *sim, const struct dp_job_record *job)
{
    if (job->held_ns != 0 || sim->jobs[job->number].held) {
        sim_fail(sim, "offers", "%s is %s and starts, although it is held", job->id,
                 dp_job_state_text(job->state));
    }
}

void sim_choices_move(struct sim *sim, uint64_t number, dp_job_state to)
{
    const struct dp_job_record *job = dp_core_job(sim->controller.core, number, NULL, NULL);
    if (job != NULL && (to == DP_STATE_PLANNED || to == DP_STATE_ASSIGNING)) {
        check_held(sim, job);
    }
}

void sim_choices_updated(struct sim *sim, const struct sim_call *call)
{
    struct sim_job *truth = &sim->jobs[call->job];
    const struct dp_job_record *stored = &sim->disk.rows[call->job].job;
    if (truth->updated != (uint32_t)(call - sim->calls) + 1) {
        return; // others have asked since
    }
    truth->held = call->update == SIM_UPDATE_HOLD;
    sim->tally->held += truth->held;
    bool is_kept = call->update == SIM_UPDATE_PRIORITY
                       ? stored->priority == (int32_t)call->detail - 1
                       : (stored->held_ns != 0) == truth->held;
    if (!is_kept) {
        sim_fail(sim, "disk", "%s is held or reordered, a user was told; on disk it is not",
                 stored->id);
    }
}

void sim_choices_plan(struct sim *sim, const struct dp_effect *effect)
{
    const struct dp_job_record *job = dp_core_job(sim->controller.core, effect->job, NULL, NULL);
    check_held(sim, job);
    int64_t wall_ns = sim->now_ns + sim->controller.wall_ns;
    if (!sim->more.jumped && job->retry_at_ns > wall_ns) {
        sim_fail(sim, "offers", "%s is planned %.1f s before its next attempt", job->id,
                 (double)(job->retry_at_ns - wall_ns) / 1e9);
    }
    int64_t late_ns = SIM_MS(sim->controller.config.late_ms + TOLD_MS);
    for (size_t n = 0; n < effect->nodes_count && is_awake(sim, AWAKE_MS); n++) {
        const struct sim_node *node = node_of(sim, effect->nodes[n].node->name);
        if (sim->now_ns - node->taken_ns > late_ns || node->kept_from) {
            sim_fail(sim, "offers", "%s is offered %s, which %s", job->id, node->name,
                     node->kept_from ? "people keep work from" : "is silent");
        }
    }
}

// Leaving.

static bool has_live_rank(const struct dp_rank_record *ranks, size_t count, const char *node)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(ranks[i].node, node) == 0 && !dp_rank_record_over(&ranks[i])) {
            return true;
        }
    }
    return false;
}

static void check_left(struct sim *sim, const struct sim_node *node)
{
    const struct dp_job_record *rows[SIM_JOBS_MAX];
    size_t count = dp_core_jobs_count(sim->controller.core);
    dp_core_job_rows(sim->controller.core, rows);
    for (size_t i = 0; i < count; i++) {
        const struct dp_rank_record *ranks = NULL;
        size_t ranks_count = 0;
        dp_core_job(sim->controller.core, rows[i]->number, &ranks, &ranks_count);
        bool trains = rows[i]->state == DP_STATE_RUNNING || rows[i]->state == DP_STATE_ASSIGNING;
        if (trains && has_live_rank(ranks, ranks_count, node->name)) {
            sim_fail(sim, "leaving", "%s is %s on %s, which it had to leave %.1f s ago",
                     rows[i]->id, dp_job_state_text(rows[i]->state), node->name,
                     (double)(sim->now_ns - node->leave_ns) / 1e9);
        }
    }
}

void sim_choices_look(struct sim *sim)
{
    for (uint32_t n = 0; n < sim->nodes_count && is_awake(sim, SETTLED_MS); n++) {
        const struct sim_node *node = &sim->nodes[n];
        bool leaves = node->leave_ns != 0 && !(node->leave_by_wall && sim->more.jumped);
        if (leaves && sim->now_ns - node->leave_ns > SIM_MS(TOLD_MS)) {
            check_left(sim, node);
        }
    }
}

// Away, step.

static void check_away(struct sim *sim, const struct dp_job_record *job,
                       const struct dp_adapt_ask *ask)
{
    struct sim_job *truth = &sim->jobs[job->number];
    uint32_t away = ask->away[0] == '\0' ? 0 : node_of(sim, ask->away)->index + 1;
    if (!ask->recovers) {
        truth->away = away;
    } else if (away != 0 && (truth->away != away || ask->lost_count == 0)) {
        sim_fail(sim, "away", "%s is to be recovered away from %s, which %s", job->id, ask->away,
                 ask->lost_count == 0 ? "no rank of it has left" : "nobody wants it to leave");
    }
}

static void check_step(struct sim *sim, const struct dp_job_record *job,
                       const struct dp_rank_record *ranks, size_t count, uint64_t step)
{
    for (size_t i = 0; i < count; i++) {
        const struct dp_rank_record *rank = &ranks[i];
        bool serves = rank->is_held && !dp_rank_record_over(rank) &&
                      dp_core_node_state_of(sim->controller.core, rank->node) != DP_NODE_LOST;
        if (serves && rank->held.step > step) {
            sim_fail(sim, "step", "%s is recovered from step %llu, and rank %zu holds step %llu",
                     job->id, (unsigned long long)step, i, (unsigned long long)rank->held.step);
        }
    }
}

void sim_choices_ask(struct sim *sim, const struct dp_effect *effect)
{
    const struct dp_rank_record *ranks = NULL;
    size_t count = 0;
    const struct dp_job_record *job =
        dp_core_job(sim->controller.core, effect->job, &ranks, &count);
    check_away(sim, job, effect->adapt);
    if (effect->adapt->recovers) {
        check_step(sim, job, ranks, count, effect->adapt->step);
    }
}

// Of a question that is not about lost ranks: nothing changes by it.
void sim_choices_unchanged(struct sim *sim, const struct sim_question *question)
{
    struct sim_job *job = &sim->jobs[question->job];
    // What came between has the same wish.
    if (!question->recovers && job->state == DP_STATE_RUNNING) {
        job->away = 0;
    }
}

// Taken.

static void check_taken(struct sim *sim, const struct dp_job_record *job)
{
    for (const struct sim_run *run = sim->jobs[job->number].runs; run != NULL; run = run->next) {
        bool in_force = run->key.attempt == job->attempt && run->key.epoch == job->epoch;
        for (uint32_t rank = 0; rank < run->world && in_force; rank++) {
            const struct sim_process *process = run->ranks[rank];
            if (process == NULL || process->state < SIM_RANK_TRAINING) {
                sim_fail(sim, "taken", "%s.%u.%u goes on, and rank %u has no state yet", job->id,
                         job->attempt, job->epoch, rank);
            }
        }
    }
}

// More ranks are to train, never more than there once were or than the quota has room for.
static void check_grown(struct sim *sim, const struct dp_job_record *job)
{
    const struct dp_rank_record *ranks = NULL;
    size_t count = 0;
    dp_core_job(sim->controller.core, job->number, &ranks, &count);
    uint32_t wanted = sim->jobs[job->number].wanted;
    uint32_t more = wanted > count ? wanted - (uint32_t)count : 0;
    sim->tally->grown += more > 0;
    if (wanted > job->ranks_full ||
        (more > 0 && sim_ranks_of(sim, job->user) + more > sim_quota_of(sim, job->user))) {
        sim_fail(sim, "quotas", "%s grows from %zu to %u ranks; it once had %u, %s may have %u",
                 job->id, count, wanted, job->ranks_full, job->user, sim_quota_of(sim, job->user));
    }
}

void sim_choices_note(struct sim *sim, const struct dp_effect *effect)
{
    const struct dp_job_record *job =
        effect->job == 0 ? NULL : dp_core_job(sim->controller.core, effect->job, NULL, NULL);
    bool recovered = strcmp(effect->event, "job.recovered") == 0;
    if (job == NULL || effect->job > SIM_JOBS_MAX) {
        return;
    }
    struct sim_job *truth = &sim->jobs[effect->job];
    if (recovered || strcmp(effect->event, "job.reassigned") == 0) {
        check_taken(sim, job);
        truth->away = 0;
    } else if (strcmp(effect->event, "job.no_answer") == 0) {
        truth->away = 0;
    } else if (strcmp(effect->event, "job.decision") == 0) {
        if (strstr(effect->text, "PREPARING: grow: ") == effect->text) {
            check_grown(sim, job);
        }
        bool measured = strstr(effect->text, "; trust in predictions") != NULL;
        if (measured && truth->decided != job->attempt) {
            sim_fail(sim, "history",
                     "what was decided in attempt %u of %s is measured in attempt %u",
                     truth->decided, job->id, job->attempt);
        }
        bool restarts = strstr(effect->text, ": restart: ") != NULL;
        truth->decided = measured ? truth->decided : job->attempt + restarts;
    }
}

// Twice.

void sim_choices_effects(struct sim *sim, const struct dp_effects *effects)
{
    for (size_t i = 0; i < effects->count; i++) {
        const struct dp_effect *effect = &effects->items[i];
        for (size_t k = 0; k < i && effect->kind == DP_EFFECT_SEND; k++) {
            const struct dp_effect *other = &effects->items[k];
            bool same = other->kind == DP_EFFECT_SEND && other->order == effect->order &&
                        other->session == effect->session && effect->fence.job[0] != '\0' &&
                        strcmp(other->fence.job, effect->fence.job) == 0 &&
                        other->fence.attempt == effect->fence.attempt &&
                        other->fence.epoch == effect->fence.epoch;
            if (same) {
                sim_fail(sim, "twice", "%s is told %s of %s twice", effect->node,
                         dp_order_kind_text(effect->order), effect->fence.job);
            }
        }
    }
}

// Restart.

static void check_job(struct sim *sim, const struct sim_row *row)
{
    const struct dp_job_record *stored = &row->job;
    const struct dp_job_record *job = dp_core_job(sim->controller.core, stored->number, NULL, NULL);
    // One that has to leave a node is told so at once.
    bool stops = job != NULL && job->state != stored->state;
    bool same =
        job != NULL && strcmp(job->avoid, stored->avoid) == 0 && job->attempt == stored->attempt &&
        job->epoch == stored->epoch && job->epoch_used == stored->epoch_used &&
        job->faults == stored->faults && job->stalled == stored->stalled &&
        job->preemptions == stored->preemptions && job->held_ns == stored->held_ns &&
        job->priority == stored->priority && job->retry_at_ns == stored->retry_at_ns &&
        job->checkpoint_step == stored->checkpoint_step &&
        strcmp(job->checkpoint, stored->checkpoint) == 0 &&
        (stops ||
         (job->outcome == stored->outcome && job->sources.length == stored->sources.length));
    if (!same) {
        sim_fail(sim, "restart", "the core has another %s than what is on disk", stored->id);
    }
}

void sim_choices_loaded(struct sim *sim)
{
    for (uint64_t number = 1; number <= sim->disk.highest; number++) {
        const struct sim_row *row = &sim->disk.rows[number];
        if (row->used && !dp_job_state_ended(row->job.state)) {
            check_job(sim, row);
            struct sim_job *truth = &sim->jobs[number];
            truth->away = 0;
            truth->decided = row->decision == NULL ? 0 : row->decision->attempt;
        }
    }
}

// Retries.

void sim_choices_attempt(struct sim *sim, const struct dp_attempt_record *attempt)
{
    struct sim_job *truth = &sim->jobs[attempt->job];
    const struct dp_job_record *job = &sim->disk.rows[attempt->job].job;
    uint64_t bit = UINT64_C(1) << attempt->attempt % 64;
    bool known = (truth->kept & bit) != 0;
    truth->kept |= bit;
    truth->failed += !known && strcmp(attempt->reason, "RankFailed") == 0;
    if (truth->failed > job->retry_max + 1) {
        sim_fail(sim, "retries", "%s failed by itself %u times, and [retry] max = %u", job->id,
                 truth->failed, job->retry_max);
    }
}
