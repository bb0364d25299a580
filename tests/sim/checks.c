// The rules. Each is looked at where it could be broken:
//   disk       orders and answers say nothing that a crash could take back
//   rows       attempts and epochs only rise, an ended state never changes, every move is in the
//              table, a job that is COMPLETED was trained to its end
//   training   at no moment could two assignments of a job both take a step, and no rank is trained
//              by two processes
//   slots      processes of one job alone use a slot
//   fence      no rank runs when its node's fence has passed
//   timer      the core does not ask for a timer that does nothing
//   quotas     nobody gets more than his quota
//   answers    each call is answered once; a request has one job; a cancellation is kept
//   liveness   once faults stop, every job ends, nothing is left anywhere, every node is READY
#include <stdlib.h>
#include <string.h>

#include "sim.h"

static const struct sim_row *row_of(const struct sim *sim, const char *job)
{
    uint32_t number = sim_job_number(job);
    return number == 0 || number > SIM_JOBS_MAX ? NULL : &sim->disk.rows[number];
}

static uint32_t epoch_on_disk(const struct dp_job_record *job)
{
    return job->epoch_used > job->epoch ? job->epoch_used : job->epoch;
}

// < 0: the order's assignment is older than what is in force on disk, 0: it is that one.
static int compare_with_disk(const struct dp_job_record *job, const struct dp_fence *fence)
{
    if (fence->attempt != job->attempt) {
        return fence->attempt < job->attempt ? -1 : 1;
    }
    return fence->epoch < job->epoch ? -1 : fence->epoch > job->epoch;
}

static void check_placed(struct sim *sim, const struct sim_row *row, const struct dp_effect *effect)
{
    const struct dp_rank_record *ranks = NULL;
    size_t count = 0;
    dp_core_job(sim->controller.core, effect->job, &ranks, &count);
    for (size_t i = 0; i < count; i++) {
        bool there = i < row->ranks_count && strcmp(row->ranks[i].node, ranks[i].node) == 0 &&
                     row->ranks[i].slot == ranks[i].slot;
        if (!there) {
            sim_fail(sim, "disk", "%s tells where rank %zu of %s runs, which is not on disk",
                     dp_order_kind_text(effect->order), i, effect->fence.job);
        }
    }
}

void sim_check_order(struct sim *sim, const struct dp_effect *effect)
{
    if (effect->fence.job[0] == '\0') {
        return;
    }
    const struct sim_row *row = row_of(sim, effect->fence.job);
    const char *what = dp_order_kind_text(effect->order);
    if (row == NULL || !row->used) {
        sim_fail(sim, "disk", "%s of %s, which is not on disk", what, effect->fence.job);
    }
    const struct dp_job_record *job = &row->job;
    bool known =
        effect->fence.attempt < job->attempt ||
        (effect->fence.attempt == job->attempt && effect->fence.epoch <= epoch_on_disk(job));
    if (!known) {
        sim_fail(sim, "disk", "%s of %s.%u.%u; on disk it is at attempt %u, epoch %u", what,
                 effect->fence.job, effect->fence.attempt, effect->fence.epoch, job->attempt,
                 epoch_on_disk(job));
    }
    bool ends = effect->order == DP_ORDER_STOP || effect->order == DP_ORDER_RELEASE;
    if (ends && job->state == DP_STATE_REASSIGNING && effect->fence.attempt == job->attempt &&
        effect->fence.epoch == job->source_epoch) {
        sim_fail(sim, "disk", "%s of %s.%u.%u, which serves what epoch %u takes", what, job->id,
                 job->attempt, effect->fence.epoch, job->epoch);
    }
    bool in_force = compare_with_disk(job, &effect->fence) == 0;
    bool ended = dp_job_state_ended(job->state);
    if (effect->order == DP_ORDER_PREPARE && in_force) {
        check_placed(sim, row, effect);
    } else if (effect->order == DP_ORDER_STOP && in_force && !ended &&
               job->state != DP_STATE_STOPPING) {
        sim_fail(sim, "disk", "stop of %s, which is %s on disk", effect->fence.job,
                 dp_job_state_text(job->state));
    } else if (effect->order == DP_ORDER_RELEASE && in_force && !ended) {
        sim_fail(sim, "disk", "release of %s, which is %s on disk", effect->fence.job,
                 dp_job_state_text(job->state));
    }
}

static void check_submitted(struct sim *sim, const struct dp_effect *effect,
                            const struct sim_call *call)
{
    const struct sim_row *row = &sim->disk.rows[effect->job];
    char request_id[32];
    snprintf(request_id, sizeof(request_id), "r-%u", call->request);
    if (!row->used || strcmp(row->job.request_id, request_id) != 0) {
        sim_fail(sim, "disk", "%s was answered with job-%llu, which is not on disk", request_id,
                 (unsigned long long)effect->job);
    }
    uint64_t *accepted = &sim->accepted[call->request];
    if (*accepted != 0 && *accepted != effect->job) {
        sim_fail(sim, "answers", "%s is job-%llu and job-%llu", request_id,
                 (unsigned long long)*accepted, (unsigned long long)effect->job);
    }
    *accepted = effect->job;
}

void sim_check_reply(struct sim *sim, const struct dp_effect *effect, const struct sim_call *call)
{
    if (effect->status != DP_OK) {
        return;
    }
    if (call->kind == SIM_CALL_SUBMIT) {
        check_submitted(sim, effect, call);
    } else if (call->kind == SIM_CALL_CANCEL) {
        const struct dp_job_record *job = &sim->disk.rows[call->job].job;
        if (!dp_job_state_ended(job->state) && job->state != DP_STATE_STOPPING) {
            sim_fail(sim, "disk", "job-%llu is cancelled, a user was told; on disk it is %s",
                     (unsigned long long)call->job, dp_job_state_text(job->state));
        }
        sim->jobs[call->job].cancelled = true;
    }
}

static void check_completed(struct sim *sim, const struct dp_job_record *job)
{
    const struct sim_job *truth = &sim->jobs[job->number];
    for (const struct sim_run *run = truth->runs; run != NULL; run = run->next) {
        if (run->key.attempt == job->attempt && run->key.epoch == job->epoch &&
            run->step >= truth->steps) {
            return;
        }
    }
    sim_fail(sim, "rows", "%s is COMPLETED and was not trained to its end", job->id);
}

// What still runs of a job that ends is where nobody can be asked.
static void check_ended(struct sim *sim, const struct dp_job_record *job)
{
    for (uint32_t n = 0; n < sim->nodes_count; n++) {
        const struct sim_node *node = &sim->nodes[n];
        int64_t lease_ns = SIM_MS(sim->lease_ms);
        bool silent =
            sim->now_ns - node->taken_ns > lease_ns || sim->now_ns - node->returned_ns < lease_ns;
        const struct dp_core *core = sim->controller.core;
        silent = silent || core == NULL || dp_core_node_state_of(core, node->name) == DP_NODE_LOST;
        bool asked = !silent || job->state == DP_STATE_CANCELLED;
        for (const struct sim_keeper *k = node->keepers; k != NULL && asked; k = k->next) {
            for (const struct sim_process *p = k->ranks; p != NULL; p = p->next) {
                // What is left of older epochs is named.
                bool newest = k->key.attempt == job->attempt && k->key.epoch == job->epoch;
                bool named = !newest && strstr(job->message, "earlier epochs") != NULL;
                if (k->key.job == job->number && sim_rank_alive(p) && !named) {
                    sim_fail(sim, "rows", "%s is %s, and rank %u of it runs on %s", job->id,
                             dp_job_state_text(job->state), p->rank, node->name);
                }
            }
        }
    }
}

void sim_check_job_row(struct sim *sim, const struct sim_row *row, const struct dp_job_record *job)
{
    const struct dp_job_record *before = &row->job;
    if (row->used) {
        bool ended = dp_job_state_ended(before->state);
        if (!dp_job_state_reaches(before->state, job->state) ||
            (ended && before->state != job->state)) {
            sim_fail(sim, "rows", "%s goes from %s to %s on disk", job->id,
                     dp_job_state_text(before->state), dp_job_state_text(job->state));
        }
        bool falls = job->attempt < before->attempt ||
                     (job->attempt == before->attempt &&
                      (job->epoch < before->epoch || epoch_on_disk(job) < epoch_on_disk(before)));
        if (falls || (ended && (job->attempt != before->attempt || job->epoch != before->epoch))) {
            sim_fail(sim, "rows", "%s goes from attempt %u epoch %u to attempt %u epoch %u on disk",
                     job->id, before->attempt, epoch_on_disk(before), job->attempt,
                     epoch_on_disk(job));
        }
    }
    if (job->state == DP_STATE_REASSIGNING && job->source_epoch != 0 && job->sources.length == 0) {
        sim_fail(sim, "rows", "%s takes its state from epoch %u, and nobody is named", job->id,
                 job->source_epoch);
    }
    bool ends = dp_job_state_ended(job->state) && !(row->used && dp_job_state_ended(before->state));
    if (ends) {
        check_ended(sim, job);
    }
    if (ends && job->state == DP_STATE_COMPLETED) {
        check_completed(sim, job);
    }
}

// An assignment of which a rank ended unfinished takes no step any more, whatever is left of it.
void sim_check_training(struct sim *sim, struct sim_process *process)
{
    const struct sim_key *key = &process->run->key;
    const struct sim_job *job = &sim->jobs[key->job];
    for (const struct sim_run *run = job->runs; run != NULL; run = run->next) {
        if (run != process->run && run->training > 0 && !run->broken && !process->run->broken) {
            sim_fail(sim, "training",
                     "rank %u of job-%u begins in attempt %u epoch %u while %u of %u ranks train "
                     "in attempt %u epoch %u",
                     process->rank, key->job, key->attempt, key->epoch, run->training, run->world,
                     run->key.attempt, run->key.epoch);
        }
    }
    const struct sim_process *other = process->run->ranks[process->rank];
    if (other != process && other->state == SIM_RANK_TRAINING) {
        sim_fail(sim, "training", "rank %u of job-%u is trained on n%u and n%u", process->rank,
                 key->job, other->node, process->node);
    }
}

void sim_check_slot(struct sim *sim, const struct sim_process *process)
{
    const struct sim_node *node = process->keeper->node;
    uint32_t job = process->keeper->key.job;
    if (process->slot >= node->slots) {
        sim_fail(sim, "slots", "%s has no slot %u", node->name, process->slot);
    }
    if (node->users[process->slot] > 0 && node->owner[process->slot] != job) {
        sim_fail(sim, "slots", "slot %u of %s is given to job-%u while job-%llu runs there",
                 process->slot, node->name, job, (unsigned long long)node->owner[process->slot]);
    }
}

void sim_check_silence(struct sim *sim)
{
    for (uint32_t n = 0; n < sim->nodes_count; n++) {
        const struct sim_node *node = &sim->nodes[n];
        int64_t alone_ns = sim_node_clock(sim, node) - node->contact_ns;
        int64_t fence_ms = (int64_t)sim->orphan_ms + DP_AGENT_STOP_MS + sim->lease_ms;
        bool past = node->up && node->contact_boot == node->boot + 1 &&
                    alone_ns > SIM_MS(fence_ms + sim->controller.config.lease_margin_ms);
        for (const struct sim_keeper *k = node->keepers; k != NULL && past; k = k->next) {
            for (const struct sim_process *p = k->ranks; p != NULL; p = p->next) {
                if (sim_rank_alive(p)) {
                    sim_fail(sim, "fence", "rank %u of %s runs on %s, %.1f s after the last word",
                             p->rank, k->fence.job, node->name, (double)alone_ns / 1e9);
                }
            }
        }
    }
}

uint32_t sim_ranks_of(struct sim *sim, const char *user)
{
    const struct dp_job_record *jobs[SIM_JOBS_MAX];
    const struct dp_core *core = sim->controller.core;
    uint32_t used = 0;
    dp_core_job_rows(core, jobs);
    for (size_t i = 0; i < dp_core_jobs_count(core); i++) {
        const struct dp_rank_record *ranks = NULL;
        size_t count = 0;
        bool holds = jobs[i]->state >= DP_STATE_PLANNED && !dp_job_state_ended(jobs[i]->state);
        dp_core_job(core, jobs[i]->number, &ranks, &count);
        used += holds && strcmp(jobs[i]->user, user) == 0 ? (uint32_t)count : 0;
    }
    return used;
}

uint32_t sim_quota_of(struct sim *sim, const char *user)
{
    const struct dp_quota_record *quotas[SIM_USERS];
    uint32_t counted[SIM_USERS];
    size_t count = dp_core_quotas(sim->controller.core, quotas, counted, SIM_USERS);
    for (size_t i = 0; i < count; i++) {
        if (strcmp(quotas[i]->user, user) == 0) {
            return quotas[i]->ranks;
        }
    }
    return UINT32_MAX;
}

// As a job is given slots; a quota that becomes smaller takes nothing away.
static void check_quota(struct sim *sim, const char *user)
{
    uint32_t used = sim_ranks_of(sim, user), most = sim_quota_of(sim, user);
    if (used > most) {
        sim_fail(sim, "quotas", "%s is given %u ranks of %u", user, used, most);
    }
}

static dp_job_state state_of(const char *text)
{
    for (int state = 0; state < DP_STATE_COUNT; state++) {
        const char *name = dp_job_state_text((dp_job_state)state);
        size_t length = strlen(name);
        if (strncmp(text, name, length) == 0 &&
            (text[length] == '\0' || text[length] == ' ' || text[length] == ':')) {
            return (dp_job_state)state;
        }
    }
    return DP_STATE_UNKNOWN;
}

void sim_check_move(struct sim *sim, const struct dp_effect *effect)
{
    if (effect->job == 0 || effect->job > SIM_JOBS_MAX) {
        sim_fail(sim, "rows", "job-%llu", (unsigned long long)effect->job);
    }
    struct sim_job *job = &sim->jobs[effect->job];
    dp_job_state to = state_of(effect->text);
    sim->tally->moves[job->state][to]++;
    if (!dp_job_state_may_move(job->state, to)) {
        sim_fail(sim, "rows", "job-%llu moves from %s to %s", (unsigned long long)effect->job,
                 dp_job_state_text(job->state), dp_job_state_text(to));
    }
    bool goes_on = to == DP_STATE_QUEUED || to == DP_STATE_ASSIGNING || to == DP_STATE_RUNNING;
    if (job->cancelled && goes_on) {
        sim_fail(sim, "answers", "job-%llu, whose cancellation was acknowledged, is %s again",
                 (unsigned long long)effect->job, dp_job_state_text(to));
    }
    job->before = job->state;
    job->state = to;
    const struct dp_job_record *row = dp_core_job(sim->controller.core, effect->job, NULL, NULL);
    if (to == DP_STATE_ASSIGNING && row != NULL) {
        check_quota(sim, row->user);
    }
    sim_rules_move(sim, effect->job, to);
    sim_choices_move(sim, effect->job, to);
    sim_faults_trigger(sim, SIM_AT_MOVE, to, effect->job, SIM_NODES_MAX);
}

static const char *leftover_on(const struct sim *sim, const struct sim_node *node)
{
    static char text[128];
    if (node->core == NULL) {
        snprintf(text, sizeof(text), "the agent of %s does not run", node->name);
        return text;
    }
    if (dp_agent_core_count(node->core) > 0) {
        const struct dp_agent_fence *fence = &dp_agent_core_at(node->core, 0)->fence;
        snprintf(text, sizeof(text), "%s holds %s.%u.%u", node->name, fence->job, fence->attempt,
                 fence->epoch);
        return text;
    }
    for (const struct sim_keeper *k = node->keepers; k != NULL; k = k->next) {
        if (k->alive) {
            snprintf(text, sizeof(text), "a keeper of %s lives on %s", k->fence.job, node->name);
            return text;
        }
    }
    dp_node_state state = dp_core_node_state_of(sim->controller.core, node->name);
    if (state != DP_NODE_READY) {
        snprintf(text, sizeof(text), "%s is %s", node->name, dp_node_state_text(state));
        return text;
    }
    return NULL;
}

static const char *unfinished(const struct sim *sim)
{
    static char text[400];
    if (sim->controller.core == NULL) {
        return "the controller is down";
    }
    for (uint64_t number = 1; number <= sim->disk.highest; number++) {
        const struct dp_job_record *job = &sim->disk.rows[number].job;
        if (sim->disk.rows[number].used && !dp_job_state_ended(job->state)) {
            snprintf(text, sizeof(text), "%s does not end: %s %s %.250s", job->id,
                     dp_job_state_text(job->state), job->reason, job->message);
            return text;
        }
    }
    if (!sim_users_done(sim)) {
        return "a call is not answered";
    }
    size_t count = dp_core_jobs_count(sim->controller.core);
    if (count > 0) {
        const struct dp_job_record *rows[SIM_JOBS_MAX];
        dp_core_job_rows(sim->controller.core, rows);
        snprintf(text, sizeof(text), "the core keeps %s, which has ended", rows[0]->id);
        return text;
    }
    for (uint32_t n = 0; n < sim->nodes_count; n++) {
        const char *left = leftover_on(sim, &sim->nodes[n]);
        if (left != NULL) {
            return left;
        }
    }
    return NULL;
}

bool sim_is_over(struct sim *sim)
{
    return unfinished(sim) == NULL;
}

void sim_fail_unfinished(struct sim *sim)
{
    sim_fail(sim, "liveness", "%s", unfinished(sim));
}

void sim_check_end(struct sim *sim)
{
    sim_rules_end(sim);
    for (size_t i = 0; i < dp_core_nodes_count(sim->controller.core); i++) {
        struct dp_node_view view;
        dp_core_node_at(sim->controller.core, i, &view);
        if (view.slots_used != 0) {
            sim_fail(sim, "liveness", "%u slots of %s stay taken", view.slots_used,
                     view.node->name);
        }
    }
    for (uint32_t request = 1; request <= sim->requests; request++) {
        if (sim->accepted[request] == 0) {
            sim_fail(sim, "liveness", "r-%u was not accepted", request);
        }
    }
}
