// Whatever is chosen together, a job trains as one rank does with none of it: schedules, layouts,
// recomputation, offloading, shards, copies of experts and where they lie, exchangers, threads,
// models, and a checkpoint in between that goes on under other choices.
#include "dp_test.h"

#include <math.h>
#include <string.h>

#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/rand.h"
#include "exec_harness.h"
#include "temporary.h"

#define STEPS 4
#define STOP 2 // where the run is cut
#define BATCH 12

static int32_t pick(struct dp_rand *rand, int32_t below)
{
    return (int32_t)dp_rand_below(rand, (uint64_t)below);
}

static void pick_attention(struct dp_rand *rand, struct dp_model_spec *model)
{
    if (pick(rand, 2) == 0) {
        model->mla_q_rank = pick(rand, 2) * 16;
        model->mla_kv_rank = 16;
        model->mla_nope_dim = 8;
        model->mla_rope_dim = 4;
        model->mla_v_dim = 8;
        model->kv_heads = model->heads;
        model->head_dim = 12;
    } else {
        model->qk_norm = pick(rand, 2);
        model->sinks = pick(rand, 2);
        model->biases = pick(rand, 2) == 0 ? 0 : DP_BIAS_QKV | DP_BIAS_OUTPUT;
    }
}

// Layers enough for every schedule here.
static struct dp_model_spec pick_model(struct dp_rand *rand)
{
    struct dp_model_spec model = {.name = "chosen",
                                  .layers = 8 + pick(rand, 2),
                                  .dense_layers = pick(rand, 3),
                                  .hidden = 16,
                                  .heads = 2,
                                  .kv_heads = 1,
                                  .head_dim = 8,
                                  .ffn = 24,
                                  .experts = 4 << pick(rand, 2),
                                  .top_k = 1 + pick(rand, 3),
                                  .shared_experts = pick(rand, 2),
                                  .expert_ffn = 12,
                                  .vocabulary = 256,
                                  .rope_theta = 10000,
                                  .norm_eps = 1e-5,
                                  .aux_loss_weight = 0.001,
                                  .bias_update = 0.01,
                                  .mtp_layers = pick(rand, 2),
                                  .tied_embedding = pick(rand, 2)};
    model.router = pick(rand, 2) == 0 ? DP_MODEL_SIGMOID : DP_MODEL_SOFTMAX;
    model.raw_weights = pick(rand, 2);
    if (pick(rand, 3) == 0) {
        model.expert_groups = 2;
        model.top_groups = 1;
        model.top_k = 2;
    }
    model.shared_gate = model.shared_experts > 0 ? pick(rand, 2) : 0;
    pick_attention(rand, &model);
    return model;
}

static const char *const schedules[] = {"gpipe",       "1f1b",  "dualpipe", "dualpipev",
                                        "interleaved", "zb-h1", "zb-v",     "chimera"};

// Replicas, expert ranks, and micro-batches that make up the batch.
static void pick_layout(struct dp_rand *rand, struct trial *trial)
{
    static const int32_t sizes[][3] = {{1, 1, 1}, {1, 2, 1}, {1, 2, 2}, {1, 4, 4}, {2, 1, 1},
                                       {2, 2, 1}, {2, 2, 2}, {2, 4, 2}, {4, 1, 1}, {4, 2, 2}};
    const int32_t *size = sizes[pick(rand, (int32_t)DP_ARRAY_LENGTH(sizes))];
    trial->pipeline = size[0];
    trial->data = size[1];
    trial->expert = size[2];
    struct dp_schedule schedule;
    struct dp_error err;
    dp_status status;
    do {
        trial->schedule = schedules[pick(rand, (int32_t)DP_ARRAY_LENGTH(schedules))];
        trial->micro_batch_size = BATCH / trial->data % 2 == 0 ? 1 + pick(rand, 2) : 1;
        trial->microbatches = BATCH / trial->data / trial->micro_batch_size;
        const struct dp_schedule_params params = {.pipeline = trial->pipeline,
                                                  .microbatches = trial->microbatches};
        status = dp_schedule_generate(trial->schedule, &params, &schedule, &err);
        if (status == DP_OK) {
            if (schedule.stages > trial->layers) {
                status = DP_INVALID;
            }
            dp_schedule_deinit(&schedule);
        }
    } while (status != DP_OK);
}

static void pick_choices(struct dp_rand *rand, struct trial *trial)
{
    static const uint32_t offloads[] = {0, DP_OFFLOAD_INPUTS | DP_OFFLOAD_EXPERTS,
                                        DP_OFFLOAD_ATTENTION | DP_OFFLOAD_FFN, 15};
    trial->recompute = pick(rand, 2) * (uint32_t)pick(rand, 64);
    trial->offload = offloads[pick(rand, 4)];
    trial->shard = pick(rand, 2) == 0 ? DP_SHARD_NONE : DP_SHARD_ZERO1;
    trial->no_overlap = pick(rand, 4) == 0;
    trial->threads = 1 + pick(rand, 2);
    trial->tcp = pick(rand, 4) == 0;
    trial->delay_us = 300 * pick(rand, 2); // others run what comes later meanwhile
    trial->alltoall = pick(rand, 2) == 0;
    trial->nodes = trial->expert > 2 && pick(rand, 2) == 0 ? 2 : 0;
    trial->rebalance_every = trial->expert > 1 ? pick(rand, 3) : 0;
    trial->expert_copies = trial->expert > 1 ? pick(rand, 3) : 0;
}

static struct trial trial_of(const struct dp_model_spec *model)
{
    struct trial trial = trial_default();
    trial.model = model;
    trial.layers = model->layers;
    trial.microbatches = BATCH;
    trial.element = DP_F64;
    trial.steps = STEPS;
    trial.evaluate = true;
    trial.holdout = 7; // no equal shares
    return trial;
}

static void expect_ok(const struct trial_result *result, uint64_t seed)
{
    for (int32_t rank = 0; rank < result->world; rank++) {
        if (result->ranks[rank].status != DP_OK) {
            print_message("choices %llu:\n", (unsigned long long)seed);
        }
    }
    trial_expect_ok(result);
}

static void expect_near(double got, double wanted, double most, const struct trial *trial,
                        uint64_t seed, int64_t step, const char *what)
{
    if (!(fabs(got - wanted) <= most * fabs(wanted))) {
        fail_msg("choices %llu, %s P%d D%d EP%d, step %d: %s is %.14g, not %.14g",
                 (unsigned long long)seed, trial->schedule, trial->pipeline, trial->data,
                 trial->expert, (int)step, what, got, wanted);
    }
}

static void expect_alike(const struct trial *trial, const struct trial_result *got,
                         const struct trial_result *wanted, uint64_t seed)
{
    const struct trial_rank *one = &wanted->ranks[0];
    for (int32_t rank = 0; rank < got->world; rank++) {
        const struct trial_rank *at = &got->ranks[rank];
        for (int64_t step = at->step_first; step <= at->step_done; step++) {
            const struct dp_trainer_report *a = &at->reports[step], *b = &one->reports[step];
            expect_near(a->loss, b->loss, 1e-9, trial, seed, step, "the loss");
            expect_near(a->grad_norm, b->grad_norm, 1e-7, trial, seed, step, "the norm");
        }
        if (at->step_done < STEPS) {
            continue;
        }
        expect_near(at->evaluated_loss, one->evaluated_loss, 1e-9, trial, seed, STEPS,
                    "the held-out loss");
        for (size_t i = 0; i < at->weights_count; i++) {
            const struct trial_tensor *other =
                trial_find(one->weights, one->weights_count, at->weights[i].name);
            const double distance = trial_distance(&at->weights[i], other);
            if (!(distance <= 1e-6)) {
                fail_msg("choices %llu, rank %d: %s is off by %g", (unsigned long long)seed, rank,
                         at->weights[i].name, distance);
            }
        }
    }
}

static void run_cut(struct trial trial, struct dp_rand *rand, uint64_t seed,
                    const struct trial_result *wanted)
{
    struct trial_result result;
    char directory[TEMPORARY_MAX];
    temporary_make(directory);
    struct trial first = trial;
    first.stop_after = STOP;
    first.save = directory;
    trial_run(&first, &result);
    expect_ok(&result, seed);
    expect_alike(&first, &result, wanted, seed);
    trial_result_deinit(&result);
    pick_layout(rand, &trial);
    pick_choices(rand, &trial);
    trial.resume = directory;
    trial_run(&trial, &result);
    expect_ok(&result, seed);
    assert_int_equal(result.ranks[0].step_first, STOP + 1);
    expect_alike(&trial, &result, wanted, seed);
    trial_result_deinit(&result);
    temporary_remove(directory);
}

// DP_CHOICES: one of the seeds that a failure has named.
static uint64_t first_seed(void)
{
    const char *only = getenv("DP_CHOICES");
    return only != NULL ? strtoull(only, NULL, 10) : 1;
}

static long runs_of(long short_form)
{
    return getenv("DP_CHOICES") != NULL ? 1 : TRIAL_UNDER_TSAN ? 2 : dp_fuzz_runs(short_form);
}

static void any_choices_together_train_as_one_rank_does(void **state)
{
    (void)state;
    const uint64_t first = first_seed();
    for (uint64_t seed = first; seed < first + (uint64_t)runs_of(8); seed++) {
        struct dp_rand rand;
        dp_rand_init(&rand, seed);
        const struct dp_model_spec model = pick_model(&rand);
        const struct trial one = trial_of(&model);
        struct trial_result wanted;
        trial_run(&one, &wanted);
        expect_ok(&wanted, seed);
        struct trial trial = one;
        pick_layout(&rand, &trial);
        pick_choices(&rand, &trial);
        run_cut(trial, &rand, seed, &wanted);
        trial_result_deinit(&wanted);
    }
}

// Losses, norms and weights, to the last bit.
static void expect_same_bits(const struct trial_result *a, const struct trial_result *b,
                             uint64_t seed)
{
    for (int32_t rank = 0; rank < a->world; rank++) {
        const struct trial_rank *x = &a->ranks[rank], *y = &b->ranks[rank];
        for (int64_t step = 1; step <= STEPS; step++) {
            const struct dp_trainer_report *p = &x->reports[step], *q = &y->reports[step];
            if (p->loss != q->loss || p->grad_norm != q->grad_norm) {
                fail_msg("choices %llu, step %d: loss %.9g or %.9g, norm %.9g or %.9g",
                         (unsigned long long)seed, (int)step, p->loss, q->loss, p->grad_norm,
                         q->grad_norm);
            }
        }
        assert_true(x->evaluated_loss == y->evaluated_loss);
        assert_int_equal(x->weights_count, y->weights_count);
        for (size_t i = 0; i < x->weights_count; i++) {
            if (memcmp(x->weights[i].values, y->weights[i].values,
                       (size_t)x->weights[i].count * sizeof(double)) != 0) {
                fail_msg("choices %llu, rank %d: %s differs", (unsigned long long)seed, rank,
                         x->weights[i].name);
            }
        }
    }
}

// The rows of fp8 products are rounded before they travel, which messages do not do.
static struct trial pick_precision(struct dp_rand *rand, const struct dp_model_spec *model)
{
    struct trial trial = trial_of(model);
    pick_layout(rand, &trial);
    pick_choices(rand, &trial);
    trial.element = pick(rand, 2) == 0 ? DP_F32 : DP_BF16;
    trial.fp8 = pick(rand, 2) == 0;
    trial.save_fp8 = pick(rand, 2) == 0;
    trial.bf16_moments = pick(rand, 2) == 0;
    trial.nodes = 0;
    return trial;
}

static void choices_of_time_and_memory_change_no_bit(void **state)
{
    (void)state;
    const uint64_t first = first_seed();
    for (uint64_t seed = first; seed < first + (uint64_t)runs_of(8); seed++) {
        struct dp_rand rand;
        dp_rand_init(&rand, seed);
        const struct dp_model_spec model = pick_model(&rand);
        const struct trial one = pick_precision(&rand, &model);
        struct trial other = one;
        pick_choices(&rand, &other);
        other.nodes = 0;
        other.alltoall = one.fp8 ? one.alltoall : other.alltoall;
        other.rebalance_every = one.rebalance_every;
        other.expert_copies = one.expert_copies;
        struct trial_result a, b;
        trial_run(&one, &a);
        expect_ok(&a, seed);
        trial_run(&other, &b);
        expect_ok(&b, seed);
        expect_same_bits(&a, &b, seed);
        trial_result_deinit(&a);
        trial_result_deinit(&b);
    }
}

static uint64_t limit; // of each rank's device

static dp_status open_limited(dp_element element, struct dp_device **ret_device,
                              struct dp_error *err)
{
    dp_status status = dp_device_open_cpu(element, ret_device, err);
    if (status == DP_OK) {
        dp_device_set_limit(*ret_device, limit);
    }
    return status;
}

static uint64_t fullest(const struct trial_result *result)
{
    uint64_t most = 0;
    for (int32_t rank = 0; rank < result->world; rank++) {
        const uint64_t peak = result->ranks[rank].memory.peak;
        most = peak > most ? peak : most;
    }
    return most;
}

// Wherever a device is full, ranks that it hits say so and the others that a peer is gone.
static void a_job_without_room_ends_wherever_it_is(void **state)
{
    (void)state;
    const uint64_t first = first_seed();
    for (uint64_t seed = first; seed < first + (uint64_t)runs_of(8); seed++) {
        struct dp_rand rand;
        dp_rand_init(&rand, seed);
        const struct dp_model_spec model = pick_model(&rand);
        struct trial trial = pick_precision(&rand, &model);
        trial.steps = 2;
        struct trial_result result;
        trial_run(&trial, &result);
        expect_ok(&result, seed);
        limit = fullest(&result) * (uint64_t)(30 + pick(&rand, 70)) / 100;
        trial_result_deinit(&result);
        trial.open_device = open_limited;
        trial_run(&trial, &result);
        int32_t full = 0;
        for (int32_t rank = 0; rank < result.world; rank++) {
            const struct trial_rank *at = &result.ranks[rank];
            if (at->status != DP_OK && at->status != DP_TOO_LARGE && at->status != DP_UNAVAILABLE) {
                fail_msg("choices %llu, limit %llu, rank %d: %s %s", (unsigned long long)seed,
                         (unsigned long long)limit, rank, dp_status_name(at->status),
                         at->err.message);
            }
            full += at->status == DP_TOO_LARGE;
        }
        assert_true(full > 0);
        trial_result_deinit(&result);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_choices_together_train_as_one_rank_does),
        cmocka_unit_test(choices_of_time_and_memory_change_no_bit),
        cmocka_unit_test(a_job_without_room_ends_wherever_it_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
