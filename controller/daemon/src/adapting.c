// Another layout for a job that runs: what answers a slow rank best, or what is left of it when
// ranks are lost. The search runs as a task, on copies of all it looks at.
#include "adapting.h"

#include <stdlib.h>
#include <string.h>

#include "dp/adapt.h"
#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/log.h"
#include "dp/straggler.h"
#include "lessons.h"
#include "planning.h"

#define KINDS_MAX 64 // kinds of work of one rank that are looked at

struct adapting {
    struct task task;
    uint64_t job, request;
    bool recovers, leaves;
    struct dp_job_spec spec;
    struct dp_plan plan;     // in force
    struct plan_nodes nodes; // that may be used, the job's own slots among them
    bool *lost;              // [world]
    struct dp_straggler_verdict *verdicts;
    size_t verdicts_count;
    struct dp_adapt_measured *measured;
    size_t measured_count;
    double *rank_load;    // [world]: rows that came to its experts over the mean; NULL = no experts
    double skew;          // the fullest expert's
    dp_adapt_kind wanted; // the one answer that is looked for; IGNORE = the best
    bool grows;           // it has fewer ranks than it once had
    double step_s, switch_s, restart_s, trust;
    int64_t steps_left, step;
    // What came of it.
    const char *kind; // static
    char action[DP_TEXT_MAX];
    bool changes;  // `next` is to be run
    bool moves;    // experts are placed by their loads
    char *without; // begin anew without these nodes; NULL = not
    struct dp_plan next;
    double predicted_s, pause_s;
    int64_t again_steps;
    struct dp_buf document;
};

static void adapting_free(struct task *task)
{
    struct adapting *adapting = (struct adapting *)task;
    dp_plan_deinit(&adapting->plan);
    dp_plan_deinit(&adapting->next);
    plan_nodes_deinit(&adapting->nodes);
    dp_buf_deinit(&adapting->document);
    free(adapting->lost);
    free(adapting->measured);
    free(adapting->rank_load);
    free(adapting->verdicts);
    free(adapting->without);
    free(adapting);
}

// Places that no rank has which lives on: those that are free, and those of ranks that are lost.
static size_t list_spares(const struct adapting *adapting, struct dp_adapt_spare **ret_spares)
{
    const struct plan_nodes *nodes = &adapting->nodes;
    size_t slots = 0, count = 0;
    for (size_t n = 0; n < nodes->count; n++) {
        slots += (size_t)nodes->nodes[n].slots;
    }
    struct dp_adapt_spare *spares = dp_new_array(struct dp_adapt_spare, slots);
    int32_t world = dp_plan_world(&adapting->plan);
    for (size_t n = 0; n < nodes->count; n++) {
        for (int32_t s = 0; s < nodes->nodes[n].slots; s++) {
            int32_t slot = (int32_t)nodes->slots[n][s];
            bool used = false;
            for (int32_t r = 0; r < world && !used; r++) {
                const struct dp_plan_rank *rank = &adapting->plan.ranks[r];
                used = !adapting->lost[r] && rank->slot == slot &&
                       strcmp(rank->node, nodes->nodes[n].name) == 0;
            }
            if (!used) {
                struct dp_adapt_spare *spare = &spares[count++];
                DP_COPY_TEXT(spare->node, nodes->nodes[n].name);
                spare->slot = slot;
                // Ranks that compute nothing hold nothing, however large their model is.
                bool has_state = adapting->spec.resources.device != DP_DEVICE_SIM;
                spare->memory_bytes = has_state ? nodes->nodes[n].memory_bytes : 0;
            }
        }
    }
    *ret_spares = spares;
    return count;
}

// All of its ranks hold, and none is lost: an earlier controller told them to.
static void run_again(struct adapting *adapting)
{
    adapting->kind = "resume";
    DP_COPY_TEXT(adapting->action, "the same layout, from what its ranks hold");
    adapting->next = adapting->plan;
    adapting->plan = (struct dp_plan){0};
    adapting->changes = true;
}

static bool is_whole(const struct adapting *adapting)
{
    int32_t world = dp_plan_world(&adapting->plan);
    for (int32_t r = 0; r < world; r++) {
        if (adapting->lost[r]) {
            return false;
        }
    }
    return true;
}

static void run_recover(struct adapting *adapting)
{
    DP_AUTO_FREE struct dp_adapt_spare *spares = NULL;
    size_t spares_count = list_spares(adapting, &spares);
    struct dp_planner_resources resources = plan_nodes_resources(&adapting->nodes);
    struct dp_planner_options options = {.stop = task_asked_to_stop, .context = &adapting->task};
    struct dp_adapt_loss loss = {
        .plan = &adapting->plan,
        .lost = adapting->lost,
        .covered = adapting->leaves ? 1 : 0,
        .obeys = adapting->leaves,
        .spares = spares,
        .spares_count = spares_count,
        .spec = &adapting->spec,
        .resources = &resources,
        .options = &options,
    };
    DP_CLEANUP(dp_adapt_recovery_deinit) struct dp_adapt_recovery recovery = {0};
    struct dp_error *err = &adapting->task.error;
    if (dp_adapt_recover(&loss, &recovery, err) != DP_OK) {
        return;
    }
    if (recovery.kind == DP_ADAPT_FROM_CHECKPOINT || !recovery.has_plan) {
        dp_fail(err, DP_UNSCHEDULABLE, "%s", recovery.reason);
        return;
    }
    adapting->kind = adapting->leaves ? "leave-node" : "recover";
    DP_COPY_TEXT(adapting->action, recovery.action);
    adapting->next = recovery.plan;
    recovery.plan = (struct dp_plan){0};
    recovery.has_plan = false;
    if (recovery.is_anew) {
        plan_nodes_number(&adapting->nodes, &adapting->next);
    }
    adapting->changes = true;
}

// Which ranks verdicts say are slow, and which links: room for two of each, since what is slow is
// the way there and back.
static size_t apply_verdicts(const struct adapting *adapting, const struct dp_adapt_costs *costs,
                             double *slow, struct dp_adapt_link *ret_links)
{
    int32_t world = dp_plan_world(&adapting->plan);
    size_t links = 0;
    for (size_t i = 0; i < adapting->verdicts_count; i++) {
        const struct dp_straggler_verdict *verdict = &adapting->verdicts[i];
        if (verdict->rank >= (uint32_t)world || verdict->slowdown <= 1) {
            continue;
        }
        if (verdict->cause != DP_STRAGGLER_LINK) {
            slow[verdict->rank] = verdict->slowdown;
            continue;
        }
        bool known = verdict->peer < (uint32_t)world;
        bool near = known && strcmp(adapting->plan.ranks[verdict->rank].node,
                                    adapting->plan.ranks[verdict->peer].node) == 0;
        struct dp_sim_hop hop = near ? costs->local : costs->network;
        hop.latency *= verdict->slowdown;
        hop.bytes_per_second /= verdict->slowdown;
        int32_t own = (int32_t)verdict->rank, other = known ? (int32_t)verdict->peer : -1;
        ret_links[links++] = (struct dp_adapt_link){other, own, hop, DP_ADAPT_TO};
        ret_links[links++] = (struct dp_adapt_link){own, other, hop, DP_ADAPT_FROM};
    }
    return links;
}

// Seconds that were lost so far, by what loses most.
static double excess(const struct adapting *adapting)
{
    double most = 0;
    for (size_t i = 0; i < adapting->verdicts_count; i++) {
        const struct dp_straggler_verdict *verdict = &adapting->verdicts[i];
        double lost = verdict->lost_s * (double)(adapting->step - verdict->onset_step + 1);
        most = lost > most ? lost : most;
    }
    return most;
}

// Unless the job says that they stay.
static bool may_move_experts(const struct adapting *adapting)
{
    const char *placement = adapting->spec.parallel.expert_placement;
    return adapting->spec.resources.device != DP_DEVICE_SIM &&
           (placement[0] == '\0' || strcmp(placement, "auto") == 0);
}

static void take_answer(struct adapting *adapting, struct dp_adapt_answers *answers)
{
    struct dp_adapt_answer *best = &answers->answers[answers->best];
    DP_AUTO_JSON json_t *json = dp_adapt_to_json(answers);
    dp_json_write(json, 0, &adapting->document);
    adapting->kind = dp_adapt_kind_text(best->kind);
    snprintf(adapting->action, sizeof(adapting->action), "%s%s%s",
             best->action == NULL ? adapting->kind : best->action,
             best->reason == NULL || best->reason[0] == '\0' ? "" : ": ",
             best->reason == NULL ? "" : best->reason);
    adapting->predicted_s = best->after_s;
    adapting->pause_s = best->cost_s;
    adapting->again_steps = dp_adapt_again_steps(answers, adapting->steps_left);
    unsigned experts = 1u << DP_ADAPT_EXPERTS;
    adapting->moves = may_move_experts(adapting) &&
                      (best->kind == DP_ADAPT_EXPERTS || (best->parts & experts) != 0);
    // A restart is planned by the queue, with what is free then.
    if (best->kind == DP_ADAPT_RESTART) {
        adapting->without = best->without;
        best->without = NULL;
    } else if (best->plan != NULL) {
        adapting->next = *best->plan;
        free(best->plan);
        best->plan = NULL;
        adapting->changes = true;
        if (best->kind == DP_ADAPT_GROW) {
            plan_nodes_number(&adapting->nodes, &adapting->next);
        }
    }
}

// What loads of experts say where they are the cause, or as uneven as what is called one: whatever
// others do to a machine, on top of it, hides that they are.
static bool find_experts(const struct adapting *adapting, struct dp_adapt_experts *ret_experts)
{
    if (adapting->rank_load == NULL || adapting->plan.expert <= 1) {
        return false;
    }
    bool counts = adapting->wanted == DP_ADAPT_EXPERTS;
    for (size_t i = 0; i < adapting->verdicts_count; i++) {
        counts = counts || adapting->verdicts[i].cause == DP_STRAGGLER_UNEVEN_DATA;
    }
    // Advice that nobody is to follow would stand before what can be done.
    for (int32_t r = 0; r < dp_plan_world(&adapting->plan) && may_move_experts(adapting); r++) {
        counts = counts || adapting->rank_load[r] >= adapting->spec.straggler.threshold;
    }
    if (!counts) {
        return false;
    }
    dp_adapt_experts_of_ranks(&adapting->plan, &adapting->spec.model, adapting->rank_load,
                              adapting->skew, adapting->spec.parallel.expert_copies, ret_experts);
    return true;
}

static void run_choose(struct adapting *adapting)
{
    struct dp_error *err = &adapting->task.error;
    struct dp_planner_resources resources = plan_nodes_resources(&adapting->nodes);
    DP_CLEANUP(dp_adapt_costs_deinit) struct dp_adapt_costs costs = {0};
    if (dp_adapt_costs_predict(&adapting->spec, &adapting->plan, &resources, &costs, err) !=
        DP_OK) {
        return;
    }
    int32_t world = dp_plan_world(&adapting->plan);
    DP_AUTO_FREE double *slow = dp_new_array(double, (size_t)world);
    for (int32_t r = 0; r < world; r++) {
        slow[r] = 1;
    }
    DP_AUTO_FREE struct dp_adapt_link *links =
        dp_new_array(struct dp_adapt_link, 2 * adapting->verdicts_count);
    size_t links_count = apply_verdicts(adapting, &costs, slow, links);
    if (adapting->measured_count > 0 &&
        dp_adapt_costs_measure(&costs, &adapting->plan, slow, adapting->measured,
                               adapting->measured_count, err) != DP_OK) {
        return;
    }
    DP_AUTO_FREE struct dp_adapt_spare *spares = NULL;
    struct dp_adapt_input input = {
        .plan = &adapting->plan,
        .costs = &costs,
        .slow = slow,
        .links = links,
        .links_count = links_count,
        .measured_step_s = adapting->step_s,
        .remaining_steps = adapting->steps_left,
        .trust = adapting->trust,
        .wanted = adapting->wanted,
        .spec = &adapting->spec,
        .resources = &resources,
        .grows = adapting->grows,
    };
    input.spares_count = list_spares(adapting, &spares);
    input.spares = spares;
    dp_adapt_limits_init(&input.limits);
    dp_adapt_acting_init(&input.acting, &costs);
    input.limits.stop = task_asked_to_stop;
    input.limits.context = &adapting->task;
    input.excess_s = excess(adapting);
    struct dp_adapt_experts experts;
    input.experts = find_experts(adapting, &experts) ? &experts : NULL;
    if (adapting->switch_s > 0) {
        input.acting.switch_s = adapting->switch_s;
    }
    if (adapting->restart_s > 0) {
        input.acting.checkpoint_s = 0; // it is in the other
        input.acting.restart_s = adapting->restart_s;
    }
    if (adapting->spec.resources.device == DP_DEVICE_SIM) {
        // It has nothing to save: it would begin anew.
        input.acting.checkpoint_s = (double)adapting->step * adapting->step_s;
    }
    DP_CLEANUP(dp_adapt_answers_deinit) struct dp_adapt_answers answers = {0};
    if (dp_adapt_choose(&input, &answers, err) == DP_OK) {
        take_answer(adapting, &answers);
    }
}

static void run(struct task *task)
{
    struct adapting *adapting = (struct adapting *)task;
    if (task->error.status != DP_OK) {
        return; // the job file or the plan could not be read
    }
    if (adapting->recovers && is_whole(adapting)) {
        run_again(adapting);
    } else if (adapting->recovers || adapting->leaves) {
        run_recover(adapting);
    } else {
        run_choose(adapting);
    }
}

static void tell_failed(struct adapting *adapting)
{
    struct dp_core_event event = {
        .kind = DP_EVENT_ADAPT_FAILED,
        .adapt_failed = {.job = adapting->job, .request = adapting->request}};
    event.adapt_failed.error = adapting->task.error;
    daemon_step(adapting->task.daemon, &event);
}

static void tell_core(struct task *task)
{
    struct adapting *adapting = (struct adapting *)task;
    if (task->error.status != DP_OK) {
        tell_failed(adapting);
        return;
    }
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf packed = {0};
    struct dp_core_event event = {
        .kind = DP_EVENT_ADAPT_DONE,
        .adapt_done = {.job = adapting->job,
                       .request = adapting->request,
                       .kind = adapting->kind,
                       .action = adapting->action,
                       .predicted_step_ns = (int64_t)(adapting->predicted_s * DP_NS_PER_S),
                       .predicted_pause_ns = (int64_t)(adapting->pause_s * DP_NS_PER_S),
                       .again_steps = (uint64_t)adapting->again_steps,
                       .without = adapting->without,
                       .rebalances = adapting->moves,
                       .document = adapting->document.bytes,
                       .document_length = adapting->document.length}};
    if (adapting->changes) {
        size_t world = (size_t)dp_plan_world(&adapting->next);
        struct dp_slot *slots = arena_take(&arena, world * sizeof(*slots));
        for (size_t i = 0; i < world; i++) {
            const struct dp_plan_rank *rank = &adapting->next.ranks[i];
            slots[i] = (struct dp_slot){.node = rank->node, .slot = (uint32_t)rank->slot};
        }
        dp_wire_pack(&dp_wire_plan_to_proto(&adapting->next, &arena)->base, &packed);
        event.adapt_done.plan = packed.bytes;
        event.adapt_done.plan_length = packed.length;
        event.adapt_done.ranks = slots;
        event.adapt_done.ranks_count = world;
    }
    daemon_step(task->daemon, &event);
}

static dp_status take_plan(struct adapting *adapting, const struct dp_job_record *job)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__Plan *plan = NULL;
    dp_status status = view_plan(job, &arena, &plan, &adapting->task.error);
    return status == DP_OK ? dp_wire_plan_from_proto(plan, &adapting->plan, &adapting->task.error)
                           : status;
}

// What the ranks measured of each kind of work, as the detector of stragglers has it.
static void take_measured(struct adapting *adapting, size_t world)
{
    const struct dp_straggler *detector =
        dp_core_straggler(adapting->task.daemon->core, adapting->job);
    if (detector == NULL) {
        return;
    }
    struct dp_straggler_kind_score scores[KINDS_MAX];
    adapting->measured = dp_new_array(struct dp_adapt_measured, world * KINDS_MAX);
    for (size_t rank = 0; rank < world; rank++) {
        size_t count = dp_straggler_kind_scores(detector, (uint32_t)rank, scores, KINDS_MAX);
        for (size_t i = 0; i < count && i < KINDS_MAX; i++) {
            const struct dp_straggler_kind *kind = &scores[i].kind;
            if (kind->kind >= DP_ACTION_KIND_COUNT || kind->count == 0) {
                continue;
            }
            adapting->measured[adapting->measured_count++] = (struct dp_adapt_measured){
                .rank = (int32_t)rank,
                .kind = (dp_action_kind)kind->kind,
                .stage = kind->stage,
                .with_input = kind->b_kind == DP_ACTION_I,
                .b_stage = kind->b_stage,
                .seconds = (double)kind->total_ns / kind->count / DP_NS_PER_S,
            };
        }
    }
}

// Loads of the newest step, when every rank has told its own.
static void take_loads(struct adapting *adapting, size_t world)
{
    const struct dp_rank_record *ranks;
    size_t count;
    dp_core_job(adapting->task.daemon->core, adapting->job, &ranks, &count);
    double *loads = dp_new_array(double, world);
    bool known = count == world;
    for (size_t r = 0; known && r < world; r++) {
        known = ranks[r].load.skew > 0;
        loads[r] = ranks[r].load.rank;
        adapting->skew = ranks[r].load.skew > adapting->skew ? ranks[r].load.skew : adapting->skew;
    }
    adapting->rank_load = known ? loads : NULL;
    if (!known) {
        free(loads);
    }
}

static void take_lost(struct adapting *adapting, const struct dp_adapt_ask *ask)
{
    size_t world = (size_t)dp_plan_world(&adapting->plan);
    adapting->lost = dp_new_array(bool, world);
    for (size_t i = 0; i < ask->lost_count; i++) {
        if (ask->lost[i] < world) {
            adapting->lost[ask->lost[i]] = true;
        }
    }
    for (size_t r = 0; r < world && adapting->leaves; r++) {
        adapting->lost[r] =
            adapting->lost[r] || strcmp(adapting->plan.ranks[r].node, ask->away) == 0;
    }
}

void adapting_start(struct daemon *daemon, const struct dp_effect *effect)
{
    const struct dp_adapt_ask *ask = effect->adapt;
    const struct dp_job_record *job = dp_core_job(daemon->core, effect->job, NULL, NULL);
    struct adapting *adapting = dp_new(struct adapting);
    *adapting = (struct adapting){
        .task = {.daemon = daemon,
                 .kind = TASK_ADAPT,
                 .run = run,
                 .finish = tell_core,
                 .free = adapting_free},
        .job = effect->job,
        .request = ask->request,
        .recovers = ask->recovers,
        .leaves = !ask->recovers && ask->away[0] != '\0',
        .step_s = (double)ask->step_ns / DP_NS_PER_S,
        .switch_s = (double)ask->switch_ns / DP_NS_PER_S,
        .restart_s = (double)ask->restart_ns / DP_NS_PER_S,
        .trust = ask->trust,
        .steps_left = (int64_t)ask->steps_left,
        .step = (int64_t)job->step,
        .grows = ask->grows,
    };
    if (!dp_adapt_kind_of(ask->answer, &adapting->wanted)) {
        adapting->wanted = DP_ADAPT_IGNORE;
    }
    struct dp_error *err = &adapting->task.error;
    dp_status status =
        planning_parse(job->job_toml.bytes, job->job_toml.length, job->id, &adapting->spec, err);
    if (status == DP_OK) {
        status = take_plan(adapting, job);
    }
    plan_nodes_init(&adapting->nodes, effect->nodes_count);
    for (size_t i = 0; i < effect->nodes_count; i++) {
        plan_nodes_add(&adapting->nodes, effect->nodes[i].node, effect->nodes[i].slots_free,
                       effect->nodes[i].slots);
    }
    lessons_apply(daemon, &adapting->nodes);
    if (status == DP_OK) {
        take_lost(adapting, ask);
        take_measured(adapting, (size_t)dp_plan_world(&adapting->plan));
        take_loads(adapting, (size_t)dp_plan_world(&adapting->plan));
    }
    adapting->verdicts_count = ask->verdicts_count;
    adapting->verdicts = dp_memdup(ask->verdicts, ask->verdicts_count * sizeof(*ask->verdicts));
    task_submit(&adapting->task);
}
