// What is done about slow ranks and nodes that are to be left: asked for, stored with what it was
// expected to gain, carried out where the job's policy says so, and measured. A prediction that did
// not come true lowers the trust in the next one.
#include "core_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/clock.h"
#include "dp/straggler.h"

// As dp_adapt_trust_after has it.
#define TRUST_SHARE 0.5      // of the newest prediction in the running ratio
#define TRUST_LEAST 0.1      // so that it can come back
#define VERDICTS_MAX 32      // about one job that are answered together
#define COOL_DOUBLINGS_MAX 6 // of a minute: what cannot be done is tried again in an hour

static int compare_times(const void *left, const void *right)
{
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return a < b ? -1 : a > b;
}

int64_t dp_core_recent_step_ns(const struct core_job *job, size_t steps)
{
    const struct core_reassign *reassign = &job->reassign;
    int64_t times[CORE_RECENT_STEPS];
    size_t count = 0;
    for (uint64_t back = 0; back < CORE_RECENT_STEPS && back < job->row.step && count < steps;
         back++) {
        uint64_t step = job->row.step - back;
        if (step < reassign->recent_first) {
            break;
        }
        int64_t time_ns = reassign->recent_ns[step % CORE_RECENT_STEPS];
        if (time_ns > 0) {
            times[count++] = time_ns;
        }
    }
    if (count == 0) {
        return 0;
    }
    qsort(times, count, sizeof(*times), compare_times);
    return times[count / 2];
}

static bool *taken_slots(struct dp_core *core, const struct core_job *job,
                         const struct core_node *node)
{
    bool *taken = dp_arena_alloc(&core->effects->arena, node->row.slots + 1);
    for (size_t k = 0; k < node->jobs_count; k++) {
        const struct core_job *other = node->jobs[k];
        for (size_t i = 0; other != job && i < other->ranks_count; i++) {
            const struct dp_rank_record *rank = &other->ranks[i];
            if (rank->slot < node->row.slots && strcmp(rank->node, node->row.name) == 0 &&
                dp_core_rank_has_slot(other, rank)) {
                taken[rank->slot] = true;
            }
        }
    }
    for (size_t k = 0; node->sides > 0 && k < core->sided_count; k++) {
        if (core->sided[k] != job) {
            dp_core_sides_slots(core->sided[k], node->row.name, taken, node->row.slots);
        }
    }
    return taken;
}

// The job's rank in a slot, or NULL.
static const struct dp_rank_record *rank_in(const struct core_job *job, const char *node,
                                            uint32_t slot)
{
    for (size_t i = 0; i < job->ranks_count; i++) {
        if (job->ranks[i].slot == slot && strcmp(job->ranks[i].node, node) == 0) {
            return &job->ranks[i];
        }
    }
    return NULL;
}

// A rank of the job runs there, so nobody else's does.
static bool is_in_use(const struct core_job *job, const char *node, uint32_t slot)
{
    const struct dp_rank_record *rank = rank_in(job, node, slot);
    return rank != NULL && !dp_rank_record_over(rank);
}

// Slots that the job's ranks may have: its own, and those that are free, as long as *more is not 0.
// What the node runs of jobs that are not the core's takes some, which have no numbers: the highest
// are left to it.
static struct dp_free_slots slots_for(struct dp_core *core, const struct core_job *job,
                                      const struct core_node *node, uint32_t *more)
{
    const bool *taken = taken_slots(core, job, node);
    uint32_t *numbers =
        dp_arena_alloc(&core->effects->arena, (node->row.slots + 1) * sizeof(*numbers));
    uint32_t count = 0, foreign = 0;
    for (size_t i = 0; i < node->foreign_count; i++) {
        if (strcmp(node->foreign[i].fence.job, job->row.id) != 0) {
            foreign += node->foreign[i].live;
        }
    }
    if (dp_core_node_has_leftover(node, job->row.id)) {
        foreign = node->row.slots;
    }
    for (uint32_t slot = node->row.slots; slot-- > 0;) {
        bool own = is_in_use(job, node->row.name, slot);
        if (taken[slot] || (!own && *more == 0)) {
            continue;
        }
        if (foreign > 0 && !own) {
            foreign--;
            continue;
        }
        *more -= !own;
        numbers[count++] = slot;
    }
    for (uint32_t i = 0; i < count / 2; i++) {
        uint32_t kept = numbers[i];
        numbers[i] = numbers[count - 1 - i];
        numbers[count - 1 - i] = kept;
    }
    return (struct dp_free_slots){&node->row, count, numbers};
}

static bool may_have(const struct core_job *job, const struct core_node *node)
{
    bool ready = node->state == DP_NODE_READY ||
                 (node->state == DP_NODE_REGISTERING && !job->row.needs_profile && !node->held);
    return ready && strcmp(node->row.name, job->reassign.away) != 0 &&
           !dp_core_job_avoids(job, node->row.name);
}

// Ranks that run on a node which gets no new work may stay where they are.
static bool may_stay(const struct core_job *job, const struct core_node *node, uint32_t slot)
{
    bool works = node->state == DP_NODE_DRAINING || node->state == DP_NODE_QUARANTINED;
    return works && strcmp(node->row.name, job->reassign.away) != 0 &&
           rank_in(job, node->row.name, slot) != NULL;
}

// Slots of a node that are somebody's, or were asked about before.
struct asked_slots {
    const struct core_node *node;
    bool *taken;
    struct asked_slots *next;
};

static struct asked_slots *asked_of(struct dp_core *core, const struct core_job *job,
                                    const struct core_node *node, struct asked_slots **list)
{
    struct asked_slots **link = list;
    while (*link != NULL && (*link)->node != node) {
        link = &(*link)->next;
    }
    struct asked_slots *asked = *link;
    if (asked == NULL) {
        asked = dp_arena_alloc(&core->effects->arena, sizeof(*asked));
        asked->node = node;
        asked->taken = taken_slots(core, job, node);
    } else {
        *link = asked->next;
    }
    asked->next = *list; // first: most often it is the next one's, too
    *list = asked;
    return asked;
}

bool dp_core_slots_fit(struct dp_core *core, const struct core_job *job,
                       const struct dp_slot *slots, size_t count)
{
    struct asked_slots *list = NULL;
    for (size_t i = 0; i < count; i++) {
        const struct core_node *node = dp_core_node_find(core, slots[i].node);
        if (node == NULL || slots[i].slot >= node->row.slots ||
            (!may_have(job, node) && !may_stay(job, node, slots[i].slot))) {
            return false;
        }
        bool *taken = &asked_of(core, job, node, &list)->taken[slots[i].slot];
        bool unknown = dp_core_node_has_leftover(node, job->row.id) &&
                       !is_in_use(job, node->row.name, slots[i].slot);
        if (*taken || unknown) {
            return false;
        }
        *taken = true;
    }
    return count > 0;
}

// Agents of protocol 1 know nothing of ranks beside others.
bool dp_core_may_be_offered(const struct core_job *job, const struct core_node *node)
{
    return may_have(job, node) && node->protocol >= 2;
}

void dp_core_ask(struct dp_core *core, struct core_job *job, const struct dp_adapt_ask *ask)
{
    size_t count = 0;
    FOR_EACH_NODE(core, node)
    {
        count += dp_core_may_be_offered(job, node);
    }
    struct dp_free_slots *nodes =
        dp_arena_alloc(&core->effects->arena, (count + 1) * sizeof(*nodes));
    count = 0;
    uint32_t more = UINT32_MAX;
    if (ask->grows) {
        dp_core_quotas_count(core);
        more = dp_core_quota_left(core, job);
    }
    FOR_EACH_NODE(core, node)
    {
        if (dp_core_may_be_offered(job, node)) {
            nodes[count] = slots_for(core, job, node, &more);
            count += nodes[count].slots_free > 0;
        }
    }
    struct dp_adapt_ask *kept = dp_core_keep(core, ask, sizeof(*ask));
    kept->request = job->reassign.request = core->next_request++;
    job->reassign.grows = ask->grows;
    kept->grows = !ask->recovers && job->ranks_count < job->row.ranks_full;
    kept->cause = dp_core_keep_text(core, ask->cause);
    kept->away = dp_core_keep_text(core, ask->away);
    kept->answer = dp_core_keep_text(core, ask->answer == NULL ? "" : ask->answer);
    kept->step_ns = dp_core_recent_step_ns(job, CORE_NOW_STEPS);
    kept->switch_ns = core->switch_ns;
    kept->restart_ns = dp_core_restart_cost_ns(core, job);
    kept->steps_left =
        job->row.steps_total > job->row.step ? job->row.steps_total - job->row.step : 0;
    kept->trust = core->trust;
    job->reassign.answer_ns = core->now_ns + core->config.answer_timeout_ms * DP_NS_PER_MS;
    dp_core_job_touch(job);
    struct dp_effect *effect = dp_core_effect(core, DP_EFFECT_ADAPT);
    effect->job = job->row.number;
    effect->nodes = nodes;
    effect->nodes_count = count;
    effect->adapt = kept;
}

bool dp_core_reassign_may(const struct core_job *job)
{
    for (size_t i = 0; i < job->members_count; i++) {
        const struct core_node *node = job->members[i].at;
        if (node != NULL && node->session != 0 && node->protocol < 2) {
            return false;
        }
    }
    return true;
}

bool dp_core_may_ask(const struct core_job *job)
{
    return dp_core_reassign_may(job) && job->row.state == DP_STATE_RUNNING &&
           job->reassign.phase == CORE_STEADY && job->reassign.request == 0 &&
           job->reassign.rebalance == 0;
}

static bool calls_for_an_answer(const struct dp_straggler_verdict *verdict)
{
    bool uneven =
        verdict->cause == DP_STRAGGLER_UNEVEN_STAGE || verdict->cause == DP_STRAGGLER_UNEVEN_DATA;
    return verdict->cause != DP_STRAGGLER_OWN_DOING &&
           (verdict->state == DP_STRAGGLER_CONFIRMED ||
            (verdict->state == DP_STRAGGLER_NOTED && uneven));
}

void dp_core_take_standing(struct dp_core *core, const struct core_job *job, bool suspected,
                           struct dp_adapt_ask *ask)
{
    struct dp_straggler_verdict *standing =
        dp_arena_alloc(&core->effects->arena, VERDICTS_MAX * sizeof(*standing));
    const struct dp_straggler *detector = dp_core_straggler(core, job->row.number);
    size_t count = detector == NULL ? 0 : dp_straggler_standing(detector, standing, VERDICTS_MAX);
    for (size_t i = 0; i < count && i < VERDICTS_MAX; i++) {
        bool counts = calls_for_an_answer(&standing[i]) ||
                      (suspected && standing[i].state == DP_STRAGGLER_SUSPECTED &&
                       standing[i].cause != DP_STRAGGLER_OWN_DOING);
        if (counts) {
            standing[ask->verdicts_count++] = standing[i];
        }
    }
    ask->verdicts = standing;
}

// Nothing is asked for a minute, and twice as long each time.
static void cool_longer(struct dp_core *core, struct core_reassign *reassign)
{
    int64_t cool_ns = core->config.cool_down_ms * DP_NS_PER_MS;
    reassign->cool_ns = core->now_ns + (cool_ns << reassign->cool_doublings);
    reassign->cool_doublings += reassign->cool_doublings < COOL_DOUBLINGS_MAX;
}

void dp_core_ask_later(struct dp_core *core, struct core_job *job)
{
    cool_longer(core, &job->reassign);
    job->reassign.again_step = job->row.step + 1;
}

// When what stands is asked about once more, after an answer that came.
static void come_back(struct dp_core *core, struct core_job *job, const struct dp_adapt_done *done)
{
    struct core_reassign *reassign = &job->reassign;
    uint64_t again_step = job->row.step + done->again_steps;
    // Who was found meanwhile is asked about at the next step.
    if (reassign->again_step == 0 || again_step < reassign->again_step) {
        reassign->again_step = again_step;
    }
    if (strcmp(done->kind, "ignore") != 0) {
        cool_longer(core, reassign);
    }
}

static void ask_about_stragglers(struct dp_core *core, struct core_job *job)
{
    struct dp_adapt_ask ask = {.away = "", .cause = job->reassign.cause};
    dp_core_take_standing(core, job, false, &ask);
    job->reassign.again_step = 0;
    if (ask.verdicts_count > 0) {
        DP_COPY_TEXT(job->reassign.cause, ask.verdicts[0].text);
        job->reassign.away[0] = '\0';
        job->reassign.policy = job->row.adapt;
        dp_core_ask(core, job, &ask);
    }
}

void dp_core_straggler_found(struct core_job *job, const struct dp_straggler_verdict *verdict)
{
    if (calls_for_an_answer(verdict) && job->row.adapt != DP_JOB_ADAPT_OFF) {
        // What comes with the same steps is waited for: it is asked about at the next one, or when
        // the last answer is long enough ago.
        job->reassign.again_step = job->row.step + 1;
        // It has nothing to do with what came of earlier answers.
        int64_t cool_ns = job->core->now_ns + job->core->config.cool_down_ms * DP_NS_PER_MS;
        job->reassign.cool_ns = cool_ns < job->reassign.cool_ns ? cool_ns : job->reassign.cool_ns;
        job->reassign.cool_doublings = 0;
    }
}

bool dp_core_reassign_away(struct dp_core *core, struct core_job *job, const char *node)
{
    if (!dp_core_may_ask(job)) {
        return false;
    }
    DP_COPY_TEXT(job->reassign.away, node);
    job->reassign.policy = DP_JOB_ADAPT_AUTO;
    snprintf(job->reassign.cause, sizeof(job->reassign.cause), "node %s is to be left", node);
    struct dp_adapt_ask ask = {.away = node, .cause = job->reassign.cause};
    dp_core_ask(core, job, &ask);
    return true;
}

// One that has ranks of the job, is not to be left and is not connected; NULL = there is none.
static const struct core_node *silent_node(const struct core_job *job, const char *away)
{
    for (size_t i = 0; i < job->members_count; i++) {
        const struct core_node *node = job->members[i].at;
        if (node != NULL && node->session == 0 && strcmp(node->row.name, away) != 0) {
            return node;
        }
    }
    return NULL;
}

void dp_core_reassign_ask(struct dp_core *core, const struct dp_reassign *wish)
{
    struct core_job *job = dp_core_job_by_id(core, wish->job);
    if (job == NULL) {
        dp_core_refuse_absent(core, wish->reply, wish->job);
        return;
    }
    if (job->row.state != DP_STATE_RUNNING) {
        dp_core_refuse_stored(core, wish->reply, job, DP_CONFLICT,
                              "%s is %s: only the ranks of a running job can change", wish->job,
                              dp_job_state_text(job->row.state));
        return;
    }
    const struct core_node *silent = silent_node(job, wish->away);
    if (silent != NULL) {
        dp_core_reply_error(core, wish->reply, DP_CONFLICT,
                            "node %s, which has ranks of %s, is not connected: what it could do "
                            "instead is not known; try again when it is",
                            silent->row.name, wish->job);
        return;
    }
    if (!dp_core_may_ask(job)) {
        dp_core_reply_error(core, wish->reply, DP_CONFLICT,
                            "another layout for %s is being looked for, or put into force, already",
                            wish->job);
        return;
    }
    if (wish->away[0] != '\0' && dp_core_job_member(job, wish->away) == NULL) {
        dp_core_reply_error(core, wish->reply, DP_CONFLICT, "%s has no rank on node %s", wish->job,
                            wish->away);
        return;
    }
    DP_COPY_TEXT(job->reassign.away, wish->away);
    job->reassign.policy = wish->advise ? DP_JOB_ADAPT_ADVISE : DP_JOB_ADAPT_AUTO;
    const char *answer = wish->answer == NULL ? "" : wish->answer;
    snprintf(job->reassign.cause, sizeof(job->reassign.cause), "asked for%s%s%s%s",
             wish->away[0] == '\0' ? "" : ": away from node ", wish->away,
             answer[0] == '\0' ? "" : ": ", answer);
    struct dp_adapt_ask ask = {
        .away = job->reassign.away, .answer = answer, .cause = job->reassign.cause};
    dp_core_take_standing(core, job, true, &ask);
    dp_core_ask(core, job, &ask);
    dp_core_reply_stored(core, wish->reply, job);
}

// Whether the answer is carried out. That there is room again lets a job grow; what else pays is
// left to its policy.
static bool may_act(const struct core_job *job, const struct dp_adapt_done *done)
{
    bool meant = !job->reassign.grows || job->row.adapt == DP_JOB_ADAPT_AUTO ||
                 strcmp(done->kind, "grow") == 0;
    return meant && job->reassign.policy == DP_JOB_ADAPT_AUTO && job->row.state == DP_STATE_RUNNING;
}

void dp_core_adapt_done(struct dp_core *core, const struct dp_adapt_done *done)
{
    struct core_job *job = dp_core_job_number(core, done->job);
    if (job == NULL || done->request == 0 || job->reassign.request != done->request) {
        return;
    }
    dp_core_job_touch(job);
    job->reassign.request = 0;
    job->reassign.answer_ns = 0;
    if (job->row.state == DP_STATE_REASSIGNING) {
        dp_core_recover_done(core, job, done);
        return;
    }
    bool grows = job->reassign.grows;
    bool acts = may_act(job, done);
    if (!grows && done->again_steps > 0) {
        come_back(core, job, done);
    } else if (!grows || acts) {
        job->reassign.cool_ns = core->now_ns + core->config.cool_down_ms * DP_NS_PER_MS;
    }
    if (grows) {
        dp_core_grow_asked(core, job);
    }
    if (acts && done->without != NULL && dp_core_restart_begin(core, job, done)) {
        return;
    }
    if (acts && done->rebalances && done->ranks_count == 0 &&
        dp_core_rebalance_begin(core, job, done)) {
        job->reassign.away[0] = '\0'; // nobody moves
        return;
    }
    if (acts && done->ranks_count > 0 && dp_core_grow_allowed(core, job, done->ranks_count) &&
        dp_core_slots_fit(core, job, done->ranks, done->ranks_count)) {
        dp_core_reassign_begin(core, job, done);
    } else if (grows && (done->ranks_count == 0 || job->row.adapt == DP_JOB_ADAPT_OFF)) {
        dp_core_note(core, job, NULL, false, "job.not_grown", "%s: %s", job->reassign.cause,
                     done->action);
    } else {
        if (acts && done->ranks_count > 0) { // somebody else has the slots by now
            dp_core_ask_later(core, job);
        }
        job->reassign.away[0] = '\0'; // of this question alone
        dp_core_decision_make(core, job, done, DP_DECISION_ADVISED);
    }
}

void dp_core_adapt_failed(struct dp_core *core, const struct dp_adapt_failed *failed)
{
    struct core_job *job = dp_core_job_number(core, failed->job);
    if (job == NULL || failed->request == 0 || job->reassign.request != failed->request) {
        return;
    }
    dp_core_job_touch(job);
    job->reassign.request = 0;
    job->reassign.answer_ns = 0;
    if (job->row.state == DP_STATE_REASSIGNING) {
        dp_core_recover_failed(core, job, failed->error.message);
        return;
    }
    job->reassign.away[0] = '\0';
    if (job->reassign.grows) {
        dp_core_grow_asked(core, job);
    } else {
        dp_core_ask_later(core, job);
    }
    dp_core_note(core, job, NULL, true, "job.no_answer", "%s: %s", job->reassign.cause,
                 failed->error.message);
}

static void store_decision(struct core_job *job)
{
    job->reassign.decision_changed = true;
    dp_core_job_changed(job);
}

static bool is_open(const struct dp_decision_record *decision)
{
    return decision->number != 0 &&
           (decision->state == DP_DECISION_PREPARING || decision->state == DP_DECISION_SWITCHING ||
            decision->state == DP_DECISION_RUNNING);
}

// The decision makes way for another, and is kept until it is on disk.
static void follow(struct core_job *job)
{
    struct core_reassign *reassign = &job->reassign;
    struct dp_decision_record *decision = &reassign->decision;
    if (is_open(decision)) {
        DP_COPY_TEXT(decision->outcome, "another followed before enough steps were measured");
        reassign->decision_changed = true;
    }
    if (reassign->decision_changed || reassign->decision_token > job->stored_token) {
        struct core_decision *kept = dp_new(struct core_decision);
        kept->row = *decision;
        struct core_decision **last = &reassign->decisions;
        while (*last != NULL) {
            last = &(*last)->next;
        }
        *last = kept;
    } else {
        dp_decision_record_deinit(decision);
    }
    reassign->decision_token = 0;
}

void dp_core_decisions_store(struct dp_core *core, struct core_job *job)
{
    struct core_reassign *reassign = &job->reassign;
    uint64_t token = dp_core_token(core);
    for (struct core_decision *kept = reassign->decisions; kept != NULL; kept = kept->next) {
        dp_core_store(core, DP_RECORD_DECISION, &kept->row);
        kept->token = token;
    }
    // What a transaction had that has failed, or may fail, goes along with the next.
    if (reassign->decision_changed || reassign->decision_token > job->stored_token) {
        dp_core_store(core, DP_RECORD_DECISION, &reassign->decision);
        reassign->decision_token = token;
    }
    reassign->decision_changed = false;
}

void dp_core_decisions_stored(struct core_job *job)
{
    struct core_decision **link = &job->reassign.decisions;
    while (*link != NULL) {
        struct core_decision *kept = *link;
        if (kept->token == 0 || kept->token > job->stored_token) {
            link = &kept->next;
            continue;
        }
        *link = kept->next;
        dp_decision_record_deinit(&kept->row);
        free(kept);
    }
}

void dp_core_decision_make(struct dp_core *core, struct core_job *job,
                           const struct dp_adapt_done *done, dp_decision_state state)
{
    struct dp_decision_record *decision = &job->reassign.decision;
    // That nothing pays yet is said once.
    bool again = state == DP_DECISION_ADVISED && decision->state == state &&
                 done->ranks_count == 0 && strcmp(decision->kind, done->kind) == 0 &&
                 decision->attempt == job->row.attempt;
    uint64_t number = decision->number + (again && decision->number != 0 ? 0 : 1);
    if (number != decision->number && decision->number != 0) {
        follow(job);
    } else {
        dp_decision_record_deinit(decision);
    }
    *decision = (struct dp_decision_record){
        .job = job->row.number,
        .number = number,
        .time_ns = core->wall_ns,
        .state = state,
        // What it recovers from may be further than what was reported of all ranks.
        .step = job->reassign.phase == CORE_ASKING ? job->reassign.step : job->row.step,
        .attempt = job->row.attempt,
        .epoch = state == DP_DECISION_ADVISED ? 0 : job->row.epoch_used,
        .before_step_ns = dp_core_recent_step_ns(job, CORE_NOW_STEPS),
        .predicted_step_ns = done->predicted_step_ns,
        .predicted_pause_ns = done->predicted_pause_ns,
        .trust_before = core->trust,
        .trust_after = core->trust,
    };
    const char *failed = job->reassign.failure.message;
    DP_COPY_TEXT(decision->kind, done->kind);
    DP_COPY_TEXT(decision->action, done->action);
    DP_COPY_TEXT(decision->cause, failed[0] != '\0' ? failed : job->reassign.cause);
    dp_buf_append(&decision->document, done->document, done->document_length);
    dp_core_note(core, job, NULL, false, "job.decision", "%s: %s: %s",
                 dp_decision_state_text(state), decision->kind, decision->action);
    store_decision(job);
}

void dp_core_decision_set(struct core_job *job, dp_decision_state state, const char *format, ...)
{
    struct dp_decision_record *decision = &job->reassign.decision;
    if (!is_open(decision) || decision->state == state) {
        return;
    }
    decision->state = state;
    va_list args;
    va_start(args, format);
    vsnprintf(decision->outcome, sizeof(decision->outcome), format, args);
    va_end(args);
    store_decision(job);
}

// How much of what was promised came true, 0 to 1.
static double kept_promise(const struct dp_decision_record *decision)
{
    double before = (double)decision->before_step_ns;
    double promised = before - (double)decision->predicted_step_ns;
    return fmax(0, fmin(1, (before - (double)decision->measured_step_ns) / promised));
}

static void measured(struct dp_core *core, struct core_job *job)
{
    struct dp_decision_record *decision = &job->reassign.decision;
    decision->measured_step_ns = dp_core_recent_step_ns(job, core->config.measured_steps);
    decision->trust_before = core->trust;
    // Where nothing was to be gained, nothing was promised.
    if (decision->predicted_step_ns > 0 && decision->predicted_step_ns < decision->before_step_ns) {
        core->trust = fmax(TRUST_LEAST,
                           (1 - TRUST_SHARE) * core->trust + TRUST_SHARE * kept_promise(decision));
    }
    decision->trust_after = core->trust;
    char predicted[64] = "", before[64] = "";
    if (decision->predicted_step_ns > 0) {
        snprintf(predicted, sizeof(predicted), ", %.3f ms were predicted",
                 (double)decision->predicted_step_ns / DP_NS_PER_MS);
    }
    // A controller that has just started has seen no steps.
    if (decision->before_step_ns > 0) {
        snprintf(before, sizeof(before), ", %.3f ms before",
                 (double)decision->before_step_ns / DP_NS_PER_MS);
    }
    dp_core_decision_set(job, DP_DECISION_MEASURED, "steps take %.3f ms%s%s",
                         (double)decision->measured_step_ns / DP_NS_PER_MS, predicted, before);
    dp_core_note(core, job, NULL, false, "job.decision",
                 "%s: %s; trust in predictions %.2f -> "
                 "%.2f",
                 decision->kind, decision->outcome, decision->trust_before, decision->trust_after);
}

void dp_core_decision_end(struct core_job *job)
{
    struct dp_decision_record *decision = &job->reassign.decision;
    if (decision->number != 0 && decision->state == DP_DECISION_RUNNING) {
        DP_COPY_TEXT(decision->outcome, "the job ended before enough steps were measured");
        store_decision(job);
    } else {
        dp_core_decision_set(job, DP_DECISION_ABANDONED, "the job ended before it was carried out");
    }
}

void dp_core_decision_step(struct dp_core *core, struct core_job *job, uint64_t step,
                           int64_t step_ns)
{
    struct core_reassign *reassign = &job->reassign;
    reassign->recent_ns[step % CORE_RECENT_STEPS] = step_ns;
    if (reassign->again_step != 0 && step >= reassign->again_step &&
        job->row.adapt != DP_JOB_ADAPT_OFF && core->now_ns >= reassign->cool_ns &&
        dp_core_may_ask(job)) {
        ask_about_stragglers(core, job);
    }
    if (reassign->decision.number != 0 && reassign->decision.state == DP_DECISION_RUNNING &&
        job->row.state == DP_STATE_RUNNING &&
        step + 1 >= reassign->measured_from + core->config.measured_steps) {
        measured(core, job);
    }
}

void dp_core_load_decision(struct dp_core *core, const struct dp_decision_record *decision)
{
    if (decision->state == DP_DECISION_MEASURED && decision->time_ns >= core->trust_ns) {
        core->trust = decision->trust_after;
        core->trust_ns = decision->time_ns;
        // A restart stands still for other things.
        bool is_switch = strcmp(decision->kind, "restart") != 0;
        if (decision->measured_pause_ns > 0) { // experts are placed without
            *(is_switch ? &core->switch_ns : &core->restart_ns) = decision->measured_pause_ns;
        }
    }
    struct core_job *job = dp_core_job_number(core, decision->job);
    if (job == NULL || decision->number <= job->reassign.decision.number) {
        return;
    }
    struct dp_decision_record *kept = &job->reassign.decision;
    dp_decision_record_deinit(kept);
    *kept = *decision;
    kept->document = (struct dp_buf){0};
    dp_buf_append(&kept->document, decision->document.bytes, decision->document.length);
    job->reassign.measured_from = job->row.step + 2;
    if (job->reassign.phase != CORE_SWITCHING && !dp_core_restart_awaited(job) &&
        (kept->state == DP_DECISION_PREPARING || kept->state == DP_DECISION_SWITCHING)) {
        dp_core_decision_set(job, DP_DECISION_ABANDONED,
                             "the controller was started anew meanwhile");
    }
}

int64_t dp_core_reassign_timer_ns(const struct core_job *job)
{
    const struct core_reassign *reassign = &job->reassign;
    int64_t due_ns = reassign->answer_ns;
    dp_core_sooner(&due_ns, reassign->rebalance_ns);
    dp_core_sooner(&due_ns, reassign->grow_ns);
    int64_t settled_ns = reassign->since_ns + job->core->config.settle_ms * DP_NS_PER_MS;
    if (reassign->phase == CORE_SETTLING && job->core->now_ns < settled_ns) {
        dp_core_sooner(&due_ns, settled_ns);
    }
    return due_ns;
}

void dp_core_ask_deadline(struct dp_core *core, struct core_job *job)
{
    struct core_reassign *reassign = &job->reassign;
    dp_core_rebalance_deadline(core, job);
    dp_core_grow_deadline(core, job);
    if (reassign->answer_ns == 0 || core->now_ns < reassign->answer_ns) {
        return;
    }
    struct dp_adapt_failed failed = {.job = job->row.number, .request = reassign->request};
    failed.error.status = DP_TIMEOUT;
    snprintf(failed.error.message, sizeof(failed.error.message), "no answer within %u s",
             core->config.answer_timeout_ms / 1000);
    dp_core_adapt_failed(core, &failed);
}
