// What the second stream draws: settings, long jobs, slow places, faults that are aimed at a
// moment, and answers for layouts of every kind, wrong and late ones among them.
#include <stdlib.h>
#include <string.h>

#include "dp/rand.h"
#include "sim.h"

#define AIMED_MAX 6
#define END_MS 1200000 // long jobs wait for each other

static const char *const notes[] = {
    "job.makes_way",       "job.switch",          "job.recovered",
    "job.reassigned",      "job.reassign_again",  "job.reassign_abandoned",
    "job.reassign_failed", "job.decision",        "job.checkpoint",
    "straggler.suspected", "straggler.confirmed", "node.forgotten",
};
#define NOTES_COUNT (sizeof(notes) / sizeof(notes[0]))

const char *sim_note_text(uint32_t which)
{
    return which < NOTES_COUNT ? notes[which] : NULL;
}

int64_t sim_more_between(struct sim *sim, int64_t low, int64_t high)
{
    return low >= high ? low
                       : low + (int64_t)dp_rand_below(&sim->more.rand, (uint64_t)(high - low + 1));
}

bool sim_more_chance(struct sim *sim, uint32_t per_mille)
{
    return sim->streams >= 2 && dp_rand_below(&sim->more.rand, 1000) < per_mille;
}

// Some train for longer than people wait for a node to be empty, or long enough to be judged.
static uint64_t steps_of(const struct sim *sim, uint32_t request, int64_t *ret_step_ns)
{
    uint64_t draw = dp_rand_mix(sim->seed + 7, request);
    int64_t rest = (int64_t)(draw >> 40);
    if (draw % 100 < 4) {
        *ret_step_ns = SIM_MS(1000 + rest % 400);
        return 50 + draw / 128 % 20;
    }
    if (sim->late.patient && draw % 100 < 50) {
        *ret_step_ns = SIM_MS(400 + rest % 600);
        return 40 + draw / 128 % 40;
    }
    if (sim->more.stragglers && draw % 100 < 40) {
        *ret_step_ns = SIM_MS(80 + rest % 170);
        return 30 + draw / 128 % 30;
    }
    *ret_step_ns = SIM_MS(50 + rest % 1500);
    return 1 + draw / 128 % 12;
}

void sim_more_stored(struct sim *sim, const struct dp_job_record *job)
{
    struct sim_job *truth = &sim->jobs[job->number];
    if (sim->streams >= 2) {
        uint32_t request = (uint32_t)strtoul(job->request_id + 2, NULL, 10);
        truth->steps = steps_of(sim, request, &truth->step_ns);
    }
}

void sim_more_init(struct sim *sim)
{
    struct sim_more *more = &sim->more;
    struct dp_core_config *config = &sim->controller.config;
    dp_rand_init(&more->rand, dp_rand_mix(sim->seed, UINT64_C(0x6d6f7265)));
    if (sim->streams < 2) {
        return;
    }
    sim->end_ns = sim->calm_ns + SIM_MS(END_MS);
    config->preempt_ms = 8000;
    config->answer_timeout_ms = 10000;
    config->cool_down_ms = (uint32_t)sim_more_between(sim, 1000, 10000);
    config->measured_steps = (uint32_t)sim_more_between(sim, 2, 20);
    config->pass_ms = (uint32_t)sim_more_between(sim, 3000, 30000);
    config->queue = sim_more_chance(sim, 350) ? DP_QUEUE_STRICT : DP_QUEUE_BEST_EFFORT;
    more->stragglers = sim_more_chance(sim, 300);
    more->slow_node = (uint32_t)sim_more_between(sim, 0, sim->nodes_count - 1);
    more->slow_slot = (uint32_t)sim_more_between(sim, 0, sim->nodes[more->slow_node].slots - 1);
    more->slow_from_ns = SIM_MS(sim_more_between(sim, 1000, 25000));
    more->wrong_per_mille = sim_more_chance(sim, 400) ? 200 : 0;
    if (sim_more_chance(sim, 400)) {
        more->peace_ns = sim->calm_ns + SIM_MS(sim_more_between(sim, 10000, 60000));
    }
    sim_more_faults(sim);
}

void sim_more_submit(const struct sim *sim, uint32_t request, struct dp_submit *submit)
{
    uint64_t draw = dp_rand_mix(sim->seed + 3, request);
    if (sim->streams < 2) {
        return;
    }
    submit->adapt = (dp_adapt_policy)(draw % 3);
    int64_t step_ns = 0;
    submit->steps_total = steps_of(sim, request, &step_ns);
    if (draw / 1024 % 3 == 0) {
        submit->priority = (int32_t)(draw / 4096 % 5);
        submit->preemptible = draw / 32768 % 8 != 0;
    }
}

bool sim_more_is_slow(const struct sim *sim, const struct sim_process *process)
{
    const struct sim_more *more = &sim->more;
    return more->stragglers && sim->now_ns >= more->slow_from_ns &&
           process->node == more->slow_node && process->slot == more->slow_slot;
}

static void aim(struct sim *sim, struct sim_fault *fault)
{
    static const dp_order_kind orders[] = {
        DP_ORDER_PAUSE,      DP_ORDER_PAUSE,      DP_ORDER_SETTLE, DP_ORDER_SETTLE,  DP_ORDER_PROBE,
        DP_ORDER_CHECKPOINT, DP_ORDER_CHECKPOINT, DP_ORDER_START,  DP_ORDER_PREPARE, DP_ORDER_STOP};
    static const dp_job_state moves[] = {DP_STATE_REASSIGNING, DP_STATE_REASSIGNING,
                                         DP_STATE_REASSIGNING, DP_STATE_LOST,
                                         DP_STATE_STOPPING,    DP_STATE_PLANNED};
    uint32_t how = (uint32_t)sim_more_between(sim, 0, 2);
    if (how == 0) {
        fault->trigger = SIM_AT_ORDER;
        fault->which = orders[sim_more_between(sim, 0, 9)];
    } else if (how == 1) {
        fault->trigger = SIM_AT_MOVE;
        fault->which = moves[sim_more_between(sim, 0, 5)];
    } else {
        fault->trigger = SIM_AT_NOTE;
        fault->which = (uint32_t)sim_more_between(sim, 0, NOTES_COUNT - 1);
    }
    fault->aimed = true;
    fault->count = (uint32_t)sim_more_between(sim, 0, 2);
    if (sim_more_chance(sim, 500)) {
        fault->after_ns = SIM_MS(sim_more_between(sim, 0, sim_more_chance(sim, 500) ? 60 : 2500));
    }
}

static void draw(struct sim *sim, struct sim_fault *fault)
{
    static const sim_fault_kind kinds[] = {SIM_FAULT_CONTROLLER_CRASH,
                                           SIM_FAULT_CONTROLLER_POWER,
                                           SIM_FAULT_CONTROLLER_STALL,
                                           SIM_FAULT_DISK_FAILS,
                                           SIM_FAULT_AGENT_CRASH,
                                           SIM_FAULT_AGENT_STALL,
                                           SIM_FAULT_NODE_POWER,
                                           SIM_FAULT_CONNECTION,
                                           SIM_FAULT_PARTITION,
                                           SIM_FAULT_LOSSY_NETWORK,
                                           SIM_FAULT_KEEPER_KILL,
                                           SIM_FAULT_KEEPER_STALL,
                                           SIM_FAULT_RANK_KILL,
                                           SIM_FAULT_RANK_KILL,
                                           SIM_FAULT_RANK_FAILS,
                                           SIM_FAULT_DATA_LINK,
                                           SIM_FAULT_QUOTAS,
                                           SIM_FAULT_REASSIGNS,
                                           SIM_FAULT_DRAINS};
    *fault = (struct sim_fault){
        .kind = kinds[sim_more_between(sim, 0, sizeof(kinds) / sizeof(kinds[0]) - 1)],
        .node = (uint32_t)sim_more_between(sim, 0, sim->nodes_count - 1),
        .detail = (uint32_t)sim_more_between(sim, 0, 1 << 20),
        .for_ns =
            sim_more_between(sim, SIM_MS(20), SIM_MS(sim_more_chance(sim, 600) ? 3000 : 40000)),
    };
    if (fault->kind == SIM_FAULT_PARTITION && sim_more_chance(sim, 400)) {
        fault->for_ns = sim_more_between(sim, SIM_MS(30000), SIM_MS(80000));
    }
    aim(sim, fault);
}

// Wishes, so that there is something to aim at, and nodes that are away for long.
static void draw_timed(struct sim *sim, struct sim_fault *fault)
{
    static const sim_fault_kind kinds[] = {SIM_FAULT_REASSIGNS, SIM_FAULT_REASSIGNS,
                                           SIM_FAULT_RANK_KILL, SIM_FAULT_DRAINS,
                                           SIM_FAULT_SUBMITS,   SIM_FAULT_FORGET};
    *fault = (struct sim_fault){
        .kind = kinds[sim_more_between(sim, 0, sizeof(kinds) / sizeof(kinds[0]) - 1)],
        .at_ns = sim_more_between(sim, SIM_MS(3000), sim->calm_ns),
        .node = (uint32_t)sim_more_between(sim, 0, sim->nodes_count - 1),
        .detail = (uint32_t)sim_more_between(sim, 0, 1 << 20),
    };
    bool brief = sim_more_chance(sim, 400);
    fault->for_ns =
        SIM_MS(brief ? sim_more_between(sim, 2000, 20000) : sim_more_between(sim, 50000, 100000));
}

void sim_more_faults(struct sim *sim)
{
    uint32_t aimed = (uint32_t)sim_more_between(sim, 1, AIMED_MAX);
    uint32_t timed = (uint32_t)sim_more_between(sim, 1, 5);
    for (uint32_t n = 0; n < aimed + timed && sim->faults_count < SIM_FAULTS_MAX; n++) {
        uint32_t i = sim->faults_count++;
        struct sim_fault *fault = &sim->faults[i];
        if (n < aimed) {
            draw(sim, fault);
        } else {
            draw_timed(sim, fault);
        }
        fault->fired = (sim->faults_masked >> i & 1) != 0;
        if (fault->trigger == SIM_AT_TIME && !fault->fired) {
            sim_push(sim, fault->at_ns, SIM_EV_FAULT, i, 0, NULL);
        }
    }
}

static const char *name_of(const struct sim *sim, const char *node)
{
    return sim->nodes[strtoul(node + 1, NULL, 10) % SIM_NODES_MAX].name;
}

static bool is_among(const struct sim_question *question, size_t count, const char *node,
                     uint32_t slot)
{
    for (size_t i = 0; i < count; i++) {
        if (question->slots[i].slot == slot && strcmp(question->slots[i].node, node) == 0) {
            return true;
        }
    }
    return false;
}

// A place that is offered and that the answer does not have yet; false = there is none.
static bool find_place(const struct sim *sim, const struct dp_effect *effect,
                       const struct sim_question *question, size_t count, struct dp_slot *ret_slot)
{
    for (size_t n = 0; n < effect->nodes_count; n++) {
        const struct dp_free_slots *given = &effect->nodes[n];
        const char *name = name_of(sim, given->node->name);
        for (uint32_t s = 0; s < given->slots_free; s++) {
            if (strcmp(name, effect->adapt->away) != 0 &&
                !is_among(question, count, name, given->slots[s])) {
                *ret_slot = (struct dp_slot){name, given->slots[s]};
                return true;
            }
        }
    }
    return false;
}

// Everybody where he is. Returns how many that are.
static size_t stay(struct sim *sim, const struct dp_effect *effect, struct dp_slot *ret_slots)
{
    const struct dp_rank_record *ranks = NULL;
    size_t count = 0;
    dp_core_job(sim->controller.core, effect->job, &ranks, &count);
    for (size_t i = 0; i < count; i++) {
        ret_slots[i] = (struct dp_slot){name_of(sim, ranks[i].node), ranks[i].slot};
    }
    return count;
}

// Ranks that hold stay, others take the places of those that are lost.
static void recover_in_place(struct sim *sim, const struct dp_effect *effect,
                             struct sim_question *question)
{
    const struct dp_adapt_ask *ask = effect->adapt;
    struct sim_question tried = {0};
    size_t count = stay(sim, effect, tried.slots);
    for (size_t i = 0; i < ask->lost_count; i++) {
        tried.slots[ask->lost[i]].node = "";
    }
    for (size_t i = 0; i < count; i++) {
        bool moves = tried.slots[i].node[0] == '\0' || strcmp(tried.slots[i].node, ask->away) == 0;
        if (moves && !find_place(sim, effect, &tried, count, &tried.slots[i])) {
            return;
        }
    }
    memcpy(question->slots, tried.slots, sizeof(tried.slots));
    question->count = count;
    question->kind = "recover";
}

static void answer_straggler(struct sim *sim, const struct dp_effect *effect,
                             struct sim_question *question)
{
    static const char *const kinds[] = {
        "ignore",  "shift-microbatches", "move-layers", "order", "swap", "spare",
        "experts", "combined",           "restart"};
    size_t which = (size_t)sim_more_between(sim, 0, 8);
    struct dp_slot first;
    question->kind = kinds[which];
    if (sim_more_chance(sim, 300)) {
        question->again_steps = (uint64_t)sim_more_between(sim, 1, 8);
    }
    if (which == 0 || which == 6 || which == 8) {
        question->count = 0;
    } else if (which < 6) {
        question->count = stay(sim, effect, question->slots);
    }
    uint64_t draw = dp_rand_mix(sim->seed + 11, question->request);
    question->rebalances = which == 6 || (which == 7 && draw % 3 == 0);
    if (which == 8) {
        size_t count = stay(sim, effect, question->slots);
        question->without = count == 0 ? NULL : question->slots[draw % count].node;
    }
    if (which == 4 && question->count > 0) {
        first = question->slots[0];
        memmove(question->slots, question->slots + 1, (question->count - 1) * sizeof(first));
        question->slots[question->count - 1] = first;
    } else if (which == 5) {
        size_t rank = (size_t)sim_more_between(sim, 0, (int64_t)question->count - 1);
        if (find_place(sim, effect, question, question->count, &first)) {
            question->slots[rank] = first;
        }
    }
}

static void answer_nonsense(struct sim *sim, struct sim_question *question)
{
    struct dp_slot *some = &question->slots[0];
    question->wrong = true;
    question->count = question->count == 0 ? 1 : question->count;
    question->fails = false;
    switch (sim_more_between(sim, 0, 6)) {
    case 0:
        *some = (struct dp_slot){"nowhere", 0};
        break;
    case 1:
        *some = (struct dp_slot){sim->nodes[0].name, SIM_SLOTS_MAX + 3};
        break;
    case 2:
        question->count = 2;
        question->slots[0] = question->slots[1] = (struct dp_slot){sim->nodes[0].name, 0};
        break;
    case 3:
        for (size_t i = 0; i < question->count; i++) {
            uint32_t node = (uint32_t)sim_more_between(sim, 0, sim->nodes_count - 1);
            question->slots[i] = (struct dp_slot){
                sim->nodes[node].name, (uint32_t)sim_more_between(sim, 0, SIM_SLOTS_MAX - 1)};
        }
        break;
    case 4:
        question->request += 1000;
        break;
    case 5:
        question->job = (uint64_t)sim_more_between(sim, 1, (int64_t)sim->disk.highest);
        break;
    default:
        question->fails = true;
        break;
    }
    for (size_t i = 0; i < question->count; i++) {
        question->slots[i].node = question->slots[i].node == NULL ? "" : question->slots[i].node;
    }
}

void sim_more_answer(struct sim *sim, const struct dp_effect *effect, struct sim_question *question,
                     int64_t *delay_ns)
{
    const struct dp_adapt_ask *ask = effect->adapt;
    sim->tally->answers++;
    if (ask->recovers && !question->fails && (sim_more_chance(sim, 600) || sim->late.in_place) &&
        !sim->late.patient) {
        recover_in_place(sim, effect, question);
    } else if (!ask->recovers && !ask->grows &&
               sim_more_chance(sim, ask->away[0] == '\0' ? 900 : 100)) {
        question->fails = sim_more_chance(sim, 50);
        answer_straggler(sim, effect, question);
    }
    question->twice = sim_more_chance(sim, 50);
    bool late = sim_more_chance(sim, 40);
    if (late) {
        *delay_ns = sim_more_between(sim, SIM_MS(5000), SIM_MS(15000));
    }
    bool wrong = sim_more_chance(sim, sim->more.wrong_per_mille);
    if (wrong) {
        answer_nonsense(sim, question);
    }
    sim->tally->wrong += wrong;
    sim->tally->late += late;
    sim->jobs[effect->job].misled |= wrong || late;
}
