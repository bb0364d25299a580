// Rules about what should have happened by now, and about what the controller decides:
//   leftovers  nothing runs on a node that can be told, of what ended some time ago
//   leaving    a node that is down, or past the deadline of its drain, has no ranks of live jobs
//   recovery   no rank that serves is counted as lost; a job all parts of which are served goes on
//              in the same attempt, unless it went on from there too often
//   order      nobody is planned before a job that goes first and fits: never with strict, with
//              best effort no longer than pass_ms
//   preemption for jobs of a higher priority only, that wait; so often at most as these began
//   history    every attempt that began has its row, every call that was answered its audit;
//              a decision that is replaced by another says what became of it
#include <stdlib.h>
#include <string.h>

#include "sim.h"

#define LEFT_MS 30000 // more than two stops with their grace take
#define HEARD_MS 3000 // what holds for longer, the controller knows
#define PASSED_MS 1000

static int64_t later_of(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

// Since when orders reach the node and what it says is heard; now, or later, when they do not.
static int64_t settled_since(const struct sim *sim, const struct sim_node *node)
{
    const struct sim_controller *controller = &sim->controller;
    if (controller->core == NULL || node->core == NULL || node->session == 0 || !node->welcomed ||
        sim->now_ns - node->taken_ns > SIM_MS(HEARD_MS)) {
        return sim->now_ns;
    }
    int64_t since_ns = later_of(node->settled_ns, node->stall_ns);
    since_ns = later_of(since_ns, later_of(node->slow_ns, node->lossy_ns));
    since_ns = later_of(since_ns, later_of(node->blocked_ns[0], node->blocked_ns[1]));
    since_ns = later_of(since_ns, controller->stall_ns);
    since_ns = later_of(since_ns, sim->disk.behind_ns);
    return later_of(since_ns, later_of(sim->disk.slow_ns, sim->disk.fails_ns));
}

static bool is_live(dp_job_state state)
{
    return state == DP_STATE_ASSIGNING || state == DP_STATE_RUNNING ||
           state == DP_STATE_REASSIGNING;
}

// Whether the job's row on disk has a use for ranks of the assignment.
static bool is_wanted(const struct sim *sim, const struct sim_key *key)
{
    const struct sim_row *row = &sim->disk.rows[key->job];
    const struct dp_job_record *job = &row->job;
    if (!row->used) {
        return true;
    }
    bool live = is_live(job->state) || job->state == DP_STATE_LOST;
    return live && key->attempt >= job->attempt &&
           (key->epoch >= job->epoch || key->epoch == job->source_epoch);
}

static void look_at_process(struct sim *sim, const struct sim_node *node,
                            struct sim_process *process, int64_t settled_ns)
{
    const struct sim_keeper *keeper = process->keeper;
    const struct dp_job_record *job = &sim->disk.rows[keeper->key.job].job;
    int64_t since_ns = later_of(settled_ns, keeper->stall_ns);
    if (is_wanted(sim, &keeper->key)) {
        process->idle_ns = 0;
    } else if (process->idle_ns == 0) {
        process->idle_ns = sim->now_ns;
    }
    if (process->idle_ns != 0 &&
        sim->now_ns - later_of(since_ns, process->idle_ns) > SIM_MS(LEFT_MS)) {
        sim_fail(sim, "leftovers", "rank %u of %s.%u.%u still runs on %s; the job is %s, %u.%u",
                 process->rank, keeper->fence.job, keeper->fence.attempt, keeper->fence.epoch,
                 node->name, dp_job_state_text(job->state), job->attempt, job->epoch);
    }
    bool leaves = node->leave_ns != 0 && !(node->leave_by_wall && sim->more.jumped);
    if (leaves && process->idle_ns == 0 && is_live(job->state) &&
        keeper->key.attempt == job->attempt &&
        sim->now_ns - later_of(since_ns, node->leave_ns) > SIM_MS(LEFT_MS)) {
        sim_fail(sim, "leaving", "rank %u of %s.%u.%u runs on %s, which it had to leave %.1f s ago",
                 process->rank, keeper->fence.job, keeper->fence.attempt, keeper->fence.epoch,
                 node->name, (double)(sim->now_ns - node->leave_ns) / 1e9);
    }
}

void sim_rules_look(struct sim *sim)
{
    for (uint32_t n = 0; n < sim->nodes_count; n++) {
        const struct sim_node *node = &sim->nodes[n];
        int64_t settled_ns = settled_since(sim, node);
        for (const struct sim_keeper *k = node->keepers; k != NULL; k = k->next) {
            for (struct sim_process *p = k->ranks; p != NULL; p = p->next) {
                if (sim_rank_alive(p)) {
                    look_at_process(sim, node, p, settled_ns);
                }
            }
        }
    }
}

void sim_rules_restarted(struct sim *sim)
{
    for (uint32_t n = 0; n < sim->nodes_count; n++) {
        sim->nodes[n].settled_ns = sim->now_ns;
    }
    for (uint32_t number = 0; number <= SIM_JOBS_MAX; number++) {
        struct sim_job *job = &sim->jobs[number];
        job->passed_ns = 0;
        job->recoveries = job->agains = 0;
        job->pausing = false;
    }
}

void sim_rules_replied(struct sim *sim, struct sim_call *call)
{
    struct sim_node *node = &sim->nodes[call->node % SIM_NODES_MAX];
    call->accepted = true;
    if (call->kind == SIM_CALL_UPDATE) {
        sim_choices_updated(sim, call);
    }
    if (call->kind != SIM_CALL_NODE || node->asked != (uint32_t)(call - sim->calls) + 1) {
        return;
    }
    node->leave_ns = 0;
    node->kept_from = call->action != DP_NODE_UNDRAIN && call->action != DP_NODE_FORGET;
    if (call->action == DP_NODE_SET_DOWN ||
        (call->action == DP_NODE_DRAIN && call->detail % 5 == 0)) {
        node->leave_ns = sim->now_ns;
        node->leave_by_wall = false;
    } else if (call->action == DP_NODE_DRAIN && call->detail % 3 == 0) {
        node->leave_ns = sim->now_ns + SIM_MS(5000);
        node->leave_by_wall = true;
    } else if (call->action == DP_NODE_FORGET) {
        sim->tally->forgotten++;
        if (sim->disk.nodes[call->node].name[0] != '\0' && node->session == 0) {
            sim_fail(sim, "history", "%s was forgotten and is on disk", node->name);
        }
    }
}

// Recovery.

// It can be had from there, and everybody had the time to know.
static bool serves(const struct sim *sim, const struct sim_process *process)
{
    int64_t heard_ns = sim->now_ns - SIM_MS(HEARD_MS);
    if (process == NULL || process->state != SIM_RANK_HELD || process->stop != SIM_STOP_NONE ||
        process->held_ns > heard_ns || process->keeper->stall_ns > heard_ns ||
        process->keeper->link == 0 || process->keeper->link != process->keeper->agent_link) {
        return false;
    }
    const struct sim_node *node = process->keeper->node;
    return settled_since(sim, node) <= heard_ns &&
           dp_core_node_state_of(sim->controller.core, node->name) != DP_NODE_LOST;
}

static const struct sim_run *run_in_force(const struct sim *sim, const struct dp_job_record *job)
{
    const struct sim_run *run = sim->jobs[job->number].runs;
    while (run != NULL && (run->key.attempt != job->attempt || run->key.epoch != job->epoch)) {
        run = run->next;
    }
    return run;
}

void sim_rules_ask(struct sim *sim, const struct dp_effect *effect)
{
    const struct dp_adapt_ask *ask = effect->adapt;
    const struct dp_job_record *job = dp_core_job(sim->controller.core, effect->job, NULL, NULL);
    const struct sim_run *run = run_in_force(sim, job);
    for (size_t i = 0; run != NULL && ask->recovers && i < ask->lost_count; i++) {
        const struct sim_process *process = run->ranks[ask->lost[i]];
        if (serves(sim, process) && process->held.step == ask->step) {
            sim_fail(sim, "recovery", "rank %u of %s is counted as lost and serves step %llu",
                     ask->lost[i], job->id, (unsigned long long)ask->step);
        }
    }
}

static bool all_is_served(const struct sim *sim, const struct sim_run *run)
{
    uint64_t step = 0;
    for (uint32_t rank = 0; rank < run->world; rank++) {
        bool counts = serves(sim, run->ranks[rank]) && run->ranks[rank]->held.step > step;
        step = counts ? run->ranks[rank]->held.step : step;
    }
    uint32_t parts = sim_parts(run->world);
    for (uint32_t part = 0; part < parts; part++) {
        bool found = false;
        for (uint32_t rank = part; rank < run->world; rank += parts) {
            found = found || (serves(sim, run->ranks[rank]) && run->ranks[rank]->held.step == step);
        }
        if (!found) {
            return false;
        }
    }
    return step > 0;
}

static bool some_lack(const struct sim_run *run)
{
    for (uint32_t rank = 0; rank < run->world; rank++) {
        if (run->ranks[rank] == NULL || run->ranks[rank]->state != SIM_RANK_HELD) {
            return true;
        }
    }
    return false;
}

// The attempt is over by a failure that other ranks would not run into.
static void judge_fall(struct sim *sim, uint64_t number, const char *why)
{
    static const char *const passing[] = {"PeerLost", "NodeLost",   "KeeperLost",
                                          "RankDied", "NodeFailed", "ReassignFailed"};
    struct sim_job *job = &sim->jobs[number];
    bool lived = job->before == DP_STATE_RUNNING || job->before == DP_STATE_REASSIGNING ||
                 job->before == DP_STATE_LOST;
    bool lived_alone = job->before == DP_STATE_RUNNING;
    job->before = DP_STATE_STOPPING; // the first cause counts
    bool passes = false;
    for (size_t i = 0; i < sizeof(passing) / sizeof(passing[0]); i++) {
        passes = passes || strncmp(why, passing[i], strlen(passing[i])) == 0;
    }
    const struct dp_job_record *row = dp_core_job(sim->controller.core, number, NULL, NULL);
    if (!lived || !passes || row == NULL || row->step == 0 || job->switching || job->refused ||
        job->misled || job->agains >= 3 || row->recovery != DP_JOB_RECOVERY_AUTO) {
        return;
    }
    if (lived_alone) {
        sim_fail(sim, "recovery", "%s.%u.%u is not tried to be recovered: %s", row->id,
                 row->attempt, row->epoch, why);
    }
    // An order to hold that somebody does not answer is not waited for any longer.
    const struct sim_run *run = run_in_force(sim, row);
    if (run != NULL && all_is_served(sim, run) && !(job->pausing && some_lack(run))) {
        sim_fail(sim, "recovery", "%s.%u.%u could go on from ranks that hold; it falls: %s",
                 row->id, row->attempt, row->epoch, why);
    }
}

static void note_recovered(struct sim *sim, struct sim_job *job, const char *text)
{
    const char *step_text = strstr(text, "step ");
    uint64_t step = step_text == NULL ? 0 : strtoull(step_text + 5, NULL, 10);
    job->recoveries = step == job->recovered_step ? job->recoveries + 1 : 1;
    job->recovered_step = step;
    sim->tally->recoveries++;
}

// Preemption.

static void note_way(struct sim *sim, const struct dp_effect *effect)
{
    static const char start[] = "Preempted: made way for ";
    const struct dp_core *core = sim->controller.core;
    if (strncmp(effect->text, start, sizeof(start) - 1) != 0) {
        return;
    }
    const struct dp_job_record *job = dp_core_job(core, effect->job, NULL, NULL);
    uint32_t wanting = sim_job_number(effect->text + sizeof(start) - 1);
    const struct dp_job_record *other = dp_core_job(core, wanting, NULL, NULL);
    if (other == NULL || other->state != DP_STATE_QUEUED || other->priority <= job->priority ||
        !job->preemptible) {
        sim_fail(sim, "preemption", "%s of priority %d makes way for job-%u, which is %s", job->id,
                 job->priority, wanting,
                 other == NULL ? "not there" : dp_job_state_text(other->state));
    }
    sim->jobs[effect->job].preempted++;
    sim->tally->preemptions++;
}

void sim_rules_note(struct sim *sim, const struct dp_effect *effect)
{
    if (effect->job > 0 && effect->job <= SIM_JOBS_MAX) {
        struct sim_job *job = &sim->jobs[effect->job];
        if (strcmp(effect->event, "job.switch") == 0) {
            job->switching = true;
        } else if (strcmp(effect->event, "job.recovered") == 0) {
            note_recovered(sim, job, effect->text);
        } else if (strcmp(effect->event, "job.reassign_again") == 0) {
            job->agains++;
        } else if (strcmp(effect->event, "job.makes_way") == 0) {
            note_way(sim, effect);
        } else if (strcmp(effect->event, "job.cause") == 0 && job->state == DP_STATE_STOPPING) {
            judge_fall(sim, effect->job, effect->text);
        } else if (strcmp(effect->event, "job.not_recovered") == 0) {
            job->refused = true;
            if (job->recoveries < sim->controller.config.recoveries_max) {
                sim_fail(sim, "recovery", "job-%llu went on %u times: %s",
                         (unsigned long long)effect->job, job->recoveries, effect->text);
            }
        }
    }
    uint32_t node =
        effect->node[0] == '\0' ? SIM_NODES_MAX : (uint32_t)strtoul(effect->node + 1, NULL, 10);
    for (uint32_t i = 0; sim_note_text(i) != NULL; i++) {
        if (strcmp(sim_note_text(i), effect->event) == 0) {
            sim_faults_trigger(sim, SIM_AT_NOTE, i, effect->job, node);
        }
    }
}

void sim_rules_move(struct sim *sim, uint64_t number, dp_job_state to)
{
    struct sim_job *job = &sim->jobs[number];
    if (to == DP_STATE_RUNNING || to == DP_STATE_QUEUED) {
        job->pausing = job->switching = job->refused = job->misled = false;
        job->agains = 0;
    }
    if (to == DP_STATE_QUEUED) {
        job->recoveries = 0;
        job->passed_ns = 0;
    }
}

// Order.

static bool goes_before(const struct dp_job_record *job, const struct dp_job_record *other)
{
    return job->priority != other->priority ? job->priority > other->priority
                                            : job->number < other->number;
}

static bool is_within_quota(struct sim *sim, const struct dp_job_record *job)
{
    uint64_t wanted = sim_ranks_of(sim, job->user) + (uint64_t)job->ranks_wanted;
    return wanted <= sim_quota_of(sim, job->user);
}

// Nothing but room keeps it: no wait of its own, and the cluster is large enough.
static bool lacks_room_only(struct sim *sim, const struct dp_job_record *job)
{
    uint32_t slots = 0;
    for (size_t n = 0; n < dp_core_nodes_count(sim->controller.core); n++) {
        struct dp_node_view view;
        dp_core_node_at(sim->controller.core, n, &view);
        bool there = (view.state == DP_NODE_READY || view.state == DP_NODE_LATE) &&
                     !sim_is_avoided(job, view.node->name);
        slots += there ? view.node->slots : 0;
    }
    // Ranks that the same pass took from another job of the user leave room in his quota too late.
    bool is_over = strcmp(job->reason, "OverQuota") == 0;
    return job->state == DP_STATE_QUEUED && job->retry_at_ns == 0 && job->held_ns == 0 &&
           !is_over && (uint32_t)job->ranks_wanted <= slots && is_within_quota(sim, job);
}

// One that waits before its next attempt, or has waited: then that one may be the first, and only
// the first is kept room for.
static bool some_retry_before(const struct dp_core *core, const struct dp_job_record *const *rows,
                              const struct dp_job_record *job)
{
    for (size_t i = 0; i < dp_core_jobs_count(core); i++) {
        if (rows[i]->state == DP_STATE_QUEUED && rows[i]->retry_at_ns != 0 &&
            goes_before(rows[i], job)) {
            return true;
        }
    }
    return false;
}

void sim_rules_plan(struct sim *sim, uint64_t number)
{
    const struct dp_job_record *rows[SIM_JOBS_MAX], *first = NULL;
    const struct dp_core *core = sim->controller.core;
    const struct dp_job_record *job = dp_core_job(core, number, NULL, NULL);
    dp_core_job_rows(core, rows);
    for (size_t i = 0; i < dp_core_jobs_count(core); i++) {
        if (goes_before(rows[i], job) && (first == NULL || goes_before(rows[i], first)) &&
            lacks_room_only(sim, rows[i])) {
            first = rows[i];
        }
    }
    if (first == NULL) {
        return;
    }
    bool strict = sim->controller.config.queue == DP_QUEUE_STRICT;
    if (!strict && some_retry_before(core, rows, first)) {
        return;
    }
    struct sim_job *waits = &sim->jobs[first->number];
    int64_t pass_ns = SIM_MS((int64_t)sim->controller.config.pass_ms + PASSED_MS);
    if (strict || (waits->passed_ns != 0 && sim->now_ns - waits->passed_ns > pass_ns)) {
        sim_fail(sim, "order",
                 "%s%s (priority %d) is planned before %s (priority %d), which wants %d ranks: %s",
                 strict ? "strict: " : "", job->id, job->priority, first->id, first->priority,
                 first->ranks_wanted, first->message);
    }
    waits->passed_ns = waits->passed_ns == 0 ? sim->now_ns : waits->passed_ns;
}

// History.

void sim_rules_decision(struct sim *sim, const struct sim_row *row,
                        const struct dp_decision_record *decision)
{
    const struct dp_decision_record *before = row->decision;
    bool open = before->state == DP_DECISION_PREPARING || before->state == DP_DECISION_SWITCHING ||
                before->state == DP_DECISION_RUNNING;
    if (before->number != 0 && decision->number > before->number && open &&
        before->outcome[0] == '\0') {
        sim_fail(sim, "history", "decision %llu of job-%llu stays %s",
                 (unsigned long long)before->number, (unsigned long long)decision->job,
                 dp_decision_state_text(before->state));
    }
}

// Whoever makes way does so for an attempt of somebody of higher priority.
static void check_preempted(struct sim *sim, const struct dp_job_record *job)
{
    uint32_t most = sim->broken; // what they make way for may lose the room again
    if (sim->late.reordered) {
        return; // it was another order then
    }
    for (uint64_t number = 1; number <= sim->disk.highest; number++) {
        const struct dp_job_record *other = &sim->disk.rows[number].job;
        bool higher = sim->disk.rows[number].used && other->priority > job->priority;
        most += higher ? 2 * (other->attempt + 1) : 0;
    }
    if (sim->jobs[job->number].preempted > most) {
        sim_fail(sim, "preemption", "%s was preempted %u times", job->id,
                 sim->jobs[job->number].preempted);
    }
}

void sim_rules_end(struct sim *sim)
{
    for (uint64_t number = 1; number <= sim->disk.highest; number++) {
        const struct sim_job *job = &sim->jobs[number];
        const struct sim_row *row = &sim->disk.rows[number];
        if ((job->begun & ~job->kept) != 0) {
            sim_fail(sim, "history", "attempts %llx of job-%llu began, %llx have a row",
                     (unsigned long long)job->begun, (unsigned long long)number,
                     (unsigned long long)job->kept);
        }
        bool open = row->decision != NULL && (row->decision->state == DP_DECISION_PREPARING ||
                                              row->decision->state == DP_DECISION_SWITCHING);
        if (open) {
            sim_fail(sim, "history", "decision %llu of job-%llu, which has ended, is %s",
                     (unsigned long long)row->decision->number, (unsigned long long)number,
                     dp_decision_state_text(row->decision->state));
        }
        if (row->used) {
            check_preempted(sim, &row->job);
        }
    }
    for (uint32_t i = 0; i < sim->calls_count && sim->streams >= 2; i++) {
        // What a checkpoint changes is not in the database.
        bool changes = sim->calls[i].kind != SIM_CALL_CHECKPOINT;
        if (changes && sim->calls[i].accepted && !sim->calls[i].kept) {
            sim_fail(sim, "history", "call %u was accepted and has no row in the audit", i + 1);
        }
    }
}
