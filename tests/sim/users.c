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

dp_recovery_policy sim_request_recovery(const struct sim *sim, uint32_t request)
{
    uint64_t draw = dp_rand_mix(sim->seed + 2, request) % 4;
    return draw == 0   ? DP_JOB_RECOVERY_OFF
           : draw == 1 ? DP_JOB_RECOVERY_CHECKPOINT
                       : DP_JOB_RECOVERY_AUTO;
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

static const char *const users[SIM_USERS] = {"u0", "u1", "u2"};

static void choose(const struct sim *sim, uint32_t request, struct dp_submit *submit)
{
    uint64_t draw = dp_rand_mix(sim->seed + 1, request);
    submit->user = users[draw % SIM_USERS];
    submit->priority = draw / 4 % 4 == 0 ? (int32_t)(draw / 16 % 5) - 2 : 0;
    submit->preemptible = draw / 128 % 4 != 0;
    submit->retry_max = (uint32_t)(draw / 512 % 3);
    submit->retry_backoff_s = 1 + (uint32_t)(draw / 2048 % 3);
    submit->no_progress_max = (uint32_t)(draw / 8192 % 4);
    submit->recovery = sim_request_recovery(sim, request);
    sim_more_submit(sim, request, submit);
}

// With who asks, for the audit.
static void give(struct sim *sim, struct dp_core_event *event, uint64_t reply)
{
    struct dp_audit_record audit = {.user = "u0", .verb = "Ask", .door = "grpc"};
    if (sim->streams >= 2) {
        snprintf(audit.request_id, sizeof(audit.request_id), "%llu", (unsigned long long)reply);
        event->audit = &audit;
        event->audit_reply = reply;
    }
    sim_controller_event(sim, event);
}

// Of a job that the core has let go of the database says it. Whether it did.
static bool answered_by_disk(struct sim *sim, struct sim_call *call, const char *request_id)
{
    for (uint64_t number = 1; number <= sim->disk.highest && sim->streams >= 2; number++) {
        const struct sim_row *row = &sim->disk.rows[number];
        const struct dp_job_record *job = dp_core_job(sim->controller.core, number, NULL, NULL);
        if (row->used && strcmp(row->job.request_id, request_id) == 0 &&
            (job == NULL || dp_job_state_ended(job->state))) {
            sim->accepted[call->request] = number;
            call->open = false;
            call->done = true;
            return true;
        }
    }
    return false;
}

static void give_submit(struct sim *sim, struct sim_call *call, uint64_t reply)
{
    char request_id[32], text[16];
    snprintf(request_id, sizeof(request_id), "r-%u", call->request);
    if (answered_by_disk(sim, call, request_id)) {
        return;
    }
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
    choose(sim, call->request, &event.submit);
    give(sim, &event, reply);
}

static void give_node(struct sim *sim, const struct sim_call *call, uint64_t reply)
{
    struct dp_core_event event = {
        .kind = DP_EVENT_NODE_ASK,
        .node_ask = {.reply = reply,
                     .node = sim->nodes[call->node].name,
                     .reason = "fan",
                     .by = "u0",
                     .word = "changed",
                     .action = call->action,
                     .deadline_ms = call->detail % 3 == 0 ? 5000 : 0,
                     .force = call->detail % 5 == 0},
    };
    sim->nodes[call->node].leave_ns = 0; // until it is answered
    sim->nodes[call->node].kept_from = false;
    sim->nodes[call->node].asked = (uint32_t)reply;
    SIM_TRACE(sim, "a user asks action %d of %s", (int)call->action, event.node_ask.node);
    give(sim, &event, reply);
}

static void give_quota(struct sim *sim, const struct sim_call *call, uint64_t reply)
{
    struct dp_core_event event = {
        .kind = DP_EVENT_QUOTA_ASK,
        .quota_ask = {.reply = reply,
                      .user = users[call->node % SIM_USERS],
                      .by = "root",
                      .ranks = call->detail,
                      .none = call->detail == 0},
    };
    SIM_TRACE(sim, "%s may use %u ranks", event.quota_ask.user, call->detail);
    give(sim, &event, reply);
}

static void give_update(struct sim *sim, const struct sim_call *call, uint64_t reply)
{
    struct sim_job *truth = &sim->jobs[call->job % (SIM_JOBS_MAX + 1)];
    struct dp_core_event event = {
        .kind = DP_EVENT_UPDATE,
        .update = {.reply = reply,
                   .request_id = "",
                   .by = "u0",
                   .reason = "later",
                   .holds = call->update == SIM_UPDATE_HOLD,
                   .releases = call->update == SIM_UPDATE_RELEASE,
                   .sets_priority = call->update == SIM_UPDATE_PRIORITY,
                   .priority = (int32_t)call->detail - 1},
    };
    snprintf(event.update.job, DP_ID_MAX, "job-%llu", (unsigned long long)call->job);
    static const char *const wishes[] = {"holds", "releases", "reorders"};
    SIM_TRACE(sim, "a user %s %s", wishes[call->update], event.update.job);
    truth->updated = (uint32_t)reply;
    truth->held = false; // until it is answered
    sim->late.reordered |= event.update.sets_priority;
    for (uint64_t number = 1; number <= sim->disk.highest; number++) {
        sim->jobs[number].passed_ns = 0; // another one may be the first
    }
    give(sim, &event, reply);
}

static void give_job(struct sim *sim, const struct sim_call *call, uint64_t reply)
{
    struct dp_core_event event = {.kind = DP_EVENT_REASSIGN};
    struct dp_ask *ask = &event.ask;
    char *id = event.reassign.job;
    if (call->kind == SIM_CALL_REASSIGN) {
        event.reassign.reply = reply;
        event.reassign.away = call->detail % 2 == 0 ? "" : sim->nodes[call->node].name;
        event.reassign.advise = call->detail % 8 == 0;
    } else {
        event.kind = call->kind == SIM_CALL_CANCEL ? DP_EVENT_CANCEL : DP_EVENT_CHECKPOINT;
        ask->reply = reply;
        ask->reason = "";
        id = ask->job;
    }
    snprintf(id, DP_ID_MAX, "job-%llu", (unsigned long long)call->job);
    static const char *const wishes[] = {[SIM_CALL_CANCEL] = "to cancel",
                                         [SIM_CALL_CHECKPOINT] = "a checkpoint of",
                                         [SIM_CALL_REASSIGN] = "another layout for"};
    SIM_TRACE(sim, "a user wants %s %s", wishes[call->kind], id);
    give(sim, &event, reply);
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
    } else if (call->kind == SIM_CALL_NODE) {
        give_node(sim, call, reply);
    } else if (call->kind == SIM_CALL_QUOTA) {
        give_quota(sim, call, reply);
    } else if (call->kind == SIM_CALL_UPDATE) {
        give_update(sim, call, reply);
    } else {
        give_job(sim, call, reply);
    }
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

void sim_users_reassign(struct sim *sim, uint64_t job, uint32_t detail)
{
    struct sim_call *call = new_call(sim, SIM_CALL_REASSIGN);
    if (call != NULL) {
        call->job = job;
        call->node = detail % sim->nodes_count;
        call->detail = detail / SIM_NODES_MAX;
        ask(sim, call);
    }
}

static void act_on_node(struct sim *sim, uint32_t node, dp_node_action action, uint32_t detail)
{
    struct sim_call *call = new_call(sim, SIM_CALL_NODE);
    if (call != NULL) {
        call->node = node;
        call->action = action;
        call->detail = detail;
        ask(sim, call);
    }
}

void sim_users_node(struct sim *sim, uint32_t node, uint32_t detail)
{
    static const dp_node_action actions[] = {DP_NODE_DRAIN, DP_NODE_DRAIN, DP_NODE_SET_DOWN,
                                             DP_NODE_QUARANTINE, DP_NODE_UNDRAIN};
    act_on_node(sim, node, actions[detail % 5], detail / 5);
}

void sim_users_forget(struct sim *sim, uint32_t node, int64_t until_ns)
{
    struct sim_call *call = new_call(sim, SIM_CALL_NODE);
    if (call != NULL) {
        call->node = node;
        call->action = DP_NODE_FORGET;
        call->until_ns = until_ns;
        ask(sim, call);
    }
}

void sim_users_quota(struct sim *sim, uint32_t detail)
{
    struct sim_call *call = new_call(sim, SIM_CALL_QUOTA);
    if (call != NULL) {
        call->node = detail % SIM_USERS;
        call->detail = detail / SIM_USERS % 8;
        ask(sim, call);
    }
}

void sim_users_update(struct sim *sim, uint64_t job, sim_update update, uint32_t detail)
{
    struct sim_call *call = new_call(sim, SIM_CALL_UPDATE);
    if (call != NULL) {
        call->job = job;
        call->update = update;
        call->detail = detail;
        ask(sim, call);
    }
}

// Some job stays off the node.
static bool is_left_out(const struct sim *sim, const char *node)
{
    const struct dp_job_record *rows[SIM_JOBS_MAX];
    size_t count = dp_core_jobs_count(sim->controller.core);
    dp_core_job_rows(sim->controller.core, rows);
    for (size_t i = 0; i < count; i++) {
        if (sim_is_avoided(rows[i], node)) {
            return true;
        }
    }
    return false;
}

// At the end of all troubles what was decided about nodes and users is taken back.
static void make_peace(struct sim *sim)
{
    if (sim->controller.core == NULL || sim->now_ns < sim->controller.stall_ns ||
        sim->now_ns < sim->more.peace_ns) {
        return;
    }
    for (uint32_t n = 0; n < sim->nodes_count; n++) {
        dp_node_state state = dp_core_node_state_of(sim->controller.core, sim->nodes[n].name);
        bool out = state >= DP_NODE_DRAINING || is_left_out(sim, sim->nodes[n].name);
        if (out && sim->calls_count < SIM_CALLS_MAX / 2) {
            act_on_node(sim, n, DP_NODE_UNDRAIN, 1);
        }
    }
    for (uint64_t number = 1; number <= sim->disk.highest; number++) {
        const struct dp_job_record *job = dp_core_job(sim->controller.core, number, NULL, NULL);
        if (job != NULL && job->held_ns != 0 && sim->calls_count < SIM_CALLS_MAX / 2) {
            sim_users_update(sim, number, SIM_UPDATE_RELEASE, 0);
        }
    }
    for (uint32_t user = 0; user < SIM_USERS; user++) {
        const struct dp_quota_record *quota = &sim->disk.quotas[user];
        if (quota->user[0] != '\0' && !quota->deleted) {
            sim_users_quota(sim, user);
        }
    }
}

void sim_users_burst(struct sim *sim, uint32_t count)
{
    for (uint32_t i = 0; i < count && sim->requests < SIM_REQUESTS_MAX; i++) {
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
    if (sim_is_calm(sim)) {
        make_peace(sim);
    }
    sim_late_act(sim);
    bool more = sim->requests < sim->requests_wanted;
    // A quiet world goes on until it is worth something.
    bool filler = !more && sim_is_calm(sim) && sim->events < SIM_EVENTS_MIN && sim_is_over(sim) &&
                  sim->requests < SIM_REQUESTS_MAX;
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
    bool stays = effect->status == DP_CONFLICT && sim->now_ns < call->until_ns;
    bool again = effect->status == DP_IO || effect->status == DP_UNAVAILABLE || stays;
    call->done = !again;
    call->retry_ns = sim->now_ns + SIM_MS(3000);
    if (!again) {
        sim_check_reply(sim, effect, call);
    }
    if (effect->status == DP_OK) {
        sim_rules_replied(sim, call);
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
