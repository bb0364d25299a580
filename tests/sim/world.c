// One world, from its seed to its end.
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "sim.h"

#define END_MS 400000 // all is over so long after the last fault, or never
#define STREAMS_SHIFT 56
#define NUMBER_MASK ((UINT64_C(1) << STREAMS_SHIFT) - 1)

uint64_t sim_seed_parse(const char *text)
{
    char *end = NULL;
    uint64_t number = strtoull(text, &end, 10) & NUMBER_MASK;
    uint64_t streams = *end == '/' ? strtoull(end + 1, NULL, 10) : 0;
    return number | (streams < SIM_STREAMS ? streams : 0) << STREAMS_SHIFT;
}

const char *sim_seed_text(uint64_t seed, char ret_text[static 32])
{
    unsigned long long number = seed & NUMBER_MASK, streams = seed >> STREAMS_SHIFT;
    if (streams == 0) {
        snprintf(ret_text, 32, "%llu", number);
    } else {
        snprintf(ret_text, 32, "%llu/%llu", number, streams);
    }
    return ret_text;
}

int64_t sim_between(struct sim *sim, int64_t low, int64_t high)
{
    return low >= high ? low : low + (int64_t)dp_rand_below(&sim->rand, (uint64_t)(high - low + 1));
}

bool sim_chance(struct sim *sim, uint32_t per_mille)
{
    return dp_rand_below(&sim->rand, 1000) < per_mille;
}

bool sim_is_calm(const struct sim *sim)
{
    return sim->now_ns >= sim->calm_ns;
}

void sim_trace_line(struct sim *sim, const char *format, ...)
{
    char *line = sim->trace[sim->traced++ % SIM_TRACE_LINES];
    int used = snprintf(line, sizeof(sim->trace[0]), "%7llu %9.4f s  ",
                        (unsigned long long)sim->events, (double)sim->now_ns / 1e9);
    va_list args;
    va_start(args, format);
    (void)vsnprintf(line + used, sizeof(sim->trace[0]) - (size_t)used, format, args);
    va_end(args);
    if (sim->print != NULL) {
        fprintf(sim->print, "%s\n", line);
    }
}

void sim_fail(struct sim *sim, const char *rule, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)vsnprintf(sim->text, sizeof(sim->text), format, args);
    va_end(args);
    sim->rule = rule;
    longjmp(sim->failed, 1);
}

uint32_t sim_job_number(const char *id)
{
    uint32_t number = 0;
    for (const char *digit = id + 4; *digit >= '0' && *digit <= '9'; digit++) {
        number = number * 10 + (uint32_t)(*digit - '0');
    }
    return strncmp(id, "job-", 4) == 0 ? number : 0;
}

struct sim_key sim_key_of(const struct dp_agent_fence *fence)
{
    return (struct sim_key){sim_job_number(fence->job), fence->attempt, fence->epoch};
}

static void draw_jobs(struct sim *sim)
{
    for (uint32_t number = 1; number <= SIM_JOBS_MAX; number++) {
        uint64_t draw = dp_rand_mix(sim->seed, 1000 + number);
        sim->jobs[number].steps = 1 + draw % 12;
        sim->jobs[number].step_ns = SIM_MS(50 + (int64_t)(draw / 16 % 1500));
        sim->jobs[number].checkpoint_every = draw / 65536 % 3 == 0 ? 0 : 1 + draw / 65536 % 5;
    }
}

static void configure(struct sim *sim)
{
    struct dp_core_config *config = &sim->controller.config;
    dp_core_config_init(config);
    sim->delay_us = (uint32_t)sim_between(sim, 300, 20000);
    sim->disk_us = (uint32_t)sim_between(sim, 100, 15000);
    sim->lease_ms = (uint32_t)sim_between(sim, 4000, 10000);
    sim->orphan_ms = sim->lease_ms * (uint32_t)sim_between(sim, 1, 3);
    config->heartbeat_ms = sim_chance(sim, 500) ? 1000 : 2000;
    config->late_ms = 3 * config->heartbeat_ms + 500;
    config->lease_default_ms = sim->lease_ms;
    config->fence_default_ms = 60000;
    config->prepare_timeout_ms = 25000;
    config->stop_timeout_ms = 20000;
    config->checkpoint_timeout_ms = 15000;
    config->pause_timeout_ms = 30000;
    sim->controller.wall_ns = SIM_MS(1700000000000);
}

void sim_init(struct sim *sim, uint64_t seed, uint64_t faults_masked, struct sim_tally *tally)
{
    struct sim_queue queue = sim->queue;
    FILE *print = sim->print;
    bool tracing = sim->tracing;
    memset(sim, 0, sizeof(*sim));
    queue.count = 0;
    queue.next_order = 0;
    sim->queue = queue;
    sim->print = print;
    sim->tracing = tracing;
    sim->seed = seed & NUMBER_MASK;
    sim->streams = seed >> STREAMS_SHIFT == 0 ? SIM_STREAMS : (uint32_t)(seed >> STREAMS_SHIFT);
    sim->faults_masked = faults_masked;
    sim->tally = tally;
    sim->disk.last = &sim->disk.first;
    // Once a world of one stream had a negative number.
    dp_rand_init(&sim->rand, sim->streams == 1 ? -sim->seed : sim->seed);
    configure(sim);
    sim->calm_ns = sim_between(sim, SIM_MS(15000), SIM_MS(70000));
    sim->end_ns = sim->calm_ns + SIM_MS(END_MS);
    sim->nodes_count = (uint32_t)sim_between(sim, 2, SIM_NODES_MAX);
    draw_jobs(sim);
    for (uint32_t n = 0; n < sim->nodes_count; n++) {
        sim_node_init(sim, n);
    }
    sim_users_init(sim);
    sim_faults_init(sim);
    sim_more_init(sim);
    sim_late_init(sim);
    sim_push(sim, 0, SIM_EV_CONTROLLER_UP, 0, 0, NULL);
}

static void free_event(const struct sim_event *event)
{
    if (event->kind <= SIM_EV_FROM_KEEPER) {
        free(event->p);
    }
}

void sim_deinit(struct sim *sim)
{
    for (size_t i = 0; i < sim->queue.count; i++) {
        free_event(&sim->queue.heap[i]);
    }
    sim->queue.count = 0;
    sim_controller_deinit(sim);
    sim_disk_deinit(sim);
    for (uint32_t n = 0; n < sim->nodes_count; n++) {
        sim_node_deinit(&sim->nodes[n]);
    }
    for (uint32_t number = 0; number <= SIM_JOBS_MAX; number++) {
        while (sim->jobs[number].runs != NULL) {
            struct sim_run *next = sim->jobs[number].runs->next;
            free(sim->jobs[number].runs);
            sim->jobs[number].runs = next;
        }
    }
    free(sim->connections);
    sim->connections = NULL;
}

// Until when the process that an event is for stands still; 0 = it runs.
static int64_t stands_until(const struct sim *sim, const struct sim_event *event)
{
    const struct sim_keeper *keeper = NULL;
    switch (event->kind) {
    case SIM_EV_TO_CONTROLLER:
    case SIM_EV_TIMER:
    case SIM_EV_STORED:
    case SIM_EV_PLANNED:
    case SIM_EV_ADAPTED:
        return sim->controller.stall_ns;
    case SIM_EV_TO_AGENT:
    case SIM_EV_FROM_KEEPER:
    case SIM_EV_SESSION:
    case SIM_EV_AGENT_TICK:
    case SIM_EV_KEEPER_TRY:
    case SIM_EV_KEEPER_MISSED:
    case SIM_EV_KEEPER_FAILED:
        return sim->nodes[event->a].stall_ns;
    case SIM_EV_TO_KEEPER:
        keeper = ((const struct sim_frame *)event->p)->keeper;
        return keeper->stall_ns;
    case SIM_EV_KEEPER_LEASE:
        keeper = event->p;
        return keeper->stall_ns;
    default:
        return 0;
    }
}

static void take_stored(struct sim *sim, uint64_t life)
{
    if (sim->controller.core != NULL && sim->controller.life == life && sim->disk.first != NULL) {
        sim_disk_stored(sim);
    }
}

static void take_keeper_failed(struct sim *sim, struct sim_keeper *keeper, uint64_t life)
{
    struct sim_node *node = keeper->node;
    if (node->core != NULL && node->life == life) {
        struct dp_agent_event event = {.type = DP_AGENT_KEEPER_FAILED,
                                       .fence = keeper->fence,
                                       .text = "its directory is there already"};
        sim_agent_event(sim, node, &event);
    }
}

static void take_of_node(struct sim *sim, const struct sim_event *event)
{
    struct sim_node *node = &sim->nodes[event->a];
    switch (event->kind) {
    case SIM_EV_TO_AGENT:
        sim_session_take(sim, node, event->p);
        break;
    case SIM_EV_TO_KEEPER:
        sim_keeper_take(sim, event->p);
        break;
    case SIM_EV_FROM_KEEPER:
        sim_agent_take_frame(sim, event->p);
        break;
    case SIM_EV_NODE_UP:
        sim_node_start(sim, node);
        break;
    case SIM_EV_AGENT_UP:
        sim_agent_start(sim, node);
        break;
    case SIM_EV_SESSION:
        sim_session_timer(sim, node, event->b);
        break;
    case SIM_EV_AGENT_TICK:
        sim_agent_tick(sim, node, event->b);
        break;
    case SIM_EV_KEEPER_TRY:
        sim_keeper_try(sim, event->p, event->b);
        break;
    case SIM_EV_KEEPER_MISSED:
        sim_keeper_missed(sim, event->p);
        break;
    case SIM_EV_KEEPER_LEASE:
        sim_keeper_lease(sim, event->p);
        break;
    default:
        take_keeper_failed(sim, event->p, event->b);
        break;
    }
}

static void take(struct sim *sim, const struct sim_event *event)
{
    switch (event->kind) {
    case SIM_EV_TO_CONTROLLER:
        sim_controller_take(sim, event->p);
        break;
    case SIM_EV_CONTROLLER_UP:
        sim_controller_start(sim);
        break;
    case SIM_EV_TIMER:
        sim_controller_timer(sim, event->b);
        break;
    case SIM_EV_STORED:
        take_stored(sim, event->b);
        break;
    case SIM_EV_PLANNED:
        sim_planner_planned(sim, event->b);
        break;
    case SIM_EV_ADAPTED:
        sim_planner_adapted(sim, event->p, event->b);
        break;
    case SIM_EV_RANK:
        sim_rank_moves(sim, event->p, event->b);
        break;
    case SIM_EV_STEP:
        sim_run_step(sim, event->p);
        break;
    case SIM_EV_FAULT:
        sim_fault_fire(sim, event->a);
        break;
    case SIM_EV_USER:
        sim_check_silence(sim);
        sim_rules_look(sim);
        sim_choices_look(sim);
        sim_users_act(sim);
        break;
    default:
        take_of_node(sim, event);
        break;
    }
}

static bool is_finished(struct sim *sim, const struct sim_event *event)
{
    return event->kind == SIM_EV_USER && sim_is_calm(sim) && sim->events >= SIM_EVENTS_MIN &&
           sim_is_over(sim);
}

static void run(struct sim *sim)
{
    while (sim_pop(sim, &sim->current)) {
        struct sim_event *event = &sim->current;
        sim->now_ns = event->at_ns;
        int64_t until_ns = stands_until(sim, event);
        if (until_ns > sim->now_ns) {
            if (event->kind == SIM_EV_TO_CONTROLLER) {
                sim_controller_accept(sim, ((const struct sim_message *)event->p)->session);
            }
            sim_push(sim, until_ns, event->kind, event->a, event->b, event->p);
            event->kind = SIM_EV_KIND_COUNT;
            continue;
        }
        sim->events++;
        sim->tally->hash = dp_rand_mix(sim->tally->hash, (uint64_t)event->at_ns + event->kind);
        take(sim, event);
        free_event(event);
        if (is_finished(sim, event)) {
            sim_check_end(sim);
            return;
        }
        event->kind = SIM_EV_KIND_COUNT;
        if (sim->now_ns > sim->end_ns) {
            sim_fail_unfinished(sim);
        }
    }
}

static void tally_world(struct sim *sim)
{
    struct sim_tally *tally = sim->tally;
    bool is_whole = sim->streams == SIM_STREAMS && sim->faults_masked == 0;
    if (is_whole && (sim->events < SIM_EVENTS_MIN || sim->broken < SIM_FAULTS_MIN)) {
        sim_fail(sim, "floors", "%llu events, %u faults that broke something",
                 (unsigned long long)sim->events, sim->broken);
    }
    bool is_first = tally->worlds == 0;
    tally->least_events =
        is_first || sim->events < tally->least_events ? sim->events : tally->least_events;
    tally->least_broken =
        is_first || sim->broken < tally->least_broken ? sim->broken : tally->least_broken;
    tally->worlds++;
    tally->events += sim->events;
    tally->faults += sim->faults_fired;
}

bool sim_run(struct sim *sim)
{
    if (setjmp(sim->failed) != 0) {
        free_event(&sim->current);
        return false;
    }
    run(sim);
    tally_world(sim);
    return true;
}
