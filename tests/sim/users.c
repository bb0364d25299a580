// People and their scripts: submissions with request ids, cancellations, checkpoints. Who gets no
// answer because the controller went away asks again.
#include <stdlib.h>
#include <string.h>

#include "dp/rand.h"
#include "sim.h"

#define ACT_MIN_MS 100
#define ACT_MAX_MS 4000

uint32_t sim_request_ranks(const struct sim *sim, uint32_t request)
{
    uint32_t most = 0;
    for (uint32_t n = 0; n < sim->nodes_count; n++) {
        most += sim->nodes[n].slots;
    }
    most = most < SIM_RANKS_MAX ? most : SIM_RANKS_MAX;
    uint64_t draw = dp_rand_mix(sim->seed, request);
    // Most are small, some need the whole cluster.
    return draw % 8 == 0 ? most : 1 + (uint32_t)(draw / 8 % ((most + 1) / 2));
}

void sim_users_init(struct sim *sim)
{
    sim->requests_wanted = (uint32_t)sim_between(sim, 3, 14);
    sim_push(sim, sim_between(sim, 0, SIM_MS(5000)), SIM_EV_USER, 0, 0, NULL);
}

static struct sim_call *new_call(struct sim *sim, sim_call_kind kind)
{
    if (sim->calls_count == SIM_CALLS_MAX) {
        return NULL;
    }
    struct sim_call *call = &sim->calls[sim->calls_count++];
    *call = (struct sim_call){.kind = kind};
    return call;
}

static void give_submit(struct sim *sim, const struct sim_call *call, uint64_t reply)
{
    char request_id[32], text[16];
    snprintf(request_id, sizeof(request_id), "r-%u", call->request);
    int length = snprintf(text, sizeof(text), "job %u", call->request);
    struct dp_core_event event = {
        .kind = DP_EVENT_SUBMIT,
        .submit = {.reply = reply,
                   .request_id = request_id,
                   .name = "x",
                   .device = "cpu",
                   .job_toml = text,
                   .job_toml_length = (size_t)length,
                   .ranks_wanted = (int32_t)sim_request_ranks(sim, call->request),
                   .ranks_fixed = true,
                   .needs_profile = true,
                   .steps_total = 1},
    };
    sim_controller_event(sim, &event);
}

// Asks, or asks again.
static void ask(struct sim *sim, struct sim_call *call)
{
    struct sim_controller *controller = &sim->controller;
    if (controller->core == NULL || sim->now_ns < controller->stall_ns) {
        call->retry_ns = sim->now_ns + SIM_MS(500);
        return;
    }
    call->open = true;
    call->controller_life = controller->life;
    uint64_t reply = (uint64_t)(call - sim->calls) + 1;
    if (call->kind == SIM_CALL_SUBMIT) {
        SIM_TRACE(sim, "a user submits r-%u", call->request);
        give_submit(sim, call, reply);
        return;
    }
    struct dp_core_event event = {.kind = call->kind == SIM_CALL_CANCEL ? DP_EVENT_CANCEL
                                                                        : DP_EVENT_CHECKPOINT,
                                  .ask = {.reply = reply, .reason = ""}};
    snprintf(event.ask.job, sizeof(event.ask.job), "job-%llu", (unsigned long long)call->job);
    SIM_TRACE(sim, "a user wants %s %s",
              call->kind == SIM_CALL_CANCEL ? "to cancel" : "a checkpoint of", event.ask.job);
    sim_controller_event(sim, &event);
}

void sim_users_submit(struct sim *sim, uint32_t request)
{
    struct sim_call *call = request <= SIM_JOBS_MAX ? new_call(sim, SIM_CALL_SUBMIT) : NULL;
    if (call != NULL) {
        call->request = request;
        ask(sim, call);
    }
}

void sim_users_cancel(struct sim *sim, uint64_t job)
{
    struct sim_call *call = new_call(sim, SIM_CALL_CANCEL);
    if (call != NULL) {
        call->job = job;
        ask(sim, call);
    }
}

void sim_users_burst(struct sim *sim, uint32_t count)
{
    for (uint32_t i = 0; i < count && sim->requests < SIM_JOBS_MAX / 2; i++) {
        sim_users_submit(sim, ++sim->requests);
        if (sim_chance(sim, 200)) {
            sim_users_submit(sim, sim->requests); // sent twice
        }
    }
}

static void ask_again(struct sim *sim)
{
    for (uint32_t i = 0; i < sim->calls_count; i++) {
        struct sim_call *call = &sim->calls[i];
        if (call->open && call->controller_life != sim->controller.life) {
            call->open = false; // nobody will answer
            call->retry_ns = sim->now_ns;
        }
        if (!call->done && !call->open && sim->now_ns >= call->retry_ns) {
            ask(sim, call);
        }
    }
}

static void act_on_some_job(struct sim *sim)
{
    uint64_t job = (uint64_t)sim_between(sim, 1, (int64_t)sim->disk.highest + 1);
    if (sim_chance(sim, 400)) {
        sim_users_cancel(sim, job);
        return;
    }
    struct sim_call *call = new_call(sim, SIM_CALL_CHECKPOINT);
    if (call != NULL) {
        call->job = job;
        ask(sim, call);
    }
}

void sim_users_act(struct sim *sim)
{
    ask_again(sim);
    bool more = sim->requests < sim->requests_wanted;
    // A quiet world goes on until it is worth something.
    bool filler = !more && sim_is_calm(sim) && sim->events < SIM_EVENTS_MIN && sim_is_over(sim) &&
                  sim->requests < SIM_JOBS_MAX / 2;
    if ((more && sim_chance(sim, 600)) || filler) {
        sim_users_burst(sim, 1);
    } else if (!sim_is_calm(sim) && sim->disk.highest > 0 && sim_chance(sim, 150)) {
        act_on_some_job(sim);
    }
    sim_push(sim, sim->now_ns + sim_between(sim, SIM_MS(ACT_MIN_MS), SIM_MS(ACT_MAX_MS)),
             SIM_EV_USER, 0, 0, NULL);
}

void sim_users_replied(struct sim *sim, const struct dp_effect *effect)
{
    if (effect->reply == 0 || effect->reply > sim->calls_count) {
        sim_fail(sim, "answers", "an answer to nobody: %llu", (unsigned long long)effect->reply);
    }
    struct sim_call *call = &sim->calls[effect->reply - 1];
    if (!call->open) {
        sim_fail(sim, "answers", "call %llu is answered twice", (unsigned long long)effect->reply);
    }
    SIM_TRACE(sim, "call %llu is answered: %s %s", (unsigned long long)effect->reply,
              dp_status_name(effect->status), effect->text);
    call->open = false;
    bool again = effect->status == DP_IO || effect->status == DP_UNAVAILABLE;
    call->done = !again;
    call->retry_ns = sim->now_ns + SIM_MS(3000);
    if (!again) {
        sim_check_reply(sim, effect, call);
    }
}

bool sim_users_done(const struct sim *sim)
{
    for (uint32_t i = 0; i < sim->calls_count; i++) {
        if (!sim->calls[i].done) {
            return false;
        }
    }
    return sim->requests >= sim->requests_wanted;
}
