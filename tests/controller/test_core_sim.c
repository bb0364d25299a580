// The controller's core through random faults: whatever breaks, each job ends once, nothing is told
// before it is stored, and nothing is left running. DP_SIM_RUNS sets how many worlds are tried,
// DP_SIM_SEED the first seed.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp_test.h"
#include "sim_world.h"

#define RUNS_DEFAULT 150
#define END_NS SIM_MS(600000)

static void submit(struct sim *sim)
{
    char request_id[32];
    uint64_t reply = (uint64_t)++sim->jobs_asked;
    snprintf(request_id, sizeof(request_id), "r-%d", sim->jobs_asked);
    int64_t most = sim->agents_count * SIM_SLOTS;
    most = most < SIM_RANKS_MAX ? most : SIM_RANKS_MAX;
    struct dp_core_event event = {
        .kind = DP_EVENT_SUBMIT,
        .submit = {.reply = reply,
                   .request_id = request_id,
                   .name = "x",
                   .device = "cpu",
                   .job_toml = "",
                   .ranks_wanted = (int32_t)sim_between(sim, 1, most),
                   .ranks_fixed = true,
                   .needs_profile = true},
    };
    sim_event(sim, &event);
}

static void cancel_some(struct sim *sim)
{
    struct dp_core_event event = {.kind = DP_EVENT_CANCEL, .ask = {.reply = 63, .reason = ""}};
    uint64_t number = (uint64_t)sim_between(sim, 1, SIM_JOBS_MAX);
    snprintf(event.ask.job, sizeof(event.ask.job), "job-%llu", (unsigned long long)number);
    if (dp_core_job(sim->core, number, NULL, NULL) != NULL) {
        sim_event(sim, &event);
    }
}

static void kill_some_rank(struct sim *sim)
{
    struct sim_agent *agent = &sim->agents[sim_between(sim, 0, sim->agents_count - 1)];
    struct sim_assignment *a = &agent->assignments[sim_between(sim, 0, SIM_JOBS_MAX - 1)];
    for (uint32_t i = 0; a->used && i < a->ranks_count; i++) {
        if (sim_rank_alive(&a->ranks[i])) {
            a->ranks[i].phase = DP_RANK_DIED;
            a->ranks[i].signal = 9;
            return;
        }
    }
}

static void break_something(struct sim *sim)
{
    struct sim_agent *agent = &sim->agents[sim_between(sim, 0, sim->agents_count - 1)];
    sim->faults++;
    switch (sim_between(sim, 0, 7)) {
    case 0:
    case 1:
        if (sim->core != NULL) {
            sim_crash_controller(sim);
        }
        break;
    case 2:
        sim_agent_disconnect(sim, agent);
        break;
    case 3:
        sim_agent_disconnect(sim, agent);
        agent->partition_ns = sim->now_ns + sim_between(sim, SIM_MS(100), SIM_MS(30000));
        break;
    case 4:
        if (agent->up) {
            sim_agent_kill(sim, agent, false);
        }
        break;
    case 5:
        if (agent->up) {
            sim_agent_kill(sim, agent, true);
        }
        break;
    case 6:
        sim_stall_controller(sim);
        break;
    default:
        kill_some_rank(sim);
        break;
    }
}

// A rank of a job runs in one place, and a node runs no more than it has slots for.
static void check_world(struct sim *sim)
{
    uint32_t running[SIM_JOBS_MAX + 1][SIM_RANKS_MAX] = {0};
    for (int n = 0; n < sim->agents_count; n++) {
        uint32_t alive = 0;
        for (size_t i = 0; i < SIM_JOBS_MAX; i++) {
            const struct sim_assignment *a = &sim->agents[n].assignments[i];
            unsigned number = 0;
            if (!a->used || sscanf(a->fence.job, "job-%u", &number) != 1) {
                continue;
            }
            for (uint32_t k = 0; k < a->ranks_count; k++) {
                bool is_alive = sim_rank_alive(&a->ranks[k]);
                alive += is_alive;
                if (is_alive && running[number][a->ranks[k].rank]++ > 0) {
                    sim_fail(sim, "rank %u of %s runs twice", a->ranks[k].rank, a->fence.job);
                }
                int64_t fence_ns = sim->agents[n].acked_ns + SIM_MS(SIM_FENCE_MS);
                if (is_alive && sim->now_ns > fence_ns) {
                    sim_fail(sim, "rank %u of %s runs behind the fence", a->ranks[k].rank,
                             a->fence.job);
                }
            }
        }
        if (alive > SIM_SLOTS) {
            sim_fail(sim, "%u ranks run in the %d slots of %s", alive, SIM_SLOTS,
                     sim->agents[n].name);
        }
    }
}

// A job that is COMPLETED on disk has really run to its end.
static void check_completed(struct sim *sim)
{
    for (int n = 0; n < sim->agents_count; n++) {
        for (size_t i = 0; i < SIM_JOBS_MAX; i++) {
            const struct sim_assignment *a = &sim->agents[n].assignments[i];
            unsigned number = 0;
            if (!a->used || sscanf(a->fence.job, "job-%u", &number) != 1 ||
                sim->rows[number].job.state != DP_STATE_COMPLETED) {
                continue;
            }
            for (uint32_t k = 0; k < a->ranks_count; k++) {
                if (a->ranks[k].phase != DP_RANK_FINISHED || !a->ranks[k].ok) {
                    sim_fail(sim, "%s is COMPLETED and rank %u is not", a->fence.job,
                             a->ranks[k].rank);
                }
            }
        }
    }
}

static bool all_is_over(const struct sim *sim)
{
    for (uint64_t number = 1; number <= SIM_JOBS_MAX; number++) {
        const struct sim_row *row = &sim->rows[number];
        if (row->used && !dp_job_state_ended(row->job.state)) {
            return false;
        }
    }
    for (int n = 0; n < sim->agents_count; n++) {
        for (size_t i = 0; i < SIM_JOBS_MAX; i++) {
            if (sim->agents[n].assignments[i].used) {
                return false;
            }
        }
    }
    return sim->core != NULL && dp_core_jobs_count(sim->core) == 0 &&
           sim->jobs_asked >= sim->jobs_wanted;
}

static void fail_unfinished(const struct sim *sim)
{
    for (uint64_t number = 1; number <= SIM_JOBS_MAX; number++) {
        const struct sim_row *row = &sim->rows[number];
        if (row->used && !dp_job_state_ended(row->job.state)) {
            sim_fail(sim, "%s does not end: %s %s %s", row->job.id,
                     dp_job_state_text(row->job.state), row->job.reason, row->job.message);
        }
    }
    sim_fail(sim, "assignments stay on the nodes");
}

static void run_users(struct sim *sim)
{
    if (sim->core == NULL || sim->now_ns < sim->stall_ns) {
        return;
    }
    if (sim->jobs_asked < sim->jobs_wanted && sim_chance(sim, 0.005)) {
        submit(sim);
    }
    if (sim->now_ns < sim->calm_ns && sim_chance(sim, 0.0004)) {
        cancel_some(sim);
    }
}

static void check_end(struct sim *sim)
{
    for (int i = 1; i <= sim->jobs_asked; i++) {
        bool found = false;
        char request_id[32];
        snprintf(request_id, sizeof(request_id), "r-%d", i);
        for (uint64_t number = 1; number <= SIM_JOBS_MAX; number++) {
            found = found || (sim->rows[number].used &&
                              strcmp(sim->rows[number].job.request_id, request_id) == 0);
        }
        if (sim->accepted[i] && !found) {
            sim_fail(sim, "job %d was accepted and is not on disk", i);
        }
    }
    for (int n = 0; n < (int)dp_core_nodes_count(sim->core); n++) {
        struct dp_node_view view;
        dp_core_node_at(sim->core, (size_t)n, &view);
        if (view.slots_used != 0) {
            sim_fail(sim, "%u slots of %s stay taken", view.slots_used, view.node->name);
        }
    }
}

struct tally {
    uint64_t ended[DP_STATE_COUNT], restarts, stalls, returns;
};

static void run_world(uint64_t seed, struct tally *tally)
{
    struct sim *sim = dp_new(struct sim);
    sim_init(sim, seed);
    // Some worlds are quiet and some are not.
    double fault = 0.0002 * (double)sim_between(sim, 0, 10);
    while (!all_is_over(sim) || sim->now_ns < sim->calm_ns) {
        sim->now_ns += SIM_STEP_NS;
        if (sim->now_ns > END_NS) {
            fail_unfinished(sim);
        }
        if (sim->now_ns < sim->calm_ns && sim_chance(sim, fault)) {
            break_something(sim);
        }
        run_users(sim);
        sim_step_controller(sim);
        sim_step_agents(sim);
        check_world(sim);
        check_completed(sim);
    }
    // One more heartbeat of everybody, so that what was released is known to be gone.
    for (int i = 0; i < 300; i++) {
        sim->now_ns += SIM_STEP_NS;
        sim_step_controller(sim);
        sim_step_agents(sim);
    }
    check_end(sim);
    for (uint64_t number = 1; number <= SIM_JOBS_MAX; number++) {
        tally->ended[sim->rows[number].used ? sim->rows[number].job.state : 0]++;
    }
    tally->restarts += (uint64_t)sim->restarts;
    tally->stalls += (uint64_t)sim->stalls;
    tally->returns += (uint64_t)sim->returns;
    sim_deinit(sim);
    free(sim);
}

static uint64_t setting(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text == NULL ? otherwise : strtoull(text, NULL, 10);
}

static void whatever_breaks_each_job_ends_once_and_nothing_is_left(void **state)
{
    (void)state;
    uint64_t first = setting("DP_SIM_SEED", 1), runs = setting("DP_SIM_RUNS", RUNS_DEFAULT);
    struct tally tally = {0};
    for (uint64_t i = 0; i < runs; i++) {
        run_world(first + i, &tally);
    }
    print_message(
        "%llu worlds, %llu controller restarts, %llu stalls; completed %llu, failed "
        "%llu, cancelled %llu; lost and found %llu\n",
        (unsigned long long)runs, (unsigned long long)tally.restarts,
        (unsigned long long)tally.stalls, (unsigned long long)tally.ended[DP_STATE_COMPLETED],
        (unsigned long long)tally.ended[DP_STATE_FAILED],
        (unsigned long long)tally.ended[DP_STATE_CANCELLED], (unsigned long long)tally.returns);
    if (runs >= RUNS_DEFAULT) {
        assert_true(tally.ended[DP_STATE_COMPLETED] > 0 && tally.ended[DP_STATE_FAILED] > 0 &&
                    tally.ended[DP_STATE_CANCELLED] > 0 && tally.restarts > 0 && tally.stalls > 0 &&
                    tally.returns > 0);
    }
}

static void one_seed_gives_one_world(void **state)
{
    (void)state;
    struct tally tallies[2] = {0};
    for (int i = 0; i < 2; i++) {
        for (uint64_t seed = 1; seed <= 5; seed++) {
            run_world(seed, &tallies[i]);
        }
    }
    assert_memory_equal(&tallies[0], &tallies[1], sizeof(tallies[0]));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(whatever_breaks_each_job_ends_once_and_nothing_is_left),
    cmocka_unit_test(one_seed_gives_one_world),
};

int main(void)
{
    return cmocka_run_group_tests(tests, NULL, NULL);
}
