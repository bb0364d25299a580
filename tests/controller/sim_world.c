#include "sim_world.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"

void sim_fail(const struct sim *sim, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "seed %llu, at %.2f s: ", (unsigned long long)sim->seed,
            (double)sim->now_ns / 1e9);
    vfprintf(stderr, format, args);
    fprintf(stderr, "\nRepeat it with DP_SIM_SEED=%llu DP_SIM_RUNS=1\n",
            (unsigned long long)sim->seed);
    va_end(args);
    abort();
}

int64_t sim_between(struct sim *sim, int64_t low, int64_t high)
{
    return low + (int64_t)dp_rand_below(&sim->rand, (uint64_t)(high - low + 1));
}

bool sim_chance(struct sim *sim, double probability)
{
    return dp_rand_double(&sim->rand) < probability;
}

void sim_send(struct sim *sim, const struct sim_message *message)
{
    DP_CHECK(sim->messages_count < SIM_MESSAGES_MAX);
    struct sim_message *sent = &sim->messages[sim->messages_count];
    *sent = *message;
    sent->due_ns =
        sim->now_ns + sim_between(sim, SIM_MS(1), sim_chance(sim, 0.02) ? SIM_MS(500) : SIM_MS(20));
    // One direction of one session keeps its order.
    bool order = message->kind == SIM_ORDER;
    for (size_t i = 0; i < sim->messages_count; i++) {
        const struct sim_message *before = &sim->messages[i];
        if (before->session == sent->session && (before->kind == SIM_ORDER) == order &&
            before->due_ns > sent->due_ns) {
            sent->due_ns = before->due_ns;
        }
    }
    sim->messages_count++;
}

// What still runs of a job that ends is where nobody can be asked.
static void check_end_of_job(const struct sim *sim, const char *id)
{
    for (int n = 0; n < sim->agents_count; n++) {
        const struct sim_agent *agent = &sim->agents[n];
        bool silent = sim->now_ns - agent->taken_ns > SIM_MS(SIM_LEASE_MS) ||
                      sim->now_ns - agent->returned_ns < SIM_MS(SIM_LEASE_MS);
        for (size_t i = 0; i < SIM_JOBS_MAX && !silent; i++) {
            const struct sim_assignment *a = &agent->assignments[i];
            for (uint32_t k = 0; a->used && strcmp(a->fence.job, id) == 0 && k < a->ranks_count;
                 k++) {
                if (sim_rank_alive(&a->ranks[k])) {
                    sim_fail(sim, "%s has ended, and rank %u runs on %s, which can be reached", id,
                             a->ranks[k].rank, agent->name);
                }
            }
        }
    }
}

static void commit_record(struct sim *sim, const struct dp_record *record)
{
    const struct dp_job_record *job = record->row;
    const struct dp_rank_record *rank = record->row;
    if (record->kind == DP_RECORD_JOB) {
        struct sim_row *row = &sim->rows[job->number];
        if (row->used && !dp_job_state_reaches(row->job.state, job->state)) {
            sim_fail(sim, "%s went from %s to %s on disk", job->id,
                     dp_job_state_text(row->job.state), dp_job_state_text(job->state));
        }
        bool ends =
            dp_job_state_ended(job->state) && !(row->used && dp_job_state_ended(row->job.state));
        sim->returns += row->used && row->job.state == DP_STATE_LOST &&
                        (job->state == DP_STATE_RUNNING || job->state == DP_STATE_COMPLETED);
        row->used = true;
        row->job = *job;
        if (ends) {
            check_end_of_job(sim, job->id);
        }
    } else if (record->kind == DP_RECORD_RANK) {
        struct sim_row *row = &sim->rows[rank->job];
        row->ranks[rank->rank] = *rank;
        row->ranks_count = rank->rank >= row->ranks_count ? rank->rank + 1 : row->ranks_count;
    } else if (record->kind == DP_RECORD_NODE) {
        const struct dp_node_record *node = record->row;
        for (int n = 0; n < sim->agents_count; n++) {
            if (strcmp(sim->agents[n].name, node->name) == 0) {
                sim->nodes[n] = *node;
            }
        }
    }
}

static void commit(struct sim *sim, const struct sim_transaction *transaction)
{
    for (size_t i = 0; i < transaction->count && !transaction->fails; i++) {
        commit_record(sim, &transaction->records[i]);
    }
}

static void free_transaction(struct sim_transaction *transaction)
{
    for (size_t i = 0; i < transaction->count; i++) {
        free((void *)transaction->records[i].row);
    }
}

static struct sim_transaction *first_transaction(struct sim *sim)
{
    return &sim->transactions[sim->transactions_first];
}

static void drop_transaction(struct sim *sim)
{
    free_transaction(first_transaction(sim));
    sim->transactions_first = (sim->transactions_first + 1) % SIM_TRANSACTIONS_MAX;
    sim->transactions_count--;
}

// Jobs and ranks are what a controller needs to go on; blobs stay empty in this world.
static void queue_transaction(struct sim *sim)
{
    const struct dp_effects *effects = &sim->effects;
    DP_CHECK(sim->transactions_count < SIM_TRANSACTIONS_MAX);
    size_t at = (sim->transactions_first + sim->transactions_count++) % SIM_TRANSACTIONS_MAX;
    struct sim_transaction *transaction = &sim->transactions[at];
    *transaction = (struct sim_transaction){.token = effects->store_token};
    static const size_t sizes[DP_RECORD_KIND_COUNT] = {
        [DP_RECORD_JOB] = sizeof(struct dp_job_record),
        [DP_RECORD_RANK] = sizeof(struct dp_rank_record),
        [DP_RECORD_NODE] = sizeof(struct dp_node_record),
    };
    for (size_t i = 0; i < effects->records_count; i++) {
        const struct dp_record *record = &effects->records[i];
        if (sizes[record->kind] == 0) {
            continue;
        }
        DP_CHECK(transaction->count < SIM_RECORDS_MAX);
        void *copy = dp_memdup(record->row, sizes[record->kind]);
        if (record->kind == DP_RECORD_JOB) {
            struct dp_job_record *job = copy;
            job->job_toml = job->plan = job->sources = (struct dp_buf){0};
        } else if (record->kind == DP_RECORD_NODE) {
            ((struct dp_node_record *)copy)->profile = (struct dp_buf){(char *)"{}", 2, 0};
            ((struct dp_node_record *)copy)->hardware = (struct dp_buf){0};
        }
        transaction->records[transaction->count++] = (struct dp_record){record->kind, copy};
    }
    bool calm = sim->now_ns >= sim->calm_ns;
    int64_t slow = !calm && sim_chance(sim, 0.01) ? SIM_MS(3000) : SIM_MS(15);
    int64_t begin = sim->store_free_ns > sim->now_ns ? sim->store_free_ns : sim->now_ns;
    transaction->due_ns = sim->store_free_ns = begin + sim_between(sim, SIM_MS(1), slow);
    transaction->fails = !calm && sim_chance(sim, 0.01);
}

static void send_order(struct sim *sim, const struct dp_effect *effect)
{
    struct sim_message message = {.kind = SIM_ORDER,
                                  .session = effect->session,
                                  .agent = -1,
                                  .order = effect->order,
                                  .fence = effect->fence,
                                  .sequence = effect->request};
    for (int n = 0; n < sim->agents_count; n++) {
        if (sim->agents[n].session == effect->session) {
            message.agent = n;
        }
    }
    if (message.agent < 0) {
        return; // the session is gone
    }
    const struct dp_rank_record *ranks = NULL;
    size_t count = 0;
    if (effect->order == DP_ORDER_PREPARE) {
        dp_core_job(sim->core, effect->job, &ranks, &count);
    }
    for (size_t i = 0; i < count; i++) {
        if (strcmp(ranks[i].node, effect->node) == 0) {
            message.ranks[message.ranks_count++] = ranks[i].rank;
        }
    }
    sim_send(sim, &message);
}

// DP_SIM_LOG=1 shows what the controller does, which is how a seed is looked into.
static void print_effect(const struct sim *sim, const struct dp_effect *effect)
{
    bool told = effect->kind == DP_EFFECT_SEND && effect->order != DP_ORDER_ACK;
    if (told || effect->kind == DP_EFFECT_LOG) {
        fprintf(stderr, "%8.2f job-%llu %s %s %s\n", (double)sim->now_ns / 1e9,
                (unsigned long long)effect->job, effect->node,
                told ? dp_order_kind_text(effect->order) : effect->event, effect->text);
    }
}

static void perform(struct sim *sim)
{
    if (sim->effects.store_token != 0) {
        queue_transaction(sim);
    }
    for (size_t i = 0; i < sim->effects.count; i++) {
        const struct dp_effect *effect = &sim->effects.items[i];
        if (sim->log) {
            print_effect(sim, effect);
        }
        if (effect->kind == DP_EFFECT_SEND) {
            send_order(sim, effect);
        } else if (effect->kind == DP_EFFECT_PLAN) {
            // A search that still runs is for a job that was cancelled: nobody waits for it.
            sim->plan_job = effect->job;
            sim->plan_ns = sim->now_ns + sim_between(sim, SIM_MS(1), SIM_MS(300));
        } else if (effect->kind == DP_EFFECT_REPLY && effect->status == DP_OK) {
            if (!sim->rows[effect->job].used) {
                sim_fail(sim, "a reply about job-%llu before it was stored",
                         (unsigned long long)effect->job);
            }
            sim->accepted[effect->reply % 64] = true;
        }
    }
    sim->timer_ns = sim->effects.timer_ns;
}

void sim_event(struct sim *sim, struct dp_core_event *event)
{
    event->now_ns = sim->now_ns;
    event->wall_ns = sim->now_ns;
    if (sim->stall_from_ns != 0) {
        event->stalled_ns = sim->now_ns - sim->stall_from_ns;
        sim->stall_from_ns = 0;
    }
    dp_core_step(sim->core, event, &sim->effects);
    perform(sim);
}

// As SIGSTOP does it: nothing is read or written, and time goes on.
void sim_stall_controller(struct sim *sim)
{
    if (sim->core != NULL && sim->now_ns >= sim->stall_ns) {
        sim->stall_from_ns = sim->now_ns;
        sim->stall_ns = sim->now_ns + sim_between(sim, SIM_MS(1500), SIM_MS(25000));
        sim->stalls++;
    }
}

// What was on its way to the disk is there up to some point, and nothing after it.
void sim_crash_controller(struct sim *sim)
{
    int64_t written = sim_between(sim, 0, (int64_t)sim->transactions_count);
    while (sim->transactions_count > 0) {
        if (written-- > 0) {
            commit(sim, first_transaction(sim));
        }
        drop_transaction(sim);
    }
    dp_core_free(sim->core);
    sim->core = NULL;
    sim->plan_job = 0;
    sim->stall_ns = sim->stall_from_ns = 0;
    sim->restarts++;
    sim->up_ns = sim->now_ns + sim_between(sim, SIM_MS(100), SIM_MS(15000));
    for (int n = 0; n < sim->agents_count; n++) {
        sim->agents[n].session = 0;
        sim->agents[n].welcomed = false;
        sim->agents[n].connect_ns = sim->now_ns + sim_between(sim, SIM_MS(100), SIM_MS(3000));
    }
    sim->messages_count = 0;
}

static void start_controller(struct sim *sim)
{
    sim->core = dp_core_new(&sim->config);
    uint64_t ended[SIM_JOBS_MAX], highest = 0;
    size_t count = 0;
    for (uint64_t number = 1; number <= SIM_JOBS_MAX; number++) {
        const struct sim_row *row = &sim->rows[number];
        highest = row->used ? number : highest;
        if (row->used && dp_job_state_ended(row->job.state)) {
            ended[count++] = number;
        }
    }
    struct dp_core_event event = {.kind = DP_EVENT_LOAD_ENDED, .ended = {ended, count, highest}};
    sim_event(sim, &event);
    for (int n = 0; n < sim->agents_count; n++) {
        if (sim->nodes[n].name[0] != '\0') {
            struct dp_core_event node = {.kind = DP_EVENT_LOAD_NODE, .load_node = &sim->nodes[n]};
            sim_event(sim, &node);
        }
    }
    for (uint64_t number = 1; number <= highest; number++) {
        struct sim_row row = sim->rows[number];
        if (row.used && !dp_job_state_ended(row.job.state)) {
            struct dp_core_event job = {.kind = DP_EVENT_LOAD_JOB,
                                        .load_job = {&row.job, row.ranks, row.ranks_count}};
            sim_event(sim, &job);
        }
    }
}

static void answer_plan(struct sim *sim)
{
    struct dp_slot slots[SIM_RANKS_MAX];
    size_t count = 0;
    const struct dp_job_record *job = dp_core_job(sim->core, sim->plan_job, NULL, NULL);
    for (size_t i = 0; job != NULL && i < dp_core_nodes_count(sim->core); i++) {
        struct dp_node_view view;
        dp_core_node_at(sim->core, i, &view);
        for (uint32_t s = view.slots_used; view.state == DP_NODE_READY && s < view.node->slots &&
                                           count < (size_t)job->ranks_wanted;
             s++) {
            slots[count++] = (struct dp_slot){view.node->name, s};
        }
    }
    struct dp_core_event event = {.kind = DP_EVENT_PLAN_DONE,
                                  .plan_done = {sim->plan_job, "", 0, slots, count}};
    if (job != NULL && count < (size_t)job->ranks_wanted) {
        event.plan_done.ranks_count = 0; // the nodes went away meanwhile
    }
    sim->plan_job = 0;
    sim_event(sim, &event);
}

static struct dp_levels take_levels(const struct sim_message *message,
                                    struct dp_assignment_level *levels,
                                    struct dp_rank_level (*ranks)[SIM_RANKS_MAX])
{
    size_t count = 0;
    for (size_t i = 0; i < SIM_JOBS_MAX; i++) {
        const struct sim_assignment *a = &message->levels[i];
        if (!a->used) {
            continue;
        }
        for (uint32_t k = 0; k < a->ranks_count; k++) {
            const struct sim_rank *rank = &a->ranks[k];
            ranks[count][k] = (struct dp_rank_level){
                .rank = rank->rank, .phase = rank->phase, .signal = rank->signal, .pid = 1};
            ranks[count][k].ready_known = rank->phase >= DP_RANK_READY;
            DP_COPY_TEXT(ranks[count][k].ready.address, "x:1");
            ranks[count][k].finished_known = rank->phase == DP_RANK_FINISHED;
            ranks[count][k].finished.ok = rank->ok;
            ranks[count][k].stopped = rank->stopped;
            ranks[count][k].finished.peer_lost = rank->peer_lost;
        }
        levels[count] = (struct dp_assignment_level){.fence = a->fence,
                                                     .ranks = ranks[count],
                                                     .ranks_count = a->ranks_count,
                                                     .stopping = a->stop_ns != 0,
                                                     .error = a->error};
        count++;
    }
    return (struct dp_levels){message->session, levels, count, message->sequence};
}

static void give_to_core(struct sim *sim, const struct sim_message *message)
{
    struct dp_assignment_level levels[SIM_JOBS_MAX];
    struct dp_rank_level ranks[SIM_JOBS_MAX][SIM_RANKS_MAX];
    memset(ranks, 0, sizeof(ranks));
    struct dp_levels taken = take_levels(message, levels, ranks);
    struct dp_core_event event = {.kind = DP_EVENT_HEARTBEAT, .levels = taken};
    struct dp_node_record node = {.slots = SIM_SLOTS,
                                  .lease_ms = SIM_LEASE_MS,
                                  .fence_ms = SIM_FENCE_MS,
                                  .profile = {(char *)"{}", 2, 0}};
    if (message->kind == SIM_HELLO) {
        DP_COPY_TEXT(node.name, sim->agents[message->agent].name);
        snprintf(node.instance, sizeof(node.instance), "%llu",
                 (unsigned long long)message->instance);
        event.kind = DP_EVENT_HELLO;
        event.hello = (struct dp_hello){.levels = taken, .node = &node};
    } else if (message->kind == SIM_CLOSED) {
        event.kind = DP_EVENT_SESSION_CLOSED;
        event.session = message->session;
    } else if (message->kind == SIM_LEVEL) {
        event.kind = DP_EVENT_LEVEL;
    }
    sim_event(sim, &event);
}

static void note_taken(struct sim *sim, const struct sim_message *message)
{
    struct sim_agent *agent = &sim->agents[message->agent];
    if (message->kind == SIM_CLOSED) {
        return;
    }
    if (sim->now_ns - agent->taken_ns > SIM_MS(SIM_LEASE_MS)) {
        agent->returned_ns = sim->now_ns;
    }
    agent->taken_ns = sim->now_ns;
}

static void deliver(struct sim *sim)
{
    for (size_t i = 0; i < sim->messages_count;) {
        if (sim->messages[i].due_ns > sim->now_ns) {
            i++;
            continue;
        }
        struct sim_message message = sim->messages[i];
        sim->messages_count--;
        memmove(&sim->messages[i], &sim->messages[i + 1],
                (sim->messages_count - i) * sizeof(*sim->messages));
        struct sim_agent *agent = message.agent < 0 ? NULL : &sim->agents[message.agent];
        if (message.kind != SIM_ORDER) {
            note_taken(sim, &message);
            give_to_core(sim, &message);
        } else if (agent->session == message.session && agent->up) {
            sim_agent_take(sim, agent, &message);
        }
        i = 0; // what was delivered may have changed the list
    }
}

void sim_step_controller(struct sim *sim)
{
    if (sim->core == NULL) {
        if (sim->now_ns < sim->up_ns) {
            return;
        }
        start_controller(sim);
    }
    if (sim->now_ns < sim->stall_ns) {
        return;
    }
    deliver(sim);
    while (sim->transactions_count > 0 && first_transaction(sim)->due_ns <= sim->now_ns) {
        struct sim_transaction *transaction = first_transaction(sim);
        commit(sim, transaction);
        struct dp_core_event event = {.kind = DP_EVENT_STORED, .stored.token = transaction->token};
        event.stored.error.status = transaction->fails ? DP_IO : DP_OK;
        drop_transaction(sim);
        sim_event(sim, &event);
    }
    if (sim->plan_job != 0 && sim->now_ns >= sim->plan_ns) {
        answer_plan(sim);
    }
    if (sim->timer_ns != 0 && sim->now_ns >= sim->timer_ns) {
        struct dp_core_event event = {.kind = DP_EVENT_TICK};
        sim_event(sim, &event);
    }
}

void sim_init(struct sim *sim, uint64_t seed)
{
    *sim = (struct sim){.seed = seed, .now_ns = SIM_MS(1000)};
    sim->log = getenv("DP_SIM_LOG") != NULL;
    dp_rand_init(&sim->rand, seed);
    dp_core_config_init(&sim->config);
    sim->config.prepare_timeout_ms = 30000;
    sim->messages = dp_new_array(struct sim_message, SIM_MESSAGES_MAX);
    sim->agents_count = (int)sim_between(sim, 1, SIM_AGENTS_MAX);
    sim->jobs_wanted = (int)sim_between(sim, 1, SIM_JOBS_MAX);
    sim->calm_ns = sim->now_ns + sim_between(sim, SIM_MS(10000), SIM_MS(60000));
    for (int n = 0; n < sim->agents_count; n++) {
        snprintf(sim->agents[n].name, sizeof(sim->agents[n].name), "node-%d", n);
        sim->agents[n].up = true;
        sim->agents[n].acked_ns = sim->now_ns;
        sim->agents[n].connect_ns = sim->now_ns + sim_between(sim, 0, SIM_MS(2000));
    }
}

void sim_deinit(struct sim *sim)
{
    while (sim->transactions_count > 0) {
        drop_transaction(sim);
    }
    dp_core_free(sim->core);
    dp_effects_deinit(&sim->effects);
    free(sim->messages);
}
