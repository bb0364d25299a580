// The engines against a second, naive simulation that walks time tick by tick, and processor
// sharing against cases worked out by hand.
#include "support.h"

#include <math.h>
#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/rand.h"

enum { RANKS = 8, STAGES = 16, MICROBATCHES = 32, QUEUE = 64, UNKNOWN = 1 << 30 };

struct message {
    int way, stage, microbatch;
};

// A wire carries one message at a time; then it flies for the latency.
struct wire {
    struct message queue[QUEUE];
    int first, count;
    int busy_until;  // of the first message, when it is on the wire; -1 = not yet
};

struct naive {
    const struct dp_schedule *schedule;
    const struct dp_sim_costs *costs;
    int now;
    int arrival[2][STAGES][MICROBATCHES];
    struct wire wires[RANKS][RANKS];
    size_t at[RANKS];
    int until[RANKS];  // -1 = idle
    int start[RANKS];
    struct dp_sim_span *spans;
};

static int slot_of(const struct naive *naive, int rank, int stage)
{
    int32_t stages[DP_RANK_STAGES_MAX];
    int32_t count = dp_schedule_rank_stages(naive->schedule, rank, stages);
    for (int slot = 0; slot < count; slot++) {
        if (stages[slot] == stage) {
            return slot;
        }
    }
    fail_msg("stage %d is not on rank %d", stage, rank);
    return 0;
}

static int ticks(const struct naive *naive, int rank, const struct dp_action *action)
{
    int slot = slot_of(naive, rank, action->stage);
    if (action->kind == DP_ACTION_FB) {
        int other = slot_of(naive, rank, action->b_stage);
        return (int)naive->costs->fb[dp_sim_pair_index(naive->costs, rank, slot, other)];
    }
    return (int)dp_sim_chunk_at(naive->costs, rank, slot)->seconds[action->kind];
}

static void put(struct naive *naive, int rank, int way, int stage, int microbatch)
{
    int target = way == 0 ? stage + 1 : stage - 1;
    if (target < 0 || target >= naive->schedule->stages) {
        return;
    }
    int peer = dp_schedule_rank_of(naive->schedule, target, (uint32_t)microbatch);
    if (peer == rank) {
        naive->arrival[way][target][microbatch] = naive->now;
        return;
    }
    struct wire *wire = &naive->wires[rank][peer];
    assert_true(wire->count < QUEUE);
    wire->queue[(wire->first + wire->count++) % QUEUE] =
        (struct message){way, target, microbatch};
}

static void end_actions(struct naive *naive)
{
    for (int rank = 0; rank < naive->schedule->pipeline; rank++) {
        if (naive->until[rank] != naive->now) {
            continue;
        }
        const struct dp_action *action = &naive->schedule->actions[naive->at[rank]];
        naive->spans[naive->at[rank]].start = naive->start[rank];
        naive->spans[naive->at[rank]++].end = naive->now;
        naive->until[rank] = -1;
        bool pair = action->kind == DP_ACTION_FB;
        if (action->kind == DP_ACTION_F || pair) {
            put(naive, rank, 0, action->stage, (int)action->microbatch);
        }
        if (action->kind == DP_ACTION_B || action->kind == DP_ACTION_I) {
            put(naive, rank, 1, action->stage, (int)action->microbatch);
        } else if (pair) {
            put(naive, rank, 1, action->b_stage, (int)action->b_microbatch);
        }
    }
}

static void move_messages(struct naive *naive)
{
    for (int from = 0; from < naive->schedule->pipeline; from++) {
        for (int to = 0; to < naive->schedule->pipeline; to++) {
            struct wire *wire = &naive->wires[from][to];
            const struct dp_sim_hop *hop = dp_sim_hop_at(naive->costs, from, to);
            double speed = hop->bytes_per_second;
            int bytes_ticks = speed > 0 ? (int)lround(1 / speed) : 0;
            while (wire->count > 0) {
                if (wire->busy_until < 0) {
                    wire->busy_until = naive->now + bytes_ticks;
                }
                if (wire->busy_until > naive->now) {
                    break;
                }
                struct message *message = &wire->queue[wire->first];
                naive->arrival[message->way][message->stage][message->microbatch] =
                    naive->now + (int)hop->latency;
                wire->first = (wire->first + 1) % QUEUE;
                wire->count--;
                wire->busy_until = -1;
            }
        }
    }
}

static bool has_input(const struct naive *naive, int way, int stage, int microbatch)
{
    bool source = way == 0 ? stage > 0 : stage < naive->schedule->stages - 1;
    return !source || naive->arrival[way][stage][microbatch] <= naive->now;
}

// Returns how many ranks still have something to do.
static int start_actions(struct naive *naive)
{
    int working = 0;
    for (int rank = 0; rank < naive->schedule->pipeline; rank++) {
        if (naive->at[rank] == naive->schedule->rank_begin[rank + 1]) {
            continue;
        }
        working++;
        const struct dp_action *action = &naive->schedule->actions[naive->at[rank]];
        bool pair = action->kind == DP_ACTION_FB;
        bool ready = naive->until[rank] < 0;
        if (action->kind == DP_ACTION_F || pair) {
            ready &= has_input(naive, 0, action->stage, (int)action->microbatch);
        }
        if (pair) {
            ready &= has_input(naive, 1, action->b_stage, (int)action->b_microbatch);
        } else if (action->kind == DP_ACTION_B || action->kind == DP_ACTION_I) {
            ready &= has_input(naive, 1, action->stage, (int)action->microbatch);
        }
        if (ready) {
            naive->start[rank] = naive->now;
            naive->until[rank] = naive->now + ticks(naive, rank, action);
        }
    }
    return working;
}

static void run_naive(const struct dp_schedule *schedule, const struct dp_sim_costs *costs,
                      struct dp_sim_span *spans)
{
    struct naive *naive = dp_new(struct naive);
    naive->schedule = schedule;
    naive->costs = costs;
    naive->spans = spans;
    for (int rank = 0; rank < RANKS; rank++) {
        naive->until[rank] = -1;
        for (int peer = 0; peer < RANKS; peer++) {
            naive->wires[rank][peer].busy_until = -1;
        }
    }
    for (int i = 0; i < 2 * STAGES * MICROBATCHES; i++) {
        (&naive->arrival[0][0][0])[i] = UNKNOWN;
    }
    for (int rank = 0; rank < schedule->pipeline; rank++) {
        naive->at[rank] = schedule->rank_begin[rank];
    }
    for (bool working = true; working; naive->now++) {
        assert_true(naive->now < 100000);
        end_actions(naive);
        move_messages(naive);
        working = start_actions(naive) > 0;
    }
    free(naive);
}

static double random_ticks(struct dp_rand *rand, uint32_t least, uint32_t most)
{
    return least + (double)dp_rand_below(rand, most - least + 1);
}

static void random_costs(struct dp_rand *rand, struct dp_sim_costs *costs)
{
    for (int32_t i = 0; i < costs->pipeline * costs->slots; i++) {
        for (int kind = 0; kind < DP_ACTION_FB; kind++) {
            costs->chunks[i].seconds[kind] = random_ticks(rand, 1, 6);
        }
    }
    for (int32_t i = 0; i < costs->pipeline * costs->slots * costs->slots; i++) {
        costs->fb[i] = random_ticks(rand, 1, 9);
    }
    for (int32_t i = 0; i < costs->pipeline * costs->pipeline; i++) {
        costs->hops[i].latency = random_ticks(rand, 0, 3);
        double bytes_ticks = random_ticks(rand, 0, 4);
        costs->hops[i].bytes_per_second = bytes_ticks > 0 ? 1 / bytes_ticks : 0;
    }
    costs->message_bytes_f = 1;
    costs->message_bytes_b = 1;
}

static const struct {
    const char *family;
    int32_t p, m;
} sizes[] = {{"gpipe", 4, 5},    {"1f1b", 5, 9},     {"1f1b", 8, 4},      {"dualpipe", 4, 8},
             {"dualpipe", 8, 16}, {"dualpipe", 8, 14}, {"dualpipev", 3, 7}, {"dualpipev", 8, 17},
             {"dualpipev", 1, 5}};

static void every_action_starts_when_a_naive_simulation_starts_it(void **state)
{
    (void)state;
    struct dp_rand rand;
    dp_rand_init(&rand, 7);
    struct dp_sim_scratch *scratch = dp_sim_scratch_new();
    for (int round = 0; round < 20; round++) {
        for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
            struct dp_error err = {0};
            struct dp_schedule schedule =
                make_schedule(sizes[k].family, sizes[k].p, sizes[k].m);
            struct dp_sim_costs costs;
            dp_sim_costs_init(&costs, &schedule);
            random_costs(&rand, &costs);
            struct dp_sim_result result;
            assert_ok(dp_simulate(&schedule, &costs, true, &result, &err), &err);
            size_t count = dp_schedule_action_count(&schedule);
            struct dp_sim_span *spans = dp_new_array(struct dp_sim_span, count);
            run_naive(&schedule, &costs, spans);
            for (size_t i = 0; i < count; i++) {
                assert_true(fabs(spans[i].start - result.spans[i].start) < 1e-6);
                assert_true(fabs(spans[i].end - result.spans[i].end) < 1e-6);
            }
            double makespan;
            assert_ok(dp_simulate_makespan(&schedule, &costs, scratch, &makespan, NULL, &err),
                      &err);
            assert_true(makespan == result.makespan);
            for (int32_t rank = 0; rank < schedule.pipeline; rank++) {
                const struct dp_sim_rank *r = &result.ranks[rank];
                double parts = r->warmup + r->dependency + r->imbalance + r->comm + r->cooldown;
                assert_true(fabs(parts - r->bubble) < 1e-6);
                assert_true(r->dependency >= 0 && r->imbalance >= 0 && r->comm >= 0);
                assert_true(fabs(r->contention) < 1e-6);
            }
            free(spans);
            dp_sim_result_deinit(&result);
            dp_sim_costs_deinit(&costs);
            dp_schedule_deinit(&schedule);
        }
    }
    dp_sim_scratch_free(scratch);
}

static struct dp_sim_result share(const struct dp_schedule *schedule, struct dp_sim_costs *costs,
                                  double cores)
{
    struct dp_error err = {0};
    struct dp_sim_result result;
    costs->cores[0] = cores;
    assert_ok(dp_simulate(schedule, costs, true, &result, &err), &err);
    return result;
}

static void assert_near(double got, double wanted)
{
    if (!(fabs(got - wanted) < 1e-6)) {
        fail_msg("%.9g is not %.9g", got, wanted);
    }
}

// Rank 0 takes 1 for F and 2 for B, rank 1 takes 3 and 1. One core: 0-1 F0 alone; 1-3 F1 of rank 0
// beside F0 of rank 1, which then needs 2 more; 3-5, 5-8 rank 1 alone; 8-9 its B0; 9-11 its B1
// beside B0 of rank 0, which then needs 1 more; 11-12; 12-14.
static void ranks_that_share_a_core_run_at_half_speed_while_both_are_active(void **state)
{
    (void)state;
    struct dp_schedule schedule = make_schedule("gpipe", 2, 2);
    struct dp_sim_costs costs;
    dp_sim_costs_init(&costs, &schedule);
    dp_sim_chunk_at(&costs, 0, 0)->seconds[DP_ACTION_F] = 1;
    dp_sim_chunk_at(&costs, 0, 0)->seconds[DP_ACTION_B] = 2;
    dp_sim_chunk_at(&costs, 1, 0)->seconds[DP_ACTION_F] = 3;
    dp_sim_chunk_at(&costs, 1, 0)->seconds[DP_ACTION_B] = 1;
    struct dp_sim_result result = share(&schedule, &costs, 1);
    static const struct dp_sim_span wanted[] = {{0, 1},  {1, 3}, {9, 12}, {12, 14},
                                                {1, 5},  {5, 8}, {8, 9},  {9, 11}};
    for (int i = 0; i < 8; i++) {
        assert_near(result.spans[i].start, wanted[i].start);
        assert_near(result.spans[i].end, wanted[i].end);
    }
    assert_near(result.ranks[0].contention, 2);
    assert_near(result.ranks[1].contention, 2);
    dp_sim_result_deinit(&result);
    dp_sim_costs_deinit(&costs);
    dp_schedule_deinit(&schedule);
}

// 1.5 cores give each of two active ranks three quarters of one.
static void fractions_of_cores_are_shared_too(void **state)
{
    (void)state;
    struct dp_schedule schedule = make_schedule("gpipe", 2, 2);
    struct dp_sim_costs costs;
    dp_sim_costs_init_uniform(&costs, &schedule, &(struct dp_sim_uniform){.f = 3, .b = 3});
    struct dp_sim_result result = share(&schedule, &costs, 1.5);
    // 3 alone, 4 both, 3 alone, 3 alone, 4 both, 3 alone.
    assert_near(result.makespan, 20);
    dp_sim_result_deinit(&result);
    dp_sim_costs_deinit(&costs);
    dp_schedule_deinit(&schedule);
    schedule = make_schedule("1f1b", 1, 3);
    dp_sim_costs_init_uniform(&costs, &schedule, &(struct dp_sim_uniform){.f = 1, .b = 2});
    result = share(&schedule, &costs, 0.5);
    assert_near(result.makespan, 18);
    dp_sim_result_deinit(&result);
    dp_sim_costs_deinit(&costs);
    dp_schedule_deinit(&schedule);
}

// Without hop latency some rank can always work, so a single core is never idle.
static void one_core_takes_all_the_work_there_is(void **state)
{
    (void)state;
    struct dp_rand rand;
    dp_rand_init(&rand, 3);
    for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
        struct dp_schedule schedule = make_schedule(sizes[k].family, sizes[k].p, sizes[k].m);
        struct dp_sim_costs costs;
        dp_sim_costs_init(&costs, &schedule);
        random_costs(&rand, &costs);
        memset(costs.hops, 0,
               (size_t)(schedule.pipeline * schedule.pipeline) * sizeof(*costs.hops));
        struct dp_sim_result free_run = share(&schedule, &costs, 0);
        double work = 0;
        for (int32_t rank = 0; rank < schedule.pipeline; rank++) {
            work += dp_sim_rank_busy(&free_run.ranks[rank]);
        }
        struct dp_sim_result shared = share(&schedule, &costs, 1);
        assert_near(shared.makespan, work);
        // As many cores as ranks, less next to nothing: the other engine must agree.
        struct dp_sim_result almost = share(&schedule, &costs, schedule.pipeline - 1e-12);
        assert_near(almost.makespan, free_run.makespan);
        dp_sim_result_deinit(&free_run);
        dp_sim_result_deinit(&shared);
        dp_sim_result_deinit(&almost);
        dp_sim_costs_deinit(&costs);
        dp_schedule_deinit(&schedule);
    }
}

// Ranks 0 and 1 share a core, ranks 2 and 3 have their own hosts.
static void only_the_crowded_host_slows_down(void **state)
{
    (void)state;
    struct dp_schedule schedule = make_schedule("gpipe", 4, 1);
    struct dp_sim_costs costs;
    dp_sim_costs_init_uniform(&costs, &schedule, &(struct dp_sim_uniform){.f = 1, .b = 1});
    free(costs.cores);
    costs.hosts = 2;
    costs.cores = dp_new_array(double, 2);
    costs.cores[1] = 1;
    costs.host[2] = 1;
    costs.host[3] = 1;
    struct dp_sim_result result = share(&schedule, &costs, 1);
    assert_near(result.makespan, 8);  // one micro-batch: never two ranks at work
    dp_sim_result_deinit(&result);
    dp_sim_costs_deinit(&costs);
    dp_schedule_deinit(&schedule);
    schedule = make_schedule("gpipe", 2, 4);
    dp_sim_costs_init_uniform(&costs, &schedule, &(struct dp_sim_uniform){.f = 1, .b = 1});
    free(costs.cores);
    costs.hosts = 2;
    costs.cores = dp_new_array(double, 2);
    costs.cores[1] = 1;
    costs.host[1] = 1;
    result = share(&schedule, &costs, 0.5);  // rank 0 at half speed: F until 8, B 10 to 18
    assert_near(result.ranks[0].end, 18);
    assert_near(result.ranks[1].contention, 0);
    assert_near(result.ranks[0].contention, 8);
    dp_sim_result_deinit(&result);
    dp_sim_costs_deinit(&costs);
    dp_schedule_deinit(&schedule);
}

static void ranks_that_wait_for_each_other_end_in_an_error(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_schedule schedule = make_schedule("gpipe", 2, 2);
    struct dp_action action = schedule.actions[1];
    schedule.actions[1] = schedule.actions[2];
    schedule.actions[2] = action;
    struct dp_sim_costs costs;
    struct dp_sim_result result;
    dp_sim_costs_init_uniform(&costs, &schedule, &(struct dp_sim_uniform){.f = 1, .b = 1});
    for (int cores = 0; cores < 2; cores++) {
        costs.cores[0] = cores;
        assert_refused(dp_simulate(&schedule, &costs, false, &result, &err), DP_INVALID, &err,
                       "wait for each other");
    }
    dp_sim_costs_deinit(&costs);
    dp_schedule_deinit(&schedule);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_action_starts_when_a_naive_simulation_starts_it),
        cmocka_unit_test(ranks_that_share_a_core_run_at_half_speed_while_both_are_active),
        cmocka_unit_test(fractions_of_cores_are_shared_too),
        cmocka_unit_test(one_core_takes_all_the_work_there_is),
        cmocka_unit_test(only_the_crowded_host_slows_down),
        cmocka_unit_test(ranks_that_wait_for_each_other_end_in_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
