// What answers the core's questions for places: the planner, and whoever knows of better layouts.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "sim.h"

// The name as it stands in the world, which outlives the core.
static const char *name_of(struct sim *sim, const char *node)
{
    for (uint32_t n = 0; n < sim->nodes_count; n++) {
        if (strcmp(sim->nodes[n].name, node) == 0) {
            return sim->nodes[n].name;
        }
    }
    return NULL;
}

// Places for at most `wanted` ranks, node by node or spread over them.
static size_t place(struct sim *sim, const struct dp_effect *effect, const char *away,
                    size_t wanted, struct dp_slot *ret_slots)
{
    size_t count = 0;
    bool spread = sim_chance(sim, 400);
    for (uint32_t turn = 0; turn < SIM_SLOTS_MAX; turn++) {
        for (size_t n = 0; n < effect->nodes_count; n++) {
            const struct dp_free_slots *given = &effect->nodes[n];
            uint32_t end = spread ? turn + 1 : turn == 0 ? given->slots_free : 0;
            if (strcmp(given->node->name, away) == 0) {
                continue;
            }
            for (uint32_t s = turn; s < end && s < given->slots_free && count < wanted; s++) {
                ret_slots[count++] =
                    (struct dp_slot){name_of(sim, given->node->name), given->slots[s]};
            }
        }
    }
    return count;
}

void sim_planner_plan(struct sim *sim, const struct dp_effect *effect)
{
    struct sim_controller *controller = &sim->controller;
    const struct dp_job_record *job = dp_core_job(controller->core, effect->job, NULL, NULL);
    controller->plan_job = effect->job;
    for (size_t n = 0; n < effect->nodes_count; n++) {
        if (sim_is_avoided(job, effect->nodes[n].node->name)) {
            sim_fail(sim, "avoid", "%s is offered %s, which it stays off", job->id,
                     effect->nodes[n].node->name);
        }
    }
    controller->plan_count =
        place(sim, effect, "", (size_t)job->ranks_wanted, controller->plan_slots);
    int64_t slow_ms = sim_chance(sim, 50) ? 4000 : 200;
    sim_push(sim, sim->now_ns + sim_between(sim, SIM_MS(1), SIM_MS(slow_ms)), SIM_EV_PLANNED, 0,
             ++controller->plan_number, NULL);
}

void sim_planner_planned(struct sim *sim, uint64_t number)
{
    struct sim_controller *controller = &sim->controller;
    if (number != controller->plan_number || controller->plan_job == 0) {
        return;
    }
    struct dp_core_event event = {
        .kind = DP_EVENT_PLAN_DONE,
        .plan_done = {controller->plan_job, "", 0, controller->plan_slots, controller->plan_count}};
    const struct dp_job_record *job =
        dp_core_job(controller->core, controller->plan_job, NULL, NULL);
    bool few = job != NULL && controller->plan_count < (size_t)job->ranks_wanted;
    if (controller->plan_fails || few) {
        event = (struct dp_core_event){.kind = DP_EVENT_PLAN_FAILED,
                                       .plan_failed.job = controller->plan_job};
        (void)dp_fail(&event.plan_failed.error, DP_UNSCHEDULABLE, "nothing fits");
        controller->plan_fails = false;
    }
    controller->plan_job = 0;
    sim_controller_event(sim, &event);
}

bool sim_is_avoided(const struct dp_job_record *job, const char *node)
{
    char list[DP_AVOID_MAX + 2], name[DP_NAME_MAX + 2];
    snprintf(list, sizeof(list), ",%s,", job->avoid);
    snprintf(name, sizeof(name), ",%s,", node);
    return strstr(list, name) != NULL;
}

uint32_t sim_parts(size_t world)
{
    return (uint32_t)((world + 1) / 2);
}

static bool survives(size_t world, const uint32_t *lost, size_t lost_count)
{
    size_t parts = sim_parts(world);
    for (size_t part = 0; part < parts; part++) {
        bool found = false;
        for (size_t rank = part; rank < world; rank += parts) {
            bool is_lost = false;
            for (size_t i = 0; i < lost_count; i++) {
                is_lost = is_lost || lost[i] == rank;
            }
            found = found || !is_lost;
        }
        if (!found) {
            return false;
        }
    }
    return true;
}

void sim_planner_ask(struct sim *sim, const struct dp_effect *effect)
{
    const struct dp_adapt_ask *ask = effect->adapt;
    struct sim_question *question = dp_new(struct sim_question);
    const struct dp_rank_record *ranks = NULL;
    size_t world = 0;
    dp_core_job(sim->controller.core, effect->job, &ranks, &world);
    question->job = effect->job;
    question->request = ask->request;
    question->recovers = ask->recovers;
    const struct dp_job_record *job = dp_core_job(sim->controller.core, effect->job, NULL, NULL);
    size_t wanted = ask->grows && job->ranks_full < SIM_RANKS_MAX ? job->ranks_full : world;
    question->grows = ask->grows;
    question->count = place(sim, effect, ask->away, wanted, question->slots);
    if (ask->recovers) {
        // Fewer ranks are better than none.
        question->count -= question->count > 1 && sim_late_chance(sim, sim->late.patient ? 500 : 0);
        question->fails = question->count == 0 || !survives(world, ask->lost, ask->lost_count);
    } else {
        question->fails = sim_chance(sim, 50);
        bool stays = question->count == 0 || sim_chance(sim, 200);
        question->count = stays ? 0 : question->count;
    }
    int64_t slow_ms = sim_chance(sim, 50) ? 8000 : 300;
    int64_t delay_ns = sim_between(sim, SIM_MS(1), SIM_MS(slow_ms));
    question->kind = question->count == 0 ? "ignore" : ask->grows ? "grow" : "replace";
    sim_more_answer(sim, effect, question, &delay_ns);
    question->next = sim->controller.questions;
    sim->controller.questions = question;
    SIM_TRACE(sim, "job-%llu: another layout is asked for: %s", (unsigned long long)effect->job,
              ask->cause);
    sim_push(sim, sim->now_ns + delay_ns, SIM_EV_ADAPTED, 0, sim->controller.life, question);
}

void sim_planner_adapted(struct sim *sim, struct sim_question *question, uint64_t life)
{
    struct sim_controller *controller = &sim->controller;
    if (controller->core == NULL || controller->life != life) {
        return; // it went with its controller
    }
    struct sim_question **link = &controller->questions;
    while (*link != question) {
        link = &(*link)->next;
    }
    *link = question->next;
    struct dp_core_event event = {
        .kind = DP_EVENT_ADAPT_DONE,
        .adapt_done = {.job = question->job,
                       .request = question->request,
                       .kind = question->kind,
                       .again_steps = question->again_steps,
                       .action = question->count == 0 ? "nothing is changed" : "ranks move",
                       .document = "{}",
                       .document_length = 2,
                       .plan = question->count == 0 ? NULL : "p",
                       .plan_length = question->count == 0 ? 0 : 1,
                       .ranks = question->slots,
                       .ranks_count = question->count,
                       .without = question->without,
                       .rebalances = question->rebalances},
    };
    if (question->fails) {
        event = (struct dp_core_event){
            .kind = DP_EVENT_ADAPT_FAILED,
            .adapt_failed = {.job = question->job, .request = question->request}};
        (void)dp_fail(&event.adapt_failed.error, DP_UNSCHEDULABLE, "what is left is not enough");
    }
    if (question->fails || question->count == 0) {
        sim_choices_unchanged(sim, question);
    }
    sim->jobs[question->job].wanted = (uint32_t)question->count;
    sim->jobs[question->job].refused |= question->recovers && question->fails;
    sim->jobs[question->job].misled |= question->recovers && question->wrong;
    sim_controller_event(sim, &event);
    if (question->twice && controller->core != NULL) {
        sim_controller_event(sim, &event);
    }
    free(question);
}

void sim_planner_forget(struct sim *sim)
{
    while (sim->controller.questions != NULL) {
        struct sim_question *next = sim->controller.questions->next;
        free(sim->controller.questions);
        sim->controller.questions = next;
    }
}
