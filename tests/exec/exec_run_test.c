// What a rank accounts for, records, saves, and how it fails.
#include <math.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/archive.h"
#include "dp/buf.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/cost.h"
#include "dp_test.h"
#include "exec_harness.h"
#include "temporary.h"

#define TRIAL_LAYERS_MAX 8

static struct trial trial_of(const char *schedule)
{
    struct trial trial = trial_default();
    trial.schedule = schedule;
    trial.pipeline = 4;
    trial.steps = 2;
    return trial;
}

// Every family of the table, then some valid orders that are none of theirs; false when the index
// is past the last.
static bool trial_at(size_t index, struct trial *ret_trial)
{
    static const struct made made[] = {
        {MADE_ANYWHERE, .chunks = 2, .splits = 50, .pairs = 50, .live = 7, .seed = 1},
        {MADE_WAVES, .chunks = 2, .splits = 100, .pairs = 20, .live = 5, .seed = 2},
        {MADE_BOTH, .chunks = 1, .splits = 50, .pairs = 50, .live = 6, .seed = 3}};
    size_t count;
    const struct dp_schedule_family *families = dp_schedule_families(&count);
    if (index < count) {
        *ret_trial = trial_of(families[index].name);
        return true;
    }
    index -= count;
    if (index < DP_ARRAY_LENGTH(made)) {
        *ret_trial = trial_of("made");
        ret_trial->made = &made[index];
        return true;
    }
    return false;
}

static void peak_chunks_are_those_of_simulate(void **state)
{
    (void)state;
    struct trial trial;
    for (size_t i = 0; trial_at(i, &trial); i++) {
        struct trial_result result;
        trial_run(&trial, &result);
        trial_expect_ok(&result);
        struct dp_sim_uniform uniform = {.f = 1, .b = 2, .i = 1, .w = 1};
        struct dp_sim_costs costs;
        dp_sim_costs_init_uniform(&costs, &result.schedule, &uniform);
        struct dp_sim_result predicted;
        struct dp_error err;
        assert_ok(dp_simulate(&result.schedule, &costs, false, &predicted, &err), &err);
        for (int32_t rank = 0; rank < 4; rank++) {
            for (int64_t step = 1; step <= 2; step++) {
                assert_int_equal(result.ranks[rank].reports[step].peak_chunks,
                                 predicted.ranks[rank].peak_chunks);
            }
        }
        dp_sim_result_deinit(&predicted);
        dp_sim_costs_deinit(&costs);
        trial_result_deinit(&result);
    }
}

static void peak_chunks_are_the_published_ones(void **state)
{
    (void)state;
    // GPipe keeps all micro-batches; 1F1B keeps P - p (Narayanan et al., arXiv 1806.03377).
    for (int32_t rank = 0; rank < 4; rank++) {
        struct trial trial = trial_of("gpipe");
        struct trial_result result;
        trial_run(&trial, &result);
        trial_expect_ok(&result);
        assert_int_equal(result.ranks[rank].reports[1].peak_chunks, 16);
        trial_result_deinit(&result);
        trial = trial_of("1f1b");
        trial_run(&trial, &result);
        trial_expect_ok(&result);
        assert_int_equal(result.ranks[rank].reports[1].peak_chunks, 4 - rank);
        trial_result_deinit(&result);
    }
}

// A chunk's bytes by the cost model, for the rows that its experts received in step 1. Bytes are
// linear in the rows, so they may all stand in the stage's last layer.
static void bytes_of(const struct trial *trial, const struct trial_result *result,
                     const struct trial_rank *rank, int32_t stage, uint32_t microbatch,
                     struct dp_cost_chunk_bytes *ret_bytes)
{
    struct dp_profile profile;
    dp_profile_default_cpu(&profile);
    profile.element_bytes = (int32_t)dp_element_bytes(trial->element);
    struct dp_cost_batch batch = {
        .samples = trial->micro_batch_size, .sequence = TRIAL_SEQUENCE, .ep_size = trial->expert};
    struct dp_cost_stage shape = {.layer_begin = trial_layer_begin(trial, &result->schedule, stage),
                                  .layer_end =
                                      trial_layer_begin(trial, &result->schedule, stage + 1),
                                  .has_embedding = stage == 0,
                                  .has_head = stage == result->schedule.stages - 1};
    struct dp_cost_routed routed[TRIAL_LAYERS_MAX] = {0};
    for (size_t i = 0; i < rank->records_count; i++) {
        const struct dp_action_span *span = &rank->records[i].span;
        bool forward = span->kind == DP_ACTION_F || span->kind == DP_ACTION_FB;
        if (forward && span->step == 1 && span->stage == stage && span->microbatch == microbatch) {
            routed[shape.layer_end - shape.layer_begin - 1] =
                (struct dp_cost_routed){.tokens = (double)rank->records[i].routed_tokens,
                                        .rows = (double)rank->records[i].routed_rows};
        }
    }
    struct dp_model_spec model = trial_model(trial);
    dp_cost_chunk_bytes(&model, &profile, &shape, &batch, routed, ret_bytes);
}

// What an action's chunk adds to the rank's bytes while it runs, and afterwards.
static void walk_part(int32_t kind, const struct dp_cost_chunk_bytes *bytes, double *live,
                      double *during)
{
    switch (kind) {
    case DP_ACTION_F:
        *during += bytes->end_of_forward;
        *live += bytes->after_forward;
        break;
    case DP_ACTION_I:
        *during += bytes->end_of_input - bytes->after_forward;
        *live += bytes->after_input - bytes->after_forward;
        break;
    case DP_ACTION_B:
        *live -= bytes->after_forward;
        break;
    default:
        *live -= bytes->after_input;
        break;
    }
}

static uint64_t planned_peak(const struct trial *trial, const struct trial_result *result,
                             int32_t number)
{
    const struct dp_schedule *schedule = &result->schedule;
    int32_t position = number % schedule->pipeline;
    double live = 0, peak = 0;
    for (size_t i = schedule->rank_begin[position]; i < schedule->rank_begin[position + 1]; i++) {
        const struct dp_action *action = &schedule->actions[i];
        double during = live;
        bool pair = action->kind == DP_ACTION_FB;
        struct dp_cost_chunk_bytes bytes;
        bytes_of(trial, result, &result->ranks[number], action->stage, action->microbatch, &bytes);
        walk_part(pair ? DP_ACTION_F : action->kind, &bytes, &live, &during);
        if (pair) {
            bytes_of(trial, result, &result->ranks[number], action->b_stage, action->b_microbatch,
                     &bytes);
            walk_part(action->b_kind, &bytes, &live, &during);
        }
        peak = during > peak ? during : peak;
    }
    assert_true(live == 0);
    return (uint64_t)peak;
}

// By how much the chunks of one stage differ at the end of F, at most: rows that its experts
// receive.
static uint64_t uneven_bytes(const struct trial *trial, const struct trial_result *result,
                             int32_t number)
{
    const struct dp_schedule *schedule = &result->schedule;
    int32_t stages[DP_RANK_STAGES_MAX];
    int32_t count = dp_schedule_rank_stages(schedule, number % schedule->pipeline, stages);
    double most = 0;
    for (int32_t i = 0; i < count; i++) {
        double low = INFINITY, high = 0;
        for (uint32_t m = 0; m < (uint32_t)schedule->microbatches; m++) {
            if (dp_schedule_rank_of(schedule, stages[i], m) != number % schedule->pipeline) {
                continue;
            }
            struct dp_cost_chunk_bytes bytes;
            bytes_of(trial, result, &result->ranks[number], stages[i], m, &bytes);
            low = fmin(low, bytes.end_of_forward);
            high = fmax(high, bytes.end_of_forward);
        }
        most = fmax(most, high - low);
    }
    return (uint64_t)most;
}

// Waits are filled with what comes later, whose memory may then be taken or freed earlier than
// planned; never so much that the peak grows. Only a chunk whose experts receive more rows than
// those of the chunks before it can make it do so, by its own excess: nobody knows that before.
static void expect_planned_peaks(const struct trial *trial, bool is_filled)
{
    struct trial_result result;
    trial_run(trial, &result);
    trial_expect_ok(&result);
    for (int32_t rank = 0; rank < result.world; rank++) {
        uint64_t measured = result.ranks[rank].reports[1].peak_bytes;
        uint64_t planned = planned_peak(trial, &result, rank);
        uint64_t most = planned + (is_filled ? uneven_bytes(trial, &result, rank) : 0);
        if (measured > most || (!is_filled && measured != planned)) {
            fail_msg("%s rank %d: measured %llu bytes, planned %llu", trial->schedule, rank,
                     (unsigned long long)measured, (unsigned long long)planned);
        }
    }
    trial_result_deinit(&result);
}

static void peak_bytes_are_those_of_the_cost_model_at_the_routed_counts(void **state)
{
    (void)state;
    if (TRIAL_UNDER_TSAN) {
        skip();
    }
    struct trial trial;
    for (size_t i = 0; trial_at(i, &trial); i++) {
        trial.steps = 1;
        expect_planned_peaks(&trial, true);
        trial.no_overlap = true;
        expect_planned_peaks(&trial, false);
        trial.no_overlap = false;
        trial.data = 2;
        trial.expert = 2;
        trial.microbatches = 8;
        expect_planned_peaks(&trial, true);
        trial.no_overlap = true;
        expect_planned_peaks(&trial, false);
    }
}

// Records of actions, in the order in which the rank made them.
static size_t actions_of(const struct trial_rank *rank, const struct dp_exec_record **ret_actions)
{
    size_t count = 0;
    for (size_t i = 0; i < rank->records_count; i++) {
        if (rank->records[i].span.kind < DP_ACTION_KIND_COUNT) {
            ret_actions[count++] = &rank->records[i];
        }
    }
    return count;
}

static bool is_action(const struct dp_action_span *span, const struct dp_action *action)
{
    return span->kind == action->kind && span->stage == action->stage &&
           span->microbatch == action->microbatch &&
           (span->kind != DP_ACTION_FB ||
            (span->b_stage == action->b_stage && span->b_microbatch == action->b_microbatch));
}

static void expect_order(const struct trial_result *result, int64_t steps)
{
    for (int32_t rank = 0; rank < result->world; rank++) {
        const struct dp_schedule *schedule = &result->schedule;
        int32_t position = rank % schedule->pipeline;
        size_t begin = schedule->rank_begin[position];
        size_t length = schedule->rank_begin[position + 1] - begin;
        DP_AUTO_FREE const struct dp_exec_record **actions =
            dp_new_array(const struct dp_exec_record *, result->ranks[rank].records_count);
        assert_int_equal(actions_of(&result->ranks[rank], actions), (size_t)steps * length);
        for (size_t i = 0; i < (size_t)steps * length; i++) {
            const struct dp_action_span *span = &actions[i]->span;
            assert_true(is_action(span, &schedule->actions[begin + i % length]));
            assert_int_equal(span->step, 1 + i / length);
            assert_true(span->end_ns >= span->start_ns);
            assert_true(i == 0 || span->start_ns >= actions[i - 1]->span.end_ns);
        }
    }
}

// When the forward (or input gradient) of a chunk began or ended in step 1.
static int64_t time_of(const struct trial_result *result, int32_t stage, uint32_t microbatch,
                       bool forward, bool end)
{
    for (int32_t rank = 0; rank < result->world; rank++) {
        for (size_t i = 0; i < result->ranks[rank].records_count; i++) {
            const struct dp_action_span *span = &result->ranks[rank].records[i].span;
            bool is_forward = span->kind == DP_ACTION_F || span->kind == DP_ACTION_FB;
            bool is_backward = span->kind == DP_ACTION_B || span->kind == DP_ACTION_I;
            bool found = forward ? is_forward : is_backward;
            if (span->kind == DP_ACTION_FB && !forward) {
                found = span->b_stage == stage && span->b_microbatch == microbatch;
            } else {
                found = found && span->stage == stage && span->microbatch == microbatch;
            }
            if (found && span->step == 1) {
                return end ? span->end_ns : span->start_ns;
            }
        }
    }
    fail_msg("no record of stage %d, micro-batch %u", stage, microbatch);
    return 0;
}

// `end`: what an action needs has ended before it starts. Ranks that compute hand a result on as
// soon as it is made, while weight gradients still run; then it is the beginning that comes before.
static void expect_dependencies(const struct trial_result *result, bool end, int64_t hop_ns)
{
    const struct dp_schedule *schedule = &result->schedule;
    for (uint32_t m = 0; m < (uint32_t)schedule->microbatches; m++) {
        for (int32_t stage = 1; stage < schedule->stages; stage++) {
            bool hop = dp_schedule_rank_of(schedule, stage, m) !=
                       dp_schedule_rank_of(schedule, stage - 1, m);
            int64_t least_ns = hop ? hop_ns : 0;
            assert_true(time_of(result, stage, m, true, false) >=
                        time_of(result, stage - 1, m, true, end) + least_ns);
            assert_true(time_of(result, stage - 1, m, false, false) >=
                        time_of(result, stage, m, false, end) + least_ns);
        }
    }
}

static void every_action_is_recorded_in_order_and_after_what_it_needs(void **state)
{
    (void)state;
    struct trial trial;
    for (size_t i = 0; trial_at(i, &trial); i++) {
        struct trial_result result;
        trial_run(&trial, &result);
        trial_expect_ok(&result);
        expect_order(&result, 2);
        expect_dependencies(&result, false, 0);
        trial_result_deinit(&result);
    }
}

// From the start of the step on the first rank to the last end of an action.
static int64_t makespan_ns(const struct trial_result *result)
{
    int64_t begin_ns = INT64_MAX;
    int64_t end_ns = 0;
    for (int32_t rank = 0; rank < result->world; rank++) {
        int64_t start_ns = result->ranks[rank].reports[1].start_ns;
        begin_ns = start_ns < begin_ns ? start_ns : begin_ns;
        for (size_t i = 0; i < result->ranks[rank].records_count; i++) {
            const struct dp_action_span *span = &result->ranks[rank].records[i].span;
            if (span->kind < DP_ACTION_KIND_COUNT && span->end_ns > end_ns) {
                end_ns = span->end_ns;
            }
        }
    }
    return end_ns - begin_ns;
}

static void sim_ranks_keep_order_and_honour_hops(void **state)
{
    (void)state;
    struct trial trial;
    for (size_t i = 0; trial_at(i, &trial); i++) {
        trial.sim = true;
        trial.microbatches = 8;
        trial.steps = 1;
        struct dp_schedule schedule;
        trial_make_schedule(&trial, &schedule);
        struct dp_sim_uniform uniform = {
            .f = 1e-3, .b = 2e-3, .i = 1e-3, .w = 1e-3, .fb = 2.5e-3, .fi = 1.5e-3};
        uniform.hop.latency = 2e-3;
        struct dp_sim_costs costs;
        dp_sim_costs_init_uniform(&costs, &schedule, &uniform);
        trial.costs = &costs;
        struct trial_result result;
        trial_run(&trial, &result);
        trial_expect_ok(&result);
        expect_order(&result, 1);
        // The hop counts from the planned end, which lies a little before the recorded one.
        expect_dependencies(&result, true, 0);
        struct dp_sim_result predicted;
        struct dp_error err;
        assert_ok(dp_simulate(&schedule, &costs, false, &predicted, &err), &err);
        for (int32_t rank = 0; rank < 4; rank++) {
            const struct trial_rank *got = &result.ranks[rank];
            assert_int_equal(got->reports[1].peak_chunks, predicted.ranks[rank].peak_chunks);
            assert_int_equal(got->reports[1].peak_bytes, predicted.ranks[rank].peak_bytes);
            assert_false(got->reports[1].has_loss);
        }
        // Nothing is faster than the plan (whose times are cut to nanoseconds).
        assert_true(makespan_ns(&result) >=
                    (int64_t)(predicted.makespan * (double)DP_NS_PER_S) - DP_NS_PER_MS / 10);
        dp_sim_result_deinit(&predicted);
        trial_result_deinit(&result);
        dp_sim_costs_deinit(&costs);
        dp_schedule_deinit(&schedule);
    }
}

static void ten_steps_and_ten_more_are_twenty_bit_for_bit(void **state)
{
    (void)state;
    char directory[TEMPORARY_MAX];
    temporary_make(directory);
    struct trial trial = trial_of("dualpipe");
    trial.steps = 20;
    trial.data = 2;
    trial.expert = 2;
    trial.microbatches = 8;
    struct trial_result whole, half, rest;
    trial_run(&trial, &whole);
    trial_expect_ok(&whole);
    trial.stop_after = 10;
    trial.save = directory;
    trial_run(&trial, &half);
    trial_expect_ok(&half);
    trial.stop_after = 0;
    trial.save = NULL;
    trial.resume = directory;
    trial_run(&trial, &rest);
    trial_expect_ok(&rest);
    for (int32_t rank = 0; rank < whole.world; rank++) {
        assert_int_equal(rest.ranks[rank].step_first, 11);
        for (int64_t step = 11; step <= 20; step++) {
            assert_true(rest.ranks[rank].reports[step].loss ==
                        whole.ranks[rank].reports[step].loss);
        }
        for (size_t i = 0; i < whole.ranks[rank].weights_count; i++) {
            const struct trial_tensor *wanted = &whole.ranks[rank].weights[i];
            assert_memory_equal(rest.ranks[rank].weights[i].values, wanted->values,
                                (size_t)wanted->count * sizeof(double));
        }
    }
    trial_result_deinit(&rest);
    // Another layout goes on from the same files.
    struct trial other = trial_of("1f1b");
    other.steps = 20;
    other.resume = directory;
    trial_run(&other, &rest);
    trial_expect_ok(&rest);
    for (int64_t step = 11; step <= 20; step++) {
        double wanted = whole.ranks[0].reports[step].loss;
        assert_true(fabs(rest.ranks[0].reports[step].loss - wanted) <= 1e-5 * wanted);
    }
    trial_result_deinit(&rest);
    trial_result_deinit(&half);
    trial_result_deinit(&whole);
    temporary_remove(directory);
}

static void a_run_goes_on_under_one_schedule_after_the_other(void **state)
{
    (void)state;
    if (TRIAL_UNDER_TSAN) {
        skip();
    }
    char directory[TEMPORARY_MAX];
    temporary_make(directory);
    struct trial trial;
    int64_t count = 0;
    while (trial_at((size_t)count, &trial)) {
        count++;
    }
    struct trial one = trial_default();
    one.steps = 2 * count;
    struct trial_result whole;
    trial_run(&one, &whole);
    trial_expect_ok(&whole);
    for (int64_t i = 0; trial_at((size_t)i, &trial); i++) {
        trial.steps = 2 * count;
        trial.stop_after = 2 * (i + 1);
        trial.save = directory;
        trial.resume = i > 0 ? directory : NULL;
        struct trial_result part;
        trial_run(&trial, &part);
        trial_expect_ok(&part);
        for (int32_t rank = 0; rank < part.world; rank++) {
            assert_int_equal(part.ranks[rank].step_first, 2 * i + 1);
            for (int64_t step = 2 * i + 1; step <= 2 * i + 2; step++) {
                double wanted = whole.ranks[0].reports[step].loss;
                double got = part.ranks[rank].reports[step].loss;
                if (!(fabs(got - wanted) <= 1e-5 * wanted)) {
                    fail_msg("%s rank %d, step %d: loss %.9g, one rank has %.9g", trial.schedule,
                             rank, (int)step, got, wanted);
                }
            }
        }
        trial_result_deinit(&part);
    }
    trial_result_deinit(&whole);
    temporary_remove(directory);
}

// Of every step, each rank reads the part of its replica; together they read all of it once.
static void expect_samples(const struct trial *trial, int64_t first, int64_t end)
{
    struct trial_result result;
    trial_run(trial, &result);
    trial_expect_ok(&result);
    int64_t lowest = INT64_MAX, highest = 0;
    for (int32_t rank = 0; rank < result.world; rank++) {
        const struct trial_rank *got = &result.ranks[rank];
        lowest = got->sample_end > 0 && got->sample_first < lowest ? got->sample_first : lowest;
        highest = got->sample_end > highest ? got->sample_end : highest;
    }
    assert_int_equal(lowest, first);
    assert_int_equal(highest, end);
    trial_result_deinit(&result);
}

static void another_global_batch_goes_on_with_the_next_sample(void **state)
{
    (void)state;
    char directory[TEMPORARY_MAX];
    temporary_make(directory);
    struct trial trial = trial_default();
    trial.steps = 6;
    trial.save = directory;
    trial.stop_after = 3;
    expect_samples(&trial, 0, 48);
    trial.resume = directory;
    trial.microbatches = 4;
    trial.data = 2;
    trial.stop_after = 4;
    expect_samples(&trial, 48, 56);
    trial.microbatches = 3;
    trial.data = 1;
    trial.pipeline = 2;
    trial.stop_after = 6;
    expect_samples(&trial, 56, 62);
    temporary_remove(directory);
}

static void a_checkpoint_of_a_longer_run_is_refused(void **state)
{
    (void)state;
    char directory[TEMPORARY_MAX];
    temporary_make(directory);
    struct trial trial = trial_default();
    trial.steps = 3;
    trial.save = directory;
    struct trial_result result;
    trial_run(&trial, &result);
    trial_expect_ok(&result);
    trial_result_deinit(&result);
    trial.save = NULL;
    trial.resume = directory;
    trial.steps = 2;
    trial_run(&trial, &result);
    assert_refused(result.ranks[0].status, DP_INVALID, &result.ranks[0].err, "3 steps");
    trial_result_deinit(&result);
    temporary_remove(directory);
}

// As when a job is sent off twice, or a lost one still runs somewhere.
static void a_directory_that_another_run_writes_to_is_left_alone(void **state)
{
    (void)state;
    char directory[TEMPORARY_MAX];
    temporary_make(directory);
    struct dp_error err = {0};
    struct dp_archive_claim other = {0};
    DP_AUTO_FREE char *partial = dp_asprintf("%s/step-1.partial", directory);
    DP_AUTO_FREE char *part = dp_asprintf("%s/model-r1.safetensors", partial);
    assert_ok(dp_archive_claim(&other, directory, &err), &err);
    assert_ok(dp_archive_prepare(partial, &err), &err);
    assert_ok(dp_write_file(part, "theirs", strlen("theirs"), &err), &err);
    struct trial trial = trial_default();
    trial.pipeline = 2;
    trial.steps = 1;
    trial.save = directory;
    struct trial_result result;
    trial_run(&trial, &result);
    for (int32_t rank = 0; rank < 2; rank++) {
        assert_refused(result.ranks[rank].status, DP_CONFLICT, &result.ranks[rank].err,
                       "another run writes its checkpoints to");
    }
    trial_result_deinit(&result);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf bytes = {0};
    assert_ok(dp_read_file(part, 1 << 20, &bytes, &err), &err);
    assert_int_equal(bytes.length, strlen("theirs"));
    dp_archive_unclaim(&other);
    trial_run(&trial, &result);
    trial_expect_ok(&result);
    trial_result_deinit(&result);
    assert_int_not_equal(access(partial, F_OK), 0);
    temporary_remove(directory);
}

static void an_exploding_run_names_rank_step_and_action(void **state)
{
    (void)state;
    struct trial trial = trial_of("1f1b");
    trial.lr = 1e30;
    trial.steps = 4;
    struct trial_result result;
    trial_run(&trial, &result);
    int32_t causes = 0;
    for (int32_t rank = 0; rank < result.world; rank++) {
        const struct trial_rank *got = &result.ranks[rank];
        assert_int_not_equal(got->status, DP_OK);
        assert_true(got->failure.not_finite != got->failure.peer_lost);
        if (got->failure.not_finite) {
            causes++;
            assert_int_equal(got->status, DP_JOB_FAILED);
            assert_non_null(strchr(got->failure.action, '@'));
            char where[96];
            snprintf(where, sizeof(where), "rank %d, step 2, %s: ", rank, got->failure.action);
            assert_memory_equal(got->err.message, where, strlen(where));
        }
    }
    assert_true(causes >= 1);
    trial_result_deinit(&result);
}

static void a_loss_that_is_not_finite_is_the_fault_of_its_forward(void **state)
{
    (void)state;
    struct trial trial = trial_default();
    trial.lr = 1e38;
    trial.steps = 2;
    struct trial_result result;
    trial_run(&trial, &result);
    assert_refused(result.ranks[0].status, DP_JOB_FAILED, &result.ranks[0].err,
                   "rank 0, step 2, F0@0: the loss is NaN or infinite");
    assert_string_equal(result.ranks[0].failure.action, "F0@0");
    assert_true(result.ranks[0].failure.not_finite);
    trial_result_deinit(&result);
}

static void a_lost_peer_ends_every_rank_at_once(void **state)
{
    (void)state;
    for (int tcp = 0; tcp < 2; tcp++) {
        struct trial trial = trial_of("dualpipe");
        trial.steps = 30;
        trial.tcp = tcp == 1;
        trial.cut_rank = 2;
        struct trial_result result;
        trial_run(&trial, &result);
        for (int32_t rank = 0; rank < result.world; rank++) {
            const struct trial_rank *got = &result.ranks[rank];
            assert_int_equal(got->step_done, 1);
            if (rank != 2) { // who had waited in vain would say DP_TIMEOUT
                assert_int_equal(got->status, DP_UNAVAILABLE);
                assert_true(got->failure.peer_lost);
                assert_false(got->failure.not_finite);
            }
        }
        trial_result_deinit(&result);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(peak_chunks_are_those_of_simulate),
        cmocka_unit_test(peak_chunks_are_the_published_ones),
        cmocka_unit_test(peak_bytes_are_those_of_the_cost_model_at_the_routed_counts),
        cmocka_unit_test(every_action_is_recorded_in_order_and_after_what_it_needs),
        cmocka_unit_test(sim_ranks_keep_order_and_honour_hops),
        cmocka_unit_test(ten_steps_and_ten_more_are_twenty_bit_for_bit),
        cmocka_unit_test(a_run_goes_on_under_one_schedule_after_the_other),
        cmocka_unit_test(another_global_batch_goes_on_with_the_next_sample),
        cmocka_unit_test(a_checkpoint_of_a_longer_run_is_refused),
        cmocka_unit_test(a_directory_that_another_run_writes_to_is_left_alone),
        cmocka_unit_test(an_exploding_run_names_rank_step_and_action),
        cmocka_unit_test(a_loss_that_is_not_finite_is_the_fault_of_its_forward),
        cmocka_unit_test(a_lost_peer_ends_every_rank_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
