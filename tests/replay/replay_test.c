#include "pipeline.h"

#include <math.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/rand.h"

static void assert_near(double got, double wanted)
{
    if (!(fabs(got - wanted) <= 1e-9 * (1 + fabs(wanted)))) {
        fail_msg("%.12g is not %.12g", got, wanted);
    }
}

static struct dp_replay_result analyze(const struct dp_replay_op *ops, size_t count)
{
    struct dp_replay_result result;
    struct dp_error err = {0};
    assert_ok(dp_replay_analyze(ops, count, &result, &err), &err);
    return result;
}

// One operation of the only stage; rank = dp_rank.
static struct dp_replay_op op_of(int32_t step, int32_t dp_rank, dp_replay_kind kind, double start,
                                 double duration)
{
    return (struct dp_replay_op){.step = step,
                                 .dp_rank = dp_rank,
                                 .rank = dp_rank,
                                 .kind = kind,
                                 .start = start,
                                 .duration = duration,
                                 .mc = -1,
                                 .microbatch = -1,
                                 .gmc = -1};
}

// Replica 1 takes 2 s longer in its forward; replica 0 waits for it in the sum of gradients.
static const struct dp_replay_op *two_replicas(void)
{
    static struct dp_replay_op ops[8];
    ops[0] = op_of(7, 0, DP_REPLAY_FORWARD_COMPUTE, 100, 1);
    ops[1] = op_of(7, 0, DP_REPLAY_BACKWARD_COMPUTE, 101, 2);
    ops[2] = op_of(7, 0, DP_REPLAY_GRADS_REDUCE_SCATTER, 103, 2.5);
    ops[3] = op_of(7, 0, DP_REPLAY_OPTIMIZER, 105.5, 0.5);
    ops[4] = op_of(7, 1, DP_REPLAY_FORWARD_COMPUTE, 100, 3);
    ops[5] = op_of(7, 1, DP_REPLAY_BACKWARD_COMPUTE, 103, 2);
    ops[6] = op_of(7, 1, DP_REPLAY_GRADS_REDUCE_SCATTER, 105, 0.5);
    ops[7] = op_of(7, 1, DP_REPLAY_OPTIMIZER, 105.5, 0.5);
    return ops;
}

static void waiting_for_a_slow_replica_is_not_the_waiter_s_cost(void **state)
{
    (void)state;
    struct dp_replay_result result = analyze(two_replicas(), 8);
    // Ideal: forward (1 + 3) / 2, backward 2, sum 0.5 (not (2.5 + 0.5) / 2), optimizer 0.5.
    assert_near(result.ideal_s, 5);
    assert_near(result.measured_s, 6);
    assert_near(result.replayed_s, 6);
    assert_near(result.gaps, 1);
    assert_near(result.slowdown, 6.0 / 5);
    // Replica 0 as recorded arrives at 3 and waits for an ideal one, at 4.
    assert_near(result.slowdown_replica[0], 1);
    assert_near(result.slowdown_replica[1], 6.0 / 5);
    assert_near(result.slowdown_part[DP_REPLAY_PART_FORWARD], 6.0 / 5);
    assert_near(result.slowdown_part[DP_REPLAY_PART_BACKWARD], 1);
    assert_true(isnan(result.slowdown_part[DP_REPLAY_PART_CLIP]));
    assert_near(result.slowdown_stage[0], 6.0 / 5);
    assert_int_equal(result.workers[1].rank, 1);
    assert_true(result.workers[1].fixed);
    assert_false(result.workers[0].fixed);
    assert_near(result.m_workers, 1);
    assert_int_equal(result.verdict, DP_REPLAY_BAD_WORKER);
    assert_int_equal(result.steps[0].step, 7);
    dp_replay_result_deinit(&result);
}

static void small_errors_of_clocks_stay_and_large_ones_count_as_nothing(void **state)
{
    (void)state;
    static const double early[] = {0.005, 0.02}, counted[] = {-0.005, 0};
    for (int i = 0; i < 2; i++) {
        struct dp_replay_op ops[8];
        memcpy(ops, two_replicas(), sizeof(ops));
        // On replica 0 the sum seems to end before replica 1, at 105, has come to it.
        ops[2].duration = 105 - early[i] - ops[2].start;
        ops[3].start = 105 - early[i];
        ops[3].duration = 2;
        struct dp_replay_result result = analyze(ops, 8);
        assert_near(result.replayed_s, 3 + 2 + counted[i] + 2);
        dp_replay_result_deinit(&result);
    }
}

static void compute_is_levelled_to_its_mean_and_communication_to_its_median(void **state)
{
    (void)state;
    struct dp_replay_op ops[9];
    for (int step = 0; step < 3; step++) {
        double sum = step == 2 ? 9 : 1; // a burst: no median of 1, 1, 9
        ops[3 * step] = op_of(step, 0, DP_REPLAY_FORWARD_COMPUTE, 0, step == 0 ? 4 : 1);
        ops[3 * step + 1] = op_of(step, 0, DP_REPLAY_BACKWARD_COMPUTE, ops[3 * step].duration, 1);
        ops[3 * step + 2] =
            op_of(step, 0, DP_REPLAY_GRADS_REDUCE_SCATTER, ops[3 * step].duration + 1, sum);
    }
    struct dp_replay_result result = analyze(ops, 9);
    assert_int_equal(result.step_count, 3);
    for (int step = 0; step < 3; step++) {
        assert_near(result.steps[step].ideal, 2 + 1 + 1);
    }
    assert_near(result.steps[0].replayed, 6);
    assert_near(result.steps[1].replayed, 3);
    assert_near(result.steps[2].replayed, 11);
    assert_near(result.slowdown, (6 + 3 + 11) / 3.0 / 4);
    dp_replay_result_deinit(&result);
}

// Two stages, one micro-batch, transfers of 0.25: what each takes in turn.
static void two_stages(double f0, double f1, double b1, double b0, struct dp_replay_op ops[8])
{
    const struct {
        int32_t stage;
        dp_replay_kind kind;
        double at, until;
    } all[8] = {
        {0, DP_REPLAY_FORWARD_COMPUTE, 0, f0},
        {0, DP_REPLAY_FORWARD_SEND, f0, f0 + 0.25},
        {1, DP_REPLAY_FORWARD_RECV, 0, f0 + 0.25},
        {1, DP_REPLAY_FORWARD_COMPUTE, f0 + 0.25, f0 + f1 + 0.25},
        {1, DP_REPLAY_BACKWARD_COMPUTE, f0 + f1 + 0.25, f0 + f1 + b1 + 0.25},
        {1, DP_REPLAY_BACKWARD_SEND, f0 + f1 + b1 + 0.25, f0 + f1 + b1 + 0.5},
        {0, DP_REPLAY_BACKWARD_RECV, f0, f0 + f1 + b1 + 0.5},
        {0, DP_REPLAY_BACKWARD_COMPUTE, f0 + f1 + b1 + 0.5, f0 + f1 + b1 + b0 + 0.5},
    };
    for (int i = 0; i < 8; i++) {
        ops[i] = op_of(0, 0, all[i].kind, all[i].at, all[i].until - all[i].at);
        ops[i].stage = ops[i].rank = all[i].stage;
    }
}

static void a_receive_posted_early_costs_only_the_transfer(void **state)
{
    (void)state;
    struct dp_replay_op ops[8];
    two_stages(1, 3, 4, 2, ops);
    struct dp_replay_result result = analyze(ops, 8);
    // One micro-batch passes everything in a row: 1 + 3 + 4 + 2 and two transfers, and the same at
    // the mean.
    assert_near(result.replayed_s, 10.5);
    assert_near(result.ideal_s, 10.5);
    assert_near(result.slowdown, 1);
    assert_near(result.slowdown_part[DP_REPLAY_PART_FORWARD_COMM], 1);
    // Stage 1 as recorded: 2 + 3 + 4 + 3; stage 0: 1 + 2 + 3 + 2.
    assert_near(result.slowdown_stage[1], 12.5 / 10.5);
    assert_near(result.slowdown_stage[0], 8.5 / 10.5);
    assert_int_equal(result.verdict, DP_REPLAY_EVEN);
    dp_replay_result_deinit(&result);
}

// All micro-batches of one replica, then fixed numbers: own times by stage alone.
static struct dp_replay_op *uneven(struct plan *plan, const double *forward)
{
    for (size_t i = 0; i < plan->count; i++) {
        struct planned *op = &plan->ops[i];
        op->own = op->kind == DP_REPLAY_FORWARD_COMPUTE    ? forward[op->stage]
                  : op->kind == DP_REPLAY_BACKWARD_COMPUTE ? 2 * forward[op->stage]
                                                           : 0.001;
    }
    return plan_run(plan, NULL);
}

static const struct pipeline four_by_two = {
    .replicas = 2, .stages = 4, .chunks = 1, .microbatches = 8, .steps = 2, .eagerness = 1};

static void a_heavy_last_stage_gives_a_share_over_one(void **state)
{
    (void)state;
    struct plan plan = plan_make(four_by_two);
    static const double heavy[] = {1, 1, 1, 2};
    DP_AUTO_FREE struct dp_replay_op *ops = uneven(&plan, heavy);
    struct dp_replay_result result = analyze(ops, plan.count);
    // With the last stage at the mean of 1.25 the others, at 1, let it all end sooner than with
    // every stage at the mean.
    assert_true(result.m_stage > 1.05);
    assert_true(result.slowdown_stage[0] < 1);
    assert_int_equal(result.verdict, DP_REPLAY_UNEVEN_STAGE);
    dp_replay_result_deinit(&result);
    plan_deinit(&plan);
}

static void a_light_last_stage_gives_a_negative_share(void **state)
{
    (void)state;
    struct plan plan = plan_make(four_by_two);
    static const double light[] = {2, 1, 1, 0.5};
    DP_AUTO_FREE struct dp_replay_op *ops = uneven(&plan, light);
    struct dp_replay_result result = analyze(ops, plan.count);
    assert_true(result.m_stage < -0.05);
    assert_true(result.slowdown_stage[0] > result.slowdown);
    assert_int_equal(result.verdict, DP_REPLAY_ELSEWHERE);
    dp_replay_result_deinit(&result);
    plan_deinit(&plan);
}

static void a_slow_worker_is_named(void **state)
{
    (void)state;
    struct pipeline pipeline = four_by_two;
    pipeline.replicas = 4;
    struct plan plan = plan_make(pipeline);
    for (size_t i = 0; i < plan.count; i++) {
        struct planned *op = &plan.ops[i];
        bool compute = op->kind <= DP_REPLAY_BACKWARD_COMPUTE;
        op->own = compute ? 1 : 0.001;
        op->own *= compute && op->dp_rank == 2 && op->stage == 1 ? 3 : 1;
    }
    DP_AUTO_FREE struct dp_replay_op *ops = plan_run(&plan, NULL);
    struct dp_replay_result result = analyze(ops, plan.count);
    assert_int_equal(result.verdict, DP_REPLAY_BAD_WORKER);
    for (int32_t i = 0; i < 16; i++) {
        assert_int_equal(result.workers[i].fixed, i == 2 * 4 + 1);
    }
    assert_true(result.m_workers > 0.95);
    struct dp_buf text = {0};
    dp_replay_render(&result, &text);
    assert_non_null(strstr(text.bytes, "bad worker: look at rank 9 (dp_rank 2, stage 1)"));
    dp_buf_deinit(&text);
    dp_replay_result_deinit(&result);
    plan_deinit(&plan);
}

static struct pipeline random_pipeline(struct dp_rand *rand)
{
    struct pipeline pipeline = {
        .replicas = 1 + (int32_t)dp_rand_below(rand, 3),
        .stages = 1 + (int32_t)dp_rand_below(rand, 4),
        .steps = 1 + (int32_t)dp_rand_below(rand, 3),
        .eagerness = (int32_t)dp_rand_below(rand, 3),
        .overlap = dp_rand_below(rand, 3) == 0,
    };
    bool chunked = pipeline.eagerness == 0 && pipeline.stages > 1 && dp_rand_below(rand, 2) == 0;
    pipeline.chunks = chunked ? 2 : 1;
    // A chunk's micro-batches fill the pipeline, so that no stage turns to its next chunk early.
    pipeline.microbatches = (chunked ? pipeline.stages : 1) + (int32_t)dp_rand_below(rand, 4);
    return pipeline;
}

static struct plan random_plan(struct dp_rand *rand)
{
    struct plan plan = plan_make(random_pipeline(rand));
    double comm = dp_rand_below(rand, 2) == 0 ? 0.2 : 3;
    for (size_t i = 0; i < plan.count; i++) {
        bool compute = plan.ops[i].kind <= DP_REPLAY_BACKWARD_COMPUTE;
        plan.ops[i].own = (compute ? 1 : comm) * (0.5 + dp_rand_double(rand));
    }
    return plan;
}

static int compare(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

// Mean or median of a kind's own times over the whole plan.
static double level(const struct plan *plan, dp_replay_kind kind)
{
    DP_AUTO_FREE double *values = dp_new_array(double, plan->count);
    size_t count = 0;
    double sum = 0;
    for (size_t i = 0; i < plan->count; i++) {
        if (plan->ops[i].kind == kind) {
            values[count++] = plan->ops[i].own;
            sum += plan->ops[i].own;
        }
    }
    bool compute =
        kind <= DP_REPLAY_BACKWARD_COMPUTE || kind == DP_REPLAY_OPTIMIZER || kind == DP_REPLAY_GC;
    if (compute || count == 0) {
        return sum / (double)count;
    }
    qsort(values, count, sizeof(*values), compare);
    return count % 2 == 1 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

// Seconds of the step with the wanted operations as they are and the rest level.
static double mixed(const struct plan *plan, int32_t stage, int32_t replica, int kind, int twin,
                    bool others)
{
    double levels[DP_REPLAY_KIND_COUNT];
    for (int k = 0; k < DP_REPLAY_KIND_COUNT; k++) {
        levels[k] = level(plan, (dp_replay_kind)k);
    }
    DP_AUTO_FREE double *own = dp_new_array(double, plan->count);
    for (size_t i = 0; i < plan->count; i++) {
        const struct planned *op = &plan->ops[i];
        bool wanted = (stage < 0 || op->stage == stage) &&
                      (replica < 0 || op->dp_rank == replica) &&
                      (kind < 0 || (int)op->kind == kind || (int)op->kind == twin);
        own[i] = wanted != others ? op->own : levels[op->kind];
    }
    return plan_step(plan, own);
}

static void check_decompositions(const struct plan *plan, const struct dp_replay_result *result)
{
    for (int32_t stage = 0; stage < plan->pipeline.stages; stage++) {
        assert_near(result->slowdown_stage[stage] * result->ideal_s,
                    mixed(plan, stage, -1, -1, -1, false));
    }
    for (int32_t replica = 0; replica < plan->pipeline.replicas; replica++) {
        assert_near(result->slowdown_replica[replica] * result->ideal_s,
                    mixed(plan, -1, replica, -1, -1, false));
    }
    assert_near(result->slowdown_part[DP_REPLAY_PART_BACKWARD] * result->ideal_s,
                mixed(plan, -1, -1, DP_REPLAY_BACKWARD_COMPUTE, -1, false));
    assert_near(result->slowdown_part[DP_REPLAY_PART_GRADS_REDUCE_SCATTER] * result->ideal_s,
                mixed(plan, -1, -1, DP_REPLAY_GRADS_REDUCE_SCATTER, -1, false));
    if (plan->pipeline.stages > 1) {
        assert_near(result->slowdown_part[DP_REPLAY_PART_FORWARD_COMM] * result->ideal_s,
                    mixed(plan, -1, -1, DP_REPLAY_FORWARD_SEND, DP_REPLAY_FORWARD_RECV, false));
    }
    int32_t worst = 0;
    for (int32_t i = 0; i < result->replicas * result->stages; i++) {
        worst = result->workers[i].fixed ? i : worst;
    }
    double lost = result->replayed_s - result->ideal_s;
    if (!(fabs(lost) <= 1e-6)) {
        double fixed =
            mixed(plan, result->workers[worst].stage, result->workers[worst].dp_rank, -1, -1, true);
        assert_near(result->m_workers * lost, result->replayed_s - fixed);
        double last = mixed(plan, plan->pipeline.stages - 1, -1, -1, -1, true);
        assert_near(result->m_stage * lost, result->replayed_s - last);
    }
}

static void every_answer_is_that_of_carrying_out_the_work_again(void **state)
{
    (void)state;
    struct dp_rand rand;
    dp_rand_init(&rand, 41);
    for (long run = 0; run < dp_fuzz_runs(40); run++) {
        struct plan plan = random_plan(&rand);
        double steps[4];
        DP_AUTO_FREE struct dp_replay_op *ops = plan_run(&plan, steps);
        struct dp_replay_result result = analyze(ops, plan.count);
        assert_near(result.gaps, 1);
        for (int32_t step = 0; step < plan.pipeline.steps; step++) {
            assert_near(result.steps[step].measured, steps[step]);
            assert_near(result.steps[step].replayed, steps[step]);
        }
        assert_near(result.ideal_s, mixed(&plan, -1, -1, -1, -1, true));
        check_decompositions(&plan, &result);
        dp_replay_result_deinit(&result);
        plan_deinit(&plan);
    }
}

static void assert_same_shares(const struct dp_replay_result *a, const struct dp_replay_result *b)
{
    assert_near(a->slowdown, b->slowdown);
    for (int32_t i = 0; i < a->stages; i++) {
        assert_near(a->slowdown_stage[i], b->slowdown_stage[i]);
    }
    for (int32_t i = 0; i < a->replicas; i++) {
        assert_near(a->slowdown_replica[i], b->slowdown_replica[i]);
    }
    if (!(fabs(a->slowdown - 1) <= 1e-3)) {
        assert_true(fabs(a->m_workers - b->m_workers) < 1e-6);
        assert_true(fabs(a->m_stage - b->m_stage) < 1e-6);
    }
}

static void scaling_all_times_scales_the_steps_and_no_share(void **state)
{
    (void)state;
    struct dp_rand rand;
    dp_rand_init(&rand, 42);
    for (long run = 0; run < dp_fuzz_runs(20); run++) {
        struct plan plan = random_plan(&rand);
        DP_AUTO_FREE struct dp_replay_op *ops = plan_run(&plan, NULL);
        struct dp_replay_result before = analyze(ops, plan.count);
        double factor = 0.5 + 3 * dp_rand_double(&rand);
        for (size_t i = 0; i < plan.count; i++) {
            // Clocks of steps may be anywhere.
            ops[i].start = ops[i].start * factor + 1000 * ops[i].step;
            ops[i].duration *= factor;
        }
        struct dp_replay_result after = analyze(ops, plan.count);
        assert_near(after.replayed_s, factor * before.replayed_s);
        assert_near(after.ideal_s, factor * before.ideal_s);
        assert_same_shares(&before, &after);
        dp_replay_result_deinit(&before);
        dp_replay_result_deinit(&after);
        plan_deinit(&plan);
    }
}

static void the_order_of_operations_in_a_trace_means_nothing(void **state)
{
    (void)state;
    struct dp_rand rand;
    dp_rand_init(&rand, 43);
    struct plan plan = random_plan(&rand);
    DP_AUTO_FREE struct dp_replay_op *ops = plan_run(&plan, NULL);
    struct dp_replay_result before = analyze(ops, plan.count);
    for (size_t i = plan.count - 1; i > 0; i--) {
        size_t j = dp_rand_below(&rand, i + 1);
        struct dp_replay_op swap = ops[i];
        ops[i] = ops[j];
        ops[j] = swap;
    }
    struct dp_replay_result after = analyze(ops, plan.count);
    assert_same_shares(&before, &after);
    assert_near(before.measured_s, after.measured_s);
    dp_replay_result_deinit(&before);
    dp_replay_result_deinit(&after);
    plan_deinit(&plan);
}

static void time_between_operations_is_a_gap_and_no_slowdown(void **state)
{
    (void)state;
    struct dp_replay_op ops[8];
    memcpy(ops, two_replicas(), sizeof(ops));
    for (int i = 0; i < 8; i++) {
        ops[i].start += ops[i].kind == DP_REPLAY_FORWARD_COMPUTE ? 0 : 1.5;
    }
    struct dp_replay_result result = analyze(ops, 8);
    assert_near(result.measured_s, 7.5);
    assert_near(result.replayed_s, 6);
    assert_near(result.gaps, 7.5 / 6);
    assert_near(result.slowdown, 6.0 / 5);
    struct dp_buf text = {0};
    dp_replay_render(&result, &text);
    assert_non_null(strstr(text.bytes, "besides, 20.0 % of the measured step are gaps"));
    dp_buf_deinit(&text);
    dp_replay_result_deinit(&result);
}

static void steps_that_were_cut_are_left_out(void **state)
{
    (void)state;
    struct pipeline pipeline = four_by_two;
    pipeline.steps = 4;
    struct plan plan = plan_make(pipeline);
    static const double even[] = {1, 1, 1, 1};
    DP_AUTO_FREE struct dp_replay_op *ops = uneven(&plan, even);
    size_t per_step = plan.count / 4;
    // The recording begins within step 0 and ends within step 3.
    struct dp_replay_result result = analyze(ops + 5, plan.count - 5 - per_step / 2);
    assert_int_equal(result.step_count, 2);
    assert_int_equal(result.steps_left_out, 2);
    assert_int_equal(result.left_out, 0);
    assert_int_equal(result.steps[0].step, 1);
    assert_int_equal(result.steps[1].step, 2);
    assert_int_equal(result.operations, 2 * per_step);
    dp_replay_result_deinit(&result);
    plan_deinit(&plan);
}

static void refused(const struct dp_replay_op *ops, size_t count, const char *part)
{
    struct dp_replay_result result;
    struct dp_error err = {0};
    assert_refused(dp_replay_analyze(ops, count, &result, &err), DP_INVALID, &err, part);
}

static void a_trace_that_does_not_fit_together_says_where(void **state)
{
    (void)state;
    struct dp_replay_op ops[9];
    memcpy(ops, two_replicas(), 8 * sizeof(*ops));
    refused(ops, 0, "no operations to replay");
    ops[8] = ops[5];
    ops[8].line = 12;
    refused(ops, 9, "step 7 has 9 operations on 2 replicas, and 4 of them are of dp_rank 0");
    ops[8] = ops[1];
    ops[4] = ops[1];
    ops[4].line = 33;
    refused(ops, 8, "step 7 has 8 operations on 2 replicas, and 5 of them are of dp_rank 0");
    memcpy(ops, two_replicas(), 8 * sizeof(*ops));
    ops[5] = ops[4];
    ops[5].line = 33;
    refused(ops, 8, "step 7, dp_rank 1, stage 0: forward-compute 0 (line 33) is there twice");
    memcpy(ops, two_replicas(), 8 * sizeof(*ops));
    ops[5].seq = 3;
    refused(ops, 8, "backward-compute 3: dp_rank 0 has 1 of them in step 7");
    memcpy(ops, two_replicas(), 8 * sizeof(*ops));
    ops[6].rank = 5;
    refused(ops, 8, "is by rank 5; others of that stage are by rank 1");
    memcpy(ops, two_replicas(), 8 * sizeof(*ops));
    ops[6].dp_rank = ops[7].dp_rank = 40000;
    refused(ops, 8, "more workers than operations");
    memcpy(ops, two_replicas(), 8 * sizeof(*ops));
    ops[1].duration = NAN;
    refused(ops, 8, "operation 1 has a field out of range");
    memcpy(ops, two_replicas(), 8 * sizeof(*ops));
    ops[1].gmc = 1;
    refused(ops, 8, "gmc 1 on stage 0: 1 stages of 1 chunks are numbered 0 to 0");
    for (int i = 0; i < 8; i++) {
        ops[i].gmc = -1;
        ops[i].duration = 0;
        ops[i].start = 0;
    }
    refused(ops, 8, "the operations take no time");
}

static void transfers_that_nobody_meets_are_refused(void **state)
{
    (void)state;
    struct dp_replay_op ops[8];
    two_stages(1, 1, 1, 1, ops);
    ops[2].kind = DP_REPLAY_FORWARD_SEND; // the receive of stage 1
    refused(ops, 8, "step 0, dp_rank 0: stage 0 has 1 forward-send, stage 1 0 forward-recv");
    two_stages(1, 1, 1, 1, ops);
    ops[3].kind = DP_REPLAY_GC;
    refused(ops, 8, "stage 1 has no forward-compute");
    // Stage 0 seems to have done its backward before the forward that led to it.
    two_stages(1, 1, 1, 1, ops);
    ops[6].start = -7;
    ops[7].start = -5;
    refused(ops, 8, "waits for itself");
    struct pipeline pipeline = four_by_two;
    struct plan plan = plan_make(pipeline);
    static const double even[] = {1, 1, 1, 1};
    DP_AUTO_FREE struct dp_replay_op *all = uneven(&plan, even);
    // Everywhere one receive of stage 1 fewer.
    size_t kept = 0;
    for (size_t i = 0; i < plan.count; i++) {
        if (all[i].stage != 1 || all[i].kind != DP_REPLAY_FORWARD_RECV || all[i].seq != 7) {
            all[kept++] = all[i];
        }
    }
    refused(all, kept, "stage 1, step 0, dp_rank 0: 7 forward-recv for 8 forward-compute");
    plan_deinit(&plan);
}

// With several chunks the very first receive, which brings nothing, may be missing.
static void a_missing_first_receive_shifts_no_match(void **state)
{
    (void)state;
    struct plan plan = plan_make(
        (struct pipeline){.replicas = 1, .stages = 2, .chunks = 2, .microbatches = 3, .steps = 1});
    for (size_t i = 0; i < plan.count; i++) {
        const struct planned *op = &plan.ops[i];
        bool first = op->kind == DP_REPLAY_FORWARD_RECV && op->stage == 0 && op->seq == 0;
        plan.ops[i].own = first ? 0 : 1 + 0.1 * (double)(i % 9);
    }
    double seconds;
    DP_AUTO_FREE struct dp_replay_op *ops = plan_run(&plan, &seconds);
    size_t kept = 0;
    for (size_t i = 0; i < plan.count; i++) {
        if (ops[i].kind == DP_REPLAY_FORWARD_RECV && ops[i].stage == 0 && ops[i].seq-- == 0) {
            continue;
        }
        ops[kept++] = ops[i];
    }
    assert_int_equal(kept, plan.count - 1);
    struct dp_replay_result result = analyze(ops, kept);
    assert_near(result.replayed_s, seconds);
    dp_replay_result_deinit(&result);
    plan_deinit(&plan);
}

static void random_operations_are_answered_or_refused(void **state)
{
    (void)state;
    struct dp_rand rand;
    dp_rand_init(&rand, 44);
    long answered = 0;
    for (long run = 0; run < dp_fuzz_runs(3000); run++) {
        struct plan plan = random_plan(&rand);
        DP_AUTO_FREE struct dp_replay_op *ops = plan_run(&plan, NULL);
        for (size_t change = dp_rand_below(&rand, 3); change > 0; change--) {
            struct dp_replay_op *op = &ops[dp_rand_below(&rand, plan.count)];
            switch (dp_rand_below(&rand, 6)) {
            case 0:
                op->seq = (int32_t)dp_rand_below(&rand, 6);
                break;
            case 1:
                op->kind = (uint32_t)dp_rand_below(&rand, DP_REPLAY_KIND_COUNT + 1);
                break;
            case 2:
                op->stage = (int32_t)dp_rand_below(&rand, 5);
                break;
            case 3:
                op->dp_rank = (int32_t)dp_rand_below(&rand, 4);
                break;
            case 4:
                op->start += 10 * dp_rand_normal(&rand);
                break;
            default:
                op->mc = (int32_t)dp_rand_below(&rand, 4) - 1;
                break;
            }
        }
        struct dp_replay_result result;
        struct dp_error err = {0};
        dp_status status = dp_replay_analyze(ops, plan.count, &result, &err);
        if (status == DP_OK) {
            answered++;
            dp_replay_result_deinit(&result);
        } else {
            assert_string_equal(dp_status_name(status), dp_status_name(DP_INVALID));
            assert_true(strlen(err.message) > 0);
        }
        plan_deinit(&plan);
        run += 9 * (plan.count > 400);
    }
    assert_true(answered > 0);
}

static void the_json_form_has_every_answer(void **state)
{
    (void)state;
    struct dp_replay_result result = analyze(two_replicas(), 8);
    DP_AUTO_JSON json_t *json = dp_replay_to_json(&result);
    assert_string_equal(json_string_value(json_object_get(json, "schema")), "dp.replay/1");
    assert_near(json_real_value(json_object_get(json, "S")), 1.2);
    assert_near(json_real_value(json_object_get(json, "M_W")), 1);
    assert_near(json_real_value(json_object_get(json_object_get(json, "S_dp"), "1")), 1.2);
    assert_near(json_real_value(json_object_get(json_object_get(json, "S_stage"), "0")), 1.2);
    json_t *optype = json_object_get(json, "S_optype");
    assert_int_equal(json_object_size(optype), 4);
    assert_near(json_real_value(json_object_get(optype, "forward-compute")), 1.2);
    assert_int_equal(json_array_size(json_object_get(json, "S_worker")), 2);
    json_t *step = json_array_get(json_object_get(json, "steps"), 0);
    assert_int_equal(json_integer_value(json_object_get(step, "step")), 7);
    assert_near(json_real_value(json_object_get(step, "measured_s")), 6);
    dp_replay_result_deinit(&result);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(waiting_for_a_slow_replica_is_not_the_waiter_s_cost),
        cmocka_unit_test(small_errors_of_clocks_stay_and_large_ones_count_as_nothing),
        cmocka_unit_test(compute_is_levelled_to_its_mean_and_communication_to_its_median),
        cmocka_unit_test(a_receive_posted_early_costs_only_the_transfer),
        cmocka_unit_test(a_heavy_last_stage_gives_a_share_over_one),
        cmocka_unit_test(a_light_last_stage_gives_a_negative_share),
        cmocka_unit_test(a_slow_worker_is_named),
        cmocka_unit_test(every_answer_is_that_of_carrying_out_the_work_again),
        cmocka_unit_test(scaling_all_times_scales_the_steps_and_no_share),
        cmocka_unit_test(the_order_of_operations_in_a_trace_means_nothing),
        cmocka_unit_test(time_between_operations_is_a_gap_and_no_slowdown),
        cmocka_unit_test(steps_that_were_cut_are_left_out),
        cmocka_unit_test(a_trace_that_does_not_fit_together_says_where),
        cmocka_unit_test(transfers_that_nobody_meets_are_refused),
        cmocka_unit_test(a_missing_first_receive_shifts_no_match),
        cmocka_unit_test(random_operations_are_answered_or_refused),
        cmocka_unit_test(the_json_form_has_every_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
